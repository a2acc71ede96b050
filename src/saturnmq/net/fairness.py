"""Fair queueing of connections: what one that sends without pause may use of the event loop while others have requests too.

A connection handles what a read brought at once, but for at most a quantum of time. What is left waits here for the connection's
turn: in every event-loop iteration the waiting connections, oldest first, get a quantum each until ITERATION_SECONDS are used.
A connection that has used up its quantum before waits for its turn with its next read too. A request of another connection
therefore waits for one iteration, however many connections flood the server.

A connection whose requests are expensive, each more than a quantum, always waits for its turn: hundreds of them would otherwise
have one each handled in the same iteration.

Runs on the event loop. Requirements: REM-12, LIM-09.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic, thread_time
from typing import Final, Protocol

QUANTUM_SECONDS: Final = 0.002  # for the requests of one connection
CHEAP_READS: Final = 16  # until a connection with expensive requests counts as others again
ITERATION_SECONDS: Final = 0.002  # for all connections that wait for their turn
BULK_BYTES: Final = (
    65_536  # after a read of this size a connection yields; uvloop reads it up to 32 times in a row otherwise
)
DECODED_AT_ONCE: Final = 128  # frames of a read that are decoded before the first of them is handled


class Expense:
    """Whether the requests of one connection are expensive.

    A read that took long makes the connection a suspect; the processor time of the next ones decides, because the host may have
    paused this process. CHEAP_READS cheap ones in a row clear it.
    """

    __slots__ = ("_cheap_left", "_suspect")

    def __init__(self) -> None:
        self._suspect = False
        self._cheap_left = 0

    @property
    def expensive(self) -> bool:
        return self._cheap_left > 0

    def begin(self) -> float:
        """Start to measure a read; the result is for `end`."""
        return thread_time() if self._suspect else monotonic()

    def end(self, began: float) -> None:
        """The read is handled."""
        if not self._suspect:
            self._suspect = monotonic() - began > QUANTUM_SECONDS
            return
        if thread_time() - began > QUANTUM_SECONDS:
            self._cheap_left = CHEAP_READS
        elif self._cheap_left:
            self._cheap_left -= 1
        self._suspect = self._cheap_left > 0


class Waiting(Protocol):
    """What the queue uses of a connection's requests."""

    def take_turn(self) -> None: ...


class FairQueue:
    """The connections of one endpoint that wait for their turn."""

    __slots__ = ("_loop", "_scheduled", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, one: Waiting) -> None:
        """Call `take_turn` in a later event-loop iteration. A connection waits at most once at a time."""
        self._waiting.append(one)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let the waiting connections take their turns until the time of this iteration is used."""
        self._scheduled = False
        until = monotonic() + ITERATION_SECONDS
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft().take_turn()
                if monotonic() >= until:
                    break
        finally:
            if self._waiting:
                self._schedule()
