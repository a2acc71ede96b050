"""The follower: APPEND, COMPARE, TRUNCATE and COMMIT pushes.

Requirements: DL-F01..DL-F11, DL-Q02, DL-X02, DL-X10..DL-X12.
"""

from __future__ import annotations

import dataclasses

import pytest
from raftbench import Bench, entries

from saturnmq.raft.core.actions import AppendEntries, CutLog, SyncLog
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import Code, MetadataRequest, PushKind
from saturnmq.raft.wire.codec import encode

APPEND, COMMIT, COMPARE, TRUNCATE = PushKind.APPEND, PushKind.COMMIT, PushKind.COMPARE, PushKind.TRUNCATE
LOG = entries(1, 1, 1, 2, 2, 2, 2)


def follower(count: int, term: int = 2, **more: object) -> Bench:
    """A follower of n1 whose first `count` entries are verified as equal to n1's."""
    bench = Bench(log=LOG[:count], term=term, **more)  # type: ignore[arg-type]
    bench.follow("n1").verified(*LOG[:count])
    bench.forget()
    return bench


@pytest.mark.spec("DL-F04", "DL-F01")
def test_appends_are_applied_in_log_order_whatever_their_arrival() -> None:
    bench = follower(2)
    assert bench.push(APPEND, LOG[4]) is None
    late = bench.last_token
    assert bench.push(APPEND, LOG[3]) is None
    assert bench.push(APPEND, LOG[3]).code == Code.REPEATED_PUSH
    assert bench.push(APPEND, LOG[2]).code == Code.SUCCESS
    assert bench.reply(late).code == Code.SUCCESS
    assert bench.ledger.entries == LOG[:5]
    assert bench.reply(late).end_index == 4


@pytest.mark.spec("DL-F01", "DL-F02")
@pytest.mark.parametrize("kind", [APPEND, COMPARE, TRUNCATE])
def test_push_without_entry_or_body_is_refused(kind: PushKind) -> None:
    bench = follower(2)
    assert bench.push(kind).code == Code.UNEXPECTED_ARGUMENT
    assert bench.push(kind, dataclasses.replace(LOG[2], body=b"", size=48)).code == Code.UNEXPECTED_ARGUMENT
    assert bench.push(kind, dataclasses.replace(LOG[2], magic=2)).code == Code.UNEXPECTED_ARGUMENT
    assert bench.ledger.entries == LOG[:2]


@pytest.mark.spec("DL-F02")
def test_waiting_appends_are_bounded_without_blocking() -> None:
    bench = follower(2, push_requests_max=2)
    assert bench.push(APPEND, LOG[4]) is None
    assert bench.push(APPEND, LOG[5]) is None
    assert bench.push(APPEND, LOG[6]).code == Code.PUSH_REQUEST_IS_FULL
    assert bench.push(COMPARE, LOG[1]).code == Code.SUCCESS  # not queued behind waiting appends


@pytest.mark.spec("DL-F03")
def test_push_is_refused_unless_follower() -> None:
    for bench in (Bench(term=2), Bench(term=2).lead()):
        for kind in PushKind:
            assert bench.push(kind, LOG[0], term=2).code == Code.NOT_FOLLOWER


@pytest.mark.spec("DL-F05", "DL-X11")
@pytest.mark.parametrize("kind", list(PushKind))
@pytest.mark.parametrize(("leader", "term"), [("n2", 2), ("n1", 1), ("n1", 3)])
def test_push_term_and_leader_are_checked(kind: PushKind, leader: str, term: int) -> None:
    bench = follower(3)
    entry = () if kind is COMMIT else (LOG[3] if kind is APPEND else LOG[2],)
    assert bench.push(kind, *entry, leader=leader, term=term, commit=2).code == Code.INCONSISTENT_STATE
    assert bench.ledger.entries == LOG[:3]
    assert bench.commits == []


@pytest.mark.spec("DL-F05", "DL-S03")
def test_append_with_wrong_position_or_term_is_refused() -> None:
    for wrong in (
        dataclasses.replace(LOG[3], pos=LOG[3].pos + 8),
        dataclasses.replace(LOG[3], term=3),
        dataclasses.replace(LOG[3], term=0),
    ):
        bench = follower(3)
        assert bench.push(APPEND, wrong).code == Code.INCONSISTENT_STATE
        assert bench.ledger.entries == LOG[:3]


@pytest.mark.spec("DL-F05")
def test_append_on_full_disk_answers_406() -> None:
    bench = follower(3)
    bench.do(bench.node.disk_full(bench.now_ms, True))
    assert bench.push(APPEND, LOG[3]).code == Code.INCONSISTENT_STATE
    bench.do(bench.node.disk_full(bench.now_ms, False))
    assert bench.push(APPEND, LOG[3]).code == Code.SUCCESS


@pytest.mark.spec("DL-F06", "DL-F09", "DL-Q02")
def test_committed_index_is_adopted_up_to_verified_entries() -> None:
    bench = follower(3)
    assert bench.push(APPEND, LOG[3], commit=99).code == Code.SUCCESS
    assert bench.commits == [3]
    assert bench.push(COMMIT, commit=1).code == Code.SUCCESS
    assert bench.commits == [3]  # the committed index never decreases
    assert bench.push(COMMIT, commit=-1).code == Code.SUCCESS
    unsure = Bench(log=LOG, term=2).follow("n1")
    assert unsure.push(COMMIT, commit=5).code == Code.INCONSISTENT_STATE  # nothing compared yet
    assert unsure.commits == []
    unsure.push(COMPARE, LOG[4])
    assert unsure.push(COMMIT, commit=6).code == Code.SUCCESS
    assert unsure.commits == [4]


@pytest.mark.spec("DL-F07")
@pytest.mark.parametrize(
    ("changes", "code"),
    [({"size": 99}, 411), ({"magic": 2}, 411), ({"term": 1}, 406), ({"pos": 7}, 406), ({"channel": 1}, 406),
     ({"body": b"body5.3"}, 406), ({"index": 3}, 406)],
)  # fmt: skip
def test_compare_checks_all_fields_but_crcs(changes: dict[str, object], code: int) -> None:
    bench = Bench(log=LOG, term=2).follow("n1")
    entry = LOG[5]
    assert bench.push(COMPARE, entry).code == Code.SUCCESS
    answer = bench.push(COMPARE, dataclasses.replace(entry, **changes))  # type: ignore[arg-type]
    assert answer.code == code
    assert (answer.begin_index, answer.end_index) == (0, 6)
    assert bench.push(COMPARE, Entry(50, 2, 9000, b"x")).code == Code.INCONSISTENT_STATE


@pytest.mark.spec("DL-F08")
def test_truncate_keeps_sent_entry_as_last() -> None:
    bench = Bench(log=LOG, term=2).follow("n1")
    assert bench.push(TRUNCATE, LOG[3]).code == Code.SUCCESS
    assert bench.ledger.entries == LOG[:4]
    assert bench.push(APPEND, LOG[4]).code == Code.SUCCESS


@pytest.mark.spec("DL-F08")
def test_truncate_replaces_differing_entry() -> None:
    bench = Bench(log=LOG, term=3).follow("n1")
    mine = Entry(0, 3, 0, b"other")
    assert bench.push(TRUNCATE, mine).code == Code.SUCCESS
    assert bench.ledger.entries == [mine]


@pytest.mark.spec("DL-F08", "DL-P13", "DL-X10")
def test_truncate_beyond_end_restarts_log_only_after_compare() -> None:
    far = Entry(1000, 2, 500_000, b"far")
    bench = Bench(log=LOG[:3], term=2, committed=2).follow("n1")
    assert bench.push(TRUNCATE, far).code == Code.INCONSISTENT_STATE
    assert bench.push(COMPARE, far).code == Code.INCONSISTENT_STATE
    answer = bench.push(TRUNCATE, far)
    assert (answer.code, answer.begin_index, answer.end_index) == (Code.SUCCESS, 1000, 1000)
    assert bench.of(CutLog) == [CutLog(1000, 500_000, restart=True)]
    assert bench.ledger.entries == [far]
    assert bench.alarms == []  # without overlap, committed entries are dropped with all others
    assert bench.push(COMMIT, commit=1000).code == Code.SUCCESS
    assert bench.commits == [1000]


@pytest.mark.spec("DL-X10")
def test_truncate_never_removes_committed_entries() -> None:
    bench = follower(7)
    bench.push(COMMIT, commit=5)
    assert bench.commits == [5]
    bench.state.term = 3
    bench.state.leader_id = None
    bench.follow("n2", 3)
    for entry in (LOG[4], Entry(5, 3, LOG[5].pos, b"other"), Entry(0, 3, 0, b"other")):
        answer = bench.push(TRUNCATE, entry, leader="n2", term=3)
        assert answer.code == Code.INCONSISTENT_STATE
    assert bench.ledger.entries == LOG
    assert len(bench.alarms) == 3
    assert bench.push(TRUNCATE, LOG[5], leader="n2", term=3).code == Code.SUCCESS
    assert bench.ledger.entries == LOG[:6]


@pytest.mark.spec("DL-X10", "DL-X11")
def test_late_truncate_keeps_entries_appended_since() -> None:
    bench = Bench(log=LOG[:4], term=2).follow("n1")
    assert bench.push(TRUNCATE, LOG[2]).code == Code.SUCCESS
    for entry in LOG[3:]:
        assert bench.push(APPEND, entry).code == Code.SUCCESS
    assert bench.push(TRUNCATE, LOG[2]).code == Code.SUCCESS
    assert bench.ledger.entries == LOG


@pytest.mark.spec("DL-X11", "DL-F02")
def test_compare_and_truncate_answer_and_clear_waiting_appends() -> None:
    for kind in (COMPARE, TRUNCATE):
        bench = follower(2)
        assert bench.push(APPEND, LOG[5]) is None
        waiting = bench.last_token
        bench.push(kind, LOG[1])
        assert bench.reply(waiting).code == Code.INCONSISTENT_STATE


@pytest.mark.spec("DL-F01", "DL-F10", "DL-X12")
def test_append_after_gap_is_refused_after_timeout_and_dropped() -> None:
    bench = follower(2)
    assert bench.push(APPEND, LOG[3]) is None
    waiting = bench.last_token
    bench.tick(1000)
    assert bench.reply(waiting) is None
    bench.tick(1)
    assert bench.reply(waiting).code == Code.INCONSISTENT_STATE
    assert bench.push(APPEND, LOG[3]) is None  # waits again, not refused with REPEATED_PUSH (dl#251)


@pytest.mark.spec("DL-F10", "DL-P12")
def test_append_after_gap_is_refused_before_leader_times_out() -> None:
    """If it were refused a second later, no caller would receive it, and the leader would push the same entry without end."""
    bench = follower(2, rpc_timeout_ms=1000)
    assert bench.push(APPEND, LOG[3]) is None
    waiting = bench.last_token
    bench.tick(501)
    assert bench.reply(waiting).code == Code.INCONSISTENT_STATE


@pytest.mark.spec("DL-F10")
def test_append_of_stored_entries_is_compared_and_answered() -> None:
    bench = follower(4)
    assert bench.push(APPEND, LOG[2]).code == Code.SUCCESS
    assert bench.push(APPEND, dataclasses.replace(LOG[2], body=b"body2.9")).code == Code.INCONSISTENT_STATE
    assert bench.ledger.entries == LOG[:4]


@pytest.mark.spec("DL-F11", "DL-F04")
def test_batch_is_appended_entry_by_entry_and_retry_converges() -> None:
    bench = follower(2)
    broken = (*LOG[2:4], dataclasses.replace(LOG[4], pos=1))
    assert bench.push(APPEND, *broken).code == Code.INCONSISTENT_STATE
    falls = dataclasses.replace(LOG[4], term=1)  # its term may not be less than that of the one before it in the batch
    other = follower(3)
    assert other.push(APPEND, LOG[3], falls).code == Code.INCONSISTENT_STATE
    assert other.ledger.entries == LOG[:4]
    assert bench.ledger.entries == LOG[:4]  # the prefix stays
    answer = bench.push(APPEND, *LOG[2:6])
    assert (answer.code, answer.index, answer.count) == (Code.SUCCESS, 2, 4)
    assert bench.ledger.entries == LOG[:6]
    assert bench.push(APPEND, LOG[6]).code == Code.SUCCESS  # single after batch
    assert bench.push(APPEND, LOG[2], LOG[4]).code == Code.UNEXPECTED_ARGUMENT


@pytest.mark.spec("DL-X02", "DUR-12")
def test_success_is_sent_only_after_group_sync() -> None:
    bench = follower(2, auto_sync=False)
    tokens = []
    for entry in LOG[2:5]:
        assert bench.push(APPEND, entry) is None
        tokens.append(bench.last_token)
    first = bench.of(SyncLog)[0]
    bench.do(bench.node.synced(bench.now_ms, first.epoch, 3))
    assert [bench.reply(token) is not None for token in tokens] == [True, True, False]
    assert bench.push(COMPARE, LOG[4]) is None  # success would count it as stored
    bench.do(bench.node.synced(bench.now_ms, first.epoch, 4))
    assert bench.reply(tokens[2]).code == Code.SUCCESS
    assert bench.reply(bench.last_token).code == Code.SUCCESS


@pytest.mark.spec("DL-X02")
def test_sync_started_before_truncation_is_ignored() -> None:
    bench = Bench(log=LOG, term=3, auto_sync=False).follow("n1")
    before = bench.state.log.epoch
    mine = Entry(0, 3, 0, b"other")
    assert bench.push(TRUNCATE, mine) is None
    bench.do(bench.node.synced(bench.now_ms, before, 6))
    assert bench.reply(bench.last_token) is None
    sync = bench.of(SyncLog)[-1]
    bench.do(bench.node.synced(bench.now_ms, sync.epoch, sync.end_index))
    assert bench.reply(bench.last_token).code == Code.SUCCESS


@pytest.mark.spec("DL-A05", "DL-X02")
def test_async_flush_answers_at_once() -> None:
    bench = follower(2, sync_before_ack=False)
    assert bench.push(APPEND, LOG[2]).code == Code.SUCCESS
    assert [type(action) for action in bench.actions][:2] == [AppendEntries, type(bench.actions[1])]
    assert bench.of(SyncLog) == []


@pytest.mark.spec("DL-F05")
def test_append_before_compare_is_refused() -> None:
    bench = Bench(log=LOG[:3], term=2).follow("n1")
    assert bench.push(APPEND, LOG[3]).code == Code.INCONSISTENT_STATE
    empty = Bench(term=1).follow("n1")
    assert empty.push(APPEND, LOG[0]).code == Code.SUCCESS  # nothing to compare in an empty log


@pytest.mark.spec("DL-X11", "DL-F03")
def test_waiting_requests_are_answered_on_role_change() -> None:
    bench = follower(2, auto_sync=False)
    bench.push(APPEND, LOG[2])
    unsynced = bench.last_token
    bench.push(APPEND, LOG[5])
    gap = bench.last_token
    bench.vote("n2", 9, end_index=50, end_term=2)
    assert {bench.reply(unsynced).code, bench.reply(gap).code} == {Code.NOT_FOLLOWER}


@pytest.mark.spec("DL-M09")
def test_members_of_every_role_answer_metadata() -> None:
    roles = [(Bench(log=LOG, term=2), None), (follower(2), "n1"), (Bench(log=LOG, term=2).lead(), "n0")]
    for bench, leader_id in roles:
        answer = bench.ask(MetadataRequest())
        assert (answer.code, answer.leader_id, answer.peers.keys()) == (200, leader_id, {"n0", "n1", "n2"})
    assert b"leaderId" not in encode(roles[0][0].ask(MetadataRequest()))


@pytest.mark.spec("DL-M07")
def test_request_remote_id_and_group_are_checked() -> None:
    bench = follower(2)
    from saturnmq.raft.core.messages import (
        AppendRequest,
        GetRequest,
        HeartBeatRequest,
        PushRequest,
        TransferRequest,
        VoteRequest,
    )

    for request in (
        VoteRequest(), HeartBeatRequest(), PushRequest(), TransferRequest(), AppendRequest(body=b"x"), GetRequest(),
        MetadataRequest(),
    ):  # fmt: skip
        assert bench.ask(request, remote_id="n1").code == Code.UNKNOWN_MEMBER
        assert bench.ask(request, group="other").code == Code.UNKNOWN_GROUP
        assert bench.ask(request, remote_id=None).code == Code.UNKNOWN_MEMBER


@pytest.mark.spec("DL-X15")
def test_push_on_failed_disk_is_refused() -> None:
    bench = follower(2)
    bench.do(bench.node.disk_failed(bench.now_ms, "EIO"))
    assert bench.push(APPEND, LOG[2]).code == Code.DISK_ERROR


@pytest.mark.spec("DL-F05", "DL-F08")
def test_truncate_with_new_entry_is_refused_on_full_disk() -> None:
    other = dataclasses.replace(LOG[2], term=2)
    bench = follower(3)
    bench.do(bench.node.disk_full(bench.now_ms, True))
    bench.push(COMPARE, entries(2, 2, first=3, pos=LOG[2].end_pos)[-1])
    assert bench.push(TRUNCATE, other).code == Code.INCONSISTENT_STATE
    assert bench.ledger.entries == LOG[:3] and not bench.of(CutLog)
    assert bench.push(TRUNCATE, LOG[2]).code == Code.SUCCESS  # brings no new entry
    bench.do(bench.node.disk_full(bench.now_ms, False))
    assert bench.push(TRUNCATE, other).code == Code.SUCCESS
    assert bench.ledger.entries == [*LOG[:2], other]


@pytest.mark.spec("DL-F08")
def test_truncate_after_uncompared_log_restarts_log() -> None:
    """That the entry's position is the log's end proves nothing: the entries before it may differ from the leader's."""
    bench = Bench(log=entries(1, 1, 1), term=2).follow("n1")
    entry = entries(2, first=3, pos=LOG[2].end_pos)[0]
    assert entry.pos == bench.state.log.end_pos
    assert bench.push(COMPARE, entry).code == Code.INCONSISTENT_STATE
    assert bench.push(TRUNCATE, entry).code == Code.SUCCESS
    assert [held.index for held in bench.ledger.entries] == [3]


@pytest.mark.spec("DL-F04")
def test_response_says_how_many_entries_it_is_about() -> None:
    """A leader takes the index and this number for what the follower holds."""
    bench = follower(2)
    assert bench.push(COMMIT, commit=1).count == 1
    assert bench.push(COMPARE, LOG[1]).count == 1
    assert bench.push(APPEND, LOG[2]).count == 1
    assert bench.push(APPEND, *LOG[3:6]).count == 3
    assert bench.push(APPEND, dataclasses.replace(LOG[6], magic=2)).count == 1
