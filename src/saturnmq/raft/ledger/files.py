"""The ledger on disk: data files with the entries, index files with their positions.

One writer; any thread may read.

Invariant: all bytes after the last entry are zero, and were zero on disk before anything else was written there. A truncation is
synced before the next append, and recovery clears what a crash left behind. Otherwise, after a crash, a stale entry could follow a
new entry of the same length and pass as valid.

The index is derived from the data and synced less often: with a checkpoint, when a data file is full, at a stop. Invariant:
entries before the last two data files that were begun are on disk, and so are their index units. Recovery reads those two files
and one more, and rewrites the units that a power loss took.

Requirements: DL-S01..DL-S13, DL-X02, DL-X16, DUR-08, DUR-10. Format and truncation: docs/spec/04-dledger.md sections 5 and 3.5.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

from saturnmq.metrics import Histogram
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError, invariant
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC, Entry, entry_position
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term
from saturnmq.raft.ledger import INDEX_FILE_UNITS
from saturnmq.raft.ledger.layout import (
    BLANK,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    EntryHeader,
    IndexUnit,
    blank_record,
    entries_bytes,
    entry_bytes,
    index_unit,
    read_entry,
    read_header,
)
from saturnmq.raft.ledger.partial_files import remove_partial_data, remove_partial_index
from saturnmq.raft.ledger.recover import DataFile, LedgerFacts, LedgerPlan, plan
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import PAGE_BYTES, MappedFile, MappedFiles
from saturnmq.store.files.record_sums import RecordSums

_ZERO_CHUNK: Final = bytes(1_048_576)
_MAGIC_ZEROS: Final = 3  # leading zero bytes of an entry's magic number
BodyCheck = Callable[[memoryview], bool]


def any_body(body: memoryview) -> bool:
    """The body check of a ledger whose bodies are opaque bytes: accepts all."""
    return True


class LedgerFiles:
    """Data and index files of one ledger, in folder/data and folder/index; implements LedgerReader.

    file_bytes: size of a data file, equal on all members (DL-S03).
    start_pos: physical offset at which an empty ledger begins (DL-U01).
    body_is_good: checks a message at recovery and whenever its entry is read (DL-X16, DUR-08).
    data_folders: folders of the data files instead of folder/data.
    may_grow: whether new files may be created in a folder; false for read-only and full ones (DL-S13).
    """

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes: int,
        index_file_units: int = INDEX_FILE_UNITS,
        start_pos: int = 0,
        body_is_good: BodyCheck = any_body,
        disk: Disk | None = None,
        data_folders: Sequence[Path] = (),
        may_grow: Callable[[Path], bool] = lambda folder: True,
    ) -> None:
        self.folder = folder
        self._may_grow = may_grow
        self.file_bytes = file_bytes
        self.disk = disk or Disk()
        self.data = MappedFiles(list(data_folders) or [folder / "data"], file_bytes, self.disk)
        self.index = MappedFiles([folder / "index"], index_file_units * INDEX_UNIT_BYTES, self.disk)
        self._body_is_good = body_is_good
        self._begin = self._end = NO_INDEX
        self._end_term = NO_TERM
        self._end_pos = start_pos
        self._dirty: dict[int, MappedFile] = {}  # data files
        # Both move only when a sync has ended, so what lies before them survives a power loss.
        self._synced_pos = start_pos  # entries before this position are on disk
        self._units_synced = 0  # index units before this entry are on disk
        self._index_due = False  # the next `sync_job` syncs the index, too
        self._file_first = 0  # index of the first entry in the last data file
        self._spare: MappedFile | None = None  # the next data file, preallocated
        self.sync_seconds = Histogram()  # of what `sync_job` returns
        self.recovered = LedgerPlan()
        self.sums = RecordSums(folder, self.disk)
        # Called with the index up to which entries were lost to damage, before anything is removed: it must make that durable.
        self.on_loss: Callable[[LedgerIndex], None] = lambda index: None
        self._differing: set[int] = (
            set()
        )  # positions of entries that differ from their checksums, until they are repaired
        self.damaged = -1  # index of the entry for which CorruptRecord was raised last

    @property
    def begin_index(self) -> LedgerIndex:
        return self._begin

    @property
    def end_index(self) -> LedgerIndex:
        return self._end

    @property
    def end_term(self) -> Term:
        return self._end_term

    @property
    def end_pos(self) -> int:
        return self._end_pos

    @property
    def dirty(self) -> bool:
        """Whether an entry was written since the last `sync_job`."""
        return bool(self._dirty)

    def request_index_sync(self) -> bool:
        """Let the next `sync_job` sync the index, too; returns whether it has anything to sync."""
        self._index_due = self._units_synced <= self._end
        return self._index_due

    @property
    def begin_pos(self) -> int:
        """Physical offset of the first entry; of an empty ledger, its end."""
        first = self._unit(self._begin) if self._begin >= 0 else None
        return first.pos if first is not None else self._end_pos

    # open, close

    def open(self, *, rewrite_index: bool = False) -> None:
        """Load and recover. rewrite_index: do not trust the index units of the scanned files, for a sync of the index failed.

        Raises CorruptRecord for a wrong file size, a missing file or damage in the middle (DL-S05..DL-S07).
        """
        # Before `load`, which refuses files of a wrong size; the index first, because the data's rule asks it.
        remove_partial_index(self.index, self.disk)
        self.index.load()
        remove_partial_data(self.data, self.index, self.disk)
        self.data.load()
        _sync_folders(self.disk, self.data.folders)  # a killed process may have deleted files without a sync
        evidence = self.sums.load()
        begin = self.data.files[0].start if self.data.files else 0
        self._differing = set(evidence.damaged(self._bytes_at, begin))
        recovery = self.recovered = plan(
            LedgerFacts(
                [DataFile(file.start, self._head_of(file)) for file in self.data.files],
                self.file_bytes,
                self._header_at,
                self._unit,
                self._good_body,
                rewrite_index,
            )
        )
        self._differing = {pos for pos in self._differing if pos < recovery.end_pos}  # the others are cut off
        # Durable before anything is removed: a crash in between must not make the shorter log look whole (DUR-10).
        if evidence.reach > recovery.end_index:
            self.on_loss(LedgerIndex(evidence.reach))
            self.sums.discard()
        if not self.data.files:  # an index without data files is of a log that was dropped
            self._drop(self.index)
            return
        self._begin, self._end = recovery.begin_index, recovery.end_index
        self._end_term, self._end_pos = recovery.end_term, recovery.end_pos
        for header in recovery.reindexed:
            self._write_units(header.index, [index_unit(header)])
        self._clear_behind(recovery)
        # Everything that recovery kept has been flushed by `_clear_behind`.
        self._synced_pos, self._units_synced = self._end_pos, self._end + 1
        self._file_first = self._first_in(self._end_pos - 1)

    def close(self) -> None:
        self._drop_spare()
        self.sums.close()
        self.data.close()
        self.index.close()

    def _head_of(self, file: MappedFile) -> EntryHeader | None:
        """Header of the first entry in a file. If truncation restarted the log within the file, the index has its position.

        Without an index the position is found by the zeros before it.
        """
        header = read_header(file.view, 0)
        # Only in the first file can the log begin in the middle: truncation restarts it there.
        if header.magic == ENTRY_MAGIC or file is not self.data.files[0]:
            return header
        for index_file in self.index.files:
            for at in range(0, index_file.size_bytes, INDEX_UNIT_BYTES):
                magic, pos, *_ = INDEX_UNIT.unpack_from(index_file.view, at)
                if magic == ENTRY_MAGIC:
                    # A unit of a file that retention has deleted is not this file's.
                    return self._header_at(pos) if file.start <= pos < file.end else header
        used = first_used(file)
        first = self._header_at(used - _MAGIC_ZEROS) if used >= 0 else None  # the magic number is 1, after three zeros
        return first if first is not None and first.pos == used - _MAGIC_ZEROS else header

    @property
    def first_differing(self) -> int:
        """Index of the first entry in an older file that differs from its checksum; -1 if there is none."""
        if not self._differing:
            return -1
        pos, low, high = min(self._differing), int(self._begin), int(self._end)
        while low < high:  # by binary search: positions rise with the index, and a missing unit counts as too far
            unit = self._unit(middle := (low + high) // 2)
            low, high = (low, middle) if unit is None or unit.pos >= pos else (middle + 1, high)
        return low

    def forget_sums(self, index: LedgerIndex | None = None) -> None:
        """Delete the checksums of entries up to an index, of all entries without one, which a durable checkpoint covers now."""
        if self._differing:
            return  # the next start has to find these entries again
        if index is None:
            self.sums.discard()
        else:
            self.sums.forget(index)

    def _bytes_at(self, pos: int, size: int) -> memoryview | None:
        file = self.data.find(pos)
        return file.view[pos - file.start : pos - file.start + size] if file is not None else None

    def _first_in(self, pos: int) -> int:
        """Index of the first entry in the file that holds a position; 0 if the log begins within the file."""
        file = self.data.find(pos)
        head = read_header(file.view, 0) if file is not None else None
        return head.index if head is not None and head.magic == ENTRY_MAGIC else 0

    def _good_body(self, header: EntryHeader) -> bool:
        file = self.data.find(header.pos)
        # Recovery must not accept what differs from what was synced, though its own checks pass.
        if file is None or header.pos in self._differing:
            return False
        at = header.pos - file.start
        return self._body_is_good(file.view[at + ENTRY_HEADER_BYTES : at + header.size])

    def _clear_behind(self, recovery: LedgerPlan) -> None:
        """Clear everything after the recovered end, and sync both that and the entries that are kept."""
        # The end may lie exactly at the end of a file, so the byte before it decides; an empty log keeps its first file.
        last = self.data.find(max(self._end_pos - 1, self.data.files[0].start))
        invariant(last is not None, "the end of the log lies in a file")
        assert last is not None
        for file in [
            file for file in reversed(self.data.files) if file.start > last.start
        ]:  # a crash must leave no gap
            file.delete()
            self.data.files.remove(file)
        _clear(last, self._end_pos - last.start, last.size_bytes)
        for file in self.data.files[-3:]:  # as many as recovery scans (SCANNED_FILES)
            file.flush()
        self._cut_index(self._end + 1)
        for file in self.index.files:
            # Only index files with units that recovery may have written.
            if file.end > recovery.scanned_from * INDEX_UNIT_BYTES:
                file.flush()
        _sync_folders(self.disk, self.data.folders)

    # read

    def entry(self, index: int) -> Entry | None:
        """The entry; None outside begin..end.

        Raises CorruptRecord, naming file and byte, if the index unit is missing, index and data disagree, or the body check fails.
        A damaged entry must not be replicated, compared, or taken for a deleted one (DUR-08, DUR-10).
        """
        if not 0 <= self._begin <= index <= self._end:  # `_begin` is -1 in an empty ledger
            return None
        try:
            return self._entry(index)
        except CorruptRecord:
            self.damaged = index
            raise

    def _entry(self, index: int) -> Entry:
        unit = self._unit(index)
        if unit is None:
            raise CorruptRecord(f"{self._unit_place(index)}: entry {index} is missing from the index")
        file = self.data.find(unit.pos)
        if file is None:
            raise CorruptRecord(
                f"{self._unit_place(index)}: the index places entry {index} at {unit.pos}, where there is no file"
            )
        at = unit.pos - file.start
        try:
            entry = read_entry(file.view, at)
        except CorruptRecord as error:
            raise CorruptRecord(f"{file.path}, byte {at}, should hold entry {index}: {error.message}") from error
        if unit.pos in self._differing:
            raise CorruptRecord(f"{file.path}, byte {at}: entry {index} is not what was synced there")
        # The unit is good and points to another entry: index and data disagree.
        if (entry.index, entry.pos) != (index, unit.pos):
            raise CorruptRecord(
                f"{file.path}, byte {at}: the index places entry {index} at {unit.pos}, where entry {entry.index} is"
            )
        if not self._is_valid_body(entry.body):
            raise CorruptRecord(
                f"{file.path}, byte {at + ENTRY_HEADER_BYTES}: the body of entry {index} ({len(entry.body)} bytes) is damaged"
            )
        return entry

    def _is_valid_body(self, body: bytes) -> bool:
        return self._body_is_good(memoryview(body))

    def view(self, pos: int) -> memoryview | None:
        """The bytes from pos to the end of the file or of the log; None if there are none. Valid until the file is deleted."""
        file = self.data.find(pos)
        if file is None or pos >= self._end_pos:
            return None
        return file.view[pos - file.start : min(file.size_bytes, self._end_pos - file.start)]

    def _header_at(self, pos: int) -> EntryHeader | None:
        file = self.data.find(pos)
        if file is None or pos - file.start > file.size_bytes - ENTRY_HEADER_BYTES:
            return self._blank_at(file, pos)
        return read_header(file.view, pos - file.start)

    def _blank_at(self, file: MappedFile | None, pos: int) -> EntryHeader | None:
        """A blank or zero header where the rest of the file is shorter than an entry's header; None outside the files."""
        if file is None:
            return None
        remaining_bytes = file.end - pos
        magic = (  # fewer than 4 bytes hold no magic number: they count as zeros
            int.from_bytes(file.view[pos - file.start : pos - file.start + 4], "big", signed=True)
            if remaining_bytes >= 4
            else 0
        )
        return EntryHeader(magic, 0, NO_INDEX, NO_TERM, -1, 0, 0, 0, 0)

    def _unit(self, index: int) -> IndexUnit | None:
        file = self.index.find(index * INDEX_UNIT_BYTES) if index >= 0 else None
        if file is None:
            return None
        unit = IndexUnit(*INDEX_UNIT.unpack_from(file.view, index * INDEX_UNIT_BYTES - file.start))
        # A unit of another index is a leftover of a file that was used before; zeros have no magic.
        return unit if unit.magic == ENTRY_MAGIC and unit.index == index else None

    def bytes_after(self, index: int) -> int:
        """Size of the ledger after an entry, in bytes; of the whole ledger if the entry is not in it."""
        unit = self._unit(index)
        return self.end_pos - (unit.pos + unit.size if unit is not None else self.begin_pos)

    def _unit_place(self, index: int) -> str:
        """File and byte of an entry's index unit, for error messages."""
        file = self.index.find(index * INDEX_UNIT_BYTES)
        return f"{file.path}, byte {index * INDEX_UNIT_BYTES - file.start}" if file is not None else "no index file"

    # write

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries at the end. Raises DiskFull, StoreError; entries already written to earlier files stay.

        Entries of the file in which the write failed are not part of the log then, but the next start may find some of them.
        """
        run: list[Entry] = []  # consecutive entries of one file
        end, last = self._end_pos, self._end
        for entry in entries:
            pos, size, index = entry.pos, entry.size, entry.index
            if pos != entry_position(end, size, self.file_bytes) or (last >= 0 and index != last + 1):
                self._write(run)
                invariant(False, f"entry {index} at {pos} does not follow entry {last}, which ends at {end}")
            # A run never spans two files: each is one copy into one mapping.
            if run and (pos != end or pos % self.file_bytes == 0):
                self._write(run)
                run = []
            run.append(entry)
            end, last = pos + size, index
        self._write(run)

    def _write(self, run: list[Entry]) -> None:
        """Write consecutive entries of one file, then their index units, with one copy each.

        The first entry of a log is synced before any other is written: a later one that survives a crash alone would be taken
        for the begin of the log.
        """
        if not run:
            return
        if self._end < 0:
            self._write_run(run[:1])
            # Its index unit says where the log begins if that is in the middle of a file (`_head_of`).
            self._index_due = True
            self.sync_job()()
            run = run[1:]
        if run:
            self._write_run(run)

    def _write_run(self, run: list[Entry]) -> None:
        first, last = run[0], run[-1]
        file = self._file_for(first.pos)
        data = entries_bytes(run)
        file.map[first.pos - file.start : last.end_pos - file.start] = data
        add, view, at = self.sums.add, memoryview(data), 0
        for entry in run:
            size = entry.size
            # Over header and body: it finds damage in the header too, which a message's own CRC does not cover.
            add((entry.pos, size, crc32(view[at : at + size])))
            at += size
        self._dirty[id(file)] = file  # by identity: the same file is written again and again between two syncs
        # After the data: the index is derived, and a unit without its entry would be taken for damage.
        self._write_units(first.index, [index_unit(entry) for entry in run])
        if self._end < 0:
            self._begin = first.index
            self._units_synced = self._file_first = first.index
        elif first.pos == file.start:
            self._file_first = first.index
        self._end, self._end_term, self._end_pos = last.index, last.term, last.end_pos

    def repair(self, entry: Entry) -> bool:
        """Overwrite a damaged committed entry with a good copy. Returns False if the copy does not fit between its neighbours."""
        index = entry.index
        # The copy comes from the network and overwrites the log: it has to be a committed entry as it was written.
        if not (0 <= self._begin <= index <= self._end and entry.well_formed and self._is_valid_body(entry.body)):
            return False
        file = self.data.find(entry.pos)
        if file is None or not self._begins(entry) or not self._ends(entry, file):
            return False
        file.map[entry.pos - file.start : entry.end_pos - file.start] = entry_bytes(entry)
        self._dirty[id(file)] = file
        self._write_units(index, [index_unit(entry)])
        self._units_synced = min(self._units_synced, index)  # the unit was written again and has to be synced again
        self._differing.discard(entry.pos)
        return True

    def _begins(self, entry: Entry) -> bool:
        """Whether the entry begins where its predecessor ends; for the first entry, where the index says."""
        if entry.index == self._begin:
            unit = self._unit(entry.index)
            return unit is not None and unit.pos == entry.pos
        before = self._unit(entry.index - 1)
        return before is not None and entry_position(before.pos + before.size, entry.size, self.file_bytes) == entry.pos

    def _ends(self, entry: Entry, file: MappedFile) -> bool:
        """Whether the next entry, a blank record or the end of the log directly follows the entry."""
        if entry.index == self._end:
            return entry.end_pos == self._end_pos
        after = self._unit(entry.index + 1)
        # A member without the next unit cannot say where the entry must end.
        if after is None or after.pos == entry.end_pos:
            return after is not None
        at, remaining_bytes = entry.end_pos - file.start, file.end - entry.end_pos
        return (
            after.pos == file.end
            and remaining_bytes >= BLANK.size
            and file.view[at : at + BLANK.size] == blank_record(remaining_bytes)
        )

    def _file_for(self, pos: int) -> MappedFile:
        """The file that holds pos, created if needed; the previous file is then closed with a blank record (DL-S02)."""
        file = self.data.find(pos)
        if file is not None:
            return file
        if self.data.files and self._end_pos < self.data.files[-1].end:  # else there is nothing to fill
            last = self.data.files[-1]
            at = self._end_pos - last.start
            blank = blank_record(last.size_bytes - at)
            last.map[at : at + len(blank)] = blank
            self._dirty[id(last)] = last
        self._index_due = True
        # Bounds what a crash can take to the last two files that were begun, which is what recovery reads.
        if self._end >= 0 and (self._synced_pos < self._last_start or self._units_synced < self._file_first):
            self._dirty |= {id(file): file for file in self.data.files if file.end > self._synced_pos}
            self.sync_job()()  # no sync has ended since the last file was begun
        start = pos - pos % self.file_bytes
        # The next file must follow the last one: the positions of entries are continuous.
        for gap in range(self.data.files[-1].end if self.data.files else start, start, self.file_bytes):
            raise StoreError(f"data file {gap} is missing before {start}")
        new_file = self._spare
        if new_file is None or new_file.start != start:  # the spare was made for another position before a truncation
            self._drop_spare()
            new_file = self._make(start)
        self._spare = None
        self.data.files.append(new_file)
        return new_file

    @property
    def _last_start(self) -> int:
        return self.data.files[-1].start if self.data.files else 0

    def _make(self, start: int) -> MappedFile:
        """Create a data file; folders that accept new files are used round-robin, sorted, by the file's number."""
        folders = sorted(folder for folder in self.data.folders if self._may_grow(folder))
        if not folders:
            raise DiskFull(f"none of the folders {', '.join(map(str, self.data.folders))} takes new files")
        # By the file's number, so that a restart goes on in the same order.
        return self.data.make(start, folders[start // self.file_bytes % len(folders)])

    def prepare(self) -> None:
        """Preallocate the next data file while the last one still has space, so that a full disk is noticed early.

        Does nothing as long as half of the last file is free. Raises DiskFull, StoreError; the ledger is then unchanged.
        """
        last = self.data.files[-1] if self.data.files else None
        start = last.end if last is not None else self._end_pos - self._end_pos % self.file_bytes
        if self._spare is not None and self._spare.start == start:
            return
        if last is None or self._end_pos - last.start > self.file_bytes // 2:
            self._drop_spare()
            self._spare = self._make(start)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.delete()
            self._spare = None

    def _write_units(self, index: int, units: Sequence[bytes]) -> None:
        """Write index units for the entries from index on."""
        at = 0
        while at < len(units):
            offset = (index + at) * INDEX_UNIT_BYTES
            file = self.index.find(offset)
            if file is None:
                # A unit file begins at a multiple of its size, whatever index the log begins with.
                start = offset - offset % self.index.size_bytes
                if self.index.files and self.index.files[-1].end != start:
                    # The log restarted at an index far from the old ones; files of an index are contiguous, too.
                    self._drop(self.index)
                file = self.index.make(start)
                self.index.files.append(file)
            data = b"".join(units[at : at + (file.end - offset) // INDEX_UNIT_BYTES])
            file.map[offset - file.start : offset - file.start + len(data)] = data
            at += len(data) // INDEX_UNIT_BYTES

    def cut(self, index: int, end_pos: int, *, restart: bool = False) -> None:
        """Remove the entries from index on, durably; restart: remove all, the next entry lies at end_pos (spec section 3.5)."""
        self._drop_spare()  # it was made for the position after the old last file
        # Before the entries: their checksums would later report them as lost.
        self.sums.discard(0 if restart or index <= self._begin else end_pos)
        if restart or index <= self._begin:
            self._dirty.clear()  # those files are deleted; a sync of them would fail
            self._drop(self.data)
            self._drop(self.index)
            self._begin = self._end = NO_INDEX
            self._end_term = NO_TERM
            self._end_pos = end_pos
            self._synced_pos, self._units_synced, self._file_first = end_pos, 0, 0
            return
        before = self._unit(index - 1)
        invariant(
            before is not None and before.pos + before.size == end_pos, f"cut at {index}: {end_pos} is no boundary"
        )
        assert before is not None
        keep = self.data.find(end_pos - 1)  # at a file's boundary the file before it is kept
        assert keep is not None
        later = [file for file in reversed(self.data.files) if file.start > keep.start]  # a crash must leave no gap
        # Without later files only the bytes up to the old end can be other than zero.
        old_end = keep.size_bytes if later else self._end_pos - keep.start
        for file in later:
            self._dirty.pop(id(file), None)
            self.data.files.remove(file)
            file.delete()
        # Zeros on disk before the next append, by the invariant of this module.
        _clear(keep, end_pos - keep.start, old_end)
        keep.flush()
        self._cut_index(index)
        if self.index.files:
            self.index.files[-1].flush()  # a unit of a removed entry would make a file without data look damaged
        self._end, self._end_term, self._end_pos = LedgerIndex(index - 1), before.term, end_pos
        self._synced_pos, self._units_synced = min(self._synced_pos, end_pos), min(self._units_synced, index)
        self._file_first = self._first_in(end_pos - 1)
        _sync_folders(self.disk, self.data.folders)  # deleted files must not come back after a crash

    def _cut_index(self, index: int) -> None:
        """Zero the index units from index on and delete index files that are no longer used."""
        offset = index * INDEX_UNIT_BYTES
        # The first file stays: units of earlier entries are in it.
        for file in [file for file in reversed(self.index.files[1:]) if file.start >= offset]:
            self.index.files.remove(file)
            file.delete()
        if self.index.files:
            last = self.index.files[-1]
            at = max(offset - last.start, 0)
            # Units may reach further than the log after a crash, up to what recovery had found before it cut.
            end = min(max(self._end + 1, self.recovered.end_index + 1) * INDEX_UNIT_BYTES - last.start, last.size_bytes)
            _clear(last, at, last.size_bytes if end <= at else end)

    def _drop(self, files: MappedFiles) -> None:
        if files.files:
            files.delete()
            _sync_folders(self.disk, files.folders)

    def sync_job(self) -> Callable[[], None]:
        """Return a function that fsyncs all entries written so far, to be called in another thread. It raises OSError.

        It syncs the index, too, if that was requested or a data file is full. Until it has returned, neither `cut` nor
        `delete_oldest` may be called: they close files.
        """
        # Taken at the call: what is written while the sync runs belongs to the next one.
        dirty, self._dirty = list(self._dirty.values()), {}
        begin, end, last = self._synced_pos, self._end_pos, self._end
        index = self._index_job() if self._index_due else None
        self._index_due = False

        def sync() -> None:
            began = monotonic()
            for file in dirty:
                file.flush()
            # After the data: a checksum of an entry that is not on disk would report it as damaged at the next start.
            self.sums.write(end, last)
            if self._synced_pos == begin:  # otherwise the log was truncated
                self._synced_pos = end
            if index is not None:
                index()
            self.sync_seconds.observe(monotonic() - began)

        return sync

    def _index_job(self) -> Callable[[], None]:
        """Return a function that fsyncs the index units written so far."""
        units = range(self._units_synced, self._end + 1)
        begin, end = units.start * INDEX_UNIT_BYTES, units.stop * INDEX_UNIT_BYTES
        files = [file for file in self.index.files if begin < file.end and file.start < end]

        def sync() -> None:
            for file in files:
                file.flush()
            # Compared by the value at the start: a truncation or a repair in between has set it back.
            if self._units_synced == units.start:  # otherwise an entry was repaired meanwhile
                self._units_synced = units.stop

        return sync

    # retention

    def delete_oldest(self) -> LedgerIndex:
        """Delete the first data file and index files before the new begin (DL-S12), unless the others have no synced entry.

        Returns the new begin index.
        """
        # A crash could otherwise leave a log whose only synced part was deleted.
        if len(self.data.files) < 2 or self._synced_pos <= self.data.files[1].start:
            return self._begin
        head = read_header(self.data.files[1].view, 0)
        invariant(head.magic == ENTRY_MAGIC, "a data file begins with an entry")
        self._dirty.pop(id(self.data.files[0]), None)
        self.data.files.pop(0).delete()
        self._begin = head.index
        # By the new begin: one index file covers many data files.
        while len(self.index.files) > 1 and self.index.files[0].end <= head.index * INDEX_UNIT_BYTES:
            self.index.files.pop(0).delete()
        return self._begin


def _sync_folders(disk: Disk, folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.is_dir():
            disk.sync_folder(folder)


def _clear(file: MappedFile, at: int, end: int) -> None:
    """Zero the bytes at..end of a file, writing only chunks that are not zero already."""
    while at < end:
        stop = min(at + len(_ZERO_CHUNK), end)
        zeros = _ZERO_CHUNK[: stop - at]
        if file.map[at:stop] != zeros:
            file.map[at:stop] = zeros
        else:
            first = -(-at // PAGE_BYTES) * PAGE_BYTES  # only whole pages can be dropped
            if stop > first:
                file.map.madvise(mmap.MADV_DONTNEED, first, stop - first)  # drop the pages that the comparison read
        at = stop


def first_used(file: MappedFile) -> int:
    """Position of the first byte of a file that is not zero; -1 if there is none."""
    for at in range(0, file.size_bytes, len(_ZERO_CHUNK)):
        chunk = file.map[at : at + len(_ZERO_CHUNK)]
        used_tail = chunk.lstrip(b"\0")  # chunk by chunk, so that a hole of a gigabyte is not copied into memory
        if used_tail:
            return file.start + at + len(chunk) - len(used_tail)
    file.forget_pages(file.end)
    return -1
