"""The state files of a ledger: `currterm` with term and vote, `checkpoint` with the last stored and committed index, `damaged`.

Requirements: DL-M01, DL-Q07, DL-X01, DUR-10, DUR-11, DUR-15. Format: docs/spec/04-dledger.md section 5.4.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, SaturnError
from saturnmq.raft.core.ids import Term
from saturnmq.raft.core.state import HardState
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint, format_checkpoint, format_term, parse_checkpoint, parse_term
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.reserve import Reserve
from saturnmq.store.files.state_file import StateFile, write_marker

log = logging.getLogger(__name__)

RESERVE_BYTES: Final = 65_536
MARK_NAME: Final = "damaged"


class TermFile:
    """The file `currterm`; durable when `write` returns.

    A full disk must not keep a member from voting: `currterm.reserve` holds space that is released for a write that finds none,
    and is allocated again afterwards. The write also frees the space of the backup before the last, so that the same
    reserve serves any number of terms, unless other files take the space meanwhile.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder, self._disk = folder, disk or Disk()
        self._reserve = Reserve(folder / "currterm.reserve", RESERVE_BYTES, self._disk)
        self._file = StateFile(folder / "currterm", self._disk, self._reserve)

    def reserve(self) -> bool:
        """Allocate the reserve if it does not exist; returns whether it exists. Safe in a thread."""
        if not self._folder.is_dir():
            return False  # a new member; its folder is made with the first write
        return self._reserve.allocate()

    def write(self, state: HardState) -> None:
        """Replace term and vote atomically: temporary file, fsync, rename, fsync of the folder. Raises StoreError."""
        self._file.write(format_term(state))
        # The write may have released the reserve; allocate it again.
        self.reserve()

    def read(self, *, ledger_is_empty: bool, force: bool = False) -> HardState:
        """Read term and vote; term 0 and no vote for a new member.

        If only the backup can be read, returns its term plus 1 and no vote: the lost file was one write ahead, so a vote in the
        backup's term may be lost. Raises CorruptRecord if the ledger has entries but no term can be read, unless force is set.
        """
        data = self._read(self._file.path)
        if data is not None:
            try:
                return parse_term(data)
            except (ValueError, KeyError):
                pass
        backup = self._read(self._file.backup)
        if backup is not None:
            try:
                # The lost file may hold a vote in the backup's term; in the term after it this member has not voted.
                return HardState(Term(parse_term(backup).term + 1), None)
            except (ValueError, KeyError):
                pass
        # Neither file exists and the log is empty: a new member.
        if (data is None and backup is None and ledger_is_empty) or force:
            return HardState()
        raise CorruptRecord(
            f"{self._file.path} is missing or cannot be read, though this member has voted or stored entries. "
            "Without it the member could vote twice in one term. Restore it, or remove the whole ledger of this member."
        )

    def _read(self, path: Path) -> bytes | None:
        return path.read_bytes() if path.is_file() else None


class CheckpointFile:
    """The file `checkpoint`: last stored and committed index, seconds old. The leader reports newer commits (DL-Q07)."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._file = StateFile(folder / "checkpoint", disk)

    def write(self, checkpoint: LedgerCheckpoint) -> None:
        """Replace the checkpoint atomically. Raises StoreError."""
        self._file.write(format_checkpoint(checkpoint))

    def read(self) -> LedgerCheckpoint:
        """Read the checkpoint; -1 for both indexes if there is no readable file."""
        try:
            return self._file.read(parse_checkpoint) or LedgerCheckpoint()
        # Old by a few seconds anyway: without it the leader reports the committed index again.
        except SaturnError:
            return LedgerCheckpoint()


class DamageMark:
    """The file `damaged` next to `currterm`: index of the damaged entry that made the member fail, for the next start (DUR-10).

    It is a hint: the next start reads the entry again.
    """

    def __init__(self, folder: Path, disk: Disk | None) -> None:
        self._path = folder / MARK_NAME
        self._disk = disk or Disk()

    def leave(self, index: int) -> None:
        """Write the marker durably. Failure, likely on a broken disk, is only logged; the next start then repairs nothing."""
        write_marker(self._path, b"%d" % index, self._disk, level=logging.ERROR)

    def damaged(self, files: LedgerFiles) -> int:
        """The index in the marker if that entry is still damaged; else -1, and the marker is removed."""
        try:
            try:
                index = int(self._path.read_bytes())
                # Readable now: the marker is out of date.
                files.entry(index)
            except CorruptRecord as error:
                log.warning("damaged entry to repair before an election index=%s error=%s", index, error.message)
                return index
            except ValueError:
                log.warning("unreadable damage marker deleted path=%s", self._path)
            self._disk.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("damage marker not removed path=%s error=%s", self._path, error)
        return -1
