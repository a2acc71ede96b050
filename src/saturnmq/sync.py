"""The clients without `await`, for threads and scripts: the same names and signatures as in `saturnmq`.

Example:
    from saturnmq.sync import Client

    with Client.from_url("rmq://127.0.0.1:9876") as client, client.producer("orders-p") as out:
        receipt = out.send("orders", b"hello", tag="paid")
        print(receipt.message_id)

Handlers of `Client.listener` are plain functions, which `Client.run` calls in threads.

All objects of a process share one daemon thread with one event loop. Each call runs its coroutine there and blocks until it is
done; Ctrl-C cancels the coroutine and raises KeyboardInterrupt. Inside a running event loop every call raises WrongLoop, whose
text names the async call to use. In a forked child, started clients and producers continue with a new loop, new connections and
a new client id; consumers and pullers must be created in the child.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from saturnmq.client.client import Client as AsyncClient
from saturnmq.client.codecs import Codec
from saturnmq.client.connection.url import ClientOptions, ClientSettings, FromSettings
from saturnmq.client.consumer.batch import Batch as AsyncBatch
from saturnmq.client.consumer.consume_stats import ConsumerStats
from saturnmq.client.consumer.consumer import Consumer as AsyncConsumer
from saturnmq.client.consumer.settings import ConsumerOptions
from saturnmq.client.message import Message as AsyncMessage
from saturnmq.client.message import ReceivedMessage
from saturnmq.client.producer.attempts import ProducerStats
from saturnmq.client.producer.producer import Producer as AsyncProducer
from saturnmq.client.producer.settings import ProducerOptions
from saturnmq.client.producer.transactions import Transaction as AsyncTransaction
from saturnmq.client.puller.puller import Puller as AsyncPuller
from saturnmq.client.receipt import Receipt
from saturnmq.client.sync.facade import blocking, converted, copied, direct, iterating, on_loop
from saturnmq.client.sync.listeners import H, adapt, run_until_interrupted
from saturnmq.client.sync.portal import PerProcess, portal
from saturnmq.client.tracing import TraceStats
from saturnmq.errors import Closed
from saturnmq.protocol.bodies import MessageQueue

__all__ = ["Batch", "Client", "Consumer", "Message", "Producer", "Puller", "Transaction"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class _StartStopBlock:
    """`with`: start on entry, stop at the end."""

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Client(FromSettings, PerProcess[AsyncClient], _StartStopBlock):
    """saturnmq.Client without `await`, for threads and scripts.

    settings: name_servers, which is "host:port", several separated by `;` or `,`, or a sequence of them, and the other fields of
    ClientSettings, such as timeout=5.0, namespace="shop" or tls=True. Raises ConfigError naming every bad value.

    Example:
        with Client(name_servers="127.0.0.1:9876") as client:
            client.create_topic("orders", queues=8)
            with client.producer("orders-p") as out:
                out.send("orders", b"hello")
    """

    def __init__(self, **settings: Unpack[ClientOptions]) -> None:
        self._registrations: list[Callable[[AsyncClient], None]] = []

        def create_client() -> AsyncClient:
            client = AsyncClient(**settings)
            for register in self._registrations:  # in a forked child
                register(client)
            return client

        super().__init__(create_client)

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"

    @property
    def settings(self) -> ClientSettings:
        """The validated settings, read-only."""
        return self._inner.settings

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client, `<ip>@<instance>`; empty before `start`."""
        return self._inner.client_id

    @property
    def has_listeners(self) -> bool:
        """Whether handlers are registered, which `run` calls."""
        return self._inner.has_listeners

    @copied(AsyncClient.start)
    def start(self) -> None:
        portal.run("Client.start", self._inner.start)
        portal.flush_at_exit(self._inner)
        self._started = True

    @copied(AsyncClient.stop)
    def stop(self) -> None:
        self._started = False
        portal.run("Client.stop", self._inner.stop)
        portal.forget_at_exit(self._inner)

    @overload
    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> Producer[bytes]: ...
    @overload
    def producer(self, group: str, *, codec: Codec[T], **options: Unpack[ProducerOptions]) -> Producer[T]: ...
    @copied(AsyncClient.producer)  # type: ignore[misc]  # mypy copies one overload
    def producer(self, group: str, **options: Any) -> Producer[Any]:
        return Producer(lambda: self._inner.producer(group, **options))

    puller = converted(direct(AsyncClient.puller), lambda inner: Puller(inner))

    @overload
    def consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> Consumer[bytes]: ...
    @overload
    def consumer(self, group: str, *, codec: Codec[T], **options: Unpack[ConsumerOptions]) -> Consumer[T]: ...
    @copied(AsyncClient.consumer)  # type: ignore[misc]  # mypy copies one overload
    def consumer(self, group: str, **options: Any) -> Consumer[Any]:
        return Consumer(self._inner.consumer(group, **_in_threads(options)))

    @copied(AsyncClient.listener)
    def listener(self, *args: Any, **options: Any) -> Callable[[H], H]:
        if callable(on_start := options.get("on_start")):
            blocking_start = adapt(on_start, {Consumer: AsyncConsumer})
            options["on_start"] = lambda consumer: asyncio.to_thread(blocking_start, consumer)

        options = _in_threads(options)

        def decorator(inner: AsyncClient) -> Callable[[Any], Any]:
            return inner.listener(*args, **options)

        decorator(self._inner)  # raises for bad values

        def decorate(handler: H) -> H:
            adapted = adapt(handler, {Message: AsyncMessage, Batch: AsyncBatch})

            def register(inner: AsyncClient) -> None:
                decorator(inner)(adapted)

            register(self._inner)
            self._registrations.append(register)
            return handler

        return decorate

    def run(self, *, drain_timeout: float = 20.0, handle_signals: bool = False) -> None:
        """Run all listeners until Ctrl-C; then drain, persist offsets, leave the groups and raise KeyboardInterrupt.

        drain_timeout: seconds for running handlers to finish; a second Ctrl-C or signal ends the wait at once. Unfinished
        messages are redelivered. handle_signals: shut down on SIGTERM too, and return instead of raising KeyboardInterrupt;
        only the main thread can handle signals. Raises ConfigError if there is no listener, and the error of one that
        failed.

        Example:
            with Client.from_url("rmq://127.0.0.1:9876") as client:
                client.run(handle_signals=True)
        """
        inner = self._inner  # on this thread: in a forked child it is started now

        def start() -> Coroutine[Any, Any, None]:
            return inner.run(drain_timeout=drain_timeout)

        run_until_interrupted("Client.run", start, handle_signals=handle_signals)

    set_concurrency = on_loop(AsyncClient.set_concurrency)
    create_topic = blocking(AsyncClient.create_topic)
    view_message = blocking(AsyncClient.view_message)
    query_messages = blocking(AsyncClient.query_messages)
    query_trace = blocking(AsyncClient.query_trace)
    topic_exists = blocking(AsyncClient.topic_exists)


def _in_threads(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a consumer with callbacks that run in threads, where they may call the consumer."""
    wrapped = {
        name: functools.partial(asyncio.to_thread, options[name])
        for name in ("on_assigned", "on_revoked")
        if callable(options.get(name))
    }
    return {**options, **wrapped}


def _with_listed_values(method: Callable[P, R]) -> Callable[P, R]:
    """The method with `values` read on the calling thread, where iterating over them may block."""

    def call(self: Any, topic: str, values: Iterable[Any], **options: Any) -> Any:
        return send(self, topic, list(values), **options)

    send: Any = method
    wrapper: Any = functools.wraps(method)(call)
    return wrapper  # type: ignore[no-any-return]


class Producer(PerProcess[AsyncProducer[T]], _StartStopBlock, Generic[T]):
    """saturnmq.Producer without `await`. Created by `Client.producer`; use `with`, or `start()` and `stop()`.

    Example:
        with client.producer("orders-p", codec=str_codec()) as out:
            out.send("orders", "hello", keys=["order-1"])
    """

    @property
    def group(self) -> str:
        """The producer group as brokers see it, including the namespace."""
        return self._inner.group

    @property
    def stats(self) -> ProducerStats:
        """Counters of requests and messages; a copy."""
        return self._inner.stats

    @property
    def trace_stats(self) -> TraceStats:
        """Counters of the message trace: records created, sent and lost; all 0 if tracing is off."""
        return self._inner.trace_stats

    @copied(AsyncProducer.start)
    def start(self) -> None:
        portal.run("Producer.start", self._inner.start)
        self._started = True

    @copied(AsyncProducer.stop)
    def stop(self) -> None:
        self._started = False
        portal.run("Producer.stop", self._inner.stop)

    send = blocking(AsyncProducer[T].send)

    @copied(AsyncProducer[T].send_soon)
    def send_soon(self, topic: str, value: T, **options: Any) -> concurrent.futures.Future[Receipt]:
        inner = self._inner
        return portal.future("Producer.send_soon", lambda: inner.send_soon(topic, value, **options))

    send_oneway = blocking(AsyncProducer[T].send_oneway)
    send_many = _with_listed_values(blocking(AsyncProducer[T].send_many))
    send_many_oneway = _with_listed_values(blocking(AsyncProducer[T].send_many_oneway))
    transaction = converted(on_loop(AsyncProducer[T].transaction), lambda inner: Transaction(inner))
    request = blocking(AsyncProducer[T].request)
    reply = blocking(AsyncProducer[T].reply)
    queues = blocking(AsyncProducer[T].queues)


class Transaction(Generic[T]):
    """saturnmq.Transaction without `await`. Created by `Producer.transaction`.

    Example:
        with out.transaction("orders", b"hello") as half:
            save_locally(half.message_id)  # an exception in here rolls the message back
    """

    def __init__(self, inner: AsyncTransaction[T]) -> None:
        self._inner = inner

    def __enter__(self) -> Self:
        portal.run("Transaction.__enter__", self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        portal.run("Transaction.__exit__", lambda: self._inner.__aexit__(kind, error, trace))

    @property
    def message_id(self) -> str:
        """The unique id of the message, known before it is sent."""
        return self._inner.message_id

    @property
    def receipt(self) -> Receipt:
        """The receipt of the half message, whose queue and offset it has. Raises ClientError before the block begins."""
        return self._inner.receipt

    rollback = direct(AsyncTransaction[T].rollback)
    leave_open = direct(AsyncTransaction[T].leave_open)


class Message(ReceivedMessage[T]):
    """A received message, immutable, whose `ack`, `retry` and `reject` block until done.

    Example:
        message = consumer.recv(timeout=10)
        print(message.topic, message.value)
        message.ack()
    """

    __slots__ = ("_inner",)

    _inner: AsyncMessage[T]

    def __init__(self, inner: AsyncMessage[T]) -> None:
        super().__init__(inner.record, *inner._origin)
        object.__setattr__(self, "_inner", inner)

    ack = blocking(AsyncMessage[T].ack)
    commit = blocking(AsyncMessage[T].commit)
    rollback = blocking(AsyncMessage[T].rollback)
    retry = blocking(AsyncMessage[T].retry)
    extend = blocking(AsyncMessage[T].extend)
    reject = blocking(AsyncMessage[T].reject)


class Batch(list[Message[T]]):
    """A list of messages that were received together, with `ack_index`, the index of the last good one.

    Each message can also be settled by itself; then the batch leaves it alone.

    Example:
        for batch in consumer.batches(100):
            batch.ack_index = store([message.value for message in batch])
            batch.ack()
    """

    def __init__(self, inner: AsyncBatch[T]) -> None:
        super().__init__(Message(message) for message in inner)
        self._inner = inner

    @property
    def ack_index(self) -> int:
        """The index of the last good message, as `ackIndex` in Java: those behind it are redelivered. By default all are good.

        -1 means that none is good. Greater values than the index of the last message mean all, as lower ones than -1 mean none.
        """
        return self._inner.ack_index

    @ack_index.setter
    def ack_index(self, index: int) -> None:
        self._inner.ack_index = index

    ack = blocking(AsyncBatch[T].ack)
    retry = blocking(AsyncBatch[T].retry)


class Consumer(_StartStopBlock, Generic[T]):
    """saturnmq.Consumer with blocking calls, for threads and scripts.

    Create it with `saturnmq.sync.Client.consumer`; use it in `with`, or call `start` and `stop`. Iterate over it, or call
    `recv` or `batches`, and settle every message with `ack`, `retry` or `reject`.

    Example:
        from saturnmq.sync import Client

        with Client.from_url("rmq://127.0.0.1:9876") as client:
            with client.consumer("billing", start="first") as consumer:
                consumer.subscribe("orders")
                for message in consumer:
                    print(message.value)
                    message.ack()
    """

    def __init__(self, inner: AsyncConsumer[T]) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Message[T]]:
        while True:
            try:
                message = self.recv()
            except Closed:
                return
            yield message

    @property
    def group(self) -> str:
        """The group name, including the namespace."""
        return self._inner.group

    @property
    def stats(self) -> ConsumerStats:
        """What the consumer holds now, and its rates over the last minute."""
        return portal.call("Consumer.stats", lambda: self._inner.stats)

    @property
    def trace_stats(self) -> TraceStats:
        """Numbers of message-trace records that were created, sent and dropped; all 0 when tracing is off."""
        return self._inner.trace_stats

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues assigned to this consumer now, without those of the retry topic."""
        return self._inner.assigned

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that `pause` has stopped."""
        return self._inner.paused

    start = blocking(AsyncConsumer[T].start)
    stop = blocking(AsyncConsumer[T].stop)
    recv = converted(blocking(AsyncConsumer[T].recv), lambda inner: Message(inner))
    batches = converted(iterating(AsyncConsumer[T].batches), lambda batches: (Batch(batch) for batch in batches))
    processing = direct(AsyncConsumer[T].processing)
    wait_assigned = blocking(AsyncConsumer[T].wait_assigned)
    position = on_loop(AsyncConsumer[T].position)
    committed = on_loop(AsyncConsumer[T].committed)
    lag = blocking(AsyncConsumer[T].lag)
    commit = blocking(AsyncConsumer[T].commit)
    seek = blocking(AsyncConsumer[T].seek)
    pause = on_loop(AsyncConsumer[T].pause)
    resume = on_loop(AsyncConsumer[T].resume)
    subscribe = blocking(AsyncConsumer[T].subscribe)
    unsubscribe = blocking(AsyncConsumer[T].unsubscribe)
    assign = blocking(AsyncConsumer[T].assign)


class Puller:
    """saturnmq.Puller with blocking calls, for threads and scripts.

    Create it with `saturnmq.sync.Client.puller`; it needs no start or stop.

    Example:
        from saturnmq.sync import Client

        with Client.from_url("rmq://127.0.0.1:9876") as client:
            puller = client.puller()
            for queue in puller.queues("orders"):
                result = puller.pull(queue, puller.min_offset(queue))
                print(queue, len(result.messages()))
    """

    def __init__(self, inner: AsyncPuller) -> None:
        self._inner = inner

    @property
    def group(self) -> str:
        """The group name used for pulls, including the namespace."""
        return self._inner.group

    queues = blocking(AsyncPuller.queues)
    refresh = blocking(AsyncPuller.refresh)
    watch = iterating(AsyncPuller.watch)
    min_offset = blocking(AsyncPuller.min_offset)
    max_offset = blocking(AsyncPuller.max_offset)
    offset_by_time = blocking(AsyncPuller.offset_by_time)
    earliest_store_time = blocking(AsyncPuller.earliest_store_time)
    committed = blocking(AsyncPuller.committed)
    commit = blocking(AsyncPuller.commit)
    pull = blocking(AsyncPuller.pull)
