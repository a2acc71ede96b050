"""Sends that wait for a slave: who ends a wait, when, and how long waits took."""

from __future__ import annotations

import asyncio

import pytest

from saturnmq.replication.masterslave.acks import SlaveAcks
from saturnmq.store import PutStatus

OK, LATE, NONE = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE


class Waits:
    """Acknowledgements of slaves, and the outcome of each wait with the second at which it came."""

    def __init__(self, *, fall_behind_max: int = 1000, timeout_ms: int = 3000) -> None:
        self.acks = SlaveAcks(fall_behind_max=fall_behind_max, timeout_ms=timeout_ms)
        self.clock = asyncio.get_running_loop().time
        self.began = self.clock()
        self.outcomes: list[tuple[int, PutStatus, int]] = []
        self.wakes = 0
        self.acks.on_wait = self._wake

    def _wake(self) -> None:
        self.wakes += 1

    def wait(self, position: int) -> None:
        self.acks.when_acknowledged(
            position, lambda status, _: self.outcomes.append((position, status, round(self.clock() - self.began)))
        )


@pytest.mark.spec("SW-03", "SW-04")
async def test_waits_end_by_acknowledgement_or_at_their_deadline() -> None:
    waits = Waits(timeout_ms=30_000)
    acks = waits.acks
    waits.wait(10)
    assert waits.outcomes == [(10, NONE, 0)] and waits.wakes == 0, "no slave"
    acks.set("a", 100)
    waits.wait(100)
    waits.wait(1100)
    assert waits.outcomes[1:] == [(100, OK, 0), (1100, NONE, 0)], "stored already; too far behind"
    waits.outcomes.clear()
    waits.wait(1099)
    assert waits.wakes == 1 and waits.outcomes == []
    await asyncio.sleep(10)  # poll: virtual time
    waits.wait(1099)
    acks.send_now()
    assert waits.wakes == 3
    await asyncio.sleep(10)  # poll: virtual time
    acks.set("a", 1098)
    assert waits.outcomes == []
    await asyncio.sleep(15)  # poll: virtual time; the first is late at 30 s, the second at 40 s
    assert waits.outcomes == [(1099, LATE, 30)]
    acks.set("a", 1099)
    assert waits.outcomes == [(1099, LATE, 30), (1099, OK, 35)]
    assert acks.seconds.count == 1 and acks.seconds.sum == pytest.approx(25, abs=1), "from the send on"
    acks.send_now()
    assert waits.wakes == 3, "nothing waits"


async def test_each_late_wait_has_its_own_deadline() -> None:
    waits = Waits(timeout_ms=20_000)
    waits.acks.set("a", 0)
    for position in (1, 2, 3):
        waits.wait(position)
        await asyncio.sleep(5)  # poll: virtual time
    await asyncio.sleep(60)  # poll: virtual time
    assert waits.outcomes == [(1, LATE, 20), (2, LATE, 25), (3, LATE, 30)]


async def test_the_farthest_slave_counts_and_one_that_left_does_not() -> None:
    waits = Waits()
    acks = waits.acks
    assert (acks.slaves, acks.highest, acks.lowest, acks.positions) == (0, 0, 0, [])
    acks.set("a", 50)
    acks.set("b", 80)
    assert (acks.slaves, acks.highest, acks.lowest) == (2, 80, 50)
    assert acks.positions == [("a", 50), ("b", 80)]
    waits.wait(90)
    acks.remove("b")
    acks.remove("b")
    assert (acks.slaves, acks.highest, acks.lowest) == (1, 50, 50)
    acks.set("a", 89)
    assert waits.outcomes == []
    acks.set("a", 90)
    assert waits.outcomes == [(90, OK, 0)]


async def test_stop_ends_all_waits() -> None:
    waits = Waits()
    waits.acks.set("a", 0)
    for position in (1, 2):
        waits.wait(position)
    waits.acks.stop()
    assert waits.outcomes == [(1, LATE, 0), (2, LATE, 0)]
    waits.wait(3)
    await asyncio.sleep(10)  # poll: virtual time
    assert waits.outcomes[2:] == [(3, LATE, 3)], "a wait after it has a timer of its own"
    waits.acks.stop()
