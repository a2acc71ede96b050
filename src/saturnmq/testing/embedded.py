"""Embedded broker: a NameServer and a broker in the running event loop or in a thread, on free loopback ports.

Both share one process and one `clock_ms`. Recording, faults and time travel use the public methods that the broker has for
them: `Broker.intercept`, `abort`, `connections`, `ports`, `expire_clients`, `MessageStore.clean`.

Requirements: TST-01, TST-06.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.protocol.addresses import port_of
from saturnmq.store import StoreProfile, StoreSettings, wall_clock_ms
from saturnmq.testing.disk_faults import DiskFaults
from saturnmq.testing.loop_thread import FixtureLoopThread
from saturnmq.testing.requests_seen import PlainTap, RequestTap

HOST = "127.0.0.1"
START_SECONDS_MAX = 30.0


class EmbeddedBroker:
    """A NameServer and a broker in the running event loop, on free ports of 127.0.0.1.

    Example:
        async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
            receipt = await out.send("orders", b"first")
            assert receipt.offset == 0

    data: folder for the store; it is kept. Without it, a temporary folder is created by `start` and removed by `stop`.
    settings, store, net: settings that replace the defaults (the default store uses small files).
    clock_ms: returns the current Unix time in ms; used by the broker and the NameServer (see `TravelClock`).

    Use it on the event loop that started it only; `SyncEmbeddedBroker` works from any thread. `tap` records the
    requests that the broker received and can replace its responses; `disk` injects disk faults.
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
        """URL of the NameServer, `rmq://host:port`, for `Client.from_url`."""
        return f"rmq://{self.name_servers}"

    @property
    def broker(self) -> Broker:
        """The running broker. Raises RuntimeError while it is stopped."""
        if self._broker is None:
            raise RuntimeError("the embedded broker is not started")
        return self._broker

    @property
    def namesrv(self) -> NameServer:
        """The running NameServer. Raises RuntimeError while it is stopped."""
        if self._namesrv is None:
            raise RuntimeError("the embedded broker is not started")
        return self._namesrv

    @property
    def running(self) -> bool:
        """Whether the broker runs."""
        return self._broker is not None

    @property
    def broker_address(self) -> str:
        """Address of the broker, `host:port`."""
        return self.broker.advertised_address

    @property
    def ports(self) -> set[int]:
        """Listening ports and the local ports of all open connections of both servers."""
        return self.namesrv.ports | (self.broker.ports if self.running else set())

    @property
    def disk(self) -> DiskFaults:
        """Fault injection for the broker's disk. Raises RuntimeError while the broker is stopped."""
        self.broker  # noqa: B018 - raises where it is not running
        return self._disk

    async def start(self) -> Self:
        """Start the NameServer and the broker on free ports of 127.0.0.1; returns self."""
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="saturnmq-"))
        try:
            folder = self.data / "namesrv"
            settings = NameServerSettings(
                kv_config_path=str(folder / "kvConfig.json"),
                config_store_path=str(folder / "namesrv.properties"),
                admin_addresses=self._settings.admin_addresses,
            )
            self._namesrv = NameServer(settings, self._net, clock_ms=self._clock_ms)
            host, port = await self._namesrv.start(HOST, 0)
            self.name_servers = f"{host}:{port}"
            await self.start_broker()
        except BaseException:
            await self.stop()
            raise
        return self

    async def start_broker(self) -> None:
        """Start the broker. After `stop_broker` or `kill_broker` it comes back on the same port with the same store."""
        assert self.data is not None
        if self._broker is not None:
            return
        settings = dataclasses.replace(
            self._settings,
            namesrv_addr=self.name_servers,
            bind_address=HOST,
            listen_port=self._port,
            # The fast port of a stopped broker cannot be reserved: after a restart there is none.
            fast_port_enable=self._settings.fast_port_enable and not self._port,
        )
        store = dataclasses.replace(self._store, store_path_root_dir=str(self.data / "store"))
        broker = Broker(settings, store, self._net, clock_ms=self._clock_ms)
        broker.intercept(self.tap.wrap, lambda plain: PlainTap(plain, self.tap))
        await broker.start()
        self._disk = DiskFaults(broker.store)
        self._broker = broker
        self._port = port_of(broker.address)

    async def stop_broker(self) -> None:
        """Stop the broker cleanly; its port and store are kept for `start_broker`."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()

    async def kill_broker(self) -> None:
        """End the broker as SIGKILL would: no responses, no unregistration, no flush. Data in the OS page cache survives."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.abort()

    async def stop(self) -> None:
        """Stop the broker and the NameServer; remove a temporary store."""
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


class SyncEmbeddedBroker:
    """An `EmbeddedBroker` on its own thread, for tests without an event loop.

    Example:
        with SyncEmbeddedBroker() as server, saturnmq.sync.Client.from_url(server.url) as client, client.producer("p") as out:
            assert out.send("orders", b"first").offset == 0

    Takes the same arguments as `EmbeddedBroker`. `inner` is that broker; touch it only on the loop of `thread`.
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
        self.inner = EmbeddedBroker(data, settings=settings, store=store, net=net, clock_ms=clock_ms)
        self.thread = FixtureLoopThread("embedded")

    @property
    def url(self) -> str:
        """URL of the NameServer, `rmq://host:port`, for `Client.from_url`."""
        return self.inner.url

    @property
    def name_servers(self) -> str:
        """Address of the NameServer, `host:port`."""
        return self.inner.name_servers

    @property
    def broker_address(self) -> str:
        """Address of the broker, `host:port`."""
        return self.inner.broker_address

    def start(self) -> Self:
        """Start both servers on free ports of 127.0.0.1; returns self. Blocks until they accept connections."""
        self.thread.start()
        try:
            self.thread.call(self.inner.start(), START_SECONDS_MAX)
        except BaseException:
            self.thread.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop both servers and end the thread."""
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
