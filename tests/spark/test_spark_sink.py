"""The sink in a real session, and its parts without one."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField, StructType

from saturnmq.client.producer.send_request import Prepared
from saturnmq.client.receipt import Receipt, SendStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.message import decode_batch, decode_properties, java_hash
from saturnmq.spark import encode, sending, sink
from saturnmq.spark.connect import linked
from saturnmq.spark.encode import BadRowError, EncodedRequest, Encoder, SendTarget
from saturnmq.spark.sink import for_ordered_write
from saturnmq.spark.sink_options import SinkOptions, parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

GIVEN = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def encoder(**options: Any) -> Encoder:
    ids = UniqueIds("127.0.0.1", 1, 2, 0)
    return Encoder(SinkOptions(**({"topic": "T"} | options)), lambda count: ids.take(3, count), "q/1/7",
                   lambda topic, key: SendTarget(topic, "b", abs(java_hash(key)) % 4))  # fmt: skip


@pytest.mark.spec("SNK-02", "SNK-03", "SNK-07")
def test_sink_reports_all_wrong_columns_and_options_at_once() -> None:
    columns = {"boddy": "string", "flag": "string", "queueId": "int", "deliverAt": "bigint"}
    with pytest.raises(ConfigError) as caught:
        parse_sink_options(
            {"nameServer": "h:1", "acks": "all", "batchBytes": "5m", "batchMessages": "10001"}, columns, overwrite=True
        )
    text = str(caught.value)
    for words in ("column body is missing", "unknown column 'boddy', did you mean 'body'?", "flag is string, must be int",
                  "brokerName and queueId belong together", "option topic is missing", "did you mean 'ack'",
                  "batchBytes=5242880: must be at most 4m", "batchMessages=10001: must be at most 10000",
                  "allowTimer=true", '.mode("append")'):  # fmt: skip
        assert words in text, words
    assert parse_sink_options(GIVEN, {"body": "string"}).topic == "T"


@pytest.mark.spec("SNK-01", "SNK-02", "SNK-07", "SNK-09")
def test_encoder_batches_rows_with_properties() -> None:
    made = encoder(batch_messages=3, dedupe=True)
    columns = {"body": [b"a", "b", b"c", b"d", b"e"], "tags": ["t", None, "t", "t", "t"], "keys": ["k1 k2", None, "", "x", "y"],
               "properties": [[("p", "1")], "q\x012", None, None, None], "flag": [7, None, 0, 0, 0],
               "delayLevel": [None, None, None, 3, None]}  # fmt: skip
    full = list(made.add(columns, 5))
    rest = list(made.remaining())
    assert [(r.rows, r.prepared.batch) for r in full + rest] == [(1, False), (3, True), (1, True)] or [
        (r.rows, r.prepared.batch) for r in full + rest
    ] == [(3, True), (1, False), (1, True)]
    batch = next(r for r in full if r.prepared.batch)
    items = decode_batch(batch.prepared.body)
    assert [i.body for i in items] == [b"a", b"b", b"c"] and items[0].flag == 7
    assert decode_properties(items[0].properties_raw) == {
        "p": "1", "SPARK_ROW": "q/1/7/0", "KEYS": "k1 k2", "UNIQ_KEY": "7F000001000100000002000000030001",
        "WAIT": "true", "TAGS": "t"}  # fmt: skip
    second = decode_properties(items[1].properties_raw)
    assert (second["q"], second["SPARK_ROW"]) == ("2", "q/1/7/1")
    single = next(r for r in full if not r.prepared.batch)
    assert "DELAY\x013" in single.prepared.properties and single.prepared.body == b"d"


@pytest.mark.spec("SNK-02")
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [None]}, "column body is null"),
        ({"body": [b""]}, "at least 1 byte"),
        ({"body": [b"x" * (4 * 1024 * 1024 + 1)]}, "4194305 bytes, at most 4194304"),
        ({"body": [b"x"], "properties": [[("UNIQ_KEY", "1")]]}, "UNIQ_KEY is reserved"),
        ({"body": [b"x"], "tags": ["a\x01b"]}, "column tags holds a separator"),
        ({"body": [b"x"], "properties": [[("p", "a" * 40_000)]]}, "at most 32767 fit"),
        ({"body": [b"x"], "delayLevel": [19]}, "delayLevel is 19, must be 1..18"),
        ({"body": [b"x"], "brokerName": ["b"], "queueId": [None]}, "columns brokerName and queueId belong together"),
        ({"body": [b"x"], "brokerName": [None], "queueId": [0]}, "columns brokerName and queueId belong together"),
    ],
)
def test_bad_row_is_named_or_skipped(columns: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(BadRowError, match="row 0 of the task") as caught:
        list(encoder().add(columns, 1))
    assert words in str(caught.value) and "badRows=skip" in str(caught.value)
    tolerant = encoder(bad_rows="skip")
    assert list(tolerant.add(columns, 1)) == [] and tolerant.skipped == 1


@pytest.mark.spec("SNK-04")
def test_sink_task_commit_message_is_small(server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("reported", queues=1)
    options = SinkOptions(name_server=server.name_servers, topic="reported")
    made = sink.write_batches(options, iter([pa.RecordBatch.from_pydict({"body": [b"12345"] * 3000})]))
    assert isinstance(made, sink.Sent) and len(pickle.dumps(made)) < 10_000
    assert (made.partition, made.attempt, made.rows, made.skipped) == (0, 0, 3000, 0)
    assert made.bytes >= 15_000 and len(made.last_message_id) == 32
    given = {"nameServer": server.name_servers, "topic": "reported"}
    writer = RocketMQDataSource(given).writer(StructType([StructField("body", BinaryType(), True)]), False)
    writer.abort([made, None])  # a task failed: what the others sent stays
    with Client(name_servers=server.name_servers) as client:
        (queue,) = client.puller().queues("reported")
        assert client.puller().max_offset(queue) == 3000
        (last,) = client.puller().pull(queue, 2999).messages()
        assert made.last_message_id == last.message_id


@pytest.mark.parametrize("streams", [False, True], ids=["batch", "stream"])
def test_writer_sends_after_it_was_pickled_and_logs_the_sums_of_its_tasks(
    server: SyncEmbeddedBroker, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "saturnmq.spark.sink")
    topic = f"pickled-{streams}"
    with Client(name_servers=server.name_servers) as client:
        client.create_topic(topic, queues=1)
        source = RocketMQDataSource({"nameServer": server.name_servers, "topic": topic})
        schema = StructType([StructField("body", BinaryType(), True)])
        writer: Any = source.streamWriter(schema, False) if streams else source.writer(schema, False)
        task = pickle.loads(pickle.dumps(writer))
        parts = [task.write(iter([pa.RecordBatch.from_pydict({"body": [b"12345"] * rows})])) for rows in (2, 3)]
        number = (7,) if streams else ()
        writer.commit([*parts, None], *number)
        writer.abort([parts[0]], *number)
        (queue,) = client.puller().queues(topic)
        assert client.puller().max_offset(queue) == 5
    what = "batch 7 " if streams else ""
    assert [line.partition(" bytes=")[0] for line in caplog.messages if "tasks=" in line] == [
        f"{what}written tasks=3 rows=5",
        f"{what}aborted, these stay in the topic tasks=1 rows=2",
    ]


@pytest.mark.spec("PIP-09")
@pytest.mark.parametrize(("rate", "count", "queues"), [(100, 1000, 1), (7, 25, 3), (1, 4, 2)])
def test_sink_task_never_exceeds_its_rate(
    server: SyncEmbeddedBroker, monkeypatch: pytest.MonkeyPatch, rate: int, count: int, queues: int
) -> None:
    """By a virtual clock, which only the pauses move: also the last, incomplete batches of every queue wait their turn."""
    topic, now, sends = f"paced-{rate}", [0.0], [(0.0, 0)]
    with Client(name_servers=server.name_servers) as client:
        client.create_topic(topic, queues=queues)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=lambda s: now.append(now.pop() + s))
    monkeypatch.setattr(sink, "time", clock)
    send = sending.Sender.send

    async def noted(self: sending.Sender, requests: Iterable[EncodedRequest]) -> None:
        requests = list(requests)
        sends.append((now[0], sends[-1][1] + sum(request.rows for request in requests)))
        await send(self, requests)

    monkeypatch.setattr(sending.Sender, "send", noted)
    options = SinkOptions(name_server=server.name_servers, topic=topic, per_second=rate)
    rows = {"body": [b"%d" % n for n in range(count)], "brokerName": ["broker-a"] * count,
            "queueId": pa.array([n % queues for n in range(count)], pa.int32())}  # fmt: skip
    made = sink.write_batches(options, iter([pa.RecordBatch.from_pydict(rows)]))
    assert isinstance(made, sink.Sent) and made.rows == sends[-1][1] == count
    burst = max(rate // 10, 1)
    assert all(total <= rate * at + burst + 1e-6 for at, total in sends), sends[:9]
    assert sends[-1][0] <= count / rate, "no slower than the rate"


def test_sink_with_a_rate_sends_before_it_reads_on(server: SyncEmbeddedBroker) -> None:
    """A slow reader's messages must not wait for 64 requests: each full batch is sent before the next rows are read."""
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("early", queues=1)
        queue = MessageQueue("early", "broker-a", 0)
        options = SinkOptions(name_server=server.name_servers, topic="early", per_second=100_000, batch_messages=20)
        stored = []

        def batches() -> Iterator[pa.RecordBatch]:
            with linked(options) as link:
                for _ in range(3):
                    yield pa.RecordBatch.from_pydict({"body": [b"x"] * 50})
                    stored.append(link.run(link.puller.max_offset(queue)))

        sink.write_batches(options, batches())
    assert stored == [40, 100, 140]


def test_transactional_sink_rejects_rate_limit(tmp_path: Path) -> None:
    given = {
        "nameServer": "h:1",
        "topic": "T",
        "delivery": "transactional",
        "decisionLog": str(tmp_path),
        "maxPerSecond": "5",
    }
    with pytest.raises(ConfigError, match="option maxPerSecond=5: not with delivery=transactional"):
        parse_sink_options(given, {"body": "binary"})


@pytest.mark.spec("SNK-04", "SNK-08")
def test_sink_retries_transient_results_but_not_rejections(
    server: SyncEmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send not durable at first is repeated; a queue that must not be written fails at the first response."""
    monkeypatch.setattr(sending, "PAUSE_S", (0.001, 0.001))
    options = SinkOptions(name_server=server.name_servers, ack="durable", retries=3)
    request = EncodedRequest(SendTarget("T"), Prepared("T", b"x", ("1",), ""), 1, 1)
    answers = [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SEND_OK]

    with linked(options) as link:
        sender = sending.Sender(link, options)

        async def deliver(_request: EncodedRequest) -> list[Receipt]:
            return [Receipt(answers.pop(0), "1", "", MessageQueue("T", "b", 0), 0)]

        sender._deliver = deliver  # type: ignore[method-assign]
        link.run(sender.send([request]))
        assert answers == []
        answers += [SendStatus.FLUSH_DISK_TIMEOUT] * 9
        with pytest.raises(StoreError, match="topic T: not sent after 4 attempts: stored, but not durably"):
            link.run(sender.send([request]))
        assert len(answers) == 5
        strict = sending.Sender(link, options)
        began = time.monotonic()
        bad = EncodedRequest(SendTarget("T", "broker-a", 99), Prepared("T", b"x", ("1",), "WAIT\x01true"), 1, 1)
        with pytest.raises(StoreError, match="rejected a message"):
            link.run(strict.send([bad]))
        assert time.monotonic() - began < 2


def read(spark: Any, server: SyncEmbeddedBroker, topic: str) -> Any:
    return spark.read.format("rocketmq").option("nameServer", server.name_servers).option("topic", topic)


@pytest.mark.spark
@pytest.mark.spec("SNK-01", "SNK-03", "SNK-04", "SNK-05")
def test_written_frame_is_read_back(spark: Any, server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("sunk", queues=4)
    frame = spark.range(3000).select(
        f.concat(f.lit("body "), "id").alias("body"),
        f.when(f.col("id") % 2 == 0, "even").otherwise("odd").alias("tags"),
        f.col("id").cast("string").alias("keys"),
        f.create_map(f.lit("region"), f.lit("EU")).alias("properties"),
        f.lit("sunk").alias("topic"),
    )
    sink = frame.write.format("rocketmq").option("nameServer", server.name_servers).option("batchMessages", "50")
    sink.mode("append").save()
    rows = read(spark, server, "sunk").option("columns", "body,tags,keys,propertiesMap,queueId").load().collect()
    assert Counter(r["body"].decode() for r in rows) == Counter(f"body {n}" for n in range(3000))
    assert all(r["tags"] == ("odd" if int(r["keys"]) % 2 else "even") for r in rows)
    assert all(r["propertiesMap"]["region"] == "EU" for r in rows)
    assert len({r["queueId"] for r in rows}) == 4
    with pytest.raises(Exception, match=r'use .mode\("append"\)'):
        frame.write.format("rocketmq").option("nameServer", server.name_servers).mode("overwrite").save()
    with pytest.raises(PySparkException, match=r"(?i)append"):  # Spark's own refusal of the default mode
        frame.write.format("rocketmq").option("nameServer", server.name_servers).save()


@pytest.mark.spark
@pytest.mark.spec("SNK-05", "SNK-06")
def test_sharding_key_rows_go_in_order_to_java_queue(spark: Any, server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("ordered", queues=4)
    frame = spark.range(2000).select(
        f.concat(f.lit("key"), f.col("id") % 7).alias("shardingKey"),
        f.col("id").cast("string").alias("body"),
        f.col("id").cast("int").alias("flag"),
    )
    made = for_ordered_write(frame, "shardingKey", "flag").select("shardingKey", "body", "flag")
    made.write.format("rocketmq").option("nameServer", server.name_servers).option("topic", "ordered").mode(
        "append"
    ).save()
    columns = "queueId,queueOffset,flag,propertiesMap"
    rows = read(spark, server, "ordered").option("columns", columns).load().orderBy("queueId", "queueOffset").collect()
    assert len(rows) == 2000
    seen: dict[str, list[int]] = {}
    for row in rows:
        key = row["propertiesMap"]["__SHARDINGKEY"]
        assert row["queueId"] == abs(java_hash(key)) % 4
        seen.setdefault(key, []).append(row["flag"])
    assert len(seen) == 7 and all(flags == sorted(flags) for flags in seen.values())


@pytest.mark.spark
@pytest.mark.spec("SNK-04", "SNK-09", "SNK-12", "STR-16")
def test_stream_sink_with_dedupe_marks_every_row(
    spark: Any, server: SyncEmbeddedBroker, send: Any, tmp_path: Path
) -> None:
    send("from", 500)
    source = (
        spark.readStream.format("rocketmq").option("nameServer", server.name_servers).option("topic", "from")
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "300").load()
    )  # fmt: skip
    query = (
        source.select("body", "tags", "keys").writeStream.format("rocketmq").option("nameServer", server.name_servers)
        .option("topic", "to").option("dedupe", "true").option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(300)
    rows = read(spark, server, "to").option("columns", "keys,propertiesMap").load().collect()
    assert sorted(int(r["keys"]) for r in rows) == list(range(500))
    names = [r["propertiesMap"]["SPARK_ROW"] for r in rows]
    assert len(set(names)) == 500 and {n.split("/")[0] for n in names} == {str(query.id)}
    assert {n.split("/")[1] for n in names} == {"0", "1"}


@pytest.mark.spec("SNK-08")
def test_cancelled_sink_task_leaves_nothing_pending(server: SyncEmbeddedBroker) -> None:
    options = SinkOptions(name_server=server.name_servers, in_flight=2)
    both, started, ended = threading.Event(), [], []
    with linked(options) as link:
        sender = sending.Sender(link, options)

        async def deliver(_request: EncodedRequest) -> list[Receipt]:
            started.append(1)
            if len(started) == 2:
                both.set()
            try:
                await asyncio.Event().wait()  # a response that never arrives
            finally:
                ended.append(1)
            return []

        sender._deliver = deliver  # type: ignore[method-assign]

        async def cancelled() -> None:
            requests = [EncodedRequest(SendTarget("T"), Prepared("T", b"x", ("1",), ""), 1, 1) for _ in range(5)]
            task = asyncio.create_task(sender.send(requests))
            assert await asyncio.to_thread(both.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        link.run(cancelled())
    assert len(ended) == 2 and encode.queue_of(SendTarget("T")) is None
