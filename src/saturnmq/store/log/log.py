"""The log under a store: what `MessageStore` needs of it, independent of what makes its records durable.

`CommitLog` confirms a record when this disk has it, `replication.dledger.log.RaftLog` when a quorum has it.

To add a third way to confirm (a slave that acknowledges what it received), write a third log, not a third store: a `CommitLog`
whose `when_confirmed` completes when both this disk and the slave have reached the position, which reports the lower of both
ends as `confirmed_end`, and which passes FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE to the callback when the slave does not.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from typing import Protocol, TypeAlias

from saturnmq.protocol.errors import FlushFailed
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.results import PutStatus

Position: TypeAlias = int
"""Offset in the log, bytes. The position of an append is the end of its last record."""

Confirmed: TypeAlias = Callable[[PutStatus, str], object]
"""Receives the outcome of a wait, PUT_OK if the position is confirmed, and the reason if it is not."""


class Log(Protocol):
    """An append-only sequence of records. Everything runs on the event loop; callbacks must not block.

    file_bytes: length of one file. end: position of the next record. failure: why the log takes no more records.
    """

    file_bytes: int
    end: Position

    @property
    def failure(self) -> FlushFailed | None: ...

    @property
    def first_position(self) -> Position:
        """Position of the first byte that is still stored; -1 without files."""

    @property
    def readable_end(self) -> Position:
        """Every byte before it may be read."""

    @property
    def confirmed_end(self) -> Position:
        """Every record before it survives what this log protects against: a power failure, the loss of a member."""

    @property
    def files(self) -> list[MappedFile]: ...

    @property
    def slow_flushes(self) -> int:
        """Number of flushes that took longer than half a second."""

    @property
    def slowest_flush_ms(self) -> int: ...

    def listen(self, on_confirmed: Callable[[int], object], on_failure: Callable[[FlushFailed], object]) -> None:
        """Set the listeners: `confirmed_end` has advanced (called before the waiters it covers); the log has failed."""

    def set_confirmed(self, end: Position) -> None:
        """Recovery has read the log up to `end`; everything before it is confirmed."""

    def start_flush(self) -> None:
        """Confirm what has been appended so far without a further delay."""

    def flush_due(self, least_pages: int) -> bool:
        """Whether so many pages are dirty that the periodic flush is due."""

    async def finish_flush(self) -> None:
        """Wait for a running flush without starting another one: no thread uses the files afterwards."""

    async def stop_flush(self) -> None:
        """Confirm the rest and let waiters go. Raises FlushFailed."""

    def when_confirmed(self, position: Position, timeout_ms: int, callback: Confirmed) -> None:
        """Run the callback once, when every record before the position is confirmed, failed, or the time is over.

        It may run before this call returns. The time is wall time on the event loop's clock.
        """

    def view(self, offset: Position, size: int) -> memoryview | None:
        """A slice of the log; None unless all of it is readable and lies in one file."""

    def piece_at(self, offset: Position) -> tuple[int, int, mmap.mmap | bytes]:
        """Start and end of the readable part of the file that holds the offset, and its mapping; (0, 0, b"") if none."""


async def wait_confirmed(log: Log, position: Position, timeout_ms: int) -> PutStatus:
    """The coroutine form of `Log.when_confirmed`."""
    future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    log.when_confirmed(position, timeout_ms, lambda status, _: None if future.done() else future.set_result(status))
    return await future
