"""Flushing of the commit log: in the background, or as group commit before the response.

fdatasync runs in a thread of the disk, one at a time; the event loop never blocks on it. A failed flush is final and
never retried (DUR-06), because Linux reports a write-back error only once per descriptor.

Requirements: FLU-01..FLU-08, DUR-01, DUR-05, DUR-06.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from saturnmq.metrics import Histogram
from saturnmq.protocol.errors import FlushFailed
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import PAGE_BYTES, MappedFile
from saturnmq.store.files.record_sums import RecordSums
from saturnmq.store.log.waiter import Waiter
from saturnmq.store.results import Confirmed, PutStatus
from saturnmq.tasks import supervised

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.5


class FlushedLog(Protocol):
    """The log that is flushed."""

    file_bytes: int
    sums: RecordSums | None

    @property
    def readable_end(self) -> PhysicalOffset: ...

    def dirty_files(self, flushed: PhysicalOffset) -> list[MappedFile]: ...


def _no_listener(*_: object) -> None:
    """Before the log is given to a store, no listener is notified."""


class Flusher:
    """Advances `flushed` (every byte before it is durable) towards the end of the log.

    on_flushed is called on the loop with the new value before the waiters it covers; on_failure before the waiters fail.
    slow_count and slowest_ms describe flushes longer than half a second.
    """

    def __init__(self, source: FlushedLog, disk: Disk) -> None:
        self._log = source
        self._disk = disk
        self.on_flushed: Callable[[PhysicalOffset], object] = _no_listener
        self.on_failure: Callable[[FlushFailed], object] = _no_listener
        self._waiting: deque[Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._requested_end = PhysicalOffset(0)  # largest offset that a caller has waited for
        # The last file of the last flush, for the text of a failure. The file itself would keep its mapping alive.
        self._flushing: Path | None = None
        self._again = False  # a flush was requested while one was running
        self._running: asyncio.Task[None] | None = None
        self.flushed = PhysicalOffset(0)
        self.failure: FlushFailed | None = None
        self.count = self.slow_count = self.slowest_ms = 0
        self.seconds = Histogram()  # of the flushes of all dirty files together

    def dirty_pages(self) -> int:
        """Number of pages written since the last flush (MF-03)."""
        # Whole pages, as flushCommitLogLeastPages counts.
        return self._log.readable_end // PAGE_BYTES - self.flushed // PAGE_BYTES

    def is_due(self, least_pages: int) -> bool:
        """Whether a background flush is due: a file is full, or least_pages pages are dirty; with 0, any byte (MF-03)."""
        end, file_bytes = self._log.readable_end, self._log.file_bytes
        if end == self.flushed:
            return False
        # A full file is flushed at once, as in Apache RocketMQ (MF-03).
        return end // file_bytes > self.flushed // file_bytes or self.dirty_pages() >= least_pages

    def when_flushed(self, end: PhysicalOffset, timeout_ms: int, callback: Confirmed) -> None:
        """See `Log.when_confirmed`: every byte before end is durable. Many waiters share one fdatasync (FLU-01)."""
        if self.flushed >= end:
            callback(PutStatus.PUT_OK, "")
            return
        # The failure is reported by `on_failure`, with its reason.
        if self.failure is not None:
            callback(PutStatus.UNKNOWN_ERROR, "")
            return
        waiter = Waiter(end, asyncio.get_running_loop().time() + timeout_ms / 1000, callback)
        self._waiting.append(waiter)
        self._requested_end = max(self._requested_end, end)
        # One timer for all, set to the earliest deadline; deadlines differ, because timeouts do.
        if self._timer is None or waiter.deadline < self._timer.when():
            self._set_timer(waiter.deadline)
        # Else the running flush sees `_requested_end` and goes on.
        if self._running is None:
            self.start()

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._too_late)

    def _too_late(self) -> None:
        """Notify waiters whose deadline has passed. Those are few: a waiter flushed in time is notified by the flush."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for waiter in self._waiting:
            if waiter.deadline <= now:
                waiter.complete(PutStatus.FLUSH_DISK_TIMEOUT)
        self._waiting = deque(waiter for waiter in self._waiting if not waiter.completed)
        if self._waiting:
            self._set_timer(min(waiter.deadline for waiter in self._waiting))

    def start(self) -> None:
        """Start a flush, or another one as soon as the running one completes."""
        # A running flush may have taken its snapshot before this request.
        self._again = True
        if self._running is None and self.failure is None and self.flushed < self._log.readable_end:
            self._running = supervised(self._run(), "flush", self._fail)

    def committed(self) -> None:
        """Flush the bytes that the transient pool has committed to the files, if there are waiters (FLU-07)."""
        if self._waiting:
            self.start()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.failure is None:
                self._again = False
                try:
                    await self._disk.in_thread(self._flush_while_waited_for, loop)
                except Exception as error:
                    self._fail(error)
                    return
                # With the transient pool a waiter's bytes may not be in the file yet; `committed` starts the next flush then.
                waited_for = bool(self._waiting) and self._waiting[0].end <= self._log.readable_end
                if not waited_for and not (self._again and self.flushed < self._log.readable_end):
                    return
        finally:
            self._running = None

    def _flush_while_waited_for(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: flush repeatedly while waiters need more, without returning to the event loop. Raises OSError."""
        # A local copy: the loop moves `self.flushed` later.
        flushed = self.flushed
        while True:
            # Taken before the files, so that every byte before it is in one of them.
            end = self._log.readable_end
            files = self._log.dirty_files(flushed)
            self._flushing = files[-1].path if files else None
            for file in files:
                # Unmaps the dirty pages at once; the kernel would write-protect them one by one.
                file.before_flush(flushed, end)
            before = time.monotonic()
            for file in files:
                file.flush()
            if self._log.sums is not None:
                # After the data is on disk: a checksum of a record that is not would report it as damaged.
                self._log.sums.write(end, end)
            # The waiters are on the loop, and so is `flushed`.
            loop.call_soon_threadsafe(self._flush_ended, end, time.monotonic() - before)
            flushed = end
            if self._requested_end <= end or self._log.readable_end <= end:
                return

    def _flush_ended(self, end: PhysicalOffset, took: float) -> None:
        """On the loop: everything before end is on disk. took: seconds."""
        self.seconds.observe(took)
        self._note_time(int(took * 1000), end)
        # `set_confirmed` may have moved it further.
        self.flushed = max(self.flushed, end)
        try:
            # Before the waiters: a sender that is acknowledged must find its message visible.
            self.on_flushed(self.flushed)
        except Exception as error:
            log.critical("dispatch of flushed messages failed end=%s", end, exc_info=error)
            self._fail(error)
        while self._waiting and self._waiting[0].end <= end:
            self._waiting.popleft().complete(PutStatus.PUT_OK)

    def _note_time(self, took_ms: int, end: PhysicalOffset) -> None:
        self.count += 1
        self.slowest_ms = max(self.slowest_ms, took_ms)
        if took_ms > _SLOW_SECONDS * 1000:
            self.slow_count += 1
            log.warning("slow flush elapsed_ms=%s end=%s", took_ms, end)

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None:
            return
        name = self._flushing or "the commit log"
        reason = f"{error.strerror} (errno {error.errno})" if isinstance(error, OSError) else repr(error)
        self.failure = FlushFailed(
            f"flush of {name} failed: {reason}; the store accepts no more messages. "
            f"Everything before offset {self.flushed} is on disk.",
            hint="Check the disk, then start the broker again.",
        )
        log.critical("flush failed reason=%s", self.failure.message)
        self.on_failure(self.failure)  # before the waiters, so that their error responses can name the cause
        while self._waiting:
            self._waiting.popleft().complete(PutStatus.UNKNOWN_ERROR)

    async def finish(self) -> None:
        """Wait for a running flush; what it does not cover is left unflushed."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def stop(self) -> None:
        """Wait for a running flush, then flush the rest (FLU-08). Raises FlushFailed."""
        # More may have been appended while a flush ran.
        while self.failure is None and (self._running is not None or self.flushed < self._log.readable_end):
            self.start()
            await self.finish()
        # After a failed dispatch a thread may still be flushing files that the caller is about to close.
        await self.finish()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.failure is not None:
            raise self.failure
