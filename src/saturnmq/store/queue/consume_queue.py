"""The consume queue: per topic and queue, an array of fixed units that point into the commit log. Source: spec 02 section 3.

A queue keeps no file open: its newest units lie in memory until they are written, older ones are read through a bounded cache
of descriptors. What memory had at a crash is dispatched again from the log (DUR-13).
"""

# Consume queue unit, 20 bytes, big-endian. Source: spec 02 section 15, CQ-01..03.
#   at  type  field       meaning
#    0  i64   phy_offset  where the record starts in the commit log, bytes
#    8  i32   size        record length, bytes; 0x7FFFFFFF fills unused leading units
#   12  i64   tags_code   Java hash of the tag; delivery time in ms for delayed messages

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import file_name, numbered_files
from saturnmq.store.queue.queue_extension import ADDRESS_MAX, QueueExtension
from saturnmq.store.settings import CONSUME_QUEUE_UNIT_BYTES

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = CONSUME_QUEUE_UNIT_BYTES
FILLER_SIZE: Final = 0x7FFFFFFF
_FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)
_KEPT_UNITS: Final = 1024  # written units that stay in memory for readers at the end of the queue
_READ_UNITS: Final = 4096

Unit: TypeAlias = tuple[int, int, int]
"""(physical offset, size, tags code)"""


@dataclass(frozen=True, slots=True)
class Pending:
    """What a flush writes: positions in the queue's byte sequence and their bytes, one piece per file.

    extension: what goes to disk before it, because its units point there.
    """

    folder: Path
    file_bytes: int
    pieces: tuple[tuple[int, bytes], ...]
    end: int
    extension: Pending | None = None


class ConsumeQueue:
    """One queue of one topic.

    max_offset: where readers end. next_offset: what the next message gets, ahead of it while messages wait to be confirmed.
    min_offset: the first one whose record is still in the commit log.
    max_physical: end of the last record it points to, bytes; -1 when empty.
    extension: what its units may point to (CQ-13); None where that is switched off.
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
        self._read_start = -1  # of the file read last, with its path: a start reads the same one again and again
        self._read_path: Path | None = None
        self._first = 0  # start of the first file, bytes
        self._tail = bytearray()  # units from byte position _tail_at on
        self._tail_at = 0
        self._written = 0  # byte position before which all is in files
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.max_physical = -1

    # ---- load

    def load(self, *, linear: bool) -> None:
        """Find the last unit in use (RC-06). linear: read the last three files whole, because they may have holes.

        Raises CorruptRecord when a file is missing or has another length: the log can make all of it anew.
        """
        paths = born_files(self._folder)
        if not paths:
            return
        starts = [int(path.name) for path in paths]
        for path, start, before in zip(paths, starts, [starts[0] - self._file_bytes, *starts], strict=False):
            length = path.stat().st_size
            if length != self._file_bytes:
                raise CorruptRecord(f"{path} is {length} bytes long, must be {self._file_bytes}")
            if start != before + self._file_bytes:
                raise CorruptRecord(f"{path} does not follow the file that starts at {before}: one is missing")
        self._first = starts[0]
        end = self._used_linear(starts[-3:]) if linear else self._used(starts[-1])
        self._set_written(end)
        self.min_offset = self._first // UNIT_BYTES
        self._skip_fillers()
        last = self.unit(self.max_offset - 1)
        if last is not None and last[1] != FILLER_SIZE:
            self.max_physical = last[0] + last[1]

    def load_extension(self) -> None:
        """Find its end; the queue itself is loaded. Raises StoreError for files of another length than the setting."""
        if self.extension is not None:
            self.extension.load(self._last_code(), self.max_offset)

    def trim_extension(self) -> None:
        """After a crash: what the extension's files hold behind its end goes. Raises OSError, StoreError."""
        if self.extension is not None:
            self.extension.trim()

    def extension_time(self, queue_offset: int) -> int | None:
        """Store time (Unix ms) of a message as its extension has it; None without one."""
        unit = self._unit(queue_offset) if self.extension is not None else None
        content = self.extension.read(unit[2]) if self.extension is not None and unit is not None else None
        return content.store_ms if content is not None else None

    def _last_code(self) -> int | None:
        """The tags code as it stands in the last unit."""
        unit = self._unit(self.max_offset - 1)
        return unit[2] if unit is not None else None

    def _set_written(self, end: int) -> None:
        self._tail.clear()
        self._tail_at = self._written = end
        self.max_offset = self.next_offset = end // UNIT_BYTES

    def _used(self, start: int) -> int:
        """Where the units of the last file end, by bisection: they are one run from its start."""
        low, high = 0, self._file_bytes // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = UNIT.unpack(self._from_file(start + middle * UNIT_BYTES, UNIT_BYTES))
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
        """min_offset behind the leading units that mean nothing: they are one run."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit is not None and unit[1] == FILLER_SIZE:
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    # ---- append

    def append(self, queue_offset: int, physical: int, size: int, tags_code: int) -> bool:
        """Add the unit of a queue offset; one that is there already is left alone (CQ-07).

        False when units before it are missing: the queue must be made anew.
        """
        if queue_offset != self.max_offset:
            if queue_offset < self.max_offset:
                return True
            if self.max_offset:
                return False
            self._start_at(queue_offset)
        self._tail += UNIT.pack(physical, size, tags_code)
        self.max_offset = queue_offset = queue_offset + 1
        if self.next_offset < queue_offset:
            self.next_offset = queue_offset
        self.max_physical = physical + size
        return True

    def append_units(self, queue_offset: int, units: list[tuple[int, int, int]]) -> bool:
        """Add units, each physical offset, size and tags code, from this queue offset on; False when it is not the next."""
        if queue_offset != self.max_offset:
            return False
        pack = UNIT.pack
        self._tail += b"".join([pack(*unit) for unit in units])
        self.max_offset = queue_offset = queue_offset + len(units)
        if self.next_offset < queue_offset:
            self.next_offset = queue_offset
        self.max_physical = units[-1][0] + units[-1][1]
        return True

    def append_extended(
        self, queue_offset: int, physical: int, size: int, tags_code: int, store_ms: int, bit_map: bytes | None
    ) -> bool:
        """The same with the tags code, store time (Unix ms) and bit map in the extension (CQ-13)."""
        is_new = queue_offset == self.max_offset or not self.max_offset
        if self.extension is not None and is_new:
            tags_code = self.extension.append(tags_code, store_ms, bit_map)
        return self.append(queue_offset, physical, size, tags_code)

    def _start_at(self, queue_offset: int) -> None:
        """First unit of an empty queue is not number 0: fill up to it with units that mean nothing (CQ-08)."""
        position = queue_offset * UNIT_BYTES
        self._first = self._tail_at = self._written = position - position % self._file_bytes
        self._tail[:] = _FILLER * ((position - self._first) // UNIT_BYTES)
        self.min_offset = self.max_offset = queue_offset

    def begin_at(self, queue_offset: int) -> None:
        """An empty queue goes on at this offset, not 0: the unit before it means nothing."""
        self._start_at(queue_offset - 1)
        self._tail += _FILLER
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    # ---- write

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in files or memory."""
        return self._first // UNIT_BYTES

    @property
    def dirty_bytes(self) -> int:
        """Bytes of units that wait to be written."""
        return self.max_offset * UNIT_BYTES - self._written

    def begin_flush(self) -> Pending:
        """What to write now, taken on the loop; `write_pending` does it in a thread, `end_flush` notes it on the loop."""
        end = self.max_offset * UNIT_BYTES
        pieces = []
        at = self._written
        while at < end:
            stop = min(end, at - at % self._file_bytes + self._file_bytes)
            pieces.append((at, bytes(self._tail[at - self._tail_at : stop - self._tail_at])))
            at = stop
        extension = None
        if self.extension is not None:
            parts = self.extension.begin_flush()
            extension = Pending(self.extension.folder, self.extension.file_bytes, parts, self.extension.end)
        return Pending(self._folder, self._file_bytes, tuple(pieces), end, extension)

    def end_flush(self, pending: Pending) -> None:
        """The pieces are on disk; old units leave memory."""
        if self.extension is not None and pending.extension is not None:
            self.extension.end_flush(pending.extension.end)
        self._written = max(self._written, min(pending.end, self.max_offset * UNIT_BYTES))
        spare = self._written - _KEPT_UNITS * UNIT_BYTES - self._tail_at
        if spare > _KEPT_UNITS * UNIT_BYTES:
            del self._tail[:spare]
            self._tail_at += spare

    # ---- read

    def _from_file(self, position: int, size_bytes: int) -> bytes:
        """Bytes of one file from a position on, up to its end. Raises OSError, StoreError."""
        at = position % self._file_bytes
        if position - at != self._read_start or self._read_path is None:
            self._read_start, self._read_path = position - at, self._folder / file_name(position - at)
        return self._cache.read(self._read_path, at, min(size_bytes, self._file_bytes - at))

    def read(self, queue_offset: int, units_max: int) -> bytes:
        """Units from queue_offset on inside its file (CQ-04), at most units_max; b"" when there are none."""
        if queue_offset < self._first // UNIT_BYTES or queue_offset >= self.max_offset:
            return b""
        at = queue_offset * UNIT_BYTES
        stop = min(
            at + units_max * UNIT_BYTES, at - at % self._file_bytes + self._file_bytes, self.max_offset * UNIT_BYTES
        )
        if at >= self._tail_at:
            return bytes(self._tail[at - self._tail_at : stop - self._tail_at])
        written = self._from_file(at, min(stop, self._tail_at) - at)
        if stop > self._tail_at == at + len(written):
            written += self._tail[: stop - self._tail_at]
        return written

    def _unit(self, queue_offset: int) -> Unit | None:
        raw = self.read(queue_offset, 1)
        if len(raw) != UNIT_BYTES:
            return None
        physical, size, tags = UNIT.unpack(raw)
        return physical, size, tags

    def unit(self, queue_offset: int) -> Unit | None:
        """(physical offset, size, tags code), or None outside the queue.

        The tags code is the extension's where there is one; an address that leads nowhere stays as it is.
        """
        unit = self._unit(queue_offset) if queue_offset >= self.min_offset else None
        return self._with_tags(unit) if unit is not None and unit[2] <= ADDRESS_MAX else unit

    def _with_tags(self, unit: Unit) -> Unit:
        content = self.extension.read(unit[2]) if self.extension is not None else None
        return unit if content is None else (unit[0], unit[1], content.tags_code)

    def units(self, queue_offset: int, count: int) -> Iterator[tuple[int, Unit]]:
        """(queue offset, unit) from queue_offset on, over file borders; tags codes as in `unit`."""
        end = min(queue_offset + count, self.max_offset)
        while queue_offset < end:
            raw = self.read(queue_offset, min(_READ_UNITS, end - queue_offset))
            if not raw:
                return
            for unit in UNIT.iter_unpack(raw):
                yield queue_offset, unit if unit[2] > ADDRESS_MAX else self._with_tags(unit)
                queue_offset += 1

    def next_file_offset(self, queue_offset: int) -> int:
        """Queue offset of the first unit of the next file (CQ-05)."""
        per_file = self._file_bytes // UNIT_BYTES
        return queue_offset + per_file - queue_offset % per_file

    # ---- shrink

    def truncate(self, physical_end: int) -> int:
        """Drop units that end behind physical_end (RC-10), in the files too; returns how many. Raises OSError, StoreError."""
        low = self.end_before(physical_end)
        dropped = self.max_offset - low
        if not dropped:
            return 0
        end = low * UNIT_BYTES
        self._zero_files(end)
        if end >= self._tail_at:
            del self._tail[end - self._tail_at :]
        else:
            self._tail.clear()
            self._tail_at = end
        self._written = min(self._written, end)
        self.max_offset = self.next_offset = low
        last = self.unit(low - 1)
        self.max_physical = last[0] + last[1] if last is not None else -1
        if low == 0:
            self.delete()
        elif self.extension is not None:
            self.extension.truncate(self._last_code())
        return dropped

    def end_before(self, physical_end: int) -> int:
        """The queue offset behind the last unit that `truncate` would keep. Raises OSError."""
        low, high = self.min_offset, self.max_offset
        if self.max_physical <= physical_end and self._follows(high - 1, physical_end):
            return high
        while low < high:
            middle = (low + high) // 2
            if self._ends_before(middle, physical_end):
                low = middle + 1
            else:
                high = middle
        while low > self.min_offset and not self._follows(low - 1, physical_end):
            low -= 1
        return low

    def _ends_before(self, queue_offset: int, physical_end: int) -> bool:
        return _is_good(self._unit(queue_offset), physical_end)

    def _follows(self, queue_offset: int, physical_end: int) -> bool:
        """Whether a unit is good and lies behind a good one. After a power loss those that were not synced may have left
        holes, and pieces, at the end of which the search above may stop."""
        if queue_offset < self.min_offset:
            return True
        unit = self._unit(queue_offset)
        if queue_offset == self.min_offset or not _is_good(unit, physical_end):
            return _is_good(unit, physical_end)
        before = self._unit(queue_offset - 1)
        return unit is not None and _is_good(before, unit[0])

    def _zero_files(self, end: int) -> None:
        """Nothing but zeros from byte position `end` on: a stale unit there would be taken for a good one."""
        disk = self._cache.disk
        for path in numbered_files(self._folder):
            start = int(path.name)
            if start >= end and start > self._first:
                self._cache.forget(path)
                disk.unlink(path)
            elif start + self._file_bytes > end:
                fd = disk.open(path)
                try:
                    at = max(end - start, 0)
                    stale = disk.read(fd, at, self._file_bytes - at).rstrip(b"\0")
                    if stale:
                        disk.write(fd, at, bytes(len(stale)))
                        disk.sync(fd)
                finally:
                    disk.close(fd)

    def correct_min_offset(self, physical_min: int) -> None:
        """The first unit whose record is at or behind the start of the commit log (CQ-11)."""
        unit = self._unit(self.min_offset)
        if unit is None or unit[0] >= physical_min:
            return
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit is not None and unit[0] < physical_min:
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def delete_before(self, physical_min: int) -> int:
        """Delete leading files whose last unit lies before the log, never the last one (DEL-09); returns how many."""
        count = 0
        paths = numbered_files(self._folder)
        for path in paths[:-1]:
            last = (int(path.name) + self._file_bytes) // UNIT_BYTES - 1
            unit = self._unit(last)
            if unit is None or unit[0] >= physical_min or last + 1 > self._written // UNIT_BYTES:
                break
            self._cache.forget(path)
            self._cache.disk.unlink(path)
            self._first = int(path.name) + self._file_bytes
            count += 1
        self.min_offset = max(self.min_offset, self._first // UNIT_BYTES)
        self.correct_min_offset(physical_min)
        first = self._unit(self.min_offset) if self.extension is not None else None
        if self.extension is not None and first is not None:
            self.extension.delete_before(first[2])
        return count

    def delete(self) -> None:
        """Remove the files and forget everything (CQ-12). Raises OSError."""
        for path in numbered_files(self._folder):
            self._cache.forget(path)
            self._cache.disk.unlink(path)
        self._tail.clear()
        self._first = self._tail_at = self._written = 0
        self.min_offset = self.max_offset = self.next_offset = 0
        self.max_physical = -1
        if self.extension is not None:
            self.extension.delete()


def _is_good(unit: Unit | None, physical_end: int) -> bool:
    """Whether a unit points to a record that ends at physical_end or before."""
    return unit is not None and unit[0] >= 0 and unit[1] > 0 and unit[0] + unit[1] <= physical_end


def born_files(folder: Path) -> list[Path]:
    """The files of a queue, in order, without a last one that a crash left without its length: it is made again."""
    paths = numbered_files(folder)
    return paths[:-1] if paths and not paths[-1].stat().st_size else paths


def write_pending(pending: Pending, disk: Disk) -> None:
    """Write the pieces and have them on disk; makes files where they are missing. Raises OSError, StoreError; for a thread.

    Files are sparse, which is safe because nobody maps them (DUR-04).
    """
    if pending.extension is not None:
        write_pending(pending.extension, disk)
    for position, data in pending.pieces:
        at = position % pending.file_bytes
        path = pending.folder / file_name(position - at)
        made = not path.exists() or not path.stat().st_size
        if made:
            disk.make_folder(pending.folder)
            fd = disk.create(path, pending.file_bytes, allocate=False)
        else:
            fd = disk.open(path)
        try:
            disk.write(fd, at, data)
            disk.sync(fd)
            if made:
                disk.sync_folder(pending.folder)
        finally:
            disk.close(fd)
