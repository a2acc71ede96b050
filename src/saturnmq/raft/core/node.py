"""Entry point of the Raft core: all inputs of one member. The caller's duties are listed in raft/core/__init__.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from saturnmq.protocol.errors import ConfigError
from saturnmq.raft.core.actions import Action, PersistTerm, Role
from saturnmq.raft.core.elector import Elector
from saturnmq.raft.core.follower import Follower
from saturnmq.raft.core.leader import Leader, Stamp
from saturnmq.raft.core.liveness import Heartbeats
from saturnmq.raft.core.log import LedgerReader, Log
from saturnmq.raft.core.messages import (
    AppendRequest,
    AppendResponse,
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
from saturnmq.raft.core.state import Chance, HardState, State
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
    must_hold: the last index known to have been synced, from the checkpoint; a log that ends before it was damaged (DUR-10).
    stamp, noop: see `Leader`.

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
        committed: int,
        chance: Chance,
        stamp: Stamp = keep_body,
        noop: bytes | None = None,
        must_hold: int = -1,
    ) -> None:
        problems = settings.validate()
        if self_id not in peers:
            problems.append(f"own id {self_id!r} is not among the peers {', '.join(peers)} (DL-M03)")
        if problems:
            raise ConfigError(problems)
        log = Log(reader, settings.file_bytes)
        self.addresses = dict(peers)
        self.state = State(
            self_id=self_id,
            group=group,
            peers=tuple(peers),
            settings=settings,
            chance=chance,
            log=log,
            term=hard_state.term,
            voted_for=hard_state.voted_for,
            committed=min(committed, log.end),
            known_max_term=hard_state.term,
        )
        if must_hold > log.end:
            self.state.must_hold = must_hold
            self.state.alarm(
                f"the log ends at {log.end}, it was synced up to {must_hold}: no votes until that is here again"
            )
        if log.end_term > hard_state.term:  # the term file is older than the log (DL-X01)
            self.state.term, self.state.voted_for = log.end_term, None
            self.state.known_max_term = log.end_term
            self.state.out.append(PersistTerm(log.end_term, None))
        self.elector = Elector(self.state)
        self.heartbeats = Heartbeats(self.state, self.elector)
        self.follower = Follower(self.state)
        self.leader = Leader(self.state, stamp, noop)
        self.transfers = Transfers(self.state, self.elector, self.heartbeats, self.leader)
        self.state.parts = [self.elector, self.heartbeats, self.follower, self.leader, self.transfers]
        self._settled = False  # the last input was a tick without effect: until the next timer there is nothing to do

    @property
    def settings(self) -> CoreSettings:
        return self.state.settings

    @settings.setter
    def settings(self, settings: CoreSettings) -> None:
        """Replace the settings; they are read at every tick (DL-E02). file_bytes cannot change and is kept."""
        self.state.settings = dataclasses.replace(settings, file_bytes=self.state.settings.file_bytes)
        self._settled = False

    # inputs

    def tick(self, now_ms: int) -> list[Action]:
        """Run the timers that are due (DL-E02)."""
        self._enter(now_ms)
        if self.state.settings.elector_enabled:
            self.heartbeats.tick()
            self.elector.tick()
        self.follower.tick()
        self.leader.tick()
        self.transfers.tick()
        actions = self._leave()
        self._settled = not actions
        return actions

    def next_due_ms(self) -> int:
        """When the next tick is due, in ms; an earlier tick has no effect unless another input comes first.

        After every other input, and after every tick that returned actions, a tick is due at once, because either may have
        changed a timer.
        """
        state = self.state
        if not self._settled:
            return state.now_ms
        timers = state.parts if state.settings.elector_enabled else (self.follower, self.leader, self.transfers)
        return min(part.due_ms() for part in timers)

    def response(self, now_ms: int, call: int, response: Response | None) -> list[Action]:
        """Handle the response to a Send; None if the call failed. A second response to the same call is ignored."""
        self._enter(now_ms)
        answered = self.state.calls.pop(call, None)
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
            self.leader.propose(token, bodies)
        self._proposed()
        return self._leave()

    def offer(self, now_ms: int, token: int, bodies: Sequence[bytes]) -> tuple[AppendResponse, list[Action]]:
        """`propose` without sending pushes, for callers that need the positions at once; the caller must call `push` soon."""
        self._enter(now_ms)
        self._check_lease()
        response = self.leader.propose(token, bodies)
        return response, self._leave()

    def push(self, now_ms: int) -> list[Action]:
        """Push the entries appended by `offer`."""
        self._enter(now_ms)
        self._proposed()
        return self._leave()

    def _check_lease(self) -> None:
        """Check the lease between ticks too: the process may have been paused since the last one."""
        if self.state.role is Role.LEADER and self.state.settings.elector_enabled:
            self.heartbeats.lease_is_good()

    def _proposed(self) -> None:
        if self.state.role is Role.LEADER:
            self.leader.advance()
            self.leader.push_all()

    def synced(self, now_ms: int, epoch: int, end_index: int) -> list[Action]:
        """The fsync requested by SyncLog(epoch, end_index) is done. Ignored after a storage failure (DUR-06)."""
        self._enter(now_ms)
        log = self.state.log
        if self.state.failed is None and epoch == log.epoch and end_index > log.durable:
            log.durable = end_index
            self.follower.synced()
            if self.state.role is Role.LEADER:
                self.leader.advance()
        return self._leave()

    def disk_failed(self, now_ms: int, why: str) -> list[Action]:
        """Term or log cannot be written: do not lead, vote or acknowledge until a restart (DL-X15)."""
        self._enter(now_ms)
        state = self.state
        if state.failed is None:
            state.failed = why
            state.alarm(f"storage failed, this member gives up: {why}")
            self.elector.round = None
            state.become_candidate(state.term)
        return self._leave()

    def disk_full(self, now_ms: int, full: bool) -> list[Action]:
        """Set the disk-full flag; while it is set, appends are refused with 415 DISK_FULL (DL-S10)."""
        self._enter(now_ms)
        self.state.disk_full = full
        if not full:
            self.leader.has_room()
            self._proposed()
        return self._leave()

    def trimmed(self, now_ms: int, begin_index: int) -> list[Action]:
        """Retention deleted old files; the log now begins at begin_index (DL-S12)."""
        self._enter(now_ms)
        self.state.log.trimmed(begin_index)
        return self._leave()

    def request(self, now_ms: int, token: int, request: Request) -> list[Action]:
        """Handle a request of a peer or a client; Reply(token, ...) follows, at once or later."""
        self._enter(now_ms)
        state = self.state
        refusal = None
        if request.remote_id != state.self_id:
            refusal = Code.UNKNOWN_MEMBER
        elif request.group != state.group:
            refusal = Code.UNKNOWN_GROUP
        if refusal is not None:  # sent to the wrong member or group (DL-M07)
            state.reply(token, self._refuse(request, refusal))
        elif isinstance(request, PushRequest):
            self.follower.push(token, request)
            self.transfers.progress()
        elif isinstance(request, VoteRequest):
            state.reply(token, self.elector.vote(request))
        elif isinstance(request, HeartBeatRequest):
            state.reply(token, self.heartbeats.heard(request))
        elif isinstance(request, AppendRequest):
            self._check_lease()
            self.leader.propose(token, [request.body or b""])
            self._proposed()
        elif isinstance(request, TransferRequest):
            self.transfers.request(token, request)
        elif isinstance(request, GetRequest):
            self._check_lease()
            state.reply(token, self._get(request))
        else:
            state.reply(token, self._metadata(request))
        return self._leave()

    def _enter(self, now_ms: int) -> None:
        state = self.state
        state.now_ms = max(state.now_ms, now_ms)
        self._settled = False
        state.log.written()

    def _leave(self) -> list[Action]:
        out = self.state.out
        self.state.out = []
        return out

    # responses that change no state

    def _get(self, request: GetRequest) -> GetResponse:
        """Read one entry; only the leader answers, and only for committed entries (DL-A10, DL-X17)."""
        state, index = self.state, request.begin_index
        code, entries = Code.SUCCESS, ()
        entry = state.log.entry(index)
        if state.role is not Role.LEADER:
            code = Code.NOT_LEADER
        elif index < max(state.log.begin, 0):
            code = Code.INDEX_LESS_THAN_LOCAL_BEGIN
        elif index > state.committed or entry is None:
            code = Code.INDEX_OUT_OF_RANGE
        else:
            return GetResponse(group=state.group, term=state.term, leader_id=state.leader_id, entries=(entry,))
        return GetResponse(group=state.group, term=state.term, leader_id=state.leader_id, code=code, entries=entries)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        """Leader and addresses as this member knows them; every member answers (DL-M09)."""
        return MetadataResponse(group=self.state.group, leader_id=self.state.leader_id, peers=dict(self.addresses))

    def _refuse(self, request: Request, code: Code) -> Response:
        state = self.state
        if isinstance(request, VoteRequest):
            return VoteResponse(group=request.group, term=state.term, code=code, vote_result=VoteResult.UNKNOWN)
        if isinstance(request, PushRequest):
            first = request.entries[0].index if request.entries else None
            return PushResponse(group=state.group, code=code, term=state.term, index=first)
        for kind, answer in _ANSWERS:
            if isinstance(request, kind):
                return answer(group=state.group, code=code, leader_id=state.leader_id, term=state.term)
        return MetadataResponse(group=state.group, code=code)


_ANSWERS: tuple[tuple[type, type[HeartBeatResponse | TransferResponse | AppendResponse | GetResponse]], ...] = (
    (HeartBeatRequest, HeartBeatResponse),
    (TransferRequest, TransferResponse),
    (AppendRequest, AppendResponse),
    (GetRequest, GetResponse),
)
