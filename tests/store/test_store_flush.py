"""Waiters of a flush, slow flushes, and what a store does when its settings or its log change while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest
from small_store import CL, bodies, message, opened

from saturnmq.store import FlushDiskType, PutStatus
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile
from saturnmq.store.log.log import wait_confirmed
from saturnmq.store.log.waiter import Waiter


@pytest.mark.spec("FLU-04")
@pytest.mark.loop(real=False)
async def test_each_waiter_times_out_at_its_own_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    flusher, loop = store.log.flusher, asyncio.get_running_loop()
    monkeypatch.setattr(flusher, "start", lambda: None)  # a disk that does not finish
    end = store.put(message()).end_offset
    began, outcomes = loop.time(), []

    def outcome(name: str, status: PutStatus) -> None:
        outcomes.append((name, status, round(loop.time() - began)))

    for timeout_s in (40, 20, 60, 20):
        store.log.when_confirmed(end, timeout_s * 1000, lambda status, _, at=timeout_s: outcome(f"{at} s", status))
    later = store.put(message()).end_offset
    store.log.when_confirmed(later, 90_000, lambda status, _: outcome("later", status))
    await asyncio.sleep(50)  # poll: virtual time
    late = PutStatus.FLUSH_DISK_TIMEOUT
    assert outcomes == [("20 s", late, 20), ("20 s", late, 20), ("40 s", late, 40)]
    flusher._flush_ended(end, 0.0)
    assert outcomes[3:] == [("60 s", PutStatus.PUT_OK, 50)], "only what is durable now"
    store.log.when_confirmed(end, 1000, lambda status, _: outcome("durable already", status))
    assert outcomes[4:] == [("durable already", PutStatus.PUT_OK, 50)]
    await asyncio.sleep(60)  # poll: virtual time
    assert outcomes[5:] == [("later", late, 90)], "each callback runs once"
    monkeypatch.undo()
    await store.stop()


@pytest.mark.spec("FLU-04")
@pytest.mark.loop(real=False)
async def test_a_wait_after_one_that_timed_out_ends_in_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers behind a stalled disk would otherwise wait for good."""
    store = opened(tmp_path)
    monkeypatch.setattr(store.log.flusher, "start", lambda: None)  # a disk that does not finish
    end, clock = store.put(message()).end_offset, asyncio.get_running_loop().time
    for _ in range(2):
        before = clock()
        assert await wait_confirmed(store.log, end, 5000) is PutStatus.FLUSH_DISK_TIMEOUT
        assert clock() - before == pytest.approx(5, abs=0.1)
    monkeypatch.undo()
    await store.stop()


@pytest.mark.loop(real=False)
async def test_pages_are_unmapped_before_they_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step: page by page it costs an eighth of each send with SYNC_FLUSH."""
    steps: list[tuple[str, int, int]] = []
    real = MappedFile.before_flush
    monkeypatch.setattr(
        MappedFile, "before_flush", lambda file, *ends: (steps.append(("unmapped", *ends)), real(file, *ends))
    )
    flush = MappedFile.flush
    monkeypatch.setattr(MappedFile, "flush", lambda file: (steps.append(("flushed", 0, 0)), flush(file)))
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    await store.start()
    end = store.put(message()).end_offset
    assert await wait_confirmed(store.log, end, 5000) is PutStatus.PUT_OK
    assert ("unmapped", 0, end) in steps
    assert steps[steps.index(("unmapped", 0, end)) + 1] == ("flushed", 0, 0)
    monkeypatch.undo()
    await store.stop()


def test_flush_is_slow_above_half_a_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    flusher = store.log.flusher
    for seconds in (0.1, 0.5, 0.501, 2.0, 0.7):
        flusher._flush_ended(store.log.end, seconds)
    assert (flusher.count, store.log.slow_flushes, store.log.slowest_flush_ms) == (5, 3, 2000)
    assert [text for text in caplog.messages if "slow flush" in text] == [
        f"slow flush elapsed_ms={ms} end=0" for ms in (501, 2000, 700)
    ]
    assert sum(store.log.fsync_seconds.counts) == 5 and store.log.fsync_seconds.sum == pytest.approx(3.801)
    store.close_files()


@pytest.mark.spec("CQ-10")
async def test_sync_flush_confirms_while_queues_cannot_be_written(tmp_path: Path) -> None:
    class FullDisk(Disk):
        full = True

        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, at, data)

    disk, folder = FullDisk(), tmp_path / "consumequeue" / "T" / "0"
    store = opened(
        tmp_path,
        disk=disk,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        flush_queue_interval_ms=1,
        flush_queue_thorough_ms=1,
    )
    await store.start()
    for number in range(3):
        assert await store.wait_confirmed(store.put(message(b"%d" % number))) is PutStatus.PUT_OK
    assert bodies(store) == [b"0", b"1", b"2"]
    assert not any(path.read_bytes().strip(b"\0") for path in folder.glob("*"))
    disk.full = False
    await store.stop()
    assert any(path.read_bytes().strip(b"\0") for path in folder.glob("*"))


async def test_waiter_completes_once_and_cancels_its_timer() -> None:
    loop, outcomes = asyncio.get_running_loop(), []
    waiter = Waiter(5, 10.0, lambda status, reason: outcomes.append((status, reason)))
    waiter.timer = loop.call_later(60, lambda: None)
    assert not waiter.completed
    waiter.complete(PutStatus.PUT_OK)
    waiter.complete(PutStatus.UNKNOWN_ERROR)
    assert waiter.completed and outcomes == [(PutStatus.PUT_OK, "")] and waiter.timer.cancelled()


@pytest.mark.spec("FLU-01")
async def test_change_to_sync_flush_hides_later_messages_until_they_are_durable(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(message(b"async")).status is PutStatus.PUT_OK and bodies(store) == [b"async"]
    store.flush_before_acknowledgement()
    put = store.put(message(b"sync"))
    assert bodies(store) == [b"async"] and store.behind_bytes == put.size
    outcomes: list[PutStatus] = []
    store.when_confirmed(put, lambda status, _: outcomes.append(status))
    assert outcomes == []
    assert await store.wait_confirmed(put) is PutStatus.PUT_OK and outcomes == [PutStatus.PUT_OK]
    assert bodies(store) == [b"async", b"sync"] and store.flushed_offset == put.end_offset
    await store.stop()


async def test_discarded_records_leave_no_gap_in_queue_offsets(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert await store.wait_confirmed(store.put(message(b"kept"))) is PutStatus.PUT_OK
    assert [store.put(message(b"gone")).queue_offset for _ in range(2)] == [1, 2]
    store.discard_unconfirmed()
    assert await store.wait_confirmed(store.put(message(b"next"))) is PutStatus.PUT_OK
    assert bodies(store) == [b"kept", b"next"] and store.max_offset("T", 0) == 2
    await store.abort()


def test_unit_that_does_not_follow_stops_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    queue = store.queues.by_key["T", 0]
    gap = message()
    gap.queue_offset, gap.physical_offset, gap.store_bytes = 5, 200, 100
    store.dispatch(queue, gap)
    assert store.failure is not None and "consume queue T/0 is missing units before 5" in store.failure.message
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE and not store.writable
    store.close_files()


@pytest.mark.spec("BP-04")
def test_record_is_on_disk_if_it_is_further_back_than_memory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    end = store.put(message(b"x" * 2000)).end_offset
    store.memory_bytes = end - 100
    assert [store.on_disk(offset) for offset in (0, 99, 100, end)] == [True, True, False, False]
    store.close_files()


def test_questions_about_missing_messages_have_an_answer(tmp_path: Path) -> None:
    store = opened(tmp_path, clock=lambda: 1_700_000_000_000)
    assert (store.earliest_store_ms, store.min_physical_offset) == (-1, -1)
    at = [store.put(message(b"%d" % n, properties=b"k\x01v%d" % n)).physical_offset for n in range(2)]
    assert [store.physical_offset("T", 0, n) for n in range(3)] == [*at, -1]
    assert [store.store_time("T", 0, n) for n in (0, 1, 2)] == [1_700_000_000_000] * 2 + [-1]
    assert [store.properties("T", 0, n) for n in range(3)] == [b"k\x01v0", b"k\x01v1", None]
    for missing in (("T", 1), ("U", 0)):
        assert (store.min_offset(*missing), store.max_offset(*missing)) == (0, 0)
        assert (store.physical_offset(*missing, 0), store.store_time(*missing, 0)) == (-1, -1)
        assert store.properties(*missing, 0) is None
    assert store.earliest_store_ms == 1_700_000_000_000
    record = store.read_record(at[1])
    assert record is not None and store.read_record(at[1], len(record)) == record
    assert [store.read_record(at[1], len(record) + n) for n in (-1, 1)] == [None, None]
    assert store.read_record(at[1] + 1) is None and store.read_record(CL) is None
    asyncio.run(store.stop())


def test_first_refusal_and_one_failed_put_a_second_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("saturnmq.store.store.monotonic", lambda: now[0])
    store = opened(tmp_path)
    for step in (0.0, 0.5, 0.4999, 0.0002, 5.0):
        now[0] += step
        store.put(message(b"x" * CL))
    logged = [text.split(" reason")[0] for text in caplog.messages if text.startswith("put failed")]
    assert logged == ["put failed count=1", "put failed count=4", "put failed count=5"]
    store.refusal = "the disk is full"
    for _ in range(3):
        assert store.put(message()).reason == "the disk is full"
    assert [text for text in caplog.messages if text.startswith("put refused")] == [
        "put refused count=1 reason=the disk is full"
    ]
    store.close_files()
    assert store.put_batch(message(), []).reason == "the batch is empty"


@pytest.mark.spec("ST-10")
def test_store_time_never_goes_back(tmp_path: Path) -> None:
    times = iter((50, 40, 50, 51))
    store = opened(tmp_path, clock=lambda: next(times))
    assert [store.next_store_ms() for _ in range(4)] == [50, 50, 50, 51]
    store.close_files()


def test_batch_cannot_be_part_of_a_transaction(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for flag in (4, 8, 12):
        refused = store.put_batch(message(sys_flag=flag), [(b"", b"", 0)] * 2)
        assert refused.status is PutStatus.MESSAGE_ILLEGAL and "cannot be transactional" in refused.reason
    assert store.log.end == 0 and store.put_batch(message(sys_flag=1), [(b"", b"", 0)] * 2).status is PutStatus.PUT_OK
    store.close_files()


def test_closed_store_has_no_descriptor_open(tmp_path: Path) -> None:
    def descriptors() -> list[str]:
        targets = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                targets.append(os.readlink(f"/proc/self/fd/{fd}"))
        return [target for target in targets if target.startswith(str(tmp_path))]

    store = opened(tmp_path)
    for n in range(30):
        store.put(message(b"%d" % n, properties=b"KEYS\x01k"))
    asyncio.run(store.write_all())
    store.put(message(b"last"))
    asyncio.run(store.log.stop_flush())  # with its checksum, in a file that is kept open
    assert any("checksums" in target for target in descriptors())
    store.close_files()
    assert descriptors() == []
    again = opened(tmp_path)
    for queue in again.queues.by_key.values():
        assert queue.unit(0) is not None
    assert len(again.queues.cache) > 0 and descriptors()
    again.close_files()
    assert descriptors() == []
