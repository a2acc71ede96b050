"""Functions for option mapArrow, shipped to executors: they report which worker reads, and pause it where a test will kill it.

The folder is on a file system shared by test and executors. Imports nothing of the tests, because it runs in workers.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

FOLDER = "SATURNMQ_TEST_FOLDER"
HELD_FROM = 3  # the batch at which a worker pauses; earlier ones have then left the worker's and the JVM's buffers
HELD_S = 300.0
_calls = 0


def _seen(step: str, batch: pa.RecordBatch, *, holds: bool) -> pa.RecordBatch:
    global _calls
    _calls += 1
    folder = Path(os.environ[FOLDER])
    saturnmq = sys.modules["saturnmq"]
    facts = {
        "pid": os.getpid(),
        "calls": _calls,
        "from": saturnmq.__file__,
        "python": sys.executable,
        "rss_max_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    waits = holds and _calls >= HELD_FROM and not (folder / f"go-{step}").exists()
    temporary = folder / f".{os.getpid()}.tmp"
    temporary.write_text(json.dumps(facts | {"waits": waits}))
    temporary.replace(folder / f"{step}-{os.getpid()}.json")
    until = time.monotonic() + HELD_S
    while waits and time.monotonic() < until and not (folder / f"go-{step}").exists():
        time.sleep(0.01)  # poll
    return batch


def read(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _seen("read", batch, holds=True)


def write(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _seen("write", batch, holds=True)


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Pause the first attempt at queue 0 until a second attempt reads concurrently."""
    context = TaskContext.get()
    assert context is not None
    folder, queue = Path(os.environ[FOLDER]), batch.column("queueId")[0].as_py()
    (folder / f"queue-{queue}-attempt-{context.attemptNumber()}").touch()
    until = time.monotonic() + HELD_S
    while queue == 0 and time.monotonic() < until and len(list(folder.glob("queue-0-attempt-*"))) < 2:
        time.sleep(0.01)  # poll
    return batch


def halves(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _seen("halves", batch, holds=False)
