"""What is published: the command that middlewares see, and the response by which a handler sets options of its message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from saturnmq.faststream.messages import Raw


class SendOptions(TypedDict, total=False):
    """The options of `saturnmq.Producer.send` that publishing takes, with the same meaning.

    shard_by: messages with the same key go to the same queue, which a subscriber with ordered=True reads in order.
    """

    tag: str | None
    keys: Sequence[str] | str
    shard_by: str | int | None
    delay: timedelta | float | None
    deliver_at: datetime | None


class RocketResponse(Response):
    """The result of a handler with options of the published message; they override those of the publisher.

    Example:
        @broker.subscriber("orders", group="billing")
        @broker.publisher("invoices")
        async def bill(order: dict) -> RocketResponse:
            return RocketResponse({"order": order["id"]}, tag="open", keys=[order["id"]], shard_by=order["customer"])
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> RocketPublishCommand:
        return RocketPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            **self.options,
        )


class RocketPublishCommand(BatchPublishCommand):
    """A message, or a batch, on its way to a topic. request: the message whose sender waits for this as the reply."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.options = options
        self.timeout = timeout
        self.request: Raw | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        """The command itself, or one with the content of another broker's; batch: a sequence is a batch of its elements."""
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, cls):
            cmd.batch_bodies = (body, *bodies) if batch else cmd.batch_bodies
            return cmd
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )
