"""Queue locks for ordered consumption: one client of a group owns a queue at a time (codes 41 and 42).

Locks live in memory only and expire LOCK_LIVE_MS after the last renewal.

Requirements: OR-02, OR-05, OR-09.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.bodies import MessageQueue

LOCK_LIVE_MS: Final = 60_000


@dataclass(slots=True)
class _Lock:
    client_id: str
    updated_ms: int


class QueueLocks:
    """Lock table group -> queue -> owner. Times are Unix ms, passed by the caller."""

    def __init__(self, most: int = 2**31) -> None:
        """most: limit on the locks of all groups together (LIM-13)."""
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._most = most

    def lock(self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Renew the client's own locks and take free and expired ones; returns the queues it now owns."""
        table = self._locks.setdefault(group, {})
        owned = []
        free = self._most - sum(map(len, self._locks.values()))
        for queue in queues:
            lock = table.get(queue)
            if lock is None:
                if free <= 0:
                    continue
                free -= 1
            if lock is None or lock.client_id == client_id or now_ms - lock.updated_ms > LOCK_LIVE_MS:
                table[queue] = _Lock(client_id, now_ms)
                owned.append(queue)
        return owned

    def renew(self, client_ids: Container[str], now_ms: int) -> None:
        """Renew all locks of these clients."""
        for table in self._locks.values():
            for lock in table.values():
                if lock.client_id in client_ids:
                    lock.updated_ms = now_ms

    def forget_expired(self, now_ms: int) -> None:
        """Remove expired locks, and groups without locks."""
        for group, table in list(self._locks.items()):
            for queue in [queue for queue, lock in table.items() if now_ms - lock.updated_ms > LOCK_LIVE_MS]:
                del table[queue]
            if not table:
                del self._locks[group]

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release the locks that the client owns."""
        table = self._locks.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.client_id == client_id:
                del table[queue]
        if not table:
            self._locks.pop(group, None)
