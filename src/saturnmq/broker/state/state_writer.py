"""Writes a changed table to its state file in a worker thread, one write for all changes made meanwhile.

An fsync of a growing file takes milliseconds; on the event loop, 500 new topics would stall all other clients for seconds. So
would the encoding of a large table at once.

Requirements: SND-06, BP-10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from saturnmq.protocol.errors import StoreError
from saturnmq.slices import finish, joined
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)


class StateWriter:
    """Writer of one state file. pieces returns the content in pieces, which are encoded on the event loop, in slices.

    The table may change between two pieces: pieces takes a copy of what must be consistent when it is called.
    """

    def __init__(self, file: StateFile, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._file = file
        self._pieces = pieces
        self._changes = 0
        self._saved = 0  # the change count that is durable
        self._writing: asyncio.Task[None] | None = None

    @property
    def dirty(self) -> bool:
        """Whether there are changes that are not durable yet."""
        return self._saved != self._changes

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        return self._changes

    def durable(self, changes: int) -> bool:
        """Whether the first `changes` changes are durable."""
        return self._saved >= changes

    def changed(self) -> None:
        """Schedule a write of the changed table. Without a running loop it is written synchronously; raises StoreError then."""
        self._changes += 1
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._file.write(b"".join(self._pieces()))
            self._saved = self._changes
            return
        self._begin()

    async def saved(self) -> None:
        """Wait until all changes made so far are durable; retries a failed write. Raises StoreError."""
        wanted = self._changes
        while self._saved < wanted:
            await asyncio.shield(self._begin())

    async def settle(self) -> None:
        """Wait for a write in progress, if there is one; its failure is logged only."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    def _begin(self) -> asyncio.Task[None]:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(_written)
        return self._writing

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._saved < self._changes:
                changes = self._changes
                data = await finish(joined(self._pieces()))
                await loop.run_in_executor(None, self._file.write, data)
                self._saved = changes
        finally:
            # Not in a done callback: a change made right after this must start a new task, not get the finished one.
            self._writing = None


def _written(task: asyncio.Task[None]) -> None:
    failure = None if task.cancelled() else task.exception()
    if isinstance(failure, StoreError):
        log.error("state file not saved, retried with the next change error=%s", failure)
    elif failure is not None:
        log.error("state file not saved error=%s", failure, exc_info=failure)
