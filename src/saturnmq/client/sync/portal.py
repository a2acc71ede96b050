"""The background event loop of `saturnmq.sync`: one daemon thread per process, shared by all its objects.

Any thread may call `Portal.run`; coroutines run on the background thread only. A forked child starts without a loop and creates
its own on first use.

Requirements: API-31, API-32, TR-07.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from saturnmq.client.connection import forks
from saturnmq.client.sync.loop_thread import LoopThread
from saturnmq.errors import WrongLoop
from saturnmq.tasks import cancel

R = TypeVar("R")
FLUSH_S: Final = 2.0
CANCEL_SECONDS: Final = 5.0
_NAME: Final = "saturnmq-sync"


class Flushable(Protocol):
    """A client with data to flush when the process exits."""

    async def last_words(self) -> None: ...


class Portal:
    """One event loop in one daemon thread, created on first use."""

    def __init__(self) -> None:
        self._thread = LoopThread(_NAME)
        self._to_flush: set[Flushable] = set()  # clients started and not stopped

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running background loop; starts its thread on the first call."""
        if self._thread.running is None:
            atexit.register(self.close)
        return self._thread.start()

    def run(self, name: str, start: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run the coroutine returned by `start` on the background loop and return its result.

        `name` is the call as an error message should name it. When the waiting thread is interrupted, the coroutine is cancelled
        and awaited for up to 5 s. Raises WrongLoop when called inside a running event loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise WrongLoop(f"saturnmq.sync would block this event loop; use `await {name}(...)` of saturnmq instead")
        self.loop()
        return self._thread.run(start(), cancel_seconds=CANCEL_SECONDS)

    def call(self, name: str, function: Callable[[], R]) -> R:
        """Run a plain function on the background loop, as `run` does a coroutine, and return its result."""

        async def work() -> R:
            return function()

        return self.run(name, work)

    def future(
        self, name: str, start: Callable[[], Coroutine[Any, Any, asyncio.Future[R]]]
    ) -> concurrent.futures.Future[R]:
        """Run a coroutine that returns a future of the background loop; returns one for threads, which cannot be cancelled."""
        outcome: concurrent.futures.Future[R] = concurrent.futures.Future()
        outcome.set_running_or_notify_cancel()

        def complete(done: asyncio.Future[R]) -> None:
            if done.cancelled():
                outcome.set_exception(concurrent.futures.CancelledError())
            elif (error := done.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(done.result())

        async def work() -> None:
            (await start()).add_done_callback(complete)

        self.run(name, work)
        return outcome

    def iterate(self, name: str, start: Callable[[], AsyncGenerator[R, None]]) -> Iterator[R]:
        """Iterate over an async generator of this loop. The generator yields no None."""
        source = start()

        async def take() -> R | None:
            return await anext(source, None)

        try:
            while (item := self.run(name, take)) is not None:
                yield item
        finally:
            self.run(name, source.aclose)

    def forget(self) -> None:
        """Discard the parent's loop in a forked child; the next use creates a new one.

        The parent's thread does not exist in the child, so its loop would never run.
        """
        if self._thread.running is not None:
            for task in asyncio.all_tasks(self._thread.running):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # the task continues in the parent
        self._thread = LoopThread(_NAME)
        self._to_flush = set()

    def flush_at_exit(self, client: Flushable) -> None:
        """Register a client to be flushed at process exit if it has not been stopped by then (TR-07)."""
        self._to_flush.add(client)

    def forget_at_exit(self, client: Flushable) -> None:
        """Unregister a client that was stopped, and so has flushed everything."""
        self._to_flush.discard(client)

    def started(self) -> set[Flushable]:
        """Clients that were started and not stopped."""
        return set(self._to_flush)

    def close(self) -> None:
        """Stop the loop and its thread; objects created from it are unusable afterwards."""
        loop = self._thread.running
        if loop is not None:
            end = asyncio.run_coroutine_threadsafe(self._end(list(self._to_flush)), loop)
            concurrent.futures.wait([end], timeout=FLUSH_S)
            self._thread.stop()

    async def _end(self, clients: list[Flushable]) -> None:
        """Flush the registered clients, then cancel all remaining tasks."""
        await asyncio.gather(*(client.last_words() for client in clients), return_exceptions=True)
        await cancel(*asyncio.all_tasks() - {asyncio.current_task()})


class Startable(Protocol):
    """An object with an async `start`."""

    async def start(self) -> None: ...


S = TypeVar("S", bound=Startable)


class PerProcess(Generic[S]):
    """A facade whose async object a forked child re-creates on first use, and starts if it was started."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._value = make()
        self._generation = forks.generation
        self._started = False

    @property
    def _inner(self) -> S:
        if self._generation != forks.generation:
            self._value = self._make()
            self._generation = forks.generation
            if self._started:
                portal.run(f"{type(self._value).__name__}.start", self._value.start)
        return self._value


portal: Final = Portal()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=portal.forget)
