"""Rejected and hostile requests, failed writes, and races around start, stop and long polling of a broker."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from wire import wire

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.requests import pull as pull_requests
from saturnmq.broker.services.delay import restored
from saturnmq.broker.state.clients import ClientInfo, Clients
from saturnmq.broker.state.locks import LOCK_LIVE_MS
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.filter import PullFilter
from saturnmq.net import Connection, NetSettings, RemotingClient, RemotingServer
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, MessageQueue, ProducerData, SubscriptionGroupConfig
from saturnmq.protocol.codes import SCHEDULE_TOPIC, RequestCode, SysFlag
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.message import BatchItem, Message, encode_batch, encode_record
from saturnmq.store import StateFile, StoreProfile, StoreSettings


@pytest.mark.spec("MSG-02", "SND-10")
@pytest.mark.parametrize("flag", [SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6])
async def test_sender_cannot_set_ipv6_host_flags(flag: SysFlag) -> None:
    """The flags describe the record's layout: if set wrongly, the record is unreadable and recovery would end the log there."""
    async with wire() as w:
        assert (await w.send(body=b"one", f=int(flag))).code == 0
        assert (await w.send_batch([BatchItem(b"two")], queue=0, f=int(flag))).code == 0
        assert [m.body for m in await w.messages()] == [b"one", b"two"]
        assert [m.sys_flag & int(flag) for m in await w.messages()] == [0, 0]


@pytest.mark.spec("SND-01", "REM-08")
@pytest.mark.parametrize(
    ("field", "value"),
    [("e", -(2**31) - 1), ("f", 2**31), ("g", 2**63), ("h", -(2**31) - 1), ("j", 2**31), ("j", "1_0"), ("f", "x")],
)
async def test_send_with_out_of_range_number_is_rejected(field: str, value: object) -> None:
    async with wire() as w:
        for answer in (
            await w.send(**{field: value}),
            await w.send_batch([BatchItem(b"x")], queue=0, **{field: value}) if field not in "hj" else None,
        ):
            if answer is not None:
                assert answer.code == 1, answer
                assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
                assert "must be an integer in" in (answer.remark or "")
        assert await w.messages() == []
        assert w.broker.store.max_physical_offset == 0


@pytest.mark.spec("BP-07", "OF-05")
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "x", "1_0"])
async def test_invalid_commit_offset_in_pull_does_not_break_saving(value: object) -> None:
    async with wire() as w:
        await w.send()
        answer = await w.pull(sysFlag=5, commitOffset=value)
        assert answer.code == 1 and "commitOffset" in (answer.remark or "")
        assert (await w.pull(sysFlag=5, commitOffset=1)).code == 0
        await w.broker.offsets.save()
        found = await w.call(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0)
        assert found.ext["offset"] == "1"


@pytest.mark.spec("REM-08", "REM-11")
@pytest.mark.parametrize(
    ("field", "value"),
    [("queueOffset", 2**63), ("suspendTimeoutMillis", 10**400), ("subVersion", "y"), ("maxMsgNums", 2**31)],
)
async def test_pull_with_invalid_number_names_field(field: str, value: object) -> None:
    async with wire() as w:
        await w.send()
        flags = {"subVersion": 0}.get(field, 6)
        answer = await w.pull(**({"offset": 1, "sysFlag": flags, field: value}))
        assert answer.code == 1, answer
        assert field in (answer.remark or "") and "must be an integer in" in (answer.remark or "")


@pytest.mark.spec("REM-06", "LP-01")
async def test_oneway_pull_is_neither_parked_nor_answered() -> None:
    async with wire() as w:
        await w.send(queue=1)
        fields = {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        host, port = w.server.broker_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        pull = Command(RequestCode.PULL_MESSAGE, ext=fields, opaque=7, flag=2)
        last = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"}, opaque=8)
        writer.write(encode_frame(pull) + encode_frame(last))
        assert FrameDecoder().feed(await reader.read(4096))[0].opaque == 8
        assert w.broker.long_polling.count == 0
        await w.send()
        writer.write(encode_frame(last))
        assert [c.opaque for c in FrameDecoder().feed(await reader.read(4096))] == [8]
        writer.close()
        await writer.wait_closed()


@pytest.mark.spec("HB-06", "OF-05")
async def test_failing_periodic_task_continues_and_stop_saves() -> None:
    async with wire(client_scan_ms=5) as w:
        clients = w.broker.clients
        again = asyncio.Event()
        calls = 0

        def expired(now_ms: int, expiry_ms: int) -> list[Connection]:
            nonlocal calls
            calls += 1
            if calls > 1:
                again.set()
            raise RuntimeError("one bad tick")

        clients.expired = expired  # type: ignore[method-assign]
        await again.wait()
        await w.send()
        await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1)
        await w.broker.stop()
        assert not w.broker.store.settings.abort_path.exists()
        assert b'"T@G":{"0":1}' in (w.broker.store.settings.root / "config" / "consumerOffset.json").read_bytes()


@pytest.mark.spec("OF-05")
async def test_stop_waits_for_offset_write_in_progress() -> None:
    async with wire(flush_offsets_ms=5) as w:
        offsets, loop = w.broker.offsets, asyncio.get_running_loop()
        await w.send()
        began, go_on = asyncio.Event(), threading.Event()
        seen: list[str] = []
        file = offsets._file
        write = file.write

        def slow(data: bytes) -> None:
            seen.append("begin")
            loop.call_soon_threadsafe(began.set)
            if len(seen) == 1:
                go_on.wait(10)
            write(data)
            seen.append("end")

        file.write = slow  # type: ignore[method-assign]
        offsets.set("T", "G", 0, 1)
        await began.wait()
        offsets.set("T", "G", 0, 2)
        stopping = asyncio.create_task(w.broker.stop())
        loop.call_later(0.05, go_on.set)
        await stopping
        assert seen == ["begin", "end", "begin", "end"]
        assert b'"T@G":{"0":2}' in (w.broker.store.settings.root / "config" / "consumerOffset.json").read_bytes()


@pytest.mark.spec("NS-08", "NS-32")
async def test_invalid_registration_response_does_not_stop_registration() -> None:
    rounds: asyncio.Queue[int] = asyncio.Queue()

    def answer(connection: Connection, request: Command) -> Command:
        rounds.put_nowait(request.code)
        return request.reply(body=b"[1, 2" if request.code == RequestCode.REGISTER_BROKER else None)

    server = RemotingServer(answer, settings=NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        settings = BrokerSettings(namesrv_addr=f"{host}:{port}", listen_port=0)
        broker = Broker(settings, StoreSettings(folder, profile=StoreProfile.SMALL), NetSettings())
        await broker.start()
        assert await rounds.get() == RequestCode.REGISTER_BROKER
        for name in ("A", "B"):
            broker.topics.ensure(name, 1)
            assert await rounds.get() == RequestCode.REGISTER_BROKER
        await broker.stop()
        assert await rounds.get() == RequestCode.UNREGISTER_BROKER
        assert not broker.store.settings.abort_path.exists()
    await server.stop()


@pytest.mark.spec("SND-09", "RTY-02", "BP-10")
@pytest.mark.parametrize("group", ["", "a b", "../x", "g" * 256])
async def test_invalid_group_name_never_enters_tables(group: str) -> None:
    async with wire() as w:
        sent = await w.send()
        groups, topics = set(w.broker.groups.table), set(w.broker.topics.table)
        offset = int(sent.ext["msgId"][16:], 16)
        back = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group=group, delayLevel=0)
        assert back.code == 26, back
        retry = await w.send(f"%RETRY%{group}")
        assert retry.code in (1, 26), retry
        assert (await w.call(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic="T", queueId=0)).code == 0
        assert set(w.broker.groups.table) == groups
        assert set(w.broker.topics.table) == topics


@pytest.mark.spec("RTY-02", "SND-04")
async def test_group_with_too_long_retry_topic_gets_none() -> None:
    async with wire() as w:
        sent = await w.send()
        offset = int(sent.ext["msgId"][16:], 16)
        back = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="g" * 200, delayLevel=0)
        assert back.code == 1 and "longer than topic max length" in (back.remark or "")
        assert not [topic for topic in w.broker.topics.table if len(topic) > 127]


@pytest.mark.spec("OF-05")
async def test_commit_for_missing_queue_or_topic_is_rejected() -> None:
    """A consumer's last commit after its topic was deleted would make a new topic of that name start in the middle."""
    async with wire() as w:
        await w.send()
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)).code == 0
        for queue in (-1, 4, 2**31 - 1):
            refused = await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **(commit | {"queueId": queue}))
            assert refused.code == 1 and "queueId" in (refused.remark or "")
        assert (await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)).code == 17
        assert w.broker.offsets.encode() == b'{"offsetTable":{}}'


@pytest.mark.spec("OR-09")
async def test_expired_queue_locks_are_removed() -> None:
    now = 1_000_000
    async with wire(client_scan_ms=5) as w:
        locks = w.broker.locks
        locks.lock("G", "c1", [MessageQueue("T", "broker-a", n) for n in range(3)], now)
        locks.lock("H", "c1", [], now)
        list(locks.expiring(now + LOCK_LIVE_MS))
        assert locks.lock("G", "c2", [MessageQueue("T", "broker-a", 0)], now + LOCK_LIVE_MS) == []
        while locks._locks:
            await asyncio.sleep(0)


@pytest.mark.spec("BAT-02")
async def test_oversized_batch_is_rejected_before_decoding() -> None:
    async with wire(store={"message_bytes_max": 1000}) as w:
        await w.send()
        answer = await w.send_batch([BatchItem(b"x")] * 100)
        assert answer.code == 13 and "the limit is 1000 bytes" in (answer.remark or "")
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "m": True}
        answer = await w.call(RequestCode.SEND_BATCH_MESSAGE, bytes(2000), **fields)
        assert answer.code == 13 and "the limit is 1000 bytes" in (answer.remark or "")


@pytest.mark.spec("BAT-03", "BAT-04")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_send_with_batch_flag_is_batch(code: RequestCode) -> None:
    async with wire() as w:
        fields: dict[str, object] = {
            "a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "m": True,
        }  # fmt: skip
        if code == RequestCode.SEND_MESSAGE:
            names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
                     "bornTimestamp", "flag", "properties", "batch")  # fmt: skip
            fields = dict(zip(names, fields.values(), strict=True))
        answer = await w.call(code, encode_batch([BatchItem(b"one"), BatchItem(b"two")]), **fields)
        assert answer.code == 0 and answer.ext["msgId"].count(",") == 1
        assert [m.body for m in await w.messages()] == [b"one", b"two"]


@pytest.mark.spec("SND-06")
@pytest.mark.parametrize("width", [0, -3])
async def test_auto_created_topic_has_at_least_one_queue(width: int) -> None:
    async with wire() as w:
        assert (await w.send("new", d=width)).code == 0
        assert w.broker.topics.table["new"].write_queue_nums == 1


@pytest.mark.spec("LP-03", "SND-10")
async def test_request_during_start_is_served() -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(BrokerSettings(listen_port=0), StoreSettings(folder, profile=StoreProfile.SMALL), NetSettings())
        client = RemotingClient(settings=NetSettings())
        fast = broker._fast.start

        async def early(host: str, port: int, **more: str) -> tuple[str, int]:
            send = {"b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
            pull = {
                "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
                "sysFlag": "6", "suspendTimeoutMillis": "20000", "subscription": "*",
            }  # fmt: skip
            sent = await client.invoke(broker.address, Command(RequestCode.SEND_MESSAGE_V2, ext=send), 5000)
            assert sent.code == 0, sent
            held = asyncio.create_task(client.invoke(broker.address, Command(RequestCode.PULL_MESSAGE, ext=pull), 5000))
            while not broker.long_polling.count:
                await asyncio.sleep(0)
            await client.invoke(broker.address, Command(RequestCode.SEND_MESSAGE_V2, ext=send), 5000)
            assert (await held).code == 0
            return await fast(host, port, **more)

        broker._fast.start = early  # type: ignore[method-assign]
        await broker.start()
        await client.close()
        await broker.stop()


@pytest.mark.spec("RTY-04", "RTY-02")
async def test_message_sent_back_goes_to_existing_retry_queue() -> None:
    async with wire() as w:
        for _ in range(4):
            sent = await w.send()
        await w.heartbeat("G", "T")
        await w.call(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            SubscriptionGroupConfig("G", retry_queue_nums=4).encode(),
        )
        offset = int(sent.ext["msgId"][16:], 16)
        back = {"offset": offset, "group": "G", "delayLevel": 0}
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
        width = w.broker.topics.table["%RETRY%G"].read_queue_nums
        (stored,) = await w.messages(SCHEDULE_TOPIC, 2)
        assert stored.properties["REAL_TOPIC"] == "%RETRY%G" and int(stored.properties["REAL_QID"]) < width
        w.broker.topics.table["%RETRY%G"].perm = 4
        refused = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
        assert (refused.code, refused.remark) == (16, "the topic[%RETRY%G] sending message is forbidden")


@pytest.mark.spec("BP-10", "RB-08")
@pytest.mark.parametrize("width", [-1, 65_537, 2**31 - 1])
async def test_retry_queue_nums_is_limited(width: int) -> None:
    async with wire() as w:
        body = SubscriptionGroupConfig("G", retry_queue_nums=width).encode()
        answer = await w.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        assert answer.code == 1 and "retryQueueNums" in (answer.remark or "")
        assert "G" not in w.broker.groups.table


@pytest.mark.spec("SND-06", "SND-15")
async def test_new_topic_is_durable_before_its_send_is_answered() -> None:
    async with wire() as w:
        await w.send()
        loop, go_on, begun = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
        file = w.broker.topics._file
        write = file.write
        writes: list[bytes] = []

        def slow(data: bytes) -> None:
            writes.append(data)
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(10)
            write(data)

        file.write = slow  # type: ignore[method-assign]
        first = asyncio.create_task(w.send("new-0"))
        await begun.wait()
        others = [asyncio.create_task(w.send(f"new-{n}")) for n in range(1, 20)]
        while "new-19" not in w.broker.topics.table:
            await asyncio.sleep(0)
        assert (await w.pull()).code == 0, "the loop goes on while the disk is slow"
        assert not first.done() and b"new-0" not in file.path.read_bytes()
        go_on.set()
        assert [answer.code for answer in await asyncio.gather(first, *others)] == [0] * 20
        assert b"new-0" in file.path.read_bytes() and b"new-19" in file.path.read_bytes()
        assert len(writes) == 2


@pytest.mark.spec("BP-10", "NS-34")
async def test_failed_state_write_is_reported_and_next_one_saves_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with wire() as w:
        for file, call in (
            (
                w.broker.topics._file,
                lambda name: w.call(
                    RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, defaultTopic="TBW102", readQueueNums=1,
                    writeQueueNums=1, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
                ),
            ),
            (
                w.broker.groups._file,
                lambda name: w.call(
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig(name).encode()
                ),
            ),
        ):  # fmt: skip
            write = file.write

            def full(data: bytes) -> None:
                raise StoreError("no space")

            file.write = full  # type: ignore[method-assign]
            answer = await call("first")
            assert answer.code == 1 and "no space" in (answer.remark or "")
            file.write = write  # type: ignore[method-assign]
            assert (await call("second")).code == 0
            assert b'"first"' in file.path.read_bytes() and b'"second"' in file.path.read_bytes()


class Member:
    """A connection that records its notifications."""

    def __init__(self, *, congested: bool = False) -> None:
        self.congested = congested
        self.notified: list[str] = []
        self.arrived = asyncio.Event()

    def invoke_oneway(self, command: Command) -> None:
        self.notified.append(command.ext["consumerGroup"])
        self.arrived.set()


@pytest.mark.spec("HB-04", "RB-07", "REM-20")
async def test_joining_members_are_notified_once_and_congested_not() -> None:
    async with wire() as w:
        clients = w.broker.clients
        members: list[Any] = [Member() for _ in range(50)]
        deaf: Any = Member(congested=True)
        for number, member in enumerate([*members, deaf]):
            info = ClientInfo(f"c{number}", 0, 407, w.broker._clock_ms())
            clients.register_consumer(ConsumerData("G"), member, info, notify=True)
        for member in members:
            await member.arrived.wait()
        assert [member.notified for member in members] == [["G"]] * 50
        assert deaf.notified == []
        for member in [*members, deaf]:
            clients.connection_closed(member)
        assert clients.consumers == {} and clients._groups_of == {}


@pytest.mark.spec("LP-02", "REM-14")
async def test_parked_pulls_are_limited_per_connection() -> None:
    async with wire(pull_queue_max=20, short_polling_ms=1) as w:
        await w.send(queue=1)
        held = [asyncio.create_task(w.pull(suspend_ms=20_000)) for _ in range(2)]
        while w.broker.long_polling.count < 2:
            await asyncio.sleep(0)
        assert (await w.pull(suspend_ms=20_000)).code == 19
        other = RemotingClient(settings=NetSettings())
        pull = {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
            "suspendTimeoutMillis": "20000", "subscription": "*", "x": "y" * 100_000,
        }  # fmt: skip
        command = Command(RequestCode.PULL_MESSAGE, ext=pull, body=bytes(100_000))
        waiting = asyncio.create_task(other.invoke(w.server.broker_address, command, 20_000))
        while w.broker.long_polling.count < 3:
            await asyncio.sleep(0)
        kept = [h for h in w.broker.long_polling.parked() if "x" in h.request.ext or h.request.body]
        assert kept == [], "a held pull keeps only what it needs"
        long = Command(RequestCode.PULL_MESSAGE, ext=pull | {"subscription": "a" * 70_000})
        assert (await other.invoke(w.server.broker_address, long, 5000)).code == 23
        await w.send()
        assert [answer.code for answer in await asyncio.gather(*held, waiting)] == [0, 0, 0]
        assert w.broker.long_polling._by_connection == {}
        await other.close()


@pytest.mark.spec("HB-04")
async def test_heartbeat_groups_are_limited_and_names_validated() -> None:
    async with wire() as w:
        for producers in (
            [ProducerData(f"p{n}") for n in range(5000)],
            [ProducerData("p" * 300)],
            [ProducerData("")],
        ):
            answer = await w.call(RequestCode.HEART_BEAT, HeartbeatData("c1", producers, []).encode())
            assert answer.code == 1 and "group" in (answer.remark or "")
        assert w.broker.clients.producers == {} and w.broker.clients._groups_of == {}


@pytest.mark.spec("HB-06", "HB-07")
def test_closed_connection_leaves_only_its_own_memberships() -> None:
    clients = Clients()
    one, two = object(), object()
    info = ClientInfo("c", 0, 407, 0)
    for connection in (one, two):
        for group in ("a", "b"):
            clients.register_producer(group, connection, info)  # type: ignore[arg-type]
            clients.register_consumer(ConsumerData(group), connection, info, notify=False)  # type: ignore[arg-type]
    clients.unregister(one, "a", None)  # type: ignore[arg-type]
    clients.connection_closed(one)  # type: ignore[arg-type]
    assert {name: list(members) for name, members in clients.producers.items()} == {"a": [two], "b": [two]}
    assert {name: list(group.members) for name, group in clients.consumers.items()} == {"a": [two], "b": [two]}
    clients.unregister(two, "a", "a")  # type: ignore[arg-type]
    clients.unregister(two, "b", "b")  # type: ignore[arg-type]
    assert (clients.producers, clients.consumers, clients._groups_of) == ({}, {}, {})


@pytest.mark.spec("OF-05", "NS-34")
async def test_deleted_topic_leaves_no_offsets_and_is_unregistered() -> None:
    async with wire(flush_offsets_ms=3_600_000) as w:
        await w.send()
        await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1)
        await w.broker.offsets.save()
        file = w.broker.store.settings.root / "config" / "consumerOffset.json"
        assert b'"T@G"' in file.read_bytes()
        while "T" not in w.server.namesrv.routes.topics:
            await asyncio.sleep(0)
        assert (await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        assert b'"T@G"' not in file.read_bytes()
        while "T" in w.server.namesrv.routes.topics:
            await asyncio.sleep(0)


@pytest.mark.spec("OF-05")
async def test_failed_offset_save_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    async with wire(flush_offsets_ms=5) as w:
        await w.send()
        file = w.broker.offsets._file
        write, failed, done = file.write, asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def sometimes(data: bytes) -> None:
            if not failed.is_set():
                loop.call_soon_threadsafe(failed.set)
                raise StoreError("no space")
            write(data)
            loop.call_soon_threadsafe(done.set)

        file.write = sometimes  # type: ignore[method-assign]
        w.broker.offsets.set("T", "G", 0, 1)
        await done.wait()
        assert b'"T@G":{"0":1}' in file.path.read_bytes()


@pytest.mark.spec("ST-18", "RTY-02")
async def test_offset_inside_record_is_not_message() -> None:
    async with wire() as w:
        fake = encode_record(Message("T", b"x" * 100))
        sent = await w.send(body=fake)
        offset = int(sent.ext["msgId"][16:], 16)
        assert (await w.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)).code == 0
        (stored,) = await w.messages()
        inside = offset + 88  # start of its body
        assert stored.body == fake
        for wrong in (inside, offset + 1, -1, -100, -(2**63), 2**62):
            answer = await w.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=wrong)
            assert answer.code == 1 and "can not find message" in (answer.remark or "")
            back = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=wrong, group="G", delayLevel=0)
            assert back.code == 1 and "look message by offset failed" in (back.remark or "")


@pytest.mark.spec("SND-06", "BP-10")
async def test_change_at_end_of_state_write_is_saved(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    table = [1]
    writer = StateWriter(StateFile(tmp_path / "x.json"), lambda: iter([str(table).encode()]))
    writer.changed()
    writing = writer._writing
    assert writing is not None

    def in_that_moment() -> None:
        if not writing.done():
            loop.call_soon(in_that_moment)
            return
        table.append(2)
        writer.changed()
        begun.append(writer._writing)

    begun: list[object] = []
    in_that_moment()
    await writing
    assert begun and begun[0] is not writing, "another write has begun"
    await writer.saved()
    assert (tmp_path / "x.json").read_bytes() == b"[1, 2]"
    assert not writer.dirty


@pytest.mark.spec("LP-03", "FIL-05")
async def test_failing_filter_wakes_only_its_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(properties: bytes) -> bool:
        raise RuntimeError("no")

    monkeypatch.setattr(pull_requests, "pull_filter_of", lambda text, kind: PullFilter(by_record=bad))
    async with wire(property_filter_enable=True) as w:
        await w.send(queue=1)
        failing = asyncio.create_task(w.pull(suspend_ms=20_000, subscription="a = 1", expressionType="SQL92"))
        other = asyncio.create_task(w.pull(suspend_ms=20_000, subscription="unknown"))
        while w.broker.long_polling.count < 2:
            await asyncio.sleep(0)
        assert (await w.send()).code == 0
        answer = await failing
        assert (answer.code, answer.remark) == (1, "RuntimeError: no")
        assert not other.done() and w.broker.long_polling.count == 1
        assert (await w.send(properties={"TAGS": "unknown"})).code == 0
        assert (await other).code == 0


@pytest.mark.spec("REM-08", "SND-10")
async def test_empty_number_is_rejected_on_repeated_header() -> None:
    async with wire() as w:
        await w.send()
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "", "h": "0", "i": "A\x01b"}
        for _ in range(3):
            request = Command(
                RequestCode.SEND_MESSAGE_V2, ext=dict(fields), body=b"x", serialization=Serialization.ROCKETMQ
            )
            answer = await w.client.invoke(w.server.broker_address, request, 5000)
            assert answer.code == 1 and "g" in (answer.remark or "")
        assert len(await w.messages()) == 1


@pytest.mark.spec("SND-10", "NS-08", "UPG-11")
@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
async def test_wildcard_bind_advertises_reachable_address(wildcard: str) -> None:
    """An IPv6 listener accepts no IPv4 connections; a host's own name often resolves to 127.0.1.1 or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        settings = BrokerSettings(bind_address=wildcard, listen_port=0, fast_port_enable=False)
        broker = Broker(settings, StoreSettings(folder, profile=StoreProfile.SMALL), NetSettings())
        await broker.start()
        client = RemotingClient(settings=NetSettings())
        address = broker.advertised_address
        assert (":" in address.rpartition(":")[0]) == (wildcard == "::") and not address.startswith("127.0.1.")
        assert (await client.invoke(address, Command(RequestCode.GET_BROKER_CONFIG), 5000)).code == 0
        await client.close()
        await broker.stop()


@pytest.mark.spec("RTY-04", "BAT-06")
async def test_message_with_invalid_utf8_properties_can_be_sent_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with wire() as w:
        await w.heartbeat("G", "T")
        sent = await w.send_batch([BatchItem(b"x", b"KEYS\x01\xff\xfe")], queue=0)
        offset = int(sent.ext["msgId"][16:], 16)
        back = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="G", delayLevel=-1)
        assert back.code == 0, back
        (dead,) = await w.messages("%DLQ%G")
        assert dead.properties_raw.startswith(b"KEYS\x01\xff\xfe\x02")


@pytest.mark.spec("DLY-05", "RTY-04")
def test_delayed_message_with_invalid_utf8_is_delivered_unchanged() -> None:
    raw = b"KEYS\x01\xff\xfe\x02REAL_TOPIC\x01other\x02REAL_TOPIC\x01T\x02REAL_QID\x013"
    message = restored(Message("SCHEDULE_TOPIC_XXXX", b"body", raw))
    assert (message.topic, message.queue_id, message.properties_raw) == ("T", 3, raw)
