"""Whose answers a new leader without whole tables waits for: those of a majority of the voters."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq.broker import dledger_sync
from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.net import NetSettings
from saturnmq.store import StateFile

DEADLINE_SECONDS = 45.0
LEARNERS = {"n3", "n4"}


class ScriptedCopy(LeaderCopy):
    """A new leader n0, one of three voters beside two learners; all that answer are as incomplete. rounds: who answers in each."""

    def __init__(self, folder: Path, rounds: list[set[str]]) -> None:
        group = SimpleNamespace(
            raft=SimpleNamespace(self_id="n0"),
            voters=("n0", "n1", "n2"),
            peers=dict.fromkeys(("n0", "n1", "n2", *LEARNERS), ""),
            dispatch=SimpleNamespace(gap=False),
        )
        table = cast("Any", SimpleNamespace())
        super().__init__(
            cast("Any", group), table, table, table, table, table, "b", lambda: 0, NetSettings(),
            lambda name: StateFile(folder / name), None,
        )  # fmt: skip
        self.rounds = rounds

    async def _copy_others(self, unresponsive: object, patience_ms: int) -> None:
        self._answered |= self.rounds.pop(0)

    async def _limit(self) -> None:
        """There are no queues."""


@pytest.mark.spec("DL-X18", "DL-X21")
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param([{"n1"}], id="learners down"),
        pytest.param([LEARNERS, LEARNERS, {"n2"}], id="voters late"),
    ],
)
@pytest.mark.loop(real=True)
async def test_new_leader_asks_until_a_majority_of_the_voters_answered(
    rounds: list[set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners that are down must not keep it from serving, nor may those that answer stand for a voter with whole tables."""
    monkeypatch.setattr(dledger_sync, "INCOMPLETE_SECONDS", 0)
    copy = ScriptedCopy(tmp_path, rounds)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await copy.copy_last(lambda: 0, 0, lambda: True)
    assert copy.rounds == []


@pytest.mark.spec("DL-X18")
async def test_follower_copies_from_its_leader_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache RocketMQ copies every 10 s."""
    clock = asyncio.get_running_loop().time
    copied: list[float] = []
    five = asyncio.Event()

    async def copy(leader: str, timeout_ms: int) -> bool:
        copied.append(clock())
        if len(copied) == 5:
            five.set()
        return True

    follower = ScriptedCopy(tmp_path, [])
    monkeypatch.setattr(follower, "_followed", lambda: "n1")
    monkeypatch.setattr(follower, "copy", copy)
    began = clock()
    await follower.restart()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await five.wait()
    await follower.close()
    assert [at - began for at in copied] == pytest.approx([0, 1, 2, 3, 4], abs=0.1), "at once, then every second"
