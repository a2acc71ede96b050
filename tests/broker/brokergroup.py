"""Fixture: the brokers of one DLedger group in the running event loop, with a NameServer and short timers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness import virtualtime
from ports import free_ports
from saturnmq import Client
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.dledger import DLedger
from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Message, decode_records
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import StoreProfile, StoreSettings
from waiting import until

DEADLINE_SECONDS = 45.0
FILE_BYTES = 262_144
TIMERS: dict[str, Any] = {
    "heartbeat_interval_ms": 500,
    "vote_interval_min_ms": 30,
    "vote_interval_max_ms": 200,
    "commit_idle_ms": 20,
    "rpc_timeout_ms": 1000,
    "push_timeout_ms": 200,
    "checkpoint_interval_ms": 50,
    "index_file_units": 4096,
}


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """As `wire.run`, with the time that elections need."""

    async def bounded() -> Any:
        async with asyncio.timeout(110):
            return await work()

    return virtualtime.run(bounded())


def part(broker: Broker) -> DLedger:
    assert broker.dledger is not None
    return broker.dledger


def ledger(broker: Broker) -> GroupMember:
    return part(broker).group


class LedgerGroup:
    def __init__(self, folder: Path, size: int, raft: dict[str, Any], store: dict[str, Any], broker: dict[str, Any],
                 tls: TlsSettings | None = None):  # fmt: skip
        self.folder = folder
        self.names = [f"n{number}" for number in range(size)]
        self.addresses = dict(zip(self.names, (f"127.0.0.1:{port}" for port in free_ports(size)), strict=True))
        self.raft, self.store_settings, self.broker_settings = raft, store, broker
        self.tls = tls
        self.brokers: dict[str, Broker] = {}
        self.retried: set[bytes] = (
            set()
        )  # resent although the first attempt may be stored: leaders change on a busy machine
        self.namesrv = NameServer(NameServerSettings(kv_config_path=str(folder / "kv.json")), NetSettings(), tls=tls)
        self.name_servers = ""
        self.client = RemotingClient(settings=NetSettings(), tls=tls)

    async def start_namesrv(self) -> None:
        host, port = await self.namesrv.start("127.0.0.1", 0)
        self.name_servers = f"{host}:{port}"

    def raft_settings(self, name: str, **changes: Any) -> RaftSettings:
        peers = ";".join(f"{peer}-{address}" for peer, address in self.addresses.items())
        return RaftSettings(
            enabled=True, group="g", peers_text=peers, self_id=name, **(TIMERS | self.raft | changes)
        )  # fmt: skip

    def store(self, name: str, **changes: Any) -> StoreSettings:
        values: dict[str, Any] = {"profile": StoreProfile.SMALL, "commit_log_file_bytes": FILE_BYTES}
        values |= self.store_settings | changes
        return StoreSettings(store_path_root_dir=str(self.folder / name), **values)

    def settings(self, **changes: Any) -> BrokerSettings:
        values: dict[str, Any] = {"broker_name": "g", "listen_port": 0, "fast_port_enable": False}
        values |= self.broker_settings | changes
        return BrokerSettings(namesrv_addr=self.name_servers, **values)

    async def start(self, name: str, **changes: Any) -> Broker:
        raft = self.raft_settings(name, **changes)
        broker = Broker(self.settings(), self.store(name), NetSettings(), raft=raft, ha=HaSettings(), tls=self.tls)
        self.brokers[name] = broker
        await broker.start()
        return broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    def member(self, name: str) -> Any:
        return ledger(self.brokers[name]).member

    async def until(self, condition: Callable[[], Any], why: str) -> Any:
        """Wait for a condition; the error shows the state of each broker."""

        def states() -> str:
            return f"{why}: {[(ledger(b).serving, self.member(name).status()) for name, b in self.brokers.items()]}"

        return await until(condition, DEADLINE_SECONDS, why=states)

    def serving(self) -> Broker | None:
        """The broker that leads and accepts messages."""
        return next((b for b in self.brokers.values() if ledger(b).serving and ledger(b).leads), None)

    async def master(self) -> Broker:
        found = await self.until(self.serving, "no master")
        assert isinstance(found, Broker)
        return found

    def name_of(self, broker: Broker) -> str:
        return next(name for name, one in self.brokers.items() if one is broker)

    def followers(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker is not self.serving()]

    async def call(self, broker: Broker, code: int, body: bytes | None = None, **ext: object) -> Command:
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}
        return await self.client.invoke(broker.advertised_address, Command(code, ext=texts, body=body), 10_000)

    async def send_to(self, broker: Broker, body: bytes, topic: str = "T", queue: int = 0, **more: object) -> Command:
        """Send once."""
        fields: dict[str, object] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1234, "h": 0, "i": "",
            "j": 0, "k": False, "m": False,
        }  # fmt: skip
        return await self.call(broker, 310, body, **(fields | more))

    async def send(self, body: bytes, topic: str = "T", queue: int = 0, **more: object) -> Command:
        """Send until acknowledged; bodies sent more than once are noted in `retried`."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            for attempt in itertools.count():
                if attempt:
                    self.retried.add(body)
                try:
                    answer = await self.send_to(await self.master(), body, topic, queue, **more)
                    if answer.code == 0:
                        return answer
                except SaturnError:
                    pass
                await asyncio.sleep(0.02)  # poll
        raise AssertionError("unreachable")

    def bodies(self, broker: Broker, topic: str = "T", queue: int = 0) -> list[bytes]:
        """Bodies in the broker's queue, without repetitions of those that were retried."""
        found: list[bytes] = []
        for body in (bytes(message.body) for message in self.stored(broker, topic, queue)):
            if not (body in self.retried and body in found):
                found.append(body)
        return found

    def stored(self, broker: Broker, topic: str = "T", queue: int = 0) -> list[Message]:
        """Messages in the broker's queue."""
        found: list[Message] = []
        store = broker.store
        at, end = store.min_offset(topic, queue), store.max_offset(topic, queue)
        while at < end:
            result = store.get(topic, queue, at, 32)
            assert result.next_offset > at
            for buffer in result.buffers:
                found += decode_records(bytes(buffer))
            at = result.next_offset
        return found

    async def same(self, topic: str, queue: int, bodies: list[bytes]) -> None:
        """Wait until every broker's queue holds these bodies."""
        await self.until(
            lambda: all(self.bodies(broker, topic, queue) == bodies for broker in self.brokers.values()),
            f"queues of {topic} differ",
        )


async def expire(broker: Broker, done: Callable[[], bool]) -> None:
    """Clean the broker's store until done() holds; a DLedger member deletes files asynchronously."""
    store = broker.store
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            await store.write_all()
            store.delete_expired_files()
            await store._maintenance.clean()
            if done():
                return
            await asyncio.sleep(0.02)  # poll


async def copies_nothing(copy: LeaderCopy) -> None:
    """In place of `LeaderCopy.restart`: no member copies the tables of its leader."""
    await copy.stop()


@asynccontextmanager
async def ledger_group(
    folder: Path,
    size: int = 3,
    *,
    raft: dict[str, Any] | None = None,
    store: dict[str, Any] | None = None,
    start: bool = True,
    tls: TlsSettings | None = None,
    **broker: Any,
) -> AsyncIterator[LedgerGroup]:
    made = LedgerGroup(folder, size, raft or {}, store or {}, broker, tls)
    await made.start_namesrv()
    try:
        if start:
            for name in made.names:
                await made.start(name)
        yield made
    finally:
        await made.client.close()
        for name in list(made.brokers):
            await made.stop(name)
        await made.namesrv.stop()


def client_of(group: LedgerGroup) -> Client:
    return Client(name_servers=group.name_servers)
