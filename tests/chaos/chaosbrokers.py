"""Broker processes of a DLedger group, two NameServers, and library clients that load them.

Requirements: CHA-01, CHA-04, CHA-05, CHA-06, CHA-08.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import zlib
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaosgroup import DEADLINE_SECONDS, PRODUCERS, Group, unpack
from chaosproxy import pause

from harness.history.operations import FAIL, OK, UNKNOWN, result_of
from saturnmq import Client, SendStatus
from saturnmq.client.puller.puller import PullStatus
from saturnmq.client.receipt import TransactionState
from saturnmq.errors import BrokerNotExist, ConnectFailed, NoNameServer, RouteNotFound, SendFailed
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import MessageQueue, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.ledger.check import compare, verify

TOPIC, QUEUES = "chaos", 4
SEND_SECONDS = 1.5
SLAVE_READ = os.environ.get("CHAOS_SLAVE_READ")  # see chaosrun.py
DELAY_MS = 995  # delay of the first level, less the loss by rounding to milliseconds
COMMIT, ROLLBACK = "commit", "rollback"
LATER = ("delayed-", "half-")  # messages that arrive some time after their acknowledgement
AFTERWARDS_SECONDS = (
    3.0  # after all that is owed has arrived, for what must never arrive: two rounds of transaction checks
)
CONSUMER = Path(__file__).resolve().parent / "chaosconsumer.py"
ENDS_SHOWN = {
    PullStatus.FOUND: ("min", "max"),
    PullStatus.NO_NEW_MESSAGE: ("min", "max"),
    PullStatus.OFFSET_ILLEGAL: ("min", "max", "next"),
}
CONSUMER_SECONDS = 30.0  # until the process of a subscribed client is killed (CHA-04)
SETTINGS = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "g",
    "brokerName": "g",
    "storeProfile": "small",
    "mappedFileSizeCommitLog": "1048576",
    "dledger.profile": "fast",
    "dledger.indexFileUnits": "65536",
    "enableBatchPush": "true",
    "dledger.maxBatchPushSize": "65536",
    "flushDiskType": "SYNC_FLUSH",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "100000",  # 15 checks, once a second, would discard what waits for its producer
    "fastPortEnable": "false",
    "listenPort": "0",
}


class RolledBack(Exception):
    """Rolls a transaction back."""


def outcome_of(error: SaturnError) -> str:
    """The history result of a failed send (CHA-06)."""
    cause = error.__cause__ if isinstance(error, SendFailed) else error
    if isinstance(error, SendFailed) and error.attempts > 1:
        return UNKNOWN  # the last of several responses says nothing about the earlier attempts
    if isinstance(cause, ResponseError):
        return result_of(cause.code)
    if isinstance(cause, ConnectFailed):
        return UNKNOWN if cause.sent else FAIL
    return FAIL if isinstance(cause, BrokerNotExist | RouteNotFound | NoNameServer) else UNKNOWN


class BrokerGroup(Group):
    """A group of brokers. settings: properties of every member, besides those that `command` adds."""

    reads_while_running = True
    ends_never_fall = True  # of queues, as brokers answer pulls; not where a slave with less takes over
    has_followers = True
    settings: Mapping[str, str] = SETTINGS
    topic = TOPIC
    transaction_seconds = 0.2  # between two half messages

    def __init__(self, folder: Path, *, size: int, heartbeat_ms: int, seed: int) -> None:
        super().__init__(folder, size=size, heartbeat_ms=heartbeat_ms, seed=seed)
        self.name_servers = [
            NameServer(NameServerSettings(kv_config_path=str(folder / f"kv{number}.json")), NetSettings())
            for number in range(2)
        ]
        self.at = ""
        drawn = (seed + zlib.crc32(folder.parent.name.encode())) % 2 == 0  # differs between the tests with one seed
        # slaveReadEnable: followers show where their own queues end
        self.readable = self.has_followers and (drawn if SLAVE_READ is None else SLAVE_READ == "true")
        self.counts["slave_read_enable"] = self.readable
        self.masters: list[int] = []  # number of brokers with id 0 in each route response (CHA-08)
        self.ends: dict[str, str] = {}
        self.owed: set[tuple[str, int]] = set()  # value and attempt of acknowledged messages that arrive later
        self.arrived: set[tuple[str, int]] = set()
        self.reader = "reader"  # the assigned one
        self.next_offsets = dict.fromkeys(range(QUEUES), 0)

    def command(self, name: str) -> list[str]:
        values = dict(self.settings) | {
            "dLegerPeers": self.peers(name),
            "dLegerSelfId": name,
            "slaveReadEnable": str(self.readable).lower(),
            "dledger.heartBeatTimeIntervalMs": str(self.heartbeat_ms),
            "storePathRootDir": str(self.folder / name),
        }
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        return ["-m", "saturnmq.cli", "broker", "-n", self.at, *words]

    async def start(self) -> None:
        addresses = [await server.start("127.0.0.1", 0) for server in self.name_servers]
        self.at = ";".join(f"{host}:{port}" for host, port in addresses)
        await super().start()
        await self.start_clients()

    def ledger(self, name: str) -> Path:
        return self.folder / name / f"dledger-{name}"

    async def start_clients(self) -> None:
        """Start the producers, once the topic exists. They live until the end: a half message may be checked late."""
        self.library = Client(name_servers=self.at, route_poll_ms=300, timeout=SEND_SECONDS, attempts=1)
        await self.library.__aenter__()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                with suppress(SaturnError):
                    await self.library.create_topic(self.topic, queues=QUEUES)
                    if len(await self.library.puller().queues(self.topic)) == QUEUES:
                        break
                await pause(0.1)
        self.deciding = self.library.producer("transactions", check=self.decided)
        self.producers = [*(self.library.producer(f"p{number}") for number in range(PRODUCERS)), self.deciding]
        for producer in self.producers:
            await producer.start()

    async def stop_clients(self) -> None:
        if hasattr(self, "library"):
            for producer in getattr(self, "producers", []):
                with suppress(SaturnError):
                    await producer.stop()
            await self.library.__aexit__(None, None, None)

    async def stop(self) -> list[int]:
        await self.stop_clients()
        codes = await super().stop()
        for server in self.name_servers:
            await server.stop()
        return codes

    # load

    def load(self, per_second: float) -> list[Coroutine[Any, Any, None]]:
        return [
            *super().load(per_second),
            self.delayed(),
            self.transactions(),
            self.assigned(),
            self.subscribed(),
            self.ordered(),
            self.routes(),
        ]

    def queue_of(self, number: int) -> MessageQueue:
        """The queue for a message number."""
        return MessageQueue(self.topic, "g", number % QUEUES)

    async def send(self, process: str, value: str, key: str) -> None:
        """Retry in this harness, not in the library, whose setting `attempts` is 1 (CHA-05)."""
        producer = self.producers[int(process[1]) if process[1:2].isdigit() else 0]
        queue = self.queue_of(int(key[1:]) if key[1:].isdigit() else 0)
        attempt = 0
        while True:
            attempt += 1
            begin, offset, why = self.now(), None, None
            try:
                body = f"{value}#{attempt}".ljust(100, ".").encode()
                receipt = await producer.send(self.topic, body, queue=queue, keys=value, timeout=SEND_SECONDS)
                result = OK if receipt.status is SendStatus.SEND_OK else UNKNOWN
                offset = receipt.offset
            except SaturnError as error:
                result, why = outcome_of(error), str(error)[:600]
            messages = [[value, offset if result == OK else None]]
            more = {
                "result": result,
                "attempt": attempt,
                "messages": messages,
                "queue": name_of(queue),
                "key": key,
                "why": why,
            }
            self.history.add("send", process, begin, self.now(), **more)
            if result == OK:
                return
            await pause(0.03)
            with suppress(SaturnError):
                await self.library.puller().queues(self.topic)

    async def delayed(self) -> None:
        """Send messages of the first delay level (1 s); only readers learn their offsets."""
        number = 0
        while self.loading:
            await pause(0.2)
            number += 1
            begin, body = self.now(), f"delayed-{number}#1".encode()
            result, why = await self.once(
                self.producers[0].send(
                    self.topic, body, queue=self.queue_of(number), delay_level=1, timeout=SEND_SECONDS
                )
            )
            if result == OK:
                self.owed.add((f"delayed-{number}", 1))
            more = {"messages": [[f"delayed-{number}", None]], "deliver_at": begin + DELAY_MS, "why": why}
            self.history.add("send", "delayed", begin, self.now(), result=result, attempt=1, **more)

    async def once(self, sending: Awaitable[Any]) -> tuple[str, str | None]:
        """The result of a send, and the error if it failed."""
        try:
            receipt = await sending
        except SaturnError as error:
            return outcome_of(error), str(error)[:600]
        return (OK if receipt.status is SendStatus.SEND_OK else UNKNOWN), None

    async def transactions(self, lane: str = "") -> None:
        """Send half messages whose outcome is decided beforehand; the broker checks those whose end it did not receive."""
        number = 0
        while self.loading:
            await pause(self.transaction_seconds)
            number += 1
            value, begin, result, why = f"half-{lane}{number}", self.now(), OK, None
            end = ROLLBACK if number % 3 == 0 else COMMIT
            self.ends[value] = end
            self.history.add(
                "end", f"transactions{lane}", begin, begin, result=UNKNOWN, value=value, attempt=1, outcome=end
            )
            if end == COMMIT:
                self.owed.add((value, 1))
            try:
                async with self.deciding.transaction(
                    self.topic, f"{value}#1".encode(), queue=self.queue_of(number), timeout=SEND_SECONDS
                ):
                    if end == ROLLBACK:
                        raise RolledBack
            except RolledBack:
                pass
            except SaturnError as error:
                result, why = UNKNOWN, str(error)[:600]
                self.owed.discard((value, 1))
            more = {"messages": [[value, None]], "half": True, "why": why}
            self.history.add("send", f"transactions{lane}", begin, self.now(), result=result, attempt=1, **more)

    def decided(self, message: Any) -> TransactionState:
        end = self.ends.get(unpack(message.value.decode())[0])
        return TransactionState.COMMIT if end == COMMIT else TransactionState.ROLLBACK

    async def assigned(self) -> None:
        """Read all queues by offset, as one process."""
        while self.loading:
            await self.read_once()

    async def read_once(self) -> None:
        """Read each queue once from where the last read ended."""
        puller = self.library.puller()
        await pause(0.05)
        for number, offset in self.next_offsets.items():
            self.next_offsets[number] = await self.pull(puller, number, offset, self.reader, "assigned")

    async def pull(self, puller: Any, number: int, offset: int, process: str, mode: str) -> int:
        """Pull once and record the messages; returns the next offset."""
        queue, begin = self.queue_of(number), self.now()
        try:
            result = await puller.pull(queue, offset, timeout=SEND_SECONDS)
        except SaturnError:
            return offset
        shown: dict[str, int] = {}
        if self.readable and mode == "assigned":
            is_set_back = result.status is PullStatus.OFFSET_ILLEGAL
            shown = {"next": result.next_offset if is_set_back else max(result.next_offset, offset)}
        elif self.ends_never_fall and not self.readable:
            shown = {kind: getattr(result, f"{kind}_offset") for kind in ENDS_SHOWN.get(result.status, ())}
        for kind, end in shown.items():
            self.history.add("position", process, begin, self.now(), queue=name_of(queue), kind=kind, offset=int(end))
        if result.status is not PullStatus.FOUND:
            return int(result.next_offset) if result.status is PullStatus.OFFSET_ILLEGAL else offset
        found = [[message.offset, *unpack(message.value.decode())] for message in result.messages()]
        self.arrived.update((value, attempt) for _, value, attempt in found if value.startswith(LATER))
        more = {"group": mode, "queue": name_of(queue), "mode": mode, "messages": found}
        self.history.add("poll", process, begin, self.now(), **more)
        return int(result.next_offset)

    async def subscribed(self) -> None:
        """Consume as a member of a group; after CONSUMER_SECONDS its process is killed, and another one joins."""
        number = 0
        while self.loading:
            number += 1
            await self.member(f"member{number}", "subscribed", CONSUMER_SECONDS)

    async def ordered(self) -> None:
        """Consume in order; a killed member would keep its queues locked for a minute."""
        await self.member("ordered1", "ordered", float("inf"))

    async def member(self, name: str, group: str, seconds: float) -> None:
        """The process of a member of a group, killed after some seconds or with the load."""
        words = [str(CONSUMER), self.at, self.topic, f"{group}-{self.topic}", group]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert process.stdout is not None
        listening = asyncio.create_task(self._record(process.stdout, name, group))
        end_ms = self.now() + seconds * 1000
        try:
            while self.loading and self.now() < end_ms:
                assert process.returncode is None, f"the client {name} ended by itself; see {log.name}"
                await pause(0.1)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await listening
            transport: Any = process._transport  # type: ignore[attr-defined]
            transport.close()

    async def _record(self, stdout: asyncio.StreamReader, process: str, group: str) -> None:
        """Add what a member of a group prints to the history."""
        ordered = True if group == "ordered" else None
        while (line := await stdout.readline()).endswith(b"\n"):
            broker, queue_id, offset, body = json.loads(line)
            now, queue = self.now(), MessageQueue(self.topic, broker, queue_id)
            more = {"group": group, "queue": name_of(queue), "mode": "subscribed", "ordered": ordered}
            self.history.add("poll", process, now, now, **more, messages=[[offset, *unpack(body)]])

    async def routes(self) -> None:
        """Record repeatedly how many brokers a NameServer names as master."""
        net = RemotingClient(settings=NetSettings())
        request = {"topic": self.topic, "acceptStandardJsonOnly": "true"}
        try:
            while self.loading:
                await pause(0.1)
                for address in self.at.split(";"):
                    call = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=request)
                    try:
                        answer = await net.invoke(address, call, 3000)
                    except SaturnError:  # the machine is too busy
                        continue
                    if answer.code == 0:
                        brokers = TopicRouteData.decode(answer.body).broker_datas
                        self.masters.append(sum(0 in broker.broker_addrs for broker in brokers))
        finally:
            await net.close()

    # the end

    async def all_equal(self) -> None:
        """Send a marker to each queue; the ledgers are compared after the brokers stopped."""
        for number in range(QUEUES):
            await self.send("marker", f"marker-{number}", f"m{number}")

    async def settled(self) -> None:
        """Read on until delayed messages and committed transactions have arrived; what is missing then, the checker reports."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while self.owed - self.arrived:
                    await self.read_once()
        until = self.now() + AFTERWARDS_SECONDS * 1000
        while self.now() < until:
            await self.read_once()

    async def final_polls(self) -> None:
        if self.jumped:  # a delayed message's due time came from a clock that jumped
            for number, op in enumerate(self.history.operations):
                if "deliver_at" in op:
                    self.history.operations[number] = {**op, "deliver_at": op["begin"]}
        puller = self.library.puller()
        for number in range(QUEUES):
            queue = self.queue_of(number)
            offset = await puller.min_offset(queue)
            end = await puller.max_offset(queue)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while offset < end:
                    offset = await self.pull(puller, number, offset, "final", "final")

    def check_ledgers(self) -> None:
        """Check that ledgers are undamaged and equal up to the committed index: a last leader may hold one entry more."""
        folders = [self.ledger(name) for name in self.names]
        reports = [verify(one) for one in folders]
        assert [report.problems for report in reports] == [[]] * len(folders)
        difference = compare(folders)
        assert difference is None or difference.index > min(report.committed_index for report in reports)
        assert max(self.masters, default=0) == 1


class FiveBrokers(BrokerGroup):
    size = 5


class PlainBroker(BrokerGroup):
    """One broker without a group: data in its page cache survives a kill."""

    size = 1
    has_followers = False
    settings: Mapping[str, str] = {
        key: value for key, value in SETTINGS.items() if not re.search("dled?ger|BatchPush", key, re.IGNORECASE)
    } | {"flushDiskType": "ASYNC_FLUSH"}

    def command(self, name: str) -> list[str]:
        own = {"storePathRootDir": str(self.folder / name), "listenPort": self.addresses[name].rpartition(":")[2]}
        words = [word for key, value in (dict(self.settings) | own).items() for word in ("--set", f"{key}={value}")]
        return ["-m", "saturnmq.cli", "broker", "-n", self.at, *words]

    async def look(self) -> None:
        """Nothing to search: there is only one broker."""

    def check_ledgers(self) -> None:
        """There are no ledgers; only the routes are checked."""
        assert max(self.masters, default=0) == 1


class PlainSyncBroker(PlainBroker):
    settings: Mapping[str, str] = {**PlainBroker.settings, "flushDiskType": "SYNC_FLUSH"}


def name_of(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
