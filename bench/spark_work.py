"""What the Python of both sides does with a batch; imported in Spark's workers. Source: SPP-04."""

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
    """Rows and bytes of one batch of ours; option mapArrow=spark_work:bodies."""
    return _summed(batch, "body")


def map_bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same through mapInArrow."""
    for batch in batches:
        yield _summed(batch, "body")


def map_values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for rows of Kafka."""
    for batch in batches:
        yield _summed(batch, "value")
