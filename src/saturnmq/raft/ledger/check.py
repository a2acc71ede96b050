"""Offline check of ledgers: verifies one, or compares several. Read-only; no process may have them open.

On-disk format: docs/spec/04-dledger.md section 5.

Requirements: DL-S06.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term
from saturnmq.raft.core.state import HardState
from saturnmq.raft.ledger.files import BodyCheck, any_body
from saturnmq.raft.ledger.layout import (
    BLANK_HEADER,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    EntryHeader,
    IndexUnit,
    parse_checkpoint,
    parse_term,
    read_header,
)
from saturnmq.raft.ledger.recover import matches
from saturnmq.raft.ledger.walk import END_OF_FILES, NO_ENTRY, Walk
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import numbered_files
from saturnmq.store.files.record_sums import RecordSums


@dataclass(slots=True)
class LedgerReport:
    """Result of `verify`. problems: one sentence each; empty if the ledger is intact."""

    folder: Path
    files: int = 0
    begin_index: LedgerIndex = NO_INDEX
    end_index: LedgerIndex = NO_INDEX
    last_term: Term = NO_TERM
    end_pos: int = 0
    term: Term = NO_TERM
    voted_for: str | None = None
    committed_index: LedgerIndex = NO_INDEX
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first index at which ledgers differ. entries: folder -> "term position size" or "missing"."""

    index: int
    entries: dict[Path, str]


class _Files:
    """The files of one folder, mapped read-only."""

    def __init__(self, folder: Path) -> None:
        self.paths = numbered_files(folder)
        self.bytes = self.paths[0].stat().st_size if self.paths else 0
        self.maps: list[tuple[int, mmap.mmap]] = []
        for path in self.paths:
            if path.stat().st_size != self.bytes:
                raise CorruptRecord(f"{path} is {path.stat().st_size} bytes long, the first file is {self.bytes}")
            with path.open("rb") as file:
                self.maps.append((int(path.name), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    def close(self) -> None:
        for _, mapped in self.maps:
            mapped.close()

    def location(self, offset: int) -> str:
        """File and byte of an offset, for messages to the operator."""
        # By arithmetic: the files follow each other without a gap, each of the same size.
        number = (offset - self.maps[0][0]) // self.bytes if self.maps else -1
        if not 0 <= number < len(self.maps):
            return f"position {offset}"
        return f"{self.paths[number]} at byte {offset - self.maps[number][0]}"

    def at(self, offset: int, size: int) -> bytes | None:
        if not self.maps:
            return None
        number = (offset - self.maps[0][0]) // self.bytes
        if not 0 <= number < len(self.maps):
            return None
        start, mapped = self.maps[number]
        piece = mapped[offset - start : offset - start + size]
        return piece if len(piece) == size else None


def _header_at(data: _Files, pos: int) -> EntryHeader | None:
    """The header at pos; a blank one where the rest of the file is too short for a header, None behind the last file."""
    head = data.at(pos, ENTRY_HEADER_BYTES)
    if head is not None:
        return read_header(memoryview(head), 0)
    return BLANK_HEADER if data.at(pos, 4) == b"\xff\xff\xff\xff" else None


def _entries(data: _Files, problems: list[str]) -> Iterator[tuple[EntryHeader, bytes]]:
    """Yield the valid entries from the first file on; if they do not end at the end of the log, the reason becomes a problem."""
    if not data.maps:
        return
    walk = Walk(lambda pos: _header_at(data, pos), data.maps[0][0], data.bytes)
    for header in walk:
        whole = data.at(header.pos, header.size)
        assert whole is not None
        yield header, whole[ENTRY_HEADER_BYTES:]
    # A damaged entry also ends the walk, but it is no normal end.
    if walk.stopped_by not in (END_OF_FILES, NO_ENTRY):
        problems.append(f"the entries end at {walk.pos}: {walk.stopped_by}")


def verify(folder: Path, *, body_is_good: BodyCheck = any_body) -> LedgerReport:
    """Verify a member's folder from its first file to its last entry. Raises CorruptRecord if file sizes differ.

    Entries for which there is a checksum beside the log must be what was synced.
    """
    report = LedgerReport(folder)
    data, index = _Files(folder / "data"), _Files(folder / "index")
    try:
        report.files = len(data.maps)
        report.end_pos = data.maps[0][0] if data.maps else 0
        evidence = RecordSums(folder, Disk()).load()
        # Positions of entries whose bytes are not what the checksums recorded at their sync.
        differing = set(evidence.damaged(data.at, report.end_pos))
        for header, body in _entries(data, report.problems):
            if report.begin_index < 0:
                report.begin_index = header.index
            report.end_index, report.last_term, report.end_pos = header.index, header.term, header.pos + header.size
            raw = index.at(header.index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
            if raw is None or not matches(header, IndexUnit(*INDEX_UNIT.unpack(raw))):
                report.problems.append(f"the index has no unit for entry {header.index}")
            if not body_is_good(memoryview(body)):
                report.problems.append(f"the body of entry {header.index} is damaged")
            if header.pos in differing:
                differing.remove(header.pos)
                report.problems.append(
                    f"entry {header.index} ({data.location(header.pos)}) differs from what was synced, by its checksum in a file "
                    "checksums-N: its header or its body changed"
                )
        where = f"; the first damaged one was at {data.location(min(differing))}" if differing else ""
        # The checksums reach further than the log: entries were lost after they were synced.
        if evidence.reach > report.end_index:
            report.problems.append(
                f"the log ends at entry {report.end_index}, but those up to {evidence.reach} were synced, "
                f"by a file checksums-N{where}"
            )
        elif differing:
            report.problems.append(f"{len(differing)} entries that were synced are missing{where}")
    finally:
        data.close()
        index.close()
    _read_states(report)
    return report


def _read_states(report: LedgerReport) -> None:
    for name in ("currterm", "checkpoint"):
        path = report.folder / name
        try:
            data = path.read_bytes()
            state = parse_term(data) if name == "currterm" else parse_checkpoint(data)
        except FileNotFoundError:
            report.problems.append(f"{name} is missing")
            continue
        except (ValueError, KeyError) as error:
            report.problems.append(f"{name} cannot be read: {error}")
            continue
        if isinstance(state, HardState):
            report.term, report.voted_for = state.term, state.voted_for
            if state.term < report.last_term:
                report.problems.append(f"currterm is {state.term}, the last entry is of term {report.last_term}")
        else:
            report.committed_index = state.committed_index
            if state.committed_index > report.end_index:
                report.problems.append(f"committed up to {state.committed_index}, the log ends at {report.end_index}")
            if state.incomplete:
                report.problems.append(
                    "by its checkpoint, acknowledged entries are missing until a leader replicates them"
                )


def compare(folders: Sequence[Path]) -> Difference | None:
    """Compare ledgers, bodies included, from the highest begin index on. Returns the first difference; None if equal.

    A ledger that ends before another differs at that index: it lags, or the other's tail is not committed.
    """
    begin = max((verify(folder).begin_index for folder in folders), default=-1)
    opened = [_Files(folder / "data") for folder in folders]
    try:
        walks = [((h, b) for h, b in _entries(files, []) if h.index >= begin) for files in opened]
        for number, row in enumerate(zip_longest(*walks)):
            first = row[0]
            if any(entry is None or first is None or entry[0] != first[0] or entry[1] != first[1] for entry in row):
                entries = {
                    folder: "missing" if entry is None else f"{entry[0].term} {entry[0].pos} {entry[0].size}"
                    for folder, entry in zip(folders, row, strict=True)
                }
                return Difference(max(begin, 0) + number, entries)
        return None
    finally:
        for files in opened:
            files.close()
