"""Serves the application with uvicorn, together with a background task whose end stops the server.

Requirements: CLI-09, CON-13.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from saturnmq.net.shares import Shares
from saturnmq.protocol.errors import ConfigError
from saturnmq.tasks import cancel

CONNECTIONS_MAX: Final = 200
HEADER_BYTES_MAX: Final = 16_384
_KEEP_SECONDS: Final = 20
STOP_SECONDS: Final = 2
REQUEST_SECONDS: Final = 30.0  # for a whole request; a response has as long again


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process by the signal and not with exit code 0."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class _Connection(H11Protocol):
    """HTTP with a deadline for each request and each response: uvicorn has none until the first request has come.

    Without it, CONNECTIONS_MAX connections that send nothing keep all others out. shares: the connections of each address, of
    which none but this machine gets more than it leaves to others.
    """

    request_seconds = REQUEST_SECONDS
    shares: Shares
    _host = ""
    _counted = False
    _deadline: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()
        name = transport.get_extra_info("peername")
        self._host = str(name[0]) if name else ""
        if self.shares.exceeded(self._host, 1, max(CONNECTIONS_MAX, self.shares.total + 1)) is not None:
            transport.abort()
            return
        self._counted = True
        self.shares.add(self._host, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._counted:
            self._counted = False
            self.shares.add(self._host, -1)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._begin()
        super().on_response_complete()

    def _begin(self) -> None:
        self._end()
        self._deadline = self.loop.call_later(self.request_seconds, self._late)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _late(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        # The deadline is for a request to arrive whole. One that has arrived gets the same time once more, for its response.
        answering = cycle is not None and not cycle.response_complete and not cycle.more_body
        if answering and cycle is not self._answering:
            self._answering = cycle
            self._begin()
        else:
            self.transport.abort()


class Server:
    """One listening address. certificate and key: PEM files, for TLS. request_seconds: time for a request to arrive."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._where = f"{host}:{port}"
        self._socket = _listen(host, port)
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                ssl_certfile=None if certificate is None else str(certificate),
                ssl_keyfile=None if key is None else str(key),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=_KEEP_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                http=type("Connection", (_Connection,), {"request_seconds": request_seconds, "shares": Shares()}),
                ws="none",
            )
        )

    def stop(self) -> None:
        """End `run` after the requests in progress."""
        self._server.should_exit = True

    async def run(self, started: Callable[[str], None], background: Coroutine[Any, Any, object]) -> None:
        """Serve until `stop`. started: called with host:port. background: runs meanwhile; its failure is raised."""
        work = asyncio.ensure_future(background)
        serving = asyncio.ensure_future(self._server.serve([self._socket]))
        up = asyncio.ensure_future(self._server.up.wait())
        try:
            await asyncio.wait((up, serving), return_when=asyncio.FIRST_COMPLETED)
            if not up.done():  # uvicorn logs why and returns
                raise ConfigError(f"the console cannot serve on {self._where}; --debug shows why")
            host, port = self._socket.getsockname()[:2]
            started(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            await asyncio.wait((serving, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self.stop()
            await serving
            await cancel(work, up)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError naming the address and the reason."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"the console cannot listen on {host}:{port}: {error.strerror or error}; --port chooses another"
        ) from None
    return listening
