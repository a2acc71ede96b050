"""Admin requests: topics, groups, configuration, statistics, cleaning.

Codes 17, 21, 25, 26, 200..202, 207, 208, 215, 300, 305, 306, 316, 329, 351, 352.

Requirements: NS-34, RT-02..RT-04, DEL-08, DEL-10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from saturnmq.broker.requests.context import AdminContext, ProgressContext, RuntimeContext
from saturnmq.broker.requests.table_row import decode_body
from saturnmq.broker.state.topics import QUEUES_MAX
from saturnmq.net import Connection
from saturnmq.protocol.bodies import (
    ConsumeStats,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from saturnmq.protocol.codes import (
    LMQ_PREFIX,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    ResponseCode,
)
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.names import group_problem, topic_problem
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.slices import LongAnswer, Steps
from saturnmq.statistics import LAST_MINUTE

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_NAMES_LOGGED = 20
ENTRIES_MAX = 80_000  # queues in one answer: more would not fit into a frame

log = logging.getLogger(__name__)


async def update_topic(
    ctx: AdminContext, connection: Connection, request: Command, header: h.UpdateAndCreateTopic
) -> Command:
    """Serve UPDATE_AND_CREATE_TOPIC (17): create or change a topic.

    Answers once every NameServer has it, or after the limit for one that does not respond (NS-34).
    """
    problem = topic_problem(header.topic)
    if problem is None and ctx.topics.is_system(header.topic):
        problem = f"The topic[{header.topic}] is conflict with system topic."
    for name, count in (("readQueueNums", header.read_queue_nums), ("writeQueueNums", header.write_queue_nums)):
        if problem is None and not 1 <= count <= QUEUES_MAX:
            problem = f"{name}={count} must be in 1..{QUEUES_MAX}"
    if problem is None and not 0 <= header.perm <= 15:
        problem = f"perm={header.perm} must be in 0..15"
    if problem is None and (header.topic_filter_type or _FILTER_TYPES[0]) not in _FILTER_TYPES:
        problem = f"topicFilterType={header.topic_filter_type!r:.80} must be one of {', '.join(_FILTER_TYPES)}"
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    existing = ctx.topics.get(header.topic)
    config = TopicConfig(
        header.topic,
        header.read_queue_nums,
        header.write_queue_nums,
        header.perm,
        header.topic_filter_type or _FILTER_TYPES[0],
        header.topic_sys_flag or 0,
        order=existing is not None and existing.order,  # NameServers decide, whose answer follows (NS-11)
    )
    # Then three waits: the group has it, it is on disk, the NameServers have it.
    ctx.topics.set(config)
    await ctx.topics.confirmed(header.topic)
    await ctx.registrar.wait_registered()
    return request.reply()


def all_topics(ctx: AdminContext, connection: Connection, request: Command, header: object) -> LongAnswer:
    """Serve GET_ALL_TOPIC_CONFIG (21)."""
    return ctx.slices.run(ctx.slices.reply(request, ctx.topics.pieces()))


def topic_config(ctx: AdminContext, connection: Connection, request: Command, header: h.GetTopicConfig) -> Command:
    """Serve GET_TOPIC_CONFIG (351): the settings of one topic."""
    config = ctx.topics.get(header.topic)
    if config is None:
        return request.reply(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
    return request.reply(body=config.encode())


def group_config(
    ctx: AdminContext, connection: Connection, request: Command, header: h.GetSubscriptionGroupConfig
) -> Command:
    """Serve GET_SUBSCRIPTIONGROUP_CONFIG (352): the settings of one consumer group."""
    config = ctx.groups.table.get(header.group)
    if config is None:
        text = f"No group in this broker. group: {header.group}"
        return request.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    return request.reply(body=config.encode())


async def delete_topic(ctx: AdminContext, connection: Connection, request: Command, header: h.TopicOnly) -> Command:
    """Serve DELETE_TOPIC_IN_BROKER (215): delete settings, consumer offsets and queues; records expire with the log."""
    problem = topic_problem(header.topic)
    if problem is None and ctx.topics.is_system(header.topic):
        problem = f"The topic[{header.topic}] is conflict with system topic."
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    ctx.topics.delete(header.topic)
    await ctx.topics.decided(header.topic)
    # `delete` answers for the state that the group has decided, which another request may have changed.
    if ctx.topics.exists(header.topic):
        return request.reply()  # created again meanwhile, and in use
    # Before the queues: a group must not start in the middle of a new topic of that name.
    ctx.offsets.remove_topic(header.topic)
    await ctx.removals.run(_deleting(ctx, {header.topic}))
    # The order of the files after a crash: no topic without settings, no offsets of a deleted one.
    await ctx.topics.writer.saved()
    await ctx.offsets.save()  # stale offsets would make groups start in the middle of a new topic of that name
    return request.reply()


def system_topics(ctx: AdminContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
    return request.reply(body=TopicList(sorted(ctx.topics.system | SYSTEM_TOPICS)).encode())


async def update_group(ctx: AdminContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
    config = decode_body(SubscriptionGroupConfig, request)
    problem = group_problem(config.group_name)
    if problem is None and not 0 <= config.retry_queue_nums <= QUEUES_MAX:
        problem = f"retryQueueNums={config.retry_queue_nums} must be in 0..{QUEUES_MAX}"
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    ctx.groups.set(config)
    await ctx.groups.confirmed(config.group_name)
    return request.reply()


def all_groups(ctx: AdminContext, connection: Connection, request: Command, header: object) -> LongAnswer:
    """Serve GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
    return ctx.slices.run(ctx.slices.reply(request, ctx.groups.pieces()))


async def delete_group(
    ctx: AdminContext, connection: Connection, request: Command, header: h.DeleteSubscriptionGroup
) -> Command:
    """Serve DELETE_SUBSCRIPTIONGROUP (207)."""
    ctx.groups.delete(header.group_name)
    await ctx.groups.decided(header.group_name)
    ctx.stats.deleted(group=header.group_name)
    if header.remove_offset:
        ctx.offsets.remove_group(header.group_name)
        await ctx.offsets.save()
    await ctx.groups.writer.saved()
    return request.reply()


def get_config(ctx: RuntimeContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_BROKER_CONFIG (26): `key=value` lines, secrets masked, and the version of the configuration."""
    version = ctx.configuration().version.encode().decode()
    return request.reply(ext=h.GetBrokerConfigResponse(version=version).to_ext(), body=ctx.config_text().encode())


async def update_config(ctx: RuntimeContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve UPDATE_BROKER_CONFIG (25) for the keys that may change at run time (SEC-07)."""
    await ctx.configuration().update(request.body or b"", connection.remote_address)
    return request.reply()


def topic_stats(ctx: ProgressContext, connection: Connection, request: Command, header: h.TopicOnly) -> LongAnswer:
    """Serve GET_TOPIC_STATS_INFO (202)."""
    config = ctx.topics.get(header.topic)
    if config is None:
        return request.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    return ctx.slices.run(_topic_stats(ctx, request, config))


def _topic_stats(ctx: ProgressContext, request: Command, config: TopicConfig) -> Steps[Command]:
    topic, table = config.topic_name, {}
    for queue_id in range(config.write_queue_nums):
        # Both are 0 for a queue that does not exist yet.
        low, high = (f(topic, queue_id) for f in (ctx.store.min_offset, ctx.store.max_offset))
        updated = ctx.store.store_time(topic, queue_id, QueueOffset(high - 1)) if high > 0 else 0
        queue = MessageQueue(topic, ctx.settings.broker_name, queue_id)
        table[queue] = TopicOffset(max(low, 0), max(high, 0), max(updated, 0))
        yield
    return (yield from ctx.slices.reply(request, TopicStatsTable(table)))


def read_width(config: TopicConfig) -> int:
    """Number of read queues."""
    return config.read_queue_nums


def write_width(config: TopicConfig) -> int:
    """Number of write queues."""
    return config.write_queue_nums


def consume_stats(
    ctx: ProgressContext, connection: Connection, request: Command, header: h.GetConsumeStats
) -> LongAnswer:
    """Serve GET_CONSUME_STATS (208)."""
    group = header.consumer_group
    # Without a topic, all for which the group has offsets.
    topics = [header.topic] if header.topic and header.topic.strip() else ctx.offsets.topics_of(group)
    return ctx.slices.run(_consume_stats(ctx, request, group, topics))


def _consume_stats(ctx: ProgressContext, request: Command, group: str, topics: list[str]) -> Steps[Command]:
    return (yield from ctx.slices.reply(request, (yield from consume_stats_of(ctx, group, topics))))


def consume_stats_of(
    ctx: ProgressContext,
    group: str,
    topics: list[str],
    width: Callable[[TopicConfig], int] = read_width,
    entries_max: int = ENTRIES_MAX,
) -> Steps[ConsumeStats]:
    """A group's progress in these topics; topics that an online group does not subscribe any more are omitted.

    width: number of queues that are listed. Raises ResponseError for more than entries_max queues.
    """
    # An online group shows what it subscribes to now; an offline one everything that it has offsets for.
    live = ctx.clients.consumers.get(group)
    stats = ConsumeStats()
    for topic in topics:
        config = ctx.topics.get(topic)
        subscribed = live is None or not live.subscriptions or topic in live.subscriptions
        if config is None or not subscribed:
            yield
            continue
        # A frame limits the answer, and the caller can ask for parts.
        if len(stats.offset_table) + width(config) > entries_max:
            text = f"the answer would have more than {ENTRIES_MAX} queues; ask for single groups and topics (code 208)"
            raise response_error(ResponseCode.SYSTEM_ERROR, text)
        for queue_id in range(width(config)):
            queue = MessageQueue(topic, ctx.settings.broker_name, queue_id)
            high = max(ctx.store.max_offset(topic, queue_id), 0)
            # A negative offset counts as none, as for code 14.
            consumed = max(ctx.offsets.get(topic, group, queue_id) or 0, 0)
            stored = ctx.store.store_time(topic, queue_id, QueueOffset(consumed - 1)) if consumed > 0 else 0
            stats.offset_table[queue] = OffsetWrapper(high, consumed, max(stored, 0))
            yield
        counted = ctx.stats.sets.find("GROUP_GET_NUMS", f"{topic}@{group}")
        stats.consume_tps += counted.over(LAST_MINUTE).tps if counted is not None else 0.0
    return stats


def groups_of_topic(ctx: ProgressContext, connection: Connection, request: Command, header: h.TopicOnly) -> LongAnswer:
    """Serve QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe the topic or have offsets for it."""
    # Groups that subscribe and have not committed yet are found through their members.
    live = [group.name for group in ctx.clients.consumers.values() if header.topic in group.subscriptions]
    names = list(dict.fromkeys([*live, *ctx.offsets.groups_of(header.topic)]))
    return ctx.slices.run(ctx.slices.reply(request, GroupList(names)))


async def clean_expired_queues(ctx: AdminContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve CLEAN_EXPIRED_CONSUMEQUEUE (306): delete consume queues whose last message was deleted from the log (DEL-10)."""
    # The queues of delayed messages are read by the broker itself, also when their records have expired.
    removed = await ctx.removals.run(ctx.store.deleting_expired_queues(keep=(SCHEDULE_TOPIC, TIMER_TOPIC)))
    log.info("expired consume queues cleaned by=%s removed=%s", connection.remote_address, removed)
    return request.reply()


async def clean_unused_topics(ctx: AdminContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve CLEAN_UNUSED_TOPIC (316): delete consume queues of topics that are not configured any more (DEL-10)."""
    used_topics = {SCHEDULE_TOPIC, TIMER_TOPIC, OP_HALF_TOPIC, *ctx.topics.names()}
    # Queues of light message queues (LMQ) have no topic settings of their own.
    unused = {
        topic for topic, _ in ctx.store.topic_queues() if topic not in used_topics and not topic.startswith(LMQ_PREFIX)
    }
    names = sorted(unused)[:_NAMES_LOGGED]
    log.info("unused topics cleaned by=%s count=%s first=%s", connection.remote_address, len(unused), names)
    await ctx.removals.run(_deleting(ctx, unused))
    return request.reply()


def _deleting(ctx: AdminContext, topics: set[str]) -> Steps[None]:
    """Delete the queues of topics, in steps, and what statistics have of them."""
    yield from ctx.store.deleting_topics(topics)
    for topic in topics:
        ctx.stats.deleted(topic=topic)
        yield


def delete_expired_files(ctx: AdminContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve DELETE_EXPIRED_COMMITLOG (329): the next cleaning runs delete expired files at any hour (DEL-08)."""
    log.info("deletion of expired commit log files requested by=%s", connection.remote_address)
    ctx.store.delete_expired_files()
    return request.reply()
