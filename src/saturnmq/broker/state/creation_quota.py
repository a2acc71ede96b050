"""Quota on names that client requests may add to a table: a total, and a number per hour, shared among the peers' addresses.

No peer can use up the hourly number, nor the places that are left in the table: it may take as many as it leaves (`Shares`).

Entries created by an administrator are not limited and do not use up the hourly number, but count towards the total.

Requirements: LIM-13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from saturnmq.net.rejections import Rejections
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import host_of

HOUR_MS: Final = 3_600_000


class CreationQuota:
    """Creation quota of one table. entry_kind: plural name of the entries, for error texts and the refusal counter."""

    def __init__(
        self, entry_kind: str, *, in_all: int, per_hour: int, clock_ms: Callable[[], int], rejections: Rejections
    ) -> None:
        self._entry_kind = entry_kind
        self._in_all = in_all
        self._per_hour = per_hour
        self._clock_ms = clock_ms
        self._rejections = rejections
        self._hour_began_ms = 0
        self._created = Shares()  # created in the current hour

    def add(self, present: int, name: str, peer: str = "") -> str | None:
        """Count one creation with `present` entries in the table; returns None, or why it is rejected.

        peer: `ip:port` of the client; "" for the broker itself.
        """
        now = self._clock_ms()
        # Also after a step of the clock to the past.
        if not 0 <= now - self._hour_began_ms < HOUR_MS:
            self._hour_began_ms = now
            self._created.clear()
        created_count, host, problem = self._created.total, host_of(peer), None
        if present >= self._in_all:
            problem = f"there are {present} {self._entry_kind}, at most {self._in_all} may be made by clients"
        elif created_count >= self._per_hour:
            problem = (
                f"clients made {created_count} {self._entry_kind} within an hour, at most {self._per_hour} are allowed"
            )
        # What is left in the table limits the shares too.
        elif (
            exceeded := self._created.exceeded(host, 1, min(self._per_hour, created_count + self._in_all - present))
        ) is not None:
            problem = f"clients made {created_count} {self._entry_kind} within an hour: {exceeded}"
        if problem is None:
            self._created.add(host, 1)
        else:
            self._rejections.note(self._entry_kind, peer, f"{name[:255]!r}: {problem}")
        return problem
