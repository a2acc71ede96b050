"""One member of the search: a Node that is loaded from a form, given an event, and saved again.

Times in a form are relative to a fixed moment and rounded, because the settings below have only two kinds of timeouts:
those of retries, which are short, and those that give up, which are long. A tick "soon" passes the former, a tick
"late" passes both.

Requirements: SIM-12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, NamedTuple

from harness.raftsim.observer import Ledger, Violation
from saturnmq.raft.core.actions import (
    Action,
    AppendEntries,
    Commit,
    CutLog,
    PersistTerm,
    Reply,
    Role,
    RoleChanged,
    Send,
    SyncLog,
)
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.follower import Unsynced, WaitingAppend
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex
from saturnmq.raft.core.leader import Proposal
from saturnmq.raft.core.liveness import HeartbeatRound
from saturnmq.raft.core.messages import (
    AppendResponse,
    Code,
    HeartBeatRequest,
    PushRequest,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.progress import PeerProgress, Pushed, Search
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import HardState
from saturnmq.raft.core.voting import Tally

NOW: Final = 10**9
SOON: Final = 20  # longer than any retry interval
LATE: Final = 10**7  # longer than any timeout
PATIENCE: Final = 10**6
NEVER: Final = -(10**9)
BODY: Final = b"x"
GROUP: Final = "g"
SETTINGS: Final = CoreSettings(
    heartbeat_interval_ms=10,
    heartbeat_leak_max=PATIENCE // 10,
    lease_ms=PATIENCE // 2,
    vote_interval_min_ms=PATIENCE,
    vote_interval_max_ms=PATIENCE + 1,
    vote_wait_ms=PATIENCE,
    rpc_timeout_ms=PATIENCE,
    append_wait_ms=10**9,
    push_timeout_ms=10,
    push_error_pause_ms=10,
    commit_idle_ms=10,
)
_PROGRESS_FIELDS: Final = tuple(one.name for one in fields(PeerProgress) if one.name not in ("search", "pending"))
_KNOWN: Final = tuple(
    frozenset(names.split())
    for names in (
        "self_id group settings chance log term voted_for committed now_ms role leader_id transferee "
        "known_max_term out parts calls next_call configurations members_changed departing stored "
        "peers voters other_members other_voters votes",
        "_reader _file_bytes begin end end_term end_pos next_index epoch durable _cache _cache_bytes _unwritten_from",
        "state next_vote_ms raise_now last_result round spent_term",
        "state elector timers sent_ms patient_until_ms round live supports_changes lease_until_ms stepped_down_ms",
        "state verified _reported_end _appends _unsynced",
        "state stamp noop peers proposals _departs_ms",
        "state elector heartbeats leader outgoing incoming _checked_ms",
    )
)


class Lane(NamedTuple):
    """A slot in flight from one member to another and back: one call at a time. first: index of the entry, or -1."""

    sender: int
    receiver: int
    kind: str
    first: int
    term: int


class Version(NamedTuple):
    """A log as it is on a disk; see Ledger."""

    start_pos: int
    entries: tuple[Entry, ...]

    def ledger(self) -> Ledger:
        begin = self.entries[0].index if self.entries else LedgerIndex(0)
        return Ledger(begin, list(self.entries), self.start_pos)


def version_of(ledger: Ledger) -> Version:
    return Version(0 if ledger.entries else ledger.start_pos, tuple(ledger.entries))


@dataclass(frozen=True, slots=True)
class Form:
    """A member and its disk. versions: what a crash may leave, the last one is current; syncing: epoch, end, version."""

    versions: tuple[Version, ...]
    syncing: tuple[int, LedgerIndex, int] | None
    sync_wanted: tuple[int, LedgerIndex] | None
    hard: HardState
    core: tuple[Any, ...]

    @property
    def log(self) -> tuple[Entry, ...]:
        return self.versions[-1].entries

    @property
    def durable(self) -> tuple[Entry, ...]:
        return self.versions[0].entries

    def crashes(self) -> Iterator[tuple[Any, ...]]:
        """What a power loss can leave: any of the versions, with a checkpoint that is empty or current."""
        if not self.core:
            return
        committed = min(self.core[0][4], self.core[1][0])
        for version in dict.fromkeys(self.versions):
            for checkpoint in sorted({-1, committed}):
                yield ("crash", version, checkpoint)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a step. restarted: the member restarted. promises: facts that are checked against the other members."""

    member: int
    form: Form
    sent: tuple[tuple[Lane, Any], ...]
    promises: tuple[tuple[Any, ...], ...]
    restarted: bool = False


def first_form() -> Form:
    """A member that never ran."""
    return Form((Version(0, ()),), None, None, HardState(), ())


def waits(at_ms: int) -> int:
    """Round a deadline: passed, soon, or late."""
    if at_ms <= NOW:
        return -1
    return NOW + (10 if at_ms <= NOW + SOON else PATIENCE)


def lasts(at_ms: int) -> int:
    """Round the end of a lease: passed, or a whole lease."""
    return NOW + PATIENCE // 2 if at_ms > NOW else -1


def since(at_ms: int) -> int:
    """Round the time of something that is retried soon: now, or long enough ago."""
    return NOW if at_ms >= NOW else NOW - SOON


def lately(at_ms: int) -> int:
    """Round the time of something with a long timeout: now, or long ago."""
    return NOW if NOW - at_ms < PATIENCE else NEVER


class Machine:
    """Runs the members' code under one name. Its Node is loaded with one form after the other."""

    def __init__(self, number: int, members: int, terms: int, entries: int) -> None:
        self.number = number
        self.name = f"n{number}"
        self._peers = {f"n{at}": f"n{at}:1" for at in range(members)}
        self._terms, self._entries = terms, entries
        self._tokens: dict[Lane, int] = {}
        self._lanes: list[Lane | None] = [None]
        self._node: Node = self._new(Ledger(), HardState(), NO_INDEX)

    def _new(self, ledger: Ledger, hard: HardState, committed: LedgerIndex) -> Node:
        return Node(
            group=GROUP,
            self_id=self.name,
            peers=self._peers,
            settings=SETTINGS,
            reader=ledger,
            hard_state=hard,
            committed=committed,
            chance=lambda below: 0,
        )

    def step(self, form: Form, event: tuple[Any, ...]) -> Outcome | None:
        """The outcome of an event on a form; None: the event cannot happen, or leads out of the scope. Raises Violation."""
        ledger = form.versions[-1].ledger()
        run = _Run(self, form, ledger)
        if event[0] == "crash" or not form.core:
            version, checkpoint = (event[1], event[2]) if event[0] == "crash" else (form.versions[-1], NO_INDEX)
            run.ledger = version.ledger()
            run.versions, run.syncing, run.sync_wanted, run.calls = [version], None, None, {}
            run.node = self._node = self._new(run.ledger, form.hard, checkpoint)
            run.committed = run.node._state.committed
            run.do(self._node._leave())
        else:
            run.load(form.core)
        if event[0] != "crash" and not self._happens(run, event):
            return None
        state = run.node._state
        if state.term >= self._terms or state.log.end >= self._entries:
            return None
        core = run.save()
        saved = Form(tuple(run.versions), run.syncing, run.sync_wanted, run.hard, core)
        return Outcome(self.number, saved, tuple(run.sent), tuple(run.promises), event[0] == "crash")

    def _happens(self, run: _Run, event: tuple[Any, ...]) -> bool:
        node, kind = run.node, event[0]
        if kind == "tick":
            run.passed(SOON if event[1] == "soon" else LATE)
        elif kind == "propose":
            if not node._state.is_leader or node._state.log.end + 1 >= self._entries:
                return False
            run.do(node.propose(NOW, 0, [BODY]))
        elif kind == "ask":
            run.do(node.request(NOW, self.token(event[1]), event[2]))
        elif kind == "answer":
            call = run.calls.pop(event[1], None)
            if call is not None:
                run.do(node.response(NOW, call, event[2]))
        else:
            run.synced()
        return True

    def token(self, lane: Lane) -> int:
        number = self._tokens.setdefault(lane, len(self._lanes))
        if number == len(self._lanes):
            self._lanes.append(lane)
        return number

    def lane(self, token: int) -> Lane | None:
        return self._lanes[token]

    def lane_of(self, send: Send) -> Lane:
        """Calls of one kind about one entry share a lane."""
        request: Request = send.request
        first, kind = -1, type(request).__name__
        if isinstance(request, PushRequest):
            assert request.kind is not None
            kind = request.kind.name
            if request.entries:
                first = request.entries[0].index
        else:
            assert isinstance(request, VoteRequest | HeartBeatRequest)
        return Lane(self.number, int(send.peer[1:]), kind, first, request.term)


@dataclass(slots=True)
class _Run:
    """One step while it runs."""

    machine: Machine
    form: Form
    ledger: Ledger
    versions: list[Version] = field(default_factory=list)
    syncing: tuple[int, LedgerIndex, int] | None = None
    sync_wanted: tuple[int, LedgerIndex] | None = None
    hard: HardState = HardState()
    committed: LedgerIndex = NO_INDEX  # according to the actions executed so far
    calls: dict[Lane, int] = field(default_factory=dict)
    sent: list[tuple[Lane, Any]] = field(default_factory=list)
    promises: list[tuple[Any, ...]] = field(default_factory=list)
    node: Node = field(init=False)

    def __post_init__(self) -> None:
        form = self.form
        self.versions, self.syncing, self.sync_wanted = list(form.versions), form.syncing, form.sync_wanted
        self.hard, self.node = form.hard, self.machine._node

    def _must(self, condition: bool, why: str) -> None:
        if not condition:
            raise Violation(f"{self.machine.name}: {why}")

    # events

    def passed(self, ms: int) -> None:
        """Time passes: everything in the form happened that much earlier."""
        self.do(self.node.tick(NOW + ms))
        _shift(self.node, ms)

    def synced(self) -> None:
        assert self.syncing is not None
        epoch, end, mark = self.syncing
        del self.versions[:mark]
        self.syncing = None
        self.do(self.node.synced(NOW, epoch, end))
        self._start_sync()

    def _start_sync(self) -> None:
        if self.syncing is None and self.sync_wanted is not None:
            self.syncing, self.sync_wanted = (*self.sync_wanted, len(self.versions) - 1), None

    # actions

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            self._one(action)
        self.node._state.log._cache.clear()  # everything is in the ledger
        self.node._state.log._cache_bytes = 0

    def _one(self, action: Action) -> None:
        if isinstance(action, PersistTerm):
            before = self.hard
            self._must(action.term >= before.term, f"term falls from {before.term} to {action.term}")
            same = action.term == before.term and before.voted_for is not None
            self._must(not same or action.voted_for == before.voted_for, f"second vote in term {action.term}")
            self.hard = HardState(action.term, action.voted_for)
        elif isinstance(action, AppendEntries | CutLog):
            if isinstance(action, CutLog):
                self._cut(action)
            self.ledger.apply(action)
            self.versions.append(version_of(self.ledger))
        elif isinstance(action, SyncLog):
            self.sync_wanted = action.epoch, action.end_index
            self._start_sync()
        elif isinstance(action, Send):
            lane = self.machine.lane_of(action)
            self.calls[lane] = action.call
            self.sent.append((lane, ("ask", action.request)))
        elif isinstance(action, Reply):
            self._reply(action.token, action.response)
        elif isinstance(action, Commit):
            self.committed = action.index
            self.promises.append(("commits", tuple(self.ledger.entries[: action.index + 1 - self.ledger.begin])))
        elif isinstance(action, RoleChanged) and action.role is Role.LEADER:
            self.promises.append(("leads", action.term, tuple(self.ledger.entries)))

    def _cut(self, action: CutLog) -> None:
        last = min(self.committed, self.ledger.end_index)
        first = max(action.index, self.ledger.begin)
        self._must(first > last, f"cuts at {action.index}, committed up to {last}")
        self.promises.append(("cut",))

    def _reply(self, token: int, response: Response) -> None:
        if isinstance(response, VoteResponse) and response.vote_result is VoteResult.ACCEPT:
            stored = HardState(response.term, response.leader_id)
            self._must(self.hard == stored, f"accepts {response.leader_id} in {response.term}, stored is {self.hard}")
        lane = self.machine.lane(token)
        if lane is not None:
            self.sent.append((lane, ("answer", response)))
        elif isinstance(response, AppendResponse) and response.code == Code.SUCCESS:
            entry = self.ledger.entry(response.index)
            self.promises.append(("acknowledges", response.index, entry))

    # the core's state, loaded from a form and saved into one

    def load(self, core: tuple[Any, ...]) -> None:
        """Load the Node with a form that `save` returned."""
        node, state = self.node, self.node._state
        (state.term, state.voted_for, state.role, state.leader_id, state.committed, state.known_max_term) = core[0]
        self.committed = state.committed
        state.now_ms, state.out, state.transferee = NOW, [], None
        log, ledger = state.log, self.ledger
        log._reader = ledger
        log.begin, log.end, log.end_term = ledger.begin_index, ledger.end_index, ledger.end_term
        log.durable, log.epoch, log.next_index, log.end_pos = core[1]
        log._unwritten_from = log.next_index
        elector = node._elector
        elector.next_vote_ms, elector.raise_now, elector.last_result, elector.spent_term, tally = core[2]
        elector.round = None
        if tally is not None:
            term, deadline_ms, known, answers = tally
            elector.round = Tally(term, len(state.peers), deadline_ms)
            elector.round.known_max_term, elector.round.answers = known, dict(answers)
        beats = node._heartbeats
        beats.sent_ms, beats.patient_until_ms, beats.stepped_down_ms, beats.round, lease = core[3]
        beats.lease_until_ms, beats.live, beats.supports_changes = dict(lease), {}, {}
        if core[3][3] is not None:
            beats.round = HeartbeatRound(*core[3][3])
        follower = node._follower
        follower.verified, follower._reported_end, appends, unsynced = core[4]
        follower._appends = {first: WaitingAppend(*waiting) for first, *waiting in appends}
        follower._unsynced = deque(Unsynced(*held) for held in unsynced)
        peers, proposals = core[5]
        node._leader.peers = {}
        for known, asked, pending in peers:
            progress = PeerProgress(**dict(known))
            progress.search = Search(*asked) if asked is not None else None
            progress.pending = {first: Pushed(last, sent_ms) for first, last, sent_ms in pending}
            node._leader.peers[progress.peer] = progress
        node._leader.proposals = deque(Proposal(at, 0, NOW + 10**9, answer) for at, answer in proposals)
        node._transfers.outgoing = node._transfers.incoming = node._transfers._checked_ms = None
        state.calls, self.calls = {}, {}
        for call, (lane, whose) in enumerate(core[6], 1):
            state.calls[call] = self._callback(*whose)
            self.calls[lane] = call
        state.next_call = len(core[6])
        for part, further in zip(self._parts(), core[7], strict=True):
            for name, value in further:
                setattr(part, name, value)

    def _parts(self) -> tuple[object, ...]:
        node = self.node
        return (
            node._state,
            node._state.log,
            node._elector,
            node._heartbeats,
            node._follower,
            node._leader,
            node._transfers,
        )

    def _callback(self, name: str, *about: Any) -> Any:
        node: Any = self.node
        if name == "vote":
            return partial(node._elector._answered, node._elector.round, about[0])
        if name == "beat":
            return partial(node._heartbeats._answered, node._heartbeats.round, about[0])
        return partial(getattr(node._leader, name), node._leader.peers[about[0]], *about[1:])

    def save(self) -> tuple[Any, ...]:
        """The Node's form: everything that determines its future behaviour."""
        node, state, log = self.node, self.node._state, self.node._state.log
        elector, beats, follower, leader = node._elector, node._heartbeats, node._follower, node._leader
        epoch = log.epoch  # it only matters whether a sync, or a COMPARE, is of this epoch
        log_form = (log.durable, 1, log.next_index, log.end_pos)
        if self.syncing is not None:
            self.syncing = (int(self.syncing[0] == epoch), *self.syncing[1:])
        if self.sync_wanted is not None:
            self.sync_wanted = (int(self.sync_wanted[0] == epoch), self.sync_wanted[1])
        reported = follower._reported_end
        tally, beat = elector.round, beats.round
        return (
            (state.term, state.voted_for, state.role, state.leader_id, state.committed, state.known_max_term),
            log_form,
            (
                waits(elector.next_vote_ms),
                elector.raise_now,
                elector.last_result,
                elector.spent_term,
                (tally.term, waits(tally.deadline_ms), tally.known_max_term, tuple(tally.answers.items()))
                if tally is not None
                else None,
            ),
            (
                since(beats.sent_ms) if beats.sent_ms >= 0 else -1,
                waits(beats.patient_until_ms),
                lately(beats.stepped_down_ms),
                (
                    beat.term,
                    since(beat.sent_ms),
                    beat.lease_ms,
                    beat.answered,
                    beat.success,
                    beat.not_ready,
                    beat.inconsistent,
                )
                if beat is not None
                else None,
                tuple((peer, lasts(at_ms)) for peer, at_ms in sorted(beats.lease_until_ms.items()))
                if state.is_leader
                else (),
            ),
            (
                follower.verified,
                (1, reported[1]) if reported is not None and reported[0] == epoch else None,
                tuple((first, w.token, w.request, since(w.since_ms)) for first, w in follower._appends.items()),
                tuple((held.index, held.token, held.response) for held in follower._unsynced),
            ),
            (tuple(map(_progress_form, leader.peers.values())), tuple((p.index, p.response) for p in leader.proposals)),
            self._calls_form(),
            tuple(_further(part, known) for part, known in zip(self._parts(), _KNOWN, strict=True)),
        )

    def _calls_form(self) -> tuple[Any, ...]:
        """Calls whose responses can still have an effect."""
        node, kept = self.node, []
        for lane, call in self.calls.items():
            callback = node._state.calls.get(call)
            if callback is None:
                continue
            assert isinstance(callback, partial)
            name, args, owner = callback.func.__name__, callback.args, getattr(callback.func, "__self__", None)
            if owner is node._elector:
                if args[0] is node._elector.round:
                    kept.append((lane, ("vote", args[1])))
            elif owner is node._heartbeats:
                if args[0] is node._heartbeats.round:
                    kept.append((lane, ("beat", args[1])))
            elif node._leader._is_current(args[0], args[1]):
                kept.append((lane, (name, args[0].peer, *args[1:])))
        return tuple(sorted(kept, key=lambda pair: pair[0]))


def _progress_form(progress: PeerProgress) -> tuple[Any, ...]:
    search = progress.search
    return (
        tuple((name, _rounded(name, getattr(progress, name))) for name in _PROGRESS_FIELDS),
        (search.low, search.high, search.at) if search is not None else None,
        tuple((first, pushed.last, since(pushed.sent_ms)) for first, pushed in progress.pending.items()),
    )


def _rounded(name: str, value: Any) -> Any:
    return waits(value) if name == "pause_until_ms" else since(value) if name.endswith("_ms") else value


def _further(part: object, known: frozenset[str]) -> tuple[tuple[str, Any], ...]:
    """Attributes of a part that this module does not name, taken unchanged."""
    names = vars(part) if hasattr(part, "__dict__") else [one.name for one in fields(part)]  # type: ignore[arg-type]
    return tuple((name, getattr(part, name)) for name in names if name not in known)


def _shift(node: Node, ms: int) -> None:
    """After time has passed, shift everything by ms into the past."""
    state, elector, beats = node._state, node._elector, node._heartbeats
    state.now_ms = NOW
    if elector.next_vote_ms >= 0:
        elector.next_vote_ms -= ms
    if elector.round is not None:
        elector.round.deadline_ms -= ms
    if beats.sent_ms >= 0:
        beats.sent_ms -= ms
    beats.patient_until_ms -= ms
    beats.stepped_down_ms -= ms
    beats.lease_until_ms = {peer: at_ms - ms for peer, at_ms in beats.lease_until_ms.items()}
    if beats.round is not None:
        beats.round.sent_ms -= ms
    for waiting in node._follower._appends.values():
        waiting.since_ms -= ms
    for progress in node._leader.peers.values():
        progress.pause_until_ms -= ms
        progress.refused_ms -= ms
        progress.last_push_ms -= ms
        for pushed in progress.pending.values():
            pushed.sent_ms -= ms
