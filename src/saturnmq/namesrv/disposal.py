"""Frees large tables in slices: to free one of 300,000 topics in one step would take 50 ms of the event loop.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from saturnmq.namesrv.routes import Queues
from saturnmq.slices import Steps, finish
from saturnmq.tasks import supervised

_SMALL: Final = 10_000  # freed at once
_STEP: Final = 1000


class Disposal:
    """The tables that wait to be freed."""

    def __init__(self) -> None:
        self._tables: deque[Queues] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, topics: Queues) -> None:
        """Free a table to which nothing else refers."""
        if len(topics) <= _SMALL:
            return
        self._tables.append(topics)
        if self._task is None:
            self._task = supervised(self._run(), "disposal of tables")

    async def stop(self) -> None:
        """Leave the rest to the end of the process."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._tables:
                # Without a name here: the last reference ends with the generator.
                await finish(_emptied(self._tables.popleft()))
        finally:
            self._task = None


def _emptied(topics: Queues) -> Steps[None]:
    while topics:
        for _ in range(min(_STEP, len(topics))):
            topics.popitem()
        yield
