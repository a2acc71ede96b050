"""The request codes that a broker serves: one row per code, with everything that depends on the code.

The routes of both ports, the codes that only a leader serves and the permissions that a request needs are derived from these
rows; `NOT_SERVED` states why each remaining code has none. A code without a row is answered with REQUEST_CODE_NOT_SUPPORTED. All
handlers run on one event loop; the bounds of Apache RocketMQ's thread pools became limits on sends that wait for durability and
on parked pulls.

Requirements: REM-10, REM-12..REM-14, REM-28, DL-X08, ACL-09, ACL-10, SEC-12.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from saturnmq.broker.requests import (
    acl,
    admin,
    clients,
    message_queries,
    offsets,
    progress,
    pull,
    queue_units,
    relay,
    replies,
    runtime,
    send,
    send_back,
    transactions,
)
from saturnmq.broker.requests.table_row import (
    LIST_BYTES_MAX,
    CodeRoute,
    Effect,
    Handler,
    Need,
    Ports,
    Resource,
    Right,
    Roles,
)
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.headers import messaging as h

_CHANGE: Final = Effect.CHANGE
_LEADER: Final = Roles.LEADER
_FIRST: Final = Roles.LEADER_FIRST
_ENDS: Final = Roles.ENDS
_ADMIN: Final = (Need(Right.ADMIN, Resource.CLUSTER),)
_LISTING: Final = (Need(Right.ADMIN, Resource.LISTING),)
_PUB_V1: Final = (Need(Right.PUB, Resource.TOPIC, "topic"),)
_PUB_V2: Final = (Need(Right.PUB, Resource.TOPIC, "b"),)
_TOPIC: Final = Need(Right.SUB, Resource.TOPIC, "topic")
_GROUP: Final = Need(Right.SUB, Resource.GROUP, "consumerGroup")
_NAMED_GROUP: Final = Need(Right.SUB, Resource.GROUP, "group")
_COMPARED: Final = Need(Right.SUB, Resource.GROUP, "compareGroup")
_BODY: Final = (Need(Right.SUB, Resource.GROUP), Need(Right.SUB, Resource.TOPIC))  # those that the body names
_MESSAGE: Final = Need(Right.SUB, Resource.MESSAGE, "offset")
_MESSAGE_ID: Final = Need(Right.SUB, Resource.MESSAGE, "msgId")
_DECIDE: Final = (Need(Right.PUB, Resource.MESSAGE, "commitLogOffset"),)

ROUTES: Final = (
    # sends
    CodeRoute(Code.SEND_MESSAGE, None, send.send, _CHANGE, _LEADER, _PUB_V1),
    CodeRoute(Code.SEND_MESSAGE_V2, None, send.send, _CHANGE, _LEADER, _PUB_V2),
    CodeRoute(Code.SEND_BATCH_MESSAGE, None, send.send, _CHANGE, _LEADER, _PUB_V2),
    CodeRoute(Code.SEND_REPLY_MESSAGE, None, replies.send_reply, _CHANGE, _LEADER, _PUB_V1),
    CodeRoute(Code.SEND_REPLY_MESSAGE_V2, None, replies.send_reply, _CHANGE, _LEADER, _PUB_V2),
    CodeRoute(
        Code.CONSUMER_SEND_MSG_BACK, h.ConsumerSendMsgBack, send_back.send_back, _CHANGE, _LEADER,
        (_NAMED_GROUP, _MESSAGE),
    ),
    CodeRoute(Code.END_TRANSACTION, h.EndTransaction, transactions.end, _CHANGE, _LEADER, _DECIDE),
    CodeRoute(Code.RESUME_CHECK_HALF_MESSAGE, h.ResumeCheckHalfMessage, transactions.resume, _CHANGE, _LEADER, _ADMIN),
    # pulls and single messages
    CodeRoute(Code.PULL_MESSAGE, None, pull.pull, _CHANGE, Roles.READER, (_TOPIC, _GROUP), Ports.MAIN),  # may commit an offset
    CodeRoute(Code.LITE_PULL_MESSAGE, None, pull.pull, _CHANGE, Roles.READER, (_TOPIC, _GROUP), Ports.MAIN),
    CodeRoute(Code.QUERY_MESSAGE, h.QueryMessage, message_queries.query, needs=(_TOPIC,)),
    CodeRoute(Code.VIEW_MESSAGE_BY_ID, h.ViewMessageById, message_queries.view, needs=(_MESSAGE,)),
    # live clients
    CodeRoute(Code.HEART_BEAT, h.NoFields, clients.heartbeat, _CHANGE, needs=_BODY, body_max=LIST_BYTES_MAX),
    CodeRoute(Code.UNREGISTER_CLIENT, h.UnregisterClient, clients.unregister, _CHANGE, needs=(_GROUP,)),
    CodeRoute(Code.GET_CONSUMER_LIST_BY_GROUP, h.ConsumerGroupOnly, clients.consumer_ids, roles=_FIRST, needs=(_GROUP,)),
    CodeRoute(Code.CHECK_CLIENT_CONFIG, h.NoFields, clients.check_client),
    CodeRoute(Code.LOCK_BATCH_MQ, h.NoFields, clients.lock_queues, _CHANGE, _LEADER, _BODY, body_max=LIST_BYTES_MAX),
    # Not only for a leader: releases what a former one granted.
    CodeRoute(Code.UNLOCK_BATCH_MQ, h.NoFields, clients.unlock_queues, _CHANGE, _FIRST, _BODY, body_max=LIST_BYTES_MAX),
    CodeRoute(Code.GET_CONSUMER_CONNECTION_LIST, h.GetConsumerConnectionList, clients.consumer_connections, needs=(_GROUP,)),
    CodeRoute(Code.GET_PRODUCER_CONNECTION_LIST, h.GetProducerConnectionList, clients.producer_connections, needs=_LISTING),
    CodeRoute(Code.GET_ALL_PRODUCER_INFO, h.NoFields, clients.all_producers, needs=_LISTING),
    # offsets
    CodeRoute(Code.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffset, offsets.query, roles=_FIRST, needs=(_TOPIC, _GROUP)),
    CodeRoute(Code.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffset, offsets.update, _CHANGE, _LEADER, (_TOPIC, _GROUP)),
    CodeRoute(Code.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffsetByTimestamp, offsets.by_time, roles=_ENDS, needs=(_TOPIC,)),
    CodeRoute(Code.GET_MAX_OFFSET, h.TopicQueue, offsets.maximum, roles=_ENDS, needs=(_TOPIC,)),
    CodeRoute(Code.GET_MIN_OFFSET, h.TopicQueue, offsets.minimum, roles=_ENDS, needs=(_TOPIC,)),
    CodeRoute(Code.GET_EARLIEST_MSG_STORETIME, h.TopicQueue, offsets.earliest_store_time, roles=_ENDS, needs=(_TOPIC,)),
    CodeRoute(Code.GET_ALL_CONSUMER_OFFSET, h.GetAllConsumerOffset, offsets.all_consumer_offsets, needs=_LISTING),
    CodeRoute(Code.GET_ALL_DELAY_OFFSET, h.NoFields, offsets.all_delay_offsets, needs=_LISTING),
    # topics and groups
    CodeRoute(Code.UPDATE_AND_CREATE_TOPIC, h.UpdateAndCreateTopic, admin.update_topic, _CHANGE, _LEADER, _ADMIN),
    CodeRoute(Code.GET_ALL_TOPIC_CONFIG, h.NoFields, admin.all_topics, needs=_LISTING),
    CodeRoute(Code.GET_TOPIC_CONFIG, h.GetTopicConfig, admin.topic_config, needs=_LISTING),
    CodeRoute(Code.DELETE_TOPIC_IN_BROKER, h.TopicOnly, admin.delete_topic, _CHANGE, _LEADER, _ADMIN),
    CodeRoute(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, h.NoFields, admin.system_topics),
    CodeRoute(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, h.NoFields, admin.update_group, _CHANGE, _LEADER, _ADMIN),
    CodeRoute(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, h.NoFields, admin.all_groups, needs=_LISTING),
    CodeRoute(Code.GET_SUBSCRIPTIONGROUP_CONFIG, h.GetSubscriptionGroupConfig, admin.group_config, needs=_LISTING),
    CodeRoute(Code.DELETE_SUBSCRIPTIONGROUP, h.DeleteSubscriptionGroup, admin.delete_group, _CHANGE, _LEADER, _ADMIN),
    # cleaning, configuration, statistics
    CodeRoute(Code.CLEAN_EXPIRED_CONSUMEQUEUE, h.NoFields, admin.clean_expired_queues, _CHANGE, needs=_ADMIN),
    # A follower's topic table may lag its queues by a second: topics in use could look unused.
    CodeRoute(Code.CLEAN_UNUSED_TOPIC, h.NoFields, admin.clean_unused_topics, _CHANGE, _LEADER, _ADMIN),
    CodeRoute(Code.DELETE_EXPIRED_COMMITLOG, h.NoFields, admin.delete_expired_files, _CHANGE, needs=_ADMIN),
    CodeRoute(Code.GET_BROKER_CONFIG, h.NoFields, admin.get_config),
    CodeRoute(Code.UPDATE_BROKER_CONFIG, h.NoFields, admin.update_config, _CHANGE, needs=_ADMIN),
    CodeRoute(Code.GET_BROKER_RUNTIME_INFO, h.NoFields, runtime.runtime_info),
    CodeRoute(Code.VIEW_BROKER_STATS_DATA, h.ViewBrokerStatsData, runtime.view_stats, needs=_LISTING),
    CodeRoute(Code.GET_TOPIC_STATS_INFO, h.TopicOnly, admin.topic_stats, roles=_ENDS, needs=(_TOPIC,)),
    CodeRoute(Code.GET_CONSUME_STATS, h.GetConsumeStats, admin.consume_stats, roles=_ENDS, needs=(_GROUP, _TOPIC)),
    CodeRoute(Code.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicOnly, admin.groups_of_topic, needs=(_TOPIC,)),
    # progress of groups
    CodeRoute(Code.GET_BROKER_CONSUME_STATS, h.GetBrokerConsumeStats, progress.all_consume_stats, roles=_ENDS, needs=_LISTING),
    CodeRoute(Code.QUERY_CONSUME_QUEUE, h.QueryConsumeQueue, queue_units.queue_units, roles=_ENDS, needs=(_TOPIC, _GROUP)),
    CodeRoute(Code.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffset, progress.reset, _CHANGE, _LEADER, _ADMIN),
    CodeRoute(Code.QUERY_CONSUME_TIME_SPAN, h.QueryConsumeTimeSpan, progress.time_span, roles=_ENDS, needs=(_TOPIC, _NAMED_GROUP)),
    CodeRoute(Code.QUERY_CORRECTION_OFFSET, h.QueryCorrectionOffset, progress.correction, needs=(_TOPIC, _COMPARED)),
    CodeRoute(Code.CLONE_GROUP_OFFSET, h.CloneGroupOffset, progress.clone, _CHANGE, _LEADER, _ADMIN),
    # relayed to a consumer
    CodeRoute(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.GetConsumerStatus, relay.consumer_status, needs=(_TOPIC, _NAMED_GROUP)),
    CodeRoute(Code.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfo, relay.running_info, needs=(_GROUP,)),
    CodeRoute(Code.CONSUME_MESSAGE_DIRECTLY, h.ConsumeMessageDirectly, relay.consume_directly, needs=(_GROUP, _MESSAGE_ID)),
    # accounts
    CodeRoute(Code.UPDATE_AND_CREATE_ACL_CONFIG, h.UpdateAndCreateAclConfig, acl.update_account, _CHANGE, needs=_ADMIN),
    CodeRoute(Code.DELETE_ACL_CONFIG, h.DeleteAclConfig, acl.delete_account, _CHANGE, needs=_ADMIN),
    CodeRoute(Code.GET_BROKER_CLUSTER_ACL_INFO, h.NoFields, acl.versions, needs=_ADMIN),
    CodeRoute(
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, h.UpdateGlobalWhiteAddrsConfig, acl.update_white_addresses, _CHANGE, needs=_ADMIN
    ),
    CodeRoute(Code.GET_BROKER_CLUSTER_ACL_CONFIG, h.NoFields, acl.accounts, needs=_ADMIN),
)  # fmt: skip

_NAME_SERVER: Final = "served by the NameServer"
_TO_CLIENT: Final = "sent by a broker to its clients"
_UNUSED: Final = "no client or tool of 4.9.7 sends it, and its broker has no handler"

NOT_SERVED: Final[dict[Code, str]] = (
    dict.fromkeys(
        (
            Code.PUT_KV_CONFIG,
            Code.GET_KV_CONFIG,
            Code.DELETE_KV_CONFIG,
            Code.REGISTER_BROKER,
            Code.UNREGISTER_BROKER,
            Code.GET_ROUTEINFO_BY_TOPIC,
            Code.GET_BROKER_CLUSTER_INFO,
            Code.WIPE_WRITE_PERM_OF_BROKER,
            Code.ADD_WRITE_PERM_OF_BROKER,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Code.DELETE_TOPIC_IN_NAMESRV,
            Code.GET_KVLIST_BY_NAMESPACE,
            Code.GET_TOPICS_BY_CLUSTER,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            Code.GET_UNIT_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            Code.UPDATE_NAMESRV_CONFIG,
            Code.GET_NAMESRV_CONFIG,
            Code.QUERY_DATA_VERSION,
        ),
        _NAME_SERVER,
    )
    | dict.fromkeys(
        (
            Code.CHECK_TRANSACTION_STATE,
            Code.NOTIFY_CONSUMER_IDS_CHANGED,
            Code.RESET_CONSUMER_CLIENT_OFFSET,
            Code.GET_CONSUMER_STATUS_FROM_CLIENT,
            Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
        ),
        _TO_CLIENT,
    )
    | dict.fromkeys(
        (
            Code.QUERY_BROKER_OFFSET,
            Code.GET_TOPIC_CONFIG_LIST,
            Code.GET_TOPIC_NAME_LIST,
            Code.TRIGGER_DELETE_FILES,
            Code.SUSPEND_CONSUMER,
            Code.RESUME_CONSUMER,
            Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
            Code.RESET_CONSUMER_OFFSET_IN_BROKER,
            Code.ADJUST_CONSUMER_THREAD_POOL,
            Code.WHO_CONSUME_THE_MESSAGE,
        ),
        _UNUSED,
    )
    | {
        Code.REGISTER_FILTER_SERVER: "filter servers run uploaded Java classes; SaturnMQ has none",
        Code.REGISTER_MESSAGE_FILTER_CLASS: "sent to a filter server, never to a broker",
    }
)


class BoundRoute(NamedTuple):
    """A route with the services of one broker."""

    code: Code
    header: type[Any] | None
    handler: Handler
    context: object
    body_max: int
    administrative: bool


def _services_of(handler: Handler) -> str:
    """The annotation of a handler's first parameter: a name, which is not evaluated since that takes 5 ms for all handlers."""
    return str(next(iter(handler.__annotations__.values())))


def bind(contexts: Iterable[object]) -> dict[int, BoundRoute]:
    """The table for one broker: each handler with the group of services that its first parameter is annotated with."""
    by_name = {type(context).__name__: context for context in contexts}
    bound = {}
    for route in ROUTES:
        context = by_name[_services_of(route.handler)]
        bound[int(route.code)] = BoundRoute(
            route.code, route.header, route.handler, context, route.body_max, route.administrative
        )
    return bound


TABLE: Final[dict[int, CodeRoute]] = {int(route.code): route for route in ROUTES}
# Derived from the rows, so that a new code cannot be forgotten in one of the sets.
FAST_CODES: Final = frozenset(code for code, route in TABLE.items() if route.ports is Ports.MAIN_AND_FAST)
LEADER_ONLY: Final = frozenset(code for code, route in TABLE.items() if route.roles is Roles.LEADER)
READER_ONLY: Final = frozenset(code for code, route in TABLE.items() if route.roles is Roles.READER)
SHOW_ENDS: Final = frozenset(code for code, route in TABLE.items() if route.roles is Roles.ENDS)
# What a follower passes on to the leader. Administrative requests are checked and audited where they arrive, and stay there.
FORWARDED: Final = frozenset(
    code for code, route in TABLE.items() if route.roles is not Roles.ANY and not route.administrative
)
