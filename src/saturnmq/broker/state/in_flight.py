"""Requests in flight that wait for the disk, a replica or another client; their number is limited (REM-14).

A reply to a requester that does not confirm it stays in flight for 10 s. So one connection may have a tenth of all replies in
flight, and one address at most as many as it leaves free for others (`Shares`).

Requirements: LIM-13, REM-14, RR-03.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from saturnmq.net import Connection
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import host_of

CONNECTION_SHARE: Final = 10


class InFlight:
    """Counts of requests in flight.

    sends: those that wait for durability or replication. completed_sends: how many have ended their wait since the start.
    replies: pushed to a requester that has not confirmed yet. send_wait_ms: estimated wait of a new send.
    """

    __slots__ = ("completed_sends", "replies", "send_wait_ms", "sends")

    def __init__(self) -> None:
        self.sends = self.completed_sends = self.replies = self.send_wait_ms = 0


class PendingReplies:
    """Counts replies that were pushed and are not confirmed yet, by connection and by network of the requester."""

    def __init__(self, limit: int) -> None:
        """limit: maximum of pending replies of all requesters."""
        self._limit = limit
        self._counts_by_connection: Counter[Connection] = Counter()
        self._shares = Shares()

    def admit(self, requester: Connection) -> str | None:
        """Count one more reply for a requester and return None; if a limit is reached, return the reason instead."""
        pending_count = self._counts_by_connection[requester]
        # At least one, or a small limit would refuse every reply.
        if pending_count >= max(self._limit // CONNECTION_SHARE, 1):
            return f"{pending_count} replies wait for its confirmation"
        if (exceeded := self._shares.exceeded(host_of(requester.remote_address), 1, self._limit)) is not None:
            return f"of the replies that wait for confirmations, {exceeded}"
        self._counts_by_connection[requester] = pending_count + 1
        self._shares.add(host_of(requester.remote_address), 1)
        return None

    def release(self, requester: Connection) -> None:
        """Stop counting a reply: its requester has confirmed it, or did not in time."""
        self._counts_by_connection[requester] -= 1
        if not self._counts_by_connection[requester]:
            # A Counter keeps keys that are 0.
            del self._counts_by_connection[requester]
        self._shares.add(host_of(requester.remote_address), -1)
