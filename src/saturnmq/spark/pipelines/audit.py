"""Audit of loss and duplication: compares what was produced with what is stored and consumed.

In: table `messages` (export or files); for what was produced, table `trace_events` (trace) or a send log, JSON lines of msg_id,
topic, ts (ms); for what was consumed, `trace_events`. Out: audit_daily, lost, dup, offset_gaps, and with --replica
replica_diff, queue ranges whose bodies differ between two lakes. Every count is exact.

A table may hold messages of a topic that was deleted and of the one created again by its name. Their offsets overlap, so that each
queue is split into incarnations before offsets are compared.

Requirements: PIP-12.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from saturnmq.spark.pipelines import SUMMARIES, lake, report, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome

DAILY: Final = (
    "topic string, date date, produced bigint, stored bigint, consumed bigint, "
    "lost bigint, dup bigint, out_of_order bigint"
)
LOST: Final = "uniq_key string, topic string, produced_at timestamp"
DUP: Final = "topic string, uniq_key string, n bigint"
GAPS: Final = "topic string, broker_name string, queue_id int, from_offset bigint, to_offset bigint"
REPLICA: Final = (
    "topic string, broker_name string, queue_id int, from_offset bigint, to_offset bigint, "
    "rows bigint, replica_rows bigint"
)
SENT: Final = "uniq_key string, topic string, produced_at timestamp"
CONSUMED: Final = "uniq_key string"
RANGE_OFFSETS: Final = 1000
QUEUE: Final = ("topic", "broker_name", "queue_id")
ROWS_MAX: Final = 100_000  # limit for a table with a row per topic and day


@dataclass(frozen=True)
class AuditConf(Conf):
    """send_log: JSON lines of what was produced, instead of trace_events.

    replica: another lake that should hold the same messages.
    """

    send_log: str | None = None
    replica: str | None = None
    trace_table: str | None = None

    @property
    def events(self) -> str:
        return self.trace_table or self.table("trace_events")


def sent_of(spark: SparkSession, conf: AuditConf) -> DataFrame:
    """Return what producers report as sent: one row per message id."""
    if conf.send_log:
        log = spark.read.schema("msg_id string, topic string, ts bigint").json(conf.send_log)
        return log.select(f.col("msg_id").alias("uniq_key"), "topic", f.timestamp_millis("ts").alias("produced_at"))
    if not lake.exists(conf.events):
        return spark.createDataFrame([], SENT)
    pubs = spark.read.parquet(conf.events).where("type = 'Pub' and success and msg_type != 1")
    return pubs.select(f.explode(f.split("msg_id", ",")).alias("uniq_key"), "topic", f.col("ts").alias("produced_at"))


def consumed_of(spark: SparkSession, conf: AuditConf) -> DataFrame:
    """Return the message ids that a consumer processed successfully."""
    if not lake.exists(conf.events):
        return spark.createDataFrame([], CONSUMED)
    after = spark.read.parquet(conf.events).where("type = 'SubAfter' and success")
    return after.select(f.col("msg_id").alias("uniq_key")).distinct()


def dup(messages: DataFrame) -> DataFrame:
    """Return message ids that are stored more than once in a topic."""
    counted = messages.groupBy("topic", "uniq_key").agg(f.count("*").alias("n"))
    return counted.where("uniq_key is not null and n > 1").select("topic", "uniq_key", "n")


def lost(sent: DataFrame, messages: DataFrame) -> DataFrame:
    """Return message ids that were acknowledged to a producer and are not stored."""
    first = sent.groupBy("uniq_key", "topic").agg(f.min("produced_at").alias("produced_at"))
    return first.join(messages.select("uniq_key").distinct(), "uniq_key", "left_anti").select(
        "uniq_key", "topic", "produced_at"
    )


def by_incarnation(messages: DataFrame) -> DataFrame:
    """Add column `incarnation`: 0, and one more for each time that the queue's topic was created again.

    Records of a queue in the order of the log have ascending offsets; where the offset falls, the topic was created again. Store
    times are the order instead where they need fewer incarnations: after the loss of a broker's store positions begin again.
    """
    position = f.conv(f.right("offset_msg_id", f.lit(16)), 16, 10).try_cast("long").alias("position")
    rows = messages.select("*", position)
    for name, order in (
        ("by_log", ("position", "queue_offset")),
        ("by_time", ("store_ts", "position", "queue_offset")),
    ):
        ordered = Window.partitionBy(*QUEUE).orderBy(*order)
        offset, stored = f.lag("queue_offset").over(ordered), f.lag("store_ts").over(ordered)
        is_first = (offset > f.col("queue_offset")) | (
            (offset == f.col("queue_offset")) & (stored != f.col("store_ts"))
        )
        rows = rows.withColumn("is_first", f.when(is_first, 1).otherwise(0))
        rows = rows.withColumn(name, f.sum("is_first").over(ordered))
    queue = Window.partitionBy(*QUEUE)
    is_by_log = f.max("by_log").over(queue) <= f.max("by_time").over(queue)
    return rows.withColumn("incarnation", f.when(is_by_log, f.col("by_log")).otherwise(f.col("by_time"))).drop(
        "is_first", "by_log", "by_time", "position"
    )


def _offsets() -> Any:
    return Window.partitionBy(*QUEUE, "incarnation").orderBy("queue_offset")


def offset_gaps(messages: DataFrame) -> DataFrame:
    """Return queue offsets [from, to) that are missing between two existing ones of the same incarnation."""
    positions = by_incarnation(messages.select(*lake.POSITION_COLUMNS, "store_ts", "offset_msg_id"))
    ahead = positions.withColumn("next", f.lead("queue_offset").over(_offsets())).where("next > queue_offset + 1")
    return ahead.select("topic", "broker_name", "queue_id", f.expr("queue_offset + 1").alias("from_offset"),
                        f.col("next").alias("to_offset"))  # fmt: skip


def recreated(messages: DataFrame) -> int:
    """Return how many queues hold messages of more than one incarnation."""
    positions = by_incarnation(messages.select(*lake.POSITION_COLUMNS, "store_ts", "offset_msg_id"))
    return positions.where("incarnation > 0").select(*QUEUE).distinct().count()


def audit_daily(sent: DataFrame, messages: DataFrame, consumed: DataFrame) -> DataFrame:
    """Return counts per topic and day: the day a message was sent, where known, else the day it was stored.

    out_of_order: messages whose store time is earlier than that of their predecessor in the queue's same incarnation.
    """
    before = f.lag("store_ts").over(_offsets())
    rows = by_incarnation(messages.select(*lake.POSITION_COLUMNS, "uniq_key", "store_ts", "offset_msg_id"))
    ordered = rows.select("topic", "uniq_key", "store_ts", f.expr("0").alias("zero"),
                              (f.col("store_ts") < before).cast("long").alias("late"))  # fmt: skip
    stored = ordered.groupBy("topic", "uniq_key").agg(
        f.count("*").alias("n"), f.min("store_ts").alias("stored_at"), f.sum(f.coalesce("late", "zero")).alias("late"))  # fmt: skip
    first = sent.groupBy("topic", "uniq_key").agg(f.min("produced_at").alias("produced_at"))
    by_message = first.join(stored, ["topic", "uniq_key"], "full_outer").join(
        consumed.withColumn("done", f.lit(1)), "uniq_key", "left")  # fmt: skip
    day = lake.utc_date(f.coalesce("produced_at", "stored_at")).alias("date")
    return by_message.groupBy("topic", day).agg(
        f.count("produced_at").alias("produced"),
        f.coalesce(f.sum("n"), f.lit(0)).alias("stored"),
        f.count("done").alias("consumed"),
        f.expr("count_if(produced_at is not null and n is null)").alias("lost"),
        f.coalesce(f.sum(f.when(f.col("uniq_key").isNotNull(), f.greatest(f.col("n") - 1, f.lit(0)))), f.lit(0)).alias(
            "dup"
        ),
        f.coalesce(f.sum("late"), f.lit(0)).alias("out_of_order"),
    )


def replica_diff(messages: DataFrame, replica: DataFrame) -> DataFrame:
    """Return queue ranges whose messages differ, by the CRC of their bodies."""

    def summed(rows: DataFrame, name: str) -> DataFrame:
        begin = f.floor(f.col("queue_offset") / RANGE_OFFSETS) * RANGE_OFFSETS
        crc = f.expr("sum(cast(crc32(concat(body, encode(cast(queue_offset as string), 'utf-8'))) as decimal(20)))")
        return rows.groupBy("topic", "broker_name", "queue_id", begin.cast("long").alias("from_offset")).agg(
            f.count("*").alias(name), crc.alias(f"{name}_crc"))  # fmt: skip

    keys = ["topic", "broker_name", "queue_id", "from_offset"]
    compared = summed(messages, "rows").join(summed(replica, "replica_rows"), keys, "full_outer")
    return compared.where("not (rows_crc <=> replica_rows_crc)").select(
        *keys[:3], "from_offset", (f.col("from_offset") + RANGE_OFFSETS).alias("to_offset"),
        f.coalesce("rows", f.lit(0)).alias("rows"), f.coalesce("replica_rows", f.lit(0)).alias("replica_rows"))  # fmt: skip


def _messages(spark: SparkSession, path: str) -> DataFrame:
    return lake.table(spark, path, lake.MESSAGES, needed="saturnmq spark export or files makes it")


def build(spark: SparkSession, conf: AuditConf) -> DataFrame:
    """Return table `audit_daily`."""
    return audit_daily(sent_of(spark, conf), _messages(spark, conf.table("messages")), consumed_of(spark, conf))


def run(spark: SparkSession, conf: AuditConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline: write all tables and the report."""
    messages, sent = _messages(spark, conf.table("messages")), sent_of(spark, conf)
    tables = {"audit_daily": build(spark, conf), "lost": lost(sent, messages), "dup": dup(messages),
              "offset_gaps": offset_gaps(messages)}  # fmt: skip
    if conf.replica:
        tables["replica_diff"] = replica_diff(messages, _messages(spark, f"{conf.replica.rstrip('/')}/messages"))
    for name, frame in tables.items():
        step(name)
        lake.replace_table(frame.coalesce(1), conf.table(name))
    step("report")
    daily = sorted(
        lake.head(spark, conf.table("audit_daily"), ROWS_MAX), key=lambda row: (str(row["date"]), str(row["topic"]))
    )
    row_counts = {name: lake.count(spark, conf.table(name)) for name in tables if name != "audit_daily"}
    counts = row_counts | {"recreated": recreated(messages)}
    total = {
        name: sum(row[name] or 0 for row in daily)
        for name in ("produced", "stored", "consumed", "lost", "dup", "out_of_order")
    }
    page = report.write(conf.lake, "audit", "Audit of loss and repetition", {**total, **counts}, figures(daily),
                        {"per topic and day": daily, **_samples(spark, conf, row_counts)})  # fmt: skip
    message = (f"{total['produced']} produced, {total['stored']} stored, {total['consumed']} consumed: {counts['lost']} lost, "
               f"{counts['dup']} doubled, {counts['offset_gaps']} gaps")  # fmt: skip
    if counts["recreated"]:
        message += (
            f"\n{counts['recreated']} queues hold messages of a topic that was created again; "
            "each topic was compared by itself"
        )
    return PipelineOutcome(total["stored"], len(daily), 0, None, message, page, counts)


def _samples(spark: SparkSession, conf: AuditConf, counts: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
    return {f"{name}: the first of {n}": lake.head(spark, conf.table(name), 20) for name, n in counts.items() if n}


def figures(daily: list[dict[str, Any]]) -> list[report.Figure]:
    """Return the charts of the report."""
    names = [f"{row['topic']} {row['date']}" for row in daily]
    flow = {name: [row[name] for row in daily] for name in ("produced", "stored", "consumed")}
    faults = {name: [row[name] for row in daily] for name in ("lost", "dup", "out_of_order")}
    return [report.bars("Messages by topic and day", names, flow), report.bars("What is wrong", names, faults)]


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    p.add_argument(
        "--send-log", metavar="FILE", help="what was produced, JSON lines of msg_id, topic, ts; default trace_events"
    )
    p.add_argument("--trace-events", metavar="DIR", help="table of pipeline trace (default LAKE/trace_events)")
    p.add_argument("--replica", metavar="DIR", help="another lake that must hold the same messages")


def conf_of(args: argparse.Namespace) -> AuditConf:
    """Build the configuration from the command line."""
    return AuditConf(
        **running.common(args), send_log=args.send_log, replica=args.replica, trace_table=args.trace_events
    )


PIPELINE: Final = Pipeline(
    "audit",
    SUMMARIES["audit"],
    {"messages": "of export or files", "trace_events": "of trace, or --send-log"},
    {"audit_daily": DAILY, "lost": LOST, "dup": DUP, "offset_gaps": GAPS, "replica_diff": REPLICA},
    "exact counts; run again on the same input it makes the same tables",
    options,
    conf_of,
    build,
    run,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["audit", *sys.argv[1:]]))
