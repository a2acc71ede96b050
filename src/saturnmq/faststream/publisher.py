"""Publishers: the destination of a decorated handler's results, and of replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSchema
from faststream.specification.schema import Operation, PublisherSpec

from saturnmq.faststream.commands import RocketPublishCommand, SendOptions
from saturnmq.faststream.config import RocketConfig
from saturnmq.faststream.messages import REPLY_TO, Raw, RocketMessage

if TYPE_CHECKING:
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware


class RocketPublisherSpecification(PublisherSpecification):
    """The publisher in the AsyncAPI document."""

    __slots__ = ("_topic",)

    def __init__(self, outer: RocketConfig, config: PublisherSpecificationConfig, topic: str) -> None:
        super().__init__(outer, config)
        self._topic = topic

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = MessageSchema(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketTopicPublisher(PublisherUsecase):
    """Publishes to one topic, with headers and options that a call or a response overrides. Made by `broker.publisher`.

    Example:
        invoices = broker.publisher("invoices", tag="open")
        await invoices.publish({"order": 1}, keys=["order-1"])
    """

    _outer_config: RocketConfig
    specification: RocketPublisherSpecification

    def __init__(
        self,
        outer: RocketConfig,
        specification: RocketPublisherSpecification,
        *,
        batch: bool,
        headers: dict[str, Any] | None,
        options: SendOptions,
    ) -> None:
        super().__init__(PublisherUsecaseConfig(_outer_config=outer), specification)
        self.batch = batch
        self.headers = headers or {}
        self.options = options

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return self.specification.topic

    def _command(self, bodies: tuple[Any, ...], kind: PublishType, call: dict[str, Any]) -> RocketPublishCommand:
        call["headers"] = {**self.headers, **(call.get("headers") or {})}
        call["correlation_id"] = call.get("correlation_id") or self._outer_config.id_generator()
        call["topic"] = call.get("topic") or self.topic
        return RocketPublishCommand(*bodies, _publish_type=kind, **{**self.options, **call})

    async def publish(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Publish a message; with batch=True, all messages that are given. Returns its receipt, or their receipts."""
        call = dict(
            topic=topic, headers=headers, correlation_id=correlation_id, reply_to=reply_to, timeout=timeout, **options
        )
        if not self.batch and len(messages) > 1:
            raise TypeError(f"{len(messages)} messages for publisher {self.topic}, which has batch=False and takes one")
        cmd = self._command(messages or (None,), PublishType.PUBLISH, call)
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        return await publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> RocketMessage:
        """Publish a message and wait for the reply of its consumer."""
        call = dict(topic=topic, headers=headers, correlation_id=correlation_id, timeout=timeout, **options)
        cmd = self._command((message,), PublishType.REQUEST, call)
        reply: RocketMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """Publish what the decorated handler returned."""
        cmd = RocketPublishCommand.from_cmd(cmd, batch=self.batch)
        cmd.destination = self.topic
        cmd.add_headers(self.headers, override=False)
        cmd.options = {**self.options, **cmd.options}
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        await publish(cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)


class ReplyPublisher(FakePublisher):
    """Publishes a handler's result to the topic that the message named, or as the reply to a request."""

    def __init__(self, producer: ProducerProto[Any], message: Raw) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketPublishCommand:
        command = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._message.properties.get(REPLY_TO, "")
        if not command.destination:
            command.request = self._message
        return command
