"""Positions in queues that are new to a group: fixed before `subscribe`, `assign` and `start` return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Client, MessageQueue
from saturnmq.client.consumer.member import CLOCK_SLACK_MS
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record

Run = Callable[..., Any]
QUEUES = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "shared": {},
    "ordered": {"ordered": True},
    "broadcast": {"model": "broadcast"},
    "ordered broadcast": {"model": "broadcast", "ordered": True},
}


def lock_all(command: Command) -> Command:
    items = ",".join(f'{{"brokerName":"b0","queueId":{number},"topic":"T"}}' for number in range(QUEUES))
    return command.reply(body=b'{"lockOKMQSet":[%s]}' % items.encode())


def by_time(c: Any) -> Callable[[Command], Command]:
    """SEARCH_OFFSET_BY_TIMESTAMP as Apache's broker: for a time after the last message, the offset of the last message."""

    def answer(command: Command) -> Command:
        records = c.broker.stored[command.ext["topic"], int(command.ext["queueId"])]
        times = [decode_record(record).store_timestamp_ms for record in records]
        since_ms = int(command.ext["timestamp"])
        matches = (offset for offset, at_ms in enumerate(times) if at_ms >= since_ms)
        return command.reply(ext={"offset": str(next(matches, max(len(times) - 1, 0)))})

    return answer


async def received(inbox: Any, count: int) -> set[bytes]:
    bodies = set()
    for _ in range(count):
        message = await inbox.recv(timeout=40)
        bodies.add(message.body)
        await message.ack()
    return bodies


async def nothing_more(inbox: Any) -> None:
    with pytest.raises(TimeoutError):
        await inbox.recv(timeout=20)


@pytest.mark.parametrize("begin", ["subscribe", "assign", "start"])
@pytest.mark.parametrize("options", OPTIONS)
async def test_messages_sent_after_the_beginning_are_received(
    cluster: Any, tmp_path: Path, options: str, begin: str
) -> None:
    """Each queue has messages that are older; the first message after the beginning is stored before any other request."""
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, offsets_dir=str(tmp_path), instance="i") as client,
    ):
        c.broker.script[RequestCode.LOCK_BATCH_MQ] = lock_all
        for number in range(QUEUES):
            c.broker.put("T", number, b"old")
        inbox = client.consumer("g", start="last", **OPTIONS[options])
        if begin == "start":
            await inbox.subscribe("T")
        await inbox.start()
        try:
            if begin == "subscribe":
                await inbox.subscribe("T")
            elif begin == "assign":
                await inbox.assign([MessageQueue("T", "b0", number) for number in range(QUEUES)])
            bodies = {b"new-%d" % number for number in range(QUEUES)}
            for number, body in enumerate(sorted(bodies)):
                c.broker.put("T", number, body)
            assert await received(inbox, QUEUES) == bodies
            await nothing_more(inbox)
        finally:
            await inbox.stop()


@pytest.mark.parametrize("options", ["shared", "broadcast"])
async def test_topic_created_after_subscribe_is_read_from_its_beginning(
    cluster: Any, tmp_path: Path, options: str
) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, offsets_dir=str(tmp_path), instance="i") as client,
    ):
        c.broker.script[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = by_time(c)
        data = c.ns[0].routes.pop("T")
        async with client.consumer("g", start="last", **OPTIONS[options]) as inbox:
            await inbox.subscribe("T")
            c.broker.store_ms = int(time.time() * 1000)
            for number in range(QUEUES):
                c.broker.put("T", number, b"%d" % number)
            c.add("T", data)
            assert await received(inbox, QUEUES) == {b"0", b"1", b"2", b"3"}


async def test_queue_found_after_subscribe_is_read_from_the_time_of_the_subscription(cluster: Any) -> None:
    """Its broker was away: it has messages from before, which are not read."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.broker.script[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = by_time(c)
        data = c.ns[0].routes.pop("T")
        async with client.consumer("g", start="last") as inbox:
            await inbox.subscribe("T")
            now_ms = int(time.time() * 1000)
            c.broker.store_ms = now_ms - CLOCK_SLACK_MS - 60_000
            for number in range(3):
                c.broker.put("T", number, b"old")
            c.broker.store_ms = now_ms
            for number in (1, 2, 3):
                c.broker.put("T", number, b"%d" % number)
            c.add("T", data)
            assert await received(inbox, 3) == {b"1", b"2", b"3"}
            await nothing_more(inbox)
            assert inbox.position(MessageQueue("T", "b0", 0)) == {MessageQueue("T", "b0", 0): 1}


async def test_first_position_of_a_group_is_stored_at_once(cluster: Any) -> None:
    """The next owner of the queue would else begin at a later end."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        c.broker.put("T", 0, b"old")
        async with client.consumer("g", start="last") as inbox:
            await inbox.subscribe("T")
            assert c.broker.offsets == {("g", "T", 0): 1}
        c.broker.put("T", 0, b"between")
        async with client.consumer("g", start="last") as inbox:
            await inbox.subscribe("T")
            assert await received(inbox, 1) == {b"between"}


def test_subscribe_waits_no_longer_than_the_timeout(run: Run, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers, timeout=2.0) as client:
            c.add("T", read=1, write=1)
            silent = asyncio.Event()

            async def never(command: Command) -> None:
                await silent.wait()

            c.broker.script[RequestCode.GET_MAX_OFFSET] = never
            async with client.consumer("g", start="last") as inbox:
                begin = time.monotonic()
                await inbox.subscribe("T")
                assert 1.9 < time.monotonic() - begin < 3
            silent.set()

    run(work)
    assert "positions not determined in time group=g timeout=2" in caplog.text


async def test_cancelled_start_leaves_nothing_running(cluster: Any) -> None:
    """Cancelled while it waits for the positions."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        silent = asyncio.Event()

        async def never(command: Command) -> None:
            await silent.wait()

        c.broker.script[RequestCode.GET_MAX_OFFSET] = never
        inbox = client.consumer("g", start="last")
        await inbox.subscribe("T")
        starting = asyncio.create_task(inbox.start())
        await c.broker.wait_for(RequestCode.GET_MAX_OFFSET)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not [task for task in asyncio.all_tasks() if task.get_name().endswith("rebalance g")]
        assert client._core.consumers == {}
        silent.set()
