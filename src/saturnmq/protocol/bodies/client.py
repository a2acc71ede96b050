"""JSON bodies of clients and groups: heartbeats, queue locks, consumer offsets.

Import them through `bodies`. Attributes are the snake case of the JSON names unless stated otherwise. An absent member takes its
default. See docs/spec/00 sections 3.7 and 5.
"""
# No `from __future__ import annotations`: `body` evaluates the annotations when it creates the class.

from dataclasses import field

from saturnmq.protocol.bodies.fields import Body, body
from saturnmq.protocol.bodies.route import DataVersion
from saturnmq.protocol.offsets import QueueOffset


@body(frozen=True, order=True)
class MessageQueue(Body):
    """One queue of a topic on one broker; also used as a member name in some maps.

    Example:
        for queue in await out.queues("orders"):
            print(queue.broker_name, queue.queue_id)
    """

    topic: str
    broker_name: str
    queue_id: int


@body()
class SubscriptionData(Body):
    """Subscription of a group to a topic. code_set holds the Java hash code of each tag."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@body()
class ProducerData(Body):
    """A producer group of a client."""

    group_name: str


@body()
class ConsumerData(Body):
    """A consumer group of a client."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@body(wire={"client_id": "clientID"}, aliases={"client_id": ("clientId",)})
class HeartbeatData(Body):
    """Body of a client heartbeat (34)."""

    client_id: str
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)


@body()
class CheckClientRequest(Body):
    """A subscription to validate (46)."""

    client_id: str
    group: str
    subscription_data: SubscriptionData | None = None


@body()
class ConsumerIdList(Body):
    """Client ids of a group (38)."""

    consumer_id_list: list[str] = field(default_factory=list)


@body()
class LockBatchRequest(Body):
    """Queues to lock or unlock for a client (41, 42)."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = field(default_factory=list)


@body(wire={"lock_ok_mq_set": "lockOKMQSet"})
class LockBatchResponse(Body):
    """Queues that the client has locked (41)."""

    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list)


@body()
class SubscriptionGroupConfig(Body):
    """Configuration of a consumer group on one broker (200)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@body()
class SubscriptionGroupTable(Body):
    """All consumer groups of a broker (201, subscriptionGroup.json)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


@body()
class ConsumerOffsetTable(Body):
    """Offsets by "topic@group" and queue (43, consumerOffset.json)."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)


@body()
class DelayOffsetTable(Body):
    """Offsets by delay level (45, delayOffset.json)."""

    offset_table: dict[int, QueueOffset] = field(default_factory=dict)
