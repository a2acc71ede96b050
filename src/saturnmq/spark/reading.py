"""One partition read in a worker: blocks from the broker to record batches. Source: SRC-08..15, SRC-22."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from saturnmq.client.subscription import TAG
from saturnmq.protocol.errors import ConfigError, MessageError
from saturnmq.spark.connect import linked
from saturnmq.spark.decode import Selection, arrow_schema, decode_block, joined, rebatched
from saturnmq.spark.fetch import Loss, RangeFetcher, met_loss
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.pushdown import EVER, Predicates
from saturnmq.spark.ranges import QueueRange

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_ROWS_BYTES_MAX = 16 * 1024 * 1024
Mapper = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


def mapper_of(options: SourceOptions) -> Mapper | None:
    """The function of option mapArrow. Raises ConfigError when it cannot be imported."""
    if options.map_arrow is None:
        return None
    module, _, name = options.map_arrow.partition(":")
    try:
        found: Mapper = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"option mapArrow={options.map_arrow}: cannot be imported: {error}") from error
    return found


def read_range(
    options: SourceOptions,
    columns: tuple[str, ...],
    piece: QueueRange,
    select: Selection,
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of one range; runs in a worker. Every batch has the schema that was announced.

    Raises DataLossError, StoreError naming broker, queue, offset and cause. Closing the iterator cancels what is in flight.
    """
    mapper = mapper_of(options)
    wanted = schema if schema is not None else arrow_schema(columns)
    for batch in rebatched(_decoded(options, columns, piece, select), options.batch_rows):
        made = batch if mapper is None else mapper(batch)
        if not made.schema.equals(wanted):
            raise ConfigError(
                f"option mapArrow={options.map_arrow}: it returned {made.schema.to_string()}, announced was "
                f"{wanted.to_string()}; types and nullability must be equal"
            )
        yield made
        del made, batch


def _decoded(
    options: SourceOptions, columns: tuple[str, ...], piece: QueueRange, select: Selection
) -> Iterator[pa.RecordBatch]:
    with linked(options) as link:
        fetcher = RangeFetcher(link.puller, piece, options)
        try:
            while (bodies := link.run(fetcher.block())) is not None:
                block = joined(bodies)
                bodies.clear()  # what is not freed here lies beside the next block (SCL-06)
                made: pa.RecordBatch | None = None
                try:
                    made = decode_block(
                        block,
                        columns,
                        piece.broker,
                        select,
                        check_crc=bool(options.verify_crc),
                        decompressed=options.decompress,
                    )
                except MessageError as error:
                    lost = Loss(piece.topic, piece.broker, piece.queue_id, piece.begin, piece.end, str(error))
                    met_loss(options, lost)
                del block  # the batch keeps what it needs of it
                if made is not None:
                    yield made
                del made
        finally:
            link.run(fetcher.close())


def selection(options: SourceOptions, piece: QueueRange) -> Selection:
    """What of the range's records become rows: the broker compares hashes of tags only, and times are rough."""
    tags = options.filter.tags if options.expression_type == TAG else frozenset[str]()
    return Selection(piece.begin, piece.end, tags, piece.start_ms, piece.end_ms)


def narrowed(select: Selection, wanted: Predicates) -> Selection:
    """The selection and what was pushed down: rows that no filter wants are never built."""
    start = max(select.start_ms or 0, wanted.start_ms)
    end = min(EVER if select.end_ms is None else select.end_ms, wanted.end_ms)
    made = replace(
        select,
        begin=max(select.begin, wanted.begin),
        end=min(select.end, wanted.end),
        start_ms=start or None,
        end_ms=None if end == EVER else end,
        keys=wanted.keys or select.keys,
        uniq_keys=wanted.uniq_keys or select.uniq_keys,
    )
    if wanted.topics is not None:
        made = replace(made, topics=made.topics & wanted.topics if made.topics else wanted.topics)
    if wanted.tags is not None:
        made = replace(made, tags=made.tags & wanted.tags if made.tags else wanted.tags)
    none = (wanted.topics is not None and not made.topics) or (wanted.tags is not None and not made.tags)
    empty = any(part is not None and not part for part in (wanted.keys, wanted.uniq_keys))
    return replace(made, end=made.begin) if empty or none else made
