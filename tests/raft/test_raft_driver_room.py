"""Room on disk, as a running member keeps it: old files go under load too, and the right disks are looked at."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from raftgroup import DEADLINE_SECONDS, Group

from saturnmq.raft.core.messages import Code
from saturnmq.store.disk import Disk

YEAR_S = 366 * 86400


class GatedDisk(Disk):
    """What another thread syncs waits while the gate is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, fd: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert self.gate.wait(DEADLINE_SECONDS)
        super().sync(fd)


@pytest.mark.spec("DL-S09", "DL-S10", "DUR-15")
@pytest.mark.parametrize(("used_ratio", "now_s"), [(0.1, time.time() + YEAR_S), (0.97, time.time())])
def test_old_files_go_between_two_syncs_when_there_always_is_one_under_way(
    tmp_path: Path, used_ratio: float, now_s: float
) -> None:
    """By age, and forced by a full disk: both would wait for ever for a moment without a sync."""

    async def run() -> None:
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
        second = asyncio.ensure_future(member.append([b"second"]))  # its sync follows the first one at once
        await made.until(lambda: member._sync_wanted is not None, "the second one is not appended")
        assert member.clean(used_ratio, now_s, 4) == 0
        assert member.files.begin_index == 0
        disk.gate.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert [(await first).code, (await second).code] == [Code.SUCCESS, Code.SUCCESS]
        assert len(member.files.data.files) < files
        assert member.status().begin_index == member.files.begin_index > 0
        await made.stop("n0")

    asyncio.run(run())
