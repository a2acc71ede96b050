"""Statistics windows: snapshots, sums, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.statistics import (
    DAY,
    HOUR,
    LAST_DAY,
    LAST_HOUR,
    LAST_MINUTE,
    MINUTE,
    SAMPLE_SECONDS,
    WINDOWS,
    StatsItem,
    StatsSet,
    StatsSets,
    WindowSum,
)


class Ticks:
    """Sets of one name that are sampled every ten seconds of a clock."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.sets = StatsSets(("N",), lambda: self.now_ms)
        self.sample()

    def sample(self) -> None:
        for _ in self.sets.sampling():
            pass

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += SAMPLE_SECONDS * 1000
            self.sample()

    @property
    def item(self) -> StatsItem:
        return self.sets["N"].item("k")


@pytest.mark.spec("MON-03", "MON-04")
def test_windows_have_apaches_periods() -> None:
    assert SAMPLE_SECONDS == 10
    assert WINDOWS == (MINUTE, HOUR, DAY) == ((10_000, 7, 1), (600_000, 7, 60), (3_600_000, 25, 360))
    ticks = Ticks()  # sampled once when made: delay 0
    ticks.item.value += 1
    for number in range(1, 361):
        ticks.tick()
        copies = ticks.item._copies
        assert len(copies[0]) // 3 == min(number + 1, 7)
        assert len(copies[1]) // 3 == (number // 60 + 1 if number >= 60 else 0)
        assert len(copies[2]) // 3 == (2 if number == 360 else 0)
    ticks.tick(360 * 30)
    assert [len(c) // 3 for c in ticks.item._copies] == [7, 7, 25]
    for window, copies in zip(WINDOWS, ticks.item._copies, strict=True):
        assert copies[-3] - copies[0] == window.period_ms * (window.copies - 1)


@pytest.mark.spec("MON-02", "MON-05", "UPG-12")
def test_first_snapshot_follows_one_of_zero() -> None:
    ticks = Ticks()
    ticks.item.value += 60
    ticks.item.times += 6
    ticks.tick()
    assert ticks.item._copies[0] == (ticks.now_ms - 10_000, 0, 0, ticks.now_ms, 6, 60)
    assert ticks.item.over(LAST_MINUTE) == WindowSum(60, 6, 6.0, 10.0)
    item = StatsItem()
    assert len(WINDOWS) == 3
    for number, window in enumerate(WINDOWS):
        item.sample(ticks.now_ms, number)
        assert item._copies[number][:3] == (ticks.now_ms - window.period_ms, 0, 0)


@pytest.mark.spec("MON-06", "MON-07")
def test_six_batches_of_ten_in_a_minute() -> None:
    ticks = Ticks()
    assert (
        ticks.item.over(LAST_MINUTE)
        == ticks.item.over(LAST_HOUR)
        == ticks.item.over(LAST_DAY)
        == WindowSum(0, 0, 0.0, 0.0)
    )
    for _ in range(6):
        ticks.item.value += 10
        ticks.item.times += 1
        ticks.tick()
    assert ticks.item.over(LAST_MINUTE) == WindowSum(60, 6, 1.0, 10.0)
    assert ticks.item.over(LAST_HOUR) == WindowSum(0, 0, 0.0, 0.0)
    ticks.tick(6)
    assert ticks.item.over(LAST_MINUTE) == WindowSum(0, 0, 0.0, 0.0), "a minute later the sum is over"
    ticks.tick(48)
    assert ticks.item.over(LAST_HOUR) == WindowSum(60, 6, 0.1, 10.0)
    only_value = StatsItem()
    only_value.value = 5
    only_value.sample(20_000, 0)
    assert only_value.over(LAST_MINUTE) == WindowSum(5, 0, 0.5, 0.0)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_window_sum_is_what_was_added_in_its_periods(added: list[int]) -> None:
    ticks = Ticks()
    for value in added:
        ticks.item.value += value
        ticks.item.times += 1
        ticks.tick()
    assert ticks.item.over(LAST_MINUTE).sum == sum(added[-6:])
    assert ticks.item.over(LAST_MINUTE).times == len(added[-6:])


@pytest.mark.spec("LIM-13")
def test_number_of_items_is_limited_and_idle_ones_make_room() -> None:
    ticks = Ticks()
    full = ticks.sets["N"]
    full.items_max = 3
    for key in "abc":
        full.item(key).value += 1
    full.item("d").value += 7
    assert set(full.items) == set("abc") and ticks.sets.find("N", "d") is None
    for _ in range(25 * 360):
        full.item("a").value += 1
        full.item("a").times += 1
        ticks.tick()
    assert set(full.items) == {"a"}
    full.item("d").value += 1
    found = ticks.sets.find("N", "d")
    assert found is not None and found.value == 1
    assert ticks.sets.find("unknown", "d") is None


def test_sampling_many_items_is_done_in_steps() -> None:
    ticks = Ticks()
    for number in range(1000):
        ticks.sets["N"].item(str(number))
    assert sum(1 for _ in ticks.sets.sampling()) == 4


def test_items_are_removed_by_key() -> None:
    one = StatsSet()
    for key in ("a@g", "b@g", "a@h"):
        one.item(key)
    one.remove(lambda key: key.endswith("@g"))
    assert set(one.items) == {"a@h"}
