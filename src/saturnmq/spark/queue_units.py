"""mode=files planned by consume queues: reads only records that can match, and none at all for columns that units contain.

A unit holds the position of a record. Units are trusted up to the position that the store recorded as dispatched and flushed, or
to the end after a clean shutdown; what follows is scanned in the log itself, so that a running or crashed store also yields each
record once. Every record is compared with its unit before it is used.

Requirements: FMD-02, CQ-01.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import MESSAGE_MAGIC, STORE_TIMESTAMP_END_MAX, java_hash, store_timestamp_of
from saturnmq.spark.decode import HIDDEN_TOPICS, Ints, Selection, arrow_schema, head_dtype
from saturnmq.spark.local_paths import local_path
from saturnmq.spark.log_archive import packed
from saturnmq.spark.log_scan import NO_LIMIT, Chunk, numbered
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.ranges import QueueRange, split
from saturnmq.store.files.disk import Disk
from saturnmq.store.queue.consume_queue import FILLER_SIZE, UNIT_BYTES, UNIT_FIELDS
from saturnmq.store.queue.queue_extension import ADDRESS_MAX
from saturnmq.store.recovery.checkpoint import Checkpoint

UNIT: Final = np.dtype([(name, f">{code}") for name, code in UNIT_FIELDS.items()])
HEAD: Final = head_dtype("total_size", "magic", "queue_offset", "physical_offset")  # what is compared with its unit
_AT_SIZE: Final = UNIT.fields["size"][1]  # type: ignore[index]
UNIT_COLUMNS: Final = frozenset(
    {"topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "storeSize", "tagsCode"}
)
PIECE_UNITS: Final = 300_000  # units of one queue file
BLOCK_UNITS: Final = 50_000
GAP_BYTES: Final = 64 * 1024  # records closer than this are read together
READ_BYTES: Final = 8 * 1024 * 1024
_LMQ: Final = "%LMQ%"  # prefix of light message queues, whose units point to records of other topics


class QueuePiece(NamedTuple):
    """Units [begin, end) of one queue, restricted to records in [low, high) of the log. kind distinguishes it from a FilePiece."""

    kind: str
    root: str
    topic: str
    queue_id: int
    begin: int
    end: int
    low: int
    high: int


class QueuePlan(NamedTuple):
    """Pieces of queues; the log is also scanned from physical offset `walk_from` on, None: not at all."""

    pieces: list[QueuePiece]
    walk_from: int | None


def plan_queues(options: SourceOptions, columns: tuple[str, ...]) -> QueuePlan | None:
    """Return the plan; None when the log should be scanned: no queues, an unknown topic, or no gain."""
    root = store_root(options.path)
    if root is None or options.plan == "log" or options.include_system:
        return None
    if any(packed(folder) for folder in (root / "commitlog", _ledger(root)) if folder is not None):
        return None  # no random access into compressed files
    named = frozenset(options.topics)
    only_units = set(columns) <= UNIT_COLUMNS and options.map_arrow is None
    if options.plan == "auto" and not (named or only_units):
        return None  # a sequential read of the whole log is fastest
    folders = {path.name: path for path in (root / "consumequeue").iterdir() if path.is_dir()}
    if not named <= folders.keys():
        return None  # the topic's queue is not written yet, or the topic was deleted
    logs = _logs(root)
    if not logs:
        return QueuePlan([], None)
    high = _trusted(root, logs)
    # Uncommitted entries of a ledger have no units.
    if high is None or (options.uncommitted and _ledger(root) is not None):
        return None
    low = logs[0][0]
    ranges = []
    for topic in sorted(named or folders):
        if topic in HIDDEN_TOPICS or topic.startswith(_LMQ):
            continue
        # Other folders are not queues.
        for folder in sorted(p for p in folders[topic].iterdir() if p.name.isdigit()):
            if not options.queue_ids or int(folder.name) in options.queue_ids:
                begin, end = _bounds(folder)
                ranges.append(QueueRange(topic, "", int(folder.name), begin, end, low, high))
    cut = split(ranges, options.min_partitions, options.records_per_partition or PIECE_UNITS,
                options.bytes_per_partition, _sizes(root, ranges) if options.bytes_per_partition else {})  # fmt: skip
    pieces = [QueuePiece("queue", str(root), r.topic, r.queue_id, r.begin, r.end, low, high) for r in cut]
    # After a clean shutdown no part is left to scan.
    return QueuePlan(pieces, None if high == NO_LIMIT else high)


def store_root(path: str) -> Path | None:
    """Return the store root that the path belongs to, if it has consume queues."""
    folder = local_path(path)
    if folder is None:
        return None
    for root in (folder, folder.parent) if folder.name == "commitlog" else (folder,):
        if (root / "consumequeue").is_dir():
            return root
    return None


def _ledger(root: Path) -> Path | None:
    return next((path / "data" for path in sorted(root.glob("dledger-*")) if (path / "data").is_dir()), None)


def _logs(root: Path) -> list[tuple[int, Path]]:
    """Return (first physical offset, file) of every log file, in order. Opens no file."""
    ledger = _ledger(root)
    newer = [] if ledger is None else [(int(path.name), path) for path in numbered(ledger)]
    # Files from before the move to DLedger, then those of the ledger.
    divide = newer[0][0] if newer else NO_LIMIT
    older = [(int(path.name), path) for path in numbered(root / "commitlog")]
    return [item for item in older if item[0] < divide] + newer


def _trusted(root: Path, logs: list[tuple[int, Path]]) -> int | None:
    """Return the physical offset up to which the queues are complete on disk; None when unknown."""
    if not (root / "abort").exists():
        return NO_LIMIT  # a clean shutdown waits until every record is dispatched (RC-02)
    checkpoint = Checkpoint(root / "checkpoint", Disk())
    try:
        checkpoint.load()
    except StoreError:
        return None
    if checkpoint.note is not None:
        return min(checkpoint.note.dispatched, NO_LIMIT - 1)
    if _ledger(root) is not None:
        return None
    # The newest file that is safe. The first file would leave nothing to the queues.
    for base, path in reversed(logs[1:]):  # the same rule by which recovery chooses its start (RC-09)
        if 0 < _first_ms(path) <= checkpoint.safe_ms:
            return base
    return None


def _first_ms(path: Path) -> int:
    """Return the store time of a file's first record, Unix ms; -1 when the file begins with none."""
    data = _pread(path, 0, STORE_TIMESTAMP_END_MAX)
    if len(data) < STORE_TIMESTAMP_END_MAX:
        return -1
    head = np.frombuffer(data[: HEAD.itemsize], dtype=HEAD)[0]
    return store_timestamp_of(data) if head["magic"] == MESSAGE_MAGIC else -1


def _bounds(folder: Path) -> tuple[int, int]:
    """Return the queue offset of the first unit, and of the end of the written units."""
    files = numbered(folder)
    if not files:
        return 0, 0
    first, last = files[0], files[-1]
    low, high = 0, last.stat().st_size // UNIT_BYTES  # units are contiguous, followed by zeros
    while low < high:
        middle = (low + high) // 2
        # A unit that was written has a size.
        if _pread(last, middle * UNIT_BYTES + _AT_SIZE, 4).strip(b"\0"):
            low = middle + 1
        else:
            high = middle
    return int(first.name) // UNIT_BYTES, int(last.name) // UNIT_BYTES + low


def _sizes(root: Path, ranges: list[QueueRange]) -> dict[tuple[str, str, int], float]:
    """Return the average record size in bytes by queue, from a few units (SRC-06)."""
    averages = {}
    for r in ranges:
        # About sixteen units spread over the range.
        sample_offsets = range(r.begin, r.end, max(1, (r.end - r.begin) // 16))
        units = [_units(root, r.topic, r.queue_id, at, at + 1) for at in sample_offsets]
        # Fillers are no messages.
        sizes = [int(u["size"][0]) for u in units if 0 < u["size"][0] < FILLER_SIZE]
        if sizes:
            averages[(r.topic, r.broker, r.queue_id)] = sum(sizes) / len(sizes)
    return averages


def _units(root: Path, topic: str, queue_id: int, begin: int, end: int) -> Any:
    """Return units [begin, end) of a queue; zeros where no file has them."""
    units = np.zeros(end - begin, dtype=UNIT)
    files = numbered(root / "consumequeue" / topic / str(queue_id))
    for path in files:
        first = int(path.name) // UNIT_BYTES
        if first >= end:
            break
        # Files may begin before the range.
        at = max(begin, first)
        data = _pread(path, (at - first) * UNIT_BYTES, (end - at) * UNIT_BYTES)
        # A unit that is cut off at the end is left out.
        file_units = np.frombuffer(data[: len(data) // UNIT_BYTES * UNIT_BYTES], dtype=UNIT)
        units[at - begin : at - begin + len(file_units)] = file_units
    return units


def _pread(path: Path, at: int, size: int) -> bytes:
    """Read bytes of a file; fewer at its end. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, size, at)
    finally:
        os.close(handle)


class UnitRecords(NamedTuple):
    """Some records of one file: the file, its base offset, the records' bytes and positions, and units that match no record."""

    path: str
    base: int
    chunk: Chunk
    strange: list[tuple[int, int, int]]  # queue offset, file offset, size


def blocks(piece: QueuePiece, select: Selection) -> Iterator[tuple[Ints, Any]]:
    """Yield (queue offsets, units) that can match, at most BLOCK_UNITS at a time. Raises OSError."""
    begin, end = max(piece.begin, select.begin), min(piece.end, select.end)
    for at in range(begin, end, BLOCK_UNITS):
        stop = min(at + BLOCK_UNITS, end)
        units = _units(Path(piece.root), piece.topic, piece.queue_id, at, stop)
        physical, size = units["physical"], units["size"]
        # Outside of low..high the log is scanned, or does not exist any more.
        keep = (size > 0) & (size < FILLER_SIZE) & (physical >= piece.low) & (physical + size <= piece.high)
        if select.tags:
            codes = units["tags_code"]
            # A unit may hold an address in the queue extension instead of a hash.
            keep &= np.isin(codes, [java_hash(tag) for tag in select.tags]) | (codes <= ADDRESS_MAX)
        if keep.any():
            yield np.flatnonzero(keep) + at, units[keep]


def needs_records(columns: tuple[str, ...], select: Selection, units: Any) -> bool:
    """Whether the units alone do not contain all requested columns and predicates."""
    filters = select.tags or select.keys or select.uniq_keys or select.start_ms is not None or select.end_ms is not None
    # The hash must then be computed from the record.
    addressed = "tagsCode" in columns and bool((units["tags_code"] <= ADDRESS_MAX).any())
    return bool(filters) or addressed or not set(columns) <= UNIT_COLUMNS


def unit_batch(
    columns: tuple[str, ...], piece: QueuePiece, broker: str | None, offsets: Ints, units: Any
) -> pa.RecordBatch:
    """Build rows from units, without reading the log."""
    rows = len(offsets)
    column_values: dict[str, Any] = {
        "topic": [piece.topic] * rows,
        "brokerName": [broker] * rows,
        "queueId": np.full(rows, piece.queue_id, dtype=np.int32),
        "queueOffset": offsets,
        "physicalOffset": units["physical"].astype(np.int64),
        "storeSize": units["size"].astype(np.int32),
        "tagsCode": units["tags_code"].astype(np.int64),
    }
    schema = arrow_schema(columns)
    return pa.RecordBatch.from_arrays([pa.array(column_values[f.name], type=f.type) for f in schema], schema=schema)


def records(piece: QueuePiece, offsets: Ints, units: Any) -> Iterator[UnitRecords]:
    """Yield the records of units, with nearby records read together. Raises FileNotFoundError for a deleted file."""
    logs = _logs(Path(piece.root))
    bases = np.array([base for base, _ in logs], dtype=np.int64)
    physical, size = units["physical"].astype(np.int64), units["size"].astype(np.int64)
    file_indexes = np.searchsorted(bases, physical, side="right") - 1  # the file
    # The file was deleted by retention after the plan.
    if len(file_indexes) and file_indexes[0] < 0:
        raise FileNotFoundError(f"log file with offset {int(physical[0])}")
    ends = physical + size
    # A unit that points backwards (a queue that restarted) begins a new read, as a gap does and the next file.
    far = (physical[1:] < ends[:-1]) | (physical[1:] - ends[:-1] > GAP_BYTES) | (file_indexes[1:] != file_indexes[:-1])
    edges = [0, *(np.flatnonzero(far) + 1).tolist(), len(physical)]
    for run_begin, run_end in itertools.pairwise(edges):
        at = run_begin
        while at < run_end:
            # As many records as fit into one read, at least one.
            stop = int(np.searchsorted(ends[:run_end], physical[at] + READ_BYTES, side="right"))
            stop = min(max(stop, at + 1), run_end)
            base, path = logs[int(file_indexes[at])]
            yield _checked(path, base, offsets[at:stop], physical[at:stop], size[at:stop])
            at = stop


def _checked(path: Path, base: int, offsets: Ints, physical: Ints, size: Ints) -> UnitRecords:
    """Read records and separate those that match their units from units that match none."""
    first = int(physical[0])
    data = _pread(path, first - base, int(physical[-1] + size[-1]) - first)
    positions = physical - first  # ascending within a run
    # A damaged unit may point outside of what was read.
    inside = (size >= HEAD.itemsize) & (positions + size <= len(data))
    raw = np.frombuffer(data, dtype=np.uint8)
    fits = inside.copy()
    # All heads in one step, without a loop over records.
    heads = raw[positions[inside][:, None] + np.arange(HEAD.itemsize)].view(HEAD)[:, 0] if inside.any() else None
    if heads is not None:
        fits[inside] = (
            (heads["total_size"] == size[inside])
            & (heads["magic"] == MESSAGE_MAGIC)
            & (heads["physical_offset"] == physical[inside])
            & (heads["queue_offset"] == offsets[inside])
        )
    # Reported by the caller, which reads these records one by one.
    strange = list(zip(offsets[~fits].tolist(), (physical[~fits] - base).tolist(), size[~fits].tolist(), strict=True))
    return UnitRecords(str(path), base, Chunk(data, positions[fits], first - base), strange)
