"""All file system operations of the store that modify a file, behind one object.

Tests replace it to record, truncate and replay writes, so the store must not change files in any other way. For the same reason
writes into a mapping are slice assignments on the object that `map` returns, not struct.pack_into.

A file that cannot be opened because the process or the machine has no descriptor left is not a failed disk: a worker thread
tries again for a short time, then the caller gets OutOfDescriptors, which is no reason to stop the store.

Requirements: DUR-04, DUR-05, DUR-14.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Final, TypeVar, cast

from saturnmq.protocol.errors import DiskFull, OutOfDescriptors, StoreError

FILE_MODE: Final = 0o640  # the group may read, for backups and Spark; messages are not for every user of the machine
PRIVATE_MODE: Final = 0o600  # state and configuration: topics, offsets, accounts
FOLDER_MODE: Final = 0o750
_THREADS: Final = 2  # the flush of the log, and maintenance
_READ_THREADS: Final = 2
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_WARM_BYTES: Final = 262_144
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_OPEN_PAUSES_S: Final = (0.01, 0.04, 0.15)
T = TypeVar("T")


@cache
def _mincore() -> Callable[[mmap.mmap, int, int, bytearray], int] | None:
    """Sets a byte to 1 for each page of a range of a mapping that is in the page cache; None where the system has no such call.

    Returned by it: 0, or -1 if the system refuses.
    """
    import ctypes  # at the first old record: a start does not pay for it

    call = getattr(ctypes.PyDLL(None), "mincore", None) if sys.platform == "linux" else None
    if call is None:
        return None
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    byte, address_of = ctypes.c_char, ctypes.addressof

    def ask(mapping: mmap.mmap, at: int, size_bytes: int, pages: bytearray) -> int:
        # Exported only for this call, so that the mapping can still be closed later.
        start = address_of(byte.from_buffer(mapping)) + at
        return cast(int, call(start, size_bytes, address_of(byte.from_buffer(pages))))

    return ask


def open_error(failure: str, error: OSError) -> StoreError:
    """The error for a file that could not be opened, created or mapped: OutOfDescriptors, DiskFull or StoreError."""
    text = f"{failure}: {error.strerror}"
    if error.errno in _NO_DESCRIPTOR:
        return OutOfDescriptors(text)
    return DiskFull(text) if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError(text)


def _open(path: Path, flags: int) -> int:
    """os.open with FILE_MODE. Outside the event loop, tries again if no descriptor is free. Raises OSError."""
    for pause_s in _OPEN_PAUSES_S:
        try:
            return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or _on_event_loop():
                raise
        time.sleep(pause_s)
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Disk:
    """The file system. Paths are absolute or relative to the working directory; sizes and positions are bytes.

    The owner of a descriptor keeps it open from the file's creation until its last successful sync, so that a write error is
    reported to it (DUR-05).
    """

    @cached_property
    def threads(self) -> Executor:
        """The threads for syncs and file creation. They are not asyncio's own: a slow name lookup must not delay a flush."""
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="saturnmq-disk")

    @cached_property
    def read_threads(self) -> Executor:
        """The threads for reads of what is not in the page cache; a flush must not wait behind them."""
        return ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="saturnmq-read")

    async def in_thread(self, call: Callable[..., T], *args: object) -> T:
        """Run a call that waits for the disk in one of `threads`; returns or raises what it does."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *args)

    def stop_threads(self) -> None:
        """Let the threads end, which must be idle; the next use starts new ones."""
        for name in ("threads", "read_threads"):
            threads: Executor | None = self.__dict__.pop(name, None)
            if threads is not None:
                # The threads are idle; a wait would block the event loop.
                threads.shutdown(wait=False)

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
            for new_folder in reversed(missing):
                self.make_one_folder(new_folder)
                self.sync_folder(new_folder.parent)
                self._safe_folders.add(new_folder)
        except OSError as error:
            raise open_error(f"cannot create folder {path}", error) from error

    def make_one_folder(self, path: Path) -> None:
        """Create a folder in an existing one. Raises OSError."""
        path.mkdir(FOLDER_MODE, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and its contents; errors are ignored."""
        self._safe_folders.discard(path)
        shutil.rmtree(path, ignore_errors=True)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        """Create a zero-filled file and return its descriptor.

        allocate: reserve its blocks now (DUR-04); otherwise the file is sparse. The folder must exist. Nothing is durable before
        `sync` and `sync_folder`. Raises DiskFull, OutOfDescriptors, StoreError.
        """
        try:
            fd = _open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise open_error(f"cannot create {path}", error) from error
        try:
            if allocate:
                # Blocks now: a full disk is an error here, not a SIGBUS on a page of the mapping later (DUR-04).
                os.posix_fallocate(fd, 0, size_bytes)
            else:
                os.ftruncate(fd, size_bytes)
        except OSError as error:
            os.close(fd)
            # A file of the wrong length would be taken for damage at the next start.
            path.unlink(missing_ok=True)
            raise open_error(f"cannot allocate {path} ({size_bytes} bytes)", error) from error
        return fd

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing and return its descriptor. Raises OutOfDescriptors, StoreError."""
        try:
            return _open(path, os.O_RDWR)
        except OSError as error:
            raise open_error(f"cannot open {path}", error) from error

    def close(self, fd: int) -> None:
        os.close(fd)

    def map(self, fd: int, size_bytes: int) -> mmap.mmap:
        """Map the whole file, shared, for reading and writing. Raises OSError, ValueError."""
        return mmap.mmap(fd, size_bytes)

    def read(self, fd: int, at: int, size_bytes: int) -> bytes:
        """Read up to size_bytes at a position. Raises OSError."""
        return os.pread(fd, size_bytes, at)

    def read_file(self, path: Path, at: int, size_bytes: int) -> bytes:
        """Up to size_bytes of a file at a position, with a descriptor of its own; safe in a thread. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size_bytes, at)
        finally:
            os.close(fd)

    def read_cached(self, fd: int, at: int, size_bytes: int) -> bytes | None:
        """Up to size_bytes at a position, or None if they are not in the page cache.

        It waits for the disk where the system has no such read. Raises OSError.
        """
        data = bytearray(size_bytes)
        try:
            # The kernel returns EAGAIN instead of waiting for the disk.
            read_bytes = os.preadv(fd, [data], at, _NOWAIT)
        except BlockingIOError:
            return None
        except (OSError, AttributeError):  # a file system or a system without RWF_NOWAIT
            return os.pread(fd, size_bytes, at)
        # A short read: the rest is asked for once more, and is empty at the end of the file.
        if 0 < read_bytes < size_bytes:  # the end of the file, or of what is in the page cache
            tail = self.read_cached(fd, at + read_bytes, size_bytes - read_bytes)
            return None if tail is None else bytes(data[:read_bytes]) + tail
        return bytes(data[:read_bytes])

    def is_resident(self, mapping: mmap.mmap, at: int, size_bytes: int) -> bool:
        """Whether an access to a range of a mapping does not wait for the disk; also true where the system cannot report it.

        It copies nothing: a fifth to a tenth of the time of a read for the range that a pull of old records looks at.
        """
        mincore = _mincore()
        if mincore is None:
            return True
        # Whole pages: mincore takes a page-aligned address.
        at, end = at // mmap.PAGESIZE * mmap.PAGESIZE, min(at + size_bytes, len(mapping))
        # One byte per page, rounded up.
        pages = bytearray(-(min(at - end, 0) // mmap.PAGESIZE))
        return not pages or mincore(mapping, at, end - at, pages) != 0 or 0 not in pages

    def warm(self, fd: int, at: int, size_bytes: int) -> None:
        """Read a range into the page cache; the data is not used, so an error is not reported. Safe in a thread."""
        # A small buffer is enough: the data only has to pass through the page cache.
        buffer = bytearray(min(size_bytes, _WARM_BYTES))
        with contextlib.suppress(OSError):
            while size_bytes > 0 and (read_bytes := os.preadv(fd, [buffer], at)) > 0:
                at += read_bytes
                size_bytes -= read_bytes

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        """Write all of data at a position. Raises OSError."""
        view = memoryview(data)
        while len(view):
            # It may write less than it was given, for instance when the disk becomes full.
            written_bytes = os.pwrite(fd, view, at)
            at += written_bytes
            view = view[written_bytes:]

    def sync(self, fd: int) -> None:
        """Make durable what was written through this descriptor and mappings of it (fdatasync). Raises OSError."""
        # Without times of the file: its length never changes after the creation.
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make the folder's entries durable. Raises OSError; OutOfDescriptors if nothing was tried."""
        fd = self._open_or_retry(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a small file, for its owner only, and fsync it; its entry is not durable yet. Raises OSError, OutOfDescriptors."""
        fd = self._open_or_retry(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            # The mode of open() is subject to the umask, and a former file may have another one.
            os.fchmod(fd, PRIVATE_MODE)
            view = memoryview(data)
            while len(view):
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def _open_or_retry(self, path: Path, flags: int) -> int:
        try:
            return _open(path, flags)
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:  # unlike an error of the sync that follows, it is not final
                raise open_error(f"cannot open {path}", error) from error
            raise

    def replace(self, source: Path, target: Path) -> None:
        """Rename source to target, replacing it. Raises OSError."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Hard-link source as target; an existing target is removed first. Raises OSError."""
        # `os.link` fails if the target exists.
        target.unlink(missing_ok=True)
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing file is no error. Raises OSError."""
        path.unlink(missing_ok=True)
