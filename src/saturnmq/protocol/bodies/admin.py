"""JSON bodies of administration requests: statistics, connections, offsets, accounts.

Import them through `bodies`. Attributes are the snake case of the JSON names unless stated otherwise. Times are Unix ms. See
docs/spec/00 section 5 and docs/spec/05 section 7.
"""
# No `from __future__ import annotations`: `body` evaluates the annotations when it creates the class.

from collections.abc import Iterator
from dataclasses import field

from saturnmq.protocol.bodies.client import MessageQueue, SubscriptionData
from saturnmq.protocol.bodies.fields import Body, body
from saturnmq.protocol.json_dialect import dumps
from saturnmq.protocol.offsets import QueueOffset


@body()
class OffsetWrapper(Body):
    """Broker offset and consumer offset of one queue and group; their difference is the lag."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


@body()
class ConsumeStats(Body):
    """Consumption progress of a group by queue (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@body()
class ConsumeStatsList(Body):
    """Consumption progress of all groups of a broker (317): each entry maps a group to its statistics."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0


@body()
class TopicOffset(Body):
    """Minimum and maximum (next) offset of one queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@body()
class TopicStatsTable(Body):
    """Offsets of a topic by queue (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


@body()
class ResetOffsetBody(Body):
    """New offsets by queue (220, 222)."""

    offset_table: dict[MessageQueue, QueueOffset] = field(default_factory=dict)

    def list_pieces(self) -> Iterator[bytes]:
        """Pieces of the form that C++ clients expect: an array instead of a map."""
        mark = b'{"offsetTable":['
        for queue, offset in self.offset_table.items():
            yield mark + dumps({**queue.to_json(), "offset": offset})
            mark = b","
        yield b"]}" if self.offset_table else mark + b"]}"


@body()
class GetConsumerStatusBody(Body):
    """Consumer offsets as known to clients: of one client (221) or by client id (223)."""

    message_queue_table: dict[MessageQueue, QueueOffset] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, QueueOffset]] = field(default_factory=dict)

    def client_pieces(self) -> Iterator[bytes]:
        """`encode` of consumer_table alone, in pieces of one client."""
        mark = b'{"consumerTable":{'
        for client, offsets in self.consumer_table.items():
            offsets_json = GetConsumerStatusBody(offsets).encode().partition(b'"messageQueueTable":')[2][:-1]
            yield mark + dumps(client) + b":" + offsets_json
            mark = b","
        yield b'},"messageQueueTable":{}}' if self.consumer_table else mark + b'},"messageQueueTable":{}}'


@body()
class Connection(Body):
    """One connected client. language is a `Language` name, version the ordinal of its release."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


@body()
class ClientConflict(Body):
    """Two clients that impair each other. kind: client_id or subscriptions, then with the topics that differ. SaturnMQ only."""

    kind: str = ""
    client_id: str = ""
    client_addr: str = ""
    other_id: str = ""
    other_addr: str = ""
    topics: list[str] = field(default_factory=list)


@body()
class ConsumerConnection(Body):
    """Clients and subscriptions of a consumer group (203). conflicts: only SaturnMQ answers them, and only if there are any."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    conflicts: list[ClientConflict] | None = None


@body()
class ProducerConnection(Body):
    """Clients of a producer group (204)."""

    connection_set: list[Connection] = field(default_factory=list)


@body(wire={"remote_ip": "remoteIP"})
class ProducerInfo(Body):
    """One client of a producer group (328)."""

    client_id: str = ""
    remote_ip: str = ""
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@body()
class ProducerTableInfo(Body):
    """Clients by producer group (328)."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@body()
class GroupList(Body):
    """Consumer groups (300)."""

    group_list: list[str] = field(default_factory=list)


@body()
class QueueTimeSpan(Body):
    """First, last and consumed store time of one queue; delay_time is in ms. Java adds the times as text, unused by clients."""

    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@body()
class ConsumeTimeSpans(Body):
    """Time spans of a topic for a group (303)."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@body(wire={"cached_msg_size_mib": "cachedMsgSizeInMiB"})
class ProcessQueueInfo(Body):
    """State of one queue in a consumer client. `droped` is Apache RocketMQ's spelling."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@body(
    wire={
        "pull_rt": "pullRT",
        "pull_tps": "pullTPS",
        "consume_rt": "consumeRT",
        "consume_ok_tps": "consumeOKTPS",
        "consume_failed_tps": "consumeFailedTPS",
    }
)
class ConsumeStatus(Body):
    """Rates of one topic in a client: ms per pull or message, and messages per second."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0


@body()
class ConsumerRunningInfo(Body):
    """Self-description of a consumer client (307, RT-09)."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


@body()
class QueryCorrectionOffsetBody(Body):
    """Smallest offsets of other groups by queue (308)."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


@body()
class ConsumeMessageDirectlyResult(Body):
    """Outcome of one directly consumed message (309, CA-15): CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, ..."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0


@body()
class BrokerStatsItem(Body):
    """Sum of a period, rate per second (tps), and average per call (avgpt)."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@body()
class BrokerStatsData(Body):
    """One statistic over the last minute, hour and day (315)."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


@body()
class ConsumeQueueData(Body):
    """One entry of a consume queue, and whether the group's filter accepts it (eval)."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@body()
class QueryConsumeQueueResponse(Body):
    """Entries of a consume queue (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


@body()
class PlainAccessConfig(Body):
    """One account. Permissions are texts such as "topicA=PUB|SUB"."""

    access_key: str = ""
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


@body()
class AclConfig(Body):
    """All accounts of a broker (54)."""

    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list)
