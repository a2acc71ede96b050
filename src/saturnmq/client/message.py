"""Public message types: a received Message[T], an Outgoing[T] to send, the Receipt of a send.

Requirements: API-07, API-10, PR-29.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.codecs import Codec, PropertyCodec
from saturnmq.client.compression import decompress
from saturnmq.errors import ClientError, DecodeError
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PropertyKey, SysFlag
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.offsets import QueueOffset

T = TypeVar("T")
_put: Final = object.__setattr__
REASON_PROPERTY: Final = "DEAD_LETTER_REASON"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing(Generic[T]):
    """One message of a `send_many` with options of its own; unset options default to those of the call.

    properties are merged with those of the call and override them.

    Example:
        await out.send_many("orders", [Outgoing(value=b"a", tag="paid"), Outgoing(value=b"b", keys=["order-2"])])
    """

    value: T
    topic: str | None = None
    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    flag: int = 0
    wait_stored: bool | None = None


class Ack(Enum):
    """The verdict of a handler: consumed, redeliver later, or move to the dead-letter queue.

    COMMIT and ROLLBACK belong to ordered consumers with auto_commit=False: see `Message.commit` and `Message.rollback`.

    Example:
        @client.listener("orders", group="billing")
        async def bill(message: Message[bytes]) -> Ack:
            return Ack.SUCCESS if message.body else Ack.REJECT
    """

    SUCCESS = "success"
    RETRY = "retry"
    REJECT = "reject"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class Settler(Protocol):
    """Settles messages: the consumer that delivered them."""

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None: ...

    def extend(self, message: Message[Any], seconds: float | None) -> None:
        """Give the delivery more time; without effect where it has no limit."""
        return


class ReceivedMessage(Generic[T]):
    """The fields of a received message, immutable: of `saturnmq.Message` and of `saturnmq.sync.Message`.

    value: the body converted by the codec, on first access, which may raise DecodeError. queue, offset: where it was read.
    """

    # _origin: what all messages of a pull have in common, see `__init__`. The last three are set on first use.
    __slots__ = ("_body", "_origin", "_properties", "_record", "_value")

    _record: Record
    _origin: tuple[MessageQueue, Codec[T], Settler | None, str | None, tuple[int, int] | None]
    _properties: Mapping[str, str]
    _body: bytes
    _value: T

    def __init__(
        self,
        record: Record,
        queue: MessageQueue,
        codec: Codec[T],
        settler: Settler | None = None,
        namespace: str | None = None,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        """bounds: the first and the next offset of the queue, as the pull answer stated them; added to the properties."""
        _put(self, "_record", record)
        _put(self, "_origin", (queue, codec, settler, namespace, bounds))

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        queue = self.queue
        return f"<Message {self.message_id} {self.topic} {queue.broker_name}/{queue.queue_id}@{self.offset}>"

    @property
    def record(self) -> Record:
        """The decoded record as it was pulled: system flag, hosts, raw properties."""
        return self._record

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was read from."""
        return self._origin[0]

    @property
    def _codec(self) -> Codec[T]:
        return self._origin[1]

    @property
    def _settler(self) -> Settler | None:
        return self._origin[2]

    @property
    def body(self) -> bytes:
        """The uncompressed body, decompressed once. Raises MessageError if it is damaged."""
        try:
            return self._body
        except AttributeError:
            pass
        record = self._record
        raw = record.body
        if record.sys_flag & SysFlag.COMPRESSED:
            body = decompress(raw, record.sys_flag)
        else:
            body = raw if type(raw) is bytes else bytes(raw)
        _put(self, "_body", body)
        return body

    @property
    def value(self) -> T:
        """The body converted by the codec, once. Raises DecodeError, whose text names the message id."""
        try:
            return self._value
        except AttributeError:
            pass
        try:
            codec = self._codec
            value = (
                codec.decode_message(self.body, self.properties)
                if isinstance(codec, PropertyCodec)
                else codec.decode(self.body)
            )
        except DecodeError as error:
            raise DecodeError(f"message {self.message_id} of topic {self.topic}: {error}") from error
        _put(self, "_value", value)
        return value

    @property
    def topic(self) -> str:
        """The topic as the user named it: without the namespace, and not the retry topic for a redelivered message."""
        record = self._record
        return namespaces.strip(self._origin[3], record.properties.get(PropertyKey.RETRY_TOPIC) or record.topic)

    @property
    def tag(self) -> str | None:
        """The tag, None if the message has none."""
        return self._record.properties.get(PropertyKey.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which the broker indexes the message."""
        return tuple((self._record.properties.get(PropertyKey.KEYS) or "").split())

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including the reserved ones; read-only.

        A consumer's message has two more than it was stored with, as in Java: MIN_OFFSET and MAX_OFFSET, the first stored offset
        of the queue and the offset of its next message, when the message was pulled.
        """
        try:
            return self._properties
        except AttributeError:
            pass
        stored, bounds = self._record.properties, self._origin[4]
        if bounds is not None:
            low, high = map(str, bounds)
            stored = {**stored, PropertyKey.MIN_OFFSET: low, PropertyKey.MAX_OFFSET: high}
        properties = MappingProxyType(stored)
        _put(self, "_properties", properties)
        return properties

    @property
    def offset(self) -> QueueOffset:
        """The queue offset: the position in the queue, a count of messages."""
        return self._record.queue_offset

    @property
    def message_id(self) -> str:
        """The unique id that the producer assigned, or the offset message id if it assigned none."""
        return self._record.properties.get(PropertyKey.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id that encodes the broker's address and the commit log offset."""
        return offset_message_id(self._record.store_host, self._record.physical_offset)

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction by which the message was sent, which is its message id; None for any other message."""
        properties = self._record.properties
        is_transactional = (properties.get(PropertyKey.TRAN_MSG) or "").lower() == "true"
        return properties.get(PropertyKey.UNIQ_KEY) if is_transactional else None

    @property
    def born_at(self) -> datetime:
        """When the producer created the message, by its clock; aware, UTC."""
        return _EPOCH + timedelta(milliseconds=self._record.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored the message, by its clock; aware, UTC."""
        return _EPOCH + timedelta(milliseconds=self._record.store_timestamp_ms)

    @property
    def attempt(self) -> int:
        """The number of this delivery, 1 for the first one."""
        return self._record.reconsume_times + 1

    @property
    def dead_letter_reason(self) -> str | None:
        """Why a message of a dead-letter queue came there, if `reject(reason)` of a SaturnMQ client said so; else None."""
        return self._record.properties.get(REASON_PROPERTY)

    @property
    def flag(self) -> int:
        """The integer that the producer set by `send(flag=...)`, 0 by default."""
        return self._record.flag


class Message(ReceivedMessage[T]):
    """A received message, immutable. A consumer's message is settled once: by `ack`, `retry` or `reject`.

    Example:
        async for message in inbox:
            print(message.topic, message.tag, message.keys, message.attempt, message.value)
            await message.ack()
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge the message. Repeating it has no effect; after `retry` or `reject` it raises AlreadySettled.

        On a consumer with auto_commit=False it is held, and neither committed nor delivered again, until a later message of its
        queue is settled by `commit` or `rollback`, or `Consumer.commit` is called.
        """
        settler = self._origin[2]
        await (self._owner() if settler is None else settler).settle(self, Ack.SUCCESS)

    async def commit(self) -> None:
        """Acknowledge the message and commit it with all that its queue holds. Needs ordered=True, auto_commit=False.

        With auto_commit=True of an ordered consumer it is an acknowledgement and logs a warning; on other consumers it raises
        ClientError.

        Example:
            consumer = client.consumer("ledger", ordered=True, auto_commit=False)
            async for message in consumer:
                await add(message.value)
                await (message.commit() if message.value.last else message.ack())
        """
        await self._owner().settle(self, Ack.COMMIT)

    async def rollback(self, after: timedelta | None = None) -> None:
        """Put back the message and all that its queue holds: they are delivered again, in order, with the same attempt.

        after: for how long the queue is suspended first, 10 ms to 30 s; None takes the consumer's `suspend`. Needs ordered=True,
        auto_commit=False. With auto_commit=True of an ordered consumer it is an acknowledgement and logs a warning, as in Java; on
        other consumers it raises ClientError.

        Example:
            await message.rollback(after=timedelta(seconds=5))
        """
        await self._owner().settle(self, Ack.ROLLBACK, after=after)

    async def retry(self, after: timedelta | None = None, *, reason: str = "") -> None:
        """Request redelivery. After max_times redeliveries the message goes to the dead-letter queue.

        after: the delay, None for the broker's choice; exact on brokers that support arbitrary delivery times, as SaturnMQ's do,
        on others rounded up to a delay level. An ordered consumer suspends the queue and redelivers locally, a consumer of queues
        assigned by `assign` redelivers locally, and a concurrent broadcast consumer logs and drops the message. reason: text
        passed to consume hooks.

        Example:
            await message.retry(after=timedelta(seconds=30), reason="upstream is busy")
        """
        await self._owner().settle(self, Ack.RETRY, after=after, reason=reason)

    async def extend(self, seconds: float | None = None) -> None:
        """Give this delivery seconds from now, instead of what remains of `ack_timeout` and of a listener's time limit.

        None: the consumer's `ack_timeout` again. A handler that works for long calls it from time to time; the message comes again
        if it is neither settled nor extended in time. This process keeps the limit, as brokers have none. Without effect on a
        settled message. Raises ClientError unless seconds are above 0 and at most 86400.

        Example:
            for part in parts:
                await convert(part)
                await message.extend(60)
        """
        self._owner().extend(self, seconds)

    async def reject(self, reason: str = "") -> None:
        """Move the message to the group's dead-letter queue now. reason: text stored as a property of the dead letter."""
        await self._owner().settle(self, Ack.REJECT, reason=reason)

    def _owner(self) -> Settler:
        if self._settler is None:
            raise ClientError("this message was pulled, not delivered by a consumer: there is nothing to settle")
        return self._settler


def next_attempt(message: Message[T]) -> Message[T]:
    """A copy of the message with its delivery count increased by one, for a local redelivery."""
    record = replace(message._record, reconsume_times=message._record.reconsume_times + 1)
    return _with_record(message, record)


def same_attempt(message: Message[T]) -> Message[T]:
    """A copy of the message that can be settled by itself, for a local redelivery that counts as no failure."""
    return _with_record(message, message._record)


def _with_record(message: Message[T], record: Record) -> Message[T]:
    return Message(record, *message._origin)
