"""The stream source: offsets, limits and partitions of micro-batches.

It lives in the planner process of a query; `read` runs on pickled copies in workers. Spark's checkpoint decides where a query
resumes; `track` commits consumer-group offsets in the driver.

Spark stores no initial offset: it calls `initialOffset` for every trigger before the first batch, again when it runs that batch,
and again in the next process when that batch failed. So this reader returns the same offset each time, and the end of the first
batch records where the batch begins. An offset also identifies the record before each position: if the queue now has another record
there, its topic was created again (docs/decisions/0026-stream-offsets.md).

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
class OffsetDraft:
    """The next offset while it is computed.

    begin: where its batch begins. preceding: the records before these positions. bounds: current bounds of the queues.
    recorded_begins: begins that the next offset must record, because the previous one does not have them. has_loss: a loss was
    recorded, so that the offset must change even without a new message.
    """

    begin: dict[Key, int]
    preceding: dict[Key, Preceding]
    bounds: dict[Key, Bounds]
    recorded_begins: dict[Key, int] = field(default_factory=dict)
    has_loss: bool = False


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
        self._snapshot_cache: tuple[float, Snapshot] | None = None
        self._failed_polls = 0  # since the last snapshot that was answered
        self._suspect_states: tuple[Snapshot, dict[Key, QueueState]] | None = (
            None  # of the suspect queues of a snapshot
        )
        self._last_ends: dict[Key, int] = {}  # ends of queues at the last offset that was computed without an error
        self._idle_poll: tuple[Snapshot, dict[str, Any]] | None = None  # the last poll that found nothing
        self._is_checkpoint_verified = False  # whether the records before all positions of the checkpoint were compared
        self._newest_offset: dict[str, Any] | None = None  # the newest that latestOffset returned
        self._recorded_losses: dict[
            str, tuple[dict[str, Any], set[tuple[Key, int]]]
        ] = {}  # offset and losses by subject
        self._run_ends: dict[Key, int] | None = None  # with trigger AvailableNow: end offsets of the run
        self._deleted_queues: set[Key] = set()  # deleted queues that a cached route may still name, without messages
        self._unread_queues: frozenset[Key] = frozenset()  # of the checkpoint, for which a warning was logged
        self._filter_warned = False

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
                # Another cause is a broker or NameServer that does not answer: raised now, and the next call asks again.
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
        # The ends of this moment, not of the last poll.
        self._snapshot_cache = None
        self._run_ends = {key: queue_bounds.high for key, queue_bounds in self._snapshot().bounds.items()}

    @brief
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes; `start` itself when there is nothing new.

        Raises DataLossError for queues that were deleted or created again since `start` was reached.
        """
        # Compared by identity: any newer snapshot is looked at.
        if self._idle_poll is not None and self._idle_poll[0] is self._snapshot() and self._idle_poll[1] == start:
            return start  # Spark polls an idle query every 10 ms
        ranges.from_offset(start)
        self._warn_changed_filter(start)
        # Here Spark needs the offset, see `initialOffset`.
        if self._initial_error is not None and start == self._initial:
            raise self._initial_error
        # One snapshot for the first attempt, so that a poll asks the brokers once.
        unused = [self._snapshot()]  # a starting query without any answer fails at once
        return self._retry_while_away(lambda: self._next_offset(start, unused.pop() if unused else self._snapshot()))

    @brief
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end offsets of the queues, for the query's progress."""
        ends = {key: queue_bounds.high for key, queue_bounds in self._snapshot().bounds.items()}
        return ranges.to_offset(ends, self._options.group)

    @brief
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one task per range between two offsets. Raises DataLossError for positions that brokers no longer have."""
        begin, reached, recorded_begins = ranges.from_offset(start), ranges.from_offset(end), ranges.begins_of(end)
        if start == end:
            return []
        # a batch that is run again has the rows that it was planned with, whatever start Spark passes (STR-16)
        # A queue that the previous offset does not have begins where the end says, or at 0.
        range_begins = {key: recorded_begins.get(key, begin.get(key, 0)) for key in reached}
        if self._initial_error is not None and start == self._initial and range_begins.keys() - recorded_begins.keys():
            raise self._initial_error
        # A position may also go back: that is a loss, reported below.
        range_ends = {key: last for key, last in reached.items() if last != range_begins[key]}
        if not range_ends:
            return []
        available_ranges, losses, sizes = self._retry_while_away(
            lambda: self._readable_ranges(range_begins, range_ends, end)
        )
        self._report_losses("partitions", end, losses)
        options = self._options
        split_ranges = ranges.split(
            available_ranges, options.min_partitions, options.records_per_partition, options.bytes_per_partition, sizes
        )
        return [RangePartition(piece) for piece in split_ranges]

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
        # Monotonic: the clock of the machine may be set.
        now, interval_s = time.monotonic(), self._options.refresh_ms / 1000
        if self._failed_polls:
            interval_s = max(
                interval_s, min(max(interval_s, BACKOFF_S[0]) * 2 ** min(self._failed_polls, 10), BACKOFF_S[1])
            )
        if self._snapshot_cache is None or now - self._snapshot_cache[0] >= interval_s:
            try:
                self._snapshot_cache = (now, self._queries.snapshot())
                self._failed_polls = 0
            except SaturnError as error:
                # Without any snapshot there is nothing to go on with.
                if self._snapshot_cache is None or not _is_transient(error):
                    raise
                self._failed_polls += 1
                logger.warning("offsets not refreshed error=%s", error)
                self._snapshot_cache = (
                    time.monotonic(),
                    self._snapshot_cache[1],
                )  # a poll that timed out took its time
        return self._snapshot_cache[1]

    def _retry_while_away(self, work: Callable[[], R]) -> R:
        """Return the result of work; repeat it up to readTimeoutMs while brokers are away.

        A broker that is only down is no data loss: a query that runs a batch again must not consider its queues deleted
        (SRC-13, SRC-15). Raises the last error.
        """
        deadline, backoff_s = time.monotonic() + self._options.read_timeout_ms / 1000, BACKOFF_S[0]
        while True:
            try:
                return work()
            except SaturnError as error:
                # A refusal does not pass by waiting.
                if not _is_transient(error) or time.monotonic() > deadline:
                    raise
                logger.warning("waiting for brokers error=%s", error)
            time.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_S[1])

    def _away_error(self, reasons: Mapping[Key, str]) -> BrokerNotExist:
        """Return the error about queues whose brokers do not answer."""
        reason = next(iter(reasons.values()))
        return BrokerNotExist(
            f"{ranges.listed(reasons)} cannot be read: {reason}; waited up to {self._options.read_timeout_ms} ms (option "
            "readTimeoutMs); "
            "if a broker was removed for good, option assign or queues without its queues lets the query go on"
        )

    # ---- the next offset

    def _next_offset(self, start: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
        options = self._options
        draft = OffsetDraft(ranges.from_offset(start), ranges.preceding_of(start), dict(snapshot.bounds))
        checkpointed = frozenset(draft.begin)
        # A queue that has messages again exists again.
        self._deleted_queues = {key for key in self._deleted_queues if not draft.bounds.get(key, Bounds(0, 0)).high}
        for key in self._deleted_queues - checkpointed:
            # Not read as a new queue: its loss is recorded, and it is empty.
            draft.bounds.pop(key, None)
        self._reconcile_queues(draft, snapshot, start)
        verify_all = not self._is_checkpoint_verified
        # In the first call of a process: while it did not run, topics may have been made again.
        if verify_all:
            self._verify_records(draft, draft.preceding, start)
        reached = self._batch_end(draft, checkpointed, snapshot)
        # Later only where the batch moves on: one read for each queue that has messages.
        if not verify_all and self._verify_records(draft, [k for k in reached if reached[k] != draft.begin[k]], start):
            # The begins have changed.
            reached = self._batch_end(draft, checkpointed, snapshot)
        is_idle = reached == draft.begin and all(reached.get(k, 0) >= b.high for k, b in draft.bounds.items())
        is_first = start == self._initial
        # Spark compares text: fields that differ without a move would start an empty batch.
        is_same = ranges.is_same_position(start, ranges.to_offset(reached, options.group)) and not draft.has_loss
        # The end of the first batch must record where it began.
        if not is_same or (is_first and self._initial_offset_moves):
            recorded_begins = draft.begin if is_first else draft.recorded_begins
            preceding = self._preceding_records(draft, reached)
            self._newest_offset = ranges.to_offset(
                reached, options.group, recorded_begins, options.filter_text, preceding
            )
            start = self._newest_offset
            is_idle = False
        # A run that ends anyway needs no shortcut.
        self._idle_poll = (snapshot, start) if is_idle and self._run_ends is None else None
        self._is_checkpoint_verified = True  # not earlier: an error above would forget what was compared
        self._last_ends = {key: queue_bounds.high for key, queue_bounds in draft.bounds.items()}
        return start

    @property
    def _initial_offset_moves(self) -> bool:
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

    def _reconcile_queues(self, draft: OffsetDraft, snapshot: Snapshot, start: dict[str, Any]) -> None:
        """Query the masters of queues of the checkpoint that the snapshot does not have, or that end before their position.

        Deleted queues are removed from the draft, so that the loss is recorded once and a new topic of that name is read whole.
        """
        begin, bounds = draft.begin, draft.bounds
        # Queues that the options leave out keep their position and are not asked for.
        absent = [key for key in begin if key not in bounds and selects(self._options, key)]
        # The log ends before the position: lost, or a slave has answered.
        behind = {key: bounds[key].low for key in begin if key in bounds and bounds[key].high < begin[key]}
        # Any offset serves a queue that may be absent.
        states = self._states_of_suspects(snapshot, dict.fromkeys(absent, 0) | behind)
        deleted = {key: state for key, state in states.items() if state.deleted}
        self._report_losses(
            "offsets",
            start,
            [
                DataLoss(
                    *key,
                    begin[key],
                    # The messages up to the last end that was seen are lost.
                    max(begin[key], self._last_ends.get(key, 0)),
                    f"the queue was deleted: {state.reason}",
                )
                for key, state in deleted.items()
            ],
        )
        for key in deleted:
            # The new offset must not have the queue any more.
            draft.has_loss = True
            del begin[key]
            draft.preceding.pop(key, None)
            bounds.pop(key, None)
        self._deleted_queues |= deleted.keys()
        truncated = {}
        for key in behind.keys() - deleted.keys():
            queue_bounds = states[key].bounds
            # Unknown: the queue keeps its position until its master answers.
            if queue_bounds is None:
                del bounds[key]
            elif queue_bounds.high < begin[key]:
                bounds[key] = queue_bounds
                truncated[key] = "the topic was created again, or the newest messages of the queue are missing"
            else:
                bounds[key] = queue_bounds  # a slave had answered that is behind
        self._resume_after_loss(draft, truncated, start)
        away_reasons = {key: states[key].reason or NO_ROUTE for key in begin if key not in bounds and key in states}
        self._warn_missing(frozenset(key for key in begin if key not in bounds))
        # A run of AvailableNow must end, and a query without any answer has nothing to wait with.
        if away_reasons and (self._run_ends is not None or not (bounds or self._last_ends)):
            raise self._away_error(away_reasons)
        topics = {topic for topic, _, _ in begin}
        for name, error in snapshot.missing.items():
            if self._options.fail_on_data_loss and name not in topics and not (topics and self._options.pattern):
                raise error

    def _states_of_suspects(self, snapshot: Snapshot, offsets: dict[Key, int]) -> dict[Key, QueueState]:
        if not offsets:
            return {}
        if (
            # Asked once per snapshot, however often Spark polls.
            self._suspect_states is None
            or self._suspect_states[0] is not snapshot
            or self._suspect_states[1].keys() != offsets.keys()
        ):
            self._suspect_states = (snapshot, self._queries.states(offsets))
        return self._suspect_states[1]

    def _verify_records(self, draft: OffsetDraft, keys: Iterable[Key], start: dict[str, Any]) -> bool:
        """Compare the records before positions with those of the checkpoint; return whether one differs.

        A record that retention has deleted cannot be compared, and is no loss.
        """
        offsets = {}
        for key in keys:
            queue_bounds = draft.bounds.get(key) if key in draft.preceding else None
            # Only a record that the queue still has can be compared.
            if queue_bounds is not None and queue_bounds.low < draft.begin[key] <= queue_bounds.high:
                offsets[key] = draft.begin[key] - 1
        reasons = {}
        for key, record in self._differing_records(
            offsets, draft.bounds, lambda key, record: record != draft.preceding[key]
        ).items():
            before = draft.preceding[key]
            reasons[key] = (
                f"the record before it was stored at {before.stored_ms} ms at position {before.physical}, now there is one "
                f"of {record.stored_ms} ms at position {record.physical}: the topic was created again"
            )
        self._resume_after_loss(draft, reasons, start)
        return bool(reasons)

    def _differing_records(
        self, offsets: Mapping[Key, int], bounds: dict[Key, Bounds], differs: Callable[[Key, Preceding], bool]
    ) -> dict[Key, Preceding]:
        """Return the records that differ at their masters, too: a slave may still have those of a deleted topic.

        Replaces the bounds of these queues by those of the masters. Raises BrokerNotExist while a master does not answer.
        """
        records = self._queries.records(offsets) if offsets else {}
        # Few: only for these are the masters asked.
        suspects = {key: offsets[key] for key, record in records.items() if differs(key, record)}
        states = self._queries.states(suspects) if suspects else {}
        away_reasons = {}
        for key, state in states.items():
            if state.bounds is None:
                away_reasons[key] = state.reason
            else:
                bounds[key] = state.bounds
        if away_reasons:
            raise self._away_error(away_reasons)
        return {key: s.record for key, s in states.items() if s.record is not None and differs(key, s.record)}

    def _resume_after_loss(self, draft: OffsetDraft, reasons: Mapping[Key, str], start: dict[str, Any]) -> None:
        """Record losses; resume at the first message stored after the checkpoint's, or at the first if that time is unknown."""
        if not reasons:
            return
        # Without the time of the last record the queue is read from its beginning.
        stored_times = {key: draft.preceding[key].stored_ms for key in reasons if key in draft.preceding}
        resume_offsets = {key: draft.bounds[key].low for key in reasons} | self._queries.stored_after(
            stored_times, draft.bounds
        )
        # The clock of a new broker may be behind: the position in the log decides then.
        oldest = {key: draft.bounds[key].low for key in stored_times if draft.bounds[key].low < resume_offsets[key]}
        for key, record in self._queries.records(oldest).items() if oldest else ():
            if record.physical > draft.preceding[key].physical:  # appended later, whatever the broker's clock said
                resume_offsets[key] = oldest[key]
        losses = []
        for key, reason in sorted(reasons.items()):
            offset, queue_bounds = draft.begin[key], draft.bounds[key]
            text = (
                f"the checkpoint goes on at offset {offset}, the queue has {queue_bounds.low}..{queue_bounds.high}; {reason}; "
                f"skipping the loss reads from offset {resume_offsets[key]}"
            )
            # The end of the loss is known only if this process has seen it.
            losses.append(DataLoss(*key, offset, max(offset, self._last_ends.get(key, 0)), text))
        self._report_losses("offsets", start, losses)
        for key, offset in resume_offsets.items():
            draft.begin[key] = draft.recorded_begins[key] = offset
            # That record is of the old topic.
            draft.preceding.pop(key, None)
            draft.has_loss = True

    def _batch_end(self, draft: OffsetDraft, checkpointed: frozenset[Key], snapshot: Snapshot) -> dict[Key, int]:
        """Return the end of the next batch, after adding queues that the checkpoint does not have."""
        begin = draft.begin
        latest = dict(begin)  # a queue missing from the route keeps its offset
        for key, queue_bounds in draft.bounds.items():
            if self._run_ends is not None and key not in self._run_ends:
                if key not in checkpointed:
                    continue  # created after the run began: left to the next run
                self._run_ends[key] = queue_bounds.high  # its broker was away when the run began
            if key not in begin:  # a queue that appeared later starts at its min offset (STR-03)
                begin[key] = queue_bounds.low
                if queue_bounds.low:  # 0 is the default, so that hardly any offset has the field
                    draft.recorded_begins[key] = queue_bounds.low
            # A queue may have become shorter since the run began.
            high = queue_bounds.high if self._run_ends is None else min(self._run_ends[key], queue_bounds.high)
            # Never back: a queue that seems shorter was checked before.
            latest[key] = max(high, begin[key])
        return self._admission.reach(
            begin, latest, time.monotonic() * 1000, snapshot.sizes, no_minimum=self._run_ends is not None
        )

    def _preceding_records(self, draft: OffsetDraft, reached: Mapping[Key, int]) -> dict[Key, Preceding]:
        """Return the records before the end positions; only those of queues that moved or have none yet are read."""
        # Known already: an idle queue costs no read.
        unmoved = {key: record for key, record in draft.preceding.items() if reached.get(key) == draft.begin[key]}
        offsets = {}
        for key, end in reached.items():
            queue_bounds = draft.bounds.get(key)
            # An empty queue has no record before its end.
            if key not in unmoved and queue_bounds is not None and queue_bounds.low < end <= queue_bounds.high:
                offsets[key] = end - 1
        return unmoved | (self._queries.records(offsets) if offsets else {})

    # ---- the ranges of a batch

    def _readable_ranges(
        self, range_begins: Mapping[Key, int], range_ends: Mapping[Key, int], end: dict[str, Any]
    ) -> tuple[list[ranges.QueueRange], list[DataLoss], dict[Key, float]]:
        """Return the ranges of a batch that brokers still have, its losses, and record sizes."""
        bounds, deleted, sizes = self._current_bounds(range_begins, range_ends)
        # A batch that this process has just planned needs no second comparison.
        recreated = (
            self._recreated_queues(range_begins, range_ends, end, bounds) if end != self._newest_offset else set()
        )
        available_ranges, losses = [], []
        for key, last in sorted(range_ends.items()):
            first = range_begins[key]
            if last < first:
                # Written by an earlier version, or by hand.
                losses.append(DataLoss(*key, last, first, f"the next offset went back from {first} to {last}"))
            elif key in deleted:
                losses.append(DataLoss(*key, first, last, f"the queue was deleted: {deleted[key]}"))
            elif key in recreated:
                losses.append(DataLoss(*key, first, last, f"the topic was created again, the queue has {bounds[key]}"))
            else:
                # Clamped to the queue, and to the batch.
                available_begin = min(max(first, bounds[key].low), last)
                available_end = max(min(last, bounds[key].high), first)
                if first < available_begin:
                    losses.append(DataLoss(*key, first, available_begin, f"the queue begins at {bounds[key].low}"))
                if available_end < last:
                    loss_begin = max(available_begin, available_end)
                    losses.append(DataLoss(*key, loss_begin, last, f"the queue ends at {bounds[key].high}"))
                available_ranges.append(ranges.QueueRange(*key, min(available_begin, available_end), available_end))
        return available_ranges, losses, sizes

    def _current_bounds(
        self, range_begins: Mapping[Key, int], range_ends: Mapping[Key, int]
    ) -> tuple[dict[Key, Bounds], dict[Key, str], dict[Key, float]]:
        """Return current bounds, the reasons of deleted queues, and record sizes.

        The bounds of a queue that does not have the whole batch are its master's. Raises BrokerNotExist while a broker or a master
        that is needed does not answer.
        """
        snapshot = self._queries.snapshot()
        # Newer than what the poll would use.
        self._snapshot_cache = (time.monotonic(), snapshot)
        bounds = dict(snapshot.bounds)
        suspects = {key: bounds[key].low if key in bounds else 0 for key, last in range_ends.items()
                    if key not in bounds or bounds[key].low > range_begins[key] or bounds[key].high < last}  # fmt: skip
        states = self._queries.states(suspects) if suspects else {}
        away_reasons = {}
        for key, state in states.items():
            # A queue without a route is absent from the bounds, although its master answers.
            if state.bounds is not None and (key in bounds or not selects(self._options, key)):
                bounds[key] = state.bounds
            elif not state.deleted:
                away_reasons[key] = state.reason or NO_ROUTE
        if away_reasons:
            raise self._away_error(away_reasons)
        return bounds, {key: state.reason for key, state in states.items() if state.deleted}, snapshot.sizes

    def _recreated_queues(
        self,
        range_begins: Mapping[Key, int],
        range_ends: Mapping[Key, int],
        end: dict[str, Any],
        bounds: dict[Key, Bounds],
    ) -> set[Key]:
        """Return the queues of a batch planned by another process whose topic was created again since.

        The last record of the batch is compared; if the queue ends before it, the first one, which must not be newer.
        """
        preceding = {
            key: record for key, record in ranges.preceding_of(end).items() if key in range_ends and key in bounds
        }
        offsets = {}
        for key in preceding:
            low, high = bounds[key]
            # The last record of the batch if it is there.
            offset = range_ends[key] - 1 if high >= range_ends[key] else max(low, range_begins[key])
            if low <= offset < high:
                offsets[key] = offset

        def differs(key: Key, record: Preceding) -> bool:
            is_last = offsets[key] == range_ends[key] - 1
            # The first record of a new topic is newer than all of the old one.
            return record != preceding[key] if is_last else record.stored_ms > preceding[key].stored_ms

        return set(self._differing_records(offsets, bounds, differs))

    # ---- losses and warnings

    def _report_losses(self, subject: str, offset: dict[str, Any], losses: Sequence[DataLoss]) -> None:
        """Raise DataLossError, or with failOnDataLoss=false record each loss once for the offset. subject: what is computed."""
        if losses and self._options.fail_on_data_loss:
            # One is described in full, the others are named.
            other_losses = {(loss.topic, loss.broker, loss.queue_id): loss for loss in losses[1:]}
            raise DataLossError(
                str(losses[0]) + (f"; the same for {ranges.listed(other_losses)}" if other_losses else "")
            )
        recorded = self._recorded_losses.get(subject)
        if recorded is None or recorded[0] != offset:
            recorded = self._recorded_losses[subject] = (offset, set())
        for loss in losses:
            position = ((loss.topic, loss.broker, loss.queue_id), loss.begin)
            # Spark computes an offset again and again: each loss is recorded once.
            if position not in recorded[1]:
                met_loss(self._options, loss, f"{subject} {json.dumps(offset, sort_keys=True)}")
                recorded[1].add(position)

    def _warn_changed_filter(self, start: dict[str, Any]) -> None:
        """Warn once when the checkpoint was written with another filter (STR-15)."""
        checkpoint_filter, current_filter = str(start.get("s", "")), self._options.filter_text
        if checkpoint_filter != current_filter and not self._filter_warned:
            self._filter_warned = True
            logger.warning(
                "filter changed expression=%r checkpoint=%r; messages that the earlier filter left out are not read",
                current_filter or ALL, checkpoint_filter or ALL,
            )  # fmt: skip

    def _warn_missing(self, missing: frozenset[Key]) -> None:
        """Warn once about queues of the checkpoint that are not read: left out by the options, or without a route."""
        newly_missing = missing - self._unread_queues
        if left_out := [key for key in newly_missing if not selects(self._options, key)]:
            logger.warning(
                "queues of the checkpoint are left out by the options and keep their positions queues=%s",
                ranges.listed(left_out),
            )
        if unrouted := [key for key in newly_missing if selects(self._options, key)]:
            logger.warning("queues of the checkpoint without route queues=%s", ranges.listed(unrouted))
        self._unread_queues = missing


def _is_transient(error: SaturnError) -> bool:
    """Whether a broker or name server is away or has just come back, when a topic briefly has no route."""
    # Retried by producers, but a reader would wait for nothing.
    if error.code == ResponseCode.NO_PERMISSION:
        return False
    return error.retryable or (isinstance(error, ConfigError) and isinstance(error.__cause__, SaturnError))
