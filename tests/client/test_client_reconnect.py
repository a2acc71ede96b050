"""Consumers whose connection ends: the broker is told of the group again before it is pulled from."""

from __future__ import annotations

import asyncio

import pytest

from saturnmq import Client
from saturnmq.testing import BrokerFixture


@pytest.mark.spec("HB-01", "API-26")
@pytest.mark.parametrize("how", ["connection", "broker"])
def test_a_group_is_known_again_before_the_next_pull(
    saturn_broker: BrokerFixture, saturn_client: Client, saturn_topic: str, saturn_group: str, how: str
) -> None:
    async def work() -> None:
        async with saturn_client as client, client.producer("p") as out:
            await out.send(saturn_topic, b"before")
            async with client.consumer(saturn_group, start="first") as inbox:
                await inbox.subscribe(saturn_topic)
                await (await inbox.recv(timeout=10)).ack()
                last = saturn_broker.requests[-1].number
                if how == "connection":
                    assert saturn_broker.drop_connections() == 1
                else:
                    saturn_broker.kill()
                    saturn_broker.restart()
                await out.send(saturn_topic, b"after", timeout=20)
                assert (await inbox.recv(timeout=20)).body == b"after"
            since = [request for request in saturn_broker.requests if request.number > last]
            peer = next(request.peer for request in since if request.name == "HEART_BEAT")
            names = [request.name for request in since if request.peer == peer]
            assert names.index("HEART_BEAT") < names.index("PULL_MESSAGE")

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())
