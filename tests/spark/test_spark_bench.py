"""The benchmark against Kafka: computation and output of its results. No measured time is asserted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # the folder of the command's modules

from spark_report import (  # noqa: E402 - needs the path set above
    KAFKA,
    OURS,
    Results,
    Row,
    Sample,
    as_dict,
    figure_lines,
    markdown,
    spread,
    table,
)


def sample(seconds: float, rows: int = 1000, spark_cpu_s: float = 1.0) -> Sample:
    return Sample(rows, seconds, spark_cpu_s, 0.5, 0.25)


def results() -> Results:
    """Results where ours takes 1, 2 and 4 s for Kafka's 2 s; a second case is compared with the first one's Kafka runs."""
    whole = Row("SPP-02", "batch", 1.0)
    whole.samples = {OURS: [sample(4.0), sample(1.0), sample(2.0)], KAFKA: [sample(2.0)] * 3}
    files = Row("SPP-09", "files", 2.0, against="batch", samples={OURS: [sample(0.5)] * 3})
    lost = Row("SPP-07", "sink", 0.7, samples={OURS: [sample(1.0)]}, failures={KAFKA: "no broker"})
    made = Results([whole, files, lost], ["machine: one"])
    made.figures.append(("SPP-11", "pulls", 299.0, "MB/s", 300.0))
    return made


@pytest.mark.spec("SPP-01", "SPP-02", "SPP-09")
def test_bench_ratio_of_medians_meets_or_misses_bar() -> None:
    made = results()
    whole, files, lost = made.rows
    assert whole.median(OURS, lambda s: s.rate) == 500.0 and whole.rates(OURS) == [250.0, 1000.0, 500.0]
    assert made.ratio(whole) == 1.0 and made.verdict(whole) == "1.0 met"
    assert made.ratio(files) == 4.0 and made.verdict(files) == "2.0 met"
    assert made.ratio(lost) is None and made.verdict(lost) == "0.7 -"
    whole.bar = 1.01
    assert made.verdict(whole) == "1.0 missed" and made.verdict(Row("SPP-06", "shown")) == "-"
    assert whole.median(OURS, lambda s: s.spark_cpu_s_per_million) == 1000.0
    assert whole.median(KAFKA, lambda s: s.broker_cpu_s_per_million) == 500.0
    assert Sample(0, 0.0, 0.0, 0.0, 0.0).rate == Sample(0, 0.0, 1.0, 1.0, 0.0).broker_cpu_s_per_million == 0.0


@pytest.mark.spec("SPP-01", "SPP-11")
def test_bench_table_and_page_show_all_measurements() -> None:
    made = results()
    console = Console(width=200, record=True, quiet=True)
    console.print(table(made))
    text = markdown(made, ["a note"], 2)
    for part in ("500 (250-1.0k)", "1.0 met", "4.00", "2.0 met", "failed", "1000.00 / 1000.00"):
        assert part in text, part
    assert "pulls: 299 MB/s, bar 300 MB/s: missed" in text and figure_lines(made)[0] in text
    assert "- sink, kafka: no broker" in text and "- a note" in text and "- machine: one" in text
    assert "at most 25% of the processors" in text  # 0.25 s of others in 0.5 s on two
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(made.rows) and len({line.count("|") for line in rows}) == 1
    assert spread([]) == "-" and spread([], "why") == "failed" and spread([123_456.0]) == "123k"
    assert [row["name"] for row in as_dict(made)["rows"]] == ["batch", "files", "sink"]  # type: ignore[index, attr-defined]


@pytest.mark.spec("SPP-01")
def test_bench_unequal_row_counts_are_reported() -> None:
    made = results()
    made.rows[0].results = {OURS: [1000], KAFKA: [1000]}
    assert made.unequal() == []
    made.rows[0].results[KAFKA] = [999]
    assert made.unequal() == ["batch: saturnmq [1000], kafka [999]"]
