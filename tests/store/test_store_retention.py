"""Retention: the deletion hour, the manual trigger, the first run, and what is deleted along with the log."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_store import CL, NOW_MS, USAGE_FINE, message, opened

from saturnmq.store import MessageStore
from saturnmq.store.files.capacity import Usage
from saturnmq.store.maintenance.clock_watch import PAUSE_MS, ClockWatch
from saturnmq.store.maintenance.retention import MANUAL_RUNS

HOUR_MS = 3_600_000
NOW = NOW_MS
HOUR = time.localtime(NOW / 1000).tm_hour
QUICK: dict[str, Any] = {"delete_pause_ms": 0, "delete_queue_pause_ms": 0}


async def filled(path: Path, **more: Any) -> MessageStore:
    """A store with five files: the first two were last modified more than 72 hours ago, the others slightly less."""
    store = opened(path, clock=lambda: NOW, **QUICK, **more)
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    for n in range(10):
        store.put(message(b"%02d" % n * 900))
    await store.write_all()
    assert len(store.log.files) == 5
    for n, file in enumerate(store.log.files):
        modified = NOW / 1000 - (72 * 3600 + 1 if n < 2 else 72 * 3600 - 60)
        os.utime(file.path, (modified, modified))
    return store


@pytest.mark.spec("DEL-02", "DEL-03")
@pytest.mark.parametrize(("hours", "left"), [(f"{HOUR:02d}", 3), (f"{(HOUR + 1) % 24:02d}", 5)])
async def test_expired_files_are_deleted_in_hour_of_delete_when(tmp_path: Path, hours: str, left: int) -> None:
    store = await filled(tmp_path, delete_when=hours)
    await store._maintenance.clean()
    assert len(store.log.files) == left and store.min_physical_offset == (5 - left) * CL
    await store.stop()


@pytest.fixture
def zone_of_utc_plus_11(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XST-11")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.spec("DEL-02")
@pytest.mark.usefixtures("zone_of_utc_plus_11")
@pytest.mark.parametrize(("ahead_h", "left"), [(11, 3), (0, 5)])
async def test_delete_when_is_an_hour_of_the_local_time_zone(tmp_path: Path, ahead_h: int, left: int) -> None:
    hour = (NOW // HOUR_MS + ahead_h) % 24

    store = await filled(tmp_path, delete_when=f"{hour:02d}")
    await store._maintenance.clean()
    assert len(store.log.files) == left
    await store.stop()


@pytest.mark.spec("DEL-08")
async def test_manual_trigger_lasts_twenty_runs(tmp_path: Path) -> None:
    assert MANUAL_RUNS == 20
    store = await filled(tmp_path, delete_when="")
    for file in store.log.files:
        os.utime(file.path, (NOW / 1000, NOW / 1000))
    store.delete_expired_files()
    for run in range(21):
        if run == 20:  # expires just after the last armed run
            os.utime(store.log.files[0].path, (0, 0))
        await store._maintenance.clean()
    assert len(store.log.files) == 5
    store.delete_expired_files()
    for _ in range(19):
        os.utime(store.log.files[0].path, (NOW / 1000, NOW / 1000))
        await store._maintenance.clean()
    os.utime(store.log.files[0].path, (0, 0))
    await store._maintenance.clean()  # the twentieth
    assert len(store.log.files) == 4
    await store.stop()


@pytest.mark.spec("DEL-01")
async def test_log_is_cleaned_before_queues_and_index(tmp_path: Path) -> None:
    store = await filled(tmp_path, delete_when="")
    order: list[str] = []
    first, follow = store.log.truncate_front, store._maintenance._delete_behind

    async def delete_first(reason: str) -> None:
        order.append("log")
        await first(reason)

    async def delete_behind() -> None:
        order.append("queues")
        await follow()

    store.log.truncate_front = delete_first  # type: ignore[method-assign]
    store._maintenance._delete_behind = delete_behind  # type: ignore[method-assign]
    store.delete_expired_files()
    await store._maintenance.clean()
    assert order == ["log", "log", "queues"]
    assert store.min_offset("T", 0) == 4
    await store.stop()


@pytest.mark.spec("DEL-01")
@pytest.mark.loop(seconds=10**9)
@pytest.mark.parametrize(("interval_ms", "first_s"), [(3_600_000, 60.0), (10_000, 10.0)])
async def test_first_run_is_after_one_minute_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int, first_s: float
) -> None:
    store = opened(tmp_path, clean_interval_ms=interval_ms)
    loop, runs = asyncio.get_running_loop(), []
    begin = loop.time()
    now = [begin]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def sleep(seconds: float) -> bool:
        now[0] += 0.5
        return now[0] - begin > 2.2 * first_s

    async def clean() -> None:
        runs.append(round(now[0] - begin, 1))

    store._maintenance._sleep = sleep  # type: ignore[method-assign]
    store._maintenance.clean = clean  # type: ignore[method-assign]
    await store._maintenance._run()
    monkeypatch.undo()
    assert runs == ([60.0] if first_s == 60 else [10.0, 20.0])
    await store.stop()


@pytest.mark.spec("DEL-04", "DEL-05")
@pytest.mark.parametrize(
    ("usage", "forcible", "left"),
    [
        (Usage(75, 75, 99), True, 5),
        (Usage(76, 10, 10), True, 3),
        (Usage(10, 76, 10), True, 3),
        (Usage(-1, 10, 10), True, 3),
        (Usage(86, 10, 10), True, 1),
        (Usage(10, 86, 10), True, 1),
        (Usage(86, 10, 10), False, 3),
    ],
)
async def test_low_disk_space_deletes_at_any_hour(tmp_path: Path, usage: Usage, forcible: bool, left: int) -> None:
    store = await filled(tmp_path, delete_when="", clean_forcibly=forcible)
    store.disk_usage = lambda: usage  # type: ignore[method-assign]
    await store._maintenance.clean()
    assert len(store.log.files) == left
    await store.stop()


@pytest.mark.spec("DEL-04", "DEL-06")
@pytest.mark.parametrize(
    ("usage", "writable"),
    [(Usage(90, 90, 99), True), (Usage(91, 10, 10), False), (Usage(10, 91, 10), False)],
)
def test_puts_are_rejected_above_90_percent(tmp_path: Path, usage: Usage, writable: bool) -> None:
    store = opened(tmp_path)
    store.recheck(usage)
    assert store.writable is writable
    words = f"CL: {usage.commit_log}% CQ: {usage.consume_queue}% INDEX: {usage.index}%"
    assert (words in store.put(message()).reason) is not writable
    store.recheck(USAGE_FINE)
    assert store.writable
    store.close_files()


@pytest.mark.spec("DEL-07", "MF-07")
async def test_file_in_use_is_deleted_and_reader_keeps_its_slice(tmp_path: Path) -> None:
    store = await filled(tmp_path, delete_when="")
    first = store.log.files[0].path
    view = store.get("T", 0, 0, 1).buffers[0]
    kept = bytes(view)
    store.delete_expired_files()
    await store._maintenance.clean()
    assert not first.exists() and bytes(view) == kept and store.min_physical_offset == 2 * CL
    view.release()
    await store.stop()


@pytest.mark.spec("DEL-09")
async def test_queue_and_index_deletion_follows_log_with_pauses(tmp_path: Path) -> None:
    more: dict[str, Any] = {"index_slots_max": 5, "index_entries_max": 4, "consume_queue_file_bytes": 40}
    store = opened(tmp_path, clock=lambda: NOW, delete_pause_ms=0, delete_queue_pause_ms=30, delete_when="", **more)
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    for n in range(12):
        store.put(message(b"%02d" % n * 900, queue=n % 2, properties=b"KEYS\x01k%d" % n))
    await store.write_all()
    assert store.index is not None
    indexed = len(store.index.paths)
    for file in store.log.files[:3]:
        os.utime(file.path, (0, 0))
    store.delete_expired_files()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await store._maintenance.clean()
    assert loop.time() - begin >= 0.055, "a pause behind each of the two queues"
    assert store.min_physical_offset == 3 * CL
    for queue in (0, 1):
        low = store.min_offset("T", queue)
        assert low == 3 and store.physical_offset("T", queue, low) >= 3 * CL
        names = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / str(queue)).iterdir())
        assert int(names[0]) == 40
    assert 0 < len(store.index.paths) < indexed
    assert store.query("T", "k0", 9, 0, 1 << 60).records == []
    assert len(store.query("T", "k11", 9, 0, 1 << 60).records) == 1
    await store.stop()


# ---- a clock that is wrong


@pytest.mark.spec("DEL-03", "DUR-18")
@pytest.mark.parametrize("jump_hours", [73, 24 * 365])
async def test_clock_that_jumps_ahead_deletes_nothing(tmp_path: Path, jump_hours: int) -> None:
    now = [NOW]
    store = opened(tmp_path, clock=lambda: now[0], **QUICK, delete_when=";".join(map(str, range(24))))
    store.disk_usage = lambda: Usage(80, 80, 80)  # type: ignore[method-assign]  # above diskMaxUsedSpaceRatio
    for n in range(10):
        store.put(message(b"%02d" % n * 900))
    await store.write_all()
    for file in store.log.files:
        os.utime(file.path, (NOW / 1000, NOW / 1000))
    await store._maintenance.clean()
    now[0] += jump_hours * HOUR_MS
    for _ in range(3):
        await store._maintenance.clean()
    assert len(store.log.files) == 5
    store.disk_usage = lambda: Usage(86, 86, 86)  # type: ignore[method-assign]  # too full to wait
    await store._maintenance.clean()
    assert len(store.log.files) == 1
    await store.stop()


@pytest.mark.spec("DEL-03", "DEL-08", "DUR-18")
async def test_start_with_clock_ahead_deletes_only_on_request(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    await store.stop()
    store = opened(tmp_path, clock=lambda: NOW + 200 * HOUR_MS, **QUICK, delete_when=";".join(map(str, range(24))))
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    await store._maintenance.clean()
    assert len(store.log.files) == 5
    store.delete_expired_files()
    await store._maintenance.clean()
    assert len(store.log.files) == 1
    await store.stop()


@pytest.mark.spec("DEL-03", "DUR-18")
def test_clock_watch_trusts_a_clock_again() -> None:
    def watch() -> ClockWatch:
        started = ClockWatch(72 * HOUR_MS)
        assert started.now_for_expiry(NOW, 0, NOW - 71 * HOUR_MS) == NOW
        return started

    slow = watch()  # time that passes is no jump, nor is a small correction
    for hour in range(1, 200):
        assert slow.now_for_expiry(NOW + hour * HOUR_MS + 59_000, hour * HOUR_MS, NOW) > 0
    jumped = watch()
    ahead = NOW + 80 * HOUR_MS
    assert jumped.now_for_expiry(ahead, 1, NOW) == 0
    assert jumped.now_for_expiry(ahead + PAUSE_MS - 1, PAUSE_MS, NOW) == 0
    assert jumped.now_for_expiry(ahead + PAUSE_MS, PAUSE_MS + 1, NOW) == ahead + PAUSE_MS
    corrected = watch()
    assert corrected.now_for_expiry(ahead, 1, NOW) == 0
    assert corrected.now_for_expiry(NOW + 2000, 2000, NOW) == NOW + 2000
    back = watch()  # a clock that goes back makes files look newer
    assert back.now_for_expiry(NOW - 80 * HOUR_MS, 1, NOW) == NOW - 80 * HOUR_MS
    assert back.now_for_expiry(NOW, 2, NOW) == 0
    off = ClockWatch(72 * HOUR_MS)
    assert off.now_for_expiry(NOW, 0, NOW - 73 * HOUR_MS) == 0
    assert off.now_for_expiry(NOW - 2 * HOUR_MS, 1, NOW) == 0, "still 71 hours ahead"
    assert off.now_for_expiry(NOW - 72 * HOUR_MS, 2, NOW) == NOW - 72 * HOUR_MS, "one hour ahead is tolerated"
    for reserved, newest, trusted in (
        (72, NOW - 72 * HOUR_MS, True),
        (72, NOW - 72 * HOUR_MS - 1, False),
        (0, NOW - HOUR_MS, True),
        (0, NOW - HOUR_MS - 1, False),
        (72, 0, False),
    ):
        watch_at_start = ClockWatch(reserved * HOUR_MS)
        assert (watch_at_start.now_for_expiry(NOW, 0, newest) == NOW) is trusted, (reserved, newest)
    for step, trusted in ((HOUR_MS, True), (HOUR_MS + 1, False)):
        stepped = watch()
        assert (stepped.now_for_expiry(NOW + step, 0, NOW) > 0) is trusted, "of a jump of an hour"
    assert ClockWatch(72 * HOUR_MS).now_for_expiry(NOW, 0, -1) == NOW
