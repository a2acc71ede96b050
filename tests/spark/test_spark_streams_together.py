"""Streams used as programs use them, on a real session: every message once, whatever the shape of the query and its restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturnmq.testing import SyncEmbeddedBroker

pytestmark = pytest.mark.spark
Numbers = list[tuple[str, int]]


@pytest.fixture
def load(spark: Any, server: SyncEmbeddedBroker) -> Callable[..., Any]:
    """A stream of topics, from their beginning."""

    def make(topics: str, **options: str) -> Any:
        reader = spark.readStream.format("rocketmq").option("nameServer", server.name_servers)
        return reader.options(subscribe=topics, startingOffsets="earliest", **options).load()

    return make


def start(frame: Any, checkpoint: Path, rows: Numbers) -> Any:
    def keep(batch: Any, _id: int) -> None:
        numbers = [(row["topic"], json.loads(row["body"])["n"]) for row in batch.collect()]
        assert batch.count() == len(numbers), "the batch's frame gives the same rows each time"
        rows.extend(numbers)

    writer = frame.select("topic", "body").writeStream.foreachBatch(keep)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


@pytest.mark.spec("STR-03", "STR-15", "STR-16")
def test_restarts_with_other_options_read_each_message_once(send: Any, load: Any, tmp_path: Path) -> None:
    """Between runs of one checkpoint: another limit, topic list and list of columns; a topic leaves and comes back."""
    rows: Numbers = []

    def run(topics: str, **options: str) -> None:
        assert start(load(topics, **options), tmp_path, rows).awaitTermination(200)

    send("one", 60)
    run("one", maxOffsetsPerTrigger="40")
    send("one", 30, first=60)
    send("two", 30)
    run("one,two")
    send("one", 10, first=90)
    run("two,one", columns="topic,body")
    send("two", 10, first=30)
    run("two")
    send("one", 10, first=100)
    run("one,two")
    assert sorted(rows) == [("one", n) for n in range(110)] + [("two", n) for n in range(40)]


@pytest.mark.spec("STR-07", "STR-08")
def test_queries_and_unions_of_one_load_share_no_position(send: Any, load: Any, tmp_path: Path) -> None:
    send("shared", 60)
    frame = load("shared", maxOffsetsPerTrigger="25")
    parts: Numbers = []
    others: Numbers = []
    both = frame.filter("tags = 'a'").union(frame.filter("tags = 'b'")).union(load("shared"))
    queries = [start(both, tmp_path / "union", parts), start(frame, tmp_path / "plain", others)]
    assert all(query.awaitTermination(200) for query in queries)
    assert sorted(others) == [("shared", n) for n in range(60)]
    assert sorted(parts) == sorted(others * 2)
