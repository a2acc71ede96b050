"""Clients that impair each other: one client id on two connections, members of a group with unequal subscriptions.

Two connections conflict over a client id if both send heartbeats in turn. A client that connects again does not: its old
connection, which may still be open here, sends none after the first of the new one.

Requirements: UX-10, CA-03.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from saturnmq.log_limit import LogLimit
from saturnmq.net import Connection

log = logging.getLogger(__name__)

TOPICS_MAX: Final = 10  # of one conflict

Expressions = frozenset[tuple[str, str, str]]  # topic, expression, expression type


class ConflictKind(Enum):
    """Subject of a conflict of two clients."""

    CLIENT_ID = "client_id"
    SUBSCRIPTIONS = "subscriptions"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two clients that conflict. group: empty for a client id. topics: those that they subscribe to differently, at most 10."""

    kind: ConflictKind
    group: str
    client_id: str
    address: str
    other_id: str
    other_address: str
    topics: tuple[str, ...] = ()


class Variants:
    """The members of one group by what they subscribe to."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[Expressions, dict[Connection, None]] = {}

    def move(self, connection: Connection, before: Expressions | None, after: Expressions | None) -> None:
        """A member joins (before is None), changes its subscriptions, or leaves (after is None)."""
        # Empty expressions too are a variant: None alone means that there is none.
        if before is not None and (members := self._members.get(before)) is not None:
            members.pop(connection, None)
            if not members:
                del self._members[before]
        if after is not None:
            self._members.setdefault(after, {})[connection] = None

    @property
    def unequal(self) -> bool:
        """Whether members subscribe to different topics or with different expressions."""
        return len(self._members) > 1

    def member_unlike(self, expressions: Expressions) -> Connection | None:
        """A member that subscribes differently; None if there is none."""
        return next((next(iter(members)) for kind, members in self._members.items() if kind != expressions), None)

    def first(self) -> Connection:
        """The longest member of the oldest variant."""
        return next(iter(next(iter(self._members.values()))))


def differing(expressions: Expressions, other_expressions: Expressions) -> tuple[str, ...]:
    """The topics, at most TOPICS_MAX, that two members subscribe to differently."""
    # Whatever is in one of them only, also with another expression.
    return tuple(sorted({topic for topic, _, _ in expressions ^ other_expressions})[:TOPICS_MAX])


@dataclass(slots=True)
class _Beats:
    """Numbers of the first and the last heartbeat of a connection with a client id."""

    first: int
    last: int


class ClientIds:
    """Which connections use a client id. Holds one id for each connection."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[Connection, _Beats]] = {}  # the last one that sent a heartbeat comes last
        self._id_of: dict[Connection, str] = {}
        self._count = 0
        self.shared: dict[str, tuple[Connection, Connection]] = {}  # client ids in conflict
        self._log_limit = LogLimit()

    def heard(self, client_id: str, connection: Connection) -> None:
        """Record a heartbeat; the first one that reveals a conflict is logged."""
        self._count += 1
        # A connection may change its id.
        if self._id_of.get(connection, client_id) != client_id:
            self.closed(connection)
        self._id_of[connection] = client_id
        holders = self._holders.setdefault(client_id, {})
        # Popped and set again at the end: the order is that of the last heartbeats.
        beats = holders.pop(connection, None) or _Beats(self._count, self._count)
        last_holder = next(reversed(holders), None)
        # The other one was heard of after this one began: they take turns.
        if last_holder is not None and client_id not in self.shared and holders[last_holder].last > beats.first:
            self.shared[client_id] = (connection, last_holder)
            suppressed = self._log_limit.suppressed(client_id)
            if suppressed is not None:
                log.warning(
                    "client id used by two connections client=%s peer=%s other=%s suppressed=%s",
                    client_id, connection.remote_address, last_holder.remote_address, suppressed,
                )  # fmt: skip
        beats.last = self._count
        holders[connection] = beats

    def closed(self, connection: Connection) -> None:
        """Forget a connection, and the conflict that it was part of."""
        client_id = self._id_of.pop(connection, None)
        if client_id is None:
            return
        holders = self._holders[client_id]
        del holders[connection]
        if not holders:
            del self._holders[client_id]
        # The remaining holders may conflict again at their next heartbeats.
        if connection in self.shared.get(client_id, ()):
            del self.shared[client_id]

    def conflicts(self) -> Iterator[Conflict]:
        """The client ids in conflict."""
        for client_id in list(self.shared):
            if (conflict := self.conflict(client_id)) is not None:
                yield conflict

    def conflict(self, client_id: str) -> Conflict | None:
        """The conflict over a client id; None if there is none."""
        pair = self.shared.get(client_id)
        if pair is None:
            return None
        address, other_address = (connection.remote_address for connection in pair)
        return Conflict(ConflictKind.CLIENT_ID, "", client_id, address, client_id, other_address)
