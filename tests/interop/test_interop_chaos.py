"""The faults of tests/chaos on plain brokers, on a mixed group and on a group of Apache brokers: one script for all of them.

Short runs by default; CHAOS_SECONDS, CHAOS_FAULT and CHAOS_SEED work as for `make chaos`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chaosbrokers import BrokerGroup, PlainBroker, PlainSyncBroker
from chaospeers import HEARTBEAT_MS, MixedBrokers, TheirBrokers
from chaosrun import ONLY, RUN_SECONDS_MAX, SECONDS, SHORT_HEARTBEAT_MS, a_run, tell

HEALTHY_SECONDS = 3.0
FAULTY_SECONDS = max(12.0, SECONDS / 2)  # Apache's timers need up to 10 s
KINDS: dict[str, type[BrokerGroup]] = {
    "two of Apache and one of ours": MixedBrokers,
    "Apache": TheirBrokers,
}


@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize("kind", [pytest.param(PlainBroker, marks=pytest.mark.interop_full), PlainSyncBroker])
def test_plain_broker_killed_and_frozen_loses_nothing(
    kind: type[BrokerGroup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("fixed-kill", "fixed-suspend")
    found = asyncio.run(a_run(tmp_path / "run", names, 0.5, 0.5, SHORT_HEARTBEAT_MS, kind))
    tell(capsys, kind.__name__, found)
    assert found["acknowledged"] > 100
    assert found["problems"] == []


@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.interop_full if kind == "Apache" else ()) for kind in KINDS]
)
def test_group_with_apache_members_survives_a_leader_kill(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = ONLY or "leader-kill"
    found = asyncio.run(a_run(tmp_path / "run", [fault], HEALTHY_SECONDS, FAULTY_SECONDS, HEARTBEAT_MS, KINDS[kind]))
    tell(capsys, f"{kind}, {fault}", found)
    assert found["acknowledged"] > 100
    assert ONLY or found["rto_ms"][0] > 0, "the kill was not felt"
