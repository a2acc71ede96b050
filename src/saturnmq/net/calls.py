"""Calls to peers: opaque numbers, pending responses with their deadlines, and permits that bound concurrent calls.

Invariants: every call completes exactly once, with a response, CallTimeout, ConnectFailed or cancellation, and is then no longer
pending. A response completes only a call of the connection that it arrived on. Runs on the event loop.

Requirements: REM-07, REM-16..REM-20, REM-22.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final, cast

from saturnmq.errors import CallTimeout, ConnectFailed, NoPermit, TooManyRequests
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

log = logging.getLogger(__name__)

_OPAQUE_END: Final = 1 << 31
WAITING_FACTOR: Final = 4  # callers that may wait for a permit, as a multiple of the permits


def opaques(first: int = 0) -> Iterator[int]:
    """Opaques (sequence numbers) without end from `first` on: signed 32-bit, after 2**31 - 1 comes -2**31 (REM-07)."""
    every = (range(-_OPAQUE_END, 0), range(_OPAQUE_END))
    # From `first` to the end, then the whole range again and again, as Java's int counter overflows.
    return chain(range(first, _OPAQUE_END), chain.from_iterable(chain.from_iterable(repeat(every))))


next_opaque: Final = opaques().__next__  # of this process: unique over all its connections until the numbers wrap


class CallGroup:
    """Calls that were sent together, with one timer and one future: that is the list of their outcomes, in order."""

    __slots__ = ("_missing", "future", "opaques", "outcomes")

    def __init__(self, opaques: list[int], future: asyncio.Future[list[Command | SaturnError]]) -> None:
        self.opaques, self.future = opaques, future
        self.outcomes: list[Command | SaturnError | None] = [None] * len(opaques)
        self._missing = len(opaques)

    def set(self, index: int, outcome: Command | SaturnError) -> None:
        """Take the outcome of one call."""
        self.outcomes[index] = outcome
        self._missing -= 1
        # The future may have been cancelled: late outcomes are dropped.
        if not self._missing and not self.future.done():
            self.future.set_result(cast("list[Command | SaturnError]", self.outcomes))

    def fail(self, error: SaturnError) -> None:
        """End all calls that have no outcome."""
        for index, outcome in enumerate(self.outcomes):
            # Those that have an outcome keep it.
            if outcome is None:
                self.set(index, error)


class _Part:
    """A call of a group, as `Calls` sees it: what is used of a future."""

    __slots__ = ("_group", "_index")

    def __init__(self, group: CallGroup, index: int) -> None:
        self._group, self._index = group, index

    def done(self) -> bool:
        return self._group.outcomes[self._index] is not None

    def set_result(self, response: Command) -> None:
        self._group.set(self._index, response)

    def set_exception(self, error: SaturnError) -> None:
        self._group.set(self._index, error)


class Calls:
    """The pending calls of one connection."""

    __slots__ = ("_loop", "_pending", "peer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = ""  # ip:port, for error texts
        self._loop = loop
        self._pending: dict[int, asyncio.Future[Command] | _Part] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, opaque: int, timeout_ms: int) -> asyncio.Future[Command]:
        """Register a call; the future completes with its response, CallTimeout, or ConnectFailed when the connection closes."""
        future: asyncio.Future[Command] = self._loop.create_future()
        self._pending[opaque] = future
        timer = self._loop.call_later(max(timeout_ms, 0) / 1000, self._expire, opaque, timeout_ms)

        # However it ends, also by cancellation: no timer and no entry is left behind.
        def remove_call(_: asyncio.Future[Command]) -> None:
            timer.cancel()
            self._pending.pop(opaque, None)

        future.add_done_callback(remove_call)
        return future

    def start_all(self, opaques: list[int], timeout_ms: int) -> asyncio.Future[list[Command | SaturnError]]:
        """Register calls that are sent together; the future completes with the response, CallTimeout or ConnectFailed of each."""
        future: asyncio.Future[list[Command | SaturnError]] = self._loop.create_future()
        group = CallGroup(opaques, future)
        self._pending.update((opaque, _Part(group, index)) for index, opaque in enumerate(opaques))
        timer = self._loop.call_later(max(timeout_ms, 0) / 1000, lambda: group.fail(self._timeout(timeout_ms)))

        def remove_calls(_: object) -> None:
            timer.cancel()
            for opaque in opaques:
                self._pending.pop(opaque, None)

        future.add_done_callback(remove_calls)
        return future

    def _timeout(self, timeout_ms: int) -> CallTimeout:
        return CallTimeout(f"{self.peer} did not answer within {timeout_ms} ms", broker=self.peer)

    def _expire(self, opaque: int, timeout_ms: int) -> None:
        future = self._pending.get(opaque)
        # A response in the same iteration wins.
        if future is not None and not future.done():
            future.set_exception(self._timeout(timeout_ms))

    def complete(self, response: Command) -> None:
        """Complete the call that a response belongs to; a response without a pending call is ignored."""
        # Left in the table: `remove_call` takes it out.
        future = self._pending.get(response.opaque)
        if future is None:
            log.debug("response without pending call peer=%s opaque=%s", self.peer, response.opaque)
        elif not future.done():
            future.set_result(response)

    def fail(self, reason: str) -> None:
        """Fail all pending calls because the connection closed (REM-22)."""
        # Callbacks remove entries while this loop runs.
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(self.connection_lost(reason))

    def connection_lost(self, reason: str) -> ConnectFailed:
        """The error of a call on a connection that closed for this reason."""
        text = f"connection to {self.peer} is closed: {reason}"
        # Whether the peer has handled it is not known, so a caller must not simply repeat it.
        return ConnectFailed(text, reason="connection lost", sent=True, broker=self.peer)


class Permits:
    """A bounded number of concurrent calls; a caller waits for a permit at most its own timeout (REM-17..REM-20).

    The number of those who wait is bounded, too: each is a request in flight, and peers of a server cause them.
    """

    def __init__(self, count: int, kind: str) -> None:
        self.free = count
        self._count = count
        self._kind = kind
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, timeout_ms: int, address: str) -> int:
        """Take a permit; return the remaining timeout in ms.

        Raises TooManyRequests for timeout_ms <= 0 or if too many callers wait, else NoPermit.
        """
        if self.free > 0:
            self.free -= 1
            return timeout_ms
        text = (
            f"no {self._kind} permit for a call to {address}: all {self._count} are taken, "
            f"{len(self._waiting)} callers wait"
        )
        # A caller without time must not queue: it would only take a place.
        if timeout_ms <= 0 or len(self._waiting) >= WAITING_FACTOR * self._count:
            raise TooManyRequests(text + "; too many requests, too fast")
        loop = asyncio.get_running_loop()
        before = loop.time()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            # The permit may have been given in the same iteration: it is passed on.
            self._abandon(future)
            raise NoPermit(f"{text}, waited {timeout_ms} ms", broker=address) from None
        except asyncio.CancelledError:
            self._abandon(future)
            raise
        # Waiting counts against the caller's timeout.
        return max(timeout_ms - int((loop.time() - before) * 1000), 0)

    def _abandon(self, future: asyncio.Future[None]) -> None:
        if future.done() and not future.cancelled():
            self.release()
        elif future in self._waiting:
            self._waiting.remove(future)

    def release(self) -> None:
        """Return a permit, to the longest-waiting caller if there is one."""
        while self._waiting:
            # Cancelled callers may still be in the queue.
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.free += 1
