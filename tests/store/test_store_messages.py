"""The store: put, get, offset bounds, restart, recovery, and stores written by Apache RocketMQ."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError, StoreLocked
from saturnmq.protocol.ids import offset_message_id, parse_offset_message_id
from saturnmq.protocol.message import RECORD_FIXED_BYTES, Host, Message, decode_record, decode_records, java_hash
from saturnmq.protocol.properties import tags_code
from saturnmq.store import FlushDiskType, GetStatus, MessageStore, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.queue import consume_queue
from saturnmq.store.queue.consume_queue import ConsumeQueue, write_pending
from saturnmq.store.recovery.checkpoint import Note
from saturnmq.store.recovery.recover import FileFacts, RecoveryFacts, RecoveryPlan, plan

CL = 4096
CQ = 200  # ten units per file
BROKER = Host("127.0.0.1", 10911)


def message(body: bytes = b"body", topic: str = "T", queue: int = 0, properties: bytes = b"", **more: Any) -> Message:
    return Message(topic, body, properties, queue, born_host=Host("10.0.0.9", 5), store_host=BROKER, **more)


def opened(path: Path, clock: Callable[[], int] | None = None, **more: Any) -> MessageStore:
    values = {"commit_log_file_bytes": CL, "consume_queue_file_bytes": CQ, "profile": StoreProfile.SMALL} | more
    store = MessageStore(
        StoreSettings(store_path_root_dir=str(path), **values), **({"clock_ms": clock} if clock else {})
    )
    store.open()
    return store


def closed(store: MessageStore) -> None:
    asyncio.run(store.stop())


def killed(store: MessageStore) -> None:
    """Simulate a killed process: nothing is flushed, files keep what is in the page cache."""
    store.close_files()


def bodies(store: MessageStore, topic: str = "T", queue: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        result = store.get(topic, queue, offset, 32)
        if result.status is not GetStatus.FOUND:
            return found
        found += [bytes(m.body) for m in decode_records(b"".join(result.buffers))]
        offset = result.next_offset


@pytest.mark.spec("DG-02", "ST-01", "ST-13", "ST-14")
def test_topics_share_one_log_with_per_queue_offsets(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first = store.put(message(b"a"))
    second = store.put(message(b"b", "U", 3))
    third = store.put(message(b"c"))
    assert [r.queue_offset for r in (first, second, third)] == [0, 0, 1]
    assert second.physical_offset == first.physical_offset + first.size
    assert third.physical_offset == second.physical_offset + second.size
    assert first.message_ids == [offset_message_id(BROKER, 0)]
    assert parse_offset_message_id(third.message_ids[0]) == (BROKER, third.physical_offset)
    assert (bodies(store), bodies(store, "U", 3)) == ([b"a", b"c"], [b"b"])
    assert [p.name for p in (tmp_path / "commitlog").iterdir()] == ["0" * 20]
    path, end = tmp_path / "commitlog" / ("0" * 20), third.end_offset
    before = path.read_bytes()
    assert len(before) == CL and not any(before[end:])
    store.put(message(b"d"))
    closed(store)
    store = opened(tmp_path)
    store.put(message(b"e"))
    assert path.read_bytes()[:end] == before[:end], "records are never modified"
    closed(store)


@pytest.mark.spec("ST-01", "ST-12")
def test_record_without_space_moves_to_next_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    size = store.put(message(b"x" * 1000)).size
    store.put(message(b"y" * 1000))
    store.put(message(b"z" * 1000))
    rolled = store.put(message(b"w" * 1000))
    assert rolled.physical_offset == CL
    names = sorted(p.name for p in (tmp_path / "commitlog").iterdir())
    assert names == ["0" * 20, f"{CL:020d}"]
    raw = (tmp_path / "commitlog" / names[0]).read_bytes()
    assert struct.unpack_from(">iI", raw, 3 * size) == (CL - 3 * size, 0xCBD43194)
    assert [b[:1] for b in bodies(store)] == [b"x", b"y", b"z", b"w"]
    assert (store.min_physical_offset, store.max_physical_offset) == (0, CL + size)
    assert store.read_record(rolled.physical_offset) is not None
    assert store.read_record(store.max_physical_offset) is None
    assert store.read_record(3) is None
    closed(store)
    store = opened(tmp_path / "exact")
    bare = size - 1000
    for body_bytes, offset in ((1000, 0), (CL - 8 - size - bare, size), (1, CL), (CL - 8 - 2 * bare, 2 * CL)):
        assert store.put(message(b"x" * body_bytes)).physical_offset == offset, "8 bytes of each file stay free"
    closed(store)


@pytest.mark.spec("ST-12")
@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 3900), min_size=1, max_size=12))
def test_every_file_keeps_space_for_a_filler(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    folder = tmp_path_factory.mktemp("fill")
    store = opened(folder)
    for size in sizes:
        result = store.put(message(b"x" * size))
        assert result.status is PutStatus.PUT_OK
        assert result.physical_offset % CL + result.size + 8 <= CL
    assert [len(b) for b in bodies(store)] == sizes
    killed(store)
    store = opened(folder)
    assert [len(b) for b in bodies(store)] == sizes
    closed(store)
    shutil.rmtree(folder)


@pytest.mark.spec("ST-05", "ST-06", "SND-14")
def test_put_rejects_oversized_fields(tmp_path: Path) -> None:
    store = opened(tmp_path, message_bytes_max=100)
    assert store.put(message(b"x" * 100)).status is PutStatus.PUT_OK
    assert store.put(message(b"x" * 101)).status is PutStatus.MESSAGE_ILLEGAL
    assert store.put(message(topic="t" * 127)).status is PutStatus.PUT_OK
    assert store.put(message(topic="t" * 128)).status is PutStatus.MESSAGE_ILLEGAL
    assert store.put(message(properties=b"k\x01" + b"v" * 32766)).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    closed(store)
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.spec("ST-03")
def test_topic_cannot_escape_store_folder(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(message(topic="../x")).status is not PutStatus.PUT_OK
    assert store.put(message()).queue_offset == 0
    assert not (tmp_path / "x").exists()
    closed(store)


@pytest.mark.spec("ST-07", "ST-09")
def test_record_has_body_crc_and_ipv6_hosts(tmp_path: Path) -> None:
    store = opened(tmp_path)
    plain = store.put(message(b"Hello RocketMQ 0"))
    record = decode_record(store.read_record(plain.physical_offset) or b"", check_crc=True)
    assert record.body_crc == 613185359
    v6 = message(b"six")
    v6.born_host, v6.store_host = Host("::1", 7), Host("2001:db8::2", 10911)
    result = store.put(v6)
    found = decode_record(store.read_record(result.physical_offset) or b"", check_crc=True)
    assert (found.born_host, found.store_host, found.sys_flag) == (v6.born_host, v6.store_host, 0x30)
    assert (found.physical_offset, len(result.message_ids[0])) == (result.physical_offset, 56)
    assert store.store_time("T", 0, 1) == found.store_timestamp_ms
    closed(store)


@pytest.mark.spec("ST-10")
def test_store_time_never_decreases(tmp_path: Path) -> None:
    times = iter([1000, 990, 1010])
    store = opened(tmp_path, clock=lambda: next(times))
    stamps = [store.put(message()).store_timestamp_ms for _ in range(3)]
    assert stamps == [1000, 1000, 1010]
    closed(store)


@pytest.mark.spec("ST-13")
def test_prepared_and_rollback_messages_take_no_queue_offset(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(message(b"half", sys_flag=4)).queue_offset == 0
    assert store.put(message(b"rollback", sys_flag=12)).queue_offset == 0
    assert store.put(message(b"commit", sys_flag=8)).queue_offset == 0
    assert store.put(message(b"plain")).queue_offset == 1
    for flag in (4, 12):
        result = store.put(message(b"not for consumers", sys_flag=flag))
        record = decode_record(store.read_record(result.physical_offset) or b"")
        assert (result.queue_offset, record.queue_offset) == (0, 0)
    assert store.put(message(b"next")).queue_offset == 2
    assert bodies(store) == [b"commit", b"plain", b"next"]
    closed(store)


@pytest.mark.spec("ST-15", "ST-16", "BAT-04")
def test_batch_is_contiguous_in_one_file_or_rejected(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first = store.put(message(b"x" * 3000))
    result = store.put_batch(message(), [(b"%d" % n * 300, b"", 0) for n in range(3)])
    assert result.physical_offsets[0] == CL
    old = (tmp_path / "commitlog" / ("0" * 20)).read_bytes()
    assert struct.unpack_from(">iI", old, first.size) == (CL - first.size, 0xCBD43194)
    assert not any(old[first.size + 8 :]), "no message of the batch is in the old file"
    assert [o // CL for o in result.physical_offsets] == [1, 1, 1]
    assert result.queue_offset == 1 and len(result.message_ids) == 3
    too_big = store.put_batch(message(), [(b"x" * 2000, b"", 0)] * 2)
    assert too_big.status is PutStatus.MESSAGE_ILLEGAL
    most = CL - 8 - 2 * (RECORD_FIXED_BYTES + 1)  # the topic has one byte
    for body_bytes, status in ((most - 2000, PutStatus.PUT_OK), (most - 1999, PutStatus.MESSAGE_ILLEGAL)):
        both = store.put_batch(message(topic="U"), [(b"x" * 2000, b"", 0), (b"y" * body_bytes, b"", 0)])
        assert both.status is status
    assert store.put_batch(message(), []).status is PutStatus.MESSAGE_ILLEGAL
    assert store.put_batch(message(sys_flag=4), [(b"", b"", 0)]).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_offset("T", 0) == 4
    closed(store)


@pytest.mark.spec("ST-16")
def test_batch_has_one_store_time_though_the_clock_advances(tmp_path: Path) -> None:
    clock = itertools.count(1_700_000_000_000, 1000)
    store = opened(tmp_path, clock=lambda: next(clock))
    result = store.put_batch(message(), [(b"%d" % n, b"", 0) for n in range(3)])
    records = [decode_record(store.read_record(offset) or b"") for offset in result.physical_offsets]
    assert [record.body for record in records] == [b"0", b"1", b"2"]
    assert {record.store_timestamp_ms for record in records} == {result.store_timestamp_ms}
    closed(store)


@pytest.mark.spec("CQ-01", "CQ-02", "CQ-04", "CQ-05")
def test_consume_queue_files_contain_20_byte_units(tmp_path: Path) -> None:
    store = opened(tmp_path)
    results = [store.put(message(properties=b"TAGS\x01TagA")) for _ in range(13)]
    folder = tmp_path / "consumequeue" / "T" / "0"
    assert len(bodies(store)) == 13
    assert store.get("T", 0, 8, 32).count == 2  # a pull ends at the end of a queue file
    queue = store.queues.by_key[("T", 0)]
    assert [queue.next_file_offset(offset) for offset in (0, 3, 9, 10, 19)] == [10, 10, 10, 20, 20]
    assert queue.unit(13) is None and queue.unit(-1) is None
    closed(store)
    assert sorted(p.name for p in folder.iterdir()) == ["0" * 20, f"{CQ:020d}"]
    raw = (folder / f"{CQ:020d}").read_bytes()
    assert len(raw) == CQ
    assert struct.unpack_from(">qiq", raw, 20) == (results[11].physical_offset, results[11].size, 2598919)
    assert raw[60:] == bytes(CQ - 60)
    store = opened(tmp_path)  # and the same from the files
    assert len(bodies(store)) == 13
    assert store.get("T", 0, 8, 32).count == 2
    closed(store)
    assert StoreSettings(consume_queue_file_bytes=6_000_001).consume_queue_bytes == 6_000_020
    assert StoreSettings().commit_log_bytes == 2**30 and StoreSettings().consume_queue_bytes == 6_000_000


@pytest.mark.spec("CQ-02")
@pytest.mark.parametrize(
    ("raw", "tag"),
    [
        (b"TAGS\x01a", "a"),
        (b"K\x01v\x02TAGS\x01b\x02X\x01y", "b"),
        (b"MYTAGS\x01z\x02TAGS\x01c", "c"),
        (b"MYTAGS\x01z", ""),
    ],
)
def test_tags_code_is_hash_of_tags_property(raw: bytes, tag: str) -> None:
    assert tags_code(raw) == (java_hash(tag) if tag else 0)


@pytest.mark.spec("CQ-07", "CQ-08")
def test_queue_append_is_idempotent_and_pads_leading_units(tmp_path: Path) -> None:
    disk = Disk()
    cache = FileCache(disk)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    assert queue.append(13, 5000, 100, 7)
    assert (queue.min_offset, queue.max_offset) == (13, 14)
    pending = queue.begin_flush()
    write_pending(pending, disk)
    queue.end_flush(pending)
    raw = (tmp_path / "q" / f"{CQ:020d}").read_bytes()
    assert struct.unpack_from(">qiq", raw, 0) == (0, 0x7FFFFFFF, 0)
    assert queue.append(13, 5000, 100, 7) and queue.max_offset == 14
    assert not queue.append(20, 9000, 100, 7)
    for linear in (False, True):
        again = ConsumeQueue(tmp_path / "q", CQ, cache)
        again.load(linear=linear)
        assert (again.min_offset, again.max_offset, again.max_physical) == (13, 14, 5100)
    cache.close()


@pytest.mark.spec("BP-02", "BP-03", "BP-04", "CQ-11")
def test_get_status_by_offset_and_pull_limits(tmp_path: Path) -> None:
    store = opened(
        tmp_path, consume_queue_file_bytes=20_000, commit_log_file_bytes=2**20, transfer_bytes_in_memory=1000
    )
    assert store.get("T", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    for _ in range(50):
        store.put(message(b"x" * 200, properties=b"TAGS\x01a"))
    assert store.get("T", 0, 50, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get("T", 0, 51, 1).status is GetStatus.OFFSET_OVERFLOW_BADLY
    assert store.get("T", 0, -1, 1).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get("T", 0, 0, 2).count == 2
    assert store.get("T", 0, 0, 32).count == 3
    assert store.get("T", 0, 0, 32, max_bytes=1).count == 1
    none = store.get("T", 0, 0, 32, codes=frozenset((1,)))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 50)
    assert (store.min_offset("T", 0), store.max_offset("T", 0), store.max_offset("none", 0)) == (0, 50, 0)
    closed(store)


@pytest.mark.spec("CQ-06")
def test_offset_by_time_picks_nearer_neighbour_and_left_on_tie(tmp_path: Path) -> None:
    now = [0]
    store = opened(tmp_path, clock=lambda: now[0])
    assert store.offset_by_time("T", 0, 5) == 0
    for at in (100, 200, 300):
        now[0] = at
        store.put(message())
    asked = {50: 0, 100: 0, 149: 0, 150: 0, 151: 1, 200: 1, 299: 2, 1000: 2}
    assert {at: store.offset_by_time("T", 0, at) for at in asked} == asked
    closed(store)


@pytest.mark.spec("RC-01", "RC-02", "RC-03", "RC-07", "RC-12", "FLU-08", "UPG-03")
def test_clean_stop_removes_abort_and_keeps_all_messages(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sent = [b"%d" % n * 50 for n in range(40)]
    for n, body in enumerate(sent):
        store.put(message(body, queue=n % 2))
    assert (tmp_path / "abort").exists()
    closed(store)
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    store = opened(tmp_path)
    assert (bodies(store), bodies(store, queue=1)) == (sent[::2], sent[1::2])
    assert store.put(message()).queue_offset == 20
    closed(store)


@pytest.mark.spec("RC-08", "RC-10", "RC-13", "DUR-01")
def test_acknowledged_messages_survive_a_kill(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sent = [b"%d" % n * 50 for n in range(40)]
    for body in sent:
        assert store.put(message(body)).status is PutStatus.PUT_OK
    end = store.max_physical_offset
    killed(store)
    assert (tmp_path / "abort").exists()
    store = opened(tmp_path)
    assert bodies(store) == sent and store.max_physical_offset == end
    closed(store)


def written(store: MessageStore) -> None:
    """Make all queues and the note durable; the store stays open."""
    asyncio.run(store.write_all())


@pytest.mark.spec("RC-10", "RC-13", "DUR-13", "UPG-05", "DG-02")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "harm", ["queues lost", "queue lost", "file lost", "first file lost", "behind", "length", "unit", "list"]
)
def test_damaged_consume_queues_are_rebuilt_from_log(tmp_path: Path, harm: str, clean: bool) -> None:
    store = opened(tmp_path)
    sent = [b"%03d" % n * 50 for n in range(30)]
    for body in sent:
        store.put(message(body))
        store.put(message(body, "U"))
    written(store)
    closed(store) if clean else killed(store)
    folder = tmp_path / "consumequeue"
    queue_file = folder / "T" / "0" / f"{2 * CQ:020d}"
    if harm == "queues lost":
        shutil.rmtree(folder)
    elif harm == "queue lost":
        shutil.rmtree(folder / "T")
    elif harm == "file lost":
        (folder / "T" / "0" / f"{CQ:020d}").unlink()
    elif harm == "first file lost":
        (folder / "T" / "0" / f"{0:020d}").unlink()
    elif harm == "behind":
        queue_file.write_bytes(queue_file.read_bytes()[:100] + bytes(CQ - 100))
    elif harm == "length":
        queue_file.write_bytes(queue_file.read_bytes()[:100])
    elif harm == "unit":
        raw = bytearray(queue_file.read_bytes())
        raw[47] ^= 1
        queue_file.write_bytes(raw)
    else:
        (tmp_path / "queues.json").write_bytes(b"{")
    store = opened(tmp_path)
    assert bodies(store) == sent and bodies(store, "U") == sent
    assert store.max_offset("T", 0) == 30
    assert store.put(message(b"next")).queue_offset == 30
    assert bodies(store)[-1] == b"next"
    closed(store)


@pytest.mark.spec("RC-10", "RC-13", "DUR-08", "DUR-09")
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("harm", ["cut", "bit flip", "magic", "size", "own offset"])
def test_bad_record_is_cut_above_durable_offset_rejected_below(
    tmp_path: Path, harm: str, noted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    sent = [b"%03d" % n * 50 for n in range(30)]
    results = [store.put(message(body)) for body in sent]
    if noted:
        written(store)
    killed(store)
    at = results[25].physical_offset
    log = tmp_path / "commitlog" / f"{at // CL * CL:020d}"
    raw = bytearray(log.read_bytes())
    place = at % CL
    if harm == "cut":
        raw[place + 4 :] = bytes(CL - place - 4)
    else:
        raw[place + {"bit flip": 100, "magic": 5, "size": 2, "own offset": 33}[harm]] ^= 1
    log.write_bytes(raw)
    if noted:
        with pytest.raises(
            CorruptRecord, match=f"{log} at byte {place} is damaged .offset {at}: .*saturnmq store repair"
        ):
            opened(tmp_path)
        assert log.read_bytes() == bytes(raw)
        return
    store = opened(tmp_path)
    assert bodies(store) == sent[:25]
    assert f"log end recovered offset={at} " in caplog.text
    assert store.put(message(b"next")).queue_offset == 25
    assert bodies(store)[-1] == b"next"
    killed(store)
    store = opened(tmp_path)  # records after the bad one do not come back
    assert bodies(store) == [*sent[:25], b"next"]
    closed(store)


@pytest.mark.spec("DUR-08", "ST-12")
def test_log_ends_before_a_filler_of_another_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    results = [store.put(message(b"%03d" % n * 50)) for n in range(30)]
    killed(store)
    last = results[-1].physical_offset // CL * CL
    filler = max(result.end_offset for result in results if result.end_offset <= last)
    log = tmp_path / "commitlog" / f"{last - CL:020d}"
    raw = bytearray(log.read_bytes())
    assert raw[filler - last :][:4] == (last - filler).to_bytes(4, "big")
    raw[CL + filler - last + 3] ^= 1
    log.write_bytes(raw)
    store = opened(tmp_path)
    assert f"log end recovered offset={filler} " in caplog.text
    killed(store)


@pytest.mark.spec("RC-07", "RC-08", "DUR-07", "DUR-09", "DUR-18")
def test_recovery_plan() -> None:
    files = [FileFacts(n * 100, 1000 + n) for n in range(5)]

    def planned(
        files: list[FileFacts], *, clean: bool, ms: int = 0, note: Note | None = None, **more: Any
    ) -> RecoveryPlan | None:
        reach = more.pop("reach", -1)
        return plan(RecoveryFacts(files, 100, clean, ms, note, reach, **more))

    assert planned([], clean=True) is None
    assert planned(files, clean=True, reach=430) == RecoveryPlan(200, 400, 430)
    assert planned(files[:2], clean=True) == RecoveryPlan(0, 100, 0)
    assert planned(files, clean=False, ms=1002) == RecoveryPlan(200, 400, 200)
    assert planned(files, clean=False, ms=5) == RecoveryPlan(0, 400, 0)
    assert planned([FileFacts(0, -1)], clean=False, ms=10**6) == RecoveryPlan(0, 0, 0)
    note = Note(450, 440, 420, 0, 0, 410)
    assert planned(files, clean=False, ms=10**9, note=note) == RecoveryPlan(
        410, 450, 440
    )  # offsets take precedence over times
    assert planned(files, clean=False, note=note, failed_at=300) == RecoveryPlan(300, 300, 300)
    assert planned(files[3:], clean=False, note=Note(450, 440, 420, 0, 0, 10)) == RecoveryPlan(300, 450, 440)
    with pytest.raises(CorruptRecord, match="ends at offset 400, but it was on disk up to 450"):
        planned(files[:4], clean=False, note=note)
    with pytest.raises(CorruptRecord, match="has no files, but it was on disk up to offset 450"):
        planned([], clean=True, note=note)


@pytest.mark.spec("RC-04")
def test_file_of_wrong_length_is_reported_and_unchanged(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    closed(store)
    with pytest.raises(CorruptRecord, match=r"00000000 is 4096 bytes long, must be 8192"):
        opened(tmp_path, commit_log_file_bytes=8192)
    store = opened(tmp_path)
    assert bodies(store) == [b"body"]
    closed(store)


@pytest.mark.spec("MF-14", "RC-04")
def test_missing_middle_file_is_reported(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(10):
        store.put(message(b"x" * 1500))
    closed(store)
    (tmp_path / "commitlog" / f"{2 * CL:020d}").unlink()
    with pytest.raises(CorruptRecord, match=f"the files from offset {2 * CL} to {3 * CL} are missing"):
        opened(tmp_path)


@pytest.mark.spec("RC-14", "UX-09", "UPG-05")
def test_second_store_on_same_folder_is_rejected(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    with pytest.raises(StoreLocked, match=f"Lock failed,MQ already started.*{tmp_path}.*process {os.getpid()}"):
        opened(tmp_path)
    closed(store)
    closed(opened(tmp_path))


@pytest.mark.spec("DUR-15", "UX-09")
def test_full_disk_fails_at_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    for _ in range(3):
        assert store.put(message(b"x" * 1000)).status is PutStatus.PUT_OK

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused = store.put(message(b"x" * 1000))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "No space left" in refused.reason
    assert f"cannot allocate {tmp_path / 'commitlog' / f'{CL:020d}'} ({CL} bytes)" in refused.reason
    with pytest.raises(DiskFull, match=f"cannot allocate {tmp_path / ('1' * 20)} "):
        MappedFile(tmp_path / ("1" * 20), CL, Disk(), create=True)
    monkeypatch.undo()
    assert store.put(message(b"y" * 1000)).queue_offset == 3
    assert len(bodies(store)) == 4
    closed(store)


@pytest.mark.spec("FLU-01", "FLU-02", "FLU-03")
async def test_sync_flush_shares_flushes_between_senders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = 0
    real = MappedFile.flush

    def counted(self: MappedFile) -> None:
        nonlocal flushes
        flushes += 1
        real(self)

    monkeypatch.setattr(MappedFile, "flush", counted)
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, commit_log_file_bytes=2**20)
    await store.start()
    results = [store.put(message(b"%d" % n)) for n in range(200)]
    statuses = await asyncio.gather(*(store.wait_confirmed(r) for r in results))
    assert set(statuses) == {PutStatus.PUT_OK}
    assert store.flushed_offset == store.max_physical_offset
    assert flushes < 10
    await store.stop()


@pytest.mark.spec("DUR-06")
async def test_failed_flush_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    good = store.put(message(b"good"))
    assert await store.wait_confirmed(good) is PutStatus.PUT_OK

    def broken(self: MappedFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(MappedFile, "flush", broken)
    bad = store.put(message(b"bad"))
    assert await store.wait_confirmed(bad) is PutStatus.UNKNOWN_ERROR
    monkeypatch.undo()
    assert not store.writable
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "Input/output error" in refused.reason
    assert await store.wait_confirmed(bad) is PutStatus.UNKNOWN_ERROR
    with pytest.raises(StoreError, match="Input/output"):
        await store.stop()
    assert (tmp_path / "abort").exists()


@pytest.mark.spec("FLU-04", "UPG-14")
async def test_slow_flush_times_out_and_keeps_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()
    real = MappedFile.flush

    def slow(self: MappedFile) -> None:
        release.wait(10)
        real(self)

    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=20)
    store.put(message(b"makes the file"))
    await store.write_all()
    monkeypatch.setattr(MappedFile, "flush", slow)
    result = store.put(message(b"late"))
    assert await store.wait_confirmed(result) is PutStatus.FLUSH_DISK_TIMEOUT
    assert bodies(store) == [b"makes the file"]  # the late message is not durable, so not visible (DUR-03)
    release.set()
    assert await store.wait_confirmed(result) is PutStatus.PUT_OK
    assert bodies(store) == [b"makes the file", b"late"]
    await store.stop()


@pytest.mark.spec("FLU-06", "FLU-09", "FLU-10")
async def test_async_flush_runs_in_background(tmp_path: Path) -> None:
    more = {"flush_interval_ms": 5, "flush_least_pages": 1, "flush_queue_interval_ms": 5, "flush_thorough_ms": 5}
    store = opened(tmp_path, commit_log_file_bytes=2**20, **more)
    await store.start()
    store.put(message(b"x" * 10_000))
    async with asyncio.timeout(10):
        while store.flushed_offset < store.max_physical_offset or not (tmp_path / "checkpoint").exists():
            await asyncio.sleep(0)
    assert store.flushed_offset == store.max_physical_offset
    await store.stop()


@pytest.mark.spec("DUR-14", "CF-02")
def test_state_file_is_replaced_atomically_with_backup(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "config" / "x.json")
    assert file.read(json.loads) is None
    file.write(b'{"v":1}')
    file.write(b'{"v":2}')
    assert file.read(json.loads) == {"v": 2}
    file.path.write_bytes(b'{"v":')
    assert file.read(json.loads) == {"v": 1}
    file.path.unlink()
    assert file.read(json.loads) == {"v": 1}
    file.backup.write_bytes(b"junk")
    with pytest.raises(CorruptRecord, match=r"x\.json"):
        file.read(json.loads)
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["x.json.bak"]


@pytest.mark.spec("CQ-12")
def test_delete_topic_removes_only_its_queues(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.put(message(b"other", "U"))
    store.delete_topic("T")
    assert store.max_offset("T", 0) == 0
    assert not (tmp_path / "consumequeue" / "T").exists()
    assert bodies(store, "U") == [b"other"]
    assert store.put(message(b"new")).queue_offset == 0
    assert bodies(store) == [b"new"]
    closed(store)


def golden(vectors: Path, tmp_path: Path, name: str, log_bytes: int) -> MessageStore:
    """A store of Apache RocketMQ, its files padded to their original length; the recorder's .jsonl files are left out."""
    folder = tmp_path / name
    for path in (vectors / "store" / name).rglob("*"):
        target = folder / path.relative_to(vectors / "store" / name)
        if path.is_file() and path.suffix != ".jsonl":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if path.name.isdigit() and len(path.name) == 20:
                os.truncate(target, 4000 if "consumequeue" in path.parts else log_bytes)
    shutil.rmtree(folder / "consumequeue_ext", ignore_errors=True)
    return opened(folder, commit_log_file_bytes=log_bytes, consume_queue_file_bytes=4000)


@pytest.mark.spec("RC-07", "RC-08", "ST-01", "CQ-01")
@pytest.mark.parametrize(
    ("name", "log_bytes"), [("broker", 262_144), ("broker-killed", 262_144), ("broker-rollover-ext", 16_384)]
)
def test_rocketmq_store_opens_with_every_sent_message(vectors: Path, tmp_path: Path, name: str, log_bytes: int) -> None:
    store = golden(vectors, tmp_path, name, log_bytes)
    sent = [json.loads(line) for line in (vectors / "store" / name / "sent.jsonl").read_text().splitlines()]
    read = 0
    for topic, queue in store.topic_queues():
        records: list[Message] = []
        while (result := store.get(topic, queue, len(records), 32)).status is GetStatus.FOUND:
            records += decode_records(b"".join(result.buffers), check_crc=True)
        assert [m.queue_offset for m in records] == list(range(len(records)))
        assert {m.topic for m in records} == {topic}
        read += len(records)
    assert read >= len(sent)
    before = store.max_physical_offset
    assert store.put(message()).physical_offset >= before
    closed(store)


@pytest.mark.spec("CQ-04", "BP-02")
def test_read_spans_written_and_unwritten_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "_KEPT_UNITS", 0)  # what is written is read from the file
    store = opened(tmp_path)
    store.put(message(b"on disk"))
    asyncio.run(store.write_all())
    store.put(message(b"in memory"))
    assert bodies(store) == [b"on disk", b"in memory"]
    queue = store.queues.by_key["T", 0]
    whole = queue.read(0, 9)
    assert len(whole) == 40 and whole == queue.read(0, 1) + queue.read(1, 1)
    closed(store)
