"""mode=files, options keys and uniqKeys: the store's `index/` files narrow the read, gaps in them are scanned.

The index is trusted only in a store that was shut down cleanly: otherwise entries may be missing. Entries hold hashes, so rows are
compared again when they are read. A record lies either where the index has an entry for it, or in a gap: before the first index
file begins, between two files, or from the record of the very last entry on. Layout: store/index/index_file.py.

Requirements: FMD-09, IX-01..IX-06.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from saturnmq.spark.index_lookup import index_keys
from saturnmq.spark.log_archive import packed
from saturnmq.spark.log_scan import Chunk, DamagedRange, FilePiece, ScanFile, log_files, pieces_of, record_at
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.queue_units import store_root
from saturnmq.store.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES, key_hash, topic_hash

PIECE_OFFSETS: Final = 32  # per task; keeps the pickled task small
OFFSETS_MAX: Final = 10_000  # above this number scanning the log is faster
STEPS_MAX: Final = 100_000  # entries followed in one hash chain
_ENTRIES_PER_SLOT: Final = (
    4  # ratio in the files of Apache RocketMQ and SaturnMQ; the file does not record its number of slots
)


class IndexPiece(NamedTuple):
    """Places in one file where matching records may begin. kind distinguishes it from a FilePiece."""

    kind: str
    path: str
    base: int
    offsets: tuple[int, ...]


class _Index:
    """One open index file. Reads only the header and the entries that `find` follows."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        size = os.fstat(handle).st_size
        self.slots = (size - HEADER_BYTES) // (SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY_BYTES)
        head = os.pread(handle, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")
        self.begin: int
        self.end: int
        self.count: int
        _, _, self.begin, self.end, _, self.count = HEADER.unpack(head)

    @property
    def is_empty(self) -> bool:
        """Whether the file has no entries; numbering begins at 1."""
        return self.count <= 1

    @property
    def is_sound(self) -> bool:
        """Whether the first and the last entry match the header: that confirms the slot count derived from the file length."""
        first, last = self._entry(1), self._entry(self.count - 1)
        return first is not None and last is not None and (first[1], last[1]) == (self.begin, self.end)

    def _entry(self, number: int) -> tuple[int, int, int, int] | None:
        """Return (hash, physical offset, seconds since the file's first entry, number of the previous entry)."""
        at = HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * number
        data = os.pread(self._handle, ENTRY_BYTES, at)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else None

    def find(self, hash_code: int) -> set[int] | None:
        """Return the physical offsets of entries with this hash; None when the chain is too long or invalid."""
        slot = os.pread(self._handle, SLOT_BYTES, HEADER_BYTES + SLOT_BYTES * (hash_code % self.slots))
        number, offsets = int.from_bytes(slot, "big", signed=True), set[int]()
        if number >= self.count:
            return None
        for _ in range(STEPS_MAX):
            if number <= 0:
                return offsets
            entry = self._entry(number)
            if entry is None or entry[3] >= number:
                return None
            if entry[0] == hash_code:
                offsets.add(entry[1])
            number = entry[3]
        return None


def plan_by_index(options: SourceOptions) -> list[FilePiece | IndexPiece] | None:
    """Return tasks for the records that may have the keys; None when the index cannot answer and the log must be scanned."""
    keys = index_keys(options)
    topics = frozenset(options.topics)
    root = store_root(options.path)
    if keys is None or not topics or root is None or options.plan != "auto" or options.include_system:
        return None
    if (root / "abort").exists() or packed(root / "commitlog") or any(root.glob("dledger-*")):
        return None
    files = log_files(options.path)
    hashes = {key_hash(topic_hash(topic), key) for topic in topics for key in keys}
    lookup = _looked_up(root / "index", hashes)
    if lookup is None or not files:
        return None
    offsets, covered = lookup
    gaps = _gaps(files, covered)
    walked = [piece for begin, end in gaps for piece in _between(files, begin, end, options.split)]
    inside = sorted(at for at in offsets if at >= files[0].base and not any(a <= at < b for a, b in gaps))
    return [*_index_pieces(files, inside), *walked]


def _looked_up(folder: Path, hashes: Iterable[int]) -> tuple[set[int], list[tuple[int, int]]] | None:
    """Return (physical offsets, range covered by each index file); None when a file is inconsistent or the result too large."""
    offsets, covered = set[int](), list[tuple[int, int]]()
    paths = sorted(p for p in folder.iterdir() if re.fullmatch(r"\d{17}", p.name)) if folder.is_dir() else []
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            index = _Index(handle)
            if index.is_empty:
                continue
            if index.slots < 1 or not index.is_sound:
                return None
            for hash_code in hashes:
                more = index.find(hash_code)
                if more is None:
                    return None
                offsets |= more
            covered.append((index.begin, index.end))
        finally:
            os.close(handle)
    bounds = [bound for pair in covered for bound in pair]
    return (offsets, covered) if covered and bounds == sorted(bounds) and len(offsets) <= OFFSETS_MAX else None


def _gaps(files: list[ScanFile], covered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of the log that no index file covers.

    The record of a file's last entry belongs to the gap after it, unless the next file begins with the same record.
    """
    low, high = files[0].base, 2**63 - 1
    begins = [low, *(end for _, end in covered)]
    ends = [*(begin for begin, _ in covered), high]
    return [(max(begin, low), end) for begin, end in zip(begins, ends, strict=True) if max(begin, low) < end]


def _between(files: list[ScanFile], begin: int, end: int, split: str) -> Iterator[FilePiece]:
    """Yield tasks for a part of the log that begins at a frame and ends at a frame or with the log."""
    for file, after in itertools.zip_longest(files, files[1:]):
        size = Path(file.path).stat().st_size
        last = file.base + size if after is None else min(file.base + size, after.base)
        first = max(begin, file.base)
        if first >= min(end, last):
            continue
        if end >= last:
            yield from pieces_of(file, split=split, begin=first - file.base)
        else:
            yield FilePiece(file.path, file.base, first - file.base, end - file.base, False, False, file.committed)


def _index_pieces(files: list[ScanFile], offsets: list[int]) -> Iterator[IndexPiece]:
    bases = [file.base for file in files]
    file_indexes = (np.searchsorted(bases, offsets, side="right") - 1).tolist()
    for number, group in itertools.groupby(zip(file_indexes, offsets, strict=True), key=lambda pair: pair[0]):
        file = files[number]
        file_offsets = [at - file.base for _, at in group]
        for first in range(0, len(file_offsets), PIECE_OFFSETS):
            yield IndexPiece("index", file.path, file.base, tuple(file_offsets[first : first + PIECE_OFFSETS]))


def records(piece: IndexPiece) -> Iterator[tuple[FilePiece, Chunk]]:
    """Yield the record at each offset as a chunk of its own, or damage where no record begins.

    Raises OSError when the file was deleted.
    """
    handle = os.open(piece.path, os.O_RDONLY)
    try:
        for at in piece.offsets:
            data = record_at(handle, at, piece.base)
            damaged = (
                [] if data else [DamagedRange(at, at + 1, "an entry of the index leads there, no record begins", False)]
            )
            starts = np.zeros(1 if data else 0, dtype=np.int64)
            yield FilePiece(piece.path, piece.base, at, at, False, False, 0), Chunk(data or b"", starts, at, damaged)
    finally:
        os.close(handle)
