"""A member of a running group of broker processes is replaced under load: no acknowledged message is lost, order is kept."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from test_raft_broker_processes import Processes, master_at

from ports import free_ports
from saturnmq import Client, MessageQueue, Producer
from saturnmq.admin.ledger import change_members
from saturnmq.protocol.errors import SaturnError
from saturnmq.raft.core.messages import ChangeKind, Code
from saturnmq.raft.ledger.check import verify

pytestmark = pytest.mark.realtime
TOPIC = "Ledger"
SENDERS = 4
AFTER_EACH_STEP = 60  # messages sent at least


class Load:
    """Sends numbered messages, each sender its own sequence, one after the other; repeats one until it is acknowledged."""

    def __init__(self) -> None:
        self.acked: dict[int, list[int]] = {number: [] for number in range(SENDERS)}
        self.places: dict[tuple[int, int], bytes] = {}
        self.running = True

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    async def run(self, client: Client) -> None:
        async with client.producer("p") as producer:

            async def send(sender: int) -> None:
                at = 0
                while self.running:
                    body = b"%d %d" % (sender, at)
                    try:
                        receipt = await producer.send(TOPIC, body, queue=MessageQueue(TOPIC, "g", sender), timeout=5)
                    except SaturnError:
                        await asyncio.sleep(0.02)  # poll
                        continue
                    self.places[(receipt.queue.queue_id, receipt.offset)] = body
                    self.acked[sender].append(at)
                    at += 1

            await self._create_topic(producer)
            await asyncio.gather(*map(send, range(SENDERS)))

    async def _create_topic(self, producer: Producer) -> None:
        while True:
            try:
                await producer.send(TOPIC, b"%d 0" % SENDERS)
                return
            except SaturnError:
                await asyncio.sleep(0.05)  # poll

    async def goes_on(self) -> None:
        """Wait until more messages are acknowledged."""
        wanted = self.count + AFTER_EACH_STEP
        async with asyncio.timeout(60):
            while self.count < wanted:
                await asyncio.sleep(0.02)  # poll


async def change(group: Processes, kind: ChangeKind, member: str) -> None:
    """Repeat a change until it is made: a new member may not have been recognised yet, or lag."""
    passing = (Code.UNSUPPORTED, Code.FALL_BEHIND_TOO_MUCH, Code.REPEATED_REQUEST, Code.ILLEGAL_MEMBER_STATE)
    async with asyncio.timeout(60):
        while True:
            answer = await change_members(kind, "g", group.peers, member)
            if answer.code == Code.SUCCESS:
                return
            assert answer.code in passing, answer
            await asyncio.sleep(0.1)  # poll


@pytest.mark.timeout(240)
@pytest.mark.spec("DL-X21")
async def test_member_is_replaced_under_load_without_lost_messages(tmp_path: Path) -> None:
    group, load = Processes(tmp_path), Load()
    await group.start_namesrv()
    await asyncio.gather(*(group.start(name) for name in group.names))
    try:
        async with Client(name_servers=group.name_servers, route_poll_ms=300) as client:
            sending = asyncio.create_task(load.run(client))
            await load.goes_on()
            (port,) = free_ports(1)
            group.peers += f";n3-127.0.0.1:{port}"
            await group.start("n3", **{"dledger.learner": "true"})
            await change(group, ChangeKind.ADD_LEARNER, f"n3-127.0.0.1:{port}")
            await load.goes_on()
            await change(group, ChangeKind.PROMOTE, "n3")
            await load.goes_on()
            old = group.name_at(await master_at(group.name_servers))
            await change(group, ChangeKind.REMOVE, old)
            assert await group.end(old, signal.SIGTERM) == 0
            group.names = [name for name in (*group.names, "n3") if name != old]
            await load.goes_on()
            killed = group.name_at(await master_at(group.name_servers))
            assert await group.end(killed, signal.SIGKILL) == -signal.SIGKILL
            await load.goes_on()
            await group.start(killed)
            await load.goes_on()
            load.running = False
            async with asyncio.timeout(60):
                await sending
        await group.level()
    finally:
        codes = [await group.end(name, signal.SIGTERM) for name in list(group.running)]
    assert codes == [0] * 4
    assert [verify(tmp_path / name / f"dledger-{name}").problems for name in group.names] == [[], [], []]
    for name in group.names:
        content = await group.contents(name)
        assert {place: content.get(place) for place in load.places} == load.places, f"{name} lost messages"
        for sender, acked in load.acked.items():
            bodies = [body.split() for _, body in sorted(content.items())]
            order = [int(at) for who, at in bodies if int(who) == sender]
            assert list(dict.fromkeys(order)) == sorted(set(order)) and set(acked) <= set(order)
