"""Quota on names that client requests may add to a table: a total, and a number per hour.

Entries created by an administrator are not limited and do not use up the hourly number, but count towards the total. Existing
entries are never evicted for new ones: they may still be in use.

Requirements: LIM-13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from saturnmq.net.refusals import Refusals

HOUR_MS: Final = 3_600_000


class CreationQuota:
    """Creation quota of one table. what: plural name of the entries, for error texts and the refusal counter."""

    def __init__(
        self, what: str, *, in_all: int, per_hour: int, clock_ms: Callable[[], int], refusals: Refusals
    ) -> None:
        self._what = what
        self._in_all = in_all
        self._per_hour = per_hour
        self._clock_ms = clock_ms
        self._refusals = refusals
        self._hour_began_ms = 0
        self._made = 0  # created in the current hour

    def add(self, present: int, name: str) -> str | None:
        """Count one creation with `present` entries in the table; returns None, or why it is rejected."""
        now = self._clock_ms()
        if not 0 <= now - self._hour_began_ms < HOUR_MS:
            self._hour_began_ms, self._made = now, 0
        problem = None
        if present >= self._in_all:
            problem = f"there are {present} {self._what}, at most {self._in_all} may be made by clients"
        elif self._made >= self._per_hour:
            problem = f"clients made {self._made} {self._what} within an hour, at most {self._per_hour} are allowed"
        if problem is None:
            self._made += 1
        else:
            self._refusals.note(self._what, "", f"{name[:255]!r}: {problem}")
        return problem
