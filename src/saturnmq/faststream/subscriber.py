"""Subscribers: a consumer of a group whose messages go through FastStream's middlewares to the handlers.

The client's Feeder has the workers, as for `@client.listener`; what it does not do here is settle: FastStream's middleware for
acknowledgements settles as the AckPolicy says, before its `process_message` returns.

    event                             ACK_FIRST   ACK   REJECT_ON_ERROR   NACK_ON_ERROR   MANUAL
    before the handler                ack         -     -                 -               -
    handler returns                   -           ack   ack               ack             -
    handler raises                    -           ack   dead letter       redelivery      -
    AckMessage, NackMessage, RejectMessage raised: as named, but with ACK_FIRST and MANUAL
    handler or worker is cancelled    -           -     -                 -               -

A message that stays unsettled is delivered again: after `ack_timeout`, or to the next owner of its queue.

Requirements: INT-01, INT-02.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSchema
from faststream.specification.schema import Operation, SubscriberSpec

from saturnmq.client.codecs import BytesCodec
from saturnmq.client.consumer.batch import Batch
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.consumer.listener import Feeder, ListenerSpec
from saturnmq.client.message import Message
from saturnmq.client.producer.producer import Producer
from saturnmq.faststream.config import RocketConfig
from saturnmq.faststream.messages import RocketMessage, decode, decode_batch, parse_batch, parse_message
from saturnmq.faststream.publisher import ReplyPublisher
from saturnmq.tasks import is_cancelled

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RocketSubscriberConfig(SubscriberUsecaseConfig):
    """FastStream's options of a subscriber: those of its own, else the broker's."""

    @property
    def ack_policy(self) -> AckPolicy:
        policies = (self._ack_policy, self._outer_config.ack_policy)
        return next((policy for policy in policies if policy is not EMPTY), AckPolicy.NACK_ON_ERROR)


class RocketSubscriberSpecification(SubscriberSpecification):
    """The subscriber in the AsyncAPI document."""

    __slots__ = ("_topic",)

    def __init__(
        self, outer: RocketConfig, config: SubscriberSpecificationConfig, calls: CallsCollection[Any], topic: str
    ) -> None:
        super().__init__(outer, config, calls)
        self._topic = topic

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        message = MessageSchema(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class SubscriberFeeder(Feeder):
    """The workers of a subscriber with handlers."""

    def __init__(self, subscriber: RocketSubscriber, out: Producer[bytes], consumer: Consumer[bytes]) -> None:
        super().__init__(replace(subscriber.spec, topic=subscriber.topic), out, consumer)
        self._subscriber = subscriber

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._workers

    async def _handle(self, message: Message[Any]) -> None:
        if (failure := self._undecodable(message)) is not None:  # a damaged body, which no parser can read
            await self._settle(message, *failure)
        else:
            await self._consume(message)

    async def _handle_batch(self, batch: Batch[Any]) -> None:
        if readable := await self._readable(batch):
            await self._consume(readable)

    async def _consume(self, argument: Any) -> None:
        """Run the handler. A CancelledError that is not the worker's, as of a future that was cancelled, ends only this call."""
        try:
            await self._subscriber.consume(argument)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            logger.warning("handler was cancelled, nothing is settled group=%s message=%r", self.spec.group, argument)


class RocketSubscriber(SubscriberUsecase[Any]):
    """The handlers of one topic in one consumer group. Made by `broker.subscriber`.

    failure: why its workers ended by themselves, None while they run.
    """

    _outer_config: RocketConfig
    specification: RocketSubscriberSpecification

    def __init__(
        self,
        config: RocketSubscriberConfig,
        specification: RocketSubscriberSpecification,
        calls: CallsCollection[Any],
        spec: ListenerSpec,
    ) -> None:
        config.parser, config.decoder = (parse_batch, decode_batch) if spec.batch else (parse_message, decode)
        super().__init__(config, specification, calls)
        self.spec = spec
        self.failure: BaseException | None = None
        self._started = False  # `running` is true under a test broker, too
        self._feeder: SubscriberFeeder | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return self.specification.topic

    @property
    def consumer(self) -> Consumer[bytes]:
        """The client's consumer. Needs a started subscriber."""
        assert self._feeder is not None, "the subscriber is not started"
        return self._feeder.consumer

    async def start(self) -> None:
        """Join the group; without handlers, messages wait for `get_one`. Idempotent: `FastStream.run` starts a broker again."""
        if self._started:
            return
        await super().start()
        outer = self._outer_config
        consumer = outer.client.consumer(self.spec.group, codec=BytesCodec(), **self.spec.consumer_options)
        self.failure = self._stopping = None
        self._feeder = SubscriberFeeder(self, outer.producer.out, consumer)
        if self.calls:
            await self._feeder.start()
            self._watch = asyncio.create_task(self._report_failure(self._feeder))
        else:
            await consumer.subscribe(self.topic, self.spec.filter)
            await consumer.start()
        self._started = True
        self._post_start()  # in the same step as the start of the workers: `consume` ignores messages until then

    async def _report_failure(self, feeder: SubscriberFeeder) -> None:
        try:
            await feeder.wait()
        except Exception as error:
            self.failure = error
            self._log(logging.CRITICAL, "the subscriber stopped", self.get_log_context(None), error)

    async def stop(self) -> None:
        """Let running handlers finish, for at most the broker's `graceful_timeout`; cancel the rest, then leave the group.

        A handler may call it, as `StopConsume` does: it then returns while the subscriber stops.
        """
        self.running = self._started = False
        if (feeder := self._feeder) is not None:
            if self._stopping is None:
                self._stopping = asyncio.create_task(feeder.stop(self._outer_config.graceful_timeout or 0))
            if not feeder.is_worker(asyncio.current_task()):
                await asyncio.shield(self._stopping)
        await super().stop()

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message.raw_message),)

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:
        """The next message, None if there is none within `timeout` seconds; for a subscriber without handlers."""
        assert not self.calls, "get_one is for a subscriber without handlers"
        try:
            raw = await self.consumer.recv(timeout)
        except TimeoutError:
            return None
        return await self._processed(raw)

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        assert not self.calls, "iteration is for a subscriber without handlers"
        async for raw in self.consumer:
            yield await self._processed(raw)

    async def _processed(self, raw: Message[bytes]) -> RocketMessage:
        argument = raw if self.spec.batch is None else Batch([raw])
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        middlewares = [middleware(argument, context=context) for middleware in self._broker_middlewares]
        message = await process_msg(argument, middlewares=middlewares, parser=parser, decoder=decoder)
        return cast(RocketMessage, message)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        return {"topic": self.topic, "group": self.spec.group, **super().get_log_context(message)}
