"""Flushing the commit log: in the background, or before the answer with group commit. Source: spec 02 section 7, DUR rows.

fdatasync runs in a thread and one at a time; the loop never waits for it. A failed flush is final.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from saturnmq.protocol.errors import FlushFailed
from saturnmq.store.commit_log import CommitLog
from saturnmq.store.mapped_file import PAGE_BYTES, MappedFile

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.5


class Flusher:
    """Keeps `flushed` (everything before it is on disk) moving towards the end of the log."""

    def __init__(self, commit_log: CommitLog, on_failure: Callable[[FlushFailed], None]) -> None:
        self._log = commit_log
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self.flushed = commit_log.end
        self.failure: FlushFailed | None = None

    def dirty_pages(self) -> int:
        """Pages begun since the last flush (MF-03)."""
        return self._log.end // PAGE_BYTES - self.flushed // PAGE_BYTES

    async def wait(self, end: int, timeout_ms: int) -> bool:
        """True when everything before end is on disk, False when that takes longer than the timeout.

        Raises FlushFailed. Many waiters share one fdatasync (FLU-01).
        """
        if self.failure is not None:
            raise self.failure
        if self.flushed >= end:
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future))
        self.start()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            return False

    def start(self) -> None:
        """Begin a flush if none is under way; it goes on while somebody waits."""
        if self._running is None and self.failure is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.failure is None:
                end = self._log.end
                files = self._log.dirty_files(self.flushed)
                before = loop.time()
                try:
                    await loop.run_in_executor(None, _flush, files)
                except OSError as error:
                    self._fail(files, error)
                    return
                if loop.time() - before > _SLOW_SECONDS:
                    log.warning("slow flush seconds=%.3f end=%s", loop.time() - before, end)
                self.flushed = max(self.flushed, end)
                while self._waiting and self._waiting[0][0] <= end:
                    future = self._waiting.popleft()[1]
                    if not future.done():
                        future.set_result(True)
                if not self._waiting:
                    return
        finally:
            self._running = None

    def _fail(self, files: Sequence[MappedFile], error: OSError) -> None:
        name = files[-1].path if files else "the commit log"
        self.failure = FlushFailed(
            f"flush of {name} failed: {error.strerror}; the store takes no more messages. "
            f"Everything before offset {self.flushed} is on disk.",
            hint="Check the disk, then start the broker again.",
        )
        log.critical("%s", self.failure.message)
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(self.failure)
        self._on_failure(self.failure)

    async def stop(self) -> None:
        """Wait for a flush under way, then flush the rest. Raises FlushFailed."""
        if self._running is not None:
            await self._running
        if self.failure is not None:
            raise self.failure
        if self.flushed < self._log.end or self._log.files:
            self.start()
            if self._running is not None:
                await self._running
        if self.failure is not None:
            raise self.failure


def _flush(files: Sequence[MappedFile]) -> None:
    for file in files:
        file.flush()
