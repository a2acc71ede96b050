"""A master and its slave as brokers: roles, registration, reads from the slave, metadata, and sends that wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from brokerpair import SYNC_FLUSH, Pair, pair

from saturnmq.broker import Broker
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.timer import TimerService
from saturnmq.protocol.codes import RequestCode
from saturnmq.replication.masterslave.settings import HaSettings
from waiting import until


async def test_a_slave_finds_its_master_by_the_name_server_and_serves_its_messages(pair: Pair) -> None:
    for number in range(10):
        assert (await pair.send(pair.master, b"%d" % number)).code == 0
    await pair.replicated()
    found = await pair.messages(pair.slave)
    assert [message.body for message in found] == [b"%d" % number for number in range(10)]
    assert pair.slave.registrar.master_address == pair.master.advertised_address
    host, port = pair.master.ha_master.address  # type: ignore[union-attr]
    assert pair.slave.registrar.ha_server_address == f"{host}:{port}"
    assert pair.master.unauthenticated["ha"] == f"{host}:{port}"


@pytest.mark.spec("ADM-08")
async def test_a_slave_refuses_sends_and_changes(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.replicated()
    end = pair.slave.store.log.end
    answer = await pair.send(pair.slave)
    assert (answer.code, "messages are put to the slave" in (answer.remark or "")) == (14, True)
    fields: dict[int, dict[str, object]] = {
        17: {"topic": "new", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
             "topicFilterType": "SINGLE_TAG", "order": "false"},
        215: {"topic": "T"},
        200: {},
        207: {"groupName": "G"},
    }  # fmt: skip
    for code, ext in fields.items():
        answer = await pair.call(pair.slave, code, b"{}", **ext)
        assert answer.code == 1
        assert "Can't modify topic or subscription group from slave broker" in (answer.remark or "")
    assert pair.slave.store.log.end == end
    assert "new" not in pair.slave.topics.table


@pytest.mark.spec("HA-20")
async def test_delayed_messages_are_delivered_by_the_master_only(pair: Pair) -> None:
    answer = await pair.call(
        pair.master, RequestCode.SEND_MESSAGE_V2, b"late", a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1, h=0,
        i="DELAY\x011", j=0, k="false", m="false",
    )  # fmt: skip
    assert answer.code == 0
    await until(lambda: pair.master.store.max_offset("T", 0) == 1)
    await pair.replicated()
    await asyncio.sleep(20)  # poll
    assert pair.slave.store.max_offset("T", 0) == 1
    assert pair.slave.store.log.end == pair.master.store.log.end


@pytest.mark.spec("HB-06", "DLY-07", "RB-07")
async def test_clients_are_scanned_and_delays_saved_every_10_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[float] = []
    saves: list[float] = []
    timer_saves: list[float] = []

    async def saved(self: DelayService) -> None:
        saves.append(asyncio.get_running_loop().time())

    async def timer_saved(self: TimerService) -> None:
        timer_saves.append(asyncio.get_running_loop().time())

    async with pair(tmp_path) as both:
        for broker in (both.slave, both.master):
            await both.stop_one(broker)
        scan = lambda self: scans.append(asyncio.get_running_loop().time())  # noqa: E731
        monkeypatch.setattr(Broker, "expire_clients", scan)
        monkeypatch.setattr(DelayService, "save", saved)
        monkeypatch.setattr(TimerService, "save", timer_saved)
        began = asyncio.get_running_loop().time()
        await both.start_master()
        await asyncio.sleep(25)  # poll
        for times in (scans, saves, timer_saves):
            assert [round(at - began) for at in times] == [10, 20]
    monkeypatch.undo()


@pytest.mark.spec("RW-07")
@pytest.mark.parametrize("enabled", [False, True])
async def test_a_slave_answers_found_pulls_and_sends_lag_free_consumers_back(tmp_path: Path, enabled: bool) -> None:
    async with pair(tmp_path, slave_read_enable=enabled) as both:
        for _ in range(2):
            await both.send(both.master, b"x" * 1000)
        await both.replicated()
        await both.pull(both.slave)  # creates the group
        if not enabled:
            both.slave.store.memory_bytes = 500  # the consumer lags: with slaveReadEnable it would be kept (RW-06)
        answer = await both.pull(both.slave, maxMsgNums=1)
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, "0")


@pytest.mark.spec("RW-08", "BP-02")
async def test_a_slave_corrects_no_offset_by_default(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.replicated()
    for offset in (500, -5):
        answer = await pair.pull(pair.slave, offset)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(offset))
    answer = await pair.pull(pair.slave, 7, queueId=1)  # an empty queue
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (20, "NO_MESSAGE_IN_QUEUE", "7")
    await pair.stop_one(pair.slave)
    pair._settings["offset_check_in_slave"] = True
    await pair.start_slave()
    for offset, following in ((500, "1"), (-5, "0")):
        answer = await pair.pull(pair.slave, offset)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (21, following)


async def test_a_pull_parked_at_the_slave_is_woken_by_a_replicated_message(pair: Pair) -> None:
    """Apache RocketMQ looks every 5 s (defect 16)."""
    await pair.send(pair.master)
    await pair.replicated()
    parked = asyncio.create_task(pair.pull(pair.slave, 1, sysFlag=6, suspendTimeoutMillis=15_000))
    await asyncio.sleep(0.5)  # poll
    began = asyncio.get_running_loop().time()
    await pair.send(pair.master, b"news")
    answer = await parked
    assert answer.code == 0
    assert asyncio.get_running_loop().time() - began < 3


async def test_topics_groups_and_offsets_follow_the_master(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.call(
        pair.master, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="made", defaultTopic="TBW102", readQueueNums=3,
        writeQueueNums=3, perm=6, topicFilterType="SINGLE_TAG", order="false",
    )  # fmt: skip
    await pair.call(pair.master, 200, b'{"groupName":"slow","whichBrokerWhenConsumeSlowly":1,"retryQueueNums":2}')
    offsets = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    await pair.call(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **offsets, commitOffset=1)
    slave = pair.slave
    await until(lambda: "made" in slave.topics.table and "slow" in slave.groups.table)
    await until(lambda: slave.offsets.get("T", "G", 0) == 1)
    assert slave.topics.table["made"].read_queue_nums == 3
    assert slave.groups.table["slow"].retry_queue_nums == 2
    assert slave.topics.version == pair.master.topics.version
    # what a client commits at the slave stays until the master has something new, in either direction
    await pair.call(slave, RequestCode.UPDATE_CONSUMER_OFFSET, **offsets, commitOffset=7)
    count = pair.master.topics.version.counter
    await pair.call(pair.master, RequestCode.DELETE_TOPIC_IN_BROKER, topic="made")
    await until(lambda: "made" not in slave.topics.table)
    assert pair.master.topics.version.counter > count
    await asyncio.sleep(11)  # poll
    assert slave.offsets.get("T", "G", 0) == 7
    await pair.call(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **offsets, commitOffset=0)
    await until(lambda: slave.offsets.get("T", "G", 0) == 0)


async def test_tables_of_another_broker_are_refused(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.slave.ha_slave.copy._broker_name = "broker-b"  # type: ignore[union-attr]
    await pair.send(pair.master)
    await until(lambda: "are not of a broker broker-b" in caplog.text)
    assert "T" not in pair.slave.topics.table
    await until(lambda: pair.slave.groups.version == pair.master.groups.version)  # each failure is isolated


@pytest.mark.spec("UPG-09")
async def test_a_slave_serves_while_its_master_is_down_and_goes_on_when_it_returns(pair: Pair) -> None:
    await pair.send(pair.master, b"1")
    await pair.replicated()
    await pair.stop_one(pair.master)
    assert [message.body for message in await pair.messages(pair.slave)] == [b"1"]
    await pair.start_master()
    await pair.send(pair.master, b"2")
    await pair.replicated()
    assert [message.body for message in await pair.messages(pair.slave)] == [b"1", b"2"]


async def test_a_slave_becomes_master_by_its_configuration(pair: Pair) -> None:
    await pair.send(pair.master, b"1")
    await pair.replicated()
    await pair.stop_one(pair.master)
    await pair.stop_one(pair.slave)
    promoted = await pair._broker("slave", HaSettings())
    assert (await pair.send(promoted, b"2")).code == 0
    assert [message.body for message in await pair.messages(promoted)] == [b"1", b"2"]


@pytest.mark.parametrize("stopped", [True, False], ids=["at its stop", "without a master"])
async def test_a_slave_creates_topics_that_only_the_log_has(pair: Pair, stopped: bool) -> None:
    """Symptom: a slave whose master died before the first copy of the topics became a master whose messages no client found."""
    await pair.stop_one(pair.slave)
    await pair.send(pair.master, b"1")
    await pair.start_slave()
    await until(lambda: pair.slave.store.dispatched == pair.master.store.dispatched)
    assert "T" not in pair.slave.topics.table  # the first copy is made after 3 s
    await pair.stop_one(pair.master)
    if not stopped:
        await until(lambda: "T" in pair.slave.topics.table)
    await pair.stop_one(pair.slave)
    promoted = await pair._broker("slave", HaSettings())
    assert promoted.topics.table["T"].write_queue_nums == 4
    assert [message.body for message in await pair.messages(promoted)] == [b"1"]


async def test_a_slave_does_not_bring_deleted_topics_back(pair: Pair) -> None:
    await pair.stop_one(pair.slave)
    await pair.send(pair.master, b"1")
    pair.master.topics.delete("T")
    await pair.start_slave()
    await until(lambda: pair.slave.topics.version == pair.master.topics.version)
    await pair.stop_one(pair.slave)
    assert pair.slave.store.dispatched == pair.master.store.dispatched
    assert "T" not in pair.slave.topics.table


# ---- SYNC_MASTER


@pytest.mark.spec("SW-03")
@pytest.mark.parametrize("store", [{}, SYNC_FLUSH])
async def test_a_sync_master_acknowledges_what_a_slave_has(tmp_path: Path, store: dict[str, Any]) -> None:
    async with pair(tmp_path, store, broker_role="SYNC_MASTER") as both:
        await until(lambda: both.master.ha_master.acks.slaves)  # type: ignore[union-attr]
        for number in range(5):
            answer = await both.send(both.master, b"%d" % number)
            assert answer.code == 0
            assert both.slave.store.log.end == both.master.store.log.end
            if store:
                assert both.slave.store.flushed_offset == both.master.store.log.end


@pytest.mark.spec("SW-03", "SW-05")
async def test_sends_that_wait_without_a_slave_are_answered_11_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_role="SYNC_MASTER") as both:
        await both.stop_one(both.slave)
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await both.send(both.master, b"1")
        assert answer.code == 11
        assert clock() - began < 1
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
        assert len(answer.ext["msgId"]) == 32
        assert (await both.send(both.master, b"2", wait="false")).code == 0
        assert [message.body for message in await both.messages(both.master)] == [b"1", b"2"]
        # a lag of the limit counts as no slave; ASYNC_MASTER never waits
        assert HaSettings().fall_behind_max == 268_435_456
        await both.stop_one(both.master)
        await both.start_master(fall_behind_max=1)
        await both.start_slave()
        await until(lambda: both.master.ha_master.acks.slaves)  # type: ignore[union-attr]
        assert (await both.send(both.master)).code == 11
        await both.stop_one(both.slave)
        await both.stop_one(both.master)
        await both.start_master("ASYNC_MASTER")
        assert (await both.send(both.master)).code == 0


@pytest.mark.spec("SW-01", "SW-04", "SW-05")
@pytest.mark.parametrize("store", [{}, SYNC_FLUSH])
async def test_a_slave_that_does_not_answer_makes_sends_end_with_12(tmp_path: Path, store: dict[str, Any]) -> None:
    async with pair(tmp_path, store, broker_role="SYNC_MASTER") as both:
        acks = both.master.ha_master.acks  # type: ignore[union-attr]
        await until(lambda: acks.slaves)
        await both.send(both.master, b"0")
        await both.slave.ha_slave.stop()  # type: ignore[union-attr]
        await until(lambda: not acks.slaves)
        _, writer = await asyncio.open_connection(*both.master.ha_master.address)  # type: ignore[union-attr]
        writer.write(both.master.store.log.end.to_bytes(8, "big"))
        await until(lambda: acks.slaves)
        clock = asyncio.get_running_loop().time
        began = clock()
        waiting = asyncio.create_task(both.send(both.master, b"1"))
        await asyncio.sleep(0.5)  # poll
        assert [message.body for message in await both.messages(both.master)] == [b"0", b"1"]  # others are served
        assert not waiting.done()
        answer = await waiting
        assert answer.code == 12
        assert 3 <= clock() - began < 4 and HaSettings().slave_timeout_ms == 3000
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "1")
        assert len(answer.ext["msgId"]) == 32
        writer.close()
