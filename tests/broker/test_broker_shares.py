"""Limits that all clients share: no address can use one up for all others.

Each test has an honest client beside the hostile one.

Requirements: LIM-13, RR-03.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from wire import Clock, Wire, wire

from saturnmq.broker.state.creation_quota import HOUR_MS
from saturnmq.broker.state.locks import QueueLockTable
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import is_local, network_of
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, MessageQueue, ProducerData, SubscriptionData
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import encode_properties


@asynccontextmanager
async def peer(w: Wire, address: str) -> AsyncIterator[Wire]:
    """A connection that the broker takes for one from this address."""
    before = set(w.broker.connections)
    other = Wire(w.server)
    await other.call(Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="none")
    (connection,) = set(w.broker.connections) - before
    real, connection.remote_address = connection.remote_address, address
    connection.__dict__.pop("packed_host", None)  # as it is in records
    try:
        yield other
    finally:
        connection.remote_address = real
        await other.client.close()


@asynccontextmanager
async def attacked(**limits: Any) -> AsyncIterator[tuple[Wire, Wire, Wire]]:
    """A broker with these limits, a hostile and an honest client, each from an address of its own."""
    async with (
        wire(**limits) as w,
        peer(w, "192.0.2.7:1") as hostile,
        peer(w, "198.51.100.1:1") as honest,
    ):
        yield w, hostile, honest


# ---- names


async def test_one_address_cannot_use_up_the_topics_of_an_hour() -> None:
    """1000 sends of a stranger, and no client could create a topic for the rest of the hour."""
    clock = Clock()
    async with (
        attacked(clock_ms=clock, topics_per_hour=8) as (w, hostile, honest),
        peer(w, "2001:db8:1:2:aaaa::1:1") as second,
        peer(w, "2001:db8:1:2:bbbb::1:1") as same_network,
    ):
        codes = [(await hostile.send(f"h{n}")).code for n in range(9)]
        assert codes == [0] * 4 + [ResponseCode.TOPIC_NOT_EXIST] * 5
        assert [(await second.send(f"s{n}")).code for n in range(3)] == [0, 0, 17]
        refused = await same_network.send("s-again")
        assert refused.code == 17 and "2001:db8:1:2::/64" in (refused.remark or "")
        assert (await honest.send("orders")).code == 0
        assert (await hostile.send("orders")).code == 0, "existing topics are unaffected"
        assert (await w.send("local")).code == 0
        clock.ms += HOUR_MS
        assert (await hostile.send("next")).code == 0


async def test_one_address_cannot_use_up_the_groups_of_an_hour() -> None:
    async with attacked(groups_per_hour=8) as (w, hostile, honest):
        await w.send()
        codes = [(await hostile.pull(group=f"h{n}")).code for n in range(6)]
        assert codes == [0] * 4 + [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST] * 2
        assert (await hostile.heartbeat("h9", "T")).code == 0
        assert w.broker.groups.table.get("h9") is None, "nor by a heartbeat"
        assert (await honest.heartbeat("orders", "T")).code == 0
        assert w.broker.groups.table.get("orders") is not None
        assert w.broker.topics.get("%RETRY%orders") is not None


async def test_one_address_cannot_fill_the_offsets() -> None:
    """A few hundred groups times a few thousand topics, and no new group of anyone could commit."""
    async with attacked(offsets_max=8) as (w, hostile, honest):
        await w.send()

        async def commit(client: Wire, group: str) -> int:
            ext = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": 1}
            return (await client.call(Code.UPDATE_CONSUMER_OFFSET, **ext)).code

        assert [await commit(hostile, f"h{n}") for n in range(6)] == [0] * 4 + [ResponseCode.SYSTEM_BUSY] * 2
        await hostile.pull(group="h5", sysFlag=5, commitOffset=1)
        assert w.broker.offsets.get("T", "h5", 0) is None, "nor by a pull"
        assert await commit(honest, "orders") == 0
        assert await commit(hostile, "h0") == 0, "its own are updated"


def test_networks_of_peers() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::") != network_of("2001:db8:1:3::")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth0")
    assert network_of("") == "" and network_of("name") == "name"
    assert [is_local(text) for text in ("127.0.0.1", "::1", "127.9.9.9", "192.0.2.1", "")] == [True] * 3 + [False] * 2


def test_shares_leave_as_much_as_they_give() -> None:
    shares = Shares()

    def taken(address: str) -> int:
        count = 0
        while shares.exceeded(address, 1, 100) is None:
            shares.add(address, 1)
            count += 1
        return count

    assert [taken(f"10.0.0.{n}") for n in range(6)] == [50, 25, 12, 6, 3, 2]
    assert taken("127.0.0.1") == 2 and shares.total == 100
    shares.add("10.0.0.0", -50)
    assert shares.exceeded("10.0.0.0", 25, 100) is None and shares.exceeded("10.0.0.0", 26, 100) is not None


def test_share_is_a_multiple_of_what_is_left() -> None:
    shares = Shares(4, local_limited=True)
    for address in ("127.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"):
        while shares.exceeded(address, 1, 100) is None:
            shares.add(address, 1)
    assert [shares.used(f"10.0.0.{n}") for n in (1, 2, 3)] == [16, 3, 1] and shares.used("127.0.0.1") == 80
    assert shares.exceeded("10.0.0.4", 1, 100) == "100 are in use, at most 100 are allowed"
    assert shares.exceeded("10.0.0.4", 50, 100, growth=0) is None, "it replaces entries of others"


def test_locks_are_shared_by_network() -> None:
    """Half of them per address: one IPv6 network has 2^64 addresses."""
    locks = QueueLockTable(100)
    queues = [MessageQueue("T", "b", n) for n in range(200)]
    owned = [len(locks.lock(f"H{n}", f"c{n}", queues, 0, f"2001:db8::{n:x}:1")) for n in range(20)]
    assert owned == [10] * 5 + [0] * 15
    assert locks.lock("G", "c", queues[:7], 0, "10.0.0.2:1") == queues[:7]


# ---- replies


async def reply_to(w: Wire, client_id: str) -> Command:
    properties = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": client_id, "TTL": "3000", "MSG_TYPE": "reply"}
    fields = {
        "a": "p",
        "b": "DefaultCluster_REPLY_TOPIC",
        "c": "TBW102",
        "d": 1,
        "e": 0,
        "f": 0,
        "g": 1,
        "h": 0,
        "j": 0,
    }
    return await w.call(Code.SEND_REPLY_MESSAGE_V2, b"x", i=encode_properties(properties).decode(), **fields)


async def produce(w: Wire, client_id: str) -> None:
    assert (await w.call(Code.HEART_BEAT, HeartbeatData(client_id, [ProducerData("p")]).encode())).code == 0


@pytest.mark.parametrize("connections", [1, 12])
async def test_silent_requesters_do_not_hold_the_replies_of_others(connections: int) -> None:
    """10,000 replies to a client that confirms none, and the broker rejected all others for ten seconds, again and again."""
    async with wire(reply_queue_max=40) as w, peer(w, "198.51.100.1:1") as honest:
        await produce(honest, "honest")
        hostile = [Wire(w.server) for _ in range(connections)]
        for number, each in enumerate(hostile):
            before = set(w.broker.connections)
            await produce(each, f"silent{number}")
            (connection,) = set(w.broker.connections) - before
            connection.remote_address = f"192.0.2.7:{number}"
        waiting = [
            asyncio.ensure_future(reply_to(w, f"silent{number % connections}")) for number in range(60 * connections)
        ]
        most = 4 if connections == 1 else 20
        while w.broker.in_flight.replies < most:
            await asyncio.sleep(0)
        served = asyncio.ensure_future(reply_to(w, "honest"))
        pushed = await honest.pushed.get()
        (connection,) = list(honest.client.connections)
        connection.send(pushed.reply())
        assert (await served).code == 0
        assert w.broker.in_flight.replies <= most
        answers = [task.result() for task in waiting if task.done()]
        assert answers and {answer.code for answer in answers} == {1}
        assert "wait for" in (answers[0].remark or "")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for each in hostile:
            await each.client.close()


# ---- live clients


async def test_one_address_cannot_use_up_the_subscriptions() -> None:
    """50 connections with 2000 each, and no consumer could join a group."""
    many = [SubscriptionData(f"t{n}") for n in range(100)]

    async def beat(client: Wire, group: str, count: int) -> Command:
        data = ConsumerData(group, subscription_data_set=many[:count])
        return await client.call(Code.HEART_BEAT, HeartbeatData(f"c-{group}", [], [data]).encode())

    async with (
        attacked(subscriptions_max=400, client_subscriptions_max=100) as (w, one, honest),
        peer(w, "192.0.2.7:2") as two,
        peer(w, "192.0.2.7:3") as three,
    ):
        assert [(await beat(each, f"h{n}", 100)).code for n, each in enumerate((one, two))] == [0, 0]
        refused = await beat(three, "h2", 1)
        assert refused.code == 1 and "192.0.2.7" in (refused.remark or "")
        assert (await beat(honest, "orders", 100)).code == 0
        assert (await beat(one, "h0", 100)).code == 0, "those it has stay"
        await two.call(Code.UNREGISTER_CLIENT, clientID="c", consumerGroup="h1")
        assert (await beat(three, "h2", 50)).code == 0


async def test_one_address_cannot_use_up_the_memberships() -> None:
    async def beat(client: Wire, name: str, count: int) -> int:
        data = HeartbeatData(name, [ProducerData(f"{name}-{n}") for n in range(count)])
        return (await client.call(Code.HEART_BEAT, data.encode())).code

    async with (
        attacked(live_groups_max=100) as (w, one, honest),
        peer(w, "192.0.2.7:2") as two,
    ):
        assert [await beat(one, "a", n) for n in (30, 50, 51)] == [0, 0, 1], "half of the groups online"
        assert await beat(two, "b", 1) == 1
        assert await beat(honest, "orders", 20) == 0
        assert await beat(two, "orders", 20) == 0, "groups of others may be joined"


# ---- half messages, parked pulls, events


async def test_one_address_cannot_fill_the_undecided_half_messages() -> None:
    """Half of them per producer group: a peer chooses the names of its groups."""
    async with attacked(half_messages_max=8) as (_w, hostile, honest):

        async def half(client: Wire, group: str) -> int:
            return (await client.send(properties={"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": "x"})).code

        codes = [await half(hostile, f"g{n}") for n in range(6)]
        assert codes == [0] * 4 + [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        assert await half(honest, "orders") == 0


async def test_one_address_cannot_use_up_the_characters_of_parked_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.broker.services.long_polling.PARKED_BYTES_MAX", 16_000)
    async with attacked(short_polling_ms=10) as (w, hostile, honest):
        await w.send()
        long = "x" * 1500
        park = {"offset": 1, "suspend_ms": 20_000}
        first = [asyncio.ensure_future(hostile.pull(subscription=long, **park)) for _ in range(2)]
        while w.broker.long_polling.count < 2:
            await asyncio.sleep(0)
        assert (await hostile.pull(subscription=long, **park)).code == ResponseCode.PULL_NOT_FOUND, "delayed only"
        parked = asyncio.ensure_future(honest.pull(subscription=long, **park))
        while w.broker.long_polling.count < 3:
            await asyncio.sleep(0)
        assert w.broker.rejections.counts == {"parked_pulls": 1}
        await w.send(properties={"TAGS": long})
        assert {(await each).code for each in (*first, parked)} == {0}


async def test_offset_moved_events_are_limited_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One per second, group and queue: a peer with many groups and queues filled the disk."""
    monkeypatch.setattr("saturnmq.broker.state.offset_moved.EVENTS_MAX", 5)
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await w.send()
        for n in range(10):
            assert (await w.pull(offset=100, group=f"G{n}")).code == ResponseCode.PULL_OFFSET_MOVED
        assert len(await w.messages("OFFSET_MOVED_EVENT")) == 5
        clock.ms += 1000
        await w.pull(offset=100, group="G9")
        assert len(await w.messages("OFFSET_MOVED_EVENT")) == 6
        assert len(await w.messages()) == 1
