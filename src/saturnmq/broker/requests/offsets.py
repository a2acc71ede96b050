"""Offset requests: of consumers (14, 15, 43), queues (29..32) and delay levels (45).

Requirements: OF-04, OF-05.
"""

from __future__ import annotations

from saturnmq.broker.requests.context import OffsetContext
from saturnmq.broker.requests.pages import PAGE_BYTES, groups_from
from saturnmq.broker.services.delay import END_FIELD
from saturnmq.broker.services.timer import PROGRESS_FIELD
from saturnmq.broker.services.transactions import GROUP as TRANSACTION_GROUP
from saturnmq.net import Connection
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.names import group_problem, topic_problem
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.slices import LongAnswer, Steps


def query(ctx: OffsetContext, connection: Connection, request: Command, header: h.QueryConsumerOffset) -> Command:
    """Serve QUERY_CONSUMER_OFFSET (14): without an offset, 0 while the queue's first message is still in memory (OF-04).

    A negative offset counts as none: some clients commit -1 for queues that they have not read yet.
    """
    topic, queue_id = header.topic, header.queue_id
    offset = ctx.offsets.get(topic, header.consumer_group, queue_id)
    # Some clients commit -1 for queues that they have not read.
    if offset is not None and offset >= 0:
        return request.reply(ext={"offset": str(offset)})
    if ctx.store.min_offset(topic, queue_id) <= 0:
        first = ctx.store.physical_offset(topic, queue_id, QueueOffset(0))
        # In memory since its begin: the group starts at the first message, else by its own rule (CONSUME_FROM).
        if first < 0 or not ctx.store.on_disk(first):
            return request.reply(ext={"offset": "0"})
    text = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    return request.reply(ResponseCode.QUERY_NOT_FOUND, text)


def update(ctx: OffsetContext, connection: Connection, request: Command, header: h.UpdateConsumerOffset) -> LongAnswer:
    """Serve UPDATE_CONSUMER_OFFSET (15), only for an existing queue, so that no offsets remain of a deleted topic (OF-05).

    The group must exist too, or be created within the quota: invented names would use up consumerOffsetsMax for all others.
    """
    topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
    # Before the check, which may create it.
    group_existed = group in ctx.groups.table
    check_commit(ctx, connection, topic, group, queue_id)
    if not ctx.offsets.set(topic, group, queue_id, header.commit_offset, connection.remote_address):
        raise response_error(ResponseCode.SYSTEM_BUSY, "too many groups have offsets here (consumerOffsetsMax)")
    return request.reply() if group_existed else _after_group(ctx, request, group)


def check_commit(ctx: OffsetContext, connection: Connection, topic: str, group: str, queue_id: int) -> None:
    """Raise ResponseError unless the queue exists and the group may have offsets; creates a group that may be created."""
    problem = topic_problem(topic) or group_problem(group)
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    if group == TRANSACTION_GROUP:  # a restart would skip the half messages before the offset
        text = f"group[{TRANSACTION_GROUP}] is the broker's own, its offsets are not committed by clients"
        raise response_error(ResponseCode.NO_PERMISSION, text)
    if ctx.groups.find(group, connection.remote_address) is None:
        text = f"subscription group not exist, {group}"
        raise response_error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    config = ctx.topics.get(topic)
    if config is None:
        raise response_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    width = max(config.read_queue_nums, config.write_queue_nums)
    if not 0 <= queue_id < width:
        text = f"queueId[{queue_id}] is illegal, topic:[{topic}] has {width} queues"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)


async def _after_group(ctx: OffsetContext, request: Command, group: str) -> Command:
    """The answer to a commit that has created its group."""
    await ctx.groups.decided(group)
    return request.reply()


def all_consumer_offsets(
    ctx: OffsetContext, connection: Connection, request: Command, header: h.GetAllConsumerOffset
) -> LongAnswer:
    """Serve GET_ALL_CONSUMER_OFFSET (43), in pages if asked for."""
    if not header.paged:
        return ctx.slices.run(ctx.slices.reply(request, ctx.offsets.pieces()))
    return ctx.slices.run(_page(ctx, request, groups_from(ctx.offsets.groups(), header.start_group)))


def _page(ctx: OffsetContext, request: Command, groups: list[str]) -> Steps[Command]:
    parts: list[bytes] = []
    size, following = 0, None
    for group in groups:
        # A page ends with the group that reaches the size; a single one may exceed it.
        if size >= PAGE_BYTES:
            following = group
            break
        part = yield from ctx.slices.joined(ctx.offsets.entries(group))
        # The frame's limit: this group begins the next page.
        if parts and size + len(part) > ctx.slices.body_bytes_max:
            following = group
            break
        if part:
            parts.append(part)
            size += len(part) + 1
        yield
    body = yield from ctx.slices.joined(iter((b'{"offsetTable":{', b",".join(parts), b"}}")))
    return request.reply(body=body, ext=h.GroupPage(next_group=following).to_ext())


def all_delay_offsets(ctx: OffsetContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_ALL_DELAY_OFFSET (45): progress of each delay level; for our slaves and followers also of timed messages."""
    # Slaves and followers compare their progress with the end of the log.
    ext = {END_FIELD: str(ctx.store.log.end)}
    progress = ctx.master.timer.published_progress()
    if progress is not None:
        ext[PROGRESS_FIELD] = progress
    return request.reply(ext=ext, body=ctx.master.delay.encode())


def by_time(ctx: OffsetContext, connection: Connection, request: Command, header: h.SearchOffsetByTimestamp) -> Command:
    """Serve SEARCH_OFFSET_BY_TIMESTAMP (29)."""
    offset = ctx.store.offset_by_time(header.topic, header.queue_id, header.timestamp)
    return request.reply(ext={"offset": str(offset)})


def maximum(ctx: OffsetContext, connection: Connection, request: Command, header: h.TopicQueue) -> Command:
    """Serve GET_MAX_OFFSET (30)."""
    return request.reply(ext={"offset": str(ctx.store.max_offset(header.topic, header.queue_id))})


def minimum(ctx: OffsetContext, connection: Connection, request: Command, header: h.TopicQueue) -> Command:
    """Serve GET_MIN_OFFSET (31)."""
    return request.reply(ext={"offset": str(ctx.store.min_offset(header.topic, header.queue_id))})


def earliest_store_time(ctx: OffsetContext, connection: Connection, request: Command, header: h.TopicQueue) -> Command:
    """Serve GET_EARLIEST_MSG_STORETIME (32): Unix ms, -1 for an empty queue."""
    first = ctx.store.min_offset(header.topic, header.queue_id)
    return request.reply(ext={"timestamp": str(ctx.store.store_time(header.topic, header.queue_id, first))})
