"""Records on their way into the index: bounded work for any keys, and a rebuild after a failed sync."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
from functools import partial
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import pytest
from small_store import NOW_MS, bodies, message, opened

from loopsteps import STEP_MAX, loop_steps
from saturnmq.protocol.errors import DiskFull, OutOfDescriptors
from saturnmq.protocol.message import decode_record, position_of
from saturnmq.protocol.properties import keys_of
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.index import index_queue
from saturnmq.store.index.message_index import WORDS_MAX
from saturnmq.store.queue.queues import QueueTable
from saturnmq.store.tools.restore import restore
from saturnmq.store.tools.scan import Weight
from saturnmq.store.tools.snapshot import snapshot
from saturnmq.store.tools.verify import verify
from waiting import until

FOREVER = 1 << 60
BIG: dict[str, Any] = {"commit_log_file_bytes": 32 << 20, "index_slots_max": 5000, "index_entries_max": 20_000}
FILE_BYTES = 1 << 15
SMALL_FILES = BIG | {"commit_log_file_bytes": FILE_BYTES}
FAST: dict[str, Any] = {"flush_interval_ms": 2, "flush_queue_interval_ms": 5, "flush_queue_thorough_ms": 10}


def words_of(size: int) -> bytes:
    """KEYS of `size` bytes with as many words as fit."""
    return b"KEYS\x01" + b" ".join(b"%x" % (n % 10) for n in range(size // 2))


def found(store: MessageStore, key: str, topic: str = "T") -> list[bytes]:
    return [bytes(decode_record(record).body) for record in store.query(topic, key, 64, 0, FOREVER).records]


# ---- bounded work


@pytest.mark.spec("IX-02")
def test_first_words_and_unique_key_are_indexed(tmp_path: Path) -> None:
    store = opened(tmp_path, **BIG)
    assert WORDS_MAX == 64
    words = [f"w{n}" for n in range(70)]
    raw = f"KEYS\x01{'  '.join(words)}\x02UNIQ_KEY\x01unique".encode()
    assert keys_of(raw) == ["unique", *words] and keys_of(raw, 64) == ["unique", *words[:64]]
    store.put(message(b"many", properties=raw))
    assert found(store, "unique") == found(store, "w0") == found(store, "w63") == [b"many"]
    assert found(store, "w64") == found(store, "w69") == []
    asyncio.run(store.stop())
    assert not verify(store.settings).problems


@pytest.mark.spec("IX-02")
def test_index_of_all_words_by_another_broker_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.store.index.message_index.WORDS_MAX", 10**9)
    store = opened(tmp_path, **BIG)
    store.put(message(b"many", properties=b"KEYS\x01" + b" ".join(b"w%d" % n for n in range(200))))
    asyncio.run(store.stop())
    monkeypatch.undo()
    assert not verify(store.settings).problems
    (tmp_path / "abort").touch()
    again = opened(tmp_path, **BIG)
    assert found(again, "w199") == [b"many"]
    again.put(message(b"next", properties=b"KEYS\x01w0"))
    assert found(again, "w0") == [b"many", b"next"]
    asyncio.run(again.stop())


@pytest.mark.spec("IX-09")
@pytest.mark.parametrize("profile", list(StoreProfile))
async def test_messages_full_of_keys_do_not_hold_the_event_loop(tmp_path: Path, profile: StoreProfile) -> None:
    """256 messages with 32 KB of keys stopped all clients for 8.3 s."""
    store = opened(tmp_path, profile=profile, **BIG)
    await store.start()
    hostile = [words_of(32_700), b"KEYS\x01" + b"k" * 32_700, b"KEYS\x01" + b" " * 32_700]
    with loop_steps() as steps:
        for n in range(256):
            assert store.put(message(b"hostile", "H", properties=hostile[n % 3])).status is PutStatus.PUT_OK
            if n % 16 == 0:
                honest = store.put(message(b"%d" % n, properties=b"UNIQ_KEY\x01u%d\x02KEYS\x01order%d" % (n, n)))
                assert honest.status is PutStatus.PUT_OK
            await asyncio.sleep(0)
        await until(lambda: found(store, "order240") == [b"240"])
    assert steps.longest < STEP_MAX
    assert len(bodies(store)) == 16 and found(store, "u0") == [b"0"]
    await store.stop()
    assert not store.settings.abort_path.exists()


@pytest.mark.spec("IX-09")
def test_a_slice_of_index_work_is_bounded_by_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of messages with 64 keys of one letter took 28 ms of each event-loop iteration: 6,500 entries per slice."""
    store = opened(tmp_path, **BIG)
    assert store.index_queue is not None and store.index is not None
    slices: list[int] = []
    put_many = store.index.put_many

    def counted(records: Any) -> None:
        records = list(records)
        slices.append(sum(record[1].count(b" ") + 1 for record in records))
        put_many(records)

    monkeypatch.setattr(store.index, "put_many", counted)
    raw = b"KEYS\x01" + b" ".join(b"%x" % (n % 16) for n in range(64))
    store.put_batch(message(), [(b"%d" % n, raw, 0) for n in range(1000)])
    assert store.index_queue.put_all() and sum(slices) == 64_000 and max(slices) < 1000
    asyncio.run(store.stop())


@pytest.mark.spec("IX-09")
def test_slices_take_16_kib_of_keys_or_164_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index lags only if what waits weighs more than the limit; what was added weighs nothing."""
    store = opened(tmp_path, **BIG)
    queue, slices = store.index_queue, list[int]()
    assert queue is not None and store.index is not None
    monkeypatch.setattr(store.index, "put_many", lambda records: slices.append(len(records)))
    monkeypatch.setattr(index_queue, "_running_loop", lambda: None)
    for raw, expected in ((b"", [164, 164, 164, 108]), (b"KEYS\x01" + b"k" * 8190, [2, 2, 1])):
        slices.clear()
        records = [("T", raw, offset, NOW_MS) for offset in range(sum(expected))]
        weight = index_queue.weigh(records, len(records), 1 << 40, WORDS_MAX)[1]
        for limit, lags in ((weight - 1, True), (weight, False)):
            slices.clear()
            monkeypatch.setattr(index_queue, "BACKLOG_BYTES_MAX", limit)
            with monkeypatch.context() as patch:
                patch.setattr(queue, "_next_step", object())  # a step is due: nothing is added now
                assert queue.add(records)
            assert queue.lagging is lags, "above the limit"
            if lags:
                queue.clear()
        assert not queue.complete and queue.covered(99) == 0
        assert queue.put_all() and slices == expected and queue.complete and queue.covered(99) == 99
        with monkeypatch.context() as patch:
            patch.setattr(queue, "_next_step", object())
            assert queue.add(records) and not queue.lagging, "the first ones weigh nothing now"
        queue.clear()
    monkeypatch.undo()
    asyncio.run(store.stop())


# ---- an index that lags

FLOOD = b"KEYS\x01" + b" ".join(b"%02d" % n for n in range(64))


def flood(store: MessageStore, batches: int = 1, count: int = 200) -> None:
    """Put batches of messages with 64 keys each, and after each a message of an honest client."""
    for number in range(batches):
        batch = [(b"%d" % n, FLOOD, 0) for n in range(count)]
        assert store.put_batch(message(topic="H"), batch).status is PutStatus.PUT_OK
        honest = store.put(message(b"%d" % number, properties=b"UNIQ_KEY\x01u%d\x02KEYS\x01order" % number))
        assert honest.status is PutStatus.PUT_OK, "an honest send is acknowledged"


def complete(store: MessageStore) -> bool:
    queue = store.index_queue
    return queue is not None and store.dispatched == store.log.end == queue.covered(store.log.end) and not queue.lagging


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The queue lags early, does one slice at a time, and waits for hours between two; undo to let it go on."""
    monkeypatch.setattr(index_queue, "BACKLOG_BYTES_MAX", 100_000)
    monkeypatch.setattr(index_queue, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(index_queue, "FINISH_SECONDS", 0.0)
    monkeypatch.setattr(index_queue, "_PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(index_queue, "_IDLE_SHARE", -1.0)
    return monkeypatch


def go_on(store: MessageStore, slow: pytest.MonkeyPatch) -> None:
    slow.undo()
    assert store.index_queue is not None
    store.index_queue.cancel()  # the long pause
    store.index_queue._owed = 0.0
    store.put_in_index()


def sparse_index(store: MessageStore) -> None:
    """Let each entry take two system calls, as in a sparse file of another broker, so that the index cannot keep up."""
    assert store.index is not None
    store.index._allocate = False


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_index_that_cannot_keep_up_lags_and_rejects_no_message(
    tmp_path: Path, flush: FlushDiskType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sends of all clients were rejected with `messages behind` while one client sent batches full of keys."""
    monkeypatch.setattr(index_queue, "BACKLOG_BYTES_MAX", 300_000)

    async def work() -> None:
        store = opened(tmp_path, flush_disk_type=flush, **BIG, **FAST)
        sparse_index(store)
        await store.start()
        with loop_steps() as steps:
            for number in range(10):
                flood(store)
                await asyncio.sleep(0)
                assert store.writable and store.index_queue is not None
                if number % 5 == 0:
                    await store.write_all()
                    note = store.checkpoint.note
                    assert note is not None and note.indexed <= store.index_queue.covered(store.log.end)
            await until(lambda: complete(store), 100)
        assert steps.longest < STEP_MAX
        assert len(found(store, "order")) == 10 and len(found(store, "63", "H")) == 64
        store.put(message(b"last", properties=b"KEYS\x01last"))
        await until(lambda: found(store, "last") == [b"last"])
        await store.stop()
        assert not store.settings.abort_path.exists()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert caplog.text.count("index lags,") == caplog.text.count("index caught up") == 1
    assert not verify(opened_settings(tmp_path)).problems


async def test_keys_count_in_what_may_wait_for_the_index(tmp_path: Path, slow: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, **BIG)
    assert store.index_queue is not None
    store.put_batch(message(), [(b"", b"KEYS\x01" + b"k" * (len(FLOOD) - 5), 0)] * 300)
    assert not store.index_queue.lagging
    flood(store)
    assert store.index_queue.lagging
    await store.abort()


async def test_index_work_leaves_most_of_the_event_loop_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event-loop iteration had 5 ms of index work, 0.3 ms of a send: other clients got a tenth of their throughput."""
    monkeypatch.setattr(index_queue, "BACKLOG_BYTES_MAX", 1_000_000)
    store = opened(tmp_path, **BIG)
    sparse_index(store)
    assert store.index_queue is not None and store.index is not None
    spent = 0.0
    put_many = store.index.put_many

    def counted(records: Any) -> None:
        nonlocal spent
        began = thread_time()
        put_many(records)
        spent += thread_time() - began

    monkeypatch.setattr(store.index, "put_many", counted)
    for batches in (1, 4):  # what waits, and what is read from the log
        flood(store, batches, 400)
        assert store.index_queue.lagging == (batches > 1)
        spent, began = 0.0, monotonic()
        while spent < 0.03 and not complete(store):
            list(range(20_000))  # another client's request
            await asyncio.sleep(0)
        assert 0 < spent < 0.35 * (monotonic() - began)
        await until(lambda: complete(store), 100)
    await store.stop()


@pytest.mark.parametrize("how", ["stop", "abort"])
def test_lagging_index_is_completed_after_the_next_start(tmp_path: Path, how: str, slow: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        store = opened(tmp_path, **BIG)
        await store.start()
        flood(store, 3)
        await store.write_all()
        assert store.index_queue is not None and store.index_queue.lagging and store.checkpoint.note is not None
        indexed = store.checkpoint.note.indexed
        assert store.index is not None and store.index.dispatch_from <= indexed < store.log.end == store.dispatched
        flood(store, 1)
        await (store.stop() if how == "stop" else store.abort())
        assert store.settings.abort_path.exists()

    asyncio.run(work())
    slow.undo()
    again = opened(tmp_path, **BIG)
    assert len(found(again, "order")) == 4 and len(found(again, "63", "H")) == 64
    asyncio.run(again.stop())
    assert not verify(again.settings).problems


def test_start_does_not_wait_for_an_index_that_lags_far(
    tmp_path: Path, slow: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One second of a flood of keys took minutes of index work before the broker served again."""

    async def work() -> None:
        store = opened(tmp_path, **BIG)
        flood(store, 3)
        await store.abort()
        slow.setattr("saturnmq.store.recovery.opening.INDEX_SECONDS", 0.0)
        for _ in range(2):  # the second is killed, too, and has indexed a part
            store = opened(tmp_path, **BIG)
            assert store.index_queue is not None and store.index_queue.lagging and store.checkpoint.note is not None
            assert store.checkpoint.note.indexed < store.log.end == store.dispatched
            assert store.put(message(b"next", properties=b"KEYS\x01next")).status is PutStatus.PUT_OK
            await store.start()
            await store.abort()
        store = opened(tmp_path, **BIG)
        slow.undo()
        await store.start()
        await until(lambda: complete(store), 100)
        assert len(found(store, "order")) == 3 and found(store, "next") == [b"next"] * 2
        await store.stop()
        assert not store.settings.abort_path.exists()

    asyncio.run(work())
    assert caplog.text.count("index continued while the store serves") == 3
    assert not verify(opened_settings(tmp_path)).problems


@pytest.mark.spec("DUR-13")
def test_start_does_not_write_queues_again_for_an_index_that_lags(tmp_path: Path, slow: pytest.MonkeyPatch) -> None:
    """The start after a kill truncated the queues to where the index was, and read 1 GiB instead of 120 MiB."""

    async def work() -> None:
        slow.setattr("saturnmq.store.maintenance.maintenance.VERIFY_BYTES", 1)
        slow.setattr("saturnmq.store.recovery.opening.BOUNDARY_BYTES", 1)
        store = opened(tmp_path, **BIG)
        flood(store, 3)
        await store.abort()
        slow.setattr("saturnmq.store.recovery.opening.INDEX_SECONDS", 0.0)
        store = opened(tmp_path, **BIG)
        await store.abort()
        note = store.checkpoint.note
        assert note is not None and note.indexed < note.verify_from < note.dispatched == store.log.end
        slow.setattr("saturnmq.store.recovery.opening.INDEX_BYTES", 0)
        cut: list[int] = []
        truncate = QueueTable.truncate
        slow.setattr(QueueTable, "truncate", lambda table, end: [cut.append(end), truncate(table, end)][1])
        store = opened(tmp_path, **BIG)
        assert cut == [note.dispatched, store.log.end]  # the queues, and then what is behind the last record
        assert store.index_queue is not None and store.index_queue.covered(store.dispatched) == note.indexed
        slow.undo()
        await store.start()
        await until(lambda: complete(store), 100)
        assert len(found(store, "order")) == 3 and len(found(store, "63", "H")) == 64
        await store.stop()

    asyncio.run(work())
    assert not verify(opened_settings(tmp_path)).problems


async def lagging(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> StoreSettings:
    """Leave a store of messages with the keys u0, u1, ...; its starts do not read the log for its index, which lags."""
    monkeypatch.setattr("saturnmq.store.maintenance.maintenance.VERIFY_BYTES", 1)
    monkeypatch.setattr("saturnmq.store.maintenance.maintenance.BOUNDARY_BYTES", 1)
    monkeypatch.setattr("saturnmq.store.recovery.opening.BOUNDARY_BYTES", 1)
    store = opened(folder, **SMALL_FILES)
    for n in range(count):
        store.put(message(b"%d" % n, properties=b"UNIQ_KEY\x01u%d\x02" % n + FLOOD))
    await store.abort()
    monkeypatch.setattr("saturnmq.store.recovery.opening.INDEX_SECONDS", 0.0)
    store = opened(folder, **SMALL_FILES)
    await store.abort()
    monkeypatch.setattr("saturnmq.store.recovery.opening.INDEX_BYTES", 0)
    note = store.checkpoint.note
    assert note is not None and note.indexed < note.verify_from < note.dispatched
    return store.settings


@pytest.mark.spec("DUR-13")
async def test_index_that_lags_goes_on_behind_a_damaged_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended there, said that it was complete, and every later record stayed missing."""
    await lagging(tmp_path, monkeypatch, 500)
    store = opened(tmp_path, **SMALL_FILES)
    damaged, later = (store.physical_offset("T", 0, number) for number in (150, 499))
    await store.abort()
    first = damaged - damaged % FILE_BYTES
    assert first and first + FILE_BYTES < later - later % FILE_BYTES
    with (tmp_path / "commitlog" / f"{first:020d}").open("r+b") as file:
        file.seek(damaged - first + 4)
        file.write(b"\1\2\3\4")
    store = opened(tmp_path, **SMALL_FILES)
    await store.start()
    await until(lambda: complete(store), 100)
    assert found(store, "u149") == [b"149"] and found(store, "u150") == [] and found(store, "u499") == [b"499"]
    in_later_files = [n for n in range(500) if store.physical_offset("T", 0, n) >= first + FILE_BYTES]
    assert [n for n in in_later_files if found(store, f"u{n}") != [b"%d" % n]] == []
    await store.stop()
    assert f"messages not indexed from={damaged} to={first + FILE_BYTES}" in caplog.text


@pytest.mark.spec("RC-05")
@pytest.mark.parametrize(("clean", "known_ms", "kept"), [(False, 0, 0), (False, 1, 1), (False, 2, 2), (True, 0, 3)])
def test_index_files_that_end_after_the_checkpoint_are_deleted_after_a_kill(
    tmp_path: Path, clean: bool, known_ms: int, kept: int
) -> None:
    """known_ms: the index time in the checkpoint of Apache's broker, of the last of so many files."""
    ticks = itertools.count(NOW_MS)
    files: dict[str, Any] = {"index_slots_max": 16, "index_entries_max": 60}
    store = opened(tmp_path, clock=lambda: next(ticks), **files)
    for number in range(160):
        store.put(message(properties=b"KEYS\x01k%d" % number))
    asyncio.run(store.write_all())
    if clean:
        asyncio.run(store.stop())
    else:
        store.close_files()
    paths = sorted((tmp_path / "index").iterdir())
    times = [0, *(int.from_bytes(path.read_bytes()[8:16], "big") for path in paths)]
    for path in paths:
        os.utime(path, (1, 1))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:16] + times[known_ms].to_bytes(8, "big") + bytes(4096 - 24))

    store = opened(tmp_path, **files)
    assert [path.stat().st_mtime == 1 for path in paths if path.exists()].count(True) == kept
    assert all(len(found(store, f"k{number}")) == 1 for number in range(160))
    store.close_files()


@pytest.mark.spec("DUR-13", "RC-05")
async def test_clean_start_without_its_newest_index_file_notes_that_the_index_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint went on to name the missing file as complete: after a kill `store verify` called that damage."""
    await lagging(tmp_path, monkeypatch, 200)
    store = opened(tmp_path, **SMALL_FILES)
    await store.start()
    await until(lambda: complete(store), 100)
    await store.stop()
    assert not store.settings.abort_path.exists()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    store = opened(tmp_path, **SMALL_FILES)
    assert store.index_queue is not None and store.index_queue.covered(store.dispatched) == 0
    assert store.checkpoint.note is not None and store.checkpoint.note.indexed == 0
    await store.abort()
    report = verify(store.settings)
    assert report.sound and [problem.weight for problem in report.problems] == [Weight.PENDING]


async def test_index_that_lags_gets_no_impossible_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a store time of -5 in the first record, which no checksum covers, no message was found by key."""
    await lagging(tmp_path, monkeypatch, 200)
    store = opened(tmp_path, **SMALL_FILES)
    at = store.physical_offset("T", 0, 0)
    await store.abort()
    path = tmp_path / "commitlog" / f"{at - at % FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(at % FILE_BYTES + position_of("store_timestamp"))
        file.write((-5).to_bytes(8, "big", signed=True))
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    for _ in range(2):
        store = opened(tmp_path, **SMALL_FILES)
        await store.start()
        await until(partial(complete, store), 100)
        assert [n for n in range(200) if found(store, f"u{n}") != [b"%d" % n]] == []
        await store.stop()
    assert [problem.weight for problem in verify(store.settings).problems] == [Weight.REMARK]


def test_restored_store_has_a_complete_index_although_it_lagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = asyncio.run(lagging(tmp_path / "made", monkeypatch, 500))
    monkeypatch.setattr(index_queue, "FINISH_SECONDS", 0.0)
    snapshot(settings, tmp_path / "snapshot")
    assert restore(tmp_path / "snapshot", tmp_path / "again").problems == []
    assert not (tmp_path / "again" / "abort").exists()


@pytest.mark.spec("RC-02")
async def test_stop_whose_index_sync_fails_is_not_a_clean_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the index is complete was looked at before it was synced, and `abort` removed without an index."""
    store = opened(tmp_path, **SMALL_FILES)
    await store.start()
    store.put(message(b"0", properties=b"UNIQ_KEY\x01u0"))
    sync = store.disk.sync

    def broken(fd: int) -> None:
        if "/index/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    monkeypatch.setattr(store.disk, "sync", broken)
    await store.stop()
    assert store.settings.abort_path.exists()
    assert [problem.weight for problem in verify(store.settings).problems] == [Weight.PENDING]
    store = opened(tmp_path, **SMALL_FILES)
    assert found(store, "u0") == [b"0"]
    await store.stop()


@pytest.mark.spec("RC-02")
async def test_stop_tries_an_index_again_that_a_full_disk_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, **SMALL_FILES)
    await store.start()
    store.put(message(b"0", properties=b"UNIQ_KEY\x01u0"))
    assert store.index is not None and store.index_queue is not None
    with monkeypatch.context() as full:
        full.setattr(store.index, "put_many", lambda records: (_ for _ in ()).throw(DiskFull("full")))
        store.put_in_index()
        assert store.index_queue.refusal
    await store.stop()
    assert not store.settings.abort_path.exists() and not verify(store.settings).problems


@pytest.mark.parametrize("stopped", [True, False])
def test_index_does_not_read_a_log_file_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The process died of a bus error."""

    async def work() -> None:
        await lagging(tmp_path, monkeypatch, 500)
        store = opened(tmp_path, **SMALL_FILES)
        path = store.log.files[1].path
        data = path.read_bytes()
        os.truncate(path, 0)
        await store.start()
        if not stopped:
            await until(lambda: "index incomplete" in caplog.text)
        await store.stop()
        assert store.settings.abort_path.exists()
        path.write_bytes(data)

    asyncio.run(work())
    assert "was cut to 0 bytes" in caplog.text


def test_stop_completes_an_index_that_lags_a_little(tmp_path: Path, slow: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        store = opened(tmp_path, **BIG)
        flood(store, 3)
        assert store.index_queue is not None and store.index_queue.lagging
        slow.undo()
        slow.setattr(index_queue, "FINISH_SECONDS", 60.0)
        slow.setattr(index_queue, "STEP_SECONDS", 0.0)  # in many steps
        await store.stop()
        assert not store.settings.abort_path.exists() and not store.index_queue.lagging

    asyncio.run(work())
    assert not verify(opened_settings(tmp_path)).problems


def test_lagging_index_continues_behind_deleted_log_files(tmp_path: Path, slow: pytest.MonkeyPatch) -> None:
    small = {"commit_log_file_bytes": 100_000}

    async def work() -> None:
        store = opened(tmp_path, **(BIG | small))
        flood(store, 4)
        assert store.index_queue is not None and store.index_queue.lagging
        await store.write_all()
        while store.log.first_position <= store.physical_offset("T", 0, 1):
            await store.log.truncate_front("test")
        go_on(store, slow)
        await until(lambda: complete(store), 100)
        assert found(store, "order") == [b"2", b"3"]
        await store.stop()

    asyncio.run(work())
    assert not verify(opened_settings(tmp_path, **small)).problems


class FullDisk(Disk):
    """No index file can be created while it is full."""

    full = False

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if self.full and "/index" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create(path, size_bytes, allocate=allocate)


def test_messages_are_rejected_while_the_disk_rejects_a_lagging_index(tmp_path: Path, slow: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        disk = FullDisk()
        store = opened(tmp_path, disk=disk, **BIG)
        flood(store, 3)
        assert store.index_queue is not None and store.index_queue.lagging
        disk.full = True
        go_on(store, slow)
        await until(lambda: store.index_queue is not None and store.index_queue.refusal != "")
        store.recheck(store.disk_usage())
        refused = store.put(message())
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "index cannot grow" in refused.reason
        disk.full = False
        await until(lambda: complete(store), 100)
        store.recheck(store.disk_usage())
        assert store.put(message(b"last", properties=b"KEYS\x01last")).status is PutStatus.PUT_OK
        assert found(store, "last") == [b"last"] and len(found(store, "order")) == 3
        await store.stop()

    asyncio.run(work())
    assert not verify(opened_settings(tmp_path)).problems


def opened_settings(path: Path, **more: Any) -> Any:
    store = opened(path, **(BIG | more))
    asyncio.run(store.stop())
    return store.settings


# ---- failed syncs


class IndexDisk(Disk):
    """Syncs of index files fail `failures` times with `error`."""

    def __init__(self, failures: int, error: OSError | OutOfDescriptors) -> None:
        self.failures, self.error = failures, error

    def _fail(self, path: str) -> None:
        if "/index" in path and self.failures:
            self.failures -= 1
            raise self.error

    def sync(self, fd: int) -> None:
        if isinstance(self.error, OSError):
            self._fail(os.readlink(f"/proc/self/fd/{fd}"))
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        if isinstance(self.error, OutOfDescriptors):
            self._fail(f"{folder}/")
        super().sync_folder(folder)


class NoDescriptors(Disk):
    """Creates no index file while connections hold all descriptors."""

    starved = True

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if self.starved and path.parent.name == "index":
            raise OutOfDescriptors(f"cannot create {path}")
        return super().create(path, size_bytes, allocate=allocate)


async def test_index_waits_for_a_descriptor_and_rejects_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_queue, "_RETRY_S", 0.01)
    store = opened(tmp_path, disk=(disk := NoDescriptors()), **BIG)
    assert store.index_queue is not None
    for number in range(3):
        assert store.put(message(b"%d" % number, properties=b"KEYS\x01k")).status is PutStatus.PUT_OK
        assert store.put_in_index() and not store.index_queue.put_all(), "they wait"
    assert found(store, "k") == []
    disk.starved = False
    await until(lambda: complete(store))
    assert found(store, "k") == [b"0", b"1", b"2"]
    await store.stop()


@pytest.mark.spec("DUR-06", "DUR-13")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("entries", [40, 20_000], ids=["many files", "one file"])
def test_failed_index_sync_rebuilds_the_index(
    tmp_path: Path, number: int, flush: FlushDiskType, entries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One ENOSPC ended the maintenance task: nothing was flushed again, and sends were acknowledged."""
    settings = {**BIG, **FAST, "flush_disk_type": flush, "index_entries_max": entries, "commit_log_file_bytes": 4096}

    async def work() -> None:
        disk = IndexDisk(0, OSError(number, os.strerror(number)))
        store = opened(tmp_path, disk=disk, **settings)
        await store.start()

        async def send(first: int, count: int) -> None:
            for n in range(first, first + count):
                put = store.put(message(b"%d" % n, properties=b"UNIQ_KEY\x01u%d\x02KEYS\x01all" % n))
                assert await store.wait_confirmed(put) is PutStatus.PUT_OK, "an honest send is acknowledged"

        await send(0, 60)
        await store.write_all()
        disk.failures = 1
        await send(60, 60)
        await until(lambda: "index sync failed, files dropped and rebuilt" in caplog.text)
        await send(120, 60)
        assert store.index_queue is not None and store.index is not None
        await until(lambda: store.index_queue is not None and not store.index_queue.lagging)
        assert store.failure is None
        assert [found(store, f"u{n}") for n in range(180)] == [[b"%d" % n] for n in range(180)]
        await until(lambda: store.checkpoint.note is not None and store.checkpoint.note.indexed == store.log.end)
        await store.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert not (tmp_path / "abort").exists()
    again = opened(tmp_path, **settings)
    assert [found(again, f"u{n}") for n in range(180)] == [[b"%d" % n] for n in range(180)]
    asyncio.run(again.stop())
    assert not verify(again.settings).problems


@pytest.mark.spec("DUR-06", "DUR-13")
@pytest.mark.parametrize("how", ["stop", "abort"])
def test_rebuild_that_is_interrupted_ends_at_the_next_start(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_queue, "_IDLE_SHARE", -1.0)
    monkeypatch.setattr(index_queue, "_PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(index_queue, "SLICE_BYTES", 1)
    monkeypatch.setattr(index_queue, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(index_queue, "FINISH_SECONDS", 0.0)

    async def work() -> None:
        disk = IndexDisk(1, OSError(errno.EIO, "Input/output error"))
        store = opened(tmp_path, disk=disk, **BIG)
        for n in range(50):
            store.put(message(b"%d" % n, properties=b"UNIQ_KEY\x01u%d" % n))
        await store.write_all()
        await asyncio.sleep(0)
        assert store.index_queue is not None and store.index_queue.lagging
        await store.write_all()
        store.put(message(b"50", properties=b"UNIQ_KEY\x01u50"))
        await (store.stop() if how == "stop" else store.abort())

    asyncio.run(work())
    assert (tmp_path / "abort").exists()
    again = opened(tmp_path, **BIG)
    assert [found(again, f"u{n}") for n in range(51)] == [[b"%d" % n] for n in range(51)]
    asyncio.run(again.stop())


@pytest.mark.spec("DUR-06")
def test_repeated_failures_of_index_syncs_stop_the_store(tmp_path: Path) -> None:
    async def work() -> None:
        store = opened(tmp_path, disk=IndexDisk(100, OSError(errno.EIO, "Input/output error")), **BIG, **FAST)
        failures: list[str] = []
        store.on_failure = lambda error: failures.append(error.message)
        await store.start()
        number = 0
        while not failures:
            number += 1
            store.put(message(properties=b"KEYS\x01k%d" % number))
            await asyncio.sleep(0.001)  # poll
        assert "sync of the index files" in failures[0] and "errno 5" in failures[0] and not store.writable
        await store.abort()

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.spec("IX-10")
async def test_index_flush_without_descriptor_is_repeated(tmp_path: Path) -> None:
    disk = IndexDisk(1, OutOfDescriptors("cannot open the folder: Too many open files"))
    store = opened(tmp_path, disk=disk, **BIG)
    store.put(message(b"a", properties=b"KEYS\x01a"))
    with pytest.raises(OutOfDescriptors):
        await store.write_all()
    store.put(message(b"b", properties=b"KEYS\x01b"))
    await store.write_all()
    assert store.checkpoint.note is not None and store.checkpoint.note.indexed == store.log.end
    assert found(store, "a") == [b"a"] and found(store, "b") == [b"b"]
    await store.stop()
