"""Queries of messages by the administration library, and what became of a message in each group."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scriptedadmin import ScriptedConnection

from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.admin.messages import Messages, Track, TrackType, unique_id_time
from saturnmq.broker.broker import Broker
from saturnmq.broker.settings import BrokerSettings
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.message import Message
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    SubscriptionData,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.headers.messaging import SendMessage
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import Host, encode_properties
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store.settings import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

UNIQUE = "7F00000155AA18B4AAC25D5C0A0B0001"


def run(work: Callable[[EmbeddedBroker, Admin], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), EmbeddedBroker() as server, Admin(server.name_servers) as admin:
            await work(server, admin)

    asyncio.run(bounded())


async def send_raw(server: EmbeddedBroker, admin: Admin, body: bytes, topic: str = "copies", **properties: str) -> None:
    """Send with properties that the client library sets itself."""
    header = SendMessage(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=encode_properties(properties).decode(),
    )
    await admin.connection.read(server.broker_address, RequestCode.SEND_MESSAGE, header, body)


@pytest.mark.spec("ADM-19", "C-25")
def test_unique_key_query_returns_all_copies_oldest_first() -> None:
    async def work(server: EmbeddedBroker, admin: Admin) -> None:
        for body in (b"first", b"second"):
            await send_raw(server, admin, body, UNIQ_KEY=UNIQUE)
        found = await admin.messages.by_unique_id("copies", UNIQUE)
        assert [one.body for one in found] == [b"first", b"second"]
        assert (await admin.messages.view("copies", UNIQUE)).body == b"first"

    run(work)


@pytest.mark.spec("ADM-19")
def test_key_query_drops_collisions_of_hashes() -> None:
    """AaAa and BBBB have one hash in Java, alone and before or behind the same text."""

    async def work(server: EmbeddedBroker, admin: Admin) -> None:
        for topic in ("AaAa", "BBBB"):
            for key in ("AaAa", "BBBB"):
                await send_raw(server, admin, f"{topic} {key}".encode(), topic=topic, KEYS=key)
        for topic in ("AaAa", "BBBB"):
            for key in ("AaAa", "BBBB"):
                found = await admin.messages.by_key(topic, key)
                assert [one.body.decode() for one in found] == [f"{topic} {key}"]

    run(work)


@pytest.mark.spec("ADM-19")
def test_key_query_drops_other_keys_and_topics_and_reports_none() -> None:
    async def work(server: EmbeddedBroker, admin: Admin) -> None:
        await send_raw(server, admin, b"x", KEYS="one two")
        assert [one.keys for one in await admin.messages.by_key("copies", "two")] == [("one", "two")]
        for key in ("on", "one two"):
            with pytest.raises(Exception, match="no message") as caught:
                await admin.messages.by_key("copies", key)
            assert getattr(caught.value, "code", None) == ResponseCode.NO_MESSAGE

    run(work)


@pytest.mark.spec("ADM-20")
def test_view_takes_offset_ids_of_brokers_and_unique_ids() -> None:
    async def work(server: EmbeddedBroker, admin: Admin) -> None:
        async with Client.from_url(server.url) as client, client.producer("p") as out:
            receipt = await out.send("viewed", b"body")
        assert (await admin.messages.view("viewed", receipt.offset_message_id)).body == b"body"
        assert (await admin.messages.view("viewed", receipt.message_id)).body == b"body"
        asked = [request.ext for request in server.tap.requests if request.name == "QUERY_MESSAGE"][-1]
        sent_ms = unique_id_time(receipt.message_id, time.time_ns() // 1_000_000)
        assert asked["beginTimestamp"] == str(sent_ms - 1000) and abs(sent_ms - time.time() * 1000) < 60_000
        for host in (Host("127.0.0.1", 1), Host("::1", 10911)):  # the form of an offset id, but of no broker
            with pytest.raises(Exception, match="no message"):
                await admin.messages.view("viewed", offset_message_id(host, PhysicalOffset(0)))

    run(work)


@pytest.mark.spec("ADM-20")
def test_view_asks_the_broker_of_an_ipv6_offset_id(tmp_path: Path) -> None:
    async def work(server: EmbeddedBroker, admin: Admin) -> None:
        settings = BrokerSettings(
            broker_name="six",
            namesrv_addr=server.name_servers,
            bind_address="::1",
            listen_port=0,
            fast_port_enable=False,
        )
        store = StoreSettings(store_path_root_dir=str(tmp_path), profile=StoreProfile.SMALL)
        broker = Broker(settings, store, NetSettings())
        await broker.start()
        try:
            async with Client.from_url(server.url) as client, client.producer("p") as out:
                await client.create_topic("viewed", queues=1)
                (queue,) = [queue for queue in await out.queues("viewed") if queue.broker_name == "six"]
                message_id = (await out.send("viewed", b"body", queue=queue)).offset_message_id
            assert len(message_id) == 56 and (await admin.messages.view("viewed", message_id)).body == b"body"
        finally:
            await broker.stop()

    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    run(work)


@pytest.mark.spec("ADM-20")
def test_time_of_a_unique_id_is_in_this_month_or_the_last() -> None:
    def ms(*parts: int) -> int:
        return int(datetime(*parts).timestamp() * 1000)  # type: ignore[arg-type]

    def unique_id(since_ms: int, ip_bytes: int = 4) -> str:
        return "00" * (ip_bytes + 6) + f"{since_ms:08X}0001"

    day_ms = 86_400_000
    assert unique_id_time(unique_id(day_ms), ms(2026, 11, 15)) == ms(2026, 11, 2)
    assert unique_id_time(unique_id(20 * day_ms, 16), ms(2026, 1, 15)) == ms(2025, 12, 21)
    assert unique_id_time("order-1", ms(2026, 1, 15)) == 0


STORE = Host("127.0.0.1", 10911)
MESSAGE: Message[bytes] = Message(
    Record("orders", b"x", encode_properties({"TAGS": "A"}), queue_id=0, queue_offset=QueueOffset(5), store_host=STORE),
    MessageQueue("orders", "a", 0),
    BytesCodec(),
)


def clients(kind: str, expression: str = "*", tags: tuple[str, ...] = ()) -> ConsumerConnection:
    data = SubscriptionData("orders", expression, list(tags))
    return ConsumerConnection([Connection("c", "127.0.0.1:1", "JAVA", 407)], {"orders": data}, kind, "CLUSTERING")


def progress(offset: int, queue_id: int = 0, broker: str = "a") -> ConsumeStats:
    return ConsumeStats({MessageQueue("orders", broker, queue_id): OffsetWrapper(10, offset, 0)})


PUSH, PULL = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY"
OFFLINE = response_error(ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[g] not online")


@pytest.mark.spec("ADM-21")
@pytest.mark.parametrize(
    ("connected", "stats", "expected"),
    [
        (OFFLINE, None, Track("g", TrackType.NOT_ONLINE, "CODE:206 DESC:the consumer group[g] not online")),
        (clients(PULL), None, Track("g", TrackType.PULL)),
        (clients(PUSH), progress(6), Track("g", TrackType.CONSUMED)),
        (clients(PUSH, "A || B", ("A", "B")), progress(6), Track("g", TrackType.CONSUMED)),
        (clients(PUSH, "B", ("B",)), progress(6), Track("g", TrackType.CONSUMED_BUT_FILTERED)),
        (clients(PUSH), progress(5), Track("g", TrackType.NOT_CONSUME_YET)),
        (clients(PUSH), progress(6, queue_id=1), Track("g", TrackType.NOT_CONSUME_YET)),
        (clients(PUSH), progress(6, broker="b"), Track("g", TrackType.NOT_CONSUME_YET)),
        (clients(PUSH), response_error(ResponseCode.SYSTEM_ERROR, "broken"), Track("g", TrackType.UNKNOWN, "CODE:1 DESC:broken")),
    ],
)  # fmt: skip
def test_tracks(connected: Any, stats: Any, expected: Track) -> None:
    script = {
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda *_: GroupList(["g"]),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda *_: connected,
        RequestCode.GET_CONSUME_STATS: lambda *_: stats,
    }
    connection = ScriptedConnection({"a": "127.0.0.1:10911", "b": "127.0.0.2:10911"}, script)
    assert asyncio.run(Messages(connection).tracks(MESSAGE)) == [expected]


@pytest.mark.spec("ADM-21")
def test_a_group_without_a_route_is_unknown() -> None:
    script = {RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda *_: GroupList(["unknown"])}
    (track,) = asyncio.run(Messages(ScriptedConnection({"a": "127.0.0.1:10911"}, script)).tracks(MESSAGE))
    assert track.track_type is TrackType.UNKNOWN
    assert track.description == "CODE:17 DESC:No topic route info in name server for the topic: %RETRY%unknown"
