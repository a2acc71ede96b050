"""Transactions: half messages, commit and rollback, checks with the producer, and recovery at a restart."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import Clock, Wire, wire

from saturnmq.broker.services.half_table import (
    CheckAction,
    CheckLimits,
    HalfTable,
    TransactionOutcome,
    UndecidedHalf,
    immunity_ms,
)
from saturnmq.broker.services.transactions import GROUP, Transactions
from saturnmq.net import Connection
from saturnmq.protocol.bodies import HeartbeatData, ProducerData
from saturnmq.protocol.codes import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import Message, decode_record, java_hash
from saturnmq.store import FlushDiskType, PutResult, PutStatus, wait_confirmed

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
LIMITS = CheckLimits(timeout_ms=6000, check_max=3, kept_ms=100_000)


async def half(w: Wire, key: str = "ID", queue: int = 2, **properties: str) -> Command:
    own = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": key, "TAGS": "t"} | properties
    answer = await w.send(body=b"order " + key.encode(), properties=own, queue=queue, f=4)
    assert answer.code == 0, answer
    return answer


async def end(w: Wire, sent: Command, how: int, **more: object) -> Command:
    _, physical = parse_offset_message_id(sent.ext["msgId"])
    fields: dict[str, Any] = {
        "producerGroup": "producers", "tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": physical,
        "commitOrRollback": how, "fromTransactionCheck": False, "msgId": "ID", "transactionId": "ID",
    }  # fmt: skip
    return await w.call(RequestCode.END_TRANSACTION, **(fields | more))


async def become_producer(w: Wire, group: str = "producers") -> None:
    answer = await w.call(RequestCode.HEART_BEAT, HeartbeatData("c1", [ProducerData(group)], []).encode())
    assert answer.code == 0


async def asked(w: Wire) -> Command:
    async with asyncio.timeout(10):
        return await w.pushed.get()


def service(w: Wire) -> Transactions:
    return w.broker.master.transactions


# ---- decisions


@pytest.mark.spec("TX-07", "TX-08", "TX-10")
@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.sampled_from([0, 6000, 20_000]), st.integers(0, 4)), max_size=8),
    st.integers(-1000, 200_000),
)
def test_due_action_follows_from_age_immunity_and_count(rows: list[tuple[int, int, int]], now: int) -> None:
    table = HalfTable(LIMITS)
    for offset, (stored, immune, count) in enumerate(rows):
        table.add(UndecidedHalf(offset, offset * 100, stored, immune, 0, count))
    steps = {item.offset: step for item, step in table.due_actions(now)}
    for offset, (stored, immune, count) in enumerate(rows):
        age = now - stored
        if age > LIMITS.kept_ms:
            assert steps[offset] is CheckAction.DISCARD
        elif 0 <= age < immune:
            assert offset not in steps
        else:
            assert steps[offset] is (CheckAction.DISCARD if count >= LIMITS.check_max else CheckAction.ASK)


@pytest.mark.spec("TX-07", "DUR-19")
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms())
def test_progress_never_passes_undecided_half_messages(keep: list[bool], random: Any) -> None:
    """Model: a restart that reads from the progress on finds exactly the undecided messages."""
    table, operations = HalfTable(LIMITS), []
    order = list(range(len(keep)))
    open_ones: list[int] = []
    for offset in order:
        table.add(UndecidedHalf(offset, offset, 0, 0, len(operations)))
        open_ones.append(offset)
        random.shuffle(open_ones)
        for done in [o for o in open_ones if not keep[o]][: random.randint(0, 2)]:
            table.settle(done, TransactionOutcome.COMMITTED)
            operations.append(done)
            open_ones.remove(done)
    half_from, op_from = table.progress(len(order), len(operations))
    decided = {done for done in operations[op_from:] if done >= half_from}
    assert [o for o in order[half_from:] if o not in decided] == sorted(open_ones)


@pytest.mark.spec("TX-10")
@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (None, 6000),
        ("-1", 6000),
        ("x", 6000),
        ("", 6000),
        ("1.5", 6000),
        ("30", 30_000),
        ("0", 0),
        ("-7", 0),
        ("3600", 3_600_000),
        ("9" * 12, 3_600_000),
    ],
)
def test_immunity_is_in_seconds_or_defaults_to_timeout(text: str | None, ms: int) -> None:
    assert immunity_ms(text, 6000) == ms


# ---- over the wire


@pytest.mark.spec("TX-03", "TX-04", "TX-05", "TX-06", "SND-12")
async def test_committed_message_appears_in_real_topic_and_queue() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await w.send()  # so that the half message is not at offset 0, the default of unset fields
        sent = await half(w, h=0)
        assert (sent.ext["queueId"], sent.ext["queueOffset"]) == ("2", "0")
        (waiting,) = await w.messages(HALF_TOPIC)
        assert parse_offset_message_id(sent.ext["msgId"])[1] == waiting.physical_offset
        assert (waiting.sys_flag, waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == (0, "T", "2")
        config = w.broker.topics.table[HALF_TOPIC]
        assert (waiting.queue_id, config.read_queue_nums, config.write_queue_nums) == (0, 1, 1)
        assert await w.messages(queue=2) == []
        clock.ms += 50
        assert (await end(w, sent, COMMIT)).code == 0
        (message,) = await w.messages(queue=2)
        assert (message.sys_flag, message.prepared_transaction_offset) == (COMMIT, waiting.physical_offset)
        assert message.properties_raw == waiting.properties_raw
        assert (message.body, message.born_timestamp_ms) == (b"order ID", 1234)
        assert (message.born_host, message.store_timestamp_ms) == (waiting.born_host, clock.ms)
        unit = w.broker.store.queues.by_key[("T", 2)].unit(0)
        assert unit is not None and unit[2] == java_hash("t")
        operation = stored(w, OP_HALF_TOPIC)[0]
        assert (operation.body, operation.tags, operation.queue_id) == (b"0", "d", 0)
        assert operation.properties["UNIQ_KEY"] != "ID"
        assert service(w).table.pending == {}


def stored(w: Wire, topic: str) -> list[Message]:
    """Messages of a topic that cannot be pulled."""
    queue = w.broker.store.queues.get((topic, 0))
    units = [unit for _, unit in queue.units(0, queue.max_offset)] if queue else []
    return [decode_record(w.broker.store.read_record(unit[0]) or b"") for unit in units]


@pytest.mark.spec("TX-05", "TX-06")
async def test_rolled_back_message_never_appears(wire: Wire) -> None:
    first, second = await half(wire, "A"), await half(wire, "B")
    assert (await end(wire, second, ROLLBACK)).code == 0
    assert await wire.messages(queue=2) == []
    assert len(await wire.messages(HALF_TOPIC)) == 2
    assert [op.body for op in stored(wire, OP_HALF_TOPIC)] == [b"1"]
    assert list(service(wire).table.pending) == [0]
    assert (await end(wire, first, COMMIT)).code == 0
    assert [m.body for m in await wire.messages(queue=2)] == [b"order A"]


@pytest.mark.spec("TX-04", "DUR-19")
@pytest.mark.parametrize(("first", "second", "code"), [
    (COMMIT, COMMIT, 0), (ROLLBACK, ROLLBACK, 0), (COMMIT, ROLLBACK, 1), (ROLLBACK, COMMIT, 1),
])  # fmt: skip
async def test_repeated_end_transaction_changes_nothing(wire: Wire, first: int, second: int, code: int) -> None:
    sent = await half(wire)
    assert (await end(wire, sent, first)).code == 0
    again = await end(wire, sent, second, fromTransactionCheck=True)
    assert again.code == code
    assert code == 0 or "it was " + ("committed" if first == COMMIT else "rolled back") in (again.remark or "")
    assert len(await wire.messages(queue=2)) == (1 if first == COMMIT else 0)
    assert len(stored(wire, OP_HALF_TOPIC)) == 1


@pytest.mark.spec("TX-04")
async def test_invalid_end_transaction_is_rejected_like_apache(wire: Wire) -> None:
    sent = await half(wire)
    plain = await wire.send(queue=3)
    place = parse_offset_message_id(plain.ext["msgId"])[1]
    for more, words in (
        ({"producerGroup": "others"}, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 999_999}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": place}, "Find prepared transaction message failed"),
        ({"commitOrRollback": 5}, "commitOrRollback=5 must be 0, 8 or 12"),
    ):
        answer = await end(wire, sent, **({"how": COMMIT} | more))  # type: ignore[arg-type]
        assert (answer.code, answer.remark) == (1, words)
    with pytest.raises(TimeoutError):  # an undecided producer gets no response
        async with asyncio.timeout(0.2):
            await end(wire, sent, UNKNOWN)
    assert list(service(wire).table.pending) == [0]


@pytest.mark.spec("TX-11", "TX-03", "UPG-08", "API-14")
async def test_half_message_with_delay_is_rejected(wire: Wire) -> None:
    refused = await wire.send(properties={"TRAN_MSG": "true", "PGROUP": "g", "DELAY": "3"}, f=4)
    assert refused.code == 13 and "do not combine" in (refused.remark or "")
    assert (await wire.send(properties={"TRAN_MSG": "TRUE", "DELAY": "0"}, f=4)).code == 0
    (waiting,) = await wire.messages(HALF_TOPIC)
    # From the request: without it the transaction could not be ended.
    assert waiting.properties["PGROUP"] == "producers"
    retry = await wire.send("%RETRY%G", properties={"TRAN_MSG": "true", "DELAY": "3", "PGROUP": "g"}, j=1)
    assert retry.code == 0 and len(await wire.messages(HALF_TOPIC)) == 1
    copies = await wire.messages("SCHEDULE_TOPIC_XXXX", 2)
    assert [copy.properties["REAL_TOPIC"] for copy in copies] == ["%RETRY%G"]


@pytest.mark.spec("TX-05")
async def test_failed_commit_leaves_half_message_pending(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = await half(wire)
    with monkeypatch.context() as patch:
        full = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
        patch.setattr(wire.broker.store, "put", lambda message: full)
        answer = await end(wire, sent, COMMIT)
        assert answer.code == 14 and "the disk is full" in (answer.remark or "")
    assert list(service(wire).table.pending) == [0]
    assert (await end(wire, sent, COMMIT)).code == 0
    assert len(await wire.messages(queue=2)) == 1


@pytest.mark.spec("TX-06")
async def test_failed_operation_write_is_retried(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = await half(wire)
    put = wire.broker.store.put

    def no_operations(message: Message) -> PutResult:
        refused = message.topic == OP_HALF_TOPIC
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE) if refused else put(message)

    with monkeypatch.context() as patch:
        patch.setattr(wire.broker.store, "put", no_operations)
        assert (await end(wire, sent, COMMIT)).code == 0
    assert stored(wire, OP_HALF_TOPIC) == []
    assert "operation on half message not stored, retried offset=0" in caplog.text
    await service(wire).round()
    assert [op.body for op in stored(wire, OP_HALF_TOPIC)] == [b"0"]


# ---- checks


@pytest.mark.spec("TX-07", "TX-09")
async def test_check_request_has_message_as_it_would_be_committed() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await become_producer(w)
        await end(w, await half(w, "Z"), ROLLBACK)  # so that no offset is 0
        await half(w, "A")
        sent = await half(w, "B", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
        clock.ms += 5999
        await service(w).round()
        assert w.pushed.empty()
        clock.ms += 1
        await end(w, sent, COMMIT)
        await service(w).round()
        question = await asked(w)
        (_, waiting, _) = await w.messages(HALF_TOPIC)
        assert question.code == RequestCode.CHECK_TRANSACTION_STATE and question.is_oneway
        assert question.ext == {
            "tranStateTableOffset": "1", "commitLogOffset": str(waiting.physical_offset), "msgId": "A",
            "transactionId": "A", "offsetMsgId": f"{w.broker.identity.id_prefix}{waiting.physical_offset:016X}",
        }  # fmt: skip
        message = decode_record(question.body or b"")
        assert (message.topic, message.queue_id, message.body) == ("T", 2, b"order A")
        assert message.properties == waiting.properties | {"TRANSACTION_CHECK_TIMES": "1"}
        assert (message.queue_offset, message.physical_offset) == (1, waiting.physical_offset)
        await service(w).round()
        again = decode_record((await asked(w)).body or b"")
        assert again.properties["TRANSACTION_CHECK_TIMES"] == "2"


@pytest.mark.spec("TX-10")
async def test_check_immunity_time_delays_first_check() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await become_producer(w)
        await half(w, "A", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        clock.ms += 59_999
        await service(w).round()
        assert w.pushed.empty()
        clock.ms += 1
        await service(w).round()
        assert (await asked(w)).ext["msgId"] == "A"


@pytest.mark.spec("TX-08", "ADM-24", "UPG-08")
async def test_half_message_is_discarded_after_check_max_and_resumable() -> None:
    clock = Clock()
    async with wire(clock_ms=clock, transaction_check_max=2) as w:
        await become_producer(w)
        sent = await half(w)
        clock.ms += 10_000
        for _ in range(3):
            await service(w).round()
        assert [(await asked(w)).code for _ in range(2)] == [39, 39] and w.pushed.empty()
        (given_up,) = await w.messages(CHECK_MAX_TIME_TOPIC)
        assert (given_up.body, given_up.properties["REAL_TOPIC"]) == (b"order ID", "T")
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "2"
        late = await end(w, sent, COMMIT)
        assert (late.code, await w.messages(queue=2)) == (1, [])
        key = f"{w.broker.identity.id_prefix}{given_up.physical_offset:016X}"
        assert (await w.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=key)).code == 0
        (_, back) = await w.messages(HALF_TOPIC)
        assert back.properties["TRANSACTION_CHECK_TIMES"] == "0"
        clock.ms += 10_000
        await service(w).round()
        question = await asked(w)
        assert question.ext["tranStateTableOffset"] == "1"
        fields = {"tranStateTableOffset": 1, "commitLogOffset": back.physical_offset}
        assert (await end(w, sent, COMMIT, **fields)).code == 0
        assert [m.body for m in await w.messages(queue=2)] == [b"order ID"]
        for bad in ("", "xyz", sent.ext["msgId"], f"{w.broker.identity.id_prefix}{7:016X}"):
            assert (await w.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=bad)).code == 1


@pytest.mark.spec("TX-08", "TX-09")
async def test_rounds_without_producer_count_as_checks(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    async with wire(clock_ms=clock, transaction_check_max=2) as w:
        await half(w)
        await service(w).round()
        assert service(w).table.pending[0].checks == 0  # not due yet, so the round does not count
        clock.ms += 10_000
        with caplog.at_level(logging.WARNING):
            for checks in (1, 2):
                assert await service(w).round() == set()
                assert service(w).table.pending[0].checks == checks
        assert "no live producer" in caplog.text and "group=producers" in caplog.text
        assert await w.messages(CHECK_MAX_TIME_TOPIC) == []
        await service(w).round()
        (discarded,) = await w.messages(CHECK_MAX_TIME_TOPIC)
        assert discarded.properties["TRANSACTION_CHECK_TIMES"] == "2"
        assert service(w).table.pending == {}


@pytest.mark.spec("TX-08")
async def test_half_message_older_than_log_retention_is_discarded() -> None:
    clock = Clock()
    async with wire(store={"file_reserved_hours": 1}, clock_ms=clock) as w:
        await half(w, CHECK_IMMUNITY_TIME_IN_SECONDS="10000")
        clock.ms += 3_600_000
        await service(w).round()
        assert await w.messages(CHECK_MAX_TIME_TOPIC) == []
        clock.ms += 1
        await service(w).round()
        assert len(await w.messages(CHECK_MAX_TIME_TOPIC)) == 1


@pytest.mark.spec("TX-08")
async def test_check_count_from_message_property_is_continued(tmp_path: Path) -> None:
    """4.9.7 stores a copy of the half message with the count as a property."""
    clock = Clock()
    async with wire(data=tmp_path, clock_ms=clock, transaction_check_max=2) as w:
        await half(w, "A", TRANSACTION_CHECK_TIMES="2")
        await half(w, "C", TRANSACTION_CHECK_TIMES="9" * 5000)
        await half(w, "B", TRANSACTION_CHECK_TIMES="x")
    async with wire(data=tmp_path, clock_ms=clock, transaction_check_max=2) as w:
        while not service(w).ready:
            await asyncio.sleep(0)
        assert {o: h.checks for o, h in service(w).table.pending.items()} == {0: 2, 1: 999_999_999, 2: 0}


@pytest.mark.spec("TX-09", "PR-36")
async def test_producers_are_checked_round_robin() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        other = Wire(w.server)
        await become_producer(w)
        await become_producer(other)
        await half(w)
        clock.ms += 10_000
        for _ in range(4):
            await service(w).round()
        for each in (w, other):
            assert [(await asked(each)).ext["msgId"] for _ in range(2)] == ["ID", "ID"]
        await other.client.close()


@pytest.mark.spec("TX-09")
async def test_at_most_three_producers_are_tried_per_check() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        members = w.broker.clients.producers
        await become_producer(w)
        deaf: list[Any] = [Mock(spec=Connection, closed=n == 0, output_full=n > 0) for n in range(3)]
        (own,) = members["producers"]
        await half(w)
        clock.ms += 10_000
        for number, questions in ((2, 1), (3, 0)):
            members["producers"] = dict.fromkeys([*deaf[:number], own], members["producers"][own])
            w.broker.clients._round = number  # the first of them is next
            assert await service(w).round() == ({0} if questions else set())
        assert (await asked(w)).ext["msgId"] == "ID"
        members["producers"] = {own: members["producers"][own]}


@pytest.mark.spec("TX-07")
async def test_check_task_runs_at_interval() -> None:
    async with wire(transaction_interval_ms=20, transaction_timeout_ms=50) as w:
        await become_producer(w)
        sent = await half(w)
        question = await asked(w)
        assert question.ext["commitLogOffset"] == str(parse_offset_message_id(sent.ext["msgId"])[1])


# ---- restart


@pytest.mark.spec("TX-07", "DUR-19")
@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_restart_restores_undecided_messages_and_check_counts(tmp_path: Path, flush: FlushDiskType) -> None:
    clock = Clock()
    store = {"flush_disk_type": flush}
    async with wire(store=store, data=tmp_path, clock_ms=clock) as w:
        await become_producer(w)
        sent = [await half(w, str(n)) for n in range(5)]
        await end(w, sent[0], COMMIT)
        await end(w, sent[3], ROLLBACK)
        clock.ms += 10_000
        await service(w).round()
    state = json.loads((tmp_path / "store" / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert state[f"{HALF_TOPIC}@{GROUP}"] == {"0": 1} and state[f"{OP_HALF_TOPIC}@{GROUP}"] == {"0": 0}
    async with wire(store=store, data=tmp_path, clock_ms=clock) as w:
        while not service(w).ready:
            await asyncio.sleep(0)
        assert {o: h.checks for o, h in service(w).table.pending.items()} == {1: 1, 2: 1, 4: 1}
        assert (await end(w, sent[0], COMMIT)).code == 1  # already decided; the decision itself is not remembered
        assert len(await w.messages(queue=2)) == 1
        for number in (1, 2, 4):
            assert (await end(w, sent[number], COMMIT)).code == 0
    async with wire(store=store, data=tmp_path, clock_ms=clock) as w:
        assert service(w).ready and service(w).table.pending == {}
        everything = [m.body for offset in range(4) for m in (await w.messages(queue=2, offset=offset))[:1]]
        assert everything == [b"order 0", b"order 1", b"order 2", b"order 4"]


@pytest.mark.spec("TX-05", "DUR-19")
async def test_commit_without_operation_after_crash_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with wire(data=tmp_path, clock_ms=clock) as w:
        await w.send()
        sent = await half(w)
        monkeypatch.setattr(Transactions, "_write_op", lambda self, offset: None)
        assert (await end(w, sent, COMMIT)).code == 0
        monkeypatch.setattr(Transactions, "note_progress", lambda self: None)
    monkeypatch.undo()
    async with wire(data=tmp_path, clock_ms=clock) as w:
        while not service(w).ready:
            await asyncio.sleep(0)
        assert service(w).table.pending == {}
        assert [op.body for op in stored(w, OP_HALF_TOPIC)] == [b"0"]
        assert (await end(w, sent, COMMIT)).code == 1
        assert len(await w.messages(queue=2)) == 1


@pytest.mark.spec("DUR-19")
async def test_progress_is_published_once_decisions_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire(flush_offsets_ms=3_600_000, store={"flush_interval_ms": 3_600_000}) as w:
        t = service(w)
        sent = await half(w)
        assert (await end(w, sent, COMMIT)).code == 0
        for _ in range(3):
            t.note_progress()
        assert w.broker.store.flushed_offset < w.broker.store.log.end
        assert not w.broker.offsets.get(HALF_TOPIC, GROUP, 0)
        await wait_confirmed(w.broker.store.log, w.broker.store.log.end, 5000)
        for _ in range(3):
            t.note_progress()
        assert w.broker.offsets.get(HALF_TOPIC, GROUP, 0) == 1
        assert w.broker.offsets.get(OP_HALF_TOPIC, GROUP, 0) == 1


@pytest.mark.spec("TX-07")
async def test_end_transaction_during_start_is_deferred() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        sent = await half(w)
        service(w).ready = False
        answer = await end(w, sent, COMMIT)
        assert answer.code == 1 and "it will ask later" in (answer.remark or "")
        service(w).ready = True
        assert (await end(w, sent, COMMIT)).code == 0


@pytest.mark.spec("TX-06", "TX-07")
async def test_foreign_operations_are_applied_and_damaged_skipped(tmp_path: Path) -> None:
    """Newer brokers write several offsets into one operation."""
    async with wire(data=tmp_path) as w:
        for n in range(4):
            await half(w, str(n))
        store = w.broker.store
        for body, tag in ((b"0,2,", "d"), (b"1", "x"), (b"junk", "d")):
            store.put(Message(OP_HALF_TOPIC, body, b"TAGS\x01" + tag.encode(), 0))
    async with wire(data=tmp_path) as w:
        while not service(w).ready:
            await asyncio.sleep(0)
        assert sorted(service(w).table.pending) == [1, 3]
