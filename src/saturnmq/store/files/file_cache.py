"""LRU cache of read descriptors, which bounds the open files of thousands of consume queues."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from saturnmq.descriptors import descriptor_limit
from saturnmq.store.files.disk import Disk

OPEN_FILES_MAX: Final = 256
_LIMIT_SHARE: Final = (
    8  # at most this part of the process' descriptors: the rest serves connections, writers and other files
)


class FileCache:
    """Read descriptors; the least recently used one is closed first. Used on the event loop's thread only.

    Writers use descriptors of their own, which they close after the sync (DUR-05).
    """

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self._limit = max(min(limit, descriptor_limit() // _LIMIT_SHARE), 1)
        self._open: OrderedDict[Path, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, path: Path, at: int, size_bytes: int) -> bytes:
        """Bytes of a file; b"" if it does not exist. Raises OSError, StoreError."""
        fd = self._descriptor(path)
        return b"" if fd is None else self.disk.read(fd, at, size_bytes)

    def is_cached(self, path: Path, at: int, size_bytes: int) -> bool:
        """Whether `read` does not wait for the disk. Raises StoreError."""
        fd = self._descriptor(path)
        return fd is None or self.disk.is_cached(fd, at, size_bytes)

    def _descriptor(self, path: Path) -> int | None:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
        elif path.exists():
            if len(self._open) >= self._limit:
                self.disk.close(self._open.popitem(last=False)[1])
            fd = self._open[path] = self.disk.open(path)
        return fd

    def forget(self, path: Path) -> None:
        """Close the descriptor of a file that is about to be deleted."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self.disk.close(fd)

    def close(self) -> None:
        while self._open:
            self.disk.close(self._open.popitem()[1])
