"""Damage that fuzzing found: each test is the smallest case. Source: FUZ-07, FUZ-10, DUR-09, DUR-10, DUR-13."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings

LOG_BYTES = 2048
QUEUE_BYTES = 200
HOST = Host("127.0.0.1", 10911)


def opened(path: Path) -> MessageStore:
    store = MessageStore(
        StoreSettings(
            store_path_root_dir=str(path),
            profile=StoreProfile.SMALL,
            commit_log_file_bytes=LOG_BYTES,
            consume_queue_file_bytes=QUEUE_BYTES,
            index_slots_max=16,
            index_entries_max=60,
        )
    )
    store.open()
    return store


def message(number: int, topic: str = "T") -> Message:
    raw = b"UNIQ_KEY\x01u%d" % number
    return Message(topic, b"%03d" % number * 50, raw, 0, born_host=HOST, store_host=HOST)


def filled(path: Path, count: int = 40, topics: str = "TU", *, clean: bool = True, foreign: bool = False) -> list[int]:
    """A store with messages; their physical offsets. foreign: without what only we leave, as the original writes it."""
    store = opened(path)
    offsets = [store.put(message(number, topics[number % len(topics)])).physical_offset for number in range(count)]
    asyncio.run(store.write_all())
    if clean:
        asyncio.run(store.stop())
    else:
        store.close_files()
    if foreign:
        checkpoint = path / "checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))
        (path / "queues.json").unlink()
    return offsets


def changed(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def log_file(path: Path, offset: int) -> Path:
    return path / "commitlog" / f"{offset // LOG_BYTES * LOG_BYTES:020d}"


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(topic, 0)
    while (result := store.get(topic, 0, offset, 32)).status is GetStatus.FOUND:
        found += [bytes(one.body) for one in decode_records(b"".join(result.buffers))]
        offset = result.next_offset
    return found


@pytest.mark.spec("FUZ-07", "DUR-10")
def test_a_unit_of_a_negative_offset_is_damage_and_not_an_expired_one(tmp_path: Path) -> None:
    filled(tmp_path)
    store = opened(tmp_path)
    unit = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    changed(unit, 60, struct.pack(">q", -5))
    with pytest.raises(CorruptRecord, match=r"queue 0, offset 3: .* at commit log offset -5"):
        store.get("T", 0, 3, 32)
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-10", "IX-07")
def test_a_damaged_record_is_not_found_by_key_nor_by_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = filled(tmp_path)
    store = opened(tmp_path)
    changed(log_file(tmp_path, offsets[4]), offsets[4] % LOG_BYTES + 100, b"?")
    assert store.query("T", "u4", 10, 0, 1 << 60).records == []
    assert f"the record at offset {offsets[4]} is damaged" in caplog.text
    assert len(store.query("T", "u6", 10, 0, 1 << 60).records) == 1
    changed(log_file(tmp_path, offsets[6]), offsets[6] % LOG_BYTES + 30, b"?")  # says that it lies elsewhere
    assert store.read_record(offsets[6]) is None
    assert store.read_record(offsets[8] + 1) is None
    assert store.read_record(offsets[8]) is not None
    store.close_files()
