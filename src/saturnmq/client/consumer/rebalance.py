"""How a group shares the queues of a topic: every member computes the same table alone. Pure.

A strategy gets the queues of one topic, the client ids of the group's members and one's own. Where it knows no queue for a
member, as for one that is not in the list, it gives none. Source: spec 03 RB-02, section 5.
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
    """The order all members sort queues by: topic, broker name, queue id."""
    return queue.topic, queue.broker_name, queue.queue_id


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Contiguous blocks, the first n mod m members get one more. An unknown member or nothing to share gives none."""
    ordered, ids = sorted(queues, key=queue_order), sorted(members)
    if me not in ids or not ordered:
        return []
    at, count = ids.index(me), len(ids)
    size, rest = divmod(len(ordered), count)
    start = at * size + min(at, rest)
    return ordered[start : start + size + (1 if at < rest else 0)]


def average_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Every m-th queue, beginning with the member's own index."""
    ordered, ids = sorted(queues, key=queue_order), sorted(members)
    if me not in ids:
        return []
    return ordered[ids.index(me) :: len(ids)]


def configured(queues: Iterable[MessageQueue]) -> Strategy:
    """CONFIG: always these queues, as far as the topic has them; names of topics as on the wire."""
    fixed = frozenset(queues)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        return sorted(fixed.intersection(queues), key=queue_order)

    return allocate


def machine_room(rooms: Iterable[str]) -> Strategy:
    """MACHINE_ROOM: only brokers named `<room>@<name>` of these rooms; equal blocks, one of the rest to each of the first."""
    wanted = frozenset(rooms)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        near = []
        for queue in sorted(queues, key=queue_order):
            room, *name = queue.broker_name.split("@")
            if len(name) == 1 and room in wanted:
                near.append(queue)
        ids = sorted(members)
        if me not in ids:
            return []
        at, count = ids.index(me), len(ids)
        size, rest = divmod(len(near), count)
        block = near[at * size : (at + 1) * size]
        return [*block, near[at + size * count]] if at < rest else block

    return allocate


def nearby(
    inner: Strategy, *, broker_room: Callable[[MessageQueue], str], member_room: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: `inner` inside my room; queues of rooms without a live member are shared by all members.

    broker_room and member_room say where a queue's broker and a client id are; "" raises LocalProtocolError.
    """

    def room_of(say: Callable[[Any], str], what: Any) -> str:
        room = say(what)
        if not room:
            raise LocalProtocolError(f"no machine room is known for {what}")
        return room

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in members:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues, key=queue_order):
            queues_in.setdefault(room_of(broker_room, queue), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in sorted(members):
            members_in.setdefault(room_of(member_room, member), []).append(member)
        here = room_of(member_room, me)
        mine = inner(queues_in[here], members_in[here], me) if here in queues_in else []
        for room in sorted(queues_in):
            if room not in members_in:
                mine += inner(queues_in[room], sorted(members), me)
        return mine

    return allocate


def md5_hash(text: str) -> int:
    """The first four bytes of the MD5 of the text, unsigned. No secret is behind it: a place on the ring."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def consistent_hash(virtual_nodes: int = 10, place: Callable[[str], int] = md5_hash) -> Strategy:
    """CONSISTENT_HASH: so many virtual nodes per member on a ring; a queue goes to the next one clockwise.

    Raises ConfigError for a bad count. Few queues move when a member comes or goes, but shares are uneven.
    """
    if isinstance(virtual_nodes, bool) or not isinstance(virtual_nodes, int) or not 0 < virtual_nodes <= 10_000:
        raise ConfigError(f"virtual_nodes is {virtual_nodes!r:.40}, must be 1..10000")

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in members:
            return []
        owners = {place(f"{member}-{k}"): member for member in sorted(members) for k in range(virtual_nodes)}
        ring = sorted(owners)
        mine = []
        for queue in sorted(queues, key=queue_order):
            name = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect_left(ring, place(name))
            if owners[ring[at % len(ring)]] == me:
                mine.append(queue)
        return mine

    return allocate
