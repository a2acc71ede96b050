"""Message traces as tables: who sent, who consumed, latencies, and messages that were not consumed.

In: the trace topic. Out: trace_events, append-only; msg_latency, latency_1m, slow_consumers, unconsumed, rebuilt from all
events, so that late events count as if they had been on time; unreadable records go to trace_events_bad. The store time is
taken as the time of the send plus half its cost. A message is consumed at the time of its SubAfter record; for old records
without a time, at that of the SubBefore record plus the cost.

Requirements: PIP-10, TR-03.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.errors import SaturnError
from saturnmq.spark.option_table import duration_ms, duration_s
from saturnmq.spark.pipelines import SUMMARIES, lake, ownership, report, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome

if TYPE_CHECKING:
    import pyarrow as pa

    from saturnmq.client.trace.records import TraceRecord

EVENTS: Final = (
    "type string, ts timestamp, region string, group string, topic string, msg_id string, request_id string, tags string, "
    "keys string, store_host string, client_host string, body_length int, cost_ms int, msg_type int, offset_msg_id string, "
    "success boolean, retry int, context_code int, transaction_id string, state string, date date"
)
BAD_COLUMNS: Final = "topic string, broker_name string, queue_id int, queue_offset bigint, error string, body binary"
LATENCY: Final = (
    "msg_id string, topic string, group string, produced_at timestamp, stored_at timestamp, consumed_at timestamp, e2e_ms bigint, "
    "retry int, success boolean, date date"
)
MINUTES: Final = (
    "topic string, group string, window_start timestamp, n bigint, fail bigint, "
    "p50_ms double, p95_ms double, p99_ms double"
)
SLOW: Final = "group string, topic string, window_start timestamp, p99_ms double, threshold_ms double"
UNCONSUMED: Final = "msg_id string, topic string, produced_at timestamp, age_s bigint"
_NAMES: Final = tuple(column.strip().split(" ")[0] for column in EVENTS.split(","))
_RECORD_END: Final = "\x02"
ROWS_MAX: Final = 100_000  # limit for the table with a row per minute
_SOURCE: Final = "topic,brokerName,queueId,queueOffset,storeTimestamp,body"


@dataclass(frozen=True)
class TraceConf(Conf):
    """slow_ms: a p99 above it is slow. wait_s: age in seconds from which a message counts as not consumed."""

    topic: str = TRACE_TOPIC
    slow_ms: float = 1000.0
    wait_s: float = 600


def fields_of(record: TraceRecord) -> dict[str, Any]:
    """Return a record as a row of trace_events, with the text `null` as null."""
    kind = type(record).__name__
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    row = {
        "type": kind,
        "ts": fields.get("timestamp_ms") or None,
        "msg_id": fields["message_id"],
        "body_length": fields.get("body_bytes"),
        "msg_type": fields.get("message_type"),
        "offset_msg_id": fields.get("offset_message_id"),
        "retry": fields.get("retry_times"),
        "context_code": fields.get("outcome"),
    }
    row |= {name: fields[name] for name in ("region", "group", "topic", "request_id", "tags", "keys", "store_host", "cost_ms",
                                            "success", "transaction_id", "state") if name in fields}  # fmt: skip
    return {name: None if value == "null" else value for name, value in row.items()}


def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert trace messages to events; an unreadable record becomes a row of error and body. Runs in workers."""
    import pyarrow as pa

    from saturnmq.client.trace.records import TraceError, decode_records

    for batch in batches:
        rows: list[dict[str, Any]] = []
        for message in batch.to_pylist():
            position = {f"_{name}": message[name] for name in ("topic", "brokerName", "queueId", "queueOffset")}
            for part in (message["body"] or b"").decode(errors="replace").split(_RECORD_END):
                if not part:
                    continue
                fields = part.split("\x01")
                try:
                    events = [fields_of(record) for record in decode_records(part)]
                    error = None if events else f"unknown kind of record {fields[0][:40]!r}"
                except (TraceError, SaturnError, ValueError) as problem:
                    events, error = [], str(problem)
                if fields[0] == "Pub" and len(fields) >= 15 and events:
                    events[0]["client_host"] = fields[14]
                rows += [row | position for row in events]
                if error is not None:
                    rows.append({"_error": error, "_body": part.encode(), **position})
        yield pa.RecordBatch.from_pylist(
            [{**row, "ts": row["ts"] * 1000 if row.get("ts") else None} for row in rows], schema=_arrow()
        )


def _arrow() -> pa.Schema:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int32(), "boolean": pa.bool_(), "timestamp": pa.timestamp("us", tz="UTC"),
             "date": pa.date32(), "binary": pa.binary(), "bigint": pa.int64()}  # fmt: skip
    columns = [column.strip().split(" ") for column in f"{EVENTS}, {_POSITION_COLUMNS}".split(",")]
    return pa.schema([pa.field(name, kinds[kind]) for name, kind in columns])


_POSITION_COLUMNS: Final = (
    "_topic string, _brokerName string, _queueId int, _queueOffset bigint, _error string, _body binary"
)


def events_of(messages: DataFrame) -> DataFrame:
    """Convert trace messages, with the source's columns, to events and bad records in one frame."""
    return messages.mapInArrow(parsed, f"{EVENTS}, {_POSITION_COLUMNS}".replace("group string", "`group` string"))


def split(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return (trace_events, trace_events_bad)."""
    valid = rows.where("_error is null").withColumn("date", lake.utc_date("ts")).select(*_NAMES)
    invalid = rows.where("_error is not null").selectExpr(
        "_topic topic", "_brokerName broker_name", "_queueId queue_id", "_queueOffset queue_offset",
        "_error error", "_body body")  # fmt: skip
    return valid, invalid


def build(spark: SparkSession, conf: TraceConf) -> StreamingQuery:
    """Append new messages of the trace topic to trace_events; the query ends when it has caught up."""
    rows = spark.readStream.format("rocketmq").options(
        nameServer=conf.name_servers, topic=conf.topic, startingOffsets="earliest", columns=_SOURCE, **conf.loss_options,
    ).load()  # fmt: skip

    def write(batch: DataFrame, number: int) -> None:
        events = events_of(batch).persist()
        valid, invalid = split(events)
        lake.write_part(valid, conf.table("trace_events"), number)
        lake.write_part(invalid, conf.table("trace_events_bad"), number)
        events.unpersist()

    checkpoint = conf.table("_checkpoint_trace")
    tables = (conf.table("trace_events"), conf.table("trace_events_bad"))
    ownership.claim(ownership.Stream("trace", ownership.BATCH_FOLDERS, checkpoint, tables), spark)
    writer = rows.writeStream.option("checkpointLocation", lake.startable(checkpoint)).foreachBatch(write)
    return writer.trigger(availableNow=True).start()


def sends(events: DataFrame) -> DataFrame:
    """Return a row per message that a broker accepted; a batch has several ids. Half messages count by their Pub record."""
    pubs = events.where("type = 'Pub' and success")
    return pubs.select(
        f.explode(f.split("msg_id", ",")).alias("msg_id"), "topic", f.col("ts").alias("produced_at"),
        f.timestamp_micros(f.unix_micros("ts") + (f.col("cost_ms") * 500).cast("long")).alias("stored_at"),
    ).dropDuplicates(["msg_id", "topic"])  # fmt: skip


def msg_latency(events: DataFrame) -> DataFrame:
    """Return a row per message and delivery; the consumer columns are null for messages that no consumer has processed."""
    before = events.where("type = 'SubBefore'").select(
        "request_id", "msg_id", f.col("ts").alias("began"), f.col("group").alias("began_group"), f.col("retry"))  # fmt: skip
    before = before.dropDuplicates(["request_id", "msg_id"])
    after = events.where("type = 'SubAfter'").select("request_id", "msg_id", "ts", "cost_ms", "group", "success")
    after = after.dropDuplicates(["request_id", "msg_id"])
    deliveries = after.join(before, ["request_id", "msg_id"], "left").select(
        "msg_id",
        f.coalesce("group", "began_group").alias("group"),
        f.coalesce("ts", f.timestamp_micros(f.unix_micros("began") + f.col("cost_ms").cast("long") * 1000)).alias("consumed_at"),
        "retry", "success",
    )  # fmt: skip
    return sends(events).join(deliveries, "msg_id", "left").select(
        "msg_id", "topic", "group", "produced_at", "stored_at", "consumed_at",
        (f.unix_millis("consumed_at") - f.unix_millis("produced_at")).alias("e2e_ms"), "retry", "success",
        lake.utc_date("produced_at").alias("date"),
    )  # fmt: skip


def latency_1m(latency: DataFrame) -> DataFrame:
    """Return percentiles per topic, group and minute of consumption."""
    consumed = latency.where("consumed_at is not null")
    window = lake.utc_start("consumed_at", 60).alias("window_start")
    shares = f.percentile_approx("e2e_ms", [0.5, 0.95, 0.99], 10_000).alias("p")
    counted = consumed.groupBy("topic", "group", window).agg(
        f.count("*").alias("n"), f.expr("count_if(not success)").alias("fail"), shares)  # fmt: skip
    names = [f.col("p")[at].cast("double").alias(name) for at, name in enumerate(("p50_ms", "p95_ms", "p99_ms"))]
    return counted.select("topic", "group", "window_start", "n", "fail", *names)


def slow_consumers(minutes: DataFrame, threshold_ms: float) -> DataFrame:
    """Return minutes whose p99 exceeds the threshold."""
    slow = minutes.where(f.col("p99_ms") > threshold_ms)
    return slow.select("group", "topic", "window_start", "p99_ms", f.lit(float(threshold_ms)).alias("threshold_ms"))


def unconsumed(latency: DataFrame, wait_s: float) -> DataFrame:
    """Return messages not consumed successfully although the newest event is at least wait_s seconds younger."""
    newest = latency.agg(f.greatest(f.max("produced_at"), f.max("consumed_at")).alias("newest"))
    ever = latency.groupBy("msg_id", "topic", "produced_at").agg(f.max(f.coalesce("success", f.lit(False))).alias("ok"))
    age = (f.unix_seconds("newest") - f.unix_seconds("produced_at")).alias("age_s")
    return (
        ever.where("not ok")
        .crossJoin(newest)
        .select("msg_id", "topic", "produced_at", age)
        .where(f.col("age_s") >= wait_s)
    )


def tables(spark: SparkSession, conf: TraceConf, step: Callable[[str], Any]) -> None:
    """Rebuild the other tables from trace_events."""
    events = lake.table(spark, conf.table("trace_events"), EVENTS)
    step("msg_latency")
    lake.replace_table(msg_latency(events), conf.table("msg_latency"), "date")
    latency = lake.table(spark, conf.table("msg_latency"), LATENCY)
    step("latency_1m")
    lake.replace_table(latency_1m(latency).coalesce(1), conf.table("latency_1m"))
    minutes = lake.table(spark, conf.table("latency_1m"), MINUTES)
    lake.replace_table(slow_consumers(minutes, conf.slow_ms).coalesce(1), conf.table("slow_consumers"))
    step("unconsumed")
    lake.replace_table(unconsumed(latency, conf.wait_s).coalesce(1), conf.table("unconsumed"))


def run(spark: SparkSession, conf: TraceConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline; with an interval, repeatedly."""
    return running.repeated(conf, lambda: once(spark, conf, step), step)


def once(spark: SparkSession, conf: TraceConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Store new events, then write the tables and the report."""
    messages = running.watch(build(spark, conf), step)
    bad_records = lake.count(spark, conf.table("trace_events_bad"))
    conf.check_bad(bad_records, "trace_events_bad")
    tables(spark, conf, step)
    step("report")
    minutes = sorted(lake.head(spark, conf.table("latency_1m"), ROWS_MAX), key=lambda row: str(row["window_start"]))
    slow = lake.head(spark, conf.table("slow_consumers"), ROWS_MAX)
    unconsumed, consumed = lake.count(spark, conf.table("unconsumed")), sum(row["n"] for row in minutes)
    facts = {"deliveries": consumed, "failed": sum(row["fail"] for row in minutes), "not consumed": unconsumed,
             "slow minutes": len(slow), "bad records": bad_records}  # fmt: skip
    page = report.write(conf.lake, "trace", "Message traces", facts, figures(minutes),
                        {"slow consumers": slow, "not consumed": lake.head(spark, conf.table("unconsumed"), 20),
                         "by minute": minutes})  # fmt: skip
    message = f"{messages} new trace messages; {consumed} deliveries, {unconsumed} messages not consumed"
    return PipelineOutcome(
        messages, consumed, bad_records, 0, message, page, {"unconsumed": unconsumed, "slow": len(slow)}
    )


def figures(minutes: list[dict[str, Any]]) -> list[report.Figure]:
    """Return the charts of the report."""
    topic_groups = sorted({(row["topic"] or "", row["group"] or "") for row in minutes})

    def series(column: str) -> dict[str, tuple[list[Any], list[Any]]]:
        return {f"{topic} to {group}": ([r["window_start"] for r in group_rows], [r[column] for r in group_rows])
                for topic, group in topic_groups
                for group_rows in [[r for r in minutes if (r["topic"] or "", r["group"] or "") == (topic, group)]]}  # fmt: skip

    return [report.lines("Latency from send to consumed, 99 %", series("p99_ms"), "ms"),
            report.lines("Latency from send to consumed, median", series("p50_ms"), "ms"),
            report.lines("Deliveries per minute", series("n"), "messages")]  # fmt: skip


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    running.broker_options(p)
    p.add_argument("--topic", default=TRACE_TOPIC, help="trace topic (default %(default)s)")
    p.add_argument("--slow", "--slow-ms", default="1s", metavar="TIME", help="a p99 beyond it is slow: 150ms, 1.5s; a "
                   "number is ms (default %(default)s)")  # fmt: skip
    p.add_argument("--wait", default="10min", metavar="TIME", help="a message is not consumed when so old: 90s, 10min; a "
                   "number is seconds (default %(default)s)")  # fmt: skip
    running.loss_option(p)
    running.trigger_option(p)


def conf_of(args: argparse.Namespace) -> TraceConf:
    """Build the configuration from the command line."""
    slow_ms = running.parsed("--slow", args.slow, duration_ms())
    wait_s = running.parsed("--wait", args.wait, duration_s)
    return TraceConf(**running.common(args), topic=args.topic, slow_ms=slow_ms, wait_s=wait_s)


PIPELINE: Final = Pipeline(
    "trace",
    SUMMARIES["trace"],
    {"TOPIC": f"trace messages, {TRACE_TOPIC} unless said otherwise"},
    {"trace_events": EVENTS, "trace_events_bad": BAD_COLUMNS, "msg_latency": LATENCY, "latency_1m": MINUTES, "slow_consumers": SLOW,
     "unconsumed": UNCONSUMED},
    "every trace record once in trace_events; the other tables are recomputed from them, late events included",
    options,
    conf_of,
    build,
    run,
)  # fmt: skip

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["trace", *sys.argv[1:]]))
