"""Requests over many queues, groups or offsets, and the encoding of large tables: other clients are served in between.

Each request took 0.3 to 6 s of the event loop. Here every step of it is measured, with honest sends beside it.

Requirements: LIM-09, LIM-10, BP-10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import thread_time
from typing import Any, cast

import pytest
from wire import Wire, wire

from longruns import long_but
from loopsteps import STEP_MAX, loop_steps
from saturnmq.broker.requests.context import MessageContext
from saturnmq.broker.requests.message_queries import query
from saturnmq.broker.state.relays import Relays
from saturnmq.net import Connection
from saturnmq.net.shares import Shares
from saturnmq.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicStatsTable,
)
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import QueryMessage
from saturnmq.protocol.message import Host, Message, decode_records, encode_properties
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.slices import PATIENT_MAX, SLICE_SECONDS, Slices, Steps
from saturnmq.store import wall_clock_ms

pytestmark = pytest.mark.realtime  # measures steps of the event loop

WIDTH = 65_536


async def beside_sends(w: Wire, ask: Callable[[], Awaitable[Command]]) -> Command:
    """The response, with sends answered meanwhile and no long step."""
    await w.send()
    with loop_steps() as steps:
        asked = asyncio.ensure_future(ask())
        sent = 0
        while not asked.done():
            assert (await w.send()).code == 0
            sent += 1
        answer = await asked
    assert sent > 5
    assert steps.longest < STEP_MAX
    return answer


REQUESTS: dict[int, tuple[dict[str, Any], Callable[[bytes], int]]] = {
    Code.GET_TOPIC_STATS_INFO: (
        {"topic": "wide"},
        lambda body: len(TopicStatsTable.decode(body).offset_table),
    ),
    Code.GET_CONSUME_STATS: (
        {"consumerGroup": "G", "topic": "wide"},
        lambda body: len(ConsumeStats.decode(body).offset_table),
    ),
    Code.QUERY_CONSUME_TIME_SPAN: (
        {"group": "G", "topic": "wide"},
        lambda body: len(ConsumeTimeSpans.decode(body).consume_time_span_set),
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (
        {"group": "G", "topic": "wide", "timestamp": -1, "isForce": True},
        lambda body: WIDTH,
    ),
}


@pytest.mark.parametrize("code", long_but(1, REQUESTS))
async def test_request_over_65536_queues_does_not_hold_the_event_loop(code: int) -> None:
    ext, entries = REQUESTS[code]
    async with wire(fast_failure=False) as w:
        w.broker.topics.set(TopicConfig("wide", WIDTH, WIDTH, 6))
        w.broker.offsets.set("wide", "G", 0, 1)
        answer = await beside_sends(w, lambda: w.call(code, timeout_ms=25_000, **ext))
        if code == Code.INVOKE_BROKER_TO_RESET_OFFSET:
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        else:
            assert answer.code == 0
        assert entries(answer.body or b"") == WIDTH


async def test_statistics_of_all_groups_do_not_hold_the_event_loop() -> None:
    """1,000 groups and 100,000 (topic, group) pairs: each group searched all pairs, 6 s in all."""
    async with wire(fast_failure=False) as w:
        for n in range(1000):
            w.broker.groups.table[f"g{n}"] = SubscriptionGroupConfig(f"g{n}")
        for n in range(100):
            w.broker.topics.table[f"t{n}"] = TopicConfig(f"t{n}", 1, 1, 6)
        for n in range(100_000):
            w.broker.offsets.set(f"t{n % 100}" if n < 30_000 else f"deleted{n % 100}", f"g{n // 100}", 0, 1)
        ask = {"isOrder": False}
        answer = await beside_sends(w, lambda: w.call(Code.GET_BROKER_CONSUME_STATS, timeout_ms=25_000, **ask))
        stats = ConsumeStatsList.decode(answer.body)
        assert sum(len(found) for group in stats.consume_stats_list for found in group.values()) == 30_000
        assert (stats.broker_addr, stats.total_diff) == (w.broker.advertised_address, -30_000)
        w.broker.topics.table["t0"] = TopicConfig("t0", WIDTH, WIDTH, 6)  # 300 groups: 20 million queues
        refused = await w.call(Code.GET_BROKER_CONSUME_STATS, timeout_ms=25_000, **ask)
        assert refused.code == 1 and "more than 80000 queues" in (refused.remark or "")


async def test_large_tables_are_encoded_and_saved_in_slices() -> None:
    """The encoding of 100,000 topics and of the offsets of as many groups took 310 ms each time one of them changed."""
    async with wire(fast_failure=False) as w:  # steps are measured in processor time, lateness depends on the machine
        await w.send()
        for n in range(99_000):
            w.broker.topics.table[f"t{n}"] = TopicConfig(f"t{n}", 1, 1, 6)
            w.broker.offsets.set("T", f"g{n}", 0, n)
        for code in (Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET):
            answer = await beside_sends(w, lambda code=code: w.call(code, timeout_ms=25_000))  # type: ignore[misc]
            assert answer.code == 0 and len(answer.body or b"") > 2_000_000

        async def save() -> Command:
            await w.broker.offsets.save()
            w.broker.topics.writer.changed()
            await w.broker.topics.writer.saved()
            return Command(0)

        await beside_sends(w, save)
        w.broker.topics.table.clear()
        w.broker.topics.load()
        assert len(w.broker.topics.table) > 99_000


@pytest.mark.spec("UPG-10")
@pytest.mark.parametrize(
    ("code", "topics", "queues"),
    [(Code.DELETE_TOPIC_IN_BROKER, 1, 8000), (Code.CLEAN_UNUSED_TOPIC, 2000, 2)],
)
async def test_deletion_of_many_queues_does_not_hold_the_event_loop(code: int, topics: int, queues: int) -> None:
    """5,000 queues in memory held it for 110 ms, and every topic without settings searched all queues."""
    async with wire(fast_failure=False) as w:
        store, host = w.broker.store, Host("127.0.0.1", 1)
        for n in range(topics * queues):
            store.put(Message(f"wide{n // queues}", b"x", b"", n % queues, 0, 0, 0, host, host))
        if code == Code.DELETE_TOPIC_IN_BROKER:
            w.broker.topics.set(TopicConfig("wide0", WIDTH, WIDTH, 6))
        answer = await beside_sends(w, lambda: w.call(code, timeout_ms=25_000, topic="wide0"))
        assert answer.code == 0
        assert not [topic for topic, _ in store.topic_queues() if topic.startswith("wide")]


async def test_long_requests_of_many_peers_run_one_at_a_time() -> None:
    async with wire(fast_failure=False) as w:
        w.broker.topics.set(TopicConfig("wide", WIDTH, WIDTH, 6))
        asked = [
            asyncio.ensure_future(w.call(Code.GET_TOPIC_STATS_INFO, topic="wide", timeout_ms=25_000)) for _ in range(4)
        ]
        assert (await w.call(Code.GET_TOPIC_STATS_INFO, topic="TBW102")).code == 0  # short ones do not wait
        assert not any(each.done() for each in asked)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_slices_reject_what_exceeds_the_limit_of_waiting_work() -> None:
    def endless() -> Steps[None]:
        while True:
            yield

    def short() -> Steps[int]:
        yield
        return 1

    slices = Slices(first_seconds=SLICE_SECONDS / 10, waiting_max=2)
    assert slices.run(short()) == 1
    running = [asyncio.ensure_future(slices.result(endless())) for _ in range(2)]
    while slices.waiting < 2:
        await asyncio.sleep(0)
    with pytest.raises(ResponseError, match="OVERLOAD"):
        slices.run(endless())
    assert await slices.result(short()) == 1
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert slices.waiting == 0


async def test_patient_work_lets_other_work_go_first_and_leaves_it_space() -> None:
    """Searches by key, which any client can make long, held back all other long requests, and took all their places."""
    ended: list[int] = []

    def search() -> Steps[str]:
        while not ended:
            yield
        return "searched"

    def listing() -> Steps[str]:
        until = thread_time() + 2 * SLICE_SECONDS
        while thread_time() < until:
            yield
        return "listed"

    slices = Slices(places=Shares())
    searches = [asyncio.ensure_future(slices.result(search(), patient="")) for _ in range(PATIENT_MAX)]
    while slices.waiting < PATIENT_MAX:
        await asyncio.sleep(0)
    with pytest.raises(ResponseError, match="OVERLOAD"):
        slices.run(search(), patient="")
    assert await asyncio.gather(*(slices.result(listing()) for _ in range(3))) == ["listed"] * 3
    assert not any(each.done() for each in searches)
    ended.append(1)
    assert await asyncio.gather(*searches) == ["searched"] * PATIENT_MAX
    assert slices.waiting == 0
    assert await slices.result(search(), patient="") == "searched"


class Asker:
    """The connection of a client at an address."""

    def __init__(self, address: str) -> None:
        self.remote_address = address


@pytest.mark.spec("IX-03", "LIM-13")
async def test_queries_of_one_host_leave_places_to_other_hosts(wire: Wire) -> None:
    """64 queries by key of one client, which it can make long, were all that could wait: the query of any other was refused."""
    await wire.send(properties={"KEYS": "k"})
    wire.broker.store.put_in_index()
    slices = wire.broker._slices
    slices._first_seconds = 0  # every query is long
    context = MessageContext(wire.broker.settings, wire.broker.store, wire.broker.clients, slices, Relays(1))
    until = wall_clock_ms() + 60_000
    header = QueryMessage(topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=until)

    def ask(address: str) -> Coroutine[Any, Any, Command]:
        asked = query(context, cast(Connection, Asker(address)), Command(Code.QUERY_MESSAGE), header)
        assert isinstance(asked, Coroutine)
        return asked

    taken = []
    for port in range(PATIENT_MAX // 2):  # each from a connection of its own
        taken.append(ask(f"192.0.2.7:{port}"))
    with pytest.raises(ResponseError, match=r"32 are in use by 192.0.2.7, the other 32 are for other addresses"):
        ask("192.0.2.7:99")
    for address in ("192.0.2.8:1", "[2001:db8::1]:1", "127.0.0.1:1"):
        taken.append(ask(address))
    answers = await asyncio.gather(*taken)
    assert len(answers) == PATIENT_MAX // 2 + 3
    for answer in answers:
        assert [message.properties["KEYS"] for message in decode_records(answer.body or b"")] == ["k"]
    assert (await ask("192.0.2.7:99")).code == 0


@pytest.mark.spec("IX-03", "IX-06")
async def test_query_by_key_does_not_hold_the_event_loop() -> None:
    """Every entry that shares the key's slot was read in one step: 300,000 messages with one key took 0.4 s for each query."""
    async with wire(fast_failure=False) as w:
        properties = encode_properties({"KEYS": "k"})
        now = wall_clock_ms()
        await w.send(properties={"KEYS": "k"})
        index = w.broker.store.index
        assert index is not None
        w.broker.store.put_in_index()
        beyond = w.broker.store.log.end
        index.put_many([("T", properties, PhysicalOffset(beyond + n), now + 60_000) for n in range(300_000)])
        ask = {"topic": "T", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": now + 30_000}
        answer = await beside_sends(w, lambda: w.call(Code.QUERY_MESSAGE, timeout_ms=25_000, **ask))
        assert [message.properties["KEYS"] for message in decode_records(answer.body or b"")] == ["k"]
