"""What an application of rocketmq-spring does, with our client: the rows SPR of the specification."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from saturnmq import Ack, Client, ConfigError, Message, Retry, RouteNotFound, json_codec, sql, str_codec, sync
from saturnmq.broker import BrokerSettings
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.filters import ALL
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker
from waiting import until


@dataclass(frozen=True)
class Order:
    id: int
    region: str


class Price(pydantic.BaseModel):
    id: int


@asynccontextmanager
async def running(client: Client) -> AsyncIterator[None]:
    """The client with its listeners running; they are stopped at the end."""
    service = asyncio.create_task(client.run())
    try:
        yield
    finally:
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


# SPR-01: settings


@pytest.mark.spec("SPR-01")
def test_settings_of_a_producer_and_a_reader_come_from_toml_or_a_mapping() -> None:
    table = tomllib.loads(
        """
        [client]
        name_servers = ["a:9876"]
        timeout = 3.0
        attempts = 3
        retry_not_stored = false
        compress_from_bytes = 4096
        body_bytes_max = 4194304
        access_key = "ak"
        secret_key = "sk"
        trace = "SpringTrace"
        tls = true
        [listener]
        group = "readers"
        model = "cluster"
        pull_batch = 10
        enabled = false
        """
    )
    client = Client(**table["client"])
    defaults = Client(name_servers="a:9876").settings
    for name in ("timeout", "attempts", "retry_not_stored", "compress_from_bytes", "body_bytes_max"):
        assert getattr(client.settings, name) == getattr(defaults, name), "the defaults of rocketmq-spring"
    assert (client.settings.access_key, client.settings.trace, client.settings.tls) == ("ak", "SpringTrace", True)
    client.listener("orders", **table["listener"])(lambda message: None)
    (spec,) = client._listeners
    assert (spec.group, spec.options, spec.enabled) == ("readers", {"model": "cluster", "pull_batch": 10}, False)
    with pytest.raises(ConfigError) as caught:
        Client(name_servers="a:9876", send_timeout=3)
    assert "unknown setting 'send_timeout'" in str(caught.value)


@pytest.mark.spec("SPR-01")
@pytest.mark.parametrize("facade", [Client, sync.Client])
def test_listener_switch_and_start_hook_are_validated(facade: Any) -> None:
    client = facade(name_servers="a:9876")
    with pytest.raises(ConfigError) as caught:
        client.listener("orders", group="g", enabled="false", on_start="hook")(lambda message: None)
    assert caught.value.problems == [
        "enabled is 'false', must be True or False",
        "on_start is str, must be a function of the consumer",
    ]


@pytest.mark.spec("SPR-01")
async def test_disabled_listener_does_not_join_its_group() -> None:
    handled: list[bytes] = []
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send("Switched", b"one")

        @client.listener("Switched", group="off", start="first", enabled=False)
        async def never(message: Message[bytes]) -> None:
            handled.append(b"never")

        idle = asyncio.create_task(client.run())
        await asyncio.wait((idle,), timeout=1)
        assert not idle.done(), "all are off: it waits to be stopped, as with listeners"
        idle.cancel()
        await asyncio.gather(idle, return_exceptions=True)

        @client.listener("Switched", group="on", start="first", enabled=True)
        async def handle(message: Message[bytes]) -> None:
            handled.append(message.body)

        async with running(client):
            await until(lambda: handled)
            assert set(server.broker.clients.consumers) == {"on"} and handled == [b"one"]


# SPR-02: listeners


@pytest.mark.spec("SPR-02")
async def test_annotation_of_a_listener_converts_the_body() -> None:
    values: dict[str, Any] = {}
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send("Values", b'{"id":7,"region":"EU"}')

        @client.listener("Values", group="raw", start="first")
        async def raw(message: Message[bytes]) -> None:
            values["raw"] = message.body

        @client.listener("Values", group="text", start="first")
        def text(message: Message[str]) -> None:
            values["text"] = message.value

        @client.listener("Values", group="data", start="first")
        async def data(message: Message[Order]) -> None:
            values["data"] = message.value

        @client.listener("Values", group="model", start="first")
        def model(message: Message[Price]) -> None:
            values["model"] = message.value

        async with running(client):
            await until(lambda: len(values) == 4)
    body = b'{"id":7,"region":"EU"}'
    assert values == {"raw": body, "text": body.decode(), "data": Order(7, "EU"), "model": Price(id=7)}


@pytest.mark.spec("SPR-02")
async def test_listener_that_raises_is_retried_after_a_delay_or_suspends_its_queue() -> None:
    handled: list[tuple[str, bytes, int]] = []
    settings = BrokerSettings(property_filter_enable=True)
    async with EmbeddedBroker(settings=settings) as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            for number in range(3):
                await out.send("Failing", b"%d" % number, shard_by="one", properties={"number": str(number)})
                await out.send("Ordered", b"%d" % number, shard_by="one")

        @client.listener(
            "Failing",
            group="concurrent",
            start="first",
            filter=sql("number < 2"),
            retry=Retry(max_times=1, after=timedelta(seconds=1)),
        )
        async def concurrent(message: Message[bytes]) -> None:
            handled.append(("concurrent", message.body, message.attempt))
            if message.body == b"0":
                raise ValueError("always")

        @client.listener("Ordered", group="ordered", start="first", ordered=True, suspend=0.05)
        async def ordered(message: Message[bytes]) -> None:
            handled.append(("ordered", message.body, message.attempt))
            if (message.body, message.attempt) == (b"1", 1):
                raise ValueError("once")

        async with running(client):
            await until(lambda: len(handled) >= 7)
        dead = await client.puller().queues("%DLQ%concurrent")
        assert sum([await client.puller().max_offset(queue) for queue in dead]) == 1
    assert sorted(row[1:] for row in handled if row[0] == "concurrent") == [(b"0", 1), (b"0", 2), (b"1", 1)]
    assert [row[1:] for row in handled if row[0] == "ordered"] == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]


@pytest.mark.spec("SPR-02")
def test_listener_defaults_equal_those_of_the_annotation() -> None:
    client = Client(name_servers="a:9876", namespace="shop", tls=True, access_key="ak", secret_key="sk")
    client.listener("orders", group="g", trace="SpringTrace")(lambda message: None)
    (spec,) = client._listeners
    consumer = client.consumer(spec.group, **spec.consumer_options)
    assert (spec.concurrency, spec.time_limit, spec.retry.after) == (20, 15 * 60, None)
    assert (consumer.settings.times_max, consumer.settings.suspend, consumer.settings.model) == (16, 1.0, "cluster")
    assert (spec.filter.expression, consumer.settings.ordered, consumer.settings.trace) == (ALL, False, "SpringTrace")
    assert client.settings.timeout == 3.0, "also of a reply"


# SPR-06, SPR-07: receive, several templates


@pytest.mark.spec("SPR-06")
async def test_recv_converts_and_ends_at_its_timeout() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", codec=json_codec(Order)) as out:
            await out.send_many("Pulled", [Order(1, "EU"), Order(2, "US")], shard_by="one")
        async with client.consumer("pullers", codec=json_codec(Order), start="first") as inbox:
            await inbox.subscribe("Pulled")
            first = await inbox.recv(10)
            await first.ack()
            async for message in inbox:
                await message.ack()
                break
            assert (first.value, message.value) == (Order(1, "EU"), Order(2, "US"))
            with pytest.raises(TimeoutError):
                await inbox.recv(timeout=0.5)


@pytest.mark.spec("SPR-07")
async def test_clients_of_two_clusters_work_side_by_side() -> None:
    async with EmbeddedBroker() as first, EmbeddedBroker() as second:
        clients = {
            "orders": Client.from_url(first.url),
            "audit": Client.from_url(second.url, namespace="audit", access_key="ak", secret_key="sk"),
        }
        for name, client in clients.items():
            async with client, client.producer(f"{name}-p", codec=str_codec()) as out:
                await out.send("Same", name)
                async with client.consumer(f"{name}-c", codec=str_codec(), start="first") as inbox:
                    await inbox.subscribe("Same")
                    message = await inbox.recv(10)
                    assert message.value == name and message.topic == "Same"
                    await message.ack()
        assert "audit%Same" in second.broker.topics.names() and "Same" not in second.broker.topics.names()


# SPR-09, SPR-10: life cycle


@pytest.mark.spec("SPR-09")
@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_start_hook_gets_the_consumer_before_its_first_message(kind: str) -> None:
    events: list[object] = []
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send_many("Hooked", [b"0", b"1", b"2"], shard_by="one")

        async def from_the_end(consumer: Consumer[Any]) -> None:
            events.append(("hook", consumer.group))
            await consumer.seek("last")
            async with client.producer("p") as out:
                await out.send("Hooked", b"3", shard_by="one")

        def noted(consumer: Consumer[Any]) -> None:
            events.append(("hook", consumer.group))

        on_start = from_the_end if kind == "coroutine" else noted

        @client.listener("Hooked", group="hooked", start="first", on_start=on_start)
        async def handle(message: Message[bytes]) -> None:
            events.append(message.body)

        async with running(client):
            await until(lambda: b"3" in events or b"2" in events)
    bodies = [b"3"] if kind == "coroutine" else [b"0", b"1", b"2"]
    assert events == [("hook", "hooked"), *bodies]


@pytest.mark.spec("SPR-09")
def test_start_hook_of_a_sync_listener_gets_a_blocking_consumer() -> None:
    events: list[object] = []
    done = threading.Event()
    with SyncEmbeddedBroker() as server, sync.Client.from_url(server.url) as client:
        with client.producer("p") as out:
            out.send("Hooked", b"one")

        def hook(consumer: sync.Consumer[bytes]) -> None:
            events.append(sum(consumer.lag().values()))

        @client.listener("Hooked", group="hooked", start="first", on_start=hook)
        def handle(message: sync.Message[bytes]) -> None:
            events.append(message.body)
            done.set()

        async def coroutine(consumer: sync.Consumer[bytes]) -> None: ...

        with pytest.raises(ConfigError, match="coroutine is a coroutine function"):
            client.listener("Hooked", group="other", on_start=coroutine)  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as pool:
            service = pool.submit(client.run)
            assert done.wait(30)
            client.stop()
            service.result(30)
    assert events == [1, b"one"]


@pytest.mark.spec("SPR-09", "SPR-10")
async def test_failed_start_ends_all_listeners_with_its_error() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("Started", queues=1)

        def refuse(consumer: Consumer[Any]) -> None:
            assert set(server.broker.clients.consumers) == {"first", "second"}
            raise LookupError("no table")

        client.listener("Started", group="first")(lambda message: Ack.SUCCESS)
        client.listener("Started", group="second", on_start=refuse)(lambda message: Ack.SUCCESS)
        with pytest.raises(LookupError, match="no table"):
            await client.run()
        assert not client._core.consumers, "both left their groups"
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        client.listener("Missing", group="third", route_timeout=0.01)(lambda message: None)
        with pytest.raises(RouteNotFound, match="Missing"):
            await client.run()
