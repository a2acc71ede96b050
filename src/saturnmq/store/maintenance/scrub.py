"""Background scrub of a commit log: checks each durable record slowly, so that damage is found while other copies still exist.

What is damaged is logged and counted; nothing is changed. A record is read into the page cache in a thread and checked on the event
loop in short slices, so a slow disk delays nothing else. The pace is that of the scrub of a ledger (`raft/ledger/scrub.py`),
which repairs from its group. In a DLedger group this one covers the old commit log.

Requirements: DUR-08, DUR-10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.cold import RECENT_BYTES
from saturnmq.store.log.commit_log import SIZE_AND_MAGIC
from saturnmq.store.log.log import Record
from saturnmq.store.recovery.recover import Scan, good_records
from saturnmq.store.state import StoreState

log = logging.getLogger(__name__)

STEP_MS: Final = 100
STEP_BYTES_MIN: Final = 8192
FIRST_PASS_AFTER_MS: Final = 60_000  # recovery has just checked the last files
NEXT_PASS_AFTER_MS: Final = 3_600_000
SLICE_SECONDS: Final = 0.001  # checks of one event-loop iteration, except that one record is one check
FINDS_MAX: Final = 1000  # damaged places that are logged and counted until the next start
_DAY_MS: Final = 86_400_000
_READ_BYTES_MIN: Final = 65_536
_READ_BYTES_MAX: Final = 64 << 20  # a longer record is not read ahead as a whole

Sleep = Callable[[float], Awaitable[bool]]
"""Waits some seconds; true if the store stops."""


def step_bytes(span_bytes: int, days: int, elapsed_ms: float = STEP_MS) -> int:
    """Bytes to check after elapsed_ms, so that a log of span_bytes takes `days`."""
    # At least a few records per step, however small the log is.
    return max(int(span_bytes * elapsed_ms) // (max(days, 1) * _DAY_MS), STEP_BYTES_MIN)


class LogScrub:
    """damaged: number of damaged records since the start. passes: how often the whole log was checked."""

    def __init__(self, store: StoreState) -> None:
        self.damaged = self.passes = 0
        self._store = store
        self._at = PhysicalOffset(0)
        self._read_end = 0  # the page cache has the records between `_at` and here
        self._reported: set[PhysicalOffset] = set()

    async def run(self, sleep: Sleep) -> None:
        """Check the log again and again, until the store stops or fails."""
        pause_ms = FIRST_PASS_AFTER_MS
        while self._store.settings.scrub_days > 0 and not await sleep(pause_ms / 1000):
            if not await self._pass(sleep):
                return
            pause_ms = NEXT_PASS_AFTER_MS

    async def _pass(self, sleep: Sleep) -> bool:
        """Check the log once; False if the store stops or has failed."""
        loop, store = asyncio.get_running_loop(), self._store
        self._at, last = store.log.first_position, loop.time()
        while store.failure is None:
            # The end was reached: this pass is complete.
            if self._at >= self._limit:
                self.passes += 1
                return True
            if await sleep(STEP_MS / 1000):
                return False
            now = loop.time()
            span = self._limit - store.log.first_position
            await self._step(step_bytes(span, store.settings.scrub_days, (now - last) * 1000))
            last = now
        return False

    @property
    def _limit(self) -> int:
        """The end of the durable records in files that are not a ledger's."""
        commit_log = self._store.log
        end = commit_log.files[-1].end if commit_log.files else 0
        # Unflushed or uncommitted bytes may still change.
        return min(end, commit_log.confirmed_end, commit_log.readable_end)

    async def _step(self, size_bytes: int) -> None:
        """Check the records of the next size_bytes."""
        commit_log = self._store.log
        self._at = PhysicalOffset(max(self._at, commit_log.first_position))  # retention may have deleted files
        stop = self._at + size_bytes
        while self._at < min(stop, self._limit):
            file = commit_log.file_at(self._at)
            # Touching a truncated mapping ends the process.
            if file is None or file.cut:
                return  # the store stops for it
            missing = self._slice(stop)
            if missing:
                end = min(self._at + max(missing, _READ_BYTES_MIN), file.end)
                extent = self._at - file.start, end - self._at
                # The newest part is in the page cache for certain.
                if self._at < commit_log.end - RECENT_BYTES and not file.is_cached(*extent):
                    threads = self._store.disk.read_threads
                    await asyncio.get_running_loop().run_in_executor(threads, file.warm, *extent)
                self._read_end = end
            else:
                await asyncio.sleep(0)

    def _slice(self, stop: int) -> int:
        """Check records for a short time; the bytes that must be read before the next one, 0 if none."""
        began = perf_counter()
        while self._at < min(stop, self._limit) and perf_counter() - began < SLICE_SECONDS:
            # Not read yet: the caller reads it in a thread.
            if self._at + SIZE_AND_MAGIC.size > self._read_end:
                return SIZE_AND_MAGIC.size
            head = self._store.log.record_at(self._at)
            # The files here were deleted meanwhile; go on at the end.
            if head is None:
                self._at = PhysicalOffset(self._limit)
                return 0
            if self._read_end < self._at + head.size <= self._at + _READ_BYTES_MAX and self._ends_in_file(head):
                return head.size
            self._check(head)
        return 0

    def _ends_in_file(self, head: Record) -> bool:
        return self._at + head.size <= self._store.log.next_file_start(self._at)

    def _check(self, head: Record) -> None:
        """Check the record at the current position and go to the next one."""
        commit_log, at = self._store.log, self._at
        following = commit_log.next_file_start(at)
        # The filler at the end of a file.
        if head == Record(following - at, BLANK_MAGIC):
            self._at = following
            return
        scan = Scan(at)
        message = next(good_records(commit_log, at, scan, check_crc=True), None)
        if message is not None:
            self._at = PhysicalOffset(at + message.store_bytes)
            return
        # Each place once: every pass would report it again.
        if at not in self._reported and self.damaged < FINDS_MAX:
            self._reported.add(at)
            self.damaged += 1
            file = commit_log.file_at(at)
            log.error(
                "damaged record found path=%s byte=%s offset=%s reason=%s",
                file.path if file is not None else "", at - following + commit_log.file_bytes, at, scan.stopped_by,
            )  # fmt: skip
        after = PhysicalOffset(at + head.size)
        # Its size leads to another record: damage in the content only. Otherwise go on with the next file.
        sound = (
            head.magic == MESSAGE_MAGIC and head.size >= RECORD_FIXED_BYTES and after + SIZE_AND_MAGIC.size <= following
        )
        begins = commit_log.record_at(after) if sound else None
        self._at = after if begins is not None and begins.magic in (MESSAGE_MAGIC, BLANK_MAGIC) else following
