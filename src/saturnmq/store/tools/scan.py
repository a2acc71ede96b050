"""Shared by the operator tools: reads a store as it is on disk, without opening it and without changing a byte.

Files are read, never mapped: an unreadable sector then is an error with a position, not a SIGBUS.

Requirements: DUR-08.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from saturnmq.protocol.errors import CorruptRecord, MessageError, StoreError
from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES, Message, decode_record
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import numbered_files
from saturnmq.store.files.record_sums import Evidence, RecordSums
from saturnmq.store.index.index_file import IndexShape
from saturnmq.store.queue.consume_queue import UNIT_BYTES
from saturnmq.store.recovery.checkpoint import Note
from saturnmq.store.recovery.hints import commit_log_paths, log_bytes_of, recorded
from saturnmq.store.recovery.recover import is_torn
from saturnmq.store.settings import StoreProfile, StoreSettings

WINDOW_BYTES: Final = 4 << 20
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes done and total bytes."""


def no_progress(done_bytes: int, total: int) -> None:
    """Ignore progress."""


class Weight(Enum):
    """DAMAGE: a start fails, or would not notice it. PENDING: the next start repairs it. REMARK: for information."""

    DAMAGE = "damage"
    PENDING = "pending"
    REMARK = "remark"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. at: byte position in the file; offset: in the commit log; -1 if not applicable."""

    weight: Weight
    path: Path
    at: int
    offset: int
    description: str
    next: str = ""


class ReadOnlyDisk(Disk):
    """A Disk that opens files for reading only."""

    def open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error


# ---- sizes


def shaped(settings: StoreSettings, given_keys: Set[str]) -> StoreSettings:
    """The settings with the file sizes that the store was written with, except for keys that the operator gave.

    The sizes are recorded in queues.json; without it they are derived from the files. Raises StoreError if the store does not
    exist or a size cannot be derived.
    """
    if not settings.root.is_dir():
        raise StoreError(
            f"there is no store folder {settings.root}", hint="Name it with --data DIR, or -c broker.conf."
        )
    settings = dataclasses.replace(settings, profile=_profile(settings, given_keys))
    logs = commit_log_paths(settings)
    if "mappedFileSizeCommitLog" not in given_keys and logs:
        settings = dataclasses.replace(settings, commit_log_file_bytes=_log_bytes(settings, logs))
    queues = list(settings.consume_queue_dir.glob("*/*"))
    lengths = Counter(path.stat().st_size for folder in queues for path in numbered_files(folder))
    if "mappedFileSizeConsumeQueue" not in given_keys and lengths:
        listed = recorded(settings)
        size = listed.queue_file_bytes if listed is not None else 0
        whole = [length for length, _ in lengths.most_common() if length and length % UNIT_BYTES == 0]
        settings = dataclasses.replace(settings, consume_queue_file_bytes=size or next(iter(whole), 0))
    return settings


def _profile(settings: StoreSettings, given_keys: Set[str]) -> StoreProfile:
    """Detect the profile from the reserve file, whose length differs per profile."""
    reserve = settings.root / "reserve"
    if "storeProfile" not in given_keys and reserve.exists():
        length = reserve.stat().st_size
        for profile in StoreProfile:
            if dataclasses.replace(settings, profile=profile).reserve_bytes == length:
                return profile
    return settings.profile


def _log_bytes(settings: StoreSettings, paths: list[Path]) -> int:
    """The size that the store was written with. That of an only file is trusted if it is the size of a profile."""
    if size := log_bytes_of(settings, paths):
        return size
    length = paths[0].stat().st_size
    usual = [dataclasses.replace(settings, profile=p, commit_log_file_bytes=0).commit_log_bytes for p in StoreProfile]
    if length in usual:
        return length
    raise StoreError(
        f"{paths[0]} is {length} bytes long, which is no usual length of a commit log file, and it is the only one",
        hint="Say how long its files are: -c broker.conf, or --set mappedFileSizeCommitLog=BYTES.",
    )


def index_shape(settings: StoreSettings, given_keys: Set[str]) -> IndexShape | None:
    """Slots and entries of the index files; None if their length matches neither the settings nor a profile."""
    folder = settings.index_dir
    paths = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    lengths = Counter(path.stat().st_size for path in paths)
    configured = IndexShape(settings.index_slots, settings.index_entries)
    if not lengths or {"maxHashSlotNum", "maxIndexNum"} & given_keys or configured.file_bytes in lengths:
        return configured
    for profile in StoreProfile:
        profile_settings = dataclasses.replace(settings, profile=profile)
        shape = IndexShape(profile_settings.index_slots, profile_settings.index_entries)
        if shape.file_bytes == lengths.most_common(1)[0][0]:
            return shape
    return None


# ---- the commit log


@dataclass(frozen=True, slots=True)
class InvalidRecord:
    """Bytes that are not a valid record. at: byte of the file where one should begin; inside: offset of the wrong byte in it."""

    at: int
    reason: str
    inside: int = 0

    @property
    def byte(self) -> int:
        """Position of the wrong byte in the file."""
        return self.at + self.inside


class ScannedLogFile:
    """One commit log file, read through a window. length: actual bytes, which may differ from file_bytes.

    torn_from: from this offset on a record may be torn, and is invalid then, as at the next start.
    """

    def __init__(self, path: Path, file_bytes: int) -> None:
        self.path = path
        self.start = int(path.name)
        self.file_bytes = file_bytes
        self.length = path.stat().st_size
        self.torn_from = sys.maxsize
        self._window = b""
        self._window_at = 0

    @property
    def end(self) -> int:
        return self.start + self.file_bytes

    @property
    def usable(self) -> int:
        """Bytes that can hold records, whatever the file's length."""
        return min(self.length, self.file_bytes)

    def read(self, at: int, size_bytes: int) -> memoryview:
        """Up to size_bytes from byte `at` on; fewer at the end. Raises StoreError naming the position."""
        skip = at - self._window_at
        if skip < 0 or skip + size_bytes > len(self._window):
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._window = os.pread(fd, max(size_bytes, WINDOW_BYTES), at)
                finally:
                    os.close(fd)
            except OSError as error:
                raise StoreError(
                    f"cannot read {self.path} at byte {at}: {error.strerror}",
                    hint="The disk fails: copy what can be read, and restore the file from another copy.",
                ) from error
            self._window_at, skip = at, 0
        return memoryview(self._window)[skip : skip + size_bytes]

    def forget(self) -> None:
        """Release the window."""
        self._window = b""

    def record(self, at: int) -> Message | InvalidRecord | None:
        """The record at a byte, or why it is invalid; None where nothing was written (zeros) and at the file's end.

        A valid filler counts as the end: the next record is in the next file. Checks length, magic, field lengths, CRC of the
        body and own offset (DUR-08).
        """
        remaining_bytes = self.usable - at
        head = self.read(at, min(remaining_bytes, 8))
        if len(head) < 8:
            return (
                InvalidRecord(at, f"{len(head)} bytes are left, a filler of 8 bytes is missing")
                if head.tobytes().strip(b"\0")
                else None
            )
        size, magic = int.from_bytes(head[:4], "big", signed=True), int.from_bytes(head[4:], "big", signed=True)
        if size == 0 and magic == 0:
            return None
        if magic == BLANK_MAGIC:
            filler_bytes = self.file_bytes - at
            return (
                None
                if size == filler_bytes
                else InvalidRecord(at, f"a filler says {size} bytes are left, must be {filler_bytes}")
            )
        if magic != MESSAGE_MAGIC:
            return InvalidRecord(
                at, f"magic is 0x{magic & 0xFFFFFFFF:08X}, must be 0xDAA320A7 (or 0xCBD43194 of a filler)", 4
            )
        if not RECORD_FIXED_BYTES <= size <= remaining_bytes:
            return InvalidRecord(at, f"record length is {size}, must be {RECORD_FIXED_BYTES} to {remaining_bytes}")
        recorded_offset = int.from_bytes(self.read(at, 36)[28:], "big", signed=True)
        if recorded_offset != self.start + at:
            return InvalidRecord(
                at, f"the record says it lies at offset {recorded_offset}, must be {self.start + at}", 28
            )
        record = self.read(at, size)
        try:
            message = decode_record(record, 0, check_crc=True)
        except MessageError as error:
            return InvalidRecord(at, error.message.replace("record at 0", "record"))
        if self.start + at >= self.torn_from and is_torn(message, at, record):
            return InvalidRecord(at, "a record of which a part was not written")
        return message

    def is_filled(self, at: int) -> bool:
        """Whether there is a filler at a byte."""
        return self.read(at, 8)[4:].tobytes() == BLANK_MAGIC.to_bytes(4, "big", signed=True)

    def resync(self, at: int) -> int:
        """Position of the next valid record from byte `at` on; -1 if there is none."""
        while at < self.usable:
            chunk = bytes(self.read(at, WINDOW_BYTES))
            magic_at = chunk.find(_MAGIC, 4)
            while magic_at >= 0:
                position = at + magic_at - 4
                if isinstance(self.record(position), Message):
                    return position
                magic_at = chunk.find(_MAGIC, magic_at + 1)
            if at + len(chunk) >= self.usable:
                break
            at += len(chunk) - 8
        return -1

    def written_end(self) -> int:
        """Position after the last non-zero byte; 0 if the file is all zeros."""
        end = self.length
        while end > 0:
            first = max(end - WINDOW_BYTES, 0)
            used = len(bytes(self.read(first, end - first)).rstrip(b"\0"))
            if used:
                return first + used
            end = first
        return 0

    def records(self, at: int = 0) -> Iterator[Message | InvalidRecord]:
        """Records from a byte on; an invalid one is yielded as InvalidRecord, and the scan continues at the next valid one."""
        while at < self.usable:
            record = self.record(at)
            if isinstance(record, Message):
                yield record
                at += record.store_bytes
                continue
            if record is None:
                if self.is_filled(at):
                    return
                following = self.resync(at + 1)
                if following < 0:
                    return
                yield InvalidRecord(at, f"{following - at} bytes are empty or unreadable, and records follow them")
            else:
                yield record
                following = self.resync(at + 1)
                if following < 0:
                    return
            at = following


def log_files(settings: StoreSettings) -> list[ScannedLogFile]:
    """The files of the commit log, ascending by start offset."""
    paths = sorted(commit_log_paths(settings), key=lambda path: path.name)
    return [ScannedLogFile(path, settings.commit_log_bytes) for path in paths]


def file_of(files: list[ScannedLogFile], offset: int) -> ScannedLogFile | None:
    """The file that contains an offset, else None."""
    return next((file for file in files if file.start <= offset < file.end), None)


def evidence_of(settings: StoreSettings, note: Note | None) -> Evidence:
    """Evidence of the checksums beside the log that the checkpoint does not, as the next start takes it.

    Nothing if another broker wrote the store since then, which has replaced the checkpoint's note.
    """
    evidence = RecordSums(settings.root, ReadOnlyDisk()).load()
    return evidence if note is not None and evidence.reach > note.log_synced else Evidence()


def differing(files: list[ScannedLogFile], evidence: Evidence) -> list[int]:
    """Offsets, ascending, of the records that are not what was synced there."""

    def view(offset: int, size: int) -> memoryview | None:
        file = file_of(files, offset)
        return file.read(offset - file.start, size) if file is not None else None

    return evidence.damaged(view, files[0].start) if files else []


def message_at(files: list[ScannedLogFile], offset: int) -> Message:
    """The record at an offset. Raises CorruptRecord naming file, byte and what was found instead."""
    file = file_of(files, offset)
    if file is None:
        raise CorruptRecord(
            f"offset {offset} lies outside the commit log, which holds "
            + (f"{files[0].start} to {files[-1].end}" if files else "nothing"),
            hint="`saturnmq store verify` lists the first and last offset of every file.",
        )
    at = offset - file.start
    record = file.record(at)
    if isinstance(record, Message):
        return record
    if record is None:
        reason = "a filler: the next record is in the next file" if file.is_filled(at) else "nothing was written there"
    else:
        reason = record.reason
    raise CorruptRecord(
        f"{file.path} at byte {at} (offset {offset}): {reason}; no record begins there",
        hint="`saturnmq store verify` finds damage; `store dump --topic T --queue Q --queue-offset N` needs no offset.",
    )
