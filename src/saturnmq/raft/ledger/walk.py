"""Walks the headers of a ledger in file order: what a valid entry is, and where the next one lies.

The only such loop for recovery and offline checks; committed bodies are read with `bodies.entries_in`.

Requirements: DL-S02, DL-S06.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from saturnmq.raft.core.entry import BLANK_BYTES_MIN, ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.layout import EntryHeader

END_OF_FILES: Final = "end of the last file"
NO_ENTRY: Final = "no entry"  # zeros: the unused rest of the last file


def fault_of(header: EntryHeader, pos: int, before: EntryHeader | None, file_bytes: int) -> str:
    """Why this header is not a valid entry at pos after `before`; empty if it is."""
    if header.magic != ENTRY_MAGIC:
        return NO_ENTRY if header.magic == 0 else f"magic {header.magic}"
    # An entry without body would end Java's dispatch (DL-B13).
    if header.size != ENTRY_HEADER_BYTES + header.body_len or header.body_len <= 0:
        return f"size {header.size} with a body of {header.body_len}"
    # As `entry_position` places entries: one that ends closer to the file's end was not written by a member.
    if pos % file_bytes + header.size + BLANK_BYTES_MIN > file_bytes:
        return f"size {header.size} does not fit its file"
    if header.pos != pos:
        return f"its position field is {header.pos}"
    if header.index < 0 or header.term < 0:
        return f"index {header.index}, term {header.term}"
    if before is not None and header.index != before.index + 1:
        return f"index {header.index} follows {before.index}"
    # Terms never fall within a log.
    if before is not None and header.term < before.term:
        return f"term {header.term} follows {before.term}"
    return ""


class Walk:
    """Iterates over the valid entries from pos on, skipping blank records.

    header_at: None outside the files. pos: position of the header that is read next; at the end, where the walk stopped.
    stopped_by: why it stopped there.
    """

    def __init__(self, header_at: Callable[[int], EntryHeader | None], pos: int, file_bytes: int) -> None:
        self.pos = pos
        self.stopped_by = ""
        self._header_at = header_at
        self._file_bytes = file_bytes

    def __iter__(self) -> Iterator[EntryHeader]:
        before: EntryHeader | None = None
        while True:
            header = self._header_at(self.pos)
            if header is None:
                self.stopped_by = END_OF_FILES
                return
            if header.is_blank:
                self.pos += self._file_bytes - self.pos % self._file_bytes
                continue
            self.stopped_by = fault_of(header, self.pos, before, self._file_bytes)
            if self.stopped_by:
                return
            yield header
            before = header
            self.pos += header.size
