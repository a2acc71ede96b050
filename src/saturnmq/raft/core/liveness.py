"""Heartbeats: the leader's rounds and lease, the follower's election timeout.

The lease starts with the first round that a quorum answered and is extended by every further one, counted from the time the
round was sent. It is shorter than the followers' election timeout, so an isolated leader steps down before another can be elected.
Votes alone give none: a voter that has had no heartbeat yet goes on as candidate and may elect another leader at once. A new leader
that no quorum answers steps down as if its lease had begun with the election.
A leader that steps down reports it to the SaturnMQ members, which do not wait for their election timeout then. Until such a
report, or until the heartbeat that their leader announced is overdue, they refuse candidates of a higher term (voting.py).

Requirements: DL-H01..DL-H09, DL-X06..DL-X08.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.elector import Elector
from saturnmq.raft.core.ids import NO_TERM, Term
from saturnmq.raft.core.messages import Code, HeartBeatRequest, HeartBeatResponse, Response
from saturnmq.raft.core.state import NEVER, MemberState
from saturnmq.raft.core.timers import Timers


@dataclass(slots=True)
class HeartbeatRound:
    """One round of a leader's heartbeats."""

    term: Term
    sent_ms: int
    lease_ms: int
    answered: int = 1
    success: int = 1  # voters; the leader counts itself if it votes
    not_ready: int = 0
    inconsistent: bool = False


@dataclass(slots=True)
class Heartbeats:
    """live: whether the last heartbeat to each peer was answered (DL-H04). lease_until_ms: the lease by each peer's answers.

    confirmed: peers that answered a heartbeat of this term. supports_changes: whether each peer's last answer said that it supports
    changes of members.
    patient_until_ms: when a follower that receives no further heartbeat becomes candidate (DL-H07, DL-H08).
    resigned: leader and term of the last report; a heartbeat that it has overtaken makes no follower.
    """

    state: MemberState
    elector: Elector
    timers: Timers
    sent_ms: int = -1
    patient_until_ms: int = -1
    round: HeartbeatRound | None = None
    live: dict[str, bool] = field(default_factory=dict)
    supports_changes: dict[str, bool] = field(default_factory=dict)
    lease_until_ms: dict[str, int] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()
    stepped_down_ms: int = -(10**9)
    led: bool = False
    resigned: tuple[str | None, Term] = (None, NO_TERM)

    def role_changed(self) -> None:
        """A new leader sends heartbeats at once, and has as long as a lease for the first answers (DL-E21, DL-X07)."""
        now_ms = self.state.now_ms
        if self.led:
            self._resign()
        self.led = self.state.role is Role.LEADER
        self.confirmed = frozenset()
        self.sent_ms = -1
        self.round = None
        if self.state.role is Role.LEADER:
            self.live, self.supports_changes = {}, {}
            # Not 0: a failed first round must not depose a leader that was just elected (DL-X07).
            self.lease_until_ms = dict.fromkeys(self.state.other_members, now_ms + self.state.settings.lease_timeout_ms)
        elif self.state.role is Role.FOLLOWER:
            # Overdue from the start; the heartbeat that made this member a follower extends it right after this call.
            self.patient_until_ms, self.state.leader_promised_ms = now_ms, -1

    def members_changed(self) -> None:
        """A new member has not extended the lease yet; a former one does not count any more."""
        if self.state.role is Role.LEADER:
            lease_ends_ms = self.lease_until_ms
            # -1: a new member counts only once it has answered this leader.
            self.lease_until_ms = {peer: lease_ends_ms.get(peer, -1) for peer in self.state.other_members}

    @property
    def lease_ends_ms(self) -> int:
        """When the lease ends: the latest time until which a quorum, this leader included, has extended it."""
        until_ms: Collection[int] = self.lease_until_ms.values()
        state = self.state
        needed = state.quorum_others
        # Learners answer too, but a lease that they extend would say nothing about the next election.
        if len(until_ms) != len(state.other_voters):  # there are learners
            until_ms = [self.lease_until_ms[peer] for peer in state.other_voters]
        if needed == 1:  # fast path: evaluated before every append
            return max(until_ms)
        return sorted(until_ms, reverse=True)[needed - 1] if needed else NEVER

    @property
    def is_confirmed(self) -> bool:
        """Whether a quorum, this leader included, has answered heartbeats of this term."""
        state = self.state
        return len(self.confirmed.intersection(state.other_voters)) >= state.quorum_others

    def tick(self) -> None:
        state = self.state
        if state.role is Role.LEADER:
            # The lease is looked at before a heartbeat: one sent after its end would extend what may be another leader's time.
            if self.lease_is_good() and (self.sent_ms < 0 or state.now_ms - self.sent_ms > self.timers.interval_ms):
                self._beat()
        elif state.role is Role.FOLLOWER and state.now_ms > self.patient_until_ms:
            state.become_candidate(state.term)  # the term stays the same (DL-H07)

    def due_ms(self) -> int:
        """A leader's next heartbeat or the end of its lease; a follower's election timeout."""
        state = self.state
        if state.role is Role.FOLLOWER:
            return self.patient_until_ms + 1
        if state.role is not Role.LEADER:
            return NEVER
        beat_ms = self.sent_ms + self.timers.interval_ms + 1 if self.sent_ms >= 0 else state.now_ms
        return min(beat_ms, self.lease_ends_ms)

    def lease_is_good(self) -> bool:
        """Whether the lease holds; the leader steps down when it has expired (DL-H03, DL-X08)."""
        state = self.state
        if state.now_ms < self.lease_ends_ms:
            return True
        # For the log: the lease began a lease's length before it ended.
        elapsed_ms = state.now_ms - self.lease_ends_ms + state.settings.lease_timeout_ms
        state.alarm(f"leader stepped down reason=lease_expired term={state.term} elapsed_ms={elapsed_ms}")
        state.become_candidate(state.term)
        return False

    def _beat(self) -> None:
        """Send a round of heartbeats (DL-H01)."""
        state = self.state
        self.sent_ms = state.now_ms
        own_votes = int(state.votes)
        # A leader that has removed itself does not count itself (core/membership.py).
        beat = self.round = HeartbeatRound(
            state.term, state.now_ms, state.settings.lease_timeout_ms, own_votes, own_votes
        )
        announced_ms = self.timers.announced_ms
        # A former member is kept as a follower until it has the entry that removes it.
        for peer in (*state.other_members, *state.departing):
            state.send(peer, self._request(peer, announced_ms), partial(self._answered, beat, peer))

    def _resign(self) -> None:
        """Report to the peers that echo the interval that this member leads no longer; others would take it for a heartbeat.

        It leads only in a higher term from then on: a late report must not end what it leads later.
        """
        for peer in self.state.other_members:
            if self.timers.has_echo.get(peer):
                self.elector.spent_term = self.state.term
                self.state.send(peer, self._request(peer, 0), lambda response: None)

    def _request(self, peer: str, interval_ms: int | None) -> HeartBeatRequest:
        state = self.state
        return HeartBeatRequest(
            group=state.group,
            term=state.term,
            leader_id=state.self_id,
            local_id=state.self_id,
            remote_id=peer,
            interval_ms=interval_ms,
            changes=self._changes if interval_ms is not None else None,
        )

    @property
    def _changes(self) -> int | None:
        state = self.state
        return state.configuration.index if state.configurations.codec is not None else None

    def _answered(self, beat: HeartbeatRound, peer: str, response: Response | None) -> None:
        """Count a response (DL-H02..DL-H04); late ones count too while this member leads the term of the round."""
        state = self.state
        # An answer of an earlier leadership extends nothing.
        if state.role is not Role.LEADER or beat.term != state.term:
            return
        code = response.code if isinstance(response, HeartBeatResponse) else Code.NETWORK_ERROR
        if peer not in self.lease_until_ms:
            return  # a former member
        # Any response counts as alive, a refusal too (DL-H04).
        self.live[peer] = code != Code.NETWORK_ERROR
        counts = peer in state.voters
        beat.answered += counts
        if isinstance(response, HeartBeatResponse):
            self.supports_changes[peer] = response.changes is not None
            if self.timers.answered(peer, response):
                self.sent_ms = -1  # announce the new interval at the next tick
        if code == Code.SUCCESS:
            beat.success += counts
            if peer not in self.confirmed:
                self.confirmed |= {peer}
            # From the time of sending, not of the answer: the follower's own timeout may have begun right after it was sent.
            self.lease_until_ms[peer] = max(self.lease_until_ms[peer], beat.sent_ms + beat.lease_ms)
        elif code == Code.TERM_NOT_READY:
            beat.not_ready += counts
        # In Java this is one of several results, which a quorum of successes overrules (DL-X06).
        elif code == Code.EXPIRED_TERM and response is not None and response.term > state.term:
            self._higher_term(response.term)
            return
        elif code == Code.INCONSISTENT_LEADER:
            beat.inconsistent = True
        # Decided, or no longer the newest round: its successes have been counted above.
        if beat is not self.round or beat.success >= state.quorum:
            return
        if beat.success + beat.not_ready >= state.quorum:
            self.sent_ms = -1  # those members adopt the term at their next tick: send again at ours
        # Two leaders of one term: only all answers together show that no quorum follows this one (DL-H03).
        elif beat.inconsistent and beat.answered == len(state.voters):
            state.become_candidate(state.term)

    def _higher_term(self, term: Term) -> None:
        """Step down because one member is in a higher term, at most once per election timeout (DL-X06).

        Waiting until a majority reports it would lock that member out.
        """
        state = self.state
        # Rate-limited: a member that raises its term again and again could otherwise keep the group without a leader.
        if state.now_ms - self.stepped_down_ms < state.settings.election_timeout_ms:
            return
        self.stepped_down_ms = state.now_ms
        state.alarm(f"leader stepped down reason=higher_term term={state.term} seen_term={term}")
        self.elector.see_higher_term(term)

    def receive(self, request: HeartBeatRequest) -> HeartBeatResponse:
        """Answer a leader's heartbeat (DL-H05, DL-H06). A response to Java has no fields but the code, and the term with 403."""
        state = self.state
        # Only an interval that this member acts on is echoed; the leader takes the echo as consent.
        echo = request.interval_ms if self.timers.base.announces_interval else None
        code, term = self._check(request), NO_TERM
        if code == Code.EXPIRED_TERM:
            term = state.term
        elif code == Code.TERM_NOT_READY:
            self.elector.see_higher_term(request.term)
        elif code == Code.INCONSISTENT_LEADER:
            # Never in a correct group: it shows two members with one id, or a term file that was restored.
            state.alarm(f"second leader rejected term={state.term} leader={state.leader_id} sender={request.leader_id}")
        # 0 reports the end of the leadership (`_resign`).
        elif code == Code.SUCCESS and echo is not None and echo <= 0:
            self.resigned = request.leader_id, request.term
            if state.role is Role.FOLLOWER:
                state.become_candidate(state.term)
        # A heartbeat that its leader's report has overtaken on the way would make that leader be followed again.
        elif code == Code.SUCCESS and self.resigned != (request.leader_id, request.term):
            if state.leader_id is None:
                assert request.leader_id is not None
                state.become_follower(request.leader_id)
            patience_ms = self.timers.patience_ms(request.interval_ms)
            # A shorter interval must not shorten what an earlier heartbeat allowed: the leader may have switched meanwhile.
            self.patient_until_ms = max(self.patient_until_ms, state.now_ms + patience_ms)
            if echo is not None:
                promised_ms = state.now_ms + self.timers.promised_ms(echo)
                state.leader_promised_ms = max(state.leader_promised_ms, promised_ms)
        changes = self._changes if echo is not None and request.changes is not None else None
        return HeartBeatResponse(code=code, term=term, interval_ms=echo, changes=changes)

    def _check(self, request: HeartBeatRequest) -> Code:
        state = self.state
        # In the order of DLedger, by which its members choose their reaction (DL-H05, DL-H06).
        if not state.trusts(request.leader_id, request.changes):
            return Code.UNKNOWN_MEMBER
        if request.leader_id == state.self_id:
            return Code.UNEXPECTED_MEMBER
        if request.term != state.term:
            return Code.EXPIRED_TERM if request.term < state.term else Code.TERM_NOT_READY
        return Code.SUCCESS if state.leader_id in (None, request.leader_id) else Code.INCONSISTENT_LEADER
