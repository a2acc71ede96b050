"""Reads of the store: a queue by offset or time, records by key.

Every record is checked against the unit that points to it (size, magic, queue, offset) before it is returned, so a damaged
unit or record is reported and not delivered. All functions run on the event loop; buffers are slices of the mapped log.

Requirements: BP-02..BP-06, CQ-06, IX-06, IX-07, DUR-08, DUR-10.
"""

from __future__ import annotations

import logging
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from time import thread_time
from typing import Final, TypeAlias

from saturnmq.hot import compiled
from saturnmq.protocol.errors import CorruptRecord, MessageError
from saturnmq.protocol.message import (
    HOSTS_V6,
    MESSAGE_MAGIC,
    RECORD_FIXED_BYTES,
    RECORD_V4,
    decode_record,
    head_struct,
    record_properties,
)
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, NO_QUEUE_OFFSET, PhysicalOffset, QueueOffset
from saturnmq.slices import Steps, completed
from saturnmq.store import cold
from saturnmq.store.files import capacity
from saturnmq.store.files.disk import Disk
from saturnmq.store.index.message_index import MessageIndex
from saturnmq.store.log.log import Log
from saturnmq.store.queue.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES, ConsumeQueue, Unit
from saturnmq.store.queue.queue_extension import ADDRESS_MAX, QueueExtension
from saturnmq.store.queue.queues import QueueTable
from saturnmq.store.results import GetResult, GetStatus, QueryResult
from saturnmq.store.settings import StoreSettings

log = logging.getLogger(__name__)

QUERY_BYTES_MAX: Final = 8 << 20  # a response must fit one frame
_QUERY_TRIES: Final = 3
# As in Apache RocketMQ: 16,000 bytes of units, however few of them match.
_SCAN_UNITS_MIN: Final = 16_000 // UNIT_BYTES  # units examined for one pull (BP-03)
# CPU time that a filter may take in one event-loop iteration; the next pull continues where this one stopped
FILTER_SECONDS_MAX: Final = 0.02
_FILTER_STEP: Final = 16  # messages between two checks of the time limit
_CHECKED: Final = ("total_size", "magic", "queue_id", "queue_offset", "physical_offset")
_HEAD: Final = head_struct(*_CHECKED)
_HEAD_AND_BODY: Final = head_struct(*_CHECKED, "sys_flag", "body_bytes")
_AT_BODY: Final = RECORD_V4.size

TransferLimits: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Bytes and messages that one read may return: of old messages on disk, and of recent ones in the page cache."""

COMPILED: Final = compiled("gather")


class StoreReader(ABC):
    """The half of a store that only reads. index: None if messages are not indexed."""

    def __init__(
        self, settings: StoreSettings, log: Log, disk: Disk, queues: QueueTable, index: MessageIndex | None
    ) -> None:
        self.settings, self.log, self.disk, self.queues, self.index = settings, log, disk, queues, index
        # accessMessageInMemoryMaxRatio: what lies further back than this share of the memory may be on disk only.
        self.memory_bytes = capacity.memory_bytes() * settings.memory_percent_max // 100

    @abstractmethod
    def put_in_index(self) -> bool:
        """Write queued entries to the index, for a bounded time. False if the disk rejects them."""

    # ---- get

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        max_count: int,
        *,
        max_bytes: int | None = None,
        bulk_bytes: int = 0,
        codes: frozenset[int] | None = None,
        accept_record: Callable[[bytes], bool] | None = None,
        accept_extension: Callable[[int, bytes], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from offset on, with the limits and offset corrections of Apache RocketMQ (BP-02..04).

        Filters are applied in this order: codes has the unit's tags code; accept_extension accepts store time (Unix ms) and bit
        map, if the unit has an extension; accept_record accepts the encoded properties of the record. next_offset skips what they
        reject. A non-zero bulk_bytes replaces the transfer limits for records in memory.

        Raises CorruptRecord if the first record is damaged (DUR-10).
        """
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE)
        low, high = queue.min_offset, queue.max_offset
        # As in Apache: the client is set to the first offset that exists.
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            # The offset after the last message is that of a consumer that has read everything; a higher one is wrong.
            over = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(over, high, low, high)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        limits = _transfer_limits(self.settings, max_count, max_bytes, bulk_bytes)
        is_plain = accept_record is None and queue.extension is None and not self.settings.check_crc_on_read
        if (
            COMPILED is not None
            and is_plain
            and self._gather_compiled(result, queue, queue_id, max_count, limits, codes)
        ):
            return result
        units = queue.read(offset, max(_SCAN_UNITS_MIN, max_count))
        if not units:
            # The units of this file cannot be read: the consumer goes on with the next file (BP-02).
            return GetResult(GetStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        by_address: Callable[[int], bool] = _passes
        if queue.extension is not None and (codes is not None or accept_extension is not None):
            by_address = _by_address(queue.extension, codes, accept_extension)
        self._gather(result, units, queue_id, max_count, limits, codes, by_address, accept_record)
        return result

    def cold_read(
        self, topic: str, queue_id: int, offset: QueueOffset, max_count: int, bytes_max: int = 0
    ) -> Callable[[], None] | None:
        """Work for `disk.read_threads` so that `get` does not wait for the disk; None if it does not anyway."""
        queue = self.queues.by_key.get((topic, queue_id))
        return cold.cold_read(self.disk, self.log, queue, offset, max_count, bytes_max)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records whose topic and key have the given hash, stored in the time range, ascending (IX-06, IX-07)."""
        return completed(self.query_steps(topic, key, max_count, begin_ms, end_ms))

    def query_steps(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Steps[QueryResult]:
        """As `query`, in steps: the index may hold millions of entries that share a slot with the key."""
        result = QueryResult()
        if self.index is None:
            return result
        # A key that was just stored must be found.
        self.put_in_index()
        result.last_update_ms, result.last_update_offset = self.index.last_update
        count_max = max(1, min(max_count, self.settings.query_count_max))
        # The newest entries may all be of damaged records: search again before the oldest of them.
        for _ in range(_QUERY_TRIES):
            offsets = yield from self.index.search(topic, key, count_max, begin_ms, end_ms)
            if not offsets:
                break
            total = 0
            oldest_ms = -1
            for offset in offsets:
                yield
                record = self.read_record(offset)
                if record is None:
                    continue
                if oldest_ms < 0:  # a damaged record may hold any time; the range must never grow
                    oldest_ms = min(self.log.store_time(offset), end_ms)
                if not self._intact(offset, len(record)):
                    log.warning("damaged record not served offset=%s; run `saturnmq store verify`", offset)
                    continue
                if total + len(record) > QUERY_BYTES_MAX:
                    break
                result.records.append(record)
                total += len(record)
            if result.records or oldest_ms < begin_ms:
                break
            end_ms = oldest_ms
        return result

    def read_record(self, physical_offset: PhysicalOffset, size: int | None = None) -> bytes | None:
        """The record at a physical offset; None if there is none or its size differs from size (ST-18, DUR-10)."""
        head = self.place_of(physical_offset)
        # The size that the caller knows, for instance from a unit, must be that of the record.
        if head is None or head[0] < RECORD_FIXED_BYTES or (size is not None and size != head[0]):
            return None
        view = self.log.view(physical_offset, head[0])
        # A copy: the file may be deleted while the answer waits to be written.
        return bytes(view) if view is not None else None

    # ---- offsets

    def min_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """First queue offset that is still stored; 0 if the queue does not exist (CQ-11)."""
        queue = self.queues.get((topic, queue_id))
        return queue.min_offset if queue else QueueOffset(0)

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The next queue offset; 0 if the queue does not exist (CQ-11)."""
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue else QueueOffset(0)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset:
        """Queue offset of the record stored at timestamp_ms, else of the nearer neighbour; a tie goes to the earlier one (CQ-06).

        Returns 0 for an empty queue or if a record cannot be read.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None or queue.max_offset == queue.min_offset:
            return QueueOffset(0)
        low, high = queue.min_offset, QueueOffset(queue.max_offset - 1)
        earlier = later = NO_QUEUE_OFFSET
        earlier_ms = later_ms = -1
        # Store times never fall in a queue (ST-10), so a binary search finds the place.
        while low <= high:
            middle = QueueOffset((low + high) // 2)
            stored_ms = self.store_time(topic, queue_id, middle)
            if stored_ms < 0:
                return QueueOffset(0)
            if stored_ms == timestamp_ms:
                return middle
            if stored_ms > timestamp_ms:
                later, later_ms, high = middle, stored_ms, QueueOffset(middle - 1)
            else:
                earlier, earlier_ms, low = middle, stored_ms, QueueOffset(middle + 1)
        if earlier < 0:
            return later
        if later < 0:
            return earlier
        # A tie goes to the earlier one.
        return later if timestamp_ms - earlier_ms > later_ms - timestamp_ms else earlier

    def store_time(self, topic: str, queue_id: int, offset: QueueOffset) -> int:
        """Store time (Unix ms) of the message at a queue offset; -1 if there is none."""
        unit = self._unit(topic, queue_id, offset)
        return self.log.store_time(unit[0]) if unit else -1

    def properties(self, topic: str, queue_id: int, offset: QueueOffset) -> bytes | None:
        """Encoded properties of the message at a queue offset; None if there is none."""
        unit = self._unit(topic, queue_id, offset)
        return self._properties_at(unit[0], unit[1]) if unit else None

    def physical_offset(self, topic: str, queue_id: int, offset: QueueOffset) -> PhysicalOffset:
        """Commit log offset of the message at a queue offset; -1 if there is none."""
        unit = self._unit(topic, queue_id, offset)
        return unit[0] if unit else NO_PHYSICAL_OFFSET

    def _unit(self, topic: str, queue_id: int, offset: QueueOffset) -> Unit | None:
        queue = self.queues.get((topic, queue_id))
        return queue.unit(offset) if queue else None

    def on_disk(self, physical_offset: PhysicalOffset) -> bool:
        """Whether a record is so far behind the end of the log that it may no longer be in the page cache (BP-04)."""
        return self.log.end - physical_offset > self.memory_bytes

    @property
    def earliest_store_ms(self) -> int:
        """Store time of the oldest record, Unix ms; -1 if the log is empty."""
        return self.log.first_store_ms

    @property
    def min_physical_offset(self) -> PhysicalOffset:
        return self.log.first_position

    @property
    def max_physical_offset(self) -> PhysicalOffset:
        """End of the readable part of the log."""
        return self.log.readable_end

    @property
    def flushed_offset(self) -> PhysicalOffset:
        """Every byte before this offset is durable."""
        return self.log.confirmed_end

    def topic_queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every consume queue."""
        # A copy: callers may delete queues while they iterate.
        return list(self.queues.by_key)

    # ---- steps of a read

    def units_without_wait(
        self, queue: ConsumeQueue, offset: QueueOffset, max_count: int, codes: frozenset[int] | None, ahead: int
    ) -> bytes | None:
        """As `read_units`; None if these, or the records of the first so many (`ahead`), are only on the disk."""
        units = queue.read_cached(offset, _units_max(max_count, codes))
        return None if units is None or cold.is_cold(self.log, units[: ahead * UNIT_BYTES]) else units

    def read_units(
        self, queue: ConsumeQueue, offset: QueueOffset, max_count: int, codes: frozenset[int] | None
    ) -> bytes:
        """The units that a read looks at if all have their record: without a filter one more than it returns."""
        return queue.read(offset, _units_max(max_count, codes))

    def _gather_compiled(
        self,
        result: GetResult,
        queue: ConsumeQueue,
        queue_id: int,
        max_count: int,
        limits: TransferLimits,
        codes: frozenset[int] | None,
    ) -> bool:
        """As `_gather`, for units that all have their record; False, without effect, if one has not."""
        units = self.read_units(queue, result.next_offset, max_count, codes)
        gathering = COMPILED.Gathering(units, queue_id, result.next_offset)  # type: ignore[union-attr]
        # Without effect: the caller starts again with the reference.
        if not units or not gathering.gather(self.log, codes, max_count, self.log.end - self.memory_bytes, *limits):
            return False
        result.buffers = gathering.views()
        if gathering.count:
            result.status = GetStatus.FOUND
        result.total_bytes, result.count = gathering.total, gathering.count
        result.next_offset = QueueOffset(result.next_offset + gathering.scanned)
        result.behind_memory = gathering.behind
        return True

    def _gather(
        self,
        result: GetResult,
        units: bytes,
        queue_id: int,
        max_count: int,
        limits: TransferLimits,
        codes: frozenset[int] | None,
        by_address: Callable[[int], bool],
        accept_record: Callable[[bytes], bool] | None,
    ) -> None:
        settings, commit_log = self.settings, self.log
        on_disk = commit_log.end - self.memory_bytes  # records before it may no longer be in the page cache
        first, offset = commit_log.first_position, result.next_offset
        in_disk, in_memory = limits
        ranges: list[list[PhysicalOffset]] = []
        total = count = scanned = 0
        status = GetStatus.NO_MATCHED_MESSAGE
        until = thread_time() + FILTER_SECONDS_MAX if accept_record is not None else 0.0
        start, end = 0, 0
        piece: mmap.mmap | bytes = b""
        for physical, size, code in UNIT.iter_unpack(units):
            # A record that retention has deleted: skipped, so that the consumer goes on at the first one that exists.
            if 0 <= physical < first and size != FILLER_SIZE:
                if not count:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                scanned += 1
                continue
            # The first record is always returned, whatever the limits say.
            if count:
                bytes_max, count_max = in_disk if physical < on_disk else in_memory
                if count >= max_count or count >= count_max or total + size > bytes_max:
                    break
            # A code up to ADDRESS_MAX is an address in the extension; any other is the tags code itself.
            if size == FILLER_SIZE or not (by_address(code) if code <= ADDRESS_MAX else codes is None or code in codes):
                scanned += 1
                continue
            properties = None
            if accept_record is not None:
                # The properties are needed anyway, and the check of the record comes with them.
                properties = self._properties_in_place(physical, size, queue_id, offset + scanned)
            if properties is None:
                if not start <= physical < end:
                    start, end, piece = commit_log.piece_at(physical)  # once per file, not per record
                head = _HEAD.unpack_from(piece, physical - start) if start <= physical <= end - _HEAD.size else None
                meant = (size, MESSAGE_MAGIC, queue_id, offset + scanned, physical)
                if head != meant or (settings.check_crc_on_read and not self._intact(physical, size)):
                    # Damage at the first record is an error; later it ends this read, and the next one reports it.
                    if not count:
                        raise _no_record(queue_id, offset + scanned, physical, size)
                    break
            scanned += 1
            if accept_record is not None and not (
                self._passes_filter(physical, size, accept_record) if properties is None else accept_record(properties)
            ):
                # `thread_time` is a system call: not for every message.
                if not scanned % _FILTER_STEP and thread_time() > until:
                    break
                continue
            if ranges and ranges[-1][1] == physical:  # one buffer for neighbours
                ranges[-1][1] = PhysicalOffset(physical + size)
            else:
                ranges.append([physical, PhysicalOffset(physical + size)])
            total += size
            count += 1
        result.buffers = self.views(ranges)
        result.status = GetStatus.FOUND if count else status
        result.total_bytes, result.count = total, count
        result.next_offset = QueueOffset(result.next_offset + scanned)
        result.behind_memory = size != FILLER_SIZE and physical < on_disk  # of the last unit that was examined (RW-01)

    def views(self, ranges: Iterable[Sequence[PhysicalOffset]]) -> list[memoryview]:
        """The bytes of the readable ranges as views, split at file boundaries of the log."""
        views: list[memoryview] = []
        first = last = 0
        whole = memoryview(b"")
        for start, end in ranges:
            # Never beyond the readable end: those bytes may still change.
            while start < end <= self.log.readable_end:
                if not first <= start < last:
                    first, last, piece = self.log.piece_at(
                        start
                    )  # once per file: it asks the system for the file's length
                    whole = memoryview(piece)
                    if not first <= start < last:
                        break
                stop = PhysicalOffset(min(end, last))
                views.append(whole[start - first : stop - first])
                start = stop
        return views

    def place_of(self, physical: PhysicalOffset) -> tuple[int, int, QueueOffset] | None:
        """(size, queue id, queue offset) of the message record that starts at an offset; None if no record claims that offset."""
        start, end, piece = self.log.piece_at(physical)
        if not start <= physical <= end - _HEAD.size:
            return None
        size, magic, queue_id, queue_offset, its_offset = _HEAD.unpack_from(piece, physical - start)
        # Bytes of a body may look like a record; only a real one names its own position.
        return (size, queue_id, queue_offset) if magic == MESSAGE_MAGIC and its_offset == physical else None

    def _properties_in_place(
        self, physical: PhysicalOffset, size: int, queue_id: int, queue_offset: int
    ) -> bytes | None:
        """Check the record against its unit and return its encoded properties in one step.

        None if the record needs the slow path: IPv6 hosts, a CRC check on read, or a mismatch.
        """
        record = self.log.view(physical, size)
        if record is None or size < RECORD_FIXED_BYTES or self.settings.check_crc_on_read:
            return None
        *head, sys_flag, body_bytes = _HEAD_AND_BODY.unpack_from(record)
        if head != [size, MESSAGE_MAGIC, queue_id, queue_offset, physical] or sys_flag & HOSTS_V6:
            return None
        at = _AT_BODY + body_bytes
        if not _AT_BODY <= at < size:
            return None
        at += 1 + record[at]
        # The lengths must add up to the size exactly, or the record needs the slow path.
        if at + 2 > size or at + 2 + (record[at] << 8 | record[at + 1]) != size:
            return None
        return bytes(record[at + 2 :])

    def _properties_at(self, physical: PhysicalOffset, size: int) -> bytes | None:
        """The encoded properties of the record at an offset; None if it cannot be decoded."""
        record = self.log.view(physical, size)
        try:
            return record_properties(record) if record is not None else None
        except MessageError:
            return None

    def _passes_filter(self, physical: PhysicalOffset, size: int, accept_record: Callable[[bytes], bool]) -> bool:
        """Evaluate the filter on a record that matches its unit.

        A record whose properties cannot be decoded is delivered, so the consumer notices the damage, as it does without a filter.
        """
        properties = self._properties_at(physical, size)
        return properties is None or accept_record(properties)

    def _intact(self, physical: PhysicalOffset, size: int) -> bool:
        record = self.log.view(physical, size)
        if record is None:
            return False
        try:
            decode_record(record, 0, check_crc=True)
        except MessageError:
            return False
        return True


def _units_max(max_count: int, codes: frozenset[int] | None) -> int:
    scanned_max = max(_SCAN_UNITS_MIN, max_count)
    # The read looks at one unit more before it stops, which decides `behind_memory` (RW-01).
    return min(max_count + 1, scanned_max) if codes is None else scanned_max


def _passes(address: int) -> bool:
    """Accept a unit whose extension address has no content: the client filters instead (CQ-13)."""
    return True


def _by_address(
    extension: QueueExtension,
    codes: frozenset[int] | None,
    accept_extension: Callable[[int, bytes], bool] | None,
) -> Callable[[int], bool]:
    """The filter for units that hold an extension address: evaluates the content at that address."""

    def ask(address: int) -> bool:
        content = extension.read(address)
        # The extension has been cleaned up or damaged: the client filters again.
        if content is None:
            return True
        if codes is not None and content.tags_code not in codes:
            return False
        return accept_extension is None or accept_extension(content.store_ms, content.bit_map)

    return ask


def _transfer_limits(settings: StoreSettings, max_count: int, max_bytes: int | None, bulk_bytes: int) -> TransferLimits:
    in_memory = settings.transfer_bytes_in_memory, settings.transfer_count_in_memory
    if bulk_bytes:
        # The larger of both: `bulk_bytes` never lowers a configured limit.
        in_memory = max(bulk_bytes, in_memory[0]), max_count
    in_disk = settings.transfer_bytes_in_disk, settings.transfer_count_in_disk
    if max_bytes is not None:
        in_disk, in_memory = (min(max_bytes, in_disk[0]), in_disk[1]), (min(max_bytes, in_memory[0]), in_memory[1])
    return in_disk, in_memory


def _no_record(queue_id: int, queue_offset: int, physical: PhysicalOffset, size: int) -> CorruptRecord:
    return CorruptRecord(
        f"queue {queue_id}, offset {queue_offset}: no intact record of {size} bytes at commit log offset {physical}; "
        "run `saturnmq store verify`"
    )
