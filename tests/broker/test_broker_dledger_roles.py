"""Roles in a DLedger group: services started and stopped, requests refused and state copied by followers, leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, ledger, ledger_group, part

from saturnmq.broker import Broker, dledger_sync
from saturnmq.broker import dledger as dledger_module
from saturnmq.broker.dledger import DLedger
from saturnmq.broker.dledger_state import MemberState
from saturnmq.broker.services.timer import encode_progress, parse_progress
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import DelayOffsetTable, TopicRouteData
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import encode_properties
from saturnmq.raft.core.actions import Role
from saturnmq.store import StateFile

WRITES = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
)


async def addresses(group: LedgerGroup, topic: str = "T") -> dict[int, str]:
    """Broker addresses that clients get for the group."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext)
    answer = await group.client.invoke(group.name_servers, command, 3000)
    if answer.code != 0:
        return {}
    return dict(TopicRouteData.decode(answer.body).broker_datas[0].broker_addrs)


async def until_known(group: LedgerGroup, wanted: Callable[[dict[int, str]], bool]) -> dict[int, str]:
    async with asyncio.timeout(45):
        while not wanted(found := await addresses(group)):
            await asyncio.sleep(0.02)  # poll
        return found


async def transfer(group: LedgerGroup, to: str) -> Broker:
    """Transfer leadership to a member and wait until it serves."""
    async with asyncio.timeout(45):
        while (master := await group.master()) is not group.brokers[to]:
            await group.member(group.name_of(master)).transfer(to)
            await asyncio.sleep(0.02)  # poll
    return master


async def pull(group: LedgerGroup, broker: Broker, offset: int = 0, suspend_ms: int = 0) -> Command:
    return await group.call(
        broker, RequestCode.PULL_MESSAGE, consumerGroup="G", topic="T", queueId=0, queueOffset=offset, maxMsgNums=32,
        sysFlag=4 | (2 if suspend_ms else 0), commitOffset=0, suspendTimeoutMillis=suspend_ms, subscription="*",
        subVersion=0, expressionType="TAG",
    )  # fmt: skip


async def store_offset(group: LedgerGroup, broker: Broker, offset: int) -> Command:
    return await group.call(
        broker, RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=offset
    )


# ---- role and registration


@pytest.mark.spec("DL-C04", "DL-C06", "DL-C08", "DL-C09", "DL-L01")
async def test_leadership_transfer_changes_registered_broker_ids(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, register_period_ms=60_000) as group:  # no periodic registration helps
        await group.send(b"x")
        for leader in ("n0", "n2"):
            master = await transfer(group, leader)
            others = {int(name[1:]) + 1: name for name in group.names if name != leader}
            expected = {0: master.advertised_address} | {
                number: group.brokers[name].advertised_address for number, name in others.items()
            }
            known = await until_known(group, expected.__eq__)
            assert sorted(known) == [0, *sorted(others)]  # n0 leads: 0, 2, 3; each address has one id


@pytest.mark.spec("DL-C01", "DL-C02")
async def test_role_changes_are_serialized_and_slave_candidate_stays_slave(ledger_group: LedgerGroup) -> None:
    await ledger_group.master()
    follower = ledger_group.followers()[0]
    dledger = part(follower)
    await ledger_group.until(lambda: dledger.broker_id > 0 and dledger.copy.count, "no follower")
    seen: list[str] = []
    applied: list[Role] = []
    stop_services, apply = dledger._stop_services, dledger._apply

    async def stop() -> None:
        seen.append("begin")
        await stop_services()
        await asyncio.sleep(0)
        seen.append("end")

    async def noted(role: Role, term: int) -> None:
        await apply(role, term)
        applied.append(role)

    dledger._stop_services, dledger._apply = stop, noted  # type: ignore[method-assign]
    term = ledger_group.member(ledger_group.name_of(follower)).status().term
    roles = [Role.CANDIDATE, Role.FOLLOWER, Role.CANDIDATE, Role.LEADER, Role.FOLLOWER]
    for role in roles:
        dledger._events.put_nowait((role, term - 1))  # of a past term: its leader event has no effect
    await ledger_group.until(lambda: len(applied) == len(roles), "five role changes")
    assert seen == ["begin", "end", "begin", "end"] and applied == roles, "two changes to slave, in order"
    own_id = int(ledger_group.name_of(follower)[1:]) + 1
    assert dledger.broker_id == own_id and not ledger(follower).serving
    for before in (0, -1):  # a candidate that was the master or had no role becomes a slave
        dledger.broker_id = before
        seen.clear()
        dledger._events.put_nowait((Role.CANDIDATE, term - 1))
        await ledger_group.until(lambda: len(seen) == 2, "no change to slave")
        await ledger_group.until(lambda: dledger.broker_id == own_id, "not a slave")


@pytest.mark.spec("DL-C03", "DL-X23")
async def test_leader_rejects_sends_until_log_is_dispatched(
    ledger_group: LedgerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await ledger_group.send(b"%d" % number)
    first = await ledger_group.master()
    behind = {"yes": True}
    kind = type(ledger(first))
    caught_up = kind.caught_up.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "caught_up", property(lambda store: not behind["yes"] and caught_up(store)))
    name = ledger_group.name_of(first)
    await ledger_group.stop(name)
    leads = await ledger_group.until(
        lambda: next((b for n, b in ledger_group.brokers.items() if ledger_group.member(n).leads), None), "no leader"
    )
    answer = await ledger_group.call(
        leads, 310, b"x", a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", j=0, k=False, m=False
    )
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and part(leads).broker_id != 0
    queue = leads.store.queues.by_key[("T", 0)]
    queue.next_offset = 99  # left over from a former term
    behind["yes"] = False
    await ledger_group.until(lambda: ledger(leads).serving, "it does not serve")
    assert (await ledger_group.send(b"next")).ext["queueOffset"] == "5"
    assert part(await ledger_group.master()).broker_id == 0


@pytest.mark.spec("DL-X19", "DL-C06")
async def test_role_is_registered_once_name_server_is_up(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, start=False, register_period_ms=60_000) as group:
        host, _, port = group.name_servers.rpartition(":")
        await group.namesrv.stop()
        for name in group.names:
            await group.start(name)
        await group.send(b"x")  # it serves without one
        group.namesrv = NameServer(NameServerSettings(kv_config_path=str(tmp_path / "kv2.json")), NetSettings())
        await group.namesrv.start(host, int(port))
        known = await until_known(group, lambda found: sorted(found)[:1] == [0] and len(found) == 3)
        master = await group.master()
        assert known[0] == master.advertised_address
        assert set(known.values()) == {broker.advertised_address for broker in group.brokers.values()}


# ---- requests that a follower refuses


@pytest.mark.spec("DL-C09", "DL-X08", "DL-B06", "BP-06")
async def test_follower_refuses_leader_only_requests(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, forward_to_leader=False) as group:
        await group.send(b"x")
        await group.same("T", 0, [b"x"])
        follower = group.followers()[0]
        await group.until(lambda: part(follower).copy.count, "nothing copied")
        send = await group.call(
            follower, 310, b"x", a="p", b="New", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", j=0, k=False, m=False
        )
        assert send.code == 14 and "messages are put to the slave" in (send.remark or "")
        assert follower.topics.get("New") is None
        assert (await store_offset(group, follower, 1)).code == 14
        assert follower.offsets.get("T", "G", 0) is None
        topic: dict[str, Any] = {
            "topic": "Other", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        assert (await group.call(follower, RequestCode.UPDATE_AND_CREATE_TOPIC, **topic)).code == 14
        pulled = await pull(group, follower)
        assert (pulled.code, pulled.ext["suggestWhichBrokerId"]) == (20, "0")
        assert (await group.call(await group.master(), RequestCode.UPDATE_AND_CREATE_TOPIC, **topic)).code == 0


@pytest.mark.spec("DL-X08")
async def test_leader_with_expired_lease_refuses_leader_only_requests(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, forward_to_leader=False) as group:
        await group.send(b"x")
        master = await group.master()
        member = group.member(group.name_of(master))
        heartbeats = member.node._heartbeats
        before = dict(heartbeats.lease_until_ms)
        heartbeats.lease_until_ms = dict.fromkeys(before, -(10**9))
        answers = [part(master).instead(None, Command(code)) for code in WRITES]  # type: ignore[arg-type]
        assert member.node.is_leader  # before its next tick
        heartbeats.lease_until_ms = before
        assert [isinstance(answer, Command) and answer.code for answer in answers] == [14] * len(WRITES)
        assert [part(master).instead(None, Command(code)) for code in WRITES] == [None] * len(WRITES)  # type: ignore[arg-type]


@pytest.mark.spec("DL-C09", "UPG-09")
async def test_readable_follower_serves_pulls_without_waking_parked(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, slave_read_enable=True) as group:
        await group.send(b"one")
        await group.same("T", 0, [b"one"])
        follower = group.followers()[0]
        await group.until(lambda: follower.topics.get("T"), "the topic is not copied")
        found = await pull(group, follower)
        assert found.code == 0
        held = asyncio.create_task(pull(group, follower, offset=1, suspend_ms=800))
        await group.until(lambda: follower.long_polling.count == 1, "the pull is not held")
        await group.send(b"two")
        await group.same("T", 0, [b"one", b"two"])
        assert follower.long_polling.count == 1 and not held.done()
        assert (await held).code == 0  # at its deadline


@pytest.mark.spec("DL-C04", "DL-C05", "LP-04", "DLY-08")
async def test_parked_pulls_are_answered_when_leadership_is_lost(ledger_group: LedgerGroup) -> None:
    await ledger_group.send(b"one")
    first = await ledger_group.master()
    held = asyncio.create_task(pull(ledger_group, first, offset=1, suspend_ms=20_000))
    await ledger_group.until(lambda: first.long_polling.count == 1, "the pull is not held")
    second = await transfer(
        ledger_group, next(name for name in ledger_group.names if ledger_group.brokers[name] is not first)
    )
    assert part(second).copy._task is None  # it copied from the leader before
    async with asyncio.timeout(15):  # less than the 20 s requested
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
    await ledger_group.until(lambda: part(first).broker_id > 0, "it does not follow")
    assert first.master.delay._task._task is None and first.master.transactions._task is None
    assert part(first).copy._task is not None


# ---- copied state


def copied(follower: Broker, master: Broker) -> bool:
    return (
        follower.topics.get("Made") is not None
        and follower.topics.version == master.topics.version
        and "Readers" in follower.groups.table
        and follower.offsets.get("Made", "Readers", 0) == 1
    )


@pytest.mark.spec("DL-C07", "DL-X18", "DLY-08", "OF-05")
async def test_topics_groups_and_offsets_are_copied_and_merged(ledger_group: LedgerGroup, tmp_path: Path) -> None:
    await ledger_group.send(b"x", topic="Made")
    master = await ledger_group.master()
    for follower in ledger_group.followers():
        follower.offsets.set("T", "own", 0, 7)
    master.groups.find("Readers")
    master.offsets.set("Made", "Readers", 0, 1)
    for follower in ledger_group.followers():
        await ledger_group.until(partial(copied, follower, master), "not copied")
        assert follower.offsets.get("T", "own", 0) == 7  # merged, not replaced
        progress = tmp_path / ledger_group.name_of(follower) / "config" / "delayOffset.json"
        await ledger_group.until(progress.exists, "the progress of delays is not copied")
    count = {name: part(b).copy.count for name, b in ledger_group.brokers.items()}
    assert count[ledger_group.name_of(master)] <= 1  # a leader does not copy


@pytest.mark.spec("DL-X18")
async def test_leader_change_loses_no_consumer_offset(ledger_group: LedgerGroup) -> None:
    for number in range(10):
        await ledger_group.send(b"%d" % number)
    await transfer(ledger_group, "n0")
    for round_number in range(3):
        to = ("n1", "n2", "n0")[round_number]
        master = await ledger_group.master()
        assert (await store_offset(ledger_group, master, round_number + 3)).code == 0  # then change the leader at once
        successor = await transfer(ledger_group, to)
        assert successor.offsets.get("T", "G", 0) == round_number + 3


def answers_late(broker: Broker, until: asyncio.Event) -> None:
    """Delay the broker's report of its state until the event is set."""
    report = part(broker).copy.report

    async def late(member: str) -> bytes:
        await until.wait()
        return await report(member)

    member = part(broker).group.member
    assert member is not None
    member.peers.serve_state = late


@pytest.mark.spec("DL-X18", "DL-C05")
async def test_new_leader_waits_for_slow_but_not_for_frozen_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that answers heartbeats will send its offsets too; a silent member must not delay service."""
    monkeypatch.setattr(dledger_sync, "LAST_TIMEOUT_MS", 3_600_000)
    async with ledger_group(tmp_path) as group:
        for number in range(5):
            await group.send(b"%d" % number)
        slow = await transfer(group, "n0")
        until = asyncio.Event()
        answers_late(slow, until)
        for broker in group.brokers.values():
            await part(broker).copy.stop()  # no periodic copies
        assert (await store_offset(group, slow, 4)).code == 0
        await group.until(lambda: group.member("n1").status().end_index == group.member("n0").status().end_index, "")
        asyncio.get_running_loop().call_later(0.6, until.set)  # more than twice the leader's patience
        second = await transfer(group, "n1")
        assert until.is_set() and second.offsets.get("T", "G", 0) == 4
        never = asyncio.Event()
        answers_late(second, never)
        await group.member("n1").stop()
        third = await group.until(lambda: serving_but(group, second), "no member serves")
        assert third.offsets.get("T", "G", 0) is not None
        never.set()


def serving_but(group: LedgerGroup, gone: Broker) -> Broker | None:
    return next((b for b in group.brokers.values() if b is not gone and ledger(b).serving and ledger(b).leads), None)


@pytest.mark.spec("DL-X18", "DL-L09")
async def test_returning_preferred_leader_does_not_restore_old_offsets(tmp_path: Path) -> None:
    raft = {"preferred_leader_id": "n2"}
    async with ledger_group(tmp_path, raft=raft) as group:
        for number in range(10):
            await group.send(b"%d" % number)
        await group.until(lambda: ledger(group.brokers["n2"]).serving, "n2 is preferred")
        assert (await store_offset(group, group.brokers["n2"], 2)).code == 0
        await group.until(lambda: all(part(b).copy.count for b in group.followers()), "never copied")
        await group.stop("n2")
        other = await group.master()
        assert other.offsets.get("T", "G", 0) == 2
        assert (await store_offset(group, other, 9)).code == 0
        await group.start("n2")
        await group.until(lambda: ledger(group.brokers["n2"]).serving, "n2 is preferred again")
        assert group.brokers["n2"].offsets.get("T", "G", 0) == 9


@pytest.mark.spec("DL-X18", "DL-C05")
async def test_topic_that_only_messages_name_is_recreated(ledger_group: LedgerGroup) -> None:
    """As under a leader that does not write changes of topics to the log."""
    await ledger_group.master()
    await ledger_group.until(
        lambda: all(part(b).copy.count for b in ledger_group.followers()), "followers do not copy yet"
    )
    for broker in ledger_group.brokers.values():
        await part(broker).copy.stop()  # as if the leader died before any copy; a new follower would restart it
        broker.topics.journal = None
    await ledger_group.send(b"x", topic="Young", queue=2)
    await ledger_group.same("Young", 2, [b"x"])
    first = await ledger_group.master()
    first.topics.delete("Young")  # no member gets it any more
    await ledger_group.stop(ledger_group.name_of(first))
    second = await ledger_group.master()  # it asks the third member, which does not have the topic either
    config = second.topics.get("Young")
    assert config is not None and config.write_queue_nums >= 3


def is_missing(broker: Broker, topic: str) -> bool:
    return broker.topics.get(topic) is None


@pytest.mark.spec("DL-C07", "CQ-12")
async def test_recreated_topic_begins_at_0_on_every_member(ledger_group: LedgerGroup) -> None:
    for number in range(5):
        await ledger_group.send(b"old %d" % number)
    await ledger_group.until(
        lambda: all(b.store.max_offset("T", 0) == 5 for b in ledger_group.brokers.values()), "behind"
    )
    master = await ledger_group.master()
    assert (await ledger_group.call(master, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
    for follower in ledger_group.followers():
        await ledger_group.until(partial(is_missing, follower, "T"), "the deletion is not copied")
        assert (await ledger_group.call(follower, RequestCode.CLEAN_UNUSED_TOPIC)).code == 14
    assert (await ledger_group.send(b"new")).ext["queueOffset"] == "0"
    await ledger_group.same("T", 0, [b"new"])
    await transfer(ledger_group, ledger_group.name_of(ledger_group.followers()[0]))
    assert (await ledger_group.send(b"newer")).ext["queueOffset"] == "1"
    await ledger_group.same("T", 0, [b"new", b"newer"])


# ---- services across a leader change


@pytest.mark.spec("DL-C05", "DLY-05", "DLY-08")
async def test_delayed_messages_are_delivered_by_next_leader(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, store={"message_delay_level": "1s 2s"}) as group:
        await group.send(b"now")
        for number in range(3):
            properties = encode_properties({"DELAY": "2"}).decode()
            await group.send(b"later %d" % number, i=properties)
        first = await group.master()
        await group.stop(group.name_of(first))
        await group.until(
            lambda: all(len(group.stored(b)) >= 4 for b in group.brokers.values()), "not delivered after the switch"
        )
        second = await group.master()
        bodies = group.bodies(second)
        assert bodies == [b"now", b"later 0", b"later 1", b"later 2"]
        assert second.master.delay.offsets().get(2) == 3


@pytest.mark.parametrize(
    ("last", "timer", "expected_timer", "expected_delays"),
    [
        (True, (1000, 51), (1000, 51), {1: 5, 2: 7, 3: 4}),
        (True, (999, 99), (1000, 50), {1: 5, 2: 7, 3: 4}),
        (True, None, (1000, 50), {1: 5, 2: 7, 3: 4}),
        (False, (999, 99), (999, 99), {1: 3, 3: 4}),
        (False, None, (1000, 50), {1: 3, 3: 4}),
    ],
)
async def test_progress_of_a_leader_is_taken_as_it_is_and_of_others_only_forward(
    tmp_path: Path, last: bool, timer: tuple[int, int] | None, expected_timer: tuple[int, int],
    expected_delays: dict[int, int],
) -> None:  # fmt: skip
    copy = object.__new__(dledger_sync.LeaderCopy)
    copy._delay_file, copy._timer_file = StateFile(tmp_path / "delayOffset.json"), StateFile(tmp_path / "timer.json")
    copy._delay_file.write(DelayOffsetTable({1: 5, 2: 7}).encode())
    copy._timer_file.write(encode_progress(1000, 50).encode())
    text = "" if timer is None else encode_progress(*timer)
    state = MemberState("g", "n1", not last, 1, text, b"", b"", b"", DelayOffsetTable({1: 3, 3: 4}).encode())

    copy._writing = asyncio.Lock()
    await copy._take_progress(state, last=last)
    assert copy._timer_file.read(parse_progress) == expected_timer
    table = copy._delay_file.read(DelayOffsetTable.decode)
    assert table is not None and table.offset_table == expected_delays


@pytest.mark.spec("DL-C05", "DLY-08")
async def test_delivered_messages_are_not_delivered_again_after_a_leader_died(tmp_path: Path) -> None:
    """The new leader asks the other followers too, which may report less progress of delays than it has copied, or none."""
    async with ledger_group(tmp_path, store={"message_delay_level": "1s 2s"}) as group:
        for number in range(3):
            await group.send(b"later %d" % number, i=encode_properties({"DELAY": "2"}).decode())
        first = await group.master()
        await group.until(lambda: len(group.stored(first)) == 3, "not delivered")

        def copied(follower: Broker) -> bool:
            path = tmp_path / group.name_of(follower) / "config" / "delayOffset.json"
            return path.exists() and DelayOffsetTable.decode(path.read_bytes()).offset_table == {2: 3}

        await group.until(lambda: all(map(copied, group.followers())), "the progress is not copied")
        answers_late(first, asyncio.Event())  # as one that died
        await group.stop(group.name_of(first))
        second = await group.master()
        assert second.master.delay.offsets() == {2: 3}
        await group.send(b"last", i=encode_properties({"DELAY": "1"}).decode())
        await group.until(lambda: b"last" in group.bodies(second), "not delivered")
        assert group.bodies(second) == [b"later 0", b"later 1", b"later 2", b"last"]


@pytest.mark.spec("DL-C05", "TX-04")
async def test_half_message_is_known_to_next_leader(ledger_group: LedgerGroup) -> None:
    await ledger_group.send(b"warm")
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "producers"}).decode()
    half = await ledger_group.send(b"half", i=properties)
    first = await ledger_group.master()
    to = next(name for name in ledger_group.names if ledger_group.brokers[name] is not first)
    second = await transfer(ledger_group, to)
    await ledger_group.until(lambda: second.master.transactions.ready, "half messages are not read")
    assert len(second.master.transactions.table.pending) == 1
    answer = await ledger_group.call(
        second, RequestCode.END_TRANSACTION, producerGroup="producers",
        tranStateTableOffset=half.ext["queueOffset"], commitLogOffset=int(half.ext["msgId"][16:], 16),
        commitOrRollback=8, fromTransactionCheck=False, msgId="m",
    )  # fmt: skip
    assert answer.code == 0, answer.remark
    await ledger_group.same("T", 0, [b"warm", b"half"])
    third = await transfer(ledger_group, ledger_group.name_of(first))
    await ledger_group.until(lambda: third.master.transactions.ready, "half messages are not read")
    assert not third.master.transactions.table.pending  # decided, also on this member


@pytest.mark.spec("DL-X18")
async def test_returning_preferred_leader_copies_before_taking_over(tmp_path: Path) -> None:
    raft = {"preferred_leader_id": "n2", "heartbeat_interval_ms": 1000}  # no election on a busy machine meanwhile
    async with ledger_group(tmp_path, raft=raft, start=False) as group:
        for name in ("n0", "n1"):
            await group.start(name)
        for number in range(9):
            await group.send(b"%d" % number)
        while (await store_offset(group, await group.master(), 9)).code != 0:
            await asyncio.sleep(0.02)  # poll
        served = asyncio.Event()
        for broker in group.brokers.values():
            answers_late(broker, served)
        back = await group.start("n2")
        core = group.member("n2").node
        await group.until(lambda: core._transfers._alarmed, "no member asks it to lead")
        assert part(back).copy.count == 0 and not ledger(back).serving
        assert core.leader_id is not None and group.member("n2").status().role is Role.FOLLOWER
        await group.until(lambda: part(back)._following, "it does not follow")
        served.set()
        await group.until(lambda: ledger(back).serving, "it does not take over though it has copied")
        assert back.offsets.get("T", "G", 0) == 9


def queue_roles(dledger: DLedger, *roles: Role) -> None:
    """Queue role changes in the current term, as elections that follow each other at once do."""
    member = dledger.group.member
    assert member is not None
    dledger.group.stop_serving()
    for role in roles:
        dledger._events.put_nowait((role, member.status().term))


def is_master(broker: Broker) -> bool:
    dledger = part(broker)
    return dledger._events.empty() and dledger.group.serving and dledger.broker_id == 0


async def test_leader_elected_twice_in_one_term_serves_as_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = 0
    original = dledger_sync.LeaderCopy.copy_last
    async with ledger_group(tmp_path, 1) as group:
        broker = await group.master()
        await group.until(lambda: is_master(broker), "the member does not lead")

        async def copy_last(copy: dledger_sync.LeaderCopy, *arguments: Any) -> None:
            nonlocal copies
            copies += 1
            if copies == 1:
                queue_roles(part(broker), Role.CANDIDATE, Role.LEADER)
            await original(copy, *arguments)

        monkeypatch.setattr(dledger_sync.LeaderCopy, "copy_last", copy_last)
        queue_roles(part(broker), Role.FOLLOWER, Role.LEADER)
        await group.until(lambda: copies == 2 and is_master(broker), "the leader does not serve as master")
        await group.send(b"stored")


async def test_failed_role_change_is_retried_before_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dledger_module, "RETRY_SECONDS", 0.01)
    failures = [OSError("offsets not saved")]
    async with ledger_group(tmp_path, 1) as group:
        broker = await group.master()
        await group.until(lambda: is_master(broker), "the member does not lead")
        dledger = part(broker)
        stop_services = dledger._stop_services

        async def stop() -> None:
            if failures:
                raise failures.pop()
            await stop_services()

        monkeypatch.setattr(dledger, "_stop_services", stop)
        queue_roles(dledger, Role.FOLLOWER, Role.LEADER)
        await group.until(lambda: not failures and is_master(broker), "the leader does not serve as master")
        await group.send(b"stored")
