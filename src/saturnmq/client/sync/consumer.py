"""The synchronous consumer of `saturnmq.sync`.

Requirements: API-31.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from saturnmq.client.consumer.consumer import Consumer as AsyncConsumer
from saturnmq.client.consumer.positions import Place, Where
from saturnmq.client.errors import Closed
from saturnmq.client.filters import ALL, Filter
from saturnmq.client.message import Message as AsyncMessage
from saturnmq.client.sync.portal import portal as _portal
from saturnmq.client.tracing import TraceStats
from saturnmq.protocol.bodies import MessageQueue

T = TypeVar("T")


class Message(Generic[T]):
    """A received message whose `ack`, `retry` and `reject` block until done.

    All other attributes are those of saturnmq.Message.

        message = consumer.recv(timeout=10)
        print(message.topic, message.value)
        message.ack()
    """

    __slots__ = ("_inner",)

    def __init__(self, inner: AsyncMessage[T]) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def value(self) -> T:
        """The body decoded by the codec. Raises DecodeError."""
        return self._inner.value

    def ack(self) -> None:
        """Acknowledge the message; see saturnmq.Message.ack."""
        _portal.run("Message.ack", self._inner.ack)

    def retry(self, after: timedelta | None = None, *, reason: str = "") -> None:
        """Have the message redelivered later; see saturnmq.Message.retry."""
        _portal.run("Message.retry", lambda: self._inner.retry(after, reason=reason))

    def reject(self, reason: str = "") -> None:
        """Send the message to the dead-letter queue; see saturnmq.Message.reject."""
        _portal.run("Message.reject", lambda: self._inner.reject(reason))


class Consumer(Generic[T]):
    """saturnmq.Consumer with blocking calls, for threads and scripts.

    Create it with `saturnmq.sync.Client.consumer`; use it in `with`, or call `start` and `stop`.

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
        """The group name, including the namespace."""
        return self._inner.group

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues assigned to this consumer now; see saturnmq.Consumer.assigned."""
        return self._inner.assigned

    def start(self) -> None:
        """Join the group; see saturnmq.Consumer.start."""
        _portal.run("Consumer.start", self._inner.start)

    def stop(self) -> None:
        """Leave the group; see saturnmq.Consumer.stop."""
        _portal.run("Consumer.stop", self._inner.stop)

    def subscribe(self, topic: str, wanted: Filter | str = ALL) -> None:
        """Receive the messages of a topic that pass the filter; see saturnmq.Consumer.subscribe."""
        _portal.run("Consumer.subscribe", lambda: self._inner.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving a topic; see saturnmq.Consumer.unsubscribe."""
        _portal.run("Consumer.unsubscribe", lambda: self._inner.unsubscribe(topic))

    def recv(self, timeout: float | None = None) -> Message[T]:
        """Return the next message, waiting at most `timeout` seconds; see saturnmq.Consumer.recv."""
        return Message(_portal.run("Consumer.recv", lambda: self._inner.recv(timeout)))

    def batches(self, max_count: int, wait: float = 1.0) -> Iterator[list[Message[T]]]:
        """Iterate over lists of 1 to `max_count` messages; see saturnmq.Consumer.batches."""
        source = self._inner.batches(max_count, wait)

        async def next_batch() -> list[AsyncMessage[T]] | None:
            return await anext(source, None)

        try:
            while (batch := _portal.run("Consumer.batches", next_batch)) is not None:
                yield [Message(message) for message in batch]
        finally:
            _portal.run("Consumer.batches", source.aclose)

    def wait_assigned(self, timeout: float = 10.0) -> list[MessageQueue]:
        """Wait until queues are assigned, and return them; see saturnmq.Consumer.wait_assigned."""
        return _portal.run("Consumer.wait_assigned", lambda: self._inner.wait_assigned(timeout))

    def committed(self, where: Where = None) -> dict[MessageQueue, int]:
        """Return the offsets that would be committed now; see saturnmq.Consumer.committed."""

        async def read() -> dict[MessageQueue, int]:
            return self._inner.committed(where)

        return _portal.run("Consumer.committed", read)

    @property
    def trace_stats(self) -> TraceStats:
        """Counters of the message trace; see saturnmq.Consumer.trace_stats."""
        return self._inner.trace_stats

    def commit(self) -> None:
        """Store offsets now; see saturnmq.Consumer.commit."""
        _portal.run("Consumer.commit", self._inner.commit)

    def position(self, where: Where = None) -> dict[MessageQueue, int]:
        """Return the offset of the next message by queue; see saturnmq.Consumer.position."""

        async def read() -> dict[MessageQueue, int]:
            return self._inner.position(where)

        return _portal.run("Consumer.position", read)

    def lag(self, where: Where = None) -> dict[MessageQueue, int]:
        """Return the number of messages behind the commit offset by queue; see saturnmq.Consumer.lag."""
        return _portal.run("Consumer.lag", lambda: self._inner.lag(where))

    def assign(self, queues: Iterable[MessageQueue], wanted: Filter | str = ALL) -> None:
        """Read exactly these queues, outside of the group's rebalance; see saturnmq.Consumer.assign."""
        _portal.run("Consumer.assign", lambda: self._inner.assign(queues, wanted))

    def seek(self, place: Place, where: Where = None) -> dict[MessageQueue, int]:
        """Continue at another offset; see saturnmq.Consumer.seek."""
        return _portal.run("Consumer.seek", lambda: self._inner.seek(place, where))

    def pause(self, where: Where = None) -> None:
        """Stop pulling and handing out messages until `resume`; see saturnmq.Consumer.pause."""

        async def pause() -> None:
            self._inner.pause(where)

        _portal.run("Consumer.pause", pause)

    def resume(self, where: Where = None) -> None:
        """Continue after `pause`; see saturnmq.Consumer.resume."""

        async def resume() -> None:
            self._inner.resume(where)

        _portal.run("Consumer.resume", resume)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that `pause` has stopped; see saturnmq.Consumer.paused."""
        return self._inner.paused
