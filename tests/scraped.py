"""The samples of a broker and its NameServer after some traffic, read once."""

from __future__ import annotations

import asyncio
import functools

from metricstext import families
from ports import free_port
from saturnmq import Client
from saturnmq.broker import BrokerSettings
from saturnmq.protocol.codes import RETRY_PREFIX
from saturnmq.testing import EmbeddedBroker

GROUP, TOPIC = "billing", "orders"
Labels = dict[str, str]


@functools.cache
def scraped() -> dict[str, list[Labels]]:
    """Labels of the samples by name."""
    found: dict[str, list[Labels]] = {}
    for text in asyncio.run(_scrapes()):
        for family in families(text).values():
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


async def _scrapes() -> list[str]:
    settings = BrokerSettings(metrics_port=free_port())
    async with (
        asyncio.timeout(60),
        EmbeddedBroker(settings=settings) as server,
        Client.from_url(server.url) as client,
        traffic(server, client),
    ):
        texts = b"".join(server.broker.metrics.pieces()), b"".join(server.namesrv.metrics.registry.pieces())
        return [text.decode() for text in texts]


class traffic:
    """Messages sent, consumed, retried, rejected and unread; inside the block a producer and a consumer are online."""

    def __init__(self, server: EmbeddedBroker, client: Client) -> None:
        self._broker = server.broker
        self._out = client.producer("orders-p")
        self._first, self._inbox = (client.consumer(GROUP, start="first", prefetch=1) for _ in range(2))

    async def __aenter__(self) -> None:
        await self._out.start()
        for number in range(20):
            await self._out.send(TOPIC, b"%d" % number)
        async with self._first as inbox:
            await inbox.subscribe(TOPIC)
            await (await inbox.recv(timeout=30)).retry()
            await (await inbox.recv(timeout=30)).reject()
            for _ in range(3):
                await (await inbox.recv(timeout=30)).ack()
        await self._inbox.start()
        await self._inbox.subscribe(TOPIC)
        await self._inbox.recv(timeout=30)
        self._broker.offsets.set(f"{RETRY_PREFIX}{GROUP}", GROUP, 0, 0)
        for _ in self._broker.stats.sample_sets():
            pass
        await self._broker.metrics.clients.poll()

    async def __aexit__(self, *_: object) -> None:
        await self._inbox.stop()
        await self._out.stop()
