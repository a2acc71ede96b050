"""Consumers and pullers with SQL filters, against SaturnMQ's own broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import saturnmq.sync
from saturnmq import Ack, Client, ConfigError, Consumer, Filter, Message, PullStatus, ResponseError, sql, tag
from saturnmq.broker import BrokerSettings
from saturnmq.client.connection import core
from saturnmq.client.filters import subscription_data
from saturnmq.filter.tags import parse_tags
from saturnmq.protocol.bodies import HeartbeatData
from saturnmq.testing import BrokerFixture, EmbeddedBroker, SyncEmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]
ON = BrokerSettings(property_filter_enable=True)


async def send(client: Client, count: int, topic: str = "T", start: int = 0) -> None:
    async with client.producer("p") as out:
        for n in range(start, start + count):
            await out.send(topic, b"%d" % n, tag="even" if n % 2 == 0 else "odd", properties={"n": str(n)})


async def received(inbox: Consumer[bytes], count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = await inbox.recv(30)
        found.append(message.body)
        await message.ack()
    return sorted(found)


@pytest.mark.spec("FIL-03", "FIL-14", "API-01")
def test_sql_expression_is_validated_before_any_request() -> None:
    assert sql("region = 'EU' AND total > 5") == Filter("region = 'EU' AND total > 5", "SQL92")
    for bad, said in (
        ("total >", "line 1, column 8"),
        ("", "empty"),
        ("name LIKE 'x%'", "found \"LIKE 'x%'\" behind the condition"),
        ("a = NULL", "IS NULL"),
        ("x" * 40_000, "longer than"),
    ):
        with pytest.raises(ConfigError) as error:
            sql(bad)
        assert said in str(error.value)
    with pytest.raises(ConfigError, match="not int"):
        sql(5)  # type: ignore[arg-type]


@pytest.mark.spec("HB-01")
async def test_heartbeat_at_once_announces_changed_subscriptions(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "FIRST_HEARTBEAT_MS", 3_600_000)
    async with cluster() as c, Client(name_servers=c.name_servers, heartbeat_ms=100_000) as client:
        c.add("U")

        def announced() -> dict[str, str]:
            (consumer,) = HeartbeatData.decode(c.broker.of(34)[-1].body).consumer_data_set
            return {entry.topic: entry.sub_string for entry in consumer.subscription_data_set}

        async with client.consumer("g") as inbox:
            await inbox.subscribe("T", tag("a"))
            assert announced() == {"%RETRY%g": "*", "T": "a"}
            await inbox.subscribe("U")
            assert announced() == {"%RETRY%g": "*", "T": "a", "U": "*"}
            await inbox.subscribe("T", tag("b"))
            await inbox.unsubscribe("U")
            assert announced() == {"%RETRY%g": "*", "T": "b"}


@pytest.mark.spec("HB-01", "FIL-04")
def test_heartbeat_carries_sql_expression_and_type() -> None:
    data = subscription_data("T", sql("a > 1"), 7)
    assert (data.sub_string, data.expression_type, data.tags_set, data.code_set, data.sub_version) == (
        "a > 1",
        "SQL92",
        [],
        [],
        7,
    )
    assert sql("a > 1").tags == frozenset()


@pytest.mark.spec("FIL-03", "FIL-04", "FIL-09", "API-15", "PRC-07")
async def test_consumer_receives_what_its_sql_filter_selects() -> None:
    async with EmbeddedBroker(settings=ON) as server, Client.from_url(server.url) as client:
        await send(client, 10)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T", sql("n BETWEEN 3 AND 4 OR (TAGS = 'even' AND n > 7)"))
            assert await received(inbox, 3) == [b"3", b"4", b"8"]
            known = server.broker.clients.consumers["g"].subscriptions["T"]
            assert (known.expression_type, known.sub_string[:5]) == ("SQL92", "n BET")
            await inbox.subscribe("T", sql("n = 12"))
            await send(client, 5, start=10)
            assert await received(inbox, 1) == [b"12"]
            await inbox.subscribe("T", tag("odd"))
            await send(client, 4, start=20)
            bodies: set[bytes] = set()
            while not {b"21", b"23"} <= bodies:  # 11 and 13 too, from a queue that was not read for n = 12 before
                bodies |= set(await received(inbox, 1))
            assert bodies <= {b"11", b"13", b"21", b"23"}


@pytest.mark.spec("FIL-03", "UX-08", "API-30", "PRC-07")
async def test_rejected_sql_filter_raises_and_keeps_the_subscription() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await send(client, 2)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T", "even")
            with pytest.raises(ResponseError) as error:
                await inbox.subscribe("T", sql("n > 1"))
            assert error.value.code == 1 and "enablePropertyFilter=true" in (error.value.hint or "")
            assert await received(inbox, 1) == [b"0"]
        late = client.consumer("late", start="first")
        await late.subscribe("T", sql("n > 1"))
        with pytest.raises(ResponseError, match="does not support consumer to filter message by SQL92"):
            await late.start()
        assert "late" not in server.broker.clients.consumers
    async with EmbeddedBroker(settings=ON) as server, Client.from_url(server.url) as client:
        await send(client, 2)
        async with client.consumer("g") as inbox:
            with pytest.raises(ResponseError) as error:
                await inbox.subscribe("T", Filter("n >", "SQL92"))
            assert error.value.code == 23 and error.value.hint == "Look at line 1, column 4 of the expression."


@pytest.mark.spec("BP-01", "PL-05")
async def test_filter_lost_by_the_broker_is_announced_again() -> None:
    async with EmbeddedBroker(settings=ON) as server, Client.from_url(server.url) as client:
        await send(client, 3)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T", sql("n > 1"))
            assert await received(inbox, 1) == [b"2"]
            server.broker.filters.groups.load(b'{"filterDataByTopic":{}}', 0)
            await send(client, 2, start=1)
            assert await received(inbox, 1) == [b"2"]
            assert server.broker.filters.groups.get("T", "g") is not None


@pytest.mark.spec("FIL-03", "FIL-09", "CA-13")
async def test_puller_reads_with_a_sql_filter() -> None:
    async with EmbeddedBroker(settings=ON) as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            for n in range(6):
                await out.send("T", b"%d" % n, shard_by="one queue", properties={"n": str(n)})
        puller = client.puller()
        found = {}
        for queue in await puller.queues("T"):
            if await puller.max_offset(queue):
                found[queue] = await puller.pull(queue, 0, expression=sql("n > 3"))
                none = await puller.pull(queue, 0, expression=sql("n > 9"))
                assert (none.status, none.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 6)
        (result,) = found.values()
        assert [message.body for message in result.messages()] == [b"4", b"5"]


@pytest.mark.spec("API-16", "FIL-03")
async def test_listener_accepts_a_sql_filter() -> None:
    async with EmbeddedBroker(settings=ON) as server, Client.from_url(server.url) as client:
        await send(client, 4)
        seen: list[bytes] = []
        done = asyncio.Event()

        @client.listener("T", group="filtered", filter=sql("n >= 2"))
        async def handle(message: Message[bytes]) -> Ack:
            seen.append(message.body)
            if b"3" in seen and b"2" in seen:
                done.set()
            return Ack.SUCCESS

        task = asyncio.create_task(client.run())
        try:
            while "filtered" not in server.broker.clients.consumers:
                await asyncio.sleep(0)
            await send(client, 4)
            await done.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert set(seen) == {b"2", b"3"}


@pytest.mark.spec("API-31")
def test_sync_consumer_accepts_a_sql_filter() -> None:
    with SyncEmbeddedBroker(settings=ON) as server, saturnmq.sync.Client.from_url(server.url) as client:
        with client.producer("p") as out:
            for n in range(3):
                out.send("T", b"%d" % n, properties={"n": str(n)})
        with client.consumer("g", start="first") as inbox:
            inbox.subscribe("T", sql("n = 1"))
            message = inbox.recv(30)
            assert message.body == b"1"
            message.ack()


def test_tag_that_no_filter_can_match_is_sent_with_a_warning(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.producer("g") as out:
            for body in (b"1", b"2"):
                await out.send(saturn_topic, body, tag="a||b", shard_by=1)
            await out.send_many(saturn_topic, [b"3"], tag="a||b", shard_by=1)
            await out.send(saturn_topic, b"4", tag="a", shard_by=1)
            async with client.consumer(saturn_group, start="first") as inbox:
                await inbox.subscribe(saturn_topic, tag("a||b"))
                assert (await inbox.recv(30)).body == b"4"
            async with client.consumer(saturn_group + "-all", start="first") as inbox:
                await inbox.subscribe(saturn_topic)
                assert [(await inbox.recv(30)).tag for _ in range(4)] == ["a||b"] * 3 + ["a"]

    asyncio.run(work())
    warnings = [record.getMessage() for record in caplog.records if "matches no tag filter" in record.getMessage()]
    assert len(warnings) == 1 and "tag='a||b'" in warnings[0]


@pytest.mark.spec("FIL-01")
@pytest.mark.parametrize("expression", ["\u3000a", "a\x00 || b", "\ta||\x1fb ||  || c", "a\xa0"])
def test_client_and_broker_split_an_expression_into_the_same_tags(expression: str) -> None:
    assert sorted(tag(expression).tags) == sorted(parse_tags(expression).tags)
