"""Spans and metrics of OpenTelemetry: golden texts for both sets of names, and what belongs to whose trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spantext import rendered

from saturnmq import Ack, Batch, Client, ConsumeContext, Message, ResponseError, SaturnError, SendContext, bytes_codec
from saturnmq.opentelemetry import SaturnMQInstrumentor, Telemetry, _Properties
from saturnmq.opentelemetry.names import MESSAGE_GROUP, MESSAGE_TYPE, message_attributes
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.message import Message as Record
from saturnmq.sync import Client as SyncClient
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker
from waiting import until

HERE = Path(__file__).resolve().parent
JAVA_SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded(NamedTuple):
    """Providers with exporters in memory."""

    tracers: TracerProvider
    meters: MeterProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Finished spans in the order of their ends; name: only those of this name."""
        return [span for span in self.exporter.get_finished_spans() if not name or span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def telemetry(self) -> Telemetry:
        return Telemetry(self.tracers, self.meters)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    yield Recorded(tracers, meters, exporter, reader)
    meters.shutdown()


async def every_operation(recorded: Recorded, namespace: str | None) -> None:
    """Spans of every kind: sends of all message types and of a batch, receipts, a handler, its error, settlements."""
    telemetry = recorded.telemetry()
    async with EmbeddedBroker() as server, Client.from_url(server.url, namespace=namespace) as client:
        for topic in ("orders", "later", "held", "work"):
            await client.create_topic(topic, queues=1)
        async with client.producer("orders-p", hooks=[telemetry.sends], check=lambda _: None) as out:
            await out.send("orders", b"one", tag="paid", keys=["k1", "k2"])
            await out.send_many("orders", [b"two", b"three"])
            await out.send("orders", b"four", shard_by="customer-7")
            await out.send("later", b"five", delay_level=3)
            async with out.transaction("held", b"six") as half:
                half.rollback()
            await out.send("work", b"bad")
        async with client.consumer("billing", start="first", hooks=[telemetry.deliveries]) as inbox:
            await inbox.subscribe("orders")
            first = await inbox.recv(30)
            with inbox.processing(first):
                pass
            await first.ack()
            async for batch in inbox.batches(3):
                assert len(batch) == 3
                with inbox.processing(*batch):
                    pass
                await batch[0].reject("unreadable")
                await batch[1].retry()
                await batch[2].ack()
                break

        @client.listener("work", group="workers", start="first", hooks=[telemetry.deliveries])
        async def work(message: Message[bytes]) -> None:
            raise ValueError("no such customer")

        running = asyncio.create_task(client.run())
        await until(lambda: recorded.spans("nack work"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("INT-09", "INT-10")
@pytest.mark.parametrize(("opt_in", "golden"), [("", "old"), ("http, messaging", "new")])
async def test_spans_equal_golden_text(
    opt_in: str, golden: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    await every_operation(recorded, "shop" if golden == "new" else None)
    assert rendered(recorded.spans()) == (HERE / f"otel_spans_{golden}.txt").read_text()


@pytest.mark.spec("INT-10")
async def test_both_sets_of_names_are_emitted_and_both_wins(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "messaging,messaging/dup")
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, asyncio.timeout(30):
        out = client.producer("p", hooks=[recorded.telemetry().sends])
        await out.start()
        await out.send("orders", b"x", tag="paid")
    attributes = recorded.only("send orders").attributes
    assert attributes["messaging.system"] == attributes["messaging.system.name"] == "rocketmq"
    for prefix in ("messaging.rocketmq.", "rocketmq."):
        assert (attributes[prefix + "namespace"], attributes[prefix + "message.tag"]) == ("", "paid")


@pytest.mark.spec("INT-10")
def test_delivery_time_is_stated_for_every_kind_of_delay() -> None:
    timestamp = "message.delivery_timestamp"
    assert message_attributes({"TIMER_DELIVER_MS": "1700"}, 1000)[timestamp] == 1700
    assert message_attributes({"__STARTDELIVERTIME": "1800"}, 1000)[timestamp] == 1800
    assert message_attributes({"TIMER_DELAY_MS": "5"}, 1000)[timestamp] == 1005
    assert message_attributes({"TIMER_DELAY_SEC": "5"}, 1000)[timestamp] == 6000
    assert message_attributes({"TIMER_DELAY_SEC": "soon"}, 1000)[MESSAGE_TYPE] == "normal"
    assert message_attributes({"TIMER_DELAY_SEC": "5"}, 1000)[MESSAGE_TYPE] == "delay"
    assert message_attributes({"__SHARDINGKEY": "k"}, 1000)[MESSAGE_GROUP] == "k"


@pytest.mark.spec("INT-09")
async def test_message_carries_context_by_names_that_java_uses(recorded: Recorded) -> None:
    deliveries = recorded.telemetry().deliveries
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", hooks=[recorded.telemetry().sends]) as out, client.producer("java") as java:
            await out.send("here", b"from Python")
            await java.send("there", b"from Java", properties={"traceparent": JAVA_SPAN, "tracestate": "vendor=1"})
        async with client.consumer("g", start="first", hooks=[deliveries]) as inbox:
            await inbox.subscribe("here")
            properties = (await inbox.recv(30)).properties
            await inbox.unsubscribe("here")
            await inbox.subscribe("there")
            with inbox.processing(await inbox.recv(30)):
                pass
    sent, span = recorded.only("send here"), recorded.only("process there")
    assert properties["traceparent"] == (
        f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-{sent.context.trace_flags:02x}"
    )
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == JAVA_SPAN[3:-3]
    assert span.context.trace_state["vendor"] == "1" and span.parent.is_remote


@pytest.mark.spec("INT-09")
async def test_current_span_stays_parent_and_links_to_the_sender(recorded: Recorded) -> None:
    telemetry, tracer = recorded.telemetry(), trace.get_tracer("app", tracer_provider=recorded.tracers)
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        with tracer.start_as_current_span("web request"):
            async with client.producer("p", hooks=[telemetry.sends]) as out:
                await out.send("orders", b"x")
        async with client.consumer("g", start="first", hooks=[telemetry.deliveries]) as inbox:
            await inbox.subscribe("orders")
            with tracer.start_as_current_span("job"):
                await (await inbox.recv(30)).ack()
    job, sent = recorded.only("job"), recorded.only("send orders")
    assert sent.parent == recorded.only("web request").context
    assert recorded.only("receive orders").parent == recorded.only("ack orders").parent == job.context
    (link,) = recorded.only("receive orders").links
    assert link.context.span_id == sent.context.span_id


async def test_baggage_reaches_the_handler_and_unfit_baggage_is_left_out(recorded: Recorded) -> None:
    telemetry, seen = recorded.telemetry(), asyncio.Queue[object]()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", hooks=[telemetry.sends]) as out:
            token = context.attach(baggage.set_baggage("tenant", "blue"))
            await out.send("orders", b"x")
            context.detach(token)

        @client.listener("orders", group="g", start="first", hooks=[telemetry.deliveries])
        async def handle(message: Message[bytes]) -> None:
            seen.put_nowait(baggage.get_baggage("tenant"))

        running = asyncio.create_task(client.run())
        assert await seen.get() == "blue"
        await until(lambda: recorded.spans("ack orders"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    properties = SendContext("g", "T", MessageQueue("T", "b", 0), "h:1", ("id",))
    _Properties().set(properties, "KEYS", "reserved")
    assert properties.properties == ""


@pytest.mark.spec("INT-09")
async def test_batch_handler_is_one_span_that_links(recorded: Recorded) -> None:
    telemetry = recorded.telemetry()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("orders", queues=1)
        async with client.producer("p", hooks=[telemetry.sends]) as out:
            receipts = [await out.send("orders", b"%d" % number) for number in range(3)]

        @client.listener("orders", group="g", start="first", batch=3, hooks=[telemetry.deliveries])
        async def handle(batch: Batch[bytes]) -> Ack:
            return Ack.SUCCESS

        running = asyncio.create_task(client.run())
        await until(lambda: len(recorded.spans("ack orders")) == len(receipts))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    processed = recorded.only("process orders")
    assert processed.parent is None
    assert [link.context.span_id for link in processed.links] == [
        span.context.span_id for span in recorded.spans("send orders")
    ]
    assert not recorded.spans("receive orders"), "a listener gets its messages as they come"
    assert {span.parent.span_id for span in recorded.spans("ack orders")} == {processed.context.span_id}


@pytest.mark.spec("INT-09")
async def test_listener_ignores_the_span_that_was_current_when_it_started(recorded: Recorded) -> None:
    telemetry, tracer = recorded.telemetry(), trace.get_tracer("app", tracer_provider=recorded.tracers)
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", hooks=[telemetry.sends]) as out:
            await out.send("orders", b"x")

        @client.listener("orders", group="g", start="first", hooks=[telemetry.deliveries])
        async def handle(message: Message[bytes]) -> None:
            with tracer.start_as_current_span("query"):
                pass

        with tracer.start_as_current_span("startup"):
            running = asyncio.create_task(client.run())
            await until(lambda: recorded.spans("ack orders"))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    processed = recorded.only("process orders")
    assert processed.parent.span_id == recorded.only("send orders").context.span_id and not processed.links
    assert recorded.only("query").parent == recorded.only("ack orders").parent == processed.context


async def test_expired_delivery_is_an_error_below_its_receipt(recorded: Recorded) -> None:
    telemetry = recorded.telemetry()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send("orders", b"x")
        async with client.consumer("g", start="first", ack_timeout=1.0, hooks=[telemetry.deliveries]) as inbox:
            await inbox.subscribe("orders")
            await inbox.recv(30)
            await until(lambda: recorded.spans("nack orders"), 120)
    expired = recorded.only("nack orders")
    assert expired.attributes["error.type"] == "TimeoutError"
    assert expired.parent == recorded.only("receive orders").context


async def test_failed_send_and_failed_settlement_are_errors(recorded: Recorded) -> None:
    telemetry = recorded.telemetry()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", hooks=[telemetry.sends]) as out:
            server.tap.answer_next({RequestCode.SEND_MESSAGE_V2}, ResponseCode.MESSAGE_ILLEGAL, "refused", 1)
            with pytest.raises(ResponseError):
                await out.send("orders", b"y")
            await out.send_oneway("orders", b"x")
        async with client.consumer("g", start="first", hooks=[telemetry.deliveries]) as inbox:
            await inbox.subscribe("orders")
            message = await inbox.recv(30)
            refused = {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2}
            server.tap.answer_next(refused, ResponseCode.MESSAGE_ILLEGAL, "refused", 2)
            with pytest.raises(SaturnError):
                await message.retry()
            await message.ack()
    failed, stored = recorded.spans("send orders")
    assert stored.status.is_unset and failed.attributes["error.type"] == "MessageIllegal"
    assert recorded.only("nack orders").status.status_code is trace.StatusCode.ERROR
    assert recorded.only("ack orders").status.is_unset


@pytest.mark.spec("INT-09")
def test_blocking_client_has_the_spans_of_the_asyncio_one(recorded: Recorded) -> None:
    telemetry, tracer = recorded.telemetry(), trace.get_tracer("app", tracer_provider=recorded.tracers)
    with SyncEmbeddedBroker() as server, SyncClient.from_url(server.url) as client:
        with client.producer("p", hooks=[telemetry.sends]) as out, tracer.start_as_current_span("web request"):
            out.send("orders", b"x")
        with client.consumer("g", start="first", hooks=[telemetry.deliveries]) as inbox:
            inbox.subscribe("orders")
            message = inbox.recv(30)
            with inbox.processing(message):
                message.ack()
    sent, processed = recorded.only("send orders"), recorded.only("process orders")
    assert sent.parent == recorded.only("web request").context
    assert recorded.only("receive orders").parent.span_id == processed.parent.span_id == sent.context.span_id
    assert recorded.only("ack orders").parent == processed.context


@pytest.mark.spec("INT-10")
async def test_metrics_have_names_of_the_conventions(recorded: Recorded) -> None:
    await every_operation(recorded, None)
    (resource,) = recorded.reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    counts: dict[str, Any] = {}
    for metric in scope.metrics:
        for point in metric.data.data_points:
            key = (metric.name, metric.unit, point.attributes["messaging.operation.name"])
            counts[key] = counts.get(key, 0) + (point.count if hasattr(point, "count") else point.value)
            assert point.attributes["messaging.system"] == "rocketmq"
            assert "messaging.message.id" not in point.attributes
    assert counts == {
        ("messaging.client.sent.messages", "{message}", "send"): 7,
        ("messaging.client.consumed.messages", "{message}", "receive"): 4,
        ("messaging.client.consumed.messages", "{message}", "process"): 1,
        ("messaging.client.operation.duration", "s", "send"): 6,
        ("messaging.client.operation.duration", "s", "receive"): 2,
        ("messaging.client.operation.duration", "s", "ack"): 2,
        ("messaging.client.operation.duration", "s", "nack"): 3,
        ("messaging.process.duration", "s", "process"): 3,
    }


@pytest.mark.spec("INT-09")
async def test_without_an_sdk_messages_are_sent_and_received_unchanged() -> None:
    code = "import saturnmq.opentelemetry, sys; sys.exit(any('opentelemetry.sdk' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    telemetry = Telemetry()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", hooks=[telemetry.sends]) as out:
            await out.send("orders", b"x")
        async with client.consumer("g", start="first", hooks=[telemetry.deliveries]) as inbox:
            await inbox.subscribe("orders")
            message = await inbox.recv(30)
            with inbox.processing(message):
                await message.ack()
    assert "traceparent" not in message.properties


def test_instrumentor_gives_hooks_to_new_clients_only_while_it_is_on(recorded: Recorded) -> None:
    client = Client(name_servers="127.0.0.1:1")
    assert client.producer("p")._hooks == client.consumer("g").hooks == ()
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="saturnmq")
    instrumentor = entry.load()()
    instrumentor.instrument(skip_dep_check=True, tracer_provider=recorded.tracers, meter_provider=recorded.meters)
    try:
        SaturnMQInstrumentor().instrument()
        assert instrumentor.is_instrumented_by_opentelemetry and not instrumentor.instrumentation_dependencies()
        assert len(client.producer("p")._hooks) == len(client.consumer("g").hooks) == 1
    finally:
        SaturnMQInstrumentor().uninstrument()
    assert client.producer("p")._hooks == client.consumer("g").hooks == ()
    SaturnMQInstrumentor().uninstrument()


def test_broadcast_consumer_states_its_model(recorded: Recorded) -> None:
    queue = MessageQueue("T", "b", 0)
    message = Message(Record(topic="T", body=b"x"), queue, bytes_codec())
    deliveries = recorded.telemetry().deliveries
    deliveries.received([ConsumeContext("g", message, broadcast=True)], time.monotonic())
    deliveries.received([], time.monotonic())
    other = Message(Record(topic="U", body=b"x"), MessageQueue("U", "b", 1), bytes_codec())
    deliveries.received([ConsumeContext("g", message), ConsumeContext("g", other)], time.monotonic())
    assert recorded.only("receive T").attributes["messaging.rocketmq.consumption_model"] == "broadcasting"
    assert "messaging.destination.name" not in recorded.only("receive").attributes
