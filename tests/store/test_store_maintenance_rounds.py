"""What the maintenance task does in each round, and when: on a clock that only the task's own waits advance."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_store import NOW_MS, USAGE_FINE, bodies, message, opened

from saturnmq.protocol.errors import DiskFull, FlushFailed, OutOfDescriptors, StoreError
from saturnmq.store import MessageStore, PutStatus
from saturnmq.store.files.capacity import Usage
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import PAGE_BYTES
from saturnmq.store.index.message_index import Synced
from saturnmq.store.maintenance import maintenance

# Of the clock: sums of quarters of a second are exact. As low as the clock of a machine that has just started: the timeout of a
# test counts from the clock of the machine.
BEGIN_S = 16.0


class Rounds:
    """Runs a store's maintenance task on a clock of its own; `events` are what it did and how many seconds after its start."""

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.task = store._maintenance
        self.events: list[tuple[str, float]] = []
        self.now = BEGIN_S
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    def note(self, event: str) -> None:
        self.events.append((event, self.now - BEGIN_S))

    def times(self, event: str) -> list[float]:
        return [at for name, at in self.events if name == event]

    def watch(self, owner: Any, name: str, event: Callable[..., str] | None = None) -> None:
        """Note each call of a method, which still runs."""
        call = getattr(owner, name)

        def noted(*args: Any, **more: Any) -> Any:
            self.note(event(*args) if event else name)
            return call(*args, **more)

        setattr(owner, name, noted)

    async def run(self, seconds: float) -> None:
        end = self.now + seconds

        async def sleep(step_s: float) -> bool:
            self.now += step_s
            return self.now > end

        self.task._sleep = sleep  # type: ignore[method-assign]
        await self.task._run()


def every(step: float, end: float) -> list[float]:
    return [step * n for n in range(1, int(end / step) + 1)]


@pytest.mark.parametrize("pooled", [False, True])
async def test_each_kind_of_work_has_its_own_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    intervals: dict[str, Any] = {
        "flush_interval_ms": 250,
        "flush_thorough_ms": 2000,
        "flush_queue_interval_ms": 1500,
        "flush_queue_thorough_ms": 6000,
        "flush_queue_least_pages": 3,
        "clean_interval_ms": 4000,
        "commit_interval_ms": 125,
    }
    more: dict[str, Any] = {"transient_pool_enable": True, "transient_pool_size": 2} if pooled else {}
    store = opened(tmp_path, **intervals, **more)
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    rounds = Rounds(store, monkeypatch)
    for name in ("_look_for_cut_files", "_prepare_file", "clean"):
        rounds.watch(rounds.task, name)
    rounds.watch(rounds.task, "_guarded", lambda least: f"write {least}")
    rounds.watch(store, "commit")
    rounds.watch(store, "recheck")
    rounds.watch(store.log, "start_flush")
    await rounds.run(12.0)
    assert rounds.times("commit") == rounds.times("_prepare_file") == every(0.125 if pooled else 0.25, 12)
    assert rounds.times("_look_for_cut_files") == every(0.5, 12)
    assert rounds.times("start_flush") == every(2, 12), "fewer than flushCommitLogLeastPages: when flushed thoroughly"
    assert rounds.times(f"write {3 * PAGE_BYTES}") == [1.5, 3, 4.5, 7.5, 9, 10.5]
    assert rounds.times("write 0") == [6, 12]
    assert rounds.times("clean") == [4, 8, 12]
    assert rounds.times("recheck") == [1, 4, 8, 12], "once soon after the start, then with retention"
    monkeypatch.undo()
    await store.stop()


@pytest.mark.spec("DEL-06")
async def test_disk_usage_is_read_after_1_s_and_then_every_10_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    rounds = Rounds(store, monkeypatch)
    rounds.watch(store, "disk_usage")
    rounds.watch(store, "recheck")
    await rounds.run(35.0)
    assert rounds.times("recheck") == [1, 10, 20, 30]
    assert set(rounds.times("disk_usage")) == {1, 10, 20, 30}
    monkeypatch.undo()
    await store.stop()


@pytest.mark.parametrize("pooled", [False, True])
async def test_enough_pages_are_flushed_when_the_interval_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    intervals: dict[str, Any] = {"flush_interval_ms": 500, "flush_least_pages": 4, "commit_interval_ms": 125}
    more: dict[str, Any] = {"transient_pool_enable": True, "transient_pool_size": 2} if pooled else {}
    store = opened(tmp_path, commit_log_file_bytes=2**20, **intervals, **more)
    rounds = Rounds(store, monkeypatch)
    rounds.watch(store.log, "start_flush")
    store.put(message(b"x" * 4 * PAGE_BYTES))
    await rounds.run(0.5)
    assert rounds.times("start_flush") == [0.5]
    monkeypatch.undo()
    await store.stop()


@pytest.mark.spec("DEL-06")
async def test_refusal_is_checked_again_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, flush_interval_ms=250, clean_interval_ms=3_600_000)
    used = [95]
    store.disk_usage = lambda: Usage(used[0], 10, 10)  # type: ignore[method-assign]
    rounds = Rounds(store, monkeypatch)
    rounds.watch(store, "recheck")
    await rounds.run(3.25)
    assert rounds.times("recheck") == [1, 2, 3] and "the disk is full: CL: 95%" in store.put(message()).reason
    used[0] = 50
    await rounds.run(5)
    assert store.put(message()).status is PutStatus.PUT_OK
    assert len(rounds.times("recheck")) == 4, "the fourth ended the refusal"
    monkeypatch.undo()
    await store.stop()


async def test_checkpoint_is_written_early_if_a_crash_would_replay_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert maintenance.NOTE_BYTES == 256 << 20, "docs/operations.md, Recovery"
    store = opened(tmp_path, flush_interval_ms=1000, flush_queue_thorough_ms=3_600_000, clean_interval_ms=3_600_000)
    store.put(message(b"before"))
    await store.write_all()
    assert store.checkpoint.note is not None
    noted = store.checkpoint.note.dispatched
    end = store.put(message(b"x" * 500)).end_offset
    monkeypatch.setattr(maintenance, "NOTE_BYTES", end - noted)
    rounds = Rounds(store, monkeypatch)
    await rounds.run(1)
    assert store.checkpoint.note.dispatched == noted, "as much as may be replayed"
    monkeypatch.setattr(maintenance, "NOTE_BYTES", end - noted - 1)
    await rounds.run(1)
    assert store.checkpoint.note.dispatched == end > noted
    monkeypatch.setattr(maintenance, "NOTE_BYTES", 0)
    store.checkpoint.note = None
    await rounds.run(1)
    assert store.checkpoint.note is None, "no note yet: the first is written in its turn"
    monkeypatch.undo()
    await store.stop()


@pytest.mark.parametrize("index", [True, False])
async def test_resident_pages_are_released_after_enough_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    store = opened(tmp_path, commit_log_file_bytes=2**16, message_index_enable=index)
    for _ in range(5):
        store.put(message(b"x" * 900, properties=b"KEYS\x01k"))
    await store.stop()
    store = opened(tmp_path, commit_log_file_bytes=2**16, message_index_enable=index)
    rounds = Rounds(store, monkeypatch)
    rounds.watch(store.log, "forget_pages", lambda end: f"forget {end}")
    if store.index is not None:
        rounds.watch(store.index, "trim")
    step = store.put(message(b"x" * 900)).size
    monkeypatch.setattr(maintenance, "_FORGET_BYTES", 2 * step)
    await rounds.task._prepare_file()
    assert rounds.events == [], "what was there at the start does not count"
    store.put(message(b"x" * 900))
    durable = store.log.confirmed_end
    for _ in range(2):
        await rounds.task._prepare_file()
    assert [name for name, _ in rounds.events] == [f"forget {durable}", "trim"][: 1 + index], "once"
    store.put(message(b"x" * 900))
    await rounds.task._prepare_file()
    assert len(rounds.events) == 1 + index
    monkeypatch.undo()
    await store.stop()


async def test_next_start_verifies_from_a_record_far_enough_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert maintenance.VERIFY_BYTES == 64 << 20, "docs/operations.md, Recovery"
    store = opened(tmp_path, commit_log_file_bytes=2**16)
    task = store._maintenance
    ends = [0] + [store.put(message(b"x" * 409)).end_offset for _ in range(20)]
    size = ends[1]
    assert ends == [size * n for n in range(21)]
    monkeypatch.setattr(maintenance, "BOUNDARY_BYTES", 3 * size)
    monkeypatch.setattr(maintenance, "VERIFY_BYTES", 4 * size)
    await store.log.stop_flush()
    note = task.note(store.dispatched)
    assert (note.log_synced, note.verify_from) == (ends[20], 0), "the empty log began at 0"
    task._boundaries.clear()
    assert task.note(store.dispatched).verify_from == ends[20], "no boundary is known"
    for end in ends[1:]:
        monkeypatch.setattr(store.log, "end", end)
        await task._prepare_file()
    # Boundaries are records 1, 4, 7, 10, 13, 16, 19.
    for synced, expected in ((20, 16), (19, 13), (17, 13), (16, 10), (3, 1), (0, 0)):
        task._boundaries.clear()
        task.begin_at(ends[1:20:3])
        monkeypatch.setattr(store.log.flusher, "flushed", ends[synced])
        note = task.note(store.dispatched)
        assert (note.log_synced, note.verify_from) == (ends[synced], ends[expected]), synced
    monkeypatch.undo()
    await store.stop()


async def test_boundaries_are_kept_at_a_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, commit_log_file_bytes=2**16)
    task = store._maintenance
    ends = [store.put(message(b"x" * 409)).end_offset for _ in range(12)]
    monkeypatch.setattr(maintenance, "BOUNDARY_BYTES", 3 * ends[0])
    task._boundaries.clear()
    for end in ends:
        monkeypatch.setattr(store.log, "end", end)
        await task._prepare_file()
    assert list(task._boundaries) == ends[::3]
    monkeypatch.undo()
    await store.stop()


@pytest.mark.parametrize("index", [True, False])
async def test_note_holds_the_end_of_log_queues_and_index(tmp_path: Path, index: bool) -> None:
    store = opened(tmp_path, commit_log_file_bytes=2**16, clock=lambda: NOW_MS, message_index_enable=index)
    for n in range(5):
        store.put(message(b"%d" % n, properties=b"KEYS\x01k%d" % n))
    await store.write_all()
    store.put(message(b"not written"))
    store.replay_from = lambda dispatched: dispatched - 1  # type: ignore[assignment,return-value]
    await store._maintenance.write_all()
    note, end = store.checkpoint.note, store.log.end
    assert note is not None
    assert (note.log_synced, note.dispatched, note.indexed, note.verify_from) == (end, end - 1, end, 0)
    if store.index is not None:
        synced = Synced(int(store.index.paths[-1].name), 5, NOW_MS, store.log.end)
        assert (note.index_file, note.index_entries, note.index_end_ms) == synced[:3] and store.index.synced == synced
    else:
        assert (note.index_file, note.index_entries, note.index_end_ms) == (0, 0, 0)
    assert (store.checkpoint.commit_log_ms, store.checkpoint.consume_queue_ms) == (NOW_MS, NOW_MS)
    await store.stop()


@pytest.mark.spec("IX-10")
async def test_index_time_of_the_checkpoint_is_that_of_full_files_and_never_falls(tmp_path: Path) -> None:
    now = [NOW_MS]
    store = opened(tmp_path, clock=lambda: now[0], index_entries_max=3, index_slots_max=5)
    assert store.checkpoint.index_ms == 0
    for expected in (0, NOW_MS + 1, NOW_MS + 1):
        store.put(message(properties=b"KEYS\x01k"))
        await store.write_all()
        assert store.checkpoint.index_ms == expected
        now[0] += 1
    store.checkpoint.index_ms = NOW_MS + 99
    await store.write_all()
    assert store.checkpoint.index_ms == NOW_MS + 99
    await store.stop()


# ---- writes that fail


class FailingDisk(Disk):
    """A disk that raises `error`, if set, when a consume queue or the index is written."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.error is not None:
            raise self.error
        super().write(fd, at, data)


@pytest.mark.parametrize("least_bytes", [0, 1])
@pytest.mark.parametrize(
    ("error", "refusal", "failure"),
    [
        (DiskFull("no block"), "the disk is full: no block", ""),
        (OSError(errno.ENOSPC, "none"), "the disk is full: [Errno 28] none", ""),
        (OSError(errno.EDQUOT, "quota"), f"the disk is full: [Errno {errno.EDQUOT}] quota", ""),
        (FlushFailed("sync failed", hint="Check it."), "", "sync failed"),
        (OSError(errno.EIO, "I/O"), "", "writing of consume queues failed: [Errno 5] I/O"),
        (StoreError("damaged"), "", "writing of consume queues failed: damaged"),
    ],
    ids=["full", "no space", "quota", "flush", "io", "store"],
)
async def test_failed_write_is_retried_only_if_the_disk_is_full(
    tmp_path: Path, error: Exception, refusal: str, failure: str, least_bytes: int
) -> None:
    disk = FailingDisk()
    store = opened(tmp_path, disk=disk)
    store.put(message(b"kept"))
    disk.error = error
    await store._maintenance._guarded(least_bytes)
    assert store.refusal == refusal and (store.failure.message if store.failure else "") == failure
    assert store.failure is error or not isinstance(error, FlushFailed), "with its hint"
    disk.error = None
    noted = store.checkpoint.note
    await store._maintenance._guarded(least_bytes)
    unit = (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).read_bytes()[:20]
    assert bool(unit.strip(b"\0")) is not bool(failure), "written by the next round, but never after a final failure"
    assert (store.checkpoint.note is not noted) is (not failure and not least_bytes)
    store.refusal = ""
    if not failure:
        await store.stop()
        assert bodies(opened(tmp_path)) == [b"kept"]
    else:
        await store.abort()


async def test_writes_without_descriptors_wait_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    store = opened(tmp_path, disk=disk)
    await store.write_all()
    rounds = Rounds(store, monkeypatch)
    rounds.watch(store.queues, "round")
    end = store.put(message(b"x" * 700)).end_offset

    async def ticks(seconds: float) -> list[float]:
        rounds.events.clear()
        begin, steps = rounds.now, int(seconds * 4)
        for _ in range(steps):
            await rounds.task._guarded(0)
            rounds.now += 0.25
        return [BEGIN_S + at - begin for at in rounds.times("round")]

    disk.error = OutOfDescriptors("no descriptor is free")
    assert await ticks(32) == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 23.5, 31.5], "twice as long each time, 8 s at most"
    assert store.writable, "what waits is little"
    monkeypatch.setattr(maintenance, "NOTE_BYTES", end // 2)
    await ticks(8)
    assert "the store's files cannot be opened: no descriptor is free" in store.put(message()).reason
    disk.error, store.refusal = None, ""
    assert len(await ticks(8)) > 1
    store.put(message())
    disk.error = OutOfDescriptors("no descriptor is free")
    assert await ticks(1.75) == [0, 0.5, 1.5], "short pauses again after a success"
    disk.error, store.refusal = None, ""
    monkeypatch.undo()
    await store.stop()


async def test_failed_preallocation_pauses_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    rounds = Rounds(store, monkeypatch)
    tried: list[float] = []

    async def preallocate() -> None:
        tried.append(rounds.now - BEGIN_S)
        raise DiskFull("no space")

    monkeypatch.setattr(store.log, "preallocate", preallocate)
    for _ in range(34):
        await rounds.task._prepare_file()
        rounds.now += 0.5
    assert tried == [0, 8, 16] and store.writable
    store.stop_writing(FlushFailed("broken"))
    rounds.now += 100
    await rounds.task._prepare_file()
    assert len(tried) == 3, "a stopped store gets no new file"
    monkeypatch.undo()
    await store.abort()


async def test_sync_of_the_log_that_fails_is_raised_by_the_write(tmp_path: Path) -> None:
    class NoSync(Disk):
        broken = False

        def sync(self, fd: int) -> None:
            if self.broken:
                raise OSError(errno.EIO, "I/O")
            super().sync(fd)

    disk = NoSync()
    store = opened(tmp_path, disk=disk)
    store.put(message())
    disk.broken = True
    noted = store.checkpoint.note
    with pytest.raises(FlushFailed, match="errno 5"):
        await store._maintenance.write_all()
    assert store.checkpoint.note is noted and ("T", 0) in store.queues.dirty
    await store.abort()


# ---- retention


async def filled(path: Path, now: Callable[[], int] = lambda: NOW_MS, **more: Any) -> MessageStore:
    """A store with five files whose log is durable; queues and checkpoint are not written."""
    store = opened(path, clock=now, delete_when="", **more)
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    for n in range(10):
        store.put(message(b"%02d" % n * 900))
    await store.log.stop_flush()
    assert len(store.log.files) == 5
    return store


def touch(store: MessageStore, seconds: float) -> None:
    for file in store.log.files:
        os.utime(file.path, (seconds, seconds))


async def test_retention_writes_queues_before_it_deletes_their_log(tmp_path: Path) -> None:
    store = await filled(tmp_path, delete_pause_ms=0, delete_queue_pause_ms=0)
    touch(store, 0)
    store.delete_expired_files()
    await store.clean()
    assert store.checkpoint.note is not None and store.checkpoint.note.dispatched == store.log.end
    assert len(store.log.files) == 1, "all but the file being written, in this run"
    await store.abort()
    again = opened(tmp_path)
    assert bodies(again, offset=again.min_offset("T", 0)) == [b"08" * 900, b"09" * 900]
    again.close_files()


@pytest.mark.spec("DEL-03", "DEL-09")
@pytest.mark.loop(real=False)
async def test_pauses_between_deletions_are_as_configured(tmp_path: Path) -> None:
    store = await filled(tmp_path, delete_pause_ms=20_000, delete_queue_pause_ms=3_000, consume_queue_file_bytes=40)
    for queue in (1, 2):
        store.put(message(b"x" * 500, queue=queue))
    await store.write_all()
    loop = asyncio.get_running_loop()
    touch(store, 0)
    store.delete_expired_files()
    files = len(store.log.files)
    begin = loop.time()
    await store.clean()
    pauses_s = (files - 2) * 20 + 3
    assert len(store.log.files) == 1 and files > 4
    assert pauses_s <= loop.time() - begin < pauses_s + 2, "between files, and after the one queue that lost units"
    begin = loop.time()
    await store.clean()
    assert loop.time() - begin < 2, "nothing was deleted"
    await store.stop()


@pytest.mark.parametrize(("usage", "allocated"), [(USAGE_FINE, True), (Usage(95, 10, 10), False)])
async def test_reserve_is_allocated_again_unless_the_disk_is_full(
    tmp_path: Path, usage: Usage, allocated: bool
) -> None:
    store = opened(tmp_path)
    store.disk_usage = lambda: usage  # type: ignore[method-assign]
    assert store.reserve.release()
    await store.clean()
    assert store.reserve.path.exists() is allocated
    await store.stop()


@pytest.mark.spec("DUR-15")
async def test_space_that_a_run_frees_ends_the_refusal(tmp_path: Path) -> None:
    store = await filled(tmp_path, delete_pause_ms=0, delete_queue_pause_ms=0)
    store.disk_usage = lambda: Usage(95 if len(store.log.files) > 1 else 50, 10, 10)  # type: ignore[method-assign]
    store.recheck(store.disk_usage())
    assert not store.writable
    await store.clean()
    assert store.writable and len(store.log.files) == 1
    await store.stop()


@pytest.mark.loop(seconds=10**9)
async def test_expiry_resumes_a_day_of_running_time_after_the_clock_jumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [NOW_MS]
    store = await filled(tmp_path, lambda: now[0], delete_pause_ms=0, delete_queue_pause_ms=0)
    store.disk_usage = lambda: Usage(80, 80, 80)  # type: ignore[method-assign]  # above diskMaxUsedSpaceRatio
    touch(store, NOW_MS / 1000)
    rounds = Rounds(store, monkeypatch)
    await store.clean()
    now[0] += 1000 * 3_600_000
    await store.clean()
    for hours in (23, 0.99):
        rounds.now += hours * 3600
        now[0] += int(hours * 3_600_000)
        await store.clean()
        assert len(store.log.files) == 5, "the clock is ahead"
    rounds.now += 60
    now[0] += 60_000
    await store.clean()
    assert len(store.log.files) == 1
    monkeypatch.undo()
    await store.stop()


@pytest.mark.parametrize(("trust_clock", "left"), [(False, 5), (True, 1)])
async def test_caller_may_trust_the_clock_right_after_a_jump(tmp_path: Path, trust_clock: bool, left: int) -> None:
    now = [NOW_MS]
    store = await filled(tmp_path, lambda: now[0], delete_pause_ms=0, delete_queue_pause_ms=0)
    store.disk_usage = lambda: Usage(80, 80, 80)  # type: ignore[method-assign]
    touch(store, NOW_MS / 1000)
    await store.clean()
    now[0] += 1000 * 3_600_000
    await store.clean(trust_clock=trust_clock)
    assert len(store.log.files) == left
    await store.stop()


@pytest.mark.parametrize(("stored", "left"), [(True, 1), (False, 5)])
async def test_last_put_shows_that_the_clock_is_right(tmp_path: Path, stored: bool, left: int) -> None:
    store = await filled(tmp_path, delete_pause_ms=0, delete_queue_pause_ms=0)
    store.disk_usage = lambda: Usage(80, 80, 80)  # type: ignore[method-assign]
    touch(store, 0)
    if not stored:
        store._last_store_ms = 0
    await store.clean()
    assert len(store.log.files) == left, "only the files' times, of 1970, are known otherwise"
    await store.stop()
