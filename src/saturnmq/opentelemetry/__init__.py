"""OpenTelemetry: spans and metrics of producers and consumers, and trace context in the properties of messages.

Needs the extra `opentelemetry`, which is the API package alone: without an SDK all calls do nothing.

    from saturnmq.opentelemetry import SaturnMQInstrumentor

    SaturnMQInstrumentor().instrument()  # before producers and consumers are created

The program `opentelemetry-instrument` does that by itself. The context is written by the configured propagator, by default as the
properties `traceparent`, `tracestate` and `baggage`, which OpenTelemetry's instrumentation of Apache's Java client uses too.

A span of one message continues the trace of its sender, unless a span is current already: then, and for a batch, it is linked to
the senders' spans. Everything runs in the hooks of `saturnmq.client.hooks`.

Requirements: INT-09, INT-10.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from saturnmq import __version__
from saturnmq.client.checks import check_properties
from saturnmq.client.hooks import (
    ConsumeContext,
    ConsumeHook,
    SendContext,
    SendHook,
    install_hooks,
    remove_hooks,
)
from saturnmq.client.message import Ack
from saturnmq.errors import MessageRefused
from saturnmq.extras import install_command
from saturnmq.opentelemetry import names
from saturnmq.opentelemetry.names import Names, Value, message_attributes
from saturnmq.protocol.message import decode_properties

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.propagators.textmap import Setter
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"saturnmq.opentelemetry needs package opentelemetry-api: {install_command('opentelemetry')}", name=error.name
    ) from error

__all__ = ["SaturnMQInstrumentor", "Telemetry"]

_SCOPE: Final = "saturnmq"
_SECONDS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
)  # buckets of the conventions
_ACKS: Final = (Ack.SUCCESS, Ack.COMMIT)
_METRIC_NAMES: Final = frozenset(
    {
        names.OPERATION_NAME,
        names.DESTINATION,
        names.GROUP,
        names.SERVER_ADDRESS,
        names.SERVER_PORT,
        names.ERROR_TYPE,
        *names.Names("messaging/dup").system(),
    }
)


class Telemetry:
    """Spans and metrics of the producers and consumers that are given its hooks. `SaturnMQInstrumentor` gives them to all.

    tracer_provider, meter_provider: by default the global ones. The names of attributes follow the environment variable
    OTEL_SEMCONV_STABILITY_OPT_IN: the old ones by default, `messaging` for the new ones, `messaging/dup` for both.

    Example:
        telemetry = Telemetry()
        out = client.producer("orders-p", hooks=[telemetry.sends])
        inbox = client.consumer("billing", hooks=[telemetry.deliveries])
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        recorder = _Recorder(tracer_provider, meter_provider)
        self.sends: SendHook = _Sends(recorder)
        self.deliveries: ConsumeHook = _Deliveries(recorder)


class SaturnMQInstrumentor:
    """Switches telemetry on and off for the whole process, with the methods of OpenTelemetry's BaseInstrumentor.

    Producers and consumers that exist already stay as they are.

    Example:
        SaturnMQInstrumentor().instrument(tracer_provider=provider)
    """

    _installed: Telemetry | None = None

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether telemetry is on."""
        return SaturnMQInstrumentor._installed is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Requirements of packages to instrument: none, the client is part of this package."""
        return ()

    def instrument(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None, **_: Any
    ) -> None:
        """Switch telemetry on; once. Further options of `opentelemetry-instrument` are ignored."""
        if SaturnMQInstrumentor._installed is None:
            telemetry = SaturnMQInstrumentor._installed = Telemetry(tracer_provider, meter_provider)
            install_hooks(telemetry.sends, telemetry.deliveries)

    def uninstrument(self, **_: Any) -> None:
        """Switch telemetry off for producers and consumers that are created from now on. Idempotent."""
        if (telemetry := SaturnMQInstrumentor._installed) is not None:
            SaturnMQInstrumentor._installed = None
            remove_hooks(telemetry.sends, telemetry.deliveries)


class _Recorder:
    """The instruments, and what the spans of both hooks have in common."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self.names = Names(os.environ.get(names.OPT_IN, ""))
        self.tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        meter = get_meter(_SCOPE, __version__, meter_provider)
        self.operation_seconds = meter.create_histogram(
            names.OPERATION_DURATION, "s", "Duration of a send, receive or settlement.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self.process_seconds = meter.create_histogram(
            names.PROCESS_DURATION, "s", "Duration of processing.", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self.sent = meter.create_counter(names.SENT_MESSAGES, "{message}", "Messages that a producer tried to send.")
        self.consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Messages delivered to the application."
        )

    def operation(
        self, name: str, kind: str, *, wire_group: str, client_id: str, specific: Mapping[str, Value | None]
    ) -> dict[str, Value]:
        """The attributes of an operation. wire_group: with the namespace, which is an empty string where there is none."""
        namespace, separator, _ = wire_group.partition("%")
        return {
            **self.names.system(),
            names.OPERATION_NAME: name,
            names.OPERATION_TYPE: kind,
            names.CLIENT_ID: client_id,
            **self.names.prefixed({names.NAMESPACE: namespace if separator else "", **specific}),
        }


def _metric_attributes(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """The attributes of few values."""
    return {name: value for name, value in attributes.items() if name in _METRIC_NAMES}


def _fail(span: Span, attributes: dict[str, Value], error: BaseException) -> None:
    """Record the failure of an operation."""
    attributes[names.ERROR_TYPE] = type(error).__qualname__
    span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, str(error))


class _Properties(Setter[SendContext]):
    """Writes the trace context to a message; what cannot be a property, such as some baggage, is left out."""

    def set(self, carrier: SendContext, key: str, value: str) -> None:
        try:
            check_properties({key: value})
        except MessageRefused:
            return
        carrier.set_property(key, value)


class _Sends(SendHook):
    """A span around every attempt of a send; its context travels with the message, or with all messages of the batch."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def before(self, context: SendContext) -> None:
        recorder, count = self._recorder, len(context.message_ids)
        host, _, port = context.address.rpartition(":")
        specific: Mapping[str, Value | None] = {}
        attributes: dict[str, Value] = {names.MESSAGE_COUNT: count}
        if count == 1:
            specific = message_attributes(
                decode_properties(context.properties), time.time_ns() // 10**6, context.shard_by
            )
            attributes = {names.MESSAGE_ID: context.message_ids[0], names.BODY_SIZE: context.body_bytes}
        attributes |= recorder.operation(
            "send", "send", wire_group=context.group, client_id=context.client_id, specific=specific
        ) | {
            names.DESTINATION: context.topic,
            names.PARTITION: str(context.queue.queue_id),
            names.SERVER_ADDRESS: host.strip("[]"),
            names.SERVER_PORT: int(port),
        }
        span = recorder.tracer.start_span(f"send {context.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        context.notes[self] = (span, attributes)
        propagate.inject(context, trace.set_span_in_context(span), _Properties())

    def after(self, context: SendContext) -> None:
        if (note := context.notes.get(self)) is None:
            return
        span, attributes = note
        if context.error is not None:
            _fail(span, attributes, context.error)
        span.end()
        labels = _metric_attributes(attributes)
        self._recorder.operation_seconds.record(time.monotonic() - context.started, labels)
        self._recorder.sent.add(len(context.message_ids), labels)


class _Delivery(NamedTuple):
    """A delivered message. span: of its receipt or processing. to_listener: no call of the application has received it."""

    span: Span
    to_listener: bool


class _Deliveries(ConsumeHook):
    """Spans of receiving, processing and settling messages.

    The tasks of a listener inherit the context in which they were started, whose current span has nothing to do with messages.
    """

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def received(self, contexts: Sequence[ConsumeContext], started: float) -> None:
        if not contexts:
            return
        now, seconds = time.time_ns(), time.monotonic() - started
        attributes = self._attributes("receive", "receive", contexts)
        surrounding = otel_context.get_current()
        span, _ = self._start(SpanKind.CLIENT, attributes, contexts, surrounding, now - int(seconds * 10**9))
        span.end(now)
        labels = _metric_attributes(attributes)
        self._recorder.operation_seconds.record(seconds, labels)
        self._recorder.consumed.add(len(contexts), labels)
        for context in contexts:
            context.notes[self] = _Delivery(span, to_listener=False)

    @contextmanager
    def processing(self, contexts: Sequence[ConsumeContext]) -> Iterator[None]:
        attributes, started = self._attributes("process", "process", contexts), time.monotonic()
        to_listener = self not in contexts[0].notes
        surrounding = Context() if to_listener else otel_context.get_current()
        span, parent = self._start(SpanKind.CONSUMER, attributes, contexts, surrounding)
        if to_listener:
            self._recorder.consumed.add(len(contexts), _metric_attributes(attributes))
        for context in contexts:
            context.notes[self] = _Delivery(span, to_listener)
        token = otel_context.attach(trace.set_span_in_context(span, parent))
        try:
            yield
        except BaseException as error:
            _fail(span, attributes, error)
            raise
        finally:
            otel_context.detach(token)
            span.end()
            self._recorder.process_seconds.record(time.monotonic() - started, _metric_attributes(attributes))

    def settle_failed(self, context: ConsumeContext, error: BaseException) -> None:
        self._settled(context, error)

    def after(self, context: ConsumeContext) -> None:
        self._settled(context, TimeoutError(context.reason) if context.timed_out else None)

    def _settled(self, context: ConsumeContext, error: BaseException | None) -> None:
        """Record a settlement that has ended: below the current span of the application, or else that of the delivery."""
        now = time.time_ns()
        seconds = time.monotonic() - context.settling_started if context.settling_started else 0.0
        name = "ack" if context.verdict in _ACKS else "nack"
        attributes = self._attributes(name, "settle", [context])
        parent, delivery = trace.get_current_span(), context.notes.get(self)
        if delivery is not None and (
            delivery.to_listener or context.timed_out or not parent.get_span_context().is_valid
        ):
            parent = delivery.span
        span = self._recorder.tracer.start_span(
            _span_name(attributes),
            trace.set_span_in_context(parent),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=now - int(seconds * 10**9),
        )
        if error is not None:
            _fail(span, attributes, error)
        span.end(now)
        self._recorder.operation_seconds.record(seconds, _metric_attributes(attributes))

    def _attributes(self, name: str, kind: str, contexts: Sequence[ConsumeContext]) -> dict[str, Value]:
        """The attributes of an operation on messages; what differs between them is left out."""
        first, message = contexts[0], contexts[0].message
        specific: dict[str, Value | None] = {
            names.CONSUMPTION_MODEL: "broadcasting" if first.broadcast else "clustering",
        }
        attributes: dict[str, Value] = {}
        if len(contexts) > 1:
            attributes[names.MESSAGE_COUNT] = len(contexts)
        else:
            specific |= message_attributes(message.record.properties, message.record.store_timestamp_ms)
            attributes[names.MESSAGE_ID] = message.message_id
            attributes[names.BODY_SIZE] = len(message.record.body)
        attributes |= self._recorder.operation(
            name, kind, wire_group=first.group, client_id=first.client_id, specific=specific
        )
        attributes[names.GROUP] = first.group.rpartition("%")[2]
        messages = [context.message for context in contexts]
        if len({item.topic for item in messages}) == 1:
            attributes[names.DESTINATION] = message.topic
        if len({item.queue for item in messages}) == 1:
            attributes[names.PARTITION] = str(message.queue.queue_id)
        if len({item.record.store_host for item in messages}) == 1:
            host, attributes[names.SERVER_PORT] = message.record.store_host
            attributes[names.SERVER_ADDRESS] = host
        return attributes

    def _start(
        self,
        kind: SpanKind,
        attributes: Mapping[str, Value],
        contexts: Sequence[ConsumeContext],
        surrounding: Context,
        start_time: int | None = None,
    ) -> tuple[Span, Context]:
        """Start the span of received messages, as a child of or linked to their senders' spans; also returns its parent."""
        parent, links = surrounding, None
        if len(contexts) == 1 and not trace.get_current_span(surrounding).get_span_context().is_valid:
            parent = propagate.extract(contexts[0].message.record.properties, surrounding)
        else:
            senders = (propagate.extract(context.message.record.properties, Context()) for context in contexts)
            spans = (trace.get_current_span(sender).get_span_context() for sender in senders)
            links = [Link(span) for span in spans if span.is_valid]
        span = self._recorder.tracer.start_span(
            _span_name(attributes), parent, kind=kind, attributes=attributes, links=links, start_time=start_time
        )
        return span, parent


def _span_name(attributes: Mapping[str, Value]) -> str:
    """`<operation> <topic>`; of messages of several topics the operation alone."""
    return f"{attributes[names.OPERATION_NAME]} {attributes.get(names.DESTINATION, '')}".rstrip()
