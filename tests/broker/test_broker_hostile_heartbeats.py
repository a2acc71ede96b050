"""Heartbeats of strangers: they may neither hold the event loop, nor fill tables, nor change what an honest group receives.

Each test has an honest client beside the hostile one.

Requirements: LIM-13, HB-05, FIL-04.
"""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wire import Clock, Wire, wire

from loopsteps import STEP_MAX, loop_steps
from saturnmq.broker.requests.clients import VERSION_AHEAD_MS
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_records, java_hash

SQL: dict[str, Any] = {"kind": "SQL92"}


@asynccontextmanager
async def stranger(w: Wire) -> AsyncIterator[Wire]:
    """A second connection to the broker."""
    other = Wire(w.server)
    try:
        yield other
    finally:
        await other.client.close()


async def beat(
    w: Wire, group: str, *subscriptions: tuple[str, str], version: int = 1, kind: str = "TAG", client_id: str = "x"
) -> Command:
    data = [SubscriptionData(t, text, sub_version=version, expression_type=kind) for t, text in subscriptions]
    body = HeartbeatData(client_id, [], [ConsumerData(group, subscription_data_set=data)]).encode()
    return await w.call(RequestCode.HEART_BEAT, body)


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in decode_records(answer.body or b"")]


SIZE = 1024 * 1024 - 1024  # just below the limit of a heartbeat's body
NONSENSE = {
    "words": b"[" + b"a," * (SIZE // 2) + b"1]",
    "escapes": b'[a,"' + b"\\n" * (SIZE // 2) + b'"]',
    "empty lists": b"[" + b"[]," * (SIZE // 3) + b"1]",
    "bare objects": b"[" + b"{a:{b:1}}," * (SIZE // 10) + b"1]",
    "flat objects": b"[" + b"{a:1}," * (SIZE // 6) + b"1]",
    "numbers": b"[" + b"1 " * (SIZE // 2) + b"]",
    "references": b'{"a":[1,2],"b":[' + b'{"$ref":"$.a"},' * (SIZE // 15) + b"1]}",
    "expanding references": b'{"a":['
    + b"1," * 9000
    + b'1],"clientID":"c","consumerDataSet":['
    + b'{"$ref":"$.a"},' * 999
    + b"{}]}",
    "steps of one reference": b'{"a":{"$ref":"$' + b".a" * (SIZE // 2) + b'"}}',
    "subscriptions": b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
    + b'{"topic":"t"},' * 5900
    + b'{"topic":"u"}]}]}',
    "spaces": b"{" + b" " * SIZE + b"x",
    "digits": b"[" + b"9" * (SIZE // 8) + b"x]",
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_heartbeat_of_nonsense_does_not_hold_the_event_loop(name: str) -> None:
    """4 MiB of such text stopped all clients for 4.5 s."""
    async with wire() as w, stranger(w) as hostile:
        await w.send()
        assert (await hostile.call(RequestCode.HEART_BEAT, b"{}")).code == 0  # connected
        with loop_steps() as steps:
            answers = [asyncio.ensure_future(hostile.call(RequestCode.HEART_BEAT, NONSENSE[name])) for _ in range(3)]
            assert (await w.send()).code == 0
            assert {(await answer).code for answer in answers} == {1}
        assert steps.longest < STEP_MAX


@pytest.mark.parametrize(
    "code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG, 200]
)
async def test_other_bodies_do_not_hold_the_event_loop(code: int) -> None:
    def of_queues(count: int) -> bytes:
        queues = b",".join(b'{"brokerName":"b","queueId":%d,"topic":"T"}' % n for n in range(count))
        return b'{"clientId":"c","consumerGroup":"G","mqSet":[' + queues + b"]}"

    async with wire() as w:
        with loop_steps() as steps:
            for raw in (of_queues(20_000), of_queues(4000), NONSENSE["flat objects"], NONSENSE["words"]):
                await w.call(code, raw)
        assert steps.longest < STEP_MAX
        assert (await w.send()).code == 0


@pytest.mark.spec("LIM-13")
async def test_subscriptions_are_limited_per_client_and_in_total() -> None:
    """100,000 subscriptions of one heartbeat took 72 MB."""
    many = [(f"topic-{n}", "*") for n in range(1500)]
    async with wire(subscriptions_max=2100) as w, stranger(w) as hostile:
        assert (await w.heartbeat("G", "T")).code == 0
        tracemalloc.start()
        try:
            assert (await beat(hostile, "A", *many)).code == 0
            refused = await beat(hostile, "B", *many)
            assert refused.code == 1 and "subscriptionsMaxPerClient" in (refused.remark or "")
            assert (await beat(hostile, "A", *many[:-1])).code == 0  # its own are replaced, not added
            async with stranger(w) as third:
                refused = await beat(third, "C", *many)
                assert refused.code == 1 and "liveSubscriptionsMax" in (refused.remark or "")
                long = "a" * 200 * 1024
                refused = await beat(third, "D", *[(f"t{n}", long) for n in range(4)])  # long ones count as many
                assert refused.code == 1 and "liveSubscriptionsMax" in (refused.remark or "")
                _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 24 * 1024 * 1024
        assert (await w.heartbeat("G", "T", "U", version=2)).code == 0  # honest clients keep what they have, and more
        assert list(w.broker.clients.consumers) == ["G", "A"]
        gone = {"clientID": "x", "consumerGroup": "A"}
        assert (await hostile.call(RequestCode.UNREGISTER_CLIENT, **gone)).code == 0
        assert (await beat(hostile, "B", *many)).code == 0
        await hostile.client.close()
        while "B" in w.broker.clients.consumers:
            await asyncio.sleep(0)
        clients = w.broker.clients
        assert clients._units.total == sum(clients._units_of.values()) == 2


async def test_largest_accepted_heartbeat_does_not_hold_the_event_loop() -> None:
    async with wire(property_filter_enable=True) as w, stranger(w) as hostile:
        await w.send()
        expression = "a = 1 OR " * 2000 + "a = 1"  # close to the longest
        with loop_steps() as steps:
            answers = [
                asyncio.ensure_future(
                    beat(
                        hostile,
                        f"G{group}",
                        *[(f"t{n}", f"b{n} = {group} OR " + expression) for n in range(10)],
                        **SQL,
                    )
                )
                for group in range(2)
            ]
            answers.append(asyncio.ensure_future(beat(hostile, "H", *[(f"topic-{n}", "*") for n in range(1500)])))
            assert (await w.send()).code == 0
            groups = HeartbeatData(
                "x", [ProducerData(f"p{n}") for n in range(1500)], [ConsumerData(f"c{n}") for n in range(1100)]
            )
            answers.append(asyncio.ensure_future(hostile.call(RequestCode.HEART_BEAT, groups.encode())))
            assert {(await answer).code for answer in answers} == {0}
        assert steps.longest < STEP_MAX


@pytest.mark.spec("LIM-13", "FIL-04")
async def test_filters_of_strangers_are_not_compiled_or_kept(tmp_path: Path) -> None:
    """60 expressions took 2.7 s and stayed in consumerFilter.json for a day, although SQL92 is off by default."""
    expressions = [(f"t{n}", f"a = {n}") for n in range(60)]
    async with wire() as w:
        assert (await beat(w, "G", *expressions, **SQL)).code == 0
        assert len(w.broker.filters.groups) == 0
    async with (
        wire(data=tmp_path, property_filter_enable=True, consumer_filters_max=3) as w,
        stranger(w) as hostile,
    ):
        await w.send()
        assert (await beat(w, "G", ("T", "a = 1"), **SQL)).code == 0
        assert (await beat(hostile, "H", *expressions, **SQL)).code == 0
        assert len(w.broker.filters.groups) == 3
        assert (await beat(hostile, "bad group", *expressions, **SQL)).code == 1
        await hostile.client.close()
        while "H" in w.broker.clients.consumers:
            await asyncio.sleep(0)
        await w.broker.filters.saved()
        saved = json.loads((tmp_path / "store" / "config" / "consumerFilter.json").read_bytes())
        assert list(saved["filterDataByTopic"]) == ["T"], "those of topics that do not exist leave with their group"


@pytest.mark.spec("LIM-13", "FIL-04")
async def test_filters_dead_for_longest_make_way_for_new_ones() -> None:
    clock = Clock()
    async with wire(clock_ms=clock, property_filter_enable=True, consumer_filters_max=2) as w:
        await w.send()
        for number, group in enumerate(("A", "B", "C")):
            async with stranger(w) as other:
                assert (await beat(other, group, ("T", f"a = {number}"), **SQL)).code == 0
            while group in w.broker.clients.consumers:
                await asyncio.sleep(0)
            clock.ms += 1000
        assert [record.group for record in w.broker.filters.groups] == ["B", "C"]


@pytest.mark.spec("HB-05")
async def test_group_gets_its_subscription_back_when_a_stranger_leaves() -> None:
    """A heartbeat with subVersion=2^62 and another tag made a group skip messages, also after its sender had left."""
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        for tag in ("mine", "foreign"):
            await w.send(body=tag.encode(), properties={"TAGS": tag})

        async def pulled(version: int) -> list[bytes]:
            return bodies(await w.pull(sysFlag=0, subVersion=version))

        mine = SubscriptionData("T", "mine", code_set=[java_hash("mine")], sub_version=clock.ms)
        theirs = SubscriptionData("T", "foreign", code_set=[java_hash("foreign")])

        async def join(client: Wire, subscription: SubscriptionData) -> Command:
            data = HeartbeatData("c", [], [ConsumerData("G", subscription_data_set=[subscription])])
            return await client.call(RequestCode.HEART_BEAT, data.encode())

        assert (await join(w, mine)).code == 0
        assert await pulled(mine.sub_version) == [b"mine"]
        async with stranger(w) as hostile:
            for version in (2**62, clock.ms + VERSION_AHEAD_MS + 1):
                theirs.sub_version = version
                refused = await join(hostile, theirs)
                assert refused.code == 1 and "ahead of this broker's clock" in (refused.remark or "")
            assert await pulled(mine.sub_version) == [b"mine"]
            theirs.sub_version = clock.ms + VERSION_AHEAD_MS
            assert (await join(hostile, theirs)).code == 0
            theirs.sub_version = 0  # hides which member the group's version is from
            assert (await join(hostile, theirs)).code == 0
            assert await pulled(mine.sub_version) == [b"mine"]  # and not the group's newest, as in 4.9.7
            parked = asyncio.ensure_future(
                w.pull(offset=2, sysFlag=2, subVersion=mine.sub_version, suspend_ms=20_000, suspendTimeoutMillis=20_000)
            )
            while not w.broker.long_polling.count:
                await asyncio.sleep(0)
        await parked  # woken: the group's tags have changed
        assert await pulled(mine.sub_version) == [b"mine"]
        assert w.broker.clients.consumers["G"].subscriptions["T"].sub_version == mine.sub_version


@pytest.mark.spec("FIL-04")
async def test_group_gets_its_filter_back_when_a_stranger_leaves() -> None:
    clock = Clock()
    async with wire(clock_ms=clock, property_filter_enable=True) as w:
        for n in range(4):
            await w.send(body=b"%d" % n, properties={"a": str(n)})
        now, ahead = clock.ms, clock.ms + VERSION_AHEAD_MS
        async with stranger(w) as hostile:  # before the group is online
            assert (await beat(hostile, "G", ("T", "a > 9"), version=ahead, **SQL)).code == 0
        while "G" in w.broker.clients.consumers:
            await asyncio.sleep(0)
        assert (await beat(w, "G", ("T", "a > 2"), version=now, **SQL)).code == 0
        assert bodies(await w.pull(sysFlag=0, subVersion=now)) == [b"3"]
        async with stranger(w) as hostile:  # beside it
            assert (await beat(hostile, "G", ("T", "a > 9"), version=ahead, **SQL)).code == 0
            assert bodies(await w.pull(sysFlag=0, subVersion=now)) == [b"3"]
        while len(w.broker.clients.consumers["G"].members) > 1:
            await asyncio.sleep(0)
        assert bodies(await w.pull(sysFlag=0, subVersion=now)) == [b"3"]


@pytest.mark.spec("HB-07")
async def test_only_the_registering_connection_can_unregister() -> None:
    async with wire() as w, stranger(w) as hostile:
        assert (await w.heartbeat("G", "T", client_id="c1")).code == 0
        gone = {"clientID": "c1", "producerGroup": "producers", "consumerGroup": "G"}
        assert (await hostile.call(RequestCode.UNREGISTER_CLIENT, **gone)).code == 0
        clients = w.broker.clients
        assert list(clients.producers) == ["producers"] and clients.consumers["G"].client_ids() == ["c1"]
        assert clients.producer_of_id("c1") is not None


@pytest.mark.spec("RR-03")
async def test_client_id_of_another_address_cannot_be_taken_over(wire: Wire) -> None:
    """Replies go to the client id of the requester: a stranger who sent it in a heartbeat received them."""
    hostile = RemotingClient(settings=NetSettings())
    try:
        assert (await wire.heartbeat("G", client_id="requester")).code == 0
        honest = wire.broker.clients.producer_of_id("requester")
        data = HeartbeatData("requester", [ProducerData("p")])
        command = Command(RequestCode.HEART_BEAT, body=data.encode())
        (connection,) = wire.broker.connections
        remote, connection.remote_address = connection.remote_address, "192.0.2.7:4711"
        wire.broker.clients._producer_ids["requester"] = (connection, "192.0.2.7")
        assert (await hostile.invoke(wire.server.broker_address, command, 5000)).code == 0
        assert wire.broker.clients.producer_of_id("requester") is honest
        assert wire.broker.rejections.counts == {"client_id": 1}
        connection.remote_address = remote
        await wire.client.close()
        while wire.broker.clients.producer_of_id("requester") is not None:
            await asyncio.sleep(0)
        assert (await hostile.invoke(wire.server.broker_address, command, 5000)).code == 0
        assert wire.broker.clients.producer_of_id("requester") is not None
    finally:
        await hostile.close()


@pytest.mark.spec("HB-05", "BP-01")
async def test_versions_of_the_go_client_in_nanoseconds_are_times_too() -> None:
    """It was refused as more than a day ahead, so that no Go consumer joined a group."""
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        for tag in ("old", "new"):
            await w.send(body=tag.encode(), properties={"TAGS": tag})
        now_ns = clock.ms * 1_000_000 + 274

        def subscription(tag: str, version: int) -> bytes:
            data = SubscriptionData("T", tag, code_set=[java_hash(tag)], sub_version=version)
            return HeartbeatData("c", [], [ConsumerData("G", subscription_data_set=[data])]).encode()

        async def join(tag: str, version: int) -> Command:
            return await w.call(RequestCode.HEART_BEAT, subscription(tag, version))

        assert (await join("old", now_ns)).code == 0
        assert bodies(await w.pull(sysFlag=0, subVersion=now_ns)) == [b"old"]
        assert (await w.pull(sysFlag=0, subVersion=now_ns + 2_000_000)).code == 25, "not latest"
        assert (await join("new", clock.ms + 1)).code == 0, "a newer one of a Java client"
        assert bodies(await w.pull(sysFlag=0, subVersion=now_ns)) == [b"new"]
        ahead = await join("ahead", (clock.ms + VERSION_AHEAD_MS + 1) * 1_000_000)
        assert ahead.code == 1 and "ahead of this broker's clock" in (ahead.remark or "")


@pytest.mark.spec("HB-04")
async def test_members_of_a_large_group_are_notified_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a group of 10,000 members wrote 10,000 notifications in one step of the event loop."""
    monkeypatch.setattr("saturnmq.broker.services.notices.NOTICES_MAX", 2)
    async with wire() as w:
        members = [Wire(w.server) for _ in range(5)]
        try:
            for number, member in enumerate(members):
                assert (await member.heartbeat("G", "T", client_id=f"c{number}")).code == 0
            await asyncio.gather(*(member.pushed.get() for member in members))
            assert (await w.heartbeat("G", "T", client_id="last")).code == 0
            notices = await asyncio.gather(*(member.pushed.get() for member in [*members, w]))
            assert {notice.code for notice in notices} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
            while w.broker.notices.pending:
                await asyncio.sleep(0.001)  # poll
        finally:
            for member in members:
                await member.client.close()
