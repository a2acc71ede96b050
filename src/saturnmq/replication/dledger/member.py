"""A broker's membership in a DLedger group: the Raft member, the log over it, the store over that log, and the role.

On every member, consume queues and index are filled from committed entries only. If the broker ran without DLedger before, its
old commit log stays readable in front of the ledger until retention has deleted it.

Requirements: DL-B01..DL-B16, DL-C03, DL-S09, DL-S12, DL-U01..DL-U06.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Final

from saturnmq.net import NetSettings
from saturnmq.protocol.errors import MessageError, StoreError
from saturnmq.protocol.message import decode_record
from saturnmq.raft.core.actions import Role
from saturnmq.raft.driver import Listener, RaftMember
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.ledger.retention import RetentionSettings
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger import opening
from saturnmq.replication.dledger.dispatch import GroupDispatch
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.store import FlushDiskType, MessageStore, StoreSettings, wall_clock_ms
from saturnmq.store.files.disk import Disk
from saturnmq.store.maintenance.retention import delete_hours

_KEPT_HOURS: Final = 87_600  # retention of the ledger's files while the old log still has files (DL-U03)
_NOOP_HOST: Final = ("127.0.0.1", 10911)


class GroupMember(Listener):
    """One member of a group with its store. `store.open` loads the Raft member too, which joins in `take_part` (DL-B14).

    on_role: called after a role change.
    """

    def __init__(
        self,
        settings: StoreSettings,
        raft: RaftSettings,
        net: NetSettings,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.raft = raft
        self.on_role: Callable[[], None] | None = None
        self._net = net
        self._disk = Disk()
        self._settings = dataclasses.replace(settings, transient_pool_enable=False)
        self.log = RaftLog(settings.commit_log_dirs, settings.commit_log_bytes, self._disk)
        self.store = MessageStore(
            self._settings, log=self.log, recover=self._recover, clock_ms=clock_ms, disk=self._disk
        )
        self.dispatch = GroupDispatch(self.log, self.store)
        self.log.listen(self.dispatch.confirmed, self.store.stop_writing)
        self.log.on_old_log_deleted = self._old_log_deleted

    def _recover(self, store: MessageStore, rebuild: Callable[[int, int], None] | None) -> None:
        opening.open_store(store, self.log, self.dispatch, self.raft, self.make_member, rebuild)

    def make_member(self, start_pos: int) -> RaftMember:
        """Create the Raft member without loading it; an empty ledger begins at start_pos (DL-U01)."""
        settings = self._settings
        member = self.log.member = RaftMember(
            self.raft,
            self.raft.folder(settings.root),
            self._net,
            file_bytes=settings.commit_log_bytes,
            sync_before_ack=settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            stamp=stamp_message,
            noop=noop_message(_NOOP_HOST, self.store.clock_ms()),
            body_is_good=message_is_good,
            start_pos=start_pos,
            listener=self,
            disk=self._disk,
            retention=self.retention(),
        )
        member.keep_from = self._needed_from
        return member

    def retention(self) -> RetentionSettings:
        """Retention of the ledger: nothing is deleted while the old log has files, so that offsets have no gap (DL-U03)."""
        settings = self._settings
        hours = tuple(sorted(delete_hours(settings.delete_when)))
        if self.log.files:
            return RetentionSettings(hours, _KEPT_HOURS, force_enabled=False)
        return RetentionSettings(
            hours, settings.file_reserved_hours + 1, settings.clean_forcibly, settings.disk_percent_max / 100
        )

    def _old_log_deleted(self) -> None:
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
    def leads(self) -> bool:
        """Whether the member leads and its lease holds (DL-X08)."""
        return self.log.leads

    @property
    def serving(self) -> bool:
        """Whether puts are accepted; see `RaftLog.serving`."""
        return self.log.serving

    def stop_serving(self) -> None:
        """Refuse puts until `begin_serving`."""
        self.log.serving = False

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """Listener callback. Stop serving and drop pending puts: their entries are committed or removed by the next leader."""
        self.stop_serving()
        self.store.unconfirmed.clear()
        self.log.fail_waiters()
        node = self._opened().node
        if node is not None and node.failed is not None:
            why = f"the ledger failed: {node.failed}"
            self.log.mark_failure(why)
            self.store.stop_writing(StoreError(why))
        if self.on_role is not None:
            self.on_role()

    def committed(self, index: int, end_pos: int) -> None:
        """Listener callback: everything before end_pos is committed."""
        self.log.end = self._opened().files.end_pos
        self.log.advance(end_pos)

    @property
    def caught_up(self) -> bool:
        """Whether the whole ledger is committed and dispatched (DL-C03)."""
        member = self._opened()
        state = member.status()
        return state.end_index == state.committed_index and self.store.dispatched >= member.files.end_pos

    def begin_serving(self) -> None:
        """Accept puts; queue offsets continue after the committed ones (DL-C03)."""
        store, files = self.store, self._opened().files
        store.discard_unconfirmed()
        last = files.entry(files.end_index)
        if last is not None:
            with contextlib.suppress(MessageError):
                store.last_store_ms = max(store.last_store_ms, decode_record(last.body).store_timestamp_ms)
        self.log.end = files.end_pos
        self.log.serving = True
