"""Replication progress of one peer as the leader sees it, and the search for the last common entry.

Search: docs/spec/04-dledger.md section 3.4.

Requirements: DL-P01..DL-P16, DL-X13, DL-X14.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex
from saturnmq.raft.core.messages import PushResponse


class PeerState(Enum):
    """COMPARE finds the last common entry, TRUNCATE makes it the peer's last, APPEND sends the entries after it (DL-P01)."""

    COMPARE = auto()
    TRUNCATE = auto()
    APPEND = auto()


class ProgressEvent(Enum):
    """Trigger of a transition of the peer's state."""

    MATCHED = auto()  # the compared entry is the peer's last
    DIVERGED = auto()  # the last common entry, or the leader's first, is known
    CUT = auto()  # the peer's log ends with the entry sent
    LOST = auto()  # a response 406 (INCONSISTENT_STATE), a deleted entry, an error


PEER_TRANSITIONS: Final = {
    (PeerState.COMPARE, ProgressEvent.MATCHED): PeerState.APPEND,
    (PeerState.COMPARE, ProgressEvent.DIVERGED): PeerState.TRUNCATE,
    (PeerState.COMPARE, ProgressEvent.LOST): PeerState.COMPARE,
    (PeerState.TRUNCATE, ProgressEvent.CUT): PeerState.APPEND,
    (PeerState.TRUNCATE, ProgressEvent.LOST): PeerState.COMPARE,
    (PeerState.APPEND, ProgressEvent.LOST): PeerState.COMPARE,
}


@dataclass(slots=True)
class Pushed:
    """An in-flight push of the entries first..last; `first` is its key in `PeerProgress.pending`."""

    last: LedgerIndex
    sent_ms: int


@dataclass(slots=True)
class Search:
    """Binary search for the last common entry: it is at low (a match, or -1) or above, and at most at high.

    DLedger walks down one entry per round trip; a binary search sends the same COMPARE requests, only fewer (DL-X13).
    """

    low: LedgerIndex
    high: LedgerIndex
    at: LedgerIndex

    def missed(self, response: PushResponse, begin: LedgerIndex) -> LedgerIndex | None:
        """Continue after a 406 for the entry `at`. Returns None to compare again at `at`, else the index to truncate at.

        begin: first index of the leader's log. If the logs do not overlap, or have nothing in common above the peer's begin,
        the result is the leader's begin (spec section 3.4 rule 3).
        """
        if response.end_index < self.low:
            # The peer is shorter than what it once confirmed: it was restored, or its disk was replaced.
            self.low = NO_INDEX  # the peer lost the entry that had matched
        # The logs do not overlap: the peer has to start again at the leader's first entry.
        if response.end_index < begin or self.at < response.begin_index:
            return begin
        if self.at > response.end_index:
            # The peer cannot hold anything above its end: compare there next.
            self.high = self.at = min(response.end_index, self.high)
            return None
        # The peer has another entry there, so the common part ends before it.
        self.high = LedgerIndex(self.at - 1)
        # Below the peer's begin nothing can be compared.
        return self._next(max(begin, response.begin_index), begin)

    def matched(self, begin: LedgerIndex) -> LedgerIndex | None:
        """Continue after a 200 for an entry that is not the peer's last. Returns as `missed` does."""
        self.low = self.at
        return self._next(begin, begin)

    def _next(self, floor: LedgerIndex, begin: LedgerIndex) -> LedgerIndex | None:
        if self.low >= self.high:
            # -1: nothing in common was found, all of the peer's log is replaced.
            return max(self.low, begin)
        # The last candidates lie before what both logs still have.
        if self.high < floor:
            return begin
        low = max(LedgerIndex(self.low + 1), floor)
        # Always above `self.low`, which is known to match: each step narrows the range, so the search ends.
        self.at = LedgerIndex((low + self.high + 1) // 2)
        return None


@dataclass(slots=True)
class PeerProgress:
    """Replication progress of one peer, for the term of one leadership.

    watermark: highest index that the peer is known to have held; never decreases (DL-P03).
    matched: the same since the last COMPARE, because the peer may have lost entries before that. The peer needs matched + 1 next.
    """

    peer: str
    state: PeerState = PeerState.COMPARE
    watermark: LedgerIndex = NO_INDEX
    matched: LedgerIndex = NO_INDEX
    search: Search | None = None
    truncate_at: LedgerIndex = NO_INDEX
    next_index: LedgerIndex = NO_INDEX
    reads_batches: bool = False  # known from a response with a count (DL-X14)
    probing: bool = False  # a COMPARE or TRUNCATE is in flight
    pause_until_ms: int = -1
    refused_ms: int = -(10**9)
    last_push_ms: int = -1
    repeats: int = 0  # responses REPEATED_PUSH for the entry matched + 1
    pending: dict[LedgerIndex, Pushed] = field(default_factory=dict)
    quota_second: int = -1
    quota_bytes: int = 0

    def on(self, event: ProgressEvent) -> None:
        """Apply PEER_TRANSITIONS; an event without a transition in this state is a late one and is ignored."""
        target = PEER_TRANSITIONS.get((self.state, event))
        if target is None:
            return
        self.state = target
        if target is not PeerState.APPEND:
            # Responses to them may still arrive; without an entry here they change nothing.
            self.pending.clear()
            self.repeats = 0
        if target is not PeerState.COMPARE or event is ProgressEvent.LOST:
            self.search = None

    def hold(self, index: LedgerIndex) -> None:
        """The peer holds everything up to index; drop the in-flight pushes that this covers, which are the oldest (DL-P09)."""
        self.watermark = max(self.watermark, index)
        if index > self.matched:
            self.matched, self.repeats = index, 0
        pending = self.pending
        # A dict keeps the order of sending, which is that of the indexes; a re-push keeps its place.
        while pending and (first := next(iter(pending))) <= self.matched and pending[first].last <= self.matched:
            del pending[first]

    def append_from(self, index: LedgerIndex) -> None:
        """The peer's log equals this one and ends at index: append from the entry after it (DL-P03)."""
        # Set back on purpose: the peer may hold less than it once did, see `matched`.
        self.matched = NO_INDEX
        self.hold(index)
        self.next_index = LedgerIndex(index + 1)
        self.pending.clear()
