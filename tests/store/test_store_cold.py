"""Files that others truncate while they are mapped, and records that only the disk has."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from small_store import CL, bodies, message, opened

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.store import PutStatus, cold
from saturnmq.store.files.disk import Disk
from waiting import until

# ---- truncated files


async def truncated(root: Path, number: int) -> None:
    """The body of a child process, which would die of SIGBUS: file `number` of three loses its end."""
    store = opened(root, flush_interval_ms=5)
    failures: list[str] = []
    store.on_failure = lambda error: failures.append(error.message)
    for n in range(9):
        store.put(message(b"%d" % n * 1000))
    await store.write_all()
    path = root / "commitlog" / f"{number * CL:020d}"
    os.truncate(path, 100)
    if number < 2:
        with pytest.raises(CorruptRecord, match=f"{path} was cut to 100 bytes while it was in use, must be {CL}"):
            store.get("T", 0, number * 3, 32)
        assert bodies(store, offset=(number + 1) * 3)[0] == b"%d" % ((number + 1) * 3) * 1000
    await store.start()
    await until(lambda: failures)
    assert f"{path} was cut to 100 bytes" in failures[0]
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and str(path) in refused.reason
    await store.abort()


@pytest.mark.spec("DUR-04")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_truncated_log_file_is_named_and_stops_the_store(tmp_path: Path, number: int) -> None:
    """A mapped file that was truncated ended the process without a word."""
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "store"), str(number)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = tmp_path / "store" / "commitlog" / f"{number * CL:020d}"
    with pytest.raises(CorruptRecord, match=f"{name} is 100 bytes long, must be {CL}"):
        opened(tmp_path / "store")


def test_fatal_signal_of_a_server_is_reported(tmp_path: Path) -> None:
    """The current log file is cut and written at once, before the check per interval can find it."""
    code = f"""
import os, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from saturnmq.cli.servers import serve
from small_store import message, opened

async def main(stop):
    store = opened(Path({str(tmp_path)!r}))
    store.put(message(b"x"))
    os.truncate(store.log.files[-1].path, 0)
    store.put(message(b"y"))

serve(main)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGBUS and "Fatal Python error: Bus error" in done.stderr
    assert "commit_log.py" in done.stderr, "the stack names the place"


# ---- the page cache


class SlowDisk(Disk):
    """A disk with an empty page cache; reads wait until the gate opens, then count as cached."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.cached = False
        self.reads: list[tuple[int, int]] = []

    def read_cached(self, fd: int, at: int, size_bytes: int) -> bytes | None:
        return super().read_cached(fd, at, size_bytes) if self.cached else None

    def is_resident(self, mapping: mmap.mmap, at: int, size_bytes: int) -> bool:
        return self.cached

    def warm(self, fd: int, at: int, size_bytes: int) -> None:
        self.gate.wait(30)
        self.reads.append((at, size_bytes))
        super().warm(fd, at, size_bytes)


@pytest.mark.spec("BP-04")
async def test_records_on_disk_only_are_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "RECENT_BYTES", 2000)
    disk = SlowDisk()
    store = opened(tmp_path, disk=disk)
    puts = [store.put(message(b"%d" % n * 700)) for n in range(12)]
    await store.write_all()
    assert store.cold_read("T", 0, 11, 32) is None, "the end of the log was written just now"
    assert store.cold_read("T", 0, 12, 32) is None and store.cold_read("none", 0, 0, 32) is None
    read = store.cold_read("T", 0, 0, 4)
    assert read is not None
    loop = asyncio.get_running_loop()
    reading = loop.run_in_executor(disk.read_threads, read)
    for n in range(100):  # the event loop, and the flush, go on
        put = store.put(message(b"%d" % n, "Honest"))
        assert await store.wait_confirmed(put) is PutStatus.PUT_OK
    assert not reading.done()
    disk.gate.set()
    await reading
    assert sum(size for _, size in disk.reads) >= sum(put.size for put in puts[:4]) and disk.reads[0][0] == 0
    disk.reads.clear()
    read = store.cold_read("T", 0, 3, 3)
    assert read is not None
    read()
    begin, end = puts[3].physical_offset, puts[5].end_offset
    assert begin < CL < end and disk.reads == [(begin, CL - begin), (0, end - CL)], "positions in their files"
    disk.cached = True
    assert store.cold_read("T", 0, 0, 4) is None
    await store.stop()


@pytest.mark.spec("BP-04", "CQ-04")
def test_units_on_disk_only_are_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "RECENT_BYTES", 0)
    store = opened(tmp_path)
    puts = [store.put(message(b"%d" % n)) for n in range(30)]
    asyncio.run(store.stop())
    disk = SlowDisk()
    disk.gate.set()
    store = opened(tmp_path, disk=disk)
    read = store.cold_read("T", 0, 0, 3)
    assert read is not None
    read()
    assert disk.reads == [(0, sum(put.size for put in puts[:3]))]
    store.queues.by_key["T", 0].delete()
    read()  # the files were deleted meanwhile
    store.close_files()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not report what its page cache holds")
def test_page_cache_is_asked() -> None:
    disk = Disk()
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:  # tmp_path may be in memory, which has no page cache
        path = Path(file.name)
        path.write_bytes(os.urandom(1 << 20))
        fd = disk.open(path)
        mapping = disk.map(fd, 1 << 20)
        try:
            content = path.read_bytes()
            middle, last = 64 * mmap.PAGESIZE, (1 << 20) - mmap.PAGESIZE
            assert disk.read_cached(fd, 0, 1 << 20) == content and disk.read_cached(fd, 1 << 20, 10) == b""
            assert disk.is_resident(mapping, 0, 1 << 20) and disk.is_resident(mapping, 1 << 20, 10)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                os.preadv(fd, [bytearray(1)], last, os.RWF_NOWAIT)  # the system reads ahead from there
            except BlockingIOError:
                pass
            except OSError:
                pytest.skip("this file system does not report what the page cache holds")
            else:
                pytest.skip("this file system has no page cache that can be dropped")
            assert not disk.is_resident(mapping, 0, last) and not disk.is_resident(mapping, 10, 1), "one byte of a page"
            assert disk.read_cached(fd, middle, 4096) is None
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            disk.warm(fd, middle, mmap.PAGESIZE)
            assert disk.is_resident(mapping, middle + 10, mmap.PAGESIZE - 10)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            disk.warm(fd, 0, middle)
            assert disk.is_resident(mapping, 0, middle), "every page but the last ones"
            disk.warm(fd, 0, 1 << 20)
            assert disk.read_cached(fd, 0, 2 << 20) == content and disk.is_resident(mapping, 5, (1 << 20) - 5)
        finally:
            mapping.close()
            disk.close(fd)


if __name__ == "__main__":
    asyncio.run(truncated(Path(sys.argv[1]), int(sys.argv[2])))
