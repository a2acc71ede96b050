"""The files below a store: lock, usage of file systems, mapped files, state files, and the errors that name them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from saturnmq.protocol.errors import CorruptRecord, DiskFull, OutOfDescriptors, StoreError, StoreLocked
from saturnmq.store import StateFile
from saturnmq.store.files import capacity
from saturnmq.store.files.disk import Disk, open_error
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.lock_file import LockFile
from saturnmq.store.files.mapped_file import MappedFile, MappedFiles, is_zero, numbered_files
from saturnmq.store.files.properties_file import set_values
from saturnmq.store.files.reserve import Reserve

PAGE = 4096

# ---- lock

HOLDER = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); print('held', flush=True); input()"


def test_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None and holder.stdout.readline() == b"held\n"
        descriptors = len(os.listdir("/proc/self/fd"))
        error = LockFile(path).held()
        assert error is not None and f"in use by process {holder.pid}" in error.message
        with pytest.raises(StoreLocked, match=f"{tmp_path} is in use by process {holder.pid}"):
            LockFile(path).acquire()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        holder.stdin.close()
        holder.wait()
    assert LockFile(path).held() is None
    lock = LockFile(path)
    lock.acquire()
    assert path.read_bytes() == b"lock"
    lock.release()


def test_lock_of_this_process_is_held_until_released(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "new" / "lock")
    assert lock.held() is None and not lock.path.exists(), "a question creates nothing"
    lock.acquire()
    for attempt in (LockFile(tmp_path / "new" / ".." / "new" / "lock").held, lambda: LockFile(lock.path).held()):
        error = attempt()
        assert error is not None and f"process {os.getpid()}" in error.message
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        LockFile(lock.path).acquire()
    lock.release()
    lock.release()
    assert LockFile(lock.path).held() is None
    lock.acquire()
    lock.release()


def test_lock_whose_owner_is_not_known_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()

    def refused(*_: object) -> bytes:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    error = LockFile(path).held()
    assert error is not None and "in use by another process" in error.message
    monkeypatch.setattr(fcntl, "lockf", refused)
    with pytest.raises(StoreLocked, match="in use by another process"):
        LockFile(path).acquire()


def test_lock_that_cannot_be_opened_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"store folder {tmp_path}/file cannot be used: File exists") as caught:
        LockFile(tmp_path / "file" / "lock").acquire()
    assert "storePathRootDir" in caught.value.hint
    with pytest.raises(StoreError, match=f"cannot read {tmp_path}/file/lock: Not a directory"):
        LockFile(tmp_path / "file" / "lock").held()


# ---- usage


@pytest.mark.spec("DEL-04")
def test_usage_counts_what_is_not_reserved_for_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def statvfs(folder: Path) -> SimpleNamespace:
        asked.append(folder)
        return SimpleNamespace(f_blocks=1000, f_bfree=400, f_bavail=300, f_frsize=512)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert capacity.used_percent(tmp_path / "not" / "yet") == 67  # 600 of 900
    assert capacity.space(tmp_path) == (512_000, 153_600)
    assert asked == [tmp_path, tmp_path]


@pytest.mark.parametrize(("used", "full"), [(85, False), (86, True)])
def test_folder_is_nearly_full_above_85_percent(monkeypatch: pytest.MonkeyPatch, used: int, full: bool) -> None:
    facts = SimpleNamespace(f_blocks=100, f_bfree=100 - used, f_bavail=100 - used, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _: facts)
    assert capacity.nearly_full(Path("/")) is full


def test_usage_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> object:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "statvfs", broken)
    assert capacity.used_percent(Path("/")) == -1 and capacity.space(Path("/")) == (0, 0)
    values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", values.__getitem__)
    assert capacity.memory_bytes() == 4_096_000
    monkeypatch.setattr(os, "sysconf", broken)
    assert capacity.memory_bytes() == 24 << 30


# ---- mapped files


def test_file_of_zeros_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data, expected in ((b"", True), (bytes(3_000_000), True), (bytes(2_500_000) + b"\1", False), (b"\1\0", False)):
        path.write_bytes(data)
        assert is_zero(path) is expected, len(data)


def test_numbered_files_are_those_named_by_20_digits(tmp_path: Path) -> None:
    for name in (f"{7:020d}", f"{3:020d}", "5", "x" * 20, f"{9:021d}"):
        (tmp_path / name).touch()
    assert [path.name for path in numbered_files(tmp_path)] == [f"{3:020d}", f"{7:020d}"]
    assert numbered_files(tmp_path / "none") == []


class FailingDisk(Disk):
    """A disk whose calls in `errors` raise; `closed` counts descriptors."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.closed: list[int] = []

    def map(self, fd: int, size_bytes: int) -> object:  # type: ignore[override]
        if "map" in self.errors:
            raise self.errors["map"]
        return super().map(fd, size_bytes)

    def sync(self, fd: int) -> None:
        if "sync" in self.errors:
            raise self.errors["sync"]
        super().sync(fd)

    def close(self, fd: int) -> None:
        self.closed.append(fd)
        super().close(fd)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOMEM, "none"), OutOfDescriptors),
        (OSError(errno.ENOSPC, "full"), DiskFull),
        (ValueError("bad length"), StoreError),
    ],
)
def test_file_that_cannot_be_mapped_is_closed(tmp_path: Path, error: Exception, kind: type[StoreError]) -> None:
    disk = FailingDisk(map=error)
    with pytest.raises(kind, match=rf"cannot map {tmp_path}/0+ \({PAGE} bytes\): ") as caught:
        MappedFile(tmp_path / ("0" * 20), PAGE, disk, create=True)
    assert type(caught.value) is kind and len(disk.closed) == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_file_without_space_for_its_blocks_is_closed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """Also if an operator who looks for space deletes it meanwhile."""
    opened: list[int] = []

    def allocate(fd: int, at: int, size_bytes: int) -> None:
        opened.append(fd)
        if is_deleted:
            path.unlink()
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(DiskFull, match=rf"cannot allocate {path} \({PAGE} bytes\): No space left"):
        Disk().create(path, PAGE, allocate=True)
    assert not path.exists()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EMFILE, OutOfDescriptors), (errno.ENFILE, OutOfDescriptors), (errno.EIO, OSError)]
)
def test_sync_without_a_descriptor_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    """Any other error is final: the kernel may have dropped what was not written."""

    def refuse(path: Path, flags: int) -> int:
        raise OSError(number, "refused")

    monkeypatch.setattr("saturnmq.store.files.disk._open", refuse)
    for call in (Disk().sync_folder, lambda path: Disk().write_file(path / "file", b"x")):
        with pytest.raises(kind) as caught:
            call(tmp_path)
        assert type(caught.value) is kind


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), OutOfDescriptors("no descriptor")])
def test_file_that_cannot_be_synced_is_closed(tmp_path: Path, error: Exception) -> None:
    disk = FailingDisk(sync=error)
    files = MappedFiles([tmp_path / "a", tmp_path / "b"], PAGE, disk)
    with pytest.raises(StoreError) as caught:
        files.make(0)
    assert caught.value is error or caught.value.message == f"cannot sync {tmp_path}/a/{0:020d}: Input/output error"
    assert len(disk.closed) == 1 and files.files == []


def test_files_are_found_by_offset_and_deleted(tmp_path: Path) -> None:
    files = MappedFiles([tmp_path], PAGE, Disk())
    assert files.find(0) is None
    files.files += [files.make(start) for start in (2 * PAGE, 3 * PAGE)]
    paths = [file.path for file in files.files]
    for offset, number in ((2 * PAGE - 1, None), (2 * PAGE, 0), (3 * PAGE - 1, 0), (3 * PAGE, 1), (4 * PAGE, None)):
        assert files.find(offset) is (None if number is None else files.files[number]), offset
    files.delete()
    assert files.files == [] and not any(path.exists() for path in paths)


def test_cut_of_an_open_file_is_noticed(tmp_path: Path) -> None:
    file = MappedFiles([tmp_path], PAGE, Disk()).make(0)
    assert file.cut == ""
    os.truncate(file.path, PAGE - 1)
    assert f"was cut to {PAGE - 1} bytes while it was in use, must be {PAGE}" in file.cut
    file.close()
    assert file.cut == "", "a closed file is not read"


def test_pages_are_released_up_to_whole_pages(tmp_path: Path) -> None:
    file = MappedFiles([tmp_path], 4 * PAGE, Disk()).make(4 * PAGE)
    advised: list[tuple[int, int]] = []

    class Map:
        def madvise(self, advice: int, at: int, length: int) -> None:
            advised.append((at, length))

    real, file.map = file.map, Map()  # type: ignore[assignment]
    for until in (4 * PAGE - 1, 4 * PAGE, 5 * PAGE - 1, 6 * PAGE + 1, 99 * PAGE):
        file.forget_pages(until)
    assert advised == [(0, 2 * PAGE), (0, 4 * PAGE)]
    advised.clear()
    for begin, end in ((0, 9 * PAGE), (5 * PAGE + 1, 7 * PAGE), (5 * PAGE, 6 * PAGE), (0, 4 * PAGE)):
        file.before_flush(begin, end)
    assert advised == [(0, 4 * PAGE), (PAGE, 2 * PAGE)], "one page is not worth a call"
    file.map = real
    file.close()


# ---- errors of the disk


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    class Broken(Disk):
        def make_one_folder(self, path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFull, match=f"cannot create folder {tmp_path}/a/b: No space left on device"):
        Broken().make_folder(tmp_path / "a" / "b")
    assert type(open_error("x", OSError(errno.EDQUOT, "quota"))) is DiskFull


def test_new_folders_are_durable_from_the_top(tmp_path: Path) -> None:
    calls: list[str] = []

    class Recording(Disk):
        def make_one_folder(self, path: Path) -> None:
            calls.append(f"make {path.relative_to(tmp_path)}")
            super().make_one_folder(path)

        def sync_folder(self, folder: Path) -> None:
            calls.append(f"sync {folder.relative_to(tmp_path)}")
            super().sync_folder(folder)

    (tmp_path / "root").mkdir()
    disk = Recording()
    disk.make_folder(tmp_path / "root" / "a" / "b")
    expected = ["sync .", "make root/a", "sync root", "make root/a/b", "sync root/a"]
    assert calls == expected
    disk.make_folder(tmp_path / "root" / "a" / "b")
    assert calls == expected, "known to be durable"
    disk.remove_folder(tmp_path / "root" / "a" / "b")
    assert not (tmp_path / "root" / "a" / "b").exists()
    disk.make_folder(tmp_path / "root" / "a" / "b")
    assert calls[5:] == ["make root/a/b", "sync root/a"]


def test_range_is_read_if_every_part_is_in_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 40)
    reads: list[tuple[int, int]] = []
    results: list[int | Exception] = []
    system_preadv = os.preadv

    def preadv(fd: int, buffers: list[bytearray], at: int, flags: int = 0) -> int:
        reads.append((at, len(buffers[0])))
        result = results.pop(0) if results else len(buffers[0])
        if isinstance(result, Exception):
            raise result
        return system_preadv(fd, [memoryview(buffers[0])[:result]], at)

    monkeypatch.setattr(os, "preadv", preadv)
    disk = Disk()
    fd = disk.open(path)
    expected = path.read_bytes()[10:5010]
    for answers, found in (
        ([5000], expected),
        ([1000, 3000, 1000], expected),
        ([1000, BlockingIOError()], None),
        ([1000, 0], expected[:1000]),
        ([BlockingIOError()], None),
        ([OSError(errno.ENOTSUP, "not supported")], expected),
    ):
        results[:] = answers
        reads.clear()
        assert disk.read_cached(fd, 10, 5000) == found, answers
        assert not results and reads[0] == (10, 5000)
    reads.clear()
    results[:] = [4000, 100, 0]
    disk.warm(fd, 7, 600_000)
    assert reads == [(7, 262_144), (4007, 262_144), (4107, 262_144)], "until the end of the file"
    results[:] = [OSError(errno.EIO, "I/O error")]
    disk.warm(fd, 0, 10)
    disk.close(fd)


def test_stopped_threads_take_no_more_work() -> None:
    disk = Disk()
    pools = disk.threads, disk.read_threads
    disk.stop_threads()
    for pool in pools:
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)
    assert disk.threads is not pools[0] and disk.threads.submit(int).result() == 0
    disk.stop_threads()
    disk.stop_threads()


def test_least_recently_read_file_is_closed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {name: tmp_path / name for name in "abc"}
    for name, path in paths.items():
        path.write_bytes(name.encode() * 3)
    disk = FailingDisk()
    cache = FileCache(disk, 2)
    open_files: list[tuple[str, int, int]] = []
    for name in "abacba":
        assert (cache.read if name == "a" else cache.read_cached)(paths[name], 1, 9) == name.encode() * 2
        open_files.append((name, len(cache), len(disk.closed)))
    assert open_files == [("a", 1, 0), ("b", 2, 0), ("a", 2, 0), ("c", 2, 1), ("b", 2, 2), ("a", 2, 3)]
    assert cache.read(tmp_path / "none", 0, 1) == cache.read_cached(tmp_path / "none", 0, 1) == b"" and len(cache) == 2
    cache.forget(paths["c"])
    assert len(disk.closed) == 3, "it is not open"
    cache.forget(paths["a"])
    assert len(disk.closed) == 4 and len(cache) == 1
    cache.close()
    assert len(disk.closed) == 5 and len(cache) == 0
    for descriptors, limit, expected in ((800, 256, 100), (80_000, 256, 256), (7, 256, 1)):
        monkeypatch.setattr("saturnmq.store.files.file_cache.descriptor_limit", lambda count=descriptors: count)
        cache = FileCache(Disk(), limit)
        for number in range(expected + 1):
            path = tmp_path / f"file{number}"
            path.touch()
            cache.read(path, 0, 1)
        assert len(cache) == expected
        cache.close()


# ---- state files


def test_state_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "topics.json").mkdir()
    with pytest.raises(StoreError, match=f"cannot read state file {tmp_path}/topics.json: Is a directory"):
        StateFile(tmp_path / "topics.json").read(bytes)


@pytest.mark.parametrize(
    "error", [ValueError, KeyError, ZeroDivisionError, TypeError, AttributeError, RecursionError, CorruptRecord]
)
def test_state_file_that_does_not_parse_is_read_from_its_backup(
    tmp_path: Path, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    file = StateFile(tmp_path / "offsets.json")
    assert file.read(bytes) is None
    file.write(b"old")
    file.write(b"new")

    def parse(data: bytes) -> bytes:
        if data == b"new":
            raise error("bad")
        return data

    assert file.read(parse) == b"old"
    assert any(f"read from its backup path={file.path}" in text for text in caplog.messages)
    file.write(b"new")
    file.write(b"new")
    with pytest.raises(
        CorruptRecord, match=r"offsets.json and its backup offsets.json.bak cannot be read: .*bad"
    ) as caught:
        file.read(parse)
    assert f"rm -f {file.path} {file.path}.bak" in caught.value.hint


@pytest.mark.spec("DUR-14")
def test_small_files_and_folders_are_synced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bytes]] = []

    def fsync(fd: int) -> None:
        target = Path(f"/proc/self/fd/{fd}")
        synced.append((os.fstat(fd).st_ino, target.read_bytes() if target.is_file() else b""))

    monkeypatch.setattr(os, "fsync", fsync)
    disk, path = Disk(), tmp_path / "x.json.tmp"
    disk.write_file(path, b"contents")
    disk.sync_folder(tmp_path)
    assert synced == [(path.stat().st_ino, b"contents"), (tmp_path.stat().st_ino, b"")]


@pytest.mark.spec("DUR-15")
@pytest.mark.parametrize(
    ("number", "released", "kind", "text"),
    [
        (errno.EIO, False, StoreError, "cannot write state file"),
        (errno.ENOSPC, True, DiskFull, "no space for state file"),
        (errno.EDQUOT, True, DiskFull, "no space for state file"),
    ],
)
def test_only_a_full_disk_takes_the_reserve(
    tmp_path: Path, number: int, released: bool, kind: type[StoreError], text: str
) -> None:
    class Broken(Disk):
        writes = 0

        def write_file(self, path: Path, data: bytes) -> None:
            self.writes += 1
            raise OSError(number, "broken")

    disk = Broken()
    reserve = Reserve(tmp_path / "reserve", 8192, Disk())
    assert reserve.allocate() and reserve.allocate()
    with pytest.raises(kind, match=f"{text} {tmp_path}/a.json: broken") as caught:
        StateFile(tmp_path / "a.json", disk, reserve).write(b"x")
    assert type(caught.value) is kind
    assert reserve.path.exists() is not released and disk.writes == 1 + released
    with pytest.raises(kind):
        StateFile(tmp_path / "a.json", disk).write(b"x")
    with pytest.raises(kind):
        StateFile(tmp_path / "a.json", disk, Reserve(tmp_path / "none", 1, Disk())).write(b"x")
    assert disk.writes == 3 + released, "tried again only after space was freed"


@pytest.mark.spec("DUR-15")
def test_reserve_is_as_large_as_configured(tmp_path: Path) -> None:
    (tmp_path / "reserve").write_bytes(bytes(100))
    reserve = Reserve(tmp_path / "reserve", 8192, Disk())
    assert reserve.allocate() and reserve.path.stat().st_size == 8192
    assert reserve.release() and not reserve.path.exists() and not reserve.release()

    class Full(Disk):
        def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
            raise DiskFull("no space")

    assert not Reserve(tmp_path / "reserve", 8192, Full()).allocate()


def test_values_are_set_in_a_file_that_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    set_values(path, {"a": "1"})
    assert path.stat().st_mode & 0o777 == 0o600, "a new file is for its owner"
    path.write_text("# kept\na=1\n")
    path.chmod(0o644)
    set_values(path, {"a": "2"})
    assert path.read_text() == "# kept\na=2\n" and path.stat().st_mode & 0o777 == 0o644
    path.write_bytes(b"\xff")
    with pytest.raises(StoreError, match=f"cannot read configuration file {path}: "):
        set_values(path, {"a": "2"})
