"""Imports commit log files of a running, stopped or crashed broker into a lake, and reports damage in them.

In: a store folder, its commitlog, a DLedger folder or one file; it is never written to. Out: tables `messages` and
`commitlog_check`.

Requirements: PIP-14, FMD-01..FMD-09.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import decode_record
from saturnmq.spark.log_archive import opened
from saturnmq.spark.log_scan import ScanFile, chunks, log_files, piece_of
from saturnmq.spark.pipelines import SUMMARIES, lake, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome

CHECK: Final = (
    "file string, from_byte bigint, to_byte bigint, frames bigint, bad_crc bigint, holes bigint, torn_tail boolean"
)

FILES_MAX: Final = 1_000_000


@dataclass(frozen=True)
class FilesConf(Conf):
    """Records to read. topics: all when empty. broker_name: value of column broker_name, which files do not contain.

    since_ms, until_ms: store times to read, which saves fetching the other files of an archive.
    """

    path: str = ""
    topics: str = ""
    broker_name: str | None = None
    include_system: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    partition_by: tuple[str, ...] = lake.PARTITIONS


def build(spark: SparkSession, conf: FilesConf) -> DataFrame:
    """Return the messages; damaged records are skipped and recorded under LAKE/_damage."""
    options = {"mode": "files", "path": conf.path, "plan": "log", "corrupt": "report", "columns": lake.SOURCE_COLUMNS,
               "dataLossLog": conf.table("_damage"), "includeSystem": str(conf.include_system).lower()}  # fmt: skip
    times = {"startingTimestamp": conf.since_ms, "endingTimestamp": conf.until_ms}
    options |= {name: str(time_ms) for name, time_ms in times.items() if time_ms is not None}
    if conf.topics:
        options["topic"] = conf.topics
    if conf.broker_name:
        options["brokerName"] = conf.broker_name
    return lake.messages_of(spark.read.format("rocketmq").options(**options).load())


def check_file(file: ScanFile) -> tuple[str, int, int, int, int, int, bool]:
    """Return a row of `commitlog_check`: from the file's first byte to the end of its last valid record. Runs in a worker."""
    frames, bad_crc, holes, torn, end = 0, 0, 0, False, 0
    for chunk in chunks(piece_of(file)):
        for damage in chunk.damaged:
            if not damage.torn:
                holes += 1
            elif _has_content(file.path, damage.begin, damage.end):
                torn = True  # zeros are preallocated space
        for at in chunk.positions.tolist():
            frames += 1
            try:
                decode_record(chunk.data, at, check_crc=True)
            except MessageError:
                bad_crc += 1
        if len(chunk.positions):
            end = chunk.at + len(chunk.data)
    return Path(file.path).name, file.base, file.base + end, frames, bad_crc, holes, torn


def _has_content(path: str, begin: int, end: int) -> bool:
    with opened(path) as handle:
        while begin < end:
            data = os.pread(handle, min(1 << 20, end - begin), begin)
            if not data:
                return False
            if data.strip(b"\0"):
                return True
            begin += len(data)
    return False


def check(spark: SparkSession, conf: FilesConf) -> DataFrame:
    """Return table `commitlog_check`, one task per file."""
    files = log_files(conf.path)
    file_fields = [tuple(file) for file in files]
    if not file_fields:
        return spark.createDataFrame([], CHECK)
    rows = spark.sparkContext.parallelize(file_fields, len(file_fields)).map(_check)
    return spark.createDataFrame(rows, CHECK)


def _check(file_fields: tuple[Any, ...]) -> tuple[str, int, int, int, int, int, bool]:
    return check_file(ScanFile(*file_fields))


def run(spark: SparkSession, conf: FilesConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline; a repeated run on the same files writes the same tables."""
    step("checking files")
    lake.replace_table(check(spark, conf).coalesce(1), conf.table("commitlog_check"))
    checked = lake.head(spark, conf.table("commitlog_check"), FILES_MAX)
    frames, bad_crc, holes, torn = (
        sum(int(row[name]) for row in checked) for name in ("frames", "bad_crc", "holes", "torn_tail")
    )
    step("writing messages")
    with lake.writing(conf.table("messages")):
        lake.replace_table(build(spark, conf), conf.table("messages"), *conf.partition_by)
    rows = lake.count(spark, conf.table("messages"))
    message = (f"{rows} messages of {frames} records in {len(checked)} files are in {conf.table('messages')}; "
               f"damaged: {bad_crc} records, "
               f"{holes} holes, {torn} torn ends")  # fmt: skip
    return PipelineOutcome(
        frames, rows, bad_crc + holes, None, message, more={"table": conf.table("messages"), "torn": torn}
    )


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    p.add_argument(
        "--path",
        required=True,
        metavar="DIR|URL",
        help="store folder, its commitlog, a DLedger folder, an archive, or one file",
    )
    p.add_argument("--topic", default="", metavar="TOPIC,...", help="only these topics (default all)")
    p.add_argument("--broker-name", metavar="NAME", help="what column broker_name says")
    p.add_argument("--include-system", action="store_true", help="also what consumers never see")
    p.add_argument("--partition-by", default=",".join(lake.PARTITIONS), metavar="COLUMN,...",
                   help="folders to split into (default %(default)s)")  # fmt: skip


def conf_of(args: argparse.Namespace) -> FilesConf:
    """Build the configuration from the command line."""
    parts = tuple(part.strip() for part in args.partition_by.split(",") if part.strip())
    return FilesConf(**running.common(args), path=args.path, topics=args.topic, broker_name=args.broker_name,
                     include_system=args.include_system, partition_by=parts)  # fmt: skip


PIPELINE: Final = Pipeline(
    "files",
    SUMMARIES["files"],
    {"DIR": "commit log files of SaturnMQ or Apache RocketMQ, DLedger's included"},
    {"messages": lake.MESSAGES, "commitlog_check": CHECK},
    "every valid record once; the folder is only read; run again it makes the same tables",
    options,
    conf_of,
    build,
    run,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["files", *sys.argv[1:]]))
