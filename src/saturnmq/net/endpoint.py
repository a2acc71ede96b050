"""Common base of servers and clients: connections, tasks, permits, hooks, and the timer that finds idle and slow peers.

Requirements: REM-15, REM-17..REM-20, REM-23, REM-24, LIM-04, LIM-06, LIM-07, LIM-11.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from saturnmq.log_limit import LogLimit
from saturnmq.metrics import Histogram
from saturnmq.net.calls import Permits
from saturnmq.net.connection import Connection, Handler
from saturnmq.net.fairness import FairQueue
from saturnmq.net.limits import RequestMemory
from saturnmq.net.plain_reads import PlainReads, PlainSends
from saturnmq.net.rejections import Rejections
from saturnmq.net.requests import RpcHook
from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import TlsStream
from saturnmq.protocol.addresses import port_of
from saturnmq.protocol.frames.command import FrameLimits, own_serialization
from saturnmq.slices import Background, Steps
from saturnmq.tasks import cancel

log = logging.getLogger(__name__)

DRAINING_MAX: Final = 32  # lost connections whose received requests are still handled, at the same time


PlainWrapper = Callable[[PlainSends], PlainSends]


class ConnectionListener(Protocol):
    """Receives connection events in order (REM-24). Idle timeout, error and close are all reported as `closed`."""

    def connected(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection, reason: str) -> None: ...


class BaseConnectionListener:
    """A listener that ignores all events; base class for listeners that need only one of them."""

    def connected(self, connection: Connection) -> None:
        """Called when a connection is established."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Called when a connection is closed."""


class Endpoint:
    """Base class of RemotingServer and RemotingClient."""

    detects_tls = False  # whether the first byte decides between TLS and plain

    def __init__(
        self,
        handler: Handler,
        settings: NetSettings,
        listener: ConnectionListener | None,
        *,
        idle_seconds: float,
        async_permits: int,
        oneway_permits: int,
        frame_limits: FrameLimits,
    ) -> None:
        self.handler = handler
        self.settings = settings
        self.serialization = own_serialization(os.environ)
        self.frame_limits = frame_limits
        self.connections_max = settings.connections_max
        self.hooks: list[RpcHook] = []
        self.listener: ConnectionListener = listener or BaseConnectionListener()
        self.connections: set[Connection] = set()
        self.async_permits = Permits(async_permits, "async")
        self.oneway_permits = Permits(oneway_permits, "oneway")
        self.rejections = Rejections()
        self.failure_log = LogLimit()
        self.request_memory = RequestMemory(settings.request_bytes_max)
        self.fair_queue = FairQueue()
        self._draining = Background()
        self._draining_count = 0
        self._idle_seconds = idle_seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scan: asyncio.TimerHandle | None = None
        self.plain_reads: PlainReads | None = None  # takes sends before they are decoded; None: all are decoded
        self.request_seconds: dict[int, Histogram] | None = None  # by code; None: not counted
        self.later_count = 0  # requests in flight that were answered with Later
        self.all_answered = asyncio.Event()
        self.stopping = False  # new requests are rejected; those in flight are answered

    def take_plain(self, sends: PlainSends | None) -> None:
        """Pass what is read to `sends` before it is decoded; None: decode all of it."""
        self.plain_reads = PlainReads(self, sends) if sends is not None else None

    def intercept(self, wrap: Callable[[Handler], Handler], wrap_plain: PlainWrapper | None = None) -> None:
        """Pass requests through `wrap(handler)`, and plain ones through `wrap_plain`; without that, all are decoded."""
        self.handler = wrap(self.handler)
        reads = self.plain_reads
        self.take_plain(wrap_plain(reads.sends) if wrap_plain is not None and reads is not None else None)

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
        # Accepted before the listener was closed.
        if self.stopping:
            connection.abort()
            return
        connection.watch.idle_since = connection.watch.opened_at = asyncio.get_running_loop().time()
        self.connections.add(connection)
        # The timer runs only while there are connections.
        if self._scan is None:
            self._schedule_scan()
        self._notify(connection, lambda: self.listener.connected(connection))

    @property
    def crowded(self) -> bool:
        """Whether more than half of the permitted connections are open (LIM-07)."""
        return len(self.connections) * 2 > self.connections_max

    def note_partial(self, connection: Connection, pending_bytes: int, *, is_new_frame: bool) -> None:
        """A connection has buffered bytes of an incomplete frame. A client chose its peers and does not count them."""

    def drain(self, connection: Connection, unread: bytes) -> bool:
        """Handle what a connection received before it was lost, in slices, then finish it; False if too many others are drained."""
        # Requests of lost connections take time from those that are open: bounded.
        if self.stopping or self._draining_count >= DRAINING_MAX:
            return False
        self._draining_count += 1
        self._draining.add(self._drained(connection, unread))
        return True

    def _drained(self, connection: Connection, unread: bytes) -> Steps[None]:
        try:
            yield from connection.drained(unread)
        # Also if a handler fails: the connection must not stay registered.
        finally:
            self._draining_count -= 1
            connection.finish()

    def lost(self, connection: Connection) -> None:
        """Remove a closed connection and notify the listener; later calls have no effect."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._notify(connection, lambda: self.listener.closed(connection, connection.close_reason))

    def _notify(self, connection: Connection, event: Callable[[], None]) -> None:
        try:
            event()
        except Exception:
            # A listener's failure must not end the connection.
            log.exception("connection listener failed peer=%s", connection.remote_address)

    def _schedule_scan(self) -> None:
        settings = self.settings
        # A quarter of the shortest limit, so that one is exceeded by a quarter at most.
        limits = [min(settings.slow_frame_ms, settings.unread_ms, settings.first_frame_ms) / 1000] + (
            [self._idle_seconds] if self._idle_seconds else []
        )
        self._scan = asyncio.get_running_loop().call_later(min(min(limits) / 4, 1.0), self._scan_connections)

    def _scan_connections(self) -> None:
        """Close connections that are idle (REM-23) or too slow to send a frame; abort closed ones that do not drain output."""
        now = asyncio.get_running_loop().time()
        crowded = self.crowded
        # Closing removes connections from the set.
        for connection in list(self.connections):
            if connection.closed:
                # Closed, but its output is not read: after a while it is not waited for any longer.
                connection.watch.closing_since = connection.watch.closing_since or now
                if now - connection.watch.closing_since >= self.settings.stop_timeout_ms / 1000:
                    connection.abort()
                continue
            if connection.congested:
                self._check_reader(connection, now)
            if (
                # Silent connections do no harm while there is space for others.
                crowded
                and not connection.watch.frame_seen
                and now - connection.watch.opened_at >= self.settings.first_frame_ms / 1000
            ):
                connection.refuse(
                    "silent",
                    f"no frame within firstFrameTimeoutMillis={self.settings.first_frame_ms} while more than half of the "
                    "permitted connections are open",
                )
                continue
            if connection.active:
                # Set by every read and write; cleared here.
                connection.active = False
                connection.watch.idle_since = now
            elif self._idle_seconds and now - connection.watch.idle_since >= self._idle_seconds:
                connection.close(f"idle for {self._idle_seconds:g} s")
                continue
            self._check_frame(connection, now)
        self._scan = None
        if self.connections:
            self._schedule_scan()

    def _check_frame(self, connection: Connection, now: float) -> None:
        """Close a connection that takes too long for one frame: a fixed time, plus time in proportion to its size (LIM-06)."""
        # This side does not read: the peer cannot send the rest.
        if not connection.frame_pending or connection.read_paused:
            connection.watch.frame_since = 0.0
        elif connection.watch.frame_since == 0.0:
            connection.watch.frame_since = now
        else:
            seconds = self.settings.slow_frame_ms / 1000
            # A large frame may take as long as a slow line needs for it.
            seconds += connection.frame_bytes / self.settings.slow_frame_bytes_per_second
            if now - connection.watch.frame_since >= seconds:
                pending_part = "TLS handshake" if connection.handshaking else f"frame of {connection.frame_bytes} bytes"
                connection.refuse("slow_frame", f"{pending_part} incomplete after {seconds:g} s")

    def _check_reader(self, connection: Connection, now: float) -> None:
        """Abort a connection that reads nothing of its output (LIM-11)."""
        unread = connection.unread_bytes
        # Something was read since the last scan.
        if unread < connection.watch.unread_before or connection.watch.stalled_since == 0.0:
            connection.watch.stalled_since = now
        elif now - connection.watch.stalled_since >= self.settings.unread_ms / 1000:
            connection.refuse(
                "slow_reader", f"{unread} bytes of responses not read for unreadTimeoutMillis={self.settings.unread_ms}"
            )
            connection.abort()
        connection.watch.unread_before = unread

    @property
    def ports(self) -> set[int]:
        """Local ports of the open connections."""
        return {port_of(c.local_address) for c in self.connections if c.local_address}

    async def abort(self) -> None:
        """Abort all connections and cancel all tasks; requests in flight get no response."""
        self.stopping = True
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        for connection in list(self.connections):
            connection.abort()
        await cancel(*self._tasks)

    async def close_connections(self) -> None:
        """Answer the requests in flight, close all connections and cancel all tasks, within the stop timeout."""
        self.stopping = True
        deadline = asyncio.get_running_loop().time() + self.settings.stop_timeout_ms / 1000
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        if self.later_count:
            # Set again by the last answer.
            self.all_answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_answered.wait(), self.settings.stop_timeout_ms / 1000)
        if self._tasks:
            # At least 50 ms, even if the first wait has used up the time.
            await asyncio.wait(set(self._tasks), timeout=max(deadline - asyncio.get_running_loop().time(), 0.05))
        await cancel(*self._tasks)
        closing = list(self.connections)
        for connection in closing:
            connection.close("endpoint stopped")
        if closing:
            # Registered before any of them can end.
            waits = [asyncio.ensure_future(c.wait_closed()) for c in closing]
            _, late = await asyncio.wait(waits, timeout=max(deadline - asyncio.get_running_loop().time(), 0.05))
            if late:
                for connection in list(self.connections):
                    connection.abort()
                await asyncio.wait(late)
