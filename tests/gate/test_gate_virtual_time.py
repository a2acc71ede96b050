"""The event loop that skips waits, which broker and client tests run on."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import threading
import time
from types import ModuleType
from typing import Any

import anyio.to_thread
import pytest

from harness import virtualtime
from saturnmq.client.consumer.queue_locks import MemberLocks


def test_wait_advances_every_clock_and_takes_a_fraction_of_it() -> None:
    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        clocks = (loop.time, time.monotonic, time.time, lambda: time.time_ns() / 1e9, lambda: time.monotonic_ns() / 1e9)
        before = [clock() for clock in clocks]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)
        return [clock() - start for clock, start in zip(clocks, before, strict=True)]

    began = time.monotonic()
    for passed in virtualtime.run(work()):
        assert 3600 <= passed < 3700
    assert time.monotonic() - began < 3600 / 100


@pytest.mark.parametrize("by_anyio", [False, True])
def test_clock_does_not_skip_while_a_thread_works(by_anyio: bool) -> None:
    async def work() -> float:
        run = anyio.to_thread.run_sync if by_anyio else asyncio.to_thread
        before = asyncio.get_running_loop().time()
        async with asyncio.timeout(60):
            await run(threading.Event().wait, 0.1)  # a clock that jumps would reach the timeout
        return asyncio.get_running_loop().time() - before

    assert virtualtime.run(work()) < 60


def test_clock_does_not_count_what_the_process_waits_for_the_processor() -> None:
    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        before, real = loop.time(), real_monotonic()
        for _ in range(20):
            threading.Event().wait(0.02)  # the thread does not run, as on a busy machine
            await asyncio.sleep(0)
        passed = loop.time() - before
        return passed, real_monotonic() - real

    real_monotonic = time.monotonic
    passed, took = virtualtime.run(work())
    assert took >= 0.4 and passed < took / 2


def test_clock_advances_for_a_thread_with_timers_of_its_own() -> None:
    def other_loop() -> None:
        asyncio.run(asyncio.sleep(0.05))  # poll

    virtualtime.run(asyncio.to_thread(other_loop))


async def test_answers_over_sockets_arrive_before_a_timeout_is_skipped() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for number in range(200):
            async with asyncio.timeout(5):
                writer.write(b"%d\n" % number)
                assert await reader.readline() == b"%d\n" % number
        writer.close()
        await writer.wait_closed()


def test_only_a_used_socket_delays_the_jump_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    select = selectors.DefaultSelector.select

    def recorded(selector: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        waited.append(timeout or 0)
        return select(selector, timeout)

    async def work() -> None:
        left, right = socket.socketpair()
        with left, right:
            for used in (False, True):
                await asyncio.sleep(1)  # poll: until what came before is over
                waited.clear()
                if used:
                    left.send(b"x")
                await asyncio.sleep(60)  # poll
                assert (max(waited) > 0) == used

    monkeypatch.setattr(selectors.DefaultSelector, "select", recorded)
    virtualtime.run(work())


def test_clocks_and_default_arguments_are_restored_even_after_an_error() -> None:
    before = (time.monotonic, time.monotonic_ns, time.time, time.time_ns, MemberLocks.__init__.__kwdefaults__)
    during = []

    async def work() -> None:
        assert MemberLocks.__init__.__kwdefaults__ is not None
        during.append(MemberLocks.__init__.__kwdefaults__["clock"] == time.monotonic)
        raise RuntimeError("a test that fails")

    with pytest.raises(RuntimeError, match="a test that fails"):
        virtualtime.run(work())
    assert during == [True]
    assert (time.monotonic, time.monotonic_ns, time.time, time.time_ns, MemberLocks.__init__.__kwdefaults__) == before


def test_defaults_of_a_module_imported_between_two_runs_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(module: ModuleType) -> None:
        await asyncio.sleep(3600)  # poll
        assert min(module.age(), module.age_by_name()) >= 3600

    async def nothing() -> None: ...

    virtualtime.run(nothing())
    for _ in range(2):  # the second one has the same name
        module = ModuleType("saturnmq.imported_late")
        exec(
            "import time\nfrom time import monotonic\nborn = time.monotonic()\n"
            "def age(now=time.monotonic): return now() - born\ndef age_by_name(): return monotonic() - born\n",
            vars(module),
        )
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for _ in range(2):
            virtualtime.run(work(module))
        assert max(module.age(), module.age_by_name()) < 60
