"""Progress of topics and consumer groups as administrators ask for it, and who produces and consumes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wire import Clock, Wire, wire

from saturnmq.broker import broker as broker_module
from saturnmq.protocol.bodies import (
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    MessageQueue,
    TopicConfig,
    TopicStatsTable,
)
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command


@pytest.fixture(autouse=True)
def only_the_test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SAMPLE_SECONDS", 1e9)


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def send_at(w: Wire, clock: Clock, *times_ms: int, topic: str = "T", queue_id: int = 0) -> None:
    for ms in times_ms:
        clock.ms = ms
        assert (await w.send(topic, queue=queue_id)).code == ResponseCode.SUCCESS


async def commit(w: Wire, offset: int, *, topic: str = "T", group: str = "G", queue_id: int = 0) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == ResponseCode.SUCCESS


async def consume_stats(w: Wire, **more: str) -> ConsumeStats:
    answer = await w.call(RequestCode.GET_CONSUME_STATS, **{"consumerGroup": "G", **more})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ConsumeStats.decode(answer.body or b"")


def sides(stats: ConsumeStats) -> dict[tuple[str, int], tuple[int, int, int]]:
    return {
        (q.topic, q.queue_id): (o.broker_offset, o.consumer_offset, o.last_timestamp)
        for q, o in stats.offset_table.items()
    }


@pytest.mark.spec("RT-02")
async def test_topic_stats_have_one_entry_per_write_queue() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        start = clock.ms
        w.broker.topics.set(TopicConfig("T", read_queue_nums=1, write_queue_nums=3))
        await send_at(w, clock, start, start + 700)
        await send_at(w, clock, start + 900, queue_id=2)
        clock.ms += 10_000
        answer = await w.call(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
        table = TopicStatsTable.decode(answer.body or b"").offset_table
        assert {q: (o.min_offset, o.max_offset, o.last_update_timestamp) for q, o in table.items()} == {
            queue(0): (0, 2, start + 700), queue(1): (0, 0, 0), queue(2): (0, 1, start + 900),
        }  # fmt: skip
        missing = await w.call(RequestCode.GET_TOPIC_STATS_INFO, topic="None")
        assert (missing.code, missing.remark) == (17, "topic[None] not exist")


@pytest.mark.spec("RT-02", "RT-03", "RT-04")
async def test_times_of_expired_messages_are_0(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await wire.send()
    await commit(wire, 1)
    for name in ("min_offset", "store_time"):  # what a queue answers whose records are deleted
        monkeypatch.setattr(wire.broker.store, name, lambda *_: -1)
    answer = await wire.call(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    found = TopicStatsTable.decode(answer.body or b"").offset_table[queue(0)]
    assert (found.min_offset, found.max_offset, found.last_update_timestamp) == (0, 1, 0)
    assert sides(await consume_stats(wire))["T", 0] == (1, 1, 0)
    monkeypatch.setattr(wire.broker.store, "max_offset", lambda *_: -1)
    answer = await wire.call(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    found = TopicStatsTable.decode(answer.body or b"").offset_table[queue(0)]
    assert (found.min_offset, found.max_offset, found.last_update_timestamp) == (0, 0, 0)
    assert sides(await consume_stats(wire))["T", 0] == (0, 1, 0)


@pytest.mark.spec("RT-03", "RT-04")
async def test_consume_stats_have_one_entry_per_read_queue() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        start = clock.ms
        w.broker.topics.set(TopicConfig("T", read_queue_nums=2, write_queue_nums=3))
        await send_at(w, clock, start, start + 300, start + 500)
        await send_at(w, clock, start + 600, topic="U")
        await commit(w, 2)
        await commit(w, 1, topic="U")
        await commit(w, 99, topic="U", queue_id=1)
        clock.ms += 3_600_000  # the time of consumption is not asked for
        found = sides(await consume_stats(w))
        assert found["T", 0] == (3, 2, start + 300) and found["T", 1] == (0, 0, 0) and ("T", 2) not in found
        assert found["U", 0] == (1, 1, start + 600) and found["U", 1] == (0, 99, 0), "no message, no time"
        assert {topic for topic, _ in found} == {"T", "U"}
        assert {topic for topic, _ in sides(await consume_stats(w, topic="U"))} == {"U"}
        assert sides(await consume_stats(w, topic=" ")) == found, "a blank topic means all"
        assert sides(await consume_stats(w, topic="None")) == {}
        w.broker.offsets.set("T", "G", 0, -5)
        assert sides(await consume_stats(w))["T", 0] == (3, 0, 0)


@pytest.mark.spec("RT-03")
async def test_consume_stats_leave_out_what_an_online_group_does_not_subscribe() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        for topic in ("T", "U"):
            await send_at(w, clock, clock.ms, topic=topic)
            await commit(w, 1, topic=topic)
        assert {topic for topic, _ in sides(await consume_stats(w))} == {"T", "U"}, "offline"
        await w.heartbeat("G", "U")
        assert {topic for topic, _ in sides(await consume_stats(w))} == {"U"}
        assert sides(await consume_stats(w, topic="T")) == {}
        for _ in range(60):
            await w.send("U")
        assert (await w.pull("U", group="G", maxMsgNums=30)).code == ResponseCode.SUCCESS
        await w.pull("T", group="G", maxMsgNums=1)
        for _ in range(6):
            for _ in w.broker.stats.sample_sets():
                pass
            clock.ms += 10_000
        stats = await consume_stats(w)
        assert stats.consume_tps == 0.5, "30 in the last minute, of the listed topics only"
        await w.heartbeat("G", "T", "U")
        assert (await consume_stats(w)).consume_tps == pytest.approx(31 / 60), "the sum of both topics"


@pytest.mark.spec("RT-05")
async def test_broker_consume_stats_list_every_group_and_topic(wire: Wire) -> None:
    wire.broker.topics.set(TopicConfig("T", read_queue_nums=1, write_queue_nums=2))
    wire.broker.topics.set(TopicConfig("O", read_queue_nums=1, write_queue_nums=1, order=True))
    for topic in ("T", "T", "T", "O"):
        await wire.send(topic)
    for group in ("G", "H", "Idle"):
        wire.broker.groups.find(group)
    await commit(wire, 1)
    await commit(wire, 0, topic="O")
    await commit(wire, 3, group="H")

    async def listed(is_order: bool) -> tuple[dict[str, list[dict[tuple[str, int], int]]], int]:
        answer = await wire.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=is_order)
        body = ConsumeStatsList.decode(answer.body or b"")
        assert body.broker_addr == wire.server.broker_address
        table = {
            group: [{at: broker - own for at, (broker, own, _) in sides(one).items()} for one in topics]
            for entry in body.consume_stats_list
            for group, topics in entry.items()
        }
        assert {"G", "H", "Idle", "TOOLS_CONSUMER"} <= set(table), "every subscription group"
        return {group: topics for group, topics in table.items() if topics}, body.total_diff

    found, total = await listed(False)
    assert sorted(found["G"], key=len) == [{("O", 0): 1}, {("T", 0): 2, ("T", 1): 0}]
    assert found["H"] == [{("T", 0): 0, ("T", 1): 0}] and total == 3
    assert await listed(True) == ({"G": [{("O", 0): 1}]}, 1)


@pytest.mark.spec("RT-06")
async def test_consumer_connections_show_members_and_subscriptions(wire: Wire) -> None:
    offline = await wire.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
    assert (offline.code, offline.remark) == (206, "the consumer group[G] not online")
    model = {
        "consume_type": "CONSUME_ACTIVELY",
        "message_model": "BROADCASTING",
        "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
    }
    await wire.heartbeat("G", "T", "U", client_id="10.0.0.1@7", tags="a || b", **model)
    answer = await wire.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
    found = ConsumerConnection.decode(answer.body or b"")
    (one,) = found.connection_set
    (member,) = wire.broker.connections
    assert (one.client_id, one.client_addr) == ("10.0.0.1@7", member.remote_address)
    assert (one.language, one.version) == (Language(Command(34).language).name, 407)
    assert {topic: data.sub_string for topic, data in found.subscription_table.items()} == {
        "T": "a || b", "U": "a || b",
    }  # fmt: skip
    assert {name: getattr(found, name) for name in model} == model
    fields: dict[str, Any] = json.loads(answer.body or b"")
    assert set(fields) == {
        "connectionSet", "subscriptionTable", "consumeType", "messageModel", "consumeFromWhere",
    }  # fmt: skip
    assert set(fields["connectionSet"][0]) == {"clientId", "clientAddr", "language", "version"}


@pytest.mark.spec("RT-12")
async def test_time_spans_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        start = clock.ms
        w.broker.topics.set(TopicConfig("T", read_queue_nums=1, write_queue_nums=2))
        await send_at(w, clock, start, start + 1000, start + 5000)
        clock.ms = start + 9000

        async def spans() -> dict[int, tuple[int, int, int, int]]:
            answer = await w.call(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")
            found = ConsumeTimeSpans.decode(answer.body or b"").consume_time_span_set
            assert {span.message_queue for span in found} == {queue(0), queue(1)}, "per write queue"
            return {
                (span.message_queue or queue(0)).queue_id: (
                    span.min_time_stamp, span.max_time_stamp, span.consume_time_stamp, span.delay_time,
                )
                for span in found
            }  # fmt: skip

        fresh = (await spans())[0]
        assert fresh == (start, start + 5000, start, 9000), "nothing consumed: the first message is the next one"
        await commit(w, 1)
        assert (await spans())[0] == (start, start + 5000, start, 8000)
        await commit(w, 2)
        assert (await spans())[0] == (start, start + 5000, start + 1000, 4000)
        await commit(w, 3)
        found = await spans()
        assert found[0] == (start, start + 5000, start + 5000, 0), "caught up"
        assert found[1] == (-1, -1, -1, 0), "an empty queue"
        await commit(w, 1)
        monkeypatch.setattr(w.broker.store, "min_offset", lambda *_: 2)  # the two before it were deleted
        assert (await spans())[0] == (start + 5000, start + 5000, start, 4000)
        missing = await w.call(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="None", group="G")
        assert (missing.code, missing.remark) == (17, "topic[None] not exist")
