"""When the name servers first hear of a broker: a plain one at its start, a member of a group with its role."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from brokergroup import LedgerGroup, ledger_group

from saturnmq.broker import Broker
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import ClusterInfo
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.command import Command


async def registered(group: LedgerGroup) -> dict[str, dict[int, str]]:
    """What the name server knows: addresses by id, by broker name."""
    answer = await group.client.invoke(group.name_servers, Command(RequestCode.GET_BROKER_CLUSTER_INFO), 10_000)
    table = ClusterInfo.decode(answer.body).broker_addr_table
    return {name: dict(data.broker_addrs) for name, data in table.items()}


async def until_told(group: LedgerGroup) -> None:
    """Until the name server knows every member, by the role that it has now."""
    async with asyncio.timeout(45):
        while True:
            found, master = await registered(group), await group.master()
            ids = {0 if broker is master else int(name[1:]) + 1: broker for name, broker in group.brokers.items()}
            assert set(found) <= {"g"} and all(number >= 0 for number in found.get("g", {}))
            if found == {"g": {number: broker.advertised_address for number, broker in ids.items()}}:
                return
            await asyncio.sleep(0.02)  # poll


@pytest.mark.spec("NS-37", "DL-X19")
def test_a_member_is_registered_with_its_role_and_not_at_its_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncio.timeout(110), ledger_group(tmp_path, start=False, register_period_ms=60_000) as group:
            plain = Broker(group.settings(broker_name="plain"), group.store("plain"), NetSettings())
            await plain.start()
            try:
                assert await registered(group) == {"plain": {0: plain.advertised_address}}  # it is there at once
            finally:
                await plain.stop()
            assert await registered(group) == {}
            first = await group.start("n0")  # alone: no majority, no role
            member = group.member("n0")
            first.topics.ensure("T", 4)  # what else makes a broker register: a topic, and a round that is forced
            assert await first.registrar.register(force=True)
            term = member.status().term
            await group.until(lambda: member.status().term > term or member.node.state.now_ms > 0, "no tick")
            assert first.dledger is not None and first.dledger.broker_id < 0
            assert await registered(group) == {} and first.registrar.registered == 0
            await group.start("n1")
            await until_told(group)
            await group.start("n2")
            await until_told(group)

    asyncio.run(work())
