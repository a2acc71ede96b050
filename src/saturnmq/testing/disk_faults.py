"""Fault injection for the disk under an embedded broker's store.

Requirements: TST-06.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import DiskFull
from saturnmq.store import MessageStore
from saturnmq.store.files.capacity import Usage

_FULL: Final = Usage(100, 100, 100)


class DiskFaults:
    """Replaces the disk calls of one store by failing or slow ones; `heal` restores all of them.

    A failed flush is final for the store (DUR-06): after `fail_flush` it accepts writes again only after a restart.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._disk = store.disk
        self._sync = self._disk.sync
        self._create = self._disk.create
        self._usage = store.disk_usage

    def fail_flush(self) -> None:
        """Make every flush fail with EIO; the data that it should have written is not durable."""

        def lost(fd: int) -> None:
            raise OSError(errno.EIO, "input/output error (injected by a test)")

        self._put(self._disk, "sync", lost)

    def slow_flush(self, seconds: float) -> None:
        """Make every flush take `seconds` longer."""

        def slow(fd: int) -> None:
            time.sleep(seconds)  # runs on the store's thread
            self._sync(fd)

        self._put(self._disk, "sync", slow)

    def fill(self) -> None:
        """Report a full disk: file creation fails, and the store rechecks its disk usage at once."""

        def disk_full(path: Path, size_bytes: int, *, allocate: bool) -> int:
            raise DiskFull(f"no space for {path} ({size_bytes} bytes): injected by a test")

        self._put(self._disk, "create", disk_full)
        self._put(self._store, "disk_usage", lambda: _FULL)
        self._store.recheck(_FULL)

    def heal(self) -> None:
        """Restore the disk calls and let the store recheck its disk usage."""
        self._put(self._disk, "sync", self._sync)
        self._put(self._disk, "create", self._create)
        self._put(self._store, "disk_usage", self._usage)
        self._store.recheck(self._usage())

    @staticmethod
    def _put(owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)
