"""Encoding and decoding of DLedger's files: entries, blank records, index units, and the two text files."""

# Entry, big-endian (docs/spec/04-dledger.md section 5.2).
#   at  type  field      meaning
#    0  i32   magic      1; -1 is a blank record
#    4  i32   size       48 + body bytes
#    8  i64   index      number of the entry, from 0
#   16  i64   term       of the leader that created it
#   24  i64   pos        offset of this header in the data files
#   32  i32   channel    0
#   36  i32   chain_crc  0
#   40  i32   body_crc   0: never computed
#   44  i32   body_len   bytes
#   48  ...   body       a whole message
#
# Blank record, fills a data file after its last entry: i32 -1, i32 bytes left in the file (these 8 included), zeros.
#
# Index unit, 32 bytes, at offset 32 x index of the index files (section 5.3).
#    0  i32   magic      1
#    4  i64   pos        of the entry
#   12  i32   size       of the entry
#   16  i64   index
#   24  i64   term

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC, Entry
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, TERM_MAX, LedgerIndex, Term
from saturnmq.raft.core.state import HardState

HEADER: Final = struct.Struct(">iiqqqiiii")
INDEX_UNIT: Final = struct.Struct(">iqiqq")
BLANK: Final = struct.Struct(">ii")
BLANK_MAGIC: Final = -1
INDEX_UNIT_BYTES: Final = 32
assert HEADER.size == ENTRY_HEADER_BYTES
assert INDEX_UNIT.size == INDEX_UNIT_BYTES


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The first 48 bytes of an entry."""

    magic: int
    size: int
    index: LedgerIndex
    term: Term
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_len: int

    @property
    def is_blank(self) -> bool:
        return self.magic == BLANK_MAGIC


BLANK_HEADER: Final = EntryHeader(BLANK_MAGIC, 0, NO_INDEX, NO_TERM, -1, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """Position, size and term of an entry."""

    magic: int
    pos: int
    size: int
    index: LedgerIndex
    term: Term


def entry_bytes(entry: Entry) -> bytes:
    """Encode an entry."""
    return entries_bytes((entry,))


def entries_bytes(entries: Iterable[Entry]) -> bytes:
    """Encode consecutive entries."""
    pack, parts = HEADER.pack, []
    for entry in entries:
        body = entry.body
        parts.append(pack(entry.magic, entry.size, entry.index, entry.term, entry.pos, entry.channel, 0, 0, len(body)))
        parts.append(body)
    return b"".join(parts)


def read_header(buffer: memoryview, at: int) -> EntryHeader:
    return EntryHeader(*HEADER.unpack_from(buffer, at))


def read_entry(buffer: memoryview, at: int) -> Entry:
    """Decode the entry at this offset of the buffer. Raises CorruptRecord."""
    header = read_header(buffer, at)
    end = at + header.size
    if (
        header.magic != ENTRY_MAGIC
        or header.size != ENTRY_HEADER_BYTES + header.body_len
        or not at < end <= len(buffer)
    ):
        raise CorruptRecord(f"no entry at {at}: magic {header.magic}, size {header.size}, body {header.body_len}")
    # A copy: the mapping may be closed by retention or a truncation while the entry is still in use.
    body = bytes(buffer[at + ENTRY_HEADER_BYTES : end])
    return Entry(header.index, header.term, header.pos, body, header.magic, header.channel)


def index_unit(entry: Entry | EntryHeader) -> bytes:
    """Encode the index unit of an entry."""
    return INDEX_UNIT.pack(entry.magic, entry.pos, entry.size, entry.index, entry.term)


def blank_record(bytes_left: int) -> bytes:
    """Encode the 8-byte head of the blank record that fills the rest of a file, without the zeros after it."""
    return BLANK.pack(BLANK_MAGIC, bytes_left)


# Text files, `key=value` lines (docs/spec/04-dledger.md section 5.4).


def format_term(state: HardState) -> bytes:
    return f"voteLeader={state.voted_for or ''}\ncurrTerm={state.term}\n".encode()


def parse_term(data: bytes) -> HardState:
    """Parse the file `currterm`. Raises ValueError, KeyError."""
    values = _lines(data)
    # Limited, too: a damaged file must not use up the range of terms.
    term = Term(int(values["currTerm"]))
    if not 0 <= term <= TERM_MAX:
        raise ValueError(f"currTerm={term} is not in 0..{TERM_MAX}")
    return HardState(term, values.get("voteLeader") or None)


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """Last stored and last committed index when the checkpoint was written (DL-Q07).

    incomplete: the log may be missing entries that this member has acknowledged (DUR-10); Java members ignore this line.
    """

    end_index: LedgerIndex = NO_INDEX
    committed_index: LedgerIndex = NO_INDEX
    incomplete: bool = False


def format_checkpoint(checkpoint: LedgerCheckpoint) -> bytes:
    lines = f"committedIndex={checkpoint.committed_index}\nendIndex={checkpoint.end_index}\n"
    return (lines + "incomplete=true\n" if checkpoint.incomplete else lines).encode()


def parse_checkpoint(data: bytes) -> LedgerCheckpoint:
    """Parse the file `checkpoint`. Raises ValueError, KeyError."""
    values = _lines(data)
    end_index, committed_index = (LedgerIndex(int(values[name])) for name in ("endIndex", "committedIndex"))
    return LedgerCheckpoint(end_index, committed_index, values.get("incomplete") == "true")


def _lines(data: bytes) -> dict[str, str]:
    # DLedger reads these files with java.util.Properties, whose comments begin with `#`.
    pairs = (line.partition("=") for line in data.decode().splitlines() if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
