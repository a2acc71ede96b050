"""Recovery after a failed fsync: a marker file with the synced and the acknowledged index, used by the member's next start.

After a failed fsync the kernel may mark pages clean that never reached the disk; they read correctly until they are evicted. So the
next start truncates everything that was not synced, and the leader sends it again.

Requirements: DUR-06, DUR-07, DUR-10.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.opened import note_loss
from saturnmq.raft.ledger.term_file import CheckpointFile
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import write_marker

log = logging.getLogger(__name__)

MARK_NAME: Final = "sync-failed.json"


@dataclass(frozen=True, slots=True)
class SyncMark:
    """Content of the marker: index of the last synced and of the last acknowledged entry, None if it is not known.

    reason: file and errno.
    """

    durable_index: LedgerIndex
    acknowledged_index: LedgerIndex | None
    reason: str

    def write(self, folder: Path, disk: Disk) -> None:
        """Write the marker durably; failure, likely on a broken disk, is only logged."""
        write_marker(folder / MARK_NAME, json.dumps(asdict(self)).encode(), disk)


def _read(path: Path, noted: LedgerCheckpoint) -> SyncMark | None:
    """Read the marker; None if there is none. An unreadable one is replaced by the checkpoint, which counts only synced entries."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes())
        return SyncMark(
            LedgerIndex(int(values["durable_index"])),
            LedgerIndex(int(values["acknowledged_index"])),
            str(values["reason"]),
        )
    except (ValueError, KeyError, TypeError):
        # Not known: the caller assumes that all that is there was acknowledged.
        return SyncMark(noted.end_index, None, "the marker cannot be read")


def drop_unsynced(files: LedgerFiles, disk: Disk) -> None:
    """Truncate a ledger whose last fsync failed to its synced index (DUR-07), before the member is loaded. files: not opened.

    If the member had acknowledged more, or may have, the checkpoint records it, so that the core neither votes nor stands for
    election until the entries are back (DUR-10). Idempotent: it may be interrupted anywhere and repeated. Raises CorruptRecord,
    StoreError, OSError.
    """
    path, checkpoint = files.folder / MARK_NAME, CheckpointFile(files.folder, disk)
    mark = _read(path, checkpoint.read())
    if mark is None:
        return
    # Opening may find damage as well, which must not be forgotten.
    note_loss(files, checkpoint)
    # The failed sync may have been one of the index.
    files.open(rewrite_index=True)
    try:
        noted, end = checkpoint.read(), files.end_index
        acknowledged = mark.acknowledged_index if mark.acknowledged_index is not None else end
        incomplete = noted.incomplete or acknowledged > mark.durable_index
        if incomplete and not noted.incomplete:  # before the cut, after which `end` no longer says it
            checkpoint.write(replace(noted, incomplete=True))
        if end > mark.durable_index:
            last = files.entry(mark.durable_index)
            # Nothing was synced: the ledger becomes empty where it began.
            files.cut(mark.durable_index + 1, last.end_pos if last is not None else files.begin_pos)
    finally:
        files.close()
    log.warning(
        "unsynced entries truncated after a failed sync reason=%s from=%s to=%s",
        mark.reason,
        mark.durable_index + 1,
        end,
    )
    committed_index = min(noted.committed_index, mark.durable_index)
    # So much may have been acknowledged, and the leader has it.
    checkpoint.write(LedgerCheckpoint(max(acknowledged, mark.durable_index), committed_index, incomplete))
    # Last: everything before can be repeated.
    disk.unlink(path)
    disk.sync_folder(files.folder)
