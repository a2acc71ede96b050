"""All file system operations of the store that modify a file, behind one object.

Tests replace it to record, truncate and replay writes, so the store must not change files in any other way. For the same reason
writes into a mapping are slice assignments on the object that `map` returns, not struct.pack_into. The exception is
`IndexFile.put_many`, whose writes into a fully allocated index file a recording disk does not see.

Requirements: DUR-04, DUR-05, DUR-14.
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
    """The file system. Paths are absolute or relative to the working directory; sizes and positions are bytes.

    The owner of a descriptor keeps it open from the file's creation until its last successful sync, so that a write error is
    reported to it (DUR-05).
    """

    @cached_property
    def _safe_folders(self) -> set[Path]:
        """Folders whose directory entries this process knows to be durable."""
        return set()

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents durably. Raises StoreError.

        An existing folder may have been created by a process that was killed before it synced the entry, so its parent is
        synced at first use.
        """
        missing = []
        folder = path
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        try:
            if folder not in self._safe_folders:
                with contextlib.suppress(PermissionError):  # not writable: the folder is older than the store
                    self.sync_folder(folder.parent)
                self._safe_folders.add(folder)
            for made in reversed(missing):
                self.make_one_folder(made)
                self.sync_folder(made.parent)
                self._safe_folders.add(made)
        except OSError as error:
            raise StoreError(f"cannot create folder {path}: {error.strerror}") from error

    def make_one_folder(self, path: Path) -> None:
        """Create a folder in an existing one. Raises OSError."""
        path.mkdir(exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and its contents; errors are ignored."""
        self._safe_folders.discard(path)
        shutil.rmtree(path, ignore_errors=True)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        """Create a zero-filled file and return its descriptor.

        allocate: reserve its blocks now (DUR-04); otherwise the file is sparse. The folder must exist. Nothing is durable before
        `sync` and `sync_folder`. Raises DiskFull, StoreError.
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
                raise DiskFull(f"no space for {path} ({size_bytes} bytes): {error.strerror}") from error
            raise StoreError(f"cannot allocate {path} ({size_bytes} bytes): {error.strerror}") from error
        return fd

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing and return its descriptor. Raises StoreError."""
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error

    def close(self, fd: int) -> None:
        os.close(fd)

    def map(self, fd: int, size_bytes: int) -> mmap.mmap:
        """Map the whole file, shared, for reading and writing. Raises OSError, ValueError."""
        return mmap.mmap(fd, size_bytes)

    def read(self, fd: int, at: int, size_bytes: int) -> bytes:
        """Read up to size_bytes at a position. Raises OSError."""
        return os.pread(fd, size_bytes, at)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        """Write all of data at a position. Raises OSError."""
        view = memoryview(data)
        while len(view):
            done = os.pwrite(fd, view, at)
            at += done
            view = view[done:]

    def sync(self, fd: int) -> None:
        """Make durable what was written through this descriptor and mappings of it (fdatasync). Raises OSError."""
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make the folder's entries durable. Raises OSError."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a small file and fsync it; its directory entry is not durable yet. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Rename source to target, replacing it. Raises OSError."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Hard-link source as target; an existing target is removed first. Raises OSError."""
        target.unlink(missing_ok=True)
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing file is no error. Raises OSError."""
        path.unlink(missing_ok=True)
