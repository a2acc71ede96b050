"""The families of the exporter of Apache RocketMQ, from the broker's own tables: its 89 names, so that existing boards have data.

All are gauges, as the exporter's. It asks masters only, and boards add up all brokers: a slave or a follower has the families
without rows. Two families are declared and never have rows, as there.

Requirements: EXP-02, MON-17, INT-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from saturnmq.broker.metrics import apache_names as names
from saturnmq.broker.metrics.running_info import ClientRates
from saturnmq.broker.metrics.sources import STEP, Latency, ScrapeProgress, Sources, last_minute
from saturnmq.broker.requests.runtime import runtime_table
from saturnmq.metrics import GAUGE, Registry, Row, Rows
from saturnmq.protocol.codes import DLQ_PREFIX, RETRY_PREFIX
from saturnmq.statistics import LAST_MINUTE, WindowSum
from saturnmq.store.files.capacity import space

ADDRESSES_MAX: Final = 16  # of a group's members in one label
_CLUSTERING: Final = "1"  # place of the model in Java's enum
Labels = dict[str, str]


class ApacheFamilies:
    """Registers the families. accumulation: whether rocketmq_message_accumulation, an older name, is one of them."""

    def __init__(
        self,
        registry: Registry,
        sources: Sources,
        progress: ScrapeProgress,
        clients: ClientRates,
        *,
        accumulation: bool,
    ) -> None:
        self._registry, self._sources, self._progress = registry, sources, progress
        self._table: dict[str, str] = {}
        self._broker()
        self._topics()
        self._groups(accumulation=accumulation)
        self._members(clients)
        self._runtime()

    def _add(
        self, name: str, text: str, labels: tuple[str, ...], rows: Callable[[], Rows], fixed: Callable[[], Labels]
    ) -> None:
        """Register a family whose first labels are `fixed`; it has rows on a master only."""
        varying = labels[len(fixed()) :]
        master = self._sources.role

        def of_a_master() -> Rows:
            return () if master.slave else rows()

        self._registry.family(GAUGE, name, text, varying, of_a_master, fixed)

    def _names(self) -> Labels:
        settings = self._sources.settings
        return {"cluster": settings.cluster_name, "broker": settings.broker_name}

    def _address(self) -> Labels:
        return {"cluster": self._sources.settings.cluster_name, "brokerIP": self._sources.address()}

    # ---- broker, topics

    def _broker(self) -> None:
        sources = self._sources
        cluster, broker = sources.settings.cluster_name, sources.settings.broker_name
        for name, counted, text in (
            ("rocketmq_broker_tps", "BROKER_PUT_NUMS", "Messages put per second, last minute."),
            ("rocketmq_broker_qps", "BROKER_GET_NUMS", "Messages read per second, last minute."),
        ):

            def rate(counted: str = counted) -> Rows:
                yield (broker,), last_minute(sources.stats, counted, cluster).tps

            self._add(name, text, names.BROKER_LABELS, rate, self._address)

        def behind() -> Rows:
            for address, size in sources.behind():
                yield (address, broker), float(size)

        text = "Bytes that a slave is behind its master."
        self._add("rocketmq_broker_commitlog_diff", text, names.BROKER_LABELS, behind, lambda: {"cluster": cluster})

    def _topics(self) -> None:
        sources = self._sources

        def counted(name: str) -> Callable[[], Rows]:
            items = sources.stats.sets[name].items

            def rows() -> Rows:
                for topic in list(items):
                    item = items.get(topic)
                    if item is None or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                        yield None
                    else:
                        yield (topic,), item.over(LAST_MINUTE).tps

            return rows

        prefixes = (RETRY_PREFIX, DLQ_PREFIX)

        def ends(prefix: str, *, shown: bool = True) -> Callable[[], Rows]:
            def rows() -> Rows:
                topic_ends = self._progress.ends
                for step, topic in enumerate(list(sources.topics.table)):
                    kind = "" if topic[0] != "%" else next((mark for mark in prefixes if topic.startswith(mark)), "")
                    if kind == prefix:
                        yield ((topic if shown else topic[len(prefix) :]),), topic_ends.get(topic, 0)
                    elif step % STEP == 0:
                        yield None

            return rows

        def first() -> Rows:
            yield from self._progress.read()
            yield from ends("")()

        topic, group = names.TOPIC_LABELS, names.GROUP_LABELS
        self._add("rocketmq_producer_tps", "Messages put per second.", topic, counted("TOPIC_PUT_NUMS"), self._names)
        text = "Bytes put per second."
        self._add("rocketmq_producer_message_size", text, topic, counted("TOPIC_PUT_SIZE"), self._names)
        self._add("rocketmq_producer_offset", "Sum of the next offsets of a topic's queues.", topic, first, self._names)
        self._add("rocketmq_topic_retry_offset", "The same of retry topics.", topic, ends(RETRY_PREFIX), self._names)
        text = "The same of dead-letter topics."
        self._add("rocketmq_topic_dlq_offset", text, group, ends(DLQ_PREFIX, shown=False), self._names)

        def producers() -> Rows:
            for name, members in list(sources.clients.producers.items()):
                yield (name,), len(members)

        self._add("rocketmq_producer_count", "Producers online.", group, producers, self._names)

    # ---- groups

    def _groups(self, *, accumulation: bool) -> None:
        sources, pair = self._sources, names.PAIR_LABELS

        def counted(name: str, value: Callable[[WindowSum], float]) -> Callable[[], Rows]:
            items = sources.stats.sets[name].items

            def rows() -> Rows:
                for key in list(items):
                    topic, _, group = key.partition("@")
                    item = items.get(key)
                    if item is None or topic.startswith(RETRY_PREFIX) or not group:
                        yield None
                    else:
                        yield (topic, group), value(item.over(LAST_MINUTE))

            return rows

        def rate(window_sum: WindowSum) -> float:
            return window_sum.tps

        def offsets() -> Rows:
            for topic, group, queues in self._progress.pairs():
                yield (topic, group), sum([offset for offset in queues.values() if offset > 0])

        def latencies() -> Rows:
            latency = Latency(sources)
            for topic, group, queues in self._progress.pairs():
                value = 0 if self._progress.lag(topic, queues) <= 0 else latency.of(topic, group, queues)
                yield None if value is None else ((topic, group), value)

        def nothing() -> Rows:
            return ()

        for name, text, rows in (
            ("rocketmq_consumer_tps", "Messages read per second.", counted("GROUP_GET_NUMS", rate)),
            ("rocketmq_consumer_message_size", "Bytes read per second.", counted("GROUP_GET_SIZE", rate)),
            ("rocketmq_consumer_offset", "Sum of a group's offsets for a topic.", offsets),
            ("rocketmq_group_consume_tps", "Declared by the exporter, without rows.", nothing),
            ("rocketmq_group_consume_total_offset", "Declared by the exporter, without rows.", nothing),
            ("rocketmq_send_back_nums", "Messages sent back in the last minute.",
             counted("SNDBCK_PUT_NUMS", lambda window_sum: window_sum.sum)),
            ("rocketmq_group_get_latency_by_storetime", "How long the next message is stored, ms.", latencies),
        ):  # fmt: skip
            self._add(name, text, pair, rows, self._names)
        diffs = [
            ("rocketmq_group_diff", ""),
            ("rocketmq_group_retrydiff", RETRY_PREFIX),
            ("rocketmq_group_dlqdiff", DLQ_PREFIX),
        ]
        if accumulation:
            diffs.append(("rocketmq_message_accumulation", ""))
        for name, prefix in diffs:
            text = "Messages that a group has not consumed."
            self._add(name, text, names.DIFF_LABELS, self._diffs(prefix), dict)

    def _diffs(self, prefix: str) -> Callable[[], Rows]:
        """Lags of topics with this prefix; without one, of all that are neither retry nor dead-letter topics."""
        progress = self._progress

        def all_pairs() -> Rows:
            for topic, group, queues in progress.pairs():
                ordinary = topic[0] != "%" or (topic, group) not in progress.special
                yield self._diff(topic, group, progress.lag(topic, queues)) if ordinary else None

        def special() -> Rows:
            for topic, group in list(progress.special):
                if topic.startswith(prefix):
                    yield self._diff(topic, group, progress.special.get((topic, group), 0))

        return special if prefix else all_pairs

    def _diff(self, topic: str, group: str, lag: int) -> Row | None:
        """A row with a group's lag; None for one that broadcasts, whose offsets its members keep."""
        live = self._sources.clients.consumers.get(group)
        if live is None:
            return (group, topic, "0", _CLUSTERING), lag
        if live.message_model == "BROADCASTING":
            return None
        return (group, topic, str(len(live.members)), _CLUSTERING), lag

    def _members(self, clients: ClientRates) -> None:
        def counts() -> Rows:
            for group in list(self._sources.clients.consumers.values()):
                some = list(islice(group.members.items(), ADDRESSES_MAX))
                more = ["..."] if len(group.members) > ADDRESSES_MAX else []
                addresses = ",".join([member.remote_address for member, _ in some] + more)
                ids = ",".join([info.client_id for _, info in some] + more)
                yield (addresses, ids, group.name), len(group.members)

        self._add("rocketmq_group_count", "Members of a group online.", names.COUNT_LABELS, counts, dict)
        for name, attribute, text in names.CLIENT:

            def rows(attribute: str = attribute) -> Iterator[Row]:
                for labels, status in clients.rows():
                    yield labels, getattr(status, attribute)

            self._add(name, f"{text} Reported by the member.", names.CLIENT_LABELS, rows, dict)

    # ---- runtime information

    def _runtime(self) -> None:
        sources = self._sources

        def labels() -> Labels:
            table = self._table
            return {**self._address(), "brokerHost": "", "des": table.get("brokerVersionDesc", ""),
                    "boottime": table.get("bootTimestamp", ""), "broker_version": table.get("brokerVersion", "")}  # fmt: skip

        def add(name: str, text: str, value: Callable[[dict[str, str]], float]) -> None:
            self._add(
                names.RUNTIME_PREFIX + name, text, names.RUNTIME_LABELS, lambda: [((), value(self._table))], labels
            )

        for name, row, text in names.RUNTIME:
            add(name, text, partial(_number, row, 0))
        for name, row in names.RATES:
            for position, seconds in enumerate(names.WINDOWS_SECONDS):
                text = f"Per second, in the last {seconds} s."
                add(f"{name}{seconds}", text, partial(_number, row, position))
        for name, label in names.PUT_TIMES:
            text = f"Puts of the last full minute that took {label}."
            add(f"pmdt_{name}", text, partial(_puts_of_class, label))
        log = sources.store.log
        add("commitlogdir_capacity_total", "Size of the commit log's disk, bytes.", lambda _: space(log.folders[0])[0])
        add(
            "commitlogdir_capacity_free",
            "Free space of the commit log's disk, bytes.",
            lambda _: space(log.folders[0])[1],
        )

    def begin(self) -> None:
        """A scrape begins: read the runtime information once for all its families."""
        self._table = runtime_table(self._sources.runtime)


def _number(row: str, position: int, table: dict[str, str]) -> float:
    """A number of a row of the runtime information, by its place; 0 if the row does not have it, or not yet."""
    numbers = table.get(row, "").split(" ")
    try:
        return float(numbers[position]) if position < len(numbers) else 0.0
    except ValueError:
        return 0.0


def _puts_of_class(label: str, table: dict[str, str]) -> float:
    """Puts whose duration is of a class; 0 in the first minute, which has no numbers yet."""
    for part in table.get("putMessageDistributeTime", "").split():
        name, _, count = part.rpartition(":")
        if name == f"[{label}]" and count.isdigit():
            return int(count)
    return 0
