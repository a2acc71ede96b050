"""Pipelines whose topics were deleted and created again between two runs: an error that says what to do, then every row."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from saturnmq import Outgoing
from saturnmq.admin.sync import Admin
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.pipelines import collect, export, lake, ownership, pipeline, running, stats, trace
from saturnmq.spark.pipelines.collect import Tick
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

CLUSTER = "DefaultCluster"
DEADLINE_S = 60
OLD = 4  # messages of each topic at first
NEW = {"fewer": 2, "equal": OLD, "more": 7}


def quietly(_words: str) -> None:
    """Progress callback that does nothing."""


class KeptSession:
    """The session of the tests for a pipeline that stops its own at the end."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Do nothing."""


def create(server: SyncEmbeddedBroker, topic: str, bodies: list[bytes], *, again: bool = False) -> list[bytes]:
    """Create a topic of one queue with these messages; again: delete it first."""
    if again:
        with Admin(server.name_servers) as admin:
            admin.topics.delete_from_brokers(topic, CLUSTER)
            admin.topics.delete_from_name_servers(topic, CLUSTER)
    with Client(name_servers=server.name_servers) as client, client.producer("p") as out:
        client.create_topic(topic, queues=1)
        until = time.monotonic() + DEADLINE_S
        while not client.topic_exists(topic):  # the broker registers it with the NameServer
            assert time.monotonic() < until
        out.send_many(topic, [Outgoing(value=body) for body in bodies], queue=MessageQueue(topic, "broker-a", 0))
    return bodies


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, server: SyncEmbeddedBroker, tmp_path: Path) -> Callable[..., int]:
    """A run of export from the command line, in the session that it is given (None: it must not need one)."""

    def run(spark: Any, *more: str) -> int:
        monkeypatch.setattr(running, "session", lambda *_given, **_settings: KeptSession(spark))
        argv = ["--name-servers", server.name_servers, "--topic", ",".join(NEW), "--lake", str(tmp_path), "--quiet"]
        return running.run(pipeline("export"), [*argv, *more])

    return run


@pytest.mark.spark
@pytest.mark.spec("PIP-05")
def test_export_of_recreated_topics_loses_nothing_silently(
    spark: Any,
    server: SyncEmbeddedBroker,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Three topics are created again with fewer, as many and more messages than before."""

    def recreate(topic: str) -> list[bytes]:
        return create(server, topic, [b"new %d" % i for i in range(NEW[topic])], again=True)

    def failed_run() -> str:
        capsys.readouterr()
        assert run(spark) == running.EXIT_DATA_LOSS == 3
        error = capsys.readouterr().err
        assert error.count("saturnmq spark export: ") == 1
        return error

    sent = [body for topic in NEW for body in create(server, topic, [b"old %d" % n for n in range(OLD)])]
    assert run(spark) == 0
    owner = (tmp_path / "messages" / ownership.OWNER_FILE).read_text()
    sent += recreate("equal") + recreate("more")
    reason = r"the checkpoint goes on at offset 4, the queue has 0\.\.{}; .* again"
    assert re.search(f"topic equal, .*{reason.format(4)}.*the same for more/broker-a/0; ", failed_run())
    sent += recreate("fewer")
    error = failed_run()
    assert re.search(f"data loss: topic fewer, .*{reason.format(2)}", error)
    advice = f"; to go on behind the loss run the same command with --fail-on-data-loss false, which records it in {tmp_path}"
    assert error.endswith(f"{advice}/_data_loss\n")
    assert len(parquet.read_table(tmp_path / "_offsets")) == len(NEW) and not (tmp_path / "_data_loss").exists()
    assert run(spark, "--fail-on-data-loss", "false") == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["rows_in"], row["rows_out"], row["lag"], row["data_losses"]) == (13, 13, 0, 3)
    rows = [
        tuple(r) for r in spark.read.parquet(f"{tmp_path}/messages").select("topic", "queue_offset", "body").collect()
    ]
    due = [(topic, i, b"old %d" % i) for topic in NEW for i in range(OLD)]
    due += [(topic, i, b"new %d" % i) for topic, n in NEW.items() for i in range(n)]
    assert sorted((topic, offset, bytes(body)) for topic, offset, body in rows) == sorted(due) and len(due) == len(sent)
    offsets = {(r["batch"] > 0, r["topic"]): r for r in parquet.read_table(tmp_path / "_offsets").to_pylist()}
    for topic, count in NEW.items():
        assert [offsets[(False, topic)][name] for name in ("from_offset", "to_offset", "rows")] == [0, OLD, OLD]
        assert [offsets[(True, topic)][name] for name in ("from_offset", "to_offset", "rows")] == [0, count, count]
    losses = [json.loads(path.read_text()) for path in (tmp_path / "_data_loss").iterdir()]
    assert {(loss["topic"], loss["begin"]) for loss in losses} == {(topic, OLD) for topic in NEW}
    assert (tmp_path / "messages" / ownership.OWNER_FILE).read_text() == owner, "the table's owner goes on"
    assert run(None) == 0, "nothing is new, and no session is needed"


@pytest.mark.spark
@pytest.mark.spec("PIP-05")
def test_trace_and_stats_follow_fail_on_data_loss(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    def ticks(first: int, count: int) -> list[bytes]:
        return [collect.encode_tick(Tick(1000 * n, "T", "", "b", n, 7)) for n in range(first, first + count)]

    def pubs(word: str, count: int) -> list[bytes]:
        return [f"What {word} {n}\x02".encode() for n in range(count)]

    tick_conf = stats.StatsConf(server.name_servers, str(tmp_path), mode="topic", topic="ticks")
    trace_conf = trace.TraceConf(server.name_servers, str(tmp_path), topic="traces")

    def ingest(**more: Any) -> int:
        """Run the stream of both pipelines."""
        traces = trace.build(spark, replace(trace_conf, **more))
        count = stats.ingest(spark, replace(tick_conf, **more), quietly)
        return count + running.watch(traces, quietly)

    create(server, "ticks", ticks(0, 3))
    create(server, "traces", pubs("old", 3))
    assert ingest() == 6
    create(server, "ticks", ticks(3, 3), again=True)  # as many as before
    create(server, "traces", pubs("new", 3), again=True)
    for conf, start in ((tick_conf, stats.ingest), (trace_conf, lambda s, c, q: running.watch(trace.build(s, c), q))):
        with pytest.raises(Exception, match="created again") as error:
            start(spark, conf, quietly)  # type: ignore[operator]
        assert running.cause_of(error.value)[0] == "DataLossError", conf
    assert ingest(fail_on_data_loss=False) == 6
    totals = lake.table(spark, tick_conf.table("stats_ticks"), stats.TICKS).select("total").collect()
    assert sorted(row[0] for row in totals) == list(range(6))
    bad = lake.table(spark, trace_conf.table("trace_events_bad"), trace.BAD_COLUMNS).collect()
    assert sorted((bytes(row["body"]).decode(), *row[:4]) for row in bad) == [
        (f"What {word} {n}", "traces", "broker-a", 0, n) for word in ("new", "old") for n in range(3)
    ]
    assert all(row["error"] for row in bad)
    assert len(list((tmp_path / "_data_loss").iterdir())) == 2


def test_pipelines_accept_fail_on_data_loss_and_durations() -> None:
    argv = ["--name-servers", "h:1", "--lake", "L"]
    for name, more in (("export", ["--topic", "T"]), ("trace", []), ("stats", [])):
        made = pipeline(name)
        parser = running.parser_of(made)
        assert made.conf(parser.parse_args([*argv, *more])).loss_options == {}
        tolerant = made.conf(parser.parse_args([*argv, *more, "--fail-on-data-loss", "false"]))
        assert tolerant.loss_options == {"failOnDataLoss": "false", "dataLossLog": "L/_data_loss"}
        assert replace(tolerant, lake="s3a://b/l").loss_options == {"failOnDataLoss": "false"}
        with pytest.raises(ConfigError, match="option --fail-on-data-loss=no: must be true or false"):
            made.conf(parser.parse_args([*argv, *more, "--fail-on-data-loss", "no"]))
    parser = running.parser_of(pipeline("trace"))

    def durations(*more: str) -> tuple[float, float]:
        conf = trace.conf_of(parser.parse_args([*argv, *more]))
        return conf.slow_ms, conf.wait_s

    assert durations() == (1000, 600)
    assert durations("--slow-ms", "150", "--wait", "90") == (150, 90), "numbers are ms and seconds, as before"
    assert durations("--slow", "1.5s", "--wait", "5min") == (1500, 300)
    assert durations("--wait", "1d") == (1000, 86_400) and durations("--wait", "0.5") == (1000, 0.5)
    for option, text in (("--slow", "fast"), ("--slow", "-5"), ("--wait", "-5"), ("--wait", "soon")):
        with pytest.raises(ConfigError, match=f"option {option}={text}: must be "):
            durations(f"{option}={text}")
    assert export.ExportConf("h:1", "L", topics="T").loss_options == {}
