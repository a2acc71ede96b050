"""What the long runs with faults of a session measured: a table for each kind of servers and a line for each goal.

A run is recorded with `rows.one`, whether it passes or fails. pytest prints the tables and lines when the session ends; with
CHAOS_REPORT=file they are also appended to that file, as Markdown for docs/benchmarks-ledger.md.

Requirements: G01, G04, G06, G07, G08, G09.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

RTO_P95_MS, RTO_MAX_MS = 3000, 6000  # CHA-07, fast timers
RESOLVED_SECONDS_MAX = 60.0  # G09
ORDER: Final = ("key-order", "nonmonotonic-send", "int-nonmonotonic-send", "int-nonmonotonic-poll")
MEASURED: Final = (
    "sends", "acknowledged", "unknown", "failed", "lost", "again", "consumed_again", "caught_up_s", "resolved_s", "rto_ms", "found",
)  # fmt: skip
COLUMNS: Final = (
    "fault", "sends", "acked", "unknown", "failed", "lost", "stored again by a retry", "stored twice",
    "RTO median / p95 / max, s", "read again", "equal after, s", "load", "",
)  # fmt: skip


@dataclass
class Row:
    """One run. kind: of servers; found: number of problems by type; failure: why the run failed, or ""."""

    kind: str
    fault: str
    goals: tuple[str, ...]
    sends: int = 0
    acknowledged: int = 0
    unknown: int = 0
    failed: int = 0
    lost: int = 0
    again: int = 0
    consumed_again: int = 0
    caught_up_s: float = 0.0
    resolved_s: float = 0.0
    rto_ms: list[float] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    load: float = 0.0
    failure: str = ""

    @classmethod
    def of(cls, kind: str, fault: str, goals: tuple[str, ...], found: Mapping[str, Any]) -> Row:
        return cls(kind, fault, goals, **{name: found[name] for name in MEASURED}, load=os.getloadavg()[0])

    def line(self) -> str:
        """The run in one line."""
        wrong = ", ".join(f"{kind} {count}" for kind, count in self.found.items()) or "nothing"
        return (
            f"{self.sends} sends, {self.acknowledged} acknowledged, {self.unknown} unknown, {self.failed} failed, "
            f"{self.lost} lost, {self.again} stored again, {self.consumed_again} read again, found wrong: {wrong}; "
            f"RTO {seconds(self.rto_ms)} s, equal after {self.caught_up_s:.1f} s, load {self.load:.1f}"
        )

    def cells(self) -> list[str]:
        counts = (
            self.sends,
            self.acknowledged,
            self.unknown,
            self.failed,
            self.lost,
            self.again,
            self.found.get("duplicate", 0),
        )
        ended = f"FAILED: {self.failure}" if self.failure else "ok"
        times = seconds(self.rto_ms), str(self.consumed_again), f"{self.caught_up_s:.1f}", f"{self.load:.1f}"
        return [self.fault, *map(str, counts), *times, ended]


@dataclass(frozen=True)
class Goal:
    """A line: what was measured, its bound, whether it holds."""

    name: str
    figure: str
    bound: str
    holds: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.figure}; bound: {self.bound}: {'ok' if self.holds else 'FAILED'}"


class Rows:
    """The runs of this session. last: measurements of the run that is being recorded, which may still fail."""

    def __init__(self) -> None:
        self.all: list[Row] = []
        self.last: Mapping[str, Any] | None = None

    @contextmanager
    def one(self, kind: str, fault: str, goals: tuple[str, ...] = ()) -> Iterator[None]:
        """Record the run inside, with what it put into `last`."""
        self.last, failure = None, ""
        try:
            yield
        except BaseException as error:
            failure = f"{type(error).__name__} {error}".replace("\n", " ").replace("|", "/")[:160]
            raise
        finally:
            row = Row.of(kind, fault, goals, self.last) if self.last is not None else Row(kind, fault, goals)
            row.failure = failure
            self.all.append(row)

    def fail(self, why: str) -> None:
        """A promise of the last run is broken that its history does not show."""
        self.all[-1].failure = self.all[-1].failure or why


rows = Rows()


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def seconds(times_ms: Sequence[float]) -> str:
    """Median, 95th percentile and largest of times that were felt, in seconds."""
    felt = [ms for ms in times_ms if ms > 0]
    return " / ".join(f"{percentile(felt, share) / 1000:.2f}" for share in (0.5, 0.95, 1.0)) if felt else "-"


def total(among: Sequence[Row], *kinds: str) -> int:
    return sum(row.found.get(kind, 0) for row in among for kind in kinds)


def goals_of(all_rows: Sequence[Row]) -> list[Goal]:
    """The lines of the goals to which runs of this session count."""

    def of(goal: str) -> list[Row]:
        return [row for row in all_rows if goal in row.goals]

    def counted(goal: str) -> str:
        among = of(goal)
        failed = [f"{row.kind} {row.fault}" for row in among if row.failure]
        again = f", failed: {', '.join(failed)}" if failed else ""
        acked, lost = sum(row.acknowledged for row in among), sum(row.lost for row in among)
        return f"{len(among)} runs, {acked:,} acknowledged, {lost} lost{again}"

    def passed(goal: str) -> bool:
        return not any(row.failure or row.lost for row in of(goal))

    lines = []
    if among := of("G01"):
        felt = [ms for row in among for ms in row.rto_ms if ms > 0]
        p95, largest = percentile(felt, 0.95), max(felt, default=0.0)
        wrong = {
            "unseen": total(among, "unseen"),
            "inconsistent offsets": total(among, "inconsistent-offsets"),
            "order violations": total(among, *ORDER),
            "duplicates of one attempt": total(among, "duplicate"),
        }
        said = ", ".join(f"{count} {kind}" for kind, count in wrong.items())
        figure = f"{counted('G01')}, {said}, RTO p95 {p95 / 1000:.2f} s, max {largest / 1000:.2f} s"
        holds = passed("G01") and not any(wrong.values()) and p95 <= RTO_P95_MS and largest <= RTO_MAX_MS
        lines.append(Goal("G01 faults on groups", figure, "0 each, p95 <= 3 s, max <= 6 s", holds))
    for goal, what, bound in (
        ("G04", "EIO at the n-th fsync", "no ack after, out of the group in 1 s, 0 lost"),
        ("G06", "bit flips and truncation", "0 lost, found, repaired from peers, no lead over a hole"),
    ):
        if of(goal):
            lines.append(Goal(f"{goal} {what}", counted(goal), bound, passed(goal)))
    if among := of("G07"):
        types = sum(1 for row in among if row.found)
        figure = f"{len(among)} histories, {sum(row.sends for row in among):,} sends, {types} with problems"
        lines.append(Goal("G07 history checks", figure, "none", not types and not any(row.failure for row in among)))
    if of("G08"):
        lines.append(compared(of("G08")))
    if among := of("G09"):
        resolved = max(row.resolved_s for row in among)
        figure = (
            f"{counted('G09')}, {total(among, *ORDER)} order violations, {total(among, 'G1a', 'precommitted-read')} rolled back or "
            f"undecided and delivered, half messages resolved within {resolved:.1f} s"
        )
        holds = (
            passed("G09") and not total(among, *ORDER, "G1a", "precommitted-read") and resolved <= RESOLVED_SECONDS_MAX
        )
        lines.append(Goal("G09 transactions", figure, "0 each, <= 60 s after the heal", holds))
    return lines


def compared(among: Sequence[Row]) -> Goal:
    """Ours beside Apache's, fault by fault."""
    ours = {row.fault: row for row in among if row.kind == "ours"}
    theirs = {row.fault: row for row in among if row.kind != "ours"}
    worse = []
    for fault in sorted(set(ours) & set(theirs)):
        mine, other = ours[fault], theirs[fault]
        pairs = {
            "lost": (mine.lost, other.lost),
            "duplicates": (mine.found.get("duplicate", 0), other.found.get("duplicate", 0)),
            "RTO": (max(mine.rto_ms, default=0.0), max(other.rto_ms, default=0.0)),
        }
        worse += [f"{fault}: {what} {a:g} > {b:g}" for what, (a, b) in pairs.items() if a > b]
    both = len(set(ours) & set(theirs))
    figure = f"{both} faults on both, ours worse in {len(worse)}" + (f" ({'; '.join(worse)})" if worse else "")
    return Goal("G08 beside Apache 4.9.7", figure, "better or equal in each", both > 0 and not worse)


def tables(all_rows: Sequence[Row]) -> list[str]:
    """Markdown: one table for each kind of servers."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in all_rows):
        lines += [
            "",
            f"### {kind}",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "|---" + "|---:" * (len(COLUMNS) - 2) + "|---|",
        ]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in all_rows if row.kind == kind]
    return lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not rows.all:
        return
    lines = [*tables(rows.all), "", *(str(goal) for goal in goals_of(rows.all))]
    terminalreporter.section("runs with faults")
    for line in lines:
        terminalreporter.write_line(line)
    if path := os.environ.get("CHAOS_REPORT"):
        with Path(path).open("a") as file:
            file.write("\n".join([time.strftime("\n%Y-%m-%d %H:%M"), *lines]) + "\n")
