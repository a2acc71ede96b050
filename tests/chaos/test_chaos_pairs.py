"""A master and its slave under faults: with SYNC_MASTER and SYNC_FLUSH nothing acknowledged is lost with either disk.

With ASYNC_MASTER exactly that is lost which the slave had not received. chaosrun.py lists the environment variables of
`make chaos`; CHAOS_FAULT=pair-master-disk-lost runs one fault.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chaosbrokers import COMMIT, TOPIC
from chaosfaults import FAULTS_OF_PAIRS, faults_asked_for
from chaosgroup import DEADLINE_SECONDS, Group
from chaospair import Pair, ShortPair, ShortSyncPair, SyncPair
from chaosrun import (
    CAUGHT_UP_SECONDS,
    LONG,
    MODEL,
    ONLY,
    PEER,
    RUN_SECONDS_MAX,
    SECONDS,
    SHORT_HEARTBEAT_MS,
    a_run,
    check_promise,
    children,
    long_run,
    tell,
)

from longruns import long_but

OF_PAIRS = faults_asked_for(ONLY, SECONDS, FAULTS_OF_PAIRS) if MODEL is None and PEER is None else []
CHECKS_WITHOUT_PRODUCER = 40  # reads, one each 50 ms or less often: two rounds of checks
MODES: dict[str, type[Pair]] = {"async": Pair, "sync": SyncPair}


@pytest.mark.skipif(bool(LONG or OF_PAIRS), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize("kind", long_but(1, [ShortSyncPair, ShortPair]))
def test_pair_loses_nothing_acknowledged_under_successive_faults(kind: type[Pair], tmp_path: Path) -> None:
    before = children()
    found = asyncio.run(a_run(tmp_path / "run", list(FAULTS_OF_PAIRS), 0.1, 0.4, SHORT_HEARTBEAT_MS, kind))
    assert children() <= before
    assert found["acknowledged"] >= len(FAULTS_OF_PAIRS)
    assert found["lacked"] > 0, "the slave lacked nothing when the master's disk was lost"
    assert (found["lost"] > 0) == (kind is ShortPair)


class Deserted(ShortPair):
    """Both are killed before the end of a transaction arrives, and its producer leaves before anything asks it."""

    async def kill_before_the_end(self, value: str) -> None:
        producer = self.library.producer("deserted", check=self.decided)
        async with producer, producer.transaction(TOPIC, f"{value}#1".encode(), queue=self.queue_of(0)):
            await self.kill(*self.names)

    async def arrives(self, value: str) -> None:
        """A producer of the group comes back: the broker asks it, and the message arrives."""
        self.ends[value] = COMMIT
        async with self.library.producer("deserted", check=self.decided), asyncio.timeout(DEADLINE_SECONDS):
            while (value, 1) not in self.arrived:
                await self.read_once()


@pytest.mark.skipif(bool(LONG or OF_PAIRS), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("DUR-19")
def test_half_message_survives_kills_and_waits_for_its_producer(tmp_path: Path) -> None:
    """An acknowledged half message whose end was lost stays undecided; with ASYNC_FLUSH too it survives kill -9 of both."""

    async def work() -> None:
        pair = Deserted(tmp_path / "run", size=2, heartbeat_ms=SHORT_HEARTBEAT_MS, seed=1)
        try:
            await pair.start()
            await pair.kill_before_the_end("half-1")
            await Group.heal(pair)
            for _ in range(CHECKS_WITHOUT_PRODUCER):
                await pair.read_once()
            assert not pair.arrived
            await pair.arrives("half-1")
        finally:
            await pair.stop()

    asyncio.run(work())


@pytest.mark.skipif(not OF_PAIRS, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize(("mode", "name"), [(mode, name) for mode in MODES for name in OF_PAIRS])
def test_pair_loses_nothing_acknowledged_under_a_long_fault(
    mode: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = long_run(name, tmp_path, MODES[mode], f"pair, {mode}")
    tell(capsys, f"{mode}, {name}: {found['lost']} acknowledged lost of {found['lacked']} that the slave lacked", found)
    assert found["acknowledged"] > 0
    check_promise(found["caught_up_s"] <= CAUGHT_UP_SECONDS, f"equal after {found['caught_up_s']:.1f} s")
