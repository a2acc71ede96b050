"""All consume queues of a store: load, lookup, writing in rounds, and the list that tells when one is missing.

queues.json in the store's root says which queues there were and how far each reached at least: a queue that lost its folder
is noticed at the next start (DUR-13). The original does not know it and loses nothing by it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.queue.consume_queue import ConsumeQueue, Pending, born_files, write_pending
from saturnmq.store.queue.queue_extension import QueueExtension

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, int]
LIST_NAME: Final = "queues.json"
TOPIC_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Listed:
    """What queues.json says: first queue offset in files and next queue offset, when the log began at log_start."""

    log_start: int
    queues: dict[Key, tuple[int, int]]

    def encode(self) -> bytes:
        table: dict[str, dict[str, tuple[int, int]]] = {}
        for (topic, queue_id), reach in sorted(self.queues.items()):
            table.setdefault(topic, {})[str(queue_id)] = reach
        return json.dumps({"logStart": self.log_start, "queues": table}, separators=(",", ":")).encode()

    def without(self, keys: Iterable[Key]) -> Listed:
        gone = set(keys)
        return Listed(self.log_start, {key: reach for key, reach in self.queues.items() if key not in gone})


def parse_list(data: bytes) -> Listed:
    """The contents of queues.json. Raises ValueError, KeyError, TypeError, AttributeError for what is none."""
    table = json.loads(data)
    queues = {
        (str(topic), int(queue_id)): (int(first), int(reached))
        for topic, ids in table["queues"].items()
        for queue_id, (first, reached) in ids.items()
    }
    return Listed(int(table["logStart"]), queues)


class Round:
    """One round of writing: taken on the loop, written in a thread, noted on the loop.

    listing: what the list will say. Queues that are removed meanwhile are left out of both.
    """

    def __init__(
        self, table: QueueTable, queues: Iterable[tuple[Key, ConsumeQueue, Pending]], listing: Listed | None
    ) -> None:
        self.queues = tuple(queues)
        self._table = table
        self._listing = listing

    def write(self, disk: Disk, list_file: StateFile) -> None:
        """Raises OSError, StoreError."""
        table = self._table
        for key, queue, pending in self.queues:
            with table.lock:
                if table.by_key.get(key) is queue:
                    write_pending(pending, disk)
        if self._listing is not None:
            with table.lock:
                table.listed = self._listing.without(table.removed)
                list_file.write(table.listed.encode())

    def done(self) -> None:
        for _, queue, pending in self.queues:
            queue.end_flush(pending)


class QueueTable:
    """The queues by (topic, queue id). extension: folder and file length of their extensions (CQ-13)."""

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        disk: Disk,
        list_path: Path,
        log_start: Callable[[], int],
        extension: tuple[Path, int] | None = None,
    ) -> None:
        self._extension = extension
        self._log_start = log_start
        self.folder = folder
        self.file_bytes = file_bytes
        self.disk = disk
        self.cache = FileCache(disk)
        self.list_file = StateFile(list_path, disk)
        self.by_key: dict[Key, ConsumeQueue] = {}
        self._dirty: set[Key] = set()
        self.listed: Listed | None = None  # what the list on disk says; None: there is none
        self.removed: set[Key] = set()  # since the last round of all queues was taken
        self.lock = threading.Lock()  # held while a file of a queue, or the list, is written or removed
        self._ends: dict[Key, int] = {}  # next offsets at least, from the list and from queues that are cleared

    # ---- load

    def load(self, *, linear: bool, use_list: bool) -> list[str]:
        """Find the queues on disk; returns what is wrong with them: then all must be made anew from the log.

        Raises StoreError when every file has one other length: that is a setting, not damage (RC-04).
        """
        problems: list[str] = []
        lengths: set[int] = set()
        for topic, queue_id, folder in _queue_folders(self.folder):
            queue = self.by_key[(topic, queue_id)] = self._make(folder, topic, queue_id)
            lengths.update(path.stat().st_size for path in born_files(folder))
            try:
                queue.load(linear=linear)
                queue.load_extension()
            except CorruptRecord as error:
                problems.append(error.message)
        if problems and len(lengths) == 1 and self.file_bytes not in lengths:
            raise StoreError(
                f"the consume queue files in {self.folder} are {lengths.pop()} bytes long, not {self.file_bytes}: set "
                "mappedFileSizeConsumeQueue to that"
            )
        if use_list:
            problems += self._missing()
        self._drop_extensions()
        return problems

    def _make(self, folder: Path, topic: str, queue_id: int) -> ConsumeQueue:
        extension = None
        if self._extension is not None:
            extension_dir, file_bytes = self._extension
            extension = QueueExtension(extension_dir / topic / str(queue_id), file_bytes, self.cache)
        return ConsumeQueue(folder, self.file_bytes, self.cache, extension)

    def _drop_extensions(self) -> None:
        """Extensions whose queue was never written hold nothing that anybody points to."""
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
            if queue is not None and queue.first_offset > first and listed.log_start == self._log_start():
                yield f"consume queue {topic}/{queue_id} begins at {queue.first_offset}, but began at {first} before"
            if queue is None or queue.max_offset < reached:
                has = "is missing" if queue is None else f"ends at {queue.max_offset}"
                yield f"consume queue {topic}/{queue_id} {has}, but reached {reached} before"

    # ---- use

    def get(self, key: Key) -> ConsumeQueue | None:
        return self.by_key.get(key)

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one exists in memory until it is written. Raises StoreError for a name that is no folder's."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            if "/" in topic or topic in (".", "..") or "\0" in topic or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
                raise StoreError(f"topic {topic!r} cannot be a folder name")
            if queue_id < 0:
                raise StoreError(f"queue {queue_id} of topic {topic!r} is below 0")
            queue = self._make(self.folder / topic / str(queue_id), topic, queue_id)
            self.by_key[(topic, queue_id)] = queue
        return queue

    def touched(self, key: Key) -> None:
        self._dirty.add(key)

    @property
    def max_physical(self) -> int:
        """End of the last record that any queue points to; -1 without any."""
        return max((queue.max_physical for queue in self.by_key.values()), default=-1)

    @property
    def min_physical(self) -> int:
        """Up to where in the log every queue that is there has its units; -1 without any."""
        return min((queue.max_physical for queue in self.by_key.values()), default=-1)

    # ---- write

    def round(self, least_bytes: int) -> Round:
        """What a flush has to write: queues with at least so many bytes waiting. least_bytes 0: all, and the list."""
        taken = []
        for key in sorted(self._dirty):
            queue = self.by_key.get(key)
            if queue is None:
                self._dirty.discard(key)
            elif queue.dirty_bytes >= least_bytes:
                self._dirty.discard(key)
                taken.append((key, queue, queue.begin_flush()))
        listing = None
        if least_bytes == 0:
            reaches = {key: (q.first_offset, q.max_offset) for key, q in self.by_key.items() if q.max_offset}
            listing = Listed(self._log_start(), reaches)
            with self.lock:
                self.removed = set()
        return Round(self, taken, listing)

    def untaken(self, todo: Round) -> None:
        """A round was not written: its queues wait again."""
        self._dirty.update(key for key, _, _ in todo.queues)

    # ---- remove

    def remove(self, keys: Iterable[Key]) -> None:
        """Delete queues and their files; the list first, so that nobody misses them. Raises OSError, StoreError.

        The list says of the others what it said before: how far they are now may not be on disk yet. Waits for a file that
        is being written in a thread.
        """
        with self.lock:
            queues = [(key, self.by_key.pop(key)) for key in keys if key in self.by_key]
            if not queues:
                return
            self.removed.update(key for key, _ in queues)
            if self.listed is not None:
                self.listed = self.listed.without(self.removed)
                self.list_file.write(self.listed.encode())
            self._delete(queues)

    def _delete(self, queues: list[tuple[Key, ConsumeQueue]]) -> None:
        """Remove the files and folders of queues that are not in the table any more."""
        roots = [self.folder] if self._extension is None else [self.folder, self._extension[0]]
        for key, queue in queues:
            self._dirty.discard(key)
            queue.delete()
            for root in roots:
                self.disk.remove_folder(root / key[0] / str(key[1]))
        for topic in sorted({key[0] for key, _ in queues}):
            if not any(key[0] == topic for key in self.by_key):
                for root in roots:
                    self.disk.remove_folder(root / topic)

    def clear(self) -> None:
        """Delete all files of all queues; the queues are empty then, and the log fills them again. Raises OSError.

        Those whose records all left the log get nothing from it: `restore_ends` lets them go on where they ended.
        """
        start = self._log_start()
        for key, queue in self.by_key.items():
            if 0 <= queue.max_physical <= start:
                self._ends[key] = max(self._ends.get(key, 0), queue.max_offset)
            queue.delete()
        self._dirty.clear()

    def restore_ends(self) -> None:
        """After `clear` and what the log had: no queue begins anew at 0 because its records are gone."""
        for key, end in self._ends.items():
            queue = self.get_or_make(*key)
            if queue.max_offset == 0 < end:
                queue.begin_at(end)
                self.touched(key)

    def drop_unlisted(self) -> None:
        """After a crash: queues that the list does not know were deleted, in part perhaps, or the log has all of them
        behind the note. Nothing happens without a list. Raises OSError."""
        if self.listed is not None:
            self._delete([(key, self.by_key.pop(key)) for key in list(self.by_key) if key not in self._ends])

    def truncate(self, physical_end: int) -> int:
        """Drop units that end behind physical_end; returns how many. Raises OSError, StoreError.

        The list first: a start that is cut off behind it misses nothing that was dropped.
        """
        listed = self.listed
        if listed is not None:
            ends = {key: queue.end_before(physical_end) for key, queue in self.by_key.items()}
            lowered = {
                key: (first, min(reached, ends.get(key, reached)))
                for key, (first, reached) in listed.queues.items()
                if ends.get(key, 1)
            }
            if lowered != listed.queues:
                self.listed = Listed(listed.log_start, lowered)
                self.list_file.write(self.listed.encode())
        return sum(queue.truncate(physical_end) for queue in self.by_key.values())

    def drop_empty(self) -> None:
        """After a crash: queues that reached the disk before their records leave nothing behind. Raises OSError."""
        self._delete([(key, self.by_key.pop(key)) for key, queue in list(self.by_key.items()) if not queue.max_offset])

    def close(self) -> None:
        self.cache.close()
        self.by_key.clear()
        self._dirty.clear()


def _queue_folders(root: Path) -> Iterator[tuple[str, int, Path]]:
    if not root.is_dir():
        return
    for topic_dir in sorted(path for path in root.iterdir() if path.is_dir()):
        for queue_dir in sorted(path for path in topic_dir.iterdir() if path.is_dir() and path.name.isdigit()):
            yield topic_dir.name, int(queue_dir.name), queue_dir
