"""The message store: one commit log, a consume queue per topic and queue, an index, and their flush and recovery.

The log is the only truth. A consume queue unit and an index entry repeat what a record says, and both can be rebuilt from the
log; a message exists when its record does. Hence the order of everything here: append to the log, confirm, dispatch to queue
and index, and in recovery: find the end of the log first, then bring queues and index to that end.

    put -> append (log, mapped memory) -> confirmed at `end` -> dispatch (consume queue, index, waiting pulls) -> checkpoint

Four offsets into the log describe the state, each at most the one before: the end of what was appended, what is confirmed,
`dispatched` (queues and index cover every record before it), and the recovery point of the checkpoint, from which the next
start reads the log. A record between `dispatched` and the end waits in `unconfirmed`; after a failure these are dropped, never
half dispatched.

Who confirms is the log's affair (`store/log/log.py`): this disk, the pool of buffers, a slave, or a Raft quorum. The store only
compares positions, so replication adds no branch here.

Threading: everything runs on the event loop's thread except writing to disk, so there is no put lock: a put is one
uninterrupted step (ST-10). The flush and maintenance code uses threads for fsync, file creation and deletion.

A failed write is final. `stop_writing` remembers the first failure, every later put is refused with it, and only a new start, with
recovery, writes again: after a failed fsync it is unknown what the kernel kept. A full disk (`refusal`) passes when space returns.

Visibility: a message becomes visible to consumers when it is confirmed: immediately with ASYNC_FLUSH, once it is durable with
SYNC_FLUSH (DUR-03), once it is committed to the file with the transient pool (MF-02).

Requirements: ST-01..ST-20, MF-01..MF-07, MF-09, MF-11..MF-14, RP-01..RP-07, RC-01..RC-14, FLU-01..FLU-10, DEL-01..DEL-10,
DUR-01, DUR-03..DUR-10, DUR-13..DUR-18, DUR-20.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from saturnmq.protocol.codes import NAME_LENGTH_MAX, SCHEDULE_TOPIC, TRANSACTION_MASK, SysFlag
from saturnmq.protocol.errors import FlushFailed, ResourceExhausted, SaturnError, StoreError
from saturnmq.protocol.message import PROPERTIES_BYTES_MAX, RECORD_FIXED_BYTES, Message
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, PhysicalOffset, QueueOffset
from saturnmq.protocol.properties import tags_code
from saturnmq.slices import Steps, completed
from saturnmq.store import batch, cold, reading
from saturnmq.store.append_watch import AppendWatch
from saturnmq.store.batch import Entry
from saturnmq.store.delay import delivery_code
from saturnmq.store.files import capacity
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.lock_file import LockFile
from saturnmq.store.files.reserve import Reserve
from saturnmq.store.index.index_queue import IndexQueue, ReadLog
from saturnmq.store.index.message_index import MessageIndex
from saturnmq.store.log.commit_log import plain_log
from saturnmq.store.log.log import AppendRefused, Confirmed, Log, Position, wait_confirmed
from saturnmq.store.maintenance.maintenance import FLUSH_TIMEOUT_MS, Maintenance
from saturnmq.store.maintenance.retention import FULL_PERCENT, Usage
from saturnmq.store.proposals import ProposalBatch
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.store.queue.queues import LIST_NAME, QueueTable
from saturnmq.store.recovery import opening
from saturnmq.store.recovery.checkpoint import Checkpoint
from saturnmq.store.recovery.hints import start_refusal
from saturnmq.store.recovery.recover import SkipLog, messages_from
from saturnmq.store.replicas import ReplicaAcks, when_replicated
from saturnmq.store.results import GetResult, PutResult, PutStatus, QueryResult
from saturnmq.store.settings import FlushDiskType, StoreSettings

log = logging.getLogger(__name__)

_REJECTIONS_PER_LOG_LINE: Final = 50_000
_FAILED_PUT_LOG_S: Final = 1.0  # senders decide how many puts fail, so at most one log line in this time
_ZERO_SECTOR: Final = bytes(512)  # a record with such a run looks like a torn one after a crash (recover.is_torn)
_PREPARED: Final = int(SysFlag.PREPARED)
_ROLLBACK: Final = int(SysFlag.ROLLBACK)
_NOT_IN_QUEUE: Final = (_PREPARED, _ROLLBACK)


Recover: TypeAlias = Callable[["MessageStore", Callable[[int, int], None] | None], None]
"""Loads and recovers a store; see `recovery.opening.open_store`."""


def wall_clock_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000


class MessageStore:
    """The store of one broker; see docs/decisions/0001 for the interface.

    Callbacks, all on the event loop:

    - on_append(topic, queue id, next queue offset, tags code): a message became visible.
    - on_failure(error): called once, when the store stops accepting messages because the disk failed.
    - read_log(offset): the messages of the log from there on, for an index that lags or is rebuilt.
    - replay_from(dispatched): the position from which recovery must read the log for what depends on it besides queues and index.
    - bit_map(topic, encoded properties): filter bits of a message for the consume queue's extension, if that is on (CQ-14);
      None means no bits. Must be set before `open`.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        log: Log | None = None,
        recover: Recover | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        """log: where records are kept, a commit log by default. recover: loads the store over that log."""
        self.settings = settings
        self.on_append: Callable[[str, int, int, int], None] | None = None
        self.on_failure: Callable[[SaturnError], None] | None = None
        self.append_watch = AppendWatch(settings.page_cache_busy_ms)
        self.bit_map: Callable[[str, bytes], bytes | None] | None = None
        self.replay_from: Callable[[PhysicalOffset], PhysicalOffset] = lambda dispatched: dispatched
        self.failure: SaturnError | None = None
        self.disk = disk or Disk()
        self.clock_ms = clock_ms
        self._recover: Recover = recover or opening.open_store
        self.log: Log = log or plain_log(settings, self.disk)
        self.quorum = self.log.quorum
        # Whether a put is confirmed without waiting for a flush (ASYNC_FLUSH).
        self.confirms_at_once = settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH and not self.quorum
        self.acknowledges_at_once = self.confirms_at_once  # not with SYNC_MASTER
        self.replicas: ReplicaAcks | None = None
        self.queues = QueueTable(
            settings.consume_queue_dir,
            settings.consume_queue_bytes,
            self.disk,
            settings.root / LIST_NAME,
            lambda: self.log.first_position,
            settings.queue_extension,
            log_file_bytes=settings.commit_log_bytes,
        )
        self.index: MessageIndex | None = None
        if settings.message_index_enable:
            self.index = MessageIndex(
                settings.index_dir,
                settings.index_slots,
                settings.index_entries,
                self.disk,
                clock_ms,
                allocate=settings.index_allocated,
            )
        self.checkpoint = Checkpoint(settings.checkpoint_path, self.disk)
        self.reserve = Reserve(settings.root / "reserve", settings.reserve_bytes, self.disk)
        self.log.listen(self._flushed, self.stop_writing)
        # Why messages are rejected although the disk works: it is full, or the index cannot grow. Empty: accepted.
        self.refusal = ""
        self.last_store_ms = 0
        self.dispatched = PhysicalOffset(0)  # consume queues and index cover every record before this offset
        skipped = SkipLog()
        self.read_log: ReadLog = lambda offset: messages_from(self.log, offset, self.dispatched, skipped)
        self._maintenance = Maintenance(self)
        self.scrub = self._maintenance.scrub
        self._lock = LockFile(settings.root / "lock")
        self._open = False
        self._refused = self._failed_puts = 0  # puts rejected because the store is not writable, and those that failed
        self._failure_logged = -_FAILED_PUT_LOG_S  # time.monotonic() of the last log line about a failed put
        self._direct = self.confirms_at_once and not self.log.pooled
        self._proposals = ProposalBatch(self)
        # Appended records that are not visible yet: end position, consume queue if consumers see it, message, tags code.
        self.unconfirmed: deque[tuple[PhysicalOffset, ConsumeQueue | None, Message, int]] = deque()
        self.index_queue = IndexQueue(self.index, self) if self.index is not None else None
        self.memory_bytes = capacity.memory_bytes() * settings.memory_percent_max // 100

    # ---- life cycle

    def open(self, rebuild: Callable[[int, int], None] | None = None) -> None:
        """Lock, load and recover the store. Raises StoreError naming file and offset; the lock is released then.

        If rebuild is given, consume queues and index are rebuilt from the log; it is called as progress(bytes_read, bytes_total).
        """
        with contextlib.suppress(StoreError):  # LockFile.acquire reports an unusable folder with a better message
            self.disk.make_folder(self.settings.root)
        self._lock.acquire()
        try:
            self._recover(self, rebuild)
        except (OSError, SaturnError) as error:
            self.close_files()
            refusal = start_refusal(error, self.settings, quorum=self.quorum)
            if refusal is error:
                raise
            raise refusal from error
        self._open = True

    def begin_maintenance(self, boundaries: Sequence[PhysicalOffset]) -> None:
        """Start maintenance after recovery. boundaries: offsets at which records begin, ascending, from the start of the scan."""
        self._maintenance.begin_at(boundaries)

    def write_note(self) -> None:
        """Write a checkpoint that states that everything is durable; recovery has just synced it. Raises StoreError."""
        checkpoint = self.checkpoint
        stored_ms = max(self.last_store_ms, checkpoint.commit_log_ms)
        checkpoint.commit_log_ms = checkpoint.consume_queue_ms = stored_ms
        checkpoint.write(self._maintenance.note(self.dispatched))

    async def write_all(self) -> None:
        """Make everything appended so far durable, with consume queues, index and the checkpoint. Raises StoreError."""
        self.commit()
        await wait_confirmed(self.log, self.log.readable_end, FLUSH_TIMEOUT_MS)
        await self._maintenance.write_all()

    async def start(self) -> None:
        """Start background flushing, maintenance and the indexing of what recovery has left, on the running loop."""
        self._maintenance.start()

    async def stop(self) -> None:
        """Flush everything and close; `abort` is removed only if all of it is durable (RC-02). Raises StoreError."""
        if not self._open:
            return
        self._open = False
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._flush_and_close)
            stack.push_async_callback(self.log.stop_appends)
            if self.index_queue is not None:
                await self.index_queue.finish_reading()

    async def _flush_and_close(self) -> None:
        await self._maintenance.stop()
        try:
            self.commit()
            await self.log.stop_flush()
            if self.index_queue is not None:
                await self.index_queue.finish()
            await self._maintenance.write_all()
            self.log.drop_spare()
            if self.failure is None and self.log.sums is not None:
                self.log.sums.discard()  # the checkpoint covers everything
            if self.failure is None and (self.index_queue is None or self.index_queue.complete):
                self.disk.unlink(self.settings.abort_path)
                self.disk.sync_folder(self.settings.abort_path.parent)
        finally:
            self.close_files()

    async def abort(self) -> None:
        """Close without flushing, as a killed process leaves the files; a flush that has begun is awaited."""
        await self._maintenance.stop()
        await self.log.finish_flush()
        self._open = False
        self.close_files()

    async def clean(self, *, trust_clock: bool = False) -> None:
        """Run retention once, now. trust_clock: even right after the clock jumped. Raises StoreError, OSError."""
        await self._maintenance.clean(trust_clock=trust_clock)

    def close_files(self) -> None:
        """Close all files without flushing and release the lock."""
        self.log.close()
        self.queues.close()
        if self.index is not None and self.index_queue is not None:
            self.index_queue.cancel()
            self.index.close()
        self.disk.stop_threads()
        self._lock.release()

    @property
    def writable(self) -> bool:
        """Whether messages are accepted (ST-03)."""
        return self._open and self.failure is None and not self.refusal and not self.log.refusal

    @property
    def busy(self) -> bool:
        """Whether puts should be rejected for now: the transient pool has no buffer left (MF-13).

        Apache RocketMQ also reports busy if the put lock is held too long (ST-04). A put is one step on the loop here: no other put
        can ask meanwhile, `append_watch` reports it afterwards.
        """
        return self.log.pooled and self.log.free_buffers == 0

    # ---- put

    def put(self, message: Message, code: int | None = None) -> PutResult:
        """Append one message. code, if given, replaces the tags code of its consume queue unit. Invalid input never raises."""
        if self._proposals.waiting:
            self._proposals.propose()
        refused = self._refuse(message)
        if refused is not None:
            return refused
        in_queue = (message.sys_flag & TRANSACTION_MASK) not in _NOT_IN_QUEUE
        try:
            queue = self.queues.by_key.get((message.topic, message.queue_id)) or self.queues.get_or_make(
                message.topic, message.queue_id
            )
            queue_offset = queue.next_offset if in_queue else QueueOffset(0)
            store_ms = self.next_store_ms()
            began = time.monotonic()
            end = self.log.append(message, queue_offset, store_ms)
            self.append_watch.note(time.monotonic() - began)
        except StoreError as error:
            return self.put_failed(error)
        if code is None:
            code = tags_code(message.properties_raw) if message.tags_code is None else message.tags_code
        if message.topic == SCHEDULE_TOPIC:
            code = delivery_code(message, self.settings.message_delay_level) or code
        if in_queue:
            queue.next_offset = QueueOffset(queue_offset + 1)
        if self._direct:
            self.dispatch(queue if in_queue else None, message, code)
            self.dispatched = end
        else:
            self.unconfirmed.append((end, queue if in_queue else None, message, code))
            self.wake_flusher()
        return PutResult(
            PutStatus.PUT_OK,
            message.physical_offset,
            message.store_bytes,
            queue_offset,
            store_ms,
            (),
            message.store_host,
            end,
        )

    def put_soon(self, message: Message, callback: Confirmed) -> None:
        """Put a message together with the others of this event-loop iteration, with one append.

        Puts through other methods are appended after them. The callback receives the final status and the reason of a refusal;
        physical and queue offset are then set in the message.
        """
        self._proposals.add(message, callback)

    def put_batch(self, messages: list[Message]) -> PutResult:
        """Append all messages or none, with consecutive queue offsets and one store time (ST-16, BAT-04, DL-A03, DL-B08)."""
        if not messages:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        self._proposals.propose()
        queues: list[ConsumeQueue | None] = []
        for message in messages:
            target = self.target_of(message)
            if isinstance(target, PutResult):
                return target
            if message.sys_flag & TRANSACTION_MASK:
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="a batch cannot be transactional")
            queues.append(target)
        try:
            end = self.append_all(messages, queues)
        except StoreError as error:
            return self.put_failed(error)
        first, offsets = messages[0], tuple([message.physical_offset for message in messages])
        return PutResult(
            PutStatus.PUT_OK, offsets[0], sum([message.store_bytes for message in messages]), first.queue_offset,
            first.store_timestamp_ms, offsets, first.store_host, end,
        )  # fmt: skip

    def target_of(self, message: Message) -> ConsumeQueue | PutResult | None:
        """The consume queue of a message, None if it belongs to none, or the PutResult with which it is refused."""
        refused = self._refuse(message)
        if refused is not None:
            return refused
        if (message.sys_flag & TRANSACTION_MASK) in _NOT_IN_QUEUE:
            return None
        try:
            return self.queues.get_or_make(message.topic, message.queue_id)
        except StoreError as error:
            return self.put_failed(error)

    def append_all(self, messages: Sequence[Message], queues: Sequence[ConsumeQueue | None]) -> Position:
        """Append all messages or none, each with the next offset of its queue (DL-B05). Raises AppendRefused, StoreError."""
        store_ms, numbered = self.next_store_ms(), 0
        try:
            for message, queue in zip(messages, queues, strict=True):
                message.queue_offset = QueueOffset(0)
                if queue is not None:
                    message.queue_offset = queue.next_offset
                    queue.next_offset = QueueOffset(queue.next_offset + 1)
                numbered += 1
                message.store_timestamp_ms = store_ms
            began = time.monotonic()
            end = self.log.append_all(messages)
            self.append_watch.note(time.monotonic() - began)
        except BaseException:
            for queue in queues[:numbered]:
                if queue is not None:
                    queue.next_offset = QueueOffset(queue.next_offset - 1)
            raise
        for message, queue in zip(messages, queues, strict=True):
            code, record_end = self.code_of(message), PhysicalOffset(message.physical_offset + message.store_bytes)
            if self._direct:
                self.dispatch(queue, message, code)
                self.dispatched = record_end
            else:
                self.unconfirmed.append((record_end, queue, message, code))
        self.wake_flusher()
        return end

    def code_of(self, message: Message) -> int:
        """Tags code of the message's consume queue unit; for a delayed message, its delivery time in ms."""
        delivery_ms = delivery_code(message, self.settings.message_delay_level)
        return tags_code(message.properties_raw) if delivery_ms is None else delivery_ms

    def discard_unconfirmed(self) -> None:
        """Forget appended records that another leader may replace; queue offsets continue after the visible ones (DL-C03)."""
        self.unconfirmed.clear()
        for queue in self.queues.by_key.values():
            queue.next_offset = queue.max_offset

    def put_entries(self, common: Message, entries: Sequence[Entry]) -> PutResult:
        """As `put_batch`, for messages that share all fields of common except body, properties and flag, given by the entries."""
        if self._direct and entries and not common.sys_flag & TRANSACTION_MASK:
            result = batch.put_entries(self, common, entries)
            if result is not None:
                return result
        return self.put_batch(
            [replace(common, body=body, properties_raw=properties, flag=flag) for body, properties, flag in entries]
        )

    def _refuse(self, message: Message) -> PutResult | None:
        """The result that rejects a message which cannot be stored, else None (ST-03, ST-05, ST-06)."""
        if self.log.refusal:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self.log.refusal)
        if not self._open or self.failure is not None or self.refusal:
            reason = self.failure.message if self.failure else self.refusal or "stopped"
            if self._refused % _REJECTIONS_PER_LOG_LINE == 0:
                log.warning("put refused count=%s reason=%s", self._refused + 1, reason)
            self._refused += 1
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
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
        if b"\0" in message.properties_raw and (
            message.properties_raw.endswith(b"\0") or _ZERO_SECTOR in message.properties_raw
        ):
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="properties end with a zero byte, or have 512 in a row")
        limit = self.settings.message_bytes_max
        if body > limit:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"body of {body} bytes, at most {limit}")
        return None

    def put_failed(self, error: StoreError) -> PutResult:
        """The result of a put that raised; a resource that is used up is a temporary refusal."""
        if isinstance(error, AppendRefused):
            return PutResult(error.status, reason=error.message)
        self._failed_puts += 1
        now = time.monotonic()
        if now - self._failure_logged >= _FAILED_PUT_LOG_S:
            self._failure_logged = now
            log.error("put failed count=%s reason=%s", self._failed_puts, error)
        temporary = isinstance(error, ResourceExhausted)
        status = PutStatus.SERVICE_NOT_AVAILABLE if temporary else PutStatus.CREATE_MAPPED_FILE_FAILED
        return PutResult(status, reason=error.message)

    def next_store_ms(self) -> int:
        """The current time in Unix ms, but never earlier than the last record's store time (ST-10)."""
        now = self.clock_ms()
        if now < self.last_store_ms:
            return self.last_store_ms
        self.last_store_ms = now
        return now

    # ---- dispatch: appended records become visible (RP-01..04)

    def dispatch(self, queue: ConsumeQueue | None, message: Message, code: int) -> None:
        """Append consume queue unit and index entries, notify `on_append`. queue is None if consumers never see it (RP-02)."""
        if queue is not None:
            if (
                queue.append(message.queue_offset, message.physical_offset, message.store_bytes, code)
                if queue.extension is None
                else self.append_extended(queue, message, code)
            ):
                self.queues.mark_dirty((message.topic, message.queue_id))
            else:
                self.stop_writing(
                    FlushFailed(
                        f"consume queue {message.topic}/{message.queue_id} is missing units before {message.queue_offset}"
                    )
                )
        if self.index_queue is not None and (message.sys_flag & TRANSACTION_MASK) != _ROLLBACK:
            record = (message.topic, message.properties_raw, message.physical_offset, message.store_timestamp_ms)
            if not self.index_queue.add(record):
                self.refusal = self.index_queue.refusal
        if queue is not None and self.on_append is not None:
            self.on_append(message.topic, message.queue_id, message.queue_offset + 1, code)

    def append_extended(self, queue: ConsumeQueue, message: Message, code: int) -> bool:
        """Append the unit and, if the queue has an extension, its content (CQ-13, CQ-14); see `ConsumeQueue.append`."""
        if queue.extension is None:
            return queue.append(message.queue_offset, message.physical_offset, message.store_bytes, code)
        bits = self.bit_map(message.topic, message.properties_raw) if self.bit_map is not None else None
        return queue.append_extended(
            message.queue_offset,
            message.physical_offset,
            message.store_bytes,
            code,
            message.store_timestamp_ms,
            bits,
        )

    def put_in_index(self) -> bool:
        """Write queued entries to the index, for a bounded time. False if the disk rejects them, and messages must be (IX-09)."""
        if self.index_queue is None or self.index_queue.put_in():
            return True
        self.refusal = self.index_queue.refusal
        return False

    def _flushed(self, end: PhysicalOffset) -> None:
        if not self.confirms_at_once:
            self._confirm(end)

    def commit(self) -> None:
        """Transient pool: copy buffered bytes to the files, which makes them readable (FLU-07)."""
        if self.log.pooled:
            self.log.commit()
            self._confirm(self.log.readable_end)

    def _confirm(self, end: PhysicalOffset) -> None:
        pending = self.unconfirmed
        while pending and pending[0][0] <= end:
            record_end, queue, message, code = pending.popleft()
            self.dispatch(queue, message, code)
            self.dispatched = record_end

    # ---- confirmation and flush

    def when_confirmed(self, result: PutResult, callback: Confirmed) -> None:
        """Run the callback with the final status of a put and the reason of a failure, possibly before this call returns.

        With SYNC_FLUSH, that is after an fdatasync has covered it or timed out (FLU-01, FLU-04, DUR-01); over a quorum, once
        the put is committed, or has failed (DL-B07); with SYNC_MASTER, once a slave has it, too (SW-02).
        """
        if result.status is not PutStatus.PUT_OK or self.acknowledges_at_once:
            callback(result.status, result.reason)
        elif self.replicas is None:
            self.log.when_confirmed(result.end_offset, self.settings.sync_flush_timeout_ms, callback)
        else:
            when_replicated(self, self.replicas, result.end_offset, callback)

    def replicate_before_acknowledgement(self, replicas: ReplicaAcks) -> None:
        """Acknowledge later sends that wait once a replica has them, too (SYNC_MASTER)."""
        self.replicas = replicas
        self.acknowledges_at_once = False

    async def wait_confirmed(self, result: PutResult) -> PutStatus:
        """The coroutine form of `when_confirmed`."""
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self.when_confirmed(result, lambda status, _: None if future.done() else future.set_result(status))
        return await future

    def flush_before_acknowledgement(self) -> None:
        """Change from ASYNC_FLUSH to SYNC_FLUSH: later sends are confirmed once they are durable."""
        self.confirms_at_once = self.acknowledges_at_once = False
        self._direct = False

    def wake_flusher(self) -> None:
        """With SYNC_FLUSH, start a flush so that a message whose sender does not wait also becomes durable and visible (FLU-05).

        A group does so by itself, once per event-loop iteration.
        """
        if not self.confirms_at_once and not self.quorum and self._maintenance.running:
            self.log.start_flush()

    def stop_writing(self, failure: SaturnError) -> None:
        """Stop accepting messages after a disk failure and mark the store for the next start (DUR-06, DUR-07)."""
        if self.failure is None:
            self.failure = failure
            opening.mark_failure(self, failure)
            if self.on_failure is not None:
                self.on_failure(failure)

    def recheck(self, usage: Usage) -> None:
        """Accept or reject messages according to the current disk usage and index state (DEL-04..06, IX-09, DUR-15)."""
        self.refusal = ""
        worst = max(usage.commit_log, usage.consume_queue)
        if worst > FULL_PERCENT:
            self.refusal = f"the disk is full: CL: {usage.commit_log}% CQ: {usage.consume_queue}% INDEX: {usage.index}%"
        else:
            self.put_in_index()

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
        accept: Callable[[int], bool] | None = None,
        accept_record: Callable[[bytes], bool] | None = None,
        accept_extension: Callable[[int, bytes], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from offset on, with the limits and offset corrections of Apache RocketMQ (BP-02..04).

        Filters are applied in this order: accept to the unit's tags code; accept_extension to store time (Unix ms) and bit
        map, if the unit has an extension; accept_record to the encoded properties of the record. next_offset skips what they
        reject. A non-zero bulk_bytes replaces the transfer limits for records in memory.

        Raises CorruptRecord if the first record is damaged (DUR-10).
        """
        return reading.get(
            self, topic, queue_id, offset, max_count, max_bytes, bulk_bytes, accept, accept_record, accept_extension
        )

    def cold_read(
        self, topic: str, queue_id: int, offset: QueueOffset, max_count: int, bytes_max: int = 0
    ) -> Callable[[], None] | None:
        """Work for `disk.read_threads` so that `get` does not wait for the disk; None if it does not anyway."""
        return cold.cold_read(self, topic, queue_id, offset, max_count, bytes_max)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records whose topic and key have the given hash, stored in the time range, ascending (IX-06, IX-07)."""
        return completed(self.query_steps(topic, key, max_count, begin_ms, end_ms))

    def query_steps(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Steps[QueryResult]:
        """As `query`, in steps: the index may hold millions of entries that share a slot with the key."""
        return reading.query(self, topic, key, max_count, begin_ms, end_ms)

    def read_record(self, physical_offset: PhysicalOffset, size: int | None = None) -> bytes | None:
        """The record at a physical offset; None if there is none or its size differs from size (ST-18, DUR-10)."""
        head = reading.place_of(self, physical_offset)
        if head is None or head[0] < RECORD_FIXED_BYTES or (size is not None and size != head[0]):
            return None
        view = self.log.view(physical_offset, head[0])
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
        return reading.offset_by_time(self, topic, queue_id, timestamp_ms)

    def store_time(self, topic: str, queue_id: int, offset: QueueOffset) -> int:
        """Store time (Unix ms) of the message at a queue offset; -1 if there is none."""
        queue = self.queues.get((topic, queue_id))
        unit = queue.unit(offset) if queue else None
        return self.log.store_time(unit[0]) if unit else -1

    def properties(self, topic: str, queue_id: int, offset: QueueOffset) -> bytes | None:
        """Encoded properties of the message at a queue offset; None if there is none."""
        queue = self.queues.get((topic, queue_id))
        unit = queue.unit(offset) if queue else None
        return reading.properties_at(self, unit[0], unit[1]) if unit else None

    def physical_offset(self, topic: str, queue_id: int, offset: QueueOffset) -> PhysicalOffset:
        """Commit log offset of the message at a queue offset; -1 if there is none."""
        queue = self.queues.get((topic, queue_id))
        unit = queue.unit(offset) if queue else None
        return unit[0] if unit else NO_PHYSICAL_OFFSET

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

    @property
    def behind_bytes(self) -> int:
        """Bytes appended but not visible to consumers yet (RP-01)."""
        return self.log.end - self.dispatched

    def topic_queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every consume queue."""
        return list(self.queues.by_key)

    # ---- deletion

    def delete_topic(self, topic: str) -> None:
        """Delete the consume queues of a topic; its records stay in the log until they expire."""
        deque(self.deleting_topics({topic}), maxlen=0)

    def deleting_topics(self, topics: Container[str]) -> Iterator[None]:
        """As `delete_topic`, for several topics: the queues are deleted at once, their files in steps."""
        return self.queues.removing([key for key in self.queues.by_key if key[0] in topics])

    def delete_expired_files(self) -> None:
        """Arm deletion of expired files in the next maintenance runs, at any hour (DEL-08)."""
        self._maintenance.arm()

    def deleting_expired_queues(self, keep: Sequence[str] = ()) -> Generator[None, None, int]:
        """Delete queues whose last record has left the log, except those of the topics in keep (DEL-10). Returns their number.

        The queues are deleted at once, their files in steps.
        """
        start = self.log.first_position
        expired = [key for key, queue in self.queues.by_key.items() if key[0] not in keep and queue.is_expired(start)]
        yield from self.queues.removing(expired)
        return len(expired)

    def disk_usage(self) -> Usage:
        """Current usage of the file systems in percent; of several commit log folders the emptiest counts (DEL-05)."""
        used, settings = capacity.used_percent, self.settings
        return Usage(
            min(map(used, settings.commit_log_dirs)), used(settings.consume_queue_dir), used(settings.index_dir)
        )
