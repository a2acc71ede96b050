"""The public Client: one connection manager, and the producers, consumers, pullers and listeners created from it.

A Client is a thin facade: connections, routes, heartbeats and all background tasks belong to its Core, and one Core has one
identity towards brokers (the client id). Producers, consumers and pullers are views of it: they share connections and routes,
and end with it.

What the servers know about a client, and for how long, explains most of the code below this module. NameServers know nothing of
clients; routes are polled, and queried again as soon as a broker contradicts them. Brokers learn groups and subscriptions from
heartbeats, and forget them with the connection; a consumer group exists at a broker only while one of its members does, so
rebalancing is each member computing the same assignment from the same lists. Positions are the one thing that outlives all of
it: they are committed after a message was settled, never before, which is what makes delivery at least once.

Every call has a deadline. Causes that pass (a restart, an election) are retried until then; what cannot succeed raises at once.
Nothing here is thread-safe: a Client belongs to the event loop that started it. `saturnmq.sync` runs one on a loop of its own.

Requirements: API-01..API-06.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from saturnmq.client import namespaces
from saturnmq.client.checks import check_topic
from saturnmq.client.codecs import BytesCodec, Codec
from saturnmq.client.connection.core import ClientState, Core, check_state
from saturnmq.client.connection.url import ClientOptions, ClientSettings, FromSettings, make_settings
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.consumer.listener import (
    DEFAULT_RETRY,
    TIME_LIMIT_S,
    Feeder,
    Handler,
    ListenerSpec,
    OnStart,
    Retry,
    concurrency_problem,
    make_spec,
    run_feeders,
)
from saturnmq.client.consumer.settings import ConsumerOptions, consumer_settings
from saturnmq.client.filters import ALL, Filter, tag
from saturnmq.client.hooks import SendHook, with_installed
from saturnmq.client.message import Message
from saturnmq.client.producer import topic_creation
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.settings import ProducerOptions, ProducerSettings, producer_settings
from saturnmq.client.puller import message_queries
from saturnmq.client.puller.puller import PULLER_GROUP, Puller
from saturnmq.client.trace.records import TraceRecord, decode_records, index_keys
from saturnmq.client.trace.trace import ClientTracing
from saturnmq.client.tracing import trace_topic
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP
from saturnmq.protocol.errors import ConfigError, SaturnError

logger = logging.getLogger(__name__)

T = TypeVar("T")
H = TypeVar("H", bound=Handler)


class Client(FromSettings):
    """A client of one cluster. Its producers, consumers and pullers share its connections, routes and timers.

    Use it with `async with`, or call `start()` and `stop()`; a stopped client cannot be started again. The constructor does no
    I/O and needs no running event loop. A started client belongs to its event loop and its process: other threads use
    `saturnmq.sync`, forked children create clients of their own.

    settings: name_servers, which is "host:port", several separated by `;` or `,`, or a sequence of them, and the other fields of
    ClientSettings, such as timeout=5.0, namespace="shop" or tls=True. Raises ConfigError naming every bad value.

    Example:
        async with Client(name_servers="127.0.0.1:9876", timeout=3.0) as client:
            async with client.producer("orders-p") as out:
                await out.send("orders", b"hello")
    """

    def __init__(self, **settings: Unpack[ClientOptions]) -> None:
        self._settings = make_settings(settings)
        self._core = Core(self._settings)
        self._core.tracing = ClientTracing(self._core)
        self._listeners: list[ListenerSpec] = []
        self._feeders: list[Feeder] = []
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Client {','.join(self._settings.name_servers)} {self._core.state.value}>"

    @property
    def settings(self) -> ClientSettings:
        """The validated settings, read-only."""
        return self._settings

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client, `<ip>@<instance>`; empty before `start`."""
        return self._core.client_id

    @property
    def has_listeners(self) -> bool:
        """Whether handlers are registered, which `run` calls."""
        return bool(self._listeners)

    # lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the background timers. Idempotent. Raises Closed after `stop`.

        Does not wait for a server, except for the HTTP server of the `address_server` setting if NameServers come from there.
        """
        if self._core.state is ClientState.STOPPED:
            check_state("client", self._core.state)
        async with self._lock:
            if self._core.state is ClientState.NEW:
                await self._core.start()

    async def stop(self) -> None:
        """Stop consumers, unregister producers, cancel all tasks and close all connections. Idempotent."""
        await self._core.stop()

    async def last_words(self) -> None:
        """Flush the message trace when the process exits without `stop()`. Called by `saturnmq.sync` at exit."""
        if self._core.tracing is not None:
            await self._core.tracing.close()

    # producers, consumers and pullers

    @overload
    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> Producer[bytes]: ...
    @overload
    def producer(self, group: str, *, codec: Codec[T], **options: Unpack[ProducerOptions]) -> Producer[T]: ...
    def producer(
        self, group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ProducerOptions]
    ) -> Producer[Any]:
        """A producer of this group. It does no I/O until it is started.

        codec: converts values to message bodies; without one, values are bytes. options: the fields of ProducerSettings, such as
        linger_ms=5 or check=decide. Raises ConfigError naming every bad value.

        Example:
            async with client.producer("orders-p", codec=json_codec(Order)) as out:
                await out.send("orders", Order(1, 9.5), tag="paid", keys=["order-1"])
        """
        return Producer(self._core, group, codec or BytesCodec(), producer_settings(group, options))

    def puller(self, group: str = PULLER_GROUP) -> Puller:
        """A puller, which reads queues by offset and needs no start of its own.

        group: the consumer group as which it pulls; the default exists on every broker.

        Example:
            puller = client.puller()
            for queue in await puller.queues("orders"):
                print(queue, await puller.max_offset(queue))
        """
        return Puller(self._core, group)

    @overload
    def consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> Consumer[bytes]: ...
    @overload
    def consumer(self, group: str, *, codec: Codec[T], **options: Unpack[ConsumerOptions]) -> Consumer[T]: ...
    def consumer(
        self, group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer[Any]:
        """A member of this consumer group. It does no I/O until it is started.

        codec: converts message bodies to values; without one, values are bytes. options: the fields of ConsumerSettings, such as
        start="first", ordered=True or model="broadcast". Raises ConfigError naming every bad value.

        Example:
            async with client.consumer("billing", start="first") as inbox:
                await inbox.subscribe("orders", tag("paid || refunded"))
                async for message in inbox:
                    await message.ack()
        """
        settings = consumer_settings(group, options, self._settings.instance)
        return Consumer(self._core, group, codec or BytesCodec(), settings)

    def listener(
        self,
        topic: str,
        *,
        group: str,
        filter: Filter | str = ALL,  # noqa: A002 - the name of spec 08
        concurrency: int = 20,
        batch: int | None = None,
        retry: Retry = DEFAULT_RETRY,
        time_limit: float = TIME_LIMIT_S,
        codec: Codec[Any] | None = None,
        enabled: bool = True,
        on_start: OnStart | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[H], H]:
        """Decorator that registers a message handler, which `run` calls. A plain function runs in threads of the listener.

        Returning None or Ack.SUCCESS acknowledges the message. Ack.RETRY, an exception or exceeding time_limit (seconds) sends
        it back for redelivery as `retry` says. Ack.REJECT moves it to the dead-letter queue. Any other value is the reply if the
        message is a request (`Producer.request`), else it is logged and the message is redelivered. A handler may settle the
        message itself (`await message.retry(...)`); its result then has no effect, so a handler that begins with
        `await message.ack()` is never repeated.

        With `batch` the handler takes a Batch, a list of the messages that have arrived, at most that many. It may set
        `batch.ack_index`: then None and Ack.SUCCESS acknowledge the messages up to that index, and the rest is redelivered. Other
        results count for all messages; a batch gets no reply.

        filter: tags such as "paid || refunded", or `sql(...)`. concurrency: handlers at a time. codec: by default chosen from
        the annotation Message[T] or Batch[T]: bytes, str, or JSON for any other T. options: those of `consumer`, such as
        ordered=True; they override what the listener derives. Raises ConfigError or MessageRefused for bad values.

        enabled: False registers the listener without running it, so that a setting can switch it off. on_start: a function or
        coroutine function that `run` calls with the consumer when it has joined its group, before the first message is handled;
        it may seek, pause queues or keep the consumer, whose `lag` and `pause` others then call. An error of it ends `run`.

        Example:
            @client.listener("orders", group="search", concurrency=32, retry=Retry(max_times=16))
            async def index(message: Message[Order]) -> Ack:
                await search.put(message.value)
                return Ack.SUCCESS
        """
        check_topic(topic, sending=False)
        topic_filter = tag(filter) if isinstance(filter, str) else filter
        consumer_settings(group, options, self._settings.instance)

        def decorate(handler: H) -> H:
            spec = make_spec(
                handler,
                topic,
                group,
                topic_filter,
                concurrency,
                batch,
                retry,
                time_limit,
                codec,
                enabled,
                on_start,
                options,
            )
            self._listeners.append(spec)
            return handler

        return decorate

    async def run(self, *, drain_timeout: float = 20.0, handle_signals: bool = False) -> None:
        """Run all listeners until the task is cancelled; then drain, persist offsets and leave the groups.

        drain_timeout: seconds for running handlers to finish; a second cancellation or signal cancels them at once. Unfinished
        messages are redelivered. handle_signals: shut down on SIGTERM and SIGINT too; leave it off inside a server such as
        uvicorn, which handles them itself. Listeners with enabled=False are left out. Raises ConfigError if there is no listener,
        and the error of a listener that failed.

        Example:
            async def main() -> None:
                async with client:
                    await client.run(handle_signals=True)

            asyncio.run(main())
        """
        self._core.check_running()
        if not self.has_listeners:
            raise ConfigError("nothing to run: decorate a handler with @client.listener(topic, group=...)")
        feeders = [
            Feeder(
                spec,
                Producer(
                    self._core,
                    INNER_PRODUCER_GROUP,
                    BytesCodec(),
                    ProducerSettings(max_in_flight=spec.concurrency, hooks=with_installed((), SendHook), trace=False),
                ),
                self.consumer(spec.group, codec=spec.codec, **spec.consumer_options),
            )
            for spec in self._listeners
            if spec.enabled
        ]
        self._feeders += feeders
        try:
            await run_feeders(feeders, drain_timeout, handle_signals=handle_signals)
        finally:
            self._feeders = [feeder for feeder in self._feeders if feeder not in feeders]

    def set_concurrency(self, group: str, concurrency: int) -> None:
        """Change how many handlers the listener of this group runs at a time, 1 to 1000, also while it runs.

        When the number is lowered, running handlers finish first. Raises ConfigError, also if no listener has the group.

        Example:
            client.set_concurrency("search", 50)
        """
        problems = [problem] if (problem := concurrency_problem(concurrency)) else []
        groups = sorted({spec.group for spec in self._listeners})
        if group not in groups:
            group_names = ", ".join(groups) or "none"
            problems.append(f"group {group!r:.60} has no listener, this client has: {group_names}")
        if problems:
            raise ConfigError(problems)
        self._listeners = [
            replace(spec, concurrency=concurrency) if spec.group == group else spec for spec in self._listeners
        ]
        for feeder in self._feeders:
            if feeder.spec.group == group:
                feeder.resize(concurrency)

    async def create_topic(
        self, topic: str, *, queues: int = 4, key: str = AUTO_CREATE_TOPIC, sys_flag: int = 0
    ) -> list[str]:
        """Create a topic on every master that serves the topic `key`; returns the names of the brokers that created it.

        queues: read and write queues per broker. sys_flag: the topic's topicSysFlag. Raises RouteNotFound if no broker serves
        `key`, and the last error if no broker created the topic.

        Example:
            await client.create_topic("orders", queues=8)
        """
        self._core.check_running()
        return await topic_creation.create_topic(self._core, topic, queues=queues, key=key, sys_flag=sys_flag)

    async def view_message(self, message_id: str, topic: str | None = None) -> Message[bytes]:
        """The message with this offset message id or, if topic is given, with this unique message id.

        Of a message that was stored more than once, it is the copy stored first. Raises a ResponseError with code 208 if there is
        none, and MessageError for text that is no message id.

        Example:
            message = await client.view_message(receipt.message_id, "orders")
        """
        self._core.check_running()
        return await message_queries.view_message(self._core, message_id, topic)

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin: int | datetime = 0,
        end: int | datetime | None = None,
        unique: bool = False,
        timeout: float | None = None,
    ) -> list[Message[bytes]]:
        """Messages with this key, oldest first. begin, end: bounds of the store time, Unix ms or aware datetimes.

        unique: the key is a unique message id; a message that was sent again is found more than once. timeout: how long each
        broker has, seconds, by default `api_timeout_ms`; those that do not answer are left out, unless none does.

        Example:
            found = await client.query_messages("orders", "order-1", begin=datetime(2026, 11, 1, tzinfo=UTC))
        """
        self._core.check_running()
        return await message_queries.query_messages(
            self._core,
            topic,
            key,
            max_count,
            message_queries.span_of(begin, end),
            unique=unique,
            timeout_ms=None if timeout is None else round(timeout * 1000),
        )

    async def query_trace(self, key: str, *, topic: str | None = None, max_count: int = 64) -> list[TraceRecord]:
        """Trace records of the message with this id or key, oldest first: who sent it, who consumed it, with what outcome.

        topic: the trace topic; default: the client's `trace` setting, or else RMQ_SYS_TRACE_TOPIC. max_count: trace messages to
        read, each of which holds several records. Raises RouteNotFound if the trace topic does not exist.

        Example:
            for record in await client.query_trace(receipt.message_id):
                print(record)
        """
        self._core.check_running()
        where = topic or trace_topic(True, self._settings.trace) or ""
        span = message_queries.Span()
        matched: list[TraceRecord] = []
        for message in await message_queries.query_messages(
            self._core, where, key, max_count, span, outside_namespace=True
        ):
            try:
                records = list(decode_records(message.body.decode()))
            except (UnicodeDecodeError, SaturnError) as error:
                logger.warning("trace not readable message=%r error=%s", message, error)
                continue
            matched += (record for record in records if key in index_keys(record))
        return sorted(matched, key=lambda record: record.timestamp_ms)

    async def topic_exists(self, topic: str) -> bool:
        """Ask a NameServer now whether the topic has a route.

        Example:
            if not await client.topic_exists("orders"):
                await client.create_topic("orders")
        """
        self._core.check_running()
        check_topic(topic, sending=False)
        return await self._core.routes.refresh(namespaces.wrap(self._settings.namespace, topic)) is not None
