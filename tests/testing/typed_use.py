"""The public API as a type checker sees it. Never run: mypy reads it (test_testing_typing.py).

A line with `type: ignore[code]` must be an error: if it is none, mypy reports an unused ignore.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_type

import saturnmq.admin.sync
import saturnmq.sync
from saturnmq import (
    Ack,
    Batch,
    Client,
    Codec,
    Consumer,
    Message,
    MessageQueue,
    Outgoing,
    Producer,
    Puller,
    PullResult,
    Receipt,
    Retry,
    SaturnError,
    Transaction,
    TransactionState,
    bytes_codec,
    json_codec,
    sql,
    str_codec,
    tag,
)
from saturnmq.testing import BrokerFixture, ClockFixture, EmbeddedBroker, Request
from saturnmq.testing.loop_thread import PendingResult


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    total: float


class Busy(Exception):
    """An exception of the example."""


async def was_saved(message: Message[Order]) -> TransactionState:
    return TransactionState.COMMIT if message.value.id else TransactionState.UNKNOWN


async def save_locally(message_id: str) -> None: ...
async def bill(order: Order) -> None: ...


async def sketch() -> None:
    """The example of spec 08."""
    async with Client.from_url("rmq://ns-a:9876,ns-b:9876?namespace=shop", timeout=3.0) as client:
        async with client.producer("orders-p", codec=json_codec(Order), max_in_flight=1024, check=was_saved) as out:
            receipt = await out.send("orders", Order(1, 9.5), tag="paid", keys=["1"], shard_by="customer-7")
            print(receipt.message_id, receipt.queue, receipt.offset, receipt.durable)
            await out.send("reminders", Order(1, 9.5), delay=timedelta(seconds=90))
            await out.send_many("orders", [Order(n, 1.0) for n in range(100)])
            async with out.transaction("orders", Order(2, 5.0)) as half:
                await save_locally(half.message_id)

        async with client.consumer("billing", codec=json_codec(Order), prefetch=64, start="first") as inbox:
            await inbox.subscribe("orders", tag("paid || refunded"))
            await inbox.subscribe("audit", sql("region = 'EU' AND total > 5"))
            async for message in inbox:
                try:
                    await bill(message.value)
                except Busy as error:
                    await message.retry(after=timedelta(seconds=30), reason=str(error))
                else:
                    await message.ack()

        @client.listener("orders", group="search", filter=tag("*"), concurrency=32, retry=Retry(max_times=16))
        async def index(message: Message[Order]) -> Ack:
            await bill(message.value)
            return Ack.SUCCESS

        assert_type(await index(message), Ack)  # a decorated handler keeps its type
        await client.run(drain_timeout=20)


async def clients() -> None:
    client = Client.from_url("rmq://localhost")
    assert_type(client, Client)
    async with client as started:
        assert_type(started, Client)
    assert_type(client.client_id, str)
    assert_type(await client.topic_exists("t"), bool)
    assert_type(await client.view_message("id"), Message[bytes])
    assert_type(await client.query_messages("t", "key"), list[Message[bytes]])
    Client("rmq://localhost")  # type: ignore[call-arg]  # keyword-only (API-01)


async def producers(client: Client) -> None:
    assert_type(bytes_codec(), Codec[bytes])
    assert_type(str_codec(), Codec[str])
    assert_type(json_codec(Order), Codec[Order])
    plain = client.producer("p")
    assert_type(plain, Producer[bytes])
    assert_type(await plain.send("t", b"x"), Receipt)
    assert_type(await plain.send_oneway("t", b"x"), str)
    assert_type(await plain.request("t", b"x"), Message[bytes])
    await plain.send("t", "text")  # type: ignore[arg-type]
    await plain.send("t", b"x", delay=timedelta(seconds=1), deliver_at=datetime.now())
    typed = client.producer("p", codec=json_codec(Order))
    assert_type(typed, Producer[Order])
    assert_type(await typed.send_many("t", [Order(1, 1.0), Outgoing(value=Order(2, 2.0), tag="x")]), list[Receipt])
    assert_type(typed.transaction("t", Order(1, 1.0)), Transaction[Order])
    assert_type(await typed.queues("t"), list[MessageQueue])
    await typed.send("t", b"bytes")  # type: ignore[arg-type]
    receipt = await typed.send("t", Order(1, 1.0))
    assert_type(receipt.durable, bool | None)
    receipt.message_id = "x"  # type: ignore[misc]


async def consumers(client: Client) -> None:
    plain = client.consumer("g")
    assert_type(plain, Consumer[bytes])
    typed = client.consumer("g", codec=json_codec(Order), ordered=True)
    assert_type(typed, Consumer[Order])
    assert_type((await typed.recv()).value, Order)
    async for message in typed:
        assert_type(message, Message[Order])
        assert_type(message.stored_at, datetime)
        message.value = Order(1, 1.0)  # type: ignore[misc]
    batches: AsyncIterator[Batch[Order]] = typed.batches(10)
    assert_type(await anext(batches), Batch[Order])
    client.consumer("g", prefetsch=1)  # type: ignore[call-overload]
    client.producer("g", linger=1)  # type: ignore[call-overload]
    Client(name_server="h")  # type: ignore[call-arg]
    Client.from_url("rmq://h", timeout="1s")  # type: ignore[arg-type]
    puller = client.puller()
    assert_type(puller, Puller)
    result = await puller.pull(MessageQueue("t", "b", 0), 0)
    assert_type(result, PullResult)
    assert_type(result.messages(), list[Message[bytes]])
    try:
        await puller.queues("t")
    except SaturnError as error:
        assert_type(error.retryable, bool)
        assert_type(error.hint, str | None)


def plain_code() -> None:
    with saturnmq.sync.Client.from_url("rmq://localhost") as client:
        assert_type(client, saturnmq.sync.Client)
        assert_type(client.topic_exists("t"), bool)
        client.create_topic("t", queue=8)  # type: ignore[call-arg]
        client.producer("p", linger_ms=5, batch_bytes=0)
        client.producer("p", linger=1)  # type: ignore[call-overload]
        with client.producer("p", codec=json_codec(Order)) as out:
            assert_type(out, saturnmq.sync.Producer[Order])
            assert_type(out.send("t", Order(1, 1.0), tag="a"), Receipt)
            out.send("t", b"bytes")  # type: ignore[arg-type]
            out.send("t", Order(1, 1.0), tags="a")  # type: ignore[call-arg]
            assert_type(out.send_many("t", values=[Order(1, 1.0)]), list[Receipt])
            assert_type(out.request("t", Order(1, 1.0)).value, Order)
            with out.transaction("t", Order(1, 1.0)) as half:
                assert_type(half, saturnmq.sync.Transaction[Order])
        with client.consumer("g", codec=json_codec(Order)) as inbox:
            assert_type(inbox, saturnmq.sync.Consumer[Order])
            assert_type(inbox.recv(timeout=1), saturnmq.sync.Message[Order])
            batches: Iterator[saturnmq.sync.Batch[Order]] = inbox.batches(10)
            assert_type(next(batches), saturnmq.sync.Batch[Order])
            assert_type(inbox.lag(), dict[MessageQueue, int])
            for message in inbox:
                assert_type(message.value, Order)
                assert_type(message.retry(timedelta(seconds=1), reason="busy"), None)
        assert_type(client.puller().watch("t"), Iterator[list[MessageQueue]])

        @client.listener("orders", group="search", concurrency=32)
        def index(message: saturnmq.sync.Message[Order]) -> Ack:
            return Ack.SUCCESS

        assert_type(index(message), Ack)
        client.listener("orders", group="search", concurency=32)  # type: ignore[call-arg]


def administration() -> None:
    with saturnmq.admin.sync.Admin("127.0.0.1:9876") as admin:
        assert_type(admin.topics.names(), list[str])
        assert_type(admin.groups.delete("a:1", "g", remove_offset=True), None)
        assert_type(admin.messages.by_key("t", "k", max_count=3), list[Message[bytes]])
        admin.groups.delete("a:1", "g", remove_offsets=True)  # type: ignore[call-arg]
        admin.topics.route(7)  # type: ignore[arg-type]


async def fixtures(saturn_broker: BrokerFixture, saturn_clock: ClockFixture) -> None:
    assert_type(saturn_broker.published("t"), list[Message[bytes]])
    assert_type(saturn_broker.requests, list[Request])
    assert_type(saturn_broker.expect("t", 1, within=1), PendingResult[list[Message[bytes]]])
    assert_type(await saturn_broker.expect("t", 1), list[Message[bytes]])
    await saturn_clock.advance(timedelta(hours=1))
    async with EmbeddedBroker() as server:
        assert_type(server, EmbeddedBroker)
