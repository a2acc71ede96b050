"""Which records of the log a read of a queue returns, and which ranges of the log the records of some units are.

`gather` walks units of a consume queue as `StoreReader._gather` does (store/reading.py) and compares the head of each record with
its unit. It gives up, and the reference implementation decides, at anything that is no message in its place: units without a
record or of a record that was deleted, a record that differs from its unit, is cut off, or lies where the log is not readable. No
length is trusted: each read of a byte is checked against the end of the units or of the readable part of the file.

`gather.pxd` declares types for Cython.

Requirements: BP-03, BP-04, CQ-06, DUR-10.
"""

from __future__ import annotations

from typing import Any

from saturnmq.hot.numbers import int32, int64
from saturnmq.protocol.message import MESSAGE_MAGIC, RECORD_FIXED_BYTES

_UNIT_BYTES = 20
_FILLER = 0x7FFFFFFF  # size of a unit without a record
_ADDRESS_MAX = -(2**31) - 1  # a tags code not above it is none, and matches
_MAGIC = MESSAGE_MAGIC
_RECORD_BYTES_MIN = RECORD_FIXED_BYTES
_SIGN, _SPAN = 1 << 31, 1 << 32  # see numbers.py
# Positions in a record (RECORD_V4).
_AT_MAGIC, _AT_QUEUE_ID, _AT_QUEUE_OFFSET, _AT_PHYSICAL = 4, 12, 20, 28
_DONE, _ELSEWHERE, _ODD = range(3)  # how `_scan` ends: finished, the next record is in another file, not for this code


class Gathering:
    """A read of units, and what it has found.

    ranges: contiguous records: the mapped file (or bytes) that has them, and their begin and end in it. count, total: records and
    their bytes. scanned: units that were looked at. behind: whether the last one points to a record before the position `on_disk`.
    """

    def __init__(self, units: bytes, queue_id: int, offset: int) -> None:
        self._units, self._queue_id, self._offset = units, queue_id, offset
        self.ranges: list[tuple[Any, int, int]] = []
        self.total = self.count = self.scanned = 0
        self.behind = False
        self._begin = self._end = -1  # of the last range, in the log
        self._at = 0  # of the next unit
        self._physical = 0
        self._file: Any = b""  # that `_scan` looks at
        self._data: Any = b""  # its bytes
        self._max_count = self._on_disk = self._first = 0
        self._disk_bytes = self._disk_count = self._memory_bytes = self._memory_count = 0

    def gather(
        self,
        log: Any,
        codes: frozenset[int] | None,
        max_count: int,
        on_disk: int,
        in_disk: tuple[int, int],
        in_memory: tuple[int, int],
    ) -> bool:
        """Find the records; False if a unit or record is not as it must be.

        codes: tags codes to return; None for all. on_disk: records before this position count as `in_disk`, others as `in_memory`:
        the bytes and messages that may be returned.
        """
        self._max_count, self._on_disk, self._first = max_count, on_disk, log.first_position
        self._disk_bytes, self._disk_count = in_disk
        self._memory_bytes, self._memory_count = in_memory
        start = 0
        outcome = self._scan(0, 0, codes)
        while outcome == _ELSEWHERE:
            self._end_range(start)
            # Once per file: it asks the system for the file's length.
            start, end, self._file = log.piece_at(self._physical)
            self._data = self._file
            # Past the readable end of the log, or in a file that was deleted meanwhile.
            if not start <= self._physical < end:
                return False
            outcome = self._scan(start, end, codes)
        self._end_range(start)
        self._file = self._data = b""
        return outcome == _DONE

    def _end_range(self, start: int) -> None:
        """Note the last range, in the file whose bytes begin at this position of the log."""
        if self._begin >= 0:
            self.ranges.append((self._file, self._begin - start, self._end - start))
        self._begin = self._end = -1

    def views(self) -> list[memoryview]:
        """The bytes of the ranges."""
        return [memoryview(file)[begin:end] for file, begin, end in self.ranges]

    def frame(self, head: bytes) -> bytearray:
        """The head of an answer, and the records."""
        answer = bytearray(len(head) + self.total)
        target: Any = answer
        latest: Any = head
        source: Any = head
        at = len(head)
        target[:at] = source[:at]
        for file, begin, end in self.ranges:
            # A view is taken once per file, not per range.
            if file is not latest:
                latest = source = file
            target[at : at + end - begin] = source[begin:end]
            at += end - begin
        return answer

    def _scan(self, start: int, end: int, codes: frozenset[int] | None) -> int:
        """Go on with the units while their records lie in `_data`, the bytes of the log from start to end."""
        units = self._units
        at = self._at
        last_code = 0
        matches = codes is None or last_code in codes
        while at + _UNIT_BYTES <= len(units):
            physical, size = int64(units, at), int32(units, at + 8)
            if size == _FILLER or size < _RECORD_BYTES_MIN or physical < self._first:
                return _ODD
            self.behind = physical < self._on_disk
            # The first record is returned whatever its size: a limit below it would stop the consumer at this offset.
            if self.count > 0 and (
                self.count >= self._max_count
                or self.count >= (self._disk_count if self.behind else self._memory_count)
                or self.total + size > (self._disk_bytes if self.behind else self._memory_bytes)
            ):
                return _DONE
            if codes is not None:
                code = int64(units, at + 12)
                # Neighbours often have the same tag: a lookup in the set per run of equal codes.
                if code != last_code:
                    last_code = code
                    matches = code in codes or code <= _ADDRESS_MAX
            if matches:
                if physical < start or physical >= end:
                    self._at, self._physical = at, physical
                    return _ELSEWHERE
                head = physical - start
                if (
                    physical + size > end
                    or self._int32(head) != size
                    or self._int32(head + _AT_MAGIC) != _MAGIC
                    or self._int32(head + _AT_QUEUE_ID) != self._queue_id
                    or self._int64(head + _AT_QUEUE_OFFSET) != self._offset + self.scanned
                    or self._int64(head + _AT_PHYSICAL) != physical
                ):
                    return _ODD
                # Records that touch are one range, copied at once.
                if self._end == physical:
                    self._end = physical + size
                else:
                    self._end_range(start)
                    self._begin, self._end = physical, physical + size
                self.total += size
                self.count += 1
            # Counted also if its tag does not match: the consumer's next offset lies after it.
            self.scanned += 1
            at += _UNIT_BYTES
        return _DONE

    def _int32(self, at: int) -> int:
        first, second = self._data[at], self._data[at + 1]
        third, fourth = self._data[at + 2], self._data[at + 3]
        value: int = first << 24 | second << 16 | third << 8 | fourth
        return value if value < _SIGN else value - _SPAN

    def _int64(self, at: int) -> int:
        high, low = self._int32(at), self._int32(at + 4)
        return high * _SPAN + (low if low >= 0 else low + _SPAN)


def extents(units: bytes, recent: int, bytes_max: int, gap_bytes: int) -> list[tuple[int, int]]:
    """Position and length of the ranges of the log that hold the records of some units, about bytes_max in all.

    It ends at a record at or after `recent`. Records with at most gap_bytes between them are one range.
    """
    ranges: list[tuple[int, int]] = []
    begin = end = total = at = 0
    while at + _UNIT_BYTES <= len(units):
        physical = int64(units, at)
        size = int32(units, at + 8)
        at += _UNIT_BYTES
        if physical < 0 or size < 0:
            continue
        # A filler or a damaged unit has any size; the range must not exceed what the caller may read.
        if size > bytes_max:
            size = bytes_max
        if physical >= recent or (total and total + size > bytes_max):
            break
        total += size
        # Not for the first record: there is no range yet that it could extend.
        if total > size and end <= physical <= end + gap_bytes:
            end = physical + size
            continue
        if end > begin:
            ranges.append((begin, end - begin))
        begin, end = physical, physical + size
    if end > begin:
        ranges.append((begin, end - begin))
    return ranges
