"""Changes of topics and groups in a DLedger group: committed before they are answered, kept and forgotten with the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from brokergroup import DEADLINE_SECONDS, LedgerGroup, copies_nothing, expire, ledger, ledger_group, part

from saturnmq.broker import Broker
from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionGroupConfig
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import BodyError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record
from saturnmq.raft.ledger.check import verify
from saturnmq.replication.dledger.change_entries import Change, Kind, is_change

TOPIC = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102"}


async def create_topic(group: LedgerGroup, broker: Broker, topic: str, **changes: object) -> Command:
    return await group.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, **(TOPIC | changes))


async def delete_topic(group: LedgerGroup, broker: Broker, topic: str) -> Command:
    return await group.call(broker, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)


async def create_group(group: LedgerGroup, broker: Broker, name: str, **values: Any) -> Command:
    body = SubscriptionGroupConfig(name, **values).encode()
    return await group.call(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


async def delete_group(group: LedgerGroup, broker: Broker, name: str) -> Command:
    return await group.call(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=name)


async def acknowledged(
    group: LedgerGroup, change: Callable[..., Awaitable[Command]], name: str, **values: object
) -> Broker:
    """Make a change until it is acknowledged, as leaders change on a busy machine. Returns the master that did."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            master = await group.master()
            if (await change(group, master, name, **values)).code == 0:
                return master
            await asyncio.sleep(0.02)  # poll


async def without_copies(group: LedgerGroup) -> Broker:
    """The master, once all have copied from it; nothing is copied between members any more, also not at an election."""
    master = await group.master()
    await group.until(lambda: all(part(b).copy.count for b in group.followers()), "followers do not copy yet")
    for broker in group.brokers.values():
        await only_log(broker)
    return master


async def only_log(broker: Broker) -> None:
    copy = part(broker).copy
    await copy.stop()

    async def copied(*_: object, **__: object) -> bool:
        return False

    copy.copy = copied  # type: ignore[method-assign]


async def lose(group: LedgerGroup, broker: Broker) -> Broker:
    """Kill the leader: it answers and hands over nothing more. Returns the next master."""
    member = group.member(group.name_of(broker))
    await member.peers.stop()
    await group.until(lambda: group.serving() not in (None, broker), "no other master")
    found = group.serving()
    assert found is not None
    return found


@pytest.mark.spec("DL-X18")
async def test_acknowledged_changes_are_there_after_leader_loss(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        master = await without_copies(group)
        for name in ("kept", "gone", "wider"):
            master = await acknowledged(group, create_topic, name)
            master = await acknowledged(group, create_group, f"g-{name}")
        master = await acknowledged(group, create_topic, "wider", readQueueNums=7, writeQueueNums=7)
        master = await acknowledged(group, create_group, "g-wider", retry_max_times=3)
        master = await acknowledged(group, delete_topic, "gone")
        master = await acknowledged(group, delete_group, "g-gone")
        second = await lose(group, master)
        tables = second.topics.table, second.groups.table
        assert tables[0]["kept"].write_queue_nums == 3 and tables[0]["wider"].write_queue_nums == 7
        assert "g-kept" in tables[1] and tables[1]["g-wider"].retry_max_times == 3
        assert "gone" not in tables[0] and "g-gone" not in tables[1]


@pytest.mark.spec("DL-X18")
async def test_what_clients_create_is_there_after_leader_loss(tmp_path: Path) -> None:
    """By a send, a heartbeat, a pull and an offset commit."""
    async with ledger_group(tmp_path) as group:
        master = await without_copies(group)
        assert (await group.send_to(master, b"x", topic="Sent", queue=1)).code == 0
        data = HeartbeatData("client", [], [ConsumerData("beating")])
        assert (await group.call(master, RequestCode.HEART_BEAT, data.encode())).code == 0
        pulled = await group.call(
            master, RequestCode.PULL_MESSAGE, consumerGroup="pulling", topic="Sent", queueId=1, queueOffset=0,
            maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
            expressionType="TAG",
        )  # fmt: skip
        assert pulled.code == 0
        committed = await group.call(
            master, RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="committing", topic="Sent", queueId=1,
            commitOffset=1,
        )  # fmt: skip
        assert committed.code == 0
        second = await lose(group, master)
        assert {"Sent", "%RETRY%beating"} <= second.topics.table.keys()
        assert {"beating", "pulling", "committing"} <= second.groups.table.keys()
        assert not part(second).copy.missing_topics


def cut_off(group: LedgerGroup, broker: Broker) -> None:
    """Let the other members of the group not get what the broker appends from now on."""
    member = group.member(group.name_of(broker))
    member.peers.send = lambda *_: None


@pytest.mark.spec("DL-X18", "DL-X08")
async def test_change_without_quorum_is_reported_and_undone(tmp_path: Path) -> None:
    """The leader that a majority does not confirm answers that the outcome is unknown; as a follower it has no such topic."""
    async with ledger_group(tmp_path) as group:
        master = await without_copies(group)
        assert (await create_topic(group, master, "stays")).code == 0
        send = group.member(group.name_of(master)).peers.send
        cut_off(group, master)
        answers = await asyncio.gather(
            create_topic(group, master, "T1"),
            delete_topic(group, master, "stays"),
            create_group(group, master, "g1"),
        )
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 3
        assert all("whether the change survives this leader is unknown" in (a.remark or "") for a in answers)
        await group.until(lambda: group.serving() not in (None, master), "no other master")
        await group.until(lambda: not ledger(master).serving, "it still serves")
        assert "T1" not in master.topics.table and "g1" not in master.groups.table and "stays" in master.topics.table
        group.member(group.name_of(master)).peers.send = send
        for broker in group.brokers.values():
            assert "T1" not in broker.topics.table and "stays" in broker.topics.table


@pytest.mark.spec("DL-X18")
async def test_change_is_refused_while_the_log_takes_none(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        master.store.refusal = "the disk is full"
        answers = [
            await create_topic(group, master, "T1"),
            await create_group(group, master, "g1"),
            await group.call(master, RequestCode.HEART_BEAT, HeartbeatData("c", [], [ConsumerData("g2")]).encode()),
        ]
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
        assert all("was not changed: the disk is full" in (answer.remark or "") for answer in answers)
        assert "T1" not in master.topics.table and not {"g1", "g2"} & master.groups.table.keys()


@pytest.mark.spec("DL-X18", "DL-C07")
async def test_stale_table_does_not_bring_back_a_deleted_topic(tmp_path: Path) -> None:
    """A member that was cut off, with a newer version of its table, is asked by the next leader."""
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        for topic in ("gone", "kept"):
            master = await acknowledged(group, create_topic, topic)
        await group.until(lambda: all("kept" in b.topics.table for b in group.brokers.values()), "not copied")
        stale = group.followers()[0]
        name = group.name_of(stale)
        await group.stop(name)
        master = await acknowledged(group, delete_topic, "gone")
        master = await acknowledged(group, create_topic, "late")
        stale = await group.start(name)
        await only_log(stale)
        await group.until(lambda: "late" in stale.topics.table, "the log is not dispatched")
        for _ in range(50):
            stale.topics.next_version()
        stale.topics.table["gone"] = stale.topics.table["kept"]
        del stale.topics.table["late"]
        third = next(b for b in group.brokers.values() if b not in (stale, master))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while group.serving() is not third:
                await group.member(group.name_of(await group.master())).transfer(group.name_of(third))
                await asyncio.sleep(0.02)  # poll
        assert "gone" not in third.topics.table and {"kept", "late"} <= third.topics.table.keys()


@pytest.mark.spec("DL-X18")
async def test_member_with_an_empty_store_gets_what_its_log_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log begins after the entries of old changes. It is elected before it has copied: it asks the third member."""
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        master.topics.journal = None  # as a change that retention has removed from the log
        assert (await create_topic(group, master, "old")).code == 0
        master.topics.journal = part(master).changes
        await group.until(lambda: all("old" in b.topics.table for b in group.brokers.values()), "not copied")
        fresh = group.followers()[0]
        name = group.name_of(fresh)
        await group.stop(name)
        shutil.rmtree(tmp_path / name)
        monkeypatch.setattr(LeaderCopy, "restart", copies_nothing)
        fresh = await group.start(name)
        assert (await create_topic(group, master, "new")).code == 0
        await group.until(lambda: "new" in fresh.topics.table, "the log is not dispatched")
        assert "old" not in fresh.topics.table and not part(fresh).changes.complete
        part(fresh)._set_outdated(False)
        await group.member(group.name_of(master)).transfer(name)
        await group.until(lambda: group.serving() is fresh, "no switch")
        assert {"old", "new"} <= fresh.topics.table.keys() and part(fresh).changes.complete


@pytest.mark.spec("DL-X18", "DUR-14")
async def test_change_that_no_file_has_is_found_in_the_log(tmp_path: Path) -> None:
    """The process ends after the commit and before the tables are written; a checkpoint is written meanwhile."""
    async with ledger_group(tmp_path, 1, store={"message_index_enable": False}) as group:
        master = await group.master()
        assert (await create_topic(group, master, "first")).code == 0
        held = asyncio.Event()
        write = master.topics.writer._write

        async def delayed() -> None:
            await held.wait()
            await write()

        master.topics.writer._write = delayed  # type: ignore[method-assign]
        made = asyncio.create_task(create_topic(group, master, "second"))
        await group.until(
            lambda: not part(master).changes.any_undecided and "second" in master.topics.table, "no commit"
        )
        index = group.member("n0").status().committed_index
        checkpoint = tmp_path / "n0" / "dledger-n0" / "checkpoint"

        async def later() -> bool:
            """Whether the ledger's checkpoint covers the change, which needs later entries."""
            await group.send(b"x", topic="BenchmarkTest")
            text = checkpoint.read_text() if checkpoint.exists() else ""
            found = re.search(r"committedIndex=(\d+)", text)
            return found is not None and int(found[1]) >= index

        async with asyncio.timeout(30):
            while not await later():
                await asyncio.sleep(0.02)  # poll
        await master.store.write_all()
        copied = tmp_path / "copy"
        shutil.copytree(tmp_path / "n0", copied)
        made.cancel()
        held.set()
        with contextlib.suppress(asyncio.CancelledError):
            await made
        await group.stop("n0")
        assert b"second" not in (copied / "config" / "topics.json").read_bytes()
        shutil.rmtree(tmp_path / "n0")
        shutil.copytree(copied, tmp_path / "n0")
        await group.start("n0")
        again = await group.master()
        assert {"first", "second"} <= again.topics.table.keys()


@pytest.mark.spec("DL-X18", "DL-X04")
async def test_change_is_an_entry_that_no_queue_and_no_client_sees(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        assert (await create_topic(group, master, "T")).code == 0
        await group.send(b"x")
        await group.same("T", 0, [b"x"])
        files = group.member(group.name_of(master)).files
        bodies = [files.entry(index).body for index in range(files.begin_index, files.end_index + 1)]
        changes = [message for message in map(decode_record, bodies) if is_change(message)]
        assert [Change.decode(bytes(one.body)).name for one in changes] == ["T"]
        for broker in group.brokers.values():
            assert {topic for topic, _ in broker.store.topic_queues()} == {"T"}
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_AND_CREATE_TOPIC):
            if code == RequestCode.SEND_MESSAGE_V2:
                answer = await group.send_to(master, b"{}", topic="saturnmq.changes", f=12)
            else:
                answer = await create_topic(group, master, "saturnmq.changes")
            assert answer.code == ResponseCode.SYSTEM_ERROR and "illegal characters" in (answer.remark or "")
    for name in group.names:
        assert not verify(tmp_path / name / f"dledger-{name}").problems


def test_any_bytes_are_a_change_or_refused() -> None:
    whole = Change(Kind.GROUP, "g", SubscriptionGroupConfig("g"), *[_version(at) for at in (1, 2)])
    assert Change.decode(whole.encode()) == whole
    fields = json.loads(whole.encode())
    rng = random.Random(1)
    odd: tuple[object, ...] = (None, 1, "x", [], {}, True, {"groupName": 1}, {"timestamp": "x"})
    tried = 0
    for key in fields:
        for value in odd:
            with contextlib.suppress(BodyError):
                Change.decode(json.dumps(fields | {key: value}).encode())
            tried += 1
    for _ in range(300):
        data = bytearray(whole.encode())
        data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(BodyError):
            Change.decode(bytes(data))
        with contextlib.suppress(BodyError):
            Change.decode(bytes(data[: rng.randrange(len(data))]))
        tried += 1
    assert tried > 300


def _version(counter: int) -> Any:
    from saturnmq.protocol.bodies import DataVersion

    return DataVersion(1, counter)


@pytest.mark.spec("DL-X18")
async def test_follower_creates_no_group_of_its_own(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        await group.master()
        follower = group.followers()[0]
        data = HeartbeatData("client", [], [ConsumerData("beating")])
        assert (await group.call(follower, RequestCode.HEART_BEAT, data.encode())).code == 0
        assert "beating" in follower.clients.consumers
        assert "beating" not in follower.groups.table and "%RETRY%beating" not in follower.topics.table


@pytest.mark.spec("REM-12")
async def test_change_among_10000_topics_sends_one_topic_only(tmp_path: Path) -> None:
    """No step of a change grows with the table, on leader and follower, but what writes the file in slices."""
    async with ledger_group(tmp_path) as group:
        master = await without_copies(group)
        for broker in group.brokers.values():
            broker.topics.table |= {
                f"t{number}": type(broker.topics.table["TBW102"])(f"t{number}", 4, 4) for number in range(10_000)
            }
        end = master.store.log.end
        assert (await create_topic(group, master, "one-more")).code == 0
        assert master.store.log.end - end < 1000
        await group.until(lambda: all("one-more" in b.topics.table for b in group.brokers.values()), "not dispatched")


async def without_its_peers(group: LedgerGroup) -> Broker:
    """Start n0 as one of three members of which no other answers: it gets no tables from its group."""
    group.addresses |= {"n1": "127.0.0.1:9", "n2": "127.0.0.1:10"}
    broker = await group.start("n0")
    assert not ledger(broker).elected
    return broker


@pytest.mark.parametrize("dispatched_before", [True, False], ids=["dispatched", "not-dispatched"])
async def test_member_that_dispatched_nothing_of_its_log_lacks_changes(dispatched_before: bool, tmp_path: Path) -> None:
    """Its leader replaced the log, and the member died before it wrote a checkpoint: old changes are in no entry it has."""
    async with ledger_group(tmp_path, 1) as group:
        master = await group.master()
        await group.send(b"first")
        await master.store.write_all()
        note = (tmp_path / "n0" / "checkpoint").read_bytes()
        for number in range(15):
            await group.send(b"%d" % number + b"x" * 50_000)
        oldest = sorted((tmp_path / "n0" / "dledger-n0" / "data").iterdir())[0]
        os.utime(oldest, (0, 0))
        await expire(master, lambda: not oldest.exists())
        await group.stop("n0")
        if not dispatched_before:
            (tmp_path / "n0" / "checkpoint").write_bytes(note)
        member = await without_its_peers(group)
        assert part(member).changes.complete is dispatched_before


@pytest.mark.parametrize("has_log", [True, False], ids=["log", "topics-only"])
async def test_member_with_the_files_of_a_broker_without_group_is_complete(has_log: bool, tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1, start=False) as group:
        plain = Broker(group.settings(), group.store("n0"), NetSettings())
        await plain.start()
        assert (await create_topic(group, plain, "T")).code == 0
        if has_log:
            assert (await group.send_to(plain, b"old")).code == 0
        await plain.stop()
        for _ in range(2):
            assert part(await without_its_peers(group)).changes.complete
            await group.stop("n0")
