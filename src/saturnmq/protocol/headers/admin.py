"""Headers of administration, NameServer and account calls. Source: spec 00 section 5; import them through `headers`."""
# No postponed annotations: `header` reads them while the class is made.

from saturnmq.protocol.headers.fields import Header, Int, Long, header


@header()
class NoFields(Header):
    """A request or answer without header fields."""


@header()
class UpdateAndCreateTopic(Header):
    """17. The broker ignores `order`."""

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
    """26: version is a DataVersion as JSON text."""

    version: str | None = None


@header()
class UpdateAndCreateAclConfig(Header):
    """50: topic_perms and group_perms are comma lists of name=PERM."""

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
    """51."""

    access_key: str


@header()
class GetBrokerClusterAclInfoResponse(Header):
    """52: versions are DataVersions as JSON text."""

    version: str | None = None
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@header()
class UpdateGlobalWhiteAddrsConfig(Header):
    """53."""

    global_white_addrs: str
    acl_file_full_path: str


@header()
class PutKVConfig(Header):
    """100."""

    namespace: str
    key: str
    value: str


@header()
class GetKVConfig(Header):
    """101, 102."""

    namespace: str
    key: str


@header()
class GetKVConfigResponse(Header):
    """101."""

    value: str | None = None


@header()
class RegisterBroker(Header):
    """103: body_crc32 is over the body as sent."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0


@header()
class RegisterBrokerResponse(Header):
    """103: addresses of the master's HA port and of the master; only for slaves."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header()
class UnregisterBroker(Header):
    """104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header()
class GetRouteInfo(Header):
    """105."""

    topic: str
    accept_standard_json_only: bool | None = None


@header()
class TopicOnly(Header):
    """202, 215, 300."""

    topic: str


@header()
class GetConsumerConnectionList(Header):
    """203."""

    consumer_group: str


@header()
class GetProducerConnectionList(Header):
    """204."""

    producer_group: str


@header()
class BrokerNameOnly(Header):
    """205, 327."""

    broker_name: str


@header()
class WipeWritePermOfBrokerResponse(Header):
    """205."""

    wipe_topic_count: Int


@header()
class AddWritePermOfBrokerResponse(Header):
    """327."""

    add_topic_count: Int


@header()
class DeleteSubscriptionGroup(Header):
    """207."""

    group_name: str
    remove_offset: bool = False


@header()
class GetConsumeStats(Header):
    """208."""

    consumer_group: str
    topic: str | None = None


@header()
class DeleteTopicInNamesrv(Header):
    """216."""

    topic: str
    cluster_name: str | None = None


@header()
class GetKVListByNamespace(Header):
    """219."""

    namespace: str


@header()
class ResetOffset(Header):
    """220, 222."""

    topic: str
    group: str
    timestamp: Long
    is_force: bool


@header()
class GetConsumerStatus(Header):
    """221, 223."""

    topic: str
    group: str
    client_addr: str | None = None


@header()
class GetTopicsByCluster(Header):
    """224."""

    cluster: str


@header()
class QueryConsumeTimeSpan(Header):
    """303."""

    topic: str
    group: str


@header()
class GetConsumerRunningInfo(Header):
    """307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header()
class QueryCorrectionOffset(Header):
    """308: filter_groups is a comma list."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


@header()
class ConsumeMessageDirectly(Header):
    """309: relayed to the client with the message as body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@header()
class CloneGroupOffset(Header):
    """314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@header()
class ViewBrokerStatsData(Header):
    """315."""

    stats_name: str
    stats_key: str


@header()
class GetBrokerConsumeStats(Header):
    """317."""

    is_order: bool


@header()
class QueryConsumeQueue(Header):
    """321."""

    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


@header()
class QueryDataVersion(Header):
    """322: body is a DataVersion."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header()
class QueryDataVersionResponse(Header):
    """322."""

    changed: bool


@header()
class ResumeCheckHalfMessage(Header):
    """323: msg_id is an offset message id."""

    msg_id: str | None = None


GetTopicStatsInfo = DeleteTopicInBroker = QueryTopicConsumeByWho = TopicOnly
WipeWritePermOfBroker = AddWritePermOfBroker = BrokerNameOnly
DeleteKVConfig = GetKVConfig
