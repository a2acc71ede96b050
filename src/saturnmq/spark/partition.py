"""The unit of work of one Spark task, and how a worker reads it.

Spark pickles partitions by class name to the workers.

Requirements: SRC-01, STR-01.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from saturnmq.spark.options import SourceOptions
from saturnmq.spark.ranges import QueueRange

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """One queue range or file range as a Spark task; small, picklable, without credentials. `piece` None: an empty task."""

    def __init__(self, piece: tuple[Any, ...] | None) -> None:
        super().__init__(None)
        self.piece = tuple(piece) if piece is not None else None

    def __repr__(self) -> str:
        return f"RangePartition{self.piece}"


def read_partition(
    options: SourceOptions, columns: tuple[str, ...], schema: pa.Schema | None, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition; runs in a worker."""
    import saturnmq.client.client  # noqa: F401 - `linked` would import it later
    from saturnmq.spark.packing import say_decoder
    from saturnmq.spark.reading import read_range, selection
    from saturnmq.spark.worker_memory import freeze_imports

    freeze_imports("read")
    say_decoder()
    piece_fields = getattr(partition, "piece", None)
    if piece_fields is not None:
        piece = QueueRange(*piece_fields)
        yield from read_range(options, columns, piece, selection(options, piece), schema)
