"""What a rebalance reports: a heartbeat with a new subscription version if the assignment changed, and nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.connection import core
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.protocol.bodies import HeartbeatData
from saturnmq.protocol.frames.command import Command
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


@pytest.fixture(autouse=True)
def _no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no timer send a heartbeat or query a route."""
    for name in ("FIRST_HEARTBEAT_MS", "FIRST_ROUTE_POLL_MS"):
        monkeypatch.setattr(core, name, 3_600_000)


async def rebalance(inbox: Consumer[Any]) -> None:
    """Run one more round, from its beginning to its end."""
    rounds = inbox._rounds_begun
    inbox.wake_rebalance()
    await until(lambda: inbox._rounds > rounds)


def versions(broker: Any) -> list[int]:
    """The subscription versions of topic T in the heartbeats so far."""
    beats = [HeartbeatData.decode(command.body) for command in broker.of(34)]
    return [
        subscription.sub_version
        for beat in beats
        for consumer in beat.consumer_data_set
        for subscription in consumer.subscription_data_set
        if subscription.topic == "T"
    ]


async def with_member(cluster: Any, steps: Callable[[Any, Any, Consumer[Any]], Any]) -> None:
    """Run steps with a cluster, a client and a consumer that has the 4 queues of topic T."""
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, rebalance_ms=3_600_000, heartbeat_ms=110_000) as client,
    ):
        c.add("%RETRY%g")
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(inbox.assigned) == 4)
            await rebalance(inbox)
            await steps(c, client, inbox)


def lost_members(c: Any) -> None:
    c.broker.script[38] = lambda command: command.reply(1, "not now")


def no_members(c: Any) -> None:
    c.broker.groups["g"].clear()


def lost_route(c: Any) -> None:
    for topic in ("T", "%RETRY%g"):
        del c.ns[0].routes[topic]


def no_readable_queue(c: Any) -> None:
    c.add("T", c.route(perm=2))


def offsets_not_readable(c: Any) -> None:
    c.add("T", c.route(read=6, write=6))
    c.broker.script[14] = lambda command: command.reply(1, "not now")


@pytest.mark.parametrize("event", [None, lost_members, no_members, lost_route, no_readable_queue, offsets_not_readable])
def test_rebalance_without_a_change_sends_no_heartbeat(
    run: Run, cluster: Any, event: Callable[[Any], None] | None
) -> None:
    async def steps(c: Any, client: Any, inbox: Consumer[Any]) -> None:
        if event is not None:
            event(c)
        await client._core.routes.refresh("T")
        await rebalance(inbox)
        await client._core.heartbeat()  # a changed route has caused one already
        before = len(c.broker.of(34))
        for _ in range(2):
            await rebalance(inbox)
        assert len(inbox.assigned) == 4
        assert len(c.broker.of(34)) == before, "brokers are notified of changes only"
        await client._core.heartbeat()
        *_, version, last = versions(c.broker)
        assert last == version

    run(lambda: with_member(cluster, steps))


def test_rebalance_with_a_change_announces_a_later_version(run: Run, cluster: Any) -> None:
    async def steps(c: Any, client: Any, inbox: Consumer[Any]) -> None:
        last = versions(c.broker)[-1]
        for members, count in (({"other@1"}, 2), (set(), 4)):
            c.broker.groups["g"] -= {"other@1"}
            c.broker.groups["g"] |= members
            beats = len(c.broker.of(34))
            await rebalance(inbox)
            assert len(inbox.assigned) == count
            assert len(c.broker.of(34)) == beats + 1
            assert versions(c.broker)[-1] > last
            last = versions(c.broker)[-1]

    run(lambda: with_member(cluster, steps))


def test_queues_that_can_be_acquired_are_despite_others(run: Run, cluster: Any) -> None:
    """One of two new queues has no readable offset; a later round acquires it."""

    async def steps(c: Any, client: Any, inbox: Consumer[Any]) -> None:
        c.add("T", c.route(read=6, write=6))
        await client._core.routes.refresh("T")
        c.broker.script[14] = lambda command: (
            command.reply(1, "not now") if command.ext["queueId"] == "5" else c.broker.on_14(command)
        )
        await rebalance(inbox)
        assert sorted(queue.queue_id for queue in inbox.assigned) == [0, 1, 2, 3, 4]
        c.broker.script.clear()
        await rebalance(inbox)
        assert sorted(queue.queue_id for queue in inbox.assigned) == [0, 1, 2, 3, 4, 5]

    run(lambda: with_member(cluster, steps))


async def test_member_list_is_read_from_another_broker_if_one_fails(cluster: Any) -> None:
    """A broker that refuses or answers without a list does not stop the rebalance, whichever is asked first."""
    async with cluster(3) as c, Client(name_servers=c.name_servers, rebalance_ms=3_600_000) as client:
        c.add("T", c.route(read=1, write=1))
        answers: list[Callable[[Command], Command]] = [
            lambda command: command.reply(1, "not now"),
            lambda command: command.reply(),
        ]
        for broker, answer in zip(list(c.brokers.values())[1:], answers, strict=True):
            broker.script[38] = answer
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(inbox.assigned) == 3)
            asked = c.broker.of(38)
            for _ in range(10):
                await rebalance(inbox)
            assert len(inbox.assigned) == 3
            assert len(c.broker.of(38)) >= len(asked) + 10, "each round ends at the broker that answers"
