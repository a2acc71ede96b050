"""Consumers whose connection ends: the broker is told of the group again before it is pulled from."""

from __future__ import annotations

import asyncio

import pytest

from saturnmq import Client
from saturnmq.testing import BrokerFixture


@pytest.mark.spec("HB-01", "API-26")
@pytest.mark.parametrize("how", ["connection", "broker"])
def test_a_group_is_known_again_before_the_next_pull(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str, how: str
) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
            await out.send(saturn_topic, b"before")
            async with client.consumer(saturn_group, start="first") as inbox:
                await inbox.subscribe(saturn_topic)
                await (await inbox.recv(timeout=30)).ack()
                for number in range(2):  # the first heartbeat of a new client may come by itself
                    last = saturn_broker.requests[-1].number
                    if how == "connection":
                        assert saturn_broker.drop_connections() == 1
                    else:
                        saturn_broker.kill()
                        saturn_broker.restart()
                    await out.send(saturn_topic, b"%d" % number, timeout=20)
                    message = await inbox.recv(timeout=20)
                    assert message.body == b"%d" % number
                    await message.ack()
            since = [request for request in saturn_broker.requests if request.number > last]
            peer = next(request.peer for request in since if request.name == "HEART_BEAT")
            names = [request.name for request in since if request.peer == peer]
            assert names.index("HEART_BEAT") < names.index("PULL_MESSAGE")

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


@pytest.mark.spec("RB-02", "API-18")
def test_waiting_for_queues_ends_when_a_round_has_given_all_of_them(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    saturn_broker.create_topic(f"{saturn_topic}-wide", queues=64)

    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.consumer(saturn_group) as inbox:
            await inbox.subscribe(f"{saturn_topic}-wide")
            async with asyncio.timeout(30):
                while not inbox.assigned:  # a round gives one queue after the other
                    await asyncio.sleep(0)
            assert len(inbox.assigned) < 64
            assert len(await inbox.wait_assigned()) == 64
            assert len(await inbox.wait_assigned()) == 64

    asyncio.run(work())


@pytest.mark.spec("HB-05", "RB-07", "CA-03")
def test_a_member_that_starts_takes_no_topic_from_the_others(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    """Between its start and its first subscribe a member says nothing of the group: the broker would forget the topic."""

    def subscribed() -> set[str]:
        return saturn_broker.on_loop(
            lambda: set(saturn_broker.server.broker.ctx.clients.consumers[saturn_group].subscriptions)
        )

    async def work() -> None:
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

    asyncio.run(work())


@pytest.mark.spec("API-27", "CA-09", "OF-03")
def test_the_offsets_of_one_who_leaves_are_stored_before_the_others_are_told(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    """One-way they could be overtaken: a broker of many threads tells the others first, and they get messages again."""

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
