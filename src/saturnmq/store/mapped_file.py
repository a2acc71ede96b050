"""Files of fixed length, mapped into memory, and folders of them named by their first byte's offset.

A file is allocated when it is made (posix_fallocate): a full disk fails there, with DiskFull, and not later as a fault in the
mapping. Flushing uses fdatasync, never mmap.flush, which would hold the interpreter lock. Source: spec 02 sections 1 and 2.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError

PAGE_BYTES: Final = 4096
NAME_DIGITS: Final = 20


class MappedFile:
    """One mapped file. start: the offset of its first byte in the whole sequence. wrote: bytes in use."""

    __slots__ = ("_fd", "end", "map", "path", "size_bytes", "start", "view", "wrote")

    def __init__(self, path: Path, size_bytes: int, *, create: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.start = int(path.name)
        self.end = self.start + size_bytes
        self.wrote = 0
        self._fd = _allocate(path, size_bytes) if create else _open(path, size_bytes)
        try:
            self.map = mmap.mmap(self._fd, size_bytes)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise StoreError(f"cannot map {path} ({size_bytes} bytes): {error}") from error
        self.view = memoryview(self.map)

    def flush(self) -> None:
        """Everything written so far is on disk. Raises OSError; safe to call from a thread."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Unmap and close. Views that others still hold keep the mapping alive until they are gone."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            return  # a reader still holds a slice; the mapping goes with it

    def delete(self) -> None:
        """Close and remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)


def _allocate(path: Path, size_bytes: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}") from error
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        os.close(fd)
        path.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room for {path} ({size_bytes} bytes): {error.strerror}") from error
        raise StoreError(f"cannot allocate {path} ({size_bytes} bytes): {error.strerror}") from error
    return fd


def _open(path: Path, size_bytes: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error
    length = os.fstat(fd).st_size
    if length != size_bytes:
        os.close(fd)
        raise CorruptRecord(
            f"{path} is {length} bytes long, must be {size_bytes}: it was cut, or the store was written with another "
            "file size (mappedFileSizeCommitLog, mappedFileSizeConsumeQueue)"
        )
    return fd


def file_name(offset: int) -> str:
    """The original's file name for a start offset: 20 digits (ST-01)."""
    return f"{offset:0{NAME_DIGITS}d}"


class MappedFiles:
    """A folder of mapped files of one size, in order of their start."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self.files: list[MappedFile] = []

    def load(self) -> None:
        """Map what is there. Raises CorruptRecord for a wrong length or a gap between neighbours (RC-04, MF-14)."""
        if not self.folder.is_dir():
            return
        for path in sorted(p for p in self.folder.iterdir() if p.name.isdigit() and len(p.name) == NAME_DIGITS):
            file = MappedFile(path, self.size_bytes, create=False)
            file.wrote = self.size_bytes
            self.files.append(file)
        for before, after in zip(self.files, self.files[1:], strict=False):
            if after.start != before.end:
                raise CorruptRecord(f"{after.path} does not follow {before.path}: a file between them is missing")

    def append_file(self, start: int) -> MappedFile:
        """Make the next file. Raises DiskFull, StoreError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = MappedFile(self.folder / file_name(start), self.size_bytes, create=True)
        self.files.append(file)
        return file

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds the offset, whose first file need not start at 0 (ST-02)."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].start) // self.size_bytes
        return files[index] if 0 <= index < len(files) else None

    def truncate(self, end: int) -> None:
        """Nothing is written at or after end: later files go, the one that holds end ends there (RC-10)."""
        while self.files and self.files[-1].start >= end and len(self.files) > 1:
            self.files.pop().delete()
        if self.files:
            last = self.files[-1]
            last.wrote = max(0, min(end - last.start, self.size_bytes))

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()

    def delete(self) -> None:
        for file in self.files:
            file.delete()
        self.files.clear()
