"""Folders of readOnlyCommitLogStorePaths: their files belong to the commit log, new ones are made elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from small_store import CL, CQ, bodies, message, opened

from saturnmq.config.settings import load
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.masterslave.opening import slave_dispatch
from saturnmq.store import MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files import capacity
from saturnmq.store.recovery.hints import store_options
from saturnmq.store.tools.verify import verify


def fill(store: MessageStore, first: int, count: int) -> list[bytes]:
    sent = [b"%02d" % n * 1500 for n in range(first, first + count)]
    for body in sent:
        store.put(message(body))
    return sent


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def moved(tmp_path: Path, **more: str) -> dict[str, str]:
    """Settings after an operator has made the old folder read-only and added a new one."""
    return {"store_path_commit_log": str(tmp_path / "new"), "read_only_commit_log": str(tmp_path / "old")} | more


def old_store(tmp_path: Path) -> list[bytes]:
    store = opened(tmp_path / "store", store_path_commit_log=str(tmp_path / "old"))
    sent = fill(store, 0, 5)
    asyncio.run(store.stop())
    return sent


@pytest.mark.spec("ST-20", "CFG-07")
@pytest.mark.parametrize("listed", ["new", "new,old"])
def test_files_of_a_read_only_folder_are_read_and_new_ones_are_made_elsewhere(tmp_path: Path, listed: str) -> None:
    sent = old_store(tmp_path)
    before = names(tmp_path / "old")
    full = [(tmp_path / "old" / name).read_bytes() for name in before[:-1]]
    folders = ",".join(str(tmp_path / name) for name in listed.split(","))
    store = opened(tmp_path / "store", **moved(tmp_path, store_path_commit_log=folders))
    assert bodies(store) == sent
    sent += fill(store, 5, 5)
    asyncio.run(store.stop())
    assert names(tmp_path / "old") == before and len(names(tmp_path / "new")) == 5
    assert [(tmp_path / "old" / name).read_bytes() for name in before[:-1]] == full
    again = opened(tmp_path / "store", **moved(tmp_path, store_path_commit_log=folders))
    assert bodies(again) == sent
    asyncio.run(again.stop())
    settings = StoreSettings(
        str(tmp_path / "store"),
        folders,
        str(tmp_path / "old"),
        profile=StoreProfile.SMALL,
        commit_log_file_bytes=CL,
        consume_queue_file_bytes=CQ,
    )
    report = verify(settings)
    assert report.sound and report.records == len(sent), report


def test_last_file_of_a_read_only_folder_is_filled_as_in_apache(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", store_path_commit_log=str(tmp_path / "old"))
    store.put(message(b"first"))
    asyncio.run(store.stop())
    store = opened(tmp_path / "store", **moved(tmp_path))
    store.put(message(b"second"))
    assert bodies(store) == [b"first", b"second"]
    assert len(names(tmp_path / "old")) == 1 and not names(tmp_path / "new")
    asyncio.run(store.stop())


@pytest.mark.spec("ST-20")
def test_full_folders_take_files_before_a_read_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_store(tmp_path)
    monkeypatch.setattr(capacity, "used_percent", lambda folder: 99 if folder.name == "new" else 1)
    store = opened(tmp_path / "store", **moved(tmp_path))
    before = names(tmp_path / "old")
    fill(store, 5, 3)
    assert names(tmp_path / "old") == before and len(names(tmp_path / "new")) == 3
    assert store.disk_usage().commit_log == 99, "only folders of storePathCommitLog count"
    asyncio.run(store.stop())


def test_retention_deletes_files_of_a_read_only_folder(tmp_path: Path) -> None:
    async def work() -> None:
        store = opened(tmp_path / "store", **moved(tmp_path), file_reserved_hours=0, delete_when="", delete_pause_ms=0)
        fill(store, 5, 3)
        await store.write_all()
        store.delete_expired_files()
        await store.clean(trust_clock=True)
        assert not names(tmp_path / "old") and store.log.files
        await store.stop()

    old_store(tmp_path)
    asyncio.run(work())


def test_missing_read_only_folder_is_refused_before_anything_changes(tmp_path: Path) -> None:
    sent = old_store(tmp_path)
    (tmp_path / "old").rename(tmp_path / "unmounted")
    with pytest.raises(StoreError, match="old of readOnlyCommitLogStorePaths is not a folder") as caught:
        opened(tmp_path / "store", **moved(tmp_path))
    assert caught.value.hint == "Mount it, or remove it from readOnlyCommitLogStorePaths."
    (tmp_path / "unmounted").rename(tmp_path / "old")
    store = opened(tmp_path / "store", **moved(tmp_path))
    assert bodies(store) == sent
    asyncio.run(store.stop())


def test_slave_reads_its_read_only_folders(tmp_path: Path) -> None:
    sent = old_store(tmp_path)
    settings = StoreSettings(
        str(tmp_path / "store"), commit_log_file_bytes=CL, consume_queue_file_bytes=CQ,
        profile=StoreProfile.SMALL, **moved(tmp_path),
    )  # fmt: skip
    dispatch = slave_dispatch(settings)
    dispatch.store.open()
    assert bodies(dispatch.store) == sent
    dispatch.store.close_files()


@pytest.mark.spec("ST-20")
def test_splitter_of_folders_is_configured(tmp_path: Path) -> None:
    pairs = {
        "rocketmq.broker.multiPathSplitter": ";", "storePathCommitLog": "/a,b; /c ", "readOnlyCommitLogStorePaths": "/d;/c",
        "storePathDLedgerCommitLog": "/x;/y", "enableDLegerCommitLog": "true",
    }  # fmt: skip
    settings = load(StoreSettings, ("file", pairs)).settings
    assert settings.commit_log_dirs == (Path("/a,b"), Path("/c")) and settings.read_only_dirs == (
        Path("/d"),
        Path("/c"),
    )
    assert settings.all_commit_log_dirs == (Path("/a,b"), Path("/c"), Path("/d"))
    options = store_options(settings)
    assert "--set rocketmq.broker.multiPathSplitter=';'" in options
    assert "--set readOnlyCommitLogStorePaths='/d;/c'" in options
    raft = RaftSettings(data_folders_text="/x;/y", read_only_text="/z;/y", path_splitter=";")
    assert raft.data_folders == (Path("/x"), Path("/y"), Path("/z")) and raft.read_only_folders == {
        Path("/z"),
        Path("/y"),
    }


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (
            {"readOnlyCommitLogStorePaths": "s/commitlog", "storePathRootDir": "s"},
            "names every folder of the commit log",
        ),
        (
            {"storePathCommitLog": "/a,/b", "readOnlyCommitLogStorePaths": "/b,/a"},
            "names every folder of the commit log",
        ),
        ({"rocketmq.broker.multiPathSplitter": ""}, "multiPathSplitter must not be empty"),
    ],
)
def test_commit_log_without_a_folder_for_new_files_is_refused(pairs: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(StoreSettings, ("file", pairs))


def test_read_only_ledger_folders_need_one_for_new_files() -> None:
    group = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerPeers": "n0-127.0.0.1:1", "dLegerSelfId": "n0"}
    held = {"readOnlyCommitLogStorePaths": "/d"}
    with pytest.raises(ConfigError, match="storePathDLedgerCommitLog names no folder for new files"):
        load(RaftSettings, ("file", group | held))
    load(RaftSettings, ("file", group | held | {"storePathDLedgerCommitLog": "/e"}))
    load(RaftSettings, ("file", held))
