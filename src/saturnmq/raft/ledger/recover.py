"""Recovery plan of a ledger: finds where its valid entries end. Pure; `LedgerFiles` supplies the facts and executes the plan.

Requirements: DL-S06, DL-S07, DL-X16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import ENTRY_MAGIC
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term
from saturnmq.raft.ledger.layout import EntryHeader, IndexUnit
from saturnmq.raft.ledger.walk import Walk

SCANNED_FILES: Final = 3  # the two that may hold unsynced entries, and one before them (see files.py)


@dataclass(frozen=True, slots=True)
class DataFile:
    """start: offset of the file's first byte. head: header there, or of the first entry if the log begins within the file."""

    start: int
    head: EntryHeader | None


@dataclass(slots=True)
class LedgerFacts:
    """Input of `plan`. header_at: None outside the files. body_is_good: checks the body that belongs to a header.

    rewrite_index: rewrite the index units of all entries that are scanned, although they look good.
    """

    files: Sequence[DataFile]
    file_bytes: int
    header_at: Callable[[int], EntryHeader | None]
    unit_at: Callable[[int], IndexUnit | None]
    body_is_good: Callable[[EntryHeader], bool]
    rewrite_index: bool = False


@dataclass(slots=True)
class LedgerPlan:
    """The recovered log: begin_index..end_index, ending at byte end_pos.

    index_from: index units from this index on are rewritten from the headers in `reindexed`. scanned_from: first entry that was
    read. stopped_by: why recovery stopped there.
    """

    begin_index: LedgerIndex = NO_INDEX
    end_index: LedgerIndex = NO_INDEX
    end_term: Term = NO_TERM
    end_pos: int = 0
    index_from: LedgerIndex | None = None
    reindexed: list[EntryHeader] = field(default_factory=list)
    scanned_from: LedgerIndex = LedgerIndex(0)
    stopped_by: str = ""


def matches(header: EntryHeader | None, unit: IndexUnit | None) -> bool:
    """Whether an index unit agrees with the entry's header."""
    return (
        header is not None
        and unit is not None
        and (unit.magic, unit.pos, unit.size, unit.index, unit.term)
        == (header.magic, header.pos, header.size, header.index, header.term)
    )


def first_file(facts: LedgerFacts) -> int:
    """Number of the file where the scan begins: the third last, or the nearest earlier one that agrees with the index."""
    number = max(len(facts.files) - SCANNED_FILES, 0)
    # A file whose head does not agree with the index cannot be the start of a scan: begin earlier.
    while number > 0:
        head = facts.files[number].head
        if head is not None and matches(head, facts.unit_at(head.index)):
            break
        number -= 1
    return number


def plan(facts: LedgerFacts) -> LedgerPlan:
    """Find where the valid entries end. Raises CorruptRecord if more than one file with entries would be dropped (DL-S07)."""
    recovery = LedgerPlan()
    if not facts.files:
        return recovery
    number = first_file(facts)
    first, start = facts.files[number].head, facts.files[number].start
    has_entry = first is not None and first.magic == ENTRY_MAGIC and start <= first.pos < start + facts.file_bytes
    pos = first.pos if first is not None and has_entry else start
    recovery.end_pos = pos
    walk = Walk(facts.header_at, pos, facts.file_bytes)
    for header in walk:
        # Unsynced data after a power loss can have a valid header and a torn body (DL-X16).
        if not facts.body_is_good(header):
            walk.stopped_by = "the body is damaged"
            break
        if recovery.end_index < 0:
            recovery.scanned_from = header.index
        needs_unit = facts.rewrite_index or not matches(header, facts.unit_at(header.index))
        # From the first wrong unit on all are rewritten, good ones too: the index is written in order.
        if recovery.index_from is None and needs_unit:
            recovery.index_from = header.index
        if recovery.index_from is not None:
            recovery.reindexed.append(header)
        recovery.end_index, recovery.end_term, recovery.end_pos = header.index, header.term, header.pos + header.size
    recovery.stopped_by = walk.stopped_by
    _check_loss(facts, recovery)
    oldest = facts.files[0].head
    # Of the first file, not of the first that was scanned.
    if recovery.end_index >= 0 and oldest is not None:
        recovery.begin_index = oldest.index
    return recovery


def _check_loss(facts: LedgerFacts, recovery: LedgerPlan) -> None:
    """Refuse recovery if several files with entries follow the recovered end.

    One such file may be the next file of an interrupted append; more mean damage in the middle of the log.
    """
    last_kept = recovery.end_pos - recovery.end_pos % facts.file_bytes
    dropped = [
        f.start for f in facts.files if f.start > last_kept and f.head is not None and f.head.magic == ENTRY_MAGIC
    ]
    if len(dropped) > 1:
        raise CorruptRecord(
            f"the ledger is damaged at {recovery.end_pos} ({recovery.stopped_by}), with whole files behind it, "
            f"from {dropped[0]} on. "
            "Restore the file from another member, or move the ledger away, so that the leader sends it again."
        )
