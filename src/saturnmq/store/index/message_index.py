"""The folder of index files: finds the records of a topic by unique key or key word.

It is filled in commit log order and can always be rebuilt from the log, so an inconsistent file is deleted, and
the caller gets the offset from which the log must be dispatched again.

Requirements: IX-01..IX-10, DEL-09, RC-05, DUR-13, DUR-20.
"""

from __future__ import annotations

import errno
import logging
import mmap
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.protocol.codes import ROLLED_BACK, TRANSACTION_MASK
from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError, invariant
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, PhysicalOffset
from saturnmq.protocol.properties import keys_of
from saturnmq.slices import Steps, completed
from saturnmq.store.files.disk import Disk
from saturnmq.store.index.index_file import COMPILED, NAME_DIGITS, IndexFile, IndexShape, key_hash, topic_hash

log = logging.getLogger(__name__)

WORDS_MAX: Final = 64  # words of KEYS under which a record is indexed; a sender must not decide how much work it causes
_ITEMS_MAX: Final = 512  # keys that are hashed before they are written
QUERY_COUNT_MAX: Final = 64  # maxMsgsNumBatch (IX-06)
_PREFIXES_MAX: Final = 50_000
_YEARS: Final = range(1970, 9999)  # valid years of a file name; the name after the last must still be a valid time

Record = tuple[str, bytes, PhysicalOffset, int]  # topic, properties, physical offset, store time in Unix ms

LogPiece = Callable[[PhysicalOffset], tuple[int, int, mmap.mmap | bytes]]
"""Start and end of the part of the log that holds an offset, and its bytes: records one behind the other (`Log.piece_at`)."""


class Synced(NamedTuple):
    """Durable state; stored in the checkpoint by the store and passed to `repair` at the next start.

    file: number (its name) of the last index file, 0 for none. entries: how many of its entries are durable. end_ms: store
    time of the last of them, Unix ms. offset: the log is indexed up to here, bytes.
    """

    file: int
    entries: int
    end_ms: int
    offset: PhysicalOffset


class LastUpdate(NamedTuple):
    """Store time and physical offset of the last record indexed; 0, 0 for none. Returned by request code 12."""

    time_ms: int
    offset: PhysicalOffset


class DamagedFile(NamedTuple):
    """A file that `load` deleted, and why."""

    path: Path
    reason: str


class IndexFlush:
    """One flush: created on the loop by `begin_flush`, run in a thread, passed to `end_flush` on the loop."""

    __slots__ = ("_descriptors", "_disk", "_folder", "files", "sealed_ms", "synced")

    def __init__(self, disk: Disk, files: list[IndexFile], folder: Path | None, synced: Synced) -> None:
        # Full files are never written again, so that their end is the index time of the checkpoint.
        self.sealed_ms = max((file.end_ms for file in files if file.full), default=0)
        self._disk = disk
        self._descriptors = [file.descriptor() for file in files]
        self._folder = folder
        self.files = files
        self.synced = synced

    def run(self) -> None:
        """Sync the files, oldest first. Raises OSError, after which no flush may be tried again (DUR-06)."""
        for descriptor in self._descriptors:
            # Oldest first: the checkpoint names a file only if all before it are durable.
            self._disk.sync(descriptor)
        if self._folder is not None:
            self._disk.sync_folder(self._folder)


def is_indexed(sys_flag: int) -> bool:
    """Whether records of this kind are indexed: all except rollback records of transactions (IX-08)."""
    return sys_flag & TRANSACTION_MASK != ROLLED_BACK


class MessageIndex:
    """The index of one store. All methods except `IndexFlush.run` belong to the event loop's thread.

    slots, entries_max: per file (maxHashSlotNum, maxIndexNum). allocate: reserve a file's blocks at creation and write
    through its mapping; otherwise it is sparse and written by pwrite (DUR-04). sealed_ms: store time up to which full files
    are durable, which is the checkpoint's index time (IX-10); 0 until one is.
    """

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries_max: int,
        disk: Disk,
        clock_ms: Callable[[], int],
        *,
        allocate: bool = True,
        query_count_max: int = QUERY_COUNT_MAX,
    ) -> None:
        # Java ints, and entry 0 is never used.
        invariant(slots > 0 and 1 < entries_max <= 2**31 - 1, "an index file has a slot and an entry at least")
        self.folder = folder
        self.sealed_ms = 0
        self.synced: Synced | None = None
        self._shape = IndexShape(slots, entries_max)
        self._disk = disk
        self._clock_ms = clock_ms
        self._allocate = allocate
        self._query_count_max = query_count_max
        self._files: list[IndexFile] = []
        self._new_name = False  # a file was created whose directory entry may not be durable
        self._flush: IndexFlush | None = None
        self._prefixes: dict[str, int] = {}

    # ---- life cycle

    def load(self, *, unclean: bool = False) -> list[DamagedFile]:
        """Read the headers of the existing files. Returns the files deleted: an invalid one and all after it.

        If that is not empty, the log must be dispatched again from `dispatch_from`. unclean: headers and entries may be out of
        step; `repair` must be called next to fix them. Raises StoreError if a file cannot be read or removed.
        """
        if not self.folder.is_dir():
            return []
        names = [path for path in self.folder.iterdir() if len(path.name) == NAME_DIGITS and path.name.isdecimal()]
        paths = sorted(path for path in names if path.name.isascii() and path.is_file())
        damaged: list[DamagedFile] = []
        for path in paths:
            # Files are a sequence in log order: nothing after a damaged one can be trusted.
            if damaged:
                damaged.append(DamagedFile(path, f"follows {damaged[0].path.name}, which is damaged"))
                continue
            try:
                self._files.append(self._loaded(path, unclean))
            except CorruptRecord as error:
                damaged.append(DamagedFile(path, error.message))
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
        if damaged:
            for path, reason in damaged:
                log.warning("index file dropped path=%s reason=%s", path, reason)
            log.warning("index incomplete dispatch_from=%s", self.dispatch_from)
            # Newest first: a crash in between must not leave a gap.
            self._unlink([path for path, _ in reversed(damaged)])
        return damaged

    def _loaded(self, path: Path, unclean: bool) -> IndexFile:
        if _name_time(path.name) is None:
            raise CorruptRecord(f"{path} is not named by a time")
        file = IndexFile.load(path, self._shape, self._disk)
        end = self._files[-1].end_offset if self._files else 0
        # Records in a later file lie after those in an earlier one.
        if file.begin_offset < end and (file.count > 1 or not unclean):
            raise CorruptRecord(f"{path} begins at offset {file.begin_offset}, the file before it ends at {end}")
        if file.end_offset != end and file.count <= 1 and not unclean:
            raise CorruptRecord(
                f"{path} has no entries but ends at offset {file.end_offset}, the file before it at {end}"
            )
        if not unclean:
            file.check()
        return file

    def close(self) -> None:
        """Close all files without syncing."""
        for file in self._files:
            file.close()
        if self._flush is not None:
            # Files that were removed while a flush ran are only there.
            for file in self._flush.files:
                file.close()
        self._files.clear()

    def clear(self) -> None:
        """Delete all files before a rebuild from the log; not while a flush is running. Raises StoreError."""
        invariant(self._flush is None, "the index is not cleared during a flush")
        self._drop(0)
        self.synced = Synced(0, 0, 0, PhysicalOffset(0))

    @property
    def paths(self) -> list[Path]:
        """The files, oldest first."""
        return [file.path for file in self._files]

    @property
    def total_bytes(self) -> int:
        """Total length of all files, bytes."""
        return len(self._files) * self._shape.file_bytes

    @property
    def dispatch_from(self) -> PhysicalOffset:
        """Physical offset of the last record indexed; its keys and all later records may be missing. 0 for none."""
        return PhysicalOffset(self._files[-1].end_offset if self._files else 0)

    @property
    def last_update(self) -> LastUpdate:
        """The last update of the newest file (request code 12)."""
        if not self._files:
            return LastUpdate(0, self.dispatch_from)
        return LastUpdate(self._files[-1].end_ms, self.dispatch_from)

    # ---- put

    def put(self, topic: str, keys: Iterable[str], physical_offset: PhysicalOffset, store_ms: int) -> None:
        """Index a record under its keys, in this order (IX-02..05). A record indexed already is not written again (IX-08).

        A record whose keys were written in part, before a crash or a full disk, gets the missing ones. Raises DiskFull and
        StoreError; the index stays consistent then, and the same call may be repeated (IX-09).
        """
        prefix = self._prefixes.get(topic)
        if prefix is None:
            prefix = self._new_prefix(topic)
        # An empty key cannot be searched.
        hashes = [key_hash(prefix, key) for key in keys if key]
        if hashes:
            self._put_hashes(hashes, physical_offset, store_ms)

    def _put_hashes(self, hashes: list[int], physical_offset: PhysicalOffset, store_ms: int) -> None:
        file = self._files[-1] if self._files else None
        start = 0
        try:
            if file is not None and file.header_pending:
                # The header of a put that failed: without it the duplicate check below would be wrong.
                file.write_header()
            # Possibly indexed before, in part or whole.
            if file is not None and physical_offset <= file.end_offset:
                start = self._already(hashes, physical_offset, store_ms)
            while start < len(hashes):
                if file is None or file.count >= self._shape.entries_max:
                    file = self._roll(file)
                start = file.put(hashes, start, physical_offset, store_ms)
        except OSError as error:
            kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
            raise kind(f"cannot index offset {physical_offset}: {error.strerror}") from error

    def put_many(self, records: Iterable[Record]) -> None:
        """Index records in ascending offset order, each as `put` would under `keys_of` its properties, WORDS_MAX words at most.

        Raises DiskFull and StoreError; the same records may then be passed again, and nothing is written twice.
        """
        hashed: list[tuple[int, int, int]] = []
        for topic, raw, physical_offset, store_ms in records:
            prefix = self._prefixes.get(topic) or self._new_prefix(topic)
            # Compiled code declines keys that are not ASCII; the reference hashes those.
            if COMPILED is None or not COMPILED.add_hashes(hashed, prefix, raw, physical_offset, store_ms, WORDS_MAX):
                hashed += [(key_hash(prefix, key), physical_offset, store_ms) for key in keys_of(raw, WORDS_MAX)]
        if hashed:
            self._put_plain(hashed)

    def put_from_log(
        self, log_piece: LogPiece, at: PhysicalOffset, end: PhysicalOffset, until: float, *, again: bool
    ) -> PhysicalOffset:
        """Index plain records of the log from `at` on, about _ITEMS_MAX keys, until time.monotonic() `until` at most.

        Returns the position of the last one that is indexed now; -1 if the first one is not plain, or nothing is compiled. again:
        the first one is indexed. Raises CorruptRecord, DiskFull and StoreError.
        """
        if COMPILED is None:
            return NO_PHYSICAL_OFFSET
        start, stop, data = log_piece(at)
        # Not readable now, or deleted: the caller reads through the reference.
        if not start <= at < stop:
            return NO_PHYSICAL_OFFSET
        items: list[tuple[int, int, int]] = []
        piece = start, min(stop, end)
        last: int = COMPILED.add_records(items, data, piece, at, again, self._prefix_of, WORDS_MAX, _ITEMS_MAX, until)
        if items:
            self._put_plain(items)
        return PhysicalOffset(last)

    def _prefix_of(self, topic: bytes) -> int:
        name = topic.decode()
        return self._prefixes.get(name) or self._new_prefix(name)

    def _put_plain(self, items: list[tuple[int, int, int]]) -> None:
        """Append (hash, physical offset, store time) items, one per key, ordered by offset. Raises DiskFull, StoreError."""
        at = 0
        while at < len(items):
            file = self._files[-1] if self._files else None
            _, physical_offset, store_ms = items[at]
            if (
                file
                # `put_many` writes only to a file that has a first entry and space; `_put_hashes` does the rest.
                and not file.full
                and not file.header_pending
                and physical_offset > file.end_offset
                and file.takes_many
            ):
                after = file.put_many(items, at)
                # Not one record fitted completely: its keys go into two files.
                if after > at:
                    at = after
                    continue
            end = at + 1
            # All keys of one record are written by one call, which knows how many are there already.
            while end < len(items) and items[end][1] == physical_offset:
                end += 1
            self._put_hashes([value for value, _, _ in items[at:end]], PhysicalOffset(physical_offset), store_ms)
            at = end

    def _new_prefix(self, topic: str) -> int:
        # Bounded by starting over: topics of a broker are far fewer.
        if len(self._prefixes) >= _PREFIXES_MAX:
            self._prefixes.clear()
        prefix = self._prefixes[topic] = topic_hash(topic)
        return prefix

    def _already(self, hashes: list[int], physical_offset: PhysicalOffset, store_ms: int) -> int:
        """Number of keys of a record that are indexed. Its store time corrects a header that was rebuilt from entries."""
        last = self._files[-1]
        # Records come in log order: an earlier one is indexed completely.
        if physical_offset < last.end_offset:
            return len(hashes)
        count = 0
        for file in reversed(self._files):
            count += file.trailing(physical_offset, len(hashes) - count)
            # Keys of one record may be spread over files; an earlier file matters only if the later one begins with it.
            if count == len(hashes) or (file.count > 1 and file.begin_offset != physical_offset):
                break
        # After a cut the header's time was derived from an entry, which has whole seconds only.
        if count and last.count > 1 and last.end_ms != store_ms:
            last.end_ms = store_ms
            last.write_header()
        return count

    def _roll(self, full: IndexFile | None) -> IndexFile:
        """Create the next file. Raises DiskFull, StoreError."""
        self._disk.make_folder(self.folder)
        path = self.folder / self._next_name()
        file = IndexFile.create(path, self._shape, self._disk, allocate=self._allocate, after=full)
        self._files.append(file)
        self._new_name = True
        log.info("index file created path=%s", path)
        return file

    def _next_name(self) -> str:
        """Name by local time; 1 ms after the last name if the clock stands still or went back (IX-01)."""
        time = datetime.fromtimestamp(self._clock_ms() / 1000)
        last = _name_time(self._files[-1].path.name) if self._files else None
        # Names must rise with the order of files, whatever the clock does.
        if last is not None and time <= last:
            time = last + timedelta(milliseconds=1)
        while (self.folder / _time_name(time)).exists():
            time += timedelta(milliseconds=1)
        return _time_name(time)

    # ---- query

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[PhysicalOffset]:
        """Ascending physical offsets of the newest records that may have the key and were stored in this range (IX-06).

        Only hashes are stored: the caller reads each record and compares its keys (IX-03). Raises StoreError.
        """
        return completed(self.search(topic, key, max_count, begin_ms, end_ms))

    def search(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Steps[list[PhysicalOffset]]:
        """As `query`, as a generator that yields regularly, so that a long chain does not block the loop; returns the offsets."""
        offsets: list[PhysicalOffset] = []
        count_max = min(max_count, self._query_count_max)
        value = key_hash(topic_hash(topic), key)
        # The list may change while this generator is suspended.
        for file in reversed(self._files.copy()):
            if file.removed:
                continue
            if file.overlaps(begin_ms, end_ms):
                yield from file.search(value, count_max, begin_ms, end_ms, offsets)
            # Older files hold older records only.
            if file.begin_ms < begin_ms or len(offsets) >= count_max:
                break
        # Newest were found first; callers expect the order of the log.
        offsets.sort()
        return offsets

    # ---- flush

    def begin_flush(self, dispatched: PhysicalOffset | None = None) -> IndexFlush | None:
        """Start a flush of all dirty files; None if there are none. At most one flush runs at a time.

        dispatched: the log is dispatched up to here, records without keys included. Raises StoreError.
        """
        invariant(self._flush is None, "one flush of the index at a time, and none after a failed one")
        last = self._files[-1] if self._files else None
        offset = self.dispatch_from if dispatched is None else max(dispatched, self.dispatch_from)
        synced = Synced(last.number, last.count - 1, last.end_ms, offset) if last else Synced(0, 0, 0, offset)
        dirty = [file for file in self._files if file.dirty]
        # The sync must not make entries durable without the header that counts them.
        if last is not None and last.header_pending:
            try:
                last.write_header()
            except OSError as error:
                raise StoreError(f"cannot write {last.path}: {error.strerror}") from error
        if not dirty:
            self.synced = synced
            return None
        # The name of a new file is durable only after a sync of the folder.
        flush = IndexFlush(self._disk, dirty, self.folder if self._new_name else None, synced)
        self._new_name = False
        for file in dirty:
            # Writes from now on belong to the next flush.
            file.dirty, file.busy = False, True
            file.release_pages()  # in one step, see MappedFile.before_flush
        self._flush = flush
        return flush

    def end_flush(self, flush: IndexFlush) -> None:
        """Record that the flush's `run` has returned and its files are durable. Idle files are closed."""
        invariant(flush is self._flush, "the flush that was begun is the one that ends")
        self._flush = None
        self.synced = flush.synced
        self.sealed_ms = max(self.sealed_ms, flush.sealed_ms)
        for file in flush.files:
            file.busy = False
            # The last file stays open for the next entries.
            if file.removed or file is not self._files[-1]:
                file.release()

    def retry_flush(self, flush: IndexFlush) -> None:
        """Take back a flush that could not begin to sync, for example because no descriptor was free: nothing was lost."""
        invariant(flush is self._flush, "the flush that was begun is the one that ends")
        self._flush = None
        self._new_name = True
        for file in flush.files:
            file.dirty, file.busy = True, False

    def discard(self, flush: IndexFlush) -> PhysicalOffset:
        """A sync of the flush failed, which is final for its files: delete them and all later ones (DUR-06).

        Returns the offset from which the log must be indexed again. Raises StoreError.
        """
        invariant(flush is self._flush, "the flush that was begun is the one that ends")
        self._flush = None
        for file in flush.files:
            file.busy = False
            if file.removed:
                file.release()
        # A failed sync may have lost any of the file's pages, and what follows depends on it.
        self._drop(next((n for n, file in enumerate(self._files) if file in flush.files), len(self._files)))
        last = self._files[-1] if self._files else None
        self.synced = Synced(
            last.number if last else 0, last.count - 1 if last else 0, last.end_ms if last else 0, self.dispatch_from
        )
        return self.dispatch_from

    def trim(self) -> None:
        """Release the memory of idle files: older ones are closed, the last one's mapping is advised away."""
        for file in self._files[:-1]:
            file.release()
        if self._files:
            self._files[-1].release_pages()

    # ---- deletion

    def delete_before(self, min_physical_offset: PhysicalOffset) -> list[Path]:
        """Delete leading files that end before the commit log begins, never the last; returns their paths (DEL-09).

        Raises OSError.
        """
        gone: list[Path] = []
        while len(self._files) > 1 and self._files[0].end_offset < min_physical_offset:
            self._files[0].remove()
            gone.append(self._files.pop(0).path)
        if gone:
            log.info("index files expired count=%s last=%s log_begins=%s", len(gone), gone[-1], min_physical_offset)
        return gone

    def truncate(self, physical_offset: PhysicalOffset) -> PhysicalOffset:
        """Drop entries at or after the end of the log; returns the offset from which the log must be dispatched again.

        Must be called at every start with the log's end, because damage may point anywhere. Durable on return. `synced` is
        lowered and must be written to the checkpoint before the log is appended to: entries that the old one calls durable will be
        overwritten. Not while a flush is running. Raises StoreError.
        """
        invariant(self._flush is None, "the index is not cut during a flush")
        keep = len(self._files)
        # Files without an entry, or with none before the new end.
        while keep and (self._files[keep - 1].count <= 1 or self._files[keep - 1].begin_offset >= physical_offset):
            keep -= 1
        dropped = keep < len(self._files)
        self._drop(keep)
        # The last file that is kept reaches beyond it: cut inside.
        if self._files and self._files[-1].end_offset >= physical_offset:
            dropped = True
            self._cut_last(self._files[-1].before(physical_offset), None)
        if not dropped:
            # The checkpoint must not claim more than the log now has.
            if self.synced is not None and self.synced.offset > physical_offset:
                self.synced = self.synced._replace(offset=physical_offset)
            return physical_offset
        self._flush_now()
        log.warning("index truncated offset=%s files=%s", physical_offset, len(self._files))
        return self.dispatch_from

    def _flush_now(self) -> None:
        flush = self.begin_flush()
        if flush is None:
            return
        try:
            flush.run()
        except OSError as error:
            raise StoreError(f"cannot sync the index files in {self.folder}: {error.strerror}") from error
        self.end_flush(flush)

    def repair(self, synced: Synced | None, index_ms: int = 0) -> PhysicalOffset:
        """Repair the index after `load` and an unclean stop; returns the offset from which the log must be dispatched again.

        synced: the last state in the checkpoint; the last file is cut back to it. None if another broker wrote the files:
        those that are not full or end after the checkpoint's index_ms are deleted (RC-05). Durable on return; interrupted
        anywhere and repeated, it ends the same (DUR-20). `synced` must be written to the checkpoint before the next put.
        Raises StoreError.
        """
        offset = self._repair_foreign(index_ms) if synced is None else self._repair_own(synced)
        for file in self._files:
            file.dirty = False  # a file is named in the checkpoint only after all files before it were synced
        last = self._files[-1] if self._files else None
        self.synced = Synced(last.number, last.count - 1, last.end_ms, offset) if last else Synced(0, 0, 0, offset)
        log.warning("index repaired files=%s noted=%s dispatch_from=%s", len(self._files), synced, offset)
        return offset

    def _repair_own(self, synced: Synced) -> PhysicalOffset:
        # Files that the checkpoint does not name were not synced.
        self._drop(sum(file.number <= synced.file for file in self._files))
        if not self._files:
            # The named file is missing: everything has to be indexed again.
            return PhysicalOffset(0) if synced.file else synced.offset
        file = self._files[-1]
        # The checkpoint may count fewer entries than the file has; only those are known to be durable.
        whole = file.number == synced.file and 0 < synced.entries < file.count
        entries = synced.entries if whole else file.count - 1
        try:
            if whole:
                file.check(entries, synced.end_ms)
            else:
                file.check()
        except CorruptRecord as error:
            log.warning("index file dropped path=%s reason=%s", file.path, error.message)
            entries = 0
        # The entry points beyond what the checkpoint covers: it is not the one that was synced.
        if entries and file.offset_of(entries) > synced.offset:
            log.warning("index file dropped path=%s reason=its last entry differs from the checkpoint", file.path)
            entries = 0
        self._cut_last(entries, synced.end_ms if whole else None)
        return synced.offset if whole and entries else self.dispatch_from

    def _repair_foreign(self, index_ms: int) -> PhysicalOffset:
        keep = 0
        while keep < len(self._files) and self._is_usable(self._files[keep], index_ms):
            keep += 1
        begin = PhysicalOffset(self._files[keep].begin_offset if keep < len(self._files) else 0)
        self._drop(keep)
        return self.dispatch_from if self._files else begin

    def _is_usable(self, file: IndexFile, index_ms: int) -> bool:
        # Apache's checkpoint covers full files only.
        if not file.full or file.end_ms > index_ms:
            return False
        try:
            file.check()
        except CorruptRecord as error:
            log.warning("index file dropped path=%s reason=%s", file.path, error.message)
            return False
        return True

    def _cut_last(self, entries: int, end_ms: int | None) -> None:
        """Keep the first entries of the last file; delete the file if there are none. Raises StoreError."""
        file = self._files[-1]
        if entries < 1:
            self._drop(len(self._files) - 1)
            return
        try:
            file.cut(entries, end_ms)
        except OSError as error:
            raise StoreError(f"cannot repair {file.path}: {error.strerror}") from error

    def _drop(self, keep: int) -> None:
        """Delete all files except the first keep, newest first. Raises StoreError."""
        # Newest first, as in `load`.
        dropped = self._files[keep:][::-1]
        for file in dropped:
            # Searches that are suspended see it.
            file.removed = True
            file.release()
        del self._files[keep:]
        self._unlink([file.path for file in dropped])

    def _unlink(self, paths: list[Path]) -> None:
        if not paths:
            return
        try:
            for path in paths:
                self._disk.unlink(path)
            self._disk.sync_folder(self.folder)
        except OSError as error:
            raise StoreError(f"cannot remove index files in {self.folder}: {error.strerror}") from error


def _name_time(name: str) -> datetime | None:
    """The local time given by a file's name; None if the name is not a time."""
    try:
        time = datetime.strptime(name[:-3], "%Y%m%d%H%M%S").replace(microsecond=int(name[-3:]) * 1000)
    except ValueError:
        return None
    return time if time.year in _YEARS else None


def _time_name(time: datetime) -> str:
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
