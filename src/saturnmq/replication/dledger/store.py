"""The message store of a broker in a DLedger group, with the replicated ledger as its commit log.

A put is appended to the leader's ledger at once and confirmed when the group has committed it. On every member, consume queues and
index are filled from committed entries only. If the broker ran without DLedger before, its old commit log stays readable in front
of the ledger until retention has deleted it.

Requirements: DL-B01..DL-B16, DL-C03, DL-S09, DL-S12, DL-U01..DL-U06.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from saturnmq.net import NetSettings
from saturnmq.protocol.codes import TRANSACTION_MASK, SysFlag
from saturnmq.protocol.errors import MessageError, SaturnError, StoreError
from saturnmq.protocol.message import Message, decode_record, encode_record
from saturnmq.protocol.properties import tags_code
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES
from saturnmq.raft.core.messages import AppendResponse, Code, Response
from saturnmq.raft.driver import Listener, RaftMember
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.ledger.retention import RetentionSettings
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger import opening as dledger_opening
from saturnmq.replication.dledger.dispatch import dispatch_plain
from saturnmq.replication.dledger.failure import SyncMark
from saturnmq.replication.dledger.log import Body, LedgerLog
from saturnmq.replication.dledger.proposals import Answer, Told, Turn, outcome, refused_by
from saturnmq.store import FlushDiskType, MessageStore, PutResult, PutStatus, StoreSettings
from saturnmq.store.delay import delivery_code
from saturnmq.store.log.log import Confirmed
from saturnmq.store.maintenance.maintenance import Upkeep
from saturnmq.store.maintenance.retention import decide, delete_hours
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.store.store import wall_clock_ms

log = logging.getLogger(__name__)

DISPATCH_STEP: Final = 512  # messages dispatched per event-loop iteration
_NOT_IN_QUEUE: Final = (int(SysFlag.PREPARED), int(SysFlag.ROLLBACK))
_KEPT_HOURS: Final = 87_600  # retention of the ledger's files while the old log still has files (DL-U03)
_NOOP_HOST: Final = ("127.0.0.1", 10911)


@dataclass(slots=True)
class LedgerPut(PutResult):
    """A put that is appended but not yet committed; `answer` receives the group's result."""

    answer: Answer | None = None


class LedgerStore(MessageStore, Listener):
    """MessageStore over a DLedger group.

    serving: this broker leads and has dispatched all earlier entries; otherwise puts are refused (DL-C03, DL-X23).
    on_role: called after a role change. on_foreign(topic, queue_id): called for messages that another member appended.
    """

    quorum = True  # every put waits for the group, even with WAIT=false (DL-B15)

    def __init__(
        self,
        settings: StoreSettings,
        raft: RaftSettings,
        net: NetSettings,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        super().__init__(dataclasses.replace(settings, transient_pool_enable=False), clock_ms=clock_ms)
        self.raft = raft
        self.serving = False
        self.on_role: Callable[[], None] | None = None
        self.on_foreign: Callable[[str, int], None] | None = None
        self.member: RaftMember | None = None
        self.log: LedgerLog = LedgerLog(settings.commit_log_dirs, settings.commit_log_bytes, self.disk)
        self.log.leads = lambda: self.leads
        self._net = net
        self._direct = False
        self._upkeep = LedgerUpkeep(self)
        self._going_on = False
        self._turn = Turn(self)
        self._marked = False
        self._begins_at = -1

    # ---- life cycle

    def open(self, rebuild: Callable[[int, int], None] | None = None) -> None:
        """See MessageStore.open. Loads the Raft member too, which does not join the group before `take_part` (DL-B14)."""
        with contextlib.suppress(StoreError):
            self.disk.make_folder(self.settings.root)
        self._lock.acquire()
        try:
            dledger_opening.open_store(self, rebuild)
        except OSError as error:
            self.close_files()
            if isinstance(error, SaturnError):
                raise
            raise StoreError(f"store {self.settings.root} cannot be opened: {error}") from error
        except SaturnError:
            self.close_files()
            raise
        self._open = True

    def make_member(self, start_pos: int) -> RaftMember:
        """Create the Raft member without loading it; an empty ledger begins at start_pos (DL-U01)."""
        settings = self.settings
        self.member = RaftMember(
            self.raft,
            self.raft.folder(settings.root),
            self._net,
            file_bytes=settings.commit_log_bytes,
            sync_before_ack=settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            stamp=stamp_message,
            noop=noop_message(_NOOP_HOST, self.clock_ms()),
            body_is_good=message_is_good,
            start_pos=start_pos,
            listener=self,
            disk=self.disk,
            retention=self.retention(),
        )
        self.member.keep_from = self._needed_from
        return self.member

    def retention(self) -> RetentionSettings:
        """Retention of the ledger: nothing is deleted while the old log has files, so that offsets have no gap (DL-U03)."""
        settings = self.settings
        hours = tuple(sorted(delete_hours(settings.delete_when)))
        if self.log.files:
            return RetentionSettings(hours, _KEPT_HOURS, force_enabled=False)
        return RetentionSettings(
            hours, settings.file_reserved_hours + 1, settings.clean_forcibly, settings.disk_percent_max / 100
        )

    def _needed_from(self) -> int:
        """Recovery after a crash reads nothing before this position."""
        note = self.checkpoint.note
        return note.dispatched if note is not None else 0

    async def take_part(self) -> None:
        """Listen for the other members and join elections. Raises StartError."""
        await self._member().start()

    async def stop(self) -> None:
        """Leave the group, then flush everything and close. Raises StoreError."""
        self.serving = False
        self.log.begins_at = self.log.first_position
        try:
            if self.member is not None:
                await self.member.stop()
        except (SaturnError, OSError) as error:
            if self.member is not None:
                self._mark(self.member, f"the ledger's last sync failed: {error}")
            raise
        finally:
            await super().stop()

    def close_files(self) -> None:
        super().close_files()
        if self.member is not None:
            self.member.files.close()

    def _member(self) -> RaftMember:
        assert self.member is not None, "open() comes first"
        return self.member

    # ---- role

    @property
    def leads(self) -> bool:
        """Whether the member leads and its lease holds (DL-X08)."""
        return self.member is not None and self.member.leads

    @property
    def writable(self) -> bool:
        return self.serving and super().writable

    @property
    def confirms_at_once(self) -> bool:
        return False

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """Listener callback. Stop serving and drop pending puts: their entries are committed or removed by the next leader."""
        self.serving = False
        self._pending.clear()
        self.log.fail_waiters()
        member = self._member()
        if member.node is not None and member.node.failed is not None:
            why = f"the ledger failed: {member.node.failed}"
            self._mark(member, why)
            self.stop_writing(StoreError(why))
        if self.on_role is not None:
            self.on_role()

    def _mark(self, member: RaftMember, why: str) -> None:
        """Write the sync-failed marker, once: the next start needs the synced and the acknowledged index (DUR-06, DUR-07)."""
        if member.node is not None and not self._marked:
            self._marked = True
            node = member.node
            SyncMark(node.synced_index, node.acked_index, why).leave(member.files.folder, self.disk)

    @property
    def caught_up(self) -> bool:
        """Whether the whole ledger is committed and dispatched (DL-C03)."""
        state = self._member().status()
        return state.end_index == state.committed_index and self.dispatched >= self._member().files.end_pos

    def begin_serving(self) -> None:
        """Accept puts; queue offsets continue after the committed ones (DL-C03)."""
        for queue in self.queues.by_key.values():
            queue.next_offset = queue.max_offset
        files = self._member().files
        last = files.entry(files.end_index)
        if last is not None:
            with contextlib.suppress(MessageError):
                self.last_store_ms = max(self.last_store_ms, decode_record(last.body).store_timestamp_ms)
        self.log.end = files.end_pos
        self._pending.clear()
        self.serving = True

    # ---- put

    def put(self, message: Message, code: int | None = None) -> PutResult:
        """See MessageStore.put. The returned put is appended on this member but not yet committed."""
        return self._append([message], [code])

    def put_batch(self, messages: list[Message]) -> PutResult:
        """Append all messages or none, one entry each; confirmed when the last is committed (DL-A03, DL-B08)."""
        if not messages:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        if any(message.sys_flag & TRANSACTION_MASK for message in messages):
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="a batch cannot be transactional")
        result = self._append(messages, [None] * len(messages))
        if result.status is PutStatus.PUT_OK:
            result.physical_offsets = tuple(message.physical_offset for message in messages)
        return result

    def put_soon(self, message: Message, told: Told) -> None:
        """Put a message together with the others of this event-loop iteration, as one proposal.

        Puts through other methods are appended after them. The callback receives the final status and the reason of a refusal;
        physical and queue offset are then set in the message.
        """
        self._turn.give(message, told)

    def target_of(self, message: Message) -> ConsumeQueue | PutResult | None:
        """The consume queue of a message, None if it belongs to none, or the PutResult with which it is refused."""
        if not self.serving:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="this broker does not lead its group")
        refused = self._refuse(message)
        if refused is not None:
            return refused
        if (message.sys_flag & TRANSACTION_MASK) in _NOT_IN_QUEUE:
            return None
        try:
            return self.queues.get_or_make(message.topic, message.queue_id)
        except StoreError as error:
            return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED, reason=error.message)

    def _append(self, messages: list[Message], codes: list[int | None]) -> PutResult:
        self._turn.take()
        targets = [self.target_of(message) for message in messages]
        for target in targets:
            if isinstance(target, PutResult):
                return target
        answer, first = Answer(), messages[0]
        taken = self.offer(messages, cast("list[ConsumeQueue | None]", targets), codes, answer.came)
        if taken.code != Code.SUCCESS:
            return refused_by(taken)
        return LedgerPut(
            PutStatus.PUT_OK, first.physical_offset, sum(message.store_bytes for message in messages), first.queue_offset,
            first.store_timestamp_ms, (), first.store_host, self.log.end, answer=answer,
        )  # fmt: skip

    def offer(
        self,
        messages: list[Message],
        targets: list[ConsumeQueue | None],
        codes: list[int | None],
        came: Callable[[Response], None],
    ) -> AppendResponse:
        """Append all messages or none, each with the next offset of its queue (DL-B05); `came` receives the common response."""
        store_ms, bodies = max(self.clock_ms(), self.last_store_ms), []
        begun = 0
        taken = AppendResponse(code=Code.DISK_ERROR)
        try:
            for message, queue in zip(messages, targets, strict=True):
                if queue is None:
                    message.queue_offset = 0
                else:
                    message.queue_offset = queue.next_offset
                    queue.next_offset += 1
                begun += 1
                message.physical_offset = 0
                message.store_timestamp_ms = store_ms
                bodies.append(encode_record(message))
            taken = self._member().offer(bodies, came)
        finally:
            if taken.code != Code.SUCCESS:
                for queue in targets[:begun]:
                    if queue is not None:
                        queue.next_offset -= 1
        if taken.code != Code.SUCCESS:
            return taken
        self.last_store_ms = store_ms
        pending = self._pending
        for message, queue, body, pos, code in zip(messages, targets, bodies, taken.positions, codes, strict=True):
            size = len(body)
            message.physical_offset, message.store_bytes = pos + ENTRY_HEADER_BYTES, size
            end = pos + ENTRY_HEADER_BYTES + size
            pending.append((end, queue, message, self.code_of(message) if code is None else code))
        self.log.end = end
        return taken

    def code_of(self, message: Message) -> int:
        """Tags code of the message's consume queue unit; for a delayed message, its delivery time in ms."""
        due = delivery_code(message, self.settings.message_delay_level)
        return tags_code(message.properties_raw) if due is None else due

    def when_confirmed(self, result: PutResult, callback: Confirmed) -> None:
        """See MessageStore.when_confirmed: committed, or why it failed (DL-B07)."""
        if isinstance(result, LedgerPut) and result.answer is not None:
            result.answer.then(lambda code: callback(*outcome(code)))
        else:
            callback(result.status, result.reason)

    def wake_flusher(self) -> None:
        """Do nothing: the Raft member schedules its own fsyncs."""

    def commit(self) -> None:
        """Do nothing: there is no transient store pool to commit from."""

    # ---- dispatch

    def committed(self, index: int, end_pos: int) -> None:
        """Listener callback: everything before end_pos is committed. Starts the dispatch."""
        commit_log = self.log
        commit_log.end = self._member().files.end_pos
        commit_log.advance(end_pos)
        if not self._going_on:
            self._go_on()

    def _go_on(self) -> None:
        """Dispatch committed messages, at most DISPATCH_STEP per event-loop iteration."""
        self._going_on = False
        try:
            more = self.dispatch_some(DISPATCH_STEP)
        except (StoreError, OSError) as error:
            self.stop_writing(error if isinstance(error, SaturnError) else StoreError(str(error)))
            return
        if more:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def dispatch_some(self, count_max: int) -> bool:
        """Dispatch up to count_max committed messages. Returns whether there are more. Raises CorruptRecord, StoreError."""
        pending, commit_log = self._pending, self.log
        if commit_log.ledger is not None and commit_log.ledger.begin_pos != self._begins_at:
            self._begins_anew(commit_log.ledger.begin_pos)
        done = 0
        while done < count_max:
            if self.dispatched >= commit_log.committed_pos:
                return False
            many = dispatch_plain(self, count_max - done) if not pending else 0
            done += max(many, 1)
            if many:
                continue
            if pending and pending[0][2].physical_offset - ENTRY_HEADER_BYTES == self.dispatched:
                end, queue, message, code = pending.popleft()
                self.dispatch(queue, message, code)
                self.dispatched = end
                continue
            found = commit_log.body_at(self.dispatched)
            if found is None:
                return False
            if pending and pending[0][2].physical_offset == found.physical_offset:  # the entry follows a blank record
                self.dispatched = found.physical_offset - ENTRY_HEADER_BYTES
                continue
            self._dispatch_body(found)
            self.dispatched = found.next_pos
        return True

    def _dispatch_body(self, found: Body) -> None:
        """Dispatch a message that another leader appended. One that cannot be decoded is logged and skipped (DL-B13)."""
        try:
            message = decode_record(found.record)
            if message.physical_offset != found.physical_offset or message.store_bytes != len(found.record):
                raise MessageError(f"it says it lies at {message.physical_offset} with {message.store_bytes} bytes")
            queue = self.queue_for(message)
        except (MessageError, StoreError) as error:
            log.error("[BUG] the entry at %s holds no message: %s", found.physical_offset, error)
            return
        self.last_store_ms = max(self.last_store_ms, message.store_timestamp_ms)
        self.dispatch(queue, message, self.code_of(message))
        if queue is not None and self.on_foreign is not None:
            self.on_foreign(message.topic, message.queue_id)

    def queue_for(self, message: Message) -> ConsumeQueue | None:
        """The consume queue of a message in the log; None for messages that consumers do not see. Raises StoreError."""
        if (message.sys_flag & TRANSACTION_MASK) in _NOT_IN_QUEUE:
            return None
        queue = self.queues.get_or_make(message.topic, message.queue_id)
        number = message.queue_offset
        if number == 0 < queue.max_offset and message.physical_offset >= queue.max_physical:
            log.warning(
                "queue %s/%s begins anew at offset %s: the topic was deleted", message.topic, message.queue_id,
                message.physical_offset,
            )  # fmt: skip
            queue.delete()
        elif number > queue.max_offset == queue.min_offset:
            queue.delete()  # the queue is empty; it continues with this offset
        return queue

    def _begins_anew(self, begin_pos: int) -> None:
        """Handle a new begin of the ledger: retention deleted files, or the leader replaced the whole log of a lagging member.

        In the second case consume queues and index are rebuilt from the new begin (DL-S12). Raises StoreError if the old commit
        log does not end where the group's ledger begins (DL-U05).
        """
        self._begins_at = begin_pos
        if self.log.files and begin_pos != self.log.divided:
            raise StoreError(
                f"the old commit log ends at {self.log.divided}, the group's ledger begins at {begin_pos}: the old logs of the "
                "members are not equal; copy the old commit log and config of another member here, without its dledger folder"
            )
        if self.dispatched >= begin_pos:
            return
        log.warning("the ledger begins at %s, behind %s: queues and index are made anew", begin_pos, self.dispatched)
        self.queues.clear()
        if self.index is not None:
            self.index.clear()
        self.dispatched = begin_pos
        self.queues.restore_ends()

    # ---- properties that differ from MessageStore

    @property
    def earliest_store_ms(self) -> int:
        """Store time of the oldest message in ms; -1 if there is none (DL-B15)."""
        start = self.log.first_position
        old = self.log.store_time(start)
        return old if old >= 0 else self.log.store_time(start + ENTRY_HEADER_BYTES)


class LedgerUpkeep(Upkeep):
    """Retention: deletes the old log's files, even the last one; the Raft member deletes the ledger's; queues and index follow."""

    def __init__(self, store: LedgerStore) -> None:
        super().__init__(store)
        self._ledger_store = store
        self._start = -1

    async def clean(self) -> None:
        """Run the retention once (DL-S09, DL-U03)."""
        store = self._ledger_store
        usage = await asyncio.to_thread(store.disk_usage)
        if store.log.files:
            decision = decide(
                self._policy,
                usage,
                hour=time.localtime(store.clock_ms() / 1000).tm_hour,
                manual=self._manual_runs > 0,
                modified_ms=await asyncio.to_thread(self._modified_ms),
                now_ms=store.clock_ms(),
                written_files=sum(file.end <= self._queues_reach() for file in store.log.files),
            )
            self._manual_runs = max(0, self._manual_runs - 1)
            for _ in range(decision.delete):
                await self._delete_first(decision.reason)
            if not store.log.files and store.member is not None:
                log.info("the old commit log is gone; the ledger's files expire as usual now")
                store.member.retention = store.retention()
        elif self._manual_runs and store.member is not None:
            self._manual_runs -= 1
            hour = min(store.member.retention.delete_hours, default=4)
            store.member.clean(usage.commit_log / 100, time.time(), hour)
        if store.log.first_position != self._start:
            self._start = store.log.first_position
            await self._delete_behind()
        store.recheck(usage)
        if not store.refusal:
            await asyncio.to_thread(store.reserve.take)
