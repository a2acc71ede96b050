# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""The collector against an embedded broker: values of topics, groups and brokers, round by round."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.history import Collector, History, Series
from saturnmq.testing import EmbeddedBroker

TOPIC = Series("topic", "DefaultCluster", topic="orders")
GROUP = Series("group", "DefaultCluster", topic="orders", group="billing")


async def consume(client: Client, count: int) -> None:
    async with client.consumer("billing", start="first") as inbox:
        await inbox.subscribe("orders")
        for _ in range(count):
            await (await inbox.recv(30)).ack()


def name_server(server: EmbeddedBroker) -> str:
    return server.url.removeprefix("rmq://")


class Minutes:
    """A clock that stands still but for the waits of the collector."""

    def __init__(self) -> None:
        self.now = 1_000_000_030.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.spec("EXP-05")
async def test_minutes_of_topics_groups_and_brokers_are_stored(tmp_path: Path) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with Admin(name_server(server)) as admin:
            with History(tmp_path / "h.db") as history:
                minutes = Minutes()
                collector = Collector(admin, history, clock=lambda: minutes.now, sleep=minutes.sleep)
                async with client.producer("p") as out:
                    for number in range(10):
                        await out.send("orders", b"%d" % number)
                await consume(client, 4)
                await collector.run(1)
                async with client.producer("p2") as out:
                    await out.send_many("orders", [b"x"] * 60)
                await consume(client, 6)
                await collector.run(2)
                first, second = history.read(TOPIC, 0)
                assert (first.total, first.level, second.total, second.rate) == (10, 10.0, 70, 1.0)
                assert (first.at, second.at) == (1_000_000_080, 1_000_000_140)
                points = history.read(GROUP, 0)
                assert [(point.total, point.level) for point in points] == [(4, 6.0), (10, 60.0)]
                (broker,) = history.series("broker")
                stored = history.read(broker, 0)
                assert stored[-1].total - stored[0].total == 60 and 0 < stored[0].level < 1


async def test_round_without_name_server_is_logged_and_the_next_one_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    minutes = Minutes()
    async with Admin("127.0.0.1:1") as admin:
        with History(tmp_path / "h.db") as history:
            collector = Collector(admin, history, clock=lambda: minutes.now, sleep=minutes.sleep)
            with caplog.at_level(logging.WARNING):
                await collector.run(2)
            assert collector.rounds == 2 and history.series("broker") == []
    assert [record.message[:26] for record in caplog.records] == ["no history of this minute "] * 2
