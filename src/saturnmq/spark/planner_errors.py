"""Errors of the processes that plan queries: shown as the message alone, without the traceback of Spark's and our frames.

Requirements: SPK-10.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from saturnmq.protocol.errors import InvariantBroken, SaturnError
from saturnmq.spark.worker_memory import in_spark_process

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"  # PySpark reads it when it formats an error for the JVM
P = ParamSpec("P")
R = TypeVar("R")


def brief(planning: Callable[P, R]) -> Callable[P, R]:
    """Report expected errors (invalid options, unknown topics, data loss, unreachable brokers) by their message alone.

    A planner process ends with its first error, so setting the variable hides no other traceback. A driver that calls the data
    source directly keeps its tracebacks, and so do internal errors.
    """

    @functools.wraps(planning)
    def planned(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return planning(*args, **kwargs)
        except InvariantBroken:
            raise
        except SaturnError:
            if in_spark_process():
                os.environ[HIDE_TRACEBACK] = "1"
            raise

    return planned
