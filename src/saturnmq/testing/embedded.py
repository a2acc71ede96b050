"""NameServer and broker in the running loop, or in a thread of their own, with a small temporary store."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingServer
from saturnmq.store import StoreProfile, StoreSettings, wall_clock_ms
from saturnmq.testing.disk_faults import DiskFaults
from saturnmq.testing.loop_thread import LoopThread
from saturnmq.testing.requests_seen import RequestTap

HOST = "127.0.0.1"
START_SECONDS_MAX = 30.0


class EmbeddedBroker:
    """A NameServer and a broker in the running loop.

    data: folder of the store; without it a temporary one that is removed at the end. settings and store override the defaults,
    clock_ms (Unix ms) is the clock of both. tap: the requests that the broker has got, and answers instead of its own.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        settings: BrokerSettings | None = None,
        store: StoreSettings | None = None,
        net: NetSettings | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._own_folder = data is None
        self.data = data
        self._settings = settings or BrokerSettings()
        self._store = store or StoreSettings(profile=StoreProfile.SMALL)
        self._net = net or NetSettings()
        self._clock_ms = clock_ms
        self._namesrv: NameServer | None = None
        self._broker: Broker | None = None
        self._port = 0
        self.tap = RequestTap()
        self.name_servers = ""

    @property
    def url(self) -> str:
        """`rmq://host:port` of the NameServer."""
        return f"rmq://{self.name_servers}"

    @property
    def broker(self) -> Broker:
        """The running broker."""
        if self._broker is None:
            raise RuntimeError("the embedded broker is not started")
        return self._broker

    @property
    def namesrv(self) -> NameServer:
        """The running NameServer."""
        if self._namesrv is None:
            raise RuntimeError("the embedded broker is not started")
        return self._namesrv

    @property
    def broker_address(self) -> str:
        return self.broker.advertised_address

    @property
    def disk(self) -> DiskFaults:
        """What can go wrong with the broker's disk."""
        self.broker  # noqa: B018 - raises where it is not running
        return self._disk

    async def start(self) -> Self:
        """Serve on free ports of 127.0.0.1."""
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="saturnmq-"))
        try:
            kv = str(self.data / "namesrv" / "kvConfig.json")
            self._namesrv = NameServer(NameServerSettings(kv_config_path=kv), self._net, clock_ms=self._clock_ms)
            host, port = await self._namesrv.start(HOST, 0)
            self.name_servers = f"{host}:{port}"
            await self.start_broker()
        except BaseException:
            await self.stop()
            raise
        return self

    async def start_broker(self) -> None:
        """Start the broker, after `stop_broker` or `kill_broker` on its old port with its old store."""
        assert self.data is not None
        if self._broker is not None:
            return
        settings = dataclasses.replace(
            self._settings,
            namesrv_addr=self.name_servers,
            bind_address=HOST,
            listen_port=self._port,
            fast_port_enable=self._settings.fast_port_enable and not self._port,  # nobody keeps its port free
        )
        store = dataclasses.replace(self._store, store_path_root_dir=str(self.data / "store"))
        broker = Broker(settings, store, self._net, clock_ms=self._clock_ms)
        for server in (broker._server, broker._fast):
            server.handler = self.tap.wrap(server.handler)
        await broker.start()
        self._disk = DiskFaults(broker.store)
        self._broker = broker
        self._port = int(broker.address.rpartition(":")[2])

    async def stop_broker(self) -> None:
        """Stop the broker in good order; its store stays."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()

    async def kill_broker(self) -> None:
        """End the broker as SIGKILL would: no answer, no goodbye, nothing flushed; what the system has in its cache stays."""
        broker, self._broker = self._broker, None
        if broker is None:
            return
        for server in (broker._server, broker._fast):
            _cut(server)
        if broker.ctx.hold._timer is not None:
            broker.ctx.hold._timer.cancel()
        if broker._notify is not None:
            broker._notify.cancel()
        tasks = [*broker._tasks, *broker._server._tasks, *broker._fast._tasks]
        for owner in (broker.registrar, broker.ctx.delay._turns, broker.ctx.timer._turns, broker.ctx.transactions):
            if owner._task is not None:
                tasks.append(owner._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await broker.registrar._client.close()
        for saver in (broker.topics.saver, broker.ctx.groups.saver):
            if saver._writing is not None:  # a thread cannot be killed; what it began is done
                await asyncio.gather(saver._writing, return_exceptions=True)
        await broker.store._upkeep.stop()
        if broker.store.flusher._running is not None:
            await asyncio.gather(broker.store.flusher._running, return_exceptions=True)
        broker.store._open = False
        broker.store.close_files()

    async def stop(self) -> None:
        """Stop both; a temporary store is removed."""
        try:
            await self.stop_broker()
        finally:
            if self._namesrv is not None:
                await self._namesrv.stop()
                self._namesrv = None
            if self._own_folder and self.data is not None:
                shutil.rmtree(self.data, ignore_errors=True)
                self.data = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _cut(server: RemotingServer) -> None:
    """Close the listener and every connection, with nothing said."""
    server.stopping = True
    if server._server is not None:
        server._server.close()
        server._server = None
    if server._scan is not None:
        server._scan.cancel()
        server._scan = None
    for connection in list(server.connections):
        connection.abort()


class SyncEmbeddedBroker:
    """The same in a thread of its own, for tests without a loop, or with one that is not to be shared."""

    def __init__(
        self,
        data: Path | None = None,
        *,
        settings: BrokerSettings | None = None,
        store: StoreSettings | None = None,
        net: NetSettings | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.inner = EmbeddedBroker(data, settings=settings, store=store, net=net, clock_ms=clock_ms)
        self.thread = LoopThread("embedded")

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def name_servers(self) -> str:
        return self.inner.name_servers

    @property
    def broker_address(self) -> str:
        return self.inner.broker_address

    def start(self) -> Self:
        """Serve on free ports of 127.0.0.1."""
        self.thread.start()
        try:
            self.thread.call(self.inner.start(), START_SECONDS_MAX)
        except BaseException:
            self.thread.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop both and end the thread."""
        try:
            self.thread.call(self.inner.stop(), START_SECONDS_MAX)
        finally:
            self.thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
