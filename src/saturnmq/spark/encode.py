"""Encodes rows of a frame to send requests: batches of messages per topic and queue.

Batch bodies have the layout of protocol/message.py. Compiled code (`hot/batch_rows.py`) writes rows of body, tags, keys and flag
for one topic straight out of Arrow's buffers; `_encode_row` is the reference implementation, for all other rows. Does not import
pyspark.

Requirements: SNK-01, SNK-02, SNK-05, SNK-07, SNK-09.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from saturnmq.client.producer.send_request import Prepared
from saturnmq.errors import MessageRefused
from saturnmq.hot import compiled
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RESERVED_PROPERTIES
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import BATCH_FIXED_BYTES, BATCH_HEAD, PROPERTIES_BYTES_MAX
from saturnmq.spark.body_codecs import CODECS
from saturnmq.spark.sink_options import BODY_BYTES_MAX, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

COMPILED: Final = compiled("batch_rows")
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
    parts: list[bytes | bytearray] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    last_id: str = ""


def _clean(name: str, value: str) -> str:
    if "\x01" in value or "\x02" in value:
        raise MessageRefused(f"column {name} holds a separator character 0x01 or 0x02")
    return value


class Encoder:
    """Collects the rows of one task into requests.

    take_ids: reserves that many unique message ids; returns the digits that they share, and the counter of the first: the other
    4. row_name: prefix of property SPARK_ROW, with option dedupe. shard_target: maps topic and sharding key to a queue, so that
    keys of one queue share requests.
    """

    def __init__(
        self,
        options: SinkOptions,
        take_ids: Callable[[int], tuple[str, int]],
        row_name: str,
        shard_target: Callable[[str, str], SendTarget],
    ) -> None:
        self._options = options
        self._codec = CODECS.get(options.compress)
        self._take_ids = take_ids
        self._row_name = row_name
        self._shard_target = shard_target
        self._id_bytes = len(take_ids(0)[0]) + 4
        self._open: dict[SendTarget, _Open] = {}
        self._tail = f"\x02WAIT\x01{'false' if options.ack == 'none' else 'true'}"
        self.rows = 0
        self.skipped = 0
        self.last_id = ""

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[EncodedRequest]:
        """Encode a record batch; yield the requests that are full. Raises BadRowError naming row, column and limit."""
        row, batch_rows = 0, self._plain_rows(batch)
        while batch_rows is not None and row < batch.num_rows:
            count, is_full = self._add_plain(batch_rows, row)
            row += count
            if is_full or (row < batch.num_rows and not batch_rows.is_odd):
                yield self._close(SendTarget(self._options.topic or ""))
            elif batch_rows.is_odd:
                batch_rows = None
        remainder = batch.slice(row)
        if remainder.num_rows:
            columns = {item.name: remainder.column(n).to_pylist() for n, item in enumerate(remainder.schema)}
            yield from self.add(columns, remainder.num_rows)

    def _plain_rows(self, batch: pa.RecordBatch) -> Any:
        """Return the columns for compiled code; None for rows that need the reference implementation."""
        import pyarrow as pa  # not at import: a planner of a write encodes nothing

        options = self._options
        if COMPILED is None or not options.topic or options.dedupe or options.delivery == "transactional":
            return None
        values: dict[str, Any] = dict.fromkeys(("body", "tags", "keys", "flag"))
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == "flag" and column.type == pa.int32():
                values[name] = memoryview(column.fill_null(0).to_numpy())
            elif name in values and column.type in (pa.string(), pa.binary()):
                try:
                    column.validate(full=True)  # that texts are UTF-8
                except pa.ArrowInvalid:
                    return None
                valid, offsets, data = (
                    memoryview(b"" if part is None else part).cast("B") for part in column.buffers()
                )
                valid_bits = valid if column.null_count else None
                values[name] = COMPILED.Values(valid_bits, offsets.cast("i"), data, column.offset)
            elif name != "topic":
                return None
        body_max = BODY_BYTES_MAX if self._codec is None else min(options.compress_above, BODY_BYTES_MAX)
        return COMPILED.BatchRows(batch.num_rows, *values.values(), self._tail.encode(), body_max)

    def _add_plain(self, batch_rows: Any, row: int) -> tuple[int, bool]:
        """Add rows to the batch of the option's topic; return how many, and whether it has as many as it may have."""
        options, target = self._options, SendTarget(self._options.topic or "")
        batch = self._open.get(target) or _Open()
        count: int = batch_rows.measure(
            row, options.batch_messages - batch.rows, batch.size, options.batch_bytes, self._id_bytes
        )
        if count:
            self._open[target] = batch
            start, number = self._take_ids(count)
            part = bytearray(batch_rows.size)
            batch_rows.write(part, row, count, start.encode(), number)
            batch.parts.append(part)
            batch.rows += count
            batch.size += batch_rows.size
            self.rows += count
            self.last_id = batch.last_id = _id(start, number + count - 1)
        return count, batch.rows >= options.batch_messages

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
        unique = _id(*self._take_ids(1))
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
        single = deliver_at is not None  # a batch cannot be delayed
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
        batch.parts += (BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(properties)), properties)
        batch.rows += 1
        batch.last_id = unique
        batch.size += size
        if request is None and batch.rows >= options.batch_messages:
            request = self._close(target)
        return request

    def _single(
        self, target: SendTarget, body: bytes, unique: str, text: str, flag: int, sys_flag: int
    ) -> EncodedRequest:
        return EncodedRequest(target, Prepared(target.topic, body, (unique,), text, flag, sys_flag), 1, len(body))

    def _close(self, target: SendTarget) -> EncodedRequest:
        batch = self._open.pop(target)
        wait = self._tail[1:]
        # One id is one receipt, and all messages of a batch have the same outcome.
        prepared = Prepared(target.topic, b"".join(batch.parts), (batch.last_id,), wait, batch=True)
        return EncodedRequest(target, prepared, batch.rows, batch.size)

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


def _id(start: str, number: int) -> str:
    return f"{start}{number & 0xFFFF:04X}"


def _epoch_ms(value: Any) -> int:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(value)


def queue_of(target: SendTarget) -> MessageQueue | None:
    """Return the queue that a target fixes, if any."""
    return MessageQueue(target.topic, target.broker, target.queue_id) if target.broker else None
