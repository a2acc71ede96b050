"""Snapshot of a store and restore from it.

Requirements: DUR-08, DUR-20.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from small_store import CL, CQ, bodies, message, opened

from saturnmq.protocol.errors import ConfigError, CorruptRecord, DiskFull, StoreError
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


def test_state_files_are_saved_without_temporary_ones(tmp_path: Path) -> None:
    store = served(tmp_path / "store")
    names = ["config/topics.json", "config/deep/offsets.json", "conf/accounts.yml", "namesrv/kvConfig.json"]
    for name in [*names, "config/topics.json.tmp", "other/file"]:
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"{name}": 1}}')
        path.chmod(0o640)
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    asyncio.run(store.stop())
    folders = {"config", "conf", "namesrv", "other"}
    assert sorted(entry.path for entry in made.files if entry.path.split("/")[0] in folders) == sorted(names)
    assert restore(tmp_path / "saved", tmp_path / "again").sound
    for name in names:
        copy = tmp_path / "again" / name
        assert copy.read_text() == f'{{"{name}": 1}}' and copy.stat().st_mode & 0o777 == 0o640
    assert not (tmp_path / "again" / "config" / "topics.json.tmp").exists()


def test_extension_of_the_queues_is_saved(tmp_path: Path) -> None:
    more: dict[str, Any] = {"queue_extension_enable": True, "queue_extension_file_bytes": 65_536}
    store = opened(tmp_path / "store", **SIZES, **more)
    store.bit_map = lambda topic, properties: b"\x0f" * 8
    for number in range(10):
        store.put(message(b"%d" % number, properties=b"TAGS\x01a"))
    asyncio.run(store.write_all())
    made = snapshot(settings_of(tmp_path / "store", **more), tmp_path / "saved")
    asyncio.run(store.stop())
    assert made.keys["enableConsumeQueueExt"] == "true" and made.keys["mappedFileSizeConsumeQueueExt"] == "65536"
    saved = [entry for entry in made.files if entry.path.startswith("consumequeue_ext/T/0/")]
    assert len(saved) == 1 and not saved[0].linked and saved[0].bytes == 65_536
    assert restore(tmp_path / "saved", tmp_path / "again").records == 10


def test_manifest_says_what_was_saved(tmp_path: Path) -> None:
    store = served(tmp_path / "store")
    progress: list[tuple[int, int]] = []
    made = snapshot(
        settings_of(tmp_path / "store"), tmp_path / "saved", lambda done, total: progress.append((done, total))
    )
    logs = [entry for entry in made.files if entry.path.startswith("commitlog/")]
    assert progress[-1] == (CL * len(logs),) * 2 and [done for done, _ in progress] == sorted(
        done for done, _ in progress
    )
    assert read_manifest(tmp_path / "saved") == made
    table = json.loads((tmp_path / "saved" / "manifest.json").read_bytes())
    assert (table["format"], table["source"], table["made"]) == (1, str(tmp_path / "store"), made.created)
    assert made.keys == {
        "storeProfile": "SMALL",
        "mappedFileSizeCommitLog": str(CL),
        "mappedFileSizeConsumeQueue": str(CQ),
        "mappedFileSizeConsumeQueueExt": "1048576",
        "maxHashSlotNum": "16",
        "maxIndexNum": "50",
        "enableConsumeQueueExt": "false",
        "messageIndexEnable": "true",
    }
    for entry in made.files:
        data = (tmp_path / "saved" / entry.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.bytes, entry.sha256)
    assert made.total_bytes == sum(entry.bytes for entry in made.files)
    done: list[tuple[int, int]] = []
    restore(tmp_path / "saved", tmp_path / "again", lambda copied, total: done.append((copied, total)))
    assert done[-1] == (made.total_bytes, made.total_bytes)
    asyncio.run(store.stop())


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"format": 2}, ConfigError, "format 2 is unknown, this version reads format 1"),
        ({"keys": {"storePathIndex": "/elsewhere"}}, CorruptRecord, r"keys \['storePathIndex'\] do not belong"),
        ({"keys": 5}, CorruptRecord, "manifest.json is damaged"),
        ({"keys": {"mappedFileSizeCommitLog": "x"}}, ConfigError, r"mappedFileSizeCommitLog='x' \(manifest\)"),
        ({"files": [["a", 1]]}, CorruptRecord, "manifest.json is damaged"),
        ({"logEnd": "x"}, CorruptRecord, "manifest.json is damaged"),
    ],
)
def test_manifest_that_cannot_be_used_is_refused(
    tmp_path: Path, changed: dict[str, Any], kind: type[StoreError], text: str
) -> None:
    asyncio.run(served(tmp_path / "store", 5).stop())
    snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    path = tmp_path / "saved" / "manifest.json"
    table = json.loads(path.read_bytes())
    path.write_text(json.dumps(table | changed))
    with pytest.raises(kind, match=text):
        restore(tmp_path / "saved", tmp_path / "again")
    path.write_text(json.dumps({name: value for name, value in table.items() if name != next(iter(changed))}))
    with pytest.raises(CorruptRecord, match="is damaged"):
        read_manifest(tmp_path / "saved")
    assert not (tmp_path / "again").exists()
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=f"cannot read {path}: Is a directory"):
        read_manifest(tmp_path / "saved")


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreError)]
)
def test_failed_write_names_the_folder_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    asyncio.run(served(tmp_path / "store", 5).stop())
    good = tmp_path / "good"
    snapshot(settings_of(tmp_path / "store"), good)

    def broken(fd: int) -> None:
        raise OSError(number, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(kind, match=f"cannot write the snapshot {tmp_path}/saved.partial: .*broken") as caught:
        snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    assert type(caught.value) is kind and "Remove" in caught.value.hint and not (tmp_path / "saved").exists()
    with pytest.raises(kind, match=f"cannot restore into {tmp_path}/again.restoring: .*broken") as caught:
        restore(good, tmp_path / "again")
    assert type(caught.value) is kind and not any(tmp_path.glob("again*"))


def test_snapshot_that_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    asyncio.run(served(tmp_path / "store").stop())
    made = snapshot(settings_of(tmp_path / "store"), tmp_path / "saved")
    path = tmp_path / "saved" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"logEnd": %d' % made.log_end, b'"logEnd": %d' % (made.log_end + 1)))
    text = f"the restored store ends at offset {made.log_end}, the snapshot was made up to {made.log_end + 1}"
    with pytest.raises(CorruptRecord, match=text):
        restore(tmp_path / "saved", tmp_path / "again")
    (tmp_path / "again.restoring").mkdir()
    with pytest.raises(ConfigError, match=r"again.restoring is left from a restore that did not end; remove it"):
        restore(tmp_path / "saved", tmp_path / "again")
