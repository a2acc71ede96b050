"""Request codes that a broker serves: header, handler and ports of each.

A code that is not listed is answered with REQUEST_CODE_NOT_SUPPORTED. All handlers run on one event loop; the bounds of Apache
RocketMQ's thread pools became limits on sends that wait for durability and on parked pulls.

Requirements: REM-10, REM-12..REM-14, REM-28.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from saturnmq.broker.requests import (
    admin,
    clients,
    messages,
    offsets,
    progress,
    pull,
    relay,
    replies,
    send_fast,
    transactions,
)
from saturnmq.net import Later
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h

Answer = Command | bytes | Later | Awaitable[Command] | None
Handler = Callable[..., Answer]


class Ports(Enum):
    """Listen ports on which a code is served."""

    BOTH = "both"
    MAIN = "main"  # not on the fast port (REM-28)


class Route(NamedTuple):
    """Route of one code. header None: the handler reads extFields itself, for speed."""

    code: RequestCode
    header: type[Any] | None
    handler: Handler
    ports: Ports = Ports.BOTH


ROUTES: Final = (
    Route(RequestCode.SEND_MESSAGE, None, send_fast.send),
    Route(RequestCode.SEND_MESSAGE_V2, None, send_fast.send),
    Route(RequestCode.SEND_BATCH_MESSAGE, None, send_fast.send),
    Route(RequestCode.PULL_MESSAGE, None, pull.pull, Ports.MAIN),
    Route(RequestCode.CONSUMER_SEND_MSG_BACK, h.ConsumerSendMsgBack, messages.send_back),
    Route(RequestCode.END_TRANSACTION, h.EndTransaction, transactions.end),
    Route(RequestCode.RESUME_CHECK_HALF_MESSAGE, h.ResumeCheckHalfMessage, transactions.resume),
    Route(RequestCode.SEND_REPLY_MESSAGE, None, replies.send_reply),
    Route(RequestCode.SEND_REPLY_MESSAGE_V2, None, replies.send_reply),
    Route(RequestCode.QUERY_MESSAGE, h.QueryMessage, messages.query),
    Route(RequestCode.VIEW_MESSAGE_BY_ID, h.ViewMessageById, messages.view),
    Route(RequestCode.HEART_BEAT, h.NoFields, clients.heartbeat),
    Route(RequestCode.UNREGISTER_CLIENT, h.UnregisterClient, clients.unregister),
    Route(RequestCode.GET_CONSUMER_LIST_BY_GROUP, h.ConsumerGroupOnly, clients.consumer_ids),
    Route(RequestCode.CHECK_CLIENT_CONFIG, h.NoFields, clients.check_client),
    Route(RequestCode.LOCK_BATCH_MQ, h.NoFields, clients.lock_queues),
    Route(RequestCode.UNLOCK_BATCH_MQ, h.NoFields, clients.unlock_queues),
    Route(RequestCode.GET_CONSUMER_CONNECTION_LIST, h.GetConsumerConnectionList, clients.consumer_connections),
    Route(RequestCode.GET_PRODUCER_CONNECTION_LIST, h.GetProducerConnectionList, clients.producer_connections),
    Route(RequestCode.GET_ALL_PRODUCER_INFO, h.NoFields, clients.all_producers),
    Route(RequestCode.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffset, offsets.query),
    Route(RequestCode.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffset, offsets.update),
    Route(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffsetByTimestamp, offsets.by_time),
    Route(RequestCode.GET_MAX_OFFSET, h.TopicQueue, offsets.maximum),
    Route(RequestCode.GET_MIN_OFFSET, h.TopicQueue, offsets.minimum),
    Route(RequestCode.GET_EARLIEST_MSG_STORETIME, h.TopicQueue, offsets.earliest_store_time),
    Route(RequestCode.GET_ALL_CONSUMER_OFFSET, h.NoFields, offsets.all_consumer_offsets),
    Route(RequestCode.GET_ALL_DELAY_OFFSET, h.NoFields, offsets.all_delay_offsets),
    Route(RequestCode.UPDATE_AND_CREATE_TOPIC, h.UpdateAndCreateTopic, admin.update_topic),
    Route(RequestCode.GET_ALL_TOPIC_CONFIG, h.NoFields, admin.all_topics),
    Route(RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicOnly, admin.delete_topic),
    Route(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, h.NoFields, admin.system_topics),
    Route(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, h.NoFields, admin.update_group),
    Route(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, h.NoFields, admin.all_groups),
    Route(RequestCode.DELETE_SUBSCRIPTIONGROUP, h.DeleteSubscriptionGroup, admin.delete_group),
    Route(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, h.NoFields, admin.clean_expired_queues),
    Route(RequestCode.CLEAN_UNUSED_TOPIC, h.NoFields, admin.clean_unused_topics),
    Route(RequestCode.DELETE_EXPIRED_COMMITLOG, h.NoFields, admin.delete_expired_files),
    Route(RequestCode.GET_BROKER_CONFIG, h.NoFields, admin.get_config),
    Route(RequestCode.UPDATE_BROKER_CONFIG, h.NoFields, admin.update_config),
    Route(RequestCode.GET_BROKER_RUNTIME_INFO, h.NoFields, admin.runtime_info),
    Route(RequestCode.GET_TOPIC_STATS_INFO, h.TopicOnly, admin.topic_stats),
    Route(RequestCode.GET_CONSUME_STATS, h.GetConsumeStats, admin.consume_stats),
    Route(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicOnly, admin.groups_of_topic),
    Route(RequestCode.GET_BROKER_CONSUME_STATS, h.GetBrokerConsumeStats, progress.all_consume_stats),
    Route(RequestCode.QUERY_CONSUME_QUEUE, h.QueryConsumeQueue, progress.queue_units),
    Route(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffset, progress.reset),
    Route(RequestCode.QUERY_CONSUME_TIME_SPAN, h.QueryConsumeTimeSpan, progress.time_span),
    Route(RequestCode.QUERY_CORRECTION_OFFSET, h.QueryCorrectionOffset, progress.correction),
    Route(RequestCode.CLONE_GROUP_OFFSET, h.CloneGroupOffset, progress.clone),
    Route(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.GetConsumerStatus, relay.consumer_status),
    Route(RequestCode.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfo, relay.running_info),
    Route(RequestCode.CONSUME_MESSAGE_DIRECTLY, h.ConsumeMessageDirectly, relay.consume_directly),
)

TABLE: Final[dict[int, Route]] = {int(route.code): route for route in ROUTES}
FAST_TABLE: Final = {code: route for code, route in TABLE.items() if route.ports is Ports.BOTH}
