"""Leadership transfer and the preferred leader.

Requirements: DL-L01..DL-L09, DL-X18, DL-X22.
"""

from __future__ import annotations

from typing import Any

import pytest
from raftbench import Bench, entries

from saturnmq.raft.core.actions import PersistTerm, Role
from saturnmq.raft.core.messages import (
    Code,
    HeartBeatRequest,
    HeartBeatResponse,
    PushKind,
    PushRequest,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResult,
)

LOG = entries(0, 1, 2)


def leader(**more: Any) -> Bench:
    bench = Bench(log=LOG, term=2, **more).lead()
    bench.appending("n1", 2)
    bench.forget()
    return bench


def confirmed_leader() -> Bench:
    """A leader whose first heartbeats were answered, so that it holds a lease."""
    bench = Bench(log=LOG, term=2).lead()
    bench.tick(1)
    for send in bench.sends(kind=HeartBeatRequest):
        bench.answer(send, HeartBeatResponse(code=Code.SUCCESS))
    bench.appending("n1", 2)
    bench.forget()
    return bench


def give(bench: Bench, to: str | None = "n1", term: int = 2, by: str = "n0") -> Any:
    return bench.ask(TransferRequest(transfer_id=by, transferee_id=to, term=term))


@pytest.mark.spec("DL-X08")
def test_lease_is_held_until_the_millisecond_of_its_end() -> None:
    bench = confirmed_leader()
    end_ms = bench.node._heartbeats.lease_ends_ms
    assert bench.node.holds_lease(end_ms - 1) and not bench.node.holds_lease(end_ms)


@pytest.mark.spec("DL-L01", "DL-L07")
def test_transfer_checks_in_order() -> None:
    bench = leader(transfer_lag_max=2)
    assert give(bench, "n9").code == Code.UNKNOWN_MEMBER
    assert give(bench, "n9", term=1).code == Code.UNKNOWN_MEMBER
    assert give(bench, None).code == Code.UNKNOWN_MEMBER
    assert give(bench, term=1).code == Code.INCONSISTENT_TERM
    assert give(bench, "n2").code == Code.FALL_BEHIND_TOO_MUCH  # the progress of n2 is unknown
    assert give(bench, "n1", by="n2").code == Code.UNEXPECTED_ARGUMENT
    follower = Bench(log=LOG, term=2).follow("n1")
    assert give(follower, "n1", term=1).code == Code.INCONSISTENT_TERM
    assert give(follower, "n1").code == Code.NOT_LEADER
    for lag, expected in ((2, Code.FALL_BEHIND_TOO_MUCH), (1, None)):
        bench = leader(transfer_lag_max=2)
        for _ in range(lag):
            bench.propose(b"x")
        answer = give(bench)
        assert (answer and answer.code) == expected


@pytest.mark.spec("DL-L02", "DL-L03", "DL-L06", "DL-X22", "DL-M08")
def test_transfer_stops_appends_and_waits_for_transferee_to_catch_up() -> None:
    bench = leader()
    first = bench.propose(b"a")
    assert give(bench) is None
    token = bench.last_token
    assert bench.sends("n1", TransferRequest) == []  # n1 is missing one entry
    assert bench.reply(bench.propose(b"b")).code == Code.LEADER_TRANSFERRING
    assert give(bench).code == Code.LEADER_TRANSFERRING
    push = [send for send in bench.sends("n1", PushRequest) if send.request.entries][-1]  # type: ignore[union-attr]
    bench.push_answer(push, Code.SUCCESS, 0, 3)
    assert bench.reply(first).code == Code.SUCCESS
    bench.tick()
    command = bench.sends("n1", TransferRequest)[0]
    assert command.timeout_ms == 3000
    assert command.request == TransferRequest(
        group="g", term=2, local_id="n0", remote_id="n1", leader_id="n0", transfer_id="n0", transferee_id="n1",
        take_leadership_ledger_index=3,
    )  # fmt: skip
    bench.answer(command, TransferResponse(code=Code.SUCCESS))
    assert bench.reply(token).code == Code.SUCCESS
    assert bench.state.transferee is None  # the term did not change


@pytest.mark.spec("DL-L03", "DL-X22")
def test_transferee_that_lacks_committed_entries_is_not_asked_yet() -> None:
    bench = Bench(log=LOG, term=2).lead().appending("n1", 2).appending("n2", 2)
    bench.forget()
    first = bench.propose(b"a")
    push = {send.peer: send for send in bench.sends(kind=PushRequest) if send.request.entries}  # type: ignore[union-attr]
    bench.push_answer(push["n2"], Code.SUCCESS, 0, 3)
    assert bench.reply(first).code == Code.SUCCESS, "no append is pending"
    give(bench)
    bench.tick()
    assert bench.sends("n1", TransferRequest) == []
    bench.push_answer(push["n1"], Code.SUCCESS, 0, 3)
    bench.tick()
    assert len(bench.sends("n1", TransferRequest)) == 1


@pytest.mark.spec("DL-L01", "DL-L02")
def test_transfer_to_a_lagging_member_is_refused_as_such_while_another_runs() -> None:
    bench = leader(transfer_lag_max=2)
    assert give(bench, "n1") is None
    assert give(bench, "n2").code == Code.FALL_BEHIND_TOO_MUCH
    assert give(bench, "n1").code == Code.LEADER_TRANSFERRING


@pytest.mark.spec("DL-L06", "DL-X22")
def test_refused_transfer_accepts_appends_again() -> None:
    bench = confirmed_leader()
    give(bench)
    token = bench.last_token
    bench.answer(bench.sends("n1", TransferRequest)[0], TransferResponse(code=418))
    assert bench.reply(token).code == 418
    assert bench.node.holds_lease(bench.now_ms)
    assert bench.reply(bench.propose(b"x")) is None
    bench = leader()
    bench.propose(b"a")
    give(bench)
    token = bench.last_token
    bench.tick(1000)  # the entry never reaches n1
    assert bench.reply(token).code == Code.FALL_BEHIND_TOO_MUCH
    assert bench.reply(bench.propose(b"x")) is None


@pytest.mark.spec("DL-L06", "DL-X08")
def test_unanswered_transfer_ends_the_leadership_because_the_transferee_may_lead() -> None:
    bench = leader()
    give(bench)
    token = bench.last_token
    bench.answer(bench.sends("n1", TransferRequest)[0], None)
    assert bench.reply(token).code == Code.NETWORK_ERROR
    assert bench.state.role is Role.CANDIDATE and bench.state.transferee is None
    assert not bench.node.holds_lease(bench.now_ms)


def test_transfer_repeated_on_its_way_ends_the_leadership_because_the_transferee_may_lead() -> None:
    bench = leader()
    give(bench)
    repeated = TransferResponse(code=Code.REPEATED_REQUEST, term=bench.state.term)
    bench.answer(bench.sends("n1", TransferRequest)[0], repeated)
    assert bench.state.role is Role.CANDIDATE
    assert not bench.node.holds_lease(bench.now_ms)


@pytest.mark.parametrize("code", [Code.INCONSISTENT_LEADER, Code.EXPIRED_TERM, Code.TAKE_LEADERSHIP_FAILED])
def test_transfer_refused_in_a_higher_term_ends_the_leadership(code: Code) -> None:
    """The transferee led the next term already, or another member may lead the higher one."""
    bench = leader()
    give(bench)
    bench.answer(bench.sends("n1", TransferRequest)[0], TransferResponse(code=code, term=bench.state.term + 1))
    assert bench.state.role is Role.CANDIDATE
    assert not bench.node.holds_lease(bench.now_ms)


def test_transferee_that_gave_up_asks_for_votes_as_any_other() -> None:
    bench = Bench(log=LOG, term=2, announces_interval=True).follow("n1")
    take(bench)
    token = bench.last_token
    assert bench.sends("n2", VoteRequest)[-1].request.transfer is True  # type: ignore[union-attr]
    bench.tick(3000)
    assert bench.reply(token).code == Code.TAKE_LEADERSHIP_FAILED
    bench.forget()
    bench.tick(3000)
    assert bench.sends("n2", VoteRequest)[-1].request.transfer is False  # type: ignore[union-attr]


def test_transferee_answers_a_repeated_request_as_such_while_it_asks_for_votes() -> None:
    bench = Bench(log=LOG, term=2).follow("n1")
    assert take(bench) is None
    assert bench.state.role is Role.CANDIDATE
    assert take(bench).code == Code.REPEATED_REQUEST


@pytest.mark.spec("DL-L06")
def test_transfer_ends_when_leadership_is_lost() -> None:
    bench = leader()
    bench.propose(b"a")
    give(bench)
    token = bench.last_token
    bench.vote("n2", 8, end_index=9, end_term=2)
    assert bench.reply(token).code == Code.NOT_LEADER
    assert bench.state.transferee is None


def take(bench: Bench, index: int = 2, term: int = 2, leader_id: str = "n1") -> Any:
    request = TransferRequest(transfer_id=leader_id, transferee_id="n0", term=term, take_leadership_ledger_index=index)
    return bench.ask(request)


@pytest.mark.spec("DL-L04", "DL-L05")
def test_transferee_wins_next_term_and_then_answers() -> None:
    bench = Bench(log=LOG, term=2).follow("n1")
    assert take(bench) is None
    token = bench.last_token
    bench.tick()
    assert bench.of(PersistTerm) == [PersistTerm(3, None), PersistTerm(3, "n0")]
    assert bench.state.term_to_take == 3
    for send in bench.sends(kind=VoteRequest):  # at once: the former leader accepts nothing meanwhile
        bench.vote_answer(send, VoteResult.ACCEPT)
    bench.tick()
    assert (bench.state.role, bench.reply(token).code) == (Role.LEADER, Code.SUCCESS)


@pytest.mark.spec("DL-L04")
def test_transferee_refuses_other_leader_and_times_out_without_entries() -> None:
    bench = Bench(log=LOG, term=2).follow("n1").verified(*LOG)
    assert take(bench, leader_id="n2").code == Code.INCONSISTENT_LEADER
    assert take(bench, index=3) is None
    late = bench.last_token
    bench.tick(999)
    assert bench.reply(late) is None
    bench.tick(1)
    assert bench.reply(late).code == Code.TAKE_LEADERSHIP_FAILED
    assert take(bench, index=3) is None
    good = bench.last_token
    bench.push(PushKind.APPEND, *entries(2, first=3, pos=LOG[-1].end_pos))
    assert bench.state.role is Role.CANDIDATE
    assert bench.reply(good) is None


@pytest.mark.spec("DL-L05")
def test_transferee_failure_outcomes() -> None:
    wrong_term = Bench(log=LOG, term=2).follow("n1")
    assert take(wrong_term, term=1).code == Code.INCONSISTENT_TERM
    follower = Bench(log=LOG, term=2).follow("n1")
    take(follower)
    token = follower.last_token
    assert (
        follower.heartbeat("n1", 2).code == Code.EXPIRED_TERM
    )  # it is never a follower in a lower term than the one to take
    assert follower.reply(token) is None
    follower.heartbeat("n2", 3)
    follower.tick()
    assert follower.reply(token).code == Code.TAKE_LEADERSHIP_FAILED
    for role in Role:  # a follower in a lower term, and any role in a higher one
        for term, code in ((2, Code.TAKE_LEADERSHIP_FAILED), (4, Code.EXPIRED_TERM)):
            if term == 4 or role is Role.FOLLOWER:
                settled = Bench(log=LOG, term=2).follow("n1")
                take(settled)
                settled.state.role, settled.state.term = role, term
                settled.node._transfers.progress()
                settled.do(settled.node._leave())
                assert settled.reply(settled.last_token).code == code
    higher = Bench(log=LOG, term=2).follow("n1")
    take(higher)
    token = higher.last_token
    higher.tick()
    higher.vote("n2", 9, end_index=9, end_term=2)
    higher.tick()
    assert higher.reply(token).code == Code.EXPIRED_TERM


@pytest.mark.spec("DL-L08")
def test_transferee_requests_votes_at_once_and_votes_for_no_other() -> None:
    for preferred in (("n0",), ()):
        bench = Bench(log=LOG, term=2, preferred_leaders=preferred).follow("n1")
        take(bench)
        bench.tick()
        assert len(bench.sends(kind=VoteRequest)) == 2
        assert bench.vote("n2", 3, end_index=2, end_term=2).vote_result is VoteResult.REJECT_ALREADY_VOTED
        for send in bench.sends(kind=VoteRequest):
            bench.vote_answer(send, VoteResult.REJECT_TERM_NOT_READY)  # they adopt the term at their next tick
        bench.forget()
        bench.tick()
        assert len(bench.sends(kind=VoteRequest)) == 2


@pytest.mark.spec("DL-L03", "DL-X22", "DL-X09")
def test_leadership_is_handed_over_after_pending_appends_are_answered() -> None:
    """Otherwise the role change would fail them although the transferee has and commits them."""
    bench = Bench(log=LOG, term=2, members=5).lead()
    bench.appending("n1", 2)
    bench.appending("n2", 2)
    first = bench.propose(b"a")
    give(bench)
    bench.tick()
    for peer in ("n1", "n2"):  # with the first of them n1 has the whole log, with the second a quorum has
        assert bench.sends("n1", TransferRequest) == [] and bench.reply(first) is None
        push = [send for send in bench.sends(peer, PushRequest) if send.request.entries][-1]  # type: ignore[union-attr]
        bench.push_answer(push, Code.SUCCESS, 0, 3)
        bench.tick()
    assert bench.reply(first).code == Code.SUCCESS
    assert len(bench.sends("n1", TransferRequest)) == 1


@pytest.mark.spec("DL-X08")
def test_votes_give_no_lease_before_a_quorum_answered_heartbeats() -> None:
    """A voter that has had no heartbeat may elect another leader at once, while this one is cut off."""
    bench = Bench(log=LOG, term=2).lead()
    assert not bench.node.holds_lease(bench.now_ms)
    bench.tick(1)
    bench.answer(bench.sends("n1", HeartBeatRequest)[0], HeartBeatResponse(code=Code.TERM_NOT_READY))
    assert not bench.node.holds_lease(bench.now_ms)
    bench.answer(bench.sends("n2", HeartBeatRequest)[0], HeartBeatResponse(code=Code.SUCCESS))
    assert bench.node.holds_lease(bench.now_ms)


@pytest.mark.spec("DL-X08", "DL-L06")
def test_lease_ends_with_hand_over_and_returns_with_refusal() -> None:
    """The transferee may be elected and serve while this leader still counts on its heartbeats."""
    for answer, leads in (
        (TransferResponse(code=418), True),
        (None, False),
        (TransferResponse(code=Code.SUCCESS), False),
    ):
        bench = confirmed_leader()
        assert bench.node.holds_lease(bench.now_ms) and not bench.node.handed_over
        give(bench)
        assert not bench.node.holds_lease(bench.now_ms) and bench.node.handed_over
        bench.answer(bench.sends("n1", TransferRequest)[0], answer)
        assert bench.node.holds_lease(bench.now_ms) is leads


@pytest.mark.spec("DL-L05", "DL-L06")
def test_leader_steps_down_when_transferee_reports_success() -> None:
    bench = leader()
    give(bench)
    bench.answer(bench.sends("n1", TransferRequest)[0], TransferResponse(code=Code.SUCCESS, term=3))
    assert bench.state.role is Role.CANDIDATE
    bench.tick()
    assert bench.state.term == 3


@pytest.mark.spec("DL-L09")
def test_leader_transfers_to_nearest_live_preferred_member() -> None:
    bench = leader(preferred_leaders=("n9", "n2", "n1"))
    bench.node._leader.peers["n2"].watermark = 1
    bench.tick(1000)
    assert bench.sends(kind=TransferRequest) == []  # no peer is known to be live
    for peer in ("n1", "n2"):
        bench.tick(1001)
        beat = bench.sends(peer, HeartBeatRequest)
        if beat:
            bench.answer(beat[-1], HeartBeatResponse())
    bench.tick(1000)
    assert [send.peer for send in bench.sends(kind=TransferRequest)] == ["n1"]
    assert bench.state.transferee == "n1"


@pytest.mark.spec("DL-L09")
@pytest.mark.parametrize("preferred", [("n2", "n1"), ("n1", "n2")])
@pytest.mark.parametrize("nearest", ["n1", "n2"])
def test_preferred_member_with_the_smallest_lag_is_asked(preferred: tuple[str, ...], nearest: str) -> None:
    bench = leader(preferred_leaders=preferred)
    bench.node._heartbeats.live = {"n1": True, "n2": True}
    for peer in preferred:
        bench.node._leader.peers[peer].watermark = bench.state.log.end - (peer != nearest)
    bench.tick(1000)
    assert bench.state.transferee == nearest


@pytest.mark.spec("DL-L09")
def test_no_transfer_from_preferred_leader_or_to_lagging_peer() -> None:
    for bench in (
        leader(preferred_leaders=("n0", "n1")),
        leader(preferred_leaders=("n2",), transfer_lag_max=2),
        leader(),
    ):
        bench.node._heartbeats.live = {"n1": True, "n2": True}
        for _ in range(3):
            bench.tick(1000)
        assert bench.sends(kind=TransferRequest) == []
    bench = leader(preferred_leaders=("n1",))
    bench.node._heartbeats.live = {"n1": True}
    first_tick_ms = Bench().now_ms + 10
    bench.tick(first_tick_ms + 999 - bench.now_ms)
    assert bench.sends(kind=TransferRequest) == []
    bench.tick(1)
    assert [send.peer for send in bench.sends(kind=TransferRequest)] == ["n1"], "first after 1 s"


@pytest.mark.spec("DL-L09")
@pytest.mark.parametrize(("lag", "begins"), [(3, False), (2, False), (1, True), (0, True)])
def test_preferred_member_behind_by_the_limit_gets_no_transfer(lag: int, begins: bool) -> None:
    bench = leader(preferred_leaders=("n2",), transfer_lag_max=2)
    bench.node._heartbeats.live = {"n2": True}
    bench.node._leader.peers["n2"].watermark = bench.state.log.end - lag
    bench.tick(1000)
    assert bench.state.transferee == ("n2" if begins else None)


@pytest.mark.spec("DL-L09")
def test_preferred_ids_that_are_no_peers_are_dropped() -> None:
    bench = leader(preferred_leaders=("n9",))
    bench.node._heartbeats.live = {"n9": True}
    bench.tick(1000)
    assert (bench.state.transferee, bench.sends(kind=TransferRequest)) == (None, [])


@pytest.mark.spec("DL-L09")
def test_running_transfer_is_not_replaced_by_preference() -> None:
    more: dict[str, Any] = {"lease_ms": 1_000_000, "heartbeat_interval_ms": 900_000}
    bench = Bench(log=LOG, term=2, preferred_leaders=("n1",), **more).lead().appending("n1", 2)
    bench.push_answer(bench.sends("n2", PushRequest)[-1], Code.SUCCESS, 0, 2)
    bench.node._heartbeats.live = {"n1": True, "n2": True}
    assert give(bench, "n2") is None
    for _ in range(3):
        bench.tick(1000)
    assert [send.peer for send in bench.sends(kind=TransferRequest)] == ["n2"]
    assert bench.state.transferee == "n2"


@pytest.mark.spec("DL-X18", "DL-L04")
def test_preferred_member_with_outdated_state_refuses_transfer() -> None:
    bench = Bench(log=LOG, term=2, preferred_leaders=("n0", "n2")).follow("n1")
    bench.state.outdated = True
    for _ in range(2):
        assert take(bench).code == Code.TAKE_LEADERSHIP_FAILED
    assert (bench.state.role, bench.state.term, len(bench.alarms)) == (Role.FOLLOWER, 2, 1)
    bench.state.outdated = False
    assert take(bench) is None and bench.state.role is Role.CANDIDATE
    for wanted, leader_id in (((), "n1"), (("n1",), "n1"), (("n0", "n2"), "n2")):  # not by preference
        other = Bench(log=LOG, term=2, preferred_leaders=wanted).follow(leader_id)
        other.state.outdated = True
        assert take(other, leader_id=leader_id) is None and other.state.role is Role.CANDIDATE


@pytest.mark.spec("DL-X18", "DL-X15", "DL-L09")
@pytest.mark.parametrize("refusal", [Code.TAKE_LEADERSHIP_FAILED, Code.DISK_ERROR])
def test_transfer_to_refusing_preferred_member_backs_off(refusal: Code) -> None:
    bench = leader(preferred_leaders=("n1",), lease_ms=1_000_000, heartbeat_interval_ms=900_000)
    bench.node._heartbeats.live = {"n1": True}

    def asked(seconds: int) -> int:
        bench.forget()
        for _ in range(seconds):
            bench.tick(1000)
            for send in bench.sends("n1", TransferRequest):
                if send.call in bench.state.calls:
                    bench.answer(send, TransferResponse(code=refusal))
            assert bench.reply(bench.propose(b"x")) is None  # appends are accepted
            bench.node._leader.peers["n1"].watermark = bench.state.log.end
        return len(bench.sends("n1", TransferRequest))

    assert asked(1 + 2 + 4 + 8 + 16) == 5
    assert asked(64) == 4
    bench.tick(0)  # the last append is committed
    give(bench)  # an explicit request is not delayed by the back-off
    assert len(bench.sends("n1", TransferRequest)) == 5


@pytest.mark.spec("DL-E22", "DL-L06")
def test_leader_reelected_after_transfer_accepts_appends() -> None:
    bench = leader()
    give(bench)
    assert len(bench.sends("n1", TransferRequest)) == 1 and bench.state.transferee == "n1"
    bench.vote("n2", 8, end_index=9, end_term=2)
    assert (bench.state.role, bench.state.transferee) == (Role.CANDIDATE, None)
    lead_again(bench)
    assert bench.reply(bench.propose(b"x")) is None  # accepted, although the transfer never got a response


@pytest.mark.spec("DL-L06", "DL-L09")
def test_transfer_response_of_older_term_is_ignored() -> None:
    bench = leader(preferred_leaders=("n1",), lease_ms=1_000_000, heartbeat_interval_ms=900_000)
    bench.node._heartbeats.live = {"n1": True}
    bench.tick(1000)
    bench.tick(1000)
    old = bench.sends("n1", TransferRequest)[-1]
    bench.vote("n2", 8, end_index=9, end_term=2)
    lead_again(bench)
    bench.appending("n1", 2)
    bench.tick(1000)
    bench.state.transferee = "n2"
    bench.answer(old, TransferResponse(code=Code.TAKE_LEADERSHIP_FAILED))
    assert bench.state.transferee == "n2"
    bench.state.transferee = None
    bench.forget()
    bench.node._heartbeats.live = {"n1": True}
    bench.tick(1000)
    assert len(bench.sends("n1", TransferRequest)) == 1  # not delayed by the earlier refusal


def lead_again(bench: Bench) -> None:
    """Win the election for a term seen in a request."""
    bench.tick()
    bench.tick(1000)
    bench.lead()


@pytest.mark.spec("DL-L04", "DL-X15", "DUR-10")
def test_transferee_accepts_one_valid_request_at_a_time() -> None:
    bench = Bench(log=LOG, term=2).follow("n1").verified(*LOG)
    assert take(bench, index=3) is None
    assert take(bench, index=3).code == Code.REPEATED_REQUEST
    recovering = Bench(log=LOG, term=2, incomplete=True).follow("n1")
    failed = Bench(log=LOG, term=2)
    failed.do(failed.node.disk_failed(failed.now_ms, "gone"))
    failed.follow("n1")
    for unfit in (recovering, failed):
        assert take(unfit).code == Code.DISK_ERROR
        assert (unfit.state.role, unfit.state.term) == (Role.FOLLOWER, 2)
