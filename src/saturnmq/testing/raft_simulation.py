"""A simulated group of raft members and an observer that checks Raft's promises from outside. Source: spec 07 section SIM."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
from saturnmq.raft.core.messages import (
    AppendResponse,
    Code,
    Request,
    Response,
    TransferRequest,
    VoteRequest,
    VoteResponse,
)
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import HardState
from saturnmq.testing.history import History
from saturnmq.testing.history_raft import record_answer, record_send
from saturnmq.testing.raft_observer import Ledger, Observer, Violation
from saturnmq.testing.simulation import Events, Journal, Network, NetworkFaults, Trace

__all__ = ["Cluster", "Ledger", "Member", "Observer", "Violation"]

GROUP = "g"


ALL_FAULTS = (
    "crash", "crash", "crash leader", "partition", "one way", "isolate leader", "heal", "freeze", "transfer",
    "transfer, isolate", "lossy", "trim", "crash all", "skew", "stall",
)  # fmt: skip


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
        self.rots = False  # its disk loses synced entries at crashes; one member of a group at most
        self.must_hold = -1
        self.lacking = False
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
            noop=cluster.noop,
            must_hold=self.must_hold,
        )
        cluster.trace.add(f"{cluster.events.now_ms:.3f} {self.name} start {self.incarnation}")
        self._tick(self.incarnation)

    def crash(self) -> None:
        if self.node is None:
            return
        self.lacking = self.node.state.lacking
        self.node = None
        if self.keeps_writes:
            self.log.sync(self.log.mark())
        lost = self.log.crash(self.cluster.rng)
        self.cluster.seen["crash"] += 1
        self.must_hold = max(self.must_hold, self.log.live.end_index) if self.lacking else self.log.live.end_index
        if self.rots and self.log.live.entries and self.cluster.rng.random() < 0.7:
            ledger = self.log.live
            first_gone = self.cluster.rng.randrange(ledger.begin, ledger.end_index + 1)
            before = ledger.entry(first_gone - 1)
            self.log.damage(CutLog(first_gone, before.end_pos if before is not None else ledger.entries[0].pos))
            self.cluster.seen["rot"] += 1
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
            if cluster.rng.random() < cluster.crash_after_cut:
                cluster.events.after(cluster.rng.random() * 200, partial(cluster.crash_soon_back, self))
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
                self.checkpoint = self._committed_on_disk(action.index)
        elif isinstance(action, RoleChanged):
            cluster.observer.role(self, action)

    def _committed_on_disk(self, committed: int) -> int:
        """What the checkpoint may say: a committed entry that a crash could still replace is not among it."""
        assert self.node is not None
        return min(committed, self.node.state.log.durable)

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
        self.crash_after_cut = 0.0  # chance of a crash while a cut may not be on disk yet
        self.drop: Callable[[Request], bool] = lambda request: False  # requests that never arrive
        self.settings = settings or CoreSettings(file_bytes=2048)
        self.names = [f"n{number}" for number in range(members)]
        self.observer = Observer(self)
        self.members = {name: Member(self, name) for name in self.names}
        self.lossy = tuple(
            NetworkFaults(loss=loss, duplicate=duplicate, slow=slow, slow_ms=4000)
            for loss in (0, 0.02, 0.3)
            for duplicate in (0, 0.1)
            for slow in (0, 0.1)
        )
        self.mix: tuple[str, ...] = ALL_FAULTS
        self.noop: bytes | None = b"noop"
        self.sent = 0
        self.loading = True
        self.schedule: list[str] = []  # every fault: when, which, whom
        self.left_out: frozenset[int] = frozenset()  # numbers of faults that do not happen
        self.history = History()

    def harsh(self, *mix: str) -> None:
        """Only these faults, short timers, slow disks, and a network that delays by whole elections and repeats."""
        self.settings = dataclasses.replace(
            self.settings,
            heartbeat_interval_ms=400,
            vote_interval_min_ms=60,
            vote_interval_max_ms=300,
            rpc_timeout_ms=700,
            push_timeout_ms=150,
            push_error_pause_ms=50,
            commit_idle_ms=100,
        )
        self.mix = mix
        self.noop = None
        self.crash_after_cut = 0.5
        self.disk = DiskFaults(sync_ms=200)
        self.network.faults = NetworkFaults(loss=0.03, duplicate=0.2, slow=0.05, slow_ms=4000)

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
        record_send(self.history, target.name, self.events.now_ms, bodies)

        def answer(response: Response) -> None:
            assert isinstance(response, AppendResponse)
            self.seen[f"append {int(response.code)}"] += 1
            record_answer(self.history, self.events.now_ms, bodies, response)
            if response.code == Code.SUCCESS:
                for offset, body in enumerate(reversed(bodies)):
                    self.observer.acknowledged(response.index - offset, body)

        target.propose(bodies, answer)

    def transfer(self) -> str | None:
        """Ask the leader to hand over to another; returns whom."""
        leader = self.leader
        if leader is None or leader.node is None:
            return None
        other = self.rng.choice([name for name in self.names if name != leader.name])
        request = TransferRequest(
            group=GROUP,
            remote_id=leader.name,
            transfer_id=leader.name,
            transferee_id=other,
            term=leader.node.state.term,
        )
        leader.ask(request, lambda response: self._transferred(response))
        return other

    def _transferred(self, response: Response) -> None:
        self.seen[f"transfer {int(response.code)}"] += 1

    # faults

    def faults(self, every_ms: float) -> None:
        """One fault after the other while there is load."""
        if not self.loading:
            return
        self.events.after(self.rng.random() * 2 * every_ms, lambda: self.faults(every_ms))
        rng = self.rng
        fault = rng.choice(self.mix)
        self.seen[fault] += 1
        member = rng.choice(list(self.members.values()))
        if fault == "crash leader":
            member = self.leader or member
        self.schedule.append(f"{self.events.now_ms:.0f} ms {fault} {member.name}")
        if len(self.schedule) - 1 in self.left_out:
            return
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
            self._isolate((self.leader or member).name)
        elif fault == "one way":
            self.network.cut_one_way(*rng.sample(self.names, 2))
        elif fault == "heal":
            self.network.heal()
        elif fault == "freeze":
            member.frozen = True
            self.events.after(rng.random() * 8000, lambda: setattr(member, "frozen", False))
        elif fault == "transfer":
            self.transfer()
        elif fault == "transfer, isolate":
            other = self.transfer()
            self.events.after(rng.random() * 60, lambda: self._isolate(other or member.name))
        elif fault == "lossy":
            self.network.faults = rng.choice(self.lossy)
        elif fault == "trim":
            member.trim(min(member.committed, member.log.live.end_index) - rng.randrange(3))
        elif fault == "skew":
            before = member.now_ms
            member.clock_rate = rng.choice((0.9, 1.0, 1.1))
            member.clock_offset_ms += int(before - member.now_ms) + rng.choice((0, 0, 100))
        else:
            self.disk = DiskFaults(stall=rng.choice((0, 0.2)), eio=rng.choice((0, 0, 0.01)))

    def _isolate(self, name: str) -> None:
        if self.loading:
            self.network.partition([name], [other for other in self.names if other != name])

    def _crash(self, member: Member) -> None:
        member.crash()
        self.events.after(self.rng.random() * 8000, lambda: self.restart(member))

    def crash_soon_back(self, member: Member) -> None:
        """A crash so short that the leader may not notice."""
        if self.loading:
            member.crash()
            self.events.after(self.rng.random() * 300, lambda: self.restart(member))

    def calm(self) -> None:
        """No further faults; everyone is up, connected, and on a working disk."""
        self.loading = False
        self.crash_between = self.crash_after_cut = 0.0
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
        check = observer.check
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
