"""The consume queue: per topic and queue, an array of fixed units that point into the commit log. Source: spec 02 section 3."""

# Consume queue unit, 20 bytes, big-endian. Source: spec 02 section 15, CQ-01..03.
#   at  type  field       meaning
#    0  i64   phy_offset  where the record starts in the commit log, bytes
#    8  i32   size        record length, bytes; 0x7FFFFFFF fills unused leading units
#   12  i64   tags_code   Java hash of the tag; delivery time in ms for delayed messages

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from saturnmq.store.mapped_file import MappedFile, MappedFiles
from saturnmq.store.settings import CONSUME_QUEUE_UNIT_BYTES

log = logging.getLogger(__name__)

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = CONSUME_QUEUE_UNIT_BYTES
FILLER_SIZE: Final = 0x7FFFFFFF
_FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)


class ConsumeQueue:
    """One queue of one topic.

    max_offset: the next queue offset. min_offset: the first one whose record is still in the commit log.
    max_physical: end of the last record it points to, bytes; -1 when empty.
    """

    __slots__ = ("_current", "_files", "max_offset", "max_physical", "min_offset")

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._files = MappedFiles(folder, file_bytes)
        self._current: MappedFile | None = None
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical = -1

    @property
    def files(self) -> list[MappedFile]:
        return self._files.files

    def load(self) -> None:
        """Map the files and find the last unit in use (RC-06). Raises CorruptRecord."""
        self._files.load()
        files = self.files
        if not files:
            return
        end = files[0].start
        for index in range(max(len(files) - 3, 0), len(files)):
            file = files[index]
            used = 0
            for physical, size, _ in UNIT.iter_unpack(file.view):
                if physical < 0 or size <= 0:
                    break
                used += UNIT_BYTES
                if size != FILLER_SIZE:
                    self.max_physical = max(self.max_physical, physical + size)
            end = file.start + used
            if used < file.size_bytes:
                break
        self._files.truncate(end)
        self.max_offset = end // UNIT_BYTES
        self._current = self._files.find(end - 1) if end else files[-1]
        self.min_offset = files[0].start // UNIT_BYTES
        self._skip_fillers()

    def _skip_fillers(self) -> None:
        for _, (_, size, _) in self.units(self.min_offset, self.max_offset - self.min_offset):
            if size != FILLER_SIZE:
                return
            self.min_offset += 1

    def append(self, queue_offset: int, physical: int, size: int, tags_code: int) -> bool:
        """Write the unit of a queue offset; one that is there already is left alone (CQ-07).

        False when units before it are missing: the queue must be rebuilt. Raises DiskFull, StoreError.
        """
        if queue_offset != self.max_offset:
            if queue_offset < self.max_offset or physical + size <= self.max_physical:
                return True
            if self.max_offset or self.files:
                return False
            self._start_at(queue_offset)
        position = queue_offset * UNIT_BYTES
        file = self._current
        if file is None or position >= file.end:
            file = self._next_file(position)
        UNIT.pack_into(file.map, position - file.start, physical, size, tags_code)
        file.wrote = position - file.start + UNIT_BYTES
        self.max_offset = queue_offset + 1
        self.max_physical = physical + size
        return True

    def _next_file(self, position: int) -> MappedFile:
        file = self._files.find(position)
        if file is None:
            file = self._files.append_file(position // self._files.size_bytes * self._files.size_bytes)
        self._current = file
        return file

    def _start_at(self, queue_offset: int) -> None:
        """First unit of an empty queue is not number 0: fill up to it with units that mean nothing (CQ-08)."""
        file = self._next_file(queue_offset * UNIT_BYTES)
        before = queue_offset * UNIT_BYTES - file.start
        file.map[:before] = _FILLER * (before // UNIT_BYTES)
        file.wrote = before
        self.min_offset = queue_offset

    def units(self, queue_offset: int, count: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """(queue offset, (physical offset, size, tags code)) from queue_offset on, over file borders."""
        end = min(queue_offset + count, self.max_offset)
        while queue_offset < end:
            file = self._files.find(queue_offset * UNIT_BYTES)
            if file is None:
                return
            at = queue_offset * UNIT_BYTES - file.start
            stop = min(file.size_bytes, at + (end - queue_offset) * UNIT_BYTES)
            for unit in UNIT.iter_unpack(file.view[at:stop]):
                yield queue_offset, unit
                queue_offset += 1

    def slice(self, queue_offset: int, bytes_max: int) -> memoryview | None:
        """Units from queue_offset to the end of its file, at most bytes_max (CQ-04); None when there are none."""
        file = self._files.find(queue_offset * UNIT_BYTES)
        if file is None:
            return None
        at = queue_offset * UNIT_BYTES - file.start
        return file.view[at : min(file.wrote, at + bytes_max)]

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code), or None outside the queue."""
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        file = self._files.find(queue_offset * UNIT_BYTES)
        if file is None:
            return None
        physical, size, tags = UNIT.unpack_from(file.map, queue_offset * UNIT_BYTES - file.start)
        return physical, size, tags

    def next_file_offset(self, queue_offset: int) -> int:
        """Queue offset of the first unit of the next file (CQ-05)."""
        per_file = self._files.size_bytes // UNIT_BYTES
        return queue_offset + per_file - queue_offset % per_file

    def truncate(self, physical_end: int) -> None:
        """Drop units that point at or behind physical_end (RC-10)."""
        keep = self.max_offset
        while keep > self.min_offset:
            unit = self.unit(keep - 1)
            if unit is None or unit[1] == FILLER_SIZE or unit[0] + unit[1] <= physical_end:
                break
            keep -= 1
        if keep == self.max_offset:
            return
        for offset in range(keep, self.max_offset):
            file = self._files.find(offset * UNIT_BYTES)
            if file is not None:
                at = offset * UNIT_BYTES - file.start
                file.map[at : at + UNIT_BYTES] = bytes(UNIT_BYTES)
        self.max_offset = keep
        last = self.unit(keep - 1)
        self.max_physical = last[0] + last[1] if last and last[1] != FILLER_SIZE else -1
        self._current = self._files.find(keep * UNIT_BYTES)

    def correct_min_offset(self, physical_min: int) -> None:
        """The first unit whose record is at or behind the start of the commit log (CQ-11)."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit[0] < physical_min:
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def flush(self) -> None:
        """All units are on disk. Raises OSError; safe in a thread."""
        for file in list(self.files)[-2:]:
            file.flush()

    def close(self) -> None:
        self._files.close()

    def delete(self) -> None:
        """Remove the files and forget everything (CQ-12)."""
        self._files.delete()
        self._current = None
        self.min_offset = self.max_offset = 0
        self.max_physical = -1
