"""Encodes rows of a frame to send requests: batches of messages per topic and queue.

Batch bodies have the layout of protocol/message.py and are written row by row without intermediate objects. Does not import
pyspark.

Requirements: SNK-01, SNK-02, SNK-05, SNK-07, SNK-09.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from saturnmq.client.producer.send_request import Prepared
from saturnmq.errors import MessageRefused
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RESERVED_PROPERTIES
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import BATCH_FIXED_BYTES, PROPERTIES_BYTES_MAX
from saturnmq.spark.body_codecs import CODECS
from saturnmq.spark.sink_options import BODY_BYTES_MAX, SinkOptions

_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">h")
DELAY_LEVEL_MAX: Final = 18
TIMER_PROPERTY: Final = "TIMER_DELIVER_MS"
ROW_PROPERTY: Final = "SPARK_ROW"


class BadRowError(SaturnError):
    """A row that cannot be encoded as a message; the message names the row and the reason."""


class SendTarget(NamedTuple):
    """Destination of a request; an empty broker name leaves the choice of the queue to the sender."""

    topic: str
    broker: str = ""
    queue_id: int = -1


@dataclass
class EncodedRequest:
    """One send request. ordered: at most one request in flight for its target."""

    target: SendTarget
    prepared: Prepared
    rows: int
    size: int

    @property
    def ordered(self) -> bool:
        return bool(self.target.broker)


@dataclass
class _Open:
    parts: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    size: int = 0


def _clean(name: str, value: str) -> str:
    if "\x01" in value or "\x02" in value:
        raise MessageRefused(f"column {name} holds a separator character 0x01 or 0x02")
    return value


class Encoder:
    """Collects the rows of one task into requests.

    next_id: returns a new unique message id. row_name: prefix of property SPARK_ROW, with option dedupe. shard_target: maps
    topic and sharding key to a queue, so that keys of one queue share requests.
    """

    def __init__(
        self,
        options: SinkOptions,
        next_id: Callable[[], str],
        row_name: str,
        shard_target: Callable[[str, str], SendTarget],
    ) -> None:
        self._options = options
        self._codec = CODECS.get(options.compress)
        self._next_id = next_id
        self._row_name = row_name
        self._shard_target = shard_target
        self._open: dict[SendTarget, _Open] = {}
        self._tail = f"\x02WAIT\x01{'false' if options.ack == 'none' else 'true'}"
        self.rows = 0
        self.skipped = 0
        self.last_id = ""

    def add(self, columns: dict[str, list[Any]], rows: int) -> Iterator[EncodedRequest]:
        """Encode rows; yield the requests that are full. Raises BadRowError naming row, column and limit."""
        topic = self._options.topic
        bodies = columns["body"]
        empty: list[Any] = [None] * rows
        column = columns.get
        topics, tags, keys = column("topic", empty), column("tags", empty), column("keys", empty)
        extras, flags, shards = column("properties", empty), column("flag", empty), column("shardingKey", empty)
        brokers, queues = column("brokerName", empty), column("queueId", empty)
        delays, times = column("delayLevel", empty), column("deliverAt", empty)
        for n in range(rows):
            row = self.rows
            self.rows += 1
            try:
                target = self._target(topic or topics[n], brokers[n], queues[n], shards[n])
                body = self._body(bodies[n])
                request = self._encode_row(
                    target, body, (tags[n], keys[n], extras[n], flags[n] or 0, shards[n], delays[n], times[n]), row
                )
            except MessageRefused as error:
                if self._options.bad_rows == "fail":
                    raise BadRowError(f"row {row} of the task: {error}; badRows=skip leaves such rows out") from error
                self.skipped += 1
                continue
            if request is not None:
                yield request

    def remaining(self) -> Iterator[EncodedRequest]:
        """Yield the requests that are not full."""
        for target in list(self._open):
            yield self._close(target)

    def _target(self, topic: str | None, broker: str | None, queue: int | None, key: str | None) -> SendTarget:
        if not topic:
            raise MessageRefused("column topic is null, and there is no option topic")
        if broker or queue is not None:
            if not broker or queue is None:
                raise MessageRefused(
                    f"columns brokerName and queueId belong together: brokerName is {broker!r}, queueId is {queue}; "
                    "set both, or neither to let the client choose the queue"
                )
            return SendTarget(topic, broker, queue)
        return self._shard_target(topic, key) if key is not None else SendTarget(topic)

    @staticmethod
    def _body(value: Any) -> bytes:
        if value is None:
            raise MessageRefused("column body is null")
        body: bytes = value.encode() if isinstance(value, str) else value
        if not body:
            raise MessageRefused("column body is empty, a message has at least 1 byte")
        if len(body) > BODY_BYTES_MAX:
            raise MessageRefused(f"column body has {len(body)} bytes, at most {BODY_BYTES_MAX} fit")
        return body

    def _encode_row(self, target: SendTarget, body: bytes, fields: tuple[Any, ...], row: int) -> EncodedRequest | None:
        tags, keys, extra, flag, shard, delay, deliver_at = fields
        unique = self._next_id()
        text = self._extra(extra) if extra else ""
        if shard is not None:
            text += f"__SHARDINGKEY\x01{_clean('shardingKey', shard)}\x02"
        if deliver_at is not None:
            text += f"{TIMER_PROPERTY}\x01{_epoch_ms(deliver_at)}\x02"
        if self._options.dedupe:
            text += f"{ROW_PROPERTY}\x01{self._row_name}/{row}\x02"
        if keys:
            text += f"KEYS\x01{_clean('keys', keys)}\x02"
        text += f"UNIQ_KEY\x01{unique}{self._tail}"
        if tags:
            text += f"\x02TAGS\x01{_clean('tags', tags)}"
        single = False
        if delay:
            if not 0 < delay <= DELAY_LEVEL_MAX:
                raise MessageRefused(f"column delayLevel is {delay}, must be 1..{DELAY_LEVEL_MAX}")
            text += f"\x02DELAY\x01{delay}"
            single = True
        properties = text.encode()
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(f"the properties have {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX} fit")
        self.last_id = unique
        options = self._options
        if self._codec is not None and len(body) > options.compress_above:
            pack, flags = self._codec
            return self._single(target, pack(body), unique, text, flag, flags)
        size = BATCH_FIXED_BYTES + len(body) + len(properties)
        if single or size > BODY_BYTES_MAX or options.delivery == "transactional":
            return self._single(target, body, unique, text, flag, 0)
        request = None
        batch = self._open.get(target)
        if batch is not None and batch.size + size > options.batch_bytes:
            request, batch = self._close(target), None
        if batch is None:
            batch = self._open[target] = _Open()
        batch.parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(properties)), properties)
        batch.ids.append(unique)
        batch.size += size
        if request is None and len(batch.ids) >= options.batch_messages:
            request = self._close(target)
        return request

    def _single(
        self, target: SendTarget, body: bytes, unique: str, text: str, flag: int, sys_flag: int
    ) -> EncodedRequest:
        return EncodedRequest(target, Prepared(target.topic, body, (unique,), text, flag, sys_flag), 1, len(body))

    def _close(self, target: SendTarget) -> EncodedRequest:
        batch = self._open.pop(target)
        wait = self._tail[1:]
        prepared = Prepared(target.topic, b"".join(batch.parts), tuple(batch.ids), wait, batch=True)
        return EncodedRequest(target, prepared, len(batch.ids), batch.size)

    @staticmethod
    def _extra(value: Any) -> str:
        raw = isinstance(value, str)
        pairs = [part.partition("\x01")[::2] for part in value.split("\x02") if part] if raw else list(value)
        text = []
        for name, content in pairs:
            if not name or content is None:
                raise MessageRefused(f"column properties: {name!r} has no name or no value")
            if name in RESERVED_PROPERTIES:
                raise MessageRefused(f"column properties: {name} is reserved for brokers and clients")
            text.append(f"{_clean('properties', name)}\x01{_clean('properties', content)}\x02")
        return "".join(text)


def _epoch_ms(value: Any) -> int:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(value)


def queue_of(target: SendTarget) -> MessageQueue | None:
    """Return the queue that a target fixes, if any."""
    return MessageQueue(target.topic, target.broker, target.queue_id) if target.broker else None
