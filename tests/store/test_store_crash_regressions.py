"""Regression tests for defects found by the crash matrix, each reduced to its smallest case."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from harness.crash.disk import RecordingDisk
from harness.crash.states import Volume
from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.store import GetStatus, MessageStore, PutStatus, StoreProfile, StoreSettings, wait_confirmed
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.index.message_index import MessageIndex
from saturnmq.store.queue.consume_queue import UNIT, ConsumeQueue, write_pending
from saturnmq.store.recovery import opening

CL = 2048
CQ = 200
BROKER = Host("127.0.0.1", 10911)


class ReportingDisk(Disk):
    """Records what becomes durable and which names change."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        self.calls.append(("create", path.name))
        return super().create(path, size_bytes, allocate=allocate)

    def make_one_folder(self, path: Path) -> None:
        self.calls.append(("folder", path.name))
        super().make_one_folder(path)

    def sync(self, fd: int) -> None:
        self.calls.append(("sync", ""))
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self.calls.append(("sync folder", folder.name))
        super().sync_folder(folder)

    def unlink(self, path: Path) -> None:
        self.calls.append(("unlink", path.name))
        super().unlink(path)


def message(body: bytes, topic: str = "T", queue: int = 0, properties: bytes = b"") -> Message:
    return Message(topic, body, properties, queue, born_host=BROKER, store_host=BROKER)


def make_store(path: Path, disk: Disk | None = None, hours: int = 72) -> MessageStore:
    return MessageStore(
        StoreSettings(
            store_path_root_dir=str(path),
            commit_log_file_bytes=CL,
            consume_queue_file_bytes=CQ,
            profile=StoreProfile.SMALL,
            file_reserved_hours=hours,
            delete_pause_ms=0,
            disk_percent=95,
        ),
        disk=disk,
    )


def opened(path: Path, disk: Disk | None = None, hours: int = 72) -> MessageStore:
    store = make_store(path, disk, hours)
    store.open()
    return store


def killed(store: MessageStore) -> None:
    store.close_files()


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    result = store.get(topic, 0, store.min_offset(topic, 0), 32)
    if result.status is not GetStatus.FOUND:
        return []
    return [bytes(m.body) for m in decode_records(b"".join(result.buffers))]


@pytest.mark.spec("DUR-04")
def test_folder_entry_is_synced_before_use(tmp_path: Path) -> None:
    disk = ReportingDisk()
    killed(opened(tmp_path / "deep" / "store", disk))
    for name, parent in (("deep", tmp_path.name), ("store", "deep")):
        at = disk.calls.index(("folder", name))
        assert disk.calls[at + 1] == ("sync folder", parent)
    again = ReportingDisk()  # the previous process may have been killed in between
    killed(opened(tmp_path / "deep" / "store", again))
    assert ("sync folder", "deep") in again.calls


@pytest.mark.spec("DUR-08", "RC-07")
@pytest.mark.parametrize("lost", ["the last byte", "the last sector", "a sector in the middle"])
def test_record_with_torn_properties_is_dropped(tmp_path: Path, lost: str) -> None:
    store = opened(tmp_path)
    store.put(message(b"good"))
    torn = store.put(message(b"torn", properties=b"name\x01" + b"v" * 1300))
    killed(store)
    end = torn.physical_offset + torn.size
    begin, stop = {"the last byte": (end - 1, end), "the last sector": (end // 512 * 512, end)}.get(lost, (512, 1024))
    path = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[begin:stop] = bytes(stop - begin)
    path.write_bytes(data)
    store = opened(tmp_path)
    assert bodies(store) == [b"good"]
    assert store.max_physical_offset == torn.physical_offset
    killed(store)


@pytest.mark.spec("DUR-08")
@pytest.mark.parametrize("properties", [b"name\x01ends\0", b"name\x01" + bytes(512) + b"x"])
def test_put_rejects_properties_that_look_torn(tmp_path: Path, properties: bytes) -> None:
    store = opened(tmp_path)
    assert store.put(message(b"", properties=properties)).status is PutStatus.MESSAGE_ILLEGAL
    assert store.put_batch(message(b""), [(b"", properties, 0)]).status is PutStatus.MESSAGE_ILLEGAL
    accepted = store.put(message(b"zero inside", properties=b"name\x01a\0b"))
    killed(store)
    store = opened(tmp_path)
    assert accepted.status is PutStatus.PUT_OK
    assert bodies(store) == [b"zero inside"]
    killed(store)


@pytest.mark.spec("DUR-13", "RC-06")
def test_empty_queue_file_after_crash_is_recreated(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"one"))
    killed(store)
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / ("0" * 20)).touch()
    store = opened(tmp_path)
    assert bodies(store) == [b"one"]
    killed(store)
    assert (folder / ("0" * 20)).stat().st_size == CQ


@pytest.mark.spec("DEL-03", "DUR-09", "RC-10")
def test_log_file_deletion_is_synced_before_the_next(tmp_path: Path) -> None:
    disk = ReportingDisk()
    store = opened(tmp_path, disk, hours=0)
    for _ in range(6):
        store.put(message(b"x" * 900))
    asyncio.run(store.write_all())
    for file in store.log.files:
        (path := file.path).touch()
        assert path.exists()
    store.delete_expired_files()
    asyncio.run(store._maintenance.clean())
    gone = [n for n, call in enumerate(disk.calls) if call[0] == "unlink" and len(call[1]) == 20]
    assert len(gone) == 2
    assert all(disk.calls[n + 1] == ("sync folder", "commitlog") for n in gone)
    killed(store)


@pytest.mark.spec("DUR-04", "ST-01")
def test_log_file_is_synced_before_its_first_record(tmp_path: Path) -> None:
    disk = ReportingDisk()
    store = opened(tmp_path, disk)
    store.put(message(b"x"))
    at = disk.calls.index(("create", "0" * 20))
    assert disk.calls[at + 1 : at + 3] == [("sync", ""), ("sync folder", "commitlog")]
    killed(store)


@pytest.mark.spec("DUR-04", "RC-01")
def test_start_syncs_folders_left_unsynced_by_killed_process(tmp_path: Path) -> None:
    """Otherwise a power loss could drop a file with acknowledged records, or the `abort` file that marks an unclean stop."""
    store = opened(tmp_path)
    store.put(message(b"x"))
    killed(store)
    disk = ReportingDisk()
    store = opened(tmp_path, disk)
    assert ("sync folder", "commitlog") in disk.calls
    assert ("sync folder", tmp_path.name) in disk.calls
    store.put(message(b"y"))
    killed(store)


@pytest.mark.spec("DUR-08", "DUR-20")
def test_start_syncs_zeroed_bytes_before_first_record(tmp_path: Path) -> None:
    """Otherwise a power loss could leave sectors of an old record inside a new one.

    Here no record is left, so the log ends at the start of its file.
    """
    store = opened(tmp_path)
    store.put(message(b"x", properties=b"name\x01" + b"v" * 900))
    killed(store)
    path = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[:512] = bytes(512)
    path.write_bytes(data)
    (tmp_path / "checkpoint").unlink()

    synced: list[bytes] = []

    class Watched(Disk):
        def sync(self, fd: int) -> None:
            if os.fstat(fd).st_ino == path.stat().st_ino:
                synced.append(path.read_bytes())
            super().sync(fd)

    store = opened(tmp_path, Watched())
    assert store.log.end == 0
    assert any(synced[0]) and not any(synced[-1]), "synced when it was found, and behind the zeroing"
    killed(store)


@pytest.mark.spec("DUR-20")
def test_queue_list_is_sorted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for topic in ("b", "a"):
        store.put(message(b"", topic))
    asyncio.run(store.write_all())
    killed(store)
    assert list(json.loads((tmp_path / "queues.json").read_bytes())["queues"]) == ["a", "b"]


@pytest.mark.spec("DUR-13", "RC-10")
@pytest.mark.parametrize("hole", [[(0, 0, 0)], [(0, 0, 0), (10, 100, 0)], [(300, 0, 0)]])
def test_truncate_drops_units_after_a_hole(tmp_path: Path, hole: list[tuple[int, int, int]]) -> None:
    folder, disk = tmp_path / "T" / "0", Disk()
    cache = FileCache(disk)
    queue = ConsumeQueue(folder, CQ, cache)
    units = [(0, 100, 1), (100, 100, 2), *hole, (500, 100, 6)]
    for number, unit in enumerate(units):
        assert queue.append(number, *unit)
    write_pending(queue.begin_flush(), disk)
    cache.close()
    queue = ConsumeQueue(folder, CQ, cache)
    queue._first, queue._tail_at = 0, len(units) * 20
    queue._set_written(len(units) * 20)
    queue.max_physical = 600
    queue.truncate(200)
    assert (queue.max_offset, queue.max_physical) == (2, 200)
    assert (folder / ("0" * 20)).read_bytes() == UNIT.pack(0, 100, 1) + UNIT.pack(100, 100, 2) + bytes(CQ - 40)
    cache.close()


@pytest.mark.spec("DEL-09", "DUR-13", "CQ-07")
def test_log_file_is_kept_until_its_queues_are_durable(tmp_path: Path) -> None:
    store = opened(tmp_path, hours=0)
    store.put(message(b"first of a quiet queue", "quiet"))
    for _ in range(6):
        store.put(message(b"x" * 900))
    asyncio.run(wait_confirmed(store.log, store.log.end, 5000))
    store.delete_expired_files()
    asyncio.run(store._maintenance.clean())
    killed(store)
    store = opened(tmp_path)
    assert store.put(message(b"second", "quiet")).queue_offset == 1
    killed(store)


def quiet_queue(path: Path) -> None:
    """A durable store whose queue `quiet` has two messages, both expired from the log."""
    store = opened(path, hours=0)
    for _ in range(2):
        store.put(message(b"", "quiet"))
    for _ in range(6):
        store.put(message(b"x" * 900))
    asyncio.run(store.write_all())
    store.delete_expired_files()
    asyncio.run(store._maintenance.clean())
    assert store.min_physical_offset > 0
    killed(store)


@pytest.mark.spec("DUR-13", "CQ-07", "CQ-08")
def test_rebuilt_queue_keeps_next_offset_of_expired_records(tmp_path: Path) -> None:
    quiet_queue(tmp_path)
    for path in (tmp_path / "consumequeue").rglob("0" * 20):
        path.unlink()
    for _ in range(2):  # the second start reads what the first one wrote
        store = opened(tmp_path)
        assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (2, 2)
        killed(store)
    store = opened(tmp_path)
    assert store.put(message(b"third", "quiet")).queue_offset == 2
    killed(store)
    store = opened(tmp_path)
    assert bodies(store, "quiet") == [b"third"]
    killed(store)


@pytest.mark.spec("DUR-13", "CQ-12")
def test_partly_deleted_topic_does_not_affect_other_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quiet_queue(tmp_path)
    store = opened(tmp_path)
    for queue in range(2):
        store.put(message(b"", "gone", queue))
    asyncio.run(store.write_all())
    kept = (tmp_path / "consumequeue" / "gone" / "1" / ("0" * 20)).read_bytes()
    store.delete_topic("gone")
    killed(store)
    folder = tmp_path / "consumequeue" / "gone" / "1"
    folder.mkdir(parents=True)
    (folder / ("0" * 20)).write_bytes(kept)
    caplog.clear()
    store = opened(tmp_path)
    assert "consume queues rebuilt" not in caplog.text
    assert (store.max_offset("quiet", 0), store.max_offset("gone", 1)) == (2, 0)
    killed(store)


@pytest.mark.spec("DUR-20", "DUR-13", "CQ-12")
def test_partly_redispatched_deleted_topic_is_not_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    for queue in (0, 1, 0):
        store.put(message(b"", "gone", queue))
    asyncio.run(store.write_all())
    store.put(message(b"", "gone", 0))
    store.delete_topic("gone")
    killed(store)
    for _ in range(3):
        caplog.clear()
        store = opened(tmp_path)
        assert "consume queues rebuilt" not in caplog.text
        assert (store.min_offset("gone", 0), store.max_offset("gone", 0), store.max_offset("gone", 1)) == (2, 3, 0)
        killed(store)


@pytest.mark.spec("DUR-20", "DUR-13", "CQ-12")
def test_recreated_topic_is_recovered_identically_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    store.put(message(b"kept", "kept"))
    asyncio.run(store.write_all())
    for _ in range(3):
        store.put(message(b"old", "again"))
    store.delete_topic("again")
    store.put(message(b"new", "again"))
    killed(store)
    for _ in range(3):
        caplog.clear()
        store = opened(tmp_path)
        assert "all of them" not in caplog.text
        assert bodies(store, "again") == [b"new"]
        killed(store)


@pytest.mark.spec("DUR-13")
def test_topic_deletion_lists_only_durable_offsets(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for topic in ("kept", "gone"):
        store.put(message(b"", topic))
    asyncio.run(store.write_all())
    store.put(message(b"in memory only", "kept"))
    store.delete_topic("gone")
    assert json.loads((tmp_path / "queues.json").read_bytes())["queues"] == {"kept": {"0": [0, 1]}}
    killed(store)


@pytest.mark.spec("DUR-13", "CQ-12")
def test_topic_deleted_during_queue_write_stays_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for topic in ("kept", "gone"):
        store.put(message(b"", topic))
    todo = store.queues.round(0)
    store.delete_topic("gone")
    todo.write(store.disk, store.queues.list_file)
    todo.finish()
    killed(store)
    assert json.loads((tmp_path / "queues.json").read_bytes())["queues"] == {"kept": {"0": [0, 1]}}
    assert not (tmp_path / "consumequeue" / "gone").exists()


@pytest.mark.spec("DUR-20")
def test_queue_without_records_after_crash_is_deleted(tmp_path: Path) -> None:
    killed(opened(tmp_path))
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / ("0" * 20)).write_bytes(bytes(CQ))
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(bytes(CL))
    killed(opened(tmp_path))
    assert not list((tmp_path / "consumequeue").iterdir())


@pytest.mark.spec("DUR-20", "DUR-13")
def test_start_interrupted_after_truncation_loses_no_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list was written, the note was not; the next start dropped the units after the note and was killed."""
    store = opened(tmp_path)
    store.put(message(b"0"))
    asyncio.run(store.write_all())
    store.put(message(b"1"))
    todo = store.queues.round(0)
    todo.write(store.disk, store.queues.list_file)
    todo.finish()
    killed(store)
    with monkeypatch.context() as patch:
        patch.setattr(opening, "good_records", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        store = make_store(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            store.open()
        store.close_files()
    caplog.clear()
    store = opened(tmp_path)
    assert "consume queues rebuilt" not in caplog.text and store.max_offset("T", 0) == 2
    found = [store.get("T", 0, number, 1).buffers[0] for number in range(2)]
    assert [bytes(decode_records(bytes(view))[0].body) for view in found] == [b"0", b"1"]
    killed(store)


@pytest.mark.spec("DUR-13")
@pytest.mark.parametrize("allocate", [True, False], ids=["mapped", "sparse"])
def test_recording_disk_sees_every_byte_of_the_index(tmp_path: Path, allocate: bool) -> None:
    top = tmp_path / "top"
    top.mkdir()
    volume = Volume()
    disk = RecordingDisk(top, volume)
    index = MessageIndex(top / "index", 20, 60, disk, lambda: 1_700_000_000_000, allocate=allocate)
    records = [("T", b"UNIQ_KEY\x01%032X\x02KEYS\x01a b c" % n, n * 200, 1_700_000_000_000 + n) for n in range(40)]
    for at in range(0, 40, 10):
        index.put_many(records[at : at + 10])
    index.close()
    for operation in disk.operations:
        volume.do(operation)
    names, files = volume.live_names(), volume.live_files()
    index_paths = sorted((top / "index").iterdir())
    assert len(index_paths) == 3
    for path in index_paths:
        assert bytes(files[names[f"index/{path.name}"]]) == path.read_bytes()
