"""The message store: one commit log, a consume queue per topic and queue, and what keeps them right over a restart.

All of it runs on the event loop's thread but the flushing, so there is no put lock: a put is one uninterrupted step (ST-10).
Consume queues are written in the same step, so dispatch never lags behind the log (RP-01). Source: spec 02.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from typing import Final

from saturnmq.protocol.codes import NAME_LENGTH_MAX, TRANSACTION_MASK, SysFlag
from saturnmq.protocol.errors import CorruptRecord, DiskFull, FlushFailed, SaturnError, StoreError
from saturnmq.protocol.message import PROPERTIES_BYTES_MAX, RECORD_FIXED_BYTES, Message, java_hash
from saturnmq.store.checkpoint import Checkpoint
from saturnmq.store.commit_log import END_BLANK_BYTES, CommitLog
from saturnmq.store.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES, ConsumeQueue
from saturnmq.store.flush import Flusher
from saturnmq.store.lock_file import LockFile
from saturnmq.store.recover import Scan, facts_of, good_records, plan
from saturnmq.store.results import GetResult, GetStatus, PutResult, PutStatus
from saturnmq.store.settings import FlushDiskType, StoreSettings

log = logging.getLogger(__name__)

RECORD_OVERHEAD_MAX: Final = 65_536  # a whole record may be this much longer than maxMessageSize (ST-06)
_SCAN_BYTES_MIN: Final = 16_000  # index bytes looked at for one pull (BP-03)
_DEFAULT_MEMORY: Final = 24 * 1024**3
_PREPARED: Final = int(SysFlag.PREPARED)
_ROLLBACK: Final = int(SysFlag.ROLLBACK)
_TAGS_START: Final = b"TAGS\x01"

Key = tuple[str, int]


def wall_clock_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000


def tags_code(properties_raw: bytes) -> int:
    """Java hash of the TAGS property in an encoded property string; 0 without tags (CQ-02)."""
    at = properties_raw.find(_TAGS_START)
    while at > 0 and properties_raw[at - 1] != 2:
        at = properties_raw.find(_TAGS_START, at + 1)
    if at < 0:
        return 0
    end = properties_raw.find(b"\x02", at)
    value = properties_raw[at + 5 : end if end >= 0 else None]
    return _tag_hash(value) if value else 0


_tag_hashes: dict[bytes, int] = {}


def _tag_hash(value: bytes) -> int:
    code = _tag_hashes.get(value)
    if code is None:
        if len(_tag_hashes) > 10_000:
            _tag_hashes.clear()
        code = _tag_hashes[value] = java_hash(value.decode("utf-8", "replace"))
    return code


class MessageStore:
    """See the interface in docs/decisions/0001."""

    def __init__(self, settings: StoreSettings, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.settings = settings
        self.on_append: Callable[[str, int, int, int], None] | None = None
        self.failure: SaturnError | None = None
        self._clock_ms = clock_ms
        self._log = CommitLog(settings.commit_log_dir, settings.commit_log_bytes)
        self._queues: dict[Key, ConsumeQueue] = {}
        self._lock = LockFile(settings.root / "lock")
        self._checkpoint = Checkpoint(settings.checkpoint_path)
        self._flusher = Flusher(self._log, self._stop_writing)
        self._task: asyncio.Task[None] | None = None
        self._open = False
        self._dirty_queues: set[Key] = set()
        self._last_store_ms = 0
        self._memory_bytes = _memory_bytes() * settings.memory_percent_max // 100

    # ---- life

    def open(self) -> None:
        """Lock, load and recover. Raises StoreError naming file and offset; nothing stays locked then."""
        self._lock.acquire()
        try:
            self._log.load()
            self._load_queues()
            self._checkpoint.load()
            self._recover(clean=not self.settings.abort_path.exists())
            self._flusher.flushed = self._log.end
            self.settings.abort_path.parent.mkdir(parents=True, exist_ok=True)
            self.settings.abort_path.touch()
        except OSError as error:
            self._close_files()
            if isinstance(error, SaturnError):
                raise
            raise StoreError(f"store {self.settings.root} cannot be opened: {error}") from error
        except SaturnError:
            self._close_files()
            raise
        self._open = True

    async def start(self) -> None:
        """Start flushing on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._flush_now_and_then())

    async def stop(self) -> None:
        """Flush everything and close; `abort` goes only when all of it is on disk (RC-02). Raises StoreError."""
        if not self._open:
            return
        self._open = False
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        try:
            await self._flusher.stop()
            await asyncio.get_running_loop().run_in_executor(None, self._flush_queues, list(self._queues.values()))
            self._note_flushed()
            self._checkpoint.write()
            if self.failure is None:
                self.settings.abort_path.unlink(missing_ok=True)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._log.close()
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        self._lock.release()

    @property
    def writable(self) -> bool:
        """Whether messages are taken (ST-03)."""
        return self._open and self.failure is None

    @property
    def busy(self) -> bool:
        """Page cache busy (ST-04): a put is one step on the loop here, so nobody waits behind it."""
        return False

    # ---- load and recovery

    def _load_queues(self) -> None:
        root = self.settings.consume_queue_dir
        if not root.is_dir():
            return
        for topic_dir in sorted(path for path in root.iterdir() if path.is_dir()):
            for queue_dir in sorted(path for path in topic_dir.iterdir() if path.is_dir() and path.name.isdigit()):
                queue = ConsumeQueue(queue_dir, self.settings.consume_queue_bytes)
                self._queues[(topic_dir.name, int(queue_dir.name))] = queue
                queue.load()

    def _recover(self, *, clean: bool) -> None:
        todo = plan(facts_of(self._log), clean=clean, checkpoint_ms=self._checkpoint.safe_ms)
        if todo is None:
            for queue in self._queues.values():
                queue.delete()
            self._queues.clear()
            self._log.set_end(0)
            return
        scan = Scan(todo.scan_from)
        for message in good_records(self._log, todo.scan_from, scan, check_crc=self.settings.check_crc_on_recover):
            self._last_store_ms = message.store_timestamp_ms
        self._log.set_end(scan.end)
        if not clean:
            log.warning("unclean stop: log ends at offset=%s because of %s", scan.end, scan.stopped_by)
        for queue in self._queues.values():
            queue.truncate(scan.end)
        self._dispatch_missing(todo.scan_from if todo.dispatch_again else None)
        for queue in self._queues.values():
            queue.correct_min_offset(self._log.start)

    def _dispatch_missing(self, scan_from: int | None) -> None:
        """Write the consume queue units that the log has and the queues lack (RP-06, RC-08)."""
        reached = max((queue.max_physical for queue in self._queues.values()), default=-1)
        start = max(reached, self._log.start)
        if scan_from is not None:
            start = min(start, scan_from)
        if not self._dispatch_from(start):
            log.warning("a consume queue has a gap: all of them are written again from offset=%s", self._log.start)
            for queue in self._queues.values():
                queue.delete()
            if not self._dispatch_from(self._log.start):
                raise CorruptRecord(f"commit log from offset {self._log.start} on: queue offsets are not consecutive")

    def _dispatch_from(self, start: int) -> bool:
        count = 0
        for message in good_records(self._log, start, Scan(start), check_crc=False):
            transaction = message.sys_flag & TRANSACTION_MASK
            if transaction in (_PREPARED, _ROLLBACK):
                continue
            queue = self._queue(message.topic, message.queue_id)
            code = self._code_of(message)
            if not queue.append(message.queue_offset, message.physical_offset, message.store_bytes, code):
                return False
            self._dirty_queues.add((message.topic, message.queue_id))
            count += 1
        if count:
            log.info("dispatched again from offset=%s records=%s", start, count)
        return True

    def _code_of(self, message: Message) -> int:
        return tags_code(message.properties_raw)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if "/" in topic or topic in (".", "..") or "\0" in topic or not 0 < len(topic.encode()) <= 255:
                raise StoreError(f"topic {topic!r} cannot be a folder name")
            folder = self.settings.consume_queue_dir / topic / str(queue_id)
            queue = self._queues[(topic, queue_id)] = ConsumeQueue(folder, self.settings.consume_queue_bytes)
        return queue

    # ---- put

    def put(self, message: Message, code: int | None = None) -> PutResult:
        """Append one message. code overrides the tags code of its consume queue unit. Never raises for bad input."""
        refused = self._refuse(message)
        if refused is not None:
            return refused
        transaction = message.sys_flag & TRANSACTION_MASK
        in_queue = transaction not in (_PREPARED, _ROLLBACK)
        key = (message.topic, message.queue_id)
        try:
            queue = self._queues.get(key) or self._queue(*key)
            queue_offset = queue.max_offset if in_queue else 0
            store_ms = self._store_time()
            size = self._log.append(message, queue_offset, store_ms)
            if in_queue:
                if code is None:
                    code = tags_code(message.properties_raw)
                queue.append(queue_offset, message.physical_offset, size, code)
                self._dirty_queues.add(key)
                if self.on_append is not None:
                    self.on_append(message.topic, message.queue_id, queue_offset + 1, code)
        except StoreError as error:
            return self._put_failed(error)
        return PutResult(
            PutStatus.PUT_OK,
            message.physical_offset,
            size,
            queue_offset,
            store_ms,
            (),
            message.store_host,
            self._log.end,
        )

    def put_batch(self, messages: list[Message]) -> PutResult:
        """Append all or none, in one file, with consecutive queue offsets and one store time (ST-16, BAT-04)."""
        size = END_BLANK_BYTES
        for message in messages:
            refused = self._refuse(message)
            if refused is not None:
                return refused
            if message.sys_flag & TRANSACTION_MASK:
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="a batch cannot be transactional")
            size += (
                RECORD_FIXED_BYTES + 24 + len(message.body) + len(message.topic.encode()) + len(message.properties_raw)
            )
        if not messages:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        if size > self._log.file_bytes:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"a batch of {size} bytes exceeds a commit log file")
        first = messages[0]
        key = (first.topic, first.queue_id)
        offsets = []
        try:
            queue = self._queues.get(key) or self._queue(*key)
            self._log.room(size)
            start, store_ms = queue.max_offset, self._store_time()
            total = 0
            for index, message in enumerate(messages):
                written = self._log.append(message, start + index, store_ms)
                code = tags_code(message.properties_raw)
                queue.append(start + index, message.physical_offset, written, code)
                offsets.append(message.physical_offset)
                total += written
                if self.on_append is not None:
                    self.on_append(first.topic, first.queue_id, start + index + 1, code)
            self._dirty_queues.add(key)
        except StoreError as error:
            return self._put_failed(error)
        return PutResult(
            PutStatus.PUT_OK, offsets[0], total, start, store_ms, tuple(offsets), first.store_host, self._log.end
        )

    def _refuse(self, message: Message) -> PutResult | None:
        """Why a message cannot be stored at all (ST-03, ST-05, ST-06)."""
        if not self._open or self.failure is not None:
            return PutResult(
                PutStatus.SERVICE_NOT_AVAILABLE, reason=self.failure.message if self.failure else "stopped"
            )
        topic, body, properties = message.topic, len(message.body), len(message.properties_raw)
        if len(topic) > NAME_LENGTH_MAX or (not topic.isascii() and len(topic.encode()) > NAME_LENGTH_MAX):
            return PutResult(
                PutStatus.MESSAGE_ILLEGAL, reason=f"topic of {len(topic)} characters, at most {NAME_LENGTH_MAX}"
            )
        if properties > PROPERTIES_BYTES_MAX:
            return PutResult(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                reason=f"properties of {properties} bytes, at most {PROPERTIES_BYTES_MAX}",
            )
        limit = self.settings.message_bytes_max
        if body > limit or RECORD_FIXED_BYTES + body + properties + len(topic) > limit + RECORD_OVERHEAD_MAX:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"body of {body} bytes, at most {limit}")
        return None

    def _put_failed(self, error: StoreError) -> PutResult:
        log.error("put failed: %s", error)
        status = PutStatus.CREATE_MAPPED_FILE_FAILED
        if isinstance(error, DiskFull):
            status = PutStatus.SERVICE_NOT_AVAILABLE
        return PutResult(status, reason=error.message)

    def _store_time(self) -> int:
        """Now, but never before the last record's time (ST-10)."""
        now = self._clock_ms()
        if now < self._last_store_ms:
            return self._last_store_ms
        self._last_store_ms = now
        return now

    # ---- confirmation and flush

    @property
    def confirms_at_once(self) -> bool:
        """Whether a put needs no waiting before its answer (ASYNC_FLUSH)."""
        return self.settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH

    async def wait_confirmed(self, result: PutResult) -> PutStatus:
        """The final status of a put: with SYNC_FLUSH, when an fdatasync has covered it (FLU-01, FLU-04)."""
        if result.status is not PutStatus.PUT_OK or self.confirms_at_once:
            return result.status
        try:
            done = await self._flusher.wait(result.end_offset, self.settings.sync_flush_timeout_ms)
        except FlushFailed:
            return PutStatus.UNKNOWN_ERROR
        return PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT

    def _stop_writing(self, failure: SaturnError) -> None:
        self.failure = failure

    async def _flush_now_and_then(self) -> None:
        settings = self.settings
        loop = asyncio.get_running_loop()
        last_log = last_queue = loop.time()
        while self.failure is None:
            await asyncio.sleep(settings.flush_interval_ms / 1000)
            now = loop.time()
            thorough = (now - last_log) * 1000 >= settings.flush_thorough_ms
            if thorough or self._flusher.dirty_pages() >= settings.flush_least_pages:
                self._flusher.start()
                last_log = now if thorough else last_log
            if self._dirty_queues and (now - last_queue) * 1000 >= settings.flush_queue_interval_ms:
                last_queue = now
                dirty = [self._queues[key] for key in self._dirty_queues if key in self._queues]
                self._dirty_queues.clear()
                try:
                    await loop.run_in_executor(None, self._flush_queues, dirty)
                    self._note_flushed()
                    await loop.run_in_executor(None, self._checkpoint.write)
                except (OSError, StoreError) as error:
                    self._stop_writing(FlushFailed(f"flush of consume queues failed: {error}"))
                    log.critical("flush of consume queues failed: %s; the store takes no more messages", error)

    def _flush_queues(self, queues: Iterable[ConsumeQueue]) -> None:
        for queue in queues:
            queue.flush()

    def _note_flushed(self) -> None:
        if self._flusher.flushed >= self._log.end:
            self._checkpoint.commit_log_ms = self._last_store_ms
        self._checkpoint.consume_queue_ms = self._last_store_ms

    # ---- get

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        accept: Callable[[int], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from offset on, with the original's limits and corrections (BP-02..04)."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            over = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(over, high, low, high)
        scan_bytes = max(_SCAN_BYTES_MIN, UNIT_BYTES * max_count)
        units = queue.slice(offset, scan_bytes // UNIT_BYTES * UNIT_BYTES)
        if not units:
            return GetResult(GetStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        self._gather(result, units, max_count, max_bytes, accept)
        return result

    def _gather(
        self,
        result: GetResult,
        units: memoryview,
        max_count: int,
        max_bytes: int | None,
        accept: Callable[[int], bool] | None,
    ) -> None:
        settings = self.settings
        on_disk = self._log.end - self._memory_bytes  # what lies before is not counted on to be in memory
        first = self._log.start
        ranges: list[list[int]] = []
        total = count = scanned = 0
        status = GetStatus.NO_MATCHED_MESSAGE
        skip_to = -1
        for physical, size, code in UNIT.iter_unpack(units):
            if physical < skip_to:
                scanned += 1
                continue
            if physical < first and size != FILLER_SIZE:
                if not count:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                skip_to = first
                scanned += 1
                continue
            if count:
                if physical < on_disk:
                    bytes_max, count_max = settings.transfer_bytes_in_disk, settings.transfer_count_in_disk
                else:
                    bytes_max, count_max = settings.transfer_bytes_in_memory, settings.transfer_count_in_memory
                if max_bytes is not None and max_bytes < bytes_max:
                    bytes_max = max_bytes
                if count >= max_count or count >= count_max or total + size > bytes_max:
                    break
            scanned += 1
            if size == FILLER_SIZE or (accept is not None and not accept(code)):
                continue
            if ranges and ranges[-1][1] == physical:
                ranges[-1][1] = physical + size
            else:
                ranges.append([physical, physical + size])
            total += size
            count += 1
        file_bytes = self._log.file_bytes
        for start, end in ranges:
            while start < end:
                stop = min(end, start - start % file_bytes + file_bytes)
                view = self._log.view(start, stop - start)
                if view is not None:
                    result.buffers.append(view)
                start = stop
        result.status = GetStatus.FOUND if count else status
        result.total_bytes, result.count = total, count
        result.next_offset += scanned
        result.behind_memory = bool(ranges) and ranges[-1][0] < on_disk

    def read_record(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The record at a physical offset; None when there is none, or size is not its size (ST-18)."""
        head = self._log.record_at(physical_offset)
        if head is None or head.size < RECORD_FIXED_BYTES or (size is not None and size != head.size):
            return None
        view = self._log.view(physical_offset, head.size)
        return bytes(view) if view is not None else None

    # ---- offsets

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset still there; 0 for a queue that is not (CQ-11)."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The next queue offset; 0 for a queue that is not there (CQ-11)."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the record stored at timestamp_ms, else of the nearer neighbour; a tie goes left (CQ-06).

        0 for an empty queue, or when a record cannot be read.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == queue.min_offset:
            return 0
        low, high = queue.min_offset, queue.max_offset - 1
        left = right = -1
        left_ms = right_ms = -1
        while low <= high:
            middle = (low + high) // 2
            stored_ms = self.store_time(topic, queue_id, middle)
            if stored_ms < 0:
                return 0
            if stored_ms == timestamp_ms:
                return middle
            if stored_ms > timestamp_ms:
                right, right_ms, high = middle, stored_ms, middle - 1
            else:
                left, left_ms, low = middle, stored_ms, middle + 1
        if left < 0:
            return right
        if right < 0:
            return left
        return right if timestamp_ms - left_ms > right_ms - timestamp_ms else left

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Unix ms at which the message at a queue offset was stored; -1 when there is none."""
        queue = self._queues.get((topic, queue_id))
        unit = queue.unit(offset) if queue else None
        return self._log.store_time(unit[0]) if unit else -1

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Commit log offset of the message at a queue offset; -1 when there is none."""
        queue = self._queues.get((topic, queue_id))
        unit = queue.unit(offset) if queue else None
        return unit[0] if unit else -1

    def on_disk(self, physical_offset: int) -> bool:
        """Whether a record is too far back to be counted on in memory (BP-04)."""
        return self._log.end - physical_offset > self._memory_bytes

    @property
    def min_physical_offset(self) -> int:
        return self._log.start

    @property
    def max_physical_offset(self) -> int:
        return self._log.end

    @property
    def flushed_offset(self) -> int:
        """Everything before it is on disk."""
        return self._flusher.flushed

    def topic_queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every consume queue."""
        return list(self._queues)

    def delete_topic(self, topic: str) -> None:
        """Remove the consume queues of a topic; its records stay in the log until they expire."""
        for key in [key for key in self._queues if key[0] == topic]:
            self._queues.pop(key).delete()
            self._dirty_queues.discard(key)
        folder = self.settings.consume_queue_dir / topic
        if topic and "/" not in topic and topic not in (".", "..") and folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)

    def disk_ratio(self) -> float:
        """Used share of the commit log's partition, 0..1."""
        usage = shutil.disk_usage(self.settings.root)
        return usage.used / usage.total if usage.total else 0.0


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return _DEFAULT_MEMORY
