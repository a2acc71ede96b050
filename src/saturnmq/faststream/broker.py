"""The broker: one client, its producer, and the subscribers that share it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from fast_depends import Provider, dependency_provider
from faststream import ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from saturnmq.client.client import Client
from saturnmq.client.receipt import Receipt
from saturnmq.faststream.commands import RocketPublishCommand, SendOptions
from saturnmq.faststream.config import RocketConfig, make_rocket_logger
from saturnmq.faststream.messages import RocketMessage
from saturnmq.faststream.producer import RocketProducer
from saturnmq.faststream.registrator import RocketRegistrator
from saturnmq.faststream.subscriber import RocketSubscriber
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC
from saturnmq.protocol.errors import ConfigError, SaturnError

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict


def access_options(security: BaseSecurity | None) -> dict[str, Any]:
    """The client's settings for FastStream's security object. Raises ConfigError for kinds that brokers do not have."""
    if security is None:
        return {}
    if type(security) not in (BaseSecurity, SASLPlaintext) or security.ssl_context is not None:
        raise ConfigError(
            f"security is {type(security).__name__}, must be SASLPlaintext(access_key, secret_key) or BaseSecurity(), with "
            "use_ssl=True for TLS; certificates are given by tls_ca, tls_cert and tls_key, not by an ssl_context"
        )
    options: dict[str, Any] = {"tls": True} if security.use_ssl else {}
    if isinstance(security, SASLPlaintext):
        options |= {"access_key": security.username, "secret_key": security.password}
    return options


class RocketBroker(RocketRegistrator, BrokerUsecase[Any, Client, RocketConfig]):
    """A FastStream broker whose transport is SaturnMQ or Apache RocketMQ.

    url: `rmq://host:port[,host:port]`, the NameServers; `rmqs://` is TLS. producer_group: the group of its publishers.
    graceful_timeout: seconds that running handlers have when the broker stops. client_options: further settings of
    `saturnmq.Client`, such as namespace="shop", timeout=5.0, access_key=..., instance="node-1". The other parameters are those of
    FastStream's brokers. The constructor does no I/O. Raises ConfigError naming every bad value.

    Example:
        broker = RocketBroker("rmq://127.0.0.1:9876")
        app = FastStream(broker)

        @broker.subscriber("orders", group="billing")
        async def bill(order: Order) -> None: ...
    """

    def __init__(
        self,
        url: str = "rmq://127.0.0.1:9876",
        *,
        producer_group: str = "faststream",
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        security: BaseSecurity | None = None,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        **client_options: Any,
    ) -> None:
        self._make_client = partial(Client.from_url, url, **access_options(security), **client_options)
        sample = self._make_client()
        sample.producer(producer_group)
        self._producer_group = producer_group
        super().__init__(
            config=RocketConfig(
                producer=RocketProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_rocket_logger(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[specification_url]
                if specification_url
                else [f"rmq://{server}" for server in sample.settings.name_servers],
                protocol="rocketmq",
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
            routers=routers,
        )

    async def _connect(self) -> Client:
        client = self._make_client()
        out = client.producer(self._producer_group)
        await client.start()
        try:
            await out.start()
        except BaseException:
            await client.stop()
            raise
        config = self.config.broker_config
        config.connection = client
        config.producer.connect(out, config.fd_config._serializer, config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, then start the subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers as `graceful_timeout` allows, then the producer, then the client. It can be started again."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            config, client = self.config.broker_config, self._connection
            self._connection = config.connection = None
            await config.producer.disconnect()
            if client is not None:
                await client.stop()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a NameServer answers within `timeout` seconds and no subscriber has stopped by itself."""
        if self._connection is None or any(subscriber.failure for subscriber in self._own_subscribers):
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._connection.topic_exists(AUTO_CREATE_TOPIC)
        except (SaturnError, TimeoutError):
            return False
        return True

    @property
    def _own_subscribers(self) -> list[RocketSubscriber]:
        return [subscriber for subscriber in self.subscribers if isinstance(subscriber, RocketSubscriber)]

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Send a message and wait until a broker has stored it.

        message: bytes, text, or a value that FastStream encodes as JSON; None is sent as JSON's null. headers: user properties.
        reply_to: the topic to which the handler's result goes. timeout: seconds, retries included; default: the client's. options:
        those of `saturnmq.Producer.send`: tag, keys, shard_by, delay, deliver_at. Raises what that raises.

        Example:
            await broker.publish({"id": 1}, "orders", tag="paid", keys=["order-1"], shard_by="customer-7")
        """
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
            **options,
        )
        receipt: Receipt = await self._basic_publish(cmd, producer=self._producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> list[Receipt]:
        """Send many messages in few requests; one receipt each, in order.

        Example:
            await broker.publish_batch({"id": 1}, {"id": 2}, topic="orders", tag="paid")
        """
        cmd = RocketPublishCommand(
            *messages,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
            **options,
        )
        receipts: list[Receipt] = await self._basic_publish_batch(cmd, producer=self._producer)
        return receipts

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> RocketMessage:
        """Send a message and wait for the reply of its consumer. Raises ReplyTimeout, and what `publish` raises.

        Example:
            reply = await broker.request("apple", "prices", timeout=2.0)
            print(await reply.decode())
        """
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
            **options,
        )
        reply: RocketMessage = await self._basic_request(cmd, producer=self._producer)
        return reply
