"""Verification of a store: every record, consume queue unit and index entry, the checkpoint and the state files. Read-only.

One pass over the log, with consume queues and index read alongside, so that memory does not grow with the log.

Requirements: DUR-08, DUR-13.
"""

from __future__ import annotations

import itertools
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from saturnmq.protocol.codes import NOT_IN_QUEUE, TRANSACTION_MASK
from saturnmq.protocol.errors import CorruptRecord, SaturnError, StoreError
from saturnmq.protocol.json_dialect import loads
from saturnmq.protocol.message import TIME_END_MS, Message, position_of
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.delay import unit_code
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.queue.queues import LIST_NAME
from saturnmq.store.recovery.checkpoint import CHECKPOINT_BYTES, Checkpoint, Note
from saturnmq.store.recovery.opening import FAILURE_NAME
from saturnmq.store.recovery.recover import FileFacts, RecoveryFacts, plan
from saturnmq.store.settings import StoreSettings
from saturnmq.store.tools.scan import (
    InvalidRecord,
    Problem,
    Progress,
    ReadOnlyDisk,
    ScannedLogFile,
    Weight,
    differing,
    evidence_of,
    file_of,
    index_shape,
    log_files,
    no_progress,
)
from saturnmq.store.tools.verify_index import UNKNOWN_MS, IndexCheck
from saturnmq.store.tools.verify_queues import QueueCheck

PROBLEMS_MAX: Final = 1000
_STATE_BYTES_MAX: Final = 1 << 30
_PROGRESS_BYTES: Final = 1 << 20
_DIFFERS: Final = (
    "the record is not what was synced here: it differs from its checksum in a file checksums-N. Its body is intact, so its "
    "header, topic or properties changed"
)
_REPAIR: Final = "restore the file from a copy, or cut the log there: saturnmq store repair"


@dataclass(slots=True)
class FileReport:
    """One file in the report. first, last: log offsets of records, or queue offsets; -1: none."""

    kind: str
    path: Path
    bytes: int
    count: int
    first: int
    last: int


@dataclass(slots=True)
class VerifyReport:
    """Result of a verification. problems_total also counts those beyond the first PROBLEMS_MAX."""

    root: Path
    clean_stop: bool = True
    log_start: int = -1
    log_end: int = 0
    records: int = 0
    queue_units: int = 0
    index_entries: int = 0
    files: list[FileReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    damage_total: int = 0
    problems_total: int = 0

    def add(self, problem: Problem) -> None:
        self.problems_total += 1
        self.damage_total += problem.weight is Weight.DAMAGE
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged; what the next start repairs by itself does not count."""
        return self.damage_total == 0


def verify(
    settings: StoreSettings, given_keys: Set[str] = frozenset(), progress: Progress = no_progress
) -> VerifyReport:
    """Read the whole store and report what is wrong with it. settings: as returned by `scan.shaped`.

    Raises StoreError if something cannot be read at all.
    """
    return _Verifier(settings, given_keys, progress).run()


class _Verifier:
    def __init__(self, settings: StoreSettings, given_keys: Set[str], progress: Progress) -> None:
        self.settings = settings
        self.progress = progress
        self.report = VerifyReport(settings.root, clean_stop=not settings.abort_path.exists())
        self.files = log_files(settings)
        self.note: Note | None = None
        self.index: IndexCheck | None = None
        if settings.message_index_enable:
            shape = index_shape(settings, given_keys)
            if shape is None:
                self._problem(
                    settings.index_dir,
                    "the files have a length that no settings here explain: the index is not checked",
                    "say how it is divided: --set maxHashSlotNum=N --set maxIndexNum=N",
                    weight=Weight.REMARK,
                )
            else:
                self.index = IndexCheck(settings.index_dir, shape, self.report.add)
        self.queues = QueueCheck(settings, self.files, self.report.add)
        self._store_ms = 0
        self._earlier = 0
        self._bounds: set[int] = set()
        self._invalid_ranges: list[tuple[int, int]] = []  # ascending ranges of the log without a valid record
        self._empty_from: tuple[ScannedLogFile, int] | None = None
        self._differing: list[int] = []  # offsets of records that are not what was synced there

    def run(self) -> VerifyReport:
        self.queues.load()
        checkpoint = self._checkpoint()
        self._log_lengths()
        total = sum(file.length for file in self.files)
        self.progress(0, total)
        starts = [self._first_store_ms(file) for file in self.files]
        durable, pending_from = self._lines(checkpoint, starts)
        evidence = evidence_of(self.settings, self.note)
        self._differing = differing(self.files, evidence)
        durable = max(durable, evidence.reach)
        if self.files:
            self.report.log_start = self.files[0].start
        self._read_log(durable, total)
        self._lost(evidence.reach)
        self.queues.finish(self._invalid_ranges, pending_from, self.report.log_end)
        self.report.queue_units = self.queues.units
        self.report.files += [FileReport("consume queue", *row) for row in self.queues.rows]
        if self.index is not None:
            late = self.note.indexed if self.note and not self.report.clean_stop else pending_from
            had_index = self.note is not None and self.note.index_file != 0
            self.index.finish(
                self._invalid_ranges, late, self.report.log_start, self.report.log_end, had_index=had_index
            )
            self.report.index_entries = self.index.entries
            self.report.files += [FileReport("index", *row) for row in self.index.rows]
        self._note_fits()
        self._state_files()
        self.progress(total, total)
        return self.report

    def _problem(
        self,
        path: Path,
        description: str,
        following: str = "",
        *,
        at: int = -1,
        offset: int = -1,
        weight: Weight = Weight.DAMAGE,
    ) -> None:
        self.report.add(Problem(weight, path, at, offset, description, following))

    # ---- checkpoint and state files

    def _checkpoint(self) -> Checkpoint:
        path = self.settings.checkpoint_path
        checkpoint = Checkpoint(path, ReadOnlyDisk())
        checkpoint.load()
        self.note = checkpoint.note
        if not path.exists():
            if self.files:
                self._problem(path, "is missing", "the next start reads more of the log", weight=Weight.PENDING)
            return checkpoint
        length = path.stat().st_size
        if length != CHECKPOINT_BYTES:
            self._problem(
                path,
                f"is {length} bytes long, must be {CHECKPOINT_BYTES}",
                "the next start rewrites it",
                at=min(length, CHECKPOINT_BYTES),
                weight=Weight.PENDING,
            )
        for at, name in enumerate(("commit log", "consume queue", "index")):
            value = int.from_bytes(path.read_bytes()[8 * at : 8 * at + 8], "big", signed=True)
            if not 0 <= value < TIME_END_MS:
                self._problem(
                    path,
                    f"the {name} time is {value}, must be Unix ms from 0 to {TIME_END_MS - 1}",
                    "the next start takes it as 0",
                    at=8 * at,
                    weight=Weight.PENDING,
                )
        return checkpoint

    def _note_fits(self) -> None:
        note, path = self.note, self.settings.checkpoint_path
        if note is None:
            return
        end = self.report.log_end
        if note.log_synced > end and not self._invalid_ranges:
            self._problem(
                path, f"says the log was on disk up to offset {note.log_synced}, but it ends at {end}", _REPAIR, at=56
            )
        start = max(self.report.log_start, 0)
        if not self._invalid_ranges and start < note.verify_from < end and note.verify_from not in self._bounds:
            self._problem(path, f"names offset {note.verify_from}, where no record begins", "remove it", at=92)

    def _state_files(self) -> None:
        """Check that every JSON state file can be parsed, or its backup."""
        folder = self.settings.config_dir
        paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        paths += [path for path in sorted(folder.glob("*.json.bak")) if path.with_suffix("") not in paths]
        paths.append(self.settings.root / LIST_NAME)
        for path in paths:
            main = path.with_suffix("") if path.suffix == ".bak" else path
            try:
                StateFile(main, ReadOnlyDisk()).read(_readable)
            except CorruptRecord as error:
                if path.name == LIST_NAME:
                    self._problem(path, error.message, "the next start re-creates it", weight=Weight.PENDING)
                else:
                    self._problem(path, error.message, "put a copy of it in its place")
                continue
            if main.exists() and not _parses(main):
                self._problem(
                    main, "cannot be read; its backup is used", "the next save replaces it", weight=Weight.REMARK
                )
        marker = self.settings.root / FAILURE_NAME
        if marker.exists():
            self._problem(
                marker,
                "a flush failed in the last life",
                "check the disk; the next start checks",
                weight=Weight.PENDING,
            )

    # ---- the commit log

    def _log_lengths(self) -> None:
        for file in self.files:
            if file.length != file.file_bytes:
                self._problem(
                    file.path,
                    f"is {file.length} bytes long, must be {file.file_bytes}",
                    _REPAIR,
                    at=min(file.length, file.file_bytes),
                    offset=file.start + min(file.length, file.file_bytes),
                )
        for before, after in itertools.pairwise(self.files):
            if after.start != before.end:
                self._problem(
                    after.path,
                    f"does not follow {before.path.name}: offsets {before.end} to {after.start} are missing",
                    "restore the files between, or cut the log there: saturnmq store repair",
                    at=0,
                    offset=after.start,
                )

    def _first_store_ms(self, file: ScannedLogFile) -> int:
        first = file.record(0)
        return first.store_timestamp_ms if isinstance(first, Message) else -1

    def _lines(self, checkpoint: Checkpoint, starts: list[int]) -> tuple[int, int]:
        """(offset up to which a bad record is damage, offset from which queues and index may lag behind the log)."""
        facts = [FileFacts(PhysicalOffset(file.start), ms) for file, ms in zip(self.files, starts, strict=True)]
        clean = self.report.clean_stop
        reach = PhysicalOffset(self.queues.reach)
        try:
            todo = plan(
                RecoveryFacts(
                    facts,
                    self.settings.commit_log_bytes,
                    clean,
                    checkpoint.safe_ms,
                    checkpoint.note,
                    reach,
                )
            )
        except CorruptRecord as error:
            self._problem(self.settings.checkpoint_path, error.message, offset=facts[-1].start if facts else 0)
            return 1 << 62, 1 << 62
        if todo is None:
            return 0, 0
        return todo.durable, 1 << 62 if clean else todo.dispatch_from

    def _read_log(self, durable: int, total: int) -> None:
        done_bytes = 0
        for file in self.files:
            file.torn_from = durable
            row = FileReport("commit log", file.path, file.length, 0, -1, -1)
            self.report.files.append(row)
            at = self._read_file(file, row, durable, done_bytes, total)
            if row.count or not self.report.log_end:
                self.report.log_end = file.start + at
            if file.is_filled(at):
                if self.note is not None and self.note.verify_from == file.start + at:
                    self._bounds.add(file.start + at)
                self.report.log_end = file.end
            elif self._empty_from is None:
                self._empty_from = (file, at)
            done_bytes += file.length
            file.forget()
        self._close_bad(self.report.log_end)

    def _lost(self, reach: int) -> None:
        """Report records that were synced and of which the log has nothing, not even damaged bytes. reach: -1 without checksums."""
        lost = [at for at in self._differing if not any(low <= at < high for low, high in self._invalid_ranges)]
        end = self.report.log_end
        if lost:
            file, begin = file_of(self.files, lost[0]), lost[0]
            description = f"no record begins here, but {len(lost)} records that were synced here and behind are missing"
        elif reach > end and not self._invalid_ranges:
            file, begin = file_of(self.files, end), end
            description = f"the log ends at offset {end}, but it was on disk up to {reach}"
        else:
            return
        path, at = (file.path, begin - file.start) if file is not None else (self.settings.commit_log_dirs[0], -1)
        self._problem(path, description, _REPAIR, at=at, offset=begin)
        self._invalid_ranges = sorted([*self._invalid_ranges, (begin, max(reach, begin + 1))])

    def _read_file(self, file: ScannedLogFile, row: FileReport, durable: int, done_bytes: int, total: int) -> int:
        """Check one file; returns the end of its last valid record, bytes in the file."""
        at = reported = 0
        bad_at = -1
        differs = {offset for offset in self._differing if file.start <= offset < file.end}
        for record in file.records():
            if isinstance(record, Message) and record.physical_offset in differs:
                record = InvalidRecord(record.physical_offset - file.start, _DIFFERS)
            if self._empty_from is not None:
                before, empty_at = self._empty_from
                reason = f"nothing was written here, but {file.path.name} after it has records"
                self._bad_record(before, InvalidRecord(empty_at, reason), durable)
                self._empty_from = None
            if isinstance(record, InvalidRecord):
                bad_at = record.at
                self._bad_record(file, record, durable)
                continue
            self._close_bad(record.physical_offset)
            bad_at = -1
            row.count += 1
            row.first = record.physical_offset if row.first < 0 else row.first
            row.last = record.physical_offset
            at = record.physical_offset - file.start + record.store_bytes
            self._record(file, record)
            if at - reported >= _PROGRESS_BYTES:
                reported = at
                self.progress(done_bytes + at, total)
        written = file.written_end()
        if bad_at < 0 and written > at and not file.is_filled(at):
            self._bad_record(file, InvalidRecord(at, f"no record, but {written - at} bytes that are not zero"), durable)
        return at

    def _bad_record(self, file: ScannedLogFile, invalid: InvalidRecord, durable: int) -> None:
        offset = file.start + invalid.at
        self._close_bad(offset)
        self._invalid_ranges.append((offset, -1))
        self.queues.gap = True
        if offset < durable:
            self._problem(file.path, invalid.reason, _REPAIR, at=invalid.byte, offset=offset)
        else:
            self._problem(
                file.path,
                f"{invalid.reason}; it was not on disk yet when the store stopped",
                "the next start cuts the log there",
                at=invalid.byte,
                offset=offset,
                weight=Weight.PENDING,
            )

    def _close_bad(self, offset: int) -> None:
        if self._invalid_ranges and self._invalid_ranges[-1][1] < 0:
            self._invalid_ranges[-1] = (self._invalid_ranges[-1][0], max(offset, self._invalid_ranges[-1][0] + 1))

    def _record(self, file: ScannedLogFile, message: Message) -> None:
        self.report.records += 1
        offset = message.physical_offset
        if self.note is not None and offset == self.note.verify_from:
            self._bounds.add(offset)
        store_ms = message.store_timestamp_ms
        description = ""
        if not 0 <= store_ms < TIME_END_MS:  # no checksum covers it; recovery uses the previous record's time
            description = f"store time {store_ms} cannot be, must be Unix ms from 0 to {TIME_END_MS - 1}"
            message.store_timestamp_ms = UNKNOWN_MS
        elif store_ms < self._store_ms:
            description = (
                f"store time {store_ms} is before that of a record before it, {self._store_ms}: the clock went back"
            )
        else:
            self._store_ms = store_ms
        if description:
            self._earlier += 1
            if self._earlier <= 10:
                description += "; a search by time may miss by as much"
                at = offset - file.start + position_of("store_timestamp", message.sys_flag)
                self._problem(file.path, description, at=at, offset=offset, weight=Weight.REMARK)
        if message.sys_flag & TRANSACTION_MASK not in NOT_IN_QUEUE:
            levels = self.settings.message_delay_level
            code = unit_code(message.topic, message.properties_raw, message.store_timestamp_ms, levels)
            self.queues.record(message, code)
        if self.index is not None:
            self.index.record(message)


def _readable(data: bytes) -> object:
    return loads(data, bytes_max=_STATE_BYTES_MAX)


def _parses(path: Path) -> bool:
    try:
        loads(path.read_bytes(), bytes_max=_STATE_BYTES_MAX)
    except (SaturnError, ValueError):
        return False
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return True
