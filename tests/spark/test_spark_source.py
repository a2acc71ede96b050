"""The source inside a real Spark session, against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from saturnmq.spark.pipelines import main
from saturnmq.spark.pipelines.export import ExportConf, build, lag_of
from saturnmq.spark.ranges import from_offset
from saturnmq.testing import SyncEmbeddedBroker

pytestmark = pytest.mark.spark


def numbers(frame: Any) -> list[int]:
    return sorted(json.loads(row["body"])["n"] for row in frame.select("body").collect())


def exported_rows(spark: Any, conf: ExportConf) -> int:
    """Run the export until it has caught up. Returns the rows that its batches wrote."""
    query = build(spark, conf)
    assert query.awaitTermination(300)
    return sum(int(batch["numInputRows"]) for batch in query.recentProgress)


def reader(spark: Any, server: SyncEmbeddedBroker, topic: str, **options: str) -> Any:
    made = spark.read.format("rocketmq").option("nameServer", server.name_servers).option("topic", topic)
    for name, value in options.items():
        made = made.option(name, value)
    return made


@pytest.mark.spec("SRC-01", "SRC-07", "SPK-01", "SPK-07", "SPK-08")
def test_batch_read_in_spark_returns_every_message_once(spark: Any, server: SyncEmbeddedBroker, send: Any) -> None:
    send("all", 1000)
    frame = reader(spark, server, "all", minPartitions="6").load()
    assert numbers(frame) == list(range(1000))
    assert frame.rdd.getNumPartitions() >= 6
    row = frame.orderBy(f.col("keys").cast("int")).first()
    assert (row["topic"], row["brokerName"], row["tags"], row["keys"]) == ("all", "broker-a", "a", "0")
    other = spark.read.format("saturnmq").option("nameServer", server.name_servers).option("topic", "all").load()
    assert other.count() == 1000


@pytest.mark.spec("SPK-08")
@pytest.mark.parametrize("name", ["rocketmq", "saturnmq"])
def test_format_is_known_without_registration(spark: Any, server: SyncEmbeddedBroker, name: str) -> None:
    """A new session has the sources that PySpark finds, not those that another session has registered."""
    unregistered = spark.newSession()
    options = {"nameServer": server.name_servers, "topic": f"found-{name}"}
    rows = unregistered.createDataFrame([(f"{name} {n}".encode(),) for n in range(3)], "body binary")
    rows.write.format(name).options(**options).mode("append").save()
    read = unregistered.read.format(name).options(columns="body", **options).load()
    assert sorted(row["body"].decode() for row in read.collect()) == [f"{name} {n}" for n in range(3)]


@pytest.mark.spec("SRC-01", "SRC-02", "SRC-10")
def test_batch_read_selects_by_offsets_columns_and_tags(spark: Any, server: SyncEmbeddedBroker, send: Any) -> None:
    send("part", 400)
    everything = reader(spark, server, "part").load()
    ends = {r["queueId"]: r["n"] for r in everything.groupBy("queueId").agg(f.count("*").alias("n")).collect()}
    start = json.dumps({"part": {"broker-a": {str(q): min(10, ends.get(q, 0)) for q in range(4)}}})
    end = json.dumps({"part": {"broker-a": {str(q): min(20, ends.get(q, 0)) for q in range(4)}}})
    some = reader(spark, server, "part", startingOffsets=start, endingOffsets=end, columns="queueId,queueOffset").load()
    assert some.columns == ["queueId", "queueOffset"]
    rows = sorted((r["queueId"], r["queueOffset"]) for r in some.collect())
    assert rows == [(q, o) for q in range(4) for o in range(min(10, ends.get(q, 0)), min(20, ends.get(q, 0)))]
    assert numbers(reader(spark, server, "part", subExpression="b").load()) == list(range(1, 400, 2))
    assert reader(spark, server, "part", startingOffsets="latest").load().count() == 0


@pytest.mark.spec("SPK-10", "SRC-15")
def test_wrong_options_fail_at_planning_time(spark: Any, server: SyncEmbeddedBroker) -> None:
    with pytest.raises(Exception, match="unknown option 'topci', did you mean 'topic'"):
        reader(spark, server, "all", topci="x").load()
    with pytest.raises(Exception, match="'nowhere' cannot be read from"):
        reader(spark, server, "nowhere").load().count()


@pytest.mark.spec("STR-01", "STR-07", "STR-15", "PIP-02", "PIP-03", "PIP-08")
def test_repeated_export_adds_only_new_messages(
    spark: Any, server: SyncEmbeddedBroker, send: Any, tmp_path: Path
) -> None:
    send("lake", 600)
    conf = ExportConf(
        server.name_servers, str(tmp_path), None, None, topics="lake", partition_by=("tags",), max_offsets=250
    )
    assert exported_rows(spark, conf) == 600
    assert exported_rows(spark, conf) == 0
    send("lake", 300, first=600)
    assert exported_rows(spark, conf) == 300
    table = spark.read.parquet(conf.messages)
    assert numbers(table) == list(range(900))
    assert sorted(p.name for p in Path(conf.messages).glob("tags=*")) == ["tags=a", "tags=b"]


@pytest.mark.spec("STR-10", "STR-08", "STR-14")
def test_stream_delivers_to_memory_sink(spark: Any, server: SyncEmbeddedBroker, send: Any) -> None:
    send("live", 100)
    stream = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server.name_servers)
        .option("topic", "live")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "60")
        .load()
    )
    query = stream.writeStream.format("memory").queryName("live").trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert [source["metrics"] for source in query.lastProgress["sources"]] == [{}]
    ends = [
        sum(from_offset(json.loads(batch["sources"][0]["latestOffset"])).values()) for batch in query.recentProgress
    ]
    assert len(ends) == 2 and set(ends) == {100}, "the end of the topic in each progress, also of the first batch"
    assert lag_of(query) == 0
    assert numbers(spark.table("live")) == list(range(100))


@pytest.mark.spec("PIP-01")
def test_unknown_pipeline_is_named() -> None:
    with pytest.raises(Exception, match="unknown pipeline 'exprot'; there is: export, replay"):
        main(["exprot"])
