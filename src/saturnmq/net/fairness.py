"""Fair queueing of connections: what one that sends without pause may use of the event loop while others have requests too.

A connection handles what a read brought at once, but for at most a quantum of time. What is left waits here for the connection's
turn: in every event-loop iteration the waiting connections, oldest first, get a quantum each until ITERATION_SECONDS are used.
The quantum is QUANTUM_SECONDS, divided by one and the number of connections that wait, but at least QUANTUM_SECONDS_MIN.
A connection that has used up its quantum before waits for its turn with its next read too. A request of another connection
therefore waits for one iteration, however many connections flood the server.

A connection whose requests are expensive, each more than a quantum, always waits for its turn: hundreds of them would otherwise
have one each handled in the same iteration.

A connection whose handler defers a request that exceeds a limit is throttled (`throttle`): of all throttled connections, one
continues each THROTTLE_SECONDS. So a flood of such requests takes a small part of the event loop, from however many connections.

Many connections of one address with cheap requests are bounded together: once the connections of a network (an IPv4 address, an
IPv6 /64) have used DIRECT_SECONDS in an iteration, its others wait for their turns, which alternate between networks. This applies
to listeners while clients of several networks are connected; behind one address clients share as connections do.

Runs on the event loop. Requirements: REM-12, LIM-09.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from time import monotonic, thread_time
from typing import Final, Protocol

QUANTUM_SECONDS: Final = 0.002  # for the requests of one connection while no other waits for its turn
QUANTUM_SECONDS_MIN: Final = 0.00025
CHEAP_READS: Final = 16  # until a connection with expensive requests counts as others again
DIRECT_SECONDS: Final = 0.002  # for the reads of one network in an iteration, before its connections wait for turns
ITERATION_SECONDS: Final = 0.002  # for all connections that wait for their turn
THROTTLE_SECONDS: Final = 0.002  # between two throttled connections that continue: 500 a second
CLOSED_AT_ONCE: Final = 1000  # throttled connections that have been closed since, which need no time
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
        # CPU time costs a system call: asked only for suspects.
        return thread_time() if self._suspect else monotonic()

    def end(self, began: float) -> float:
        """The read is handled; returns how long that took, seconds."""
        if not self._suspect:
            used = monotonic() - began
            # Wall clock: it may have been another process's fault, so this is a suspicion only.
            self._suspect = used > QUANTUM_SECONDS
            return used
        used = thread_time() - began
        if used > QUANTUM_SECONDS:
            self._cheap_left = CHEAP_READS
        elif self._cheap_left:
            self._cheap_left -= 1
        self._suspect = self._cheap_left > 0
        return used


class TurnTaker(Protocol):
    """What the queue uses of a connection's requests."""

    @property
    def network(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def take_turn(self) -> None: ...


class _Line:
    """Waiting connections; turns alternate between networks. count: their number."""

    __slots__ = ("_by_network", "count")

    def __init__(self) -> None:
        self._by_network: OrderedDict[str, deque[TurnTaker]] = OrderedDict()  # the first has the next turn
        self.count = 0

    def add(self, turn_taker: TurnTaker) -> None:
        # A network that comes back goes to the end of the order.
        self._by_network.setdefault(turn_taker.network, deque()).append(turn_taker)
        self.count += 1

    def pop(self) -> TurnTaker:
        """The connection whose turn it is; its network is last then."""
        network, waiting = self._by_network.popitem(last=False)
        self.count -= 1
        turn_taker = waiting.popleft()
        if waiting:
            # At the end of the order: networks alternate, whatever number of connections they have.
            self._by_network[network] = waiting
        return turn_taker


class FairQueue:
    """The connections of one endpoint that wait for their turn, or are throttled.

    shared: whether peers of several networks are connected, so that networks are bounded. overdrawn: networks that have used
    DIRECT_SECONDS in this event-loop iteration; their next reads wait for a turn. quantum: of one connection, seconds.
    """

    __slots__ = ("_members", "_scheduled", "_spent", "_throttled", "_waiting", "overdrawn", "quantum", "shared")

    def __init__(self) -> None:
        self.quantum = QUANTUM_SECONDS
        self.shared = False
        self.overdrawn: set[str] = set()
        self._waiting = _Line()
        self._throttled = _Line()
        self._scheduled = False
        self._members: dict[str, int] = {}  # connections by network
        self._spent: dict[str, float] = {}

    def __len__(self) -> int:
        return self._waiting.count

    def joined(self, network: str) -> None:
        """A peer of this network has connected."""
        self._members[network] = self._members.get(network, 0) + 1
        # With clients of one network only there is no other to protect.
        self.shared = len(self._members) > 1

    def departed(self, network: str) -> None:
        """A connection of this network is lost."""
        count = self._members.pop(network, 0) - 1
        if count > 0:
            self._members[network] = count
        self.shared = len(self._members) > 1

    def spend(self, network: str, seconds: float) -> None:
        """A read of this network was handled at once and took so long."""
        # The first read of an iteration plans the reset for the next one.
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        used = self._spent[network] = self._spent.get(network, 0.0) + seconds
        if used >= DIRECT_SECONDS:
            self.overdrawn.add(network)

    def _next_iteration(self) -> None:
        self._spent.clear()
        self.overdrawn.clear()

    def wait(self, turn_taker: TurnTaker) -> None:
        """Call `take_turn` in a later event-loop iteration. A connection waits, here or throttled, at most once at a time."""
        self._waiting.add(turn_taker)
        self._share()
        self._schedule()

    def _share(self) -> None:
        # Shared among those that wait, but enough for at least one request.
        self.quantum = max(QUANTUM_SECONDS / (1 + self._waiting.count), QUANTUM_SECONDS_MIN)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let the waiting connections take their turns until the time of this iteration is used."""
        self._scheduled = False
        until = monotonic() + ITERATION_SECONDS
        try:
            # Those that wait now: one that waits again has its next turn in a later iteration.
            for _ in range(self._waiting.count):
                turn_taker = self._waiting.pop()
                self._share()
                turn_taker.take_turn()
                # Checked after a turn, so that there is at least one per iteration.
                if monotonic() >= until:
                    break
        finally:
            if self._waiting.count:
                # In `finally`: a turn that raises must not stop all others.
                self._schedule()

    def throttle(self, turn_taker: TurnTaker) -> None:
        """Call `take_turn` after the connections that are throttled already: one continues each THROTTLE_SECONDS."""
        self._throttled.add(turn_taker)
        if self._throttled.count == 1:
            asyncio.get_running_loop().call_later(THROTTLE_SECONDS, self._continue)

    def _continue(self) -> None:
        turns = [self._throttled.pop()]
        # Connections that were closed meanwhile cost nothing and take no slot.
        while turns[-1].closed and self._throttled.count and len(turns) < CLOSED_AT_ONCE:
            turns.append(self._throttled.pop())
        if self._throttled.count:
            asyncio.get_running_loop().call_later(THROTTLE_SECONDS, self._continue)
        for turn_taker in turns:
            turn_taker.take_turn()
