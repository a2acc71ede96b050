"""The log of a group member: waits for a commit, when entries are discarded, and the messages of one dispatch step."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokergroup import ledger, ledger_group
from test_broker_dledger import Alone, bodies_of, message, put

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.dledger import opening
from saturnmq.store import PutStatus
from saturnmq.store.queue.consume_queue import UNIT_BYTES
from waiting import until


def later(end: int, count: int) -> PhysicalOffset:
    return PhysicalOffset(end + count)


@pytest.mark.spec("DL-B07")
async def test_a_commit_ends_the_waits_for_its_position_and_no_later_one(tmp_path: Path) -> None:
    """Delivery of delayed and timed messages waits so before it saves its position."""
    async with Alone(tmp_path) as store:
        outcomes: list[tuple[str, PutStatus]] = []
        end = store.log.end
        for name, position in (("before", end), ("exact", later(end, 10)), ("behind", later(end, 11))):
            store.log.when_confirmed(position, 5000, lambda status, _, name=name: outcomes.append((name, status)))
        assert outcomes == [("before", PutStatus.PUT_OK)]
        store.log.advance(later(end, 9))
        assert outcomes[1:] == []
        store.log.advance(later(end, 10))
        assert outcomes[1:] == [("exact", PutStatus.PUT_OK)]
        store.log.fail_waiters()
        assert outcomes[2:] == [("behind", PutStatus.SERVICE_NOT_AVAILABLE)]


async def test_a_wait_for_a_commit_ends_in_time(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        clock = asyncio.get_running_loop().time
        begin, ended = clock(), asyncio.Event()
        outcomes: list[PutStatus] = []

        def outcome(status: PutStatus, reason: str) -> None:
            outcomes.append(status)
            ended.set()

        store.log.when_confirmed(later(store.log.end, 10), 3000, outcome)
        await ended.wait()
        assert outcomes == [PutStatus.FLUSH_DISK_TIMEOUT]
        assert clock() - begin == pytest.approx(3, abs=0.1)


async def test_entries_leave_in_the_event_loop_iteration_that_appended_them(tmp_path: Path) -> None:
    """The members would get each entry, and answer its sender, one iteration of the event loop later."""
    async with Alone(tmp_path) as store:
        node = store.log.member.node
        pushed: list[int] = []
        real = node.push

        def push(now_ms: int) -> Any:
            pushed.append(node.end_index)
            return real(now_ms)

        node.push = push
        store.put(message())
        assert pushed == []
        store.log.start_flush()
        assert pushed == [node.end_index]
        store.log.start_flush()  # nothing new
        assert pushed == [node.end_index]
        await put(store, b"next")


@pytest.mark.spec("DL-B12")
async def test_a_leader_dispatches_what_was_committed_together_at_once(tmp_path: Path) -> None:
    """One by one, each message would cost a pass through queues, index and listeners of its own."""
    async with Alone(tmp_path) as store:
        calls: list[int] = []
        store.on_append = lambda topic, queue_id, offset, units: calls.append(len(units))
        for number in range(100):
            store.put_soon(message(b"%d" % number), lambda status, reason: None)
        await put(store, b"last")
        assert sum(calls) == 101
        assert max(calls) >= 50


async def test_a_leader_says_how_far_each_other_member_is_behind(tmp_path: Path) -> None:
    """Alarms on replication lag read it; a follower has no such figure."""
    async with ledger_group(tmp_path) as group:
        await group.send(b"body")
        master = await group.master()
        others = {address: 0 for name, address in group.addresses.items() if name != group.name_of(master)}
        member = ledger(master)
        await until(lambda: dict(member.behind()) == others, why=member.behind)
        stopped = group.followers()[0]
        name = group.name_of(stopped)
        await group.stop(name)
        before = member.log.end
        await group.send(b"not there")
        assert dict(member.behind())[group.addresses[name]] >= member.log.end - before > 0


@pytest.mark.spec("DL-B12")
async def test_a_queue_that_was_being_deleted_is_gone_after_a_crash(tmp_path: Path) -> None:
    """Its topic could be created again, and consumers would be given the messages of the old one."""
    async with Alone(tmp_path) as store:
        await put(store, b"0", b"1")
        todo = store.queues.round(0)
        todo.write(store.disk, store.queues.list_file)
        todo.finish()
    root = tmp_path / "consumequeue"
    shutil.copytree(root / "T", root / "Deleted")  # no list names it
    (tmp_path / "abort").touch()
    async with Alone(tmp_path) as store:
        assert set(store.topic_queues()) == {("T", 0)}
        assert not (root / "Deleted").exists()


# ---- what a start does


class Reopened(Alone):
    """The same, but queues and index are rebuilt, and `steps` holds the reported progress."""

    def __init__(self, folder: Path, **store: Any) -> None:
        super().__init__(folder, **store)
        self.steps: list[tuple[int, int]] = []
        open_store = self.store.open
        self.store.open = lambda: open_store(lambda *step: self.steps.append(step))  # type: ignore


async def test_a_rebuild_reports_its_progress_each_mebibyte(tmp_path: Path) -> None:
    """It takes minutes, and `saturnmq store rebuild` shows how far it is."""
    body = b"x" * 150_000  # one entry a file
    async with Alone(tmp_path) as store:
        await put(store, *[body] * 20)
        read, end = store.log.first_position, store.log.end
        records = [store.physical_offset("T", 0, number) for number in range(20)]
    reopened = Reopened(tmp_path)
    async with reopened as store:
        assert bodies_of(store) == [body] * 20
    expected, reported = [], 0
    for physical in records:
        if physical - reported >= 1 << 20:
            reported = physical
            expected.append(physical - read)
    assert [done for done, _ in reopened.steps] == expected
    assert {total for _, total in reopened.steps} == {end - read}
    assert len(expected) >= 4


async def test_units_of_a_rebuild_are_written_before_they_take_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Alone(tmp_path) as store:
        await put(store, *(b"%d" % number for number in range(12)))
    assert opening._UNITS_KEPT == 1_000_000
    monkeypatch.setattr(opening, "_UNITS_KEPT", 5)
    reopened = Reopened(tmp_path)
    written: list[int] = []
    queues = reopened.store.queues
    make_round = queues.round

    def round_of(least_bytes: int) -> Any:
        written.append(sum(queue.dirty_bytes for queue in queues.by_key.values()) // UNIT_BYTES)
        return make_round(least_bytes)

    monkeypatch.setattr(queues, "round", round_of)
    async with reopened as store:
        assert bodies_of(store) == [b"%d" % number for number in range(12)]
        assert written[:3] == [5, 5, 2]


async def test_a_start_reserves_space_for_state_files(tmp_path: Path) -> None:
    """A full disk could not even take the marker that says why the broker stopped."""
    for _ in ("new", "opened again"):
        async with Alone(tmp_path) as store:
            reserve = store.reserve.path
            assert reserve.stat().st_size == store.settings.reserve_bytes > 0
        reserve.unlink()


async def test_an_index_that_lags_skips_the_rest_of_a_damaged_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer may repair the file later; the messages behind it must be found before."""
    bodies = [b"%d" % number + b"x" * 60_000 for number in range(10)]
    async with Alone(tmp_path) as store:
        await put(store, *bodies)
        records = [store.physical_offset("T", 0, number) for number in range(10)]
        file = store.log.file_at(records[1])
        following = [number for number in range(10) if records[number] >= file.end]
        assert records[2] < file.end and len(following) > 4, "the file has three records, more files follow"
        at = records[1] - 48 - file.start
        header = bytes(file.map[at : at + 48])
        file.map[at : at + 48] = b"\x7f" * 48
        found = [int(message.body[:1]) for message in store.read_log(PhysicalOffset(0)) if message.topic == "T"]
        assert found == [0, *following]
        assert f"messages not indexed from={records[1] - 48} to={file.end}" in caplog.text
        caplog.clear()
        list(store.read_log(PhysicalOffset(0)))
        assert "not indexed" not in caplog.text, "once"
        file.map[at : at + 48] = header


async def test_an_index_finds_no_message_that_no_queue_points_to(tmp_path: Path) -> None:
    """Dispatch has skipped it; its keys would lead to a message that no consumer can get."""
    async with Alone(tmp_path) as store:
        for body in (b"0", b"1"):
            await store.wait_confirmed(store.put(message(body, properties_raw=b"KEYS\x01k")))
        half = message(b"half", properties_raw=b"KEYS\x01k", sys_flag=int(SysFlag.PREPARED))
        await store.wait_confirmed(store.put(half))
        physical = store.physical_offset
        store.physical_offset = lambda topic, queue, offset: -1 if offset == 0 else physical(topic, queue, offset)
        found = {
            bytes(each.body): each.properties_raw for each in store.read_log(PhysicalOffset(0)) if each.topic == "T"
        }
        store.physical_offset = physical
        assert found[b"0"] == b""
        assert b"KEYS\x01k" in found[b"1"]
        assert b"KEYS\x01k" in found[b"half"], "in no queue, but in the index as that of 4.9.7"
