"""The Spark source, sink and files mode against Apache's broker and ours, compared row by row with the Java client."""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from javatools import mqadmin, run_client
from peers import Peer
from pyspark.sql import functions as f

from saturnmq.protocol.message import java_hash
from saturnmq.sync import Client

pytestmark = pytest.mark.control("saturn")

COUNT = 200
_numbers = itertools.count()
# For tables of a few rows: no code generation, no optimizing compiler, one partition after a shuffle.
SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def spark(java: None) -> Iterator[Any]:
    from saturnmq.spark import session
    from saturnmq.spark.connect import close_all

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        before = dict(os.environ)
        made = session("saturnmq-interop", **SMALL)
        for name in ("JAVA_HOME", "SATURNMQ_SPARK_PUSHDOWN"):  # the Java version of the tests is kept
            patch.setitem(os.environ, name, before[name]) if name in before else os.environ.pop(name, None)
        yield made
        made.stop()
        close_all()


@pytest.fixture
def topic() -> str:
    return f"InteropSpark{next(_numbers)}"


def java_rows(peer: Peer, home: Path, topic: str) -> list[dict[str, Any]]:
    found = run_client("pull", home=home, ns=peer.name_servers, topic=topic, group="puller").results
    return sorted((row for row in found if "received" in row), key=lambda row: (row["queue"], row["offset"]))


def spark_rows(spark: Any, **options: str) -> list[dict[str, Any]]:
    columns = "queueId,queueOffset,body,tags,keys,uniqKey,flag,bornTimestamp,storeTimestamp,reconsumeTimes,bornHost,propertiesMap"
    made = spark.read.format("rocketmq").options(columns=columns, **options).load()
    return [row.asDict() for row in made.orderBy("queueId", "queueOffset").collect()]


def check_equal(ours: list[dict[str, Any]], java: list[dict[str, Any]]) -> None:
    """Compare row by row: position, content, properties, times, hosts."""
    assert [(r["queueId"], r["queueOffset"]) for r in ours] == [(r["queue"], r["offset"]) for r in java]
    for mine, theirs in zip(ours, java, strict=True):
        assert (mine["body"].decode(), mine["tags"], mine["keys"]) == (theirs["body"], theirs["tags"], theirs["keys"])
        assert mine["uniqKey"] == theirs["msgId"] and mine["reconsumeTimes"] == theirs["reconsumeTimes"]
        shared = set(mine["propertiesMap"]) & set(theirs["properties"])
        assert {"number", "sender", "KEYS", "TAGS"} <= shared
        assert all(mine["propertiesMap"][name] == theirs["properties"][name] for name in shared)
        for ours_ms, java_ms in ((mine["bornTimestamp"], "bornTimestamp"), (mine["storeTimestamp"], "storeTimestamp")):
            assert round(ours_ms.timestamp() * 1000) == theirs[java_ms]
        assert mine["bornHost"].split(":")[-1] == theirs["bornHost"].split(":")[-1]


@pytest.mark.spec("SRC-01", "SRC-12", "FMD-08", "FMD-01")
def test_spark_source_and_files_equal_what_the_java_client_pulls(
    spark: Any, peer: Peer, home: Path, topic: str
) -> None:
    for mode, serialization in (("sync", "JSON"), ("selector", "ROCKETMQ")):
        run_client(
            "send", home=home, ns=peer.name_servers, mode=mode, topic=topic, count=COUNT, serialization=serialization
        )
    java = java_rows(peer, home, topic)
    assert len(java) == 2 * COUNT
    check_equal(spark_rows(spark, nameServer=peer.name_servers, topic=topic), java)
    check_equal(spark_rows(spark, nameServer=peer.name_servers, topic=topic, minPartitions="7", pullDepth="1"), java)
    tagged = spark_rows(spark, nameServer=peer.name_servers, topic=topic, subExpression="TagA || none")
    check_equal(tagged, [row for row in java if row["tags"] == "TagA"])
    before = {p: p.stat().st_mtime_ns for p in (peer.store / "commitlog").iterdir()}
    check_equal(spark_rows(spark, mode="files", path=str(peer.store), topic=topic), java)
    assert {p: p.stat().st_mtime_ns for p in (peer.store / "commitlog").iterdir()}.keys() == before.keys()


@pytest.mark.parametrize("delivery", ["at_least_once", "transactional"])
@pytest.mark.spec("SNK-01", "SNK-05", "SNK-10")
def test_java_client_pulls_what_the_spark_sink_wrote(
    spark: Any, peer: Peer, home: Path, topic: str, delivery: str, tmp_path: Path
) -> None:
    with Client(name_servers=peer.name_servers) as client:
        client.create_topic(topic, queues=4)
    frame = spark.range(COUNT).select(
        f.concat(f.lit("bödy "), "id").alias("body"),
        f.when(f.col("id") % 2 == 0, "even").otherwise("odd").alias("tags"),
        f.concat(f.lit("key-"), "id").alias("keys"),
        f.create_map(f.lit("number"), f.col("id").cast("string")).alias("properties"),
        f.concat(f.lit("order"), f.col("id") % 9).alias("shardingKey"),
    )
    options = {"nameServer": peer.name_servers, "topic": topic, "delivery": delivery}
    if delivery == "transactional":
        options |= {"decisionLog": str(tmp_path / "log"), "producerGroup": f"G-{topic}"}
    frame.write.format("rocketmq").options(**options).mode("append").save()
    rows = java_rows(peer, home, topic)
    assert sorted(int(r["properties"]["number"]) for r in rows) == list(range(COUNT))
    for row in rows:
        n = int(row["properties"]["number"])
        assert (row["body"], row["keys"], row["tags"]) == (f"bödy {n}", f"key-{n}", "odd" if n % 2 else "even")
        if delivery == "at_least_once":
            assert row["queue"] == abs(java_hash(f"order{n % 9}")) % 4


@pytest.mark.control("apache")
@pytest.mark.spec("STR-12", "STR-13")
def test_mqadmin_shows_the_progress_of_a_stream(spark: Any, peer: Peer, home: Path, topic: str, tmp_path: Path) -> None:
    from saturnmq.spark.offset_tracker import track

    run_client("send", home=home, ns=peer.name_servers, topic=topic, count=COUNT)
    group = f"G{topic}"
    tracker = track(spark, peer.name_servers, interval_ms=0)
    try:
        query = (
            spark.readStream.format("rocketmq")
            .options(nameServer=peer.name_servers, topic=topic, startingOffsets="earliest", group=group)
            .load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(60)
        assert tracker.wait(query)
    finally:
        spark.streams.removeListener(tracker)
        tracker.stop()
    said = mqadmin(peer.name_servers, "consumerProgress", "-g", group, home=home)
    assert topic in said and re.search(r"Diff Total: 0\b", said), said
