"""NameServer and broker in the running loop, or in a thread of their own, with a small temporary store."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.store import StoreProfile, StoreSettings, wall_clock_ms

HOST = "127.0.0.1"
START_SECONDS_MAX = 30.0


class EmbeddedBroker:
    """A NameServer and a broker in the running loop.

    data: folder of the store; without it a temporary one that is removed at the end. settings and store override the defaults,
    clock_ms (Unix ms) the broker's clock.
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

    async def start(self) -> Self:
        """Serve on free ports of 127.0.0.1."""
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="saturnmq-"))
        try:
            kv = str(self.data / "namesrv" / "kvConfig.json")
            self._namesrv = NameServer(NameServerSettings(kv_config_path=kv), self._net)
            host, port = await self._namesrv.start(HOST, 0)
            self.name_servers = f"{host}:{port}"
            settings = dataclasses.replace(
                self._settings, namesrv_addr=self.name_servers, bind_address=HOST, listen_port=0
            )
            store = dataclasses.replace(self._store, store_path_root_dir=str(self.data / "store"))
            broker = Broker(settings, store, self._net, clock_ms=self._clock_ms)
            await broker.start()
            self._broker = broker
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """Stop both; a temporary store is removed."""
        try:
            if self._broker is not None:
                await self._broker.stop()
        finally:
            self._broker = None
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
    """The same in a thread of its own, for tests without a loop."""

    def __init__(self, data: Path | None = None, *, settings: BrokerSettings | None = None) -> None:
        self._inner = EmbeddedBroker(data, settings=settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="saturnmq-embedded", daemon=True)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def name_servers(self) -> str:
        return self._inner.name_servers

    @property
    def broker_address(self) -> str:
        return self._inner.broker_address

    def start(self) -> Self:
        """Serve on free ports of 127.0.0.1."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._inner.start(), self._loop).result(START_SECONDS_MAX)
        return self

    def stop(self) -> None:
        """Stop both and end the thread."""
        try:
            asyncio.run_coroutine_threadsafe(self._inner.stop(), self._loop).result(START_SECONDS_MAX)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_SECONDS_MAX)
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
