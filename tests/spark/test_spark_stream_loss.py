"""Data loss as brokers answer it: topics and queues deleted or created again under streams and batches; without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from simulated_topics import KnownBounds, reader_of

from saturnmq import Outgoing
from saturnmq.admin.sync import Admin
from saturnmq.client.connection.remote import Remote
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.spark.connect import close_all
from saturnmq.spark.fetch import DataLoss, DataLossError, met_loss
from saturnmq.spark.options import parse_options
from saturnmq.spark.ranges import Bounds, begins_of, from_offset, preceding_of, to_offset
from saturnmq.spark.source import BatchReader, RocketMQDataSource
from saturnmq.spark.stream import StreamReader
from saturnmq.spark.stream_queries import Snapshot, StreamQueries
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

ALL = ReadAllAvailable()
CLUSTER = "DefaultCluster"


def source(server: SyncEmbeddedBroker, topic: str, **options: Any) -> RocketMQDataSource:
    defaults = {"nameServer": server.name_servers, "metadataRefreshMs": "0", "readTimeoutMs": "300"}
    subject = "subscribePattern" if "*" in topic else "subscribe"
    return RocketMQDataSource(defaults | {subject: topic} | {name: str(value) for name, value in options.items()})


def stream(server: SyncEmbeddedBroker, topic: str, **options: Any) -> StreamReader:
    data = source(server, topic, **({"startingOffsets": "earliest"} | options))
    reader = data.streamReader(data.schema())
    assert isinstance(reader, StreamReader)
    return reader


def batch(server: SyncEmbeddedBroker, topic: str, **options: Any) -> BatchReader:
    data = source(server, topic, **options)
    reader = data.reader(data.schema())
    assert isinstance(reader, BatchReader)
    return reader


def rows(reader: StreamReader | BatchReader, parts: Any) -> list[str]:
    return [row["body"].decode() for part in parts for found in reader.read(part) for row in found.to_pylist()]


def fill(server: SyncEmbeddedBroker, topic: str, count: int, queues: int = 1, word: str = "m") -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("p") as out:
        client.create_topic(topic, queues=queues)
        for queue in out.queues(topic)[:queues]:
            out.send_many(topic, [Outgoing(value=f"{word}{n}".encode()) for n in range(count)], queue=queue)


def delete(server: SyncEmbeddedBroker, topic: str) -> None:
    with Admin(server.name_servers) as admin:
        admin.topics.delete_from_brokers(topic, CLUSTER)
        admin.topics.delete_from_name_servers(topic, CLUSTER)


def step(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """One micro-batch: the next offset and its rows."""
    end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
    return end, rows(reader, reader.partitions(start, end)) if end != start else []


def losses(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_topic_deleted_between_plan_and_read_follows_option(
    server: SyncEmbeddedBroker, tmp_path: Path, kind: str
) -> None:
    """A broker says no such topic, or it has none of the queue: data loss in the task, not TopicNotExist."""
    for tolerant in (False, True):
        topic, folder = f"between-{kind}-{tolerant}".lower(), tmp_path / str(tolerant)
        fill(server, topic, 5, queues=2)
        options = {"failOnDataLoss": str(not tolerant).lower(), "dataLossLog": folder}
        if kind == "batch":
            reader: Any = batch(server, topic, **options)
            parts = reader.partitions()
        else:
            reader = stream(server, topic, **options)
            start = reader.initialOffset()
            parts = reader.partitions(start, reader.latestOffset(start, ALL))
        with Client(name_servers=server.name_servers) as client:
            client.create_topic(topic, queues=1)
        assert rows(reader, parts[:1]) == [f"m{n}" for n in range(5)]
        if not tolerant:
            with pytest.raises(DataLossError, match=r"queue 1, offsets 0\.\.5: the queue was deleted: .*only 1 queues"):
                rows(reader, parts[1:])
        delete(server, topic)
        if tolerant:
            assert rows(reader, parts) == []
            assert sorted((loss["queue_id"], loss["begin"], loss["end"]) for loss in losses(folder)) == [
                (0, 0, 5),
                (1, 0, 5),
            ]
        else:
            with pytest.raises(
                DataLossError, match=r"queue 0, offsets 0\.\.5: the queue was deleted: .*not have the topic"
            ):
                rows(reader, parts[:1])


def test_offset_names_record_before_it_and_recreated_topic_is_read(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    """With a tag filter that matches nothing the record before is compared as well; the new topic has more messages."""
    fill(server, "again", 4)
    reader = stream(server, "again")
    end, found = step(reader, reader.initialOffset())
    assert len(found) == 4 and begins_of(end) == {("again", "broker-a", 0): 0}
    (record,) = preceding_of(end).values()
    with Client(name_servers=server.name_servers) as client:
        (queue,) = client.puller().queues("again")
        (message,) = client.puller().pull(queue, 3).messages()
    assert record.stored_ms == round(message.stored_at.timestamp() * 1000) and record.physical > 0
    assert list(end) == sorted(end) and json.dumps(stream(server, "again").latestOffset(end, ALL)) == json.dumps(end)
    delete(server, "again")
    fill(server, "again", 9, word="new")
    for tags in ("*", "none"):
        with pytest.raises(
            DataLossError, match=r"offset 4, the queue has 0\.\.9; the record before it was stored at \d+ ms"
        ):
            stream(server, "again", subExpression=tags).latestOffset(end, ALL)
    tolerant = stream(server, "again", failOnDataLoss="false", dataLossLog=tmp_path)
    end, found = step(tolerant, end)
    assert found == [f"new{n}" for n in range(9)] and begins_of(end) == {("again", "broker-a", 0): 0}
    assert step(tolerant, end) == (end, []) and len(losses(tmp_path)) == 1


def test_one_of_two_topics_deleted_is_skipped_or_named(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    fill(server, "left-a", 3)
    fill(server, "left-b", 3)
    for subject in ("left-a,left-b", "left-.*"):
        fill(server, "left-a", 1)
        reader = stream(server, subject)
        first = reader.initialOffset()
        end, _found = step(reader, first)
        delete(server, "left-a")
        fill(server, "left-b", 2, word="more")
        for again in (reader, stream(server, subject)):
            with pytest.raises(
                DataLossError, match=r"topic left-a, broker broker-a, queue 0, .* the queue was deleted"
            ):
                again.latestOffset(end, ALL)
        folder = tmp_path / str(len(subject))
        tolerant = stream(server, subject, failOnDataLoss="false", dataLossLog=folder)
        after, found = step(tolerant, end)
        assert found == ["more0", "more1"] and {key[0] for key in from_offset(after)} == {"left-b"}
        assert step(tolerant, after) == (after, []), "also while the client has the old route"
        close_all()  # as in another process
        assert step(stream(server, subject, failOnDataLoss="false", dataLossLog=folder), after) == (after, [])
        assert [loss["topic"] for loss in losses(folder)] == ["left-a"]
        replayed = stream(server, subject, failOnDataLoss="false")
        initial = replayed.initialOffset()  # Spark asks when it runs a failed first batch again
        assert (
            len(rows(replayed, replayed.partitions(initial, end)))
            == sum(from_offset(end).values()) - from_offset(end)[("left-a", "broker-a", 0)]
        )
        with pytest.raises(DataLossError, match="topic left-a"):
            strict = stream(server, subject)
            strict.partitions(strict.initialOffset(), end)


def test_missing_topic_of_new_query_is_an_error_and_pattern_is_not(server: SyncEmbeddedBroker) -> None:
    for fail in ("true", "false"):
        with pytest.raises(ConfigError, match="'never-created' cannot be read"):
            step(reader := stream(server, "never-created", failOnDataLoss=fail), reader.initialOffset())
    fill(server, "only-one", 1)
    reader = stream(server, "only-.*")
    end, _found = step(reader, reader.initialOffset())
    delete(server, "only-one")
    with pytest.raises(DataLossError, match="topic only-one"):
        stream(server, "only-.*").latestOffset(end, ALL)


def test_former_leader_without_bounds_proves_no_loss(
    monkeypatch: pytest.MonkeyPatch, server: SyncEmbeddedBroker
) -> None:
    """A member that lost the lead answers "ask the master" with offsets 0..0 until the NameServer has the new leader."""
    fill(server, "deposed", 3)
    reader = stream(server, "deposed", failOnDataLoss="false")
    end, _rows = step(reader, reader.initialOffset())
    limits = dict.fromkeys(from_offset(end), Bounds(0, 2))  # of a slave
    monkeypatch.setattr(StreamQueries, "snapshot", lambda _self: Snapshot(limits, {}, {}))
    call = Remote.call

    async def follower_call(self: Remote, address: str, command: Command, timeout_ms: int) -> Command:
        if command.code != RequestCode.PULL_MESSAGE:
            return await call(self, address, command, timeout_ms)
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": command.ext["queueOffset"],
            "minOffset": "0",
            "maxOffset": "0",
        }
        return Command(ResponseCode.PULL_RETRY_IMMEDIATELY, ext=ext)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "call", follower_call)
        with pytest.raises(BrokerNotExist, match="does not lead its group any more"):
            stream(server, "deposed", failOnDataLoss="false").latestOffset(end, ALL)
    assert stream(server, "deposed").latestOffset(end, ALL) == end


def test_stopped_broker_is_waited_for_and_is_no_data_loss() -> None:
    with SyncEmbeddedBroker() as server:
        fill(server, "down", 3)
        reader = stream(server, "down")
        start = reader.initialOffset()
        end, _found = step(reader, start)
        server.thread.call(server.inner.stop_broker())
        for available_now in (True, False):
            close_all()  # as in another process
            again = stream(server, "down")
            with pytest.raises(
                Exception, match="down/broker-a/0 cannot be read: broker broker-a is not registered"
            ) as caught:
                if available_now:
                    again.prepareForTriggerAvailableNow()
                again.latestOffset(end, ALL)
            assert isinstance(caught.value, BrokerNotExist)
        with pytest.raises(BrokerNotExist, match="waited up to 300 ms"):
            again.partitions(start, end)
        assert reader.latestOffset(end, ALL) is end, "a running stream idles"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"T":{"broker-a":{"0":4}}}', "endingOffsets": '{"T":{"broker-a":{"0":2}}}'},
         "option startingOffsets: 4 of T/broker-a/0 is behind 2 of option endingOffsets"),
        ({"startingOffsets": '{"T":{"broker-a":{"0":9}}}', "endingOffsets": '{"T":{"broker-a":{"0":8}}}'},
         "option startingOffsets: 9 of T/broker-a/0 is behind 8"),
        ({"startingTimestamp": 20, "endingTimestamp": 10}, "option startingTimestamp: 20 of T/broker-a/0 is behind 10 of"),
        ({"startingOffsetsByTimestamp": '{"T":{"broker-a":{"0":9}}}', "endingTimestamp": 8},
         "option startingOffsetsByTimestamp: 9 of T/broker-a/0 is behind 8 of option endingTimestamp"),
        ({"startingOffsets": "latest", "endingOffsets": '{"T":{"broker-a":{"0":2}}}'},
         "option startingOffsets=latest begins at offset 5 of T/broker-a/0, behind offset 2, where option endingOffsets="),
        ({"startingTimestamp": 2**50, "endingOffsets": '{"T":{"broker-a":{"0":2}}}'},
         r"option startingTimestamp=\d+ begins at offset 5 of T/broker-a/0, behind offset 2"),
        ({"startingOffsets": '{"T":{"broker-a":{"0":3}}}', "endingTimestamp": 5},
         "begins at offset 3 of T/broker-a/0, behind offset 0, where option endingTimestamp=5 ends"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fail", ["true", "false"])
def test_batch_that_starts_behind_its_end_is_refused(
    server: SyncEmbeddedBroker, options: dict[str, Any], words: str, fail: str
) -> None:
    with Client(name_servers=server.name_servers) as client:
        if not any(topic == "T" for topic in server.inner.broker.topics.table):
            client.create_topic("T", queues=1)
    if not server.inner.broker.store.max_offset("T", 0):
        fill(server, "T", 5)
    with pytest.raises(ConfigError, match=words):
        batch(server, "T", failOnDataLoss=fail, **options).partitions()
    equal = batch(server, "T", startingOffsets="latest", endingOffsets="latest").partitions()
    assert [part.piece for part in equal] == [None], "an empty range is legal"  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_loss_is_recorded_in_every_form_of_a_local_folder(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "lost messages"
    given = {"nameServer": "h:1", "topic": "T", "failOnDataLoss": "false", "dataLossLog": form.format(folder)}
    met_loss(parse_options(given, streaming=True), DataLoss("T", "b", 0, 1, 2, "deleted"), "read")
    (path,) = folder.iterdir()
    assert json.loads(path.read_text())["begin"] == 1


def test_loss_recorded_again_after_restart_has_the_same_id(tmp_path: Path) -> None:
    """A query that ends before its next batch is in the checkpoint plans it again, and records its losses again."""
    key = ("T", "b", 0)

    def record(start: int, bounds: Bounds) -> dict[str, Any]:
        folder = tmp_path / f"{start}-{bounds.low}"
        reader = reader_of(KnownBounds({key: bounds}), topic="T", failOnDataLoss="false", dataLossLog=folder)
        end = reader.latestOffset(to_offset({key: start}), reader.getDefaultReadLimit())
        reader.partitions(to_offset({key: start}), end)
        (path,) = folder.iterdir()
        return dict(json.loads(path.read_text()))

    first, again, later = record(5, Bounds(20, 40)), record(5, Bounds(30, 40)), record(25, Bounds(30, 40))
    assert (first["begin"], first["end"], again["end"]) == (5, 20, 30), "more was deleted meanwhile"
    assert first["id"] == again["id"] != later["id"]
