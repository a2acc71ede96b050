"""The stream source as run by its planner process, and offset commits of the driver; without a JVM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from simulated_topics import KnownBounds, reader_of

from saturnmq import Outgoing
from saturnmq.client.client import Client as AsyncClient
from saturnmq.protocol.bodies import ConsumerIdList, MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.spark.connect import ConnectionOptions, linked
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.offset_tracker import OffsetCommitter, Tracker, positions_of
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.ranges import BatchAdmission, Bounds, from_offset, to_offset
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.spark.stream import StreamReader
from saturnmq.spark.stream_queries import Snapshot, StreamQueries
from saturnmq.sync import Client
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker
from waiting import until

ALL = ReadAllAvailable()
Key = tuple[str, str, int]


def fill(server: SyncEmbeddedBroker, topic: str, counts: list[int]) -> None:
    """Send this many messages to queues 0, 1, ..."""
    with Client(name_servers=server.name_servers) as client, client.producer("stream-tests") as out:
        client.create_topic(topic, queues=len(counts))
        for queue in out.queues(topic):
            if counts[queue.queue_id]:
                messages = [Outgoing(value=b"%d" % n) for n in range(counts[queue.queue_id])]
                out.send_many(topic, messages, queue=queue)


def stream(server: SyncEmbeddedBroker, topic: str, **options: Any) -> StreamReader:
    given = {"nameServer": server.name_servers, "topic": topic, "startingOffsets": "earliest", "metadataRefreshMs": "0"}
    source = RocketMQDataSource(given | {k: str(v) for k, v in options.items()})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def counts(offset: dict[str, Any]) -> list[int]:
    return list(from_offset(offset).values())


def read(made: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    found = []
    for partition in made.partitions(start, end):
        for batch in made.read(partition):
            found += [(r["queueId"], r["queueOffset"]) for r in batch.to_pylist()]
    return sorted(found)


@pytest.mark.spec("STR-01", "STR-03", "STR-10")
def test_stream_offset_follows_queues_and_is_reused_when_idle(server: SyncEmbeddedBroker) -> None:
    fill(server, "grow", [30, 0])
    made = stream(server, "grow", group="grow-group")
    start = made.initialOffset()
    assert start == {"g": "grow-group", "q": {"grow": {"broker-a": {"0": 0, "1": 0}}}, "v": 1}
    end = made.latestOffset(start, ALL)
    assert counts(end) == [30, 0]
    assert made.latestOffset(end, ALL) is end
    assert read(made, start, end) == [(0, n) for n in range(30)] and made.partitions(end, end) == []
    fill(server, "grow", [5, 7, 9])  # a third queue with messages appears while the stream runs
    with linked(made._options) as link:

        async def refresh() -> None:
            await link.puller.refresh("grow")

        link.run(refresh())
    later = made.latestOffset(end, ALL)
    assert counts(later) == [35, 7, 9]
    assert read(made, end, later) == [(0, n) for n in range(30, 35)] + [(1, n) for n in range(7)] + [
        (2, n) for n in range(9)
    ]
    assert read(made, end, later) == read(made, end, later)  # a replayed batch has the same rows
    latest = stream(server, "grow", startingOffsets="latest").initialOffset()
    assert counts(latest) == [35, 7, 9]
    each = '{"grow": {"broker-a": {"0": 7, "1": -1, "2": -2}}}'
    assert counts(stream(server, "grow", startingOffsets=each).initialOffset()) == [7, 7, 0]
    with linked(made._options) as link:
        queue = MessageQueue("grow", "broker-a", 1)
        stored_ms = link.run(link.puller.pull(queue, 0)).messages()[0].record.store_timestamp_ms
    for begin_ms, start_of_second in ((stored_ms, 0), (stored_ms + 86_400_000, 7)):
        by_time = stream(server, "grow", startingTimestamp=begin_ms, startingOffsetsByTimestampStrategy="latest")
        assert counts(by_time.initialOffset())[1] == start_of_second


@pytest.mark.spec("STR-04", "STR-05", "STR-07", "STR-06")
def test_stream_limits_hold_and_available_now_ends(server: SyncEmbeddedBroker) -> None:
    fill(server, "limited", [900, 140])
    made = stream(server, "limited", maxOffsetsPerTrigger=250, minOffsetsPerTrigger=200)
    made.prepareForTriggerAvailableNow()
    fill(server, "limited", [50, 50])  # sent after the run began
    position, batches = made.initialOffset(), []
    while (reached := made.latestOffset(position, ALL)) is not position:
        batches.append(sum(counts(reached)) - sum(counts(position)))
        position = reached
        assert len(batches) < 20
    assert counts(position) == [900, 140] and all(0 < n <= 252 for n in batches)
    assert batches[-1] < 200, "fewer than minOffsetsPerTrigger, which would wait for ever"
    by_bytes = stream(server, "limited", maxBytesPerTrigger="8k")
    step = sum(counts(by_bytes.latestOffset(by_bytes.initialOffset(), ALL)))
    assert 20 <= step <= 100


@pytest.mark.spec("STR-06")
def test_min_offsets_delays_batch_up_to_max_trigger_delay() -> None:
    admission = BatchAdmission(0, 0, 100, SourceOptions().trigger_delay_ms)  # 15 min
    key = ("T", "b", 0)

    def reach(waiting: int, now_ms: float, **more: bool) -> int:
        return admission.reach({key: 1000}, {key: 1000 + waiting}, now_ms, {}, **more)[key] - 1000

    assert reach(99, 0) == 0 and reach(100, 1000) == 100
    assert reach(99, 900_999) == 0 and reach(99, 901_000) == 99
    assert reach(5, 901_001) == 0 and reach(5, 901_002, no_minimum=True) == 5
    assert BatchAdmission(0, 0, 100, 60_000).reach({}, {key: 100}, 0, {}) == {key: 100}, "a new queue"


@pytest.mark.spec("STR-10")
def test_micro_batch_is_split_by_bytes(server: SyncEmbeddedBroker) -> None:
    fill(server, "split", [900])
    made = stream(server, "split", maxBytesPerPartition="8k")
    start = made.initialOffset()
    pieces = [partition.piece[3:5] for partition in made.partitions(start, made.latestOffset(start, ALL))]
    assert [begin for begin, _ in pieces] == [0, *(end for _, end in pieces[:-1])] and pieces[-1][1] == 900
    assert all(20 <= end - begin <= 100 for begin, end in pieces)


@pytest.mark.spec("STR-06")
def test_stream_waits_for_its_minimum_or_its_delay(server: SyncEmbeddedBroker) -> None:
    fill(server, "least", [30])
    patient = stream(server, "least", minOffsetsPerTrigger=40)
    impatient = stream(server, "least", minOffsetsPerTrigger=40, maxTriggerDelay="1ms")
    start = patient.initialOffset()
    assert patient.latestOffset(start, ALL) is impatient.latestOffset(start, ALL) is start
    asyncio.run(until(lambda: impatient.latestOffset(start, ALL) is not start))
    assert patient.latestOffset(start, ALL) is start
    fill(server, "least", [10])
    assert counts(patient.latestOffset(start, ALL)) == [40]


@pytest.mark.spec("STR-06")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 3},
            "minOffsetsPerTrigger=9 is more than maxOffsetsPerTrigger=3",
        ),
        ({"endingTimestamp": 5}, "endingTimestamp is for batch reads"),
        ({"maxTriggerDelay": "soon"}, "must be a duration such as"),
        ({"maxBytesPerTrigger": "0"}, "must be a size"),
        ({"startingOffsets": "group"}, "startingOffsets=group needs option group"),
    ],
)
def test_wrong_stream_options_are_named_in_error(
    server: SyncEmbeddedBroker, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        stream(server, "T", **options)


@pytest.mark.spec("STR-09")
def test_idle_stream_queries_once_per_refresh_interval(
    server: SyncEmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, "idle", [3])
    made = stream(server, "idle", metadataRefreshMs=1000)
    now, asked = [100.0], [0]
    whole = StreamQueries.snapshot

    def snapshot(self: StreamQueries) -> Snapshot:
        asked[0] += 1
        return whole(self)

    monkeypatch.setattr(StreamQueries, "snapshot", snapshot)
    monkeypatch.setattr(StreamQueries, "states", None)  # an idle stream asks nothing else
    monkeypatch.setattr("saturnmq.spark.stream.time.monotonic", lambda: now[0])
    position = made.latestOffset(made.initialOffset(), ALL)
    for _ in range(1000):  # ten seconds of Spark's polling
        now[0] += 0.01
        assert made.latestOffset(position, ALL) is position
        made.reportLatestOffset()
    assert 9 <= asked[0] <= 12


@pytest.mark.spec("STR-15", "STR-10")
def test_stream_positions_no_longer_stored_are_data_loss(
    tmp_path: Path,
) -> None:
    queries = KnownBounds({("old", "broker-a", 0): Bounds(20, 50)})
    at = [to_offset({("old", "broker-a", 0): n}) for n in range(80)]
    strict = reader_of(queries, topic="old")
    with pytest.raises(DataLossError, match=r"offsets 10\.\.20: the queue begins at 20"):
        strict.partitions(at[10], at[40])
    with pytest.raises(DataLossError, match="the next offset went back from 40 to 30"):
        strict.partitions(at[40], at[30])
    with pytest.raises(DataLossError, match=r"offsets 50\.\.70: the queue ends at 50"):
        strict.partitions(at[45], at[70])
    tolerant = reader_of(queries, topic="old", failOnDataLoss="false", dataLossLog=tmp_path)
    assert [p.piece[3:5] for p in tolerant.partitions(at[10], at[40])] == [(20, 40)]
    assert [p.piece[3:5] for p in tolerant.partitions(at[45], at[70])] == [(45, 50)]
    assert tolerant.partitions(at[60], at[70]) == []
    lost = to_offset({("old", "broker-a", 0): 30, ("gone", "broker-a", 0): 5})
    more = to_offset({("old", "broker-a", 0): 40, ("gone", "broker-a", 0): 5})
    assert [p.piece[3:5] for p in strict.partitions(lost, more)] == [
        (30, 40)
    ]  # a deleted topic without new messages does no harm
    assert len(list(tmp_path.iterdir())) >= 3
    with pytest.raises(ConfigError, match="no offset of this source"):
        strict.latestOffset({"other": 1}, ALL)


@pytest.mark.spec("SRC-15", "STR-16", "STR-03")
def test_replayed_batch_detects_loss_in_queue_that_was_new() -> None:
    """The previous offset does not name the new queues, so the batch's own offset must record where they began."""
    old, new, aged = ("T", "a", 0), ("T", "b", 0), ("T", "c", 0)
    known = {old: Bounds(0, 50), new: Bounds(0, 70), aged: Bounds(30, 60)}
    made = reader_of(KnownBounds(known), topic="T")

    def planned() -> list[Any]:
        return [p.piece[1:5] for p in made.partitions(start, end)]  # type: ignore[attr-defined]

    start = to_offset({old: 50})
    end = made.latestOffset(start, ALL)
    assert planned() == [
        ("b", 0, 0, 70),
        ("c", 0, 30, 60),
    ]  # a queue that begins at 30 when first seen has lost nothing
    assert made.latestOffset(end, ALL) is end and from_offset(end) == {old: 50, new: 70, aged: 60}
    assert planned() == [("b", 0, 0, 70), ("c", 0, 30, 60)]
    known[new] = Bounds(40, 70)  # retention deletes messages before the batch is replayed
    with pytest.raises(DataLossError, match=r"broker b, queue 0, offsets 0\.\.40: the queue begins at 40"):
        planned()
    known[new], known[aged] = Bounds(0, 70), Bounds(45, 60)
    with pytest.raises(DataLossError, match=r"broker c, queue 0, offsets 30\.\.45: the queue begins at 45"):
        planned()
    known[old] = Bounds(0, 55)
    later = made.latestOffset(end, ALL)
    assert "n" in end and "n" not in later  # recorded only in the batch in which the queue appeared
    del known[new], known[aged]
    with pytest.raises(DataLossError, match="the queue was deleted"):
        planned()


@pytest.mark.spec("STR-15", "STR-01")
def test_changed_filter_and_dropped_topic_are_logged_once(
    server: SyncEmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "filtered", [6])
    said = "checkpoint="
    first = stream(server, "filtered", subExpression="paid || refunded")
    begin = first.initialOffset()
    end = first.latestOffset(begin, ALL)
    assert counts(end) == [6] and begin["s"] == end["s"] == "paid || refunded" and list(end) == sorted(end)
    assert first.latestOffset(end, ALL) is end and said not in caplog.text
    other = stream(server, "filtered", subExpression="a > 5", expressionType="SQL92")
    for _ in range(2):
        assert other.latestOffset(end, ALL) is end  # another filter alone starts no batch
    assert caplog.text.count(f"filter changed expression='SQL92: a > 5' {said}'paid || refunded'") == 1
    fill(server, "filtered", [1])
    moved = other.latestOffset(end, ALL)
    assert moved["s"] == "SQL92: a > 5" and counts(moved) == [7]
    caplog.clear()
    again = stream(server, "filtered", subExpression="a > 5", expressionType="SQL92")
    assert again.latestOffset(moved, ALL) is moved and said not in caplog.text
    plain = stream(server, "filtered", subExpression="*")
    assert "s" not in plain.initialOffset() and plain.latestOffset(moved, ALL) is moved
    assert f"filter changed expression='*' {said}'SQL92: a > 5'" in caplog.text
    dropped = to_offset({("filtered", "broker-a", 0): 7, ("dropped", "broker-a", 0): 5})
    assert counts(stream(server, "filtered").latestOffset(dropped, ALL)) == [5, 7]
    assert "are left out by the options and keep their positions queues=dropped/broker-a/0" in caplog.text


@pytest.mark.spec("STR-02", "STR-09")
@pytest.mark.loop(real=True)
async def test_stream_positions_survive_broker_address_change(tmp_path: Path) -> None:
    """The same store behind another name server and another port: the checkpoint contains the broker name, not its address."""

    async def send(server: EmbeddedBroker, first: int) -> None:
        async with AsyncClient(name_servers=server.name_servers) as client, client.producer("again") as out:
            await out.send_many("moved", [Outgoing(value=b"%d" % n) for n in range(first, first + 40)])

    def plan(name_servers: str, start: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
        source = RocketMQDataSource({"nameServer": name_servers, "topic": "moved", "startingOffsets": "earliest"})
        made = source.streamReader(source.schema())
        begin = start or made.initialOffset()
        end = made.latestOffset(begin, ALL)
        return end, sum(b.num_rows for p in made.partitions(begin, end) for b in made.read(p))

    async with EmbeddedBroker(tmp_path) as server:
        await send(server, 0)
        end, rows = await asyncio.to_thread(plan, server.name_servers, None)
        first = server.name_servers, server.broker_address
    assert rows == 40 and "127.0.0.1" not in json.dumps(end)
    async with EmbeddedBroker(tmp_path) as server:
        assert (server.name_servers, server.broker_address) != first
        await send(server, 40)
        _, rows = await asyncio.to_thread(plan, server.name_servers, end)
    assert rows == 40


# ---- offset commits of the driver


def progress(group: str | None, end: int, latest: int, batch: int = 0) -> Any:
    offset = to_offset({("tracked", "broker-a", 0): end}, group)
    high = to_offset({("tracked", "broker-a", 0): latest}, group)
    source = SimpleNamespace(endOffset=json.dumps(offset), latestOffset=json.dumps(high), numInputRows=end)
    return SimpleNamespace(
        progress=SimpleNamespace(id="query-1", runId="run-1", batchId=batch, batchDuration=7, sources=[source])
    )


def committed(server: SyncEmbeddedBroker, group: str) -> int | None:
    with Client(name_servers=server.name_servers) as client:
        return client.puller().committed(group, MessageQueue("tracked", "broker-a", 0))


@pytest.mark.spec("STR-11", "STR-12", "STR-13", "STR-14")
def test_tracker_commits_finished_batches_and_records_lag(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    fill(server, "tracked", [100])
    tracker = Tracker(ConnectionOptions(server.name_servers), interval_ms=60_000, lag_table=str(tmp_path))
    try:
        other = SimpleNamespace(endOffset='{"topic":{"0":5}}', latestOffset=None, numInputRows=5)
        tracker.onQueryProgress(
            SimpleNamespace(progress=SimpleNamespace(id="k", sources=[other]))
        )  # an offset of a Kafka source
        tracker.onQueryProgress(progress("tracked-group", 30, 100))
        tracker.onQueryProgress(progress("tracked-group", 60, 100, 1))
        asyncio.run(until(lambda: len(list(tmp_path.iterdir())) == 2))
        assert committed(server, "tracked-group") == 30, "the interval is not over"
        tracker.onQueryTerminated(SimpleNamespace())
        asyncio.run(until(lambda: server.inner.broker.offsets.get("tracked", "tracked-group", 0) == 60))
        assert tracker.lags["query-1"].messages == 40 and list(tracker.lags) == ["query-1"]
        broker = server.inner.broker
        assert broker.topics.get("%RETRY%tracked-group") is not None  # mqadmin consumerProgress looks it up
        assert "tracked-group" not in broker.clients.consumers
        tracker.onQueryProgress(progress(None, 90, 100, 2))  # without a group nothing is committed
        assert tracker.flush() and committed(server, "tracked-group") == 60
    finally:
        tracker.stop()
    table = pq.read_table(tmp_path).to_pylist()
    assert [(r["batch"], r["end_offset"], r["max_offset"], r["lag"]) for r in sorted(table, key=lambda r: r["batch"])] == [
        (0, 30, 100, 70), (1, 60, 100, 40), (2, 90, 100, 10)]  # fmt: skip
    assert positions_of("nonsense") is None and positions_of('{"v":1,"q":5}') is None


@pytest.mark.spec("STR-14")
def test_lag_gauges_report_messages_and_age(server: SyncEmbeddedBroker) -> None:
    fill(server, "tracked", [100])
    now_ms = time.time() * 1000
    tracker = Tracker(ConnectionOptions(server.name_servers), interval_ms=60_000)
    labels = '{query="query-1",topic="tracked"}'

    def measured() -> dict[str, float]:
        assert tracker.flush()
        lines = [line for line in tracker.gauges(now_ms + 600_000).splitlines() if not line.startswith("#")]
        return {
            name.removeprefix("saturnmq_spark_lag_").removesuffix(labels): float(n) for name, n in map(str.split, lines)
        }

    try:
        assert measured() == {}
        tracker.onQueryProgress(progress(None, 30, 100))
        found = measured()
        assert found["messages"] == 70 and 0 <= found["seconds"] - 600 < 600  # stored by this test or by an earlier one
        tracker.onQueryProgress(progress(None, 60, 100, 1))  # within the interval the previous age is kept
        assert measured() == found | {"messages": 40}
        tracker.onQueryProgress(progress(None, 100, 100, 2))
        assert measured() == {"messages": 0, "seconds": 0}
        assert "# TYPE saturnmq_spark_lag_seconds gauge" in tracker.gauges()
    finally:
        tracker.stop()


@pytest.mark.spec("STR-14", "STR-11")
def test_lag_gauge_omits_unknown_age() -> None:
    tracker = Tracker(ConnectionOptions("127.0.0.1:1", pull_timeout_ms=200))
    try:
        tracker.onQueryProgress(progress(None, 30, 100))
        assert tracker.flush()
        assert 'lag_messages{query="query-1",topic="tracked"} 70' in tracker.gauges()
        assert "saturnmq_spark_lag_seconds{" not in tracker.gauges()
        host, port = tracker.serve_metrics(0)
        assert urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode() == tracker.gauges()
        (lag,) = tracker.lags.values()
        lag.latest[('a"} 1\n\\', "b", 0)] = 5  # no name may forge a line
        assert 'saturnmq_spark_lag_messages{query="query-1",topic="a\\"} 1\\n\\\\"} 5' in tracker.gauges().splitlines()
    finally:
        tracker.stop()


@pytest.mark.spec("STR-14", "STR-11")
def test_restarted_query_is_tracked_again() -> None:
    """Spark gives a query that resumes from its checkpoint the id of the previous run."""
    tracker, query = Tracker(ConnectionOptions("127.0.0.1:1", pull_timeout_ms=200)), SimpleNamespace(id="query-1")
    try:
        for end in (100, 100):
            tracker.onQueryStarted(query)
            assert not tracker.wait(query, 0.0)
            tracker.onQueryProgress(progress(None, end, 100))
            assert tracker.flush() and 'query="query-1"' in tracker.gauges()
            tracker.onQueryTerminated(query)
            assert tracker.wait(query) and 'query="query-1"' not in tracker.gauges()
    finally:
        tracker.stop()


@pytest.mark.spec("STR-12")
def test_group_offsets_are_committed_at_interval_and_never_backwards(server: SyncEmbeddedBroker) -> None:
    fill(server, "tracked", [100])
    made = OffsetCommitter(ConnectionOptions(server.name_servers))  # the default is 5 s
    key = ("tracked", "broker-a", 0)
    for now_ms, offset, expected in ((0, 10, 10), (4999, 20, 10), (5000, 30, 30), (20_000, 5, 30)):
        made.reached("slow-group", {key: offset})
        made.flush(now_ms)
        assert committed(server, "slow-group") == expected
    made.reached("slow-group", {key: 80})
    made.flush(20_001, all_of_it=True)
    assert committed(server, "slow-group") == 80
    commits = [
        request
        for request in server.inner.tap.requests
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET and request.ext["consumerGroup"] == "slow-group"
    ]
    assert [(request.ext["commitOffset"], request.oneway) for request in commits] == [
        ("10", False), ("30", False), ("80", False)
    ]  # fmt: skip
    restarted = stream(server, "tracked", group="slow-group", startingOffsets="group")
    checkpoint, end = (to_offset({key: offset}, "slow-group") for offset in (20, 25))
    assert read(restarted, checkpoint, end) == [(0, n) for n in range(20, 25)], "the checkpoint decides, not the group"


class Cluster:
    """A link to two masters; only the second one has these members of every group."""

    def __init__(self, members: list[str], *, has_retry_topic: bool = False) -> None:
        self.members = members
        self.asked: list[tuple[str, int]] = []
        self.offsets: dict[Key, int] = {}
        masters = {"a": "a:1", "b": "b:1"}

        async def none(_topic: str) -> None: ...

        async def retry_route(_topic: str) -> object:
            return object() if has_retry_topic else None

        async def route(_topic: str) -> Any:
            return SimpleNamespace(addresses=masters, master=masters.get)

        async def call(address: str, command: Command, _timeout_ms: int) -> Command:
            self.asked.append((address, command.code))
            if command.code != RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return command.reply()
            ids = self.members if address == "b:1" else []
            return (
                command.reply(body=ConsumerIdList(ids).encode())
                if ids
                else command.reply(ResponseCode.SYSTEM_ERROR, "no consumer")
            )

        self.core = SimpleNamespace(
            routes=SimpleNamespace(refresh=retry_route), read_route=route, client_id="id", remote=SimpleNamespace(call=call),
            call_broker=call, settings=SimpleNamespace(api_timeout_ms=3000))  # fmt: skip

        async def stored(_group: str, queue: MessageQueue) -> int:
            return self.offsets.get((queue.topic, queue.broker_name, queue.queue_id), 0)

        async def commit(_group: str, queue: MessageQueue, offset: int) -> None:
            self.offsets[(queue.topic, queue.broker_name, queue.queue_id)] = offset

        self.puller = SimpleNamespace(queues=none, committed=stored, commit=commit)

    def run(self, work: Any) -> Any:
        return asyncio.run(work)


@pytest.mark.spec("STR-13")
def test_group_with_live_members_gets_warning_instead_of_heartbeat(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are committed in any case; when the members have left, the retry topic is created."""
    link, key = Cluster(["a-member"]), ("tracked", "broker-a", 0)
    monkeypatch.setattr("saturnmq.spark.offset_tracker.linked", lambda _options: contextlib.nullcontext(link))
    made = OffsetCommitter(ConnectionOptions("h:1"), 0)
    members = [(a, int(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) for a in ("a:1", "b:1")]
    for offset in (3, 5):
        made.reached("G", {key: offset})
        made.flush(offset)
    assert link.asked == members * 2 and link.offsets == {key: 5}
    assert caplog.text.count("group has live consumers group=G") == 1
    complete = Cluster([], has_retry_topic=True)
    with monkeypatch.context() as patch:
        patch.setattr("saturnmq.spark.offset_tracker.linked", lambda _options: contextlib.nullcontext(complete))
        other = OffsetCommitter(ConnectionOptions("h:1"), 0)
        other.reached("G", {key: 8})
        other.flush(8)
    assert (complete.offsets, complete.asked) == ({key: 8}, []), "mqadmin finds the route of the retry topic"
    link.members, link.asked = [], []
    made.reached("G", {key: 8})
    made.flush(8)
    assert link.offsets == {key: 8} and link.asked == members + [
        (a, int(code)) for a in ("a:1", "b:1") for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)
    ]


@pytest.mark.spec("STR-11", "STR-12")
def test_unreachable_broker_does_not_slow_query() -> None:
    tracker = Tracker(ConnectionOptions("127.0.0.1:1", pull_timeout_ms=200), interval_ms=0)
    began = time.monotonic()
    for n in range(100):
        tracker.onQueryProgress(progress("g", n, 100, n))
    assert time.monotonic() - began < 10  # each commit would wait 200 ms
    tracker._committer._groups = {}  # the thread may be iterating over them
    tracker.stop()


@pytest.mark.spec("STR-11")
def test_callbacks_only_enqueue_and_one_thread_does_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    link, threads, connects = Cluster([]), [], threading.Event()

    @contextlib.contextmanager
    def linked_slowly(_options: ConnectionOptions) -> Iterator[Cluster]:
        threads.append(threading.current_thread())
        if threads[-1] is not threading.main_thread():
            assert connects.wait(30)
        yield link

    monkeypatch.setattr("saturnmq.spark.offset_tracker.linked", linked_slowly)
    tracker = Tracker(ConnectionOptions("h:1"), interval_ms=0)
    try:
        for group in ("g", "h"):
            tracker.onQueryStarted(SimpleNamespace(id="query-1"))
            for n in range(1, 11):
                tracker.onQueryProgress(progress(group, n, n, n))
            tracker.onQueryTerminated(SimpleNamespace(id="query-1", exception=None))
        asyncio.run(until(lambda: threads))
        assert link.offsets == {}, "the callbacks returned while the broker was out of reach"
        connects.set()
        assert tracker.flush() and link.offsets == {("tracked", "broker-a", 0): 10}
    finally:
        connects.set()
        tracker.stop()
    assert len(threads) > 1 and set(threads) == {threads[0]} and threads[0] is not threading.main_thread()


@pytest.mark.spec("STR-17")
def test_tracker_names_supported_triggers(caplog: pytest.LogCaptureFixture) -> None:
    refusal = "[STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED] ... The input stream {} is not supported"
    tracker = Tracker(ConnectionOptions("127.0.0.1:1"))
    try:
        for stream_name in ("org.apache.spark.sql.connect.Other", None, "v2.python.PythonMicroBatchStream"):
            assert "availableNow" not in caplog.text
            failure = refusal.format(stream_name) if stream_name else None
            tracker.onQueryTerminated(SimpleNamespace(id="q", runId=stream_name, exception=failure))
        assert "availableNow" in caplog.text and "processingTime" in caplog.text
    finally:
        tracker.stop()


@pytest.mark.spark
@pytest.mark.spec("STR-17")
def test_continuous_and_real_time_triggers_are_rejected(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    fill(server, "triggers", [1])
    rows = (
        spark.readStream.format("rocketmq")
        .options(nameServer=server.name_servers, topic="triggers", columns="body")
        .load()
    )
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(PySparkException, match="Data source rocketmq does not support continuous processing"):
        writer.trigger(continuous="1 second").start()
    allowed = "spark.sql.streaming.realTimeMode.allowlistCheck"  # of sinks: otherwise Spark refuses before it reaches the source
    spark.conf.set(allowed, "false")
    try:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "r"))
        query = writer.outputMode("update").trigger(realTime="5 minutes").start()
        with pytest.raises(PySparkException, match="INPUT_STREAM_NOT_SUPPORTED"):
            query.awaitTermination(200)
        assert not query.isActive
    finally:
        spark.conf.unset(allowed)
