"""What the leader knows about one peer, and the search for the last entry that both have. Source: spec 04 sections 2.6, 3.4."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from saturnmq.raft.core.messages import PushResponse


class PeerState(Enum):
    """COMPARE finds the last common entry, TRUNCATE makes it the peer's last, APPEND sends what follows (DL-P01)."""

    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"


class Event(Enum):
    """What happened to a peer."""

    MATCHED = "MATCHED"  # the compared entry is the peer's last
    DIVERGED = "DIVERGED"  # the last common entry, or the leader's first, is known
    CUT = "CUT"  # the peer's log ends with the entry sent
    LOST = "LOST"  # an answer of inconsistency, a deleted entry, an error


PEER_TRANSITIONS: Final = {
    (PeerState.COMPARE, Event.MATCHED): PeerState.APPEND,
    (PeerState.COMPARE, Event.DIVERGED): PeerState.TRUNCATE,
    (PeerState.COMPARE, Event.LOST): PeerState.COMPARE,
    (PeerState.TRUNCATE, Event.CUT): PeerState.APPEND,
    (PeerState.TRUNCATE, Event.LOST): PeerState.COMPARE,
    (PeerState.APPEND, Event.LOST): PeerState.COMPARE,
}


@dataclass(slots=True)
class Pushed:
    """A push under way: entries first..last (its key is first)."""

    last: int
    sent_ms: int


@dataclass(slots=True)
class Search:
    """Where the last common entry may be: above low (a match, or -1) and at most at high.

    The original walks down one entry per round trip; halving the range asks the same questions of a peer (DL-X13).
    """

    low: int
    high: int
    at: int

    def missed(self, response: PushResponse, begin: int) -> int | None:
        """After a 406 for the entry `at` of a log that starts at begin: None to ask again at `at`, else where to truncate.

        Section 3.4 rule 3: no overlap, or nothing common above the peer's begin, means the leader's begin.
        """
        if response.end_index < self.low:
            self.low = -1  # the peer lost what had matched
        if response.end_index < begin or self.at < response.begin_index:
            return begin
        if self.at > response.end_index:
            self.high = self.at = min(response.end_index, self.high)
            return None
        self.high = self.at - 1
        return self._next(max(begin, response.begin_index), begin)

    def matched(self, begin: int) -> int | None:
        """After a 200 for an entry that is not the peer's last: None to ask again, else where to truncate."""
        self.low = self.at
        return self._next(begin, begin)

    def _next(self, floor: int, begin: int) -> int | None:
        if self.low >= self.high:
            return max(self.low, begin)
        if self.high < floor:
            return begin
        low = max(self.low + 1, floor)
        self.at = (low + self.high + 1) // 2
        return None


@dataclass(slots=True)
class Progress:
    """One peer, for the term of one leadership.

    watermark: the highest index it is known to have held; never falls (DL-P03). matched: the same since the last COMPARE, before
    which the peer may have lost its log: what it needs next follows that.
    """

    peer: str
    state: PeerState = PeerState.COMPARE
    watermark: int = -1
    matched: int = -1
    search: Search | None = None
    truncate_at: int = -1
    next_index: int = -1
    reads_batches: bool = False  # said so by an answer with a count (DL-X14)
    asking: bool = False  # a COMPARE or TRUNCATE is under way
    pause_until_ms: int = -1
    refused_ms: int = -(10**9)
    last_push_ms: int = -1
    repeats: int = 0  # answers that the next entry was pushed before, since more was matched
    pending: dict[int, Pushed] = field(default_factory=dict)
    cleaned_ms: int = -1
    quota_second: int = -1
    quota_bytes: int = 0

    def on(self, event: Event) -> None:
        """Follow the table; an event that the state does not know is from before and changes nothing."""
        target = PEER_TRANSITIONS.get((self.state, event))
        if target is None:
            return
        self.state = target
        if target is not PeerState.APPEND:
            self.pending.clear()
            self.repeats = 0
        if target is not PeerState.COMPARE or event is Event.LOST:
            self.search = None

    def hold(self, index: int) -> None:
        """The peer holds everything up to index; pushes that it covers are forgotten, as far as they come first."""
        self.watermark = max(self.watermark, index)
        if index > self.matched:
            self.matched, self.repeats = index, 0
        pending = self.pending
        while pending and (first := next(iter(pending))) <= self.matched and pending[first].last <= self.matched:
            del pending[first]

    def append_from(self, index: int) -> None:
        """The peer's log ends with index, equal to this one (DL-P03)."""
        self.matched = -1
        self.hold(index)
        self.next_index = index + 1
        self.pending.clear()

    def clean(self, now_ms: int) -> None:
        """Forget pushes that the peer holds (DL-P09)."""
        self.cleaned_ms = now_ms
        for first in [first for first, pushed in self.pending.items() if pushed.last <= self.matched]:
            del self.pending[first]
