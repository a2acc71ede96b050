"""Reads the committed bodies of a ledger in order, as dispatch needs them.

A body's physical offset is the position of its entry plus 48. Consume queues, indexes and message ids hold the body's offset,
never the entry's position.

Requirements: DL-B04, DL-B10..DL-B12, DL-Q08.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import BLANK_HEADER, HEADER, read_header
from saturnmq.raft.ledger.walk import fault_of


class EntryBody(NamedTuple):
    """A message in the ledger: physical offset, position after its entry, and bytes (valid until the file is deleted)."""

    physical_offset: PhysicalOffset
    next_pos: PhysicalOffset
    record: memoryview


def entries_in(view: memoryview, start: int, pos: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """Position, place of the body in the view and length of the body: of the entries from pos to limit, up to what is none.

    view: one file, which starts at the position `start`. Hot path: a follower dispatches every entry through it. Only the
    fields of the layout are compared; `walk.fault_of` has the whole rule.
    """
    unpack = HEADER.unpack_from
    # Where fewer bytes are left, there is no entry but the rest of the file; `body_at` looks at it.
    while limit - pos >= ENTRY_HEADER_BYTES:
        at = pos - start
        magic, size, _, _, its_pos, _, _, _, body_bytes = unpack(view, at)
        if (
            magic != ENTRY_MAGIC
            or its_pos != pos
            # A size of 48 would be an entry without body, which no leader writes (DL-B13).
            or not ENTRY_HEADER_BYTES < size == ENTRY_HEADER_BYTES + body_bytes
            or pos + size > limit
        ):
            return
        yield pos, at + ENTRY_HEADER_BYTES, body_bytes
        pos += size


def body_at(ledger: LedgerFiles, pos: int, committed_pos: int) -> EntryBody | None:
    """The body of the committed entry at pos, or after a blank record there; None at the end of the committed part.

    Raises CorruptRecord if there is neither an entry nor a blank record at pos.
    """
    while pos < committed_pos:
        file = ledger.data.find(pos)
        if file is None or pos >= ledger.end_pos:
            return None
        view = file.view
        # Only committed entries: what follows may be truncated and overwritten by others (DL-Q08).
        located = next(entries_in(view, file.start, pos, min(file.end, committed_pos)), None)
        if located is not None:
            _, at, size = located
            physical = PhysicalOffset(pos + ENTRY_HEADER_BYTES)
            return EntryBody(physical, PhysicalOffset(physical + size), view[at : at + size])
        # The rest of a file may be too short for a header; then the next entry begins the next file.
        header = read_header(view, pos - file.start) if file.end - pos >= ENTRY_HEADER_BYTES else BLANK_HEADER
        if not header.is_blank:
            # Zeros or a half-written entry end the log here; a header that is whole must not be passed over in silence.
            if fault_of(header, pos, None, ledger.file_bytes):
                raise CorruptRecord(f"no entry at {pos} of the ledger: magic {header.magic}, size {header.size}")
            return None
        pos += ledger.file_bytes - pos % ledger.file_bytes
    return None


def bodies(ledger: LedgerFiles, pos: int, committed_pos: int) -> Iterator[EntryBody]:
    """Yield every committed body from pos on; pos is the start of an entry or blank record. Raises CorruptRecord."""
    while (body := body_at(ledger, pos, committed_pos)) is not None:
        yield body
        pos = body.next_pos
