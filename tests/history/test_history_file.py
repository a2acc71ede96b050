"""The history file: samples in and out, rates, thinning with age."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from saturnmq.history.file import LEVELS, History, Sample, Series
from saturnmq.protocol.errors import ConfigError, StoreError

DAY = 86_400
NOW = 2_000_000_000 - 2_000_000_000 % 3600
ORDERS = Series("topic", "C", topic="orders")
BILLING = Series("group", "C", topic="orders", group="billing")


@pytest.mark.spec("EXP-05")
def test_samples_survive_reopening_with_rates(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with History(path) as history:
        assert history.record(NOW + 1, [Sample(ORDERS, 100, 7), Sample(BILLING, 40, 60)]) == 2
        history.record(NOW + 61, [Sample(ORDERS, 160, 7)])
        history.record(NOW + 119, [Sample(ORDERS, 220, 8)])  # the same minute again
        history.record(NOW + 121, [Sample(ORDERS, 0, 0)])  # the topic was deleted and created
    with History(path) as history:
        points = history.read(ORDERS, NOW)
        assert [(point.at - NOW, point.total, point.level, point.rate) for point in points] == [
            (0, 100, 7.0, None),
            (60, 220, 8.0, 2.0),
            (120, 0, 0.0, None),
        ]
        assert history.series("group") == [BILLING] and history.series("broker") == []
        assert [point.at for point in history.read(ORDERS, NOW + 60, NOW + 120)] == [NOW + 60]


def test_thinning_keeps_counts_and_peaks(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        start = NOW - 3 * DAY
        for minute in range(181):
            level = 99 if minute == 7 else 1
            history.record(start + minute * 60, [Sample(BILLING, minute, level)])
        history.record(NOW, [Sample(BILLING, 181, 1)])
        history.thin(NOW)
        points = history.read(BILLING, 0)
        assert [(point.at - start) // 60 for point in points[:-1]] == list(range(0, 181, 10))
        assert [point.peak for point in points[:3]] == [1, 99, 1]
        assert points[1].rate == pytest.approx(1 / 60)
        history.thin(NOW + 40 * DAY)
        points = history.read(BILLING, 0)
        assert [(point.at - start) // 60 for point in points] == [0, 60, 120, 180, 3 * 24 * 60]
        assert points[1].peak == 99
        assert history.thin(NOW + 40 * DAY) == 0


def test_what_is_older_than_the_retention_leaves_with_its_series(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.record(NOW, [Sample(ORDERS, 1, 1)])
        history.record(NOW + 10 * DAY, [Sample(BILLING, 1, 1)])
        history.thin(NOW + 10 * DAY, keep_seconds=5 * DAY)
        assert history.read(ORDERS, 0) == [] and history.series("topic") == []
        assert history.series("group") == [BILLING]
        history.record(NOW + 10 * DAY, [Sample(ORDERS, 5, 1)])
        assert [point.total for point in history.read(ORDERS, 0)] == [5]


def test_too_long_names_and_too_many_series_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.history.file.SERIES_MAX", 2)
    with History(tmp_path / "h.db") as history:
        many = [Sample(Series("topic", "C", topic=name), 1, 1) for name in ("a", "x" * 256, "b", "c")]
        assert history.record(NOW, many) == 2
        assert [one.topic for one in history.series("topic")] == ["a", "b"]
        assert [one.topic for one in history.series("topic", limit=1, offset=1)] == ["b"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(b"not a database, but long enough to have a header of its own" * 20)
    with pytest.raises(ConfigError, match="is not a history file"):
        History(path)
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(ConfigError, match="version 9"):
        History(newer)


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.history.file._BUSY_SECONDS", 0.0)
    with History(tmp_path / "h.db") as history:
        history.record(NOW, [Sample(ORDERS, 1, 1)])
        other = sqlite3.connect(history.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="cannot be written: database is locked"):
            history.record(NOW + 60, [Sample(ORDERS, 2, 1)])
        other.execute("ROLLBACK")
        other.close()

        def broken() -> Iterator[Sample]:
            yield Sample(BILLING, 1, 1)
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError):
            history.record(NOW + 60, broken())
        assert [point.total for point in history.read(ORDERS, 0)] == [1]
        assert history.record(NOW + 60, [Sample(ORDERS, 3, 1), Sample(BILLING, 3, 1)]) == 2
        assert [point.total for point in history.read(BILLING, 0)] == [3]


def test_impossible_numbers_of_a_broker_are_bounded(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.record(NOW, [Sample(ORDERS, 2**64, float("nan")), Sample(BILLING, -(2**70), float("inf"))])
        assert [point.total for point in history.read(ORDERS, 0)] == [2**63 - 1]
        assert [point.level for point in history.read(BILLING, 0)] == [0.0]


def test_levels_of_thinning_are_multiples() -> None:
    steps = [60, *(step for _, step in LEVELS)]
    assert all(coarse % fine == 0 for fine, coarse in pairwise(steps))


def test_values_that_no_file_can_keep_cost_no_other_sample(tmp_path: Path) -> None:
    half, huge = Series("topic", "c", topic="a\ud800"), Series("topic", "c", topic="huge")
    with History(tmp_path / "history.db") as history:
        assert history.record(600, [Sample(half, 1, 1.0), Sample(huge, 2**80, 2**2000)]) == 1
        assert [point.total for point in history.read(huge, 0)] == [2**63 - 1]
