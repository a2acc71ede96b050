"""Undecided half messages and the action that is due for each of them. Pure: time is an argument.

A half message stays where it was stored, and its check count is kept here; 4.9.7 stores the message again for every check
(spec 03 section 17, points 1 to 3). Operation messages record decisions, so progress is a pair: the offset of the first
undecided half message, and the end of the operation queue at the time that one was stored.

New half messages are rejected while the table is full: those in it are never rolled back before their checks, as a producer may
already have changed its own data.

Requirements: TX-07, TX-08, TX-10, LIM-13.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from saturnmq.net.shares import Shares
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset

IMMUNITY_MS_MAX: Final = (
    3_600_000  # a sender must not keep its half messages, and their places, until retention expires
)
OUTCOMES_MAX: Final = 10_000  # decisions kept to answer repeated requests


class TransactionOutcome(Enum):
    """Final state of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "given up by the broker"


class CheckAction(Enum):
    """Action due for a half message."""

    ASK = "ask"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """timeout_ms: age at the first check. check_max: checks before a half message is discarded. kept_ms: maximum age.

    pending_max: undecided half messages; those of one producer group may be half of them, and those of one address as many as
    it leaves to others.
    """

    timeout_ms: int
    check_max: int
    kept_ms: int
    pending_max: int = 2**31


@dataclass(slots=True)
class UndecidedHalf:
    """One undecided half message: its offsets in the half queue and in the log, and its store time (Unix ms).

    immune_ms: age before the first check. op_floor: operations on it are at or after this offset of the operation queue.
    checks: rounds in which a check was due, whether or not a live producer could be asked (TX-08).
    """

    offset: QueueOffset
    physical: PhysicalOffset
    stored_ms: int
    immune_ms: int
    op_floor: int
    checks: int = 0
    group: str = ""  # of the producer
    host: str = ""  # address of the producer


class HalfTable:
    """Undecided half messages by queue offset, and the most recent decisions."""

    def __init__(self, limits: CheckLimits) -> None:
        self.limits = limits
        self.pending: dict[int, UndecidedHalf] = {}
        self._of_group: dict[str, int] = {}  # number of pending ones
        self._of_host = Shares()
        self._outcomes: OrderedDict[int, TransactionOutcome] = OrderedDict()

    def add(self, half: UndecidedHalf) -> None:
        """Add a stored half message."""
        # A half message that is read again after a restart replaces its entry.
        self._drop(half.offset)
        self.pending[half.offset] = half
        self._of_group[half.group] = self._of_group.get(half.group, 0) + 1
        self._of_host.add(half.host, 1)

    def _drop(self, offset: int) -> None:
        half = self.pending.pop(offset, None)
        if half is not None:
            self._of_host.add(half.host, -1)
            count = self._of_group[half.group] - 1
            if count:
                self._of_group[half.group] = count
            else:
                del self._of_group[half.group]

    def problem(self, group: str, host: str = "") -> str | None:
        """Why a new half message of a producer group is rejected, or None. host: the producer's address."""
        most = self.limits.pending_max
        if len(self.pending) >= most:
            return f"{most} transactions are undecided, no more are accepted (undecidedHalfMessagesMax)"
        if self._of_group.get(group, 0) * 2 >= most > 1:
            return f"{most // 2} transactions of one producer group are undecided, half of undecidedHalfMessagesMax"
        if (exceeded := self._of_host.exceeded(host, 1, most)) is not None:
            return f"of the undecided transactions, {exceeded} (undecidedHalfMessagesMax)"
        return None

    def settle(self, offset: int, outcome: TransactionOutcome) -> None:
        """Record the decision on a half message."""
        self._drop(offset)
        self._outcomes[offset] = outcome
        # The oldest goes: a repeated request after so many decisions is answered with an error.
        if len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)

    def outcome(self, offset: int) -> TransactionOutcome | None:
        """The decision on a half message, if it is still remembered."""
        return self._outcomes.get(offset)

    def due_actions(self, now_ms: int) -> list[tuple[UndecidedHalf, CheckAction]]:
        """Actions for this round, oldest half message first."""
        return [(half, step) for half in self.pending.values() if (step := self.step(half, now_ms)) is not None]

    def step(self, half: UndecidedHalf, now_ms: int) -> CheckAction | None:
        """The action that is due for a half message, if any (TX-07, TX-08, TX-10).

        A half message stored in the future (the clock was set back) is checked.
        """
        limits = self.limits
        age_ms = now_ms - half.stored_ms
        # Older than the retention of the log: its record is about to be deleted.
        if age_ms > limits.kept_ms or (half.checks >= limits.check_max and not 0 <= age_ms < half.immune_ms):
            return CheckAction.DISCARD
        return CheckAction.ASK if age_ms >= half.immune_ms or age_ms < 0 else None

    def progress(self, half_end: int, op_end: int) -> tuple[int, int]:
        """(half, operation) queue offsets to restart reading from. half_end, op_end: the current ends of both queues."""
        if not self.pending:
            # Nothing undecided: a restart need not read what is there.
            return half_end, op_end
        first = min(self.pending)
        return first, self.pending[first].op_floor  # the smallest: later half messages were stored at later ends


def immunity_ms(text: str | None, timeout_ms: int) -> int:
    """Age before the first check, from CHECK_IMMUNITY_TIME_IN_SECONDS, at most an hour; -1 or invalid: the timeout (TX-10)."""
    digits = (text or "").removeprefix("-")
    if text is None or not (digits.isascii() and digits.isdigit()) or text == "-1":
        return timeout_ms
    return min(max(int(text[:12]), 0) * 1000, IMMUNITY_MS_MAX)
