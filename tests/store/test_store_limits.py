"""Limits and settings of the store, each shown by its effect: pulls, retention, flush, checkpoint, folders, queries."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.config.settings import load, to_properties
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import Host, Message, decode_record
from saturnmq.store import MessageStore, PutResult, StoreProfile, StoreSettings
from saturnmq.store.files.capacity import Usage
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import file_name
from saturnmq.store.recovery.checkpoint import Checkpoint
from waiting import until

CL = 4096
START_MS = 1_700_000_000_000


def message(body: bytes = b"body", properties: bytes = b"") -> Message:
    return Message("T", body, properties, 0, born_host=Host("10.0.0.9", 5), store_host=Host("127.0.0.1", 10911))


def opened(path: Path, clock: Callable[[], int] | None = None, **more: Any) -> MessageStore:
    values = {"commit_log_file_bytes": CL, "consume_queue_file_bytes": 2000, "profile": StoreProfile.SMALL} | more
    settings = StoreSettings(store_path_root_dir=str(path), **values)
    store = MessageStore(settings, **({"clock_ms": clock} if clock else {}))
    store.open()
    return store


def used(monkeypatch: pytest.MonkeyPatch, shares: dict[str, int]) -> None:
    """Set the disk usage in percent of the folders with these names; all others are on an empty disk."""

    def facts(folder: Path) -> SimpleNamespace:
        share = shares.get(Path(folder).name, 0)
        return SimpleNamespace(f_blocks=100, f_bfree=100 - share, f_bavail=100 - share)

    monkeypatch.setattr(os, "statvfs", facts)


def two_folders(path: Path) -> str:
    for name in ("one", "two"):
        (path / name).mkdir()
    return f"{path / 'one'},{path / 'two'}"


@pytest.mark.spec("BP-04")
@pytest.mark.parametrize(
    ("body_bytes", "from_memory", "from_disk"),
    [
        (100, 32, 8),
        (30_000, 8, 2),
        (150_000, 1, 1),
        (300_000, 1, 1),
    ],  # limited by count; limited by bytes; the first is always returned
)
def test_pull_limits_are_lower_for_records_on_disk(
    tmp_path: Path, body_bytes: int, from_memory: int, from_disk: int
) -> None:
    store = opened(tmp_path, commit_log_file_bytes=16 << 20)
    for _ in range(40):
        assert store.put(message(b"x" * body_bytes)).physical_offset >= 0
    assert store.get("T", 0, 0, 40).count == from_memory
    store.memory_bytes = 0
    assert store.get("T", 0, 0, 40).count == from_disk
    store.close_files()


@pytest.mark.spec("DEL-03", "DEL-04")
@pytest.mark.parametrize(("forcible", "left"), [(True, 1), (False, 4)])
async def test_unexpired_files_are_deleted_only_if_forcible(tmp_path: Path, forcible: bool, left: int) -> None:
    store = opened(tmp_path, clean_forcibly=forcible, delete_when="", delete_pause_ms=20, delete_queue_pause_ms=0)
    store.disk_usage = lambda: Usage(88, 20, 20)  # type: ignore[method-assign]
    for _ in range(4):
        store.put(message(b"x" * 3000))
    await store.write_all()
    assert len(store.log.files) == 4
    begin = asyncio.get_running_loop().time()
    await store._maintenance.clean()
    assert len(store.log.files) == left
    assert left > 1 or asyncio.get_running_loop().time() - begin >= 0.035, "two pauses between three files"
    await store.stop()


@pytest.mark.spec("DEL-05")
def test_disk_usage_takes_emptiest_commit_log_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, store_path_commit_log=two_folders(tmp_path))
    store.put(message())
    asyncio.run(store.write_all())
    used(monkeypatch, {"one": 95, "two": 30, "consumequeue": 80})
    assert store.disk_usage() == Usage(30, 80, 0)
    store.close_files()


@pytest.mark.spec("DEL-05")
def test_disk_usage_that_cannot_be_read_is_negative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, store_path_commit_log=two_folders(tmp_path))
    store.put(message())
    asyncio.run(store.write_all())

    def facts(folder: Path) -> SimpleNamespace:
        if folder.name == "one":
            raise OSError(errno.EIO, "input/output error")
        blocks = 0 if folder.name == "consumequeue" else 100
        return SimpleNamespace(f_blocks=blocks, f_bfree=blocks * 7 // 10, f_bavail=blocks * 7 // 10)

    monkeypatch.setattr(os, "statvfs", facts)
    assert store.disk_usage() == Usage(-1, -1, 30)
    store.close_files()


@pytest.mark.spec("ST-20")
@pytest.mark.parametrize(
    ("one", "two", "in_one", "in_two"), [(85, 85, 2, 2), (86, 85, 0, 4), (0, 86, 4, 0), (99, 86, 2, 2)]
)
def test_nearly_full_folder_gets_no_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: int, two: int, in_one: int, in_two: int
) -> None:
    used(monkeypatch, {"one": one, "two": two})
    store = opened(tmp_path, store_path_commit_log=two_folders(tmp_path))
    for _ in range(4):
        store.put(message(b"x" * 3000))
    found = [sum(file.path.parent.name == name for file in store.log.files) for name in ("one", "two")]
    assert found == [in_one, in_two]
    store.close_files()


@pytest.mark.spec("FLU-06")
async def test_few_dirty_pages_are_flushed_by_thorough_flush(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_interval_ms=1, flush_least_pages=1000, flush_thorough_ms=20)
    await store.start()
    store.put(message())
    await until(lambda: store.flushed_offset == store.log.end)
    assert store.log.flusher.dirty_pages() == 0 < store.flushed_offset
    await store.stop()


@pytest.mark.spec("FLU-10")
async def test_queue_with_enough_units_is_written_before_thorough_round(tmp_path: Path) -> None:
    more = {"flush_queue_interval_ms": 1, "flush_queue_least_pages": 1, "flush_queue_thorough_ms": 3_600_000}
    store = opened(tmp_path, flush_interval_ms=1, commit_log_file_bytes=1 << 20, **more)
    await store.start()
    for _ in range(4096 // 20 + 1):
        store.put(message())
    await until(lambda: any(path.is_file() for path in (tmp_path / "consumequeue").rglob("0" * 20)))
    note = store.checkpoint.note
    assert note is None or note.dispatched == 0, "this was not the thorough round"
    await store.stop()


@pytest.mark.spec("FLU-09", "RC-09")
async def test_checkpoint_has_store_time_of_last_durable_record(tmp_path: Path) -> None:
    now = [START_MS]
    store = opened(tmp_path, clock=lambda: now[0])

    def times() -> tuple[int, int]:
        log_ms, queue_ms = struct.unpack(">qq", (tmp_path / "checkpoint").read_bytes()[:16])
        return log_ms, queue_ms

    store.put(message())
    now[0] += 5000
    await store.write_all()
    assert times() == (START_MS, START_MS)
    store.put(message())
    now[0] += 5000
    await store.stop()
    assert times() == (START_MS + 5000, START_MS + 5000)


@pytest.mark.spec("RC-09")
@pytest.mark.parametrize(("log_ms", "queue_ms", "safe_ms"), [(9000, 8000, 5000), (8000, 9000, 5000), (2000, 9000, 0)])
def test_safe_time_is_3s_before_older_checkpoint_time(tmp_path: Path, log_ms: int, queue_ms: int, safe_ms: int) -> None:
    (tmp_path / "checkpoint").write_bytes(struct.pack(">qqq", log_ms, queue_ms, 1).ljust(4096, b"\0"))
    checkpoint = Checkpoint(tmp_path / "checkpoint", Disk())
    checkpoint.load()
    assert checkpoint.safe_ms == safe_ms


@pytest.mark.spec("IX-06")
def test_query_returns_newest_64_at_most(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(70):
        store.put(message(properties=b"KEYS\x01k"))
    found = [decode_record(record).queue_offset for record in store.query("T", "k", 1000, 0, 2**62).records]
    assert found == list(range(6, 70))
    store.close_files()


@pytest.mark.spec("IX-07")
@pytest.mark.parametrize(("damaged", "found"), [(0, [4, 5]), (2, [3]), (3, [2]), (4, [])])
def test_query_tries_three_times_to_find_readable_records(tmp_path: Path, damaged: int, found: list[int]) -> None:
    now = [START_MS]
    store = opened(tmp_path, clock=lambda: now[0])
    results: list[PutResult] = []
    for _ in range(6):
        results.append(store.put(message(b"body", b"KEYS\x01k")))
        now[0] += 10_000
    for result in results[6 - damaged :]:
        store.log.files[0].map[result.physical_offset + 88 : result.physical_offset + 89] = b"\xff"
    assert [decode_record(record).queue_offset for record in store.query("T", "k", 2, 0, 2**62).records] == found
    store.close_files()


@pytest.mark.spec("IX-06", "IX-07")
def test_damaged_store_time_never_extends_query_range(tmp_path: Path) -> None:
    now = [START_MS]
    store = opened(tmp_path, clock=lambda: now[0])
    for _ in range(4):
        store.put(message(b"body", b"KEYS\x01k"))
        now[0] += 10_000
    assert len(store.query("T", "k", 2, 0, START_MS + 5000).records) == 1
    file = store.log.files[0]
    file.map[56:57], file.map[88:89] = b"\x01", b"\xff"  # store time and body of the first record
    assert store.log.store_time(0) > now[0]
    assert store.query("T", "k", 2, 0, START_MS + 5000).records == []
    store.close_files()


DEFAULTS = """
    flushDiskType=ASYNC_FLUSH flushIntervalCommitLog=500 flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000
    flushIntervalConsumeQueue=1000 flushConsumeQueueLeastPages=2 flushConsumeQueueThoroughInterval=60000 syncFlushTimeout=5000
    commitIntervalCommitLog=200 transientStorePoolEnable=false transientStorePoolSize=5
    deleteWhen=04 fileReservedTime=72 diskMaxUsedSpaceRatio=75 deleteCommitLogFilesInterval=100
    deleteConsumeQueueFilesInterval=100 cleanFileForciblyEnable=true cleanResourceInterval=10000
    maxMessageSize=4194304 checkCRCOnRecover=true messageIndexEnable=true enableConsumeQueueExt=false
    accessMessageInMemoryMaxRatio=40 maxTransferBytesOnMessageInMemory=262144 maxTransferCountOnMessageInMemory=32
    maxTransferBytesOnMessageInDisk=65536 maxTransferCountOnMessageInDisk=8
"""


@pytest.mark.spec(
    "FLU-01", "FLU-04", "FLU-06", "FLU-07", "FLU-10", "MF-11", "DEL-01", "DEL-02", "DEL-03", "DEL-04", "DEL-09", "ST-06",
    "RC-07", "IX-09", "CQ-13", "BP-04", "ST-08", "DG-06",
)  # fmt: skip
def test_defaults_match_rocketmq() -> None:
    properties = to_properties(StoreSettings())
    expected = dict(word.split("=") for word in DEFAULTS.split())
    assert {name: properties.get(name) for name in expected} == expected
    levels = properties["messageDelayLevel"].split()
    assert levels == [*("1s", "5s", "10s", "30s"), *(f"{n}m" for n in range(1, 11)), "20m", "30m", "1h", "2h"]


@pytest.mark.spec("ST-01", "CQ-01", "CQ-13", "IX-01")
def test_standard_profile_has_rocketmq_file_sizes() -> None:
    assert file_name(0) == "0" * 20 and file_name(1 << 30) == "00000000001073741824"
    s = StoreSettings(queue_extension_enable=True)
    assert (s.commit_log_bytes, s.consume_queue_bytes) == (1 << 30, 300_000 * 20)
    assert (s.index_slots, s.index_entries) == (5_000_000, 20_000_000)
    assert s.queue_extension is not None and s.queue_extension[1] == 48 << 20


@pytest.mark.spec("ST-06")
def test_message_size_is_a_positive_int32() -> None:
    for size in (10, 2**31 - 1):
        assert load(StoreSettings, ("file", {"maxMessageSize": str(size)})).settings.message_bytes_max == size
    for size in (9, 2**31):
        with pytest.raises(ConfigError, match=f"maxMessageSize='{size}'"):
            load(StoreSettings, ("file", {"maxMessageSize": str(size)}))
