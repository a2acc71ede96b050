"""Tests whose peers are missing on this machine: skipped with a reason, listed in one block, and a failure in the gate.

A test that needs Java, Maven, Go, Spark or a browser calls `missing` when there is none. In `.ci/run` (see record.py) the session
fails if any test was skipped for that reason: a gate that left out a peer says nothing about it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NoReturn

import pytest

from harness.gate import record

PREFIX: Final = "missing peer: "
_skipped: Final[pytest.StashKey[Counter[str]]] = pytest.StashKey()


def missing(reason: str) -> NoReturn:
    """Skip this test because this machine has no peer for it; `reason` names the peer and what to install."""
    pytest.skip(PREFIX + reason)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skipped] = Counter()
    config.pluginmanager.register(_Listing(config.stash[_skipped]), "saturnmq-missing-peers")


class _Listing:
    """Counts the skipped tests by reason, in the process that prints the summary."""

    def __init__(self, skipped: Counter[str]) -> None:
        self._skipped = skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            _, found, reason = report.longrepr[2].partition(PREFIX)
            if found:
                self._skipped[reason] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        controls = not hasattr(session.config, "workerinput")
        if controls:
            for reason, count in self._skipped.items():
                record.append("skipped", f"{count} tests: {reason}")
        if self._skipped and controls and record.in_gate() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._skipped:
            return
        terminalreporter.section("tests without their peer on this machine", yellow=True)
        for reason, count in self._skipped.items():
            terminalreporter.write_line(f"{count} skipped: {reason}", yellow=True)
        if record.in_gate():
            terminalreporter.write_line("FAILED: the gate needs every peer", red=True)
