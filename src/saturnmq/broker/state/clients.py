"""Registry of connected producers and consumers: identity, subscriptions, time of the last heartbeat.

Requirements: HB-04..HB-07, RB-07.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from saturnmq.broker.events import Event
from saturnmq.net import Connection
from saturnmq.protocol.bodies import ConsumerData, SubscriptionData

log = logging.getLogger(__name__)

GROUPS_MAX: Final = 4096  # groups per client connection


@dataclass(slots=True)
class ClientInfo:
    """One client on one connection. heartbeat_ms: time of the last heartbeat, Unix ms."""

    client_id: str
    language: int
    version: int
    heartbeat_ms: int
    subscriptions: dict[str, tuple[str, str]] = field(default_factory=dict)  # topic -> (expression, expression type)


@dataclass(slots=True)
class ConsumerGroup:
    """Live members of a consumer group and the group's subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Connection, ClientInfo] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """Distinct client ids of the members, in order of registration."""
        return list(dict.fromkeys(info.client_id for info in self.members.values()))

    def update(self, data: ConsumerData) -> bool:
        """Apply type and subscriptions of a heartbeat; returns whether the set of topics changed (HB-05)."""
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.consume_from_where = data.consume_from_where
        changed = False
        for subscription in data.subscription_data_set:
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in set(self.subscriptions) - {s.topic for s in data.subscription_data_set}:
            del self.subscriptions[topic]
            changed = True
        return changed


def _warn_of_unequal_subscriptions(group: ConsumerGroup, connection: Connection, info: ClientInfo) -> None:
    """Warn if members subscribe differently: the group keeps one subscription, so some lose messages (CA-03). Once per change."""
    for member, other in group.members.items():
        if member is not connection and other.subscriptions != info.subscriptions:
            topics = sorted(
                topic
                for topic in other.subscriptions.keys() | info.subscriptions.keys()
                if other.subscriptions.get(topic) != info.subscriptions.get(topic)
            )
            log.warning(
                "unequal subscriptions in one group, messages may be lost group=%s client=%s other=%s topics=%s",
                group.name, info.client_id, other.client_id, topics[:10],
            )  # fmt: skip
            return


class Clients:
    """All live clients.

    changed: a group whose members or topics changed. offline: the name of a group without members.
    """

    def __init__(self, live_groups_max: int = 2**31) -> None:
        self._live_groups_max = live_groups_max
        self.producers: dict[str, dict[Connection, ClientInfo]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, tuple[set[str], set[str]]] = {}  # groups as producer, groups as consumer
        self.changed: Event[ConsumerGroup] = Event()
        self.offline: Event[str] = Event()
        self._producer_ids: dict[str, Connection] = {}
        self._round = 0

    def problem(self, connection: Connection, producers: Iterable[str], consumers: Iterable[str]) -> str | None:
        """Why a heartbeat with these groups is rejected: too many on its connection, or in total (LIM-13). None if accepted."""
        as_producer, as_consumer = self._groups_of.get(connection, (set(), set()))
        names = (as_producer.union(producers), as_consumer.union(consumers))
        count = len(names[0]) + len(names[1])
        if count > GROUPS_MAX:
            return f"{count} groups of one client, at most {GROUPS_MAX} are taken"
        for table, wanted in ((self.producers, names[0]), (self.consumers, names[1])):
            count = len(table) + len(wanted - table.keys())
            if count > self._live_groups_max and not wanted <= table.keys():
                return f"{count} groups are online, at most {self._live_groups_max} are allowed (liveGroupsMax)"
        return None

    def register_producer(self, group: str, connection: Connection, info: ClientInfo) -> None:
        """Record a producer's heartbeat."""
        self.producers.setdefault(group, {})[connection] = info
        self._producer_ids[info.client_id] = connection
        self._groups_of.setdefault(connection, (set(), set()))[0].add(group)

    def register_consumer(
        self, data: ConsumerData, connection: Connection, info: ClientInfo, *, notify: bool = True
    ) -> None:
        """Record a consumer's heartbeat; notifies the group if members or topics changed (HB-04)."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        known = group.members.get(connection)
        if known is not None and known.client_id != info.client_id:
            log.warning("client id changed group=%s from=%s to=%s", group.name, known.client_id, info.client_id)
        info.subscriptions = {s.topic: (s.sub_string, s.expression_type) for s in data.subscription_data_set}
        if known is None or known.subscriptions != info.subscriptions:
            _warn_of_unequal_subscriptions(group, connection, info)
        group.members[connection] = info
        self._groups_of.setdefault(connection, (set(), set()))[1].add(group.name)
        changed = group.update(data)
        if (known is None or changed) and notify:
            self.changed.emit(group)

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client from a producer and/or consumer group (HB-07)."""
        as_producer, as_consumer = self._groups_of.get(connection, (set(), set()))
        as_producer.discard(producer_group or "")
        as_consumer.discard(consumer_group or "")
        if not as_producer and not as_consumer:
            self._groups_of.pop(connection, None)
        if producer_group:
            members = self.producers.get(producer_group)
            if members is not None:
                info = members.pop(connection, None)
                if info is not None and not as_producer and self._producer_ids.get(info.client_id) is connection:
                    del self._producer_ids[info.client_id]
                if not members:
                    del self.producers[producer_group]
        if consumer_group:
            group = self.consumers.get(consumer_group)
            if group is not None and group.members.pop(connection, None) is not None:
                self._left(group)

    def connection_closed(self, connection: Connection) -> None:
        """Remove the connection from all its groups (HB-06)."""
        as_producer, as_consumer = self._groups_of.get(connection, (set(), set()))
        for name in list(as_producer):
            self.unregister(connection, name, None)
        for name in list(as_consumer):
            self.unregister(connection, None, name)

    def expired(self, now_ms: int, expiry_ms: int) -> Iterable[Connection]:
        """Remove clients without a heartbeat for more than expiry_ms; returns their connections."""
        expired = {
            connection
            for members in (*self.producers.values(), *(group.members for group in self.consumers.values()))
            for connection, info in members.items()
            if now_ms - info.heartbeat_ms > expiry_ms
        }
        for connection in expired:
            self.connection_closed(connection)
        return expired

    def _left(self, group: ConsumerGroup) -> None:
        if not group.members:
            self.consumers.pop(group.name, None)
            self.offline.emit(group.name)
        self.changed.emit(group)

    def producer_of_id(self, client_id: str) -> Connection | None:
        """Connection of the producer with this client id (RR-03)."""
        return self._producer_ids.get(client_id)

    def next_producer(self, group: str) -> Connection | None:
        """A live producer of a group, round robin (PR-36, TX-09)."""
        members = self.producers.get(group)
        if not members:
            return None
        self._round += 1
        return next(islice(members, self._round % len(members), None))
