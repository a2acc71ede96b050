"""Code 222: offsets at a time are pushed to every member of a group, or nothing is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from wire import Wire, commit, member

from saturnmq.protocol.bodies import MessageQueue, ResetOffsetBody, TopicConfig
from saturnmq.protocol.codes import VERSION_OFFSET_PUSH, Language, RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command


async def reset(w: Wire, language: int = Language.JAVA, **ext: str) -> Command:
    texts = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"} | ext
    ask = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=texts, language=language)
    return await w.client.invoke(w.server.broker_address, ask, 10_000)


class Pushed:
    """Offsets that a member was sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, connection: object, request: Command) -> None:
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            assert request.is_oneway and (request.ext["topic"], request.ext["group"]) == ("T", "G")
            self.bodies.append(request.body or b"")


@pytest.mark.spec("ADM-26")
async def test_queues_without_an_offset_start_at_the_time(wire: Wire) -> None:
    wire.broker.topics.set(TopicConfig("T", 3, 3))
    for queue in (0, 0, 1, 2):
        assert (await wire.send(queue=queue)).code == 0
    never = await reset(wire)
    assert (never.code, "<G> not exist" in (never.remark or "")) == (1, True), "no queue has an offset"
    await commit(wire, 1, queue=0)  # Apache RocketMQ refuses while queues 1 and 2 have none
    offline = await reset(wire)
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    pushed = Pushed()
    async with member(wire, pushed):
        for force, expected in (("true", [2, 1, 1]), ("false", [1, 1, 1])):
            answer = await reset(wire, isForce=force)
            table = ResetOffsetBody.decode(answer.body).offset_table
            assert table == {MessageQueue("T", "broker-a", n): offset for n, offset in enumerate(expected)}
        await until_pushed(pushed, 2)
    assert [ResetOffsetBody.decode(body).offset_table[MessageQueue("T", "broker-a", 0)] for body in pushed.bodies] == [
        2,
        1,
    ]
    assert wire.broker.offsets.of("T", "G") == {0: 1}, "members commit, the broker does not"


async def until_pushed(pushed: Pushed, count: int) -> None:
    while len(pushed.bodies) < count:
        await asyncio.sleep(0.01)  # poll


@pytest.mark.spec("ADM-26")
async def test_member_of_an_old_release_keeps_all_members_from_being_reset(wire: Wire) -> None:
    assert (await wire.send()).code == 0
    await commit(wire, 1)
    pushed, old = Pushed(), Pushed()
    async with member(wire, pushed):
        async with member(wire, old, client_id="old", version=VERSION_OFFSET_PUSH - 1):
            answer = await reset(wire)
            assert answer.code == 1 and "client=old version=27" in (answer.remark or "")
            status = await wire.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G")
            assert status.code == 1 and "does not support this feature" in (status.remark or "")
        async with member(wire, old, client_id="old", version=VERSION_OFFSET_PUSH):
            while len(wire.broker.clients.consumers["G"].members) != 2:
                assert (await wire.send()).code == 0
            assert (await reset(wire)).code == 0
            await until_pushed(pushed, 1)
            await until_pushed(old, 1)
    assert (len(pushed.bodies), len(old.bodies)) == (1, 1)


@pytest.mark.spec("ADM-26")
@pytest.mark.parametrize(
    ("requester", "client", "as_list"),
    [
        (Language.JAVA, Language.CPP, True),
        (Language.JAVA, Language.PYTHON, False),
        (Language.CPP, Language.PYTHON, True),  # a client around the C++ library, reset with `mqadmin -c`
        (Language.CPP, Language.JAVA, False),
    ],
)
async def test_clients_in_cpp_get_the_list_form(wire: Wire, requester: int, client: int, as_list: bool) -> None:
    assert (await wire.send()).code == 0
    await commit(wire, 0)
    pushed = Pushed()
    async with member(wire, pushed, language=client):
        answer = await reset(wire, requester, timestamp="-1")
        assert ResetOffsetBody.decode(answer.body).offset_table[MessageQueue("T", "broker-a", 0)] == 1
        await until_pushed(pushed, 1)
    rows: list[Any] = [{"topic": "T", "brokerName": "broker-a", "queueId": n, "offset": int(not n)} for n in range(4)]
    if as_list:
        assert json.loads(pushed.bodies[0])["offsetTable"] == rows
    else:
        assert len(ResetOffsetBody.decode(pushed.bodies[0]).offset_table) == len(rows)
