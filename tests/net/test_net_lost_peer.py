"""Requests that a peer sent before it closed without waiting for responses are handled. Uses real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from saturnmq.net import Connection, NetSettings, RemotingServer
from saturnmq.net import requests as requests_module
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
