"""A broker's membership in a DLedger group: the Raft member, the log over it, the store over that log, and the role.

On every member, consume queues and index are filled from committed entries only. If the broker ran without DLedger before, its
old commit log stays readable in front of the ledger until retention has deleted it.

Requirements: DL-B01..DL-B16, DL-C03, DL-S09, DL-S12, DL-U01..DL-U06, SEC-18.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from saturnmq.metrics import Histogram
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.errors import MessageError, StoreError
from saturnmq.protocol.message import ENTRY_HOST, decode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex
from saturnmq.raft.core.messages import AppendResponse, Code, Response
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.member_entries import MessageCodec
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.ledger.retention import RetentionSettings
from saturnmq.raft.listener import Listener
from saturnmq.raft.member_status import MemberStatus
from saturnmq.raft.peers import ADMIN_CODES, OPERATING_CODES
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger import opening
from saturnmq.replication.dledger.dispatch import GroupDispatch
from saturnmq.replication.dledger.entry_check import appended_problem
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.server_admin import LOOPBACK
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreSettings, wall_clock_ms
from saturnmq.store.files.disk import Disk
from saturnmq.store.settings import delete_hours

log = logging.getLogger(__name__)

_KEPT_HOURS: Final = 87_600  # retention of the ledger's files while the old log still has files (DL-U03)


class GroupMember(Listener):
    """One member of a group with its store. `store.open` loads the Raft member too, which joins in `take_part` (DL-B14).

    protected: messages need an account, so that adminAddresses may not read or append them at the DLedger port.
    on_role: called after a role change. has_queue(topic, queue_id): whether the broker's topics have this queue.
    """

    in_group = True

    def __init__(
        self,
        settings: StoreSettings,
        raft: RaftSettings,
        net: NetSettings,
        *,
        tls: TlsSettings | None = None,
        admin_addresses: str = LOOPBACK,
        protected: bool = False,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.raft = raft
        self._admin_addresses = admin_addresses
        self._admin_codes = OPERATING_CODES if protected else ADMIN_CODES
        self.on_role: Callable[[], None] | None = None
        self.has_queue: Callable[[str, int], bool] = lambda topic, queue_id: True
        self._net = net
        self._tls = tls
        self._disk = Disk()
        # Entries are written to the ledger's files directly; the pool has no use.
        self._settings = dataclasses.replace(settings, transient_pool_enable=False)
        self.log = RaftLog(settings.commit_log_dirs, settings.commit_log_bytes, self._disk)
        self.store = MessageStore(
            self._settings, log=self.log, recover=self._recover, clock_ms=clock_ms, disk=self._disk
        )
        self.dispatch = GroupDispatch(self.log, self.store)
        self.store.replay_from = self.dispatch.replay_from
        # Instead of the store's own listener: dispatch follows the commits of the group.
        self.log.listen(self.dispatch.confirmed, self.store.stop_writing)
        self.log.on_old_log_deleted = self.retention_changed

    def _recover(self, store: MessageStore, rebuild: Callable[[int, int], None] | None) -> None:
        opening.open_store(store, self.log, self.dispatch, self.raft, self.make_member, rebuild)

    def make_member(self, start_pos: int) -> RaftMember:
        """Create the Raft member without loading it; an empty ledger begins at start_pos (DL-U01)."""
        if self.raft.auto_is_standard:
            log.warning("fast timers off reason=timers_of_the_file_do_not_fit member=%s", self.raft.self_id)
        settings = self._settings
        member = self.log.member = RaftMember(
            self.raft,
            self.raft.folder(settings.root),
            self._net,
            file_bytes=settings.commit_log_bytes,
            sync_before_ack=settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            stamp=stamp_message,
            noop=noop_message(ENTRY_HOST, self.store.clock_ms()),
            body_is_good=message_is_good,
            codec=MessageCodec(self.store.clock_ms),
            start_pos=start_pos,
            listener=self,
            disk=self._disk,
            retention=self.retention(),
            tls=self._tls,
            admin_addresses=self._admin_addresses,
            admin_codes=self._admin_codes,
        )
        member.keep_from = self._needed_from
        member.append_for_client = self._append_for_client
        return member

    def retention(self) -> RetentionSettings:
        """Retention of the ledger: nothing is deleted while the old log has files, so that offsets have no gap (DL-U03)."""
        settings = self._settings
        hours = tuple(sorted(delete_hours(settings.delete_when)))
        # The old log's offsets precede the ledger's: deleting the ledger first would leave a gap.
        if self.log.files:
            return RetentionSettings(hours, _KEPT_HOURS, force_enabled=False)
        return RetentionSettings(
            hours, settings.file_reserved_hours + 1, settings.clean_forcibly, settings.disk_percent_max / 100
        )

    def retention_changed(self) -> None:
        """Apply the present retention settings to the ledger."""
        if self.log.member is not None:
            self.log.member.retention = self.retention()

    def _needed_from(self) -> int:
        """Recovery after a crash reads nothing before this position."""
        note = self.store.checkpoint.note
        return note.dispatched if note is not None else 0

    async def take_part(self) -> None:
        """Listen for the other members and join elections. Raises StartError."""
        await self._opened().start()

    def _opened(self) -> RaftMember:
        assert self.log.member is not None, "open() comes first"
        return self.log.member

    # ---- role

    @property
    def member(self) -> RaftMember | None:
        """The Raft member; None before the store is opened."""
        return self.log.member

    @property
    def damaged_entries(self) -> int:
        """Damaged entries that the scrub of the ledger has found."""
        return self.log.member.damaged_entries if self.log.member is not None else 0

    @property
    def replication_seconds(self) -> Histogram:
        """Seconds from each proposal of this member until the group had committed it."""
        return self.log.replication_seconds

    def status(self) -> MemberStatus | None:
        """Status of this member; None before the log is opened."""
        return self.member.status() if self.member is not None and self.member.node is not None else None

    def behind(self) -> list[tuple[str, int]]:
        """On a leader, the address of each other member and how many bytes it is behind."""
        status, ledger = self.status(), self.log.ledger
        if status is None or ledger is None:
            return []
        peers, self_id = status.configuration.addresses, status.self_id
        marks = [(name, mark) for name, mark in sorted(status.watermarks.items()) if name != self_id]
        return [(peers.get(name, name), ledger.bytes_after(mark)) for name, mark in marks]

    @property
    def peers(self) -> dict[str, str]:
        """Member id -> host:port of the DLedger port, of all members now."""
        node = self.member.node if self.member is not None else None
        return node.configuration.addresses if node is not None else self.raft.peers

    @property
    def voters(self) -> tuple[str, ...]:
        """Ids of the members that vote now."""
        node = self.member.node if self.member is not None else None
        return node.configuration.voters if node is not None else tuple(self.raft.peers)

    def host(self, name: str) -> str:
        """The host of a member; "" for an unknown one."""
        return host_of(self.peers[name]) if name in self.peers else ""

    @property
    def leads(self) -> bool:
        """Whether the member leads and its lease holds (DL-X08)."""
        return self.log.leads

    @property
    def elected(self) -> bool:
        """Whether the member is the leader of its term, also before it serves and after its lease has expired."""
        node = self.log.member.node if self.log.member is not None else None
        return node is not None and node.role is Role.LEADER

    @property
    def serving(self) -> bool:
        """Whether puts are accepted; see `RaftLog.serving`."""
        return self.log.serving

    @property
    def transferring(self) -> bool:
        """Whether this leader refuses puts because the leadership is being transferred (DL-L02)."""
        node = self.log.member.node if self.log.member is not None else None
        return node is not None and node.transferring

    @property
    def settled(self) -> bool:
        """Whether this leader serves, and keeps the leadership for the time being."""
        return self.serving and self.leads and not self.transferring

    def stop_serving(self) -> None:
        """Refuse puts until `begin_serving`."""
        self.log.serving = False

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """Listener callback. Stop serving and drop pending puts: their entries are committed or removed by the next leader."""
        self.stop_serving()
        # The next leader may replace these entries; their queue offsets are given again.
        self.store.discard_unconfirmed()
        self.log.fail_waiters()
        node = self._opened().node
        if node is not None and node.failed is not None:
            # The marker first: the store's own stop must not come without it.
            why = f"the ledger failed: {node.failed}"
            self.log.mark_failure(why)
            self.store.stop_writing(StoreError(why))
        if self.on_role is not None:
            self.on_role()

    def committed(self, index: int, end_pos: int) -> None:
        """Listener callback: everything before end_pos is committed."""
        self.log.end = PhysicalOffset(self._opened().files.end_pos)
        self.log.advance(PhysicalOffset(end_pos))

    @property
    def caught_up(self) -> bool:
        """Whether the whole ledger is committed and dispatched (DL-C03)."""
        member = self._opened()
        state = member.status()
        return state.end_index == state.committed_index and self.store.dispatched >= member.files.end_pos

    def begin_serving(self) -> None:
        """Accept puts; queue offsets continue after the committed ones (DL-C03)."""
        store, files = self.store, self._opened().files
        # What the former leadership left: numbers go on after what is committed.
        store.discard_unconfirmed()
        last = files.entry(files.end_index)
        if last is not None:
            # A quarantined last entry has no time; the clock is used then.
            with contextlib.suppress(MessageError):
                store.note_store_time(decode_record(last.body).store_timestamp_ms)
        self.log.end = PhysicalOffset(files.end_pos)
        self.log.serving = True

    # ---- entries from clients of the DLedger port

    def _append_for_client(self, body: bytes, answer: Callable[[Response], None]) -> None:
        """Append a message as the broker's own sends are: with offsets and store time assigned here (SEC-18)."""
        node = self._opened().node
        assert node is not None
        group, term, leader = self.raft.group, node.term, node.leader_id

        def reply(code: int, index: LedgerIndex = NO_INDEX, pos: int = -1) -> None:
            answer(AppendResponse(group=group, term=term, leader_id=leader, code=code, index=index, pos=pos))

        try:
            message = decode_record(body, check_crc=True)
            problem = appended_problem(message)
            if problem is None and not self.has_queue(message.topic, message.queue_id):
                problem = "the broker has no such topic or queue"
        except MessageError as error:
            problem = str(error)
        if problem is not None:
            log.warning("append of a client refused reason=%s", problem)
            reply(Code.UNEXPECTED_ARGUMENT)
            return
        # Not before all earlier entries are dispatched: queue offsets would be given twice (DL-X23).
        if not self.serving:
            reply(Code.LEADER_NOT_READY)
            return
        result = self.store.put(message)
        # The entry was just appended, so it is the last one.
        index, pos = node.end_index, result.physical_offset - ENTRY_HEADER_BYTES

        def confirmed(status: PutStatus, reason: str) -> None:
            codes = {PutStatus.PUT_OK: Code.SUCCESS, PutStatus.OS_PAGE_CACHE_BUSY: Code.WAIT_QUORUM_ACK_TIMEOUT}
            # A put that failed otherwise may still be committed by the next leader.
            reply(codes.get(status, Code.TERM_CHANGED), index, pos)

        if result.status is PutStatus.PUT_OK:
            self.store.when_confirmed(result, confirmed)
        else:
            log.warning("append of a client refused reason=%s", result.reason or result.status.value)
            reply(Code.UNEXPECTED_ARGUMENT)
