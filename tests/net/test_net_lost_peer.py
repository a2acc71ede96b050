"""Requests that a peer sent before it closed without waiting for responses are handled. Uses real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from saturnmq.net import Connection, NetSettings, RemotingServer
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
