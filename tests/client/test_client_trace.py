"""Message trace: what is recorded, the record format, and that tracing never blocks or fails the application."""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import saturnmq.sync
from saturnmq import Ack, Client, ConfigError, Message, ResponseError, RouteNotFound, TransactionState
from saturnmq.broker import BrokerSettings
from saturnmq.client.compression import decompress
from saturnmq.client.trace import trace
from saturnmq.client.trace.records import (
    DeliveryOutcome,
    EndTransaction,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    TraceError,
    TraceRecord,
    decode_records,
    encode_cloud,
)
from saturnmq.client.tracing import TraceStats, trace_topic
from saturnmq.protocol.bodies import HeartbeatData, MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import CheckTransactionState
from saturnmq.protocol.message import Host, decode_properties, encode_record
from saturnmq.protocol.message import Message as Record
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
TRACE = "RMQ_SYS_TRACE_TOPIC"
QUEUE = MessageQueue("T", "b0", 1)
MEMBERS = 10  # flushed one after the other, they would take MEMBERS times FLUSH_S


def traces(c: Any, topic: str = TRACE) -> list[Any]:
    """The trace messages that all brokers have received, in each broker's order."""
    return [command for broker in c.brokers.values() for command in broker.of(310) if command.ext["b"] == topic]


def text_of(command: Any) -> str:
    flags = int(command.ext["f"])
    return (decompress(command.body, flags) if flags else command.body).decode()


def traced(c: Any, topic: str = TRACE) -> list[TraceRecord]:
    return [record for command in traces(c, topic) for record in decode_records(text_of(command))]


def keys_of(command: Any) -> list[str]:
    return decode_properties(command.ext["i"])["KEYS"].split(" ")


# record format


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
MAYBE = st.none() | TEXTS.filter(lambda text: text != "null")
NUMBERS = st.integers(0, 2**40)
RECORDS = st.one_of(
    st.builds(
        Pub, NUMBERS, MAYBE, TEXTS, TEXTS, TEXTS, MAYBE, MAYBE, TEXTS, NUMBERS, NUMBERS,
        st.sampled_from(MessageType), MAYBE, st.booleans(),
    ),
    st.builds(SubBefore, NUMBERS, MAYBE, TEXTS, TEXTS, TEXTS, st.integers(0, 16), MAYBE),
    st.builds(SubAfter, TEXTS, TEXTS, NUMBERS, st.booleans(), MAYBE, st.sampled_from(DeliveryOutcome), NUMBERS, MAYBE),
    st.builds(
        EndTransaction, NUMBERS, MAYBE, TEXTS, TEXTS, TEXTS, MAYBE, MAYBE, TEXTS, st.sampled_from(MessageType), MAYBE,
        TEXTS, st.booleans(),
    ),
)  # fmt: skip


@pytest.mark.spec("TR-03", "TR-05", "TR-06")
@given(st.lists(RECORDS, max_size=5))
def test_trace_records_round_trip(records: list[TraceRecord]) -> None:
    text = "".join(record.encode() for record in records)
    again = list(decode_records(text))
    assert "".join(record.encode() for record in again) == text
    assert [type(record) for record in again] == [type(record) for record in records]


def written(words: str) -> str:
    return words.replace(" ", "\x01") + "\x02"


@pytest.mark.spec("TR-03", "TR-05", "TR-06")
def test_trace_fields_have_the_specified_order() -> None:
    pub = Pub(1, "R", "g", "T", "id", None, "k", "h:1", 5, 7, MessageType.DELAY, "place", True)
    assert pub.encode() == written("Pub 1 R g T id null k h:1 5 7 3 place true")
    before = SubBefore(2, None, "g", "req", "id", 3, None)
    assert before.encode() == written("SubBefore 2 null g req id 3 null")
    after = SubAfter("req", "id", 9, False, "k", DeliveryOutcome.FAILED, 4, "g")
    assert after.encode() == written("SubAfter req id 9 false k 4 4 g")
    end = EndTransaction(5, "R", "g", "T", "id", "A", None, "h:1", MessageType.COMMIT, "tx", "UNKNOW", True)
    assert end.encode() == written("EndTransaction 5 R g T id A null h:1 2 tx UNKNOW true")


@pytest.mark.spec("TR-03", "TR-05")
def test_trace_decoder_accepts_other_versions_and_rejects_torn_records() -> None:
    old = "Pub\x011\x01R\x01g\x01T\x01id\x01A\x01k\x01h\x015\x017\x010"
    assert next(decode_records(old + "\x01true\x02")) == Pub(
        1, "R", "g", "T", "id", "A", "k", "h", 5, 7, MessageType.NORMAL, None, True
    )
    for tail in ("\x01place\x01false\x02", "\x01place\x01false\x01client\x02"):
        (record,) = decode_records(old + tail)
        assert isinstance(record, Pub) and (record.offset_message_id, record.success) == ("place", False)
    after = "SubAfter\x01req\x01id\x019\x01true\x01k"
    assert next(decode_records(after)) == SubAfter("req", "id", 9, True, "k")
    assert next(decode_records(after + "\x014\x02")) == SubAfter("req", "id", 9, True, "k", DeliveryOutcome.FAILED)
    assert list(decode_records("Later\x01x\x02" + "\x02")) == []
    with pytest.raises(TraceError, match="SubBefore"):
        list(decode_records("SubBefore\x01soon\x02"))


@pytest.mark.spec("TR-03", "TR-08", "TR-09")
async def test_send_trace_equals_that_of_the_java_client(cluster: Any, vectors: Path) -> None:
    recorded = json.loads((vectors / "frames" / "trace.producer_consumer.json").read_text())
    requests = [f for f in recorded["frames"] if f["request_code"] == 310 and f["type"] == "request"]
    java = next(f for f in requests if f["header"]["extFields"]["b"] == TRACE)
    fields, frame = java["header"]["extFields"], bytes.fromhex(java["hex"])
    body = frame[8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF) :].decode()
    (theirs,) = decode_records(body)
    assert isinstance(theirs, Pub) and theirs.encode() == body
    async with cluster() as c:
        c.add(TRACE)
        async with Client(name_servers=c.name_servers, trace=True) as client:
            async with client.producer(theirs.group) as out:
                await out.send("T", b"traced", tag=theirs.tags, keys=[str(theirs.keys)])
        (command,) = traces(c)
        (ours,) = traced(c)
        assert isinstance(ours, Pub)
        assert set(command.ext) == set(fields) | {"confirmation"}
        for name in "bcdfhjkm":
            assert command.ext[name] == fields[name], name
        name = r"_INNER_TRACE_PRODUCER-%s-PRODUCE-\d+"
        assert re.fullmatch(name % theirs.group, fields["a"]) and re.fullmatch(name % theirs.group, command.ext["a"])
        mine, other = decode_properties(command.ext["i"]), decode_properties(fields["i"])
        assert list(mine) == list(other) == ["KEYS", "UNIQ_KEY", "WAIT"]
        assert set(other["KEYS"].split(" ")) == {theirs.message_id, theirs.keys}
        assert keys_of(command) == [ours.message_id, ours.keys]
        same = ("region", "group", "tags", "keys", "body_bytes", "message_type", "success")
        for name in same:
            assert getattr(ours, name) == getattr(theirs, name), name
        (sent,) = [one for one in c.broker.of(310) if one.ext["b"] == "T"]
        assert (ours.topic, ours.message_id) == ("T", decode_properties(sent.ext["i"])["UNIQ_KEY"])
        assert (ours.store_host, ours.offset_message_id) == (c.broker.address, "0" * 32)
        assert abs(ours.timestamp_ms - time.time() * 1000) < 20_000 and 0 <= ours.cost_ms < 20_000


# sends


@pytest.mark.spec("TR-03")
async def test_every_answered_send_is_traced_once(cluster: Any) -> None:
    async with cluster() as c:
        for topic in (TRACE, "shop%T"):
            c.add(topic)
        async with Client(name_servers=c.name_servers, trace=True, namespace="shop", attempts=1) as client:
            async with client.producer("g") as out:
                await out.send("T", b"x" * 5000)
                await out.send("T", b"later", delay_level=3)
                receipts = await out.send_many("T", [b"a", b"b"])
                await out.send_oneway("T", b"no response")
                await out.send(TRACE, b"not traced")
                c.broker.script[310] = [lambda command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")]
                with pytest.raises(ResponseError):
                    await out.send("T", b"refused")
                ext = {"msgId": "P", "queueId": "0", "queueOffset": "1"}
                c.broker.script[310] = [lambda command: command.reply(ResponseCode.FLUSH_DISK_TIMEOUT, None, ext)]
                await out.send("T", b"stored, not flushed")
            stats = out.trace_stats
        assert stats == TraceStats(made=4, sent=4)
        large, later, batch, unsure = records = traced(c)
        assert all(isinstance(record, Pub) for record in records)
        assert {(record.group, record.topic) for record in records} == {("g", "T")}  # type: ignore[union-attr]
        sent = {one.ext["b"]: one for one in c.broker.of(310) + c.broker.of(320)}
        assert isinstance(large, Pub) and 0 < large.body_bytes < 5000, "as it travels"
        assert isinstance(later, Pub) and later.message_type is MessageType.DELAY
        assert isinstance(batch, Pub) and batch.message_id == ",".join(one.message_id for one in receipts)
        assert batch.offset_message_id == ",".join(one.offset_message_id for one in receipts)
        assert batch.body_bytes == len(c.broker.of(320)[0].body) and batch.tags is batch.keys is None
        assert isinstance(unsure, Pub) and (unsure.success, unsure.offset_message_id) == (False, "P")
        assert all(record.success for record in (large, later, batch))
        assert sent["shop%T"].ext["a"] == "shop%g"


@pytest.mark.spec("TR-03")
async def test_send_trace_has_the_start_and_the_duration_of_the_send(cluster: Any) -> None:
    async def late(command: Command) -> Command:
        await asyncio.sleep(2)  # poll: virtual time
        return command.reply(ext={"msgId": "P", "queueId": "1", "queueOffset": "1"})

    async with cluster() as c:
        c.add(TRACE)
        async with Client(name_servers=c.name_servers, trace=True) as client, client.producer("g") as out:
            await client.topic_exists("T")
            c.broker.script[310] = [late]
            begin_ms = time.time() * 1000
            await out.send("T", b"x", queue=QUEUE)
        (record,) = traced(c)
        assert isinstance(record, Pub) and 2000 <= record.cost_ms < 3000
        assert abs(record.timestamp_ms - begin_ms) < 1000


@pytest.mark.spec("TR-04", "TR-03")
async def test_trace_follows_the_brokers_switch_and_region(cluster: Any) -> None:
    def says(**ext: str) -> Callable[[Any], Any]:
        place = {"msgId": "P", "queueId": "0", "queueOffset": "1"}
        return lambda command: command.reply(ext={**place, **ext})

    async with cluster() as c:
        c.add(TRACE)
        async with Client(name_servers=c.name_servers, trace=True) as client:
            async with client.producer("g", check=lambda message: TransactionState.COMMIT) as out:
                c.broker.script[310] = [
                    says(TRACE_ON="false"),
                    says(TRACE_ON="true", MSG_REGION="North"),
                    says(),
                    says(TRACE_ON="false", msgId="7F00000100002A9F0000000000000001"),
                ]
                receipt = await out.send("T", b"off")
                assert not receipt.trace_on
                assert (await out.send("T", b"on")).region == "North"
                await out.send("T", b"nothing said")
                async with out.transaction("T", b"off too"):
                    pass
        assert [record.region for record in traced(c)] == ["North", "DefaultRegion"]


# deliveries


@pytest.mark.spec("TR-05", "TR-02")
async def test_delivery_is_traced_at_start_and_end(cluster: Any) -> None:
    async with cluster() as c:
        for topic in (TRACE, "%RETRY%c"):
            c.add(topic)
        c.broker.put("T", 0, b"ok", "UNIQ_KEY\x01A\x02KEYS\x01k1 k2\x02MSG_REGION\x01North")
        c.broker.put("T", 0, b"fails", "UNIQ_KEY\x01B", reconsume_times=2)
        c.broker.put("T", 0, b"off", "UNIQ_KEY\x01C\x02TRACE_ON\x01false")
        c.broker.put("T", 0, b"slow", "UNIQ_KEY\x01D\x02TRACE_ON\x01true")
        async with Client(name_servers=c.name_servers) as client:
            async with client.consumer("c", start="first", trace=True, ack_timeout=1.0) as inbox:
                await inbox.subscribe("T")
                ok, fails, off, _slow = [await inbox.recv(30) for _ in range(4)]
                await ok.ack()
                await fails.retry(reason="no")
                await off.ack()
                await c.broker.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK, 2)
                await until(lambda: inbox.trace_stats.made == 6)
                assert inbox.trace_stats.dropped == 0
        records = traced(c)
        befores = {one.message_id: one for one in records if isinstance(one, SubBefore)}
        afters = {one.message_id: one for one in records if isinstance(one, SubAfter)}
        assert set(befores) == set(afters) == {"A", "B", "D"} and len(records) == 6
        for name, after in afters.items():
            before = befores[name]
            assert after.request_id == before.request_id and after.group == before.group == "c"
            assert after.timestamp_ms >= before.timestamp_ms
        assert len({one.request_id for one in befores.values()}) == 3
        assert [(befores[n].region, befores[n].keys, befores[n].retry_times) for n in "ABD"] == [
            ("North", "k1 k2", 0), (None, None, 2), (None, None, 0),
        ]  # fmt: skip
        ends = [(afters[n].success, afters[n].outcome) for n in "ABD"]
        assert ends == [
            (True, DeliveryOutcome.SUCCESS),
            (False, DeliveryOutcome.FAILED),
            (False, DeliveryOutcome.TIME_OUT),
        ]
        assert afters["D"].cost_ms >= 1000 and afters["A"].keys == "k1 k2"
        groups = {command.ext["a"] for command in traces(c)}
        assert len(groups) == 1 and re.fullmatch(r"_INNER_TRACE_PRODUCER-c-CONSUME-\d+", groups.pop())
        found = {key for command in traces(c) for key in keys_of(command)}
        assert found == {"A", "B", "D", "k1", "k2"}


@pytest.mark.spec("TR-05", "TR-09")
async def test_separators_in_received_properties_do_not_corrupt_records(cluster: Any) -> None:
    async with cluster() as c:
        for topic in (TRACE, "%RETRY%c"):
            c.add(topic)
        c.broker.put("T", 0, b"odd", "UNIQ_KEY\x01A\x01a\x02KEYS\x01k\x01l")
        c.broker.put("T", 0, b"even", "UNIQ_KEY\x01B")
        async with Client(name_servers=c.name_servers, trace=True) as client:
            async with client.consumer("c", start="first") as inbox:
                await inbox.subscribe("T")
                for _ in range(2):
                    await (await inbox.recv(30)).ack()
            assert inbox.trace_stats == TraceStats(made=4, sent=4)
        assert [record.message_id for record in traced(c)] == ["A a", "A a", "B", "B"]
        (command,) = traces(c)
        assert keys_of(command) == ["A", "a", "k", "l", "B"]


@pytest.mark.spec("TR-05", "TR-02", "API-16")
async def test_handler_error_is_traced_as_an_exception() -> None:
    async with EmbeddedBroker(settings=BrokerSettings(trace_topic_enable=True)) as server:
        async with Client.from_url(server.url) as client:
            done = asyncio.Event()

            @client.listener("T", group="c", start="first", trace=True)
            async def handle(message: Message[bytes]) -> Ack:
                if message.body == b"bad":
                    raise OSError("no")
                done.set()
                return Ack.SUCCESS

            async with client.producer("p") as out:
                bad, good = await out.send("T", b"bad"), await out.send("T", b"good")
            running = asyncio.ensure_future(client.run())
            await done.wait()
            await until(lambda: client._core.consumers["c"].trace_stats.made == 4)  # type: ignore[attr-defined]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            outcomes = {}
            for receipt in (bad, good):
                for message in await client.query_messages(TRACE, receipt.message_id):
                    for record in decode_records(message.body.decode()):
                        if isinstance(record, SubAfter):
                            outcomes[record.message_id] = record.outcome
        assert outcomes == {bad.message_id: DeliveryOutcome.EXCEPTION, good.message_id: DeliveryOutcome.SUCCESS}


# transactions


@pytest.mark.spec("TR-06")
async def test_transaction_end_is_traced_for_every_outcome(cluster: Any) -> None:
    async with cluster() as c:
        for topic in (TRACE, "T"):
            c.add(topic)
        ids = []
        async with Client(name_servers=c.name_servers, trace=True) as client:
            async with client.producer("g", check=lambda message: TransactionState.ROLLBACK) as out:
                for state in TransactionState:
                    async with out.transaction("T", b"x", tag="A", keys=["k"], queue=QUEUE) as half:
                        half.state = state
                    ids.append(half.message_id)
                properties = b"UNIQ_KEY\x01ID\x02PGROUP\x01g\x02MSG_REGION\x01North"
                host = Host("127.0.0.1", 10911)
                body = encode_record(Record("T", b"x", properties, store_host=host, born_host=host))
                asked = CheckTransactionState(
                    tran_state_table_offset=5,
                    commit_log_offset=77,
                    msg_id="ID",
                    transaction_id="ID",
                    offset_msg_id="P",
                )
                command = Command(RequestCode.CHECK_TRANSACTION_STATE, ext=asked.to_ext(), body=body)
                c.broker.connections[0].invoke_oneway(command)
                await c.broker.wait_for(37, 3)
        records = traced(c)
        halves = [one for one in records if isinstance(one, Pub)]
        assert [one.message_type for one in halves] == [MessageType.HALF] * 3
        ends = [one for one in records if isinstance(one, EndTransaction)]
        assert [one.message_id for one in ends] == [*ids, "ID"]
        names = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE", "UNKNOWN": "UNKNOW"}
        assert [one.state for one in ends] == [names[state.name] for state in TransactionState] + ["ROLLBACK_MESSAGE"]
        assert [one.from_check for one in ends] == [False, False, False, True]
        assert [one.region for one in ends] == ["DefaultRegion"] * 3 + ["North"]
        assert [(one.tags, one.keys) for one in ends] == [("A", "k")] * 3 + [(None, None)]
        for one in ends:
            assert (one.group, one.topic, one.store_host) == ("g", "T", c.broker.address)
            assert (one.message_type, one.transaction_id) == (MessageType.COMMIT, one.message_id)


# dispatching


@pytest.mark.spec("TR-07")
def test_trace_dispatcher_limits() -> None:
    assert (trace.QUEUE_MAX, trace.TEXT_BYTES_MAX, trace.KEYS_BYTES_MAX) == (50_000, 128_000 - 10_000, 30_000)
    assert (trace.AGE_S, trace.SEND_TIMEOUT_S, trace.FLUSH_S, trace.SENDS_MAX) == (0.5, 5.0, 0.5, 8)


@pytest.mark.spec("TR-07")
async def test_trace_records_are_batched_for_at_most_half_a_second(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trace.AGE_S == 0.5
    monkeypatch.setattr(trace, "AGE_S", 2.0)  # long enough for twenty sends on a busy machine
    async with cluster() as c:
        c.add(TRACE)
        async with Client(name_servers=c.name_servers, trace=True) as client:
            async with client.producer("g") as out:
                begin = time.monotonic()
                for _ in range(20):
                    await out.send("T", b"x")
                assert traces(c) == []
                await until(lambda: traces(c))
                assert time.monotonic() - begin >= trace.AGE_S
                assert len(traced(c)) == 20 and len(traces(c)) == 1


def pub(number: int, keys: str | None = None) -> Pub:
    return Pub(0, "R", "g", "T", f"{number:032X}", None, keys, "h:1", 1, 1, MessageType.NORMAL, "p", True)


@pytest.mark.spec("TR-07", "TR-09")
def test_trace_message_is_bounded_in_text_and_keys() -> None:
    def filled(records: Iterator[Pub]) -> trace.TraceBatch:
        batch = trace.TraceBatch()
        while batch.add(next(records)):
            pass
        return batch

    batch = filled(pub(n, "k" * 2000) for n in itertools.repeat(7))
    assert trace.TEXT_BYTES_MAX - 2200 < len(batch.body) <= trace.TEXT_BYTES_MAX
    assert batch.keys == [f"{7:032X}", "k" * 2000], "each key once"
    batch = filled(pub(n) for n in itertools.count())
    assert trace.KEYS_BYTES_MAX - 33 <= sum(len(key) + 1 for key in batch.keys) <= trace.KEYS_BYTES_MAX
    assert len(list(decode_records(batch.body.decode()))) == batch.count == len(batch.keys)
    huge = trace.TraceBatch()
    assert huge.add(pub(1, "ä" * 200_000)), "one record too long for all that travels alone"
    assert not huge.add(pub(2)) and len(huge.body) > trace.TEXT_BYTES_MAX and huge.keys == [f"{1:032X}"]
    many = trace.TraceBatch()
    ids = [f"{n:032X}" for n in range(2000)]
    many.add(Pub(0, "R", "g", "T", ",".join(ids), None, None, "h", 1, 1, MessageType.NORMAL, "p", True))
    assert many.keys == ids[: trace.KEYS_BYTES_MAX // 33], "of a batch the single ids are found"


async def test_burst_of_one_event_loop_iteration_is_traced_whole(cluster: Any) -> None:
    """Responses read at once are 2,000 records before the worker runs; a queue of 1,024 dropped 974 of them."""
    async with cluster() as c:
        c.add(TRACE)
        async with Client(name_servers=c.name_servers, trace=True) as client, client.producer("g") as out:
            tracer = out._tracer
            assert tracer is not None
            for number in range(2000):
                tracer.offer(pub(number))
            await until(lambda: out.trace_stats == TraceStats(made=2000, sent=2000))
            for second in range(1, 4):
                for number in range(10_000):
                    tracer.offer(pub(number))
                    if number % 100 == 99:
                        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)
                assert out.trace_stats.made == 2000 + 10_000 * second and out.trace_stats.dropped == 0
            await until(lambda: out.trace_stats == TraceStats(made=32_000, sent=32_000))
        assert len(traces(c)) <= 32_000 / 300, "records travel in batches"


@pytest.mark.spec("TR-07")
async def test_full_trace_queue_drops_and_counts_without_blocking_sends(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "SENDS_MAX", 1)
    monkeypatch.setattr(trace, "QUEUE_MAX", 100)
    monkeypatch.setattr(trace, "AGE_S", 0.0)
    async with cluster(brokers=2) as c:
        c.add(TRACE, c.route("b1"))
        c.add("T", c.route("b0"))
        c.brokers["b1"].script[310] = lambda command: None  # never answers
        async with Client(name_servers=c.name_servers, trace=True) as client:
            out = client.producer("g")
            await out.start()
            await out.send("T", b"x")
            await c.brokers["b1"].wait_for(310)
            begin = time.monotonic()
            await out.send("T", b"x")
            tracer = out._tracer
            assert tracer is not None
            # The worker has taken it and waits for the send in progress.
            await until(lambda: not tracer._records)
            for _ in range(120):
                await out.send("T", b"x")
            assert time.monotonic() - begin < 20, "no send waits for the trace"
            assert out.trace_stats == TraceStats(made=122, dropped=20)
            assert [r.message for r in caplog.records if "dropped" in r.message] == [
                f"trace record dropped, traces are incomplete group={tracer.group} times=1"
            ]
            begin = time.monotonic()
            await out.stop()
            assert time.monotonic() - begin < 2.5, "the end waits for a bounded time"
            await until(lambda: out.trace_stats == TraceStats(made=122, failed=2, dropped=120))
            line = f"traces incomplete group={tracer.group} made=122 sent=0 lost=122"
            assert [r.message for r in caplog.records if r.message.startswith("traces")] == [line]
        assert len(c.brokers["b0"].of(310)) == 122


@pytest.mark.spec("TR-07")
@pytest.mark.parametrize("how", ["no route", "refused", "stopped"])
async def test_unsendable_trace_is_only_logged(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(trace, "AGE_S", 0.0)
    async with cluster(brokers=2) as c:
        c.add("T", c.route("b0"))
        if how != "no route":
            c.add(TRACE, c.route("b1"))
        c.brokers["b1"].script[310] = lambda command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no space")
        if how == "stopped":
            await c.brokers["b1"].stop()
        async with Client(name_servers=c.name_servers, trace=True, attempts=1) as client:
            async with client.producer("g") as out:
                for n in range(1, 4):
                    await out.send("T", b"x")
                    await until(lambda n=n: out.trace_stats.failed == n)  # type: ignore[misc]
            assert out.trace_stats == TraceStats(made=3, failed=3)
        assert len(c.brokers["b0"].of(310)) == 3
        lines = [r for r in caplog.records if r.message.startswith("trace not sent")]
        assert len(lines) == 1, "the first of a hundred times"


@pytest.mark.spec("TR-07")
async def test_pending_trace_records_are_sent_on_client_stop(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "AGE_S", 60.0)
    async with cluster() as c:
        for topic in (TRACE, "%RETRY%c"):
            c.add(topic)
        c.broker.put("T", 0, b"x", "UNIQ_KEY\x01A")
        client = Client(name_servers=c.name_servers, trace=True)
        await client.start()
        producers = [client.producer(f"g{n}") for n in range(3)]
        for out in producers:
            await out.start()
            await out.send("T", b"y", queue=QUEUE)
        inbox = client.consumer("c", start="first")
        await inbox.start()
        await inbox.subscribe("T")
        await (await inbox.recv(30)).ack()
        assert traces(c) == []
        begin = time.monotonic()
        await client.stop()
        assert time.monotonic() - begin < 10
        assert sorted(type(record).__name__ for record in traced(c)).count("Pub") == 3
        for one in (*producers, inbox):
            stats = one.trace_stats  # type: ignore[attr-defined]
            assert stats.made == stats.sent > 0, one
            await one.stop()  # type: ignore[attr-defined]
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("saturnmq ")]


@pytest.mark.spec("TR-07", "API-27")
async def test_client_stop_flushes_all_traces_within_one_deadline(cluster: Any) -> None:
    async with cluster(brokers=2) as c:
        c.add(TRACE, c.route("b1"))
        c.add("T", c.route("b0"))
        c.brokers["b1"].script[310] = lambda command: None  # never answers
        for n in range(MEMBERS):
            c.add(f"%RETRY%c{n}", c.route("b0"))
        c.brokers["b0"].put("T", 0, b"x", "UNIQ_KEY\x01A")
        client = Client(name_servers=c.name_servers, trace=True)
        await client.start()
        inboxes = [client.consumer(f"c{n}", start="first") for n in range(MEMBERS)]
        for inbox in inboxes:
            await inbox.start()
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
        begin = time.monotonic()
        await client.stop()
        assert time.monotonic() - begin < MEMBERS * trace.FLUSH_S
        for inbox in inboxes:
            stats = inbox.trace_stats
            assert stats.made == 2 == stats.failed + stats.dropped
        offsets = c.brokers["b0"].offsets
        await until(lambda: [offsets.get((f"c{n}", "T", 0)) for n in range(MEMBERS)] == [1] * MEMBERS)


@pytest.mark.spec("TR-07", "API-24", "API-27")
async def test_cancelled_stop_leaves_no_task(cluster: Any) -> None:
    async def one(steps: int, what: str) -> bool:
        async with cluster() as c:
            for topic in (TRACE, "%RETRY%c"):
                c.add(topic)
            c.broker.put("T", 0, b"x", "UNIQ_KEY\x01A")
            async with Client(name_servers=c.name_servers, trace=True) as client:
                out, inbox = client.producer("g"), client.consumer("c", start="first")
                await out.start()
                await out.send("T", b"y", queue=QUEUE)
                await inbox.start()
                await inbox.subscribe("T")
                await inbox.recv(30)
                task = asyncio.ensure_future({"producer": out, "consumer": inbox, "client": client}[what].stop())  # type: ignore[attr-defined]
                for _ in range(steps):
                    await asyncio.sleep(0)
                done: bool = task.done()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if what == "consumer":
                    await out.send("T", b"still works", queue=QUEUE)
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("saturnmq ")]
            return done

    for what in ("producer", "consumer", "client"):
        for steps in range(0, 40, 3):
            if await one(steps, what):
                break


@pytest.mark.spec("TR-08", "PR-31")
async def test_trace_uses_own_connections_and_all_brokers_of_its_topic(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "AGE_S", 0.0)
    async with cluster(brokers=3) as c:
        c.add(TRACE, c.route("b1", "b2"))
        c.add("shop%T", c.route("b0"))
        c.add("TBW102", c.route("b0"))
        settings: Any = {"trace": True, "namespace": "shop", "instance": "mine"}
        async with Client(name_servers=c.name_servers, **settings) as client:
            async with client.producer("g") as out:
                for n in range(1, 9):
                    await out.send("T", b"x")
                    await until(lambda n=n: out.trace_stats.sent == n)  # type: ignore[misc]
                await c.brokers["b1"].wait_for(RequestCode.HEART_BEAT)
                tracing = client._core.tracing
                assert tracing is not None and tracing._trace_core is not None
                assert not tracing._trace_core.settings.vip_channel
                mine = tracing._trace_core.client_id
        assert [len(c.brokers[name].of(310)) for name in ("b0", "b1", "b2")] == [8, 4, 4]
        groups = {command.ext["a"] for command in traces(c)}
        assert len(groups) == 1
        group = groups.pop()
        assert re.fullmatch(r"_INNER_TRACE_PRODUCER-g-PRODUCE-\d+", group), "without the namespace"
        assert re.fullmatch(rf"127\.0\.0\.1@PID_CLIENT_INNER_TRACE_PRODUCER_{c.name_servers}#\d+", mine)
        beats = [HeartbeatData.decode(beat.body) for beat in c.brokers["b1"].of(RequestCode.HEART_BEAT)]
        theirs = [beat for beat in beats if beat.client_id == mine]
        assert group in {data.group_name for beat in theirs for data in beat.producer_data_set}
        assert "127.0.0.1@mine" not in {beat.client_id for beat in beats}
        left = [one.ext for name in ("b1", "b2") for one in c.brokers[name].of(RequestCode.UNREGISTER_CLIENT)]
        assert {"clientID": mine, "producerGroup": group} in left


@pytest.mark.spec("TR-08")
@pytest.mark.loop(real=True)
async def test_trace_client_does_not_use_the_vip_port() -> None:
    client = Client(
        name_servers="127.0.0.1:1;127.0.0.1:2", vip_channel=True, namespace="n", access_key="a", secret_key="s"
    )
    settings = trace.trace_settings(client._core)
    assert (settings.vip_channel, settings.namespace, settings.trace) == (False, None, False)
    assert (settings.access_key, settings.secret_key, settings.name_servers) == (
        "a",
        "s",
        client.settings.name_servers,
    )
    assert settings.instance is not None
    assert settings.instance.startswith("PID_CLIENT_INNER_TRACE_PRODUCER_127.0.0.1:1;127.0.0.1:2#")
    assert settings.instance != trace.trace_settings(client._core).instance, "ids are never equal"


# configuration


@pytest.mark.spec("TR-02", "API-02", "API-01")
def test_trace_setting_of_the_client_can_be_overridden() -> None:
    for wanted, default, topic in [
        (None, False, None), (None, True, TRACE), (None, "Mine", "Mine"),
        (True, False, TRACE), (True, "Mine", "Mine"), ("Own", "Mine", "Own"), (False, "Mine", None), ("Own", False, "Own"),
    ]:  # fmt: skip
        assert trace_topic(wanted, default) == topic  # type: ignore[arg-type]
    assert Client.from_url("rmq://h?trace=true").settings.trace is True
    assert Client.from_url("rmq://h?trace=off").settings.trace is False
    assert Client.from_url("rmq://h?trace=Mine").settings.trace == "Mine"
    assert Client.from_url("rmq://h").settings.trace is False, "nothing is traced unless it is asked for"
    client = Client(name_servers="h")
    for make in (
        lambda bad: Client(name_servers="h", trace=bad),
        lambda bad: client.producer("g", trace=bad),
        lambda bad: client.consumer("g", trace=bad),
    ):
        for bad in ("", "no blanks", "x" * 300, "SCHEDULE_TOPIC_XXXX"):
            with pytest.raises(ConfigError, match="trace is"):
                make(bad)


@pytest.mark.spec("TR-02")
async def test_trace_topic_can_be_set_per_client_and_consumer(cluster: Any) -> None:
    async with cluster() as c:
        for topic in ("Mine", "Other"):
            c.add(topic)
        async with Client(name_servers=c.name_servers, trace="Mine") as client:
            async with client.producer("g") as out, client.producer("h", trace=False) as quiet:
                await out.send("T", b"x", queue=QUEUE)
                await quiet.send("T", b"x", queue=QUEUE)
                assert quiet.trace_stats == TraceStats()
            async with client.consumer("c", start="first", trace="Other") as inbox:
                await inbox.assign([QUEUE])
                await (await inbox.recv(30)).ack()
        assert [type(record) for record in traced(c, "Mine")] == [Pub]
        assert [type(record) for record in traced(c, "Other")] == [SubBefore, SubAfter]
        assert traces(c) == []


@pytest.mark.spec("TR-10", "TR-07")
def test_cloud_channel_traces_to_a_topic_per_region(run: Run, cluster: Any) -> None:
    north, nowhere = "rmq_sys_TRACE_DATA_North", "rmq_sys_TRACE_DATA_null"

    async def work() -> None:
        async with cluster() as c:
            for topic in (north, nowhere, "rmq_sys_TRACE_DATA_DefaultRegion", "%RETRY%c"):
                c.add(topic)
            c.broker.put("T", 0, b"a", "UNIQ_KEY\x01A\x02MSG_REGION\x01North")
            c.broker.put("T", 0, b"b", "UNIQ_KEY\x01B\x02KEYS\x01k")
            c.broker.put("T", 0, b"c", "UNIQ_KEY\x01C\x02KEYS\x01k")
            c.broker.put(north, 0, b"a trace itself", "UNIQ_KEY\x01D")
            async with Client(name_servers=c.name_servers, trace=True, access_channel="cloud") as client:
                async with client.producer("p") as out:
                    await out.send("T", b"x", queue=QUEUE)
                async with client.consumer("c", start="first") as inbox:
                    await inbox.subscribe("T")
                    await inbox.subscribe(north)
                    for _ in range(5):
                        await (await inbox.recv(30)).ack()
                    assert inbox.trace_stats.made == 8
            assert [type(record) for record in traced(c, "rmq_sys_TRACE_DATA_DefaultRegion")] == [Pub]
            mine = [(type(r), r.message_id) for r in traced(c, north)]
            assert mine == [(SubBefore, "A"), (SubAfter, "A")]
            (text,) = [text_of(command) for command in traces(c, north)]
            begun, end = text.split("\x02")
            request = begun.split("\x01")[4]
            cost = end.split("\x01")[3]
            assert end == "\x01".join(["SubAfter", request, "A", cost, "true", "null", "0", ""]), (
                "no time, group or end"
            )
            rest = traced(c, nowhere)
            assert sorted(record.message_id for record in rest if record.message_id in "BC") == ["B", "B", "C", "C"]
            assert all(record.timestamp_ms == 0 for record in rest if isinstance(record, SubAfter))
            assert traces(c) == []

    run(work)
    with pytest.raises(ConfigError, match="access_channel is 'sky'"):
        Client(name_servers="h", access_channel="sky")


@pytest.mark.spec("TR-10")
@given(st.lists(RECORDS, max_size=5))
def test_cloud_trace_records_without_end_mark_are_decoded(records: list[TraceRecord]) -> None:
    again = list(decode_records("".join(encode_cloud(record) for record in records)))
    assert [type(record) for record in again] == [type(record) for record in records]
    for old, new in zip(records, again, strict=True):
        if isinstance(old, SubAfter):
            old = replace(old, timestamp_ms=0, group=None)
        assert old.encode() == new.encode()


@pytest.mark.spec("TR-05", "TR-03")
async def test_trace_topic_itself_is_not_traced(cluster: Any) -> None:
    async with cluster() as c:
        for topic in (TRACE, "%RETRY%c"):
            c.add(topic)
        c.broker.put(TRACE, 0, b"x")
        async with Client(name_servers=c.name_servers, trace=True) as client:
            async with client.consumer("c", start="first") as inbox:
                await inbox.subscribe(TRACE)
                await (await inbox.recv(30)).ack()
            assert inbox.trace_stats == TraceStats()
        assert traces(c) == []


@pytest.mark.spec("TR-09", "TR-02", "API-31")
def test_sync_query_trace_finds_records_by_any_id_or_key() -> None:
    with SyncEmbeddedBroker(settings=BrokerSettings(trace_topic_enable=True)) as server:
        with saturnmq.sync.Client.from_url(server.url, trace=True) as client:
            with client.producer("p") as out, client.consumer("c", start="first") as inbox:
                one = out.send("T", b"one", keys=["order-1", "order-2"])
                many = out.send_many("T", [b"two", b"three"])
                inbox.subscribe("T")
                for _ in range(3):
                    inbox.recv(30).ack()
            assert out.trace_stats == TraceStats(made=2, sent=2) and inbox.trace_stats == TraceStats(made=6, sent=6)
            for key in (one.message_id, "order-1", "order-2", many[0].message_id, many[1].message_id):
                found = client.query_trace(key)
                assert [type(record) for record in found] == [Pub, SubBefore, SubAfter], key
                assert all(key in record.message_id or key in (record.keys or "") for record in found)
            assert client.query_trace("unknown") == []
        asked = [request.ext for request in server.inner.tap.requests if request.name == "QUERY_MESSAGE"]
        assert {(query["topic"], query["maxNum"]) for query in asked} == {(TRACE, "64")}


@pytest.mark.spec("TR-09", "TR-02")
async def test_query_trace_skips_messages_that_are_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url, trace="Mine", namespace="shop") as client:
        async with client.producer("p") as out:
            receipt = await out.send("T", b"x")
        async with Client.from_url(server.url) as other, other.producer("q") as out:
            await out.send("Mine", b"\xff", keys=[receipt.message_id])
            await out.send("Mine", b"Pub\x01soon\x02", keys=[receipt.message_id])
            (record,) = await client.query_trace(receipt.message_id)
            assert isinstance(record, Pub) and (record.group, record.topic) == ("p", "T")
            assert await other.query_trace(receipt.message_id, topic="Mine") == [record]
            with pytest.raises(RouteNotFound):
                await other.query_trace(receipt.message_id)
        assert len([r for r in caplog.records if r.message.startswith("trace not readable")]) == 4


@pytest.mark.spec("TR-07", "API-31")
def test_script_without_stop_still_sends_its_trace() -> None:
    with SyncEmbeddedBroker() as server:
        code = f"""
import saturnmq.sync as s
c = s.Client.from_url({server.url!r}, trace=True)
c.start()
out = c.producer("p")
out.start()
print(out.send("T", b"x").message_id)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        with saturnmq.sync.Client.from_url(server.url) as client:
            (record,) = client.query_trace(done.stdout.strip())
            assert isinstance(record, Pub) and record.group == "p"
