"""Formats of the lake's growing tables. One is built, the others are refused with the reason. Source: PIP-03."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from saturnmq.protocol.errors import ConfigError


class LakeSink(Protocol):
    """Where a stream's rows go, exactly once: a batch that is run again changes nothing."""

    def start(self, writer: DataStreamWriter, table: str, partition_by: Sequence[str]) -> StreamingQuery:
        """Begin to write to the table, a path."""
        ...


class ParquetSink:
    """Spark's own file sink: its log in the table says which files count, its checkpoint which batches are done."""

    def start(self, writer: DataStreamWriter, table: str, partition_by: Sequence[str]) -> StreamingQuery:
        """Begin to write to the table, a path."""
        return writer.format("parquet").option("path", table).partitionBy(*partition_by).start()


REFUSED: Final = {
    "delta": "Delta 4.4.0 fails on PySpark 4.3 and has been tried for batches only, on 4.2; tables are Parquet: use "
    "--format parquet, and convert a finished table with CONVERT TO DELTA",
    "iceberg": "Iceberg 1.12.0 fails on PySpark 4.2 and 4.3; use --format parquet, and add finished files with add_files",
}
FORMATS: Final = ("parquet", *REFUSED)


def sink_of(name: str) -> LakeSink:
    """The sink of a format. Raises ConfigError for those that are not built, saying why."""
    if name in REFUSED:
        raise ConfigError(f"option --format={name}: {REFUSED[name]}")
    return ParquetSink()
