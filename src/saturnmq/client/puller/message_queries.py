"""Message queries of a client: by offset id, by unique id, by key and time.

Requirements: PR-02, PR-31, TR-09.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from saturnmq.client import namespaces
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection.core import Core
from saturnmq.client.message import Message
from saturnmq.errors import CallTimeout, ConnectFailed
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import MessageError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.message import decode_records

logger = logging.getLogger(__name__)

LAST_MOMENT_MS: Final = 2**63 - 1
UNIQUE_KEY_COUNT: Final = 32
# Queries claim release 4.9.3: up to it, Apache 5 leaves _UNIQUE_KEY_QUERY out of the signed fields, as 4.9 does for every client.
_QUERY_VERSION: Final = 399


@dataclass(frozen=True, slots=True)
class Span:
    """A time range in Unix ms."""

    begin_ms: int = 0
    end_ms: int = LAST_MOMENT_MS


def span_of(begin: int | datetime, end: int | datetime | None) -> Span:
    """Build a Span from Unix ms or aware datetimes; an `end` of None is unbounded."""

    def milliseconds(when: int | datetime) -> int:
        return int(when.timestamp() * 1000) if isinstance(when, datetime) else when

    return Span(milliseconds(begin), LAST_MOMENT_MS if end is None else milliseconds(end))


async def view_message(core: Core, message_id: str, topic: str | None = None) -> Message[bytes]:
    """Look up a message by offset id, or, if a topic is given, the oldest one with this unique id (PR-02, ADM-19).

    Raises NoMessage (208) when nothing is found, MessageError for an id that is neither.
    """
    try:
        host, offset = parse_offset_message_id(message_id)
    except MessageError:
        if topic is None:
            raise
    else:
        where = join_host_port(*host)
        command = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)})
        try:
            answer = await core.call_broker(core.channel_address(where), command, core.settings.api_timeout_ms)
            records = decode_records(answer.body or b"")
            if records:
                return _message(core, records[0])
        except SaturnError:
            if topic is None:
                raise  # a unique id has the same form: try it below
    if topic is not None:
        matches = await query_messages(core, topic, message_id, UNIQUE_KEY_COUNT, Span(), unique=True)
        if matches:
            return matches[0]
    raise response_error(ResponseCode.NO_MESSAGE, f"no message has the id {message_id}")


async def query_messages(
    core: Core,
    topic: str,
    key: str,
    max_count: int,
    span: Span,
    *,
    unique: bool = False,
    outside_namespace: bool = False,
    timeout_ms: int | None = None,
) -> list[Message[bytes]]:
    """Messages with this key in the indexes of all brokers, oldest first, at most `max_count`. Raises RouteNotFound (PR-02).

    unique: the key is a unique message id. outside_namespace: the topic belongs to none. Brokers that do not answer are skipped,
    unless none does. timeout_ms: for each broker, by default that of the client.
    """
    wire = topic if outside_namespace else namespaces.wrap(core.settings.namespace, topic)
    route = await core.read_route(wire)
    brokers = [ids[min(ids)] for _, ids in sorted(route.addresses.items()) if ids]  # masters, or slaves without one
    addresses = [core.channel_address(address) for address in brokers]
    ext = {
        "topic": wire,
        "key": key,
        "maxNum": str(max_count),
        "beginTimestamp": str(span.begin_ms),
        "endTimestamp": str(span.end_ms),
        "_UNIQUE_KEY_QUERY": "true" if unique else "false",
    }
    outcomes = await asyncio.gather(*(_query_one(core, address, dict(ext), timeout_ms) for address in addresses))
    errors = [outcome for outcome in outcomes if isinstance(outcome, SaturnError)]
    if errors and len(errors) == len(outcomes):
        raise errors[0]
    message_by_id: dict[str, Message[bytes]] = {}
    for outcome in outcomes:
        for record in [] if isinstance(outcome, SaturnError) else outcome:
            if record.topic == wire and _has_key(record, key, unique=unique):  # the index stores key hashes only
                message = _message(core, record)
                message_by_id[message.offset_message_id] = message
    return sorted(message_by_id.values(), key=lambda message: message.stored_at)[:max_count]


async def _query_one(
    core: Core, address: str, ext: dict[str, str], timeout_ms: int | None
) -> list[Record] | SaturnError:
    try:
        within_ms = core.settings.api_timeout_ms if timeout_ms is None else timeout_ms
        query = Command(RequestCode.QUERY_MESSAGE, ext=ext, version=_QUERY_VERSION)
        answer = await core.remote.call(address, query, within_ms)
    except (ConnectFailed, CallTimeout) as error:
        return error
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    if answer.code != ResponseCode.SUCCESS:
        return core.answer_error(answer, address, topic=ext["topic"])
    return decode_records(answer.body or b"")


def _has_key(record: Record, key: str, *, unique: bool) -> bool:
    if unique:
        return record.properties.get(PropertyKey.UNIQ_KEY) == key
    return key in (record.keys or "").split()


def _message(core: Core, record: Record) -> Message[bytes]:
    namespace = core.settings.namespace
    topic = namespaces.strip(namespace, record.topic)
    queue = MessageQueue(topic=topic, broker_name="", queue_id=record.queue_id)
    return Message(record, queue, BytesCodec(), None, namespace)
