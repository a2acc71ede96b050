"""A task that does a bounded piece of work per turn of the loop, and sleeps until there is more to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Turns:
    """Runs `turn`, which returns after how many ms it wants to be run again; 0: at once, when others had their chance."""

    def __init__(self, turn: Callable[[], int]) -> None:
        self._turn = turn
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin on the running loop; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; the work of a turn is never cut."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def wake(self) -> None:
        """Run the next turn now."""
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
