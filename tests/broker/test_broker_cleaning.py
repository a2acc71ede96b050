"""Members that come and go in great numbers: notifications, cleaning after closed connections, parked pulls and locks that end.

Each test has an honest client beside the hostile ones.

Requirements: HB-04, HB-06, LIM-13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from wire import Clock, Wire, wire

from loopsteps import STEP_MAX, loop_steps
from saturnmq.broker.services.notices import ROUND_SECONDS
from saturnmq.broker.state.clients import ClientInfo
from saturnmq.broker.state.locks import LOCK_LIVE_MS, QueueLockTable
from saturnmq.net import Connection
from saturnmq.protocol.bodies import ConsumerData, MessageQueue
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.slices import Background, Steps


class Member:
    """A connection that only records what it is sent."""

    congested = False
    closed = False

    def __init__(self, address: str = "192.0.2.7:1") -> None:
        self.remote_address = address
        self.notified: list[float] = []

    def invoke_oneway(self, command: Command) -> None:
        encode_frame(command)
        self.notified.append(asyncio.get_running_loop().time())


def join(w: Wire, group: str, member: Member, client_id: str = "c") -> None:
    info = ClientInfo(client_id, 0, 407, w.broker._clock_ms(), ("192.0.2.7", None))
    data = ConsumerData(group)
    w.broker.clients.register_consumer(data, cast("Connection", member), info)


async def sending_beside(w: Wire, work: Awaitable[Any]) -> Any:
    """The result of the work, with sends answered meanwhile and no long step of the event loop."""
    await w.send()
    with loop_steps() as steps:
        running = asyncio.ensure_future(work)
        while not running.done():
            assert (await w.send()).code == 0
        result = await running
    assert steps.longest < STEP_MAX
    return result


async def test_member_that_joins_and_leaves_causes_one_round_per_second() -> None:
    """In a group of 10,000 members it kept the event loop busy for 61 % of the time."""
    async with wire(fast_failure=False) as w:
        members = [Member() for _ in range(2000)]
        for number, member in enumerate(members):
            join(w, "large", member, f"c{number}")
        honest = Member()
        join(w, "small", honest)
        while w.broker.notices.pending:
            await asyncio.sleep(0.01)  # poll
        loop, toggler, other = asyncio.get_running_loop(), Member(), Member()
        began = loop.time()
        for number in range(500):
            join(w, "large", toggler, "toggler")
            w.broker.clients.unregister(cast("Connection", toggler), None, "large")
            left = loop.time()
            if number == 250:
                changed = loop.time()
                join(w, "small", other, "other")
            await asyncio.sleep(0.01)  # poll
        ended = loop.time()
        while w.broker.notices.pending:
            await asyncio.sleep(0.01)  # poll
        rounds = [at for at in members[0].notified if at >= began]
        assert 1 <= len(rounds) <= (ended - began) / ROUND_SECONDS + 2
        assert rounds[0] - began < 1.5 * ROUND_SECONDS, "the first change within about a second"
        assert {member.notified[-1] >= left for member in members} == {True}, "the last change too"
        assert honest.notified[-1] - changed < ROUND_SECONDS, "other groups do not wait for the large one"


async def test_notices_of_a_large_group_do_not_hold_the_event_loop() -> None:
    async with wire(fast_failure=False) as w:

        async def rounds() -> None:
            while w.broker.notices.pending:
                await asyncio.sleep(0.001)  # poll

        members = [Member() for _ in range(10_000)]
        for number, member in enumerate(members):
            join(w, "large", member, f"c{number}")
        await sending_beside(w, rounds())
        assert {len(member.notified) for member in members} == {1}


async def test_closing_connections_with_many_groups_does_not_hold_the_event_loop() -> None:
    """100 connections, each a member of 1000 groups, held it for 534 ms. A member that comes back meanwhile stays."""
    async with wire(fast_failure=False) as w:
        old = [Member() for _ in range(100)]
        for number, member in enumerate(old):
            for group in range(400):
                join(w, f"g{group}", member, f"c{number}")
        back = Member("192.0.2.7:2")

        async def closing() -> None:
            for member in old:
                member.closed = True
                w.broker.closed(cast("Connection", member), "closed by the peer")
            for group in range(400):  # before the cleaning has reached the last of them
                join(w, f"g{group}", back, "c99")
            assert w.broker.cleaning.busy
            while w.broker.cleaning.busy:
                await asyncio.sleep(0.001)  # poll

        await sending_beside(w, closing())
        clients = w.broker.clients
        assert len(clients.consumers) == 400
        assert {tuple(group.members) for group in clients.consumers.values()} == {(back,)}
        assert clients._memberships.total == 400
        assert clients.consumers["g0"].encoded_ids() == b'{"consumerIdList":["c99"]}'
        w.broker.cleaning.add(clients.leaving(cast("Connection", back)))
        while w.broker.cleaning.busy:
            await asyncio.sleep(0.001)  # poll
        assert (clients.consumers, clients._memberships.total, clients._created[1].total) == ({}, 0, 0)


async def test_many_parked_pulls_that_end_at_once_do_not_hold_the_event_loop() -> None:
    """Pulls of one deadline, and those of a connection that closes: 100,000 took half a second."""
    async with wire(fast_failure=False, pull_queue_max=200_000) as w, wire() as _:
        assert (await w.send("quiet")).code == 0
        hostile = [Wire(w.server) for _ in range(2)]
        waiting = [
            asyncio.ensure_future(each.pull("quiet", offset=1, suspend_ms=20_000, timeout_ms=25_000, group=f"G{n}"))
            for n, each in enumerate(hostile)
            for _ in range(4000)
        ]
        while w.broker.long_polling.count < len(waiting):
            await asyncio.sleep(0.001)  # poll

        async def close() -> None:
            await hostile[0].client.close()
            while w.broker.long_polling.count > 4000:
                await asyncio.sleep(0.001)  # poll

        await sending_beside(w, close())

        async def end() -> None:
            w.broker.long_polling.wake_all()
            while w.broker.long_polling.count:
                await asyncio.sleep(0.001)  # poll

        await sending_beside(w, end())
        assert {(await each).code for each in waiting[4000:]} == {19}
        await asyncio.gather(*waiting, return_exceptions=True)
        polling = w.broker.long_polling
        assert (
            polling._queues,
            polling._by_connection,
            polling._by_group,
            polling._by_due_tick,
            polling._memory_shares.total,
        ) == (
            {},
            {},
            {},
            {},
            0,
        )
        await hostile[1].client.close()


async def test_locks_that_expire_do_not_hold_the_event_loop() -> None:
    """Each request for locks searched a full table of 200,000."""
    clock = Clock()
    async with wire(clock_ms=clock, fast_failure=False) as w:
        queues = [MessageQueue("T", "broker-a", n) for n in range(1000)]
        locks = w.broker.locks
        for n in range(100):
            locks.lock(f"g{n}", "c", queues, clock.ms, f"192.0.2.{n}:1")
        assert locks._count == 100_000
        clock.ms += LOCK_LIVE_MS + 1

        async def expire() -> None:
            w.broker.expire_clients()
            while w.broker.cleaning.busy:
                await asyncio.sleep(0.001)  # poll

        await sending_beside(w, expire())
        assert (locks._count, locks._locks, locks._by_age) == (0, {}, {})


def test_full_table_of_locks_gives_up_the_oldest_first() -> None:
    locks = QueueLockTable(4)
    queues = [MessageQueue("T", "b", n) for n in range(6)]
    for n in range(4):
        locks.lock(f"G{n % 2}", f"c{n}", [queues[n]], n, f"10.0.0.{n}:1")
    locks.lock("G0", "c0", [queues[0]], 10, "10.0.0.0:1")
    locks.renew({"c2", "c3"}, LOCK_LIVE_MS)
    assert locks.lock("H", "h", [queues[5]], LOCK_LIVE_MS + 2, "10.0.1.1:1") == [queues[5]], "that of c1 is over"
    assert locks.lock("G0", "other", [queues[0]], LOCK_LIVE_MS + 9, "10.0.1.2:1") == [], "renewed"
    list(locks.expiring(LOCK_LIVE_MS + 11))
    assert sorted(lock.client_id for lock in locks._by_age.values()) == ["c2", "c3", "h"]


async def test_client_that_changes_its_id_takes_a_bounded_number_of_log_lines(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(200):
        assert (await wire.heartbeat("G", "T", client_id=f"c{n}" + "x" * 200)).code == 0
    assert (await wire.send()).code == 0
    lines = [r.getMessage() for r in caplog.records if "client id changed" in r.getMessage()]
    assert 1 <= len(lines) <= 10 and all("suppressed=" in line for line in lines)


async def test_background_work_goes_on_after_work_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    done = []

    def failing() -> Steps[None]:
        yield
        raise ValueError("broken")

    def good() -> Steps[None]:
        yield
        done.append(1)

    background = Background()
    background.add(failing())
    background.add(good())
    background.begin(good())
    assert done == [1]
    while background.busy:
        await asyncio.sleep(0.001)  # poll
    assert done == [1, 1] and "background work failed" in caplog.text
    background.add(good())
    background.finish()
    assert done == [1, 1, 1]
