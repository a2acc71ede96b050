"""Offsets, limits and targets of the stream reader, against simulated queue ends; without a broker."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from simulated_topics import KnownBounds, reader_of

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.offset_tracker import ConnectionOptions, Lag, OffsetCommitter, write_lag
from saturnmq.spark.partition import RangePartition
from saturnmq.spark.ranges import BatchAdmission, Bounds, Key, from_offset, limited, to_offset
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.spark.stream import StreamReader

A, B, C, OTHER = ("T", "a", 0), ("T", "a", 1), ("T", "b", 0), ("U", "b", 0)


def made(bounds: dict[Key, Bounds], down: str = "", **options: Any) -> StreamReader:
    """A reader of queues whose bounds are read from `bounds` at every query. down: brokers that do not answer."""
    return reader_of(KnownBounds(bounds, down), **options)


def latest(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


@pytest.mark.spec("STR-01")
def test_offset_holds_int64_and_optional_group() -> None:
    positions = {("T", "broker-a", 0): 2**63 - 1}
    table = {"T": {"broker-a": {"0": 2**63 - 1}}}
    assert to_offset(positions) == {"q": table, "v": 1}
    assert to_offset(positions, "G") == {"g": "G", "q": table, "v": 1}
    assert list(to_offset(positions, "G")) == ["g", "q", "v"]
    assert from_offset(to_offset(positions, "G")) == positions


@pytest.mark.spec("STR-03")
def test_missing_queue_keeps_offset_and_new_topic_starts_at_min() -> None:
    away = ("T", "c", 1)
    reader = made({A: Bounds(0, 50), OTHER: Bounds(30, 40)}, down="c")
    end = latest(reader, to_offset({A: 10, away: 7}))
    assert from_offset(end) == {A: 50, away: 7, OTHER: 40}
    pieces = reader.partitions(to_offset({A: 10, away: 7}), end)
    assert sorted(p.piece[:5] for p in pieces) == [(*A, 10, 50), (*OTHER, 30, 40)]
    assert from_offset(latest(made({A: Bounds(0, 60), away: Bounds(0, 9), OTHER: Bounds(30, 40)}), end)) == {
        A: 60, away: 9, OTHER: 40}  # fmt: skip


@pytest.mark.spec("STR-04", "STR-05")
def test_trigger_limit_is_shared_by_backlog_and_limits_combine() -> None:
    start, ends = {A: 0, B: 5, C: 0}, {A: 900, B: 105, C: 1}
    assert limited(start, ends, 100) == {A: 89, B: 14, C: 1}
    both = BatchAdmission(50, 1000, 0, 0)
    assert both.needs_sizes and not BatchAdmission(50, 0, 0, 0).needs_sizes
    for size, expected in ((100.0, 10), (1.0, 50)):
        assert both.reach({A: 0}, {A: 200}, 0, {A: size}) == {A: expected}
    reader = made({A: Bounds(0, 50), OTHER: Bounds(30, 400)}, maxOffsetsPerTrigger=20)
    end = latest(reader, to_offset({A: 50}))
    assert from_offset(end) == {A: 50, OTHER: 50}, "of a queue that appears later, too, from its first offset on"


@pytest.mark.spec("STR-07")
def test_available_now_reads_a_million_in_five_batches() -> None:
    reader = made({A: Bounds(0, 1_000_000)}, maxOffsetsPerTrigger=200_000)
    reader.prepareForTriggerAvailableNow()
    position, ends = to_offset({A: 0}), []
    while (reached := latest(reader, position)) is not position:
        position = reached
        ends.append(from_offset(position)[A])
    assert ends == [200_000, 400_000, 600_000, 800_000, 1_000_000]


@pytest.mark.spec("STR-07")
def test_available_now_skips_lost_targets_and_later_queues() -> None:
    known = {A: Bounds(0, 100), B: Bounds(0, 80), C: Bounds(0, 60)}
    reader = made(known, minOffsetsPerTrigger=10_000, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    known[A], known[B], known[OTHER] = Bounds(0, 500), Bounds(0, 70), Bounds(0, 9)  # B is shorter, and a topic is new
    del known[C]
    start = to_offset({A: 0, B: 0, C: 0})
    end = latest(reader, start)
    assert from_offset(end) == {A: 100, B: 70}, "a deleted queue leaves the offset, so that its loss is recorded once"
    assert latest(reader, end) is end
    strict = made(known)
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=r"topic T, broker b, queue 0, offsets 0\.\.0: the queue was deleted"):
        latest(strict, start)


@pytest.mark.spec("STR-08")
def test_stream_reader_is_picklable_and_commit_is_no_op() -> None:
    source = RocketMQDataSource({"nameServer": "h:1", "topic": "T", "group": "G", "columns": "body"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._options == reader._options and copy._columns == reader._columns and copy is not reader
    before = dict(vars(copy))
    copy.commit(to_offset({A: 5}, "G"))  # contacting the unreachable broker would fail
    copy.stop()
    assert vars(copy) == before


@pytest.mark.spec("STR-10")
def test_micro_batch_is_split_like_batch_read() -> None:
    reader = made({A: Bounds(0, 100), B: Bounds(0, 100)}, maxRecordsPerPartition=10)
    start, end = to_offset({A: 0, B: 100}), to_offset({A: 35, B: 100})
    pieces = [p.piece for p in reader.partitions(start, end)]
    assert [piece[3:5] for piece in pieces] == [(0, 8), (8, 17), (17, 26), (26, 35)]
    assert len(made({A: Bounds(0, 100)}, minPartitions=5).partitions(start, end)) == 5
    assert all(isinstance(p, RangePartition) for p in reader.partitions(start, end))


@pytest.mark.spec("STR-11")
def test_failed_offset_commit_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    made = OffsetCommitter(ConnectionOptions("127.0.0.1:1", pull_timeout_ms=200))
    made.reached("G", {A: 5})
    with caplog.at_level(logging.WARNING):
        made.flush(0.0, all_of_it=True)
    assert "offsets not committed group=G" in caplog.text


@pytest.mark.spec("STR-14")
@pytest.mark.parametrize("as_uri", [False, True])
def test_lag_table_has_row_per_queue(tmp_path: Path, as_uri: bool) -> None:
    lag = Lag("Q", "R", 3, 40, 7, {A: 60, B: 9}, {A: 100, B: 9})
    write_lag(lag, (tmp_path / "lag").as_uri() if as_uri else str(tmp_path / "lag"))
    rows = pq.read_table(tmp_path / "lag").to_pylist()
    assert all(row.pop("ts").tzinfo is not None for row in rows)
    same = {"query": "Q", "run": "R", "batch": 3, "topic": "T", "broker": "a", "rows": 40, "batch_ms": 7}
    assert rows == [
        same | {"queue": 0, "end_offset": 60, "max_offset": 100, "lag": 40},
        same | {"queue": 1, "end_offset": 9, "max_offset": 9, "lag": 0},
    ]


@pytest.mark.spec("STR-14")
def test_latest_offsets_are_reported_to_progress() -> None:
    reader = made({A: Bounds(0, 100), B: Bounds(3, 9)}, group="G", maxOffsetsPerTrigger=10)
    assert reader.reportLatestOffset() == to_offset({A: 100, B: 9}, "G")


@pytest.mark.spec("STR-17")
def test_stream_has_no_pushdown_and_advances_over_filtered_messages() -> None:
    source = RocketMQDataSource({"nameServer": "h:1", "topic": "T"})
    assert not hasattr(source.streamReader(source.schema()), "pushFilters")
    reader = made({A: Bounds(0, 100)}, subExpression="none")
    assert from_offset(latest(reader, to_offset({A: 0}, expression="none"))) == {A: 100}


HOSTILE: list[tuple[Any, str]] = [
    ([], "no version 1"),
    (None, "no version 1"),
    ("-", "no version 1"),
    ({"v": 2, "q": {}}, "no version 1"),
    ({"v": True, "q": {}}, "no version 1"),
    ({"v": 1}, "field 'q': 'q'"),
    ({"v": 1, "q": [1]}, "field 'q': 'list' object has no attribute 'items'"),
    ({"v": 1, "q": {"T": {"a": {"x": 1}}}}, "field 'q': invalid literal"),
    ({"v": 1, "q": {"T": {"a": {"0": float("inf")}}}}, "field 'q': inf is no offset, must be 0"),
    ({"v": 1, "q": {"T": {"a": {"0": 1.5}}}}, "1.5 is no offset"),
    ({"v": 1, "q": {"T": {"a": {"0": "7"}}}}, "'7' is no offset"),
    ({"v": 1, "q": {"T": {"a": {"0": -1}}}}, "-1 is no offset"),
    ({"v": 1, "q": {"T": {"a": {"0": 2**63}}}}, "9223372036854775808 is no offset"),
    ({"v": 1, "q": {"T": {"a": {"0": 1}}}, "p": {"T": {"a": {"0": [1]}}}}, "field 'p'"),
    ({"v": 1, "q": {"T": {"a": {"0": 1}}}, "p": {"T": {"a": {"0": [1, float("inf")]}}}}, "field 'p': inf"),
    ({"v": 1, "q": {f"T{n}": {} for n in range(100_000)} | {"T": 5}}, "field 'q': 'int' object"),
]


@pytest.mark.parametrize(("offset", "problem"), HOSTILE)
def test_damaged_checkpoint_is_one_short_error(offset: Any, problem: str) -> None:
    reader = made({A: Bounds(0, 5)})
    with pytest.raises(ConfigError, match=r"the checkpoint holds .*is no offset of this source") as error:
        latest(reader, offset)
    assert problem in str(error.value) and "another checkpointLocation" in str(error.value)
    assert len(str(error.value)) < 500
    with pytest.raises(ConfigError, match="is no offset of this source"):
        reader.partitions(to_offset({A: 0}) | {"n": {"T": {"a": {"0": "1"}}}}, to_offset({A: 2}) | {"n": []})


def test_record_of_a_queue_without_position_is_ignored() -> None:
    start = to_offset({A: 1}) | {"p": {"T": {"a": {"1": [5, 5]}}}}
    assert from_offset(latest(made({A: Bounds(0, 5), B: Bounds(0, 5)}), start)) == {A: 5, B: 5}
