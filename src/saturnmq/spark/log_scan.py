"""Scans commit log files without a broker: finds where records start, what is damaged, and where to resume.

Nothing is ever written.

A file begins with a record, and each record's length leads to the next. A record is accepted only when its magic and its own
physical offset match; after damage its lengths and CRC must match too, because a body can contain anything, including a copy of a
record. DLedger data files have an entry header before each record. Layouts: protocol/message.py, raft/ledger/layout.py.

Requirements: FMD-01, FMD-03..FMD-07, FMD-09.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from saturnmq.protocol.errors import ConfigError, MessageError
from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES, decode_record, head_struct
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.layout import BLANK, HEADER
from saturnmq.raft.ledger.layout import BLANK_MAGIC as LEDGER_BLANK_MAGIC
from saturnmq.spark.decode import Ints
from saturnmq.spark.local_paths import local_path
from saturnmq.spark.log_archive import FILES, MANIFEST, archived_files, is_copied, number_of, opened

CHUNK_BYTES: Final = 8 * 1024 * 1024
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
PIECE_BYTES: Final = 64 * 1024 * 1024
_RECORD: Final = head_struct("total_size", "magic", "physical_offset")
_MAGIC: Final = struct.pack(">i", MESSAGE_MAGIC)
NO_LIMIT: Final = 2**63 - 1


class ScanFile(NamedTuple):
    """One file of a log.

    base: physical offset of its first byte. last: the file that the broker appends to. committed: last ledger index to read.
    sha256, first_ms, last_ms: checksum and store times of an archived file, as its manifest says.
    """

    path: str
    base: int
    ledger: bool = False
    last: bool = False
    committed: int = NO_LIMIT
    sha256: str = ""
    first_ms: int = 0
    last_ms: int = NO_LIMIT

    @property
    def is_copied(self) -> bool:
        """Whether it is read through a temporary copy, by one task."""
        return is_copied(self.path, self.sha256)


class FilePiece(NamedTuple):
    """Bytes [begin, end) of a file; begin is the start of a frame."""

    path: str
    base: int
    begin: int
    end: int
    ledger: bool
    last: bool
    committed: int
    sha256: str = ""


class DamagedRange(NamedTuple):
    """Bytes [begin, end) of a file that hold no record. torn: nothing valid follows them in the last file."""

    begin: int
    end: int
    reason: str
    torn: bool


@dataclass
class Chunk:
    """Whole frames: their bytes, the positions of records in them, and the file offset of the first byte."""

    data: bytes
    positions: Ints
    at: int
    damaged: list[DamagedRange] = field(default_factory=list)


def log_files(path: str, *, uncommitted: bool = False, base_offset: int | None = None) -> list[ScanFile]:
    """Return the files of a store root, a commitlog folder, a DLedger folder, an archive or a single local file, in order.

    Compressed files are included unless the same file exists uncompressed. base_offset: physical offset of the first byte of a
    single file whose name does not contain it. Raises ConfigError.
    """
    root = local_path(path)
    if root is not None and root.is_file():
        return [_named(root, ledger=False, last=True, base=base_offset)]
    if base_offset is not None:
        raise ConfigError(
            f"option baseOffset={base_offset}: path={path!r} is no file; files of folders have their names"
        )
    if root is None or (root / MANIFEST).is_dir():
        return [
            ScanFile(f"{path.rstrip('/')}/{FILES}/{file.name}", file.base, file.ledger, sha256=file.sha256,
                     first_ms=file.first_ms, last_ms=file.last_ms)
            for file in archived_files(path)
        ] or _remote_files(path)  # fmt: skip
    if not root.is_dir():
        raise ConfigError(f"option path={path!r}: no such folder")
    ledgers = sorted(p for p in root.glob("dledger-*") if (p / "data").is_dir())
    ledger = ledgers[0] if ledgers else root if (root / "data").is_dir() else None
    commitlog_folder = root / "commitlog" if (root / "commitlog").is_dir() else root
    files: list[ScanFile] = []
    if ledger is not None:
        committed = NO_LIMIT if uncommitted else _committed(ledger / "checkpoint")
        ledger_files = [_named(p, ledger=True, last=False) for p in _all_numbered(ledger / "data")]
        files = [f._replace(committed=committed) for f in ledger_files]
        divide = files[0].base if files else NO_LIMIT
        files = [
            f for f in (_named(p, ledger=False, last=False) for p in _all_numbered(commitlog_folder)) if f.base < divide
        ] + files
    else:
        files = [_named(p, ledger=False, last=False) for p in _all_numbered(commitlog_folder)]
    if not files and commitlog_folder == root and ledger is None:
        raise ConfigError(
            f"option path={path!r}: it holds no commit log: a store folder, its commitlog, or a DLedger folder"
        )
    while len(files) > 1 and _is_empty(Path(files[-1].path)):
        files.pop()  # preallocated, as by Apache RocketMQ; the end of the log is in the previous file
    return [*files[:-1], files[-1]._replace(last=True)] if files else []


def _remote_files(url: str) -> list[ScanFile]:
    """Return the files of a commit log that was copied to another file system as it was. Raises ConfigError, StoreError."""
    from pyarrow import fs

    from saturnmq.spark.object_store import file_system, service_errors

    system, root = file_system(url)
    for name in ("", "/commitlog"):
        with service_errors(url):
            infos = system.get_file_info(fs.FileSelector(f"{root}{name}", allow_not_found=True))
        names = sorted(
            (info.base_name for info in infos), reverse=True
        )  # a file takes the place of its compressed form
        name_by_number = {number: file for file in names if (number := number_of(Path(file))) is not None}
        if name_by_number:
            folder, end = f"{url.rstrip('/')}{name}", max(name_by_number)
            return [ScanFile(f"{folder}/{file}", at, last=at == end) for at, file in sorted(name_by_number.items())]
    raise ConfigError(f"option path={url!r}: it holds no archive of saturnmq spark archive, and no commit log")


def _is_empty(path: Path) -> bool:
    """Whether the file holds only zeros."""
    with opened(str(path)) as handle:
        at = 0
        while data := os.pread(handle, CHUNK_BYTES, at):
            if data.strip(b"\0"):
                return False
            at += len(data)
    return True


def numbered(folder: Path) -> list[Path]:
    """Return the uncompressed files of a log or queue, in order; empty when the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if re.fullmatch(r"\d{20}", p.name))


def _all_numbered(folder: Path) -> list[Path]:
    """Return the files as `numbered` does, with compressed files in place of missing ones."""
    path_by_number = (
        {number: path for path in folder.iterdir() if (number := number_of(path)) is not None}
        if folder.is_dir()
        else {}
    )
    path_by_number |= {int(path.name): path for path in numbered(folder)}
    return [path for _, path in sorted(path_by_number.items())]


def _named(path: Path, *, ledger: bool, last: bool, base: int | None = None) -> ScanFile:
    number = number_of(path) if base is None else base
    if number is None:
        raise ConfigError(
            f"option path: {path.name!r} is no file of a log; such names are 20 digits, the file's first offset, "
            "with .gz or .zst behind when it is packed; option baseOffset says it for a file of another name"
        )
    return ScanFile(str(path), number, ledger, last)


def _committed(checkpoint: Path) -> int:
    for name in (checkpoint, checkpoint.with_name("checkpoint.bak")):
        if name.is_file():
            match = re.search(r"^committedIndex=(-?\d+)", name.read_text(), re.MULTILINE)
            if match:
                return int(match[1])
    return NO_LIMIT


def piece_of(file: ScanFile, begin: int = 0, end: int = NO_LIMIT) -> FilePiece:
    """Return bytes [begin, end) of a file as one task."""
    return FilePiece(file.path, file.base, begin, end, file.ledger, file.last, file.committed, file.sha256)


def pieces_of(file: ScanFile, *, split: str = "walk", begin: int = 0) -> list[FilePiece]:
    """Split a file into tasks of about 64 MiB with exact ends, found by walking from frame to frame (FMD-03).

    split=file: the whole file is one task; the last file is still walked to find its end. split=resync: little is read, and
    each task begins at the first frame after its nominal start that passes all checks; a body that contains a complete forged
    frame there would be accepted. A compressed, remote or archived file is one task.
    begin: where the first task starts, the start of a frame.
    """
    size = NO_LIMIT if file.is_copied else Path(file.path).stat().st_size
    whole = piece_of(file, begin, size)
    if file.is_copied:
        if not file.last:
            return [whole]
        split = "file"
    if split == "resync":
        starts = [begin, *_starts(whole)]
        pieces = [whole._replace(begin=a, end=b, last=False) for a, b in pairwise(starts)]
        return pieces + pieces_of(file, split="file", begin=starts[-1])
    walk = split == "walk"
    if not walk and not file.last:
        return [whole]
    cuts, end, damaged = [], begin, False
    tail: Chunk | None = None
    for chunk in chunks(whole, stop_at_bad=True):
        if chunk.damaged:
            damaged = not chunk.damaged[0].torn
            end = chunk.at
            break
        end = chunk.at + len(chunk.data)
        tail = chunk
        if walk and end - begin >= PIECE_BYTES:
            cuts.append((begin, end))
            begin = end
    if damaged:
        end = size
    elif file.last and tail is not None:
        end = tail.at + _whole(tail, ENTRY_HEADER_BYTES if file.ledger else 0)
        cuts = [(a, min(b, end)) for a, b in cuts if a < end]
    if end > begin:
        cuts.append((begin, end))
    return [whole._replace(begin=a, end=b) for a, b in cuts]


def _whole(chunk: Chunk, head_bytes: int) -> int:
    """Return the bytes of the chunk without a last record that is still being written or was torn.

    A record counts as complete when its CRC matches and its properties contain no NUL.
    """
    last = int(chunk.positions[-1])
    try:
        record = decode_record(chunk.data, last, check_crc=True)
    except MessageError:
        return last - head_bytes
    return last - head_bytes if b"\0" in record.properties_raw else len(chunk.data)


def _starts(piece: FilePiece) -> list[int]:
    """Return verified frame starts, the first one after each 64 MiB."""
    starts: list[int] = []
    with opened(piece.path) as handle:
        at = piece.begin + PIECE_BYTES
        while at < piece.end and (start := _resync(handle, at, piece)) is not None:
            starts.append(start)
            at = start + PIECE_BYTES
    return starts


def chunks(piece: FilePiece, *, stop_at_bad: bool = False) -> Iterator[Chunk]:
    """Yield the whole frames of a piece, in order; damage is a chunk with `damaged` and no records.

    Raises OSError when the file was deleted, and the errors of `log_archive.unpacked`.
    """
    with opened(piece.path, piece.sha256) as handle:
        piece = piece._replace(end=min(piece.end, os.fstat(handle).st_size))
        at, want = piece.begin, CHUNK_BYTES
        while at < piece.end:
            data = os.pread(handle, min(want, piece.end - at), at)
            if not data:
                return
            positions, used, state = _frames(data, at, piece)
            if positions:
                yield Chunk(data[:used], np.array(positions, dtype=np.int64), at)
                at, want = at + used, CHUNK_BYTES
                continue
            if state == "end":
                return
            if state == "more" and len(data) == want and want < RECORD_BYTES_MAX and at + want < piece.end:
                want *= 4
                continue
            next_at = _resync(handle, at + 1, piece)
            torn = next_at is None and piece.last
            stop = piece.end if next_at is None else next_at
            yield Chunk(b"", np.zeros(0, dtype=np.int64), at, [DamagedRange(at, stop, "no record begins here", torn)])
            if stop_at_bad or next_at is None:
                return
            at = next_at


def _frames(data: bytes, at: int, piece: FilePiece) -> tuple[list[int], int, str]:
    """Return (where records start, bytes of whole frames, why the scan stopped: more, end or bad)."""
    positions: list[int] = []
    cursor, size, base = 0, len(data), piece.base + at
    if piece.ledger:
        while size - cursor >= 8:
            if BLANK.unpack_from(data, cursor)[0] == LEDGER_BLANK_MAGIC:
                return positions, cursor, "end"
            if size - cursor < ENTRY_HEADER_BYTES + _RECORD.size:
                break
            magic, total, index, *_ = HEADER.unpack_from(data, cursor)
            if magic == ENTRY_MAGIC and index > piece.committed:
                return positions, cursor, "end"
            if magic != ENTRY_MAGIC or total < ENTRY_HEADER_BYTES + RECORD_FIXED_BYTES:
                return positions, cursor, "bad"
            record = cursor + ENTRY_HEADER_BYTES
            inner, kind, position = _RECORD.unpack_from(data, record)
            if inner != total - ENTRY_HEADER_BYTES or kind != MESSAGE_MAGIC or position != base + record:
                return positions, cursor, "bad"
            if cursor + total > size:
                return positions, cursor, "more"
            positions.append(record)
            cursor += total
        return positions, cursor, "more"
    unpack = _RECORD.unpack_from
    while size - cursor >= _RECORD.size:
        total, magic, position = unpack(data, cursor)
        if magic == MESSAGE_MAGIC and total >= RECORD_FIXED_BYTES and position == base + cursor:
            if cursor + total > size:
                return positions, cursor, "more"
            positions.append(cursor)
            cursor += total
        else:
            return positions, cursor, "end" if magic == BLANK_MAGIC else "bad"
    if size - cursor >= 8 and struct.unpack_from(">i", data, cursor + 4)[0] == BLANK_MAGIC:
        return positions, cursor, "end"
    return positions, cursor, "more"


def _resync(handle: int, begin: int, piece: FilePiece) -> int | None:
    """Return the next verified frame start: magic, own physical offset, lengths and body CRC match. None when there is none."""
    at, before = begin, ENTRY_HEADER_BYTES if piece.ledger else 0
    while at < piece.end:
        data = os.pread(handle, CHUNK_BYTES, at)
        if not data:
            return None
        magic_at = data.find(_MAGIC)
        while magic_at >= 0:
            start = at + magic_at - 4
            if start - before >= begin and _surely(handle, start, piece):
                return start - before
            magic_at = data.find(_MAGIC, magic_at + 1)
        if len(data) < CHUNK_BYTES:
            return None
        at += len(data) - 8  # the magic may span two reads
    return None


def record_at(handle: int, at: int, base: int) -> bytes | None:
    """Return the record at a position of a file, checked by magic, own physical offset and length; None when there is none."""
    head = os.pread(handle, _RECORD.size, at)
    if len(head) < _RECORD.size:
        return None
    total, magic, position = _RECORD.unpack(head)
    if magic != MESSAGE_MAGIC or position != base + at or not RECORD_FIXED_BYTES <= total <= RECORD_BYTES_MAX:
        return None
    data = os.pread(handle, total, at)
    return data if len(data) == total else None


def _surely(handle: int, start: int, piece: FilePiece) -> bool:
    head = os.pread(handle, _RECORD.size, start)
    if len(head) < _RECORD.size:
        return False
    total, _magic, position = _RECORD.unpack(head)
    if (
        position != piece.base + start
        or not RECORD_FIXED_BYTES <= total <= RECORD_BYTES_MAX
        or start + total > piece.end
    ):
        return False
    try:
        decode_record(os.pread(handle, total, start), check_crc=True)
    except MessageError:
        return False
    return True
