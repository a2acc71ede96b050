"""Heartbeats, lease, stepping down.

Requirements: DL-H01..DL-H09, DL-X05..DL-X09.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from raftbench import GROUP, Bench, entries
from raftgroup import Group

from harness.raftsim.group import Cluster
from saturnmq.raft.core.actions import PersistTerm, Role
from saturnmq.raft.core.messages import Code, HeartBeatRequest, HeartBeatResponse, VoteRequest, VoteResult
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.term_file import CheckpointFile

BEAT = HeartBeatRequest


def beaten(bench: Bench, code: Code, term: int = -1, peers: tuple[str, ...] = ("n1", "n2")) -> None:
    """Answer the newest heartbeat of each peer."""
    for peer in peers:
        bench.answer(bench.sends(peer, BEAT)[-1], HeartBeatResponse(code=code, term=term))


@pytest.mark.spec("DL-H01")
def test_heartbeats_are_sent_after_more_than_an_interval() -> None:
    bench = Bench(term=2).lead()
    bench.tick(1)
    assert [send.request for send in bench.sends(kind=BEAT)] == [
        BEAT(group=GROUP, term=2, leader_id="n0", local_id="n0", remote_id=peer) for peer in ("n1", "n2")
    ]
    assert {send.timeout_ms for send in bench.sends(kind=BEAT)} == {3000}
    beaten(bench, Code.SUCCESS)
    bench.forget()
    bench.tick(2000)
    assert bench.sends(kind=BEAT) == []
    bench.tick(1)
    assert len(bench.sends(kind=BEAT)) == 2


@pytest.mark.spec("DL-H02", "DL-H03")
def test_not_ready_peers_get_heartbeat_at_next_tick() -> None:
    bench = Bench(members=5).lead()
    bench.tick(1)
    beaten(bench, Code.SUCCESS, peers=("n1",))
    sends = len(bench.sends(kind=BEAT))
    bench.answer(bench.sends("n2", BEAT)[-1], HeartBeatResponse(code=Code.TERM_NOT_READY))
    bench.tick(10)
    assert len(bench.sends(kind=BEAT)) == sends + 4


@pytest.mark.spec("DL-H03", "DL-X08")
def test_leader_without_quorum_steps_down_before_followers_elect() -> None:
    bench = Bench(term=3).lead()
    assert bench.node.settings.lease_timeout_ms < bench.node.settings.election_timeout_ms
    bench.tick(1)
    for _ in range(5):
        bench.tick(999)
    assert bench.state.role is Role.LEADER
    bench.tick(4)
    assert (bench.state.role, bench.state.term, bench.state.leader_id) == (Role.CANDIDATE, 3, None)


@pytest.mark.spec("DL-X07")
def test_lease_starts_at_election_and_survives_one_failed_round() -> None:
    bench = Bench(now_ms=10**9).lead()
    bench.tick(1)
    for send in bench.sends(kind=BEAT):
        bench.answer(send, None)
    bench.tick(4000)
    assert bench.state.role is Role.LEADER


@pytest.mark.spec("DL-X08")
def test_lease_is_counted_from_heartbeat_send_time() -> None:
    bench = Bench().lead()
    bench.tick(1)
    send = bench.sends("n1", BEAT)[-1]
    sent_ms = bench.now_ms
    bench.now_ms += 2900
    bench.answer(send, HeartBeatResponse())
    assert bench.node._heartbeats.lease_ends_ms == sent_ms + 5000


@pytest.mark.spec("DL-X08")
@pytest.mark.parametrize(("members", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_lease_needs_quorum_including_leader(members: int, needed: int) -> None:
    bench = Bench(members=members).lead()
    lease = bench.node._heartbeats
    began = bench.now_ms
    ends = began + 5000
    assert lease.lease_ends_ms == ends
    for number, peer in enumerate(bench.state.other_members, 1):
        lease.lease_until_ms[peer] = ends + 10 * number
        assert lease.lease_ends_ms == (ends + 10 * (number - needed + 1) if number >= needed else ends)


@pytest.mark.spec("DL-X06", "DL-H03")
def test_higher_term_of_minority_makes_leader_step_down_rate_limited() -> None:
    bench = Bench(members=5, term=3).lead()
    bench.tick(1)
    for peer in ("n1", "n2", "n3"):
        bench.answer(bench.sends(peer, BEAT)[-1], HeartBeatResponse())
    bench.answer(bench.sends("n4", BEAT)[-1], HeartBeatResponse(code=Code.EXPIRED_TERM, term=9))
    assert bench.state.role is Role.CANDIDATE
    bench.forget()
    bench.tick()
    assert bench.of(PersistTerm) == [PersistTerm(9, None)]
    bench.tick(300)
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, VoteResult.ACCEPT)
    assert bench.state.role is Role.LEADER
    bench.tick(1)
    bench.answer(bench.sends("n4", BEAT)[-1], HeartBeatResponse(code=Code.EXPIRED_TERM, term=12))
    assert bench.state.role is Role.LEADER  # at most once per election timeout
    for _ in range(6):
        bench.tick(1000)
        for peer in ("n1", "n2", "n3"):
            bench.answer(bench.sends(peer, BEAT)[-1], HeartBeatResponse())
    bench.answer(bench.sends("n4", BEAT)[-1], HeartBeatResponse(code=Code.EXPIRED_TERM, term=12))
    assert bench.state.role is Role.CANDIDATE


@pytest.mark.spec("DL-H03")
def test_inconsistent_leader_becomes_candidate_in_same_term() -> None:
    bench = Bench(term=3).lead()
    bench.tick(1)
    beaten(bench, Code.INCONSISTENT_LEADER)
    assert (bench.state.role, bench.state.term) == (Role.CANDIDATE, 3)


@pytest.mark.spec("DL-H03")
def test_late_answers_to_a_former_leadership_of_the_term_depose_no_leader() -> None:
    """A member whose lease expired may win the same term again; what is on its way is about the time before."""
    bench = Bench(term=3).lead()
    bench.tick(1)
    late = bench.sends(kind=BEAT)
    bench.tick(60_000)
    assert (bench.state.role, bench.state.term) == (Role.CANDIDATE, 3)
    bench.forget()
    while not bench.sends(kind=VoteRequest):
        bench.tick()
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, VoteResult.ACCEPT)
    assert (bench.state.role, bench.state.term) == (Role.LEADER, 3)
    for send in late:
        bench.answer(send, HeartBeatResponse(group=GROUP, term=3, code=Code.INCONSISTENT_LEADER))
    assert bench.state.role is Role.LEADER


@pytest.mark.spec("DL-H04")
def test_live_peers_are_those_that_answered() -> None:
    bench = Bench().lead()
    bench.tick(1)
    beaten(bench, Code.EXPIRED_TERM, peers=("n1",))
    bench.answer(bench.sends("n2", BEAT)[-1], None)
    assert bench.node._heartbeats.live == {"n1": True, "n2": False}
    bench.tick(2001)
    beaten(bench, Code.NETWORK_ERROR, peers=("n1",))
    beaten(bench, Code.SUCCESS, peers=("n2",))
    assert bench.node._heartbeats.live == {"n1": False, "n2": True}


@pytest.mark.spec("DL-H05", "DL-H06")
@pytest.mark.parametrize(
    ("leader", "term", "expected"),
    [
        ("n9", 5, Code.UNKNOWN_MEMBER),
        ("n9", 4, Code.UNKNOWN_MEMBER),
        ("n0", 5, Code.UNEXPECTED_MEMBER),
        ("n0", 4, Code.UNEXPECTED_MEMBER),
        ("n1", 4, Code.EXPIRED_TERM),
        ("n1", 5, Code.SUCCESS),
        ("n2", 5, Code.INCONSISTENT_LEADER),
        ("n2", 6, Code.TERM_NOT_READY),
    ],
)
def test_heartbeat_checks_in_order(leader: str, term: int, expected: Code) -> None:
    bench = Bench(term=5).follow("n1")
    bench.tick(10)
    answer = bench.heartbeat(leader, term)
    assert answer.code == expected
    assert answer.term == (5 if expected == Code.EXPIRED_TERM else -1)
    if expected == Code.SUCCESS:
        assert answer == HeartBeatResponse()
    assert (bench.node._heartbeats.patient_until_ms == bench.now_ms + 6000) == (expected == Code.SUCCESS)
    if expected == Code.TERM_NOT_READY:
        assert bench.state.role is Role.CANDIDATE
        bench.tick()
        assert bench.state.term == 6


@pytest.mark.spec("DL-H06")
def test_candidate_follows_first_leader_of_its_term() -> None:
    bench = Bench(term=5)
    assert bench.heartbeat("n2", 5).code == Code.SUCCESS
    assert (bench.state.role, bench.state.leader_id) == (Role.FOLLOWER, "n2")


@pytest.mark.spec("DL-H07", "DL-H08")
def test_election_timeout_is_three_intervals_and_ignores_pushes() -> None:
    from saturnmq.raft.core.messages import PushKind

    bench = Bench(term=5, log=entries(5)).follow("n1")
    bench.tick(5999)
    bench.push(PushKind.COMPARE, *entries(5))
    assert bench.push(PushKind.APPEND, *entries(5, first=1, pos=entries(5)[0].end_pos)).code == Code.SUCCESS
    assert bench.state.role is Role.FOLLOWER
    bench.tick(2)
    assert (bench.state.role, bench.state.term) == (Role.CANDIDATE, 5)


@pytest.mark.spec("DL-H09", "DL-E13")
def test_follower_restart_keeps_leader_and_term() -> None:
    cluster = Cluster(3)
    cluster.start()
    cluster.events.run_until(15_000)
    leader = cluster.leader
    assert leader is not None
    assert leader.node is not None
    term = leader.node._state.term
    follower = next(member for member in cluster.members.values() if member is not leader)
    follower.crash()
    cluster.events.run_until(25_000)
    follower.start()
    cluster.events.run_until(45_000)
    assert cluster.leader is leader
    assert leader.node._state.term == term
    for member in cluster.members.values():
        if member is not leader:
            member.crash()
    cluster.events.run_until(45_000 + 4 * 2000)
    assert (leader.role, leader.node._state.term) == (Role.CANDIDATE, term)


@pytest.mark.spec("DL-E13", "DL-X05")
def test_isolated_follower_returns_without_deposing_leader() -> None:
    """Ten minutes of isolation, leader and term unchanged (docs/spec/04-dledger.md section 7, row 18)."""
    cluster = Cluster(4)
    cluster.start()
    cluster.events.run_until(15_000)
    leader = cluster.leader
    assert leader is not None
    assert leader.node is not None
    term = leader.node._state.term
    alone = next(name for name in cluster.names if name != leader.name)
    cluster.network.partition([alone], [name for name in cluster.names if name != alone])
    cluster.events.run_until(615_000)
    cluster.network.heal()
    cluster.events.run_until(640_000)
    assert cluster.leader is leader
    assert leader.node._state.term == term
    assert cluster.members[alone].role is Role.FOLLOWER


@pytest.mark.spec("DL-E24")
def test_two_members_elect_but_one_alone_does_not() -> None:
    cluster = Cluster(5, members=2)
    cluster.start()
    cluster.events.run_until(20_000)
    leader = cluster.leader
    assert leader is not None
    cluster.propose(leader)
    cluster.events.run_until(21_000)
    assert len(cluster.observer.acked) == 1
    leader.crash()
    cluster.events.run_until(80_000)
    assert cluster.leader is None


@pytest.mark.spec("DL-E23")
def test_minority_entries_are_removed_and_majority_entries_survive() -> None:
    """Five members with 121, 101, 121, 91, 91 entries; the leader n0 and n2 are down: n1 wins."""
    cluster = Cluster(6, members=5, settings=CoreSettings(file_bytes=65536))
    long = entries(*([0] * 121))
    from saturnmq.raft.core.actions import AppendEntries

    for name, count in (("n0", 121), ("n1", 101), ("n2", 121), ("n3", 91), ("n4", 91)):
        member = cluster.members[name]
        member.log.change(AppendEntries(tuple(long[:count])))
        member.log.sync(member.log.mark())
        if name not in ("n0", "n2"):
            member.start()
    cluster.events.run_until(40_000)
    leader = cluster.leader
    assert leader is not None
    assert leader.name == "n1"
    cluster.propose(leader)
    cluster.events.run_until(41_000)
    for name in ("n0", "n2"):
        cluster.members[name].start()
    cluster.events.run_until(70_000)
    logs = [member.log.live.entries for member in cluster.members.values()]
    assert all(log == logs[0] for log in logs)
    assert logs[0][:101] == long[:101]
    assert [entry.term > 0 for entry in logs[0][101:]] == [True] * (len(logs[0]) - 101)


@pytest.mark.spec("DL-X05")
def test_candidate_that_learns_of_a_leader_keeps_its_term() -> None:
    bench = Bench(term=5, voted_for="n2")
    bench.tick()
    first, second = bench.sends()
    bench.vote_answer(first, VoteResult.REJECT_ALREADY_HAS_LEADER)
    bench.vote_answer(second, VoteResult.REJECT_ALREADY_VOTED)
    bench.tick(7000)
    assert bench.state.term == 5


@pytest.mark.spec("DUR-10")
async def test_recovery_target_of_damaged_member_survives_restarts(tmp_path: Path) -> None:
    """Regression: the checkpoint was rewritten with the shortened log's end, so that the member voted after a second restart."""
    made = Group(tmp_path, 3)
    folder = tmp_path / "dledger-n0"
    folder.mkdir()
    CheckpointFile(folder).write(LedgerCheckpoint(end_index=5, committed_index=4))
    for _ in range(2):
        member = await made.start("n0")
        assert member.node is not None and member.node.recovering
        await made.stop("n0")
    for name in made.names:
        await made.start(name, force_vote_damaged=True)
    await made.append(b"x")
    await made.equal()
    for name in made.names:
        await made.stop(name)
    assert CheckpointFile(folder).read() == LedgerCheckpoint(0, 0)
