"""A task that does a bounded amount of work per event-loop iteration and sleeps until there is more to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Turns:
    """Calls `turn` repeatedly; it returns the ms until it wants to be called again.

    0 means at once, after other tasks have run.
    """

    def __init__(self, turn: Callable[[], int]) -> None:
        self._turn = turn
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start on the running loop; a second call has no effect."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Cancel the task; a call of `turn` is never interrupted."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def wake(self) -> None:
        """Call `turn` now."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            wait_ms = self._turn()
            if wait_ms <= 0:
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
