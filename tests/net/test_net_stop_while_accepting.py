"""A connection that is accepted while its server stops is closed, not leaked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings

from saturnmq.net.connection import Connection
from saturnmq.net.server import RemotingServer
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.frames.command import Command


def refuse(connection: Connection, command: Command) -> Command:
    return command.reply(1, "refused")


def test_connection_accepted_while_server_stops_is_closed() -> None:
    async def run() -> None:
        server = RemotingServer(refuse, settings=NetSettings())
        host, port = await server.start("127.0.0.1", 0)
        with socket.create_connection((host, port)) as peer:
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the socket is accepted now; the task that makes its transport runs after this one
            await server.stop()
            peer.settimeout(2)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(peer.recv, 1) == b""
        gc.collect()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(run())
