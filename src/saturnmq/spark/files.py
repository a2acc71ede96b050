"""mode=files: reads commit logs of stopped, running or crashed brokers as rows, without a broker.

The store is only read. Plans use the index files or the consume queues where these can be trusted, else scan the log.

Requirements: FMD-01..FMD-09.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from saturnmq.protocol.errors import ConfigError, CorruptRecord
from saturnmq.spark import index_files, queue_units
from saturnmq.spark.decode import Ints, Selection, decode_block, joined, readable_parts, rebatched
from saturnmq.spark.fetch import DataLoss, met_loss
from saturnmq.spark.index_files import IndexPiece
from saturnmq.spark.log_scan import NO_LIMIT, Chunk, FilePiece, chunks, log_files, pieces_of
from saturnmq.spark.options import COLUMNS, SourceOptions
from saturnmq.spark.queue_units import QueuePiece
from saturnmq.spark.reading import mapped, mapper_of

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
JOINED_BYTES: Final = 4 * 1024 * 1024


def plan_files(options: SourceOptions, columns: tuple[str, ...] = COLUMNS) -> list[FilePiece | QueuePiece | IndexPiece]:
    """Return the tasks of a read; the end is fixed now. Raises ConfigError for a path that holds no log."""
    if (by_index := index_files.plan_by_index(options)) is not None:
        return [*by_index]
    pieces: list[FilePiece | QueuePiece | IndexPiece] = []
    since = 0
    by_queues = queue_units.plan_queues(options, columns)
    if by_queues is not None:
        pieces += by_queues.pieces
        if by_queues.walk_from is None:
            return pieces
        since = by_queues.walk_from
    elif options.plan == "queues":
        raise ConfigError(
            f"option plan=queues: {options.path!r} has no consume queues of the topics that can be relied on"
        )
    for file in log_files(options.path, uncommitted=options.uncommitted, base_offset=options.base_offset):
        if not (options.starting_ms or 0) <= file.last_ms or file.first_ms >= (options.ending_ms or NO_LIMIT):
            continue  # an archived file without rows of that time: it is not fetched
        try:
            if file.is_copied or file.base + Path(file.path).stat().st_size > since:
                pieces += pieces_of(file, split=options.split, begin=max(since - file.base, 0))
        except FileNotFoundError:
            _gone(options, file.path, file.base, file.base)
    return pieces


def files_selection(options: SourceOptions) -> Selection:
    """Return the selection of rows that a consumer would see; with includeSystem, of all rows."""
    times = (options.starting_ms, options.ending_ms)
    return Selection(
        tags=options.filter.tags,
        start_ms=times[0],
        end_ms=times[1],
        topics=frozenset(options.topics),
        keys=frozenset(options.keys),
        uniq_keys=frozenset(options.uniq_keys),
        queue_ids=frozenset(options.queue_ids) or None,
        consumer_view=not options.include_system,
    )


def read_files(
    options: SourceOptions, columns: tuple[str, ...], piece_fields: tuple[object, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one piece; runs in a worker.

    Raises CorruptRecord naming file and byte, unless option corrupt says otherwise.
    """
    mapper = mapper_of(options)
    select = files_selection(options)
    if piece_fields[0] == "queue":
        batches = _by_units(options, columns, QueuePiece(*piece_fields), select)  # type: ignore[arg-type]
    elif piece_fields[0] == "index":
        batches = _by_index(options, columns, IndexPiece(*piece_fields), select)  # type: ignore[arg-type]
    else:
        batches = _batches(options, columns, FilePiece(*piece_fields), select)  # type: ignore[arg-type]
    yield from mapped(rebatched(batches, options.batch_rows), mapper, options.batch_rows)


def _batches(
    options: SourceOptions, columns: tuple[str, ...], piece: FilePiece, select: Selection
) -> Iterator[pa.RecordBatch]:
    try:
        for chunk in chunks(piece):
            for damage in chunk.damaged:
                if not damage.torn:
                    _damaged(options, piece, damage.begin, damage.end, damage.reason)
            if len(chunk.positions):
                yield from _together(options, columns, select, [(piece, chunk)])
    except FileNotFoundError:
        _gone(options, piece.path, piece.base + piece.begin, min(piece.base + piece.end, NO_LIMIT))


def _by_index(
    options: SourceOptions, columns: tuple[str, ...], piece: IndexPiece, select: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield the rows at the offsets that the index names; an offset without a record is reported as damage (FMD-09)."""
    try:
        for file, chunk in index_files.records(piece):
            for damage in chunk.damaged:
                _damaged(options, file, damage.begin, damage.end, damage.reason)
            if len(chunk.positions):
                yield from _together(options, columns, select, [(file, chunk)])
    except FileNotFoundError:
        _gone(options, piece.path, piece.base, piece.base + piece.offsets[-1])


def _by_units(
    options: SourceOptions, columns: tuple[str, ...], piece: QueuePiece, select: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a queue's units; a record that does not match its unit is reported as damage (FMD-02)."""
    if select.topics and piece.topic not in select.topics:
        return
    select = replace(select, topics=frozenset({piece.topic}))
    try:
        for offsets, units in queue_units.blocks(piece, select):
            if not queue_units.needs_records(columns, select, units):
                yield queue_units.unit_batch(columns, piece, options.broker_name, offsets, units)
                continue
            near: list[tuple[FilePiece, Chunk]] = []
            for unit_records in queue_units.records(piece, offsets, units):
                file = FilePiece(unit_records.path, unit_records.base, 0, 0, False, False, 0)
                for offset, at, size in unit_records.strange:
                    reason = (
                        f"topic {piece.topic} queue {piece.queue_id} has offset {offset} there, no such record begins"
                    )
                    _damaged(options, file, at, at + size, reason)
                if len(unit_records.chunk.positions):
                    near.append((file, unit_records.chunk))
                    if sum(len(chunk.data) for _, chunk in near) >= JOINED_BYTES:
                        yield from _together(options, columns, select, near)
                        near = []
            yield from _together(options, columns, select, near)
    except FileNotFoundError as error:
        _gone(options, str(error.filename or piece.root), piece.begin, piece.end)


def _together(
    options: SourceOptions, columns: tuple[str, ...], select: Selection, near: list[tuple[FilePiece, Chunk]]
) -> Iterator[pa.RecordBatch]:
    """Decode several small chunks as one block, since the fixed cost of a block equals that of a few hundred rows.

    An unreadable record is isolated and reported as damage.
    """
    if not near:
        return
    starts = np.cumsum([0, *(len(chunk.data) for _, chunk in near[:-1])])
    positions = [chunk.positions + start for (_, chunk), start in zip(near, starts.tolist(), strict=True)]
    block = joined([chunk.data for _, chunk in near])

    def decode(at: Ints) -> tuple[pa.RecordBatch, int]:
        return decode_block(
            block,
            columns,
            options.broker_name,
            select,
            positions=at,
            check_crc=options.verify_crc is not False,
            decompressed=options.decompress,
        )

    for batch, at in readable_parts(np.concatenate(positions), decode):
        if isinstance(batch, str):
            number = int(np.searchsorted(starts, at[0], side="right")) - 1
            piece, chunk = near[number]
            begin = int(at[0] - starts[number])
            after = chunk.positions[chunk.positions > begin]
            end = int(after[0]) if len(after) else len(chunk.data)
            _damaged(options, piece, chunk.at + begin, chunk.at + end, batch)
            continue
        yield batch
        del batch


def _damaged(options: SourceOptions, piece: FilePiece, begin: int, end: int, reason: str) -> None:
    if options.corrupt == "fail":
        raise CorruptRecord(f"{piece.path}: damaged at byte {begin}: {reason}; corrupt=skip goes on behind it")
    logger.warning("damage file=%s from=%d to=%d reason=%s", piece.path, begin, end, reason)
    if options.corrupt == "report":
        tolerant = replace(options, fail_on_data_loss=False)
        met_loss(tolerant, DataLoss("", piece.path, 0, begin, end, reason), options.corrupt)


def _gone(options: SourceOptions, path: str, begin: int, end: int) -> None:
    met_loss(options, DataLoss("", path, 0, begin, end, "the file was deleted by retention"), "read")
