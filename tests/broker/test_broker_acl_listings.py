"""Rights of read-only administrative requests: what names a topic or group needs its right, listings need an administrator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from protected import ADMIN, USER, protected, refused, topics, v1
from wire import Wire, wire

from saturnmq.protocol.codes import RequestCode as Code

LISTINGS = (
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_BROKER_CONSUME_STATS,
    Code.GET_ALL_PRODUCER_INFO,
)
# code, fields, field that names a topic, field that names a group, fields that may be absent
READS: tuple[tuple[Code, dict[str, Any], str, str, tuple[str, ...]], ...] = (
    (Code.GET_TOPIC_STATS_INFO, {}, "topic", "", ()),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, {}, "topic", "", ()),
    (Code.GET_CONSUMER_CONNECTION_LIST, {}, "", "consumerGroup", ()),
    (Code.GET_CONSUME_STATS, {}, "topic", "consumerGroup", ("topic",)),
    (Code.QUERY_CONSUME_QUEUE, {"queueId": 0, "index": 0, "count": 1}, "topic", "consumerGroup", ("consumerGroup",)),
    (Code.QUERY_CONSUME_TIME_SPAN, {}, "topic", "group", ()),
    (Code.QUERY_CORRECTION_OFFSET, {"filterGroups": ""}, "topic", "compareGroup", ()),
    (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"clientAddr": ""}, "topic", "group", ()),
)


@pytest.mark.parametrize(("code", "fields", "topic", "group", "optional"), READS, ids=[row[0].name for row in READS])
async def test_reading_about_a_topic_or_group_needs_its_right(
    protected: Wire, code: Code, fields: dict[str, Any], topic: str, group: str, optional: tuple[str, ...]
) -> None:
    await topics(protected, "Read", "Never")
    protected.sign = v1(USER)
    own = fields | ({topic: "Read"} if topic else {}) | ({group: "open"} if group else {})
    assert not refused(await protected.call(code, **own))
    if topic:
        assert refused(await protected.call(code, **own | {topic: "Never"})) == "No default permission for topic:Never"
        internal = await protected.call(code, **own | {topic: "SCHEDULE_TOPIC_XXXX"})
        assert refused(internal) == "No default permission for topic:SCHEDULE_TOPIC_XXXX"
    if group:
        closed = await protected.call(code, **own | {group: "closed"})
        assert refused(closed) == "No default permission for group:closed"
    for name in filter(None, (topic, group)):
        for without in ({n: v for n, v in own.items() if n != name}, own | {name: ""}):
            missing = refused(await protected.call(code, **without))
            assert missing == ("" if name in optional else f"the custom field <{name}> is null")
    protected.sign = v1(ADMIN)
    assert not refused(await protected.call(code, **own | ({topic: "Never"} if topic else {})))


@pytest.mark.parametrize("code", LISTINGS, ids=[code.name for code in LISTINGS])
async def test_listings_need_an_administrator_and_no_address(tmp_path: Path, code: Code) -> None:
    fields = {"producerGroup": "p", "isOrder": "false"}
    async with protected(tmp_path / "acl", acl_plain_admin_addresses="10.0.0.1", admin_addresses="10.0.0.1") as w:
        w.sign = v1(USER)
        text = f"Need admin permission for request code={code.value}, but accessKey=RocketMQ is not"
        assert refused(await w.call(code, **fields)) == text
        for admin in (ADMIN, ("limitedAdmin", "12345678")):
            w.sign = v1(admin)
            assert not refused(await w.call(code, **fields))
    async with wire(data=tmp_path / "open", admin_addresses="10.0.0.1") as w:  # without access control: as 4.9.7
        assert (await w.call(code, **fields)).code != 16


async def test_compatibility_mode_asks_no_right_for_these_reads(tmp_path: Path) -> None:
    async with protected(tmp_path, acl_compat=True) as w:
        await topics(w, "Never")
        w.sign = v1(USER)
        for code, fields, topic, group, _ in READS:
            named = fields | ({topic: "Never"} if topic else {}) | ({group: "closed"} if group else {})
            assert not refused(await w.call(code, **named)), code
        for code in LISTINGS:
            assert not refused(await w.call(code, producerGroup="p", isOrder="false")), code
