"""`subscriber` and `publisher` of brokers and routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.configs import PublisherSpecificationConfig, SubscriberSpecificationConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

from saturnmq.client.checks import check_topic
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.consumer.listener import DEFAULT_RETRY, TIME_LIMIT_S, concurrency_problem, make_spec
from saturnmq.client.consumer.settings import ConsumerOptions, consumer_settings
from saturnmq.client.filters import ALL, Filter, tag
from saturnmq.faststream.commands import SendOptions
from saturnmq.faststream.config import RocketConfig
from saturnmq.faststream.publisher import RocketPublisherSpecification, RocketTopicPublisher
from saturnmq.faststream.subscriber import RocketSubscriber, RocketSubscriberConfig, RocketSubscriberSpecification
from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


async def _handled_by_feeder(argument: Any) -> None:
    """The handler of a subscriber's ListenerSpec, never called: SubscriberFeeder passes messages to FastStream."""


class RocketRegistrator(Registrator[Any, RocketConfig]):
    """What a broker and a router have in common."""

    def subscriber(  # type: ignore[override]  # each broker of FastStream has parameters of its own
        self,
        topic: str,
        *,
        group: str,
        filter: Filter | str = ALL,  # noqa: A002 - the name of spec 08
        batch: int | None = None,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[ConsumerOptions],
    ) -> RocketSubscriber:
        """Decorator: a handler of the messages of a topic, as a member of a consumer group.

        filter: tags such as "paid || refunded", or `saturnmq.sql(...)`, evaluated by the RocketMQ broker. batch: the handler takes
        a list of the messages that have arrived, at most that many. max_workers: handlers at a time; with ordered=True one per
        queue. ack_policy: when the message is acknowledged, sent back or rejected; default NACK_ON_ERROR, redelivery after an
        exception. no_reply: do not send the handler's result as a reply. options: those of `saturnmq.Client.consumer`, such as
        ordered=True, start="first", max_times=3. A group is for one subscriber: its members must subscribe alike. The other
        parameters are those of FastStream's brokers. Raises ConfigError or MessageRefused for bad values.

        Example:
            @broker.subscriber("orders", group="billing", filter="paid", max_workers=20, start="first")
            async def bill(order: Order) -> None: ...
        """
        check_topic(topic, sending=False)
        if problem := concurrency_problem(max_workers):
            raise ConfigError(f"max_workers: {problem}")
        options.setdefault("route_timeout", None)
        consumer_settings(group, options, instance="unknown here")  # it is the client's, of a started broker
        topic_filter = tag(filter) if isinstance(filter, str) else filter
        spec = make_spec(
            _handled_by_feeder, topic, group, topic_filter, max_workers, batch, DEFAULT_RETRY, TIME_LIMIT_S, BytesCodec(),
            enabled=True, on_start=None, options=options,
        )  # fmt: skip
        outer = cast(RocketConfig, self.config)
        calls = CallsCollection[Any]()
        documented = SubscriberSpecificationConfig(
            title_=title, description_=description, include_in_schema=include_in_schema
        )
        subscriber = RocketSubscriber(
            RocketSubscriberConfig(_outer_config=outer, _ack_policy=ack_policy, no_reply=no_reply),
            RocketSubscriberSpecification(outer, documented, calls, topic),
            calls,
            spec,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
            codec_=codec,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        batch: bool = False,
        headers: dict[str, Any] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        **options: Unpack[SendOptions],
    ) -> RocketTopicPublisher:
        """Decorator: publish what a handler returns. The result can also publish by itself, `await publisher.publish(...)`.

        batch: the handler returns a list, whose elements are sent as messages. headers: user properties of every message. options:
        those of `saturnmq.Producer.send`: tag, keys, shard_by, delay, deliver_at. The others are for the AsyncAPI document.

        Example:
            @broker.subscriber("orders", group="billing")
            @broker.publisher("invoices", tag="open")
            async def bill(order: Order) -> Invoice: ...
        """
        check_topic(topic)
        outer = cast(RocketConfig, self.config)
        documented = PublisherSpecificationConfig(
            title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
        )
        specification = RocketPublisherSpecification(outer, documented, topic)
        publisher = RocketTopicPublisher(outer, specification, batch=batch, headers=headers, options=options)
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: RocketRegistrator,  # type: ignore[override]
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Add the subscribers and publishers of a router. prefix: before the names of its topics."""
        if not isinstance(router, RocketRegistrator):
            raise TypeError(f"the router is a {type(router).__name__}, must be a RocketRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
