"""Pending calls of a connection: each completes exactly once and is then no longer pending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from saturnmq.net import CallTimeout, ConnectFailed
from saturnmq.net.calls import Calls
from saturnmq.protocol.frames.command import Command


def run(work: Callable[[Calls], Awaitable[None]]) -> None:
    async def bounded() -> None:
        calls = Calls(asyncio.get_running_loop())
        calls.peer = "192.0.2.1:10911"
        async with asyncio.timeout(10):
            await work(calls)
            await asyncio.sleep(0)  # callbacks of the futures
        assert len(calls) == 0

    asyncio.run(bounded())


@pytest.mark.spec("REM-07")
def test_calls_complete_by_opaque_in_any_order() -> None:
    async def work(calls: Calls) -> None:
        first, second = calls.start(1, 5000), calls.start(2, 5000)
        assert len(calls) == 2
        calls.complete(Command(0, opaque=2, remark="two"))
        calls.complete(Command(0, opaque=1, remark="one"))
        assert ((await first).remark, (await second).remark) == ("one", "two")

    run(work)


def test_calls_ignore_unknown_and_repeated_responses() -> None:
    async def work(calls: Calls) -> None:
        future = calls.start(1, 5000)
        calls.complete(Command(0, opaque=7))
        assert not future.done()
        calls.complete(Command(0, opaque=1, remark="first"))
        calls.complete(Command(0, opaque=1, remark="second"))
        calls.fail("closed afterwards")
        assert (await future).remark == "first"
        calls.complete(Command(0, opaque=1))

    run(work)


@pytest.mark.spec("REM-16")
def test_calls_past_deadline_time_out_and_ignore_late_response() -> None:
    async def work(calls: Calls) -> None:
        future = calls.start(1, 1)
        with pytest.raises(CallTimeout, match=r"^192\.0\.2\.1:10911 did not answer within 1 ms"):
            await future
        calls.complete(Command(0, opaque=1))
        with pytest.raises(CallTimeout):
            await calls.start(2, -5)

    run(work)


@pytest.mark.spec("REM-22")
def test_calls_all_fail_at_once_when_connection_closes() -> None:
    async def work(calls: Calls) -> None:
        futures = [calls.start(number, 60_000) for number in range(3)]
        calls.fail("reset")
        assert all(future.done() for future in futures)
        for future in futures:
            with pytest.raises(ConnectFailed, match=r"connection to 192\.0\.2\.1:10911 is closed: reset"):
                await future

    run(work)


def test_cancelled_call_is_no_longer_pending() -> None:
    async def work(calls: Calls) -> None:
        future = calls.start(1, 60_000)
        future.cancel()
        calls.complete(Command(0, opaque=1))
        await asyncio.sleep(0)
        assert len(calls) == 0

    run(work)
