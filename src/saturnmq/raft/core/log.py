"""The core's view of the log: where it begins and ends, what of it is durable, and its newest entries.

Entries that were handed out in an action but may not be written yet are in the cache; older ones come from the reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from saturnmq.protocol.errors import invariant
from saturnmq.raft.core.entry import Entry, place

CACHE_ENTRIES_MAX: Final = 4096
CACHE_BYTES_MAX: Final = 16_777_216


class LedgerReader(Protocol):
    """Reads what was written. begin_index and end_index are -1 when there is nothing."""

    @property
    def begin_index(self) -> int: ...

    @property
    def end_index(self) -> int: ...

    @property
    def end_term(self) -> int: ...

    @property
    def end_pos(self) -> int: ...

    def entry(self, index: int) -> Entry | None: ...


class Log:
    """epoch grows with every cut, so that a sync that began before it counts no more. durable: synced up to this index."""

    def __init__(self, reader: LedgerReader, file_bytes: int) -> None:
        self._reader = reader
        self._file_bytes = file_bytes
        self.begin = reader.begin_index
        self.end = reader.end_index
        self.end_term = reader.end_term
        self.end_pos = reader.end_pos
        self.next_index = self.end + 1
        self.epoch = 0
        self.durable = self.end
        self._cache: dict[int, Entry] = {}  # the last ones, none missing between them
        self._cache_bytes = 0
        self._fresh = self.next_index  # entries from here on may not be written yet

    @property
    def empty(self) -> bool:
        return self.end < 0

    def entry(self, index: int) -> Entry | None:
        """The entry; None outside of begin..end, and when its file was deleted meanwhile."""
        if not self.begin <= index <= self.end or index < 0:
            return None
        return self._cache.get(index) or self._reader.entry(index)

    def place(self, entry_bytes: int) -> int:
        """Where the next entry of this length goes."""
        return place(self.end_pos, entry_bytes, self._file_bytes)

    def append(self, entries: Iterable[Entry]) -> None:
        cache = self._cache
        for entry in entries:
            index, size = entry.index, entry.size
            if index != self.next_index or entry.term < self.end_term:
                invariant(False, f"{index} of term {entry.term} follows {self.end} of term {self.end_term}")
            if self.end < 0:
                self.begin = index
            self.end = index
            self.next_index = index + 1
            self.end_term = entry.term
            self.end_pos = entry.pos + size
            cache[index] = entry
            self._cache_bytes += size

    def cut(self, index: int, end_pos: int) -> None:
        """Remove entries from index on; the entry before it is the last."""
        if index <= self.begin:
            self.restart(index, end_pos)
            return
        last = self.entry(index - 1)
        invariant(last is not None, f"cut at {index} of a log {self.begin}..{self.end}")
        assert last is not None
        for gone in range(index, self.end + 1):
            self._forget(gone)
        self.end = index - 1
        self.next_index = index
        self.end_term = last.term
        self.end_pos = end_pos
        self.epoch += 1
        self.durable = min(self.durable, self.end)
        self._fresh = min(self._fresh, index)

    def restart(self, index: int, end_pos: int) -> None:
        """Remove everything; the next entry has this index."""
        self._cache.clear()
        self._cache_bytes = 0
        self.begin = self.end = self.end_term = -1
        self.next_index = index
        self.end_pos = end_pos
        self.epoch += 1
        self.durable = -1
        self._fresh = index

    def written(self) -> None:
        """All actions handed out so far are executed: the cache may shrink."""
        self._fresh = self.next_index
        cache = self._cache
        while len(cache) > CACHE_ENTRIES_MAX or self._cache_bytes > CACHE_BYTES_MAX:
            oldest = (
                self.end - len(cache) + 1
            )  # what a dict's iterator passes over first are the deleted ones, all of them
            if oldest >= self._fresh:
                break
            self._forget(oldest)

    def trimmed(self, begin: int) -> None:
        """Files were deleted: entries before begin are gone (DL-S12)."""
        if begin > self.begin >= 0:
            for gone in [index for index in self._cache if index < begin]:
                self._forget(gone)
            self.begin = begin

    def _forget(self, index: int) -> None:
        gone = self._cache.pop(index, None)
        if gone is not None:
            self._cache_bytes -= gone.size
