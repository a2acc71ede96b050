"""The recovery plan: a pure function from facts found on disk to offsets, and the scan of the log that carries it out.

Two offsets matter. `durable`: everything before it has been on disk, so a bad record there is corruption and the store does not
open (DUR-09). `dispatch_from`: from there on consume queues, and the index unless it lags behind them, are written again (DUR-13).

Requirements: RC-07..RC-11, DUR-07..DUR-09, DUR-13.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, MessageError
from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES, Message, decode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.log.log import Log, ReadableLog
from saturnmq.store.recovery.checkpoint import SECTOR_BYTES, Note

log = logging.getLogger(__name__)

_GIVE_UP: Final = "Restore the files from a copy, or continue without their messages: `saturnmq store repair`"
_NO_LIMIT: Final = PhysicalOffset(1 << 62)
SCANNED_FILES: Final = 3  # after a clean stop of Apache's broker, the log is checked from the third last file on


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Start offset of a commit log file and store time of its first record; store_ms is -1 if that is not a record."""

    start: PhysicalOffset
    store_ms: int


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """The input of `plan`.

    queues_reach: end of the last record that any consume queue points to, -1 without queues. queues_low: the same of the
    queue that lags most.
    """

    files: Sequence[FileFacts]
    file_bytes: int
    clean: bool
    checkpoint_ms: int
    note: Note | None
    queues_reach: PhysicalOffset
    failed_at: PhysicalOffset | None = (
        None  # last good offset before a failed flush; nothing after it can be trusted (DUR-07)
    )
    queues_low: PhysicalOffset = _NO_LIMIT
    note_lost: bool = False  # SaturnMQ's note is missing or damaged: the whole log is read, whatever the timestamps say


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Offsets in the commit log, bytes: read and check from verify_from on; see the module docstring for the other two."""

    verify_from: PhysicalOffset
    durable: PhysicalOffset
    dispatch_from: PhysicalOffset


def plan(facts: RecoveryFacts) -> RecoveryPlan | None:
    """The plan for a store; None if it has no commit log files and never had any (RC-07, RC-08, RC-11).

    Raises CorruptRecord if files that existed are missing.
    """
    files, note = facts.files, facts.note
    if not files:
        # An empty folder is a new store, unless the checkpoint remembers a log: then it was lost or not mounted.
        if note is not None and note.log_synced > 0:
            raise CorruptRecord(
                f"the commit log has no files, but it was on disk up to offset {note.log_synced}", hint=_GIVE_UP
            )
        return None
    start, end = files[0].start, files[-1].start + facts.file_bytes
    if note is not None:
        # Files that were durable are missing at the end; a new log would begin there and reuse their offsets.
        if note.log_synced > end:
            raise CorruptRecord(
                f"the commit log ends at offset {end}, but it was on disk up to {note.log_synced}: the files from "
                f"{end:020d} on are missing",
                hint=_GIVE_UP,
            )
        verify, durable = note.verify_from, note.log_synced
        dispatch = note.dispatched
    # Nothing says how far the disk was durable: everything is read, and what precedes the last file counts as durable.
    elif facts.note_lost:
        verify, durable, dispatch = start, _last_begun(files), start
    elif facts.clean:
        verify = files[max(len(files) - SCANNED_FILES, 0)].start
        # Written by Apache and stopped cleanly: its queues are as far as its log.
        durable, dispatch = _last_begun(files), facts.queues_reach
    else:
        verify = _begin_by_time(files, facts.checkpoint_ms)
        # The queue that lags most decides from where units are written again.
        dispatch = min(verify, facts.queues_low)
        durable = _last_begun(files)
    # After a failed fsync the page cache may show what the disk does not have (DUR-07).
    if facts.failed_at is not None:
        durable = facts.failed_at
        verify, dispatch = min(verify, durable), min(dispatch, durable)
    # Retention may have deleted what the checkpoint names.
    dispatch = max(dispatch, start)
    return RecoveryPlan(max(min(verify, dispatch), start), durable, dispatch)


def _begin_by_time(files: Sequence[FileFacts], checkpoint_ms: int) -> PhysicalOffset:
    """Start of the newest file whose first record was stored before the checkpoint's time; else of the first file."""
    for facts in reversed(files):
        # A store time of 0 or -1 is no record.
        if 0 < facts.store_ms <= checkpoint_ms:
            return facts.start
    return files[0].start


def _last_begun(files: Sequence[FileFacts]) -> PhysicalOffset:
    """Start of the newest file that has a record: earlier files were full and synced, later ones are only preallocated."""
    return next((facts.start for facts in reversed(files) if facts.store_ms > 0), files[0].start)


@dataclass(slots=True)
class Scan:
    """Result of scanning the log: end of the last valid record, and what stopped the scan."""

    end: PhysicalOffset
    stopped_by: str = ""


def facts_of_files(commit_log: ReadableLog) -> list[FileFacts]:
    """The facts about commit log files that `plan` needs."""
    return [FileFacts(start := PhysicalOffset(file.start), commit_log.store_time(start)) for file in commit_log.files]


def good_records(
    commit_log: ReadableLog, start: PhysicalOffset, scan: Scan, *, check_crc: bool, durable: PhysicalOffset = _NO_LIMIT
) -> Iterator[Message]:
    """Yield records from start on, up to the first invalid one (DUR-08); scan.end is the end of the last valid record.

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
            # The filler must reach exactly to the file's end; any other size is damage.
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
        # A whole record at another place: a leftover of a file that was used before, or copied.
        if message.physical_offset != offset:
            scan.stopped_by = f"a record that says it lies at {message.physical_offset}"
            return
        # Below `durable` every byte was on disk, so zeros there are content or damage, not a torn write.
        if offset >= durable and is_torn(message, offset % commit_log.file_bytes, record):
            scan.stopped_by = "a record of which a part was not written"
            return
        yield message
        offset = PhysicalOffset(offset + head.size)
        # Moved after the record was handed out: the caller may stop in between.
        scan.end = offset


class SkipLog:
    """Logs once what damage in a log keeps out of the index."""

    def __init__(self) -> None:
        self._end = 0

    def skip(self, begin: PhysicalOffset, end: PhysicalOffset, reason: CorruptRecord) -> None:
        """The records between these offsets are left out."""
        if end > self._end:
            self._end = end
            log.error(
                "messages not indexed from=%s to=%s reason=%s; run `saturnmq store rebuild` when the file is restored",
                begin,
                end,
                reason,
            )


def check_files(commit_log: Log) -> None:
    """Raise CorruptRecord if a file was truncated while it is open: reading its lost pages would end the process."""
    if commit_log.cut_file:
        raise CorruptRecord(commit_log.cut_file)


def messages_from(commit_log: Log, start: PhysicalOffset, end: PhysicalOffset, skipped: SkipLog) -> Iterator[Message]:
    """Yield the messages between two offsets, not before the begin of the log. Raises CorruptRecord if a file was truncated.

    After a damaged record the next file is read, as later records of the same file are found only by a search.
    """
    check_files(commit_log)
    at = PhysicalOffset(max(start, commit_log.first_position))
    while at < end:
        scan = Scan(at)
        # Without the CRC: the index needs topic and keys only.
        yield from good_records(commit_log, at, scan, check_crc=False)
        if scan.end >= end:
            return
        # The start of the next record is known only at file boundaries.
        at = commit_log.next_file_start(scan.end)
        skipped.skip(scan.end, min(at, end), damage(commit_log, scan, end))


def is_torn(message: Message, at: int, record: bytes | memoryview) -> bool:
    """Whether the topic or properties of a record, which no checksum covers, were partly lost in a power failure.

    at: position in the file. Bytes that were never written read as zeros: the rest of the record, or whole sectors of it.
    """
    # Topics have no zero bytes: this one was not written completely.
    if "\0" in message.topic:
        return True
    properties = message.properties_raw
    if b"\0" not in properties:
        return False
    end = at + message.store_bytes
    sector = end - len(properties)
    # Disks write whole sectors: what is missing begins at a multiple of 512 in the file.
    sector -= sector % SECTOR_BYTES
    while sector < end:
        part = record[max(sector - at, 0) : sector + SECTOR_BYTES - at]
        if not bytes(part).strip(b"\0"):
            return True
        sector += SECTOR_BYTES
    return properties.endswith(b"\0")


def damage(commit_log: ReadableLog, scan: Scan, durable: PhysicalOffset) -> CorruptRecord:
    """The error for a log whose valid records end before the durable offset."""
    file = next((file for file in commit_log.files if file.start <= scan.end < file.end), None)
    location = f"{file.path} at byte {scan.end - file.start}" if file else "the commit log"
    return CorruptRecord(
        f"{location} is damaged (offset {scan.end}: {scan.stopped_by}), but everything before offset {durable} was on disk.",
        hint="Restore the file from a copy, or cut the log there with `saturnmq store repair` and lose the records after it.",
    )
