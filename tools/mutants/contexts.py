"""A plugin of pytest: each test is a context of coverage, and MUTANTS_TESTS names the file that gets seconds and outcomes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from coverage import Coverage

RESULTS: Final = "MUTANTS_TESTS"
_rows: dict[str, list[float | bool]] = {}


def load_factor() -> float:
    """How many processes want a processor, 1 at least: so many times too long are seconds that were measured meanwhile."""
    return max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    coverage = Coverage.current()
    begin = time.perf_counter()
    if coverage is not None:
        coverage.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if coverage is not None:
            coverage.switch_context("")
        row = _rows.setdefault(item.nodeid, [0.0, True, item.get_closest_marker("realtime") is not None])
        row[0] = round((time.perf_counter() - begin) / load_factor(), 3)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    row = _rows.setdefault(report.nodeid, [0.0, True, False])
    row[1] = bool(row[1]) and not report.failed
    row[2] = bool(row[2]) or "realtime" in report.keywords


def pytest_sessionfinish() -> None:
    if name := os.environ.get(RESULTS):
        Path(name).write_text(json.dumps(_rows), encoding="utf-8")
