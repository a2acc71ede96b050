"""An event loop on its own thread, and results that synchronous and asynchronous tests can wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import warnings
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from saturnmq.client.sync import loop_thread as client_thread

T = TypeVar("T")
THREAD_PREFIX: Final = "saturnmq-"  # name prefix of every thread started by saturnmq.testing
STOP_SECONDS_MAX: Final = 30.0


class PendingResult(Generic[T]):
    """A result that another thread's event loop is computing: `await` it on any asyncio loop, or call `result()` without one.

    Warns when it is dropped without either, as a coroutine does: its failure would be lost.

    Example:
        messages = await saturn_broker.expect(topic, 1)           # in an async test
        messages = saturn_broker.expect(topic, 1).result()        # in a plain test
    """

    def __init__(self, name: str, future: concurrent.futures.Future[T]) -> None:
        self._name = name
        self._future = future
        self._is_awaited = False

    def __await__(self) -> Generator[Any, None, T]:
        self._is_awaited = True
        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout: float | None = None) -> T:
        """Block until the result is there, at most `timeout` seconds. Not for use inside a running event loop."""
        self._is_awaited = True
        return self._future.result(timeout)

    def __del__(self) -> None:
        if not self._is_awaited:
            warnings.warn(f"{self._name} was never awaited", RuntimeWarning, stacklevel=2, source=self)


class FixtureLoopThread(client_thread.LoopThread):
    """A running event loop on a daemon thread; `stop` ends both."""

    def __init__(self, name: str) -> None:
        super().__init__(THREAD_PREFIX + name)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return self.start()

    def submit(self, name: str, work: Coroutine[Any, Any, T]) -> PendingResult[T]:
        """Schedule work on the loop. `name` appears in the warning of a result that was never awaited."""
        return PendingResult(name, asyncio.run_coroutine_threadsafe(work, self.loop))

    def call(self, work: Coroutine[Any, Any, T], timeout: float = STOP_SECONDS_MAX) -> T:
        """Run work on the loop and return its result; blocks the calling thread for at most `timeout` seconds."""
        return self.run(work, timeout)

    def stop(self, timeout: float = STOP_SECONDS_MAX) -> bool:
        """Stop the loop and join its threads. Raises RuntimeError if the loop is still busy after `timeout` seconds."""
        if not super().stop(timeout):
            raise RuntimeError(f"thread {self._name} has not ended after {timeout:.0f} s")
        return True

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(ThreadPoolExecutor(4, thread_name_prefix=f"{self._name}-worker"))
        return loop

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(loop.shutdown_default_executor())
        super()._close(loop)
