"""Requests that a peer sent before it closed without waiting for responses are handled. Uses real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from saturnmq import slices as slices_module
from saturnmq.net import Connection, NetSettings, RemotingServer
from saturnmq.net import connection as connection_module
from saturnmq.net import endpoint as endpoint_module
from saturnmq.net import requests as requests_module
from saturnmq.net.endpoint import BaseConnectionListener
from saturnmq.protocol.frames.command import Command, encode_frame

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@pytest.mark.spec("REM-05", "REM-22")
def test_requests_received_before_reset_are_handled() -> None:
    handled: list[int] = []

    async def work() -> None:
        all_handled = asyncio.Event()
        peer = socket.socket()

        def handle(_: Connection, command: Command) -> Command:
            handled.append(command.opaque)
            if command.opaque == 0:  # while this one is handled, the others arrive and the peer resets
                peer.sendall(encode_frame(Command(10, opaque=1)) + encode_frame(Command(10, opaque=2)))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                peer.close()
            if command.opaque == 2:
                all_handled.set()
            return command.reply()

        server = RemotingServer(handle, settings=NetSettings())
        address = await server.start("127.0.0.1", 0)
        try:
            peer.connect(address)
            peer.sendall(encode_frame(Command(10, opaque=0)))
            await all_handled.wait()
        finally:
            peer.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), 10))
    assert handled == [0, 1, 2]


@pytest.mark.parametrize("reset_at", [0, 31], ids=["before the pause", "at the pause"])
def test_slow_requests_received_before_reset_are_handled(reset_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection yields after 20 ms of requests; one that is lost has no later event-loop iteration for the rest."""
    clock, count = [0.0], 200
    monkeypatch.setattr(requests_module, "monotonic", lambda: clock[0])
    handled: list[int] = []

    async def work() -> None:
        all_handled = asyncio.Event()
        peer = socket.socket()
        frames = [encode_frame(Command(10, opaque=number)) for number in range(count)]

        def handle(_: Connection, command: Command) -> Command:
            handled.append(command.opaque)
            clock[0] += 0.001
            if command.opaque == reset_at:
                peer.sendall(b"".join(frames[100:]))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                peer.close()
            if command.opaque == count - 1:
                all_handled.set()
            return command.reply()

        server = RemotingServer(handle, settings=NetSettings())
        address = await server.start("127.0.0.1", 0)
        try:
            peer.connect(address)
            peer.sendall(b"".join(frames[:100]))
            await all_handled.wait()
        finally:
            peer.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), 10))
    assert handled == list(range(count))


@pytest.mark.spec("REM-12", "LIM-09")
def test_requests_received_before_reset_leave_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of lost connections are handled in slices: those of a live one are not delayed until all of them are."""
    clock, count = [0.0], 200
    for module in (requests_module, connection_module, slices_module):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(slices_module, "thread_time", lambda: clock[0])
    handled: list[int] = []

    async def work() -> None:
        all_handled = asyncio.Event()
        lost, live = socket.socket(), socket.socket()
        live.setblocking(False)

        def handle(_: Connection, command: Command) -> Command:
            handled.append(command.opaque)
            clock[0] += 0.001
            if command.opaque == 0:
                lost.sendall(b"".join(encode_frame(Command(10, opaque=number)) for number in range(1, count)))
                lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                lost.close()
                live.send(encode_frame(Command(10, opaque=-1)))
            if command.opaque == count - 1:
                all_handled.set()
            return command.reply()

        server = RemotingServer(handle, settings=NetSettings())
        address = await server.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(live, address)
            lost.connect(address)
            lost.sendall(encode_frame(Command(10, opaque=0)))
            await all_handled.wait()
        finally:
            lost.close()
            live.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), 15))
    assert [number for number in handled if number >= 0] == list(range(count))
    assert handled.index(-1) < count // 2


def test_lost_connections_beyond_the_limit_are_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "DRAINING_MAX", 0)
    handled: list[int] = []

    async def work() -> None:
        gone, peer = asyncio.Event(), socket.socket()

        class Seen(BaseConnectionListener):
            def closed(self, connection: Connection, reason: str) -> None:
                gone.set()

        def handle(_: Connection, command: Command) -> Command:
            handled.append(command.opaque)
            peer.sendall(encode_frame(Command(10, opaque=1)))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            peer.close()
            return command.reply()

        server = RemotingServer(handle, settings=NetSettings(), listener=Seen())
        try:
            peer.connect(await server.start("127.0.0.1", 0))
            peer.sendall(encode_frame(Command(10, opaque=0)))
            await gone.wait()
        finally:
            peer.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), 15))
    assert handled == [0]
