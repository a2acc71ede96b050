"""Reads one partition in a worker: blocks from the broker become record batches.

Requirements: SRC-08..SRC-15, SRC-22.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from saturnmq.client.filters import TAG
from saturnmq.protocol.errors import ConfigError, MessageError
from saturnmq.protocol.message import RECORD_FIXED_BYTES, head_struct
from saturnmq.spark.connect import linked
from saturnmq.spark.decode import (
    Ints,
    Selection,
    arrow_schema,
    decode_block,
    joined,
    readable_parts,
    rebatched,
    record_positions,
)
from saturnmq.spark.fetch import DataLoss, RangeFetcher, met_loss
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.ranges import QueueRange

if TYPE_CHECKING:
    import pyarrow as pa

_QUEUE_OFFSET: Final = head_struct("queue_offset")
Mapper = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


def mapper_of(options: SourceOptions) -> Mapper | None:
    """Return the function of option mapArrow. Raises ConfigError when it cannot be imported."""
    if options.map_arrow is None:
        return None
    module, _, name = options.map_arrow.partition(":")
    try:
        mapper: Mapper = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"option mapArrow={options.map_arrow}: cannot be imported: {error}") from error
    return mapper


def read_range(
    options: SourceOptions,
    columns: tuple[str, ...],
    piece: QueueRange,
    select: Selection,
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range; runs in a worker. Every batch has the announced schema.

    Raises DataLossError, StoreError naming broker, queue, offset and cause. Closing the iterator cancels requests in flight.
    """
    mapper = mapper_of(options)
    announced = schema if schema is not None else arrow_schema(columns)
    batches = rebatched(_decoded(options, columns, piece, select), options.batch_rows)
    for batch in mapped(batches, mapper, options.batch_rows):
        if not batch.schema.equals(announced):
            raise ConfigError(
                f"option mapArrow={options.map_arrow}: it returned {batch.schema.to_string()}, announced was "
                f"{announced.to_string()}; types and nullability must be equal"
            )
        yield batch
        del batch


def mapped(batches: Iterator[pa.RecordBatch], mapper: Mapper | None, rows: int) -> Iterator[pa.RecordBatch]:
    """Apply option mapArrow to bounded batches; its results are bounded again."""
    return batches if mapper is None else rebatched(map(mapper, batches), rows)


def _decoded(
    options: SourceOptions, columns: tuple[str, ...], piece: QueueRange, select: Selection
) -> Iterator[pa.RecordBatch]:
    blocks = Blocks(options, columns, piece, select)
    with linked(options) as link:
        fetcher = RangeFetcher(link.puller, piece, options)
        try:
            while (bodies := link.run(fetcher.block())) is not None:
                sizes = [len(body) for body in bodies]
                block = joined(bodies)
                bodies.clear()  # otherwise in memory together with the next block (SCL-06)
                batches = blocks.batches(block, sizes)
                del block  # the batches hold references to what they need
                yield from batches
            blocks.end()
        finally:
            link.run(fetcher.close())


class Blocks:
    """Converts the blocks of one range to record batches, in order.

    An unreadable record costs its own row and no other (SRC-15).
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], piece: QueueRange, select: Selection) -> None:
        self._options = options
        self._columns = columns
        self._piece = piece
        self._select = select
        self._next = piece.begin  # the offset after the last readable record
        self._reason: str | None = None  # reason of a hole that begins at _next and whose end is not known yet

    def batches(self, block: bytes, sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a block, in one batch unless a record is unreadable or bodies are decompressed in parts.

        sizes: bytes of each response in it; a wrong record length hides records only to the end of its response.

        Raises DataLossError for an unreadable record; with failOnDataLoss=false the offsets between its neighbours are recorded
        as lost.
        """
        try:
            responses: Iterable[tuple[Ints, str | None]] = [(record_positions(block), None)]
        except MessageError:
            responses = _walk(block, sizes)
        decode = functools.partial(self._decode, block)
        for positions, wrong in responses:
            for batch, at in readable_parts(positions, decode):
                if isinstance(batch, str):
                    self._reason = self._reason or batch
                    continue
                self._close(_queue_offset(block, int(at[0])))
                self._next = max(self._next, _queue_offset(block, int(at[-1])) + 1)
                yield batch
                del batch
            self._reason = self._reason or wrong
        if self._options.fail_on_data_loss:
            self.end()

    def end(self) -> None:
        """End the range: an open hole extends to its end."""
        self._close(self._piece.end)

    def _close(self, end: int) -> None:
        begin, end = self._next, min(end, self._piece.end)
        if self._reason is not None and begin < end:
            met_loss(
                self._options,
                DataLoss(self._piece.topic, self._piece.broker, self._piece.queue_id, begin, end, self._reason),
                str(self._piece),
            )
        self._reason = None

    def _decode(self, block: bytes, at: Ints) -> tuple[pa.RecordBatch, int]:
        return decode_block(
            block,
            self._columns,
            self._piece.broker,
            self._select,
            positions=at,
            check_crc=bool(self._options.verify_crc),
            decompressed=self._options.decompress,
        )


def _walk(block: bytes, sizes: Sequence[int]) -> Iterator[tuple[Ints, str | None]]:
    """Yield for each response (where its records start, as far as lengths allow; what is wrong with the next one)."""
    at = end = 0
    for response_bytes in sizes:
        end += response_bytes
        positions, wrong = [], None
        while at < end:
            size = int.from_bytes(block[at : at + 4], "big", signed=True)
            if size < RECORD_FIXED_BYTES or at + size > end:
                wrong = f"a record claims {size} bytes, {end - at} are left of the answer"
                break
            positions.append(at)
            at += size
        at = end
        yield np.array(positions, dtype=np.int64), wrong


def _queue_offset(block: bytes, at: int) -> int:
    offset: int = _QUEUE_OFFSET.unpack_from(block, at)[0]
    return offset


def selection(options: SourceOptions, piece: QueueRange) -> Selection:
    """Return which records of the range become rows: brokers compare hashes of tags and keys, and time bounds are approximate."""
    tags = options.filter.tags if options.expression_type == TAG else frozenset[str]()
    return Selection(
        piece.begin,
        piece.end,
        tags,
        piece.start_ms,
        piece.end_ms,
        keys=frozenset(options.keys),
        uniq_keys=frozenset(options.uniq_keys),
    )
