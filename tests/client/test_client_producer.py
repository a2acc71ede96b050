"""The producer against a scripted cluster: attempts, answers, errors, and the requests on the wire."""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headertables import SendMessageV2
from saturnmq import (
    CallTimeout,
    Client,
    Closed,
    ConfigError,
    ConnectFailed,
    EncodeError,
    MessageQueue,
    MessageRefused,
    NoNameServer,
    Outgoing,
    PartialSend,
    ProducerStopped,
    ResponseError,
    RouteNotFound,
    SaturnError,
    SendFailed,
    SendHook,
    SendStatus,
    TransactionState,
    WrongLoop,
    json_codec,
    str_codec,
)
from saturnmq.client.compression import compressor
from saturnmq.client.connection import core as core_module
from saturnmq.client.connection import deadline as deadline_module
from saturnmq.client.connection.core import vip_address
from saturnmq.client.hooks import SendContext
from saturnmq.client.producer.send_request import Prepared
from saturnmq.errors import BrokerNotExist, GroupInUse, NotStarted, ReplyTimeout
from saturnmq.protocol.bodies import BrokerData, HeartbeatData, QueueData, TopicRouteData
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import decode_header
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import decode_batch, decode_properties, decode_record
from saturnmq.testing import BrokerFixture

Run = Callable[[Callable[[], Any]], Any]


def answer(code: int, remark: str = "scripted", **ext: str) -> Callable[[Command], Command]:
    return lambda command: command.reply(code, remark, ext=ext)


def no_response(command: Command) -> None:
    return None


def stored_as(code: int) -> Callable[[Command], Command]:
    return answer(code, "", msgId="0" * 32, queueId="0", queueOffset="3")


# requests on the wire


@pytest.mark.spec("PR-01", "PR-03", "PR-23", "PR-28", "PR-29")
async def test_send_writes_code_310_and_returns_a_receipt(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        receipt = await out.send("T", b"body", tag="t", keys=["k1", "k2"], properties={"a": "1"}, flag=7)
        (command,) = c.broker.of(310)
        header = decode_header(SendMessageV2, command.ext)
        properties = decode_properties(header.properties or "")
        assert properties == {
            "a": "1",
            "KEYS": "k1 k2",
            "TAGS": "t",
            "WAIT": "true",
            "UNIQ_KEY": receipt.message_id,
        }
        assert command.body == b"body" and command.language == 3 and command.version == 407
        ext = command.ext
        assert (ext["a"], ext["b"], ext["c"], ext["d"], ext["f"], ext["h"]) == ("g", "T", "TBW102", "4", "0", "7")
        assert (ext["j"], ext["k"], ext["m"], ext["n"]) == ("0", "false", "false", "b0")
        assert len(receipt.message_id) == 32 and receipt.message_id == receipt.message_id.upper()
        assert receipt.status is SendStatus.SEND_OK and receipt.durable is None
        assert receipt.queue == MessageQueue("T", "b0", int(ext["e"])) and receipt.offset == 0
        parse_offset_message_id(receipt.offset_message_id)


@pytest.mark.spec("PR-28", "PR-01")
async def test_send_request_has_the_fields_of_the_java_client(cluster: Any, vectors: Path) -> None:
    recorded = json.loads((vectors / "frames" / "send.compressed.json").read_text())
    java = next(f["header"] for f in recorded["frames"] if f["request_code"] == 310 and f["type"] == "request")
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.send("T", b"x" * 5000)
        (command,) = c.broker.of(310)
        assert set(command.ext) == set(java["extFields"]) | {"confirmation"}, (
            "an extension, which Apache's brokers ignore"
        )
        assert command.ext["f"] == java["extFields"]["f"] == "769"
        for name in "cdhjkm":
            assert command.ext[name] == java["extFields"][name]
        assert set(decode_properties(command.ext["i"])) == set(decode_properties(java["extFields"]["i"]))


@pytest.mark.spec("API-10")
async def test_only_sends_with_a_receipt_ask_for_the_confirmation(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.send_oneway("T", b"x")
        await out.send_prepared(Prepared("T", b"x", ("U",), "UNIQ_KEY\x01U"))
        assert not any("confirmation" in command.ext for command in await c.broker.wait_for(310, 2))
        await out.send_many("T", [b"x"])
        assert "confirmation" in c.broker.of(320)[0].ext


@pytest.mark.spec("PR-24")
async def test_body_from_4096_bytes_is_compressed_on_a_copy(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        small, large = bytearray(b"x" * 4095), bytearray(b"y" * 4096)
        await out.send("T", small)  # type: ignore[arg-type]
        await out.send("T", large)  # type: ignore[arg-type]
        plain, packed = c.broker.of(310)
        assert plain.ext["f"] == "0" and plain.body == small
        assert packed.ext["f"] == "769" and packed.body == zlib.compress(large, 5)
        assert bytes(large) == b"y" * 4096


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize(("kind", "flags"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
async def test_bodies_are_compressed_with_the_chosen_type_but_not_in_batches(
    cluster: Any, kind: str, flags: int
) -> None:
    body = b"much the same again and again. " * 5000
    async with cluster() as c, Client.from_url(f"rmq://{c.name_servers}?compress_type={kind}") as client:
        async with client.producer("g") as out:
            await out.send("T", body[:4095], shard_by=1)
            await out.send("T", body[:4096], shard_by=1)
            await out.send("T", body, shard_by=1)
            assert [int(command.ext["f"]) for command in c.broker.of(310)] == [0, flags, flags]
            packed = c.broker.of(310)[2].body
            assert packed == compressor(kind, 5)(body) and len(packed) < 10_000
            (receipt,) = await out.send_many("T", [body], shard_by=1)
            assert c.broker.of(320)[0].ext["f"] == "0"
        result = await client.puller().pull(receipt.queue, 0)
        assert [message.body for message in result.messages()] == [body[:4095], body[:4096], body, body]


@pytest.mark.spec("PR-24")
async def test_incompressible_body_is_sent_uncompressed(cluster: Any) -> None:
    body = random.Random(1).randbytes(4_194_304)  # the size limit: compressed it is 1.2 KB longer, which brokers reject
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.send("T", body)
        (sent,) = c.broker.of(310)
        assert sent.ext["f"] == "0" and sent.body == body


@pytest.mark.spec("PR-28")
async def test_send_without_smart_send_uses_code_10(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, smart_send=False) as client:
        async with client.producer("g") as out:
            await out.send("T", b"x")
        (command,) = c.broker.of(10)
        assert command.ext["topic"] == "T" and command.ext["bname"] == "b0"


@pytest.mark.spec("PR-25", "PR-27", "PR-23")
async def test_inner_send_moves_retry_counts_and_sets_transaction_flag(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("%RETRY%g")
        text = "UNIQ_KEY\x01U\x02RECONSUME_TIME\x012\x02MAX_RECONSUME_TIMES\x0116\x02TRAN_MSG\x01true"
        await out.send_prepared(Prepared("%RETRY%g", b"x", ("U",), text))
        (command,) = c.broker.of(310)
        assert (command.ext["j"], command.ext["l"], command.ext["f"]) == ("2", "16", "4")
        assert "RECONSUME" not in command.ext["i"]
        assert decode_properties(command.ext["i"])["UNIQ_KEY"] == "U", "one that is set is kept"


# names and lifecycle


@pytest.mark.spec("PR-04")
def test_invalid_producer_group_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="illegal characters"):
        Client(name_servers="h").producer("a b", max_in_flight=0)


@pytest.mark.spec("PR-05", "API-04")
async def test_send_outside_the_running_state_names_the_state(cluster: Any) -> None:
    async with cluster() as c:
        client = Client(name_servers=c.name_servers)
        out = client.producer("g")
        with pytest.raises(NotStarted, match="CREATE_JUST"):
            await out.send("T", b"x")
        with pytest.raises(NotStarted, match="CREATE_JUST"):
            await out.start()
        await asyncio.gather(client.start(), client.start())
        names = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("saturnmq ")]
        assert names and len(set(names)) == len(names), "both share one attempt"
        await asyncio.gather(out.start(), out.start())  # idempotent, unlike a second start in Apache's client
        await out.send("T", b"x")
        await out.stop()
        await out.stop()
        with pytest.raises(Closed, match="SHUTDOWN_ALREADY"):
            await out.send("T", b"x")
        with pytest.raises(Closed, match="SHUTDOWN_ALREADY"):
            await out.start()
        await client.stop()
        with pytest.raises(Closed):
            await client.start()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("saturnmq ")]


@pytest.mark.spec("PR-06", "API-06")
async def test_client_ids_are_unique_with_ip_instance_and_unit(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c:
        async with Client(name_servers=c.name_servers) as one, Client(name_servers=c.name_servers) as two:
            assert one.client_id != two.client_id
            ip, _, instance = one.client_id.partition("@")
            assert ip == "127.0.0.1"
            pid, _, chance = instance.partition("#")
            assert pid == str(os.getpid()) and 0 <= int(chance) < 2**64
        monkeypatch.setattr("secrets.randbits", lambda bits: bits)
        async with Client(name_servers=c.name_servers) as three:
            assert three.client_id.endswith("#64"), "64 random bits"
        monkeypatch.undo()
        async with Client(name_servers=c.name_servers, instance="i1", unit="u1") as named:
            assert named.client_id == "127.0.0.1@i1@u1"


@pytest.mark.spec("PR-06")
async def test_second_producer_of_a_group_on_one_client_fails(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g"):
        with pytest.raises(GroupInUse, match="has been created before"):
            await client.producer("g").start()
        async with Client(name_servers=c.name_servers) as other, other.producer("g"):
            pass


@pytest.mark.spec("PR-07", "HB-01", "HB-02")
async def test_producer_start_polls_default_topic_and_heartbeats_to_masters(cluster: Any) -> None:
    async with cluster() as c:
        both = c.route()
        both.broker_datas[0].broker_addrs[1] = c.ns[0].address  # a stand-in slave that records requests
        c.add("TBW102", both)
        async with Client(name_servers=c.name_servers, heartbeat_ms=30) as client, client.producer("g"):
            await c.broker.wait_for(34, 2)
            body = json.loads(c.broker.of(34)[0].body or b"")
            assert body["clientID"] == client.client_id and not body.get("consumerDataSet")
            assert [entry["groupName"] for entry in body["producerDataSet"]] == ["CLIENT_INNER_PRODUCER", "g"]
            assert any(r.ext["topic"] == "TBW102" for r in c.ns[0].of(105))
            assert not c.ns[0].of(34), "a slave gets no heartbeat of producers"


@pytest.mark.spec("HB-01")
async def test_producer_start_sends_a_heartbeat_at_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "FIRST_HEARTBEAT_MS", 3_600_000)
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("one") as out:
        await out.send("T", b"x")
        await c.broker.wait_for(34)
        await client._core.heartbeat()
        count = len(c.broker.of(34))
        async with client.producer("two"):
            beat = (await c.broker.wait_for(34, count + 1))[count]
            groups = [entry["groupName"] for entry in json.loads(beat.body or b"")["producerDataSet"]]
            assert groups == ["CLIENT_INNER_PRODUCER", "one", "two"]


@pytest.mark.spec("HB-02")
async def test_client_without_groups_sends_no_heartbeat(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, heartbeat_ms=10) as client:
        queue = (await client.puller().queues("T"))[0]
        await client.puller().max_offset(queue)
        await client._core.heartbeat()
        assert not c.broker.of(34)


@pytest.mark.spec("PR-34")
async def test_producer_stop_unregisters_from_every_broker(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        out = client.producer("g")
        await out.start()
        for _ in range(8):
            await out.send("T", b"x")
        await out.stop()
        for broker in c.brokers.values():
            (command,) = broker.of(35)
            assert command.ext == {"clientID": client.client_id, "producerGroup": "g"}
        await client.puller().queues("T")  # the client still works


@pytest.mark.spec("API-05")
async def test_one_connection_per_address_and_user_code_runs_on_the_loop(cluster: Any) -> None:
    threads: set[int] = set()

    class Where(SendHook):
        def before(self, context: SendContext) -> None:
            threads.add(threading.get_ident())

    def select(queues: Any, _: Any) -> MessageQueue:
        threads.add(threading.get_ident())
        return queues[0]  # type: ignore[no-any-return]

    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        done = asyncio.Event()

        @client.listener("T", group="g", start="first")
        async def handle(message: Any) -> None:
            threads.add(threading.get_ident())
            done.set()

        running = asyncio.ensure_future(client.run())
        async with client.producer("p", hooks=[Where()]) as one, client.producer("q") as two:
            await asyncio.gather(*(one.send("T", b"x") for _ in range(20)), two.send("T", b"x", selector=select))
            await client.puller().max_offset(MessageQueue("T", "b0", 0))
            await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(c.broker.connections) == 1 and len(c.ns[0].connections) == 1
        assert threads == {threading.get_ident()}


@pytest.mark.spec("API-05")
def test_use_from_another_loop_raises_naming_saturnmq_sync(cluster: Any) -> None:
    client = Client(name_servers="127.0.0.1:1")
    out = client.producer("g")
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(client.start())
        first.run_until_complete(out.start())

        async def elsewhere() -> None:
            with pytest.raises(WrongLoop, match=r"saturnmq\.sync"):
                await out.send("T", b"x")

        asyncio.run(elsewhere())
        first.run_until_complete(client.stop())
    finally:
        first.close()


# validation before any I/O


@pytest.mark.spec("PR-09", "API-08", "API-09")
async def test_invalid_messages_are_rejected_before_any_io(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, body_bytes_max=10) as client:
        async with client.producer("g") as out, client.producer("j", codec=json_codec()) as json_out:
            for topic, body in (
                ("", b"x"),
                ("a" * 128, b"x"),
                ("SELF_TEST_TOPIC", b"x"),
                ("T", b""),
                ("T", b"x" * 11),
            ):
                with pytest.raises(MessageRefused) as caught:
                    await out.send(topic, body)
                assert caught.value.code == 13
            with pytest.raises(MessageRefused, match="used by system"):
                await out.send("T", b"x", properties={"UNIQ_KEY": "mine"})
            with pytest.raises(MessageRefused, match="32767"):
                await out.send("T", b"x", properties={"a": "v" * 32767})
            with pytest.raises(EncodeError, match="str_codec"):
                await out.send("T", "text")  # type: ignore[arg-type]
            with pytest.raises(EncodeError):
                await out.send("T", None)  # type: ignore[arg-type]
            with pytest.raises(EncodeError):
                await json_out.send("T", object())
            assert not c.broker.of(310)


# attempts


@pytest.mark.spec("PR-15", "PR-16", "PR-14", "API-29")
@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205, 2, 215])
async def test_retryable_codes_are_retried_on_another_broker(cluster: Any, code: int) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers, latency_fault=False) as client:
        async with client.producer("g") as out:
            c.brokers["b0"].script[310] = answer(code)
            for _ in range(8):
                assert (await out.send("T", b"x")).queue.broker_name == "b1"
            assert c.brokers["b0"].of(310), "some attempts began at b0"


@pytest.mark.spec("PR-14")
async def test_round_robin_starts_at_a_random_queue(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        first = set()
        for n in range(40):
            async with client.producer(f"g{n}") as out:
                first.add((await out.send("T", b"x")).queue.queue_id)
        assert len(first) > 1


@pytest.mark.spec("PR-16")
@pytest.mark.parametrize("code", [13, 3, 26, 99])
async def test_other_codes_are_not_retried(cluster: Any, code: int) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        for broker in c.brokers.values():
            broker.script[310] = answer(code, "no way")
        with pytest.raises(ResponseError, match="no way") as caught:
            await out.send("T", b"x")
        assert caught.value.code == code and caught.value.broker is not None
        assert sum(len(broker.of(310)) for broker in c.brokers.values()) == 1


@pytest.mark.spec("PR-16")
async def test_retry_codes_are_configurable(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("java", retry_codes={1}) as out:
            c.broker.script[310] = [answer(2)]
            with pytest.raises(ResponseError) as caught:
                await out.send("T", b"x")
            assert caught.value.code == 2 and len(c.broker.of(310)) == 1


@pytest.mark.spec("PR-15", "PR-18", "API-25", "API-30")
async def test_exhausted_attempts_raise_send_failed_with_details(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.broker.script[310] = answer(1, "service not available now")
        with pytest.raises(SendFailed) as caught:
            await out.send("T", b"x")
        error = caught.value
        assert str(error).startswith("Send [3] times, still failed, cost [")
        assert "Topic: T, BrokersSent: [b0, b0, b0], group: g" in str(error) and "service not available now" in str(
            error
        )
        assert (error.code, error.attempts, error.topic, error.group) == (1, 3, "T", "g")
        assert error.retryable and not error.outcome_unknown
        assert isinstance(error, SaturnError) and error.broker == error.__cause__.broker  # type: ignore[union-attr]
        assert f"cost [{error.elapsed_ms}]ms" in str(error)
        assert isinstance(error.__cause__, ResponseError)
        assert len(c.broker.of(310)) == 3
        ids = {decode_properties(command.ext["i"])["UNIQ_KEY"] for command in c.broker.of(310)}
        assert len(ids) == 1, "all attempts keep one unique id (API-25)"


@pytest.mark.spec("PR-15", "PR-18", "API-28", "API-25", "UPG-07", "API-09")
async def test_send_timeout_is_shared_by_all_attempts(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")
        c.brokers["b0"].script[310] = no_response
        loop = asyncio.get_running_loop()
        for _ in range(2):
            begin = loop.time()
            assert (await out.send("T", b"x", timeout=2.4)).queue.broker_name == "b1", "a share was left for b1"
            assert loop.time() - begin < 2.4
        c.brokers["b1"].script[310] = no_response
        begin = loop.time()
        with pytest.raises(SendFailed) as caught:
            await out.send("T", b"x", timeout=0.3)
        assert 0.2 < loop.time() - begin < 10
        assert caught.value.code == 10002 and caught.value.outcome_unknown and "unknown" in str(caught.value)
        assert caught.value.attempts == 3, "equal shares of the time"


@pytest.mark.spec("API-25")
async def test_refused_connections_after_a_timeout_keep_the_unknown_outcome(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")
        c.broker.script[310] = no_response
        sending = asyncio.ensure_future(out.send("T", b"x", timeout=3))
        await c.broker.wait_for(310, 2)
        await c.broker.stop()
        with pytest.raises(SendFailed, match="The outcome is unknown") as caught:
            await sending
        assert isinstance(caught.value.__cause__, ConnectFailed) and not caught.value.__cause__.sent
        assert caught.value.outcome_unknown


@pytest.mark.parametrize(
    "options", [{"shard_by": "k"}, {"selector": lambda queues, _: queues[0]}], ids=["key", "selector"]
)
async def test_route_lookup_for_a_fixed_queue_ends_at_the_timeout(cluster: Any, options: dict[str, Any]) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, api_timeout_ms=30_000) as client:
        async with client.producer("g") as out:
            c.ns[0].script[105] = no_response
            begin = asyncio.get_running_loop().time()
            with pytest.raises(CallTimeout, match="no route of topic T"):
                await out.send("T", b"x", timeout=0.2, **options)
            with pytest.raises(CallTimeout, match="no route of topic T"):
                await out.send_many("T", [b"x"], timeout=0.2, shard_by="k")
            assert asyncio.get_running_loop().time() - begin < 10
            assert c.broker.of(310) == c.broker.of(320) == []


@pytest.mark.spec("API-28")
async def test_broker_address_lookup_ends_at_the_send_timeout(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, api_timeout_ms=30_000) as client:
        async with client.producer("g") as out:
            await out.queues("T")
            c.ns[0].script[105] = no_response
            loop = asyncio.get_running_loop()
            unknown = MessageQueue("T", "b9", 0)
            begin = loop.time()
            with pytest.raises(SendFailed, match=r"The broker\[b9\] not exist: no route") as caught:
                await out.send("T", b"x", queue=unknown, timeout=0.2)
            assert (caught.value.code, caught.value.outcome_unknown) == (10003, False)
            with pytest.raises(BrokerNotExist, match=r"The broker\[b9\] not exist: no route"):
                await out.send_oneway("T", b"x", queue=unknown, timeout=0.2)
            assert loop.time() - begin < 10


async def test_address_lookup_counts_against_the_attempts_timeout(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "FIRST_ROUTE_POLL_MS", 3_600_000)  # a poll would find the broker first
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("T", c.route("b0"))
        await out.queues("T")
        c.add("T", c.route("b0", "b1"))

        def late(command: Command) -> Any:
            clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 10)
            monkeypatch.setattr(deadline_module, "time", clock)
            return c.ns[0].builtin(command)

        c.ns[0].script[105] = late
        timeouts: list[int] = []
        call = client._core.remote.call

        async def noted(address: str, command: Command, timeout_ms: int) -> Command:
            if command.code == 310:
                timeouts.append(timeout_ms)
            return await call(address, command, timeout_ms)

        client._core.remote.call = noted  # type: ignore[method-assign]
        await out.send("T", b"x", queue=MessageQueue("T", "b1", 0), timeout=30)
        assert len(timeouts) == 1 and 10_000 < timeouts[0] <= 20_000, "the lookup took 10 s of 30 s"


@pytest.mark.spec("API-28")
async def test_route_refresh_leaves_time_for_the_next_attempt(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, api_timeout_ms=30_000) as client:
        async with client.producer("g") as out:
            await out.queues("T")
            c.ns[0].script[105] = no_response
            c.broker.script[310] = [answer(17)]
            receipt = await out.send("T", b"x", timeout=3)
            assert receipt.status is SendStatus.SEND_OK and len(c.broker.of(310)) == 2
            c.broker.script[310] = answer(17)
            begin = asyncio.get_running_loop().time()
            with pytest.raises(SendFailed) as caught:
                await out.send("T", b"x", timeout=0.3)
            assert caught.value.code == 17 and asyncio.get_running_loop().time() - begin < 10


async def test_missing_route_on_a_retry_keeps_the_unknown_outcome(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")

        def stored_but_not_answered(command: Command) -> None:
            c.broker.on_310(command)
            c.ns[0].script[105] = no_response
            client._core.routes._routes.clear()

        c.broker.script[310] = stored_but_not_answered
        with pytest.raises(SendFailed, match="The outcome is unknown") as caught:
            await out.send("T", b"x", timeout=0.9)
        assert (caught.value.attempts, caught.value.brokers, caught.value.outcome_unknown) == (2, ["b0"], True)
        assert isinstance(caught.value.__cause__, CallTimeout) and "no route of topic T" in str(caught.value)


@pytest.mark.spec("PR-16", "PR-18", "UX-07")
async def test_refused_connection_fails_over_or_names_the_broker(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")
        address = c.brokers["b0"].address
        await c.brokers["b0"].stop()
        for _ in range(4):
            assert (await out.send("T", b"x")).queue.broker_name == "b1"
        await c.brokers["b1"].stop()
        with pytest.raises(SendFailed) as caught:
            await out.send("T", b"x")
        assert caught.value.code == 10001
        assert "topic T is on b" in str(caught.value) and "not reachable from here. Set brokerIP1" in str(caught.value)
        assert address in str(caught.value) or c.brokers["b1"].address in str(caught.value)


@pytest.mark.spec("PR-17", "UPG-14")
@pytest.mark.parametrize(
    ("code", "status"),
    [(10, SendStatus.FLUSH_DISK_TIMEOUT), (12, SendStatus.FLUSH_SLAVE_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE)],
)
async def test_stored_but_not_durable_is_a_send_status(cluster: Any, code: int, status: SendStatus) -> None:
    async with cluster(2) as c:
        for broker in c.brokers.values():
            broker.script[310] = stored_as(code)
        async with Client(name_servers=c.name_servers) as client, client.producer("g") as out:
            receipt = await out.send("T", b"x")
            assert receipt.status is status and receipt.durable is False and receipt.offset == 3
            assert sum(len(broker.of(310)) for broker in c.brokers.values()) == 1
        async with (
            Client(name_servers=c.name_servers, retry_not_stored=True) as client,
            client.producer("g") as out,
        ):
            assert (await out.send("T", b"x")).status is status, "three attempts, none better"
            assert sum(len(broker.of(310)) for broker in c.brokers.values()) == 4
            for broker in c.brokers.values():
                broker.script[310] = [stored_as(code)]
            assert (await out.send("T", b"x")).status is SendStatus.SEND_OK


@pytest.mark.spec("PR-19", "API-29")
async def test_concurrent_sends_fail_over_on_transport_errors(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", max_in_flight=3) as out:
            await out.queues("T")
            await c.brokers["b0"].stop()
            receipts = await asyncio.gather(*(out.send("T", b"x") for _ in range(50)))
            assert {receipt.queue.broker_name for receipt in receipts} == {"b1"}
            assert len({receipt.message_id for receipt in receipts}) == 50


@pytest.mark.spec("PR-19", "API-22")
async def test_in_flight_limit_blocks_sends_and_skips_cancelled_waiters(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, attempts=1) as client:
        async with client.producer("g", max_in_flight=2) as out:
            held: list[asyncio.Future[Command]] = []

            def hold(command: Command) -> Any:
                future = asyncio.get_running_loop().create_future()
                held.append(future)
                future.add_done_callback(lambda _: None)
                return later(future, command)

            async def later(future: asyncio.Future[None], command: Command) -> Command:
                await future
                return c.broker.on_310(command)

            c.broker.script[310] = hold
            sends = [asyncio.ensure_future(out.send("T", b"%d" % n)) for n in range(5)]
            await c.broker.wait_for(310, 2)
            with pytest.raises(SendFailed, match="in flight"):
                await out.send("T", b"late", timeout=0.05)
            assert len(c.broker.of(310)) == 2, "no more than max_in_flight are under way"
            sends[2].cancel()
            for future in held:
                future.set_result(None)
            await c.broker.wait_for(310, 4)
            for future in held[2:]:
                future.set_result(None)
            done = await asyncio.gather(*sends, return_exceptions=True)
            assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, False, True, False, False]


# queues and addresses


@pytest.mark.spec("API-12", "PR-02")
@pytest.mark.parametrize("kind", ["one-way", "transaction", "request"])
async def test_other_kinds_of_send_go_to_the_chosen_queue(cluster: Any, kind: str) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=lambda message: TransactionState.UNKNOWN) as out:
            queues = await out.queues("T")
            keyed = (await out.send("T", b"x", shard_by="k")).queue
            choices: list[tuple[dict[str, Any], MessageQueue]] = [
                ({"queue": queues[1]}, queues[1]),
                ({"shard_by": "k"}, keyed),
            ]
            if kind != "transaction":
                choices.append(({"selector": lambda queues, arg: queues[arg], "selector_arg": -1}, queues[-1]))
            for options, queue in choices:
                c.broker.requests.clear()
                for _ in queues:
                    match kind:
                        case "one-way":
                            await out.send_oneway("T", b"x", **options)
                        case "transaction":
                            async with out.transaction("T", b"x", **options):
                                pass
                        case _:
                            with pytest.raises(ReplyTimeout):
                                await out.request("T", b"x", timeout=0.3, **options)
                commands = await c.broker.wait_for(310, len(queues))
                assert {int(command.ext["e"]) for command in commands} == {queue.queue_id}


@pytest.mark.spec("PR-02", "PR-21", "API-12", "API-09")
async def test_send_to_a_chosen_queue_stays_on_it(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        queue = (await out.queues("T"))[5]
        assert (await out.send("T", b"x", queue=queue)).queue == queue
        picked = await out.send("T", b"x", selector=lambda queues, arg: queues[arg], selector_arg=6)
        assert picked.queue == (await out.queues("T"))[6]
        assert (await out.send("T", b"x", shard_by="k")).queue == (await out.send("T", b"y", shard_by="k")).queue
        for options in ({"queue": queue}, {"shard_by": "k"}, {"selector": lambda queues, _: queues[0]}):
            for broker in c.brokers.values():
                broker.requests.clear()
                broker.script[310] = answer(1)
            with pytest.raises(SendFailed) as caught:
                await out.send("T", b"x", **options)
            assert caught.value.attempts == 3 and caught.value.code == 1
            assert len(set(caught.value.brokers)) == 1
            asked = [(name, command.ext["e"]) for name, broker in c.brokers.items() for command in broker.of(310)]
            assert len(asked) == 3 and len(set(asked)) == 1, "each attempt at the same queue"


@pytest.mark.spec("PR-21")
async def test_invalid_queue_or_selector_is_rejected(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        with pytest.raises(MessageRefused, match="not equal"):
            await out.send("T", b"x", queue=MessageQueue("U", "b0", 0))
        with pytest.raises(MessageRefused, match="ZeroDivisionError"):
            await out.send("T", b"x", selector=lambda queues, _: queues[1 // 0])
        with pytest.raises(MessageRefused, match="no queue"):
            await out.send("T", b"x", selector=lambda queues, _: None)  # type: ignore[arg-type,return-value]
        assert not c.broker.of(310)


@pytest.mark.spec("PR-20", "PR-02")
async def test_oneway_send_waits_for_no_answer(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.broker.script[310] = answer(14)
        message_id = await out.send_oneway("T", b"x", tag="t")
        (command,) = await c.broker.wait_for(310)
        assert command.is_oneway and decode_properties(command.ext["i"])["UNIQ_KEY"] == message_id
        for options in (
            {"queue": MessageQueue("T", "b0", 2)},
            {"selector": lambda queues, arg: queues[arg], "selector_arg": 2},
        ):
            await out.send_oneway("T", b"x", **options)
        assert [one.ext["e"] for one in (await c.broker.wait_for(310, 3))[1:]] == ["2", "2"]
        await c.broker.stop()
        while client._core.remote.is_connected(c.broker.address):
            await asyncio.sleep(0)
        with pytest.raises(Exception, match="cannot connect to"):
            await out.send_oneway("T", b"x")
        assert len(c.broker.of(310)) == 3


@pytest.mark.spec("PR-22")
async def test_master_of_an_unknown_broker_is_found_by_one_more_lookup(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers, route_poll_ms=100_000) as client:
        c.add("T", c.route("b0"))
        await client._core.routes.refresh("T")
        asked = len(c.ns[0].of(105))
        with pytest.raises(BrokerNotExist, match=r"The broker\[b1\] not exist"):
            await client._core.master_address("T", "b1")
        assert len(c.ns[0].of(105)) == asked + 1
        c.add("T", c.route("b0", "b1"))
        assert await client._core.master_address("T", "b1") == c.brokers["b1"].address
        assert len(c.ns[0].of(105)) == asked + 2


@pytest.mark.spec("PR-22", "PR-18")
async def test_unknown_broker_triggers_route_refreshes(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "FIRST_ROUTE_POLL_MS", 3_600_000)  # a poll would also be counted
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")
        asked: list[str] = []
        refresh = client._core.routes.refresh

        async def noted(topic: str) -> Any:
            asked.append(topic)
            return await refresh(topic)

        client._core.routes.refresh = noted  # type: ignore[method-assign, assignment]
        with pytest.raises(SendFailed, match=r"The broker\[unknown\] not exist") as caught:
            await out.send("T", b"x", queue=MessageQueue("T", "unknown", 0))
        assert caught.value.code == 10003 and isinstance(caught.value.__cause__, BrokerNotExist)
        assert set(asked) == {"T"} and len(asked) == caught.value.attempts < 20, "with back-off"
        c.add(
            "T",
            c.route().__class__(
                c.route().queue_datas, [*c.route().broker_datas, BrokerData("c", "new", {0: c.broker.address})]
            ),
        )
        assert (await out.send("T", b"x", queue=MessageQueue("T", "new", 0))).queue.broker_name == "new"


@pytest.mark.spec("PR-30", "API-29")
async def test_failed_broker_is_avoided_by_later_sends(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.brokers["b0"].script[310] = answer(14)
        for _ in range(20):
            await out.send("T", b"x")
        assert len(c.brokers["b0"].of(310)) == 1
        for seconds, times in ((29, 1), (2, 2)):
            await asyncio.sleep(seconds)  # poll: virtual time
            for _ in range(20):
                await out.send("T", b"x")
            assert len(c.brokers["b0"].of(310)) == times, "for at most 30 s"
    async with cluster(2) as c, Client(name_servers=c.name_servers, latency_fault=False) as client:
        async with client.producer("g") as out:
            c.brokers["b0"].script[310] = answer(14)
            for _ in range(20):
                await out.send("T", b"x")
            assert len(c.brokers["b0"].of(310)) >= 3, "switched off, avoidance lasts for one message only"


@pytest.mark.spec("PR-31")
async def test_vip_channel_uses_the_port_minus_two(cluster: Any) -> None:
    assert vip_address("h:10911") == "h:10909" and vip_address("[::1]:10911") == "[::1]:10909"
    async with cluster() as c, Client(name_servers=c.name_servers, vip_channel=True) as client:
        host, _, port = c.broker.address.rpartition(":")
        c.add("V", TopicRouteData([QueueData("b0", 1, 1, 6)], [BrokerData("c", "b0", {0: f"{host}:{int(port) + 2}"})]))
        async with client.producer("g") as out:
            await out.send("V", b"x")
        assert len(c.broker.of(310)) == 1


@pytest.mark.spec("PR-32")
async def test_namespace_is_added_on_the_wire_and_stripped_in_results(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, namespace="NS") as client:
        c.add("NS%T")
        async with client.producer("g") as out:
            receipt = await out.send("T", b"x")
            (command,) = c.broker.of(310)
            assert (command.ext["a"], command.ext["b"]) == ("NS%g", "NS%T")
            assert decode_properties(command.ext["i"])["INSTANCE_ID"] == "NS"
            assert receipt.queue.topic == "T" and (await out.queues("T"))[0].topic == "T"
            assert (await out.send("T", b"x", queue=receipt.queue)).queue == receipt.queue
            puller = client.puller()
            (first, *_) = (await puller.pull(receipt.queue, 0)).messages()
            assert first.topic == "T" and first.queue.topic == "T" and first.record.topic == "NS%T"
            await puller.commit("cg", receipt.queue, 1)
            assert ("NS%cg", "NS%T", receipt.queue.queue_id) in c.broker.offsets
            async with client.consumer("cg") as inbox:
                await inbox.subscribe("T")
                (group,) = HeartbeatData.decode(c.broker.of(34)[-1].body).consumer_data_set
                assert group.group_name == "NS%cg"
                assert {entry.topic for entry in group.subscription_data_set} == {"NS%T", "%RETRY%NS%cg"}


@pytest.mark.spec("PR-09")
async def test_namespace_makes_no_blank_topic_legal(cluster: Any) -> None:
    """The name that is sent begins with the namespace, so it is not blank."""
    async with cluster() as c, Client(name_servers=c.name_servers, namespace="NS") as client:
        async with client.producer("g") as out:
            for topic in ("", " "):
                with pytest.raises(MessageRefused, match="The specified topic is blank"):
                    await out.send(topic, b"x")
        assert c.broker.of(310) == []


# hooks


@pytest.mark.spec("PR-26")
async def test_send_hooks_may_veto_and_see_every_outcome(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, Any]] = []

    class Recorder(SendHook):
        veto = False

        def check(self, context: SendContext) -> None:
            if self.veto:
                raise PermissionError("not today")

        def before(self, context: SendContext) -> None:
            seen.append(("before", context.topic))
            raise RuntimeError("logged only")

        def after(self, context: SendContext) -> None:
            seen.append(("after", context.receipt or type(context.error)))
            raise RuntimeError("logged only")

    hook = Recorder()
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers) as client,
        client.producer("g", hooks=[hook]) as out,
    ):
        receipt = await out.send("T", b"x")
        assert seen == [("before", "T"), ("after", receipt)]
        assert [record.getMessage() for record in caplog.records if "hook" in record.getMessage()] == [
            f"send hook failed hook=Recorder stage={stage}" for stage in ("before", "after")
        ]
        seen.clear()
        c.broker.script[310] = [answer(14)]
        await out.send("T", b"x")
        assert [stage for stage, _ in seen] == ["before", "after", "before", "after"]
        assert issubclass(seen[1][1], ResponseError)
        hook.veto = True
        sent = len(c.broker.of(310))
        with pytest.raises(PermissionError, match="not today"):
            await out.send("T", b"x")
        assert len(c.broker.of(310)) == sent
        hook.veto = False
        seen.clear()
        c.broker.script[310] = lambda command: None  # never answers
        with pytest.raises(SaturnError):
            await out.send("T", b"x", timeout=0.2)
        await c.broker.stop()
        with pytest.raises(SaturnError):
            await out.send("T", b"x", timeout=0.2)
        outcomes = [outcome for stage, outcome in seen if stage == "after"]
        assert len(outcomes) * 2 == len(seen) and {CallTimeout, ConnectFailed} <= set(outcomes)


class Adding(SendHook):
    """Sets one property in each phase; attempts are numbered."""

    def __init__(self) -> None:
        self.attempts = 0
        self.after_saw: list[str] = []

    def check(self, context: SendContext) -> None:
        context.set_property("checked", "yes")

    def before(self, context: SendContext) -> None:
        self.attempts += 1
        context.set_property("traceparent", f"span-{self.attempts}")

    def after(self, context: SendContext) -> None:
        self.after_saw.append(decode_properties(context.properties)["traceparent"])
        context.set_property("late", "has no effect")


@pytest.mark.spec("PR-26")
async def test_hook_properties_are_sent(cluster: Any) -> None:
    hook = Adding()
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers) as client,
        client.producer("g", hooks=[hook], check=lambda message: TransactionState.UNKNOWN) as out,
    ):
        await out.send("T", b"x", tag="t", keys="k", properties={"traceparent": "mine", "own": "1"})
        await out.send_oneway("T", b"x")
        await c.broker.wait_for(310, 2)
        c.broker.script[310] = [answer(14)]
        await out.send("T", b"x")
        async with out.transaction("T", b"x"):
            pass
        sent = [decode_properties(command.ext["i"]) for command in c.broker.of(310)]
        assert [properties["traceparent"] for properties in sent] == [f"span-{n}" for n in range(1, 6)]
        assert all(properties["checked"] == "yes" and "late" not in properties for properties in sent)
        first = c.broker.of(310)[0].ext["i"]
        assert first.count("traceparent") == 1 and (sent[0]["own"], sent[0]["TAGS"], sent[0]["KEYS"]) == (
            "1",
            "t",
            "k",
        )
        assert sent[4]["TRAN_MSG"] == "true" and c.broker.of(310)[4].ext["f"] == "4"
        assert hook.after_saw == [f"span-{n}" for n in range(1, 6)]
        await out.send_many("T", [b"a", b"b"])
        (batch,) = c.broker.of(320)
        assert decode_properties(batch.ext["i"]) == {"WAIT": "true", "checked": "yes", "traceparent": "span-6"}


@pytest.mark.spec("PR-26", "SPR-08")
@pytest.mark.parametrize(
    ("name", "value"), [("UNIQ_KEY", "x"), ("", "x"), ("a", " "), ("a\x01", "x"), ("a", "b\x02"), ("a", "v" * 40_000)]
)
async def test_hook_property_is_validated_like_a_send_property(
    cluster: Any, name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(SendHook):
        def before(self, context: SendContext) -> None:
            context.set_property(name, value)

    class Forbids(SendHook):
        def check(self, context: SendContext) -> None:
            context.set_property(name, value)

    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", hooks=[Wrong()]) as out, client.producer("h", hooks=[Forbids()]) as refused:
            await out.send("T", b"x")
            (command,) = c.broker.of(310)
            assert decode_properties(command.ext["i"]).keys() == {"UNIQ_KEY", "WAIT"}
            assert "send hook failed hook=Wrong stage=before" in caplog.text
            for send in (refused.send, refused.send_oneway):
                with pytest.raises(MessageRefused):
                    await send("T", b"x")
            assert len(c.broker.of(310)) == 1


@pytest.mark.spec("PR-26", "BAT-04")
def test_hook_properties_reach_the_consumer(saturn_broker: BrokerFixture, saturn_topic: str) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.producer("g", hooks=[Adding()]) as out:
            await out.send(saturn_topic, b"1", shard_by=1)
            await out.send_many(
                saturn_topic, [Outgoing(value=b"2", properties={"traceparent": "mine"}), b"3"], shard_by=1
            )

    asyncio.run(work())
    found = {message.body: message.properties["traceparent"] for message in saturn_broker.published(saturn_topic)}
    assert found == {b"1": "span-1", b"2": "span-2", b"3": "span-2"}


# batches


@pytest.mark.spec("BAT-01", "BAT-03", "API-11", "PR-23", "PR-24")
async def test_send_many_is_one_request_with_a_receipt_per_message(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", codec=str_codec()) as out:
            values = [Outgoing(value=f"m{n}", tag="odd" if n % 2 else None, keys=[f"k{n}"], flag=n) for n in range(10)]
            receipts = await out.send_many("T", [*values, "z" * 5000], tag="even")
            (command,) = c.broker.of(320)
            assert command.ext["m"] == "true" and command.ext["f"] == "0" and command.ext["i"] == "WAIT\x01true"
            items = decode_batch(command.body or b"")
            assert [entry.body.decode() for entry in items] == [*(f"m{n}" for n in range(10)), "z" * 5000]
            properties = [decode_properties(entry.properties_raw) for entry in items]
            assert [entry["TAGS"] for entry in properties] == ["even", "odd"] * 5 + ["even"]
            assert [entry["UNIQ_KEY"] for entry in properties] == [receipt.message_id for receipt in receipts]
            assert [receipt.offset for receipt in receipts] == list(range(11))
            assert len({receipt.offset_message_id for receipt in receipts}) == 11


@pytest.mark.spec("BAT-01", "BAT-02", "API-11")
async def test_send_many_splits_by_size_and_topic_and_rejects_an_empty_list(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, body_bytes_max=1000) as client:
        c.add("U")
        async with client.producer("g") as out:
            with pytest.raises(MessageRefused, match="at least one"):
                await out.send_many("T", [])
            with pytest.raises(MessageRefused):
                await out.send_many("T", [b"ok", b""])
            assert not c.broker.of(320)
            values: list[Any] = [b"x" * 300] * 5
            values.insert(2, Outgoing(value=b"other", topic="U"))
            receipts = await out.send_many("T", values)
            assert [receipt.queue.topic for receipt in receipts] == ["T", "T", "U", "T", "T", "T"]
            assert all(len(command.body or b"") <= 1000 for command in c.broker.of(320))
            assert len(c.broker.of(320)) == 4


@pytest.mark.spec("API-11", "BAT-03")
async def test_send_many_reports_partial_failure_and_retries_batches(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("U")
        c.broker.script[320] = lambda cmd: cmd.reply(13, "no") if cmd.ext["b"] == "U" else c.broker.on_320(cmd)
        with pytest.raises(PartialSend) as caught:
            await out.send_many("T", [b"a", Outgoing(value=b"b", topic="U"), b"c"])
        assert [index for index, _ in caught.value.receipts] == [0, 2]
        assert [(index, error.code) for index, error in caught.value.failed] == [(1, 13)]
        c.broker.script[320] = [answer(14)]
        assert len(await out.send_many("T", [b"a", b"b"])) == 2


@pytest.mark.spec("BAT-03")
async def test_oneway_batches_are_written_without_waiting(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("U")
        c.broker.script[320] = lambda command: None  # no answer: a call that waited for one would time out
        values = [b"a", Outgoing(value=b"b", topic="U", tag="t"), b"x" * 5000]
        ids = await out.send_many_oneway("T", values, tag="all", shard_by="k")
        first, second = await c.broker.wait_for(320, 2)
        for command in (first, second):
            assert command.is_oneway and command.ext["m"] == "true" and command.ext["f"] == "0"
            assert "confirmation" not in command.ext
        assert (first.ext["b"], second.ext["b"]) == ("T", "U")
        items = decode_batch(first.body or b"") + decode_batch(second.body or b"")
        properties = [decode_properties(item.properties_raw) for item in items]
        assert [item.body for item in items] == [b"a", b"x" * 5000, b"b"], "in order, not compressed"
        assert [entry["UNIQ_KEY"] for entry in properties] == [ids[0], ids[2], ids[1]]
        assert [entry["TAGS"] for entry in properties] == ["all", "all", "t"]


@pytest.mark.spec("BAT-03", "API-12")
async def test_oneway_batches_use_all_queues_and_refuse_before_any_write(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, body_bytes_max=1000) as client:
        async with client.producer("g") as out:
            queues = len(await out.queues("T"))
            await out.send_many_oneway("T", [b"x" * 600] * queues)
            commands = await c.broker.wait_for(320, queues)
            assert {int(command.ext["e"]) for command in commands} == set(range(queues))
            chosen = (await out.queues("T"))[2]
            keyed = (await out.send("T", b"x", shard_by="k")).queue
            for options, queue in (({"queue": chosen}, chosen), ({"shard_by": "k"}, keyed)):
                assert {receipt.queue for receipt in await out.send_many("T", [b"x" * 600] * queues, **options)} == {
                    queue
                }
                c.broker.requests.clear()
                await out.send_many_oneway("T", [b"x" * 600] * 3, **options)
                commands = await c.broker.wait_for(320, 3)
                assert {int(command.ext["e"]) for command in commands} == {queue.queue_id}
            c.broker.requests.clear()
            for values in ([], [b"ok", b""], [b"ok", b"x" * 1001]):
                with pytest.raises((MessageRefused, ResponseError)):
                    await out.send_many_oneway("T", values)
            assert not c.broker.of(320)


@pytest.mark.spec("BAT-03")
async def test_oneway_batch_that_cannot_be_written_says_how_many_were(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, attempts=1) as client:
        async with client.producer("g") as out:
            with pytest.raises(RouteNotFound) as caught:
                await out.send_many_oneway("T", [b"a", b"b", Outgoing(value=b"c", topic="Missing")])
            assert "2 of 3 messages were written before" in caught.value.__notes__
            assert len(await c.broker.wait_for(320)) == 1


@pytest.mark.spec("BAT-03", "BAT-04")
def test_oneway_batch_is_stored_whole_by_a_real_broker(saturn_broker: BrokerFixture, saturn_topic: str) -> None:
    async def work() -> list[str]:
        async with Client.from_url(saturn_broker.url) as client, client.producer("g") as out:
            ids = await out.send_many_oneway(saturn_topic, [b"%d" % n for n in range(50)], shard_by=1)
            await out.send(saturn_topic, b"last", shard_by=1)
            return ids

    ids = asyncio.run(work())
    stored = saturn_broker.published(saturn_topic)
    assert [message.body for message in stored] == [b"%d" % n for n in range(50)] + [b"last"]
    assert [message.message_id for message in stored[:50]] == ids


# topics and queries


@pytest.mark.spec("PR-10", "UX-08")
async def test_unknown_topic_error_has_code_10005_and_a_command(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        with pytest.raises(RouteNotFound, match="No route info of this topic") as caught:
            await out.send("orders", b"x")
        assert caught.value.code == 10005
        assert "updateTopic" in str(caught.value) and "auto-creation is off" in str(caught.value)


@pytest.mark.spec("PR-10")
async def test_unreachable_name_server_is_code_10004() -> None:
    async with Client(name_servers="127.0.0.1:1") as client, client.producer("g") as out:
        with pytest.raises(NoNameServer, match=r"tried 127\.0\.0\.1:1: connection refused") as caught:
            await out.send("T", b"x")
        assert caught.value.code == 10004


@pytest.mark.spec("PR-33", "PR-02")
async def test_create_topic_tries_every_master_five_times_and_needs_one(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        c.add("TBW102")
        c.brokers["b0"].script[17] = answer(1, "no")
        assert await client.create_topic("NEW", queues=6) == ["b1"]
        assert len(c.brokers["b0"].of(17)) == 5
        (command,) = c.brokers["b1"].of(17)
        assert (
            command.ext["defaultTopic"] == "TBW102"
            and command.ext["writeQueueNums"] == "6"
            and command.ext["perm"] == "6"
        )
        assert (command.ext["readQueueNums"], command.ext["topicSysFlag"]) == ("6", "0")
        assert await client.create_topic("UNIT", sys_flag=1) == ["b1"]
        assert c.brokers["b1"].of(17)[1].ext["topicSysFlag"] == "1"
        c.brokers["b1"].script[17] = answer(1, "no")
        with pytest.raises(ResponseError):
            await client.create_topic("NEW")
        with pytest.raises(RouteNotFound):
            await client.create_topic("NEW", key="unknown")


@pytest.mark.spec("ADM-19")
async def test_query_by_key_waits_for_a_silent_broker_no_longer_than_asked(cluster: Any) -> None:
    async with cluster(brokers=2) as c, Client(name_servers=c.name_servers, api_timeout_ms=600_000) as client:
        async with client.producer("g") as out:
            await out.send("T", b"one", keys="k1", queue=MessageQueue("T", "b0", 0))
        record = c.brokers["b0"].stored["T", 0][0]
        c.brokers["b0"].script[12] = lambda cmd: cmd.reply(body=record, ext={"indexLastUpdateTimestamp": "0"})
        c.brokers["b1"].script[12] = lambda cmd: None  # never answers
        async with asyncio.timeout(60):
            (found,) = await client.query_messages("T", "k1", timeout=0.05)
        assert found.body == b"one" and len(c.brokers["b1"].of(12)) == 1


@pytest.mark.spec("PR-02", "ADM-19")
async def test_oldest_of_the_copies_with_a_unique_id_is_shown(cluster: Any) -> None:
    """Of both brokers. Their answers also have records of another topic, as those of Apache do when hashes are equal."""
    unique = "7F0000010000000000000000000A0001"
    async with cluster(brokers=2) as c, Client(name_servers=c.name_servers) as client:
        for name, seconds in (("b0", 2), ("b1", 1)):
            broker = c.brokers[name]
            broker.store_ms += seconds * 1000
            for topic in (*["other"] * seconds, "T"):  # no physical offset twice: it is part of the id
                broker.put(topic, 0, name.encode(), f"UNIQ_KEY\x01{unique}\x02KEYS\x01k1")
            body = b"".join(broker.stored["other", 0] + broker.stored["T", 0])
            broker.script[12] = lambda cmd, body=body: cmd.reply(body=body, ext={"indexLastUpdateTimestamp": "0"})
        for query in ({"key": "k1"}, {"key": unique, "unique": True}):
            found = await client.query_messages("T", **query)
            assert [(message.topic, message.body) for message in found] == [("T", b"b1"), ("T", b"b0")]
        assert (await client.view_message(unique, "T")).body == b"b1"


@pytest.mark.spec("PR-02", "ADM-19")
async def test_messages_are_queried_by_offset_id_unique_id_and_key(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        receipt = await out.send("T", b"one", keys="k1", queue=MessageQueue("T", "b0", 0))
        record = c.broker.stored["T", 0][0]
        assert decode_record(record).body == b"one"
        c.broker.script[12] = lambda cmd: cmd.reply(body=record, ext={"indexLastUpdateTimestamp": "0"})
        (found,) = await client.query_messages("T", "k1", max_count=5)
        assert found.body == b"one" and not await client.query_messages("T", "hash collision")
        query = c.broker.of(12)[0]
        assert query.ext["key"] == "k1" and query.ext["_UNIQUE_KEY_QUERY"] == "false"
        assert await client.query_messages("T", "k1", begin=5, end=7)
        asked = c.broker.of(12)[-1].ext
        assert (asked["beginTimestamp"], asked["endTimestamp"], query.ext["maxNum"]) == ("5", "7", "5")
        c.broker.script[33] = answer(1, "not here")
        assert (await client.view_message(receipt.message_id, "T")).body == b"one"
        assert c.broker.of(12)[-1].ext["_UNIQUE_KEY_QUERY"] == "true"
        c.broker.script[12] = answer(22, "nothing")
        with pytest.raises(ResponseError) as caught:
            await client.view_message("F" * 32, "T")
        assert caught.value.code == 208
        host, port = c.broker.address.split(":")
        offset_id = bytes(int(part) for part in host.split(".")).hex() + f"{int(port):08x}" + "0" * 16
        c.broker.script[33] = lambda cmd: cmd.reply(body=record)
        assert (await client.view_message(offset_id.upper())).body == b"one"


@pytest.mark.spec("PR-02")
async def test_puller_queries_offsets_of_the_master(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        puller = client.puller()
        queue = (await puller.queues("T"))[2]
        c.broker.put("T", 2, b"x")
        assert (await puller.min_offset(queue), await puller.max_offset(queue)) == (0, 1)
        c.broker.script[31] = lambda command: command.reply(ext={"offset": "1"})  # behind what retention deleted
        assert await puller.min_offset(queue) == 1
        assert await puller.offset_by_time(queue, 5) == 1 and c.broker.of(29)[0].ext["timestamp"] == "5"
        assert await puller.earliest_store_time(queue) == 1_700_000_000_000


@pytest.mark.spec("PR-36")
async def test_two_clients_of_a_group_both_send_heartbeats(cluster: Any) -> None:
    async with cluster() as c:
        c.add("TBW102")
        async with Client(name_servers=c.name_servers) as one, Client(name_servers=c.name_servers) as two:
            async with one.producer("g"), two.producer("g"):
                for client in (one, two):
                    await client._core.routes.refresh("TBW102")
                    await client._core.heartbeat()
                seen = {json.loads(cmd.body or b"")["clientID"] for cmd in c.broker.of(34)}
                assert seen == {one.client_id, two.client_id}


@pytest.mark.spec("API-25")
async def test_cancelled_send_leaves_the_producer_usable(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")
        c.broker.script[310] = [no_response]
        sending = asyncio.ensure_future(out.send("T", b"x"))
        await c.broker.wait_for(310)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await out.send("T", b"y")).status is SendStatus.SEND_OK


@pytest.mark.spec("API-28")
def test_call_timeout_is_retryable_with_code_10002() -> None:
    assert CallTimeout("x").retryable and CallTimeout("x").code == 10002


@pytest.mark.spec("API-26")
async def test_background_task_failure_raises_producer_stopped(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.send("T", b"x")

        async def broken() -> None:
            raise ZeroDivisionError("bug")

        client._core.spawn("broken", broken())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(ProducerStopped, match="bug") as caught:
            await out.send("T", b"x")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
