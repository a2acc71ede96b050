"""Streams of a real session: a busy topic, a first batch that fails, topics deleted and created again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.admin.sync import Admin
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

pytestmark = pytest.mark.spark
PAUSE_S = 0.003  # between messages: some 300 a second
DEADLINE_S = 120


class Producer(threading.Thread):
    """Sends numbered messages until it is stopped; `sent` are those that the broker has confirmed."""

    def __init__(self, server: SyncEmbeddedBroker, topic: str) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._topic = topic
        self._stop_event = threading.Event()
        self.sent: list[str] = []
        self.busy = threading.Event()

    def run(self) -> None:
        with Client(name_servers=self._server.name_servers) as client, client.producer("busy") as out:
            while not self._stop_event.wait(PAUSE_S):
                body = f"m{len(self.sent)}"
                out.send(self._topic, body.encode())
                self.sent.append(body)
                if len(self.sent) >= 100:
                    self.busy.set()

    def stop(self) -> None:
        self._stop_event.set()
        self.join(DEADLINE_S)


@contextmanager
def producing(server: SyncEmbeddedBroker, topic: str) -> Iterator[Producer]:
    producer = Producer(server, topic)
    producer.start()
    try:
        assert producer.busy.wait(DEADLINE_S)
        yield producer
    finally:
        producer.stop()


class Rows:
    """A foreachBatch function: collects bodies by batch number; `failing` batches raise before they collect."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.failing: set[int] = set()
        self.attempts: list[int] = []
        self.arrived = threading.Event()

    def __call__(self, batch: Any, number: int) -> None:
        rows = [bytes(row.body).decode() for row in batch.select("body").collect()]
        self.attempts.append(number)
        if number in self.failing:
            raise RuntimeError(f"batch {number} fails")
        self.batches[number] = rows
        if rows:
            self.arrived.set()

    @property
    def bodies(self) -> list[str]:
        return [body for number in sorted(self.batches) for body in self.batches[number]]


def run(spark: Any, server: SyncEmbeddedBroker, topic: str, folder: Path, rows: Rows, **options: Any) -> Any:
    stream = spark.readStream.format("rocketmq").option("nameServer", server.name_servers).option("topic", topic)
    for name, value in options.items():
        stream = stream.option(name, value)
    return stream.load().writeStream.foreachBatch(rows).option("checkpointLocation", str(folder))


def create(server: SyncEmbeddedBroker, topic: str, queues: int = 2) -> None:
    with Client(name_servers=server.name_servers) as client:
        client.create_topic(topic, queues=queues)


def delete(server: SyncEmbeddedBroker, topic: str) -> None:
    with Admin(server.name_servers) as admin:
        admin.topics.delete_from_brokers(topic, "DefaultCluster")
        admin.topics.delete_from_name_servers(topic, "DefaultCluster")


def send(server: SyncEmbeddedBroker, topic: str, bodies: list[str]) -> list[str]:
    with Client(name_servers=server.name_servers) as client, client.producer("p") as out:
        out.send_many(topic, [Outgoing(value=body.encode()) for body in bodies])
    return bodies


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_first_batch_on_busy_topic_reads_due_rows_once(
    spark: Any, server: SyncEmbeddedBroker, tmp_path: Path, starting: str
) -> None:
    """Spark asks twice for the initial offset, and after a failed first batch again in another process."""
    topic, rows = f"busy-{starting}", Rows()
    create(server, topic)
    rows.failing = {0} if starting == "earliest" else {1}
    with producing(server, topic) as producer:
        writer = run(spark, server, topic, tmp_path / "c", rows, startingOffsets=starting, metadataRefreshMs=50)
        query = writer.start()
        with pytest.raises(Exception, match=r"batch \d fails"):
            query.awaitTermination(DEADLINE_S)
            raise TimeoutError("the batch did not fail")
        failed = max(rows.attempts)
        rows.failing = set()
        query = run(spark, server, topic, tmp_path / "c", rows, startingOffsets=starting).start()
        assert rows.arrived.wait(DEADLINE_S)
        query.stop()
    run(spark, server, topic, tmp_path / "c", rows, startingOffsets=starting).trigger(availableNow=True).start(
    ).awaitTermination(DEADLINE_S)  # fmt: skip
    assert failed in rows.batches and len(rows.bodies) == len(set(rows.bodies))
    numbers = sorted(int(body[1:]) for body in rows.bodies)
    first = 0 if starting == "earliest" else numbers[0]
    assert numbers == list(range(first, len(producer.sent)))
    begin = json.loads((tmp_path / "c" / "offsets" / "0").read_text().splitlines()[-1])["n"][topic]["broker-a"]
    assert sum(begin.values()) == first, "what was sent after the query asked is read"


def test_deleted_and_recreated_topics_follow_fail_on_data_loss(
    spark: Any, server: SyncEmbeddedBroker, tmp_path: Path
) -> None:
    create(server, "kept", 1)
    create(server, "again", 1)
    rows, log = Rows(), tmp_path / "losses"

    def drain(**options: Any) -> None:
        writer = run(spark, server, "again,kept", tmp_path / "c", rows, startingOffsets="earliest", **options)
        writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)

    due = send(server, "again", ["old"] * 4) + send(server, "kept", ["k0"])
    drain()
    delete(server, "again")
    with pytest.raises(
        Exception, match=r"topic again, broker broker-a, queue 0, offsets 4\.\.4: the queue was deleted"
    ):
        drain()
    create(server, "again", 1)
    due += send(server, "again", ["new"] * 4)  # as many as before
    with pytest.raises(Exception, match=r"goes on at offset 4, the queue has 0\.\.4.*the topic was created again"):
        drain()
    drain(failOnDataLoss="false", dataLossLog=log)
    assert sorted(rows.bodies) == sorted(due)
    delete(server, "again")
    due += send(server, "kept", ["k1"])
    drain(failOnDataLoss="false", dataLossLog=log)
    assert sorted(rows.bodies) == sorted(due)
    texts = [json.loads(path.read_text())["reason"] for path in sorted(log.iterdir(), key=lambda path: path.name)]
    assert len(texts) == 2 and "created again" in texts[0] and "deleted" in texts[1]


@pytest.mark.spec("STR-15")
def test_restart_with_other_queues_or_topic_keeps_left_out_positions(
    spark: Any, server: SyncEmbeddedBroker, tmp_path: Path
) -> None:
    """Each message once, in the first batch whose options name its queue; what an earlier filter left out is not read."""
    for topic in ("narrow", "narrow-2"):
        create(server, topic)
    rows = Rows()

    def restarted(topic: str, **options: Any) -> list[str]:
        before = len(rows.bodies)
        query = run(spark, server, topic, tmp_path, rows, startingOffsets="earliest", **options)
        assert query.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
        return sorted(rows.bodies[before:])

    with Client(name_servers=server.name_servers) as client, client.producer("p") as out:

        def send_to_both(text: str) -> None:
            for queue in out.queues("narrow"):
                out.send_many(
                    "narrow",
                    [Outgoing(value=f"{text}{queue.queue_id}".encode(), tag=f"t{queue.queue_id}")],
                    queue=queue,
                )

        send_to_both("a")
        assert restarted("narrow") == ["a0", "a1"]
        send_to_both("b")
        assert restarted("narrow", queues="0") == ["b0"]
        assert restarted("narrow") == ["b1"]
        send_to_both("c")
        assert restarted("narrow", tags="t1") == ["c1"]
        send_to_both("d")
        send(server, "narrow-2", ["z"])
        assert restarted("narrow-2") == ["z"]
        assert restarted("narrow,narrow-2") == ["d0", "d1"]
