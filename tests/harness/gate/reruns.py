"""The pytest option `--reruns-max=N`: a failed test that is marked `realtime` runs once more at the end of the session.

Only these tests run again, because only they depend on the speed of the machine; any other failure is a defect. The second run
comes after all other tests, with new fixtures of every scope, so that it has the machine to itself (with pytest-xdist: its worker).
The report of the first run has the outcome "rerun": it does not fail the session, its traceback is printed in the summary, and the
second run decides. More than N reruns fail the session; those of the earlier sessions of a gate count (see record.py).
Without the option no test runs again.

Each process that runs tests keeps its own list of failed tests; the process that prints the summary counts their reports.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest

from harness.gate import record

RERUN: Final = "rerun"
_RECORD: Final = "reruns"
_OUTCOMES: Final = {
    True: "passed the second time",
    False: "failed again",
    None: "FAILED: the session ended before its second run",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("saturnmq gate").addoption(
        "--reruns-max",
        metavar="N",
        type=int,
        default=0,
        help="run failed tests marked realtime once more at the end; fail if there are more than N of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "realtime: starts real processes and waits for the wall clock, so that a busy machine can fail it; "
        "with --reruns-max=N a failed one runs once more. A test of pure code or with a virtual clock never has it",
    )
    budget = config.getoption("--reruns-max")
    if budget:
        config.pluginmanager.register(Reruns(budget, len(record.lines(_RECORD))), "saturnmq-reruns")


class Reruns:
    """Postpones the failures of realtime tests and runs these tests again.

    Args:
        budget: how many tests of the gate may run again.
        used: how many did in earlier sessions.
    """

    def __init__(self, budget: int, used: int) -> None:
        self._budget = budget
        self._used = used
        self._failed: dict[str, pytest.Item] = {}  # by node ID; in the process that runs the tests
        self._rerunning = False
        self._first_reports: dict[str, list[pytest.TestReport]] = {}  # the rest: in the process that prints the summary
        self._second: dict[str, bool] = {}  # whether the second run passed

    # ---- in the process that runs the tests

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: after pytest has decided about xfail
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        vars(report)["second_run"] = self._rerunning  # pytest-xdist carries attributes from process to process
        if report.failed and not self._rerunning and item.get_closest_marker("realtime") and self._allows(item):
            self._failed[item.nodeid] = item
            report.outcome = RERUN  # type: ignore[assignment]  # pytest carries any outcome to pytest_report_teststatus
        return report

    def _allows(self, item: pytest.Item) -> bool:
        return item.nodeid in self._failed or self._used + len(self._failed) < self._budget

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        items = list(self._failed.values())
        self._rerunning = True
        for number, item in enumerate(items):
            if session.shouldfail or session.shouldstop:
                break
            following = items[number + 1] if number + 1 < len(items) else None
            _select(session, item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return result

    # ---- in the process that prints the summary

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == RERUN:  # type: ignore[comparison-overlap]
            if report.nodeid not in self._first_reports:
                record.append(_RECORD, report.nodeid)
            self._first_reports.setdefault(report.nodeid, []).append(report)
        elif getattr(report, "second_run", False):
            self._second[report.nodeid] = self._second.get(report.nodeid, True) and not report.failed

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        if report.outcome == RERUN:  # type: ignore[comparison-overlap]
            return RERUN, "R", ("RERUN", {"yellow": True})
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if (
            (self._too_many() or self._first_reports.keys() - self._second.keys())
            and exitstatus == pytest.ExitCode.OK
            and not hasattr(session.config, "workerinput")
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._first_reports:
            return
        terminalreporter.section("first runs of realtime tests that ran again", yellow=True)
        for nodeid, reports in self._first_reports.items():
            for report in reports:
                terminalreporter.write_sep("_", f"{nodeid} ({report.when})", yellow=True)
                terminalreporter.write_line(report.longreprtext)
                for title, text in report.sections:
                    terminalreporter.write_sep("-", title)
                    terminalreporter.write_line(text)
        terminalreporter.section("reruns", yellow=True)
        for nodeid in self._first_reports:
            terminalreporter.write_line(f"RERUN {nodeid}: {_OUTCOMES[self._second.get(nodeid)]}")
        total = self._used + len(self._first_reports)
        terminalreporter.write_line(
            f"{total} of at most {self._budget} reruns" + (" in this gate" if record.in_gate() else "")
        )
        if self._too_many():
            terminalreporter.write_line(f"FAILED: more than {self._budget} reruns", red=True)

    def _too_many(self) -> bool:
        return self._used + len(self._first_reports) > self._budget


def _select(session: pytest.Session, item: pytest.Item) -> None:
    """Make `item` the current one of pytest-xdist's worker, which rejects reports of any other."""
    for plugin in session.config.pluginmanager.get_plugins():
        if hasattr(plugin, "item_index"):
            plugin.item_index = session.items.index(item)
