"""Marker file naming the damaged entry that made a member fail, so that the next start repairs that entry first (DUR-10).

The file `damaged` next to `currterm` holds the entry's index in decimal digits. It is a hint: the next start reads the entry again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import write_marker

log = logging.getLogger(__name__)

MARK_NAME: Final = "damaged"


class DamageMark:
    """Access to the marker file. folder: the member's directory."""

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
