"""Traces as graphs: who sent a message, how its transaction ended, and its deliveries to each group.

A delivery is a SubBefore and a SubAfter record with the same request id; either may be missing.

Requirements: CON-10, ADM-09.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from saturnmq.admin.messages import Messages
from saturnmq.client.trace.records import (
    EndTransaction,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_records,
)
from saturnmq.protocol.codes import TRACE_TOPIC, ResponseCode
from saturnmq.protocol.errors import ResponseError, SaturnError

MISSING: Final = -1
RECORDS_MAX: Final = 2000
MESSAGES_MAX: Final = 20


class Gap(Enum):
    """A kind of record that a trace should have and has not. value: a sentence about it.

    Clients drop records when they cannot send them in time, and a client may not trace at all.
    """

    SEND = "no record of the send: the producer did not trace, or its record was lost"
    DECISION = "a half message without a decision: it is pending, or the record was lost"
    BEGIN = "a delivery without a begin: the record was lost"
    END = "a delivery without an end: it is in progress, or the record was lost"


@dataclass(frozen=True)
class SentRecord:
    """A send, or the end of a transaction. client_host: of the producer."""

    record: Pub | EndTransaction
    client_host: str


@dataclass
class Delivery:
    """A delivery to a client of a group. begin_ms, end_ms (Unix ms) and cost_ms are MISSING (-1) without their record."""

    group: str
    request_id: str
    client_host: str
    begin_ms: int = MISSING
    end_ms: int = MISSING
    cost_ms: int = MISSING
    retry_times: int = MISSING
    success: bool | None = None


@dataclass
class MessageTrace:
    """All that is known about one message. groups: deliveries by group, in the order of their records."""

    message_id: str
    sends: list[SentRecord] = field(default_factory=list)
    transactions: list[SentRecord] = field(default_factory=list)
    groups: dict[str, list[Delivery]] = field(default_factory=dict)

    @property
    def gaps(self) -> list[Gap]:
        """Why this trace is incomplete; empty if nothing is known to be missing.

        Example:
            for trace in await admin.traces.find("order-1"):
                print(trace.message_id, [gap.value for gap in trace.gaps])
        """
        deliveries = [delivery for group_deliveries in self.groups.values() for delivery in group_deliveries]
        half = any(isinstance(s.record, Pub) and s.record.message_type is MessageType.HALF for s in self.sends)
        missing = {
            Gap.SEND: not self.sends,
            Gap.DECISION: half and not self.transactions,
            Gap.BEGIN: any(delivery.begin_ms == MISSING for delivery in deliveries),
            Gap.END: any(delivery.success is None for delivery in deliveries),
        }
        return [gap for gap, is_missing in missing.items() if is_missing]


class Traces:
    """Traces as graphs.

    Example:
        for trace in await admin.traces.find("order-1"):
            print(trace.message_id, {group: len(many) for group, many in trace.groups.items()})
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def find(self, text: str, topic: str = TRACE_TOPIC) -> list[MessageTrace]:
        """Traces of the message with this unique id, or of the messages with this key; empty if there is none.

        topic: the trace topic. Messages that are no trace are skipped; of a key, at most MESSAGES_MAX messages are returned.
        """
        try:
            messages = await self._messages.by_key(topic, text)
        except ResponseError as error:
            if error.code not in (ResponseCode.NO_MESSAGE, ResponseCode.QUERY_NOT_FOUND):
                raise
            return []
        records: list[tuple[TraceRecord, str]] = []
        for message in messages:
            try:
                records += [(record, message.record.born_host.ip) for record in decode_records(message.body.decode())]
            except (UnicodeDecodeError, SaturnError):
                continue
        return graphs(text, records[:RECORDS_MAX])


def graphs(text: str, records: Iterable[tuple[TraceRecord, str]]) -> list[MessageTrace]:
    """The traces that a message id or a key selects from records and the addresses of their clients. Pure."""
    traces: dict[str, MessageTrace] = {}
    deliveries: dict[tuple[str, str], Delivery] = {}
    for record, host in records:
        ids = record.message_id.split(",")
        if text not in ids and text not in (record.keys or "").split():
            continue
        name = text if text in ids else record.message_id
        if name not in traces and len(traces) == MESSAGES_MAX:
            continue
        trace = traces.setdefault(name, MessageTrace(name))
        if isinstance(record, Pub):
            trace.sends.append(SentRecord(record, host))
        elif isinstance(record, EndTransaction):
            trace.transactions.append(SentRecord(record, host))
        else:
            key = (name, record.request_id)
            if key not in deliveries:
                deliveries[key] = Delivery("", record.request_id, host)
            _add(deliveries[key], record)
    for (name, _), delivery in deliveries.items():
        traces[name].groups.setdefault(delivery.group, []).append(delivery)
    return list(traces.values())


def _add(delivery: Delivery, record: SubBefore | SubAfter) -> None:
    delivery.group = record.group or delivery.group
    if isinstance(record, SubBefore):
        delivery.begin_ms, delivery.retry_times = record.timestamp_ms, record.retry_times
    else:
        delivery.cost_ms, delivery.success = record.cost_ms, record.success
    if isinstance(record, SubAfter) and record.timestamp_ms:
        delivery.end_ms = record.timestamp_ms
    if delivery.end_ms == MISSING and delivery.begin_ms != MISSING and delivery.cost_ms != MISSING:
        delivery.end_ms = delivery.begin_ms + delivery.cost_ms  # records of old clients have no time
