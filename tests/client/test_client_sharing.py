"""Allocation strategies, each compared with a slow reference implementation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.client.consumer.rebalance_strategies import (
    Strategy,
    average,
    average_by_circle,
    configured,
    consistent_hash,
    machine_room,
    md5_hash,
    nearby,
)
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, LocalProtocolError

EIGHT = [MessageQueue("T", "b", n) for n in range(1, 9)]
THREE = ["c1", "c2", "c3"]
ROOMS = ("east", "north", "west")


def in_room(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def member_in_room(member: str) -> str:
    return member.partition("/")[0]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


@pytest.mark.spec("RB-02")
@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        (average, [[1, 2, 3], [4, 5, 6], [7, 8]]),
        (average_by_circle, [[1, 4, 7], [2, 5, 8], [3, 6]]),
        (consistent_hash(), [[2], [3, 4, 7, 8], [1, 5, 6]]),
        (configured([EIGHT[4], EIGHT[1], MessageQueue("T", "removed", 0)]), [[2, 5]] * 3),
    ],
    ids=["average", "circle", "hash", "config"],
)
def test_strategies_allocate_as_apache_does(strategy: Strategy, shares: list[list[int]]) -> None:
    assert [ids(strategy(EIGHT, THREE, member)) for member in THREE] == shares
    assert [ids(strategy(EIGHT[::-1], THREE[::-1], member)) for member in THREE] == shares, "any order of the lists"


@pytest.mark.spec("RB-02")
def test_consistent_hash_equals_that_of_apache() -> None:
    assert md5_hash("c1-0") == 3886541579


QUEUES = st.builds(
    MessageQueue,
    st.sampled_from(["T", "U"]),
    st.builds(lambda room, n: f"{room}@b{n}", st.sampled_from(ROOMS), st.integers(0, 2)),
    st.integers(0, 7),
)
QUEUE_LISTS = st.lists(QUEUES, unique=True, max_size=24)
MEMBERS = st.builds(lambda room, n: f"{room}/10.0.0.{n}@{n}", st.sampled_from(ROOMS), st.integers(1, 200))
MEMBER_LISTS = st.lists(MEMBERS, unique=True, min_size=1, max_size=9)


def slow_average(queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    n, m, i = len(queues), len(members), members.index(me)
    r = n % m
    size = 1 if n <= m else n // m + (1 if i < r else 0)
    start = i * size + (r if i >= r > 0 else 0)
    return [queue for at, queue in enumerate(queues) if start <= at < start + size]


def slow_circle(queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    return [queue for at, queue in enumerate(queues) if at % len(members) == members.index(me)]


def slow_hash(queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    def place(text: str) -> int:
        digest, number = hashlib.md5(text.encode(), usedforsecurity=False).digest(), 0
        for byte in digest[:4]:
            number = number << 8 | byte
        return number

    nodes = sorted((place(f"{member}-{k}"), member) for member in members for k in range(10))
    mine = []
    for queue in queues:
        at = place(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]")
        owner = next((member for spot, member in nodes if spot >= at), nodes[0][1])
        if owner == me:
            mine.append(queue)
    return mine


def slow_rooms(queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    near = [queue for queue in queues if in_room(queue) in ROOMS]
    blocks: dict[str, list[MessageQueue]] = {member: [] for member in members}
    for member in members:
        for _ in range(len(queues) // len(members)):
            blocks[member].append(near.pop(0))
    for member, queue in zip(members, near, strict=False):
        blocks[member].append(queue)
    return blocks[me]


def slow_nearby(queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    mine: list[MessageQueue] = []
    live = {member_in_room(member) for member in members}
    here = member_in_room(me)
    for room in [here, *(name for name in ROOMS if name not in live)]:
        there = [queue for queue in queues if in_room(queue) == room]
        near = [member for member in members if member_in_room(member) == room] or members
        mine += slow_average(there, near, me)
    return mine


NEARBY = nearby(average, broker_site=in_room, member_site=member_in_room)
PAIRS: list[tuple[Strategy, Callable[..., list[MessageQueue]]]] = [
    (average, slow_average),
    (average_by_circle, slow_circle),
    (consistent_hash(), slow_hash),
    (machine_room(ROOMS), slow_rooms),
    (NEARBY, slow_nearby),
]


@pytest.mark.spec("RB-02", "CA-01")
@pytest.mark.parametrize(("fast", "slow"), PAIRS, ids=["average", "circle", "hash", "sites", "nearby"])
@given(data=st.data())
def test_strategy_gives_every_queue_one_owner_as_the_reference_does(
    fast: Strategy, slow: Callable[..., list[MessageQueue]], data: Any
) -> None:
    queues, members = data.draw(QUEUE_LISTS), data.draw(MEMBER_LISTS)
    shares = {member: fast(queues, members, member) for member in members}
    owned = [queue for share in shares.values() for queue in share]
    assert sorted(owned) == sorted(queues)
    assert fast(queues, members, "stranger") == []
    in_order, sorted_members = sorted(queues), sorted(members)
    for member in members:
        assert shares[member] == slow(in_order, sorted_members, member)


@pytest.mark.spec("RB-02")
@given(QUEUE_LISTS, MEMBER_LISTS)
def test_equal_shares_differ_by_at_most_one_queue(queues: list[MessageQueue], members: list[str]) -> None:
    for strategy in (average, average_by_circle, machine_room(ROOMS)):
        sizes = {len(strategy(queues, members, member)) for member in members}
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.spec("RB-02")
@given(QUEUE_LISTS, MEMBER_LISTS)
def test_consistent_hash_moves_only_the_queues_of_a_leaving_member(
    queues: list[MessageQueue], members: list[str]
) -> None:
    share = consistent_hash()
    for member in members[1:]:
        before, after = set(share(queues, members, member)), set(share(queues, members[1:], member))
        assert before <= after


@pytest.mark.spec("RB-02")
def test_machine_room_strategies_check_site_names() -> None:
    queues = [MessageQueue("T", name, 0) for name in ("east@a", "west@a", "plain", "east@a@b")]
    assert machine_room(["east"])(queues, ["c"], "c") == [queues[0]]
    with pytest.raises(LocalProtocolError, match="no site is known"):
        nearby(average, broker_site=lambda queue: "", member_site=member_in_room)(queues, ["c"], "c")
    with pytest.raises(ConfigError, match="virtual_nodes"):
        consistent_hash(0)
