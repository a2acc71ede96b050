"""A FastStream broker's life: order, delay, failures, configuration, the AsyncAPI document, a server of its own process."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream.exceptions import IncorrectState, SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI
from faststreamtransport import EMBEDDED, Transport, transport_of
from serverprocess import Server

import saturnmq.sync
from harness.gate.coroutines import Entered
from saturnmq import Client, ConfigError, MessageRefused
from saturnmq.errors import GroupInUse
from saturnmq.faststream import RocketBroker, RocketMessage, RocketRouter, TestRocketBroker
from saturnmq.faststream.messages import RocketMessage as MessageType
from waiting import until


@pytest.fixture
def transport() -> Entered:
    return Entered(transport_of(EMBEDDED))


async def test_ordered_subscriber_keeps_the_order_of_a_key(transport: Transport) -> None:
    broker, steps, failed = transport.broker(), defaultdict(list), []

    @broker.subscriber("Steps", group="g", ordered=True, suspend=0.1, max_workers=4, start="first")
    async def handle(step: int, message: RocketMessage) -> None:
        key = message.headers["customer"]
        if (key, step) == ("b", 2) and not failed:
            failed.append(step)
            raise ValueError("once")
        steps[key].append(step)

    async with transport.run(broker):
        for step in range(5):
            for key in "abc":
                await broker.publish(step, "Steps", shard_by=key, headers={"customer": key})
        await until(lambda: sum(map(len, steps.values())) == 15)
    assert failed and steps == {key: [0, 1, 2, 3, 4] for key in "abc"}


async def test_delayed_message_arrives_after_its_delay(transport: Transport) -> None:
    broker, arrived = transport.broker(), []
    later = broker.publisher("T", delay=90)
    now = asyncio.get_running_loop().time

    @broker.subscriber("T", group="g", start="first")
    async def handle(body: str) -> None:
        arrived.append((body, now() - began))

    async with transport.run(broker):
        began = now()
        await broker.publish("soon", "T", delay=5)
        await later.publish("later")
        await until(lambda: len(arrived) == 2, within_s=200)
    assert [body for body, _ in arrived] == ["soon", "later"]
    assert 5 <= arrived[0][1] < 10 and 90 <= arrived[1][1] < 100


async def test_subscriber_without_handlers_returns_messages(transport: Transport) -> None:
    broker = transport.broker()
    subscriber = broker.subscriber("T", group="g", start="first")
    batches = broker.subscriber("T", group="batches", batch=5, start="first")
    async with transport.run(broker):
        await broker.start()  # again, without effect
        assert await subscriber.get_one(timeout=1) is None
        await broker.publish("x", "T", shard_by="k")
        await broker.publish("y", "T", shard_by="k")
        message = await subscriber.get_one(timeout=60)
        assert message is not None and await message.decode() == "x"
        await message.ack()
        batch = await batches.get_one(timeout=60)
        assert batch is not None and await batch.decode() == ["x"]
        async for message in subscriber:
            assert await message.decode() == "y"
            await message.ack()
            break
        assert sum((await subscriber.consumer.lag()).values()) == 0


async def test_handlers_of_a_running_subscriber_exclude_get_one(transport: Transport) -> None:
    broker = transport.broker()
    subscriber = broker.subscriber("T", group="g")

    @subscriber
    async def handle(body: str) -> None: ...

    async with transport.run(broker):
        with pytest.raises(AssertionError, match="without handlers"):
            await subscriber.get_one()


async def test_ping_reports_servers_and_subscribers_that_ended(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    broker = transport.broker(logger=logging.getLogger("faststream-test"), timeout=1.0)
    subscriber = broker.subscriber("T", group="g")

    @subscriber
    async def handle(body: str) -> None: ...

    assert not await broker.ping()
    async with transport.run(broker):
        assert await broker.ping(5)
        subscriber.consumer.fail(RuntimeError("a task died"))
        await until(lambda: subscriber.failure)
        assert not await broker.ping(5)
        assert "the subscriber stopped" in caplog.text and "a task died" in caplog.text
    away = RocketBroker("rmq://127.0.0.1:1", logger=None, timeout=0.2)
    async with away:
        assert not await away.ping(5)


async def test_second_subscriber_of_a_group_is_refused(transport: Transport) -> None:
    broker = transport.broker()
    for topic in ("A", "B"):

        @broker.subscriber(topic, group="g")
        async def handle(body: str) -> None: ...

    with pytest.raises(GroupInUse):
        await broker.start()
    await broker.stop()


async def test_reply_to_a_requester_that_left_is_no_failure(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    broker, attempts = transport.broker(timeout=1.0), []

    @broker.subscriber("T", group="g", start="first")
    async def handle(body: str, message: RocketMessage) -> str:
        attempts.append(message.raw_message.attempt)
        await asyncio.sleep(20)  # poll: virtual time
        return body

    async with transport.run(broker):
        async with Client.from_url(transport.url) as asker, asker.producer("asker") as out:
            with pytest.raises(Exception, match="wait reply message timeout"):
                await out.request("T", b"x", timeout=1)
        await until(lambda: "reply not delivered" in caplog.text, within_s=60)
        await asyncio.sleep(60)  # poll: virtual time
    assert attempts == [1]


async def test_broker_that_is_not_connected_says_what_to_call() -> None:
    broker = RocketBroker()
    with pytest.raises(IncorrectState, match=r"await broker.start\(\)"):
        await broker.publish("x", "T")
    await broker.stop()


def test_bad_configuration_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match="must be 1"):
        RocketBroker(attempts=0)
    with pytest.raises(ConfigError, match="nmespace"):
        RocketBroker(nmespace="shop")
    with pytest.raises(ConfigError, match="group"):
        RocketBroker(producer_group="a b")
    broker = RocketBroker()
    with pytest.raises(ConfigError, match="max_workers: concurrency is 0, must be 1"):
        broker.subscriber("T", group="g", max_workers=0)
    with pytest.raises(ConfigError, match="batch is 5, which needs ordered=False"):
        broker.subscriber("T", group="g", batch=5, ordered=True)
    with pytest.raises(ConfigError, match="prefech"):
        broker.subscriber("T", group="g", prefech=5)
    with pytest.raises(ConfigError, match="names no tag"):
        broker.subscriber("T", group="g", filter="||")
    with pytest.raises(MessageRefused, match="illegal"):
        broker.publisher("a b")
    with pytest.raises(TypeError, match="must be a RocketRouter"):
        broker.include_router(object())


def test_security_becomes_settings_of_the_client() -> None:
    settings = RocketBroker(security=SASLPlaintext("key", "secret", use_ssl=True))._make_client().settings
    assert (settings.access_key, settings.secret_key, settings.tls) == ("key", "secret", True)
    assert RocketBroker(security=BaseSecurity(use_ssl=True))._make_client().settings.tls
    with pytest.raises(ConfigError, match=r"SASLScram256, must be SASLPlaintext"):
        RocketBroker(security=SASLScram256("key", "secret"))


async def test_parameter_of_the_class_itself_is_refused_with_its_annotation() -> None:
    broker = RocketBroker(logger=None)

    @broker.subscriber("T", group="g")
    async def handle(message: MessageType) -> None: ...

    with pytest.raises(SetupError, match="RocketMessage"):
        async with TestRocketBroker(broker, connect_only=False):
            pass


def test_asyncapi_document_lists_channels_messages_and_the_server() -> None:
    broker = RocketBroker("rmq://key:secret@ns-a:9876,ns-b", description="Orders")
    router = RocketRouter(prefix="shop-")

    @router.subscriber("orders", group="billing", title="Billing")
    @router.publisher("invoices", description="open invoices")
    async def bill(order: dict[str, int]) -> str:
        """Bills an order."""
        return ""

    broker.include_router(router)
    for version in ("3.0.0", "2.6.0"):
        document: dict[str, Any] = AsyncAPI(broker, schema_version=version).to_specification().to_jsonable()
        servers = document["servers"].values()
        assert {server["protocol"] for server in servers} == {"rocketmq"}
        assert "secret" not in str(document) and "ns-b:9876" in str(document["servers"])
        assert set(document["channels"]) == {"Billing", "shop-invoices:Publisher"}
        assert "Bills an order." in str(document) and "open invoices" in str(document)
    addresses = {
        channel["address"] for channel in AsyncAPI(broker).to_specification().to_jsonable()["channels"].values()
    }
    assert addresses == {"shop-orders", "shop-invoices"}


async def test_memory_broker_delivers_once_to_a_group_and_to_all_that_broadcast() -> None:
    one, two = (RocketBroker(logger=None, instance=name) for name in ("one", "two"))
    for broker in (one, two):

        @broker.subscriber("T", group="shared")
        async def shared(body: str) -> None:
            calls.append("shared")

        @broker.subscriber("T", group="all", model="broadcast")
        async def broadcast(body: str) -> None:
            calls.append("broadcast")

    calls: list[str] = []
    async with TestRocketBroker(one, two, connect_only=False):
        await one.publish("x", "T")
    assert sorted(calls) == ["broadcast", "broadcast", "shared"]


async def test_memory_broker_records_calls_and_raises_what_handlers_raise() -> None:
    broker = RocketBroker(logger=None)
    publisher = broker.publisher("out")

    @publisher
    @broker.subscriber("T", group="g")
    async def handle(body: str) -> str:
        if body == "bad":
            raise ValueError(body)
        return body.upper()

    async with TestRocketBroker(broker, connect_only=False) as memory:
        receipt = await memory.publish("x", "T")
        assert receipt.queue.topic == "T" and receipt.message_id
        handle.mock.assert_called_once_with("x")
        publisher.mock.assert_called_once_with("X")
        with pytest.raises(ValueError, match="bad"):
            await memory.publish("bad", "T")
        with pytest.raises(MessageRefused, match="empty"):
            await memory.publish(b"", "T")
    assert broker._connection is None
    with pytest.raises(IncorrectState):
        await broker.publish("x", "T")


async def test_broker_is_real_again_after_a_test_that_failed() -> None:
    broker = RocketBroker(logger=None)
    with pytest.raises(ValueError, match="of the test"):
        async with TestRocketBroker(broker, connect_only=False):
            raise ValueError("of the test")
    with pytest.raises(IncorrectState):
        await broker.publish("x", "T")


@pytest.mark.loop(real=True)
async def test_memory_assertions_hold_with_the_real_broker(
    saturn_broker: Any, saturn_topic: str, saturn_group: str
) -> None:
    broker = RocketBroker(saturn_broker.url, logger=None)

    @broker.subscriber(saturn_topic, group=saturn_group, start="first")
    async def handle(body: str) -> None: ...

    async with TestRocketBroker(broker, with_real=True, connect_only=False) as real:
        await real.publish("x", saturn_topic)
        await handle.wait_call(30)
        handle.mock.assert_called_once_with("x")
    assert [message.body for message in saturn_broker.published(saturn_topic)] == [b"x"]


APPLICATION = """
import asyncio, sys
from faststream import AckPolicy, FastStream
from saturnmq.faststream import RocketBroker

broker = RocketBroker(sys.argv[1], logger=None)
app = FastStream(broker, logger=None)

@broker.subscriber("orders", group="billing", start="first", ack_policy=AckPolicy.ACK)
@broker.publisher("invoices")
async def bill(order: dict) -> dict:
    return {"n": order["id"]}

@broker.subscriber("invoices", group="books", start="first", max_workers=4)
async def book(invoice: dict) -> None:
    booked.append(invoice["n"])
    if len(booked) == 200:
        app.exit()

@app.after_startup
async def send() -> None:
    await broker.publish_batch(*({"id": n} for n in range(200)), topic="orders")

booked = []
asyncio.run(app.run())
print(sorted(booked) == list(range(200)))
"""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Server]:
    server = Server("standalone", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--port", "0")
    yield server
    server.stop()


def test_application_runs_against_a_standalone_server(standalone: Server, tmp_path: Path) -> None:
    url = f"rmq://{standalone.facts['namesrv']}"
    with saturnmq.sync.Client.from_url(url) as client:
        for topic in ("orders", "invoices"):
            client.create_topic(topic)
    program = tmp_path / "application.py"
    program.write_text(APPLICATION, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(program), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
