"""Pull answers to Arrow: records that lie back to back become the columns that were asked for. No pyspark needed.

The layout is the one of protocol/message.py. No length in a record is trusted. Source: spec 06 SRC-08, SRC-09, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from saturnmq.client.compress import decompress
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import Message, decode_record

_TIME: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "flag": pa.int32(),
    "tags": pa.string(),
    "keys": pa.string(),
    "uniqKey": pa.string(),
    "properties": pa.string(),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "body": pa.binary(),
    "physicalOffset": pa.int64(),
    "storeSize": pa.int32(),
    "sysFlag": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "preparedTransactionOffset": pa.int64(),
    "bodyCrc": pa.int32(),
    "offsetMsgId": pa.string(),
}


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """All fields nullable, in the order asked for."""
    return pa.schema([pa.field(name, TYPES[name], nullable=True) for name in columns])


def property_value(raw: bytes, name: bytes) -> str | None:
    """One property of an encoded string without decoding the others; None when absent or empty."""
    mark = name + b"\x01"
    at = raw.find(mark)
    while at > 0 and raw[at - 1] != 2:
        at = raw.find(mark, at + 1)
    if at < 0:
        return None
    start = at + len(mark)
    end = raw.find(b"\x02", start)
    return (raw[start:end] if end >= 0 else raw[start:]).decode("utf-8", "replace") or None


def _plain_body(message: Message) -> bytes:
    body = bytes(message.body)
    return decompress(body, message.sys_flag) if message.sys_flag & 1 else body


_GETTERS: Final[dict[str, Any]] = {
    "topic": lambda m: m.topic,
    "queueId": lambda m: m.queue_id,
    "queueOffset": lambda m: m.queue_offset,
    "flag": lambda m: m.flag,
    "tags": lambda m: property_value(m.properties_raw, b"TAGS"),
    "keys": lambda m: property_value(m.properties_raw, b"KEYS"),
    "uniqKey": lambda m: property_value(m.properties_raw, b"UNIQ_KEY"),
    "properties": lambda m: m.properties_raw.decode("utf-8", "replace"),
    "bornTimestamp": lambda m: m.born_timestamp_ms * 1000,
    "storeTimestamp": lambda m: m.store_timestamp_ms * 1000,
    "body": _plain_body,
    "physicalOffset": lambda m: m.physical_offset,
    "storeSize": lambda m: m.store_bytes,
    "sysFlag": lambda m: m.sys_flag,
    "reconsumeTimes": lambda m: m.reconsume_times,
    "bornHost": lambda m: f"{m.born_host.ip}:{m.born_host.port}",
    "storeHost": lambda m: f"{m.store_host.ip}:{m.store_host.port}",
    "preparedTransactionOffset": lambda m: m.prepared_transaction_offset,
    "bodyCrc": lambda m: m.body_crc,
    "offsetMsgId": lambda m: offset_message_id(m.store_host, m.physical_offset),
}


class BatchBuilder:
    """Collects messages of one queue and makes record batches of at most `rows` rows."""

    def __init__(self, columns: tuple[str, ...], broker_name: str, rows: int) -> None:
        self._schema = arrow_schema(columns)
        self._columns = columns
        self._broker = broker_name
        self._rows = rows
        self._messages: list[Message] = []

    def add(self, body: bytes, *, begin: int, end: int, tags: frozenset[str], start_ms: int | None = None) -> int:
        """Take the records with a queue offset in [begin, end), a wanted tag and a store time from start_ms on.

        Returns how many records were looked at. Raises MessageError.
        """
        at, size, seen = 0, len(body), 0
        while at < size:
            if size - at < 4:
                raise MessageError(f"a pull answer ends inside a record at {at}")
            message = decode_record(body, at)
            at += message.store_bytes
            seen += 1
            if not begin <= message.queue_offset < end:
                continue
            if tags and property_value(message.properties_raw, b"TAGS") not in tags:
                continue
            if start_ms is not None and message.store_timestamp_ms < start_ms:
                continue
            self._messages.append(message)
        return seen

    def full(self) -> Iterator[pa.RecordBatch]:
        """Batches that have all their rows."""
        while len(self._messages) >= self._rows:
            yield self._make(self._messages[: self._rows])
            del self._messages[: self._rows]

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is left."""
        if self._messages:
            yield self._make(self._messages)
            self._messages = []

    def _make(self, messages: list[Message]) -> pa.RecordBatch:
        arrays = []
        for name in self._columns:
            if name == "brokerName":
                values: list[Any] = [self._broker] * len(messages)
            else:
                getter = _GETTERS[name]
                values = [getter(message) for message in messages]
            arrays.append(pa.array(values, type=TYPES[name]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
