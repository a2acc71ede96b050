"""The reserve: a file of preallocated space, deleted on a full disk so that consumer offsets can still be written.

Requirements: DUR-15.
"""

from __future__ import annotations

import logging
from pathlib import Path

from saturnmq.protocol.errors import DiskFull, StoreError
from saturnmq.store.files.disk import Disk

log = logging.getLogger(__name__)


class Reserve:
    """The file `reserve` in the store's root folder."""

    def __init__(self, path: Path, size_bytes: int, disk: Disk) -> None:
        self.path = path
        self._size_bytes = size_bytes
        self._disk = disk

    def allocate(self) -> bool:
        """Create the file if the disk has space for it; returns whether it exists. Safe in a thread."""
        try:
            # Of another size after a change of the setting, or interrupted: it is made again.
            if self.path.exists() and self.path.stat().st_size == self._size_bytes:
                return True
            self._disk.close(self._disk.create(self.path, self._size_bytes, allocate=True))
        except (DiskFull, StoreError, OSError):
            return False
        return True

    def release(self) -> bool:
        """Delete the file to free its space; False if it did not exist."""
        if not self.path.exists():
            return False
        self._disk.unlink(self.path)
        log.warning("disk full, reserve released for state files bytes=%s path=%s", self._size_bytes, self.path)
        return True
