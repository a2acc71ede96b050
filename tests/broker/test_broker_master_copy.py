"""What a slave copies from its master, when, and what it leaves alone."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokerpair import Pair, pair

from saturnmq.broker import Broker
from saturnmq.broker.master_copy import FIRST_SECONDS, PERIOD_SECONDS, MasterCopy
from saturnmq.net import Connection, Later
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.replication.masterslave.settings import HaSettings
from waiting import until

TABLES = [21, 43, 45, 201]  # topics, consumer offsets, delay offsets, groups
OFFSET: dict[str, object] = {"consumerGroup": "G", "topic": "T", "queueId": 0}


def intercepted(both: Pair, answer: Callable[[Command], Any], broker: Broker | None = None) -> list[tuple[float, int]]:
    """Times and codes of what a broker, by default the master, is asked for; answer(request): another answer, or None."""
    asked: list[tuple[float, int]] = []

    def wrap(handler: Any) -> Any:
        def handle(connection: Connection, request: Command) -> Any:
            if request.code in TABLES:
                asked.append((asyncio.get_running_loop().time(), request.code))
                other = answer(request)
                if other is not None:
                    return other
            return handler(connection, request)

        return handle

    (broker or both.master).intercept(wrap)
    return asked


def copy_of(both: Pair) -> MasterCopy:
    assert both.slave.ha_slave is not None
    return both.slave.ha_slave.copy


def state(both: Pair, role: str, name: str) -> Any:
    path = both.root / role / "config" / name
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.spec("MS-01", "MS-02")
async def test_tables_are_copied_in_order_after_3_seconds_and_then_every_10(pair: Pair) -> None:
    await pair.stop_one(pair.slave)
    asked = intercepted(pair, lambda request: None)
    began = asyncio.get_running_loop().time()
    await pair.start_slave()
    await until(lambda: len(asked) == 12, 60)
    assert [code for _, code in asked] == TABLES * 3
    starts = [at for at, code in asked if code == TABLES[0]]
    assert FIRST_SECONDS == 3 and PERIOD_SECONDS == 10
    assert 3 <= starts[0] - began < 4
    assert all(9.9 < after - before < 13 for before, after in itertools.pairwise(starts))


@pytest.mark.spec("MS-01")
async def test_a_restarted_master_learns_nothing_from_its_slave(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.replicated()
    await pair.stop_one(pair.master)
    await pair.call(pair.slave, RequestCode.UPDATE_CONSUMER_OFFSET, **OFFSET, commitOffset=1)
    await pair.start_master()
    await asyncio.sleep(30)  # poll
    assert pair.slave.offsets.get("T", "G", 0) == 1
    assert pair.master.offsets.get("T", "G", 0) is None


async def test_first_copy_keeps_newer_offsets_of_the_slave(pair: Pair) -> None:
    """Later copies lower an offset that was reset at the master."""
    for _ in range(3):
        await pair.send(pair.master)
    await pair.replicated()
    await pair.call(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **OFFSET, commitOffset=1)
    await pair.call(pair.slave, RequestCode.UPDATE_CONSUMER_OFFSET, **OFFSET, commitOffset=3)
    copy = copy_of(pair)
    copy._masters.clear()  # as after a start of the slave
    await copy.copy()
    assert pair.slave.offsets.get("T", "G", 0) == 3
    await pair.call(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **OFFSET, commitOffset=2)
    await copy.copy()
    assert pair.slave.offsets.get("T", "G", 0) == 2


@pytest.mark.spec("MS-01", "MS-02")
@pytest.mark.parametrize("failing", TABLES)
async def test_a_table_that_fails_or_is_not_answered_keeps_no_other_back(
    tmp_path: Path, failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = asyncio.get_running_loop().time
    async with pair(tmp_path) as both:
        await both.send(both.master)
        await both.replicated()
        answers: list[Callable[[Command], Any]] = [
            lambda request: request.reply(1, "broken"),
            lambda request: request.reply(body=b"[1"),
            lambda request: Later(),  # never answered
        ]
        asked = intercepted(both, lambda request: answers[0](request) if request.code == failing else None)
        while answers:
            await both.stop_one(both.slave)
            asked.clear()
            caplog.clear()
            await both.start_slave()
            await until(lambda: len(asked) == len(TABLES), 60)
            await until(lambda: "copy from master failed" in caplog.text, 60)
            assert [code for _, code in asked] == TABLES
            assert caplog.text.count("copy from master failed") == 1
            times = [at for at, _ in asked]
            waited = clock() - times[0] if failing == TABLES[-1] else times[TABLES.index(failing) + 1] - times[0]
            assert (waited > 2.9) == (len(answers) == 1)  # a call takes at most 3 s, of which connecting is a part
            answers.pop(0)


@pytest.mark.spec("MS-02")
async def test_nothing_is_copied_from_an_unknown_master_or_itself(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    await pair.send(pair.master)
    asked = intercepted(pair, lambda request: None)
    await pair.stop_one(pair.slave)
    await pair.start_slave()
    await until(lambda: len(asked) == len(TABLES), 60)
    asked.clear()
    caplog.clear()
    asked_itself = intercepted(pair, lambda request: None, pair.slave)
    registrar, own = pair.slave.registrar, pair.slave.advertised_address
    for address in ("", own):
        registrar.master_address = address
        await copy_of(pair).copy()
    assert not asked and not asked_itself and "copy from master failed" not in caplog.text


@pytest.mark.spec("MS-03")
async def test_topics_and_groups_are_replaced_if_their_version_differs(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.call(pair.master, 200, b'{"groupName":"slow","retryQueueNums":2}')
    await pair.replicated()
    copy = copy_of(pair)
    await copy.copy()
    slave = pair.slave
    assert slave.topics.version == pair.master.topics.version
    assert slave.groups.version == pair.master.groups.version
    changes = slave.topics.writer.changes, slave.groups.writer.changes
    del slave.topics.table["T"]  # the version is equal, so nothing is compared, taken over or written
    await copy.copy()
    assert "T" not in slave.topics.table
    assert (slave.topics.writer.changes, slave.groups.writer.changes) == changes
    await pair.call(pair.master, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="slow")
    await pair.call(
        pair.master, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="made", defaultTopic="TBW102", readQueueNums=3,
        writeQueueNums=3, perm=6, topicFilterType="SINGLE_TAG", order="false",
    )  # fmt: skip
    await copy.copy()
    assert {"T", "made"} <= slave.topics.table.keys()
    assert "slow" not in slave.groups.table
    await asyncio.gather(slave.topics.writer.saved(), slave.groups.writer.saved())
    for name, key in (
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        own, its = state(pair, "slave", name), state(pair, "master", name)
        assert own["dataVersion"] == its["dataVersion"]
        assert own[key].keys() >= its[key].keys()


@pytest.mark.spec("MS-05")
async def test_progress_by_level_is_written_to_its_file_and_used_after_a_change_of_role(pair: Pair) -> None:
    for number in range(3):
        answer = await pair.call(
            pair.master, RequestCode.SEND_MESSAGE_V2, b"%d" % number, a="p", b="T", c="TBW102", d=4, e=0, f=0,
            g=1, h=0, i="DELAY\x011", j=0, k="false", m="false",
        )  # fmt: skip
        assert answer.code == 0
    await until(lambda: pair.master.store.max_offset("T", 0) == 3)
    await until(lambda: (state(pair, "slave", "delayOffset.json") or {}).get("offsetTable") == {"1": 3}, 60)
    assert pair.slave.master.delay.offsets().get(1, 0) != 3  # the file only
    await pair.stop_one(pair.master)
    await pair.stop_one(pair.slave)
    assert state(pair, "slave", "delayOffset.json")["offsetTable"] == {"1": 3}
    promoted = await pair._broker("slave", HaSettings())
    assert promoted.master.delay.offsets()[1] == 3
    await asyncio.sleep(30)  # poll
    assert promoted.store.max_offset("T", 0) == 3


@pytest.mark.spec("MS-07")
async def test_pulls_commit_at_the_master_on_their_first_processing(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.replicated()
    await pair.pull(pair.slave, sysFlag=5, commitOffset=1)
    assert pair.slave.offsets.get("T", "G", 0) is None
    await pair.pull(pair.master, sysFlag=4, commitOffset=1)  # without the flag
    assert pair.master.offsets.get("T", "G", 0) is None
    parked = asyncio.create_task(pair.pull(pair.master, 1, sysFlag=7, suspendTimeoutMillis=15_000, commitOffset=1))
    await until(lambda: pair.master.offsets.get("T", "G", 0) == 1)
    await pair.call(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **OFFSET, commitOffset=0)
    await pair.send(pair.master)
    assert (await parked).code == 0
    assert pair.master.offsets.get("T", "G", 0) == 0  # not again when it is woken
    await pair.stop_one(pair.slave)
    await pair.pull(pair.master, sysFlag=5, commitOffset=2)  # after a failover: the master is up to date again
    assert pair.master.offsets.get("T", "G", 0) == 2


@pytest.mark.spec("MS-09")
async def test_filters_of_consumers_are_not_copied(tmp_path: Path) -> None:
    async with pair(tmp_path, property_filter_enable=True) as both:
        await both.send(both.master)
        await both.replicated()
        subscription = SubscriptionData("T", "a > 1", sub_version=1, expression_type="SQL92")
        consumer = ConsumerData(
            "G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [subscription], unit_mode=False
        )
        heartbeat = HeartbeatData("client", [], [consumer])
        assert (await both.call(both.master, RequestCode.HEART_BEAT, heartbeat.encode())).code == 0
        await both.master.filters.saved()
        assert "a > 1" in json.dumps(state(both, "master", "consumerFilter.json"))
        asked = intercepted(both, lambda request: None)
        await both.stop_one(both.slave)
        await both.start_slave()
        await until(lambda: len(asked) >= 2 * len(TABLES), 60)
        await both.slave.filters.saved()
        assert "a > 1" not in json.dumps(state(both, "slave", "consumerFilter.json"))
