"""Delta and Iceberg tables as targets: each message once, whatever is repeated, as every reader of such tables sees it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import lake_batches
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lake_batches import QUERY, rows_of
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from saturnmq import Outgoing
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.spark import lake_sink, to_lake, topic
from saturnmq.spark.delta_table import DeltaTarget
from saturnmq.spark.iceberg_table import IcebergTarget
from saturnmq.spark.lake_files import FileReader
from saturnmq.spark.pipelines import compact, export, lake, ownership, running
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

FORMATS = ["delta", "iceberg"]
NOT_YET_MS = -7_200_000  # negative age: the current hour counts as closed in these tests
STEPS = {"delta": ["created@0", "files@1", "committed@2", "finished@2"],
         "iceberg": ["created@0", "files@1", "commit@1", "committed@2"]}  # fmt: skip


def quietly(_words: str) -> None:
    """Progress callback that does nothing."""


def loaded(folder: Path, name: str = "messages") -> Table:
    """Return the Iceberg table, through a catalog of the test's own."""
    catalog = load_catalog("saturnmq", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    try:
        return catalog.load_table(f"saturnmq.{name}")
    finally:
        catalog.close()  # type: ignore[attr-defined]


def readings(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, table: str = "messages") -> dict[str, pa.Table]:
    """Return what each reader sees of a table."""
    if name == "delta":
        opened = DeltaTable(str(folder / table))
        own, files = opened.to_pyarrow_table(), opened.file_uris()
        arrow: Any = opened.to_pyarrow_dataset()
        frame = polars.scan_delta(str(folder / table)).collect()
    else:
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        iceberg = loaded(folder, table)
        own, files = iceberg.scan().to_arrow(), [task.file.file_path for task in iceberg.scan().plan_files()]
        arrow = iceberg.scan().to_arrow_batch_reader()
        frame = polars.scan_iceberg(iceberg).collect()
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        query = "SELECT * FROM read_parquet($files, hive_partitioning = false)"
        parquet = connection.sql(query, params={"files": files}).to_arrow_table()
        connection.register("rows", arrow)
        by_arrow = connection.sql("SELECT * FROM rows").to_arrow_table()
    return {"library": own, "polars": frame.to_arrow(), "duckdb, parquet": parquet, "duckdb, arrow": by_arrow}


def sorted_rows(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    rows = table.select(columns).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


@pytest.mark.spec("PIP-03")
@pytest.mark.parametrize("name", FORMATS)
def test_table_of_killed_driver_holds_each_row_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at every step between the files of a batch and its checkpoint; read back with nulls, times and odd values."""
    for step in STEPS[name]:
        words = [sys.executable, lake_batches.__file__, name, str(tmp_path), "4", step]
        driver = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert driver.returncode == -signal.SIGKILL, f"{step}: {driver.stderr[-2000:]}"
    target = lake_batches.run(name, tmp_path, 4, lambda _step: None)
    expected = sorted((row for batch in range(4) for row in rows_of(batch)), key=str)
    for reader, rows in readings(name, tmp_path, monkeypatch, "t").items():
        assert sorted_rows(rows, ["n", "tag", "at"]) == expected, reader
    assert target.count() == len(expected) == sum(file.rows for file in target.files())
    assert target.last_batch(QUERY) == 3 and target.last_batch("another query") == -1
    stored = {path.relative_to(tmp_path / "t") for path in (tmp_path / "t").rglob("*.parquet")}
    assert len(stored) > len(target.files()), "files of killed commits are part of no version"
    assert {file.partition["tag"] for file in target.files()} == set(lake_batches.TAGS)


@pytest.mark.parametrize("name", FORMATS)
def test_second_driver_does_not_commit_a_batch_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have loaded the table before either commits the same batch; a batch older than the newest is an old checkpoint."""
    target = lake_batches.run(name, tmp_path, 2, lambda _step: None)
    layout = lake_sink.layout_of(target)
    first, second = (lake_sink.written(lake_batches.Frame(rows_of(2)), layout) for _ in range(2))  # type: ignore[arg-type]
    kind, opener = (DeltaTarget, "_opened") if name == "delta" else (IcebergTarget, "_loaded")
    opened, before = getattr(kind, opener), []

    def overtaken(self: Any, *arguments: Any) -> Any:
        table = opened(self, *arguments)
        if not before:
            before.append(True)
            target.commit(first, QUERY, 2)
        return table

    with monkeypatch.context() as patch:
        patch.setattr(kind, opener, overtaken)
        if name == "delta":
            with pytest.raises(Exception, match="Concurrent transaction failed"):
                target.commit(second, QUERY, 2)
        else:
            target.commit(second, QUERY, 2)  # loads the table again, which holds the batch now
    target.commit(second, QUERY, 2)
    assert target.count() == 3 * lake_batches.ROWS
    with pytest.raises(
        ConfigError, match=rf"holds batch 2 of query {QUERY}, its checkpoint is at batch 1: it is an old copy"
    ):
        lake_sink.append(target, lake_batches.Frame(rows_of(1)), QUERY, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
def test_checkpoint_that_is_not_the_tables_is_refused(name: str, tmp_path: Path) -> None:
    """An old copy of the checkpoint would skip rows, a missing table would begin without the rows of its checkpoint."""
    target = lake_batches.run(name, tmp_path, 3, lambda _step: None)
    checkpoint = tmp_path / "_checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        for batch in range(3):
            (checkpoint / folder / str(batch)).write_text("v1")
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    stream = ownership.Stream(
        "export", ownership.COMMIT_LOGS[name], str(checkpoint), (target.path,), targets={target.path: target}
    )
    assert ownership.check(stream) == ownership.claim(stream, None) == QUERY
    for folder in ("offsets", "commits"):
        (checkpoint / folder / "2").unlink()
    with pytest.raises(ConfigError, match="its last batch is 2, the checkpoint's 1"):
        ownership.check(stream)
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "catalog.db").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=f"t: the table is missing, and .* query {QUERY} with batches up to 1"):
        ownership.check(stream)


def test_catalog_and_namespace_by_options(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    target = IcebergTarget(str(tmp_path / "lake" / "orders"), ("tag",), uri, "sales")
    assert target.layout() is None
    lake_sink.append(target, lake_batches.Frame(rows_of(0)), QUERY, 0)  # type: ignore[arg-type]
    assert target.count() == lake_batches.ROWS and not (tmp_path / "lake" / "catalog.db").exists()
    found = lake_sink.target_at(str(tmp_path / "lake" / "orders"), catalog=uri, namespace="sales")
    assert found is not None and found.count() == lake_batches.ROWS
    with pytest.raises(ConfigError, match=r"orders: there is no such table"):
        lake_sink.layout_of(replace(target, namespace="other"))
    with pytest.raises(
        ConfigError, match=r"option --catalog: the catalog cannot be opened: .*PYICEBERG_CATALOG__NOWHERE__URI"
    ):
        IcebergTarget(str(tmp_path / "t"), catalog="nowhere").layout()


@pytest.mark.parametrize("name", FORMATS)
def test_target_that_does_not_fit_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    target = lake_batches.run(name, tmp_path, 1, lambda _step: None)
    frame: Any = lake_batches.Frame(rows_of(1))
    frame.schema = lake_batches.StructType().add("n", lake_batches.StringType()).add("extra", lake_batches.StringType())
    problems = rf"{tmp_path}/t: the table exists with another schema: it has no column extra string; it has column tag, .* n is"
    with pytest.raises(ConfigError, match=problems) as refusal:
        lake_sink.prepare(replace(target, partition_by=("extra",)), frame)
    assert "\n" not in str(refusal.value) and "its partition columns are tag, not extra; write to another" in str(
        refusal.value
    )
    good: Any = lake_batches.Frame(rows_of(1))
    for columns, why in ((("ta",), "ta is no column; there are n, tag, at"), (("at",), "at is timestamp")):
        with pytest.raises(ConfigError, match=f"partition column {why}"):
            lake_sink.prepare(replace(target, path=str(tmp_path / "new"), partition_by=columns), good)
    assert not (tmp_path / "new").exists()
    stream = ownership.Stream("export", ownership.COMMIT_LOGS[name], str(tmp_path / "_c"), (str(tmp_path / "p"),))
    (tmp_path / "p").write_text("")
    with pytest.raises(ConfigError, match=f"{tmp_path}/p: is a file, not a folder"):
        ownership.check(stream)
    (tmp_path / "p").unlink()
    (tmp_path / "p" / "topic=T").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{tmp_path}/p: the table has files without either, not {stream.form}"):
        ownership.check(stream)
    with pytest.raises(ConfigError, match="the table belongs to a stream, which adds to it"):
        ownership.check_replaceable(str(tmp_path / "t"))


def test_files_of_another_writer_are_read_with_their_partition(tmp_path: Path) -> None:
    """delta-rs merges files without the partition columns; `compact` and `audit` read them so."""
    target = lake_batches.run("delta", tmp_path, 2, lambda _step: None)
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    names = [{"path": file.path, "partition": json.dumps(file.partition)} for file in target.files()]
    batches = list(FileReader(lake_sink.layout_of(target))(iter([pa.RecordBatch.from_pylist(names)])))
    expected = sorted((row for batch in range(2) for row in rows_of(batch)), key=str)
    assert len(names) == 3 and sorted_rows(pa.Table.from_batches(batches), ["n", "tag", "at"]) == expected


def test_file_that_deltalake_cannot_remove_is_not_replaced(tmp_path: Path) -> None:
    """Spark's Delta leaves letters outside ASCII in the log as they are."""
    target = lake_batches.run("delta", tmp_path, 2, lambda _step: None)
    (tmp_path / "t" / "tag=x%2F%C3%BC%3D%252f").rename(tmp_path / "t" / "tag=ü")
    for log in (tmp_path / "t" / "_delta_log").glob("*.json"):
        log.write_text(log.read_text().replace("tag=x%252F%25C3%25BC%253D%25252f", "tag=ü"))
    files = [file for file in target.files() if file.partition["tag"] == lake_batches.TAGS[2]]
    assert len(files) == 4 and target.count() == 2 * lake_batches.ROWS
    with pytest.raises(StoreError, match=r"tag=ü/part-.*deltalake cannot remove; the table is unchanged"):
        target.replace(files, files[:1])
    assert target.count() == 2 * lake_batches.ROWS


def test_damaged_log_or_catalog_is_refused_in_one_line(tmp_path: Path) -> None:
    delta = lake_batches.run("delta", tmp_path, 1, lambda _step: None)
    (tmp_path / "t" / "_delta_log" / "00000000000000000000.json").write_text("no JSON")
    with pytest.raises(ConfigError, match=r"t: the Delta table cannot be read: .+") as refusal:
        delta.layout()
    assert "\n" not in str(refusal.value)
    (tmp_path / "catalog.db").write_text("no database" * 100)
    with pytest.raises(ConfigError, match=r"--catalog: the catalog cannot be opened: .*file is not a database"):
        IcebergTarget(str(tmp_path / "t")).layout()


def test_names_are_checked_before_a_path_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="format=detla: unknown format, there are parquet, delta, iceberg; did you mean delta"
    ):
        to_lake("detla", "./t")
    with pytest.raises(
        ConfigError, match=r'Spark writes it itself, by writeStream.format\("parquet"\); here are delta, iceberg'
    ):
        to_lake("parquet", "./t")
    for namespace in ("../n", "a.b", "1a", "x" * 129):
        with pytest.raises(ConfigError, match=r"option --namespace=.*: must be letters, digits and _"):
            to_lake("iceberg", "./t", namespace=namespace)
    with pytest.raises(ConfigError, match=r"option table=\.\.: must be letters"):
        to_lake("iceberg", "./t/..")
    with pytest.raises(ConfigError, match="a catalog and a namespace are of iceberg tables only"):
        to_lake("delta", "./t", catalog="sqlite:///x.db")
    for name, path in (("delta", f"{tmp_path}/a%20b/t"), ("iceberg", "./what?/t")):
        with pytest.raises(ConfigError, match=rf"a path of a {name} table cannot have % or \? in it"):
            to_lake(name, path)
    with pytest.raises(ConfigError, match="not on a local disk needs option --catalog"):
        to_lake("iceberg", "s3://bucket/t")
    monkeypatch.setattr(lake_sink.importlib.util, "find_spec", lambda _name: None)
    for name, package in lake_sink.PACKAGES.items():
        words = rf"option --format={name}: needs package {package}: \S+ -m pip install '{package}"
        argv = ["--name-servers", "h:1", "--topic", "T", "--lake", "./lake", "--format", name]
        with pytest.raises(ConfigError, match=words):  # exit 2, before a session is started
            running.run(export.PIPELINE, argv)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def filled(server: SyncEmbeddedBroker) -> Callable[[str, int, int], None]:
    """Send messages with and without tags and keys; their bodies are numbers, every tenth is none."""

    def send(topic_name: str, first: int, count: int) -> None:
        with Client(name_servers=server.name_servers) as client, client.producer("lake-tests") as out:
            batch = [
                Outgoing(
                    value=b"%d" % n if n % 10 else b"\xff",
                    tag="ab"[n % 2] if n % 3 else None,
                    keys=[f"k{n}"] if n % 2 else None,
                )
                for n in range(first, first + count)
            ]
            out.send_many(topic_name, batch)

    return send


@pytest.mark.spark
@pytest.mark.spec("PIP-03")
@pytest.mark.parametrize("name", FORMATS)
def test_export_to_table_is_exactly_once_and_compacts(
    name: str, spark: Any, server: SyncEmbeddedBroker, filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch fails between files and commit, and between commit and checkpoint; every reader sees the topic's rows."""
    name_topic = f"lake-{name}"
    conf = export.ExportConf(server.name_servers, str(tmp_path), topics=name_topic, max_offsets=20, format=name)
    target = export.targets_of(conf)[conf.messages]
    filled(name_topic, 0, 50)
    commit = type(target).commit

    def killed_before(*_: Any) -> None:
        raise RuntimeError("killed before the commit")

    def killed_after(*arguments: Any) -> None:
        commit(*arguments)
        raise RuntimeError("killed after the commit")

    for killed in (killed_before, killed_after):
        with monkeypatch.context() as patch:
            patch.setattr(type(target), "commit", killed)
            with pytest.raises(Exception, match="killed"):
                export.run(spark, conf, quietly)
    assert target.count() == 20, "committed, and not in the checkpoint"
    filled(name_topic, 50, 30)
    assert export.run(spark, conf, quietly).rows_in == 60, "the repeated batch is not even read"
    outcome = export.caught_up(conf)
    assert outcome is not None and outcome.rows_in == 0
    source = spark.read.format("rocketmq").options(
        nameServer=server.name_servers, topic=name_topic, columns=lake.SOURCE_COLUMNS
    )
    columns = [part.strip().split(" ")[0] for part in lake.MESSAGES.split(",")]
    expected = sorted_rows(lake.messages_of(source.load()).toArrow(), columns)
    assert len(expected) == 80 and any(row[columns.index("tags")] is None for row in expected)

    def assert_equal_rows() -> None:
        for reader, rows in readings(name, tmp_path, monkeypatch).items():
            assert sorted_rows(rows, columns) == expected, reader

    assert_equal_rows()
    files = target.files()
    done = compact.run(spark, compact.CompactConf(path=conf.messages, closed_after_ms=NOT_YET_MS), quietly)
    by_hour = Counter(tuple(file.partition.items()) for file in files)  # two hours when one has just ended
    merged = {hour: count for hour, count in by_hour.items() if count > 1}
    rows = sum(file.rows for file in files if tuple(file.partition.items()) in merged)
    assert (done.rows_in, done.more["files_before"], done.more["files_after"]) == (
        rows,
        sum(merged.values()),
        len(merged),
    )
    assert rows > 0 and len(target.files()) == len(by_hour)
    assert_equal_rows()
    assert compact.run(spark, compact.CompactConf(path=conf.messages, closed_after_ms=NOT_YET_MS), quietly).rows_in == 0
    assert sorted_rows(lake.table(spark, conf.messages, lake.MESSAGES).toArrow(), columns) == expected, (
        "as audit and replay read"
    )
    assert export.caught_up(conf) is not None
    parquet = export.ExportConf(server.name_servers, str(tmp_path), topics=name_topic)
    assert export.stream_of(parquet).form == ownership.SINK_LOG, "Parquet is the default"
    with pytest.raises(
        ConfigError, match=rf"belongs to query .* with {ownership.COMMIT_LOGS[name]}, not {ownership.SINK_LOG}"
    ):
        export.run(spark, parquet, quietly)


@pytest.mark.spark
@pytest.mark.parametrize("name", FORMATS)
def test_recipe_of_a_stream_adds_each_row_once(
    name: str, spark: Any, server: SyncEmbeddedBroker, filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`to_lake` in foreachBatch, run three times with one checkpoint; with --decode bad rows are a table of the format too."""
    name_topic = f"recipe-{name}"
    filled(name_topic, 0, 30)
    write = to_lake(name, str(tmp_path / "recipe"), partition_by=["tags"])
    for _ in range(2):
        rows = (
            topic(spark, name_topic, name_server=server.name_servers)
            .stream(since=0)
            .select("tags", "queueOffset", "body")
        )
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "_recipe")).foreachBatch(write)
        writer.trigger(availableNow=True).start().awaitTermination()
    target = lake_sink.target_at(str(tmp_path / "recipe"))
    assert target is not None and target.count() == 30
    assert {file.partition["tags"] for file in target.files()} == {"a", "b", None}
    with pytest.raises(ConfigError, match=r"to_lake writes batches of a stream: pass it to writeStream.foreachBatch"):
        write(spark.range(1), 0)
    conf = export.ExportConf(server.name_servers, str(tmp_path), topics=name_topic, schema="n INT", format=name)
    decoded = replace(conf, schema="number INT")
    monkeypatch.setattr(export, "parts_of", lambda c, r, parts=export.parts_of: parts(c, r.withColumn("body", r.body)))
    done = export.run(spark, decoded, quietly)
    assert (done.rows_in, done.bad_rows, done.rows_out) == (30, 30, 0), "a number is no JSON object"
    assert export.targets_of(decoded)[decoded.bad_messages].count() == 30
    with pytest.raises(
        ConfigError, match="messages: the table exists with another schema: its column value is struct<number"
    ):
        export.run(spark, conf, quietly)
