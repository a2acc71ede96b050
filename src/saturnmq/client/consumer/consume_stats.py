"""Consumption rates of one consumer by topic over the last minute, and failures over the last hour.

Requirements: RT-09, RT-10.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.bodies import ConsumeStatus

BUCKET_S: Final = 10
MINUTE_BUCKETS: Final = 6
HOUR_BUCKETS: Final = 360


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """What a consumer holds now, and its rates over the last minute.

    queues: assigned ones, without those of the retry topic. waiting: pulled messages that no reader has taken. handed_out: messages
    that readers hold unsettled. unsettled_bytes: body bytes of both. pull_ms: mean time of a pull that found messages. settle_ms:
    mean time from the delivery of a message until it is settled. received_per_s, acknowledged_per_s, failed_per_s: messages.
    failed_last_hour: messages that were retried, rejected or not settled in time.

    Example:
        stats = consumer.stats
        print(stats.waiting, stats.handed_out, stats.failed_last_hour)
    """

    queues: int
    waiting: int
    handed_out: int
    unsettled_bytes: int
    pull_ms: float
    settle_ms: float
    received_per_s: float
    acknowledged_per_s: float
    failed_per_s: float
    failed_last_hour: int


class _Bucket:
    __slots__ = ("consume_s", "failed", "fetched", "ok", "pull_s", "pulls")

    def __init__(self) -> None:
        self.pulls = self.fetched = self.ok = self.failed = 0
        self.pull_s = self.consume_s = 0.0


class ConsumeCounters:
    """Counters in ten-second buckets; per topic at most one hour of them. Buckets without activity do not exist."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._topics: dict[str, dict[int, _Bucket]] = {}

    def _bucket(self, topic: str) -> _Bucket:
        number = int(self._clock()) // BUCKET_S
        buckets = self._topics.setdefault(topic, {})
        bucket = buckets.get(number)
        if bucket is None:
            bucket = buckets[number] = _Bucket()
            # Only when a bucket is made: once in ten seconds per topic.
            for old in [bucket_number for bucket_number in buckets if bucket_number <= number - HOUR_BUCKETS]:
                del buckets[old]
        return bucket

    def pulled(self, topic: str, took_s: float) -> None:
        """Count a pull that returned messages; `took_s`: its duration in seconds."""
        bucket = self._bucket(topic)
        bucket.pulls += 1
        bucket.pull_s += took_s

    def fetched(self, topic: str, count: int) -> None:
        """Count pulled messages."""
        self._bucket(topic).fetched += count

    def consumed(self, topic: str, took_s: float, *, failed: bool) -> None:
        """Count a settled message; `took_s`: seconds from hand-out to settlement."""
        buckets = self._topics.get(topic)
        # The common case, as this is called for every message.
        bucket = buckets.get(int(self._clock()) // BUCKET_S) if buckets is not None else None
        if bucket is None:
            bucket = self._bucket(topic)
        bucket.consume_s += took_s
        if failed:
            bucket.failed += 1
        else:
            bucket.ok += 1

    def status(self, topic: str | None = None) -> ConsumeStatus:
        """Rates of a topic, or of all, as mqadmin shows them: ms per pull and per message, messages per second."""
        number = int(self._clock()) // BUCKET_S
        topics = self._topics.values() if topic is None else [self._topics.get(topic, {})]
        buckets = [item for buckets in topics for item in buckets.items()]
        hour = [bucket for bucket_number, bucket in buckets if bucket_number > number - HOUR_BUCKETS]
        last = [bucket for bucket_number, bucket in buckets if bucket_number > number - MINUTE_BUCKETS]
        window_s = BUCKET_S * MINUTE_BUCKETS
        return ConsumeStatus(
            pull_rt=_mean_ms(lambda b: (b.pull_s, b.pulls), last),
            pull_tps=sum(bucket.fetched for bucket in last) / window_s,
            # Without a message in the last minute the mean of the hour, as in Apache's client.
            consume_rt=_mean_ms(lambda b: (b.consume_s, b.ok + b.failed), last, hour),
            consume_ok_tps=sum(bucket.ok for bucket in last) / window_s,
            consume_failed_tps=sum(bucket.failed for bucket in last) / window_s,
            consume_failed_msgs=sum(bucket.failed for bucket in hour),
        )


def _mean_ms(of: Callable[[_Bucket], tuple[float, int]], *windows: list[_Bucket]) -> float:
    """Mean in ms over the first of the windows that has anything, else 0."""
    for buckets in windows:
        pairs = [of(bucket) for bucket in buckets]
        count = sum(n for _, n in pairs)
        if count:
            return sum(seconds for seconds, _ in pairs) * 1000 / count
    return 0.0
