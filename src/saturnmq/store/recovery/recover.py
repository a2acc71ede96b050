"""Recovery: from facts read off the disk to the place where the log ends. A pure plan, and the reading that follows it.

Two lines matter. `durable`: everything before it was on disk once, so a bad record there is damage, and the store does not
open (DUR-09). `dispatch_from`: from there on consume queues and index are written again (DUR-13). Source: spec 02 section 6.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, MessageError
from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES, Message, decode_record
from saturnmq.store.log.commit_log import CommitLog
from saturnmq.store.recovery.checkpoint import SECTOR_BYTES, Note

SCANNED_FILES: Final = 3  # a clean stop of the original is checked from the third last file on


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the first record of a commit log file says. store_ms is -1 when it is not a record."""

    start: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What recovery knows before it reads. queues_reach: end of the last record that a consume queue points to, else -1.

    queues_low: the same of the queue that lags most.
    """

    files: Sequence[FileFacts]
    file_bytes: int
    clean: bool
    checkpoint_ms: int
    note: Note | None
    queues_reach: int
    failed_at: int | None = None  # a flush failed in the life before: nothing behind it can be trusted (DUR-07)
    queues_low: int = 1 << 62
    note_lost: bool = False  # ours was there: then all is read, whatever else the checkpoint says


@dataclass(frozen=True, slots=True)
class Plan:
    """Offsets in the commit log, bytes: read and check from verify_from on; see the module's text for the other two."""

    verify_from: int
    durable: int
    dispatch_from: int


def plan(facts: Facts) -> Plan | None:
    """The plan for a store; None when it has no commit log files and never had (RC-07, RC-08, RC-11).

    Raises CorruptRecord when files are gone that were there.
    """
    files, note = facts.files, facts.note
    if not files:
        if note is not None and note.log_synced > 0:
            raise CorruptRecord(
                f"the commit log has no files, but it was on disk up to offset {note.log_synced}: restore the folder, or "
                "remove the file `checkpoint` as well if its messages may go"
            )
        return None
    start, end = files[0].start, files[-1].start + facts.file_bytes
    if note is not None:
        if note.log_synced > end:
            raise CorruptRecord(
                f"the commit log ends at offset {end}, but it was on disk up to {note.log_synced}: the files from "
                f"{end:020d} on are missing; restore them, or remove the file `checkpoint` if their messages may go"
            )
        verify, durable = note.verify_from, note.log_synced
        dispatch = min(note.dispatched, note.indexed)
    elif facts.note_lost:
        verify, durable, dispatch = start, _last_begun(files), start
    elif facts.clean:
        verify = files[max(len(files) - SCANNED_FILES, 0)].start
        durable, dispatch = _last_begun(files), facts.queues_reach
    else:
        verify = _begin_by_time(files, facts.checkpoint_ms)
        dispatch = min(verify, facts.queues_low)
        durable = _last_begun(files)
    if facts.failed_at is not None:
        durable = facts.failed_at
        verify, dispatch = min(verify, durable), min(dispatch, durable)
    dispatch = max(dispatch, start)
    return Plan(max(min(verify, dispatch), start), durable, dispatch)


def _begin_by_time(files: Sequence[FileFacts], checkpoint_ms: int) -> int:
    """Start of the newest file whose first record was stored before everything was on disk; else of the first one."""
    for facts in reversed(files):
        if 0 < facts.store_ms <= checkpoint_ms:
            return facts.start
    return files[0].start


def _last_begun(files: Sequence[FileFacts]) -> int:
    """Start of the newest file with a record: those before it were full and on disk, those behind it are prepared ones."""
    return next((facts.start for facts in reversed(files) if facts.store_ms > 0), files[0].start)


@dataclass(slots=True)
class Scan:
    """Result of reading the log: where the good records end, and what stopped it."""

    end: int
    stopped_by: str = ""


def facts_of_files(commit_log: CommitLog) -> list[FileFacts]:
    """The facts about files that `plan` needs."""
    return [FileFacts(file.start, commit_log.store_time(file.start)) for file in commit_log.files]


def good_records(
    commit_log: CommitLog, start: int, scan: Scan, *, check_crc: bool, durable: int = sys.maxsize
) -> Iterator[Message]:
    """Records from start on, until one is not good (DUR-08); scan.end is kept behind the last good one.

    durable: from this offset on a record may be torn.
    """
    offset = scan.end = start
    while True:
        head = commit_log.record_at(offset)
        if head is None:
            scan.stopped_by = "end of the last file"
            return
        if head.magic == BLANK_MAGIC:
            following = commit_log.next_file_start(offset)
            if head.size != following - offset:
                scan.stopped_by = f"a filler that says {head.size} bytes are left of {following - offset}"
                return
            offset = scan.end = following
            continue
        if head.magic != MESSAGE_MAGIC:
            scan.stopped_by = "no record" if head == (0, 0) else f"magic 0x{head.magic & 0xFFFFFFFF:08X}"
            return
        record = commit_log.view(offset, head.size) if head.size >= RECORD_FIXED_BYTES else None
        if record is None:
            scan.stopped_by = f"record size {head.size}"
            return
        try:
            message = decode_record(record, 0, check_crc=check_crc)
        except MessageError as error:
            scan.stopped_by = str(error)
            return
        if message.physical_offset != offset:
            scan.stopped_by = f"a record that says it lies at {message.physical_offset}"
            return
        if offset >= durable and is_torn(message, offset % commit_log.file_bytes, record):
            scan.stopped_by = "a record of which a part was not written"
            return
        yield message
        offset += head.size
        scan.end = offset


def is_torn(message: Message, at: int, record: bytes | memoryview) -> bool:
    """Whether a part of a record that no checksum covers, its topic or properties, was not on disk when power was lost.

    at: position in the file. What was never written reads as zeros: the rest of the record, or whole sectors of it.
    """
    if "\0" in message.topic:
        return True
    properties = message.properties_raw
    if b"\0" not in properties:
        return False
    end = at + message.store_bytes
    sector = end - len(properties)
    sector -= sector % SECTOR_BYTES
    while sector < end:
        part = record[max(sector - at, 0) : sector + SECTOR_BYTES - at]
        if not bytes(part).strip(b"\0"):
            return True
        sector += SECTOR_BYTES
    return properties.endswith(b"\0")


def damage(commit_log: CommitLog, scan: Scan, durable: int) -> CorruptRecord:
    """The error for a log whose good records end before what was on disk."""
    file = next((file for file in commit_log.files if file.start <= scan.end < file.end), None)
    place = f"{file.path} at byte {scan.end - file.start}" if file else "the commit log"
    return CorruptRecord(
        f"{place} is damaged (offset {scan.end}: {scan.stopped_by}), but everything before offset {durable} was on disk.",
        hint="Restore the file from a copy, or cut the log there with `saturnmq store repair` and lose what lies behind.",
    )
