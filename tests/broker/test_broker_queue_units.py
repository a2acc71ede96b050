"""Code 321: units of a consume queue, what a subscription accepts of them, and bounds for an index outside the queue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.broker.requests.queue_units import UNITS_MAX, bits
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, QueryConsumeQueueResponse, SubscriptionData
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import java_hash


async def units(w: Wire, **ext: object) -> tuple[Command, QueryConsumeQueueResponse]:
    asked: dict[str, Any] = {"topic": "T", "queueId": 0, "index": 0, "count": 10}
    answer = await w.call(RequestCode.QUERY_CONSUME_QUEUE, **(asked | ext))
    return answer, QueryConsumeQueueResponse.decode(answer.body or b"{}")


@pytest.mark.spec("RT-13", "UPG-12")
async def test_units_have_places_codes_and_verdict_of_the_tags(wire: Wire) -> None:
    for tag in ("a", "b", "a"):
        assert (await wire.send(properties={"TAGS": tag})).code == 0
    _, found = await units(wire)
    assert (found.min_queue_index, found.max_queue_index, found.filter_data) == (0, 3, None)
    first, second, _ = found.queue_data
    assert (first.physic_offset, second.physic_offset) == (0, first.physic_size)
    assert [(u.tags_code, u.eval, u.extend_data_json, u.bit_map, u.msg) for u in found.queue_data] == [
        (java_hash(tag), False, None, None, None) for tag in ("a", "b", "a")
    ]
    _, found = await units(wire, index=1, count=1, consumerGroup="G")
    assert found.filter_data == "G@T is not online!" and [u.tags_code for u in found.queue_data] == [98]
    await wire.heartbeat("G", "T", tags="b")
    _, found = await units(wire, consumerGroup="G")
    assert [u.eval for u in found.queue_data] == [False, True, False] and found.filter_data == "null"
    assert found.subscription_data is not None and found.subscription_data.sub_string == "b"
    assert [len((await units(wire, count=count))[1].queue_data) for count in (-1, 0, 2, UNITS_MAX + 5)] == [
        0,
        0,
        2,
        3,
    ]


@pytest.mark.spec("RT-13")
async def test_units_of_an_extended_queue_show_bit_map_and_its_verdict() -> None:
    store = {"queue_extension_enable": True}
    async with wire(store, calc_filter_bit_map=True, property_filter_enable=True) as w:
        assert (await w.send(properties={"colour": "red"})).code == 0  # before the filter: no bits
        subscription = SubscriptionData("T", "colour = 'blue'", expression_type="SQL92", sub_version=1)
        data = HeartbeatData("c1", [], [ConsumerData("G", subscription_data_set=[subscription])])
        assert (await w.call(RequestCode.HEART_BEAT, data.encode())).code == 0
        for colour in ("red", "blue"):
            assert (await w.send(properties={"colour": colour})).code == 0
        _, found = await units(w, consumerGroup="G")
        assert json.loads(found.filter_data or "")["expression"] == "colour = 'blue'"
        before, red, blue = found.queue_data
        assert (red.bit_map or "").count("1") == 0 and (blue.bit_map or "").count("1") > 0
        assert (before.eval, blue.eval) == (True, True)
        extended = json.loads(blue.extend_data_json or "")
        assert extended["msgStoreTime"] > 0 and bytes.fromhex(extended["bitMap"]).count(0) < len(extended["bitMap"]) / 2


def test_bits_are_printed_from_the_highest() -> None:
    assert (bits(b""), bits(b"\x01\x80")) == ("", "1000000000000001")


@pytest.mark.spec("RT-13")
@pytest.mark.parametrize("index", [-1, 1, 2**62])
async def test_index_outside_the_queue_is_answered_with_bounds_and_remark(wire: Wire, index: int) -> None:
    assert (await wire.send()).code == 0
    answer, found = await units(wire, index=index)
    assert answer.code == 0 and f"Index {index} of 0@T is not exist!" in (answer.remark or "")
    assert (found.min_queue_index, found.max_queue_index, found.queue_data) == (0, 1, [])


@pytest.mark.spec("RT-13")
@pytest.mark.parametrize("ext", [{"queueId": 9}, {"topic": "None"}, {"topic": "../T"}])
async def test_unknown_queue_is_an_error(wire: Wire, ext: dict[str, object]) -> None:
    assert (await wire.send()).code == 0
    answer, _ = await units(wire, **ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "is not exist!" in (answer.remark or "")
