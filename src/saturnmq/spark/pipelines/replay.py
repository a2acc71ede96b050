"""Replays messages of a lake or of commit log files to a topic, each once.

In: table `messages`, or files by --path. Out: a topic, and table `replay_log`, one row per chunk and state. A replayed message has
the body, tags, keys and user properties of the old one, and property REPLAY_OF, the offset message id of the old one; properties
set by brokers and clients are dropped. Messages are sent in chunks by store time, those of a sharding key in order. The same
command completes a run that was killed: finished chunks are skipped, and an unfinished one is compared with the destination.

Requirements: PIP-09.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from saturnmq.protocol.codes import RESERVED_PROPERTIES
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark.pipelines import SUMMARIES, files, lake, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome
from saturnmq.spark.topic_reads import unix_ms

REPLAY_OF: Final = "REPLAY_OF"
LOG: Final = (
    "run string, src string, dst string, chunk int, rows bigint, first_msg_id string, last_msg_id string, state string"
)
_SYSTEM: Final = sorted(
    RESERVED_PROPERTIES | {REPLAY_OF, "SPARK_ROW", "__SHARDINGKEY", "TRACE_ON", "MSG_REGION", "CLUSTER"}
)


@dataclass(frozen=True)
class ReplayConf(Conf):
    """dst: destination topic. rate: messages per second, 0 for no limit. chunks: maximum number of chunks."""

    dst: str = ""
    path: str | None = None
    topic: str | None = None
    since: str | None = None
    until: str | None = None
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    where: str | None = None
    rate: int = 0
    chunks: int = 4

    @property
    def run_id(self) -> str:
        """Identifies a run: the same for the same command, which is how a run is completed."""
        fields = [
            self.path,
            self.topic,
            self.dst,
            self.since,
            self.until,
            self.keys,
            self.tags,
            self.where,
            self.chunks,
        ]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:12]


def build(spark: SparkSession, conf: ReplayConf) -> DataFrame:
    """Return the selected messages as lake rows."""
    since, until = (
        unix_ms(name, text) if text else None for name, text in (("since", conf.since), ("until", conf.until))
    )
    if conf.path:
        rows = files.build(spark, files.FilesConf(lake=conf.lake, path=conf.path, topics=conf.topic or "",
                                                  since_ms=since, until_ms=until))  # fmt: skip
    else:
        rows = lake.table(
            spark, conf.table("messages"), lake.MESSAGES, needed="saturnmq spark export or files makes it"
        )
    if conf.topic:
        rows = rows.where(f.col("topic") == conf.topic)
    if since is not None:
        rows = rows.where(f.col("store_ts") >= f.timestamp_millis(f.lit(since)))
    if until is not None:
        rows = rows.where(f.col("store_ts") < f.timestamp_millis(f.lit(until)))
    if conf.tags:
        rows = rows.where(f.col("tags").isin(*conf.tags))
    if conf.keys:
        rows = rows.where(f.arrays_overlap(f.split("keys", " "), f.array(*[f.lit(key) for key in conf.keys])))
    return rows.where(conf.where) if conf.where else rows


def outgoing(rows: DataFrame) -> DataFrame:
    """Convert lake rows for the sink, with the sharding key; `topic` is the destination."""
    is_user_property = f"substring_index(p, '\\u0001', 1) not in ({_quoted(_SYSTEM)})"
    user_properties = f"filter(split(properties, '\\u0002'), p -> p != '' and {is_user_property})"
    properties = f.concat_ws(
        "\x02", f.expr(user_properties), f.concat(f.lit(f"{REPLAY_OF}\x01"), f.col("offset_msg_id"))
    )
    key = f.expr(lake.property_of("__SHARDINGKEY"))
    return rows.select("topic", "body", "tags", "keys", properties.alias("properties"), key.alias("shardingKey"), "store_ts",
                       "broker_name", "queue_id", "queue_offset")  # fmt: skip


def _quoted(names: list[str]) -> str:
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)


def send(spark: SparkSession, name_servers: str, rows: DataFrame, rate: int = 0) -> None:
    """Send what `outgoing` returned, at least once; comparing with the destination makes it exactly once."""
    options = {"nameServer": name_servers, "batchMessages": "128"}
    by = f.coalesce("shardingKey", f.concat_ws("/", "broker_name", "queue_id"))
    if rate:
        slots = spark.sparkContext.defaultParallelism
        tasks, per_second = paced_tasks(rate, min(int(spark.conf.get("spark.sql.shuffle.partitions") or "1"), slots))
        options["maxPerSecond"] = str(per_second)
        parts = rows.repartition(tasks, by)  # a number keeps adaptive execution from merging tasks
    else:
        parts = rows.repartition(by)
    ordered = parts.sortWithinPartitions("store_ts", "broker_name", "queue_id", "queue_offset")
    ordered.select("topic", "body", "tags", "keys", "properties", "shardingKey").write.format("rocketmq").options(
        **options).mode("append").save()  # fmt: skip


def paced_tasks(rate: int, tasks_max: int) -> tuple[int, int]:
    """Return (tasks, messages per second of each), which together do not exceed the rate."""
    tasks = min(rate, tasks_max)
    return tasks, rate // tasks


def arrived(spark: SparkSession, name_servers: str, topic: str) -> DataFrame:
    """Return column replay_of of the messages in a destination; empty when the topic does not exist yet."""
    try:
        _ask(name_servers, topic)
    except SaturnError:
        return spark.createDataFrame([], "replay_of string")
    rows = spark.read.format("rocketmq").options(nameServer=name_servers, topic=topic, columns="properties").load()
    return rows.select(f.expr(lake.property_of(REPLAY_OF)).alias("replay_of")).where("replay_of is not null").distinct()


def _ask(name_servers: str, topic: str) -> None:
    from saturnmq.spark.connect import ConnectionOptions, linked

    with linked(ConnectionOptions(name_servers)) as link:
        link.run(link.puller.queues(topic))


def _note(spark: SparkSession, conf: ReplayConf, row: tuple[Any, ...]) -> None:
    """Write one row of the log to a folder per run, chunk and state, so that writing it again changes nothing."""
    name = f"{conf.table('replay_log')}/part={row[0]}-{row[3]}-{row[7]}"
    spark.createDataFrame([row], LOG).coalesce(1).write.mode("overwrite").parquet(name)


def states(spark: SparkSession, conf: ReplayConf) -> dict[int, set[str]]:
    """Return what the log records of this run: chunk -> states."""
    states_by_chunk: dict[int, set[str]] = {}
    for row in lake.table(spark, conf.table("replay_log"), LOG).where(f.col("run") == conf.run_id).collect():
        states_by_chunk.setdefault(row["chunk"], set()).add(row["state"])
    return states_by_chunk


def bounds(spark: SparkSession, conf: ReplayConf, rows: DataFrame) -> list[int]:
    """Return the store times, in microseconds, where chunks end; fixed by the first attempt of a run."""
    path = lake.in_lake(conf.lake, "_replay", f"{conf.run_id}.json")
    if path.exists():
        stored_ends: list[int] = json.loads(path.read_text())
        return stored_ends
    shares = [n / conf.chunks for n in range(1, conf.chunks)]
    cuts = rows.agg(f.percentile_approx(f.unix_micros("store_ts"), shares, 10_000) if shares else f.lit(None),
                    f.max(f.unix_micros("store_ts"))).first()  # fmt: skip
    if cuts is None or cuts[1] is None:
        return []
    ends = sorted({*(cuts[0] or []), cuts[1]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(ends))
    path.with_suffix(".new").rename(path)
    return ends


def run(spark: SparkSession, conf: ReplayConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline, chunk by chunk."""
    rows = build(spark, conf)
    step("planning")
    states_by_chunk = states(spark, conf)
    limits = lake.in_lake(conf.lake, "_replay", f"{conf.run_id}.json")
    if states_by_chunk and not limits.exists():
        raise ConfigError(
            f"{conf.table('replay_log')}: run {conf.run_id} has sent {len(states_by_chunk)} chunks, and the file of their "
            f"limits, {limits}, is missing: other limits would skip or repeat messages; restore it, or replay what is missing "
            "by --since TIME"
        )
    ends = bounds(spark, conf, rows)
    source, sent, low = conf.path or conf.table("messages"), 0, -(2**62)
    for number, high in enumerate(ends):
        part = rows.where((f.unix_micros("store_ts") > low) & (f.unix_micros("store_ts") <= high))
        low = high
        if "done" in states_by_chunk.get(number, set()):
            continue
        step(f"chunk {number + 1} of {len(ends)}")
        if "sending" in states_by_chunk.get(number, set()):
            part = part.join(
                arrived(spark, conf.name_servers, conf.dst), f.col("offset_msg_id") == f.col("replay_of"), "left_anti"
            )
        first = part.agg(
            f.count("*"), f.min_by("offset_msg_id", "store_ts"), f.max_by("offset_msg_id", "store_ts")
        ).first()
        count, begin, end = tuple(first) if first else (0, None, None)
        head = (conf.run_id, source, conf.dst, number, int(count), begin, end)
        _note(spark, conf, (*head, "sending"))
        if count:
            send(spark, conf.name_servers, outgoing(part).withColumn("topic", f.lit(conf.dst)), conf.rate)
        _note(spark, conf, (*head, "done"))
        sent += int(count)
    message = f"{sent} messages went to topic {conf.dst}" + (
        "" if sent else ": this run was done before, or nothing was meant"
    )
    return PipelineOutcome(sent, sent, 0, None, message, more={"replay": conf.run_id})


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    running.broker_options(p)
    p.add_argument("--to", required=True, metavar="TOPIC", help="destination")
    p.add_argument(
        "--path", metavar="DIR|URL", help="replay from commit log files or an archive, not from LAKE/messages"
    )
    p.add_argument("--topic", help="only messages of this topic")
    p.add_argument("--since", metavar="TIME", help="stored at this time (UTC) or later")
    p.add_argument("--until", metavar="TIME", help="stored before this time (UTC)")
    p.add_argument("--key", action="append", default=[], help="with this key; several times for several")
    p.add_argument("--tag", action="append", default=[], help="with this tag; several times for several")
    p.add_argument("--where", metavar="SQL", help="any condition on the columns of messages")
    p.add_argument("--rate", type=int, default=0, metavar="N", help="messages per second at most")
    p.add_argument(
        "--chunks", type=int, default=4, metavar="N", help="chunks, each compared alone after a kill (default 4)"
    )


def conf_of(args: argparse.Namespace) -> ReplayConf:
    """Build the configuration from the command line. Raises ConfigError."""
    if args.chunks < 1 or args.rate < 0:
        raise ConfigError("option --chunks must be at least 1, --rate at least 0")
    return ReplayConf(**running.common(args), dst=args.to, path=args.path, topic=args.topic, since=args.since, until=args.until,
                      keys=tuple(args.key), tags=tuple(args.tag), where=args.where, rate=args.rate, chunks=args.chunks)  # fmt: skip


PIPELINE: Final = Pipeline(
    "replay",
    SUMMARIES["replay"],
    {"messages": "of export or files, or files by --path"},
    {"TOPIC": "body, tags, keys, own properties, REPLAY_OF", "replay_log": LOG},
    "each message once: the same command completes a run that was killed, and does nothing when it was done",
    options,
    conf_of,
    build,
    run,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["replay", *sys.argv[1:]]))
