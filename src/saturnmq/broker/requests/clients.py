"""Requests of live clients and about them: heartbeats, group members, queue locks (34, 35, 38, 41, 42, 46, 203, 204, 328).

Requirements: HB-03..HB-08, RB-07, FIL-03, RT-06, RT-07.
"""

from __future__ import annotations

import contextlib
from typing import Final

from saturnmq.broker.requests.context import ClientContext
from saturnmq.broker.requests.table_row import CALLER, decode_body
from saturnmq.broker.state.clients import ClientInfo, Owner, version_ms
from saturnmq.broker.state.conflicts import Conflict
from saturnmq.filter import check_subscription
from saturnmq.net import Connection
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.bodies import (
    CheckClientRequest,
    ClientConflict,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from saturnmq.protocol.bodies import Connection as ConnectionBody
from saturnmq.protocol.codes import RETRY_PREFIX, TIMER_FIELD, TIMER_LIMIT_MS, Language, ResponseCode
from saturnmq.protocol.errors import ResponseError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.names import group_problem, topic_problem
from saturnmq.slices import LongAnswer, Pace, Steps

VERSION_AHEAD_MS: Final = (
    86_400_000  # a subscription's version is its client's time; a greater one would never be replaced
)
_NAME_CHARS_MAX: Final = 255
_CONFLICTS_MAX: Final = 20  # in one answer


def heartbeat(ctx: ClientContext, connection: Connection, request: Command, header: object) -> LongAnswer:
    """Serve HEART_BEAT (34); the response announces the maximum delivery delay of timed messages.

    All of it is checked before any of it is applied. A large one is applied in steps. What it creates is persisted before the
    response; one that creates nothing, as most, does not wait.
    """
    data = decode_body(HeartbeatData, request)
    problem = _heartbeat_problem(ctx, data)
    if problem is None:
        producers = [producer.group_name for producer in data.producer_data_set]
        host = host_of(connection.remote_address)
        # The whole heartbeat is refused: one applied in part would leave a client half registered.
        problem = ctx.clients.problem(connection, producers, data.consumer_data_set, host)
        if problem is not None:
            ctx.rejections.note("live_groups", connection.remote_address, problem)
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    owner = (host_of(connection.remote_address), connection.attributes.get(CALLER))
    # Reported, not refused: clients behind one address translation may share an id legitimately.
    if ctx.clients.taken_id(data.client_id, owner):
        text = f"{data.client_id!r} is online at another address or with another account"
        ctx.rejections.note("client_id", connection.remote_address, text)
    # The client may have closed while its heartbeat was decoded.
    if not connection.closed:
        ctx.clients.ids.heard(data.client_id, connection)
    answer = ctx.heartbeats.run(_register(ctx, connection, request, data, owner))
    names = [consumer.group_name for consumer in data.consumer_data_set]
    # Most heartbeats create nothing: no coroutine, no wait.
    if isinstance(answer, Command) and _persisted(ctx, names):
        return answer
    return _after_changes(ctx, answer, names)


def _persisted(ctx: ClientContext, groups: list[str]) -> bool:
    """Whether the groups and their retry topics, as far as a client created them, survive a crash."""
    # Without a DLedger group the files are what matters; nothing waits to be written.
    if ctx.groups.journal is None and not (ctx.groups.writer.dirty or ctx.topics.writer.dirty):
        return True
    return all(ctx.groups.persisted(group) and ctx.topics.persisted(RETRY_PREFIX + group) for group in groups)


async def _after_changes(ctx: ClientContext, answer: LongAnswer, groups: list[str]) -> Command:
    """The answer to a heartbeat, once what it has created is persisted. Raises StoreError, ResponseError."""
    reply = answer if isinstance(answer, Command) else await answer
    pace = Pace()
    for group in groups:
        await ctx.groups.wait_persisted(group)
        await ctx.topics.wait_persisted(RETRY_PREFIX + group)
        await pace.step()
    return reply


def _heartbeat_problem(ctx: ClientContext, data: HeartbeatData) -> str | None:
    """Why a heartbeat is invalid, or None. Subscriptions of topics that cannot exist are dropped from it."""
    if len(data.client_id) > _NAME_CHARS_MAX:
        return f"the client id has {len(data.client_id)} characters, at most {_NAME_CHARS_MAX} are allowed"
    if not all(0 < len(producer.group_name) <= _NAME_CHARS_MAX for producer in data.producer_data_set):
        return f"the name of a producer group must have 1 to {_NAME_CHARS_MAX} characters"
    # A time far ahead would win against every later subscription of the group.
    newest_ms = ctx.clock_ms() + VERSION_AHEAD_MS
    for consumer in data.consumer_data_set:
        problem = group_problem(consumer.group_name)
        if problem is not None:
            return f"{problem}: {consumer.group_name[:80]!r}"
        if (
            len(consumer.consume_type) + len(consumer.message_model) + len(consumer.consume_from_where)
            > _NAME_CHARS_MAX
        ):
            return f"group {consumer.group_name}: no consumeType, messageModel or consumeFromWhere is that long"
        subscriptions = []
        for subscription in consumer.subscription_data_set:
            subscription.sub_version = version_ms(subscription.sub_version)
            # A subscription of an impossible topic is dropped, the others count.
            if topic_problem(subscription.topic) is None and len(subscription.expression_type) <= _NAME_CHARS_MAX:
                subscriptions.append(subscription)
            if subscription.sub_version > newest_ms:
                return (
                    f"group {consumer.group_name}, topic {subscription.topic[:127]}: subVersion={subscription.sub_version} "
                    f"is more than a day ahead of this broker's clock ({ctx.clock_ms()} ms); set the client's clock"
                )
        consumer.subscription_data_set = subscriptions
    return None


def _register(
    ctx: ClientContext, connection: Connection, request: Command, data: HeartbeatData, owner: Owner
) -> Steps[Command]:
    """Apply a heartbeat in steps, as long as its connection is open."""
    now = ctx.clock_ms()
    for consumer in data.consumer_data_set:
        # A heartbeat in steps may outlive its connection, which must not be registered afterwards.
        if connection.closed:
            break
        info = ClientInfo(data.client_id, request.language, request.version, now, owner)
        yield from _consumer(ctx, connection, info, consumer)
    for producer in data.producer_data_set:
        if connection.closed:
            break
        info = ClientInfo(data.client_id, request.language, request.version, now, owner)
        ctx.clients.register_producer(producer.group_name, connection, info)
        yield
    return request.reply(ext={TIMER_FIELD: str(TIMER_LIMIT_MS)})


def _consumer(ctx: ClientContext, connection: Connection, info: ClientInfo, data: ConsumerData) -> Steps[None]:
    group = ctx.groups.find(data.group_name, connection.remote_address)
    # The retry topic's name must be a legal topic.
    if group is not None and len(RETRY_PREFIX + data.group_name) <= 127:
        with contextlib.suppress(ResponseError):  # topic quota used up: only the group's retries are rejected
            retry_topic = RETRY_PREFIX + data.group_name
            ctx.topics.ensure_for_group(retry_topic, group.retry_queue_nums, connection.remote_address)
    # Compared below: parked pulls hold the filter of the former subscription.
    before = _expressions(ctx, data.group_name)
    ctx.clients.register_consumer(data, connection, info)
    yield
    if group is not None and not connection.closed:  # no pull can use a filter of a group that may not exist
        yield from ctx.filters.subscribing(data.group_name, data.subscription_data_set, info.heartbeat_ms)
    for topic, expression in _expressions(ctx, data.group_name).items():
        if before.get(topic, expression) != expression:
            ctx.long_polling.wake(topic, data.group_name)  # parked with the previous subscription
            yield


def _expressions(ctx: ClientContext, group: str) -> dict[str, tuple[str, str]]:
    """Expression and type by topic of an online group."""
    live = ctx.clients.consumers.get(group)
    return {t: (s.sub_string, s.expression_type) for t, s in live.subscriptions.items()} if live is not None else {}


def unregister(ctx: ClientContext, connection: Connection, request: Command, header: h.UnregisterClient) -> Command:
    """Serve UNREGISTER_CLIENT (35)."""
    ctx.clients.unregister(connection, header.producer_group, header.consumer_group)
    return request.reply()


def consumer_ids(ctx: ClientContext, connection: Connection, request: Command, header: h.ConsumerGroupOnly) -> Command:
    """Serve GET_CONSUMER_LIST_BY_GROUP (38)."""
    group = ctx.clients.consumers.get(header.consumer_group)
    # Encoded once per change of members, as all clients ask for it in every rebalance.
    ids = group.encoded_ids() if group is not None else None
    if ids is None:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return request.reply(body=ids)


def check_client(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve CHECK_CLIENT_CONFIG (46): whether an expression other than tags can be used here (FIL-03)."""
    body = decode_body(CheckClientRequest, request)
    subscription = body.subscription_data
    if subscription is not None:
        enabled = ctx.settings.property_filter_enable
        check_subscription(subscription.sub_string, subscription.expression_type, property_filter_enabled=enabled)
    return request.reply()


def lock_queues(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve LOCK_BATCH_MQ (41). Only queues of this broker's topics are granted (LIM-13)."""
    body = decode_body(LockBatchRequest, request)
    problem = group_problem(body.consumer_group)
    if problem is None and len(body.client_id) > _NAME_CHARS_MAX:
        problem = f"the client id has {len(body.client_id)} characters, at most {_NAME_CHARS_MAX} are allowed"
    if problem is None and any(topic_problem(q.topic) or len(q.broker_name) > _NAME_CHARS_MAX for q in body.mq_set):
        problem = "a queue has an illegal topic or broker name"
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    _check_owner(ctx, connection, body)
    # Queues elsewhere are left out: a client asks each broker for its own.
    queues = [queue for queue in body.mq_set if _is_here(ctx, queue)]
    locked_queues = ctx.locks.lock(
        body.consumer_group, body.client_id, queues, ctx.clock_ms(), connection.remote_address
    )
    return request.reply(body=LockBatchResponse(locked_queues).encode())


def _check_owner(ctx: ClientContext, connection: Connection, body: LockBatchRequest) -> None:
    """Raise ResponseError for the client id of a live member of the group that has connected from another host.

    Client ids are public (38, 203): a stranger could release the locks of a consumer, and have its queues consumed twice.
    """
    group = ctx.clients.consumers.get(body.consumer_group)
    # The connection of a live member may lock for its id without further proof.
    if group is None or connection in group.members:
        return
    hosts = {
        host_of(member.remote_address) for member, info in group.members.items() if info.client_id == body.client_id
    }
    if hosts and host_of(connection.remote_address) not in hosts:
        text = f"client {body.client_id} of group {body.consumer_group} is connected from another address"
        raise response_error(ResponseCode.NO_PERMISSION, text)


def _is_here(ctx: ClientContext, queue: MessageQueue) -> bool:
    """Whether it is a queue of a topic of this broker."""
    config = ctx.topics.table.get(queue.topic)
    if config is None or queue.broker_name != ctx.settings.broker_name:
        return False
    return 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)


def unlock_queues(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve UNLOCK_BATCH_MQ (42)."""
    body = decode_body(LockBatchRequest, request)
    _check_owner(ctx, connection, body)
    ctx.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
    return request.reply()


def _connection(connection: Connection, info: ClientInfo) -> ConnectionBody:
    return ConnectionBody(info.client_id, connection.remote_address, language_name(info.language), info.version)


def language_name(number: int) -> str:
    """Name of a language code; OTHER if unknown."""
    try:
        return Language(number).name
    except ValueError:
        return Language.OTHER.name


def consumer_connections(
    ctx: ClientContext, connection: Connection, request: Command, header: h.GetConsumerConnectionList
) -> LongAnswer:
    """Serve GET_CONSUMER_CONNECTION_LIST (203)."""
    group = ctx.clients.consumers.get(header.consumer_group)
    if group is None:
        text = f"the consumer group[{header.consumer_group}] not online"
        return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, text)
    body = ConsumerConnection(
        [_connection(member, info) for member, info in group.members.items()],
        dict(group.subscriptions),
        group.consume_type,
        group.message_model,
        group.consume_from_where,
        [_conflict(conflict) for conflict in ctx.clients.conflicts_of(group)[:_CONFLICTS_MAX]] or None,
    )
    return ctx.slices.run(ctx.slices.reply(request, body))


def _conflict(conflict: Conflict) -> ClientConflict:
    addresses = (conflict.address, conflict.other_address)
    return ClientConflict(
        conflict.kind.value, conflict.client_id, addresses[0], conflict.other_id, addresses[1], list(conflict.topics)
    )


def producer_connections(
    ctx: ClientContext, connection: Connection, request: Command, header: h.GetProducerConnectionList
) -> LongAnswer:
    """Serve GET_PRODUCER_CONNECTION_LIST (204)."""
    members = ctx.clients.producers.get(header.producer_group)
    if not members:
        text = f"the producer group[{header.producer_group}] not exist"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    return ctx.slices.run(
        ctx.slices.reply(request, ProducerConnection([_connection(c, info) for c, info in members.items()]))
    )


def all_producers(ctx: ClientContext, connection: Connection, request: Command, header: object) -> LongAnswer:
    """Serve GET_ALL_PRODUCER_INFO (328)."""
    return ctx.slices.run(_all_producers(ctx, request))


def _all_producers(ctx: ClientContext, request: Command) -> Steps[Command]:
    data = {}
    # A copy: producers may come and go between two steps.
    for group, members in list(ctx.clients.producers.items()):
        data[group] = [
            ProducerInfo(
                info.client_id, f"/{c.remote_address}", language_name(info.language), info.version, info.heartbeat_ms
            )
            for c, info in members.items()
        ]
        yield
    return (yield from ctx.slices.reply(request, ProducerTableInfo(data)))
