"""Reads the committed bodies of a ledger in order, as dispatch needs them.

A body's physical offset is the position of its entry plus 48. Consume queues, indexes and message ids hold the body's offset,
never the entry's position.

Requirements: DL-B04, DL-B10..DL-B12, DL-Q08.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import BLANK_MAGIC, HEADER


class Body(NamedTuple):
    """A message in the ledger: physical offset, position after its entry, and bytes (valid until the file is deleted)."""

    physical_offset: int
    next_pos: int
    record: memoryview


def body_at(ledger: LedgerFiles, pos: int, committed_pos: int) -> Body | None:
    """The body of the committed entry at pos, or after a blank record there; None at the end of the committed part.

    Raises CorruptRecord if there is neither an entry nor a blank record at pos.
    """
    while pos < committed_pos:
        file = ledger.data.find(pos)
        if file is None or pos >= ledger.end_pos:
            return None
        view, at = file.view, pos - file.start
        if file.size_bytes - at < ENTRY_HEADER_BYTES:
            magic, size, its_pos, body_len = BLANK_MAGIC, 0, pos, 0
        else:
            magic, size, _, _, its_pos, _, _, _, body_len = HEADER.unpack_from(view, at)
        if magic == BLANK_MAGIC:
            pos += ledger.file_bytes - pos % ledger.file_bytes
            continue
        if magic != ENTRY_MAGIC or its_pos != pos or not ENTRY_HEADER_BYTES < size == ENTRY_HEADER_BYTES + body_len:
            raise CorruptRecord(f"no entry at {pos} of the ledger: magic {magic}, size {size}")
        end = pos + size
        if end > committed_pos:
            return None
        return Body(pos + ENTRY_HEADER_BYTES, end, view[at + ENTRY_HEADER_BYTES : at + size])
    return None


def bodies(ledger: LedgerFiles, pos: int, committed_pos: int) -> Iterator[Body]:
    """Yield every committed body from pos on; pos is the start of an entry or blank record. Raises CorruptRecord."""
    while (found := body_at(ledger, pos, committed_pos)) is not None:
        yield found
        pos = found.next_pos
