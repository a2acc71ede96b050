"""Settings shared by all tests: plugins of the gate, Hypothesis profiles, the marker `realtime`, the folder of recorded bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from hypothesis import HealthCheck, settings

from recorded import VECTORS

pytest_plugins = [
    "harness.gate.reruns",
    "harness.gate.peers",
    "harness.gate.workers",
    "harness.gate.folders",
    "harness.gate.goals",
    "harness.gate.interrupts",
    "harness.gate.times",
    "harness.gate.coroutines",
    "harness.gate.constants",
]

# The default profile is deterministic and has no deadline, so that a result depends on the tree only. "random" draws new examples
# (make test HYPOTHESIS_SEED=N; the gate chooses a seed, prints it and says how to repeat the run); "deep" takes minutes.
# Tests with settings of their own repeat the health checks that they suppress.
_QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("local", deadline=None, derandomize=True, database=None, suppress_health_check=_QUIET)
settings.register_profile("random", deadline=None, database=None, print_blob=True, suppress_health_check=_QUIET)
settings.register_profile("deep", deadline=None, max_examples=10_000, suppress_health_check=_QUIET)
settings.load_profile("local")

HERE = Path(__file__).resolve().parent
# Tests that start real processes, elect leaders by the wall clock or measure steps of the event loop. Single tests elsewhere carry
# the marker `realtime` themselves.
REALTIME_FOLDERS = {"chaos", "interop"}
REALTIME_FIXTURES = {"ledger_group", "serve", "standalone", "spark"}
REALTIME_MODULES = {"brokergroup", "loopsteps", "raftgroup"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and _is_realtime(item):
            item.add_marker(pytest.mark.realtime)


def _is_realtime(item: pytest.Item) -> bool:
    if item.path.relative_to(HERE).parts[0] in REALTIME_FOLDERS:
        return True
    if REALTIME_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return True
    if not isinstance(item, pytest.Function) or not isinstance(getattr(item.function, "__code__", None), CodeType):
        return False
    return not _from_realtime_modules(item.module).isdisjoint(_names(item.function.__code__))


@functools.cache
def _from_realtime_modules(module: ModuleType) -> frozenset[str]:
    """Global names of a test module for what is defined in one of REALTIME_MODULES."""
    return frozenset(
        name for name, value in vars(module).items() if getattr(value, "__module__", None) in REALTIME_MODULES
    )


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function and its nested functions use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder with bytes recorded from Apache RocketMQ 4.9.7 (tests/vectors)."""
    return VECTORS
