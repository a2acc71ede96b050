"""The log under the store of a broker in a DLedger group: the old commit log, followed by the replicated ledger.

A put is appended to the leader's ledger at once and confirmed when the group has committed it. Physical offsets below `divided`
lie in the old log's files, the others in the bodies of the ledger's entries. Only committed entries may be read.

Requirements: DL-A03, DL-B04, DL-B06..DL-B08, DL-B09..DL-B12, DL-U01, DL-U02.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from saturnmq.metrics import Histogram
from saturnmq.protocol.errors import FlushFailed, SaturnError
from saturnmq.protocol.message import BLANK_MAGIC, encode_records
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, PhysicalOffset
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.core.messages import Code
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import HEADER, EntryHeader, read_header
from saturnmq.raft.ledger.space import growing_folders
from saturnmq.replication.dledger.answer import GroupAnswer, refused_by
from saturnmq.replication.dledger.failure import SyncMark
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile, MappedFiles
from saturnmq.store.log.commit_log import END_BLANK_BYTES, SIZE_AND_MAGIC, CommitLog
from saturnmq.store.log.log import Extent, Group
from saturnmq.store.log.waiter import Waiter
from saturnmq.store.results import Confirmed, PutStatus

log = logging.getLogger(__name__)

NOT_LEADING: Final = "this broker does not lead its group"
_UNSTAMPED: Final = PhysicalOffset(0)  # the ledger sets the offset of a record when its entry gets a position
_RESIDENT_BYTES: Final = 32 << 20


class JoinedFiles(MappedFiles):
    """The old log's files, and from the offset `divided` on the ledger's, once it is attached as `following`."""

    def __init__(self, folders: Sequence[Path], size_bytes: int, disk: Disk) -> None:
        super().__init__(folders, size_bytes, disk)
        self.divided = PhysicalOffset(0)
        self.following: MappedFiles | None = None

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds the offset."""
        # Two numberings of files: the ledger's continue where the old log ends.
        if offset >= self.divided and self.following is not None:
            return self.following.find(offset)
        return super().find(offset)


class RaftLog(CommitLog):
    """The `Log` of a member of a DLedger group.

    Before `attach` it is the old commit log; afterwards it reads both and appends to the ledger only, as proposals of a leader.
    end: end of the log, including uncommitted entries. committed_pos: everything in the ledger before it is committed.
    member: set before the log is opened. on_old_log_deleted: retention has deleted the last file of the old log.
    """

    quorum = True  # every put waits for the group, even with WAIT=false (DL-B15)

    def __init__(self, folders: Sequence[Path], file_bytes: int, disk: Disk) -> None:
        super().__init__(folders, file_bytes, disk)
        self._joined = self._files = JoinedFiles(folders, file_bytes, disk)
        self.member: RaftMember | None = None
        self.ledger: LedgerFiles | None = None
        self.divided = self.committed_pos = PhysicalOffset(0)
        self.refusal = NOT_LEADING
        self.on_old_log_deleted: Callable[[], None] | None = None
        self._on_confirmed: Callable[[PhysicalOffset], object] | None = None
        self._waiting: deque[Waiter] = deque()
        self._closed_first = NO_PHYSICAL_OFFSET  # `first_position`, saved when the ledger is closed
        self._marked = False
        self.replication_seconds = Histogram()  # from a proposal until the group has committed it

    @property
    def serving(self) -> bool:
        """Whether this broker leads and has dispatched all earlier entries; otherwise puts are refused (DL-C03, DL-X23)."""
        return not self.refusal

    # As a text: every refused put names the reason.
    @serving.setter
    def serving(self, serving: bool) -> None:
        self.refusal = "" if serving else NOT_LEADING

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those of the ledger, which may be on other disks than the old log: only the ledger gets new files."""
        if self.member is None or self.ledger is None:
            return super().folders
        return tuple(growing_folders(self.ledger.data.folders, self.member.settings.read_only_folders))

    @property
    def fsync_seconds(self) -> Histogram:
        """See `Log.fsync_seconds`."""
        return self.ledger.sync_seconds if self.ledger is not None else super().fsync_seconds

    @property
    def leads(self) -> bool:
        """Whether the member leads and its lease holds (DL-X08)."""
        return self.member is not None and self.member.leads

    def attach(self, ledger: LedgerFiles, divided: PhysicalOffset, committed_pos: PhysicalOffset) -> None:
        """Attach the ledger, which holds all offsets from divided on."""
        self.ledger, self.divided, self.committed_pos = ledger, divided, committed_pos
        self._joined.following, self._joined.divided = ledger.data, divided
        self.end = PhysicalOffset(ledger.end_pos)

    def seal(self) -> PhysicalOffset:
        """Close the old log for appends with a blank record up to the end of its last file (DL-U01, DL-X20). Returns its end."""
        last = self.files[-1]
        free_bytes = last.end - self.end
        # As in `file_for`: fewer bytes than a filler has are left without one.
        if free_bytes >= END_BLANK_BYTES:
            at = self.end - last.start
            last.map[at : at + END_BLANK_BYTES] = SIZE_AND_MAGIC.pack(free_bytes, BLANK_MAGIC)
        # Before the ledger begins: otherwise a crash could leave a gap between both.
        last.flush()
        self.end = self.committed = PhysicalOffset(last.end)
        return self.end

    @property
    def readable_end(self) -> PhysicalOffset:
        return self.committed_pos if self.ledger is not None else self.end

    @property
    def first_position(self) -> PhysicalOffset:
        """Offset of the first byte retained, in the old log as long as that has files (DL-B09)."""
        # The last checkpoint is written after the ledger was closed.
        if self._closed_first >= 0:
            return self._closed_first
        if self.files or self.ledger is None:
            return super().first_position
        return PhysicalOffset(self.ledger.begin_pos)

    def entry_pos(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Position of the entry whose body begins at this physical offset; any other offset is returned unchanged."""
        pos = PhysicalOffset(offset - ENTRY_HEADER_BYTES)
        view = self.ledger.view(pos) if self.ledger is not None and pos >= self.ledger.begin_pos else None
        # Bytes of a body can look like anything: only a header that names its own position counts.
        if view is None or len(view) < HEADER.size or not _is_entry(read_header(view, 0), pos):
            return offset
        return pos

    @property
    def cut_file(self) -> str:
        """See `Log.cut_file`."""
        files = self.ledger.data.files if self.ledger is not None else []
        return super().cut_file or next((file.cut for file in files if file.cut), "")

    # ---- append

    def append(self, groups: Sequence[Group]) -> tuple[list[Extent], GroupAnswer]:
        """See `Log.append`: one entry each, one proposal for all (DL-A03, DL-B08)."""
        assert self.member is not None, "open() comes first"
        # The position is known when the core has placed the entries; `stamp_message` sets it.
        bodies = [body for group in groups for body in encode_records(*group, _UNSTAMPED)[0]]
        answer = GroupAnswer(self.replication_seconds)
        response = self.member.offer(bodies, answer.arrived)
        if response.code != Code.SUCCESS:
            raise refused_by(response)
        extents = [
            (PhysicalOffset(pos + ENTRY_HEADER_BYTES), len(body))
            for pos, body in zip(response.positions, bodies, strict=True)
        ]
        self.end = PhysicalOffset(sum(extents[-1]))  # uncommitted: readers stop at `committed_pos`
        return extents, answer

    async def stop_appends(self) -> None:
        """Leave the group. Raises StoreError, OSError."""
        self.serving = False
        # Before the ledger is closed, which `member.stop` does.
        self._closed_first = self.first_position  # the last checkpoint needs it, and the ledger is closed before that
        if self.member is None:
            return
        try:
            await self.member.stop()
        except (SaturnError, OSError) as error:
            self.mark_failure(f"the ledger's last sync failed: {error}")
            raise

    def mark_failure(self, why: str) -> None:
        """Write the sync-failed marker, once: the next start needs the synced and the acknowledged index (DUR-06, DUR-07)."""
        # The first failure has the indexes that count.
        if self.member is not None and self.member.node is not None and not self._marked:
            self._marked = True
            node = self.member.node
            SyncMark(node.synced_index, node.acked_index, why).write(self.member.files.folder, self._disk)

    def close(self) -> None:
        super().close()
        if self.member is not None:
            self.member.files.close()

    # ---- confirmation: a record is confirmed when the group has committed it

    @property
    def confirmed_end(self) -> PhysicalOffset:
        return self.committed_pos if self.ledger is not None else super().confirmed_end

    def listen(
        self, on_confirmed: Callable[[PhysicalOffset], object], on_failure: Callable[[FlushFailed], object]
    ) -> None:
        """See `Log.listen`. The member reports its failures through the role."""
        self._on_confirmed = on_confirmed

    def when_confirmed(self, position: PhysicalOffset, timeout_ms: int, callback: Confirmed) -> None:
        """See `Log.when_confirmed`.

        It fails at once on a member that does not lead, and when the leadership is lost. A put waits for its `GroupAnswer` instead.
        """
        if self.committed_pos >= position:
            callback(PutStatus.PUT_OK, "")
        elif not self.leads:
            callback(PutStatus.SERVICE_NOT_AVAILABLE, "")
        else:
            loop = asyncio.get_running_loop()
            waiter = Waiter(position, loop.time() + timeout_ms / 1000, callback)
            # A timer per waiter: these waits are few, and end together when the leadership is lost.
            waiter.timer = loop.call_at(waiter.deadline, waiter.complete, PutStatus.FLUSH_DISK_TIMEOUT)
            self._waiting.append(waiter)

    def advance(self, end: PhysicalOffset) -> None:
        """Everything before end is committed: notify the listener and the waiters."""
        # Recovery may have advanced it further.
        self.committed_pos = max(self.committed_pos, end)
        if self._on_confirmed is not None:
            # Before the waiters: their messages are visible when they are answered.
            self._on_confirmed(end)
        while self._waiting and self._waiting[0].end <= end:
            self._waiting.popleft().complete(PutStatus.PUT_OK)

    def fail_waiters(self) -> None:
        """Fail all waiters: this member no longer leads, so their entries may never be committed."""
        while self._waiting:
            self._waiting.popleft().complete(PutStatus.SERVICE_NOT_AVAILABLE)

    def start_flush(self) -> None:
        """Push the entries appended in this event-loop iteration now; the Raft member schedules its own fsyncs."""
        if self.member is not None:
            self.member.push()

    def flush_due(self, least_pages: int) -> bool:
        """False: the Raft member schedules its own fsyncs."""
        return False

    async def stop_flush(self) -> None:
        """Fail all waiters; the Raft member has already flushed."""
        self.fail_waiters()

    # ---- retention

    @property
    def first_store_ms(self) -> int:
        """See `Log.first_store_ms` (DL-B15)."""
        old = self.store_time(self.first_position)  # no record if the ledger holds it: an entry's header comes first
        return old if old >= 0 else self.store_time(PhysicalOffset(self.first_position + ENTRY_HEADER_BYTES))

    def expendable(self, safe: PhysicalOffset) -> int:
        """Number of the old log's files that may be deleted, even the last one (DL-U03)."""
        # The last one too: nothing is appended to the old log.
        return sum(file.end <= safe for file in self.files)

    async def truncate_front(self, reason: str) -> None:
        """Delete the oldest file of the old log."""
        await super().truncate_front(reason)
        if not self.files and self.on_old_log_deleted is not None:
            # From now on the ledger's retention may delete its files.
            log.info("old commit log deleted divided=%s", self.divided)
            self.on_old_log_deleted()

    def expire(self, used_percent: int) -> None:
        """Have the Raft member delete expired files of the ledger at any hour (DEL-08, DL-S09)."""
        if self.member is not None:
            # Any hour of deleteWhen, so that the policy lets expired files go now.
            hour = min(self.member.retention.delete_hours, default=4)
            self.member.clean(used_percent / 100, time.time(), hour)

    # ---- memory and space

    def forget_pages(self, flushed: PhysicalOffset) -> None:
        super().forget_pages(flushed)
        if self.ledger is not None:
            for file in self.ledger.data.files:
                if file.start < flushed:
                    file.forget_pages(min(flushed - _RESIDENT_BYTES, file.end))

    @property
    def wants_spare(self) -> bool:
        """False: the ledger preallocates its own files."""
        return False


def _is_entry(header: EntryHeader, pos: int) -> bool:
    return header.magic == ENTRY_MAGIC and header.pos == pos and header.size == ENTRY_HEADER_BYTES + header.body_len > 0
