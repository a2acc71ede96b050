"""Sends (codes 10, 310, 320): the reference implementation for every kind of message.

Works on extFields directly and creates few objects. Compiled code takes most single messages before they come here
(`plain_sends.py`), and must leave the same bytes in the store and on the wire.

Requirements: SND-01..SND-16, BAT-04..BAT-06, API-10.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from time import perf_counter_ns
from typing import Any, Final

from saturnmq.broker.requests.context import SendContext
from saturnmq.broker.requests.send_answer import confirmation_of
from saturnmq.broker.services.delay import scheduled
from saturnmq.broker.services.timer import deliver_ms_of
from saturnmq.broker.services.transactions import as_half
from saturnmq.net import Connection, Later
from saturnmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import (
    CONFIRMATION_FIELD,
    DLQ_PREFIX,
    FORBIDDEN_SEND_TOPICS,
    GROUP_LENGTH_MAX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    VERSION_MAX_RECONSUME,
    Confirmation,
    Perm,
    PropertyKey,
    ResponseCode,
    SysFlag,
)
from saturnmq.protocol.errors import HeaderError, MessageError, MissingField, ResponseError, StoreError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.headers.send_fields import SendFields
from saturnmq.protocol.message import BATCH_MESSAGES_MAX, Host, Message, decode_batch
from saturnmq.protocol.names import topic_problem
from saturnmq.protocol.properties import DELAYS, MessageProperties, find, with_property, without
from saturnmq.store import MessageStore, PutResult, PutStatus

_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
_MULTI_TAGS: Final = int(SysFlag.MULTI_TAGS)
_COMMIT: Final = int(SysFlag.COMMIT)
NOT_HOSTS: Final = ~int(
    SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
)  # they describe the record's layout; a sender must not set them
SMALL_BYTES: Final = 4096  # messages of at most this size are taken even if the flush of the log lags
# Bytes of the log that are not flushed above which messages are rejected: those of more than LAGGING_BYTES, and all but small ones
# at twice as many. A kernel lets every writer wait for the disk at a fifth of the memory.
UNFLUSHED_BYTES: Final = 268_435_456
LAGGING_BYTES: Final = 65_536
BATCH_COMMON_BYTES_MIN: Final = 4 * 1024 * 1024  # of common properties, whatever maxMessageSize is
_DELAY_IN_BATCH: Final = re.compile(rb"\x02(?:%b)\x01(?!0?(?:\x02|\Z))" % "|".join(DELAYS).encode())
REFUSALS: Final = (KeyError, HeaderError, UnicodeEncodeError, ResponseError)
_STATUS_CODES: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}


def send(ctx: SendContext, connection: Connection, request: Command) -> Command | Later:
    """Serve 10, 310 and 320. Answers at once with ASYNC_FLUSH, else when the message is durable (SND-15)."""
    # Of every answer, also of an error: region and trace flag.
    base = ctx.answers.base()
    try:
        refused = refused_at_arrival(ctx, request, base)
        if refused is not None:
            return refused
        fields = SendFields(request.code, request.ext)
        # Checks topic and queue before anything is stored.
        config, queue_id = place_of(ctx, connection, fields)
        put = _put_batch if fields.is_batch else put_one
        result, wait = put(ctx, connection, request, fields, config, queue_id)
    except REFUSALS as error:
        return refusal(request, error, base)
    store = ctx.store
    confirmation = confirmation_of(store, waits=wait) if CONFIRMATION_FIELD in request.ext else None
    # WAIT=false is answered at once, except in a group: there no append is sure before it is committed.
    at_once = store.acknowledges_at_once or not (wait or store.quorum) or result.status is not PutStatus.PUT_OK
    topic = config.topic_name
    # A send that created its topic is answered when the topic is on disk.
    if at_once and ctx.topics.durable(topic):
        return answer(ctx, request, result, result.status, queue_id, confirmation)
    later = Later()
    ctx.in_flight.sends += 1

    def confirmed(status: PutStatus, reason: str) -> None:
        # The reason of the put counts more than that of the confirmation.
        result.reason = result.reason or reason
        reply = answer(ctx, request, result, status, queue_id, confirmation)
        complete(ctx, later, reply if ctx.topics.durable(topic) else _after_topic(ctx, reply, request, topic))

    if at_once:
        confirmed(result.status, "")
    else:
        store.when_confirmed(result, confirmed)
    return later


def complete(ctx: SendContext, later: Later, reply: Command | bytes | Coroutine[Any, Any, Command]) -> None:
    """Answer a send that was counted as waiting."""
    in_flight = ctx.in_flight
    in_flight.sends -= 1
    in_flight.completed_sends += 1
    later.answer(reply)


async def _after_topic(ctx: SendContext, reply: Command | bytes, request: Command, topic: str) -> Command:
    """The reply, once the topic that its send created is durable; an error if it cannot be saved."""
    ctx.in_flight.sends += 1
    try:
        await ctx.topics.writer.saved()
    except StoreError as error:
        text = f"topic[{topic}] was created for this message, but could not be saved: {error.message}"
        return request.reply(ResponseCode.SYSTEM_ERROR, text, ctx.answers.base())
    finally:
        ctx.in_flight.sends -= 1
    # Here the answer must be a command: the caller passes it on.
    return reply if isinstance(reply, Command) else FrameDecoder().feed(reply)[0]


def refusal(request: Command, error: Exception, base: dict[str, str]) -> Command:
    """Response for a rejected send."""
    if isinstance(error, ResponseError):
        return request.reply(error.code or ResponseCode.SYSTEM_ERROR, error.remark, base)
    if isinstance(error, KeyError):
        text = MissingField(error.args[0]).message
    elif isinstance(error, HeaderError):
        text = error.message
    else:
        text = f"the properties are no text: {error}"
    return request.reply(ResponseCode.SYSTEM_ERROR, text, base)


def place_of(ctx: SendContext, connection: Connection, fields: SendFields) -> tuple[TopicConfig, int]:
    """Topic settings and queue id of a send. Raises one of REFUSALS (SND-03..SND-07)."""
    topic, queue_id = fields.topic, fields.queue_id
    config = ctx.topics.table.get(topic)
    # System topics are in the table, but not for clients.
    if config is None or topic in FORBIDDEN_SEND_TOPICS:
        config = _topic_for(ctx, connection, fields)
    # As in Apache RocketMQ: the larger of both.
    width = max(config.write_queue_nums, config.read_queue_nums)
    if queue_id >= width:
        text = f"request queueId[{queue_id}] is illegal, {config.describe()} Producer: {connection.remote_address}"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    if config.order and not ctx.settings.broker_permission & Perm.WRITE:
        text = f"the broker[{ctx.identity.store_host.ip}] sending message is forbidden"
        raise response_error(ResponseCode.NO_PERMISSION, text)
    # A negative id asks the broker to choose: queues in turn.
    if queue_id < 0:
        queue_id = next(ctx.turns) % max(config.write_queue_nums, 1)
    return config, queue_id


def refused_at_arrival(ctx: SendContext, request: Command, base: dict[str, str]) -> Command | None:
    """Reject a send if the broker is not in service yet, its store is busy, or too many sends wait (SND-02, REM-13, REM-14)."""
    settings = ctx.settings
    if settings.accept_send_from_ms and ctx.clock_ms() < settings.accept_send_from_ms:
        text = f"broker unable to service, until {settings.accept_send_from_ms}"
        return request.reply(ResponseCode.SYSTEM_ERROR, text, base)
    if ctx.store.busy:
        text = "[REJECTREQUEST]system busy, start flow control for a while"
        return request.reply(ResponseCode.SYSTEM_BUSY, text, base)
    if ctx.in_flight.sends >= settings.send_queue_max:
        text = (
            "[OVERLOAD]system busy, start flow control for a while"
            f" ({ctx.in_flight.sends} sends wait for the disk, at most {settings.send_queue_max} may)"
        )
        return request.reply(ResponseCode.SYSTEM_BUSY, text, base)
    return refused_while_flush_lags(ctx, request, len(request.body or b""), base)


def unflushed_bytes(store: MessageStore) -> int:
    """Bytes of the log that are not durable yet."""
    return store.log.end - store.flushed_offset


def refused_while_flush_lags(ctx: SendContext, request: Command, size: int, base: dict[str, str]) -> Command | None:
    """Reject a message of `size` bytes that is too large for a disk that does not keep up with the log.

    Otherwise the kernel makes every append wait for the disk, and the whole broker with it. Small messages are still taken.
    """
    lag = unflushed_bytes(ctx.store) if size > SMALL_BYTES else 0
    if lag <= UNFLUSHED_BYTES or (lag <= 2 * UNFLUSHED_BYTES and size <= LAGGING_BYTES):
        return None
    text = (
        f"[OVERLOAD]system busy, start flow control for a while ({lag} bytes of the log are not flushed: the disk takes no message "
        f"of {size} bytes now)"
    )
    return request.reply(ResponseCode.SYSTEM_BUSY, text, base)


def _topic_for(ctx: SendContext, connection: Connection, fields: SendFields) -> TopicConfig:
    """Settings of a topic that is not in the table or not allowed for sends. Raises ResponseError (SND-04..SND-06)."""
    topic = fields.topic
    problem = topic_problem(topic)
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    if topic in FORBIDDEN_SEND_TOPICS:
        raise response_error(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    if topic.startswith(RETRY_PREFIX):
        # A retry topic exists only with its group.
        _group_of(ctx, connection, topic)
    queues, unit, peer = fields.default_topic_queue_nums, fields.unit_mode, connection.remote_address
    config = ctx.topics.create_for_send(topic, fields.default_topic, queues, unit=unit, peer=peer)
    if config is None:
        why = (
            ""
            if ctx.settings.auto_create_topic
            else " Topics are not created by a send here: autoCreateTopicEnable=false."
        )
        text = (
            f"topic[{topic}] not exist, apply first please!{_FAQ}{why} "
            f"Create it: saturnmq admin updateTopic -b {ctx.identity.address} -t {topic}"
        )
        raise response_error(ResponseCode.TOPIC_NOT_EXIST, text)
    return config


def put_one(
    ctx: SendContext, connection: Connection, request: Command, fields: SendFields, config: TopicConfig, queue_id: int
) -> tuple[PutResult, bool]:
    """Store a single message; returns the result and whether the sender waits for durability."""
    properties = MessageProperties(fields.properties, ctx.cluster_suffix)
    topic, stored = config.topic_name, properties.text
    if topic.startswith(RETRY_PREFIX):
        # Also decides between retry and dead letter.
        topic, queue_id = _retry_target(ctx, connection, request, fields, queue_id)
    sys_flag = fields.sys_flag & NOT_HOSTS
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= _MULTI_TAGS
    deliver_ms = None
    half = properties.is_transactional and _is_half(ctx, properties, fields.reconsume_times)
    if half:
        group = fields.producer_group
        stored = as_half(topic, queue_id, properties, group)
        # After the group is known, before anything is stored.
        _check_half_quota(ctx, connection, properties.special.get(PropertyKey.PGROUP) or group)
        # Half messages are in queue 0 of the half topic, without transaction flag, until their end.
        topic, queue_id, sys_flag = HALF_TOPIC, 0, sys_flag & ~TRANSACTION_MASK
    elif properties.special:
        topic, queue_id, stored, deliver_ms = _delayed(ctx, topic, queue_id, properties, sys_flag)
    body = request.body or b""
    message = Message(
        topic,
        body,
        stored.encode(),
        queue_id,
        fields.flag,
        sys_flag,
        fields.born_ms,
        born_host(connection),
        ctx.identity.store_host,
        fields.reconsume_times,
    )
    began_ns = perf_counter_ns()
    # A delivery time that is no level goes through the timer.
    result = ctx.store.put(message) if deliver_ms is None else ctx.master.timer.put(message, deliver_ms)
    if result.status is PutStatus.PUT_OK:
        ctx.stats.put(topic, 1, result.size, perf_counter_ns() - began_ns)
        if topic == SCHEDULE_TOPIC:
            ctx.stats.scheduled(queue_id, result.size)
        if half:
            # Registered after it is stored: a check finds the message.
            ctx.master.transactions.prepared(message, result)
    return result, properties.wait


def _put_batch(
    ctx: SendContext, connection: Connection, request: Command, fields: SendFields, config: TopicConfig, queue_id: int
) -> tuple[PutResult, bool]:
    """Store all messages of a batch or none (BAT-04..BAT-06)."""
    limit = ctx.store.settings.message_bytes_max
    raw = request.body or b""
    if len(raw) > limit:
        text = f"the batch of {len(raw)} bytes is illegal, the limit is {limit} bytes"
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, text)
    try:
        items = decode_batch(raw, BATCH_MESSAGES_MAX)
    except MessageError as error:
        raise response_error(
            ResponseCode.MESSAGE_ILLEGAL, f"the batch body is malformed or too long: {error.message}"
        ) from error
    topic = config.topic_name
    # As in Apache RocketMQ.
    if topic.startswith(RETRY_PREFIX):
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group " + topic)
    common = fields.properties
    strings = [common.encode(), *(item.properties_raw for item in items)]
    joined = b"\x02" + b"\x02".join(strings)
    # A quick look first: the pattern is expensive on megabytes.
    if b"DEL" in joined and _DELAY_IN_BATCH.search(joined):
        text = "a batch cannot be delayed, and property DELAY or one of TIMER_... is set in it"
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, text)
    wait = find(common, "WAIT") != "false"
    common = with_property(common, "CLUSTER", ctx.settings.cluster_name)
    tail = common.encode()
    if len(tail) * len(items) > max(
        limit, BATCH_COMMON_BYTES_MIN
    ):  # a request of 100 KB could become 300 MB of records
        text = (
            f"the batch has {len(tail)} bytes of common properties, and each of its {len(items)} messages is stored with "
            f"them: at most {max(limit, BATCH_COMMON_BYTES_MIN)} bytes in all; send it in parts"
        )
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, text)
    sys_flag = fields.sys_flag & NOT_HOSTS
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= _MULTI_TAGS
    born, born_ms, store_host = born_host(connection), fields.born_ms, ctx.identity.store_host
    separated = b"\x02" + tail
    entries = [
        (body, properties_raw + (separated if properties_raw and properties_raw[-1] != 2 else tail), flag)
        for body, properties_raw, flag in items
    ]
    shared = Message(topic, b"", b"", queue_id, 0, sys_flag, born_ms, born, store_host)
    began_ns = perf_counter_ns()
    result = ctx.store.put_batch(shared, entries)
    if result.status is PutStatus.PUT_OK:
        ctx.stats.put(topic, len(entries), result.size, perf_counter_ns() - began_ns)
    return result, wait


def _is_half(ctx: SendContext, properties: MessageProperties, reconsume: int) -> bool:
    """Whether a message that is marked as transactional is a half message (TX-03).

    Copies that old clients send to a retry topic still have the property but are no half messages. Raises ResponseError if
    transactions are not allowed (SND-12).
    """
    # The delay shows that it is a retry copy of an old client.
    if reconsume > 0 and properties.special.get(PropertyKey.DELAY, "0") != "0":
        return False
    if ctx.settings.reject_transactions:
        text = f"the broker[{ctx.identity.store_host.ip}] sending transaction message is forbidden"
        raise response_error(ResponseCode.NO_PERMISSION, text)
    return True


def _check_half_quota(ctx: SendContext, connection: Connection, group: str) -> None:
    """Raise ResponseError 14 if no more half messages are accepted: the producer tries another broker (LIM-13, PR-16)."""
    if len(group) > GROUP_LENGTH_MAX:
        text = f"the producer group has {len(group)} characters, at most {GROUP_LENGTH_MAX} are allowed"
        raise response_error(ResponseCode.MESSAGE_ILLEGAL, text)
    # By host, as quotas of other tables.
    problem = ctx.master.transactions.problem(group, born_host(connection).ip)
    if problem is not None:
        ctx.rejections.note("half_messages", connection.remote_address, f"group={group!r}: {problem}")
        raise response_error(ResponseCode.SERVICE_NOT_AVAILABLE, problem)


def _delayed(
    ctx: SendContext, topic: str, queue_id: int, properties: MessageProperties, sys_flag: int
) -> tuple[str, int, str, int | None]:
    """Topic, queue, properties and delivery time (Unix ms, None if by level or now) of a message with a delay property.

    It is stored under its delay level; dead letters and prepared or rolled-back messages are not delayed (ST-08, DLY-02).
    """
    text, delay = properties.text, properties.special.get(PropertyKey.DELAY)
    # A dead letter is not delivered again, so it cannot wait.
    if topic.startswith(DLQ_PREFIX):
        return topic, queue_id, without(text, PropertyKey.DELAY), None
    # Prepared and rolled-back messages are never delivered.
    if sys_flag & TRANSACTION_MASK not in (0, _COMMIT):
        return topic, queue_id, text, None
    destination = scheduled(topic, queue_id, text, delay, ctx.master.delay.level_max)
    timed = destination[0] == topic and not topic.startswith(RETRY_PREFIX)  # the delay of a retry copy is over
    return *destination, deliver_ms_of(properties.special, ctx.clock_ms()) if timed else None


def _retry_target(
    ctx: SendContext, connection: Connection, request: Command, fields: SendFields, queue_id: int
) -> tuple[str, int]:
    """Topic and queue for a send to a retry topic; the dead-letter queue after too many attempts (SND-09)."""
    topic = fields.topic
    most = _group_of(ctx, connection, topic).retry_max_times
    # Older clients do not send maxReconsumeTimes.
    if request.version >= VERSION_MAX_RECONSUME:
        most = fields.max_reconsume_times(most)
    if fields.reconsume_times < most:
        return topic, queue_id
    dead = DLQ_PREFIX + topic[len(RETRY_PREFIX) :]
    ctx.topics.ensure_for_group(dead, 1, connection.remote_address)
    return dead, 0


def _group_of(ctx: SendContext, connection: Connection, retry_topic: str) -> SubscriptionGroupConfig:
    """Settings of a retry topic's group. Raises ResponseError 26."""
    group = retry_topic[len(RETRY_PREFIX) :]
    config = ctx.groups.find(group, connection.remote_address)
    if config is None:
        text = f"subscription group not exist, {group}{_FAQ}"
        raise response_error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    return config


def born_host(connection: Connection) -> Host:
    """The peer's address as stored in records; computed once per connection."""
    host = connection.attributes.get("host")
    # By connection: the address does not change.
    if host is None:
        ip, _, port = connection.remote_address.rpartition(":")
        host = connection.attributes["host"] = Host(ip.partition("%")[0] or "127.0.0.1", int(port or 0))
    return host  # type: ignore[return-value]


def answer(
    ctx: SendContext,
    request: Command,
    result: PutResult,
    status: PutStatus,
    queue_id: int,
    confirmation: Confirmation | None = None,
) -> Command:
    """Response by put status (spec 01 section 4.1); for a stored message it has queue and offsets (SND-13).

    confirmation: stated if the put is confirmed; None for senders that do not ask.
    """
    code = _STATUS_CODES.get(status, ResponseCode.SYSTEM_ERROR)
    # Stored, though perhaps not confirmed: 10, 11, 12 are the timeouts and the missing slave.
    if result.physical_offset >= 0 and code in (0, 10, 11, 12):
        offsets = result.physical_offsets or (result.physical_offset,)
        stated = confirmation if code is ResponseCode.SUCCESS else None
        answers = ctx.answers if stated is None else ctx.answers.stating(stated)
        return request.reply(code, None, answers.fields(queue_id, result.queue_offset, offsets))
    # Answers without a position count as failed puts.
    ctx.stats.put_failed += 1
    return request.reply(code, _remark(ctx, status, result.reason), ctx.answers.base())


def _remark(ctx: SendContext, status: PutStatus, reason: str) -> str:
    if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return f"create mapped file failed, server is busy or broken. {reason}".strip()
    if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        limit = ctx.store.settings.message_bytes_max
        return (
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {limit}B, msg properties length limit 32KB. ({reason})"
        )
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        return (
            "service not available now. It may be caused by one of the following reasons: "
            f"the broker's disk is full, messages are put to the slave, the broker is shutting down. ({reason})"
        )
    if status is PutStatus.OS_PAGE_CACHE_BUSY:
        return "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    if not reason and ctx.store.failure is not None:  # failed while the sender waited (DUR-06)
        reason = ctx.store.failure.message
    return f"UNKNOWN_ERROR {reason}".strip()
