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
        self._created: dict[str, int] = {}  # entries that may not be durable yet: the change of each
        self._writing: asyncio.Task[None] | None = None

    @property
    def dirty(self) -> bool:
        """Whether there are changes that are not durable yet."""
        return self._saved != self._changes

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        return self._changes

    def durable(self, name: str) -> bool:
        """Whether the file has an entry, if it was created since the start."""
        return not self.dirty or self._saved >= self._created.get(name, 0)

    def changed(self, created: str | None = None) -> None:
        """Schedule a write of the changed table. created: the entry that is new in it.

        Without a running loop the table is written synchronously; raises StoreError then.
        """
        if not self.dirty:
            self._created.clear()
        self._changes += 1
        if created is not None:
            self._created[created] = self._changes
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._file.write(b"".join(self._pieces()))
            self._saved = self._changes
            return
        self._begin()

    async def saved(self) -> None:
        """Wait until all changes made so far are durable, for two writes at most; retries a failed write. Raises StoreError."""
        requested_changes = self._changes
        while self._saved < requested_changes:
            await asyncio.shield(self._begin())

    async def settle(self) -> None:
        """Wait for the write in progress and those that follow it, if there are any; a failure is logged only."""
        while self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    def _begin(self) -> asyncio.Task[None]:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(_written)
        return self._writing

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            changes = self._changes
            data = await finish(joined(self._pieces()))
            await loop.run_in_executor(None, self._file.write, data)
            self._saved = changes
        finally:
            # Not in a done callback: a change made right after this must start a new task, not get the finished one.
            self._writing = None
        if self.dirty:  # in a task of its own: callers that wait for this write do not wait for later changes
            self._begin()


def _written(task: asyncio.Task[None]) -> None:
    failure = None if task.cancelled() else task.exception()
    if isinstance(failure, StoreError):
        log.error("state file not saved, retried with the next change error=%s", failure)
    elif failure is not None:
        log.error("state file not saved error=%s", failure, exc_info=failure)
