"""The clients without `await`, for threads and scripts: the same names and signatures as in `saturnmq`.

Example:
    from saturnmq.sync import Client

    with Client.from_url("rmq://127.0.0.1:9876") as client, client.producer("orders-p") as out:
        receipt = out.send("orders", b"hello", tag="paid")
        print(receipt.message_id)

All objects of a process share one daemon thread with one event loop. Each call runs its coroutine there and blocks until it is
done; Ctrl-C cancels the coroutine and raises KeyboardInterrupt. Inside a running event loop every call raises WrongLoop, whose
text names the async call to use. In a forked child, started clients and producers continue with a new loop, new connections and
a new client id; consumers and pullers must be created in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from saturnmq.client.client import Client as AsyncClient
from saturnmq.client.codecs import Codec
from saturnmq.client.connection.transaction_checks import Check
from saturnmq.client.connection.url import ClientSettings, from_environment, parse_url
from saturnmq.client.consumer.settings import ConsumerOptions
from saturnmq.client.hooks import SendHook
from saturnmq.client.message import Message as AsyncMessage
from saturnmq.client.message import Outgoing
from saturnmq.client.producer.attempts import RETRY_CODES, Selector
from saturnmq.client.producer.producer import Producer as AsyncProducer
from saturnmq.client.producer.transactions import Transaction as AsyncTransaction
from saturnmq.client.puller.puller import PULLER_GROUP
from saturnmq.client.receipt import Receipt
from saturnmq.client.sync.consumer import Consumer, Message
from saturnmq.client.sync.portal import Inner
from saturnmq.client.sync.portal import portal as _portal
from saturnmq.client.sync.puller import Puller
from saturnmq.client.trace.records import TraceRecord
from saturnmq.client.tracing import TraceStats
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC

__all__ = ["Client", "Consumer", "Message", "Producer", "Puller", "Transaction"]

T = TypeVar("T")


class Client:
    """saturnmq.Client without `await`, for threads and scripts.

    Example:
        with Client(name_servers="127.0.0.1:9876") as client:
            client.create_topic("orders", queues=8)
            with client.producer("orders-p") as out:
                out.send("orders", b"hello")
    """

    def __init__(self, *, name_servers: str | Sequence[str] = (), timeout: float = 3.0, **settings: Any) -> None:
        self._own = Inner(lambda: AsyncClient(name_servers=name_servers, timeout=timeout, **settings))

    @property
    def _inner(self) -> AsyncClient:
        return self._own.get()

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
        """See saturnmq.Client.settings."""
        return self._inner.settings

    @property
    def client_id(self) -> str:
        """See saturnmq.Client.client_id."""
        return self._inner.client_id

    def start(self) -> None:
        """See saturnmq.Client.start."""
        _portal.run("Client.start", self._inner.start)
        _portal.hear_at_end(self._inner)
        self._own.started = True

    def stop(self) -> None:
        """See saturnmq.Client.stop."""
        self._own.started = False
        _portal.run("Client.stop", self._inner.stop)
        _portal.forget_at_end(self._inner)

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
        """See saturnmq.Client.producer."""
        options: dict[str, Any] = {"max_in_flight": max_in_flight, "hooks": hooks, "retry_codes": retry_codes,
                                   "check": check, "trace": trace}  # fmt: skip
        if codec is not None:
            options["codec"] = codec
        return Producer(lambda: self._inner.producer(group, **options))

    def puller(self, group: str = PULLER_GROUP) -> Puller:
        """See saturnmq.Client.puller."""
        return Puller(self._inner.puller(group))

    @overload
    def consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> Consumer[bytes]: ...
    @overload
    def consumer(self, group: str, *, codec: Codec[T], **options: Unpack[ConsumerOptions]) -> Consumer[T]: ...
    def consumer(
        self, group: str, *, codec: Codec[Any] | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer[Any]:
        """See saturnmq.Client.consumer."""
        if codec is None:
            return Consumer(self._inner.consumer(group, **options))
        return Consumer(self._inner.consumer(group, codec=codec, **options))

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

    def query_trace(self, key: str, *, topic: str | None = None, max_count: int = 64) -> list[TraceRecord]:
        """See saturnmq.Client.query_trace."""
        return _portal.run("Client.query_trace", lambda: self._inner.query_trace(key, topic=topic, max_count=max_count))

    def topic_exists(self, topic: str) -> bool:
        """See saturnmq.Client.topic_exists."""
        return _portal.run("Client.topic_exists", lambda: self._inner.topic_exists(topic))


class Producer(Generic[T]):
    """saturnmq.Producer without `await`. Created by `Client.producer`.

    Example:
        with client.producer("orders-p", codec=str_codec()) as out:
            out.send("orders", "hello", keys=["order-1"])
    """

    def __init__(self, make: Callable[[], AsyncProducer[T]]) -> None:
        self._own = Inner(make)

    @property
    def _inner(self) -> AsyncProducer[T]:
        return self._own.get()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def group(self) -> str:
        """The producer group as brokers see it, including the namespace."""
        return self._inner.group

    @property
    def trace_stats(self) -> TraceStats:
        """See saturnmq.Producer.trace_stats."""
        return self._inner.trace_stats

    def start(self) -> None:
        """See saturnmq.Producer.start."""
        _portal.run("Producer.start", self._inner.start)
        self._own.started = True

    def stop(self) -> None:
        """See saturnmq.Producer.stop."""
        self._own.started = False
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
    """saturnmq.Transaction without `await`. Created by `Producer.transaction`.

    Example:
        with out.transaction("orders", b"hello") as half:
            save_locally(half.message_id)  # an exception in here rolls the message back
    """

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
        """See saturnmq.Transaction.message_id."""
        return self._inner.message_id

    @property
    def receipt(self) -> Receipt:
        """See saturnmq.Transaction.receipt."""
        return self._inner.receipt

    def rollback(self) -> None:
        """See saturnmq.Transaction.rollback."""
        self._inner.rollback()

    def leave_open(self) -> None:
        """See saturnmq.Transaction.leave_open."""
        self._inner.leave_open()
