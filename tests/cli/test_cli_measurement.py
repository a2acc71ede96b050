"""Percentiles, rates and the plot of `saturnmq bench`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.cli.everyday.measurement import BARS_MAX, LatencyHistogram, Measurement


@given(st.lists(st.integers(0, 10**10), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_percentile_is_exact_to_two_percent(values: list[int], share: float) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    rank = next(number for number in range(1, len(values) + 1) if number >= share * len(values))
    exact = sorted(values)[rank - 1]
    assert exact <= histogram.percentile(share) <= max(exact * 1.02, exact + 1)
    assert histogram.percentile(1.0) <= histogram.max_us == max(values)


def test_percentile_of_nothing_is_zero() -> None:
    assert LatencyHistogram().percentile(0.5) == 0


def measured(seconds: int) -> Measurement:
    found = Measurement()
    found.begin(100.0)
    for number in range(seconds):
        found.add(100.5 + number, 0.002, 10 * (number + 1), 1000)
    found.add(100.0 + seconds, 0.004, 0, 0)
    return found


@pytest.mark.spec("CLI-02")
def test_row_has_rates_and_percentiles_as_numbers() -> None:
    row = measured(4).row()
    assert row == {
        "messages": 100, "bytes": 4000, "failed": 0, "seconds": 4.0, "messages_per_s": 25, "mib_per_s": 0.0,
        "p50_ms": 2.015, "p95_ms": 4.0, "p99_ms": 4.0, "p999_ms": 4.0, "max_ms": 4.0,
    }  # fmt: skip
    assert Measurement().row()["messages_per_s"] == 0


def test_plot_has_a_bar_per_second_relative_to_the_fastest() -> None:
    lines = list(measured(4).lines(unicode=False))
    assert lines[0] == "100 messages in 4.00 s"
    assert [line.count("#") for line in lines[3:]] == [10, 20, 30, 40]
    assert lines[-1].endswith("40/s") and lines[-1].startswith("    3 s")
    assert "█" in list(measured(4).lines(unicode=True))[3]


def test_plot_of_a_long_run_has_few_bars() -> None:
    assert len(list(measured(1000).lines(unicode=False))) == 3 + BARS_MAX
    assert len(list(measured(1).lines(unicode=False))) == 3
