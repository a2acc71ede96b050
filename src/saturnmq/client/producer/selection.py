"""Queue selection: round robin, or by the hash of a key. Pure; randomness is passed in.

Requirements: PR-14, PR-21, PRC-03.
"""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import LocalProtocolError
from saturnmq.protocol.message import java_hash


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
