"""A simulated group of raft members and an observer that checks Raft's promises from outside. Source: spec 07 section SIM."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

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
from saturnmq.raft.core.messages import (
    AppendResponse,
    Code,
    Request,
    Response,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import HardState
from saturnmq.testing.simulation import Events, Journal, Network, NetworkFaults, Trace

GROUP = "g"


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Ledger:
    """A log in memory, as a LedgerReader sees it. start_pos: where the first entry lies."""

    begin: int = 0
    entries: list[Entry] = field(default_factory=list)
    start_pos: int = 0

    @property
    def begin_index(self) -> int:
        return self.begin if self.entries else -1

    @property
    def end_index(self) -> int:
        return self.begin + len(self.entries) - 1 if self.entries else -1

    @property
    def end_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    @property
    def end_pos(self) -> int:
        return self.entries[-1].end_pos if self.entries else self.start_pos

    def entry(self, index: int) -> Entry | None:
        at = index - self.begin
        return self.entries[at] if 0 <= at < len(self.entries) else None

    def copy(self) -> Ledger:
        return Ledger(self.begin, list(self.entries), self.start_pos)

    def apply(self, operation: object) -> None:
        """Appended entries, a cut, or an int: everything before that index is deleted."""
        if isinstance(operation, AppendEntries):
            if not self.entries:
                self.begin = operation.entries[0].index
            self.entries.extend(operation.entries)
        elif isinstance(operation, CutLog):
            if operation.restart:
                self.begin, self.entries, self.start_pos = operation.index, [], operation.end_pos
            else:
                del self.entries[operation.index - self.begin :]
                self.start_pos = operation.end_pos
        elif isinstance(operation, int) and operation > self.begin:
            del self.entries[: operation - self.begin]
            self.begin = operation


@dataclass(slots=True)
class DiskFaults:
    sync_ms: float = 5.0
    stall: float = 0.0  # chance of a sync that takes up to stall_ms
    stall_ms: float = 2000.0
    eio: float = 0.0  # chance that a sync fails


class Member:
    """One simulated process: its disk outlives it, its Node does not."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.log: Journal[Ledger] = Journal(Ledger(), Ledger.apply, Ledger.copy)
        self.hard = HardState()
        self.checkpoint = -1
        self.committed = -1
        self.incarnation = 0
        self.node: Node | None = None
        self.frozen = False
        self.keeps_writes = False  # a crash is the end of the process, not of the power
        self.clock_offset_ms = cluster.rng.randrange(10**6)
        self.clock_rate = 1.0
        self._sync: SyncLog | None = None
        self._sync_running = False
        self._tokens: dict[int, Callable[[Response], None]] = {}
        self._token = 0

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def now_ms(self) -> int:
        return int(self.clock_offset_ms + self.cluster.events.now_ms * self.clock_rate)

    @property
    def role(self) -> Role | None:
        return self.node.state.role if self.node is not None else None

    def start(self) -> None:
        self.incarnation += 1
        self._sync, self._sync_running, self._tokens = None, False, {}
        self.committed = self.checkpoint = min(self.checkpoint, self.log.live.end_index)
        cluster = self.cluster
        self.node = Node(
            group=GROUP,
            self_id=self.name,
            peers={name: f"{name}:1" for name in cluster.names},
            settings=cluster.settings,
            reader=self.log.live,
            hard_state=self.hard,
            committed=self.checkpoint,
            chance=cluster.rng.randrange,
            noop=b"noop",
        )
        cluster.trace.add(f"{cluster.events.now_ms:.3f} {self.name} start {self.incarnation}")
        self._tick(self.incarnation)

    def crash(self) -> None:
        if self.node is None:
            return
        self.node = None
        if self.keeps_writes:
            self.log.sync(self.log.mark())
        lost = self.log.crash(self.cluster.rng)
        self.cluster.seen["crash"] += 1
        if lost:
            self.cluster.seen["lost unsynced"] += 1
        self.cluster.trace.add(f"{self.cluster.events.now_ms:.3f} {self.name} crash, {lost} lost")

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        self.cluster.events.after(self.cluster.tick_ms, partial(self._tick, incarnation))
        if not self.frozen:
            self.do(self.node.tick(self.now_ms))

    # inputs

    def ask(self, request: Request, answer: Callable[[Response], None]) -> None:
        """A request arrives."""
        if self.node is None or self.frozen:
            return
        self._token += 1
        self._tokens[self._token] = answer
        self.do(self.node.request(self.now_ms, self._token, request))

    def answered(self, incarnation: int, call: int, response: Response | None) -> None:
        if self.node is not None and incarnation == self.incarnation:
            if self.frozen:
                self.cluster.events.after(50, lambda: self.answered(incarnation, call, response))
            else:
                self.do(self.node.response(self.now_ms, call, response))

    def propose(self, bodies: list[bytes], answer: Callable[[Response], None]) -> None:
        if self.node is None or self.frozen:
            return
        self._token += 1
        self._tokens[self._token] = answer
        self.do(self.node.propose(self.now_ms, self._token, bodies))

    def trim(self, begin: int) -> None:
        """Delete old entries, as retention does."""
        if self.node is not None and begin > self.log.live.begin:
            self.log.change(begin)
            self.do(self.node.trimmed(self.now_ms, begin))

    # outputs

    def do(self, actions: list[Action]) -> None:
        """Execute in order; a crash may come between any two of them."""
        cluster = self.cluster
        for action in actions:
            if cluster.crash_between and cluster.rng.random() < cluster.crash_between:
                self.crash()
                cluster.events.after(cluster.rng.random() * 3000, partial(cluster.restart, self))
                return
            cluster.trace.add(f"{cluster.events.now_ms:.3f} {self.name} {action!r}")
            self._one(action)
            if self.node is None:
                return

    def _one(self, action: Action) -> None:
        cluster = self.cluster
        if isinstance(action, PersistTerm):
            cluster.observer.term_stored(self, action)
            self.hard = HardState(action.term, action.voted_for)
        elif isinstance(action, AppendEntries):
            self.log.change(action)
        elif isinstance(action, CutLog):
            cluster.observer.cut(self, action)
            self.log.change(action)
        elif isinstance(action, SyncLog):
            self._sync = action
            self._start_sync()
        elif isinstance(action, Send):
            self._send(action)
        elif isinstance(action, Reply):
            answer = self._tokens.pop(action.token, None)
            if isinstance(action.response, VoteResponse):
                cluster.observer.voted(self, action.response)
            if answer is not None:
                answer(action.response)
        elif isinstance(action, Commit):
            cluster.observer.committed(self, action)
            self.committed = action.index
            if cluster.rng.random() < 0.1:
                self.checkpoint = action.index
        elif isinstance(action, RoleChanged):
            cluster.observer.role(self, action)

    def _start_sync(self) -> None:
        if self._sync is None or self._sync_running:
            return
        wanted, self._sync, self._sync_running = self._sync, None, True
        faults, rng = self.cluster.disk, self.cluster.rng
        delay_ms = rng.random() * faults.sync_ms
        if rng.random() < faults.stall:
            delay_ms += rng.random() * faults.stall_ms
        mark, failed = self.log.mark(), rng.random() < faults.eio
        self.cluster.events.after(delay_ms, partial(self._synced, self.incarnation, wanted, mark, failed))

    def _synced(self, incarnation: int, wanted: SyncLog, mark: int, failed: bool) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        self._sync_running = False
        if failed:
            self.cluster.seen["disk failed"] += 1
            self.do(self.node.disk_failed(self.now_ms, "EIO"))
            return
        self.log.sync(mark)
        self.do(self.node.synced(self.now_ms, wanted.epoch, wanted.end_index))
        self._start_sync()

    def _send(self, send: Send) -> None:
        cluster, incarnation = self.cluster, self.incarnation
        peer = cluster.members[send.peer]
        cluster.events.after(send.timeout_ms, partial(self.answered, incarnation, send.call, None))

        def back(response: Response) -> None:
            cluster.network.deliver(peer.name, self.name, lambda: self.answered(incarnation, send.call, response))

        if not cluster.drop(send.request):
            cluster.network.deliver(self.name, send.peer, lambda: peer.ask(send.request, back))


class Observer:
    """Watches all members from outside and raises Violation (SIM-08)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leaders: dict[int, tuple[str, int]] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.truth: dict[int, Entry] = {}  # every entry that any member committed
        self.top = -1  # highest index in truth
        self.acked: dict[int, bytes] = {}

    def term_stored(self, member: Member, action: PersistTerm) -> None:
        """Term and vote never go back, one vote per term."""
        before = member.hard
        self._check(action.term >= before.term, f"{member.name}: term falls from {before.term} to {action.term}")
        same = action.term == before.term and before.voted_for is not None
        self._check(not same or action.voted_for == before.voted_for, f"{member.name}: second vote in {action.term}")

    def voted(self, member: Member, response: VoteResponse) -> None:
        """An ACCEPT leaves only when the vote is stored (DUR-11)."""
        if response.vote_result is not VoteResult.ACCEPT or response.leader_id is None:
            return
        stored = member.hard
        self._check(
            stored.term == response.term and stored.voted_for == response.leader_id,
            f"{member.name} accepts {response.leader_id} in {response.term}, stored is {stored}",
        )
        earlier = self.votes.setdefault((member.name, response.term), response.leader_id)
        self._check(earlier == response.leader_id, f"{member.name} voted twice in term {response.term}")

    def role(self, member: Member, action: RoleChanged) -> None:
        """One leader per term, and it has everything that was ever committed."""
        self.cluster.seen[action.role.value] += 1
        if action.role is not Role.LEADER:
            return
        who = member.name, member.incarnation
        earlier = self.leaders.setdefault(action.term, who)
        self._check(earlier == who, f"term {action.term} is led by {earlier} and {who}")
        log = member.log.live
        for index in range(max(log.begin, 0), self.top + 1):
            self._check(
                log.entry(index) == self.truth.get(index), f"leader {member.name} lacks committed entry {index}"
            )

    def cut(self, member: Member, action: CutLog) -> None:
        self.cluster.seen["restart" if action.restart else "truncate"] += 1
        first = max(action.index, member.log.live.begin)
        last = min(member.committed, member.log.live.end_index)
        self._check(first > last, f"{member.name} cuts at {action.index}, committed up to {member.committed}")

    def committed(self, member: Member, action: Commit) -> None:
        """What is committed is the same everywhere and for ever, and never falls."""
        log = member.log.live
        self._check(action.index > member.committed, f"{member.name}: committed falls to {action.index}")
        self._check(action.index <= log.end_index, f"{member.name} commits {action.index} of {log.end_index}")
        for index in range(max(member.committed + 1, log.begin), action.index + 1):
            entry = log.entry(index)
            assert entry is not None
            known = self.truth.setdefault(index, entry)
            self._check(known == entry, f"{member.name} commits another entry at {index}")
        self.top = max(self.top, action.index)

    def acknowledged(self, index: int, body: bytes) -> None:
        """A client was told that its message is safe: durable on a majority (DUR-12)."""
        self.acked[index] = body
        if self.cluster.settings.sync_before_ack:
            entries = [(m.log.durable.entry(index), m.log.durable.begin) for m in self.cluster.members.values()]
            held = sum(begin > index or (e is not None and e.body == body) for e, begin in entries)
            self._check(held > len(entries) // 2, f"entry {index} was acknowledged, durable on {held} only")

    def match_logs(self) -> None:
        """Equal index and term mean equal logs up to there."""
        logs = [member.log.live for member in self.cluster.members.values()]
        for at, one in enumerate(logs):
            for other in logs[at + 1 :]:
                begin = max(one.begin, other.begin)
                equal = False
                for index in range(min(one.end_index, other.end_index), begin - 1, -1):
                    a, b = one.entry(index), other.entry(index)
                    assert a is not None
                    assert b is not None
                    equal = equal or a.term == b.term
                    self._check(not equal or a == b, f"logs differ at {index} below a common entry")

    def all_acknowledged_are_there(self) -> None:
        for member in self.cluster.members.values():
            log = member.log.live
            for index, body in self.acked.items():
                entry = log.entry(index)
                found = index < log.begin or (entry is not None and entry.body == body)
                self._check(found, f"{member.name} lost the acknowledged entry {index}")

    def _check(self, condition: bool, why: str) -> None:
        if not condition:
            cluster = self.cluster
            raise Violation(f"seed {cluster.seed} at {cluster.events.now_ms:.3f} ms: {why}")


class Cluster:
    """A group, its load and its faults. Everything follows from the seed."""

    def __init__(
        self, seed: int, *, members: int = 3, settings: CoreSettings | None = None, tick_ms: float = 20
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.events = Events()
        self.trace = Trace()
        self.seen: Counter[str] = Counter()
        self.network = Network(self.events, self.rng)
        self.disk = DiskFaults()
        self.tick_ms = tick_ms
        self.crash_between = 0.0
        self.drop: Callable[[Request], bool] = lambda request: False  # requests that never arrive
        self.settings = settings or CoreSettings(file_bytes=2048)
        self.names = [f"n{number}" for number in range(members)]
        self.observer = Observer(self)
        self.members = {name: Member(self, name) for name in self.names}
        self.sent = 0
        self.loading = True

    def start(self) -> None:
        for member in self.members.values():
            self.events.after(self.rng.random() * 100, member.start)

    def restart(self, member: Member) -> None:
        if not member.alive:
            member.start()

    @property
    def leader(self) -> Member | None:
        """The leader of the highest term."""
        leaders = [m for m in self.members.values() if m.node is not None and m.role is Role.LEADER]
        return max(leaders, key=lambda m: m.node.state.term if m.node else -1, default=None)

    # load

    def load(self, every_ms: float) -> None:
        """Proposals, mostly to a leader, sometimes to anyone, one or several at a time."""
        if not self.loading:
            return
        self.events.after(self.rng.random() * 2 * every_ms, lambda: self.load(every_ms))
        target = self.leader if self.rng.random() < 0.9 else self.rng.choice(list(self.members.values()))
        if target is not None:
            self.propose(target, self.rng.choice((1, 1, 1, 3, 10)))

    def propose(self, target: Member, count: int = 1) -> None:
        bodies = []
        for _ in range(count):
            self.sent += 1
            bodies.append(b"m%d " % self.sent + b"x" * self.rng.randrange(200))

        def answer(response: Response) -> None:
            assert isinstance(response, AppendResponse)
            self.seen[f"append {int(response.code)}"] += 1
            if response.code == Code.SUCCESS:
                for offset, body in enumerate(reversed(bodies)):
                    self.observer.acknowledged(response.index - offset, body)

        target.propose(bodies, answer)

    def transfer(self) -> None:
        """Ask the leader to hand over to another."""
        leader = self.leader
        if leader is None or leader.node is None:
            return
        other = self.rng.choice([name for name in self.names if name != leader.name])
        request = TransferRequest(
            group=GROUP,
            remote_id=leader.name,
            transfer_id=leader.name,
            transferee_id=other,
            term=leader.node.state.term,
        )
        leader.ask(request, lambda response: self._transferred(response))

    def _transferred(self, response: Response) -> None:
        self.seen[f"transfer {int(response.code)}"] += 1

    # faults

    def faults(self, every_ms: float) -> None:
        """One fault after the other while there is load."""
        if not self.loading:
            return
        self.events.after(self.rng.random() * 2 * every_ms, lambda: self.faults(every_ms))
        rng = self.rng
        fault = rng.choice(
            ("crash", "crash", "crash leader", "partition", "one way", "isolate leader", "heal", "freeze", "transfer",
             "lossy", "trim", "crash all", "skew", "stall")
        )  # fmt: skip
        self.seen[fault] += 1
        member = rng.choice(list(self.members.values()))
        if fault == "crash leader":
            member = self.leader or member
        if fault in ("crash", "crash leader"):
            self._crash(member)
        elif fault == "crash all":
            for one in self.members.values():
                self._crash(one)
        elif fault == "partition":
            names = list(self.names)
            rng.shuffle(names)
            at = rng.randrange(1, len(names))
            self.network.partition(names[:at], names[at:])
        elif fault == "isolate leader":
            name = (self.leader or member).name
            self.network.partition([name], [other for other in self.names if other != name])
        elif fault == "one way":
            self.network.cut_one_way(*rng.sample(self.names, 2))
        elif fault == "heal":
            self.network.heal()
        elif fault == "freeze":
            member.frozen = True
            self.events.after(rng.random() * 8000, lambda: setattr(member, "frozen", False))
        elif fault == "transfer":
            self.transfer()
        elif fault == "lossy":
            self.network.faults = NetworkFaults(
                loss=rng.choice((0, 0.02, 0.3)), duplicate=rng.choice((0, 0.1)), slow=rng.choice((0, 0.1)), slow_ms=4000
            )
        elif fault == "trim":
            member.trim(min(member.committed, member.log.live.end_index) - rng.randrange(3))
        elif fault == "skew":
            before = member.now_ms
            member.clock_rate = rng.choice((0.9, 1.0, 1.1))
            member.clock_offset_ms += int(before - member.now_ms) + rng.choice((0, 0, 100))
        else:
            self.disk = DiskFaults(stall=rng.choice((0, 0.2)), eio=rng.choice((0, 0, 0.01)))

    def _crash(self, member: Member) -> None:
        member.crash()
        self.events.after(self.rng.random() * 8000, lambda: self.restart(member))

    def calm(self) -> None:
        """No further faults; everyone is up, connected, and on a working disk."""
        self.loading = False
        self.crash_between = 0.0
        self.network.heal()
        self.network.faults = NetworkFaults()
        self.disk = DiskFaults()
        for member in self.members.values():
            member.frozen = False
            member.clock_rate, member.clock_offset_ms = 1.0, member.now_ms - int(self.events.now_ms)
        self._repair()
        self.events.after(self.disk.stall_ms + 500, self._repair)  # a sync that failed was under way

    def _repair(self) -> None:
        """What failed is started again, on a new disk."""
        for member in self.members.values():
            if member.node is not None and member.node.state.failed is not None:
                member.crash()
            self.restart(member)

    # a whole run

    def run(
        self, *, faulty_ms: float, calm_ms: float, load_every_ms: float = 150, fault_every_ms: float = 2500
    ) -> None:
        """Load and faults for a while, then calm; all checks. Raises Violation."""
        self.start()
        self.load(load_every_ms)
        self.faults(fault_every_ms)
        steps = 8
        for step in range(1, steps + 1):
            self.events.run_until(faulty_ms * step / steps)
            self.observer.match_logs()
        self.calm()
        self.events.run_until(faulty_ms + calm_ms)
        self.check_calm()

    def check_calm(self) -> None:
        """Liveness and equality after the faults (SIM-09, SIM-10)."""
        observer, start_ms = self.observer, self.events.now_ms
        leader = self.leader
        check = observer._check
        check(leader is not None, "no leader though all is well")
        assert leader is not None
        acked = len(observer.acked)
        self.propose(leader)
        self.events.run_until(start_ms + 3000)
        check(len(observer.acked) == acked + 1, "a proposal is not acknowledged though all is well")
        observer.match_logs()
        observer.all_acknowledged_are_there()
        ends = {(m.log.live.end_index, m.committed, m.role) for m in self.members.values()}
        check(len({end for end, _, _ in ends}) == 1, f"logs end differently: {ends}")
        check(len({committed for _, committed, _ in ends}) == 1, f"committed differs: {ends}")
        leaders = [m.name for m in self.members.values() if m.role is Role.LEADER]
        check(len(leaders) == 1, f"leaders: {leaders}")
        for member in self.members.values():
            assert member.node is not None
            check(not member.node.leader.proposals, f"{member.name}: a caller was forgotten")


def vote_request(candidate: str, to: str, **fields: int) -> VoteRequest:
    """A vote request as a peer would send it."""
    request = VoteRequest(group=GROUP, leader_id=candidate, local_id=candidate, remote_id=to)
    return dataclasses.replace(request, **fields)  # type: ignore[arg-type]
