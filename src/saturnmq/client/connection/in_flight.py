"""The in-flight limit of a producer, by count and by bytes, with waiters in FIFO order.

Requirements: API-22.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class InFlightLimit:
    """Admits at most count_max entries and bytes_max bytes at a time. An entry larger than bytes_max is admitted alone.

    Not thread-safe; belongs to one event loop. Invariant: no entry waits while the first waiter fits.
    """

    __slots__ = ("_bytes_max", "_count_max", "_waiters", "bytes", "count")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def _fits(self, size: int) -> bool:
        # An entry larger than the limit is admitted alone, or it would wait without end.
        return self.count < self._count_max and (not self.count or self.bytes + size <= self._bytes_max)

    def try_acquire(self, size: int) -> bool:
        """Enter if the entry fits now and no other entry is waiting."""
        # No overtaking: FIFO also for entries that would fit.
        if self._waiters or not self._fits(size):
            return False
        self.count += 1
        self.bytes += size
        return True

    async def acquire(self, size: int) -> None:
        """Enter, waiting for capacity. A cancelled waiter gives up its place in the queue."""
        if self.try_acquire(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (future, size)
        self._waiters.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(size)  # admitted and cancelled in the same event-loop iteration
            else:
                with contextlib.suppress(ValueError):  # _wake may have dropped it already
                    self._waiters.remove(entry)
                self._wake()
            raise

    def release(self, size: int, count: int = 1) -> None:
        """Release the capacity of entries of this size in all, and admit waiters."""
        self.count -= count
        self.bytes -= size
        self._wake()

    def _wake(self) -> None:
        waiters = self._waiters
        while waiters and self._fits(waiters[0][1]):
            future, size = waiters.popleft()
            if future.cancelled():
                continue
            self.count += 1
            self.bytes += size
            future.set_result(None)
