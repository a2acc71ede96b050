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
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.errors import ConfigError
from saturnmq.tasks import cancel

CONNECTIONS_MAX: Final = 200
HEADER_BYTES_MAX: Final = 16_384
_KEEP_ALIVE_SECONDS: Final = 20
STOP_SECONDS: Final = 2
REQUEST_SECONDS: Final = 30.0  # for a whole request; a response has as long again


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process by the signal and not with exit code 0.

    has_started: set once it serves.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


class _Connection(H11Protocol):
    """HTTP with a deadline for each request and each response: uvicorn has none until the first request has arrived.

    Without it, CONNECTIONS_MAX connections that send nothing would keep all others out. shares: the connections of each address.
    An address other than this machine's may have at most as many as it leaves free for others.
    """

    request_seconds = REQUEST_SECONDS
    shares: Shares
    _host = ""
    _is_counted = False
    _deadline: asyncio.TimerHandle | None = None
    _extended_cycle: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        if self.shares.exceeded(self._host, 1, max(CONNECTIONS_MAX, self.shares.total + 1)) is not None:
            transport.abort()
            return
        self._is_counted = True
        self.shares.add(self._host, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        if self._is_counted:
            self._is_counted = False
            self.shares.add(self._host, -1)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._start_deadline()
        super().on_response_complete()

    def _start_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.request_seconds, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _on_deadline(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        # A request must have arrived whole by the deadline. Its response then gets the same time once more.
        is_responding = cycle is not None and not cycle.response_complete and not cycle.more_body
        if is_responding and cycle is not self._extended_cycle:
            self._extended_cycle = cycle
            self._start_deadline()
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
        self._listen_address = join_host_port(host, port)
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
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                http=type("Connection", (_Connection,), {"request_seconds": request_seconds, "shares": Shares()}),
                ws="none",
            )
        )

    def stop(self) -> None:
        """End `run` after the requests in progress."""
        self._server.should_exit = True

    async def run(self, on_started: Callable[[str], None], background: Coroutine[Any, Any, object]) -> None:
        """Serve until `stop` or the end of `background`, whose error is raised. on_started: called with host:port."""
        background_task = asyncio.ensure_future(background)
        serving = asyncio.ensure_future(self._server.serve([self._socket]))
        startup = asyncio.ensure_future(self._server.has_started.wait())
        try:
            await asyncio.wait((startup, serving), return_when=asyncio.FIRST_COMPLETED)
            if not startup.done():  # uvicorn logs why and returns
                raise ConfigError(f"the console cannot serve on {self._listen_address}; --debug shows why")
            host, port = self._socket.getsockname()[:2]
            on_started(join_host_port(host, port))
            await asyncio.wait((serving, background_task), return_when=asyncio.FIRST_COMPLETED)
            if background_task.done():
                background_task.result()
        finally:
            self.stop()
            await serving
            await cancel(background_task, startup)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError naming the address and the reason."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"the console cannot listen on {join_host_port(host, port)}: {error.strerror or error}; --port chooses another"
        ) from None
    return listener
