"""A master or DLedger leader killed under a batch and a stream: the same rows as without the kill, or an error, never fewer."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from failover import Cluster, ledger, pair, running, wait_until
from pyspark.sql.streaming.datasource import ReadAllAvailable

from saturnmq import Outgoing
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.errors import StoreError
from saturnmq.spark.ranges import from_offset
from saturnmq.spark.source import BatchReader, RocketMQDataSource
from saturnmq.spark.source_puller import NoMaster
from saturnmq.spark.stream import StreamReader
from saturnmq.sync import Client

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(300)]
QUEUES, COUNT = 2, 3000
SMALL_PULLS = {"pullBatchSize": "16", "batchRows": "50"}  # at most 512 messages of a queue are in flight at the kill
Row = tuple[int, int, bytes]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A SYNC_MASTER and its slave; topic "killed" has COUNT messages, "behind" a third of them."""
    with running(pair(tmp_path_factory.mktemp("pair"))) as cluster:
        wait_until(lambda: set(cluster.registered()) == {0, 1})
        for topic, count in (("killed", COUNT), ("behind", COUNT // 3)):
            fill(cluster, topic, count)
        copied = cluster.folder / "slave" / "config" / "topics.json"
        wait_until(lambda: copied.exists() and '"behind"' in copied.read_text())
        yield cluster


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A DLedger group of three; topic "killed" has COUNT messages."""
    with running(ledger(tmp_path_factory.mktemp("ledger"))) as cluster:
        cluster.master()
        fill(cluster, "killed", COUNT)
        yield cluster


def fill(cluster: Cluster, topic: str, count: int, first: int = 0, wait_stored: bool = True) -> None:
    """Send the numbers [first, first + count), the same number to each queue, once a master is registered."""
    cluster.master()  # a restarted NameServer knows no broker until they register again
    with Client(name_servers=cluster.name_servers, timeout=10) as client, client.producer("takeover-tests") as out:
        if not first:
            client.create_topic(topic, queues=QUEUES)
        for target in out.queues(topic):
            numbers = range(first + target.queue_id, first + count, QUEUES)
            out.send_many(topic, [Outgoing(value=b"%d" % n) for n in numbers], queue=target, wait_stored=wait_stored)


def sent(count: int) -> list[Row]:
    return sorted((n % QUEUES, n // QUEUES, b"%d" % n) for n in range(count))


def source(cluster: Cluster, topic: str, **options: str) -> RocketMQDataSource:
    return RocketMQDataSource({"nameServer": cluster.name_servers, "topic": topic} | SMALL_PULLS | options)


def batch(cluster: Cluster, topic: str, **options: str) -> BatchReader:
    made = source(cluster, topic, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def stream(cluster: Cluster, topic: str, **options: str) -> StreamReader:
    made = source(cluster, topic, startingOffsets="earliest", metadataRefreshMs="0", **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [(row["queueId"], row["queueOffset"], row["body"]) for part in batches for row in part.to_pylist()]


def whole(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> list[Row]:
    return sorted(row for partition in partitions for row in rows(reader.read(partition)))


def killed_in_mid_read(
    reader: BatchReader | StreamReader, partitions: Iterable[Any], kill: Callable[[], None]
) -> list[Row]:
    """Read one record batch of each partition, kill, and read the rest."""
    iterators = [reader.read(partition) for partition in partitions]
    first = [row for batches in iterators for row in rows([next(batches)])]
    assert len(first) < COUNT // 2
    kill()
    return sorted(first + [row for batches in iterators for row in rows(batches)])


class Warnings(logging.Handler):
    """Queues the messages of a logger, for a test that waits for one."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self.messages: queue.Queue[str] = queue.Queue()
        self._logger = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.put(record.getMessage())

    def __enter__(self) -> Warnings:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


@pytest.mark.spec("SRC-14", "STR-02")
def test_master_killed_in_mid_read_leaves_the_rest_to_its_slave(brokers: Cluster) -> None:
    """A batch, a stream's micro-batch, and then a plan with the slave alone."""
    reader, steady = batch(brokers, "killed"), batch(brokers, "killed", readFrom="master")
    following = stream(brokers, "killed")
    start = following.initialOffset()
    end = following.latestOffset(start, ReadAllAvailable())
    planned = following.partitions(start, end)
    iterators = [steady.read(partition) for partition in steady.partitions()]
    begun = [row for batches in iterators for row in rows([next(batches)])]

    assert killed_in_mid_read(reader, reader.partitions(), brokers.brokers["master"].kill) == sent(COUNT)
    assert set(brokers.registered()) == {1}
    assert sorted(begun + [row for batches in iterators for row in rows(batches)]) == sent(COUNT), "readFrom=master"
    assert whole(following, planned) == sent(COUNT), "planned before the kill"
    assert whole(following, following.partitions(start, end)) == sent(COUNT), "the batch planned again"
    assert following.latestOffset(end, ReadAllAvailable()) == end

    with pytest.raises(NoMaster, match=r"broker pair has no master, only a slave at .*readFrom=slave"):
        batch(brokers, "killed", readTimeoutMs="300").partitions()
    alone = batch(brokers, "killed", readFrom="slave")
    assert whole(alone, alone.partitions()) == sent(COUNT), "a slave of a SYNC_MASTER has every acknowledged message"
    restarted = stream(brokers, "killed")
    assert from_offset(restarted.latestOffset(start, ReadAllAvailable())) == from_offset(end), "a slave's ends"
    with pytest.raises(NoMaster, match=r"broker pair has no master, only a slave at .*readFrom=slave"):
        stream(brokers, "killed", readTimeoutMs="300").initialOffset()
    assert stream(brokers, "killed", readFrom="slave").initialOffset() == start

    brokers.restart("master")
    wait_until(lambda: set(brokers.registered()) == {0, 1})
    again = batch(brokers, "killed")
    assert whole(again, again.partitions()) == sent(COUNT)


@pytest.mark.spec("SRC-13", "SRC-14")
def test_slave_behind_the_planned_end_is_waited_for(brokers: Cluster) -> None:
    """Planned offsets that only the dead master has are neither the end nor a loss, whatever failOnDataLoss says."""
    brokers.brokers["slave"].kill()
    brokers.configure("slave", haMasterAddress="127.0.0.1:1")  # it replicates nothing from now on
    brokers.restart("slave")
    wait_until(lambda: set(brokers.registered()) == {0, 1})
    half = COUNT // 3
    fill(brokers, "behind", COUNT - half, first=half, wait_stored=False)
    tolerant = {"failOnDataLoss": "false", "readTimeoutMs": "300"}
    reader, impatient = batch(brokers, "behind"), batch(brokers, "behind", **tolerant)
    following, hasty = stream(brokers, "behind"), stream(brokers, "behind", **tolerant)
    partitions = reader.partitions()
    start = following.initialOffset()
    end = following.latestOffset(start, ReadAllAvailable())

    brokers.brokers["master"].kill()
    wait_until(lambda: set(brokers.registered()) == {1})
    for partition in partitions:
        iterator, served = impatient.read(partition), []
        with pytest.raises(StoreError, match=r"no progress at offset .*; broker pair has no master"):
            for record_batch in iterator:
                served += rows([record_batch])
        assert len(served) <= half // QUEUES
    ends = json.dumps({"behind": {"pair": dict.fromkeys("01", COUNT // QUEUES)}})
    away = r"behind/pair/0, behind/pair/1 cannot be read: broker pair has no master"
    with pytest.raises(BrokerNotExist, match=away):
        hasty.partitions(start, end)
    with pytest.raises(BrokerNotExist, match=away):
        hasty.latestOffset(end, ReadAllAvailable())
    with pytest.raises(NoMaster, match=rf"has offsets 0\.\.{half // QUEUES}, not all .*pair has no master"):
        batch(brokers, "behind", **tolerant, readFrom="slave", endingOffsets=ends).partitions()

    with Warnings("saturnmq.spark.fetch") as reads, Warnings("saturnmq.spark.stream") as plans:
        read: list[Row] = []
        planned: list[Any] = []
        threads = [
            threading.Thread(target=lambda: read.extend(whole(reader, partitions))),
            threading.Thread(target=lambda: planned.extend(following.partitions(start, end))),
        ]
        for thread in threads:
            thread.start()
        assert "no master" in reads.messages.get(timeout=30)
        assert "no master" in plans.messages.get(timeout=30)
        brokers.restart("master")
        for thread in threads:
            thread.join(timeout=60)
    assert read == sent(COUNT)
    assert whole(following, planned) == sent(COUNT)
    brokers.configure("slave")


@pytest.mark.spec("SRC-14", "STR-02")
def test_dledger_leader_killed_in_mid_read_changes_no_row(group: Cluster) -> None:
    """Killed in mid-read, and again between plan and read; then the stream goes on with what the new leader has accepted."""
    reader, following = batch(group, "killed"), stream(group, "killed")
    start = following.initialOffset()
    end = following.latestOffset(start, ReadAllAvailable())
    leader = group.master()
    assert killed_in_mid_read(reader, reader.partitions(), group.brokers[leader].kill) == sent(COUNT)
    during = batch(group, "killed")
    assert whole(during, during.partitions()) == sent(COUNT), "a plan waits for the new leader"
    assert whole(following, following.partitions(start, end)) == sent(COUNT)
    new = group.master()
    assert new != leader
    fill(group, "killed", 200, first=COUNT)
    later = following.latestOffset(end, ReadAllAvailable())
    group.restart(leader)
    wait_until(lambda: len(group.registered()) == 3)

    between = following.partitions(end, later)
    group.brokers[new].kill()
    assert sorted(whole(following, between) + sent(COUNT)) == sent(COUNT + 200)
    restarted = stream(group, "killed")  # with the checkpoint of the old one
    assert sorted(whole(restarted, restarted.partitions(end, later)) + sent(COUNT)) == sent(COUNT + 200)
    group.restart(new)


@pytest.mark.spec("SRC-14")
def test_name_server_restarted_in_mid_read_changes_no_row(group: Cluster) -> None:
    reader = batch(group, "killed")

    def restart() -> None:
        group.name_server.kill()
        reading_on.append(whole(other, partitions))
        group.name_server.start()
        group.name_server.ready()

    reading_on: list[list[Row]] = []
    other, partitions = batch(group, "killed"), reader.partitions()
    total = sum(partition.piece[4] for partition in partitions)  # type: ignore[attr-defined, index]
    assert killed_in_mid_read(reader, partitions, restart) == sent(total)
    assert reading_on == [sent(total)], "without any NameServer"


@pytest.mark.spark
@pytest.mark.spec("STR-02")
def test_streaming_query_goes_on_behind_a_killed_leader(spark: Any, group: Cluster, tmp_path: Path) -> None:
    """The leader is killed while batch 0 is in the sink; the query goes on, and another continues from its checkpoint."""
    fill(group, "streamed", 600)
    stored: list[Row] = []
    killed: list[str] = []

    def keep(frame: Any, batch_id: int) -> None:
        stored.extend((row["queueId"], row["queueOffset"], bytes(row["body"])) for row in frame.collect())
        if not killed:
            killed.append(group.master())
            group.brokers[killed[0]].kill()

    def run() -> None:
        options = {"nameServer": group.name_servers, "topic": "streamed", "startingOffsets": "earliest"}
        frame = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="250").load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(200)

    run()
    assert sorted(stored) == sent(600)
    fill(group, "streamed", 100, first=600)
    group.restart(*killed)
    run()
    assert sorted(stored) == sent(700)
