"""Our Python client, unmodified, against Apache's broker and ours, and together with Apache's Java client.

Topics are created beforehand with four queues: Apache's NameServer returns a new topic only a moment after its
creation.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apache
import pytest
import saturn
from javatools import run_client
from peers import Peer

import saturnmq.sync
from saturnmq import (
    Ack,
    Client,
    Confirmation,
    Message,
    OffsetOutOfRange,
    Outgoing,
    PullStatus,
    ReplyTimeout,
    ResponseError,
    SendStatus,
    TransactionState,
    json_codec,
    sql,
    tag,
)
from saturnmq.protocol.codes import PropertyKey, ResponseCode, SysFlag
from waiting import until

pytestmark = [pytest.mark.control("saturn"), pytest.mark.loop(seconds=90)]

_numbers = itertools.count()
QUICK = {"route_poll_ms": 500, "rebalance_ms": 1000, "persist_offsets_ms": 200, "timeout": 10.0}
TESTING = Path(__file__).resolve().parent.parent / "testing"
SOAK_MESSAGES = int(os.environ.get("SATURNMQ_SOAK_MESSAGES", "10000"))


@pytest.fixture
def topic(peer: Peer) -> str:
    name = f"Python{next(_numbers)}"
    with saturnmq.sync.Client.from_url(f"rmq://{peer.name_servers}", **QUICK) as client:
        assert client.create_topic(name, queues=4) == ["broker-a"]
    return name


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}-group"


@pytest.fixture
def client(peer: Peer, tmp_path: Path) -> Callable[..., Client]:
    """Creates clients of the peer."""

    def make(**settings: Any) -> Client:
        options = {**QUICK, "offsets_dir": str(tmp_path), **settings}
        return Client.from_url(f"rmq://{peer.name_servers}", **options)

    return make


def run(work: Callable[[], Awaitable[Any]], seconds: float = 90) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await work()

    return asyncio.run(bounded())


async def all_of(client: Client, topic: str, count: int) -> list[Message[bytes]]:
    """Wait for `count` messages of a topic; by queue and offset. Apache's broker makes them visible a moment after its response."""
    found: list[Message[bytes]] = []

    async def enough() -> bool:
        found[:] = await _all_now(client, topic)
        return len(found) >= count

    await poll(enough)
    assert len(found) == count
    return found


async def _all_now(client: Client, topic: str) -> list[Message[bytes]]:
    puller = client.puller()
    found: list[Message[bytes]] = []
    for queue in await puller.queues(topic):
        at, end = await puller.min_offset(queue), await puller.max_offset(queue)
        while at < end:
            result = await puller.pull(queue, at)
            assert result.next_offset > at, result
            found += result.messages()
            at = result.next_offset
    return found


async def take(inbox: Any, count: int, timeout: float = 30) -> list[Message[Any]]:
    """Receive and acknowledge `count` messages."""
    messages = []
    for _ in range(count):
        message = await inbox.recv(timeout=timeout)
        await message.ack()
        messages.append(message)
    return messages


# ---- sending


@pytest.mark.spec("PR-01", "PR-29", "API-07", "API-09", "API-10")
async def test_sent_message_is_stored_where_the_receipt_says(
    peer: Peer, client: Callable[..., Client], topic: str
) -> None:
    async with client() as one, one.producer("p") as out:
        receipt = await out.send(
            topic, "jäva 消息".encode(), tag="TagA", keys=["k1", "k2"], properties={"größe": "5 €"}, flag=7
        )
        assert receipt.status is SendStatus.SEND_OK
        assert receipt.queue.topic == topic and receipt.queue.broker_name == "broker-a"
        assert receipt.offset == 0
        stated = (None, None) if isinstance(peer, apache.ApacheCluster) else (False, Confirmation.PAGE_CACHE)
        assert (receipt.durable, receipt.confirmation) == stated, "Apache's broker ignores the question"
        (message,) = await all_of(one, topic, 1)
        assert message.body.decode() == "jäva 消息"
        assert (message.tag, message.keys, message.flag) == ("TagA", ("k1", "k2"), 7)
        assert message.properties["größe"] == "5 €"
        assert (message.message_id, message.offset) == (receipt.message_id, receipt.offset)
        assert message.offset_message_id == receipt.offset_message_id
        assert abs(message.stored_at - datetime.now(UTC)) < timedelta(minutes=1)
        assert (await one.view_message(receipt.offset_message_id)).body == message.body
        found = await poll(lambda: one.query_messages(topic, "k2"))
        assert [item.message_id for item in found] == [receipt.message_id]


async def poll(ask: Callable[[], Awaitable[Any]], seconds: float = 15) -> Any:
    """The first non-empty result; an index follows its messages a moment later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = await ask()
        except ResponseError:
            if time.monotonic() > deadline:
                raise
            answer = None
        if answer or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.05)  # poll


@pytest.mark.spec("PR-02", "PR-25", "BAT-03")
async def test_oneway_messages_arrive(client: Callable[..., Client], topic: str) -> None:
    async with client() as one, one.producer("p") as out:
        ids = [await out.send_oneway(topic, b"%d" % n) for n in range(20)]
        ids += await out.send_many_oneway(topic, [b"%d" % n for n in range(20, 30)])
        assert {message.message_id for message in await all_of(one, topic, 30)} == set(ids)


@pytest.mark.spec("BAT-01", "BAT-04", "BAT-05", "BAT-07", "API-11")
async def test_batch_is_stored_together_with_a_receipt_per_message(client: Callable[..., Client], topic: str) -> None:
    async with client() as one, one.producer("p") as out:
        wanted = [Outgoing(value=b"%d" % n, tag=f"t{n % 3}", keys=f"k{n}", properties={"n": str(n)}) for n in range(50)]
        receipts = await out.send_many(topic, wanted)
        assert len({receipt.message_id for receipt in receipts}) == 50
        assert len({receipt.offset_message_id for receipt in receipts}) == 50
        assert {receipt.queue for receipt in receipts} == {receipts[0].queue}
        assert [receipt.offset for receipt in receipts] == list(range(receipts[0].offset, receipts[0].offset + 50))
        messages = await all_of(one, topic, 50)
        assert [(m.body, m.tag, m.keys[0], m.properties["n"]) for m in messages] == [
            (b"%d" % n, f"t{n % 3}", f"k{n}", str(n)) for n in range(50)
        ]
        assert [m.message_id for m in messages] == [receipt.message_id for receipt in receipts]
        assert [m.offset_message_id for m in messages] == [receipt.offset_message_id for receipt in receipts]


@pytest.mark.spec("BAT-02", "API-11")
async def test_batch_of_ten_megabytes_is_split(client: Callable[..., Client], topic: str) -> None:
    async with client() as one, one.producer("p") as out:
        receipts = await out.send_many(topic, [bytes([n]) * 500_000 for n in range(20)])
        assert len(receipts) == 20
        assert sorted(message.body[0] for message in await all_of(one, topic, 20)) == list(range(20))


@pytest.mark.spec("PR-24")
async def test_large_body_is_compressed_and_round_trips(client: Callable[..., Client], topic: str) -> None:
    body = b"much the same again and again. " * 10_000

    async with client() as one, one.producer("p") as out:
        await out.send(topic, body)
        (message,) = await all_of(one, topic, 1)
        assert message.record.sys_flag & SysFlag.COMPRESSED
        assert len(message.record.body) < 10_000
        assert message.body == body


@pytest.mark.spec("PR-09", "PR-03", "API-30")
async def test_body_at_the_limit_is_accepted_and_one_byte_more_rejected(
    client: Callable[..., Client], topic: str
) -> None:
    async with client() as one, one.producer("p") as out:
        await out.send(topic, os.urandom(4_194_304))
        with pytest.raises(Exception, match="4194304") as caught:
            await out.send(topic, os.urandom(4_194_305))
        assert getattr(caught.value, "code", None) == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.spec("PR-21", "OR-01", "API-12")
async def test_sharding_key_maps_to_one_queue_and_explicit_queue_is_used(
    client: Callable[..., Client], topic: str
) -> None:
    async with client() as one, one.producer("p") as out:
        for key in ("customer-1", "customer-2", 99):
            assert len({(await out.send(topic, b"x", shard_by=key)).queue for _ in range(5)}) == 1
        queues = await out.queues(topic)
        assert len(queues) == 4
        for queue in queues:
            assert (await out.send(topic, b"x", queue=queue)).queue == queue
        spread = Counter([(await out.send(topic, b"x")).queue.queue_id for _ in range(8)])
        assert set(spread.values()) == {2}


@pytest.mark.spec("API-28", "API-29", "API-22")
async def test_two_thousand_concurrent_sends_lose_no_message(client: Callable[..., Client], topic: str) -> None:
    async with client() as one, one.producer("p", max_in_flight=200) as out:
        receipts = await asyncio.gather(*(out.send(topic, b"%d" % n) for n in range(2000)))
        assert len({(receipt.queue, receipt.offset) for receipt in receipts}) == 2000
        assert {message.body for message in await all_of(one, topic, 2000)} == {b"%d" % n for n in range(2000)}


# ---- consuming


@pytest.mark.spec("CC-05", "OF-05", "API-15", "API-19")
async def test_group_consumes_everything_once_and_the_next_member_continues(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one:
        async with one.producer("p") as out:
            await asyncio.gather(*(out.send(topic, b"%d" % n) for n in range(200)))
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic)
            assert Counter(m.body for m in await take(inbox, 200)) == Counter(b"%d" % n for n in range(200))
        puller = one.puller()
        for queue in await puller.queues(topic):
            async with asyncio.timeout(10):  # offsets are sent one-way: the broker may take a moment
                while await puller.committed(group, queue) != await puller.max_offset(queue):
                    await asyncio.sleep(0.02)  # poll
        async with one.producer("p2") as out:
            await out.send(topic, b"later")
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic)
            assert (await inbox.recv(timeout=30)).body == b"later"


@pytest.mark.spec("API-16", "CC-02")
async def test_listener_handles_messages_concurrently(client: Callable[..., Client], topic: str, group: str) -> None:
    seen: Counter[bytes] = Counter()
    busy = most = 0

    done = asyncio.Event()
    async with client() as one, one.producer("p") as out:

        @one.listener(topic, group=group, concurrency=8, start="first")
        async def handle(message: Message[bytes]) -> Ack:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0)
            if seen.total() < 8:
                await asyncio.wait([asyncio.create_task(done.wait())], timeout=0.05)
            busy -= 1
            seen[message.body] += 1
            if len(seen) == 100:
                done.set()
            return Ack.SUCCESS

        running = asyncio.create_task(one.run())
        await asyncio.gather(*(out.send(topic, b"%d" % n) for n in range(100)))
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert set(seen) == {b"%d" % n for n in range(100)}
    assert 1 < most <= 8


@pytest.mark.spec("RB-02", "RB-07", "HB-07")
async def test_two_members_share_the_queues_and_one_takes_over(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with (
        client() as one,
        client() as two,
        one.producer("p", batch_bytes=0) as out,
        one.consumer(group, start="first") as a,
    ):
        await a.subscribe(topic)
        await until(lambda: len(a.assigned) == 4)
        async with two.consumer(group, start="first") as b:
            await b.subscribe(topic)
            await until(lambda: len(a.assigned) == len(b.assigned) == 2)
            assert {q.queue_id for q in a.assigned} | {q.queue_id for q in b.assigned} == {0, 1, 2, 3}
            await asyncio.gather(*(out.send(topic, b"%d" % n) for n in range(40)))
            both = await asyncio.gather(take(a, 20), take(b, 20))
            assert {m.body for part in both for m in part} == {b"%d" % n for n in range(40)}
        await until(lambda: len(a.assigned) == 4)
        await asyncio.gather(*(out.send(topic, b"%d" % n) for n in range(40, 48)))
        new = {b"%d" % n for n in range(40, 48)}
        while new:  # at least once: an offset sent one-way may have been overtaken
            new.discard((await take(a, 1))[0].body)


@pytest.mark.spec("OR-01", "OR-05", "OR-06", "API-17")
async def test_ordered_consumer_keeps_the_order_through_a_failure(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one, one.producer("p") as out:
        for n in range(40):
            await out.send(topic, b"%d" % n, shard_by=f"order-{n % 4}")
        async with one.consumer(group, start="first", ordered=True, suspend=0.1) as inbox:
            await inbox.subscribe(topic)
            seen: dict[int, list[int]] = {}
            failed = False
            while sum(map(len, seen.values())) < 40:
                message = await inbox.recv(timeout=60)
                if message.body == b"20" and not failed:
                    failed = True
                    await message.retry()
                    continue
                seen.setdefault(int(message.body) % 4, []).append(int(message.body))
                await message.ack()
    assert failed
    assert seen == {key: list(range(key, 40, 4)) for key in range(4)}


@pytest.mark.spec("OF-02", "API-18", "CA-05")
async def test_broadcast_delivers_to_each_member_and_resumes_after_a_restart(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client(instance="i1") as one, client(instance="i2") as two, one.producer("p") as out:
        await out.send_many(topic, [b"%d" % n for n in range(10)])
        for member in (one, two):
            async with member.consumer(group, model="broadcast", start="first") as inbox:
                await inbox.subscribe(topic)
                assert {m.body for m in await take(inbox, 10)} == {b"%d" % n for n in range(10)}
        await out.send(topic, b"new")
    async with client(instance="i1") as one, one.consumer(group, model="broadcast", start="first") as inbox:
        await inbox.subscribe(topic)
        assert [m.body for m in await take(inbox, 1)] == [b"new"]


@pytest.mark.spec("BP-05", "OF-04", "CA-13", "PR-02")
async def test_pull_bounds_and_committed_offsets(client: Callable[..., Client], topic: str, group: str) -> None:
    async with client() as one, one.producer("p") as out:
        puller = one.puller()
        queue = (await puller.queues(topic))[1]
        for n in range(8):
            await out.send(topic, b"%d" % n, queue=queue, tag="AB"[n % 2])
        await all_of(one, topic, 8)
        assert (await puller.min_offset(queue), await puller.max_offset(queue)) == (0, 8)
        result = await puller.pull(queue, 2, max_count=3)
        assert (result.status, [m.offset for m in result.messages()]) == (PullStatus.FOUND, [2, 3, 4])
        assert (result.next_offset, result.min_offset, result.max_offset) == (5, 0, 8)
        tagged = await puller.pull(queue, 0, expression="B")
        assert [m.offset for m in tagged.messages()] == [1, 3, 5, 7]
        assert (await puller.pull(queue, 8)).status is PullStatus.NO_NEW_MESSAGE
        beyond = await puller.pull(queue, 100)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 8)
        assert await puller.committed(group, queue) in (None, 0)
        await puller.commit(group, queue, 5)
        assert await puller.committed(group, queue) == 5

        async def later() -> None:
            await asyncio.sleep(0)
            await out.send(topic, b"8", queue=queue)

        sending = asyncio.create_task(later())
        began = time.monotonic()
        held = await puller.pull(queue, 8, wait=10)
        assert [m.body for m in held.messages()] == [b"8"]
        assert time.monotonic() - began < 5
        await sending


@pytest.mark.spec("CA-12", "API-18", "CQ-06")
async def test_seek_by_time_offset_and_bounds(client: Callable[..., Client], topic: str, group: str) -> None:
    async with client() as one, one.producer("p") as out:
        queue = (await out.queues(topic))[0]
        for n in range(5):
            await out.send(topic, b"old %d" % n, queue=queue)
        await asyncio.sleep(0.05)  # poll for a clock that advances
        middle = datetime.now(UTC)
        await asyncio.sleep(0.05)  # poll for a clock that advances
        for n in range(5):
            await out.send(topic, b"new %d" % n, queue=queue)
        await all_of(one, topic, 10)
        assert await one.puller().offset_by_time(queue, middle) in (4, 5)  # the nearer neighbour
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic)
            assert len(await take(inbox, 10)) == 10
            await inbox.seek(middle, queue)
            bodies = [(await inbox.recv(timeout=30)).body for _ in range(5)]
            assert bodies[-1] in (b"new 4", b"new 3")
            assert {b"new 0", b"new 3"} <= set(bodies)
            await inbox.seek(7, queue)
            assert [m.body for m in await take(inbox, 3)] == [b"new 2", b"new 3", b"new 4"]
            await inbox.seek("first", queue)
            assert (await inbox.recv(timeout=30)).body == b"old 0"
            await inbox.seek("last", queue)
            await out.send(topic, b"newest", queue=queue)
            assert [m.body for m in await take(inbox, 1)] == [b"newest"]
            with pytest.raises(OffsetOutOfRange):
                await inbox.seek(1000, queue)


@pytest.mark.spec("RTY-01", "RTY-02", "RTY-03", "RTY-04", "API-21")
async def test_message_is_retried_and_becomes_a_dead_letter(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one, one.producer("p") as out:
        receipt = await out.send(topic, b"poison", tag="T", keys=["k"], properties={"a": "b"})
        async with one.consumer(group, start="first", max_times=2) as inbox:
            await inbox.subscribe(topic)
            for attempt in (1, 2, 3):
                message = await inbox.recv(timeout=60)
                assert (message.attempt, message.body, message.topic) == (attempt, b"poison", topic)
                assert (message.message_id, message.tag, message.keys) == (receipt.message_id, "T", ("k",))
                await message.retry(after=timedelta(seconds=1))
            (dead,) = await poll(lambda: dead_letters(one, group))
            assert (dead.body, dead.tag, dead.properties["a"]) == (b"poison", "T", "b")
            assert dead.properties[PropertyKey.ORIGIN_MESSAGE_ID] == receipt.offset_message_id
            assert dead.message_id == receipt.message_id
            second = await out.send(topic, b"refused at once")
            refused = await inbox.recv(timeout=30)
            await refused.reject("no such customer")
            await until_dead(one, group, 2)
            assert second.message_id in {m.message_id for m in await dead_letters(one, group)}


async def dead_letters(client: Client, group: str) -> list[Message[bytes]]:
    topic = f"%DLQ%{group}"
    if not await client.topic_exists(topic):
        return []
    await client.puller().refresh(topic)
    return await _all_now(client, topic)


async def until_dead(client: Client, group: str, count: int) -> None:
    async def enough() -> bool:
        return len(await dead_letters(client, group)) >= count

    assert await poll(enough)


@pytest.mark.spec("API-20", "PL-14")
async def test_unsettled_message_is_redelivered(client: Callable[..., Client], topic: str, group: str) -> None:
    async with client() as one, one.producer("p") as out:
        await out.send(topic, b"forgotten")
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic)
            assert (await inbox.recv(timeout=30)).attempt == 1
        # The first consumer closed without settling the message.
        async with one.consumer(group, start="first", ack_timeout=1.0) as inbox:
            await inbox.subscribe(topic)
            again = await inbox.recv(timeout=30)
            assert (again.body, again.attempt) == (b"forgotten", 1)
            late = await inbox.recv(timeout=60)  # not settled in time: sent back
            assert (late.body, late.attempt, late.message_id) == (b"forgotten", 2, again.message_id)
            await late.ack()


@pytest.mark.spec("API-20")
async def test_unsettled_message_moves_with_its_queue_to_a_new_member(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one, client() as two, one.producer("p") as out, one.consumer(group, start="first") as a:
        await a.subscribe(topic)
        await until(lambda: len(a.assigned) == 4)
        for queue in await out.queues(topic):
            await out.send(topic, b"%d" % queue.queue_id, queue=queue)
        held = {message.queue: message for message in [await a.recv(timeout=30) for _ in range(4)]}
        await a.commit()  # nothing is settled
        async with two.consumer(group, start="first") as b:
            await b.subscribe(topic)
            await until(lambda: len(a.assigned) == len(b.assigned) == 2)
            moved = {queue: held[queue] for queue in b.assigned}
            again = [await b.recv(timeout=30) for _ in range(2)]
            assert {(m.queue, m.message_id, m.attempt) for m in again} == {
                (queue, message.message_id, 1) for queue, message in moved.items()
            }
        await until(lambda: len(a.assigned) == 4)
        back = await take(a, 2)
        assert {(m.queue, m.message_id) for m in back} == {(q, message.message_id) for q, message in moved.items()}
        for queue in held.keys() - moved.keys():
            await held[queue].ack()


@pytest.mark.spec("DLY-01", "DLY-02", "API-13")
async def test_delayed_message_is_delivered_after_its_level_not_before(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one, one.producer("p") as out, one.consumer(group, start="first") as inbox:
        await inbox.subscribe(topic)
        await out.send(topic, b"5 s", delay=timedelta(seconds=5))
        await out.send(topic, b"1 s", delay_level=1)
        await out.send(topic, b"now")
        messages = await take(inbox, 3, timeout=60)
        assert [m.body for m in messages] == [b"now", b"1 s", b"5 s"]
        for message, least_s in zip(messages, (0, 1, 5), strict=True):
            waited = (message.stored_at - message.born_at).total_seconds()
            assert waited >= least_s - 0.1
            assert waited < least_s + 5


# ---- filtering


@pytest.mark.spec("FIL-01", "FIL-02")
async def test_tag_expression_selects_messages(client: Callable[..., Client], topic: str, group: str) -> None:
    async with client() as one, one.producer("p") as out:
        for name in ("red", "blue", "green"):
            await out.send(topic, name.encode(), tag=name)
        await out.send(topic, b"none")
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic, tag("red || green"))
            assert {m.body for m in await take(inbox, 2)} == {b"red", b"green"}
            await inbox.subscribe(topic, tag("blue"))
            await out.send(topic, b"more blue", tag="blue")
            assert {m.body for m in await take(inbox, 1)} <= {b"blue", b"more blue"}


@pytest.mark.spec("FIL-03", "FIL-09", "FIL-15")
async def test_sql_expression_selects_and_a_bad_one_is_rejected(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one, one.producer("p") as out:
        for region, total in [("EU", 12), ("EU", 3), ("US", 40), ("EU", 6)]:
            await out.send(topic, b"%d" % total, tag="order", properties={"region": region, "total": str(total)})
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic, sql("region = 'EU' AND total BETWEEN 5 AND 20 AND TAGS IS NOT NULL"))
            assert {m.body for m in await take(inbox, 2)} == {b"12", b"6"}
            queue = next(q for q in inbox.assigned)
            pulled = [
                m.body
                for q in await one.puller().queues(topic)
                for m in (await one.puller().pull(q, 0, expression=sql("total > 10"))).messages()
            ]
            assert queue.topic == topic and sorted(pulled) == [b"12", b"40"]
        with pytest.raises(Exception, match=r"(?i)(expression|near|column|parse|LIKE|encountered)"):
            async with one.consumer(f"{group}-bad", start="first") as inbox:
                await inbox.subscribe(topic, sql("region LIKE 'E%'"))


# ---- transactions, requests


@pytest.mark.spec("TX-01", "TX-02", "TX-05", "TX-09", "API-14")
async def test_transactions_commit_roll_back_and_are_checked(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    asked: list[str] = []
    open_ids: dict[str, TransactionState] = {}

    async def check(message: Message[bytes]) -> TransactionState:
        asked.append(message.message_id)
        assert message.topic == topic
        return open_ids[message.message_id]

    async with client() as one, one.producer(f"{group}-p", check=check) as out:
        async with out.transaction(topic, b"committed", tag="T"):
            pass
        with pytest.raises(ZeroDivisionError):
            async with out.transaction(topic, b"rolled back"):
                1 / 0  # noqa: B018
        for body, state in [(b"asked: yes", TransactionState.COMMIT), (b"asked: no", TransactionState.ROLLBACK)]:
            async with out.transaction(topic, body) as half:
                open_ids[half.message_id] = state
                half.leave_open()
        async with one.consumer(group, start="first") as inbox:
            await inbox.subscribe(topic)
            messages = await take(inbox, 2, timeout=60)
            assert {m.body for m in messages} == {b"committed", b"asked: yes"}
            await until(lambda: set(asked) == set(open_ids))
            with pytest.raises(TimeoutError):
                await inbox.recv(timeout=1.5)
    assert {m.body for m in messages if m.tag == "T"} == {b"committed"}


@pytest.mark.spec("RR-01", "RR-05", "RR-06", "API-11")
async def test_request_is_answered_or_times_out(client: Callable[..., Client], topic: str, group: str) -> None:
    async with client() as asking, client() as serving, asking.producer(f"{group}-asking") as out:

        @serving.listener(topic, group=group, start="first")
        async def answer(message: Message[bytes]) -> bytes | None:
            return message.body[::-1] if message.body != b"silence" else None

        service = asyncio.create_task(serving.run())
        for word in (b"abc", b"x" * 10_000 + b"y"):
            reply = await out.request(topic, word, timeout=30)
            assert reply.body == word[::-1]
        with pytest.raises(ReplyTimeout):
            await out.request(topic, b"silence", timeout=1)
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


# ---- namespaces, codecs, synchronous client


@pytest.mark.spec("PR-32")
async def test_namespace_applies_to_topic_group_retry_and_dead_letters(
    client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client(namespace="shop") as one, client() as outside:
        await outside.create_topic(f"shop%{topic}", queues=1)
        async with one.producer("p") as out:
            receipt = await out.send(topic, b"inside")
            assert receipt.queue.topic == topic
        assert [m.body for m in await all_of(outside, f"shop%{topic}", 1)] == [b"inside"]
        assert await all_of(outside, topic, 0) == []
        async with one.consumer(group, start="first", max_times=1) as inbox:
            await inbox.subscribe(topic)
            for attempt in (1, 2):
                message = await inbox.recv(timeout=60)
                assert (message.topic, message.attempt) == (topic, attempt)
                await message.retry(after=timedelta(seconds=1))
            await until_dead(outside, f"shop%{group}", 1)


@pytest.mark.spec("API-08", "API-31")
def test_sync_client_sends_and_receives_values(peer: Peer, topic: str, group: str) -> None:
    codec = json_codec(dict[str, int])
    with saturnmq.sync.Client.from_url(f"rmq://{peer.name_servers}", **QUICK) as client:
        with client.producer("p", codec=codec) as out:
            out.send(topic, {"a": 1})
        with client.consumer(group, codec=codec, start="first") as inbox:
            inbox.subscribe(topic)
            message = inbox.recv(timeout=30)
            assert message.value == {"a": 1}
            message.ack()


@pytest.mark.spec("API-26", "API-28", "API-29", "PR-18")
@pytest.mark.parametrize("kind", ["apache", pytest.param("saturn", marks=pytest.mark.interop_full)])
def test_broker_restart_loses_nothing(kind: str, tmp_path: Path) -> None:
    """Producer and consumer recover by themselves; every acknowledged message arrives."""
    cluster: Peer = (apache.ApacheCluster if kind == "apache" else saturn.SaturnCluster)(tmp_path)

    def restart() -> None:
        if isinstance(cluster, apache.ApacheCluster):
            cluster.stop_broker()
            cluster.start_broker()
        else:
            cluster.stop()
            cluster.start()

    async def work() -> None:
        acknowledged: set[bytes] = set()
        received: set[bytes] = set()
        async with Client.from_url(
            f"rmq://{cluster.name_servers}", **{**QUICK, "timeout": 60.0, "attempts": 100}
        ) as one:
            await one.create_topic("Restart", queues=4)
            async with one.producer("p") as out, one.consumer("restart-group", start="first") as inbox:
                await inbox.subscribe("Restart")

                async def send() -> None:
                    for n in range(400):
                        await out.send("Restart", b"%d" % n)
                        acknowledged.add(b"%d" % n)
                        await asyncio.sleep(0.005)  # poll, so that the restart happens between two sends

                async def receive() -> None:
                    while len(received) < 400:
                        message = await inbox.recv(timeout=90)
                        received.add(message.body)
                        await message.ack()

                async with asyncio.TaskGroup() as group:
                    group.create_task(send())
                    group.create_task(receive())
                    await until(lambda: len(received) >= 100)
                    await asyncio.to_thread(restart)
        assert acknowledged == received == {b"%d" % n for n in range(400)}

    with cluster:
        run(work, 150)


# ---- together with the Java client


@pytest.mark.spec("BAT-07", "PR-24")
def test_java_client_reads_what_we_send(
    peer: Peer, home: Path, client: Callable[..., Client], topic: str, group: str
) -> None:
    async def work() -> list[Any]:
        async with client() as one, one.producer("p") as out:
            receipts = [await out.send(topic, "größer".encode(), tag="T", keys=["k1", "k2"], properties={"p": "é"})]
            receipts.append(await out.send(topic, b"compressible " * 1000))
            receipts += await out.send_many(topic, [b"one", b"two"])
            return receipts

    receipts = run(work)
    rows = [row for row in run_client("pull", home=home, ns=peer.name_servers, topic=topic, group="puller").results
            if "received" in row]  # fmt: skip
    by_id = {row["msgId"]: row for row in rows}
    assert set(by_id) == {receipt.message_id for receipt in receipts}
    first = by_id[receipts[0].message_id]
    assert (first["body"], first["tags"], first["keys"]) == ("größer", "T", "k1 k2")
    assert first["properties"]["p"] == "é"
    assert by_id[receipts[1].message_id]["bodyBytes"] == 13_000
    assert [by_id[receipt.message_id]["body"] for receipt in receipts[2:]] == ["one", "two"]


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_java_client_reads_every_compression_type(
    peer: Peer, home: Path, client: Callable[..., Client], topic: str, kind: str
) -> None:
    body = b"much the same again and again. " * 10_000

    async def work() -> str:
        async with client(compress_type=kind) as one, one.producer("p") as out:
            receipt = await out.send(topic, body)
            (message,) = await all_of(one, topic, 1)
            assert len(message.record.body) < 10_000 and message.body == body
            return receipt.message_id

    message_id = run(work)
    rows = run_client("pull", home=home, ns=peer.name_servers, topic=topic, group="puller").results
    assert [(row["msgId"], row["bodyBytes"]) for row in rows if "received" in row] == [(message_id, len(body))]


@pytest.mark.spec("BAT-07", "PR-24")
@pytest.mark.parametrize("mode", ["sync", "batch", pytest.param("big", marks=pytest.mark.interop_full)])
async def test_we_read_what_the_java_client_sends(
    peer: Peer, home: Path, client: Callable[..., Client], topic: str, group: str, mode: str
) -> None:
    options: dict[str, Any] = {"count": 2, "bodyBytes": 200_000} if mode == "big" else {"count": 10}
    if mode == "batch":
        options["mode"] = "batch"
    sent = run_client("send", home=home, ns=peer.name_servers, topic=topic, **options).results

    async with client() as one, one.consumer(group, start="first") as inbox:
        await inbox.subscribe(topic)
        messages = await take(inbox, options["count"])
        ids = {word for row in sent if "sent" in row for word in row["msgId"].split(",")}
        assert {m.message_id for m in messages} == ids
        if mode == "big":
            assert {len(m.body) for m in messages} == {200_000}
        else:
            assert {m.body.decode() for m in messages} == {f"message {n}" for n in range(10)}
            assert {(m.tag, m.properties["sender"]) for m in messages} == {("TagA", "jäva")}


@pytest.mark.spec("RB-01", "RB-02", "CA-01")
async def test_group_of_java_and_python_members_shares_the_queues(
    peer: Peer, home: Path, client: Callable[..., Client], topic: str, group: str
) -> None:
    async with client() as one, one.producer("p") as out, one.consumer(group, start="first") as inbox:
        await inbox.subscribe(topic)
        assert len(await inbox.wait_assigned()) == 4
        await asyncio.gather(*(out.send(topic, b"%d" % n) for n in range(12)))
        assert len(await take(inbox, 12)) == 12
        java = asyncio.create_task(
            asyncio.to_thread(run_client, "consume", home=home, ns=peer.name_servers, topic=topic, group=group, count=8)
        )
        await until(lambda: len(inbox.assigned) == 2, 60)  # the Java member has the other two
        mine = {queue.queue_id for queue in inbox.assigned}
        queues = await out.queues(topic)
        for queue in queues:
            for n in range(4):
                number = str(4 * queue.queue_id + n)
                await out.send(topic, number.encode(), queue=queue, properties={"number": number})
        ours = await take(inbox, 8)
        assert {m.queue.queue_id for m in ours} == mine
        rows = [row for row in (await java).results if "received" in row]
        assert {row["queue"] for row in rows} == {0, 1, 2, 3} - mine


# ---- the test kit on a real broker


@pytest.mark.spec("TST-07", "TST-08")
def test_portable_fixture_tests_pass_on_the_peer(peer: Peer) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(TESTING / "test_testing_portable.py"),
    ]
    done = subprocess.run(
        [*command, f"--saturn-url=rmq://{peer.name_servers}"], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.interop_full
@pytest.mark.spec("API-34")
@pytest.mark.timeout(120 + SOAK_MESSAGES // 200)
def test_client_loses_nothing_and_memory_stays_flat_over_reconnects(peer: Peer, topic: str) -> None:
    command = [
        sys.executable,
        str(TESTING / "soak_client.py"),
        f"rmq://{peer.name_servers}",
        topic,
        str(SOAK_MESSAGES),
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert (said["sent"], said["left"], said["tasks_after"]) == (SOAK_MESSAGES, 0, 1)
    assert said["cuts"] >= 3
    samples = said["samples"]
    quarter = len(samples) // 4
    before, after = statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[2 * quarter :])
    assert after / before - 1 < (0.01 if SOAK_MESSAGES >= 500_000 else 0.03), samples
