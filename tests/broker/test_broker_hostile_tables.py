"""Tables that strangers fill: topics, half messages, locks, groups; and names and numbers outside their range.

Each test has an honest client beside the hostile one.

Requirements: LIM-13, SND-06, TX-08, NS-34.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from wire import Clock, Wire, wire

from loopsteps import STEP_MAX, loop_steps
from saturnmq.broker.services.half_table import CheckLimits, HalfTable, TransactionOutcome, UndecidedHalf
from saturnmq.broker.state.locks import LOCK_LIVE_MS, QueueLockTable
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import (
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    ProducerData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from saturnmq.protocol.codes import HALF_TOPIC, ResponseCode
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.frames.command import Command

TOPIC = {
    "topic": "A", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
}  # fmt: skip


@pytest.mark.spec("NS-34")
@pytest.mark.parametrize(
    "change",
    [
        {"readQueueNums": 0},
        {"writeQueueNums": 65_537},
        {"readQueueNums": 2_000_000_000},
        {"writeQueueNums": -1},
        {"writeQueueNums": 2**31},
        {"perm": 16},
        {"perm": -1},
        {"topicFilterType": "x" * 10_000},
        {"topic": "../../x"},
        {"topic": "x" * 128},
    ],
    ids=str,
)
async def test_topic_with_numbers_outside_their_range_is_refused(wire: Wire, change: dict[str, object]) -> None:
    answer = await wire.call(Code.UPDATE_AND_CREATE_TOPIC, **TOPIC | change)
    assert answer.code == 1 and len(answer.remark or "") < 500
    assert str(change.get("topic", "A")) not in wire.broker.topics.table
    assert (await wire.call(Code.UPDATE_AND_CREATE_TOPIC, **TOPIC | {"readQueueNums": 65_536})).code == 0
    assert (await wire.send()).code == 0


@pytest.mark.spec("SND-06")
@pytest.mark.parametrize(("asked", "made"), [(2**31 - 1, 8), (0, 1), (-(2**31), 1), (3, 3)])
async def test_send_creates_at_most_the_queues_of_the_default_topic(wire: Wire, asked: int, made: int) -> None:
    assert (await wire.send("new", d=asked)).code == 0
    config = wire.broker.topics.table["new"]
    assert (config.read_queue_nums, config.write_queue_nums) == (made, made)


async def test_impossible_topics_of_another_broker_are_ignored(wire: Wire) -> None:
    table = {name: TopicConfig(name, width, width, 6) for name, width in (("a", 65_536), ("b", 65_537), ("c", -1))}
    wire.broker.topics.take(TopicConfigTable(table))
    assert [name for name in table if name in wire.broker.topics.table] == ["a"]


@pytest.mark.spec("SND-06")
async def test_send_that_creates_a_topic_fails_if_the_topic_cannot_be_saved(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged, and the failure only logged."""
    assert (await wire.send("old")).code == 0
    file = wire.broker.topics.writer._file

    def fail(data: bytes) -> None:
        raise StoreError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file, "write", fail)
        for _ in range(2):  # the topic is in the table now, but still not durable
            refused = await wire.send("new")
            assert refused.code == 1 and "no space left on device" in (refused.remark or "")
        created = await wire.call(Code.UPDATE_AND_CREATE_TOPIC, **TOPIC)
        assert created.code == 1 and "no space left on device" in (created.remark or "")
        assert (await wire.send("old")).code == 0  # others are unaffected
    assert (await wire.send("new")).code == 0
    assert not wire.broker.topics.writer.dirty and b'"new"' in file.path.read_bytes()


# ---- half messages


async def test_clients_commit_no_offsets_of_the_transaction_group(wire: Wire) -> None:
    """The broker would take the offset for its progress after a crash, and forget the half messages before it."""
    assert (await wire.send(properties={"TRAN_MSG": "true", "PGROUP": "honest", "UNIQ_KEY": "x"})).code == 0
    place = {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": HALF_TOPIC, "queueId": 0}
    answer = await wire.call(Code.UPDATE_CONSUMER_OFFSET, **place, commitOffset=1000)
    assert answer.code == ResponseCode.NO_PERMISSION
    more = {"queueOffset": 0, "maxMsgNums": 1, "sysFlag": 5, "suspendTimeoutMillis": 0, "subscription": "*"}
    await wire.call(Code.PULL_MESSAGE, **place, **more, commitOffset=1000, subVersion=0)
    assert not wire.broker.offsets.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0)


@pytest.mark.spec("LIM-13", "TX-08")
async def test_undecided_half_messages_are_limited_in_total_and_per_group() -> None:
    async with wire(half_messages_max=6) as w:

        async def half(group: str) -> int:
            return (await w.send(properties={"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": "x"})).code

        assert [await half("hostile") for _ in range(4)] == [0, 0, 0, ResponseCode.SERVICE_NOT_AVAILABLE]
        assert [await half("honest"), await half("honest")] == [0, 0]
        assert [await half(f"other{n}") for n in range(2)] == [0, ResponseCode.SERVICE_NOT_AVAILABLE]
        assert (await half("x" * 256)) == ResponseCode.MESSAGE_ILLEGAL
        assert (await w.send()).code == 0  # plain messages are unaffected
        assert w.broker.rejections.counts == {"half_messages": 2}
        first = next(iter(w.broker.master.transactions.table.pending.values()))
        end = {
            "producerGroup": "hostile", "tranStateTableOffset": first.offset, "commitLogOffset": first.physical,
            "commitOrRollback": 12, "fromTransactionCheck": False, "msgId": "x",
        }  # fmt: skip
        assert (await w.call(Code.END_TRANSACTION, **end)).code == 0
        assert await half("late") == 0


@pytest.mark.spec("LIM-13")
async def test_half_messages_with_endless_immunity_are_discarded_too() -> None:
    """They kept their places in the table for 72 hours, and honest producers got code 14."""
    clock = Clock()
    async with wire(clock_ms=clock, half_messages_max=4, transaction_check_max=2) as w:

        async def half(group: str, **more: str) -> int:
            return (await w.send(properties={"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": "x"} | more)).code

        endless = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "999999999999"}
        assert [await half(group, **endless) for group in "aabb"] == [0] * 4
        assert await half("honest") == ResponseCode.SERVICE_NOT_AVAILABLE
        clock.ms += 3_600_000
        for _ in range(3):
            await w.broker.master.transactions.round()
            clock.ms += 60_000
        assert w.broker.master.transactions.table.pending == {}
        assert await half("honest") == 0


def test_half_table_counts_by_group() -> None:
    table = HalfTable(CheckLimits(1, 1, 1, pending_max=4))
    for offset in range(2):
        table.add(UndecidedHalf(offset, offset, 0, 0, 0, group="a"))
    assert "one producer group" in (table.problem("a") or "") and table.problem("b") is None
    table.add(UndecidedHalf(1, 1, 0, 0, 0, group="b"))  # again, after a truncation of the log
    assert table.problem("a") is None
    for offset in range(2):
        table.settle(offset, TransactionOutcome.COMMITTED)
    table.settle(9, TransactionOutcome.COMMITTED)
    assert table._of_group == {}


async def test_checks_of_many_half_messages_do_not_hold_the_event_loop() -> None:
    clock = Clock()
    async with wire(clock_ms=clock, half_messages_max=200_000) as w:
        await w.send()
        transactions = w.broker.master.transactions
        for offset in range(200_000):
            transactions.table.add(UndecidedHalf(offset, 2**60, clock.ms, 6000, 0, 1))
        with loop_steps() as steps:
            checks = asyncio.ensure_future(transactions.round())
            while not checks.done():
                assert (await w.send()).code == 0
            transactions.note_progress()
        assert steps.longest < STEP_MAX
        transactions.table.pending.clear()


# ---- locks, groups


@pytest.mark.spec("LIM-13")
def test_expired_locks_make_way_when_the_table_is_full() -> None:
    locks = QueueLockTable(2)
    queues = [MessageQueue("T", "b", n) for n in range(3)]
    assert [locks.lock("G", "c", [queue], 0, f"h{n}:1") for n, queue in enumerate(queues[:2])] == [
        [q] for q in queues[:2]
    ]
    assert locks.lock("H", "d", queues[2:], LOCK_LIVE_MS) == []
    assert locks.lock("H", "d", queues[2:], LOCK_LIVE_MS + 1) == queues[2:]
    locks.unlock("H", "d", queues)
    assert (locks._count, locks._locks) == (0, {})
    for n in range(100):
        assert locks.lock(f"empty{n}", "c", [], 0) == []
    assert locks._locks == {}, "a request without queues leaves nothing"


@pytest.mark.spec("LIM-13")
async def test_locks_with_long_or_illegal_names_are_refused(wire: Wire) -> None:
    assert (await wire.send()).code == 0
    good = LockBatchRequest("G", "c", [MessageQueue("T", "broker-a", 0)])
    bad = [
        dataclasses.replace(good, consumer_group="x" * 256),
        dataclasses.replace(good, client_id="x" * 256),
        dataclasses.replace(good, mq_set=[MessageQueue("x" * 200, "b", 0)]),
        dataclasses.replace(good, mq_set=[MessageQueue("T", "b" * 256, 0)]),
    ]
    for body in bad:
        answer = await wire.call(Code.LOCK_BATCH_MQ, body.encode())
        assert answer.code == 1 and len(answer.remark or "") < 300
    assert wire.broker.locks._locks == {}
    assert b"broker-a" in ((await wire.call(Code.LOCK_BATCH_MQ, good.encode())).body or b"")


@pytest.mark.spec("OR-02")
async def test_stranger_cannot_release_or_renew_the_locks_of_a_live_consumer(wire: Wire) -> None:
    """Its client id, which anyone may list, was enough, from any address."""
    assert (await wire.send()).code == 0
    assert (await wire.heartbeat("G", "T", client_id="honest")).code == 0
    own = LockBatchRequest("G", "honest", [MessageQueue("T", "broker-a", 0)]).encode()
    assert b"broker-a" in ((await wire.call(Code.LOCK_BATCH_MQ, own)).body or b"")
    (connection,) = wire.broker.connections
    remote, connection.remote_address = connection.remote_address, "192.0.2.7:4711"
    hostile = RemotingClient(settings=NetSettings())
    try:
        for code in (Code.UNLOCK_BATCH_MQ, Code.LOCK_BATCH_MQ):
            answer = await hostile.invoke(wire.server.broker_address, Command(code, body=own), 5000)
            assert answer.code == 16 and "from another address" in (answer.remark or "")
        other = LockBatchRequest("G", "other", [MessageQueue("T", "broker-a", 0)]).encode()
        answer = await hostile.invoke(wire.server.broker_address, Command(Code.LOCK_BATCH_MQ, body=other), 5000)
        assert b"broker-a" not in (answer.body or b""), "the honest consumer still owns it"
        assert (await wire.call(Code.LOCK_BATCH_MQ, own)).code == 0
        connection.remote_address = remote  # a second connection of the same host, after the first one is lost
        assert (
            await hostile.invoke(wire.server.broker_address, Command(Code.UNLOCK_BATCH_MQ, body=own), 5000)
        ).code == 0
    finally:
        await hostile.close()


async def test_floods_of_lock_requests_leave_time_to_others() -> None:
    """1,500 queues for each request, the most that its body allows, over one connection without pause."""
    async with wire(fast_failure=False) as w:
        w.broker.topics.set(TopicConfig("wide", 1500, 1500, 6))
        assert (await w.send()).code == 0
        queues = [MessageQueue("wide", "broker-a", n) for n in range(1500)]
        body = LockBatchRequest("H", "stranger", queues).encode()
        hostile = RemotingClient(settings=NetSettings())
        try:
            with loop_steps() as steps:
                code = (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ)
                flood = [
                    asyncio.ensure_future(
                        hostile.invoke(w.server.broker_address, Command(code[n % 2], body=body), 20_000)
                    )
                    for n in range(60)
                ]
                sent = 0
                while not all(one.done() for one in flood):
                    assert (await w.send()).code == 0
                    sent += 1
                assert {one.result().code for one in flood} == {0}
            assert sent > 5 and steps.longest < STEP_MAX
        finally:
            await hostile.close()


@pytest.mark.spec("LIM-13")
async def test_invented_queues_get_no_locks_and_do_not_fill_the_table() -> None:
    """134 requests for 1500 queues of topics that do not exist filled it, and honest clients got no locks."""

    async def lock(w: Wire, group: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        answer = await w.call(Code.LOCK_BATCH_MQ, LockBatchRequest(group, "c", queues).encode())
        return LockBatchResponse.decode(answer.body).lock_ok_mq_set

    async with wire(locks_max=1000) as w:
        assert (await w.send()).code == 0
        assert (await w.heartbeat("G", "T")).code == 0
        honest = [MessageQueue(topic, "broker-a", 0) for topic in ("T", "%RETRY%G")]
        hostile = Wire(w.server)
        for n in range(5):
            assert await lock(hostile, "A", [MessageQueue(f"none-{n}", "broker-a", q) for q in range(1500)]) == []
        assert await lock(hostile, "A", [MessageQueue("T", f"broker-{n}", 0) for n in range(1, 1000)]) == []
        assert await lock(hostile, "A", [MessageQueue("T", "broker-a", q) for q in (-1, 4, 2**31 - 1)]) == []
        taken = [await lock(hostile, f"group-{n}", [MessageQueue("T", "broker-a", 0)]) for n in range(200)]
        assert [len(queues) for queues in taken] == [1] * 100 + [0] * 100, "real queues for invented groups"
        assert await lock(w, "G", honest) == honest
        await hostile.client.close()


@pytest.mark.spec("LIM-13", "BP-10")
async def test_groups_of_every_broker_do_not_count_towards_the_limit() -> None:
    async with wire(groups_max=2) as w:
        await w.send()
        assert [(await w.pull(group=group)).code for group in ("A", "B")] == [0, 0]
        assert (await w.pull(group="C")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        body = SubscriptionGroupConfig("D").encode()  # an administrator's is not limited
        assert (await w.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 0


@pytest.mark.spec("LIM-13")
async def test_system_groups_by_name_count_towards_the_limit(tmp_path: Path) -> None:
    async with wire(data=tmp_path, groups_max=2, auto_create_group=False) as w:
        await w.send()
        codes = [(await w.pull(group=f"CID_RMQ_SYS_{n}")).code for n in range(3)]
        assert codes == [0, 0, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
        async with asyncio.timeout(10):
            await w.broker.groups.writer.saved()
        other = Wire(w.server)
        assert (await other.send()).code == 0
        await other.client.close()


@pytest.mark.spec("LIM-13")
async def test_one_client_cannot_take_all_places_of_live_groups() -> None:
    async with wire(live_groups_max=1000) as w:
        hostile = Wire(w.server)
        names = [ProducerData(f"hostile{number}") for number in range(1000)]
        codes = [
            (await hostile.call(Code.HEART_BEAT, HeartbeatData("h", names[: 100 * tens]).encode())).code
            for tens in range(1, 11)
        ]
        assert codes[:5] == [0] * 5 and codes[5:] == [1] * 5
        for number in range(8):  # more connections take few groups each
            more = [ProducerData(f"more{number}-{each}") for each in range(65)]
            assert (await w.call(Code.HEART_BEAT, HeartbeatData("m", more).encode())).code == 1
        assert (await w.heartbeat("honest", "T")).code == 0
        await hostile.client.close()


@pytest.mark.spec("LIM-13", "OF-05")
async def test_offsets_of_invented_groups_do_not_fill_the_table() -> None:
    async with wire(offsets_max=50, groups_per_hour=10) as w:
        assert (await w.call(Code.UPDATE_AND_CREATE_TOPIC, **TOPIC)).code == 0
        assert (await w.pull("A", group="honest")).code == 19
        fields = {"topic": "A", "queueId": 0, "commitOffset": 0}
        codes = [
            (await w.call(Code.UPDATE_CONSUMER_OFFSET, consumerGroup=f"invented{number}", **fields)).code
            for number in range(60)
        ]
        assert codes == [0] * 9 + [26] * 51
        assert (await w.call(Code.UPDATE_CONSUMER_OFFSET, consumerGroup="honest", **fields)).code == 0


# ---- log lines


async def test_refused_ends_and_replies_take_a_bounded_number_of_log_lines(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a line of up to 200 KB: any client could fill the disk of the log."""
    caplog.clear()
    end = {"producerGroup": "g", "tranStateTableOffset": 1, "commitLogOffset": 1, "commitOrRollback": 8}
    for _ in range(50):
        answer = await wire.call(Code.END_TRANSACTION, **end, transactionId="x" * 100_000)
        assert answer.code == 1
        fields = {"a": "g", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "j": 0}
        to = "REPLY_TO_CLIENT\x01" + "y" * 10_000
        assert (await wire.call(Code.SEND_REPLY_MESSAGE_V2, b"", **fields, i=to)).code == 1
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 5 and max(map(len, lines)) < 1000
