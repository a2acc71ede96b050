"""A NameServer that serves on a port, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command


class Served:
    def __init__(self, server: NameServer, address: str) -> None:
        self.server, self.address = server, address
        self.client = RemotingClient(settings=NetSettings())

    async def call(self, code: int, body: bytes | None = None, version: int = 407, **ext: str) -> Command:
        return await self.client.invoke(self.address, Command(code, ext=ext, body=body, version=version), 5000)

    async def register(self, client: RemotingClient | None = None, **more: Any) -> Command:
        body = more.pop("body", None)
        if body is None:
            config = TopicConfig("T", 4, 4)
            body = RegisterBrokerBody(
                TopicConfigTable({"T": config}, more.pop("version", DataVersion(1, 1))), []
            ).encode()
        ext = {
            "brokerName": "broker-a",
            "brokerAddr": "127.0.0.1:10911",
            "clusterName": "c",
            "haServerAddr": "127.0.0.1:10912",
            "brokerId": "0",
        } | more.pop("ext", {})
        command = Command(RequestCode.REGISTER_BROKER, ext=ext, body=body, version=more.pop("release", 407))
        return await (client or self.client).invoke(self.address, command, 5000)

    async def route(self, topic: str = "T") -> TopicRouteData | None:
        answer = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        return TopicRouteData.decode(answer.body) if answer.code == 0 else None


@asynccontextmanager
async def served(tmp_path: Path, **more: Any) -> AsyncIterator[Served]:
    clock = more.pop("clock_ms", None)
    unknown = more.pop("unknown_keys", None)
    values = {"kv_config_path": str(tmp_path / "kv.json"), "config_store_path": str(tmp_path / "ns.properties")}
    settings = NameServerSettings(**(values | more))
    server = NameServer(settings, NetSettings(), clock_ms=clock, unknown_keys=unknown)
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    try:
        yield s
    finally:
        await s.client.close()
        await server.stop()
