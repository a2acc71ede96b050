"""Choice of the queue to send to: round robin, by the hash of a key, and around brokers that failed or were slow.

Pure: randomness and time are arguments.

Requirements: PR-14, PR-21, PR-30, PRC-03, API-29 (spec 01, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import LocalProtocolError
from saturnmq.protocol.message import java_hash

# Latency of an attempt -> how long its broker is avoided, both in ms; the first row whose latency is reached applies.
LATENCY_TABLE_MS: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)  # Apache's table goes on to 50 ms, with 0
ISOLATION_LATENCY_MS: Final = 30_000  # a failed attempt counts as this latency


class RoundRobin:
    """A round-robin counter over queues. start: any number; callers choose it at random to spread clients over the queues."""

    __slots__ = ("_at",)

    def __init__(self, start: int = 0) -> None:
        self._at = start

    def tick(self) -> int:
        """Increment the counter and return it."""
        self._at += 1
        return self._at

    def pick(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
        """The next queue on a broker other than `avoid`, or on any broker if one pass over the queues finds none (PR-14)."""
        count = len(queues)
        if avoid is not None:
            for _ in range(count):
                queue = queues[self.tick() % count]
                if queue.broker_name != avoid:
                    return queue
        self._at = at = self._at + 1
        return queues[at % count]


def key_hash(key: str | int) -> int:
    """Java's hashCode of a String, an Integer or, beyond 32 bits, a Long. Raises LocalProtocolError for other types."""
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, bool) or not isinstance(key, int) or not -(2**63) <= key < 2**63:
        raise LocalProtocolError(f"shard_by must be text or a 64-bit integer, not {type(key).__name__}")
    if -(2**31) <= key < 2**31:
        return key
    bits = key & 0xFFFFFFFFFFFFFFFF
    folded = (bits ^ (bits >> 32)) & 0xFFFFFFFF
    return folded - 2**32 if folded >= 2**31 else folded


def shard(queues: Sequence[MessageQueue], key: str | int) -> MessageQueue:
    """The queue of a key: |hash| mod n, the same as in Java clients for the same n (PRC-03)."""
    return queues[abs(key_hash(key)) % len(queues)]


def avoid_ms(latency_ms: int, *, failed: bool) -> int:
    """Time for which to avoid a broker after an attempt of this latency, ms."""
    latency = ISOLATION_LATENCY_MS if failed else latency_ms
    return next((duration for least, duration in LATENCY_TABLE_MS if latency >= least), 0)


@dataclass(slots=True)
class FaultItem:
    """Latest latency of a broker name, and when it may be used again (ms on the caller's clock)."""

    latency_ms: int
    available_from_ms: int


class FaultTable:
    """Latency and availability by broker name. avoid_ms_max caps the time of LATENCY_TABLE_MS: 600000 is Java's behaviour."""

    def __init__(self, *, avoid_ms_max: int = 600_000, start: int = 0) -> None:
        self._avoid_ms_max = avoid_ms_max
        self._items: dict[str, FaultItem] = {}
        self._rotation = RoundRobin(start)

    def __len__(self) -> int:
        return len(self._items)

    def record(self, broker: str, latency_ms: int, now_ms: int, *, failed: bool) -> None:
        """Record one attempt. Fast successes of brokers without an entry add none."""
        duration = min(avoid_ms(latency_ms, failed=failed), self._avoid_ms_max)
        item = self._items.get(broker)
        if item is not None:
            item.latency_ms, item.available_from_ms = latency_ms, now_ms + duration
        elif duration:
            self._items[broker] = FaultItem(latency_ms, now_ms + duration)

    def available(self, broker: str, now_ms: int) -> bool:
        """Whether the broker may be used; true without an entry."""
        item = self._items.get(broker)
        return item is None or now_ms >= item.available_from_ms

    def forget(self, broker: str) -> None:
        """Remove a broker's entry."""
        self._items.pop(broker, None)

    def least_bad(self, now_ms: int) -> str | None:
        """A broker from the better half of the entries, round robin; None if there are no entries.

        Ranked by availability, then latency, then the time from which it is available. A single entry is returned itself.
        """
        ranked = sorted(
            self._items.items(),
            key=lambda pair: (now_ms < pair[1].available_from_ms, pair[1].latency_ms, pair[1].available_from_ms),
        )
        if not ranked:
            return None
        return ranked[self._rotation.tick() % max(len(ranked) // 2, 1)][0]

    def pick(
        self, queues: Sequence[MessageQueue], counter: RoundRobin, now_ms: int, avoid: str | None = None
    ) -> MessageQueue:
        """A queue on an available broker other than `avoid`, else on any available one, else on a least bad one, else any.

        Unlike Java's implementation, it does not modify queue objects (spec 01, section 3.3).
        """
        if not self._items:
            return counter.pick(queues, avoid)
        count = len(queues)
        fallback: MessageQueue | None = None
        for _ in range(count):
            queue = queues[counter.tick() % count]
            if self.available(queue.broker_name, now_ms):
                if queue.broker_name != avoid:
                    return queue
                fallback = fallback or queue
        if fallback is not None:
            return fallback
        broker = self.least_bad(now_ms)
        if broker is not None:
            broker_queues = [queue for queue in queues if queue.broker_name == broker]
            if broker_queues:
                return broker_queues[counter.tick() % len(broker_queues)]
            self.forget(broker)
        return counter.pick(queues, avoid)
