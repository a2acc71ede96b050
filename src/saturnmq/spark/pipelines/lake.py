"""Tables of a lake: the columns of messages, and writes that may be killed and repeated.

A whole table is written beside the old one and put in place by renames, so that a reader sees the old or the new one; a URI has no
renames, and Spark overwrites the table. Part of a table, such as one micro-batch of a stream, has a folder of its own, which is
overwritten when the batch is repeated.

Requirements: PIP-03, PIP-04.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.lake_sink import rows_in, target_at
from saturnmq.spark.local_paths import local_path
from saturnmq.spark.pipelines import ownership

MESSAGES: Final = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, store_ts timestamp, born_ts timestamp, tags string, "
    "keys string, uniq_key string, reconsume int, sys_flag int, born_host string, properties string, body binary, "
    "offset_msg_id string, date date, hour int"
)
SOURCE_COLUMNS: Final = (
    "topic,brokerName,queueId,queueOffset,storeTimestamp,bornTimestamp,tags,keys,uniqKey,reconsumeTimes,sysFlag,bornHost,"
    "properties,body,offsetMsgId"
)
PARTITIONS: Final = ("topic", "date", "hour")
ColumnOrName = Column | str
POSITION_COLUMNS: Final = ("topic", "broker_name", "queue_id", "queue_offset")


def messages_of(rows: DataFrame) -> DataFrame:
    """Convert rows of the source, read with SOURCE_COLUMNS, to table `messages`; date and hour are of the store time in UTC."""
    return rows.select(
        "topic",
        f.col("brokerName").alias("broker_name"),
        f.col("queueId").alias("queue_id"),
        f.col("queueOffset").alias("queue_offset"),
        f.col("storeTimestamp").alias("store_ts"),
        f.col("bornTimestamp").alias("born_ts"),
        "tags",
        "keys",
        f.col("uniqKey").alias("uniq_key"),
        f.col("reconsumeTimes").alias("reconsume"),
        f.col("sysFlag").alias("sys_flag"),
        f.col("bornHost").alias("born_host"),
        "properties",
        "body",
        f.col("offsetMsgId").alias("offset_msg_id"),
        utc_date("storeTimestamp").alias("date"),
        utc_hour("storeTimestamp").alias("hour"),
    )


def utc_start(column: ColumnOrName, seconds: int) -> Column:
    """Return the start of the UTC minute, hour or day (60, 3600, 86400 seconds) of a timestamp.

    It does not depend on the session time zone (SPK-12).
    """
    at = f.unix_seconds(_named(column))
    return f.timestamp_seconds(at - f.pmod(at, f.lit(seconds)))


def utc_date(column: ColumnOrName) -> Column:
    """Return the UTC date of a timestamp; Spark's to_date uses the session time zone (SPK-12)."""
    at = f.unix_seconds(_named(column))
    return f.date_from_unix_date(((at - f.pmod(at, f.lit(86_400))) / 86_400).cast("int"))


def utc_hour(column: ColumnOrName) -> Column:
    """Return the UTC hour of a timestamp, 0 to 23 (SPK-12)."""
    return f.floor(f.pmod(f.unix_seconds(_named(column)), f.lit(86_400)) / 3600).cast("int")


def _named(column: ColumnOrName) -> Column:
    return f.col(column) if isinstance(column, str) else column


def property_of(name: str, column: str = "properties") -> str:
    """Return SQL that extracts a message property from the raw text, null if absent.

    The first value is taken when a name occurs twice, as WAIT does.
    """
    pairs = f"split({column}, '\\u0002')"
    return f"substring(get(filter({pairs}, p -> startswith(p, '{name}\\u0001')), 0), {len(name) + 2})"


def replace_table(frame: DataFrame, path: str, *partition_by: str) -> None:
    """Replace a whole table. Raises Spark's errors; the old table stays then. Raises ConfigError for the table of a stream."""
    ownership.check_replaceable(path, frame.sparkSession)
    folder = local_path(path)
    if folder is None:
        frame.write.mode("overwrite").partitionBy(*partition_by).parquet(path)
        return
    _replace(
        folder, lambda new_folder: frame.write.mode("overwrite").partitionBy(*partition_by).parquet(str(new_folder))
    )


def replace_rows(rows: Sequence[Sequence[Any]], columns: str, path: str) -> None:
    """Replace a small table on a local disk without a Spark session. columns: DDL of strings and integers."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
    schema = pa.schema([(name, types[kind]) for name, kind in (c.split() for c in columns.split(","))])
    arrays = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)]
    arrow_table = pa.Table.from_arrays(arrays, schema=schema)

    def write(new_folder: Path) -> None:
        new_folder.mkdir(parents=True)
        parquet.write_table(arrow_table, new_folder / "part-0.parquet")

    _replace(in_lake(path), write)


def rows_of(path: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table that `replace_rows` wrote, empty when there is no table."""
    from pyarrow import parquet

    folder = in_lake(path)
    _mend(folder)
    return [tuple(row.values()) for row in parquet.read_table(folder).to_pylist()] if folder.exists() else []


def _replace(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a table beside the old one and rename it into place."""
    _mend(folder)
    new_folder, old = _beside(folder)
    shutil.rmtree(new_folder, ignore_errors=True)
    write(new_folder)
    if folder.exists():
        folder.rename(old)
    new_folder.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return (new folder, old folder) used during a replacement; Spark ignores names that begin with an underscore."""
    return folder.with_name(f"_{folder.name}.new"), folder.with_name(f"_{folder.name}.old")


def _mend(folder: Path) -> None:
    """Restore the table of a run that was killed between its two renames."""
    _, old = _beside(folder)
    if not old.exists():
        return
    if folder.exists():
        shutil.rmtree(old)
    else:
        old.rename(folder)


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Hold the table's lock: one process of this machine at a time writes to or compacts a table.

    Raises ConfigError when another process holds it.
    """
    folder = local_path(str(path))
    if folder is None:
        yield
        return
    lock = folder.absolute().with_name(f"_{folder.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{path}: another process is writing to this table; wait for it, or stop it") from None
        _mend(folder)
        yield
    finally:
        os.close(handle)


def startable(checkpoint: str) -> str:
    """Return the checkpoint of a stream, repaired so that the query can start (PIP-04).

    A query killed while it wrote its first offsets leaves a temporary file, for which Spark refuses every later start. As long
    as the checkpoint has no batch, such files are meaningless and are deleted.
    """
    folder = local_path(checkpoint)
    if folder is not None:
        paths = [path for name in ("offsets", "commits") for path in (folder / name).glob("*")]
        if not any(path.name.isdigit() for path in paths):
            for path in paths:
                if path.name.startswith("."):
                    path.unlink(missing_ok=True)
    return checkpoint


def write_part(frame: DataFrame, path: str, batch: int) -> None:
    """Write the rows of one micro-batch; a repeated batch replaces them."""
    frame.write.mode("overwrite").parquet(f"{path.rstrip('/')}/batch={batch}")


def exists(path: str) -> bool:
    """Whether there is a table. For a URI True is assumed; reading it will show."""
    folder = local_path(path)
    if folder is None:
        return True
    _mend(folder)
    return folder.is_dir() and any(folder.rglob("*.parquet"))


def table(spark: SparkSession, path: str, columns: str, *, needed: str = "") -> DataFrame:
    """Return a table of a lake, empty if it does not exist; with `needed` (who creates it) a missing table raises ConfigError."""
    if not exists(path):
        if needed:
            raise ConfigError(f"{path}: there is no such table; {needed}")
        return spark.createDataFrame([], columns)
    target = target_at(path)
    rows = spark.read.schema(columns).parquet(path) if target is None else rows_in(spark, target)
    return rows.select(*[name.strip().split(" ")[0] for name in columns.split(",")])


def in_lake(path: str, *names: str) -> Path:
    """Return a file or folder of a lake on a local disk. Raises ConfigError for other lakes."""
    folder = local_path(path)
    if folder is None:
        raise ConfigError(f"{path}: this needs a lake on a local disk")
    return folder.joinpath(*names)


def count(spark: SparkSession | None, path: str) -> int:
    """Return the number of rows of a table, 0 if it does not exist; without a Spark job if the files are local."""
    if not exists(path):
        return 0
    folder = local_path(path)
    if folder is not None:
        return int(_files(folder).count_rows())
    if spark is None:
        raise ConfigError(f"{path}: counting needs a Spark session")
    return spark.read.parquet(path).count()


def head(spark: SparkSession, path: str, rows: int) -> list[dict[str, Any]]:
    """Return some rows of a table; without a Spark job if the files are local."""
    if not exists(path):
        return []
    folder = local_path(path)
    if folder is None:
        return [row.asDict() for row in spark.read.parquet(path).limit(rows).collect()]
    head_rows: list[dict[str, Any]] = _files(folder).head(rows).to_pylist()
    return head_rows


def _files(folder: Path) -> Any:
    """Open the table with pyarrow; only for tables that were not written by a file sink with its own log."""
    from pyarrow import dataset

    return dataset.dataset(folder, format="parquet", partitioning="hive")
