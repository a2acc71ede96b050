"""Who serves which topic: the five tables of a NameServer and the rules that change them.

Rules of this file: no I/O and no clock; time is an argument, a broker's connection is any object compared by identity. All
methods run to their end without a break, so nobody ever sees a half-applied registration (NS-14). Source: spec 01 section 2.
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
    """What is known of a broker address: when it last registered (ms), its topics' version, its connection, HA address."""

    updated_ms: int
    version: DataVersion
    connection: object
    ha_address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """One registration as it arrived. topics is None when the body carried none."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    topics: Mapping[str, TopicConfig] | None
    filter_servers: list[str] | None = None
    complete: bool = False  # the topics are all the broker has: drop what is not among them


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """Answer to a slave: its master's address and HA address; empty for a master."""

    master_address: str = ""
    ha_address: str = ""


class RouteTable:
    """The five tables (NS-07)."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, list[str]] = {}
        self.live: dict[str, LiveBroker] = {}
        self.filter_servers: dict[str, list[str]] = {}
        self.changes = 0  # grows with every change that a route answer could show

    # ---- registration

    def register(self, what: Registration, connection: object, now_ms: int) -> RegisterResult:
        """Apply a registration; the steps of spec 01 section 2.2."""
        self._forget_other_names(what)
        names = self.clusters.setdefault(what.cluster, [])
        if what.broker_name not in names:
            names.append(what.broker_name)
            self.changes += 1
        broker = self.brokers.get(what.broker_name)
        first = broker is None
        if broker is None:
            broker = self.brokers[what.broker_name] = BrokerData(what.cluster, what.broker_name, {})
        elif broker.cluster != what.cluster and what.broker_id == MASTER_ID:
            self._leave_cluster(broker.cluster, what.broker_name)
            broker.cluster = what.cluster
            self.changes += 1
        for number, address in list(broker.broker_addrs.items()):
            if address == what.address and number != what.broker_id:
                del broker.broker_addrs[number]
                self.changes += 1
        old = broker.broker_addrs.get(what.broker_id)
        broker.broker_addrs[what.broker_id] = what.address
        first = first or old is None
        if old != what.address:
            self.changes += 1
        if what.broker_id == MASTER_ID and what.topics is not None:
            known = self.live.get(what.address)
            if first or known is None or known.version != what.version:
                self._set_topics(what.broker_name, what.topics, complete=what.complete)
        self.live[what.address] = LiveBroker(now_ms, what.version, connection, what.ha_address)
        if what.filter_servers is not None:
            self._set_filters(what.address, what.filter_servers)
        return self._master_of(what, broker)

    def _forget_other_names(self, what: Registration) -> None:
        """The address of a broker that was renamed leaves its old name: nobody else would ever remove it there."""
        for name, broker in list(self.brokers.items()):
            if name != what.broker_name and what.address in broker.broker_addrs.values():
                self._remove_from(name, broker, what.address)

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

    def _master_of(self, what: Registration, broker: BrokerData) -> RegisterResult:
        if what.broker_id == MASTER_ID:
            return RegisterResult()
        master = broker.broker_addrs.get(MASTER_ID)
        live = self.live.get(master) if master else None
        if master is None or live is None:
            return RegisterResult()
        return RegisterResult(master, live.ha_address)

    def version_changed(
        self, address: str, version: DataVersion, now_ms: int, connection: object = None
    ) -> tuple[bool, DataVersion | None]:
        """Whether the address must register again, and the version known (NS-25).

        An equal one refreshes its life, and the connection it asked over is its connection from now on (NS-17).
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
        """A broker says goodbye (NS-18); one whose place another address has taken meanwhile takes only itself away."""
        self.live.pop(address, None)
        self.filter_servers.pop(address, None)
        broker = self.brokers.get(broker_name)
        if broker is not None and broker.broker_addrs.get(broker_id) == address:
            del broker.broker_addrs[broker_id]
            self.changes += 1
            self._drop_if_empty(broker_name)

    def connection_closed(self, connection: object) -> str | None:
        """The broker addresses whose registrations came over this connection are gone; None when none did (NS-16, NS-17)."""
        gone = [address for address, live in self.live.items() if live.connection is connection]
        for address in gone:
            self._remove_address(address)
        return ", ".join(gone) or None

    def expired(self, now_ms: int, expiry_ms: int) -> list[tuple[str, object]]:
        """Remove brokers that did not register for longer than expiry_ms; their addresses and connections (NS-15)."""
        gone = [
            (address, live.connection) for address, live in self.live.items() if live.updated_ms + expiry_ms < now_ms
        ]
        for address, _ in gone:
            self._remove_address(address)
        return gone

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
        """A broker name without addresses leaves its cluster and every topic; what is empty then goes too (NS-19)."""
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
        """Forget a topic, everywhere or on the brokers of one cluster (NS-27)."""
        if topic not in self.topics:
            return
        for name in list(self.topics[topic]) if cluster is None else list(self.clusters.get(cluster, ())):
            if topic in self.topics:
                self._drop_queues(topic, name)
        self.changes += 1

    # ---- write permission

    def wipe_write_permission(self, broker_name: str) -> int:
        """Clear the write bit on every topic of the broker name; how many topics it has (NS-26)."""
        return self._each_queue(broker_name, lambda data: data.perm & ~Perm.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Set read and write, exactly, on every topic of the broker name; how many topics it has (NS-26)."""
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

    # ---- questions

    def route(self, topic: str) -> TopicRouteData | None:
        """Queues and brokers of a topic; None unless there is at least one of each (NS-20)."""
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
        """Brokers by name, names by cluster."""
        return ClusterInfo(dict(self.brokers), {cluster: list(names) for cluster, names in self.clusters.items()})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with a queue in the cluster; empty for an unknown one (NS-28)."""
        names = set(self.clusters.get(cluster, ()))
        return [topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster names, broker names, and one broker address (NS-28)."""
        names = [name for cluster, brokers in self.clusters.items() for name in (cluster, *brokers)]
        address = next((a for broker in self.brokers.values() for a in broker.broker_addrs.values()), None)
        return names, address

    def unit_topics(self, want: int, without: int = 0) -> list[str]:
        """Topics whose first queue data has the wanted sysFlag bits and none of the others (311..313)."""
        return [topic for topic, flag in self._flags() if flag & want and not flag & without]

    def _flags(self) -> Iterable[tuple[str, int]]:
        for topic, queues in self.topics.items():
            data = next(iter(queues.values()), None)
            if data is not None:
                yield topic, data.topic_sys_flag


UNIT = int(TopicSysFlag.UNIT)
UNIT_SUB = int(TopicSysFlag.UNIT_SUB)
