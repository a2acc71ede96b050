"""Fixtures of the Spark tests: one Spark session per process, and one broker in a thread per module."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.gate import workers
from harness.gate.peers import missing
from recorded import SHORT_JAVA
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

# Suited to tables of a few rows: no code generation, no optimising compiler, one partition after a shuffle.
SMALL = {
    "spark.driver.extraJavaOptions": SHORT_JAVA["JDK_JAVA_OPTIONS"],
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.connect.grpc.binding.address": "127.0.0.1",  # of the server that test_spark_connect starts
    "spark.connect.grpc.binding.port": "0",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of tests with a session: it takes 10 s to start, and minutes on a busy machine."""
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(400))


@functools.cache
def why_not() -> str | None:
    """Return why no Spark session can be started here; None if one can (SPK-15)."""
    from saturnmq.protocol.errors import ConfigError
    from saturnmq.spark.java_home import java_home

    try:
        java_home()
    except ConfigError as error:
        return f"Spark needs Java: {error}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked spark without Java, with the reason, before any of their fixtures runs."""
    if item.get_closest_marker("spark") and (reason := why_not()):
        missing(reason)
    if (
        "spark" in getattr(item, "fixturenames", ())
        and workers.scope(item.nodeid, item.config.rootpath) not in workers.SESSIONS
    ):
        pytest.fail("each worker may start a session for this file; write the parameter as `spark: Any`", pytrace=False)


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session writes its events, in one plain file."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[Any]:
    from saturnmq.spark import session

    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": event_log.as_uri()}
    events |= {"spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = session("saturnmq-tests", **SMALL, **events)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[SyncEmbeddedBroker]:
    with SyncEmbeddedBroker() as running:
        yield running


class Sender:
    """Sends numbered messages: body {"n": n}, tag a or b, key the number."""

    def __init__(self, server: SyncEmbeddedBroker) -> None:
        self._server = server

    def __call__(self, topic: str, count: int, first: int = 0) -> None:
        from saturnmq import Outgoing

        with Client(name_servers=self._server.name_servers) as client, client.producer("spark-tests") as out:
            for at in range(first, first + count, 200):
                batch = [
                    Outgoing(value=json.dumps({"n": n}).encode(), tag="ab"[n % 2], keys=[str(n)])
                    for n in range(at, min(at + 200, first + count))
                ]
                out.send_many(topic, batch)


@pytest.fixture
def send(server: SyncEmbeddedBroker) -> Sender:
    return Sender(server)


@pytest.fixture(scope="session", autouse=True)
def closed_connections() -> Iterator[None]:
    """Close the clients of this process at the end: an open socket is a warning, and a warning an error."""
    yield
    from saturnmq.spark.connect import close_all

    close_all()
