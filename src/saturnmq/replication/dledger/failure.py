"""What a member of a group whose disk failed leaves for its next start: up to where its log was synced, and acknowledged.

After a failed sync the kernel may hold pages as clean that never came to disk; they read well until they are dropped. So the next
start cuts what was not synced, and the leader sends it again. Source: spec 07 DUR-06, DUR-07, DUR-10.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.term_file import CheckpointFile
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import leave_mark

log = logging.getLogger(__name__)

MARK_NAME: Final = "sync-failed.json"


@dataclass(frozen=True, slots=True)
class SyncMark:
    """Indexes: the last entry that was synced, the last one that this member said it holds. reason: file and errno."""

    durable_index: int
    acknowledged_index: int
    reason: str

    def leave(self, folder: Path, disk: Disk) -> None:
        """Have it on disk; on a broken one that may fail too, which the log then says."""
        leave_mark(folder / MARK_NAME, json.dumps(asdict(self)).encode(), disk)


def _read(path: Path, noted: LedgerCheckpoint) -> SyncMark | None:
    """The mark; one that cannot be read says no more than the checkpoint, which never counts what was not synced."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes())
        return SyncMark(int(values["durable_index"]), int(values["acknowledged_index"]), str(values["reason"]))
    except (ValueError, KeyError, TypeError):
        return SyncMark(noted.end_index, noted.end_index, "the mark cannot be read")


def drop_unsynced(files: LedgerFiles, disk: Disk) -> None:
    """Before the member is loaded: cut a ledger whose last sync failed to what was synced (DUR-07). files: not opened.

    A member that acknowledged more than that neither votes nor stands until it has it again: the checkpoint says so to the core
    (DUR-10). Cut off anywhere and done again it ends the same. Raises CorruptRecord, StoreError, OSError.
    """
    path, checkpoint = files.folder / MARK_NAME, CheckpointFile(files.folder, disk)
    noted = checkpoint.read()
    mark = _read(path, noted)
    if mark is None:
        return
    files.open()
    try:
        end = files.end_index
        if end > mark.durable_index:
            last = files.entry(mark.durable_index)
            files.cut(mark.durable_index + 1, last.end_pos if last is not None else files.begin_pos)
    finally:
        files.close()
    log.warning(
        "a sync failed before this start (%s): entries %s to %s were not sure to be on disk and are cut",
        mark.reason,
        mark.durable_index + 1,
        end,
    )
    checkpoint.write(LedgerCheckpoint(mark.acknowledged_index, min(noted.committed_index, mark.durable_index)))
    disk.unlink(path)
    disk.sync_folder(files.folder)
