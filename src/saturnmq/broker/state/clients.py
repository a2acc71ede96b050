"""Registry of connected producers and consumers: identity, subscriptions, time of the last heartbeat.

Subscriptions are counted in units, one for a subscription of up to 1 KiB of text and one for each further KiB, so that neither
many nor long ones exhaust the memory.

Requirements: HB-04..HB-07, RB-07, LIM-13.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from saturnmq.broker.events import EventEmitter
from saturnmq.broker.state.conflicts import ClientIds, Conflict, ConflictKind, Expressions, Variants, differing
from saturnmq.log_limit import LogLimit
from saturnmq.net import Connection
from saturnmq.net.shares import Shares
from saturnmq.protocol.bodies import ConsumerData, ConsumerIdList, SubscriptionData
from saturnmq.slices import Steps

log = logging.getLogger(__name__)

GROUPS_MAX: Final = 4096  # groups per client connection
CROWDED_GROUPS_MAX: Final = 64  # the same while all clients together have many
_MEMBERSHIPS_FACTOR: Final = 4  # memberships of all clients, as a multiple of the groups online
_UNIT_BYTES: Final = 1024
_CODE_BYTES: Final = 8
_WARN_INTERVAL_MS: Final = 60_000  # between two warnings of one group
_CONFLICTS_SEARCHED_MAX: Final = 1000
_UNLIMITED: Final = 2**31
_NANOSECONDS: Final = 10**17  # no time in ms of this age is as great


def version_ms(version: int) -> int:
    """A subscription's version, the time of its client, in Unix ms. The Go client's is in nanoseconds."""
    return version // 1_000_000 if version >= _NANOSECONDS else version


Owner = tuple[str, object]  # IP address of a peer, and its account if there is access control


@dataclass(slots=True)
class ClientInfo:
    """One client on one connection.

    heartbeat_ms: time of the last heartbeat, Unix ms. owner: who may use the client id. subscriptions: by topic, of one group.
    """

    client_id: str
    language: int
    version: int
    heartbeat_ms: int
    owner: Owner = ("", None)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    expressions: Expressions = frozenset()
    units: int = 0  # of the subscriptions


@dataclass(slots=True)
class ConsumerGroup:
    """Live members of a consumer group and the group's subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Connection, ClientInfo] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    sources: dict[str, Connection] = field(default_factory=dict)  # topic -> member whose subscription is the group's
    variants: Variants = field(default_factory=Variants)
    ids_body: bytes | None = None  # encoded client ids, as long as no member changes
    warned_ms: int = -_WARN_INTERVAL_MS  # time of the last warning of unequal subscriptions

    def encoded_ids(self) -> bytes | None:
        """Body of the answer to code 38, encoded once per change of the members; None without members."""
        # A group of thousands is asked for its members by each of them after each change.
        if self.ids_body is None and self.members:
            self.ids_body = ConsumerIdList(self.client_ids()).encode()
        return self.ids_body

    def client_ids(self) -> list[str]:
        """Distinct client ids of the members, in order of registration."""
        # One client may be a member over two connections.
        return list(dict.fromkeys(info.client_id for info in self.members.values()))

    def update(self, data: ConsumerData, connection: Connection, subscriptions: dict[str, SubscriptionData]) -> bool:
        """Apply type and subscriptions of a member's heartbeat; returns whether the set of topics changed (HB-05)."""
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.consume_from_where = data.consume_from_where
        changed = False
        for topic, subscription in subscriptions.items():
            group_subscription = self.subscriptions.get(topic)
            if group_subscription is None:
                changed = True
            # The newest client decides: versions are their times of subscription.
            if group_subscription is None or subscription.sub_version > group_subscription.sub_version:
                self.subscriptions[topic] = subscription
                self.sources[topic] = connection
        # Also what other members subscribe: the last heartbeat names the topics of the group, as in Apache's broker.
        for topic in self.subscriptions.keys() - subscriptions.keys():
            del self.subscriptions[topic], self.sources[topic]
            changed = True
        return changed

    def drop_subscriptions_of(self, connection: Connection) -> list[str]:
        """Drop what only a former member subscribed; returns the topics of the group whose expression changed.

        The newest subscriptions of the remaining members take its place: a stranger's do not outlive its membership.
        """
        # Nothing of the group's came from this member.
        if connection not in self.sources.values():
            return []
        before, self.subscriptions, self.sources = self.subscriptions, {}, {}
        for member, info in self.members.items():
            for topic, subscription in info.subscriptions.items():
                newest = self.subscriptions.get(topic)
                if newest is None or subscription.sub_version > newest.sub_version:
                    self.subscriptions[topic] = subscription
                    self.sources[topic] = member
        return [
            topic
            for topic, new in self.subscriptions.items()
            if (old := before.get(topic)) is None
            or (old.sub_string, old.expression_type) != (new.sub_string, new.expression_type)
        ]


def units(subscriptions: Iterable[SubscriptionData]) -> int:
    """Units of these subscriptions: their number, and one more for each full KiB of text and codes of one."""
    count = 0
    for s in subscriptions:
        size = len(s.sub_string) + sum(map(len, s.tags_set)) + _CODE_BYTES * (len(s.code_set) + len(s.tags_set))
        count += 1 + size // _UNIT_BYTES
    return count


class Clients:
    """All live clients.

    changed: a group whose members or topics changed. resubscribed: a group, and the topics whose expression changed because a
    member left. offline: the name of a group without members.
    """

    def __init__(
        self,
        live_groups_max: int = _UNLIMITED,
        *,
        client_subscriptions_max: int = _UNLIMITED,
        subscriptions_max: int = _UNLIMITED,
    ) -> None:
        """client_subscriptions_max, subscriptions_max: limits on the subscriptions of one connection and of all, in units."""
        self._live_groups_max = live_groups_max
        self._client_subscriptions_max = client_subscriptions_max
        self._subscriptions_max = subscriptions_max
        self.producers: dict[str, dict[Connection, ClientInfo]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, tuple[set[str], set[str]]] = {}  # groups as producer, groups as consumer
        self._units_of: dict[Connection, int] = {}
        self._units = Shares()
        self._memberships = Shares()
        self._creators: dict[tuple[bool, str], str] = {}  # (consumers, name of a group online) -> host that created it
        self._created = (Shares(), Shares())  # groups of producers, of consumers
        self._log_limit = LogLimit()
        self.changed: EventEmitter[ConsumerGroup] = EventEmitter()
        self.resubscribed: EventEmitter[tuple[ConsumerGroup, list[str]]] = EventEmitter()
        self.offline: EventEmitter[str] = EventEmitter()
        self.ids = ClientIds()
        self.unequal: set[str] = set()  # groups whose members have unequal subscriptions
        self._producer_ids: dict[str, tuple[Connection, Owner]] = {}  # by client id
        self._round = 0

    def problem(
        self, connection: Connection, producers: Iterable[str], consumers: Sequence[ConsumerData], host: str = ""
    ) -> str | None:
        """Why a heartbeat with these groups is rejected: too much on its connection, or in total (LIM-13). None if accepted.

        host: the peer's address.
        """
        as_producer, as_consumer = self._groups_of.get(connection, (set(), set()))
        names = (as_producer.union(producers), as_consumer.union(data.group_name for data in consumers))
        count = len(names[0]) + len(names[1])
        if count > GROUPS_MAX:
            return f"{count} groups of one client, at most {GROUPS_MAX} are taken"
        # A heartbeat that adds nothing passes, even if the limits have been lowered.
        if count > max(len(as_producer) + len(as_consumer), CROWDED_GROUPS_MAX):
            more, limit = count - len(as_producer) - len(as_consumer), _MEMBERSHIPS_FACTOR * self._live_groups_max
            exceeded = self._memberships.exceeded(host, more, limit)
            if exceeded is not None:
                return f"memberships in groups: {exceeded} ({_MEMBERSHIPS_FACTOR} x liveGroupsMax)"
        online: tuple[Set[str], Set[str]] = (self.producers.keys(), self.consumers.keys())
        for table, group_names, created in zip(online, names, self._created, strict=True):
            new = len(group_names - table)
            count = len(table) + new
            # Checked before anything is changed: a refused heartbeat leaves no trace.
            if (exceeded := created.exceeded(host, new, self._live_groups_max)) is not None:
                return f"groups online: {exceeded} (liveGroupsMax)"
            if count > self._live_groups_max and new:
                return f"{count} groups are online, at most {self._live_groups_max} are allowed (liveGroupsMax)"
            if 2 * count > self._live_groups_max and len(group_names) > CROWDED_GROUPS_MAX and new:
                return (
                    f"{len(group_names)} groups of one client, at most {CROWDED_GROUPS_MAX} while more than half of "
                    f"liveGroupsMax={self._live_groups_max} are online"
                )
        before = after = 0
        for data in consumers:
            # What the heartbeat replaces does not count.
            before += self._member_units(data.group_name, connection)
            after += units(data.subscription_data_set)
        count = self._units_of.get(connection, 0) - before + after
        if count > self._client_subscriptions_max:
            most = self._client_subscriptions_max
            return f"{count} subscriptions of one client, at most {most} are allowed (subscriptionsMaxPerClient)"
        exceeded = self._units.exceeded(host, after - before, self._subscriptions_max)
        if exceeded is not None:
            return f"subscriptions: {exceeded} (liveSubscriptionsMax)"
        return None

    def _member_units(self, name: str, connection: Connection) -> int:
        group = self.consumers.get(name)
        info = group.members.get(connection) if group is not None else None
        return info.units if info is not None else 0

    def _count_units(self, connection: Connection, host: str, change: int) -> None:
        self._units.add(host, change)
        count = self._units_of.get(connection, 0) + change
        if count:
            self._units_of[connection] = count
        else:
            self._units_of.pop(connection, None)

    def taken_id(self, client_id: str, owner: Owner) -> bool:
        """Whether a live producer of another IP address or account has this client id: replies for it would be diverted."""
        holder = self._producer_ids.get(client_id)
        # A connection whose end is not handled yet does not hold its id.
        return holder is not None and holder[1] != owner and not holder[0].closed

    def register_producer(self, group: str, connection: Connection, info: ClientInfo) -> None:
        """Record a producer's heartbeat; a client id stays with the live connection of another owner that has it."""
        members = self.producers.get(group)
        if members is None:
            members = self.producers[group] = {}
            # Before the member is added: its address is charged with the group.
            self._online(False, group, info)
        members[connection] = info
        if not self.taken_id(info.client_id, info.owner):
            self._producer_ids[info.client_id] = (connection, info.owner)
        self._joined(connection, 0, group, info)

    def register_consumer(
        self, data: ConsumerData, connection: Connection, info: ClientInfo, *, notify: bool = True
    ) -> None:
        """Record a consumer's heartbeat; notifies the group if members or topics changed (HB-04)."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
            self._online(True, group.name, info)
        previous = group.members.get(connection)
        # One connection with two clients in turn: the ids of the group change.
        if previous is not None and previous.client_id != info.client_id:
            self._log_changed_id(group.name, previous.client_id, info)
        if previous is None or previous.client_id != info.client_id:
            group.ids_body = None
        info.subscriptions = {}
        for s in data.subscription_data_set:
            # A heartbeat may name a topic twice: the newer one counts, as in the group.
            if (twice := info.subscriptions.get(s.topic)) is None or s.sub_version > twice.sub_version:
                info.subscriptions[s.topic] = s
        info.expressions = frozenset((t, s.sub_string, s.expression_type) for t, s in info.subscriptions.items())
        info.units = units(info.subscriptions.values())
        self._count_units(connection, info.owner[0], info.units - (previous.units if previous is not None else 0))
        group.members[connection] = info
        # The usual heartbeat repeats what is known, and costs nothing more.
        if previous is None or previous.expressions != info.expressions:
            self._subscribed(
                group, connection, previous.expressions if previous is not None else None, info.expressions
            )
            self._warn_if_unequal(group, connection, info)
        self._joined(connection, 1, group.name, info)
        # After the member's own record, from which the group's is built if another one leaves.
        changed = group.update(data, connection, info.subscriptions)
        if (previous is None or changed) and notify:
            self.changed.emit(group)

    def _subscribed(
        self, group: ConsumerGroup, connection: Connection, before: Expressions | None, after: Expressions | None
    ) -> None:
        group.variants.move(connection, before, after)
        if group.variants.unequal:
            self.unequal.add(group.name)
        else:
            self.unequal.discard(group.name)

    def _warn_if_unequal(self, group: ConsumerGroup, connection: Connection, info: ClientInfo) -> None:
        """Warn if members subscribe differently: the group keeps one subscription, so some lose messages (CA-03).

        Once per change, at most once per minute and group, and within the limit by group.
        """
        unequal_member = group.variants.member_unlike(info.expressions)
        if unequal_member is None or info.heartbeat_ms - group.warned_ms < _WARN_INTERVAL_MS:
            return
        group.warned_ms = info.heartbeat_ms
        suppressed = self._log_limit.suppressed(group.name)
        if suppressed is not None:
            other_info = group.members[unequal_member]
            log.warning(
                "unequal subscriptions in one group, messages may be lost group=%s client=%s peer=%s other=%s other_peer=%s "
                "topics=%s suppressed=%s",
                group.name, info.client_id, connection.remote_address, other_info.client_id, unequal_member.remote_address,
                list(differing(info.expressions, other_info.expressions)), suppressed,
            )  # fmt: skip

    def conflicts(self) -> Iterator[Conflict]:
        """Clients that impair each other now: client ids, then groups."""
        yield from self.ids.conflicts()
        # A reader may take its steps between changes.
        for name in list(self.unequal):
            group = self.consumers.get(name)
            if group is not None and (conflict := self._unequal_members(group)) is not None:
                yield conflict

    def conflicts_of(self, group: ConsumerGroup) -> list[Conflict]:
        """The conflicts that a group takes part in, of the first ones."""
        # Bounded: a request asks for this.
        searched = islice(self.ids.shared.items(), _CONFLICTS_SEARCHED_MAX)
        ids = [client_id for client_id, pair in searched if any(member in group.members for member in pair)]
        conflicts = [conflict for client_id in ids if (conflict := self.ids.conflict(client_id)) is not None]
        if (unequal := self._unequal_members(group)) is not None:
            conflicts.append(unequal)
        return conflicts

    def _unequal_members(self, group: ConsumerGroup) -> Conflict | None:
        if not group.variants.unequal:
            return None
        first_member = group.variants.first()
        info = group.members[first_member]
        unequal_member = group.variants.member_unlike(info.expressions)
        # Unequal members subscribe in at least two ways.
        assert unequal_member is not None
        other_info = group.members[unequal_member]
        topics = differing(info.expressions, other_info.expressions)
        addresses = (first_member.remote_address, unequal_member.remote_address)
        return Conflict(
            ConflictKind.SUBSCRIPTIONS,
            group.name,
            info.client_id,
            addresses[0],
            other_info.client_id,
            addresses[1],
            topics,
        )

    def _joined(self, connection: Connection, kind: int, name: str, info: ClientInfo) -> None:
        """Record a membership. kind: 0 as a producer, 1 as a consumer."""
        names = self._groups_of.setdefault(connection, (set(), set()))[kind]
        if name not in names:
            names.add(name)
            self._memberships.add(info.owner[0], 1)

    def _online(self, consumers: bool, name: str, info: ClientInfo) -> None:
        self._creators[consumers, name] = info.owner[0]
        self._created[consumers].add(info.owner[0], 1)

    def _offline(self, consumers: bool, name: str) -> None:
        # Charged to the address that created it, although another one may leave last.
        self._created[consumers].add(self._creators.pop((consumers, name)), -1)

    def _log_changed_id(self, group: str, before: str, info: ClientInfo) -> None:
        suppressed = self._log_limit.suppressed(f"{info.owner[0]} id")
        if suppressed is not None:
            log.warning(
                "client id changed group=%s from=%s to=%s suppressed=%s", group, before, info.client_id, suppressed
            )

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client from a producer and/or consumer group (HB-07)."""
        as_producer, as_consumer = self._groups_of.get(connection, (set(), set()))
        # Before the tables: they show whether the id is still in use.
        as_producer.discard(producer_group or "")
        as_consumer.discard(consumer_group or "")
        if not as_producer and not as_consumer:
            self._groups_of.pop(connection, None)
            self.ids.closed(connection)
        if producer_group:
            members = self.producers.get(producer_group)
            if members is not None:
                info = members.pop(connection, None)
                if info is not None:
                    self._memberships.add(info.owner[0], -1)
                # Another connection may have taken the id.
                if info is not None and not as_producer and self.producer_of_id(info.client_id) is connection:
                    del self._producer_ids[info.client_id]
                if not members:
                    del self.producers[producer_group]
                    self._offline(False, producer_group)
        if consumer_group:
            group = self.consumers.get(consumer_group)
            info = group.members.pop(connection, None) if group is not None else None
            if group is not None and info is not None:
                self._memberships.add(info.owner[0], -1)
                self._count_units(connection, info.owner[0], -info.units)
                group.ids_body = None
                self._subscribed(group, connection, info.expressions, None)
                self._member_left(group, connection)

    def connection_closed(self, connection: Connection) -> None:
        """Remove the connection from all its groups (HB-06)."""
        for _ in self.leaving(connection):
            pass

    def leaving(self, connection: Connection) -> Steps[None]:
        """As `connection_closed`, in steps of one group.

        A client that comes back meanwhile has another connection, so that its memberships and its client id stay.
        """
        # At once: a client that comes back is no conflict.
        self.ids.closed(connection)
        as_producer, as_consumer = self._groups_of.get(connection, (set(), set()))
        # `unregister` changes the set.
        for name in list(as_producer):
            self.unregister(connection, name, None)
            yield
        for name in list(as_consumer):
            self.unregister(connection, None, name)
            yield

    def expired(self, now_ms: int, expiry_ms: int) -> Steps[set[Connection]]:
        """The connections of clients without a heartbeat for more than expiry_ms, found in steps of one client."""
        expired = set()
        # Heartbeats come between the steps.
        for connection, (as_producer, as_consumer) in list(self._groups_of.items()):
            infos = [self.producers[name][connection] for name in as_producer]
            infos += [self.consumers[name].members[connection] for name in as_consumer]
            # One group without heartbeats is enough: the client sends all in one.
            if any(now_ms - info.heartbeat_ms > expiry_ms for info in infos):
                expired.add(connection)
            yield
        return expired

    def _member_left(self, group: ConsumerGroup, connection: Connection) -> None:
        if not group.members:
            self.consumers.pop(group.name, None)
            self._offline(True, group.name)
            self.offline.emit(group.name)
        elif topics := group.drop_subscriptions_of(connection):
            self.resubscribed.emit((group, topics))
        self.changed.emit(group)

    def producer_of_id(self, client_id: str) -> Connection | None:
        """Connection of the producer with this client id (RR-03)."""
        holder = self._producer_ids.get(client_id)
        return holder[0] if holder is not None else None

    def next_producer(self, group: str) -> Connection | None:
        """A live producer of a group, round robin (PR-36, TX-09)."""
        members = self.producers.get(group)
        if not members:
            return None
        # Over all groups: an exact turn of each is not needed.
        self._round += 1
        return next(islice(members, self._round % len(members), None))
