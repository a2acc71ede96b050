"""Index files: the bytes and answers of Apache RocketMQ, and an identical index after any crash."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import mmap
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import DiskFull, InvariantBroken, StoreError
from saturnmq.protocol.message import decode_properties, decode_record, encode_properties, java_hash
from saturnmq.protocol.properties import keys_of
from saturnmq.store.files.disk import Disk
from saturnmq.store.index.index_file import ENTRY, HEADER, STEPS_PER_TURN, IndexFile, IndexShape, key_hash, topic_hash
from saturnmq.store.index.message_index import MessageIndex, Synced, is_indexed

SLOTS, ENTRIES = 7, 60  # 59 entries in 1268 bytes: three sectors
FOREVER = 2**62
NOW = 1_700_000_000_123
SECTOR = 512
NAMES = map(str, itertools.count())  # unique folder names: hypothesis reuses tmp_path for all examples


def index(
    folder: Path, disk: Disk | None = None, slots: int = SLOTS, entries: int = ENTRIES, **more: Any
) -> MessageIndex:
    return MessageIndex(folder, slots, entries, disk or Disk(), more.pop("clock_ms", lambda: NOW), **more)


def flush(made: MessageIndex, dispatched: int | None = None) -> None:
    begun = made.begin_flush(dispatched)
    if begun is not None:
        begun.run()
        made.end_flush(begun)


def header(path: Path) -> tuple[int, ...]:
    return HEADER.unpack_from(path.read_bytes())


def entries(path: Path, slots: int = SLOTS) -> list[tuple[int, int, int, int]]:
    data = path.read_bytes()
    at = IndexShape(slots, 2).entries_at
    return [ENTRY.unpack_from(data, at + 20 * number) for number in range(1, header(path)[5])]  # type: ignore[misc]


def reopened(made: MessageIndex, **more: Any) -> MessageIndex:
    made.close()
    again = index(made.folder, **more)
    assert again.load() == []
    return again


# ---- keys and hashes


@pytest.mark.spec("IX-02")
def test_keys_are_unique_key_and_words_of_keys_property() -> None:
    def keys(**properties: str) -> list[str]:
        return keys_of(encode_properties(properties))

    assert keys(KEYS=" k1  k2 ", TAGS="t", UNIQ_KEY="U1") == ["U1", "k1", "k2"]
    assert keys(MYKEYS="no", MYUNIQ_KEY="no") == []
    assert keys(MYKEYS="no", KEYS="é k") == ["é", "k"]
    assert keys(KEYS="k k") == ["k", "k"]
    assert keys_of(b"KEYS\x01\xff\x02") == ["\ufffd"]
    assert keys_of(b"") == []


@pytest.mark.spec("IX-02")
@given(
    st.lists(st.tuples(st.sampled_from(["KEYS", "UNIQ_KEY", "XKEYS", "A"]), st.text("ab K", max_size=6)), max_size=6)
)
def test_keys_of_matches_decoded_properties(pairs: list[tuple[str, str]]) -> None:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    decoded = decode_properties(raw)
    unique = [decoded["UNIQ_KEY"]] if "UNIQ_KEY" in decoded else []
    assert keys_of(raw) == unique + [word for word in decoded.get("KEYS", "").split(" ") if word]


@pytest.mark.spec("IX-03")
@given(st.text(max_size=8), st.one_of(st.text(max_size=90), st.text("0123456789ABCDEF", min_size=28, max_size=70)))
def test_key_hash_is_absolute_java_hash(topic: str, key: str) -> None:
    value = java_hash(f"{topic}#{key}")
    assert key_hash(topic_hash(topic), key) == (0 if value == -(2**31) else abs(value))


@pytest.mark.spec("IX-03")
def test_key_hash_of_known_keys(tmp_path: Path) -> None:
    assert key_hash(topic_hash("TopicTest"), "KEY0") == 1656969517
    assert key_hash(java_hash("polygenelubrican") & 0xFFFFFFFF, "ts") == 0  # Java: MIN_VALUE, whose abs is negative
    made = index(tmp_path, slots=5_000_000, entries=20_000_000, allocate=False)
    made.put("TopicTest", ["KEY0"], 300, NOW)
    with made.paths[0].open("rb") as file:
        file.seek(7_878_108)  # 40 + 4 * slot 1969517
        assert file.read(4) == b"\0\0\0\1"
    made.close()


# ---- layout


@pytest.mark.spec("IX-01")
def test_file_has_rocketmq_length_and_local_time_name(tmp_path: Path) -> None:
    made = index(tmp_path / "a" / "index", slots=5_000_000, entries=20_000_000, allocate=False)
    made.put("T", ["k"], 0, NOW)
    (path,) = made.paths
    assert path.stat().st_size == made.total_bytes == 420_000_040
    assert path.stat().st_blocks * 512 < 1_000_000
    assert path.name == datetime.fromtimestamp(NOW // 1000).strftime("%Y%m%d%H%M%S") + "123"
    made.close()


@pytest.mark.spec("IX-01", "DUR-18")
@pytest.mark.parametrize("step_ms", [0, 1, -3_600_000])
def test_file_names_ascend_if_clock_stalls_or_goes_back(tmp_path: Path, step_ms: int) -> None:
    now = [NOW - NOW % 60_000 - 2]  # the third name falls into the next minute

    def clock() -> int:
        now[0] += step_ms
        return now[0]

    made = index(tmp_path, entries=2, clock_ms=clock)
    for offset in range(6):
        made.put("T", ["k"], offset, NOW)
    names = [path.name for path in made.paths]
    assert len(set(names)) == 6 and names == sorted(names)
    made = reopened(made, entries=2, clock_ms=lambda: 0)
    assert [path.name for path in made.paths] == names
    made.put("T", ["k"], 6, NOW)
    assert made.paths[-1].name > names[-1]
    assert made.query("T", "k", 64, 0, FOREVER) == list(range(7))
    made.close()


@pytest.mark.spec("IX-04", "IX-05", "UPG-04")
@pytest.mark.parametrize("allocate", [True, False])
def test_put_writes_entry_slot_and_header(tmp_path: Path, allocate: bool) -> None:
    made = index(tmp_path, slots=1, entries=4, allocate=allocate)
    one, two = (key_hash(topic_hash("T"), key) for key in ("k1", "k2"))
    made.put("T", ["k1"], 100, 5_000_999)
    (path,) = made.paths
    assert header(path) == (5_000_999, 5_000_999, 100, 100, 1, 2)
    made.put("T", ["k2", "", "k1"], 300, 5_002_998)
    assert header(path) == (5_000_999, 5_002_998, 100, 300, 1, 4)
    assert path.read_bytes() == (
        struct.pack(">qqqqiii", 5_000_999, 5_002_998, 100, 300, 1, 4, 3)
        + bytes(20)
        + ENTRY.pack(one, 100, 0, 0)
        + ENTRY.pack(two, 300, 1, 1)
        + ENTRY.pack(one, 300, 1, 2)
    )
    made.put("T", ["k1", "k2"], 400, 5_003_998)  # entry 0 is unused, so a file of 4 holds 3
    assert len(made.paths) == 2
    assert entries(made.paths[1], 1) == [(one, 400, 1, 0), (two, 400, 0, 1)]  # seconds since the previous file's end
    assert header(made.paths[1]) == (5_003_998, 5_003_998, 400, 400, 1, 3)
    made.close()


@pytest.mark.spec("IX-04", "DUR-18")
def test_seconds_are_clamped(tmp_path: Path) -> None:
    made = index(tmp_path)
    for offset, ms in enumerate([10_000, 9_000, 10_000 + 2**31 * 1000, FOREVER]):
        made.put("T", ["k"], offset, ms)
    assert [entry[2] for entry in entries(made.paths[0])] == [0, 0, 2**31 - 1, 2**31 - 1]
    made.close()
    zero = index(tmp_path / "zero")
    zero.put("T", ["k"], 0, 0)
    zero.put("T", ["k"], 1, 99_000)
    assert [entry[2] for entry in entries(zero.paths[0])] == [0, 0]  # no begin time
    zero.close()


@pytest.mark.spec("DUR-04")
def test_sparse_file_is_written_by_calls_only(tmp_path: Path) -> None:
    """A write through the mapping of a hole ends the process when the disk is full."""
    written: dict[int, bytes] = {}

    class Noting(Disk):
        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            written[at] = bytes(data)
            super().write(fd, at, data)

    made = index(tmp_path, Noting(), allocate=False)
    made.put_many([("T", b"KEYS\x01k l", offset, NOW + 1500 * offset) for offset in range(1, 6)])
    (path,) = made.paths
    rebuilt = bytearray(path.stat().st_size)
    for at, data in written.items():
        rebuilt[at : at + len(data)] = data
    assert bytes(rebuilt) == path.read_bytes() and header(path)[5] == 11
    made.close()


@pytest.mark.spec("IX-04")
def test_time_of_an_entry_is_whole_seconds_behind_the_first(tmp_path: Path) -> None:
    made = index(tmp_path, entries=4)
    for offset, ms in enumerate((0, 1999, 2500, 9000, 10_999)):
        made.put("T", ["k"], offset, NOW + ms)
    times = []
    for path in made.paths:
        file = IndexFile.load(path, IndexShape(SLOTS, 4), Disk())
        times.append([file.time_of(entry) - NOW for entry in range(1, file.count)])
        file.close()
    assert times == [[0, 1000, 2000], [9000, 10_000]]
    made.clear()
    assert made.synced == Synced(0, 0, 0, 0) and made.paths == [] and made.total_bytes == 0
    assert made.last_update == (0, 0) and not list(tmp_path.iterdir())
    made.close()


@pytest.mark.spec("IX-04", "IX-05")
@pytest.mark.parametrize("slot", [-1, -(2**31), 3, 2**31 - 1])
def test_invalid_slot_counts_as_empty(tmp_path: Path, slot: int) -> None:
    made = index(tmp_path, slots=1)
    made.put("T", ["k"], 1, NOW)
    made.put("T", ["k"], 2, NOW)
    made.close()
    with made.folder.joinpath(next(made.folder.iterdir()).name).open("r+b") as file:
        file.seek(40)
        file.write(struct.pack(">i", slot))
    made = index(tmp_path, slots=1)
    assert made.load() == []
    assert made.query("T", "k", 64, 0, FOREVER) == []
    made.put("T", ["k"], 3, NOW)
    assert entries(made.paths[0], 1)[-1][3] == 0
    assert header(made.paths[0])[4] == 2
    made.close()


# ---- files of Apache RocketMQ


def records(folder: Path) -> Iterator[tuple[str, list[str], int, int, int]]:
    """Topic, keys, offset, time and sys flag of every record of a commit log of Apache RocketMQ."""
    for facts in sorted(folder.joinpath("commitlog").glob("*.jsonl")):
        data = facts.with_suffix("").read_bytes()
        for line in facts.read_text().splitlines():
            at = json.loads(line).get("at")
            if at is None or "topic" not in line:
                continue
            message = decode_record(data, at - int(facts.stem) if at >= int(facts.stem) else at)
            yield (
                message.topic,
                keys_of(message.properties_raw),
                message.physical_offset,
                message.store_timestamp_ms,
                message.sys_flag,
            )


GOLDEN = ["broker", "broker-killed", "broker-rollover-ext"]


@pytest.mark.spec("IX-01", "IX-02", "IX-03", "IX-04", "IX-05", "IX-08")
@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("allocate", [True, False])
def test_same_records_produce_rocketmq_bytes(vectors: Path, tmp_path: Path, name: str, allocate: bool) -> None:
    made = index(tmp_path, slots=100, entries=400, allocate=allocate)
    for topic, keys, offset, ms, sys_flag in records(vectors / "store" / name):
        assert is_indexed(sys_flag)  # half messages are; Apache's broker writes no record for a rollback
        made.put(topic, keys, offset, ms)
    (golden,) = (path for path in (vectors / "store" / name / "index").iterdir() if path.suffix == "")
    assert made.paths[0].read_bytes() == golden.read_bytes()
    made.close()


@pytest.mark.spec("IX-06", "IX-07", "IX-03")
@pytest.mark.parametrize("name", GOLDEN)
def test_rocketmq_files_are_read_and_appended_to(vectors: Path, tmp_path: Path, name: str) -> None:
    source = vectors / "store" / name
    (golden,) = (path for path in (source / "index").iterdir() if path.suffix == "")
    shutil.copyfile(golden, tmp_path / golden.name)
    made = index(tmp_path, slots=100, entries=400)
    assert made.load() == []
    expected: dict[tuple[str, str], list[int]] = {}
    last = (0, 0)
    for topic, keys, offset, ms, sys_flag in records(source):
        if is_indexed(sys_flag) and keys:
            last = (ms, offset)
            for key in set(keys):
                expected.setdefault((topic, key), []).append(offset)
    assert len(expected) > 30
    for (topic, key), offsets in expected.items():
        assert made.query(topic, key, 64, 0, FOREVER) == offsets
        assert made.query(topic, key, 1, 0, FOREVER) == offsets[-1:]
    assert made.last_update == last
    made.put("New", ["key"], last[1] + 500, last[0] + 1)
    assert made.query("New", "key", 64, 0, FOREVER) == [last[1] + 500]
    made.close()


# ---- query


@pytest.mark.spec("IX-06", "IX-07")
def test_query_respects_time_range(tmp_path: Path) -> None:
    made = index(tmp_path, entries=4)  # three entries per file
    for number in range(9):
        made.put("T", ["k"], number, 10_000_000 + number * 10_000)

    def between(first: int, last: int) -> list[int]:
        return made.query("T", "k", 64, 10_000_000 + first * 10_000, 10_000_000 + last * 10_000)

    assert len(made.paths) == 3
    for first in range(9):
        for last in range(first, 9):
            assert between(first, last) == list(range(first, last + 1))
    assert between(-5, -1) == between(9, 20) == []
    made.put("T", ["late"], 99, 10_090_000)  # begins a file
    made.put("T", ["late"], 100, 10_091_999)  # 1 s behind its begin, as whole seconds are stored
    for begin, end, found in ((10_090_001, 10_091_000, [100]), (10_091_001, FOREVER, []), (0, 10_090_999, [99])):
        assert made.query("T", "late", 64, begin, end) == found, (begin, end)
    assert between(-5, 20) == list(range(9))
    assert made.query("T", "other", 64, 0, FOREVER) == made.query("U", "k", 64, 0, FOREVER) == []
    made.close()


@pytest.mark.spec("IX-07")
def test_query_searches_only_files_that_overlap_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = index(tmp_path, entries=3)  # two entries per file
    for number in range(6):
        made.put("T", ["k"], number, 10_000_000 + number * 10_000)
    searched: list[int] = []
    search = IndexFile.search

    def noted(file: IndexFile, *more: Any) -> Any:
        searched.append(file.begin_ms)
        return search(file, *more)

    monkeypatch.setattr(IndexFile, "search", noted)
    first, second, third = (10_000_000 + number * 20_000 for number in range(3))
    for begin, end, files in (
        (second, second, [second]),
        (first + 10_000, second, [second, first]),
        (first + 10_001, second - 1, []),
        (0, first - 1, []),
        (0, first, [first]),
        (third + 10_000, FOREVER, [third]),
        (third + 10_001, FOREVER, []),
    ):
        searched.clear()
        made.query("T", "k", 64, begin, end)
        assert searched == files, (begin, end)
    made.close()


@pytest.mark.spec("IX-06")
@pytest.mark.parametrize("size", [2, 60], ids=["one entry a file", "one file"])
def test_query_stops_at_first_entry_or_file_before_begin(tmp_path: Path, size: int) -> None:
    made = index(tmp_path, entries=size)
    for offset, ms in enumerate((NOW, NOW + 50_000, NOW, NOW + 100_000)):  # as if the clock had gone back
        made.put("T", ["k"], offset, ms)
    assert made.query("T", "k", 64, NOW + 1, FOREVER) == [3]
    assert made.query("T", "k", 64, 0, FOREVER) == [0, 1, 2, 3]
    made.close()


@pytest.mark.spec("IX-06")
def test_query_returns_newest_64_at_most(tmp_path: Path) -> None:
    made = index(tmp_path)
    for offset in range(150):
        made.put("T", ["k", "k"], offset, NOW)
    assert made.query("T", "k", 3, 0, FOREVER) == [147, 148, 149]
    assert made.query("T", "k", 10_000, 0, FOREVER) == list(range(86, 150))
    assert made.query("T", "k", 0, 0, FOREVER) == []
    made.close()


@pytest.mark.spec("IX-06")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=4), max_size=60), st.integers(1, 5), st.integers(2, 40)
)
def test_query_matches_linear_search(tmp_path: Path, log: list[list[str]], slots: int, size: int) -> None:
    made = index(tmp_path / next(NAMES), slots=slots, entries=size, allocate=False)
    for offset, keys in enumerate(log):
        made.put("T", keys, offset, NOW + offset)
    for key in "abcdefghij":
        assert made.query("T", key, 64, 0, FOREVER) == [offset for offset, keys in enumerate(log) if key in keys]
    made.clear()
    made.close()


@pytest.mark.spec("IX-06", "FUZ-07")
@pytest.mark.parametrize(
    "previous", [1, 2, 3, 4, 2**31 - 1, -1, -(2**31)], ids=["older", "self", "newer", "next", "far", "-1", "min"]
)
def test_search_ends_on_invalid_chain(tmp_path: Path, previous: int) -> None:
    made = index(tmp_path, slots=1)
    for offset in range(3):
        made.put("T", ["k"], offset, NOW)
    path = made.paths[0]
    made.close()
    with path.open("r+b") as file:
        file.seek(44 + 20 * 2 + 16)
        file.write(struct.pack(">i", previous))
    made = index(tmp_path, slots=1)
    assert made.load() == []
    assert made.query("T", "k", 64, 0, FOREVER) == ([0, 1, 2] if previous == 1 else [1, 2])
    made.close()


@pytest.mark.spec("IX-06", "FUZ-07")
def test_search_ends_at_negative_seconds_and_skips_negative_offsets(tmp_path: Path) -> None:
    made = index(tmp_path, slots=1)
    for offset in range(5):
        made.put("T", ["k"], offset, NOW)
    path = made.paths[0]
    made.close()
    with path.open("r+b") as file:
        file.seek(44 + 20 * 2 + 12)
        file.write(struct.pack(">i", -1))
        file.seek(44 + 20 * 4 + 4)
        file.write(struct.pack(">q", -7))
    made = index(tmp_path, slots=1)
    made.load()
    assert made.query("T", "k", 64, 0, FOREVER) == [2, 4]
    made.close()


@pytest.mark.spec("IX-06")
def test_long_search_yields_and_tolerates_concurrent_changes(tmp_path: Path) -> None:
    def long_one() -> MessageIndex:
        made = index(tmp_path / next(NAMES), slots=1, entries=3 * STEPS_PER_TURN)
        made.put("T", ["wanted"], 1, NOW)
        made.put("T", ["other"] * (2 * STEPS_PER_TURN + 5), 2, NOW)
        return made

    def run(made: MessageIndex, meanwhile: Callable[[], object]) -> list[int]:
        steps = made.search("T", "wanted", 64, 0, FOREVER)
        turns = 0
        while True:
            try:
                next(steps)
            except StopIteration as done:
                assert turns >= 1
                return list(done.value)
            turns += 1
            meanwhile()

    made = long_one()
    assert run(made, lambda: made.put("T", ["wanted"], 3, NOW)) == [1]
    flush(made)
    assert run(made, made.trim) == [1, 3]
    assert set(run(made, lambda: made.truncate(2))) <= {1, 3}
    assert made.query("T", "wanted", 64, 0, FOREVER) == [1]
    made.clear()
    made = long_one()
    assert run(made, made.clear) == []
    made.close()


# ---- duplicates, damage, full disks


@pytest.mark.spec("IX-08")
def test_records_up_to_end_offset_are_ignored_as_duplicates(tmp_path: Path) -> None:
    made = index(tmp_path)
    made.put("T", ["a", "b"], 10, NOW)
    made.put("T", ["a"], 20, NOW)
    before = made.paths[0].read_bytes()
    for offset in (0, 10, 19):
        made.put("T", ["a", "b", "new"], offset, NOW + 5)
    made.put("T", ["a"], 20, NOW)
    assert made.paths[0].read_bytes() == before
    made.put("T", ["a"], 21, NOW)
    assert made.query("T", "a", 64, 0, FOREVER) == [10, 20, 21]
    assert is_indexed(0) and is_indexed(SysFlag.PREPARED) and is_indexed(SysFlag.COMMIT)
    assert not is_indexed(SysFlag.ROLLBACK)
    made.close()


@pytest.mark.spec("IX-08", "IX-02")
@pytest.mark.parametrize("have", range(1, 9))
@pytest.mark.parametrize("size", [3, 5, 60])
def test_partly_indexed_record_gets_missing_keys(tmp_path: Path, have: int, size: int) -> None:
    keys = [f"k{number % 5}" for number in range(8)]
    made, whole = (index(tmp_path / name, entries=size) for name in ("part", "whole"))
    for target in (made, whole):
        target.put("T", ["first"], 0, NOW)
    made.put("T", keys[:have], 50, NOW)
    made.put("T", keys, 50, NOW)
    made.put("T", keys, 50, NOW)
    whole.put("T", keys, 50, NOW)
    assert [path.read_bytes() for path in made.paths] == [path.read_bytes() for path in whole.paths]
    made.close()
    whole.close()


class FailingDisk(Disk):
    """Fails every write or allocation after the first `good` ones with a full disk, until `good` is raised again."""

    def __init__(self, good: int = 10**9) -> None:
        self.good = good

    def _count(self) -> None:
        self.good -= 1
        if self.good < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if self.good <= 0:
            raise DiskFull(f"no space for {path}")
        return super().create(path, size_bytes, allocate=allocate)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self._count()
        super().write(fd, at, data)


@pytest.mark.spec("IX-09", "DUR-15")
def test_failed_file_creation_can_be_retried(tmp_path: Path) -> None:
    disk = FailingDisk()
    made = index(tmp_path, disk, entries=3)
    made.put("T", ["a", "b"], 10, NOW)
    disk.good = 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            made.put("T", ["a"], 20, NOW)
    assert len(made.paths) == 1 and made.query("T", "a", 64, 0, FOREVER) == [10]
    disk.good = 10**9
    made.put("T", ["a"], 20, NOW)
    assert len(made.paths) == 2 and made.query("T", "a", 64, 0, FOREVER) == [10, 20]
    made.close()


@pytest.mark.spec("DUR-04", "DUR-15", "IX-09")
@pytest.mark.parametrize("good", range(22))
def test_sparse_file_on_full_disk_loses_no_key(tmp_path: Path, good: int) -> None:
    keys = ["a", "b", "a", "c", "d"]
    whole = index(tmp_path / "whole", entries=4, slots=2)
    disk = FailingDisk()
    made = index(tmp_path / "made", disk, entries=4, slots=2, allocate=False)
    for target in (made, whole):
        target.put("T", ["a"], 1, NOW)
    disk.good = good
    try:
        made.put("T", keys, 2, NOW)
    except DiskFull:
        disk.good = 10**9
        made.put("T", keys, 2, NOW)
    disk.good = 10**9
    made.put("T", ["a"], 3, NOW)
    whole.put("T", keys, 2, NOW)
    whole.put("T", ["a"], 3, NOW)
    assert [path.read_bytes() for path in made.paths] == [path.read_bytes() for path in whole.paths]
    made.close()
    whole.close()


@pytest.mark.spec("FUZ-07", "DUR-13")
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(struct.pack(">qqqqii", 5, 5, 9, 8, 1, 2) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(struct.pack(">qqqqii", 5, 5, 0, 8, 1, 999) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(struct.pack(">qqqqii", 5, 5, 0, 1, 1, 3) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(struct.pack(">qqqqii", NOW, NOW, 2, 9**9, 1, 3) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(struct.pack(">qqqqii", NOW, NOW, 1, 3, 1, 3) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(struct.pack(">qqqqii", NOW - 1000, NOW, 2, 3, 1, 3) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(bytes(40) + path.read_bytes()[40:]),
        lambda path: path.write_bytes(min(path.parent.iterdir()).read_bytes()),
    ],
    ids=["cut", "grown", "empty", "ends-before-begin", "overfull", "overlaps", "end", "begin", "time", "zeros", "copy"],
)
def test_damaged_file_is_dropped_with_all_later_files(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    made = index(tmp_path, entries=3)
    for offset in range(8):
        made.put("T", ["k"], offset, NOW)
    paths = made.paths
    made.close()
    damage(paths[1])
    (tmp_path / "notes.txt").write_text("not an index file")
    (tmp_path / "20991231235959999").mkdir()
    made = index(tmp_path, entries=3)
    damaged = made.load()
    assert [path for path, _ in damaged] == paths[1:]
    assert all(reason and not path.exists() for path, reason in damaged)
    assert made.paths == paths[:1] and made.dispatch_from == 1
    for offset in range(made.dispatch_from, 8):
        made.put("T", ["k"], offset, NOW)
    assert made.query("T", "k", 64, 0, FOREVER) == list(range(8))
    made.close()


@pytest.mark.spec("FUZ-07", "IX-01")
@pytest.mark.parametrize("name", ["20991331000000000", "99991231235959999", "00000000000000000", "18991231235959999"])
def test_file_with_invalid_time_name_is_dropped(tmp_path: Path, name: str) -> None:
    made = index(tmp_path)
    made.put("T", ["k"], 0, NOW)
    made.paths[0].rename(tmp_path / name)
    made.close()
    made = index(tmp_path)
    assert [path.name for path, _ in made.load()] == [name]
    made.put("T", ["k"], 0, NOW)
    assert [path.name[:8] for path in made.paths] == ["20231114"]
    made.close()


@pytest.mark.spec("FUZ-07")
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.tuples(st.integers(0, 1267), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4), st.booleans()
)
def test_arbitrary_corruption_does_not_break_the_index(
    tmp_path: Path, changes: list[tuple[int, bytes]], unclean: bool
) -> None:
    folder = tmp_path / next(NAMES)
    made = index(folder)
    for offset in range(100):
        made.put("T", [f"k{offset % 9}"], offset, NOW + offset)
    flush(made)
    noted, paths = made.synced, made.paths
    made.close()
    for path in paths:
        data = bytearray(path.read_bytes())
        for at, change in changes:
            data[at : at + len(change)] = change[: len(data) - at]
        path.write_bytes(data)
    made = index(folder)
    with contextlib.closing(made):
        made.load(unclean=unclean)
        start = made.repair(noted) if unclean else made.dispatch_from
        for number in range(9):
            assert len(made.query("T", f"k{number}", 64, 0, FOREVER)) <= 64
        start = min(start, made.truncate(90))
        assert 0 <= start <= 90
        for offset in range(start, 120):
            made.put("T", [f"k{offset % 9}", f"new{offset}"], offset, NOW + offset)
        for offset in range(90, 120):
            assert made.query("T", f"new{offset}", 64, 0, FOREVER) == [offset]
        flush(made)
        made.delete_before(10**6)
        assert len(made.paths) == 1


# ---- flush, memory, deletion


class LoggingDisk(Disk):
    """Records which files are synced and which descriptors are closed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.log.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.log.append("folder")

    def close(self, fd: int) -> None:
        self.log.append(f"close {Path(os.readlink(f'/proc/self/fd/{fd}').removesuffix(' (deleted)')).name}")
        super().close(fd)


@pytest.mark.spec("IX-10", "DUR-05")
def test_full_file_is_synced_through_writing_descriptor(tmp_path: Path) -> None:
    disk = LoggingDisk()
    made = index(tmp_path / "index", disk, entries=3)
    made.put("T", ["a"], 10, NOW + 1)
    disk.log.clear()  # the folder was created
    flush(made)
    assert made.sealed_ms == 0 and made.synced == (int(made.paths[0].name), 1, NOW + 1, 10)
    made.put("T", ["b"], 20, NOW + 2)  # fills the file
    made.put("T", ["c"], 30, NOW + 2)  # starts the next file
    disk.log[2:] = []
    one, two = (path.name for path in made.paths)
    assert made.sealed_ms == 0
    begun = made.begin_flush(35)
    assert begun is not None
    made.trim()
    made.put("T", ["d"], 40, NOW + 4)
    assert made.synced is not None and (made.synced.offset, made.synced.entries) == (10, 1)
    assert disk.log == [f"sync {one}", "folder"]
    begun.run()
    made.end_flush(begun)
    assert disk.log[2:] == [f"sync {one}", f"sync {two}", "folder", f"close {one}"]
    assert made.sealed_ms == NOW + 2
    assert made.synced == Synced(int(two), 1, NOW + 2, 35)
    flush(made, 50)
    assert made.synced == Synced(int(two), 2, NOW + 4, 50)
    assert made.begin_flush(99) is None and made.synced.offset == 99
    assert made.query("T", "a", 64, 0, FOREVER) == [10]
    made.close()


@pytest.mark.spec("DUR-06")
def test_no_flush_after_a_failed_flush(tmp_path: Path) -> None:
    class Broken(Disk):
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    made = index(tmp_path, Broken())
    made.put("T", ["a"], 10, NOW)
    begun = made.begin_flush()
    assert begun is not None
    with pytest.raises(OSError, match="Input/output"):
        begun.run()
    assert made.synced is None
    with pytest.raises(InvariantBroken):
        made.begin_flush()
    made.close()


@pytest.mark.spec("DEL-09")
def test_delete_before_keeps_the_last_file(tmp_path: Path) -> None:
    made = index(tmp_path, entries=3)
    for offset in range(10):
        made.put("T", ["k"], offset, NOW)
    paths = made.paths
    begun = made.begin_flush()  # deletion during a sync
    assert begun is not None
    assert made.delete_before(1) == []
    assert made.delete_before(2) == paths[:1]
    assert made.delete_before(7) == paths[1:3] and not any(path.exists() for path in paths[:3])
    begun.run()
    made.end_flush(begun)
    assert made.query("T", "k", 64, 0, FOREVER) == [6, 7, 8, 9]
    assert made.delete_before(10**9) == paths[3:4]
    assert made.paths == paths[4:] and paths[4].exists()
    made.close()
    assert _descriptors(tmp_path) == []


def _descriptors(folder: Path) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(fd)
    return found


@pytest.mark.spec("IX-10")
def test_idle_files_are_closed_and_reopened_on_use(tmp_path: Path) -> None:
    made = index(tmp_path, entries=3)
    for offset in range(8):
        made.put("T", ["k"], offset, NOW)
    assert len(_descriptors(tmp_path)) >= 4  # unsynced files stay open
    made.trim()
    assert len(_descriptors(tmp_path)) >= 4
    flush(made)
    one = len(_descriptors(tmp_path))
    assert one <= 2  # the descriptor and the mapping's duplicate of it
    assert made.query("T", "k", 64, 0, FOREVER) == list(range(8))
    assert len(_descriptors(tmp_path)) > one
    made.trim()
    assert len(_descriptors(tmp_path)) == one
    made.put("T", ["k"], 8, NOW)
    assert made.query("T", "k", 64, 0, FOREVER) == list(range(9))
    made.close()
    assert _descriptors(tmp_path) == []


@pytest.mark.spec("FUZ-07")
def test_file_missing_or_cut_while_closed_raises_named_error(tmp_path: Path) -> None:
    made = index(tmp_path, entries=3)
    for offset in range(4):
        made.put("T", ["k"], offset, NOW)
    flush(made)
    os.truncate(made.paths[0], 10)
    with pytest.raises(StoreError, match=made.paths[0].name):
        made.query("T", "k", 64, 0, FOREVER)
    made.paths[0].unlink()
    with pytest.raises(StoreError, match=made.paths[0].name):
        made.query("T", "k", 64, 0, FOREVER)
    assert made.query("T", "k", 2, 0, FOREVER) == [2, 3]
    made.close()


# ---- crash and repair


class Died(BaseException):
    """The process or machine stopped at this operation."""


class RecordedMap(mmap.mmap):
    """A mapping that reports every write to its disk."""

    disk: CrashDisk
    path: Path

    def __setitem__(self, key: Any, value: Any) -> None:
        self.disk.step()
        self.disk.note(self.path, key.start or 0, bytes(value))
        super().__setitem__(key, value)


@dataclass
class OnDisk:
    """Durable state of a file: its bytes at the last sync, the writes since, whether its directory entry is synced."""

    synced: bytes
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    named: bool = False
    gone: bool = False


class CrashDisk(Disk):
    """Real files plus a record of what was synced; `crash` leaves each unsynced sector in any version that it ever had."""

    def __init__(self) -> None:
        self.files: dict[Path, OnDisk] = {}
        self.open_files: dict[int, Path] = {}
        self.steps_left = 10**9

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Died

    def note(self, path: Path, at: int, data: bytes) -> None:
        self.files[path].writes.append((at, data))

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        self.step()
        fd = super().create(path, size_bytes, allocate=allocate)
        self.files[path] = OnDisk(bytes(size_bytes))
        self.open_files[fd] = path
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self.open_files[fd] = path
        return fd

    def map(self, fd: int, size_bytes: int) -> mmap.mmap:
        made = RecordedMap(fd, size_bytes)
        made.disk, made.path = self, self.open_files[fd]
        return made

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self.step()
        self.note(self.open_files[fd], at, bytes(data))
        super().write(fd, at, data)

    def sync(self, fd: int) -> None:
        self.step()
        file = self.files[self.open_files[fd]]
        file.synced = os.pread(fd, len(file.synced), 0)
        file.writes.clear()

    def sync_folder(self, folder: Path) -> None:
        self.step()
        for path, file in list(self.files.items()):
            if path.parent == folder:
                file.named = True
                if file.gone:
                    del self.files[path]

    def unlink(self, path: Path) -> None:
        self.step()
        super().unlink(path)
        self.files[path].gone = True

    def crash(self, chance: random.Random) -> None:
        """Power loss; in a fifth of the cases only the process died, and no written byte is lost."""
        lossy = chance.random() < 0.8
        for path, file in list(self.files.items()):
            if (file.gone and not (lossy and chance.random() < 0.5)) or (
                lossy and not file.named and chance.random() < 0.3
            ):
                path.unlink(missing_ok=True)
                del self.files[path]
                continue
            if lossy or file.gone:
                path.write_bytes(_torn(file, chance))
            file.synced, file.writes = path.read_bytes(), []
            file.named, file.gone = True, False
        self.steps_left = 10**9


def _torn(file: OnDisk, chance: random.Random) -> bytes:
    data = bytearray(file.synced)
    worst = chance.random()
    touching: dict[int, list[tuple[int, bytes]]] = {}
    for at, written in file.writes:
        for sector in range(at // SECTOR, (at + len(written) - 1) // SECTOR + 1):
            touching.setdefault(sector, []).append((at, written))
    for sector, writes in touching.items():
        keep = len(writes)
        if chance.random() < worst:
            keep = chance.choice([0, keep, chance.randint(0, keep)])
        low, high = sector * SECTOR, (sector + 1) * SECTOR
        for at, written in writes[:keep]:
            begin, end = max(at, low), min(at + len(written), high)
            data[begin:end] = written[begin - at : end - at]
    return bytes(data)


@dataclass
class Record:
    offset: int
    keys: list[str]
    ms: int


class World:
    """A log, its index, and the note that the store keeps about what is synced; any operation may crash."""

    def __init__(self, folder: Path, chance: random.Random, size: int, allocate: bool) -> None:
        self.folder, self.chance, self.size, self.allocate = folder, chance, size, allocate
        self.disk = CrashDisk()
        self.log: list[Record] = []
        self.end = chance.choice([0, 7, 5000])
        self.ms = NOW
        self.note: Synced | None = Synced(0, 0, 0, 0)
        self.index = self.made(folder, self.disk)

    def made(self, folder: Path, disk: Disk) -> MessageIndex:
        return index(folder, disk, entries=self.size, allocate=self.allocate, clock_ms=lambda: self.ms)

    def append(self) -> None:
        count = self.chance.choice([0, 0, 1, 1, 2, 3, 9])
        record = Record(self.end, [f"k{self.chance.randrange(12)}" for _ in range(count)], self.ms)
        self.log.append(record)
        self.end += self.chance.randint(1, 900)
        self.ms += self.chance.choice([0, 1, 700, 60_000])
        self.index.put("T", record.keys, record.offset, record.ms)

    def flush(self) -> None:
        dispatched = self.end if self.chance.random() < 0.7 else None
        begun = self.index.begin_flush(dispatched)
        if begun is not None:
            for _ in range(self.chance.randint(0, 3)):
                self.append()
            begun.run()
            for _ in range(self.chance.randint(0, 3)):
                self.append()
            self.index.end_flush(begun)
        if self.chance.random() < 0.8:
            self.note = self.index.synced

    def live(self) -> None:
        """Run to the end, or crash at a random operation."""
        with contextlib.suppress(Died):
            self.live_on(self.chance.choice([10**9, self.chance.randint(1, 500)]))

    def live_on(self, steps: int = 10**9) -> None:
        self.disk.steps_left = steps
        for _ in range(self.chance.randint(1, 60)):
            self.append()
            if self.chance.random() < 0.06:
                self.flush()
            if self.chance.random() < 0.05:
                self.index.trim()

    def crash_keeping_the_log(self) -> None:
        self.disk.steps_left = 10**9
        self.index.close()
        self.disk.crash(self.chance)

    def crash(self) -> None:
        self.crash_keeping_the_log()
        if self.chance.random() < 0.4 and self.log:  # the log is truncated
            del self.log[self.chance.randrange(len(self.log)) :]
            self.end = self.log[-1].offset + 1 if self.log else 0

    def recover(self) -> None:
        self.index = self.made(self.folder, self.disk)
        self.index.load(unclean=True)
        start = min(self.index.repair(self.note), self.index.truncate(self.end))
        self.note = self.index.synced
        for record in self.log:
            if record.offset >= start:
                self.index.put("T", record.keys, record.offset, record.ms)

    def recover_at_last(self) -> None:
        """Recover, with recovery interrupted at random operations until it completes."""
        while True:
            self.disk.steps_left = self.chance.choice([1, 5, 20, 80, 10**9])
            try:
                self.recover()
            except Died:
                self.index.close()
                self.disk.crash(self.chance)
            else:
                self.disk.steps_left = 10**9
                return

    def check(self) -> None:
        """Compare answers and bytes with an index written without interruption."""
        other = self.made(self.folder.with_name("whole" + self.folder.name), Disk())
        for record in self.log:
            other.put("T", record.keys, record.offset, record.ms)
        for key in (f"k{number}" for number in range(12)):
            expected = [record.offset for record in self.log if key in record.keys][-64:]
            assert self.index.query("T", key, 64, 0, FOREVER) == expected
            middle = self.log[len(self.log) // 2].ms if self.log else 0
            for begin, end in ((0, middle), (middle, FOREVER)):
                assert self.index.query("T", key, 9, begin, end) == other.query("T", key, 9, begin, end)
        assert self.index.last_update == other.last_update
        assert [path.read_bytes() for path in self.index.paths] == [path.read_bytes() for path in other.paths]
        other.clear()
        other.close()


@pytest.mark.spec("DUR-13", "DUR-20", "IX-10")
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.integers(0, 2**32), st.sampled_from([3, 12, 60, 200]), st.booleans())
def test_index_after_crash_equals_uninterrupted_index(tmp_path: Path, seed: int, size: int, allocate: bool) -> None:
    world = World(tmp_path / next(NAMES), random.Random(seed), size, allocate)
    for _ in range(world.chance.randint(1, 4)):
        world.live()
        world.crash()
        world.recover_at_last()
        world.check()
    world.disk.steps_left = 10**9
    world.live_on()
    world.check()
    world.index.clear()
    world.index.close()


@pytest.mark.spec("RC-05", "DUR-13")
def test_foreign_files_not_known_durable_are_dropped(tmp_path: Path) -> None:
    def written(name: str) -> MessageIndex:
        made = index(tmp_path / name, entries=4)
        for number in range(11):
            made.put("T", ["k", "x"], number * 100, NOW + number * 1000)
        made.close()
        made = index(tmp_path / name, entries=4)
        assert made.load() == []
        return made

    def dispatch(made: MessageIndex, start: int) -> None:
        for number in range(11):
            if number * 100 >= start:
                made.put("T", ["k", "x"], number * 100, NOW + number * 1000)
        assert made.query("T", "k", 64, 0, FOREVER) == made.query("T", "x", 64, 0, FOREVER) == list(range(0, 1100, 100))
        made.close()

    made = written("none")
    assert made.repair(None, 0) == 0 and made.paths == []
    dispatch(made, 0)
    made = written("some")  # files end at records 1, 2, 4, 5, 7, 8, 10; two and a half records each
    paths = made.paths
    assert made.repair(None, NOW + 4999) == 400
    assert made.paths == paths[:3]
    dispatch(made, 400)
    made = written("first")
    made.delete_before(150)
    first = made.paths
    assert made.repair(None, 0) == 100  # begin of the earliest file deleted
    assert made.paths == [] and not any(path.exists() for path in first)
    made.close()
    made = written("all")
    assert made.repair(None, NOW + 10**9) == 1000 and len(made.paths) == 7  # the last is not full: it was not synced
    dispatch(made, 800)


@pytest.mark.spec("RC-05")
def test_index_of_killed_rocketmq_broker_is_rebuilt(vectors: Path, tmp_path: Path) -> None:
    source = vectors / "store" / "broker-killed"
    (golden,) = (path for path in (source / "index").iterdir() if path.suffix == "")
    shutil.copyfile(golden, tmp_path / golden.name)
    (index_ms,) = struct.unpack_from(">q", (source / "checkpoint").read_bytes(), 16)
    made = index(tmp_path, slots=100, entries=400)
    assert made.load() == []
    assert made.repair(None, index_ms) == 0 and made.paths == []
    for topic, keys, offset, ms, _ in records(source):
        made.put(topic, keys, offset, ms)
    assert made.paths[0].read_bytes() == golden.read_bytes()
    made.close()


@pytest.mark.spec("DUR-13")
def test_truncate_drops_entries_past_log_end(tmp_path: Path) -> None:
    for end in range(0, 1200, 50):
        made = index(tmp_path / str(end), entries=6)
        for number in range(11):
            made.put("T", ["a", "b"], number * 100, NOW + number * 777)
        flush(made, 1100)
        start = made.truncate(end)
        assert made.synced is not None and made.synced.offset <= end and start <= end
        left = [number for number in range(11) if number * 100 < end]
        assert made.query("T", "a", 64, 0, FOREVER) == [number * 100 for number in left]
        made = reopened(made, entries=6)
        whole = index(tmp_path / f"{end}w", entries=6)
        for number in left:
            whole.put("T", ["a", "b"], number * 100, NOW + number * 777)
            if number * 100 >= start:
                made.put("T", ["a", "b"], number * 100, NOW + number * 777)
        assert [path.read_bytes() for path in made.paths] == [path.read_bytes() for path in whole.paths]
        made.close()
        whole.close()


@pytest.mark.spec("DUR-13")
def test_noted_entries_are_not_indexed_again(tmp_path: Path) -> None:
    made = index(tmp_path, entries=12)
    for number in range(27):
        made.put("T", ["k"], number, NOW + number)
    flush(made, 27)
    noted, path = made.synced, made.paths[-1]
    for number in range(27, 45):
        made.put("T", ["k"], number, NOW + number)
    made.close()  # killed: nothing is lost, but that is not known
    made = index(tmp_path, entries=12)
    assert made.load(unclean=True) == []
    assert made.repair(noted) == 27 and made.synced == noted
    assert made.paths[-1] == path and header(path) == (NOW + 22, NOW + 26, 22, 26, 1, 6)
    assert made.truncate(45) == 45 and made.synced == noted
    assert made.query("T", "k", 64, 0, FOREVER) == list(range(27))
    made.close()


@pytest.mark.spec("DUR-20")
@pytest.mark.parametrize("allocate", [True, False])
def test_truncate_survives_crash_at_any_operation(tmp_path: Path, allocate: bool) -> None:
    records = [Record(number * 10, [f"k{number % 5}", "k5", f"k{number % 7}"], NOW + number) for number in range(25)]
    operations = 0
    for stop in itertools.count():
        world = World(tmp_path / f"{stop}", random.Random(stop), 24, allocate)
        for record in records:
            world.index.put("T", record.keys, record.offset, record.ms)
        flush(world.index, 250)
        world.note = world.index.synced
        world.log, world.end = records[:11], 110  # ends within the second of four files
        world.disk.steps_left = stop
        try:
            world.index.truncate(110)
        except Died:
            operations += 1
        world.crash_keeping_the_log()
        world.recover()
        world.check()
        world.index.close()
        if operations == stop:
            break
    assert operations > 8


@pytest.mark.spec("DUR-13")
def test_dropped_files_are_deleted_durably_before_writes(tmp_path: Path) -> None:
    disk = LoggingDisk()
    made = index(tmp_path, disk, entries=3)
    for offset in range(8):
        made.put("T", ["k"], offset, NOW)
    flush(made)
    noted, paths = made.synced, made.paths
    disk.log.clear()
    made.truncate(3)  # keeps one of two entries in the second file
    assert disk.log[: disk.log.index("folder")] == [f"close {paths[3].name}"]
    assert disk.log.count(f"sync {paths[1].name}") == 2
    assert noted is not None and made.synced == Synced(int(paths[1].name), 1, NOW, 2)
    made.put("T", ["k"], 3, NOW)
    made.put("T", ["k"], 4, NOW)
    disk.log.clear()
    made.repair(made.synced)
    assert disk.log[:2] == [f"close {paths[1].name[:-1]}{int(paths[1].name[-1]) + 1}", "folder"]
    made.close()


@pytest.mark.spec("DUR-13")
@pytest.mark.parametrize("change", ["file", "gone", "entries", "header"])
def test_mismatched_note_loses_no_record(tmp_path: Path, change: str) -> None:
    made = index(tmp_path, entries=12)
    for number in range(40):
        made.put("T", ["k"], number, NOW + number)
    flush(made)
    noted, last = made.synced, made.paths[-1]
    assert noted is not None
    made.close()
    if change == "file":
        noted = noted._replace(file=1)
    elif change == "gone":
        last.unlink()
    elif change == "entries":
        noted = noted._replace(entries=10**6)
    else:
        last.write_bytes(bytes(40) + last.read_bytes()[40:])
    made = index(tmp_path, entries=12)
    assert made.load(unclean=True) == []
    start = made.repair(noted)
    assert start < 39 or change == "entries"
    for number in range(start, 40):
        made.put("T", ["k"], number, NOW + number)
    assert made.query("T", "k", 64, 0, FOREVER) == list(range(40))
    assert header(made.paths[-1])[1] == NOW + 39
    made.close()


@pytest.mark.spec("DUR-13", "IX-06")
def test_repair_rebuilds_slots_and_links(tmp_path: Path) -> None:
    made = index(tmp_path)
    for number in range(50):
        made.put("T", [f"k{number % 10}"], number, NOW)
    flush(made)
    noted, path = made.synced, made.paths[0]
    whole = path.read_bytes()
    made.close()
    broken = bytearray(whole)
    broken[32:36] = struct.pack(">i", 3)
    broken[40 : 40 + 4 * SLOTS] = os.urandom(4 * SLOTS)
    for number in range(1, 51):
        at = IndexShape(SLOTS, ENTRIES).entries_at + 20 * number + 16
        broken[at : at + 4] = os.urandom(4)
    path.write_bytes(broken)
    made = index(tmp_path)
    assert made.load(unclean=True) == []
    made.repair(noted)
    assert path.read_bytes() == whole
    made.close()
