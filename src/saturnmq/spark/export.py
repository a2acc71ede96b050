"""Lake export: a topic to Parquet files, exactly once, by Spark's own file sink and its checkpoint. Source: PIP-02, PIP-03, PIP-08.

In: a topic. Out: a Parquet folder with the source's default columns, partitioned as asked. Run again, it adds only what is new;
killed and run again, nothing is missing and nothing is there twice.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow  # noqa: F401 - the extra is there or this module is not
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import session
from saturnmq.spark.progress import Report

POLL_SECONDS = 1


@dataclass(frozen=True)
class ExportConf:
    """What to export and where to. max_offsets: messages per micro-batch, 0 for all at once."""

    name_servers: str
    topic: str
    out: str
    partition_by: tuple[str, ...] = ("topic",)
    max_offsets: int = 0
    once: bool = True
    interval: str = "10 seconds"

    @property
    def checkpoint(self) -> str:
        return str(Path(self.out) / "_checkpoint")

    @property
    def table(self) -> str:
        return str(Path(self.out) / "messages")


def build(spark: SparkSession, conf: ExportConf) -> StreamingQuery:
    """Start the export; with `once` it ends by itself when it has caught up."""
    reader = (
        spark.readStream.format("rocketmq")
        .option("nameServer", conf.name_servers)
        .option("topic", conf.topic)
        .option("startingOffsets", "earliest")
    )
    if conf.max_offsets:
        reader = reader.option("maxOffsetsPerTrigger", str(conf.max_offsets))
    writer = (
        reader.load()
        .writeStream.format("parquet")
        .option("path", conf.table)
        .option("checkpointLocation", conf.checkpoint)
        .partitionBy(*conf.partition_by)
        .outputMode("append")
    )
    writer = writer.trigger(availableNow=True) if conf.once else writer.trigger(processingTime=conf.interval)
    return writer.start()


def parser() -> argparse.ArgumentParser:
    """Options of `saturnmq spark export`."""
    p = argparse.ArgumentParser(prog="saturnmq spark export", description="Write a topic to Parquet files.")
    p.add_argument("--name-servers", required=True, metavar="HOST:PORT;...", help="name servers of the cluster")
    p.add_argument("--topic", required=True)
    p.add_argument("--out", required=True, metavar="DIR", help="folder of the table; its checkpoint lies there too")
    p.add_argument(
        "--partition-by", default="topic", metavar="COLUMN,...", help="folders to split into (default topic)"
    )
    p.add_argument("--max-offsets", type=int, default=0, metavar="N", help="messages per micro-batch (default all)")
    p.add_argument("--follow", action="store_true", help="go on until stopped, instead of ending when caught up")
    p.add_argument("--json", action="store_true", help="the result as one JSON document")
    p.add_argument("--quiet", action="store_true", help="no progress")
    return p


def main(argv: Sequence[str]) -> int:
    """Run the pipeline; 0 when it is done. argv begins with the pipeline's name."""
    if not argv or argv[0] != "export":
        raise ConfigError(f"unknown pipeline {argv[0] if argv else ''!r}; there is: export")
    args = parser().parse_args(argv[1:])
    conf = ExportConf(
        args.name_servers,
        args.topic,
        args.out,
        tuple(part.strip() for part in args.partition_by.split(",") if part.strip()),
        args.max_offsets,
        not args.follow,
    )
    began = time.monotonic()
    spark = session("saturnmq-export", name_server=conf.name_servers)
    try:
        query = build(spark, conf)
        rows = watch(query, f"export {conf.topic}", quiet=args.quiet or args.json)
    finally:
        spark.stop()
    row = {
        "pipeline": "export",
        "topic": conf.topic,
        "rows": rows,
        "table": conf.table,
        "seconds": round(time.monotonic() - began, 1),
    }
    if args.json:
        print(json.dumps({"schema": 1, "command": "spark export", "rows": [row]}), flush=True)
    else:
        print(f"{rows} rows of topic {conf.topic} are in {conf.table}", flush=True)
    return 0


def watch(query: StreamingQuery, title: str, *, quiet: bool) -> int:
    """Show progress until the query ends; the rows it wrote. Raises what made it fail."""
    seen: dict[int, int] = {}
    with Report(title, quiet=quiet) as report:
        while True:
            ended = query.awaitTermination(POLL_SECONDS)
            for progress in query.recentProgress:
                seen[int(progress["batchId"])] = int(progress["numInputRows"])
            report.at(sum(seen.values()))
            if ended:
                return sum(seen.values())


if __name__ == "__main__":
    sys.exit(main(["export", *sys.argv[1:]]))
