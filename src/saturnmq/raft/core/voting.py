"""Vote rules: the answer to each vote request, and the result of a round of answers.

Tables: docs/spec/04-dledger.md sections 3.1 to 3.3.

Requirements: DL-E10..DL-E19, DL-Q01.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from saturnmq.raft.core.ids import NO_TERM, LedgerIndex, Term
from saturnmq.raft.core.messages import VoteRequest, VoteResponse, VoteResult


def quorum(members: int) -> int:
    """The smallest majority (DL-E10)."""
    return members // 2 + 1


def quorum_index(watermarks: Sequence[LedgerIndex]) -> LedgerIndex:
    """The highest index that a majority holds (DL-Q01)."""
    # Descending, element n/2: n/2 + 1 members hold at least this index.
    return sorted(watermarks, reverse=True)[len(watermarks) // 2]


@dataclass(frozen=True, slots=True)
class Voter:
    """State of the member that receives a vote request.

    local: the request is its own. leader_in_time: it follows a SaturnMQ leader whose next heartbeat is not overdue.
    """

    self_id: str
    peers: tuple[str, ...]
    term: Term
    voted_for: str | None
    leader_id: str | None
    ledger_end_index: LedgerIndex
    ledger_end_term: Term
    taking_leadership: bool
    local: bool
    leader_in_time: bool = False

    @property
    def log(self) -> tuple[Term, LedgerIndex]:
        return self.ledger_end_term, self.ledger_end_index


def _log(request: VoteRequest) -> tuple[Term, LedgerIndex]:
    return request.ledger_end_term, request.ledger_end_index


def _voted_for_another(voter: Voter, request: VoteRequest) -> bool:
    # A second request of the same candidate is granted again: its first response may have been lost (DL-E17).
    return request.term == voter.term and voter.voted_for not in (None, request.leader_id)


def _disturbs(voter: Voter, request: VoteRequest) -> bool:
    """Whether the candidate asks for a new term although the voter has extended its leader's lease, which may not have ended.

    Such a candidate does not follow that leader. A transferee has the leader's consent, and the leader itself leads no longer.
    Java members, and those with standard timers set, do not say whether they are transferees, and are judged by DLedger's rules.
    """
    new_term = request.term > voter.term and request.leader_id != voter.leader_id
    return new_term and request.transfer is False and voter.leader_in_time


_Condition = Callable[[Voter, VoteRequest], bool]

# The first match decides. DLedger's order: log checks before term checks (DL-E16, DL-E19).
VOTE_RULES: Final[tuple[tuple[_Condition, VoteResult], ...]] = (
    (lambda v, r: r.leader_id not in v.peers, VoteResult.REJECT_UNKNOWN_LEADER),
    (lambda v, r: not v.local and r.leader_id == v.self_id, VoteResult.REJECT_UNEXPECTED_LEADER),
    # A candidate with an older log must not make the voter adopt its term: log checks come first (DL-E19).
    (lambda v, r: r.ledger_end_term < v.ledger_end_term, VoteResult.REJECT_EXPIRED_LEDGER_TERM),
    (lambda v, r: _log(r) < v.log, VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
    (lambda v, r: r.term < v.term, VoteResult.REJECT_EXPIRED_VOTE_TERM),
    (lambda v, r: _voted_for_another(v, r) and v.leader_id is not None, VoteResult.REJECT_ALREADY_HAS_LEADER),
    (_voted_for_another, VoteResult.REJECT_ALREADY_VOTED),
    (_disturbs, VoteResult.REJECT_ALREADY_HAS_LEADER),
    (lambda v, r: r.term > v.term, VoteResult.REJECT_TERM_NOT_READY),
    (lambda v, r: r.term < v.ledger_end_term, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER),
    (lambda v, r: not v.local and v.taking_leadership and v.log >= _log(r), VoteResult.REJECT_TAKING_LEADERSHIP),
    (lambda v, r: True, VoteResult.ACCEPT),
)


def judge(voter: Voter, request: VoteRequest) -> VoteResult:
    """The answer to a vote request."""
    return next(result for condition, result in VOTE_RULES if condition(voter, request))


class Parsed(Enum):
    """The result of a round of votes."""

    WAIT_TO_REVOTE = auto()  # request votes again in the same term, later
    REVOTE_IMMEDIATELY = auto()  # request votes again in the same term, at the next tick
    WAIT_TO_VOTE_NEXT = auto()  # request votes again in a higher term, later
    PASSED = auto()


@dataclass(slots=True)
class Tally:
    """The answers of one round of votes; each member counts once, even if its answer arrives twice."""

    term: Term
    members: int
    deadline_ms: int
    known_max_term: Term = NO_TERM
    answers: dict[str, VoteResult | None] = field(default_factory=dict)
    leader_of_term: bool = False  # whether one of the members that have a leader is in the term of this round

    def __post_init__(self) -> None:
        self.known_max_term = self.term

    def add(self, member: str, response: VoteResponse | None) -> None:
        """Count an answer; None is a failed call, which like UNKNOWN is not a valid answer (DL-E11)."""
        # A repeated response must not count twice.
        if member in self.answers:
            return
        result = response.vote_result if response is not None else None
        self.answers[member] = result
        # A leader of an older term is about to be replaced: there is no reason to wait for its heartbeats.
        if response is not None and result is VoteResult.REJECT_ALREADY_HAS_LEADER and response.term >= self.term:
            self.leader_of_term = True
        if response is not None and result in (
            VoteResult.REJECT_EXPIRED_VOTE_TERM,
            VoteResult.REJECT_TERM_SMALL_THAN_LEDGER,
        ):
            self.known_max_term = max(self.known_max_term, response.term)

    def count(self, *results: VoteResult) -> int:
        return sum(result in results for result in self.answers.values())

    @property
    def valid(self) -> int:
        return sum(result not in (None, VoteResult.UNKNOWN) for result in self.answers.values())

    @property
    def accepted(self) -> int:
        return self.count(VoteResult.ACCEPT)

    @property
    def not_ready(self) -> int:
        return self.count(VoteResult.REJECT_TERM_NOT_READY)

    @property
    def has_leader(self) -> bool:
        return self.count(VoteResult.REJECT_ALREADY_HAS_LEADER) > 0

    @property
    def bigger_ledger(self) -> int:
        return self.count(VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)

    @property
    def hopeless(self) -> bool:
        """Whether the round cannot pass any more: a quorum without a better log answered, and the outstanding votes are too few.

        This is so in the first round after the loss of a leader: it runs in the term in which every member voted for that
        leader. DLedger then waits for the lost leader's answer, which takes two seconds if it is frozen or partitioned.
        """
        return self.split and self.accepted + self.not_ready + self.members - len(self.answers) < quorum(self.members)

    @property
    def split(self) -> bool:
        """Whether a quorum without a better log answered, too few of all in favour."""
        enough = quorum(self.members)
        return self.valid - self.bigger_ledger >= enough > self.accepted + self.not_ready

    @property
    def decided(self) -> bool:
        """No further answer is worth waiting for (DL-E10)."""
        return (
            len(self.answers) == self.members
            or self.has_leader
            # Not ready counts too: these members adopt the term and vote in the next round of it.
            or self.accepted + self.not_ready >= quorum(self.members)
            or self.hopeless
        )

    def parse(self) -> tuple[Parsed, str]:
        """The result and how long to wait before the next round (spec section 3.3).

        "jitter": a random vote interval. "leader": the same plus an election timeout. "behind": the same plus the maximum
        vote interval. "none": no wait.
        """
        enough = quorum(self.members)
        # DLedger's order: the first condition that holds decides (spec table 3.3).
        if self.known_max_term > self.term:
            return Parsed.WAIT_TO_VOTE_NEXT, "jitter"
        if self.has_leader:  # one of an old term may be gone: ask again as soon as members may have noticed
            return Parsed.WAIT_TO_REVOTE, "leader" if self.leader_of_term else "behind"
        # Too few answers: no quorum is reachable, so the term stays as it is (DL-E13).
        if self.valid < enough:
            return Parsed.WAIT_TO_REVOTE, "jitter"
        # A quorum has a better log: this member cannot win, and waits longer than the others (DL-E14).
        if self.valid - self.bigger_ledger < enough:
            return Parsed.WAIT_TO_REVOTE, "behind"
        if self.accepted >= enough:
            return Parsed.PASSED, "none"
        if self.count(VoteResult.REJECT_UNKNOWN_LEADER):
            return Parsed.WAIT_TO_REVOTE, "leader"  # perhaps this member was removed: a higher term would serve no one
        if self.accepted + self.not_ready >= enough:
            return Parsed.REVOTE_IMMEDIATELY, "none"
        return Parsed.WAIT_TO_VOTE_NEXT, "jitter"
