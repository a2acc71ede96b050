"""Fixture: a broker with its NameServer, and requests as a client encodes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness import virtualtime
from saturnmq.broker import BrokerSettings
from saturnmq.net import NO_RESPONSE, Connection, NetSettings, RemotingClient
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from saturnmq.protocol.codes import VERSION, Language, RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import BatchItem, Message, decode_records, encode_batch, encode_properties
from saturnmq.store import StoreProfile, StoreSettings, wall_clock_ms
from saturnmq.testing import EmbeddedBroker


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function to completion, at most 30 s; waits are skipped."""

    async def bounded() -> Any:
        async with asyncio.timeout(30):
            return await work()

    return virtualtime.run(bounded())


class Clock:
    """A clock that tests advance: Unix ms."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


class Wire:
    """One client connection to an embedded broker."""

    def __init__(self, server: EmbeddedBroker) -> None:
        self.server = server
        self.broker = server.broker
        self.pushed: asyncio.Queue[Command] = asyncio.Queue()
        self.sign: Callable[[Command], None] | None = None  # signs each request in place
        self.client = RemotingClient(settings=NetSettings(), handler=self._pushed)

    def _pushed(self, connection: Connection, request: Command) -> bytes:
        self.pushed.put_nowait(request)
        return NO_RESPONSE

    async def call(
        self, code: int, body: bytes | None = None, *, version: int = 407, timeout_ms: int = 10_000, **ext: object
    ) -> Command:
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}
        command = Command(code, ext=texts, body=body, version=version)
        if self.sign is not None:
            self.sign(command)
        return await self.client.invoke(self.server.broker_address, command, timeout_ms)

    async def send(
        self,
        topic: str = "T",
        body: bytes = b"body",
        properties: dict[str, str] | None = None,
        *,
        raw: str | None = None,
        queue: int = 0,
        version: int = 407,
        **more: object,
    ) -> Command:
        text = raw if raw is not None else encode_properties(properties or {}).decode()
        fields: dict[str, object] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1234, "h": 0, "i": text,
            "j": 0, "k": False, "m": False,
        }  # fmt: skip
        return await self.call(RequestCode.SEND_MESSAGE_V2, body, version=version, **(fields | more))

    async def send_batch(
        self,
        items: list[BatchItem],
        topic: str = "T",
        common: str = "WAIT\x01true",
        queue: int = 1,
        **more: object,
    ) -> Command:
        fields: dict[str, object] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1234, "h": 0, "i": common,
            "j": 0, "k": False, "m": True,
        }  # fmt: skip
        return await self.call(RequestCode.SEND_BATCH_MESSAGE, encode_batch(items), **(fields | more))

    async def pull(
        self,
        topic: str = "T",
        queue: int = 0,
        offset: int = 0,
        *,
        group: str = "G",
        suspend_ms: int = 0,
        **more: object,
    ) -> Command:
        fields: dict[str, object] = {
            "consumerGroup": group, "topic": topic, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 4 | (2 if suspend_ms else 0), "commitOffset": 0, "suspendTimeoutMillis": suspend_ms,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return await self.call(RequestCode.PULL_MESSAGE, **(fields | more))

    async def messages(self, topic: str = "T", queue: int = 0, offset: int = 0) -> list[Message]:
        answer = await self.pull(topic, queue, offset)
        return decode_records(answer.body or b"") if answer.code == 0 else []

    async def heartbeat(
        self, group: str = "G", *topics: str, client_id: str = "c1", version: int = 1, tags: str = "*", **more: Any
    ) -> Command:
        subscriptions = [SubscriptionData(topic, tags, sub_version=version) for topic in topics]
        consumer = ConsumerData(group, subscription_data_set=subscriptions, **more)
        data = HeartbeatData(client_id, [ProducerData("producers")], [consumer])
        return await self.call(RequestCode.HEART_BEAT, data.encode())


@asynccontextmanager
async def wire(
    store: dict[str, Any] | None = None,
    *,
    data: Path | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
    **settings: Any,
) -> AsyncIterator[Wire]:
    """A broker with these settings, and a connection to it. data: its folder, which is kept."""
    stored = StoreSettings(**({"profile": StoreProfile.SMALL} | (store or {})))
    async with EmbeddedBroker(data, settings=BrokerSettings(**settings), store=stored, clock_ms=clock_ms) as server:
        w = Wire(server)
        try:
            yield w
        finally:
            await w.client.close()


@asynccontextmanager
async def member(
    w: Wire,
    handler: Callable[[Connection, Command], Any],
    *,
    client_id: str = "m1",
    language: int = Language.JAVA,
    version: int = VERSION,
) -> AsyncIterator[RemotingClient]:
    """A consumer of group G and topic T whose handler answers the broker's requests."""
    client = RemotingClient(settings=NetSettings(), handler=handler)
    data = HeartbeatData(client_id, [], [ConsumerData("G", subscription_data_set=[SubscriptionData("T")])])
    beat = Command(RequestCode.HEART_BEAT, body=data.encode(), language=language, version=version)
    try:
        assert (await client.invoke(w.server.broker_address, beat, 5000)).code == 0
        yield client
    finally:
        await client.close()


async def commit(w: Wire, offset: int, *, group: str = "G", queue: int = 0, topic: str = "T") -> None:
    """Commit an offset of a group."""
    ask = {"consumerGroup": group, "topic": topic, "queueId": queue}
    assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=offset, **ask)).code == 0
