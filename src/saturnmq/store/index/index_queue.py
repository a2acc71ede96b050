"""Records waiting for the message index, which adds hundreds at once for half the cost of adding them one by one.

Waiting records are already in the log, so a crash loses nothing. They are added before a query, before a flush, and when
WAITING_MAX of them have collected, for at most STEP_SECONDS of CPU time: one message may have 64 keys, and one batch thousands
of messages, which cost ten times as much to index as to store. After a long step the index waits until the event loop has spent
_PAUSE_FACTOR times as long on other work, unless the loop is idle.

If more than BACKLOG_BYTES_MAX wait, and after `rebuild`, the queue keeps no records: it lags, and reads them from the log until
it has caught up. Messages are rejected only if the disk rejects index entries (IX-09).

Requirements: IX-09, DUR-13.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Final, Protocol

from saturnmq.hot.index_entries import weigh, weight_of
from saturnmq.log_limit import LogLimit
from saturnmq.protocol.errors import CorruptRecord, OutOfDescriptors, SaturnError, StoreError
from saturnmq.protocol.message import Message, mend_time
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.index.message_index import WORDS_MAX, LogPiece, MessageIndex, Record, is_indexed

log = logging.getLogger(__name__)

WAITING_MAX: Final = 256
STEP_SECONDS: Final = 0.005
BACKLOG_BYTES_MAX: Final = 16 << 20
FINISH_SECONDS: Final = 1.5
_PAUSE_FACTOR: Final = 5
_PAUSES_MAX: Final = 3  # so many pauses, if the loop spent less time on other work in one
_LONG_STEP_S: Final = (
    STEP_SECONDS / 2
)  # CPU time of a step that is followed by a pause; one of WAITING_MAX plain records is shorter
_PAUSED_STEP_S: Final = (
    0.001  # for a query during a pause, so that it finds the last messages unless thousands of keys wait
)
_IDLE_SHARE: Final = 0.02  # an event loop whose other work takes a smaller part of the time is idle
_RETRY_S: Final = 1.0  # pause after the disk has rejected entries
SLICE_BYTES: Final = 16_384  # weight of the records that are indexed between two looks at the clock
_COLD_STEP_S: Final = 0.02  # real time of a step that reads the log: pages that are not in memory take no CPU time
_LOG_LINE_S: Final = 60.0  # clients decide how often the index lags, so that is logged at most once in this time

ReadLog = Callable[[PhysicalOffset], Iterator[Message]]
"""Yields the messages of the log from an offset on, or from its begin if that is later, up to what was dispatched.

Raises CorruptRecord if it cannot be read on.
"""


class IndexSource(Protocol):
    """The store of the records. dispatched: physical offset up to which they were queued. failure: why it is not written to.

    log_piece: see `LogPiece`; None if there is more than records in the log.
    """

    read_log: ReadLog
    log_piece: LogPiece | None
    failure: SaturnError | None

    @property
    def dispatched(self) -> PhysicalOffset: ...


@dataclass(slots=True)
class _Reading:
    """The place in the log where the index continues. at: physical offset of a record; is_indexed: that record is indexed.

    end_line: what is logged when the index has caught up, "" for nothing.
    """

    at: PhysicalOffset
    end_line: str
    is_indexed: bool = False


class IndexQueue:
    """Batches records for one index. refusal: why the index cannot take them, "" if it can.

    source: the store whose log is read when the index lags.
    """

    def __init__(self, index: MessageIndex, source: IndexSource) -> None:
        self.refusal = ""
        self._index = index
        self._source = source
        self._waiting: list[Record] = []
        self._weight = 0  # of the waiting records
        self._next_step: asyncio.Handle | None = None
        self._began = self._ended = 0.0  # the last step: real time when it began, CPU time of the thread when it ended
        self._owed = self._latest = (
            0.0  # CPU time due to other work before the next step; real time from which it is not waited for
        )
        self._reading: _Reading | None = None
        self._reads = True
        self._lag_log = LogLimit(interval_seconds=_LOG_LINE_S)

    def add(self, records: list[Record]) -> bool:
        """Queue records, in log order; False if messages must be rejected: see `refusal`."""
        # The index lags and catches up from the log, which has these records.
        if self._reading is not None:
            return not self.refusal
        self._waiting += records
        self._weight += weigh(records, len(records), sys.maxsize, WORDS_MAX)[1]
        # Below the limits nothing is done: indexing hundreds at once costs half as much.
        return (len(self._waiting) < WAITING_MAX and self._weight < BACKLOG_BYTES_MAX) or self._collected()

    def put_in(self) -> bool:
        """Add waiting records for at most STEP_SECONDS; what is left follows later. Without an event loop all are added.

        False if the disk rejects them; they are added later then.
        """
        if self._reading is not None:
            # A query finds what is indexed by now; the lag is not caught up for it.
            self._schedule(0)
        else:
            # During a pause the step is short, so that queries do not undo the pacing.
            self._step(STEP_SECONDS if self._next_step is None else _PAUSED_STEP_S)
        return not self.refusal

    def put_all(self) -> bool:
        """Add all waiting records now, however long that takes; False if the disk rejects them or the index lags."""
        while self._waiting:
            if not self._step(STEP_SECONDS):
                return False
        return self._reading is None

    async def catch_up(self) -> None:
        """Index what the index lags behind, in steps, for about FINISH_SECONDS. Nothing is read from a store that has failed."""
        until = monotonic() + FINISH_SECONDS
        while self._reading is not None and self._may_read:
            self._catch_up(self._reading)
            # Other work runs between two steps.
            await asyncio.sleep(0)
            if self.refusal or monotonic() >= until:
                return

    @property
    def _may_read(self) -> bool:
        return self._reads and self._source.failure is None

    async def finish_reading(self) -> None:
        """As `catch_up`; then the log is read no more, as it is about to be closed."""
        try:
            await self.catch_up()
        finally:
            self._reads = False

    async def finish(self) -> None:
        """Add all waiting records in steps, unless the disk rejects them."""
        while self._waiting:
            if not self._step(STEP_SECONDS):
                break
            await asyncio.sleep(0)
        self.cancel()

    @property
    def complete(self) -> bool:
        """Whether every record is in the index; if not, the next start adds what is missing."""
        return not self._waiting and self._reading is None

    def cancel(self) -> None:
        """Take no further step."""
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None

    def clear(self) -> None:
        """Drop what waits, because the index was cleared and its records have left the log."""
        self.cancel()
        self._waiting, self._weight, self._reading = [], 0, None

    def rebuild(self, begin: PhysicalOffset) -> None:
        """Index the log from `begin` on, in the background."""
        self.clear()
        self._reading = _Reading(begin, "index caught up")
        self._schedule(0)

    @property
    def lagging(self) -> bool:
        """Whether records of the log are missing in the index until it has caught up."""
        return self._reading is not None

    def covered(self, dispatched: PhysicalOffset) -> PhysicalOffset:
        """Physical offset up to which every record is in the index, given that the log is dispatched up to `dispatched`."""
        if self._reading is not None:
            return min(dispatched, self._reading.at)
        # In the order of the log, so that the first one waits at the lowest offset.
        return min(dispatched, self._waiting[0][2]) if self._waiting else dispatched

    # ---- steps

    def _lag(self) -> None:
        """Forget the waiting records; they are read from the log, at the same pace."""
        at, line = self._waiting[0][2], ""
        if self._lag_log.suppressed("") is not None:
            line = "index caught up"
            log.warning("index lags, queries by key miss messages until it has caught up offset=%s", at)
        # Bounded memory: the log has the same records.
        self._waiting, self._weight, self._reading = [], 0, _Reading(at, line)
        self._schedule(0)

    def _collected(self) -> bool:
        # A step that is planned will take them.
        if self._next_step is None:
            self._step(STEP_SECONDS)
        if self._weight > BACKLOG_BYTES_MAX:
            self._lag()
        return not self.refusal

    def _step(self, seconds: float) -> bool:
        """Add waiting records for this CPU time; False if they cannot be added now."""
        # Without an event loop (recovery, tools) nothing else waits.
        paced = _running_loop() is not None
        began = thread_time()
        try:
            while self._waiting:
                self._put_slice()
                # After at least one slice, so that there is progress however slow the machine is.
                if paced and thread_time() >= began + seconds:
                    break
        except (StoreError, OSError) as error:
            self._refuse(error)
            return False
        self.refusal = ""
        self._pause(began)
        return True

    def _put_slice(self) -> None:
        waiting = self._waiting
        count, weight = weigh(waiting, len(waiting), SLICE_BYTES, WORDS_MAX)
        self._index.put_many(waiting[:count])
        # After they are indexed: an error leaves them for the next try; duplicates are recognized.
        del waiting[:count]
        self._weight -= weight

    def _catch_up(self, reading: _Reading) -> None:
        """Index a part of the log."""
        # Taken once: what is dispatched meanwhile is read by a later step.
        began, dispatched, latest = thread_time(), self._source.dispatched, monotonic() + _COLD_STEP_S
        try:
            while self._index_part(reading, dispatched, latest):
                if monotonic() >= latest or thread_time() >= began + STEP_SECONDS:
                    self.refusal = ""
                    self._pause(began)
                    return
        except CorruptRecord as error:
            # The log cannot be read further; a retry would find the same damage.
            self._reads = False
            log.error("index incomplete from offset=%s until the next start reason=%s", reading.at, error)
            return
        except (StoreError, OSError) as error:
            self._refuse(error)
            self._schedule(_RETRY_S)
            return
        # Caught up: from here on records are queued again.
        self.refusal, self._reading = "", None
        self._pause(began)
        if reading.end_line:
            log.warning("%s dispatched=%s", reading.end_line, dispatched)

    def _index_part(self, reading: _Reading, dispatched: PhysicalOffset, latest: float) -> bool:
        """Index some records, until time.monotonic() `latest` at most; False if no record is left."""
        begin, again, log_piece = reading.at, reading.is_indexed, self._source.log_piece
        if log_piece is not None:
            # The compiled reader stops at what is no plain record; then the reference reads one part.
            last = self._index.put_from_log(log_piece, begin, dispatched, latest, again=again)
            if last > begin or (last == begin and not again):
                reading.at, reading.is_indexed = last, True
                return True
        # For records with a damaged time, as recovery mends them.
        stored_ms = self._index.last_update.time_ms
        records: list[Record] = []
        weight = 0
        for message in self._source.read_log(begin):
            at = message.physical_offset
            if at >= dispatched:
                break
            # The first record was indexed by the step before.
            if again and at <= begin:
                continue
            stored_ms = mend_time(message, stored_ms)
            if is_indexed(message.sys_flag):
                records.append((message.topic, message.properties_raw, at, message.store_timestamp_ms))
            weight += weight_of(message.properties_raw, WORDS_MAX)
            if weight >= SLICE_BYTES or monotonic() >= latest:
                self._index.put_many(records)
                reading.at, reading.is_indexed = at, True
                return True
        self._index.put_many(records)
        return False

    def _refuse(self, error: Exception) -> None:
        """Let messages be rejected. Not if descriptors are missing: connections take those, and records may wait for a free one."""
        if isinstance(error, OutOfDescriptors):
            self._schedule(_RETRY_S)
            return
        if not self.refusal:
            log.error("index append failed, messages rejected until it succeeds reason=%s", error)
        self.refusal = f"the message index cannot grow: {error}"

    def _pause(self, began: float) -> None:
        """Leave the event loop to other work after a step that began at this CPU time, if records are left or it was long."""
        now, ended = monotonic(), thread_time()
        # `other_work_s` is the CPU time that the event loop has used since the last step.
        cost, other_work_s = ended - began, began - self._ended
        idle = other_work_s < _IDLE_SHARE * (now - cost - self._began)
        self._began, self._ended = now - cost, ended
        # The loop gets so many times the cost of the step for other work before the next one.
        self._owed = 0.0 if idle else _PAUSE_FACTOR * cost
        # But not without end, if other processes have the processor.
        self._latest = now + _PAUSES_MAX * self._owed
        if self._waiting or self._reading is not None or cost >= _LONG_STEP_S:
            self._schedule(self._owed)

    def _schedule(self, pause_s: float) -> None:
        loop = _running_loop()
        # After `finish_reading` the log is closed, and only waiting records may be added.
        if self._next_step is None and loop is not None and (self._reads or self._reading is None):
            self._next_step = loop.call_later(pause_s, self._next) if pause_s else loop.call_soon(self._next)

    def _next(self) -> None:
        self._next_step = None
        if thread_time() - self._ended < self._owed and monotonic() < self._latest:
            self._schedule(self._owed)  # other threads or processes had the processor
        elif self._reading is not None:
            if self._may_read:
                self._catch_up(self._reading)
        elif self._waiting:
            self._step(STEP_SECONDS)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
