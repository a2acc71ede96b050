"""Leadership transfer, on request or to a preferred leader.

The leader refuses appends, waits until the transferee holds its whole log and all proposals are answered, then asks it to take
the leadership. The transferee runs for election in the next term at once and reports the outcome.

From that request on the leader's lease counts no more: the transferee may be elected and serve before this member notices. A
refused transfer restores the lease. After one without a response, one that was repeated on its way, and one that was refused in a
higher term the leader steps down: the transferee may lead already, or take the leadership whenever the request reaches it, which
only a new term prevents.

Requirements: DL-L01..DL-L09, DL-X18, DL-X22.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.elector import Elector
from saturnmq.raft.core.ids import NO_TERM, Term
from saturnmq.raft.core.leader import Leader
from saturnmq.raft.core.liveness import Heartbeats
from saturnmq.raft.core.messages import Code, Response, TransferRequest, TransferResponse
from saturnmq.raft.core.state import MemberState

OWN_TOKEN: int = -1  # token of a transfer to a preferred leader, which this member started itself
# Back-off after refused transfers, in preference checks: appends are refused during each attempt.
REFUSED_CHECKS_MAX: int = 16


@dataclass(slots=True)
class OutgoingTransfer:
    """A transfer on the leader's side. sent: the transferee holds the whole log and was asked to take the leadership."""

    token: int
    transferee: str
    term: Term
    deadline_ms: int
    sent: bool = False


@dataclass(slots=True)
class Incoming:
    """A transfer on the transferee's side: waits for the entries, then for the election in the term `target`."""

    token: int
    request: TransferRequest
    deadline_ms: int
    target: Term = NO_TERM

    def repeated_by(self, request: TransferRequest) -> bool:
        # The term too: a second transfer in a later term is a new one.
        return (request.transfer_id, request.term) == (self.request.transfer_id, self.request.term)


class Transfers:
    """Both sides of leadership transfer, and the periodic check for a preferred leader."""

    def __init__(self, state: MemberState, elector: Elector, heartbeats: Heartbeats, leader: Leader) -> None:
        self.state = state
        self.elector = elector
        self.heartbeats = heartbeats
        self.leader = leader
        self.outgoing: OutgoingTransfer | None = None
        self.incoming: Incoming | None = None
        self._checked_ms: int | None = None
        self._given_up = NO_TERM  # the term whose leadership a transferee was asked to take
        self._refused = 0  # consecutive transfers to preferred leaders that were refused in this term
        self._alarmed = False

    def role_changed(self) -> None:
        """Fail a transfer that was not sent yet; a sent one is completed by the transferee's response (DL-L06)."""
        self._refused, self._alarmed = 0, False
        if self.outgoing is not None and not self.outgoing.sent:
            self._end(self.outgoing, Code.NOT_LEADER)

    @property
    def handed_over(self) -> bool:
        """Whether a transferee was asked to take the leadership of this term, and has not refused: it may lead already."""
        return self._given_up == self.state.term

    def request(self, token: int, request: TransferRequest) -> None:
        if request.transferee_id == request.transfer_id:
            self._reply(token, Code.UNEXPECTED_ARGUMENT)
        elif request.transfer_id == self.state.self_id:
            self._start_transfer(token, request)
        elif request.transferee_id == self.state.self_id:
            self._accept_transfer(token, request)
        else:
            self._reply(token, Code.UNEXPECTED_ARGUMENT)  # this member is neither leader nor transferee (DL-L07)

    def tick(self) -> None:
        self.progress()
        state = self.state
        if self._checked_ms is None:
            # The first check comes one interval after the start, as in DLedger (DL-L09).
            self._checked_ms = state.now_ms
        elif state.now_ms - self._checked_ms >= state.settings.preferred_check_ms * self._checks_passed_over:
            self._checked_ms = state.now_ms
            self._prefer()

    def due_ms(self) -> int:
        """The next check for a preferred leader, or the deadline of a transfer."""
        if self._checked_ms is None:
            return self.state.now_ms
        due_ms = self._checked_ms + self.state.settings.preferred_check_ms * self._checks_passed_over
        # A transfer that was sent ends by its response or the call's timeout, not by this deadline.
        if self.outgoing is not None and not self.outgoing.sent:
            due_ms = min(due_ms, self.outgoing.deadline_ms)
        return due_ms if self.incoming is None else min(due_ms, self.incoming.deadline_ms)

    def progress(self) -> None:
        """Advance pending transfers as far as the log and the role allow."""
        if self.outgoing is not None and not self.outgoing.sent:
            self._hand_over(self.outgoing)
        if self.incoming is not None:
            self._settle(self.incoming)

    # the leader's side

    def _start_transfer(self, token: int, request: TransferRequest) -> None:
        """Check the request in DLedger's order (DL-L01, DL-L02), then refuse appends until the transfer ends."""
        state, transferee = self.state, request.transferee_id
        if transferee is None or transferee not in state.voters:
            self._reply(token, Code.UNKNOWN_MEMBER)
        elif request.term != state.term:
            self._reply(token, Code.INCONSISTENT_TERM)
        elif state.role is not Role.LEADER:
            self._reply(token, Code.NOT_LEADER)
        elif self._lag(transferee) >= state.settings.transfer_lag_max:
            self._reply(token, Code.FALL_BEHIND_TOO_MUCH)
        # `outgoing` may outlast the role, `transferee` does not.
        elif state.transferee is not None or self.outgoing is not None:
            self._reply(token, Code.LEADER_TRANSFERRING)
        else:
            # Appends are refused from here on, so that the transferee can reach the end of a log that stands still.
            state.transferee = transferee
            self.outgoing = OutgoingTransfer(
                token, transferee, state.term, state.now_ms + state.settings.transfer_wait_ms
            )
            self._hand_over(self.outgoing)

    def _lag(self, peer: str) -> int:
        return self.state.log.end - self.leader.peers[peer].watermark

    def _hand_over(self, outgoing: OutgoingTransfer) -> None:
        """Ask the transferee once it holds the whole log, so that it wins the election (DL-L03, DL-X22).

        Pending proposals are answered first: the role change would fail them with an unknown outcome (DL-X09).
        """
        state = self.state
        if self._lag(outgoing.transferee) > 0 or self.leader.proposals:
            if state.now_ms >= outgoing.deadline_ms:
                self._end(outgoing, Code.FALL_BEHIND_TOO_MUCH)
            return
        # Set before the request leaves: `_given_up` ends the lease from this moment.
        outgoing.sent = True
        self._given_up = outgoing.term
        request = TransferRequest(
            group=state.group,
            term=state.term,
            local_id=state.self_id,
            remote_id=outgoing.transferee,
            leader_id=state.self_id,
            transfer_id=state.self_id,
            transferee_id=outgoing.transferee,
            take_leadership_ledger_index=state.log.end,
        )
        state.send(outgoing.transferee, request, partial(self._transfer_answered, outgoing))

    def _transfer_answered(self, outgoing: OutgoingTransfer, response: Response | None) -> None:
        """Step down if the transferee leads, also if its requests for votes have not arrived here, or if it may lead.

        It may also lead if it was asked already, because the request was repeated on its way, and if it refuses in a higher term.
        """
        state = self.state
        # The request may arrive later, and then the transferee takes the leadership whenever that is.
        if response is None or response.code == Code.REPEATED_REQUEST:
            if state.role is Role.LEADER and state.term == outgoing.term:
                state.alarm(
                    f"leader stepped down reason=transfer_unanswered term={state.term} to={outgoing.transferee}"
                )
                state.become_candidate(state.term)
        # A response of a later term: an election is going on or has happened.
        elif response.term > outgoing.term:
            if state.role is Role.LEADER and response.term > state.term:
                self.elector.see_higher_term(response.term)
        elif response.code != Code.SUCCESS:
            # Refused for certain in the same term: this leader goes on, with its lease.
            self._given_up = NO_TERM
        self._end(outgoing, Code.NETWORK_ERROR if response is None else response.code)

    def _end(self, outgoing: OutgoingTransfer, code: int) -> None:
        """End the transfer with code; if the term is unchanged, appends are accepted again (DL-L06)."""
        if self.outgoing is outgoing:
            self.outgoing = None
        # In a later term `transferee` belongs to another leadership.
        if self.state.term == outgoing.term:
            self.state.transferee = None
            # Only refusals of the preferred member itself lengthen the pause.
            if outgoing.token == OWN_TOKEN and code in (Code.TAKE_LEADERSHIP_FAILED, Code.DISK_ERROR):
                self._refused += 1
        self._reply(outgoing.token, code)

    @property
    def _checks_passed_over(self) -> int:
        # The exponent is limited before the shift, so that the number stays small however often it was refused.
        return min(1 << min(self._refused, 8), REFUSED_CHECKS_MAX)

    def _prefer(self) -> None:
        """Start a transfer to the live preferred leader with the smallest lag, unless this leader is preferred (DL-L09)."""
        state, preferred = self.state, self.state.settings.preferred_leaders
        if state.role is not Role.LEADER or not preferred or state.self_id in preferred or state.transferee is not None:
            return
        # A member that does not answer would block appends until the timeout.
        candidates = [peer for peer in preferred if peer in state.other_voters and self.heartbeats.live.get(peer)]
        if not candidates:
            return
        nearest = min(candidates, key=self._lag)
        if self._lag(nearest) < state.settings.transfer_lag_max:
            request = TransferRequest(transfer_id=state.self_id, transferee_id=nearest, term=state.term)
            self._start_transfer(OWN_TOKEN, request)

    # the transferee's side

    def _accept_transfer(self, token: int, request: TransferRequest) -> None:
        state = self.state
        if self.incoming is not None and self.incoming.repeated_by(request):
            self._reply(token, Code.REPEATED_REQUEST)
        elif request.transfer_id != state.leader_id:
            self._reply(token, Code.INCONSISTENT_LEADER)  # the sender is not this member's leader (DL-L04)
        elif state.failed is not None or state.recovering or state.barred:
            self._reply(token, Code.DISK_ERROR)
        elif self.incoming is not None or not state.votes or self._comes_too_early(request):
            self._reply(token, Code.TAKE_LEADERSHIP_FAILED)
        else:
            self.incoming = Incoming(token, request, state.now_ms + state.settings.transfer_wait_ms)
            self._settle(self.incoming)

    def _comes_too_early(self, request: TransferRequest) -> bool:
        """Whether to refuse a transfer by preference because this member would bring back old offsets and topics (DL-X18).

        A leader that is itself preferred never starts a transfer by preference, so its request comes from an operator and is
        accepted.
        """
        state, preferred = self.state, self.state.settings.preferred_leaders
        if not state.outdated or state.self_id not in preferred or request.transfer_id in preferred:
            return False
        if not self._alarmed:
            self._alarmed = True
            state.alarm("leadership transfer refused reason=offsets_and_topics_not_copied")
        return True

    def _settle(self, incoming: Incoming) -> None:
        """Start the election once the entries are here, or report its outcome (DL-L04, DL-L05)."""
        state = self.state
        if incoming.target < 0:
            # The entries must be here before the election: else this member could lose it with the shorter log (DL-X22).
            if state.log.end >= incoming.request.take_leadership_ledger_index:
                self._campaign(incoming)
            elif state.now_ms >= incoming.deadline_ms:
                self._finish_incoming(incoming, Code.TAKE_LEADERSHIP_FAILED)
        elif state.term > incoming.target:
            self._finish_incoming(incoming, Code.EXPIRED_TERM)
        elif state.role is Role.LEADER and state.term == incoming.target:
            self._finish_incoming(incoming, Code.SUCCESS)
        elif state.role is Role.FOLLOWER or state.now_ms >= incoming.deadline_ms:
            self._finish_incoming(incoming, Code.TAKE_LEADERSHIP_FAILED)

    def _campaign(self, incoming: Incoming) -> None:
        """Ask for votes at once: a heartbeat before the next tick would make this member a follower in the old term again."""
        state = self.state
        # The term has changed while the entries came in.
        if state.term != incoming.request.term or state.role is not Role.FOLLOWER:
            self._finish_incoming(incoming, Code.INCONSISTENT_TERM)
            return
        incoming.target = Term(state.term + 1)
        # As long as the leader waits for the response.
        incoming.deadline_ms = state.now_ms + state.settings.rpc_timeout_ms
        state.term_to_take = incoming.target
        self.elector.see_higher_term(incoming.target)
        self.elector.tick()

    def _finish_incoming(self, incoming: Incoming, code: Code) -> None:
        self.incoming = None
        if code != Code.SUCCESS:
            self.state.term_to_take = NO_TERM  # its votes are asked for without the leader's consent from now on
        self._reply(incoming.token, code)

    def _reply(self, token: int, code: int) -> None:
        if token != OWN_TOKEN:
            self.state.reply(token, TransferResponse(group=self.state.group, term=self.state.term, code=code))
