"""`TestRocketBroker`: published messages go straight to the handlers, in memory, as with FastStream's other test brokers.

Messages are prepared by the client's own producer, so what a broker would refuse is refused here, and filters are evaluated by the
code of the SaturnMQ broker. Each group gets a message once, each broadcast subscriber always. A handler's exception is raised by
`publish`. There are no delays, retries and dead letters: for those, see `saturnmq.testing.EmbeddedBroker`.

Requirements: INT-01.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker
from faststream.exceptions import SubscriberNotFound

from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection.identity import MessageIds
from saturnmq.client.consumer.batch import Batch
from saturnmq.client.filters import Filter
from saturnmq.client.message import Ack, Message, Settler
from saturnmq.client.receipt import Receipt, SendStatus
from saturnmq.faststream.broker import RocketBroker
from saturnmq.faststream.commands import RocketPublishCommand
from saturnmq.faststream.messages import Raw
from saturnmq.faststream.producer import RocketProducer, immediate
from saturnmq.faststream.publisher import RocketTopicPublisher
from saturnmq.faststream.subscriber import RocketSubscriber
from saturnmq.filter import pull_filter_of
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.message import java_hash
from saturnmq.protocol.offsets import QueueOffset


class TestRocketBroker(TestBroker[RocketBroker, EnterType], broker=RocketBroker):
    """Runs a broker's handlers in memory. with_real: on the broker's own connection, with the same assertions.

    Example:
        async with TestRocketBroker(broker) as memory:
            await memory.publish({"id": 1}, "orders")
            bill.mock.assert_called_once_with({"id": 1})
    """

    _spies = itertools.count(1)

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketTopicPublisher
    ) -> tuple[RocketSubscriber, bool]:
        for subscriber in (item for broker in self.brokers for item in broker._own_subscribers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        group = f"faststream-spy-{time.time_ns()}-{next(self._spies)}"
        return broker.subscriber(publisher.topic, group=group, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Iterator[None]:
        config = broker.config.broker_config
        saved = config.producer, config.connection
        config.producer = MemoryProducer(broker, self.brokers)
        try:
            yield
        finally:
            config.producer, config.connection = saved

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> Any:
        connection: Any = SilentClient()
        broker.config.broker_config.connection = connection
        return connection


class MemoryProducer(RocketProducer):
    """Passes messages to the subscribers of some brokers instead of sending them."""

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        self._client = broker._make_client()  # never started: it prepares messages
        self._client._core.ids = MessageIds("127.0.0.1")
        self._offsets = itertools.count()
        config = broker.config.broker_config
        self.connect(self._client.producer(broker._producer_group), config.fd_config._serializer, config.broker_codec)

    def _build(self, payload: bytes, properties: dict[str, str], cmd: RocketPublishCommand) -> Raw:
        """The message as a consumer would receive it. Raises MessageRefused for one that the client would not send."""
        keys = cmd.options.get("keys", ())
        prepared = self.out._prepare(cmd.destination, payload, cmd.options.get("tag"), keys, properties, 0, True)
        now_ms = time.time_ns() // 1_000_000
        record = Record(
            prepared.topic,
            prepared.body,
            prepared.properties.encode(),
            sys_flag=prepared.sys_flag,
            born_timestamp_ms=now_ms,
            store_timestamp_ms=now_ms,
            queue_offset=QueueOffset(next(self._offsets)),
        )
        queue = MessageQueue(cmd.destination, "memory", 0)
        return Message(record, queue, BytesCodec(), AcceptingSettler(), self._client.settings.namespace)

    def _subscribers(self, topic: str) -> Iterator[RocketSubscriber]:
        """Those that get a message of the topic: one of each group, and all that broadcast."""
        groups: set[str] = set()
        for subscriber in (item for broker in self._brokers for item in broker._own_subscribers):
            spec = subscriber.spec
            if subscriber.topic == topic and spec.group not in groups:
                if spec.options.get("model") != "broadcast":
                    groups.add(spec.group)
                yield subscriber

    async def _deliver(self, cmd: RocketPublishCommand, *, batch: bool = False) -> list[Receipt]:
        messages = [self._build(*encoded, cmd) for encoded in await self.encode(cmd, batch=batch)]
        for subscriber in list(self._subscribers(cmd.destination)):
            selected = [message for message in messages if selects(subscriber.spec.filter, message)]
            for argument in selected if subscriber.spec.batch is None else [Batch(selected)] * bool(selected):
                await subscriber.process_message(argument)
        return [
            Receipt(SendStatus.SEND_OK, message.message_id, message.offset_message_id, message.queue, message.offset)
            for message in messages
        ]

    async def publish(self, cmd: RocketPublishCommand) -> Receipt | None:
        return (await self._deliver(cmd))[0]

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[Receipt]:
        immediate(cmd)
        return await self._deliver(cmd, batch=True)

    async def request(self, cmd: RocketPublishCommand) -> Raw:
        immediate(cmd)
        message = self._build(*(await self.encode(cmd))[0], cmd)
        for subscriber in self._subscribers(cmd.destination):
            if selects(subscriber.spec.filter, message):
                with anyio.fail_after(cmd.timeout or self._client.settings.timeout):
                    response = await subscriber.process_message(message)
                reply = RocketPublishCommand.from_cmd(response.as_publish_command())
                reply.destination = cmd.destination
                reply.correlation_id = response.correlation_id
                return self._build(*(await self.encode(reply))[0], reply)
        raise SubscriberNotFound(f"no subscriber of topic {cmd.destination} for the request")


def selects(topic_filter: Filter, message: Raw) -> bool:
    """Whether a broker would deliver the message to a subscription with this filter."""
    predicates = pull_filter_of(topic_filter.expression, topic_filter.kind)
    if predicates.codes is not None and java_hash(message.tag or "") not in predicates.codes:
        return False
    return predicates.by_record is None or predicates.by_record(message.record.properties_raw)


class AcceptingSettler(Settler):
    """Settles messages that no broker waits for: `message.committed` says how."""

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None:
        pass


class SilentConsumer:
    """A consumer that receives nothing: subscribers that are started in a test get their messages from MemoryProducer."""

    async def subscribe(self, topic: str, wanted: Filter) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def resize(self, concurrency: int, prefetch: int) -> None: ...

    async def batches(self, max_count: int, wait: float) -> AsyncIterator[Batch[bytes]]:
        await asyncio.Event().wait()
        yield Batch()


class SilentClient:
    """A client without connections."""

    def consumer(self, group: str, **options: Any) -> SilentConsumer:
        return SilentConsumer()
