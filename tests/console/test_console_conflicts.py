"""The page of a group warns of clients that impair each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from browsing import name_server

from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import EmbeddedBroker


async def beat(client: RemotingClient, address: str, client_id: str, topic: str) -> None:
    """Send a heartbeat of a member of the group billing."""
    data = HeartbeatData(
        client_id, [], [ConsumerData("billing", subscription_data_set=[SubscriptionData(topic, "*", sub_version=1)])]
    )
    assert (await client.invoke(address, Command(RequestCode.HEART_BEAT, body=data.encode()), 5000)).code == 0


@pytest.mark.spec("UX-10")
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_page_of_a_group_warns_with_both_addresses(console: Callable[..., Any], language: str) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedBroker())
        clients = [RemotingClient(settings=NetSettings()) for _ in range(3)]
        for client in clients:
            stack.push_async_callback(client.close)
        address = server.broker_address
        await beat(clients[0], address, "same", "orders")
        await beat(clients[1], address, "same", "orders")
        await beat(clients[0], address, "same", "orders")
        await beat(clients[2], address, "other\u202e<b>", "bills")
        one = await stack.enter_async_context(console(name_server(server)))
        one.browser.cookies.set("saturnmq_language", language)
        await one.log_in()
        await one.services.state.refresh()
        page = (await one.browser.get("/groups/DefaultCluster/billing")).text
        members = server.broker.clients.consumers["billing"].members
        first, second, third = (connection.remote_address for connection in members)
        alerts = [part.partition("</p>")[0] for part in page.split('role="alert">')[1:]]
        same, unequal = alerts
        assert f"same ({second})" in same and f"same ({first})" in same
        assert f"same ({first}), other" in unequal and f"({third}): bills, orders" in unequal
        assert "\u202e" not in page and "<b>" not in unequal
        assert ("两个连接" in same and "订阅" in unequal) == (language == "zh")
        assert ("Two connections" in same and "lost" in unequal) == (language == "en")
