"""State outside the log that followers must not take over: from brokers that pretend to be the group's, and beyond the own queues.

Requirements: SEC-18, DL-C07, DL-X18.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, client_of, ledger, ledger_group, part
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.dledger_state import MemberState
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import ConsumerOffsetTable, DelayOffsetTable, SubscriptionGroupTable, TopicConfigTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import BodyError
from saturnmq.raft.core.messages import Code
from saturnmq.store import StoreProfile, StoreSettings


async def change_leader(group: LedgerGroup) -> Broker:
    """Transfer the leadership to a follower. Returns it when it serves."""
    async with asyncio.timeout(60):
        while True:
            before = await group.master()
            to = group.name_of(group.followers()[0])
            answer = await group.member(group.name_of(before)).transfer(to)
            if answer.code == Code.SUCCESS:
                break
            await asyncio.sleep(0.05)  # poll
    await group.until(lambda: group.serving() is group.brokers[to], "the transferee does not serve")
    return group.brokers[to]


async def stopped_copy(group: LedgerGroup) -> tuple[Broker, Broker, MemberState]:
    """Send a message and stop the copies of a follower that has it. Returns the leader, the follower, the leader's state."""
    await group.send(b"x")
    master, follower = await group.master(), group.followers()[0]
    copy = part(follower).copy
    await group.until(lambda: copy.count, "nothing copied")
    await group.until(lambda: follower.store.max_offset("T", 0) == 1, "the topic's entry is not dispatched")
    await copy.stop()
    return master, follower, MemberState.decode(await part(master).copy.report(""))


@pytest.mark.spec("SEC-18", "DL-C07")
async def test_followers_ignore_a_forged_broker_0_of_their_name(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, register_period_ms=60_000) as group:
        bodies = [b"%d" % number for number in range(20)]
        for body in bodies:
            await group.send(body)
        forged = Broker(
            BrokerSettings(
                broker_name="g", namesrv_addr=group.name_servers, listen_port=0, fast_port_enable=False,
                register_period_ms=10_000,
            ),
            StoreSettings(store_path_root_dir=str(tmp_path / "forged"), profile=StoreProfile.SMALL),
            NetSettings(),
        )  # fmt: skip
        await forged.start()  # the NameServers list it as broker 0
        asked: list[int] = []
        handle = forged._server.handler

        def seen(connection: Any, command: Any) -> Any:
            asked.append(command.code)
            return handle(connection, command)

        forged._server.handler = seen  # type: ignore[assignment]
        try:
            forged.offsets.set("T", "G", 0, 10**6)
            forged.topics.delete("g_REPLY_TOPIC")
            for broker in group.brokers.values():  # as a NameServer's answer to a registration would
                broker.registrar.master_address = forged.advertised_address
            counts = {name: part(broker).copy.count for name, broker in group.brokers.items()}
            master = await group.master()
            master.offsets.set("T", "G", 0, 5)
            for broker in group.followers():
                name = group.name_of(broker)
                await group.until(lambda: part(broker).copy.count > counts[name] + 1, "nothing is copied")  # noqa: B023
                await group.until(lambda: broker.offsets.get("T", "G", 0) == 5, "not the leader's offset")  # noqa: B023
            for _ in range(2):
                master = await change_leader(group)
                assert master.offsets.get("T", "G", 0) == 5
            assert not {21, 201, 43, 45} & set(asked)
        finally:
            await forged.stop()
        async with asyncio.timeout(60), client_of(group) as client:
            received: list[bytes] = []
            async with client.consumer("G") as inbox:
                await inbox.subscribe("T")
                async for message in inbox:
                    received.append(message.value)
                    await message.ack()
                    if set(bodies[5:]) <= set(received):
                        break
        assert sorted(set(received)) == sorted(bodies[5:])  # none is skipped


@pytest.mark.spec("SEC-18", "DL-X18")
async def test_offsets_beyond_the_queues_are_lowered_before_a_member_leads(
    ledger_group: LedgerGroup, tmp_path: Path
) -> None:
    for number in range(3):
        await ledger_group.send(b"%d" % number)
    master = await ledger_group.master()
    master.offsets.set("T", "G", 0, 10**6)
    master.offsets.set("Nowhere", "G", 0, 7)
    master.offsets.set("T", "exact", 0, 3)
    for broker in ledger_group.followers():
        await ledger_group.until(lambda: broker.offsets.get("T", "G", 0) == 10**6, "not copied")  # noqa: B023
        config = tmp_path / ledger_group.name_of(broker) / "config"
        await part(broker).copy.stop()
        (config / "delayOffset.json").write_bytes(DelayOffsetTable({1: 10**6}).encode())
        (config / "timer.json").write_text(json.dumps({"doneMs": 2**50, "logEnd": 2**60}))
    after = await change_leader(ledger_group)
    found = [after.offsets.get(*key) for key in (("T", "G", 0), ("Nowhere", "G", 0), ("T", "exact", 0))]
    assert found == [after.store.max_offset("T", 0), 0, 3]  # a send may have been repeated
    assert after.master.delay.offsets().get(1, 0) == 0
    assert after.master.timer.done_ms() < 2**50


@pytest.mark.spec("SEC-18", "DL-C07")
async def test_foreign_empty_and_outdated_tables_are_refused(ledger_group: LedgerGroup) -> None:
    master, follower, good = await stopped_copy(ledger_group)
    copy, name = part(follower).copy, ledger_group.name_of(master)
    offsets, groups = follower.offsets.encode(), b"".join(follower.groups.pieces())
    table = TopicConfigTable.decode(good.topics)
    del table.topic_config_table["g"]
    member = ledger_group.member(name)
    for state in (
        dataclasses.replace(good, group="other"),
        dataclasses.replace(good, member="n9"),
        dataclasses.replace(good, leads=False),
        dataclasses.replace(good, term=good.term + 1),
        dataclasses.replace(good, topics=TopicConfigTable({}, table.data_version).encode()),
        dataclasses.replace(good, topics=table.encode()),
        dataclasses.replace(good, topics=b"[]"),
        dataclasses.replace(good, offsets=b"{"),
    ):

        async def report(_: str, state: MemberState = state) -> bytes:
            return state.encode()

        member.peers.serve_state = report
        count, topics = copy.count, b"".join(follower.topics.pieces())
        assert not await copy.copy(name, 3000), state
        assert (copy.count, b"".join(follower.topics.pieces())) == (count, topics)
    assert (follower.offsets.encode(), b"".join(follower.groups.pieces())) == (offsets, groups)

    async def empty(_: str) -> bytes:
        return dataclasses.replace(
            good, offsets=ConsumerOffsetTable({}).encode(),
            groups=SubscriptionGroupTable({}, table.data_version).encode(),
        ).encode()  # fmt: skip

    follower.offsets.set("T", "G", 0, 1)
    member.peers.serve_state = empty
    assert await copy.copy(name, 3000)
    assert follower.offsets.get("T", "G", 0) == 1
    assert b"".join(follower.groups.pieces()) == groups


@pytest.mark.spec("SEC-18", "DL-X18")
async def test_tables_beyond_the_own_log_hide_no_later_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the leader, and from the member that answers an incomplete new leader. Tables up to the end of the log are taken."""
    caplog.set_level("INFO")
    async with ledger_group(tmp_path) as group:
        master, follower, good = await stopped_copy(group)
        copy, name = part(follower).copy, group.name_of(master)
        await group.until(lambda: follower.store.log.end >= good.covered, "the follower has not what the leader has")
        before, changes = copy.changes.covered, copy.changes
        member = group.member(name)
        for covered in (2**62, 2**70, follower.store.log.end + 1):
            forged = dataclasses.replace(good, covered=covered)

            async def report(_: str, state: MemberState = forged) -> bytes:
                return state.encode()

            member.peers.serve_state = report
            for last in (False, True):
                changes._complete = not last
                assert await copy.copy(name, 3000, last=last)
                assert changes.complete is not last
            assert changes.covered == before
        assert caplog.text.count("tables not taken until the own log reaches them") == 1
        changes._complete = False
        member.peers.serve_state = part(master).copy.report
        assert await copy.copy(name, 3000)
        assert changes.complete
        created = await group.call(
            master, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="later", readQueueNums=3, writeQueueNums=3, perm=6,
            topicFilterType="SINGLE_TAG", defaultTopic="TBW102",
        )  # fmt: skip
        assert created.code == 0
        await group.until(lambda: "later" in follower.topics.table, "the change is not made")


@pytest.mark.spec("DL-C07")
async def test_java_leader_is_asked_only_at_its_own_host(ledger_group: LedgerGroup) -> None:
    await ledger_group.send(b"x")
    master, follower = await ledger_group.master(), ledger_group.followers()[0]
    copy, name = part(follower).copy, ledger_group.name_of(master)
    ledger_group.member(name).peers.serve_state = None  # as a Java member: code 3
    await copy.stop()
    master.offsets.set("T", "G", 0, 1)
    follower.registrar.master_address = master.advertised_address
    assert await copy.copy(name, 5000)
    assert follower.offsets.get("T", "G", 0) == 1
    count = copy.count
    for broker in ledger_group.brokers.values():  # all brokers of the name are at another host
        await broker.registrar.stop()
    follower.registrar.master_address = "127.0.0.77:1"
    assert not await copy.copy(name, 5000)
    assert copy.count == count
    assert ledger(follower).member is not None
    assert (await ledger_group.call(master, RequestCode.GET_ALL_CONSUMER_OFFSET)).code == 0


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_as_state_parse_or_raise_body_error(data: bytes, tail: bytes) -> None:
    state = MemberState("g", "n0", True, 3, "", b"t", tail, b"", b"d")
    assert MemberState.decode(state.encode()) == state
    for body in (data, state.encode()[: len(data)], state.encode() + tail + b"!"):
        with pytest.raises(BodyError):
            MemberState.decode(body)
