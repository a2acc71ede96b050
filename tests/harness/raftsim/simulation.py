"""Simulated clock, network and disk: one seed decides every event. Nothing here reads a clock or sleeps.

Requirements: SIM-02..SIM-05.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


class Events:
    """A virtual clock (ms) with scheduled events. Events with equal times run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.happened = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, delay_ms: float, event: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._planned, event))

    def run_until(self, end_ms: float) -> None:
        """Run every event that is scheduled up to end_ms."""
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            self.now_ms, _, event = heapq.heappop(heap)
            self.happened += 1
            event()
        self.now_ms = end_ms


class Trace:
    """What happened last, as text, and with `hashes` a hash over the whole run, to verify that two runs are identical (SIM-02).

    The text of an action takes more time than the action: it is made for the hash and for the explanation of a failure only.
    """

    def __init__(self) -> None:
        self.hashes = False
        self._hash = hashlib.sha256()
        self._last: deque[tuple[float, str, object]] = deque(maxlen=400)

    def add(self, now_ms: float, member: str, what: object) -> None:
        """what: a text or an action."""
        event = now_ms, member, what
        self._last.append(event)
        if self.hashes:
            self._hash.update(line_of(event).encode())

    @property
    def tail(self) -> list[str]:
        return [line_of(event) for event in self._last]

    def digest(self) -> str:
        assert self.hashes
        return self._hash.hexdigest()


def line_of(event: tuple[float, str, object]) -> str:
    now_ms, member, what = event
    return f"{now_ms:.3f} {member} {what if isinstance(what, str) else repr(what)}"


@dataclass(slots=True)
class NetworkFaults:
    """Probabilities per message, delays in ms."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_ms: float = 1.0
    slow: float = 0.0  # probability of a delay of up to slow_ms
    slow_ms: float = 500.0


@dataclass(slots=True)
class Network:
    """Delivers messages between named nodes.

    cut: directed pairs (sender, receiver) that are disconnected. stalled: receiver -> time before which nothing
    arrives.
    """

    events: Events
    rng: random.Random
    faults: NetworkFaults = field(default_factory=NetworkFaults)
    cut: set[tuple[str, str]] = field(default_factory=set)
    stalled: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    duplicated: int = 0

    def deliver(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        """Schedule zero, one or two arrivals of a message."""
        rng, faults = self.rng, self.faults
        if rng.random() < faults.loss:
            self.lost += 1
            return
        copies = 1
        if rng.random() < faults.duplicate:
            copies = 2
            self.duplicated += 1
        for _ in range(copies):
            delay_ms = rng.random() * faults.delay_ms
            if rng.random() < faults.slow:
                delay_ms += rng.random() * faults.slow_ms
            self.events.after(delay_ms, lambda: self._arrive(sender, receiver, arrive))

    def _arrive(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        wait_ms = self.stalled.get(receiver, 0.0) - self.events.now_ms
        if (sender, receiver) in self.cut:
            self.lost += 1
        elif wait_ms > 0:
            self.events.after(wait_ms, lambda: self._arrive(sender, receiver, arrive))
        else:
            arrive()

    def partition(self, *groups: Iterable[str]) -> None:
        """Connect only nodes of the same group."""
        sides = [list(group) for group in groups]
        self.cut = {(a, b) for x in sides for y in sides if x is not y for a in x for b in y}

    def bridge(self, names: list[str]) -> None:
        """Two halves that are disconnected from each other; the first node is connected to both."""
        half = (len(names) + 1) // 2
        self.partition(names[1:half], names[half:])

    def ring(self, names: list[str]) -> None:
        """Connect each node only with its two neighbours."""
        count = len(names)
        near = {frozenset((names[at], names[(at + 1) % count])) for at in range(count)}
        self.cut = {(a, b) for a in names for b in names if a != b and frozenset((a, b)) not in near}

    def cut_one_way(self, sender: str, receiver: str) -> None:
        self.cut.add((sender, receiver))

    def heal(self) -> None:
        self.cut = set()
        self.stalled = {}


class Journal(Generic[T]):
    """A disk with one value that operations change: unsynced operations may be lost, the last ones first.

    apply(value, operation) changes the value in place; copy(value) returns an independent copy.
    """

    def __init__(self, value: T, apply: Callable[[T, object], None], copy: Callable[[T], T]) -> None:
        self.live = value
        self._durable = copy(value)
        self._apply = apply
        self._copy = copy
        self._unsynced: list[object] = []
        self._count = 0

    @property
    def durable(self) -> T:
        """The value that survives every power loss."""
        return self._durable

    def change(self, operation: object) -> None:
        self._apply(self.live, operation)
        self._unsynced.append(operation)
        self._count += 1

    def mark(self) -> int:
        """The current position in the sequence of operations, for `sync`."""
        return self._count

    def sync(self, mark: int) -> None:
        """Make all operations up to the mark durable."""
        first = self._count - len(self._unsynced)
        done = max(mark - first, 0)
        for operation in self._unsynced[:done]:
            self._apply(self._durable, operation)
        del self._unsynced[:done]

    def damage(self, operation: object) -> None:
        """Change the durable value behind the program's back; only between a crash and the next start."""
        self._apply(self._durable, operation)
        self.live = self._copy(self._durable)

    def crash(self, rng: random.Random) -> int:
        """Power loss: any number of the last unsynced operations is lost. Returns how many."""
        kept = rng.randint(0, len(self._unsynced))
        lost = len(self._unsynced) - kept
        for operation in self._unsynced[:kept]:
            self._apply(self._durable, operation)
        self._unsynced.clear()
        self.live = self._copy(self._durable)
        return lost
