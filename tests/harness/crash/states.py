"""Disk operations, and every state in which a crash may leave the disk.

The model assumes no more than POSIX guarantees. Data and length of a file are durable after a sync of one of its
descriptors, including writes through mappings; a name is durable after a sync of its folder. Of the operations that are
not durable, any subset survives a power loss, in any order, and a write may survive in part. The end of the process
alone (kill -9) loses no completed write and may cut the last one.

Requirements: DUR-13, DUR-14.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

FOLDER: Final = -1  # the inode number of every folder
SECTOR_BYTES: Final = 512
SMALL_SECTOR_BYTES: Final = 64  # for files too short to be torn otherwise
SMALL_FILE_BYTES: Final = 1024
PAGE_BYTES: Final = 4096
EXHAUSTIVE_MAX: Final = 3  # up to this many operations, every subset is tried
SAMPLED: Final = 6  # states of each kind that is not enumerated

P = TypeVar("P")


# ---- recorded operations


@dataclass(frozen=True, slots=True)
class Names:
    """Entries of one folder that change: path -> inode, None when the name is removed."""

    folder: str
    changes: tuple[tuple[str, int | None], ...]

    def __str__(self) -> str:
        return "name " + ", ".join(f"{p} -> {'gone' if i is None else i}" for p, i in self.changes)


@dataclass(frozen=True, slots=True)
class Size:
    """A file gets a length; added bytes read as zeros."""

    inode: int
    size_bytes: int

    def __str__(self) -> str:
        return f"size of file {self.inode} = {self.size_bytes}"


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at a position within the file's length. mapped: through a mapping, where a kill may cut the write anywhere."""

    inode: int
    at: int
    data: bytes
    mapped: bool = False

    def __str__(self) -> str:
        return f"write file {self.inode} at {self.at}, {len(self.data)} bytes {self.data[:12].hex()}"


@dataclass(frozen=True, slots=True)
class Sync:
    """Data and length of a file become durable."""

    inode: int

    def __str__(self) -> str:
        return f"sync file {self.inode}"


@dataclass(frozen=True, slots=True)
class SyncFolder:
    """The names in a folder become durable."""

    folder: str

    def __str__(self) -> str:
        return f"sync folder {self.folder}"


Change: TypeAlias = Names | Size | Write
Operation: TypeAlias = Change | Sync | SyncFolder


def text_of(operation: Operation) -> str:
    """The operation with all of its bytes."""
    return f"{operation} {operation.data.hex()}" if isinstance(operation, Write) else str(operation)


def apply_names(names: dict[str, int], changes: Sequence[tuple[str, int | None]]) -> None:
    """Change entries; removing a folder removes its contents."""
    for path, inode in changes:
        if inode is not None:
            names[path] = inode
        elif names.pop(path, None) == FOLDER:
            for inner in [name for name in names if name.startswith(path + "/")]:
                del names[inner]


def apply_data(data: bytearray, change: Size | Write) -> None:
    """Change a file's bytes; bytes written beyond its length are dropped."""
    if isinstance(change, Size):
        if change.size_bytes < len(data):
            del data[change.size_bytes :]
        else:
            data.extend(bytes(change.size_bytes - len(data)))
    else:
        room = len(data) - change.at
        if room >= len(change.data):
            data[change.at : change.at + len(change.data)] = change.data
        elif room > 0:
            data[change.at :] = change.data[:room]


# ---- crash states


@dataclass(frozen=True, slots=True)
class Content:
    """Files by path, and the folders in creation order."""

    files: Mapping[str, bytes]
    folders: tuple[str, ...]

    def write(self, top: Path) -> None:
        """Write it into an empty folder."""
        base = str(top) + "/"
        for folder in self.folders:
            os.mkdir(base + folder)
        for path, data in self.files.items():
            fd = os.open(base + path, os.O_WRONLY | os.O_CREAT, 0o644)
            if data:
                os.write(fd, data)
            os.close(fd)

    def key(self) -> int:
        """A hash that is equal for equal contents within one process."""
        return hash((frozenset(self.files.items()), self.folders))


@dataclass(slots=True)
class State:
    """One crash state of a volume; use it before the volume changes.

    power: a power loss, otherwise only the process ended. unfinished: the last operation had not returned.
    """

    volume: Volume
    survived: Sequence[Change]
    power: bool
    how: str
    unfinished: bool = False

    def content(self) -> Content:
        return self.volume.content(self.survived)

    def lost(self) -> list[str]:
        """The operations that did not survive."""
        alive = {id(change) for change in self.survived}
        return [str(change) for change in self.volume.pending if id(change) not in alive]

    def after(self) -> Volume:
        """The disk that the next life starts with: after a power loss, everything that survived is durable."""
        after = self.volume.copy()
        after.pending = list(self.survived)
        if self.power:
            after.settle(lambda change: True)
        return after


@dataclass(slots=True)
class Volume:
    """What is durable, and the changes since."""

    names: dict[str, int] = field(default_factory=dict)
    files: dict[int, bytearray] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    next_inode: int = 0

    def copy(self) -> Volume:
        files = {inode: bytearray(data) for inode, data in self.files.items()}
        return Volume(dict(self.names), files, list(self.pending), self.next_inode)

    def live_names(self) -> dict[str, int]:
        """Names as programs see them now."""
        names = dict(self.names)
        for change in self.pending:
            if isinstance(change, Names):
                apply_names(names, change.changes)
        return names

    def live_files(self) -> dict[int, bytearray]:
        files = {inode: bytearray(data) for inode, data in self.files.items()}
        for change in self.pending:
            if not isinstance(change, Names):
                apply_data(files.setdefault(change.inode, bytearray()), change)
        return files

    def do(self, operation: Operation) -> None:
        """Apply one operation."""
        if isinstance(operation, Sync):
            self.settle(lambda change: not isinstance(change, Names) and change.inode == operation.inode)
        elif isinstance(operation, SyncFolder):
            self.settle(lambda change: isinstance(change, Names) and change.folder == operation.folder)
        else:
            self.pending.append(operation)
            inodes = [inode for _, inode in operation.changes] if isinstance(operation, Names) else [operation.inode]
            self.next_inode = max([self.next_inode, *(inode + 1 for inode in inodes if inode is not None)])

    def sector(self, inode: int) -> int:
        """The unit in which the disk writes this file atomically, bytes."""
        sizes = [c.size_bytes for c in self.pending if isinstance(c, Size) and c.inode == inode]
        size = max([*sizes, len(self.files.get(inode, b""))])
        return SMALL_SECTOR_BYTES if size <= SMALL_FILE_BYTES else SECTOR_BYTES

    def settle(self, chosen: Callable[[Change], bool]) -> None:
        rest = []
        for change in self.pending:
            if not chosen(change):
                rest.append(change)
            elif isinstance(change, Names):
                apply_names(self.names, change.changes)
            else:
                apply_data(self.files.setdefault(change.inode, bytearray()), change)
        self.pending = rest

    def content(self, survived: Sequence[Change]) -> Content:
        """The files found if exactly these pending changes survived, in this order."""
        names = dict(self.names)
        changed: dict[int, bytearray] = {}
        for change in survived:
            if isinstance(change, Names):
                apply_names(names, change.changes)
            else:
                data = changed.get(change.inode)
                if data is None:
                    data = changed[change.inode] = bytearray(self.files.get(change.inode, b""))
                apply_data(data, change)
        folders = {".", ""}
        files = {}
        for path in sorted(names):
            if path.rpartition("/")[0] not in folders:
                continue
            inode = names[path]
            if inode == FOLDER:
                folders.add(path)
            else:
                files[path] = bytes(changed.get(inode) or self.files.get(inode) or b"")
        return Content(files, tuple(sorted(folders - {".", ""})))


def crash_states(volume: Volume, last: Operation | None, rng: random.Random, sampled: int) -> Iterator[State]:
    """Crash states right after `last`, which was already applied to the volume.

    sampled: number of states of each kind that has too many to enumerate.
    """
    pending = volume.pending
    yield State(volume, pending, False, "killed")
    if isinstance(last, Write):
        places = (
            range(1, len(last.data))
            if last.mapped
            else range(PAGE_BYTES - last.at % PAGE_BYTES, len(last.data), PAGE_BYTES)
        )
        if places:
            cut = rng.choice(places)
            torn = _torn(pending, len(pending) - 1, 0, cut)
            yield State(volume, torn, False, f"killed {cut} bytes into the last write", True)
    if not pending:
        return
    yield State(volume, [], True, "nothing unsynced survived")
    for kept in _subsets(len(pending), rng, sampled):
        yield State(volume, [pending[n] for n in kept], True, "a subset survived")
    writes = [n for n, change in enumerate(pending) if isinstance(change, Write) and len(change.data) > 1]
    if writes:
        yield from _torn_states(volume, writes[-1], rng, sampled)
        yield from _page_states(volume, writes, rng, sampled)


def promised_states(
    name: str, begin: Volume, operations: Sequence[Operation], promises: Sequence[tuple[int, P]]
) -> Iterator[tuple[int, int, State, P]]:
    """(cut, variant, state, promise) of every crash state of a recording. Use a state before requesting the next.

    name: decides the random choices. promises: with the number of operations before each.
    """
    volume = begin.copy()
    at = before = 0
    for cut in range(len(operations) + 1):
        last = operations[cut - 1] if cut else None
        if last is not None:
            volume.do(last)
        before = at
        while at + 1 < len(promises) and promises[at + 1][0] <= cut:
            at += 1
        rng = random.Random(f"{name} {cut}")
        for variant, state in enumerate(crash_states(volume, last, rng, SAMPLED)):
            yield cut, variant, state, promises[before if state.unfinished else at][1]


def _subsets(count: int, rng: random.Random, sampled: int) -> Iterator[list[int]]:
    if count <= EXHAUSTIVE_MAX:
        for bits in range(1, 1 << count):
            yield [n for n in range(count) if bits >> n & 1]
        return
    everything = list(range(count))
    yield everything
    for _ in range(sampled):
        kind = rng.randrange(4)
        if kind == 0:  # one of the last operations is lost
            lost = rng.randrange(max(count - 6, 0), count)
            yield everything[:lost] + everything[lost + 1 :]
        elif kind == 1:  # the last operations reached the disk first
            yield everything[rng.randrange(1, count) :]
        elif kind == 2:
            yield everything[: rng.randrange(1, count)]
        else:
            chance = rng.random()
            yield [n for n in everything if rng.random() < chance]


def _torn(pending: list[Change], number: int, begin: int, end: int) -> list[Change]:
    """Only the bytes from begin to end of one write survived."""
    write = pending[number]
    assert isinstance(write, Write)
    part = Write(write.inode, write.at + begin, write.data[begin:end], write.mapped)
    return [*pending[:number], part, *pending[number + 1 :]]


def _torn_states(volume: Volume, number: int, rng: random.Random, sampled: int) -> Iterator[State]:
    """The write is torn at a sector or page boundary: its head or its tail survived."""
    write = volume.pending[number]
    assert isinstance(write, Write)
    size, sector = len(write.data), volume.sector(write.inode)
    cuts = list(range(sector - write.at % sector, size, sector))
    for cut in cuts if len(cuts) <= 2 else rng.sample(cuts, min(sampled, len(cuts))):
        what = "page" if (write.at + cut) % PAGE_BYTES == 0 else "sector"
        yield State(volume, _torn(volume.pending, number, 0, cut), True, f"torn after a {what}: {cut} bytes survived")
        how = f"torn after a {what}: all but {cut} bytes survived"
        yield State(volume, _torn(volume.pending, number, cut, size), True, how)


def _page_states(volume: Volume, writes: list[int], rng: random.Random, sampled: int) -> Iterator[State]:
    """Some sectors of one file reached the disk and others did not: its tail or any part of it reads as zeros."""
    for _ in range(max(sampled // 2, 1)):
        inode = volume.pending[rng.choice(writes)].inode  # type: ignore[union-attr]
        sector = volume.sector(inode) if rng.random() < 0.8 else PAGE_BYTES
        spans = [(c.at, c.at + len(c.data)) for c in volume.pending if isinstance(c, Write) and c.inode == inode]
        first, last = min(at for at, _ in spans) // sector, (max(end for _, end in spans) - 1) // sector
        if rng.random() < 0.5:
            begin = rng.randint(first, last)
            alive = set(range(first, begin))
            how = f"file {inode}: what was unsynced from byte {begin * sector} on is lost"
        else:
            alive = {n for n in range(first, last + 1) if rng.random() < 0.5}
            how = f"file {inode}: of its unsynced sectors of {sector} bytes only {sorted(alive)} survived"
        survived: list[Change] = []
        for change in volume.pending:
            if isinstance(change, Write) and change.inode == inode:
                survived += _in_sectors(change, alive, sector)
            else:
                survived.append(change)
        yield State(volume, survived, True, how)


def _in_sectors(write: Write, alive: set[int], sector: int) -> Iterator[Write]:
    at, end = write.at, write.at + len(write.data)
    if all(n in alive for n in range(at // sector, (end - 1) // sector + 1)):
        yield write
        return
    while at < end:
        stop = min(end, at - at % sector + sector)
        if at // sector in alive:
            yield Write(write.inode, at, write.data[at - write.at : stop - write.at], write.mapped)
        at = stop
