"""Operation of a DLedger group as described in docs/replication.md."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, copies_nothing, expire, ledger, ledger_group, part

from ports import free_ports
from saturnmq.broker import Broker
from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import DiskFull
from saturnmq.protocol.message import encode_properties
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.messages import ChangeKind, Code, TransferResponse
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.tool import GroupTool
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import FlushDiskType, StoreFailureAction


def follower(group: LedgerGroup) -> str:
    return group.name_of(group.followers()[0])


async def send_all(group: LedgerGroup, bodies: list[bytes]) -> None:
    for number, body in enumerate(bodies):
        await group.send(body, i=encode_properties({"KEYS": f"key{number}"}).decode())


def opened_alone(group: LedgerGroup, name: str) -> Any:
    """The open store of a stopped member, which does not join the group."""
    store = GroupMember(group.store(name), group.raft_settings(name), NetSettings()).store
    store.open()
    assert store.log.member is not None and store.log.member.node is not None
    return store


def ends(broker: Broker) -> tuple[int, int]:
    return broker.store.min_offset("T", 0), broker.store.max_offset("T", 0)


def begins_after(broker: Broker, offset: int) -> bool:
    return ends(broker)[0] > offset


@pytest.mark.spec("DL-L01", "DL-X22")
async def test_stopped_leader_hands_over_without_election_timeout(tmp_path: Path) -> None:
    raft = {"heartbeat_interval_ms": 10_000}  # an election timeout would take half a minute
    async with ledger_group(tmp_path, raft=raft) as group:
        await send_all(group, [b"1", b"2"])
        first = await group.master()
        term = group.member(group.name_of(first)).status().term
        await group.until(lambda: all(b.store.max_offset("T", 0) == 2 for b in group.followers()), "behind")
        clock = asyncio.get_running_loop().time
        began = clock()
        member, asked = group.member(group.name_of(first)), []
        transfer = member.transfer

        async def refused_once(to: str) -> Any:
            asked.append(to)
            return TransferResponse(code=Code.TAKE_LEADERSHIP_FAILED) if len(asked) == 1 else await transfer(to)

        member.transfer = refused_once
        await group.stop(group.name_of(first))
        second = await group.master()
        assert len(set(asked)) == 2
        await send_all(group, [b"3"])
        assert clock() - began < 25  # a follower's first election timeout would come after 30 s
        assert second is not first and group.member(group.name_of(second)).status().term > term
        await group.same("T", 0, [b"1", b"2", b"3"])
        assert group.bodies(second) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("java", [False, True])
async def test_stop_of_a_leader_waits_for_the_copy_of_its_successor_only(
    java: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The successor copies before the old leader has stopped its services; another member's copy does not end the stop."""
    async with ledger_group(tmp_path) as group:
        await send_all(group, [b"1"])
        first = await group.master()
        await group.until(lambda: all(b.store.max_offset("T", 0) == 1 for b in group.followers()), "behind")
        name, copied, asked = group.name_of(first), asyncio.Event(), []
        dledger, peers = part(first), group.member(name).peers
        follow, transfer, report = dledger._follow, group.member(name).transfer, dledger.copy.report

        async def follow_late() -> None:
            await copied.wait()
            await follow()

        async def noted(to: str) -> Any:
            asked.append(to)
            return await transfer(to)

        async def reported(member: str) -> bytes:
            state = await report(member)
            if asked and member == asked[-1]:
                copied.set()
            return state

        dledger._follow, group.member(name).transfer = follow_late, noted  # type: ignore[method-assign]
        peers.serve_state = reported
        if java:  # read with the request codes of a slave, as by a Java member
            peers.serve_state = None
            copied.set()
            counts = {b: part(b).copy.count for b in group.followers()}
            await group.until(lambda: all(part(b).copy.count > n for b, n in counts.items()), "no copy")
        with caplog.at_level(logging.INFO, "saturnmq.broker.dledger"):
            await group.stop(name)
        assert f"state copied by the new leader member={asked[-1]}" in caplog.messages
        assert not [line for line in caplog.messages if "timed out" in line]
        second = await group.master()
        assert group.name_of(second) == asked[-1]


@pytest.mark.spec("DL-C03", "DL-F08", "DL-Q08")
async def test_member_with_replaced_disk_is_refilled(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        bodies = [b"%d" % number for number in range(30)]
        await send_all(group, bodies)
        lost = follower(group)
        await group.stop(lost)
        shutil.rmtree(tmp_path / lost)
        broker = await group.start(lost)
        await group.same("T", 0, bodies)
        found = broker.store.query("T", "key7", 10, 0, 1 << 60).records
        assert len(found) == 1  # the index too


@pytest.mark.spec("DL-S12", "DL-P13")
@pytest.mark.parametrize("empty", [True, False])
async def test_member_behind_leaders_retention_restarts_at_leaders_begin(
    empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes of tables before that begin are in no entry it has: it is not complete until it has copied the tables."""
    async with ledger_group(tmp_path) as group:
        await send_all(group, [b"%d" % number for number in range(5)])
        await group.until(lambda: all(ends(b)[1] == 5 for b in group.brokers.values()), "not dispatched")
        late = follower(group)
        await group.stop(late)
        if empty:
            shutil.rmtree(tmp_path / late)
        await send_all(group, [b"%d" % number + b"x" * 50_000 for number in range(5, 30)])
        await group.until(lambda: all(ends(b)[1] == 30 for b in group.brokers.values()), "not dispatched")
        for name, broker in group.brokers.items():
            data = tmp_path / name / f"dledger-{name}" / "data"
            for path in sorted(data.iterdir())[:3]:  # the same on all members, whenever each of them cleans
                os.utime(path, (0, 0))
            await expire(broker, partial(begins_after, broker, 5))
        monkeypatch.setattr(LeaderCopy, "restart", copies_nothing)
        back = await group.start(late)
        first = ends(await group.master())[0]
        await group.until(lambda: ends(back) == (first, 30), "not filled")
        assert not part(back).changes.complete
        await group.send(b"next")
        bodies = group.bodies(await group.master())
        await group.same("T", 0, bodies)
        assert bodies[-1] == b"next"


@pytest.mark.spec("DL-M05", "DL-X01")
async def test_group_is_rebuilt_from_one_surviving_member(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(10)]
    async with ledger_group(tmp_path) as group:
        await send_all(group, bodies)
        await group.same("T", 0, bodies)
        for name in group.names:
            await group.stop(name)
        for name in ("n1", "n2"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "n0", tmp_path / name)
            (tmp_path / name / "dledger-n0").rename(tmp_path / name / f"dledger-{name}")
        for name in group.names:
            await group.start(name)
        assert (await group.send(b"goes on")).ext["queueOffset"] == str(len(bodies))
        await group.same("T", 0, [*bodies, b"goes on"])
        for name, broker in group.brokers.items():
            assert group.bodies(broker) == [*bodies, b"goes on"], name
            assert group.member(name).status().failed is None


@pytest.mark.spec("DL-X15", "DUR-06")
async def test_leader_with_failed_disk_steps_down_and_another_serves(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, store={"store_failure_action": StoreFailureAction.EXIT}) as group:
        await send_all(group, [b"1"])
        await group.same("T", 0, [b"1"])
        first = await group.master()
        member = group.member(group.name_of(first))

        member.files.sync_job = lambda: _raise
        await group.until(partial(another, group, first), "no other member serves")
        assert first.failed.is_set() and first.store.failure is not None
        group.brokers = {n: b for n, b in group.brokers.items() if b is not first}
        try:
            await send_all(group, [b"2"])
            await group.same("T", 0, [b"1", b"2"])
        finally:
            del member.files.sync_job
            await first.stop()


@pytest.mark.spec("DL-X04", "DL-C03", "DUR-15")
async def test_group_started_on_full_disks_serves_once_space_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger_group(tmp_path) as group:
        for body in (b"1", b"2", b"3"):
            await group.send(body)
        await group.same("T", 0, [b"1", b"2", b"3"])
        for name in group.names:
            await group.stop(name)
        for name in group.names:  # as after kill -9: the last commit is not in the checkpoint yet
            note = tmp_path / name / f"dledger-{name}" / "checkpoint"
            note.write_text(re.sub("committedIndex=.*", "committedIndex=0", note.read_text()))
        full = {"yes": True}
        prepare = LedgerFiles.prepare

        def prepared(files: LedgerFiles) -> None:
            if full["yes"]:
                raise DiskFull("no space")
            prepare(files)

        monkeypatch.setattr(LedgerFiles, "prepare", prepared)
        for name in group.names:
            await group.start(name)

        def led() -> bool:
            found = [group.member(name).status() for name in group.names]
            return all(one.leader_id for one in found) and any(
                one.role is Role.LEADER and one.end_index > one.committed_index for one in found
            )

        await group.until(led, "no leader")
        assert group.serving() is None
        full["yes"] = False
        await group.until(group.serving, "it does not serve though there is space")
        await send_all(group, [b"4"])
        await group.same("T", 0, [b"1", b"2", b"3", b"4"])


@pytest.mark.spec("DL-B14", "DL-B16", "DUR-20")
@pytest.mark.parametrize("committed", [-1, 0, 1])
async def test_index_ahead_of_checkpoint_is_truncated_and_refilled(committed: int, tmp_path: Path) -> None:
    async with ledger_group(tmp_path, size=1) as group:
        await send_all(group, [b"0", b"1", b"2"])
        await group.same("T", 0, [b"0", b"1", b"2"])
        await group.stop("n0")
        noted = tmp_path / "n0" / "dledger-n0" / "checkpoint"
        noted.write_text(f"committedIndex={committed}\nendIndex=2\n")  # the checkpoint is written every 3 s
        broker = await group.start("n0")
        await group.send(b"3", i=encode_properties({"KEYS": "key3"}).decode())
        await group.same("T", 0, [b"0", b"1", b"2", b"3"])
        for number in range(4):
            assert len(broker.store.query("T", f"key{number}", 10, 0, 1 << 60).records) == 1, number


async def fail_sync(group: LedgerGroup, name: str) -> Any:
    """Make every sync of the member's disk fail from now on; returns its status after it has failed."""
    member = group.member(name)
    member.files.sync_job = lambda: _raise
    broker = group.brokers[name]
    await group.until(lambda: asyncio.get_running_loop().create_task(poke(broker)) and member.status().failed, "works")
    return member.status()


@pytest.mark.spec("DUR-06", "DUR-07")
async def test_unsynced_entries_of_failed_sync_are_cut_at_next_start(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as group:
        await send_all(group, [b"1", b"2", b"3"])
        await group.same("T", 0, [b"1", b"2", b"3"])
        name = group.name_of(await group.master())
        member = group.member(name)
        for other in group.names:
            member.readdress(other, f"127.0.0.1:{free_ports(1)[0]}")  # no other member gets what is appended now
        gone = await fail_sync(group, name)
        assert gone.end_index > gone.durable_index >= 2
        member.node.synced(1 << 50, member.node.log_epoch, gone.end_index)  # a sync in another thread completes late
        assert member.node.synced_index == gone.durable_index  # the recorded value stays true
        await group.stop(name)
        ledger_folder = tmp_path / name / f"dledger-{name}"
        assert (ledger_folder / "sync-failed.json").exists()
        store = opened_alone(group, name)
        status = store.log.member.status()
        assert status.end_index == status.durable_index == gone.durable_index
        assert not store.log.member.node.recovering  # it never acknowledged more
        assert not list(tmp_path.rglob("*-failed.json"))
        await store.stop()
        await group.start(name)
        await send_all(group, [b"4"])
        await group.same("T", 0, [b"1", b"2", b"3", b"4"])


@pytest.mark.spec("DUR-07", "DUR-10")
async def test_member_that_lost_acked_entries_is_refilled_before_voting(tmp_path: Path) -> None:
    store = {"flush_disk_type": FlushDiskType.ASYNC_FLUSH}
    async with ledger_group(tmp_path, store=store) as group:
        await send_all(group, [b"1", b"2", b"3"])
        await group.same("T", 0, [b"1", b"2", b"3"])
        lost = follower(group)
        member = group.member(lost)
        node = member.node
        await group.until(lambda: node.synced_index == node.end_index >= 2, "not synced")
        member.files.sync_job = lambda: _raise
        await send_all(group, [b"4"])
        await group.until(lambda: member.status().failed, "works")
        assert node.end_index > node.synced_index
        await group.stop(lost)
        opened = opened_alone(group, lost)
        assert opened.log.member.status().end_index == node.synced_index
        assert opened.log.member.status().recovering
        opened.close_files()  # killed
        await group.start(lost)
        await group.same("T", 0, [b"1", b"2", b"3", b"4"])
        await send_all(group, [b"5"])
        await group.until(lambda: not group.member(lost).status().recovering, "it never votes again")


@pytest.mark.spec("DUR-10")
async def test_lost_member_with_incomplete_checkpoint_votes_when_it_has_the_log(tmp_path: Path) -> None:
    """As docs/replication.md says: an empty store, and a checkpoint by which the member does not vote yet."""
    async with ledger_group(tmp_path) as group:
        await send_all(group, [b"1", b"2", b"3"])
        await group.same("T", 0, [b"1", b"2", b"3"])
        lost = follower(group)
        await group.stop(lost)
        shutil.rmtree(tmp_path / lost)
        folder = tmp_path / lost / f"dledger-{lost}"
        folder.mkdir(parents=True)
        (folder / "checkpoint").write_text("committedIndex=-1\nendIndex=-1\nincomplete=true\n")
        opened = opened_alone(group, lost)
        assert opened.log.member.node.recovering
        opened.close_files()  # killed
        await group.start(lost)
        await group.same("T", 0, [b"1", b"2", b"3"])
        await group.until(lambda: not group.member(lost).node.recovering, "it never votes again")


@pytest.mark.spec("DUR-07")
@pytest.mark.parametrize("text", [b"", b"[]", b'{"durable_index": null}'])
async def test_unreadable_sync_failed_marker_keeps_checkpointed_entries(text: bytes, tmp_path: Path) -> None:
    async with ledger_group(tmp_path, size=1) as group:
        await send_all(group, [b"1", b"2", b"3"])
        await group.stop("n0")
        folder = tmp_path / "n0" / "dledger-n0"
        (folder / "sync-failed.json").write_bytes(text)
        (folder / "checkpoint").write_text("committedIndex=2\nendIndex=2\n")  # the topic and two messages
        opened = opened_alone(group, "n0")
        assert opened.log.member.node.recovering  # how much it had acknowledged is not known
        opened.close_files()  # killed
        broker = await group.start("n0", force_vote_damaged=True)
        assert group.bodies(broker) == [b"1", b"2"] and not list(tmp_path.rglob("sync-failed.json"))
        await send_all(group, [b"4"])
        await group.same("T", 0, [b"1", b"2", b"4"])


def _raise() -> None:
    raise OSError(5, "Input/output error")


def another(group: LedgerGroup, first: Broker) -> bool:
    asyncio.get_running_loop().create_task(poke(first))
    serving = group.serving()
    return serving is not None and serving is not first


async def poke(broker: Broker) -> None:
    """Append something to sync."""
    store = broker.store
    if store.log.member is not None and store.log.serving:
        await store.log.member.append([b"x" * 200])


@pytest.mark.spec("DL-B02", "DL-S03")
async def test_ledgers_of_all_members_are_equal(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        bodies = [b"%d" % number + b"y" * 9000 for number in range(60)]
        await send_all(group, bodies)
        await group.same("T", 0, bodies)
    names = [f"n{number}" for number in range(3)]
    for folder in ("data", "index"):
        files = [sorted((tmp_path / name / f"dledger-{name}" / folder).iterdir()) for name in names]
        assert len({tuple(path.name for path in paths) for paths in files}) == 1
        for same in zip(*files, strict=True):
            assert len({path.read_bytes() for path in same}) == 1


async def test_member_moves_to_another_name_server_while_it_runs(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        await group.send(b"1")
        other = NameServer(NameServerSettings(kv_config_path=str(tmp_path / "other.json")), NetSettings())
        address = "{}:{}".format(*await other.start("127.0.0.1", 0))
        try:
            for broker in list(group.brokers.values()):
                answer = await group.call(broker, RequestCode.UPDATE_BROKER_CONFIG, f"namesrvAddr={address}".encode())
                assert answer.code == 0, answer.remark
            members = {broker.advertised_address for broker in group.brokers.values()}
            await group.until(lambda: set(other.routes.live) == members, "not all registered")
            await group.until(lambda: not group.namesrv.routes.live, "not all unregistered")
            await group.send(b"2")
            for name in list(group.brokers):
                await group.stop(name)
        finally:
            await other.stop()


async def test_members_of_now_are_asked_and_not_those_of_the_settings(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        unopened = GroupMember(group.store("n0"), group.raft_settings("n0"), NetSettings())
        assert (unopened.peers, unopened.voters) == (group.addresses, ("n0", "n1", "n2"))
        assert (unopened.host("n2"), unopened.host("n3")) == ("127.0.0.1", "")
        await group.send(b"x")
        removed = follower(group)
        tool = GroupTool("g", group.addresses)
        try:
            async with asyncio.timeout(30):
                while (await tool.change(ChangeKind.REMOVE, removed)).code != Code.SUCCESS:
                    await asyncio.sleep(0.05)  # poll: the members are not known yet to support changes
        finally:
            await tool.close()
        remaining = {name: address for name, address in group.addresses.items() if name != removed}
        for name in remaining:
            member = ledger(group.brokers[name])
            await group.until(lambda member=member: member.peers == remaining, "the change is not dispatched")
            assert member.voters == tuple(remaining) and member.host(removed) == ""
