"""Simulated groups whose members change while they crash, are cut off and lose what was not synced (DL-X21).

Besides the invariants of SIM-08: at most one leader per term over all configurations, no acknowledged entry lost, each member uses
the newest configuration of its log. `SATURNMQ_SIM_SEEDS=n` runs n seeds, `SATURNMQ_SIM_SEED=k` only that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from harness.raftsim.group import CHANGES, MEMBER_FAULTS, Cluster, Member, Violation
from harness.raftsim.process import GROUP
from longruns import long_but, repetitions
from saturnmq.protocol.errors import InvariantBroken
from saturnmq.raft.core import elector, leader
from saturnmq.raft.core.actions import PersistMembers, Role
from saturnmq.raft.core.configuration import Configuration, Configurations
from saturnmq.raft.core.membership import Membership
from saturnmq.raft.core.messages import ChangeKind, ChangeRequest, PushRequest, Response
from saturnmq.raft.core.state import MemberState

Patch = pytest.MonkeyPatch
SEEDS = int(os.environ.get("SATURNMQ_SIM_SEEDS", repetitions(10, 40)))
ONLY = os.environ.get("SATURNMQ_SIM_SEED")
ALL = os.environ.get("SATURNMQ_SIM_MUTANTS") == "all"
SEEDS_MAX = 1500


def run_one(seed: int) -> Cluster:
    """Run one seed. Four kinds alternate: all faults with standard timers, short timers, and two directed sequences."""
    cluster = Cluster(seed, members=3)
    cluster.crash_between = 0.0003 if seed % 3 == 0 else 0.0
    if seed % 4 == 1:
        cluster.harsh()
        cluster.change_members(6)
        cluster.mix = (
            *("isolate leader", "partition", "crash leader", "heal", "heal", "heal", "trim") * 2,
            *CHANGES,
            *CHANGES,
        )
        cluster.run(faulty_ms=25_000, calm_ms=20_000, load_every_ms=200, fault_every_ms=300)
    elif seed % 4 == 2:
        cluster.crash_between = 0.0
        cluster.change_members(6)
        remove_two_behind_a_partition(cluster)
    elif seed % 4 == 3:
        cluster.crash_between = 0.0
        cluster.change_members(6)
        change_on_both_sides_of_a_partition(cluster)
    else:
        cluster.change_members(6)
        cluster.run(faulty_ms=60_000, calm_ms=20_000, fault_every_ms=1200)
    return cluster


def leader_among(cluster: Cluster, names: set[str], within_ms: float = 40_000) -> Member:
    """Run until one of these members leads; it is asked at once for what comes next."""
    end_ms = cluster.events.now_ms + within_ms
    while True:
        leading = [m for m in cluster.members.values() if m.name in names and m.role is Role.LEADER]
        if leading:
            return max(leading, key=lambda member: member.node.term if member.node is not None else -1)
        assert cluster.events.now_ms < end_ms, "no leader"
        cluster.events.run_until(cluster.events.now_ms + 20)


def ask(cluster: Cluster, leader: Member, kind: ChangeKind, name: str) -> None:
    request = ChangeRequest(group=GROUP, remote_id=leader.name, kind=kind, member_id=name, address=f"{name}:1")

    def answered(response: Response) -> None:
        cluster.seen[f"{kind.name} {int(response.code)}"] += 1

    leader.ask(request, answered)


def settle(cluster: Cluster, wanted: Callable[[Configuration], bool], change: tuple[ChangeKind, str]) -> Member:
    """Repeat a change until it is made; returns the leader."""
    for _ in range(200):
        leader = leader_among(cluster, set(cluster.members))
        node = leader.node
        if node is not None and wanted(node.configuration) and node.configuration.index <= node.committed:
            return leader
        ask(cluster, leader, *change)
        cluster.events.run_until(cluster.events.now_ms + 500)
    raise AssertionError(f"not made: {change}")


def add_voter_and_learner(cluster: Cluster) -> Member:
    """n3 becomes a voter, n4 a learner; returns the leader."""
    cluster.start()
    cluster.load(300)
    for name in ("n3", "n4"):
        cluster.spares.remove(name)
        member = cluster.members[name] = Member(cluster, name)
        member.learner, member.named = True, [*cluster.names, "n3", name][: 4 if name == "n3" else 5]
        member.start()
        settle(cluster, lambda now, name=name: name in now.addresses, (ChangeKind.ADD_LEARNER, name))
        if name == "n3":
            settle(cluster, lambda now: "n3" in now.voters, (ChangeKind.PROMOTE, "n3"))
    cluster.events.run_until(cluster.events.now_ms + 3000)
    return leader_among(cluster, set(cluster.members))


def finish(cluster: Cluster) -> None:
    cluster.events.run_until(cluster.events.now_ms + 25_000)
    cluster.observer.match_logs()
    cluster.calm()
    cluster.events.run_until(cluster.events.now_ms + 20_000)
    cluster.check_calm()


def remove_two_behind_a_partition(cluster: Cluster) -> None:
    """A leader that is cut off is asked to remove the two members that it needs: the second change must wait for the first."""
    cluster.start()
    cluster.load(200)
    leader = leader_among(cluster, set(cluster.names))
    cluster.events.run_until(cluster.events.now_ms + 4000)
    leader = leader_among(cluster, set(cluster.names))
    others = [name for name in cluster.names if name != leader.name]
    cluster.network.partition([leader.name], others)
    for name in others:
        ask(cluster, leader, ChangeKind.REMOVE, name)
    cluster.propose(leader, 2)
    finish(cluster)


def change_on_both_sides_of_a_partition(cluster: Cluster) -> None:
    """The known defect of the single-server change: leaders of two terms change the same configuration, each its own way."""
    first = add_voter_and_learner(cluster)
    others = [name for name in (*cluster.names, "n3") if name != first.name]
    cluster.network.partition([first.name, "n4"], others)
    ask(cluster, first, ChangeKind.PROMOTE, "n4")
    cluster.drop = lambda request: isinstance(request, PushRequest) and request.remote_id in others
    second = leader_among(cluster, set(others))
    helper, third = (name for name in others if name != second.name)
    cluster.drop = lambda request: isinstance(request, PushRequest) and request.remote_id == third
    cluster.events.run_until(cluster.events.now_ms + 500)  # heartbeats are answered, third gets no entry of this term
    ask(cluster, second, ChangeKind.REMOVE, first.name)
    cluster.network.partition([second.name, helper], [first.name, "n4", third])
    cluster.drop = lambda request: False
    finish(cluster)


@pytest.mark.repeated
@pytest.mark.timeout(120 + 8 * SEEDS)
@pytest.mark.spec("DL-X21", "DL-M05", "SIM-08")
def test_groups_that_change_keep_raft_invariants() -> None:
    """Fails with the seed; SATURNMQ_SIM_SEED=<seed> replays it."""
    seen: Counter[str] = Counter()
    first = 1 if ONLY is None else int(ONLY)
    for seed in range(first, first + (SEEDS if ONLY is None else 1)):
        seen += run_one(seed).seen
    if ONLY is None and SEEDS >= 90:
        wanted = [*CHANGES, *MEMBER_FAULTS, "truncate", "restart", "lost unsynced", "append 200"]
        wanted += [f"{change} {code}" for change in CHANGES for code in (200, 412)]
        wanted += ["promote 417", "add learner 501", "remove 501", "remove 504", "add learner 303"]
        assert [kind for kind in wanted if not seen[kind]] == []


def two_changes_at_once(patch: Patch) -> None:
    patch.setattr(Membership, "_another_is_pending", lambda self: False)


def change_before_an_entry_of_the_own_term(patch: Patch) -> None:
    """The known defect of the single-server change: configurations of two leaders may have no common majority."""
    patch.setattr(Membership, "_own_term_committed", lambda self: True)


def learner_counts_in_quorum(patch: Patch) -> None:
    def advance(self: leader.Leader) -> None:
        marks = sorted(self.watermarks().values(), reverse=True)
        index = marks[len(self.state.voters) // 2]
        entry = self.state.log.entry(index) if index > self.state.committed else None
        if entry is not None and entry.term == self.state.term:
            self.state.commit(index)
        while self.proposals and self.proposals[0].index <= self.state.committed:
            done = self.proposals.popleft()
            self.state.reply(done.token, done.response)

    patch.setattr(leader.Leader, "advance", advance)


def not_rolled_back_at_truncation(patch: Patch) -> None:
    patch.setattr(Configurations, "cut", lambda self, index: False)


def lost_at_retention(patch: Patch) -> None:
    def trim(self: Configurations, begin: int) -> None:
        self.history = [self.initial, *(one for one in self.history if one.index >= max(begin, 0))]

    patch.setattr(Configurations, "trim", trim)


def not_sent_to_a_log_that_restarts(patch: Patch) -> None:
    patch.setattr(leader.Leader, "_members_before", lambda self, entry: None)


def file_not_written(patch: Patch) -> None:
    from harness.raftsim.process import Member

    def persist(self: Member, action: PersistMembers) -> None:
        self.cluster.seen["not written"] += 1

    patch.setattr(Member, "_persist_members", persist)


def removed_leader_counts_itself(patch: Patch) -> None:
    def advance(self: leader.Leader) -> None:
        state = self.state
        marks = sorted((*(self.peers[name].watermark for name in state.other_voters), state.durable), reverse=True)
        index = marks[len(state.voters) // 2]
        entry = state.log.entry(index) if index > state.committed else None
        if entry is not None and entry.term == state.term:
            state.commit(index)
        while self.proposals and self.proposals[0].index <= state.committed:
            done = self.proposals.popleft()
            state.reply(done.token, done.response)

    patch.setattr(leader.Leader, "advance", advance)


def term_of_another_leader_is_led(patch: Patch) -> None:
    """A member that followed a leader stands in the same term, in which new members have not voted."""
    original = elector.Elector._finish

    def finish(self: elector.Elector) -> None:
        self.led_term = self.state.term
        original(self)

    patch.setattr(elector.Elector, "_finish", finish)


def removed_leader_stands_no_more(patch: Patch) -> None:
    """It may be the only one that has the entry that removes it: then no leader can be elected."""
    patch.setattr(MemberState, "stands", property(lambda self: self.votes))


def unknown_leader_is_refused(patch: Patch) -> None:
    """A member that copies an early part of the log does not know members that joined later."""
    patch.setattr(MemberState, "trusts", lambda self, name, changes: name in self.peers)


MUTANTS: tuple[Callable[[Patch], None], ...] = (
    two_changes_at_once,
    change_before_an_entry_of_the_own_term,
    learner_counts_in_quorum,
    not_rolled_back_at_truncation,
    lost_at_retention,
    not_sent_to_a_log_that_restarts,
    file_not_written,
    removed_leader_counts_itself,
    term_of_another_leader_is_led,
    removed_leader_stands_no_more,
    unknown_leader_is_refused,
)
QUICK = (learner_counts_in_quorum, not_rolled_back_at_truncation, lost_at_retention)


@pytest.mark.timeout(1800)
@pytest.mark.spec("SIM-11", "DL-X21")
@pytest.mark.parametrize("mutant", MUTANTS if ALL else long_but(1, QUICK), ids=lambda mutant: mutant.__name__)
def test_mutant_of_members_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run_one(seed)
        except (Violation, InvariantBroken) as error:
            print(f"{mutant.__name__}: seed {seed}: {error}")
            return
    pytest.fail(f"{mutant.__name__} survived {SEEDS_MAX} seeds")
