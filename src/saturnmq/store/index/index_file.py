"""One index file: a hash table on disk from `topic#key` to physical offsets, filled in the order of the commit log.

Entries are only appended, so the slots, the links between entries and most of the header can be rebuilt from them. Nothing
read from a file is trusted: a chain is followed only towards older entries, so every search terminates.

Requirements: IX-01..IX-07, DUR-04, DUR-05, DUR-13, DUR-20.
"""

# Index file, big-endian. Source: docs/spec/02 section 15, IX-01, IX-04, IX-05. S = number of slots.
#        at  type  field         meaning
#         0  i64   begin_ms      store time of the first entry's record, Unix ms
#         8  i64   end_ms        store time of the last entry's record, Unix ms
#        16  i64   begin_offset  physical offset of the first entry's record, bytes
#        24  i64   end_offset    physical offset of the last entry's record, bytes
#        32  i32   used_slots    slots that are not 0
#        36  i32   count         number of the next entry; the first is 1
#      40+4s i32   slot s        number of its newest entry; 0 for none
# 40+4S+20i        entry i; entry 0 is never used
#            +0  i32  hash       of `topic#key`, never negative (IX-03)
#            +4  i64  offset     physical offset of the record, bytes
#           +12  i32  seconds    from begin_ms to its store time
#           +16  i32  previous   number of the next older entry of the slot; 0 for none

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.hot import compiled
from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.message import java_hash
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.disk import Disk, open_error

NAME_DIGITS: Final = 17  # yyyyMMddHHmmssSSS
HEADER: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
HEADER_BYTES: Final = HEADER.size
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = ENTRY.size
STEPS_PER_TURN: Final = 1000  # entries that a search examines before it yields: about 1 ms
_SECONDS_MAX: Final = 2**31 - 1
_SET_BACK_MS_MAX: Final = 86_400_000  # largest backward clock step tolerated while a file is filled
_U32: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_SLOT: Final = struct.Struct(">I")
_OFFSET: Final = struct.Struct(">q")
_BLOCK_BYTES: Final = 4096
_CHUNK_ENTRIES: Final = 16_384
_CLEAN_BYTES: Final = 4 * 1024 * 1024  # a run of zeros of this length ends the clean-up after the last entry
_FULL: Final = 512  # unit of st_blocks, bytes

COMPILED: Final = compiled(
    "index_entries"
)  # does the same as the code here and in message_index.py, for many records at once


def topic_hash(topic: str) -> int:
    """Java's hash of `topic#` modulo 2**32: the first argument of `key_hash`."""
    return java_hash(topic + "#") & _U32


def key_hash(prefix: int, key: str) -> int:
    """The hash stored in an entry: the absolute Java hash of `topic#key` (IX-03). prefix: `topic_hash` of the topic."""
    # The length in UTF-16 units, of which Java's hash is computed.
    units = len(key) if key.isascii() else len(key.encode("utf-16-be", "surrogatepass")) // 2
    # The hash of a concatenation from the hashes of its parts; Java's String.hashCode is a polynomial of 31.
    return absolute((prefix * pow(31, units, 1 << 32) + java_hash(key)) & _U32)


def absolute(value: int) -> int:
    """Java's absolute value of a hash modulo 2**32; 0 for Integer.MIN_VALUE, which has none (IX-03)."""
    if value < _SIGN:
        return value
    return 0 if value == _SIGN else 0x100000000 - value


class IndexShape(NamedTuple):
    """The numbers that determine a file's length. entries_max is one more than a file holds, because entry 0 is unused."""

    slots: int
    entries_max: int

    @property
    def entries_at(self) -> int:
        """Position of entry 0, bytes."""
        return HEADER_BYTES + SLOT_BYTES * self.slots

    @property
    def file_bytes(self) -> int:
        """Length of a file in bytes (IX-01)."""
        return self.entries_at + ENTRY_BYTES * self.entries_max


class IndexFile:
    """One file. Its header's fields are attributes; count is the number of the next entry, so an empty file has 1.

    dirty: written to since its last sync began. busy: a sync of its descriptor is running, so it must stay open.
    header_pending: its header could not be written and must be retried.
    """

    __slots__ = (
        "_direct", "_disk", "_entries_at", "_fd", "_map", "_shape", "begin_ms", "begin_offset", "busy", "count",
        "dirty", "end_ms", "end_offset", "header_pending", "number", "path", "removed", "used_slots",
    )  # fmt: skip

    def __init__(self, path: Path, shape: IndexShape, disk: Disk) -> None:
        self.path = path
        self.number = int(path.name)
        self.begin_ms = self.end_ms = 0
        self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.dirty = True
        self.busy = self.removed = self.header_pending = False
        self._shape = shape
        self._entries_at = shape.entries_at
        self._disk = disk
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._direct = False  # written through the mapping, which needs reserved blocks (DUR-04); otherwise by pwrite

    # ---- life cycle

    @classmethod
    def create(cls, path: Path, shape: IndexShape, disk: Disk, *, allocate: bool, after: IndexFile | None) -> IndexFile:
        """Create the file that follows `after`. Until its first entry its header repeats the end of `after`.

        Raises StoreError, OSError.
        """
        file = cls(path, shape, disk)
        file._fd = disk.create(path, shape.file_bytes, allocate=allocate)
        # A sparse file is never written through a mapping: a full disk would be a SIGBUS.
        file._direct = allocate
        if after is not None:
            file.begin_ms = file.end_ms = after.end_ms
            file.begin_offset = file.end_offset = after.end_offset
        try:
            file.write_header()  # now, so that its block is allocated: put relies on being able to update the header
        except (OSError, StoreError):
            file.close()
            # A file without a valid header would be damage at the next start.
            disk.unlink(path)
            raise
        return file

    @classmethod
    def load(cls, path: Path, shape: IndexShape, disk: Disk) -> IndexFile:
        """Load an existing file without keeping it open. Raises CorruptRecord (wrong length, invalid header), StoreError."""
        file = cls(path, shape, disk)
        length = path.stat().st_size
        if length != shape.file_bytes:
            raise CorruptRecord(f"{path} is {length} bytes long, must be {shape.file_bytes}")
        file._read_header(file._read_once(0, HEADER_BYTES))
        return file

    def _read_once(self, at: int, size_bytes: int) -> bytes:
        """Bytes of the file; it is not kept open for that. Raises StoreError."""
        fd = self._fd if self._fd >= 0 else self._disk.open(self.path)
        try:
            return self._disk.read(fd, at, size_bytes)
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        finally:
            if fd != self._fd:
                self._disk.close(fd)

    def check(self, entries: int | None = None, end_ms: int = 0) -> None:
        """Check that the header matches the entries, as it does after a clean stop and in a file that was synced.

        A wrong end would make all records up to it count as duplicates. With entries and end_ms the file must have at least that
        many entries, and the record of entry `entries` must have been stored at end_ms; the header's end is ignored then.
        Raises CorruptRecord, StoreError.
        """
        last, end_offset = entries, None
        if last is None:
            last, end_ms, end_offset = self.count - 1, self.end_ms, self.end_offset
        # An empty file has nothing to compare.
        if last < 1:
            return
        _, first_offset, _, _ = ENTRY.unpack(self._read_once(self._entries_at + ENTRY_BYTES, ENTRY_BYTES))
        _, offset, seconds, _ = ENTRY.unpack(self._read_once(self._entries_at + last * ENTRY_BYTES, ENTRY_BYTES))
        # The clock may have been set back while the file was filled, by a day at most.
        timely = 0 < self.begin_ms <= end_ms + _SET_BACK_MS_MAX
        if last > 1:
            # Times of entries are relative to the first one, in whole seconds.
            timely &= seconds == max(0, min((end_ms - self.begin_ms) // 1000, _SECONDS_MAX))
        else:
            timely &= self.begin_ms == end_ms
        placed = first_offset == self.begin_offset <= offset and end_offset in (offset, None)
        if not timely or not placed:
            raise CorruptRecord(
                f"{self.path}: its header (begin_ms={self.begin_ms} end_ms={end_ms} begin_offset={self.begin_offset} "
                f"end_offset={end_offset}) does not belong to its entries: the first has offset={first_offset}, entry {last} "
                f"offset={offset} seconds={seconds}"
            )

    def _read_header(self, raw: bytes) -> None:
        begin_ms, end_ms, begin_offset, end_offset, used_slots, count = HEADER.unpack(raw)
        possible = (
            begin_ms >= 0
            and end_ms >= 0
            and 0 <= begin_offset <= end_offset
            and 0 <= used_slots <= self._shape.slots
            and 0 <= count <= self._shape.entries_max
        )
        if not possible:
            raise CorruptRecord(
                f"{self.path} has an impossible header: begin_ms={begin_ms} end_ms={end_ms} begin_offset={begin_offset} "
                f"end_offset={end_offset} used_slots={used_slots} count={count}"
            )
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = begin_ms, end_ms, begin_offset, end_offset
        # Apache writes 0 in a new file, and uses 1 as the first number.
        self.used_slots, self.count = used_slots, max(count, 1)

    @property
    def full(self) -> bool:
        """Whether the file accepts no more entries (IX-04)."""
        return self.count >= self._shape.entries_max

    def descriptor(self) -> int:
        """The descriptor for writes and syncs; opens the file if needed. Raises StoreError."""
        if self._fd < 0:
            self._attach()
        return self._fd

    def _attach(self) -> mmap.mmap:
        if self._map is not None:
            return self._map
        if self.removed:
            raise StoreError(f"{self.path} was removed")
        fd = self._fd
        try:
            if fd < 0:
                fd = self._disk.open(self.path)
                stat = self.path.stat()
                if stat.st_size != self._shape.file_bytes:
                    raise CorruptRecord(f"{self.path} is {stat.st_size} bytes long, must be {self._shape.file_bytes}")
                # All blocks are reserved: writes to the mapping cannot run out of space.
                self._direct = stat.st_blocks * _FULL >= stat.st_size
            self._map = self._disk.map(fd, self._shape.file_bytes)
        except (OSError, ValueError, StoreError) as error:
            if fd >= 0:
                self._disk.close(fd)
            self._fd = -1
            if isinstance(error, StoreError):
                raise
            text = f"cannot map {self.path} ({self._shape.file_bytes} bytes)"
            raise open_error(text, error) if isinstance(error, OSError) else StoreError(f"{text}: {error}") from error
        self._fd = fd
        return self._map

    def release(self) -> None:
        """Unmap and close the file unless it has unsynced writes (DUR-05); it is reopened when needed."""
        # A descriptor is closed only after a successful sync, or its write error would be lost (DUR-05).
        if not self.busy and (self.removed or not self.dirty):
            self.close()

    def close(self) -> None:
        """Unmap and close the file, unsynced or not."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def release_pages(self) -> None:
        """Release the mapping's resident memory; written bytes stay in the page cache."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def remove(self) -> None:
        """Delete the file; it is closed now, or after the running sync. Raises OSError."""
        self._disk.unlink(self.path)
        self.removed = True
        self.release()

    # ---- writing

    def _write(self, at: int, data: bytes) -> None:
        mapping = self._map or self._attach()
        if self._direct:
            mapping[at : at + len(data)] = data
        else:
            self._disk.write(self._fd, at, data)

    def write_header(self) -> None:
        """Write the header. Raises OSError if the file's blocks are not reserved and the disk is full."""
        self.dirty = True
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.count
        )  # fmt: skip
        if self._direct and self._map is not None:
            self._map[:HEADER_BYTES] = header
        else:
            # Set before the write: if that fails, the caller knows that the header on disk is old.
            self.header_pending = True
            self._write(0, header)
            self.header_pending = False

    def put(self, hashes: list[int], start: int, physical_offset: int, store_ms: int) -> int:
        """Append an entry per hash in hashes[start:] until the file is full; returns the index of the first one left (IX-04).

        Raises OSError if the file's blocks are not reserved and the disk is full; entries counted by then are complete.
        """
        mapping = self._map or self._attach()
        slots, entries_max = self._shape
        count = self.count
        at = self._entries_at + count * ENTRY_BYTES
        begin_ms = self.begin_ms
        seconds = (store_ms - begin_ms) // 1000 if 0 < begin_ms < store_ms else 0
        if seconds > _SECONDS_MAX:
            seconds = _SECONDS_MAX
        stop = min(len(hashes), start + entries_max - count)
        direct = self._direct
        try:
            while start < stop:
                value = hashes[start]
                slot_at = HEADER_BYTES + value % slots * SLOT_BYTES
                previous: int = _SLOT.unpack_from(mapping, slot_at)[0]
                # A slot may point beyond the end after a crash: that chain is dropped.
                if previous >= count:
                    previous = 0
                entry = ENTRY.pack(value, physical_offset, seconds, previous)
                if direct:
                    # The entry before the slot that points to it.
                    mapping[at : at + ENTRY_BYTES] = entry
                    mapping[slot_at : slot_at + SLOT_BYTES] = count.to_bytes(4)
                else:
                    self._disk.write(self._fd, at, entry)
                    self._disk.write(self._fd, slot_at, count.to_bytes(4))
                if not previous:
                    self.used_slots += 1
                if count == 1:  # its seconds were relative to the end of the previous file (IX-04)
                    self.begin_ms, self.begin_offset = store_ms, physical_offset
                    seconds = 0
                at += ENTRY_BYTES
                start += 1
                self.count = count = count + 1
                self.end_ms, self.end_offset = store_ms, physical_offset
        finally:
            # Also after an error: what was counted by then is complete.
            self.write_header()
        return start

    @property
    def takes_many(self) -> bool:
        """Whether `put_many` may be called: blocks are reserved, and a first entry defines the begin time."""
        if self._map is None:
            self._attach()
        # The first entry is relative to the end of the file before, and sets the begin time: `put` writes it.
        return self._direct and self.count > 1

    def put_many(self, items: list[tuple[int, int, int]], start: int) -> int:
        """Append (hash, physical offset, store time in Unix ms) items[start:] while all items of a record fit.

        Returns the index of the first item left. The items must follow the existing entries and be ordered by offset.
        """
        mapping = self._map or self._attach()
        slots, entries_max = self._shape
        count, begin_ms = self.count, self.begin_ms
        stop = min(len(items), start + entries_max - count)
        # Only whole records: `put` splits the keys of one over two files.
        while start < stop < len(items) and items[stop][1] == items[stop - 1][1]:
            stop -= 1
        if COMPILED is not None and type(mapping) is mmap.mmap:  # not one that records what is written
            used = COMPILED.put_entries(mapping, items, start, stop, count, (slots, self._entries_at), begin_ms)
        else:
            used = self._put_entries(mapping, items[start:stop])
        if stop > start:
            _, self.end_offset, self.end_ms = items[stop - 1]
            self.count = count + stop - start
            self.used_slots += used
            self.write_header()
        return stop

    def _put_entries(self, mapping: mmap.mmap, items: list[tuple[int, int, int]]) -> int:
        """Write items as the next entries; returns how many slots were unused before."""
        slots, _ = self._shape
        count, used, begin_ms = self.count, 0, self.begin_ms
        at = self._entries_at + count * ENTRY_BYTES
        for value, physical_offset, store_ms in items:
            slot_at = HEADER_BYTES + value % slots * SLOT_BYTES
            previous: int = _SLOT.unpack_from(mapping, slot_at)[0]
            if not 0 < previous < count:
                previous = 0
                used += 1
            seconds = min((store_ms - begin_ms) // 1000, _SECONDS_MAX) if 0 < begin_ms < store_ms else 0
            mapping[at : at + ENTRY_BYTES] = ENTRY.pack(value, physical_offset, seconds, previous)
            mapping[slot_at : slot_at + SLOT_BYTES] = count.to_bytes(4)
            at += ENTRY_BYTES
            count += 1
        return used

    # ---- reading

    def offset_of(self, entry: int) -> int:
        """Physical offset stored in an entry."""
        mapping = self._map or self._attach()
        offset: int = _OFFSET.unpack_from(mapping, self._entries_at + entry * ENTRY_BYTES + 4)[0]
        return offset

    def time_of(self, entry: int) -> int:
        """Store time of an entry, Unix ms, up to 999 ms too early; exact for entry 1."""
        return self._time(entry, ENTRY.unpack_from(self._attach(), self._entries_at + entry * ENTRY_BYTES)[2])

    def _time(self, entry: int, seconds: int) -> int:
        # Entry 1 of a later file counts seconds from the end of the previous file, but its time is begin_ms itself.
        return self.begin_ms if entry == 1 else self.begin_ms + seconds * 1000

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may contain a record stored in this time range (IX-07)."""
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def search(
        self, value: int, count_max: int, begin_ms: int, end_ms: int, offsets: list[PhysicalOffset]
    ) -> Generator[None, None, None]:
        """Append to `offsets` those of the matching entries, newest first, one per record, up to count_max (IX-06).

        Yields after every STEPS_PER_TURN entries; the file may be written, cut, closed or removed meanwhile.
        """
        mapping = self._attach()
        steps = 0
        newer = self.count
        entry: int = _SLOT.unpack_from(mapping, HEADER_BYTES + value % self._shape.slots * SLOT_BYTES)[0]
        # Numbers must fall along a chain: a damaged link would otherwise make the search endless.
        while 0 < entry < newer and len(offsets) < count_max:
            stored, offset, seconds, previous = ENTRY.unpack_from(mapping, self._entries_at + entry * ENTRY_BYTES)
            time_ms = self._time(entry, seconds)
            # An entry that was never written, or damage: nothing older can be trusted.
            if seconds < 0:
                return
            # One record may have several keys with this hash.
            if stored == value and begin_ms <= time_ms <= end_ms and offset >= 0 and offsets[-1:] != [offset]:
                offsets.append(PhysicalOffset(offset))
            # Entries of a chain are ordered by time, newest first.
            if time_ms < begin_ms:
                return
            newer, entry = entry, previous
            steps += 1
            if steps % STEPS_PER_TURN == 0:
                yield
                # The caller's other work may have deleted, cut or closed the file while this generator was suspended.
                if self.removed:
                    return
                mapping = self._attach()
                newer = min(newer, self.count)

    def trailing(self, physical_offset: int, limit: int) -> int:
        """Number of the last entries that point to this offset; counted up to limit."""
        entry = self.count - 1
        count = 0
        while entry > 0 and count < limit and self.offset_of(entry) == physical_offset:
            entry -= 1
            count += 1
        return count

    def before(self, physical_offset: int) -> int:
        """Number of leading entries to keep so that the last one points below physical_offset, but not below begin_offset."""
        # Offsets rise within a file; damage only makes the loop below walk further.
        entry = bisect_left(range(1, self.count), physical_offset, key=self.offset_of)  # ascending, unless damaged
        while entry > 0 and not self.begin_offset <= self.offset_of(entry) < physical_offset:
            entry -= 1
        return entry

    # ---- repair

    def cut(self, entries: int, end_ms: int | None) -> None:
        """Keep the first entries, at least one; rebuild slots, links and header from them, and sync (DUR-13).

        end_ms: store time of the last entry kept; None derives it from the entry, up to 999 ms too early. The count is lowered
        on disk first, so a file never claims entries that may be missing. If interrupted anywhere and repeated, it yields the
        same bytes (DUR-20). Raises OSError.
        """
        descriptor = self.descriptor()
        self.begin_offset, self.end_offset = self.offset_of(1), self.offset_of(entries)
        self.end_ms = self.time_of(entries) if end_ms is None else end_ms
        # Lowered first and synced: entries that are about to be overwritten must not be claimed any more.
        if self.count != entries + 1:
            self.count = entries + 1
            self.write_header()
            self._disk.sync(descriptor)
        slots = self._rebuilt_slots(entries)
        self.used_slots = self._shape.slots - slots.count(0)
        if sys.byteorder == "little":
            # Files are big-endian.
            slots.byteswap()
        self._overwrite(HEADER_BYTES, slots.tobytes())
        self._clear_from(self._entries_at + (entries + 1) * ENTRY_BYTES)
        self.write_header()
        self._disk.sync(descriptor)
        self.dirty = False

    def _rebuilt_slots(self, entries: int) -> array[int]:
        """Rebuild the slots from the entries; a link that does not match is rewritten."""
        count = self._shape.slots
        slots = array("i", bytes(SLOT_BYTES * count))
        entry = 1
        for numbers in self._numbers(entries):
            for value, previous in zip(numbers[0::5], numbers[4::5], strict=True):
                slot = value % count
                # A link that a crash has torn, or that belongs to a dropped entry.
                if slots[slot] != previous:
                    self._write(self._entries_at + entry * ENTRY_BYTES + 16, slots[slot].to_bytes(4))
                slots[slot] = entry
                entry += 1
        return slots

    def _numbers(self, entries: int) -> Iterator[array[int]]:
        """Entries 1..entries in chunks, each entry as five 32-bit numbers."""
        for first in range(1, entries + 1, _CHUNK_ENTRIES):
            size = min(_CHUNK_ENTRIES, entries + 1 - first) * ENTRY_BYTES
            numbers = array("i", self._disk.read(self._fd, self._entries_at + first * ENTRY_BYTES, size))
            if sys.byteorder == "little":
                numbers.byteswap()
            yield numbers

    def _overwrite(self, at: int, data: bytes) -> None:
        """Write only the blocks that differ, so that the rest of a sparse file stays sparse."""
        for begin in range(0, len(data), _BLOCK_BYTES):
            block = data[begin : begin + _BLOCK_BYTES]
            # Only what differs is written: a sparse file would otherwise get all its blocks.
            if self._disk.read(self._fd, at + begin, len(block)) != block:
                self._write(at + begin, block)

    def _clear_from(self, at: int) -> None:
        """Zero the remains of dropped entries; remains beyond a long run of zeros may stay, because nothing points to them."""
        clean = 0
        while at < self._shape.file_bytes and clean < _CLEAN_BYTES:
            block = self._disk.read(self._fd, at, min(16 * _BLOCK_BYTES, self._shape.file_bytes - at))
            # Found something: look for the end of it again.
            if block.strip(b"\0"):
                self._write(at, bytes(len(block)))
                clean = 0
            clean += len(block)
            at += len(block)
