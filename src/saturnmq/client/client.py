"""The client: one connection manager, and the producers, consumers and pullers made from it.

Source: spec 08 section 1, API-01..06.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from saturnmq.client import namespaces
from saturnmq.client.checks import check_topic, producer_group_problem
from saturnmq.client.codecs import BytesCodec, Codec
from saturnmq.client.connection.core import Core, State, check_state
from saturnmq.client.connection.url import ClientSettings, from_environment, make_settings, parse_url
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.consumer.listener import (
    DEFAULT_RETRY,
    TIME_LIMIT_S,
    Feeder,
    Handler,
    ListenerSpec,
    Retry,
    make_spec,
    run_feeders,
)
from saturnmq.client.consumer.settings import ConsumerOptions, consumer_settings
from saturnmq.client.consumer.subscription import ALL, Filter, tag
from saturnmq.client.hooks import SendHook
from saturnmq.client.message import Message
from saturnmq.client.producer.attempts import RETRY_CODES
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.transactions import Check
from saturnmq.client.puller import queries
from saturnmq.client.puller.puller import PULLER_GROUP, Puller
from saturnmq.client.trace.records import TraceRecord, trace_topic, trace_topic_problem
from saturnmq.client.trace.trace import Tracing
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP
from saturnmq.protocol.errors import ConfigError

T = TypeVar("T")
H = TypeVar("H", bound=Handler)


class Client:
    """Shared by everything that talks to one cluster. Constructors do no I/O and need no running loop (API-01).

    timeout: seconds for one call with all its retries. More settings: see ClientSettings.
    """

    def __init__(self, *, name_servers: str | Sequence[str] = (), timeout: float = 3.0, **settings: Any) -> None:
        self._settings = make_settings({"name_servers": name_servers, "timeout": timeout, **settings})
        self._core = Core(self._settings)
        self._core.tracing = Tracing(self._core)
        self._listeners: list[ListenerSpec] = []
        self._lock = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """A client for `rmq://[access:secret@]host:port[,host:port]?key=value`; arguments beat the URL (API-02)."""
        return cls(**{**parse_url(url), **settings})

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """A client for SATURNMQ_URL or NAMESRV_ADDR; arguments beat the URL, the URL the other variables (API-03)."""
        return cls(**{**from_environment(os.environ if environment is None else environment), **settings})

    def __repr__(self) -> str:
        return f"<Client {','.join(self._settings.name_servers)} {self._core.state.value}>"

    @property
    def settings(self) -> ClientSettings:
        return self._settings

    @property
    def client_id(self) -> str:
        """The id brokers know this client by; empty before start."""
        return self._core.client_id

    # life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start timers and connections. Idempotent; waits for no server. Raises Closed after stop (API-04)."""
        if self._core.state is State.STOPPED:
            check_state("client", self._core.state)
        async with self._lock:
            if self._core.state is State.NEW:
                await self._core.start()

    async def stop(self) -> None:
        """Stop everything made from this client and close all connections. Idempotent."""
        await self._core.stop()

    async def last_words(self) -> None:
        """For the end of a process that did not stop it: send what is left of the trace (TR-07)."""
        if self._core.tracing is not None:
            await self._core.tracing.close()

    # what is made from it

    @overload
    def producer(
        self,
        group: str,
        *,
        max_in_flight: int = ...,
        hooks: Sequence[SendHook] = ...,
        retry_codes: Iterable[int] = ...,
        check: Check | None = ...,
        trace: bool | str | None = ...,
    ) -> Producer[bytes]: ...
    @overload
    def producer(
        self,
        group: str,
        *,
        codec: Codec[T],
        max_in_flight: int = ...,
        hooks: Sequence[SendHook] = ...,
        retry_codes: Iterable[int] = ...,
        check: Check | None = ...,
        trace: bool | str | None = ...,
    ) -> Producer[T]: ...
    def producer(
        self,
        group: str,
        *,
        codec: Codec[Any] | None = None,
        max_in_flight: int = 1024,
        hooks: Sequence[SendHook] = (),
        retry_codes: Iterable[int] = RETRY_CODES,
        check: Check | None = None,
        trace: bool | str | None = None,
    ) -> Producer[Any]:
        """A producer of this group. max_in_flight: sends under way at a time; more of them wait. check: says what became of a
        transaction when the broker asks; async, or plain and then run in a thread. Transactions need it. trace: whether, or to
        which topic, sends are traced; None takes the client's setting (TR-02).

        Raises ConfigError naming every bad value.
        """
        problems = [problem] if (problem := producer_group_problem(group)) else []
        if isinstance(max_in_flight, bool) or not isinstance(max_in_flight, int) or not 1 <= max_in_flight <= 65_535:
            problems.append(f"max_in_flight is {max_in_flight!r}, must be 1..65535")
        if problem := trace_topic_problem(trace):
            problems.append(problem)
        if check is not None and not callable(check):
            problems.append(f"check is {type(check).__name__}, must be a function of the message")
        if problems:
            raise ConfigError(problems)
        return Producer(
            self._core,
            group,
            codec or BytesCodec(),
            max_in_flight=max_in_flight,
            hooks=hooks,
            retry_codes=retry_codes,
            check=check,
            trace=trace,
        )

    def puller(self, group: str = PULLER_GROUP) -> Puller:
        """A reader of queues by offset. group: the name it pulls under; the default exists on every broker."""
        return Puller(self._core, group)

    @overload
    def consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> Consumer[bytes]: ...
    @overload
    def consumer(self, group: str, *, codec: Codec[T], **options: Unpack[ConsumerOptions]) -> Consumer[T]: ...
    def consumer(
        self, group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer[Any]:
        """A member of this consumer group; ConsumerSettings tells the options.

        Raises ConfigError naming every bad value.
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
        retry: Retry = DEFAULT_RETRY,
        time_limit: float = TIME_LIMIT_S,
        codec: Codec[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[H], H]:
        """Decorator of a handler, async or plain (then it runs in a thread), fed while `run` runs (API-16).

        None or Ack.SUCCESS acks; Ack.RETRY, an exception or more than time_limit seconds send the message back; Ack.REJECT
        makes a dead letter. A handler may settle the message itself (`await message.retry(...)`); what it returns or raises then
        changes nothing, so one that begins with `await message.ack()` is never repeated. The codec follows the annotation
        Message[T]. options: those of `consumer`, such as ordered=True; they beat what the listener would choose. Raises
        ConfigError.
        """
        check_topic(topic, sending=False)
        wanted = tag(filter) if isinstance(filter, str) else filter
        consumer_settings(group, options, self._settings.instance)

        def decorate(handler: H) -> H:
            spec = make_spec(handler, topic, group, wanted, concurrency, retry, time_limit, codec, options)
            self._listeners.append(spec)
            return handler

        return decorate

    async def run(self, *, drain_timeout: float = 20.0, handle_signals: bool = False) -> None:
        """Feed all listeners until the task is cancelled, then drain, store offsets and leave the groups (API-27).

        handle_signals: also end on SIGTERM and SIGINT, for a program of its own: `asyncio.run(main())` with
        `await client.run(handle_signals=True)` in it. Leave it off inside a server such as uvicorn, which handles them itself.
        drain_timeout: seconds that handlers have to finish; a second signal or cancellation cancels them at once.
        """
        self._core.check_running()
        if not self._listeners:
            raise ConfigError("nothing to run: decorate a handler with @client.listener(topic, group=...)")
        feeders = [
            Feeder(
                spec,
                Producer(self._core, INNER_PRODUCER_GROUP, BytesCodec(), max_in_flight=spec.concurrency),
                self.consumer(spec.group, codec=spec.codec, **spec.consumer_options),
            )
            for spec in self._listeners
        ]
        await run_feeders(feeders, drain_timeout, handle_signals=handle_signals)

    async def create_topic(
        self, topic: str, *, queues: int = 4, key: str = AUTO_CREATE_TOPIC, sys_flag: int = 0
    ) -> list[str]:
        """Create a topic on every broker that has `key`; the names of those that did (PR-33)."""
        self._core.check_running()
        return await queries.create_topic(self._core, topic, queues=queues, key=key, sys_flag=sys_flag)

    async def view_message(self, message_id: str, topic: str | None = None) -> Message[bytes]:
        """The message with this offset id, or, with a topic, with this unique id. Raises NoMessage (PR-02)."""
        self._core.check_running()
        return await queries.view_message(self._core, message_id, topic)

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin: int | datetime = 0,
        end: int | datetime | None = None,
    ) -> list[Message[bytes]]:
        """Messages with this key, oldest first; times are Unix ms or aware datetimes (PR-02)."""
        self._core.check_running()
        return await queries.query_messages(self._core, topic, key, max_count, queries.span_of(begin, end))

    async def query_trace(self, key: str, *, topic: str | None = None, max_count: int = 64) -> list[TraceRecord]:
        """What was told of the message with this id or key, oldest first: who sent it, who consumed it, how it went.

        topic: where the trace goes, default as the client's `trace` says. max_count: trace messages that are looked at.
        Raises RouteNotFound where nothing was ever traced.
        """
        self._core.check_running()
        where = topic or trace_topic(True, self._settings.trace) or ""
        return await queries.query_trace(self._core, key, where, max_count)

    async def topic_exists(self, topic: str) -> bool:
        """Whether a NameServer knows the topic now."""
        self._core.check_running()
        check_topic(topic, sending=False)
        return await self._core.routes.refresh(namespaces.wrap(self._settings.namespace, topic)) is not None
