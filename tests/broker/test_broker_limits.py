"""Limits on what clients may create in a broker and in a NameServer.

Requirements: LIM-05, LIM-09, LIM-10, LIM-13.
"""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import pytest
from wire import Clock, Wire, wire

from saturnmq.broker import BrokerSettings
from saturnmq.broker.state.clients import ClientInfo, Clients
from saturnmq.broker.state.creation_quota import HOUR_MS, CreationQuota
from saturnmq.broker.state.locks import LOCK_LIVE_MS, QueueLockTable
from saturnmq.client.compression import COMPRESSION_FLAGS, compressor, decompress
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import Connection, NetSettings, RemotingClient
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    KVTable,
    MessageQueue,
    ProducerData,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from saturnmq.protocol.codes import PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.frames.command import Command

MIB: Final = 1024 * 1024


@contextmanager
def memory_peak() -> Iterator[list[int]]:
    """A list that holds the peak of the memory allocated in the block, in bytes, after it."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.spec("LIM-13")
async def test_auto_created_topics_are_limited_per_hour() -> None:
    clock = Clock()
    async with wire(clock_ms=clock, topics_per_hour=2) as w:
        assert [(await w.send(topic)).code for topic in ("A", "B")] == [0, 0]
        refused = await w.send("C")
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST  # makes a producer try another broker
        assert "2 topics within an hour" in (refused.remark or "")
        assert (await w.send("A")).code == 0
        made = await w.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic="C", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1,
            perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
        )  # fmt: skip
        assert made.code == 0 and (await w.send("C")).code == 0
        clock.ms += HOUR_MS
        assert (await w.send("D")).code == 0
        assert w.broker.rejections.counts == {"topics": 1}
        table = KVTable.decode((await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert table["rejected_topics"] == "1"


@pytest.mark.spec("LIM-13")
async def test_topics_are_limited_in_total() -> None:
    async with wire(topics_max=1) as w:  # topics of the broker itself do not count
        assert (await w.send("A")).code == 0
        assert (await w.send("B")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await w.heartbeat("G", "A")).code == 0  # the group may consume, but gets no retry topic
        assert w.broker.topics.get("%RETRY%G") is None
        back = {
            "group": "G",
            "offset": 0,
            "delayLevel": 0,
            "originMsgId": "x",
            "originTopic": "A",
            "unitMode": False,
        }
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 1
        assert w.broker.topics.ensure("%RETRY%of-the-log", 1).write_queue_nums == 1  # by the broker itself
        half = await w.send("A", properties={"TRAN_MSG": "true", "PGROUP": "p"})
        assert half.code == 0  # topics that the broker itself needs are not limited
        assert w.broker.rejections.counts == {"topics": 1, "group_topics": 2}


@pytest.mark.spec("LIM-13")
async def test_internal_topics_do_not_use_up_the_limit() -> None:
    """The half topic, created by the first transaction, took the place of a topic of the users."""
    async with wire(topics_max=2) as w:
        assert (await w.send("A", properties={"TRAN_MSG": "true", "PGROUP": "p"})).code == 0
        assert "RMQ_SYS_TRANS_HALF_TOPIC" in w.broker.topics.table
        assert (await w.send("B")).code == 0
        assert (await w.send("C")).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.spec("LIM-13", "BP-10")
async def test_auto_created_groups_are_limited_per_hour() -> None:
    clock = Clock()
    async with wire(clock_ms=clock, groups_per_hour=2) as w:
        await w.send()
        assert (await w.pull(group="A")).code == 0
        assert (await w.heartbeat("B", "T")).code == 0
        assert (await w.pull(group="C")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await w.pull(group="A")).code == 0
        config = SubscriptionGroupConfig("C")
        assert (await w.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.encode())).code == 0
        assert (await w.pull(group="C")).code == 0
        clock.ms += HOUR_MS
        assert (await w.pull(group="D")).code == 0
        assert w.broker.rejections.counts == {"groups": 1}


@pytest.mark.spec("LIM-13")
def test_clock_set_back_does_not_block_creation_quota() -> None:
    now = 10 * HOUR_MS
    quota = CreationQuota("topics", in_all=10, per_hour=1, clock_ms=lambda: now, rejections=Rejections())
    assert quota.add(0, "a") is None and quota.add(1, "b") is not None
    now -= 1
    assert quota.add(1, "c") is None
    assert quota.add(10, "d") is not None


@pytest.mark.spec("LIM-13")
async def test_live_groups_are_limited_in_total_and_per_client() -> None:
    async def beat(w: Wire, producers: list[str], consumers: list[str]) -> Command:
        data = HeartbeatData("c", [ProducerData(p) for p in producers], [ConsumerData(c) for c in consumers])
        return await w.call(RequestCode.HEART_BEAT, data.encode())

    async with wire(live_groups_max=3) as w:
        assert (await beat(w, ["p1", "p2", "p3"], ["c1"])).code == 0
        assert (await beat(w, ["p1"], ["c1"])).code == 0
        refused = await beat(w, ["p4"], [])
        assert refused.code == 1 and "liveGroupsMax" in (refused.remark or "")
        assert w.broker.rejections.counts == {"live_groups": 1}
    async with wire() as w:
        assert (await beat(w, [f"p{n}" for n in range(4000)], [])).code == 0
        refused = await beat(w, [f"q{n}" for n in range(97)], [])
        assert refused.code == 1 and "at most 4096" in (refused.remark or "")


@pytest.mark.spec("LIM-13")
def test_memberships_of_all_clients_are_limited() -> None:
    """Each connection could add 4096 memberships to the same groups, 1.4 MB, without a limit for all."""
    clients = Clients(live_groups_max=200)
    info = ClientInfo("c", 0, 0, 0)
    for number in range(9):
        connection: Any = object()
        groups = [f"g{n}" for n in range(90)]
        problem = clients.problem(connection, groups, [])
        assert (problem is None) == (number < 8), number
        if problem is None:
            for group in groups:
                clients.register_producer(group, connection, info)
    assert "liveGroupsMax" in (problem or "")
    assert clients.problem(cast("Any", object()), groups[:64], []) is None, "a client with few groups is not affected"


@pytest.mark.spec("LIM-13")
async def test_consumer_offsets_are_limited() -> None:
    async with wire(offsets_max=2) as w:
        await w.send()

        async def commit(group: str, offset: int) -> int:
            ext = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": offset}
            return (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **ext)).code

        assert [await commit("A", 1), await commit("B", 1), await commit("C", 1)] == [0, 0, 2]
        assert await commit("A", 0) == 0
        assert w.broker.offsets.get("T", "C", 0) is None
        assert w.broker.rejections.counts == {"offsets": 1}


@pytest.mark.spec("LIM-13")
def test_queue_locks_are_limited() -> None:
    locks = QueueLockTable(3)
    queues = [MessageQueue("T", "b", n) for n in range(5)]
    assert [locks.lock("G", "c1", [queue], 0, f"h{n}:1") for n, queue in enumerate(queues)][2:] == [queues[2:3], [], []]
    assert locks.lock("H", "c1", queues, 0) == []
    assert locks.lock("G", "c1", queues[:3], 5) == queues[:3]  # own locks are renewed, also by another connection
    list(locks.expiring(LOCK_LIVE_MS + 10))
    assert locks.lock("H", "c1", queues[:1], LOCK_LIVE_MS + 10) == queues[:1]


@pytest.mark.spec("LIM-13")
def test_locks_of_one_connection_and_of_one_address_are_limited() -> None:
    locks = QueueLockTable(100)
    queues = [MessageQueue("T", "b", n) for n in range(200)]
    hostile = [locks.lock(f"H{n}", f"c{n}", queues, 0, f"10.0.0.1:{n}") for n in range(20)]
    assert [len(owned) for owned in hostile] == [10] * 5 + [0] * 15
    assert locks.lock("G", "c", queues[:7], 0, "10.0.0.2:1") == queues[:7]
    assert locks.lock("H0", "c0", queues[:10], LOCK_LIVE_MS, "10.0.0.1:99") == queues[:10], "renewed after a reconnect"
    assert locks.lock("H1", "d", queues[:10], LOCK_LIVE_MS + 1, "10.0.0.1:99") == []
    assert locks.lock("H1", "d", queues[:10], LOCK_LIVE_MS + 1, "10.0.0.2:1") == queues[:3], "expired, up to a tenth"
    for n in range(20):
        locks.unlock(f"H{n}", f"c{n}", queues)
    list(locks.expiring(3 * LOCK_LIVE_MS))
    assert (locks._count, locks._of_connection, locks._of_address) == (0, {}, {})


@pytest.mark.spec("LIM-13")
async def test_parked_pulls_are_limited_in_total_and_per_connection() -> None:
    async with wire(pull_queue_max=20, short_polling_ms=1) as w:
        await w.send()
        waiting = [asyncio.ensure_future(w.pull(offset=1, suspend_ms=20_000)) for _ in range(2)]
        while w.broker.long_polling.count < 2:
            await asyncio.sleep(0)
        third = await w.pull(offset=1, suspend_ms=20_000)  # one connection may use a tenth of the limit
        assert third.code == ResponseCode.PULL_NOT_FOUND
        assert w.broker.long_polling.count == 2
        await w.send()
        assert {(await pull).code for pull in waiting} == {0}


@pytest.mark.spec("LIM-09")
async def test_parked_pulls_do_not_count_as_in_flight_requests() -> None:
    async with wire() as w:
        await w.send()
        pulls = [asyncio.ensure_future(w.pull(offset=1, suspend_ms=60_000, timeout_ms=60_000)) for _ in range(300)]
        while w.broker.long_polling.count < 300:
            await asyncio.sleep(0)
        assert (await w.send()).code == 0, "its connection is read"
        assert {(await pull).code for pull in pulls} == {0}


@pytest.mark.spec("LIM-13")
def test_default_limits() -> None:
    broker, names = BrokerSettings(), NameServerSettings()
    assert (broker.topics_per_hour, broker.groups_per_hour) == (1000, 1000)
    assert (broker.topics_max, broker.groups_max, broker.live_groups_max) == (100_000, 100_000, 100_000)
    assert (broker.offsets_max, broker.locks_max, broker.pull_queue_max) == (500_000, 200_000, 100_000)
    assert (names.brokers_max, names.topics_max, names.kv_entries_max) == (2000, 1_000_000, 10_000)


@pytest.mark.spec("LIM-10", "REM-14")
async def test_sends_waiting_for_disk_are_limited() -> None:
    async with wire(send_queue_max=1) as w:
        w.broker.in_flight.sends = 1
        refused = await w.send()
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith("[OVERLOAD]system busy")
        w.broker.in_flight.sends = 0
        assert (await w.send()).code == 0


@pytest.mark.spec("RR-02", "REM-20")
async def test_waiting_replies_are_not_limited_by_call_permits() -> None:
    """They used to share 64 permits with all other calls to clients and the in-flight limit of one connection."""
    async with wire() as w:
        pushed: list[tuple[Connection, Command]] = []
        requester = RemotingClient(settings=NetSettings(), handler=lambda c, r: pushed.append((c, r)))
        try:
            data = HeartbeatData("asker", [ProducerData("askers")])
            beat = Command(RequestCode.HEART_BEAT, body=data.encode())
            assert (await requester.invoke(w.server.broker_address, beat, 5000)).code == 0
            properties = f"{PropertyKey.REPLY_TO_CLIENT}\x01asker\x02{PropertyKey.CORRELATION_ID}\x01x"
            fields = {
                "a": "repliers", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
                "i": properties, "j": 0, "k": False, "m": False,
            }  # fmt: skip
            replies = [
                asyncio.ensure_future(w.call(RequestCode.SEND_REPLY_MESSAGE_V2, b"answer", **fields))
                for _ in range(300)
            ]
            while len(pushed) < 300:
                await asyncio.sleep(0.005)  # poll
            assert w.broker.in_flight.replies == 300
            assert w.broker._server.request_memory.used >= 300 * len(b"answer")  # they still use memory
            for connection, request in pushed:
                connection.send(request.reply())
            assert {(await reply).code for reply in replies} == {0}
            assert [c for c in w.broker._server.connections if c.in_flight or c.limits.in_flight_bytes] == []
            assert w.broker._server.request_memory.used == 0
        finally:
            await requester.close()


# ---- a NameServer


def registration(topics: list[str], address: str = "127.0.0.1:1", version: int = 1, **more: str) -> Command:
    table = TopicConfigTable({t: TopicConfig(t, 1, 1, 6) for t in topics}, DataVersion(1, version))
    ext = {"brokerName": address, "brokerAddr": address, "clusterName": "c", "haServerAddr": "x:1", "brokerId": "0"}
    return Command(RequestCode.REGISTER_BROKER, ext=ext | more, body=RegisterBrokerBody(table, []).encode())


@pytest.mark.spec("LIM-13")
async def test_name_server_limits_brokers_topics_and_kv_entries(tmp_path: object) -> None:
    """One address cannot take the last entry: it may use four times what it leaves free."""
    settings = NameServerSettings(kv_config_path=f"{tmp_path}/kv.json", brokers_max=3, topics_max=5, kv_entries_max=1)
    server = NameServer(settings, NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    client = RemotingClient(settings=NetSettings())
    try:

        async def ask(command: Command) -> Command:
            return await client.invoke(f"{host}:{port}", command, 5000)

        assert (await ask(registration(["A", "B"]))).code == 0
        assert (await ask(registration(["B", "C"], "127.0.0.1:2"))).code == 0
        refused = await ask(registration(["A"], "127.0.0.1:3"))
        assert refused.code == 2 and "brokersMax" in (refused.remark or "")
        refused = await ask(registration(["B", "C", "D"], "127.0.0.1:2", version=2))
        assert refused.code == 2 and "topicsMax" in (refused.remark or "")
        assert set(server.routes.topics) == {"A", "B", "C"}
        assert (await ask(registration(["A", "B"]))).code == 0  # a registered broker can continue

        async def put(key: str) -> int:
            ext = {"namespace": "n", "key": key, "value": "v"}
            return (await ask(Command(RequestCode.PUT_KV_CONFIG, ext=ext))).code

        assert [await put("a"), await put("b"), await put("a")] == [0, 2, 0]
    finally:
        await client.close()
        await server.stop()


@pytest.mark.spec("LIM-05", "NS-13")
async def test_registration_decompression_is_limited() -> None:
    async with wire() as w:
        bomb = zlib.compress(bytes(200 * MIB), 1)
        command = registration([], compressed="true")
        command.body = bomb
        with memory_peak() as peak:
            answer = await w.client.invoke(w.server.name_servers, command, 20_000)
        assert answer.code == 1 and "more than 67108864 bytes" in (answer.remark or "")
        assert peak[0] < 150 * MIB
        assert (await w.send()).code == 0


@pytest.mark.spec("LIM-05")
@pytest.mark.parametrize("kind", list(COMPRESSION_FLAGS))
def test_body_decompression_is_limited(kind: str) -> None:
    compress, flags = compressor(kind, 1), COMPRESSION_FLAGS[kind]
    for size in (4 * MIB, 16 * MIB):  # a ratio of 1000 is legal
        assert len(decompress(compress(bytes(size)), flags)) == size
    with pytest.raises(MessageError, match="more than 16777216 bytes"):
        decompress(compress(bytes(16 * MIB + 1)), flags)
    bomb = compress(bytes(200 * MIB))
    with memory_peak() as peak, pytest.raises(MessageError, match="more than 16777216 bytes"):
        decompress(bomb, flags)
    assert peak[0] < 50 * MIB, "it stops at the limit"
