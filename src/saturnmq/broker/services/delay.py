"""Delayed messages by level: how a message is stored under its level, and the task that delivers messages that are due.

Each level is a queue of SCHEDULE_TOPIC_XXXX whose units hold the delivery time, in ascending order. So only the head of each
level is examined, and waiting messages cost no memory. Progress is a queue offset per level, kept in delayOffset.json and
written only once the delivered copies are durable: a crash may repeat deliveries but never skips one (DUR-19).

Requirements: DLY-01..DLY-08, ST-08, DUR-18, DUR-19.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from saturnmq.broker.services.periodic import RepeatedTask
from saturnmq.broker.services.statistics import Stats
from saturnmq.protocol.bodies import DelayOffsetTable
from saturnmq.protocol.codes import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, PropertyKey, ResponseCode
from saturnmq.protocol.errors import ConfigError, CorruptRecord, MessageError, StoreError, response_error
from saturnmq.protocol.message import Message, decode_properties, decode_record
from saturnmq.protocol.offsets import NO_QUEUE_OFFSET, PhysicalOffset, QueueOffset
from saturnmq.protocol.properties import with_property
from saturnmq.store import MessageStore, PutStatus, StateFile, wait_confirmed
from saturnmq.store.delay import delay_levels
from saturnmq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from saturnmq.store.queue.queue_extension import ADDRESS_MAX
from saturnmq.tasks import OnFailure

log = logging.getLogger(__name__)

END_FIELD: Final = "saturnmqLogEnd"  # extField of the answer to code 45: end of the log that has all delivered copies
BATCH_COUNT: Final = 64  # messages delivered per event-loop iteration
BATCH_BYTES: Final = 1 << 20
IDLE_MS: Final = 1000  # at most the shortest level, so a new message need not wake the task
SHORTEST_WAIT_MS: Final = 100
RETRY_MS: Final = 100  # back-off after a rejected put, doubled each time
RETRY_MS_MAX: Final = 2000
PAUSE_MS: Final = 10_000  # back-off of a level after an unexpected failure
FLUSH_WAIT_MS: Final = 5000
CLOCK_TOLERANCE_MS: Final = 60_000  # a due time later than the delay plus this: the clock was set back
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


def levels_of(text: str) -> tuple[int, ...]:
    """Parse `messageDelayLevel` into durations in ms. Raises ConfigError."""
    try:
        delays_ms = delay_levels(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not delays_ms:
        raise ConfigError("messageDelayLevel names no level; at least one is needed, e.g. 1s")
    return delays_ms


def level_of(delay: str | None, level_max: int) -> int:
    """Delay level requested by `delay`, the property DELAY, at most level_max; 0 for none (DLY-01).

    Raises ResponseError 13 if it is not a number.
    """
    if delay is None:
        return 0
    # As Integer.parseInt would read it, without overflow.
    if _NUMBER.fullmatch(delay) is None:
        problem = f"property DELAY is {delay!r:.40}, must be the number of a delay level, 0..{level_max}"
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, problem)
    # A level above the highest one means the highest, as in Apache RocketMQ.
    return min(max(int(delay), 0), level_max)


def scheduled(topic: str, queue_id: int, properties: str, delay: str | None, level_max: int) -> tuple[str, int, str]:
    """Topic, queue and properties to store a message with: those of its delay level, or its own without a delay (ST-08, DLY-02).

    delay: the value of its property DELAY.
    """
    level = level_of(delay, level_max)
    if not level:
        return topic, queue_id, properties
    properties = with_property(properties, PropertyKey.DELAY, str(level))
    properties = with_property(properties, PropertyKey.REAL_TOPIC, topic)
    return SCHEDULE_TOPIC, level - 1, with_property(properties, PropertyKey.REAL_QID, str(queue_id))


def restored(message: Message) -> Message:
    """The copy of a message of a system topic for its real topic and queue (DLY-05, TX-05). Raises MessageError."""
    # Only to read topic and queue: the copy keeps the stored bytes.
    properties = decode_properties(message.properties_raw.decode(errors="replace"))  # a batch may hold invalid UTF-8
    topic, queue_id_text = properties.get(PropertyKey.REAL_TOPIC), properties.get(PropertyKey.REAL_QID, "")
    if not topic or _NUMBER.fullmatch(queue_id_text) is None or int(queue_id_text) < 0:
        raise MessageError(f"REAL_TOPIC={topic!r:.150} REAL_QID={queue_id_text!r:.20} are no topic and queue")
    # It would be delivered into a system topic, and be delivered again from there.
    if topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        raise MessageError(f"REAL_TOPIC is {topic}, where nothing is delivered to")
    return Message(
        topic,
        message.body,
        message.properties_raw,
        int(queue_id_text),
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.store_host,
        message.reconsume_times,
    )


@dataclass(slots=True)
class Level:
    """State of one level.

    offset: of the next message to deliver. backoff_ms: the last back-off after a failure, 0 after a delivery. backoff_until_ms: its
    end, Unix ms.
    """

    number: int
    delay_ms: int
    offset: QueueOffset = NO_QUEUE_OFFSET  # -1: not known yet
    backoff_until_ms: int = 0
    backoff_ms: int = 0

    def back_off(self, now_ms: int, min_ms: int, max_ms: int) -> int:
        """Back off, twice as long as the last time; returns the back-off in ms."""
        self.backoff_ms = min(max(self.backoff_ms * 2, min_ms), max_ms)
        self.backoff_until_ms = now_ms + self.backoff_ms
        return self.backoff_ms

    def remaining_backoff_ms(self, now_ms: int) -> int:
        """Remaining back-off in ms; 0 if the clock was set back."""
        remaining_ms = self.backoff_until_ms - now_ms
        # A remaining time longer than the back-off itself shows that the clock was set back.
        return remaining_ms if 0 < remaining_ms <= self.backoff_ms else 0


class _Budget:
    """Messages and bytes that one event-loop iteration may still deliver."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count, self.bytes = BATCH_COUNT, BATCH_BYTES

    @property
    def is_spent(self) -> bool:
        return self.count <= 0 or self.bytes <= 0


class DelayService:
    """Delivers the messages of all levels from one task, in order within each level."""

    def __init__(self, store: MessageStore, file: StateFile, stats: Stats, clock_ms: Callable[[], int]) -> None:
        delays_ms = levels_of(store.settings.message_delay_level)
        self.level_max = len(delays_ms)
        self._levels = [Level(number, delay_ms) for number, delay_ms in enumerate(delays_ms, 1)]
        # At most the shortest level: a new message is then noticed in time without a wake-up.
        self._idle_ms = max(SHORTEST_WAIT_MS, min(IDLE_MS, *delays_ms))
        self._store = store
        self._state_file = file
        self._stats = stats
        self._clock_ms = clock_ms
        self._has_unsaved_progress = False
        self._task = RepeatedTask(self.deliver_due)
        self._save_lock = asyncio.Lock()
        self._first_index = 0  # index of the level that the next iteration begins with
        self._unconfigured: dict[int, QueueOffset] = {}  # progress of levels that are not configured any more

    # ---- lifecycle

    def load(self) -> None:
        """Read delayOffset.json if it exists. Raises CorruptRecord, StoreError."""
        saved_table = self._state_file.read(DelayOffsetTable.decode)
        for number, offset in saved_table.offset_table.items() if saved_table is not None else ():
            # Levels of another configuration keep their progress, should they come back.
            if 1 <= number <= self.level_max:
                self._levels[number - 1].offset = QueueOffset(offset)
            else:
                self._unconfigured[number] = QueueOffset(offset)

    def start(self, on_failure: OnFailure) -> None:
        """Start delivering; the store must be open for writes. on_failure: called if delivery ends with an error."""
        self._task.start("delayed messages", on_failure)

    async def abort(self) -> None:
        """Stop delivering without saving the progress."""
        await self._task.stop()

    async def stop(self) -> None:
        """Stop delivering and save the progress."""
        await self.abort()
        await self.save()

    def next_due_ms(self, after_ms: int) -> int | None:
        """First due time after after_ms, Unix ms, among the next messages of all levels; None if there is none."""
        due_times_ms = []
        for level, offset in self.offsets().items():
            queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
            unit = queue.unit(offset) if queue is not None else None
            if unit is not None and unit[2] > after_ms:
                due_times_ms.append(unit[2])
        return min(due_times_ms, default=None)

    def wake(self) -> None:
        """Check due times now, after the clock was set."""
        self._task.wake()

    # ---- delivery

    def deliver_due(self) -> int:
        """Deliver a bounded number of due messages.

        Returns ms until the next call is needed; 0 if more messages are due.
        """
        now_ms = self._clock_ms()
        wait_ms = self._idle_ms
        budget = _Budget()
        level_count = self.level_max
        # Another level begins in each iteration, so that a busy one does not use up the budget of the others.
        first_index, self._first_index = self._first_index, (self._first_index + 1) % level_count
        for index in range(level_count):
            level = self._levels[(first_index + index) % level_count]
            backoff_ms = level.remaining_backoff_ms(now_ms)
            if backoff_ms:
                wait_ms = min(wait_ms, backoff_ms)
                continue
            try:
                wait_ms = min(wait_ms, self._deliver_level(level, now_ms, budget))
            # One level's failure must not stop the others.
            except Exception:
                log.exception(
                    "delayed delivery failed level=%s offset=%s retry_ms=%s", level.number, level.offset, PAUSE_MS
                )
                level.back_off(now_ms, PAUSE_MS, PAUSE_MS)
        return wait_ms

    def _deliver_level(self, level: Level, now_ms: int, budget: _Budget) -> int:
        """Deliver due messages of one level; returns as `deliver_due`."""
        queue = self._store.queues.get((SCHEDULE_TOPIC, level.number - 1))
        if queue is None:
            return self._idle_ms
        self._clamp_offset(level, queue)
        while level.offset < queue.max_offset:
            start = level.offset
            for offset, (physical_offset, size, due_ms) in queue.units(start, BATCH_COUNT):
                if budget.is_spent:
                    return 0
                # Fillers are stepped over; they cost nothing of the budget.
                if size != FILLER_SIZE:
                    if due_ms <= ADDRESS_MAX:
                        due_ms = self._extended_due_ms(level, queue, due_ms, physical_offset)
                    wait_ms = self._wait_ms(level, due_ms, now_ms)
                    if wait_ms > 0:
                        return wait_ms
                    # Not delivered: the level waits, because its messages must stay in order.
                    if not self._deliver(level, offset, physical_offset, size):
                        return level.back_off(now_ms, RETRY_MS, RETRY_MS_MAX)
                    budget.count -= 1
                    budget.bytes -= size
                # After the put: a crash in between repeats the delivery (DUR-19).
                level.offset, level.backoff_ms, self._has_unsaved_progress = QueueOffset(offset + 1), 0, True
            if level.offset == start:  # units are missing: continue with the next file, as Apache RocketMQ (CQ-05)
                level.offset = min(queue.next_file_offset(start), queue.max_offset)
                self._has_unsaved_progress = True
                log.error(
                    "delayed messages skipped, queue units missing level=%s from=%s to=%s",
                    level.number,
                    start,
                    level.offset - 1,
                )
        return self._idle_ms

    def _extended_due_ms(
        self, level: Level, queue: ConsumeQueue, extension_address: int, physical_offset: PhysicalOffset
    ) -> int:
        """Due time of a unit whose tags code is an address in the queue's extension (CQ-13).

        If the extension does not have it, the store time plus the delay.
        """
        extension_unit = queue.extension.read(extension_address) if queue.extension is not None else None
        return (
            extension_unit.tags_code
            if extension_unit is not None
            else self._store.log.store_time(physical_offset) + level.delay_ms
        )

    @staticmethod
    def _wait_ms(level: Level, due_ms: int, now_ms: int) -> int:
        """Ms until a message is due; an impossible due time for this clock and level counts as due (DLY-04, DUR-18)."""
        wait_ms = due_ms - now_ms
        return wait_ms if wait_ms <= level.delay_ms + min(level.delay_ms, CLOCK_TOLERANCE_MS) else 0

    def _clamp_offset(self, level: Level, queue: ConsumeQueue) -> None:
        """Move a level's offset into the bounds of its queue (DLY-07)."""
        # Deleted by retention, or the file of the progress is older or newer than the queue.
        low, high = queue.min_offset, queue.max_offset
        if low <= level.offset <= high:
            return
        corrected = low if level.offset < low else high
        # -1 is not an error but a level without progress yet.
        if level.offset >= 0:
            log.warning("delay offset corrected level=%s offset=%s corrected=%s", level.number, level.offset, corrected)
        level.offset, self._has_unsaved_progress = corrected, True

    def _deliver(self, level: Level, offset: int, physical_offset: PhysicalOffset, size: int) -> bool:
        """Store the copy of one message; False if it must be retried (DLY-06). Damaged messages are logged and skipped."""
        record = self._store.read_record(physical_offset, size)
        if record is None:
            log.error(
                "delayed message skipped, no record level=%s offset=%s physical_offset=%s",
                level.number,
                offset,
                physical_offset,
            )
            # Nothing can be delivered; the messages after it can.
            return True
        try:
            message = decode_record(record, check_crc=True)
            # The record at this place is another one: units and log disagree.
            if (message.topic, message.queue_offset) != (SCHEDULE_TOPIC, offset):
                raise CorruptRecord(f"it is {message.topic!r} {message.queue_offset}")
            copy = restored(message)
        except (MessageError, CorruptRecord) as error:
            log.error("delayed message skipped level=%s offset=%s physical_offset=%s error=%s", level.number, offset,
                      physical_offset, error.message)  # fmt: skip
            return True
        result = self._store.put(copy)
        if result.status is PutStatus.PUT_OK:
            self._stats.delivered(copy.topic, level.number - 1, result.size)
            return True
        if level.backoff_ms < RETRY_MS_MAX:  # logged for the first retries only
            log.warning("delayed message not delivered, retried level=%s offset=%s status=%s reason=%s", level.number, offset,
                        result.status.value, result.reason)  # fmt: skip
        return False

    # ---- progress

    def offsets(self) -> dict[int, QueueOffset]:
        """Next queue offset by level, for levels in use."""
        return self._unconfigured | {level.number: level.offset for level in self._levels if level.offset >= 0}

    def table(self) -> dict[str, str]:
        """Rows of the runtime information: `scheduleMessageOffset_3` -> `next,maximum`."""
        return {
            f"scheduleMessageOffset_{number}": f"{offset},{self._store.max_offset(SCHEDULE_TOPIC, number - 1)}"
            for number, offset in sorted(self.offsets().items())
        }

    def encode(self) -> bytes:
        """Encode as body of GET_ALL_DELAY_OFFSET and content of delayOffset.json."""
        return DelayOffsetTable(self.offsets()).encode()

    async def save(self) -> None:
        """Write the progress once the messages it covers are durable; a failure is logged and retried at the next call."""
        async with self._save_lock:
            if not self._has_unsaved_progress:
                return
            # Taken together: the progress may be written once everything up to this end is durable.
            data, log_end = self.encode(), self._store.log.end
            # Before the waits: deliveries meanwhile set it again.
            self._has_unsaved_progress = False
            try:
                status = await wait_confirmed(self._store.log, log_end, FLUSH_WAIT_MS)
                if status is not PutStatus.PUT_OK:
                    raise StoreError(f"the commit log is not confirmed up to {log_end}: {status.value}")
                await asyncio.get_running_loop().run_in_executor(None, self._state_file.write, data)
            except StoreError as error:
                self._has_unsaved_progress = True
                log.error("delay progress not saved, retried error=%s", error.message)
            # A cancellation too: the progress is not written.
            except BaseException:
                self._has_unsaved_progress = True
                raise
