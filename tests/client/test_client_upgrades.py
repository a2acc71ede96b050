"""Defects that Apache RocketMQ fixed in its client, which must not come back here; each test names Apache's issue."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.client.trace.records import Pub, SubAfter
from saturnmq.net import CallTimeout, NetSettings, RemotingClient
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import EmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


@pytest.mark.spec("UPG-02")
async def test_timed_out_call_returns_its_permit_once(cluster: Any) -> None:
    """ROCKETMQ-323 and 604: the timeout and the callback each released the semaphore."""
    async with cluster() as c:
        client = RemotingClient(settings=NetSettings(client_async_permits=2, close_on_timeout=False))
        late: asyncio.Event = asyncio.Event()

        async def answer_late(command: Command) -> Command:
            await late.wait()
            return command.reply()

        c.broker.script[999] = answer_late
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await client.invoke(c.broker.address, Command(999), 20)
            assert client.async_permits.free == 2
        late.set()
        assert (await client.invoke(c.broker.address, Command(999), 10_000)).code == 0, "behind the late answers"
        assert client.async_permits.free == 2
        await client.close()
        assert client.async_permits.free == 2


@pytest.mark.spec("UPG-03")
async def test_stopping_consumer_stores_its_progress(cluster: Any) -> None:
    """ROCKETMQ-35: what was consumed since the last periodic write was lost."""
    async with cluster() as c, Client(name_servers=c.name_servers, persist_offsets_ms=3_600_000) as client:
        c.add("T", c.route(read=1, write=1))
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for _ in range(3):
                await (await inbox.recv(30)).ack()
            assert c.broker.offsets.get(("g", "T", 0), 0) < 3
        assert c.broker.offsets["g", "T", 0] == 3


@pytest.mark.spec("UPG-07")
async def test_retried_and_resent_bodies_are_compressed_once(cluster: Any) -> None:
    """ROCKETMQ-66: a second attempt compressed the compressed body."""
    body = b"z" * 5000
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        c.add("T", c.route(read=1, write=1))
        c.add("%RETRY%g", c.route(read=1, write=1))
        c.broker.script[310] = [lambda command: command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "once")] * 2
        await out.send("T", body)
        await out.send("T", body)
        sent = c.broker.of(310)
        assert len(sent) == 4
        assert {(command.ext["f"], zlib.decompress(command.body)) for command in sent} == {("769", body)}
        c.broker.put("T", 0, sent[0].body, "TRAN_MSG\x01true", sys_flag=769 | 8)
        c.broker.script[36] = lambda command: command.reply(1, "no")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            (message,) = [one for one in [await inbox.recv(30) for _ in range(3)] if one.record.sys_flag & 8]
            assert message.value == body
            await message.retry()
            await out.send("T", message.value)
        copy, again = c.broker.of(310)[4:]
        assert zlib.decompress(copy.body) == zlib.decompress(again.body) == body
        assert int(copy.ext["f"]) & 12 == 0 and "TRAN_MSG" not in copy.ext["i"]


@pytest.mark.spec("UPG-14")
async def test_connection_to_a_removed_name_server_is_closed(cluster: Any) -> None:
    """ROCKETMQ-2042."""
    async with cluster(name_servers=2) as c, Client(name_servers=c.name_servers) as client:
        servers = client._core.name_servers
        request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
        await servers.call(request, 10_000)
        chosen = servers.chosen
        left = next(server for server in c.ns if server.address != chosen)
        removed = next(server for server in c.ns if server.address == chosen)
        servers.update([left.address])
        assert not client._core.remote.is_connected(removed.address)
        await until(lambda: all(connection.closed for connection in removed.connections))
        await servers.call(request, 10_000)
        assert servers.chosen == left.address


@pytest.mark.spec("UPG-15")
async def test_producers_and_consumers_of_one_process_are_all_traced() -> None:
    """ROCKETMQ-1188: of two clients in a process only the first was traced. 1473: the host was not the client's."""
    async with (
        EmbeddedBroker() as server,
        Client.from_url(server.url, trace=True) as client,
        Client.from_url(server.url, trace=True) as other,
    ):
        sent = []
        for name, each in (("one", client), ("two", other)):
            async with each.producer(f"p-{name}") as out:
                sent.append(await out.send("T", name.encode()))
        for name, each in (("one", client), ("two", other)):
            async with each.consumer(f"c-{name}", start="first") as inbox:
                await inbox.subscribe("T")
                for _ in sent:
                    await (await inbox.recv(30)).ack()
        for number, receipt in enumerate(sent):
            wanted = {(Pub, ("p-one", "p-two")[number]), (SubAfter, "c-one"), (SubAfter, "c-two")}

            async def kinds(key: str = receipt.message_id) -> set[Any]:
                found = await client.query_trace(key)
                return {(type(one), one.group) for one in found if isinstance(one, Pub | SubAfter)}

            async with asyncio.timeout(30):
                while await kinds() != wanted:
                    await asyncio.sleep(0.1)  # poll: the trace is sent and indexed in the background
        async with Admin(server.name_servers) as admin:
            views = await admin.messages.trace(sent[0].message_id, "RMQ_SYS_TRACE_TOPIC")
            assert {view.group for view in views} == {"p-one", "c-one", "c-two"}
            assert {view.client_host for view in views} == {"127.0.0.1"}
