"""Adds what to do to errors of streams whose text is Spark's alone, because they arise before or outside the data source.

Spark's text cannot be changed; the advice is logged when the query ends, beside the exception that its caller gets, and pipelines
append it to the cause that they print.

Requirements: SPK-10, STR-17.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

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
_advised_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_advised_runs: set[str] = set()


def advice_of(failure: str) -> str | None:
    """Return what to do about the text of a query's failure, None for any other."""
    if any(words in failure for words in _SLOW_START):
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


class Adviser(StreamingQueryListener):
    """Logs what to do when a query of the session fails."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Log what to do about the failure, if there is one."""
        log_advice(event)


def advise(spark: Any) -> None:
    """Add the listener to a session that does not have it."""
    if spark not in _advised_sessions:
        _advised_sessions.add(spark)
        spark.streams.addListener(Adviser())
