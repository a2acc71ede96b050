"""A caller that waits until a position of the log is confirmed."""

from __future__ import annotations

import asyncio

from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.results import Confirmed, PutStatus


class Waiter:
    """Runs its callback once: when `end` is confirmed, or with a failure. deadline: time of the event loop, seconds."""

    __slots__ = ("_callback", "completed", "deadline", "end", "timer")

    def __init__(self, end: PhysicalOffset, deadline: float, callback: Confirmed) -> None:
        self.end = end
        self.deadline = deadline
        self.completed = False
        self.timer: asyncio.TimerHandle | None = None
        self._callback = callback

    def complete(self, status: PutStatus) -> None:
        # Flush and deadline may both reach it; the first one wins.
        if not self.completed:
            self.completed = True
            if self.timer is not None:
                self.timer.cancel()
            self._callback(status, "")
