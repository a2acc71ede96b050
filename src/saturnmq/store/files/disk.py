"""Every call of the store that changes a file goes through one object, so that a test can record, cut and replay it.

Writes into a mapping are slice assignments of the object that `map` returns (never struct.pack_into), for the same reason.
Source: issue of the crash matrix, DUR-04, DUR-05, DUR-14.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from functools import cached_property
from pathlib import Path

from saturnmq.protocol.errors import DiskFull, StoreError


class Disk:
    """The file system. Paths are absolute or relative to the process; sizes and positions are bytes.

    A descriptor stays open from the creation of its file to its last good sync (DUR-05): its owner sees to that.
    """

    @cached_property
    def _safe_folders(self) -> set[Path]:
        """Whose entries are on disk, as this process knows."""
        return set()

    def make_folder(self, path: Path) -> None:
        """Make a folder and what leads to it; their entries are on disk. Raises StoreError.

        One that is there may have been made by a process that was killed before it synced the entry: that is done at its
        first use.
        """
        missing = []
        folder = path
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        try:
            if folder not in self._safe_folders:
                with contextlib.suppress(PermissionError):  # then it is older than the store
                    self.sync_folder(folder.parent)
                self._safe_folders.add(folder)
            for made in reversed(missing):
                self.make_one_folder(made)
                self.sync_folder(made.parent)
                self._safe_folders.add(made)
        except OSError as error:
            raise StoreError(f"cannot create folder {path}: {error.strerror}") from error

    def make_one_folder(self, path: Path) -> None:
        """Make a folder in one that is there. Raises OSError."""
        path.mkdir(exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and what is left in it; no error when that cannot be done."""
        self._safe_folders.discard(path)
        shutil.rmtree(path, ignore_errors=True)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        """A new file of zeros and its descriptor. allocate: its blocks are reserved now (DUR-04), else it is sparse.

        The folder must be there. Nothing of it is on disk before `sync` and `sync_folder`. Raises DiskFull, StoreError.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot create {path}: {error.strerror}") from error
        try:
            if allocate:
                os.posix_fallocate(fd, 0, size_bytes)
            else:
                os.ftruncate(fd, size_bytes)
        except OSError as error:
            os.close(fd)
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room for {path} ({size_bytes} bytes): {error.strerror}") from error
            raise StoreError(f"cannot allocate {path} ({size_bytes} bytes): {error.strerror}") from error
        return fd

    def open(self, path: Path) -> int:
        """A descriptor of an existing file, for reading and writing. Raises StoreError."""
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error

    def close(self, fd: int) -> None:
        os.close(fd)

    def map(self, fd: int, size_bytes: int) -> mmap.mmap:
        """The whole file in memory, shared, for reading and writing. Raises OSError, ValueError."""
        return mmap.mmap(fd, size_bytes)

    def read(self, fd: int, at: int, size_bytes: int) -> bytes:
        """Up to size_bytes from position at. Raises OSError."""
        return os.pread(fd, size_bytes, at)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        """All of data at position at. Raises OSError."""
        view = memoryview(data)
        while len(view):
            done = os.pwrite(fd, view, at)
            at += done
            view = view[done:]

    def sync(self, fd: int) -> None:
        """What was written by this descriptor and through mappings of it is on disk (fdatasync). Raises OSError."""
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """The folder's entries are on disk. Raises OSError."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_file(self, path: Path, data: bytes) -> None:
        """A small file with these contents, on disk itself; its folder entry is not yet. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Rename over what is there. Raises OSError."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; one that has the name already loses it. Raises OSError."""
        target.unlink(missing_ok=True)
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file; no error when it is not there. Raises OSError."""
        path.unlink(missing_ok=True)
