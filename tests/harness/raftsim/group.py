"""A simulated group of Raft members with its load and its faults; an observer checks the invariants of Raft from outside.

Requirements: SIM-03..SIM-10.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from harness.history.operations import History
from harness.history.raft import record_answer, record_send
from harness.raftsim.disk import DiskFaults, Flip
from harness.raftsim.members import SIMPLE, SimpleCodec
from harness.raftsim.observer import Ledger, Observer, Violation
from harness.raftsim.process import GROUP, Member
from harness.raftsim.simulation import Events, Network, NetworkFaults, Trace
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.messages import (
    AppendResponse,
    ChangeKind,
    ChangeRequest,
    Code,
    Request,
    Response,
    TransferRequest,
)
from saturnmq.raft.core.settings import CoreSettings

__all__ = ["Cluster", "Ledger", "Member", "Observer", "Violation"]

FULL_DISK_MS_MAX: Final = 15_000
FLIPS: Final = (Flip.BODY, Flip.BODY, Flip.UNIT_GONE, Flip.UNIT_WRONG)

ALL_FAULTS = (
    "crash", "crash", "crash leader", "partition", "one way", "isolate leader", "heal", "freeze", "transfer",
    "transfer, isolate", "lossy", "trim", "crash all", "skew", "slow disk", "full disk", "damage",
)  # fmt: skip

CHANGES: Final = {
    "add learner": ChangeKind.ADD_LEARNER,
    "promote": ChangeKind.PROMOTE,
    "remove": ChangeKind.REMOVE,
}
UNKNOWN_OUTCOMES: Final = (Code.TERM_CHANGED, Code.WAIT_QUORUM_ACK_TIMEOUT)
MEMBER_FAULTS: Final = (
    "crash", "crash leader", "partition", "one way", "isolate leader", "heal", "heal", "heal", "heal", "freeze", "transfer",
    "trim", "slow disk",
)  # fmt: skip


class Cluster:
    """A group, its load and its faults. The seed determines everything."""

    def __init__(
        self, seed: int, *, members: int = 3, settings: CoreSettings | None = None, tick_ms: float = 20
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.events = Events()
        self.trace = Trace()
        self.seen: Counter[str] = Counter()
        self.damage_read_ms = -math.inf  # when a member last read damage
        self.network = Network(self.events, self.rng)
        self.disk = DiskFaults()
        self.disk_rng = random.Random(~seed)
        self.tick_ms = tick_ms
        self.tick_always = False  # also if no tick is due
        self.crash_between = 0.0
        self.crash_after_cut = 0.0  # probability of a crash while a truncation may not be durable yet
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
        self.schedule: list[str] = []  # every fault: time, kind, member
        self.left_out: frozenset[int] = frozenset()  # numbers of faults that are skipped
        self.history = History()
        self.codec: SimpleCodec | None = None  # None: the members never change
        self.spares: list[str] = []  # ids of members that were never started

    def harsh(self, *mix: str) -> None:
        """Use only these faults, with short timers, slow disks, and a network that duplicates and delays by whole elections."""
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
        if not member.alive and not member.retired:
            member.start()

    @property
    def leader(self) -> Member | None:
        """The leader with the highest term."""
        leaders = [m for m in self.members.values() if m.node is not None and m.role is Role.LEADER]
        return max(leaders, key=lambda m: m.node.term if m.node else -1, default=None)

    # members

    def change_members(self, spares: int) -> None:
        """Let the members change in this run: up to `spares` new ones, each with an id of its own."""
        self.codec = SIMPLE
        self.settings = dataclasses.replace(self.settings, announces_interval=True, learner_lag_max=20)
        self.spares = [f"n{number}" for number in range(len(self.names), len(self.names) + spares)]
        self.mix = (*MEMBER_FAULTS, *("add learner", "promote", "promote", "remove") * 4)

    def change(self, kind: str) -> None:
        """Ask the leader for a change; a new member is started first, a removed one is switched off a while later."""
        leader = self.leader
        if leader is None or leader.node is None:
            return
        if kind == "add learner":
            if not self.spares:
                return
            name = self.spares.pop(0)
            member = self.members[name] = Member(self, name)
            member.learner, member.named = True, [*leader.node.configuration.addresses, name]
            member.start()
        else:
            known = leader.node.configuration
            names = sorted(known.learners) if kind == "promote" else list(known.addresses)
            if not names or (kind == "remove" and len(known.addresses) < 4 and self.rng.random() < 0.8):
                return
            name = self.rng.choice(names)
        request = ChangeRequest(
            group=GROUP, remote_id=leader.name, kind=CHANGES[kind], member_id=name, address=f"{name}:1"
        )

        def answered(response: Response) -> None:
            self.seen[f"{kind} {int(response.code)}"] += 1
            if kind == "add learner" and response.code not in (Code.SUCCESS, *UNKNOWN_OUTCOMES):
                self.spares.insert(0, name)
                self.members.pop(name).crash()

        leader.ask(request, answered)

    def current(self) -> list[Member]:
        """The members of the configuration in use, as the leader's log has it; of a group that never changes, all."""
        leader = self.leader
        if self.codec is None or leader is None:
            return list(self.members.values())
        return [self.members[name] for name in self.observer.configuration(leader).addresses]

    # load

    def load(self, every_ms: float) -> None:
        """Propose batches of different sizes, mostly to the leader, sometimes to any member."""
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
                    self.observer.acknowledged(response.index - offset, body, target)

        target.propose(bodies, answer)

    def transfer(self) -> str | None:
        """Request a leadership transfer to a random member; returns its name."""
        leader = self.leader
        if leader is None or leader.node is None:
            return None
        other = self.rng.choice([name for name in self.members if name != leader.name])
        request = TransferRequest(
            group=GROUP,
            remote_id=leader.name,
            transfer_id=leader.name,
            transferee_id=other,
            term=leader.node.term,
        )
        leader.ask(request, lambda response: self._transferred(response))
        return other

    def _transferred(self, response: Response) -> None:
        self.seen[f"transfer {int(response.code)}"] += 1

    # faults

    def faults(self, every_ms: float) -> None:
        """Inject faults one after the other while there is load."""
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
            names = list(self.members)
            rng.shuffle(names)
            at = rng.randrange(1, len(names))
            self.network.partition(names[:at], names[at:])
        elif fault == "isolate leader":
            self._isolate((self.leader or member).name)
        elif fault == "one way":
            self.network.cut_one_way(*rng.sample(list(self.members), 2))
        elif fault == "bridge":
            self.network.bridge(rng.sample(self.names, len(self.names)))
        elif fault == "ring":
            self.network.ring(rng.sample(self.names, len(self.names)))
        elif fault == "flap":
            a, b = rng.sample(self.names, 2)
            self._flap({(a, b), (b, a)}, rng.randrange(4, 40))
        elif fault == "stall":
            self.network.stalled[member.name] = self.events.now_ms + rng.random() * 4000
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
            member.trim(LedgerIndex(min(member.committed, member.log.live.end_index) - rng.randrange(3)))
        elif fault == "skew":
            before = member.now_ms
            member.clock_rate = rng.choice((0.9, 1.0, 1.1))
            member.clock_offset_ms += int(before - member.now_ms) + rng.choice((0, 0, 100))
        elif fault == "full disk":
            member.has_space = False
            self.events.after(rng.random() * FULL_DISK_MS_MAX, lambda: setattr(member, "has_space", True))
        elif fault == "damage":
            self.damage(member)
        elif fault in CHANGES:
            self.change(fault)
        else:
            self.disk = DiskFaults(
                stall=rng.choice((0, 0.2)),
                stall_ms=rng.choice((2000, 10_000)),
                slow_write=rng.choice((0, 0.1)),
                eio=rng.choice((0, 0, 0.01)),
            )

    def _flap(self, pairs: set[tuple[str, str]], times: int) -> None:
        """Cut and restore a link many times."""
        if self.loading and times > 0:
            self.network.cut ^= pairs
            self.events.after(self.rng.random() * 300, lambda: self._flap(pairs, times - 1))

    def damage(self, member: Member) -> None:
        """Flip a bit of an entry that a majority holds, if damage stays on a minority; crash the member in half of the cases.

        Only of an entry that the checkpoint covers: beyond it, damage looks like a write torn by a crash (DUR-09).
        """
        others = [one for one in self.members.values() if one is not member]
        ledger, rng = member.log.durable, self.disk_rng
        if (
            not ledger.entries
            or member.noted < ledger.begin
            or sum(one.hurt for one in others) >= (len(self.names) - 1) // 2
        ):
            return
        for _ in range(8):
            back = rng.choice((4, 20, 60, len(ledger.entries)))
            last = min(ledger.end_index, member.noted)
            index = rng.randint(max(ledger.begin, last - back), last)
            entry = ledger.entry(index)
            good = sum(one.log.durable.entry(index) == entry and index not in one.flips for one in others)
            if entry is not None and entry == member.log.live.entry(index) and good >= len(self.names) // 2:
                member.flip(index, rng.choice(FLIPS))
                if rng.random() < 0.5:
                    self._crash(member)
                return

    def start_again(self, member: Member) -> None:
        """Restart a member that failed because of damage: after up to 8 s, or 0.5 s without load."""
        incarnation = member.incarnation

        def again() -> None:
            if member.incarnation == incarnation:
                member.crash()
                self.restart(member)

        self.events.after(self.rng.random() * (8000 if self.loading else 500), again)

    def _isolate(self, name: str) -> None:
        if self.loading:
            self.network.partition([name], [other for other in self.members if other != name])

    def _crash(self, member: Member) -> None:
        member.crash()
        self.events.after(self.rng.random() * 8000, lambda: self.restart(member))

    def crash_soon_back(self, member: Member) -> None:
        """A crash so short that the leader may not notice."""
        if self.loading:
            member.crash()
            self.events.after(self.rng.random() * 300, lambda: self.restart(member))

    def calm(self) -> None:
        """Stop all faults; every member is up, connected, and has a working disk."""
        self.loading = False
        self.crash_between = self.crash_after_cut = 0.0
        self.network.heal()
        self.network.faults = NetworkFaults()
        self.disk = DiskFaults()
        for member in self.members.values():
            member.frozen = False
            member.disk_is_well()
            member.clock_rate, member.clock_offset_ms = 1.0, member.now_ms - int(self.events.now_ms)
        self._repair()
        self.events.after(500, self._repair)

    def _repair(self) -> None:
        """Restart failed members on a new disk."""
        for member in list(self.members.values()):
            if member.node is not None and member.node.failed is not None:
                member.crash()
            self.restart(member)

    # a complete run

    def run(
        self, *, faulty_ms: float, calm_ms: float, load_every_ms: float = 150, fault_every_ms: float = 2500
    ) -> None:
        """Load and faults for a while, then calm, with all checks. Raises Violation."""
        self.start()
        self.load(load_every_ms)
        self.faults(fault_every_ms)
        steps = 8
        for step in range(1, steps + 1):
            self.events.run_until(faulty_ms * step / steps)
            self.observer.match_logs()
            for member in self.members.values():
                if not member.busy:
                    self.observer.uses_configuration_of_its_log(member)
        self.calm()
        self.events.run_until(faulty_ms + calm_ms)
        while (end_ms := self.damage_read_ms + calm_ms) > self.events.now_ms:  # damage from before may be read only now
            self.events.run_until(end_ms)
        self.check_calm()

    def check_calm(self) -> None:
        """Check liveness and equality after the faults (SIM-09, SIM-10)."""
        observer, start_ms = self.observer, self.events.now_ms
        leader = self.leader
        check = observer.check
        check(leader is not None, "no leader though all is well")
        assert leader is not None
        last = leader.log.live.end_index
        check(
            self.noop is None or leader.committed == last, f"{leader.committed} of {last} committed though all is well"
        )
        assert leader.node is not None
        removed = not leader.node.votes
        acked = len(observer.acked)
        self.propose(leader)
        self.events.run_until(start_ms + 3000)
        check(len(observer.acked) == acked + 1, "a proposal is not acknowledged though all is well")
        if (
            removed and self.noop is None
        ):  # the proposal committed its removal, and the next leader has no entry of its own term
            assert self.leader is not None
            self.propose(self.leader)
            self.events.run_until(start_ms + 6000)
        observer.match_logs()
        observer.all_acknowledged_are_there()
        for member in self.members.values():
            observer.uses_configuration_of_its_log(member)
        ends = {(m.log.live.end_index, m.committed, m.role) for m in self.current()}
        check(len({end for end, _, _ in ends}) == 1, f"logs end differently: {ends}")
        check(len({committed for _, committed, _ in ends}) == 1, f"committed differs: {ends}")
        leaders = [m.name for m in self.members.values() if m.role is Role.LEADER]
        check(len(leaders) == 1, f"leaders: {leaders}")
        hurt = [m.name for m in self.current() if m.node is not None and m.node.recovering]
        check(not hurt, f"still without vote, though all is well: {hurt}")
        for member in self.members.values():
            assert member.node is not None
            check(not member.node.pending_proposals, f"{member.name}: a caller was evicted")
