"""Garbage collections after tasks leave out what a worker has imported, and only in processes that Spark started."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from saturnmq.protocol.errors import SaturnError
from saturnmq.spark import sink, worker_memory
from saturnmq.spark.options import parse_options
from saturnmq.spark.partition import RangePartition, read_partition
from saturnmq.spark.sink_options import SinkOptions


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    worker_memory.freeze_imports.cache_clear()
    gc.unfreeze()
    yield
    gc.freeze()  # as the tests' harness does
    worker_memory.freeze_imports.cache_clear()


def read() -> None:
    options = parse_options({"nameServer": "127.0.0.1:1", "topic": "T"}, streaming=False)
    assert list(read_partition(options, ("body",), None, RangePartition(None))) == []


def write() -> None:
    with pytest.raises(SaturnError):
        sink.write_batches(
            SinkOptions(name_server="127.0.0.1:1", topic="T", retries=0, send_timeout_ms=1),
            iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]),
        )


@pytest.mark.parametrize("task", [read, write])
def test_first_task_of_a_worker_freezes_what_is_imported(
    task: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    task()
    assert gc.get_freeze_count() == 0  # a driver is not Spark's process
    worker_memory.freeze_imports.cache_clear()
    monkeypatch.setattr(worker_memory, "in_spark_process", lambda: True)
    task()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()
    task()
    assert gc.get_freeze_count() == 0  # objects of a task are never frozen
