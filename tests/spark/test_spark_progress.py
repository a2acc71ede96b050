"""Progress of long operations: lines on a pipe or in a file, a bar on a terminal, nothing when quiet."""

from __future__ import annotations

import io

import pytest

from saturnmq.spark import progress
from saturnmq.spark.progress import ProgressReport


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.seconds)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_written_every_5_s_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    with ProgressReport("reading", 12_000, stream=stream, unit="rows") as report:
        report.advance(1000)
        clock.seconds += 4.9
        report.advance(1000)
        assert stream.getvalue() == ""
        clock.seconds += 0.1
        report.advance(500)
        report.advance()
        clock.seconds += 5
        report.at(11_000)
    assert stream.getvalue().splitlines() == [
        "reading: 2,500 of 12,000 rows",
        "reading: 11,000 of 12,000 rows",
        "reading: 11,000 of 12,000 rows",
    ]


def test_line_without_total_or_unit_has_the_amount_only(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    stream = io.StringIO()
    with ProgressReport("first", stream=stream) as report:
        report.advance(3)
        report.rename("second")
    assert stream.getvalue() == "second: 3\n"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_quiet_operation_writes_nothing(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    clock = Clock(monkeypatch)
    with ProgressReport("reading", 10, quiet=True, stream=stream) as report:
        clock.seconds += 60
        report.advance(5)
        report.rename("writing")
    assert stream.getvalue() == ""


def test_terminal_gets_a_bar_with_the_amount_and_the_last_title(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with ProgressReport("reading", 10, stream=stream) as report:
        report.advance(3)
        report.advance(4)
        report.rename("writing")
    last = stream.getvalue().rpartition("writing")[2]
    assert "7/10" in last and "reading" not in last
