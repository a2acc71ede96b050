"""The data source classes that Spark's planner and its workers call.

Delivery: a batch read returns every message of its ranges exactly once and has no side effect on the broker. A stream replays the
same rows for the same offsets, so that with an idempotent sink the result is exactly-once. A retried task returns the same rows.
Spark pickles these classes by name to planners and workers, so they must be importable there.

Requirements: SPK-08, SPK-10, SRC-01, SRC-07, SRC-17, SRC-22.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import pushdown
from saturnmq.spark.option_table import SOURCE_COLUMNS_OF_KAFKA, unknown_name
from saturnmq.spark.options import COLUMNS, PUSHDOWN_ENVIRONMENT, SourceOptions, parse_options
from saturnmq.spark.partition import RangePartition
from saturnmq.spark.planner_errors import brief
from saturnmq.spark.ranges import QueueRange

if TYPE_CHECKING:
    import pyarrow as pa

_SPARK_TYPES: Final[dict[str, DataType]] = {
    "int32": IntegerType(),
    "int64": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp[us, tz=UTC]": TimestampType(),
    "map<string, string>": MapType(StringType(), StringType(), True),
}


def struct_type(columns: Sequence[str]) -> StructType:
    """Return Spark's schema of these columns."""
    from saturnmq.spark.decode import TYPES, name_of

    return StructType([StructField(name_of(name), _SPARK_TYPES[str(TYPES[name])], True) for name in columns])


def wanted_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns to build for the schema that Spark decided on.

    Raises ConfigError for names or types that the source does not have.
    """
    for item in schema.fields:
        if item.name not in COLUMNS:
            raise ConfigError(f"schema: {unknown_name('column', item.name, COLUMNS, SOURCE_COLUMNS_OF_KAFKA)}")
        expected = struct_type([options.form_of(item.name)]).fields[0].dataType
        if item.dataType != expected:
            raise ConfigError(
                f"schema: column {item.name} is {item.dataType.simpleString()}, must be {expected.simpleString()}"
            )
    return tuple(options.form_of(item.name) for item in schema.fields)


class BatchReader(DataSourceReader):
    """Plans in the planner process, reads in the workers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = None
        if options.map_arrow is None:
            self._columns = wanted_columns(schema, options)
        else:
            from pyspark.sql.pandas.types import to_arrow_schema

            self._columns = options.columns
            self._schema = to_arrow_schema(schema, timezone="UTC")
        self._predicates = pushdown.Predicates()

    @brief
    def partitions(self) -> Sequence[InputPartition]:
        """Return one task per range; a single empty task when there is nothing to read."""
        options, wanted = self._options, self._predicates
        if options.mode == "files":
            from saturnmq.spark.files import plan_files

            pieces: list[tuple[Any, ...]] = list(plan_files(options, wanted, self._columns))
        else:
            from saturnmq.spark.planning import batch_ranges

            pieces = [*batch_ranges(options, wanted)]
        return [RangePartition(piece) for piece in pieces] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one range."""
        from saturnmq.spark import packing, reading

        packing.say_decoder()
        if self._options.mode == "files":
            from saturnmq.spark.files import read_files

            piece = getattr(partition, "piece", None)
            return read_files(self._options, self._columns, piece, self._predicates) if piece else iter(())
        options = self._options
        given = getattr(partition, "piece", None)
        if given is None:
            return iter(())
        tags = self._predicates.tags
        if tags and options.expression.strip() in ("", "*") and not any("|" in t or t.strip() != t for t in tags):
            options = replace(options, expression=" || ".join(sorted(tags)))
        select = reading.narrowed(reading.selection(options, QueueRange(*given)), self._predicates)
        return reading.read_range(options, self._columns, QueueRange(*given), select, self._schema)


class PushdownReader(BatchReader):
    """A BatchReader that accepts filter pushdown.

    It is a class of its own because with Spark's pushdown switch off, every query of a reader with `pushFilters` fails.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept what can be pushed down; return the filters that Spark must still evaluate."""
        self._predicates, left = pushdown.apply(filters)
        return left


class RocketMQDataSource(DataSource):
    """The data source `format("rocketmq")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def _options(self, streaming: bool | None) -> SourceOptions:
        default = os.environ.get(PUSHDOWN_ENVIRONMENT, "").lower() == "true"
        return parse_options(self._given, streaming=streaming, pushdown=default)

    @brief
    def schema(self) -> StructType:
        """Return the default columns, or those of option `columns`. Invalid options fail here, at planning time."""
        return struct_type(self._options(None).columns)

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(False)
        return (PushdownReader if options.pushdown else BatchReader)(options, schema)

    @brief
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from saturnmq.spark.stream import StreamReader

        options = self._options(True)
        return StreamReader(options, wanted_columns(schema, options))

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from saturnmq.spark.sink import BatchWriter, make_writer

        return make_writer(BatchWriter, self._given, schema, overwrite)

    @brief
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from saturnmq.spark.sink import StreamWriter, make_writer

        return make_writer(StreamWriter, self._given, schema, overwrite)


class SaturnMQDataSource(RocketMQDataSource):
    """The data source `format("saturnmq")`, an alias. Spark requires a class per name."""

    @classmethod
    def name(cls) -> str:
        return "saturnmq"
