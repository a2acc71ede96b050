"""Peers of the interop tests: Apache RocketMQ from Maven jars and SaturnMQ as a process.

Every scenario runs against both: against Apache RocketMQ to validate the scenario, against SaturnMQ to validate our
implementation. `make interop` runs each kind of peer and each direction once; `make interop-full` runs everything. What only the
latter runs is marked `interop_full`: repetitions with other parameters, long runs, and of the scenarios marked `control(peer)` the
runs against that peer (Apache's client against Apache's broker, our client against our broker).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apache
import javatools
import pytest
import saturn
from peers import Peer

from harness.gate.peers import missing

os.environ[javatools.SHORT_RUNS] = "1"
HERE = Path(__file__).resolve().parent
SETTINGS = {"enablePropertyFilter": "true", "transactionCheckInterval": "1000", "transactionTimeOut": "1000"}

# Scenarios that our broker rejects because a feature is missing. The xfail is strict: remove a row once its scenario passes.
NOT_YET = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make interop-full` runs. The first test of a process may wait for jars."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        control = item.get_closest_marker("control")
        if control is not None and _parameters(item).get("peer") in control.args:
            item.add_marker(pytest.mark.interop_full)
    may_be_first = {item.path: item for item in reversed(ours)}
    may_be_first_in_core = {
        item.path: item for item in reversed(ours) if item.get_closest_marker("interop_full") is None
    }
    for item in ours:
        item.add_marker(pytest.mark.interop)
        is_first = item in (may_be_first[item.path], may_be_first_in_core.get(item.path))
        item.add_marker(pytest.mark.timeout(540 if is_first else 180))
        if item.name in NOT_YET:
            item.add_marker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=NOT_YET[item.name]))


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None else {}


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Skip every test here if Java or Maven is missing; otherwise fetch the jars and compile our programs."""
    reason = javatools.why_not()
    if reason:
        missing(reason.removeprefix("skipped: "))
    javatools.classpath()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, java: None) -> Path:
    """ROCKETMQ_HOME of the Java clients."""
    return javatools.write_home(tmp_path_factory.mktemp("java-home"))


@pytest.fixture(scope="session")
def apache_peer(java: None) -> Iterator[apache.ApacheCluster]:
    with apache.ApacheCluster(settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def saturn_peer() -> Iterator[saturn.SaturnCluster]:
    with saturn.SaturnCluster(settings=SETTINGS) as cluster:
        yield cluster
        assert cluster.broker is not None
        assert cluster.broker.process.poll() is None, "SaturnMQ ended during the tests:\n" + cluster.broker.output


@pytest.fixture(params=["apache", "saturn"])
def peer(request: pytest.FixtureRequest) -> Peer:
    """The server of a scenario: Apache RocketMQ, then SaturnMQ."""
    cluster: Peer = request.getfixturevalue(f"{request.param}_peer")
    return cluster
