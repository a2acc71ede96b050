"""The message store: one commit log, a consume queue per topic and queue, an index, and their flush and recovery.

The log is the only truth. A consume queue unit and an index entry repeat what a record says, and both can be rebuilt from the
log; a message exists when its record does. Hence the order of everything here: append to the log, confirm, dispatch to queue
and index, and in recovery: find the end of the log first, then bring queues and index to that end.

    put -> append (log, mapped memory) -> confirmed at `end` -> dispatch (consume queue, index, waiting pulls) -> checkpoint

Four offsets into the log describe the state, each at most the one before: the end of what was appended, what is confirmed,
`dispatched` (queues and index cover every record before it), and the recovery point of the checkpoint, from which the next
start reads the log. A record between `dispatched` and the end waits in `_unconfirmed`; after a failure these are dropped, never
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
from collections import deque
from collections.abc import Callable, Collection, Container, Generator, Iterator, Sequence
from itertools import count, repeat
from time import monotonic, time_ns
from typing import Final, TypeAlias

from saturnmq.log_limit import LogLimit
from saturnmq.protocol.codes import NAME_LENGTH_MAX, NOT_IN_QUEUE, ROLLED_BACK, TRANSACTION_MASK
from saturnmq.protocol.errors import ResourceExhausted, SaturnError, StoreError
from saturnmq.protocol.message import PROPERTIES_BYTES_MAX, Entry, Message
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.protocol.properties import tags_code
from saturnmq.store.append_watch import AppendWatch
from saturnmq.store.delay import TIMED_TOPICS, unit_code
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.lock_file import LockFile
from saturnmq.store.files.record_sums import Sum
from saturnmq.store.index.message_index import MessageIndex, Record
from saturnmq.store.log.commit_log import plain_log
from saturnmq.store.log.log import AppendRefused, Group, Log, Position, Space, wait_confirmed
from saturnmq.store.maintenance.maintenance import FLUSH_TIMEOUT_MS, Maintenance
from saturnmq.store.proposals import ProposalBatch
from saturnmq.store.queue.consume_queue import ConsumeQueue, QueueShare, Unit
from saturnmq.store.queue.queues import LIST_NAME, QueueTable
from saturnmq.store.recovery import opening
from saturnmq.store.recovery.hints import start_refusal
from saturnmq.store.recovery.recover import SkipLog, messages_from
from saturnmq.store.replicas import DiskAndReplica, ReplicaAcks
from saturnmq.store.results import Confirmed, PutResult, PutStatus
from saturnmq.store.settings import FlushDiskType, StoreSettings
from saturnmq.store.state import StoreState

log = logging.getLogger(__name__)

_REJECTIONS_PER_LOG_LINE: Final = 50_000
_ZERO_SECTOR: Final = bytes(512)  # a record with such a run looks like a torn one after a crash (recover.is_torn)
_FIRST: Final = QueueOffset(0)


Recover: TypeAlias = Callable[["MessageStore", Callable[[int, int], None] | None], None]
"""Loads and recovers a store; see `recovery.opening.open_store`."""


def wall_clock_ms() -> int:
    """Unix time in ms."""
    return time_ns() // 1_000_000


class MessageStore(StoreState):
    """The store of one broker; see docs/decisions/0001 for the interface.

    Callbacks, all on the event loop:

    - on_append(topic, queue id, queue offset, units): messages became visible, from this offset on.
    - on_failure(error): called once, when the store stops accepting messages because the disk failed.
    - read_log(offset): the messages of the log from there on, for an index that lags or is rebuilt. log_piece: as `IndexSource`
      says.
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
        disk = disk or Disk()
        log = log or plain_log(settings, disk)
        queues = QueueTable(
            settings.consume_queue_dir,
            settings.consume_queue_bytes,
            disk,
            settings.root / LIST_NAME,
            lambda: log.first_position,
            settings.queue_extension,
            log_file_bytes=settings.commit_log_bytes,
        )
        index = None
        if settings.message_index_enable:
            index = MessageIndex(settings.index_dir, settings.index_slots, settings.index_entries, disk, clock_ms)
        super().__init__(settings, log, disk, queues, index, clock_ms)
        self.on_failure: Callable[[SaturnError], None] | None = None
        self.append_watch = AppendWatch(settings.page_cache_busy_ms)
        self._recover: Recover = recover or opening.open_store
        self.quorum = self.log.quorum
        # Whether a put is confirmed without waiting for a flush (ASYNC_FLUSH).
        self.confirms_at_once = settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH and not self.quorum
        self.acknowledges_at_once = self.confirms_at_once  # not with SYNC_MASTER
        self.replicas: ReplicaAcks | None = None
        self.log.listen(self._flushed, self.stop_writing)
        skipped = SkipLog()
        self.read_log = lambda offset: messages_from(self.log, offset, self._dispatched, skipped)
        self.log_piece = self.log.piece_at
        self._maintenance = Maintenance(self)
        self.scrub = self._maintenance.scrub
        self._lock = LockFile(settings.root / "lock")
        self._open = False
        self._refused = self._failed_puts = 0  # puts rejected because the store is not writable, and those that failed
        self._failure_log = LogLimit(monotonic)  # senders decide how many puts fail
        # With the pool a record is not readable before it is committed to its file, so it is dispatched later.
        self._direct = self.confirms_at_once and not self.log.pooled
        self._proposals = ProposalBatch(self)

    # ---- life cycle

    def open(self, rebuild: Callable[[int, int], None] | None = None) -> None:
        """Lock, load and recover the store. Raises StoreError naming file and offset; the lock is released then.

        If rebuild is given, consume queues and index are rebuilt from the log; it is called as progress(bytes_read, bytes_total).
        """
        # The lock is taken before anything is read: another process may be writing these files.
        with contextlib.suppress(StoreError):  # LockFile.acquire reports an unusable folder with a better message
            self.disk.make_folder(self.settings.root)
        self._lock.acquire()
        try:
            self._recover(self, rebuild)
        except (OSError, SaturnError) as error:
            # Also the lock: a corrected configuration can be tried again in this process.
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
        # With SYNC_FLUSH, or any log that confirms: the checkpoint must not reach further than the disk.
        await wait_confirmed(self.log, self.log.readable_end, FLUSH_TIMEOUT_MS)
        await self._maintenance.write_all()

    async def start(self) -> None:
        """Start background flushing, maintenance and the indexing of what recovery has left, on the running loop."""
        self._maintenance.start()

    async def stop(self) -> None:
        """Flush everything and close; `abort` is removed only if all of it is durable (RC-02). Raises StoreError."""
        if not self._open:
            return
        # First: puts are refused while the rest is flushed.
        self._open = False
        async with contextlib.AsyncExitStack() as stack:
            # The stack runs in reverse order: stop replication, then flush and close, even if the first step fails.
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
            # After a failed write the marker `abort` and the checksums stay: the next start has to recover.
            if self.failure is None and self.log.sums is not None:
                self.log.sums.discard()  # the checkpoint covers everything
            if self.failure is None and (self.index_queue is None or self.index_queue.complete):
                # Last: by its absence the next start sees that nothing needs recovery (RC-02).
                self.disk.unlink(self.settings.abort_path)
                self.disk.sync_folder(self.settings.abort_path.parent)
        finally:
            self.close_files()

    async def abort(self) -> None:
        """Close without flushing, as a killed process leaves the files; a flush that has begun is awaited."""
        await self._maintenance.stop()
        # A thread that still uses the mappings would end the process when they are closed.
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

    def put(self, message: Message) -> PutResult:
        """Append one message, which then has its offsets, store time and size. Invalid input never raises."""
        return self.put_all(message, ((message.body, message.properties_raw, message.flag),))

    def put_batch(self, message: Message, entries: Sequence[Entry]) -> PutResult:
        """As `put_all`, for a client's batch, which is not empty and not transactional (ST-16, BAT-04)."""
        if not entries:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        if message.sys_flag & TRANSACTION_MASK:
            refused = self.refusal_of(message, entries)
            return refused or PutResult(PutStatus.MESSAGE_ILLEGAL, reason="a batch cannot be transactional")
        return self.put_all(message, entries)

    def put_soon(self, message: Message, callback: Confirmed) -> None:
        """Put a message together with the others of this event-loop iteration, with one append.

        Puts through other methods are appended after them. The callback receives the final status and the reason of a refusal;
        physical and queue offset are then set in the message.
        """
        self._proposals.add(message, callback)

    def put_all(self, message: Message, entries: Sequence[Entry]) -> PutResult:
        """Append all entries or none, in order and with one store time (DL-A03, DL-B08). Invalid input never raises.

        message: what they have in common; afterwards it has the offsets, store time and size of the first one.
        """
        # Messages that `put_soon` has accepted come first: they were sent before.
        if self._proposals.waiting:
            self._proposals.propose()
        refused = self.refusal_of(message, entries)
        if refused is not None:
            return refused
        try:
            return self.append_all(((message, entries),))
        except StoreError as error:
            return self.put_failed(error)

    def append_all(self, groups: Sequence[Group]) -> PutResult:
        """Append all groups or none, each with the next offsets of its queue (DL-B05). Raises AppendRefused, StoreError.

        The only way into the log, whatever confirms a message: numbering, one append, and dispatch at once or on confirmation.
        """
        numbered: list[tuple[ConsumeQueue | None, Message, Sequence[Entry]]] = []
        # One store time for all of them: times never fall along the log (ST-10).
        by_key, store_ms = self.queues.by_key, self.next_store_ms()
        try:
            for message, entries in groups:
                queue, number = None, _FIRST
                # Prepared and rolled-back messages have the queue offset 0 and take no number of their queue.
                if (message.sys_flag & TRANSACTION_MASK) not in NOT_IN_QUEUE:
                    topic, queue_id = message.topic, message.queue_id
                    queue = by_key.get((topic, queue_id)) or self.queues.get_or_make(topic, queue_id)
                    number = queue.next_offset
                    # Before the append, because the records contain their numbers; taken back if it fails.
                    queue.next_offset += len(entries)  # type: ignore[assignment]
                numbered.append((queue, message, entries))
                message.queue_offset, message.store_timestamp_ms = number, store_ms
            began = monotonic()
            extents, answer = self.log.append(groups)
            self.append_watch.note(monotonic() - began)
        # Whatever the cause: a number without its record would be a gap in the queue for good.
        except BaseException:
            for queue, _, entries in numbered:
                if queue is not None:
                    queue.next_offset -= len(entries)  # type: ignore[assignment]
            raise
        offsets: list[PhysicalOffset] = []
        total, levels = 0, self.settings.message_delay_level
        for queue, message, entries in numbered:
            topic, number = message.topic, message.queue_offset
            # Of a delayed message the unit's code is its delivery time, by which the delay service reads the queue.
            timed = topic in TIMED_TOPICS
            units: list[Unit] = []
            records: list[Record] = []
            for _, raw, _ in entries:
                physical, size = extents[len(offsets)]
                code = unit_code(topic, raw, store_ms, levels) if timed else tags_code(raw)
                units.append((physical, size, code))
                records.append((topic, raw, physical, store_ms))
                offsets.append(physical)
                total += size
            message.physical_offset, message.store_bytes, _ = units[0]
            # Visible on confirmation: kept with what dispatch needs, so that the record is not read again.
            if not self._direct:
                numbers = map(QueueOffset, count(number))
                self._unconfirmed.extend(zip(repeat(queue), repeat(message), numbers, units, records, strict=False))
                continue
            shares = ((topic, message.queue_id, queue, number, units),) if queue is not None else ()
            # A rolled-back message is not found by its key.
            is_indexed = (message.sys_flag & TRANSACTION_MASK) != ROLLED_BACK
            self.dispatch_units(shares, records if is_indexed else [], physical + size)  # type: ignore[arg-type]
        if not self._direct:
            self.wake_flusher()
        message = groups[0][0]
        return PutResult(
            PutStatus.PUT_OK, offsets[0], total, message.queue_offset, store_ms, tuple(offsets), message.store_host,
            self.log.end, "", answer,
        )  # fmt: skip

    def open_space(self) -> Space | None:
        """Space for records that the caller writes before anything else happens; None unless sends are acknowledged at once."""
        # Records of proposals that wait must come first.
        if not self._direct or not self.acknowledges_at_once or not self.writable or self._proposals.waiting:
            return None
        return self.log.space()

    def fill_space(
        self, end: PhysicalOffset, shares: Collection[QueueShare], records: list[Record], sums: Sequence[Sum]
    ) -> None:
        """Take the records written to the space up to `end`, and make them visible; see `dispatch_units`."""
        for _, _, queue, start, units in shares:
            # The numbers that the caller has used.
            queue.next_offset = QueueOffset(start + len(units))
        # Before the dispatch: readers that are notified look at the log's end.
        self.log.fill(end, sums)
        self.dispatch_units(shares, records, end)

    def refusal_of(self, message: Message, entries: Sequence[Entry]) -> PutResult | None:
        """The result that rejects messages one of which cannot be stored, else None (ST-03, ST-05, ST-06)."""
        if self.log.refusal:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self.log.refusal)
        if not self._open or self.failure is not None or self.refusal:
            reason = self.failure.message if self.failure else self.refusal or "stopped"
            # On a full disk thousands of sends a second are refused.
            if self._refused % _REJECTIONS_PER_LOG_LINE == 0:
                log.warning("put refused count=%s reason=%s", self._refused + 1, reason)
            self._refused += 1
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        topic, limit = message.topic, self.settings.message_bytes_max
        # The length in characters is a lower bound of that in bytes, so most topics need no encoding.
        if len(topic) > NAME_LENGTH_MAX or (not topic.isascii() and len(topic.encode()) > NAME_LENGTH_MAX):
            reason = f"topic of {len(topic)} characters, at most {NAME_LENGTH_MAX}"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)
        for body, raw, _ in entries:
            if len(raw) > PROPERTIES_BYTES_MAX:
                reason = f"properties of {len(raw)} bytes, at most {PROPERTIES_BYTES_MAX}"
                return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason=reason)
            # A record that ends in zeros, or has a sector of them, is taken for torn by recovery after a crash.
            if b"\0" in raw and (raw.endswith(b"\0") or _ZERO_SECTOR in raw):
                reason = "properties end with a zero byte, or have 512 in a row"
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)
            if len(body) > limit:
                reason = f"body of {len(body)} bytes, at most {limit}"
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)
        return None

    def put_failed(self, error: StoreError) -> PutResult:
        """The result of a put that raised; a resource that is used up is a temporary refusal."""
        if isinstance(error, AppendRefused):
            return PutResult(error.status, reason=error.message)
        self._failed_puts += 1
        if self._failure_log.suppressed("") is not None:
            log.error("put failed count=%s reason=%s", self._failed_puts, error)
        temporary = isinstance(error, ResourceExhausted)
        status = PutStatus.SERVICE_NOT_AVAILABLE if temporary else PutStatus.CREATE_MAPPED_FILE_FAILED
        return PutResult(status, reason=error.message)

    # ---- confirmation and flush

    def _flushed(self, end: PhysicalOffset) -> None:
        # Otherwise everything was dispatched when it was appended.
        if not self.confirms_at_once:
            self._confirm(end)

    def when_confirmed(self, result: PutResult, callback: Confirmed) -> None:
        """Run the callback with the final status of a put and the reason of a failure, possibly before this call returns.

        With SYNC_FLUSH, that is after an fdatasync has covered it or timed out (FLU-01, FLU-04, DUR-01); over a quorum, once
        the put is committed, or has failed (DL-B07); with SYNC_MASTER, once a slave has it, too (SW-02).
        """
        # Also a rejected put: there is nothing to wait for.
        if result.status is not PutStatus.PUT_OK or self.acknowledges_at_once:
            callback(result.status, result.reason)
        elif result.answer is not None:
            result.answer.then(callback)
        elif self.replicas is None:
            self.log.when_confirmed(result.end_offset, self.settings.sync_flush_timeout_ms, callback)
        else:
            self._when_replicated(self.replicas, result.end_offset, callback)

    def _when_replicated(self, replicas: ReplicaAcks, position: Position, callback: Confirmed) -> None:
        # ASYNC_FLUSH with SYNC_MASTER: only the slave is waited for.
        if self.confirms_at_once:
            replicas.when_acknowledged(position, callback)
            return
        confirmation = DiskAndReplica(replicas, callback)
        self.log.when_confirmed(position, self.settings.sync_flush_timeout_ms, confirmation.on_disk)
        replicas.when_acknowledged(position, confirmation.on_replica)

    def replicate_before_acknowledgement(self, replicas: ReplicaAcks) -> None:
        """Acknowledge later sends that wait once a replica has them, too (SYNC_MASTER)."""
        self.replicas = replicas
        self.acknowledges_at_once = False

    async def wait_confirmed(self, result: PutResult) -> PutStatus:
        """The coroutine form of `when_confirmed`."""
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self.when_confirmed(result, lambda status, _: None if future.done() else future.set_result(status))
        # The waiter may have been cancelled.
        return await future

    def flush_before_acknowledgement(self) -> None:
        """Change from ASYNC_FLUSH to SYNC_FLUSH: later sends are confirmed once they are durable."""
        self.confirms_at_once = self.acknowledges_at_once = False
        # From now on dispatch waits for the confirmation; what was appended before is visible already.
        self._direct = False

    def wake_flusher(self) -> None:
        """With SYNC_FLUSH, start a flush so that a message whose sender does not wait also becomes durable and visible (FLU-05).

        A group does so by itself, once per event-loop iteration.
        """
        # Before `start` and after `stop` nothing is flushed in the background.
        if not self.confirms_at_once and not self.quorum and self._maintenance.running:
            self.log.start_flush()

    def stop_writing(self, failure: SaturnError) -> None:
        """Stop accepting messages after a disk failure and mark the store for the next start (DUR-06, DUR-07)."""
        # The first failure counts; later ones are its consequences.
        if self.failure is None:
            self.failure = failure
            # So that the next start recovers even if this process ends normally.
            opening.mark_failure(self, failure)
            if self.on_failure is not None:
                self.on_failure(failure)

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
