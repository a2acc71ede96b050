"""Compaction: merges the many small files of closed hours into few large ones.

In: a table of the lake with folders `date=.../hour=...`, such as `messages`. Out: the same table with the same rows. The new table
is built beside the old one, from hard links to unchanged files and from the merged files, and both folders are exchanged in one
file-system operation. A reader that follows Spark's log, or that opens every file that the folders list, sees either the old or
the new table. A query that had started before may miss a file and fail with that error; it never returns a different number of
rows. Only libraries that list folders and skip a file that disappeared meanwhile (Arrow does) may omit one, in the microseconds
between listing it and reading its size; they do so in any folder that changes. Files that a killed export left unfinished are not
taken over.

A Delta or Iceberg table gets one commit per folder, which exchanges its files; readers see the table before or after it, and
the replaced files stay for readers of older versions.

Requirements: PIP-07.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from saturnmq.durable import sync_path
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.spark.lake_files import DataFile
from saturnmq.spark.lake_sink import Target, layout_of, rows_in, target_at, written
from saturnmq.spark.option_table import duration_ms, size
from saturnmq.spark.pipelines import SUMMARIES, lake, ownership, running, sink_log
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome

TARGET_SIZE: Final = "256m"
CLOSED_AFTER: Final = "15m"
_RENAME_EXCHANGE: Final = 2  # flag of renameat2: exchange the two names
_AT_FDCWD: Final = -100


@dataclass(frozen=True)
class CompactConf(Conf):
    """Selection of files to compact.

    target_bytes: target size of a new file, which may reach twice that. closed_after_ms: how long after its end an hour is closed,
    so that its files are merged. catalog, namespace: of Iceberg tables.
    """

    path: str = ""
    target_bytes: int = 256 << 20
    closed_after_ms: int = 900_000
    catalog: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class FileGroup:
    """Files of one folder of a table that are merged into `new_count` files. folder and files are relative to the table."""

    folder: Path
    files: tuple[Path, ...]
    new_count: int
    rows: int


def find_groups(table: Path, files: list[Path], closed_before: datetime, target_bytes: int) -> list[FileGroup]:
    """Return the files to merge: of folders of hours that ended by `closed_before` and have more files than necessary."""
    by_folder: dict[Path, list[Path]] = {}
    for path in files:
        by_folder.setdefault(path.parent, []).append(path)
    selected = []
    for folder, paths in sorted(by_folder.items()):
        hour_end = _hour_end(table, dict(part.split("=", 1) for part in folder.parts if "=" in part))
        total_bytes = sum((table / path).stat().st_size for path in paths)
        new_count = max(1, total_bytes // target_bytes)
        if hour_end <= closed_before and len(paths) > new_count:
            rows = sum(pq.ParquetFile(table / path).metadata.num_rows for path in paths)
            selected.append(FileGroup(folder, tuple(sorted(paths)), new_count, rows))
    return selected


def _hour_end(table: Path | str, partition_values: Mapping[str, str | None]) -> datetime:
    """Return the end of the hour that a partition is of. Raises ConfigError."""
    try:
        date, hour = partition_values["date"], int(partition_values["hour"] or "")
        hour_begin = datetime.strptime(f"{date} {hour:02d}", "%Y-%m-%d %H")
    except (KeyError, ValueError):
        folder = "/".join(f"{name}={value}" for name, value in partition_values.items())
        raise ConfigError(
            f"{table}: {folder or 'a table without partitions'} is no folder of an hour; "
            "compact is for tables with date= and hour= folders"
        ) from None
    return hour_begin.replace(tzinfo=UTC) + timedelta(hours=1)


def merged_rows(frame: DataFrame, new_count: int) -> DataFrame:
    """Return the rows of the files of a group, in queue order, in `new_count` partitions."""
    sort_columns = [name for name in lake.POSITION_COLUMNS if name in frame.columns]
    if new_count == 1:
        frame = frame.coalesce(1)
    elif sort_columns:
        frame = frame.repartitionByRange(new_count, *reversed(sort_columns))
    else:
        frame = frame.repartition(new_count)
    return frame.sortWithinPartitions(*sort_columns) if sort_columns else frame


def build(spark: SparkSession, conf: CompactConf) -> DataFrame:
    """Return the table as readers see it; compaction does not change its rows."""
    target = target_at(conf.path, catalog=conf.catalog, namespace=conf.namespace)
    return spark.read.parquet(conf.path) if target is None else rows_in(spark, target)


def run(spark: SparkSession, conf: CompactConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline; a repeated run finds nothing to do. A run killed at any point leaves either the old or the new table."""
    target = target_at(conf.path, catalog=conf.catalog, namespace=conf.namespace)
    if target is None and not lake.exists(conf.path):
        raise ConfigError(f"{conf.path}: there is no such table")
    closed_before = datetime.now(UTC) - timedelta(milliseconds=conf.closed_after_ms)
    with lake.writing(conf.path):
        compacted = _compact_files if target is None else partial(_compact_commits, target=target)
        rows, groups, files_before, files_after = compacted(spark, conf, closed_before, step)
    message = f"{files_before} files of {groups} folders of {conf.path} are {files_after} now"
    return PipelineOutcome(
        rows,
        rows,
        0,
        None,
        message if groups else f"{conf.path}: every closed hour is compact",
        more={"table": conf.path, "files_before": files_before, "files_after": files_after},
    )


def _compact_files(
    spark: SparkSession, conf: CompactConf, closed_before: datetime, step: Callable[[str], Any]
) -> tuple[int, int, int, int]:
    """Compact a table of Parquet files; return rows, folders, files before and after."""
    table = lake.in_lake(conf.path)
    log = sink_log.read_log(table)
    files = list(log.files) if log else [p.relative_to(table) for p in _visible_files(table)]
    groups = find_groups(table, files, closed_before, conf.target_bytes)
    files_after = _rebuild_table(spark, table, log, files, groups, step) if groups else 0
    return sum(group.rows for group in groups), len(groups), sum(len(group.files) for group in groups), files_after


def _compact_commits(
    spark: SparkSession, conf: CompactConf, closed_before: datetime, step: Callable[[str], Any], target: Target
) -> tuple[int, int, int, int]:
    """Compact a Delta or Iceberg table, a commit per folder; return rows, folders, files before and after. Raises StoreError."""
    layout = layout_of(target)
    groups: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for file in target.files():
        groups.setdefault(tuple(file.partition.items()), []).append(file)
    new_counts = {key: max(1, sum(file.size for file in files) // conf.target_bytes) for key, files in groups.items()}
    pending = [
        key
        for key, files in groups.items()
        if _hour_end(conf.path, dict(key)) <= closed_before and len(files) > new_counts[key]
    ]
    rows = files_after = 0
    for number, key in enumerate(pending, 1):
        step(f"{number} of {len(pending)} folders")
        files = groups[key]
        new_files = written(merged_rows(rows_in(spark, target, files), new_counts[key]), layout)
        group_rows, new_rows = sum(file.rows for file in files), sum(file.rows for file in new_files)
        if new_rows != group_rows:
            raise StoreError(
                f"{conf.path}: {group_rows} rows of {dict(key)} became {new_rows}; the table is left as it was"
            )
        target.replace(files, new_files)
        rows += group_rows
        files_after += len(new_files)
    return rows, len(pending), sum(len(groups[key]) for key in pending), files_after


def _visible_files(table: Path) -> list[Path]:
    """Return the files that readers see in a table without a log."""
    visible = []
    for path in sorted(table.rglob("*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(table).parts):
            visible.append(path)
    return visible


def _rebuild_table(
    spark: SparkSession, table: Path, log: sink_log.SinkLog | None, files: list[Path], pending_groups: list[FileGroup],
    step: Callable[[str], Any],
) -> int:  # fmt: skip
    """Build the new table and exchange it with the old one; return the number of new files. Raises StoreError."""
    new_table, work_folder = table.with_name(f"_{table.name}.new"), table.with_name(f"_{table.name}.work")
    for leftover in (new_table, work_folder):
        shutil.rmtree(leftover, ignore_errors=True)
    replaced = {path for group in pending_groups for path in group.files}
    for path in files:
        if path not in replaced:
            _hard_link(table / path, new_table / path)
    if (table / ownership.OWNER_FILE).exists():
        _hard_link(table / ownership.OWNER_FILE, new_table / ownership.OWNER_FILE)
    new_files: list[Path] = []
    for number, group in enumerate(pending_groups, 1):
        step(f"{number} of {len(pending_groups)} folders")
        frame = spark.read.parquet(*(str(table / path) for path in group.files))
        merged_rows(frame, group.new_count).write.mode("overwrite").parquet(str(work_folder))
        new_parts = sorted(work_folder.glob("*.parquet"))
        rows = sum(pq.ParquetFile(path).metadata.num_rows for path in new_parts)
        if rows != group.rows:
            raise StoreError(f"{table / group.folder}: {group.rows} rows became {rows}; the table is left as it was")
        for path in new_parts:
            _hard_link(path, new_table / group.folder / path.name)
            new_files.append(group.folder / path.name)
        shutil.rmtree(work_folder)
    if log is not None:
        retained = [line for path, line in log.files.items() if path not in replaced]
        added = [_log_line(table, new_table, path) for path in new_files]
        sink_log.write_log(new_table, log.latest, retained + added)
        if sink_log.latest_batch(table) != log.latest:
            raise StoreError(f"{table}: another process wrote to it meanwhile; the table is unchanged")
    _sync([new_table / path for path in new_files], new_table)
    exchange(table, new_table)
    shutil.rmtree(new_table, ignore_errors=True)
    return len(new_files)


def _log_line(table: Path, new_table: Path, path: Path) -> str:
    file_stat = (new_table / path).stat()
    return sink_log.line_of(table / path, file_stat.st_size, file_stat.st_mtime_ns // 1_000_000)


def _hard_link(source: Path, target: Path) -> None:
    """Hard-link a file and Spark's checksum of it; copy them where links are not supported."""
    target.parent.mkdir(parents=True, exist_ok=True)
    checksum_file = source.with_name(f".{source.name}.crc")
    for original, link in ((source, target), (checksum_file, target.with_name(checksum_file.name))):
        if original == source or original.exists():
            try:
                os.link(original, link)
            except PermissionError:
                shutil.copy2(original, link)


def _sync(files: list[Path], folder: Path) -> None:
    """Fsync everything that was written, before the old files are deleted."""
    folders = [path for path in folder.rglob("*") if path.is_dir()]
    for path in (*files, *(folder / sink_log.FOLDER).glob("*"), *folders, folder):
        sync_path(path)


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two folders, atomically where the system supports it; else the first does not exist for a moment.

    Raises OSError; both folders are unchanged then.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(first))
    temporary = first.with_name(f"_{first.name}.old")
    first.rename(temporary)
    second.rename(first)
    temporary.rename(second)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    parser.add_argument(
        "table", metavar="TABLE", help="path of the table, such as ./lake/messages; with --lake its name there"
    )
    parser.add_argument(
        "--target",
        default=TARGET_SIZE,
        metavar="SIZE",
        help="size of new files, up to twice that (default %(default)s)",
    )
    parser.add_argument("--closed-after", default=CLOSED_AFTER, metavar="TIME",
                   help="how long after its end an hour is left alone (default %(default)s)")  # fmt: skip
    running.catalog_options(parser)


def conf_of(args: argparse.Namespace) -> CompactConf:
    """Build the configuration from the command line. Raises ConfigError."""
    target = running.parsed("--target", args.target, size)
    closed_after_ms = running.parsed("--closed-after", args.closed_after, duration_ms())
    path = f"{args.lake.rstrip('/')}/{args.table}" if args.lake else args.table.rstrip("/")
    return CompactConf(
        **running.common(args), path=path, target_bytes=target, closed_after_ms=closed_after_ms,
        catalog=args.catalog, namespace=args.namespace,
    )  # fmt: skip


PIPELINE: Final = Pipeline(
    "compact",
    SUMMARIES["compact"],
    {"TABLE": "a table with date= and hour= folders, as export and files write it"},
    {"TABLE": "the same columns and rows"},
    "readers of the table's log see each row once; a repeated run does nothing; after a kill the old or the new table is in place",
    options,
    conf_of,
    build,
    run,
    needs_lake=False,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["compact", *sys.argv[1:]]))
