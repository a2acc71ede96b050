"""The HTTP port for Prometheus: what it serves, and what a hostile peer gets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from saturnmq.metrics import CONTENT_TYPE
from saturnmq.net import StartError
from saturnmq.net.metrics_port import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsPort
from saturnmq.net.rejections import Rejections
from waiting import until

TEXT = b"# HELP x Help.\n# TYPE x gauge\nx 1\n"


async def fetch(port: MetricsPort, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers and body of the answer to one request, read to the end of the connection."""
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*port.address)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines), body


def unchunked(body: bytes) -> bytes:
    whole = b""
    while True:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            assert rest == b"\r\n"
            return whole
        whole, body = whole + rest[:count], rest[count + 2 :]


def get(path: str = "/metrics", version: str = "1.1") -> bytes:
    return f"GET {path} HTTP/{version}\r\nHost: x\r\nAccept: */*\r\n\r\n".encode()


class Served:
    """A port with these pieces, on loopback."""

    def __init__(self, pieces: tuple[bytes, ...] = (TEXT,), request_seconds: float = 30) -> None:
        self.rejections = Rejections()
        self.port = MetricsPort(lambda: iter(pieces), self.rejections, request_seconds=request_seconds)

    async def __aenter__(self) -> MetricsPort:
        await self.port.start("127.0.0.1", 0)
        return self.port

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(30):
            await self.port.stop()


async def test_metrics_are_served_in_chunks_with_their_content_type() -> None:
    async with Served((TEXT, b"", b"y 2\n")) as port:
        status, headers, body = await fetch(port, get())
    assert status == "HTTP/1.1 200 OK"
    assert headers["Content-Type"] == CONTENT_TYPE
    assert headers["Connection"] == "close"
    assert unchunked(body) == TEXT + b"y 2\n"


async def test_http_1_0_gets_the_plain_body() -> None:
    async with Served() as port:
        _, headers, body = await fetch(port, get("/metrics?name[]=x", "1.0"))
    assert "Transfer-Encoding" not in headers
    assert body == TEXT


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (get("/"), "404"),
        (get("/metrics/../etc/passwd"), "404"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX, "431"),
    ],
)
async def test_other_requests_are_refused_and_counted(request_bytes: bytes, status: str) -> None:
    served = Served()
    async with served as port:
        line, headers, _ = await fetch(port, request_bytes)
        assert line.split(" ")[1] == status
        assert headers.get("Allow") == ("GET" if status == "405" else None)
        assert served.rejections.counts == {"metrics": 1}
        assert port.scrapes == 0


async def test_a_request_that_never_ends_is_answered_408() -> None:
    async with Served(request_seconds=0.05) as port:
        line, _, _ = await fetch(port, b"GET /metrics HTTP/1.1\r\n")
    assert line == "HTTP/1.1 408 Request Timeout"


async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    served = Served()
    async with served as port:
        held = [await asyncio.open_connection(*port.address) for _ in range(CONNECTIONS_MAX)]
        await until(lambda: len(port._open) == CONNECTIONS_MAX)
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(*port.address)
            with pytest.raises(ConnectionError):
                if not await reader.read():
                    raise ConnectionResetError
            writer.close()
            for _, one in held:
                one.close()
            await until(lambda: not port._open)
        status, _, _ = await fetch(port, get())
        assert status.endswith("200 OK")


async def test_a_peer_that_does_not_read_stops_only_its_own_scrape() -> None:
    made = 0

    def pieces() -> Iterator[bytes]:
        nonlocal made
        for _ in range(2000):
            made += 1
            yield bytes(65_536)

    port = MetricsPort(pieces)
    await port.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*port.address)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(get())
    await until(lambda: made)
    seen = -1
    while made != seen:  # until the kernel's buffers are full
        seen = made
        for _ in range(500):
            await asyncio.sleep(0)
    assert 0 < made < 1000
    async with asyncio.timeout(30):
        await port.stop()
    writer.close()


@pytest.mark.spec("INT-11")
async def test_scrapes_take_turns_by_event_loop_iterations() -> None:
    loop = asyncio.get_running_loop()
    iterations: list[int] = []
    now = 0

    def count() -> None:
        nonlocal now
        now += 1
        loop.call_soon(count)

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            iterations.append(now)
            yield bytes(65_536)  # a whole chunk: the end of a slice

    loop.call_soon(count)
    port = MetricsPort(pieces)
    await port.start("127.0.0.1", 0)
    await asyncio.gather(*(fetch(port, get()) for _ in range(3)))
    await port.stop()
    assert len(iterations) == 60
    assert len(set(iterations)) >= 57  # the last slice of a scrape has no text: it may share its iteration


async def test_a_port_in_use_is_named_with_the_keys_that_choose_it() -> None:
    async with Served() as port:
        with pytest.raises(StartError) as caught:
            await MetricsPort(lambda: iter(())).start(*port.address)
    assert str(port.address[1]) in str(caught.value)
    assert "metricsPort" in str(caught.value.hint)


@pytest.mark.spec("LIM-13")
async def test_an_address_leaves_half_of_the_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.net.shares.is_local", lambda host: False)
    async with Served() as port:
        held = [await asyncio.open_connection(*port.address) for _ in range(CONNECTIONS_MAX // 2)]
        await until(lambda: len(port._open) == CONNECTIONS_MAX // 2)
        async with asyncio.timeout(30):
            reader, refused = await asyncio.open_connection(*port.address)
            with pytest.raises(ConnectionError):
                if not await reader.read():
                    raise ConnectionResetError
        assert len(port._open) == CONNECTIONS_MAX // 2
        refused.close()
        for _, one in held:
            one.close()
        await until(lambda: not port._open)
        assert (await fetch(port, get()))[0].endswith("200 OK")


async def test_scrapes_that_fail_write_one_traceback_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterator[bytes]:
        raise TypeError("a defect")
        yield b""

    port = MetricsPort(broken)
    await port.start("127.0.0.1", 0)
    for _ in range(3):
        await fetch(port, get())
    await port.stop()
    assert sum("scrape failed" in record.message for record in caplog.records) == 1
