"""Sends FastStream's publish commands by the client's producer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from faststream._internal.constants import ContentTypes
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState

from saturnmq.client.message import Outgoing
from saturnmq.client.producer.producer import Producer
from saturnmq.client.receipt import Receipt
from saturnmq.errors import CallTimeout, ReplyTimeout
from saturnmq.faststream.commands import RocketPublishCommand
from saturnmq.faststream.messages import CONTENT_TYPE, CORRELATION_ID, REPLY_TO, Raw, decode, parse_message
from saturnmq.protocol.errors import SaturnError

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

logger = logging.getLogger(__name__)

# The bodies of None and of empty text, which FastStream encodes as nothing: no RocketMQ producer may send an empty body.
JSON_OF_NOTHING: Final = {None: b"null", "": b'""'}


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """The one producer of a broker. It can send between `connect` and `disconnect`."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._out: Producer[bytes] | None = None

    def connect(self, out: Producer[bytes], serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        self._out = out
        self._serializer = serializer
        self.codec = codec or self.codec

    async def disconnect(self) -> None:
        if self._out is not None:
            await self._out.stop()
        self._out = None

    @property
    def out(self) -> Producer[bytes]:
        """The client's producer. Raises IncorrectState while the broker is not connected."""
        if self._out is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` or `await broker.start()`")
        return self._out

    async def encode(self, cmd: RocketPublishCommand, *, batch: bool = False) -> list[tuple[bytes, dict[str, str]]]:
        """The body and the user properties of the message, or of each message of a batch."""
        bodies = cmd.batch_bodies if batch else (cmd.body,)
        if batch and isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await self.codec.encode(body, self._serializer) for body in bodies]
        return [_message(body, *pair, cmd) for body, pair in zip(bodies, encoded, strict=True)]

    async def publish(self, cmd: RocketPublishCommand) -> Receipt | None:
        """Send a message, or the reply to a request: a reply that fails is logged, since its request was processed."""
        ((body, properties),) = await self.encode(cmd)
        if cmd.request is None:
            return await self.out.send(cmd.destination, body, properties=properties, timeout=cmd.timeout, **cmd.options)
        try:
            return await self.out.reply(cmd.request, body, properties=properties, timeout=cmd.timeout)
        except SaturnError as error:
            logger.warning("reply not delivered message=%r error=%s", cmd.request, error)
            return None

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[Receipt]:
        """Send the messages in few requests, as `Producer.send_many` does."""
        options = immediate(cmd)
        values = [
            Outgoing(value=body, properties=properties) for body, properties in await self.encode(cmd, batch=True)
        ]
        return await self.out.send_many(cmd.destination, values, timeout=cmd.timeout, **options)

    async def request(self, cmd: RocketPublishCommand) -> Raw:
        """Send a message and wait for the reply. Raises TimeoutError, as FastStream's other brokers do."""
        options = immediate(cmd)
        ((body, properties),) = await self.encode(cmd)
        try:
            return await self.out.request(cmd.destination, body, properties=properties, timeout=cmd.timeout, **options)
        except (CallTimeout, ReplyTimeout) as error:
            raise TimeoutError(str(error)) from error


def _message(
    body: Any, payload: bytes, content_type: str | None, cmd: RocketPublishCommand
) -> tuple[bytes, dict[str, str]]:
    if not payload and (body is None or body == ""):
        payload, content_type = JSON_OF_NOTHING[body], ContentTypes.JSON.value
    named = {
        CONTENT_TYPE: content_type,
        **cmd.headers,
        CORRELATION_ID: cmd.correlation_id or cmd.headers.get(CORRELATION_ID),
        REPLY_TO: cmd.reply_to or cmd.headers.get(REPLY_TO),
    }
    return payload, {name: str(value) for name, value in named.items() if value is not None}


def immediate(cmd: RocketPublishCommand) -> dict[str, Any]:
    """The options of a command that cannot be delayed. Raises FeatureNotSupportedException for one with a delay."""
    delayed = [name for name in ("delay", "deliver_at") if cmd.options.get(name) is not None]
    if delayed:
        raise FeatureNotSupportedException(f"{delayed[0]} is for single messages: batches and requests are not delayed")
    return {name: value for name, value in cmd.options.items() if name not in ("delay", "deliver_at")}
