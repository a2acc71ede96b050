"""The table of request codes: complete, consistent, and obeyed by the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from wire import wire

from saturnmq.broker.requests.route import BODY_BYTES_MAX, Effect, Need, Ports, Resource, Right, Roles
from saturnmq.broker.requests.table import FAST_CODES, LEADER_ONLY, NOT_SERVED, READER_ONLY, ROUTES, TABLE
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, RequestCode
from saturnmq.protocol.frames.header_templates import CHANGING

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(work())


@pytest.mark.parametrize("code", RequestCode)
def test_every_code_has_a_row_or_a_reason(code: RequestCode) -> None:
    assert (code in TABLE) != (code in NOT_SERVED)
    assert code in TABLE or NOT_SERVED[code]


def test_a_code_has_one_row() -> None:
    assert len(TABLE) == len(ROUTES)


def test_codes_of_the_leader_change_state() -> None:
    assert {TABLE[code].effect for code in LEADER_ONLY} == {Effect.CHANGE}
    assert {RequestCode.PULL_MESSAGE} == READER_ONLY


def test_changes_that_followers_serve_stay_with_the_member() -> None:
    local = {route.code for route in ROUTES if route.effect is Effect.CHANGE and route.roles is Roles.ANY}
    assert local == {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    }


def test_header_templates_serve_only_handlers_that_read_fields() -> None:
    assert {route.code for route in ROUTES if route.template} == set(CHANGING)
    assert all(TABLE[code].header is None for code in CHANGING)


@pytest.mark.spec("REM-28")
def test_fast_port_serves_all_codes_but_pulls() -> None:
    assert TABLE.keys() - FAST_CODES == {RequestCode.PULL_MESSAGE}
    assert TABLE[RequestCode.PULL_MESSAGE].ports is Ports.MAIN


def test_permissions_are_those_of_4_9_7() -> None:
    def sub(kind: Resource, field: str) -> Need:
        return Need(Right.SUB, kind, field)

    topic, group = sub(Resource.TOPIC, "topic"), sub(Resource.GROUP, "consumerGroup")
    admin = (Need(Right.ADMIN, Resource.CLUSTER),)
    assert {int(route.code): route.needs for route in ROUTES if route.needs} == {
        10: (Need(Right.PUB, Resource.TOPIC, "topic", "group"),),
        310: (Need(Right.PUB, Resource.TOPIC, "b", "a"),),
        36: (sub(Resource.GROUP, "group"),),
        11: (topic, group),
        12: (topic,),
        34: (sub(Resource.GROUP, ""), sub(Resource.TOPIC, "")),
        35: (group,),
        38: (group,),
        15: (topic, group),
        **dict.fromkeys((17, 25, 200, 207, 215), admin),
    }


@pytest.mark.spec("SND-05")
@pytest.mark.parametrize("code", SENDS)
def test_every_send_rejects_topics_of_the_broker(code: RequestCode) -> None:
    async def work() -> None:
        async with wire() as w:
            for topic in sorted(FORBIDDEN_SEND_TOPICS):
                short = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
                names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
                         "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag"}  # fmt: skip
                answer = await w.call(code, b"x", **short, **{names[name]: text for name, text in short.items()})
                assert answer.code == 16 and "forbidden" in (answer.remark or ""), (topic, answer.remark)

    run(work)


def test_body_above_the_limit_of_its_code_is_rejected() -> None:
    async def work() -> None:
        async with wire() as w:
            answer = await w.call(RequestCode.LOCK_BATCH_MQ, b" " * (BODY_BYTES_MAX + 1))
            assert answer.code == 1 and "LOCK_BATCH_MQ" in (answer.remark or "")
            assert (await w.call(RequestCode.GET_ALL_TOPIC_CONFIG, b" " * BODY_BYTES_MAX)).code == 0

    run(work)
