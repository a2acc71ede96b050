"""Resets of offsets by the administration library: online, offline, and what decides between them."""

from __future__ import annotations

from typing import Any

import pytest
from scriptedadmin import ScriptedConnection

from saturnmq.admin.offsets import TO_THE_END, Offsets
from saturnmq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    ResetOffsetBody,
    TopicRouteData,
)
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError, response_error
from saturnmq.protocol.offsets import QueueOffset

BROKERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


@pytest.mark.spec("C-41", "ADM-26")
async def test_brokers_are_asked_as_a_cpp_client_only_on_demand() -> None:
    def reset(address: str, ext: Any) -> ResetOffsetBody:
        assert (ext["timestamp"], ext["isForce"]) == ("-1", "false")
        return ResetOffsetBody({MessageQueue("t", address[-1], 0): QueueOffset(4)})

    connection = ScriptedConnection(BROKERS, {RESET: reset})
    for cpp, language in ((False, Language.PYTHON), (True, Language.CPP)):
        connection.languages.clear()
        found = await Offsets(connection).reset("g", "t", TO_THE_END, force=False, cpp=cpp)
        assert isinstance(found, dict) and len(found) == 2
        assert connection.languages == [language, language]


@pytest.mark.spec("ADM-26")
async def test_a_refusal_is_reported_while_clients_are_connected() -> None:
    """Offsets are not committed behind the back of clients, which would commit over them."""
    refusal = response_error(ResponseCode.SYSTEM_ERROR, "THe consumer group <g> not exist")
    clients = ConsumerConnection([Connection("c", "127.0.0.1:9", "JAVA", 407)])
    script = {RESET: lambda *_: refusal, RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda *_: clients}
    connection = ScriptedConnection(BROKERS, script)
    with pytest.raises(ResponseError, match="not exist"):
        await Offsets(connection).reset("g", "t", TO_THE_END)
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in {code for _, code in connection.asked}


class OnOneBroker(ScriptedConnection):
    """The topic "t" is on broker a only, and in the route of broker a only."""

    async def route(self, topic: str) -> TopicRouteData:
        found = await super().route(topic)
        if topic == "t":
            found.broker_datas = found.broker_datas[:1]
        return found


@pytest.mark.spec("C-43")
@pytest.mark.parametrize("lost", [False, True])
async def test_clone_leaves_out_other_topics_of_brokers_without_the_topic(lost: bool) -> None:
    queues = [MessageQueue("t", "a", 0), MessageQueue("%RETRY%g", "a", 0), MessageQueue("%RETRY%g", "b", 0)]
    queues += [MessageQueue("t", "b", 0)] * lost

    def stats(address: str, ext: Any) -> ConsumeStats:
        name = "a" if address == BROKERS["a"] else "b"
        return ConsumeStats({one: OffsetWrapper(9, 5, 0) for one in queues if one.broker_name == name})

    script = {RequestCode.GET_CONSUME_STATS: stats, RequestCode.UPDATE_CONSUMER_OFFSET: lambda *_: GroupList()}
    connection = OnOneBroker(BROKERS, script)
    if lost:
        with pytest.raises(ResponseError, match="nothing was cloned"):
            await Offsets(connection).clone("g", "h", "t")
    else:
        assert await Offsets(connection).clone("g", "h", "t") == dict.fromkeys(queues[:2], 5)
    changed = [address for address, code in connection.asked if code == RequestCode.UPDATE_CONSUMER_OFFSET]
    assert changed == ([] if lost else [BROKERS["a"]] * 2)
