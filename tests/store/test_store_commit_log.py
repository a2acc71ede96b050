"""The commit log: offset lookup, slices, host and checksum fields, what a flush covers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from small_store import BROKER, CL, CLIENT, NOW_MS, bodies, message, opened

from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.ids import offset_message_id, parse_offset_message_id
from saturnmq.protocol.message import BLANK_MAGIC, Host, decode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store import PutStatus, StoreProfile, wait_confirmed
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.log import commit_log
from saturnmq.store.log.commit_log import CommitLog
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
def test_log_that_is_not_loaded_is_empty(tmp_path: Path) -> None:
    """Metrics read it while a store is being opened."""
    log = CommitLog([tmp_path], 4096, Disk())
    assert (log.end, log.committed, log.readable_end, log.first_position) == (0, 0, 0, -1)
    assert log.view(PhysicalOffset(0), 1) is None


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


@pytest.mark.parametrize("flags", [0x10, 0x20, 0x31])
def test_flags_of_ipv6_hosts_are_cleared_in_records_with_ipv4_hosts(tmp_path: Path, flags: int) -> None:
    store = opened(tmp_path)
    claims = message(sys_flag=flags)
    puts = [store.put(claims), store.put_batch(claims, [(b"body", b"", 0)])]
    for put in puts:
        found = decode_record(store.read_record(put.physical_offset) or b"", check_crc=True)
        assert (found.sys_flag, found.born_host, found.store_host) == (flags & 1, CLIENT, BROKER)
        assert found.body == b"body"
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


@pytest.mark.spec("DUR-04")
@pytest.mark.parametrize("profile", StoreProfile)
def test_index_file_is_fully_allocated_at_creation(tmp_path: Path, profile: StoreProfile) -> None:
    """Otherwise each entry is written by system calls, five times the time of a send."""
    store = opened(tmp_path, profile=profile, index_slots_max=10_000, index_entries_max=40_000)
    store.put(message(properties=b"KEYS\x01k"))
    asyncio.run(store.stop())
    [path] = (tmp_path / "index").iterdir()
    facts = path.stat()
    assert facts.st_size == 840_040 <= facts.st_blocks * 512


@pytest.mark.spec("MF-05")
async def test_flush_covers_bytes_readable_at_its_start(tmp_path: Path) -> None:
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


@pytest.mark.spec("FLU-03", "FLU-07")
async def test_flush_of_uncommitted_bytes_waits_for_commit(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "more", [{"flag": 1 << 31}, {"reconsume_times": -(1 << 31) - 1}, {"born_timestamp_ms": 1 << 63}]
)
def test_number_beyond_its_field_appends_nothing(tmp_path: Path, more: dict[str, int]) -> None:
    store = opened(tmp_path)
    store.put(message())
    end = store.log.end
    for refused in (
        store.put(message(**more)),
        store.put_batch(message(**more), [(b"", b"", 0), message(**more).entry]),
    ):
        assert refused.status is PutStatus.CREATE_MAPPED_FILE_FAILED and "does not fit its field" in refused.reason
    assert store.log.end == end and store.put(message(flag=(1 << 31) - 1)).queue_offset == 1
    asyncio.run(store.stop())


def test_record_fills_a_file_up_to_the_space_for_a_filler(tmp_path: Path) -> None:
    store = opened(tmp_path)
    overhead = store.put(message(b"")).size
    largest = CL - 8 - overhead
    assert store.put(message(b"x" * largest)).physical_offset == CL
    refused = store.put(message(b"x" * (largest + 1)))
    assert f"a record of {CL - 7} bytes does not fit a commit log file of {CL} bytes" in refused.reason
    assert store.put(message(b"x" * largest)).physical_offset == 2 * CL
    assert store.put(message(b"")).physical_offset == 3 * CL
    small = store.put(message(b"x" * (CL - 8 - 2 * overhead)))
    assert (small.physical_offset, small.end_offset) == (3 * CL + overhead, 4 * CL - 8), "to the byte"
    assert [store.log.record_at(offset) for offset in (overhead, 2 * CL - 8)] == [
        (CL - overhead, BLANK_MAGIC),
        (8, BLANK_MAGIC),
    ]
    asyncio.run(store.stop())


def test_store_time_is_read_from_records_only(tmp_path: Path) -> None:
    now = [NOW_MS]
    store = opened(tmp_path, clock=lambda: now[0])
    assert store.log.first_store_ms == -1
    v6 = Host("2001:db8::2", 7)
    plain = store.put(message(b"x" * 500)).physical_offset
    now[0] += 5
    long = store.put(message(b"x" * 500, born_host=v6))
    now[0] += 6
    last = store.put(message(b"x" * 3500))
    times = [store.log.store_time(at) for at in (plain, long.physical_offset, last.physical_offset)]
    assert times == [NOW_MS, NOW_MS + 5, NOW_MS + 11] and store.log.first_store_ms == NOW_MS
    for outside in (-1, 1, long.end_offset, CL - 10, last.end_offset - 10, last.end_offset, 9 * CL):
        assert store.log.store_time(outside) == -1, outside
    asyncio.run(store.stop())


def test_pages_near_the_end_of_the_current_file_stay_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[tuple[int, int]] = []
    monkeypatch.setattr(commit_log, "_RESIDENT_BYTES", 1000)
    monkeypatch.setattr(MappedFile, "forget_pages", lambda file, until: released.append((file.start, until)))
    store = opened(tmp_path)
    results = [store.put(message(b"x" * 900)) for _ in range(10)]
    assert len(store.log.files) == 3
    for flushed, expected in (
        (0, []),
        (CL, [(0, CL)]),
        (CL + 1, [(0, CL), (CL, 2 * CL)]),
        (results[-1].end_offset, [(0, CL), (CL, 2 * CL), (2 * CL, results[-1].end_offset - 1000)]),
    ):
        released.clear()
        store.log.forget_pages(flushed)
        assert released == expected, flushed
    monkeypatch.undo()
    asyncio.run(store.stop())


@pytest.mark.spec("MF-09")
def test_next_file_is_wanted_above_four_fifths(tmp_path: Path) -> None:
    store = opened(tmp_path)
    overhead = store.put(message(b"")).size
    assert not store.log.wants_spare
    store.put(message(b"x" * (CL * 80 // 100 - 2 * overhead)))
    assert store.log.end == CL * 80 // 100 and not store.log.wants_spare
    store.put(message(b""))
    assert store.log.wants_spare
    spare = store.log.make_spare()
    store.log.keep_spare(spare)
    assert spare.start == CL and not store.log.wants_spare
    extra = store.log.make_spare()
    store.log.keep_spare(extra)
    assert extra.cut == "" and extra._fd < 0, "one is enough"
    store.put(message(b"x" * 900))
    assert store.log.files[-1] is spare and not store.log.wants_spare
    store.put(message(b"x" * 3000))
    late = MappedFile(tmp_path / "commitlog" / f"{7 * CL:020d}", CL, store.disk, create=True)
    store.log.keep_spare(late)
    assert late._fd < 0 and store.log.wants_spare, "a file of another position is not kept"
    late.path.unlink()
    asyncio.run(store.stop())


@pytest.mark.spec("MF-03")
def test_flush_is_due_for_enough_pages_or_a_full_file(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_log_file_bytes=4 * CL)
    log = store.log
    assert not log.flush_due(0), "nothing is written"
    overhead = store.put(message(b"")).size
    assert log.flush_due(0) and not log.flush_due(1)
    store.put(message(b"x" * (2 * CL - 2 * overhead)))
    assert log.end == 2 * CL and log.flush_due(2) and not log.flush_due(3)
    log.set_confirmed(CL)
    assert log.flush_due(1) and not log.flush_due(2)
    store.put(message(b"x" * (3 * CL)))
    assert log.end > 4 * CL and log.flush_due(1000), "a file is full"
    log.set_confirmed(log.end)
    assert not log.flush_due(0)
    store.close_files()


def test_pool_without_a_buffer_refuses_the_next_file(tmp_path: Path) -> None:
    store = opened(tmp_path, transient_pool_enable=True, transient_pool_size=2)
    statuses = [store.put(message(b"x" * 3000)) for _ in range(3)]
    assert [result.status for result in statuses[:2]] == [PutStatus.PUT_OK] * 2 and store.log.free_buffers == 0
    assert statuses[2].status is not PutStatus.PUT_OK and "transientStorePoolSize" in statuses[2].reason
    store.commit()
    assert store.log.free_buffers == 1 and store.put(message(b"x" * 3000)).status is PutStatus.PUT_OK
    assert store.log.commit() > 0 and store.log.commit() == 0
    assert bodies(store) == [b"x" * 3000] * 2
    asyncio.run(store.stop())
