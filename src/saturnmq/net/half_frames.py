"""Incomplete frames over all connections of an endpoint: their bytes, and whose connection is closed when they are too many.

Requirements: LIM-04.
"""

from __future__ import annotations

from typing import Protocol


class Refusable(Protocol):
    """What the limit uses of a connection."""

    def refuse(self, reason: str, text: str) -> None: ...


class HalfFrames:
    """Bytes that connections have buffered of incomplete frames. bytes_max: 0 is no limit; named: whose they are, and its key."""

    __slots__ = ("_named", "_of", "bytes_max", "used")

    def __init__(self, bytes_max: int = 0, named: str = "") -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._named = named
        self._of: dict[Refusable, int] = {}  # oldest frame first

    def __len__(self) -> int:
        return len(self._of)

    def note(self, connection: Refusable, pending_bytes: int, *, is_new_frame: bool) -> None:
        """Record how many bytes of an incomplete frame a connection has buffered; is_new_frame: of another frame than before.

        When the total exceeds its bound, the connection whose frame has been incomplete longest is closed, not the one with the
        largest frame.
        """
        before = self._of.get(connection, 0)
        if is_new_frame or not pending_bytes:
            self._of.pop(connection, None)
        if pending_bytes:
            self._of[connection] = pending_bytes
        self.used += pending_bytes - before
        while self.used > self.bytes_max > 0:
            slowest = next(iter(self._of))
            self.forget(slowest)
            slowest.refuse("partial_frames", f"incomplete frames of all {self._named}={self.bytes_max}")

    def forget(self, connection: Refusable) -> None:
        """Stop counting a connection."""
        self.used -= self._of.pop(connection, 0)
