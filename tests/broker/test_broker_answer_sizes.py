"""Answers that would not fit a frame: refused with the limit and what to ask for instead, or given in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokerpair import pair
from wire import Wire, wire

from saturnmq.broker.requests import offsets as offset_requests
from saturnmq.broker.requests import progress
from saturnmq.protocol.bodies import ConsumerOffsetTable, ConsumeStatsList, SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.codes import ResponseCode
from saturnmq.slices import Slices
from waiting import until

LONGEST = "T" * 127
WIDTH = 65_536


async def pages(w: Wire, code: int, **ext: object) -> list[Any]:
    """The answers to all pages."""
    kind = ConsumeStatsList if code == Code.GET_BROKER_CONSUME_STATS else ConsumerOffsetTable
    found, start = [], None
    while True:
        answer = await w.call(code, paged=True, **ext, **({"startGroup": start} if start else {}))
        assert answer.code == 0, answer.remark
        found.append(kind.decode(answer.body))
        start = answer.ext.get("nextGroup")
        if start is None:
            return found


def fill(w: Wire, groups: int) -> None:
    w.broker.topics.table["T"] = TopicConfig("T", 1, 1, 6)
    for n in range(groups):
        w.broker.groups.table[f"g{n}"] = SubscriptionGroupConfig(f"g{n}")
        w.broker.offsets.set("T", f"g{n}", 0, n)


@pytest.mark.spec("LIM-10")
@pytest.mark.realtime
@pytest.mark.parametrize("code", [Code.GET_TOPIC_STATS_INFO, Code.GET_CONSUME_STATS, Code.QUERY_CONSUME_TIME_SPAN])
async def test_answer_above_a_frame_names_limit_and_key(code: int) -> None:
    """65,536 queues of a topic with the longest name and of a broker with a long name are more than 16 MiB."""
    async with wire(fast_failure=False, broker_name="b" * 100) as w:
        w.broker.topics.table[LONGEST] = TopicConfig(LONGEST, WIDTH, WIDTH, 6)
        answer = await w.call(code, topic=LONGEST, group="G", consumerGroup="G", timeout_ms=25_000)
        assert answer.code == 1
        assert "exceeds 16776192 bytes" in (answer.remark or "") and "frameMaxLength" in (answer.remark or "")
        assert (await w.call(code, topic="TBW102", group="G", consumerGroup="G")).code == 0


def test_limit_of_answers_is_that_of_frames_but_never_below_the_default() -> None:
    assert [Slices(frame_bytes_max=size).body_bytes_max for size in (4096, 1 << 24, 1 << 25)] == [
        (1 << 24) - 1024,
        (1 << 24) - 1024,
        (1 << 25) - 1024,
    ]


@pytest.mark.spec("RT-05")
async def test_statistics_of_all_groups_come_in_pages(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    own = len(wire.broker.groups.table)
    fill(wire, 20)
    ask: dict[str, Any] = {"isOrder": False}
    whole = ConsumeStatsList.decode((await wire.call(Code.GET_BROKER_CONSUME_STATS, **ask)).body)
    (one,) = await pages(wire, Code.GET_BROKER_CONSUME_STATS, **ask)
    assert one == whole
    monkeypatch.setattr(progress, "PAGE_BYTES", 300)
    some = await pages(wire, Code.GET_BROKER_CONSUME_STATS, **ask)
    assert len(some) > 3 and all(page.broker_addr == whole.broker_addr for page in some)
    joined = [group for page in some for group in page.consume_stats_list]
    assert joined == whole.consume_stats_list and len(joined) == own + 20
    assert sum(page.total_diff for page in some) == whole.total_diff == -sum(range(20))
    monkeypatch.setattr(progress, "PAGE_BYTES", 1 << 20)
    monkeypatch.setattr(progress, "ENTRIES_MAX", 3)
    assert (await wire.call(Code.GET_BROKER_CONSUME_STATS, **ask)).code == 1
    assert [
        group for page in await pages(wire, Code.GET_BROKER_CONSUME_STATS, **ask) for group in page.consume_stats_list
    ] == joined
    wire.broker.topics.table["T"] = TopicConfig("T", 4, 4, 6)
    alone = await wire.call(Code.GET_BROKER_CONSUME_STATS, paged=True, startGroup="g7", **ask)
    assert alone.code == 1 and "code 208" in (alone.remark or ""), "one group is more than a page holds"
    gone = await wire.call(Code.GET_BROKER_CONSUME_STATS, paged=True, startGroup="none", **ask)
    assert gone.code == ResponseCode.SYSTEM_ERROR and "without startGroup" in (gone.remark or "")


async def test_offset_table_comes_in_pages(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pages(wire, Code.GET_ALL_CONSUMER_OFFSET) == [ConsumerOffsetTable({})]
    fill(wire, 20)
    wire.broker.offsets.set("U", "g3", 5, 7)
    whole = ConsumerOffsetTable.decode((await wire.call(Code.GET_ALL_CONSUMER_OFFSET)).body).offset_table
    assert [page.offset_table for page in await pages(wire, Code.GET_ALL_CONSUMER_OFFSET)] == [whole]
    monkeypatch.setattr(offset_requests, "PAGE_BYTES", 40)
    some = [page.offset_table for page in await pages(wire, Code.GET_ALL_CONSUMER_OFFSET)]
    assert len(some) > 3 and {name: queues for page in some for name, queues in page.items()} == whole
    gone = await wire.call(Code.GET_ALL_CONSUMER_OFFSET, paged=True, startGroup="none")
    assert gone.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.spec("MS-04")
async def test_slave_copies_offsets_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_requests, "PAGE_BYTES", 40)
    async with pair(tmp_path) as both:
        assert (await both.send(both.master)).code == 0
        await both.replicated()
        for n in range(20):
            both.master.offsets.set("T", f"g{n}", 0, 1)
        await until(lambda: both.slave.offsets.get("T", "g19", 0) == 1)
        assert all(both.slave.offsets.get("T", f"g{n}", 0) == 1 for n in range(20))
