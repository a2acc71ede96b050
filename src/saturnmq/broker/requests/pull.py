"""Pull requests (code 11), including those parked for long polling.

Requirements: BP-01..BP-08, LP-01..LP-04.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from sys import intern
from time import perf_counter_ns
from typing import Final

from saturnmq.broker.requests.context import PullContext
from saturnmq.broker.requests.pull_answer import frame
from saturnmq.broker.requests.table_row import CALLER
from saturnmq.broker.services.long_polling import WAIT_SECONDS_MAX, ParkedPull
from saturnmq.broker.services.transactions import GROUP as TRANSACTION_GROUP
from saturnmq.broker.state.clients import version_ms
from saturnmq.filter import (
    ACCEPT_ALL,
    PullFilter,
    is_tag_kind,
    pull_filter_of,
    require_property_filter,
    subscribed_tags,
    tag_filter,
)
from saturnmq.net import Connection, Later, Reply
from saturnmq.protocol.bodies import SubscriptionGroupConfig
from saturnmq.protocol.codes import RETRY_PREFIX, Perm, PullSysFlag, ResponseCode
from saturnmq.protocol.errors import MissingField, ResponseError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int32, int32_or, int64, int64_or
from saturnmq.protocol.message import store_timestamp_of
from saturnmq.protocol.names import group_problem, topic_problem
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.store import GetResult, GetStatus

_READ: Final = int(Perm.READ)
_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
_COMMIT: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
COUNT_MAX: Final = 4096
READ_AHEAD: Final = (
    64  # records that a thread reads from the disk for one pull; more than a pull of old records returns
)
_SCANNED: Final = 800  # records that a filter may look at in one pull (BP-03)
_BULK_BYTES_MAX: Final = (
    4 * 1024 * 1024
)  # response limit if the request has bulkBytes, sent only by our own backlog readers
_FIELDS: Final = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "suspendTimeoutMillis", "subscription",
    "subVersion", "expressionType",
)  # fmt: skip
_PARKED_CHARS_MAX: Final = 65_536  # limit of a parked pull's fields; longer ones are answered at once
_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


def pull(ctx: PullContext, connection: Connection, request: Command) -> bytes | Later:
    """Serve 11: at once, or later if the request is parked, or too many are."""
    groups = ctx.groups
    # With a group's log, creating a consumer group waits for a quorum.
    if groups.journal is not None and request.ext.get("consumerGroup") not in groups.table:
        return Later(_first_pull(ctx, connection, request, connection.attributes.get(CALLER)))
    return _pull(ctx, connection, request, may_park=True)


async def _first_pull(ctx: PullContext, connection: Connection, request: Command, caller: object) -> bytes | Later:
    """Serve the pull of a group that is not known yet: the DLedger group must have what it creates."""
    name = request.ext.get("consumerGroup", "")
    if group_problem(name) is None and ctx.groups.find(name, connection.remote_address) is not None:
        await ctx.groups.decided(name)
    # Other requests of this connection were handled meanwhile.
    connection.attributes[CALLER] = caller  # a later request of the connection may be another account's
    return _pull(ctx, connection, request, may_park=True)


def resume(ctx: PullContext, parked: ParkedPull) -> None:
    """Answer a parked pull; it is not parked again (LP-04). Its caller may have lost the right meanwhile (ACL-14)."""
    reply: Reply
    try:
        # A pull may be parked for minutes: rights can change in that time.
        ctx.check_rights(parked.caller, parked.request.ext["topic"], parked.request.ext["consumerGroup"])
        reply = _pull(ctx, parked.connection, parked.request, may_park=False)
    except Exception as error:
        reply = parked.connection.failure(parked.request, error)
    parked.later.answer(reply)


def _pull(ctx: PullContext, connection: Connection, request: Command, *, may_park: bool) -> bytes | Later:
    ext = request.ext
    try:
        group, topic = ext["consumerGroup"], ext["topic"]
        queue_id, offset = int32(ext, "queueId"), QueueOffset(int64(ext, "queueOffset"))
        count, sys_flag = int32(ext, "maxMsgNums"), int32(ext, "sysFlag")
    except KeyError as error:
        raise MissingField(error.args[0]) from error
    pull_filter = checked(ctx, connection, group, topic, queue_id, sys_flag, ext)
    # Not when it is answered after parking: the offset was committed on arrival.
    commits = may_park and sys_flag & _COMMIT and ext.get("commitOffset") and not ctx.role.slave
    if commits and group != TRANSACTION_GROUP:
        ctx.offsets.set(topic, group, queue_id, int64(ext, "commitOffset"), connection.remote_address)
    # A count of 0 or less would never return anything.
    count = min(max(count, 1), COUNT_MAX)
    bulk_bytes = min(max(int32_or(ext, "bulkBytes", 0), 0), _BULK_BYTES_MAX)
    if may_park:
        # As many records as this pull may touch, for the look into the page cache.
        needed = _SCANNED if pull_filter.by_record is not None else count if bulk_bytes else min(count, READ_AHEAD)
        cold = ctx.store.cold_read(topic, queue_id, offset, needed, bulk_bytes)
        if cold is not None:
            return _read_first(ctx, connection, request, cold)
    began_ns = perf_counter_ns()
    result = ctx.store.get(
        topic,
        queue_id,
        offset,
        count,
        bulk_bytes=bulk_bytes,
        codes=pull_filter.codes,
        accept_record=pull_filter.by_record,
        accept_extension=pull_filter.by_extension,
    )
    code = _CODES.get(result.status)
    # A queue without messages: offset 0 waits for the first one, any other is corrected.
    if code is None:  # the queue does not exist yet or is empty
        code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    # The client allows to be parked; a one-way pull has no answer to wait for.
    if may_park and code == ResponseCode.PULL_NOT_FOUND and sys_flag & _SUSPEND and not request.is_oneway:
        wait_seconds = _wait_seconds(ctx, request)
        if wait_seconds > 0:
            return _park(ctx, connection, request, (topic, queue_id), offset, pull_filter, wait_seconds)
    if ctx.role.slave and not ctx.settings.offset_check_in_slave:
        if code == ResponseCode.PULL_OFFSET_MOVED:
            # A slave may lag behind its master: the master decides whether the offset is wrong.
            return _redirect(ctx, request, group, offset, result)
        if result.status is GetStatus.OFFSET_FOUND_NULL:
            result.next_offset = offset  # the master may still have what cannot be read here
    if code == ResponseCode.PULL_OFFSET_MOVED and may_park and not ctx.role.slave:
        ctx.offset_moved.add(group, topic, queue_id, offset, result.next_offset, ctx.identity.store_host)
    if code == ResponseCode.SUCCESS:
        # The statistics need the last record only.
        last, ns = result.buffers[-1], perf_counter_ns() - began_ns
        count_pull(ctx, topic, group, queue_id, last, result.count, result.total_bytes, ns)
    else:
        ctx.stats.get_miss += 1
        if result.status is GetStatus.NO_MATCHED_MESSAGE:
            _note_fall(ctx, topic, group, queue_id, result)
    return _answer(request, result, code, next_broker(ctx, group, is_behind=result.behind_memory))


def _read_first(ctx: PullContext, connection: Connection, request: Command, read: Callable[[], None]) -> Later:
    """Let a thread read the records from the disk, then answer; other clients are served meanwhile."""
    later = Later()

    def answer(_: object) -> None:
        reply: Reply
        try:
            reply = _pull(ctx, connection, request, may_park=False)
        except Exception as error:
            reply = connection.failure(request, error)
        later.answer(reply)

    # Reads into the page cache; the answer is made on the event loop.
    asyncio.get_running_loop().run_in_executor(ctx.store.disk.read_threads, read).add_done_callback(answer)
    return later


def _redirect(ctx: PullContext, request: Command, group: str, offset: int, result: GetResult) -> bytes:
    """A slave may lag: let the client retry the same offset at the broker of the group's settings (BP-08)."""
    ctx.stats.get_miss += 1
    config = ctx.groups.table.get(group)
    offsets = (offset, result.min_offset, result.max_offset)
    broker_id = config.broker_id if config is not None else 0
    return frame(request, ResponseCode.PULL_RETRY_IMMEDIATELY, result.status, broker_id, offsets)


def next_broker(ctx: PullContext, group: str, *, is_behind: bool) -> int:
    """Broker id for the next pull: the group's, or its one for slow consumption if the records left memory (BP-06)."""
    config = ctx.groups.table.get(group)
    if config is None or not ctx.settings.slave_read_enable:
        return 0
    return config.which_broker_when_consume_slowly if is_behind else config.broker_id


def count_pull(
    ctx: PullContext, topic: str, group: str, queue_id: int, last: memoryview, count: int, total_bytes: int, ns: int
) -> None:
    """Count a pull that was answered with messages. last: the last of them that lie one behind the other."""
    # The physical offset in the record, at byte 28.
    behind_bytes = ctx.store.max_physical_offset - int.from_bytes(last[28:36], "big")
    behind_ms = max(ctx.clock_ms() - store_timestamp_of(last), 0)
    ctx.stats.fetched(topic, group, count, total_bytes)
    ctx.stats.pulled(topic, group, queue_id, ns, behind_bytes, behind_ms)


def _note_fall(ctx: PullContext, topic: str, group: str, queue_id: int, result: GetResult) -> None:
    """Record how far the last message that a filter looked at is behind the log's end."""
    position = ctx.store.physical_offset(topic, queue_id, QueueOffset(result.next_offset - 1))
    if position >= 0:
        ctx.stats.looked_at(topic, group, queue_id, ctx.store.max_physical_offset - position)


def _answer(request: Command, result: GetResult, code: ResponseCode, broker_id: int) -> bytes:
    offsets = (result.next_offset, result.min_offset, result.max_offset)
    records = result.buffers if code == ResponseCode.SUCCESS else ()
    return frame(request, code, result.status, broker_id, offsets, records)


def _wait_seconds(ctx: PullContext, request: Command) -> float:
    """Seconds that the pull may wait for a message; 0 if it is answered at once (LP-01)."""
    wait_ms = ctx.settings.short_polling_ms
    if ctx.settings.long_polling:
        wait_ms = int64_or(request.ext, "suspendTimeoutMillis", 0)
    ext = request.ext
    # Parked pulls stay in memory: long expressions are answered at once.
    if wait_ms <= 0 or sum(len(ext.get(name, "")) for name in _FIELDS) > _PARKED_CHARS_MAX:
        return 0.0
    # The client's wish is limited, or its pull would outlive its connection's idle limit.
    return min(wait_ms / 1000, WAIT_SECONDS_MAX)


def _park(
    ctx: PullContext,
    connection: Connection,
    request: Command,
    key: tuple[str, int],
    offset: int,
    pull_filter: PullFilter,
    wait_seconds: float,
) -> Later:
    """Park the pull until a message arrives; if too many are parked, answer it after shortPollingTimeMills (LIM-13).

    A pull of the latter kind throttles its connection, so that thousands of them leave others their time.
    """
    ext = request.ext
    request.body = request.remark = None  # only what is counted stays in memory
    request.ext = {name: intern(ext[name]) for name in _FIELDS if name in ext}  # most of their texts are equal
    deadline = asyncio.get_running_loop().time() + wait_seconds
    caller = connection.attributes.get(CALLER)
    parked = ParkedPull(connection, request, offset, deadline, pull_filter.codes, pull_filter.by_record, caller)
    if ctx.long_polling.add(key, parked):
        return parked.later
    # Otherwise clients whose pulls are answered at once would repeat them without pause.
    connection.requests.throttle()
    return ctx.long_polling.delay(parked, ctx.settings.short_polling_ms / 1000)


# ---- checks


def checked(
    ctx: PullContext, connection: Connection, group: str, topic: str, queue_id: int, sys_flag: int, ext: dict[str, str]
) -> PullFilter:
    """Check a pull and return its filter. Raises ResponseError in the order of BP-01."""
    if not ctx.settings.broker_permission & _READ:
        text = f"the broker[{ctx.identity.store_host.ip}] pulling message is forbidden"
        raise response_error(ResponseCode.NO_PERMISSION, text)
    # Created on demand, within the quota.
    config = ctx.groups.table.get(group) or _group(ctx, connection, group)
    if not config.consume_enable:
        raise response_error(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    topic_config = ctx.topics.table.get(topic)
    if topic_config is None:
        raise _no_topic(ctx, connection, topic)
    if not topic_config.perm & _READ:
        raise response_error(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
    if not 0 <= queue_id < topic_config.read_queue_nums:
        text = (
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{topic_config.read_queue_nums}] "
            f"consumer:[{connection.remote_address}]"
        )
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    if sys_flag & _SUBSCRIPTION:
        # The pull carries its subscription: it works for a group that is not online, too (BP-01).
        return _by_expression(ctx, topic, ext.get("subscription"), ext.get("expressionType"))
    version = version_ms(int64_or(ext, "subVersion", 0))
    return _by_group(ctx, connection, group, topic, version, config.consume_broadcast_enable)


def _group(ctx: PullContext, connection: Connection, group: str) -> SubscriptionGroupConfig:
    problem = group_problem(group)
    config = ctx.groups.find(group, connection.remote_address) if problem is None else None
    if config is None:
        text = f"subscription group [{group}] does not exist, {problem or _FAQ.strip()}"
        raise response_error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    return config


def _no_topic(ctx: PullContext, connection: Connection, topic: str) -> ResponseError:
    problem = topic_problem(topic)
    text = f"topic[{topic}] not exist, apply first please!{_FAQ}"
    return response_error(ResponseCode.TOPIC_NOT_EXIST, f"{text} ({problem})" if problem else text)


def _by_expression(ctx: PullContext, topic: str, text: str | None, kind: str | None) -> PullFilter:
    """Filter of a pull that carries its own subscription. Raises ResponseError 23 or 1."""
    # Tags need no filter support in the broker's settings.
    if is_tag_kind(kind):
        return _for_retry(ctx, topic, tag_filter(text))
    pull_filter = pull_filter_of(text, kind)
    require_property_filter(kind, ctx.settings.property_filter_enable)
    return _for_retry(ctx, topic, pull_filter)


def _for_retry(ctx: PullContext, topic: str, pull_filter: PullFilter) -> PullFilter:
    """Filter for a retry topic: with filterSupportRetry, by the topic on which the message failed first (FIL-05)."""
    if ctx.settings.filter_support_retry and topic.startswith(RETRY_PREFIX):
        return pull_filter._replace(by_record=ctx.filters.groups.for_retry(topic.removeprefix(RETRY_PREFIX)))
    return pull_filter


def _by_group(
    ctx: PullContext, connection: Connection, group: str, topic: str, version: int, broadcast_allowed: bool
) -> PullFilter:
    """Filter of a member's own subscription, or of the online group's for other connections.

    The group's is the newest of its members: with it, messages would be skipped because a stranger sent a heartbeat in the
    group's name. Raises ResponseError 24, 16, 25, 27, 28, 23 or 1.
    """
    live = ctx.clients.consumers.get(group)
    if live is None:
        text = f"the consumer's group info not exist{_FAQ}"
        raise response_error(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
    if live.message_model == "BROADCASTING" and not broadcast_allowed:
        text = f"the consumer group[{group}] can not consume by broadcast way"
        raise response_error(ResponseCode.NO_PERMISSION, text)
    shared = live.subscriptions.get(topic)
    member = live.members.get(connection)
    # Members may differ for a while when a subscription changes: each gets its own.
    subscription = member.subscriptions.get(topic, shared) if member is not None else shared
    if live.sources.get(topic) is connection:
        subscription = shared  # its newest; an older one may have come later
    if subscription is None:
        text = f"the consumer's subscription not exist{_FAQ}"
        raise response_error(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
    # The broker has an older subscription than the client: its heartbeat is on the way.
    if subscription.sub_version < version:
        text = "the consumer's subscription not latest"
        raise response_error(ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
    kind = subscription.expression_type
    if is_tag_kind(kind):
        if subscription.sub_string == "*" or subscription.class_filter_mode:
            return _for_retry(ctx, topic, ACCEPT_ALL)
        return _for_retry(ctx, topic, subscribed_tags(subscription.sub_string, subscription.code_set))
    require_property_filter(kind, ctx.settings.property_filter_enable)  # without it there are no filters
    # The member's expression differs from the group's: it is compiled for this pull alone.
    if shared is None or (shared.sub_string, shared.expression_type) != (subscription.sub_string, kind):
        return _for_retry(ctx, topic, pull_filter_of(subscription.sub_string, kind))
    return _for_retry(ctx, topic, ctx.filters.groups.for_pull(topic, group, version))
