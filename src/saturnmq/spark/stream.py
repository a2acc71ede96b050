"""The stream source: offsets, limits and partitions of micro-batches.

It lives in the planner process of a query; `read` runs on pickled copies in workers. Spark's checkpoint decides where a query
resumes; `track` commits consumer-group offsets in the driver.

Spark keeps no initial offset: it calls `initialOffset` for every trigger before the first batch, again when it runs that batch, and
again in the next process when that batch failed. So this reader answers the same each time, and the end of the first batch records
where the batch begins. An offset also records the record before each position: a queue that has another record there belongs to a
topic that was created again (docs/decisions/0026-stream-offsets.md).

Requirements: STR-01..STR-10, STR-15..STR-17.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from saturnmq.client.filters import ALL
from saturnmq.errors import BrokerNotExist, RouteNotFound
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark import ranges
from saturnmq.spark.fetch import BACKOFF_S, DataLoss, DataLossError, met_loss
from saturnmq.spark.options import LATEST, SourceOptions
from saturnmq.spark.partition import RangePartition, read_partition
from saturnmq.spark.planner_errors import brief
from saturnmq.spark.planning import selects
from saturnmq.spark.queue_state import QueueState
from saturnmq.spark.ranges import Bounds, Key, Preceding
from saturnmq.spark.stream_queries import Snapshot, StreamQueries

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

NO_ROUTE: Final = "its topic has no readable route"
R = TypeVar("R")


@dataclass
class Draft:
    """The next offset in the making.

    begin: where its batch begins. preceding: the records before these positions. begins: those that the previous offset does not
    have. lossy: a loss was recorded, which the offset must carry even without a new message.
    """

    begin: dict[Key, int]
    preceding: dict[Key, Preceding]
    bounds: dict[Key, Bounds]
    begins: dict[Key, int] = field(default_factory=dict)
    lossy: bool = False


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in the planner process."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._admission = ranges.BatchAdmission(
            options.offsets_per_trigger,
            options.bytes_per_trigger,
            options.min_offsets_per_trigger,
            options.trigger_delay_ms,
        )
        self._queries = StreamQueries(options, sized=self._admission.needs_sizes or bool(options.bytes_per_partition))
        self._initial: dict[str, Any] | None = None
        self._initial_error: SaturnError | None = None
        self._cached: tuple[float, Snapshot] | None = None
        self._failed_polls = 0  # since the last snapshot that was answered
        self._states: tuple[Snapshot, dict[Key, QueueState]] | None = None  # of the suspect queues of a snapshot
        self._highs: dict[Key, int] = {}  # ends of queues when they were last in order
        self._idle: tuple[Snapshot, dict[str, Any]] | None = None  # the last poll that found nothing
        self._verified = False  # whether the records before all positions of the checkpoint were compared
        self._planned: dict[str, Any] | None = None  # the newest offset of this reader
        self._recorded: dict[str, tuple[dict[str, Any], set[tuple[Key, int]]]] = {}
        self._target: dict[Key, int] | None = None
        self._dropped: set[Key] = set()  # deleted queues that a cached route may still name, without messages
        self._missing: frozenset[Key] = frozenset()
        self._changed = False

    # ---- Spark's interface

    @brief
    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without checkpoint starts, the same at every call.

        An error of the options or of a missing topic is raised where the offset is needed: not when Spark only asks because it runs
        a failed first batch again, whose end records where it begins.
        """
        if self._initial is None:
            positions: dict[Key, int] = {}
            try:
                positions = self._queries.initial()
            except (ConfigError, DataLossError) as error:
                if not isinstance(error.__cause__, RouteNotFound | None):
                    raise
                self._initial_error = error
            self._initial = ranges.to_offset(positions, self._options.group, expression=self._options.filter_text)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit for Spark: the options' limits are applied in latestOffset, because Spark cannot combine several."""
        return ReadAllAvailable()

    @brief
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end offsets of this run (STR-07)."""
        self._cached = None
        self._target = {key: limits.high for key, limits in self._snapshot().bounds.items()}

    @brief
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes; `start` itself when there is nothing new.

        Raises DataLossError for queues that were deleted or created again since `start` was reached.
        """
        if self._idle is not None and self._idle[0] is self._snapshot() and self._idle[1] == start:
            return start  # Spark polls an idle query every 10 ms
        ranges.from_offset(start)
        self._warn_changed_filter(start)
        if self._initial_error is not None and start == self._initial:
            raise self._initial_error
        first = [self._snapshot()]  # a starting query without any answer fails at once
        return self._patiently(lambda: self._next(start, first.pop() if first else self._snapshot()))

    @brief
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end offsets of the queues, for the query's progress."""
        ends = {key: limits.high for key, limits in self._snapshot().bounds.items()}
        return ranges.to_offset(ends, self._options.group)

    @brief
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one task per range between two offsets. Raises DataLossError for positions that brokers no longer have."""
        begin, reached, begins = ranges.from_offset(start), ranges.from_offset(end), ranges.begins_of(end)
        if start == end:
            return []
        # a batch that is run again has the rows it was planned with, wherever Spark lets it start (STR-16)
        firsts = {key: begins.get(key, begin.get(key, 0)) for key in reached}
        if self._initial_error is not None and start == self._initial and firsts.keys() - begins.keys():
            raise self._initial_error
        lasts = {key: last for key, last in reached.items() if last != firsts[key]}
        if not lasts:
            return []
        whole, losses, sizes = self._patiently(lambda: self._whole(firsts, lasts, end))
        self._lose("partitions", end, losses)
        options = self._options
        pieces = ranges.split(
            whole, options.min_partitions, options.records_per_partition, options.bytes_per_partition, sizes
        )
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one range."""
        return read_partition(self._options, self._columns, None, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint decides where the query resumes."""

    # ---- waiting for brokers

    def _snapshot(self) -> Snapshot:
        """Return bounds and sizes of every queue, queried at most once per metadataRefreshMs.

        An idle Spark polls every 10 ms (STR-09). While a broker does not answer, the cached state is kept, so that the query
        waits for it, and the time to the next poll doubles up to BACKOFF_S.
        """
        now, pause = time.monotonic(), self._options.refresh_ms / 1000
        if self._failed_polls:
            pause = max(pause, min(max(pause, BACKOFF_S[0]) * 2 ** min(self._failed_polls, 10), BACKOFF_S[1]))
        if self._cached is None or now - self._cached[0] >= pause:
            try:
                self._cached = (now, self._queries.snapshot())
                self._failed_polls = 0
            except SaturnError as error:
                if self._cached is None or not _may_pass(error):
                    raise
                self._failed_polls += 1
                logger.warning("offsets not refreshed error=%s", error)
                self._cached = (time.monotonic(), self._cached[1])  # a poll that timed out took its time
        return self._cached[1]

    def _patiently(self, work: Callable[[], R]) -> R:
        """Return the result of work; repeat it up to readTimeoutMs while brokers are away.

        A broker that is only down is no data loss: a query that runs a batch again must not take its queues for deleted
        (SRC-13, SRC-15). Raises the last error.
        """
        until, pause = time.monotonic() + self._options.read_timeout_ms / 1000, BACKOFF_S[0]
        while True:
            try:
                return work()
            except SaturnError as error:
                if not _may_pass(error) or time.monotonic() > until:
                    raise
                logger.warning("waiting for brokers error=%s", error)
            time.sleep(pause)
            pause = min(pause * 2, BACKOFF_S[1])

    def _away(self, reasons: Mapping[Key, str]) -> BrokerNotExist:
        """Return the error about queues whose brokers do not answer."""
        reason = next(iter(reasons.values()))
        return BrokerNotExist(
            f"{ranges.listed(reasons)} cannot be read: {reason}; waited up to {self._options.read_timeout_ms} ms (option "
            "readTimeoutMs); "
            "if a broker was removed for good, option assign or queues without its queues lets the query go on"
        )

    # ---- the next offset

    def _next(self, start: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
        options = self._options
        draft = Draft(ranges.from_offset(start), ranges.preceding_of(start), dict(snapshot.bounds))
        checkpointed = frozenset(draft.begin)
        self._dropped = {key for key in self._dropped if not draft.bounds.get(key, Bounds(0, 0)).high}
        for key in self._dropped - checkpointed:
            draft.bounds.pop(key, None)
        self._settle(draft, snapshot, start)
        verify_all = not self._verified
        if verify_all:
            self._verify(draft, draft.preceding, start)
        reached = self._limited(draft, checkpointed, snapshot)
        if not verify_all and self._verify(draft, [k for k in reached if reached[k] != draft.begin[k]], start):
            reached = self._limited(draft, checkpointed, snapshot)
        is_idle = reached == draft.begin and all(reached.get(k, 0) >= b.high for k, b in draft.bounds.items())
        is_first = start == self._initial
        is_same = ranges.is_same_position(start, ranges.to_offset(reached, options.group)) and not draft.lossy
        if not is_same or (is_first and self._moves_when_asked_again):
            begins = draft.begin if is_first else draft.begins
            preceding = self._preceding(draft, reached)
            self._planned = ranges.to_offset(reached, options.group, begins, options.filter_text, preceding)
            start = self._planned
            is_idle = False
        self._idle = (snapshot, start) if is_idle and self._target is None else None
        self._verified = True  # not earlier: an error above would forget what was compared
        self._highs = {key: limits.high for key, limits in draft.bounds.items()}
        return start

    @property
    def _moves_when_asked_again(self) -> bool:
        """Whether the next process would compute a later initial offset, so that an empty first batch must record this one."""
        options = self._options
        if options.starting_ms is not None or options.starting_times is not None:
            return False
        if options.starting == "group":
            return options.group_fallback == "latest"
        if isinstance(options.starting, str):
            return options.starting == "latest"
        queues = (queue for brokers in options.starting.values() for queue in brokers.values())
        return any(LATEST in offsets.values() for offsets in queues)

    def _settle(self, draft: Draft, snapshot: Snapshot, start: dict[str, Any]) -> None:
        """Find queues of the checkpoint that are not selected or end before their position, and ask their masters why.

        Deleted queues are removed from the draft, so that the loss is recorded once and a new topic of that name is read whole.
        """
        begin, bounds = draft.begin, draft.bounds
        absent = [key for key in begin if key not in bounds and selects(self._options, key)]
        behind = {key: bounds[key].low for key in begin if key in bounds and bounds[key].high < begin[key]}
        states = self._suspects(snapshot, dict.fromkeys(absent, 0) | behind)
        deleted = {key: state for key, state in states.items() if state.deleted}
        self._lose(
            "offsets",
            start,
            [
                DataLoss(
                    *key, begin[key], max(begin[key], self._highs.get(key, 0)), f"the queue was deleted: {state.reason}"
                )
                for key, state in deleted.items()
            ],
        )
        for key in deleted:
            draft.lossy = True
            del begin[key]
            draft.preceding.pop(key, None)
            bounds.pop(key, None)
        self._dropped |= deleted.keys()
        short = {}
        for key in behind.keys() - deleted.keys():
            limits = states[key].bounds
            if limits is None:
                del bounds[key]
            elif limits.high < begin[key]:
                bounds[key] = limits
                short[key] = "the topic was created again, or the newest messages of the queue are missing"
            else:
                bounds[key] = limits  # a slave had answered that is behind
        self._restart(draft, short, start)
        away = {key: states[key].reason or NO_ROUTE for key in begin if key not in bounds and key in states}
        self._warn_missing(frozenset(key for key in begin if key not in bounds))
        if away and (self._target is not None or not (bounds or self._highs)):
            raise self._away(away)
        topics = {topic for topic, _, _ in begin}
        for name, error in snapshot.missing.items():
            if self._options.fail_on_data_loss and name not in topics and not (topics and self._options.pattern):
                raise error

    def _suspects(self, snapshot: Snapshot, offsets: dict[Key, int]) -> dict[Key, QueueState]:
        if not offsets:
            return {}
        if self._states is None or self._states[0] is not snapshot or self._states[1].keys() != offsets.keys():
            self._states = (snapshot, self._queries.states(offsets))
        return self._states[1]

    def _verify(self, draft: Draft, keys: Iterable[Key], start: dict[str, Any]) -> bool:
        """Compare the records before positions with those of the checkpoint; return whether a queue has another one.

        A record that retention has deleted proves nothing, and is no loss.
        """
        offsets = {}
        for key in keys:
            limits = draft.bounds.get(key) if key in draft.preceding else None
            if limits is not None and limits.low < draft.begin[key] <= limits.high:
                offsets[key] = draft.begin[key] - 1
        reasons = {}
        for key, record in self._different(
            offsets, draft.bounds, lambda key, record: record != draft.preceding[key]
        ).items():
            before = draft.preceding[key]
            reasons[key] = (
                f"the record before it was stored at {before.stored_ms} ms at position {before.physical}, now there is one "
                f"of {record.stored_ms} ms at position {record.physical}: the topic was created again"
            )
        self._restart(draft, reasons, start)
        return bool(reasons)

    def _different(
        self, offsets: Mapping[Key, int], bounds: dict[Key, Bounds], differs: Callable[[Key, Preceding], bool]
    ) -> dict[Key, Preceding]:
        """Return the records that differ, if they do at their masters: a slave may still have those of a deleted topic.

        The bounds of these queues become those of the masters. Raises BrokerNotExist while a master does not answer.
        """
        records = self._queries.records(offsets) if offsets else {}
        suspects = {key: offsets[key] for key, record in records.items() if differs(key, record)}
        states = self._queries.states(suspects) if suspects else {}
        away = {}
        for key, state in states.items():
            if state.bounds is None:
                away[key] = state.reason
            else:
                bounds[key] = state.bounds
        if away:
            raise self._away(away)
        return {key: s.record for key, s in states.items() if s.record is not None and differs(key, s.record)}

    def _restart(self, draft: Draft, reasons: Mapping[Key, str], start: dict[str, Any]) -> None:
        """Let queues go on at the first message stored after the checkpoint's, or at their first one if that is not known."""
        if not reasons:
            return
        stored_times = {key: draft.preceding[key].stored_ms for key in reasons if key in draft.preceding}
        resumed = {key: draft.bounds[key].low for key in reasons} | self._queries.stored_after(
            stored_times, draft.bounds
        )
        oldest = {key: draft.bounds[key].low for key in stored_times if draft.bounds[key].low < resumed[key]}
        for key, record in self._queries.records(oldest).items() if oldest else ():
            if record.physical > draft.preceding[key].physical:  # appended later, whatever the broker's clock said
                resumed[key] = oldest[key]
        losses = []
        for key, reason in sorted(reasons.items()):
            at, limits = draft.begin[key], draft.bounds[key]
            text = (
                f"the checkpoint goes on at offset {at}, the queue has {limits.low}..{limits.high}; {reason}; "
                f"skipping the loss reads from offset {resumed[key]}"
            )
            losses.append(DataLoss(*key, at, max(at, self._highs.get(key, 0)), text))
        self._lose("offsets", start, losses)
        for key, offset in resumed.items():
            draft.begin[key] = draft.begins[key] = offset
            draft.preceding.pop(key, None)
            draft.lossy = True

    def _limited(self, draft: Draft, checkpointed: frozenset[Key], snapshot: Snapshot) -> dict[Key, int]:
        """Return the end of the next batch, after adding queues that the checkpoint does not have."""
        begin = draft.begin
        latest = dict(begin)  # a queue missing from the route keeps its offset
        for key, limits in draft.bounds.items():
            if self._target is not None and key not in self._target:
                if key not in checkpointed:
                    continue  # created after the run began: left to the next run
                self._target[key] = limits.high  # its broker was away when the run began
            if key not in begin:  # a queue that appeared later starts at its min offset (STR-03)
                begin[key] = limits.low
                if limits.low:  # 0 is the default, so that hardly any offset has the field
                    draft.begins[key] = limits.low
            high = limits.high if self._target is None else min(self._target[key], limits.high)
            latest[key] = max(high, begin[key])
        return self._admission.reach(
            begin, latest, time.monotonic() * 1000, snapshot.sizes, no_minimum=self._target is not None
        )

    def _preceding(self, draft: Draft, reached: Mapping[Key, int]) -> dict[Key, Preceding]:
        """Return the records before the positions; they are read only for queues that moved or have none yet."""
        stayed = {key: record for key, record in draft.preceding.items() if reached.get(key) == draft.begin[key]}
        offsets = {}
        for key, end in reached.items():
            limits = draft.bounds.get(key)
            if key not in stayed and limits is not None and limits.low < end <= limits.high:
                offsets[key] = end - 1
        return stayed | (self._queries.records(offsets) if offsets else {})

    # ---- the ranges of a batch

    def _whole(
        self, firsts: Mapping[Key, int], lasts: Mapping[Key, int], end: dict[str, Any]
    ) -> tuple[list[ranges.QueueRange], list[DataLoss], dict[Key, float]]:
        """Return the ranges that the brokers have of a batch, what is lost of it, and record sizes."""
        bounds, deleted, sizes = self._current(firsts, lasts)
        again = self._created_again(firsts, lasts, end, bounds) if end != self._planned else set()
        whole, losses = [], []
        for key, last in sorted(lasts.items()):
            first = firsts[key]
            if last < first:
                losses.append(DataLoss(*key, last, first, f"the next offset went back from {first} to {last}"))
            elif key in deleted:
                losses.append(DataLoss(*key, first, last, f"the queue was deleted: {deleted[key]}"))
            elif key in again:
                losses.append(DataLoss(*key, first, last, f"the topic was created again, the queue has {bounds[key]}"))
            else:
                inside = min(max(first, bounds[key].low), last), max(min(last, bounds[key].high), first)
                if first < inside[0]:
                    losses.append(DataLoss(*key, first, inside[0], f"the queue begins at {bounds[key].low}"))
                if inside[1] < last:
                    losses.append(DataLoss(*key, max(inside), last, f"the queue ends at {bounds[key].high}"))
                whole.append(ranges.QueueRange(*key, min(inside), inside[1]))
        return whole, losses, sizes

    def _current(
        self, firsts: Mapping[Key, int], lasts: Mapping[Key, int]
    ) -> tuple[dict[Key, Bounds], dict[Key, str], dict[Key, float]]:
        """Return current bounds, why queues are deleted, and sizes; the masters' bounds where others are narrower than a batch.

        Raises BrokerNotExist while a broker or a master that is needed is away.
        """
        snapshot = self._queries.snapshot()
        self._cached = (time.monotonic(), snapshot)
        bounds = dict(snapshot.bounds)
        suspects = {key: bounds[key].low if key in bounds else 0 for key, last in lasts.items()
                    if key not in bounds or bounds[key].low > firsts[key] or bounds[key].high < last}  # fmt: skip
        states = self._queries.states(suspects) if suspects else {}
        away = {}
        for key, state in states.items():
            if state.bounds is not None and (key in bounds or not selects(self._options, key)):
                bounds[key] = state.bounds
            elif not state.deleted:
                away[key] = state.reason or NO_ROUTE
        if away:
            raise self._away(away)
        return bounds, {key: state.reason for key, state in states.items() if state.deleted}, snapshot.sizes

    def _created_again(
        self, firsts: Mapping[Key, int], lasts: Mapping[Key, int], end: dict[str, Any], bounds: dict[Key, Bounds]
    ) -> set[Key]:
        """Return the queues of a batch planned by another process whose messages are not those of that time.

        The last record of the batch is compared; if the queue ends before it, the first one, which must not be younger.
        """
        preceding = {key: record for key, record in ranges.preceding_of(end).items() if key in lasts and key in bounds}
        offsets = {}
        for key in preceding:
            low, high = bounds[key]
            offset = lasts[key] - 1 if high >= lasts[key] else max(low, firsts[key])
            if low <= offset < high:
                offsets[key] = offset

        def differs(key: Key, record: Preceding) -> bool:
            is_last = offsets[key] == lasts[key] - 1
            return record != preceding[key] if is_last else record.stored_ms > preceding[key].stored_ms

        return set(self._different(offsets, bounds, differs))

    # ---- losses and warnings

    def _lose(self, subject: str, offset: dict[str, Any], losses: Sequence[DataLoss]) -> None:
        """Raise DataLossError, or with failOnDataLoss=false record each loss once for the offset. subject: what is computed."""
        if losses and self._options.fail_on_data_loss:
            more = {(loss.topic, loss.broker, loss.queue_id): loss for loss in losses[1:]}
            raise DataLossError(str(losses[0]) + (f"; the same for {ranges.listed(more)}" if more else ""))
        recorded = self._recorded.get(subject)
        if recorded is None or recorded[0] != offset:
            recorded = self._recorded[subject] = (offset, set())
        for loss in losses:
            position = ((loss.topic, loss.broker, loss.queue_id), loss.begin)
            if position not in recorded[1]:
                met_loss(self._options, loss, f"{subject} {json.dumps(offset, sort_keys=True)}")
                recorded[1].add(position)

    def _warn_changed_filter(self, start: dict[str, Any]) -> None:
        """Warn once when the checkpoint was written with another filter (STR-15)."""
        before, now = str(start.get("s", "")), self._options.filter_text
        if before != now and not self._changed:
            self._changed = True
            logger.warning(
                "filter changed expression=%r checkpoint=%r; messages that the earlier filter left out are not read",
                now or ALL, before or ALL,
            )  # fmt: skip

    def _warn_missing(self, missing: frozenset[Key]) -> None:
        """Warn once about queues of the checkpoint that are not read: left out by the options, or without a route."""
        newly_missing = missing - self._missing
        if left_out := [key for key in newly_missing if not selects(self._options, key)]:
            logger.warning(
                "queues of the checkpoint are left out by the options and keep their positions queues=%s",
                ranges.listed(left_out),
            )
        if unrouted := [key for key in newly_missing if selects(self._options, key)]:
            logger.warning("queues of the checkpoint without route queues=%s", ranges.listed(unrouted))
        self._missing = missing


def _may_pass(error: SaturnError) -> bool:
    """Whether a broker or name server is away or has just come back, when a topic briefly has no route."""
    if error.code == ResponseCode.NO_PERMISSION:
        return False
    return error.retryable or (isinstance(error, ConfigError) and isinstance(error.__cause__, SaturnError))
