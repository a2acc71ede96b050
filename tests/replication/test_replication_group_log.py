"""The log of a group member: waits for a commit, when entries are discarded, and the messages of one dispatch step."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokergroup import ledger, ledger_group
from test_broker_dledger import Alone, message, put

from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store import PutStatus
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
