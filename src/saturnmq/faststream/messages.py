"""FastStream's view of a received message or batch: body, headers, correlation id, and how it is settled.

The headers are the user properties. Three of them have a meaning, with the names that FastStream's other brokers give them:
`content-type`, `correlation_id` and `reply_to`, the topic for the handler's response.

Requirements: INT-02.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from faststream.message import StreamMessage, decode_message

from saturnmq.client.consumer.batch import Batch
from saturnmq.client.message import Message
from saturnmq.errors import AlreadySettled
from saturnmq.protocol.codes import RESERVED_PROPERTIES, PropertyKey

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

Raw: TypeAlias = Message[bytes]


R = TypeVar("R", bound=Raw | Batch[bytes])


class Settled(StreamMessage[R]):
    """What messages and batches have in common: each is settled once, and later calls have no effect."""

    async def ack(self) -> None:
        """Acknowledge it; of a batch, the messages up to `raw_message.ack_index`, and request redelivery of the rest."""
        if self.committed is None:
            await self.raw_message.ack()
        await super().ack()

    async def nack(self, after: timedelta | None = None, reason: str = "") -> None:
        """Request redelivery, as `saturnmq.Message.retry` does: after max_times it is a dead letter."""
        if self.committed is None:
            await self.raw_message.retry(after, reason=reason)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Move it to the group's dead-letter queue now."""
        if self.committed is None:
            for message in self.raw_message if isinstance(self.raw_message, Batch) else (self.raw_message,):
                with contextlib.suppress(AlreadySettled):
                    await message.reject(reason)
        await super().reject()


class RocketMessage(Settled[Raw]):
    """A received message; `raw_message` is the client's.

    Example:
        @broker.subscriber("orders", group="billing", ack_policy=AckPolicy.MANUAL)
        async def bill(order: dict, message: RocketMessage) -> None:
            await message.nack(after=timedelta(minutes=5))
    """


class RocketBatchMessage(Settled[Batch[bytes]]):
    """The messages of one call of a handler with `batch`; settling it settles those that are not settled yet.

    Example:
        @broker.subscriber("orders", group="billing", batch=100)
        async def bill(orders: list[dict], message: RocketBatchMessage) -> None:
            message.raw_message.ack_index = 2  # the first three are good, the rest is redelivered
    """


def user_headers(message: Raw) -> dict[str, str]:
    """The properties that are not the client's or the broker's own."""
    return {name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES}


def correlation_of(message: Raw, headers: Mapping[str, str]) -> str | None:
    return headers.get(CORRELATION_ID) or message.properties.get(PropertyKey.CORRELATION_ID)


# FastStream takes a parser's functions apart: a decoder of batches is one whose name is `decode_batch`.


async def parse_message(message: Raw) -> RocketMessage:
    headers = user_headers(message)
    return RocketMessage(
        raw_message=message,
        body=message.body,
        headers=headers,
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=correlation_of(message, headers),
        reply_to=headers.get(REPLY_TO) or message.properties.get(PropertyKey.REPLY_TO_CLIENT, ""),
        message_id=message.message_id,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    return decode_message(message)


async def parse_batch(batch: Batch[bytes]) -> RocketBatchMessage:
    headers = [user_headers(message) for message in batch]
    return RocketBatchMessage(
        raw_message=batch,
        body=[message.body for message in batch],
        headers=headers[0],
        batch_headers=headers,
        correlation_id=correlation_of(batch[0], headers[0]),
        message_id=f"{batch[0].message_id}-{batch[-1].message_id}",
    )


async def decode_batch(message: StreamMessage[Batch[bytes]]) -> list[Any]:
    return [decode_message(await parse_message(raw)) for raw in message.raw_message]
