"""Former module path of the export pipeline, kept for callers; the implementation is saturnmq.spark.pipelines.export."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow  # noqa: F401 - fail at import when the extra is not installed
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.config.settings import parse_duration_ms
from saturnmq.spark.pipelines import export, lake, main
from saturnmq.spark.progress import Report

POLL_SECONDS = 1


@dataclass(frozen=True)
class ExportConf:
    """What to export and where to. max_offsets: messages per micro-batch, 0 for no limit."""

    name_servers: str
    topic: str
    out: str
    partition_by: tuple[str, ...] = lake.PARTITIONS
    max_offsets: int = 0
    once: bool = True
    interval: str = "10 seconds"

    @property
    def checkpoint(self) -> str:
        return self._conf.checkpoint

    @property
    def table(self) -> str:
        return self._conf.messages

    @property
    def _conf(self) -> export.ExportConf:
        interval_ms = None if self.once else parse_duration_ms(self.interval)
        return export.ExportConf(
            self.name_servers, self.out, interval_ms, None, self.topic, self.partition_by, self.max_offsets
        )


def build(spark: SparkSession, conf: ExportConf) -> StreamingQuery:
    """Start the export; with `once` the query ends when it has caught up."""
    return export.build(spark, conf._conf)


def watch(query: StreamingQuery, title: str, *, quiet: bool) -> int:
    """Show progress until the query ends; return the number of rows it wrote. Raises the error that failed it."""
    seen: dict[int, int] = {}
    with Report(title, quiet=quiet) as report:
        while True:
            ended = query.awaitTermination(POLL_SECONDS)
            for progress in query.recentProgress:
                seen[int(progress["batchId"])] = int(progress["numInputRows"])
            report.at(sum(seen.values()))
            if ended:
                return sum(seen.values())


__all__ = ["ExportConf", "build", "main", "watch"]
