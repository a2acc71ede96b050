"""Defects that Apache RocketMQ fixed in its store, which must not come back here; each test names Apache's issue."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from small_store import CL, NOW_MS, USAGE_FINE, bodies, message, opened

from saturnmq.store import PutStatus
from saturnmq.store.files.disk import Disk
from saturnmq.store.index.index_file import STEPS_PER_TURN
from saturnmq.store.index.message_index import MessageIndex


@pytest.mark.spec("UPG-01")
def test_disk_usage_of_missing_folders_creates_none(tmp_path: Path) -> None:
    """ROCKETMQ-5."""
    store = opened(tmp_path / "root", store_path_commit_log=str(tmp_path / "log" / "deep"))
    asyncio.run(store.stop())
    shutil.rmtree(tmp_path / "root")
    usage = store.disk_usage()
    assert list(tmp_path.iterdir()) == []
    assert 0 <= usage.commit_log <= 100 and 0 <= usage.consume_queue <= 100, "of the nearest folder that exists"


@pytest.mark.spec("UPG-02")
def test_put_that_fails_leaves_the_next_one_unaffected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCKETMQ-98: the lock of puts stayed locked after an exception."""
    store = opened(tmp_path)
    first = store.put(message(b"first"))

    def broken(*_: object) -> int:
        raise MemoryError("broken on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(store.log, "append", broken)
        with pytest.raises(MemoryError):
            store.put(message(b"lost"))
    assert store.put(message(b"x" * (5 << 20))).status is PutStatus.MESSAGE_ILLEGAL
    after = store.put(message(b"after"))
    assert (after.status, after.queue_offset, after.physical_offset) == (PutStatus.PUT_OK, 1, first.end_offset)
    assert bodies(store) == [b"first", b"after"]
    asyncio.run(store.stop())


@pytest.mark.spec("UPG-03")
async def test_expired_file_behind_a_younger_one_is_kept(tmp_path: Path) -> None:
    """ROCKETMQ-321: a file in the middle was deleted, which left a hole in the log."""
    store = opened(tmp_path, clock=lambda: NOW_MS, delete_pause_ms=0, delete_queue_pause_ms=0)
    store.disk_usage = lambda: USAGE_FINE  # type: ignore[method-assign]
    for n in range(10):
        store.put(message(b"%02d" % n * 900))
    await store.write_all()
    paths = [file.path for file in store.log.files]
    expired_s = NOW_MS / 1000 - 73 * 3600
    for n, path in enumerate(paths):
        modified_s = expired_s if n in (0, 2) else NOW_MS / 1000
        os.utime(path, (modified_s, modified_s))
    store.delete_expired_files()
    await store._maintenance.clean()
    assert [path.exists() for path in paths] == [False, True, True, True, True]
    assert store.min_physical_offset == CL
    await store.stop()


@pytest.mark.spec("UPG-04")
def test_interleaved_key_searches_find_what_single_ones_find(tmp_path: Path) -> None:
    """ROCKETMQ-25: queries of several threads moved the position of one shared buffer."""
    made = MessageIndex(tmp_path, 1, 3 * STEPS_PER_TURN, Disk(), lambda: NOW_MS)
    keys = ["k0", "k1", "k2"]
    for offset, key in enumerate(keys):
        made.put("T", [key], offset, NOW_MS)
    made.put("T", ["other"] * (2 * STEPS_PER_TURN), 3, NOW_MS)  # before them in the chain of the only slot
    searches = {n: made.search("T", key, 64, 0, 2**62) for n, key in enumerate(keys)}
    found: dict[int, list[int]] = {}
    rounds = 0
    while searches:
        rounds += 1
        for n, search in list(searches.items()):
            try:
                next(search)
            except StopIteration as done:
                found[n] = list(done.value)
                del searches[n]
    assert rounds > 1 and found == {0: [0], 1: [1], 2: [2]}
    made.close()
