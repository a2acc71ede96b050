"""Finding frames in bytes of a log: every cut of a chunk, every place to resume at, commit log and DLedger files alike."""

from __future__ import annotations

import os
import struct
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from saturnmq.protocol.message import BLANK_MAGIC, Message, encode_record
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES
from saturnmq.spark.log_scan import FilePiece, _frames, _resync

BASE = 7000
BODIES = [b"", b"a" * 40, b"bc" * 33, b"d"]


def frames(*, ledger: bool, blank: bool) -> tuple[bytes, list[int]]:
    """The bytes of a file with one frame per body, and where each frame begins; the last entry is the end of the frames."""
    head = ENTRY_HEADER_BYTES if ledger else 0
    data = b""
    starts = []
    for number, body in enumerate(BODIES):
        starts.append(len(data))
        record = encode_record(Message("T", body, b"KEYS\x01k", physical_offset=BASE + len(data) + head))
        if ledger:
            data += struct.pack(">iiq32x", 1, head + len(record), number)
        data += record
    starts.append(len(data))
    if blank:
        data += (b"\xff" * 4 + b"\0" * 4) if ledger else struct.pack(">ii", 8, BLANK_MAGIC)
    return data, starts


def piece(path: str, end: int, *, ledger: bool, committed: int = 2**63 - 1) -> FilePiece:
    return FilePiece(path, BASE, 0, end, ledger, True, committed)


@pytest.mark.parametrize("ledger", [False, True], ids=["commit log", "ledger"])
def test_cut_chunk_has_its_whole_frames_and_asks_for_more(ledger: bool) -> None:
    data, starts = frames(ledger=ledger, blank=False)
    head = ENTRY_HEADER_BYTES if ledger else 0
    for size in range(len(data) + 1):
        whole = [start for start, end in pairwise(starts) if end <= size]
        records, used, reason = _frames(data[:size], 0, piece("", len(data), ledger=ledger))
        assert (records, used, reason) == ([start + head for start in whole], starts[len(whole)], "more"), size


@pytest.mark.parametrize("ledger", [False, True], ids=["commit log", "ledger"])
def test_frames_end_at_the_blank_and_at_damage(ledger: bool) -> None:
    data, starts = frames(ledger=ledger, blank=True)
    head = ENTRY_HEADER_BYTES if ledger else 0
    records = [start + head for start in starts[:-1]]
    assert _frames(data, 0, piece("", len(data), ledger=ledger)) == (records, starts[-1], "end")
    offset_of_position = head + 28
    for number, start in enumerate(starts[:-1]):
        for at in (start, start + 4, start + head, start + head + 4, start + offset_of_position):
            damaged = data[:at] + b"\0\0\0\x05" + data[at + 4 :]
            assert _frames(damaged, 0, piece("", len(data), ledger=ledger)) == (records[:number], start, "bad"), at


def test_ledger_ends_behind_its_last_committed_entry() -> None:
    data, starts = frames(ledger=True, blank=False)
    for committed in range(-1, len(BODIES)):
        records, used, reason = _frames(data, 0, piece("", len(data), ledger=True, committed=committed))
        assert (len(records), used) == (committed + 1, starts[committed + 1])
        assert reason == ("more" if committed == len(BODIES) - 1 else "end")


@pytest.mark.parametrize("ledger", [False, True], ids=["commit log", "ledger"])
def test_scan_resumes_at_the_first_frame_from_any_byte(tmp_path: Path, ledger: bool) -> None:
    data, starts = frames(ledger=ledger, blank=True)
    path = tmp_path / "00000000000000007000"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDONLY)
    try:
        for begin in range(len(data)):
            expected = next((start for start in starts[:-1] if start >= begin), None)
            assert _resync(handle, begin, piece(str(path), len(data), ledger=ledger)) == expected, begin
    finally:
        os.close(handle)


def test_scan_resumes_at_no_copy_of_a_record_in_a_body(tmp_path: Path) -> None:
    """A body may hold a record, with its magic and even its lengths; its own position differs."""
    inner = encode_record(Message("T", b"inner", b"", physical_offset=BASE))
    bodies = [inner, b"x", inner + inner]
    sizes = [len(encode_record(Message("T", body, b"", physical_offset=0))) for body in bodies]
    starts = [0, *accumulate(sizes)]
    data = b"".join(
        encode_record(Message("T", body, b"", physical_offset=BASE + start))
        for body, start in zip(bodies, starts, strict=False)
    )
    path = tmp_path / "00000000000000007000"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDONLY)
    try:
        for begin in range(1, len(data)):
            expected = next((start for start in starts[:-1] if start >= begin), None)
            assert _resync(handle, begin, piece(str(path), len(data), ledger=False)) == expected, begin
    finally:
        os.close(handle)
