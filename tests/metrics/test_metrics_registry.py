"""Histograms, the text format, and the registry that writes it in pieces."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metricstext import families, values
from saturnmq.metrics import GAUGE, Histogram, Registry
from saturnmq.metrics.registry import OMITTED, STEP


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (0.1, 0), (0.1000001, 1), (1.0, 1), (1.1, 2), (99.0, 2)])
def test_histogram_counts_in_the_bucket_whose_end_includes_it(value: float, bucket: int) -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(value)
    assert histogram.counts == [int(number == bucket) for number in range(3)]
    assert (histogram.count, histogram.sum) == (1, value)


def test_histogram_refuses_edges_that_do_not_ascend() -> None:
    with pytest.raises(ValueError, match="must ascend"):
        Histogram((1.0, 1.0))


def test_histogram_text_is_cumulative_and_ends_with_inf() -> None:
    registry, histogram = Registry({"broker": "a"}), Histogram((0.1, 1.0))
    registry.histogram("x_seconds", "Times.", histogram)
    for value in (0.05, 0.5, 0.5, 5.0):
        histogram.observe(value)
    found = families(registry.text())["x_seconds"]
    assert found.type == "histogram"
    samples = [(sample.name, sample.labels.get("le"), sample.value) for sample in found.samples]
    assert samples == [
        ("x_seconds_bucket", "0.1", 1.0), ("x_seconds_bucket", "1.0", 3.0), ("x_seconds_bucket", "+Inf", 4.0),
        ("x_seconds_sum", None, 6.05), ("x_seconds_count", None, 4.0),
    ]  # fmt: skip


def test_histograms_by_label_are_one_family() -> None:
    registry = Registry()
    registry.histogram("x_seconds", "Times.", lambda: [("310", Histogram()), ("11", Histogram())], "code")
    assert values(registry.text(), "x_seconds_count") == {(("code", "310"),): 0.0, (("code", "11"),): 0.0}


@given(st.text(), st.text())
def test_any_label_value_is_read_back(constant: str, value: str) -> None:
    def readable(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    registry = Registry({"cluster": constant})
    registry.family(GAUGE, "x", "Help.", ("topic",), lambda: [((value,), 1)])
    text = registry.text()
    assert text.count("\n") == 3
    lines = [line for line in text.split("\n") if line.startswith("x{")]
    assert values("\n".join(lines) + "\n", "x") == {(("cluster", readable(constant)), ("topic", readable(value))): 1.0}


@pytest.mark.parametrize("value", [0, -3, 2**63, 0.1, math.inf, -math.inf])
def test_numbers_are_read_back_exactly(value: float) -> None:
    registry = Registry()
    registry.gauge("x", "Help with \\ and\nlines.", lambda: value)
    assert values(registry.text(), "x") == {(): value}


def test_not_a_number_is_written_as_prometheus_reads_it() -> None:
    registry = Registry()
    registry.gauge("x", "Help.", lambda: math.nan)
    assert "\nx NaN\n" in registry.text()


@pytest.mark.parametrize("name", ["", "1x", "a b", "a-b", 'a"'])
def test_names_that_prometheus_does_not_accept_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        Registry().gauge(name, "Help.", lambda: 0)


def test_counters_end_with_total_and_names_are_used_once() -> None:
    registry = Registry()
    with pytest.raises(ValueError, match="_total"):
        registry.counter("sends", "Help.", lambda: 0)
    registry.counter("sends_total", "Help.", lambda: 0)
    with pytest.raises(ValueError, match="registered already"):
        registry.gauge("sends_total", "Help.", lambda: 0)


def test_a_large_family_leaves_in_pieces_of_few_rows() -> None:
    made = 0

    def rows():  # type: ignore[no-untyped-def]
        nonlocal made
        for number in range(10_000):
            made += 1
            yield ((f"topic-{number}",), number) if number % 2 else None  # every other step makes no row

    registry = Registry()
    registry.family(GAUGE, "x", "Help.", ("topic",), rows)
    before, most = 0, 0
    for piece in registry.pieces():
        most, before = max(most, made - before), made
        assert piece.count(b"\n") <= STEP + 2 + 3
    assert made == 10_000
    assert most <= STEP


def test_rows_beyond_the_limit_are_counted_and_left_out() -> None:
    registry = Registry(rows_max=12)
    registry.family(GAUGE, "x", "Help.", ("n",), lambda: (((str(n),), n) for n in range(100)))
    registry.family(GAUGE, "y", "Help.", ("n",), lambda: (((str(n),), n) for n in range(5)))
    text = registry.text()
    assert len(values(text, "x")) + len(values(text, "y")) + values(text, OMITTED)[()] == 105
    assert len(values(text, "x")) <= 12
    assert {"x", "y"} <= families(text).keys()
