"""Formats of the lake's append-only tables: Parquet is implemented, the others are rejected with the reason.

Requirements: PIP-03.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from saturnmq.protocol.errors import ConfigError


class LakeSink(Protocol):
    """Writes a stream's rows to a table exactly once: running a batch again changes nothing."""

    def start(self, writer: DataStreamWriter, table: str, partition_by: Sequence[str]) -> StreamingQuery:
        """Start writing to the table, a path."""
        ...


class ParquetSink:
    """Spark's own file sink: its log in the table lists the valid files, its checkpoint the finished batches."""

    def start(self, writer: DataStreamWriter, table: str, partition_by: Sequence[str]) -> StreamingQuery:
        """Start writing to the table, a path."""
        return writer.format("parquet").option("path", table).partitionBy(*partition_by).start()


REFUSED: Final = {
    "delta": "Delta 4.4.0 fails on PySpark 4.3 and has been tried for batches only, on 4.2; tables are Parquet: use "
    "--format parquet, and convert a finished table with CONVERT TO DELTA",
    "iceberg": "Iceberg 1.12.0 fails on PySpark 4.2 and 4.3; use --format parquet, and add finished files with add_files",
}
FORMATS: Final = ("parquet", *REFUSED)


def sink_of(name: str) -> LakeSink:
    """Return the sink of a format. Raises ConfigError, with the reason, for formats that are not implemented."""
    if name in REFUSED:
        raise ConfigError(f"option --format={name}: {REFUSED[name]}")
    return ParquetSink()
