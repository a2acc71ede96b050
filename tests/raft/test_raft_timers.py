"""Choice between standard and fast timers, and reports of leaders that step down (raft/core/timers.py, raft/core/liveness.py).

Requirements: CHA-07, DL-H01, DL-H07, DL-X08.
"""

from __future__ import annotations

from typing import Any

import pytest
from raftbench import Bench

from saturnmq.raft.core.actions import Role, TimersChanged
from saturnmq.raft.core.messages import (
    Code,
    HeartBeatRequest,
    HeartBeatResponse,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.settings import RaftProfile, RaftSettings
from saturnmq.raft.wire.codec import DLedgerCode, decode_request, decode_response, encode

BEAT = HeartBeatRequest
PEERS = "n0-h:1;n1-h:2;n2-h:3"
STANDARD_MS, FAST_MS = 2000, 500


def settings_of(profile: RaftProfile, **keys: Any) -> CoreSettings:
    settings = RaftSettings(enabled=True, group="g", peers_text=PEERS, self_id="n0", profile=profile, **keys)
    assert settings.validate() == []
    return settings.core(1 << 20, sync_before_ack=True)


def bench_of(profile: RaftProfile = RaftProfile.AUTO, **more: Any) -> Bench:
    core = settings_of(profile)
    return Bench(**{name: getattr(core, name) for name in core.__dataclass_fields__} | more)


def echo(bench: Bench, peer: str, interval_ms: int | None, code: Code = Code.SUCCESS) -> None:
    """Answer the newest heartbeat of a peer: with an echo as SaturnMQ, or with None as Java."""
    bench.answer(bench.sends(peer, BEAT)[-1], HeartBeatResponse(code=code, interval_ms=interval_ms))


def announced(bench: Bench, peer: str = "n1") -> list[int | None]:
    return [send.request.interval_ms for send in bench.sends(peer, BEAT)]  # type: ignore[union-attr]


def fast_leader(**more: Any) -> Bench:
    bench = bench_of(**more).lead()
    bench.tick(1)
    for peer in bench.state.other_members:
        echo(bench, peer, STANDARD_MS)
    bench.tick()
    return bench


def hear(bench: Bench, interval_ms: int | None, leader: str = "n1") -> HeartBeatResponse:
    answer = bench.ask(BEAT(leader_id=leader, local_id=leader, term=bench.state.term, interval_ms=interval_ms))
    assert isinstance(answer, HeartBeatResponse)
    return answer


@pytest.mark.spec("CHA-07")
def test_leader_uses_fast_timers_once_every_peer_echoed() -> None:
    bench = bench_of().lead()
    bench.tick(1)
    echo(bench, "n1", STANDARD_MS)
    bench.tick()
    assert (bench.node.fast_timers, announced(bench)) == (False, [STANDARD_MS])
    echo(bench, "n2", STANDARD_MS)
    bench.tick()
    assert bench.of(TimersChanged) == [TimersChanged(True)]
    assert announced(bench) == [STANDARD_MS, FAST_MS]  # announced at once
    bench.tick(FAST_MS + 1)
    assert announced(bench) == [STANDARD_MS, FAST_MS, FAST_MS]


@pytest.mark.spec("CHA-07")
def test_silent_peer_that_was_never_seen_keeps_standard_timers() -> None:
    bench = bench_of().lead()
    for _ in range(20):
        bench.tick(STANDARD_MS + 1)
        echo(bench, "n1", STANDARD_MS)
        bench.answer(bench.sends("n2", BEAT)[-1], None)
    assert not bench.node.fast_timers
    assert bench.state.role is Role.LEADER


@pytest.mark.spec("CHA-07")
def test_known_peer_that_falls_silent_keeps_fast_timers() -> None:
    bench = fast_leader()
    for _ in range(20):
        bench.tick(FAST_MS + 1)
        echo(bench, "n1", FAST_MS)
        bench.answer(bench.sends("n2", BEAT)[-1], None)
    assert bench.node.fast_timers
    assert bench.state.role is Role.LEADER


@pytest.mark.spec("CHA-07", "DL-H01")
def test_answer_without_echo_returns_to_standard_timers() -> None:
    bench = fast_leader()
    echo(bench, "n1", FAST_MS)
    echo(bench, "n2", None)
    assert bench.of(TimersChanged)[-1] == TimersChanged(False)
    bench.forget()
    for _ in range(2):  # keeps the fast interval meanwhile: followers may still expect it
        bench.tick(FAST_MS + 1)
        echo(bench, "n1", STANDARD_MS)
        echo(bench, "n2", None)
    assert announced(bench) == [STANDARD_MS] * 2
    bench.forget()
    bench.tick(FAST_MS + 1)
    assert announced(bench) == []
    bench.tick(STANDARD_MS - FAST_MS)
    assert announced(bench) == [STANDARD_MS]


@pytest.mark.spec("CHA-07")
def test_peer_that_alternates_switches_timers_once_per_election_timeout() -> None:
    bench = fast_leader()
    began_ms = bench.now_ms
    while bench.now_ms < began_ms + 60_000:
        if bench.tick(10) and bench.sends("n2", BEAT):
            for interval_ms in (None, FAST_MS, None, FAST_MS):
                echo(bench, "n1", FAST_MS)
                echo(bench, "n2", interval_ms)
                bench.answer(bench.sends("n2", BEAT)[-1], HeartBeatResponse(interval_ms=interval_ms))
                bench.tick(600)
    assert bench.state.role is Role.LEADER
    assert len(bench.of(TimersChanged)) <= 2 * 60_000 // 6000 + 2


@pytest.mark.spec("DL-X08", "DL-H03")
def test_lease_has_the_length_that_belongs_to_the_answered_heartbeat() -> None:
    bench = bench_of().lead()
    bench.tick(1)
    first_ms = bench.now_ms
    for peer in ("n1", "n2"):
        echo(bench, peer, STANDARD_MS)
    beats = bench.node._heartbeats
    assert beats.lease_ends_ms == first_ms + 5000
    bench.tick()
    echo(bench, "n1", FAST_MS)
    assert beats.lease_ends_ms == first_ms + 5000, "followers still wait for what the first heartbeat allowed"
    while beats.lease_ends_ms == first_ms + 5000:
        bench.tick(FAST_MS + 1)
        echo(bench, "n1", FAST_MS)
    assert beats.lease_ends_ms == beats.sent_ms + 1250


@pytest.mark.spec("DL-H07", "DL-H08")
@pytest.mark.parametrize(
    ("profile", "interval_ms", "waits_ms"),
    [
        (RaftProfile.AUTO, None, 6000),
        (RaftProfile.AUTO, STANDARD_MS, 6000),
        (RaftProfile.AUTO, FAST_MS, 1500),
        (RaftProfile.AUTO, 1000, 3000),
        (RaftProfile.AUTO, 1, 1500),
        (RaftProfile.AUTO, 1 << 62, 6000),
        (RaftProfile.FAST, None, 6000),  # a Java leader, or one with `standard`
        (RaftProfile.FAST, STANDARD_MS, 6000),
        (RaftProfile.FAST, FAST_MS, 1500),
        (RaftProfile.STANDARD, FAST_MS, 6000),
    ],
)
def test_follower_waits_for_multiple_of_announced_interval(
    profile: RaftProfile, interval_ms: int | None, waits_ms: int
) -> None:
    bench = bench_of(profile, term=5)
    answer = hear(bench, interval_ms)
    assert answer == HeartBeatResponse(interval_ms=None if profile is RaftProfile.STANDARD else interval_ms)
    bench.tick(waits_ms)
    assert bench.state.role is Role.FOLLOWER
    bench.tick(1)
    assert (bench.state.role, bench.state.term) == (Role.CANDIDATE, 5)


@pytest.mark.spec("DL-H07", "DL-X08")
def test_later_heartbeat_never_shortens_what_an_earlier_one_allowed() -> None:
    bench = bench_of(term=5)
    hear(bench, STANDARD_MS)
    bench.tick(100)
    hear(bench, FAST_MS)  # perhaps older than the first one, and only delayed
    bench.tick(5900)
    assert bench.state.role is Role.FOLLOWER
    bench.tick(1)
    assert bench.state.role is Role.CANDIDATE


@pytest.mark.spec("DL-H07")
def test_follower_of_a_new_leader_waits_only_as_long_as_that_one_announced() -> None:
    bench = bench_of(term=5)
    hear(bench, STANDARD_MS)
    hear(bench, 0)  # it steps down
    hear(bench, FAST_MS, "n2")
    leak_max = bench.node.settings.heartbeat_leak_max
    bench.tick(FAST_MS * leak_max)
    assert (bench.state.role, bench.state.leader_id) == (Role.FOLLOWER, "n2")
    bench.tick(1)
    assert bench.state.role is Role.CANDIDATE


@pytest.mark.spec("CHA-07", "DL-E07")
def test_follower_takes_over_the_leaders_choice_for_its_election() -> None:
    bench = bench_of(term=5)
    hear(bench, FAST_MS)
    assert bench.node.fast_timers and bench.state.settings.vote_interval_max_ms == 500
    bench.tick(1501)
    bench.tick()
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, None)
    bench.tick(2000)
    bench.lead()
    bench.tick(1)
    assert announced(bench)[-1] == FAST_MS, "the dead leader is known, though silent"
    echo(bench, "n2", FAST_MS)
    echo(bench, "n1", None)  # a Java member in its place
    bench.tick()
    assert announced(bench)[-1] == STANDARD_MS


@pytest.mark.spec("CHA-07")
def test_follower_of_a_java_leader_uses_standard_timers() -> None:
    bench = bench_of(term=5)
    hear(bench, FAST_MS)
    hear(bench, None)
    assert not bench.node.fast_timers
    assert bench.state.settings.vote_interval_max_ms == 1000


@pytest.mark.spec("DL-X08", "CHA-07")
@pytest.mark.parametrize("profile", [RaftProfile.AUTO, RaftProfile.FAST])
def test_leader_without_answers_reports_that_it_steps_down(profile: RaftProfile) -> None:
    bench = bench_of(profile, term=3).lead()
    bench.tick(1)
    echo(bench, "n1", FAST_MS)
    echo(bench, "n2", None)
    while bench.state.role is Role.LEADER:
        bench.tick(10)
    assert announced(bench, "n1")[-1] == 0
    assert announced(bench, "n2")[-1] != 0, "Java would take it for a heartbeat"


@pytest.mark.spec("DL-X08", "CHA-07")
def test_follower_of_a_leader_that_steps_down_is_candidate_at_once() -> None:
    bench = bench_of(term=5)
    hear(bench, FAST_MS)
    assert hear(bench, 0, leader="n2").code == Code.INCONSISTENT_LEADER
    assert bench.state.role is Role.FOLLOWER
    assert hear(bench, 0).code == Code.SUCCESS
    assert (bench.state.role, bench.state.term, bench.state.leader_id) == (Role.CANDIDATE, 5, None)
    assert hear(bench, 0).code == Code.SUCCESS
    assert bench.state.role is Role.CANDIDATE, "a leader that steps down is not followed again"


@pytest.mark.spec("DL-X15", "CHA-07")
def test_leader_with_failed_disk_reports_that_it_steps_down() -> None:
    bench = fast_leader()
    bench.do(bench.node.disk_failed(bench.now_ms, "EIO"))
    assert [announced(bench, peer)[-1] for peer in ("n1", "n2")] == [0, 0]


@pytest.mark.spec("DL-X08", "CHA-07")
def test_leader_that_sees_a_higher_term_reports_that_it_steps_down() -> None:
    bench = fast_leader()
    bench.vote("n2", bench.state.term + 1)
    assert bench.state.role is Role.CANDIDATE
    assert announced(bench)[-1] == 0


def asked(bench: Bench, candidate: str = "n2", **changes: Any) -> VoteResult | None:
    """The answer to a candidate of the next term that is not a transferee, or as given in the changes."""
    known: dict[str, Any] = {
        "leader_id": candidate,
        "local_id": candidate,
        "term": bench.state.term + 1,
        "transfer": False,
    }
    answer = bench.ask(VoteRequest(**{**known, **changes}))
    assert isinstance(answer, VoteResponse)
    return answer.vote_result


@pytest.mark.spec("DL-X08", "SIM-08")
def test_follower_refuses_a_higher_term_until_its_leader_is_overdue() -> None:
    bench = bench_of()
    hear(bench, FAST_MS)
    bench.tick(3 * FAST_MS)
    assert asked(bench) is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert (bench.state.role, bench.state.leader_id) == (Role.FOLLOWER, "n1")
    bench.now_ms += 1
    assert asked(bench) is VoteResult.REJECT_TERM_NOT_READY


@pytest.mark.spec("DL-X08", "DL-L03", "DL-E18")
@pytest.mark.parametrize(
    ("interval_ms", "changes"),
    [
        (FAST_MS, {"transfer": True}),  # the leader agreed
        (FAST_MS, {"transfer": None}),  # a Java candidate
        (FAST_MS, {"candidate": "n1"}),  # the leader itself, which leads no longer
        (None, {}),  # the leader is Java
    ],
)
def test_follower_adopts_a_higher_term_where_dledgers_rules_hold(
    interval_ms: int | None, changes: dict[str, Any]
) -> None:
    bench = bench_of().follow("n1")
    hear(bench, interval_ms)
    assert asked(bench, **changes) is VoteResult.REJECT_TERM_NOT_READY
    assert bench.state.role is Role.CANDIDATE


@pytest.mark.spec("DL-X08")
def test_promise_to_a_leader_has_the_length_that_it_announced() -> None:
    """Also where this member's own timers are longer: a lease that was extended is shorter than three announced intervals."""
    bench = bench_of(fast=None)
    hear(bench, FAST_MS)
    bench.tick(3 * FAST_MS)
    assert asked(bench) is VoteResult.REJECT_ALREADY_HAS_LEADER
    bench.tick(1)
    assert bench.state.role is Role.FOLLOWER
    assert asked(bench) is VoteResult.REJECT_TERM_NOT_READY


@pytest.mark.spec("DL-X08", "CHA-07")
def test_heartbeat_that_a_report_has_overtaken_makes_no_follower() -> None:
    bench = bench_of()
    hear(bench, FAST_MS)
    hear(bench, 0)
    assert bench.state.role is Role.CANDIDATE
    assert hear(bench, FAST_MS).code == Code.SUCCESS
    assert (bench.state.role, bench.state.leader_id) == (Role.CANDIDATE, None)
    hear(bench, FAST_MS, "n2")
    assert (bench.state.role, bench.state.leader_id) == (Role.FOLLOWER, "n2")


@pytest.mark.spec("DL-X08", "DL-L03")
def test_candidate_says_whether_it_was_asked_to_lead() -> None:
    bench = bench_of(term=3).follow("n1")
    hear(bench, FAST_MS)
    bench.ask(TransferRequest(transfer_id="n1", transferee_id="n0", term=3, take_leadership_ledger_index=-1))
    bench.tick()
    assert [send.request.transfer for send in bench.sends("n2", VoteRequest)] == [True]  # type: ignore[union-attr]
    bench = bench_of()
    bench.tick()
    assert [send.request.transfer for send in bench.sends("n2", VoteRequest)] == [False]  # type: ignore[union-attr]
    bench = bench_of(RaftProfile.STANDARD)
    bench.tick()
    vote = bench.sends("n2", VoteRequest)[-1].request
    assert b"saturnmq" not in encode(vote)  # as DLedger's


@pytest.mark.spec("CHA-07")
def test_java_reads_and_writes_heartbeats_without_the_announced_interval() -> None:
    request = BEAT(group="g", term=1, leader_id="n0", local_id="n0", remote_id="n1", interval_ms=FAST_MS)
    assert b'"saturnmqHeartBeatMs":500' in encode(request)
    assert decode_request(DLedgerCode.HEART_BEAT, encode(request)) == request
    assert b"saturnmq" not in encode(BEAT(term=1))
    response = HeartBeatResponse(interval_ms=FAST_MS)
    assert decode_response(DLedgerCode.HEART_BEAT, encode(response)) == response
    assert b"saturnmq" not in encode(HeartBeatResponse())


@pytest.mark.spec("CHA-07")
def test_auto_is_the_default_and_gives_way_to_timers_that_do_not_fit() -> None:
    assert RaftSettings().profile is RaftProfile.AUTO
    core = settings_of(RaftProfile.AUTO)
    assert core.fast is not None
    assert (core.heartbeat_interval_ms, core.fast.heartbeat_interval_ms) == (STANDARD_MS, FAST_MS)
    assert settings_of(RaftProfile.AUTO, lease_ms=4000).fast is None
    assert RaftSettings(lease_ms=4000).auto_is_standard and not RaftSettings().auto_is_standard
    assert settings_of(RaftProfile.FAST).fast is None
    assert not settings_of(RaftProfile.STANDARD).announces_interval
