# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Ordered consumption: one message per queue at a time, under broker locks, through failures and changes of ownership."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from saturnmq import Ack, AlreadySettled, Client, Message, str_codec
from saturnmq.client.consumer import member as member_module
from saturnmq.client.consumer.queue_locks import LIVE_S, MemberLocks
from saturnmq.protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.testing import EmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


async def fill(client: Client, topic: str, count: int, keys: int = 1) -> list[MessageQueue]:
    """Send messages "key:n" with rising n; returns the queue of each key."""
    async with client.producer("filler", codec=str_codec()) as out:
        return [
            (await out.send(topic, f"k{n % keys}:{n // keys}", shard_by=n % keys)).queue for n in range(count * keys)
        ][:keys]


async def silence(inbox: Any, seconds: float = 0.1) -> None:
    """Assert that no message arrives within this time."""
    with pytest.raises(TimeoutError):
        await inbox.recv(seconds)


@pytest.mark.spec("API-17", "OR-01", "OR-02")
async def test_ordered_queue_hands_out_one_message_while_others_proceed() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        queues = await fill(client, "Orders", 3, keys=2)
        assert queues[0] != queues[1]
        async with client.consumer("c", codec=str_codec(), start="first", ordered=True) as inbox:
            await inbox.subscribe("Orders")
            first = {m.queue: m for m in [await inbox.recv(30), await inbox.recv(30)]}
            assert {m.value for m in first.values()} == {"k0:0", "k1:0"}
            await silence(inbox)
            assert inbox.position(queues[0]) == {queues[0]: 1}
            await first[queues[1]].ack()
            second = await inbox.recv(30)
            assert (second.queue, second.value) == (queues[1], "k1:1"), "the other queue does not wait"
            await silence(inbox)
            await first[queues[0]].ack()
            assert (await inbox.recv(30)).value == "k0:1"
            assert inbox.committed()[queues[0]] == 1


@pytest.mark.spec("OR-07", "API-17", "API-19", "PL-12")
async def test_ordered_retry_blocks_its_queue_until_the_message_succeeds() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        (queue,) = await fill(client, "Orders", 3)
        async with client.consumer("c", codec=str_codec(), start="first", ordered=True, suspend=0.2) as inbox:
            await inbox.subscribe("Orders")
            first = await inbox.recv(30)
            await first.retry()
            await first.retry()  # the same verdict again is a no-op
            with pytest.raises(AlreadySettled):
                await first.ack()
            await silence(inbox, 0.1)
            again = await inbox.recv(30)
            assert (again.value, again.attempt, again.offset) == ("k0:0", 2, 0)
            assert inbox.committed().get(queue, 0) == 0, "a failure does not advance"
            await again.retry(timedelta(milliseconds=10))
            third = await inbox.recv(30)
            assert (third.value, third.attempt) == ("k0:0", 3)
            await third.ack()
            rest = []
            for _ in range(2):
                message = await inbox.recv(30)
                rest.append(message.value)
                await message.ack()
            assert rest == ["k0:1", "k0:2"]
            assert inbox.committed()[queue] == 3
            assert not await client.topic_exists("%DLQ%c")


@pytest.mark.spec("OR-08")
async def test_ordered_message_beyond_max_times_becomes_a_dead_letter() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        (queue,) = await fill(client, "Orders", 3)
        options: Any = {"ordered": True, "suspend": 0.01, "max_times": 2}
        async with client.consumer("c", codec=str_codec(), start="first", **options) as inbox:
            await inbox.subscribe("Orders")
            for attempt in (1, 2, 3):
                message = await inbox.recv(30)
                assert (message.value, message.attempt) == ("k0:0", attempt)
                await message.retry(reason="no stock")
            rejected = await inbox.recv(30)
            assert rejected.value == "k0:1"
            await rejected.reject("never")
            assert (await inbox.recv(30)).value == "k0:2"
            assert inbox.committed()[queue] == 2
        async with client.consumer("dead", codec=str_codec(), start="first") as inbox:
            await inbox.subscribe("%DLQ%c")
            dead = [await inbox.recv(30), await inbox.recv(30)]
        assert [m.value for m in dead] == ["k0:0", "k0:1"]
        assert [m.properties["DEAD_LETTER_REASON"] for m in dead] == ["no stock", "never"]
        assert {m.topic for m in dead} == {"Orders"} and dead[0].attempt > 2


@pytest.mark.spec("OR-08")
async def test_ordered_queue_waits_while_a_dead_letter_cannot_be_sent(cluster: Any) -> None:
    async with cluster() as fake, Client(name_servers=fake.name_servers, attempts=1) as client:
        fake.add("%RETRY%c")
        fake.broker.put("T", 0, b"a")
        fake.broker.put("T", 0, b"b")
        fake.broker.script[41] = held_all
        refuse = lambda command: command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "full")  # noqa: E731
        fake.broker.script[310] = [refuse]
        async with client.consumer("c", start="first", ordered=True, suspend=0.01, max_times=0) as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).retry()
            again = await inbox.recv(30)
            assert (again.body, again.attempt) == (b"a", 2)
            await again.retry()
            assert (await inbox.recv(30)).body == b"b"
        sent = fake.broker.of(310)
        assert len(sent) == 2 and sent[-1].ext["b"] == "%RETRY%c" and sent[-1].ext["l"] == "0"


def held_all(command: Any) -> Any:
    asked = LockBatchRequest.decode(command.body)
    return command.reply(body=LockBatchResponse(asked.mq_set).encode())


@pytest.mark.spec("OR-03", "OR-02", "CA-09")
async def test_ordered_queue_is_released_only_after_its_message_is_settled() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as one, Client.from_url(server.url) as two:
        await fill(one, "Orders", 3, keys=4)
        options: Any = {"codec": str_codec(), "start": "first", "ordered": True}
        async with one.consumer("c", **options) as first:
            await first.subscribe("Orders")
            held = [await first.recv(30) for _ in range(4)]
            async with two.consumer("c", **options) as second:
                await second.subscribe("Orders")
                await until(lambda: any(item.leaving for item in first.assignments))  # type: ignore[attr-defined]
                await silence(second, 0.3)
                assert second.assigned == [], "no queue moves while a reader holds a message of it"
                for message in held:
                    await message.ack()
                got: list[tuple[str, str]] = []

                async def take(name: str, inbox: Any) -> None:
                    async for message in inbox:
                        got.append((name, message.value))
                        await message.ack()

                tasks = [asyncio.ensure_future(take("one", first)), asyncio.ensure_future(take("two", second))]
                await until(lambda: len(got) == 8)
                assert sorted(value for _, value in got) == sorted(f"k{k}:{n}" for k in range(4) for n in (1, 2))
                for key in range(4):
                    mine = [pair for pair in got if pair[1].startswith(f"k{key}:")]
                    assert [value for _, value in mine] == [f"k{key}:1", f"k{key}:2"]
                assert {name for name, _ in got} == {"one", "two"}
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            held_now = server.broker.locks._locks["c"]
            assert two.client_id not in {lock.client_id for lock in held_now.values()}, "stopping gives the locks up"


@pytest.mark.spec("OR-03")
async def test_ordered_queue_reassigned_before_its_release_continues() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as one, Client.from_url(server.url) as two:
        await fill(one, "Orders", 2, keys=4)
        options: Any = {"codec": str_codec(), "start": "first", "ordered": True}
        async with one.consumer("c", **options) as first:
            await first.subscribe("Orders")
            held = [await first.recv(30) for _ in range(4)]
            async with two.consumer("c", **options) as second:
                await second.subscribe("Orders")
                await until(lambda: any(item.leaving for item in first.assignments))  # type: ignore[attr-defined]
            await until(lambda: not any(item.leaving for item in first.assignments))  # type: ignore[attr-defined]
            for message in held:
                await message.ack()
            assert {(await first.recv(30)).value for _ in range(4)} == {f"k{key}:1" for key in range(4)}


@pytest.mark.spec("OR-04", "OR-05", "OR-06", "PL-13")
async def test_ordered_queue_halts_without_lock_and_resumes_at_group_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RENEW_S", "RENEW_S", "RELOCK_S"):
        monkeypatch.setattr(member_module, name, 0.05)
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        (queue,) = await fill(client, "Orders", 5)
        async with client.consumer("c", codec=str_codec(), start="first", ordered=True) as inbox:
            await inbox.subscribe("Orders")
            message = await inbox.recv(30)
            assignment = next(item for item in inbox.assignments if item.user_queue == queue)
            locks = server.broker.locks
            locks.unlock("c", client.client_id, [queue])
            locks.lock("c", "another client", [queue], server.broker._clock_ms())
            await until(lambda: not assignment.locked)  # type: ignore[attr-defined]
            await message.ack()
            await silence(inbox, 0.2)
            await client.puller().commit("c", queue, 3)
            locks.unlock("c", "another client", [queue])
            assert (await inbox.recv(30)).value == "k0:3", "what another member settled is not repeated"


@pytest.mark.spec("PL-13", "OR-05", "OR-06")
async def test_queue_lock_is_valid_for_30_s_from_its_request(cluster: Any) -> None:
    now = [1000.0]
    async with cluster() as fake, Client(name_servers=fake.name_servers) as client:
        await client.topic_exists("T")
        locks = MemberLocks(client._core, "c", clock=lambda: now[0])
        mine, other = MessageQueue("T", "b0", 0), MessageQueue("T", "b0", 1)

        def answer(command: Any) -> Any:
            now[0] += 5
            asked = LockBatchRequest.decode(command.body)
            assert (asked.consumer_group, asked.client_id, asked.mq_set) == ("c", client.client_id, [mine, other])
            return command.reply(body=LockBatchResponse([mine]).encode())

        fake.broker.script[RequestCode.LOCK_BATCH_MQ] = answer
        assert await locks.lock([other, mine]) == {mine: True, other: False}
        now[0] = 1000.0 + LIVE_S - 0.1
        assert locks.valid(mine) and not locks.valid(other)
        now[0] = 1000.0 + LIVE_S
        assert not locks.valid(mine), "the answer's way does not count for us"
        fake.broker.script[RequestCode.LOCK_BATCH_MQ] = lambda command: command.reply(1, "busy")
        assert await locks.lock([mine]) == {}, "who does not answer says nothing about the lock"
        await locks.unlock([mine])
        assert len(await fake.broker.wait_for(RequestCode.UNLOCK_BATCH_MQ)) == 1


@pytest.mark.spec("CA-09", "OR-02")
async def test_leaving_member_releases_locks_that_are_still_requested(cluster: Any) -> None:
    """Otherwise the broker would keep the queue locked for an absent member for a minute."""
    async with cluster() as fake, Client(name_servers=fake.name_servers) as client:
        await client.topic_exists("T")
        never = asyncio.Event()

        async def granted_without_answer(command: Any) -> Any:
            await never.wait()
            return held_all(command)

        fake.broker.script[RequestCode.LOCK_BATCH_MQ] = granted_without_answer
        async with client.consumer("c", codec=str_codec(), start="first", ordered=True) as inbox:
            await inbox.subscribe("T")
            asked = [
                LockBatchRequest.decode(command.body)
                for command in await fake.broker.wait_for(RequestCode.LOCK_BATCH_MQ)
            ]
        given_up = {
            queue
            for command in await fake.broker.wait_for(RequestCode.UNLOCK_BATCH_MQ)
            for queue in LockBatchRequest.decode(command.body).mq_set
        }
        never.set()
        assert given_up == {queue for request in asked for queue in request.mq_set} != set()


@pytest.mark.spec("OR-02", "API-18")
async def test_ordered_broadcast_consumer_needs_no_lock(tmp_path: Any) -> None:
    async with EmbeddedBroker() as server:
        async with Client.from_url(server.url, instance="a", offsets_dir=str(tmp_path)) as client:
            await fill(client, "Orders", 2)
            options: Any = {"start": "first", "ordered": True, "model": "broadcast", "suspend": 0.01}
            async with client.consumer("c", codec=str_codec(), **options) as inbox:
                await inbox.subscribe("Orders")
                await (await inbox.recv(30)).retry()
                again = await inbox.recv(30)
                assert (again.value, again.attempt) == ("k0:0", 2)
                await again.reject()
                assert (await inbox.recv(30)).value == "k0:1"
                assert server.broker.locks._locks == {}


@pytest.mark.spec("API-17", "API-18")
async def test_ordered_seek_waits_for_the_message_that_a_reader_holds() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        (queue,) = await fill(client, "Orders", 4)
        async with client.consumer("c", codec=str_codec(), start="first", ordered=True) as inbox:
            await inbox.subscribe("Orders")
            held = await inbox.recv(30)
            await inbox.seek(2, queue)
            await silence(inbox)
            await held.ack()
            assert (await inbox.recv(30)).value == "k0:2"
            assert inbox.committed()[queue] == 2


@pytest.mark.spec("API-17", "API-24")
async def test_cancelled_reject_leaves_the_ordered_message_open() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        (queue,) = await fill(client, "Orders", 2)
        async with client.consumer("c", codec=str_codec(), start="first", ordered=True) as inbox:
            await inbox.subscribe("Orders")
            message = await inbox.recv(30)
            rejecting = asyncio.ensure_future(message.reject())
            await asyncio.sleep(0)
            rejecting.cancel()
            await asyncio.gather(rejecting, return_exceptions=True)
            await message.ack()  # no AlreadySettled
            assert (await inbox.recv(30)).value == "k0:1" and inbox.committed()[queue] == 1


@pytest.mark.spec("API-20", "API-17")
async def test_ordered_message_not_settled_in_time_is_repeated_first() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await fill(client, "Orders", 2)
        options: Any = {"ordered": True, "ack_timeout": 0.1, "suspend": 0.01}
        async with client.consumer("c", codec=str_codec(), start="first", **options) as inbox:
            await inbox.subscribe("Orders")
            late = await inbox.recv(30)
            again = await inbox.recv(30)
            assert (again.value, again.attempt) == ("k0:0", 2)
            await again.ack()
            with pytest.raises(AlreadySettled):
                await late.ack()
            assert (await inbox.recv(30)).value == "k0:1"


@pytest.mark.spec("OR-03", "OR-05", "API-17", "CA-01")
async def test_order_per_key_survives_members_joining_and_leaving() -> None:
    chance = random.Random(7)
    keys, count = 4, 60
    seen: dict[str, list[int]] = {f"k{key}": [] for key in range(keys)}
    busy: dict[MessageQueue, Message[str]] = {}

    async def consume(inbox: Any) -> None:
        async for message in inbox:
            assert busy.setdefault(message.queue, message) is message, "two readers of one queue"
            try:
                await asyncio.sleep(0)
                key, _, number = message.value.partition(":")
                seen[key].append(int(number))
            finally:
                del busy[message.queue]
            await message.ack()

    async def visit(url: str, queues_done: Callable[[], bool]) -> None:
        while not queues_done():
            async with Client.from_url(url) as client:
                inbox = client.consumer("c", codec=str_codec(), start="first", ordered=True, pull_batch=4)
                async with inbox:
                    await inbox.subscribe("Orders")
                    readers = [asyncio.ensure_future(consume(inbox)) for _ in range(3)]
                    enough = len(seen["k0"]) + chance.randrange(5, 20)
                    for _ in range(150):
                        if queues_done() or len(seen["k0"]) > enough:
                            break
                        await asyncio.sleep(0.02)  # poll
                    for reader in readers:
                        reader.cancel()
                    for outcome in await asyncio.gather(*readers, return_exceptions=True):
                        assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome

    async with EmbeddedBroker() as server:
        async with Client.from_url(server.url) as client:
            await fill(client, "Orders", count, keys)

        def done() -> bool:
            return all(numbers and numbers[-1] == count - 1 for numbers in seen.values())

        await asyncio.gather(*(visit(server.url, done) for _ in range(3)))
        for numbers in seen.values():
            assert sorted(set(numbers)) == list(range(count)), "nothing is lost"
            steps = [after - before for before, after in itertools.pairwise(numbers)]
            assert all(step in (0, 1) for step in steps), "only an unsettled message is redelivered"


@pytest.mark.spec("API-16", "API-17")
async def test_ordered_listener_runs_one_handler_per_queue_and_retries() -> None:
    got: list[tuple[str, int]] = []
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await fill(client, "Orders", 3)
        done = asyncio.Event()

        @client.listener("Orders", group="c", ordered=True, start="first", suspend=0.01)
        async def handle(message: Message[str]) -> Ack | None:
            got.append((message.value, message.attempt))
            if message.attempt == 1 and message.value == "k0:1":
                raise OSError("once")
            if message.value == "k0:2":
                done.set()
            return None

        running = asyncio.ensure_future(client.run())
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert got == [("k0:0", 1), ("k0:1", 1), ("k0:1", 2), ("k0:2", 1)]
