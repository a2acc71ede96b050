"""The route table of a NameServer: topics, brokers, clusters, live brokers, filter servers, and the rules that change them.

No I/O and no clock: time is an argument, and a broker's connection is any object, compared by identity. Methods are synchronous
and never yield to the event loop, so a half-applied registration is never visible (NS-14). Rules: docs/spec/01 section 2.

Tables have up to 1,000,000 entries, so no method takes time in proportion to all of them. What must, is a generator (`Steps`): it
sees tables change between its steps, and works on copies. A large table is merged beside the one in use (`merge`) and replaces it
in one step; replaced tables are passed to `discard`, for to free one takes long, too. Entries are integers (`pack`): QueueData
would take three times the memory and 40 ms of each garbage collection.

Requirements: NS-07, NS-14..NS-20, NS-25..NS-28, LIM-13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from saturnmq.net.shares import Shares
from saturnmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from saturnmq.protocol.codes import MASTER_ID, Perm, TopicSysFlag
from saturnmq.slices import Steps

CLUSTERS_PER_NAME_MAX: Final = 16
_SHARE: Final = 4  # times what an address leaves free, it may use: 800,000 of 1,000,000 entries (net/shares.py)
QUEUES_MAX: Final = 65_536
FLAGS_MAX: Final = 2**31 - 1  # of perm and topicSysFlag
UNIT: Final = int(TopicSysFlag.UNIT)
UNIT_SUB: Final = int(TopicSysFlag.UNIT_SUB)
_STEP_TOPICS: Final = 1000

# The queues of a topic on one broker, as one integer. From the lowest bit:
#   at  bits  field
#    0    17  write_queue_nums, 0..65536
#   17    17  read_queue_nums, 0..65536
#   34    31  perm
#   65    31  topic_sys_flag
_QUEUES: Final = 2**17 - 1
_READ_AT, _PERM_AT, _FLAG_AT = 17, 34, 65

T = TypeVar("T")
Queues = dict[str, int]  # packed, by topic


def pack(topic: TopicConfig) -> int:
    """The queues of a topic; its numbers must be in range (QUEUES_MAX, FLAGS_MAX)."""
    return (
        topic.write_queue_nums
        | topic.read_queue_nums << _READ_AT
        | topic.perm << _PERM_AT
        | topic.topic_sys_flag << _FLAG_AT
    )


def _unpacked(name: str, packed: int) -> QueueData:
    return QueueData(
        name,
        packed >> _READ_AT & _QUEUES,
        packed & _QUEUES,
        packed >> _PERM_AT & FLAGS_MAX,
        packed >> _FLAG_AT,
    )


@dataclass(slots=True)
class LiveBroker:
    """State of a broker address: last registration (Unix ms), version of its topics, its connection, its HA address.

    name and number: the broker name and id of that registration. host: what the address is charged to (shares.py).
    """

    updated_ms: int
    version: DataVersion
    connection: object
    ha_address: str
    name: str = ""
    number: int = MASTER_ID
    host: str = ""


@dataclass(slots=True)
class TopicTable:
    """The topics of one broker name. host: what its entries are charged to. changes: incremented by changes in place."""

    topics: Queues
    host: str
    changes: int = 0


@dataclass(frozen=True)
class Registration:
    """One registration request. queues is None when the body carried no topics."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    queues: Queues | None
    filter_servers: list[str] | None = None
    complete: bool = False  # queues lists all topics of the broker: remove it from all others


class Merged(NamedTuple):
    """The topics of a broker name with those of a registration, and the table from which they were merged, with its changes."""

    topics: Queues
    base: TopicTable | None
    changes: int


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """Response to a slave: address and HA address of its master; empty for a master."""

    master_address: str = ""
    ha_address: str = ""


class RouteTable:
    """The five tables of a NameServer (NS-07). discard: called with each table that nothing refers to any more, to free it.

    queues: by broker name. clusters: cluster -> its broker names, as the keys of a dict.
    """

    def __init__(self, discard: Callable[[Queues], None] = lambda topics: None) -> None:
        self.queues: dict[str, TopicTable] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.live: dict[str, LiveBroker] = {}
        self.filter_servers: dict[str, list[str]] = {}
        self.changes = 0  # incremented by every change that can affect a route response
        self.topic_shares, self.broker_shares, self.cluster_shares = (
            Shares(_SHARE, local_limited=True) for _ in range(3)
        )
        self._cluster_hosts: dict[str, str] = {}
        self._clusters_of: dict[str, dict[str, None]] = {}  # by broker name
        self._discard = discard

    # ---- registration

    def register(
        self,
        registration: Registration,
        connection: object,
        now_ms: int,
        host: str = "",
        merged: Merged | None = None,
    ) -> RegisterResult:
        """Apply a registration, step by step as in docs/spec/01 section 2.2.

        host: what it is charged to. merged: its topics, from `merge`; they must be fresh (`is_fresh`).
        """
        # Before the changes below, which it compares with.
        takes_topics = self.takes_topics(registration)
        self._remove_from_other_name(registration)
        self._join_cluster(registration.cluster, registration.broker_name, host)
        broker = self.brokers.get(registration.broker_name)
        if broker is None:
            broker = self.brokers[registration.broker_name] = BrokerData(
                registration.cluster, registration.broker_name, {}
            )
        # Only a master moves its name to another cluster.
        elif broker.cluster != registration.cluster and registration.broker_id == MASTER_ID:
            self._leave_cluster(broker.cluster, registration.broker_name)
            broker.cluster = registration.cluster
            self.changes += 1
        live = self.live.get(registration.address)
        if live is not None and live.number != registration.broker_id:
            # The address has another id now, as after a failover.
            self._remove_id(broker, live.number, registration.address)
        if broker.broker_addrs.get(registration.broker_id) != registration.address:
            broker.broker_addrs[registration.broker_id] = registration.address
            self.changes += 1
        if takes_topics:
            self._set_topics(registration, host, merged)
        elif registration.queues is not None:
            self._discard(registration.queues)
        if live is not None:
            # The address is charged to the host that registered it last.
            self.broker_shares.add(live.host, -1)
        self.broker_shares.add(host, 1)
        # A new object: a broker that registers again is bound to the new connection.
        self.live[registration.address] = LiveBroker(
            now_ms,
            registration.version,
            connection,
            registration.ha_address,
            registration.broker_name,
            registration.broker_id,
            host,
        )
        if registration.filter_servers is not None:
            self._set_filters(registration.address, registration.filter_servers)
        return self._master_of(registration, broker)

    def takes_topics(self, registration: Registration) -> bool:
        """Whether `register` would take the topics of a registration: those of a master, new or with another version (NS-09).

        The topics of the name are those of the address that had its id last, which may be a stranger's.
        """
        if registration.broker_id != MASTER_ID or registration.queues is None:
            return False
        broker, live = self.brokers.get(registration.broker_name), self.live.get(registration.address)
        if broker is None or live is None or live.version != registration.version:
            return True
        return broker.broker_addrs.get(MASTER_ID) != registration.address

    def merge(self, registration: Registration) -> Steps[Merged]:
        """The topics of the broker name as they are after a registration, for `register`. The table in use does not change."""
        base, new = self.queues.get(registration.broker_name), registration.queues or {}
        # A complete list replaces the table.
        if base is None or registration.complete:
            return Merged(new, base, base.changes if base is not None else 0)
        # One step of copying: fast in comparison with the merge.
        topics, changes = dict(base.topics), base.changes
        for part in _parts(new.items()):
            topics.update(part)
            yield
        return Merged(topics, base, changes)

    def is_fresh(self, registration: Registration, merged: Merged) -> bool:
        """Whether the table from which topics were merged is in use and unchanged."""
        base = self.queues.get(registration.broker_name)
        return base is merged.base and (base is None or base.changes == merged.changes)

    def growth(self, registration: Registration, host: str, merged: Merged | None) -> tuple[int, int, int]:
        """Topics of the broker name after a registration, how many more that is, and how many more `host` is charged with."""
        table, new = self.queues.get(registration.broker_name), registration.queues or {}
        before = len(table.topics) if table is not None else 0
        if merged is not None:
            after = len(merged.topics)
        elif table is None or registration.complete:
            after = len(new)
        else:
            after = before + sum(topic not in table.topics for topic in new)
        return after, after - before, after - (before if table is not None and table.host == host else 0)

    def is_in(self, name: str, cluster: str) -> bool:
        """Whether a broker name is in a cluster."""
        return name in self.clusters.get(cluster, ())

    def clusters_of(self, name: str) -> int:
        """Number of clusters that have a broker name."""
        return len(self._clusters_of.get(name, ()))

    def _join_cluster(self, cluster: str, name: str, host: str) -> None:
        names = self.clusters.get(cluster)
        if names is None:
            names = self.clusters[cluster] = {}
            self._cluster_hosts[cluster] = host
            self.cluster_shares.add(host, 1)
        if name not in names:
            names[name] = None
            self._clusters_of.setdefault(name, {})[cluster] = None
            self.changes += 1

    def _remove_from_other_name(self, registration: Registration) -> None:
        """Remove the address of a renamed broker from its old broker name, where nothing else would ever remove it."""
        live = self.live.get(registration.address)
        if live is not None and live.name != registration.broker_name:
            self._remove_address(registration.address)

    def _set_filters(self, address: str, filters: list[str]) -> None:
        if filters == self.filter_servers.get(address, []):
            return
        self.changes += 1
        if filters:
            self.filter_servers[address] = filters
        else:
            del self.filter_servers[address]

    def _set_topics(self, registration: Registration, host: str, merged: Merged | None) -> None:
        name, new = registration.broker_name, registration.queues or {}
        table = self.queues.get(name)
        # In place: small registrations only add or change.
        if merged is None and table is not None and not registration.complete:
            self.topic_shares.add(table.host, -len(table.topics))
            table.topics.update(new)
            table.changes += 1
            table.host = host
            self.topic_shares.add(host, len(table.topics))
        else:
            self._drop_topics(name)
            # The registration's own dict may be freed by its caller.
            topics = merged.topics if merged is not None else dict(new)
            if topics:
                self.queues[name] = TopicTable(topics, host)
                self.topic_shares.add(host, len(topics))
        if merged is not None and merged.topics is not new:
            self._discard(new)
        self.changes += 1

    def _drop_topics(self, name: str) -> None:
        table = self.queues.pop(name, None)
        if table is not None:
            self.topic_shares.add(table.host, -len(table.topics))
            self._discard(table.topics)

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
        broker = self.brokers.get(live.name)
        # It must register: the place or the topics differ.
        if live.version != version or broker is None or broker.broker_addrs.get(live.number) != address:
            return True, live.version  # another address has its place: a registration takes it back, or is refused
        live.updated_ms = now_ms
        if connection is not None:
            live.connection = connection
        return False, live.version

    def name_of(self, address: str) -> tuple[str, str]:
        """Broker name and cluster of a broker address; empty if no broker has it."""
        live = self.live.get(address)
        broker = self.brokers.get(live.name) if live is not None else None
        if live is None or broker is None or broker.broker_addrs.get(live.number) != address:
            return "", ""
        return live.name, broker.cluster

    # ---- removal

    def unregister(self, address: str) -> None:
        """Unregister a broker address, under whatever name it is registered (NS-18).

        If another address has taken its broker id since, that address stays registered.
        """
        if address in self.live:
            self._remove_address(address)

    def connection_closed(self, connection: object) -> list[str]:
        """Remove the brokers registered over this connection; return their addresses (NS-16, NS-17)."""
        # All brokers of a connection: usually one.
        removed = [address for address, live in self.live.items() if live.connection is connection]
        for address in removed:
            self._remove_address(address)
        return removed

    def expired(self, now_ms: int, expiry_ms: int) -> list[tuple[str, object]]:
        """Remove brokers without a registration for longer than expiry_ms; return their addresses and connections (NS-15)."""
        expired = [
            (address, live.connection) for address, live in self.live.items() if live.updated_ms + expiry_ms < now_ms
        ]
        for address, _ in expired:
            self._remove_address(address)
        return expired

    def _remove_address(self, address: str) -> None:
        live = self.live.pop(address)
        self.broker_shares.add(live.host, -1)
        self.filter_servers.pop(address, None)
        broker = self.brokers.get(live.name)
        if broker is not None:
            self._remove_id(broker, live.number, address)
            self._drop_if_empty(live.name)

    def _remove_id(self, broker: BrokerData, number: int, address: str) -> None:
        # Not if another address has taken the id since.
        if broker.broker_addrs.get(number) == address:
            del broker.broker_addrs[number]
            self.changes += 1

    def _leave_cluster(self, cluster: str, name: str) -> None:
        self._clusters_of.get(name, {}).pop(cluster, None)
        names = self.clusters.get(cluster, {})
        if name in names:
            del names[name]
            if not names:
                del self.clusters[cluster]
                self.cluster_shares.add(self._cluster_hosts.pop(cluster), -1)

    def _drop_if_empty(self, broker_name: str) -> None:
        """Remove a broker name without addresses from its cluster and topics, and those that become empty (NS-19)."""
        if self.brokers[broker_name].broker_addrs:
            return
        del self.brokers[broker_name]
        # A broker name may be in several clusters.
        for cluster in list(self._clusters_of.get(broker_name, ())):
            self._leave_cluster(cluster, broker_name)
        self._clusters_of.pop(broker_name, None)
        self._drop_topics(broker_name)
        self.changes += 1

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic on all brokers or on the brokers of one cluster (NS-27)."""
        # Tables that become empty are removed.
        for name in list(self.queues) if cluster is None else list(self.clusters.get(cluster, ())):
            table = self.queues.get(name)
            if table is not None and table.topics.pop(topic, None) is not None:
                table.changes += 1
                self.topic_shares.add(table.host, -1)
                self.changes += 1
                if not table.topics:
                    self._drop_topics(name)

    # ---- write permission

    def wipe_write_permission(self, broker_name: str) -> Steps[int]:
        """Clear the write bit on every topic of the broker name; return how many topics it has (NS-26)."""
        return self._each_queue(broker_name, lambda packed: packed & ~(int(Perm.WRITE) << _PERM_AT))

    def add_write_permission(self, broker_name: str) -> Steps[int]:
        """Set the permission of every topic of the broker name to read and write; return how many topics it has (NS-26)."""
        read_and_write = int(Perm.READ | Perm.WRITE) << _PERM_AT
        return self._each_queue(broker_name, lambda packed: packed & ~(FLAGS_MAX << _PERM_AT) | read_and_write)

    def _each_queue(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        """Change the topics that the broker name has now."""
        count = 0
        for _, part in self._topics_in_steps([broker_name]):
            table = self.queues.get(broker_name)
            if table is not None:
                # Topics may have been deleted between the steps.
                changed = {topic: change(table.topics[topic]) for topic in part if topic in table.topics}
                table.topics.update(changed)
                table.changes += 1
                count += len(changed)
            self.changes += 1
            yield
        return count

    # ---- queries

    def route(self, topic: str) -> TopicRouteData | None:
        """Queues and brokers of a topic; None unless it has at least one of each (NS-20)."""
        queues = {name: table.topics[topic] for name, table in self.queues.items() if topic in table.topics}
        # A topic whose brokers are all down has no route.
        brokers = [_copied(self.brokers[name]) for name in queues if name in self.brokers]
        if not brokers:
            return None
        filters = {
            address: self.filter_servers[address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if address in self.filter_servers
        }
        return TopicRouteData([_unpacked(name, packed) for name, packed in queues.items()], brokers, filters)

    @property
    def topics(self) -> dict[str, dict[str, QueueData]]:
        """Topic -> broker name -> queues. Builds it."""
        built: dict[str, dict[str, QueueData]] = {}
        for name, table in self.queues.items():
            for topic, packed in table.topics.items():
                built.setdefault(topic, {})[name] = _unpacked(name, packed)
        return built

    def topic_names(self) -> Steps[list[str]]:
        """All topics."""
        return self._distinct(self.queues)

    def cluster_info(self) -> ClusterInfo:
        """Brokers by name, and broker names by cluster."""
        return ClusterInfo(
            {name: _copied(broker) for name, broker in self.brokers.items()},
            {cluster: list(names) for cluster, names in self.clusters.items()},
        )

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """Topics with a queue in the cluster; empty for an unknown cluster (NS-28)."""
        return self._distinct(self.clusters.get(cluster, ()))

    def system_topics(self) -> tuple[list[str], str | None]:
        """All cluster and broker names, and the address of one broker (NS-28)."""
        names = [name for cluster, brokers in self.clusters.items() for name in (cluster, *brokers)]
        address = next((a for broker in self.brokers.values() for a in broker.broker_addrs.values()), None)
        return names, address

    def unit_topics(self, want: int, without: int = 0) -> Steps[list[str]]:
        """Topics whose first queue data has one of the sysFlag bits `want` and none of `without` (311, 312, 313)."""
        flags: dict[str, int] = {}
        # The first broker name that has the topic decides, as in Java.
        for name, part in self._topics_in_steps(self.queues):
            table = self.queues.get(name)
            if table is not None:
                for topic in part:
                    # It may be deleted meanwhile.
                    if topic not in flags and topic in table.topics:
                        flags[topic] = table.topics[topic] >> _FLAG_AT
            yield
        topics: list[str] = []
        for some in _parts(flags.items()):
            topics += [topic for topic, flag in some if flag & want and not flag & without]
            yield
        return topics

    def _distinct(self, names: Iterable[str]) -> Steps[list[str]]:
        """The topics of some broker names, each once."""
        # A dict keeps the order, and each topic once.
        topics: dict[str, None] = {}
        for _, part in self._topics_in_steps(names):
            topics.update(dict.fromkeys(part))
            yield
        return list(topics)

    def _topics_in_steps(self, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """The topics that some broker names have now, in parts. The tables may change meanwhile."""
        # Copies of the names: the tables change between the steps.
        topics_by_name = [(name, list(self.queues[name].topics)) for name in names if name in self.queues]
        for name, topics in topics_by_name:
            for part in _parts(topics):
                yield name, part


def _copied(broker: BrokerData) -> BrokerData:
    return BrokerData(broker.cluster, broker.broker_name, dict(broker.broker_addrs))


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of one step each."""
    iterator = iter(items)
    while part := list(islice(iterator, _STEP_TOPICS)):
        yield part
