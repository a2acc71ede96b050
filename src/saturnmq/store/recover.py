"""Recovery: from facts read off the disk to the place where the log ends. A pure plan, and the executor that follows it.

Source: spec 02 section 6, RC-05..13.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES, Message, decode_record
from saturnmq.store.commit_log import CommitLog

SCANNED_FILES: Final = 3  # a clean stop is checked from the third last file on


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the first record of a commit log file says. store_ms is -1 when it is not a record."""

    start: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to start reading, and whether every record read is dispatched again."""

    scan_from: int
    dispatch_again: bool


def plan(files: Sequence[FileFacts], *, clean: bool, checkpoint_ms: int) -> Plan | None:
    """The plan for a store with these commit log files; None when there are none (RC-07, RC-08, RC-11)."""
    if not files:
        return None
    if clean:
        return Plan(files[max(len(files) - SCANNED_FILES, 0)].start, dispatch_again=False)
    for facts in reversed(files):
        if 0 < facts.store_ms <= checkpoint_ms:
            return Plan(facts.start, dispatch_again=True)
    return Plan(files[0].start, dispatch_again=True)


@dataclass(slots=True)
class Scan:
    """Result of reading the log: where the good records end, and what stopped it."""

    end: int
    stopped_by: str = ""


def facts_of(commit_log: CommitLog) -> list[FileFacts]:
    """The facts that `plan` needs."""
    return [FileFacts(file.start, commit_log.store_time(file.start)) for file in commit_log.files]


def good_records(commit_log: CommitLog, start: int, scan: Scan, *, check_crc: bool) -> Iterator[Message]:
    """Records from start on, until one is not good; scan.end is kept behind the last good one."""
    offset = scan.end = start
    while True:
        head = commit_log.record_at(offset)
        if head is None:
            scan.stopped_by = "end of the last file"
            return
        if head.magic == BLANK_MAGIC:
            offset = commit_log.next_file_start(offset)
            if commit_log.record_at(offset) is None:
                scan.end = offset
                scan.stopped_by = "end of the last file"
                return
            scan.end = offset
            continue
        if head.magic != MESSAGE_MAGIC:
            scan.stopped_by = "no record" if head.magic == 0 else f"magic 0x{head.magic & 0xFFFFFFFF:08X}"
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
            scan.stopped_by = f"record says it lies at {message.physical_offset}"
            return
        yield message
        offset += head.size
        scan.end = offset
