"""Delivery at an arbitrary time, in ms, up to 40 days ahead.

A message waits in the topic rmq_sys_SATURN_TIMER, in the queue of the hour in which it wakes; its unit's tags code is the wake
time. Only the units of the current hour are in memory, 24 bytes each; those of one second are sorted when it begins. A
message that waits longer than a day, or than half the log's retention, wakes earlier and is stored again, because the log
expires.

Progress is a time: every message that woke until then is delivered. It is kept in timer.json together with the log end of that
moment, and written once the delivered copies are durable. A crash repeats a few seconds and skips nothing, whatever the clock
does.

Requirements: DUR-18, DUR-19.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from saturnmq.broker.services.delay import BATCH_BYTES, BATCH_COUNT, FLUSH_WAIT_MS, PAUSE_MS, restored
from saturnmq.broker.services.periodic import RepeatedTask
from saturnmq.broker.services.statistics import Stats
from saturnmq.protocol.codes import TIMER_DONE_ROW, TIMER_LIMIT_MS, TIMER_TOPIC, PropertyKey, ResponseCode
from saturnmq.protocol.errors import MessageError, StoreError, response_error
from saturnmq.protocol.message import Message, decode_record
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.protocol.properties import find, with_property
from saturnmq.store import MessageStore, PutResult, PutStatus, StateFile, wait_confirmed
from saturnmq.store.delay import wake_ms
from saturnmq.store.queue.consume_queue import FILLER_SIZE
from saturnmq.store.queue.queue_extension import ADDRESS_MAX
from saturnmq.tasks import OnFailure

log = logging.getLogger(__name__)

PROGRESS_FIELD: Final = "saturnmqTimer"  # extField of the answer to code 45 with `published_progress`
HOUR_MS: Final = 3_600_000
QUEUES: Final = 64  # of the topic; more than the hours until a message is stored again
ROLL_MS: Final = 24 * HOUR_MS
ROLL_MS_MIN: Final = 600_000
AHEAD_MS: Final = 300_000  # the next hour is read this long before it begins
IDLE_MS: Final = 1000
RETRY_MS: Final = 100  # back-off after a rejected put, doubled each time
RETRY_MS_MAX: Final = 2000
UNSEEN_MS: Final = 5  # retry interval for a due message that is not dispatched yet
READ_UNITS: Final = 4096  # per event-loop iteration
ACTIVATED: Final = 8192  # units sorted per event-loop iteration
ACTIVE_MAX: Final = 65_536  # sorted units at a time
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_SPREAD: Final = 2_654_435_761


def deliver_ms_of(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Delivery time requested by the properties of a message, Unix ms; None: now.

    Uses the properties of Apache RocketMQ 5.x clients. Raises ResponseError 13 if a value is invalid or too far ahead.
    """
    for name, unit_ms in (
        (PropertyKey.TIMER_DELAY_SEC, 1000),
        (PropertyKey.TIMER_DELAY_MS, 1),
        (PropertyKey.TIMER_DELIVER_MS, 0),
    ):
        text = properties.get(name)
        if text is None:
            continue
        # At most 15 digits: no overflow in what is computed with it.
        if _NUMBER.fullmatch(text) is None:
            problem = f"property {name} is {text!r:.40}, must be a number that is not below 0"
            raise response_error(ResponseCode.MESSAGE_ILLEGAL, problem)
        at_ms = now_ms + int(text) * unit_ms if unit_ms else int(text)
        if at_ms - now_ms > TIMER_LIMIT_MS:
            problem = (
                f"timer message illegal, the delay time should not be bigger than the max delay {TIMER_LIMIT_MS}ms"
            )
            raise response_error(ResponseCode.MESSAGE_ILLEGAL, f"{problem}; {name} is {text}")
        return at_ms if at_ms > now_ms else None
    return None


class TimerService:
    """Stores messages with a delivery time and delivers them when it is reached."""

    def __init__(self, store: MessageStore, file: StateFile, stats: Stats, clock_ms: Callable[[], int]) -> None:
        kept_ms = store.settings.file_reserved_hours * HOUR_MS
        # At most half the retention: the message is stored again before its record expires.
        self.roll_ms = max(min(ROLL_MS, kept_ms // 2), ROLL_MS_MIN)
        self._store = store
        self._file = file
        self._stats = stats
        self._clock_ms = clock_ms
        self._task = RepeatedTask(self.deliver_due)
        self._active: list[tuple[int, int, int]] = []  # heap of (wake time, physical offset, size)
        self._seconds: dict[int, array[int]] = {}  # the same for later seconds, flat, by second
        self._order: list[int] = []  # heap of the keys of _seconds
        self._loaded_until_ms = 0  # units that wake before it are in memory, or being read
        self._reading: Iterator[None] | None = None
        self._reading_all = False
        self._read_from_ms = 0  # while reading: units that woke before it are delivered
        self._done_ms = 0  # progress loaded at the start: time,
        self._done_end = 0  # and log end
        self._seen_ms = 0  # latest clock value of an iteration
        self._sleeps_until_ms = 0
        self._rest_ms = self._rests_until_ms = 0
        self._dirty = False
        self._saving = asyncio.Lock()
        self._count = 0
        self._published: str | None = None
        self._next_published: tuple[int, str] | None = None  # published once the log is durable up to its offset

    # ---- lifecycle

    def load(self) -> None:
        """Read timer.json. Raises CorruptRecord, StoreError."""
        self._done_ms, self._done_end = self._file.read(parse_progress) or (0, 0)

    def start(self, on_failure: OnFailure) -> None:
        """Start delivering; the store must be open for writes. on_failure: called if delivery ends with an error."""
        self._task.start("timed messages", on_failure)

    async def abort(self) -> None:
        """Stop delivering without saving the progress."""
        await self._task.stop()

    async def stop(self) -> None:
        """Stop delivering and save the progress."""
        await self.abort()
        await self.save()

    def next_due_ms(self, after_ms: int) -> int | None:
        """First time after after_ms, Unix ms, when a message is due or the next hour is read; None if none is stored."""
        if not self._has_stored:
            return None
        moments = [at for at, _, _ in self._active[:1]]
        moments += [second * 1000 for second in self._order[:1]]
        moments.append(self._loaded_until_ms - AHEAD_MS + 1)
        return min((at for at in moments if at > after_ms), default=None)

    @property
    def _has_stored(self) -> bool:
        """Whether any message with a delivery time was ever stored."""
        queues = self._store.queues
        return any((queue := queues.get((TIMER_TOPIC, n))) and queue.max_offset for n in range(QUEUES))

    def wake(self) -> None:
        """Check due times now, after the clock was set."""
        self._task.wake()

    @property
    def in_memory(self) -> int:
        """Number of waiting messages that are in memory."""
        return len(self._active) + sum(len(entries) for entries in self._seconds.values()) // 3

    # ---- incoming messages

    def put(self, message: Message, deliver_ms: int) -> PutResult:
        """Store a message until deliver_ms (Unix ms)."""
        text = message.properties_raw.decode(errors="surrogateescape")
        text = with_property(text, PropertyKey.REAL_TOPIC, message.topic)
        text = with_property(text, PropertyKey.REAL_QID, str(message.queue_id))
        text = with_property(text, PropertyKey.TIMER_OUT_MS, str(deliver_ms))
        return self._put(message, text, deliver_ms)

    def _put(self, message: Message, properties: str, deliver_ms: int) -> PutResult:
        now, at_ms = self._clock_ms(), deliver_ms
        if deliver_ms - now > self.roll_ms:
            # A multiplicative sequence: wake times of a burst are spread over a quarter of the time.
            self._count += 1  # spread the wake times of a burst
            at_ms = now + self.roll_ms - self._count * _SPREAD % (self.roll_ms // 4)
        message.topic, message.queue_id = TIMER_TOPIC, at_ms // HOUR_MS % QUEUES
        message.properties_raw = with_property(properties, PropertyKey.TIMER_WAKE_MS, str(at_ms)).encode(
            errors="surrogateescape"
        )
        result = self._store.put(message)
        self._dirty = True
        # Already in memory up to there: the reader will not see this message any more.
        if result.status is PutStatus.PUT_OK and at_ms < self._loaded_until_ms:
            self._keep(at_ms, message.physical_offset, result.size)
            # Earlier than anything the task sleeps for.
            if at_ms < self._sleeps_until_ms:
                self._task.wake()
        return result

    def _keep(self, at_ms: int, physical: PhysicalOffset, size: int) -> None:
        second = at_ms // 1000
        entries = self._seconds.get(second)
        if entries is None:
            entries = self._seconds[second] = array("q")
            heapq.heappush(self._order, second)
        entries.extend((at_ms, physical, size))

    # ---- reading waiting units

    def _read_on(self, now_ms: int) -> None:
        """Continue the current read, or begin with the next hour."""
        if self._reading is None:
            if now_ms + AHEAD_MS < self._loaded_until_ms:
                return
            first = self._loaded_until_ms == 0
            # At the start everything after the progress is read, later one hour after the other.
            low_ms = self._done_ms + 1 if first else self._loaded_until_ms
            until_ms = max(now_ms + AHEAD_MS, low_ms) // HOUR_MS * HOUR_MS + HOUR_MS
            ids = range(QUEUES) if first else [hour % QUEUES for hour in range(low_ms // HOUR_MS, until_ms // HOUR_MS)]
            # What was stored after the progress may be due long ago and not delivered.
            end = self._done_end if first else 1 << 62
            self._read_from_ms, self._loaded_until_ms, self._reading_all = low_ms, until_ms, first
            self._reading = self._read(sorted(set(ids)), low_ms, until_ms, end)
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
        except BaseException:  # read all of it again: some messages may be delivered twice
            self._reading, self._loaded_until_ms = None, 0 if self._reading_all else self._read_from_ms
            raise

    def _read(self, ids: list[int], low_ms: int, until_ms: int, end: int) -> Iterator[None]:
        """Load units of these queues that wake in low_ms..until_ms; yields after each chunk.

        Units stored at or after `end` in the log are loaded even if they woke before low_ms.
        """
        # Bounds of now: messages stored meanwhile are kept by `put`.
        tables = [(queue, queue.next_offset) for i in ids if (queue := self._store.queues.get((TIMER_TOPIC, i)))]
        for queue, queue_end in tables:
            at = queue.min_offset
            while at < queue_end:
                count = 0
                for offset, (physical, size, at_ms) in queue.units(at, min(READ_UNITS, queue_end - at)):
                    count, at = count + 1, QueueOffset(offset + 1)
                    if size == FILLER_SIZE:
                        continue
                    if at_ms <= ADDRESS_MAX:
                        at_ms = self._time_behind(physical, size)
                    # Stored after the progress was written: not delivered yet, whatever its time.
                    if at_ms < until_ms and (at_ms >= low_ms or physical >= end):
                        self._keep(at_ms, physical, size)
                if not count and at < queue.max_offset:
                    at = queue.next_file_offset(at)  # units are missing: continue with the next file (CQ-05)
                yield

    def _time_behind(self, physical: PhysicalOffset, size: int) -> int:
        """Wake time of a unit that points to the queue's extension, read from the message's property; 0 if it is unreadable."""
        record = self._store.read_record(physical, size)
        try:
            return wake_ms(decode_record(record).properties_raw) if record is not None else 0
        except MessageError:
            return 0

    # ---- delivery

    def deliver_due(self) -> int:
        """Deliver a bounded number of due messages.

        Returns ms until the next call is needed; 0: at once.
        """
        now = self._clock_ms()
        self._sleeps_until_ms = 0
        try:
            self._read_on(now)
            wait_ms = self._deliver_due(now)
        except Exception:
            log.exception("timed delivery failed retry_ms=%s", PAUSE_MS)
            wait_ms = PAUSE_MS
        self._seen_ms = max(self._seen_ms, now)
        # Reading goes on in the next iteration.
        if self._reading is not None:
            return 0
        self._sleeps_until_ms = now + wait_ms
        return wait_ms

    def _deliver_due(self, now_ms: int) -> int:
        # A rest longer than it was set shows that the clock was set back: it counts as over.
        if 0 < self._rests_until_ms - now_ms <= self._rest_ms:
            return self._rests_until_ms - now_ms
        self._activate(now_ms)
        active = self._active
        count, size = BATCH_COUNT, BATCH_BYTES
        while active and active[0][0] <= now_ms:
            if count <= 0 or size <= 0:
                return 0
            _, physical, record_bytes = active[0]
            # In a group, or with SYNC_FLUSH, its record may not be readable yet.
            if physical >= self._store.dispatched:
                return UNSEEN_MS
            if not self._deliver(PhysicalOffset(physical), record_bytes, now_ms):
                self._rest_ms = min(max(2 * self._rest_ms, RETRY_MS), RETRY_MS_MAX)
                self._rests_until_ms = now_ms + self._rest_ms
                return self._rest_ms
            heapq.heappop(active)
            self._dirty = True
            self._rest_ms = 0
            count, size = count - 1, size - record_bytes
        if self._order and self._order[0] * 1000 <= now_ms:
            return 0
        next_ms = min(active[0][0] if active else now_ms + IDLE_MS, self._order[0] * 1000 if self._order else 1 << 62)
        return max(min(next_ms - now_ms, IDLE_MS), 1)

    def _activate(self, now_ms: int) -> None:
        """Sort a bounded number of units of the seconds that have begun into the heap."""
        order, active = self._order, self._active
        if order and order[0] * 1000 <= now_ms and len(active) < ACTIVE_MAX:
            entries = self._seconds[order[0]]
            # From the end: removing from there costs nothing.
            some = entries[-3 * ACTIVATED :]
            del entries[-3 * ACTIVATED :]
            active.extend(zip(some[::3], some[1::3], some[2::3], strict=True))
            heapq.heapify(active)
            if not entries:
                del self._seconds[heapq.heappop(order)]

    def _deliver(self, physical: PhysicalOffset, size: int, now_ms: int) -> bool:
        """Store the copy of one message, or the message again if it waits longer; False if it must be retried."""
        record = self._store.read_record(physical, size)
        if record is None:
            log.error("timed message skipped, no record physical_offset=%s", physical)
            return True
        try:
            message = decode_record(record, check_crc=True)
            properties = message.properties_raw.decode(errors="surrogateescape")  # a batch may hold invalid UTF-8
            text = find(properties, PropertyKey.TIMER_OUT_MS) or ""
            if message.topic != TIMER_TOPIC or message.physical_offset != physical or not _NUMBER.fullmatch(text):
                raise MessageError(f"it is {message.topic!r} TIMER_OUT_MS={text!r:.20}")
            copy = restored(message)
        except MessageError as error:
            log.error("timed message skipped physical_offset=%s error=%s", physical, error.message)
            return True
        # It woke only to be stored again, as the log expires.
        if int(text) > now_ms:
            result = self._put(copy, properties, int(text))
        else:
            result = self._store.put(copy)
            if result.status is PutStatus.PUT_OK:
                self._stats.put(copy.topic, 1, result.size)
        if result.status is not PutStatus.PUT_OK and self._rest_ms < RETRY_MS_MAX:
            log.warning("timed message not delivered, retried status=%s reason=%s", result.status.value, result.reason)
        return result.status is PutStatus.PUT_OK

    # ---- progress

    def done_ms(self) -> int:
        """Time (Unix ms) until which every message that woke is delivered."""
        bounds = [max(self._seen_ms, self._done_ms)]
        # Units that were not read yet may have woken.
        if self._reading is not None:
            bounds.append(self._read_from_ms - 1)
        elif self._loaded_until_ms == 0:
            bounds.append(self._done_ms)
        # Everything before the earliest waiting one is delivered.
        if self._active:
            bounds.append(self._active[0][0] - 1)
        if self._order:
            bounds.append(self._order[0] * 1000 - 1)
        return min(bounds)

    def table(self) -> dict[str, str]:
        """Row of the runtime information: units that wake after this time (Unix ms) wait; none if no message was stored."""
        return {TIMER_DONE_ROW: str(self.done_ms())} if self._has_stored else {}

    def published_progress(self) -> str | None:
        """Progress for followers, covering only what the store has confirmed; None if it is not known yet."""
        store = self._store
        if self._next_published is not None and self._next_published[0] <= store.flushed_offset:
            self._published, self._next_published = self._next_published[1], None
        if self._next_published is None and self._loaded_until_ms and self._reading is None:
            end = store.log.end
            self._next_published = end, encode_progress(self.done_ms(), end)
        return self._published

    async def save(self) -> None:
        """Write the progress once the messages it covers are durable; a failure is logged and retried at the next call."""
        async with self._saving:
            # Until all is read, this progress would be too far.
            if not self._dirty or self._loaded_until_ms == 0 or self._reading is not None:
                return  # the read at start depends on the previous progress
            store = self._store
            end = store.log.end
            progress = (self.done_ms(), end)
            self._dirty = False
            try:
                status = await wait_confirmed(store.log, end, FLUSH_WAIT_MS)
                if status is not PutStatus.PUT_OK:
                    raise StoreError(f"the commit log is not confirmed up to {end}: {status.value}")
                data = encode_progress(*progress).encode()
                await asyncio.get_running_loop().run_in_executor(None, self._file.write, data)
            except StoreError as error:
                self._dirty = True
                log.error("timer progress not saved, retried error=%s", error.message)


def parse_progress(data: bytes) -> tuple[int, int]:
    """Delivered up to this time, Unix ms, and the end of the log at which that was so. Raises ValueError, KeyError, TypeError."""
    try:
        table = json.loads(data)
        progress = int(table["doneMs"]), int(table["logEnd"])
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"progress of timed messages: {error}") from error
    # A damaged file must not make all messages count as delivered.
    if not all(0 <= value < 1 << 62 for value in progress):
        raise ValueError(f"progress of timed messages out of range: {progress}")
    return progress


def encode_progress(done_ms: int, log_end: int) -> str:
    """The content of timer.json."""
    return json.dumps({"doneMs": done_ms, "logEnd": log_end})
