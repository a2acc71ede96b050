"""Connections of a client: request hooks, and closing of idle connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from saturnmq.net import NO_RESPONSE, Connection, NetSettings, RemotingClient, RemotingServer
from saturnmq.protocol.frames.command import Command

ANSWERED, SILENT, FORBIDDEN = 10, 11, 12


class Watch:
    """Records why connections were closed."""

    def __init__(self) -> None:
        self.reasons: asyncio.Queue[str] = asyncio.Queue()

    def connected(self, connection: Connection) -> None:
        pass

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.put_nowait(reason)


@asynccontextmanager
async def server(got: list[Command]) -> AsyncIterator[str]:
    """A server that answers everything but SILENT; yields its address."""

    def handle(connection: Connection, request: Command) -> Command | bytes:
        got.append(request)
        return NO_RESPONSE if request.code == SILENT else request.reply()

    remoting = RemotingServer(handle, settings=NetSettings())
    host, port = await remoting.start("127.0.0.1", 0)
    try:
        yield f"{host}:{port}"
    finally:
        await remoting.stop()


@pytest.mark.spec("REM-15")
@pytest.mark.loop(real=True)
async def test_client_hooks_run_before_each_request_and_after_its_answer() -> None:
    seen: list[tuple[str, str, int]] = []
    client_of: list[RemotingClient] = []

    class Hook:
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, remote: str, request: Command) -> None:
            assert client_of[0].is_connected(remote), "the connection is there"
            if request.code == FORBIDDEN:
                raise PermissionError("no")
            seen.append((self.name, "before", request.code))
            request.ext[self.name] = "was here"

        def after(self, remote: str, request: Command, response: Command) -> None:
            assert response.opaque == request.opaque
            seen.append((self.name, "after", request.code))

    got: list[Command] = []
    async with asyncio.timeout(20), server(got) as address:
        client = RemotingClient(settings=NetSettings())
        client_of.append(client)
        for name in ("a", "b"):
            client.add_hook(Hook(name))
        for _ in range(2):  # on a new connection, and on an existing one
            await client.invoke(address, Command(ANSWERED), 5000)
        both = [
            ("a", "before", ANSWERED),
            ("b", "before", ANSWERED),
            ("a", "after", ANSWERED),
            ("b", "after", ANSWERED),
        ]
        assert seen == both * 2 and got[0].ext == {"a": "was here", "b": "was here"}
        seen.clear()
        await client.invoke_oneway(address, Command(SILENT), 5000)
        with pytest.raises(PermissionError):
            await client.invoke(address, Command(FORBIDDEN), 5000)
        await client.invoke(address, Command(ANSWERED), 5000)
        assert seen == [("a", "before", SILENT), ("b", "before", SILENT), *both]
        assert [request.code for request in got] == [ANSWERED, ANSWERED, SILENT, ANSWERED]
        await client.close()


@pytest.mark.spec("REM-23")
@pytest.mark.loop(real=True)
async def test_idle_connection_is_closed_by_the_client() -> None:
    assert NetSettings().client_idle_seconds == 120
    watch = Watch()
    settings: Any = {"client_idle_seconds": 0.2}
    async with asyncio.timeout(20), server([]) as address:
        client = RemotingClient(settings=NetSettings(**settings), listener=watch)
        await client.invoke(address, Command(ANSWERED), 5000)
        assert client.is_connected(address)
        assert await watch.reasons.get() == "idle for 0.2 s"
        assert not client.is_connected(address)
        await client.invoke(address, Command(ANSWERED), 5000)
        await client.close()
