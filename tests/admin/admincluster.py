"""An embedded broker, the administration library connected to it, and brokers that are registered but do not serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from saturnmq.admin import Admin
from saturnmq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers.messaging import RegisterBroker
from saturnmq.testing import EmbeddedBroker

DEAD = "127.0.0.1:1"


@dataclass
class AdminCluster:
    """server: the embedded NameServer and broker. changes: lines of a dry run."""

    server: EmbeddedBroker
    admin: Admin
    changes: list[str]

    async def register(self, address: str, name: str, number: int = 0, topics: tuple[str, ...] = ()) -> None:
        """Register a broker that does not serve requests, in the cluster of the embedded one."""
        header = RegisterBroker(
            broker_name=name,
            broker_addr=address,
            cluster_name="DefaultCluster",
            ha_server_addr="",
            broker_id=number,
        )
        table = TopicConfigTable({topic: TopicConfig(topic, 4, 4) for topic in topics})
        body = RegisterBrokerBody(table).encode()
        await self.admin.connection.read(self.server.name_servers, RequestCode.REGISTER_BROKER, header, body)


@asynccontextmanager
async def admin_cluster(*, dry_run: bool = False, **options: Any) -> AsyncIterator[AdminCluster]:
    """Start a broker and connect the library to it."""
    changes: list[str] = []
    report = changes.append if dry_run else None
    async with EmbeddedBroker() as server, Admin(server.name_servers, dry_run=report, **options) as admin:
        yield AdminCluster(server, admin, changes)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A server that accepts connections and never answers; its address."""
    closing = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await closing.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        closing.set()
        server.close()
