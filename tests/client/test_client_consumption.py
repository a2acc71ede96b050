"""Consumers: joining a group, heartbeats, requests from brokers, manual assignment, flow control, settling, stored offsets."""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import saturnmq.sync
from saturnmq import (
    Ack,
    AlreadySettled,
    Client,
    ClientError,
    Closed,
    ConfigError,
    ConsumeContext,
    ConsumeHook,
    Message,
    OffsetOutOfRange,
    ResponseError,
    RouteNotFound,
    sql,
    tag,
)
from saturnmq.broker import BrokerSettings
from saturnmq.client.connection.core import ClientState, Core
from saturnmq.client.consumer.assigned_queue import TIMED_OUT
from saturnmq.client.consumer.group_check import GroupCheck
from saturnmq.client.consumer.offsets import ClusterOffsets, LocalOffsets
from saturnmq.client.filters import Filter, subscription_data
from saturnmq.client.hooks import FAILED_PREFIX
from saturnmq.errors import GroupInUse
from saturnmq.protocol.bodies import (
    BrokerData,
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    QueueData,
    ResetOffsetBody,
    SubscriptionData,
    TopicRouteData,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, decode_properties, encode_record
from saturnmq.protocol.message import Message as Record
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
ZERO, ONE = MessageQueue("T", "b0", 0), MessageQueue("T", "b0", 1)


async def silence(inbox: Any, seconds: float = 0.1) -> None:
    """Assert that no message arrives within this time."""
    with pytest.raises(TimeoutError):
        await inbox.recv(seconds)


def one_queue(c: Any, *topics: str) -> None:
    for topic in topics or ("T",):
        c.add(topic, c.route(read=1, write=1))


def holds_all(command: Command) -> Command:
    """Grant every lock, as a broker without other lock holders does."""
    return command.reply(body=LockBatchResponse(LockBatchRequest.decode(command.body or b"").mq_set).encode())


# joining a group


@pytest.mark.spec("CA-02", "API-15", "API-18")
async def test_push_consumer_api_works_end_to_end() -> None:
    async with EmbeddedBroker(settings=BrokerSettings(property_filter_enable=True)) as server:
        async with Client.from_url(server.url) as client, client.producer("p") as out:
            await client.create_topic("A", queues=2)
            await client.create_topic("B", queues=1)
            inbox = client.consumer("c", start="first")
            assert inbox.state.value == "CREATE_JUST"
            await inbox.subscribe("A", "x || y")
            await inbox.subscribe("B", sql("n > 1"))
            await inbox.start()
            queues = await client.puller().queues("A")
            assert len(queues) == 2 and set(queues) < set(await inbox.wait_assigned())
            for queue, label in zip(queues, ("x", "z"), strict=True):
                await out.send("A", label.encode(), tag=label, queue=queue)
            for n in (1, 2):
                await out.send("B", b"%d" % n, properties={"n": str(n)})
            got = [await inbox.recv(30), await inbox.recv(30)]
            assert {message.body for message in got} == {b"x", b"2"}
            for message in got:
                await message.ack()
            await inbox.subscribe("B", tag("*"))
            await out.send("B", b"any", tag="any")
            late = await inbox.recv(30)
            assert late.body == b"any"
            await late.retry(reason="sendMessageBack")
            assert late.attempt == 1
            inbox.pause()
            await out.send("A", b"while paused", tag="y")
            await silence(inbox)
            inbox.resume()
            readers = [asyncio.ensure_future(inbox.recv(30)) for _ in range(3)]  # any number of concurrent readers
            done, others = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            assert done.pop().result().body == b"while paused"
            for reader in others:
                reader.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await inbox.unsubscribe("B")
            assert {queue.topic for queue in inbox.assigned} == {"A"}
            with pytest.raises(ConfigError):
                await inbox.subscribe("A", tag("||"))
            with pytest.raises(TypeError):
                await inbox.subscribe("A", "some.FilterClass", "its source")  # type: ignore[call-arg]
            await inbox.stop()
            assert inbox.state is ClientState.STOPPED
            with pytest.raises(Closed):
                await inbox.recv()


@pytest.mark.spec("CA-04", "CA-11", "HB-01")
async def test_start_sends_its_requests_in_the_documented_order(cluster: Any) -> None:
    async with cluster(brokers=2) as c:
        master, slave = c.brokers["b0"], c.brokers["b1"]
        one_queue(c, "%RETRY%g")
        both = BrokerData("c", "b0", {0: master.address, 1: slave.address})
        c.add("T", TopicRouteData([QueueData("b0", 1, 1, 6)], [both]))
        c.add("S", TopicRouteData([QueueData("b0", 1, 1, 6)], [both]))
        seen: list[str] = []
        for name, server in (("ns", c.ns[0]), ("master", master), ("slave", slave)):
            answer = server.builtin

            def note(command: Command, name: str = name, answer: Any = answer) -> Any:
                seen.append(f"{name} {command.ext.get('topic') if command.code == 105 else command.code}")
                if command.code == 34 and b'"groupName":"g"' in (command.body or b""):
                    seen[-1] += " of the group"
                return answer(command)

            server.builtin = note
        async with Client(name_servers=c.name_servers, heartbeat_ms=100_000, route_poll_ms=100_000) as client:
            inbox = client.consumer("g", start="first")
            await inbox.subscribe("T")
            await inbox.subscribe("S", sql("a = 1"))
            assert seen == [], "nothing is said before the start"
            assert inbox.state.value == "CREATE_JUST"
            await inbox.start()
            await inbox.start()  # idempotent (API-04)
            assert inbox.state.value == "RUNNING"
            await master.wait_for(11, 3)
            shared = next(step for step in seen if step.endswith(" 38"))  # any broker of the topic may be asked
            order = [seen.index(step) for step in ("ns T", "master 46", "master 34 of the group", shared, "master 14")]
            assert order == sorted(order)
            assert max(seen.index(f"ns {topic}") for topic in ("T", "S", "%RETRY%g")) < seen.index("master 46")
            assert seen.count("master 46") == 1, "brokers are asked about the SQL filter alone"
            assert max(seen.index("master 34 of the group"), seen.index("slave 34 of the group")) < seen.index(
                "master 11"
            )
            sent = HeartbeatData.decode(slave.of(34)[-1].body).consumer_data_set[0]
            wanted = {(s.topic, s.expression_type, s.sub_string) for s in sent.subscription_data_set}
            assert wanted == {("T", "TAG", "*"), ("S", "SQL92", "a = 1"), ("%RETRY%g", "TAG", "*")}
            second = client.consumer("g")
            with pytest.raises(GroupInUse, match=r"group\[g\] has been created before, specify another name please"):
                await second.start()
            assert second.state is ClientState.NEW and client._core.consumers["g"] is inbox
            await inbox.stop()
            await second.start()
            await second.stop()


@pytest.mark.spec("CA-04", "FIL-03", "API-04")
async def test_failed_start_leaves_nothing_running_and_can_be_repeated(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")
        c.broker.script[46] = [lambda command: command.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no")]
        inbox = client.consumer("g", start="first")
        await inbox.subscribe("T", sql("a = 1"))
        with pytest.raises(Exception, match="no"):
            await inbox.start()
        assert inbox.state.value == "CREATE_JUST" and client._core.consumers == {}
        await inbox.start()
        assert inbox.state is ClientState.RUNNING
        await inbox.stop()


@pytest.mark.spec("FIL-03")
async def test_start_fails_on_a_broker_too_old_to_check_sql_filters(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        # The answer of a broker before 4.1.0.
        c.broker.script[46] = lambda command: command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 46 not supported"
        )
        inbox = client.consumer("g")
        await inbox.subscribe("T", sql("a = 1"))
        with pytest.raises(ResponseError) as refused:
            await inbox.start()
        assert refused.value.code == 3
        tags = client.consumer("h")
        await tags.subscribe("T", "a")
        await tags.start()
        await tags.stop()


@pytest.mark.spec("CA-04", "API-04")
async def test_cancelled_start_unregisters_the_group(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")
        asked = asyncio.Event()
        c.broker.script[34] = lambda command: asked.set()  # no answer yet
        inbox = client.consumer("g")
        await inbox.subscribe("T")
        starting = asyncio.ensure_future(inbox.start())
        while b'"groupName":"g"' not in (c.broker.of(34)[-1].body if c.broker.of(34) else b""):
            asked.clear()
            await asked.wait()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        left = (await c.broker.wait_for(RequestCode.UNREGISTER_CLIENT))[0].ext
        assert left == {"clientID": client.client_id, "consumerGroup": "g"}
        del c.broker.script[34]
        await inbox.start()
        await c.broker.wait_for(11)
        await inbox.stop()


@pytest.mark.spec("CA-05", "API-06", "OF-02")
async def test_broadcast_consumer_reloads_its_offset_file_by_client_id(cluster: Any, tmp_path: Path) -> None:
    async with cluster() as c:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        settings: Any = {"instance": "reports", "unit": "u1", "offsets_dir": str(tmp_path)}
        for first in (b"0", b"2"):
            async with Client(name_servers=c.name_servers, **settings) as client:
                assert client.client_id == "127.0.0.1@reports@u1"
                async with client.consumer("g", model="broadcast", start="first") as inbox:
                    await inbox.subscribe("T")
                    message = await inbox.recv(30)
                    assert message.body == first
                    await message.ack()
                    if first == b"0":
                        await (await inbox.recv(30)).ack()
        assert (tmp_path / "127.0.0.1@reports@u1" / "g" / "offsets.json").is_file()
        ids = set()
        for _ in range(2):
            async with Client(name_servers=c.name_servers) as client:
                ids.add(client.client_id)
                with pytest.raises(ConfigError, match="instance"):
                    client.consumer("g", model="broadcast")
        assert len(ids) == 2, "without a name no two clients are equal"
        settings = {"instance": "DEFAULT", "offsets_dir": str(tmp_path)}
        async with Client(name_servers=c.name_servers, **settings) as client:
            async with client.consumer("g", model="broadcast", start="first") as inbox:
                await inbox.subscribe("T")
                await (await inbox.recv(30)).ack()
        assert (tmp_path / "127.0.0.1@DEFAULT" / "g" / "offsets.json").is_file(), "the path of a Java client"
        assert c.broker.offsets == {}, "the broker keeps nothing of it"


@pytest.mark.spec("CA-03", "PRC-06")
async def test_members_with_different_subscriptions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def warned(word: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if "differ" in r.message and word in r.getMessage()]

    async with EmbeddedBroker() as server, AsyncExitStack() as stack:
        await stack.enter_async_context(one := Client.from_url(server.url, rebalance_ms=20))
        await stack.enter_async_context(two := Client.from_url(server.url, rebalance_ms=20))
        await one.create_topic("T", queues=2)
        await one.create_topic("Own", queues=2)
        first = await stack.enter_async_context(one.consumer("g"))
        await first.subscribe("T", "a || b")
        second = await stack.enter_async_context(two.consumer("g"))
        await second.subscribe("T", "b||a")
        await until(lambda: first.assigned and second.assigned)
        rounds = first._rounds
        await until(lambda: first._rounds > rounds + 5)
        assert warned("") == [], "the same tags in another order are no difference"
        await second.subscribe("T", "c")
        await until(lambda: warned("mine=TAG a || b newest=TAG c"))
        rounds = first._rounds
        await until(lambda: first._rounds > rounds + 5)
        (text,) = warned("newest=TAG c")
        assert "group=g topic=T" in text and two.client_id in text and one.client_id not in text
        await second.subscribe("Own")
        # Only half of the queues: the other half falls to the first member, which does not subscribe to the topic.
        await until(lambda: "Own" in {queue.topic for queue in second.assigned})
        await first.subscribe("T", "c")
        await until(lambda: warned("topic=Own"))
        assert "newest=no such topic" in warned("topic=Own")[0]
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    assert "the group never gets it. Such a difference is logged as a warning." in guide


def wish(topic: str, expression: str, version: int, kind: str = "TAG") -> SubscriptionData:
    return subscription_data(topic, Filter(expression, kind), version)


@pytest.mark.spec("CA-03")
@pytest.mark.parametrize(
    ("newest", "members", "word"),
    [
        (wish("T", "b", 6), "me other", "newest=TAG b"),
        (wish("T", "*", 6), "me other", "newest=TAG *"),
        (wish("T", "a = 1", 6, "SQL92"), "me other", "newest=SQL92 a = 1"),
        (None, "me other", "newest=no such topic"),
        (wish("T", " a ", 6), "me other", ""),  # the same tags, formatted differently
        (wish("T", "b", 5), "me other", ""),  # an older version: our heartbeat has not arrived yet
        (wish("T", "b", 6), "me", ""),  # the only member
        (None, "other", ""),  # not yet registered at the broker
    ],
)
def test_group_check_reports_only_real_differences(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture, newest: Any, members: str, word: str
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            names = {"me": client.client_id, "other": "another-client"}
            body = ConsumerConnection(
                [Connection(client_id=names[member]) for member in members.split()], {"T": newest} if newest else {}
            )
            say = lambda command: command.reply(body=body.encode())  # noqa: E731
            refuse = lambda command: command.reply(ResponseCode.CONSUMER_NOT_ONLINE, "no")  # noqa: E731
            c.broker.script[203] = [say, say, refuse]
            check = GroupCheck(client._core, "g")
            for _ in range(3):
                await check.compare(c.broker.address, {"T": wish("T", "a", 5)})
            assert {command.ext["consumerGroup"] for command in c.broker.of(203)} == {"g"}
            await check.compare("127.0.0.1:1", {"T": wish("T", "a", 5)})  # unreachable broker: skipped

    run(work)
    logged = [r.getMessage() for r in caplog.records if "differ" in r.getMessage()]
    assert len(logged) == bool(word), "once of each difference"
    assert all(word in text and "others=another-client" in text for text in logged)


@pytest.mark.spec("CA-03", "PL-09")
def test_lost_subscription_is_compared_before_it_is_announced_again(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c, "T", "%RETRY%g")
            c.broker.groups["g"].add("zzz")  # sorts after this client, which gets the only queue
            async with client.consumer("g", start="first") as inbox:
                await inbox.subscribe("T")
                await until(lambda: len(c.broker._grown[("T", 0)]) == 1)
                both = [Connection(client_id=client.client_id), Connection(client_id="zzz")]
                body = ConsumerConnection(both, {"%RETRY%g": wish("%RETRY%g", "*", 1)}).encode()
                c.broker.script[203] = lambda command: command.reply(body=body)
                c.broker.script[11] = [
                    lambda command: command.reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, "unknown subscription")
                ]
                seen = len(c.broker.requests)
                c.broker.put("T", 0, b"wakes the pull")
                await until(lambda: any(one.code == 34 for one in c.broker.requests[seen:]))
                codes = [one.code for one in c.broker.requests[seen:]]
                assert codes.index(203) < codes.index(34)

    run(work)
    (text,) = [r.getMessage() for r in caplog.records if "differ" in r.getMessage()]
    assert "topic=T" in text and "newest=no such topic" in text


@pytest.mark.spec("CA-07", "API-16")
async def test_listener_concurrency_is_exactly_as_configured(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(20):
            c.broker.put("T", 0, b"%d" % n)
        open_handlers, busy, most, done = asyncio.Event(), 0, 0, 0

        @client.listener("T", group="g", start="first", concurrency=3)
        async def handle(message: Message[bytes]) -> None:
            nonlocal busy, most, done
            busy += 1
            most = max(most, busy)
            await open_handlers.wait()
            busy -= 1
            done += 1

        running = asyncio.ensure_future(client.run())
        await until(lambda: busy == 3)
        consumer: Any = client._core.consumers["g"]
        assert len(consumer._inbox) == 17, "the rest waits, however much it is"
        open_handlers.set()
        await until(lambda: done == 20)
        assert most == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("CA-08", "API-18")
async def test_paused_consumer_neither_pulls_nor_rebalances_until_resumed(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"first")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
            await until(lambda: len(c.broker._grown[("T", 0)]) == 1)  # the next pull is long-polling
            inbox.pause()
            assert inbox.paused == [ZERO]
            c.broker.put("T", 0, b"pulled before")  # answers the pull in progress
            c.broker.put("T", 0, b"not pulled")
            await silence(inbox)
            pulls = len(c.broker.of(11))
            for _ in range(2):
                asked, rounds = len(c.broker.of(38)), inbox._rounds  # at first, a round may be in progress
                c.broker.connections[-1].invoke_oneway(Command(40, ext={"consumerGroup": "g"}))
                await until(lambda: inbox._rounds > rounds)  # noqa: B023
            assert len(c.broker.of(38)) == asked, "the queues are not shared again"
            assert len(c.broker.of(11)) == pulls and inbox.position() == {ZERO: 1}
            inbox.resume()
            assert [(await inbox.recv(30)).body for _ in range(2)] == [b"pulled before", b"not pulled"]
            async with asyncio.timeout(5):  # the next round of the timer would be later
                await c.broker.wait_for(38, asked + 1)
            assert inbox.paused == []


@pytest.mark.spec("CA-10")
def test_client_timers_have_apache_delays_and_periods(run: Run, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: dict[str, tuple[int, int]] = {}
    every = Core._every

    def note(self: Core, name: str, first_ms: int, period_ms: int, work: Any) -> None:
        timers[name] = (first_ms, period_ms)
        every(self, name, first_ms, period_ms, work)

    monkeypatch.setattr(Core, "_every", note)

    async def work() -> None:
        async with Client(name_servers="127.0.0.1:1"):
            assert timers == {
                "routes": (10, 30_000),
                "heartbeat": (1_000, 30_000),
                "offsets": (10_000, 5_000),
                "rebalance": (20_000, 20_000),
            }
        quick: Any = {"route_poll_ms": 20, "heartbeat_ms": 20, "persist_offsets_ms": 20, "rebalance_ms": 20}
        async with cluster(brokers=2) as c, Client(name_servers=c.name_servers, **quick) as client:
            one_queue(c)
            both = TopicRouteData(
                [QueueData("b0", 1, 1, 6)],
                [BrokerData("c", name, {0: c.brokers[name].address}) for name in ("b0", "b1")],
            )
            c.add("T", both)
            c.broker.put("T", 0, b"x")
            async with client.consumer("g", start="first") as inbox:
                await inbox.subscribe("T")
                await (await inbox.recv(30)).ack()
                for code in (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP):
                    await c.broker.wait_for(code, len(c.broker.of(code)) + 3)
                await c.ns[0].wait_for(105, len(c.ns[0].of(105)) + 3)
                await until(lambda: c.broker.offsets.get(("g", "T", 0)) == 1)
                removed = c.brokers["b1"].address
                assert removed in client._core.broker_versions
                c.add("T", c.route("b0", read=1, write=1))
                await until(lambda: removed not in client._core.broker_versions)
                beats = len(c.brokers["b1"].of(34))
                await c.broker.wait_for(34, len(c.broker.of(34)) + 3)
                assert len(c.brokers["b1"].of(34)) == beats, "a broker in no route gets no heartbeat"

    run(work)


# manual assignment


@pytest.mark.spec("CA-12", "API-18")
async def test_manual_assignment_reads_queues_outside_of_the_group(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, persist_offsets_ms=20) as client:
        for n in range(3):
            c.broker.put("T", 0, b"0:%d" % n)
            c.broker.put("T", 1, b"1:%d" % n)
        inbox = client.consumer("g", start="first")
        await inbox.assign([ZERO, ONE])
        async with inbox:
            with pytest.raises(ClientError, match=r"^Subscribe and assign are mutually exclusive\."):
                await inbox.subscribe("T")
            assert sorted(await inbox.wait_assigned()) == [ZERO, ONE]
            batches = inbox.batches(10, wait=0.05)
            got = await anext(batches)
            while len(got) < 6:
                got += await anext(batches)
            await batches.aclose()
            assert Counter(message.body for message in got) == Counter(
                f"{q}:{n}".encode() for q in (0, 1) for n in range(3)
            )
            for message in got:
                await message.ack()
            await until(lambda: c.broker.offsets.get(("g", "T", 1)) == 3)  # by the timer
            for bad in (-1, 4, 100):
                with pytest.raises(OffsetOutOfRange):
                    await inbox.seek(bad, ZERO)
            assert inbox.position(ZERO) == {ZERO: 3}, "nothing was moved"
            assert await inbox.seek(1, ZERO) == {ZERO: 1}
            again = await inbox.recv(30)
            assert (again.queue, again.offset) == (ZERO, 1)
            assert await inbox.seek("first", ZERO) == {ZERO: 0}
            assert (await inbox.recv(30)).offset == 0, "what was pulled before is void"
            inbox.pause(ONE)
            c.broker.put("T", 1, b"held")
            await inbox.seek("last", ZERO)
            c.broker.put("T", 0, b"flows")
            assert (await inbox.recv(30)).body == b"flows"
            await silence(inbox, 0.05)
            inbox.resume(ONE)
            assert (await inbox.recv(30)).body == b"held"
        assert c.ns[0].routes.keys() == {"T"}
        assert "%RETRY%g" not in {command.ext.get("topic") for command in c.ns[0].of(105)}
        beats = [HeartbeatData.decode(command.body) for command in c.broker.of(34)]
        assert not [beat for beat in beats if beat.consumer_data_set], "it is no member of the group"
        async with client.consumer("h") as other:
            await other.subscribe("T")
            with pytest.raises(ClientError, match="mutually exclusive"):
                await other.assign([ZERO])


@pytest.mark.spec("API-18")
async def test_seek_to_a_time_asks_in_ms_and_stores_the_offset(cluster: Any) -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            c.broker.script[29] = lambda command: command.reply(0, ext={"offset": "1"})
            assert await inbox.seek(at) == await inbox.seek(at, ZERO) == {ZERO: 1}
            assert {command.ext["timestamp"] for command in c.broker.of(29)} == {"1704067200000"}
            assert c.broker.offsets["g", "T", 0] == 1 and (await inbox.recv(30)).offset == 1
            c.broker.script[29] = lambda command: command.reply(0, ext={"offset": "-1"})
            assert await inbox.seek(at) == {ZERO: 0}, "before the first message"
            for bad in (datetime(2024, 1, 1), True, 1.5, "end"):
                with pytest.raises(ConfigError, match="cannot seek"):
                    await inbox.seek(bad)  # type: ignore[arg-type]
            c.broker.script[31] = lambda command: command.reply(0, ext={"offset": "1"})
            assert await inbox.seek("first") == {ZERO: 1}, "retention has deleted the message at 0"
            with pytest.raises(OffsetOutOfRange, match=r"offset 0 is outside of 1\.\.3"):
                await inbox.seek(0)
            await inbox.seek("last")
            c.broker.script[30] = lambda command: command.reply(0, ext={"offset": "2"})
            assert await inbox.lag() == {ZERO: 0}, "never negative"


@pytest.mark.spec("CA-12", "API-18", "API-19")
def test_retry_in_a_manually_assigned_queue_redelivers_locally(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            c.broker.put("T", 0, b"a")
            c.broker.put("T", 0, b"b")
            async with client.consumer("g", start="first", max_times=2) as inbox:
                await inbox.assign([ZERO])
                first, other = await inbox.recv(30), await inbox.recv(30)
                await other.ack()
                await first.retry(timedelta(0), reason="busy")
                await first.retry(timedelta(0))  # the same verdict again has no effect
                with pytest.raises(AlreadySettled):
                    await first.ack()
                assert inbox.committed() == {ZERO: 0}, "the failed message is not committed"
                second = await inbox.recv(30)
                assert (second.body, second.attempt) == (b"a", 2)
                await second.retry(timedelta(0))
                third = await inbox.recv(30)
                assert third.attempt == 3
                await silence(inbox, 0.05)
                await third.retry(timedelta(0))  # max_times is used up
                assert inbox.committed() == {ZERO: 2}
                await silence(inbox, 0.05)
            assert c.broker.sent_back == [] and c.broker.of(310) == []

    run(work)
    assert [record for record in caplog.records if "message dropped" in record.message]


@pytest.mark.spec("CA-12")
async def test_puller_watch_reports_changed_queues(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, route_poll_ms=20, namespace="n") as client:
        c.add("n%T", c.route(read=1, write=1))
        source = client.puller().watch("T")
        assert await anext(source) == [ZERO]
        more = asyncio.ensure_future(anext(source))
        await c.ns[0].wait_for(105, 5)
        assert not more.done(), "only a change is reported"
        c.add("n%T", c.route(read=2, write=2))
        assert await more == [ZERO, ONE]
        with pytest.raises(RouteNotFound):
            await anext(client.puller().watch("Nowhere"))
        last = asyncio.ensure_future(anext(source, None))
        await asyncio.sleep(0)
        await client.stop()
        assert await last is None, "it ends with the client"
        assert client._core.route_watchers == set()


@pytest.mark.spec("CA-12", "API-31")
def test_sync_puller_watch_yields_queues() -> None:
    with SyncEmbeddedBroker() as server, saturnmq.sync.Client.from_url(server.url) as client:
        client.create_topic("T", queues=2)
        for queues in client.puller().watch("T"):
            assert [queue.queue_id for queue in queues] == [0, 1]
            break


# requests relayed by brokers


def direct(body: bytes = b"x") -> Command:
    host = Host("127.0.0.1", 10911)
    record = Record("T", body, b"UNIQ_KEY\x01ID", 1, queue_offset=7, store_host=host, born_host=host)
    ext = {"consumerGroup": "g", "clientId": "?", "msgId": "ID", "brokerName": "b0"}
    return Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=ext, body=encode_record(record))


async def asked_directly(c: Any, body: bytes = b"x") -> ConsumeMessageDirectlyResult:
    answer = await c.broker.connections[-1].invoke(direct(body), 10_000)
    assert answer.code == 0
    return ConsumeMessageDirectlyResult.decode(answer.body)


@pytest.mark.spec("CA-15")
async def test_direct_consumption_answers_with_the_verdict(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")

        @client.listener("T", group="g", start="first")
        async def handle(message: Message[bytes]) -> Ack | None:
            assert (message.message_id, message.offset, message.queue) == ("ID", 7, ONE)
            if message.body == b"raises":
                raise OSError("disk removed")
            return {b"later": Ack.RETRY, b"never": Ack.REJECT, b"fine": Ack.SUCCESS}.get(message.body)

        running = asyncio.ensure_future(client.run())
        await c.broker.wait_for(11)
        results = {}
        for body in (b"fine", b"none", b"later", b"never", b"raises"):
            result = await asked_directly(c, body)
            assert (result.order, result.auto_commit) == (False, True)
            assert 0 <= result.spent_time_mills < 5_000
            results[body] = result.consume_result
            if body == b"raises":
                assert result.remark == f"{FAILED_PREFIX}OSError: disk removed"
        assert results == {
            b"fine": "CR_SUCCESS",
            b"none": "CR_SUCCESS",
            b"later": "CR_LATER",
            b"never": "CR_ROLLBACK",
            b"raises": "CR_THROW_EXCEPTION",
        }
        assert c.broker.sent_back == [] and ("g", "T", 1) not in c.broker.offsets, "it only visits"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("CA-15")
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_direct_consumption_of_an_ordered_listener_commits_nothing(cluster: Any, auto_commit: bool) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")
        c.broker.script[41] = holds_all

        @client.listener("T", group="g", start="first", ordered=True, auto_commit=auto_commit)
        async def handle(message: Message[str]) -> Ack:
            return Ack(message.value)

        running = asyncio.ensure_future(client.run())
        await c.broker.wait_for(11)
        results = {}
        for verdict in Ack:
            result = await asked_directly(c, verdict.value.encode())
            assert (result.order, result.auto_commit) == (True, auto_commit)
            results[verdict] = result.consume_result
        assert results == {
            Ack.SUCCESS: "CR_SUCCESS",
            Ack.RETRY: "CR_LATER",
            Ack.REJECT: "CR_ROLLBACK",
            Ack.COMMIT: "CR_COMMIT",
            Ack.ROLLBACK: "CR_ROLLBACK",
        }
        assert c.broker.sent_back == [] and ("g", "T", 1) not in c.broker.offsets, "it only visits"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("CA-15")
async def test_direct_consumption_that_times_out_is_not_handed_out_later(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        async with client.consumer("g", start="first", ordered=True) as inbox:
            await inbox.subscribe("T")
            await c.broker.wait_for(34)
            result = await asked_directly(c)
            assert (result.consume_result, result.order) == ("CR_RETURN_NULL", True)
            assert 9_500 <= result.spent_time_mills < 10_000, "before the broker gives up after 10 s"
            assert "9.5 s" in (result.remark or "")
            await silence(inbox)


@pytest.mark.spec("CA-15", "RT-09")
async def test_running_info_shows_the_state_of_a_member(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T", "*")
            first, second = await inbox.recv(30), await inbox.recv(30)
            await first.ack()
            await second.retry()
            connection = c.broker.connections[-1]
            for stack in ("false", "true"):
                ext = {"consumerGroup": "g", "clientId": client.client_id, "jstackEnable": stack}
                answer = await connection.invoke(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext), 5_000)
                info = ConsumerRunningInfo.decode(answer.body)
                assert (info.jstack is not None) == (stack == "true")
            assert info.jstack is not None and "consumer/running_info.py" in info.jstack, "threads with their frames"
            assert "saturnmq rebalance g" in info.jstack, "asyncio tasks are listed by name"
            assert info.properties["PROP_NAMESERVER_ADDR"] == f"{c.name_servers};"
            assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_7"
            assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == info.properties["prefetch"] == "256"
            assert {field.name for field in dataclasses.fields(inbox.settings)} <= info.properties.keys()
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info.properties["PROP_CONSUMEORDERLY"] == "false"
            assert abs(int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) - time.time() * 1000) < 20_000
            assert {data.topic for data in info.subscription_set} == {"T", "%RETRY%g"}
            held = info.mq_table[ZERO]
            assert (held.commit_offset, held.cached_msg_count, held.droped) == (2, 1, False)
            assert (held.cached_msg_min_offset, held.cached_msg_max_offset) == (2, 2)
            status = info.status_table["T"]
            assert status.consume_failed_msgs == 1 and status.consume_ok_tps > 0 and status.pull_tps > 0
            assert status.consume_failed_tps > 0 and status.consume_rt > 0 and status.pull_rt > 0
            ask = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext={"topic": "T", "group": "g"})
            answer = await connection.invoke(ask, 5_000)
            assert GetConsumerStatusBody.decode(answer.body).message_queue_table == {ZERO: 2}
            assert abs(held.last_consume_timestamp - time.time() * 1000) < 20_000
            assert abs(held.last_pull_timestamp - time.time() * 1000) < 20_000 and not held.locked
            c.broker.script[41] = holds_all
            async with client.consumer("in-order", start="first", ordered=True) as ordered:
                await ordered.subscribe("T")
                await (await ordered.recv(30)).ack()
                ext = {"consumerGroup": "in-order", "clientId": client.client_id, "jstackEnable": "false"}
                answer = await connection.invoke(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext), 5_000)
                info = ConsumerRunningInfo.decode(answer.body)
                assert info.properties["PROP_CONSUMEORDERLY"] == "true" and info.mq_table[ZERO].locked
            async with client.consumer("by-hand", start="first") as manual:
                await manual.assign([ZERO])
                ext = {"consumerGroup": "by-hand", "clientId": client.client_id, "jstackEnable": "false"}
                answer = await connection.invoke(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext), 5_000)
                info = ConsumerRunningInfo.decode(answer.body)
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            strange = await connection.invoke(Command(4711, ext={"consumerGroup": "g"}), 5_000)
            assert strange.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            other = await connection.invoke(Command(307, ext={"consumerGroup": "unknown"}), 5_000)
            assert other.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.spec("OF-06")
@pytest.mark.parametrize("ordered", [False, True])
async def test_offset_reset_moves_members_and_discards_open_messages(cluster: Any, ordered: bool) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.broker.script[41] = holds_all
        c.add("%RETRY%g", c.route(read=1, write=1))
        c.add("T", c.route(read=2, write=2))
        for n in range(4):
            c.broker.put("T", 0, b"0:%d" % n)
        async with client.consumer("g", start="first", ordered=ordered) as inbox:
            await inbox.subscribe("T")
            for _ in range(3):
                await (await inbox.recv(30)).ack()
            held = await inbox.recv(30)
            assert held.offset == 3
            await until(lambda: len(inbox.assigned) == 2)
            table = {ZERO: 1, ONE: 0, MessageQueue("T", "b0", 9): 5}
            ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            c.broker.connections[-1].invoke_oneway(Command(220, ext=ext, body=ResetOffsetBody(table).encode()))
            await until(lambda: c.broker.offsets.get(("g", "T", 0)) == 1)  # decreased, and stored at once
            await held.ack()
            assert inbox.committed()[ZERO] == 1, "what was held is void"
            again = [await inbox.recv(30)]
            assert (again[0].offset, again[0].attempt) == (1, 1)
            assert MessageQueue("T", "b0", 9) not in inbox.committed(), "a queue that is not ours is left alone"
            await again[0].ack()
            assert inbox.committed()[ZERO] == 2


@pytest.mark.spec("OF-06", "CA-15", "RT-09")
async def test_operator_requests_reach_a_member_through_the_broker() -> None:
    async def asks(server: EmbeddedBroker, client: Client, code: RequestCode, **ext: str) -> Command:
        command = Command(code, ext={"group": "g", "consumerGroup": "g", "topic": "T", **ext})
        return await client._core.remote.call(server.broker_address, command, 5_000)

    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        await client.create_topic("T", queues=1)
        receipts = []
        for n in range(4):
            begun = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 <= begun + 1:
                await asyncio.sleep(0)  # one millisecond per message
            receipts.append(await out.send("T", b"%d" % n))
        times = [(await client.view_message(one.offset_message_id)).stored_at for one in receipts]
        back_to = str(int(times[2].timestamp() * 1000))
        reset: dict[str, str] = {"timestamp": back_to, "isForce": "false"}
        answer = await asks(server, client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        assert answer.code == ResponseCode.SYSTEM_ERROR, "a group that never committed"
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for _ in range(4):
                await (await inbox.recv(30)).ack()
            await inbox.commit()
            await until(lambda: server.broker.offsets.get("T", "g", 0) == 4)
            answer = await asks(server, client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
            queue = receipts[0].queue
            assert ResetOffsetBody.decode(answer.body or b"").offset_table == {queue: 2}
            assert [(await inbox.recv(30)).body for _ in range(2)] == [b"2", b"3"]
            await until(lambda: server.broker.offsets.get("T", "g", 0) == 2)

            reader = asyncio.ensure_future(inbox.recv(30))
            ext = {"clientId": client.client_id, "msgId": receipts[0].offset_message_id, "brokerName": "broker-a"}
            asking = asyncio.ensure_future(asks(server, client, RequestCode.CONSUME_MESSAGE_DIRECTLY, **ext))
            visitor = await reader
            assert (visitor.body, visitor.offset) == (b"0", 0)
            await visitor.ack()
            result = ConsumeMessageDirectlyResult.decode((await asking).body or b"")
            assert result.consume_result == "CR_SUCCESS"
            answer = await asks(server, client, RequestCode.GET_CONSUMER_RUNNING_INFO, clientId=client.client_id)
            assert ConsumerRunningInfo.decode(answer.body or b"").mq_table[queue].commit_offset == 2
        answer = await asks(server, client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


# flow control


@pytest.mark.spec("PL-02", "PL-01")
def test_flow_control_logs_first_and_every_thousandth_wait(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c)
            for n in range(1002):
                c.broker.put("T", 0, b"%05d" % n)
            async with client.consumer("g", start="first", prefetch=1) as inbox:
                await inbox.subscribe("T")
                for _ in range(1002):
                    message = await inbox.recv(30)
                    await until(lambda: inbox.assignments[-1]._waits > message.offset)  # noqa: B023
                    await message.ack()

    with caplog.at_level(logging.INFO):
        run(work)
    paused = [record for record in caplog.records if record.message.startswith("pull paused by flow control")]
    assert {record.levelno for record in paused} == {logging.INFO}, "a program without logging prints warnings"
    logged = [record.getMessage() for record in paused]
    assert [text.partition("first=")[2] for text in logged] == [
        "0 last=0 messages=1 bytes=5 span=0 times=1",
        "1000 last=1000 messages=1 bytes=5 span=0 times=1001",
    ]
    assert all("group=g" in text and "queue_id=0" in text for text in logged)


# consuming


@pytest.mark.spec("CC-01", "API-15")
async def test_pulled_messages_are_handed_out_singly_or_in_batches(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(25):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            lists = []
            async for batch in inbox.batches(10, wait=0.1):
                lists.append([int(message.body) for message in batch])
                for message in batch:
                    await message.ack()
                if sum(map(len, lists)) == 25:
                    break
            assert lists == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
            assert c.broker.of(11)[0].ext["maxMsgNums"] == "32"
            c.broker.put("T", 0, b"alone")
            assert (await inbox.recv(30)).body == b"alone"


class Diary(ConsumeHook):
    """Records the calls of a hook."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def before(self, context: ConsumeContext) -> None:
        self.lines.append(("before", context.group, context.message.body))

    def after(self, context: ConsumeContext) -> None:
        self.lines.append((context.message.body, context.verdict, context.reason, context.timed_out))
        assert context.elapsed_ms >= 0


class Broken(ConsumeHook):
    def before(self, context: ConsumeContext) -> None:
        raise OSError("a hook's own")


@pytest.mark.spec("API-16")
async def test_plain_handler_beyond_its_time_limit_is_sent_back(cluster: Any) -> None:
    release = threading.Event()
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"slow")

        @client.listener("T", group="g", start="first", concurrency=1, time_limit=0.05)
        def handle(message: Message[bytes]) -> Ack:
            release.wait(20)
            return Ack.SUCCESS

        running = asyncio.ensure_future(client.run())
        try:
            async with asyncio.timeout(10):
                await c.broker.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK)
        finally:
            release.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert len(c.broker.sent_back) == 1


@pytest.mark.spec("CC-02", "API-19")
async def test_listener_sees_original_topic_and_hooks_see_the_outcome(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")
        diary, topics = Diary(), set()
        c.broker.put("%RETRY%g", 0, b"again", "RETRY_TOPIC\x01T", reconsume_times=1)
        for body in (b"ok", b"later", b"raises", b"slow"):
            c.broker.put("T", 0, body)

        @client.listener("T", group="g", start="first", time_limit=0.2, hooks=[Broken(), diary])
        async def handle(message: Message[bytes]) -> Ack | None:
            topics.add((message.topic, message.attempt))
            if message.body == b"raises":
                raise OSError("no")
            if message.body == b"slow":
                await asyncio.Event().wait()
            return Ack.RETRY if message.body == b"later" else None

        running = asyncio.ensure_future(client.run())
        await until(lambda: len(diary.lines) == 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert topics == {("T", 1), ("T", 2)}
        ends = {line[0]: line[1:] for line in diary.lines if line[0] != "before"}
        assert ends == {
            b"again": (Ack.SUCCESS, "", False),
            b"ok": (Ack.SUCCESS, "", False),
            b"later": (Ack.RETRY, "", False),
            b"raises": (Ack.RETRY, f"{FAILED_PREFIX}OSError: no", False),
            b"slow": (Ack.RETRY, f"{FAILED_PREFIX}TimeoutError: ", False),
        }
        begun = [line for line in diary.lines if line[0] == "before"]
        assert {line[1] for line in begun} == {"g"} and len(begun) == 5
        assert len(c.broker.sent_back) == 3
        assert [r for r in caplog.records if r.message.startswith("consume hook failed")]


@pytest.mark.spec("API-19")
@pytest.mark.parametrize("more", [{}, {"model": "broadcast"}, {"ordered": True}])
async def test_hooks_see_that_a_message_was_not_settled_in_time(cluster: Any, tmp_path: Path, more: Any) -> None:
    """Metrics and traces count it as a timeout, not as a failure of the handler."""
    settings = {"instance": "reports", "offsets_dir": str(tmp_path)}
    async with cluster() as c, Client(name_servers=c.name_servers, **settings) as client:
        one_queue(c, "T", "%RETRY%g")
        c.broker.script[41] = holds_all
        c.broker.put("T", 0, b"slow")
        diary = Diary()
        async with client.consumer("g", start="first", hooks=[diary], ack_timeout=1.0, **more) as inbox:
            await inbox.subscribe("T")
            await inbox.recv(30)
            await until(lambda: len(diary.lines) >= 2)
        assert diary.lines[:2] == [("before", "g", b"slow"), (b"slow", Ack.RETRY, TIMED_OUT, True)]


@pytest.mark.spec("CC-02", "RB-03")
async def test_unsubscribed_queue_ignores_messages_and_late_verdicts(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "U", "%RETRY%g")
        c.broker.put("T", 0, b"held")
        c.broker.put("T", 0, b"waits")
        diary = Diary()
        async with client.consumer("g", start="first", hooks=[diary]) as inbox:
            await inbox.subscribe("T")
            await inbox.subscribe("U")
            held = await inbox.recv(30)
            assert held.body == b"held"
            await inbox.unsubscribe("T")
            await silence(inbox, 0.05)
            await held.ack()
            await held.retry()  # ignored: the message belongs to the next owner
            c.broker.put("U", 0, b"goes on")
            assert (await inbox.recv(30)).body == b"goes on"
        assert [line for line in diary.lines if line[0] != "before"] == []
        assert c.broker.sent_back == [] and c.broker.offsets.get(("g", "T", 0), 0) == 0


@pytest.mark.spec("CC-03", "CC-05", "PRC-12")
async def test_batch_may_be_acked_in_part_and_the_rest_sent_back(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, "T", "%RETRY%g")
        for n in range(5):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            batches = inbox.batches(5, wait=0.5)
            batch = await anext(batches)
            await batches.aclose()
            for message in batch[:3]:
                await message.ack()
            assert inbox.committed()[ZERO] == 3
            for message in batch[3:]:
                await message.retry()
            assert inbox.committed()[ZERO] == 5, "a copy of the others is with the broker"
            assert [command.ext["originMsgId"] for command in c.broker.sent_back] == [
                message.message_id for message in batch[3:]
            ]


@pytest.mark.spec("CC-04")
async def test_failed_send_back_redelivers_locally_after_5_s_as_next_attempt(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, attempts=1) as client:
        one_queue(c, "T", "%RETRY%g")
        c.broker.put("T", 0, b"a", "UNIQ_KEY\x01A")
        refuse = lambda command: command.reply(ResponseCode.SYSTEM_ERROR, "no")  # noqa: E731
        c.broker.script[36] = [refuse, refuse]
        c.broker.script[310] = [refuse, refuse]
        seen: list[int] = []
        times: list[float] = []
        open_bytes: list[int] = []

        @client.listener("T", group="g", start="first")
        async def handle(message: Message[bytes]) -> Ack:
            seen.append(message.attempt)
            times.append(asyncio.get_running_loop().time())
            consumer: Any = client._core.consumers["g"]
            open_bytes.append(consumer.assignments[-1].generation.process_queue.body_bytes)
            return Ack.RETRY

        running = asyncio.ensure_future(client.run())
        await c.broker.wait_for(36, 3)
        await until(lambda: len(c.broker.sent_back) == 1)
        assert [round(at - times[0]) for at in times] == [0, 5, 10]
        assert seen == [1, 2, 3] and open_bytes == [1, 1, 1], "it stays in its queue meanwhile"
        assert [command.ext["j"] for command in c.broker.of(310)] == ["1", "2"]
        delays = [decode_properties(command.ext["i"])["DELAY"] for command in c.broker.of(310)]
        assert delays == ["3", "4"], "3 and the number of attempts before"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets["g", "T", 0] == 1


@pytest.mark.spec("CC-04")
def test_failed_broadcast_message_is_dropped_with_a_warning(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def work() -> None:
        settings: Any = {"instance": "one", "offsets_dir": str(tmp_path)}
        async with cluster() as c, Client(name_servers=c.name_servers, **settings) as client:
            one_queue(c)
            c.broker.put("T", 0, b"a")
            async with client.consumer("g", start="first", model="broadcast") as inbox:
                await inbox.subscribe("T")
                await (await inbox.recv(30)).retry()
                assert inbox.committed() == {ZERO: 1}
                await silence(inbox, 0.05)
            assert c.broker.sent_back == [] and c.broker.of(310) == []

    run(work)
    (line,) = [r for r in caplog.records if r.message.startswith("message dropped")]
    assert line.levelno == logging.WARNING and "group=g" in line.getMessage()


# offsets


@pytest.mark.spec("OF-01", "OF-03")
def test_cluster_offsets_are_cached_and_stored_at_the_broker(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            await client.topic_exists("T")
            offsets = ClusterOffsets(client._core, "g")
            await offsets.load()
            assert offsets.cached(ZERO) is None and await offsets.read(ZERO) is None
            c.broker.offsets["g", "T", 0] = 7
            assert await offsets.read(ZERO) == 7 and offsets.cached(ZERO) is None, "reading changes nothing here"
            offsets.update(ZERO, 9)
            offsets.update(ZERO, 8)
            assert offsets.cached(ZERO) == 9, "it only rises"
            offsets.update(ZERO, 3, increase_only=False)
            offsets.update(ONE, 4)
            snapshot = offsets.snapshot()
            assert snapshot == {ZERO: 3, ONE: 4}
            snapshot.clear()
            assert offsets.cached(ZERO) == 3, "a copy"
            await offsets.persist(ZERO, confirmed=True)
            assert c.broker.offsets["g", "T", 0] == 3 and ("g", "T", 1) not in c.broker.offsets
            assert not c.broker.of(15)[-1].is_oneway
            await offsets.persist_all()
            (_, second) = await c.broker.wait_for(15, 2)
            assert second.is_oneway and second.ext["queueId"] == "1", "what is stored already is not sent again"
            offsets.forget(ZERO)
            assert offsets.snapshot() == {ONE: 4}
            offsets.update(MessageQueue("T", "unknown", 0), 1)
            offsets.update(ONE, 5)
            await offsets.persist_all()  # one failure does not stop the others
            await c.broker.wait_for(15, 3)
            assert c.broker.offsets["g", "T", 1] == 5
            c.broker.script[14] = [lambda command: command.reply(ResponseCode.SYSTEM_ERROR, "busy")]
            with pytest.raises(Exception, match="busy"):
                await offsets.read(ZERO)

    run(work)
    assert [r for r in caplog.records if r.message.startswith("offset store failed broker=unknown")]


async def test_first_offset_of_a_topic_is_confirmed_before_others_are_sent(cluster: Any) -> None:
    """Apache's broker (4.9.7) makes the table of a group and topic at the first offset: of two at the same time one is lost."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        await client.topic_exists("T")
        offsets = ClusterOffsets(client._core, "g")
        for queue, offset in ((ZERO, 3), (ONE, 4)):
            offsets.update(queue, offset)
        stored = asyncio.Event()

        async def late(command: Command) -> Command:
            await stored.wait()
            return command.reply()

        c.broker.script[15] = [late]
        leaving = asyncio.gather(*(offsets.persist(queue, confirmed=True) for queue in (ZERO, ONE)))
        await c.broker.wait_for(15, 1)
        await offsets.read(ONE)  # anything sent before has arrived when this is answered
        assert [command.ext["queueId"] for command in c.broker.of(15)] == ["0"]
        stored.set()
        await leaving
        assert [command.ext["queueId"] for command in c.broker.of(15)] == ["0", "1"], "each once"
        for queue in (ZERO, ONE):
            offsets.update(queue, 9)
        await offsets.persist_all()
        assert all(command.is_oneway for command in (await c.broker.wait_for(15, 4))[2:])


@pytest.mark.spec("OF-02", "OF-01")
async def test_local_offsets_file_has_apache_format_and_backup(tmp_path: Path) -> None:
    path = tmp_path / "1.2.3.4@a" / "g" / "offsets.json"
    offsets = LocalOffsets(path)
    await offsets.load()
    assert offsets.snapshot() == {} and await offsets.read(ZERO) is None, "no file: a beginning"
    offsets.update(ZERO, 5)
    offsets.update(ZERO, 4)
    offsets.update(ONE, 2)
    await offsets.persist(ZERO)
    assert not path.exists(), "one queue alone is not written"
    await offsets.persist_all()
    entry = '{"brokerName":"b0","queueId":%d,"topic":"T"}:%d'
    text = path.read_text()
    assert "".join(text.split()) == '{"offsetTable":{%s,%s}}' % (entry % (0, 5), entry % (1, 2))  # noqa: UP031
    backup = path.with_name("offsets.json.bak")
    assert not backup.exists()
    before = path.stat().st_mtime_ns
    await offsets.persist_all()
    assert path.stat().st_mtime_ns == before, "unchanged it is not written again"
    offsets.forget(ZERO)
    offsets.update(ONE, 3)
    await offsets.persist_all()
    assert backup.read_text() == text, "the old file is kept"
    assert not path.with_name("offsets.json.tmp").exists()
    again = LocalOffsets(path)
    await again.load()
    assert again.snapshot() == {ZERO: 5, ONE: 3}, "a queue that is not owned now is not lost"
    for damage in (b"", b"{", path.read_bytes()[:-20]):
        path.write_bytes(damage)
        old = LocalOffsets(path)
        await old.load()
        assert old.snapshot() == {ZERO: 5, ONE: 2}, "the one before it"
    path.unlink()
    await (old := LocalOffsets(path)).load()
    assert old.cached(ONE) == 2
    backup.write_bytes(b"[")
    with pytest.raises(ClientError, match=r"offsets\.json\.bak"):
        await LocalOffsets(path).load()


@pytest.mark.spec("OF-02")
async def test_local_offsets_file_of_the_java_client_is_read(tmp_path: Path) -> None:
    client = Client(name_servers="h:1", instance="one")
    assert client.settings.offsets_dir == "~/.rocketmq_offsets"
    place = client.consumer("g", model="broadcast")._offsets_file()
    assert place == Path.home() / ".rocketmq_offsets" / client.client_id / "g" / "offsets.json"
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b0",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T"\n\t\t}:42,'
        '{\n\t\t\t"brokerName":"b0",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:17\n\t}\n}'
    )
    offsets = LocalOffsets(path)
    await offsets.load()
    assert offsets.snapshot() == {ZERO: 17, ONE: 42}
    with pytest.raises(json.JSONDecodeError):
        json.loads(path.read_text())  # Java's file is not valid JSON


@pytest.mark.spec("OF-02")
def test_local_offsets_write_failure_is_logged_and_retried(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        blocked = tmp_path / "file"
        blocked.write_text("not a folder")
        offsets = LocalOffsets(blocked / "g" / "offsets.json")
        offsets.update(ZERO, 1)
        await offsets.persist_all()
        blocked.unlink()
        await offsets.persist_all()
        assert (blocked / "g" / "offsets.json").is_file(), "tried again the next time"

    run(work)
    assert len([r for r in caplog.records if r.message.startswith("offsets not written")]) == 1


async def test_reader_of_waiting_messages_lets_other_tasks_run(cluster: Any) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        for n in range(200):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(inbox._inbox) == 200)
            counting = asyncio.ensure_future(count())
            for _ in range(200):
                await (await inbox.recv()).ack()
            assert turns >= 200 // 32
            counting.cancel()
