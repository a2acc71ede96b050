"""Recovery: the markers and offsets that decide what a start reads, keeps and rejects."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_store import CL, bodies, message, opened

from saturnmq.protocol.errors import StoreError, StoreLocked
from saturnmq.store import FlushDiskType, GetStatus, PutStatus, wait_confirmed
from saturnmq.store.files.disk import Disk
from saturnmq.store.recovery.checkpoint import Note
from saturnmq.store.recovery.recover import FileFacts, RecoveryFacts, RecoveryPlan, plan
from waiting import until


class BrokenDisk(Disk):
    """A disk on which every sync fails once `broken` is set."""

    broken = False

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


@pytest.mark.spec("RC-01", "RC-02")
def test_abort_is_kept_if_final_flush_fails(tmp_path: Path) -> None:
    async def work() -> None:
        disk = BrokenDisk()
        store = opened(tmp_path, disk=disk)
        store.put(message())
        await store.write_all()
        store.put(message(b"not on disk"))
        disk.broken = True
        with pytest.raises(StoreError):
            await store.stop()

    asyncio.run(work())
    assert (tmp_path / "abort").stat().st_size == 0
    again = opened(tmp_path)
    asyncio.run(again.stop())
    assert not (tmp_path / "abort").exists()


@pytest.mark.spec("RC-01")
def test_abort_file_triggers_crash_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    store.put(message())
    asyncio.run(store.stop())
    caplog.clear()
    asyncio.run(opened(tmp_path).stop())
    assert "log end recovered" not in caplog.text
    (tmp_path / "abort").write_bytes(b"")
    asyncio.run(opened(tmp_path).stop())
    assert "log end recovered" in caplog.text


@pytest.mark.spec("RC-07")
@pytest.mark.parametrize(("checked", "left"), [(True, 4), (False, 6)])
def test_recovery_checks_body_crc_unless_disabled(tmp_path: Path, checked: bool, left: int) -> None:
    store = opened(tmp_path)
    results = [store.put(message(b"%d" % n * 100)) for n in range(6)]
    store.close_files()
    path = tmp_path / "commitlog" / ("0" * 20)
    raw = bytearray(path.read_bytes())
    raw[results[4].physical_offset + 100] ^= 1
    path.write_bytes(raw)
    store = opened(tmp_path, check_crc_on_recover=checked)
    assert store.max_offset("T", 0) == left
    asyncio.run(store.stop())


@pytest.mark.spec("RC-07", "RC-08")
def test_recovery_follows_fillers_across_files(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sent = [b"%02d" % n * 500 for n in range(14)]
    for body in sent:
        store.put(message(body))
    assert len(store.log.files) == 5
    end = store.max_physical_offset
    store.close_files()
    store = opened(tmp_path)
    assert bodies(store) == sent and store.max_physical_offset == end
    assert store.flushed_offset == store.dispatched == end
    asyncio.run(store.stop())


@pytest.mark.spec("RC-08", "RC-09")
def test_crash_recovery_begins_at_newest_file_before_checkpoint() -> None:
    def begin(stored: list[int], checkpoint_ms: int) -> int:
        files = [FileFacts(n * 100, ms) for n, ms in enumerate(stored)]
        found = plan(RecoveryFacts(files, 100, False, checkpoint_ms, None, 500, queues_low=500))
        assert found is not None
        return found.verify_from

    assert begin([10, 20, 30, 40], 30) == 200  # at or before the checkpoint's time
    assert begin([10, 20, 30, 40], 29) == 100
    assert begin([10, 20, 30, 40], 99) == 300
    assert begin([10, 20, -1, 0], 99) == 100  # no record, or one without a store time
    assert begin([10, 20, 30, 40], 9) == 0  # no such file: the first one


@pytest.mark.spec("RC-11")
def test_missing_commit_log_clears_queues_and_index(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(3):
        store.put(message(properties=b"KEYS\x01k"))
    asyncio.run(store.stop())
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "checkpoint").unlink()
    store = opened(tmp_path)
    assert (store.min_physical_offset, store.max_physical_offset, store.flushed_offset) == (-1, 0, 0)
    assert list(store.topic_queues()) == [] and not (tmp_path / "consumequeue" / "T").exists()
    assert store.query("T", "k", 9, 0, 1 << 60).records == []
    first = store.put(message(b"first"))
    assert (first.physical_offset, first.queue_offset) == (0, 0) and bodies(store) == [b"first"]
    asyncio.run(store.stop())


@pytest.mark.spec("RC-12")
def test_queue_offsets_continue_after_last_record(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(12):
        store.put(message(b"%d" % n, queue=n % 3 % 2))
    store.close_files()
    store = opened(tmp_path)
    assert [store.put(message(queue=queue)).queue_offset for queue in (0, 1, 2)] == [8, 4, 0]
    asyncio.run(store.stop())


@pytest.mark.spec("RC-12", "BP-02")
def test_queue_begins_after_recovery_at_the_first_record_of_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    puts = [store.put(message(b"%02d" % n * 500)) for n in range(12)]
    asyncio.run(store.write_all())
    assert store.min_offset("T", 0) == 0
    asyncio.run(store.log.truncate_front("a test"))
    store.close_files()
    store = opened(tmp_path)
    first = next(put.queue_offset for put in puts if put.physical_offset >= CL)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (first, 12) and first > 0
    for offset in (0, first - 1):
        small = store.get("T", 0, offset, 1)
        assert (small.status, small.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    assert len(bodies(store, offset=first)) == 12 - first
    asyncio.run(store.stop())


@pytest.mark.spec("RC-10", "RC-13")
def test_files_after_torn_record_are_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    results = [store.put(message(b"%02d" % n * 500)) for n in range(12)]
    assert len(store.log.files) == 4
    store.close_files()
    torn = results[4].physical_offset
    path = tmp_path / "commitlog" / f"{torn // CL * CL:020d}"
    raw = bytearray(path.read_bytes())
    raw[torn % CL + 200 :] = bytes(CL - torn % CL - 200)
    path.write_bytes(raw)
    store = opened(tmp_path)
    assert [file.start for file in store.log.files] == [0, CL]
    assert sorted(file.name for file in path.parent.iterdir()) == [f"{0:020d}", f"{CL:020d}"]
    assert (store.log.end, store.log.committed, store.flushed_offset) == (torn, torn, torn)
    assert store.max_offset("T", 0) == 4 and len(bodies(store)) == 4
    assert not path.read_bytes()[torn % CL :].strip(b"\0")
    asyncio.run(store.stop())


@pytest.mark.spec("RC-14", "DUR-16")
def test_lock_is_record_lock_on_first_byte(tmp_path: Path) -> None:
    ask = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "for start, length in ((0, 1), (1, 0)):\n"
        "    try:\n"
        "        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)\n"
        "        print('free')\n"
        "    except OSError:\n"
        "        print('taken')\n"
    )

    def state() -> list[str]:
        done = subprocess.run([sys.executable, "-c", ask, str(tmp_path / "lock")], capture_output=True, check=True)
        return done.stdout.decode().split()

    store = opened(tmp_path)
    assert state() == ["taken", "free"]

    def contents() -> dict[Path, bytes]:
        """All files except `lock`: reading it here would close a descriptor of it and release the lock."""
        return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}

    odd = tmp_path / "commitlog" / f"{0:020d}"
    odd.parent.mkdir(exist_ok=True)
    odd.write_bytes(b"would stop a start that reads before it has the lock")
    before = contents()
    with pytest.raises(StoreLocked):
        opened(tmp_path)
    assert state() == ["taken", "free"]  # no descriptor was opened, which would release the lock when closed
    assert contents() == before
    odd.unlink()
    store.close_files()
    assert state() == ["free", "free"]
    holder = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match="Lock failed,MQ already started"):
            opened(tmp_path)
        other.communicate(timeout=20)
    asyncio.run(opened(tmp_path).stop())


@pytest.mark.spec("FLU-08")
def test_stop_commits_and_flushes_remaining_bytes(tmp_path: Path) -> None:
    async def work(**more: object) -> None:
        synced: list[int] = []
        store = opened(tmp_path / str(len(more)), flush_thorough_ms=3_600_000, flush_interval_ms=3_600_000, **more)
        await store.start()
        end = store.put(message(b"less than a page")).end_offset
        assert store.flushed_offset == 0
        store.log.flusher.on_flushed = synced.append
        await store.stop()
        assert synced[-1] == end == store.flushed_offset == store.log.readable_end

    asyncio.run(work())
    asyncio.run(work(transient_pool_enable=True, transient_pool_size=2, commit_interval_ms=3_600_000))


@pytest.mark.spec("FLU-09", "FLU-10")
async def test_thorough_round_writes_all_queues_and_checkpoint(tmp_path: Path) -> None:
    now = [1_700_000_000_000]
    more = {"flush_interval_ms": 1, "flush_queue_least_pages": 1000, "flush_queue_interval_ms": 1}
    store = opened(tmp_path, clock=lambda: now[0], flush_queue_thorough_ms=30, **more)
    await store.start()
    end = store.put(message()).end_offset  # one unit, far below least_pages of the other rounds
    await until(lambda: store.checkpoint.note is not None and store.checkpoint.note.dispatched == end)
    assert (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).read_bytes()[:20].strip(b"\0")
    times = (tmp_path / "checkpoint").read_bytes()[:16]
    assert times == now[0].to_bytes(8, "big") * 2
    await store.stop()


@pytest.mark.spec("IX-10", "RC-09")
def test_checkpoint_index_time_advances_with_full_files(tmp_path: Path) -> None:
    now = [1_700_000_000_000]
    store = opened(tmp_path, clock=lambda: now[0], index_slots_max=5, index_entries_max=4)

    def index_ms() -> int:
        asyncio.run(store.write_all())
        return int.from_bytes((tmp_path / "checkpoint").read_bytes()[16:24], "big")

    times = []
    for _ in range(4):  # three entries per file
        now[0] += 1000
        store.put(message(properties=b"KEYS\x01k"))
        times.append(index_ms())
    full_ms = 1_700_000_003_000
    assert times == [0, 0, full_ms, full_ms]
    assert store.index is not None and len(store.index.paths) == 2
    store.close_files()


@pytest.mark.spec("FLU-03", "FLU-04")
async def test_flush_request_completes_once_covered(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=10_000)
    first = store.put(message())
    assert await store.wait_confirmed(first) is PutStatus.PUT_OK
    count = store.log.flusher.count
    assert await store.wait_confirmed(first) is PutStatus.PUT_OK and store.log.flusher.count == count
    beyond = first.end_offset + 1  # no flush will ever cover it
    assert await wait_confirmed(store.log, beyond, 30) is PutStatus.FLUSH_DISK_TIMEOUT
    await store.stop()


@pytest.mark.spec("MF-03", "FLU-06")
def test_background_flush_due_conditions(tmp_path: Path) -> None:
    store = opened(tmp_path)
    flusher = store.log.flusher
    assert not flusher.is_due(0)
    store.put(message())
    assert flusher.is_due(0) and not flusher.is_due(1)  # one byte is pending, but no full page
    for _ in range(3):
        store.put(message(b"x" * 1100))
    assert not flusher.is_due(5)
    store.put(message(b"x" * 1100))
    assert len(store.log.files) == 2 and flusher.is_due(5)  # the first file is full
    flusher.flushed = store.log.end
    assert not flusher.is_due(0)
    store.close_files()


@pytest.mark.spec("RP-06", "RP-07")
def test_dispatch_begins_no_earlier_than_log_start() -> None:
    files = [FileFacts(n * 100, 1000 + n) for n in range(3, 6)]
    expired = Note(450, 50, 20, 0, 0, 10)  # dispatched up to 50, where the log began at that time
    assert plan(RecoveryFacts(files, 100, False, 0, expired, 450)) == RecoveryPlan(300, 450, 300)
    assert plan(RecoveryFacts(files, 100, True, 0, None, -1)) == RecoveryPlan(300, 500, 300)
    assert plan(RecoveryFacts(files, 100, True, 0, None, 430)) == RecoveryPlan(300, 500, 430)  # the end of the queues


@pytest.mark.spec("DUR-13")
def test_plan_starts_at_end_of_most_lagging_queue() -> None:
    files = [FileFacts(n * 100, 1000 + n) for n in range(5)]
    assert plan(RecoveryFacts(files, 100, False, 1003, None, 450, queues_low=120)) == RecoveryPlan(120, 400, 120)
    note = Note(450, 440, 420, 0, 0, 410)
    assert plan(RecoveryFacts(files, 100, False, 1003, note, 450, queues_low=120)) == RecoveryPlan(410, 450, 440)
