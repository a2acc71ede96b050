"""Wall and processor time of each test file, printed at the end of a session: the 20 slowest files.

The processor time of a file is that of the process that runs it and of all processes below it, servers and Spark's JVM included.
With pytest-xdist several files run at once, so the wall times add up to more than the session took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Final, NamedTuple

import psutil
import pytest

from harness.gate import record

SHOWN: Final = 20
_RECORD: Final = "times"
_ATTRIBUTE: Final = "file_times"


class FileTimes(NamedTuple):
    """Seconds that a test file took: by the clock, and of all processors."""

    wall: float
    cpu: float


def process_tree_seconds() -> float:
    """Processor seconds of this process and of every process below it, ended ones included."""
    seconds = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Times(), "saturnmq-times")


class Times:
    """Measures in the process that runs the tests, prints in the one that writes the summary."""

    def __init__(self) -> None:
        self._file = ""
        self._began = FileTimes(0.0, 0.0)
        self._is_last = False
        self._by_file: dict[str, FileTimes] = {}

    # ---- in the process that runs the tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        file = _file(item.nodeid)
        if file != self._file:
            self._file, self._began = file, FileTimes(time.monotonic(), process_tree_seconds())
        self._is_last = nextitem is None or _file(nextitem.nodeid) != file

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown" and self._is_last:
            spent = FileTimes(time.monotonic() - self._began.wall, process_tree_seconds() - self._began.cpu)
            vars(report)[_ATTRIBUTE] = list(spent)  # pytest-xdist carries attributes from process to process
            self._file = ""
        return report

    # ---- in the process that prints the summary

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = getattr(report, _ATTRIBUTE, None)
        if spent is not None:
            file, earlier = _file(report.nodeid), self._by_file.get(_file(report.nodeid), FileTimes(0.0, 0.0))
            self._by_file[file] = FileTimes(earlier.wall + spent[0], earlier.cpu + spent[1])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if hasattr(terminalreporter.config, "workerinput"):
            return  # pytest-xdist's processes call this, too
        slowest = sorted(self._by_file.items(), key=lambda item: item[1].wall, reverse=True)
        for file, spent in slowest:
            record.append(_RECORD, f"{spent.wall:8.1f} s {spent.cpu:8.1f} s CPU  {file}")
        if len(slowest) < 2:
            return
        total = sum(spent.cpu for spent in self._by_file.values())
        terminalreporter.section(f"slowest of {len(slowest)} files; {total:.0f} s of processor time in all")
        for file, spent in slowest[:SHOWN]:
            terminalreporter.write_line(f"{spent.wall:8.1f} s {spent.cpu:8.1f} s CPU  {file}")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
