"""Limit on the terms that a member accepts from others: no message can exhaust the range of terms.

A term rises by one per election, so a term far above one's own cannot come from a member of a working group. Accepting it would be
permanent: terms never fall, and after the highest one no election is possible. A refused message changes no state and writes
nothing to disk.

Requirements: DL-E18, DL-X06, FUZ-08.
"""

from __future__ import annotations

from saturnmq.raft.core.ids import TERM_MAX
from saturnmq.raft.core.messages import DLedgerMessage, VoteRequest
from saturnmq.raft.core.state import MemberState

# Far more elections than a member can miss, far less than the range of terms.
TERM_STEP_MAX: int = 1 << 20
ALARM_INTERVAL_MS: int = 10_000


class TermLimit:
    """Counts and reports messages whose term is out of range; one alarm per ALARM_INTERVAL_MS, whatever their number."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._alarmed_ms: int | None = None
        self._suppressed = 0

    @property
    def highest(self) -> int:
        """The highest term that is accepted now."""
        return min(self._state.term + TERM_STEP_MAX, TERM_MAX)

    def exceeded(self, message: DLedgerMessage, sender: str) -> bool:
        """Whether the message carries a term above the limit; then it is to be refused, and an alarm may be emitted."""
        term = message.term
        if isinstance(message, VoteRequest):
            # Its log may carry a higher term than the request itself.
            term = max(term, message.ledger_end_term)
        if term <= self.highest:
            return False
        state = self._state
        # A sender that repeats itself must not fill the log.
        if self._alarmed_ms is not None and state.now_ms - self._alarmed_ms < ALARM_INTERVAL_MS:
            self._suppressed += 1
            return True
        state.alarm(
            f"term refused sender={sender[:64]!r} seen_term={term} term={state.term} highest={self.highest} "
            f"suppressed={self._suppressed}"
        )
        self._alarmed_ms, self._suppressed = state.now_ms, 0
        return True
