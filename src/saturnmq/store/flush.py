"""Flushing the commit log: in the background, or before the answer with group commit. Source: spec 02 section 7, DUR rows.

fdatasync runs in a thread and one at a time; the loop never waits for it. A failed flush is final (DUR-06).
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
    """Keeps `flushed` (everything before it is on disk) moving towards the end of the log.

    on_flushed is called on the loop with the new value, before those who wait for it go on. slow_count and slowest_ms tell
    of flushes longer than half a second.
    """

    def __init__(
        self, commit_log: CommitLog, on_flushed: Callable[[int], None], on_failure: Callable[[FlushFailed], None]
    ) -> None:
        self._log = commit_log
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self.flushed = commit_log.readable
        self.failure: FlushFailed | None = None
        self.count = self.slow_count = self.slowest_ms = 0

    def dirty_pages(self) -> int:
        """Pages begun since the last flush (MF-03)."""
        return self._log.readable // PAGE_BYTES - self.flushed // PAGE_BYTES

    async def wait(self, end: int, timeout_ms: int) -> bool:
        """True when everything before end is on disk, False when that takes longer than the timeout.

        Raises FlushFailed. Many waiters share one fdatasync (FLU-01).
        """
        if self.flushed >= end:
            return True
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future))
        self.start()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            return False

    def start(self) -> None:
        """Flush as soon as the flush under way is done."""
        if self._running is None and self.failure is None and self.flushed < self._log.readable:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.failure is None:
                end = self._log.readable
                files = self._log.dirty_files(self.flushed)
                for file in files:
                    file.before_flush(self.flushed, end)
                before = loop.time()
                try:
                    await loop.run_in_executor(None, _flush, files)
                except OSError as error:
                    self._fail(files, error)
                    return
                self._note_time(int((loop.time() - before) * 1000), end)
                self.flushed = max(self.flushed, end)
                self._on_flushed(self.flushed)
                while self._waiting and self._waiting[0][0] <= end:
                    future = self._waiting.popleft()[1]
                    if not future.done():
                        future.set_result(True)
                if not self._waiting or self._waiting[0][0] > self._log.readable:
                    return
        finally:
            self._running = None

    def _note_time(self, took_ms: int, end: int) -> None:
        self.count += 1
        self.slowest_ms = max(self.slowest_ms, took_ms)
        if took_ms > _SLOW_SECONDS * 1000:
            self.slow_count += 1
            log.warning("slow flush ms=%s end=%s", took_ms, end)

    def _fail(self, files: Sequence[MappedFile], error: OSError) -> None:
        name = files[-1].path if files else "the commit log"
        self.failure = FlushFailed(
            f"flush of {name} failed: {error.strerror} (errno {error.errno}); the store takes no more messages. "
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
        """Wait for a flush under way, then flush the rest (FLU-08). Raises FlushFailed."""
        while self.failure is None and (self._running is not None or self.flushed < self._log.readable):
            self.start()
            if self._running is not None:
                await self._running
        if self.failure is not None:
            raise self.failure


def _flush(files: Sequence[MappedFile]) -> None:
    for file in files:
        file.flush()
