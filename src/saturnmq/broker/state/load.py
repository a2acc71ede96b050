"""Requests that wait for something outside the event loop; their number is limited (REM-14)."""

from __future__ import annotations


class Load:
    """sends: wait for durability or replication. replies: pushed to a requester that has not confirmed yet."""

    __slots__ = ("replies", "sends")

    def __init__(self) -> None:
        self.sends = self.replies = 0
