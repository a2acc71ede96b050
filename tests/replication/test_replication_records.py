"""What a record of another broker may say, what an append by the group becomes, and the marker of a failed sync."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from saturnmq.metrics import Histogram
from saturnmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import BodyError, MessageError
from saturnmq.protocol.message import Host, Message, decode_record, encode_record
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.core.messages import AppendResponse, Code
from saturnmq.raft.core.state import HardState
from saturnmq.raft.ledger.bodies import EntryBody
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.message_entries import noop_message, stamp_message
from saturnmq.raft.ledger.term_file import CheckpointFile, TermFile
from saturnmq.replication.dledger import answer
from saturnmq.replication.dledger.answer import GroupAnswer, outcome, refused_by
from saturnmq.replication.dledger.change_entries import Change, Kind, change_message, is_change
from saturnmq.replication.dledger.entry_check import Quarantine, appended_problem, read_entry_message
from saturnmq.replication.dledger.failure import MARK_NAME, SyncMark, drop_unsynced
from saturnmq.replication.records import check_fields, check_place, queue_for
from saturnmq.store import PutStatus
from saturnmq.store.files.disk import Disk
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.store.queue.queues import QueueTable

HOST = Host("127.0.0.1", 10911)


def message(**more: Any) -> Message:
    return replace(Message("T", b"body", b"", 0, born_host=HOST, store_host=HOST), **more)


# ---- fields and places


@pytest.mark.spec("DL-B13", "HA-16")
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, None),
        ({"topic": "a" * 255}, None),
        ({"topic": "ü" * 127}, None),
        ({"queue_id": 65_535}, None),
        ({"queue_offset": 1 << 40}, None),
        ({"store_timestamp_ms": 1 << 45}, None),
        ({"topic": ""}, "topic '' cannot be a folder name"),
        ({"topic": "."}, "cannot be a folder name"),
        ({"topic": ".."}, "cannot be a folder name"),
        ({"topic": "a/b"}, "cannot be a folder name"),
        ({"topic": "a\x00"}, "cannot be a folder name"),
        ({"topic": "a" * 256}, "cannot be a folder name"),
        ({"topic": "ü" * 128}, "cannot be a folder name"),
        ({"queue_id": 65_536}, "queue 65536 is not in 0..65535"),
        ({"queue_id": -1}, "queue -1 is not in 0..65535"),
        ({"queue_offset": -1}, "queue offset -1 is not in 0..1099511627776"),
        ({"queue_offset": (1 << 40) + 1}, "queue offset 1099511627777 is not in"),
        ({"store_timestamp_ms": -1}, "store time -1 is not in 0..35184372088832"),
        ({"store_timestamp_ms": (1 << 45) + 1}, "store time 35184372088833 is not in"),
    ],
)
def test_fields_that_no_checksum_covers_are_checked(more: dict[str, Any], problem: str | None) -> None:
    if problem is None:
        check_fields(message(**more))
    else:
        with pytest.raises(MessageError, match=problem.replace("..", r"\.\.")):
            check_fields(message(**more))


def queues(folder: Path) -> QueueTable:
    return QueueTable(
        folder / "consumequeue", 400, Disk(), folder / "queues.json", lambda: 0, None, log_file_bytes=4096
    )


def with_units(table: QueueTable, first: int, count: int) -> ConsumeQueue:
    queue = table.get_or_make("T", 0)
    for number in range(first, first + count):
        assert queue.append(number, 1000 + number * 100, 100, 0)
    return queue


@pytest.mark.spec("DL-B13")
@pytest.mark.parametrize(
    ("number", "physical", "problem"),
    [
        (3, 1300, None),  # the next one
        (0, 1300, "queue offset 0 of T/0 is taken, it ends at 3"),
        (2, 1200, None),  # dispatched again
        (2, 1299, None),
        (2, 1300, "is taken, it ends at 3"),
        (4, 1300, "queue offset 4, but queue T/0 ends at 3"),
    ],
)
def test_queue_offset_continues_its_queue(tmp_path: Path, number: int, physical: int, problem: str | None) -> None:
    queue = with_units(queues(tmp_path), 0, 3)
    assert (queue.max_offset, queue.max_physical) == (3, 1300)
    record = message(queue_offset=number, physical_offset=physical)
    if problem is None:
        check_place(queue, record)
    else:
        with pytest.raises(MessageError, match=problem):
            check_place(queue, record)


def test_any_queue_offset_may_begin_an_empty_queue(tmp_path: Path) -> None:
    check_place(queues(tmp_path).get_or_make("T", 0), message(queue_offset=9, physical_offset=5))
    check_place(None, message(queue_offset=9, physical_offset=5))


@pytest.mark.spec("DL-B13")
@pytest.mark.parametrize(
    ("number", "physical", "left", "warned"),
    [(3, 1300, 3, False), (0, 1300, 0, True), (0, 1299, 3, False), (1, 1300, 3, False)],
)
def test_queue_is_emptied_when_its_topic_was_created_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, physical: int, left: int, warned: bool
) -> None:
    table = queues(tmp_path)
    with_units(table, 0, 3)
    queue = queue_for(table, message(queue_offset=number, physical_offset=physical))
    assert queue is not None and queue.max_offset == left
    assert any("queue restarted after topic deletion topic=T queue=0" in text for text in caplog.messages) is warned


def test_messages_that_consumers_do_not_see_have_no_queue(tmp_path: Path) -> None:
    table = queues(tmp_path)
    for flag in (SysFlag.PREPARED, SysFlag.ROLLBACK):
        assert queue_for(table, message(sys_flag=int(flag))) is None
    assert list(table.by_key) == []
    for flag in (0, int(SysFlag.COMMIT)):
        assert queue_for(table, message(sys_flag=flag)) is table.by_key["T", 0]
    queue = queue_for(table, message(queue_offset=7, physical_offset=50))
    assert queue is not None and (queue.min_offset, queue.max_offset) == (0, 0), "it continues with any offset"
    assert queue.append(7, 50, 100, 0) and queue.max_offset == 8


# ---- appends


@pytest.mark.spec("DL-B07")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.SUCCESS, PutStatus.PUT_OK),
        (Code.INCONSISTENT_LEADER, PutStatus.SERVICE_NOT_AVAILABLE),
        (Code.NOT_LEADER, PutStatus.SERVICE_NOT_AVAILABLE),
        (Code.LEADER_NOT_READY, PutStatus.SERVICE_NOT_AVAILABLE),
        (Code.DISK_FULL, PutStatus.SERVICE_NOT_AVAILABLE),
        (Code.WAIT_QUORUM_ACK_TIMEOUT, PutStatus.OS_PAGE_CACHE_BUSY),
        (Code.LEADER_PENDING_FULL, PutStatus.OS_PAGE_CACHE_BUSY),
        (Code.TERM_CHANGED, PutStatus.UNKNOWN_ERROR),
        (Code.INTERNAL_ERROR, PutStatus.UNKNOWN_ERROR),
    ],
)
def test_result_of_the_group_becomes_a_put_status(code: Code, status: PutStatus) -> None:
    assert outcome(code) == (status, "" if code is Code.SUCCESS else f"DLedger {int(code)}")


@pytest.mark.spec("DL-A06", "DL-B06")
@pytest.mark.parametrize(
    ("code", "status", "reason", "single"),
    [
        (Code.UNEXPECTED_ARGUMENT, PutStatus.UNKNOWN_ERROR, "the message is longer than an entry", True),
        (Code.LEADER_TRANSFERRING, PutStatus.SERVICE_NOT_AVAILABLE, "the leadership is being handed over", False),
        (Code.LEADER_NOT_READY, PutStatus.SERVICE_NOT_AVAILABLE, "the leadership is changing", False),
        (Code.NOT_LEADER, PutStatus.SERVICE_NOT_AVAILABLE, "does not lead its group any more", False),
        (Code.DISK_FULL, PutStatus.OS_PAGE_CACHE_BUSY, "the disk is full", False),
        (Code.LEADER_PENDING_FULL, PutStatus.OS_PAGE_CACHE_BUSY, "too many messages wait for the group", False),
        (Code.DISK_ERROR, PutStatus.OS_PAGE_CACHE_BUSY, "DLedger 414", False),
    ],
)
def test_refused_append_says_whether_another_member_can_store_it(
    code: Code, status: PutStatus, reason: str, single: bool
) -> None:
    error = refused_by(AppendResponse(code=code))
    assert (error.status, error.single) == (status, single) and reason in error.message


def test_answer_reaches_every_caller_and_times_committed_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(answer, "monotonic", lambda: now[0])
    seconds, outcomes = Histogram(), []
    first, second = GroupAnswer(seconds), GroupAnswer(seconds)
    first.then(lambda *outcome: outcomes.append(outcome))
    first.then(lambda *outcome: outcomes.append(outcome))
    assert outcomes == []
    now[0] = 12.5
    first.arrived(AppendResponse(code=Code.SUCCESS))
    assert outcomes == [(PutStatus.PUT_OK, "")] * 2 and (seconds.count, seconds.sum) == (1, 2.5)
    first.then(lambda *outcome: outcomes.append(outcome))
    assert outcomes == [(PutStatus.PUT_OK, "")] * 3, "at once"
    second.arrived(AppendResponse(code=Code.TERM_CHANGED))
    second.then(lambda *outcome: outcomes.append(outcome))
    assert outcomes[-1] == (PutStatus.UNKNOWN_ERROR, "DLedger 501")
    assert seconds.count == 1, "only what was committed is timed"


# ---- entries


def entry_body(pos: int = 1000, **more: Any) -> EntryBody:
    record = stamp_message(encode_record(message(**more)), pos)
    return EntryBody(pos + 48, pos + 48 + len(record), memoryview(record))


@pytest.mark.spec("DL-B13")
def test_message_of_an_entry_says_where_it_lies() -> None:
    good = entry_body()
    assert read_entry_message(good).body == b"body"
    with pytest.raises(MessageError, match="it says it lies at 1048 with"):
        read_entry_message(good._replace(physical_offset=1049))
    with pytest.raises(MessageError):
        read_entry_message(good._replace(record=memoryview(bytes(good.record) + b"x")))
    with pytest.raises(MessageError, match="queue 70000 is not in"):
        read_entry_message(entry_body(queue_id=70_000))


@pytest.mark.spec("DL-X17")
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, None),
        ({"queue_id": 65_535, "sys_flag": 1}, None),
        ({"topic": "a b"}, "illegal characters"),
        ({"queue_id": 65_536}, "queue 65536 is not in 0..65535"),
        ({"queue_id": -1}, "queue -1 is not in 0..65535"),
        ({"sys_flag": 4}, "a transactional message is appended through the broker only"),
        ({"sys_flag": 8}, "a transactional message"),
        ({"sys_flag": 12}, "a transactional message"),
    ],
)
def test_entry_of_a_client_is_checked_further(more: dict[str, Any], problem: str | None) -> None:
    found = appended_problem(message(**more))
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.spec("DL-B13")
def test_quarantined_entries_are_counted_and_the_first_hundred_logged(caplog: pytest.LogCaptureFixture) -> None:
    quarantine, bad = Quarantine(), entry_body()
    assert (quarantine.count, quarantine.last) == (0, -1)
    for number in range(105):
        quarantine.add(bad._replace(physical_offset=number), "bad topic")
    assert (quarantine.count, quarantine.last) == (105, 104)
    lines = [text for text in caplog.messages if "entry quarantined" in text]
    assert len(lines) == 100 and lines[1].endswith(f"offset=1 bytes={len(bad.record)} reason=bad topic count=2")


# ---- changes of topics and groups

BEFORE, AFTER = DataVersion(5, 7), DataVersion(6, 8)
TOPIC = TopicConfig("orders", 3, 4, 2)
GROUP = SubscriptionGroupConfig("readers", retry_max_times=3)


@pytest.mark.spec("DL-X18")
@pytest.mark.parametrize(
    ("kind", "name", "config"),
    [
        (Kind.TOPIC, "orders", TOPIC),
        (Kind.TOPIC, "orders", None),
        (Kind.GROUP, "readers", GROUP),
        (Kind.GROUP, "readers", None),
    ],
)
def test_change_is_read_as_it_was_written(kind: Kind, name: str, config: Any) -> None:
    change = Change(kind, name, config, BEFORE, AFTER)
    assert Change.decode(change.encode()) == change
    fields = json.loads(change.encode())
    assert list(fields) == ["kind", "name", "config", "before", "after"] and fields["kind"] == kind.value
    stored = change_message(change, 99)
    assert is_change(stored) and (stored.topic, stored.born_timestamp_ms) == ("saturnmq.changes", 99)
    assert decode_record(encode_record(stored)).body == change.encode()
    assert not is_change(message(sys_flag=12)) and not is_change(replace(stored, sys_flag=0))
    assert not is_change(decode_record(noop_message(HOST, 1)))


@pytest.mark.spec("DL-X18")
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"kind": "user"}, "cannot be read"),
        ({"name": 5}, "the name of a change is no text: 5"),
        ({"name": "others"}, "group 'others' and its settings have different names"),
        ({"config": 7}, "the body is a number, must be an object"),
        ({"before": None}, "the body is null, must be an object"),
        ({"after": [1]}, "the body is an array, must be an object"),
    ],
)
def test_change_that_is_not_understood_is_refused(changed: dict[str, Any], problem: str) -> None:
    fields = json.loads(Change(Kind.GROUP, "readers", GROUP, BEFORE, AFTER).encode())
    with pytest.raises(BodyError, match=problem):
        Change.decode(json.dumps(fields | changed).encode())
    for name in fields:
        with pytest.raises(BodyError, match="cannot be read"):
            Change.decode(json.dumps({key: value for key, value in fields.items() if key != name}).encode())
    for body in (b"", b"[1]", b"null", b"\xff"):
        with pytest.raises(BodyError):
            Change.decode(body)


# ---- a failed sync


def ledger(folder: Path, count: int, checkpoint: LedgerCheckpoint) -> None:
    files = LedgerFiles(folder, file_bytes=1024, index_file_units=64)
    files.open()
    for number in range(count):
        body = b"%d" % number * 50
        files.append([Entry(number, 1, entry_position(files.end_pos, 48 + len(body), 1024), body)])
    files.sync_job()()
    files.close()
    TermFile(folder).write(HardState(1, "n0"))
    CheckpointFile(folder).write(checkpoint)


@pytest.mark.spec("DUR-07", "DUR-10")
@pytest.mark.parametrize(
    ("mark", "noted", "end", "expected"),
    [
        # durable, acknowledged; noted end, committed -> end after; checkpoint: end, committed, incomplete
        ((5, 5), (9, 8, False), 5, (5, 5, False)),
        ((5, 7), (9, 8, False), 5, (7, 5, True)),
        ((5, 3), (9, 4, False), 5, (5, 4, False)),
        ((9, 9), (9, 8, False), 9, (9, 8, False)),
        ((5, 5), (9, 8, True), 5, (5, 5, True)),
        ((-1, 2), (9, 8, False), -1, (2, -1, True)),
    ],
)
def test_entries_that_were_not_synced_are_cut(
    tmp_path: Path, mark: tuple[int, int], noted: tuple[int, int, bool], end: int, expected: tuple[int, int, bool]
) -> None:
    ledger(tmp_path, 10, LedgerCheckpoint(*noted))
    SyncMark(*mark, "file: errno 5").write(tmp_path, Disk())
    assert json.loads((tmp_path / MARK_NAME).read_bytes())["reason"] == "file: errno 5"
    drop_unsynced(LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64), Disk())
    assert not (tmp_path / MARK_NAME).exists()
    found = CheckpointFile(tmp_path).read()
    assert (found.end_index, found.committed_index, found.incomplete) == expected
    files = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64)
    files.open()
    assert files.end_index == end
    files.close()


@pytest.mark.spec("DUR-10")
@pytest.mark.parametrize("text", [b"", b"{}", b'{"durable_index": null, "acknowledged_index": 1, "reason": ""}'])
def test_unreadable_marker_counts_the_checkpoint_as_synced(tmp_path: Path, text: bytes) -> None:
    ledger(tmp_path, 10, LedgerCheckpoint(6, 4))
    (tmp_path / MARK_NAME).write_bytes(text)
    drop_unsynced(LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64), Disk())
    found = CheckpointFile(tmp_path).read()
    assert (found.end_index, found.committed_index, found.incomplete) == (9, 4, True), "9 may be acknowledged"


def test_nothing_is_cut_without_a_marker(tmp_path: Path) -> None:
    ledger(tmp_path, 10, LedgerCheckpoint(6, 4))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    drop_unsynced(LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64), Disk())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
