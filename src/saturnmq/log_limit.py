"""Bounds the log lines that peers cause with their requests: per key and second, and in total per second.

Requirements: LIM-13.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

INTERVAL_SECONDS: Final = 1.0
LINES_MAX: Final = 20  # lines of all keys within INTERVAL_SECONDS


class LogLimit:
    """Allows a line per interval, a second, and key, and LINES_MAX per interval in all. Holds at most LINES_MAX keys."""

    __slots__ = ("_clock", "_interval_seconds", "_lines", "_suppressed")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._lines: dict[str, float] = {}  # key -> time of its line within INTERVAL_SECONDS, the oldest first
        self._suppressed = 0

    def suppressed(self, key: str) -> int | None:
        """How many lines were suppressed since the last one, if a line for this key may be written now; else None."""
        now = self._clock()
        while self._lines:
            oldest = next(iter(self._lines))
            if now - self._lines[oldest] < self._interval_seconds:
                break
            del self._lines[oldest]
        if key in self._lines or len(self._lines) >= LINES_MAX:
            self._suppressed += 1
            return None
        self._lines[key] = now
        count, self._suppressed = self._suppressed, 0
        return count
