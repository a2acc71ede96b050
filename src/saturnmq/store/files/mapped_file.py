"""Memory-mapped files of fixed length, and sequences of them named by the offset of their first byte.

A file's blocks are allocated when it is created (posix_fallocate): a full disk fails there, with DiskFull, and not later as a
SIGBUS in the mapping. Flushing uses fdatasync, never mmap.flush, which would hold the GIL.

Requirements: ST-01, ST-02, ST-20, MF-01, MF-06, MF-14, RC-04, DUR-04.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.store.files.disk import Disk, open_error

PAGE_BYTES: Final = 4096
NAME_DIGITS: Final = 20
_CHUNK_BYTES: Final = 1_048_576


class MappedFile:
    """One mapped file. start: the offset of its first byte in the whole sequence; end: the offset after its last byte.

    target: where writes go: the mapping, or a buffer of the transient pool that is committed to the mapping later.
    """

    __slots__ = ("_disk", "_fd", "_is_new", "end", "map", "path", "size_bytes", "start", "target", "view")

    def __init__(self, path: Path, size_bytes: int, disk: Disk, *, create: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.start = int(path.name)
        self.end = self.start + size_bytes
        self._disk = disk
        self._is_new = create
        self._fd = disk.create(path, size_bytes, allocate=True) if create else disk.open(path)
        try:
            self.map = disk.map(self._fd, size_bytes)
        except (OSError, ValueError) as error:
            # The constructor fails, so that no other code would close it.
            disk.close(self._fd)
            text = f"cannot map {path} ({size_bytes} bytes)"
            raise open_error(text, error) if isinstance(error, OSError) else StoreError(f"{text}: {error}") from error
        self.view = memoryview(self.map)
        self.target: mmap.mmap = self.map

    def flush(self, *, named: bool = True) -> None:
        """Make everything written so far durable, including a new file's directory entry (DUR-04). Safe in a thread.

        named=False also syncs the folder of an existing file, whose entry may not be durable yet. Raises OSError.
        """
        self._disk.sync(self._fd)
        if self._is_new or not named:
            self._disk.sync_folder(self.path.parent)
            self._is_new = False

    @property
    def cut(self) -> str:
        """The fault if the file was truncated while it is open, else "". Any access to its lost pages ends the process."""
        # Closed: the mapping may live on for a reader, but the file is not written any more.
        if self._fd < 0:
            return ""
        length = os.fstat(self._fd).st_size
        if length >= self.size_bytes:
            return ""
        return f"{self.path} was cut to {length} bytes while it was in use, must be {self.size_bytes}"

    def is_cached(self, at: int, size: int) -> bool:
        """Whether a range is in the page cache, so that no access to it waits for the disk. at: position in the file."""
        return self._disk.is_resident(self.map, at, size)

    def warm(self, at: int, size: int) -> None:
        """Read a range into the page cache, without holding the interpreter's lock. For a thread."""
        self._disk.warm(self._fd, at, size)

    def forget_pages(self, until: int) -> None:
        """Drop pages before offset `until` from this process's resident set; the page cache keeps them."""
        # Only whole pages can be dropped; rounded down, so that the current page stays.
        length = min(until - self.start, self.size_bytes) // PAGE_BYTES * PAGE_BYTES
        if length > 0:
            self.map.madvise(mmap.MADV_DONTNEED, 0, length)

    def before_flush(self, begin: int, end: int) -> None:
        """Unmap the pages between two offsets from this process's page tables in one step.

        Otherwise the flush write-protects each page in a step of its own, with an interrupt to every processor: an eighth of the
        cost of a send.
        """
        first = max(begin - self.start, 0) // PAGE_BYTES * PAGE_BYTES
        length = min(end - self.start, self.size_bytes) - first
        # Not for one page: the system call would cost more than it saves.
        if length > PAGE_BYTES:
            self.map.madvise(mmap.MADV_DONTNEED, first, length)

    def close(self) -> None:
        """Unmap and close. Views that are still in use keep the mapping alive until they are released (MF-06)."""
        if self._fd < 0:
            return
        self._disk.close(self._fd)
        self._fd = -1
        with contextlib.suppress(BufferError):  # a reader still holds a slice; the mapping is freed with it
            self.view.release()
            self.map.close()

    def delete(self) -> None:
        """Close and delete the file durably. Raises OSError.

        If the file reappeared after a crash, it would leave a gap to files created later, and a gap is reported as damage.
        """
        self.close()
        self._disk.unlink(self.path)
        self._disk.sync_folder(self.path.parent)


def file_name(offset: int) -> str:
    """Apache RocketMQ's file name for a start offset: 20 digits (ST-01)."""
    return f"{offset:0{NAME_DIGITS}d}"


def is_zero(path: Path) -> bool:
    """Whether a file is empty or holds only zeros. Raises OSError."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if chunk.count(0) != len(chunk):
                return False
    return True


def numbered_files(folder: Path) -> list[Path]:
    """The files of a folder whose names are offsets, in ascending order."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.isdigit() and len(path.name) == NAME_DIGITS)


class MappedFiles:
    """Mapped files of equal size, ascending by start, in one folder or spread over several (ST-20)."""

    def __init__(self, folders: Sequence[Path], size_bytes: int, disk: Disk) -> None:
        self.folders = list(folders)
        self.size_bytes = size_bytes
        self.files: list[MappedFile] = []
        self._disk = disk

    def load(self) -> None:
        """Map the existing files. Raises CorruptRecord for a wrong length or a gap between neighbours (RC-04, MF-14).

        Syncs the last file, which may come from a process that was killed before the directory entry was durable (DUR-04).
        """
        paths = [path for folder in self.folders for path in numbered_files(folder)]
        for path in sorted(paths, key=lambda path: path.name):
            length = path.stat().st_size
            if length != self.size_bytes:
                raise CorruptRecord(
                    f"{path} is {length} bytes long, must be {self.size_bytes}: it was cut or copied in part, or written with "
                    "another file size"
                )
            self.files.append(MappedFile(path, self.size_bytes, self._disk, create=False))
        for before, after in zip(self.files, self.files[1:], strict=False):
            if after.start != before.end:
                raise CorruptRecord(
                    f"{after.path} does not follow {before.path}: the files from offset {before.end} to {after.start} "
                    "are missing"
                )
        if self.files:
            # Only the last one: the name of every earlier file was durable before the next was created (`make`).
            self.files[-1].flush(named=False)

    def make(self, start: int, folder: Path | None = None) -> MappedFile:
        """Create a file durably, with name and length (DUR-04), without adding it to the list. Raises DiskFull, StoreError.

        Durable, because files after it that survive a crash would otherwise follow a gap. Safe in a thread.
        """
        folder = folder or self.folders[0]
        self._disk.make_folder(folder)
        file = MappedFile(folder / file_name(start), self.size_bytes, self._disk, create=True)
        try:
            file.flush()
        except (OSError, StoreError) as error:
            file.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot sync {file.path}: {error.strerror}") from error
        return file

    def find(self, offset: int) -> MappedFile | None:
        """The file that contains the offset, else None; the first file need not start at 0 (ST-02)."""
        files = self.files
        if not files:
            return None
        # By arithmetic: `load` has checked that the files follow each other without a gap.
        index = (offset - files[0].start) // self.size_bytes
        return files[index] if 0 <= index < len(files) else None

    def truncate(self, end: int) -> None:
        """Delete the files that start at or after end, except the first (RC-10)."""
        # The first file stays, so that the log keeps its position.
        while len(self.files) > 1 and self.files[-1].start >= end:
            self.files.pop().delete()

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()

    def delete(self) -> None:
        for file in self.files:
            file.delete()
        self.files.clear()
