"""Parquet files of a lake table with a log of commits: workers write them, a commit of the driver makes them part of the table.

A file that no commit names, as of a killed task, is never read. Files hold the partition columns too. Folders are named by
percent-encoded values, cut to a length that file systems allow: readers should take the values from the log, and polars does not.

Requirements: PIP-03.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.object_store import file_system

FILE_COLUMNS: Final = "path string, size bigint, rows bigint, partition string, stats string"
FILE_BYTES_MAX: Final = 512 << 20
BUFFER_BYTES_MAX: Final = 64 << 20
READ_ROWS: Final = 1024
OPEN_FILES_MAX: Final = 64  # of a task; more partitions make more, smaller files, no more memory
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_FOLDER_LENGTH_MAX: Final = 200


class FileLayout(NamedTuple):
    """Where the files of a table are and what they hold. root: path or URI; schema: with ids of columns where tables have some."""

    root: str
    schema: pa.Schema
    partition_by: tuple[str, ...]


class DataFile(NamedTuple):
    """A file that a task has written.

    path: relative to the table's folder of data. partition: texts of the partition columns, None for null. stats: number of rows,
    nulls, minima and maxima by column, as Delta logs keep them.
    """

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str


class _OpenFile:
    """A file that is being written, and rows that wait for it."""

    def __init__(self, system: fs.FileSystem, root: str, path: str, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        system.create_dir(f"{root}/{path}".rpartition("/")[0])
        self._stream = system.open_output_stream(f"{root}/{path}")
        self._metadata: list[parquet.FileMetaData] = []
        self._writer = parquet.ParquetWriter(
            self._stream, schema, store_schema=False, metadata_collector=self._metadata
        )
        self.waiting: list[pa.Table] = []

    def flush(self) -> int:
        """Write the waiting rows as one row group; return the bytes of the file so far."""
        if self.waiting:
            self._writer.write_table(pa.concat_tables(self.waiting))
            self.waiting = []
        return int(self._stream.tell())

    def close(self, partition: dict[str, str | None]) -> DataFile:
        self.flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        metadata = self._metadata[0]
        return DataFile(
            self.path, size, metadata.num_rows, partition, json.dumps(_stats(metadata, self._schema, partition))
        )

    def abandon(self) -> None:
        with suppress(OSError):
            self._stream.close()


@dataclass(frozen=True)
class FileWriter:
    """Writes the rows of one task to files, for DataFrame.mapInArrow; yields a row per file."""

    layout: FileLayout
    file_bytes_max: int = FILE_BYTES_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = self.layout
        system, root = file_system(layout.root)
        open_files: dict[tuple[str | None, ...], _OpenFile] = {}
        closed: list[DataFile] = []
        buffered_bytes = 0

        def close_all() -> None:
            while open_files:
                values, file = open_files.popitem()
                closed.append(file.close(dict(zip(layout.partition_by, values, strict=True))))

        paths: list[str] = []
        try:
            for batch in batches:
                rows = conformed(pa.Table.from_batches([batch]), layout.schema)
                for values, part in split(rows, layout.partition_by):
                    if values not in open_files:
                        if len(open_files) >= OPEN_FILES_MAX:
                            close_all()
                            buffered_bytes = 0
                        paths.append(self._path(values))
                        open_files[values] = _OpenFile(system, root, paths[-1], layout.schema)
                    open_files[values].waiting.append(part)
                    buffered_bytes += part.nbytes
                if buffered_bytes >= BUFFER_BYTES_MAX:
                    buffered_bytes = 0
                    for values, file in list(open_files.items()):
                        if file.flush() >= self.file_bytes_max:
                            closed.append(
                                open_files.pop(values).close(dict(zip(layout.partition_by, values, strict=True)))
                            )
            close_all()
        except BaseException:  # the task has failed or was cancelled: its files are part of no commit
            for file in open_files.values():
                file.abandon()
            for path in paths:
                with suppress(OSError):
                    system.delete_file(f"{root}/{path}")
            raise
        yield pa.RecordBatch.from_pydict(
            {
                "path": pa.array([file.path for file in closed], pa.string()),
                "size": pa.array([file.size for file in closed], pa.int64()),
                "rows": pa.array([file.rows for file in closed], pa.int64()),
                "partition": pa.array([json.dumps(file.partition) for file in closed], pa.string()),
                "stats": pa.array([file.stats for file in closed], pa.string()),
            }
        )

    def _path(self, values: tuple[str | None, ...]) -> str:
        folders = [f"{name}={_folder(value)}" for name, value in zip(self.layout.partition_by, values, strict=True)]
        return "/".join([*folders, f"part-{uuid.uuid4().hex}.parquet"])


@dataclass(frozen=True)
class FileReader:
    """Reads files of a table, for DataFrame.mapInArrow over rows of `path` and `partition`."""

    layout: FileLayout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, root = file_system(self.layout.root)
        for row in (row for batch in batches for row in batch.to_pylist()):
            with system.open_input_file(f"{root}/{row['path']}") as stream:
                for batch in parquet.ParquetFile(stream).iter_batches(READ_ROWS):
                    rows = conformed(pa.Table.from_batches([batch]), self.layout.schema, json.loads(row["partition"]))
                    yield from rows.to_batches()


def _folder(value: str | None) -> str:
    return NULL_FOLDER if value is None else quote(value, safe="")[:_FOLDER_LENGTH_MAX]


def files_of_rows(rows: list[Any]) -> list[DataFile]:
    """Return the files that tasks reported."""
    return [DataFile(row["path"], row["size"], row["rows"], json.loads(row["partition"]), row["stats"]) for row in rows]


def conformed(rows: pa.Table, schema: pa.Schema, partition: Mapping[str, str | None] | None = None) -> pa.Table:
    """Return the rows with the columns of a table, in its order and types.

    partition: values of columns that are missing in files of other writers; any other missing column is null.
    """
    values = partition or {}
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.array([values.get(field.name)] * rows.num_rows, pa.string())
        for field in schema
    ]
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def split(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yield the rows of each partition with the texts of its values."""
    if not rows.num_rows:
        return
    keys = (
        rows.select(list(partition_by)).group_by(list(partition_by)).aggregate([]).to_pylist() if partition_by else []
    )
    if len(keys) < 2:
        yield tuple(partition_text(keys[0][name]) for name in partition_by), rows
        return
    for key in keys:
        is_row = None
        for name, value in key.items():
            column = rows.column(name)
            equal = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
            is_row = equal if is_row is None else pc.and_kleene(is_row, equal)
        yield tuple(partition_text(value) for value in key.values()), rows.filter(is_row)


def partition_text(value: Any) -> str | None:
    """Return the text of a partition value: of strings, integers, booleans and dates, as Delta logs keep it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def is_partition_type(kind: pa.DataType) -> bool:
    """Whether a column of this type can be one of --partition-by."""
    return kind in (pa.string(), pa.date32(), pa.bool_()) or bool(pa.types.is_integer(kind))


def _stats(metadata: parquet.FileMetaData, schema: pa.Schema, excluded: Container[str]) -> dict[str, Any]:
    """Return the statistics of a file: nulls of its plain columns, minima and maxima of numbers and times."""
    names = {field.name for field in schema if field.name not in excluded and not pa.types.is_nested(field.type)}
    nulls: dict[str, int] = {}
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    without_bounds: set[str] = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            name = column.path_in_schema
            if name not in names:
                continue
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count:
                without_bounds.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + statistics.null_count
            if statistics.null_count == group.num_rows:
                continue
            kind = schema.field(name).type
            has_order = pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
            if not (statistics.has_min_max and has_order):
                without_bounds.add(name)
                continue
            minima[name] = min(minima.get(name, statistics.min), statistics.min)
            maxima[name] = max(maxima.get(name, statistics.max), statistics.max)
    return {
        "numRecords": metadata.num_rows,
        "nullCount": nulls,
        "minValues": {name: _stat(value) for name, value in minima.items() if name not in without_bounds},
        "maxValues": {name: _stat(value) for name, value in maxima.items() if name not in without_bounds},
    }


def _stat(value: Any) -> int | str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else int(value)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what tables do not distinguish: large and view variants, small integers, names inside lists."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_large_string(kind) or str(kind) == "string_view":
        return pa.string()
    if pa.types.is_large_binary(kind) or str(kind) == "binary_view":
        return pa.binary()
    return pa.int32() if pa.types.is_integer(kind) and kind.bit_width < 32 else kind


def check_layout(table: str, layout: FileLayout, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Raise ConfigError unless an existing table has the columns of `schema`, in any order, and the same partition columns."""
    table_types = {field.name: plain_type(field.type) for field in layout.schema}
    row_types = {field.name: plain_type(field.type) for field in schema}
    problems = [f"it has no column {name} {kind}" for name, kind in row_types.items() if name not in table_types]
    problems += [f"it has column {name}, the rows have none" for name in table_types if name not in row_types]
    problems += [
        f"its column {name} is {table_types[name]}, not {kind}"
        for name, kind in row_types.items()
        if name in table_types and table_types[name] != kind
    ]
    if layout.partition_by != partition_by:
        names = [", ".join(columns) or "none" for columns in (layout.partition_by, partition_by)]
        problems.append(f"its partition columns are {names[0]}, not {names[1]}")
    if problems:
        raise ConfigError(
            f"{table}: the table exists with another schema: {'; '.join(problems)}; write to another table"
        )


def arrow_schema(schema: Any) -> pa.Schema:
    """Return the columns of a DataFrame's schema as a table has them: timestamps in UTC, every column nullable."""
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in schema.fields])


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
