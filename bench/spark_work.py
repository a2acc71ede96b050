"""Functions that both sides run in Spark's Python workers on each batch.

Requirements: SPP-04.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = "rows long, bytes long"
ARROW = pa.schema([pa.field("rows", pa.int64()), pa.field("bytes", pa.int64())])


def _summed(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    total = pc.sum(pc.binary_length(batch.column(column))).as_py() or 0
    return pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [total]}, schema=ARROW)


def bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return row and byte counts of one SaturnMQ batch; option mapArrow=spark_work:bodies."""
    return _summed(batch, "body")


def map_bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same as `bodies`, for mapInArrow."""
    for batch in batches:
        yield _summed(batch, "body")


def map_values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for Kafka's rows."""
    for batch in batches:
        yield _summed(batch, "value")
