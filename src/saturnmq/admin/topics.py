"""Topics: create, delete, list, route, statistics, order configuration.

Requirements: ADM-07, ADM-09, ADM-15, ADM-18.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from saturnmq.admin.connection import (
    MASTER_ID,
    AdminConnection,
    answered,
    ask_each,
    failed,
    read_address,
)
from saturnmq.admin.listings import ask_live, topic_groups, topic_names, topic_offsets, topic_table
from saturnmq.protocol.bodies import (
    MessageQueue,
    QueueData,
    TopicConfig,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)
from saturnmq.protocol.codes import AUTO_CREATE_TOPIC, ORDER_TOPIC_NAMESPACE, Perm, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.headers import messaging as h

GROUP_TOPIC_PREFIXES: Final = ("%RETRY%", "%DLQ%")


@dataclass(frozen=True)
class TopicUse:
    """A topic, its cluster, and the groups that consume it, as far as one of its brokers knows. cluster: None if unknown."""

    topic: str
    cluster: str | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicStatistics:
    """Offsets by queue, in order, and the errors of brokers that did not give theirs, by address."""

    offsets: dict[MessageQueue, TopicOffset]
    failures: dict[str, SaturnError]


class Topics:
    """Topics: create, delete, list, route, statistics, order configuration."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    # ---- reading

    async def names(self) -> list[str]:
        """Names of all topics that the NameServer knows (206), in its order."""
        return await topic_names(self._connection)

    async def route(self, topic: str) -> TopicRouteData:
        """Queues and brokers of a topic (105). Raises TopicNotExist."""
        return await self._connection.route(topic)

    async def readable_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that consumers of the topic divide among themselves, in the order of the route. Raises TopicNotExist."""
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in (await self.route(topic)).queue_datas
            if data.perm & Perm.READ
            for queue_id in range(data.read_queue_nums)
        ]

    async def clusters(self, topic: str) -> list[str]:
        """Names of the clusters of the first broker of the route, sorted. Raises TopicNotExist."""
        names_by_cluster = (await self._connection.cluster()).cluster_addr_table
        route = await self.route(topic)
        name = route.broker_datas[0].broker_name if route.broker_datas else ""
        return sorted(cluster for cluster, names in names_by_cluster.items() if name in names)

    async def uses(self) -> list[TopicUse]:
        """Cluster and groups of every topic but retry topics and dead-letter queues, in the order of `names` (206, 105, 300).

        A topic whose broker does not answer within 2 s has no groups.
        """
        names_by_cluster = (await self._connection.cluster()).cluster_addr_table
        topics = [name for name in await self.names() if not name.startswith(GROUP_TOPIC_PREFIXES)]

        async def cluster_and_broker(topic: str) -> tuple[str | None, str | None]:
            brokers = (await self.route(topic)).broker_datas
            if not brokers:
                return None, None
            cluster = next(
                (cluster_name for cluster_name, names in names_by_cluster.items() if brokers[0].broker_name in names),
                None,
            )
            return cluster, read_address(brokers[0])

        brokers_by_topic = answered(await ask_each(topics, cluster_and_broker))

        async def groups(topic: str) -> list[str]:
            address = brokers_by_topic[topic][1]
            return [] if address is None else await self.groups(topic, address)

        groups_by_topic = answered(await ask_each(brokers_by_topic, groups))
        return [
            TopicUse(topic, brokers_by_topic[topic][0], tuple(groups_by_topic.get(topic, ())))
            if topic in brokers_by_topic
            else TopicUse(topic, "")
            for topic in topics
        ]

    async def groups(self, topic: str, address: str) -> list[str]:
        """Groups that consume a topic, as this broker knows them (300)."""
        return await topic_groups(self._connection, address, topic)

    async def statistics(self, topic: str) -> TopicStatistics:
        """Offsets of all queues of a topic (202). Raises TopicNotExist."""
        brokers = (await self.route(topic)).broker_datas
        addresses = [address for broker in brokers if (address := read_address(broker)) is not None]

        async def ask(address: str) -> TopicStatsTable:
            return await topic_offsets(self._connection, address, topic)

        outcomes = await ask_live(self._connection, addresses, ask)
        offsets = {
            queue: bounds for table in answered(outcomes).values() for queue, bounds in table.offset_table.items()
        }
        ordered = sorted(offsets, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))
        return TopicStatistics({queue: offsets[queue] for queue in ordered}, failed(outcomes))

    async def configuration(self, address: str, topic: str) -> TopicConfig | None:
        """The configuration of a topic on one broker (351, or 21 of all topics for Apache 4.9); None if it is not there."""
        accepted = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        answer = await self._connection.read(
            address, RequestCode.GET_TOPIC_CONFIG, h.GetTopicConfig(topic=topic), accept=accepted
        )
        if answer.code == ResponseCode.SUCCESS:
            return TopicConfig.decode(answer.body)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return (await topic_table(self._connection, address)).topic_config_table.get(topic)

    # ---- changing

    async def update(self, address: str, config: TopicConfig) -> None:
        """Create a topic on a master, or replace its configuration (17).

        The master writes its file, registers at the NameServers at once, and clients see the change at their next route poll.
        """
        header = h.UpdateAndCreateTopic(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
        )
        await self._connection.change(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def set_permission(self, address: str, route: QueueData, topic: str, perm: int) -> TopicConfig:
        """Give a topic on a master another permission and keep the rest of its route entry; returns the new configuration."""
        config = TopicConfig(
            topic, route.read_queue_nums, route.write_queue_nums, perm=perm, topic_sys_flag=route.topic_sys_flag
        )
        await self.update(address, config)
        return config

    async def delete_from_brokers(self, topic: str, cluster: str, only: str = "") -> None:
        """Delete a topic on all masters of a cluster (215), or on the one whose address is `only`.

        The NameServers of SaturnMQ drop the entry of a broker with its next registration, which follows at once.
        Raises UnknownCluster, ConfigError for an address that is no master of the cluster, and the first error of a master.
        """
        masters = list((await self._connection.masters(cluster)).values())
        if only and only not in masters:
            addresses = ", ".join(masters)
            raise ConfigError(f"broker {only:.200} is no master of cluster {cluster}, must be one of: {addresses}")
        for address in [only] if only else masters:
            await self._connection.change(
                address, RequestCode.DELETE_TOPIC_IN_BROKER, h.DeleteTopicInBroker(topic=topic)
            )

    async def delete_from_name_servers(self, topic: str, cluster: str) -> None:
        """Remove the entries of a cluster's brokers for a topic at all NameServers (216)."""
        header = h.DeleteTopicInNamesrv(topic=topic, cluster_name=cluster)
        await self._connection.change_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    # ---- order configuration

    async def order(self, topic: str) -> str:
        """The order configuration of a topic, `broker:queues;...`. Raises QueryNotFound."""
        return await self._connection.key_value(ORDER_TOPIC_NAMESPACE, topic)

    async def set_order(self, topic: str, order: str) -> None:
        """Replace the order configuration of a topic at all NameServers."""
        await self._connection.set_key_value(ORDER_TOPIC_NAMESPACE, topic, order)

    async def merge_order(self, topic: str, broker_name: str, queues: int) -> None:
        """Set the queues of one broker in the order configuration of a topic; those of other brokers stay."""
        try:
            order = await self.order(topic)
        except SaturnError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            order = ""
        parts = {part.partition(":")[0]: part for part in order.split(";") if part.strip()}
        parts[broker_name] = f"{broker_name}:{queues}"
        await self.set_order(topic, ";".join(parts.values()))

    async def delete_order(self, topic: str) -> None:
        """Delete the order configuration of a topic at all NameServers."""
        await self._connection.delete_key_value(ORDER_TOPIC_NAMESPACE, topic)


def master_of(route: TopicRouteData, address: str) -> str | None:
    """Name of the broker whose master has this address; None if there is none in the route."""
    return next(
        (broker.broker_name for broker in route.broker_datas if broker.broker_addrs.get(MASTER_ID) == address), None
    )


def entries_by_broker(route: TopicRouteData) -> Mapping[str, QueueData]:
    """Route entries by broker name."""
    return {entry.broker_name: entry for entry in route.queue_datas}


def merged_config(old: TopicConfig | None, new: TopicConfig, field_names: set[str]) -> TopicConfig:
    """The configuration that exists with only the given fields replaced; `new` if there is none."""
    return new if old is None else replace(old, **{name: getattr(new, name) for name in field_names})
