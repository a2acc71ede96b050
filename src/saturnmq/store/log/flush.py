"""Flushing the commit log: in the background, or before the answer with group commit. Source: spec 02 section 7, DUR rows.

fdatasync runs in a thread and one at a time; the loop never waits for it. A failed flush is final (DUR-06).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from saturnmq.protocol.errors import FlushFailed
from saturnmq.store.files.mapped_file import PAGE_BYTES, MappedFile
from saturnmq.store.log.commit_log import CommitLog

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.5


class _Waiter:
    """Somebody who waits until everything before `end` is on disk; told once, at `deadline` (loop time, seconds) at the latest."""

    __slots__ = ("_tell", "deadline", "end", "told")

    def __init__(self, end: int, deadline: float, tell: Callable[[bool], object]) -> None:
        self.end = end
        self.deadline = deadline
        self.told = False
        self._tell = tell

    def tell(self, done: bool) -> None:
        if not self.told:
            self.told = True
            self._tell(done)


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
        self._waiting: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = 0  # the furthest that anybody waited for
        self._flushing: Sequence[MappedFile] = ()
        self._again = False  # somebody asked for a flush while one was under way
        self._running: asyncio.Task[None] | None = None
        self.flushed = commit_log.readable
        self.failure: FlushFailed | None = None
        self.count = self.slow_count = self.slowest_ms = 0

    def dirty_pages(self) -> int:
        """Pages begun since the last flush (MF-03)."""
        return self._log.readable // PAGE_BYTES - self.flushed // PAGE_BYTES

    def due(self, least_pages: int) -> bool:
        """Whether a background flush is due: a file is full, or at least this many pages are dirty; 0: any byte (MF-03)."""
        end, file_bytes = self._log.readable, self._log.file_bytes
        if end == self.flushed:
            return False
        return end // file_bytes > self.flushed // file_bytes or self.dirty_pages() >= least_pages

    async def wait(self, end: int, timeout_ms: int) -> bool:
        """True when everything before end is on disk, False when that takes longer than the timeout.

        Raises FlushFailed. Many waiters share one fdatasync (FLU-01).
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def told(done: bool) -> None:
            if not future.done():
                future.set_result(done)

        waiter = self.call_when(end, timeout_ms, told)
        try:
            done = await future
        finally:
            waiter.told = True
        if not done and self.failure is not None:
            raise self.failure
        return done

    def call_when(self, end: int, timeout_ms: int, told: Callable[[bool], object]) -> _Waiter:
        """As `wait`, but calls: with True when everything before end is on disk, else with False; perhaps before it returns."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(end, loop.time() + timeout_ms / 1000, told)
        if self.flushed >= end or self.failure is not None:
            waiter.tell(self.flushed >= end)
            return waiter
        self._waiting.append(waiter)
        self._wanted = max(self._wanted, end)
        if self._timer is None or waiter.deadline < self._timer.when():
            self._set_timer(waiter.deadline)
        if self._running is None:
            self.start()
        return waiter

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._too_late)

    def _too_late(self) -> None:
        """Tell those who do not wait any longer. They are few: what is flushed in time is told then."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for waiter in self._waiting:
            if waiter.deadline <= now:
                waiter.tell(False)
        self._waiting = deque(waiter for waiter in self._waiting if not waiter.told)
        if self._waiting:
            self._set_timer(min(waiter.deadline for waiter in self._waiting))

    def start(self) -> None:
        """Flush as soon as the flush under way is done."""
        self._again = True
        if self._running is None and self.failure is None and self.flushed < self._log.readable:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def committed(self) -> None:
        """The transient pool has copied bytes to the files: flush them if a request waits (FLU-07)."""
        if self._waiting:
            self.start()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.failure is None:
                self._again = False
                try:
                    await loop.run_in_executor(None, self._flush_while_waited_for, loop)
                except OSError as error:
                    self._fail(error)
                    return
                waited_for = bool(self._waiting) and self._waiting[0].end <= self._log.readable
                if not waited_for and not (self._again and self.flushed < self._log.readable):
                    return
        finally:
            self._running = None

    def _flush_while_waited_for(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: one flush behind the other, with no way through the loop between them. Raises OSError."""
        flushed = self.flushed
        while True:
            end = self._log.readable
            files = self._flushing = self._log.dirty_files(flushed)
            for file in files:
                file.before_flush(flushed, end)
            before = time.monotonic()
            for file in files:
                file.flush()
            loop.call_soon_threadsafe(self._done, end, int((time.monotonic() - before) * 1000))
            flushed = end
            if self._wanted <= end or self._log.readable <= end:
                return

    def _done(self, end: int, took_ms: int) -> None:
        self._note_time(took_ms, end)
        self.flushed = max(self.flushed, end)
        self._on_flushed(self.flushed)
        while self._waiting and self._waiting[0].end <= end:
            self._waiting.popleft().tell(True)

    def _note_time(self, took_ms: int, end: int) -> None:
        self.count += 1
        self.slowest_ms = max(self.slowest_ms, took_ms)
        if took_ms > _SLOW_SECONDS * 1000:
            self.slow_count += 1
            log.warning("slow flush ms=%s end=%s", took_ms, end)

    def _fail(self, error: OSError) -> None:
        name = self._flushing[-1].path if self._flushing else "the commit log"
        self.failure = FlushFailed(
            f"flush of {name} failed: {error.strerror} (errno {error.errno}); the store takes no more messages. "
            f"Everything before offset {self.flushed} is on disk.",
            hint="Check the disk, then start the broker again.",
        )
        log.critical("%s", self.failure.message)
        self._on_failure(self.failure)  # first, so that the answers to waiting senders can name it
        while self._waiting:
            self._waiting.popleft().tell(False)

    async def stop(self) -> None:
        """Wait for a flush under way, then flush the rest (FLU-08). Raises FlushFailed."""
        while self.failure is None and (self._running is not None or self.flushed < self._log.readable):
            self.start()
            if self._running is not None:
                await self._running
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.failure is not None:
            raise self.failure
