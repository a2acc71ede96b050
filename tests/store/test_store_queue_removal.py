"""Queues are deleted at once and their files in steps: what is there between two steps, and after a crash there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from small_store import bodies, message, opened
from test_store_crash_regressions import killed

from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store import MessageStore
from saturnmq.store.files.disk import Disk
from saturnmq.store.queue.queues import QueueTable

QUEUES = 5


def filled(path: Path) -> MessageStore:
    """A store with a topic to delete and one to keep, both in files."""
    store = opened(path)
    for queue in range(QUEUES):
        store.put(message(b"old", "Gone", queue))
    store.put(message(b"kept", "Kept"))
    asyncio.run(store.write_all())
    return store


def folders(path: Path) -> set[str]:
    return {folder.name for folder in (path / "consumequeue" / "Gone").glob("*")}


@pytest.mark.spec("CQ-12", "ADM-15")
def test_queues_are_gone_before_their_files(tmp_path: Path) -> None:
    store = filled(tmp_path)
    steps = store.deleting_topics({"Gone"})
    next(steps)
    assert {topic for topic, _ in store.topic_queues()} == {"Kept"} and bodies(store, "Gone") == []
    assert json.loads((tmp_path / "queues.json").read_bytes())["queues"].keys() == {"Kept"}
    left = [len(folders(tmp_path)) for _ in steps]
    assert left == [4, 3, 2, 1, 0], "one queue a step"
    assert not (tmp_path / "consumequeue" / "Gone").exists() and bodies(store, "Kept") == [b"kept"]
    asyncio.run(store.stop())


@pytest.mark.spec("CQ-12", "DUR-13")
@pytest.mark.parametrize("written", [False, True])
def test_queue_that_returns_between_two_steps_is_kept(
    tmp_path: Path, written: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    steps = store.deleting_topics({"Gone"})
    next(steps)
    for queue in (0, 4):
        assert store.put(message(b"new", "Gone", queue)).queue_offset == 0
    if written:
        asyncio.run(store.write_all())
    assert sum(1 for _ in steps) == QUEUES
    assert {key for key in store.topic_queues() if key[0] == "Gone"} == {("Gone", 0), ("Gone", 4)}
    killed(store)
    store = opened(tmp_path)
    assert "consume queues rebuilt" not in caplog.text
    assert [bodies(store, "Gone", queue) for queue in range(QUEUES)] == [[b"new"], [], [], [], [b"new"]]
    asyncio.run(store.stop())


@pytest.mark.spec("CQ-12", "DUR-13")
@pytest.mark.parametrize("steps", range(QUEUES + 1))
def test_crash_between_two_steps_deletes_the_rest_at_the_next_start(
    tmp_path: Path, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    work = store.deleting_topics({"Gone"})
    for _ in range(steps + 1):
        next(work)
    killed(store)
    caplog.clear()
    store = opened(tmp_path)
    assert "consume queues rebuilt" not in caplog.text
    assert {topic for topic, _ in store.topic_queues()} == {"Kept"} and not folders(tmp_path)
    asyncio.run(store.stop())


def table(path: Path) -> QueueTable:
    return QueueTable(path / "queues", 400, Disk(), path / "queues.json", lambda: PhysicalOffset(0))


def written(path: Path, *keys: tuple[str, int]) -> None:
    """Queues of one unit each in files, and the list of them."""
    queues = table(path)
    for key in keys:
        assert queues.get_or_make(*key).append(0, 0, 100, 7)
        queues.dirty.add(key)
    todo = queues.round(0)
    todo.write(queues.disk, queues.list_file)
    todo.finish()
    queues.close()


def test_queue_that_is_not_listed_is_deleted_beside_others_of_its_topic(tmp_path: Path) -> None:
    written(tmp_path, ("T", 0), ("T", 1), ("U", 0))
    written(tmp_path, ("T", 1))  # the list has this one only
    queues = table(tmp_path)
    assert queues.load(linear=False, use_list=True) == []
    queues.drop_unlisted()
    assert list(queues.by_key) == [("T", 1)] and queues.by_key["T", 1].unit(0) == (0, 100, 7)
    assert [str(path.relative_to(queues.folder)) for path in sorted(queues.folder.rglob("*"))] == [
        "T", "T/1", "T/1/" + "0" * 20,
    ]  # fmt: skip
    queues.close()


def test_queues_without_units_are_deleted(tmp_path: Path) -> None:
    written(tmp_path, ("T", 0), ("T", 1))
    (tmp_path / "queues" / "T" / "0" / ("0" * 20)).write_bytes(bytes(400))
    queues = table(tmp_path)
    queues.load(linear=False, use_list=False)
    queues.drop_empty()
    assert list(queues.by_key) == [("T", 1)]
    assert [path.name for path in (tmp_path / "queues" / "T").iterdir()] == ["1"]
    queues.close()
