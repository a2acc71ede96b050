"""Spark Connect: batch, stream, sinks, group offsets and errors of a client whose server runs in the session's JVM."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from code_blocks import blocks_of
from pyspark import cloudpickle

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import local_session
from saturnmq.spark.registration import with_mappers
from saturnmq.spark.session_kind import is_connect
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

CLIENT = Path(__file__).with_name("spark_connect_client.py")
FAILING = """
import sys
from pyspark.sql import SparkSession
from saturnmq.spark.offset_tracker import track
track(SparkSession.builder.remote(sys.argv[1]).getOrCreate(), sys.argv[2])
raise SystemExit("the program failed")
"""


@pytest.fixture
def connect_url(spark: Any) -> Iterator[str]:
    """A Connect server on loopback in the JVM of the shared session, whose settings choose its port."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    module = getattr(service, "MODULE$")
    module.start(spark.sparkContext._jsc.sc())
    yield f"sc://127.0.0.1:{module.localPort()}"
    server = module.server()
    server.shutdownNow()
    server.awaitTermination()


@pytest.mark.spark
def test_connect_client_reads_writes_and_commits(
    connect_url: str, server: SyncEmbeddedBroker, send: Any, tmp_path: Path
) -> None:
    send("connect-in", 40)
    sent = sorted(json.dumps({"n": n}) for n in range(40))
    failing = [sys.executable, "-c", FAILING, connect_url, server.name_servers]
    ended = subprocess.run(failing, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1 and "the program failed" in ended.stderr, "no listener keeps it alive"
    (example,) = [block for block in blocks_of("docs/spark.md") if "sc://" in block.code]
    file = tmp_path / "example.py"
    code = example.file(server.name_servers).replace("sc://localhost:15002", connect_url)
    file.write_text(code.replace('"orders"', '"connect-in"'), encoding="utf-8")
    command = [sys.executable, str(CLIENT), connect_url, server.name_servers, str(tmp_path), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr
    results = {line["step"]: line["value"] for line in map(json.loads, done.stdout.splitlines())}
    assert results["unregistered"] == 40
    assert results["batch"] == results["mapped"] == sent
    assert results["session"] is True and results["settings"] == ["UTC", "3"]
    assert results["tracked"] == [40], "events of the stream reach the client"
    assert results["documented"] == 40
    assert results["sinks"] == [sent, sent, ["0", "1", "2"]]
    for step, cause in (
        ("refused", "saturnmq.protocol.errors.ConfigError: option mapArrow='copy:deepcopy': is not permitted"),
        ("unknown topic", "saturnmq.protocol.errors.ConfigError: option topic: 'nowhere' cannot be read from"),
    ):
        assert cause in results[step] and "Traceback" not in results[step], results[step]
        assert "JVM stacktrace" not in results[step], "session() has switched it off"
    with Client(name_servers=server.name_servers) as client:
        puller = client.puller()
        committed = [puller.committed("connect-group", queue) for queue in puller.queues("connect-in")]
    assert sum(offset for offset in committed if offset) == 40


def test_permitted_mappers_reach_planners_with_the_class() -> None:
    """A Connect server does not have the client's environment. The class itself is still imported by name (SPK-09)."""
    data = cloudpickle.dumps(with_mappers(RocketMQDataSource, ["copy:copy"]))
    assert len(data) < 700 and b"saturnmq.spark.source" in data
    source = pickle.loads(data)
    assert source.__mro__[1] is RocketMQDataSource and source.name() == "rocketmq"
    given = {"nameServer": "h:1", "topic": "T"}
    schema = source(given).schema()
    assert source(given | {"mapArrow": "copy:copy"}).reader(schema)
    for kind, mapper in ((source, "copy:deepcopy"), (RocketMQDataSource, "copy:copy")):
        with pytest.raises(ConfigError, match=f"option mapArrow='{mapper}': is not permitted"):
            kind(given | {"mapArrow": mapper}).reader(schema)
    assert with_mappers(RocketMQDataSource, []) is RocketMQDataSource


class Session:
    """A Connect session that records its settings; it belongs to pyspark's module as far as `is_connect` sees."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.registered: list[str] = []
        self.conf = SimpleNamespace(set=self.settings.__setitem__)
        self.dataSource = SimpleNamespace(register=lambda kind: self.registered.append(kind.name()))


class Builder:
    """A session builder that records what it is given."""

    def __init__(self, conf: dict[str, str]) -> None:
        self.given = conf

    def appName(self, _name: str) -> Builder:
        return self

    def config(self, name: str, value: str) -> Builder:
        self.given[name] = value
        return self

    def getOrCreate(self) -> Session:
        return Session()


@pytest.mark.parametrize("way", ["conf", "environment", "active"])
def test_session_uses_connect_where_it_is_chosen(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a local JVM would be refused by a server, or would change how it runs."""
    given: dict[str, str] = {}
    active = Session() if way == "active" else None
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(local_session, "active_connect_session", lambda: active)
    monkeypatch.setattr(local_session, "SparkSession", SimpleNamespace(builder=Builder(given)))
    monkeypatch.setattr(local_session, "classic_session", lambda *_given: pytest.fail("a JVM would be started"))
    conf = {"spark.sql.shuffle.partitions": "7"}
    if way == "environment":
        monkeypatch.setenv("SPARK_REMOTE", "sc://h:1")
    if way == "conf":
        conf["spark.remote"] = "sc://h:1"
    made: Any = local_session.make_session("app", conf=conf)
    assert given == ({} if active else {"spark.remote": "sc://h:1"}) and (active is None or made is active)
    assert is_connect(made) and made.registered == ["rocketmq", "saturnmq"]
    assert made.settings == {
        "spark.sql.session.timeZone": "UTC", "spark.sql.mapKeyDedupPolicy": "LAST_WIN", "spark.sql.shuffle.partitions": "7",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS", "spark.sql.connect.serverStacktrace.enabled": "false",
    }  # fmt: skip
