"""Simulated groups whose members switch between standard and fast timers (raft/core/timers.py).

Invariants beside those of Raft: without faults no switch causes an election; an election begins only when no leader holds a lease.
`SATURNMQ_SIM_SEEDS=n` runs n seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from harness.raftsim.group import Cluster, Member, Violation
from harness.raftsim.observer import Observer
from harness.raftsim.simulation import NetworkFaults
from longruns import repetitions
from saturnmq.raft.core import liveness, timers, voting
from saturnmq.raft.core.actions import Role, RoleChanged
from saturnmq.raft.core.messages import VoteResponse, VoteResult
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.settings import RaftProfile, RaftSettings

SEEDS = int(os.environ.get("SATURNMQ_SIM_SEEDS", repetitions(4, 16)))
SEEDS_PLANTED = max(SEEDS, 16)  # fewer do not find every planted defect
pytestmark = [pytest.mark.repeated, pytest.mark.timeout(120 + 8 * SEEDS)]
PEERS = "n0-h:1;n1-h:2;n2-h:3"


def settings_of(profile: RaftProfile) -> CoreSettings:
    settings = RaftSettings(enabled=True, group="g", peers_text=PEERS, self_id="n0", profile=profile)
    return settings.core(2048, sync_before_ack=True)


AUTO, FAST, STANDARD = (settings_of(one) for one in (RaftProfile.AUTO, RaftProfile.FAST, RaftProfile.STANDARD))


class LeaseObserver(Observer):
    """Checks that a new leader is elected only after the leases of earlier ones have ended (DL-X08).

    Java followers adopt the term of any candidate, and SaturnMQ followers that of a Java candidate, within the lease that they
    have extended: if such a follower votes for the new leader, no lease was promised.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.java_until_ms: dict[str, float] = {}
        self.followed_until_ms: dict[str, float] = {}
        self.adopted_ms: dict[str, float] = {}

    def spoken(self) -> None:
        """Record which members speak as Java does now: their answers extend leases for a while."""
        for member in self.cluster.members.values():
            if member.plain:
                self.java_until_ms[member.name] = self.cluster.events.now_ms + STANDARD.lease_timeout_ms

    def voted(self, member: Member, response: VoteResponse) -> None:
        super().voted(member, response)
        self.spoken()
        now_ms = self.cluster.events.now_ms
        if (
            response.vote_result is VoteResult.REJECT_TERM_NOT_READY
            and self.followed_until_ms.get(member.name) == now_ms
        ):
            either = member.name, response.leader_id or ""
            if any(self.java_until_ms.get(name, -1) >= now_ms for name in either):
                self.adopted_ms[member.name] = now_ms

    def role(self, member: Member, action: RoleChanged) -> None:
        super().role(member, action)
        now_ms = self.cluster.events.now_ms
        before_ms = self.followed_until_ms.get(member.name, -1)
        following = action.role is Role.FOLLOWER
        self.followed_until_ms[member.name] = float("inf") if following else min(before_ms, now_ms)
        if action.role is not Role.LEADER:
            return
        for voter in self.cluster.members:
            chosen = self.votes.get((voter, action.term))
            if chosen == member.name and now_ms - self.adopted_ms.get(voter, -1e9) <= STANDARD.lease_timeout_ms:
                return
        for other in self.cluster.members.values():
            if other is member or other.node is None or other.node.term > action.term:
                continue  # elected by late votes, in a term that is over
            held = other.node.holds_lease(other.now_ms)
            self.check(not held, f"{member.name} leads while {other.name} holds its lease")


class Group:
    """A simulated group of members with profile AUTO; members that are `plain` speak as Java does."""

    def __init__(self, seed: int, *, members: int = 3, settings: CoreSettings = AUTO) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster(seed, members=members, settings=settings)
        self.observer = self.cluster.observer = LeaseObserver(self.cluster)
        self.cluster.network.faults = NetworkFaults(delay_ms=40)
        self.members = list(self.cluster.members.values())

    def run(self, seconds: float) -> None:
        self.cluster.events.run_until(self.cluster.events.now_ms + seconds * 1000)

    def every(self, seconds: float, do: Callable[[], None]) -> None:
        """Repeat something at random intervals of up to twice this length."""

        def again() -> None:
            self.cluster.events.after(self.rng.random() * 2000 * seconds, again)
            do()

        self.cluster.events.after(self.rng.random() * 2000 * seconds, again)

    @property
    def leader(self) -> Member:
        leader = self.cluster.leader
        assert leader is not None
        return leader

    @property
    def elections(self) -> int:
        return self.cluster.seen[Role.LEADER.value]

    @property
    def term(self) -> int:
        return max(member.hard.term for member in self.members)

    def fast(self) -> list[bool]:
        return [member.node.fast_timers for member in self.members if member.node is not None]

    def replace(self, member: Member) -> None:
        """Restart a member as another implementation or with another profile."""
        member.crash()
        member.plain = self.rng.random() < 0.3
        member.settings = self.rng.choice((AUTO, AUTO, FAST, STANDARD))
        if member.plain:  # a Java broker has no other timers
            member.settings = STANDARD
        self.cluster.events.after(self.rng.random() * 4000, lambda: self.cluster.restart(member))


def started(seed: int, **more: Any) -> Group:
    group = Group(seed, **more)
    group.cluster.start()
    group.run(20)
    return group


def calm_group(seed: int) -> Group:
    """Members become plain and SaturnMQ again at any time; now and then a message is lost."""
    group = started(seed, members=5 if seed % 4 == 3 else 3)
    group.cluster.network.faults = NetworkFaults(delay_ms=40, loss=0.01)

    def change() -> None:
        group.observer.spoken()
        if any(member.plain for member in group.members):
            for member in group.members:
                member.plain = False
        else:
            for member in group.rng.sample(group.members, group.rng.choice((1, 1, 2))):
                member.plain = True

    group.every(1 + seed % 12, change)
    return group


def lossy_group(seed: int) -> Group:
    """All members are SaturnMQ; 12 % of the messages are lost, so that some miss a new leader."""
    group = started(seed, members=5 if seed % 4 == 3 else 3)
    group.cluster.network.faults = NetworkFaults(delay_ms=40, loss=0.12)
    return group


@pytest.mark.spec("CHA-07", "DL-H07")
def test_switching_timers_without_faults_causes_no_election() -> None:
    switched = 0
    for seed in range(SEEDS):
        group = calm_group(seed)
        before = group.leader, group.elections, group.term
        for _ in range(100):
            fast = group.fast()
            group.run(1)
            switched += group.fast() != fast
        assert (group.leader, group.elections, group.term) == before, seed
    assert switched > 3 * SEEDS


@pytest.mark.spec("CHA-07")
def test_group_uses_fast_timers_only_when_all_members_are_known() -> None:
    for seed in range(SEEDS):
        group = started(seed, members=5 if seed % 4 == 3 else 3)
        count = len(group.members)
        assert group.fast() == [True] * count, seed
        other = group.rng.choice([member for member in group.members if member is not group.leader])
        other.plain = True
        group.run(10)
        assert set(group.fast()) == {False}, seed
        other.plain = False
        group.run(20)
        assert group.fast() == [True] * count, seed


@pytest.mark.spec("CHA-07")
def test_restart_of_all_members_returns_to_fast_timers() -> None:
    for seed in range(SEEDS):
        group = started(seed)
        terms = group.term
        for member in group.members:
            member.crash()
        for member in group.members:
            group.cluster.events.after(group.rng.random() * 5000, member.start)
        group.run(25)
        assert group.fast() == [True] * 3, seed
        assert group.term <= terms + 4, seed


@pytest.mark.spec("CHA-07", "DL-H07")
def test_restart_of_all_without_one_member_keeps_standard_timers() -> None:
    for seed in range(SEEDS):
        group = started(seed)
        for member in group.members:
            member.crash()
        group.run(0.1)  # what they sent before has arrived
        for member in group.members[:2]:
            member.start()
        group.run(30)
        elections = group.elections
        group.run(60)
        assert (group.fast(), group.elections) == ([False, False], elections), seed
        group.members[2].start()
        group.run(15)
        assert (group.fast(), group.elections) == ([True] * 3, elections), seed


@pytest.mark.spec("CHA-07", "DL-H07", "DL-X08")
def test_group_of_different_profiles_keeps_its_leader() -> None:
    """Members with fast timers set wait as long as the others for a leader that announces no interval."""
    for seed in range(SEEDS):
        group = Group(seed, members=5 if seed % 4 == 3 else 3)
        for member in group.members:
            member.settings = group.rng.choice((AUTO, FAST, STANDARD))
            member.plain = group.rng.random() < 0.2
        group.cluster.start()
        group.run(30)
        before = group.leader, group.cluster.seen[Role.CANDIDATE.value], group.term
        group.run(60)
        assert (group.leader, group.cluster.seen[Role.CANDIDATE.value], group.term) == before, seed


@pytest.mark.spec("CHA-07", "DL-H09")
def test_replaced_members_cause_elections_only_when_the_leader_leaves() -> None:
    """Members restart as Java, with another profile, or as they were; the number of terms stays bounded."""
    for seed in range(SEEDS):
        group = started(seed, members=5 if seed % 4 == 3 else 3)
        left, elections, terms = 0, group.elections, group.term
        for _ in range(10):
            member = group.rng.choice(group.members)
            leader = group.cluster.leader
            left += member is leader
            group.replace(member)
            group.run(30)
            assert group.cluster.leader is not None, seed
        assert group.elections - elections <= 2 * left, seed
        assert group.term - terms <= 4 * left, seed


PARTITIONS = ("partition", "one way", "isolate leader", "bridge", "ring", "flap", "stall", "lossy", "heal", "heal")


@pytest.mark.spec("DL-X08", "SIM-08")
@pytest.mark.parametrize(("prepared", "every_ms", "transfers"), [(calm_group, 3000, 0), (lossy_group, 1000, 4)])
def test_partitions_never_overlap_leases(prepared: Callable[[int], Group], every_ms: int, transfers: int) -> None:
    for seed in range(SEEDS):
        group = prepared(seed)
        cluster = group.cluster
        cluster.mix = (*PARTITIONS, *("transfer",) * transfers)
        cluster.load(300)
        cluster.faults(every_ms)
        group.run(120)
        cluster.calm()
        group.run(40)
        cluster.check_calm()


@pytest.mark.spec("SIM-08", "SIM-10", "CHA-07")
def test_all_faults_with_different_profiles_keep_raft_invariants() -> None:
    seen = 0
    for seed in range(SEEDS):
        cluster = Cluster(seed, members=5 if seed % 4 == 3 else 3, settings=AUTO)
        for member in cluster.members.values():
            member.settings = cluster.rng.choice((AUTO, AUTO, FAST, STANDARD))
            member.plain = cluster.rng.random() < 0.2
        cluster.run(faulty_ms=40_000, calm_ms=30_000)
        seen += len(cluster.observer.acked)
    assert seen > 0


def outage_ms(seed: int, settings: CoreSettings) -> float:
    """ms without a leader that can commit, from when the leader no longer receives anything until another one is elected."""
    group = started(seed, settings=settings)
    leader, cluster = group.leader, group.cluster
    group.run(group.rng.random())
    cluster.network.cut = {(other.name, leader.name) for other in group.members if other is not leader}
    began_ms = cluster.events.now_ms
    while cluster.leader in (leader, None) or cluster.leader.role is not Role.LEADER:
        group.run(0.01)
        assert cluster.events.now_ms < began_ms + 60_000, seed
    assert cluster.observer.leaders
    return cluster.events.now_ms - began_ms


@pytest.mark.spec("DL-X08", "CHA-07")
def test_deaf_leader_is_replaced_soon_after_its_lease(capsys: pytest.CaptureFixture[str]) -> None:
    """It can send but receives nothing. DLedger's followers go on waiting for it until their election timeout."""
    figures = {}
    for name, settings, limit_ms in (("auto", AUTO, 3000), ("standard", STANDARD, 15_000)):
        took = sorted(outage_ms(seed, settings) for seed in range(SEEDS))
        figures[name] = took[len(took) // 2], took[int(len(took) * 0.95)], took[-1]
        assert took[-1] <= limit_ms, (name, took)
    with capsys.disabled():
        print("\ndeaf leader:", *(f"{name} {a:.0f}/{b:.0f}/{c:.0f} ms" for name, (a, b, c) in figures.items()))
    assert figures["auto"][0] <= 2500


def no_longest_promise(patch: pytest.MonkeyPatch) -> None:
    """A follower waits as long as its newest heartbeat says, also if an earlier one allowed more."""
    original = liveness.Heartbeats.receive

    def receive(self: liveness.Heartbeats, request: Any) -> Any:
        before, self.patient_until_ms = self.patient_until_ms, 0
        answer = original(self, request)
        self.patient_until_ms = self.patient_until_ms or before
        return answer

    patch.setattr(liveness.Heartbeats, "receive", receive)


def lease_of_the_current_timers(patch: pytest.MonkeyPatch) -> None:
    """A lease has the standard length whichever heartbeat was answered."""
    original = liveness.Heartbeats._beat

    def beat(self: liveness.Heartbeats) -> None:
        original(self)
        assert self.round is not None
        self.round.lease_ms = self.timers.base.lease_timeout_ms

    patch.setattr(liveness.Heartbeats, "_beat", beat)


def no_announcement(patch: pytest.MonkeyPatch) -> None:
    """Followers use their own timers, whatever the leader's are."""

    def patience(self: timers.Timers, announced_ms: int | None) -> int:
        self._use(announced_ms is not None)
        return int(self.state.settings.election_timeout_ms)

    patch.setattr(timers.Timers, "patience_ms", patience)


def votes_within_a_lease(patch: pytest.MonkeyPatch) -> None:
    """A follower votes for any candidate of a higher term, as DLedger's do."""
    rules = tuple(rule for rule in voting.VOTE_RULES if rule[0] is not voting._disturbs)
    assert len(rules) < len(voting.VOTE_RULES)
    patch.setattr(voting, "VOTE_RULES", rules)


@pytest.mark.long
@pytest.mark.timeout(600 + 8 * SEEDS)
@pytest.mark.spec("SIM-11", "CHA-07")
@pytest.mark.parametrize(
    "mutant", [lease_of_the_current_timers, no_announcement, no_longest_promise, votes_within_a_lease]
)
def test_simulation_finds_planted_defects_of_timers(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    monkeypatch.setitem(globals(), "SEEDS", SEEDS_PLANTED)
    with pytest.raises((Violation, AssertionError)):
        test_partitions_never_overlap_leases(calm_group, 3000, 0)
        test_partitions_never_overlap_leases(lossy_group, 1000, 4)
        test_switching_timers_without_faults_causes_no_election()
        test_replaced_members_cause_elections_only_when_the_leader_leaves()
