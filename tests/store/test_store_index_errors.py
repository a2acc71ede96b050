"""The index when its files cannot be read, written, synced or removed, and the bounds of its caches."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from small_store import message, opened

from saturnmq.protocol.errors import DiskFull, InvariantBroken, StoreError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store.files.disk import Disk
from saturnmq.store.index import index_queue, message_index
from saturnmq.store.index.index_file import ENTRY_BYTES, HEADER, HEADER_BYTES, IndexFile, IndexShape
from saturnmq.store.index.message_index import LastUpdate, MessageIndex, Synced

NOW = 1_700_000_000_123
FOREVER = 1 << 62
SLOTS, ENTRIES = 7, 4  # three entries a file


class FailingDisk(Disk):
    """Raises EIO in the calls named in `failing`."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.unlinked: list[str] = []

    def _check(self, name: str) -> None:
        if name in self.failing:
            raise OSError(errno.EIO, "Input/output error")

    def read(self, fd: int, at: int, size_bytes: int) -> bytes:
        self._check("read")
        return super().read(fd, at, size_bytes)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self._check("write")
        super().write(fd, at, data)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)

    def unlink(self, path: Path) -> None:
        self._check("unlink")
        self.unlinked.append(path.name)
        super().unlink(path)

    def map(self, fd: int, size_bytes: int) -> object:  # type: ignore[override]
        self._check("map")
        return super().map(fd, size_bytes)


def index(folder: Path, disk: Disk | None = None, *, allocate: bool = True) -> MessageIndex:
    return MessageIndex(folder, SLOTS, ENTRIES, disk or Disk(), lambda: NOW, allocate=allocate)


def filled(folder: Path, disk: Disk | None = None, count: int = 8, *, allocate: bool = True) -> MessageIndex:
    """An index of three files, synced."""
    made = index(folder, disk, allocate=allocate)
    for n in range(count):
        made.put("T", ["k"], PhysicalOffset(n * 100), NOW + n * 1000)
    flush(made)
    return made


def flush(made: MessageIndex) -> None:
    begun = made.begin_flush()
    if begun is not None:
        begun.run()
        made.end_flush(begun)


def test_unreadable_file_is_named_and_kept(tmp_path: Path) -> None:
    disk = FailingDisk()
    filled(tmp_path, disk).close()
    files = sorted(path.name for path in tmp_path.iterdir())
    disk.failing = {"read"}
    with pytest.raises(StoreError, match=f"cannot read {tmp_path}/{files[0]}: Input/output error"):
        index(tmp_path, disk).load()
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_file_that_was_removed_is_not_opened_again(tmp_path: Path) -> None:
    made = filled(tmp_path)
    file = made._files[0]
    made.delete_before(PhysicalOffset(250))
    with pytest.raises(StoreError, match=f"{file.path} was removed"):
        file.descriptor()
    made.close()


def test_file_that_was_closed_is_neither_open_nor_mapped(tmp_path: Path) -> None:
    """A mapping of a deleted file would keep its space: 400 MB each."""
    made = filled(tmp_path)
    files = list(made._files)
    assert made.query("T", "k", 64, 0, FOREVER) == [n * 100 for n in range(8)]
    descriptors = [file.descriptor() for file in files]
    mapped = Path("/proc/self/maps").read_text()
    assert all(f"{file.path}" in mapped for file in files)
    made.close()
    mapped = Path("/proc/self/maps").read_text()
    assert [file.path for file in files if f"{file.path}" in mapped] == []
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_failed_sync_of_a_repair_is_named(tmp_path: Path) -> None:
    disk = FailingDisk()
    made = filled(tmp_path, disk)
    made.put("T", ["k"], PhysicalOffset(800), NOW + 8000)
    disk.failing = {"sync"}
    with pytest.raises(StoreError, match=f"cannot repair {made.paths[1]}: Input/output error"):
        made.truncate(PhysicalOffset(450))
    made.close()
    other = filled(tmp_path / "other", disk := FailingDisk())
    other.put("T", ["k"], PhysicalOffset(800), NOW + 8000)
    other.put("T", ["k"], PhysicalOffset(900), NOW + 9000)
    disk.failing = {"sync"}
    with pytest.raises(StoreError, match=f"cannot sync the index files in {tmp_path}/other: Input/output error"):
        other.truncate(PhysicalOffset(900))
    other.close()


def test_failed_removal_is_named(tmp_path: Path) -> None:
    disk = FailingDisk()
    made = filled(tmp_path, disk)
    disk.failing = {"unlink"}
    with pytest.raises(StoreError, match=f"cannot remove index files in {tmp_path}: Input/output error"):
        made.clear()
    with pytest.raises(OSError, match="Input/output error"):
        filled(tmp_path / "other", disk).delete_before(PhysicalOffset(250))


def test_files_are_deleted_newest_first(tmp_path: Path) -> None:
    disk = FailingDisk()
    made = filled(tmp_path, disk)
    names = [path.name for path in made.paths]
    assert made.truncate(PhysicalOffset(0)) == 0
    assert disk.unlinked == names[::-1], "so that files that remain never follow a gap"
    assert made.synced == Synced(0, 0, 0, PhysicalOffset(0)) and made.last_update == LastUpdate(0, PhysicalOffset(0))
    made.close()


def test_index_of_a_repaired_file_cannot_be_changed_during_a_flush(tmp_path: Path) -> None:
    made = filled(tmp_path)
    made.put("T", ["k"], PhysicalOffset(800), NOW)
    begun = made.begin_flush()
    assert begun is not None
    calls: list[Callable[[], object]] = [made.clear, lambda: made.truncate(PhysicalOffset(0)), made.begin_flush]
    for call in calls:
        with pytest.raises(InvariantBroken):
            call()
    begun.run()
    made.end_flush(begun)
    for end in (made.end_flush, made.retry_flush, made.discard):
        with pytest.raises(InvariantBroken):
            end(begun)
    made.close()


@pytest.mark.parametrize(("slots", "entries"), [(0, 10), (1, 1), (1, 2**31)])
def test_impossible_sizes_are_refused(tmp_path: Path, slots: int, entries: int) -> None:
    with pytest.raises(InvariantBroken):
        MessageIndex(tmp_path, slots, entries, Disk(), lambda: NOW)


def test_header_that_could_not_be_written_is_written_by_the_next_flush(tmp_path: Path) -> None:
    disk = FailingDisk()
    made = index(tmp_path, disk, allocate=False)
    made.put("T", ["k"], PhysicalOffset(100), NOW)
    file = made._files[0]
    before = HEADER.unpack(file.path.read_bytes()[:HEADER_BYTES])
    file.end_ms = NOW + 5
    disk.failing = {"write"}
    with pytest.raises(OSError, match="Input/output error"):
        file.write_header()
    assert file.header_pending
    with pytest.raises(StoreError, match=f"cannot write {file.path}: Input/output error"):
        made.begin_flush()
    with pytest.raises(StoreError, match="cannot index offset 200: Input/output error"):
        made.put("T", ["k"], PhysicalOffset(200), NOW + 6)
    disk.failing = set()
    flush(made)
    assert not file.header_pending and HEADER.unpack(file.path.read_bytes()[:HEADER_BYTES]) == (
        before[0],
        NOW + 5,
        *before[2:],
    )
    made.close()


def test_taken_back_flush_is_repeated_with_the_folder(tmp_path: Path) -> None:
    made = index(tmp_path)
    made.put("T", ["k"], PhysicalOffset(100), NOW)
    first = made.begin_flush()
    assert first is not None
    made.retry_flush(first)
    second = made.begin_flush()
    assert second is not None and second.files == first.files and second._folder == tmp_path
    second.run()
    made.end_flush(second)
    assert made.synced is not None and made.synced.offset == 100 and made.begin_flush() is None
    made.close()


def test_file_removed_during_a_sync_is_closed_after_it(tmp_path: Path) -> None:
    made = filled(tmp_path, count=3)
    for n in range(3, 8):
        made.put("T", ["k"], PhysicalOffset(n * 100), NOW + n)
    begun = made.begin_flush()
    assert begun is not None
    middle, last = made._files[1], made._files[2]
    assert begun.files == [middle, last]
    made.delete_before(PhysicalOffset(501))
    assert middle.removed and middle._fd >= 0
    assert made.discard(begun) == 0 and made.synced == Synced(0, 0, 0, PhysicalOffset(0))
    assert middle._fd < 0 and last._fd < 0 and made.paths == [] and not last.path.exists()
    made.close()


def test_discarded_flush_keeps_the_files_before_it(tmp_path: Path) -> None:
    made = filled(tmp_path, count=3)
    for n in range(3, 8):
        made.put("T", ["k"], PhysicalOffset(n * 100), NOW + n)
    begun = made.begin_flush()
    assert begun is not None
    first = made._files[0]
    assert made.discard(begun) == 200
    assert made.synced == Synced(first.number, 3, first.end_ms, PhysicalOffset(200)) and made.paths == [first.path]
    assert made.query("T", "k", 64, 0, FOREVER) == [0, 100, 200]
    made.close()


def test_next_name_skips_files_that_exist(tmp_path: Path) -> None:
    made = index(tmp_path)
    made.put("T", ["k"], PhysicalOffset(0), NOW)
    taken = made.paths[0]
    made.close()
    other = index(tmp_path)
    other.put("T", ["k"], PhysicalOffset(0), NOW)
    assert int(other.paths[0].name) == int(taken.name) + 1
    other.close()


@pytest.mark.parametrize("count", [2, 3])
def test_empty_file_must_repeat_the_end_before_it(tmp_path: Path, count: int) -> None:
    made = filled(tmp_path, count=count)
    last = made._files[-1]
    end = last.end_offset
    made._roll(last)
    paths = made.paths
    made.close()
    again = index(tmp_path)
    assert again.load() == [] and again.paths == paths and again.dispatch_from == end
    again.close()
    raw = bytearray(paths[1].read_bytes())
    struct.pack_into(">qq", raw, 16, end + 1, end + 1)
    paths[1].write_bytes(raw)
    again = index(tmp_path)
    assert [(path, "no entries but ends at offset" in reason) for path, reason in again.load()] == [(paths[1], True)]
    again.close()


@pytest.mark.parametrize(
    ("header", "good"),
    [
        ((5, 5, 0, 8, SLOTS, ENTRIES), True),
        ((-1, 5, 0, 8, 1, 2), False),
        ((5, -1, 0, 8, 1, 2), False),
        ((5, 5, -1, 8, 1, 2), False),
        ((5, 5, 9, 8, 1, 2), False),
        ((5, 5, 8, 8, 0, 0), True),
        ((5, 5, 0, 8, -1, 2), False),
        ((5, 5, 0, 8, SLOTS + 1, 2), False),
        ((5, 5, 0, 8, 1, -1), False),
        ((5, 5, 0, 8, 1, ENTRIES + 1), False),
        ((0, 0, 0, 0, 0, 1), True),
    ],
)
def test_header_is_read_if_it_is_possible(tmp_path: Path, header: tuple[int, ...], good: bool) -> None:
    shape = IndexShape(SLOTS, ENTRIES)
    path = tmp_path / "20231114221320123"
    path.write_bytes(HEADER.pack(*header).ljust(shape.file_bytes, b"\0"))
    if good:
        file = IndexFile.load(path, shape, Disk())
        begin_ms, end_ms, begin, end, used, count = header
        assert (file.begin_ms, file.end_ms, file.begin_offset, file.end_offset) == (begin_ms, end_ms, begin, end)
        assert (file.used_slots, file.count, file.full) == (used, max(count, 1), count == ENTRIES)
    else:
        with pytest.raises(StoreError, match="has an impossible header: begin_ms="):
            IndexFile.load(path, shape, Disk())


def test_check_compares_header_and_entries(tmp_path: Path) -> None:
    made = index(tmp_path)
    for offset, ms in ((100, NOW), (200, NOW + 1999), (300, NOW + 5000)):
        made.put("T", ["k"], PhysicalOffset(offset), ms)
    path = made.paths[0]
    made.close()
    whole = path.read_bytes()
    shape = IndexShape(SLOTS, ENTRIES)
    assert shape.file_bytes == HEADER_BYTES + 4 * SLOTS + ENTRY_BYTES * ENTRIES == len(whole)

    def checked(*arguments: int, **header: int) -> bool:
        path.write_bytes(whole)
        file = IndexFile.load(path, shape, Disk())
        for name, value in header.items():
            setattr(file, name, value)
        try:
            file.check(*arguments)
        except StoreError as error:
            assert "does not belong to its entries" in error.message
            return False
        return True

    assert checked() and checked(2, NOW + 1999) and checked(2, NOW + 1000) and checked(1, NOW) and checked(0)
    assert not checked(2, NOW + 2000) and not checked(2, NOW + 999) and not checked(1, NOW + 1)
    assert not checked(end_offset=200) and checked(3, NOW + 5000, end_offset=200)
    assert not checked(begin_offset=101) and not checked(begin_ms=0, end_ms=5000)
    assert not checked(begin_ms=NOW + 86_400_001, end_ms=NOW) and checked(count=1)
    assert not checked(end_ms=NOW + 4999 - 1000) and checked(end_ms=NOW + 5999)


def test_clock_may_go_back_a_day_within_a_file(tmp_path: Path) -> None:
    for back_ms, good in ((86_400_000, True), (86_400_001, False)):
        made = index(tmp_path / str(back_ms))
        made.put("T", ["k"], PhysicalOffset(100), NOW)
        made.put("T", ["k"], PhysicalOffset(200), NOW - back_ms)
        made.close()
        again = index(tmp_path / str(back_ms))
        assert (again.load() == []) is good, back_ms
        again.close()


@pytest.mark.spec("IX-02")
def test_full_caches_change_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_index, "_PREFIXES_MAX", 3)
    made = MessageIndex(tmp_path, 100, 4000, Disk(), lambda: NOW)
    records, keys = [], []
    for n in range(200):
        topic, key = f"T{n % 7}", f"7F0000010{n % 5:07X}{n % 11:016X}{n % 16:04X}".upper()
        keys.append((topic, key, n * 10))
        records.append((topic, f"UNIQ_KEY\x01{key}\x02KEYS\x01w{n}".encode(), PhysicalOffset(n * 10), NOW + n))
    made.put_many(records)
    assert len(made._prefixes) <= 3
    for topic, key, offset in keys:
        assert offset in made.query(topic, key, 64, 0, FOREVER), key
    assert [made.query(f"T{n % 7}", f"w{n}", 64, 0, FOREVER) for n in range(200)] == [[n * 10] for n in range(200)]
    made.close()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreError)]
)
def test_failed_put_names_offset_and_cause(tmp_path: Path, number: int, kind: type[StoreError]) -> None:
    class Broken(Disk):
        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            if at > 0:
                raise OSError(number, "broken")
            super().write(fd, at, data)

    made = index(tmp_path, Broken(), allocate=False)
    with pytest.raises(kind, match="cannot index offset 700: broken") as caught:
        made.put("T", ["k"], PhysicalOffset(700), NOW)
    assert type(caught.value) is kind
    made.close()


def test_file_whose_header_cannot_be_written_is_removed(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.failing = {"map", "write"}
    made = index(tmp_path, disk)
    with pytest.raises(StoreError, match="cannot map"):
        made.put("T", ["k"], PhysicalOffset(0), NOW)
    assert made.paths == [] and len(disk.unlinked) == 1 and list(tmp_path.iterdir()) == []
    disk.failing = set()
    made.put("T", ["k"], PhysicalOffset(0), NOW)
    assert made.query("T", "k", 64, 0, FOREVER) == [0]
    made.close()


@pytest.mark.spec("DUR-04")
@pytest.mark.parametrize("allocate", [True, False])
def test_only_a_file_with_all_its_blocks_is_written_through_its_mapping(tmp_path: Path, allocate: bool) -> None:
    class Counting(Disk):
        writes = 0

        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            self.writes += 1
            super().write(fd, at, data)

    disk = Counting()
    made = MessageIndex(tmp_path, 10_000, 10_000, disk, lambda: NOW, allocate=allocate)
    for _ in range(2):  # a new file, then one that was opened again
        disk.writes = 0
        made.put("T", ["k"], PhysicalOffset(made.dispatch_from + 100), NOW)
        assert (disk.writes == 0) is allocate
        made.close()
        made = MessageIndex(tmp_path, 10_000, 10_000, disk, lambda: NOW, allocate=not allocate)
        assert made.load() == []
    made.close()


def test_rebuild_advances_by_a_record_at_least_in_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    for number in range(5):
        store.put(message(properties=b"KEYS\x01k%d" % number))
    assert store.index is not None and store.index_queue is not None
    store.index.clear()
    monkeypatch.setattr(index_queue, "SLICE_BYTES", 1)
    monkeypatch.setattr(message_index, "_ITEMS_MAX", 1)
    monkeypatch.setattr(index_queue, "STEP_SECONDS", 0.0)  # each step ends after its first record
    store.index_queue.rebuild(PhysicalOffset(0))
    for left in (5, 4, 3, 2, 1):
        assert store.index_queue.lagging, left
        reading = store.index_queue._reading
        assert reading is not None
        store.index_queue._catch_up(reading)
        assert len(store.query("T", f"k{5 - left}", 9, 0, FOREVER).records) == 1
    reading = store.index_queue._reading
    assert reading is not None
    store.index_queue._catch_up(reading)
    assert not store.index_queue.lagging
    store.close_files()


@pytest.mark.spec("DUR-13")
def test_index_of_one_file_without_entries_is_filled_from_the_beginning(tmp_path: Path) -> None:
    """A broker that was killed between creating the file and writing it would find none of the messages so far by key."""
    made = index(tmp_path)
    made.put("T", ["k"], PhysicalOffset(100), NOW)
    made.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(bytes(path.stat().st_size))
    again = index(tmp_path)
    assert again.load() == []
    assert again.truncate(PhysicalOffset(200)) == 0
    assert list(tmp_path.iterdir()) == []
    again.close()
