"""The clients without await, for threads and scripts: the same names, run on one background event loop.

All objects of one process share one daemon thread with one loop. Every call waits for its coroutine there; Ctrl-C
cancels
it and raises KeyboardInterrupt. Inside a running event loop every call raises WrongLoop, naming the async call
(API-31).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from saturnmq.client.attempts import RETRY_CODES, Selector
from saturnmq.client.client import Client as AsyncClient
from saturnmq.client.codecs import Codec
from saturnmq.client.consumer import Consumer as AsyncConsumer
from saturnmq.client.errors import Closed
from saturnmq.client.hooks import SendHook
from saturnmq.client.message import Message as AsyncMessage
from saturnmq.client.message import Outgoing, Receipt
from saturnmq.client.portal import portal as _portal
from saturnmq.client.producer import Producer as AsyncProducer
from saturnmq.client.puller import PULLER_GROUP
from saturnmq.client.rebalance import Strategy, average
from saturnmq.client.subscription import ALL, Filter
from saturnmq.client.sync_puller import Puller
from saturnmq.client.transactions import Check
from saturnmq.client.transactions import Transaction as AsyncTransaction
from saturnmq.client.url import ClientSettings, from_environment, parse_url
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC

__all__ = ["Client", "Consumer", "Message", "Producer", "Puller", "Transaction"]

T = TypeVar("T")


class Client:
    """saturnmq.Client without await."""

    def __init__(self, *, name_servers: str | Sequence[str] = (), timeout: float = 3.0, **settings: Any) -> None:
        self._inner = AsyncClient(name_servers=name_servers, timeout=timeout, **settings)

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """See saturnmq.Client.from_url."""
        return cls(**{**parse_url(url), **settings})

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """See saturnmq.Client.from_env."""
        return cls(**{**from_environment(os.environ if environment is None else environment), **settings})

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def settings(self) -> ClientSettings:
        return self._inner.settings

    @property
    def client_id(self) -> str:
        """The id brokers know this client by; empty before start."""
        return self._inner.client_id

    def start(self) -> None:
        """See saturnmq.Client.start."""
        _portal.run("Client.start", self._inner.start)

    def stop(self) -> None:
        """See saturnmq.Client.stop."""
        _portal.run("Client.stop", self._inner.stop)

    @overload
    def producer(
        self,
        group: str,
        *,
        max_in_flight: int = ...,
        hooks: Sequence[SendHook] = ...,
        retry_codes: Iterable[int] = ...,
        check: Check | None = ...,
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
    ) -> Producer[Any]:
        """See saturnmq.Client.producer."""
        options: dict[str, Any] = {"max_in_flight": max_in_flight, "hooks": hooks, "retry_codes": retry_codes,
                                   "check": check}  # fmt: skip
        if codec is not None:
            options["codec"] = codec
        return Producer(self._inner.producer(group, **options))

    def puller(self, group: str = PULLER_GROUP) -> Puller:
        """See saturnmq.Client.puller."""
        return Puller(self._inner.puller(group))

    @overload
    def consumer(
        self,
        group: str,
        *,
        prefetch: int = ...,
        prefetch_bytes: int = ...,
        start: str | datetime = ...,
        pull_batch: int = ...,
        max_times: int = ...,
        ack_timeout: float = ...,
        strategy: Strategy = ...,
    ) -> Consumer[bytes]: ...
    @overload
    def consumer(
        self,
        group: str,
        *,
        codec: Codec[T],
        prefetch: int = ...,
        prefetch_bytes: int = ...,
        start: str | datetime = ...,
        pull_batch: int = ...,
        max_times: int = ...,
        ack_timeout: float = ...,
        strategy: Strategy = ...,
    ) -> Consumer[T]: ...
    def consumer(
        self,
        group: str,
        *,
        codec: Codec[Any] | None = None,
        prefetch: int = 256,
        prefetch_bytes: int = 64 * 1024 * 1024,
        start: str | datetime = "last",
        pull_batch: int = 32,
        max_times: int = 16,
        ack_timeout: float = 900.0,
        strategy: Strategy = average,
    ) -> Consumer[Any]:
        """See saturnmq.Client.consumer."""
        options: dict[str, Any] = {
            "prefetch": prefetch,
            "prefetch_bytes": prefetch_bytes,
            "start": start,
            "pull_batch": pull_batch,
            "max_times": max_times,
            "ack_timeout": ack_timeout,
            "strategy": strategy,
        }
        if codec is not None:
            options["codec"] = codec
        return Consumer(self._inner.consumer(group, **options))

    def create_topic(
        self, topic: str, *, queues: int = 4, key: str = AUTO_CREATE_TOPIC, sys_flag: int = 0
    ) -> list[str]:
        """See saturnmq.Client.create_topic."""
        return _portal.run(
            "Client.create_topic", lambda: self._inner.create_topic(topic, queues=queues, key=key, sys_flag=sys_flag)
        )

    def view_message(self, message_id: str, topic: str | None = None) -> AsyncMessage[bytes]:
        """See saturnmq.Client.view_message."""
        return _portal.run("Client.view_message", lambda: self._inner.view_message(message_id, topic))

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin: int | datetime = 0,
        end: int | datetime | None = None,
    ) -> list[AsyncMessage[bytes]]:
        """See saturnmq.Client.query_messages."""
        return _portal.run(
            "Client.query_messages",
            lambda: self._inner.query_messages(topic, key, max_count=max_count, begin=begin, end=end),
        )

    def topic_exists(self, topic: str) -> bool:
        """See saturnmq.Client.topic_exists."""
        return _portal.run("Client.topic_exists", lambda: self._inner.topic_exists(topic))


class Producer(Generic[T]):
    """saturnmq.Producer without await."""

    def __init__(self, inner: AsyncProducer[T]) -> None:
        self._inner = inner

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def group(self) -> str:
        return self._inner.group

    def start(self) -> None:
        """See saturnmq.Producer.start."""
        _portal.run("Producer.start", self._inner.start)

    def stop(self) -> None:
        """See saturnmq.Producer.stop."""
        _portal.run("Producer.stop", self._inner.stop)

    def send(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        flag: int = 0,
        wait_stored: bool = True,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> Receipt:
        """See saturnmq.Producer.send."""
        return _portal.run(
            "Producer.send",
            lambda: self._inner.send(
                topic,
                value,
                tag=tag,
                keys=keys,
                properties=properties,
                shard_by=shard_by,
                queue=queue,
                selector=selector,
                selector_arg=selector_arg,
                flag=flag,
                wait_stored=wait_stored,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                timeout=timeout,
            ),
        )

    def send_oneway(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        flag: int = 0,
        wait_stored: bool = True,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> str:
        """See saturnmq.Producer.send_oneway."""
        return _portal.run(
            "Producer.send_oneway",
            lambda: self._inner.send_oneway(
                topic,
                value,
                tag=tag,
                keys=keys,
                properties=properties,
                shard_by=shard_by,
                queue=queue,
                selector=selector,
                selector_arg=selector_arg,
                flag=flag,
                wait_stored=wait_stored,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                timeout=timeout,
            ),
        )

    def send_many(
        self,
        topic: str,
        values: Iterable[T | Outgoing[T]],
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        wait_stored: bool = True,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """See saturnmq.Producer.send_many."""
        listed = list(values)
        return _portal.run(
            "Producer.send_many",
            lambda: self._inner.send_many(
                topic,
                listed,
                tag=tag,
                keys=keys,
                properties=properties,
                shard_by=shard_by,
                queue=queue,
                wait_stored=wait_stored,
                timeout=timeout,
            ),
        )

    def transaction(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        flag: int = 0,
        timeout: float | None = None,
    ) -> Transaction[T]:
        """See saturnmq.Producer.transaction."""

        async def make() -> AsyncTransaction[T]:
            return self._inner.transaction(
                topic,
                value,
                tag=tag,
                keys=keys,
                properties=properties,
                shard_by=shard_by,
                queue=queue,
                flag=flag,
                timeout=timeout,
            )

        return Transaction(_portal.run("Producer.transaction", make))

    def request(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        flag: int = 0,
        timeout: float | None = None,
    ) -> AsyncMessage[T]:
        """See saturnmq.Producer.request."""
        return _portal.run(
            "Producer.request",
            lambda: self._inner.request(
                topic,
                value,
                tag=tag,
                keys=keys,
                properties=properties,
                shard_by=shard_by,
                queue=queue,
                selector=selector,
                selector_arg=selector_arg,
                flag=flag,
                timeout=timeout,
            ),
        )

    def reply(self, message: Message[Any] | AsyncMessage[Any], value: T, *, timeout: float | None = None) -> Receipt:
        """See saturnmq.Producer.reply."""
        inner = message._inner if isinstance(message, Message) else message
        return _portal.run("Producer.reply", lambda: self._inner.reply(inner, value, timeout=timeout))

    def queues(self, topic: str) -> list[MessageQueue]:
        """See saturnmq.Producer.queues."""
        return _portal.run("Producer.queues", lambda: self._inner.queues(topic))


class Transaction(Generic[T]):
    """saturnmq.Transaction without await: `with out.transaction(topic, value) as half:`."""

    def __init__(self, inner: AsyncTransaction[T]) -> None:
        self._inner = inner

    def __enter__(self) -> Self:
        _portal.run("Transaction.__enter__", self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _portal.run("Transaction.__exit__", lambda: self._inner.__aexit__(kind, error, trace))

    @property
    def message_id(self) -> str:
        return self._inner.message_id

    @property
    def receipt(self) -> Receipt:
        return self._inner.receipt

    def rollback(self) -> None:
        """See saturnmq.Transaction.rollback."""
        self._inner.rollback()

    def leave_open(self) -> None:
        """See saturnmq.Transaction.leave_open."""
        self._inner.leave_open()


class Message(Generic[T]):
    """A received message, with ack, retry and reject that wait. Everything else is saturnmq.Message's."""

    __slots__ = ("_inner",)

    def __init__(self, inner: AsyncMessage[T]) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def value(self) -> T:
        """The body through the codec."""
        return self._inner.value

    def ack(self) -> None:
        """See saturnmq.Message.ack."""
        _portal.run("Message.ack", self._inner.ack)

    def retry(self, after: timedelta | None = None, *, reason: str = "") -> None:
        """See saturnmq.Message.retry."""
        _portal.run("Message.retry", lambda: self._inner.retry(after, reason=reason))

    def reject(self, reason: str = "") -> None:
        """See saturnmq.Message.reject."""
        _portal.run("Message.reject", lambda: self._inner.reject(reason))


class Consumer(Generic[T]):
    """saturnmq.Consumer without await: `for message in consumer`."""

    def __init__(self, inner: AsyncConsumer[T]) -> None:
        self._inner = inner

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Message[T]]:
        while True:
            try:
                message = self.recv()
            except Closed:
                return
            yield message

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def assigned(self) -> list[MessageQueue]:
        """See saturnmq.Consumer.assigned."""
        return self._inner.assigned

    def start(self) -> None:
        """See saturnmq.Consumer.start."""
        _portal.run("Consumer.start", self._inner.start)

    def stop(self) -> None:
        """See saturnmq.Consumer.stop."""
        _portal.run("Consumer.stop", self._inner.stop)

    def subscribe(self, topic: str, wanted: Filter | str = ALL) -> None:
        """See saturnmq.Consumer.subscribe."""
        _portal.run("Consumer.subscribe", lambda: self._inner.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """See saturnmq.Consumer.unsubscribe."""
        _portal.run("Consumer.unsubscribe", lambda: self._inner.unsubscribe(topic))

    def recv(self, timeout: float | None = None) -> Message[T]:
        """See saturnmq.Consumer.recv."""
        return Message(_portal.run("Consumer.recv", lambda: self._inner.recv(timeout)))

    def batches(self, max_count: int, wait: float = 1.0) -> Iterator[list[Message[T]]]:
        """See saturnmq.Consumer.batches."""
        source = self._inner.batches(max_count, wait)

        async def next_batch() -> list[AsyncMessage[T]] | None:
            return await anext(source, None)

        try:
            while (batch := _portal.run("Consumer.batches", next_batch)) is not None:
                yield [Message(message) for message in batch]
        finally:
            _portal.run("Consumer.batches", source.aclose)

    def wait_assigned(self, timeout: float = 10.0) -> list[MessageQueue]:
        """See saturnmq.Consumer.wait_assigned."""
        return _portal.run("Consumer.wait_assigned", lambda: self._inner.wait_assigned(timeout))

    def committed(self) -> dict[MessageQueue, int]:
        """See saturnmq.Consumer.committed."""

        async def read() -> dict[MessageQueue, int]:
            return self._inner.committed()

        return _portal.run("Consumer.committed", read)

    def commit(self) -> None:
        """See saturnmq.Consumer.commit."""
        _portal.run("Consumer.commit", self._inner.commit)
