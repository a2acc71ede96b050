"""`store dump`: every field of a record, flags and bodies as text, and what is said where no record is."""

from __future__ import annotations

import errno
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from test_store_tools import LOG_BYTES, changed, filled, log_file, settings_of

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.message import Host, Message
from saturnmq.store import MessageStore
from saturnmq.store.queue.consume_queue import FILLER_SIZE, UNIT
from saturnmq.store.tools import dump
from saturnmq.store.tools.scan import ReadOnlyDisk

NOW = 1_700_000_000_123


def stored(path: Path, **more: Any) -> dump.Dumped:
    """The second record of a store, read by the tool."""
    store = MessageStore(settings_of(path), clock_ms=lambda: NOW + 1000)
    store.open()
    values = {
        "flag": 7,
        "born_timestamp_ms": NOW,
        "born_host": Host("10.0.0.9", 5),
        "store_host": Host("127.0.0.1", 10911),
        "reconsume_times": 3,
        "prepared_transaction_offset": 4,
    } | more
    store.put(Message("T", b"first", b"", 2, store_host=Host("127.0.0.1", 10911)))
    at = store.put(Message("T", b"body", b"", 2, **values)).physical_offset
    store.close_files()
    return dump.by_offset(settings_of(path), at)


def test_every_field_is_shown_in_the_order_of_the_record(tmp_path: Path) -> None:
    found = stored(tmp_path, sys_flag=int(SysFlag.COMMIT))
    assert dump.fields(found) == [
        ("file", str(log_file(tmp_path, 0))),
        ("byte", found.message.physical_offset),
        ("total_size", 91 + 1 + 4),
        ("body_crc", zlib.crc32(b"body") & 0x7FFFFFFF),
        ("queue_id", 2),
        ("flag", 7),
        ("queue_offset", 1),
        ("physical_offset", 97),
        ("sys_flag", 8),
        ("sys_flag_names", "commit"),
        ("born_timestamp_ms", NOW),
        ("born_time", "2023-11-14T22:13:20.123Z"),
        ("born_host", "10.0.0.9:5"),
        ("store_timestamp_ms", NOW + 1000),
        ("store_time", "2023-11-14T22:13:21.123Z"),
        ("store_host", "127.0.0.1:10911"),
        ("reconsume_times", 3),
        ("prepared_transaction_offset", 4),
        ("topic", "T"),
        ("body_bytes", 4),
    ]


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        (0, ""),
        (1, "compressed ZLIB"),
        (1 | 3 << 8, "compressed ZLIB"),
        (1 | 1 << 8, "compressed LZ4"),
        (1 | 2 << 8, "compressed ZSTD"),
        (1 | 7 << 8, "compressed, type unknown"),
        (2, "multi tags"),
        (4, "prepared"),
        (8, "commit"),
        (12, "rollback"),
        (16, "born host IPv6"),
        (32, "store host IPv6"),
        (4 | 2 | 16 | 32, "prepared, multi tags, born host IPv6, store host IPv6"),
    ],
)
def test_flags_are_named(flag: int, names: str) -> None:
    assert dump.flag_names(flag) == names


def test_time_out_of_range_is_no_time() -> None:
    assert [dump.iso(ms) for ms in (0, 999, 1 << 62)] == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.999Z",
        "no time",
    ]


@pytest.mark.parametrize(
    ("body", "flag", "text"),
    [
        (b"", 0, ""),
        ("größe\n\r\t".encode(), 0, "größe\n\r\t"),
        (b"\x00", 0, None),
        (b"\xff", 0, None),
        (zlib.compress(b"text" * 10), 1, "text" * 10),
        (zlib.compress(bytes(10)), 1, None),
        (b"not compressed", 1, None),
        (b"text", 1 | 7 << 8, None),
        (zlib.compress(b"a" * (dump.TEXT_BYTES_MAX + 5)), 1, "a" * dump.TEXT_BYTES_MAX),
    ],
    ids=["empty", "text", "zero", "binary", "zlib", "zlib zeros", "no zlib", "unknown", "long"],
)
def test_body_is_shown_as_text_if_it_is_text(body: bytes, flag: int, text: str | None) -> None:
    assert dump.TEXT_BYTES_MAX == 1 << 20
    assert dump.body_text(Message("T", body, b"", 0, sys_flag=flag)) == text


def test_hex_dump_has_16_bytes_per_line() -> None:
    lines = dump.body_hex(Message("T", bytes(range(0x1E, 0x30)) + b"~\x7f", b"", 0))
    assert lines == [
        "00000000  1e 1f 20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d  .. !\"#$%&'()*+,-",
        "00000010  2e 2f 7e 7f                                      ./~.",
    ]
    assert dump.body_hex(Message("T", b"", b"", 0)) == []


def test_unit_without_a_record_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = filled(tmp_path)
    settings, queue = settings_of(tmp_path), tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    changed(queue, 0, UNIT.pack(0, FILLER_SIZE, 0))
    with pytest.raises(StoreError, match=rf"{queue} at byte 0 \(queue offset 0\) is a filler"):
        dump.by_queue(settings, "T", 0, 0)
    changed(queue, 20, UNIT.pack(offsets[6] + 1, 245, 0))
    with pytest.raises(
        CorruptRecord, match=rf"at byte 20 \(queue offset 1\) points to offset {offsets[6] + 1}\. .*magic"
    ):
        dump.by_queue(settings, "T", 0, 1)
    changed(queue, 180, bytes(20))
    with pytest.raises(
        StoreError, match="no unit for queue offset 9; its files begin at 0 and have space up to 9"
    ) as caught:
        dump.by_queue(settings, "T", 0, 9)
    assert "memory of a running broker" in caught.value.hint

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ReadOnlyDisk, "read", broken)
    with pytest.raises(StoreError, match=f"cannot read {queue} at byte 40: Input/output error"):
        dump.by_queue(settings, "T", 0, 2)


def test_place_without_a_record_is_explained(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    settings, first, last = settings_of(tmp_path), log_file(tmp_path, 0), log_file(tmp_path, offsets[-1])
    blank = max(offset for offset in offsets if offset < LOG_BYTES) + 245
    for path, at, text in (
        (first, blank, "a filler: the next record is in the next file; no record begins there.$"),
        (last, LOG_BYTES - 200, "nothing was written there; no record begins there.$"),
        (last, -1, f"byte -1 lies outside {last}, which has bytes 0 to {LOG_BYTES - 1}$"),
        (tmp_path / f"{0:020d}", 0, f"cannot read {tmp_path}/0+: No such file or directory$"),
    ):
        with pytest.raises(StoreError) as caught:
            dump.by_place(settings, path, at)
        assert re.search(text, caught.value.message), caught.value.message


def test_dumped_place_is_that_of_the_record(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    found = dump.by_offset(settings_of(tmp_path), offsets[-1])
    assert (found.path, found.at) == (log_file(tmp_path, offsets[-1]), offsets[-1] - 3 * LOG_BYTES)
