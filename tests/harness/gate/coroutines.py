"""Runs tests that are coroutine functions: on an event loop that skips waits (harness.virtualtime), or on a real one.

Tests of brokers, clients and the console have everything in one loop, so they skip waits. Tests of packages whose subject is the
loop, the sockets or the disk use a real one, and so do those whose broker runs in a thread of its own. A test says otherwise by
`@pytest.mark.loop(real=True)`, and how long it may take, in seconds of its loop, by `loop(seconds=7200)`.

A fixture that returns `Entered` gives the test what an asynchronous context manager yields, in the test's event loop.

A task that outlives its test fails it, and so does a replaced clock of module `time`: monkeypatch undoes what a coroutine test
replaced after the virtual clock has gone, and would put that back for all later tests. In REPORTED_FOLDERS an exception that
reaches the event loop's handler fails the test.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from harness import virtualtime

TESTS: Final = Path(__file__).resolve().parents[2]
REAL_FOLDERS: Final = frozenset({"admin", "history", "interop", "namesrv", "net", "raft", "store", "testing"})
REPORTED_FOLDERS: Final = frozenset({"net"})
CANCELLED_ITERATIONS: Final = 10  # in which a task that was cancelled ends
VIRTUAL_SECONDS: Final = 300
_iteration: Final = asyncio.sleep  # a test may replace it
REAL_SECONDS: Final = 60
CLOCKS: Final = {name: getattr(time, name) for name in virtualtime.CLOCKS}
INTEROP_SECONDS: Final = (
    600  # Java servers start, and are killed, several times in a test; pytest-timeout bounds each test, too
)


@dataclass(frozen=True)
class Entered:
    """The value of a fixture: the test gets what `context` yields."""

    context: AbstractAsyncContextManager[Any]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "loop(real, seconds): the event loop of a coroutine test and the time that it may take (harness.gate.coroutines)",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail a test whose fixtures leave a clock replaced, and put the clock back."""
    try:
        return (yield)
    finally:
        replaced = [name for name, clock in CLOCKS.items() if getattr(time, name) is not clock]
        for name in replaced:
            setattr(time, name, CLOCKS[name])
        if replaced:
            pytest.fail(
                f"time.{', time.'.join(replaced)} stays replaced; replace `time` of the module under test instead"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    folder = pyfuncitem.path.relative_to(TESTS).parts[0] if TESTS in pyfuncitem.path.parents else ""
    real, seconds = loop_of(pyfuncitem, folder)
    problems: list[dict[str, Any]] = []
    bounded = _bounded(pyfuncitem.obj, arguments, seconds, problems if folder in REPORTED_FOLDERS else None)
    if real:
        asyncio.run(bounded)
    else:
        virtualtime.run(bounded)
    assert not problems, problems
    return True


def loop_of(item: pytest.Item, folder: str) -> tuple[bool, float]:
    """Whether a test uses a real loop, and its limit in seconds of that loop."""
    fixtures = getattr(item, "fixturenames", ())
    real = folder in REAL_FOLDERS or any(name.startswith("saturn_") for name in fixtures)
    marker = item.get_closest_marker("loop")
    options = marker.kwargs if marker is not None else {}
    real = bool(options.get("real", real))
    most = INTEROP_SECONDS if folder == "interop" else REAL_SECONDS if real else VIRTUAL_SECONDS
    return real, float(options.get("seconds", most))


async def _bounded(
    test: Callable[..., Awaitable[None]],
    arguments: dict[str, Any],
    seconds: float,
    problems: list[dict[str, Any]] | None,
) -> None:
    if problems is not None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    async with asyncio.timeout(seconds), AsyncExitStack() as stack:
        for name, value in arguments.items():
            if isinstance(value, Entered):
                arguments[name] = await stack.enter_async_context(value.context)
        await test(**arguments)
    await _tasks_ended()


async def _tasks_ended() -> None:
    """Fail if a task outlives its test: some `stop` or `close` leaves running what it should have ended."""
    own = asyncio.current_task()
    for _ in range(CANCELLED_ITERATIONS):
        running = [task for task in asyncio.all_tasks() if task is not own]
        if not running:
            return
        await _iteration(0)
    pytest.fail(f"tasks outlive the test: {running}")
