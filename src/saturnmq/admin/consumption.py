"""The progress of a group, and its connected clients, merged over all brokers that serve its retry topic.

Apache's tools ask one random broker for the clients of a group; here every broker is asked.

Requirements: ADM-09, RT-03, RT-06.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from saturnmq.admin.connection import AdminConnection, answered, ask_each, failed, read_address
from saturnmq.admin.listings import group_offsets, topic_groups
from saturnmq.protocol.bodies import (
    ClientConflict,
    Connection,
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
)
from saturnmq.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.headers.messaging import GetConsumerConnectionList

_CONFLICTS: Final = ("client_id", "subscriptions")  # kinds of them
_CONFLICTS_MAX: Final = 20  # of one broker


async def group_brokers(connection: AdminConnection, group: str) -> list[str]:
    """Addresses of the brokers that serve a group, one per broker name. Raises TopicNotExist for a group never seen."""
    return await topic_brokers(connection, RETRY_PREFIX + group)


async def topic_brokers(connection: AdminConnection, topic: str) -> list[str]:
    """Addresses of the brokers of a topic, one per broker name: masters, or slaves without one. Raises TopicNotExist."""
    route = await connection.route(topic)
    return [address for broker in route.broker_datas if (address := read_address(broker)) is not None]


async def consume_stats(
    connection: AdminConnection, group: str, topic: str | None = None, *, without: Collection[str] = ()
) -> ConsumeStats:
    """Offsets of a group by queue, merged over its brokers (208). Raises ConsumerNotOnline (206) if it has none.

    without: addresses of brokers that are not asked.
    """
    merged = ConsumeStats()
    for address in await group_brokers(connection, group):
        if address in without:
            continue
        stats = await group_offsets(connection, address, group, topic)
        merged.offset_table.update(stats.offset_table)
        merged.consume_tps += stats.consume_tps
    if not merged.offset_table:
        text = (
            "Not found the consumer group consume stats, because return offset table is empty, maybe the consumer not "
            "consume any message"
        )
        raise response_error(ResponseCode.CONSUMER_NOT_ONLINE, text)
    return merged


def lag(progress: ConsumeStats) -> int:
    """Messages that the group has not consumed, over all queues."""
    return sum(offsets.broker_offset - offsets.consumer_offset for offsets in progress.offset_table.values())


def by_queue(progress: ConsumeStats) -> list[tuple[MessageQueue, OffsetWrapper]]:
    """The offsets in the order of topic, broker and queue."""
    return sorted(progress.offset_table.items(), key=lambda item: queue_order(item[0]))


def queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    """Sorts queues by topic, broker name and queue id."""
    return queue.topic, queue.broker_name, queue.queue_id


async def consumer_connection(
    connection: AdminConnection, group: str, addresses: Sequence[str] = (), *, without: Collection[str] = ()
) -> ConsumerConnection:
    """Clients and subscriptions of a group (203), of all its brokers or of those given; brokers that fail are left out.

    without: addresses of brokers that are not asked. Raises ConsumerNotOnline (206) without clients, and the first error if no
    broker answered.
    """

    async def ask(address: str) -> ConsumerConnection:
        header = GetConsumerConnectionList(consumer_group=group)
        answer = await connection.read(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(answer.body)

    targets = [address for address in addresses or await group_brokers(connection, group) if address not in without]
    outcomes = await ask_each(targets, ask)
    connections = [outcome for outcome in outcomes.values() if not isinstance(outcome, SaturnError)]
    if not connections and outcomes:
        raise next(outcome for outcome in outcomes.values() if isinstance(outcome, SaturnError))
    merged = merged_clients(connections)
    if not merged.connection_set:
        raise response_error(ResponseCode.CONSUMER_NOT_ONLINE, "Not found the consumer group connection")
    return merged


def merged_clients(connections: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """The answers of several brokers about one group, as one answer."""
    clients: dict[tuple[str, int], Connection] = {}  # two of one broker may have the same id
    for connection in connections:
        counts: Counter[str] = Counter()
        for client in connection.connection_set:
            clients[client.client_id, counts[client.client_id]] = client
            counts[client.client_id] += 1
    subscriptions = {topic: data for connection in connections for topic, data in connection.subscription_table.items()}
    first = connections[0] if connections else ConsumerConnection()
    return ConsumerConnection(
        connection_set=[clients[name] for name in sorted(clients)],
        subscription_table=subscriptions,
        consume_type=first.consume_type,
        message_model=first.message_model,
        consume_from_where=first.consume_from_where,
        conflicts=list({_pair(pair): pair for connection in connections for pair in _conflicts(connection)}.values())
        or None,
    )


def _conflicts(connection: ConsumerConnection) -> list[ClientConflict]:
    """The conflicts that a broker answered; from Apache's, clients with the same id."""
    if connection.conflicts is not None:
        return [conflict for conflict in connection.conflicts[:_CONFLICTS_MAX] if conflict.kind in _CONFLICTS]
    first: dict[str, Connection] = {}
    pairs = []
    for client in connection.connection_set:
        first_client = first.setdefault(client.client_id, client)
        if first_client is not client:
            addresses = (first_client.client_addr, client.client_addr)
            pairs.append(ClientConflict("client_id", client.client_id, addresses[0], client.client_id, addresses[1]))
    return pairs


def _pair(conflict: ClientConflict) -> tuple[str, frozenset[str]]:
    """Identifies a conflict that several brokers answer: the addresses of a client differ from broker to broker."""
    return conflict.kind, frozenset((conflict.client_id, conflict.other_id))


async def groups_of(connection: AdminConnection, topic: str, *, without: Collection[str] = ()) -> list[str]:
    """Groups that consume a topic, or have an offset in it (300), over all its brokers.

    without: addresses of brokers that are not asked. Raises TopicNotExist, and the first error if no broker answered.
    """

    async def ask(address: str) -> list[str]:
        return await topic_groups(connection, address, topic)

    targets = [address for address in await topic_brokers(connection, topic) if address not in without]
    outcomes = await ask_each(targets, ask)
    groups_by_address = answered(outcomes)
    if not groups_by_address and outcomes:
        raise next(iter(failed(outcomes).values()))
    return list(dict.fromkeys(group for groups in groups_by_address.values() for group in groups))
