"""Snapshot of a store and restore from it.

Requirements: DUR-08, DUR-20.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from small_store import CL, CQ, bodies, message, opened

from saturnmq.protocol.errors import ConfigError, CorruptRecord
from saturnmq.protocol.message import Message
from saturnmq.store import MessageStore, StoreProfile, StoreSettings
from saturnmq.store.tools import repair
from saturnmq.store.tools.restore import restore
from saturnmq.store.tools.snapshot import again, read_manifest, snapshot

SIZES = {"commit_log_file_bytes": CL, "consume_queue_file_bytes": CQ, "index_slots_max": 16, "index_entries_max": 50}


def settings_of(path: Path, **more: Any) -> StoreSettings:
    return StoreSettings(store_path_root_dir=str(path), profile=StoreProfile.SMALL, **(SIZES | more))


def served(path: Path, count: int = 60) -> MessageStore:
    """An open store with messages of which half are flushed."""
    store = opened(path, **SIZES)
    for number in range(count):
        store.put(message(b"%03d" % number * 40, queue=number % 3, properties=b"KEYS\x01k%d" % number))
        if number == count // 2:
            asyncio.run(store.write_all())
    return store


def everything(store: MessageStore) -> set[bytes]:
    return {body for queue in range(3) for body in bodies(store, queue=queue)}


def test_snapshot_of_an_open_store_is_restored_with_all_messages(tmp_path: Path) -> None:
    store = served(tmp_path / "store")
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    end = store.max_physical_offset
    assert (made.log_start, made.log_end) == (0, end)
    store.put(message(b"later"))
    asyncio.run(store.stop())
    report = restore(tmp_path / "saved", tmp_path / "again")
    assert (report.sound, report.problems, report.log_end, report.records) == (True, [], end, 60)
    again = opened(tmp_path / "again", **SIZES)
    assert everything(again) == {b"%03d" % number * 40 for number in range(60)}
    assert len(again.query("T", "k7", 10, 0, 2**62).records) == 1
    assert again.put(message(b"next")).physical_offset == end
    asyncio.run(again.stop())


def test_complete_files_are_links_and_the_others_copies(tmp_path: Path) -> None:
    store = served(tmp_path / "store")
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    linked = {entry.path for entry in made.files if entry.linked}
    for entry in made.files:
        links = (tmp_path / "saved" / entry.path).stat().st_nlink
        assert (links > 1) is entry.linked, entry.path
    logs = sorted(entry.path for entry in made.files if entry.path.startswith("commitlog/"))
    assert len(logs) > 2 and set(logs) - linked == {logs[-1]}
    assert any(path.startswith("consumequeue/T/0/") for path in linked)
    assert any(entry.path.startswith("index/") for entry in made.files)
    assert read_manifest(tmp_path / "saved") == made
    asyncio.run(store.stop())


def test_snapshot_without_links_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = served(tmp_path / "store")

    def refuse(*args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    monkeypatch.undo()
    asyncio.run(store.stop())
    assert not any(entry.linked for entry in made.files)
    assert restore(tmp_path / "saved", tmp_path / "again").records == 60


def test_record_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    store = served(tmp_path / "store", 7)
    end = store.max_physical_offset
    put = store.put(message(b"x" * 300))
    path = tmp_path / "store" / "commitlog" / f"{put.physical_offset // CL * CL:020d}"
    whole = path.read_bytes()
    at = put.physical_offset % CL
    path.write_bytes(whole[: at + 150] + bytes(CL - at - 150))
    assert snapshot(settings_of(tmp_path / "store"), tmp_path / "saved").log_end == end
    path.write_bytes(whole)
    asyncio.run(store.stop())
    assert restore(tmp_path / "saved", tmp_path / "again").records == 7


def test_empty_store_and_store_without_old_files_are_restored(tmp_path: Path) -> None:
    store = opened(tmp_path / "empty", **SIZES)
    snapshot(settings_of(tmp_path / "empty"), tmp_path / "saved-empty")
    asyncio.run(store.stop())
    assert restore(tmp_path / "saved-empty", tmp_path / "empty-again").records == 0
    asyncio.run(served(tmp_path / "store").stop())
    for name in sorted(os.listdir(tmp_path / "store" / "commitlog"))[:2]:
        (tmp_path / "store" / "commitlog" / name).unlink()
    store = opened(tmp_path / "store", **SIZES)
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    assert made.log_start == 2 * CL
    asyncio.run(store.stop())
    assert restore(tmp_path / "saved", tmp_path / "again").log_start == 2 * CL


@pytest.mark.parametrize("harm", ["byte", "short", "missing", "manifest", "outside", "keys", "endless"])
def test_damaged_snapshot_leaves_no_store(tmp_path: Path, harm: str) -> None:
    asyncio.run(served(tmp_path / "store").stop())
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    path = tmp_path / "saved" / made.files[-1].path
    manifest = tmp_path / "saved" / "manifest.json"
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-40])
    elif harm == "outside":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": [["../x", 1, "0", False]]}))
    elif harm == "keys":  # the paths of a store do not come from a manifest
        table = json.loads(manifest.read_text())
        table["keys"]["storePathCommitLog"] = str(tmp_path / "elsewhere")
        manifest.write_text(json.dumps(table))
    elif harm == "endless":
        path.unlink()
        path.symlink_to("/dev/zero")
    else:
        path.unlink()  # perhaps a link to the store's own file
        path.write_bytes(data[:-1] + (b"\xff" if harm == "byte" else b""))
    with pytest.raises(CorruptRecord, match=r"manifest|missing|no regular file"):
        restore(tmp_path / "saved", tmp_path / "again")
    assert sorted(os.listdir(tmp_path)) == ["saved", "store"]


def test_existing_folders_are_not_touched(tmp_path: Path) -> None:
    asyncio.run(served(tmp_path / "store").stop())
    settings = settings_of(tmp_path / "store")
    with pytest.raises(ConfigError, match="lies in the store"):
        snapshot(settings, tmp_path / "store" / "saved")
    snapshot(settings, tmp_path / "saved")
    with pytest.raises(ConfigError, match="saved exists"):
        snapshot(settings, tmp_path / "saved")
    with pytest.raises(ConfigError, match="is not empty"):
        restore(tmp_path / "saved", tmp_path / "store")
    with pytest.raises(ConfigError, match="is no snapshot"):
        restore(tmp_path / "store", tmp_path / "again")
    (tmp_path / "again").mkdir()
    assert restore(tmp_path / "saved", tmp_path / "again").records == 60, "an empty folder, such as a mount point's"


def test_files_deleted_during_the_snapshot_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(served(tmp_path / "store").stop())
    logs = tmp_path / "store" / "commitlog"
    link = os.link

    def retention(source: Path, target: Path) -> None:
        (logs / f"{0:020d}").unlink(missing_ok=True)
        link(source, target)

    monkeypatch.setattr(os, "link", retention)
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    monkeypatch.undo()
    assert made.log_start == CL
    assert restore(tmp_path / "saved", tmp_path / "again").log_start == CL
    calls = iter([FileNotFoundError(), FileNotFoundError(), None])

    def listing() -> str:
        if (error := next(calls)) is not None:
            raise error
        return "listed"

    assert again(listing) == "listed"


@pytest.mark.parametrize("later", ["crash", "rebuild"])
def test_snapshot_outlives_crash_and_rebuild_of_its_store(tmp_path: Path, later: str) -> None:
    store = served(tmp_path / "store")
    snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    for number in range(60):
        store.put(message(b"later%d" % number, queue=number % 3, properties=b"KEYS\x01k%d" % number))
    if later == "crash":
        store.close_files()
        store = opened(tmp_path / "store", **SIZES)
        asyncio.run(store.stop())
    else:
        asyncio.run(store.stop())
        repair.rebuild(settings_of(tmp_path / "store"))
    report = restore(tmp_path / "saved", tmp_path / "again")
    assert (report.records, report.problems) == (60, [])


def test_repair_of_the_store_leaves_its_snapshot_as_it_is(tmp_path: Path) -> None:
    asyncio.run(served(tmp_path / "store").stop())
    settings = settings_of(tmp_path / "store")
    snapshot(settings, tmp_path / "saved")
    path = tmp_path / "saved" / "commitlog" / f"{CL:020d}"
    before = path.read_bytes()
    assert path.stat().st_nlink == 2
    first = next(repair.log_files(settings)[1].records())
    assert isinstance(first, Message)
    repair.cut(settings, repair.loss_at(settings, CL + first.store_bytes))
    assert path.read_bytes() == before and path.stat().st_nlink == 1
    assert restore(tmp_path / "saved", tmp_path / "again").records == 60
