"""Common base of servers and clients: connections, tasks, permits, hooks, and the timer that finds idle and slow peers.

Requirements: REM-15, REM-17..REM-20, REM-23, REM-24, LIM-04, LIM-06, LIM-07, LIM-11.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from saturnmq.net.errors import NoPermit, TooManyRequests
from saturnmq.net.refusals import Refusals
from saturnmq.protocol.frames.command import own_serialization

if TYPE_CHECKING:
    from saturnmq.net.connection import Connection, Handler
    from saturnmq.net.settings import NetSettings
    from saturnmq.net.tls import TlsStream
    from saturnmq.protocol.frames.command import Command

log = logging.getLogger(__name__)


class ConnectionListener(Protocol):
    """Receives connection events in order (REM-24). Idle timeout, error and close are all reported as `closed`."""

    def connected(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection, reason: str) -> None: ...


class Listener:
    """A listener that ignores all events; base class for listeners that need only one of them."""

    def connected(self, connection: Connection) -> None:
        """Called when a connection is established."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Called when a connection is closed."""


class RpcHook(Protocol):
    """Called before and after every request of an endpoint (REM-15). An exception in `before` becomes the error response."""

    def before(self, remote_address: str, request: Command) -> None: ...
    def after(self, remote_address: str, request: Command, response: Command) -> None: ...


class Permits:
    """A bounded number of concurrent calls; a caller waits for a permit at most its own timeout (REM-17..REM-20)."""

    def __init__(self, count: int, what: str) -> None:
        self.free = count
        self._count = count
        self._what = what
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, timeout_ms: int, address: str) -> int:
        """Take a permit; return the remaining timeout in ms. Raises TooManyRequests for timeout_ms <= 0, else NoPermit."""
        if self.free > 0:
            self.free -= 1
            return timeout_ms
        text = (
            f"no {self._what} permit for a call to {address}: all {self._count} are taken, "
            f"{len(self._waiting)} callers wait"
        )
        if timeout_ms <= 0:
            raise TooManyRequests(text + "; too many requests, too fast")
        loop = asyncio.get_running_loop()
        before = loop.time()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            self._abandon(future)
            raise NoPermit(f"{text}, waited {timeout_ms} ms", broker=address) from None
        except asyncio.CancelledError:
            self._abandon(future)
            raise
        return max(timeout_ms - int((loop.time() - before) * 1000), 0)

    def _abandon(self, future: asyncio.Future[None]) -> None:
        if future.done() and not future.cancelled():
            self.release()
        elif future in self._waiting:
            self._waiting.remove(future)

    def release(self) -> None:
        """Return a permit, to the longest-waiting caller if there is one."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.free += 1


class Endpoint:
    """Base class of RemotingServer and RemotingClient."""

    sniffs_tls = False
    repeats = False  # whether to decode repeated headers with HeaderTemplates

    def __init__(
        self,
        handler: Handler,
        settings: NetSettings,
        listener: ConnectionListener | None,
        *,
        idle_seconds: float,
        async_permits: int,
        oneway_permits: int,
    ) -> None:
        self.handler = handler
        self.settings = settings
        self.serialization = own_serialization(os.environ)
        self.frame_limits = settings.frame_limits
        self.connections_max = settings.connections_max
        self.hooks: list[RpcHook] = []
        self.listener: ConnectionListener = listener or Listener()
        self.connections: set[Connection] = set()
        self.async_permits = Permits(async_permits, "async")
        self.oneway_permits = Permits(oneway_permits, "oneway")
        self.refusals = Refusals()
        self.in_flight_bytes = 0  # bodies of requests in flight
        self.partial_bytes_max = 0  # bound on incomplete frames over all connections; 0: unbounded
        self.partial_bytes = 0
        self._partial: dict[Connection, int] = {}  # bytes of the incomplete frame by connection; oldest frame first
        self._idle_seconds = idle_seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scan: asyncio.TimerHandle | None = None
        self.later_count = 0  # requests in flight that were answered with Later
        self.all_answered = asyncio.Event()
        self.stopping = False  # new requests are rejected; those in flight are answered

    def add_hook(self, hook: RpcHook) -> None:
        """Register a hook; hooks run in the order of registration."""
        self.hooks.append(hook)

    def choose_tls(self, first_byte: int) -> tuple[TlsStream | None, str | None]:
        """TLS stream for a connection that starts with this byte (None: plain), or the reason to close it."""
        return None, None

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work as a task owned by this endpoint and cancelled when it closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def opened(self, connection: Connection) -> None:
        """Register a new connection; abort it if this endpoint is stopping."""
        if self.stopping:
            connection.abort()
            return
        connection.idle_since = connection.opened_at = asyncio.get_running_loop().time()
        self.connections.add(connection)
        if self._scan is None:
            self._schedule_scan()
        self._tell(lambda: self.listener.connected(connection))

    def note_partial(self, connection: Connection, pending_bytes: int, *, fresh: bool) -> None:
        """Record how many bytes of an incomplete frame a connection has buffered; fresh: it belongs to another frame than before.

        When the total exceeds its bound, the connection whose frame has been incomplete longest is closed, not the one with the
        largest frame (LIM-04).
        """
        before = self._partial.get(connection, 0)
        if fresh or not pending_bytes:
            self._partial.pop(connection, None)
        if pending_bytes:
            self._partial[connection] = pending_bytes
        self.partial_bytes += pending_bytes - before
        while self.partial_bytes > self.partial_bytes_max > 0:
            slowest = next(iter(self._partial))
            self.partial_bytes -= self._partial.pop(slowest)
            slowest.refuse(
                "partial_frames", f"more than {self.partial_bytes_max} bytes of frames that are not complete"
            )

    def lost(self, connection: Connection) -> None:
        """Remove a closed connection and notify the listener; later calls have no effect."""
        self.partial_bytes -= self._partial.pop(connection, 0)
        if connection in self.connections:
            self.connections.discard(connection)
            self._tell(lambda: self.listener.closed(connection, connection.close_reason))

    def _tell(self, event: Any) -> None:
        try:
            event()
        except Exception:
            log.exception("connection listener failed")

    def _schedule_scan(self) -> None:
        settings = self.settings
        limits = [min(settings.slow_frame_ms, settings.unread_ms, settings.first_frame_ms) / 1000] + (
            [self._idle_seconds] if self._idle_seconds else []
        )
        self._scan = asyncio.get_running_loop().call_later(min(min(limits) / 4, 1.0), self._scan_connections)

    def _scan_connections(self) -> None:
        """Close connections that are idle (REM-23) or too slow to send a frame; abort closed ones that do not drain output."""
        now = asyncio.get_running_loop().time()
        crowded = len(self.connections) * 2 > self.connections_max
        for connection in list(self.connections):
            if connection.closed:
                connection.closing_since = connection.closing_since or now
                if now - connection.closing_since >= self.settings.stop_timeout_ms / 1000:
                    connection.abort()
                continue
            if connection.congested:
                self._check_reader(connection, now)
            if (
                crowded
                and not connection.introduced
                and now - connection.opened_at >= self.settings.first_frame_ms / 1000
            ):
                connection.refuse(
                    "silent", f"no frame within {self.settings.first_frame_ms} ms, and many are connected"
                )
                continue
            if connection.active:
                connection.active = False
                connection.idle_since = now
            elif self._idle_seconds and now - connection.idle_since >= self._idle_seconds:
                connection.close(f"idle for {self._idle_seconds:g} s")
                continue
            self._check_frame(connection, now)
        self._scan = None
        if self.connections:
            self._schedule_scan()

    def _check_frame(self, connection: Connection, now: float) -> None:
        """Close a connection that takes too long for one frame: a fixed time, plus time in proportion to its size (LIM-06)."""
        if not connection.frame_pending or connection.read_paused:
            connection.frame_since = 0.0
        elif connection.frame_since == 0.0:
            connection.frame_since = now
        else:
            seconds = self.settings.slow_frame_ms / 1000
            seconds += connection.frame_bytes / self.settings.slow_frame_bytes_per_second
            if now - connection.frame_since >= seconds:
                connection.refuse("slow_frame", f"a frame was not complete after {seconds:g} s")

    def _check_reader(self, connection: Connection, now: float) -> None:
        """Abort a connection that reads nothing of its output (LIM-11)."""
        unread = connection.unread_bytes
        if unread < connection.unread_before or connection.stalled_since == 0.0:
            connection.stalled_since = now
        elif now - connection.stalled_since >= self.settings.unread_ms / 1000:
            connection.refuse("slow_reader", f"{unread} bytes were not read for {self.settings.unread_ms} ms")
            connection.abort()
        connection.unread_before = unread

    async def close_connections(self) -> None:
        """Answer the requests in flight, close all connections and cancel all tasks, within the stop timeout."""
        self.stopping = True
        deadline = asyncio.get_running_loop().time() + self.settings.stop_timeout_ms / 1000
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        if self.later_count:
            self.all_answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_answered.wait(), self.settings.stop_timeout_ms / 1000)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=max(deadline - asyncio.get_running_loop().time(), 0.05))
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        open_ones = list(self.connections)
        for connection in open_ones:
            connection.close("this side stops")
        if open_ones:
            waits = [asyncio.ensure_future(c.wait_closed()) for c in open_ones]
            _, late = await asyncio.wait(waits, timeout=max(deadline - asyncio.get_running_loop().time(), 0.05))
            if late:
                for connection in list(self.connections):
                    connection.abort()
                await asyncio.wait(late)
