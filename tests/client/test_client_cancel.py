"""Every public coroutine is cancelled at every await: the client still works, no task is left, no message is lost (API-24)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

import saturnmq.sync
from saturnmq import (
    Batch,
    Client,
    Consumer,
    Message,
    MessageQueue,
    Outgoing,
    Producer,
    Puller,
    SendFailed,
    SendStatus,
    TransactionState,
    bytes_codec,
)
from saturnmq.client.connection.in_flight import InFlightLimit
from saturnmq.client.consumer.inbox import Inbox
from saturnmq.client.producer import attempts
from saturnmq.protocol.bodies import LockBatchRequest, LockBatchResponse
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Message as Record

Run = Callable[[Callable[[], Any]], Any]
QUEUE = MessageQueue("T", "b0", 0)
STEPS_MAX = 200
STEPS_WAITING = 60  # until a call waits for its timeout, which no event-loop iteration brings


class World:
    """A scripted cluster and one object of each kind that a Client creates, new for each cancellation."""

    def __init__(self, cluster: Any, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.producer = client.producer("p", check=lambda message: TransactionState.UNKNOWN)
        self.consumer = client.consumer("g", start="first")
        self.puller = client.puller()


CALLS: dict[str, Callable[[World], Coroutine[Any, Any, Any]]] = {
    "producer.start": lambda w: w.client.producer("other").start(),
    "producer.stop": lambda w: w.producer.stop(),
    "producer.send": lambda w: w.producer.send("T", b"x"),
    "producer.send sharded": lambda w: w.producer.send("T", b"x", shard_by="k"),
    "producer.send shared": lambda w: send_shared(w),
    "producer.send_soon": lambda w: send_soon(w),
    "producer.send_oneway": lambda w: w.producer.send_oneway("T", b"x"),
    "producer.send_many_oneway": lambda w: w.producer.send_many_oneway("T", [b"a", Outgoing(value=b"b", topic="U")]),
    "producer.send_many": lambda w: w.producer.send_many("T", [b"a", Outgoing(value=b"b", topic="U")]),
    "producer.queues": lambda w: w.producer.queues("T"),
    "producer.request": lambda w: w.producer.request("T", b"x", timeout=0.02),
    "producer.reply": lambda w: reply_of(w),
    "producer.transaction": lambda w: transaction_of(w),
    "consumer.start": lambda w: w.client.consumer("other").start(),
    "consumer.stop": lambda w: w.consumer.stop(),
    "consumer.subscribe": lambda w: w.consumer.subscribe("U"),
    "consumer.unsubscribe": lambda w: w.consumer.unsubscribe("T"),
    "consumer.recv": lambda w: w.consumer.recv(),
    "consumer.recv timeout": lambda w: w.consumer.recv(30),
    "consumer.anext": lambda w: anext_of(w),
    "consumer.batches": lambda w: batch_of(w),
    "consumer.commit": lambda w: w.consumer.commit(),
    "consumer.assign": lambda w: assign_of(w),
    "consumer.seek": lambda w: w.consumer.seek(0, QUEUE),
    "consumer.lag": lambda w: w.consumer.lag(),
    "consumer.wait_assigned": lambda w: w.consumer.wait_assigned(),
    "message.ack": lambda w: settle(w, "ack"),
    "message.retry": lambda w: settle(w, "retry"),
    "message.reject": lambda w: settle(w, "reject"),
    "message.extend": lambda w: settle(w, "extend"),
    "message.commit": lambda w: settle_held(w, "commit"),
    "message.rollback": lambda w: settle_held(w, "rollback"),
    "batch.ack": lambda w: settle_batch(w, "ack"),
    "batch.retry": lambda w: settle_batch(w, "retry"),
    "puller.queues": lambda w: w.puller.queues("T"),
    "puller.refresh": lambda w: w.puller.refresh("T"),
    "puller.min_offset": lambda w: w.puller.min_offset(QUEUE),
    "puller.max_offset": lambda w: w.puller.max_offset(QUEUE),
    "puller.offset_by_time": lambda w: w.puller.offset_by_time(QUEUE, 1),
    "puller.earliest_store_time": lambda w: w.puller.earliest_store_time(QUEUE),
    "puller.committed": lambda w: w.puller.committed("g2", QUEUE),
    "puller.commit": lambda w: w.puller.commit("g2", QUEUE, 1),
    "puller.watch": lambda w: watch_of(w),
    "puller.pull": lambda w: w.puller.pull(QUEUE, 0),
    "puller.pull waiting": lambda w: w.puller.pull(QUEUE, 4, wait=0.05),
    "client.topic_exists": lambda w: w.client.topic_exists("T"),
    "client.create_topic": lambda w: w.client.create_topic("NEW"),
    "client.view_message": lambda w: w.client.view_message("F" * 32, "T"),
    "client.query_trace": lambda w: w.client.query_trace("k", topic="T"),
    "client.query_messages": lambda w: w.client.query_messages("T", "k"),
}


async def send_shared(world: World) -> Any:
    return await asyncio.gather(*(world.producer.send("T", b"%d" % n) for n in range(10)))


async def send_soon(world: World) -> Any:
    return await (await world.producer.send_soon("T", b"x", shard_by="k"))


async def reply_of(world: World) -> Any:
    world.cluster.add("c_REPLY_TOPIC")
    record = Record("T", b"x", b"CLUSTER\x01c\x02REPLY_TO_CLIENT\x01other\x02CORRELATION_ID\x011")
    return await world.producer.reply(Message(record, QUEUE, bytes_codec()), b"answer")


async def transaction_of(world: World) -> Any:
    async with world.producer.transaction("T", b"x", queue=QUEUE):
        await asyncio.sleep(0)


async def assign_of(world: World) -> None:
    async with world.client.consumer("other") as inbox:
        await inbox.assign([QUEUE])


async def anext_of(world: World) -> Any:
    return await anext(world.consumer)


async def batch_of(world: World) -> Any:
    source = world.consumer.batches(3, wait=0.05)
    try:
        return await anext(source)
    finally:
        await source.aclose()


async def watch_of(world: World) -> Any:
    source = world.puller.watch("T")
    try:
        return await anext(source)
    finally:
        await source.aclose()


async def settle(world: World, how: str) -> None:
    await getattr(await world.consumer.recv(), how)()


async def settle_batch(world: World, how: str) -> None:
    source = world.consumer.batches(3, wait=0.05)
    batch = await anext(source)
    await source.aclose()
    batch.ack_index = 0
    await getattr(batch, how)()


async def settle_held(world: World, how: str) -> None:
    """Settle the second message of an ordered queue that holds the first one."""
    world.cluster.broker.script[RequestCode.LOCK_BATCH_MQ] = lambda command: command.reply(
        body=LockBatchResponse(LockBatchRequest.decode(command.body).mq_set).encode()
    )
    async with world.client.consumer("manual", start="first", ordered=True, auto_commit=False) as inbox:
        await inbox.subscribe("T")
        await (await inbox.recv()).ack()
        await getattr(await inbox.recv(), how)()


async def step_and_cancel(work: Coroutine[Any, Any, Any], steps: int) -> bool:
    """Run the task for `steps` event-loop iterations, then cancel it. True if it had finished before."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            await asyncio.gather(task, return_exceptions=True)
            return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


async def still_works(world: World, name: str) -> None:
    """Send, and receive every message that was not settled."""
    client = world.client
    async with AsyncExitStack() as stack:
        out = world.producer if name != "producer.stop" else await stack.enter_async_context(client.producer("p2"))
        receipt = await out.send("T", b"after", queue=QUEUE)
        assert receipt.status is SendStatus.SEND_OK
        inbox = world.consumer
        if name == "consumer.stop":
            await inbox.stop()
            inbox = await stack.enter_async_context(client.consumer("g", start="first"))
        await inbox.subscribe("T")
        committed = world.cluster.broker.offsets.get(("g", "T", 0), 0)
        wanted = set(range(committed, receipt.offset + 1)) - world.settled(inbox)  # type: ignore[attr-defined]
        got: set[int] = set()
        async with asyncio.timeout(30):
            while not wanted <= got:
                message = await inbox.recv()
                await message.ack()
                if message.queue == QUEUE:
                    got.add(message.offset)


def settled(world: World, inbox: Any) -> set[int]:
    """Offsets of QUEUE that the cancelled call itself has finally handed out: those that it settled."""
    done: set[int] = set()
    for assignment in inbox._assigned.values():
        if assignment.user_queue == QUEUE:
            generation = assignment.generation
            done |= set(generation.verdicts) | set(generation.delivered)
            done |= set(range(generation.process_queue.commit_offset))
    return done


@pytest.mark.spec("API-24", "API-25")
@pytest.mark.parametrize("name", CALLS)
async def test_public_coroutine_survives_cancellation_at_every_await(cluster: Any, name: str) -> None:
    async def one(steps: int) -> bool:
        async with cluster() as c:
            for topic in ("U", "TBW102"):
                c.add(topic)
            for n in range(4):
                c.broker.put("T", 0, b"%d" % n)
            problems: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
            async with Client(name_servers=c.name_servers) as client:
                world = World(c, client)
                world.settled = lambda inbox: settled(world, inbox)  # type: ignore[attr-defined]
                async with world.producer, world.consumer:
                    await world.consumer.subscribe("T")
                    await world.consumer.wait_assigned()
                    done = await step_and_cancel(CALLS[name](world), steps)
                    await still_works(world, name)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        left = [task for task in left if "bounded" not in repr(task)]
        if left:
            await asyncio.wait(left, timeout=30)  # tasks of the scripted servers
        assert not [task for task in left if not task.done()]
        assert not problems
        return done

    waits = name in ("producer.request", "puller.pull waiting")
    for steps in range(STEPS_WAITING if waits else STEPS_MAX):
        if await one(steps):
            return
    assert waits, f"not done after {STEPS_MAX} steps"


def is_coroutine(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


@pytest.mark.spec("API-24")
def test_every_public_coroutine_is_cancelled() -> None:
    tested = {call.partition(" ")[0] for call in CALLS} | {"client.start", "client.stop"}
    tested |= {"client.run"}  # test_run_cancelled_twice_cancels_handlers_and_leaves_the_group
    public = {
        f"{kind.__name__.lower()}.{name}"
        for kind in (Client, Producer, Consumer, Puller, Message, Batch)
        for name in vars(getattr(saturnmq.sync, kind.__name__))
        if not name.startswith("_") and is_coroutine(getattr(kind, name, None))
    }
    assert len(public) > 30
    assert public - tested == set()


@pytest.mark.spec("API-24")
@pytest.mark.parametrize("name", ["start", "stop"])
async def test_client_start_and_stop_survive_cancellation_at_every_await(cluster: Any, name: str) -> None:
    for steps in range(20):
        async with cluster() as c:
            client = Client(name_servers=c.name_servers)
            if name == "stop":
                await client.start()
                async with client.producer("p") as out:
                    await out.send("T", b"x")
            done = await step_and_cancel(getattr(client, name)(), steps)
            await client.stop()
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("saturnmq ")]
            if done:
                return


@pytest.mark.spec("API-24", "API-15")
async def test_cancelled_reader_leaves_its_message_to_other_readers() -> None:
    inbox: Inbox[int] = Inbox(lambda _: True)
    first, second = asyncio.ensure_future(inbox.receive()), asyncio.ensure_future(inbox.receive())
    await asyncio.sleep(0)
    inbox.put([1])
    first.cancel()  # woken for this message in the same event-loop iteration
    assert await second == 1
    assert first.cancelled() and len(inbox) == 0
    third, fourth = asyncio.ensure_future(inbox.receive()), asyncio.ensure_future(inbox.receive())
    await asyncio.sleep(0)
    third.cancel()
    inbox.put([4])  # before the cancelled reader runs
    assert await fourth == 4
    fifth = asyncio.ensure_future(inbox.receive())
    await asyncio.sleep(0)
    fifth.cancel()
    await asyncio.gather(fifth, return_exceptions=True)
    assert not inbox._readers, "nothing is left of a cancelled reader"
    inbox.put([2, 3])
    inbox.prepend([1])
    assert [await inbox.receive() for _ in range(3)] == [1, 2, 3]


@pytest.mark.spec("API-22")
async def test_in_flight_limit_counts_bytes_and_keeps_the_order() -> None:
    limit = InFlightLimit(9, 100)
    assert limit.try_acquire(60) and limit.try_acquire(40)
    assert not limit.try_acquire(1), "the bytes are used up"
    limit.release(40)
    waiting = asyncio.ensure_future(limit.acquire(41))
    await asyncio.sleep(0)
    assert not limit.try_acquire(40), "it fits, but another entry waits"
    limit.release(60)
    await waiting
    large, small = asyncio.ensure_future(limit.acquire(60)), asyncio.ensure_future(limit.acquire(59))
    await asyncio.sleep(0)
    large.cancel()
    await small  # a cancelled waiter frees its place
    limit.release(41)
    limit.release(59)
    assert limit.try_acquire(101) and not limit.try_acquire(0), "one alone may be larger than the limit"


@pytest.mark.spec("API-22")
@pytest.mark.parametrize("options", [{}, {"delay_level": 1}], ids=["batched", "alone"])
async def test_in_flight_bytes_are_those_of_the_bodies_of_a_producer(
    options: dict[str, Any], cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "IN_FLIGHT_BYTES", 100)
    answered = asyncio.Event()

    async def held(command: Command) -> Command:
        await answered.wait()
        return c.broker.on_310(command)  # type: ignore[no-any-return]

    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.broker.script[310] = held
        sends = [asyncio.ensure_future(out.send("T", bytes(size), **options)) for size in (60, 30, 20, 40)]
        await c.broker.wait_for(310, 2)
        assert (out.stats.in_flight, out.stats.in_flight_bytes) == (2, 90)
        with pytest.raises(SendFailed, match="too many messages were in flight"):
            await out.send("T", b"late", timeout=0.05, **options)
        assert len(c.broker.of(310)) == 2, "a waiter takes no more than there is"
        answered.set()
        await asyncio.gather(*sends)
        assert (out.stats.in_flight, out.stats.in_flight_bytes) == (0, 0)


@pytest.mark.spec("API-22", "API-24")
def test_in_flight_limit_passes_a_cancelled_slot_to_the_next_waiter(run: Run) -> None:
    async def work() -> None:
        limit = InFlightLimit(1, 100)
        assert limit.try_acquire(500), "one alone may be larger than the limit"
        assert not limit.try_acquire(1)
        waiters: list[asyncio.Future[Any]] = [asyncio.ensure_future(acquire(limit)) for _ in range(3)]
        await asyncio.sleep(0)
        limit.release(500)
        waiters[0].cancel()  # admitted and cancelled in the same event-loop iteration
        waiters[1].cancel()
        await asyncio.wait_for(waiters[2], 30)
        assert (limit.count, limit.bytes) == (1, 1)
        limit.release(1)
        assert (limit.count, limit.bytes) == (0, 0)

    async def acquire(limit: InFlightLimit) -> None:
        await limit.acquire(1)

    run(work)


def test_cancellation_list_covers_every_public_coroutine() -> None:
    """New public coroutines must be added to CALLS."""
    import inspect

    from saturnmq import Batch, Consumer, Message, Producer, Puller

    known = {name.split(" ")[0] for name in CALLS} | {"client.start", "client.stop"}
    known |= {
        "client.run",  # covered by the listener tests
        "client.last_words",  # called by saturnmq.sync only
        "producer.send_prepared",  # internal
        "producer.answer",  # `reply` without the codec
        "consumer.persist_offsets",  # internal
        "consumer.recv",
    }
    for kind in (Client, Producer, Consumer, Puller, Message, Batch):
        for name, _member in inspect.getmembers(kind, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                assert f"{kind.__name__.lower()}.{name}" in known
