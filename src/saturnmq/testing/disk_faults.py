"""A disk that fails on call, under the store of an embedded broker. Source: TST-06."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import DiskFull
from saturnmq.store import MessageStore
from saturnmq.store.maintenance.retention import Usage

_FULL: Final = Usage(100, 100, 100)


class DiskFaults:
    """Replaces calls of one store's disk while it is told to; `heal` undoes all of it.

    A failed flush is final for the store (DUR-06): after `fail_flush` only a restart writes again.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._disk = store.disk
        self._sync = self._disk.sync
        self._create = self._disk.create
        self._usage = store.disk_usage

    def fail_flush(self) -> None:
        """Every flush from now on fails with an input/output error; what it should have written is not on disk."""

        def lost(fd: int) -> None:
            raise OSError(errno.EIO, "input/output error (made by a test)")

        self._put(self._disk, "sync", lost)

    def slow_flush(self, seconds: float) -> None:
        """Every flush takes so much longer."""

        def slow(fd: int) -> None:
            time.sleep(seconds)  # in the store's thread
            self._sync(fd)

        self._put(self._disk, "sync", slow)

    def fill(self) -> None:
        """The disk is full: no file can be made, and the store looks at once and sees it."""

        def no_room(path: Path, size_bytes: int, *, allocate: bool) -> int:
            raise DiskFull(f"no room for {path} ({size_bytes} bytes): made by a test")

        self._put(self._disk, "create", no_room)
        self._put(self._store, "disk_usage", lambda: _FULL)
        self._store.recheck(_FULL)

    def heal(self) -> None:
        """The disk is well again."""
        self._put(self._disk, "sync", self._sync)
        self._put(self._disk, "create", self._create)
        self._put(self._store, "disk_usage", self._usage)
        self._store.recheck(self._usage())

    @staticmethod
    def _put(owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)
