"""Spark's micro-batch loop played against topics in memory: crashes, retention, deletion, topics created again; without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from simulated_topics import LatestTopics, SimulatedTopics, reader_of

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import stream
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.options import parse_options
from saturnmq.spark.planning import selects
from saturnmq.spark.ranges import Key, begins_of, from_offset, preceding_of, to_offset
from saturnmq.spark.stream import StreamReader

A, B, LATER = ("T", "a", 0), ("T", "a", 1), ("U", "b", 0)
CRASHES = (
    "none",
    "planned",
    "logged",
    "read",
)  # where a process ends: before or after the offset log, before the commit log


class Query:
    """A query with a checkpoint: offset log and commit log survive a process, the reader does not."""

    def __init__(self, topics: SimulatedTopics, **options: Any) -> None:
        self.topics = topics
        self._options = options
        self.offsets: list[str] = []
        self.commits = 0
        self.rows: list[str] = []
        self.reader: StreamReader | None = None
        self._started = False

    def start(self, *, available_now: bool = False) -> None:
        """Start a process and run again the batch that is in the offset log and not in the commit log."""
        self.reader = reader_of(self.topics, **self._options)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if self.offsets:
            self.reader.partitions(
                json.loads(self.offsets[-1]), json.loads(self.offsets[-1])
            )  # its newest offset, twice
        if self.commits < len(self.offsets):
            self._run()

    def _begin(self) -> dict[str, Any]:
        assert self.reader is not None
        if not self.commits:
            return dict(json.loads(json.dumps(self.reader.initialOffset())))
        return dict(json.loads(self.offsets[self.commits - 1]))

    def _run(self, *, commit: bool = True) -> None:
        assert self.reader is not None
        pieces = self.reader.partitions(self._begin(), json.loads(self.offsets[-1]))
        rows = [name for piece in pieces for name in self.topics.read(piece.piece)]  # type: ignore[attr-defined]
        if commit:
            self.rows += rows
            self.commits += 1

    def trigger(self, crash: str = "none") -> bool:
        """Play one trigger and return whether it had a batch; with a crash the process ends within it."""
        if self.reader is None:
            self.start()
        assert self.reader is not None
        start = self._begin()
        end = json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        has_batch = end != json.dumps(start)
        if has_batch and crash != "planned":
            self.offsets.append(end)
            if crash != "logged":
                self._run(commit=crash == "none")
        if crash != "none":
            self.reader = None
        return has_batch

    def drain(self) -> None:
        for _ in range(50):
            if not self.trigger():
                return
        raise AssertionError("the query never becomes idle")


def losses(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([A, B, LATER]), st.integers(1, 6)),
    st.tuples(st.just("expire"), st.sampled_from([A, B, LATER]), st.integers(1, 8)),
    st.tuples(st.just("recreate"), st.sampled_from([A, B, LATER]), st.integers(0, 8)),
    st.tuples(st.just("delete"), st.sampled_from([A, B, LATER]), st.just(0)),
    st.tuples(st.just("trigger"), st.sampled_from(CRASHES), st.just(0)),
    st.tuples(st.just("trigger"), st.just("none"), st.just(0)),
)


def act(topics: SimulatedTopics, kind: str, key: Key, number: int, stored: set[str]) -> None:
    exists = key in topics.queues
    if kind == "expire" and exists:
        topics.expire(key, number)
    elif kind == "delete" and exists and len(topics.queues) > 1:
        topics.delete(key)
    elif kind in ("recreate", "append") and exists is (kind == "recreate"):
        topics.create(key)
        stored.update(topics.append(key, number))
    elif kind == "append":
        stored.update(topics.append(key, number))


@pytest.mark.parametrize("limit", [0, 3])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=25))
def test_stream_reads_each_row_once_or_records_its_loss(
    limit: int, actions: list[tuple[str, Any, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("losses")
    topics = SimulatedTopics()
    topics.create(A, B)
    stored = set(topics.append(A, 3))
    limits = {"maxOffsetsPerTrigger": limit} if limit else {}
    query = Query(topics, startingOffsets="earliest", failOnDataLoss="false", dataLossLog=folder, **limits)
    query.trigger()
    for kind, subject, number in actions:
        if kind == "trigger":
            query.trigger(subject)
        else:
            act(topics, kind, subject, number, stored)
            stored -= _never_seen(query, subject)
    query.reader = None
    query.drain()
    assert len(query.rows) == len(set(query.rows)), "no row twice"
    present = {message.name for queue in topics.queues.values() for message in queue.messages[queue.low :]}
    assert present <= set(query.rows), "every stored row is read"
    recorded = losses(folder)
    for name in stored - set(query.rows):
        place, offset = name.split("#")[0], int(name.rsplit(":", 1)[1])
        begins = [r["begin"] for r in recorded if f"{r['topic']}/{r['broker']}/{r['queue_id']}" == place]
        assert any(begin <= offset for begin in begins) or _was_new(query, name), (name, recorded)


def _never_seen(query: Query, key: Key) -> set[str]:
    """Return expired rows before the position of the checkpoint: those of another topic of the name leave no trace."""
    queue = query.topics.queues.get(key)
    position = from_offset(json.loads(query.offsets[-1])).get(key, 0) if query.offsets else 0
    rows = queue.messages[: min(queue.low, position)] if queue is not None else []
    return {row.name for row in rows} - set(query.rows)


def _was_new(query: Query, name: str) -> bool:
    """Whether the row expired, or its topic was deleted, before the query had its queue in an offset: that is no loss."""
    place = name.split("#")[0]
    topic, broker, queue = place.split("/")
    key, incarnation = (topic, broker, int(queue)), name.split("#")[1].split(":")[0]
    firsts = [begins_of(json.loads(text)).get(key) for text in query.offsets]
    offset = int(name.rsplit(":", 1)[1])
    read = {row for row in query.rows if row.startswith(f"{place}#{incarnation}:")}
    return not read or any(first is not None and offset < first for first in firsts)


@pytest.mark.parametrize("topics_class", [SimulatedTopics, LatestTopics])
@pytest.mark.parametrize("crash", CRASHES[1:])
@pytest.mark.parametrize("available_now", [False, True])
def test_first_batch_reads_what_was_due_after_crash(
    topics_class: type[SimulatedTopics], crash: str, available_now: bool
) -> None:
    topics = topics_class()
    topics.create(A, B)
    topics.append(A, 5)
    query = Query(topics, startingOffsets="earliest" if topics_class is SimulatedTopics else "latest")
    due = [] if topics_class is LatestTopics else topics.append(A, 0) + [m.name for m in topics.queues[A].messages]
    query.start(available_now=available_now)
    assert query.reader is not None
    first = query.reader.initialOffset()
    due += topics.append(A, 4) + topics.append(B, 2)  # a busy topic: between Spark's calls
    assert query.reader.initialOffset() is first
    query.trigger(crash)
    due += topics.append(A, 3)
    query.start(available_now=available_now)
    if crash == "planned" and topics_class is LatestTopics:
        due = topics.append(A, 2)  # nothing was saved: the next process starts a new query
        query.reader = None
        query.start()
        query.reader.initialOffset()
        due = topics.append(A, 2)
    query.drain()
    query.start(available_now=available_now)
    query.drain()
    assert sorted(query.rows) == sorted(due)


def test_first_offset_of_latest_query_is_saved_by_empty_batch() -> None:
    """Otherwise messages sent while an idle query is down would never be read."""
    topics = LatestTopics()
    topics.create(A)
    topics.append(A, 5)
    query = Query(topics, startingOffsets="latest")
    assert query.trigger() and query.rows == [] and len(query.offsets) == 1
    assert not query.trigger() and len(query.offsets) == 1
    query.reader = None
    due = topics.append(A, 3)
    query.drain()
    assert query.rows == due
    topics = SimulatedTopics()
    topics.create(A)
    query = Query(topics, startingOffsets="earliest")
    assert not query.trigger(), "the next process begins there too"
    due = topics.append(A, 3)
    query.drain()
    due += topics.append(A, 3)
    query.drain()
    assert query.rows == due
    assert [json.loads(text).get("n") for text in query.offsets] == [{"T": {"a": {"0": 0}}}, None]


def filled() -> tuple[SimulatedTopics, list[str]]:
    topics = SimulatedTopics()
    topics.create(A, B)
    return topics, topics.append(A, 10) + topics.append(B, 10)


@pytest.mark.parametrize("count", [3, 10, 15])
def test_topic_created_again_is_data_loss_and_read_whole(count: int, tmp_path: Path) -> None:
    topics, old = filled()
    query = Query(topics, startingOffsets="earliest")
    query.drain()
    pulls = topics.pulls
    for _ in range(10):
        assert not query.trigger()
    assert topics.pulls == pulls, "an idle stream reads no record"
    topics.create(A)
    new = topics.append(A, count)
    query.reader = None
    text = rf"topic T, broker a, queue 0, offsets 10\.\.\d+: the checkpoint goes on at offset 10, the queue has 0\.\.{count}"
    for _ in range(2):
        with pytest.raises(DataLossError, match=text):
            query.trigger()
        query.reader = None
    assert sorted(query.rows) == sorted(old)
    tolerant = Query(topics, startingOffsets="earliest", failOnDataLoss="false", dataLossLog=tmp_path)
    tolerant.offsets, tolerant.commits = query.offsets, query.commits
    tolerant.trigger("read")  # the batch is run again by the next process
    tolerant.drain()
    tolerant.reader = None
    tolerant.drain()
    assert tolerant.rows == new
    (loss,) = losses(tmp_path)
    assert (loss["topic"], loss["broker"], loss["queue_id"], loss["begin"]) == (*A, 10)


def test_lost_connection_in_plan_neither_hides_nor_repeats_loss(tmp_path: Path) -> None:
    topics, _old = filled()
    options = {
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "dataLossLog": tmp_path,
        "readTimeoutMs": 60_000,
    }
    query = Query(topics, **options)
    query.drain()
    topics.create(A)
    new = topics.append(A, 10)  # as many as before
    query.reader, query.rows = None, []
    topics.failing = {2}  # the loss is recorded, then the records before the new positions are read
    query.drain()
    assert query.rows == new and len(losses(tmp_path)) == 1


@pytest.mark.parametrize("count", [8, 25])
def test_topic_created_again_after_clock_step_back_is_read_whole(count: int) -> None:
    """Its messages are older than the checkpoint by their store times; their positions in the log say that they are newer."""
    topics, old = filled()
    query = Query(topics, startingOffsets="earliest", failOnDataLoss="false")
    query.drain()
    topics.create(A)
    topics.step_clock_back()
    new = topics.append(A, count)
    query.reader = None
    query.drain()
    assert sorted(query.rows) == sorted(old + new)


def test_idle_polls_compute_nothing_until_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark polls every 10 ms; decoding an offset of 10,000 queues takes longer."""
    topics, old = filled()
    query = Query(topics, startingOffsets="earliest", metadataRefreshMs="3600000")
    query.drain()
    assert query.reader is not None
    start, decoded = json.loads(query.offsets[-1]), []
    query.reader.latestOffset(start, ReadAllAvailable())
    monkeypatch.setattr(stream.ranges, "from_offset", lambda offset: decoded.append(offset) or from_offset(offset))
    assert [query.reader.latestOffset(dict(start), ReadAllAvailable()) for _ in range(5)] == [start] * 5
    assert not decoded
    query.reader._snapshot_cache = None
    new = topics.append(A, 2)
    query.drain()
    assert decoded and sorted(query.rows) == sorted(old + new)


def test_queues_that_the_options_leave_out_are_not_waited_for() -> None:
    fewer = parse_options({"nameServer": "h:1", "topic": "T", "queues": "0"}, streaming=True)
    assert [selects(fewer, key) for key in (A, B)] == [True, False]


def test_topic_created_again_while_stream_runs_is_seen_at_next_message() -> None:
    topics, _old = filled()
    query = Query(topics, startingOffsets="earliest")
    query.drain()
    topics.create(A)
    topics.append(A, 11)
    with pytest.raises(DataLossError, match="the topic was created again"):
        query.trigger()


def test_expired_record_before_position_is_no_loss() -> None:
    topics, old = filled()
    query = Query(topics, startingOffsets="earliest")
    query.drain()
    topics.expire(A, 10)
    query.reader = None
    query.drain()
    old += topics.append(A, 4)
    query.drain()
    topics.expire(A, 12)
    query.drain()
    assert sorted(query.rows) == sorted(old)
    assert A in preceding_of(json.loads(query.offsets[-1]))


def test_checkpoint_of_earlier_version_goes_on() -> None:
    topics, old = filled()
    query = Query(topics, startingOffsets="earliest")
    query.offsets, query.commits = [json.dumps(to_offset({A: 4, B: 10}))], 1
    assert query.trigger() and query.rows == old[4:10]
    assert preceding_of(json.loads(query.offsets[-1])).keys() == {A, B}, "it is upgraded by the next batch"
    failed = Query(topics, startingOffsets="earliest")
    failed.offsets = [json.dumps(to_offset({A: 4, B: 0}))]  # batch 0, without its begins
    failed.drain()
    assert sorted(failed.rows) == sorted(old)
    topics.create(A)
    topics.append(A, 2)
    query.offsets.append(json.dumps(to_offset({A: 10, B: 10})))
    query.commits = 2
    with pytest.raises(DataLossError, match=r"offset 10, the queue has 0\.\.2"):
        query.trigger()


def test_batch_of_topic_created_again_is_not_read_from_new_topic(tmp_path: Path) -> None:
    for count in (4, 20):
        topics, _old = filled()
        query = Query(topics, startingOffsets="earliest", failOnDataLoss="false", dataLossLog=tmp_path / str(count))
        query.trigger("logged")
        topics.create(A)
        new = topics.append(A, count)
        query.drain()
        assert [row for row in query.rows if row.startswith("T/a/0")] == new
        assert {(loss["queue_id"], loss["begin"]) for loss in losses(tmp_path / str(count))} == {(0, 0), (0, 10)}


def test_deleted_queues_are_named_or_skipped_once(tmp_path: Path) -> None:
    topics, old = filled()
    topics.create(LATER)
    old += topics.append(LATER, 2)
    query = Query(topics, startingOffsets="earliest")
    query.drain()
    topics.delete(A)
    topics.delete(B)
    query.reader = None
    with pytest.raises(DataLossError, match=r"queue 0, offsets 10\.\.10: the queue was deleted.*the same for T/a/1"):
        query.trigger()
    tolerant = Query(topics, failOnDataLoss="false", dataLossLog=tmp_path)
    tolerant.offsets, tolerant.commits = query.offsets, query.commits
    new = topics.append(LATER, 3)
    for _ in range(2):
        tolerant.drain()
        tolerant.reader = None
    assert tolerant.rows == new and from_offset(json.loads(tolerant.offsets[-1])) == {LATER: 5}
    assert [loss["queue_id"] for loss in losses(tmp_path)] == [0, 1]
    topics.create(A)
    new += topics.append(A, 3)
    tolerant.drain()
    assert tolerant.rows == new, "a new topic of the name is read whole"


def test_broker_that_is_down_is_no_data_loss() -> None:
    topics, old = filled()
    topics.create(LATER)
    query = Query(topics, startingOffsets="earliest")
    query.drain()
    topics.down.add("a")
    new = topics.append(LATER, 3)
    query.drain()  # others go on
    assert sorted(query.rows) == sorted(old + new) and from_offset(json.loads(query.offsets[-1]))[A] == 10
    with pytest.raises(
        ConfigError.__mro__[1], match="T/a/0, T/a/1 cannot be read: broker a is not registered"
    ) as caught:
        query.start(available_now=True)
        query.trigger()
    assert not isinstance(caught.value, DataLossError)
    topics.down.clear()
    new += topics.append(A, 2)
    query.drain()
    assert sorted(query.rows) == sorted(old + new)


def test_available_now_run_leaves_new_queues_and_topics_to_next_run() -> None:
    topics, due = filled()
    query = Query(topics, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    query.start(available_now=True)
    query.trigger()
    topics.create(LATER, ("T", "a", 2))
    more = topics.append(LATER, 3) + topics.append(("T", "a", 2), 2) + topics.append(A, 2)
    query.drain()
    assert sorted(query.rows) == sorted(due)
    query.start(available_now=True)
    query.drain()
    assert sorted(query.rows) == sorted(due + more)
