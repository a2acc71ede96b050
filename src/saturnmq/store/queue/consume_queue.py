"""The consume queue: per topic and queue id, an array of fixed-length units that point into the commit log.

A queue keeps no file open: its newest units are in memory until they are written, older ones are read through a bounded cache
of descriptors. Units that were only in memory at a crash are dispatched again from the log (DUR-13). The queue belongs to the
event loop; only `write_pending` runs in a thread, on a snapshot.

Requirements: CQ-01..CQ-12, RC-06, RC-10, DEL-09, DUR-04, DUR-13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Final, TypeAlias

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, PhysicalOffset, QueueOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import file_name, numbered_files
from saturnmq.store.queue.queue_extension import ADDRESS_MAX, Content, QueueExtension
from saturnmq.store.settings import CONSUME_QUEUE_UNIT_BYTES

UNIT_FIELDS: Final = {  # of a consume queue unit, 20 bytes, big-endian; docs/spec/02 section 15, CQ-01..03
    "physical": "q",  # where the record starts in the commit log, bytes
    "size": "i",  # record length, bytes; 0x7FFFFFFF marks an unused leading unit (filler)
    "tags_code": "q",  # Java hash of the tag; delivery time in ms for delayed messages
}
UNIT: Final = struct.Struct(">" + "".join(UNIT_FIELDS.values()))
UNIT_BYTES: Final = CONSUME_QUEUE_UNIT_BYTES
FILLER_SIZE: Final = 0x7FFFFFFF
_FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)
_KEPT_UNITS: Final = 1024  # written units kept in memory for readers at the end of the queue
_READ_UNITS: Final = 4096

Unit: TypeAlias = tuple[PhysicalOffset, int, int]
ReadFile: TypeAlias = "Callable[[Path, int, int], bytes | None]"
"""(physical offset, size, tags code)"""
QueueShare: TypeAlias = "tuple[str, int, ConsumeQueue, QueueOffset, list[Unit]]"
"""Topic, queue id and queue of consecutive units that are appended, and the queue offset of the first."""


@dataclass(frozen=True, slots=True)
class PendingUnits:
    """Units that a flush writes: positions in the queue's byte sequence and their bytes, one piece per file.

    extension: written before the pieces, because their units point into it.
    """

    folder: Path
    file_bytes: int
    pieces: tuple[tuple[int, bytes], ...]
    end: int
    extension: PendingUnits | None = None


class ConsumeQueue:
    """One queue of one topic.

    max_offset: the offset after the last unit that readers see.
    next_offset: the offset of the next message; ahead of max_offset while messages wait to be confirmed.
    min_offset: the first unit whose record is still in the commit log.
    max_physical: end of the last record that it points to, bytes; -1 if empty.
    extension: the extension that its units may point to (CQ-13); None if that is off.
    """

    __slots__ = (
        "_cache",
        "_file_bytes",
        "_first",
        "_folder",
        "_read_path",
        "_read_start",
        "_tail",
        "_tail_at",
        "_written",
        "extension",
        "max_offset",
        "max_physical",
        "min_offset",
        "next_offset",
    )

    def __init__(
        self, folder: Path, file_bytes: int, cache: FileCache, extension: QueueExtension | None = None
    ) -> None:
        self.extension = extension
        self._folder = folder
        self._file_bytes = file_bytes
        self._cache = cache
        self._read_start = -1  # start of the file read last, with its path: a replay reads the same file repeatedly
        self._read_path: Path | None = None
        self._first = 0  # start of the first file, bytes
        self._tail = bytearray()  # units from byte position _tail_at on
        self._tail_at = 0
        self._written = 0  # every byte before this position is in files
        self.min_offset = self.max_offset = self.next_offset = QueueOffset(0)
        self.max_physical = NO_PHYSICAL_OFFSET

    # ---- load

    def load(self, *, linear: bool) -> None:
        """Find the last unit in use (RC-06). linear: scan the last three files, because they may have holes.

        Raises CorruptRecord if a file is missing or has another length: the queue must be rebuilt from the log.
        """
        # A last file of length 0 is the rest of a creation that a crash interrupted.
        paths = allocated_files(self._folder)
        if not paths:
            return
        starts = [int(path.name) for path in paths]
        # The file before the first one is made up, so that the loop needs no exception for it.
        for path, start, before in zip(paths, starts, [starts[0] - self._file_bytes, *starts], strict=False):
            length = path.stat().st_size
            if length != self._file_bytes:
                raise CorruptRecord(f"{path} is {length} bytes long, must be {self._file_bytes}")
            if start != before + self._file_bytes:
                raise CorruptRecord(f"{path} does not follow the file that starts at {before}: one is missing")
        self._first = starts[0]
        # After a crash without a note in the checkpoint: the files may have holes.
        end = self._used_linear(starts[-3:]) if linear else self._used(starts[-1])
        self._set_written(end)
        self.min_offset = self.first_offset
        self._skip_fillers()
        last = self.unit(QueueOffset(self.max_offset - 1))
        # A filler points to no record.
        if last is not None and last[1] != FILLER_SIZE:
            self.max_physical = PhysicalOffset(last[0] + last[1])

    def load_extension(self) -> None:
        """Load the extension after the queue itself. Raises StoreError if its files' length differs from the setting."""
        if self.extension is not None:
            self.extension.load(self._last_code(), self.max_offset)

    def trim_extension(self) -> None:
        """After a crash, remove what the extension's files hold after its end. Raises OSError, StoreError."""
        if self.extension is not None:
            self.extension.trim()

    def extension_of(self, queue_offset: QueueOffset) -> Content | None:
        """Extension unit of a message; None without one. Raises OSError, StoreError."""
        unit = self._unit(queue_offset) if self.extension is not None else None
        return self.extension.read(unit[2]) if self.extension is not None and unit is not None else None

    def extension_time(self, queue_offset: QueueOffset) -> int | None:
        """Store time (Unix ms) of a message from its extension; None if it has none."""
        content = self.extension_of(queue_offset)
        return content.store_ms if content is not None else None

    def _last_code(self) -> int | None:
        """The raw tags code of the last unit (an address if it has an extension); None for an empty queue."""
        unit = self._unit(QueueOffset(self.max_offset - 1))
        return unit[2] if unit is not None else None

    def _set_written(self, end: int) -> None:
        self._tail.clear()
        self._tail_at = self._written = end
        self.max_offset = self.next_offset = QueueOffset(end // UNIT_BYTES)

    def _used(self, start: int) -> int:
        """End of the units in the last file, by bisection: they are contiguous from its start."""
        # A few reads instead of the file's 6 MB.
        low, high = 0, self._file_bytes // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = UNIT.unpack(self._from_file(start + middle * UNIT_BYTES, UNIT_BYTES))
            # 0, 0 (never written) is the end; a filler has size 0x7FFFFFFF and counts as used.
            if physical >= 0 and size > 0:
                low = middle + 1
            else:
                high = middle
        return start + low * UNIT_BYTES

    def _used_linear(self, starts: Sequence[int]) -> int:
        end = starts[0]
        for start in starts:
            for physical, size, _ in UNIT.iter_unpack(self._from_file(start, self._file_bytes)):
                if physical < 0 or size <= 0:
                    return end
                end += UNIT_BYTES
        return end

    def _skip_fillers(self) -> None:
        """Move min_offset past the leading fillers, by bisection: they are contiguous."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = QueueOffset((low + high) // 2)
            unit = self._unit(middle)
            if unit is not None and unit[1] == FILLER_SIZE:
                low = QueueOffset(middle + 1)
            else:
                high = middle
        self.min_offset = low

    # ---- append

    def append_units(self, queue_offset: QueueOffset, units: Sequence[Unit]) -> bool:
        """Append units from a queue offset on; those that exist already are left unchanged (CQ-07).

        False if units before them are missing: the queue must be rebuilt.
        """
        if queue_offset != self.max_offset:
            if queue_offset < self.max_offset:
                # A replay after a crash repeats units: those that exist stay as they are.
                units = units[self.max_offset - queue_offset :]
                if not units:
                    return True
            elif self.max_offset:
                # A gap: units before them are missing, and every reader would stop there.
                return False
            else:
                # The log does not begin with this queue's first record any more: the numbers of its records must stay.
                self._start_at(queue_offset)
        self._tail += UNIT.pack(*units[0]) if len(units) == 1 else b"".join(starmap(UNIT.pack, units))
        self.max_offset += len(units)  # type: ignore[assignment]
        # Recovery appends without taking numbers first.
        if self.next_offset < self.max_offset:
            self.next_offset = self.max_offset
        physical, size, _ = units[-1]
        self.max_physical = physical + size  # type: ignore[assignment]
        return True

    def append(self, queue_offset: QueueOffset, physical: PhysicalOffset, size: int, tags_code: int) -> bool:
        """As `append_units`, for one."""
        return self.append_units(queue_offset, [(physical, size, tags_code)])

    def append_extended(
        self,
        queue_offset: QueueOffset,
        physical: PhysicalOffset,
        size: int,
        tags_code: int,
        store_ms: int,
        bit_map: bytes | None,
    ) -> bool:
        """As `append`, with tags code, store time (Unix ms) and bit map stored in the extension (CQ-13)."""
        is_new = queue_offset == self.max_offset or not self.max_offset
        # A unit that exists keeps its address: its content must not be stored twice.
        if self.extension is not None and is_new:
            tags_code = self.extension.append(tags_code, store_ms, bit_map)
        return self.append(queue_offset, physical, size, tags_code)

    def _start_at(self, queue_offset: QueueOffset) -> None:
        """Start an empty queue at a non-zero offset: the file is filled with fillers up to it (CQ-08)."""
        position = queue_offset * UNIT_BYTES
        self._first = self._tail_at = self._written = position - position % self._file_bytes
        # The file up to the unit is filled, so that positions in files follow from queue offsets.
        self._tail[:] = _FILLER * ((position - self._first) // UNIT_BYTES)
        self.min_offset = self.max_offset = queue_offset

    def begin_at(self, queue_offset: QueueOffset) -> None:
        """Let an empty queue continue at this offset instead of 0; the unit before it is a filler."""
        # One filler before it, so that the file exists and the next start finds where the queue goes on.
        self._start_at(QueueOffset(queue_offset - 1))
        self._tail += _FILLER
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    # ---- write

    @property
    def first_offset(self) -> QueueOffset:
        """Queue offset of the first unit in files or memory, fillers included."""
        return QueueOffset(self._first // UNIT_BYTES)

    @property
    def dirty_bytes(self) -> int:
        """Bytes of unwritten units."""
        return self.max_offset * UNIT_BYTES - self._written

    def begin_flush(self) -> PendingUnits:
        """Snapshot of the unwritten units, taken on the loop; `write_pending` writes it in a thread, `end_flush` records it."""
        end = self.max_offset * UNIT_BYTES
        pieces = []
        at = self._written
        while at < end:
            stop = min(end, at - at % self._file_bytes + self._file_bytes)
            # A copy: the loop appends to the tail while a thread writes.
            pieces.append((at, bytes(self._tail[at - self._tail_at : stop - self._tail_at])))
            at = stop
        extension = None
        # Its bytes are taken with the units that point to them.
        if self.extension is not None:
            parts = self.extension.begin_flush()
            extension = PendingUnits(self.extension.folder, self.extension.file_bytes, parts, self.extension.end)
        return PendingUnits(self._folder, self._file_bytes, tuple(pieces), end, extension)

    def end_flush(self, pending: PendingUnits) -> None:
        """Record that the pieces are durable and release old units from memory."""
        if self.extension is not None and pending.extension is not None:
            self.extension.end_flush(pending.extension.end)
        # The queue may have been truncated during the flush.
        self._written = max(self._written, min(pending.end, self.max_offset * UNIT_BYTES))
        spare = self._written - _KEPT_UNITS * UNIT_BYTES - self._tail_at
        # Released in large steps: removing the front of a bytearray moves the rest.
        if spare > _KEPT_UNITS * UNIT_BYTES:
            del self._tail[:spare]
            self._tail_at += spare

    # ---- read

    def _from_file(self, position: int, size_bytes: int) -> bytes:
        """Up to size_bytes of one file from a position on. Raises OSError, StoreError."""
        path, at = self._file_of(position)
        return self._cache.read(path, at, min(size_bytes, self._file_bytes - at))

    def _file_of(self, position: int) -> tuple[Path, int]:
        """The file of a byte of the queue, and the position there."""
        at = position % self._file_bytes
        # The path is kept: consecutive reads are of one file.
        if position - at != self._read_start or self._read_path is None:
            self._read_start, self._read_path = position - at, self._folder / file_name(position - at)
        return self._read_path, at

    def read(self, queue_offset: QueueOffset, units_max: int) -> bytes:
        """Up to units_max units from queue_offset on, within one file (CQ-04); b"" if there are none."""
        return self._read(queue_offset, units_max, self._cache.read) or b""

    def read_cached(self, queue_offset: QueueOffset, units_max: int) -> bytes | None:
        """As `read`; None if it would wait for the disk."""
        return self._read(queue_offset, units_max, self._cache.read_cached)

    def _read(self, queue_offset: QueueOffset, units_max: int, from_file: ReadFile) -> bytes | None:
        # Outside what exists; the caller decides what that means.
        if queue_offset < self._first // UNIT_BYTES or queue_offset >= self.max_offset:
            return b""
        at = queue_offset * UNIT_BYTES
        stop = min(
            at + units_max * UNIT_BYTES, at - at % self._file_bytes + self._file_bytes, self.max_offset * UNIT_BYTES
        )
        if at >= self._tail_at:
            return bytes(self._tail[at - self._tail_at : stop - self._tail_at])
        path, position = self._file_of(at)
        written = from_file(path, position, min(stop, self._tail_at) - at)
        # The read reaches from the files into memory.
        if written is not None and stop > self._tail_at == at + len(written):
            written += self._tail[: stop - self._tail_at]
        return written

    def place_of(self, queue_offset: QueueOffset) -> tuple[Path, int]:
        """File of a unit, and its position there in bytes."""
        return self._file_of(queue_offset * UNIT_BYTES)

    def _unit(self, queue_offset: QueueOffset) -> Unit | None:
        # A short read: the file is shorter than its units say, or being created.
        raw = self.read(queue_offset, 1)
        if len(raw) != UNIT_BYTES:
            return None
        physical, size, tags = UNIT.unpack(raw)
        return physical, size, tags

    def unit(self, queue_offset: QueueOffset) -> Unit | None:
        """(physical offset, size, tags code), or None outside the queue.

        The tags code comes from the extension if the unit has one; an address that cannot be resolved is returned as it is.
        """
        unit = self._unit(queue_offset) if queue_offset >= self.min_offset else None
        return self._with_tags(unit) if unit is not None and unit[2] <= ADDRESS_MAX else unit

    def _with_tags(self, unit: Unit) -> Unit:
        content = self.extension.read(unit[2]) if self.extension is not None else None
        return unit if content is None else (unit[0], unit[1], content.tags_code)

    def units(self, queue_offset: QueueOffset, count: int) -> Iterator[tuple[QueueOffset, Unit]]:
        """(queue offset, unit) from queue_offset on, across files; tags codes as in `unit`."""
        end = min(queue_offset + count, self.max_offset)
        while queue_offset < end:
            raw = self.read(queue_offset, min(_READ_UNITS, end - queue_offset))
            if not raw:
                return
            for unit in UNIT.iter_unpack(raw):
                yield queue_offset, unit if unit[2] > ADDRESS_MAX else self._with_tags(unit)
                queue_offset = QueueOffset(queue_offset + 1)

    def is_expired(self, log_start: PhysicalOffset) -> bool:
        """Whether it has had records and the last of them lies before log_start."""
        # Numbers that were given but not dispatched are records that are not expired.
        return 0 < self.max_offset == self.next_offset and self.max_physical <= log_start

    def next_file_offset(self, queue_offset: QueueOffset) -> QueueOffset:
        """Queue offset of the first unit of the next file (CQ-05)."""
        per_file = self._file_bytes // UNIT_BYTES
        return QueueOffset(queue_offset + per_file - queue_offset % per_file)

    # ---- shrink

    def truncate(self, physical_end: PhysicalOffset) -> int:
        """Drop units of records that end after physical_end (RC-10), in files too; returns how many. Raises OSError, StoreError."""
        low = self.end_before(physical_end)
        dropped = self.max_offset - low
        if not dropped:
            return 0
        end = low * UNIT_BYTES
        # Before the attributes: if it fails, memory still describes the files.
        self._zero_files(end)
        if end >= self._tail_at:
            del self._tail[end - self._tail_at :]
        else:
            self._tail.clear()
            self._tail_at = end
        self._written = min(self._written, end)
        self.max_offset = self.next_offset = low
        last = self.unit(QueueOffset(low - 1))
        self.max_physical = PhysicalOffset(last[0] + last[1]) if last is not None else NO_PHYSICAL_OFFSET
        # Nothing is left: files and offsets are reset.
        if low == 0:
            self.delete()
        elif self.extension is not None:
            self.extension.truncate(self._last_code())
        return dropped

    def end_before(self, physical_end: PhysicalOffset) -> QueueOffset:
        """The queue offset after the last unit that `truncate` would keep. Raises OSError."""
        low, high = self.min_offset, self.max_offset
        # The common case at a clean start: nothing to drop.
        if self.max_physical <= physical_end and self._follows(QueueOffset(high - 1), physical_end):
            return high
        while low < high:
            middle = QueueOffset((low + high) // 2)
            if self._ends_before(middle, physical_end):
                low = QueueOffset(middle + 1)
            else:
                high = middle
        # Bisection assumes that all good units come first, which holes of a crash break: walk back over them.
        while low > self.min_offset and not self._follows(before := QueueOffset(low - 1), physical_end):
            low = before
        return low

    def _ends_before(self, queue_offset: QueueOffset, physical_end: PhysicalOffset) -> bool:
        return _is_good(self._unit(queue_offset), physical_end)

    def _follows(self, queue_offset: QueueOffset, physical_end: PhysicalOffset) -> bool:
        """Whether a unit is valid and follows a valid one.

        After a power loss unsynced files may contain holes and fragments; the bisection in `end_before` may stop at the end of
        such a fragment.
        """
        if queue_offset < self.min_offset:
            return True
        unit = self._unit(queue_offset)
        if queue_offset == self.min_offset or not _is_good(unit, physical_end):
            return _is_good(unit, physical_end)
        before = self._unit(QueueOffset(queue_offset - 1))
        return unit is not None and _is_good(before, unit[0])

    def _zero_files(self, end: int) -> None:
        """Delete or zero everything from byte position `end` on: a stale unit there would be taken for a valid one."""
        disk = self._cache.disk
        for path in numbered_files(self._folder):
            start = int(path.name)
            # The first file is never deleted here: it says where the queue begins.
            if start >= end and start > self._first:
                self._cache.forget(path)
                disk.unlink(path)
            elif start + self._file_bytes > end:
                fd = disk.open(path)
                try:
                    at = max(end - start, 0)
                    # Only the part that is not zero already is written.
                    leftover = disk.read(fd, at, self._file_bytes - at).rstrip(b"\0")
                    if leftover:
                        disk.write(fd, at, bytes(len(leftover)))
                        disk.sync(fd)
                finally:
                    disk.close(fd)

    def correct_min_offset(self, physical_min: PhysicalOffset) -> None:
        """Move min_offset to the first unit whose record is at or after the start of the commit log (CQ-11)."""
        unit = self._unit(self.min_offset)
        # The common case: the log has not moved.
        if unit is None or unit[0] >= physical_min:
            return
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = QueueOffset((low + high) // 2)
            unit = self._unit(middle)
            if unit is not None and unit[0] < physical_min:
                low = QueueOffset(middle + 1)
            else:
                high = middle
        self.min_offset = low

    def delete_before(self, physical_min: PhysicalOffset) -> int:
        """Delete leading files whose last unit points before physical_min, never the last file (DEL-09); returns how many."""
        count = 0
        paths = numbered_files(self._folder)
        # The last file stays, and with it the next offset.
        for path in paths[:-1]:
            last = QueueOffset((int(path.name) + self._file_bytes) // UNIT_BYTES - 1)
            unit = self._unit(last)
            # A file that is not written completely is still in memory.
            if unit is None or unit[0] >= physical_min or last + 1 > self._written // UNIT_BYTES:
                break
            self._cache.forget(path)
            self._cache.disk.unlink(path)
            # After each file, so that an error leaves the queue as far as it came.
            self._first = int(path.name) + self._file_bytes
            count += 1
        self.min_offset = max(self.min_offset, self.first_offset)
        self.correct_min_offset(physical_min)
        first = self._unit(self.min_offset) if self.extension is not None else None
        if self.extension is not None and first is not None:
            self.extension.delete_before(first[2])
        return count

    def delete(self) -> None:
        """Delete the files and reset (CQ-12). Raises OSError."""
        for path in numbered_files(self._folder):
            self._cache.forget(path)
            self._cache.disk.unlink(path)
        self._tail.clear()
        self._first = self._tail_at = self._written = 0
        self.min_offset = self.max_offset = self.next_offset = QueueOffset(0)
        self.max_physical = NO_PHYSICAL_OFFSET
        if self.extension is not None:
            self.extension.delete()


def _is_good(unit: Unit | None, physical_end: PhysicalOffset) -> bool:
    """Whether a unit points to a record that ends at or before physical_end."""
    return unit is not None and unit[0] >= 0 and unit[1] > 0 and unit[0] + unit[1] <= physical_end


def allocated_files(folder: Path) -> list[Path]:
    """The files of a queue in order, without a last one of length 0: a crash left it, and it will be created again."""
    paths = numbered_files(folder)
    return paths[:-1] if paths and not paths[-1].stat().st_size else paths


def write_pending(pending: PendingUnits, disk: Disk) -> None:
    """Write and sync the pieces, creating missing files. Raises OSError, StoreError; safe in a thread.

    Files are sparse, which is safe because they are never mapped (DUR-04).
    """
    if pending.extension is not None:
        # First: a unit on disk must never point to content that is not.
        write_pending(pending.extension, disk)
    for position, data in pending.pieces:
        at = position % pending.file_bytes
        path = pending.folder / file_name(position - at)
        # A file of length 0 was left by a crash: it is created again.
        is_new = not path.exists() or not path.stat().st_size
        if is_new:
            disk.make_folder(pending.folder)
            fd = disk.create(path, pending.file_bytes, allocate=False)
        else:
            fd = disk.open(path)
        try:
            disk.write(fd, at, data)
            disk.sync(fd)
            # The units survive a power loss only if the file's name does.
            if is_new:
                disk.sync_folder(pending.folder)
        finally:
            disk.close(fd)
