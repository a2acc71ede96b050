"""Plain sends of all connections of an endpoint, taken together once per event-loop iteration.

With hundreds of connections that have one request in flight each, an iteration brings one send of each. What a store does for
appended records costs more than a send itself, and is done once for all of them here: connections whose bytes may be plain sends
wait until the iteration has read all sockets, `PlainSends` takes their frames, makes the records visible, and only then are
answers written. What is no plain send is decoded and handled after that, connection by connection.

The limits of `fairness.py` hold: a connection takes a quantum, and a network that has used its time waits for its turn.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from saturnmq.net.limits import Limits
from saturnmq.net.requests import OTHER_CODES, RequestOwner


class PlainSends(Protocol):
    """Code that takes plain sends before they are decoded: `hot/sends.py`."""

    def feed(self, data: bytes, until: float, reader: PlainReader) -> int: ...
    def finish(self) -> dict[int, int]: ...


class PlainReader(Protocol):
    """What is used of a connection."""

    remote_address: str
    network: str
    limits: Limits
    held: bytes
    out: list[bytes]

    @property
    def packed_host(self) -> bytes: ...

    def feed_plain(self, sends: PlainSends, until: float) -> None: ...
    def end_plain(self) -> None: ...


class PlainReads:
    """The connections of an endpoint whose bytes may be plain sends, in this event-loop iteration."""

    __slots__ = ("_owner", "_waiting", "sends")

    def __init__(self, owner: RequestOwner, sends: PlainSends) -> None:
        self._owner = owner
        self.sends = sends
        self._waiting: list[PlainReader] = []

    def add(self, reader: PlainReader, data: bytes) -> None:
        """Let the reader hold what it has read, and handle that at the end of this iteration."""
        reader.held, reader.limits.undecoded = data, True
        if not self._waiting:
            # At the end of this iteration, when all sockets that were ready have been read.
            asyncio.get_running_loop().call_soon(self._handle)
        self._waiting.append(reader)

    @property
    def _allowed(self) -> bool:
        """Whether sends may be taken: no hook wants to see them, and the endpoint accepts requests."""
        owner = self._owner
        memory = owner.request_memory
        # Hooks see decoded requests only.
        return not (owner.hooks or owner.stopping or memory.used >= memory.bytes_max)

    def _handle(self) -> None:
        waiting, self._waiting = self._waiting, []
        queue = self._owner.fair_queue
        began = now = monotonic()
        quantum, shared = queue.quantum, queue.shared
        try:
            for reader in waiting if self._allowed else ():
                # It has had its time in this iteration; `end_plain` lets it wait.
                if shared and reader.network in queue.overdrawn:
                    continue
                reader.feed_plain(self.sends, now + quantum)
                before, now = now, monotonic()
                if shared:
                    queue.spend(reader.network, now - before)
        finally:
            # Before any answer is written: a sender that has its answer finds its message.
            self._finish(began)
            for reader in waiting:
                # All of them, in order, whether or not something was taken.
                reader.end_plain()

    def take(self, reader: PlainReader, until: float) -> None:
        """Take the plain sends at the start of what the reader holds now, until time.monotonic() is `until`."""
        if self._allowed:
            began = monotonic()
            try:
                reader.feed_plain(self.sends, until)
            finally:
                self._finish(began)

    def _finish(self, began: float) -> None:
        """Make what was taken visible, and count how long it took."""
        taken = self.sends.finish()
        durations = self._owner.request_seconds
        if taken and durations is not None:
            # The requests were handled together: each counts with the mean.
            each = (monotonic() - began) / sum(taken.values())
            for code, number in taken.items():
                (durations.get(code) or durations[OTHER_CODES]).observe(each, number)
