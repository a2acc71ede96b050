"""Handlers, publishers, requests, routers and middlewares of a FastStream broker: in memory, and over an embedded broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from faststream import BaseMiddleware, Context, Depends
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import decode_message
from faststream.response import PublishCommand
from faststreamtransport import EMBEDDED, MEMORY, Transport, transport_of
from pydantic import BaseModel

from harness.gate.coroutines import Entered
from saturnmq import MessageRefused, sql
from saturnmq.faststream import RocketMessage, RocketPublisher, RocketResponse, RocketRoute, RocketRouter
from saturnmq.faststream.annotations import RocketBatchMessage
from waiting import until


@pytest.fixture(params=[MEMORY, EMBEDDED])
def transport(request: pytest.FixtureRequest) -> Entered:
    return Entered(transport_of(request.param))


class Order(BaseModel):
    id: int


@dataclass
class Line:
    item: str


VALUES: list[tuple[Any, Any, Any]] = [
    ("hello", str, "hello"),
    ("", str, ""),
    (b"\xff", bytes, b"\xff"),
    (7, int, 7),
    (None, Any, None),
    ({"id": 1}, Order, Order(id=1)),
    (Order(id=2), dict, {"id": 2}),
    (Line("a"), Line, Line("a")),
    ([1, 2], list[int], [1, 2]),
]


async def test_handler_gets_the_published_value_as_its_annotation(transport: Transport) -> None:
    broker, values = transport.broker(), {}

    def subscribe(topic: str, kind: Any) -> None:
        async def handle(value: Any) -> None:
            values[topic] = value

        handle.__annotations__["value"] = kind
        broker.subscriber(topic, group=topic, start="first")(handle)

    for index, (_, kind, _) in enumerate(VALUES):
        subscribe(f"T{index}", kind)
    async with transport.run(broker):
        for index, (sent, _, _) in enumerate(VALUES):
            await broker.publish(sent, f"T{index}")
        await until(lambda: len(values) == len(VALUES))
    assert values == {f"T{index}": received for index, (_, _, received) in enumerate(VALUES)}


async def test_message_has_properties_keys_tag_and_ids(transport: Transport) -> None:
    broker, messages = transport.broker(), []

    @broker.subscriber("T", group="g", start="first")
    async def handle(body: str, message: RocketMessage, itself: Annotated[Any, Context("broker")]) -> None:
        messages.append(message)
        assert itself is broker

    async with transport.run(broker):
        receipt = await broker.publish(
            "x", "T", tag="paid", keys=["k1", "k2"], headers={"region": "EU", "n": 1}, correlation_id="c"
        )
        await until(lambda: messages)
        with pytest.raises(MessageRefused, match="TAGS"):
            await broker.publish("x", "T", headers={"TAGS": "x"})
        with pytest.raises(MessageRefused, match="empty"):
            await broker.publish(b"", "T")
    (message,) = messages
    assert message.headers == {"content-type": "text/plain", "region": "EU", "n": "1", "correlation_id": "c"}
    assert (message.correlation_id, message.message_id) == ("c", receipt.message_id)
    assert (message.raw_message.tag, message.raw_message.keys, message.raw_message.topic) == ("paid", ("k1", "k2"), "T")


async def test_result_goes_to_every_publisher_and_options_add_up(transport: Transport) -> None:
    broker, messages = transport.broker(id_generator=lambda: "made"), {}

    @broker.subscriber("A", group="a", start="first")
    @broker.publisher("B", tag="b", headers={"from": "publisher", "both": "publisher"})
    @broker.publisher("C")
    async def first(body: str) -> RocketResponse:
        return RocketResponse({"n": 1}, keys="k", headers={"both": "response"})

    @broker.subscriber("B", group="b", start="first")
    @broker.subscriber("C", group="c", start="first")
    async def second(body: dict[str, int], message: RocketMessage) -> None:
        messages[message.raw_message.topic] = message

    async with transport.run(broker):
        await broker.publish("x", "A")
        await until(lambda: len(messages) == 2)
    assert (messages["B"].raw_message.tag, messages["C"].raw_message.tag) == ("b", None)
    assert messages["B"].raw_message.keys == messages["C"].raw_message.keys == ("k",)
    assert messages["B"].headers.items() >= {"from": "publisher", "both": "response", "correlation_id": "made"}.items()
    assert "from" not in messages["C"].headers


async def test_reply_goes_to_the_topic_that_the_message_names(transport: Transport) -> None:
    broker, replies = transport.broker(), []

    @broker.subscriber("A", group="a", start="first")
    async def handle(body: str) -> str:
        return body.upper()

    @broker.subscriber("Quiet", group="q", no_reply=True, start="first")
    async def quiet(body: str) -> str:
        return "never sent"

    @broker.subscriber("R", group="r", start="first")
    async def collect(body: str, message: RocketMessage) -> None:
        replies.append((body, message.correlation_id))

    async with transport.run(broker):
        await broker.publish("x", "Quiet", reply_to="R")
        await broker.publish("hello", "A", reply_to="R", correlation_id="7")
        await until(lambda: replies)
    assert replies == [("HELLO", "7")]


async def test_request_returns_the_reply(transport: Transport) -> None:
    broker = transport.broker()
    price = broker.publisher("Prices", tag="fruit")

    @broker.subscriber("Prices", group="g", filter="fruit", start="first")
    async def handle(body: str) -> dict[str, str]:
        return {"item": body}

    async with transport.run(broker):
        reply = await broker.request("apple", "Prices", tag="fruit", timeout=10, correlation_id="c1")
        assert (await reply.decode(), reply.correlation_id) == ({"item": "apple"}, "c1")
        assert await (await price.request("pear", timeout=10)).decode() == {"item": "pear"}
        with pytest.raises(FeatureNotSupportedException, match="delay"):
            await broker.request("apple", "Prices", delay=5)


async def test_request_without_a_reply_times_out(transport: Transport) -> None:
    broker = transport.broker()

    @broker.subscriber("Slow", group="g", start="first")
    async def handle(body: str) -> str:
        await asyncio.Event().wait()
        return body

    async with transport.run(broker):
        with pytest.raises(TimeoutError):
            await broker.request("x", "Slow", timeout=1)


async def test_filter_selects_by_tag_or_by_properties(transport: Transport) -> None:
    broker, by_tag, by_property = transport.broker(), [], []

    @broker.subscriber("T", group="tags", filter="paid || refunded", start="first")
    async def tagged(body: int) -> None:
        by_tag.append(body)

    @broker.subscriber("T", group="sql", filter=sql("region = 'EU' AND total > 5"), start="first")
    async def selected(body: int) -> None:
        by_property.append(body)

    async with transport.run(broker):
        await broker.publish(1, "T", tag="paid", headers={"region": "EU", "total": 12})
        await broker.publish(2, "T", tag="lost", headers={"region": "EU", "total": 3})
        await broker.publish(3, "T", tag="refunded", headers={"region": "US", "total": 12})
        await broker.publish(4, "T", headers={"region": "EU", "total": 6})
        await until(lambda: len(by_tag) == 2 and len(by_property) == 2)
    assert (sorted(by_tag), sorted(by_property)) == ([1, 3], [1, 4])


async def test_first_suitable_handler_of_a_subscriber_gets_the_message(transport: Transport) -> None:
    broker, handled = transport.broker(), []
    subscriber = broker.subscriber("T", group="g", start="first")

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def structured(body: dict[str, int]) -> None:
        handled.append(("json", body))

    @subscriber
    async def other(body: str) -> None:
        handled.append(("other", body))

    async with transport.run(broker):
        await broker.publish({"n": 1}, "T")
        await broker.publish("text", "T")
        await until(lambda: len(handled) == 2)
    assert sorted(handled) == [("json", {"n": 1}), ("other", "text")]


async def test_batch_handler_gets_the_messages_that_have_arrived(transport: Transport) -> None:
    broker, batches = transport.broker(), []

    @broker.subscriber("Out", group="g", batch=10, start="first")
    async def handle(bodies: list[int], message: RocketBatchMessage) -> None:
        assert len(message.batch_headers) == len(bodies) == len(message.raw_message)
        batches.append(bodies)

    @broker.subscriber("In", group="in", start="first")
    @broker.publisher("Out", batch=True)
    async def double(body: int) -> list[int]:
        return [body, 2 * body]

    async with transport.run(broker):
        receipts = await broker.publish_batch(1, 2, 3, topic="Out", tag="n", shard_by="k")
        assert len(receipts) == 3
        await broker.publish(4, "In")
        await until(lambda: sum(map(len, batches)) == 5)
        await broker.publisher("Out", batch=True).publish(5, 6)
        await until(lambda: sum(map(len, batches)) == 7)
        with pytest.raises(TypeError, match="2 messages for publisher Out"):
            await broker.publisher("Out").publish(5, 6)
        with pytest.raises(FeatureNotSupportedException, match="deliver_at"):
            await broker.publish_batch(1, topic="Out", deliver_at=0)
    assert sorted(body for batch in batches for body in batch) == [1, 2, 3, 4, 5, 6, 8]


async def test_router_adds_prefix_dependencies_and_middlewares(transport: Transport) -> None:
    broker, calls = transport.broker(), []

    class Outer(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            calls.append("outer")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: PublishCommand) -> Any:
            cmd.add_headers({"traced": "yes"})
            return await call_next(cmd)

    def note() -> None:
        calls.append("dependency")

    async def late(body: str) -> str:
        return f"{body}!"

    inner = RocketRouter(
        prefix="eu-",
        handlers=[RocketRoute(late, "late", group="l", start="first", publishers=[RocketPublisher("done")])],
    )
    outer = RocketRouter(prefix="shop-", middlewares=[Outer], dependencies=[Depends(note)])

    @outer.subscriber("eu-done", group="d", start="first")
    async def done(body: str, message: RocketMessage) -> None:
        calls.append((body, message.headers.get("traced"), message.raw_message.topic))

    outer.include_router(inner)
    broker.include_router(outer)
    async with transport.run(broker):
        await broker.publish("x", "shop-eu-late")
        await until(lambda: len(calls) >= 5)
    assert calls == ["outer", "dependency", "outer", "dependency", ("x!", "yes", "shop-eu-done")]


async def test_parser_and_decoder_may_be_the_applications(transport: Transport) -> None:
    async def parser(raw: Any, original: Any) -> Any:
        message = await original(raw)
        message.correlation_id = "parsed"
        return message

    def decoder(message: Any) -> Any:
        return ("decoded", decode_message(message))

    broker, bodies = transport.broker(parser=parser, apply_types=False), []

    @broker.subscriber("T", group="g", decoder=decoder, start="first")
    async def handle(body: Any) -> None:
        bodies.append((body, broker.context.get_local("message").correlation_id))

    async with transport.run(broker):
        await broker.publish("x", "T")
        await until(lambda: bodies)
    assert bodies == [(("decoded", "x"), "parsed")]


async def test_subscriber_can_be_added_while_the_broker_runs(transport: Transport) -> None:
    broker, bodies = transport.broker(), []

    async def handle(body: str) -> None:
        bodies.append(body)

    async with transport.run(broker):
        subscriber = broker.subscriber("T", group="g", start="first")
        subscriber(handle)
        async with subscriber:
            await broker.publish("x", "T")
            await until(lambda: bodies)
    assert bodies == ["x"]
