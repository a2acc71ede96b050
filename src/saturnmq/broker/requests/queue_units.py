"""The units of a consume queue, as an operator sees them (321).

Requirements: RT-13.
"""

from __future__ import annotations

import json
from typing import Final

from saturnmq.broker.requests.context import ProgressContext
from saturnmq.filter import GroupFilter, is_tag_kind, tag_filter
from saturnmq.net import Connection
from saturnmq.protocol.bodies import ConsumeQueueData, QueryConsumeQueueResponse, SubscriptionData
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.json_dialect import dumps
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.slices import LongAnswer, Steps
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.store.queue.queue_extension import ADDRESS_MAX

UNITS_MAX: Final = 4096  # in one response


def queue_units(
    ctx: ProgressContext, connection: Connection, request: Command, header: h.QueryConsumeQueue
) -> LongAnswer:
    """Serve QUERY_CONSUME_QUEUE (321): units from an index on, and whether the group's subscription accepts each.

    An index outside the queue is answered with success, the bounds, no units and a remark; an unknown queue with code 1.
    """
    topic, queue_id = header.topic or "", header.queue_id
    queue = ctx.store.queues.get((topic, queue_id))
    if queue is None:
        raise response_error(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    body = QueryConsumeQueueResponse(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
    if header.consumer_group:
        live = ctx.clients.consumers.get(header.consumer_group)
        body.subscription_data = live.subscriptions.get(topic) if live is not None else None
    accepts = _Accepts(body.subscription_data, ctx.filters.groups.get(topic, header.consumer_group or ""))
    if header.consumer_group:
        offline = f"{header.consumer_group}@{topic} is not online!"
        body.filter_data = accepts.shown if body.subscription_data is not None else offline
    # An index outside the queue is no error: SUCCESS with a remark (RT-13).
    if not queue.min_offset <= header.index < queue.max_offset:
        text = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        return request.reply(ResponseCode.SUCCESS, text, body=body.encode())
    return ctx.slices.run(_units(ctx, request, body, queue, header, accepts))


class _Accepts:
    """Whether a subscription accepts a unit, by what the queue and its extension hold of it. shown: the filter's record as JSON."""

    def __init__(self, subscription: SubscriptionData | None, record: GroupFilter | None) -> None:
        self._unsubscribed = subscription is None
        # Tags are compared by their codes, which the unit has; other expressions by the filter's record.
        tags = subscription is not None and is_tag_kind(subscription.expression_type)
        self._codes = tag_filter(subscription.sub_string).codes if subscription is not None and tags else None
        self._record = record if not tags else None
        self.shown = dumps(self._record.to_body().to_json()).decode() if self._record is not None else "null"

    def unit(self, code: int, store_ms: int, bit_map: bytes) -> bool:
        """Whether it accepts a message with these: tags code, store time, bit map of the extension."""
        if self._unsubscribed:
            return False
        if self._record is not None:
            return self._record.by_extension(store_ms, bit_map)
        return self._codes is None or code in self._codes


def _units(
    ctx: ProgressContext,
    request: Command,
    body: QueryConsumeQueueResponse,
    queue: ConsumeQueue,
    header: h.QueryConsumeQueue,
    accepts: _Accepts,
) -> Steps[Command]:
    # A negative count is none.
    count = min(max(header.count, 0), UNITS_MAX)
    for offset, (physical_offset, size, code) in queue.units(QueueOffset(header.index), count):
        unit = ConsumeQueueData(physical_offset, size, code)
        content = queue.extension_of(offset)
        if content is not None:
            unit.bit_map = bits(content.bit_map) or None
            unit.extend_data_json = json.dumps(
                {"bitMap": content.bit_map.hex(), "msgStoreTime": content.store_ms, "tagsCode": content.tags_code}
            )
        # The unit points to an extension that was deleted or is not readable.
        elif code <= ADDRESS_MAX:
            unit.msg = f"Cq extend not exist!addr: {code}"
        unit.eval = accepts.unit(code, content.store_ms if content else 0, content.bit_map if content else b"")
        body.queue_data.append(unit)
        yield
    return (yield from ctx.slices.reply(request, body))


def bits(bit_map: bytes) -> str:
    """A bit map as text, the highest bit first, as Apache RocketMQ prints it."""
    # The first byte has the lowest bits.
    return "".join(f"{byte:08b}" for byte in reversed(bit_map))
