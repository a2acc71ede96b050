"""Verification of consume queues: every record has its unit, every unit its record. Used by verify.py.

Requirements: CQ-01..CQ-03, DUR-13.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import Message
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import file_name, numbered_files
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.queue.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES, Unit
from saturnmq.store.queue.queues import LIST_NAME, Key, parse_list
from saturnmq.store.settings import StoreSettings
from saturnmq.store.tools.scan import Problem, ReadOnlyDisk, ScannedLogFile, Weight, file_of

_BLOCK_UNITS: Final = 128
_READ_BYTES: Final = UNIT_BYTES * 50_000
_EXTENSION_MAX: Final = -(1 << 31)  # a tags code below it is an address in the queue's extension
_REBUILD: Final = "rebuild it from the log: saturnmq store rebuild"
_CUT: Final = "restore the file from a copy, or cut the log there: saturnmq store repair --at {}"
_BY_ITSELF: Final = "the next start rebuilds it from the log"


class _Lack:
    """Number of records whose unit is missing or belongs to another record, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: Message | None = None
        self.following: int | None = None  # expected queue offset of the next one

    def add(self, message: Message) -> None:
        self.count += 1
        if self.first is None:
            self.first = message


class _Queue:
    """State of one queue on disk during the check."""

    def __init__(self, folder: Path, file_bytes: int, cache: FileCache) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self.first = self.end = 0  # bytes
        self.live = self.matched = 0
        self.reach = -1
        self.missing = _Lack()
        self.wrong = _Lack()
        self._cache = cache
        self._block = b""
        self._block_at = -1

    def unit(self, queue_offset: int) -> Unit | None:
        at = queue_offset * UNIT_BYTES
        if not self.first <= at < self.end:
            return None
        skip = at - self._block_at
        if self._block_at < 0 or not 0 <= skip < len(self._block):
            inside = at % self.file_bytes
            self._block = self._cache.read(
                self.folder / file_name(at - inside), inside, min(_BLOCK_UNITS * UNIT_BYTES, self.file_bytes - inside)
            )
            self._block_at, skip = at, 0
        if skip + UNIT_BYTES > len(self._block):
            return None
        physical, size, code = UNIT.unpack_from(self._block, skip)
        return physical, size, code


class QueueCheck:
    """The check of all queues. units: units that point to a record. reach: end of the last record pointed to, -1 without any.

    gap: damage was found in the log before the next record, so numbers of records may be missing.
    """

    def __init__(self, settings: StoreSettings, files: list[ScannedLogFile], add: Callable[[Problem], None]) -> None:
        self.settings = settings
        self._files = files
        self.units = 0
        self.reach = -1
        self.gap = False
        self._add = add
        self._cache = FileCache(ReadOnlyDisk())
        self._queues: dict[Key, _Queue] = {}
        self._absent: dict[Key, _Lack] = {}
        self.rows: list[tuple[Path, int, int, int, int]] = []  # path, bytes, units, first and last queue offset

    def _problem(
        self, path: Path, description: str, *, at: int = -1, offset: int = -1, start_does: bool = False
    ) -> None:
        weight = Weight.PENDING if start_does else Weight.DAMAGE
        self._add(Problem(weight, path, at, offset, description, _BY_ITSELF if start_does else _REBUILD))

    # ---- before the log is read

    def load(self) -> None:
        """Read every queue file once: check length, name, and that used units are contiguous and followed by zeros."""
        root = self.settings.consume_queue_dir
        topics = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        for topic in topics:
            folders = (path for path in topic.iterdir() if path.is_dir() and path.name.isdigit())
            for folder in sorted(folders, key=lambda path: int(path.name)):
                queue = _Queue(folder, self.settings.consume_queue_bytes, self._cache)
                self._queues[(topic.name, int(folder.name))] = queue
                self._load(queue)
                self.units += queue.live
                self.reach = max(self.reach, queue.reach)

    def _load(self, queue: _Queue) -> None:
        paths = numbered_files(queue.folder)
        if not paths:
            return
        queue.first = queue.end = int(paths[0].name)
        open_ended = True
        for path in paths:
            length = path.stat().st_size
            if length != queue.file_bytes:
                description = f"is {length} bytes long, must be {queue.file_bytes}"
                self._problem(path, description, at=min(length, queue.file_bytes))
            if int(path.name) != queue.end and open_ended:
                where = (
                    "does not follow the file before it" if int(path.name) % queue.file_bytes == 0 else "is misnamed"
                )
                self._problem(path, f"{where}: it must begin at {queue.end}", at=0)
                open_ended = False
            count = self._load_file(queue, path, open_ended)
            open_ended = open_ended and count * UNIT_BYTES == queue.file_bytes
            first = int(path.name) // UNIT_BYTES
            self.rows.append((path, length, count, first if count else -1, first + count - 1 if count else -1))

    def _load_file(self, queue: _Queue, path: Path, counts: bool) -> int:
        """Number of units in use at the file's start. counts: no earlier file has a hole."""
        used = at = 0
        run = True
        while at < path.stat().st_size:
            data = self._cache.read(path, at, _READ_BYTES)
            whole = len(data) - len(data) % UNIT_BYTES
            if not whole:
                break
            if not run and not data.strip(b"\0"):
                at += whole
                continue
            for unit_number, (physical, size, _) in enumerate(UNIT.iter_unpack(data[:whole])):
                if physical >= 0 and size > 0:
                    if not run or not counts:
                        place_at = at + unit_number * UNIT_BYTES
                        self._problem(path, f"a unit (offset {physical}, size {size}) after an empty one", at=place_at)
                        return used
                    used += 1
                    queue.end += UNIT_BYTES
                    if size != FILLER_SIZE:
                        queue.live += 1
                        queue.reach = max(queue.reach, physical + size)
                else:
                    run = False
                    if (physical, size) != (0, 0):
                        description = f"a unit of offset {physical} and size {size}, both must be positive"
                        self._problem(path, description, at=at + unit_number * UNIT_BYTES)
                        return used
            at += whole
        return used

    # ---- while the log is read

    def record(self, message: Message, code: int) -> None:
        """Check the unit of the next record of the log that belongs to a queue."""
        key = (message.topic, message.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            lack = self._absent.setdefault(key, _Lack())
            self._follows(lack, message, message.queue_offset)
            lack.add(message)
            return
        if message.queue_offset == 0:
            self._restarts(queue, message)
        unit = queue.unit(message.queue_offset)
        if unit is not None and unit[:2] == (message.physical_offset, message.store_bytes):
            if unit[2] == code or unit[2] < _EXTENSION_MAX:
                queue.matched += 1
                return
            queue.matched += 1
            at = message.queue_offset * UNIT_BYTES
            self._problem(
                queue.folder / file_name(at - at % queue.file_bytes),
                f"the unit of queue offset {message.queue_offset} has tags code {unit[2]}, must be {code}",
                at=at % queue.file_bytes + 12,
                offset=message.physical_offset,
            )
        elif unit is None:
            if message.queue_offset * UNIT_BYTES >= queue.end:
                self._follows(queue.missing, message, queue.end // UNIT_BYTES or message.queue_offset)
            queue.missing.add(message)
        elif unit[0] <= message.physical_offset or unit[1] == FILLER_SIZE:
            queue.wrong.add(message)
        # else the unit is of a later record: the topic was deleted and re-created, which finish() checks

    def _restarts(self, queue: _Queue, message: Message) -> None:
        """Queue offset 0: earlier records without a unit are of a topic that was deleted since."""
        if queue.missing.first is None:
            return
        description = (
            f"queue restarts here: {queue.missing.count} records before it have no unit, right if the topic was deleted"
        )
        self._add(Problem(Weight.REMARK, queue.folder, -1, message.physical_offset, description))
        queue.missing = _Lack()

    def _follows(self, lack: _Lack, message: Message, first: int) -> None:
        """Check that missing units can be rebuilt: the records in the log must be numbered consecutively."""
        must = first if lack.following is None else lack.following
        lack.following = must + 1
        if message.queue_offset == 0:
            lack.following = 1  # the topic was deleted and re-created
        elif self.gap and message.queue_offset > must:
            lack.following = message.queue_offset + 1
        elif message.queue_offset != must:
            offset = message.physical_offset
            file = file_of(self._files, offset)
            description = (
                f"the record says it is number {message.queue_offset} of queue {message.topic}/{message.queue_id}"
            )
            path, at = (file.path, offset - file.start + 20) if file is not None else (self.settings.root, -1)
            self._add(
                Problem(
                    Weight.DAMAGE, path, at, offset, f"{description}, where {must} must follow", _CUT.format(offset)
                )
            )

    # ---- after the log was read

    def finish(self, invalid_ranges: list[tuple[int, int]], pending_from: int, log_end: int) -> None:
        """Report findings. invalid_ranges: without a valid record. pending_from: from this offset on units may be missing."""
        for (topic, queue_id), queue in self._queues.items():
            for lack, fault in ((queue.missing, "no unit for"), (queue.wrong, "another unit than that of")):
                if lack.first is not None:
                    self._problem(
                        queue.folder,
                        f"{fault} {lack.count} records; the first is queue offset {lack.first.queue_offset} of {topic}/{queue_id}",
                        offset=lack.first.physical_offset,
                        start_does=lack.first.physical_offset >= pending_from,
                    )
            if queue.matched != queue.live:
                self._units_without_record((topic, queue_id), queue, invalid_ranges, pending_from, log_end)
        self._listed(pending_from)
        self._cache.close()

    def _units_without_record(
        self, key: Key, queue: _Queue, invalid_ranges: list[tuple[int, int]], pending_from: int, log_end: int
    ) -> None:
        files = self._files
        start = files[0].start if files else 0
        for queue_offset in range(queue.first // UNIT_BYTES, queue.end // UNIT_BYTES):
            unit = queue.unit(queue_offset)
            if unit is None or unit[1] == FILLER_SIZE or unit[0] < start:
                continue
            physical, size, _ = unit
            if any(low <= physical < high for low, high in invalid_ranges):
                continue
            file = file_of(files, physical)
            record = file.record(physical - file.start) if file is not None else None
            if (
                isinstance(record, Message)
                and (record.topic, record.queue_id, record.queue_offset) == (*key, queue_offset)
                and record.store_bytes == size
            ):
                continue
            at = queue_offset * UNIT_BYTES
            self._problem(
                queue.folder / file_name(at - at % queue.file_bytes),
                f"the unit of queue offset {queue_offset} points to offset {physical}, size {size}, where "
                + ("the log has ended" if physical >= log_end else "that record is not"),
                at=at % queue.file_bytes,
                offset=physical,
                start_does=physical >= max(log_end, pending_from),
            )
            return

    def _listed(self, pending_from: int) -> None:
        """Report missing queues: a deleted one is fine, one that is in queues.json is lost."""
        try:
            listed = StateFile(self.settings.root / LIST_NAME, ReadOnlyDisk()).read(parse_list)
        except CorruptRecord:
            listed = None  # reported by the check of state files
        reached = {key: value[1] for key, value in listed.queues.items()} if listed is not None else {}
        for key, lack in self._absent.items():
            first = lack.first.physical_offset if lack.first is not None else -1
            folder = self.settings.consume_queue_dir / key[0] / str(key[1])
            description = f"is missing, the log has {lack.count} records of it"
            if key in reached or first >= pending_from:
                self._problem(folder, description, offset=first, start_does=True)
            elif any(queue_key[0] == key[0] for queue_key in self._queues):
                self._problem(folder, description, offset=first)
            else:
                description += "; right if the topic was deleted"
                self._add(
                    Problem(Weight.REMARK, folder, -1, first, description, "else bring it back: saturnmq store rebuild")
                )
        for key, queue in self._queues.items():
            if reached.get(key, 0) > queue.end // UNIT_BYTES and queue.missing.first is None:
                description = f"ends at queue offset {queue.end // UNIT_BYTES}, but reached {reached[key]} before"
                self._problem(queue.folder, description, start_does=True)
