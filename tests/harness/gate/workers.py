"""How the files of the tests are shared out to the processes of pytest-xdist (`make test`).

A file stays in one process, because its tests share module fixtures. The files with tests of a Spark session stay in two
processes: each has a session, which takes 10 s to start and most of a gigabyte; in one, they would end long after all others. Each
process takes the next file when it has finished one, in the order of the collection, in which the files and folders that take
longest come first.

Much of the tests' time is waiting, for processes that start and for elections: five processes on two processors use it.
"""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

_SPARK: Final = "tests/spark/"
# Two halves of the files with a Spark session, as long as each other: those before _HALF, and the others.
SESSIONS: Final = ("tests/spark/ with the first session", "tests/spark/ with the second session")
_HALF: Final = "tests/spark/test_spark_s"
_SESSION: Final = re.compile(r"\bspark: ")  # a parameter: the fixture
# What takes long, the longest first: files (without `.py`) and folders.
FIRST: Final = (
    *SESSIONS,
    "tests/interop/test_interop_mqadmin",
    "tests/interop/test_interop_acl",
    "tests/interop/test_interop_mixed",
    "tests/interop/test_interop_ledger_broker",
    "tests/interop/test_interop_ledger",
    "tests/cli/test_cli_console",
    "tests/cli/test_cli_docs",
    "tests/testing/test_testing_plugin",
    "tests/chaos/test_chaos_pairs",
    "tests/store/test_store_index_queue",
    "tests/store/test_store_crash",
    "tests/spark/test_spark_cluster",
    "tests/broker/test_broker_long_requests",
    "tests/fuzz/test_fuzz_parse_time",
    "tests/fuzz/test_fuzz_campaign",
    "tests/raft/test_raft_broker_processes",
    "tests/cli/",
    "tests/sim/",
    "tests/chaos/",
    "tests/spark/",
    "tests/testing/",
    "tests/fuzz/",
    "tests/raft/",
    "tests/broker/",
    "tests/store/",
    "tests/client/",
)


def scope(nodeid: str, root: Path) -> str:
    """What has to stay in the process of this test: its file below root, or the files that share a Spark session."""
    file = nodeid.partition("::")[0]
    return SESSIONS[file >= _HALF] if file.startswith(_SPARK) and _has_session(root / file) else file


@functools.cache
def _has_session(file: Path) -> bool:
    return _SESSION.search(file.read_text(encoding="utf-8")) is not None


def rank(scope: str) -> int:
    """The place of a scope, or of its folder, in the order."""
    return next((place for place, prefix in enumerate(FIRST) if scope.startswith(prefix)), len(FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin with another part of each folder.

    All workers collect all files. The first to import one compiles it, for the assertions' details, and caches the result; in a
    new checkout workers in step would each compile everything.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Dir) and report.result:
        number = int(worker["workerid"].removeprefix("gw"))
        first = len(report.result) * number // worker["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files when several processes run them: in the workers, which must all have the same order."""

    def place(item: pytest.Item) -> tuple[int, str]:
        return rank(scope(item.nodeid, config.rootpath)), item.nodeid.partition("::")[0]

    if hasattr(config, "workerinput"):
        items.sort(key=place)


def pytest_configure() -> None:
    """Collect no garbage while modules are imported and tests collected: nearly everything made then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep modules and collected tests, half a million objects, out of the garbage collections during the tests.

    Without a collection before: it takes 0.7 s of processor time in each worker.
    """
    gc.enable()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid, config.rootpath)

    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # it would put the files with the most tests first, which are short
    return Scheduler(config, log)
