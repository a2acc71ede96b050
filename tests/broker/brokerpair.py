"""Fixture: a NameServer, a master and its slave as brokers in this process, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness import virtualtime
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Message, decode_records
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import FlushDiskType, StoreProfile, StoreSettings
from waiting import until

SYNC_FLUSH = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run on virtual time, at most 300 s of it."""

    async def bounded() -> Any:
        async with asyncio.timeout(300):
            return await work()

    return virtualtime.run(bounded())


class Pair:
    """A NameServer, a master and its slave, and requests to them."""

    def __init__(
        self,
        root: Path,
        store: dict[str, Any],
        *,
        tls: TlsSettings | None = None,
        master_ha: dict[str, Any] | None = None,
        slave_ha: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """store, settings: of both brokers. tls: of all servers. master_ha, slave_ha: their replication settings."""
        self.root = root
        self._tls = tls
        self.master_ha, self.slave_ha = master_ha or {}, slave_ha or {}
        self._store = store
        self._settings = {"register_period_ms": 10_000, "listen_port": 0} | settings
        folder = root / "namesrv"
        self._names = NameServer(
            NameServerSettings(
                listen_port=0, kv_config_path=str(folder / "kv.json"), config_store_path=str(folder / "conf")
            ),
            NetSettings(),
            tls=tls,
        )
        self._address = ""
        self._client = RemotingClient(settings=NetSettings(), tls=tls)
        self.master: Broker
        self.slave: Broker
        self.running: list[Broker] = []
        self.sign: Callable[[Command], object] = lambda command: None  # signs each request in place

    async def start(self) -> None:
        host, port = await self._names.start("127.0.0.1", 0)
        self._address = f"{host}:{port}"
        await self.start_master(**self.master_ha)
        await self.start_slave()

    async def start_master(self, role: str | None = None, **ha: Any) -> None:
        chosen = {"broker_role": role} if role is not None else {}
        self.master = await self._broker("master", HaSettings(**ha), **chosen)

    async def start_slave(self) -> None:
        self.slave = await self._broker("slave", HaSettings(**self.slave_ha), broker_role="SLAVE", broker_id=1)

    async def _broker(self, folder: str, ha: HaSettings, **more: Any) -> Broker:
        settings = BrokerSettings(**({"namesrv_addr": self._address} | self._settings | more))
        store = StoreSettings(str(self.root / folder), profile=StoreProfile.SMALL, **self._store)
        broker = Broker(settings, store, NetSettings(), ha=ha, tls=self._tls)
        await broker.start()
        self.running.append(broker)
        return broker

    async def stop_one(self, broker: Broker) -> None:
        self.running.remove(broker)
        await broker.stop()

    async def stop(self) -> None:
        await self._client.close()
        for broker in list(self.running):
            await self.stop_one(broker)
        await self._names.stop()

    async def call(self, broker: Broker, code: int, body: bytes | None = None, **ext: object) -> Command:
        command = Command(code, ext={name: str(value) for name, value in ext.items()}, body=body)
        self.sign(command)
        return await self._client.invoke(broker.address, command, 10_000)

    async def route(self, topic: str) -> Command:
        """The answer of the NameServer about a topic."""
        command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
        return await self._client.invoke(self._address, command, 3000)

    async def send(self, broker: Broker, body: bytes = b"x", wait: str = "true", **more: object) -> Command:
        return await self.call(
            broker, RequestCode.SEND_MESSAGE_V2, body, a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1234, h=0,
            i=f"WAIT\x01{wait}", j=0, k="false", m="false", **more,
        )  # fmt: skip

    async def pull(self, broker: Broker, offset: int = 0, **more: object) -> Command:
        fields: dict[str, object] = {
            "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return await self.call(broker, RequestCode.PULL_MESSAGE, **(fields | more))

    async def messages(self, broker: Broker) -> list[Message]:
        answer = await self.pull(broker)
        return decode_records(answer.body or b"") if answer.code == 0 else []

    async def replicated(self) -> None:
        """Wait until the slave has the master's messages and tables."""
        await until(lambda: self.slave.store.dispatched == self.master.store.dispatched > 0)
        await until(lambda: "T" in self.slave.topics.table)


@asynccontextmanager
async def pair(root: Path, store: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Pair]:
    made = Pair(root, store or {}, **settings)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
