"""Ticker: an idle member sleeps until its next timer, and no timer fires late because a tick was skipped."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from harness.raftsim.group import Cluster
from harness.systemsim.loop import Process, SimLoop
from saturnmq.net import NetSettings
from saturnmq.raft.core.actions import Action, Role
from saturnmq.raft.core.messages import Code
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import NEVER
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.settings import RaftSettings
from saturnmq.raft.ticker import AFTER_INPUT_MS, SLEEP_MS_MAX, TICK_MS, Ticker

TICKS_PER_SECOND_MAX = 12  # heartbeats 0.5, committed index 1, preferred-leader check 1, each with responses


@pytest.mark.spec("DL-E02")
@pytest.mark.parametrize("batches", [False, True])
def test_idle_member_ticks_only_when_timer_is_due(monkeypatch: pytest.MonkeyPatch, batches: bool) -> None:
    counted: Counter[str] = Counter()
    tick = Node.tick

    def counting(node: Node, now_ms: int) -> list[Action]:
        counted[node.self_id] += 1
        return tick(node, now_ms)

    monkeypatch.setattr(Node, "tick", counting)
    cluster = Cluster(3, settings=CoreSettings(file_bytes=2048, batch_push_auto=batches), tick_ms=TICK_MS)
    cluster.start()
    cluster.events.run_until(20_000)
    leader = cluster.leader
    assert leader is not None
    cluster.propose(leader, 3)
    cluster.events.run_until(30_000)
    assert {member.committed for member in cluster.members.values()} == {leader.log.live.end_index}
    counted.clear()
    cluster.events.run_until(90_000)
    assert cluster.leader is leader and sorted(counted) == ["n0", "n1", "n2"]
    assert max(counted.values()) <= 60 * TICKS_PER_SECOND_MAX
    roles = Counter(member.role for member in cluster.members.values())
    assert roles == {Role.LEADER: 1, Role.FOLLOWER: 2}


@pytest.mark.spec("DL-E02")
@pytest.mark.parametrize("seed", range(1, 7))
def test_tick_before_due_time_has_no_effect(seed: int) -> None:
    """Runs that always tick, and runs that tick only when `next_due_ms` is reached, do the same at the same times."""
    digests = set()
    for always in (False, True):
        settings = CoreSettings(
            file_bytes=2048,
            batch_push=seed % 4 == 1,
            batch_push_auto=seed % 4 == 2,
            push_pending_max=3 if seed % 3 == 0 else 1000,
            preferred_leaders=("n1",) if seed % 5 == 2 else (),
        )
        cluster = Cluster(seed, members=5 if seed % 6 == 4 else 3, settings=settings)
        cluster.tick_always = always
        cluster.trace.hashes = True
        cluster.run(faulty_ms=10_000, calm_ms=15_000)
        digests.add(cluster.trace.digest())
    assert len(digests) == 1


async def passed(loop: SimLoop, seconds: float) -> None:
    """Advance virtual time."""
    event = asyncio.Event()
    loop.call_later(seconds, event.set)
    await event.wait()


class Core:
    """Records the times of its ticks; due_ms is when the next one is due."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.began = loop.time()
        self.due_ms = 0
        self.ticked_ms: list[int] = []
        self.ticker = Ticker(self.tick, lambda: self.due_ms - self.now_ms)

    @property
    def now_ms(self) -> int:
        return round((self.loop.time() - self.began) * 1000)

    def tick(self) -> None:
        self.ticked_ms.append(self.now_ms)

    async def until(self, ms: int) -> list[int]:
        """The times of the ticks between now and then."""
        self.ticked_ms.clear()
        await passed(self.loop, ms / 1000 - (self.loop.time() - self.began))
        return list(self.ticked_ms)


@pytest.mark.spec("DL-E02")
def test_ticker_follows_core_timers_and_ticks_after_every_input() -> None:
    loop = SimLoop(random.Random(1))

    async def work() -> None:
        core = Core(loop)
        core.ticker.start()
        assert core.ticked_ms == [0]
        assert await core.until(45) == [10, 20, 30, 40]  # work is due all the time
        core.due_ms = 445
        assert await core.until(400) == [50]
        assert await core.until(446) == [445]
        core.due_ms = NEVER
        assert await core.until(1450) == [455]
        assert await core.until(1460) == [455 + SLEEP_MS_MAX]
        core.due_ms = 1700
        assert await core.until(1550) == []  # the ticker has not seen the new timer
        core.ticker.wake()
        assert await core.until(1555) == [1550 + AFTER_INPUT_MS]
        assert await core.until(1705) == [1700]
        core.due_ms = NEVER
        assert await core.until(1800) == [1710]
        core.ticker.wake()
        core.ticker.wake()
        assert await core.until(1804) == [1800 + AFTER_INPUT_MS]
        core.ticker.wake()
        assert await core.until(1850) == [1810 + AFTER_INPUT_MS]  # the ticks stay TICK_MS apart
        core.ticker.stop()
        assert await core.until(9000) == []

    loop.run_until_complete(loop.run_as(Process("p", "127.0.0.1"), work()))
    loop.close()


@pytest.mark.spec("DL-E02", "DL-S04")
def test_idle_member_wakes_rarely_and_syncs_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop(random.Random(1))
    rounds: Counter[str] = Counter()
    prepare, tick = LedgerFiles.prepare, Node.tick

    def prepared(files: LedgerFiles) -> None:
        rounds["housekeeping"] += 1
        prepare(files)

    def ticked(node: Node, now_ms: int) -> list[Action]:
        rounds["tick"] += 1
        return tick(node, now_ms)

    monkeypatch.setattr(LedgerFiles, "prepare", prepared)
    monkeypatch.setattr(Node, "tick", ticked)

    async def work() -> None:
        settings = RaftSettings(enabled=True, group="g", peers_text="n0-127.0.0.1:40911", self_id="n0")
        member = RaftMember(
            settings,
            settings.folder(tmp_path),
            NetSettings(),
            file_bytes=65536,
            sync_before_ack=False,
            clock_ms=lambda: int(loop.time() * 1000),
        )
        await member.start()
        await passed(loop, 30)
        assert member.leads
        rounds.clear()
        await passed(loop, 60)
        assert max(rounds.values()) <= 60 * 3
        for body in (b"first entry, synced at once", b"x"):
            assert (await member.append([body])).code == Code.SUCCESS
        assert member.files.dirty
        await passed(loop, 2 * settings.flush_interval_ms / 1000)
        assert not member.files.dirty
        await member.stop()

    loop.run_until_complete(loop.run_as(Process("p", "127.0.0.1"), work()))
    loop.close()


def test_ticker_continues_after_failed_tick_and_can_stop_in_a_tick() -> None:
    loop = SimLoop(random.Random(1))
    raised: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))

    async def work() -> None:
        core = Core(loop)
        error = ValueError("a defect of the core")

        def tick() -> None:
            core.tick()
            if core.now_ms == 20:
                raise error
            if core.now_ms == 40:
                core.ticker.stop()

        core.ticker = Ticker(tick, lambda: 0)
        core.ticker.start()
        assert core.ticked_ms == [0]
        assert await core.until(100) == [10, 20, 30, 40]
        assert raised == [error]

    loop.run_until_complete(loop.run_as(Process("p", "127.0.0.1"), work()))
    loop.close()
