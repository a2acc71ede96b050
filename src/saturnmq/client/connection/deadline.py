"""The time budget of one call, shared by all its attempts.

Requirements: PR-15, API-28.
"""

from __future__ import annotations

import time


class Deadline:
    """A deadline on the monotonic clock."""

    __slots__ = ("_end", "_start")

    def __init__(self, timeout_ms: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """Milliseconds until the deadline; 0 or negative after it."""
        return int((self._end - time.monotonic()) * 1000)

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the deadline was created."""
        return int((time.monotonic() - self._start) * 1000)

    def differs(self, other: Deadline, seconds: float) -> bool:
        """Whether the two deadlines are more than this apart."""
        return abs(self._end - other._end) > seconds

    def share_ms(self, attempts_left: int, least_ms: int = 10) -> int:
        """The timeout of the next attempt: an equal share, so that an unresponsive broker leaves time for another (API-28).

        At least least_ms, never more than what remains, and 0 after the deadline.
        """
        remaining = self.remaining_ms
        return max(min(remaining, max(remaining // max(attempts_left, 1), least_ms)), 0)
