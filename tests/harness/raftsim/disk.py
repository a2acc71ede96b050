"""Fault injection for a simulated member's disk: stalls, errors, a full disk and bit flips.

A flip is found as in production: by recovery, which is the real code, or when the core reads the entry.

Requirements: SIM-04, DUR-10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from harness.raftsim.observer import Ledger
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import ENTRY_MAGIC, Entry
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term
from saturnmq.raft.ledger.layout import BLANK_MAGIC, EntryHeader, IndexUnit
from saturnmq.raft.ledger.recover import DataFile, LedgerFacts, LedgerPlan, plan


@dataclass(slots=True)
class DiskFaults:
    """Probabilities per operation, times in ms."""

    sync_ms: float = 5.0
    stall: float = 0.0  # probability of a sync that takes up to stall_ms
    stall_ms: float = 2000.0
    slow_write: float = 0.0  # probability that a term write or a truncation blocks for up to stall_ms
    eio: float = 0.0  # probability that a sync fails


class Flip(Enum):
    """Position of the bit: the body, the magic or number of the index unit, or the position stored in it."""

    BODY = "body"
    UNIT_GONE = "unit gone"
    UNIT_WRONG = "unit wrong"


class StoredLog:
    """A ledger as the core reads it, through the damaged entries. Implements LedgerReader.

    flips: by index. found is called with the index of each damaged entry that is read.
    """

    def __init__(self, ledger: Ledger, flips: dict[int, Flip], found: Callable[[int], None]) -> None:
        self.ledger = ledger
        self.flips = flips
        self.found = found

    @property
    def begin_index(self) -> LedgerIndex:
        return self.ledger.begin_index

    @property
    def end_index(self) -> LedgerIndex:
        return self.ledger.end_index

    @property
    def end_term(self) -> Term:
        return self.ledger.end_term

    @property
    def end_pos(self) -> int:
        return self.ledger.end_pos

    def entry(self, index: int) -> Entry | None:
        """None outside begin..end. Raises CorruptRecord for a damaged entry, as LedgerFiles does."""
        entry = self.ledger.entry(index)
        flip = self.flips.get(index) if entry is not None else None
        if flip is None:
            return entry
        self.found(index)
        raise CorruptRecord(f"entry {index} is damaged: {flip.value}")


def recover(ledger: Ledger, flips: dict[int, Flip], file_bytes: int) -> LedgerPlan:
    """The real recovery plan for a damaged ledger. Raises CorruptRecord if it requires an operator (DL-S07)."""
    by_pos = {entry.pos: entry for entry in ledger.entries}
    heads: dict[int, Entry] = {}
    for entry in ledger.entries:
        heads.setdefault(entry.pos - entry.pos % file_bytes, entry)
    last_end = max(heads, default=0) + file_bytes

    def header_at(pos: int) -> EntryHeader | None:
        if pos in by_pos:
            return _header(by_pos[pos])
        if pos >= last_end:
            return None
        magic = BLANK_MAGIC if pos < last_end - file_bytes else 0
        return EntryHeader(magic, 0, NO_INDEX, NO_TERM, -1, 0, 0, 0, 0)

    def unit_at(index: int) -> IndexUnit | None:
        entry = ledger.entry(index)
        if entry is None or flips.get(index, Flip.BODY) is not Flip.BODY:
            return None
        return IndexUnit(entry.magic, entry.pos, entry.size, entry.index, entry.term)

    def body_is_good(header: EntryHeader) -> bool:
        return flips.get(header.index) is not Flip.BODY

    files = [DataFile(start, _header(head)) for start, head in sorted(heads.items())]
    return plan(LedgerFacts(files, file_bytes, header_at, unit_at, body_is_good))


def _header(entry: Entry) -> EntryHeader:
    return EntryHeader(
        ENTRY_MAGIC, entry.size, entry.index, entry.term, entry.pos, entry.channel, 0, 0, len(entry.body)
    )
