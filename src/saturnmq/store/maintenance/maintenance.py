"""Periodic work of an open store: flush the log, write queues and index, write the checkpoint, delete expired files.

One task does all of it, and another one the scrub. Disk calls run in threads, decisions on the event loop.

Requirements: FLU-06, FLU-07, FLU-09, FLU-10, MF-09, DEL-01..DEL-09, DUR-08, DUR-13.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from saturnmq.protocol.errors import DiskFull, FlushFailed, OutOfDescriptors, StoreError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.mapped_file import PAGE_BYTES
from saturnmq.store.index.index_queue import IndexQueue
from saturnmq.store.index.message_index import IndexFlush, MessageIndex, Synced
from saturnmq.store.log.log import wait_confirmed
from saturnmq.store.maintenance.clock_watch import ClockWatch
from saturnmq.store.maintenance.retention import MANUAL_RUNS, Policy, decide
from saturnmq.store.maintenance.scrub import LogScrub
from saturnmq.store.recovery.checkpoint import BOUNDARY_BYTES, Note
from saturnmq.store.settings import delete_hours
from saturnmq.store.state import StoreState
from saturnmq.tasks import supervised

log = logging.getLogger(__name__)

NOTE_BYTES: Final = 256 << 20  # upper bound for the log that is dispatched again after a crash
VERIFY_BYTES: Final = 64 << 20  # amount of log that is read and verified at every start
_FORGET_BYTES: Final = 32 << 20
_CLEAN_FIRST_S: Final = 60.0
_RECHECK_S: Final = 1.0
_LOOK_S: Final = 0.5
_PAUSE_FIRST_S: Final = 0.5
_PAUSE_MAX_S: Final = 8.0
_INDEX_LOSSES_MAX: Final = 2  # a disk that fails more often takes no messages
FLUSH_TIMEOUT_MS: Final = 600_000


class Maintenance:
    """The maintenance of one store. scrub: checks its whole log slowly."""

    def __init__(self, store: StoreState) -> None:
        self._store = store
        self.scrub = LogScrub(store)
        self._task: asyncio.Task[None] | None = None
        self._scrub_task: asyncio.Task[None] | None = None
        self._boundaries: deque[PhysicalOffset] = deque()
        self._manual_runs = 0
        self._released_end = 0
        self._first = -1  # where the log began at the last run of retention
        self._writing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._index_losses = 0
        self._pause_s = 0.0  # between two writes while no descriptor is free; 0 while there are some
        self._next_file = 0.0  # loop time before which no commit log file is preallocated
        self._resume = 0.0  # loop time before which no write is tried
        self._clock = ClockWatch(store.settings.file_reserved_hours * 3_600_000)

    @property
    def _policy(self) -> Policy:
        settings = self._store.settings
        return Policy(
            delete_hours(settings.delete_when),
            settings.file_reserved_hours * 3_600_000,
            settings.disk_percent_max,
            settings.clean_forcibly,
        )

    @property
    def running(self) -> bool:
        """Whether the maintenance task runs, which implies a running event loop."""
        return self._task is not None

    def start(self) -> None:
        # Now that there is a loop, in steps.
        self._store.put_in_index()  # what recovery has left
        self._task = supervised(self._run(), "store maintenance", self._failed)
        self._scrub_task = supervised(self.scrub.run(self._sleep), "log scrub")

    async def stop(self) -> None:
        """Stop the tasks after their current step: nothing is left running in a thread that is not awaited."""
        self._stopping.set()
        if self._task is not None and self._scrub_task is not None:
            # Not cancelled: a cancelled await would leave its thread running on files that are closed next.
            await asyncio.gather(self._task, self._scrub_task, return_exceptions=True)
            self._task = self._scrub_task = None

    def arm(self) -> None:
        """Let the next runs delete expired files at any hour (DEL-08)."""
        self._manual_runs = MANUAL_RUNS

    # ---- rounds

    def _failed(self, error: BaseException) -> None:
        """Stop accepting messages, because they would never be flushed."""
        self._store.stop_writing(StoreError(f"the store's maintenance failed: {type(error).__name__}: {error}"))

    async def _run(self) -> None:
        settings, commit_log = self._store.settings, self._store.log
        loop = asyncio.get_running_loop()
        # With the transient pool the shorter of both intervals counts.
        tick_s = min(settings.flush_interval_ms, settings.commit_interval_ms if commit_log.pooled else 2**31) / 1000
        now = loop.time()
        last_flush = last_log = last_queue = last_note = last_check = last_look = now
        checked = False
        # The first run of Apache RocketMQ is a minute after the start, too.
        next_clean = now + min(_CLEAN_FIRST_S, settings.clean_interval_ms / 1000)
        while not await self._sleep(tick_s):
            now = loop.time()
            if now - last_look >= _LOOK_S:
                last_look = now
                self._look_for_cut_files()
            # Every round: bytes in the pool cannot be read before.
            self._store.commit()
            if (now - last_flush) * 1000 >= settings.flush_interval_ms:
                last_flush = now
                thorough = (now - last_log) * 1000 >= settings.flush_thorough_ms
                if thorough or commit_log.flush_due(settings.flush_least_pages):
                    # Not awaited: the loop goes on while the disk works.
                    commit_log.start_flush()
                    last_log = now
            await self._prepare_file()
            if (now - last_note) * 1000 >= settings.flush_queue_thorough_ms or self._far_from_note():
                last_note = last_queue = now
                await self._guarded(0)
            elif (now - last_queue) * 1000 >= settings.flush_queue_interval_ms:
                last_queue = now
                await self._guarded(settings.flush_queue_least_pages * PAGE_BYTES)
            # Once after the start, and while messages are rejected: they must be accepted soon after space returns.
            if (self._store.refusal or not checked) and now - last_check >= _RECHECK_S:
                last_check, checked = now, True
                self._store.recheck(await self._store.disk.in_thread(self._store.disk_usage))
            if now >= next_clean:
                next_clean = now + settings.clean_interval_ms / 1000
                await self.clean()

    async def _sleep(self, seconds: float) -> bool:
        """Wait for the next round; True if the task is to stop."""
        with contextlib.suppress(TimeoutError):
            # Ends at once when the store stops.
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _look_for_cut_files(self) -> None:
        """Stop the store if someone has truncated a mapped file: the next append or read there would end the process (DUR-04)."""
        store = self._store
        cut = store.log.cut_file if store.failure is None else ""
        if cut:
            log.critical("log file truncated while in use reason=%s", cut)
            store.stop_writing(FlushFailed(cut, hint="Stop the broker and restore the file from a copy."))

    def _far_from_note(self) -> bool:
        note = self._store.checkpoint.note
        return note is not None and self._store.dispatched - note.dispatched > NOTE_BYTES

    async def _prepare_file(self) -> None:
        """Preallocate the next commit log file (MF-09) and release resident pages."""
        store = self._store
        if store.failure is None:
            try:
                if asyncio.get_running_loop().time() >= self._next_file:
                    await store.log.preallocate()
            except StoreError as error:
                self._next_file = asyncio.get_running_loop().time() + _PAUSE_MAX_S
                log.warning("preallocation of the next commit log file failed reason=%s", error)
        # By log written, not by time: an idle store does nothing.
        end = store.log.end
        if end - self._released_end >= _FORGET_BYTES:
            self._released_end = end
            store.log.forget_pages(store.log.confirmed_end)
            if store.index is not None:
                store.index.trim()
        # Candidates for `verify_from` of the checkpoint, which must be the start of a record.
        if not self._boundaries or end - self._boundaries[-1] >= BOUNDARY_BYTES:
            self._boundaries.append(end)

    async def _guarded(self, least_bytes: int) -> None:
        """Write queues with least_bytes pending, 0: everything.

        A full disk and missing descriptors are retried, any other failure is final.
        """
        store = self._store
        # In the pause after descriptors ran out nothing is tried.
        if store.failure is not None or asyncio.get_running_loop().time() < self._resume:
            return
        try:
            if least_bytes:
                await self._write_queues(least_bytes)
            else:
                await self.write_all()
            self._pause_s = 0.0
        except (OSError, StoreError) as error:
            if isinstance(error, OutOfDescriptors):
                self._out_of_descriptors(error)
            elif isinstance(error, DiskFull) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                log.error("no space for consume queues or index, write retried reason=%s", error)
                store.refusal = f"the disk is full: {error}"
            elif isinstance(error, FlushFailed):
                store.stop_writing(error)
            else:
                store.stop_writing(FlushFailed(f"writing of consume queues failed: {error}"))

    def _out_of_descriptors(self, error: OutOfDescriptors) -> None:
        """Write again after a pause that grows; messages are rejected once too much of the log would be dispatched again."""
        self._pause_s = min(self._pause_s * 2 or _PAUSE_FIRST_S, _PAUSE_MAX_S)
        self._resume = asyncio.get_running_loop().time() + self._pause_s
        log.error("no descriptor for store files, write retried pause_ms=%d reason=%s", self._pause_s * 1000, error)
        # Not at once: until then a crash only costs a longer start.
        if self._far_from_note():
            self._store.refusal = f"the store's files cannot be opened: {error}"

    async def _write_queues(self, least_bytes: int) -> None:
        store = self._store
        # One writer at a time: `write_all` can be called from outside.
        async with self._writing:
            todo = store.queues.round(least_bytes)
            if not todo.queues:
                return
            try:
                await store.disk.in_thread(todo.write, store.disk, store.queues.list_file)
            except BaseException:
                # Whatever the cause: units that were not written have to be written later.
                store.queues.restore_dirty(todo)
                raise
            todo.finish()

    async def write_all(self) -> None:
        """Make log, queues and index durable, then write the checkpoint. Raises OSError, StoreError."""
        store = self._store
        async with self._writing:
            # Before the snapshot of the queues: they may only have more.
            dispatched, stored_ms = store.dispatched, store.last_store_ms
            todo = store.queues.round(0)
            try:
                # The checkpoint must not call queues durable whose records are not.
                if store.log.confirmed_end < dispatched:
                    await wait_confirmed(store.log, dispatched, FLUSH_TIMEOUT_MS)
                    if store.log.failure is not None:
                        raise store.log.failure
                await store.disk.in_thread(todo.write, store.disk, store.queues.list_file)
            except BaseException:
                store.queues.restore_dirty(todo)
                raise
            todo.finish()
            await self._flush_index(dispatched)
            checkpoint = store.checkpoint
            checkpoint.commit_log_ms = checkpoint.consume_queue_ms = stored_ms
            note = self.note(dispatched)
            await store.disk.in_thread(checkpoint.write, note)
            if store.log.sums is not None:
                # After the checkpoint is durable: it now proves what these checksums did.
                await store.disk.in_thread(store.log.sums.forget, note.log_synced)

    async def _flush_index(self, dispatched: PhysicalOffset) -> None:
        store = self._store
        index, waiting = store.index, store.index_queue
        if index is None or waiting is None:
            return
        store.put_in_index()
        # Only what is in the index counts, not what waits for it.
        flush = index.begin_flush(waiting.covered(dispatched))
        if flush is not None:
            try:
                await store.disk.in_thread(flush.run)
            # Nothing was synced: the same flush is tried again.
            except OutOfDescriptors:
                index.retry_flush(flush)
                raise
            except OSError as error:
                self._index_lost(index, waiting, flush, error)
            else:
                index.end_flush(flush)
        # By full files only, as in Apache RocketMQ.
        self._store.checkpoint.index_ms = max(self._store.checkpoint.index_ms, index.sealed_ms)

    def _index_lost(self, index: MessageIndex, waiting: IndexQueue, flush: IndexFlush, error: OSError) -> None:
        """A failed sync is final for index files: they are rebuilt from the log. Raises FlushFailed if it happens repeatedly."""
        self._index_losses += 1
        names, reason = [file.path.name for file in flush.files], f"{error.strerror} (errno {error.errno})"
        begin = index.discard(flush)
        log.critical("index sync failed, files dropped and rebuilt files=%s offset=%s reason=%s", names, begin, reason)
        if self._index_losses > _INDEX_LOSSES_MAX:
            raise FlushFailed(
                f"sync of the index files in {index.folder} failed {self._index_losses} times: {reason}",
                hint="Check the disk, then start the broker again.",
            )
        # In the background, from the log.
        waiting.rebuild(begin)

    def note(self, dispatched: PhysicalOffset) -> Note:
        """The note for the checkpoint if everything before `dispatched` is durable."""
        store = self._store
        synced = store.log.confirmed_end
        # The newest boundary that is far enough from the end stays first.
        while len(self._boundaries) > 1 and self._boundaries[1] <= synced - VERIFY_BYTES:
            self._boundaries.popleft()
        verify = self._boundaries[0] if self._boundaries else synced
        index = store.index.synced if store.index is not None else None
        index_synced = index or Synced(0, 0, 0, dispatched)
        return Note(
            synced,
            # Changes of topics in a group's log need replay as well.
            store.replay_from(dispatched),
            index_synced.offset,
            index_synced.file,
            index_synced.entries,
            min(verify, synced),
            index_synced.end_ms,
        )

    def begin_at(self, boundaries: Sequence[PhysicalOffset]) -> None:
        """Start from an opened store; records begin at these offsets."""
        self._boundaries.extend(boundaries)
        self._released_end = self._store.log.end

    # ---- retention

    async def clean(self, *, trust_clock: bool = False) -> None:
        """One run of retention (DEL-01..09, DL-S09, DL-U03). trust_clock: even right after the clock jumped."""
        store, commit_log = self._store, self._store.log
        usage = await store.disk.in_thread(store.disk_usage)
        modified = await store.disk.in_thread(self._modified_ms)
        if any(self._queues_reach() < file.end <= commit_log.confirmed_end for file in commit_log.files):
            await self._guarded(0)
        running_ms = int(asyncio.get_running_loop().time() * 1000)
        expiry_ms = self._clock.now_for_expiry(
            store.clock_ms(), running_ms, max([*modified, store.last_store_ms or -1])
        )
        decision = decide(
            self._policy,
            usage,
            hour=time.localtime(store.clock_ms() / 1000).tm_hour,
            manual=self._manual_runs > 0,
            modified_ms=modified,
            # An operator's request overrides the pause after a jump of the clock.
            now_ms=store.clock_ms() if self._manual_runs or trust_clock else expiry_ms,
            written_files=commit_log.expendable(min(commit_log.confirmed_end, self._queues_reach())),
        )
        # The whole log is the ledger's: its own retention is asked.
        if self._manual_runs and not commit_log.files:
            commit_log.expire(usage.commit_log)
        self._manual_runs = max(0, self._manual_runs - 1)
        for number in range(decision.delete):
            if number:
                # Deleting a file of a gigabyte blocks the file system for a while.
                await asyncio.sleep(store.settings.delete_pause_ms / 1000)
            await commit_log.truncate_front(decision.reason)
        if commit_log.first_position != self._first:
            self._first = commit_log.first_position
            await self._delete_behind()
        # Measured again only if something was deleted.
        store.recheck(await store.disk.in_thread(store.disk_usage) if decision.delete else usage)
        if not store.refusal:
            await store.disk.in_thread(store.reserve.allocate)

    def _queues_reach(self) -> PhysicalOffset:
        """Nothing before this offset is dispatched again after a crash, so the queues do not need that part of the log."""
        note = self._store.checkpoint.note
        return note.dispatched if note is not None else PhysicalOffset(0)

    def _modified_ms(self) -> list[int]:
        times_ms = []
        for file in list(self._store.log.files):
            with contextlib.suppress(FileNotFoundError):
                times_ms.append(file.path.stat().st_mtime_ns // 1_000_000)
        return times_ms

    async def _delete_behind(self) -> None:
        """Delete what consume queues and index hold for deleted parts of the log (DEL-09)."""
        store = self._store
        start = store.log.first_position
        for queue in list(store.queues.by_key.values()):
            if queue.delete_before(start):
                await asyncio.sleep(store.settings.delete_queue_pause_ms / 1000)
        if store.index is not None:
            store.index.delete_before(start)
