"""The commit log: offset lookup, slices, host and checksum fields, what a flush covers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from small_store import BROKER, CL, CLIENT, bodies, message, opened

from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.ids import offset_message_id, parse_offset_message_id
from saturnmq.protocol.message import Host, decode_record
from saturnmq.store import PutStatus, StoreSettings, wait_confirmed
from saturnmq.store.files.disk import Disk
from waiting import until


class GatedDisk(Disk):
    """A disk whose syncs block until `gate` is set; counts them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.gate.wait(20)
        super().sync(fd)


@pytest.mark.spec("ST-02", "ST-18", "ST-19")
def test_offset_lookup_after_first_file_is_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert (store.min_physical_offset, store.max_physical_offset) == (-1, 0)
    results = [store.put(message(b"%d" % n * 900)) for n in range(9)]
    assert [result.physical_offset // CL for result in results] == [0] * 4 + [1] * 4 + [2]
    asyncio.run(store.log.truncate_front("a test"))
    end = results[-1].end_offset
    assert (store.min_physical_offset, store.max_physical_offset) == (CL, end)
    for result in results[4:]:
        record = store.read_record(result.physical_offset)
        assert record is not None and len(record) == result.size
        assert decode_record(record).physical_offset == result.physical_offset
    for outside in (-1, 0, results[3].physical_offset, CL - 1, end, end + CL, 99 * CL):
        assert store.read_record(outside) is None and store.log.view(outside, 1) is None, outside
    assert store.log.view(end - 1, 1) is not None and store.log.view(end - 1, 2) is None
    assert store.log.view(2 * CL - 1, 2) is None  # a slice never spans two files
    assert [store.log.next_file_start(offset) for offset in (CL, CL + 1, 2 * CL - 1, 2 * CL)] == [2 * CL] * 3 + [3 * CL]
    asyncio.run(store.stop())


@pytest.mark.spec("ST-07")
def test_body_crc_has_its_sign_bit_cleared(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for body, crc in ((b"Hello RocketMQ 2", 3397523043 & 0x7FFFFFFF), (b"", 0)):
        record = store.read_record(store.put(message(body)).physical_offset) or b""
        assert int.from_bytes(record[8:12], "big") == crc
    asyncio.run(store.stop())


@pytest.mark.spec("ST-09")
def test_ipv6_host_sets_flag_and_adds_twelve_bytes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    v6 = Host("2001:db8::2", 7)
    plain = store.put(message()).size
    for born, host, flags, longer in ((v6, BROKER, 0x10, 12), (CLIENT, v6, 0x20, 12), (v6, v6, 0x30, 24)):
        result = store.put(message(born_host=born, store_host=host))
        found = decode_record(store.read_record(result.physical_offset) or b"", check_crc=True)
        assert (found.sys_flag, result.size) == (flags, plain + longer)
        assert (found.born_host, found.store_host, found.body) == (born, host, b"body")
    asyncio.run(store.stop())


@pytest.mark.spec("ST-14")
def test_message_id_encodes_store_host_and_physical_offset() -> None:
    host, offset = Host("192.168.0.1", 10911), 1_073_741_824
    assert offset_message_id(host, offset) == "C0A8000100002A9F0000000040000000"
    assert parse_offset_message_id("C0A8000100002A9F0000000040000000") == (host, offset)
    v6 = Host("2001:db8::2", 10911)
    long_id = offset_message_id(v6, offset)
    assert long_id == "20010DB8000000000000000000000002" + "00002A9F" + "0000000040000000"
    assert parse_offset_message_id(long_id) == (v6, offset)


@pytest.mark.spec("ST-11")
def test_put_fails_if_file_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)

    def denied(path: Path, size_bytes: int, *, allocate: bool) -> int:
        raise StoreError(f"cannot create {path}: Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(store.disk, "create", denied)
        failed = store.put(message())
    assert failed.status is PutStatus.CREATE_MAPPED_FILE_FAILED and "Permission denied" in failed.reason
    assert (failed.physical_offset, failed.message_ids) == (-1, [])
    first = store.put(message())
    assert (first.status, first.physical_offset) == (PutStatus.PUT_OK, 0)
    asyncio.run(store.stop())


@pytest.mark.spec("ST-15")
def test_put_result_has_position_size_time_and_queue_offset(tmp_path: Path) -> None:
    store = opened(tmp_path, clock=lambda: 1_700_000_000_123)
    first = store.put(message(b"12345"))
    assert (first.status, first.physical_offset, first.size) == (PutStatus.PUT_OK, 0, 91 + 5 + 1)
    assert (first.queue_offset, first.store_timestamp_ms, first.end_offset) == (0, 1_700_000_000_123, 97)
    second = store.put(message(b"12345"))
    assert (second.queue_offset, second.physical_offset) == (1, 97)
    assert second.message_ids == [offset_message_id(BROKER, 97)]
    refused = store.put(message(properties=b"k\x01" + b"v" * 32766))
    assert refused.status is PutStatus.PROPERTIES_SIZE_EXCEEDED and refused.message_ids == []
    asyncio.run(store.stop())


@pytest.mark.spec("DUR-04")
def test_mapped_file_is_fully_allocated_at_creation(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_log_file_bytes=1 << 20)
    store.put(message())
    facts = store.log.files[0].path.stat()
    assert facts.st_size == 1 << 20 <= facts.st_blocks * 512
    asyncio.run(store.stop())
    assert StoreSettings().index_allocated and not store.settings.index_allocated  # a small index is written by pwrite


@pytest.mark.spec("MF-05")
def test_flush_covers_bytes_readable_at_its_start(tmp_path: Path) -> None:
    async def work() -> None:
        disk = GatedDisk()
        store = opened(tmp_path, disk=disk)
        before = store.put(message(b"before")).end_offset
        disk.syncs = 0
        disk.gate.clear()
        store.log.flusher.start()
        await until(lambda: disk.syncs > 0)
        after = store.put(message(b"during the sync")).end_offset
        disk.gate.set()
        await until(lambda: store.flushed_offset > 0)
        assert store.flushed_offset == before < after
        for _ in range(8):
            after = store.put(message(b"x" * 1500)).end_offset
        assert len(store.log.files) > 3
        store.log.flusher.start()  # one run covers every dirty file
        await until(lambda: store.flushed_offset == after)
        await store.stop()

    asyncio.run(work())


@pytest.mark.spec("FLU-03", "FLU-07")
def test_flush_of_uncommitted_bytes_waits_for_commit(tmp_path: Path) -> None:
    async def work() -> None:
        disk = GatedDisk()
        store = opened(tmp_path, disk=disk, transient_pool_enable=True, transient_pool_size=2)
        committed = store.put(message(b"committed")).end_offset
        store.commit()
        end = store.put(message(b"in the buffer")).end_offset
        disk.syncs = 0
        waiting = asyncio.create_task(wait_confirmed(store.log, end, 20_000))
        await until(lambda: store.flushed_offset == committed)
        await until(lambda: store.log.flusher._running is None)
        assert disk.syncs == 1 and not waiting.done()  # nothing to flush until the next commit
        store.commit()
        assert await waiting is PutStatus.PUT_OK and store.flushed_offset == end
        await store.stop()

    asyncio.run(work())


@pytest.mark.spec("MF-06", "MF-07")
def test_slice_outlives_deleted_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(6):
        store.put(message(b"%d" % n * 900))
    size = store.put(message(b"6" * 900)).size
    view = store.get("T", 0, 0, 1).buffers[0]
    kept = bytes(view)
    assert len(view) == size and decode_record(kept).body == b"0" * 900
    first = store.log.files[0].path
    asyncio.run(store.log.truncate_front("a test"))
    assert not first.exists() and bytes(view) == kept
    assert store.get("T", 0, 4, 1).count == 1
    view.release()
    asyncio.run(store.stop())


@pytest.mark.spec("MF-06")
def test_slice_ends_at_committed_offset(tmp_path: Path) -> None:
    store = opened(tmp_path, transient_pool_enable=True, transient_pool_size=2)
    first = store.put(message(b"committed"))
    store.commit()
    second = store.put(message(b"in the buffer"))
    assert store.log.view(0, first.size) is not None
    assert store.log.view(0, first.size + 1) is None and store.log.view(second.physical_offset, 1) is None
    assert bodies(store) == [b"committed"]
    store.commit()
    assert bodies(store) == [b"committed", b"in the buffer"]
    asyncio.run(store.stop())
