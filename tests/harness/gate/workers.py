"""How the files of the tests are shared out to the processes of pytest-xdist (`make test`).

A file stays in one process, because its tests share module fixtures. All Spark tests stay in one process: they share a session,
which takes 10 s to start and most of a gigabyte. Each process takes the next file when it has finished one, in the order of the
collection, in which the folders that take longest come first.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

SHARED: Final = "tests/spark/"
# Folders whose files take long, the longest first.
FIRST: Final = (
    "tests/spark/",
    "tests/chaos/",
    "tests/sim/",
    "tests/raft/",
    "tests/testing/",
    "tests/broker/",
    "tests/client/",
    "tests/cli/",
)


def scope(nodeid: str) -> str:
    """What has to stay in the process of this test: its file, or the tests that share its session."""
    return SHARED if nodeid.startswith(SHARED) else nodeid.partition("::")[0]


def rank(nodeid: str) -> int:
    """The place of a test's folder in the order."""
    return next((place for place, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files when several processes run them: in the workers, which must all have the same order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # it would put the files with the most tests first, which are short
    return Scheduler(config, log)
