"""Plain sends of all connections are taken once per event-loop iteration, within the limits of each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from time import monotonic, thread_time

import pytest

from saturnmq.net import Connection, NetSettings, RemotingServer
from saturnmq.net.fairness import QUANTUM_SECONDS
from saturnmq.net.plain_reads import PlainReader
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from waiting import until

PLAIN, OTHER = 310, 11
ANSWER = encode_frame(Command(0, flag=1))


class Takes:
    """Takes frames of code PLAIN, each in `seconds` of processor time. events: what happened, in order."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.events: list[str] = []
        self.left: list[float] = []  # seconds of its quantum that each connection had
        self._seconds = seconds
        self._taken: dict[int, int] = {}

    def feed(self, data: bytes, until: float, reader: PlainReader) -> int:
        self.left.append(until - monotonic())
        at = 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data) or FrameDecoder().feed(data[at:end])[0].code != PLAIN:
                break
            at = end
            self._taken[PLAIN] = self._taken.get(PLAIN, 0) + 1
            reader.out.append(ANSWER)
        began = thread_time()
        while at and thread_time() - began < self._seconds:
            pass
        self.events.append("feed")
        return at

    def finish(self) -> dict[int, int]:
        taken, self._taken = self._taken, {}
        if taken:
            self.events.append(f"finish {taken[PLAIN]}")
        return taken


class Served:
    """A server whose plain sends `takes` takes, with connected clients."""

    def __init__(self, takes: Takes, stack: AsyncExitStack) -> None:
        self.takes = takes
        self._stack = stack
        self.handled: list[int] = []
        self._port = 0
        self.server = RemotingServer(self._handle, settings=NetSettings())

    def _handle(self, connection: Connection, request: Command) -> Command:
        self.handled.append(request.code)
        self.takes.events.append("handle")
        return request.reply(0)

    async def start(self) -> None:
        _, self._port = await self.server.start("127.0.0.1", 0)
        self._stack.push_async_callback(self.server.stop)
        self.server.take_plain(self.takes)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._stack.callback(writer.close)
        return reader, writer


def frames(*codes: int) -> bytes:
    return b"".join(encode_frame(Command(code, opaque=number)) for number, code in enumerate(codes))


async def test_sends_of_all_connections_become_visible_at_once_and_are_answered_after_that() -> None:
    async with AsyncExitStack() as stack:
        served = Served(Takes(), stack)
        await served.start()
        pairs = [await served.connect() for _ in range(5)]
        await until(lambda: len(served.server.connections) == 5)
        for connection in served.server.connections:  # as if one iteration had read all sockets
            connection.data_received(frames(PLAIN, PLAIN))
        assert served.takes.events == [] and not any(connection.out for connection in served.server.connections)
        for reader, _ in pairs:
            assert await reader.readexactly(2 * len(ANSWER)) == 2 * ANSWER
        assert served.takes.events == ["feed"] * 5 + ["finish 10"]


async def test_what_is_no_plain_send_is_handled_after_those_before_it_are_visible() -> None:
    async with AsyncExitStack() as stack:
        served = Served(Takes(), stack)
        await served.start()
        reader, writer = await served.connect()
        writer.write(frames(PLAIN, OTHER, OTHER, PLAIN))
        answers = FrameDecoder().feed(await reader.readexactly(4 * len(ANSWER)))
        assert len(answers) == 4 and [answer.opaque for answer in answers[:3]] == [0, 1, 2]
        assert served.takes.events.index("finish 1") < served.takes.events.index("handle")
        assert served.handled[:2] == [OTHER, OTHER]


async def test_a_send_that_arrives_in_several_reads_is_taken_once_it_is_complete() -> None:
    async with AsyncExitStack() as stack:
        served = Served(Takes(), stack)
        await served.start()
        reader, _ = await served.connect()
        await until(lambda: len(served.server.connections) == 1)
        (connection,) = served.server.connections
        data = frames(PLAIN) + encode_frame(Command(PLAIN, body=b"x" * 100)) + frames(PLAIN)
        for begin, end in ((0, 60), (60, 109), (109, 120), (120, 200), (200, len(data))):
            connection.data_received(data[begin:end])
            await until(lambda: not connection.held)
        assert await reader.readexactly(3 * len(ANSWER)) == 3 * ANSWER
        assert not served.handled
        assert not connection.frame_pending and not served.server.unsigned_frames.used


async def test_each_connection_has_its_own_quantum() -> None:
    async with AsyncExitStack() as stack:
        takes = Takes(QUANTUM_SECONDS / 2)
        served = Served(takes, stack)
        await served.start()
        for _ in range(8):
            await served.connect()
        await until(lambda: len(served.server.connections) == 8)
        for connection in served.server.connections:
            connection.data_received(frames(PLAIN))
        await until(lambda: len(takes.left) == 8)
        assert all(QUANTUM_SECONDS / 2 < left <= QUANTUM_SECONDS for left in takes.left), takes.left


@pytest.mark.spec("LIM-09")
async def test_a_network_that_has_used_its_time_waits_for_its_turn() -> None:
    async with AsyncExitStack() as stack:
        served = Served(Takes(0.003), stack)
        await served.start()
        for _ in range(4):
            await served.connect()
        await until(lambda: len(served.server.connections) == 4)
        served.server.fair_queue.joined("198.51.100.7")  # clients of two networks
        first, *others = served.server.connections
        for connection in (first, *others):
            connection.data_received(frames(PLAIN))
        await asyncio.sleep(0)  # the end of this iteration
        assert served.takes.events == ["feed", "finish 1"]
        assert all(connection.limits.yielding for connection in others)
        await until(lambda: served.takes.events.count("finish 1") == 4)
