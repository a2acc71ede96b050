"""Errors of the processes that plan queries: shown as the message alone, without the traceback of Spark's and our frames.

Requirements: SPK-10.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from saturnmq.protocol.errors import InvariantBroken, SaturnError

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
            if _in_planner():
                os.environ[HIDE_TRACEBACK] = "1"
            raise

    return planned


def _in_planner() -> bool:
    """Whether Spark started this process: `python -m pyspark.daemon`, or another pyspark runner."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
