"""The data source classes that Spark's planner and its workers call.

Where code runs. The driver's JVM starts a Python process to plan (`partitions`, `initialOffset`, `latestOffset`), others to
read (`read`); none of them shares memory with the program that wrote the query, and Spark may start any of them again at any
time. So a reader is its options: what it needs must be in them or in the offsets, both as text that outlives versions. The only
state outside is Spark's checkpoint, which holds the ranges of a batch before the batch runs; a plan that is repeated must give
the same rows, a task that is repeated too.

    options -> plan: routes, first and last offsets of masters -> partitions (ranges of queue offsets) -> tasks: pull, decode, Arrow

Offsets in a plan are promises: what is deleted when a task comes to read it is loss of data, an error unless
`failOnDataLoss=false`. A broker that does not answer is waited for; absence of an answer is never taken for absence of data.

Delivery: a batch read returns every message of its ranges exactly once and has no side effect on the broker. A stream replays the
same rows for the same offsets, so that with an idempotent sink the result is exactly-once. A retried task returns the same rows.
Spark pickles these classes by name to planners and workers, so they must be importable there.

No reader overrides `pushFilters`: Spark would use one query's narrowed plan for every query of a `load()` (decision 0027).

Requirements: SPK-08, SPK-10, SRC-01, SRC-07, SRC-22.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
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
from saturnmq.spark.option_table import SOURCE_COLUMNS_OF_KAFKA, unknown_name
from saturnmq.spark.options import COLUMNS, SourceOptions, parse_options
from saturnmq.spark.partition import RangePartition, read_partition
from saturnmq.spark.planner_errors import brief
from saturnmq.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

freeze_imports("plan")

# Columns that are not strings, as `decode.TYPES`. It is not imported: a planner that only checks options needs no pyarrow or numpy.
_SPARK_TYPES: Final[dict[str, DataType]] = {
    **dict.fromkeys(("queueOffset", "physicalOffset", "preparedTransactionOffset", "tagsCode"), LongType()),
    **dict.fromkeys(
        ("queueId", "flag", "storeSize", "sysFlag", "reconsumeTimes", "bodyCrc"),
        IntegerType(),
    ),
    **dict.fromkeys(("bornTimestamp", "storeTimestamp"), TimestampType()),
    **dict.fromkeys(("propertiesMap", "properties:map"), MapType(StringType(), StringType(), True)),
    "body": BinaryType(),
}


def struct_type(columns: Sequence[str]) -> StructType:
    """Return Spark's schema of these columns."""
    return StructType(
        [StructField(name.partition(":")[0], _SPARK_TYPES.get(name, StringType()), True) for name in columns]
    )


def wanted_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns to build for the schema that Spark decided on.

    Raises ConfigError for names or types that the source does not have.
    """
    for item in schema.fields:
        if item.name not in COLUMNS:
            # The hint names Kafka's column if it is one.
            raise ConfigError(f"schema: {unknown_name('column', item.name, COLUMNS, SOURCE_COLUMNS_OF_KAFKA)}")
        # A column may have another type by option.
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
        # Only with mapArrow, whose function makes the columns.
        self._schema = None
        if options.map_arrow is None:
            self._columns = wanted_columns(schema, options)
        else:
            # Imported here: planners without mapArrow do not need it.
            from pyspark.sql.pandas.types import to_arrow_schema

            self._columns = options.columns
            self._schema = to_arrow_schema(schema, timezone="UTC")

    @brief
    def partitions(self) -> Sequence[InputPartition]:
        """Return one task per range; a single empty task when there is nothing to read."""
        options = self._options
        # Spark starts a planner process per query: modules are imported where they are needed.
        if options.mode == "files":
            from saturnmq.spark.files import plan_files

            pieces: list[tuple[Any, ...]] = list(plan_files(options, self._columns))
        else:
            from saturnmq.spark.planning import batch_ranges

            pieces = [*batch_ranges(options)]
        return [RangePartition(piece) for piece in pieces] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one range."""
        if self._options.mode != "files":
            return read_partition(self._options, self._columns, self._schema, partition)
        from saturnmq.spark import packing
        from saturnmq.spark.files import read_files

        freeze_imports("files")
        packing.say_decoder()
        piece = getattr(partition, "piece", None)
        # A plan without ranges has one task without a piece.
        return read_files(self._options, self._columns, piece) if piece else iter(())


class RocketMQDataSource(DataSource):
    """The data source `format("rocketmq")`. mappers: what option mapArrow may name, besides the planner's environment."""

    mappers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Text as Spark gives it: the readers parse it for their kind of query.
        self._raw_options = options

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def _options(self, streaming: bool | None) -> SourceOptions:
        return parse_options(self._raw_options, streaming=streaming, mappers=self.mappers)

    @brief
    def schema(self) -> StructType:
        """Return the default columns, or those of option `columns`. Invalid options fail here, at planning time."""
        # None: Spark asks before it is known whether the query streams.
        return struct_type(self._options(None).columns)

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._options(False), schema)

    @brief
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from saturnmq.spark.stream import StreamReader

        options = self._options(True)
        return StreamReader(options, wanted_columns(schema, options))

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from saturnmq.spark.sink import BatchWriter, make_writer

        return make_writer(BatchWriter, self._raw_options, schema, overwrite)

    @brief
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from saturnmq.spark.sink import StreamWriter, make_writer

        return make_writer(StreamWriter, self._raw_options, schema, overwrite)


class SaturnMQDataSource(RocketMQDataSource):
    """The data source `format("saturnmq")`, an alias. Spark requires a class per name."""

    @classmethod
    def name(cls) -> str:
        return "saturnmq"
