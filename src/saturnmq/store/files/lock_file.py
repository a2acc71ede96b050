"""The lock of a store: a POSIX record lock on byte 0 of `lock`, which excludes Java brokers too.

Requirements: RC-14, UX-09, DUR-16.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import StoreError, StoreLocked
from saturnmq.store.files.disk import FILE_MODE, FOLDER_MODE

_FLOCK: Final = struct.Struct("hh4xqqi4x")  # Linux struct flock, 64 bit: type, whence, start, length, pid
_held: set[Path] = set()  # a record lock does not exclude other users in the same process


class LockFile:
    """The lock of one store folder; excludes other processes, and through `_held` other stores of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> None:
        """Acquire the lock. Raises StoreLocked naming the folder and the owning process, StoreError."""
        real = self.path.resolve()
        if real in _held:
            raise self._locked(os.getpid())
        try:
            self.path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise StoreError(
                f"store folder {self.path.parent} cannot be used: {error.strerror}.",
                hint="Choose a folder that this user can write (option --data, key storePathRootDir).",
            ) from error
        try:
            # The same lock as Java's FileChannel.tryLock(0, 1), so that brokers of both kinds exclude each other.
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            pid = self._holder()
            # Safe: this process holds no lock on the file that a close would release (see `_held`).
            os.close(self._fd)
            self._fd = -1
            raise self._locked(pid) from None
        _held.add(real)
        # As Apache's broker does; the bytes have no meaning.
        os.pwrite(self._fd, b"lock", 0)

    def _holder(self) -> int:
        try:
            return _conflicting_lock(self._fd)[1]
        except OSError:
            return 0

    def held(self) -> StoreLocked | None:
        """The error that `acquire` would raise now, None if the lock is free. Writes and locks nothing.

        Raises StoreError if the file cannot be read.
        """
        pid = self.owner()
        return None if pid is None else self._locked(pid)

    def owner(self) -> int | None:
        """The id of the process that holds the lock, 0 if it is not known; None if the lock is free. Raises StoreError."""
        if self.path.resolve() in _held:
            return os.getpid()  # closing another descriptor of the file would release the lock (DUR-16)
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            kind, pid = _conflicting_lock(fd)
        except OSError:
            return 0
        finally:
            os.close(fd)
        return None if kind == fcntl.F_UNLCK else pid

    def _locked(self, pid: int) -> StoreLocked:
        owner = f"process {pid}" if pid else "another process"
        return StoreLocked(
            f"Lock failed,MQ already started: store {self.path.parent} is in use by {owner}.",
            hint="Stop it, or give this one another folder (option --data, key storePathRootDir).",
        )

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            _held.discard(self.path.resolve())
            os.close(self._fd)
            self._fd = -1


def _conflicting_lock(fd: int) -> tuple[int, int]:
    """(type, process id) of the lock that conflicts with ours; type F_UNLCK if none does. Raises OSError."""
    answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)))
    return int(answer[0]), int(answer[4])
