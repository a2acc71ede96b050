"""A member of a group: what it reports of itself, loss of the role, failures, appends of clients, and retention of its ledger."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_broker_dledger import Alone, bodies_of, message, one_settings, put

from saturnmq.net import NetSettings
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import CorruptRecord, FlushFailed, SaturnError, StoreError
from saturnmq.protocol.message import encode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.messages import Code
from saturnmq.replication.dledger import dispatch
from saturnmq.replication.dledger.dispatch import GroupDispatch
from saturnmq.replication.dledger.failure import MARK_NAME
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import MessageStore, PutStatus

MIB = 1 << 20


# ---- what it reports


def test_a_member_that_is_not_open_reports_its_configuration(tmp_path: Path) -> None:
    """Metrics and the admin ports read it while the store is being opened."""
    settings, raft = one_settings(tmp_path)
    member = GroupMember(settings, raft, NetSettings())
    assert member.member is None
    assert member.status() is None
    assert member.behind() == []
    assert member.damaged_entries == 0
    assert member.peers == raft.peers
    assert member.voters == ("n0",)
    assert (member.host("n0"), member.host("n1")) == ("127.0.0.1", "")
    assert not any((member.elected, member.leads, member.serving, member.settled, member.transferring))


async def test_a_serving_leader_reports_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(tmp_path)
    async with alone:
        group = alone.group
        assert all((group.elected, group.leads, group.serving, group.settled))
        assert not group.transferring
        assert group.peers == group.raft.peers
        assert group.voters == ("n0",)
        status = group.status()
        assert status is not None and status.self_id == "n0"
        assert group.behind() == [], "itself is no other member"
        monkeypatch.setattr(type(group.member.node), "transferring", True)  # type: ignore[union-attr]
        assert group.transferring and not group.settled
        monkeypatch.setattr(type(group.member), "damaged_entries", 3)
        assert group.damaged_entries == 3
        monkeypatch.undo()
        group.stop_serving()
        assert group.elected and group.leads and not group.serving and not group.settled


# ---- loss of the role, and failures


@pytest.mark.spec("DL-C03")
async def test_a_member_that_lost_its_role_refuses_puts_and_ends_waits(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        group, roles = alone.group, []
        await put(store, b"first")
        group.on_role = lambda: roles.append(store.put(message()).status)
        outcomes: list[PutStatus] = []
        position = PhysicalOffset(store.log.end + 1000)
        store.log.when_confirmed(position, 5000, lambda status, _: outcomes.append(status))
        assert store.put(message()).queue_offset == 1
        group.role_changed(Role.FOLLOWER, 2, None)
        assert roles == [PutStatus.SERVICE_NOT_AVAILABLE], "reported when puts are refused already"
        assert outcomes == [PutStatus.SERVICE_NOT_AVAILABLE]
        assert store.queues.by_key[("T", 0)].next_offset == 1, "the next leader may not have it"
        assert store.failure is None
        assert not (tmp_path / "dledger" / MARK_NAME).exists()


@pytest.mark.spec("DUR-06")
async def test_a_member_whose_ledger_failed_stops_writing_and_marks_it_once(tmp_path: Path) -> None:
    """The next start drops what may not be on the disk."""
    alone = Alone(tmp_path)
    async with alone as store:
        await put(store, b"first")
        group = alone.group
        node = group.member.node  # type: ignore[union-attr]
        synced = node.synced_index
        node._state.failed = "fsync: errno 5"
        group.role_changed(Role.FOLLOWER, 1, None)
        assert str(store.failure) == "the ledger failed: fsync: errno 5"
        marker = group.member.files.folder / MARK_NAME  # type: ignore[union-attr]
        written = json.loads(marker.read_bytes())
        assert written == {
            "durable_index": synced, "acknowledged_index": node.acked_index, "reason": "the ledger failed: fsync: errno 5"
        }  # fmt: skip
        marker.unlink()
        group.log.mark_failure("again")
        assert not marker.exists(), "the first reason counts"


@pytest.mark.spec("DUR-06")
@pytest.mark.parametrize("error", [FlushFailed("errno 5"), OSError(5, "Input/output error")])
async def test_a_failed_last_sync_is_marked_and_raised(tmp_path: Path, error: Exception) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        member = alone.group.member
        assert member is not None
        stop = member.stop

        async def failing() -> None:
            raise error

        member.stop = failing  # type: ignore[method-assign]
        with pytest.raises(type(error)):
            await store.log.stop_appends()
        written = json.loads((member.files.folder / MARK_NAME).read_bytes())
        assert written["reason"] == f"the ledger's last sync failed: {error}"
        assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
        member.stop = stop  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("error", "failure"),
    [(CorruptRecord("no record at 48"), CorruptRecord), (OSError(5, "Input/output error"), StoreError)],
)
async def test_a_dispatch_that_fails_stops_writing(
    tmp_path: Path, error: Exception, failure: type[SaturnError]
) -> None:
    """Consumers would miss what is not dispatched, and sends would be acknowledged."""
    alone = Alone(tmp_path)
    async with alone as store:

        def failing(count_max: int) -> bool:
            raise error

        alone.group.dispatch.dispatch_some = failing  # type: ignore[method-assign]
        alone.group.dispatch.confirmed(store.log.end)
        assert type(store.failure) is failure
        assert str(error) in str(store.failure)
        assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE


# ---- dispatch


@pytest.mark.spec("DL-B12")
async def test_committed_messages_are_dispatched_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long backlog must not hold the event loop; no later commit is needed for the rest."""
    monkeypatch.setattr(dispatch, "DISPATCH_STEP", 3)
    async with Alone(tmp_path) as store:
        steps: list[int] = []
        begin = store.dispatched
        for number in range(10):
            store.put_soon(message(b"%d" % number), lambda status, reason: None)
        loop = asyncio.get_running_loop()

        def look() -> None:
            steps.append(store.max_offset("T", 0))
            if store.max_offset("T", 0) < 10:
                loop.call_soon(look)

        look()
        await put(store, b"10")
        growth = [after - before for before, after in itertools.pairwise(steps)]
        assert store.dispatched > begin
        assert max(growth) <= 3
        assert bodies_of(store) == [b"%d" % number for number in range(11)]


def detached(**store: Any) -> tuple[GroupDispatch, Any, Any]:
    """A dispatch, and stubs of its log and store."""
    log = SimpleNamespace(files=[], divided=0, ledger=None, committed_pos=0)
    stub = SimpleNamespace(**{"dispatched": 0, "restarts": []} | store)
    stub.dispatch_again = stub.restarts.append
    return GroupDispatch(log, stub), log, stub  # type: ignore[arg-type]


def test_entries_without_a_file_are_left_to_the_reference_implementation() -> None:
    """Any other number than 0 would count as progress, and the event loop would try again without end."""
    group_dispatch, log, _ = detached(dispatched=4096)
    assert dispatch.dispatch_plain(group_dispatch, 5) == 0
    file = SimpleNamespace(view=memoryview(bytes(4096)), start=0, end=4096)
    for found, end_pos in ((None, 8192), (file, 4096)):
        log.ledger = SimpleNamespace(end_pos=end_pos, data=SimpleNamespace(find=lambda pos, found=found: found))
        assert dispatch.dispatch_plain(group_dispatch, 5) == 0


def test_recovery_reads_from_the_first_change_that_is_not_saved() -> None:
    """Topics and groups of entries before it are in their files; those behind it would be lost."""
    group_dispatch, _, _ = detached()
    assert group_dispatch.replay_from(PhysicalOffset(700)) == 700
    group_dispatch.unsaved.extend([100, 300, 500])
    assert group_dispatch.replay_from(PhysicalOffset(700)) == 100
    assert group_dispatch.replay_from(PhysicalOffset(50)) == 50
    group_dispatch.saved(100)
    assert list(group_dispatch.unsaved) == [100, 300, 500], "the change at 100 is not before 100"
    group_dispatch.saved(500)
    assert list(group_dispatch.unsaved) == [500]
    group_dispatch.saved(10_000)
    assert group_dispatch.replay_from(PhysicalOffset(700)) == 700


@pytest.mark.spec("DL-S12")
@pytest.mark.parametrize(("dispatched", "restarts"), [(4096, []), (5000, []), (4095, [4096])])
def test_queues_are_rebuilt_if_the_ledger_begins_behind_them(dispatched: int, restarts: list[int]) -> None:
    """Retention deletes only what is dispatched; a leader that replaces the log of a lagging member leaves a gap."""
    group_dispatch, log, store = detached(dispatched=dispatched)
    log.ledger = SimpleNamespace(begin_pos=4096)
    log.committed_pos = dispatched
    group_dispatch.dispatch_some(1)
    assert store.restarts == restarts
    assert group_dispatch.gap is bool(restarts)
    group_dispatch.dispatch_some(1)
    assert store.restarts == restarts, "once for each begin"


@pytest.mark.spec("DL-U05")
def test_an_old_log_of_another_length_than_the_groups_is_refused() -> None:
    group_dispatch, log, store = detached(dispatched=8192)
    log.files, log.divided = ["old"], 4096
    log.ledger = SimpleNamespace(begin_pos=4096)
    log.committed_pos = 8192
    assert group_dispatch.dispatch_some(1) is False
    log.ledger.begin_pos = 8192
    with pytest.raises(StoreError, match="old commit log ends at 4096, the group's ledger begins at 8192"):
        group_dispatch.dispatch_some(1)
    assert store.restarts == []


# ---- appends of clients


@pytest.mark.spec("SEC-18")
async def test_appends_of_clients_are_answered_with_what_became_of_them(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        group, member = alone.group, alone.group.member
        assert member is not None and member.append_for_client is not None
        group.has_queue = lambda topic, queue_id: (topic, queue_id) == ("T", 0)
        answers: list[Any] = []

        async def answer(body: bytes) -> Any:
            answers.clear()
            member.append_for_client(body, answers.append)
            while not answers:
                await asyncio.sleep(0)  # the ledger commits
            return answers[0]

        good = encode_record(message(b"good"))
        response = await answer(good)
        assert response.code == Code.SUCCESS
        assert (response.group, response.term, response.leader_id) == ("g", member.node.term, "n0")
        assert response.index == member.files.end_index
        assert response.pos + 48 == store.physical_offset("T", 0, 0)
        assert bodies_of(store) == [b"good"]
        refused = {
            "no record": b"x" * 100,
            "changed": good.replace(b"good", b"evil"),
            "no such queue": encode_record(message(b"x", queue_id=1)),
            "no such topic": encode_record(message(b"x", "U")),
            "transaction": encode_record(message(b"x", sys_flag=int(SysFlag.PREPARED))),
        }
        for name, body in refused.items():
            response = await answer(body)
            assert (response.code, response.index, response.pos) == (Code.UNEXPECTED_ARGUMENT, -1, -1), name
        group.stop_serving()
        assert (await answer(good)).code == Code.LEADER_NOT_READY
        assert bodies_of(store) == [b"good"]
        group.begin_serving()
        store.stop_writing(StoreError("disk"))
        assert (await answer(good)).code == Code.UNEXPECTED_ARGUMENT


# ---- retention


async def old_store(folder: Path, count: int = 600) -> None:
    """A store of a broker without DLedger, with more than one file."""
    settings, _ = one_settings(folder)
    store = MessageStore(settings)
    store.open()
    await store.start()
    for number in range(count):
        assert store.put(message(b"%d" % number * 300)).status is PutStatus.PUT_OK
    await store.stop()


@pytest.mark.spec("DL-U03")
async def test_the_ledger_is_kept_until_the_old_log_is_deleted(tmp_path: Path) -> None:
    """Offsets would have a gap between the two."""
    await old_store(tmp_path)
    alone = Alone(tmp_path, delete_when="05;03", file_reserved_hours=72, disk_percent=80)
    async with alone as store:
        await put(store, b"in the ledger")
        member, log = alone.group.member, alone.group.log
        assert member is not None
        count = len(log.files)
        assert count > 1
        kept = member.retention
        assert (kept.delete_hours, kept.reserved_hours, kept.force_enabled) == ((3, 5), 87_600, False)
        ends = [file.end for file in log.files]
        assert [log.expendable(PhysicalOffset(end)) for end in (0, ends[0] - 1, ends[0], ends[-1])] == [0, 0, 1, count]
        for left in range(count - 1, -1, -1):
            assert member.retention.reserved_hours == 87_600
            await log.truncate_front("test")
            assert len(log.files) == left
        after = member.retention
        assert (after.delete_hours, after.reserved_hours, after.force_enabled) == ((3, 5), 73, True)
        assert after.check_ratio == 0.8
        assert log.first_position == log.ledger.begin_pos == ends[-1]  # type: ignore[union-attr]


@pytest.mark.spec("DEL-08")
async def test_files_of_the_ledger_expire_at_once_if_an_operator_asks(tmp_path: Path) -> None:
    """The hour that is given is one of deleteWhen, so that it is due now."""
    alone = Alone(tmp_path, delete_when="05;03")
    async with alone as store:
        cleaned: list[tuple[float, int]] = []
        alone.group.member.clean = lambda used, now, hour: cleaned.append((used, hour))  # type: ignore
        store.log.expire(87)
        assert cleaned == [(0.87, 3)]


async def test_pages_of_the_ledger_are_forgotten_32_mib_before_what_is_flushed(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        forgotten: list[int] = []
        files = [
            SimpleNamespace(start=start * MIB, end=(start + 100) * MIB, forget_pages=forgotten.append)
            for start in (0, 100, 200)
        ]
        real = store.log.ledger.data.files
        store.log.ledger.data.files = files
        try:
            store.log.forget_pages(PhysicalOffset(120 * MIB))
            assert forgotten == [88 * MIB, 88 * MIB]
            forgotten.clear()
            store.log.forget_pages(PhysicalOffset(200 * MIB))
            assert forgotten == [100 * MIB, 168 * MIB]
        finally:
            store.log.ledger.data.files = real
