"""The source and the tables of the pipelines under two session time zones: dates, hours and windows are in UTC in both.

Requirements: SPK-12.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from saturnmq.spark.pipelines import audit, lake, stats, trace
from saturnmq.testing import SyncEmbeddedBroker

LATE = datetime(2026, 3, 1, 21, 45, 30, tzinfo=UTC)  # the next day in Kolkata, where hours begin at half past UTC hours
EVENT_COLUMNS = [column.split(" ") for column in f"{trace.EVENTS}, {trace._POSITION_COLUMNS}".split(", ")
                 if column.split(" ")[0] not in ("type", "ts", "_error")]  # fmt: skip
ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def zones(spark: Any) -> Iterator[list[str]]:
    before = spark.conf.get(ZONE)
    yield ["UTC", "Asia/Kolkata"]
    spark.conf.set(ZONE, before)


def source_rows(spark: Any) -> Any:
    """Return a row of the source, as pipelines read it."""
    at = f"timestamp_micros({int(LATE.timestamp()) * 1_000_000})"
    return spark.sql(
        f"select 'T' topic, 'b' brokerName, 0 queueId, 0L queueOffset, {at} storeTimestamp, {at} bornTimestamp, '' tags, '' keys, "
        "'ID' uniqKey, 0 reconsumeTimes, 0 sysFlag, '' bornHost, '' properties, binary('x') body, '' offsetMsgId"
    )


def labelled(name: str, frame: Any, *columns: str) -> Any:
    """Return columns of a frame as text, with timestamps as Unix seconds: collect() would convert them to local time."""
    kinds = dict(frame.dtypes)
    shown = [f.unix_seconds(f.col(c)) if kinds[c] == "timestamp" else f.col(c) for c in columns]
    return frame.select(f.lit(name), f.concat_ws(" ", *[column.cast("string") for column in shown]))


def seconds(hour: int = 0, minute: int = 0) -> str:
    return str(int(datetime(2026, 3, 1, hour, minute, tzinfo=UTC).timestamp()))


@pytest.mark.spark
@pytest.mark.spec("SPK-12", "PIP-08", "PIP-10", "PIP-11", "PIP-12")
def test_pipeline_tables_use_utc_in_every_session_time_zone(spark: Any, zones: list[str]) -> None:
    for zone in zones:
        spark.conf.set(ZONE, zone)
        messages = lake.messages_of(source_rows(spark))
        assert labelled("", messages, "date", "hour").collect() == [("", "2026-03-01 21")], zone
    sent = messages.select("topic", "uniq_key", f.col("store_ts").alias("produced_at"))
    events = messages.select(f.lit("Pub").alias("type"), f.col("store_ts").alias("ts"), f.lit(None).cast("string").alias("_error"),
                             *[f.lit(None).cast(kind).alias(name) for name, kind in EVENT_COLUMNS])  # fmt: skip
    good, _bad = trace.split(events.withColumn("msg_id", f.lit("ID")).withColumn("success", f.lit(True)))
    ticks = [
        f.lit(None).cast(kind).alias(name)
        for name, kind in (c.split(" ") for c in stats.TICKS.split(", "))
        if name != "ts"
    ]
    minutes = stats.stats_1m(messages.select(f.col("store_ts").alias("ts"), *ticks))
    frames = [
        labelled("audit", audit.audit_daily(sent, messages, messages.select("uniq_key")), "date"),
        labelled("events", good, "date"),
        labelled("latency", trace.msg_latency(good), "date"),
        labelled("minute", minutes, "window_start"),
        labelled("hour", stats.rolled(minutes, "hour"), "window_start"),
        labelled("day", stats.rolled(minutes, "day"), "window_start"),
    ]
    assert dict(map(tuple, reduce(DataFrame.union, frames).collect())) == {
        "audit": "2026-03-01", "events": "2026-03-01", "latency": "2026-03-01", "minute": seconds(21, 45), "hour": seconds(21),
        "day": seconds(),
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.spec("SPK-12")
def test_utc_date_hour_and_start_are_exact_at_edges(spark: Any) -> None:
    """Just before, at and after midnight, also before 1970; a null timestamp has no date."""
    edges = [-86_401, -86_400, -1, 0, 3599, 3600, 86_399, 86_400, 1_772_323_199, 1_772_323_200, None]
    rows = spark.createDataFrame([(at,) for at in edges], "at bigint").select(
        "at", f.timestamp_seconds("at").alias("ts")
    )
    made = rows.select("at", lake.utc_date("ts"), lake.utc_hour("ts"), f.unix_seconds(lake.utc_start("ts", 3600)))
    for at, day, hour, start in made.collect():
        if at is None:
            assert (day, hour, start) == (None, None, None)
        else:
            assert (day, hour, start) == (date.fromordinal(date(1970, 1, 1).toordinal() + at // 86_400), at // 3600 % 24,
                                          at // 3600 * 3600)  # fmt: skip


@pytest.mark.spark
@pytest.mark.spec("SPK-12")
def test_times_of_the_source_are_the_stored_instants_in_every_zone(
    spark: Any, server: SyncEmbeddedBroker, send: Any, zones: list[str]
) -> None:
    send("zoned", 8)
    store = server.inner.broker.store
    stored = {
        (queue, offset): 1000 * store.store_time("zoned", queue, offset)
        for topic, queue in store.topic_queues()
        if topic == "zoned"
        for offset in range(store.max_offset("zoned", queue))
    }
    assert len(stored) == 8
    for zone in zones:
        spark.conf.set(ZONE, zone)
        rows = spark.read.format("rocketmq").options(nameServer=server.name_servers, topic="zoned").load()
        assert rows.schema["storeTimestamp"].dataType == TimestampType()
        times = rows.select("queueId", "queueOffset", f.unix_micros("storeTimestamp").alias("us")).collect()
        assert {(row["queueId"], row["queueOffset"]): row["us"] for row in times} == stored, zone
