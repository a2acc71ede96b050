"""Consumers whose topic or queue is deleted and created again: the new messages are read from their beginning.

A broker that does not have its topics yet gives the same answers: then the position is kept.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.consumer import assigned_queue
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import BrokerFixture
from waiting import until

Run = Callable[..., Any]
GONE = {"topic": (17, "topic[T] not exist, apply first please!"), "queue": (1, "queueId[0] is illegal, topic:[T]")}
OPTIONS: dict[str, dict[str, Any]] = {
    "first": {"start": "first"},
    "last": {"start": "last"},
    "ordered": {"start": "first", "ordered": True},
    "broadcast": {"start": "first", "model": "broadcast"},
    "ordered broadcast": {"start": "first", "model": "broadcast", "ordered": True},
}


def delete(c: Any, code: int, remark: str, *, keeps_offsets: bool = False) -> None:
    """Answer pulls as a broker without the topic or queue does; it has no records and no offsets of groups."""
    c.broker.on_11 = lambda command: command.reply(code, remark)
    c.broker.stored.clear()
    wake(c)  # a pull that waits is answered the same
    if not keeps_offsets:
        c.broker.offsets.clear()


def wake(c: Any) -> None:
    """Answer the pulls that wait."""
    for futures in list(c.broker._grown.values()):
        for future in futures:
            if not future.done():
                future.set_result(None)
    c.broker._grown.clear()


def create(c: Any, *bodies: bytes) -> None:
    for body in bodies:
        c.broker.put("T", 0, body)
    del c.broker.on_11


def lock_all(command: Command) -> Command:
    return command.reply(body=b'{"lockOKMQSet":[{"brokerName":"b0","queueId":0,"topic":"T"}]}')


async def receive(inbox: Any, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        message = await inbox.recv(timeout=40)
        bodies.append(message.body)
        await message.ack()
    return bodies


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("options", OPTIONS)
async def test_consumer_reads_a_recreated_queue_from_its_beginning(
    cluster: Any, tmp_path: Path, options: str, gone: str
) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, offsets_dir=str(tmp_path), instance="i") as client,
    ):
        c.add("T", read=1, write=1)
        c.broker.script[RequestCode.LOCK_BATCH_MQ] = lock_all
        async with client.consumer("g", **OPTIONS[options]) as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            for number in range(5):
                c.broker.put("T", 0, b"old-%d" % number)
            assert len(await receive(inbox, 5)) == 5
            await inbox.commit()
            delete(c, *GONE[gone])
            pulls = len(c.broker.of(11))
            await c.broker.wait_for(11, pulls + 3)
            if OPTIONS[options].get("model") != "broadcast":
                assert inbox.committed() == {}, "the position is in doubt"
            await inbox.commit()
            assert c.broker.offsets == {}, "and is not stored again"
            bodies = [b"new-%d" % number for number in range(7)]
            create(c, *bodies)
            assert await receive(inbox, 7) == bodies
            await inbox.commit()
            assert list(inbox.committed().values()) == [7]


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("options", ["first", "last", "ordered", "broadcast"])
async def test_position_survives_a_broker_that_has_not_loaded_its_topics(
    cluster: Any, tmp_path: Path, options: str, gone: str
) -> None:
    """A new leader answers as if the topic were deleted; offsets and routes are missing for a while too, then all is back."""
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, offsets_dir=str(tmp_path), instance="i", route_poll_ms=1000) as client,
    ):
        c.add("T", read=1, write=1)
        c.broker.script[RequestCode.LOCK_BATCH_MQ] = lock_all
        async with client.consumer("g", **OPTIONS[options]) as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            for number in range(5):
                c.broker.put("T", 0, b"%d" % number)
            await receive(inbox, 4)
            held = await inbox.recv(timeout=40)
            await inbox.commit()
            records, offsets = list(c.broker.stored["T", 0]), dict(c.broker.offsets)
            route = c.ns[0].routes.pop("T")
            delete(c, *GONE[gone])
            await c.broker.wait_for(11, len(c.broker.of(11)) + 3)
            await held.ack()
            await inbox.commit()
            assert c.broker.offsets == {}, "nothing is committed meanwhile"
            c.broker.offsets.update(offsets)
            c.broker.stored["T", 0] = records
            c.add("T", route)
            create(c, b"next")
            assert await receive(inbox, 1) == [b"next"], "and not from the beginning"
            await inbox.commit()
            assert list(inbox.committed().values()) == [6]


async def test_position_survives_a_leader_that_has_not_loaded_its_queues(cluster: Any) -> None:
    """It says that the queue is empty, or ends before the position; a second later it does not."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for number in range(5):
                c.broker.put("T", 0, b"%d" % number)
            await receive(inbox, 5)
            records = list(c.broker.stored["T", 0])
            c.broker.stored["T", 0] = records[:2]
            wake(c)
            moved = len(c.broker.of(11))
            await c.broker.wait_for(11, moved + 1)
            c.broker.stored["T", 0] = records
            c.broker.put("T", 0, b"next")
            assert await receive(inbox, 1) == [b"next"]


async def test_queue_that_stays_shorter_is_read_from_where_the_broker_says(cluster: Any) -> None:
    """Its records are the old ones: the broker has lost the newest, and nothing was created again (PL-08)."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for number in range(5):
                c.broker.put("T", 0, b"%d" % number)
            await receive(inbox, 5)
            del c.broker.stored["T", 0][2:]
            wake(c)
            await until(lambda: list(inbox.committed().values()) == [2])
            c.broker.put("T", 0, b"next")
            assert await receive(inbox, 1) == [b"next"]


async def test_queue_created_again_between_two_pulls_is_read_from_its_beginning(cluster: Any) -> None:
    """No answer says that the topic does not exist, only that the queue is shorter."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for number in range(5):
                c.broker.put("T", 0, b"old-%d" % number)
            await receive(inbox, 5)
            await until(lambda: ("T", 0) in c.broker._grown)
            parked = c.broker._grown.pop(("T", 0))
            c.broker.stored.clear()
            bodies = [b"new-%d" % number for number in range(3)]
            for body in bodies:
                c.broker.put("T", 0, body)
            for future in parked:
                future.set_result(None)
            assert await receive(inbox, 3) == bodies


async def test_queue_created_again_during_a_long_poll_is_read_from_its_beginning(cluster: Any) -> None:
    """An Apache broker answers a parked pull when the new queue has grown to its offset."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for number in range(2):
                c.broker.put("T", 0, b"old-%d" % number)
            await receive(inbox, 2)
            await until(lambda: ("T", 0) in c.broker._grown)
            parked = c.broker._grown.pop(("T", 0))
            c.broker.stored.clear()
            with pytest.raises(TimeoutError):
                await inbox.recv(timeout=assigned_queue.LONG_WAIT_S)
            bodies = [b"new-%d" % number for number in range(5)]
            for body in bodies:
                c.broker.put("T", 0, body)
            for future in parked:
                future.set_result(None)
            assert await receive(inbox, 3) == bodies[2:]
            assert await receive(inbox, 5) == bodies, "again, with the first two"


async def test_queue_of_a_broker_that_lost_its_log_is_read_from_its_beginning(cluster: Any) -> None:
    """Physical offsets begin at 0 again, so only the store times show that the records are newer."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            c.broker.put("other", 0, b"before")
            for number in range(3):
                c.broker.put("T", 0, b"old-%d" % number)
            await receive(inbox, 3)
            delete(c, *GONE["topic"])
            await c.broker.wait_for(11, len(c.broker.of(11)) + 2)
            c.broker._physical = itertools.count(0, 1000)
            c.broker.store_ms += 1
            bodies = [b"new-%d" % number for number in range(4)]
            create(c, *bodies)
            assert await receive(inbox, 4) == bodies


async def test_position_without_a_message_seen_dies_with_its_queue_too(cluster: Any) -> None:
    """The consumer has only waited at the end of the queue; it remembers the record before its position."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        for number in range(5):
            c.broker.put("T", 0, b"old-%d" % number)
        async with client.consumer("g", start="last") as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            await c.broker.wait_for(11, 3)  # one was answered "no new message", one asked for the record before it
            delete(c, *GONE["topic"])
            await c.broker.wait_for(11, len(c.broker.of(11)) + 2)
            bodies = [b"new-%d" % number for number in range(9)]
            create(c, *bodies)
            assert await receive(inbox, 9) == bodies


async def test_offsets_that_outlive_a_deleted_topic_are_not_used(cluster: Any) -> None:
    """Apache's brokers keep a group's offsets when a topic is deleted; that no NameServer has it was."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for number in range(5):
                c.broker.put("T", 0, b"%d" % number)
            await receive(inbox, 5)
            await inbox.commit()
            data = c.ns[0].routes.pop("T")
            delete(c, *GONE["topic"], keeps_offsets=True)
            await c.broker.wait_for(11, len(c.broker.of(11)) + 3)
            c.add("T", data)
            bodies = [b"new-%d" % number for number in range(9)]
            create(c, *bodies)
            assert await receive(inbox, 9) == bodies


async def test_open_messages_of_a_deleted_topic_are_void(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=1, write=1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for number in range(3):
                c.broker.put("T", 0, b"old-%d" % number)
            held = await inbox.recv(timeout=30)
            delete(c, *GONE["topic"])
            await c.broker.wait_for(11, len(c.broker.of(11)) + 2)
            create(c, b"new")
            await until(lambda: list(inbox.committed().values()) == [0])
            assert await receive(inbox, 1) == [b"new"], "and none that was pulled before"
            await held.ack()
            await inbox.commit()
            await until(lambda: c.broker.offsets["g", "T", 0] == 1)


async def test_waiting_pulls_of_a_deleted_topic_are_void_too(cluster: Any) -> None:
    """A broker may answer a long poll late, after the topic was created again with as many messages as before."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", read=2, write=2)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            c.broker.put("T", 0, b"old-0")
            c.broker.put("T", 1, b"old-1")
            await receive(inbox, 2)
            await inbox.commit()
            await c.broker.wait_for(15, 2)
            waiting = c.broker._grown.pop(("T", 1))
            delete(c, *GONE["topic"])
            await c.broker.wait_for(11, len(c.broker.of(11)) + 3)
            c.broker.put("T", 1, b"new-1")
            create(c, b"new-0")
            assert set(await receive(inbox, 2)) == {b"new-0", b"new-1"}
            for future in waiting:
                future.cancel()


async def test_recreated_topic_on_another_broker_is_read_from_its_beginning(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers, route_poll_ms=1000) as client:
        c.add("T", c.route("b0", read=1, write=1))
        async with client.consumer("g", start="last") as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            delete(c, *GONE["topic"])
            await c.broker.wait_for(11, len(c.broker.of(11)) + 2)
            c.brokers["b1"].store_ms = int(time.time() * 1000)
            c.brokers["b1"].put("T", 0, b"new")
            c.brokers["b1"].script[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda command: command.reply(
                ext={"offset": "0"}
            )
            c.add("T", c.route("b1", read=1, write=1))
            assert await receive(inbox, 1) == [b"new"]


def test_consumer_reads_a_recreated_topic_of_a_real_broker(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str
) -> None:
    async def work() -> None:
        broker = saturn_broker.server.broker
        async with Client.from_url(saturn_broker.url) as client:
            out, inbox = client.producer("p"), client.consumer(saturn_group, start="first")
            async with out, inbox:
                await inbox.subscribe(saturn_topic)
                await out.send_many(saturn_topic, [b"old"] * 5)
                assert len(await receive(inbox, 5)) == 5
                pulls = len([request for request in saturn_broker.requests if request.name == "PULL_MESSAGE"])
                address = saturn_broker.on_loop(lambda: broker.address)
                deletion = Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": saturn_topic})
                await client._core.call_broker(address, deletion, 3000)
                while len([r for r in saturn_broker.requests if r.name == "PULL_MESSAGE"]) < pulls + 8:
                    await asyncio.sleep(0.1)  # poll
                await asyncio.to_thread(saturn_broker.create_topic, saturn_topic)
                bodies = {b"new-%d" % number for number in range(9)}
                for body in bodies:
                    await out.send(saturn_topic, body)
                assert set(await receive(inbox, 9)) == bodies

    asyncio.run(asyncio.wait_for(work(), 60))


def test_broker_answers_parked_pulls_of_a_deleted_topic_at_once(
    saturn_broker: BrokerFixture, saturn_topic: str
) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client:
            puller = client.puller()
            queue = (await puller.queues(saturn_topic))[0]
            pulling = asyncio.create_task(puller.pull(queue, 0, wait=15.0))
            broker = saturn_broker.server.broker
            await until(lambda: saturn_broker.on_loop(lambda: broker.long_polling.count) == 1)
            address = saturn_broker.on_loop(lambda: broker.address)
            deletion = Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": saturn_topic})
            await client._core.call_broker(address, deletion, 3000)
            with pytest.raises(ResponseError) as raised:
                async with asyncio.timeout(5):
                    await pulling
            assert raised.value.code == 17

    asyncio.run(asyncio.wait_for(work(), 60))
