"""Heartbeats: the leader's rounds and lease, the follower's election timeout.

The lease starts with the election and is extended by every round that a quorum answered, counted from the time the round was
sent. It is shorter than the followers' election timeout, so an isolated leader steps down before another can be elected.

Requirements: DL-H01..DL-H09, DL-X06..DL-X08.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.elector import Elector
from saturnmq.raft.core.ids import Term
from saturnmq.raft.core.messages import Code, HeartBeatRequest, HeartBeatResponse, Response
from saturnmq.raft.core.state import NEVER, State


@dataclass(slots=True)
class Round:
    """One round of a leader's heartbeats."""

    term: Term
    sent_ms: int
    answered: int = 1
    success: int = 1  # the leader counts itself
    not_ready: int = 0
    inconsistent: bool = False


@dataclass(slots=True)
class Heartbeats:
    """live: whether the last heartbeat to each peer was answered (DL-H04). received_ms: last heartbeat of the leader (DL-H08)."""

    state: State
    elector: Elector
    sent_ms: int = -1
    received_ms: int = -1
    round: Round | None = None
    live: dict[str, bool] = field(default_factory=dict)
    acked_ms: dict[str, int] = field(default_factory=dict)
    stepped_down_ms: int = -(10**9)

    def role_changed(self) -> None:
        """A new leader sends heartbeats at once, and its lease starts now (DL-E21, DL-X07)."""
        now_ms = self.state.now_ms
        self.sent_ms = -1
        self.round = None
        if self.state.role is Role.LEADER:
            self.live = {}
            self.acked_ms = dict.fromkeys(self.state.others, now_ms)
        elif self.state.role is Role.FOLLOWER:
            self.received_ms = now_ms

    @property
    def quorum_seen_ms(self) -> int:
        """The latest time such that a quorum, this leader included, answered heartbeats sent at or after it."""
        acked = self.acked_ms.values()
        needed = len(self.state.peers) // 2
        if needed == 1:  # fast path: evaluated before every append
            return max(acked)
        return sorted(acked, reverse=True)[needed - 1] if needed else self.state.now_ms

    @property
    def lease_ends_ms(self) -> int:
        return self.quorum_seen_ms + self.state.settings.lease_timeout_ms

    def tick(self) -> None:
        state = self.state
        if state.role is Role.LEADER:
            if self.lease_is_good() and (
                self.sent_ms < 0 or state.now_ms - self.sent_ms > state.settings.heartbeat_interval_ms
            ):
                self._beat()
        elif state.role is Role.FOLLOWER and state.now_ms - self.received_ms > state.settings.election_timeout_ms:
            state.become_candidate(state.term)  # the term stays the same (DL-H07)

    def due_ms(self) -> int:
        """A leader's next heartbeat or the end of its lease; a follower's election timeout."""
        state = self.state
        if state.role is Role.FOLLOWER:
            return self.received_ms + state.settings.election_timeout_ms + 1
        if state.role is not Role.LEADER:
            return NEVER
        beat_ms = self.sent_ms + state.settings.heartbeat_interval_ms + 1 if self.sent_ms >= 0 else state.now_ms
        return min(beat_ms, self.lease_ends_ms)

    def lease_is_good(self) -> bool:
        """Whether the lease holds; the leader steps down when it has expired (DL-H03, DL-X08)."""
        state = self.state
        if state.now_ms < self.lease_ends_ms:
            return True
        elapsed_ms = state.now_ms - self.quorum_seen_ms
        state.alarm(f"leader stepped down reason=lease_expired term={state.term} elapsed_ms={elapsed_ms}")
        state.become_candidate(state.term)
        return False

    def _beat(self) -> None:
        """Send a round of heartbeats (DL-H01)."""
        state = self.state
        self.sent_ms = state.now_ms
        beat = self.round = Round(state.term, state.now_ms)
        for peer in state.others:
            request = HeartBeatRequest(
                group=state.group,
                term=state.term,
                leader_id=state.self_id,
                local_id=state.self_id,
                remote_id=peer,
            )
            state.send(peer, request, partial(self._answered, beat, peer))

    def _answered(self, beat: Round, peer: str, response: Response | None) -> None:
        """Count a response (DL-H02..DL-H04); late ones count too while this member leads the term of the round."""
        state = self.state
        if state.role is not Role.LEADER or beat.term != state.term:
            return
        code = response.code if isinstance(response, HeartBeatResponse) else Code.NETWORK_ERROR
        self.live[peer] = code != Code.NETWORK_ERROR
        beat.answered += 1
        if code == Code.SUCCESS:
            beat.success += 1
            self.acked_ms[peer] = max(self.acked_ms[peer], beat.sent_ms)
        elif code == Code.TERM_NOT_READY:
            beat.not_ready += 1
        elif code == Code.EXPIRED_TERM and response is not None and response.term > state.term:
            self._higher_term(response.term)
            return
        elif code == Code.INCONSISTENT_LEADER:
            beat.inconsistent = True
        if beat is not self.round or beat.success >= state.quorum:
            return
        if beat.success + beat.not_ready >= state.quorum:
            self.sent_ms = -1  # those members adopt the term at their next tick: send again at ours
        elif beat.inconsistent and beat.answered == len(state.peers):
            state.become_candidate(state.term)

    def _higher_term(self, term: Term) -> None:
        """Step down because one member is in a higher term, at most once per election timeout (DL-X06).

        Waiting until a majority reports it would lock that member out.
        """
        state = self.state
        if state.now_ms - self.stepped_down_ms < state.settings.election_timeout_ms:
            return
        self.stepped_down_ms = state.now_ms
        state.alarm(f"leader stepped down reason=higher_term term={state.term} seen_term={term}")
        self.elector.see_higher_term(term)

    def receive(self, request: HeartBeatRequest) -> HeartBeatResponse:
        """Answer a leader's heartbeat (DL-H05, DL-H06). A success response has no fields but the code."""
        state = self.state
        if request.leader_id not in state.peers:
            return HeartBeatResponse(code=Code.UNKNOWN_MEMBER)
        if request.leader_id == state.self_id:
            return HeartBeatResponse(code=Code.UNEXPECTED_MEMBER)
        if request.term < state.term:
            return HeartBeatResponse(code=Code.EXPIRED_TERM, term=state.term)
        if request.term > state.term:
            self.elector.see_higher_term(request.term)
            return HeartBeatResponse(code=Code.TERM_NOT_READY)
        if state.leader_id is None:
            state.become_follower(request.leader_id)
        elif state.leader_id != request.leader_id:
            state.alarm(f"second leader rejected term={state.term} leader={state.leader_id} sender={request.leader_id}")
            return HeartBeatResponse(code=Code.INCONSISTENT_LEADER)
        self.received_ms = state.now_ms
        return HeartBeatResponse()
