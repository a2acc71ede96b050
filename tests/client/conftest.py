"""A scripted cluster: name servers and brokers that answer as a test prescribes and record every request."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness import virtualtime
from saturnmq.net import NO_RESPONSE, Connection, NetSettings, RemotingServer, Reply, reply_of
from saturnmq.protocol.bodies import BrokerData, ConsumerIdList, HeartbeatData, QueueData, TopicRouteData
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, decode_batch, encode_record

Answer = Callable[[Command], "Command | Awaitable[Command | None] | None"]
STORE_HOST = Host("127.0.0.1", 10911)


def replying(result: Any) -> Reply:
    """The result of a script as a reply; None: no response."""
    return NO_RESPONSE if result is None else reply_of(result)


class Server:
    """One listener. Answers scripted by request code take precedence over the built-in ones; a list is consumed one by one."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.script: dict[int, Answer | list[Answer]] = {}
        self.address = ""
        self.connections: list[Connection] = []
        self._arrived: asyncio.Event = asyncio.Event()
        self._remoting = RemotingServer(self._handle, settings=NetSettings(stop_timeout_ms=10))

    async def start(self, port: int = 0) -> None:
        host, bound = await self._remoting.start("127.0.0.1", port)
        self.address = f"{host}:{bound}"

    async def stop(self) -> None:
        await self._remoting.stop()

    def _handle(self, connection: Connection, command: Command) -> Any:
        if connection not in self.connections:
            self.connections.append(connection)
        self.requests.append(command)
        self._arrived.set()
        scripted = self.script.get(command.code)
        if isinstance(scripted, list):
            scripted = scripted.pop(0) if scripted else None
        if scripted is not None:
            return replying(scripted(command))
        return replying(self.builtin(command))

    def builtin(self, command: Command) -> Any:
        return command.reply()

    def of(self, code: int) -> list[Command]:
        """Requests with this code so far."""
        return [command for command in self.requests if command.code == code]

    async def wait_for(self, code: int, count: int = 1, timeout: float = 30.0) -> list[Command]:
        """Wait until `count` requests with this code have arrived."""
        async with asyncio.timeout(timeout):
            while len(self.of(code)) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.of(code)


class FakeNameServer(Server):
    """Answers GET_ROUTEINFO_BY_TOPIC from `routes`."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, TopicRouteData] = {}

    def builtin(self, command: Command) -> Any:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = command.ext["topic"]
            data = self.routes.get(topic)
            if data is None:
                return command.reply(
                    ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
                )
            return command.reply(body=data.encode())
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


class FakeBroker(Server):
    """Stores sent messages in lists by (topic, queue id) and answers pulls from them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.stored: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, set[str]] = defaultdict(set)
        self.sent_back: list[Command] = []
        self.store_ms = 1_700_000_000_000
        self._physical = itertools.count(0, 1000)
        self._grown: dict[tuple[str, int], list[asyncio.Future[None]]] = defaultdict(list)

    def put(self, topic: str, queue_id: int, body: bytes, properties: str = "", **fields: Any) -> int:
        records = self.stored[topic, queue_id]
        offset = len(records)
        records.append(
            encode_record(
                Message(
                    topic,
                    body,
                    properties.encode(),
                    queue_id=queue_id,
                    queue_offset=offset,
                    physical_offset=next(self._physical),
                    store_host=STORE_HOST,
                    born_host=STORE_HOST,
                    store_timestamp_ms=self.store_ms,
                    **fields,
                )
            )
        )
        for future in self._grown.pop((topic, queue_id), []):
            if not future.done():
                future.set_result(None)
        return offset

    def builtin(self, command: Command) -> Any:
        handler = getattr(self, f"on_{command.code}", None)
        return handler(command) if handler is not None else command.reply()

    def on_310(self, command: Command) -> Command:
        ext = command.ext
        topic, queue_id = ext["b"], int(ext["e"])
        offset = self.put(
            topic,
            queue_id,
            command.body or b"",
            ext["i"],
            sys_flag=int(ext["f"]),
            flag=int(ext["h"]),
            born_timestamp_ms=int(ext["g"]),
            reconsume_times=int(ext.get("j") or 0),
        )
        return command.reply(ext=self._stored(queue_id, offset, f"{offset:032X}"))

    def on_10(self, command: Command) -> Command:
        return command.reply(ext=self._stored(int(command.ext["queueId"]), 0, "0" * 32))

    def on_320(self, command: Command) -> Command:
        topic, queue_id = command.ext["b"], int(command.ext["e"])
        offsets = [
            self.put(topic, queue_id, item.body, item.properties_raw.decode(), flag=item.flag)
            for item in decode_batch(command.body or b"")
        ]
        ids = ",".join(f"{offset:032X}" for offset in offsets)
        return command.reply(ext=self._stored(queue_id, offsets[0], ids))

    @staticmethod
    def _stored(queue_id: int, offset: int, ids: str) -> dict[str, str]:
        return {
            "msgId": ids,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }

    def on_11(self, command: Command) -> Any:
        ext = command.ext
        key = (ext["topic"], int(ext["queueId"]))
        offset, high = int(ext["queueOffset"]), len(self.stored[key])
        if 0 <= offset < high:
            chosen = self.stored[key][offset : offset + int(ext["maxMsgNums"])]
            return command.reply(remark="FOUND", ext=self._pulled(offset + len(chosen), high), body=b"".join(chosen))
        if offset == high and int(ext["sysFlag"]) & 2:
            return self._hold(command, key)
        code = ResponseCode.PULL_NOT_FOUND if offset == high else ResponseCode.PULL_OFFSET_MOVED
        return command.reply(code, ext=self._pulled(min(max(offset, 0), high), high))

    def _hold(self, command: Command, key: tuple[str, int]) -> Awaitable[Command]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._grown[key].append(future)
        return self._held(future, command, key)

    async def _held(self, future: asyncio.Future[None], command: Command, key: tuple[str, int]) -> Command:
        try:
            await asyncio.wait_for(future, int(command.ext["suspendTimeoutMillis"]) / 1000)
        except TimeoutError:
            return command.reply(
                ResponseCode.PULL_NOT_FOUND, ext=self._pulled(int(command.ext["queueOffset"]), len(self.stored[key]))
            )
        command.ext["sysFlag"] = "0"
        return self.on_11(command)  # type: ignore[no-any-return]

    @staticmethod
    def _pulled(next_offset: int, high: int) -> dict[str, str]:
        return {
            "nextBeginOffset": str(next_offset),
            "minOffset": "0",
            "maxOffset": str(high),
            "suggestWhichBrokerId": "0",
        }

    def on_14(self, command: Command) -> Command:
        ext = command.ext
        offset = self.offsets.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
        if offset is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group is new")
        return command.reply(ext={"offset": str(offset)})

    def on_15(self, command: Command) -> Command:
        ext = command.ext
        self.offsets[ext["consumerGroup"], ext["topic"], int(ext["queueId"])] = int(ext["commitOffset"])
        return command.reply()

    def on_29(self, command: Command) -> Command:
        return command.reply(ext={"offset": "1"})

    def on_30(self, command: Command) -> Command:
        return command.reply(ext={"offset": str(len(self.stored[command.ext["topic"], int(command.ext["queueId"])]))})

    def on_31(self, command: Command) -> Command:
        return command.reply(ext={"offset": "0"})

    def on_32(self, command: Command) -> Command:
        return command.reply(ext={"timestamp": "1700000000000"})

    def on_34(self, command: Command) -> Command:
        data = HeartbeatData.decode(command.body or b"")
        for consumer in data.consumer_data_set:
            self.groups[consumer.group_name].add(data.client_id)
        return command.reply()

    def on_35(self, command: Command) -> Command:
        self.groups[command.ext.get("consumerGroup", "")].discard(command.ext["clientID"])
        return command.reply()

    def on_38(self, command: Command) -> Command:
        members = sorted(self.groups[command.ext["consumerGroup"]])
        if not members:
            return command.reply(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return command.reply(body=ConsumerIdList(consumer_id_list=members).encode())

    def on_36(self, command: Command) -> Command:
        self.sent_back.append(command)
        return command.reply()


class FakeCluster:
    """Name servers and brokers by name; `name_servers` is the address list for a Client."""

    def __init__(self, name_servers: list[FakeNameServer], brokers: list[FakeBroker]) -> None:
        self.ns = name_servers
        self.brokers = {broker.name: broker for broker in brokers}

    @property
    def name_servers(self) -> str:
        return ";".join(server.address for server in self.ns)

    @property
    def broker(self) -> FakeBroker:
        return next(iter(self.brokers.values()))

    def route(self, *names: str, read: int = 4, write: int = 4, perm: int = 6) -> TopicRouteData:
        chosen = names or tuple(self.brokers)
        return TopicRouteData(
            queue_datas=[QueueData(name, read, write, perm) for name in chosen],
            broker_datas=[BrokerData("c", name, {0: self.brokers[name].address}) for name in chosen],
        )

    def add(self, topic: str, data: TopicRouteData | None = None, **options: Any) -> None:
        for server in self.ns:
            server.routes[topic] = data or self.route(**options)


@asynccontextmanager
async def fake_cluster(brokers: int = 1, name_servers: int = 1) -> AsyncIterator[FakeCluster]:
    """A running cluster with topic T on every broker, 4 queues each."""
    cluster = FakeCluster(
        [FakeNameServer() for _ in range(name_servers)], [FakeBroker(f"b{n}") for n in range(brokers)]
    )
    servers: list[Server] = [*cluster.ns, *cluster.brokers.values()]
    try:
        for server in servers:
            await server.start()
        cluster.add("T")
        yield cluster
    finally:
        for server in servers:
            await server.stop()


@pytest.fixture
def cluster() -> Callable[..., Any]:
    """Factory of scripted clusters."""
    return fake_cluster


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function to completion, at most 60 s.

    Waits are skipped (harness.virtualtime) unless a broker runs in another thread or the test is marked `realtime`.
    """
    other_thread = any(name.startswith("saturn_") for name in request.fixturenames)
    real = other_thread or request.node.get_closest_marker("realtime") is not None

    def runner(work: Callable[[], Awaitable[Any]]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(60):
                return await work()

        return asyncio.run(bounded()) if real else virtualtime.run(bounded())

    return runner
