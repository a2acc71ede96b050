"""Runs for single goals: failed syncs (G04), damaged files (G06), transactions during switches (G09), Apache's groups (G08).

`make chaos FAULT=fsync-eio`, `FAULT=corrupt`, `MODEL=tx`, `PEER=java` select them; chaosrun.py lists the variables.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chaosbrokers import BrokerGroup, FiveBrokers
from chaosdamage import FAULTS_OF_GOALS, TransactionGroup, WithShim, compiler
from chaosfaults import faults_asked_for
from chaosrun import (
    MODEL,
    ONLY,
    PEER,
    RUN_SECONDS_MAX,
    SECONDS,
    SHORT_HEARTBEAT_MS,
    WANTED,
    a_run,
    check_promise,
    long_run,
    tell,
)

from harness.gate.goals import RESOLVED_SECONDS_MAX

OF_GOALS = faults_asked_for(ONLY, SECONDS, FAULTS_OF_GOALS) if MODEL is None and PEER is None else []
OUT_MS_MAX = 1000  # G04
TX_FAULTS = ("leader-kill", "leader-partition", "leader-suspend", "kill-all", "rolling-restart")
TX = [name for name in TX_FAULTS if name in WANTED and MODEL in (None, "tx") and PEER is None]
JAVA_FAULTS = ("noop", "minor-kill", "leader-kill", "leader-suspend", "leader-partition", "kill-all")
JAVA = [name for name in JAVA_FAULTS if name in WANTED and PEER == "java"]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler for the preload shim")


@needs_compiler
@pytest.mark.skipif(bool(WANTED or OF_GOALS), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("G04")
def test_leader_leaves_after_a_failed_sync_and_acknowledges_nothing(tmp_path: Path) -> None:
    found = asyncio.run(a_run(tmp_path / "run", ["fsync-eio"], 0.2, 0.4, SHORT_HEARTBEAT_MS, WithShim))
    assert found["acknowledged"] > 20 and found["out_ms"] > 0


@pytest.mark.long
@pytest.mark.skipif(bool(WANTED or OF_GOALS), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("G06")
def test_damaged_member_is_repaired_by_its_peers_under_load(tmp_path: Path) -> None:
    found = asyncio.run(a_run(tmp_path / "run", ["corrupt"] * 2, 0.5, 0.5, SHORT_HEARTBEAT_MS, BrokerGroup))
    assert found["acknowledged"] > 20 and found["damaged"] > 0


@pytest.mark.skipif(bool(WANTED or OF_GOALS), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("G09", "G07")
def test_half_messages_are_resolved_after_a_leader_kill(tmp_path: Path) -> None:
    found = asyncio.run(a_run(tmp_path / "run", ["leader-kill"], 0.5, 0.8, SHORT_HEARTBEAT_MS, TransactionGroup))
    assert found["acknowledged"] > 20 and 0 < found["resolved_s"] <= RESOLVED_SECONDS_MAX


@needs_compiler
@pytest.mark.skipif("fsync-eio" not in OF_GOALS, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("G04")
def test_failed_syncs_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = long_run("fsync-eio", tmp_path, WithShim, "replicated log, a sync fails", "G04", "G07")
    tell(capsys, f"fsync-eio: left after at most {found['out_ms']} ms", found)
    check_promise(found["out_ms"] <= OUT_MS_MAX, f"out of the group after {found['out_ms']} ms")


@pytest.mark.skipif("corrupt" not in OF_GOALS, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("G06")
@pytest.mark.parametrize("kind", [BrokerGroup, FiveBrokers])
def test_damaged_members_lose_nothing(
    kind: type[BrokerGroup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = {BrokerGroup: "brokers in a group of three", FiveBrokers: "five members"}[kind]
    found = long_run("corrupt", tmp_path, kind, label, "G06", "G07")
    tell(
        capsys,
        f"{label}, corrupt: {found['damaged']} members damaged, {found['refused']} refused to start with it",
        found,
    )
    assert found["damaged"] > 0


@pytest.mark.skipif(not TX, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("G09")
@pytest.mark.parametrize("name", TX)
def test_switch_under_transactional_load(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = long_run(
        name, tmp_path, TransactionGroup, "brokers in a group of three, ordered and transactional", "G09", "G07"
    )
    tell(capsys, f"tx, {name}: resolved within {found['resolved_s']:.1f} s", found)
    check_promise(
        found["resolved_s"] <= RESOLVED_SECONDS_MAX, f"a half message was resolved after {found['resolved_s']:.0f} s"
    )


@pytest.mark.skipif(not JAVA, reason="make chaos PEER=java")
@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
@pytest.mark.spec("G08")
@pytest.mark.parametrize("name", JAVA)
def test_same_faults_on_groups_of_apache_and_ours(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from chaospeers import TheirBrokers

    kinds: dict[str, type[BrokerGroup]] = {"Apache 4.9.7": TheirBrokers, "ours": BrokerGroup}
    for label, kind in kinds.items():
        found: dict[str, Any] = long_run(name, tmp_path / kind.__name__, kind, label, "G08")
        tell(capsys, f"{label}, {name}", found)
        assert found["acknowledged"] > 100
