"""Rebuilding of queues and index from the log, and truncation of a damaged log. Both hold the store's lock.

A cut destroys nothing: the bytes cut off are moved to a folder in the store's root. Its steps are ordered: the bytes are durable
there, then the file is shortened, then the checkpoint is lowered, then the store is opened, which makes queues and index follow.
If interrupted anywhere, running the same command again completes it.

Requirements: DUR-09, DUR-13, DUR-20.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError
from saturnmq.protocol.message import Message
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.lock_file import LockFile
from saturnmq.store.files.mapped_file import file_name
from saturnmq.store.files.record_sums import Evidence, RecordSums
from saturnmq.store.recovery.checkpoint import Checkpoint, Note
from saturnmq.store.recovery.opening import FAILURE_NAME, failed_flush
from saturnmq.store.settings import StoreSettings
from saturnmq.store.store import MessageStore
from saturnmq.store.tools.scan import (
    InvalidRecord,
    Progress,
    ScannedLogFile,
    differing,
    evidence_of,
    file_of,
    log_files,
    no_progress,
)

_COPY_BYTES: Final = 8 << 20
_PROGRESS_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result of a rebuild. log_end: bytes; the others are counts."""

    log_end: int
    queues: int
    units: int
    index_files: int


def rebuild(settings: StoreSettings, progress: Progress = no_progress, *, disk: Disk | None = None) -> Rebuilt:
    """Rebuild all consume queues and the index from the log; the store is left as after a clean stop.

    Raises StoreLocked if the store is in use, CorruptRecord if the log is damaged (nothing is changed then), StoreError.
    """
    loss = find_loss(settings)
    if loss is not None:
        raise CorruptRecord(
            f"{loss.path} at byte {loss.byte} (offset {loss.offset}): {loss.what}; queues and index are left as they are",
            hint="Restore the file from a copy, or cut the log there: saturnmq store repair",
        )
    return _rebuild_files(settings, progress, disk or Disk())


def _rebuild_files(settings: StoreSettings, progress: Progress, disk: Disk) -> Rebuilt:
    store = MessageStore(settings, disk=disk)
    store.open(progress)
    queues = [queue for queue in store.queues.by_key.values() if queue.max_offset]
    rebuilt = Rebuilt(
        store.max_physical_offset,
        len(queues),
        sum(queue.max_offset - queue.min_offset for queue in queues),
        len(store.index.paths) if store.index is not None else 0,
    )
    asyncio.run(store.stop())
    total = len(log_files(settings)) * settings.commit_log_bytes
    progress(total, total)
    return rebuilt


@dataclass(frozen=True, slots=True)
class LogLoss:
    """Where the log has to be cut, and what is lost by it.

    offset: new end of the log. path, byte, what: the damage. cut_bytes: from offset to the last byte in use. records: valid
    records after the damage. gone_bytes: bytes that were durable once but are missing from the files.
    """

    offset: int
    path: Path
    byte: int
    what: str  # a column of `saturnmq store repair --json`
    cut_bytes: int
    records: int
    gone_bytes: int

    @property
    def nothing(self) -> bool:
        """Whether no message is lost: only a file's length is wrong."""
        return not (self.cut_bytes or self.gone_bytes)


def find_loss(settings: StoreSettings, progress: Progress = no_progress) -> LogLoss | None:
    """Read the log up to its first fault and count what follows it; None if the log is intact. Raises StoreError."""
    files, synced, evidence = _files_as_at_start(settings)
    fault = _first_fault(files, progress)
    end = fault if isinstance(fault, int) else fault[0].start + fault[1].at
    differs = differing(files, evidence)
    if differs and differs[0] < end:
        file = file_of(files, differs[0])
        assert file is not None
        return _loss(
            files, file, InvalidRecord(differs[0] - file.start, "not the bytes that were synced there"), synced
        )
    if isinstance(fault, int):
        if synced <= fault:
            return _wrong_length(files, fault)
        path = files[-1].path if files else settings.commit_log_dirs[0]
        damage = f"the log ends at offset {fault}, but it was on disk up to {synced}: files or their ends are missing"
        return LogLoss(fault, path, fault - files[-1].start if files else 0, damage, 0, 0, synced - fault)
    return _loss(files, *fault, synced)


def _wrong_length(files: list[ScannedLogFile], end: int) -> LogLoss | None:
    """A file of the wrong length whose records are all there: nothing is cut but what is beyond its size."""
    for file in files:
        if file.length != file.file_bytes:
            damage = f"{file.path.name} is {file.length} bytes long, must be {file.file_bytes}"
            surplus = sum(max(each.written_end() - each.file_bytes, 0) for each in files)
            return LogLoss(end, file.path, file.usable, damage, surplus, 0, 0)
    return None


def loss_at(settings: StoreSettings, offset: int, progress: Progress = no_progress) -> LogLoss:
    """Loss by a cut at an offset; a valid record must begin there. Raises StoreError naming what was found instead."""
    files, synced, _ = _files_as_at_start(settings)
    fault = _first_fault(files, progress)
    end = fault if isinstance(fault, int) else fault[0].start + fault[1].at
    start = PhysicalOffset(files[0].start if files else 0)
    if not start <= offset < end:
        raise StoreError(
            f"offset {offset} is not among the good records, which lie from {start} to {end}",
            hint="Name one of them, or leave --at out to cut at the first damage.",
        )
    file = file_of(files, offset)
    assert file is not None
    at = before = 0
    while at < offset - file.start and isinstance(record := file.record(at), Message):
        before, at = at, at + record.store_bytes
    if file.start + at != offset:
        raise StoreError(
            f"no record begins at offset {offset} ({file.path} at byte {offset - file.start})",
            hint=f"The record that holds it begins at offset {file.start + before}.",
        )
    return _loss(files, file, InvalidRecord(at, "asked for"), synced)


def _files_as_at_start(settings: StoreSettings) -> tuple[list[ScannedLogFile], int, Evidence]:
    """The log's files, the end of what was durable, and its checksums. The files reject torn records where the next start cuts."""
    files, checkpoint = log_files(settings), Checkpoint(settings.checkpoint_path, Disk())
    checkpoint.load()
    note = checkpoint.note
    evidence = evidence_of(settings, note)
    synced = max(note.log_synced, evidence.reach) if note is not None else 0
    begun = [file.start for file in files if isinstance(file.record(0), Message)]
    durable = synced if note is not None else max(begun, default=0)
    failed_at = failed_flush(settings.root)
    for file in files:
        file.torn_from = durable if failed_at is None else failed_at
    return files, synced, evidence


def _loss(files: list[ScannedLogFile], file: ScannedLogFile, fault: InvalidRecord, synced: int) -> LogLoss:
    offset = file.start + fault.at
    cut = records = 0
    for later in files:
        at = max(offset - later.start, 0)
        if later.start < file.start or (later is not file and later.end <= offset):
            continue
        cut += max(later.written_end() - at, 0)
        records += sum(isinstance(record, Message) for record in later.records(at))
        later.forget()
    return LogLoss(offset, file.path, fault.byte, fault.reason, cut, records, _gone_bytes(files, offset, synced))


def _gone_bytes(files: list[ScannedLogFile], offset: int, synced: int) -> int:
    """Bytes from offset on that were durable once and that no file has."""
    held = (min(file.start + file.usable, synced) - max(file.start, offset) for file in files)
    return max(synced - offset - sum(max(size, 0) for size in held), 0)


def _first_fault(files: list[ScannedLogFile], progress: Progress) -> tuple[ScannedLogFile, InvalidRecord] | int:
    """The first fault of the log; the end of the log if there is none."""
    total = sum(file.length for file in files)
    done_bytes = 0
    ended: tuple[ScannedLogFile, int] | None = None  # file and byte where the written part ends
    for number, file in enumerate(files):
        before = files[number - 1] if number else None
        if ended is not None:
            if file.written_end():
                return ended[0], InvalidRecord(ended[1], f"nothing was written here, but {file.path.name} is not empty")
        elif before is not None and file.start != before.end:
            reason = f"offsets {before.end} to {file.start} are missing: {file.path.name} does not follow"
            return before, InvalidRecord(before.file_bytes, reason)
        else:
            at, fault = _read(file, lambda at, base=done_bytes: progress(base + at, total))  # type: ignore[misc]
            if fault is not None:
                return file, fault
            if not file.is_filled(at) and at < file.file_bytes:
                ended = (file, at)
        if file.length != file.file_bytes and not (ended is None and file.is_filled(at)):
            faulty_file, at = ended if ended is not None else (file, file.usable)
            return faulty_file, InvalidRecord(
                at, f"{file.path.name} is {file.length} bytes long, must be {file.file_bytes}"
            )
        done_bytes += file.length
        file.forget()
    if ended is not None:
        return ended[0].start + ended[1]
    return files[-1].end if files else 0


def _read(file: ScannedLogFile, progress: Callable[[int], None]) -> tuple[int, InvalidRecord | None]:
    """End of the valid records from the file's start, bytes in the file, and the fault there, if any."""
    at = reported = 0
    while at < file.usable:
        record = file.record(at)
        if isinstance(record, InvalidRecord):
            return at, record
        if record is None:
            break
        at += record.store_bytes
        if at - reported >= _PROGRESS_BYTES:
            reported = at
            progress(at)
    written = file.written_end()
    if not file.is_filled(at) and written > at:
        return at, InvalidRecord(at, f"no record, but {written - at} bytes up to byte {written} are not all zero")
    return at, None


def cut(
    settings: StoreSettings, loss: LogLoss, progress: Progress = no_progress, *, disk: Disk | None = None
) -> tuple[Path | None, Rebuilt]:
    """Cut the log at loss.offset. Returns the folder with the bytes cut off (None if there were none) and the rebuild's result.

    Raises StoreLocked, DiskFull, StoreError; on an error the bytes cut off so far are in that folder as well.
    """
    disk = disk or Disk()
    lock = LockFile(settings.root / "lock")
    lock.acquire()
    try:
        RecordSums(settings.root, disk).discard()
        cut_folder = _move_away(settings, loss, disk)
        _shorten(settings, loss, disk)
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"cannot cut the log at offset {loss.offset}: {error}") from error
    finally:
        lock.release()
    return cut_folder, _rebuild_files(settings, progress, disk)


def _move_away(settings: StoreSettings, loss: LogLoss, disk: Disk) -> Path | None:
    files = [file for file in log_files(settings) if file.end > loss.offset or file.length > file.file_bytes]
    if not any(file.written_end() > _kept_bytes(file, loss) for file in files):
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S")
    folder = settings.root / f"cut-{loss.offset:020d}-{stamp}"
    disk.make_folder(folder)
    for file in files:
        at = _kept_bytes(file, loss)
        if file.written_end() > at:
            name = file_name(file.start + at) if at < file.file_bytes else f"{file.path.name}-surplus"
            _keep(file, at, folder / name, disk)
    disk.sync_folder(folder)
    disk.sync_folder(settings.root)
    return folder


def _kept_bytes(file: ScannedLogFile, loss: LogLoss) -> int:
    """Bytes at the file's start that stay in the log."""
    return min(max(loss.offset - file.start, 0), file.file_bytes)


def _keep(file: ScannedLogFile, at: int, target: Path, disk: Disk) -> None:
    """Move a whole file by rename if possible; otherwise copy its bytes from `at` on."""
    if at == 0 and file.path.stat().st_dev == target.parent.stat().st_dev and file.start > 0:
        disk.replace(file.path, target)
        disk.sync_folder(file.path.parent)
        return
    end = file.written_end()
    fd = disk.create(target, end - at, allocate=True)
    try:
        for position in range(at, end, _COPY_BYTES):
            disk.write(fd, position - at, file.read(position, min(_COPY_BYTES, end - position)))
        disk.sync(fd)
    finally:
        disk.close(fd)


def _shorten(settings: StoreSettings, loss: LogLoss, disk: Disk) -> None:
    """Delete later files, shorten the file of the cut, lower the checkpoint so that queues are rebuilt."""
    files = log_files(settings)
    for file in files:
        if file.start >= loss.offset and file.start > files[0].start:
            disk.unlink(file.path)
    files = [file for file in files if file.path.exists()]
    holder = file_of(files, loss.offset)
    for file in files:
        if file is holder or file.length != file.file_bytes:
            _end_file(file, _kept_bytes(file, loss), disk)
    if not settings.abort_path.exists():
        disk.write_file(settings.abort_path, b"")
        disk.sync_folder(settings.abort_path.parent)
    checkpoint = Checkpoint(settings.checkpoint_path, disk)
    checkpoint.load()
    start = PhysicalOffset(files[0].start if files else 0)
    if files:
        checkpoint.write(Note(PhysicalOffset(loss.offset), start, start, 0, 0, start))
    else:
        disk.unlink(settings.checkpoint_path)
    disk.unlink(settings.root / FAILURE_NAME)
    disk.sync_folder(settings.root)


def _unshare(file: ScannedLogFile, disk: Disk) -> None:
    """Replace a file that has further links, such as from a snapshot, by a copy, so that they keep its content."""
    if file.path.stat().st_nlink == 1:
        return
    copy = file.path.with_name(file.path.name + ".copy")
    disk.unlink(copy)
    fd = disk.create(copy, file.length, allocate=True)
    try:
        for at in range(0, file.length, _COPY_BYTES):
            disk.write(fd, at, file.read(at, min(_COPY_BYTES, file.length - at)))
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.replace(copy, file.path)
    disk.sync_folder(file.path.parent)


def _end_file(file: ScannedLogFile, valid_bytes: int, disk: Disk) -> None:
    """Zero the file after its first `valid_bytes` bytes and restore its nominal length."""
    end = min(file.written_end(), file.file_bytes)
    _unshare(file, disk)
    fd = disk.open(file.path)
    try:
        for at in range(valid_bytes, end, _COPY_BYTES):
            disk.write(fd, at, bytes(min(_COPY_BYTES, end - at)))
        if file.length != file.file_bytes:
            os.ftruncate(fd, min(file.length, file.file_bytes))
            os.posix_fallocate(fd, 0, file.file_bytes)
        disk.sync(fd)
    finally:
        disk.close(fd)
