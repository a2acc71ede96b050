"""The commit log: one sequence of records for all topics. Source: spec 02 section 1. Record layout: protocol/message.py."""

# End-of-file filler, big-endian. Source: spec 02 section 15, ST-12.
#    0  i32  bytes left in the file
#    4  i32  magic 0xCBD43194

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import (
    AT_PHYSICAL_OFFSET,
    AT_STORE_TIMESTAMP_V4,
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_FIXED_BYTES,
    RECORD_V4,
    Message,
    encode_record,
    pack_host,
)
from saturnmq.store.mapped_file import MappedFile, MappedFiles

END_BLANK_BYTES: Final = 8  # every file keeps room for a filler header
_BLANK: Final = struct.Struct(">ii")
_I16: Final = struct.Struct(">h")
_I64: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">ii")
_HOSTS_MAX: Final = 4096
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)


class Record(NamedTuple):
    """Size and magic of what stands at an offset."""

    size: int
    magic: int


class CommitLog:
    """Appends records and reads slices of them. `end` is where the next record goes, bytes."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._files = MappedFiles(folder, file_bytes)
        self._current: MappedFile | None = None
        self.file_bytes = file_bytes
        self.end = 0
        self._hosts: dict[str, bytes] = {}
        self._topics: dict[str, bytes] = {}

    @property
    def files(self) -> list[MappedFile]:
        return self._files.files

    @property
    def start(self) -> int:
        """Offset of the first byte kept; -1 without files (ST-19)."""
        return self.files[0].start if self.files else -1

    def load(self) -> None:
        """Map the files. Raises CorruptRecord, StoreError."""
        self._files.load()
        self.set_end(self.files[-1].end if self.files else 0)

    def set_end(self, end: int) -> None:
        """The log ends here; what lies behind is dropped (RC-10)."""
        self._files.truncate(end)
        self.end = end
        self._current = self._files.find(end) if self.files else None

    # ---- writing

    def room(self, size: int) -> MappedFile:
        """The file that takes a record of size bytes next; rolls to a new one when it does not fit (ST-12).

        Raises DiskFull, StoreError, and StoreError for a record that fits no file.
        """
        if size + END_BLANK_BYTES > self.file_bytes:
            raise StoreError(f"a record of {size} bytes does not fit a commit log file of {self.file_bytes} bytes")
        file = self._current
        if file is not None and size + END_BLANK_BYTES <= file.end - self.end:
            return file
        if file is not None and self.end < file.end:
            left = file.end - self.end
            if left >= END_BLANK_BYTES:
                following = self._next(file.end)
                _BLANK.pack_into(file.map, self.end - file.start, left, BLANK_MAGIC)
                file.wrote = file.size_bytes
                self.end = file.end
                self._current = following
                return following
            file.wrote = file.size_bytes
            self.end = file.end
        self._current = self._next(self.end)
        return self._current

    def _next(self, start: int) -> MappedFile:
        file = self._files.find(start)
        return file if file is not None else self._files.append_file(start)

    def append(self, message: Message, queue_offset: int, store_ms: int) -> int:
        """Write the record; its size in bytes. Sets the message's offsets and times. Raises DiskFull, StoreError.

        The caller has checked the lengths of topic and properties.
        """
        born, store = self._host(message.born_host), self._host(message.store_host)
        if len(born) != 8 or len(store) != 8:
            return self._append_v6(message, queue_offset, store_ms)
        body, properties = message.body, message.properties_raw
        topic = self._topics.get(message.topic)
        if topic is None:
            raw = message.topic.encode()
            topic = self._topics[message.topic] = bytes((len(raw),)) + raw
        body_bytes = len(body)
        size = RECORD_FIXED_BYTES - 1 + body_bytes + len(topic) + len(properties)
        file = self.room(size)
        end = self.end
        at = end - file.start
        view = file.map
        crc = zlib.crc32(body) & 0x7FFFFFFF
        view[at : at + size] = b"".join(
            (
                RECORD_V4.pack(
                    size,
                    MESSAGE_MAGIC,
                    crc,
                    message.queue_id,
                    message.flag,
                    queue_offset,
                    end,
                    message.sys_flag,
                    message.born_timestamp_ms,
                    born[:4],
                    message.born_host[1],
                    store_ms,
                    store[:4],
                    message.store_host[1],
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                    body_bytes,
                ),
                body,
                topic,
                _I16.pack(len(properties)),
                properties,
            )
        )
        file.wrote = at + size
        self.end = end + size
        message.queue_offset, message.physical_offset, message.store_timestamp_ms = queue_offset, end, store_ms
        message.store_bytes, message.body_crc = size, crc
        return size

    def _append_v6(self, message: Message, queue_offset: int, store_ms: int) -> int:
        message.queue_offset, message.store_timestamp_ms = queue_offset, store_ms
        record = encode_record(message)
        return self.append_raw(record, message)

    def append_raw(self, record: bytes, message: Message) -> int:
        """Write an encoded record, its physical offset patched in."""
        size = len(record)
        file = self.room(size)
        at = self.end - file.start
        file.map[at : at + size] = record
        _I64.pack_into(file.map, at + AT_PHYSICAL_OFFSET, self.end)
        message.physical_offset, message.store_bytes = self.end, size
        file.wrote = at + size
        self.end += size
        return size

    def _host(self, host: tuple[str, int]) -> bytes:
        packed = self._hosts.get(host[0])
        if packed is None:
            if len(self._hosts) > _HOSTS_MAX:
                self._hosts.clear()
            packed = self._hosts[host[0]] = pack_host((host[0], 0))
        return packed

    # ---- reading

    def record_at(self, offset: int) -> Record | None:
        """Size and magic at an offset; None outside the log."""
        file = self._files.find(offset)
        if file is None or offset + 8 > min(file.end, self.end):
            return None
        return Record(*_HEAD.unpack_from(file.map, offset - file.start))

    def view(self, offset: int, size: int) -> memoryview | None:
        """Bytes of the log inside one file; None when they are not all there (ST-18)."""
        file = self._files.find(offset)
        if file is None or size < 0 or offset + size > min(file.end, self.end):
            return None
        at = offset - file.start
        return file.view[at : at + size]

    def store_time(self, offset: int) -> int:
        """Store timestamp of the record at an offset, Unix ms; -1 when there is none."""
        head = self.view(offset, 68)
        if head is None or _HEAD.unpack_from(head, 0)[1] != MESSAGE_MAGIC:
            return -1
        at = AT_STORE_TIMESTAMP_V4
        if int.from_bytes(head[36:40], "big") & _BORN_V6:
            at += 12
            head = self.view(offset, at + 8)
            if head is None:
                return -1
        return int(_I64.unpack_from(head, at)[0])

    def next_file_start(self, offset: int) -> int:
        """Start of the file behind the one that holds offset (ST-18)."""
        return offset + self.file_bytes - offset % self.file_bytes

    def dirty_files(self, flushed: int) -> list[MappedFile]:
        """Files with bytes behind `flushed`, oldest first."""
        return [file for file in self.files if file.end > flushed and file.start < self.end]

    def close(self) -> None:
        self._files.close()
