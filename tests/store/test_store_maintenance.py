"""Background work and disk failures: flush, transient pool, retention, markers, reserve, many queues."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_store import bodies

from saturnmq.protocol.errors import CorruptRecord, FlushFailed, StoreError
from saturnmq.protocol.message import Host, Message, decode_record
from saturnmq.slices import finish
from saturnmq.store import (
    FlushDiskType,
    GetStatus,
    MessageStore,
    PutStatus,
    StateFile,
    StoreFailureAction,
    StoreProfile,
    StoreSettings,
)
from saturnmq.store.delay import delay_levels, due_ms
from saturnmq.store.files.capacity import Usage, percent
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.log.log import wait_confirmed
from saturnmq.store.maintenance.retention import Policy, decide
from saturnmq.store.recovery.opening import FAILURE_NAME
from saturnmq.store.settings import delete_hours
from waiting import until

CL, CQ = 4096, 200
BROKER = Host("127.0.0.1", 10911)
HOUR_MS = 3_600_000


class BadDisk(Disk):
    """A disk whose syncs, writes or allocations fail once the matching error is set."""

    def __init__(self) -> None:
        self.sync_error = self.write_error = self.create_error = 0
        self.syncs = 0
        self.gate: threading.Event | None = None

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.gate is not None:
            self.gate.wait(20)
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        super().sync(fd)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        super().write(fd, at, data)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if self.create_error:
            from saturnmq.protocol.errors import DiskFull

            raise DiskFull(f"no space for {path}")
        return super().create(path, size_bytes, allocate=allocate)

    def write_file(self, path: Path, data: bytes) -> None:
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        super().write_file(path, data)


def message(body: bytes = b"body", topic: str = "T", queue: int = 0, properties: bytes = b"", **more: Any) -> Message:
    return Message(topic, body, properties, queue, born_host=Host("10.0.0.9", 5), store_host=BROKER, **more)


def opened(path: Path, clock: Callable[[], int] | None = None, disk: Disk | None = None, **more: Any) -> MessageStore:
    values = {
        "commit_log_file_bytes": CL,
        "consume_queue_file_bytes": CQ,
        "index_slots_max": 20,
        "index_entries_max": 30,
        "profile": StoreProfile.SMALL,
    } | more
    settings = StoreSettings(store_path_root_dir=str(path), **values)
    store = MessageStore(settings, **({"clock_ms": clock} if clock else {}), disk=disk)
    store.open()
    return store


# ---- flush


@pytest.mark.spec("DUR-01", "DUR-03", "FLU-02", "SW-01", "RP-01")
async def test_sync_flush_hides_unsynced_messages_and_shares_syncs(tmp_path: Path) -> None:
    disk = BadDisk()
    store = opened(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH, commit_log_file_bytes=2**20)
    seen: list[int] = []
    store.on_append = lambda topic, queue, offset, units: seen.extend(range(offset + 1, offset + len(units) + 1))
    store.put(message(b"makes the file", "Other"))
    await store.write_all()
    seen.clear()
    durable, disk.syncs = store.log.confirmed_end, 0
    disk.gate = threading.Event()
    first = store.put(message(b"0"))
    waits = [asyncio.ensure_future(store.wait_confirmed(first))]
    await until(lambda: disk.syncs > 0 and store.log.flusher.flushed == durable)
    before = disk.syncs
    later = [store.put(message(b"%d" % n)) for n in range(1, 50)]
    waits += [asyncio.ensure_future(store.wait_confirmed(result)) for result in later]
    await asyncio.sleep(0)
    assert [result.queue_offset for result in later] == list(range(1, 50))
    assert store.max_offset("T", 0) == 0 and bodies(store) == [] and seen == [] and store.behind_bytes > 0
    disk.gate.set()
    assert set(await asyncio.gather(*waits)) == {PutStatus.PUT_OK}
    assert disk.syncs <= before + 2  # all 49 share the next sync
    assert seen == list(range(1, 51)) and len(bodies(store)) == 50 and store.behind_bytes == 0
    await store.stop()


@pytest.mark.spec("FLU-05", "DUR-01")
async def test_put_without_wait_is_flushed_soon(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, flush_interval_ms=3_600_000)
    await store.start()
    store.put(message(b"no wait"))
    await until(lambda: bodies(store) == [b"no wait"])
    assert store.flushed_offset == store.log.end
    await store.stop()


@pytest.mark.spec("MF-03", "FLU-06")
async def test_background_flush_waits_for_least_pages(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "commit_log_file_bytes": 2**20,
        "flush_interval_ms": 1,
        "flush_thorough_ms": 3_600_000,
    }
    store = opened(tmp_path, flush_least_pages=4, **settings)
    store.put(message(b"x" * 12_000))
    assert store.log.flusher.dirty_pages() == 2
    await store.start()
    for _ in range(20):
        await asyncio.sleep(0.001)  # poll: time for a flush that must not happen
    assert store.flushed_offset == 0
    store.put(message(b"x" * 8_000))
    await until(lambda: store.flushed_offset == store.log.end)
    await store.stop()


@pytest.mark.spec("MF-02", "MF-04", "MF-11", "MF-12", "MF-13", "FLU-07")
def test_transient_pool_exposes_committed_and_loses_uncommitted(tmp_path: Path) -> None:
    async def work() -> None:
        pool: dict[str, Any] = {"transient_pool_enable": True, "transient_pool_size": 2}
        store = opened(tmp_path, **pool)
        assert store.confirms_at_once and not store.busy
        for n in range(3):
            assert store.put(message(b"%d" % n * 900)).status is PutStatus.PUT_OK
        assert bodies(store) == [] and store.max_physical_offset == 0
        assert not (tmp_path / "commitlog" / ("0" * 20)).read_bytes().strip(b"\0")
        store.commit()
        assert len(bodies(store)) == 3 and store.max_physical_offset == store.log.end
        for n in range(3, 6):
            store.put(message(b"%d" % n * 900))
        assert store.log.free_buffers == 0 and store.busy
        store.commit()
        assert store.log.free_buffers == 1 and not store.busy and len(bodies(store)) == 6
        store.put(message(b"lost"))
        store.close_files()
        again = opened(tmp_path, **pool, commit_interval_ms=1, flush_interval_ms=5)
        assert len(bodies(again)) == 6
        await again.start()
        assert again.put(message(b"later")).queue_offset == 6
        await until(lambda: bodies(again)[-1] == b"later")
        await again.stop()

    asyncio.run(work())
    operations = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    (row,) = (line for line in operations.splitlines() if "`ASYNC_FLUSH` with `transientStorePoolEnable=true`" in line)
    assert "it is in a buffer of the process | **no**: up to `commitIntervalCommitLog` (200 ms) is lost" in row
    assert StoreSettings(transient_pool_enable=True, flush_disk_type=FlushDiskType.SYNC_FLUSH).pool_size == 0
    plain = opened(tmp_path / "plain")
    plain.put(message(b"in the file"))
    assert plain.log.readable_end == plain.log.end > 0, "without a buffer all that is written is committed"
    plain.commit()
    assert plain.log.readable_end == plain.log.end and bodies(plain) == [b"in the file"]
    plain.close_files()


@pytest.mark.spec("MF-01", "MF-02", "ST-19", "FLU-08")
async def test_flushed_committed_and_written_offsets_are_ordered(tmp_path: Path) -> None:
    store = opened(tmp_path, transient_pool_enable=True, transient_pool_size=2)

    def positions() -> tuple[int, int, int]:
        return store.flushed_offset, store.max_physical_offset, store.log.end

    first = store.put(message()).end_offset
    assert positions() == (0, 0, first)
    store.commit()
    assert positions() == (0, first, first)
    second = store.put(message()).end_offset
    store.log.flusher.start()
    await until(lambda: store.flushed_offset > 0)
    assert positions() == (first, first, second)
    await store.stop()
    assert positions() == (second, second, second)


@pytest.mark.spec("MF-09", "RC-10")
async def test_next_file_is_preallocated_and_dropped_at_clean_stop(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_interval_ms=1)
    await store.start()
    for _ in range(4):
        store.put(message(b"x" * 750))
    ahead = tmp_path / "commitlog" / f"{CL:020d}"
    await until(ahead.exists)
    assert len(store.log.files) == 1
    await until(lambda: not store.log.wants_spare)
    assert store.put(message(b"y" * 1000)).physical_offset == CL
    for _ in range(2):
        store.put(message(b"z" * 1200))
    spare = tmp_path / "commitlog" / f"{2 * CL:020d}"
    await until(spare.exists)
    await store.stop()
    assert ahead.exists() and not spare.exists()


@pytest.mark.spec("DUR-06", "DUR-07", "DUR-05", "SW-02")
@pytest.mark.parametrize("action", list(StoreFailureAction))
def test_failed_sync_stops_acknowledgements_and_marks_store(
    tmp_path: Path, action: StoreFailureAction, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> int:
        disk = BadDisk()
        store = opened(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH, store_failure_action=action)
        failures: list[str] = []
        store.on_failure = lambda error: failures.append(error.message)
        assert await store.wait_confirmed(store.put(message(b"good"))) is PutStatus.PUT_OK
        durable = store.flushed_offset
        disk.sync_error = errno.ENOSPC  # ENOSPC in a sync is as final as any other error
        bad = store.put(message(b"bad"))
        assert await store.wait_confirmed(bad) is PutStatus.UNKNOWN_ERROR
        disk.sync_error = 0
        syncs = disk.syncs
        refused = store.put(message(b"refused"))
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert f"{tmp_path / 'commitlog'}" in refused.reason and "errno 28" in refused.reason
        assert bodies(store) == [b"good"]  # reads continue, with confirmed messages
        assert len(failures) == 1 and disk.syncs == syncs
        with pytest.raises(StoreError):
            await store.stop()
        assert disk.syncs == syncs  # no second attempt
        return durable

    durable = asyncio.run(work())
    marker = json.loads((tmp_path / FAILURE_NAME).read_bytes())
    assert marker["offset"] == durable
    assert "errno 28" in marker["reason"] and str(tmp_path / "commitlog") in marker["reason"]
    store = opened(tmp_path)
    assert f"flush failed before this start check_from={durable}" in caplog.messages
    assert bodies(store)[0] == b"good"
    assert not (tmp_path / FAILURE_NAME).exists()
    asyncio.run(store.stop())


@pytest.mark.spec("DUR-07", "DUR-09")
def test_hole_below_failed_flush_offset_is_rejected(tmp_path: Path) -> None:
    store = opened(tmp_path)
    results = [store.put(message(b"%d" % n * 100)) for n in range(5)]
    store.log.flusher.flushed = results[3].physical_offset
    store.stop_writing(StoreError("the disk is broken"))
    store.close_files()
    file = tmp_path / "commitlog" / ("0" * 20)
    raw = bytearray(file.read_bytes())
    raw[results[1].physical_offset + 95] ^= 255
    file.write_bytes(raw)
    with pytest.raises(CorruptRecord, match=f"damaged .offset {results[1].physical_offset}: "):
        opened(tmp_path)


@pytest.mark.spec("CQ-09", "CQ-10", "FLU-10", "DUR-15")
def test_full_disk_rejects_puts_and_loses_no_message(tmp_path: Path) -> None:
    async def work() -> None:
        disk = BadDisk()
        fast: dict[str, Any] = {"flush_interval_ms": 1, "flush_queue_interval_ms": 1, "flush_queue_thorough_ms": 5}
        store = opened(tmp_path, disk=disk, **fast)
        store.disk_usage = lambda: Usage(50, 50, 50)  # type: ignore[method-assign]
        sent = [b"%03d" % n for n in range(30)]
        disk.write_error = errno.ENOSPC
        for body in sent:
            assert store.put(message(body)).status is PutStatus.PUT_OK
        assert bodies(store) == sent  # a put never writes queues
        await store.start()
        await until(lambda: bool(store.refusal))
        refused = store.put(message())
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "disk is full" in refused.reason
        assert store.failure is None and bodies(store) == sent
        disk.write_error = 0
        await until(lambda: not store.refusal)
        assert store.put(message(b"room")).queue_offset == 30
        await store.stop()

    asyncio.run(work())
    store = opened(tmp_path)
    assert len(bodies(store)) == 31
    asyncio.run(store.stop())


@pytest.mark.spec("IX-09")
def test_blocked_index_rejects_puts_and_catches_up_later(tmp_path: Path) -> None:
    async def work() -> None:
        disk = BadDisk()
        store = opened(tmp_path, disk=disk, commit_log_file_bytes=2**20)
        store.put(message())
        disk.create_error = errno.ENOSPC
        first = store.put(message(properties=b"KEYS\x01one"))
        assert first.status is PutStatus.PUT_OK and not store.put_in_index()
        refused = store.put(message(properties=b"KEYS\x01two"))
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "index cannot grow" in refused.reason
        store.recheck(Usage(10, 10, 10))
        assert not store.writable
        disk.create_error = 0
        store.recheck(Usage(10, 10, 10))
        assert store.writable
        store.put(message(properties=b"KEYS\x01three"))
        found = store.query("T", "one", 10, 0, 2**62).records
        assert [decode_record(record).physical_offset for record in found] == [first.physical_offset]
        await store.stop()

    asyncio.run(work())
    off = opened(tmp_path / "off", message_index_enable=False)
    off.put(message(properties=b"KEYS\x01one"))
    assert off.query("T", "one", 10, 0, 2**62).records == [] and not (tmp_path / "off" / "index").exists()
    asyncio.run(off.stop())


@pytest.mark.spec("DUR-15", "CF-02", "DUR-14")
def test_reserve_is_given_up_for_state_file_on_full_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    reserve = tmp_path / "reserve"
    assert StoreSettings().reserve_bytes == 16 << 20  # the small profile's is smaller
    assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size == 1 << 20

    class Full(Disk):
        def write_file(self, path: Path, data: bytes) -> None:
            if reserve.exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_file(path, data)

    file = StateFile(tmp_path / "config" / "consumerOffset.json", Full(), store.reserve)
    file.write(b"{}")
    assert file.path.read_bytes() == b"{}" and not reserve.exists()
    asyncio.run(store._maintenance.clean())
    assert reserve.exists()
    asyncio.run(store.stop())


@pytest.mark.spec("DUR-06")
@pytest.mark.parametrize("error", [RuntimeError("no such device"), KeyError("topic")], ids=["runtime", "key"])
async def test_unexpected_maintenance_failure_stops_store_with_reason(tmp_path: Path, error: Exception) -> None:
    store = opened(tmp_path, flush_interval_ms=1, clean_interval_ms=10)

    def broken() -> Usage:
        raise error

    store.disk_usage = broken  # type: ignore[method-assign]
    await store.start()
    await until(lambda: not store.writable)
    assert f"maintenance failed: {type(error).__name__}: {error}" in store.put(message()).reason
    await store.stop()
    assert (tmp_path / "abort").exists()


@pytest.mark.spec("DUR-06")
async def test_unexpected_flush_failure_stops_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)

    def broken(_: int) -> object:
        raise ValueError("flush of closed file")

    await store.start()
    result = store.put(message())
    monkeypatch.setattr(store.log, "dirty_files", broken)
    assert await wait_confirmed(store.log, result.end_offset, 60_000) is PutStatus.UNKNOWN_ERROR
    assert "ValueError('flush of closed file')" in store.put(message()).reason
    await store.abort()


# ---- opening


@pytest.mark.spec("DUR-18", "ST-10")
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_clock_jump_neither_loses_nor_resurrects_messages(tmp_path: Path, jump_ms: int) -> None:
    now = [1_700_000_000_000]
    sent: list[bytes] = []
    for life in range(4):
        store = opened(tmp_path, clock=lambda: now[0])
        assert bodies(store) == sent
        for n in range(10):
            sent.append(b"%d-%d" % (life, n) * 30)
            assert store.put(message(sent[-1])).status is PutStatus.PUT_OK
            now[0] += jump_ms if n == 5 else 10
        if life % 2:
            asyncio.run(store.write_all())
        store.put(message(b"tail"))
        sent.append(b"tail")
        store.close_files()
    store = opened(tmp_path, clock=lambda: now[0])
    assert bodies(store) == sent
    asyncio.run(store.stop())


@pytest.mark.spec("RC-02", "RC-03", "RC-12", "RP-06", "DUR-16")
def test_abort_exists_before_first_put_and_is_removed_by_stop(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert (tmp_path / "abort").stat().st_size == 0
    for n in range(25):
        store.put(message(b"%d" % n))
    assert store.behind_bytes == 0
    asyncio.run(store.stop())
    assert not (tmp_path / "abort").exists()
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    again = opened(tmp_path)
    assert again.max_offset("T", 0) == 25 and again.dispatched == again.log.end
    assert again.put(message()).queue_offset == 25
    again.close_files()
    for path, data in before.items():
        if "consumequeue" in path.parts:
            assert path.read_bytes() == data  # a start after a clean stop does not rewrite queues


@pytest.mark.spec("RC-07", "RC-12")
def test_recovery_scan_does_not_grow_with_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.store.maintenance.maintenance.VERIFY_BYTES", 6000)
    monkeypatch.setattr("saturnmq.store.maintenance.maintenance.BOUNDARY_BYTES", 1000)
    monkeypatch.setattr("saturnmq.store.recovery.opening.BOUNDARY_BYTES", 1000)
    read: list[int] = []

    def lives(count: int) -> None:
        for _ in range(count):
            store = opened(tmp_path)
            note = store.checkpoint.note
            assert note is not None
            read.append(store.log.end - note.verify_from)
            for n in range(10):
                store.put(message(b"%d" % n * 700))
            asyncio.run(store.stop())

    lives(6)
    assert max(read[2:]) <= 6000 + 2 * 1000 + 10 * 800
    lives(1)
    again = opened(tmp_path)  # a run without writes advances verify_from too
    asyncio.run(again.stop())
    again = opened(tmp_path)
    assert again.checkpoint.note is not None and again.log.end - again.checkpoint.note.verify_from <= 8000
    asyncio.run(again.stop())


@pytest.mark.spec("RC-06")
def test_log_with_expired_files_is_dispatched_from_its_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(20):
        store.put(message(b"%02d" % n * 300))
    asyncio.run(store.write_all())
    start = store.log.files[2].start
    store.close_files()
    for path in (tmp_path / "commitlog").iterdir():
        if int(path.name) < start:
            path.unlink()
    for path in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    store = opened(tmp_path)
    left = bodies(store, offset=store.min_offset("T", 0))
    assert left == [b"%02d" % n * 300 for n in range(20)][-len(left) :] and 0 < len(left) < 20
    assert store.max_offset("T", 0) == 20 and store.put(message()).queue_offset == 20
    asyncio.run(store.stop())


class DescriptorDisk(Disk):
    """Records the descriptors through which files of the log are synced, and files of queues that are closed without a sync."""

    def __init__(self) -> None:
        self.created: dict[Path, int] = {}
        self.opened: list[Path] = []
        self.synced: dict[Path, set[int]] = {}
        self.lost: list[Path] = []
        self._written: set[int] = set()

    @staticmethod
    def path_of(fd: int) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        fd = self.created[path] = super().create(path, size_bytes, allocate=allocate)
        return fd

    def open(self, path: Path) -> int:
        self.opened.append(path)
        return super().open(path)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        super().write(fd, at, data)
        self._written.add(fd)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._written.discard(fd)
        self.synced.setdefault(self.path_of(fd), set()).add(fd)

    def close(self, fd: int) -> None:
        if fd in self._written:
            self.lost.append(self.path_of(fd))
            self._written.discard(fd)
        super().close(fd)


@pytest.mark.spec("DUR-05")
async def test_files_are_synced_through_the_descriptors_that_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (calls.append(fd), fdatasync(fd)))
    disk = DescriptorDisk()
    store = opened(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    await store.start()
    for _ in range(9):
        assert await store.wait_confirmed(store.put(message(b"x" * 900))) is PutStatus.PUT_OK
    files = [file.path for file in store.log.files]
    assert len(files) == 3
    assert {path: disk.synced[path] for path in files} == {path: {disk.created[path]} for path in files}
    assert not set(files) & set(disk.opened), "open since its creation"
    assert {disk.created[path] for path in files} <= set(calls), "by fdatasync"
    await store.stop()
    assert any("consumequeue" in path.parts for path in disk.synced)
    assert [path for path in disk.lost if "consumequeue" in path.parts] == []


@pytest.mark.spec("ST-20")
def test_commit_log_folders_are_used_round_robin(tmp_path: Path) -> None:
    folders = ",".join(str(tmp_path / name) for name in "cab")
    store = opened(tmp_path, store_path_commit_log=folders)
    sent = [b"%02d" % n * 600 for n in range(16)]
    for body in sent:
        store.put(message(body))
    numbers = [sorted(int(path.name) // CL for path in (tmp_path / name).iterdir()) for name in "abc"]
    assert numbers == [[0, 3], [1, 4], [2, 5]], "by number, over the sorted folders"
    asyncio.run(store.stop())
    again = opened(tmp_path, store_path_commit_log=folders)
    assert bodies(again) == sent
    asyncio.run(again.stop())


@pytest.mark.spec("RC-06", "CQ-01")
def test_thousands_of_queues_share_few_descriptors(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_log_file_bytes=2**22)
    open_before = len(os.listdir("/proc/self/fd"))
    for n in range(2000):
        assert store.put(message(b"x", f"topic-{n % 500}", n // 500)).status is PutStatus.PUT_OK
    assert len(os.listdir("/proc/self/fd")) <= open_before + 3
    asyncio.run(store.stop())
    store = opened(tmp_path, commit_log_file_bytes=2**22)
    assert all(bodies(store, f"topic-{n % 500}", n // 500) == [b"x"] for n in range(0, 2000, 7))
    assert len(store.queues.cache) <= 256 and len(os.listdir("/proc/self/fd")) <= open_before + 260
    asyncio.run(store.stop())


def test_file_cache_closes_least_recently_used(tmp_path: Path) -> None:
    cache = FileCache(Disk(), limit=2)
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    assert [cache.read(tmp_path / name, 0, 1) for name in "abca"] == [b"a", b"b", b"c", b"a"]
    assert len(cache) == 2 and cache.read(tmp_path / "missing", 0, 1) == b""
    cache.close()


# ---- retention


POLICY = Policy(frozenset({4}), 72 * HOUR_MS, 75, forcible=True)
FINE = Usage(40, 40, 40)
NOW = 1_000 * HOUR_MS
OLD, YOUNG = NOW - 100 * HOUR_MS, NOW - HOUR_MS


@pytest.mark.spec("DEL-02", "DEL-03", "DEL-04", "DEL-05", "DEL-06")
@pytest.mark.parametrize(
    ("usage", "hour", "manual", "modified", "deleted", "full"),
    [
        (FINE, 3, False, [OLD, OLD], 0, False),
        (FINE, 4, False, [OLD, OLD], 2, False),
        (FINE, 4, False, [OLD, YOUNG, OLD], 1, False),  # stops at the first unexpired one
        (FINE, 4, False, [NOW - 72 * HOUR_MS, NOW - 72 * HOUR_MS + 1], 1, False),  # to the millisecond
        (FINE, 3, True, [OLD, YOUNG], 1, False),
        (FINE, 4, False, [OLD] * 15, 10, False),  # ten per run
        (Usage(75, 10, 0), 3, False, [OLD], 0, False),
        (Usage(76, 10, 0), 3, False, [OLD, YOUNG], 1, False),
        (Usage(10, 76, 0), 3, False, [OLD, YOUNG], 1, False),
        (Usage(85, 10, 0), 3, False, [YOUNG], 0, False),
        (Usage(86, 10, 0), 3, False, [YOUNG, YOUNG], 2, False),
        (Usage(90, 10, 0), 3, False, [YOUNG], 1, False),
        (Usage(91, 10, 0), 3, False, [YOUNG], 1, True),
        (Usage(10, 91, 0), 3, False, [YOUNG], 1, True),
        (Usage(-1, 10, 0), 3, False, [OLD, YOUNG], 1, False),
        (Usage(10, -1, 0), 3, False, [OLD, YOUNG], 1, False),
    ],
)
def test_retention_decision(
    usage: Usage, hour: int, manual: bool, modified: list[int], deleted: int, full: bool
) -> None:
    decision = decide(POLICY, usage, hour=hour, manual=manual, modified_ms=modified, now_ms=NOW, written_files=99)
    assert (decision.delete, decision.disk_full) == (deleted, full)
    assert bool(decision.reason) == bool(deleted) or not deleted


@pytest.mark.spec("DEL-03")
@given(st.lists(st.integers(0, NOW), max_size=30), st.integers(0, 30), st.integers(-1, 100))
def test_file_being_written_is_never_deleted(modified: list[int], written: int, used: int) -> None:
    decision = decide(
        POLICY, Usage(used, 0, 0), hour=4, manual=True, modified_ms=modified, now_ms=NOW, written_files=written
    )
    assert 0 <= decision.delete <= min(written, len(modified), 10)


@pytest.mark.spec("DEL-02", "DEL-04")
def test_delete_hours_and_percent_rounding() -> None:
    assert delete_hours("04") == {4} and delete_hours("02;14;") == {2, 14}
    with pytest.raises(ValueError, match="'24' is not an hour"):
        delete_hours("24")
    assert [percent(*pair) for pair in ((0, 10), (1, 1000), (75, 100), (751, 1000), (5, 0))] == [0, 1, 75, 76, -1]
    assert [StoreSettings(disk_percent=n).disk_percent_max for n in (0, 75, 100)] == [10, 75, 95]


@pytest.mark.spec("DEL-01", "DEL-07", "DEL-08", "DEL-09", "MF-06")
def test_expired_files_are_deleted_with_their_queue_units(tmp_path: Path) -> None:
    async def work() -> None:
        never = {"delete_when": "99"[:0], "delete_pause_ms": 0, "delete_queue_pause_ms": 0, "clean_interval_ms": 10}
        store = opened(tmp_path, file_reserved_hours=1, flush_interval_ms=5, **never)
        store.disk_usage = lambda: FINE  # type: ignore[method-assign]
        for n in range(40):
            store.put(message(b"%02d" % n * 400, properties=b"KEYS\x01k%d" % n))
        await store.write_all()
        old = [file.path for file in store.log.files[:3]]
        for path in old:
            os.utime(path, (0, 0))
        view = store.get("T", 0, 0, 1).buffers[0]
        kept = bytes(view)
        await store.start()
        for _ in range(10):
            await asyncio.sleep(0.005)  # poll: wrong hour and enough space, so nothing may be deleted
        assert all(path.exists() for path in old)
        store.delete_expired_files()
        await until(lambda: not any(path.exists() for path in old))
        await until(lambda: store.min_offset("T", 0) > 0)
        assert bytes(view) == kept  # the mapping outlives the file
        low = store.min_offset("T", 0)
        assert store.physical_offset("T", 0, low) >= store.min_physical_offset == 3 * CL
        assert bodies(store, offset=low) == [b"%02d" % n * 400 for n in range(low, 40)]
        assert store.get("T", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        names = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir())
        assert int(names[0]) == low // (CQ // 20) * CQ
        assert store.query("T", "k0", 10, 0, 2**62).records == []
        assert len(store.query("T", "k39", 10, 0, 2**62).records) == 1
        view.release()
        await store.stop()

    asyncio.run(work())
    store = opened(tmp_path)
    assert store.min_physical_offset == 3 * CL and bodies(store, offset=store.min_offset("T", 0))
    asyncio.run(store.stop())


@pytest.mark.spec("DEL-04", "DEL-06", "ST-03")
async def test_disk_over_limit_rejects_puts_and_resumes(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_interval_ms=1, clean_interval_ms=10)
    used = [91]
    store.disk_usage = lambda: Usage(used[0], 20, 20)  # type: ignore[method-assign]
    await store.start()
    await until(lambda: not store.writable)
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "CL: 91% CQ: 20% INDEX: 20%" in refused.reason
    used[0] = 90
    await until(lambda: store.writable)
    assert store.put(message()).status is PutStatus.PUT_OK
    await store.stop()


@pytest.mark.spec("DEL-10")
def test_expired_queues_are_removed_on_demand(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"old", "Gone"))
    store.put(message(b"old", "Kept"))
    for _ in range(10):
        store.put(message(b"x" * 1500))
    asyncio.run(store.write_all())
    assert asyncio.run(finish(store.deleting_expired_queues())) == 0
    asyncio.run(store.log.truncate_front("a test"))
    assert asyncio.run(finish(store.deleting_expired_queues(keep=["Kept"]))) == 1
    assert sorted({topic for topic, _ in store.topic_queues()}) == ["Kept", "T"]
    assert not (tmp_path / "consumequeue" / "Gone").exists()
    assert store.put(message(b"new", "Gone")).queue_offset == 0
    asyncio.run(store.stop())
    again = opened(tmp_path)
    assert bodies(again, "Gone") == [b"new"]
    asyncio.run(again.stop())


@pytest.mark.spec("DUR-10", "DUR-08")
def test_damaged_record_is_never_served(tmp_path: Path) -> None:
    store = opened(tmp_path, check_crc_on_read=True)
    results = [store.put(message(b"%d" % n * 100)) for n in range(5)]
    file = store.log.files[0]
    at = results[2].physical_offset + 100
    file.map[at : at + 1] = b"\xff"
    assert store.get("T", 0, 0, 32).count == 2
    with pytest.raises(CorruptRecord, match=f"offset 2: no intact record .* offset {results[2].physical_offset}"):
        store.get("T", 0, 2, 32)
    assert store.get("T", 0, 3, 32).count == 2
    store.close_files()


@pytest.mark.spec("IX-07", "IX-02", "IX-03")
def test_query_by_key_is_ordered_and_skips_expired(tmp_path: Path) -> None:
    now = [1_700_000_000_000]
    store = opened(tmp_path, clock=lambda: now[0])
    for n in range(12):
        now[0] += 1000
        store.put(message(b"%d" % n * 500, properties=b"KEYS\x01a b%d\x02UNIQ_KEY\x01U%d" % (n, n)))
    every = store.query("T", "a", 64, 0, 2**62)
    assert [bytes(decode_record(r).body[:2]) for r in every.records] == [(b"%d" % n * 500)[:2] for n in range(12)]
    assert (every.last_update_ms, every.last_update_offset) == (
        now[0],
        decode_record(every.records[-1]).physical_offset,
    )
    assert [decode_record(r).queue_offset for r in store.query("T", "U7", 32, 0, 2**62).records] == [7]
    assert [decode_record(r).queue_offset for r in store.query("T", "a", 3, 0, 2**62).records] == [9, 10, 11]
    begin = 1_700_000_000_000 + 4000
    assert [decode_record(r).queue_offset for r in store.query("T", "a", 64, begin, begin + 2000).records] == [3, 4, 5]
    asyncio.run(store.log.truncate_front("a test"))
    assert store.query("T", "b0", 64, 0, 2**62).records == []
    assert store.query("Other", "a", 64, 0, 2**62).records == []
    store.put(message(properties=b"KEYS\x01Aa"))
    assert len(store.query("T", "BB", 64, 0, 2**62).records) == 1, "of one hash: the reader compares the keys"
    store.close_files()


@pytest.mark.spec("CQ-03")
def test_delayed_message_has_delivery_time_in_unit(tmp_path: Path) -> None:
    store = opened(tmp_path, clock=lambda: 1_700_000_000_000)
    for level in (3, 99):
        store.put(message(b"d", "SCHEDULE_TOPIC_XXXX", 2, b"DELAY\x01%d" % level))
    codes = [unit[2] for _, unit in store.queues.by_key[("SCHEDULE_TOPIC_XXXX", 2)].units(0, 2)]
    assert codes == [1_700_000_010_000, 1_700_007_200_000]
    store.queues.clear()
    store.close_files()
    again = opened(tmp_path)
    assert [unit[2] for _, unit in again.queues.by_key[("SCHEDULE_TOPIC_XXXX", 2)].units(0, 2)] == codes
    asyncio.run(again.stop())
    assert delay_levels("1s 2m 3h 1d") == (1000, 120_000, 10_800_000, 86_400_000)
    assert due_ms(7, 5, (1000,)) == 1005
    with pytest.raises(ValueError, match="'5x'"):
        delay_levels("1s 5x")


@pytest.mark.spec("RP-02", "RP-03", "RP-04", "ST-13", "IX-08")
def test_half_and_rollback_records_are_not_queued(tmp_path: Path) -> None:
    store = opened(tmp_path)
    seen: list[tuple[object, ...]] = []
    store.on_append = lambda *args: seen.append(args)
    for flag in (4, 12, 8, 0):
        store.put(message(b"%d" % flag, properties=b"UNIQ_KEY\x01u%d" % flag, sys_flag=flag))
    assert bodies(store) == [b"8", b"0"] and [row[:3] for row in seen] == [("T", 0, 0), ("T", 0, 1)]
    found = {flag: len(store.query("T", f"u{flag}", 9, 0, 2**62).records) for flag in (4, 12, 8, 0)}
    assert found == {4: 1, 12: 0, 8: 1, 0: 1}  # a rollback is not indexed, a half message is (IX-08)
    store.close_files()


@pytest.mark.spec("DUR-13")
def test_recreated_topic_starts_at_0_after_rebuild(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(5):
        store.put(message(b"old%d" % n))
    store.delete_topic("T")
    for n in range(3):
        assert store.put(message(b"new%d" % n)).queue_offset == n
    store.close_files()
    store = opened(tmp_path)
    assert bodies(store) == [b"new0", b"new1", b"new2"]
    asyncio.run(store.stop())
    (tmp_path / "queues.json").unlink()
    for path in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    store = opened(tmp_path)
    assert bodies(store) == [b"new0", b"new1", b"new2"]
    asyncio.run(store.stop())


def test_closed_store_is_garbage_collected(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close_files()
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None


@pytest.mark.spec("FLU-01")
async def test_flush_does_not_use_the_threads_of_name_lookups(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    release = threading.Event()
    lookups = [loop.run_in_executor(None, release.wait, 60) for _ in range(64)]  # asyncio's pool is full
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, flush_queue_thorough_ms=10)
    await store.start()
    for n in range(20):
        assert await store.wait_confirmed(store.put(message(b"%d" % n * 500))) is PutStatus.PUT_OK
    await until(lambda: store.checkpoint.note is not None and store.checkpoint.note.dispatched == store.log.end)
    names = [thread.name for thread in threading.enumerate()]
    assert 1 <= sum(name.startswith("saturnmq-disk") for name in names) <= 2
    release.set()
    await asyncio.gather(*lookups)
    await store.stop()


@pytest.mark.spec("DUR-14")
def test_store_files_are_not_for_every_user(tmp_path: Path) -> None:
    root = tmp_path / "store"
    old = os.umask(0o022)
    try:
        store = opened(root, queue_extension_enable=True)
        store.put(message(properties=b"KEYS\x01k\x02TAGS\x01a"))
        StateFile(root / "config" / "topics.json").write(b"{}")
        asyncio.run(store.stop())
    finally:
        os.umask(old)
    modes = {path: path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")]}
    assert len(modes) > 10
    state = {"topics.json", "queues.json", "checkpoint"}
    expected = {path: 0o750 if path.is_dir() else 0o600 if path.name in state else 0o640 for path in modes}
    assert modes == expected


@pytest.mark.spec("DUR-06")
async def test_dispatch_that_fails_after_a_flush_stops_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    failures: list[str] = []
    store.on_failure = lambda error: failures.append(error.message)

    def broken(*_: object) -> None:
        raise KeyError("listener")

    store.on_append = broken
    assert await wait_confirmed(store.log, store.put(message()).end_offset, 60_000) is not PutStatus.PUT_OK
    assert len(failures) == 1 and "KeyError('listener')" in failures[0] and not store.writable
    with pytest.raises(FlushFailed):
        await store.stop()


class TurnstileDisk(BadDisk):
    """A disk that counts the syncs of threads under way, each of which waits for a release of `turnstile`."""

    def __init__(self) -> None:
        super().__init__()
        self.turnstile = threading.Semaphore(0)
        self.begun = self.under_way = 0

    def sync(self, fd: int) -> None:
        if threading.current_thread() is threading.main_thread():  # the mark of the failure
            super().sync(fd)
            return
        self.begun += 1
        self.under_way += 1
        assert self.turnstile.acquire(timeout=20)
        super().sync(fd)
        self.under_way -= 1


async def test_a_store_whose_dispatch_failed_closes_no_file_that_is_being_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = TurnstileDisk()
    store = opened(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)

    def broken(*_: object) -> None:
        raise KeyError("listener")

    store.on_append = broken
    first = asyncio.ensure_future(wait_confirmed(store.log, store.put(message()).end_offset, 60_000))
    await until(lambda: disk.begun == 1)
    second = asyncio.ensure_future(wait_confirmed(store.log, store.put(message()).end_offset, 60_000))
    await asyncio.sleep(0)
    disk.turnstile.release()
    assert {await first, await second} & {PutStatus.PUT_OK} == set()
    await until(lambda: disk.begun == 2)  # the thread is in the sync of the second message
    at_close: list[int] = []
    close_files = store.close_files
    monkeypatch.setattr(store, "close_files", lambda: (at_close.append(disk.under_way), close_files()))
    asyncio.get_running_loop().call_later(0.05, disk.turnstile.release)
    with pytest.raises(FlushFailed):
        await store.stop()
    assert at_close == [0]
