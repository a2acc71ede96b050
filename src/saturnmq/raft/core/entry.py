"""A log entry, and the rule that places the next entry in the data files.

Layout on disk: raft/ledger/layout.py.

Requirements: DL-A06, DL-S02.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from saturnmq.raft.core.ids import LedgerIndex, Term

ENTRY_MAGIC: Final = 1
ENTRY_HEADER_BYTES: Final = 48
ENTRY_BYTES_MAX: Final = 4_194_304  # header and body (DL-A06)
BLANK_BYTES_MIN: Final = 8  # kept free in each file for the blank record (DL-S02)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log.

    index: number from 0. term: term of the leader that created it. pos: physical offset of the header in bytes. body: one whole
    message. size: header and body, in bytes; -1 computes it.
    """

    index: LedgerIndex
    term: Term
    pos: int
    body: bytes
    magic: int = ENTRY_MAGIC
    channel: int = 0
    size: int = -1

    def __post_init__(self) -> None:
        if self.size < 0:
            # The usual way to set a field of a frozen dataclass while it is made.
            object.__setattr__(self, "size", ENTRY_HEADER_BYTES + len(self.body))

    @property
    def end_pos(self) -> int:
        """Physical offset of the byte after the entry."""
        return self.pos + self.size

    @property
    def well_formed(self) -> bool:
        """Whether the fields are in the ranges that every stored entry satisfies."""
        return (
            self.magic == ENTRY_MAGIC
            and self.size == ENTRY_HEADER_BYTES + len(self.body)
            and len(self.body) > 0
            and self.index >= 0
            and self.term >= 0
            and self.pos >= 0
        )


def entry_position(end_pos: int, entry_bytes: int, file_bytes: int) -> int:
    """Position of an entry of entry_bytes when the log ends at end_pos: there, or at the start of the next file (DL-S02).

    The entry and at least 8 bytes for a blank record must fit into the rest of the file.
    """
    used = end_pos % file_bytes
    # An entry at the start of a file always goes there, however large: no later file would offer more space.
    if entry_bytes + BLANK_BYTES_MIN > file_bytes - used and used:
        return end_pos - used + file_bytes
    return end_pos


def entry_bytes_max(file_bytes: int) -> int:
    """Size limit of an entry, header included (DL-A06)."""
    return min(ENTRY_BYTES_MAX, file_bytes - BLANK_BYTES_MIN)
