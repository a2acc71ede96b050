"""What a user sees of messages: Message[T] received, Outgoing[T] to send, Receipt of a send.

Source: spec 08 API-07, API-10, PR-29.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.codecs import Codec
from saturnmq.client.errors import ClientError, DecodeError
from saturnmq.client.producer.compress import decompress
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PropertyKey, ResponseCode, SysFlag
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import Message as Record

T = TypeVar("T")
_UNSET: Final = object()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SendStatus(Enum):
    """How a stored message is kept (PR-17). Everything but SEND_OK: stored, the wanted durability is not confirmed."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_BY_CODE: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class Receipt(NamedTuple):
    """What the broker said about one message. A tuple, for a batch makes hundreds: 0.25 us each, a frozen dataclass takes 1.4.

    message_id: the unique id the client gave it. offset_message_id: where it lies. offset: its place in the queue.
    durable: False when the broker says its durability is not confirmed, None where it does not state flush and
    replication mode.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    offset: int
    durable: bool | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True
    transaction_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing(Generic[T]):
    """One message of a `send_many` with options of its own; None takes what the call says."""

    value: T
    topic: str | None = None
    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    flag: int = 0
    wait_stored: bool | None = None


class Ack(Enum):
    """What a handler says about a message (table 1.1)."""

    SUCCESS = "success"
    RETRY = "retry"
    REJECT = "reject"


class Settler(Protocol):
    """Where a message goes when it is settled: its consumer."""

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None: ...


class Message(Generic[T]):
    """A received message. Frozen; the value is decoded once, on first access, and may raise DecodeError.

    topic: the user's name of it, also for a redelivered message. attempt: 1 for the first delivery.
    queue, offset: where it was read. born_at, stored_at: aware UTC.
    """

    __slots__ = ("_body", "_codec", "_namespace", "_record", "_settler", "_value", "queue")

    queue: MessageQueue
    _record: Record
    _codec: Codec[T]
    _settler: Settler | None
    _namespace: str | None
    _body: Any
    _value: Any

    def __init__(
        self,
        record: Record,
        queue: MessageQueue,
        codec: Codec[T],
        settler: Settler | None = None,
        namespace: str | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "_record", record)
        put(self, "queue", queue)
        put(self, "_codec", codec)
        put(self, "_settler", settler)
        put(self, "_namespace", namespace)
        put(self, "_body", None)
        put(self, "_value", _UNSET)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        queue = self.queue
        return f"<Message {self.message_id} {self.topic} {queue.broker_name}/{queue.queue_id}@{self.offset}>"

    @property
    def record(self) -> Record:
        """The message as it was pulled: sysFlag, hosts, raw properties."""
        return self._record

    @property
    def body(self) -> bytes:
        """The plain body; a compressed one is unpacked once. Raises MessageError."""
        body = self._body
        if body is None:
            record = self._record
            raw = record.body
            if record.sys_flag & SysFlag.COMPRESSED:
                body = decompress(raw, record.sys_flag)
            else:
                body = raw if type(raw) is bytes else bytes(raw)
            object.__setattr__(self, "_body", body)
        return body  # type: ignore[no-any-return]

    @property
    def value(self) -> T:
        """The body through the codec. Raises DecodeError, with the message id in its text."""
        value = self._value
        if value is _UNSET:
            try:
                value = self._codec.decode(self.body)
            except DecodeError as error:
                raise DecodeError(f"message {self.message_id} of topic {self.topic}: {error}") from error
            object.__setattr__(self, "_value", value)
        return value  # type: ignore[no-any-return]

    @property
    def topic(self) -> str:
        record = self._record
        return namespaces.strip(self._namespace, record.properties.get(PropertyKey.RETRY_TOPIC) or record.topic)

    @property
    def tag(self) -> str | None:
        return self._record.properties.get(PropertyKey.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple((self._record.properties.get(PropertyKey.KEYS) or "").split())

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the reserved ones too."""
        return MappingProxyType(self._record.properties)

    @property
    def offset(self) -> int:
        return self._record.queue_offset

    @property
    def message_id(self) -> str:
        """The unique id of the producer's client, else the offset id."""
        return self._record.properties.get(PropertyKey.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self._record.store_host, self._record.physical_offset)

    @property
    def born_at(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=self._record.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=self._record.store_timestamp_ms)

    @property
    def attempt(self) -> int:
        return self._record.reconsume_times + 1

    @property
    def flag(self) -> int:
        """The user's number of PR-01."""
        return self._record.flag

    async def ack(self) -> None:
        """Done. Twice does nothing; after retry or reject it raises AlreadySettled."""
        await self._owner().settle(self, Ack.SUCCESS)

    async def retry(self, after: timedelta | None = None, *, reason: str = "") -> None:
        """Deliver again later; None lets the broker choose. Dead letter after max_times.

        after is exact on brokers that deliver at any time, as SaturnMQ's do, and rounded up to a delay level on others.
        """
        await self._owner().settle(self, Ack.RETRY, after=after, reason=reason)

    async def reject(self, reason: str = "") -> None:
        """To the dead letters of the group, now."""
        await self._owner().settle(self, Ack.REJECT, reason=reason)

    def _owner(self) -> Settler:
        if self._settler is None:
            raise ClientError("this message was pulled, not delivered by a consumer: there is nothing to settle")
        return self._settler


def next_attempt(message: Message[T]) -> Message[T]:
    """The same message with one failure more, for who hands it out again."""
    record = replace(message._record, reconsume_times=message._record.reconsume_times + 1)
    return Message(record, message.queue, message._codec, message._settler, message._namespace)
