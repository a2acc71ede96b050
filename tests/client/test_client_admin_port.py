"""Which port of a broker topic creation and message queries use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, MessageQueue
from saturnmq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from saturnmq.protocol.ids import offset_message_id

Run = Callable[..., Any]


@pytest.mark.spec("PR-31")
@pytest.mark.parametrize("vip", [True, False])
async def test_admin_calls_use_the_vip_port_only_when_configured(cluster: Any, vip: bool) -> None:
    async with cluster() as c:
        async with Client(name_servers=c.name_servers) as client, client.producer("g") as out:
            await out.send("T", b"one", keys="k", queue=MessageQueue("T", "b0", 0))
        record = c.broker.stored["T", 0][0]
        c.broker.script[12] = c.broker.script[33] = lambda cmd: cmd.reply(body=record)
        host, _, port = c.broker.address.rpartition(":")
        main_port = int(port) + (2 if vip else 0)  # with the VIP setting, no server listens on the main port
        place = BrokerData("c", "b0", {0: f"{host}:{main_port}"})
        for topic in ("TBW102", "T", "New"):
            c.add(topic, TopicRouteData([QueueData("b0", 1, 1, 7)], [place]))
        async with Client(name_servers=c.name_servers, vip_channel=vip) as client:
            assert await client.create_topic("New", queues=1) == ["b0"]
            assert len(c.broker.of(17)) == 1
            assert [found.body for found in await client.query_messages("T", "k")] == [b"one"]
            assert [query.version for query in c.broker.of(12)] == [399]  # signed without _UNIQUE_KEY_QUERY
            found = await client.view_message(offset_message_id((host, main_port), 0))
            assert found.body == b"one" and len(c.broker.of(33)) == 1
