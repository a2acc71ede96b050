"""Helpers for the transport tests: connected server and client, raw sockets, and a runner with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from saturnmq.net import Connection, Later, NetSettings, RemotingClient, RemotingServer
from saturnmq.protocol.frames.command import Command

DEADLINE_SECONDS = 20


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function with a deadline. An exception that reaches the event loop's handler fails the test."""
    problems: list[dict[str, Any]] = []

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await work()

    result = asyncio.run(bounded())
    assert not problems, problems
    return result


def echo(connection: Connection, request: Command) -> Command:
    return request.reply(0, None, dict(request.ext), request.body)


def replying(handler: Any) -> Any:
    """The handler; one that is a coroutine function answers later."""
    return (lambda *request: Later(handler(*request))) if inspect.iscoroutinefunction(handler) else handler


class Pair:
    """A running server, its address, and a client."""

    def __init__(self, server: RemotingServer, client: RemotingClient, host: str, port: int) -> None:
        self.server, self.client, self.host, self.port = server, client, host, port
        self.address = f"{host}:{port}"

    async def socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    async def call(self, command: Command, timeout_ms: int = 5000) -> Command:
        return await self.client.invoke(self.address, command, timeout_ms)


@asynccontextmanager
async def pair(
    handler: Any = echo,
    settings: NetSettings | None = None,
    *,
    tls: Any = None,
    client_tls: Any = None,
    listener: Any = None,
    client_handler: Any = None,
) -> AsyncIterator[Pair]:
    settings = settings or NetSettings()
    server = RemotingServer(replying(handler), settings=settings, tls=tls, listener=listener)
    host, port = await server.start("127.0.0.1", 0)
    client = RemotingClient(settings=settings, tls=client_tls, handler=replying(client_handler))
    try:
        yield Pair(server, client, host, port)
    finally:
        await client.close()
        await server.stop()
