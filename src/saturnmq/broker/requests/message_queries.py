"""Requests that read single messages: query by key (12), view by offset (33).

Requirements: IX-03.
"""

from __future__ import annotations

from typing import Final

from saturnmq.broker.requests.context import MessageContext
from saturnmq.net import Connection
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.message import MESSAGE_MAGIC, decode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.slices import LongAnswer, Steps
from saturnmq.store import MessageStore
from saturnmq.store.results import QueryResult

_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)


def view(ctx: MessageContext, connection: Connection, request: Command, header: h.ViewMessageById) -> Command:
    """Serve VIEW_MESSAGE_BY_ID (33)."""
    record = record_at(ctx.store, header.offset)
    if record is None:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
    return request.reply(body=record)


def query(ctx: MessageContext, connection: Connection, request: Command, header: h.QueryMessage) -> LongAnswer:
    """Serve QUERY_MESSAGE (12) by key or unique key.

    The index has only hashes of topic and key, so clients must compare the keys (IX-03). Messages of other topics whose hash is
    equal are left out here: the caller may have no right on them. Other keys may share a slot of the index with this one, millions
    of entries, so the search runs in slices (LIM-09), other long requests do not wait for its end, and each host has a share of the
    places of those that wait (LIM-13).
    """
    count = ctx.store.settings.unique_query_count_max if header.unique_key_query else header.max_num

    def answered() -> Steps[Command]:
        span = header.begin_timestamp, header.end_timestamp
        query_result = yield from ctx.store.query_steps(header.topic, header.key, count, *span)
        return (yield from _answer(request, header.topic, query_result))

    # By host, so that one client cannot take all places.
    return ctx.slices.run(answered(), patient=host_of(connection.remote_address))


def _answer(request: Command, topic: str, query_result: QueryResult) -> Steps[Command]:
    answer = h.QueryMessageResponse(
        index_last_update_timestamp=query_result.last_update_ms,
        index_last_update_phyoffset=query_result.last_update_offset,
    )
    records = []
    for record in query_result.records:
        # Equal hashes of another topic: the caller may have no right on it.
        if decode_record(record).topic == topic:
            records.append(record)
        yield
    if not records:
        text = "can not find message, maybe time range not correct"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, text, ext=answer.to_ext())
    return request.reply(ext=answer.to_ext(), body=b"".join(records))


def record_at(store: MessageStore, offset: int) -> bytes | None:
    """The record that starts at this offset, else None.

    A record holds its own offset, so bytes inside another record are not accepted even if they look like one.
    """
    record = store.read_record(PhysicalOffset(offset))
    # The stored offset must be the one asked for: bytes inside a body are no record.
    if record is None or record[:8][4:] != _MAGIC or int.from_bytes(record[28:36], "big") != offset:
        return None
    return record
