"""Elections: when a candidate requests votes, and how a member answers vote requests.

The decision tables are in voting.py (docs/spec/04-dledger.md sections 3.1 to 3.3).

Requirements: DL-E01..DL-E19, DL-X05, DL-X15, DUR-10.
"""

from __future__ import annotations

from functools import partial

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.ids import NO_TERM, Term
from saturnmq.raft.core.messages import Code, Response, VoteRequest, VoteResponse, VoteResult
from saturnmq.raft.core.state import NEVER, MemberState
from saturnmq.raft.core.voting import Parsed, Tally, Voter, judge


class Elector:
    """Candidate side of a member, and its answers to vote requests.

    raise_now: a higher term was seen and is adopted at the next tick (DL-E18).
    next_vote_ms: start of the next round of votes, not earlier (DL-E03).
    spent_term: term that this member may have led before its last start, if only by the votes of others, or has led until it
    reported that it steps down. It may have lost entries that it had pushed but not synced, so it may request votes in this term,
    to see whether a quorum is reachable, but leads only in a higher one.
    led_term: the last term that this process led. In a group that has changed, a member with entries of a term that another has led
    leads only in a higher one, too: new members have not voted in that term, and could give it a second leader.
    """

    def __init__(self, state: MemberState) -> None:
        self.state = state
        self.next_vote_ms = -1
        self.raise_now = False
        self.last_result = Parsed.WAIT_TO_REVOTE
        self.round: Tally | None = None
        # A vote in the file means that this member may have led this term before it stopped, no matter which candidate has the
        # vote.
        self.spent_term = state.term if state.voted_for is not None else NO_TERM
        self.led_term = NO_TERM

    def role_changed(self) -> None:
        """Reset the election state, so that a later candidacy starts from the beginning (DL-E22)."""
        if self.state.role is Role.LEADER:
            self.led_term = self.state.term
        if self.state.role is not Role.CANDIDATE:
            # A round that is answered late belongs to the candidacy that ended.
            self.round = None
            self.raise_now = False
            self.last_result = Parsed.WAIT_TO_REVOTE

    def see_higher_term(self, term: Term) -> None:
        """Become candidate and adopt the higher term at the next tick (DL-E18)."""
        self.state.become_candidate(term)
        self.raise_now = True

    def tick(self) -> None:
        """Run the candidate's timers: adopt a higher term, close a round, start the next one (DL-E03..DL-E06)."""
        state = self.state
        # A failed member stands no election until its restart (DL-X15).
        if state.role is not Role.CANDIDATE or state.failed is not None:
            return
        # Nothing else runs while a round is open, unless a higher term was seen: its votes are worthless then.
        if self.round is not None and not self.raise_now:
            if state.now_ms >= self.round.deadline_ms:
                self._finish()
            return
        if (state.now_ms < self.next_vote_ms or state.barred) and not self.raise_now:
            return
        # A higher term is adopted below all the same, so that its answers carry a current one.
        if not state.stands and not self.raise_now:  # a learner or a former member
            self.next_vote_ms = self._jitter()
            return
        if self.last_result is Parsed.WAIT_TO_VOTE_NEXT or self.raise_now:
            state.next_term()
            self.last_result = Parsed.WAIT_TO_REVOTE
        if self.raise_now:
            self.round = None
            self.raise_now = False
            # After a higher term DLedger waits for its random interval before it asks for votes (DL-E06): the rival goes first.
            if state.term_to_take != state.term:
                self.next_vote_ms = self._jitter()
                return
            self.next_vote_ms = state.now_ms  # asked to lead: the former leader waits
        # It raised its term like the others, but must not lead with a log that is missing acknowledged entries.
        if state.recovering or not state.stands:
            self.next_vote_ms = self._jitter()
            return
        self._request_votes()

    def due_ms(self) -> int:
        """Deadline of the current round of votes, or start of the next one."""
        state = self.state
        if state.role is not Role.CANDIDATE or state.failed is not None:
            return NEVER
        if self.raise_now:
            return state.now_ms
        return self.round.deadline_ms if self.round is not None else self.next_vote_ms

    def _jitter(self) -> int:
        """Now plus a random vote interval, in ms (DL-E07)."""
        settings = self.state.settings
        low, high = settings.vote_interval_min_ms, settings.vote_interval_max_ms
        if self.state.taking_leadership:
            low, high = settings.take_vote_interval_min_ms, settings.take_vote_interval_max_ms
        return self.state.now_ms + low + self.state.chance(high - low)

    def _request_votes(self) -> None:
        """Start a round of votes; the member's own vote comes first, by the same rules as any other (DL-E08)."""
        state = self.state
        # Random, so that two candidates do not give up together and split the next round too.
        wait_ms = state.settings.vote_wait_ms + state.chance(state.settings.vote_interval_max_ms)
        tally = self.round = Tally(state.term, len(state.voters), state.now_ms + wait_ms)
        # By the same rules: a member that voted for another in this term refuses itself.
        own_vote = self.vote(self._request(state.self_id), local=True)
        if state.votes:  # else it was removed, and needs a majority of the others
            tally.add(state.self_id, own_vote)
        for peer in state.other_voters:
            state.send(peer, self._request(peer), partial(self._answered, tally, peer))
        # A group of one member has all its answers already.
        self._check(tally)

    def _request(self, peer: str) -> VoteRequest:
        state = self.state
        return VoteRequest(
            group=state.group,
            term=state.term,
            leader_id=state.self_id,
            local_id=state.self_id,
            remote_id=peer,
            ledger_end_index=state.log.end,
            ledger_end_term=state.log.end_term,
            changes=state.configuration.index if state.configuration.index >= 0 else None,
            transfer=state.term_to_take == state.term if state.settings.announces_interval else None,
        )

    def _answered(self, tally: Tally, peer: str, response: Response | None) -> None:
        # An answer to a round that has ended is late; the new round has asked again.
        if tally is not self.round:
            return
        before = self._has_rival(tally)
        tally.add(peer, response if isinstance(response, VoteResponse) else None)
        if self._has_rival(tally) and not before:
            # Silent members could still decide the split vote, but often one of them is the lost leader. The wait is not random:
            # that could undo the order in which rivals go on.
            tally.deadline_ms = min(tally.deadline_ms, self.state.now_ms + self.state.settings.vote_interval_min_ms)
        self._check(tally)

    def _has_rival(self, tally: Tally) -> bool:
        """Whether the votes of a term in which this member voted for itself are split between it and other candidates.

        Of another term nothing follows: those that voted for its leader may follow it still, and a higher term would unseat it.
        """
        return tally.split and tally.answers.get(self.state.self_id) is VoteResult.ACCEPT

    def _check(self, tally: Tally) -> None:
        if tally.decided:
            self._finish()

    def _finish(self) -> None:
        """Close the round and act on its result, by the table of spec section 3.3 (DL-E12..DL-E15)."""
        state, tally = self.state, self.round
        assert tally is not None
        self.round = None
        self.last_result, wait = tally.parse()
        changed = state.configuration.index >= 0
        # Another member led the term of this log's last entry, see `led_term` above.
        of_another = changed and state.log.end_term == tally.term != self.led_term
        if self.last_result is Parsed.PASSED and (tally.term == self.spent_term or of_another):
            # The round shows that a quorum is reachable, which is all that this term is good for: go on in the next one at
            # once.
            self.last_result, self.next_vote_ms = Parsed.WAIT_TO_VOTE_NEXT, state.now_ms
            return
        if wait == "jitter" and self._goes_second(tally):
            wait = "behind"
        if wait != "none":
            extra = {
                "jitter": 0,
                "leader": state.settings.election_timeout_ms,
                "behind": state.settings.vote_interval_max_ms,
            }
            self.next_vote_ms = self._jitter() + extra[wait]
        # Remembered only; the next tick adopts it and persists it (DL-E20).
        if tally.known_max_term > tally.term:
            state.become_candidate(tally.known_max_term)
        if self.last_result is Parsed.PASSED:
            # The term may have changed while the votes came in: a leader of an old term would break "one leader per term"
            # (DL-E15).
            if state.term == tally.term and state.role is Role.CANDIDATE and not self.raise_now:
                state.become_leader()
            else:
                state.alarm(f"late votes ignored vote_term={tally.term} role={state.role.value} term={state.term}")

    def _goes_second(self, tally: Tally) -> bool:
        """Whether a rival with a lower id waits less before the next round: equal waits would often split the votes again."""
        lower = (result for member, result in tally.answers.items() if member < self.state.self_id)
        return self._has_rival(tally) and VoteResult.REJECT_ALREADY_VOTED in lower

    def vote(self, request: VoteRequest, *, local: bool = False) -> VoteResponse:
        """Answer a vote request; a granted vote is persisted before the response is sent (DL-E16..DL-E19)."""
        state = self.state
        # A candidate that this member does not know may be new in a configuration that it has not received yet.
        candidate = (request.leader_id or "",) if state.trusts(request.leader_id, request.changes) else ()
        voter = Voter(
            state.self_id,
            (*state.peers, *candidate),
            state.term,
            state.voted_for,
            state.leader_id,
            state.log.end,
            state.log.end_term,
            state.taking_leadership,
            local,
            state.role is Role.FOLLOWER and state.now_ms <= state.leader_promised_ms,
        )
        result, term, code = judge(voter, request), state.term, Code.SUCCESS
        if state.failed is not None:
            result, code = VoteResult.UNKNOWN, Code.DISK_ERROR  # a failed member does not vote (DL-X15)
        # As UNKNOWN, not as a refusal: it counts neither for the candidate nor against it.
        elif result is VoteResult.ACCEPT and state.recovering:
            result, code = VoteResult.UNKNOWN, Code.DISK_ERROR  # the log is missing acknowledged entries (DUR-10)
        # The vote is given in the next round, when the terms are equal (DL-E18).
        elif result is VoteResult.REJECT_TERM_NOT_READY:
            self.see_higher_term(request.term)
        elif result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER:
            # The response names the term of the log's last entry, and the candidate raises its own term to it before it asks again.
            term = state.log.end_term
        elif result is VoteResult.ACCEPT:
            assert request.leader_id is not None
            state.vote_for(request.leader_id)
        return VoteResponse(
            group=request.group,
            term=term,
            leader_id=request.leader_id,
            local_id=request.local_id,
            remote_id=request.remote_id,
            code=code,
            vote_result=result,
        )
