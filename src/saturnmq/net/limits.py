"""Limits of one connection: requests in flight, output that the peer does not read, and its share of the event loop.

A connection is read exactly while no row of this table holds; `Limits.update_reading` compares and pauses or resumes.

    cause         begins                                             ends
    write_paused  queued output exceeds the high watermark           queued output is below the low watermark
    full          requests in flight reach their count or byte limit a request in flight completes
    yielding      the connection used its quantum (fairness.py)      it has its turn
    backlog       decoded requests wait for one of the causes above  they have been handled
    undecoded     bytes of the last read wait for the same           they have been decoded

Invariants: requests are handled in the order of their arrival, so nothing is handled while `backlog` holds older requests, and
nothing is decoded while older bytes wait. The counts never go below zero: each `begin` has exactly one `end`. Units: bytes of
memory that requests take, body and header fields; event-loop seconds.

Requirements: REM-05, REM-12, LIM-04, LIM-06, LIM-07, LIM-09..LIM-11.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from saturnmq.net.settings import NetSettings
from saturnmq.protocol.frames.command import Command


class ReadTransport(Protocol):
    """The part of a transport that limits need."""

    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def memory_of(request: Command) -> int:
    """Bytes that a request takes while it is in flight: its body and its header fields."""
    return request.header_bytes + (len(request.body) if request.body else 0)


class RequestMemory:
    """Memory of the requests in flight over all connections of an endpoint, bytes, and its limit (LIM-10)."""

    __slots__ = ("bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


class Limits:
    """Why a connection is not read now, and the requests that wait for it."""

    __slots__ = (
        "_bytes_max",
        "_held",
        "_memory",
        "_requests_max",
        "backlog",
        "full",
        "in_flight",
        "in_flight_bytes",
        "read_paused",
        "transport",
        "undecoded",
        "write_paused",
        "yielding",
    )

    def __init__(self, settings: NetSettings, memory: RequestMemory) -> None:
        self.transport: ReadTransport | None = None  # None before the connection is made and after it is lost
        self.in_flight = 0  # requests without a response yet
        self.in_flight_bytes = 0
        self.write_paused = False
        self.full = False
        self.yielding = False
        self.undecoded = False
        self.backlog: deque[Command] = deque()
        self.read_paused = False
        self._held: dict[int, int] = {}  # memory of each request in flight, by its id()
        self._memory = memory
        self._requests_max = settings.in_flight_max
        self._bytes_max = settings.in_flight_bytes_max

    def begin(self, request: Command) -> None:
        """Count a request as in flight. It loses its remark, which no server reads and no limit counts."""
        request.remark = None
        # By identity: two equal requests may be in flight together.
        held = self._held[id(request)] = memory_of(request)
        self.in_flight += 1
        self.in_flight_bytes += held
        self._memory.used += held
        self.full = self.in_flight >= self._requests_max or self.in_flight_bytes >= self._bytes_max

    def end(self, request: Command) -> int:
        """Count a request as completed; returns what it counted, bytes."""
        held = self._held.pop(id(request))  # its fields may have been replaced meanwhile
        self.in_flight -= 1
        self.in_flight_bytes -= held
        self._memory.used -= held
        self.full = self.in_flight >= self._requests_max or self.in_flight_bytes >= self._bytes_max
        return held

    @property
    def may_handle(self) -> bool:
        """Whether another request may be handled now."""
        return not (self.full or self.write_paused or self.yielding)

    def update_reading(self) -> None:
        """Pause or resume reading if the causes changed."""
        pause = self.write_paused or bool(self.backlog) or self.full or self.yielding or self.undecoded
        transport = self.transport
        # A transport that closes must not be touched any more.
        if pause == self.read_paused or transport is None or transport.is_closing():
            return
        self.read_paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()


class Watch:
    """What an endpoint's scan has seen of a connection; times in event-loop seconds, 0.0 if not set."""

    __slots__ = (
        "closing_since",
        "frame_seen",
        "frame_since",
        "idle_since",
        "opened_at",
        "stalled_since",
        "unread_before",
    )

    def __init__(self) -> None:
        self.opened_at = 0.0
        self.idle_since = 0.0
        self.closing_since = 0.0
        self.frame_seen = False  # a complete frame has arrived
        self.frame_since = 0.0  # the current frame is incomplete since this scan
        self.stalled_since = 0.0  # the peer has read none of its output since this scan
        self.unread_before = 0  # bytes that the peer had not read at the last scan


class Refusable(Protocol):
    """What the limit uses of a connection."""

    def refuse(self, reason: str, text: str) -> None: ...


class HalfFrames:
    """Bytes that connections of an endpoint have buffered of incomplete frames. named: whose they are, and the key of bytes_max."""

    __slots__ = ("_named", "_of", "bytes_max", "used")

    def __init__(self, bytes_max: int, named: str) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._named = named
        self._of: dict[Refusable, int] = {}  # oldest frame first

    def __len__(self) -> int:
        return len(self._of)

    def note(self, connection: Refusable, pending_bytes: int, *, is_new_frame: bool) -> None:
        """Record how many bytes of an incomplete frame a connection has buffered; is_new_frame: of another frame than before.

        When the total exceeds its bound, the connection whose frame has been incomplete longest is closed, not the one with the
        largest frame.
        """
        before = self._of.get(connection, 0)
        # A new frame starts at the end of the order; more of the same frame keeps its place.
        if is_new_frame or not pending_bytes:
            self._of.pop(connection, None)
        if pending_bytes:
            self._of[connection] = pending_bytes
        self.used += pending_bytes - before
        while self.used > self.bytes_max:
            # Not the largest: a fast upload of a big message must not suffer from a slow stranger.
            slowest = next(iter(self._of))
            self.forget(slowest)
            slowest.refuse("partial_frames", f"incomplete frames of all {self._named}={self.bytes_max}")

    def forget(self, connection: Refusable) -> None:
        """Stop counting a connection."""
        self.used -= self._of.pop(connection, 0)
