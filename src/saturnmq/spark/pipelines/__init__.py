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

NAMES: Final = ("export", "replay", "trace", "stats", "audit", "dlq", "files", "compact")


def pipeline(name: str) -> Pipeline[Any]:
    """Return the pipeline of that name. Raises ConfigError listing the valid names."""
    from saturnmq.protocol.errors import ConfigError

    if name not in NAMES:
        raise ConfigError(f"unknown pipeline {name!r}; there is: {', '.join(NAMES)}")
    found: Pipeline[Any] = importlib.import_module(f"{__name__}.{name}").PIPELINE
    return found


def main(argv: Sequence[str]) -> int:
    """Run `NAME OPTIONS...`, `pack`, or `--check`; return the exit code of PIP-05."""
    from saturnmq.spark.pipelines import running

    if list(argv[:1]) == ["--check"]:
        from saturnmq.spark.check import main as check

        return check(argv[1:])
    if list(argv[:1]) == ["pack"]:
        from saturnmq.spark.packing import main as pack

        return pack(argv[1:])
    if not argv or argv[0] in ("-h", "--help"):
        print(running.overview([pipeline(name) for name in NAMES]), flush=True)
        return 0 if argv else 2
    return running.run(pipeline(argv[0]), argv[1:])


__all__ = ["NAMES", "main", "pipeline"]
