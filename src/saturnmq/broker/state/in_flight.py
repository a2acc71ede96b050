"""Requests that wait for something outside the event loop; their number is limited (REM-14)."""

from __future__ import annotations


class InFlight:
    """sends: wait for durability or replication; completed: how many of them no longer do, since the start.

    replies: pushed to a requester that has not confirmed yet. wait_ms: estimated wait of a new send.
    """

    __slots__ = ("completed", "replies", "sends", "wait_ms")

    def __init__(self) -> None:
        self.sends = self.completed = self.replies = self.wait_ms = 0
