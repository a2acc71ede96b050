"""One entry of the ledger, and where the next one comes to lie. Source: spec 04 section 5.2, DL-S02, DL-A06."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENTRY_MAGIC: Final = 1
ENTRY_HEADER_BYTES: Final = 48
ENTRY_BYTES_MAX: Final = 4_194_304  # header and body (DL-A06)
BLANK_BYTES_MIN: Final = 8  # kept free in each file for the blank record (DL-S02)


@dataclass(frozen=True, slots=True)
class Entry:
    """index: number from 0. term: of the leader that made it. pos: offset of the header in bytes. body: one whole message."""

    index: int
    term: int
    pos: int
    body: bytes
    magic: int = ENTRY_MAGIC
    channel: int = 0
    size: int = -1

    def __post_init__(self) -> None:
        if self.size < 0:
            object.__setattr__(self, "size", ENTRY_HEADER_BYTES + len(self.body))

    @property
    def end_pos(self) -> int:
        """Byte behind the entry."""
        return self.pos + self.size

    @property
    def well_formed(self) -> bool:
        """What every stored entry satisfies."""
        return (
            self.magic == ENTRY_MAGIC
            and self.size == ENTRY_HEADER_BYTES + len(self.body)
            and len(self.body) > 0
            and self.index >= 0
            and self.term >= 0
            and self.pos >= 0
        )


def place(end_pos: int, entry_bytes: int, file_bytes: int) -> int:
    """Where an entry of entry_bytes goes when the log ends at end_pos: there, or at the start of the next file (DL-S02).

    The entry and at least 8 bytes of a blank record must fit into what is left of the file.
    """
    used = end_pos % file_bytes
    if entry_bytes + BLANK_BYTES_MIN > file_bytes - used and used:
        return end_pos - used + file_bytes
    return end_pos


def entry_bytes_max(file_bytes: int) -> int:
    """The longest entry (DL-A06)."""
    return min(ENTRY_BYTES_MAX, file_bytes - BLANK_BYTES_MIN)
