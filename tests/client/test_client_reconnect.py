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
                await (await inbox.recv(timeout=10)).ack()
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
