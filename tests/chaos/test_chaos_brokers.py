"""Three broker processes of a DLedger group, two NameServers and our clients under faults; long runs only (`make chaos`).

chaosrun.py lists the environment variables. Disk faults are covered by the runs of the bare ledger.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chaosbrokers import BrokerGroup, outcome_of
from chaosfaults import FAULTS, FIVE
from chaosrun import HEARTBEAT_MS, LONG, RUN_SECONDS_MAX, a_run, check_promise, long_run, tell

from harness.gate.goals import RTO_P95_MS, rows
from saturnmq import Client
from saturnmq.broker import BrokerSettings
from saturnmq.errors import BrokerNotExist, CallTimeout, ConnectFailed, SendFailed
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.testing import EmbeddedBroker

BROKER_RTO_MAX_MS = 10_000
KILLS = 12
NAMES = [name for name in FAULTS if name in LONG and name not in FIVE and not name.startswith("disk")]


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-01", "CHA-03", "CHA-04", "CHA-08", "G01", "G07")
@pytest.mark.parametrize("name", NAMES)
def test_broker_group_loses_nothing_under_a_fault(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = long_run(name, tmp_path, BrokerGroup, "brokers in a group of three", "G01", "G07")
    tell(capsys, f"brokers, {name}", found)
    assert found["acknowledged"] > 0
    check_promise(max(found["rto_ms"]) <= BROKER_RTO_MAX_MS, f"RTO {max(found['rto_ms']):.0f} ms")


@pytest.mark.skipif("leader-kill" not in LONG, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-07")
def test_broker_group_recovers_in_time_after_leader_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RTO, from the first unsuccessful send to the next success, over many kills."""
    with rows.one("brokers in a group of three", f"leader-kill x {KILLS}", ("G07",)):
        kills = asyncio.run(a_run(tmp_path / "run", ["leader-kill"] * KILLS, 3.0, 3.0, HEARTBEAT_MS, BrokerGroup))
    tell(capsys, f"brokers, {KILLS} leaders killed", kills)
    p95 = sorted(kills["rto_ms"])[int(KILLS * 0.95)]
    check_promise(p95 <= RTO_P95_MS, f"RTO p95 {p95:.0f} ms")


@pytest.mark.spec("PR-11", "PR-22")
def test_client_with_explicit_queues_refreshes_routes() -> None:
    """Regression: topics that were only addressed by queue were not polled, so that the client kept asking a demoted master."""

    async def work() -> None:
        async with EmbeddedBroker() as server:
            queue = MessageQueue("T", server.broker.settings.broker_name, 0)
            for sends in (True, False):
                async with Client(name_servers=server.name_servers) as client:
                    await client.create_topic("T", queues=1)
                    if sends:
                        async with client.producer("p") as producer:
                            await producer.send("T", b"x", queue=queue)
                    else:
                        assert await client.puller().max_offset(queue) == 1
                    assert "T" in client._core.routes.topics

    asyncio.run(work())


@pytest.mark.spec("CHA-05")
async def test_sends_are_repeated_and_numbered_by_the_harness_alone(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, size=3, heartbeat_ms=500, seed=1)
    async with EmbeddedBroker(settings=BrokerSettings(broker_name="g")) as server:
        group.at = server.name_servers
        await group.start_clients()
        try:
            await group.send("p0.k0", "first", "k0")
            before = server.tap.count
            server.tap.answer_next({RequestCode.SEND_MESSAGE_V2}, ResponseCode.SYSTEM_BUSY, "busy", 2)
            await group.send("p0.k0", "second", "k0")
        finally:
            await group.stop_clients()
        bodies = [request.body for request in server.tap.since(before) if request.code == RequestCode.SEND_MESSAGE_V2]
    assert [body.decode().rstrip(".") for body in bodies] == ["second#1", "second#2", "second#3"]
    sends = [(op["messages"][0][0], op["attempt"], op["result"]) for op in group.history]
    assert sends == [("first", 1, "ok"), ("second", 1, "fail"), ("second", 2, "fail"), ("second", 3, "ok")]
    assert [op["messages"][0][1] for op in group.history] == [0, None, None, 1]


@pytest.mark.spec("CHA-05", "CHA-06")
def test_outcome_of_library_errors() -> None:
    def failed(cause: SaturnError, attempts: int = 1) -> SendFailed:
        error = SendFailed(
            topic="t", group="g", attempts=attempts, elapsed_ms=1, brokers=["b"], cause=cause, outcome_unknown=True
        )
        error.__cause__ = cause
        return error

    assert outcome_of(failed(response_error(14, "no quorum"))) == "fail"
    assert outcome_of(failed(response_error(14, "no quorum"), attempts=2)) == "unknown", "of the first nothing is known"
    assert outcome_of(failed(response_error(1, "busy"))) == "unknown"
    assert outcome_of(failed(CallTimeout("late"))) == "unknown"
    assert outcome_of(failed(ConnectFailed("lost", sent=True))) == "unknown"
    assert outcome_of(failed(ConnectFailed("refused"))) == outcome_of(BrokerNotExist("gone")) == "fail"
