"""The log under a store: what `MessageStore` needs of it, independent of what makes its records durable.

`CommitLog` confirms a record when this disk has it, `replication.dledger.log.RaftLog` when a quorum has it.

To add a third way to confirm (a slave that acknowledges what it received), write a third log, not a third store: a `CommitLog`
with three overrides. `when_confirmed` completes when both this disk and the slave have reached the position, and passes
FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE to its callback if the slave does not; `confirmed_end` is the lower of both ends;
`quorum` says that every put waits, whatever its sender asked for. On the slave, `refusal` keeps clients' messages out, and the
listener of `listen` dispatches what the master sent.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from saturnmq.metrics import Histogram
from saturnmq.protocol.errors import FlushFailed, StoreError
from saturnmq.protocol.message import Entry, Message
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.files.record_sums import RecordSums, Sum
from saturnmq.store.results import Answer, Confirmed, PutStatus

Position: TypeAlias = PhysicalOffset
"""Offset in the log, bytes. The position of an append is the end of its last record."""


Group: TypeAlias = tuple[Message, Sequence[Entry]]
"""Messages of one queue that differ in their entries only; the queue offset of the first and all else is in the `Message`."""

Extent: TypeAlias = tuple[PhysicalOffset, int]
"""Where a record lies in the log, and its size in bytes."""

Space: TypeAlias = tuple[mmap.mmap, int, int, PhysicalOffset]
"""The mapping of a file, its begin in the log, the position up to which records may reach, that of the next record."""


class AppendRefused(StoreError):
    """The log does not take the records, and is as it was before. status: what the sender is answered.

    single: the cause is one of several records, the others may be appended without it.
    """

    def __init__(self, status: PutStatus, reason: str, *, single: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.single = single


class Record(NamedTuple):
    """Size and magic number of the record or filler at an offset."""

    size: int
    magic: int


class ReadableLog(Protocol):
    """A sequence of records in files of equal length, as readers and recovery see it. end: position of the next record."""

    file_bytes: int
    end: Position

    @property
    def first_position(self) -> Position:
        """Position of the first byte that is still stored; -1 without files."""

    @property
    def readable_end(self) -> Position:
        """Every byte before it may be read."""

    @property
    def files(self) -> list[MappedFile]:
        """Files that the store's retention deletes, oldest first."""

    def file_at(self, offset: Position) -> MappedFile | None:
        """The file that holds an offset, of this log or of the ledger."""

    def view(self, offset: Position, size: int) -> memoryview | None:
        """A slice of the log; None unless all of it is readable and lies in one file.

        Raises CorruptRecord if the file was truncated while it is open: an access to its lost part would end the process.
        """

    def piece_at(self, offset: Position) -> tuple[int, int, mmap.mmap | bytes]:
        """Start and end of the readable part of the file that holds the offset, and its mapping; (0, 0, b"") if none."""

    def record_at(self, offset: Position) -> Record | None:
        """Size and magic number at an offset; None outside the readable log."""

    def next_file_start(self, offset: Position) -> Position:
        """Start of the file after the one that contains the offset."""

    def store_time(self, offset: Position) -> int:
        """Store time (Unix ms) of the record at an offset; -1 if there is none."""


class Log(ReadableLog, Protocol):
    """An append-only log of records. Everything runs on the event loop; callbacks must not block.

    refusal: why no record can be appended now; "" if it can. quorum: every put waits until it is confirmed, even if its sender
    does not wait for a flush.
    """

    refusal: str
    quorum: bool
    pooled: bool  # whether there is a transient pool
    sums: RecordSums | None  # checksums of the records behind the last checkpoint

    # ---- append

    def append(self, groups: Sequence[Group]) -> tuple[list[Extent], Answer | None]:
        """Append all records or none, with the queue offsets and store times that the messages carry; `end` moves behind them.

        Returns offset and size of each record, and what confirms this append; None if reaching `end` does. Raises AppendRefused,
        StoreError.
        """

    def space(self) -> Space | None:
        """The rest of the current file, for records that the caller writes and then passes to `fill`; None without a file."""

    def fill(self, end: Position, sums: Sequence[Sum]) -> None:
        """Records up to `end` were written to `space`. sums: their checksums, if the log keeps any."""

    async def stop_appends(self) -> None:
        """First step of a stop: take no more records, and stop replication. Raises StoreError, OSError."""

    # ---- confirmation

    @property
    def failure(self) -> FlushFailed | None:
        """Why records are not confirmed any more."""

    @property
    def confirmed_end(self) -> Position:
        """Every record before it survives what this log protects against: a power failure, the loss of a member."""

    def listen(self, on_confirmed: Callable[[Position], object], on_failure: Callable[[FlushFailed], object]) -> None:
        """Set the listeners: `confirmed_end` has advanced (called before the waiters it covers); the log has failed."""

    def set_confirmed(self, end: Position) -> None:
        """Recovery has read the log up to `end`; everything before it is confirmed."""

    def when_confirmed(self, position: Position, timeout_ms: int, callback: Confirmed) -> None:
        """Run the callback once: when every record before the position is confirmed, when that failed, or after the timeout.

        It may run before this call returns.
        """

    def start_flush(self) -> None:
        """Confirm what has been appended so far without a further delay."""

    def flush_due(self, least_pages: int) -> bool:
        """Whether so many pages are dirty that the periodic flush is due."""

    async def finish_flush(self) -> None:
        """Wait for a running flush without starting another one: no thread uses the files afterwards."""

    async def stop_flush(self) -> None:
        """Confirm the rest and let waiters go. Raises FlushFailed."""

    @property
    def fsync_seconds(self) -> Histogram:
        """Durations of the flushes of this member's disk."""

    @property
    def slow_flushes(self) -> int:
        """Number of flushes that took longer than half a second."""

    @property
    def slowest_flush_ms(self) -> int: ...

    # ---- transient pool: bytes that are appended but not yet in the files

    @property
    def free_buffers(self) -> int:
        """Buffers left in the transient pool (MF-13)."""

    def commit(self) -> int:
        """Copy the pool's buffers into the files, which makes them readable; returns the bytes copied."""

    # ---- files

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of the files that records are written to; their disks decide whether there is space."""

    @property
    def cut_file(self) -> str:
        """Which open file was truncated by someone else, and to what length; "" if none was."""

    def load(self) -> None:
        """Map the existing files. Raises CorruptRecord, StoreError."""

    def set_end(self, end: Position) -> int:
        """Truncate the log to `end` at recovery; returns how many bytes were zeroed (RC-10)."""

    def sync_from(self, offset: Position) -> None:
        """Make durable what recovery has changed from `offset` on. Raises OSError."""

    @property
    def first_store_ms(self) -> int:
        """Store time of the oldest record, Unix ms; -1 if there is none."""

    def expendable(self, safe: Position) -> int:
        """Number of `files` that retention may delete if nothing before `safe` is needed for recovery."""

    async def truncate_front(self, reason: str) -> None:
        """Delete the oldest of `files`. Raises OSError."""

    def expire(self, used_percent: int) -> None:
        """Delete expired files that are not in `files`, because the log has a retention of its own, at an operator's request."""

    async def preallocate(self) -> None:
        """Create the next file if the current one is nearly full (MF-09). Raises DiskFull, StoreError."""

    def drop_spare(self) -> None:
        """Delete a preallocated file that was never used (MF-09). Raises OSError."""

    def forget_pages(self, flushed: Position) -> None:
        """Drop pages that are durable from this process's resident set."""

    def close(self) -> None:
        """Close all files without flushing."""


async def wait_confirmed(log: Log, position: Position, timeout_ms: int) -> PutStatus:
    """The coroutine form of `Log.when_confirmed`."""
    future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    log.when_confirmed(position, timeout_ms, lambda status, _: None if future.done() else future.set_result(status))
    return await future
