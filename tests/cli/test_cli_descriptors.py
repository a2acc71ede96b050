"""Servers under a flood of idle connections with few file descriptors: other clients and the store are unaffected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from saturnmq import Client
from saturnmq.net import ConnectFailed, NetSettings, RemotingClient
from saturnmq.net.budget import LISTENER_SHARE
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from waiting import until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the limit and the descriptors of another process"
)

Start = Callable[..., Any]
LIMIT = 512
QUEUES = 128
FLOOD = 200  # idle sockets per port, 600 in all
SECONDS_MAX = 30


class Flood:
    """Idle sockets to several ports."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    @property
    def open(self) -> int:
        """Sockets that the server has not closed."""
        return len(self._selector.get_map())

    def connect(self, address: tuple[str, int], count: int) -> None:
        for _ in range(count):
            sock = socket.create_connection(address, SECONDS_MAX)
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)

    def discard_closed(self, wait_seconds: float) -> None:
        for key, _ in self._selector.select(wait_seconds):
            self._discard(key)

    def _discard(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()

    def wait_until_at_most(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while self.open > count and (left := deadline - time.monotonic()) > 0:
            self.discard_closed(left)
        assert self.open <= count

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._discard(key)


@pytest.fixture
def flood() -> Iterator[Flood]:
    with contextlib.closing(Flood()) as idle:
        yield idle


def address_of(text: str, below: int = 0) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port) - below


async def send_to_every_queue(client: Client, topic: str) -> None:
    async with client.producer("p-" + topic) as out:
        for queue in await out.queues(topic):
            assert (await out.send(topic, b"x", queue=queue)).offset == 0


@pytest.mark.spec("LIM-08")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_flood_of_idle_sockets_leaves_descriptors_to_store(
    standalone: Start, flood: Flood, tmp_path: Path, loop: str
) -> None:
    conf = tmp_path / "x.conf"
    conf.write_text("firstFrameTimeoutMillis=600000\nflushConsumeQueueLeastPages=1\nflushIntervalConsumeQueue=10\n"
                    "flushConsumeQueueThoroughInterval=10\n")  # fmt: skip
    port = str(free_port((0, -2)))
    server = standalone("-c", str(conf), "--port", port, env={"SATURNMQ_LOOP": loop}, descriptors=(LIMIT, LIMIT))
    ports = [address_of(server.facts["namesrv"]), *(address_of(server.facts["broker"], below) for below in (0, 2))]

    async def work() -> None:
        async with Client.from_url("rmq://" + server.facts["namesrv"]) as client:
            await client.create_topic("before", queues=4)
            await send_to_every_queue(client, "before")
            for port in ports:
                await asyncio.to_thread(flood.connect, port, FLOOD)
            await asyncio.to_thread(flood.wait_until_at_most, LIMIT // 2 + LISTENER_SHARE)
            await client.create_topic("during", queues=QUEUES)
            await send_to_every_queue(client, "during")
            queues = tmp_path / "data" / "consumequeue" / "during"
            await until(lambda: len([file for file in queues.glob("*/*") if file.is_file()]) == QUEUES, SECONDS_MAX)
            assert flood.open > LIMIT // 2 - 32
            flood.close()
            await client.create_topic("later")  # answered after the closed connections were seen
        async with Client.from_url("rmq://" + server.facts["namesrv"]) as client:  # new connections are accepted again
            await send_to_every_queue(client, "later")

    asyncio.run(work())
    assert server.stop() == 0
    text = "\n".join(server.err)
    assert "Too many open files" not in text and "Traceback" not in text
    assert "rejected reason=descriptors peer=127.0.0.1:" in text
    assert text.count("\n") < 100


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.spec("LIM-08")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_accept_without_descriptors_neither_spins_nor_fills_log(serve: Start, flood: Flood, loop: str) -> None:
    settings = ("--set", "serverDescriptorsReserved=0", "--set", "firstFrameTimeoutMillis=600000")
    server = serve("namesrv", "--port", "0", *settings, env={"SATURNMQ_LOOP": loop}, descriptors=(128, 128))
    address = server.facts["namesrv"]

    async def ask(remoting: RemotingClient) -> int:
        return (await remoting.invoke(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), 10_000)).code

    async def work() -> None:
        remoting = RemotingClient(settings=NetSettings())
        assert await ask(remoting) == 0
        await asyncio.to_thread(flood.connect, address_of(address), 200)
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        await until(
            lambda: len(list(descriptors.iterdir())) >= 128 - 1, SECONDS_MAX
        )  # libuv keeps one to reject connections
        before = cpu_seconds(server.process.pid)
        deadline = time.monotonic() + 2
        while (left := deadline - time.monotonic()) > 0:  # events of a rejected connection, otherwise the deadline
            await asyncio.to_thread(flood.discard_closed, left)
        assert cpu_seconds(server.process.pid) - before < 1
        assert await ask(remoting) == 0  # existing connections are unaffected
        flood.close()
        await remoting.close()
        again = RemotingClient(settings=NetSettings())
        await until_answered(again)
        await again.close()

    async def until_answered(remoting: RemotingClient) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                with contextlib.suppress(ConnectFailed):
                    assert await ask(remoting) == 0
                    return

    asyncio.run(work())
    assert server.stop() == 0
    assert len(server.err) < 20, server.err
    assert ("accept failed" in "".join(server.err)) is (loop == "asyncio")


@pytest.mark.spec("LIM-08")
def test_server_raises_soft_limit_to_hard_limit(serve: Start) -> None:
    server = serve("namesrv", "--port", "0", descriptors=(256, 1024))
    assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (1024, 1024)
    assert server.stop() == 0
