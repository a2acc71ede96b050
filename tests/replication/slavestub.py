"""Fixtures of the master-slave tests: a store with small files, its HA port, slaves of it, and a slave that is only a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from saturnmq.net import TlsSettings
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.message import Host, Message
from saturnmq.replication.masterslave.acks import SlaveAcks
from saturnmq.replication.masterslave.dispatch import SlaveDispatch
from saturnmq.replication.masterslave.master import HaMaster
from saturnmq.replication.masterslave.opening import slave_dispatch
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.replication.masterslave.slave import HaSlave
from saturnmq.replication.masterslave.stream import Frame, TransferDecoder, encode_report
from saturnmq.store import FlushDiskType, MessageStore, StoreProfile, StoreSettings
from waiting import until

FILE: Final = 65_536  # bytes of a commit log file
BROKER: Final = Host("127.0.0.1", 10911)
CLIENT: Final = Host("10.0.0.9", 5)
SYNC: Final = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def message(body: bytes = b"body", topic: str = "T", queue: int = 0, properties: bytes = b"") -> Message:
    return Message(topic, body, properties, queue, born_host=CLIENT, store_host=BROKER)


def small(path: Path, **more: Any) -> StoreSettings:
    values = {"commit_log_file_bytes": FILE, "consume_queue_file_bytes": 2000, "profile": StoreProfile.SMALL} | more
    return StoreSettings(store_path_root_dir=str(path), **values)


def opened(path: Path, **more: Any) -> MessageStore:
    store = MessageStore(small(path, **more))
    store.open()
    return store


def log_bytes(store: MessageStore, begin: int = 0, end: int | None = None) -> bytes:
    """The bytes of a store's log, from one offset to another or to its end."""
    stop = store.log.readable_end if end is None else end
    found = b""
    for file in store.log.files:
        found += bytes(file.view[max(begin - file.start, 0) : max(stop - file.start, 0)])
    return found


def running(name: str) -> int:
    """How many background tasks of this name run."""
    return sum(task.get_name() == name for task in asyncio.all_tasks())


class Port:
    """A store and its HA port."""

    def __init__(
        self, store: MessageStore, tls: TlsSettings | None = None, *, protected: bool = False, **settings: Any
    ) -> None:
        self.store = store
        self.settings = HaSettings(**settings)
        self.rejections = Rejections()
        self.acks = SlaveAcks(fall_behind_max=self.settings.fall_behind_max, timeout_ms=self.settings.slave_timeout_ms)
        self.master = HaMaster(
            self.settings,
            store.log,
            lambda: store.dispatched,
            store.disk,
            self.acks,
            protected=protected,
            rejections=self.rejections,
            tls=tls,
        )
        self.port = 0
        self.slaves: list[SocketSlave] = []

    async def slave(self) -> SocketSlave:
        """Connect another slave; it is closed with the port."""
        made = await SocketSlave.connect(self.port)
        self.slaves.append(made)
        return made

    async def reported_slave(self) -> SocketSlave:
        """Connect the first slave, and wait until its report of an empty log counts it among those that acknowledge."""
        made = await self.slave()
        made.report(0)
        await until(lambda: self.acks.slaves == 1)
        return made

    def put(self, count: int = 1, body: bytes = b"x" * 100, **more: Any) -> None:
        for _ in range(count):
            assert self.store.put(message(body, **more)).status.value == "PUT_OK"


@asynccontextmanager
async def serving(path: Path, *, flush: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Port]:
    """A started store with an open HA port; `flush` are settings of the store, all others of `Port`."""
    before = running("HA port")
    store = opened(path, **(flush or {}))
    await store.start()
    made = Port(store, **settings)
    try:
        _, made.port = await made.master.start("127.0.0.1", 0)
        yield made
    finally:
        for slave in made.slaves:
            await slave.close()
        await made.master.stop()
        await store.stop()
        assert running("HA port") == before, "the task of the port outlives it"


class SocketSlave:
    """A slave as the master sees it: reports that the test chooses, frames that it received."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = TransferDecoder()
        self._frames: list[Frame] = []

    @classmethod
    async def connect(cls, port: int) -> SocketSlave:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def report(self, offset: int) -> None:
        self.write(encode_report(offset))  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def frame(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        while not self._frames:
            try:
                data = await self._reader.read(65_536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def data(self, size: int) -> bytes:
        """The data of the next frames, as many as have `size` bytes together."""
        found = b""
        while len(found) < size:
            frame = await self.frame()
            assert frame is not None, f"closed after {len(found)} of {size} bytes"
            found += frame.data
        return found

    async def closed(self) -> None:
        """Wait until the master has closed the connection."""
        while await self.frame() is not None:
            pass

    async def closed_with(self, answer: bytes) -> None:
        """Wait until the master has closed the connection; check that it sent this before, and nothing else."""
        with contextlib.suppress(ConnectionError):
            assert await self._reader.read() == answer

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Slave:
    """A slave's store and its client."""

    def __init__(
        self,
        path: Path,
        address: Callable[[], str],
        store: dict[str, Any],
        settings: dict[str, Any],
        tls: TlsSettings | None = None,
    ) -> None:
        self.dispatch: SlaveDispatch = slave_dispatch(small(path, **store))
        self.store: MessageStore = self.dispatch.store
        self.client = HaSlave(HaSettings(**settings), self.dispatch, address, tls)

    async def has(self, port: Port) -> None:
        """Wait until everything of the master is visible here."""
        await until(lambda: self.store.dispatched >= port.store.dispatched, why=lambda: self.store.dispatched)


@asynccontextmanager
async def following(
    path: Path,
    port: Port | Callable[[], str],
    store: dict[str, Any] | None = None,
    tls: TlsSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Slave]:
    """A started slave of a master."""
    address = port if callable(port) else lambda: f"127.0.0.1:{port.port}"
    before = running("replication from the master")
    slave = Slave(path, address, store or {}, settings, tls)
    slave.store.open()
    await slave.store.start()
    slave.client.start()
    try:
        yield slave
    finally:
        await slave.client.stop()
        await slave.store.stop()
        assert running("replication from the master") == before, "the task of the slave outlives it"


@asynccontextmanager
async def liar(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A port that behaves as the test says; yields its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
