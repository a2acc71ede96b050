"""Runs the handlers of a FastStream broker in memory or over an embedded broker, so that one test holds for both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saturnmq import Client, MessageQueue
from saturnmq.broker import BrokerSettings
from saturnmq.faststream import RocketBroker, TestRocketBroker
from saturnmq.testing import EmbeddedBroker

MEMORY, EMBEDDED = "memory", "embedded"


class Transport:
    """kind: MEMORY, where nothing listens at `url`, or EMBEDDED."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def broker(self, **options: Any) -> RocketBroker:
        return RocketBroker(self.url, **{"logger": None, **options})

    @asynccontextmanager
    async def run(self, *brokers: RocketBroker) -> AsyncIterator[None]:
        """Run the brokers until the end of the block."""
        if self.kind == MEMORY:
            async with TestRocketBroker(*brokers, connect_only=False):
                yield
            return
        try:
            for broker in brokers:
                await broker.start()
            yield
        finally:
            for broker in brokers:
                await broker.stop()

    async def stored(self, topic: str) -> list[bytes]:
        """The bodies, as they are stored, of all messages of a topic of the embedded broker; empty if it does not exist."""
        async with Client.from_url(self.url) as client:
            if not await client.topic_exists(topic):
                return []
            puller = client.puller()
            bodies = []
            for queue in await puller.queues(topic):
                bodies += await _bodies(puller, queue)
            return bodies


async def _bodies(puller: Any, queue: MessageQueue) -> list[bytes]:
    offset, end = await puller.min_offset(queue), await puller.max_offset(queue)
    bodies = []
    while offset < end:
        result = await puller.pull(queue, offset)
        bodies += [bytes(message.record.body) for message in result.messages()]
        offset = result.next_offset
    return bodies


@asynccontextmanager
async def transport_of(kind: str) -> AsyncIterator[Transport]:
    if kind == MEMORY:
        yield Transport(kind, "rmq://127.0.0.1:1")
        return
    async with EmbeddedBroker(settings=BrokerSettings(property_filter_enable=True)) as server:
        yield Transport(kind, server.url)
