"""Disk space of a running member: retention also under load, and which disks' usage counts."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from raftgroup import DEADLINE_SECONDS, Group

from saturnmq.raft.core.messages import Code
from saturnmq.raft.ledger.space import member_ratio, takes_files
from saturnmq.store.files.disk import Disk

YEAR_S = 366 * 86400


class GatedDisk(Disk):
    """Syncs of other threads block while the gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, fd: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert self.gate.wait(DEADLINE_SECONDS)
        super().sync(fd)


@pytest.mark.spec("DL-S09", "DL-S10", "DUR-15")
@pytest.mark.parametrize(
    ("used_ratio", "now_s"), [(0.1, time.time() + YEAR_S), (0.97, time.time())], ids=["old", "full"]
)
async def test_retention_runs_between_back_to_back_syncs(tmp_path: Path, used_ratio: float, now_s: float) -> None:
    """By age, and forced by a full disk: neither may wait for a moment without a sync, which never comes under load."""
    disk = GatedDisk()
    made = Group(tmp_path, 1, disk=disk, file_bytes=4096)
    member = await made.start("n0")
    for _ in range(20):
        await made.append(b"x" * 800)
    files = len(member.files.data.files)
    assert files >= 4
    disk.gate.clear()
    first = asyncio.ensure_future(member.append([b"first"]))
    await made.until(lambda: member._sync is not None, "no sync is under way")
    second = asyncio.ensure_future(member.append([b"second"]))  # its sync starts right after the first one
    await made.until(lambda: member._sync_wanted is not None, "the second one is not appended")
    assert member.clean(used_ratio, now_s, 4) == 0
    assert member.files.begin_index == 0
    disk.gate.set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert [(await first).code, (await second).code] == [Code.SUCCESS, Code.SUCCESS]
    assert len(member.files.data.files) < files
    assert member.status().begin_index == member.files.begin_index > 0
    await made.stop("n0")


def used(ratios: dict[Path, float]) -> Callable[[Path], SimpleNamespace]:
    """A stand-in for shutil.disk_usage; each folder here is a disk of its own, everything else is nearly empty."""

    def disk_usage(path: Path) -> SimpleNamespace:
        ratio = next((ratios[folder] for folder in (path, *path.parents) if folder in ratios), 0.1)
        return SimpleNamespace(total=1000, used=round(ratio * 1000), free=1000 - round(ratio * 1000))

    return disk_usage


@pytest.mark.spec("DL-S10", "DL-S13")
@pytest.mark.parametrize(
    ("own", "data", "read_only", "expected"),
    [
        (0.2, {"a": 0.9}, "", 0.9),
        (0.9, {"a": 0.2}, "", 0.9),
        (0.2, {"a": 0.9, "b": 0.3}, "", 0.3),
        (0.2, {"a": 0.9, "b": 0.3}, "b", 0.9),  # a read-only folder's space does not count
        (0.2, {"a": 0.3, "b": 0.9}, "b", 0.3),
        (0.2, {"a": 0.3}, "a", 0.3),
        (0.2, {}, "", 0.2),
    ],
)
def test_member_ratio_is_the_higher_of_own_disk_and_emptiest_data_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: float,
    data: dict[str, float],
    read_only: str,
    expected: float,
) -> None:
    folders = [tmp_path / name / "not" / "made" for name in data]
    for name in data:
        (tmp_path / name).mkdir()
    (tmp_path / "own").mkdir()
    ratios = {tmp_path / name: ratio for name, ratio in data.items()} | {tmp_path / "own": own}
    monkeypatch.setattr(shutil, "disk_usage", used(ratios))
    held = {folder for folder in folders if folder.parts[-3] == read_only}
    assert member_ratio(tmp_path / "own", folders, held) == expected


@pytest.mark.spec("DL-S13")
async def test_full_and_read_only_data_folders_get_no_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = {tmp_path / name: ratio for name, ratio in (("a", 0.85), ("b", 0.86), ("c", 0.2))}
    monkeypatch.setattr(shutil, "disk_usage", used(ratios))
    for folder in ratios:
        folder.mkdir()
    a, b, c = ratios
    assert [takes_files(folder, [a, b, c], {c}, 0.85) for folder in (a, b, c)] == [True, False, False]
    assert takes_files(b, [b], (), 0.85)  # it is the only folder
    several = ",".join(map(str, ratios))
    made = Group(tmp_path, 1, data_folders_text=several, read_only_text=str(c))
    member = await made.start("n0")
    assert [member._may_grow(folder) for folder in (a, b, c)] == [True, False, False]
    await made.append(b"x")
    assert [file.path.parent for file in member.files.data.files] == [a]
    await made.stop("n0")


@pytest.mark.spec("DL-S09", "DL-S10", "DL-S13", "DUR-15")
async def test_full_data_disk_refuses_appends_and_forces_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "ledger"
    other.mkdir(parents=True)
    ratios = {tmp_path / "other": 0.2}
    monkeypatch.setattr(shutil, "disk_usage", used(ratios))
    made = Group(tmp_path, 1, file_bytes=4096, data_folders_text=str(other))
    member = await made.start("n0")
    for _ in range(20):
        await made.append(b"x" * 800)
    assert {file.path.parent for file in member.files.data.files} == {other}
    ratios[tmp_path / "other"] = 0.97
    member._next_clean_ms = 0
    await made.until(lambda: member.node and member.node.is_disk_full, "the full disk is not seen")
    await made.until(lambda: member.status().begin_index > 0, "no file went")
    assert (await member.append([b"y"])).code == Code.DISK_FULL
    ratios[tmp_path / "other"] = 0.2
    member._next_clean_ms = 0
    await made.append(b"z")
    await made.stop("n0")
