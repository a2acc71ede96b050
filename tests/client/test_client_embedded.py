# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""The client against SaturnMQ's own name server and broker, embedded in the test process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from saturnmq import (
    Ack,
    Client,
    Message,
    Outgoing,
    PullStatus,
    ResponseError,
    RouteNotFound,
    SendStatus,
    json_codec,
    str_codec,
    tag,
)
from saturnmq.broker import BrokerSettings
from saturnmq.protocol.message import decode_records
from saturnmq.testing import EmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]


@pytest.mark.spec("PR-01", "PR-13", "PR-23", "PR-29", "BAT-07", "API-10", "SPR-08")
async def test_every_send_mode_delivers_once_with_all_fields() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", codec=str_codec()) as out:
            one = await out.send("New", "one", tag="a", keys=["k1", "k2"], properties={"x": "y"}, flag=5)
            many = await out.send_many("New", [Outgoing(value=f"many{n}", tag="b") for n in range(20)])
            way = await out.send_oneway("New", "oneway")
            big = await out.send("New", "big" * 5000)
            assert one.status is SendStatus.SEND_OK and len(await out.queues("New")) == 4
            assert [receipt.offset for receipt in many] == list(range(many[0].offset, many[0].offset + 20))
            async with client.consumer("c", codec=str_codec(), start="first") as inbox:
                await inbox.subscribe("New")
                got: dict[str, Message[str]] = {}
                while len(got) < 23:
                    message = await inbox.recv(30)
                    assert message.value not in got
                    got[message.value] = message
                    await message.ack()
                first = got["one"]
                assert (first.tag, first.keys, first.properties["x"], first.flag, first.attempt) == (
                    "a",
                    ("k1", "k2"),
                    "y",
                    5,
                    1,
                )
                assert (first.queue, first.offset, first.message_id) == (one.queue, one.offset, one.message_id)
                assert first.offset_message_id == one.offset_message_id and "WAIT" not in first.properties
                assert got["oneway"].message_id == way
                assert got["big" * 5000].offset == big.offset and got["big" * 5000].record.sys_flag & 0x301 == 0x301
                assert [got[f"many{n}"].message_id for n in range(20)] == [receipt.message_id for receipt in many]
                assert [got[f"many{n}"].offset_message_id for n in range(20)] == [r.offset_message_id for r in many]
                assert {got[f"many{n}"].tag for n in range(20)} == {"b"}
                assert sum(inbox.committed().values()) == 23


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    total: float


@pytest.mark.spec("API-08", "API-12", "PR-21", "SPR-03")
async def test_sharded_messages_stay_in_order_in_one_queue() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", codec=json_codec(Order)) as out:
            receipts = [await out.send("Orders", Order(n, 1.5), shard_by="customer-7") for n in range(10)]
            assert len({receipt.queue for receipt in receipts}) == 1
        async with client.consumer("c", codec=json_codec(Order), start="first") as inbox:
            await inbox.subscribe("Orders")
            assert [(await inbox.recv(30)).value for _ in range(10)] == [Order(n, 1.5) for n in range(10)]


@pytest.mark.spec("PR-32", "CA-01")
async def test_namespace_separates_topics_and_groups() -> None:
    async with EmbeddedBroker() as server:
        async with Client.from_url(f"{server.url}?namespace=shop") as shop, Client.from_url(server.url) as plain:
            async with shop.producer("p") as out:
                await out.send("T", b"x")
            assert await plain.topic_exists("shop%T") and not await plain.topic_exists("T")
            async with shop.consumer("c", start="first") as inbox:
                await inbox.subscribe("T")
                message = await inbox.recv(30)
                assert (
                    message.topic == "T" and message.queue.topic == "T" and message.properties["INSTANCE_ID"] == "shop"
                )
                await message.ack()
            puller = plain.puller()
            queue = next(q for q in await puller.queues("shop%T") if q.queue_id == message.queue.queue_id)
            assert await puller.committed("shop%c", queue) == 1


@pytest.mark.spec("PR-02", "PR-33")
async def test_puller_reads_offsets_and_ranges_of_a_created_topic() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        assert await client.create_topic("Made", queues=2) == ["broker-a"]
        assert len(await out.queues("Made")) == 2
        queue = (await out.queues("Made"))[1]
        receipts = [await out.send("Made", b"%d" % n, queue=queue, tag="ab"[n % 2]) for n in range(50)]
        puller = client.puller()
        assert (await puller.min_offset(queue), await puller.max_offset(queue)) == (0, 50)
        assert await puller.offset_by_time(queue, 0) == 0
        result = await puller.pull(queue, 10, max_count=5)
        assert result.status is PullStatus.FOUND and result.max_offset == 50 and result.next_offset == 15
        assert [record.queue_offset for record in decode_records(result.body)] == list(range(10, 15))
        offset, values = 0, []
        while offset < 50:
            result = await puller.pull(queue, offset, expression="a")
            values += [message.value for message in result.messages()]
            offset = result.next_offset
        assert values == [b"%d" % n for n in range(0, 50, 2)]
        assert (await puller.pull(queue, 50)).status is PullStatus.NO_NEW_MESSAGE
        beyond = await puller.pull(queue, 1000)
        assert beyond.status is PullStatus.OFFSET_ILLEGAL and beyond.next_offset == 50
        assert receipts[7].offset == 7


@pytest.mark.spec("RTY-01", "API-21")
async def test_retried_message_is_redelivered_and_rejected_one_dead_lettered() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        async with client.consumer("c", start="first") as inbox:
            await inbox.subscribe("T")
            sent = await out.send("T", b"again", tag="t")
            first = await inbox.recv(30)
            await first.retry(after=timedelta(seconds=1))
            again = await inbox.recv(30)
            assert (again.value, again.attempt, again.topic, again.tag) == (b"again", 2, "T", "t")
            assert again.message_id == sent.message_id and again.offset_message_id != sent.offset_message_id
            await again.reject()
            dead = client.puller()
            async with asyncio.timeout(30):
                while True:
                    try:
                        (queue,) = await dead.refresh("%DLQ%c")
                        result = await dead.pull(queue, 0)
                    except (RouteNotFound, ResponseError):
                        await asyncio.sleep(0.05)  # poll, with the deadline above
                        continue
                    if result.status is PullStatus.FOUND:
                        break
                    await asyncio.sleep(0.05)  # poll, with the deadline above
            assert [message.value for message in result.messages()] == [b"again"]


@pytest.mark.spec("API-20", "RB-03", "DG-03")
async def test_unsettled_message_is_redelivered_to_the_next_owner() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as one, Client.from_url(server.url) as two:
        async with one.producer("p") as out:
            for n in range(8):
                await out.send("T", b"%d" % n)
        inbox = one.consumer("c", start="first")
        await inbox.start()
        await inbox.subscribe("T")
        held = {(await inbox.recv(30)).value for _ in range(8)}
        async with two.consumer("c", start="first") as other:
            await other.subscribe("T")
            await other.wait_assigned()
            await inbox.stop()
            again: set[bytes] = set()
            while again != held:
                message = await other.recv(30)
                again.add(message.value)
                await message.ack()
            assert len(again) == 8


@pytest.mark.spec("RB-02")
async def test_members_divide_and_hand_over_queues() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as a, Client.from_url(server.url) as b:
        await a.create_topic("T", queues=8)
        async with a.consumer("c") as one:
            await one.subscribe("T")
            async with asyncio.timeout(30):
                while len(one.assigned) != 8:
                    await asyncio.sleep(0.01)  # poll, with the deadline above
            async with b.consumer("c") as two:
                await two.subscribe("T")
                async with asyncio.timeout(30):
                    while not len(one.assigned) == len(two.assigned) == 4:
                        await asyncio.sleep(0.01)  # poll, with the deadline above
                assert not set(one.assigned) & set(two.assigned)
            async with asyncio.timeout(30):
                while len(one.assigned) != 8:
                    await asyncio.sleep(0.01)  # poll, with the deadline above


@pytest.mark.spec("PL-06", "PRC-05", "API-15")
async def test_consumer_tag_filter_compares_the_tag_text() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        async with client.consumer("c", start="first") as inbox:
            await inbox.subscribe("T", tag("AaAa || z"))
            for n, name in enumerate(("AaAa", "BBBB", None, "z", "AaAa")):
                await out.send("T", b"%d" % n, tag=name)
            got = sorted([(await inbox.recv(30)).value for _ in range(3)])
            assert got == [b"0", b"3", b"4"]
            with pytest.raises(TimeoutError):
                await inbox.recv(0.1)


@pytest.mark.spec("UX-08", "PR-10")
async def test_missing_topic_error_names_the_command_that_creates_it() -> None:
    settings = BrokerSettings(auto_create_topic=False)
    async with EmbeddedBroker(settings=settings) as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            with pytest.raises(RouteNotFound) as caught:
                await out.send("orders", b"x")
            text = str(caught.value)
            assert "saturnmq admin updateTopic" in text and "-t orders" in text and "auto-creation is off" in text
            assert server.name_servers in text


@pytest.mark.spec("API-16", "CA-01")
async def test_listener_consumes_all_messages_of_a_producer() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        done: list[int] = []
        finished = asyncio.Event()

        async with client.producer("p", codec=json_codec(Order)) as out:
            await out.send_many("Orders", [Order(n, 0.5) for n in range(100)])

            @client.listener("Orders", group="g", concurrency=8)
            async def handle(message: Message[Order]) -> Ack:
                done.append(message.value.id)
                if len(done) == 100:
                    finished.set()
                return Ack.SUCCESS

            running = asyncio.ensure_future(client.run())
            await finished.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert sorted(done) == list(range(100))
