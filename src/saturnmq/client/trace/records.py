"""Trace records as text: who sent a message, who consumed it, how it went. Pure.

Fields are joined by 0x01, every record ends with 0x02; None is the text `null`. Source: spec 03 section 14.
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

from saturnmq.client.checks import check_topic
from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.errors import LocalProtocolError, RemoteProtocolError

PRODUCE: Final = "PRODUCE"  # who traces, as in the group name of TR-08
CONSUME: Final = "CONSUME"
CLOUD_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # and the region
CLOUD_FIELDS: Final = 7  # of a SubAfter there
FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
_BLANKS: Final = {1: " ", 2: " "}  # what others put into properties may hold separators


class MessageType(IntEnum):
    """What kind of message was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class Outcome(IntEnum):
    """How a delivery ended: the context code."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceError(RemoteProtocolError):
    """A trace text that is none."""


@dataclass(frozen=True, slots=True)
class Pub:
    """A send. message_id of a batch: its ids joined by commas."""

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
    """A message was handed to a consumer. request_id joins it with its SubAfter."""

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
    """A consumer was done with a message. Old records have no time and no group. region is not written."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str | None
    outcome: Outcome = Outcome.SUCCESS
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
    """A transaction was decided. state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""

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


@dataclass(slots=True)
class TraceStats:
    """What became of the records of one producer or consumer.

    sent: a broker stored them. failed: no broker took them. dropped: too many waited already, or it was too late.
    Those that are missing from made are on their way.
    """

    made: int = 0
    sent: int = 0
    failed: int = 0
    dropped: int = 0


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
    """What a trace message is found by: every message id, and the keys of the message (TR-09)."""
    all_ids = record.message_id.translate(_BLANKS)
    ids = all_ids.split(",") if all_ids else []
    if len(ids) > 1:
        ids.insert(0, all_ids)  # the original indexes a batch under all of its ids at once
    return [*ids, *(record.keys or "").translate(_BLANKS).split()]


def encode_cloud(record: TraceRecord) -> str:
    """The text of a record on the cloud's access channel: SubAfter stops behind the context code, without an end (TR-10)."""
    if not isinstance(record, SubAfter):
        return record.encode()
    return FIELD_END.join(record.encode().split(FIELD_END)[:CLOUD_FIELDS]) + FIELD_END


def decode_records(text: str) -> Iterator[TraceRecord]:
    """The records of one trace message; a kind that is not known is passed over. Raises TraceError.

    Also takes Pub without offsetMsgId or with clientHost, SubAfter without time or context code, and those of the cloud's
    access channel, behind which the next record begins without an end between them.
    """
    for part in text.split(RECORD_END):
        fields = part.split(FIELD_END)
        while fields[0] == "SubAfter" and len(fields) > CLOUD_FIELDS and not fields[CLOUD_FIELDS].isdecimal():
            yield _decoded(fields[:CLOUD_FIELDS])
            fields = fields[CLOUD_FIELDS:]
        if fields[0] in _DECODERS:
            yield _decoded(fields)


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
    outcome = Outcome(int(f[6])) if len(f) >= 7 else Outcome.SUCCESS
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


def trace_topic(wanted: bool | str | None, default: bool | str) -> str | None:
    """The topic to trace to, None for no trace. wanted: of one producer or consumer; default: of its client (TR-02)."""
    if wanted is None:
        wanted = default
    if wanted is True:
        return default if isinstance(default, str) else TRACE_TOPIC
    return wanted or None


def trace_topic_problem(trace: bool | str | None) -> str | None:
    """Why this cannot be said of tracing: on, off, or a topic's name."""
    if trace is None or isinstance(trace, bool):
        return None
    try:
        check_topic(trace)
    except LocalProtocolError as error:
        return f"trace is {trace!r:.60}, must be True, False or the name of a topic: {error.message}"
    return None
