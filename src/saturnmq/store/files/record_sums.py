"""Checksums of records, in files of their own beside a log whose layout has none for headers and properties.

A block is appended after each sync, without a sync of its own: it says that its records, and everything before `reach`, were on
disk when it was written. So a record that is bad although a block covers it, or although a block with a higher reach exists, was
not torn by a power loss: it was damaged later. A block that is missing, torn or damaged proves nothing.

Invariant: what a block says stays true as long as the block can be read. Records that were synced are only removed after `discard`,
which makes the deletion of all blocks durable; files that a power loss brings back are therefore harmless.

Only what lies behind the last durable checkpoint is needed: `forget` deletes the rest, by whole files.

Threading: `add` on the event loop, `write` in the thread that synced; `forget` and `discard` in any thread.

Requirements: DUR-08, DUR-09, DUR-10.
"""

# Block, big-endian.
#    0  4s   "SUM1"
#    4  u32  number of records
#    8  i64  reach: an offset in a commit log (everything before it is durable), the index of an entry in a ledger
#   16  per record: i64 position, u32 bytes, u32 CRC-32 of all its bytes
#   ..  u32  CRC-32 of the bytes before it

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import SaturnError
from saturnmq.store.files.disk import Disk

log = logging.getLogger(__name__)

PREFIX: Final = "checksums-"
ROLL_BYTES: Final = 1 << 20  # a file that has grown to this size is followed by another one
_MARK: Final = b"SUM1"
_HEAD: Final = struct.Struct(">4sIq")
_SUM: Final = struct.Struct(">qII")
_CRC: Final = struct.Struct(">I")
_DIGITS: Final = 10

Sum = tuple[int, int, int]
"""Position of a record, its bytes, their CRC-32."""
View = Callable[[int, int], "bytes | memoryview | None"]
"""The bytes at a position of the log; None where it has none."""


@dataclass(slots=True)
class Evidence:
    """Evidence in the blocks of a log. reach: the highest reach of all blocks, -1 without any."""

    reach: int = -1
    _blocks: list[bytes] = field(default_factory=list)

    def damaged(self, view: View, begin: int) -> list[int]:
        """Positions, ascending, of records from `begin` on that are not what they were when they were synced."""
        positions = {
            position
            for position, size, crc in self._sums()
            if position >= begin and ((data := view(position, size)) is None or crc32(data) != crc)
        }
        return sorted(positions)

    def _sums(self) -> Iterator[Sum]:
        for block in self._blocks:
            yield from _SUM.iter_unpack(block)


class RecordSums:
    """The checksums of one log. folder: where the files are."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk
        self._waiting: deque[Sum] = deque()
        self.add: Callable[[Sum], None] = self._waiting.append  # a record that was appended and is not synced yet
        self._lock = Lock()
        self._number = 0  # of the current file
        self._fd = -1
        self._size = 0
        self._reach = -1  # of the current file
        self._full: list[tuple[Path, int]] = []  # earlier files and their reach
        self._failed = False

    @property
    def busy(self) -> bool:
        """Whether a thread writes or deletes files now."""
        return self._lock.locked()

    def load(self) -> Evidence:
        """Read the blocks of all files. What cannot be read proves nothing, and is logged."""
        evidence = Evidence()
        unreadable: dict[str, int] = {}  # name of a file, its bytes that belong to no valid block
        for path in self._paths():
            self._number = max(self._number, int(path.name.removeprefix(PREFIX)))
            try:
                data = path.read_bytes()
            except OSError as error:
                log.warning("checksums not read path=%s reason=%s", path, error)
                continue
            reach, invalid_bytes = -1, len(data)
            for block_reach, sums in _blocks(data):
                reach = max(reach, block_reach)
                invalid_bytes -= _HEAD.size + len(sums) + _CRC.size
                evidence._blocks.append(sums)
            if invalid_bytes:
                unreadable[path.name] = invalid_bytes
            evidence.reach = max(evidence.reach, reach)
            self._full.append((path, reach))
        if unreadable:
            log.warning(
                "checksums unreadable, taken as absent folder=%s files=%s first=%s bytes=%s",
                self._folder, len(unreadable), next(iter(unreadable)), sum(unreadable.values()),
            )  # fmt: skip
        return evidence

    def _paths(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        paths = self._folder.glob(PREFIX + "[0-9]" * _DIGITS)
        return sorted(path for path in paths if not path.is_dir())

    def write(self, end: int, reach: int) -> None:
        """Append a block for the added records that end at a position or before it, which have just been synced.

        A failure is logged and ends the checksums of this process: the log does not depend on them.
        """
        with self._lock:
            waiting, sums = self._waiting, []
            # In the order of the log; records after `end` wait for the next sync.
            while waiting and waiting[0][0] + waiting[0][1] <= end:
                sums.append(_SUM.pack(*waiting.popleft()))
            # They are dropped even then: nothing else would empty the queue.
            if self._failed or not sums:
                return
            block = _HEAD.pack(_MARK, len(sums), reach) + b"".join(sums)
            try:
                if self._fd < 0 or self._size >= ROLL_BYTES:
                    self._next_file()
                # At a position of its own: a block is torn or whole, the ones before it stay.
                self._disk.write(self._fd, self._size, block + _CRC.pack(crc32(block)))
            except (OSError, SaturnError) as error:
                self._failed = True
                log.warning("checksums not written folder=%s reason=%s", self._folder, error)
                return
            self._size += len(block) + _CRC.size
            self._reach = max(self._reach, reach)

    def _next_file(self) -> None:
        self._end_file()
        self._number += 1
        self._fd = self._disk.create(self._path, 0, allocate=False)
        self._size, self._reach = 0, -1

    @property
    def _path(self) -> Path:
        return self._folder / f"{PREFIX}{self._number:0{_DIGITS}d}"

    def _end_file(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
            self._full.append((self._path, self._reach))

    def forget(self, reach: int) -> None:
        """A durable checkpoint says what these blocks prove: delete the files that reach no further."""
        with self._lock:
            retained = []
            for path, file_reach in self._full:
                # A file is deleted as a whole, once its newest block is covered.
                if file_reach > reach:
                    retained.append((path, file_reach))
                    continue
                try:
                    self._disk.unlink(path)
                except OSError as error:
                    log.warning("checksums not deleted path=%s reason=%s", path, error)
            self._full = retained

    def discard(self, kept_end: int = 0) -> None:
        """Delete all blocks durably, before records are removed that they cover. Raises OSError, StoreError.

        kept_end: the log will end there. Records before it get a block with the next sync: those that are not synced yet, and
        those whose block is deleted here.
        """
        with self._lock:
            # Those records are about to be removed, and the positions used again.
            while self._waiting and self._waiting[-1][0] >= kept_end:
                self._waiting.pop()
            self._end_file()
            self._full.clear()
            paths = self._paths()
            if kept_end:
                # A full file is synced, and its records have their block, before any checkpoint covers them.
                covered = {
                    (at, size, crc) for path in paths for at, size, crc in _sums_in(path) if at + size <= kept_end
                }
                self._waiting.extendleft(sorted(covered, reverse=True))
            for path in paths:
                self._disk.unlink(path)
            if paths:
                # Durable before the records go: an old block would otherwise report them as damage.
                self._disk.sync_folder(self._folder)

    def close(self) -> None:
        with self._lock:
            self._end_file()


def _sums_in(path: Path) -> Iterator[Sum]:
    """The checksums in a file; none if it cannot be read: they prove nothing then."""
    try:
        data = path.read_bytes()
    except OSError as error:
        log.warning("checksums not read path=%s reason=%s", path, error)
        return
    for _, sums in _blocks(data):
        yield from _SUM.iter_unpack(sums)


def _blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Reach and packed checksums of each valid block."""
    at = data.find(_MARK)
    while at >= 0:
        following = at + 1
        if at + _HEAD.size <= len(data):
            _, count, reach = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + count * _SUM.size
            # A torn block is skipped; the search goes on after its mark.
            if end + _CRC.size <= len(data) and crc32(data[at:end]) == _CRC.unpack_from(data, end)[0]:
                yield reach, data[at + _HEAD.size : end]
                following = end + _CRC.size
        at = data.find(_MARK, following)
