"""Three broker processes, a NameServer and our client; leaders are killed: clients continue, no acknowledged message is lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ports import free_ports
from saturnmq import Client, SendStatus
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import KVTable, SubscriptionGroupConfig, TopicConfig, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record
from saturnmq.raft.ledger.check import verify
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import StoreProfile, StoreSettings

pytestmark = pytest.mark.realtime
TOPIC = "Ledger"
FAILOVER_S_MAX = 20.0
SETTINGS = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "g",
    "brokerName": "g",
    "storeProfile": "small",
    "mappedFileSizeCommitLog": "1048576",
    "dledger.profile": "fast",
    "dledger.heartBeatTimeIntervalMs": "300",
    "dledger.indexFileUnits": "65536",
    "fastPortEnable": "false",
    "listenPort": "0",
}


class Processes:
    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.settings = SETTINGS | settings
        ports = free_ports(3)
        self.peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.names = [f"n{number}" for number in range(3)]
        self.running: dict[str, asyncio.subprocess.Process] = {}
        self.facts: dict[str, dict[str, str]] = {}
        self.name_servers = ""

    async def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "saturnmq.cli", *words, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        self.running[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while not (line := (await process.stdout.readline()).decode()).startswith("saturnmq: ready "):
                assert line, (self.folder / f"{name}.log").read_text()[-2000:]
        self.facts[name] = dict(word.split("=", 1) for word in line.split()[2:] if "=" in word)

    async def start_namesrv(self) -> None:
        await self._start("namesrv", "namesrv", "--port", "0")
        self.name_servers = self.facts["namesrv"]["namesrv"]

    async def start(self, name: str, **more: str) -> None:
        values = (
            self.settings
            | more
            | {
                "dLegerPeers": self.peers,
                "dLegerSelfId": name,
                "storePathRootDir": str(self.folder / name),
            }
        )
        file = self.folder / f"{name}.conf"  # not arguments, which other users of the machine can read
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        await self._start(name, "broker", "-c", str(file), "-n", self.name_servers)

    async def end(self, name: str, sign: signal.Signals) -> int:
        process = self.running.pop(name)
        process.send_signal(sign)
        code = await process.wait()
        transport: Any = process._transport  # type: ignore[attr-defined]
        transport.close()
        return code

    async def level(self) -> None:
        """Wait until all members have the same committed index."""
        net = RemotingClient(settings=NetSettings())
        indexes: list[str] = []
        try:
            async with asyncio.timeout(30):
                while len(indexes) < 3 or len(set(indexes)) > 1:
                    await asyncio.sleep(0.1)  # poll
                    command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
                    answers = [await net.invoke(self.facts[name]["broker"], command, 5000) for name in self.names]
                    indexes = [KVTable.decode(answer.body).table["dledgerCommittedIndex"] for answer in answers]
        except TimeoutError:
            raise AssertionError(f"committed: {indexes}") from None
        finally:
            await net.close()

    async def contents(self, name: str) -> dict[tuple[int, int], bytes]:
        """(queue, offset) -> body in the consume queues of a stopped member."""
        raft = RaftSettings(
            enabled=True, group="g", peers_text=self.peers, self_id=name, index_file_units=65536
        )  # fmt: skip
        small = StoreSettings(
            store_path_root_dir=str(self.folder / name), profile=StoreProfile.SMALL, commit_log_file_bytes=1_048_576
        )
        store = GroupMember(small, raft, NetSettings()).store
        store.open()
        try:
            found = {}
            for topic, queue_id in store.topic_queues():
                for offset in range(store.max_offset(topic, queue_id) if topic == TOPIC else 0):
                    record = store.read_record(store.physical_offset(topic, queue_id, offset))
                    assert record is not None
                    found[(queue_id, offset)] = bytes(decode_record(record).body)
            return found
        finally:
            await store.stop()

    def name_at(self, address: str) -> str:
        return next(name for name in self.names if self.facts.get(name, {}).get("broker") == address)


@pytest.mark.timeout(180)
@pytest.mark.spec("DL-B07", "DL-C03", "DL-C05", "DL-X02")
async def test_clients_survive_killed_leaders_without_lost_messages(tmp_path: Path) -> None:
    group = Processes(tmp_path)
    acked: list[bytes] = []
    consumed: list[bytes] = []
    took: list[float] = []
    await group.start_namesrv()
    await asyncio.gather(*(group.start(name) for name in group.names))
    try:
        async with (
            Client(name_servers=group.name_servers, route_poll_ms=500) as client,
            client.producer("p") as producer,
        ):
            number = 0

            async def send_some(count: int) -> None:
                nonlocal number
                for _ in range(count):
                    body = b"%d" % number
                    number += 1
                    async with asyncio.timeout(FAILOVER_S_MAX):
                        while True:
                            try:
                                receipt = await producer.send(TOPIC, body)
                                assert receipt.status is SendStatus.SEND_OK
                                acked.append(body)
                                break
                            except SaturnError:
                                await asyncio.sleep(0.05)  # poll

            await send_some(20)

            async def consume() -> None:
                async with client.consumer("c", start="first") as inbox:
                    await inbox.subscribe(TOPIC)
                    async for message in inbox:
                        consumed.append(message.value)
                        await message.ack()

            consuming = asyncio.create_task(consume())
            for _ in range(2):
                master = await master_at(group.name_servers)
                name = group.name_at(master)
                began = time.monotonic()
                assert await group.end(name, signal.SIGKILL) == -signal.SIGKILL
                await send_some(1)
                took.append(time.monotonic() - began)
                await send_some(20)
                await group.start(name)
            async with asyncio.timeout(60):
                while set(consumed) < set(acked):
                    await asyncio.sleep(0.05)  # poll
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
        assert max(took) < FAILOVER_S_MAX
    finally:
        codes = [await group.end(name, signal.SIGTERM) for name in list(group.running)]
    assert codes == [0] * 4


@pytest.mark.timeout(240)
@pytest.mark.parametrize("settings", [{}, {"enableBatchPush": "true", "flushDiskType": "SYNC_FLUSH"}])
@pytest.mark.spec("DL-A05", "DL-B05", "DL-C03", "DL-X02", "DL-X23")
async def test_acknowledged_messages_keep_their_offsets_over_killed_leaders(
    settings: dict[str, str], tmp_path: Path
) -> None:
    group = Processes(tmp_path, **settings)
    acked: dict[tuple[int, int], bytes] = {}
    tried: set[bytes] = set()
    await group.start_namesrv()
    await asyncio.gather(*(group.start(name) for name in group.names))
    try:
        async with (
            Client(name_servers=group.name_servers, route_poll_ms=300) as client,
            client.producer("p") as producer,
        ):
            left = 0

            async def sender(number: int) -> None:
                nonlocal left
                while left > 0:
                    body = b"%d %d " % (number, len(tried)) + b"." * (len(tried) % 700)
                    tried.add(body)
                    try:
                        receipt = await producer.send(TOPIC, body, timeout=5)
                    except SaturnError:
                        await asyncio.sleep(0.05)  # poll
                        continue
                    place = (receipt.queue.queue_id, receipt.offset)
                    assert place not in acked, f"{place} was given out twice"
                    acked[place] = body
                    left -= 1

            for round_number in range(2):
                left = 240
                senders = [asyncio.create_task(sender(number)) for number in range(16)]
                if round_number < 1:
                    while left > 150:
                        await asyncio.sleep(0.005)  # poll
                    name = group.name_at(await master_at(group.name_servers))
                    assert await group.end(name, signal.SIGKILL) == -signal.SIGKILL
                async with asyncio.timeout(90):
                    await asyncio.gather(*senders)
                if round_number < 1:
                    await group.start(name)
            puller = client.puller()
            found: dict[tuple[int, int], bytes] = {}
            for queue in await puller.queues(TOPIC):
                at, end = await puller.min_offset(queue), await puller.max_offset(queue)
                while at < end:
                    result = await puller.pull(queue, at)
                    for message in result.messages():
                        found[(queue.queue_id, message.offset)] = message.value
                    assert result.next_offset > at
                    at = result.next_offset
        await group.level()
        assert {place: found.get(place) for place in acked} == acked
        assert set(found.values()) <= tried
    finally:
        codes = [await group.end(name, signal.SIGTERM) for name in list(group.running)]
    assert codes == [0] * 4
    reports = [verify(tmp_path / name / f"dledger-{name}") for name in group.names]
    assert [report.problems for report in reports] == [[], [], []]
    contents = [await group.contents(name) for name in group.names]
    for content in contents:  # the consume queues of each member
        assert {place: content[place] for place in content if place in acked} == {
            place: body for place, body in acked.items() if place in content
        }
        assert set(content.values()) <= tried
    assert len(contents[0].keys() ^ contents[1].keys()) < 20  # not known as committed when it stopped


async def master_at(name_servers: str) -> str:
    """Address of the broker that the NameServer lists as master."""
    net = RemotingClient(settings=NetSettings())
    try:
        async with asyncio.timeout(FAILOVER_S_MAX):
            while True:
                ext = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
                answer = await net.invoke(name_servers, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext), 3000)
                if answer.code == 0:
                    for broker in TopicRouteData.decode(answer.body).broker_datas:
                        if 0 in broker.broker_addrs:
                            return broker.broker_addrs[0]
                await asyncio.sleep(0.05)  # poll
    finally:
        await net.close()


@pytest.mark.timeout(240)
@pytest.mark.spec("DL-X18")
async def test_topic_and_group_survive_a_leader_killed_right_after(tmp_path: Path) -> None:
    """`updateTopic` and `updateSubGroup` of the command line; then, within the second of a copy, kill -9 of the leader."""
    group = Processes(tmp_path)
    await group.start_namesrv()
    await asyncio.gather(*(group.start(name) for name in group.names))
    net = RemotingClient(settings=NetSettings())

    async def leader() -> str:
        async with asyncio.timeout(30):
            while True:
                for name in list(group.running.keys() & set(group.names)):
                    with contextlib.suppress(SaturnError):
                        command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
                        answer = await net.invoke(group.facts[name]["broker"], command, 2000)
                        if KVTable.decode(answer.body).table["dledgerServing"] == "true":
                            return name
                await asyncio.sleep(0.02)  # poll

    async def admin(*words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "saturnmq.cli", "admin", *words, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()

    try:
        for number in range(3):
            before = await leader()
            at = group.facts[before]["broker"]
            await admin("updateTopic", "-b", at, "-t", f"empty-{number}", "-r", "5", "-w", "5")
            await admin("updateSubGroup", "-b", at, "-g", f"group-{number}", "-r", "7")
            await group.end(before, signal.SIGKILL)
            after = group.facts[await leader()]["broker"]
            for known in range(number + 1):
                ext = {"topic": f"empty-{known}"}
                topic = await net.invoke(after, Command(RequestCode.GET_TOPIC_CONFIG, ext=ext), 5000)
                assert TopicConfig.decode(topic.body or b"{}").write_queue_nums == 5, topic
                ext = {"group": f"group-{known}"}
                found = await net.invoke(after, Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext=ext), 5000)
                assert SubscriptionGroupConfig.decode(found.body or b"{}").retry_max_times == 7, found
            await group.start(before)
    finally:
        await net.close()
        for name in list(group.running):
            await group.end(name, signal.SIGKILL)
