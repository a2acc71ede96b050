"""Rejected puts: the store is not writable, or the message is invalid."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from small_store import USAGE_FINE, bodies, message, opened

from saturnmq.protocol.errors import DiskFull, FlushFailed
from saturnmq.store import PutStatus
from saturnmq.store import store as store_module
from saturnmq.store.files.capacity import Usage
from saturnmq.store.files.disk import Disk
from saturnmq.store.maintenance import maintenance
from waiting import until

REFUSED = PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.spec("ST-03")
def test_unwritable_store_rejects_puts_with_reason(tmp_path: Path) -> None:
    store = opened(tmp_path / "full")
    store.recheck(Usage(91, 20, 20))
    refused = store.put(message())
    assert (refused.status, refused.physical_offset) == (REFUSED, -1) and "the disk is full" in refused.reason
    store.recheck(USAGE_FINE)
    assert store.put(message()).status is PutStatus.PUT_OK
    asyncio.run(store.stop())
    stopped = store.put(message())
    assert (stopped.status, stopped.reason) == (REFUSED, "stopped")
    failed = opened(tmp_path / "failed")
    failed.stop_writing(FlushFailed("flush of the commit log failed"))
    answer = failed.put(message())
    assert (answer.status, answer.reason) == (REFUSED, "flush of the commit log failed")
    assert failed.put_batch(message(), [message().entry]).status is REFUSED and not failed.writable
    failed.close_files()


@pytest.mark.spec("ST-03")
def test_one_rejection_in_50000_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert store_module._REJECTIONS_PER_LOG_LINE == 50_000
    monkeypatch.setattr(store_module, "_REJECTIONS_PER_LOG_LINE", 3)
    store = opened(tmp_path)
    store.recheck(Usage(91, 20, 20))
    for _ in range(7):
        assert store.put(message()).status is REFUSED
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("put refused")]
    assert [line.split()[2] for line in lines] == ["count=1", "count=4", "count=7"]
    assert "reason=the disk is full: CL: 91%" in lines[0]
    store.close_files()


@pytest.mark.spec("ST-05")
def test_put_accepts_maximum_topic_and_properties_length(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_log_file_bytes=1 << 20)
    longest = b"k\x01" + b"v" * 32_765
    assert store.put(message(properties=longest)).status is PutStatus.PUT_OK
    assert store.put(message(properties=longest + b"v")).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    wide = "k\x01" + "\N{EURO SIGN}" * 10_922  # within the limit in characters, over it in bytes
    assert len(wide) < 32_767 < len(wide.encode())
    assert store.put(message(properties=wide.encode())).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert store.put(message(topic="t" * 127)).status is PutStatus.PUT_OK
    assert store.put(message(topic="t" * 128)).status is PutStatus.MESSAGE_ILLEGAL
    assert store.put(message(topic="\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 64)).status is PutStatus.MESSAGE_ILLEGAL
    asyncio.run(store.stop())


@pytest.mark.spec("ST-06")
def test_message_size_limit_counts_body_only(tmp_path: Path) -> None:
    store = opened(tmp_path, message_bytes_max=100, commit_log_file_bytes=1 << 20)
    longest = message(b"x" * 100, "t" * 127, properties=b"k\x01" + b"v" * 32_765)
    assert store.put(longest).status is PutStatus.PUT_OK
    assert store.put(message(b"x" * 101)).status is PutStatus.MESSAGE_ILLEGAL
    asyncio.run(store.stop())


class BrokenDisk(Disk):
    """A disk on which every write fails once `error` is set, and every new file while `full` is."""

    error = 0
    full = False

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if self.full:
            raise DiskFull(f"no space for {path}")
        return super().create(path, size_bytes, allocate=allocate)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        super().write(fd, at, data)


@pytest.mark.spec("CQ-09", "DUR-06", "RC-02")
async def test_failed_queue_writes_stop_puts(tmp_path: Path) -> None:
    disk = BrokenDisk()
    store = opened(tmp_path, disk=disk, flush_interval_ms=1, flush_queue_interval_ms=1, flush_queue_thorough_ms=5)
    assert store.put(message(b"stored")).status is PutStatus.PUT_OK
    disk.error = errno.EIO
    await store.start()
    await until(lambda: store.failure is not None)
    refused = store.put(message())
    assert refused.status is REFUSED and "consume queues failed" in refused.reason
    assert bodies(store) == [b"stored"]
    disk.error = 0
    await store.stop()
    assert (tmp_path / "abort").exists()


@pytest.mark.spec("RC-02", "IX-09")
def test_abort_is_kept_if_index_is_incomplete(tmp_path: Path) -> None:
    disk = BrokenDisk()
    store = opened(tmp_path, disk=disk)
    store.put(message(b"makes the file"))
    asyncio.run(store.write_all())
    disk.full = True
    assert store.put(message(properties=b"KEYS\x01k")).status is PutStatus.PUT_OK
    asyncio.run(store.stop())
    assert (tmp_path / "abort").exists()
    disk.full = False
    again = opened(tmp_path)
    assert len(again.query("T", "k", 9, 0, 1 << 60).records) == 1
    asyncio.run(again.stop())
    assert not (tmp_path / "abort").exists()


@pytest.mark.spec("DEL-06")
async def test_full_disk_at_start_is_detected_after_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert maintenance._RECHECK_S == 1.0
    monkeypatch.setattr(maintenance, "_RECHECK_S", 0.01)
    store = opened(tmp_path, flush_interval_ms=1, clean_interval_ms=3_600_000)
    store.disk_usage = lambda: Usage(20, 91, 20)  # type: ignore[method-assign]
    await store.start()
    await until(lambda: not store.writable)
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    await until(lambda: store.writable)
    await store.stop()
