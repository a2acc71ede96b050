"""Messages that a consumer sends back after a failure (36): a copy in the group's retry topic or dead-letter queue.

Requirements: RTY-01..RTY-06.
"""

from __future__ import annotations

from typing import Final

from saturnmq.broker.requests.context import SendContext
from saturnmq.broker.requests.message_queries import record_at
from saturnmq.broker.requests.send import refused_at_arrival, refused_while_flush_lags
from saturnmq.broker.services.delay import scheduled
from saturnmq.net import Connection
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.codes import (
    DLQ_PREFIX,
    EXACT_DELAY_FIELD,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_LIMIT_MS,
    VERSION_MAX_RECONSUME,
    Perm,
    PropertyKey,
    ResponseCode,
)
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import Message, decode_record
from saturnmq.protocol.properties import find, with_property
from saturnmq.slices import LongAnswer
from saturnmq.store import PutResult, PutStatus

_FIRST_RETRY_LEVEL: Final = 3


def send_back(ctx: SendContext, connection: Connection, request: Command, header: h.ConsumerSendMsgBack) -> LongAnswer:
    """Serve CONSUMER_SEND_MSG_BACK (36): store a copy in the group's retry topic, delayed, or in its DLQ (RTY-02..RTY-06).

    The copy is made within the turn of the connection: a request of 100 bytes may append 4 MiB.
    """
    # Before the record is read, which costs more than the request.
    refused = refused_at_arrival(ctx, request, {})
    if refused is not None:
        return refused
    group = ctx.groups.find(header.group, connection.remote_address)
    if group is None:
        text = f"subscription group not exist, {header.group}"
        raise response_error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    if not ctx.settings.broker_permission & Perm.WRITE:
        raise response_error(
            ResponseCode.NO_PERMISSION, f"the broker[{ctx.identity.store_host.ip}] sending message is forbidden"
        )
    # A group without retry queues gives the message up, as in Apache RocketMQ.
    if group.retry_queue_nums <= 0:
        return request.reply()
    # Before the message is read, as in Apache RocketMQ: also for one that is absent or becomes a dead letter.
    topic, width = RETRY_PREFIX + header.group, group.retry_queue_nums
    config = _writable_topic(ctx, topic, width, connection.remote_address)
    record = record_at(ctx.store, header.offset)
    if record is None:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    # Again, for the size of the copy.
    refused = refused_while_flush_lags(ctx, request, len(record), {})
    if refused is not None:
        return refused
    original = decode_record(record)
    most = group.retry_max_times
    # The client's own limit counts if it sends one.
    if request.version >= VERSION_MAX_RECONSUME and header.max_reconsume_times is not None:
        most = header.max_reconsume_times
    # Spreads copies over the retry queues by the message's own queue offset.
    queue_id = original.queue_offset % width
    # Each attempt waits for a longer level.
    level = header.delay_level or _FIRST_RETRY_LEVEL + original.reconsume_times
    # Too many attempts, or the client gave up (level -1): dead letter.
    if original.reconsume_times >= most or header.delay_level < 0:
        topic, queue_id, level = DLQ_PREFIX + header.group, 0, 0
        config = _writable_topic(ctx, topic, 1, connection.remote_address)
    queue_id %= max(config.read_queue_nums, 1)  # the topic may have fewer queues than the group's current settings
    delay_ms = _exact_delay_ms(request) if level else 0
    copy = _copy(ctx, original, topic, queue_id, 0 if delay_ms else level)
    result = ctx.master.timer.put(copy, ctx.clock_ms() + delay_ms) if delay_ms else ctx.store.put(copy)
    if result.status is PutStatus.PUT_OK:
        _count(ctx, copy, result.size, header.group)
    return _sent_back(ctx, request, result, topic)


def _writable_topic(ctx: SendContext, topic: str, queues: int, peer: str) -> TopicConfig:
    """The group's retry or dead-letter topic, created if it does not exist. Raises ResponseError 1, 16."""
    config = ctx.topics.ensure_for_group(topic, queues, peer)
    if not config.perm & Perm.WRITE:
        raise response_error(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
    return config


def _count(ctx: SendContext, copy: Message, size: int, group: str) -> None:
    ctx.stats.put(copy.topic, 1, size)
    if copy.topic == SCHEDULE_TOPIC:
        ctx.stats.scheduled(copy.queue_id, size)
    properties = copy.properties_raw.decode(errors="surrogateescape")
    origin = find(properties, PropertyKey.RETRY_TOPIC) or ""  # the sender's text, unless it is a topic here
    ctx.stats.sent_back(origin if ctx.topics.exists(origin) else "", group)


async def _sent_back(ctx: SendContext, request: Command, result: PutResult, topic: str) -> Command:
    """The response once the copy is durable, and its topic persisted. Raises StoreError, ResponseError."""
    status = await ctx.store.wait_confirmed(result)
    if status is not PutStatus.PUT_OK:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"{status.value} {result.reason}".strip())
    await ctx.topics.wait_persisted(topic)
    return request.reply()


def _exact_delay_ms(request: Command) -> int:
    """Delay in ms that our own client adds to code 36 if it is not a level (API-21); 0 if absent. Raises ResponseError 13."""
    text = request.ext.get(EXACT_DELAY_FIELD)
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= TIMER_LIMIT_MS):
        problem = f"{EXACT_DELAY_FIELD} is {text!r:.40}, must be a number of ms, 0..{TIMER_LIMIT_MS}"
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, problem)
    return int(text)


def _copy(ctx: SendContext, original: Message, topic: str, queue_id: int, level: int) -> Message:
    """Copy of a message for redelivery: reconsumeTimes + 1, stored under its delay level, or undelayed for level 0 (RTY-04)."""
    properties = original.properties_raw.decode(errors="surrogateescape")  # a batch may hold invalid UTF-8
    # Kept from the first copy on: retries of retries still name the first topic.
    if find(properties, PropertyKey.RETRY_TOPIC) is None:
        properties = with_property(properties, PropertyKey.RETRY_TOPIC, original.topic)
    if find(properties, PropertyKey.ORIGIN_MESSAGE_ID) is None:
        first = offset_message_id(original.store_host, original.physical_offset)
        properties = with_property(properties, PropertyKey.ORIGIN_MESSAGE_ID, first)
    # As Apache's broker stores it; the response waits for the copy all the same, see `_sent_back`.
    properties = with_property(properties, PropertyKey.WAIT, "false")
    properties = with_property(properties, PropertyKey.DELAY, str(level))
    topic, queue_id, properties = scheduled(topic, queue_id, properties, str(level), ctx.master.delay.level_max)
    return Message(
        topic,
        original.body,
        properties.encode(errors="surrogateescape"),
        queue_id,
        original.flag,
        original.sys_flag,
        original.born_timestamp_ms,
        original.born_host,
        original.store_host,
        original.reconsume_times + 1,
    )
