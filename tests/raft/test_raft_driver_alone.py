"""A member alone on a virtual clock: what it writes before a truncation, and how failures of disk and core reach its callers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_broker_dledger import Alone, bodies_of, message, put

from saturnmq.protocol.errors import CorruptRecord, DiskFull, FlushFailed
from saturnmq.raft import driver
from saturnmq.raft.core.actions import CutLog
from saturnmq.raft.core.messages import Code
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.store import FlushDiskType, PutStatus
from waiting import until


def member_of(alone: Alone) -> RaftMember:
    member = alone.group.member
    assert member is not None
    return member


@pytest.mark.parametrize(
    ("index", "restart", "written"),
    [(3, False, (2, 2)), (5, False, (4, 4)), (9, False, (5, 4)), (3, True, (-1, -1))],
)
async def test_the_checkpoint_is_lowered_before_entries_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, restart: bool, written: tuple[int, int]
) -> None:
    """The next start would take the entries that are missing for damage."""
    alone = Alone(tmp_path)
    async with alone:
        member = member_of(alone)
        done: list[Any] = []
        monkeypatch.setattr(driver, "checkpoint_of", lambda node: LedgerCheckpoint(5, 4, incomplete=True))
        monkeypatch.setattr(member._checkpoint, "write", done.append)
        monkeypatch.setattr(member.files, "cut", lambda *cut, restart: done.append((*cut, restart)))
        await member._cut(CutLog(index=index, end_pos=300, restart=restart))
        assert done == [LedgerCheckpoint(*written, incomplete=True), (index, 300, restart)]
        monkeypatch.undo()


@pytest.mark.spec("DL-S10")
async def test_appends_are_refused_while_there_is_no_space_for_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        member = member_of(alone)

        def full() -> None:
            raise DiskFull("no space for the next file")

        await put(store, b"0")
        with monkeypatch.context() as context:
            context.setattr(member.files, "prepare", full)
            for _ in range(3):
                member._check_space()
            assert member.status().failed is None
            assert store.put(message(b"refused")).status is not PutStatus.PUT_OK
        assert caplog.text.count("no space or descriptor for the next file, appends refused member=n0") == 1
        prepared: list[bool] = []
        prepare = member.files.prepare
        monkeypatch.setattr(member.files, "prepare", lambda: (prepared.append(True), prepare()))
        member._check_space()
        assert prepared == [True]
        await put(store, b"1")
        assert bodies_of(store) == [b"0", b"1"]
        changes = [line for line in caplog.messages if line.startswith("disk state changed")]
        assert changes == [f"disk state changed member=n0 full={full}" for full in (True, False)]


async def test_an_error_of_preparing_a_file_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        member = member_of(alone)

        def broken() -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(member.files, "prepare", broken)
        member._check_space()
        assert "Input/output error" in str(member.status().failed)
        assert "Input/output error" in str(store.failure)


@pytest.mark.spec("DL-S09")
async def test_files_that_cannot_be_deleted_fail_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        await put(store, *[b"x" * 150_000] * 4)
        member = member_of(alone)
        member.keep_from = None

        def broken() -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(member.files, "delete_oldest", broken)
        await until(lambda: member._sync is None)
        assert member.clean(0.99, 0.0, 4) == 0
        assert member.status().failed == "old files cannot be deleted: [Errno 5] Input/output error"


@pytest.mark.parametrize("error", [FlushFailed("errno 5"), OSError(5, "Input/output error")])
async def test_nothing_is_acknowledged_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    alone = Alone(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with alone as store:
        member = member_of(alone)

        def broken() -> None:
            raise error

        monkeypatch.setattr(member.files, "sync_job", lambda: broken)
        outcome = await store.wait_confirmed(store.put(message(b"lost")))
        assert outcome is not PutStatus.PUT_OK
        assert str(error) in str(member.status().failed)
        assert store.put(message()).status is not PutStatus.PUT_OK


async def test_a_core_that_raises_fails_the_member_and_marks_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start repairs the entry before the member stands for election."""
    alone = Alone(tmp_path)
    async with alone:
        member = member_of(alone)
        left: list[int] = []

        def damaged(now_ms: int) -> list[Any]:
            raise CorruptRecord("entry 1 is damaged")

        monkeypatch.setattr(member._damage_mark, "leave", left.append)
        monkeypatch.setattr(member.files, "damaged", 1)
        monkeypatch.setattr(member.node, "tick", damaged)
        member._tick()
        assert left == [1]
        assert member.status().failed == "entry 1 is damaged"
        monkeypatch.undo()


async def test_a_transfer_to_an_unknown_member_is_refused_and_one_at_a_stop_ends(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    async with alone:
        member = member_of(alone)
        response = await member.transfer("n7")
        assert response.code not in (Code.SUCCESS, Code.TERM_CHANGED)
        assert (await member.transfer("n0")).code != Code.TERM_CHANGED
    assert (await member.append([b"late"])).code == Code.TERM_CHANGED
    async with asyncio.timeout(1):
        await member.stop()  # a second one does nothing
