"""The table of request codes: complete, consistent, and obeyed by the broker."""

from __future__ import annotations

import pytest
from wire import Wire

from saturnmq.broker.requests.rights import COMPAT_NEEDS
from saturnmq.broker.requests.table import (
    FAST_CODES,
    FORWARDED,
    LEADER_ONLY,
    NOT_SERVED,
    READER_ONLY,
    ROUTES,
    SHOW_ENDS,
    TABLE,
)
from saturnmq.broker.requests.table_row import (
    BODY_BYTES_MAX,
    LIST_BYTES_MAX,
    Effect,
    Need,
    Ports,
    Resource,
    Right,
    Roles,
)
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, RequestCode

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}


@pytest.mark.parametrize("code", RequestCode)
def test_every_code_has_a_row_or_a_reason(code: RequestCode) -> None:
    assert (code in TABLE) != (code in NOT_SERVED)
    assert code in TABLE or NOT_SERVED[code]


def test_a_code_has_one_row() -> None:
    assert len(TABLE) == len(ROUTES)


def test_codes_of_the_leader_change_state() -> None:
    assert {TABLE[code].effect for code in LEADER_ONLY} == {Effect.CHANGE}
    assert PULLS == READER_ONLY


@pytest.mark.spec("DL-C03", "DL-X08")
def test_codes_that_show_ends_of_queues_are_not_of_followers() -> None:
    """A follower's queues may end before the leader's, those of a new leader before what the last one has shown."""
    assert {
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
    } == SHOW_ENDS
    assert SHOW_ENDS < FORWARDED and {TABLE[code].effect for code in SHOW_ENDS} == {Effect.READ}


def test_changes_that_followers_serve_stay_with_the_member() -> None:
    local = {route.code for route in ROUTES if route.effect is Effect.CHANGE and route.roles is Roles.ANY}
    assert local == {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    }


@pytest.mark.spec("REM-28")
def test_fast_port_serves_all_codes_but_pulls() -> None:
    assert TABLE.keys() - FAST_CODES == PULLS
    assert {TABLE[code].ports for code in PULLS} == {Ports.MAIN}


def _sub(kind: Resource, field: str = "") -> Need:
    return Need(Right.SUB, kind, field)


_ADMIN = (Need(Right.ADMIN, Resource.CLUSTER),)
_TOPIC, _GROUP = _sub(Resource.TOPIC, "topic"), _sub(Resource.GROUP, "consumerGroup")
_IN_BODY = (_sub(Resource.GROUP), _sub(Resource.TOPIC))


@pytest.mark.spec("ACL-09", "ACL-10")
def test_rights_in_compatibility_mode_are_those_of_4_9_7() -> None:
    assert {
        10: (Need(Right.PUB, Resource.TOPIC, "topic", "group"),),
        310: (Need(Right.PUB, Resource.TOPIC, "b", "a"),),
        36: (_sub(Resource.GROUP, "group"),),
        **dict.fromkeys((11, 361), (_TOPIC, _GROUP)),
        12: (_TOPIC,),
        34: _IN_BODY,
        35: (_GROUP,),
        38: (_GROUP,),
        15: (_GROUP, _TOPIC),
        **dict.fromkeys((17, 25, 200, 207, 215), _ADMIN),
    } == COMPAT_NEEDS


@pytest.mark.spec("SEC-12")
def test_rights_are_strict_by_default() -> None:
    pub_v1, pub_v2 = (Need(Right.PUB, Resource.TOPIC, "topic"),), (Need(Right.PUB, Resource.TOPIC, "b"),)
    message = _sub(Resource.MESSAGE, "offset")
    assert {int(route.code): route.needs for route in ROUTES if route.needs} == {
        **dict.fromkeys((10, 324), pub_v1),
        **dict.fromkeys((310, 320, 325), pub_v2),
        37: (Need(Right.PUB, Resource.MESSAGE, "commitLogOffset"),),
        36: (_sub(Resource.GROUP, "group"), message),
        33: (message,),
        **dict.fromkeys((11, 14, 15, 361), (_TOPIC, _GROUP)),
        **dict.fromkeys((12, 29, 30, 31, 32, 202, 300), (_TOPIC,)),
        **dict.fromkeys((34, 41, 42), _IN_BODY),
        **dict.fromkeys((35, 38, 203, 307), (_GROUP,)),
        208: (_GROUP, _TOPIC),
        321: (_TOPIC, _GROUP),
        **dict.fromkeys((223, 303), (_TOPIC, _sub(Resource.GROUP, "group"))),
        308: (_TOPIC, _sub(Resource.GROUP, "compareGroup")),
        **dict.fromkeys((21, 43, 45, 201, 204, 315, 317, 328, 351, 352), (Need(Right.ADMIN, Resource.LISTING),)),
        309: (_GROUP, _sub(Resource.MESSAGE, "msgId")),
        **dict.fromkeys((17, 25, 50, 51, 52, 53, 54, 200, 207, 215, 222, 306, 314, 316, 323, 329), _ADMIN),
    }


@pytest.mark.spec("SND-05")
@pytest.mark.parametrize("code", SENDS)
@pytest.mark.loop(real=True)
async def test_every_send_rejects_topics_of_the_broker(wire: Wire, code: RequestCode) -> None:
    for topic in sorted(FORBIDDEN_SEND_TOPICS):
        short = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
                 "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag"}  # fmt: skip
        answer = await wire.call(code, b"x", **short, **{names[name]: text for name, text in short.items()})
        assert answer.code == 16 and "forbidden" in (answer.remark or ""), (topic, answer.remark)


@pytest.mark.loop(real=True)
async def test_body_above_the_limit_of_its_code_is_rejected(wire: Wire) -> None:
    answer = await wire.call(RequestCode.LOCK_BATCH_MQ, b" " * (LIST_BYTES_MAX + 1))
    assert answer.code == 1 and "LOCK_BATCH_MQ" in (answer.remark or "")
    assert (await wire.call(RequestCode.GET_ALL_TOPIC_CONFIG, b" " * BODY_BYTES_MAX)).code == 0
