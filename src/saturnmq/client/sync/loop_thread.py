"""An event loop on a daemon thread, for callers that run no event loop.

Any thread may call the methods of `LoopThread`; coroutines run on its thread only. After a fork the child must create a new
object: the thread does not exist in it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

R = TypeVar("R")
STOP_SECONDS_MAX: Final = 5.0


class LoopThread:
    """One event loop in one thread. Both start on first use; after `stop` the next use starts new ones."""

    def __init__(self, name: str) -> None:
        """name: the name of the thread."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> asyncio.AbstractEventLoop | None:
        """The loop if it was started and not stopped."""
        return self._loop

    def start(self) -> asyncio.AbstractEventLoop:
        """Start the thread if it does not run; returns its loop."""
        with self._lock:
            if self._loop is None:
                self._loop = self._new_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, R], timeout: float | None = None, *, cancel_seconds: float = 0.0) -> R:
        """Run a coroutine on the loop and return its result; blocks the calling thread for at most `timeout` seconds.

        When the wait times out or is interrupted, the coroutine is cancelled and awaited for up to `cancel_seconds`.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.start())
        try:
            return future.result(timeout)
        except BaseException:
            if not future.done():
                future.cancel()
                if cancel_seconds:
                    concurrent.futures.wait([future], timeout=cancel_seconds)
            raise

    def stop(self, timeout: float = STOP_SECONDS_MAX) -> bool:
        """Stop the loop and join its thread; returns False if the thread has not ended after `timeout` seconds."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or loop.is_closed():
            return True
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout)
        if thread.is_alive():
            return False
        self._close(loop)
        return True

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close a loop whose thread has ended."""
        loop.close()
