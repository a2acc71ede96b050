"""Consumers that reconnect, join or leave: when a group is announced to the broker and removed from it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from saturnmq import Client
from saturnmq.protocol.bodies import HeartbeatData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import BrokerFixture
from waiting import until


@pytest.mark.spec("HB-01", "API-26")
@pytest.mark.parametrize("how", ["connection", "broker"])
def test_reconnect_sends_a_heartbeat_before_the_next_pull(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str, how: str
) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
            await out.send(saturn_topic, b"before")
            async with client.consumer(saturn_group, start="first") as inbox:
                await inbox.subscribe(saturn_topic)
                await (await inbox.recv(timeout=30)).ack()
                for number in range(2):  # twice: the first time, the client's initial heartbeat may do it
                    before = {request.peer for request in saturn_broker.requests}
                    if how == "connection":
                        assert saturn_broker.drop_connections() == 1
                    else:
                        saturn_broker.kill()
                        saturn_broker.restart()
                    await out.send(saturn_topic, b"%d" % number, timeout=20)
                    message = await inbox.recv(timeout=20)
                    assert message.body == b"%d" % number
                    await message.ack()
            pulls = [request for request in saturn_broker.requests if request.name == "PULL_MESSAGE"]
            peer = pulls[-1].peer
            assert peer not in before
            names = [request.name for request in saturn_broker.requests if request.peer == peer]
            assert names.index("HEART_BEAT") < names.index("PULL_MESSAGE")

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


async def test_many_groups_that_start_together_share_heartbeats(cluster: Any) -> None:
    """Every heartbeat has all groups of the client: one per group would cost the square of their number."""
    groups = [f"g{number}" for number in range(200)]
    async with cluster() as c, Client(name_servers=c.name_servers) as client, AsyncExitStack() as stack:
        in_flight = 0

        async def answer(command: Command) -> Command:
            nonlocal in_flight
            in_flight += 1
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)
            assert in_flight == 1
            in_flight -= 1
            return cast("Command", c.broker.on_34(command))

        c.broker.script[RequestCode.HEART_BEAT] = answer

        async def start(group: str) -> None:
            inbox = await stack.enter_async_context(client.consumer(group))
            await inbox.subscribe("T")
            assert client.client_id in c.broker.groups[group], "subscribe returns when the broker has the group"

        await asyncio.gather(*map(start, groups))
        assert len(c.broker.of(RequestCode.HEART_BEAT)) <= 10
        c.broker.script.clear()


def groups_of(heartbeat: Command) -> set[str]:
    return {data.group_name for data in HeartbeatData.decode(heartbeat.body).producer_data_set}


async def test_silent_broker_delays_no_heartbeat_to_the_others(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two producers start after each other; a broker that does not answer the first heartbeat delays the second only there."""

    async def no_answer(_: Command) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("saturnmq.client.connection.core.FIRST_HEARTBEAT_MS", 3_600_000)
    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, heartbeat_ms=100_000, api_timeout_ms=600_000) as client,
    ):
        silent, answering = c.brokers.values()
        silent.script[RequestCode.HEART_BEAT] = no_answer
        await client._core.write_route("T")
        async with client.producer("one"):
            await silent.wait_for(RequestCode.HEART_BEAT)
            await answering.wait_for(RequestCode.HEART_BEAT)
            async with client.producer("two"):
                await until(lambda: {"one", "two"} <= groups_of(answering.of(RequestCode.HEART_BEAT)[-1]))
                assert len(silent.of(RequestCode.HEART_BEAT)) == 1, "the next one waits for the answer to the first"


@pytest.mark.spec("RB-02", "API-18")
@pytest.mark.loop(real=True)
async def test_wait_assigned_returns_after_a_complete_rebalance_round(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    saturn_broker.create_topic(f"{saturn_topic}-wide", queues=64)
    async with Client.from_url(saturn_broker.url) as client, client.consumer(saturn_group) as inbox:
        subscribing = asyncio.create_task(inbox.subscribe(f"{saturn_topic}-wide"))
        async with asyncio.timeout(30):
            while not inbox.assigned:  # a round assigns the queues one by one
                await asyncio.sleep(0)
        assert len(await inbox.wait_assigned()) == 64
        await subscribing
        assert len(await inbox.wait_assigned()) == 64
        assert len(await inbox.wait_assigned()) == 64


@pytest.mark.spec("HB-05", "RB-07", "CA-03")
@pytest.mark.loop(real=True)
async def test_starting_member_keeps_the_topics_of_the_group(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    """A member without a subscription sends no heartbeat for the group: the broker would remove the other members' topic."""

    def subscribed() -> set[str]:
        return saturn_broker.on_loop(
            lambda: set(saturn_broker.server.broker.clients.consumers[saturn_group].subscriptions)
        )

    one, two = Client.from_url(saturn_broker.url), Client.from_url(saturn_broker.url)
    async with one, two, one.consumer(saturn_group) as first:
        await first.subscribe(saturn_topic)
        wanted = subscribed()
        assert saturn_topic in wanted
        async with two.consumer(saturn_group) as second:
            await two._core.heartbeat()
            assert subscribed() == wanted
            await second.subscribe(saturn_topic)
            assert subscribed() == wanted


@pytest.mark.spec("API-27", "CA-09", "OF-03")
def test_leaving_member_stores_offsets_before_it_unregisters(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    """The store is confirmed: a multi-threaded broker could overtake a one-way one, and other members would get messages twice."""

    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
            await out.send(saturn_topic, b"x", shard_by="k")
            async with client.consumer(saturn_group, start="first") as inbox:
                await inbox.subscribe(saturn_topic)
                await (await inbox.recv(timeout=30)).ack()

    asyncio.run(work())
    leaving = [r for r in saturn_broker.requests if r.name in ("UPDATE_CONSUMER_OFFSET", "UNREGISTER_CLIENT")]
    stored = next(r for r in leaving if r.ext.get("commitOffset") == "1")
    left = next(r for r in leaving if r.ext.get("consumerGroup") == saturn_group and r.name == "UNREGISTER_CLIENT")
    assert not stored.oneway
    assert stored.number < left.number
