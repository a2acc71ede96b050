"""The HTTP port that Prometheus scrapes: GET /metrics and nothing else, without accounts.

One request per connection. The text is made and sent in slices: after SLICE_SECONDS of work the event loop serves others, and the
scrapes in progress take turns, so that an event-loop iteration has one slice at most. A peer that does not read stops its own
scrape only. Everything a peer can use is bounded: connections, bytes of the request, time for the request and for the response.

Requirements: INT-11, MON-17.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Final

from saturnmq.log_limit import LogLimit
from saturnmq.metrics import CONTENT_TYPE
from saturnmq.net.rejections import Rejections
from saturnmq.net.server import start_error
from saturnmq.net.shares import Shares

log = logging.getLogger(__name__)

PATH: Final = "/metrics"
CONNECTIONS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 8192
REQUEST_SECONDS: Final = 5.0
RESPONSE_SECONDS: Final = 60.0
SLICE_SECONDS: Final = 0.002
CHUNK_BYTES: Final = 65_536
_END: Final = b"\r\n\r\n"
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
                   431: "Request Header Fields Too Large", 503: "Service Unavailable"}  # fmt: skip


class MetricsPort:
    """Serves the pieces of a scrape.

    pieces: makes the text of one scrape. request_seconds, response_seconds: time that a peer has to send its request, and to read
    the response.
    """

    def __init__(
        self,
        pieces: Callable[[], Iterator[bytes]],
        rejections: Rejections | None = None,
        *,
        request_seconds: float = REQUEST_SECONDS,
        response_seconds: float = RESPONSE_SECONDS,
    ) -> None:
        self._pieces = pieces
        self._rejections = rejections or Rejections()
        self._request_seconds, self._response_seconds = request_seconds, response_seconds
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._shares = Shares()
        self._failure_log = LogLimit(interval_seconds=60.0)
        self.address = ("", 0)  # host and port, once it listens
        self.scrapes = 0  # completed

    async def start(
        self, host: str, port: int, *, chosen_by: str = "keys metricsAddress, metricsPort"
    ) -> tuple[str, int]:
        """Listen and return the bound address; port 0 binds a free one. Raises StartError."""
        try:
            self._server = await asyncio.start_server(self._accepted, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise start_error(host, port, error, chosen_by) from error
        name = self._server.sockets[0].getsockname()
        self.address = (name[0], name[1])
        log.info("metrics port open address=%s:%s", *self.address)
        return self.address

    async def stop(self) -> None:
        """Close the port and its connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        open_tasks = list(self._open)
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX or self._server is None:
            self._note(writer, f"{CONNECTIONS_MAX} connections of the metrics port are open")
            # Without a response: an overloaded port must not spend work on refusals.
            writer.transport.abort()
            return
        name = writer.get_extra_info("peername")
        host = str(name[0]) if name else ""
        problem = self._shares.exceeded(host, 1, CONNECTIONS_MAX)
        if problem is not None:
            self._note(writer, f"connections of the metrics port: {problem}")
            writer.transport.abort()
            return
        self._shares.add(host, 1)
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._open.add(task)

        def closed(task: asyncio.Task[None]) -> None:
            self._open.discard(task)
            self._shares.add(host, -1)

        task.add_done_callback(closed)

    def _note(self, writer: asyncio.StreamWriter, text: str) -> None:
        name = writer.get_extra_info("peername")
        self._rejections.note("metrics", f"{name[0]}:{name[1]}" if name else "", text)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # drain() waits until the kernel has everything
        try:
            with contextlib.suppress(ConnectionError):
                await self._serve(reader, writer)
        except TimeoutError:
            self._note(writer, f"response not read within {self._response_seconds:g} s")
        except Exception:
            suppressed = self._failure_log.suppressed("")
            if suppressed is not None:
                log.exception("scrape failed suppressed=%s", suppressed)
        finally:
            # The rest will not be read: without abort, wait_closed could wait for it without end.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_seconds):
                head = await reader.readuntil(_END)
        except asyncio.IncompleteReadError:
            return
        # A request larger than the buffer.
        except asyncio.LimitOverrunError:
            status, version = 431, "HTTP/1.1"
        except TimeoutError:
            status, version = 408, "HTTP/1.1"
        else:
            status, version = _status(head)
        if status != 200:
            self._note(writer, f"HTTP status {status}")
            writer.write(_head(status) + f"{status} {_REASONS[status]}\n".encode())
        async with asyncio.timeout(self._response_seconds):
            if status == 200:
                await self._scrape(writer, chunked=version == "HTTP/1.1")
            await writer.drain()

    async def _scrape(self, writer: asyncio.StreamWriter, *, chunked: bool) -> None:
        writer.write(_head(200, chunked=chunked))
        pieces = self._pieces()
        complete = False
        while not complete:
            # One slice of all scrapes per iteration, in turn.
            async with self._turn:
                data, complete = _slice(pieces)
                await asyncio.sleep(0)  # before the next slice, also of another scrape
            if data:
                writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                await writer.drain()
        # With HTTP/1.0 the end of the connection ends the text.
        if chunked:
            writer.write(b"0\r\n\r\n")
        self.scrapes += 1


def _slice(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """The text of one slice, and whether it was the last one."""
    # CPU time: a busy machine must not make slices smaller.
    until, parts, size = thread_time() + SLICE_SECONDS, [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES or thread_time() >= until:
            return b"".join(parts), False
    return b"".join(parts), True


def _status(head: bytes) -> tuple[int, str]:
    """Status for a request, and its version of HTTP."""
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        return 400, "HTTP/1.1"
    method, target, version = parts
    # Prometheus may add parameters, which have no meaning here.
    if target.partition("?")[0] != PATH:
        return 404, version
    return (200 if method == "GET" else 405), version


def _head(status: int, *, chunked: bool = False) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", "Connection: close", "X-Content-Type-Options: nosniff"]
    lines.append(f"Content-Type: {CONTENT_TYPE}" if status == 200 else "Content-Type: text/plain; charset=utf-8")
    if status == 405:
        lines.append("Allow: GET")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
