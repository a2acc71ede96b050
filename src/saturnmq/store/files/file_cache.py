"""LRU cache of read descriptors, which bounds the open files of thousands of consume queues."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from saturnmq.descriptors import descriptor_limit
from saturnmq.store.files.disk import Disk

OPEN_FILES_MAX: Final = 256
# At most 1/8 of the process' descriptors; the others are for connections, writers and other files.
_DESCRIPTOR_SHARE: Final = 8


class FileCache:
    """Read descriptors; the least recently used one is closed first. Used on the event loop's thread only.

    Writers use descriptors of their own, which they close after the sync (DUR-05).
    """

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self._limit = max(min(limit, descriptor_limit() // _DESCRIPTOR_SHARE), 1)
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._descriptors)

    def read(self, path: Path, offset: int, size_bytes: int) -> bytes:
        """Up to size_bytes bytes from a byte offset of a file; b"" if the file does not exist. Raises OSError, StoreError."""
        fd = self._descriptor(path)
        return b"" if fd is None else self.disk.read(fd, offset, size_bytes)

    def read_cached(self, path: Path, offset: int, size_bytes: int) -> bytes | None:
        """As `read`; None if it would wait for the disk."""
        fd = self._descriptor(path)
        return b"" if fd is None else self.disk.read_cached(fd, offset, size_bytes)

    def _descriptor(self, path: Path) -> int | None:
        fd = self._descriptors.get(path)
        if fd is not None:
            self._descriptors.move_to_end(path)
        elif path.exists():
            if len(self._descriptors) >= self._limit:
                # Before another is opened: the limit holds at any time.
                self.disk.close(self._descriptors.popitem(last=False)[1])
            fd = self._descriptors[path] = self.disk.open(path)
        return fd

    def forget(self, path: Path) -> None:
        """Close the descriptor of a file that is about to be deleted."""
        fd = self._descriptors.pop(path, None)
        if fd is not None:
            self.disk.close(fd)

    def close(self) -> None:
        while self._descriptors:
            self.disk.close(self._descriptors.popitem()[1])
