"""The families `saturnmq_*` of a broker: base units, counters that only rise, histograms.

Requirements: INT-11, MON-17, OPS-17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from saturnmq.broker.metrics.sources import ScrapeProgress, Sources
from saturnmq.metrics import COUNTER, GAUGE, Registry, Rows
from saturnmq.net.endpoint import Endpoint
from saturnmq.net.endpoint_metrics import Durations, register
from saturnmq.store.files.capacity import space

CONFLICTS_MAX: Final = 50  # pairs of clients in a scrape
_TOPIC: Final = (
    ("saturnmq_topic_put_messages_total", "TOPIC_PUT_NUMS", "Messages put."),
    ("saturnmq_topic_put_bytes_total", "TOPIC_PUT_SIZE", "Bytes put, whole records."),
)
_GROUP: Final = (
    ("saturnmq_group_read_messages_total", "GROUP_GET_NUMS", "Messages read by a group."),
    ("saturnmq_group_read_bytes_total", "GROUP_GET_SIZE", "Bytes read by a group, whole records."),
    ("saturnmq_group_sent_back_messages_total", "SNDBCK_PUT_NUMS", "Messages that a group sent back."),
)


class OwnFamilies:
    """Registers the families. ports: the listeners by name. requests: durations by request code."""

    def __init__(
        self,
        registry: Registry,
        sources: Sources,
        progress: ScrapeProgress,
        ports: Mapping[str, Endpoint],
        requests: Durations,
    ) -> None:
        self._registry, self._sources, self._progress = registry, sources, progress
        self._process()
        self._messages()
        self._store()
        self._load()
        self._replication()
        register(registry, ports, sources.rejections, requests)

    def _process(self) -> None:
        registry, sources = self._registry, self._sources
        started = sources.stats.started_ms / 1000
        registry.gauge("saturnmq_start_time_seconds", "Start of the broker, Unix time.", lambda: started)
        registry.gauge("saturnmq_master", "1 on a master or leader.", lambda: int(not sources.role.slave))
        registry.gauge("saturnmq_topics", "Topics.", lambda: len(sources.topics.table))

        def online() -> Rows:
            yield ("producer",), len(sources.clients.producers)
            yield ("consumer",), len(sources.clients.consumers)

        registry.family(GAUGE, "saturnmq_groups_online", "Groups with members.", ("kind",), online)

        def members() -> Rows:
            for group in list(sources.clients.consumers.values()):
                yield (group.name,), len(group.members)

        registry.family(GAUGE, "saturnmq_group_members", "Members of a consumer group online.", ("group",), members)

        def conflicts() -> Rows:
            for conflict in islice(sources.clients.conflicts(), CONFLICTS_MAX):
                clients = (conflict.client_id, conflict.address, conflict.other_id, conflict.other_address)
                yield (conflict.kind.value, conflict.group, *clients), 1

        text = "Two clients with one client id, or with unequal subscriptions in a group; at most 50 pairs."
        labels = ("kind", "group", "client", "address", "other", "other_address")
        registry.family(GAUGE, "saturnmq_client_conflict", text, labels, conflicts)

    def _messages(self) -> None:
        registry, sources, stats = self._registry, self._sources, self._sources.stats
        for name, text, read in (
            ("saturnmq_put_messages_total", "Messages put.", lambda: stats.put_messages),
            ("saturnmq_put_bytes_total", "Bytes put, whole records.", lambda: stats.put_bytes),
            ("saturnmq_put_failures_total", "Puts that failed.", lambda: stats.put_failed),
            ("saturnmq_read_messages_total", "Messages read.", lambda: stats.get_messages),
            ("saturnmq_read_bytes_total", "Bytes read, whole records.", lambda: stats.get_bytes),
        ):
            registry.counter(name, text, read)
        for name, counted, text in _TOPIC:
            registry.family(COUNTER, name, text, ("topic",), self._values(counted, 1))
        for name, counted, text in _GROUP:
            registry.family(COUNTER, name, text, ("topic", "group"), self._values(counted, 2))

        def lags() -> Rows:
            yield from self._progress.read()
            for topic, group, queues in self._progress.pairs():
                yield (topic, group), self._progress.lag(topic, queues)

        text = "Messages that a group has not consumed."
        registry.family(GAUGE, "saturnmq_group_lag_messages", text, ("topic", "group"), lags)
        registry.gauge(
            "saturnmq_sends_waiting", "Sends that wait to be durable.", lambda: sources.runtime.in_flight.sends
        )

    def _values(self, counted: str, parts: int) -> Callable[[], Rows]:
        """Totals of a statistics set, by the parts of its keys."""
        items = self._sources.stats.sets[counted].items

        def rows() -> Rows:
            for key in list(items):
                item, names = items.get(key), tuple(key.split("@"))
                yield (names, item.value) if item is not None and len(names) == parts else None

        return rows

    def _store(self) -> None:
        registry, store = self._registry, self._sources.store
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("saturnmq_log_begin_bytes", "Offset of the first byte of the log.", lambda: max(store.min_physical_offset, 0)),
            ("saturnmq_log_end_bytes", "Offset of the end of the log.", lambda: store.max_physical_offset),
            ("saturnmq_log_unflushed_bytes", "Bytes that are not durable.",
             lambda: store.max_physical_offset - store.flushed_offset),
            ("saturnmq_dispatch_behind_bytes", "Bytes that consumers do not see yet.", lambda: store.behind_bytes),
            ("saturnmq_disk_size_bytes", "Size of the commit log's disk.", lambda: space(store.log.folders[0])[0]),
            ("saturnmq_disk_free_bytes", "Free space of the commit log's disk.", lambda: space(store.log.folders[0])[1]),
            ("saturnmq_writable", "1 if the store takes messages.", lambda: int(store.writable)),
        )  # fmt: skip
        for name, text, read in gauges:
            registry.gauge(name, text, read)
        registry.counter(
            "saturnmq_scrub_damaged_total", "Damaged records that the scrub has found.", self._sources.damaged_records
        )
        registry.histogram(
            "saturnmq_append_seconds", "Appends of a message or batch to the page cache.", store.append_watch.durations
        )
        registry.histogram(
            "saturnmq_fsync_seconds", "Flushes of the log to the disk.", lambda: [("", store.log.fsync_seconds)]
        )

    def _load(self) -> None:
        registry, sources = self._registry, self._sources
        text = "Estimated wait of a new send."
        registry.gauge("saturnmq_send_wait_seconds", text, lambda: sources.runtime.in_flight.send_wait_ms / 1000)
        text = "Request codes that are rejected because the broker is overloaded."
        registry.gauge("saturnmq_load_shedding_codes", text, lambda: len(sources.admission.rejected))

    def _replication(self) -> None:
        registry, replicas = self._registry, self._sources.replicas
        if replicas is None:
            return
        text = "From an append until a slave, or the quorum of the group, has it."
        registry.histogram("saturnmq_replication_seconds", text, replicas.replication_seconds)

        def behind() -> Rows:
            for address, size in replicas.behind():
                yield (address,), size

        text = "Bytes that a slave or follower is behind this broker."
        registry.family(GAUGE, "saturnmq_replica_behind_bytes", text, ("address",), behind)
        if not replicas.in_group:
            return
        for attribute, text in (
            ("term", "Term of the group."),
            ("end_index", "Last index of this member's log."),
            ("committed_index", "Last index that the group has committed."),
        ):

            def read(attribute: str = attribute) -> float:
                status = replicas.status()
                return int(getattr(status, attribute)) if status is not None else 0

            registry.gauge(f"saturnmq_raft_{attribute}", text, read)
