"""Latency fault tolerance: brokers that failed or were slow are avoided for a while. Pure: time is an argument.

Requirements: PR-30, API-29 (spec 01, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.client.producer.selection import RoundRobin
from saturnmq.protocol.bodies import MessageQueue

# Latency of an attempt -> how long its broker is avoided, both in ms; the first row whose latency is reached applies.
LATENCY_TABLE_MS: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
    (100, 0),
    (50, 0),
)
ISOLATION_LATENCY_MS: Final = 30_000  # a failed attempt counts as this latency


def avoid_ms(latency_ms: int, *, failed: bool) -> int:
    """How long to avoid a broker after an attempt of this latency, ms."""
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
        self._which = RoundRobin(start)

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
        return ranked[self._which.tick() % max(len(ranked) // 2, 1)][0]

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
            mine = [queue for queue in queues if queue.broker_name == broker]
            if mine:
                return mine[counter.tick() % len(mine)]
            self.forget(broker)
        return counter.pick(queues, avoid)
