"""Entry point of the Raft core: all inputs of one member. The caller's duties are listed in raft/core/__init__.py."""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.protocol.errors import ConfigError
from saturnmq.raft.core.actions import Action, PersistTerm, Role
from saturnmq.raft.core.configuration import Configuration, ConfigurationCodec, ConfigurationGeneration, Configurations
from saturnmq.raft.core.elector import Elector
from saturnmq.raft.core.follower import Follower
from saturnmq.raft.core.ids import LedgerIndex, Term
from saturnmq.raft.core.leader import Leader, Stamp
from saturnmq.raft.core.liveness import Heartbeats
from saturnmq.raft.core.log import EntryLog, LedgerReader
from saturnmq.raft.core.membership import Membership
from saturnmq.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    ChangeRequest,
    ChangeResponse,
    Code,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushRequest,
    PushResponse,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import Chance, HardState, MemberState
from saturnmq.raft.core.term_limit import TermLimit
from saturnmq.raft.core.timers import Timers
from saturnmq.raft.core.transfer import Transfers


def keep_body(body: bytes, pos: int) -> bytes:
    """The `stamp` function of a ledger whose bodies are opaque bytes: returns the body unchanged."""
    return body


class Node:
    """One member of a group. Every input method takes the current time in ms and returns the actions to execute, in order.

    group, self_id, peers: identity of the member; peers maps id -> host:port and includes this member.
    reader: access to the stored entries.
    chance: chance(n) returns a random number in 0..n-1.
    committed: the committed index of the checkpoint file.
    incomplete: the log may be missing entries that this member has acknowledged, and others count on (DUR-10).
    stamp, noop: see `Leader`.
    codec: how changes of the members are written in entries; None: there are none. configurations: those stored by
    `PersistMembers`, which override `peers`. learner: until the log says otherwise, this member does not vote.

    Raises ConfigError.
    """

    def __init__(
        self,
        *,
        group: str,
        self_id: str,
        peers: dict[str, str],
        settings: CoreSettings,
        reader: LedgerReader,
        hard_state: HardState,
        committed: LedgerIndex,
        chance: Chance,
        stamp: Stamp = keep_body,
        noop: bytes | None = None,
        incomplete: bool = False,
        codec: ConfigurationCodec | None = None,
        configurations: Sequence[ConfigurationGeneration] = (),
        learner: bool = False,
    ) -> None:
        problems = settings.validate()
        if self_id not in peers:
            problems.append(f"own id {self_id!r} is not among the peers {', '.join(peers)} (DL-M03)")
        if problems:
            raise ConfigError(problems)
        log = EntryLog(reader, settings.file_bytes)
        initial = Configuration(dict(peers), frozenset((self_id,)) if learner else frozenset())
        history = Configurations(initial, codec)
        history.load(configurations, log.begin, reader.entry)
        self._state = MemberState(
            self_id=self_id,
            group=group,
            configurations=history,
            settings=settings,
            chance=chance,
            log=log,
            term=hard_state.term,
            voted_for=hard_state.voted_for,
            # A crash may have taken entries that the checkpoint counted as committed.
            committed=min(committed, log.end),
            known_max_term=hard_state.term,
            stored=tuple(configurations),
        )
        self._state.start()
        if incomplete:
            self._state.recovering = True
            self._state.alarm(f"acknowledged entries missing, no votes until recovered end={log.end}")
        # An entry of this term was accepted, so the term was reached; the vote in it is unknown and not given again.
        if log.end_term > hard_state.term:  # the term file is older than the log (DL-X01)
            self._state.term, self._state.voted_for = log.end_term, None
            self._state.known_max_term = log.end_term
            self._state.out.append(PersistTerm(log.end_term, None))
        self._elector = Elector(self._state)
        self._timers = Timers(self._state)
        self._heartbeats = Heartbeats(self._state, self._elector, self._timers)
        self._follower = Follower(self._state)
        self._leader = Leader(self._state, stamp, noop)
        self._transfers = Transfers(self._state, self._elector, self._heartbeats, self._leader)
        self._membership = Membership(self._state, self._leader, self._heartbeats)
        followed = (self._heartbeats, self._timers, self._leader)
        # In this order they are notified of a role change: the elector's state is reset before the heartbeats of a new leader
        # begin.
        self._state.parts = [self._elector, *followed, self._follower, self._transfers, self._membership]
        self._state.members_changed = [part.members_changed for part in followed]
        self._term_limit = TermLimit(self._state)
        self._settled = False  # the last input was a tick without effect: until the next timer there is nothing to do

    # what the caller may read

    @property
    def self_id(self) -> str:
        return self._state.self_id

    @property
    def group(self) -> str:
        return self._state.group

    @property
    def peers(self) -> tuple[str, ...]:
        """Ids of all members, this one included."""
        return self._state.peers

    @property
    def configuration(self) -> Configuration:
        """The configuration in use: the newest in the log, committed or not, else the initial one."""
        return self._state.configuration

    @property
    def votes(self) -> bool:
        """Whether this member is a voter, neither a learner nor removed."""
        return self._state.votes

    @property
    def settings(self) -> CoreSettings:
        return self._state.settings

    @property
    def now_ms(self) -> int:
        """Time of the last input."""
        return self._state.now_ms

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def is_leader(self) -> bool:
        return self._state.role is Role.LEADER

    @property
    def term(self) -> Term:
        return self._state.term

    @property
    def leader_id(self) -> str | None:
        return self._state.leader_id

    @property
    def begin_index(self) -> LedgerIndex:
        return self._state.log.begin

    @property
    def end_index(self) -> LedgerIndex:
        return self._state.log.end

    @property
    def log_epoch(self) -> int:
        """Incremented by every truncation; see `SyncLog`."""
        return self._state.log.epoch

    @property
    def synced_index(self) -> LedgerIndex:
        """The log is on disk up to this index."""
        return self._state.log.durable

    @property
    def acked_index(self) -> LedgerIndex:
        """Highest index that this member may acknowledge (DL-X02): the synced end under SYNC_FLUSH, else the end."""
        return self._state.durable

    @property
    def committed(self) -> LedgerIndex:
        return self._state.committed

    @property
    def failed(self) -> str | None:
        """Why the log or the term file can no longer be written; None while they can (DL-X15)."""
        return self._state.failed

    @property
    def is_disk_full(self) -> bool:
        """The flag last set with `disk_full`."""
        return self._state.disk_full

    @property
    def recovering(self) -> bool:
        """Whether entries may be missing that this member had acknowledged; it neither votes nor stands (DUR-10)."""
        return self._state.recovering

    @property
    def pending_proposals(self) -> int:
        """Proposals that wait for a quorum."""
        return len(self._leader.proposals)

    @property
    def fast_timers(self) -> bool:
        """Whether the fast timers are in use because every member is known to support them."""
        return self._timers.fast

    @property
    def append_refusal(self) -> Code | None:
        """The code with which an append would be refused now; None if it would be accepted (DL-A01)."""
        return self._leader.refusal()

    @property
    def transferring(self) -> bool:
        """Whether this leader refuses appends because the leadership is being transferred (DL-L02)."""
        return self._state.transferee is not None

    @property
    def handed_over(self) -> bool:
        """Whether another member was asked to take the leadership of this term, and has not refused (DL-L03)."""
        return self._transfers.handed_over

    def watermarks(self) -> dict[str, LedgerIndex]:
        """Leader only: the highest index that each member is known to hold, for this member its acknowledged index."""
        return self._leader.watermarks()

    def unanswered_peers(self) -> list[str]:
        """Leader only: peers that did not answer the last heartbeat, or were not sent one yet (DL-H04)."""
        return [peer for peer in self._state.other_members if not self._heartbeats.live.get(peer, False)]

    def holds_lease(self, now_ms: int) -> bool:
        """Whether this member leads, its lease has not expired, and it has not handed the leadership over (DL-X08)."""
        heartbeats = self._heartbeats
        # Without a confirmed quorum the lease of a new leader is only assumed, so that it does not step down at once.
        leads = self._state.role is Role.LEADER and now_ms < heartbeats.lease_ends_ms
        return leads and heartbeats.is_confirmed and not self._transfers.handed_over

    # inputs without actions

    def set_outdated(self, outdated: bool) -> None:
        """Set whether state outside the log (offsets, topics) may be older here than on the leader.

        While it may be, this member refuses to take the leadership over by preference, but not on an operator's request (DL-X18).
        """
        self._state.outdated = outdated

    def set_barred(self, barred: bool) -> None:
        """While set, start no round of votes and refuse transfers to this member; a running round and its votes go on."""
        self._state.barred = barred

    def synced_at_stop(self, end_index: LedgerIndex) -> None:
        """Record a last fsync up to end_index, after which no input follows; unlike `synced` it triggers no actions."""
        self._state.log.durable = end_index

    # inputs

    def tick(self, now_ms: int) -> list[Action]:
        """Run the timers that are due (DL-E02)."""
        self._enter(now_ms)
        # Heartbeats first: a leader whose lease has expired must not act as leader in the rest of the tick.
        if self._state.settings.elector_enabled:
            self._heartbeats.tick()
            self._elector.tick()
        self._follower.tick()
        self._leader.tick()
        self._transfers.tick()
        self._membership.tick()
        actions = self._leave()
        # An action may have started a timer, so the next tick is due at once.
        self._settled = not actions
        return actions

    def next_due_ms(self) -> int:
        """When the next tick is due, in ms; an earlier tick has no effect unless another input comes first.

        After every other input, and after every tick that returned actions, a tick is due at once, because either may have
        changed a timer.
        """
        state = self._state
        if not self._settled:
            return state.now_ms
        timers = (
            state.parts
            if state.settings.elector_enabled
            else (self._follower, self._leader, self._transfers, self._membership)
        )
        return min(part.due_ms() for part in timers)

    def response(self, now_ms: int, call: int, response: Response | None) -> list[Action]:
        """Handle the response to a Send; None if the call failed. A second response to the same call is ignored."""
        self._enter(now_ms)
        # The call counts as failed, so that its callback runs and goes on.
        if response is not None and self._term_limit.exceeded(response, "response"):
            response = None
        # Removed before it is called: the callback may send again.
        answered = self._state.calls.pop(call, None)
        if answered is not None:
            answered(response)
        return self._leave()

    def propose(self, now_ms: int, token: int, bodies: Sequence[bytes]) -> list[Action]:
        """Append bodies on the leader. Reply(token, AppendResponse) follows, at once if refused, else when they are committed."""
        return self.propose_all(now_ms, [(token, bodies)])

    def propose_all(self, now_ms: int, proposals: Sequence[tuple[int, Sequence[bytes]]]) -> list[Action]:
        """Append several (token, bodies) proposals and push and sync them together."""
        self._enter(now_ms)
        self._check_lease()
        for token, bodies in proposals:
            self._leader.propose(token, bodies)
        self._proposed()
        return self._leave()

    def offer(self, now_ms: int, token: int, bodies: Sequence[bytes]) -> tuple[AppendResponse, list[Action]]:
        """`propose` without sending pushes, for callers that need the positions at once; the caller must call `push` soon."""
        self._enter(now_ms)
        self._check_lease()
        response = self._leader.propose(token, bodies)
        return response, self._leave()

    def push(self, now_ms: int) -> list[Action]:
        """Push the entries appended by `offer`."""
        self._enter(now_ms)
        self._proposed()
        return self._leave()

    def _check_lease(self) -> None:
        """Check the lease between ticks too: the process may have been paused since the last one."""
        # With the elector off there are no heartbeats, and no lease to expire.
        if self._state.role is Role.LEADER and self._state.settings.elector_enabled:
            self._heartbeats.lease_is_good()

    def _proposed(self) -> None:
        if self._state.role is Role.LEADER:
            self._leader.advance()
            self._leader.push_all()

    def synced(self, now_ms: int, epoch: int, end_index: LedgerIndex) -> list[Action]:
        """The fsync requested by SyncLog(epoch, end_index) is done. Ignored after a storage failure (DUR-06)."""
        self._enter(now_ms)
        log = self._state.log
        # An older epoch synced entries that were truncated since; a lower index is a completion out of order.
        if self._state.failed is None and epoch == log.epoch and end_index > log.durable:
            log.durable = end_index
            # The truncation is on disk now: older generations of the configuration are needed no longer.
            self._state.settle_members()
            self._follower.synced()
            if self._state.role is Role.LEADER:
                self._leader.advance()
        return self._leave()

    def disk_failed(self, now_ms: int, why: str) -> list[Action]:
        """Term or log cannot be written: do not lead, vote or acknowledge until a restart (DL-X15)."""
        self._enter(now_ms)
        state = self._state
        if state.failed is None:
            state.failed = why
            state.alarm(f"storage failed term={state.term} error={why}")
            # Its answers could still make this member leader.
            self._elector.round = None
            state.become_candidate(state.term)
        return self._leave()

    def disk_full(self, now_ms: int, full: bool) -> list[Action]:
        """Set the disk-full flag; while it is set, appends are refused with 415 DISK_FULL (DL-S10)."""
        self._enter(now_ms)
        self._state.disk_full = full
        # A leader elected while the disk was full has no entry of its term, and could not commit.
        if not full:
            self._leader.space_freed()
            self._proposed()
        return self._leave()

    def trimmed(self, now_ms: int, begin_index: LedgerIndex) -> list[Action]:
        """Retention deleted old files; the log now begins at begin_index (DL-S12)."""
        self._enter(now_ms)
        self._state.trimmed(begin_index)
        return self._leave()

    def request(self, now_ms: int, token: int, request: Request) -> list[Action]:
        """Handle a request of a peer or a client; Reply(token, ...) follows, at once or later."""
        self._enter(now_ms)
        state = self._state
        refusal = None
        # Before the kind of request: a stranger's request must not change anything, not even the known term.
        if request.remote_id != state.self_id:
            refusal = Code.UNKNOWN_MEMBER
        elif request.group != state.group:
            refusal = Code.UNKNOWN_GROUP
        elif self._term_limit.exceeded(request, request.local_id or request.leader_id or "unknown"):
            refusal = Code.UNEXPECTED_ARGUMENT
        if refusal is not None:  # sent to the wrong member or group (DL-M07), or with an impossible term
            state.reply(token, self._refuse(request, refusal))
        elif isinstance(request, PushRequest):
            self._follower.push(token, request)
            # The append may have brought the entries that a transfer waits for.
            self._transfers.progress()
        elif isinstance(request, VoteRequest):
            state.reply(token, self._elector.vote(request))
        elif isinstance(request, HeartBeatRequest):
            state.reply(token, self._heartbeats.receive(request))
        elif isinstance(request, AppendRequest):
            self._check_lease()
            self._leader.propose(token, [request.body or b""])
            self._proposed()
        elif isinstance(request, TransferRequest):
            self._transfers.request(token, request)
        elif isinstance(request, ChangeRequest):
            self._check_lease()
            self._membership.request(token, request)
        elif isinstance(request, GetRequest):
            self._check_lease()
            state.reply(token, self._read_committed(request))
        else:
            state.reply(token, self._metadata(request))
        return self._leave()

    def _enter(self, now_ms: int) -> None:
        state = self._state
        # The core's time never goes back, even if the clock does: leases and timeouts would be extended.
        state.now_ms = max(state.now_ms, now_ms)
        self._settled = False
        # Whatever the last input emitted has been executed by now (duty 1 of the caller).
        state.log.written()

    def _leave(self) -> list[Action]:
        # After every input, whichever it was: a commit can come from any of them.
        self._membership.progress()
        out = self._state.out
        self._state.out = []
        return out

    # responses that change no state

    def _read_committed(self, request: GetRequest) -> GetResponse:
        """Read one entry; only the leader answers, and only for committed entries (DL-A10, DL-X17)."""
        state, index = self._state, request.begin_index
        code, entries = Code.SUCCESS, ()
        entry = state.log.entry(index)
        # A follower's entries may still be truncated.
        if state.role is not Role.LEADER:
            code = Code.NOT_LEADER
        elif index < max(state.log.begin, 0):
            code = Code.INDEX_LESS_THAN_LOCAL_BEGIN
        # An uncommitted entry may never come to be (DL-X17).
        elif index > state.committed or entry is None:
            code = Code.INDEX_OUT_OF_RANGE
        else:
            return GetResponse(group=state.group, term=state.term, leader_id=state.leader_id, entries=(entry,))
        return GetResponse(group=state.group, term=state.term, leader_id=state.leader_id, code=code, entries=entries)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        """Leader, term and addresses as this member knows them; every member answers (DL-M09). Java members send no term."""
        state = self._state
        members = state.configuration
        return MetadataResponse(
            group=state.group,
            leader_id=state.leader_id,
            term=state.term,
            peers=dict(members.addresses),
            learners=tuple(sorted(members.learners)) or None,
        )

    def _refuse(self, request: Request, code: Code) -> Response:
        state = self._state
        if isinstance(request, VoteRequest):
            # A refusal must not count as a vote, for or against.
            return VoteResponse(group=request.group, term=state.term, code=code, vote_result=VoteResult.UNKNOWN)
        if isinstance(request, PushRequest):
            first = request.entries[0].index if request.entries else None
            return PushResponse(group=state.group, code=code, term=state.term, index=first)
        for kind, answer in _ANSWERS:
            if isinstance(request, kind):
                return answer(group=state.group, code=code, leader_id=state.leader_id, term=state.term)
        return MetadataResponse(group=state.group, code=code)


_ANSWERS: tuple[
    tuple[type, type[HeartBeatResponse | TransferResponse | AppendResponse | GetResponse | ChangeResponse]], ...
] = (
    (HeartBeatRequest, HeartBeatResponse),
    (TransferRequest, TransferResponse),
    (AppendRequest, AppendResponse),
    (GetRequest, GetResponse),
    (ChangeRequest, ChangeResponse),
)
