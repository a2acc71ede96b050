"""Requests that wait for something outside the event loop; their number is limited (REM-14).

A requester that confirms no reply holds each for 10 s. One connection may hold a tenth of the limit, and an address what it
leaves to others.

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
    """sends: wait for durability or replication; completed: how many of them no longer do, since the start.

    replies: pushed to a requester that has not confirmed yet. wait_ms: estimated wait of a new send.
    """

    __slots__ = ("completed", "replies", "sends", "wait_ms")

    def __init__(self) -> None:
        self.sends = self.completed = self.replies = self.wait_ms = 0


class PendingReplies:
    """Replies that were pushed and are not confirmed yet, by connection and by network of the requester."""

    def __init__(self, most: int) -> None:
        """most: limit on the pending replies of all requesters."""
        self._most = most
        self._of: Counter[Connection] = Counter()
        self._shares = Shares()

    def begin(self, requester: Connection) -> str | None:
        """Count one more reply for a requester; returns None, or why it is not pushed."""
        pending_count = self._of[requester]
        if pending_count >= max(self._most // CONNECTION_SHARE, 1):
            return f"{pending_count} replies wait for its confirmation"
        if (exceeded := self._shares.exceeded(host_of(requester.remote_address), 1, self._most)) is not None:
            return f"of the replies that wait for confirmations, {exceeded}"
        self._of[requester] = pending_count + 1
        self._shares.add(host_of(requester.remote_address), 1)
        return None

    def end(self, requester: Connection) -> None:
        """Do not count a reply any more: it is confirmed, or its requester did not answer in time."""
        self._of[requester] -= 1
        if not self._of[requester]:
            del self._of[requester]
        self._shares.add(host_of(requester.remote_address), -1)
