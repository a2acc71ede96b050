"""Pipelines over topics and data lakes: `saturnmq spark NAME ...`, one module each with `build(spark, conf)`.

A module is also the script argument of spark-submit. Every pipeline may be killed and run again: it changes nothing or completes
the interrupted run.

Requirements: PIP-01, PIP-02, PIP-04.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from saturnmq.spark.pipelines.running import Pipeline

# Read by the command table and by the pipelines, which import pyspark.
SUMMARIES: Final = {
    "export": "topics to Parquet, Delta or Iceberg tables, what is new since the last run",
    "replay": "messages of a lake or of commit log files to a topic again",
    "trace": "message traces: latencies per minute, slow consumers, unconsumed messages; with a report",
    "stats": "throughput and lag by minute, hour and day, and alerts; with a report",
    "audit": "produced messages compared with stored and consumed ones: lost, duplicate, missing; with a report",
    "dlq": "dead letters of a group by cause; some of them sent again",
    "files": "commit log files to Parquet without a broker, and what is damaged in them",
    "compact": "the small files of closed hours of a table to few large ones",
}
EXAMPLES: Final = {
    "export": "saturnmq spark export --name-servers 127.0.0.1:9876 --topic flights --out ./lake",
    "replay": "saturnmq spark replay --name-servers 127.0.0.1:9876 --lake ./lake --topic orders --to orders-again",
    "trace": "saturnmq spark trace --name-servers 127.0.0.1:9876 --lake ./lake --slow-ms 500",
    "stats": "saturnmq spark stats --name-servers 127.0.0.1:9876 --lake ./lake --trigger 1m",
    "audit": "saturnmq spark audit --lake ./lake",
    "dlq": "saturnmq spark dlq --name-servers 127.0.0.1:9876 --lake ./lake --group billing",
    "files": "saturnmq spark files --path ./data --lake ./rescue",
    "compact": "saturnmq spark compact ./lake/messages",
}
NAMES: Final = tuple(SUMMARIES)
TOOLS: Final = {"archive": f"{__name__}.archive", "pack": "saturnmq.spark.packing"}  # commands without a session


def pipeline(name: str) -> Pipeline[Any]:
    """Return the pipeline of that name. Raises ConfigError listing the valid names."""
    from saturnmq.protocol.errors import ConfigError

    if name not in NAMES:
        raise ConfigError(f"unknown pipeline {name!r}; there is: {', '.join(NAMES)}")
    definition: Pipeline[Any] = importlib.import_module(f"{__name__}.{name}").PIPELINE
    return definition


def main(argv: Sequence[str]) -> int:
    """Run `NAME OPTIONS...`, `archive`, `pack`, or `--check`; return the exit code of PIP-05."""
    from saturnmq.spark.pipelines import running

    if list(argv[:1]) == ["--check"]:
        from saturnmq.spark.check import main as check

        return check(argv[1:])
    if argv and argv[0] in TOOLS:
        code: int = importlib.import_module(TOOLS[argv[0]]).main(argv[1:])
        return code
    if not argv or argv[0] in ("-h", "--help"):
        print(running.overview([pipeline(name) for name in NAMES]), flush=True)
        return 0 if argv else 2
    return running.run(pipeline(argv[0]), argv[1:])


__all__ = ["EXAMPLES", "NAMES", "SUMMARIES", "TOOLS", "main", "pipeline"]
