"""Queue locks for ordered consumption: one client of a group owns a queue at a time (codes 41 and 42).

Locks live in memory only and expire LOCK_LIVE_MS after the last renewal. One connection may hold a tenth of the limit and one
address half of it, since the client id that owns a lock is the peer's choice.

Requirements: OR-02, OR-05, OR-09, LIM-13.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice
from typing import Final

from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.slices import Steps

LOCK_LIVE_MS: Final = 60_000
EXPIRED_AT_ONCE: Final = 4096  # locks that one request removes from a full table


@dataclass(slots=True)
class _Lock:
    client_id: str
    updated_ms: int
    peer: str


class QueueLockTable:
    """Lock table group -> queue -> owner. Times are Unix ms, passed by the caller."""

    def __init__(self, most: int = 2**31) -> None:
        """most: limit on the locks of all groups together (LIM-13)."""
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._by_age: OrderedDict[tuple[str, MessageQueue], _Lock] = OrderedDict()  # the one renewed last at the end
        self._most = most
        self._count = 0
        self._of_connection: Counter[str] = Counter()
        self._of_address: Counter[str] = Counter()

    def lock(
        self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int, peer: str = ""
    ) -> list[MessageQueue]:
        """Renew the client's own locks and take free and expired ones; returns the queues it now owns.

        peer: `address:port` of the client. When the table is full, expired locks of all groups make way.
        """
        # Only a full table is searched.
        if self._count + len(queues) > self._most:
            for _ in islice(self.expiring(now_ms), EXPIRED_AT_ONCE):
                pass
        table = self._locks.get(group, {})
        held_queues = []
        for queue in queues:
            lock = table.get(queue)
            is_holder = lock is not None and lock.client_id == client_id
            # Held by a live client: only the holder gets it.
            if lock is not None and not is_holder and now_ms - lock.updated_ms <= LOCK_LIVE_MS:
                continue
            if not is_holder and not self._may_take(peer, replaces=lock is not None):
                continue
            if lock is not None:
                # It may have come from another connection of the same client.
                self._released(lock)
            table[queue] = self._by_age[group, queue] = _Lock(client_id, now_ms, peer)
            self._by_age.move_to_end((group, queue))
            self._count_lock(peer)
            held_queues.append(queue)
        # An empty table of a group is not kept.
        if table:
            self._locks[group] = table
        return held_queues

    def _may_take(self, peer: str, *, replaces: bool) -> bool:
        """Whether the limits allow a connection one more lock. replaces: it takes the place of an expired one."""
        return (
            (replaces or self._count < self._most)
            and self._of_connection[peer] < max(self._most // 10, 1)
            and self._of_address[network_of(host_of(peer))] < max(self._most // 2, 1)
        )

    def _count_lock(self, peer: str) -> None:
        self._count += 1
        self._of_connection[peer] += 1
        self._of_address[network_of(host_of(peer))] += 1

    def _released(self, lock: _Lock) -> None:
        self._count -= 1
        for counts, key in ((self._of_connection, lock.peer), (self._of_address, network_of(host_of(lock.peer)))):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def renew(self, client_ids: Container[str], now_ms: int) -> None:
        """Renew all locks of these clients."""
        # A copy: a renewed lock moves to the end of the order.
        for key, lock in list(self._by_age.items()):
            if lock.client_id in client_ids:
                lock.updated_ms = now_ms
                self._by_age.move_to_end(key)

    def expiring(self, now_ms: int) -> Steps[None]:
        """Remove expired locks, and groups without locks, in steps of one lock; those renewed longest ago come first."""
        while self._by_age:
            (group, queue), lock = next(iter(self._by_age.items()))
            # The rest was renewed later.
            if now_ms - lock.updated_ms <= LOCK_LIVE_MS:
                return
            self._remove(group, queue)
            yield

    def _remove(self, group: str, queue: MessageQueue) -> None:
        table = self._locks[group]
        self._released(table.pop(queue))
        del self._by_age[group, queue]
        if not table:
            del self._locks[group]

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release the locks that the client owns."""
        for queue in queues:
            lock = self._locks.get(group, {}).get(queue)
            # A lock that another client has taken since stays.
            if lock is not None and lock.client_id == client_id:
                self._remove(group, queue)
