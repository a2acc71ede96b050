"""Coroutine tests (harness/gate/coroutines.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from harness.gate.coroutines import Entered

pytest_plugins = ["pytester"]


@pytest.fixture
def loop_of_fixture() -> Entered:
    @asynccontextmanager
    async def entered() -> AsyncIterator[asyncio.AbstractEventLoop]:
        await asyncio.sleep(0)
        yield asyncio.get_running_loop()
        await asyncio.sleep(0)

    return Entered(entered())


async def test_an_asynchronous_fixture_is_entered_in_the_loop_of_the_test(
    loop_of_fixture: asyncio.AbstractEventLoop,
) -> None:
    assert loop_of_fixture is asyncio.get_running_loop()


async def test_waits_are_skipped() -> None:
    began, later = time.monotonic(), asyncio.Event()
    asyncio.get_running_loop().call_later(200, later.set)
    await later.wait()
    assert time.monotonic() - began >= 200


@pytest.mark.loop(real=True)
async def test_a_real_loop_is_used_where_the_test_says_so() -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")


def test_failures_time_limits_and_fixtures_of_coroutines_count(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        import time
        import pytest

        MONOTONIC = time.monotonic

        @pytest.fixture
        def number():
            return 4

        async def test_passes(number):
            await asyncio.sleep(0)
            assert number == 4

        async def test_fails():
            await asyncio.sleep(0)
            assert False

        @pytest.mark.loop(seconds=5)
        async def test_takes_too_long():
            await asyncio.Event().wait()

        async def test_cancels_what_it_started():
            asyncio.create_task(asyncio.Event().wait()).cancel()

        async def test_leaves_a_task_running():
            global task
            task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")

        async def test_replaces_a_clock_until_the_virtual_one_has_gone(monkeypatch):
            monkeypatch.setattr(time, "monotonic", lambda: 4.0)

        def test_sees_the_machines_clock():
            assert time.monotonic is MONOTONIC
        """
    )
    outcome = pytester.runpytest_inprocess("-p", "harness.gate.coroutines", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=4, failed=3, errors=1)
    outcome.stdout.fnmatch_lines(["*time.monotonic stays replaced*"])
    outcome.stdout.fnmatch_lines(["E*TimeoutError*", "E*tasks outlive the test*forgotten*"])
