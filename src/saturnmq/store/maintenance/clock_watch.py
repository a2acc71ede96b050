"""Whether the wall clock may decide which files have expired. Pure: times are arguments.

Retention compares the wall clock with the age of files. A clock that is set days ahead makes every file look expired, and what
is deleted then does not come back when the clock is corrected. So expiry by age pauses for a day of running time after a jump;
by then an operator or NTP has corrected the clock, or it was right: the machine was suspended, or off for a long time. An
operator's request and a full disk delete during the pause, too.

Requirements: DEL-03, DUR-18.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

JUMP_MS: Final = 3_600_000  # a step of the clock that matters for files kept for hours
PAUSE_MS: Final = 86_400_000


class ClockWatch:
    """Compares the wall clock with a clock that cannot be set. reserved_ms: how long files are kept."""

    def __init__(self, reserved_ms: int) -> None:
        self._reserved_ms = reserved_ms
        self._last: tuple[int, int] | None = None
        self._ahead_ms = 0  # how far the clock is ahead of where it would be without jumps
        self._trusted_from_ms = 0  # running time at which the pause ends

    def now_for_expiry(self, wall_ms: int, running_ms: int, newest_ms: int) -> int:
        """The time to compare the age of files with: wall_ms, or 0 while the clock is not trusted: nothing has expired then.

        wall_ms: the wall clock, Unix ms. running_ms: a clock that only advances. newest_ms: the last write of the newest file,
        Unix ms, -1 if unknown. At the first call the clock is compared with that: if even the newest file has expired, either
        the broker was off for long or the clock is wrong. Otherwise it is compared with its own last value.
        """
        if self._last is None:
            ahead = wall_ms - newest_ms if newest_ms >= 0 else 0
            # A broker that was off for as long as it keeps messages looks like a clock that is wrong: pause once.
            if ahead > max(self._reserved_ms, JUMP_MS):
                self._pause(running_ms, ahead)
        else:
            # The difference of both clocks since the last call: what was set, not what has passed.
            step = wall_ms - self._last[0] - (running_ms - self._last[1])
            if abs(step) > JUMP_MS:
                self._ahead_ms = max(self._ahead_ms + step, 0)
                if step > 0:
                    self._pause(running_ms, self._ahead_ms)
                # The clock is back where it was: what it says can be used again.
                elif self._ahead_ms <= JUMP_MS and running_ms < self._trusted_from_ms:
                    self._trusted_from_ms = running_ms
                    log.warning("clock set back, retention by age resumed step_ms=%s", step)
        self._last = wall_ms, running_ms
        return wall_ms if running_ms >= self._trusted_from_ms else 0

    def _pause(self, running_ms: int, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms
        self._trusted_from_ms = running_ms + PAUSE_MS
        log.warning("clock ahead, retention by age paused ahead_ms=%s pause_ms=%s", ahead_ms, PAUSE_MS)
