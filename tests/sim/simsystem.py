"""Simulates a whole system in one thread: NameServers, a DLedger group of brokers, clients; the seed determines every event.

`python simsystem.py FIRST COUNT [SECONDS [DEFECT]]` runs seeds, each in its own process, and prints one line of JSON per seed.

Requirements: SIM-01, SIM-06.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the harness, when this runs as a program

import memberchanges
import tablechanges

from harness.history.check import check
from harness.history.operations import FAIL, OK, UNKNOWN, History, result_of
from harness.javapeer.peer import OriginalLog, OriginalPeer
from harness.systemsim.loop import RUNNING, Process, SimLoop
from harness.systemsim.world import replace_the_machine
from saturnmq import Client, SendStatus
from saturnmq.broker import Broker, BrokerSettings, dledger
from saturnmq.broker.dledger import DLedger
from saturnmq.broker.forwarding import Forwarding
from saturnmq.client.puller.puller import PullStatus
from saturnmq.client.receipt import TransactionState
from saturnmq.errors import BrokerNotExist, ConnectFailed, NoNameServer, RouteNotFound, SendFailed
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import MessageQueue, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft import ticker
from saturnmq.raft.core import leader, state, voting
from saturnmq.raft.ledger.check import compare, verify
from saturnmq.raft.settings import RaftProfile, RaftSettings
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import FlushDiskType, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files import lock_file

GROUP, TOPIC, QUEUES = "g", "orders", 4
SEND_SECONDS, DELAY_MS = 1.5, 995
COMMIT, ROLLBACK = "commit", "rollback"
FAULTS = (
    "crash leader", "crash", "crash all", "isolate leader", "partition", "one way", "freeze", "freeze leader", "slow disk",
    "bad disk", "slow net", "transfer", "clock", "heal",
)  # fmt: skip
POSITIONS = (
    (RequestCode.GET_MAX_OFFSET, "max"), (RequestCode.GET_MIN_OFFSET, "min"), (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "by time"),
    (RequestCode.PULL_MESSAGE, "next"),
)  # fmt: skip
MEMBERS_CHANGE = 5  # remainder of the seeds, divided by 8, in which members are replaced
OF_GROUPS = ("isolate leader", "partition", "one way", "transfer", "bad disk")


def raft_log(store: MessageStore) -> RaftLog:
    """The log of a member's store."""
    assert isinstance(store.log, RaftLog)
    return store.log


class RolledBack(Exception):
    """Raised in a transaction block to roll it back."""


def outcome_of(error: SaturnError) -> str:
    """The result of a failed send for the history: failed, or unknown (CHA-06)."""
    cause = error.__cause__ if isinstance(error, SendFailed) else error
    if isinstance(error, SendFailed) and error.attempts > 1:
        return UNKNOWN
    if isinstance(cause, ResponseError):
        return result_of(cause.code)
    if isinstance(cause, ConnectFailed):
        return UNKNOWN if cause.sent else FAIL
    return FAIL if isinstance(cause, BrokerNotExist | RouteNotFound | NoNameServer) else UNKNOWN


async def pause(seconds: float) -> None:
    """Sleep in simulated time."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, lambda: over.done() or over.set_result(None))
    try:
        await over
    finally:
        timer.cancel()


def queue_of(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, GROUP, number % QUEUES)


def name_of(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def unpack(body: bytes) -> tuple[str, int]:
    value, _, attempt = body.decode().rstrip(".").rpartition("#")
    return value, int(attempt)


class Member:
    """One broker of the group; its folder survives its processes."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.host = f"10.0.1.{number + 1}"
        self.folder = folder / name
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.original: OriginalLog | None = None  # log of a scripted Java peer, which runs no broker
        self.peers = ""  # dLegerPeers and dledger.learner of its file
        self.learner = False
        self.retired = False  # not started again

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive


class System:
    healed_s = 10.0  # how long after the last fault sends may fail
    group = GROUP
    replaces_members = True

    def __init__(self, seed: int, folder: Path, seconds: float) -> None:
        self.seed, self.folder, self.seconds = seed, folder, seconds
        self.rng = random.Random(seed)
        self.loop = SimLoop(self.rng)
        self.history = History()
        self.seen: Counter[str] = Counter()
        self.schedule: list[str] = []
        self.loading = True
        self.over = asyncio.Event()  # set when no transaction check can follow
        self.ends: dict[str, str] = {}
        self.masters: list[int] = []
        self.acked: dict[str, int] = {}
        self.ends_seen = dict.fromkeys(range(QUEUES), 0)  # the highest end of each queue that any client has seen
        self.wrong: list[str] = []  # what tables of topics and groups showed and must not
        self.starts: list[str] = []  # that failed
        rng = self.rng
        self.members = [self.member_of(at) for at in range(rng.choice((3, 3, 3, 5)))]
        self.servers = [Process(f"s{at}", f"10.0.0.{at + 1}") for at in range(rng.choice((1, 2)))]
        self.plain = seed % 8 == 6  # a single broker without a group
        if self.plain:
            del self.members[1:]
        if seed % 4 == 3:
            self.members[-1].original = OriginalLog()
        for one in self.members:
            one.peers = memberchanges.peers_of(self.members)
        self.at = ";".join(f"{one.host}:9876" for one in self.servers)
        self.clients = [Process(f"c{at}", f"10.0.2.{at + 1}") for at in range(3)]
        faults = [one for one in FAULTS if one not in OF_GROUPS] if self.plain else FAULTS
        self.mix = tuple(rng.sample(faults, rng.randrange(3, 8)))
        self.every_s = rng.choice((2.0, 4.0, 8.0))
        self.batch_push = rng.random() < 0.5
        self.heartbeat_ms = rng.choice((300, 500))
        self.auto = seed % 3 == 1 and all(one.original is None for one in self.members)  # members choose their timers
        self.readable = seed % 2 == 0  # slaveReadEnable
        self.seen["batch push"] += self.batch_push and not self.plain
        self.changes = tablechanges.TableLoad(seed, self.seen, pause)
        self.replacements: memberchanges.Replacements | None = None
        if self.replaces_members and seed % 8 == MEMBERS_CHANGE:
            self.replacements = memberchanges.Replacements(self, seed, pause)
            self.clients.append(self.replacements.process)  # which a partition may cut off

    def member_of(self, number: int) -> Member:
        return Member(f"n{number}", number, self.folder)

    @property
    def now(self) -> float:
        return self.loop.now * 1000

    # processes

    async def start_server(self, process: Process) -> None:
        settings = NameServerSettings(
            kv_config_path=str(self.folder / f"{process.name}.json"), admin_addresses="10.0.*.*"
        )
        await NameServer(settings, NetSettings()).start(process.host, 9876)

    def broker_of(self, member: Member) -> Broker:
        raft = RaftSettings(
            enabled=True,
            group=GROUP,
            peers_text=member.peers,
            self_id=member.name,
            learner=member.learner,
            profile=RaftProfile.AUTO if self.auto else RaftProfile.FAST,
            heartbeat_interval_ms=0 if self.auto else self.heartbeat_ms,
            index_file_units=4096,
            flush_interval_ms=200,  # 10 ms would slow the simulation; SYNC_FLUSH does not depend on it
            batch_push=self.batch_push,
            batch_push_bytes=4096,
        )
        store = StoreSettings(
            store_path_root_dir=str(member.folder),
            profile=StoreProfile.SMALL,
            commit_log_file_bytes=65_536,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
        )
        settings = BrokerSettings(
            broker_name=GROUP,
            namesrv_addr=self.at,
            bind_address=member.host,
            listen_port=10911,
            fast_port_enable=False,
            admin_addresses="10.0.*.*",
            transaction_timeout_ms=1000,
            transaction_interval_ms=1000,
            slave_read_enable=self.readable,
        )
        return Broker(settings, store, NetSettings(), raft=None if self.plain else raft)

    def start(self, member: Member) -> None:
        """Start a new process on the member's folder."""
        member.process = Process(member.name, member.host)

        async def serve() -> None:
            if member.original is not None:
                peers = {one.name: f"{one.host}:40911" for one in self.members}
                heartbeat_s = self.heartbeat_ms / 1000
                await OriginalPeer(
                    member.name, GROUP, peers, member.original, heartbeat_s=heartbeat_s, rng=self.rng
                ).run()
            member.broker = self.broker_of(member)
            await member.broker.start()

        self.loop.run_as(member.process, serve()).add_done_callback(lambda task: self._started(member, task))

    def _started(self, member: Member, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.starts.append(f"{member.name} at {self.loop.now - 1000:.1f} s: {task.exception()!r}")

    def crash(self, member: Member) -> None:
        if member.process is None or not member.process.alive:
            return
        self.loop.kill(member.process)
        member.broker = None
        for path in list(lock_file._held):
            if path.is_relative_to(member.folder.resolve()):
                lock_file._held.discard(path)
        self.seen["crashed"] += 1

    def again_soon(self, member: Member) -> None:
        def restart() -> None:
            if not member.up and not member.retired:
                self.start(member)

        self.loop.call_later(self.rng.random() * 5, restart)

    @property
    def leader(self) -> Member | None:
        """The member that leads in the highest term."""
        if self.plain:
            return self.members[0]
        found, best = None, -1
        for member in self.members:
            node = raft_log(member.broker.store).member.node if member.up and member.broker is not None else None
            if node is not None and node.is_leader and node.term > best:
                found, best = member, node.term
        return found

    # faults

    async def faults(self) -> None:
        rng = self.rng
        while self.loading:
            await pause(rng.random() * 2 * self.every_s)
            if not self.loading:
                return
            fault = rng.choice(self.mix)
            member = rng.choice(self.members)
            if fault.endswith("leader"):
                member = self.leader or member
            self.seen[fault] += 1
            self.schedule.append(f"{self.loop.now - 1000:.1f} s {fault} {member.name}")
            self.fault(fault, member)

    def fault(self, fault: str, member: Member) -> None:
        rng, net = self.rng, self.loop.net
        names = [one.name for one in self.members]
        others = [name for name in names if name != member.name]
        if fault in ("crash", "crash leader"):
            self.crash(member)
            self.again_soon(member)
        elif fault == "crash all":
            for one in self.members:
                self.crash(one)
                self.again_soon(one)
        elif fault == "isolate leader":
            net.partition([member.name], [*others, *self._some_clients()])
        elif fault == "partition":
            rng.shuffle(names)
            at = rng.randrange(1, len(names))
            net.partition(names[:at], [*names[at:], *self._some_clients()])
        elif fault == "one way":
            net.cut.add((member.name, rng.choice(others)))
        elif fault in ("freeze", "freeze leader") and member.up:
            process = member.process
            assert process is not None
            self.loop.freeze(process)
            self.loop.call_later(rng.random() * 6, lambda: self.loop.thaw(process))
        elif fault == "slow disk" and member.process is not None:
            member.process.disk_s = rng.choice((0.002, 0.2, 2.0))
        elif fault == "bad disk" and member.process is not None and sum(self._bad()) < len(self.members) // 2:
            member.process.failing_sync = True
            self.loop.call_later(3 + rng.random() * 3, lambda: (self.crash(member), self.again_soon(member)))
        elif fault == "slow net":
            net.slow = rng.choice((0.0, 0.01, 0.05))
        elif fault == "transfer":
            self.transfer(member)
        elif fault == "clock" and member.process is not None:
            member.process.ahead_s += rng.choice((-3600.0, -5.0, 5.0, 3600.0))
        else:
            net.heal()

    def _bad(self) -> list[bool]:
        return [one.process is not None and one.process.failing_sync for one in self.members if one.up]

    def _some_clients(self) -> list[str]:
        return [one.name for one in self.clients if self.rng.random() < 0.5]

    def transfer(self, member: Member) -> None:
        leader = self.leader
        if leader is None or leader.broker is None or leader is member or leader.process is None:
            return
        raft = raft_log(leader.broker.store).member

        async def hand_over() -> None:
            answer = await raft.transfer(member.name)
            self.seen[f"transfer {answer.code}"] += 1

        self.loop.run_as(leader.process, hand_over())

    def calm(self) -> None:
        self.loading = False
        self.loop.net.slow = 0.0
        self.loop.net.heal()
        for member in self.members:
            if member.process is not None:
                if member.process.frozen:
                    self.loop.thaw(member.process)
                if member.process.failing_sync:
                    self.crash(member)
                member.process.disk_s = 0.002
            if not member.up and not member.retired:
                self.start(member)

    # load

    def client(self, route_poll_ms: int = 1000) -> Client:
        return Client(name_servers=self.at, route_poll_ms=route_poll_ms, timeout=SEND_SECONDS, attempts=1)

    async def ready(self) -> None:
        """Start the first client and wait until every member has the topic (without messages it is not in the log, DL-X18)."""
        self.library = self.client()
        await self.library.__aenter__()
        async with asyncio.timeout(30):
            while True:
                with suppress(SaturnError):
                    await self.library.create_topic(TOPIC, queues=QUEUES)
                    known = [TOPIC in one.broker.topics.table for one in self.members if one.broker is not None]
                    if all(known) and len(await self.library.puller().queues(TOPIC)) == QUEUES:
                        return
                await pause(0.1)

    async def sender(self, number: int) -> None:
        """Send single messages with a key, retried until stored; each attempt is a distinct message (CHA-05)."""
        poll_ms = (1000, 30_000)[number]  # of a Java client: followers pass on what it sends with an old route
        async with self.client(poll_ms) as client, client.producer(f"p{number}") as producer:
            count = 0
            while self.loading:
                await pause(self.rng.random() * 0.5)
                count += 1
                await self.send(producer, f"p{number}", f"m{number}-{count}", f"k{number * 4 + count % 4}")

    async def send(self, producer: Any, process: str, value: str, key: str, tries: int = 10**6) -> bool:
        queue = queue_of(int(key[1:]))
        for attempt in range(1, tries + 1):
            begin, offset, why = self.now, None, None
            try:
                body = f"{value}#{attempt}".ljust(60, ".").encode()
                receipt = await producer.send(TOPIC, body, queue=queue, keys=value, timeout=SEND_SECONDS)
                result = OK if receipt.status is SendStatus.SEND_OK else UNKNOWN
                offset = receipt.offset
            except SaturnError as error:
                result, why = outcome_of(error), str(error)[:300]
            messages = [[value, offset if result == OK else None]]
            self.history.add(
                "send", process, begin, self.now, result=result, attempt=attempt, messages=messages, queue=name_of(queue),
                key=key, why=why,
            )  # fmt: skip
            self.seen[f"send {result}"] += 1
            if result == OK:
                self.saw_end(queue.queue_id, 0 if offset is None else offset + 1)
                return True
            await pause(0.03)
            with suppress(SaturnError):
                await self.library.puller().queues(TOPIC)
        return False

    async def once(self, sending: Awaitable[Any]) -> tuple[str, Any, str | None]:
        try:
            receipt = await sending
        except SaturnError as error:
            return outcome_of(error), None, str(error)[:300]
        first = receipt[0] if isinstance(receipt, list) else receipt
        good = not hasattr(first, "status") or first.status is SendStatus.SEND_OK
        return (OK if good else UNKNOWN), receipt, None

    async def others(self) -> None:
        """Send batches, delayed and one-way messages, and transactions, and answer transaction checks."""
        async with self.client() as client, client.producer("p9") as producer:
            transactional = client.producer("transactions", check=self.decided)
            async with transactional:
                number = 0
                while self.loading:
                    await pause(0.1 + self.rng.random() * 0.4)
                    number += 1
                    kind = self.rng.choice(("batch", "delayed", "oneway", "half"))
                    self.seen[kind] += 1
                    if kind == "half":
                        await self.half(transactional, f"half-{number}", number)
                    else:
                        await getattr(self, kind)(producer, f"{kind}-{number}", number)
                await self.over.wait()

    async def batch_of(self, producer: Any, values: list[str], number: int) -> tuple[str, Any, str | None]:
        bodies = [f"{value}#1".encode() for value in values]
        return await self.once(producer.send_many(TOPIC, bodies, queue=queue_of(number), timeout=SEND_SECONDS))

    async def delayed(self, producer: Any, value: str, number: int) -> None:
        begin = self.now
        result, _, why = await self.once(
            producer.send(TOPIC, f"{value}#1".encode(), queue=queue_of(number), delay_level=1, timeout=SEND_SECONDS)
        )
        self.history.add(
            "send", "delayed", begin, self.now, result=result, attempt=1, messages=[[value, None]],
            deliver_at=begin + (DELAY_MS if "clock" not in self.mix else -10**7), why=why,
        )  # fmt: skip

    async def oneway(self, producer: Any, value: str, number: int) -> None:
        begin = self.now
        await self.once(
            producer.send_oneway(TOPIC, f"{value}#1".encode(), queue=queue_of(number), timeout=SEND_SECONDS)
        )
        self.history.add("send", "oneway", begin, self.now, result=UNKNOWN, attempt=1, messages=[[value, None]])

    async def half(self, producer: Any, value: str, number: int) -> None:
        begin, result, why = self.now, OK, None
        end = ROLLBACK if number % 3 == 0 else COMMIT
        self.ends[value] = end
        self.history.add("end", "transactions", begin, begin, result=UNKNOWN, value=value, attempt=1, outcome=end)
        try:
            async with producer.transaction(TOPIC, f"{value}#1".encode(), queue=queue_of(number), timeout=SEND_SECONDS):
                if end == ROLLBACK:
                    raise RolledBack
        except RolledBack:
            pass
        except SaturnError as error:
            result, why = UNKNOWN, str(error)[:300]
        self.history.add(
            "send", "transactions", begin, self.now, result=result, attempt=1, messages=[[value, None]], half=True, why=why
        )  # fmt: skip

    def decided(self, message: Any) -> TransactionState:
        end = self.ends.get(unpack(message.value)[0])
        return TransactionState.COMMIT if end == COMMIT else TransactionState.ROLLBACK

    async def batch(self, producer: Any, value: str, number: int) -> None:
        begin, values = self.now, [f"{value}-{at}" for at in range(3)]
        result, receipts, why = await self.batch_of(producer, values, number)
        offsets = [one.offset for one in receipts] if result == OK else [None] * 3
        messages = [[one, offset] for one, offset in zip(values, offsets, strict=True)]
        self.history.add(
            "send", "batches", begin, self.now, result=result, attempt=1, messages=messages, queue=name_of(queue_of(number)),
            why=why,
        )  # fmt: skip

    async def reader(self) -> None:
        """Read all queues by offset."""
        async with self.client() as client:
            puller, at = client.puller(), dict.fromkeys(range(QUEUES), 0)
            while self.loading:
                await pause(0.3)
                for number, offset in at.items():
                    at[number] = await self.pull(puller, number, offset, "reader", "assigned")

    async def pull(self, puller: Any, number: int, offset: int, process: str, mode: str) -> int:
        queue, begin = queue_of(number), self.now
        try:
            result = await puller.pull(queue, offset, timeout=SEND_SECONDS)
        except SaturnError:
            return offset
        if result.status is not PullStatus.FOUND:
            return offset
        found = [[message.offset, *unpack(message.value)] for message in result.messages()]
        self.history.add(
            "poll", process, begin, self.now, group=mode, queue=name_of(queue), mode=mode, messages=found
        )  # fmt: skip
        self.seen["read"] += len(found)
        return int(result.next_offset)

    async def positions(self) -> None:
        """Ask every member where a queue begins and ends, and pull at the highest end seen, as a client with an old route does.

        With slaveReadEnable followers show where their own queues end, but no answer to a pull may set a client back.
        """
        net = RemotingClient(settings=NetSettings())
        try:
            while self.loading:
                leader = self.leader
                if (
                    leader is not None
                    and leader.broker is not None
                    and not (self.plain or raft_log(leader.broker.store).serving)
                ):
                    await self.positions_of_elected(net, f"{leader.host}:10911", leader.broker)
                    continue
                member = self.rng.choice(self.members)
                await pause(self.rng.random() * 0.1)
                if member.original is None:
                    await self.position(net, f"{member.host}:10911", self.rng.randrange(QUEUES), POSITIONS)
        finally:
            await net.close()

    async def positions_of_elected(self, net: RemotingClient, address: str, broker: Broker) -> None:
        """Ask a leader that does not serve yet, more often: few requests come in this short time otherwise.

        With slaveReadEnable pull at the end of each queue, at least every millisecond of its lease: it might serve queues that are
        not complete yet.
        """
        if not self.readable:
            await pause(self.rng.random() * 0.005)
            numbers, kinds, wait_s = [self.rng.randrange(QUEUES)], POSITIONS, 0.005
        else:
            assert broker.dledger is not None
            wait_s = 0.0005 if broker.dledger.group.leads else 0.005
            await pause(self.rng.random() * wait_s)
            numbers, kinds = list(range(QUEUES)), POSITIONS[-1:]
        asked = [self.loop.create_task(self.position(net, address, number, kinds)) for number in numbers]
        await asyncio.wait(asked, timeout=wait_s)

    async def position(
        self, net: RemotingClient, address: str, number: int, kinds: tuple[tuple[RequestCode, str], ...]
    ) -> None:
        code, kind = self.rng.choice(kinds)
        begin, offset, ext = self.now, self.ends_seen[number], {"topic": TOPIC, "queueId": str(number)}
        if kind == "by time":
            ext |= {"timestamp": str(10**15)}
        elif kind == "next":
            ext |= {
                "consumerGroup": "positions", "queueOffset": str(offset), "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
        try:
            answer = await net.invoke(address, Command(code, ext=ext), 1500)
        except SaturnError:
            return
        self.seen[f"{kind} {answer.code}"] += 1
        found = {
            name: int(answer.ext[name]) for name in ("offset", "nextBeginOffset", "maxOffset") if name in answer.ext
        }
        if kind == "next" and answer.code in (0, 19, 21):
            found = {"max": found["maxOffset"], "next": max(found["nextBeginOffset"], offset * (answer.code != 21))}
        elif answer.code == 0:
            found = {kind: found["offset"]}
        else:
            return
        queue = name_of(queue_of(number))
        if kind == "next":
            self.history.add("position", "reader", begin, begin, queue=queue, kind=kind, offset=offset)
        for name, value in found.items():
            if not self.readable or name == "next":
                self.history.add("position", address, begin, self.now, queue=queue, kind=name, offset=value)
        if kind != "min":
            self.saw_end(number, found.get("max", 0))

    def saw_end(self, number: int, end: int) -> None:
        self.ends_seen[number] = max(self.ends_seen[number], end)

    async def subscribed(self, number: int, *, ordered: bool) -> None:
        """A group consumer that leaves and rejoins under a new name from time to time, which triggers rebalances."""
        life = 0
        while self.loading:
            life += 1
            process = f"member{number}-{life}"
            async with self.client() as client:
                with suppress(TimeoutError):
                    async with asyncio.timeout(5 + self.rng.random() * 20):
                        await self._consume(client, process, "ordered" if ordered else "subscribed", ordered)
            self.seen["left"] += 1

    async def _consume(self, client: Client, process: str, group: str, ordered: bool) -> None:
        had: list[Any] = []
        async with client.consumer(group, start="first", ordered=ordered) as inbox:
            with suppress(SaturnError):
                await inbox.subscribe(TOPIC)
            while self.loading:
                try:
                    message = await inbox.recv(timeout=0.5)
                except (TimeoutError, SaturnError):
                    continue
                now, found = self.now, [[message.offset, *unpack(message.value)]]
                has = list(inbox._assigned.values())
                if [id(one) for one in has] != [id(one) for one in had]:
                    self.history.add("assign", process, now, now)
                    self.seen["assigned"] += 1
                    had = has
                self.history.add(
                    "poll", process, now, now, group=group, queue=name_of(message.queue), mode="subscribed", messages=found
                )  # fmt: skip
                self.seen[f"consumed {group}"] += 1
                with suppress(SaturnError):
                    await message.ack()

    async def topics(self) -> None:
        """Create topics, and change their number of queues."""
        number = 0
        while self.loading:
            await pause(1 + self.rng.random() * 4)
            number += 1
            with suppress(SaturnError):
                await self.library.create_topic(f"t{number % 3}", queues=1 + number % 7)
                self.seen["topic"] += 1

    async def routes(self) -> None:
        """Poll the routes and record how many masters each lists (CHA-08)."""
        net = RemotingClient(settings=NetSettings())
        request = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
        while self.loading:
            await pause(0.3)
            for address in self.at.split(";"):
                with suppress(SaturnError):
                    answer = await net.invoke(address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=request), 3000)
                    if answer.code == 0 and answer.body:
                        brokers = TopicRouteData.decode(answer.body).broker_datas
                        self.masters.append(sum(0 in broker.broker_addrs for broker in brokers))

    async def switches(self) -> None:
        """Record every change of the leader in the history."""
        known: tuple[str, int] | None = None
        while True:
            await pause(0.05)
            leader = self.leader
            if leader is None or leader.broker is None:
                continue
            if not self.plain and leader.broker.dledger.group.settled:
                wrong = self.changes.problems(leader.broker)
                self.wrong = self.wrong or [f"{leader.name} at {self.loop.now - 1000:.1f} s: {text}" for text in wrong]
            now = leader.name, self.seen["crashed"] if self.plain else raft_log(leader.broker.store).member.node.term
            if now != known:
                self.history.add("switch", "main", self.now, self.now, leader=f"{now[0]} in {now[1]}")
                self.seen["switch"] += known is not None
                known = now

    # a whole run

    def load(self) -> list[tuple[Process, Coroutine[Any, Any, None]]]:
        """What runs until the faults end, and in which client's process."""
        one, two, three = self.clients[:3]
        return [
            (one, self.sender(0)),
            (two, self.sender(1)),
            (one, self.reader()),
            (two, self.subscribed(0, ordered=False)),
            (three, self.subscribed(1, ordered=False)),
            (two, self.subscribed(2, ordered=True)),
            (one, self.topics()),
            (three, self.routes()),
            (three, self.positions()),
            (two, self.changes.run(self.leading_broker, lambda: self.loading)),
        ]

    def leading_broker(self) -> tuple[str, Broker] | None:
        """Address of the leader's broker, and the broker."""
        leader = self.leader
        return None if leader is None or leader.broker is None else (f"{leader.host}:10911", leader.broker)

    async def run(self) -> None:
        for server in self.servers:
            await self.loop.run_as(server, self.start_server(server))
        for member in self.members:
            self.start(member)
        one, three = self.clients[0], self.clients[2]
        await self.loop.run_as(one, self.ready())
        if self.replacements is not None:
            await self.loop.run_as(one, self.replacements.fill(self.library))
        tasks = [self.loop.run_as(process, load) for process, load in self.load()]
        others = self.loop.run_as(three, self.others())
        faults = self.loop.create_task(self.faults())
        switches = self.loop.create_task(self.switches())
        if self.replacements is not None:
            tasks.append(self.loop.run_as(self.replacements.process, self.replacements.run()))
        await pause(self.seconds)
        self.calm()
        calm_ms = self.now
        await self.loop.run_as(one, self.marker())
        self.healed_ms = self.now - calm_ms
        faults.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        await pause(8)  # delayed messages are delivered, open transactions are checked
        await self.loop.run_as(one, self.marker())
        self.over.set()
        await others
        await self.loop.run_as(one, self.final_polls())
        await self.level()
        if self.replacements is not None:
            await self.replacements.level()
        switches.cancel()

    async def level(self) -> None:
        """Wait up to 10 s until all members have caught up; also a scripted peer: one may have just restarted (CHA-08)."""
        for _ in range(20):
            await pause(0.5)
            if self.plain:
                return
            scripted = {one.original.end for one in self.members if one.original is not None}
            ends = self.log_ends()
            if len(ends) == 1 and all(one is not None and scripted <= {one[0]} for one in ends):
                return

    def log_ends(self) -> set[tuple[int, int] | None]:
        """The distinct (end index, committed index) of the members' ledgers, without scripted peers; None for a missing broker."""
        members = [one for one in self.members if one.original is None]
        nodes = [raft_log(one.broker.store).member.node if one.broker is not None else None for one in members]
        return {None if node is None else (node.end_index, node.committed) for node in nodes}

    async def marker(self) -> None:
        """Send a message to each queue; it must be stored within healed_s after all faults are healed (SIM-10)."""
        async with asyncio.timeout(self.healed_s), self.library.producer("marker") as producer:
            for number in range(QUEUES):
                assert await self.send(producer, "marker", f"marker-{self.now:.0f}-{number}", f"k{100 + number}")

    async def final_polls(self) -> None:
        puller = self.library.puller()
        for number in range(QUEUES):
            queue = queue_of(number)
            offset, end = await puller.min_offset(queue), await puller.max_offset(queue)
            async with asyncio.timeout(60):
                while offset < end:
                    offset = await self.pull(puller, number, offset, "final", "final")

    def check(self) -> None:
        """Check the history, the ledgers, the consume queues and the routes."""
        assert not self.starts, f"members did not start: {self.starts}"
        report = check(self.history)
        assert report.valid, "\n".join(map(str, report.problems))
        assert max(self.masters, default=2) <= 1, "a route names two masters, or none was read"
        assert self.seen["send ok"] > 10, "hardly anything was sent"
        wrong = self.wrong + [
            f"{one.name} at the end: {text}"
            for one in self.members
            if one.broker is not None
            for text in self.changes.problems(one.broker)
        ]
        assert not wrong, f"acknowledged changes of topics and groups are not there: {wrong[:5]}"
        if self.plain:
            self.seen["plain"] += 1
            return
        wrong = self.replacements.problems() if self.replacements is not None else []
        assert not wrong, f"members changed, and {wrong[:5]}"
        brokers = [member.broker for member in self.members if member.broker is not None]
        self.seen["forwarded"] += sum(one.dledger.forwarding.forwarded for one in brokers if one.dledger is not None)
        stores = [broker.store for broker in brokers]
        assert len(stores) == sum(member.original is None for member in self.members)
        assert len(self.log_ends()) == 1, f"members end differently: {self.log_ends()}"
        for one in stores[1:]:
            differ = differing_queues(stores[0], one)
            assert not differ, f"members hold different queues: {differ}"
        for member in self.members:
            if member.original is not None:
                self.check_original(member.original, raft_log(stores[0]).member.files)
        folders = [one.folder / f"dledger-{one.name}" for one in self.members if one.original is None]
        difference = compare(folders)
        assert difference is None, str(difference)
        assert [verify(one).problems for one in folders] == [[]] * len(folders)

    def check_original(self, log: OriginalLog, ours: Any) -> None:
        """Check that the scripted peer's log equals the others', and that no leader truncated its committed entries."""
        assert log.end == ours.end_index and log.committed <= log.end, (
            f"the scripted peer ends at {log.end}, others at {ours.end_index}"
        )
        assert [index for index, entry in log.entries.items() if ours.entry(index) != entry] == []
        assert log.cut_committed == 0
        self.seen["original"] += 1
        self.seen["original cut"] += log.cuts

    def digest(self) -> str:
        operations = json.dumps(self.history.operations, sort_keys=True).encode()
        return hashlib.sha256(operations + repr((self.loop.happened, self.loop.now)).encode()).hexdigest()


def differing_queues(one: MessageStore, other: MessageStore) -> list[str]:
    """The queues whose ends differ, or whose units differ where both stores have them (SIM-09, DUR-13)."""
    differ = []
    for key in sorted(one.queues.by_key.keys() | other.queues.by_key.keys()):
        left, right = (store.queues.get_or_make(*key) for store in (one, other))
        first, end = max(left.min_offset, right.min_offset), left.max_offset
        count = max(end - first, 0)
        if end != right.max_offset or list(left.units(first, count)) != list(right.units(first, count)):
            differ.append(f"{key} {left.min_offset}-{end}, {right.min_offset}-{right.max_offset}")
    return differ


def run_seed(seed: int, seconds: float, clock: Any, kind: type[System]) -> dict[str, Any]:
    """Run a seed in the current process, which must be its own. clock: returns the real CPU time in seconds."""
    folder = Path(tempfile.mkdtemp(prefix=f"sim{seed}-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    began, why = clock(), None
    system = kind(seed, folder, seconds)
    try:
        replace_the_machine(system.loop)
        asyncio.set_event_loop(system.loop)
        main = Process("main", "10.0.9.9")
        RUNNING.set(main)
        system.loop.run_until_complete(system.run())
        system.check()
    except BaseException as error:
        why = f"{error!r}\n{traceback.format_exc()}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "seed": seed,
        "why": why,
        "digest": system.digest(),
        "simulated_s": system.loop.now - 1000,
        "cpu_s": clock() - began,
        "healed_ms": getattr(system, "healed_ms", None),
        "operations": len(system.history),
        "brokers": len(system.members),
        "name_servers": len(system.servers),
        "threads": threading.active_count(),
        "seen": dict(sorted(system.seen.items())),
        "schedule": system.schedule,
    }


def fork_seed(seed: int, seconds: float, kind: type[System]) -> dict[str, Any]:
    """Run a seed in a child process, so that seeds share no state."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        gc.disable()
        with os.fdopen(write, "w") as out:
            json.dump(run_seed(seed, seconds, lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), kind), out)
            out.flush()
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as found:
        text = found.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"seed": seed, "why": "the process died"}


def plant(defect: str) -> None:
    """Plant a defect by name, to check that it is found."""
    if defect == "half is a quorum":
        voting.quorum = state.quorum = lambda members: members // 2
    elif defect == "answered before it is committed":
        leader.quorum_index = max
    elif defect == "followers write other units":
        right = MessageStore.code_of
        MessageStore.code_of = lambda store, message: right(store, message) + (not raft_log(store).serving)
    elif defect == "served before it is committed":
        GroupMember.caught_up = property(lambda group: True)
    elif defect == "elected leaders serve reads":
        DLedger._reads_here = property(lambda one: one._runtime.settings.slave_read_enable)
    elif defect == "followers show their own positions":
        dledger._READS = dledger.READER_ONLY
        dledger.FORWARDED = dledger.FORWARDED - dledger.SHOW_ENDS
    elif defect == "forwarded twice":
        ask = Forwarding._ask

        async def ask_twice(*arguments: Any) -> bytes | None:
            await ask(*arguments)
            return await ask(*arguments)

        Forwarding._ask = ask_twice
    elif not (tablechanges.plant(defect) or memberchanges.plant(defect)):
        raise SystemExit(f"no defect is called {defect!r}")


def main(kind: type[System], plant: Callable[[str], None]) -> None:
    """Run the seeds of the command line. plant: plants a defect by name."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    first, count = int(sys.argv[1]), int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20.0
    logging.disable(logging.CRITICAL if not os.environ.get("SIM_LOG") else logging.NOTSET)
    ticker.TICK_MS = 50
    if len(sys.argv) > 4:
        plant(sys.argv[4])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for seed in range(first, first + count):
        print(json.dumps(fork_seed(seed, seconds, kind)), flush=True)


if __name__ == "__main__":
    main(System, plant)
