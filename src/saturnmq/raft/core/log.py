"""The core's view of the log: its bounds, its durable end, and a cache of its newest entries.

Entries that were emitted in an action but may not be written yet are always in the cache; older ones are read through
`LedgerReader`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from saturnmq.protocol.errors import invariant
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term

CACHE_ENTRIES_MAX: Final = 4096
CACHE_BYTES_MAX: Final = 16_777_216


class LedgerReader(Protocol):
    """Access to the stored log. begin_index and end_index are -1 when it is empty."""

    @property
    def begin_index(self) -> LedgerIndex: ...

    @property
    def end_index(self) -> LedgerIndex: ...

    @property
    def end_term(self) -> Term: ...

    @property
    def end_pos(self) -> int: ...

    def entry(self, index: LedgerIndex) -> Entry | None: ...


class EntryLog:
    """Bounds, durable end and cache of the log.

    epoch: incremented by every truncation, so that an fsync that began before it is ignored. durable: synced up to this index.
    """

    def __init__(self, reader: LedgerReader, file_bytes: int) -> None:
        self._reader = reader
        self._file_bytes = file_bytes
        self.begin = reader.begin_index
        self.end = reader.end_index
        self.end_term = reader.end_term
        self.end_pos = reader.end_pos
        self.next_index = LedgerIndex(self.end + 1)
        self.epoch = 0
        self.durable = self.end
        self._cache: dict[int, Entry] = {}  # the newest entries, without gaps
        self._cache_bytes = 0
        self._unwritten_from = self.next_index  # entries from this index on may not be written yet

    @property
    def empty(self) -> bool:
        return self.end < 0

    def entry(self, index: LedgerIndex) -> Entry | None:
        """The entry; None outside begin..end, and if its file was deleted in the meantime."""
        # `begin` is -1 in an empty log, where index -1 would pass the comparison.
        if not self.begin <= index <= self.end or index < 0:
            return None
        # The reader may not have it yet: actions are executed after the core has returned.
        return self._cache.get(index) or self._reader.entry(index)

    def position_for(self, entry_bytes: int) -> int:
        """Position of the next entry if it has this size in bytes."""
        return entry_position(self.end_pos, entry_bytes, self._file_bytes)

    def append(self, entries: Iterable[Entry]) -> None:
        cache = self._cache
        for entry in entries:
            index, size = entry.index, entry.size
            if index != self.next_index or entry.term < self.end_term:
                # The condition is evaluated here, so that its text is formatted only for a failure; this is the hot path.
                invariant(False, f"{index} of term {entry.term} follows {self.end} of term {self.end_term}")
            if self.end < 0:
                # The first entry of an empty log need not be 0: it may have restarted at the leader's begin.
                self.begin = index
            self.end = index
            self.next_index = LedgerIndex(index + 1)
            self.end_term = entry.term
            self.end_pos = entry.pos + size
            cache[index] = entry
            self._cache_bytes += size

    def cut(self, index: LedgerIndex, end_pos: int) -> None:
        """Remove the entries from index on; the entry before it becomes the last, and the log ends at byte end_pos."""
        last = self.entry(LedgerIndex(index - 1))
        invariant(last is not None, f"cut at {index} of a log {self.begin}..{self.end}")
        assert last is not None
        for removed in range(index, self.end + 1):
            # Else a later entry with this index would be hidden by the removed one.
            self._evict(removed)
        self.end = LedgerIndex(index - 1)
        self.next_index = index
        self.end_term = last.term
        self.end_pos = end_pos
        # A sync that is running covers entries which are no longer there; its completion must not count.
        self.epoch += 1
        # The entries that stay were durable and still are.
        self.durable = min(self.durable, self.end)
        # From here the reader is behind the core again.
        self._unwritten_from = min(self._unwritten_from, index)

    def restart(self, index: LedgerIndex, end_pos: int) -> None:
        """Remove all entries; the next one has this index and lies at end_pos or later."""
        self._cache.clear()
        self._cache_bytes = 0
        self.begin = self.end = NO_INDEX
        self.end_term = NO_TERM
        self.next_index = index
        self.end_pos = end_pos
        self.epoch += 1
        self.durable = NO_INDEX
        self._unwritten_from = index

    def written(self) -> None:
        """All actions emitted so far are executed: evict cached entries over the limits."""
        self._unwritten_from = self.next_index
        cache = self._cache
        while len(cache) > CACHE_ENTRIES_MAX or self._cache_bytes > CACHE_BYTES_MAX:
            # Computed, because next(iter(cache)) would first step over all deleted slots of the dict.
            oldest = self.end - len(cache) + 1
            # Not written yet: the cache has the only copy.
            if oldest >= self._unwritten_from:
                break
            self._evict(oldest)

    def trimmed(self, begin: LedgerIndex) -> None:
        """Retention deleted the entries before begin (DL-S12)."""
        if begin > self.begin >= 0:
            for removed in [index for index in self._cache if index < begin]:
                self._evict(removed)
            self.begin = begin

    def _evict(self, index: int) -> None:
        entry = self._cache.pop(index, None)
        if entry is not None:
            self._cache_bytes -= entry.size
