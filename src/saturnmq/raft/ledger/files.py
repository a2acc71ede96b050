"""The ledger on disk: data files with the entries, index files with their places. One writer; reads may come from anywhere.

Behind the last entry everything is zero, and was so on disk before anything else was written there: a cut is synced before the
next append, a recovery clears what a crash left. Otherwise an old entry could follow a new one of the same length.
Source: spec 04 sections 2.9, 3.5 and 5.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError, invariant
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC, Entry, place
from saturnmq.raft.ledger.layout import (
    BLANK,
    INDEX_FILE_UNITS,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    Header,
    IndexUnit,
    blank_record,
    entries_bytes,
    entry_bytes,
    index_unit,
    read_entry,
    read_header,
)
from saturnmq.raft.ledger.recover import DataFile, Facts, Plan, plan
from saturnmq.raft.ledger.unborn_files import drop_unborn_data, drop_unborn_index
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import PAGE_BYTES, MappedFile, MappedFiles

_ZERO_CHUNK: Final = bytes(1_048_576)
BodyCheck = Callable[[memoryview], bool]


def any_body(body: memoryview) -> bool:
    """The check of a ledger whose bodies are plain bytes."""
    return True


class LedgerFiles:
    """folder holds `data` and `index`. It is a LedgerReader.

    file_bytes: length of a data file, equal on all members (DL-S03). start_pos: where an empty ledger begins (DL-U01).
    body_is_good looks at a message at recovery and whenever its entry is read (DL-X16, DUR-08). data_folders: where data files
    lie, instead of folder/data; may_grow: whether a folder takes new files, which read-only and full ones do not (DL-S13).
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
        self._begin = -1
        self._end = -1
        self._end_term = -1
        self._end_pos = start_pos
        self._dirty: dict[int, MappedFile] = {}
        self._spare: MappedFile | None = None  # the next data file, made before it is needed
        self.recovered = Plan()
        self.damaged = -1  # the entry that CorruptRecord was last raised for

    @property
    def begin_index(self) -> int:
        return self._begin

    @property
    def end_index(self) -> int:
        return self._end

    @property
    def end_term(self) -> int:
        return self._end_term

    @property
    def end_pos(self) -> int:
        return self._end_pos

    @property
    def dirty(self) -> bool:
        """Whether something was written since the last `sync_job`."""
        return bool(self._dirty)

    @property
    def begin_pos(self) -> int:
        """Offset of the first entry; the end of an empty ledger."""
        first = self._unit(self._begin) if self._begin >= 0 else None
        return first.pos if first is not None else self._end_pos

    # open, close

    def open(self) -> None:
        """Load and recover. Raises CorruptRecord for a wrong file size, a missing file or damage in the middle (DL-S05..07)."""
        drop_unborn_index(self.index, self.disk)
        self.index.load()
        drop_unborn_data(self.data, self.index, self.disk)
        self.data.load()
        made = self.recovered = plan(
            Facts(
                [DataFile(file.start, self._head_of(file)) for file in self.data.files],
                self.file_bytes,
                self._header_at,
                self._unit,
                self._good_body,
            )
        )
        if not self.data.files:
            self._drop(self.index)
            return
        self._begin, self._end = made.begin_index, made.end_index
        self._end_term, self._end_pos = made.end_term, made.end_pos
        for header in made.found:
            self._write_units(header.index, [index_unit(header)])
        self._clear_behind(made)

    def close(self) -> None:
        self._drop_spare()
        self.data.close()
        self.index.close()

    def _head_of(self, file: MappedFile) -> Header | None:
        """The first entry of a file; in a file that a cut began in the middle the index knows it."""
        header = read_header(file.view, 0)
        if header.magic == ENTRY_MAGIC or file is not self.data.files[0]:
            return header
        for index_file in self.index.files:
            for at in range(0, index_file.size_bytes, INDEX_UNIT_BYTES):
                magic, pos, *_ = INDEX_UNIT.unpack_from(index_file.view, at)
                if magic == ENTRY_MAGIC:
                    return self._header_at(pos) if file.start <= pos < file.end else header
        return header

    def _good_body(self, header: Header) -> bool:
        file = self.data.find(header.pos)
        if file is None:
            return False
        at = header.pos - file.start
        return self._body_is_good(file.view[at + ENTRY_HEADER_BYTES : at + header.size])

    def _clear_behind(self, made: Plan) -> None:
        """What a crash left behind the end goes, on disk, and what is kept is on disk."""
        last = self.data.find(max(self._end_pos - 1, self.data.files[0].start))
        invariant(last is not None, "the end of the log lies in a file")
        assert last is not None
        for file in [file for file in self.data.files if file.start > last.start]:
            file.delete()
            self.data.files.remove(file)
        _clear(last, self._end_pos - last.start, last.size_bytes)
        for file in self.data.files[-3:]:
            file.flush()
        self._cut_index(self._end + 1)
        for file in self.index.files[-2:]:
            file.flush()
        _sync_folders(self.disk, self.data.folders)

    # read

    def entry(self, index: int) -> Entry | None:
        """The entry; None outside of begin..end.

        Raises CorruptRecord, naming file and byte, when the index lost it, index and data do not agree or the body is not good:
        damage is neither sent on, compared with nor taken for an entry that was deleted (DUR-08, DUR-10).
        """
        if not 0 <= self._begin <= index <= self._end:
            return None
        try:
            return self._entry(index)
        except CorruptRecord:
            self.damaged = index
            raise

    def _entry(self, index: int) -> Entry:
        unit = self._unit(index)
        if unit is None:
            raise CorruptRecord(f"{self._unit_place(index)}: the index lost entry {index}")
        file = self.data.find(unit.pos)
        if file is None:
            raise CorruptRecord(
                f"{self._unit_place(index)}: entry {index} lies at {unit.pos}, says the index; no file is there"
            )
        at = unit.pos - file.start
        try:
            entry = read_entry(file.view, at)
        except CorruptRecord as error:
            raise CorruptRecord(f"{file.path}, byte {at}, should hold entry {index}: {error.message}") from error
        if (entry.index, entry.pos) != (index, unit.pos):
            raise CorruptRecord(
                f"{file.path}, byte {at}: the index says that entry {index} lies at {unit.pos}, there is {entry.index}"
            )
        if not self._good(entry.body):
            raise CorruptRecord(
                f"{file.path}, byte {at + ENTRY_HEADER_BYTES}: the body of entry {index} ({len(entry.body)} bytes) is damaged"
            )
        return entry

    def _good(self, body: bytes) -> bool:
        return self._body_is_good(memoryview(body))

    def view(self, pos: int) -> memoryview | None:
        """The bytes of the file from pos up to what is written; None where nothing is. Valid until the file is deleted."""
        file = self.data.find(pos)
        if file is None or pos >= self._end_pos:
            return None
        return file.view[pos - file.start : min(file.size_bytes, self._end_pos - file.start)]

    def _header_at(self, pos: int) -> Header | None:
        file = self.data.find(pos)
        if file is None or pos - file.start > file.size_bytes - ENTRY_HEADER_BYTES:
            return self._blank_at(file, pos)
        return read_header(file.view, pos - file.start)

    def _blank_at(self, file: MappedFile | None, pos: int) -> Header | None:
        """A blank record may be shorter than a header; so may the zeros at the end of a file."""
        if file is None:
            return None
        left = file.end - pos
        magic = (
            int.from_bytes(file.view[pos - file.start : pos - file.start + 4], "big", signed=True) if left >= 4 else 0
        )
        return Header(magic, 0, -1, -1, -1, 0, 0, 0, 0)

    def _unit(self, index: int) -> IndexUnit | None:
        file = self.index.find(index * INDEX_UNIT_BYTES) if index >= 0 else None
        if file is None:
            return None
        unit = IndexUnit(*INDEX_UNIT.unpack_from(file.view, index * INDEX_UNIT_BYTES - file.start))
        return unit if unit.magic == ENTRY_MAGIC and unit.index == index else None

    def _unit_place(self, index: int) -> str:
        """Where the unit of an entry lies, for people."""
        file = self.index.find(index * INDEX_UNIT_BYTES)
        return f"{file.path}, byte {index * INDEX_UNIT_BYTES - file.start}" if file is not None else "no index file"

    # write

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries behind the end. Raises DiskFull, StoreError; what was written into the files before stays.

        The entries of one file, in which it failed, are not known here then; the next start may find some of them.
        """
        run: list[Entry] = []  # of one file, one behind the other
        end, last = self._end_pos, self._end
        for entry in entries:
            pos, size, index = entry.pos, entry.size, entry.index
            if pos != place(end, size, self.file_bytes) or (last >= 0 and index != last + 1):
                self._write(run)
                invariant(False, f"entry {index} at {pos} does not follow entry {last}, which ends at {end}")
            if run and (pos != end or pos % self.file_bytes == 0):
                self._write(run)
                run = []
            run.append(entry)
            end, last = pos + size, index
        self._write(run)

    def _write(self, run: list[Entry]) -> None:
        """Entries of one file and their index units, in one step each."""
        if not run:
            return
        first, last = run[0], run[-1]
        file = self._file_for(first.pos)
        file.map[first.pos - file.start : last.end_pos - file.start] = entries_bytes(run)
        self._dirty[id(file)] = file
        self._write_units(first.index, [index_unit(entry) for entry in run])
        if self._end < 0:
            self._begin = first.index
        self._end, self._end_term, self._end_pos = last.index, last.term, last.end_pos

    def repair(self, entry: Entry) -> bool:
        """Put a good copy of a committed entry where the damaged one lies. False: it does not fit between its neighbours."""
        index = entry.index
        if not (0 <= self._begin <= index <= self._end and entry.well_formed and self._good(entry.body)):
            return False
        file = self.data.find(entry.pos)
        if file is None or not self._begins(entry) or not self._ends(entry, file):
            return False
        file.map[entry.pos - file.start : entry.end_pos - file.start] = entry_bytes(entry)
        self._dirty[id(file)] = file
        self._write_units(index, [index_unit(entry)])
        return True

    def _begins(self, entry: Entry) -> bool:
        """Whether it begins where the one before it says; the first one, where the index says."""
        if entry.index == self._begin:
            own = self._unit(entry.index)
            return own is not None and own.pos == entry.pos
        before = self._unit(entry.index - 1)
        return before is not None and place(before.pos + before.size, entry.size, self.file_bytes) == entry.pos

    def _ends(self, entry: Entry, file: MappedFile) -> bool:
        """Whether the next one, a blank record or the end of the log is right behind it."""
        if entry.index == self._end:
            return entry.end_pos == self._end_pos
        after = self._unit(entry.index + 1)
        if after is None or after.pos == entry.end_pos:
            return after is not None
        at, left = entry.end_pos - file.start, file.end - entry.end_pos
        return after.pos == file.end and left >= BLANK.size and file.view[at : at + BLANK.size] == blank_record(left)

    def _file_for(self, pos: int) -> MappedFile:
        """The file that holds pos; the one before it ends in a blank record (DL-S02)."""
        file = self.data.find(pos)
        if file is not None:
            return file
        if self.data.files and self._end_pos < self.data.files[-1].end:
            last = self.data.files[-1]
            at = self._end_pos - last.start
            blank = blank_record(last.size_bytes - at)
            last.map[at : at + len(blank)] = blank
            self._dirty[id(last)] = last
        start = pos - pos % self.file_bytes
        for gap in range(self.data.files[-1].end if self.data.files else start, start, self.file_bytes):
            raise StoreError(f"data file {gap} is missing before {start}")
        made = self._spare
        if made is None or made.start != start:
            self._drop_spare()
            made = self._make(start)
        self._spare = None
        self.data.files.append(made)
        return made

    def _make(self, start: int) -> MappedFile:
        """A data file in the folder whose turn it is: by the file's number, over the sorted folders that take files."""
        folders = sorted(folder for folder in self.data.folders if self._may_grow(folder))
        if not folders:
            raise DiskFull(f"none of the folders {', '.join(map(str, self.data.folders))} takes new files")
        return self.data.make(start, folders[start // self.file_bytes % len(folders)])

    def prepare(self) -> None:
        """Make the next data file while the last one still has room, so that a full disk is noticed before it hurts.

        Does nothing as long as half of the last file is free. Raises DiskFull, StoreError; the ledger is as before then.
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
        """Index units from index on."""
        at = 0
        while at < len(units):
            offset = (index + at) * INDEX_UNIT_BYTES
            file = self.index.find(offset)
            if file is None:
                start = offset - offset % self.index.size_bytes
                if self.index.files and self.index.files[-1].end != start:
                    self._drop(self.index)
                file = self.index.make(start)
                self.index.files.append(file)
            data = b"".join(units[at : at + (file.end - offset) // INDEX_UNIT_BYTES])
            file.map[offset - file.start : offset - file.start + len(data)] = data
            self._dirty[id(file)] = file
            at += len(data) // INDEX_UNIT_BYTES

    def cut(self, index: int, end_pos: int, *, restart: bool = False) -> None:
        """Remove entries from index on, durably; restart: remove all, the next entry lies at end_pos (section 3.5)."""
        self._drop_spare()
        if restart or index <= self._begin:
            self._dirty.clear()
            self._drop(self.data)
            self._drop(self.index)
            self._begin = self._end = self._end_term = -1
            self._end_pos = end_pos
            return
        before = self._unit(index - 1)
        invariant(
            before is not None and before.pos + before.size == end_pos, f"cut at {index}: {end_pos} is no boundary"
        )
        assert before is not None
        keep = self.data.find(end_pos - 1)
        assert keep is not None
        later = [file for file in self.data.files if file.start > keep.start]
        old_end = keep.size_bytes if later else self._end_pos - keep.start
        for file in later:
            self._dirty.pop(id(file), None)
            self.data.files.remove(file)
            file.delete()
        _clear(keep, end_pos - keep.start, old_end)
        keep.flush()
        self._cut_index(index)
        self._end, self._end_term, self._end_pos = index - 1, before.term, end_pos
        _sync_folders(self.disk, self.data.folders)

    def _cut_index(self, index: int) -> None:
        """Units from index on are zero."""
        offset = index * INDEX_UNIT_BYTES
        for file in [file for file in self.index.files if file.start >= offset and file is not self.index.files[0]]:
            self._dirty.pop(id(file), None)
            self.index.files.remove(file)
            file.delete()
        if self.index.files:
            last = self.index.files[-1]
            at = max(offset - last.start, 0)
            end = min(max(self._end + 1, self.recovered.end_index + 1) * INDEX_UNIT_BYTES - last.start, last.size_bytes)
            _clear(last, at, last.size_bytes if end <= at else end)

    def _drop(self, files: MappedFiles) -> None:
        if files.files:
            files.delete()
            _sync_folders(self.disk, files.folders)

    def sync_job(self) -> Callable[[], None]:
        """A call that brings everything written so far to disk, for another thread. Raises OSError.

        Until it is done neither `cut` nor `delete_oldest` may be called: they close files.
        """
        dirty, self._dirty = list(self._dirty.values()), {}

        def sync() -> None:
            for file in dirty:
                file.flush()

        return sync

    # retention

    def delete_oldest(self) -> int:
        """Delete the first data file, never the last, and index files wholly before the new begin. Returns the begin (DL-S12)."""
        if len(self.data.files) < 2:
            return self._begin
        head = read_header(self.data.files[1].view, 0)
        invariant(head.magic == ENTRY_MAGIC, "a data file begins with an entry")
        self._dirty.pop(id(self.data.files[0]), None)
        self.data.files.pop(0).delete()
        self._begin = head.index
        while len(self.index.files) > 1 and self.index.files[0].end <= head.index * INDEX_UNIT_BYTES:
            self._dirty.pop(id(self.index.files[0]), None)
            self.index.files.pop(0).delete()
        return self._begin


def _sync_folders(disk: Disk, folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.is_dir():
            disk.sync_folder(folder)


def _clear(file: MappedFile, at: int, end: int) -> None:
    """Zero what is not zero between at and end."""
    while at < end:
        stop = min(at + len(_ZERO_CHUNK), end)
        zeros = _ZERO_CHUNK[: stop - at]
        if file.map[at:stop] != zeros:
            file.map[at:stop] = zeros
        else:
            first = -(-at // PAGE_BYTES) * PAGE_BYTES
            if stop > first:
                file.map.madvise(mmap.MADV_DONTNEED, first, stop - first)  # looking at it need not keep it in memory
        at = stop
