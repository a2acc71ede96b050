"""Background work of a service: a sleep that can be ended early, and a task that does a bounded amount of work per call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from saturnmq.tasks import OnFailure, cancel, supervised


class WakeableSleep:
    """A sleep that `wake` ends early; a call of `wake` outside a sleep ends the next sleep at once."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """End the sleep now."""
        self._event.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or `wake` is called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        # After the sleep: a wake before it ends the next one at once.
        self._event.clear()


class RepeatedTask:
    """Calls `work` repeatedly. `work` returns the ms until its next call; 0: at once, after other tasks have run."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._sleep = WakeableSleep()
        self._task: asyncio.Task[None] | None = None

    def start(self, name: str, on_failure: OnFailure) -> None:
        """Start on the running loop; a second call has no effect. on_failure: called if `work` raises, which ends the task."""
        if self._task is None:
            self._task = supervised(self._run(), name, on_failure)

    async def stop(self) -> None:
        """Cancel the task; a call of `work` is never interrupted."""
        task, self._task = self._task, None
        await cancel(task)

    def wake(self) -> None:
        """Call `work` now."""
        self._sleep.wake()

    async def _run(self) -> None:
        while True:
            wait_ms = self._work()
            if wait_ms <= 0:
                # Other tasks run between two steps.
                await asyncio.sleep(0)
            else:
                await self._sleep.sleep(wait_ms / 1000)
