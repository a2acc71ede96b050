"""The stream source: offsets, limits and partitions of micro-batches.

It lives in the planner process of a query; `read` runs on pickled copies in workers. Spark's checkpoint decides where a query
resumes; `track` commits consumer-group offsets in the driver.

Requirements: STR-01..STR-10, STR-15..STR-17.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from saturnmq.client.filters import ALL
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark import planning, ranges
from saturnmq.spark.connect import Link, linked
from saturnmq.spark.fetch import BACKOFF_S, Loss, met_loss
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.partition import RangePartition, read_partition
from saturnmq.spark.planner_errors import brief
from saturnmq.spark.ranges import Bounds, Key

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in the planner process."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._cached: tuple[float, dict[Key, Bounds], dict[Key, float]] | None = None
        self._target: dict[Key, int] | None = None
        self._missing: frozenset[Key] = frozenset()
        self._changed = False
        self._admission = ranges.Admission(
            options.offsets_per_trigger,
            options.bytes_per_trigger,
            options.min_offsets_per_trigger,
            options.trigger_delay_ms,
        )

    def _ask(self) -> tuple[dict[Key, Bounds], dict[Key, float]]:
        async def ask(link: Link) -> tuple[dict[Key, Bounds], dict[Key, float]]:
            known = await planning.bounds(link, self._options)
            sizes = await planning.record_bytes(link, known) if self._needs_sizes else {}
            return {ranges.key_of(queue): limits for queue, limits in known.items()}, sizes

        with linked(self._options) as link:
            return link.run(ask(link))

    @property
    def _needs_sizes(self) -> bool:
        return self._admission.needs_sizes or bool(self._options.bytes_per_partition)

    def _state(self) -> tuple[dict[Key, Bounds], dict[Key, float]]:
        """Return bounds and sizes of every queue, queried at most once per metadataRefreshMs.

        An idle Spark polls every 10 ms (STR-09). While a broker does not answer, the cached state is kept, so that the query
        waits for it.
        """
        now = time.monotonic()
        if self._cached is None or (now - self._cached[0]) * 1000 >= self._options.refresh_ms:
            try:
                self._cached = (now, *self._ask())
            except SaturnError as error:
                if self._cached is None or not _may_pass(error):
                    raise
                logger.warning("offsets not refreshed error=%s", error)
                self._cached = (now, *self._cached[1:])
        return self._cached[1], self._cached[2]

    def _reached(self, needed: frozenset[Key]) -> tuple[dict[Key, Bounds], dict[Key, float]]:
        """Return current bounds and sizes; wait up to readTimeoutMs for brokers that are away.

        A broker that is only down is no data loss: a query that runs a batch again must not take its queues for deleted
        (SRC-13, SRC-15). Raises the last error.
        """
        until, pause = time.monotonic() + self._options.read_timeout_ms / 1000, BACKOFF_S[0]
        while True:
            failed: SaturnError | None = None
            try:
                known, sizes = self._ask()
                brokers = {(topic, broker) for topic, broker, _ in known}
                away = sorted({(topic, broker) for topic, broker, _ in needed} - brokers)
                if not away or time.monotonic() > until:
                    self._cached = (time.monotonic(), known, sizes)
                    return known, sizes
                logger.warning("waiting for brokers without route brokers=%s", away)
            except SaturnError as error:
                failed = error
            if failed is not None:
                if not _may_pass(failed) or time.monotonic() > until:
                    raise failed
                logger.warning("waiting for brokers error=%s", failed)
            time.sleep(pause)
            pause = min(pause * 2, BACKOFF_S[1])

    @brief
    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without checkpoint starts."""
        options = self._options

        async def ask(link: Link) -> dict[Key, int]:
            known = await planning.bounds(link, options)
            placed, _times = await planning.starts(link, known, options, compared=False)
            return {ranges.key_of(queue): offset for queue, offset in placed.items()}

        with linked(options) as link:
            return ranges.to_offset(link.run(ask(link)), options.group, expression=options.filter_text)

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit for Spark: the options' limits are applied in latestOffset, because Spark cannot combine several."""
        return ReadAllAvailable()

    @brief
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end offsets of this run (STR-07)."""
        self._cached = None
        self._target = {key: limits.high for key, limits in self._state()[0].items()}

    @brief
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes; `start` itself when there is nothing new."""
        begin = ranges.from_offset(start)
        self._warn_changed_filter(start)
        known, sizes = self._state()
        self._warn_missing(begin, known)
        latest = dict(begin)  # a queue missing from the route keeps its offset
        later = {}
        for key, limits in known.items():
            if self._target is not None and key not in self._target:
                continue  # created after the run began: left to the next run
            if key not in begin:  # a queue that appeared later starts at its min offset (STR-03)
                begin[key] = later[key] = limits.low
            high = limits.high if self._target is None else min(self._target[key], limits.high)
            latest[key] = max(high, begin[key])
        reached = self._admission.reach(
            begin, latest, time.monotonic() * 1000, sizes, no_minimum=self._target is not None
        )
        made = ranges.to_offset(reached, self._options.group, later, self._options.filter_text)
        return start if ranges.at_one_place(start, made) else made

    def _warn_changed_filter(self, start: dict[str, Any]) -> None:
        """Warn once when the checkpoint was written with another filter (STR-15)."""
        before, now = str(start.get("s", "")), self._options.filter_text
        if before != now and not self._changed:
            self._changed = True
            logger.warning(
                "filter changed expression=%r checkpoint=%r; messages that the earlier filter left out are not read",
                now or ALL, before or ALL,
            )  # fmt: skip

    def _warn_missing(self, begin: dict[Key, int], known: dict[Key, Bounds]) -> None:
        missing = frozenset(begin) - frozenset(known)
        if missing - self._missing:
            logger.warning("queues of the checkpoint without route queues=%s", sorted(missing - self._missing))
        self._missing = missing

    @brief
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end offsets of the queues, for the query's progress."""
        return ranges.to_offset({key: limits.high for key, limits in self._state()[0].items()}, self._options.group)

    @brief
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one task per range between two offsets. Raises DataLossError for positions that brokers no longer have."""
        begin, reached, begins = ranges.from_offset(start), ranges.from_offset(end), ranges.begins_of(end)
        options = self._options
        if begin == reached:
            return []
        known, sizes = self._reached(frozenset(key for key in reached if reached[key] != begin.get(key)))
        whole = []
        for key in sorted(reached):
            limits = known.get(key)
            first = begin.get(key, begins.get(key, 0))  # a replayed batch has the rows it was planned with (STR-16)
            last = reached[key]
            if last < first:
                met_loss(options, Loss(*key, last, first, f"the next offset went back from {first} to {last}"))
                continue
            if first == last:
                continue
            if limits is None:
                met_loss(options, Loss(*key, first, last, "the queue was deleted"))
                continue
            whole.append(ranges.QueueRange(*key, *self._inside(key, first, last, limits)))
        pieces = ranges.split(
            whole, options.min_partitions, options.records_per_partition, options.bytes_per_partition, sizes
        )
        return [RangePartition(piece) for piece in pieces]

    def _inside(self, key: Key, first: int, last: int, limits: Bounds) -> tuple[int, int]:
        if first < limits.low:
            lost_end = min(last, limits.low)
            met_loss(self._options, Loss(*key, first, lost_end, f"the queue begins at {limits.low}"))
            first = lost_end
        if last > limits.high:
            met_loss(self._options, Loss(*key, max(first, limits.high), last, f"the queue ends at {limits.high}"))
            last = max(limits.high, first)
        return min(first, last), last

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one range."""
        return read_partition(self._options, self._columns, None, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint decides where the query resumes."""


def _may_pass(error: SaturnError) -> bool:
    """Whether a broker or name server is away or has just come back, when a topic briefly has no route."""
    return error.retryable or (isinstance(error, ConfigError) and isinstance(error.__cause__, SaturnError))
