"""Half messages that nobody has decided yet, and what is to be done about each of them. Pure: time is an argument.

A half message stays where it was stored; its check count is kept here. 4.9.7 stores the message again for every check
(spec 03 section 17, points 1 to 3). The operation messages say what is decided; so progress is the first
undecided half message, and the operation queue's end at the time when that was stored. Source: spec 03 TX rows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

OUTCOMES_MAX: Final = 10_000  # decided ones that are remembered to answer who says it again


class Outcome(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "given up by the broker"


class Step(Enum):
    """What is due."""

    ASK = "ask"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """timeout_ms: age of a half message at its first check; check_max: checks before it is discarded; kept_ms: its longest life."""

    timeout_ms: int
    check_max: int
    kept_ms: int


@dataclass(slots=True)
class Half:
    """One undecided message: its offsets in the half queue and in the log, when it was stored (Unix ms).

    immune_ms: how long its producer is left alone. op_floor: every operation on it comes at or after that queue offset.
    checks: rounds in which a check was due, whether or not a live producer was there to be asked (TX-08).
    """

    offset: int
    physical: int
    stored_ms: int
    immune_ms: int
    op_floor: int
    checks: int = 0


class HalfTable:
    """The undecided ones by offset, and the last decisions."""

    def __init__(self, limits: CheckLimits) -> None:
        self.limits = limits
        self.pending: dict[int, Half] = {}
        self._outcomes: OrderedDict[int, Outcome] = OrderedDict()

    def add(self, half: Half) -> None:
        """A half message was stored."""
        self.pending[half.offset] = half

    def settle(self, offset: int, outcome: Outcome) -> None:
        """It is decided."""
        self.pending.pop(offset, None)
        self._outcomes[offset] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)

    def outcome(self, offset: int) -> Outcome | None:
        """What was decided, as far as it is remembered."""
        return self._outcomes.get(offset)

    def due(self, now_ms: int) -> list[tuple[Half, Step]]:
        """What one round has to do, oldest first (TX-07, TX-08, TX-10).

        A half message from the future, because the clock was set back, is asked about.
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
        """(half, operation) offsets from where a restart has to read; the ends are those of the queues now."""
        if not self.pending:
            return half_end, op_end
        first = min(self.pending)
        return first, min(half.op_floor for half in self.pending.values())


def immunity_ms(text: str | None, timeout_ms: int) -> int:
    """How long a half message is left alone by CHECK_IMMUNITY_TIME_IN_SECONDS; -1 or no number: the timeout (TX-10)."""
    digits = (text or "").removeprefix("-")
    if text is None or not (digits.isascii() and digits.isdigit()) or text == "-1":
        return timeout_ms
    return max(int(text[:12]), 0) * 1000
