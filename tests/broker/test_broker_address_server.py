"""The client of the HTTP address server: what it asks, how long it waits, and how long an answer may be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from saturnmq.broker.services import address_server
from saturnmq.broker.services.address_server import ANSWER_BYTES_MAX, LookupFailed, look_up, parse

HEAD = b"HTTP/1.0 200 OK\r\n\r\n"


class Server:
    """An address server with one answer, given in parts; None: it is silent from then on."""

    def __init__(self, *parts: bytes | None) -> None:
        self.parts = parts
        self.requests: list[bytes] = []
        self.tasks: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):  # the client has closed
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            for part in self.parts:
                if part is None:
                    await reader.read()  # until the client closes
                else:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    await asyncio.gather(*(task for task in server.tasks if task is not None))


async def test_answer_in_parts_is_read_until_the_server_closes() -> None:
    server = Server(HEAD + b"a:1;", b"b:2;", b"c:3")
    async with serving(server) as domain:
        assert await look_up(domain, "group-a") == ["a:1", "b:2", "c:3"]
        (request,) = server.requests
        assert request.decode().split("\r\n") == [
            "GET /rocketmq/group-a HTTP/1.0", f"Host: {domain}", "Connection: close", "", "",
        ]  # fmt: skip


@pytest.mark.parametrize("parts", [(None,), (HEAD + b"a:1", None)])
async def test_silent_server_is_given_up_after_three_seconds(parts: tuple[bytes | None, ...]) -> None:
    async with serving(Server(*parts)) as domain:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        with pytest.raises(LookupFailed, match=f"address server {domain}: TimeoutError"):
            await look_up(domain, "nsaddr")
        assert 3.0 <= loop.time() - begin < 3.5


async def test_answer_without_end_is_cut_off() -> None:
    async with serving(Server(*[b"x" * ANSWER_BYTES_MAX] * 50)) as domain:
        with pytest.raises(LookupFailed):
            await look_up(domain, "nsaddr")


@pytest.mark.parametrize("domain", ["127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:70000"])
async def test_domain_without_a_server_is_a_failed_lookup(domain: str) -> None:
    with pytest.raises(LookupFailed, match=f"address server {domain}: "):
        await look_up(domain, "nsaddr")


async def test_default_port_is_8080(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    async def connect(host: str, port: int, **_: object) -> None:
        asked.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(address_server.asyncio, "open_connection", connect)
    for domain in ("names.example", "names.example:8081"):
        with pytest.raises(LookupFailed):
            await look_up(domain, "nsaddr")
    assert asked == [("names.example", 8080), ("names.example", 8081)]


def test_answer_is_accepted_up_to_its_limits() -> None:
    most = [f"host-{number}:1" for number in range(64)]
    assert parse(HEAD + ";".join(most).encode()) == most
    with pytest.raises(LookupFailed, match="the address server's list is"):
        parse(HEAD + ";".join([*most, "one:1"]).encode())
    spaces = b" " * (ANSWER_BYTES_MAX - len(HEAD) - 3)
    assert parse(HEAD + spaces + b"a:1") == ["a:1"]
    with pytest.raises(LookupFailed, match="the address server answered"):
        parse(HEAD + spaces + b" a:1")
    assert parse(b"HTTP/1.0 200\r\n\r\na:1, b:2 ,") == ["a:1", "b:2"]
    with pytest.raises(LookupFailed):
        parse(b"HTTP/1.0\r\n\r\na:1")
