"""Opens a member's ledger together with its checkpoint, which says how far the log was synced.

Between two checkpoints the checksums beside the log (`RecordSums`) say it. Whatever removes entries or checksums writes the
checkpoint first, so that a crash in between never lets a log that damage has shortened pass as whole (DUR-10).
"""

from __future__ import annotations

import logging

from saturnmq.protocol.errors import SaturnError
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.term_file import CheckpointFile

log = logging.getLogger(__name__)


def open_ledger(files: LedgerFiles, file: CheckpointFile) -> LedgerCheckpoint:
    """Recover the ledger; returns the checkpoint that holds from now on. Raises CorruptRecord, StoreError.

    Its end index is the last entry known to have been synced: a log that ends before it was damaged.
    """
    before = file.read()

    def lost(index: LedgerIndex) -> None:
        log.error("synced entries damaged folder=%s synced=%s", files.folder, index)
        file.write(LedgerCheckpoint(max(before.end_index, index), before.committed_index))

    files.on_loss = lost
    files.open()
    now = file.read()
    covering = LedgerCheckpoint(max(now.end_index, files.end_index), now.committed_index)
    if covering != now:
        try:
            file.write(covering)
        except SaturnError as error:
            log.warning("checkpoint not written folder=%s error=%s", files.folder, error)
            return now
    files.forget_sums()
    return covering


def write_checkpoint(files: LedgerFiles, file: CheckpointFile, checkpoint: LedgerCheckpoint) -> None:
    """Write the checkpoint durably, then delete the checksums that it replaces. Raises StoreError."""
    file.write(checkpoint)
    files.forget_sums(checkpoint.end_index)
