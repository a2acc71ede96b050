"""Formats of the lake's append-only tables, and writing of micro-batches to the ones that have a log of commits.

Parquet is Spark's own file sink. For Delta and Iceberg tasks write files and the driver commits them together with the number of
the batch, so that a batch that runs again after a kill changes nothing.

Requirements: PIP-03.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Protocol

from saturnmq.config.settings import without_credentials
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.local_paths import local_path, path_or_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from saturnmq.spark.lake_files import DataFile, FileLayout

PARQUET: Final = "parquet"
ICEBERG: Final = "iceberg"
PACKAGES: Final = {"delta": "deltalake", ICEBERG: "pyiceberg"}
FORMATS: Final = (PARQUET, *PACKAGES)
LOG_FOLDERS: Final = {"_delta_log": "delta", "metadata": ICEBERG}  # of a table's folder
READ_TASKS_MAX: Final = 200


class Target(Protocol):
    """A table with a log of commits; its methods run in the driver."""

    @property
    def path(self) -> str:
        """Folder of the table."""
        ...

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Partition columns."""
        ...

    def layout(self) -> FileLayout | None:
        """Return the layout of the table, None without one."""
        ...

    def create(self, schema: pa.Schema) -> None:
        """Create the table, unless another process has."""
        ...

    def last_batch(self, query: str) -> int:
        """Return the newest micro-batch of a query that the table holds, -1 without one."""
        ...

    def commit(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        """Add the files of a micro-batch, unless the table holds it already."""
        ...

    def replace(self, replaced: Sequence[DataFile], files: Sequence[DataFile]) -> None:
        """Exchange files for others with the same rows, in one commit."""
        ...

    def files(self) -> list[DataFile]:
        """Return the files that are the table now."""
        ...

    def count(self) -> int:
        """Return the number of rows."""
        ...


def check_format(option: str, name: str) -> str:
    """Return the name of a format whose package is installed. Raises ConfigError."""
    if name not in FORMATS:
        nearest = get_close_matches(name, FORMATS, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"{option}={name}: unknown format, there are {', '.join(FORMATS)}{hint}")
    package = PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(f"{option}={name}: needs package {package}: {install_command(name)}")
    return name


def target_of(
    name: str, path: str, partition_by: Sequence[str], *, catalog: str | None = None, namespace: str | None = None
) -> Target | None:
    """Return the table of a format, None for Parquet. Raises ConfigError, before any path is touched."""
    check_format("format", name)
    if name != ICEBERG and (catalog or namespace):
        raise ConfigError(f"format={name}: a catalog and a namespace are of iceberg tables only")
    try:
        folder = local_path(path_or_url(path))
    except ValueError as error:
        raise ConfigError(f"{without_credentials(path)}: {error}") from None
    if name != PARQUET and folder is not None and set("%?") & set(str(folder)):
        raise ConfigError(
            f"{path}: a path of a {name} table cannot have % or ? in it, which {PACKAGES[name]} takes for part of a URL"
        )
    if name == "delta":
        from saturnmq.spark.delta_table import DeltaTarget

        return DeltaTarget(path, tuple(partition_by))
    if name == ICEBERG:
        from saturnmq.spark.iceberg_table import NAMESPACE, IcebergTarget

        return IcebergTarget(path, tuple(partition_by), catalog, namespace or NAMESPACE)
    return None


def target_at(path: str, *, catalog: str | None = None, namespace: str | None = None) -> Target | None:
    """Return the Delta or Iceberg table of a folder or of a catalog, None for a folder of Parquet files. Raises ConfigError."""
    folder = local_path(path)
    names = [ICEBERG] if catalog else []
    names += [name for log, name in LOG_FOLDERS.items() if folder is not None and (folder / log).is_dir()]
    return target_of(names[0], path, (), catalog=catalog, namespace=namespace) if names else None


def prepare(target: Target, frame: DataFrame) -> FileLayout:
    """Return the layout of a table, created if there is none, that the frame's rows fit in. Raises ConfigError."""
    from saturnmq.spark.lake_files import arrow_schema, check_layout, is_partition_type

    schema = arrow_schema(frame.schema)
    for name in target.partition_by:
        if name not in schema.names:
            raise ConfigError(
                f"{target.path}: partition column {name} is no column; there are {', '.join(schema.names)}"
            )
        if not is_partition_type(schema.field(name).type):
            raise ConfigError(
                f"{target.path}: partition column {name} is {schema.field(name).type}; it must be a string, an integer, a boolean "
                "or a date"
            )
    layout = target.layout()
    if layout is None:
        target.create(schema)
        layout = layout_of(target)
    check_layout(target.path, layout, schema, target.partition_by)
    return layout


def layout_of(target: Target) -> FileLayout:
    """Return the layout of a table. Raises ConfigError without one."""
    layout = target.layout()
    if layout is None:
        raise ConfigError(f"{target.path}: there is no such table")
    return layout


def written(frame: DataFrame, layout: FileLayout) -> list[DataFile]:
    """Write the frame's rows to files; return them, for a commit."""
    from saturnmq.spark.lake_files import FILE_COLUMNS, FileWriter, files_of_rows

    return files_of_rows(frame.mapInArrow(FileWriter(layout), FILE_COLUMNS).collect())


def rows_in(spark: SparkSession, target: Target, files: Sequence[DataFile] | None = None) -> DataFrame:
    """Return the rows of a table, or of some of its files. Raises ConfigError."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from saturnmq.spark.lake_files import FileReader

    layout = layout_of(target)
    names = [(file.path, json.dumps(file.partition)) for file in (target.files() if files is None else files)]
    paths = spark.createDataFrame(names, "path string, partition string").repartition(
        min(len(names), READ_TASKS_MAX) or 1
    )
    return paths.mapInArrow(FileReader(layout), from_arrow_schema(layout.schema))


def append(target: Target, frame: DataFrame, query: str, batch: int) -> None:
    """Add the rows of a micro-batch to a table, unless it holds them already. Raises ConfigError."""
    last_batch = target.last_batch(query)
    if batch < last_batch:  # Spark repeats the newest batch only
        raise ConfigError(
            f"{target.path}: the table holds batch {last_batch} of query {query}, its checkpoint is at batch {batch}: it is an old "
            "copy; restore the newest checkpoint, or write to another table with a new one"
        )
    if batch == last_batch:
        return
    if files := written(frame, prepare(target, frame)):
        target.commit(files, query, batch)


def to_lake(
    name: str, table: str, partition_by: Sequence[str] = (), catalog: str | None = None, namespace: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that adds each micro-batch to a Delta or Iceberg table once. Raises ConfigError."""
    target = target_of(name, table, partition_by, catalog=catalog, namespace=namespace)
    if target is None:
        raise ConfigError(
            f'format={name}: Spark writes it itself, by writeStream.format("parquet"); here are delta, iceberg'
        )

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise ConfigError(f"{table}: to_lake writes batches of a stream: pass it to writeStream.foreachBatch")
        append(target, frame, query, batch)

    return write
