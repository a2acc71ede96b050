"""Requests of the sink: queues, properties, order and retries; without a session."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from saturnmq import sync
from saturnmq.client.producer.send_request import Prepared
from saturnmq.client.receipt import Receipt, SendStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError, StoreError
from saturnmq.protocol.message import decode_batch, decode_properties
from saturnmq.spark import sending, sink, transactional
from saturnmq.spark.connect import Link, linked
from saturnmq.spark.decision_log import DecisionLog
from saturnmq.spark.encode import BadRowError, EncodedRequest, Encoder, SendTarget
from saturnmq.spark.sink_options import SinkOptions, parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.testing import SyncEmbeddedBroker

GIVEN = {"nameServer": "127.0.0.1:1", "topic": "T"}
BODY = StructType([StructField("body", BinaryType(), True)])
Deliver = Callable[[EncodedRequest], Any]


def encoded(columns: dict[str, list[Any]], **options: Any) -> list[EncodedRequest]:
    made = Encoder(
        SinkOptions(**({"topic": "T"} | options)),
        lambda _count: ("ID", 0),
        "q/1/0",
        lambda t, k: SendTarget(t, "hashed", 3),
    )
    rows = len(columns["body"])
    return [*made.add(columns, rows), *made.remaining()]


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Link, sending.Sender]]:
    monkeypatch.setattr(sending, "PAUSE_S", (0.001, 0.001))
    options = SinkOptions(name_server="127.0.0.1:1", ack="durable", retries=3)
    with linked(options) as link:
        yield link, sending.Sender(link, options)


def request(broker: str = "", queue: int = -1) -> EncodedRequest:
    return EncodedRequest(SendTarget("T", broker, queue), Prepared("T", b"x", ("1",), ""), 1, 1)


@pytest.mark.spec("SNK-02")
@pytest.mark.parametrize("separator", ["\x01", "\x02"])
@pytest.mark.parametrize("column", ["tags", "keys", "shardingKey", "properties"])
def test_separator_in_any_text_is_bad_row(column: str, separator: str) -> None:
    value = f"a{separator}b"
    columns = {"body": [b"good", b"bad"], column: [None, [("p", value)] if column == "properties" else value]}
    with pytest.raises(BadRowError, match=f"row 1 of the task: column {column} holds a separator character"):
        encoded(columns)


@pytest.mark.spec("SNK-01")
def test_batches_end_at_either_limit() -> None:
    bodies = {"body": [bytes(1000)] * 30}
    by_bytes = encoded(bodies, batch_bytes=8192)
    assert [made.rows for made in by_bytes] == [7, 7, 7, 7, 2] and all(
        len(made.prepared.body) <= 8192 for made in by_bytes
    )
    assert [made.rows for made in encoded(bodies, batch_messages=12)] == [12, 12, 6]
    defaults = parse_sink_options(GIVEN, {"body": "binary"})
    assert (defaults.batch_bytes, defaults.batch_messages, defaults.in_flight) == (1 << 20, 512, 16)


@pytest.mark.spec("SNK-03")
@pytest.mark.parametrize("make", [RocketMQDataSource.writer, RocketMQDataSource.streamWriter])
def test_sink_refuses_overwrite_and_complete_mode(make: Any) -> None:
    with pytest.raises(ConfigError, match=r'messages cannot be overwritten: use \.mode\("append"\)'):
        make(RocketMQDataSource(GIVEN), BODY, True)
    assert make(RocketMQDataSource(GIVEN), BODY, False)


@pytest.mark.spec("SNK-05")
def test_target_prefers_named_queue_over_sharding_key() -> None:
    found = encoded({"body": [b"1", b"2", b"3"], "brokerName": ["b", None, None], "queueId": [0, None, None],
                     "shardingKey": ["k", "k", None]})  # fmt: skip
    assert {made.target: decode_batch(made.prepared.body)[0].body for made in found} == {
        SendTarget("T", "b", 0): b"1", SendTarget("T", "hashed", 3): b"2", SendTarget("T"): b"3"}  # fmt: skip
    assert [made.ordered for made in found] == [True, True, False]


@pytest.mark.spec("SNK-05")
def test_retry_of_fixed_queue_goes_to_same_queue(sender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    link, made = sender
    queues: list[MessageQueue | None] = []

    async def deliver(_prepared: Prepared, queue: MessageQueue | None, _deadline: Any) -> list[Receipt]:
        queues.append(queue)
        status = SendStatus.SEND_OK if len(queues) == 3 else SendStatus.FLUSH_DISK_TIMEOUT
        return [Receipt(status, "1", "", MessageQueue("T", "b", 2), 0)]

    monkeypatch.setattr(made.producer, "_deliver", deliver)
    monkeypatch.setattr(link.core.routes, "cached", lambda _topic: object())
    link.run(made.send([request("b", 2)]))
    assert queues == [MessageQueue("T", "b", 2)] * 3


@pytest.mark.spec("SNK-06")
def test_fixed_queue_has_one_request_in_flight(sender: Any) -> None:
    link, made = sender
    running: dict[SendTarget, int] = {}
    most: dict[SendTarget, int] = {}
    order: list[int] = []

    async def deliver(item: EncodedRequest) -> list[Receipt]:
        running[item.target] = running.get(item.target, 0) + 1
        most[item.target] = max(most.get(item.target, 0), running[item.target])
        for _ in range(3):
            await asyncio.sleep(0)
        running[item.target] -= 1
        if item.target.queue_id == 1:
            order.append(item.size)
        return [Receipt(SendStatus.SEND_OK, "1", "", MessageQueue("T", "b", 0), 0)]

    made._deliver = deliver
    fixed = [EncodedRequest(SendTarget("T", "b", 1), Prepared("T", b"x", ("1",), ""), 1, n) for n in range(5)]
    link.run(made.send([*fixed, *(request() for _ in range(5))]))
    assert most == {SendTarget("T", "b", 1): 1, SendTarget("T"): 5} and order == list(range(5))


@pytest.mark.spec("SNK-07")
def test_rows_with_deliver_at_are_delivered_at_their_time() -> None:
    """They were sent as a batch, which a broker refuses to delay."""
    schema = StructType([*BODY.fields, StructField("deliverAt", LongType())])
    with SyncEmbeddedBroker() as server, sync.Client.from_url(server.url) as client:
        given = GIVEN | {"nameServer": server.name_servers, "allowTimer": "true"}
        at = int(time.time() * 1000) + 1000
        rows = pa.record_batch({"body": [b"later", b"at once"], "deliverAt": [at, None]})
        RocketMQDataSource(given).writer(schema, False).write(iter([rows]))
        with client.consumer("g", start="first") as inbox:
            inbox.subscribe("T")
            received = {message.body: message for message in (inbox.recv(30), inbox.recv(30))}
    assert received.keys() == {b"at once", b"later"}
    assert received[b"later"].stored_at.timestamp() * 1000 >= at


@pytest.mark.spec("SNK-07")
def test_deliver_at_sets_property_and_delay_level_goes_singly() -> None:
    moment = datetime(2027, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    for given in (1_798_859_045_678, moment, moment.replace(tzinfo=None)):
        (made,) = encoded({"body": [b"x"], "deliverAt": [given]}, allow_timer=True)
        assert not made.prepared.batch and made.prepared.body == b"x"
        assert decode_properties(made.prepared.properties.encode())["TIMER_DELIVER_MS"] == "1798859045678"
    levels = encoded({"body": [b"x", b"y", b"z"], "delayLevel": [1, 18, None]})
    assert [decode_properties(made.prepared.properties.encode()).get("DELAY") for made in levels] == ["1", "18", None]
    assert [made.prepared.batch for made in levels] == [False, False, True]
    for level in (-1, 19):
        with pytest.raises(BadRowError, match=rf"delayLevel is {level}, must be 1\.\.18"):
            encoded({"body": [b"x"], "delayLevel": [level]})
    columns = StructType([*BODY.fields, StructField("delayLevel", IntegerType()), StructField("deliverAt", LongType())])
    given_options = GIVEN | {"delivery": "transactional", "decisionLog": "/nowhere", "allowTimer": "true"}
    with pytest.raises(ConfigError) as caught:
        RocketMQDataSource(given_options).writer(columns, False)
    for name in ("delayLevel", "deliverAt"):
        assert f"column {name}: not with delivery=transactional" in str(caught.value)


@pytest.mark.spec("SNK-08")
@pytest.mark.parametrize(
    ("code", "attempts"),
    [
        (ResponseCode.SYSTEM_BUSY, 4),
        (ResponseCode.SERVICE_NOT_AVAILABLE, 4),  # also sent for a full disk
        (ResponseCode.MESSAGE_ILLEGAL, 1),
        (ResponseCode.NO_PERMISSION, 1),
        (ResponseCode.TOPIC_NOT_EXIST, 1),
    ],
)
def test_sink_retries_transient_codes_only(sender: Any, code: ResponseCode, attempts: int) -> None:
    link, made = sender
    asked = [0]

    async def deliver(_request: EncodedRequest) -> list[Receipt]:
        asked[0] += 1
        raise ResponseError("the broker's remark", code=int(code))

    made._deliver = deliver
    with pytest.raises(StoreError, match=r"topic T: .*the broker's remark"):
        link.run(made.send([request()]))
    assert asked[0] == attempts


@pytest.mark.spec("SNK-04")
@pytest.mark.parametrize(("ack", "sends", "oneway"), [("stored", 1, 0), ("durable", 4, 0), ("none", 0, 1)])
@pytest.mark.parametrize(
    "status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_SLAVE_TIMEOUT]
)
async def test_what_counts_as_acknowledged(
    ack: str, sends: int, oneway: int, status: SendStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes 10, 11 and 12 are enough for ack=stored; ack=durable sends again until the last attempt is SEND_OK."""
    options = parse_sink_options(GIVEN | {"ack": ack}, {"body": "binary"})
    made, sent = sending.Sender(Link(options.make_client()), options), Counter[str]()

    async def deliver(_request: EncodedRequest) -> list[Receipt]:
        sent["two-way"] += 1
        return [Receipt(status if sent["two-way"] < 4 else SendStatus.SEND_OK, "1", "", MessageQueue("T", "b", 0), 0)]

    async def without_answer(_request: EncodedRequest) -> None:
        sent["one-way"] += 1

    monkeypatch.setattr(made, "_deliver", deliver)
    monkeypatch.setattr(made, "_oneway", without_answer)
    await made.send([request()])
    assert (sent["two-way"], sent["one-way"]) == (sends, oneway)
    assert parse_sink_options(GIVEN, {"body": "binary"}).ack == "stored"


@pytest.mark.spec("SNK-08")
def test_rejected_request_leaves_no_other_one_pending(sender: Any) -> None:
    link, made = sender
    ended: list[int] = []

    async def deliver(asked: EncodedRequest) -> list[Receipt]:
        if asked.target.queue_id < 0:
            raise ResponseError("the broker's remark", code=int(ResponseCode.MESSAGE_ILLEGAL))
        try:
            await asyncio.Event().wait()  # a response that never arrives
        finally:
            ended.append(asked.target.queue_id)
        return []

    made._deliver = deliver
    with pytest.raises(StoreError, match="the broker's remark"):
        link.run(made.send([request("b", 0), request("b", 1), request()]))
    assert sorted(ended) == [0, 1]


@pytest.mark.spec("SNK-08")
async def test_pauses_between_attempts_double_up_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = asyncio.get_running_loop().time
    monkeypatch.setattr(sending.random, "random", lambda: 1.0)
    options = SinkOptions(name_server="127.0.0.1:1", retries=8)
    made, asked = sending.Sender(Link(options.make_client()), options), []

    async def deliver(_request: EncodedRequest) -> list[Receipt]:
        asked.append(seconds())
        raise ResponseError("busy", code=int(ResponseCode.SYSTEM_BUSY))

    made._deliver = deliver  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="not sent after 9 attempts"):
        await made.send([request()])
    pauses = [after - before for before, after in itertools.pairwise(asked)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.04)


@pytest.mark.spec("SNK-10", "SNK-11")
def test_transactional_delivery_is_opt_in_with_300_s_immunity() -> None:
    made = parse_sink_options(GIVEN, {"body": "binary"})
    assert made.delivery == "at_least_once" and made.check_after_ms == 300_000
    assert made.transaction_messages == 200_000


@pytest.mark.spec("SNK-12")
def test_batch_write_tasks_and_commit_share_run_id() -> None:
    writers = [RocketMQDataSource(GIVEN).writer(BODY, False) for _ in range(2)]
    copy = pickle.loads(pickle.dumps(writers[0]))
    assert isinstance(copy, sink.BatchWriter) and copy._run == writers[0]._run  # type: ignore[attr-defined]
    assert copy._run.startswith("run-") and copy._run != writers[1]._run  # type: ignore[attr-defined]


@pytest.mark.spec("SNK-13")
def test_nothing_is_committed_if_decision_cannot_be_written(
    server: SyncEmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"nameServer": server.name_servers, "topic": "undecided", "delivery": "transactional"}
    options = parse_sink_options(given | {"decisionLog": str(tmp_path), "producerGroup": "G"}, {"body": "binary"})
    stored = sink.write_batches(options, iter([pa.RecordBatch.from_pydict({"body": [b"x"] * 3})]), "0")
    assert isinstance(stored, sink.Stored) and len(stored.written.halves) == 3
    ended: list[int] = []

    async def end(_link: Link, _group: str, halves: Any, *_: Any) -> transactional.Ends:
        ended.append(len(halves))
        return transactional.Ends(tuple(halves), ())

    def full(*_given: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(transactional, "end", end)
    log = DecisionLog(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(log, "decide", full)
        with pytest.raises(OSError, match="no space"):
            transactional.commit(options.connection, log, "G", [stored.written], "0")
    assert ended == []
    assert transactional.commit(options.connection, log, "G", [stored.written], "0") == 3 and ended == [0, 3]
