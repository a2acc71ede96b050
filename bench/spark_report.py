"""Results of make bench-spark: cases, samples, ratios, a terminal table, Markdown for the docs. Does not import Spark."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from rich.table import Table

OURS = "saturnmq"
KAFKA = "kafka"
SIDES = (OURS, KAFKA)
COLUMNS = ("case", "SaturnMQ, rows/s", "Kafka, rows/s", "ratio", "bar", "Spark CPU s/M", "broker s/M")


@dataclass(frozen=True)
class Sample:
    """One run of one side. rows: the number of rows it had to read or write."""

    rows: int
    seconds: float
    spark_cpu_s: float  # driver, JVM, planners and workers
    broker_cpu_s: float
    others_cpu_s: float  # all other processes of the machine

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def spark_cpu_s_per_million(self) -> float:
        return self.spark_cpu_s / self.rows * 1e6 if self.rows else 0.0

    @property
    def broker_cpu_s_per_million(self) -> float:
        return self.broker_cpu_s / self.rows * 1e6 if self.rows else 0.0


@dataclass
class Row:
    """One case.

    bar: the required ratio ours / Kafka, None for none. against: name of the case whose Kafka runs are the reference.
    """

    spec: str
    name: str
    bar: float | None = None
    against: str = ""
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    results: dict[str, list[int]] = field(default_factory=dict)  # rows of the result, by side
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, side: str, value: Callable[[Sample], float]) -> float | None:
        """Return the median over the rounds; None when there are none."""
        found = [value(sample) for sample in self.samples.get(side, [])]
        return statistics.median(found) if found else None

    def rates(self, side: str) -> list[float]:
        """Return the rows per second of each round."""
        return [sample.rate for sample in self.samples.get(side, [])]


@dataclass
class Results:
    """All measurements. facts: needed to interpret the figures; figures: single values by name, with their bar."""

    rows: list[Row] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    figures: list[tuple[str, str, float, str, float | None]] = field(default_factory=list)

    def kafka_row(self, row: Row) -> Row:
        """Return the row with the Kafka runs that this one is compared with."""
        return next((other for other in self.rows if row.against and other.name == row.against), row)

    def ratio(self, row: Row) -> float | None:
        """Return the median rows/s of ours divided by Kafka's; None where one is missing."""
        ours = row.median(OURS, lambda s: s.rate)
        theirs = self.kafka_row(row).median(KAFKA, lambda s: s.rate)
        return ours / theirs if ours and theirs else None

    def verdict(self, row: Row) -> str:
        """Return the bar and whether it is met: `1.20 met`, `1.20 missed`, a dash without one."""
        if row.bar is None:
            return "-"
        found = self.ratio(row)
        return f"{row.bar:.1f} {'-' if found is None else 'met' if found >= row.bar else 'missed'}"

    def unequal(self) -> list[str]:
        """Return a line for each case whose sides returned different numbers of rows."""
        said = []
        for row in self.rows:
            counts = {side: set(found) for side, found in row.results.items()}
            if len(set().union(*counts.values())) > 1:
                said.append(f"{row.name}: " + ", ".join(f"{side} {sorted(found)}" for side, found in counts.items()))
        return said

    def others(self, processors: int) -> float:
        """Return the largest CPU share used by neither Spark nor the broker, over all samples."""
        samples = [s for row in self.rows for found in row.samples.values() for s in found]
        return max((s.others_cpu_s / (s.seconds * processors) for s in samples if s.seconds), default=0.0)


def thousands(value: float) -> str:
    """Format a rate, in thousands from 1000 on."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.1f}k" if value < 100_000 else f"{value / 1000:.0f}k"


def spread(rates: Sequence[float], failure: str = "") -> str:
    """Return the median, with the smallest and largest round in brackets."""
    if not rates:
        return "failed" if failure else "-"
    text = thousands(statistics.median(rates))
    return text + (f" ({thousands(min(rates))}-{thousands(max(rates))})" if len(rates) > 1 else "")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def cells(results: Results, row: Row) -> list[str]:
    """Return one line of the table."""
    theirs = results.kafka_row(row)
    pairs = [(row, OURS), (theirs, KAFKA)]
    spark = [found.median(side, lambda s: s.spark_cpu_s_per_million) for found, side in pairs]
    broker = [found.median(side, lambda s: s.broker_cpu_s_per_million) for found, side in pairs]
    return [
        row.name,
        spread(row.rates(OURS), row.failures.get(OURS, "")),
        spread(theirs.rates(KAFKA), theirs.failures.get(KAFKA, "")),
        _number(results.ratio(row), ".2f"),
        results.verdict(row),
        " / ".join(_number(value, ".2f") for value in spark),
        " / ".join(_number(value, ".2f") for value in broker),
    ]


def table(results: Results) -> Table:
    """Return the table for a terminal."""
    out = Table(
        title="the same rows through the same Spark: median (smallest-largest round); pairs are SaturnMQ / Kafka"
    )
    for number, column in enumerate(COLUMNS):
        out.add_column(column, justify="left" if number == 0 else "right", no_wrap=number > 2)
    for row in results.rows:
        out.add_row(*cells(results, row))
    return out


def figure_lines(results: Results) -> list[str]:
    """Return a line for each single figure."""
    lines = []
    for _, name, value, unit, bar in results.figures:
        verdict = "" if bar is None else f", bar {bar:g} {unit}: {'met' if value >= bar else 'missed'}"
        lines.append(f"{name}: {value:.0f} {unit}{verdict}")
    return lines


def markdown(results: Results, notes: Iterable[str], processors: int) -> str:
    """Return docs/benchmarks-spark.md."""
    lines = [
        "# Benchmarks: Spark, against Kafka",
        "",
        "Written by `make bench-spark ARGS=--write`. Figures change with the machine; read the **ratio** (SaturnMQ : Kafka).",
        "",
        *(f"- {fact}" for fact in results.facts),
        f"- other work on the machine: at most {results.others(processors):.0%} of the processors in any one measurement",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join("---" if number == 0 else "---:" for number in range(len(COLUMNS))) + "|",
        *("| " + " | ".join(cells(results, row)) + " |" for row in results.rows),
        "",
        *(f"- {line}" for line in figure_lines(results)),
    ]
    failures = [f"{row.name}, {side}: {why}" for row in results.rows for side, why in row.failures.items()]
    lines += ["", "Failed:", "", *(f"- {line}" for line in failures)] if failures else []
    return "\n".join([*lines, "", "## How to read it", "", *(f"- {note}" for note in notes), ""])


def as_dict(results: Results) -> dict[str, object]:
    """Return every sample, for programs."""
    return asdict(results)
