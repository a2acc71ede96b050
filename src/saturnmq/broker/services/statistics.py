"""Message counters of a broker: totals for the runtime information (28), and the statistics sets (315).

Lines about the store as a whole go to `saturnmq.store.statistics` every minute, in Apache RocketMQ's text.

Requirements: RT-01, MON-01, MON-12, MON-14, MON-18.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final

from saturnmq.protocol.codes import SCHEDULE_TOPIC
from saturnmq.statistics import ITEMS_MAX, StatsItem, StatsSets
from saturnmq.statistics import SAMPLE_SECONDS as SETS_SECONDS

log = logging.getLogger(__name__)
store_log: Final = logging.getLogger("saturnmq.store.statistics")

SAMPLE_SECONDS: Final = 1
_RATES: Final = (10, 60, 600)  # s
_PUTS, _FOUND_GETS, _MISSED_GETS, _READ_MESSAGES = range(1, 5)  # places of the totals in a sample
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
QUEUE_PUTS: Final = ("QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE")
QUEUE_GETS: Final = ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE")
NAMES: Final = (
    "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY", "SNDBCK_PUT_NUMS",
    "BROKER_PUT_NUMS", "BROKER_GET_NUMS", "QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE", "QUEUE_GET_NUMS", "QUEUE_GET_SIZE",
    "GROUP_GET_FROM_DISK_NUMS", "GROUP_GET_FROM_DISK_SIZE", "BROKER_GET_FROM_DISK_NUMS", "BROKER_GET_FROM_DISK_SIZE",
    "COMMERCIAL_SEND_TIMES", "COMMERCIAL_SEND_SIZE", "COMMERCIAL_RCV_TIMES", "COMMERCIAL_RCV_SIZE", "COMMERCIAL_RCV_EPOLLS",
    "COMMERCIAL_SNDBCK_TIMES", "COMMERCIAL_PERM_FAILURES",
)  # fmt: skip
_OF_TOPIC: Final = (
    "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", *QUEUE_PUTS, *QUEUE_GETS, "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS",
)  # fmt: skip
_OF_GROUP: Final = (*QUEUE_GETS, "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", "GROUP_GET_LATENCY")
_COARSE: Final = (
    (1, "[<=0ms]"), (10, "[0~10ms]"), (50, "[10~50ms]"), (100, "[50~100ms]"), (200, "[100~200ms]"), (500, "[200~500ms]"),
    (1000, "[500ms~1s]"), (2000, "[1~2s]"), (3000, "[2~3s]"), (4000, "[3~4s]"), (5000, "[4~5s]"), (10_000, "[5~10s]"),
)  # fmt: skip
_STEPS: Final = ((20, 1), (15, 2), (10, 5), (10, 10), (6, 50), (5, 100), (9, 1000))


def _edges() -> tuple[int, ...]:
    edges, at = [], 0
    for count, width in _STEPS:
        for _ in range(count):
            at += width
            edges.append(at)
    return tuple(edges)


EDGES_MS: Final = _edges()  # upper ends of the histogram's buckets, exclusive; the last bucket has none


class PutTimes:
    """Histogram of how long puts took, in ms, over the current minute and the last full one."""

    __slots__ = ("_counts", "_full", "max_ms", "under_1_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(EDGES_MS) + 1)
        self._full: list[int] | None = None
        self.under_1_ms = self.max_ms = 0

    def add(self, ms: int, count: int = 1) -> None:
        """Count puts of at least 1 ms each; shorter ones are counted by `under_1_ms`."""
        self._counts[bisect_left(EDGES_MS, ms + 1)] += count
        self.max_ms = max(self.max_ms, ms)

    def rotate(self) -> None:
        """Begin a new minute."""
        # Counted apart, as most puts take less: one addition instead of a search.
        self._counts[0] += self.under_1_ms
        self._full, self._counts, self.under_1_ms = self._counts, [0] * len(self._counts), 0

    def distribution(self) -> str:
        """Counts of the last full minute in Apache's thirteen classes; `null` in the first minute."""
        if self._full is None:
            return "null"
        text, low = "", 0
        for limit, label in _COARSE:
            high = bisect_left(EDGES_MS, limit) + 1
            text += f"{label}:{sum(self._full[low:high])} "
            low = high
        return f"{text}[10s~]:{sum(self._full[low:])} "

    @property
    def last_minute(self) -> int:
        """Number of puts in the last full minute."""
        return sum(self._full or ())

    def percentile(self, share: float) -> float:
        """Time in ms that this share of the last full minute's puts did not exceed, interpolated within its bucket; 0 without."""
        counts = self._full or []
        rank = share * sum(counts)
        before = 0
        for bucket, count in enumerate(counts):
            if count and before + count >= rank:
                low = EDGES_MS[bucket - 1] if bucket else 0
                high = EDGES_MS[bucket] if bucket < len(EDGES_MS) else max(self.max_ms, low)
                return low + (high - low) * (rank - before) / count
            before += count
        return 0.0


class Stats:
    """Totals since the start, sampled each second for rates over 10, 60 and 600 s, and statistics by topic and group.

    cluster: key of the broker's own items. clock_ms: Unix ms. delete_unused: whether items of deleted topics and groups go.
    detail: whether there are items of single queues. delays: whether deliveries of delayed messages are counted by topic and group.
    falls: whether the distance of each pull from the log's end is recorded.
    """

    __slots__ = (
        "_cluster",
        "_delays",
        "_delete_unused",
        "_detail",
        "_falls",
        "_get_items",
        "_latencies",
        "_morning",
        "_next_midnight_ms",
        "_put_items",
        "_samples",
        "_ticks",
        "_unlisted",
        "fall_ms",
        "fall_size",
        "get_bytes",
        "get_found",
        "get_max_ms",
        "get_messages",
        "get_miss",
        "put_bytes",
        "put_failed",
        "put_messages",
        "put_times",
        "sets",
        "started_ms",
    )  # fmt: skip

    def __init__(
        self,
        cluster: str,
        clock_ms: Callable[[], int],
        delete_unused: bool = False,
        *,
        detail: bool = True,
        delays: bool = True,
        falls: bool = True,
    ) -> None:
        self.started_ms = clock_ms()
        self.put_messages = self.put_bytes = self.put_failed = 0
        self.get_messages = self.get_bytes = self.get_found = self.get_miss = self.get_max_ms = 0
        self.put_times = PutTimes()
        self.sets = StatsSets(tuple(name for name in NAMES if detail or not name.startswith("QUEUE_")), clock_ms)
        self.fall_size: dict[str, int] = {}  # bytes behind the log's end at the last pull, by queueId@topic@group
        self.fall_ms: dict[str, int] = {}
        self._cluster, self._delete_unused = cluster, delete_unused
        self._detail, self._delays, self._falls = detail, delays, falls
        self._unlisted = 0  # messages that were put but count for no topic
        self._put_items: dict[str, tuple[StatsItem, StatsItem]] = {}
        self._get_items: dict[tuple[str, str], tuple[StatsItem, StatsItem]] = {}
        self._latencies: dict[tuple[int, str, str], tuple[StatsItem, str]] = {}
        self._samples: deque[tuple[float, int, int, int, int]] = deque(maxlen=max(_RATES) + 1)
        self._ticks = 0
        self._morning = (0, 0, 0, 0)  # puts and gets until yesterday's midnight, puts and gets until today's
        self._next_midnight_ms = _midnight_after(self.started_ms)

    # ---- counting

    def put(self, topic: str, count: int, size: int, ns: int = 0, *, requests: int = 1) -> None:
        """Count stored requests of `count` messages and `size` log bytes in all that took ns nanoseconds each."""
        self.put_messages += count
        self.put_bytes += size
        pair = self._put_items.get(topic)
        if pair is None:
            # Cached between two samples: names are looked up once.
            pair = self._put_items[topic] = (
                self.sets["TOPIC_PUT_NUMS"].item(topic),
                self.sets["TOPIC_PUT_SIZE"].item(topic),
            )
        _add(pair, count, size, requests)
        if ns < 1_000_000:
            self.put_times.under_1_ms += requests
        else:
            self.put_times.add(ns // 1_000_000, requests)

    def fetched(self, topic: str, group: str, count: int, size: int) -> None:
        """Count messages that were read for a group."""
        self.get_messages += count
        self.get_bytes += size
        pair = self._get_items.get((topic, group))
        if pair is None:
            key = f"{topic}@{group}"
            pair = self._get_items[topic, group] = (
                self.sets["GROUP_GET_NUMS"].item(key),
                self.sets["GROUP_GET_SIZE"].item(key),
            )
        _add(pair, count, size)

    def pulled(self, topic: str, group: str, queue_id: int, ns: int, behind_bytes: int, behind_ms: int) -> None:
        """Record one successful pull: how long its read took, and how far its last message is behind the log's end and now."""
        self.get_found += 1
        latency_entry = self._latencies.get((queue_id, topic, group))
        if latency_entry is None:
            key = f"{queue_id}@{topic}@{group}"
            item = self.sets["GROUP_GET_LATENCY"].item(key if self._detail else f"{topic}@{group}")
            latency_entry = self._latencies[queue_id, topic, group] = item, key
        latency, key = latency_entry
        ms = ns // 1_000_000
        latency.value += ms
        latency.times += 1
        self.get_max_ms = max(self.get_max_ms, ms)
        # Always; the bytes only if they are used.
        self.fall_ms[key] = behind_ms
        if self._falls:
            self.fall_size[key] = behind_bytes

    def looked_at(self, topic: str, group: str, queue_id: int, behind_bytes: int) -> None:
        """Record a pull whose filter matched no message: how far the last one it looked at is behind the log's end."""
        if self._falls:
            self.fall_size[f"{queue_id}@{topic}@{group}"] = behind_bytes

    def sent_back(self, topic: str, group: str) -> None:
        """Count one message that a group sent back."""
        item = self.sets["SNDBCK_PUT_NUMS"].item(f"{topic}@{group}")
        item.value += 1
        item.times += 1

    def scheduled(self, queue_id: int, size: int) -> None:
        """Count a message that was stored in a queue of the delay topic, besides `put`."""
        self._queued(QUEUE_PUTS, f"{SCHEDULE_TOPIC}@{queue_id}", size)

    def delivered(self, topic: str, queue_id: int, size: int) -> None:
        """Count a delayed message that was taken from a queue of the delay topic and stored in its own topic."""
        if not self._delays:
            self.put_messages += 1
            self.put_bytes += size
            self._unlisted += 1
            return
        self.put(topic, 1, size)
        self.fetched(SCHEDULE_TOPIC, SCHEDULE_GROUP, 1, size)
        # `fetched` has counted it as delivered to a client.
        self.get_messages -= 1  # no client got it
        self._queued(QUEUE_GETS, f"{SCHEDULE_TOPIC}@{queue_id}@{SCHEDULE_GROUP}", size)

    def _queued(self, names: tuple[str, str], key: str, size: int) -> None:
        if not self._detail:
            return
        for name, value in zip(names, (1, size), strict=True):
            item = self.sets[name].item(key)
            item.value += value
            item.times += 1

    def find(self, name: str, key: str) -> StatsItem | None:
        """An item of the sets with its present total, or None if nothing was added to it yet."""
        self._note_broker_totals()
        return self.sets.find(name, key)

    # ---- forgetting

    def deleted(self, *, topic: str = "", group: str = "") -> None:
        """Remove the items of a deleted topic or group, if so configured (autoDeleteUnusedStats)."""
        if not self._delete_unused:
            return

        for name, stats_set in self.sets:
            if topic and name in _OF_TOPIC:
                stats_set.remove(lambda key: key.partition("@")[0] == topic)
            elif name == "GROUP_GET_LATENCY" and topic:
                stats_set.remove(lambda key: key.split("@")[-2] == topic)
            elif not topic and name in _OF_GROUP:
                stats_set.remove(lambda key: key.rpartition("@")[2] == group)
        for values in (self.fall_size, self.fall_ms):
            for key in list(values):
                if key.split("@")[1] == topic if topic else key.rpartition("@")[2] == group:
                    del values[key]
        self._drop_cached()

    def forget_falls(self, group: str) -> None:
        """Remove the distances of a group's pulls from the log's end."""
        for key in [key for key in self.fall_size if key.rpartition("@")[2] == group]:
            del self.fall_size[key]

    def _drop_cached(self) -> None:
        self._put_items.clear()
        self._get_items.clear()
        self._latencies.clear()

    def sample(self, now_seconds: float, now_ms: int) -> Iterator[Generator[None, None, None]]:
        """Record a sample of the totals, each second; yields longer work that is due, to be done in slices.

        now_seconds: event-loop time. now_ms: Unix ms.
        """
        self._samples.append((now_seconds, self.put_messages, self.get_found, self.get_miss, self.get_messages))
        self.note_time(now_ms)
        self._ticks += 1
        # Once a minute: the tick is a second.
        if self._ticks % 60 == 0:
            self._log_store(now_seconds)
        if self._ticks % SETS_SECONDS == 1:
            yield self.sample_sets()

    def sample_sets(self) -> Generator[None, None, None]:
        """Sample the statistics sets; to be run each ten seconds. Keys are cached between two samples only."""
        self._note_broker_totals()
        for values in (self.fall_size, self.fall_ms):
            # Bounded, oldest first: clients choose the names in the keys.
            while len(values) > ITEMS_MAX:
                del values[next(iter(values))]
        self._drop_cached()
        yield from self.sets.sampling()

    def _note_broker_totals(self) -> None:
        """Copy the broker's totals to its items, whose number of changes Apache RocketMQ does not count."""
        for name, total in (
            ("BROKER_PUT_NUMS", self.put_messages - self._unlisted),
            ("BROKER_GET_NUMS", self.get_messages),
        ):
            if total:
                self.sets[name].item(self._cluster).value = total

    def _log_store(self, now_seconds: float) -> None:
        """Log the rates of the last minute and begin a new minute of put times (each 60 s)."""
        totals = (
            (_PUTS, self.put_messages),
            (_FOUND_GETS, self.get_found),
            (_MISSED_GETS, self.get_miss),
            (_READ_MESSAGES, self.get_messages),
        )
        store_log.info(
            "[STORETPS] put_tps %s get_found_tps %s get_miss_tps %s get_transfered_tps %s",
            *(self._rate(column, total, now_seconds, 60) for column, total in totals),
        )
        self.put_times.rotate()
        store_log.info(
            "[PAGECACHERT] TotalPut %s, PutMessageDistributeTime %s",
            self.put_times.last_minute,
            self.put_times.distribution(),
        )

    def note_time(self, now_ms: int) -> None:
        """Begin a new day of the daily counters at local midnight (MON-14)."""
        if now_ms < self._next_midnight_ms:
            return
        self._next_midnight_ms = _midnight_after(now_ms)
        # Yesterday's become those of the day before.
        self._morning = (*self._morning[2:], self.put_messages, self.get_messages)
        before_puts, before_gets, put_count, get_count = self._morning
        log.info("yesterday put message total: %s", put_count - before_puts)
        log.info("yesterday get message total: %s", get_count - before_gets)

    def _rates(self, column: int, total: int, now_seconds: float) -> str:
        return " ".join(str(self._rate(column, total, now_seconds, window)) for window in _RATES)

    def _rate(self, column: int, total: int, now_seconds: float, window: int) -> float:
        """Changes per second in the last `window` seconds, or since the first sample if that was later."""
        # The oldest sample within the window, or the first one after the start.
        first = next((s for s in self._samples if s[0] >= now_seconds - window), None)
        elapsed = now_seconds - first[0] if first else 0.0
        return (total - int(first[column])) / elapsed if first and elapsed > 0 else 0.0

    def table(self, now_seconds: float) -> dict[str, str]:
        """Rows of the runtime information, with names and formats of Apache RocketMQ."""
        get_count = self.get_found + self.get_miss
        average = self.put_bytes / self.put_messages if self.put_messages else 0.0
        found_tps = self._rates(_FOUND_GETS, self.get_found, now_seconds)
        missed_tps = self._rates(_MISSED_GETS, self.get_miss, now_seconds)
        total_tps = " ".join(
            str(float(a) + float(b)) for a, b in zip(found_tps.split(), missed_tps.split(), strict=True)
        )
        return {
            "bootTimestamp": str(self.started_ms),
            "putMessageTimesTotal": str(max(self.put_messages, 1)),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(average),
            "putMessageDistributeTime": self.put_times.distribution(),
            "putMessageEntireTimeMax": str(self.put_times.max_ms),
            "getMessageEntireTimeMax": str(self.get_max_ms),
            "putLatency99": f"{self.put_times.percentile(0.99):.2f}",
            "putLatency999": f"{self.put_times.percentile(0.999):.2f}",
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgGetTotalTodayNow": str(self.get_messages),
            "msgPutTotalTodayMorning": str(self._morning[2]),
            "msgGetTotalTodayMorning": str(self._morning[3]),
            "msgPutTotalYesterdayMorning": str(self._morning[0]),
            "msgGetTotalYesterdayMorning": str(self._morning[1]),
            "putTps": self._rates(_PUTS, self.put_messages, now_seconds),
            "getFoundTps": found_tps,
            "getMissTps": missed_tps,
            "getTotalTps": total_tps,
            "getTransferedTps": self._rates(_READ_MESSAGES, self.get_messages, now_seconds),
            "getTimesTotal": str(get_count),
        }


def _midnight_after(now_ms: int) -> int:
    """The next local midnight, Unix ms."""
    now = time.localtime(now_ms / 1000)
    # Through the calendar: days with a change to summer time are not 24 hours long.
    return int(time.mktime((now.tm_year, now.tm_mon, now.tm_mday + 1, 0, 0, 0, 0, 0, -1))) * 1000


def _add(pair: tuple[StatsItem, StatsItem], count: int, size: int, changes: int = 1) -> None:
    """Count messages and their bytes as so many changes of each item."""
    messages, sizes = pair
    messages.value += count
    messages.times += changes
    sizes.value += size
    sizes.times += changes
