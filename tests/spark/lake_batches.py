"""Writes micro-batches to a Delta or Iceberg table as a stream's driver does, without Spark, and kills itself at a step.

    python lake_batches.py delta FOLDER BATCHES STEP@BATCH

FOLDER/done is the checkpoint: the newest finished batch. A step: created, files, commit (before it), committed, finished.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructType, TimestampType

from saturnmq.spark import lake_sink

QUERY = "11111111-2222-3333-4444-555555555555"
ROWS = 6  # of a batch
COLUMNS = StructType().add("n", IntegerType()).add("tag", StringType()).add("at", TimestampType())
TAGS = ("a b", None, "x/ü=%2f")


def rows_of(batch: int) -> list[tuple[int, str | None, datetime | None]]:
    """Return the rows of a batch; equal for equal numbers, as a stream repeats them."""
    numbers = range(batch * ROWS, (batch + 1) * ROWS)
    return [(n, TAGS[n % 3], None if n % 4 == 3 else datetime(2026, 3, 1, 12, 0, n, 123_456, UTC)) for n in numbers]


class Frame:
    """Rows of two tasks, in the form in which `append` uses a DataFrame."""

    schema = COLUMNS

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._tasks = [rows[::2], rows[1::2]]
        self._files: list[dict[str, Any]] = []

    def mapInArrow(self, write: Callable[..., Any], _columns: str) -> Frame:
        for rows in self._tasks:
            columns = [list(column) for column in zip(*rows, strict=True)]
            arrays = [
                pa.array(columns[0], pa.int32()),
                pa.array(columns[1]),
                pa.array(columns[2], pa.timestamp("us", "UTC")),
            ]
            batch = pa.RecordBatch.from_arrays(arrays, COLUMNS.names)
            self._files += [row for written in write(iter([batch])) for row in written.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._files


def run(name: str, folder: Path, batches: int, reached: Callable[[str], None]) -> Any:
    """Write batches up to this number; return the table."""
    target = lake_sink.target_of(name, str(folder / "t"), ("tag",))
    assert target is not None
    done = folder / "done"
    commit = type(target).commit

    def observed(self: Any, files: Any, query: str, batch: int) -> None:
        reached("files")
        commit(self, files, query, batch)
        reached("committed")

    type(target).commit = observed  # type: ignore[method-assign]
    try:
        for batch in range(int(done.read_text()) + 1 if done.exists() else 0, batches):
            STATE["batch"] = batch
            lake_sink.prepare(target, Frame(rows_of(batch)))  # type: ignore[arg-type]
            reached("created")
            lake_sink.append(target, Frame(rows_of(batch)), QUERY, batch)  # type: ignore[arg-type]
            done.write_text(str(batch))
            reached("finished")
    finally:
        type(target).commit = commit  # type: ignore[method-assign]
    return target


STATE = {"batch": 0}


def main() -> None:
    name, folder, batches, at = sys.argv[1:]

    def reached(step: str) -> None:
        if f"{step}@{STATE['batch']}" == at:
            os.kill(os.getpid(), signal.SIGKILL)

    if at.startswith("commit@") and name == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        update = SqlCatalog.commit_table

        def before(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
            reached("commit")  # manifests are written, the catalog names the old metadata
            return update(self, table, requirements, updates)

        SqlCatalog.commit_table = before  # type: ignore[method-assign]
    run(name, Path(folder), int(batches), reached)


if __name__ == "__main__":
    main()
