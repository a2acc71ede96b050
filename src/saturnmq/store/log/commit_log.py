"""The commit log: one append-only sequence of records for all topics, in mapped files of equal length.

Owned by the event loop's thread; only `make_spare`, `dirty_files` and the flush of a file are safe in a thread. Offsets are
bytes from the start of the whole log. A record never spans two files (ST-12). The record layout is in protocol/message.py.

Requirements: ST-01, ST-02, ST-10..ST-12, ST-18..ST-20, MF-02, MF-04, MF-09, MF-11.
"""

# End-of-file filler (docs/spec/02 section 15, ST-12): size and magic as a record's, the bytes left in the file and 0xCBD43194.

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from saturnmq.metrics import Histogram
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import CorruptRecord, FlushFailed, LocalProtocolError, StoreError
from saturnmq.protocol.message import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    STORE_TIMESTAMP_END_MAX,
    encode_records,
    head_struct,
    store_timestamp_of,
)
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, PhysicalOffset
from saturnmq.store.files import capacity
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile, MappedFiles
from saturnmq.store.files.record_sums import RecordSums, Sum
from saturnmq.store.log.flush import Flusher
from saturnmq.store.log.log import AppendRefused, Extent, Group, Record, Space
from saturnmq.store.results import Answer, Confirmed, PutStatus
from saturnmq.store.settings import StoreSettings

log = logging.getLogger(__name__)

SIZE_AND_MAGIC: Final = head_struct("total_size", "magic")  # the filler has no more
END_BLANK_BYTES: Final = SIZE_AND_MAGIC.size  # every file keeps space for the filler
_CUT_HINT: Final = "Stop the broker and restore the file from a copy."
_ZERO_STEP: Final = 1 << 16
_ZEROS: Final = bytes(_ZERO_STEP)
_SPARE_AT_PERCENT: Final = 80  # the next file is created when the current one is this full
_RESIDENT_BYTES: Final = 32 << 20  # bytes before the flushed offset that stay resident in the current file


class CommitLog:
    """The `Log` of a store without replication: appends records and returns slices of them.

    end: offset of the next record. readable_end: every byte before it may be read; it is less than `end` only while the transient
    pool holds bytes that are not committed to the file yet (MF-02).
    """

    refusal = ""
    quorum = False

    def __init__(
        self,
        folders: Sequence[Path],
        file_bytes: int,
        disk: Disk,
        *,
        pool_size: int = 0,
        full: Callable[[Path], bool] = bool,
        sums: RecordSums | None = None,
        read_only: Sequence[Path] = (),
    ) -> None:
        """full: whether a folder gets no new files. read_only: folders whose files belong to the log, but that get no new ones."""
        self._disk = disk
        # A folder may be listed both as writable and as read-only.
        self._files = MappedFiles(list(dict.fromkeys([*folders, *read_only])), file_bytes, disk)
        self._folders = tuple(folders)
        self._growing = sorted(set(folders) - set(read_only))
        self._read_only = read_only
        self._full = full
        self._current: MappedFile | None = None
        self._spare: MappedFile | None = None
        # Anonymous memory of a file's size: appends do not touch the page cache until they are committed.
        self._pool = [mmap.mmap(-1, file_bytes) for _ in range(pool_size)]
        self.pooled = pool_size > 0
        self.file_bytes = file_bytes
        self.end = self.committed = PhysicalOffset(0)
        self.sums = sums
        self._add_sum = sums.add if sums is not None else None
        self.flusher = Flusher(self, disk)

    @property
    def folders(self) -> tuple[Path, ...]:
        """See `Log.folders`."""
        return self._folders

    @property
    def files(self) -> list[MappedFile]:
        return self._files.files

    @property
    def first_position(self) -> PhysicalOffset:
        """Offset of the first byte that is still stored; -1 without files (ST-19)."""
        files = self._files.files
        return PhysicalOffset(files[0].start) if files else NO_PHYSICAL_OFFSET

    @property
    def readable_end(self) -> PhysicalOffset:
        return self.committed if self.pooled else self.end

    @property
    def free_buffers(self) -> int:
        """Buffers left in the transient pool (MF-13)."""
        return len(self._pool)

    def load(self) -> None:
        """Map the existing files. Raises CorruptRecord, StoreError."""
        for folder in self._read_only:
            # A missing mount looks like an empty folder, and the log would begin later without an error.
            if not folder.is_dir():
                raise StoreError(
                    f"{folder} of readOnlyCommitLogStorePaths is not a folder: the messages in its files would be missing",
                    hint="Mount it, or remove it from readOnlyCommitLogStorePaths.",
                )
        self._files.load()
        # Until recovery has found the end, it counts as full.
        self.end = self.committed = PhysicalOffset(self.files[-1].end if self.files else 0)
        self._current = None

    def set_end(self, end: PhysicalOffset) -> int:
        """Truncate the log to end: delete later files and zero the rest of the last one (RC-10).

        Returns how many bytes were zeroed. Without that, an old record behind a corrupt one could be taken for a valid record
        after the next crash.
        """
        self._files.truncate(end)
        self.end = self.committed = end
        # None if the log ends with its last file: the next append makes another.
        self._current = self._files.find(end) if self.files else None
        zeroed = 0
        if self._current is not None:
            file = self._current
            for at in range(end - file.start, file.size_bytes, _ZERO_STEP):
                step = min(_ZERO_STEP, file.size_bytes - at)
                if file.map[at : at + step] != _ZEROS[:step]:  # a copy: comparing a view goes byte by byte
                    file.map[at : at + step] = _ZEROS[:step]
                    zeroed += step
            file.forget_pages(file.end)
        return zeroed

    # ---- writing

    def file_for(self, size: int) -> MappedFile:
        """The file for the next record of size bytes; rolls to a new file if the current one has no space for it (ST-12).

        Raises DiskFull, StoreError; also StoreError if the record is larger than a file.
        """
        file = self._current
        # Every file keeps space for the filler, by which readers find the end of its records (ST-12).
        if file is not None and size + END_BLANK_BYTES <= file.end - self.end:
            return file
        if size + END_BLANK_BYTES > self.file_bytes:
            raise StoreError(f"a record of {size} bytes does not fit a commit log file of {self.file_bytes} bytes")
        if file is not None and self.end < file.end:
            free_bytes = file.end - self.end
            # Made before the filler is written: if the disk is full, the current file stays as it is.
            following = self._next(file.end)
            # Fewer than 8 bytes left: readers go to the next file without a filler.
            if free_bytes >= END_BLANK_BYTES:
                at = self.end - file.start
                file.target[at : at + END_BLANK_BYTES] = SIZE_AND_MAGIC.pack(free_bytes, BLANK_MAGIC)
            self.end = PhysicalOffset(file.end)
        else:
            following = self._next(self.end)
        self._current = following
        return following

    def _next(self, start: int) -> MappedFile:
        file = self._files.find(start)
        if file is None:
            file, self._spare = self._spare, None
            # The log was truncated, or begun elsewhere, since the file was created.
            if file is not None and file.start != start:
                file.delete()
                file = None
            if file is None:
                file = self._files.make(start, self._folder_for(start))
            self.files.append(file)
        if self.pooled:
            # The flush is behind: the caller gets an error, not memory without bound.
            if not self._pool:
                raise StoreError("the transient pool has no buffer left (transientStorePoolSize); the disk is too slow")
            file.target = self._pool.pop()
        return file

    def _folder_for(self, start: int) -> Path:
        """Distribute files round-robin over the folders that are not full, or if all are over all but read-only ones (ST-20)."""
        # Full folders are better than no new file.
        usable = [folder for folder in self._growing if not self._full(folder)] or self._growing
        return usable[start // self.file_bytes % len(usable)]

    @property
    def wants_spare(self) -> bool:
        """Whether the current file is full enough that the next one should be created in a thread (MF-09)."""
        file = self._current
        return (
            file is not None
            and self._spare is None
            # Not if a next file exists already: the current one is not the last after a truncation.
            and file is self.files[-1]
            and self.end - file.start > self.file_bytes * _SPARE_AT_PERCENT // 100
        )

    async def preallocate(self) -> None:
        """See `Log.preallocate`."""
        if self.wants_spare:
            self.keep_spare(await self._disk.in_thread(self.make_spare))

    def make_spare(self) -> MappedFile:
        """Create the file after the last one, to be passed to `keep_spare`. Safe in a thread. Raises DiskFull, StoreError."""
        start = self.files[-1].end
        return self._files.make(start, self._folder_for(start))

    def keep_spare(self, file: MappedFile) -> None:
        """Keep a preallocated file for the next roll; close it if the log has rolled meanwhile and mapped that file itself."""
        if self._spare is None and self.files and file.start == self.files[-1].end:
            self._spare = file
        else:
            file.close()

    def commit(self) -> int:
        """Copy the pool's buffers into the files (MF-04), and flush them if there are waiters (FLU-07).

        Returns the bytes copied, 0 without a pool.
        """
        if not self.pooled or self.committed == self.end:
            return 0
        before = self.committed
        for file in self.files:
            if file.end <= self.committed or file.start >= self.end:
                # Nothing of this file is between the committed position and the end.
                continue
            at, stop = max(self.committed, file.start) - file.start, min(self.end, file.end) - file.start
            # With the pool, records are in a buffer until now.
            if file.target is not file.map:
                file.map[at:stop] = file.target[at:stop]
                if stop == file.size_bytes:  # nothing more is appended to it
                    self._pool.append(file.target)
                    file.target = file.map
        # After all files: a reader must not see a position before its bytes.
        self.committed = self.end
        self.flusher.committed()
        return self.committed - before

    def append(self, groups: Sequence[Group]) -> tuple[list[Extent], Answer | None]:
        """See `Log.append`. All records lie in one file (ST-16)."""
        try:
            while True:
                start = end = self.end
                records: list[bytes] = []
                for message, entries in groups:
                    # The records contain their physical offsets, so they are encoded for the position where they will lie.
                    encoded, end = encode_records(message, entries, end)
                    records += encoded
                file = self._current
                if file is not None and end + END_BLANK_BYTES <= file.end:
                    break
                # A batch that fits no file would roll over without end; a single record is refused in `file_for`.
                if end - start + END_BLANK_BYTES > self.file_bytes and len(records) > 1:
                    reason = f"a batch of {end - start} bytes exceeds a commit log file"
                    raise AppendRefused(PutStatus.MESSAGE_ILLEGAL, reason)
                self.file_for(end - start)  # and once more, at the start of the next file
        except LocalProtocolError as error:
            raise StoreError(error.message) from error
        # One assignment for all: the flush thread sees either none or all of the bytes below `end`.
        file.target[start - file.start : end - file.start] = records[0] if len(records) == 1 else b"".join(records)
        extents: list[Extent] = []
        add_sum = self._add_sum
        for record in records:
            size = len(record)
            extents.append((start, size))
            if add_sum is not None:
                add_sum((start, size, crc32(record)))  # before `end`: the thread that syncs reads both
            start += size  # type: ignore[assignment]
        self.end = end
        return extents, None

    def space(self) -> Space | None:
        """See `Log.space`."""
        file = self._current
        # Without the filler's bytes at its end.
        return (file.target, file.start, file.end - END_BLANK_BYTES, self.end) if file is not None else None

    def fill(self, end: PhysicalOffset, sums: Sequence[Sum]) -> None:
        """See `Log.fill`."""
        if self._add_sum is not None:
            for record_sum in sums:
                self._add_sum(record_sum)  # before `end`: the thread that syncs reads both
        self.end = end

    # ---- confirmation: a record is confirmed when it is durable

    def listen(
        self, on_confirmed: Callable[[PhysicalOffset], object], on_failure: Callable[[FlushFailed], object]
    ) -> None:
        """See `Log.listen`."""
        self.flusher.on_flushed, self.flusher.on_failure = on_confirmed, on_failure

    @property
    def confirmed_end(self) -> PhysicalOffset:
        return self.flusher.flushed

    def set_confirmed(self, end: PhysicalOffset) -> None:
        """See `Log.set_confirmed`."""
        self.flusher.flushed = end

    @property
    def failure(self) -> FlushFailed | None:
        return self.flusher.failure

    def when_confirmed(self, position: PhysicalOffset, timeout_ms: int, callback: Confirmed) -> None:
        """See `Log.when_confirmed`."""
        self.flusher.when_flushed(position, timeout_ms, callback)

    @property
    def fsync_seconds(self) -> Histogram:
        """See `Log.fsync_seconds`."""
        return self.flusher.seconds

    @property
    def slow_flushes(self) -> int:
        return self.flusher.slow_count

    @property
    def slowest_flush_ms(self) -> int:
        return self.flusher.slowest_ms

    def start_flush(self) -> None:
        """See `Log.start_flush`."""
        self.flusher.start()

    def flush_due(self, least_pages: int) -> bool:
        """See `Log.flush_due`."""
        return self.flusher.is_due(least_pages)

    async def stop_appends(self) -> None:
        """Do nothing: there is no replication to stop, and the store refuses puts by itself."""

    async def finish_flush(self) -> None:
        """See `Log.finish_flush`."""
        await self.flusher.finish()

    async def stop_flush(self) -> None:
        """See `Log.stop_flush`."""
        await self.flusher.stop()

    # ---- reading

    def file_at(self, offset: PhysicalOffset) -> MappedFile | None:
        """See `ReadableLog.file_at`."""
        return self._files.find(offset)

    @property
    def cut_file(self) -> str:
        """See `Log.cut_file`."""
        return next((file.cut for file in self.files if file.cut), "")

    def record_at(self, offset: PhysicalOffset) -> Record | None:
        """Size and magic number at an offset; None outside the readable log."""
        file = self._files.find(offset)
        # The filler has only size and magic, so no more is required to be readable.
        if file is None or offset < file.start or offset + SIZE_AND_MAGIC.size > min(file.end, self.readable_end):
            return None
        return Record(*SIZE_AND_MAGIC.unpack_from(file.map, offset - file.start))

    def piece_at(self, offset: PhysicalOffset) -> tuple[int, int, mmap.mmap | bytes]:
        """Start and end of the readable part of the file that holds offset, and its mapping; (0, 0, b"") when it is not readable.

        Good until the event loop runs something else: one call serves all records of a read.
        """
        file, readable = self._files.find(offset), self.readable_end
        if file is None or offset >= readable:
            return 0, 0, b""
        # The current file is checked by its writer; a cut one before it would end the process with SIGBUS on access.
        if file is not self._current and file.cut:
            raise CorruptRecord(file.cut, hint=_CUT_HINT)
        return file.start, min(file.end, readable), file.map

    def view(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        """A slice of the log; None unless all of it is readable and lies in one file (ST-18). Raises CorruptRecord."""
        file = self._files.find(offset)
        if file is None or size < 0 or offset + size > min(file.end, self.readable_end):
            return None
        if file is not self._current and file.cut:
            raise CorruptRecord(file.cut, hint=_CUT_HINT)
        at = offset - file.start
        return file.view[at : at + size]

    def store_time(self, offset: PhysicalOffset) -> int:
        """Store timestamp of the record at an offset, Unix ms; -1 if there is none."""
        head = self.view(offset, STORE_TIMESTAMP_END_MAX)
        is_record = head is not None and SIZE_AND_MAGIC.unpack_from(head)[1] == MESSAGE_MAGIC
        return store_timestamp_of(head) if head is not None and is_record else -1

    def next_file_start(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Start offset of the file after the one that contains offset (ST-18)."""
        return PhysicalOffset(offset + self.file_bytes - offset % self.file_bytes)

    def dirty_files(self, flushed: PhysicalOffset) -> list[MappedFile]:
        """Files with unflushed bytes after `flushed`, oldest first; a snapshot, safe in a thread.

        Includes the file that starts at `readable_end`, because recovery may have zeroed old bytes in it.
        """
        # A copy: the loop may append a file meanwhile.
        return [file for file in list(self.files) if file.end > flushed and file.start <= self.readable_end]

    def forget_pages(self, flushed: PhysicalOffset) -> None:
        """Drop pages that are durable from this process's resident set; the page cache keeps them."""
        for file in self.files:
            if file.start < flushed:
                # Consumers read mostly what is recent: those pages stay mapped.
                file.forget_pages(min(flushed - _RESIDENT_BYTES, file.end) if file is self._current else file.end)

    def sync_from(self, offset: PhysicalOffset) -> None:
        """See `Log.sync_from`."""
        for file in self.dirty_files(offset):
            file.flush()

    # ---- retention

    @property
    def first_store_ms(self) -> int:
        return self.store_time(self.first_position)

    def expendable(self, safe: PhysicalOffset) -> int:
        """See `Log.expendable`; the last file is kept."""
        # Recovery starts in the file that holds `safe`.
        current = next((number for number, file in enumerate(self.files) if file.end > safe), len(self.files) - 1)
        return max(current, 0)

    async def truncate_front(self, reason: str) -> None:
        """See `Log.truncate_front`."""
        # Removed before it is deleted: no reader finds it while the thread works.
        file = self.files.pop(0)
        log.info("commit log file deleted path=%s reason=%s", file.path, reason)
        await self._disk.in_thread(file.delete)

    def expire(self, used_percent: int) -> None:
        """Do nothing: all files are in `files`."""

    def drop_spare(self) -> None:
        """Delete a preallocated file that was never used (MF-09). Raises OSError."""
        if self._spare is not None:
            self._spare.delete()
            self._spare = None

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        if self.sums is not None:
            self.sums.close()
        self._files.close()


def plain_log(settings: StoreSettings, disk: Disk) -> CommitLog:
    """The log of a store without replication, with checksums of its records."""
    return CommitLog(
        settings.commit_log_dirs,
        settings.commit_log_bytes,
        disk,
        pool_size=settings.pool_size,
        full=capacity.nearly_full,
        sums=RecordSums(settings.root, disk),
        read_only=settings.read_only_dirs,
    )
