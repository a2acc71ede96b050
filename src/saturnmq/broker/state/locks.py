"""Locks on queues, by which one member of a group consumes in order. Source: spec 03 OR rows; codes 41 and 42."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.bodies import MessageQueue

LOCK_LIVE_MS: Final = 60_000


@dataclass(slots=True)
class _Lock:
    client_id: str
    updated_ms: int


class QueueLocks:
    """group -> queue -> who holds it. Times are Unix ms, given by the caller."""

    def __init__(self, most: int = 2**31) -> None:
        """most: locks of all groups together (LIM-13)."""
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._most = most

    def lock(self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """The queues that the client holds now: its own are renewed, free and expired ones taken."""
        table = self._locks.setdefault(group, {})
        held = []
        room = self._most - sum(map(len, self._locks.values()))
        for queue in queues:
            lock = table.get(queue)
            if lock is None:
                if room <= 0:
                    continue
                room -= 1
            if lock is None or lock.client_id == client_id or now_ms - lock.updated_ms > LOCK_LIVE_MS:
                table[queue] = _Lock(client_id, now_ms)
                held.append(queue)
        return held

    def forget_expired(self, now_ms: int) -> None:
        """Drop the locks that were not renewed in time, and groups without any."""
        for group, table in list(self._locks.items()):
            for queue in [queue for queue, lock in table.items() if now_ms - lock.updated_ms > LOCK_LIVE_MS]:
                del table[queue]
            if not table:
                del self._locks[group]

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release those that the client holds."""
        table = self._locks.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.client_id == client_id:
                del table[queue]
        if not table:
            self._locks.pop(group, None)
