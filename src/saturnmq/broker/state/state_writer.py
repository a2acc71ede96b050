"""Puts a table on disk soon after it changed: in a thread, one write for all changes that came meanwhile. Source: SND-06, BP-10.

An fsync of a growing file takes milliseconds; on the loop, five hundred new topics would stop everybody else for seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from saturnmq.protocol.errors import StoreError
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)


class Saver:
    """One state file, and what to write into it."""

    def __init__(self, file: StateFile, encode: Callable[[], bytes]) -> None:
        self._file = file
        self._encode = encode
        self._changes = 0
        self._saved = 0  # as many of the changes are on disk
        self._writing: asyncio.Task[None] | None = None

    @property
    def writing(self) -> bool:
        """Whether changes are on their way to the disk."""
        return self._writing is not None

    def changed(self) -> None:
        """The table is not what the file holds any more. Without a running loop it is written here. Raises StoreError then."""
        self._changes += 1
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._file.write(self._encode())
            self._saved = self._changes
            return
        self._begin()

    async def saved(self) -> None:
        """Until all changes made so far are on disk; what failed before is tried again. Raises StoreError."""
        wanted = self._changes
        while self._saved < wanted:
            await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Task[None]:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(_written)
        return self._writing

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._saved < self._changes:
                changes, data = self._changes, self._encode()
                await loop.run_in_executor(None, self._file.write, data)
                self._saved = changes
        finally:
            self._writing = (
                None  # here, not in a callback: who changes the table next must not be given a task that is done
            )


def _written(task: asyncio.Task[None]) -> None:
    failure = None if task.cancelled() else task.exception()
    if isinstance(failure, StoreError):
        log.error("not saved, the next change tries again: %s", failure)
    elif failure is not None:
        log.error("not saved: %s", failure, exc_info=failure)
