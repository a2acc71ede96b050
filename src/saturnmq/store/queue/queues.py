"""All consume queues of a store: load, lookup, periodic writes, and the list that reveals a missing queue.

queues.json in the store's root lists every queue with the offset that it has reached at least, so that a queue whose folder is
missing or cut short is detected at the next start (DUR-13). Apache RocketMQ ignores that file.

Threading: the table belongs to the event loop; `FlushRound.write` runs in a thread, with helpers for many queues.
`QueueTable.lock` guards the files of queues and the list against removal while they are written.

Requirements: CQ-01, CQ-12, RC-03, RC-04, RC-10, DEL-10, DUR-13.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, PhysicalOffset, QueueOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.queue.consume_queue import UNIT_BYTES, ConsumeQueue, PendingUnits, allocated_files, write_pending
from saturnmq.store.queue.queue_extension import QueueExtension

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, int]
LIST_NAME: Final = "queues.json"
TOPIC_BYTES_MAX: Final = 255
_FOLDERS_PER_STEP: Final = 64
PARALLEL_FROM: Final = 16  # queues of a round that several threads write
AT_ONCE: Final = 16  # of them at the same time


@dataclass(frozen=True, slots=True)
class Listed:
    """Contents of queues.json: per queue the first queue offset in files and the next one, and the log's start at that time.

    log_file_bytes, queue_file_bytes: length of the files that the store was written with, 0 if not recorded.
    """

    log_start: PhysicalOffset
    queues: dict[Key, tuple[QueueOffset, QueueOffset]]
    log_file_bytes: int = 0
    queue_file_bytes: int = 0

    def encode(self) -> bytes:
        table: dict[str, dict[str, tuple[QueueOffset, QueueOffset]]] = {}
        for (topic, queue_id), reach in sorted(self.queues.items()):
            table.setdefault(topic, {})[str(queue_id)] = reach
        contents = {
            "logStart": self.log_start,
            "logFileBytes": self.log_file_bytes,
            "queueFileBytes": self.queue_file_bytes,
            "queues": table,
        }
        return json.dumps(contents, separators=(",", ":")).encode()

    def without(self, keys: Iterable[Key]) -> Listed:
        gone = set(keys)
        return dataclasses.replace(self, queues={key: reach for key, reach in self.queues.items() if key not in gone})


def parse_list(data: bytes) -> Listed:
    """Parse queues.json. Raises ValueError, KeyError, TypeError or AttributeError for invalid contents."""
    table = json.loads(data)
    queues = {
        (str(topic), int(queue_id)): (QueueOffset(int(first)), QueueOffset(int(reached)))
        for topic, ids in table["queues"].items()
        for queue_id, (first, reached) in ids.items()
    }
    sizes = int(table.get("logFileBytes", 0)), int(table.get("queueFileBytes", 0))
    return Listed(PhysicalOffset(int(table["logStart"])), queues, *sizes)


class FlushRound:
    """One round of writes: snapshot taken on the loop, written in a thread, recorded on the loop.

    listing: the new queues.json, None to leave it as it is. Queues that are removed meanwhile are left out of both.
    """

    def __init__(
        self, table: QueueTable, queues: Iterable[tuple[Key, ConsumeQueue, PendingUnits]], listing: Listed | None
    ) -> None:
        self.queues = tuple(queues)
        self._table = table
        self._listing = listing

    def write(self, disk: Disk, list_file: StateFile) -> None:
        """Write and sync the queues, then the list. Raises OSError, StoreError.

        Many queues are written by several threads: their syncs share commits of the file system's journal.
        """
        table = self._table
        if len(self.queues) < PARALLEL_FROM:
            for each in self.queues:
                # Per queue, so that a removal on the event loop waits for one file only.
                with table.lock:
                    for pending in self._present([each]):
                        write_pending(pending, disk)
        else:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="saturnmq-queues") as threads:
                for at in range(0, len(self.queues), AT_ONCE):
                    with table.lock:
                        some = self._present(self.queues[at : at + AT_ONCE])
                        writes = [threads.submit(write_pending, pending, disk) for pending in some]
                        wait(writes)  # after an error, too: none may run without the lock
                    for written in writes:
                        # The first error is raised here, after all writes have ended.
                        written.result()
        if self._listing is not None:
            with table.lock:
                # Queues that were removed after the snapshot must not be listed: the next start would miss them.
                table.listed = self._listing.without(table.removed)
                list_file.write(table.listed.encode())

    def _present(self, queues: Iterable[tuple[Key, ConsumeQueue, PendingUnits]]) -> list[PendingUnits]:
        """The units to be written of those queues that were not removed meanwhile."""
        by_key = self._table.by_key
        # The same object: a queue that was removed and created again is another one.
        return [pending for key, queue, pending in queues if by_key.get(key) is queue]

    def finish(self) -> None:
        for _, queue, pending in self.queues:
            queue.end_flush(pending)


class QueueTable:
    """Consume queues by (topic, queue id). extension: folder and file length in bytes of their extensions (CQ-13)."""

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        disk: Disk,
        list_path: Path,
        log_start: Callable[[], PhysicalOffset],
        extension: tuple[Path, int] | None = None,
        *,
        log_file_bytes: int = 0,
    ) -> None:
        self._log_file_bytes = log_file_bytes
        self._extension = extension
        self._log_start = log_start
        self.folder = folder
        self.file_bytes = file_bytes
        self.disk = disk
        self.cache = FileCache(disk)
        self.list_file = StateFile(list_path, disk)
        self.by_key: dict[Key, ConsumeQueue] = {}
        self.dirty: set[Key] = set()
        self.listed: Listed | None = None  # contents of the list on disk; None: there is none
        self.removed: set[Key] = set()  # since the last full round was taken
        self.lock = threading.Lock()  # held while files of a queue, or the list, are written or removed
        self._leaving: dict[Key, ConsumeQueue] = {}  # removed, their files still to be deleted
        self._ends: dict[Key, QueueOffset] = {}  # minimum next offsets, from the list and from cleared queues

    # ---- load

    def load(self, *, linear: bool, use_list: bool, rebuild: bool = False) -> list[str]:
        """Load the queues on disk; returns what is wrong with them. If anything is, all must be rebuilt from the log.

        Raises StoreError if every file has the same other length, unless all are rebuilt or the list says that the store was
        written with the configured one: that is a changed setting, not damage (RC-04).
        """
        problems: list[str] = []
        lengths: set[int] = set()
        for topic, queue_id, folder in _queue_folders(self.folder):
            queue = self.by_key[(topic, queue_id)] = self._make(folder, topic, queue_id)
            lengths.update(path.stat().st_size for path in allocated_files(folder))
            try:
                queue.load(linear=linear)
                queue.load_extension()
            except CorruptRecord as error:
                problems.append(error.message)
        # All files of one other length are a changed setting, not damage.
        if problems and not rebuild and len(lengths) == 1 and self.file_bytes not in lengths:
            self._check_setting(lengths.pop())
        if use_list:
            problems += self._missing()
        self._drop_extensions()
        return problems

    def _check_setting(self, length: int) -> None:
        """Raise StoreError if the files may have been written with this length. One of broken units is damage for certain."""
        listed = None
        with contextlib.suppress(CorruptRecord):
            listed = self.list_file.read(parse_list)
        recorded = listed.queue_file_bytes if listed is not None else 0
        if length % UNIT_BYTES or recorded == self.file_bytes:
            return
        raise StoreError(
            f"the consume queue files in {self.folder} are {length} bytes long, must be {self.file_bytes} "
            "(mappedFileSizeConsumeQueue)",
            hint=f"If the store was written with that size, start with --set mappedFileSizeConsumeQueue={recorded or length}; "
            f"otherwise rebuild the queues with files of {self.file_bytes} bytes: `saturnmq store rebuild`",
        )

    def _make(self, folder: Path, topic: str, queue_id: int) -> ConsumeQueue:
        extension = None
        if self._extension is not None:
            extension_dir, file_bytes = self._extension
            extension = QueueExtension(extension_dir / topic / str(queue_id), file_bytes, self.cache)
        return ConsumeQueue(folder, self.file_bytes, self.cache, extension)

    def _drop_extensions(self) -> None:
        """Delete extensions without a queue: no unit refers to them."""
        if self._extension is None:
            return
        for topic, queue_id, folder in _queue_folders(self._extension[0]):
            if (topic, queue_id) not in self.by_key:
                self.disk.remove_folder(folder)

    def _missing(self) -> Iterator[str]:
        try:
            listed = self.list_file.read(parse_list)
        except CorruptRecord as error:
            yield error.message
            return
        if listed is None:
            return
        self.listed = listed
        self._ends = {key: reached for key, (_, reached) in listed.queues.items()}
        for (topic, queue_id), (first, reached) in listed.queues.items():
            queue = self.by_key.get((topic, queue_id))
            # Only while the log begins where it did: retention deletes the start of queues too.
            if queue is not None and queue.first_offset > first and listed.log_start == self._log_start():
                yield f"consume queue {topic}/{queue_id} begins at {queue.first_offset}, but began at {first} before"
            if queue is None or queue.max_offset < reached:
                has = "is missing" if queue is None else f"ends at {queue.max_offset}"
                yield f"consume queue {topic}/{queue_id} {has}, but reached {reached} before"

    # ---- use

    def get(self, key: Key) -> ConsumeQueue | None:
        return self.by_key.get(key)

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created in memory if needed. Raises StoreError if topic or queue id cannot be a folder name."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            # The topic is a folder's name, and comes from clients and from the log.
            if "/" in topic or topic in (".", "..") or "\0" in topic or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
                raise StoreError(f"topic {topic!r} cannot be a folder name")
            if queue_id < 0:
                raise StoreError(f"queue {queue_id} of topic {topic!r} is below 0")
            self._delete_leaving((topic, queue_id))  # before files of the new queue are written
            queue = self._make(self.folder / topic / str(queue_id), topic, queue_id)
            self.by_key[(topic, queue_id)] = queue
        return queue

    @property
    def max_physical(self) -> PhysicalOffset:
        """End of the last record that any queue points to, bytes; -1 without queues."""
        return max((queue.max_physical for queue in self.by_key.values()), default=NO_PHYSICAL_OFFSET)

    @property
    def min_physical(self) -> PhysicalOffset:
        """Log offset up to which every existing queue has its units, bytes; -1 without queues."""
        return min((queue.max_physical for queue in self.by_key.values()), default=NO_PHYSICAL_OFFSET)

    # ---- write

    def round(self, least_bytes: int) -> FlushRound:
        """Take a round of the queues with at least least_bytes of unwritten units; 0 takes all of them and the list."""
        flushes = []
        for key in sorted(self.dirty):
            queue = self.by_key.get(key)
            if queue is None:
                # Removed since it became dirty.
                self.dirty.discard(key)
            elif queue.dirty_bytes >= least_bytes:
                self.dirty.discard(key)
                flushes.append((key, queue, queue.begin_flush()))
        listing = None
        # Only a round of all queues describes a state that the list may claim.
        if least_bytes == 0:
            reaches = {key: (q.first_offset, q.max_offset) for key, q in self.by_key.items() if q.max_offset}
            listing = Listed(self._log_start(), reaches, self._log_file_bytes, self.file_bytes)
            # A thread of the round before may be reading it.
            with self.lock:
                self.removed = set()
        return FlushRound(self, flushes, listing)

    def restore_dirty(self, todo: FlushRound) -> None:
        """Mark the queues of a round that was not written as dirty again."""
        self.dirty.update(key for key, _, _ in todo.queues)

    # ---- remove

    def remove(self, keys: Iterable[Key]) -> None:
        """Delete queues and their files. Raises OSError, StoreError."""
        for _ in self.removing(keys):
            pass

    def removing(self, keys: Iterable[Key]) -> Iterator[None]:
        """Delete queues at once and their files in steps. Raises OSError, StoreError.

        The list is written first, so that a crash in between is not taken for missing queues. Entries of other queues are
        unchanged in it: their current ends may not be durable yet. Blocks while a thread writes a file of a queue.
        """
        with self.lock:
            # Out of the table at once: no reader finds a queue whose files are being deleted.
            queues = {key: self.by_key.pop(key) for key in keys if key in self.by_key}
            if not queues:
                return
            self.removed.update(queues)
            # Before the files: else a crash in between would look like lost queues.
            if self.listed is not None:
                self.listed = self.listed.without(self.removed)
                self.list_file.write(self.listed.encode())
        self.dirty.difference_update(queues)
        self._leaving.update(queues)
        for key in queues:
            yield
            self._delete_leaving(key)
        yield from self._deleting_folders({topic for topic, _ in queues})

    def _delete_leaving(self, key: Key) -> None:
        """Delete the files of a queue that has been removed, if that is still to be done."""
        queue = self._leaving.pop(key, None)
        if queue is not None:
            # A thread may be writing this file; see `FlushRound.write`.
            with self.lock:
                self._delete_files(key, queue)

    def _delete_files(self, key: Key, queue: ConsumeQueue) -> None:
        queue.delete()
        for root in self._roots:
            self.disk.remove_folder(root / key[0] / str(key[1]))

    def _deleting_folders(self, topics: Iterable[str]) -> Iterator[None]:
        """Delete the folders of topics that have no queue any more, in steps."""
        pending = sorted(topics)
        for at in range(0, len(pending), _FOLDERS_PER_STEP):
            yield
            # A topic may have been created again in the meantime.
            present = {topic for topic, _ in self.by_key}
            for topic in pending[at : at + _FOLDERS_PER_STEP]:
                if topic not in present:
                    for root in self._roots:
                        self.disk.remove_folder(root / topic)

    @property
    def _roots(self) -> list[Path]:
        return [self.folder] if self._extension is None else [self.folder, self._extension[0]]

    def _delete(self, queues: list[tuple[Key, ConsumeQueue]]) -> None:
        """Remove the files and folders of queues that have been taken out of the table."""
        for key, queue in queues:
            self.dirty.discard(key)
            self._delete_files(key, queue)
        for _ in self._deleting_folders({key[0] for key, _ in queues}):
            pass

    def clear(self) -> None:
        """Delete all files of all queues, to be refilled from the log. Raises OSError.

        A queue whose records have all left the log gets nothing from it; `restore_ends` restores its next offset.
        """
        start = self._log_start()
        for key, queue in self.by_key.items():
            # The replay will not reach its records, so its end is remembered.
            if 0 <= queue.max_physical <= start:
                self._ends[key] = max(self._ends.get(key, QueueOffset(0)), queue.max_offset)
            queue.delete()
        self.dirty.clear()

    def restore_ends(self) -> None:
        """Restore next offsets after `clear` and a replay: no queue restarts at 0 because its records have expired."""
        for key, end in self._ends.items():
            queue = self.get_or_make(*key)
            # Only where the replay has brought nothing.
            if queue.max_offset == 0 < end:
                queue.begin_at(end)
                self.dirty.add(key)

    def drop_unlisted(self) -> None:
        """After a crash, delete queues that are not in the list. Raises OSError. Does nothing without a list.

        Such a queue was being deleted, possibly in part, or all its records are newer than the checkpoint and dispatched again.
        """
        if self.listed is not None:
            # `_ends` has the queues of the list.
            self._delete([(key, self.by_key.pop(key)) for key in list(self.by_key) if key not in self._ends])

    def truncate(self, physical_end: PhysicalOffset) -> int:
        """Drop units of records that end after physical_end; returns how many. Raises OSError, StoreError.

        The list is written first: if interrupted in between, the next start does not miss the dropped units.
        """
        listed = self.listed
        if listed is not None:
            # Computed before anything is cut, for the list that is written first.
            ends = {key: queue.end_before(physical_end) for key, queue in self.by_key.items()}
            lowered = {
                key: (first, min(reached, ends.get(key, reached)))
                for key, (first, reached) in listed.queues.items()
                # A queue that loses all its units leaves the list.
                if ends.get(key, 1)
            }
            if lowered != listed.queues:
                self.listed = dataclasses.replace(listed, queues=lowered)
                self.list_file.write(self.listed.encode())
        return sum(queue.truncate(physical_end) for queue in self.by_key.values())

    def drop_empty(self) -> None:
        """After a crash, delete queues without units: they reached the disk before their records did. Raises OSError."""
        # Made for records that the crash took.
        self._delete([(key, self.by_key.pop(key)) for key, queue in list(self.by_key.items()) if not queue.max_offset])

    def close(self) -> None:
        self.cache.close()
        self.by_key.clear()
        self.dirty.clear()


def _queue_folders(root: Path) -> Iterator[tuple[str, int, Path]]:
    if not root.is_dir():
        return
    for topic_dir in sorted(path for path in root.iterdir() if path.is_dir()):
        for queue_dir in sorted(path for path in topic_dir.iterdir() if path.is_dir() and path.name.isdigit()):
            yield topic_dir.name, int(queue_dir.name), queue_dir
