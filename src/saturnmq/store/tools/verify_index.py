"""Verification of the index: every key of every record has its entry, and there are no others. Used by verify.py.

Requirements: IX-01..IX-05, IX-08.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.message import Message
from saturnmq.protocol.properties import keys_of
from saturnmq.store.files.disk import Disk
from saturnmq.store.index.index_file import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    NAME_DIGITS,
    SLOT_BYTES,
    IndexFile,
    IndexShape,
    key_hash,
    topic_hash,
)
from saturnmq.store.index.message_index import WORDS_MAX, is_indexed
from saturnmq.store.tools.scan import Problem, ReadOnlyDisk, Weight

_CHUNK_ENTRIES: Final = 16_384
_KEPT_MAX: Final = 100
_SECONDS_MAX: Final = 2**31 - 1
UNKNOWN_MS: Final = -1  # store time of a record whose own is impossible
_PREFIXES_MAX: Final = 50_000
_REBUILD: Final = "rebuild the index from the log: saturnmq store rebuild"
_BY_ITSELF: Final = "the next start makes it whole"


class _Entry(NamedTuple):
    path: Path
    at: int
    number: int
    hash: int
    offset: int
    seconds: int
    begin_ms: int


class IndexCheck:
    """Compares the index with the log: entries are in log order, so both are read in parallel."""

    def __init__(self, folder: Path, shape: IndexShape, add: Callable[[Problem], None]) -> None:
        self.entries = 0
        self.rows: list[tuple[Path, int, int, int, int]] = []  # path, bytes, entries, first and last offset
        self._folder = folder
        self._shape = shape
        self._add = add
        self._disk: Disk = ReadOnlyDisk()
        paths = folder.iterdir() if folder.is_dir() else ()
        self._paths = sorted(path for path in paths if len(path.name) == NAME_DIGITS and path.name.isdecimal())
        self._stream = self._entries()
        self._next: _Entry | None = next(self._stream, None)
        self._begin = self._next.offset if self._next is not None else -1
        self._prefixes: dict[str, int] = {}
        self._missing: list[tuple[int, int]] = []  # runs of records without entries: first offset, number of records
        self._strays: list[_Entry] = []
        self._run_open = False

    def _problem(
        self, path: Path, description: str, *, at: int = -1, offset: int = -1, start_does: bool = False
    ) -> None:
        weight = Weight.PENDING if start_does else Weight.DAMAGE
        self._add(Problem(weight, path, at, offset, description, _BY_ITSELF if start_does else _REBUILD))

    # ---- the files

    def _entries(self) -> Iterator[_Entry]:
        for path in self._paths:
            length = path.stat().st_size
            try:
                file = IndexFile.load(path, self._shape, self._disk)
            except CorruptRecord as error:
                self._problem(path, error.message.replace(f"{path} ", "", 1), at=0)
                self.rows.append((path, length, 0, -1, -1))
                continue
            self.rows.append((path, length, file.count - 1, file.begin_offset, file.end_offset))
            fd = self._disk.open(path)
            try:
                yield from self._of_file(file, fd)
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
            finally:
                self._disk.close(fd)

    def _of_file(self, file: IndexFile, fd: int) -> Iterator[_Entry]:
        """Yield the entries of one file while checking its slots and links."""
        count, at = self._shape.slots, self._shape.entries_at
        slots = array("i", bytes(SLOT_BYTES * count))
        number = used = 0
        broken = 0
        while number < file.count - 1:
            first = number + 1
            size = min(_CHUNK_ENTRIES, file.count - first) * ENTRY_BYTES
            data = self._disk.read(fd, at + first * ENTRY_BYTES, size)
            for value, offset, seconds, previous in ENTRY.iter_unpack(data):
                number += 1
                entry_at = at + number * ENTRY_BYTES
                slot = value % count
                if previous != slots[slot]:
                    broken += 1
                    if broken == 1:
                        description = f"entry {number} leads on to entry {previous}, must be {slots[slot]}"
                        self._problem(file.path, description, at=entry_at + 16, offset=offset)
                used += not slots[slot]
                slots[slot] = number
                yield _Entry(file.path, entry_at, number, value, offset, seconds, file.begin_ms)
            if not data:
                return
        self._slots(file, fd, slots, used)

    def _slots(self, file: IndexFile, fd: int, slots: array[int], used: int) -> None:
        raw = array("i", self._disk.read(fd, HEADER_BYTES, SLOT_BYTES * self._shape.slots))
        if sys.byteorder == "little":
            raw.byteswap()
        if raw != slots:
            slot = next(n for n, (is_now, must) in enumerate(zip(raw, slots, strict=True)) if is_now != must)
            description = f"slot {slot} names entry {raw[slot]}, must be {slots[slot]}"
            self._problem(file.path, description, at=HEADER_BYTES + slot * SLOT_BYTES)
        if file.used_slots != used:
            self._problem(file.path, f"the header counts {file.used_slots} slots in use, must be {used}", at=32)

    # ---- while the log is read

    def record(self, message: Message) -> None:
        """Check the index entries of the next record of the log."""
        if not is_indexed(message.sys_flag):
            return
        keys = keys_of(message.properties_raw)
        if not keys:
            return
        offset = message.physical_offset
        prefix = self._prefixes.get(message.topic)
        if prefix is None:
            if len(self._prefixes) >= _PREFIXES_MAX:
                self._prefixes.clear()
            prefix = self._prefixes[message.topic] = topic_hash(message.topic)
        expected = [key_hash(prefix, key) for key in keys if key]
        while self._next is not None and self._next.offset < offset:
            self._stray(self._next)
            self._advance()
        hashes: list[int] = []
        while self._next is not None and self._next.offset == offset:
            entry = self._next
            hashes.append(entry.hash)
            if len(hashes) > len(expected):
                self._stray(entry)
            elif entry.hash != expected[len(hashes) - 1]:
                description = f"entry {entry.number} has hash {entry.hash}, must be {expected[len(hashes) - 1]}"
                self._problem(entry.path, description, at=entry.at, offset=offset)
            elif entry.number > 1 and message.store_timestamp_ms != UNKNOWN_MS:
                self._time(entry, message.store_timestamp_ms)
            self.entries += 1
            self._advance()
        missing = len(hashes) < min(len(expected), len(keys_of(message.properties_raw, WORDS_MAX)))
        if missing and self._run_open:
            self._missing[-1] = (self._missing[-1][0], self._missing[-1][1] + 1)
        elif missing and len(self._missing) < _KEPT_MAX:
            self._missing.append((offset, 1))
        self._run_open = missing and len(self._missing) < _KEPT_MAX

    def _time(self, entry: _Entry, store_ms: int) -> None:
        seconds = (store_ms - entry.begin_ms) // 1000 if 0 < entry.begin_ms < store_ms else 0
        seconds = min(seconds, _SECONDS_MAX)
        if entry.seconds != seconds:
            description = f"entry {entry.number} says {entry.seconds} s after the file's begin, must be {seconds}"
            self._problem(entry.path, description, at=entry.at + 12, offset=entry.offset)

    def _stray(self, entry: _Entry) -> None:
        if len(self._strays) < _KEPT_MAX:
            self._strays.append(entry)

    def _advance(self) -> None:
        self._next = next(self._stream, None)

    # ---- after the log was read

    def finish(
        self, invalid_ranges: list[tuple[int, int]], pending_from: int, log_start: int, log_end: int, *, had_index: bool
    ) -> None:
        """Report findings after the whole log was read.

        invalid_ranges: without a valid record. pending_from: from this offset on entries may be missing. had_index: the
        checkpoint says that there was an index.
        """
        while self._next is not None:
            self._stray(self._next)
            self._advance()
        for offset, count in self._missing:
            description = f"{count} records with keys, the first at offset {offset}, are not in the index"
            if self._paths or had_index or offset >= pending_from:
                self._problem(self._folder, description, offset=offset, start_does=offset >= pending_from)
            else:
                self._add(
                    Problem(Weight.REMARK, self._folder, -1, offset, f"there is no index: {description}", _REBUILD)
                )
        for entry in self._strays:
            if entry.offset < log_start or any(low <= entry.offset < high for low, high in invalid_ranges):
                continue
            behind = entry.offset >= log_end
            self._problem(
                entry.path,
                f"entry {entry.number} points to offset {entry.offset}, where "
                + ("the log has ended" if behind else "no record with that key is"),
                at=entry.at,
                offset=entry.offset,
                start_does=behind and entry.offset >= pending_from,
            )
            return
