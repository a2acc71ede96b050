"""The route table of a NameServer: topics, brokers, clusters, live brokers, filter servers, and the rules that change them.

No I/O and no clock: time is an argument, and a broker's connection is any object, compared by identity. Methods are synchronous
and never yield to the event loop, so a half-applied registration is never visible (NS-14). Rules: docs/spec/01 section 2.

Requirements: NS-07, NS-14..NS-20, NS-25..NS-28.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from saturnmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from saturnmq.protocol.codes import MASTER_ID, Perm, TopicSysFlag


@dataclass(slots=True)
class LiveBroker:
    """State of a broker address: last registration (Unix ms), version of its topics, its connection, its HA address."""

    updated_ms: int
    version: DataVersion
    connection: object
    ha_address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """One registration request. topics is None when the body carried none."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    topics: Mapping[str, TopicConfig] | None
    filter_servers: list[str] | None = None
    complete: bool = False  # topics lists all topics of the broker: remove it from all others


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """Response to a slave: address and HA address of its master; empty for a master."""

    master_address: str = ""
    ha_address: str = ""


class RouteTable:
    """The five tables of a NameServer (NS-07)."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, list[str]] = {}
        self.live: dict[str, LiveBroker] = {}
        self.filter_servers: dict[str, list[str]] = {}
        self.changes = 0  # incremented by every change that can affect a route response

    # ---- registration

    def register(self, registration: Registration, connection: object, now_ms: int) -> RegisterResult:
        """Apply a registration, step by step as in docs/spec/01 section 2.2."""
        self._remove_from_other_names(registration)
        names = self.clusters.setdefault(registration.cluster, [])
        if registration.broker_name not in names:
            names.append(registration.broker_name)
            self.changes += 1
        broker = self.brokers.get(registration.broker_name)
        first = broker is None
        if broker is None:
            broker = self.brokers[registration.broker_name] = BrokerData(
                registration.cluster, registration.broker_name, {}
            )
        elif broker.cluster != registration.cluster and registration.broker_id == MASTER_ID:
            self._leave_cluster(broker.cluster, registration.broker_name)
            broker.cluster = registration.cluster
            self.changes += 1
        for number, address in list(broker.broker_addrs.items()):
            if address == registration.address and number != registration.broker_id:
                del broker.broker_addrs[number]
                self.changes += 1
        old = broker.broker_addrs.get(registration.broker_id)
        broker.broker_addrs[registration.broker_id] = registration.address
        first = first or old is None
        if old != registration.address:
            self.changes += 1
        if registration.broker_id == MASTER_ID and registration.topics is not None:
            known = self.live.get(registration.address)
            if first or known is None or known.version != registration.version:
                self._set_topics(registration.broker_name, registration.topics, complete=registration.complete)
        self.live[registration.address] = LiveBroker(now_ms, registration.version, connection, registration.ha_address)
        if registration.filter_servers is not None:
            self._set_filters(registration.address, registration.filter_servers)
        return self._master_of(registration, broker)

    def _remove_from_other_names(self, registration: Registration) -> None:
        """Remove the address of a renamed broker from its old broker name, where nothing else would ever remove it."""
        for name, broker in list(self.brokers.items()):
            if name != registration.broker_name and registration.address in broker.broker_addrs.values():
                self._remove_from(name, broker, registration.address)

    def _set_filters(self, address: str, filters: list[str]) -> None:
        if filters == self.filter_servers.get(address, []):
            return
        self.changes += 1
        if filters:
            self.filter_servers[address] = filters
        else:
            del self.filter_servers[address]

    def _set_topics(self, broker_name: str, topics: Mapping[str, TopicConfig], *, complete: bool) -> None:
        for name, config in topics.items():
            data = QueueData(
                broker_name,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm,
                config.topic_sys_flag,
            )
            self.topics.setdefault(name, {})[broker_name] = data
        if complete:
            for name in [n for n, queues in self.topics.items() if broker_name in queues and n not in topics]:
                self._drop_queues(name, broker_name)
        self.changes += 1

    def _master_of(self, registration: Registration, broker: BrokerData) -> RegisterResult:
        if registration.broker_id == MASTER_ID:
            return RegisterResult()
        master = broker.broker_addrs.get(MASTER_ID)
        live = self.live.get(master) if master else None
        if master is None or live is None:
            return RegisterResult()
        return RegisterResult(master, live.ha_address)

    def version_changed(
        self, address: str, version: DataVersion, now_ms: int, connection: object = None
    ) -> tuple[bool, DataVersion | None]:
        """Whether the broker at address must register again, and the version on record (NS-25).

        If the versions are equal, the broker counts as live from now on and is bound to the connection of this query (NS-17).
        """
        live = self.live.get(address)
        if live is None:
            return True, None
        if live.version != version:
            return True, live.version
        live.updated_ms = now_ms
        if connection is not None:
            live.connection = connection
        return False, live.version

    # ---- removal

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """Unregister a broker (NS-18). If another address has taken its broker id since, that address stays registered."""
        self.live.pop(address, None)
        self.filter_servers.pop(address, None)
        broker = self.brokers.get(broker_name)
        if broker is not None and broker.broker_addrs.get(broker_id) == address:
            del broker.broker_addrs[broker_id]
            self.changes += 1
            self._drop_if_empty(broker_name)

    def connection_closed(self, connection: object) -> str | None:
        """Remove the brokers registered over this connection; return their addresses, None if there are none (NS-16, NS-17)."""
        removed = [address for address, live in self.live.items() if live.connection is connection]
        for address in removed:
            self._remove_address(address)
        return ", ".join(removed) or None

    def expired(self, now_ms: int, expiry_ms: int) -> list[tuple[str, object]]:
        """Remove brokers without a registration for longer than expiry_ms; return their addresses and connections (NS-15)."""
        expired = [
            (address, live.connection) for address, live in self.live.items() if live.updated_ms + expiry_ms < now_ms
        ]
        for address, _ in expired:
            self._remove_address(address)
        return expired

    def _remove_address(self, address: str) -> None:
        self.live.pop(address, None)
        self.filter_servers.pop(address, None)
        for name, broker in list(self.brokers.items()):
            self._remove_from(name, broker, address)

    def _remove_from(self, name: str, broker: BrokerData, address: str) -> None:
        for number, known in list(broker.broker_addrs.items()):
            if known == address:
                del broker.broker_addrs[number]
                self.changes += 1
        self._drop_if_empty(name)

    def _leave_cluster(self, cluster: str, name: str) -> None:
        names = self.clusters.get(cluster, [])
        if name in names:
            names.remove(name)
            if not names:
                del self.clusters[cluster]

    def _drop_if_empty(self, broker_name: str) -> None:
        """Remove a broker name without addresses from its cluster and topics, and those that become empty (NS-19)."""
        broker = self.brokers.get(broker_name)
        if broker is None or broker.broker_addrs:
            return
        del self.brokers[broker_name]
        for cluster in list(self.clusters):
            self._leave_cluster(cluster, broker_name)
        for topic in list(self.topics):
            self._drop_queues(topic, broker_name)
        self.changes += 1

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.topics[topic]
        if queues.pop(broker_name, None) is not None and not queues:
            del self.topics[topic]

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic on all brokers or on the brokers of one cluster (NS-27)."""
        if topic not in self.topics:
            return
        for name in list(self.topics[topic]) if cluster is None else list(self.clusters.get(cluster, ())):
            if topic in self.topics:
                self._drop_queues(topic, name)
        self.changes += 1

    # ---- write permission

    def wipe_write_permission(self, broker_name: str) -> int:
        """Clear the write bit on every topic of the broker name; return how many topics it has (NS-26)."""
        return self._each_queue(broker_name, lambda data: data.perm & ~Perm.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Set the permission of every topic of the broker name to read and write; return how many topics it has (NS-26)."""
        return self._each_queue(broker_name, lambda data: int(Perm.READ | Perm.WRITE))

    def _each_queue(self, broker_name: str, perm: object) -> int:
        count = 0
        for queues in self.topics.values():
            data = queues.get(broker_name)
            if data is not None and callable(perm):
                data.perm = int(perm(data))
                count += 1
        self.changes += 1
        return count

    # ---- queries

    def route(self, topic: str) -> TopicRouteData | None:
        """Queues and brokers of a topic; None unless it has at least one of each (NS-20)."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        brokers = [self.brokers[name] for name in queues if name in self.brokers]
        if not brokers:
            return None
        filters = {
            address: self.filter_servers[address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if address in self.filter_servers
        }
        return TopicRouteData(list(queues.values()), brokers, filters)

    def cluster_info(self) -> ClusterInfo:
        """Brokers by name, and broker names by cluster."""
        return ClusterInfo(dict(self.brokers), {cluster: list(names) for cluster, names in self.clusters.items()})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with a queue in the cluster; empty for an unknown cluster (NS-28)."""
        names = set(self.clusters.get(cluster, ()))
        return [topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """All cluster and broker names, and the address of one broker (NS-28)."""
        names = [name for cluster, brokers in self.clusters.items() for name in (cluster, *brokers)]
        address = next((a for broker in self.brokers.values() for a in broker.broker_addrs.values()), None)
        return names, address

    def unit_topics(self, want: int, without: int = 0) -> list[str]:
        """Topics whose first queue data has one of the sysFlag bits `want` and none of `without` (311, 312, 313)."""
        return [topic for topic, flag in self._flags() if flag & want and not flag & without]

    def _flags(self) -> Iterable[tuple[str, int]]:
        for topic, queues in self.topics.items():
            data = next(iter(queues.values()), None)
            if data is not None:
                yield topic, data.topic_sys_flag


UNIT = int(TopicSysFlag.UNIT)
UNIT_SUB = int(TopicSysFlag.UNIT_SUB)
