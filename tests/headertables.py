"""The header class of every request code, and of its response: what recorded frames and random requests are read with.

Those that the product reads field by field have their class here.
"""

# No `from __future__ import annotations`: `header` evaluates the annotations when it creates the class.

from typing import Final

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.headers.fields import Header, Int, Long, header
from saturnmq.protocol.headers.send_fields import SEND_V2_BY_V1


@header(wire={spec.attribute: SEND_V2_BY_V1[spec.wire] for spec in h.SendMessage.FIELDS})
class SendMessageV2(h.SendMessage):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325): SendMessage with one-letter wire names."""


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


@header()
class StoreTimeResponse(Header):
    """Response to GET_EARLIEST_MSG_STORETIME (32). timestamp is Unix ms."""

    timestamp: Long


@header()
class WipeWritePermOfBrokerResponse(Header):
    """Response to WIPE_WRITE_PERM_OF_BROKER (205)."""

    wipe_topic_count: Int


@header()
class AddWritePermOfBrokerResponse(Header):
    """Response to ADD_WRITE_PERM_OF_BROKER (327)."""

    add_topic_count: Int


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
    RequestCode.SEND_MESSAGE: h.SendMessage,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.QUERY_MESSAGE: h.QueryMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: h.QueryConsumerOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: h.UpdateConsumerOffset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: h.UpdateAndCreateTopic,
    RequestCode.GET_ALL_TOPIC_CONFIG: h.NoFields,
    RequestCode.UPDATE_BROKER_CONFIG: h.NoFields,
    RequestCode.GET_BROKER_CONFIG: h.NoFields,
    RequestCode.GET_BROKER_RUNTIME_INFO: h.NoFields,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: h.SearchOffsetByTimestamp,
    RequestCode.GET_MAX_OFFSET: h.TopicQueue,
    RequestCode.GET_MIN_OFFSET: h.TopicQueue,
    RequestCode.GET_EARLIEST_MSG_STORETIME: h.TopicQueue,
    RequestCode.VIEW_MESSAGE_BY_ID: h.ViewMessageById,
    RequestCode.HEART_BEAT: h.NoFields,
    RequestCode.UNREGISTER_CLIENT: h.UnregisterClient,
    RequestCode.CONSUMER_SEND_MSG_BACK: h.ConsumerSendMsgBack,
    RequestCode.END_TRANSACTION: h.EndTransaction,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: h.ConsumerGroupOnly,
    RequestCode.CHECK_TRANSACTION_STATE: h.CheckTransactionState,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: h.ConsumerGroupOnly,
    RequestCode.LOCK_BATCH_MQ: h.NoFields,
    RequestCode.UNLOCK_BATCH_MQ: h.NoFields,
    RequestCode.GET_ALL_CONSUMER_OFFSET: h.GetAllConsumerOffset,
    RequestCode.GET_ALL_DELAY_OFFSET: h.NoFields,
    RequestCode.CHECK_CLIENT_CONFIG: h.NoFields,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: h.UpdateAndCreateAclConfig,
    RequestCode.DELETE_ACL_CONFIG: h.DeleteAclConfig,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: h.NoFields,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: h.UpdateGlobalWhiteAddrsConfig,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: h.NoFields,
    RequestCode.PUT_KV_CONFIG: h.PutKVConfig,
    RequestCode.GET_KV_CONFIG: h.GetKVConfig,
    RequestCode.DELETE_KV_CONFIG: h.DeleteKVConfig,
    RequestCode.REGISTER_BROKER: h.RegisterBroker,
    RequestCode.UNREGISTER_BROKER: h.UnregisterBroker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: h.GetRouteInfo,
    RequestCode.GET_BROKER_CLUSTER_INFO: h.NoFields,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: h.NoFields,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: h.NoFields,
    RequestCode.GET_TOPIC_STATS_INFO: h.GetTopicStatsInfo,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: h.GetConsumerConnectionList,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: h.GetProducerConnectionList,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: h.WipeWritePermOfBroker,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: h.NoFields,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: h.DeleteSubscriptionGroup,
    RequestCode.GET_CONSUME_STATS: h.GetConsumeStats,
    RequestCode.DELETE_TOPIC_IN_BROKER: h.DeleteTopicInBroker,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: h.DeleteTopicInNamesrv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: h.GetKVListByNamespace,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: h.ResetOffset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: h.GetConsumerStatus,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: h.ResetOffset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: h.GetConsumerStatus,
    RequestCode.GET_TOPICS_BY_CLUSTER: h.GetTopicsByCluster,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: h.QueryTopicConsumeByWho,
    RequestCode.QUERY_CONSUME_TIME_SPAN: h.QueryConsumeTimeSpan,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: h.NoFields,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: h.NoFields,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: h.NoFields,
    RequestCode.GET_CONSUMER_RUNNING_INFO: h.GetConsumerRunningInfo,
    RequestCode.QUERY_CORRECTION_OFFSET: h.QueryCorrectionOffset,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: h.ConsumeMessageDirectly,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.GET_UNIT_TOPIC_LIST: h.NoFields,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: h.NoFields,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: h.NoFields,
    RequestCode.CLONE_GROUP_OFFSET: h.CloneGroupOffset,
    RequestCode.VIEW_BROKER_STATS_DATA: h.ViewBrokerStatsData,
    RequestCode.CLEAN_UNUSED_TOPIC: h.NoFields,
    RequestCode.GET_BROKER_CONSUME_STATS: h.GetBrokerConsumeStats,
    RequestCode.UPDATE_NAMESRV_CONFIG: h.NoFields,
    RequestCode.GET_NAMESRV_CONFIG: h.NoFields,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.QUERY_CONSUME_QUEUE: h.QueryConsumeQueue,
    RequestCode.QUERY_DATA_VERSION: h.QueryDataVersion,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: h.ResumeCheckHalfMessage,
    RequestCode.SEND_REPLY_MESSAGE: h.SendMessage,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: h.PushReplyMessage,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: h.AddWritePermOfBroker,
    RequestCode.GET_ALL_PRODUCER_INFO: h.NoFields,
    RequestCode.DELETE_EXPIRED_COMMITLOG: h.NoFields,
    RequestCode.GET_TOPIC_CONFIG: h.GetTopicConfig,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: h.GetSubscriptionGroupConfig,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
}

# Header of a SUCCESS response; the responses to all other codes have no header fields.
RESPONSE_HEADERS: Final[dict[RequestCode, type[Header]]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponse,
    RequestCode.PULL_MESSAGE: PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponse,
    RequestCode.QUERY_MESSAGE: h.QueryMessageResponse,
    RequestCode.QUERY_CONSUMER_OFFSET: h.OffsetResponse,
    RequestCode.GET_BROKER_CONFIG: h.GetBrokerConfigResponse,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: h.OffsetResponse,
    RequestCode.GET_MAX_OFFSET: h.OffsetResponse,
    RequestCode.GET_MIN_OFFSET: h.OffsetResponse,
    RequestCode.GET_EARLIEST_MSG_STORETIME: StoreTimeResponse,
    RequestCode.GET_ALL_CONSUMER_OFFSET: h.GroupPage,
    RequestCode.GET_BROKER_CONSUME_STATS: h.GroupPage,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: h.GetBrokerClusterAclInfoResponse,
    RequestCode.GET_KV_CONFIG: h.GetKVConfigResponse,
    RequestCode.REGISTER_BROKER: h.RegisterBrokerResponse,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBrokerResponse,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponse,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponse,
    RequestCode.QUERY_DATA_VERSION: h.QueryDataVersionResponse,
    RequestCode.SEND_REPLY_MESSAGE: SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageResponse,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: AddWritePermOfBrokerResponse,
}
