"""A disk that executes every operation and records it with its bytes.

Requirements: DUR-13, DUR-14.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

from harness.crash.states import FOLDER, Names, Operation, Size, Sync, SyncFolder, Volume, Write, apply_names
from saturnmq.store.files.disk import Disk


class _RecordedMap(mmap.mmap):
    """A mapping that reports each slice assignment."""

    on_write: Callable[[int, bytes], None]

    def __setitem__(self, key: int | slice, value: int | bytes) -> None:  # type: ignore[override]
        assert isinstance(key, slice) and not isinstance(value, int), (
            "mappings are written by slices (store/files/disk.py)"
        )
        self.on_write(key.indices(len(self))[0], bytes(value))
        super().__setitem__(key, value)


class RecordingDisk(Disk):
    """Executes operations below `top` and records them in `operations`.

    between is called before each operation that runs while `threaded` is set: it simulates what other threads do
    meanwhile.
    """

    def __init__(self, top: Path, volume: Volume) -> None:
        super().__init__()
        self.top = top
        self.operations: list[Operation] = []
        self.between: Callable[[], None] | None = None
        self.threaded = False
        self._names = dict(volume.live_names())
        self._sizes = dict.fromkeys(self._names.values(), 0)
        self._sizes |= {inode: len(data) for inode, data in volume.live_files().items()}
        self._inodes: dict[int, int] = {}  # by descriptor
        self._next_inode = volume.next_inode

    def stop_threads(self) -> None:
        """Keep the executor that the run has set: the next store uses it too."""

    def _path(self, path: Path) -> str:
        return path.relative_to(self.top).as_posix()

    def _record(self, operation: Operation) -> None:
        self._meanwhile()
        self.operations.append(operation)

    def _meanwhile(self) -> None:
        if self.threaded and self.between is not None:
            self.threaded = False
            try:
                self.between()
            finally:
                self.threaded = True

    def _rename(self, path: Path, *changes: tuple[str, int | None]) -> None:
        folder = self._path(path.parent)
        assert folder == "." or folder in self._names, f"folder {folder} was not made by the disk"
        self._record(Names(folder, changes))
        apply_names(self._names, changes)

    def _resize(self, inode: int, size_bytes: int) -> None:
        if size_bytes != self._sizes[inode]:
            self._record(Size(inode, size_bytes))
            self._sizes[inode] = size_bytes

    def _inode(self, path: Path) -> int:
        """Inode of a file, which is created if it does not exist."""
        name = self._path(path)
        if name not in self._names:
            self._meanwhile()  # another thread may create it first: both then use the same inode
        found = self._names.get(name)
        if found is None:
            found = self._next_inode
            self._next_inode += 1
            self._sizes[found] = 0
            folder = self._path(path.parent)
            assert folder == "." or folder in self._names, f"folder {folder} was not made by the disk"
            self.operations.append(Names(folder, ((name, found),)))
            apply_names(self._names, ((name, found),))
        return found

    def make_one_folder(self, path: Path) -> None:
        if not path.is_dir():
            self._rename(path, (self._path(path), FOLDER))
        super().make_one_folder(path)

    def remove_folder(self, path: Path) -> None:
        if path.is_dir():
            self._rename(path, (self._path(path), None))
        super().remove_folder(path)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        inode = self._inode(path)
        self._resize(inode, max(size_bytes, self._sizes[inode]) if allocate else size_bytes)
        fd = super().create(path, size_bytes, allocate=False)
        self._inodes[fd] = inode
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._inodes[fd] = self._names[self._path(path)]
        return fd

    def map(self, fd: int, size_bytes: int) -> mmap.mmap:
        mapping = _RecordedMap(fd, size_bytes)
        inode = self._inodes[fd]
        mapping.on_write = lambda at, data: self._record(Write(inode, at, data, mapped=True))
        return mapping

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        inode = self._inodes[fd]
        self._resize(inode, max(self._sizes[inode], at + len(data)))
        self._record(Write(inode, at, bytes(data)))
        super().write(fd, at, data)

    def sync(self, fd: int) -> None:
        self._record(Sync(self._inodes[fd]))

    def sync_folder(self, folder: Path) -> None:
        if folder == self.top.parent:
            return
        assert folder.is_dir()
        self._record(SyncFolder(self._path(folder)))

    def write_file(self, path: Path, data: bytes) -> None:
        inode = self._inode(path)
        path.touch()
        self._resize(inode, 0)
        os.truncate(path, 0)
        if data:
            self._resize(inode, len(data))
            self._record(Write(inode, 0, data))
        super().write_file(path, data)
        self._record(Sync(inode))

    def replace(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent
        self._rename(target, (self._path(source), None), (self._path(target), self._names[self._path(source)]))
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.unlink(target)
        self._rename(target, (self._path(target), self._names[self._path(source)]))
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        if self._path(path) in self._names:
            self._rename(path, (self._path(path), None))
        super().unlink(path)
