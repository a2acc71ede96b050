"""Differential tests: batched puts against single puts, and batched dispatch against dispatch of single entries."""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from brokergroup import ledger_group
from test_broker_dledger import Alone, bodies_of, message, one_settings, put, run

from saturnmq.broker.requests import send
from saturnmq.net import NetSettings
from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, SysFlag
from saturnmq.protocol.errors import CorruptRecord, SaturnError
from saturnmq.protocol.message import Host, Message, decode_record, encode_properties, encode_record
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.ledger.bodies import body_at
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import HEADER
from saturnmq.raft.ledger.message_entries import stamp_message
from saturnmq.replication.dledger import dispatch as dledger_dispatch
from saturnmq.replication.dledger import log as dledger_log
from saturnmq.replication.dledger.dispatch import GroupDispatch
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import MessageStore, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.index import index_queue
from saturnmq.store.queue.consume_queue import Unit
from saturnmq.store.queue.queues import QueueTable
from saturnmq.store.recovery.checkpoint import Note
from waiting import until

Results = list[tuple[bytes, PutStatus, str]]


async def given(store: MessageStore, *messages: Message) -> Results:
    """Statuses of messages put in one event-loop iteration, in the order they were reported."""
    results: Results = []

    def tell(one: Message) -> Any:
        return lambda status, reason: results.append((bytes(one.body), status, reason))

    for one in messages:
        store.put_soon(one, tell(one))
    assert results == [], "no result before the caller went on"
    await put(store, b"last")  # a message put another way follows
    return results


@pytest.mark.spec("DL-A03", "DL-B05", "DL-B07")
async def test_puts_of_one_iteration_are_appended_in_order(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        sent = [message(b"%d" % number, "TU"[number % 2]) for number in range(7)]
        results = await given(store, *sent)
        assert results == [(b"%d" % number, PutStatus.PUT_OK, "") for number in range(7)]
        assert [one.queue_offset for one in sent] == [0, 0, 1, 1, 2, 2, 3]
        offsets = [one.physical_offset for one in sent]
        assert offsets == sorted(offsets) and offsets[0] == 48
        assert bodies_of(store, "T") == [b"0", b"2", b"4", b"6", b"last"]
        assert bodies_of(store, "U") == [b"1", b"3", b"5"]


@pytest.mark.spec("DL-A06", "DL-B06", "ST-03")
async def test_rejected_message_does_not_affect_others(tmp_path: Path) -> None:
    """One message is illegal and one is too long for an entry; the queue offsets have no gap."""
    async with Alone(tmp_path, message_bytes_max=4_194_304) as store:
        long = message(bytes(FILE_MAX))
        results = await given(store, message(b"a"), message(b"illegal", "t" * 200), long, message(b"b"))
        by_body = {body[:7]: (status, reason) for body, status, reason in results}
        assert by_body[b"a"] == by_body[b"b"] == (PutStatus.PUT_OK, "")
        assert by_body[b"illegal"] == (PutStatus.MESSAGE_ILLEGAL, "topic of 200 characters, at most 127")
        assert by_body[bytes(7)] == (
            PutStatus.UNKNOWN_ERROR, "the message is longer than an entry of the ledger may be"
        )  # fmt: skip
        assert bodies_of(store) == [b"a", b"b", b"last"]


@pytest.mark.spec("DL-B06", "DL-C03")
async def test_pending_puts_fail_when_leadership_is_lost(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        results: Results = []
        store.put_soon(message(b"x"), lambda status, reason: results.append((b"x", status, reason)))
        store.log.serving = False
        answer = store.put(message(b"y"))
        assert results == [(b"x", answer.status, answer.reason)]
        assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
        store.log.serving = True
        member = store.log.member
        assert member is not None and member.node is not None
        member.node.disk_full(member.node.now_ms, True)
        results.clear()
        store.put_soon(message(b"z"), lambda status, reason: results.append((b"z", status, reason)))
        assert store.put(message(b"y")).reason == "the disk is full"
        assert results == [(b"z", PutStatus.OS_PAGE_CACHE_BUSY, "the disk is full")]
        member.node.disk_full(member.node.now_ms, False)
        await put(store, b"first")
        assert bodies_of(store) == [b"first"]


@pytest.mark.spec("DL-B06")
async def test_encoding_error_is_reported_for_its_message_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Alone(tmp_path) as store:

        def encode(one: Message, *others: Any) -> Any:
            if one.body == b"b":
                raise RuntimeError("no such thing")
            return real(one, *others)

        real = dledger_log.encode_records
        monkeypatch.setattr(dledger_log, "encode_records", encode)
        results = await given(store, message(b"a"), message(b"b"), message(b"c"))
        by_body = {body: (status, reason) for body, status, reason in results}
        assert by_body == {
            b"a": (PutStatus.PUT_OK, ""),
            b"b": (PutStatus.UNKNOWN_ERROR, "no such thing"),
            b"c": (PutStatus.PUT_OK, ""),
        }
        assert bodies_of(store) == [b"a", b"c", b"last"]


@pytest.mark.spec("DL-A07")
async def test_failing_callback_does_not_affect_other_callbacks(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        results: list[PutStatus] = []

        def fails(status: PutStatus, reason: str) -> None:
            raise RuntimeError("gone")

        for serving in (True, False):
            store.log.serving = serving
            store.put_soon(message(b"a"), fails)
            store.put_soon(message(b"b"), lambda status, reason: results.append(status))
            store.put(message(b"c"))
            store.log.serving = True
            await put(store, b"d")
        assert results == [PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE]


@pytest.mark.spec("DL-A03")
async def test_large_iteration_is_split_into_several_proposals(tmp_path: Path) -> None:
    """So the first messages do not wait for the last."""
    async with Alone(tmp_path) as store:
        member = store.log.member
        assert member is not None
        real, sizes = member.offer, []

        def offer(bodies: Any, answered: Any) -> Any:
            sizes.append(len(bodies))
            return real(bodies, answered)

        member.offer = offer  # type: ignore[method-assign]
        results = await given(store, *(message(bytes(30_000)) for _ in range(7)))
        assert [status for _, status, _ in results] == [PutStatus.PUT_OK] * 7
        assert sizes == [3, 3, 1, 1]


@pytest.mark.spec("DL-B07", "SND-15")
async def test_uncommitted_send_fails_and_ends_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the wire, on the fast path: the leader loses its quorum after the append."""
    async with ledger_group(tmp_path) as group:
        for body in (b"first", b"second"):
            await group.send(body)
        master = await group.master()
        store = master.store
        assert store.log.member is not None
        for name in group.names:
            if name != group.name_of(master):
                store.log.member.readdress(name, "127.0.0.1:1")
        before, failed = master.stats.put_messages, master.stats.put_failed
        monkeypatch.setattr(send, "send", None)  # disables the reference implementation
        answer = await group.send_to(master, b"lost")
        assert answer.code != 0 and "msgId" not in answer.ext
        assert (master.stats.put_messages, master.stats.put_failed) == (before + 1, failed + 1)
        assert master.in_flight.sends == 0


# ---- dispatch

FILE_MAX = 262_144  # of the ledger's files in these tests


def any_message(rng: random.Random, number: int) -> Message:
    """Mostly ordinary messages, and some of every other kind."""
    properties = {"UNIQ_KEY": f"FD0000000000000000000000000000022DC05FFD2B27{number // 5:08X}{number:04X}"}
    if rng.random() < 0.5:
        properties["TAGS"] = rng.choice(["a", "b", "ü"])
    if rng.random() < 0.3:
        properties["KEYS"] = f"k{number % 7} order"
    topic, flag, host = rng.choice(["T", "U", "Über"]), 0, Host("127.0.0.1", 1)
    odd = rng.random()
    if odd < 0.05:
        flag = rng.choice([SysFlag.PREPARED, SysFlag.ROLLBACK, SysFlag.COMMIT])
    elif odd < 0.1:
        topic, properties = SCHEDULE_TOPIC, properties | {"DELAY": "3"}
    elif odd < 0.15:
        host = Host("::1", 1)
    elif odd < 0.2:
        properties = {}
    raw = encode_properties(properties)
    body = rng.randbytes(rng.randrange(700))
    return message(body, topic, queue_id=number % 3, sys_flag=int(flag), born_host=host, properties_raw=raw)


def calls_of(topic: str, queue_id: int, offset: QueueOffset, units: Sequence[Unit]) -> list[Any]:
    """One call of the listener for each message, whatever number comes with one."""
    return [(topic, queue_id, number, unit) for number, unit in enumerate(units, offset)]


def dispatched(folder: Path, step: int) -> tuple[dict[str, bytes], dict[str, bytes], list[Any], set[Any]]:
    """Queue files, index files and callbacks after a ledger is dispatched again, `step` entries at a time."""
    settings, raft = one_settings(folder)
    group = GroupMember(settings, raft, NetSettings(), clock_ms=lambda: 1_700_000_000_000)
    store = group.store
    store.open()
    appended: list[Any] = []
    foreign: set[Any] = set()
    store.on_append = lambda *call: appended.extend(calls_of(*call))
    group.dispatch.on_foreign = lambda *call: foreign.add(call)
    store.queues.clear()
    assert store.index is not None and store.log.member is not None
    store.index.clear()
    store.skip_to(store.log.member.files.begin_pos)
    store.log.committed_pos = store.log.member.files.end_pos
    while group.dispatch.dispatch_some(step):
        pass
    assert store.dispatched == store.log.member.files.end_pos
    assert store.index_queue is not None and store.index_queue.put_in()
    queues = {f"{topic} {queue_id}": bytes(queue._tail) for (topic, queue_id), queue in store.queues.by_key.items()}
    index = {str(number): path.read_bytes() for number, path in enumerate(store.index.paths)}
    store.close_files()
    return queues, index, appended, foreign


@pytest.mark.spec("DL-B12", "DUR-13")
async def test_index_is_rebuilt_from_the_ledger_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_queue, "SLICE_BYTES", 500)
    monkeypatch.setattr(index_queue, "STEP_SECONDS", 0.0)
    async with Alone(tmp_path / "made") as store:
        for number in range(100):
            properties = encode_properties({"UNIQ_KEY": f"u{number}", "KEYS": "all"})
            store.put_soon(message(b"%d" % number, properties_raw=properties), lambda status, reason: None)
        await put(store, b"last")
        assert store.index is not None and store.index_queue is not None
        begin = store.index.dispatch_from
        store.index.clear()
        store.index_queue.rebuild(PhysicalOffset(0))
        await put(store, b"meanwhile")
        await until(lambda: store.index_queue is not None and not store.index_queue.lagging)
        assert store.index.dispatch_from >= begin
        for number in range(100):
            records = store.query("T", f"u{number}", 9, 0, 1 << 60).records
            assert [decode_record(record).body for record in records] == [b"%d" % number]


def keyed(number: int) -> bytes:
    """Properties with a unique key and 64 other keys."""
    return encode_properties({"UNIQ_KEY": f"u{number}", "KEYS": " ".join(f"k{at}" for at in range(64))})


def test_index_that_cannot_keep_up_is_read_from_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_queue, "BACKLOG_BYTES_MAX", 20_000)
    monkeypatch.setattr(index_queue, "STEP_SECONDS", 0.0)

    async def work() -> None:
        async with Alone(tmp_path / "made") as store:
            for number in range(100):
                topic = "T" if number % 2 else "deleted"
                sent = message(b"%d" % number, topic, properties_raw=keyed(number))
                store.put_soon(sent, lambda status, reason: None)
            await put(store, b"last")
            assert store.index_queue is not None and store.index_queue.lagging
            store.delete_topic("deleted")
            await until(lambda: store.index_queue is not None and not store.index_queue.lagging)
            assert store.writable and store.index_queue.covered(store.dispatched) == store.dispatched
            for number in range(1, 100, 2):
                records = store.query("T", f"u{number}", 9, 0, 1 << 60).records
                assert [decode_record(record).body for record in records] == [b"%d" % number]
            assert len(store.query("T", "k63", 64, 0, 1 << 60).records) == 50

    run(work)
    assert "index lags" in caplog.text


async def lagging(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 100) -> Note:
    """Leave a member with messages of the keys u0, u1, ... whose index lags: its starts do not read the ledger for it."""
    with monkeypatch.context() as slow:
        slow.setattr(index_queue, "BACKLOG_BYTES_MAX", 20_000)
        slow.setattr(index_queue, "STEP_SECONDS", 0.0)
        slow.setattr(index_queue, "FINISH_SECONDS", 0.0)
        async with Alone(folder) as store:
            for number in range(count):
                store.put_soon(message(b"%d" % number, properties_raw=keyed(number)), lambda status, reason: None)
            await put(store, b"last")
            assert store.index_queue is not None and store.index_queue.lagging
    note = store.checkpoint.note
    assert note is not None and note.indexed < note.dispatched and store.settings.abort_path.exists()
    monkeypatch.setattr("saturnmq.store.recovery.opening.INDEX_BYTES", 0)
    return note


def found_by_key(store: MessageStore, count: int = 100) -> int:
    """How many of the messages u0, u1, ... are found by their unique key."""
    found = [store.query("T", f"u{number}", 9, 0, 1 << 60).records for number in range(count)]
    return sum([decode_record(one).body for one in records] == [b"%d" % n] for n, records in enumerate(found))


@pytest.mark.spec("DL-B12", "DUR-13")
def test_start_reads_the_ledger_for_the_queues_and_not_for_an_index_that_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        note = await lagging(tmp_path / "made", monkeypatch)
        dispatched: list[int] = []
        dispatch = MessageStore.dispatch
        monkeypatch.setattr(
            MessageStore,
            "dispatch",
            lambda store, queue, message, code: [
                dispatched.append(message.physical_offset),
                dispatch(store, queue, message, code),
            ][1],
        )
        async with Alone(tmp_path / "made") as again:
            assert all(at >= note.dispatched for at in dispatched)
            await until(lambda: again.index_queue is not None and not again.index_queue.lagging)
            assert found_by_key(again) == 100
            assert len(again.query("T", "k63", 64, 0, 1 << 60).records) == 64

    run(work)
    assert "index continued while the store serves" in caplog.text


@pytest.mark.spec("DL-B12", "DUR-13", "RC-02")
@pytest.mark.parametrize("finish_s", [0.0, 60.0])
async def test_stop_does_not_take_a_closed_ledger_for_the_end_of_what_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish_s: float
) -> None:
    """The ledger was closed before the rest of the index was read from it: 91 of 100 messages were never found by key."""
    await lagging(tmp_path / "made", monkeypatch)
    with monkeypatch.context() as slow:
        slow.setattr(index_queue, "STEP_SECONDS", 0.0)
        slow.setattr(index_queue, "FINISH_SECONDS", finish_s)
        async with Alone(tmp_path / "made") as store:
            pass
        note, complete = store.checkpoint.note, not store.settings.abort_path.exists()
        assert note is not None and (note.indexed == note.dispatched) == complete == (finish_s > 0)
    async with Alone(tmp_path / "made") as again:
        await until(lambda: again.index_queue is not None and not again.index_queue.lagging)
        assert found_by_key(again) == 100


@pytest.mark.spec("DL-B12", "DUR-13")
def test_index_that_lags_goes_on_behind_a_damaged_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with Alone(tmp_path / "made") as store:
            for number in range(400):
                body = b"%d" % number + b"." * 3000
                store.put_soon(message(body, properties_raw=keyed(number)), lambda status, reason: None)
            await put(store, b"last")
            places = [store.physical_offset("T", 0, number) for number in range(400)]
            assert isinstance(store.log, RaftLog) and store.log.ledger is not None
            first, second = store.log.ledger.data.files[:2]
            path, ends = first.path, second.start
        for file in (tmp_path / "made" / "index").iterdir():
            file.unlink()
        with path.open("r+b") as damaged:
            damaged.seek(places[5] - 48)
            damaged.write(b"\1\2\3\4")
        monkeypatch.setattr("saturnmq.store.recovery.opening.INDEX_BYTES", 0)
        async with Alone(tmp_path / "made") as again:
            await until(lambda: again.index_queue is not None and not again.index_queue.lagging)
            found = [bool(again.query("T", f"u{n}", 9, 0, 1 << 60).records) for n in range(400)]
        assert found == [n < 5 or position >= ends for n, position in enumerate(places)] and found[-1]

    run(work)
    assert caplog.text.count("messages not indexed from=") == 1


@pytest.mark.spec("DL-B12", "DUR-13")
async def test_index_that_lags_goes_on_where_an_old_commit_log_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave up and said that it was complete once retention had deleted a file that it had not read."""
    settings, _ = one_settings(tmp_path / "made")
    old = MessageStore(settings)
    old.open()
    count = 0
    while len(old.log.files) < 3:
        old.put(message(b"%d" % count + b"." * 9000, properties_raw=keyed(count)))
        count += 1
    await old.stop()
    async with Alone(tmp_path / "made") as store:
        await put(store, b"last")
        assert store.index is not None and store.index_queue is not None
        await store.write_all()
        store.index.clear()
        await store.log.truncate_front("retention")
        assert store.log.first_position > 0
        store.index_queue.rebuild(PhysicalOffset(0))
        await until(lambda: store.index_queue is not None and not store.index_queue.lagging)
        kept = [n for n in range(count) if store.physical_offset("T", 0, n) >= store.log.first_position]
        assert kept and all(store.query("T", f"u{n}", 9, 0, 1 << 60).records for n in kept)


@pytest.mark.spec("DL-B12", "RP-01", "RP-02", "CQ-02", "IX-02")
@pytest.mark.parametrize("seed", range(3))
def test_batched_dispatch_equals_single_dispatch(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        async with Alone(tmp_path / "made") as store:
            for number in range(900):
                store.put_soon(any_message(rng, number), lambda status, reason: None)
            await put(store, b"last")

    run(work)
    shutil.copytree(tmp_path / "made", tmp_path / "single")
    many = dispatched(tmp_path / "made", 200)
    calls: list[int] = []

    real = dledger_dispatch.dispatch_plain

    def plain(dispatch: GroupDispatch, count_max: int) -> int:
        calls.append(real(dispatch, count_max))
        return calls[-1]

    monkeypatch.setattr(dledger_dispatch, "dispatch_plain", plain)
    shutil.copytree(tmp_path / "single", tmp_path / "counted")
    counted = dispatched(tmp_path / "counted", 7)
    assert (*counted[:2], sorted(counted[2]), counted[3]) == (*many[:2], sorted(many[2]), many[3])
    assert sum(calls) > 600 and max(calls) <= 7
    monkeypatch.setattr(dledger_dispatch, "dispatch_plain", lambda dispatch, count_max: 0)
    single = dispatched(tmp_path / "single", 200)
    assert single[0] == many[0] and len(many[0]) > 9
    assert single[1] == many[1] and many[1]
    assert sorted(single[2]) == sorted(many[2]) and single[3] == many[3]


class Waiting:
    """An index queue that is full after 40 records."""

    refusal = "full"

    def __init__(self) -> None:
        self.records: list[Any] = []

    def add(self, records: list[Any]) -> bool:
        self.records += records
        return len(self.records) < 40


class Bare(MessageStore):
    """The parts of a store that dispatch needs; all calls are recorded."""

    def __init__(self, folder: Path, log: RaftLog) -> None:
        assert log.ledger is not None
        self.settings = StoreSettings(store_path_root_dir=str(folder), profile=StoreProfile.SMALL)
        self.queues = QueueTable(folder / "queues", 6000, Disk(), folder / "left.json", lambda: 0, None)
        self.log, self._unconfirmed, self.index, self.index_queue = log, deque(), None, Waiting()  # type: ignore[assignment]
        self._dispatched = log.ledger.begin_pos
        self.refusal, self._last_store_ms, self.failure, self.bit_map = "", 0, None, None
        self.calls: list[Any] = []
        self.foreign: set[Any] = set()
        self.stops: list[str] = []
        self.on_append = lambda *call: self.calls.extend(calls_of(*call))
        self.group = GroupDispatch(log, self)
        self.group.on_foreign = lambda *call: self.foreign.add(call)

    def stop_writing(self, error: Exception) -> None:
        self.stops.append(str(error))

    def found(self, step: int) -> tuple[Any, ...]:
        error = None
        try:
            for _ in range(5000):
                if not self.group.dispatch_some(step):
                    break
            else:
                error = "endless"
        except SaturnError as problem:
            error = str(problem)
        queues = {
            key: (one.max_offset, one.min_offset, one.next_offset, one.max_physical, bytes(one._tail))
            for key, one in self.queues.by_key.items()
        }
        assert isinstance(self.index_queue, Waiting)
        return (
            error, self.dispatched, queues, self.index_queue.records, self.refusal, self.last_store_ms, sorted(self.calls),
            self.foreign, self.stops, self.queues.dirty,
        )  # fmt: skip


def odd_ledger(files: LedgerFiles, rng: random.Random) -> list[Entry]:
    """Messages with gaps in their queue offsets, and records with changed or missing bytes."""
    made: list[Entry] = []
    numbers: dict[tuple[str, int], int] = {}
    host = Host("127.0.0.1", 1)
    for index in range(rng.randrange(5, 80)):
        topic, queue_id = rng.choice(["T"] * 9 + ["Ü", SCHEDULE_TOPIC, TIMER_TOPIC]), rng.randrange(2)
        number = max(numbers.get((topic, queue_id), 0) + rng.choice([0] * 40 + [3, -2]), 0) * (rng.random() > 0.02)
        numbers[topic, queue_id] = number + 1
        properties = {"UNIQ_KEY": f"A{index}", "TAGS": "t"} if rng.random() < 0.8 else {}
        born = host if rng.random() < 0.95 else Host("::1", 1)
        record = encode_record(
            Message(
                topic, bytes(rng.randrange(60)), encode_properties(properties), queue_id, 0,
                rng.choice([0] * 20 + [4, 8, 12, 16]), 1, born, host, queue_offset=number, store_timestamp_ms=1000 + index,
            )
        )  # fmt: skip
        end = made[-1].end_pos if made else 0
        body = bytearray(stamp_message(record, entry_position(end, 48 + len(record), files.file_bytes)))
        if rng.random() < 0.12:
            for _ in range(rng.choice([1, 1, 2])):
                lengths = [0, 1, 2, 3, 4, 12, 20, 27, 28, 35, 39, 84, 85, 86, 87, 88, len(body) - 1]
                at = min(rng.choice([*lengths, rng.randrange(len(body))]), len(body) - 1)
                body[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), body[at] ^ 1])
        if rng.random() < 0.02:
            del body[rng.randrange(1, len(body)) :]
        made.append(Entry(index, 1, entry_position(end, 48 + len(body), files.file_bytes), bytes(body)))
    files.append(made)
    return made


@pytest.mark.spec("DL-B12", "DL-B13", "RP-01")
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_batched_dispatch_of_odd_entries_equals_single_dispatch(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, real = 0, dledger_dispatch.dispatch_plain
    for seed in range(first, first + 20):
        rng, folder = random.Random(seed), tmp_path / str(seed)
        files = LedgerFiles(folder / "ledger", file_bytes=8192, index_file_units=256)
        files.open()
        made = odd_ledger(files, rng)
        log = RaftLog([folder / "log"], 8192, Disk())
        log.attach(files, 0, files.end_pos if rng.random() < 0.5 else rng.choice(made).end_pos)
        monkeypatch.setattr(dledger_dispatch, "dispatch_plain", lambda dispatch, count_max: 0)
        single = Bare(folder / "single", log).found(1)

        def many(dispatch: GroupDispatch, count_max: int) -> int:
            nonlocal plain
            count = real(dispatch, count_max)
            plain += count
            return count

        monkeypatch.setattr(dledger_dispatch, "dispatch_plain", many)
        assert Bare(folder / "many", log).found(200) == single, f"seed {seed}"
        files.close()
    assert plain > 50


@pytest.mark.spec("DL-B13", "DUR-10")
@pytest.mark.parametrize(("size", "body_len"), [(0, -48), (-148, -196), (40, -8), (48, 0), (8200, 8152)])
def test_damaged_length_stops_dispatch_without_looping(tmp_path: Path, size: int, body_len: int) -> None:
    files = LedgerFiles(tmp_path / "ledger", file_bytes=8192, index_file_units=256)
    files.open()
    made = odd_ledger(files, random.Random(1))
    at = made[2].pos
    files.data.files[0].map[at : at + 48] = HEADER.pack(1, size, 2, 1, at, 0, 0, 0, body_len)
    log = RaftLog([tmp_path / "log"], 8192, Disk())
    log.attach(files, 0, files.end_pos)
    with pytest.raises(CorruptRecord, match=f"no entry at {at} of the ledger: magic 1, size {size}"):
        body_at(files, at, files.end_pos)
    assert Bare(tmp_path / "store", log).found(9)[0] == f"no entry at {at} of the ledger: magic 1, size {size}"
    files.close()


@pytest.mark.spec("DL-B12", "IX-09")
def test_batched_dispatch_calls_listeners(tmp_path: Path) -> None:
    """Listeners for unknown topics and for a full index."""
    files = LedgerFiles(tmp_path / "ledger", file_bytes=65_536, index_file_units=256)
    files.open()
    end, made = 0, []
    for index in range(60):
        record = encode_record(message(b"x", queue_offset=index))
        made.append(Entry(index, 1, end, stamp_message(record, end)))
        end = made[-1].end_pos
    files.append(made)
    log = RaftLog([tmp_path / "log"], 65_536, Disk())
    log.attach(files, 0, made[9].end_pos)
    store = Bare(tmp_path / "store", log)
    assert not store.group.dispatch_some(100)
    store.foreign.clear()
    log.committed_pos = end
    assert dledger_dispatch.dispatch_plain(store.group, 100) == 50
    assert store.foreign == {("T", 0)} and store.refusal == "full" and store.calls[-1][:3] == ("T", 0, 59)
    files.close()
