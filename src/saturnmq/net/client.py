"""The calling side of the transport: one connection per address, shared by all callers.

Requirements: REM-16..REM-18, REM-22, REM-26.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Sequence
from typing import Final

from saturnmq.config.settings import without_credentials
from saturnmq.errors import CallTimeout, ConnectFailed, NoPermit
from saturnmq.net.calls import next_opaque
from saturnmq.net.connection import Connection, Handler
from saturnmq.net.endpoint import ConnectionListener, Endpoint
from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import TlsSettings, TlsStream, client_context
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.tasks import cancel, is_cancelled

log = logging.getLogger(__name__)

ADDRESSES_MAX: Final = 64  # of a list
_HOST_AND_PORT: Final = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]):([0-9]{1,5})")


def refuse(connection: Connection, command: Command) -> Command:
    """Handler of a client that accepts no requests from its peers."""
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises ConfigError that states the format."""
    host, _, port = address.rpartition(":")
    # Credentials of a URL must not reach a log or an error.
    if not host or "@" in host or not port.isdigit() or len(port) > 5 or not 0 < int(port) <= 65535:
        raise ConfigError(f"address {without_credentials(address)!r:.120} must be host:port with a port in 1..65535")
    return host.strip("[]"), int(port)


def split_addresses(text: str) -> list[str]:
    """The addresses of `host:port;host:port`, which commas may separate too; without duplicates, in order. Raises ConfigError."""
    if "@" in text or "://" in text:  # not shown: it may hold a secret
        raise ConfigError("must be host:port;host:port, without scheme and credentials")
    addresses = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    if len(addresses) > ADDRESSES_MAX:
        raise ConfigError(f"must be host:port;host:port with at most {ADDRESSES_MAX} addresses, not {len(addresses)}")
    # A typing mistake must not silently become a short list.
    for address in addresses:
        match = _HOST_AND_PORT.fullmatch(address)
        if match is None or not 0 < int(match[1]) <= 65535:
            raise ConfigError(f"must be host:port;host:port with ports in 1..65535; {address!r:.80} is none")
    return list(dict.fromkeys(addresses))


class RemotingClient(Endpoint):
    """Client connections by address. Interface: docs/decisions/0001."""

    def __init__(
        self,
        *,
        settings: NetSettings,
        tls: TlsSettings | None = None,
        handler: Handler | None = None,
        listener: ConnectionListener | None = None,
    ) -> None:
        super().__init__(
            handler or refuse,
            settings,
            listener,
            idle_seconds=settings.client_idle_seconds,
            async_permits=settings.client_async_permits,
            oneway_permits=settings.client_oneway_permits,
            frame_limits=settings.frame_limits,
        )
        self._context: ssl.SSLContext | None = client_context(tls) if tls is not None and tls.enable else None
        self._by_address: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    def is_connected(self, address: str) -> bool:
        """Whether there is an open connection to the address."""
        connection = self._by_address.get(address)
        return connection is not None and not connection.closed

    def drop(self, address: str, reason: str) -> None:
        """Close the connection to the address, as it was given to `invoke`; pending calls on it fail."""
        connection = self._by_address.get(address)
        if connection is not None:
            connection.close(reason)

    async def connect(self, address: str, timeout_ms: int) -> None:
        """Return once there is an open connection to the address. Raises CallTimeout, ConnectFailed."""
        await self._connected(address, timeout_ms)

    async def invoke(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Call the peer at address; connecting counts against timeout_ms. Raises CallTimeout, ConnectFailed.

        A timeout closes the connection (REM-16), unless the peer has sent anything meanwhile: then other calls on it may succeed.
        """
        connection, timeout_ms = await self._connected(address, timeout_ms)
        # After connecting: hooks sign, and a signature has a time.
        for hook in self.hooks:
            hook.before(address, command)
        reads = connection.reads
        try:
            return await connection.invoke(command, timeout_ms)
        # A permit was missing, the connection is healthy.
        except NoPermit:
            raise
        except CallTimeout:
            # Bytes of other answers show that the peer is alive: only this call was slow (REM-16).
            if self.settings.close_on_timeout and connection.reads == reads:
                connection.close(f"call timed out after {timeout_ms} ms, no bytes received from the peer meanwhile")
            raise

    def ask(self, address: str, command: Command, timeout_ms: int) -> asyncio.Future[Command] | None:
        """`invoke` without a task if there is an open connection to the address; None if there is none or hooks are registered.

        Takes no permit: for callers that limit their concurrent calls themselves. The future raises CallTimeout, ConnectFailed.
        """
        connection = self._by_address.get(address)
        if connection is None or connection.closed or self.hooks:
            return None
        reads = connection.reads
        future = connection.ask(command, timeout_ms)

        def close_on_timeout(future: asyncio.Future[Command]) -> None:
            late = not future.cancelled() and isinstance(future.exception(), CallTimeout)
            if late and self.settings.close_on_timeout and connection.reads == reads:
                connection.close(f"call timed out after {timeout_ms} ms, no bytes received from the peer meanwhile")

        future.add_done_callback(close_on_timeout)
        return future

    async def invoke_all(
        self, address: str, commands: Sequence[Command], timeout_ms: int
    ) -> list[Command | SaturnError]:
        """Call the peer with requests that are written together; the outcome of each, in order. Raises CallTimeout, ConnectFailed.

        Takes no permit: for callers that limit their concurrent calls themselves. Each outcome is a response, CallTimeout or
        ConnectFailed; what is raised is raised before anything was sent.
        """
        connection, timeout_ms = await self._connected(address, timeout_ms)
        reads = connection.reads
        for command in commands:
            for hook in self.hooks:
                hook.before(address, command)
            # Here, because `connection.send` takes encoded requests as they are.
            command.opaque = next_opaque()
            command.serialization = self.serialization or command.serialization
            connection.send(command)
        # After the sends: they are written at the end of this iteration, so no response can be missed.
        outcomes = await connection.calls.start_all([command.opaque for command in commands], timeout_ms)
        late = any(isinstance(outcome, CallTimeout) for outcome in outcomes)
        if late and self.settings.close_on_timeout and connection.reads == reads:
            connection.close(f"calls timed out after {timeout_ms} ms, no bytes received from the peer meanwhile")
        return outcomes

    async def invoke_oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Send a one-way request. Raises CallTimeout, ConnectFailed, TooManyRequests.

        Holds a permit until its bytes are written (REM-18); connecting and waiting for the permit count against timeout_ms.
        """
        connection, left_ms = await self._connected(address, timeout_ms)
        left_ms = await self.oneway_permits.acquire(left_ms, address)
        try:
            for hook in self.hooks:
                hook.before(address, command)
            connection.invoke_oneway(command)
            async with asyncio.timeout(max(left_ms, 0) / 1000):
                # The permit is held until the bytes are written: that is what it bounds (REM-18).
                await connection.drain()
        except TimeoutError:
            raise CallTimeout(f"request to {address} not written within {timeout_ms} ms", broker=address) from None
        finally:
            self.oneway_permits.release()

    async def _connected(self, address: str, timeout_ms: int) -> tuple[Connection, int]:
        """The connection to address, and the part of timeout_ms that is left. Raises CallTimeout, ConnectFailed."""
        connection = self._by_address.get(address)
        if connection is not None and not connection.closed:
            return connection, timeout_ms
        loop = asyncio.get_running_loop()
        before = loop.time()
        connection = await self._connect(address, timeout_ms)
        timeout_ms -= int((loop.time() - before) * 1000)
        if timeout_ms <= 0:
            raise CallTimeout(f"no time left for the call after connecting to {address}", broker=address)
        return connection, timeout_ms

    async def _connect(self, address: str, timeout_ms: int) -> Connection:
        """Connect to address; concurrent callers share one attempt (REM-26)."""
        if self._closed:
            raise ConnectFailed(f"cannot connect to {address}: this client is closed", broker=address)
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(address))
            # Registered before the first await, so that concurrent callers find it.
            self._connecting[address] = task
            task.add_done_callback(lambda attempt: self._attempt_done(address, attempt))
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                # One caller's timeout must not end the attempt that others wait for.
                return await asyncio.shield(task)
        except TimeoutError:
            raise CallTimeout(f"no connection to {address} within {timeout_ms} ms", broker=address) from None
        except asyncio.CancelledError:
            # Cancelled is either this caller, which must end, or the attempt, because the client was closed.
            if is_cancelled() or not task.cancelled():
                raise
            raise ConnectFailed(f"cannot connect to {address}: this client was closed", broker=address) from None

    def _attempt_done(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        """Remove a finished attempt and retrieve its error: all callers that waited for it may have been cancelled."""
        self._connecting.pop(address, None)
        if not attempt.cancelled():
            # Asyncio would log an error that is never retrieved.
            attempt.exception()

    async def _open(self, address: str) -> Connection:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(lambda: Connection(self), host, port)
        except TimeoutError as error:
            raise ConnectFailed(
                f"cannot connect to {address} within {self.settings.connect_timeout_ms} ms", broker=address
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            reason = reason[:1].lower() + reason[1:]
            raise ConnectFailed(f"cannot connect to {address}: {reason}", reason=reason, broker=address) from error
        self._prepare(connection, host)
        self._by_address[address] = connection
        return connection

    def _prepare(self, connection: Connection, host: str) -> None:
        transport = connection.transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is not None:
            # Frames are written as a whole; Nagle's algorithm would only delay small ones.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in (
                (socket.SO_SNDBUF, self.settings.client_sndbuf_bytes),
                (socket.SO_RCVBUF, self.settings.client_rcvbuf_bytes),
            ):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
        if self._context is not None:
            connection.start_tls_client(TlsStream(self._context, server_side=False, server_hostname=host))

    def lost(self, connection: Connection) -> None:
        """Remove a closed connection; the next call to its address reconnects."""
        # The entry may belong to a newer connection already.
        for address, open_connection in list(self._by_address.items()):
            if open_connection is connection:
                del self._by_address[address]
        super().lost(connection)

    async def close(self) -> None:
        """Cancel connection attempts and close all connections; pending calls fail."""
        self._closed = True
        await cancel(*self._connecting.values())
        await self.close_connections()
