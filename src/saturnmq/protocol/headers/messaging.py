"""Headers of requests and responses, but of sends by one-letter names and pulls, whose fields are read without one.

A header is a slotted dataclass whose attributes are the snake case of the wire names unless stated otherwise. A field without a
default is required, as in Apache RocketMQ; None means that the field is absent. Field lists: docs/spec/00 section 5.
"""
# No `from __future__ import annotations`: `header` evaluates the annotations when it creates the class.

from saturnmq.protocol.headers.fields import Header as Header
from saturnmq.protocol.headers.fields import Int, Long, header
from saturnmq.protocol.headers.fields import decode_header as decode_header

# Between clients and brokers


@header(wire={"broker_name": "bname"})
class SendMessage(Header):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324). born_timestamp is Unix ms.

    Requests 310, 320 and 325 carry the same fields under one-letter names (`headers.send_fields`).
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


# Administration, NameServer and access control


@header()
class NoFields(Header):
    """A request or response without header fields."""


@header()
class UpdateAndCreateTopic(Header):
    """UPDATE_AND_CREATE_TOPIC (17). The broker ignores `order`."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False


@header()
class GetBrokerConfigResponse(Header):
    """Response to GET_BROKER_CONFIG (26). version is a DataVersion as JSON text."""

    version: str | None = None


@header()
class UpdateAndCreateAclConfig(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). topic_perms and group_perms are comma-separated lists of name=PERM."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@header()
class DeleteAclConfig(Header):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str


@header()
class GetBrokerClusterAclInfoResponse(Header):
    """Response to GET_BROKER_CLUSTER_ACL_INFO (52). Versions are DataVersions as JSON text."""

    version: str | None = None
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@header()
class UpdateGlobalWhiteAddrsConfig(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@header()
class PutKVConfig(Header):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@header()
class GetKVConfig(Header):
    """GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@header()
class GetKVConfigResponse(Header):
    """Response to GET_KV_CONFIG (101)."""

    value: str | None = None


@header()
class RegisterBroker(Header):
    """REGISTER_BROKER (103). body_crc32 is the CRC-32 of the body as sent."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0


@header()
class RegisterBrokerResponse(Header):
    """Response to REGISTER_BROKER (103): the HA address and the address of the master, for slaves only."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header()
class UnregisterBroker(Header):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header()
class GetRouteInfo(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


@header()
class TopicOnly(Header):
    """GET_TOPIC_STATS_INFO (202), DELETE_TOPIC_IN_BROKER (215) and QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


@header()
class GetTopicConfig(Header):
    """GET_TOPIC_CONFIG (351)."""

    topic: str


@header()
class GetSubscriptionGroupConfig(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


@header()
class GetConsumerConnectionList(Header):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


@header()
class GetProducerConnectionList(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@header()
class BrokerNameOnly(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


@header()
class DeleteSubscriptionGroup(Header):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    remove_offset: bool = False


@header()
class GetConsumeStats(Header):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


@header()
class DeleteTopicInNamesrv(Header):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


@header()
class GetKVListByNamespace(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


@header()
class ResetOffset(Header):
    """RESET_CONSUMER_CLIENT_OFFSET (220) and INVOKE_BROKER_TO_RESET_OFFSET (222)."""

    topic: str
    group: str
    timestamp: Long
    is_force: bool


@header()
class GetConsumerStatus(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT (221) and INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    topic: str
    group: str
    client_addr: str | None = None


@header()
class GetTopicsByCluster(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@header()
class QueryConsumeTimeSpan(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


@header()
class GetConsumerRunningInfo(Header):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header()
class QueryCorrectionOffset(Header):
    """QUERY_CORRECTION_OFFSET (308). filter_groups is a comma-separated list."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


@header()
class ConsumeMessageDirectly(Header):
    """CONSUME_MESSAGE_DIRECTLY (309). The broker forwards it to the client with the message as body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@header()
class CloneGroupOffset(Header):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@header()
class ViewBrokerStatsData(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


@header()
class GetBrokerConsumeStats(Header):
    """GET_BROKER_CONSUME_STATS (317). paged and start_group: as in GetAllConsumerOffset."""

    is_order: bool
    paged: bool | None = None
    start_group: str | None = None


@header()
class GetAllConsumerOffset(Header):
    """GET_ALL_CONSUMER_OFFSET (43).

    SaturnMQ extension: with paged the answer has the groups from start_group on, as many as fit, and next_group if any are left.
    Brokers of Apache RocketMQ answer with all groups.
    """

    paged: bool | None = None
    start_group: str | None = None


@header()
class GroupPage(Header):
    """Response with a page of groups (43, 317): the start_group of the next page, absent on the last one."""

    next_group: str | None = None


@header()
class QueryConsumeQueue(Header):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


@header()
class QueryDataVersion(Header):
    """QUERY_DATA_VERSION (322). The body is a DataVersion."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header()
class QueryDataVersionResponse(Header):
    """Response to QUERY_DATA_VERSION (322)."""

    changed: bool


@header()
class ResumeCheckHalfMessage(Header):
    """RESUME_CHECK_HALF_MESSAGE (323). msg_id is an offset message id."""

    msg_id: str | None = None


GetTopicStatsInfo = DeleteTopicInBroker = QueryTopicConsumeByWho = TopicOnly
WipeWritePermOfBroker = AddWritePermOfBroker = BrokerNameOnly
DeleteKVConfig = GetKVConfig
