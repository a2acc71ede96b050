"""Dump: finds one record of a store and formats all of it for operators and scripts. Read-only.

Requirements: DUR-08, CQ-01.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import CorruptRecord, MessageError, StoreError
from saturnmq.protocol.message import Message, compression_type
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import NAME_DIGITS, file_name, numbered_files
from saturnmq.store.queue.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES
from saturnmq.store.settings import StoreSettings
from saturnmq.store.tools.scan import InvalidRecord, ReadOnlyDisk, ScannedLogFile, file_of, log_files, message_at

TEXT_BYTES_MAX: Final = 1 << 20  # limit for decompressing a body
_HEX_LINE: Final = 16
_TRANSACTION: Final = {0: "", 4: "prepared", 8: "commit", 12: "rollback"}


@dataclass(frozen=True, slots=True)
class Dumped:
    """A record and its file. at: byte position in the file."""

    message: Message
    path: Path
    at: int


def by_offset(settings: StoreSettings, offset: PhysicalOffset) -> Dumped:
    """The record at a commit log offset. Raises CorruptRecord naming file, byte and what was found instead; StoreError."""
    files = log_files(settings)
    message = message_at(files, offset)
    file = file_of(files, offset)
    assert file is not None
    return Dumped(message, file.path, offset - file.start)


def by_place(settings: StoreSettings, path: Path, at: int) -> Dumped:
    """The record at a byte of a commit log file or of a fragment kept by a repair. Raises CorruptRecord, StoreError."""
    if not (path.name.isdigit() and len(path.name) == NAME_DIGITS):
        raise StoreError(f"{path} is not named by an offset of {NAME_DIGITS} digits: it is no commit log file")
    try:
        file = ScannedLogFile(path, settings.commit_log_bytes)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if not 0 <= at < file.length:
        raise StoreError(f"byte {at} lies outside {path}, which has bytes 0 to {file.length - 1}")
    record = file.record(at)
    if isinstance(record, Message):
        return Dumped(record, path, at)
    reason = record.reason if isinstance(record, InvalidRecord) else "nothing was written there"
    if record is None and file.is_filled(at):
        reason = "a filler: the next record is in the next file"
    following = file.resync(at + 1)
    more = f" The next good record of this file begins at byte {following}." if following >= 0 else ""
    raise CorruptRecord(
        f"{path} at byte {at} (offset {file.start + at}): {reason}; no record begins there.{more}",
        hint="`saturnmq store verify` finds damage.",
    )


def by_queue(settings: StoreSettings, topic: str, queue_id: int, queue_offset: QueueOffset) -> Dumped:
    """The record of a queue offset. Raises CorruptRecord, StoreError naming what was found instead."""
    folder = settings.consume_queue_dir / topic / str(queue_id)
    paths = numbered_files(folder) if "/" not in topic else []
    if not paths:
        raise StoreError(f"there is no consume queue {folder}", hint="`saturnmq store verify` lists all of them.")
    size = settings.consume_queue_bytes
    at = queue_offset * UNIT_BYTES
    path = folder / file_name(at - at % size)
    first = int(paths[0].name) // UNIT_BYTES
    beyond = StoreError(
        f"queue {topic}/{queue_id} has no unit for queue offset {queue_offset}; its files begin at {first} and have space "
        f"up to {(int(paths[-1].name) + size) // UNIT_BYTES - 1}",
        hint="The newest units may still be in the memory of a running broker; the log has their records.",
    )
    if queue_offset < 0 or not path.exists():
        raise beyond
    disk: Disk = ReadOnlyDisk()
    fd = disk.open(path)
    try:
        raw = disk.read(fd, at % size, UNIT_BYTES)
    except OSError as error:
        raise StoreError(f"cannot read {path} at byte {at % size}: {error.strerror}") from error
    finally:
        disk.close(fd)
    if len(raw) < UNIT_BYTES or not raw.strip(b"\0"):
        raise beyond
    physical, length, _ = UNIT.unpack(raw)
    where = f"{path} at byte {at % size} (queue offset {queue_offset})"
    if length == FILLER_SIZE:
        raise StoreError(f"{where} is a filler: the queue's first message has a greater offset")
    try:
        dumped = by_offset(settings, physical)
    except CorruptRecord as error:
        raise CorruptRecord(f"{where} points to offset {physical}. {error.message}", hint=error.hint) from error
    message = dumped.message
    if (message.topic, message.queue_id, message.queue_offset) != (topic, queue_id, queue_offset):
        raise CorruptRecord(
            f"{where} points to offset {physical}, where queue offset {message.queue_offset} of "
            f"{message.topic}/{message.queue_id} lies",
            hint="Rebuild the queues from the log: saturnmq store rebuild",
        )
    return dumped


def fields(dumped: Dumped) -> list[tuple[str, object]]:
    """(name in snake_case, value) of every field except properties and body, in the record's order."""
    message = dumped.message
    return [
        ("file", str(dumped.path)),
        ("byte", dumped.at),
        ("total_size", message.store_bytes),
        ("body_crc", message.body_crc),
        ("queue_id", message.queue_id),
        ("flag", message.flag),
        ("queue_offset", message.queue_offset),
        ("physical_offset", message.physical_offset),
        ("sys_flag", message.sys_flag),
        ("sys_flag_names", flag_names(message.sys_flag)),
        ("born_timestamp_ms", message.born_timestamp_ms),
        ("born_time", iso(message.born_timestamp_ms)),
        ("born_host", join_host_port(*message.born_host)),
        ("store_timestamp_ms", message.store_timestamp_ms),
        ("store_time", iso(message.store_timestamp_ms)),
        ("store_host", join_host_port(*message.store_host)),
        ("reconsume_times", message.reconsume_times),
        ("prepared_transaction_offset", message.prepared_transaction_offset),
        ("topic", message.topic),
        ("body_bytes", len(message.body)),
    ]


def flag_names(sys_flag: int) -> str:
    """The set bits of a sys flag as text."""
    names = [_TRANSACTION[sys_flag & 12]]
    try:
        kind = compression_type(sys_flag)
        names.append(f"compressed {kind.name}" if kind is not None and kind.name else "")
    except MessageError:
        names.append("compressed, type unknown")
    names += [
        name for bit, name in ((2, "multi tags"), (16, "born host IPv6"), (32, "store host IPv6")) if sys_flag & bit
    ]
    return ", ".join(text for text in names if text)


def iso(ms: int) -> str:
    """UTC time of Unix ms, "no time" if it is out of range."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "no time"


def body_text(message: Message) -> str | None:
    """The body as text, decompressed if it is zlib; None if it is not printable UTF-8."""
    body = bytes(message.body)
    try:
        if compression_type(message.sys_flag) is SysFlag.ZLIB:
            body = zlib.decompressobj().decompress(body, TEXT_BYTES_MAX)
        text = body.decode()
    except (MessageError, zlib.error, UnicodeDecodeError):
        return None
    return text if all(sign.isprintable() or sign in "\n\r\t" for sign in text) else None


def body_hex(message: Message) -> list[str]:
    """The stored body as a hex dump, 16 bytes per line: position, hex, text."""
    body = bytes(message.body)
    lines = []
    for at in range(0, len(body), _HEX_LINE):
        piece = body[at : at + _HEX_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:08x}  {piece.hex(' '):<47}  {text}")
    return lines
