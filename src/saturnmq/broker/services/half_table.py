"""Undecided half messages and the action that is due for each of them. Pure: time is an argument.

A half message stays where it was stored, and its check count is kept here; 4.9.7 stores the message again for every check
(spec 03 section 17, points 1 to 3). Operation messages record decisions, so progress is a pair: the offset of the first
undecided half message, and the end of the operation queue at the time that one was stored.

Requirements: TX-07, TX-08, TX-10.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

OUTCOMES_MAX: Final = 10_000  # decisions kept to answer repeated requests


class Outcome(Enum):
    """Final state of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "given up by the broker"


class Step(Enum):
    """Action due for a half message."""

    ASK = "ask"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """timeout_ms: age at the first check. check_max: checks before a half message is discarded. kept_ms: maximum age."""

    timeout_ms: int
    check_max: int
    kept_ms: int


@dataclass(slots=True)
class Half:
    """One undecided half message: its offsets in the half queue and in the log, and its store time (Unix ms).

    immune_ms: age before the first check. op_floor: operations on it are at or after this offset of the operation queue.
    checks: rounds in which a check was due, whether or not a live producer could be asked (TX-08).
    """

    offset: int
    physical: int
    stored_ms: int
    immune_ms: int
    op_floor: int
    checks: int = 0


class HalfTable:
    """Undecided half messages by queue offset, and the most recent decisions."""

    def __init__(self, limits: CheckLimits) -> None:
        self.limits = limits
        self.pending: dict[int, Half] = {}
        self._outcomes: OrderedDict[int, Outcome] = OrderedDict()

    def add(self, half: Half) -> None:
        """Add a stored half message."""
        self.pending[half.offset] = half

    def settle(self, offset: int, outcome: Outcome) -> None:
        """Record the decision on a half message."""
        self.pending.pop(offset, None)
        self._outcomes[offset] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)

    def outcome(self, offset: int) -> Outcome | None:
        """The decision on a half message, if it is still remembered."""
        return self._outcomes.get(offset)

    def due(self, now_ms: int) -> list[tuple[Half, Step]]:
        """Actions for this round, oldest half message first (TX-07, TX-08, TX-10).

        A half message stored in the future (the clock was set back) is checked.
        """
        limits = self.limits
        steps = []
        for half in self.pending.values():
            age_ms = now_ms - half.stored_ms
            if age_ms > limits.kept_ms or (half.checks >= limits.check_max and not 0 <= age_ms < half.immune_ms):
                steps.append((half, Step.DISCARD))
            elif age_ms >= half.immune_ms or age_ms < 0:
                steps.append((half, Step.ASK))
        return steps

    def progress(self, half_end: int, op_end: int) -> tuple[int, int]:
        """(half, operation) queue offsets to restart reading from. half_end, op_end: the current ends of both queues."""
        if not self.pending:
            return half_end, op_end
        first = min(self.pending)
        return first, min(half.op_floor for half in self.pending.values())


def immunity_ms(text: str | None, timeout_ms: int) -> int:
    """Age before the first check, from CHECK_IMMUNITY_TIME_IN_SECONDS; -1 or an invalid number: the timeout (TX-10)."""
    digits = (text or "").removeprefix("-")
    if text is None or not (digits.isascii() and digits.isdigit()) or text == "-1":
        return timeout_ms
    return max(int(text[:12]), 0) * 1000
