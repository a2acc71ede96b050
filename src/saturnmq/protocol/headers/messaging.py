"""Headers of the requests between clients and brokers, and the tables of all headers by request code.

A header is a slotted dataclass whose attributes are the snake case of the wire names unless stated otherwise. A field without a
default is required, as in Apache RocketMQ; None means that the field is absent. The headers for administration, the NameServer and
access control are defined in `headers.admin` and re-exported here. Field lists: docs/spec/00 section 5.
"""
# No `from __future__ import annotations`: `header` evaluates the annotations when it creates the class.

from typing import Final

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers.admin import (
    AddWritePermOfBroker,
    AddWritePermOfBrokerResponse,
    BrokerNameOnly,
    CloneGroupOffset,
    ConsumeMessageDirectly,
    DeleteAclConfig,
    DeleteKVConfig,
    DeleteSubscriptionGroup,
    DeleteTopicInBroker,
    DeleteTopicInNamesrv,
    GetAllConsumerOffset,
    GetBrokerClusterAclInfoResponse,
    GetBrokerConfigResponse,
    GetBrokerConsumeStats,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetConsumeStats,
    GetKVConfig,
    GetKVConfigResponse,
    GetKVListByNamespace,
    GetProducerConnectionList,
    GetRouteInfo,
    GetSubscriptionGroupConfig,
    GetTopicConfig,
    GetTopicsByCluster,
    GetTopicStatsInfo,
    GroupPage,
    NoFields,
    PutKVConfig,
    QueryConsumeQueue,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
    QueryDataVersion,
    QueryDataVersionResponse,
    QueryTopicConsumeByWho,
    RegisterBroker,
    RegisterBrokerResponse,
    ResetOffset,
    ResumeCheckHalfMessage,
    TopicOnly,
    UnregisterBroker,
    UpdateAndCreateAclConfig,
    UpdateAndCreateTopic,
    UpdateGlobalWhiteAddrsConfig,
    ViewBrokerStatsData,
    WipeWritePermOfBroker,
    WipeWritePermOfBrokerResponse,
)
from saturnmq.protocol.headers.fields import (
    FieldSpec,
    Header,
    Int,
    Long,
    decode_header,
    header,
    respell,
)
from saturnmq.protocol.headers.send_fields import SEND_V2_BY_V1

# fmt: off
__all__ = [
    "REQUEST_HEADERS",
    "RESPONSE_HEADERS",
    "UNUSED_CODES",
    "AddWritePermOfBroker",
    "AddWritePermOfBrokerResponse",
    "BrokerNameOnly",
    "CheckTransactionState",
    "CloneGroupOffset",
    "ConsumeMessageDirectly",
    "ConsumerGroupOnly",
    "ConsumerSendMsgBack",
    "DeleteAclConfig",
    "DeleteKVConfig",
    "DeleteSubscriptionGroup",
    "DeleteTopicInBroker",
    "DeleteTopicInNamesrv",
    "EndTransaction",
    "FieldSpec",
    "GetAllConsumerOffset",
    "GetBrokerClusterAclInfoResponse",
    "GetBrokerConfigResponse",
    "GetBrokerConsumeStats",
    "GetConsumeStats",
    "GetConsumerConnectionList",
    "GetConsumerListByGroup",
    "GetConsumerRunningInfo",
    "GetConsumerStatus",
    "GetEarliestMsgStoreTime",
    "GetKVConfig",
    "GetKVConfigResponse",
    "GetKVListByNamespace",
    "GetMaxOffset",
    "GetMinOffset",
    "GetProducerConnectionList",
    "GetRouteInfo",
    "GetSubscriptionGroupConfig",
    "GetTopicConfig",
    "GetTopicStatsInfo",
    "GetTopicsByCluster",
    "GroupPage",
    "Header",
    "NoFields",
    "NotifyConsumerIdsChanged",
    "OffsetResponse",
    "PullMessage",
    "PullMessageResponse",
    "PushReplyMessage",
    "PutKVConfig",
    "QueryConsumeQueue",
    "QueryConsumeTimeSpan",
    "QueryConsumerOffset",
    "QueryCorrectionOffset",
    "QueryDataVersion",
    "QueryDataVersionResponse",
    "QueryMessage",
    "QueryMessageResponse",
    "QueryTopicConsumeByWho",
    "RegisterBroker",
    "RegisterBrokerResponse",
    "ResetOffset",
    "ResumeCheckHalfMessage",
    "SearchOffsetByTimestamp",
    "SendMessage",
    "SendMessageResponse",
    "SendMessageV2",
    "StoreTimeResponse",
    "TopicOnly",
    "TopicQueue",
    "UnregisterBroker",
    "UnregisterClient",
    "UpdateAndCreateAclConfig",
    "UpdateAndCreateTopic",
    "UpdateConsumerOffset",
    "UpdateGlobalWhiteAddrsConfig",
    "ViewBrokerStatsData",
    "ViewMessageById",
    "WipeWritePermOfBroker",
    "WipeWritePermOfBrokerResponse",
    "decode_header",
]
# fmt: on


@header(wire={"broker_name": "bname"})
class SendMessage(Header):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324). born_timestamp is Unix ms.

    Requests 310, 320 and 325 carry the same fields under one-letter names (SendMessageV2).
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False
    broker_name: str | None = None


_V2_FIELDS: Final = respell(
    SendMessage.FIELDS, {spec.attribute: SEND_V2_BY_V1[spec.wire] for spec in SendMessage.FIELDS}
)


@header(fields_of=_V2_FIELDS)
class SendMessageV2(SendMessage):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325): SendMessage with one-letter wire names."""

    __slots__ = ()


@header(wire={"region_id": "MSG_REGION", "trace_on": "TRACE_ON"})
class SendMessageResponse(Header):
    """Response to all send requests (10, 310, 320, 324, 325). msg_id is the offset message id, comma-separated for a batch."""

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool | None = None


@header(wire={"broker_name": "bname"})
class PullMessage(Header):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None
    broker_name: str | None = None


@header()
class PullMessageResponse(Header):
    """Response to PULL_MESSAGE (11)."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


@header(wire={"unique_key_query": "_UNIQUE_KEY_QUERY"})
class QueryMessage(Header):
    """QUERY_MESSAGE (12). Times are Unix ms."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool | None = None


@header()
class QueryMessageResponse(Header):
    """Response to QUERY_MESSAGE (12)."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@header(wire={"broker_name": "bname"})
class QueryConsumerOffset(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int
    broker_name: str | None = None


@header(wire={"broker_name": "bname"})
class UpdateConsumerOffset(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long
    broker_name: str | None = None


@header()
class OffsetResponse(Header):
    """Response to QUERY_CONSUMER_OFFSET (14), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30) and GET_MIN_OFFSET (31)."""

    offset: Long


@header(wire={"broker_name": "bname"})
class SearchOffsetByTimestamp(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). timestamp is Unix ms."""

    topic: str
    queue_id: Int
    timestamp: Long
    broker_name: str | None = None


@header(wire={"broker_name": "bname"})
class TopicQueue(Header):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int
    broker_name: str | None = None


@header()
class StoreTimeResponse(Header):
    """Response to GET_EARLIEST_MSG_STORETIME (32). timestamp is Unix ms."""

    timestamp: Long


@header()
class ViewMessageById(Header):
    """VIEW_MESSAGE_BY_ID (33). offset is a physical offset."""

    offset: Long


@header(wire={"client_id": "clientID"})
class UnregisterClient(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


@header(wire={"broker_name": "bname"})
class ConsumerSendMsgBack(Header):
    """CONSUMER_SEND_MSG_BACK (36). offset is the physical offset of the message."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    broker_name: str | None = None


@header(wire={"broker_name": "bname"})
class EndTransaction(Header):
    """END_TRANSACTION (37). commit_or_rollback is 8 (commit), 12 (rollback) or 0 (unknown)."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    broker_name: str | None = None


@header()
class ConsumerGroupOnly(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


@header(wire={"broker_name": "bname"})
class CheckTransactionState(Header):
    """CHECK_TRANSACTION_STATE (39)."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = None


@header()
class PushReplyMessage(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326). Hosts are ip:port."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int = 0
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Long


GetMaxOffset = GetMinOffset = GetEarliestMsgStoreTime = TopicQueue
GetConsumerListByGroup = NotifyConsumerIdsChanged = ConsumerGroupOnly

_UNUSED: Final = "defined, but sent and served by no release of 4.x"
_REMOVED: Final = "the filter server was removed; a broker answers REQUEST_CODE_NOT_SUPPORTED"

# Request codes without a header class, with the reason.
UNUSED_CODES: Final[dict[RequestCode, str]] = {
    RequestCode.QUERY_BROKER_OFFSET: _UNUSED,
    RequestCode.GET_TOPIC_CONFIG_LIST: _UNUSED,
    RequestCode.GET_TOPIC_NAME_LIST: _UNUSED,
    RequestCode.TRIGGER_DELETE_FILES: _UNUSED,
    RequestCode.SUSPEND_CONSUMER: _UNUSED,
    RequestCode.RESUME_CONSUMER: _UNUSED,
    RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER: _UNUSED,
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER: _UNUSED,
    RequestCode.ADJUST_CONSUMER_THREAD_POOL: _UNUSED,
    RequestCode.WHO_CONSUME_THE_MESSAGE: _UNUSED,
    RequestCode.REGISTER_FILTER_SERVER: _REMOVED,
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS: _REMOVED,
}

REQUEST_HEADERS: Final[dict[RequestCode, type[Header]]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.QUERY_MESSAGE: QueryMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: UpdateAndCreateTopic,
    RequestCode.GET_ALL_TOPIC_CONFIG: NoFields,
    RequestCode.UPDATE_BROKER_CONFIG: NoFields,
    RequestCode.GET_BROKER_CONFIG: NoFields,
    RequestCode.GET_BROKER_RUNTIME_INFO: NoFields,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetByTimestamp,
    RequestCode.GET_MAX_OFFSET: GetMaxOffset,
    RequestCode.GET_MIN_OFFSET: GetMinOffset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: GetEarliestMsgStoreTime,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageById,
    RequestCode.HEART_BEAT: NoFields,
    RequestCode.UNREGISTER_CLIENT: UnregisterClient,
    RequestCode.CONSUMER_SEND_MSG_BACK: ConsumerSendMsgBack,
    RequestCode.END_TRANSACTION: EndTransaction,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroup,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransactionState,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: NotifyConsumerIdsChanged,
    RequestCode.LOCK_BATCH_MQ: NoFields,
    RequestCode.UNLOCK_BATCH_MQ: NoFields,
    RequestCode.GET_ALL_CONSUMER_OFFSET: GetAllConsumerOffset,
    RequestCode.GET_ALL_DELAY_OFFSET: NoFields,
    RequestCode.CHECK_CLIENT_CONFIG: NoFields,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: UpdateAndCreateAclConfig,
    RequestCode.DELETE_ACL_CONFIG: DeleteAclConfig,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: NoFields,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: UpdateGlobalWhiteAddrsConfig,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: NoFields,
    RequestCode.PUT_KV_CONFIG: PutKVConfig,
    RequestCode.GET_KV_CONFIG: GetKVConfig,
    RequestCode.DELETE_KV_CONFIG: DeleteKVConfig,
    RequestCode.REGISTER_BROKER: RegisterBroker,
    RequestCode.UNREGISTER_BROKER: UnregisterBroker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteInfo,
    RequestCode.GET_BROKER_CLUSTER_INFO: NoFields,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: NoFields,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: NoFields,
    RequestCode.GET_TOPIC_STATS_INFO: GetTopicStatsInfo,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: GetConsumerConnectionList,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: GetProducerConnectionList,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBroker,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NoFields,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteSubscriptionGroup,
    RequestCode.GET_CONSUME_STATS: GetConsumeStats,
    RequestCode.DELETE_TOPIC_IN_BROKER: DeleteTopicInBroker,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: DeleteTopicInNamesrv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: GetKVListByNamespace,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatus,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatus,
    RequestCode.GET_TOPICS_BY_CLUSTER: GetTopicsByCluster,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: QueryTopicConsumeByWho,
    RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpan,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: NoFields,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: NoFields,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: NoFields,
    RequestCode.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfo,
    RequestCode.QUERY_CORRECTION_OFFSET: QueryCorrectionOffset,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectly,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.GET_UNIT_TOPIC_LIST: NoFields,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: NoFields,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NoFields,
    RequestCode.CLONE_GROUP_OFFSET: CloneGroupOffset,
    RequestCode.VIEW_BROKER_STATS_DATA: ViewBrokerStatsData,
    RequestCode.CLEAN_UNUSED_TOPIC: NoFields,
    RequestCode.GET_BROKER_CONSUME_STATS: GetBrokerConsumeStats,
    RequestCode.UPDATE_NAMESRV_CONFIG: NoFields,
    RequestCode.GET_NAMESRV_CONFIG: NoFields,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueue,
    RequestCode.QUERY_DATA_VERSION: QueryDataVersion,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeCheckHalfMessage,
    RequestCode.SEND_REPLY_MESSAGE: SendMessage,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReplyMessage,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: AddWritePermOfBroker,
    RequestCode.GET_ALL_PRODUCER_INFO: NoFields,
    RequestCode.DELETE_EXPIRED_COMMITLOG: NoFields,
    RequestCode.GET_TOPIC_CONFIG: GetTopicConfig,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GetSubscriptionGroupConfig,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
}

# Header of a SUCCESS response; the responses to all other codes have no header fields.
RESPONSE_HEADERS: Final[dict[RequestCode, type[Header]]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponse,
    RequestCode.PULL_MESSAGE: PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponse,
    RequestCode.QUERY_MESSAGE: QueryMessageResponse,
    RequestCode.QUERY_CONSUMER_OFFSET: OffsetResponse,
    RequestCode.GET_BROKER_CONFIG: GetBrokerConfigResponse,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: OffsetResponse,
    RequestCode.GET_MAX_OFFSET: OffsetResponse,
    RequestCode.GET_MIN_OFFSET: OffsetResponse,
    RequestCode.GET_EARLIEST_MSG_STORETIME: StoreTimeResponse,
    RequestCode.GET_ALL_CONSUMER_OFFSET: GroupPage,
    RequestCode.GET_BROKER_CONSUME_STATS: GroupPage,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: GetBrokerClusterAclInfoResponse,
    RequestCode.GET_KV_CONFIG: GetKVConfigResponse,
    RequestCode.REGISTER_BROKER: RegisterBrokerResponse,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBrokerResponse,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponse,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponse,
    RequestCode.QUERY_DATA_VERSION: QueryDataVersionResponse,
    RequestCode.SEND_REPLY_MESSAGE: SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageResponse,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: AddWritePermOfBrokerResponse,
}
