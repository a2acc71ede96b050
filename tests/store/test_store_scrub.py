"""Background scrub of a commit log: finds damage in records that no client reads, without delaying anything."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from small_store import CL, message, opened

from harness import virtualtime
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.raft.ledger import scrub as ledger_scrub
from saturnmq.store import MessageStore
from saturnmq.store.files.disk import Disk
from saturnmq.store.maintenance import scrub as scrub_module
from saturnmq.store.maintenance.scrub import FIRST_PASS_AFTER_MS, NEXT_PASS_AFTER_MS, STEP_MS, step_bytes

DAY_MS = 86_400_000


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtualtime.run(work())


async def filled(path: Path, count: int = 12, disk: Disk | None = None, **more: Any) -> MessageStore:
    """A running store whose messages are durable: two records a file."""
    store = opened(path, disk=disk, flush_interval_ms=60_000, **more)  # few rounds of the other maintenance
    await store.start()
    for number in range(count):
        store.put(message(b"%02d" % number * 800))
    await store.write_all()
    return store


async def passes(store: MessageStore, count: int) -> None:
    while store.scrub.passes < count:
        await asyncio.sleep(10)  # poll, in virtual time


def record_starts(store: MessageStore) -> list[int]:
    return [store.physical_offset("T", 0, number) for number in range(store.max_offset("T", 0))]


def overwrite(store: MessageStore, offset: int, data: bytes) -> None:
    file = store.log.file_at(PhysicalOffset(offset))
    assert file is not None
    file.map[offset - file.start : offset - file.start + len(data)] = data


def finds(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    texts = [record.getMessage() for record in caplog.records]
    matches = [re.search(r"damaged record found path=\S+ byte=\d+ offset=(\d+) reason=(.+)", text) for text in texts]
    return [(int(match[1]), match[2]) for match in matches if match]


@pytest.mark.spec("DUR-08")
def test_scrub_finds_each_kind_of_damage_once_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        store = await filled(tmp_path)
        at = record_starts(store)
        await passes(store, 1)
        assert not finds(caplog) and store.scrub.damaged == 0
        overwrite(store, at[0] + 100, b"X")  # body
        overwrite(store, at[3] + 4, b"\0")  # magic
        overwrite(store, at[4], (1 << 30).to_bytes(4, "big"))  # length
        overwrite(store, at[7] + 28, (5).to_bytes(8, "big"))  # own offset
        overwrite(store, at[11] + 84, (9).to_bytes(4, "big"))  # body's length, in the last file
        await passes(store, 2)
        assert [offset for offset, _ in finds(caplog)] == [at[0], at[3], at[4], at[7], at[11]]
        assert store.scrub.damaged == 5
        await passes(store, 3)
        assert len(finds(caplog)) == 5, "each is reported once"
        file = store.log.files[1]
        assert f"path={file.path} byte={at[3] - file.start} offset={at[3]} reason=" in caplog.text
        found = store.get("T", 0, QueueOffset(8), 3)
        served = b"".join(map(bytes, found.buffers))
        assert [b"%02d" % number * 800 in served for number in (8, 9)] == [True] * 2
        await store.stop()

    with caplog.at_level(logging.ERROR):
        run(work)


@pytest.mark.spec("DUR-08")
def test_whole_log_takes_seven_days_at_the_pace_of_a_ledger(tmp_path: Path) -> None:
    steps = 7 * DAY_MS // STEP_MS
    assert 0.99 < step_bytes(10**12, 7) * steps / 10**12 <= 1
    assert step_bytes(10**12, 7, 1000) == pytest.approx(10 * step_bytes(10**12, 7), rel=0.001)
    assert (step_bytes(0, 7), step_bytes(10**9, 7), step_bytes(10**9, 0)) == (8192, 8192, 8192)
    assert opened(tmp_path).settings.scrub_days == 7
    assert ledger_scrub.step_bytes is step_bytes  # type: ignore[attr-defined]


def test_pass_runs_in_steps_and_then_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        store = await filled(tmp_path)
        scrub, checks = store.scrub, []
        check = scrub._check

        def noted(head: Any) -> None:
            checks.append((loop.time() - began, scrub._at))
            check(head)

        monkeypatch.setattr(scrub, "_check", noted)
        await passes(store, 1)
        times = [time for time, _ in checks]
        assert times[0] >= FIRST_PASS_AFTER_MS / 1000 and {at for _, at in checks} >= set(record_starts(store))
        assert len(set(times)) > 2, "8 KiB in 100 ms"
        first = len(checks)
        await passes(store, 2)
        assert checks[first][0] >= times[-1] + NEXT_PASS_AFTER_MS / 1000
        await store.stop()

    monkeypatch.setattr(scrub_module, "step_bytes", lambda *_: 8192)
    run(work)


def test_slice_ends_after_a_millisecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of small records is checked a few at a time, so that no event-loop iteration takes long."""
    clock = [0.0]

    def tick() -> float:
        clock[0] += 0.0004
        return clock[0]

    async def work() -> None:
        store = await filled(tmp_path, 0)
        for number in range(30):
            store.put(message(b"%d" % number))
        await store.write_all()
        scrub, iterations = store.scrub, []
        check, turn = scrub._check, [0]

        def noted(head: Any) -> None:
            iterations.append(turn[0])
            check(head)

        async def count() -> None:
            while True:
                turn[0] += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(scrub, "_check", noted)
        counter = asyncio.create_task(count())
        await scrub._step(1 << 20)
        counter.cancel()
        assert len(iterations) >= 30 and max(map(iterations.count, iterations)) <= 3
        await store.stop()

    monkeypatch.setattr(scrub_module, "perf_counter", tick)
    run(work)


class ColdDisk(Disk):
    """Nothing is in the page cache until a thread has read it."""

    def __init__(self) -> None:
        self.warmed: list[tuple[int, int]] = []  # position in the file, bytes
        self.threads_used: set[bool] = set()

    def is_resident(self, mapping: mmap.mmap, at: int, size_bytes: int) -> bool:
        return False

    def warm(self, fd: int, at: int, size_bytes: int) -> None:
        self.warmed.append((at, size_bytes))
        self.threads_used.add(threading.current_thread() is threading.main_thread())


def test_records_are_read_in_a_thread_before_they_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        disk = ColdDisk()
        store = await filled(tmp_path, disk=disk, commit_log_file_bytes=1 << 20)
        store.put(message(b"x" * 200_000))
        store.put(message(b"y" * 10))
        await store.write_all()
        scrub = store.scrub
        check = scrub._check

        def noted(head: Any) -> None:
            at = scrub._at
            assert any(begin <= at and at + head.size <= begin + size for begin, size in disk.warmed), (at, disk.warmed)
            check(head)

        monkeypatch.setattr(scrub, "_check", noted)
        await passes(store, 1)
        assert disk.threads_used == {False} and max(size for _, size in disk.warmed) >= 200_000
        assert store.scrub.damaged == 0
        await store.stop()

    monkeypatch.setattr(scrub_module, "RECENT_BYTES", 0)
    run(work)


@pytest.mark.loop(real=False)
async def test_files_that_retention_deletes_meanwhile_are_passed_over(tmp_path: Path) -> None:
    store = await filled(tmp_path, 40)
    scrub = store.scrub
    await scrub._step(2 * CL)
    for _ in range(8):
        await store.log.truncate_front("test")
    assert store.min_physical_offset > scrub._at > 0
    await passes(store, 1)
    assert store.scrub.damaged == 0 and scrub._at >= store.flushed_offset
    await store.stop()


@pytest.mark.loop(real=False)
async def test_records_that_are_not_durable_are_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_interval_ms=10**9)
    store.put(message())
    overwrite(store, 4, b"\0")
    scrub = store.scrub
    await scrub._step(1 << 20)
    assert (scrub.damaged, scrub._at) == (0, 0)
    store.close_files()


@pytest.mark.loop(real=False)
async def test_scrub_is_off_with_zero_days(tmp_path: Path) -> None:
    store = await filled(tmp_path, scrub_days=0)
    async with asyncio.timeout(2 * FIRST_PASS_AFTER_MS / 1000):
        await store._maintenance._scrub_task
    assert (store.scrub.passes, store.scrub._at) == (0, 0)
    await store.stop()


@pytest.mark.loop(real=False)
async def test_file_that_was_cut_is_not_touched(tmp_path: Path) -> None:
    """An access to its lost pages would end the process (DUR-04)."""
    store = await filled(tmp_path)
    os.truncate(store.log.files[1].path, 0)
    scrub = store.scrub
    await scrub._step(1 << 20)
    assert scrub._at == store.log.files[1].start
    store.failure = None
    await store.abort()


def test_garbage_is_reported_a_limited_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        store = await filled(tmp_path)
        for file in store.log.files:
            file.map[:] = os.urandom(CL)
        await store.scrub._step(1 << 20)
        assert store.scrub.damaged == len(finds(caplog)) == 3
        await store.abort()

    monkeypatch.setattr(scrub_module, "FINDS_MAX", 3)
    run(work)
