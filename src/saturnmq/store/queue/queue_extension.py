"""Extension of a consume queue: per message its store time and the filter bit map computed at dispatch.

It only saves reading messages that a filter rejects: if an address cannot be resolved, the message passes the filter. Like its
queue it keeps no file open, is written in rounds (before the units that point to it) and is rebuilt from the log.
Its end is not read from its files but derived from the queue's last unit, so stale bytes are never taken for content.

Requirements: CQ-13, CQ-14.
"""

# Extension unit, big-endian; `consumequeue_ext/<topic>/<queueId>/`. Source: docs/spec/02 section 15, CQ-13.
#   at  type  field       meaning
#    0  i16   size        length of the whole unit, 20..32767 bytes; -1: the rest of the file is unused
#    2  i64   tags_code   what the queue's unit would hold without an extension
#   10  i64   store_time  of the message, Unix ms
#   18  i16   map_bytes   0 without a bit map
#   20  ...   bit_map     Bloom filter of the SQL92 filters that accept the message (CQ-14)
# A file keeps 4 spare bytes after its last unit. The tags code of a queue's unit holds the address: position - 2^63.

from __future__ import annotations

import errno
import os
import shlex
import struct
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.protocol.errors import StoreError
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import file_name, numbered_files

_UNIT: Final = struct.Struct(">hqqh")
UNIT_BYTES_MIN: Final = 20
UNIT_BYTES_MAX: Final = 32_767
SPARE_BYTES: Final = 4
ADDRESS_MAX: Final = -(2**31) - 1  # a tags code not above this is an address
# Apache's addresses begin at Long.MIN_VALUE, so that no hash of a tag is one of them.
_ADDRESS_ZERO: Final = -(2**63)
_FILE_END: Final = b"\xff\xff"
_KEPT_BYTES: Final = 65_536  # written bytes kept in memory for readers at the end of the queue
_READ_BYTES: Final = 128  # enough for the bit map of 200 groups


class Content(NamedTuple):
    """One unit. store_ms: Unix ms; bit_map: empty if the unit has none."""

    tags_code: int
    store_ms: int
    bit_map: bytes


class QueueExtension:
    """The extension of one queue: bytes from position `first` to `end`, in files of equal length."""

    __slots__ = ("_cache", "_tail", "_tail_at", "_written", "end", "file_bytes", "first", "folder")

    def __init__(self, folder: Path, file_bytes: int, cache: FileCache) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self._cache = cache
        self._tail = bytearray()  # bytes from position _tail_at on
        self._tail_at = 0
        self._written = 0  # every byte before this position is in files
        self.first = 0
        self.end = 0

    # ---- load

    def load(self, last_code: int | None, units: int) -> None:
        """Derive the end. last_code: tags code of the queue's last unit, None for an empty queue; units: the queue's next offset.

        Raises StoreError if a file's length differs from the setting.
        """
        if last_code is None:
            self.delete()
            return
        paths = numbered_files(self.folder)
        for path in paths:
            length = path.stat().st_size
            # 0: a creation that a crash interrupted.
            if length not in (0, self.file_bytes):
                folder = shlex.quote(str(self.folder.parent.parent))
                raise StoreError(
                    f"{path} is {length} bytes long, must be {self.file_bytes} (mappedFileSizeConsumeQueueExt)",
                    hint=f"If the store was written with that size, start with --set mappedFileSizeConsumeQueueExt={length}; "
                    f"otherwise remove the extensions, which only make filtered pulls faster: `rm -r {folder}`",
                )
        self.first = int(paths[0].name) if paths else 0
        if last_code <= ADDRESS_MAX:
            self._anchor(last_code)
            return
        # The extension was off for a while. New content starts after any address that an old unit may hold: none is used twice.
        behind = int(paths[-1].name) + self.file_bytes if paths else 0
        self._start(max(behind, self._boundary(2 * UNIT_BYTES_MAX * units)))

    def _anchor(self, address: int) -> None:
        """End after the unit at this address, or after its file if the unit cannot be read."""
        at = address - _ADDRESS_ZERO
        raw = self._from_file(at, UNIT_BYTES_MIN)
        # A unit never spans two files.
        if len(raw) == UNIT_BYTES_MIN and (size := _size_of(raw)) and at % self.file_bytes + size <= self.file_bytes:
            self._start(at + size)
        else:
            self._start(self._boundary(at + 1))

    def _start(self, end: int) -> None:
        self._tail.clear()
        self._tail_at = self._written = self.end = end

    def _boundary(self, at: int) -> int:
        """Start of the first file at or after a position."""
        return -(-at // self.file_bytes) * self.file_bytes

    # ---- append

    def append(self, tags_code: int, store_ms: int, bit_map: bytes | None) -> int:
        """Add a unit and return its address; the plain tags code if the bit map is too long (CQ-13)."""
        bits = bit_map or b""
        size = UNIT_BYTES_MIN + len(bits)
        free_bytes = self.file_bytes - self.end % self.file_bytes
        # It would fit no file, not even an empty one.
        if size > min(UNIT_BYTES_MAX, self.file_bytes - SPARE_BYTES):
            return tags_code
        # The rest of a file is marked as unused, as Apache's reader expects.
        if size > free_bytes - SPARE_BYTES:
            self._tail += _FILE_END + bytes(free_bytes - len(_FILE_END))
            self.end += free_bytes
        address = self.end + _ADDRESS_ZERO
        self._tail += _UNIT.pack(size, tags_code, store_ms, len(bits))
        self._tail += bits
        self.end += size
        return address

    # ---- write

    def begin_flush(self) -> tuple[tuple[int, bytes], ...]:
        """The unwritten bytes, as (position, bytes), one piece per file."""
        pieces = []
        at = self._written
        while at < self.end:
            stop = min(self.end, at - at % self.file_bytes + self.file_bytes)
            pieces.append((at, bytes(self._tail[at - self._tail_at : stop - self._tail_at])))
            at = stop
        return tuple(pieces)

    def end_flush(self, end: int) -> None:
        """Record that everything before `end` is durable and release old bytes from memory."""
        self._written = max(self._written, min(end, self.end))
        spare = self._written - _KEPT_BYTES - self._tail_at
        if spare > _KEPT_BYTES:
            del self._tail[:spare]
            self._tail_at += spare

    # ---- read

    def _from_file(self, position: int, size_bytes: int) -> bytes:
        at = position % self.file_bytes
        path = self.folder / file_name(position - at)
        return self._cache.read(path, at, min(size_bytes, self.file_bytes - at))

    def _bytes(self, position: int, size_bytes: int) -> bytes:
        if position >= self._tail_at:
            at = position - self._tail_at
            return bytes(self._tail[at : at + size_bytes])
        return self._from_file(position, min(size_bytes, self._tail_at - position))

    def read(self, address: int) -> Content | None:
        """The unit at an address; None if there is none or it is incomplete. Raises OSError, StoreError."""
        position = address - _ADDRESS_ZERO
        if not self.first <= position < self.end:
            return None
        # Most units are shorter: one read for size and content.
        raw = self._bytes(position, _READ_BYTES)
        size = _size_of(raw)
        if size > _READ_BYTES:
            raw = self._bytes(position, size)
        # The bytes there are no unit, or were cut off by a crash.
        if not size or len(raw) < size:
            return None
        _, tags_code, store_ms, _ = _UNIT.unpack_from(raw)
        return Content(tags_code, store_ms, raw[UNIT_BYTES_MIN:size])

    # ---- shrink

    def truncate(self, last_code: int | None) -> None:
        """Drop everything after the unit of the queue's last unit. last_code as in `load`. Raises OSError, StoreError."""
        if last_code is None:
            self.delete()
        elif last_code <= ADDRESS_MAX:
            content = self.read(last_code)
            at = last_code - _ADDRESS_ZERO
            # Unreadable: the next unit goes into the next file.
            end = at + UNIT_BYTES_MIN + len(content.bit_map) if content is not None else self._boundary(at + 1)
            self._zero_files(end)
            if self._tail_at <= end <= self.end:
                del self._tail[end - self._tail_at :]
                self._written = min(self._written, end)
                self.end = end
            else:
                self._start(end)

    def trim(self) -> None:
        """Remove bytes that a crash left after the end. Raises OSError, StoreError."""
        self._zero_files(self.end)

    def _zero_files(self, end: int) -> None:
        """Delete or zero everything from `end` on: Apache's broker reads a file up to the first zero."""
        disk = self._cache.disk
        for path in numbered_files(self.folder):
            start = int(path.name)
            if start >= end:
                self._cache.forget(path)
                disk.unlink(path)
            # The file with the end is cleared from there.
            elif start + self.file_bytes > end:
                fd = disk.open(path)
                try:
                    at = end - start
                    used_end = _last_byte(fd, at)
                    if used_end > at:
                        disk.write(fd, at, bytes(used_end - at))
                        disk.sync(fd)
                finally:
                    disk.close(fd)

    def delete_before(self, code: int) -> None:
        """Delete files before the one that the queue's first unit points to. code: that unit's tags code. Raises OSError."""
        if code > ADDRESS_MAX:
            return
        for path in numbered_files(self.folder):
            end = int(path.name) + self.file_bytes
            # Never beyond what is in files: the rest exists in memory only.
            if end > min(code - _ADDRESS_ZERO, self._written):
                break
            self._cache.forget(path)
            self._cache.disk.unlink(path)
            self.first = end

    def delete(self) -> None:
        """Delete the files and reset (CQ-12). Raises OSError."""
        for path in numbered_files(self.folder):
            self._cache.forget(path)
            self._cache.disk.unlink(path)
        self.first = 0
        self._start(0)


def _size_of(raw: bytes) -> int:
    """Length of the unit at the start of raw, bytes; 0 if there is no valid unit."""
    if len(raw) < UNIT_BYTES_MIN:
        return 0
    size, _, _, map_bytes = _UNIT.unpack_from(raw)
    return size if map_bytes >= 0 and size == UNIT_BYTES_MIN + map_bytes else 0


def _last_byte(fd: int, at: int) -> int:
    """Position after the last non-zero byte of a file, at or after `at`; `at` if there is none. Skips holes."""
    used_end = at
    while True:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return used_end
            raise
        data = os.pread(fd, _KEPT_BYTES, at)
        if not data:
            return used_end
        used = len(data.rstrip(b"\0"))
        if used:
            used_end = at + used
        at += len(data)
