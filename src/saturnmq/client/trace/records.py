"""Trace records and their text form: who sent a message, who consumed it, with what outcome. Pure.

Fields are separated by 0x01, every record ends with 0x02; None is encoded as `null`.

Requirements: TR-02, TR-03, TR-05, TR-06, TR-09, TR-10 (spec 03, section 14).
"""

# Record          Fields in order
#   Pub             Pub, timestamp, region, group, topic, msgId, tags, keys, storeHost, bodyLength, cost, msgType,
#                   offsetMsgId, success
#   SubBefore       SubBefore, timestamp, region, group, requestId, msgId, retryTimes, keys
#   SubAfter        SubAfter, requestId, msgId, cost, success, keys, contextCode, timestamp, group
#   EndTransaction  EndTransaction, timestamp, region, group, topic, msgId, tags, keys, storeHost, msgType,
#                   transactionId, state name, fromCheck
# timestamp: Unix ms; cost: ms; msgType and contextCode: numbers below; success and fromCheck: true or false.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from saturnmq.protocol.errors import RemoteProtocolError

CLOUD_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # followed by the region
CLOUD_FIELDS: Final = 7  # fields of a SubAfter record on the cloud access channel
FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
_BLANKS: Final = {1: " ", 2: " "}  # properties of other clients may contain separators: replaced by blanks


class MessageType(IntEnum):
    """Kind of a traced message."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class DeliveryOutcome(IntEnum):
    """Outcome of a delivery: the contextCode of a SubAfter record."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceError(RemoteProtocolError):
    """Text that is not a valid trace record."""


@dataclass(frozen=True, slots=True)
class Pub:
    """Trace record of a send. Of a batch, message_id has all ids, joined by commas.

    Example:
        for record in await client.query_trace(receipt.message_id):
            if isinstance(record, Pub):
                print(record.store_host, record.cost_ms, record.success)
    """

    timestamp_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    cost_ms: int
    message_type: MessageType
    offset_message_id: str | None
    success: bool

    def encode(self) -> str:
        return _join(
            "Pub", self.timestamp_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys,
            self.store_host, self.body_bytes, self.cost_ms, int(self.message_type), self.offset_message_id, self.success,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubBefore:
    """Trace record of a message handed to a consumer. Its SubAfter has the same request_id.

    Example:
        records = await client.query_trace(receipt.message_id)
        groups = {record.group for record in records if isinstance(record, SubBefore)}
    """

    timestamp_ms: int
    region: str | None
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str | None

    def encode(self) -> str:
        return _join(
            "SubBefore", self.timestamp_ms, self.region, self.group, self.request_id, self.message_id, self.retry_times,
            self.keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubAfter:
    """Trace record of a settled message. timestamp_ms is 0 and group None in records of old clients. region is not encoded.

    Example:
        records = await client.query_trace(receipt.message_id)
        failed = [record for record in records if isinstance(record, SubAfter) and not record.success]
    """

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str | None
    outcome: DeliveryOutcome = DeliveryOutcome.SUCCESS
    timestamp_ms: int = 0
    group: str | None = None
    region: str | None = field(default=None, compare=False, repr=False)

    def encode(self) -> str:
        return _join(
            "SubAfter", self.request_id, self.message_id, self.cost_ms, self.success, self.keys, int(self.outcome),
            self.timestamp_ms, self.group,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Trace record of a transaction's end. state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW, as spelled by Apache RocketMQ.

    Example:
        for record in await client.query_trace(half.message_id):
            if isinstance(record, EndTransaction):
                print(record.state, record.from_check)
    """

    timestamp_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    message_type: MessageType
    transaction_id: str | None
    state: str
    from_check: bool

    def encode(self) -> str:
        return _join(
            "EndTransaction", self.timestamp_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys,
            self.store_host, int(self.message_type), self.transaction_id, self.state, self.from_check,
        )  # fmt: skip


TraceRecord: TypeAlias = Pub | SubBefore | SubAfter | EndTransaction


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text.translate(_BLANKS) if FIELD_END in text or RECORD_END in text else text


def _join(*fields: object) -> str:
    return FIELD_END.join(map(_text, fields)) + RECORD_END


def index_keys(record: TraceRecord) -> list[str]:
    """The keys under which the trace message is indexed: every message id, and the keys of the traced message (TR-09)."""
    all_ids = record.message_id.translate(_BLANKS)
    ids = all_ids.split(",") if all_ids else []
    if len(ids) > 1:
        ids.insert(0, all_ids)  # Apache RocketMQ indexes a batch under its joined ids too
    return [*ids, *(record.keys or "").translate(_BLANKS).split()]


def encode_cloud(record: TraceRecord) -> str:
    """The text of a record on the cloud access channel: SubAfter ends after contextCode, without the 0x02 (TR-10)."""
    if not isinstance(record, SubAfter):
        return record.encode()
    return FIELD_END.join(record.encode().split(FIELD_END)[:CLOUD_FIELDS]) + FIELD_END


def decode_records(text: str) -> Iterator[TraceRecord]:
    """The records of one trace message; unknown kinds are skipped. Raises TraceError.

    Also accepts Pub without offsetMsgId or with clientHost, SubAfter without timestamp or contextCode, and SubAfter of the cloud
    access channel, which is followed by the next record without a 0x02 in between.
    """
    for part in text.split(RECORD_END):
        fields = part.split(FIELD_END)
        at, count = 0, len(fields)
        while fields[at] == "SubAfter" and count - at > CLOUD_FIELDS and not fields[at + CLOUD_FIELDS].isdecimal():
            yield _decoded(fields[at : at + CLOUD_FIELDS])
            at += CLOUD_FIELDS
        if fields[at] in _DECODERS:
            yield _decoded(fields[at:])


def _decoded(fields: list[str]) -> TraceRecord:
    try:
        return _DECODERS[fields[0]](fields)
    except (IndexError, ValueError) as error:
        raise TraceError(f"a {fields[0]} trace record of {len(fields)} fields cannot be read: {error}") from error


def _maybe(text: str) -> str | None:
    return None if text == "null" else text


def _pub(f: list[str]) -> Pub:
    with_id = len(f) >= 14
    return Pub(
        int(f[1]), _maybe(f[2]), f[3], f[4], f[5], _maybe(f[6]), _maybe(f[7]), f[8], int(f[9]), int(f[10]),
        MessageType(int(f[11])), _maybe(f[12]) if with_id else None, f[13 if with_id else 12] == "true",
    )  # fmt: skip


def _sub_before(f: list[str]) -> SubBefore:
    return SubBefore(int(f[1]), _maybe(f[2]), f[3], f[4], f[5], int(f[6]), _maybe(f[7]))


def _sub_after(f: list[str]) -> SubAfter:
    outcome = DeliveryOutcome(int(f[6])) if len(f) >= 7 else DeliveryOutcome.SUCCESS
    time_ms, group = (int(f[7]), _maybe(f[8])) if len(f) >= 9 else (0, None)
    return SubAfter(f[1], f[2], int(f[3]), f[4] == "true", _maybe(f[5]), outcome, time_ms, group)


def _end_transaction(f: list[str]) -> EndTransaction:
    return EndTransaction(
        int(f[1]), _maybe(f[2]), f[3], f[4], f[5], _maybe(f[6]), _maybe(f[7]), f[8], MessageType(int(f[9])),
        _maybe(f[10]), f[11], f[12] == "true",
    )  # fmt: skip


_DECODERS: Final[dict[str, Callable[[list[str]], TraceRecord]]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
}
