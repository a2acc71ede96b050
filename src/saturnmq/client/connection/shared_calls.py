"""Calls shared by concurrent callers: at most one per key is in flight, and at most one waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SharedCalls:
    """Runs `work(key)` for callers that each need one that begins after they asked, such as heartbeats with a new group.

    200 groups that start together thus cause two calls, not 200. spawn: starts a task that belongs to the client.
    """

    def __init__(
        self,
        spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[Any]],
        work: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._spawn = spawn
        self._work = work
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._waiting: dict[str, asyncio.Task[Any]] = {}

    def start(self, key: str) -> asyncio.Task[Any]:
        """The task of a call that begins now or later. Its errors are logged by spawn."""
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = self._spawn(f"call {key}", self._run(key, self._running.get(key)))
        return task

    async def call(self, key: str) -> None:
        """Wait for a call that begins now or later. It goes on if this caller is cancelled."""
        await asyncio.wait({self.start(key)})

    async def _run(self, key: str, before: asyncio.Task[Any] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
        finally:
            task = self._waiting.pop(key)
        self._running[key] = task
        try:
            await self._work(key)
        finally:
            if self._running[key] is task:
                del self._running[key]
