"""The data source: what Spark's planner and its workers call. Source: spec 06 sections 3 and 4.

Delivery: a batch read returns every message of its ranges exactly once, and has no side effect on the broker. A stream replays the
same rows for the same offsets; with an idempotent sink the result is exactly-once. A retried task returns the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from saturnmq.client.puller import PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError, StoreError
from saturnmq.spark import ranges
from saturnmq.spark.options import COLUMNS, SourceOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa

_SPARK_TYPES: Final[dict[str, DataType]] = {
    "int32": IntegerType(),
    "int64": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp[us, tz=UTC]": TimestampType(),
}
RETRY_SECONDS: Final = 0.2


class RangePartition(InputPartition):
    """One queue range as a task; small, picklable, without credentials."""

    def __init__(self, piece: ranges.QueueRange | None) -> None:
        self.piece = tuple(piece) if piece is not None else None


def struct_type(columns: Sequence[str]) -> StructType:
    """Spark's schema of these columns."""
    from saturnmq.spark.decode import TYPES

    return StructType([StructField(name, _SPARK_TYPES[str(TYPES[name])], True) for name in columns])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Columns of the schema that Spark decided on. Raises ConfigError for names or types that the source does not have."""
    for item in schema.fields:
        if item.name not in COLUMNS:
            raise ConfigError(f"schema: column {item.name!r} is unknown; allowed are {', '.join(COLUMNS)}")
        expected = struct_type([item.name]).fields[0].dataType
        if item.dataType != expected:
            raise ConfigError(
                f"schema: column {item.name} is {item.dataType.simpleString()}, must be {expected.simpleString()}"
            )
    return tuple(item.name for item in schema.fields)


def read_range(options: SourceOptions, columns: tuple[str, ...], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Rows of one partition; runs in a worker. Raises StoreError naming broker, queue, offset and cause."""
    from saturnmq.spark.decode import BatchBuilder

    piece = getattr(partition, "piece", None)
    if piece is None:
        return
    r = ranges.QueueRange(*piece)
    queue = MessageQueue(r.topic, r.broker, r.queue_id)
    where = f"{r.topic}/{r.broker}/{r.queue_id}"
    tags = frozenset(t.strip() for t in options.expression.split("||")) - {"", "*"}
    builder = BatchBuilder(columns, r.broker, options.batch_rows)
    offset, progress = r.begin, time.monotonic()
    with ranges.pulling(options) as puller:
        while offset < r.end:
            try:
                result = puller.pull(
                    queue, offset, max_count=min(options.pull_batch, r.end - offset), expression=options.expression
                )
            except SaturnError as error:
                if (time.monotonic() - progress) * 1000 > options.read_timeout_ms:
                    raise StoreError(
                        f"{where}: no progress at offset {offset} for {options.read_timeout_ms} ms: {error}"
                    ) from error
                time.sleep(RETRY_SECONDS)
                continue
            if result.status is PullStatus.OFFSET_ILLEGAL or result.next_offset <= offset:
                gone = result.min_offset > offset
                if options.fail_on_data_loss or not gone:
                    raise StoreError(
                        f"{where}: offset {offset} of range {r.begin}..{r.end} is not there, the broker has "
                        f"{result.min_offset}..{result.max_offset} ({result.status.value})"
                    )
                offset = result.min_offset
                continue
            if result.body:
                builder.add(result.body, begin=offset, end=r.end, tags=tags, start_ms=options.starting_ms)
                yield from builder.full()
            offset, progress = result.next_offset, time.monotonic()
    yield from builder.rest()


class BatchReader(DataSourceReader):
    """Plans in the planner process, reads in workers."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """A task per range; one empty task when there is nothing to read."""
        pieces = ranges.batch_ranges(self._options)
        return [RangePartition(piece) for piece in pieces] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one range."""
        return read_range(self._options, self._columns, partition)


class StreamReader(DataSourceStreamReader):
    """Lives in the planner process; `read` runs on pickled copies in workers."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._cached: tuple[float, dict[tuple[str, str, int], ranges.Bounds]] | None = None

    def _bounds(self) -> dict[tuple[str, str, int], ranges.Bounds]:
        """Bounds of every queue, asked at most once per metadataRefreshMs: Spark polls every 10 ms when idle (STR-09)."""
        now = time.monotonic()
        if self._cached is None or (now - self._cached[0]) * 1000 >= self._options.refresh_ms:
            with ranges.pulling(self._options) as puller:
                found = ranges.bounds(puller, self._options)
            self._cached = (now, {(q.topic, q.broker_name, q.queue_id): b for q, b in found.items()})
        return self._cached[1]

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without checkpoint starts."""
        options = self._options
        with ranges.pulling(options) as puller:
            known = ranges.bounds(puller, options)
            placed = ranges.place(known, options.starting, "startingOffsets")
        inside = ranges.checked(known, placed, options, "startingOffsets")
        return ranges.to_offset({(q.topic, q.broker_name, q.queue_id): offset for q, offset in inside.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if given."""
        most = self._options.offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes; `start` itself when nothing is new."""
        begin = ranges.from_offset(start)
        latest = dict(begin)
        for key, limits in self._bounds().items():
            begin.setdefault(key, limits.low)  # a queue that appeared later starts at its beginning (STR-03)
            latest[key] = max(limits.high, begin[key])
        reached = ranges.limited(begin, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest
        made = ranges.to_offset(reached)
        return start if made == start else made

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the queues, for the query's progress."""
        return ranges.to_offset({key: limits.high for key, limits in self._bounds().items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A task per range between two offsets."""
        begin, reached = ranges.from_offset(start), ranges.from_offset(end)
        known = self._bounds()
        whole = []
        for key in sorted(reached):
            first = begin.get(key, known[key].low if key in known else 0)
            whole.append(ranges.QueueRange(*key, first, reached[key]))
        options = self._options
        return [RangePartition(r) for r in ranges.split(whole, options.min_partitions, options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one range."""
        return read_range(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint decides."""


class RocketMQDataSource(DataSource):
    """`format("rocketmq")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        """The default columns, or those of option `columns`. Wrong options fail here, at planning time."""
        return struct_type(parse_options(self._given).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_options(self._given), wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_options(self._given, streaming=True), wanted_columns(schema))


class SaturnMQDataSource(RocketMQDataSource):
    """`format("saturnmq")`: the same under the other name."""

    @classmethod
    def name(cls) -> str:
        return "saturnmq"
