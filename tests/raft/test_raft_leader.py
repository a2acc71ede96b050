"""The leader: appends, pushes to peers, commit by quorum.

Requirements: DL-A01..DL-A10, DL-P01..DL-P16, DL-Q01..DL-Q05, DL-X03, DL-X04, DL-X09, DL-X12..DL-X14.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftbench import Bench, entries

from harness.raftsim.group import Cluster
from saturnmq.raft.core.actions import AppendEntries, Role
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    AppendRequest,
    Code,
    GetRequest,
    PushKind,
    PushRequest,
    PushResponse,
    VoteRequest,
)
from saturnmq.raft.core.progress import PEER_TRANSITIONS, PeerProgress, PeerState, ProgressEvent, Search
from saturnmq.raft.core.settings import CoreSettings

OLD = entries(0, 0, 1, 1)


def kinds(bench: Bench, peer: str = "n1") -> list[PushKind | None]:
    return [send.request.kind for send in bench.sends(peer, PushRequest) if isinstance(send.request, PushRequest)]


def pushed(bench: Bench, peer: str = "n1") -> list[list[int]]:
    """The indexes of each APPEND sent so far."""
    return [
        [entry.index for entry in send.request.entries]
        for send in bench.sends(peer, PushRequest)
        if isinstance(send.request, PushRequest) and send.request.kind is PushKind.APPEND
    ]


def last_append(bench: Bench, peer: str = "n1") -> Any:
    """The newest APPEND to a peer."""
    return [send for send in bench.sends(peer, PushRequest) if send.request.kind is PushKind.APPEND][-1]


def leader(**more: object) -> Bench:
    """A leader of term 2 with OLD in its log, both peers in APPEND."""
    bench = Bench(log=OLD, term=2, **more).lead()  # type: ignore[arg-type]
    for peer in ("n1", "n2"):
        bench.appending(peer, 3)
    bench.forget()
    return bench


def acked(bench: Bench, peer: str, code: Code = Code.SUCCESS) -> None:
    """Answer every outstanding append to a peer."""
    for send in bench.sends(peer, PushRequest):
        assert isinstance(send.request, PushRequest)
        if send.call in bench.state.calls and send.request.kind is PushKind.APPEND:
            bench.push_answer(send, code, 0, send.request.entries[-1].index, count=len(send.request.entries))


# settings


@pytest.mark.spec(
    "DL-H01", "DL-H03", "DL-E07", "DL-A01", "DL-A07", "DL-P07", "DL-P08", "DL-P10", "DL-P14", "DL-P15", "DL-L01", "DL-L04",
    "DL-L09", "DL-F02", "DL-M08",
)  # fmt: skip
def test_core_settings_default_to_dledger_values() -> None:
    known = CoreSettings()
    assert (known.heartbeat_interval_ms, known.heartbeat_leak_max, known.rpc_timeout_ms) == (2000, 3, 3000)
    assert (known.vote_interval_min_ms, known.vote_interval_max_ms) == (300, 1000)
    assert (known.take_vote_interval_min_ms, known.take_vote_interval_max_ms) == (30, 100)
    assert (known.pending_requests_max, known.append_wait_ms) == (10_000, 2500)
    assert (known.push_pending_max, known.commit_idle_ms, known.push_timeout_ms) == (1000, 1000, 1000)
    assert (known.push_throttle_bytes, known.push_throttle_entries, known.push_quota_bytes) == (
        300 << 20,
        1000,
        20 << 20,
    )
    assert (known.batch_push, known.batch_push_bytes, known.push_requests_max) == (False, 4096, 1024)
    assert (known.transfer_lag_max, known.transfer_wait_ms, known.preferred_check_ms) == (1000, 1000, 1000)


# append


@pytest.mark.spec("DL-A04", "DL-A03", "DL-Q03")
def test_append_writes_then_waits_for_quorum() -> None:
    bench = leader()
    token = bench.propose(b"a", b"bb")
    written = bench.of(AppendEntries)[0].entries
    assert [(e.index, e.term, e.pos, e.size, e.magic) for e in written] == [
        (4, 2, OLD[-1].end_pos, 49, 1),
        (5, 2, OLD[-1].end_pos + 49, 50, 1),
    ]
    assert bench.reply(token) is None
    first = next(send for send in bench.sends("n1", PushRequest) if send.request.kind is PushKind.APPEND)
    assert [entry.index for entry in first.request.entries] == [4]
    bench.push_answer(first, Code.SUCCESS, 0, 4)
    assert bench.commits == [4] and bench.reply(token) is None, "the reply waits for the last entry"
    acked(bench, "n1")
    done = bench.reply(token)
    assert (done.code, done.index, done.pos, done.positions) == (
        200,
        5,
        written[0].pos,
        (written[0].pos, written[1].pos),
    )
    assert bench.commits == [4, 5]


@pytest.mark.spec("DL-A01", "DL-A03")
def test_append_refusal_codes() -> None:
    candidate = Bench(term=2)
    assert candidate.reply(candidate.propose(b"x")).code == Code.NOT_LEADER
    bench = leader()
    assert bench.ask(AppendRequest(body=b"x"), remote_id="n1").code == Code.UNKNOWN_MEMBER
    assert bench.ask(AppendRequest(body=b"x"), group="h").code == Code.UNKNOWN_GROUP
    assert bench.reply(bench.propose()).code == Code.REQUEST_WITH_EMPTY_BODYS
    assert bench.ask(AppendRequest(body=b"")).code == Code.REQUEST_WITH_EMPTY_BODYS
    bench.state.transferee = "n1"
    assert bench.reply(bench.propose(b"x")).code == Code.LEADER_TRANSFERRING
    bench.state.transferee = None
    bench.do(bench.node.disk_full(bench.now_ms, True))
    assert bench.reply(bench.propose(b"x")).code == Code.DISK_FULL


@pytest.mark.spec("DL-A01")
def test_append_is_checked_in_dledgers_order() -> None:
    wrong = {"remote_id": "n1", "group": "h"}
    full = Bench(term=2, pending_requests_max=0).lead()
    full.propose(b"x")
    for bench in (Bench(term=2), full):  # no leader, or more waits than is allowed
        assert bench.ask(AppendRequest(body=b"x"), **wrong).code == Code.UNKNOWN_MEMBER
        assert bench.ask(AppendRequest(body=b"x"), group="h").code == Code.UNKNOWN_GROUP
        bench.state.transferee = "n1"
        code = Code.LEADER_TRANSFERRING if bench is full else Code.NOT_LEADER
        assert bench.ask(AppendRequest(body=b"x")).code == code
    full.state.transferee = None
    assert full.ask(AppendRequest(body=b"x")).code == Code.LEADER_PENDING_FULL


@pytest.mark.spec("DL-A01", "DL-A02")
def test_uncommitted_entries_are_bounded_including_timed_out_ones() -> None:
    bench = Bench(term=2, pending_requests_max=5, append_wait_ms=100).lead()
    tokens = [bench.propose(b"x") for _ in range(7)]
    assert [bench.reply(token) for token in tokens[:6]] == [None] * 6  # the check is strictly greater
    assert bench.reply(tokens[6]).code == Code.LEADER_PENDING_FULL
    bench.tick(200)
    assert {bench.reply(token).code for token in tokens[:6]} == {Code.WAIT_QUORUM_ACK_TIMEOUT}
    assert bench.reply(bench.propose(b"x")).code == Code.LEADER_PENDING_FULL


@pytest.mark.spec("DL-A06")
@pytest.mark.parametrize(("file_bytes", "body_bytes", "fits"), [
    (1 << 30, 4_194_304 - 48, True), (1 << 30, 4_194_305 - 48, False), (1024, 1024 - 8 - 48, True), (1024, 1024 - 7 - 48, False),
])  # fmt: skip
def test_append_entry_size_limit(file_bytes: int, body_bytes: int, fits: bool) -> None:
    bench = Bench(file_bytes=file_bytes).lead()
    token = bench.propose(bytes([1]) * body_bytes)
    answer = bench.reply(token)
    assert (answer is None) == fits
    assert fits or answer.code == Code.UNEXPECTED_ARGUMENT


@pytest.mark.spec("DL-A07")
def test_append_times_out_and_entry_may_commit_later() -> None:
    bench = leader()
    token = bench.propose(b"a")
    bench.tick(1000)
    later = bench.propose(b"b")
    bench.tick(1499)
    assert bench.reply(token) is None
    bench.tick(1)
    assert bench.reply(token).code == Code.WAIT_QUORUM_ACK_TIMEOUT and bench.reply(later) is None
    acked(bench, "n1")
    assert bench.commits[-1] == 5 and bench.reply(later).code == Code.SUCCESS


@pytest.mark.spec("DL-A08")
def test_single_member_commits_after_sync() -> None:
    bench = Bench(members=1, auto_sync=False)
    bench.tick()
    token = bench.propose(b"a")
    assert bench.reply(token) is None
    bench.do(bench.node.synced(bench.now_ms, bench.state.log.epoch, 0))
    assert bench.reply(token).code == Code.SUCCESS


@pytest.mark.spec("DL-A09", "DL-X09")
def test_proposals_fail_at_once_when_leadership_is_lost() -> None:
    bench = leader()
    tokens = [bench.propose(b"%d" % number) for number in range(5)]
    bench.vote("n1", 9, end_index=9, end_term=2)
    assert [bench.reply(token).code for token in tokens] == [Code.TERM_CHANGED] * 5


@pytest.mark.spec("DL-X09")
def test_append_with_index_beyond_31_bits_times_out() -> None:
    bench = Bench(log=entries(1, first=2**31 + 5), term=2, committed=2**31 + 5).lead()
    tokens = [bench.propose(b"x") for _ in range(3)]
    bench.tick(2500)
    assert [bench.reply(token).code for token in tokens] == [Code.WAIT_QUORUM_ACK_TIMEOUT] * 3


@pytest.mark.spec("DL-A10", "DL-X17")
def test_get_returns_only_committed_entries_on_leader() -> None:
    bench = leader()
    bench.propose(b"a")
    assert bench.ask(GetRequest(begin_index=4)).code == Code.INDEX_OUT_OF_RANGE
    acked(bench, "n1")
    assert bench.ask(GetRequest(begin_index=4)).entries[0].body == b"a"
    assert [len(bench.ask(GetRequest(begin_index=index)).entries) for index in range(5)] == [1] * 5
    bench.do(bench.node.trimmed(bench.now_ms, 2))
    assert bench.ask(GetRequest(begin_index=1)).code == Code.INDEX_LESS_THAN_LOCAL_BEGIN
    assert Bench(log=OLD, term=2).ask(GetRequest(begin_index=0)).code == Code.NOT_LEADER


# push


@pytest.mark.spec("DL-P01", "DL-P03")
def test_peer_states_follow_table_and_ignore_unknown_events() -> None:
    assert PEER_TRANSITIONS[PeerState.COMPARE, ProgressEvent.MATCHED] is PeerState.APPEND
    for state in PeerState:
        for event in ProgressEvent:
            progress = PeerProgress("n1", state)
            progress.pending[3] = object()  # type: ignore[assignment]
            progress.search = Search(-1, 9, 7)
            progress.on(event)
            expected = PEER_TRANSITIONS.get((state, event), state)
            assert progress.state is expected
            if (state, event) in PEER_TRANSITIONS and expected is PeerState.COMPARE:
                assert progress.pending == {}
            if (state, event) in PEER_TRANSITIONS:
                assert progress.search is None  # the next COMPARE starts at the end of the log
    progress = PeerProgress("n1")
    progress.append_from(7)
    progress.append_from(3)
    assert (progress.watermark, progress.next_index) == (7, 4)  # the watermark never decreases


@pytest.mark.spec("DL-P04", "DL-P03", "DL-P11")
def test_leader_compares_last_entry_first_then_appends() -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.tick()
    send = bench.sends("n1", PushRequest)[0]
    request = send.request
    assert isinstance(request, PushRequest)
    assert (request.kind, request.entries, request.commit_index, send.timeout_ms) == (
        PushKind.COMPARE,
        (OLD[3],),
        -1,
        3000,
    )
    bench.propose(b"a")
    assert pushed(bench) == []
    bench.push_answer(send, Code.SUCCESS, 0, 3)
    assert pushed(bench) == [[4]]
    assert bench.node._leader.peers["n1"].watermark == 3


@pytest.mark.spec("DL-P03")
@pytest.mark.parametrize("kind", [PushKind.COMPARE, PushKind.TRUNCATE])
def test_compare_or_truncate_success_commits_entries_at_once(kind: PushKind) -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.propose(b"a", b"b")
    assert kinds(bench) == [PushKind.COMPARE] and bench.commits == []
    if kind is PushKind.TRUNCATE:
        bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 9)
    assert kinds(bench)[-1] is kind
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 5)
    progress = bench.node._leader.peers["n1"]
    assert (progress.watermark, progress.next_index, bench.commits) == (5, 6, [5])


@pytest.mark.spec("DL-P11", "DL-M08")
def test_push_carries_committed_index() -> None:
    bench = Bench(log=OLD, term=2, committed=2).lead()
    bench.tick()
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, -1, -1)
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 0)
    acked(bench, "n1")
    bench.tick(1001)
    assert set(kinds(bench)) == set(PushKind)
    assert {(send.request.commit_index, send.timeout_ms) for send in bench.sends("n1", PushRequest)} == {(2, 3000)}


@pytest.mark.spec("DL-P02", "DL-Q05")
def test_new_term_starts_with_compare_and_ignores_old_responses() -> None:
    bench = leader()
    bench.propose(b"a")
    old = bench.sends("n1", PushRequest)[-1]
    bench.vote("n1", 5, end_index=9, end_term=2)
    bench.forget()
    bench.tick()
    assert bench.state.role is Role.CANDIDATE and bench.sends(kind=PushRequest) == []  # only a leader pushes
    bench.tick(300)
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, bench_accept())
    assert bench.state.role is Role.LEADER
    assert {progress.state for progress in bench.node._leader.peers.values()} == {PeerState.COMPARE}
    bench.push_answer(old, Code.SUCCESS, 0, 4)
    assert bench.node._leader.peers["n1"].watermark == -1
    bench.tick()
    compare = bench.sends("n1", PushRequest)[-1].request
    assert isinstance(compare, PushRequest)
    assert (compare.term, compare.entries[0].index) == (
        bench.state.term,
        bench.state.log.end,
    )  # from the end of the log


def bench_accept():  # type: ignore[no-untyped-def]
    from saturnmq.raft.core.messages import VoteResult

    return VoteResult.ACCEPT


@pytest.mark.spec("DL-P05")
def test_leader_with_empty_log_sends_nothing() -> None:
    bench = Bench(term=2).lead()
    for _ in range(5):
        bench.tick(500)
    assert bench.state.role is Role.LEADER and bench.sends(kind=PushRequest) == []
    assert {progress.state for progress in bench.node._leader.peers.values()} == {PeerState.COMPARE}
    bench.propose(b"first")
    assert kinds(bench) == [PushKind.COMPARE]


@pytest.mark.spec("DL-P04", "DL-P06", "DL-P01")
def test_compare_finds_common_entry_then_truncates_and_appends() -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.tick()
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, 0, 9)
    while kinds(bench)[-1] is PushKind.COMPARE:
        send = bench.sends("n1", PushRequest)[-1]
        assert isinstance(send.request, PushRequest)
        equal = send.request.entries[0].index <= 1
        bench.push_answer(send, Code.SUCCESS if equal else Code.INCONSISTENT_STATE, 0, 9)
    send = bench.sends("n1", PushRequest)[-1]
    assert isinstance(send.request, PushRequest)
    assert (send.request.kind, send.request.entries[0].index, send.timeout_ms) == (PushKind.TRUNCATE, 1, 3000)
    bench.push_answer(send, Code.SUCCESS, 0, 1)
    assert pushed(bench) == [[2], [3]]


@pytest.mark.spec("DL-P01", "DL-P04")
@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.NOT_FOLLOWER, Code.PUSH_REQUEST_IS_FULL, None])
def test_compare_error_pauses_and_restarts_compare(code: Code | None) -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.tick()
    send = bench.sends("n1", PushRequest)[-1]
    if code is None:
        bench.answer(send, None)
    else:
        bench.push_answer(send, code)
    bench.forget()
    bench.tick(499)
    assert bench.sends("n1", PushRequest) == []
    bench.tick(1)
    assert kinds(bench) == [PushKind.COMPARE]


@pytest.mark.spec("DL-P01", "DL-P04")
@pytest.mark.parametrize("code", [Code.INCONSISTENT_STATE, Code.NOT_FOLLOWER, None])
def test_truncate_error_pauses_and_restarts_compare(code: Code | None) -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.tick()
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, -1, -1)
    send = bench.sends("n1", PushRequest)[-1]
    assert kinds(bench)[-1] is PushKind.TRUNCATE
    bench.answer(send, None) if code is None else bench.push_answer(send, code, 0, 3)
    bench.forget()
    bench.tick(499)
    assert bench.sends("n1", PushRequest) == []
    bench.tick(1)
    assert kinds(bench) == [PushKind.COMPARE]


def plain_walk(mine: list[int], theirs: list[int], begin: int) -> int:
    """DLedger's linear search: the last common entry, else the leader's begin (docs/spec/04-dledger.md section 3.4)."""
    at = len(mine) - 1
    while True:
        if at >= len(theirs):
            at = len(theirs) - 1
            if at < begin:
                return begin
        elif mine[at] == theirs[at]:
            return at
        elif at - 1 < begin:
            return begin
        else:
            at -= 1


@pytest.mark.spec("DL-X13", "DL-P04")
@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_compare_binary_search_equals_linear_search(mine: int, same: int, extra: int, begin: int) -> None:
    """Logs that agree up to `same` and nowhere after it, as the log matching property guarantees."""
    same, begin = min(same, mine), min(begin, mine - 1)
    ours = list(range(mine))
    theirs = ours[:same] + [-1] * extra
    search = Search(-1, mine - 1, mine - 1)
    expected = plain_walk(ours, theirs, begin)
    steps = 0
    while True:
        steps += 1
        assert steps <= 10
        have = PushResponse(begin_index=0 if theirs else -1, end_index=len(theirs) - 1)
        if search.at < len(theirs) and ours[search.at] == theirs[search.at]:
            if search.at == len(theirs) - 1:
                found: int | None = search.at
                break
            found = search.matched(begin)
        else:
            found = search.missed(have, begin)
        if found is not None:
            break
    assert found == expected


@pytest.mark.spec("DL-P07", "DL-P09")
def test_pushes_are_pipelined_up_to_limit() -> None:
    bench = leader(push_pending_max=3)
    for _ in range(5):
        bench.propose(b"x")
    assert pushed(bench) == [[4], [5], [6]]
    bench.push_answer(bench.sends("n1", PushRequest)[1], Code.SUCCESS, 0, 5)
    assert pushed(bench)[3:] == [[7], [8]]  # 4 and 5 are below the watermark
    assert bench.node._leader.peers["n1"].watermark == 5


@pytest.mark.spec("DL-P08", "DL-P11")
def test_idle_peer_receives_committed_index() -> None:
    bench = leader()
    bench.propose(b"x")
    acked(bench, "n1")
    bench.tick(1000)
    assert PushKind.COMMIT not in kinds(bench)
    bench.tick(1)
    commit = bench.sends("n1", PushRequest)[-1].request
    assert isinstance(commit, PushRequest)
    assert (commit.kind, commit.commit_index, commit.entries) == (PushKind.COMMIT, 4, ())
    bench.forget()
    bench.tick(500)
    assert PushKind.COMMIT not in kinds(bench)


@pytest.mark.spec("DL-P08", "DL-P10", "DL-X12")
def test_only_next_needed_push_is_resent_after_timeout() -> None:
    bench = leader()
    for _ in range(3):
        bench.propose(b"x")
    bench.tick(1000)
    assert pushed(bench) == [[4], [5], [6]]
    bench.tick(1)
    assert pushed(bench)[3:] == [[4]]
    assert kinds(bench).count(PushKind.COMMIT) == 1  # in addition to the re-push


@pytest.mark.spec("DL-P12")
def test_append_responses_update_progress() -> None:
    bench = leader()
    for _ in range(3):
        bench.propose(b"x")
    sends = bench.sends("n1", PushRequest)
    bench.push_answer(sends[0], Code.REPEATED_PUSH)
    progress = bench.node._leader.peers["n1"]
    assert (progress.state, progress.watermark) == (PeerState.APPEND, 3)
    bench.push_answer(sends[1], Code.SUCCESS, 0, 5)
    assert progress.watermark == 5
    bench.push_answer(sends[2], Code.INCONSISTENT_STATE, 0, 5)
    assert progress.state is PeerState.COMPARE
    assert kinds(bench)[-1] is PushKind.COMPARE


@pytest.mark.spec("DL-P10", "DL-P12", "DL-F10")
def test_peer_repeating_repeated_push_is_compared() -> None:
    """A Java member restarted empty and could not append a push before the leader stopped waiting for its response."""
    bench = leader()
    bench.propose(b"x")
    progress = bench.node._leader.peers["n1"]
    for pushes in range(2, 6):
        assert progress.state is PeerState.APPEND
        bench.tick(1001)
        assert pushed(bench) == [[4]] * pushes
        bench.push_answer(last_append(bench), Code.REPEATED_PUSH)
    assert (progress.state, kinds(bench)[-1]) == (PeerState.COMPARE, PushKind.COMPARE)


@pytest.mark.spec("DL-P03", "DL-P10")
def test_peer_that_lost_its_log_is_refilled_with_retries() -> None:
    """What the peer held once counts for the quorum, but does not determine which entry it needs next."""
    bench = leader()
    for _ in range(3):
        bench.propose(b"x")
        acked(bench, "n1")
    progress = bench.node._leader.peers["n1"]
    bench.propose(b"x")
    acked(bench, "n1", Code.INCONSISTENT_STATE)
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, -1, -1)
    assert kinds(bench)[-1] is PushKind.TRUNCATE
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 0)
    assert (progress.watermark, progress.matched) == (6, 0)
    refused = [send for send in bench.sends("n1", PushRequest) if send.request.entries[0].index == 1][-1]
    bench.push_answer(refused, Code.PUSH_REQUEST_IS_FULL, 0, 0)
    bench.tick(1001)
    assert pushed(bench)[-1] == [1]
    for index in range(1, 8):
        send = [
            one
            for one in bench.sends("n1", PushRequest)
            if one.request.entries and one.request.entries[0].index == index
        ][-1]
        bench.push_answer(send, Code.SUCCESS, 0, index)
    assert (progress.watermark, progress.matched, progress.pending) == (7, 7, {})


@pytest.mark.spec("DL-P10", "DL-P12")
def test_slow_peer_making_progress_is_not_compared() -> None:
    bench = leader()
    progress = bench.node._leader.peers["n1"]
    for index in (4, 5):
        bench.propose(b"x")
        first = last_append(bench)
        for _ in range(2):
            bench.tick(1001)
            assert last_append(bench).request.entries[0].index == index
            bench.push_answer(last_append(bench), Code.REPEATED_PUSH)
        bench.push_answer(first, Code.SUCCESS, 0, index)
    assert (progress.state, progress.watermark) == (PeerState.APPEND, 5)


@pytest.mark.spec("DL-P13")
def test_push_of_deleted_entry_returns_to_compare() -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.tick()
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, 0, 0)
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 0)
    progress = bench.node._leader.peers["n1"]
    assert (progress.state, progress.next_index) == (PeerState.APPEND, 4)
    progress.next_index = 1
    bench.do(bench.node.trimmed(bench.now_ms, 3))
    bench.tick()
    bench.tick()
    assert progress.state is PeerState.COMPARE
    assert kinds(bench)[-1] is PushKind.COMPARE
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, 0, 0)
    last = bench.sends("n1", PushRequest)[-1].request
    assert isinstance(last, PushRequest)
    assert (last.kind, last.entries[0].index) == (PushKind.TRUNCATE, 3)


@pytest.mark.spec("DL-P14", "DL-X14")
def test_lagging_peer_is_throttled_to_byte_quota() -> None:
    for batch in (False, True):
        bench = Bench(
            log=entries(*[0] * 60, body=b"x" * 100), term=1, now_ms=5_000_000, push_throttle_bytes=1000,
            push_throttle_entries=20, push_quota_bytes=1000, push_error_pause_ms=1, batch_push=batch, batch_push_bytes=300,
        ).lead()  # fmt: skip
        bench.tick()
        bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, -1, -1)
        bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 0)
        first = [index for group in pushed(bench) for index in group]
        assert 7 <= len(first) <= 10
        bench.tick(10)
        assert [index for group in pushed(bench) for index in group] == first
        bench.tick(1000)
        assert len([index for group in pushed(bench) for index in group]) > len(first)


@pytest.mark.spec("DL-P14")
@pytest.mark.parametrize(
    ("lag_bytes", "lag_entries", "throttled"),
    [(59 * 149, 59, False), (1000, 59, False), (59 * 149, 20, False), (1000, 20, True)],
)
def test_peer_is_throttled_if_it_lags_by_entries_and_by_bytes(
    lag_bytes: int, lag_entries: int, throttled: bool
) -> None:
    bench = Bench(
        log=entries(*[0] * 60, body=b"x" * 101), term=1, now_ms=5_000_000, push_throttle_bytes=lag_bytes,
        push_throttle_entries=lag_entries, push_quota_bytes=1000, push_error_pause_ms=1,
    ).lead()  # fmt: skip
    bench.tick()
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, -1, -1)
    bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 0)
    sent = sum(len(group) for group in pushed(bench))
    assert (sent < 20) is throttled, sent


@pytest.mark.spec("DL-P15", "DL-P16")
def test_batch_push_is_bounded_by_bytes() -> None:
    bench = leader(batch_push=True, batch_push_bytes=100, push_pending_max=1)
    for _ in range(5):
        bench.propose(b"x" * 2)
    assert pushed(bench) == [[4]]
    send = bench.sends("n1", PushRequest)[-1]
    bench.push_answer(send, Code.SUCCESS, 0, 4)
    assert pushed(bench)[-1] == [5, 6]  # 50 bytes each: two reach 100
    send = bench.sends("n1", PushRequest)[-1]
    bench.tick(1001)
    assert pushed(bench)[-1] == [5, 6]  # re-push of the same range
    bench.push_answer(send, Code.SUCCESS, 0, 6, count=2)
    assert bench.node._leader.peers["n1"].watermark == 6
    send = bench.sends("n1", PushRequest)[-1]
    old_style = PushResponse(code=Code.SUCCESS, index=8, count=0, end_index=8)  # 0.2.x: the last index, no count
    bench.answer(send, old_style)
    assert bench.node._leader.peers["n1"].watermark == 8


@pytest.mark.parametrize(("index", "count"), [(50, 0), (4, 40), (2**31, 1)])
def test_peer_holds_no_entry_that_it_was_not_sent(index: int, count: int) -> None:
    """A response that claims more, by its index or its count, counts for the entries of its push."""
    bench = leader()
    for _ in range(3):
        bench.propose(b"x")
    bench.push_answer(bench.sends("n1", PushRequest)[0], Code.SUCCESS, 0, index, count=count)
    progress = bench.node._leader.peers["n1"]
    assert (progress.watermark, progress.matched, list(progress.pending)) == (4, 4, [5, 6])
    assert bench.node.committed == 4


@pytest.mark.spec("DL-X14", "DL-P15")
def test_auto_batch_push_only_to_peers_that_report_count() -> None:
    bench = Bench(log=OLD, term=2, batch_push_auto=True, batch_push_auto_bytes=100, push_pending_max=1).lead()
    bench.tick()
    for peer, count in (("n1", 1), ("n2", 0)):  # n2 is older than 0.2.6
        bench.push_answer(bench.sends(peer, PushRequest)[-1], Code.SUCCESS, 0, 3, count=count)
    bench.forget()
    bench.propose(b"x" * 2)
    bench.propose(b"x" * 2, b"y" * 2, b"z" * 2)
    for peer in ("n1", "n2"):
        bench.push_answer(bench.sends(peer, PushRequest)[-1], Code.SUCCESS, 0, 4)
    assert pushed(bench, "n1") == [[4], [5, 6]]  # 50 bytes each: two reach 100
    assert pushed(bench, "n2") == [[4], [5]]
    requests = [bench.sends(peer, PushRequest)[-1].request for peer in ("n1", "n2")]
    assert [isinstance(request, PushRequest) and request.batch for request in requests] == [True, False]


@pytest.mark.spec("DL-P08", "DL-P12")
def test_idle_peer_that_lost_its_log_is_detected_by_commit_response() -> None:
    bench = leader()
    bench.tick(1001)
    send = bench.sends("n1", PushRequest)[-1]
    assert kinds(bench)[-1] is PushKind.COMMIT
    bench.push_answer(send, Code.SUCCESS, -1, -1)
    assert kinds(bench)[-1] is PushKind.COMPARE


# quorum


@pytest.mark.spec("DL-X03", "DL-Q01")
def test_entries_of_older_term_are_not_committed_by_counting() -> None:
    bench = Bench(log=OLD, term=2).lead()
    bench.appending("n1", 3).appending("n2", 3)
    assert bench.commits == []  # on all three members, but of term 1
    bench.propose(b"a")
    acked(bench, "n2")
    assert bench.commits == [4]


@pytest.mark.spec("DL-X04")
def test_new_leader_appends_noop_only_with_uncommitted_entries() -> None:
    bench = Bench(log=OLD, term=2, noop=b"noop").lead()
    assert [entry.body for entry in bench.of(AppendEntries)[0].entries] == [b"noop"]
    assert bench.ledger.entries[-1].term == 2
    for known in (Bench(term=2, noop=b"noop"), Bench(log=OLD, term=2, noop=b"noop", committed=3)):
        known.lead()
        assert known.of(AppendEntries) == []


@pytest.mark.spec("DL-X04", "DL-S10", "DUR-15")
def test_leader_elected_on_full_disk_appends_noop_when_space_returns() -> None:
    def noops(bench: Bench) -> list[bytes]:
        return [entry.body for written in bench.of(AppendEntries) for entry in written.entries]

    def report(bench: Bench, full: bool) -> None:
        bench.do(bench.node.disk_full(bench.now_ms, full))

    bench = Bench(log=OLD, term=2, noop=b"noop")
    report(bench, True)
    bench.lead().appending("n1", 3)
    assert noops(bench) == [] and bench.commits == []
    report(bench, False)
    assert noops(bench) == [b"noop"] and pushed(bench) == [[4]]
    acked(bench, "n1")
    assert bench.commits == [4]
    bench.propose(b"under way")
    for full in (True, False):
        report(bench, full)
    assert noops(bench) == [b"noop", b"under way"]  # an entry of this term commits those before it, so no second no-op
    for other in (Bench(log=OLD, term=2, noop=b"noop").follow("n1"), Bench(log=OLD, term=2).lead()):
        for full in (True, False):
            report(other, full)
        assert noops(other) == []
    nothing_open = Bench(log=OLD, term=2, noop=b"noop", committed=3).lead()
    for full in (True, False):
        report(nothing_open, full)
    assert noops(nothing_open) == []


@pytest.mark.spec("DL-Q01", "DL-Q05", "DL-X02")
def test_own_watermark_is_the_synced_index() -> None:
    bench = leader(auto_sync=False)
    token = bench.propose(b"a")
    assert bench.node._leader.watermarks() == {"n0": 3, "n1": 3, "n2": 3}
    acked(bench, "n1")
    assert bench.commits == []
    bench.do(bench.node.synced(bench.now_ms, bench.state.log.epoch, 4))
    assert bench.commits == [4]
    assert bench.reply(token).code == Code.SUCCESS
    bench.vote("n1", 9, end_index=9, end_term=2)
    assert bench.node._leader.peers == {}


@pytest.mark.spec("DL-Q02")
def test_committed_index_is_clamped_and_never_decreases() -> None:
    bench = Bench(log=OLD, term=2, committed=2)
    state = bench.state
    for index, expected in ((-1, 2), (1, 2), (2, 2), (3, 3), (99, 3)):
        state.commit(index)
        assert state.committed == expected
    assert [action.end_pos for action in state.out] == [OLD[3].end_pos]
    assert Bench(log=OLD, term=2, committed=50).state.committed == 3  # a checkpoint ahead of the log
    empty, trimmed = Bench(term=2).state, Bench(log=OLD[2:], term=2).state
    for index in (0, 1):
        empty.commit(index)
        trimmed.commit(index)  # deleted by retention
    assert (empty.committed, trimmed.committed) == (-1, -1)


@pytest.mark.spec("DL-Q03", "DL-Q04")
def test_every_proposal_completes_once_and_in_order() -> None:
    """In whatever order responses arrive, every proposal completes, so no sweep of leaked ones is needed."""
    for seed in range(30):
        rng = random.Random(seed)
        bench = leader()
        tokens = [bench.propose(b"%d" % n) for n in range(20)]
        sends = [send for peer in ("n1", "n2") for send in bench.sends(peer, PushRequest)]
        rng.shuffle(sends)
        for send in sends:
            assert isinstance(send.request, PushRequest)
            if send.request.kind is PushKind.APPEND:
                bench.push_answer(send, Code.SUCCESS, 0, send.request.entries[-1].index)
        assert [bench.reply(token).index for token in tokens] == list(range(4, 24))
        assert not bench.node._leader.proposals
        assert bench.commits == sorted(set(bench.commits))


@pytest.mark.spec("DL-P10", "DL-F10", "DL-X12")
def test_all_entries_commit_with_every_third_push_lost() -> None:
    """docs/spec/04-dledger.md section 7, row 20. While every third push is lost, a lost one costs its timeout and a COMPARE."""
    for seed in range(10):
        cluster = Cluster(seed)
        cluster.start()
        cluster.events.run_until(15_000)
        cluster.drop = lambda request: isinstance(request, PushRequest) and cluster.rng.random() < 0.33  # noqa: B023
        for _ in range(30):
            leading = cluster.leader
            if leading is not None:
                cluster.propose(leading)
            cluster.events.run_until(cluster.events.now_ms + 1000)
        end_ms = cluster.events.now_ms + 300_000
        while min(member.committed for member in cluster.members.values()) < 29 and cluster.events.now_ms < end_ms:
            cluster.events.run_until(cluster.events.now_ms + 1000)
        assert cluster.seen["append 200"] + cluster.seen["append 502"] == 30, seed  # a proposal may have timed out
        assert [member.committed for member in cluster.members.values()] == [29, 29, 29], seed


@pytest.mark.spec("DL-X03", "DL-X04")
def test_raft_figure_8_old_term_entry_commits_only_with_new_one() -> None:
    """docs/spec/04-dledger.md section 7, row 21.

    n0 leads term 4 with an entry of term 2 on a majority; a rival of term 3 may still replace that entry.
    """
    bench = Bench(log=entries(1, 2), term=4, members=5, noop=b"noop").lead()
    bench.tick()
    for peer in ("n1", "n2"):
        send = bench.sends(peer, PushRequest)[-1]
        bench.push_answer(send, Code.INCONSISTENT_STATE, 0, 0)
        bench.push_answer(bench.sends(peer, PushRequest)[-1], Code.SUCCESS, 0, 0)
        first = [s for s in bench.sends(peer, PushRequest) if s.request.entries and s.request.entries[0].index == 1][-1]
        bench.push_answer(first, Code.SUCCESS, 0, 1)
    assert bench.commits == []
    acked(bench, "n1")
    acked(bench, "n2")
    assert bench.commits == [2]


@pytest.mark.spec("DL-A04")
def test_entry_never_spans_two_files() -> None:
    bench = Bench(file_bytes=1024, log=[Entry(0, 0, 0, b"x" * 800)], term=1).lead()
    bench.propose(b"y" * 200)
    assert bench.ledger.entries[-1].pos == 1024


@pytest.mark.spec("DL-P12", "DL-P01")
def test_peer_that_keeps_refusing_is_compared_with_pauses() -> None:
    bench = leader()
    bench.propose(b"x")

    def compare() -> None:
        bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.INCONSISTENT_STATE, 0, 3)
        bench.push_answer(bench.sends("n1", PushRequest)[-1], Code.SUCCESS, 0, 3)

    acked(bench, "n1", Code.INCONSISTENT_STATE)
    assert kinds(bench)[-1] is PushKind.COMPARE  # the first COMPARE is sent at once
    compare()
    assert pushed(bench)[-1] == [4]
    acked(bench, "n1", Code.INCONSISTENT_STATE)
    bench.tick(499)
    assert kinds(bench)[-1] is PushKind.APPEND
    bench.tick(1)
    assert kinds(bench)[-1] is PushKind.COMPARE
    compare()
    acked(bench, "n1")
    assert bench.commits == [4]


@pytest.mark.spec("DL-P07")
def test_in_flight_bytes_to_peer_are_bounded() -> None:
    bench = leader()
    for _ in range(20):
        bench.propose(b"x" * 4_000_000)
    assert len(pushed(bench)) == 8
    bench.push_answer(bench.sends("n1", PushRequest)[0], Code.SUCCESS, 0, 4)
    assert len(pushed(bench)) == 9


@pytest.mark.spec("DL-X08")
def test_paused_leader_refuses_append_before_first_tick() -> None:
    bench = leader()
    bench.now_ms += 60_000
    assert bench.reply(bench.propose(b"x")).code == Code.NOT_LEADER
    assert bench.state.role is Role.CANDIDATE
    assert leader_is_silent(leader())


def leader_is_silent(bench: Bench) -> bool:
    bench.now_ms += 60_000
    return bool(bench.ask(GetRequest(begin_index=0)).code == Code.NOT_LEADER)


@pytest.mark.spec("DL-P04", "DL-P13")
@pytest.mark.parametrize(
    ("begin", "end"),
    [(0, 3), (-1, -1), (0, 4), (11, 20), (30, 40)],  # ends before this log begins; begins after its end
)
def test_logs_without_overlap_are_truncated_to_leader_begin(begin: int, end: int) -> None:
    search = Search(-1, 10, 10)
    answer = PushResponse(code=Code.INCONSISTENT_STATE, begin_index=begin, end_index=end)
    assert search.missed(answer, 5) == 5
    touching = Search(-1, 10, 10)  # one index in common: compare it
    assert touching.missed(PushResponse(code=Code.INCONSISTENT_STATE, begin_index=0, end_index=5), 5) is None
    assert touching.at == 5
    moved = Search(8, 10, 9)  # the matched entry was deleted on the peer since
    assert moved.missed(PushResponse(code=Code.INCONSISTENT_STATE, begin_index=10, end_index=20), 5) == 5
