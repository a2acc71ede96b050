"""Opening a store: files are loaded and the recovery plan carried out, so that everything is consistent before the first put.

Every step can be interrupted and repeated with the same result (DUR-20): the log is only truncated after its last valid
record, queues and index are only written from the log, and the checkpoint note, which says how far they are durable, is
written last.
The lock is held by the caller.

Requirements: RC-01..RC-13, DUR-07, DUR-09, DUR-13, DUR-20.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import thread_time
from typing import Final

from saturnmq.hot.index_entries import weight_of
from saturnmq.protocol.codes import NOT_IN_QUEUE, TRANSACTION_MASK
from saturnmq.protocol.errors import CorruptRecord, SaturnError, StoreError
from saturnmq.protocol.message import RECORD_FIXED_BYTES, Message, mend_time
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.protocol.properties import KEYS, UNIQUE_KEY
from saturnmq.store.files.mapped_file import is_zero, numbered_files
from saturnmq.store.files.state_file import write_marker
from saturnmq.store.index.index_file import NAME_DIGITS
from saturnmq.store.index.index_queue import SLICE_BYTES, IndexQueue
from saturnmq.store.index.message_index import WORDS_MAX, Record, Synced, is_indexed
from saturnmq.store.queue.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue, Unit
from saturnmq.store.queue.queue_extension import ADDRESS_MAX
from saturnmq.store.recovery.checkpoint import BOUNDARY_BYTES, Note
from saturnmq.store.recovery.hints import log_files_hint
from saturnmq.store.recovery.recover import (
    RecoveryFacts,
    RecoveryPlan,
    Scan,
    damage,
    facts_of_files,
    good_records,
    plan,
)
from saturnmq.store.state import StoreState

log = logging.getLogger(__name__)

FAILURE_NAME: Final = "flush-failed.json"
INDEX_SECONDS: Final = (
    10.0  # CPU time that a start spends on the index; the rest of the index follows while the store serves
)
INDEX_BYTES: Final = 64 << 20  # log read by a start for its index alone; one that lags further is completed later
_PROGRESS_BYTES = 1 << 20
UNITS_KEPT = 1_000_000  # units of 20 bytes held in memory before they are written
_CUT = "Restore the file from a copy, or cut the log there with `saturnmq store repair --at {}` and lose the records after it."
_BLOCK_UNITS = 1024
_BLOCKS_MAX = 4096


def open_store(store: StoreState, rebuild: Callable[[int, int], None] | None = None) -> None:
    """Load and recover the store. Raises StoreError, OSError.

    If rebuild is given, all consume queues and the index are rebuilt; it is called with the bytes read and the total.
    """
    settings, checkpoint = store.settings, store.checkpoint
    clean = not settings.abort_path.exists()  # a crash leaves the marker (RC-02)
    store.disk.make_folder(settings.root)
    checkpoint.load()
    failed_at = failed_flush(store.settings.root)
    if failed_at is not None:
        log.warning("flush failed before this start check_from=%s", failed_at)
    _drop_unallocated_file(store, clean=clean)
    try:
        store.log.load()
    except CorruptRecord as error:
        error.hint = log_files_hint(settings)
        raise
    unlisted = checkpoint.note is None and not clean  # then queue files may have holes
    problems = store.queues.load(linear=unlisted, use_list=True, rebuild=rebuild is not None)
    for problem in problems:
        log.warning("consume queues rebuilt reason=%s", problem)
    index_from = load_index(store, clean=clean)
    written_here = checkpoint.marked or store.queues.list_file.path.exists()
    # SaturnMQ wrote this store and its note is unreadable: nothing says how far the disk is durable.
    note_lost = written_here and checkpoint.note is None and not checkpoint.note_outdated
    if note_lost:
        log.warning("checkpoint damaged or missing, whole commit log read path=%s", checkpoint.path)
    try:
        todo = plan(
            RecoveryFacts(
                facts_of_files(store.log),
                store.log.file_bytes,
                clean,
                checkpoint.safe_ms,
                checkpoint.note,
                store.queues.max_physical,
                failed_at,
                store.queues.min_physical,
                note_lost,
            )
        )
    except CorruptRecord as error:
        raise CorruptRecord(f"{settings.commit_log_dirs[0]}: {error.message}", hint=error.hint) from error
    # Before anything is changed: from now on an interrupted start counts as a crash.
    if not settings.abort_path.exists():
        store.disk.make_folder(settings.abort_path.parent)
        store.disk.write_file(settings.abort_path, b"")
    store.disk.sync_folder(settings.abort_path.parent)  # a killed process may not have synced the folder
    if todo is None:
        _empty(store)
    else:
        todo = _with_checksums(store, todo)
        if rebuild is not None:
            todo, index_from = _from_nothing(store, todo), store.log.first_position
            problems = ["requested"]
        recovery = _Recovery(store, todo, rebuild=bool(problems), index_from=index_from)
        if rebuild is not None:
            recovery.progress = rebuild
        if recovery.foreign:  # if interrupted from here on, the next start rebuilds queues and index (DUR-20)
            checkpoint.write(
                Note(todo.durable, store.log.first_position, store.log.first_position, 0, 0, store.log.first_position)
            )
        changed = recovery.run(clean=clean) or recovery.foreign
        _settle(store, todo, recovery.boundaries or [todo.verify_from], changed=changed or failed_at is not None)
    note = checkpoint.note
    # The checkpoint covers everything that the checksums proved.
    if store.log.sums is not None and note is not None and note.log_synced >= store.log.end:
        store.log.sums.discard()
    store.reserve.allocate()


def let_index_lag(queue: IndexQueue, begin: PhysicalOffset) -> None:
    """Complete the index from an offset on while the store serves."""
    log.warning("index continued while the store serves offset=%s", begin)
    queue.rebuild(begin)


def _with_checksums(store: StoreState, todo: RecoveryPlan) -> RecoveryPlan:
    """The plan with the end of the durable log as the checksums behind the checkpoint prove it.

    Raises CorruptRecord for a record that was damaged since it was synced. Another broker that wrote the files since then has
    replaced the checkpoint's note: the checksums prove nothing about its records.
    """
    log, note = store.log, store.checkpoint.note
    if log.sums is None:
        return todo
    evidence = log.sums.load()
    # Nothing was synced after the checkpoint, or another broker wrote since then.
    if note is None or evidence.reach <= note.log_synced:
        return todo
    durable = PhysicalOffset(max(todo.durable, evidence.reach))
    damaged = evidence.damaged(lambda at, size: log.view(PhysicalOffset(at), size), log.first_position)
    if damaged:
        raise damage(log, Scan(PhysicalOffset(damaged[0]), "not the bytes that were synced there"), durable)
    return replace(todo, durable=durable)


def failed_flush(root: Path) -> PhysicalOffset | None:
    """End of the last successful flush if the store in `root` was stopped by a failed one (DUR-07), else None."""
    path = root / FAILURE_NAME
    if not path.exists():
        return None
    try:
        return PhysicalOffset(int(json.loads(path.read_bytes())["offset"]))
    # An unreadable marker: check from the beginning.
    except (ValueError, KeyError, TypeError):
        return PhysicalOffset(0)


def mark_failure(store: StoreState, failure: SaturnError) -> None:
    """Write a recovery marker for the next start (DUR-07). On a broken disk that may fail, which is only logged."""
    path = store.settings.root / FAILURE_NAME
    text = json.dumps({"offset": store.log.confirmed_end, "reason": failure.message})
    write_marker(path, text.encode(), store.disk)


def _drop_unallocated_file(store: StoreState, *, clean: bool) -> None:
    """Delete a last commit log file that a crash left unallocated: it holds no data.

    After a clean stop it is kept, and rejected at load, because then its length is no result of a crash (RC-04).
    """
    paths = sorted((p for d in store.settings.all_commit_log_dirs for p in numbered_files(d)), key=lambda p: p.name)
    # Only a crash explains a short file.
    if clean or not paths or paths[-1].stat().st_size == store.settings.commit_log_bytes:
        return
    note = store.checkpoint.note
    # It held synced records: then its length is damage.
    if note is not None and note.log_synced > int(paths[-1].name):
        return
    if is_zero(paths[-1]):
        log.warning("unallocated commit log file deleted path=%s", paths[-1])
        store.disk.unlink(paths[-1])


def load_index(store: StoreState, *, clean: bool) -> PhysicalOffset | None:
    """Load the index; returns from where the log must be indexed again, None if another broker wrote it and it is whole."""
    note = store.checkpoint.note
    begin = _load_index(store, note, clean=clean) if store.index is not None else None
    if store.index is None or note is None:
        return begin
    # The lower of both: what the index itself shows and what the checkpoint says.
    return note.indexed if begin is None else min(begin, note.indexed)


def _load_index(store: StoreState, note: Note | None, *, clean: bool) -> PhysicalOffset | None:
    assert store.index is not None
    damaged = store.index.load(unclean=not clean)
    synced = Synced(note.index_file, note.index_entries, note.index_end_ms, note.indexed) if note is not None else None
    if not clean:
        return store.index.repair(synced, store.checkpoint.index_ms)
    if synced is not None and synced.file:
        newest = store.index.paths[-1].name if store.index.paths else ""
        # The checkpoint names a file that is not there.
        if newest != f"{synced.file:0{NAME_DIGITS}d}":
            log.warning("newest index file missing, its records indexed again folder=%s", store.index.folder)
            return store.index.repair(synced)
    return store.index.dispatch_from if damaged else None


def _empty(store: StoreState) -> None:
    """Without a commit log, delete everything that points into it (RC-11)."""
    if store.queues.max_physical > 0:
        log.warning(
            "log end recovered offset=0 reason=no files; consume queues deleted, they reached offset=%s",
            store.queues.max_physical,
        )
    store.queues.remove(list(store.queues.by_key))
    if store.index is not None:
        store.index.clear()
    begin = PhysicalOffset(0)
    store.skip_to(begin)
    store.log.set_end(begin)
    store.log.set_confirmed(begin)
    store.begin_maintenance([begin])
    store.write_note()


def _from_nothing(store: StoreState, todo: RecoveryPlan) -> RecoveryPlan:
    """Prepare a rebuild of queues and index. The checkpoint is lowered first, so the next start can repeat it (DUR-20)."""
    start = store.log.first_position
    # A note with dispatched = start makes the next start rebuild, should this one be interrupted.
    store.checkpoint.write(Note(todo.durable, start, start, 0, 0, start))
    if store.index is not None:
        store.index.clear()
    return RecoveryPlan(start, todo.durable, start)


class _Recovery:
    """Carries out a plan on one store."""

    def __init__(
        self, store: StoreState, todo: RecoveryPlan, *, rebuild: bool, index_from: PhysicalOffset | None
    ) -> None:
        self.store = store
        self.todo = todo
        start = store.log.first_position
        # A rebuild starts with the first record, everything else where the checkpoint says.
        self.queues_from = start if rebuild else todo.dispatch_from
        self.index_from = todo.dispatch_from if index_from is None else max(min(index_from, todo.dispatch_from), start)
        self.rebuild = rebuild
        self.written = self._saved = 0
        # Written by Apache's broker, or by SaturnMQ with its checkpoint lost.
        self.foreign = store.checkpoint.note is None
        # With note and list a missing queue, or start of a queue, is noticed: a queue that is absent was deleted.
        listed = store.queues.listed
        self.has_queue_list = store.checkpoint.note is not None and listed is not None and listed.log_start == start
        self.progress: Callable[[int, int], None] | None = None
        self._reported = 0
        self.reach = store.queues.max_physical
        # One pass over the log serves all three purposes.
        self.read_from = min(todo.verify_from, self.queues_from, self.index_from)
        self._misfit: Message | None = None
        # Records that restart a queue at 0, and the queue's end before that.
        self._restarted: dict[tuple[str, int], tuple[Message, QueueOffset]] = {}
        # Queues that the first truncation emptied, and their unit at offset 0 before that.
        self._emptied: dict[tuple[str, int], Unit] = {}
        # Topics without a queue: first record's offset, number of records.
        self._absent: dict[str, tuple[PhysicalOffset, int]] = {}
        self._index_seconds = 0.0  # CPU time spent on the index
        self._keyed: list[Record] = []  # records to index, and what they weigh
        self._keyed_bytes = 0
        self._lag_from: PhysicalOffset | None = None  # the index continues there while the store serves
        self.boundaries: list[PhysicalOffset] = []  # start offsets of some of the records
        self._blocks: dict[tuple[str, int], tuple[QueueOffset, bytes]] = {}

    def run(self, *, clean: bool) -> bool:
        """Recover the store; returns whether anything was changed. Raises CorruptRecord, StoreError, OSError."""
        store, todo = self.store, self.todo
        scan_from = min(todo.verify_from, self.queues_from)
        # The store opens soon and completes the index while it serves.
        if store.index is not None and self.progress is None and scan_from - self.index_from > INDEX_BYTES:
            self._lag_from, self.read_from = self.index_from, scan_from
        if self.rebuild:
            store.queues.clear()
        elif not clean:
            if not self.foreign:
                store.queues.drop_unlisted()
            # Remembered for `_append`: the truncation below may empty a queue whose units were damaged.
            firsts = {key: queue.unit(QueueOffset(0)) for key, queue in store.queues.by_key.items()}
            # From there on the units are written again from the log.
            store.queues.truncate(self.queues_from)
            for key, queue in store.queues.by_key.items():
                first = firsts[key]
                if first is not None and not queue.max_offset:
                    self._emptied[key] = first
                queue.trim_extension()
        scan = Scan(todo.verify_from)
        # Once more from the beginning, if a queue does not match: queues are derived and can always be rebuilt.
        if not self._read(self.read_from, scan):
            log.warning(
                "consume queues rebuilt reason=they do not match the commit log offset=%s",
                store.log.first_position,
            )
            store.queues.clear()
            self._emptied.clear()
            self.rebuild, self.queues_from, self.read_from = True, store.log.first_position, store.log.first_position
            # Queues rebuilt from an empty state do not match either: the records of the log contradict each other.
            if not self._read(store.log.first_position, scan):
                raise self._misfit_error()
        if self.rebuild:
            store.queues.restore_ends()
        # The log ends before what was durable: damage, not a crash (DUR-09).
        if scan.end < todo.durable:
            raise damage(store.log, scan, todo.durable)
        cut = store.log.set_end(scan.end)
        # Units that point beyond the end of the log.
        dropped = store.queues.truncate(scan.end)
        if not clean or self.foreign or cut or dropped or self.reach > scan.end:
            log.warning("log end recovered offset=%s reason=%s dropped_bytes=%s", scan.end, scan.stopped_by, cut)
        if not clean:
            store.queues.drop_empty()
        self._warn_about_unknowns()
        for queue in store.queues.by_key.values():
            # Retention may have deleted files after the last checkpoint.
            queue.correct_min_offset(store.log.first_position)
        if store.index is not None:
            begin = store.index.truncate(scan.end)
            if self._lag_from is None:
                self._index_again(begin, scan.end)
            if self._lag_from is not None and store.index_queue is not None:
                let_index_lag(store.index_queue, min(begin, self._lag_from))
        store.log.set_confirmed(scan.end)
        store.skip_to(scan.end)
        return not clean or cut > 0 or dropped > 0 or self.written > 0 or self._lag_from is not None

    def _read(self, start: PhysicalOffset, scan: Scan) -> bool:
        """Check every record and write what is missing; False if a queue has a gap or a unit does not match its record."""
        store = self.store
        self.boundaries.clear()
        self._absent.clear()
        self._keyed, self._keyed_bytes = [], 0
        self._restarted.clear()
        self._blocks.clear()
        crc, durable = store.settings.check_crc_on_recover, self.todo.durable
        for message in good_records(store.log, start, scan, check_crc=crc, durable=durable):
            store.note_store_time(mend_time(message, store.last_store_ms))
            if not self.boundaries or message.physical_offset - self.boundaries[-1] >= BOUNDARY_BYTES:
                self.boundaries.append(message.physical_offset)
            if self.progress is not None and message.physical_offset - self._reported >= _PROGRESS_BYTES:
                self._reported = message.physical_offset
                self.progress(
                    message.physical_offset - store.log.first_position, len(store.log.files) * store.log.file_bytes
                )
            if message.sys_flag & TRANSACTION_MASK not in NOT_IN_QUEUE and not self._queue_unit(message):
                self._misfit = message
                return False
            # Not earlier ones: the index has them.
            if message.physical_offset >= self.index_from:
                self._index(message)
        self._index_keyed()
        return True

    def _index(self, message: Message) -> None:
        """Collect a record to index, unless it is a rollback record, or the index has already delayed the start for too long."""
        raw = message.properties_raw
        if self.store.index is None or self._lag_from is not None or not is_indexed(message.sys_flag):
            return
        # Without keys there is nothing to index, and most of the work is saved.
        if UNIQUE_KEY not in raw and KEYS not in raw:
            return
        # A start must not take minutes for the index.
        if not self._keyed and self._index_seconds > INDEX_SECONDS and self.progress is None:
            self._lag_from = message.physical_offset
            return
        self._keyed.append((message.topic, raw, message.physical_offset, message.store_timestamp_ms))
        self._keyed_bytes += weight_of(raw, WORDS_MAX)
        if self._keyed_bytes >= SLICE_BYTES:
            self._index_keyed()

    def _index_keyed(self) -> None:
        """Index the records that were read since the last call."""
        if self.store.index is None or not self._keyed:
            return
        # CPU time: a cold disk must not end the indexing early.
        began = thread_time()
        self.store.index.put_many(self._keyed)
        self.written += len(self._keyed)
        self._keyed, self._keyed_bytes = [], 0
        self._index_seconds += thread_time() - began

    def _index_again(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        """Re-index records after a truncation; the last record kept corrects the end time, which was derived from an entry."""
        store = self.store
        if store.index is None or begin >= end:
            return
        begin = max(begin, store.log.first_position)
        for message in good_records(store.log, begin, Scan(begin), check_crc=False, durable=end):
            self._index(message)
        self._index_keyed()

    def _queue_unit(self, message: Message) -> bool:
        store = self.store
        key = (message.topic, message.queue_id)
        code = store.code_of(message)
        expected = (message.physical_offset, message.store_bytes, code)
        to_append = message.physical_offset >= self.queues_from
        appended = self._append(key, message, code) if to_append else None
        if appended is not None:
            return appended
        queue = store.queues.get(key)
        if not to_append and self.has_queue_list and _of_deleted_topic(queue, message):
            return True  # topic was deleted; after a crash only records newer than the checkpoint were dispatched
        if queue is None:
            return self._may_be_deleted(message)
        if self._as_expected(queue, key, message.queue_offset, UNIT.pack(*expected)):
            return True
        unit = queue.unit(message.queue_offset)
        # A topic that was deleted and created again has the same offsets with newer records.
        newer = unit is not None and unit[0] > message.physical_offset
        if newer and unit and store.place_of(unit[0]) == (unit[1], message.queue_id, message.queue_offset):
            return True  # unit of a topic that was deleted and re-created
        # The tags code may differ only where the unit has an address instead.
        if unit is None or unit[:2] != expected[:2] or (unit[2] != expected[2] and unit[2] > ADDRESS_MAX):
            return False
        return queue.extension_time(message.queue_offset) in (None, message.store_timestamp_ms)

    def _append(self, key: tuple[str, int], message: Message, code: int) -> bool | None:
        """True if the unit was appended, False if the record does not fit its queue, None if there is a unit already."""
        store, number = self.store, message.queue_offset
        try:
            queue = store.queues.get_or_make(*key)
        # The topic in the record cannot be a folder: the record is damaged, or was not written by a broker.
        except StoreError as error:
            location = self._location(message.physical_offset)
            raise CorruptRecord(f"{location}: {error.message}", hint=_CUT.format(message.physical_offset)) from error
        # Number 0 again, after other records: the topic was deleted and created again.
        if number == 0 < queue.max_offset and message.physical_offset >= queue.max_physical:
            log.warning(
                "queue restarted after topic deletion topic=%s queue=%s offset=%s", *key, message.physical_offset
            )
            self._restarted[key] = (message, queue.max_offset)
            queue.delete()
        before = queue.max_offset
        if not before and number:
            # The units that the truncation took must have belonged to this queue's first record.
            first = self._emptied.get(key)
            if first is not None and store.place_of(first[0]) != (first[1], key[1], 0):
                return False  # its units were damaged: those that the truncation took belong to older records
            start = store.log.first_position
            # Without the list its earlier files may be missing.
            if self.queues_from > start and not self.has_queue_list:
                return False  # its earlier units are missing
            # Each earlier record of this queue takes so many bytes of the log at least.
            if self.queues_from <= start and number > (message.physical_offset // RECORD_FIXED_BYTES if start else 0):
                return False  # the log before it is too short for that many records
        if not store.append_unit(queue, message, code):
            return False
        # Nothing was appended: the unit existed.
        if queue.max_offset == before:
            return None
        store.queues.dirty.add(key)
        self.written += 1
        # Bounded memory during a rebuild of a large log.
        if self.written - self._saved >= UNITS_KEPT:
            self._write_queues()
        return True

    def _write_queues(self) -> None:
        """Write units to disk, so that memory does not grow with the log. The checkpoint still says that they must be rebuilt."""
        self._saved = self.written
        todo = self.store.queues.round(1)
        todo.write(self.store.disk, self.store.queues.list_file)
        todo.finish()

    def _as_expected(self, queue: ConsumeQueue, key: tuple[str, int], queue_offset: QueueOffset, unit: bytes) -> bool:
        """Whether the queue holds this unit; looked up in a block of neighbouring units that is read once."""
        start, block = self._blocks.get(key, (0, b""))
        at = (queue_offset - start) * UNIT_BYTES
        if not 0 <= at < len(block):
            # Bounded: one block of each queue is enough for a scan in log order.
            if len(self._blocks) > _BLOCKS_MAX:
                self._blocks.clear()
            start, block = self._blocks[key] = (queue_offset, queue.read(queue_offset, _BLOCK_UNITS))
            at = 0
        return queue_offset >= queue.min_offset and block[at : at + UNIT_BYTES] == unit

    def _may_be_deleted(self, message: Message) -> bool:
        """True for a record whose topic has no queue: it was deleted. Counted, because without a list the queue may be lost."""
        topic = message.topic
        # Other queues of the topic exist: then this one is missing, not deleted.
        if any(key[0] == topic for key in self.store.queues.by_key):
            return False
        first, count = self._absent.get(topic, (message.physical_offset, 0))
        self._absent[topic] = (first, count + 1)
        return True

    def _warn_about_unknowns(self) -> None:
        """Warn about a store of another broker, whose checkpoint has no note to distinguish damage from deletion."""
        if not self.foreign:
            return
        for topic, (first, count) in self._absent.items():
            log.warning(
                "topic without consume queues topic=%r records=%s offset=%s: correct if it was deleted, otherwise rebuild the "
                "queues with `saturnmq store rebuild`", topic, count, first
            )  # fmt: skip
        if self.read_from > self.store.log.first_position:
            log.warning(
                "store written by another broker, log not checked before offset=%s; `saturnmq store verify` reads all of it",
                self.read_from
            )  # fmt: skip

    def _location(self, offset: int) -> str:
        """File and byte position of an offset, for messages to the operator."""
        file = next((file for file in self.store.log.files if file.start <= offset < file.end), None)
        return f"{file.path} at byte {offset - file.start} (offset {offset})" if file else f"offset {offset}"

    def _misfit_error(self) -> CorruptRecord:
        """The error for a record that does not fit its queue even after a rebuild from the log alone."""
        message = self._misfit
        assert message is not None
        key = (message.topic, message.queue_id)
        queue = self.store.queues.get(key)
        must = queue.max_offset if queue else 0
        # The record that restarted the queue is the wrong one.
        if key in self._restarted:  # the topic was not re-created: the next record is not number 1
            message, must = self._restarted[key]
        return CorruptRecord(
            f"{self._location(message.physical_offset)}: the record says it is number {message.queue_offset} of queue "
            f"{message.topic}/{message.queue_id}, where number {must} must follow",
            hint=_CUT.format(message.physical_offset),
        )


def _of_deleted_topic(queue: ConsumeQueue | None, message: Message) -> bool:
    """Whether all units of the queue are newer than a record without a unit, so that its topic was deleted since."""
    if queue is None or message.queue_offset < queue.min_offset:
        return True
    first = queue.unit(queue.min_offset)
    return message.queue_offset >= queue.max_offset and (first is None or first[0] > message.physical_offset)


def _settle(store: StoreState, todo: RecoveryPlan, boundaries: list[PhysicalOffset], *, changed: bool) -> None:
    """Make durable what recovery wrote, then write the checkpoint, before the first message is accepted."""
    # A clean start with nothing to do leaves the files as they are.
    if not changed and store.checkpoint.note is not None:
        store.begin_maintenance(boundaries)
        return
    # At least the last file, which the process before may not have synced.
    store.log.sync_from(PhysicalOffset(min(todo.durable, store.log.end) - 1))
    todo_queues = store.queues.round(0)
    todo_queues.write(store.disk, store.queues.list_file)
    todo_queues.finish()
    if store.index is not None and store.index_queue is not None:
        # Only what is in the index: waiting records are not.
        snapshot = store.index.begin_flush(store.index_queue.covered(store.dispatched))
        if snapshot is not None:
            snapshot.run()
            store.index.end_flush(snapshot)
    store.begin_maintenance(boundaries)
    # Last, after everything it claims is durable.
    store.write_note()
    # Only now: an interrupted recovery must check again.
    store.disk.unlink(store.settings.root / FAILURE_NAME)
