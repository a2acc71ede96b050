"""Reads the committed part of a ledger: bodies in sequence, or the bytes at a physical offset.

A body's physical offset is the position of its entry plus 48. Consume queues, indexes and message ids hold the body's offset,
never the entry's position.

Requirements: DL-B04, DL-B10..DL-B12, DL-Q08.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import HEADER, read_header


@dataclass(frozen=True, slots=True)
class StoredBody:
    """physical_offset: of the body. next_pos: position after the entry. body: a view, valid until its file is deleted."""

    physical_offset: int
    next_pos: int
    body: memoryview


def bodies(files: LedgerFiles, from_pos: int, committed_pos: int) -> Iterator[StoredBody]:
    """Yield the bodies of the entries from from_pos on that end at or before committed_pos, skipping blank records.

    from_pos must be the start of an entry or the end of the log. Raises CorruptRecord where there is neither an entry nor a
    blank record.
    """
    pos = max(from_pos, files.begin_pos)
    while pos < committed_pos:
        view = files.view(pos)
        if view is None:
            return
        if len(view) < HEADER.size or read_header(view, 0).is_blank:
            pos += files.file_bytes - pos % files.file_bytes
            continue
        header = read_header(view, 0)
        if header.magic != ENTRY_MAGIC or header.pos != pos or header.size != ENTRY_HEADER_BYTES + header.body_len:
            raise CorruptRecord(f"no entry at {pos}: magic {header.magic}, size {header.size}, position {header.pos}")
        end = pos + header.size
        if end > committed_pos:
            return
        yield StoredBody(pos + ENTRY_HEADER_BYTES, end, view[ENTRY_HEADER_BYTES : header.size])
        pos = end


def body_at(files: LedgerFiles, physical_offset: int, size: int) -> memoryview | None:
    """`size` bytes at a physical offset, as referenced by a consume queue unit; None if they are not stored (any longer)."""
    view = files.view(physical_offset)
    return view[:size] if view is not None and 0 < size <= len(view) else None
