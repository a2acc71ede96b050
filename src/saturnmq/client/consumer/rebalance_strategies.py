"""Allocation strategies: how a group divides the queues of a topic. Every member computes the same result independently. Pure.

A strategy gets the queues of one topic, the client ids of the group's members and the caller's own client id. It returns no queue
where it has none for a member, such as one that is not in the list.

Requirements: RB-02.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, LocalProtocolError

Strategy: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    """Sort key shared by all members: topic, broker name, queue id."""
    return queue.topic, queue.broker_name, queue.queue_id


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Contiguous blocks; the first n mod m members get one queue more. Empty for an unknown member or without queues."""
    # Members get the lists in different orders.
    ordered, ids = sorted(queues, key=queue_order), sorted(members)
    if me not in ids or not ordered:
        return []
    at, count = ids.index(me), len(ids)
    size, remainder = divmod(len(ordered), count)
    start = at * size + min(at, remainder)
    return ordered[start : start + size + (1 if at < remainder else 0)]


def average_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Every m-th queue, starting at the member's own index."""
    ordered, ids = sorted(queues, key=queue_order), sorted(members)
    if me not in ids:
        return []
    return ordered[ids.index(me) :: len(ids)]


def configured(queues: Iterable[MessageQueue]) -> Strategy:
    """CONFIG: always these queues, as far as the topic has them; topic names are namespaced."""
    fixed = frozenset(queues)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        # A queue that the topic does not have is not consumed.
        return sorted(fixed.intersection(queues), key=queue_order)

    return allocate


def machine_room(sites: Iterable[str]) -> Strategy:
    """MACHINE_ROOM: only queues of brokers named `<site>@<name>` at one of these sites.

    Equal contiguous blocks; the remainder goes, one queue each, to the first members.
    """
    near_sites = frozenset(sites)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        near = []
        for queue in sorted(queues, key=queue_order):
            site, *name = queue.broker_name.split("@")
            if len(name) == 1 and site in near_sites:
                near.append(queue)
        ids = sorted(members)
        if me not in ids:
            return []
        at, count = ids.index(me), len(ids)
        # Other than `average`: the remainder is given from the end, as Java does.
        size, remainder = divmod(len(near), count)
        block = near[at * size : (at + 1) * size]
        return [*block, near[at + size * count]] if at < remainder else block

    return allocate


def nearby(
    inner: Strategy, *, broker_site: Callable[[MessageQueue], str], member_site: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: apply `inner` within the member's own site.

    Queues at sites without a live member are divided among all members. broker_site and member_site return the site of a queue's
    broker and of a client id; an empty string raises LocalProtocolError.
    """

    def site_of(lookup: Callable[[Any], str], subject: Any) -> str:
        site = lookup(subject)
        if not site:
            raise LocalProtocolError(f"no site is known for {subject}")
        return site

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in members:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues, key=queue_order):
            queues_in.setdefault(site_of(broker_site, queue), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in sorted(members):
            members_in.setdefault(site_of(member_site, member), []).append(member)
        own_site = site_of(member_site, me)
        share = inner(queues_in[own_site], members_in[own_site], me) if own_site in queues_in else []
        for site in sorted(queues_in):
            if site not in members_in:
                share += inner(queues_in[site], sorted(members), me)
        return share

    return allocate


def md5_hash(text: str) -> int:
    """The first four bytes of the text's MD5 as an unsigned integer. Not for security: it is a position on the hash ring."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def consistent_hash(virtual_nodes: int = 10, ring_position: Callable[[str], int] = md5_hash) -> Strategy:
    """CONSISTENT_HASH: members have this many virtual nodes each on a hash ring; a queue goes to the next node clockwise.

    Few queues move when a member joins or leaves, but shares are uneven. Raises ConfigError for a count out of range.
    """
    if isinstance(virtual_nodes, bool) or not isinstance(virtual_nodes, int) or not 0 < virtual_nodes <= 10_000:
        raise ConfigError(f"virtual_nodes is {virtual_nodes!r:.40}, must be 1..10000")

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in members:
            return []
        # Sorted, so that every member keeps the same one of two nodes at one ring position.
        owners = {ring_position(f"{member}-{k}"): member for member in sorted(members) for k in range(virtual_nodes)}
        ring = sorted(owners)
        share = []
        for queue in sorted(queues, key=queue_order):
            # Java's toString of a queue: Java members must compute the same position.
            name = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect_left(ring, ring_position(name))
            # After the last node the ring begins again.
            if owners[ring[at % len(ring)]] == me:
                share.append(queue)
        return share

    return allocate
