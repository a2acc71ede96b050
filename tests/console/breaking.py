"""A cluster whose parts a test breaks and mends, and the alarms of a console that watches it; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from browsing import Times

from ports import free_port
from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.admin.survey import Surveyor
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.console.alarms import ROUND_SECONDS, Alarms, Rules
from saturnmq.console.state import ClusterState
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NO_RESPONSE, NetSettings
from saturnmq.protocol.addresses import port_of
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import FlushDiskType, StoreProfile, StoreSettings
from saturnmq.testing.disk_faults import DiskFaults

CLUSTER = "DefaultCluster"
ROUNDS_MAX = 20
RULES = Rules(
    {"lag": 5, "disk": 99, "slave_bytes": 10_000, "dead_letters": 1, "head_wait": 20, "page_cache": 30},
)


class Watched:
    """A NameServer, brokers by name, and the alarms of a console. hung: names of brokers that answer nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.brokers: dict[str, Broker] = {}
        self.ports: dict[str, int] = {}
        self.hung: set[str] = set()
        self.times = Times()
        self.alarms = Alarms(clock=self.times)
        self.alarms.rules = RULES
        self.clients = AsyncExitStack()  # that stay until the cluster is stopped
        self.admin: Admin
        self.state: ClusterState
        self._names: NameServer | None = None

    async def start(self) -> None:
        await self.start_name_server()
        await self.start_broker("b")
        self.admin = Admin(self.address)
        self.state = ClusterState(Surveyor(self.admin.connection), clock=self.times)

    async def stop(self) -> None:
        await self.clients.aclose()
        await self.admin.close()
        for name in list(self.brokers):
            await self.kill_broker(name)
        await self.stop_name_server()

    async def start_name_server(self) -> None:
        folder = self.folder / "namesrv"
        settings = NameServerSettings(kv_config_path=str(folder / "kv.json"), config_store_path=str(folder / "conf"))
        self._names = NameServer(settings, NetSettings())
        host, port = await self._names.start("127.0.0.1", port_of(self.address) if self.address else 0)
        self.address = f"{host}:{port}"

    async def stop_name_server(self) -> None:
        names, self._names = self._names, None
        if names is not None:
            await names.stop()

    async def start_broker(self, name: str, *, slave_of: str = "", **ha: Any) -> Broker:
        """Start a broker, or start it again on the same port with the same store."""
        role = {"broker_role": "SLAVE", "broker_id": 1} if slave_of else {}
        settings = BrokerSettings(
            broker_name=slave_of or name,
            namesrv_addr=self.address,
            bind_address="127.0.0.1",
            listen_port=self.ports.setdefault(name, free_port((0, 1))),
            register_period_ms=10_000,
            fast_port_enable=False,
            **role,  # type: ignore[arg-type]
        )
        store = StoreSettings(
            str(self.folder / name), profile=StoreProfile.SMALL, flush_disk_type=FlushDiskType.SYNC_FLUSH
        )
        broker = Broker(settings, store, NetSettings(), ha=HaSettings(**ha))
        broker.intercept(lambda handler: lambda *request: NO_RESPONSE if name in self.hung else handler(*request))
        await broker.start()
        self.brokers[name] = broker
        return broker

    async def kill_broker(self, name: str) -> None:
        """End a broker as SIGKILL would."""
        await self.brokers.pop(name).abort()

    def disk(self, name: str) -> DiskFaults:
        return DiskFaults(self.brokers[name].store)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client.from_url(f"rmq://{self.address}") as client:
            yield client

    async def look(self) -> set[str]:
        """Evaluate the rules once, a round after the last time; the rules whose alarms hold."""
        self.times.now += ROUND_SECONDS
        await self.alarms.round(self.state, self.admin)
        return {rule for rule, _ in self.alarms.active}

    async def until(self, rule: str, *, begun: bool) -> str:
        """Look round after round until an alarm of a rule holds, or does not; its subject and value."""
        for _ in range(ROUNDS_MAX):
            rules = await self.look()
            if (rule in rules) is begun:
                return next((f"{one.what}: {one.value}" for one in self.alarms.listed() if one.rule == rule), "")
            await asyncio.sleep(ROUND_SECONDS)  # poll; of virtual time
        raise AssertionError(f"{rule} {'did not begin' if begun else 'did not end'}: {self.alarms.listed()}")


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Watched]:
    cluster = Watched(folder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.stop)
        await cluster.start()
        yield cluster
