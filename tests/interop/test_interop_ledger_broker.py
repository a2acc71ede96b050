"""DLedger groups of two Apache brokers and one member of ours (a bare member, then a broker), and of three brokers of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache
import javatools
import pytest
import saturn
from processes import ServerProcess

from ports import free_port
from saturnmq import Client
from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.bodies import TopicConfigTable, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.messages import HeartBeatRequest, MetadataRequest, Request, TransferRequest
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.check import compare, verify
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.settings import RaftSettings
from saturnmq.raft.wire.codec import code_of, decode_response, encode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

GROUP = "RaftNode00"
FILE_BYTES = 64 * 1024 * 1024
TOPIC = "LedgerTopic"


class Group:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(3)}
        self.peers = ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        self.namesrv_port = free_port()
        self.servers: list[ServerProcess] = []
        self.ours: RaftMember | None = None
        self.client = RemotingClient(settings=NetSettings())

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    def start_brokers(self) -> None:
        self.servers.append(apache.start_namesrv(self.folder, self.namesrv_port))
        for name in ("n0", "n1"):
            settings = {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": GROUP,
                "dLegerPeers": self.peers,
                "dLegerSelfId": name,
                "mappedFileSizeCommitLog": str(FILE_BYTES),
                "registerNameServerPeriod": "10000",
            }
            port = free_port(apache.BROKER_PORT_OFFSETS)
            self.servers.append(
                apache.start_broker(
                    self.folder / name, port, self.name_servers, name=GROUP, settings=settings, heap_mb=512
                )
            )

    def home(self, name: str) -> Path:
        return self.folder / name / GROUP

    async def start_ours(self) -> RaftMember:
        settings = RaftSettings(enabled=True, group=GROUP, peers_text=self.peers, self_id="n2")
        self.ours = RaftMember(
            settings,
            settings.folder(self.folder),
            NetSettings(),
            file_bytes=FILE_BYTES,
            sync_before_ack=True,
            stamp=stamp_message,
            noop=noop_message(("127.0.0.1", 10911), 1),
            body_is_good=message_is_good,
        )
        await self.ours.start()
        return self.ours

    async def ask(self, name: str, request: Request) -> Any:
        command = Command(code_of(request), body=encode(request))
        return decode_response(code_of(request), (await self.client.invoke(self.addresses[name], command, 5000)).body)

    async def leader(self, among: tuple[str, ...] = ("n0", "n1", "n2")) -> str:
        async with asyncio.timeout(60):
            while True:
                for name in among:
                    try:
                        said = await self.ask(name, MetadataRequest(group=GROUP, remote_id=name))
                    except SaturnError:
                        continue
                    if said.leader_id == name:
                        return name
                await asyncio.sleep(0.05)  # poll

    async def transfer(self, to: str, term: int) -> None:
        name = await self.leader()
        request = TransferRequest(group=GROUP, remote_id=name, transfer_id=name, transferee_id=to, term=term)
        await self.ask(name, request)

    async def stop(self) -> None:
        await self.client.close()
        if self.ours is not None:
            await self.ours.stop()
        for server in reversed(self.servers):
            await asyncio.to_thread(server.stop)


async def send_until_taken(group: Group, bodies: list[bytes]) -> None:
    """Send each body until it is acknowledged; a master must be registered first."""
    async with Client(name_servers=group.name_servers) as client, client.producer("ledger-p") as out:
        async with asyncio.timeout(90):
            for body in bodies:
                while True:
                    try:
                        await out.send(TOPIC, body)
                        break
                    except SaturnError:
                        await asyncio.sleep(0.3)  # poll


@pytest.mark.spec("DL-X04", "DL-B03", "DL-M06")
async def test_apache_brokers_ignore_the_noop_of_our_leader(tmp_path: Path) -> None:
    group = Group(tmp_path)
    sent = [b"message %d" % number for number in range(20)]
    try:
        await asyncio.to_thread(group.start_brokers)
        await group.leader(("n0", "n1"))
        ours = await group.start_ours()
        await send_until_taken(group, sent[:10])
        noops = 0
        # Until a no-op is required, because the last message is not known to be committed here.
        for attempt in range(12):
            await send_until_taken(group, [b"extra %d" % attempt])
            sent.append(b"extra %d" % attempt)
            before = ours.files.end_index
            await group.transfer("n2", ours.status().term)
            async with asyncio.timeout(60):
                while ours.status().role is not Role.LEADER:
                    await asyncio.sleep(0.05)  # poll
                    if (await group.leader()) != "n2":
                        await group.transfer("n2", ours.status().term)
            async with asyncio.timeout(30):
                while ours.status().committed_index < ours.status().end_index:
                    await asyncio.sleep(0.05)  # poll
            for index in range(max(before, 0), ours.files.end_index + 1):
                entry = ours.files.entry(index)
                assert entry is not None
                noops += decode_record(entry.body).sys_flag & 0xC == 0xC
            async with asyncio.timeout(60):
                while ours.status().role is Role.LEADER:
                    await ours.transfer("n0")
                    await asyncio.sleep(0.05)  # poll
            if noops:
                break
        assert noops > 0
        await send_until_taken(group, sent[10:20])
        async with Client(name_servers=group.name_servers) as client:
            puller = client.puller()
            found: list[bytes] = []
            for queue in await puller.queues(TOPIC):
                at, end = await puller.min_offset(queue), await puller.max_offset(queue)
                while at < end:
                    result = await puller.pull(queue, at)
                    assert result.next_offset > at, f"{queue} stands still at {at}"
                    found += [message.body for message in result.messages()]
                    at = result.next_offset
            assert set(found) == set(sent)
        for name in ("n0", "n1"):
            home = group.home(name)
            assert not (home / "store" / "consumequeue" / "SELF_TEST_TOPIC").exists()
            logs = "".join(path.read_text(errors="replace") for path in home.rglob("*.log"))
            assert "[BUG]" not in logs
    finally:
        await group.stop()


# ---- our broker in a group of Apache brokers


async def route_ids(group: Group) -> dict[int, str]:
    """Broker ids and addresses of the group in the NameServer's route response."""
    ext = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext)
    answer = await group.client.invoke(group.name_servers, command, 5000)
    if answer.code != 0:
        return {}
    return dict(TopicRouteData.decode(answer.body).broker_datas[0].broker_addrs)


async def until_master(group: Group, wanted: Callable[[str], bool], count: int = 3) -> dict[int, str]:
    """Wait until the NameServer names a matching master and `count` brokers in total."""
    found: dict[int, str] = {}
    try:
        async with asyncio.timeout(60):
            while not (len(found) == count and 0 in found and wanted(found[0])):
                await asyncio.sleep(0.1)  # poll
                found = await route_ids(group)
            return found
    except TimeoutError:
        raise AssertionError(f"the NameServer knows {found}, leader={await group.leader()}") from None


async def run_java_client(home: Path, servers: Group, command: str, **options: Any) -> list[dict[str, Any]]:
    def call() -> list[dict[str, Any]]:
        return list(javatools.run_client(command, home=home, ns=servers.name_servers, **options).results)

    return await asyncio.to_thread(call)


async def java_sends(home: Path, group: Group, count: int) -> list[str]:
    """Send with the Java producer; returns the ids of acknowledged messages."""
    rows = await run_java_client(home, group, "send", topic=TOPIC, count=count)
    return [row["msgId"] for row in rows if row.get("status") == "SEND_OK"]


async def java_pulls(home: Path, group: Group) -> list[str]:
    rows = await run_java_client(home, group, "pull", topic=TOPIC, group="puller")
    return [row["msgId"] for row in rows if "received" in row]


@pytest.mark.spec("DL-B04", "DL-C04", "DL-C05", "DL-C07", "DL-C08", "DL-X02")
async def test_our_broker_leads_and_follows_apache_brokers(tmp_path: Path, home: Path) -> None:
    group = Group(tmp_path)
    port = free_port(saturn.BROKER_PORT_OFFSETS)
    ours_at = f"127.0.0.1:{port}"

    def start_ours() -> ServerProcess:
        settings = {
            "enableDLegerCommitLog": "true", "dLegerGroup": GROUP, "dLegerPeers": group.peers, "dLegerSelfId": "n2",
            "mappedFileSizeCommitLog": str(FILE_BYTES), "registerNameServerPeriod": "10000",
        }  # fmt: skip
        return saturn.start_broker(tmp_path / "ours", port, group.name_servers, name=GROUP, settings=settings)

    ours: ServerProcess | None = None
    try:
        await asyncio.to_thread(group.start_brokers)
        ours = await asyncio.to_thread(start_ours)
        await group.leader()
        await until_master(group, lambda address: True)
        sent = await java_sends(home, group, 12)
        assert len(sent) == 12
        await ours_leads(group)
        ids = await until_master(group, ours_at.__eq__)
        assert sorted(ids) == [0, 1, 2]  # n0 and n1 follow; a follower's broker id is the digits of its name plus 1
        more = await java_sends(home, group, 12)
        assert len(more) == 12
        assert sorted(await java_pulls(home, group)) == sorted(sent + more)
        shown = await asyncio.to_thread(javatools.mqadmin, group.name_servers, "clusterList")
        assert [line.split()[2] for line in shown.splitlines() if f" {GROUP} " in line] == ["0", "1", "2"], shown

        for number in (1, 2):
            await until_it_copied(group, ids[number])
        ours.process.kill()  # an Apache broker takes over
        await asyncio.to_thread(ours.stop)
        await until_master(group, lambda address: address != ours_at, count=2)
        assert sorted(await java_pulls(home, group)) == sorted(sent + more)
        last = await java_sends(home, group, 12)
        assert len(last) == 12
        ours = await asyncio.to_thread(start_ours)
        await until_master(group, lambda address: address != ours_at)
        await ours_leads(group)
        await until_master(group, ours_at.__eq__)
        assert sorted(await java_pulls(home, group)) == sorted(sent + more + last)
    finally:
        if ours is not None:
            await asyncio.to_thread(ours.stop)
        await group.stop()
    folders = [group.home(name) / "store" / f"dledger-{name}" for name in ("n0", "n1")]
    folders.append(tmp_path / "ours" / GROUP / "store" / "dledger-n2")
    reports = [verify(folder) for folder in folders]
    assert [report.problems for report in reports] == [[], [], []]
    difference = compare(folders)
    assert difference is None or difference.index > min(report.committed_index for report in reports)


async def until_it_copied(group: Group, address: str) -> None:
    """Wait until an Apache slave has copied the topics from our master, which it does every 10 s."""
    async with asyncio.timeout(60):
        while True:
            answer = await group.client.invoke(address, Command(RequestCode.GET_ALL_TOPIC_CONFIG), 5000)
            if TOPIC in TopicConfigTable.decode(answer.body).topic_config_table:
                return
            await asyncio.sleep(0.2)  # poll


async def ours_leads(group: Group) -> None:
    """Transfer the leadership to our broker; retries until a restarted broker has caught up."""
    async with asyncio.timeout(60):
        while await group.leader() != "n2":
            await group.transfer("n2", await term_of(group))
            await asyncio.sleep(0.5)  # poll


async def term_of(group: Group) -> int:
    """The leader's current term, taken from its response to an expired heartbeat."""
    name = await group.leader()
    request = HeartBeatRequest(
        group=GROUP, remote_id=name, local_id="n1", leader_id="n1" if name != "n1" else "n0", term=-1
    )
    return int((await group.ask(name, request)).term)


# ---- three brokers of ours


@pytest.mark.spec("DL-B07", "DL-C05", "DL-C09", "DL-X18")
async def test_java_clients_continue_when_our_leader_is_killed(tmp_path: Path, home: Path) -> None:
    group = Group(tmp_path)
    count = 1500
    ports = {name: free_port(saturn.BROKER_PORT_OFFSETS) for name in group.addresses}
    brokers: dict[str, ServerProcess] = {}
    try:
        group.servers.append(await asyncio.to_thread(saturn.start_namesrv, group.namesrv_port))
        for name, port in ports.items():
            settings = {
                "enableDLegerCommitLog": "true", "dLegerGroup": GROUP, "dLegerPeers": group.peers, "dLegerSelfId": name,
                "mappedFileSizeCommitLog": str(FILE_BYTES), "dledger.profile": "fast",
            }  # fmt: skip
            brokers[name] = await asyncio.to_thread(
                saturn.start_broker, tmp_path / name, port, group.name_servers, name=GROUP, settings=settings
            )
        ids = await until_master(group, lambda address: True)
        await java_sends(home, group, 1)  # creates the topic
        consuming = asyncio.create_task(
            run_java_client(
                home, group, "consume", topic=TOPIC, group="switch", count=count, waitMs=150_000, timeout_s=170.0
            )
        )
        sending = asyncio.create_task(
            run_java_client(home, group, "send", topic=TOPIC, mode="stubborn", count=count, timeout_s=170.0)
        )
        async with asyncio.timeout(60):
            while await stored_at(group, ids[0]) < 50:
                await asyncio.sleep(0.05)  # poll
        killed = next(name for name, port in ports.items() if ids[0].endswith(f":{port}"))
        brokers[killed].process.kill()
        await asyncio.to_thread(brokers.pop(killed).stop)
        await until_master(group, lambda address: address != ids[0], count=2)
        sent = [row["msgId"] for row in await sending if row.get("status") == "SEND_OK"]
        received = {row["msgId"] for row in await consuming if "received" in row}
        assert len(sent) == count
        assert set(sent) - received == set()
    finally:
        for server in brokers.values():
            await asyncio.to_thread(server.stop)
        await group.stop()


async def stored_at(group: Group, address: str) -> int:
    """Number of messages in the first queue of the topic."""
    command = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"})
    return int((await group.client.invoke(address, command, 5000)).ext["offset"])
