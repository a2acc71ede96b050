"""A round of many consume queues is written by several threads, so that a stop ends in time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from saturnmq.protocol.message import Host, Message
from saturnmq.store import MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.queue.queues import AT_ONCE

DEADLINE_SECONDS = 45.0
QUEUES = 4 * AT_ONCE
HOST = Host("127.0.0.1", 10911)


class MeetingDisk(Disk):
    """The creation of a queue's file waits until AT_ONCE of them are under way. broken: the queue whose file fails."""

    def __init__(self) -> None:
        self.together = threading.Barrier(AT_ONCE, self._met, DEADLINE_SECONDS)
        self.meetings = 0
        self.broken = -1

    def _met(self) -> None:
        self.meetings += 1

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        fd = super().create(path, size_bytes, allocate=allocate)
        if "consumequeue" in path.parts:
            self.together.wait()
            if path.parent.name == str(self.broken):
                super().close(fd)
                raise OSError(5, "I/O error")
        return fd


def filled(folder: Path, disk: Disk, queues: int) -> MessageStore:
    settings = StoreSettings(store_path_root_dir=str(folder), profile=StoreProfile.SMALL, consume_queue_file_bytes=4000)
    store = MessageStore(settings, disk=disk)
    store.open()
    for queue_id in range(queues):
        store.put(Message("T", b"body", queue_id=queue_id, born_host=HOST, store_host=HOST))
    return store


@pytest.mark.spec("DUR-17")
def test_stop_syncs_many_queues_at_the_same_time(tmp_path: Path) -> None:
    disk = MeetingDisk()
    store = filled(tmp_path, disk, QUEUES)
    asyncio.run(store.stop())
    assert disk.meetings == 4
    again = filled(tmp_path, Disk(), 0)
    assert all(again.queues.by_key["T", number].max_offset == 1 for number in range(QUEUES))
    asyncio.run(again.stop())


@pytest.mark.spec("DUR-06", "DUR-17")
def test_failed_write_among_many_queues_fails_the_round(tmp_path: Path) -> None:
    """The other threads have ended by then, nothing counts as written, and the next start writes the queues again."""
    disk = MeetingDisk()
    disk.broken = 5
    store = filled(tmp_path, disk, QUEUES)
    todo = store.queues.round(0)
    with pytest.raises(OSError, match="I/O error"):
        todo.write(disk, store.queues.list_file)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("saturnmq-queues")]
    assert not (tmp_path / "queues.json").exists()
    assert disk.meetings == 1
    store.queues.restore_dirty(todo)
    store.close_files()
    again = filled(tmp_path, Disk(), 0)
    assert all(again.queues.by_key["T", number].max_offset == 1 for number in range(QUEUES))
    asyncio.run(again.stop())
