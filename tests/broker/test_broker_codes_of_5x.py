"""Codes of 5.x that consoles and clients of that release use: settings of one topic or group, and pulls of the pull consumer."""

from __future__ import annotations

import asyncio
import json

import pytest
from wire import Wire

from saturnmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_records


async def lite_pull(w: Wire, *, offset: int = 0, suspend_ms: int = 0) -> Command:
    ext = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 4 | 16 | (2 if suspend_ms else 0), "commitOffset": 0, "suspendTimeoutMillis": suspend_ms,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG", "maxMsgBytes": 2**31 - 1, "requestSource": 0,
    }  # fmt: skip
    return await w.call(RequestCode.LITE_PULL_MESSAGE, version=453, **ext)


@pytest.mark.spec("CON-16")
async def test_topic_config_is_answered_and_attributes_are_ignored(wire: Wire) -> None:
    created = await wire.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="Typed", defaultTopic="TBW102", readQueueNums=3, writeQueueNums=2,
        perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False, attributes="+message.type=FIFO", lo=False,
    )  # fmt: skip
    assert created.code == 0
    answer = await wire.call(RequestCode.GET_TOPIC_CONFIG, topic="Typed", lo=True, version=453)
    assert TopicConfig.decode(answer.body) == TopicConfig("Typed", 3, 2, 6)
    assert json.loads(answer.body or b"")["topicFilterType"] == "SINGLE_TAG"
    none = await wire.call(RequestCode.GET_TOPIC_CONFIG, topic="None")
    assert none.code == ResponseCode.TOPIC_NOT_EXIST and "None" in (none.remark or "")


@pytest.mark.spec("CON-16")
async def test_group_config_is_answered_and_creates_nothing(wire: Wire) -> None:
    of_5x = b'{"groupName":"G","retryMaxTimes":3,"attributes":{},"groupSysFlag":0,"consumeTimeoutMinute":15}'
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, of_5x, version=453)).code == 0
    answer = await wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G", version=453)
    assert SubscriptionGroupConfig.decode(answer.body) == SubscriptionGroupConfig("G", retry_max_times=3)
    none = await wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="H")
    assert none.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "H" not in wire.broker.groups.table


@pytest.mark.spec("CON-16")
async def test_lite_pull_reads_parks_and_wakes_as_a_pull(wire: Wire) -> None:
    assert (await wire.send(body=b"one")).code == 0
    found = await lite_pull(wire)
    assert found.code == 0 and found.ext["nextBeginOffset"] == "1"
    assert [message.body for message in decode_records(found.body or b"")] == [b"one"]
    waiting = asyncio.ensure_future(lite_pull(wire, offset=1, suspend_ms=20_000))
    while not wire.broker.long_polling.count:
        await asyncio.sleep(0)
    assert (await wire.send(body=b"two")).code == 0
    assert [m.body for m in decode_records((await waiting).body or b"")] == [b"two"]
