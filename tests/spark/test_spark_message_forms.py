"""Messages in every form that producers send, read by batch and stream and compared with what was sent; without a JVM."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from saturnmq import Outgoing
from saturnmq.spark import sink
from saturnmq.spark.sink_options import SinkOptions
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

TOPIC = "forms"
DEADLINE_S = 60
Row = tuple[bytes, str | None, str | None, str | None]  # body, tags, keys, property p


def sent(server: SyncEmbeddedBroker) -> list[Row]:
    """Send messages of every form; return the rows that are due."""
    due: list[Row] = []
    with Client(name_servers=server.name_servers) as client, client.producer("p", check=lambda *_: None) as out:
        client.create_topic(TOPIC, queues=2)
        out.send_many(TOPIC, [Outgoing(value=b"batch%d" % n, tag="t", keys=["a", f"b{n}"]) for n in range(5)])
        due += [(b"batch%d" % n, "t", f"a b{n}", None) for n in range(5)]
        for body, keys, text in (
            (b"alone", "", None),
            (b"large properties", "", "x" * 30_000),
            (b"z" * 50_000, "", None),  # compressed by the client
            ("ünï \U0001f600".encode(), "schlüssel k2", "ä"),
        ):
            out.send(TOPIC, body, keys=keys.split(), properties={"p": text} if text else None)
            due.append((body, None, keys or None, text))
        out.send(TOPIC, b"delayed", delay=1.0)
        due.append((b"delayed", None, None, None))
        for n in range(4):
            try:
                with out.transaction(TOPIC, b"transaction %d" % n):
                    if n % 2:
                        raise ZeroDivisionError
                due.append((b"transaction %d" % n, None, None, None))
            except ZeroDivisionError:
                pass  # rolled back
    for codec in ("zlib", "lz4", "zstd"):
        body = codec.encode() * 4000
        options = SinkOptions(name_server=server.name_servers, topic=TOPIC, compress=codec, compress_above=100)
        sink.write_batches(options, iter([pa.RecordBatch.from_pydict({"body": [body], "tags": [codec]})]))
        due.append((body, codec, None, None))
    return due


def test_every_form_of_message_is_read_by_batch_and_stream(server: SyncEmbeddedBroker) -> None:
    pytest.importorskip("lz4.frame", reason="lz4 is in the extra compression")
    due = Counter(sent(server))
    options = {"topic": TOPIC, "columns": "body,tags,keys,propertiesMap", "startingOffsets": "earliest"}
    data = RocketMQDataSource(options | {"nameServer": server.name_servers})

    def rows(reader: Any, parts: Any) -> Counter[Row]:
        return Counter(
            (row["body"], row["tags"], row["keys"], dict(row["propertiesMap"]).get("p"))
            for part in parts
            for batch in reader.read(part)
            for row in batch.to_pylist()
        )

    until = time.monotonic() + DEADLINE_S
    while (stored := rows(reader := data.reader(data.schema()), reader.partitions())).total() < due.total():
        assert time.monotonic() < until, due - stored  # the delayed message takes a second
    assert stored == due, "nothing that was rolled back or waits for its time"
    stream = data.streamReader(data.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())  # type: ignore[call-arg]
    assert rows(stream, stream.partitions(start, end)) == due
