"""Dead letters of a group: lists and classifies them, and resends a selection.

In: topics `%DLQ%GROUP` and, with --retries, `%RETRY%GROUP`. Out: tables `dlq_messages` and `dlq_summary`; with --resend the origin
topics, and `dlq_resent`, which records what was resent. A message is resent once: what the origin topic or dlq_resent contains is
skipped.

Requirements: PIP-13.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from saturnmq.protocol.codes import DLQ_PREFIX, RETRY_PREFIX
from saturnmq.spark.pipelines import SUMMARIES, lake, replay, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES: Final = lake.MESSAGES + (
    ", group string, origin_message_id string, retry_topic string, signature string, last_error string"
)
SUMMARY: Final = "group string, topic string, tags string, signature string, date date, n bigint, oldest timestamp"
RESENT: Final = "offset_msg_id string, retry_topic string, ts timestamp"
SHAPE_CHARS_MAX: Final = 200


@dataclass(frozen=True)
class DlqConf(Conf):
    """resend: SQL condition on dlq_messages, None for no resending.

    error_property: message property in which consumers record failures.
    """

    group: str = ""
    retries: bool = False
    error_property: str | None = None
    resend: str | None = None
    rate: int = 0


def shape(body: bytes | None) -> str:
    """Return the shape of a body: fields and types of a JSON object, text with digits replaced, or binary."""
    if not body:
        return "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "binary"
    try:
        value = json.loads(text)
    except ValueError:
        return "text " + re.sub(r"\d+", "#", text.strip())[:40]
    if isinstance(value, dict):
        return ("{" + ", ".join(f"{key}: {_kind(value[key])}" for key in sorted(value)) + "}")[:SHAPE_CHARS_MAX]
    return _kind(value)


def _kind(value: Any) -> str:
    names = {
        bool: "bool",
        int: "number",
        float: "number",
        str: "text",
        list: "list",
        dict: "object",
        type(None): "null",
    }
    return names[type(value)]


def _shaped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add column shape; runs in workers."""
    import pyarrow as pa

    for batch in batches:
        shapes = pa.array([shape(body) for body in batch.column("body").to_pylist()], type=pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, shapes], names=[*batch.schema.names, "shape"])


def build(spark: SparkSession, conf: DlqConf) -> DataFrame:
    """Return table `dlq_messages` from what the brokers hold now."""
    topics = [DLQ_PREFIX + conf.group] + ([RETRY_PREFIX + conf.group] if conf.retries else [])
    rows = spark.read.format("rocketmq").options(
        nameServer=conf.name_servers, topic=",".join(topics), columns=lake.SOURCE_COLUMNS).load()  # fmt: skip
    messages = lake.messages_of(rows)
    schema = StructType([*messages.schema.fields, StructField("shape", StringType(), True)])
    error = f.expr(lake.property_of(conf.error_property)) if conf.error_property else f.lit(None).cast("string")
    masked_error = f.regexp_replace(error, r"\d+", "#")
    named = messages.mapInArrow(_shaped, schema)
    return named.select(
        *messages.columns,
        f.lit(conf.group).alias("group"),
        f.coalesce(f.expr(lake.property_of("DLQ_ORIGIN_MESSAGE_ID")), f.expr(lake.property_of("ORIGIN_MESSAGE_ID")),
                   f.col("uniq_key")).alias("origin_message_id"),
        f.coalesce(f.expr(lake.property_of("RETRY_TOPIC")), f.expr(lake.property_of("DLQ_ORIGIN_TOPIC"))).alias("retry_topic"),
        f.concat_ws(" | ", "shape", masked_error).alias("signature"),
        error.alias("last_error"),
    )  # fmt: skip


def summary(messages: DataFrame) -> DataFrame:
    """Return table `dlq_summary`."""
    return messages.groupBy("group", f.coalesce("retry_topic", "topic").alias("topic"), "tags", "signature", "date").agg(
        f.count("*").alias("n"), f.min("born_ts").alias("oldest"))  # fmt: skip


def resend(spark: SparkSession, conf: DlqConf, messages: DataFrame) -> int:
    """Send the selected messages to their origin topics and record them; return how many."""
    chosen = messages.where(f.col("retry_topic").isNotNull()).where(conf.resend or "false")
    chosen = chosen.join(
        lake.table(spark, conf.table("dlq_resent"), RESENT).select("offset_msg_id"), "offset_msg_id", "left_anti"
    )
    for row in chosen.select("retry_topic").distinct().collect():
        already_sent = replay.arrived(spark, conf.name_servers, row["retry_topic"])
        chosen = chosen.join(already_sent, f.col("offset_msg_id") == f.col("replay_of"), "left_anti")
    chosen = chosen.localCheckpoint()  # materialize, so that exactly what is sent is recorded
    count = chosen.count()
    if count:
        target = chosen.withColumn("topic", f.col("retry_topic"))
        replay.send(spark, conf.name_servers, replay.outgoing(target), conf.rate)
        noted = chosen.select("offset_msg_id", "retry_topic", f.current_timestamp().alias("ts"))
        noted.coalesce(1).write.mode("append").parquet(f"{conf.table('dlq_resent')}/part={int(time.time() * 1000)}")
    return count


def run(spark: SparkSession, conf: DlqConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline."""
    step("reading dead letters")
    lake.replace_table(build(spark, conf), conf.table("dlq_messages"))
    messages = spark.read.parquet(conf.table("dlq_messages"))
    step("summary")
    lake.replace_table(summary(messages).coalesce(1), conf.table("dlq_summary"))
    count, sent = lake.count(spark, conf.table("dlq_messages")), 0
    if conf.resend:
        step("sending again")
        sent = resend(spark, conf, messages)
    kinds = len({row["signature"] for row in lake.head(spark, conf.table("dlq_summary"), 10_000)})
    message = f"{count} dead letters of group {conf.group}, {kinds} kinds, are in {conf.table('dlq_messages')}; {sent} sent again"
    return PipelineOutcome(count, count, 0, None, message, more={"resent": sent, "kinds": kinds})


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    running.broker_options(p)
    p.add_argument("--group", required=True, help="consumer group")
    p.add_argument("--retries", action="store_true", help="also what waits to be tried again")
    p.add_argument("--error-property", metavar="NAME", help="message property in which consumers note why they failed")
    p.add_argument(
        "--resend", metavar="SQL", help="send these again, a condition on dlq_messages such as: tags = 'paid'"
    )
    p.add_argument("--rate", type=int, default=0, metavar="N", help="messages per second at most")


def conf_of(args: argparse.Namespace) -> DlqConf:
    """Build the configuration from the command line."""
    return DlqConf(**running.common(args), group=args.group, retries=args.retries, error_property=args.error_property,
                   resend=args.resend, rate=args.rate)  # fmt: skip


PIPELINE: Final = Pipeline(
    "dlq",
    SUMMARIES["dlq"],
    {"%DLQ%GROUP": "dead letters", "%RETRY%GROUP": "what waits to be tried again (--retries)"},
    {"dlq_messages": MESSAGES, "dlq_summary": SUMMARY, "dlq_resent": RESENT},
    "a dead letter is sent again once, however often the command runs",
    options,
    conf_of,
    build,
    run,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["dlq", *sys.argv[1:]]))
