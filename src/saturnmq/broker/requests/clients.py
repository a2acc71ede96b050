"""Requests of live clients and about them: heartbeats, group members, queue locks (34, 35, 38, 41, 42, 46, 203, 204, 328).

Requirements: HB-03..HB-08, RB-07, FIL-03, RT-06, RT-07.
"""

from __future__ import annotations

import contextlib

from saturnmq.broker.requests.context import ClientContext
from saturnmq.broker.services.timer import LIMIT_MS
from saturnmq.broker.state.clients import ClientInfo
from saturnmq.filter import check_subscription
from saturnmq.net import Connection
from saturnmq.protocol.bodies import (
    CheckClientRequest,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from saturnmq.protocol.bodies import Connection as ConnectionBody
from saturnmq.protocol.codes import RETRY_PREFIX, TIMER_FIELD, Language, ResponseCode
from saturnmq.protocol.errors import ResponseError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.names import group_problem


def heartbeat(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve HEART_BEAT (34); the response announces the maximum delivery delay of timed messages."""
    data = HeartbeatData.decode(request.body)
    producers = [producer.group_name for producer in data.producer_data_set]
    consumers = [consumer.group_name for consumer in data.consumer_data_set]
    problem = ctx.clients.problem(connection, producers, consumers)
    if problem is not None:
        ctx.refusals.note("live_groups", connection.remote_address, problem)
    if not all(0 < len(producer.group_name) <= 255 for producer in data.producer_data_set):
        problem = problem or "the name of a producer group must have 1 to 255 characters"
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, problem)
    now = ctx.clock_ms()
    for consumer in data.consumer_data_set:
        _consumer(ctx, connection, request, data.client_id, consumer, now)
    for producer in data.producer_data_set:
        info = ClientInfo(data.client_id, request.language, request.version, now)
        ctx.clients.register_producer(producer.group_name, connection, info)
    return request.reply(ext={TIMER_FIELD: str(LIMIT_MS)})


def _consumer(
    ctx: ClientContext, connection: Connection, request: Command, client_id: str, data: ConsumerData, now_ms: int
) -> None:
    problem = group_problem(data.group_name)
    if problem is not None:
        raise response_error(ResponseCode.SYSTEM_ERROR, f"{problem}: {data.group_name[:80]!r}")
    group = ctx.groups.find(data.group_name)
    if group is not None and len(RETRY_PREFIX + data.group_name) <= 127:
        with contextlib.suppress(ResponseError):  # topic quota used up: only the group's retries are rejected
            ctx.topics.ensure_for_group(RETRY_PREFIX + data.group_name, group.retry_queue_nums)
    info = ClientInfo(client_id, request.language, request.version, now_ms)
    before = _expressions(ctx, data.group_name)
    ctx.clients.register_consumer(data, connection, info)
    ctx.filters.subscribe(data.group_name, data.subscription_data_set, now_ms)
    for topic, expression in _expressions(ctx, data.group_name).items():
        if before.get(topic, expression) != expression:
            ctx.long_polling.wake(topic, data.group_name)  # parked with the previous subscription


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
    ids = group.client_ids() if group is not None else []
    if not ids:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return request.reply(body=ConsumerIdList(ids).encode())


def check_client(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve CHECK_CLIENT_CONFIG (46): whether an expression other than tags can be used here (FIL-03)."""
    body = CheckClientRequest.decode(request.body)
    subscription = body.subscription_data
    if subscription is not None:
        enabled = ctx.settings.property_filter_enable
        check_subscription(subscription.sub_string, subscription.expression_type, property_filter_enabled=enabled)
    return request.reply()


def lock_queues(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve LOCK_BATCH_MQ (41)."""
    body = LockBatchRequest.decode(request.body)
    owned = ctx.locks.lock(body.consumer_group, body.client_id, body.mq_set, ctx.clock_ms())
    return request.reply(body=LockBatchResponse(owned).encode())


def unlock_queues(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve UNLOCK_BATCH_MQ (42)."""
    body = LockBatchRequest.decode(request.body)
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
) -> Command:
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
    )
    return request.reply(body=body.encode())


def producer_connections(
    ctx: ClientContext, connection: Connection, request: Command, header: h.GetProducerConnectionList
) -> Command:
    """Serve GET_PRODUCER_CONNECTION_LIST (204)."""
    members = ctx.clients.producers.get(header.producer_group)
    if not members:
        text = f"the producer group[{header.producer_group}] not exist"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    return request.reply(body=ProducerConnection([_connection(c, info) for c, info in members.items()]).encode())


def all_producers(ctx: ClientContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_ALL_PRODUCER_INFO (328)."""
    data = {
        group: [
            ProducerInfo(
                info.client_id, c.remote_address, language_name(info.language), info.version, info.heartbeat_ms
            )
            for c, info in members.items()
        ]
        for group, members in ctx.clients.producers.items()
    }
    return request.reply(body=ProducerTableInfo(data).encode())
