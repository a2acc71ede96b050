"""Compaction of a lake table: the same rows in fewer files, for every kind of reader and after interruption at any step."""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from saturnmq.protocol.errors import ConfigError, CorruptRecord, StoreError
from saturnmq.spark.pipelines import compact, export, lake, ownership, running, sink_log
from saturnmq.testing import SyncEmbeddedBroker

NOT_YET_MS = -7_200_000  # negative age: the current hour counts as closed in these tests


def quietly(_words: str) -> None:
    """Progress callback that does nothing."""


def small_files(table: Path, hours: dict[str, int], rows: int = 5) -> None:
    """Write files into folders of a table, each with `rows` distinct rows."""
    n = 0
    for folder, count in hours.items():
        (table / folder).mkdir(parents=True)
        for number in range(count):
            values = list(range(n, n + rows))
            n += rows
            columns = {"queue_offset": values, "topic_name": ["t"] * rows}
            pq.write_table(pa.table(columns), table / folder / f"part-{number}.parquet")


def rows_listed(table: Path) -> Counter[tuple[Any, ...]]:
    """Return what a reader sees that ignores Spark's log."""
    found = dataset.dataset(table, format="parquet", partitioning="hive", ignore_prefixes=[".", "_"]).to_table()
    return Counter(
        (r["topic"], r["queue_id"], r["queue_offset"], r["body"], str(r["date"]), r["hour"]) for r in found.to_pylist()
    )


def rows_of_spark(spark: Any, table: Path) -> Counter[tuple[Any, ...]]:
    frame = lake.table(spark, str(table), lake.MESSAGES)
    return Counter((r.topic, r.queue_id, r.queue_offset, bytes(r.body), str(r.date), r.hour) for r in frame.collect())


def conf_of(table: Path, **more: Any) -> compact.CompactConf:
    return compact.CompactConf(path=str(table), closed_after_ms=NOT_YET_MS, **more)


@pytest.mark.spark
@pytest.mark.spec("PIP-07", "PIP-04")
def test_compact_keeps_rows_and_table_can_still_grow(
    spark: Any, server: SyncEmbeddedBroker, send: Any, tmp_path: Path
) -> None:
    conf = export.ExportConf(server.name_servers, str(tmp_path), topics="compacted", max_offsets=60)
    table = Path(conf.messages)
    left = (
        tmp_path / "_checkpoint" / "offsets" / ".0.325df3cb.tmp"
    )  # left by a kill at the first offsets: plain Spark refuses to start
    left.parent.mkdir(parents=True)
    left.touch()
    send("compacted", 120)
    assert export.run(spark, conf, quietly).rows_in == 120
    (next(table.glob("topic=*/date=*/hour=*")) / "part-left-by-a-kill.parquet").write_bytes(b"torn")
    before = rows_of_spark(spark, table)
    many = len(sink_log.read_log(table).files)  # type: ignore[union-attr]
    done = compact.run(spark, conf_of(table), quietly)
    hours = {path.parent for path in table.glob("topic=*/date=*/hour=*/*.parquet")}
    assert done.more["files_before"] == many > len(hours) == done.more["files_after"] and done.rows_in == 120
    assert rows_of_spark(spark, table) == rows_listed(table) == before and len(before) == 120
    assert compact.run(spark, conf_of(table), quietly).more["files_after"] == 0
    send("compacted", 100, first=120)
    assert export.run(spark, conf, quietly).rows_in == 100, "the sink's log goes on behind the one file that it is now"
    grown = rows_of_spark(spark, table)
    assert len(grown) == sum(grown.values()) == 220
    files = Counter(path.parent for path in table.glob("topic=*/date=*/hour=*/*.parquet"))
    several = [path for folder, count in files.items() if count > 1 for path in folder.glob("*.parquet")]
    rows = sum(
        pq.read_metadata(path).num_rows for path in several
    )  # 220, unless an hour has ended since the first ones
    assert compact.run(spark, conf_of(table), quietly).rows_in == rows >= 100
    assert rows_of_spark(spark, table) == rows_listed(table) == grown
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "_checkpoint", "_messages.lock", "_offsets", "messages"]  # fmt: skip


@pytest.mark.spark
@pytest.mark.spec("PIP-07", "PIP-04")
def test_compact_interrupted_leaves_old_table_and_rerun_completes(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at each step that changes something, with and without a system call that exchanges folders."""
    table = tmp_path / "messages"
    small_files(table, {"date=2026-03-01/hour=4": 3, "date=2026-03-01/hour=5": 1})

    def numbers() -> list[int]:
        found = (
            dataset.dataset(table, format="parquet", ignore_prefixes=[".", "_"]).to_table()["queue_offset"].to_pylist()
        )
        return sorted(found)

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    for module, name in ((compact, "_hard_link"), (compact, "_sync"), (compact, "exchange")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(Killed):
                compact.run(spark, conf_of(table), quietly)
        assert numbers() == list(range(20)) and len(list(table.rglob("*.parquet"))) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact.ctypes, "CDLL", lambda *_, **__: object())
        rename = Path.rename

        def second_rename_fails(self: Path, target: Path) -> Path:
            if target == table:
                raise Killed
            return rename(self, target)

        patch.setattr(Path, "rename", second_rename_fails)
        with pytest.raises(Killed):
            compact.run(spark, conf_of(table), quietly)
        assert not table.exists(), "a reader finds nothing and says so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact.ctypes, "CDLL", lambda *_, **__: object())
        assert compact.run(spark, conf_of(table), quietly).more["files_after"] == 1
    assert numbers() == list(range(20)) and len(list(table.rglob("*.parquet"))) == 2
    monkeypatch.setattr(compact, "merged_rows", lambda _frame, _count: spark.range(3))
    (table / "date=2026-03-01/hour=4" / "more.parquet").write_bytes(
        (next((table / "date=2026-03-01/hour=5").iterdir())).read_bytes()
    )
    with pytest.raises(StoreError, match="20 rows became 3; the table is left as it was"):
        compact.run(spark, conf_of(table), quietly)


def twice_the_same(table: Path, other: Path) -> None:
    """Write the same 60 rows to two folders, four files an hour and one, and Spark's log of each under the table's path."""
    small_files(table, {f"date=2026-03-01/hour={hour}": 4 for hour in range(3)})
    for hour in range(3):
        folder = Path(f"date=2026-03-01/hour={hour}")
        (other / folder).mkdir(parents=True)
        whole = pa.concat_tables(
            [pq.read_table(path, partitioning=None) for path in sorted((table / folder).iterdir())]
        )
        pq.write_table(whole, other / folder / "part-whole.parquet")
    for one in (table, other):
        lines = []
        for path in sorted(one.rglob("*.parquet")):
            facts = path.stat()
            lines.append(sink_log.line_of(table / path.relative_to(one), facts.st_size, facts.st_mtime_ns // 1_000_000))
        sink_log.write_log(one, 3, lines)


def rows_of_names(table: Path) -> int:
    """Count the rows of all files that the folders list; a file missing by then is an error."""
    names = [path for hour in range(3) for path in (table / f"date=2026-03-01/hour={hour}").glob("*.parquet")]
    return sum(pq.ParquetFile(path).metadata.num_rows for path in names)


def counted_while_tables_change_places(
    table: Path, other: Path, read: Callable[[], int], enough: int
) -> tuple[Counter[int], list[Exception]]:
    """Call read() repeatedly while the folders are exchanged; return how often it returned what, and its errors."""
    done, counted, missed = threading.Event(), Counter[int](), list[Exception]()

    def reader() -> None:
        while not done.is_set():
            try:
                counted[read()] += 1
            except Exception as error:
                missed.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        until = time.monotonic() + 20
        while sum(counted.values()) + len(missed) < enough and time.monotonic() < until:
            compact.exchange(table, other)
    finally:
        done.set()
        thread.join(60)
    return counted, missed


@pytest.mark.spec("PIP-07")
def test_exchange_listing_reader_never_sees_other_row_count(
    tmp_path: Path,
) -> None:
    """Both folders hold the same rows in different files; a reader sees one or the other, or fails on a missing file."""
    table, other = tmp_path / "messages", tmp_path / "_messages.new"
    twice_the_same(table, other)
    counted, missed = counted_while_tables_change_places(table, other, lambda: rows_of_names(table), 300)
    assert set(counted) <= {60} and {type(error) for error in missed} <= {FileNotFoundError}
    assert rows_of_names(table) == dataset.dataset(table, format="parquet", ignore_prefixes=["_"]).count_rows() == 60


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.spec("PIP-07")
def test_exchange_spark_reader_never_sees_other_row_count(spark: Any, tmp_path: Path) -> None:
    """Spark follows its log, of which exactly one exists at any moment."""
    table, other = tmp_path / "messages", tmp_path / "_messages.new"
    twice_the_same(table, other)
    counted, missed = counted_while_tables_change_places(
        table, other, lambda: int(spark.read.parquet(str(table)).count()), 8
    )
    assert set(counted) <= {60} and all(table.name in str(error) for error in missed), "it fails naming what it misses"
    assert spark.read.parquet(str(table)).count() == 60


@pytest.mark.spec("PIP-07")
def test_compact_selects_closed_hours_with_too_many_files(tmp_path: Path) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    small_files(
        tmp_path,
        {f"topic=t/date=2026-03-01/hour={hour}": 2 for hour in (9, 10, 11)} | {"topic=t/date=2026-03-01/hour=8": 1},
    )
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")]
    size = min((tmp_path / path).stat().st_size for path in files)
    chosen = compact.find_groups(tmp_path, files, noon.replace(hour=11), 256 << 20)
    assert [(g.folder.name, len(g.files), g.new_count, g.rows) for g in chosen] == [
        ("hour=10", 2, 1, 10),
        ("hour=9", 2, 1, 10),
    ]
    assert len(compact.find_groups(tmp_path, files, noon, 256 << 20)) == 3
    assert compact.find_groups(tmp_path, files, noon, size) == [], "two files of the wanted size stay two"
    with pytest.raises(ConfigError, match="no folder of an hour"):
        compact.find_groups(tmp_path, [Path("tags=a/part.parquet")], noon, 1)


@pytest.mark.spec("PIP-07", "PIP-01")
def test_compact_command_takes_table_path_or_name() -> None:
    parser = running.parser_of(compact.PIPELINE)

    def path(*words: str) -> str:
        return compact.conf_of(parser.parse_args(list(words))).path

    assert path("./lake/messages/") == "./lake/messages" and path("messages", "--lake", "./lake") == "./lake/messages"
    made = compact.conf_of(parser.parse_args(["t", "--target", "128m", "--closed-after", "2h"]))
    assert (made.target_bytes, made.closed_after_ms) == (128 << 20, 7_200_000)
    with pytest.raises(ConfigError, match="--target"):
        compact.conf_of(parser.parse_args(["t", "--target", "big"]))
    with pytest.raises(ConfigError, match="needs a lake on a local disk"):
        compact.run(None, compact.CompactConf(path="s3://lake/messages"), quietly)  # type: ignore[arg-type]
    assert isinstance(parser, argparse.ArgumentParser)


@pytest.mark.spec("PIP-07", "PIP-08")
def test_table_lock_and_foreign_checkpoint_are_config_errors(tmp_path: Path) -> None:
    """Spark's sink takes a batch whose number is in its log as written: another checkpoint would silently drop rows."""
    conf = export.ExportConf(lake=str(tmp_path), topics="t")
    ownership.check(export.stream_of(conf))
    table = Path(conf.messages)
    with lake.writing(table), pytest.raises(ConfigError, match="another process is writing"), lake.writing(str(table)):
        pass
    table.mkdir()
    sink_log.write_log(table, 4, [])
    (tmp_path / "_checkpoint" / "offsets").mkdir(parents=True)
    for number in range(5):
        (tmp_path / "_checkpoint" / "offsets" / str(number)).touch()
    ownership.check(export.stream_of(conf))
    other = export.ExportConf(lake=str(tmp_path), topics="t", checkpoint_path=str(tmp_path / "other"))
    with pytest.raises(
        ConfigError, match=r"with another checkpoint than .*other .its last batch is 4, the checkpoint's -1"
    ):
        ownership.check(export.stream_of(other))
    with pytest.raises(ConfigError, match="another checkpoint"):
        export.run(None, other, quietly)  # type: ignore[arg-type]


@pytest.mark.spec("PIP-07")
def test_sink_log_is_read_from_newest_compaction(tmp_path: Path) -> None:
    table = tmp_path / "ta ble"
    log = table / sink_log.FOLDER
    log.mkdir(parents=True)
    assert sink_log.read_log(table) is None and sink_log.latest_batch(table) == -1
    lines = [sink_log.line_of(table / f"topic=%25DLQ%25g/part-{n}.parquet", n, n) for n in range(4)]
    (log / "0").write_text("v1\n" + lines[3])  # compacted away: its file is in no newer entry
    (log / "1.compact").write_text("\n".join(["v1", *lines[:2]]))
    (log / "2").write_text("v1\n" + lines[2])
    (log / ".2.crc").touch()
    found = sink_log.read_log(table)
    assert found is not None and found.latest == sink_log.latest_batch(table) == 2
    assert {str(path): line for path, line in found.files.items()} == {
        f"topic=%25DLQ%25g/part-{n}.parquet": lines[n] for n in range(3)
    }
    (log / "4").write_text("v1")
    with pytest.raises(CorruptRecord, match="3: cannot be read"):
        sink_log.read_log(table)
    (log / "3").write_text("v2")
    with pytest.raises(CorruptRecord, match="version 'v2'"):
        sink_log.read_log(table)
    (log / "3").write_text("v1\n" + sink_log.line_of(tmp_path / "elsewhere.parquet", 1, 1))
    with pytest.raises(ConfigError, match="was the table moved"):
        sink_log.read_log(table)


@pytest.mark.spec("PIP-04", "PIP-08")
def test_checkpoint_temporary_files_are_removed_only_without_batches(tmp_path: Path) -> None:
    offsets, commits = tmp_path / "offsets", tmp_path / "commits"
    assert lake.startable(str(tmp_path / "new")) == str(tmp_path / "new") and not (tmp_path / "new").exists()
    offsets.mkdir()
    commits.mkdir()
    for name in (".0.325df3cb.tmp", "..0.325df3cb.tmp.crc"):
        (offsets / name).touch()
    lake.startable(str(tmp_path))
    assert not list(offsets.iterdir())
    for name in ("0", ".0.crc", ".1.325df3cb.tmp"):
        (offsets / name).touch()
    lake.startable(str(tmp_path))
    assert len(list(offsets.iterdir())) == 3
