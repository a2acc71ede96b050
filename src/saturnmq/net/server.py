"""The listening side of the transport: accepts connections and passes every request to one handler.

Requirements: REM-02, REM-12, REM-25, REM-29, LIM-08.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

from saturnmq.errors import StartError
from saturnmq.net.budget import ACCEPTED_AT_ONCE, LISTENER_SHARE, PROCESS_BUDGET, descriptors_left
from saturnmq.net.connection import Connection, Handler
from saturnmq.net.endpoint import ConnectionListener, Endpoint
from saturnmq.net.limits import HalfFrames
from saturnmq.net.port_holder import port_holder
from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import ContextHolder, TlsSettings, TlsStream
from saturnmq.protocol.addresses import host_of, is_local, join_host_port

CHOSEN_BY: Final = "option --port, key listenPort"  # how the port of most servers is set, for error hints
_PORT_MAX: Final = 65535


class RemotingServer(Endpoint):
    """A listener with its connections. Interface: docs/decisions/0001."""

    detects_tls = True

    def __init__(
        self,
        handler: Handler,
        *,
        settings: NetSettings,
        tls: TlsSettings | None = None,
        listener: ConnectionListener | None = None,
    ) -> None:
        super().__init__(
            handler,
            settings,
            listener,
            idle_seconds=settings.server_idle_seconds,
            async_permits=settings.server_async_permits,
            oneway_permits=settings.server_oneway_permits,
            frame_limits=settings.request_limits,
        )
        # Incomplete frames of connections without and with a valid signature.
        self.unsigned_frames = HalfFrames(settings.unsigned_bytes_max, "unsigned connections exceed unsignedBytesMax")
        self.signed_frames = HalfFrames(settings.request_bytes_max, "signed connections exceed serverRequestBytesMax")
        self.process_connections_max = descriptors_left(settings.descriptors_reserved)
        self.budget = PROCESS_BUDGET
        self.budget.join(self)
        self._by_address: dict[str, int] = {}  # connections by network_of(remote IP), loopback excluded
        self._tls = ContextHolder(tls or TlsSettings())
        self._server: asyncio.Server | None = None
        self._more: list[asyncio.Server] = []  # further ones on the same socket

    async def start(self, host: str, port: int, *, chosen_by: str = CHOSEN_BY) -> tuple[str, int]:
        """Listen and return the bound address; port 0 binds a free port.

        chosen_by: the option or key that sets the port, for the hint of the error.
        Raises StartError that names the address, the cause and what to do.
        """
        if not 0 <= port <= _PORT_MAX:
            raise StartError(f"port {port} is outside 0..{_PORT_MAX}", hint=f"Choose a port in range ({chosen_by}).")
        loop = asyncio.get_running_loop()
        self.stopping = False
        backlog = self.settings.backlog
        paced = isinstance(loop, asyncio.SelectorEventLoop)  # accepts up to `backlog` connections per iteration
        try:
            self._server = await loop.create_server(
                lambda: Connection(self),
                host,
                port,
                backlog=min(backlog, ACCEPTED_AT_ONCE) if paced else backlog,
                reuse_address=True,
            )
        except OSError as error:
            raise start_error(host, port, error, chosen_by) from error
        for sock in self._server.sockets:
            if paced:
                with sock.dup() as same:
                    same.listen(backlog)  # the queue of the kernel has its full length nevertheless
            for option, size in (
                (socket.SO_SNDBUF, self.settings.server_sndbuf_bytes),
                (socket.SO_RCVBUF, self.settings.server_rcvbuf_bytes),
            ):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)  # inherited by accepted sockets
        if not paced:
            await self._accept_more(backlog)
        self._tls.watch()
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def _accept_more(self, backlog: int) -> None:
        """Accept several connections per iteration: uvloop accepts one for each listening socket.

        While hundreds of busy connections are accepted, an iteration takes long, and a client behind them waits for one each.
        """
        assert self._server is not None
        loop = asyncio.get_running_loop()
        for sock in self._server.sockets:
            for _ in range(ACCEPTED_AT_ONCE - 1):
                self._more.append(await loop.create_server(lambda: Connection(self), sock=sock.dup(), backlog=backlog))

    def _close_more(self) -> None:
        while self._more:
            self._more.pop().close()

    def opened(self, connection: Connection) -> None:
        """Register a new connection, or close it at once when a connection limit is exceeded."""
        # Before anything is allocated for it.
        if len(self.connections) >= self.connections_max:
            connection.refuse("connections", f"serverConnectionsMax={self.connections_max} connections are open")
            return
        if self._budget_used:
            connection.refuse(
                "descriptors",
                f"{self.process_connections_max} connections of this process are open, the other descriptors of `ulimit -n` are "
                "reserved for files (serverDescriptorsReserved)",
            )
            return
        network = connection.network
        # Clients of this machine share one address and have no limit of their own.
        if not is_local(host_of(connection.remote_address)):
            limit, count = self._per_address_max, self._by_address.get(network, 0)
            if count >= limit:
                connection.refuse(
                    "address",
                    f"{limit} connections of this address are open (serverConnectionsMaxPerAddress, at most a quarter of the "
                    f"{self.process_connections_max} that the descriptors of `ulimit -n` allow)",
                )
                return
            self._by_address[network] = count + 1
        super().opened(connection)
        # `super().opened` refuses it while the endpoint stops.
        if connection in self.connections:
            self.fair_queue.joined(connection.network)

    @property
    def _per_address_max(self) -> int:
        """With few descriptors, one address must not take the connections of all others."""
        return min(self.settings.connections_per_address, max(1, self.process_connections_max // 4))

    @property
    def _budget_used(self) -> bool:
        # A listener with few connections may still take some, see LISTENER_SHARE.
        return len(self.connections) >= LISTENER_SHARE and self.budget.used >= self.process_connections_max

    @property
    def crowded(self) -> bool:
        """Whether more than half of the permitted connections are open, of this listener or of the process (LIM-07)."""
        return super().crowded or self.budget.used * 2 > self.process_connections_max

    def lost(self, connection: Connection) -> None:
        """Remove a closed connection from the count of its address."""
        if connection in self.connections:
            network = connection.network
            self.fair_queue.departed(network)
            count = self._by_address.pop(network, 0) - 1
            if count > 0:
                self._by_address[network] = count
        # It is in one of them, depending on its signature.
        self.unsigned_frames.forget(connection)
        self.signed_frames.forget(connection)
        super().lost(connection)

    def note_partial(self, connection: Connection, pending_bytes: int, *, is_new_frame: bool) -> None:
        """Record how many bytes of an incomplete frame a connection has buffered; is_new_frame: it is another frame than before."""
        frames = self.signed_frames if connection.signed else self.unsigned_frames
        frames.note(connection, pending_bytes, is_new_frame=is_new_frame)

    def _scan_connections(self) -> None:
        """Also bound the output that peers leave unread, over all connections."""
        super()._scan_connections()
        self._check_unread()

    def _check_unread(self) -> None:
        """Abort the connections that have read none of their output longest, while all together leave too much unread (LIM-11)."""
        most = self.settings.unread_total_max
        total = sum(connection.unread_bytes for connection in self.connections)
        if total <= most:
            return
        stalled = [connection for connection in self.connections if connection.congested and not connection.closed]
        # Longest stalled first, until enough is free.
        for connection in sorted(stalled, key=lambda candidate: candidate.watch.stalled_since):
            unread = connection.unread_bytes
            connection.refuse(
                "slow_reader",
                f"{unread} bytes of responses not read, and {total} of all connections, unreadBytesMax={most}",
            )
            connection.abort()
            total -= unread
            if total <= most:
                return

    def choose_tls(self, first_byte: int) -> tuple[TlsStream | None, str | None]:
        """See `ContextHolder.choose`."""
        return self._tls.choose(first_byte)

    @property
    def ports(self) -> set[int]:
        """Listening ports and the local ports of the open connections."""
        listening = self._server.sockets if self._server is not None else ()
        return super().ports | {sock.getsockname()[1] for sock in listening}

    async def abort(self) -> None:
        """Close the listener, abort all connections and cancel all tasks; requests in flight get no response."""
        self._close_more()
        # The listener first: no new connections while the old ones end.
        if self._server is not None:
            self._server.close()
            self._server = None
        await super().abort()

    async def stop(self) -> None:
        """Close the listener, answer the requests in flight, close all connections."""
        self._close_more()
        server, self._server = self._server, None
        if server is not None:
            loop = asyncio.get_running_loop()
            if isinstance(loop, asyncio.SelectorEventLoop):
                # It leaks a socket that it has accepted if its server is closed before the socket has a transport.
                for sock in server.sockets:
                    loop.remove_reader(sock.fileno())
                await asyncio.sleep(0)
            server.close()
        await self.close_connections()
        await self._tls.stop()


def start_error(host: str, port: int, error: OSError, chosen_by: str) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"port {port} on {host} is in use by {port_holder(port)}.",
            hint=f"Stop that process or choose another port ({chosen_by}).",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return StartError(
            f"port {port} on {host} is not permitted to this user.", hint=f"Choose a port above 1023 ({chosen_by})."
        )
    return StartError(
        f"cannot listen on {join_host_port(host, port)}: {error.strerror or error}.",
        hint="Choose an address of this machine (option --host, key bindAddress).",
    )
