"""One time budget for one call, however many attempts it makes. Source: PR-15, API-28."""

from __future__ import annotations

import time


class Deadline:
    """Milliseconds left of a budget on the monotonic clock."""

    __slots__ = ("_end", "_start")

    def __init__(self, timeout_ms: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """What is left; 0 or less when it is over."""
        return int((self._end - time.monotonic()) * 1000)

    @property
    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self._start) * 1000)

    def share_ms(self, attempts_left: int, least_ms: int = 10) -> int:
        """An equal part for each attempt left, so that a silent broker leaves time for another (API-28)."""
        remaining = self.remaining_ms
        return max(min(remaining, max(remaining // max(attempts_left, 1), least_ms)), 0)
