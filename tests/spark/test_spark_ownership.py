"""The guard of a lake's tables: one check for every pipeline and file system."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.spark.decision_log import DecisionLog
from saturnmq.spark.local_paths import local_path
from saturnmq.spark.log_scan import log_files
from saturnmq.spark.pipelines import export, lake, ownership, replay, running, stats, trace
from saturnmq.spark.pipelines.ownership import BATCH_FOLDERS, SINK_LOG, HadoopFiles, LocalFiles, Owner, Stream
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

QUERY, OTHER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"


def quietly(_words: str) -> None:
    """Progress callback that does nothing."""


def checkpoint(folder: Path, query: str, batches: int, committed: int | None = None) -> str:
    """Write the checkpoint of a query that has planned and committed so many micro-batches."""
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    for name, count in (("offsets", batches), ("commits", batches if committed is None else committed)):
        (folder / name).mkdir()
        for n in range(count):
            (folder / name / str(n)).write_text("v1\n{}")
    return str(folder)


def table(folder: Path, form: str, batches: int, owner: Owner | None = None) -> str:
    """Write a table with rows of so many micro-batches."""
    for n in range(batches):
        path = folder / (f"_spark_metadata/{n}" if form == SINK_LOG else f"batch={n}/part-0.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")
    if owner is not None:
        LocalFiles().write(f"{folder}/{ownership.OWNER_FILE}", json.dumps(vars(owner)))
    return str(folder)


@pytest.mark.parametrize("form", [SINK_LOG, BATCH_FOLDERS])
def test_table_is_refused_to_every_other_writer(form: str, tmp_path: Path) -> None:
    mine = checkpoint(tmp_path / "_checkpoint", QUERY, 3)
    owner = Owner("export", form, QUERY, mine)
    rows = table(tmp_path / "t", form, 3, owner)
    stream = Stream("export", form, mine, (rows,), options="name it by --checkpoint")
    assert ownership.check(stream) == QUERY
    lost = replace(stream, checkpoint=str(tmp_path / "lost"))
    holder = f"{rows}: .* query {QUERY} of pipeline export, checkpoint {mine}"
    with pytest.raises(ConfigError, match=f"{holder}; checkpoint {lost.checkpoint} holds no query; .*--checkpoint"):
        ownership.claim(lost, None)
    assert not Path(lost.checkpoint).exists(), "a refused run changes nothing"
    other = replace(stream, checkpoint=checkpoint(tmp_path / "other", OTHER, 9))
    with pytest.raises(ConfigError, match=f"{holder}; .* holds query {OTHER}"):
        ownership.check(other)
    changed = replace(stream, form=BATCH_FOLDERS if form == SINK_LOG else SINK_LOG)
    with pytest.raises(ConfigError, match=f"with {form}, not {changed.form}; .* holds query {QUERY}"):
        ownership.check(changed)
    table(tmp_path / "t", form, 5)  # the checkpoint was restored from a backup
    with pytest.raises(ConfigError, match=f"its last batch is 4, the checkpoint's 2.* belongs to query {QUERY}"):
        ownership.check(stream)
    with pytest.raises(ConfigError, match=f"the table belongs to query {QUERY} of pipeline export, .*--lake"):
        ownership.check_replaceable(rows)
    shutil.rmtree(rows)
    with pytest.raises(
        ConfigError, match=f"{rows}: the table is missing, and .* query {QUERY} with batches up to 2.*delete"
    ):
        ownership.check(stream)


@pytest.mark.parametrize("form", [SINK_LOG, BATCH_FOLDERS])
def test_table_without_owner_is_adopted_only_by_its_checkpoint(form: str, tmp_path: Path) -> None:
    """Tables of versions without the owner's file."""
    mine = checkpoint(tmp_path / "_checkpoint", QUERY, 3)
    rows = table(tmp_path / "t", form, 3)
    stream = Stream("export", form, mine, (rows,))
    lost = replace(stream, checkpoint=str(tmp_path / "lost"))
    with pytest.raises(ConfigError, match=r"its last batch is 2, the checkpoint's -1.* query without id"):
        ownership.claim(lost, None)
    with pytest.raises(ConfigError, match=f"the table has {form}, not "):
        ownership.check(replace(stream, form=BATCH_FOLDERS if form == SINK_LOG else SINK_LOG))
    with pytest.raises(ConfigError, match="the table belongs to a stream"):
        ownership.check_replaceable(rows)
    ownership.claim(stream, None)
    owner = json.loads((tmp_path / "t" / "_saturnmq.json").read_text())
    assert owner == {"pipeline": "export", "form": form, "query": QUERY, "checkpoint": mine, "version": 1}
    ownership.claim(stream, None)


def test_table_of_newer_version_or_without_a_stream_is_refused(tmp_path: Path) -> None:
    mine = checkpoint(tmp_path / "_checkpoint", QUERY, 1)
    rows = table(tmp_path / "t", SINK_LOG, 1, Owner("export", SINK_LOG, QUERY, mine, 2))
    stream = Stream("export", SINK_LOG, mine, (rows,))
    for text in (None, "{}", "no JSON"):
        if text is not None:
            (tmp_path / "t" / ownership.OWNER_FILE).write_text(text)
        with pytest.raises(ConfigError, match=r"made by another version of SaturnMQ; upgrade this one"):
            ownership.check(stream)
        with pytest.raises(ConfigError, match="made by another version"):
            ownership.check_replaceable(rows)
    whole = tmp_path / "whole" / "topic=T" / "part-0.parquet"
    whole.parent.mkdir(parents=True)
    whole.write_text("")
    loose = replace(stream, tables=(str(tmp_path / "whole"),))
    with pytest.raises(
        ConfigError, match=f"{tmp_path}/whole: the table has files without either, not {SINK_LOG}.*{QUERY}"
    ):
        ownership.check(loose)
    ownership.check_replaceable(str(tmp_path / "whole"))
    killed = checkpoint(tmp_path / "killed", OTHER, 1, committed=0)  # in its first batch, by a version without owners
    assert ownership.check(replace(loose, checkpoint=killed)) == OTHER


def test_replay_with_chunks_and_without_their_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = replay.ReplayConf("h:1", str(tmp_path), dst="copy")
    monkeypatch.setattr(replay, "build", lambda *_: None)
    monkeypatch.setattr(replay, "states", lambda *_: {0: {"sending", "done"}})
    with pytest.raises(
        ConfigError, match=f"run {conf.run_id} has sent 1 chunks, .*{conf.run_id}.json, is missing.*--since"
    ):
        replay.run(None, conf, quietly)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}", "{}"])
def test_every_name_of_a_local_folder_is_guarded(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a b%20é"
    rows = table(folder / "t", SINK_LOG, 3, Owner("export", SINK_LOG, OTHER, "elsewhere"))
    stream = Stream("export", SINK_LOG, form.format(folder / "_checkpoint"), (form.format(rows),))
    with pytest.raises(ConfigError, match=f"it belongs to query {OTHER}"):
        ownership.claim(stream, None)
    with pytest.raises(ConfigError, match="which adds to it"):
        ownership.check_replaceable(form.format(rows))
    ownership.claim(replace(stream, tables=(form.format(folder / "fresh"),)), None)
    assert (folder / "_checkpoint" / "metadata").exists() and (folder / "fresh" / ownership.OWNER_FILE).exists()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "nothing beside the folder"


def test_path_of_another_file_system_is_not_local() -> None:
    for path in ("hdfs:/lake", "hdfs://n:1/lake", "s3a://b/lake", "file://host/lake"):
        assert local_path(path) is None
        with pytest.raises(ConfigError, match=f"option decisionLog='{path}': must be a folder"):
            DecisionLog(path)
    with pytest.raises(StoreError, match=r"^hdfs:/lake: Unable to load \w+$|^hdfs:/lake: .* failed$"):
        log_files("hdfs:/lake")
    with pytest.raises(ConfigError, match="option path='file://host/lake': it holds no archive"):
        log_files("file://host/lake")
    assert local_path("runs/12:30/lake") == Path("runs/12:30/lake") and local_path("12:30") == Path("12:30")


def test_processes_that_claim_at_once_agree_on_one_query(tmp_path: Path) -> None:
    """Both have seen no query before either writes; the second adopts what the first has written."""
    stream = Stream("export", SINK_LOG, str(tmp_path / "_checkpoint"), (str(tmp_path / "t"),))

    class Overtaken(LocalFiles):
        def create(self, path: str, text: str) -> None:
            super().create(path, json.dumps({"id": OTHER}))
            super().create(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ownership, "files_of", lambda *_: Overtaken())
        ownership.claim(stream, None)
    assert ownership.check(stream) == OTHER
    assert json.loads((tmp_path / "t" / ownership.OWNER_FILE).read_text())["query"] == OTHER
    assert sorted(path.name for path in (tmp_path / "_checkpoint").iterdir()) == ["metadata"]

    def without_links(*_arguments: object) -> None:
        raise PermissionError("Operation not permitted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "hardlink_to", without_links)
        LocalFiles().create(f"{tmp_path}/linked", "text")
    assert LocalFiles().read(f"{tmp_path}/linked") == "text"


def test_metadata_of_a_killed_or_foreign_writer_is_handled(tmp_path: Path) -> None:
    stream = Stream("export", SINK_LOG, str(tmp_path / "_checkpoint"), (str(tmp_path / "t"),))
    metadata = tmp_path / "_checkpoint" / "metadata"
    metadata.parent.mkdir()
    metadata.write_text("")  # created, and not yet written
    ownership.claim(stream, None)
    assert ownership.check(stream) == json.loads(metadata.read_text())["id"]
    for text in ('{"id": "1', "[]", "{}", "null"):
        metadata.write_text(text)
        with pytest.raises(ConfigError, match=r"metadata: .* is no metadata of a streaming query; restore"):
            ownership.claim(stream, None)


@pytest.mark.spark
def test_pipelines_refuse_tables_of_others_on_paths_and_uris(
    spark: Any, server: SyncEmbeddedBroker, send: Callable[..., None], tmp_path: Path
) -> None:
    """Real runs: export, files, trace and stats; the owner's file through the Hadoop file system, too."""
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("owned", queues=1)
        client.create_topic("ticks", queues=1)
    send("owned", 10)
    folder = tmp_path / "lake"
    conf = export.ExportConf(server.name_servers, str(folder), topics="owned")
    assert export.run(spark, conf, quietly).rows_out == 10
    query = json.loads((folder / "_checkpoint" / "metadata").read_text())["id"]
    assert f'"query": "{query}"' in (folder / "messages" / ownership.OWNER_FILE).read_text(), "Spark adopted the id"
    conf = replace(conf, lake=folder.as_uri(), checkpoint_path=str(folder / "_checkpoint"))  # the same tables, as a URI
    send("owned", 5, 10)
    again = export.run(spark, conf, quietly)
    assert again.rows_out == 5 and "another writer" not in again.message
    elsewhere = replace(conf, checkpoint_path=f"{conf.lake}/elsewhere")
    with pytest.raises(ConfigError, match=rf"belongs to query {query} of pipeline export.*elsewhere holds no query"):
        export.run(spark, elsewhere, quietly)
    with pytest.raises(ConfigError, match=rf"belongs to query {query} .*with {SINK_LOG}, not {BATCH_FOLDERS}"):
        export.run(spark, replace(conf, schema="n INT"), quietly)
    with pytest.raises(ConfigError, match=rf"the table belongs to query {query} .*replacing it would lose"):
        lake.replace_table(spark.range(1), conf.messages)
    # what a batch append gives: files that Spark does not show, and that readers of folders do
    rows = spark.read.parquet(conf.messages).limit(3)
    rows.coalesce(1).write.mode("append").partitionBy(*lake.PARTITIONS).parquet(conf.messages)
    assert spark.read.parquet(conf.messages).count() == 15
    assert dataset.dataset(folder / "messages", format="parquet", partitioning="hive").count_rows() == 18
    assert (
        "another writer has appended files, which readers in Spark do not see"
        in export.run(spark, conf, quietly).message
    )
    streams: dict[str, Callable[[], Any]] = {
        "trace": lambda: running.watch(
            trace.build(spark, trace.TraceConf(server.name_servers, conf.lake, topic="ticks")), quietly
        ),
        "stats": lambda: stats.ingest(spark, stats.StatsConf(server.name_servers, conf.lake, topic="ticks"), quietly),
    }
    for name, start in streams.items():
        start()
        shutil.rmtree(folder / f"_checkpoint_{name}")
        with pytest.raises(ConfigError, match=rf"of pipeline {name}, checkpoint .* holds no query; .*--lake"):
            start()
    configuration = spark._jsc.hadoopConfiguration()
    assert isinstance(ownership.files_of("/lake", spark), LocalFiles)
    before = configuration.get("fs.defaultFS")
    configuration.set("fs.defaultFS", "hdfs://127.0.0.1:1")  # where Spark writes plain paths then
    try:
        assert isinstance(ownership.files_of("/lake", spark), HadoopFiles)
        assert isinstance(ownership.files_of("file:/lake", spark), LocalFiles)
    finally:
        configuration.set("fs.defaultFS", before)
    hadoop, local = HadoopFiles(spark), LocalFiles()
    hadoop.create(f"{tmp_path}/h/new.json", "first")
    assert local.read(f"{tmp_path}/h/new.json") == "first"
    for folder_name in (str(tmp_path / "h"), (tmp_path / "h").as_uri()):
        hadoop.write(f"{folder_name}/a.json", "é")
        hadoop.create(f"{folder_name}/a.json", "of a second process")
        assert hadoop.read(f"{folder_name}/a.json") == local.read(f"{folder_name}/a.json") == "é"
        assert hadoop.read(f"{folder_name}/b") is local.read(f"{folder_name}/b") is None
        assert "a.json" in hadoop.names(folder_name) and hadoop.names(f"{folder_name}/none") == []
        local.write(f"{folder_name}/a.json", "again")
        hadoop.write(f"{folder_name}/a.json", "last")
        assert local.read(f"{folder_name}/a.json") == "last"
