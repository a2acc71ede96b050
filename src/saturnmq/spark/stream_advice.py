"""Adds what to do to errors of streams whose text is Spark's alone, because they arise before or outside the data source.

Spark's text cannot be changed; with a tracker the advice is logged when the query ends, beside the exception that its caller gets,
and pipelines print it as the cause. No listener is added for it alone: each costs a connection and threads of the process.

Requirements: SPK-10, STR-17.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql.streaming.listener import QueryTerminatedEvent

logger = logging.getLogger(__name__)

TRIGGERS: Final = (
    "streams of this source run in micro-batches: use trigger(availableNow=True) or trigger(processingTime='1 second')"
)
SLOW_START: Final = (
    "a Python process that plans a stream did not start within 10 s, a limit of Spark that no setting changes. Start the query "
    "again when the machine is less busy: its files are then cached. With a local master saturnmq.spark.session() and "
    "register() start it with the installed pyspark, in half the time, if PYSPARK_PYTHON is unset or the Python of the driver; "
    "with another master or Spark Connect put the environment on a fast local disk, and more cores beside the driver"
)
_SLOW_START: Final = ("failed to connect back", "waiting for the Python worker to connect back")
_advised_runs: set[str] = set()


def advice_of(failure: str) -> str | None:
    """Return what to do about the text of a query's failure, None for any other."""
    if any(phrase in failure for phrase in _SLOW_START):
        return SLOW_START
    if "REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED" in failure and "PythonMicroBatchStream" in failure:
        return TRIGGERS
    return None


def log_advice(event: QueryTerminatedEvent) -> None:
    """Log what to do about the failure of a query, once per run: a session may have several listeners."""
    advice = advice_of(str(getattr(event, "exception", None) or ""))
    if advice is not None and str(event.runId) not in _advised_runs:
        _advised_runs.add(str(event.runId))
        logger.error("query failed query=%s: %s", event.id, advice)
