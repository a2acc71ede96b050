"""A member's ledger together with its checkpoint, which says how far the log was synced: opened, and written while it runs.

Between two checkpoints the checksums beside the log (`RecordSums`) say it. Whatever removes entries or checksums writes the
checkpoint first, so that a crash in between never lets a log that damage has shortened pass as whole (DUR-10).

Requirements: DL-Q07, DUR-06, DUR-10, DUR-15.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from saturnmq.protocol.errors import ResourceExhausted
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.node import Node
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.term_file import CheckpointFile

log = logging.getLogger(__name__)


def open_ledger(files: LedgerFiles, file: CheckpointFile) -> LedgerCheckpoint:
    """Recover the ledger; returns the checkpoint that holds from now on. Raises CorruptRecord, StoreError, DiskFull.

    A log that ends before the last entry known to have been synced is incomplete. The checkpoint says so until the core has
    recovered it, however long the log grows meanwhile: how many entries were lost is not known.
    """
    note_loss(files, file)
    files.open()
    now = file.read()
    # The higher end of both: a restored or lost checkpoint must not lower what the checksums have shown.
    covering = LedgerCheckpoint(
        max(now.end_index, files.end_index), now.committed_index, now.incomplete or now.end_index > files.end_index
    )
    if covering.incomplete:
        log.error("ledger incomplete folder=%s end=%s synced=%s", files.folder, files.end_index, covering.end_index)
    # Written now, because the checksums that say the same are deleted below.
    if covering != now:
        try:
            file.write(covering)
        except ResourceExhausted as error:
            # On a full disk a member may start, unless it is this write that keeps it from voting with a short log.
            if covering.incomplete and not now.incomplete:
                raise  # once the log has grown again, nothing else says so
            log.warning("checkpoint not written folder=%s error=%s", files.folder, error)
            return covering
    files.forget_sums()
    return covering


def note_loss(files: LedgerFiles, file: CheckpointFile) -> None:
    """Let `files.open` write to the checkpoint that synced entries are lost, before their checksums are deleted."""

    def lost(index: LedgerIndex) -> None:
        log.error("synced entries damaged folder=%s synced=%s", files.folder, index)
        before = file.read()
        # The committed index stays: recovery limits it to what is left.
        file.write(LedgerCheckpoint(max(before.end_index, index), before.committed_index, incomplete=True))

    files.on_loss = lost


def checkpoint_of(node: Node) -> LedgerCheckpoint:
    """The checkpoint to write for a running member; both indexes are limited to what is on disk.

    An entry that a crash may remove must count neither as committed nor as lost by damage after it. An incomplete log must
    still count as incomplete at the next start (DUR-10).
    """
    # What is only in the page cache does not count (DL-Q07).
    return LedgerCheckpoint(node.synced_index, min(node.committed, node.synced_index), node.recovering)


class CheckpointRounds:
    """Writes the checkpoint of a running member, if it has changed. name: of the member, for the log."""

    def __init__(self, files: LedgerFiles, file: CheckpointFile, name: str) -> None:
        self._files, self._file, self._name = files, file, name
        self._written = LedgerCheckpoint()
        self._refused = False  # the last write found no space or no descriptor

    def write(self, checkpoint: LedgerCheckpoint) -> None:
        """Write the checkpoint durably, then delete the checksums that it replaces; safe in a thread. Raises StoreError."""
        # The order matters: checksums without a checkpoint cost nothing, the reverse loses the evidence of a loss.
        self._file.write(checkpoint)
        self._files.forget_sums(checkpoint.end_index)

    async def round(self, now: LedgerCheckpoint, write: Callable[[], Awaitable[None]]) -> None:
        """Call `write`, which writes this checkpoint, unless it was written. Without space the next round tries again.

        That is logged once until a write succeeds. Raises StoreError for every other failure, which is final (DUR-06).
        """
        if now == self._written:
            return
        try:
            await write()
        except ResourceExhausted as error:
            if not self._refused:
                self._refused = True
                log.error("no space for the checkpoint, write retried member=%s error=%s", self._name, error)
            return
        self._written = now
        if self._refused:
            self._refused = False
            log.info("checkpoint written again member=%s", self._name)
