"""A survey of a cluster: counts of all topics and groups, and what becomes of them when a broker does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.admin.survey import Surveyor
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import EmbeddedBroker

ORDERS = ("DefaultCluster", "orders")
BILLING = ("DefaultCluster", "billing")


async def test_survey_has_brokers_topics_and_groups() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send_many("orders", [b"x"] * 10)
        async with client.consumer("billing", start="first") as inbox:
            await inbox.subscribe("orders")
            for _ in range(4):
                await (await inbox.recv(30)).ack()
        async with Admin(server.url.removeprefix("rmq://")) as admin:
            found = await Surveyor(admin.connection).survey()
            assert found.problems == {}
            (broker,) = found.brokers
            assert (broker.number, broker.address) == (0, server.broker_address)
            assert broker.runtime["brokerVersionDesc"]
            topic = found.topics[ORDERS]
            assert (topic.total, topic.kept, list(topic.configs)) == (10, 10, [broker.name])
            group = found.groups[BILLING]
            assert (group.topics["orders"].total, group.topics["orders"].lag, group.lag) == (4, 6, 6)


async def test_what_fails_keeps_its_last_values(monkeypatch: pytest.MonkeyPatch) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send_many("orders", [b"x"] * 3)
        async with Admin(server.url.removeprefix("rmq://")) as admin:
            surveyor = Surveyor(admin.connection)
            before = await surveyor.survey()
            ask = admin.connection.read
            refused: set[RequestCode] = {RequestCode.GET_TOPIC_STATS_INFO}

            async def failing(address: str, code: RequestCode, *rest: Any, **more: Any) -> Command:
                if code in refused:
                    raise response_error(2, "busy", broker=address)
                return await ask(address, code, *rest, **more)

            monkeypatch.setattr(admin.connection, "read", failing)
            found = await surveyor.survey()
            assert found.topics[ORDERS].total == 3
            assert found.problems[f"orders@{server.broker_address}"] == "busy"
            refused |= {RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO}
            found = await surveyor.survey()
            assert found.topics == before.topics and found.problems == {server.broker_address: "busy"}
            assert found.brokers[0].problem == "busy" and found.brokers[0].runtime == {}
