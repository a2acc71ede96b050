"""Admin requests on the progress of consumer groups (222, 303, 308, 314, 317).

Requirements: OF-06, OF-07, RT-05.
"""

from __future__ import annotations

import logging

from saturnmq.broker.requests.admin import ENTRIES_MAX, consume_stats_of, write_width
from saturnmq.broker.requests.context import ProgressContext
from saturnmq.broker.requests.pages import PAGE_BYTES, groups_from
from saturnmq.broker.requests.relay import require_offset_push
from saturnmq.net import ConnectFailed, Connection
from saturnmq.protocol.bodies import (
    ConsumeTimeSpans,
    MessageQueue,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
    TopicConfig,
)
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.json_dialect import dumps
from saturnmq.protocol.names import group_problem
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.slices import LongAnswer, Steps

log = logging.getLogger(__name__)

_LONG_MAX = 2**63 - 1  # answered for a queue in which compareGroup is behind the minimum
_TO_THE_END = -1  # timestamp for the end of the queue


def reset(ctx: ProgressContext, connection: Connection, request: Command, header: h.ResetOffset) -> LongAnswer:
    """Serve INVOKE_BROKER_TO_RESET_OFFSET (222): push the offsets at a time (220) to every member; 206 if no member is online.

    Without isForce no queue moves forward. A queue without a committed offset starts at the time. Clients in C++ get the list
    form of the offsets. With that language in the request (mqadmin resetOffsetByTime -c) all clients do but those in Java.
    """
    topic, group = header.topic, header.group
    config = ctx.topics.get(topic)
    if config is None:
        text = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    # A group without offsets for the topic has never consumed it.
    if not any(0 <= queue_id < config.write_queue_nums for queue_id in ctx.offsets.of(topic, group)):
        raise response_error(ResponseCode.SYSTEM_ERROR, f"the consumer group <{group}> not exist")
    return ctx.slices.run(_reset(ctx, connection, request, header, config))


def _reset(
    ctx: ProgressContext, connection: Connection, request: Command, header: h.ResetOffset, config: TopicConfig
) -> Steps[Command]:
    topic, group = header.topic, header.group
    body = ResetOffsetBody()
    for queue_id in range(config.write_queue_nums):
        now = ctx.offsets.get(topic, group, queue_id)
        offset_at_time = _offset_at(ctx, topic, queue_id, header.timestamp)
        # Only backwards, unless forced: a reset must not skip messages by mistake.
        chosen = offset_at_time if header.is_force or now is None else min(offset_at_time, now)
        body.offset_table[MessageQueue(topic, ctx.settings.broker_name, queue_id)] = QueueOffset(chosen)
        yield
    live = ctx.clients.consumers.get(group)
    if live is None or not live.members:
        text = (
            f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {header.timestamp}"
        )
        return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, text)
    require_offset_push(live)
    as_map = yield from ctx.slices.joined(body.pieces())
    as_list, for_cpp = b"", request.language == Language.CPP
    for member, info in list(live.members.items()):
        # C++ clients read the list form only.
        wants_list = info.language == Language.CPP or (for_cpp and info.language != Language.JAVA)
        # Built once, and only if a member needs it.
        if wants_list and not as_list:
            as_list = yield from ctx.slices.joined(body.list_pieces())
        push = Command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext=header.to_ext(), body=as_list if wants_list else as_map
        )
        try:
            # Pushed without an answer, as in Apache RocketMQ: members apply it when they can.
            member.invoke_oneway(push)
        except ConnectFailed as error:
            log.warning("offsets not pushed group=%s client=%s error=%s", group, info.client_id, error)
        yield
    log.info("offsets reset group=%s topic=%s time_ms=%s force=%s by=%s", group, topic, header.timestamp,
             header.is_force, connection.remote_address)  # fmt: skip
    return request.reply(body=as_map)


def _offset_at(ctx: ProgressContext, topic: str, queue_id: int, time_ms: int) -> int:
    if time_ms == _TO_THE_END:
        return max(ctx.store.max_offset(topic, queue_id), 0)
    return max(ctx.store.offset_by_time(topic, queue_id, time_ms), 0)


def time_span(
    ctx: ProgressContext, connection: Connection, request: Command, header: h.QueryConsumeTimeSpan
) -> LongAnswer:
    """Serve QUERY_CONSUME_TIME_SPAN (303): first, last and consumed time per queue, and how long the next message has waited."""
    config = ctx.topics.get(header.topic)
    if config is None:
        raise response_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    return ctx.slices.run(_time_span(ctx, request, config, header.group))


def _time_span(ctx: ProgressContext, request: Command, config: TopicConfig, group: str) -> Steps[Command]:
    spans = []
    for queue_id in range(config.write_queue_nums):
        spans.append(_span(ctx, config, group, queue_id))
        yield
    return (yield from ctx.slices.reply(request, ConsumeTimeSpans(spans)))


def _span(ctx: ProgressContext, config: TopicConfig, group: str, queue_id: int) -> QueueTimeSpan:
    store, topic = ctx.store, config.topic_name
    low, high = max(store.min_offset(topic, queue_id), 0), max(store.max_offset(topic, queue_id), 0)
    consumed = ctx.offsets.get(topic, group, queue_id) or 0

    def stored(offset: int) -> int:
        return store.store_time(topic, queue_id, QueueOffset(offset))

    first, last = stored(low), stored(high - 1)
    reached = stored(consumed - 1) if consumed > 0 else first
    # The oldest message that the group has not consumed.
    waits = stored(max(consumed, low)) if consumed < high else -1
    return QueueTimeSpan(
        MessageQueue(topic, ctx.settings.broker_name, queue_id),
        first,
        last,
        reached,
        max(ctx.clock_ms() - waits, 0) if waits >= 0 else 0,
    )


def correction(
    ctx: ProgressContext, connection: Connection, request: Command, header: h.QueryCorrectionOffset
) -> LongAnswer:
    """Serve QUERY_CORRECTION_OFFSET (308): the smallest offset of all groups per queue.

    2**63 - 1 where compareGroup is behind it. filterGroups are excluded (Apache RocketMQ deletes their offsets), as are offsets
    of messages that were deleted.
    """
    return ctx.slices.run(_correction(ctx, request, header))


def _correction(ctx: ProgressContext, request: Command, header: h.QueryCorrectionOffset) -> Steps[Command]:
    left_out = {name for name in (header.filter_groups or "").split(",") if name}
    least: dict[int, int] = {}
    for group in ctx.offsets.groups_of(header.topic):
        if group in left_out:
            continue
        for queue_id, offset in ctx.offsets.of(header.topic, group).items():
            # Offsets before the queue's first message say nothing.
            if offset >= ctx.store.min_offset(header.topic, queue_id):
                least[queue_id] = min(offset, least.get(queue_id, _LONG_MAX))
            yield
    for queue_id, offset in ctx.offsets.of(header.topic, header.compare_group).items():
        # compareGroup is behind the smallest offset: Long.MAX_VALUE says that there is nothing to correct.
        if least.get(queue_id, _LONG_MAX) > offset:
            least[queue_id] = _LONG_MAX
    return (yield from ctx.slices.reply(request, QueryCorrectionOffsetBody(least)))


async def clone(ctx: ProgressContext, connection: Connection, request: Command, header: h.CloneGroupOffset) -> Command:
    """Serve CLONE_GROUP_OFFSET (314): copy offsets of srcGroup to destGroup, for one topic or all that it has offsets for.

    Unless `offline`, topics that an online srcGroup does not subscribe any more are skipped.
    """
    problem = group_problem(header.dest_group)
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    await ctx.slices.result(_clone(ctx, header, connection.remote_address))
    await ctx.offsets.save()
    return request.reply()


def _clone(ctx: ProgressContext, header: h.CloneGroupOffset, peer: str) -> Steps[None]:
    live = ctx.clients.consumers.get(header.src_group)
    subscribed = live.subscriptions if live is not None and not header.offline else {}
    for topic in [header.topic] if header.topic else ctx.offsets.topics_of(header.src_group):
        # A topic that the live group has unsubscribed would be consumed again by the clone.
        if ctx.topics.get(topic) is None or (subscribed and topic not in subscribed):
            log.warning("offsets not cloned topic=%s from=%s to=%s", topic, header.src_group, header.dest_group)
            continue
        for queue_id, offset in ctx.offsets.of(topic, header.src_group).items():
            if not ctx.offsets.set(topic, header.dest_group, queue_id, offset, peer):
                raise response_error(ResponseCode.SYSTEM_BUSY, "too many groups have offsets here (consumerOffsetsMax)")
            yield


def all_consume_stats(
    ctx: ProgressContext, connection: Connection, request: Command, header: h.GetBrokerConsumeStats
) -> LongAnswer:
    """Serve GET_BROKER_CONSUME_STATS (317): progress of every group in write queues, in pages if asked for.

    With isOrder for ordered topics only.
    """
    return ctx.slices.run(_all_consume_stats(ctx, request, header))


def _all_consume_stats(ctx: ProgressContext, request: Command, header: h.GetBrokerConsumeStats) -> Steps[Command]:
    """The body is a ConsumeStatsList, encoded topic by topic; with paged, as many groups as fit."""
    parts: list[bytes] = []
    size, total, remaining_entries, following = 0, 0, ENTRIES_MAX, None
    for group in groups_from(ctx.groups.table, header.start_group if header.paged else None):
        if header.paged and size >= PAGE_BYTES:
            following = group
            break
        try:
            part, entries, lag = yield from _group_stats(ctx, group, header.is_order, remaining_entries)
        except ResponseError:
            if not header.paged or not parts:
                raise
            following = group  # it gets a page of its own
            break
        parts.append(part)
        size, total, remaining_entries = size + len(part) + 1, total + lag, remaining_entries - entries
    head = b'{"brokerAddr":%b,"consumeStatsList":[' % dumps(ctx.identity.address)
    body = yield from ctx.slices.joined(iter((head, b",".join(parts), b'],"totalDiff":%d}' % total)))
    return request.reply(body=body, ext=h.GroupPage(next_group=following).to_ext())


def _group_stats(
    ctx: ProgressContext, group: str, ordered: bool, remaining_entries: int
) -> Steps[tuple[bytes, int, int]]:
    """The entry of a group, the number of its queues and their lag. Raises ResponseError for more than `remaining_entries`."""
    topic_stats, entries, lag = [], 0, 0
    for topic in ctx.offsets.topics_of(group):
        config = ctx.topics.get(topic)
        if config is None or (ordered and not config.order):
            yield
            continue
        stats = yield from consume_stats_of(ctx, group, [topic], write_width, remaining_entries - entries)
        if stats.offset_table:
            entries += len(stats.offset_table)
            lag += sum(o.broker_offset - o.consumer_offset for o in stats.offset_table.values())
            topic_stats.append((yield from ctx.slices.joined(stats.pieces())))
    yield
    return b"{%b:[%b]}" % (dumps(group), b",".join(topic_stats)), entries, lag
