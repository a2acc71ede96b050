"""Offsets that the connected slaves have stored, and the sends that wait for one of them (SYNC_MASTER).

Every connection has an offset of its own, and only offsets of open connections count: a send is acknowledged if a slave that is
connected has its record. Any one slave is enough.

Requirements: SW-03, SW-04, HA-13, HA-18, SEC-19.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from saturnmq.metrics import Histogram
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store import PutStatus
from saturnmq.store.log.log import Position
from saturnmq.store.log.waiter import Waiter
from saturnmq.store.results import Confirmed


def _no_listener() -> None:
    """Until the HA port is open."""


class SlaveAcks:
    """Acknowledged offsets by connection.

    on_wait: called when records can be sent that a send waits for. timeout_ms: how long a send waits.
    """

    def __init__(self, *, fall_behind_max: int, timeout_ms: int) -> None:
        self.on_wait: Callable[[], object] = _no_listener
        self._fall_behind_max = fall_behind_max
        self._timeout_s = timeout_ms / 1000
        self._offsets: dict[object, PhysicalOffset] = {}
        self._waiting: deque[Waiter] = deque()  # all have the same timeout, so the first one has the next deadline
        self._timer: asyncio.TimerHandle | None = None
        self.seconds = Histogram()  # how long sends waited for a slave that has acknowledged them

    @property
    def slaves(self) -> int:
        """Number of connected slaves that have reported an offset."""
        return len(self._offsets)

    @property
    def highest(self) -> PhysicalOffset:
        """The largest offset that a connected slave has acknowledged; 0 without slaves."""
        return max(self._offsets.values(), default=PhysicalOffset(0))

    @property
    def lowest(self) -> PhysicalOffset:
        """The smallest offset that a connected slave has acknowledged; 0 without slaves."""
        return min(self._offsets.values(), default=PhysicalOffset(0))

    @property
    def positions(self) -> list[tuple[object, PhysicalOffset]]:
        """Each connected slave, and the offset that it has acknowledged."""
        return list(self._offsets.items())

    def set(self, slave: object, offset: PhysicalOffset) -> None:
        """Note what a slave has stored, and complete the sends that it covers."""
        self._offsets[slave] = offset
        if not self._waiting:
            return
        now = asyncio.get_running_loop().time()
        # Waiters are in the order of their positions, so the first that is not covered ends the loop.
        while self._waiting and self._waiting[0].end <= offset:
            waiter = self._waiting.popleft()
            self.seconds.observe(now - waiter.deadline + self._timeout_s)
            waiter.complete(PutStatus.PUT_OK)

    def remove(self, slave: object) -> None:
        """Forget a slave whose connection was closed; waiting sends may be acknowledged by another one, or time out."""
        self._offsets.pop(slave, None)

    def when_acknowledged(self, position: Position, callback: Confirmed) -> None:
        """Run the callback once: when a slave has stored everything before the position, or with the reason why none has.

        SLAVE_NOT_AVAILABLE at once if no slave is connected or all lag too far behind, FLUSH_SLAVE_TIMEOUT after slaveTimeout.
        Positions must not decrease from call to call.
        """
        acknowledged = self.highest
        # haSlaveFallbehindMax: a slave this far behind would only make the send time out.
        if not self._offsets or position - acknowledged >= self._fall_behind_max:
            callback(PutStatus.SLAVE_NOT_AVAILABLE, "")
            return
        if acknowledged >= position:
            callback(PutStatus.PUT_OK, "")
            return
        waiter = Waiter(position, asyncio.get_running_loop().time() + self._timeout_s, callback)
        self._waiting.append(waiter)
        # One timer for all waits: it is set again for the next deadline when it fires.
        if self._timer is None:
            self._set_timer(waiter)
        # Send at once instead of at the next poll: a send waits for it.
        self.on_wait()

    def send_now(self) -> None:
        """See `ReplicaAcks.send_now`."""
        if self._waiting:
            self.on_wait()

    def _set_timer(self, waiter: Waiter) -> None:
        self._timer = asyncio.get_running_loop().call_at(waiter.deadline, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0].deadline <= now:
            self._waiting.popleft().complete(PutStatus.FLUSH_SLAVE_TIMEOUT)
        if self._waiting:
            self._set_timer(self._waiting[0])

    def stop(self) -> None:
        """Complete the waiting sends: no slave will acknowledge them to this process."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._waiting.popleft().complete(PutStatus.FLUSH_SLAVE_TIMEOUT)
