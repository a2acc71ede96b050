"""Consume queues: units, offset lookup by time, loading, truncation and deletion."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from small_store import CL, CQ, NOW_MS, bodies, message, opened

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, QueueOffset
from saturnmq.store import GetStatus
from saturnmq.store.files import file_cache
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import file_name
from saturnmq.store.queue.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue, Unit, write_pending
from saturnmq.store.queue.queues import QueueTable

FILLER = UNIT.pack(0, 0x7FFFFFFF, 0)


def queue_of(folder: Path, units: int) -> tuple[ConsumeQueue, FileCache]:
    """A queue with this many units on disk, each of a 100-byte record."""
    disk = Disk()
    cache = FileCache(disk)
    queue = ConsumeQueue(folder, CQ, cache)
    for n in range(units):
        assert queue.append(n, 100 * n, 100, n)
    pending = queue.begin_flush()
    write_pending(pending, disk)
    queue.end_flush(pending)
    return queue, cache


def overwrite(folder: Path, queue_offset: int, unit: bytes) -> None:
    at = queue_offset * UNIT_BYTES
    path = folder / file_name(at - at % CQ)
    raw = bytearray(path.read_bytes())
    raw[at % CQ : at % CQ + len(unit)] = unit
    path.write_bytes(raw)


@pytest.mark.spec("CQ-02", "FIL-01")
def test_tags_code_is_sign_extended_to_64_bits(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for raw in (b"TAGS\x01TagA", b"TAGS\x01shipment", b"KEYS\x01k"):
        store.put(message(properties=raw))
    asyncio.run(store.stop())
    units = (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).read_bytes()
    codes = [units[at + 12 : at + 20].hex().upper() for at in (0, 20, 40)]
    assert codes == ["000000000027A807", "FFFFFFFFE139719A", "0" * 16]
    assert struct.unpack(">q", bytes.fromhex(codes[1]))[0] == -516_329_062


@pytest.mark.spec("CQ-04", "CQ-08")
def test_queue_starting_at_nonzero_offset_is_padded_with_fillers(tmp_path: Path) -> None:
    disk = Disk()
    cache = FileCache(disk)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    assert queue.append(13, 5000, 100, 7)
    assert (queue.min_offset, queue.max_offset) == (13, 14)
    assert queue.unit(12) is None and queue.unit(13) == (5000, 100, 7) and queue.unit(14) is None
    write_pending(queue.begin_flush(), disk)
    raw = (tmp_path / "q" / file_name(CQ)).read_bytes()
    assert raw[:80] == FILLER * 3 + UNIT.pack(5000, 100, 7) and raw[80:] == bytes(CQ - 80)
    cache.close()


@pytest.mark.spec("CQ-07")
def test_append_is_idempotent_and_rejects_gaps(tmp_path: Path) -> None:
    queue, cache = queue_of(tmp_path / "q", 3)
    assert queue.append(1, 999, 1, 1) and queue.append(2, 200, 100, 2)
    assert [queue.unit(n) for n in range(4)] == [(0, 100, 0), (100, 100, 1), (200, 100, 2), None]
    assert queue.max_physical == 300 and queue.dirty_bytes == 0
    assert not queue.append(4, 400, 100, 4) and queue.max_offset == 3
    cache.close()


@pytest.mark.spec("CQ-06")
def test_offset_by_time_is_0_if_a_record_is_unreadable(tmp_path: Path) -> None:
    now = [NOW_MS]
    store = opened(tmp_path, clock=lambda: now[0])
    results = []
    for _ in range(3):
        results.append(store.put(message()))
        now[0] += 1000
    assert store.offset_by_time("T", 0, NOW_MS + 1000) == 1
    store.log.files[0].map[results[1].physical_offset + 4 : results[1].physical_offset + 5] = b"\0"  # its magic
    assert store.offset_by_time("T", 0, NOW_MS + 2000) == 0
    store.close_files()


@pytest.mark.spec("CQ-06", "CQ-11")
def test_expired_units_are_excluded_from_min_offset_and_time_search(tmp_path: Path) -> None:
    now = [NOW_MS]
    store = opened(tmp_path, clock=lambda: now[0])
    for n in range(12):
        store.put(message(b"%02d" % n * 450))
        now[0] += 1000
    asyncio.run(store.write_all())
    asyncio.run(store.log.truncate_front("a test"))
    queue = store.queues.by_key["T", 0]
    assert store.min_offset("T", 0) == 0
    queue.correct_min_offset(store.log.first_position)
    first = store.min_offset("T", 0)
    assert first == 4 and store.physical_offset("T", 0, first) == CL == store.min_physical_offset
    assert store.offset_by_time("T", 0, NOW_MS) == first  # older records have expired
    assert store.offset_by_time("T", 0, NOW_MS + 4500) == 4 and store.offset_by_time("T", 0, NOW_MS + 4501) == 5
    assert store.offset_by_time("T", 0, NOW_MS + 3_600_000) == 11
    early = store.get("T", 0, first - 1, 32)
    assert (early.status, early.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    assert store.get("T", 0, first, 32).count == 6  # to the end of the queue's file
    store.close_files()
    again = opened(tmp_path)
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (4, 12)
    assert (again.min_offset("T", 1), again.max_offset("T", 1), again.min_offset("none", 0)) == (0, 0, 0)
    asyncio.run(again.stop())


@pytest.mark.spec("CQ-06")
def test_offset_by_time_is_0_in_an_empty_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    assert store.offset_by_time("T", 1, 5) == 0 and store.offset_by_time("none", 0, 5) == 0
    store.close_files()


@pytest.mark.spec("CQ-12")
def test_deleted_queue_restarts_at_0_without_files(tmp_path: Path) -> None:
    queue, cache = queue_of(tmp_path / "q", 25)
    assert len(list((tmp_path / "q").iterdir())) == 3 and queue.max_physical == 2500
    queue.delete()
    assert (queue.max_physical, queue.min_offset, queue.max_offset) == (-1, 0, 0)
    assert list((tmp_path / "q").iterdir()) == []
    cache.close()


@pytest.mark.spec("RC-06")
@pytest.mark.parametrize(
    ("hole", "unit", "end"),
    [
        (25, bytes(20), 25),  # empty unit
        (25, UNIT.pack(2500, 0, 25), 25),  # no record length
        (25, UNIT.pack(2500, -1, 25), 25),
        (25, UNIT.pack(-1, 100, 25), 25),  # negative physical offset
        (25, UNIT.pack(0, 100, 25), 47),  # offset 0 is valid
        (20, bytes(20), 20),  # the third last file is scanned
        (19, bytes(20), 47),  # the file before it is not
    ],
)
def test_linear_load_scans_last_three_files(tmp_path: Path, hole: int, unit: bytes, end: int) -> None:
    _, cache = queue_of(tmp_path / "q", 47)
    overwrite(tmp_path / "q", hole, unit)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    queue.load(linear=True)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, end, end)
    assert queue.max_physical == end * 100
    queue.append(queue.next_offset, end * 100, 100, 7)
    assert queue.unit(queue.max_offset) is None and queue.unit(end) == (end * 100, 100, 7), "later units are not in use"
    cache.close()


@pytest.mark.parametrize("linear", [False, True])
def test_queue_of_fillers_only_points_nowhere(tmp_path: Path, linear: bool) -> None:
    """A crash may leave the padding of a queue that begins in the middle of a file without its first unit."""
    _, cache = queue_of(tmp_path / "q", 3)
    overwrite(tmp_path / "q", 0, FILLER * 3)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    queue.load(linear=linear)
    assert (queue.min_offset, queue.max_offset, queue.max_physical) == (3, 3, NO_PHYSICAL_OFFSET)
    assert queue.append(3, 5000, 100, 7) and queue.unit(3) == (5000, 100, 7)
    cache.close()


def test_units_of_several_files_are_read_in_any_order(tmp_path: Path) -> None:
    _, cache = queue_of(tmp_path / "q", 25)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    queue.load(linear=False)
    for first, second in itertools.product(range(25), repeat=2):
        assert (queue.unit(first), queue.unit(second)) == ((100 * first, 100, first), (100 * second, 100, second))
    cache.close()


@pytest.mark.parametrize(
    ("begin", "count", "end"), [(0, 3, 3), (8, 5, 13), (0, 25, 25), (23, 9, 25), (25, 1, 25), (3, 0, 3)]
)
def test_units_are_as_many_as_requested(tmp_path: Path, begin: int, count: int, end: int) -> None:
    _, cache = queue_of(tmp_path / "q", 25)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    queue.load(linear=False)
    assert list(queue.units(begin, count)) == [(n, (100 * n, 100, n)) for n in range(begin, end)]
    cache.close()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    queue, cache = queue_of(tmp_path / "q", 25)
    queue.load(linear=True)
    assert queue.truncate(1250) and queue.append(12, 1200, 100, 12)
    pending = queue.begin_flush()
    write_pending(pending, cache.disk)  # into a file that exists
    queue.end_flush(pending)
    assert queue.delete_before(1100) == 1
    queue.delete()
    cache.close()
    assert psutil.Process().num_fds() == before


def flushed(queue: ConsumeQueue, units: range, physical: int) -> None:
    """Append units whose records begin at `physical`, and write them."""
    for n in units:
        assert queue.append(n, physical + 100 * n, 100, n)
    pending = queue.begin_flush()
    write_pending(pending, Disk())
    queue.end_flush(pending)


@pytest.mark.parametrize("shrink", ["delete", "truncate"])
def test_files_that_were_deleted_are_not_read_again(tmp_path: Path, shrink: str) -> None:
    """The cache would keep the descriptor of the deleted file."""
    _, cache = queue_of(tmp_path / "q", 25)
    loaded = ConsumeQueue(tmp_path / "q", CQ, cache)
    loaded.load(linear=False)
    assert [unit for _, unit in loaded.units(0, 25)] == [(100 * n, 100, n) for n in range(25)]
    if shrink == "delete":
        loaded.delete()
    else:
        assert loaded.truncate(1250) == 13
    begin = loaded.max_offset
    flushed(loaded, range(begin, 25), 7000)
    again = ConsumeQueue(tmp_path / "q", CQ, cache)
    again.load(linear=False)
    assert [unit for _, unit in again.units(begin, 25)] == [(7000 + 100 * n, 100, n) for n in range(begin, 25)]
    cache.close()


@pytest.mark.parametrize("unit", [(-1, 100), (100, 0), (100, -1), (4951, 50)])
def test_first_unit_that_points_to_no_record_is_dropped(tmp_path: Path, unit: tuple[int, int]) -> None:
    cache = FileCache(Disk())
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    assert queue.append(0, *unit, 7) and queue.truncate(5000) == 1 and queue.max_offset == 0
    assert queue.append(0, 4950, 50, 7) and queue.truncate(5000) == 0, "it ends where the log does"
    cache.close()


def test_units_are_read_only_if_they_are_in_the_page_cache(tmp_path: Path) -> None:
    queue_of(tmp_path / "q", 25)[1].close()
    asked: list[tuple[int, int]] = []

    class ColdDisk(Disk):
        def read_cached(self, fd: int, at: int, size_bytes: int) -> bytes | None:
            asked.append((at, size_bytes))
            return None

    cold, cache = FileCache(ColdDisk()), FileCache(Disk())
    for files, units in ((cold, None), (cache, queue_of(tmp_path / "same", 25)[0].read(13, 4))):
        queue = ConsumeQueue(tmp_path / "q", CQ, files)
        queue.load(linear=False)
        assert queue.read_cached(13, 4) == units, "the second was written just now"
        files.close()
    assert asked == [(3 * UNIT_BYTES, 4 * UNIT_BYTES)]


def test_filler_behind_records_is_no_record(tmp_path: Path) -> None:
    _, cache = queue_of(tmp_path / "q", 3)
    overwrite(tmp_path / "q", 2, FILLER)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    queue.load(linear=False)
    assert (queue.min_offset, queue.max_offset, queue.max_physical) == (0, 3, NO_PHYSICAL_OFFSET)
    cache.close()


@pytest.mark.spec("RC-06", "RC-10")
def test_truncate_drops_units_and_files_past_log_end(tmp_path: Path) -> None:
    queue, cache = queue_of(tmp_path / "q", 47)
    assert queue.truncate(1250) == 47 - 12  # the record that ends at 1300 is cut
    assert (queue.max_offset, queue.next_offset, queue.max_physical) == (12, 12, 1200)
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == [file_name(0), file_name(CQ)]
    assert (tmp_path / "q" / file_name(CQ)).read_bytes()[40:] == bytes(CQ - 40)
    assert queue.truncate(1200) == 0
    cache.close()


@pytest.mark.spec("RC-04")
def test_load_rejects_file_of_wrong_length(tmp_path: Path) -> None:
    _, cache = queue_of(tmp_path / "q", 25)
    path = tmp_path / "q" / file_name(CQ)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptRecord, match=f"{path} is {CQ - 20} bytes long, must be {CQ}"):
        ConsumeQueue(tmp_path / "q", CQ, cache).load(linear=False)
    cache.close()


@pytest.mark.spec("DEL-09")
def test_leading_files_are_deleted_when_last_unit_expired(tmp_path: Path) -> None:
    queue, cache = queue_of(tmp_path / "q", 25)
    names = [file_name(n * CQ) for n in range(3)]

    def left() -> list[str]:
        return sorted(path.name for path in (tmp_path / "q").iterdir())

    assert queue.delete_before(900) == 0 and left() == names and queue.min_offset == 9
    assert queue.delete_before(999) == 1 and left() == names[1:] and queue.min_offset == 10
    assert queue.delete_before(99_999) == 1 and left() == names[2:]  # never the last file
    assert queue.max_offset == 25
    cache.close()


@pytest.mark.spec("DEL-09")
def test_last_file_is_kept_when_all_units_expired(tmp_path: Path) -> None:
    queue, cache = queue_of(tmp_path / "q", 20)
    assert queue.delete_before(99_999) == 1 and queue.max_offset == 20
    assert [path.name for path in (tmp_path / "q").iterdir()] == [file_name(CQ)]
    cache.close()


@pytest.mark.spec("RP-02", "RP-03", "RP-04")
def test_on_append_runs_after_queue_and_index_are_updated(tmp_path: Path) -> None:
    store = opened(tmp_path, clock=lambda: NOW_MS)
    seen: list[tuple[object, ...]] = []

    def appended(topic: str, queue: int, offset: QueueOffset, units: Sequence[Unit]) -> None:
        unit = store.queues.by_key[topic, queue].unit(offset)
        found = len(store.query(topic, f"k{offset}", 9, NOW_MS, NOW_MS).records)
        seen.append((topic, queue, offset, units, unit, found, len(bodies(store, topic, queue))))

    store.on_append = appended
    results = [store.put(message(queue=3, properties=b"TAGS\x01TagA\x02KEYS\x01k%d" % n)) for n in range(2)]
    units = [(result.physical_offset, result.size, 2598919) for result in results]
    assert seen == [("T", 3, n, [unit], unit, 1, n + 1) for n, unit in enumerate(units)]
    asyncio.run(store.stop())


class RecordingDisk(Disk):
    """Records writes and syncs by descriptor."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        super().write(fd, at, data)
        self.calls.append(("write", fd))

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.calls.append(("sync", fd))


def test_truncate_syncs_the_units_that_it_zeroes(tmp_path: Path) -> None:
    """A stale unit that a power failure brings back would be taken for a valid one."""
    disk = RecordingDisk()
    cache = FileCache(disk)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    for n in range(7):
        assert queue.append(n, 100 * n, 100, n)
    pending = queue.begin_flush()
    write_pending(pending, disk)
    queue.end_flush(pending)
    disk.calls.clear()
    assert queue.truncate(300) == 4
    assert [kind for kind, _ in disk.calls] == ["write", "sync"] and len({fd for _, fd in disk.calls}) == 1
    cache.close()


def test_file_is_not_deleted_before_its_units_count_as_written(tmp_path: Path) -> None:
    """Its flush may still run in a thread, which would create the file again behind a gap."""
    disk = Disk()
    cache = FileCache(disk)
    queue = ConsumeQueue(tmp_path / "q", CQ, cache)
    for n in range(25):
        assert queue.append(n, 100 * n, 100, n)
    pending = queue.begin_flush()
    write_pending(pending, disk)
    assert queue.delete_before(99_999) == 0
    queue.end_flush(pending)
    assert queue.delete_before(99_999) == 2
    cache.close()


def test_unit_behind_a_hole_is_not_the_end_of_its_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(4):
        store.put(message(b"%d" % n))
    queue, end = store.queues.by_key["T", 0], store.log.end
    assert queue.end_before(end) == 4 and queue.end_before(end - 1) == 3
    queue._tail[40:60] = bytes(20)  # a power loss: this unit was never written, the one behind it was
    assert queue.end_before(end) == 2
    store.close_files()


def test_queue_whose_records_have_expired_goes_on_at_its_end(tmp_path: Path) -> None:
    log_start = [0]
    table = QueueTable(
        tmp_path / "consumequeue",
        400,
        Disk(),
        tmp_path / "queues.json",
        lambda: log_start[0],
        None,
        log_file_bytes=4096,
    )
    for topic, physical in (("Expired", 1000), ("Present", 9000)):
        queue = table.get_or_make(topic, 0)
        for number in range(3):
            assert queue.append(number, physical + number * 100, 100, 0)
    log_start[0] = 5000
    table.clear()
    assert [queue.max_offset for queue in table.by_key.values()] == [0, 0]
    table.restore_ends()
    ends = {topic: (queue.min_offset, queue.max_offset) for (topic, _), queue in table.by_key.items()}
    assert ends == {"Expired": (3, 3), "Present": (0, 0)}
    assert [key for key, _, _ in table.round(1).queues] == [("Expired", 0)], "written by the next round"
    table.close()


def test_read_descriptors_are_an_eighth_of_those_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "descriptor_limit", lambda: 80)
    cache = FileCache(Disk())
    for number in range(12):
        path = tmp_path / str(number)
        path.write_bytes(b"x")
        assert cache.read(path, 0, 1) == b"x"
    assert len(cache) == 10
    cache.close()
