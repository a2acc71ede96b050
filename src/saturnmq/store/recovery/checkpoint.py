"""The checkpoint: up to where each kind of file is durable.

Apache RocketMQ stores three timestamps at the start of the file and never touches the rest of it. There SaturnMQ stores a note
with offsets, because timestamps depend on the clock and offsets do not (DUR-18). A note whose three timestamps differ from the
file's is older than the last write of Apache's broker and is ignored.

Requirements: RC-09, FLU-09, DUR-09, DUR-13, DUR-18.
"""

# checkpoint, 4096 bytes, big-endian. Source: docs/spec/02 section 15.
#    0  i64  commit_log_ms     store time, Unix ms, of the last record known to be durable
#    8  i64  consume_queue_ms
#   16  i64  index_ms
#   24  the note, in the same sector as the times
#  512  the previous note, used if the first sector was torn
#
# Note, 88 bytes.
#    0  8s   "SATURN/1"
#    8  3*i64  the three timestamps
#   32  i64  log_synced        the commit log is durable up to here
#   40  i64  dispatched        consume queues are durable for every record before it
#   48  i64  indexed           the index is durable for every record before it
#   56  i64  index_file        name of the last index file as a number; 0: none
#   64  i32  index_entries     how many of its entries are durable
#   68  i64  verify_from       start of a record; the next start reads the log from there
#   76  i64  index_end_ms      store time of the last durable index entry
#   84  u32  CRC-32 of the 84 bytes before it

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import TIME_END_MS
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.disk import Disk

CHECKPOINT_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
SAFETY_MS: Final = 3000
BOUNDARY_BYTES: Final = 8 << 20  # distance of the offsets that `verify_from` is chosen from
_TIMES: Final = struct.Struct(">qqq")
_NOTE: Final = struct.Struct(">8sqqqqqqqiqq")
_CRC: Final = struct.Struct(">I")
_MARK: Final = b"SATURN/1"
_NOTE_BYTES: Final = _NOTE.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Note:
    """Offsets in the commit log, bytes; see the layout above."""

    log_synced: PhysicalOffset
    dispatched: PhysicalOffset
    indexed: PhysicalOffset
    index_file: int
    index_entries: int
    verify_from: PhysicalOffset
    index_end_ms: int = 0


class Checkpoint:
    """The three timestamps, the note, and the file that holds them."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.commit_log_ms = 0
        self.consume_queue_ms = 0
        self.index_ms = 0
        self.note: Note | None = None
        self.marked = False  # the file contains a note or remains of one
        self.note_outdated = False  # there is a note, but another broker wrote the file after it
        self._disk = disk
        self._written = b""  # the newest note on disk

    def load(self) -> None:
        """Read the file if it exists; an impossible timestamp counts as 0, so that recovery reads more. Raises StoreError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        # Remains of a note show that SaturnMQ wrote the file, even if the note itself is torn.
        self.marked = _MARK in data
        if len(data) < _TIMES.size:
            return
        times = _TIMES.unpack_from(data)
        # 0 makes recovery read from the beginning.
        self.commit_log_ms, self.consume_queue_ms, self.index_ms = (ms if 0 <= ms < TIME_END_MS else 0 for ms in times)
        first = _parse(data[_TIMES.size :])
        if first is not None:
            # Apache's broker changes the times and leaves the note as it is.
            self.note_outdated = first[0] != times
            if not self.note_outdated:
                self.note, self._written = first[1], data[_TIMES.size : _TIMES.size + _NOTE_BYTES]
            return
        # Its times may differ from those of the torn first sector, so they are not compared.
        second = _parse(data[SECTOR_BYTES:])
        if second is not None:
            self.note, self._written = second[1], data[SECTOR_BYTES : SECTOR_BYTES + _NOTE_BYTES]

    @property
    def safe_ms(self) -> int:
        """Records stored up to this time are durable, with a safety margin (RC-09). Unix ms."""
        # As in Apache RocketMQ: the times of a checkpoint are trusted only with a margin of 3 seconds.
        return max(min(self.commit_log_ms, self.consume_queue_ms) - SAFETY_MS, 0)

    def write(self, note: Note) -> None:
        """Write timestamps and note durably. Raises StoreError; safe in a thread, one call at a time."""
        times = (self.commit_log_ms, self.consume_queue_ms, self.index_ms)
        body = _NOTE.pack(
            _MARK,
            *times,
            note.log_synced,
            note.dispatched,
            note.indexed,
            note.index_file,
            note.index_entries,
            note.verify_from,
            note.index_end_ms,
        )
        body += _CRC.pack(crc32(body))
        # Times and note in one sector, which disks write as a whole.
        head = (_TIMES.pack(*times) + body).ljust(SECTOR_BYTES, b"\0")
        try:
            if self.path.exists() and self.path.stat().st_size == CHECKPOINT_BYTES:
                self._overwrite(head)
            else:
                self._disk.make_folder(self.path.parent)
                self._disk.write_file(self.path, head.ljust(CHECKPOINT_BYTES, b"\0"))
                self._disk.sync_folder(self.path.parent)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error
        self.note, self._written = note, body

    def _overwrite(self, head: bytes) -> None:
        fd = self._disk.open(self.path)
        try:
            # The old note is copied to the second sector first, and synced: one of both is valid at any time.
            if self._written:
                self._disk.write(fd, SECTOR_BYTES, self._written)
                self._disk.sync(fd)
            self._disk.write(fd, 0, head)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)


def _parse(data: bytes) -> tuple[tuple[int, int, int], Note] | None:
    """(timestamps, note) from a note's bytes; None if they are not a valid note."""
    if len(data) < _NOTE_BYTES or crc32(data[: _NOTE.size]) != _CRC.unpack_from(data, _NOTE.size)[0]:
        return None
    mark, log_ms, queue_ms, index_ms, synced, dispatched, indexed, name, entries, verify, end_ms = _NOTE.unpack_from(
        data
    )
    if mark != _MARK:
        return None
    return (log_ms, queue_ms, index_ms), Note(synced, dispatched, indexed, name, entries, verify, end_ms)
