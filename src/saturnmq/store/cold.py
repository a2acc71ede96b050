"""Reads of records that are not in the page cache, in a thread, before a get on the event loop.

The log is mapped: touching a page that is not in memory waits for the disk while it holds the interpreter's lock, so one slow
read stops everything. A pull of old records first asks whether the page cache has them; if not, a thread reads them there.

Requirements: BP-04.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from saturnmq.hot import compiled
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.log.log import ReadableLog
from saturnmq.store.queue.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue

RECENT_BYTES: Final = 64 << 20  # the end of the log was written just now, and is in the page cache
_GAP_BYTES: Final = 16_384
_BYTES_MAX: Final = 1 << 20  # records read ahead for one get

COMPILED: Final = compiled("gather")  # does what `_extents_of` and `StoreReader._gather` do


def cold_read(
    disk: Disk, commit_log: ReadableLog, queue: ConsumeQueue | None, offset: QueueOffset, max_count: int, bytes_max: int
) -> Callable[[], None] | None:
    """Work for a thread so that a get of these records does not wait for the disk; None if it does not anyway.

    Raises StoreError, CorruptRecord.
    """
    # All of the log is recent.
    if commit_log.end - RECENT_BYTES <= commit_log.first_position:
        return None
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    bytes_max = bytes_max or _BYTES_MAX
    units = queue.read_cached(offset, max_count)
    # The units themselves are not in memory: a thread reads them first, then their records.
    if units is None:
        units_bytes = max_count * UNIT_BYTES
        return partial(_read_queue, disk, commit_log, queue.place_of(offset), units_bytes, bytes_max)
    extents = _cold_extents(commit_log, units, bytes_max)
    return partial(_read_records, commit_log, extents) if extents else None


def is_cold(commit_log: ReadableLog, units: bytes) -> bool:
    """Whether a get of the records of these units waits for the disk."""
    return commit_log.end - RECENT_BYTES > commit_log.first_position and bool(
        _cold_extents(commit_log, units, _BYTES_MAX)
    )


def _cold_extents(commit_log: ReadableLog, units: bytes, bytes_max: int) -> list[tuple[PhysicalOffset, int]]:
    """As `_extents_of`, of the old records; none if the page cache has all of them."""
    extents = _extents_of(units, commit_log.end - RECENT_BYTES, bytes_max)
    for file, at, size in _in_files(commit_log, extents):
        if not file.is_cached(at, size):
            return extents
    return []


def _extents_of(units: bytes, recent: int, bytes_max: int) -> list[tuple[PhysicalOffset, int]]:
    """Physical offset and length of the ranges that hold the old records of some units, about bytes_max in all.

    Records that lie close together are one range: a look at the page cache takes longer than reading a small gap.
    """
    if COMPILED is not None:
        return COMPILED.extents(units, recent, bytes_max, _GAP_BYTES)  # type: ignore[no-any-return]
    extents: list[tuple[PhysicalOffset, int]] = []
    begin = end = total = 0
    for physical, size, _ in UNIT.iter_unpack(units):
        if physical < 0 or size < 0:
            continue
        size = min(size, bytes_max)
        if physical >= recent or (total and total + size > bytes_max):
            break
        total += size
        if total > size and end <= physical <= end + _GAP_BYTES:
            end = physical + size
            continue
        if end > begin:
            extents.append((PhysicalOffset(begin), end - begin))
        begin, end = physical, physical + size
    if end > begin:
        extents.append((PhysicalOffset(begin), end - begin))
    return extents


def _in_files(
    commit_log: ReadableLog, extents: list[tuple[PhysicalOffset, int]]
) -> Iterator[tuple[MappedFile, int, int]]:
    """File, position in it and length of the ranges; a range that goes beyond a file is split."""
    for physical, size in extents:
        end = PhysicalOffset(physical + size)
        while physical < end:
            file = commit_log.file_at(physical)
            if file is None:
                break
            stop = min(end, file.end)
            yield file, physical - file.start, stop - physical
            physical = PhysicalOffset(stop)


def _read_queue(
    disk: Disk, commit_log: ReadableLog, location: tuple[Path, int], size_bytes: int, bytes_max: int
) -> None:
    """In a thread: read units from their file, then their records."""
    path, at = location
    try:
        units = disk.read_file(path, at, size_bytes)
    except OSError:
        return  # deleted meanwhile; the get finds out
    # A file may end within a unit while it is being written.
    whole = len(units) - len(units) % UNIT_BYTES
    _read_records(commit_log, _extents_of(units[:whole], commit_log.end, bytes_max))


def _read_records(commit_log: ReadableLog, extents: list[tuple[PhysicalOffset, int]]) -> None:
    """In a thread: read records into the page cache."""
    for file, at, size in _in_files(commit_log, extents):
        file.warm(at, size)
