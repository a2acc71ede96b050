"""What each AckPolicy of FastStream does to a message, against an embedded broker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, StopConsume
from faststreamtransport import EMBEDDED, Transport, transport_of

from harness.gate.coroutines import Entered
from saturnmq.faststream import RocketMessage
from saturnmq.faststream.annotations import RocketBatchMessage
from saturnmq.protocol.codes import SysFlag
from waiting import until

ACKED, RETRIED, DEAD, UNSETTLED = "acked", "retried", "dead letter", "unsettled"
REDELIVERY_S = 60.0  # virtual: longer than the first delay of a redelivery, shorter than ack_timeout


@pytest.fixture
def transport() -> Entered:
    return Entered(transport_of(EMBEDDED))


async def outcomes_of(transport: Transport, attempts: dict[str, list[int]], broker: Any) -> dict[str, str]:
    """How the one message of each group was settled; a group has a topic of its name, and the attempts that its handler saw."""
    await until(lambda: all(attempts[name] for name in attempts))
    await asyncio.sleep(REDELIVERY_S)  # poll: virtual time
    outcomes = {
        ((1,), 0, 0): ACKED,
        ((1, 2), 0, 0): RETRIED,
        ((1,), 1, 0): DEAD,
        ((1,), 0, 1): UNSETTLED,
    }
    results = {}
    for subscriber in broker.subscribers:
        group = subscriber.spec.group
        lag = sum((await subscriber.consumer.lag()).values())
        results[group] = outcomes[tuple(attempts[group]), len(await transport.stored(f"%DLQ%{group}")), lag]
    return results


@pytest.mark.spec("INT-02")
@pytest.mark.parametrize(
    ("error", "outcomes"),
    [
        # in the order of AckPolicy: ACK_FIRST, ACK, REJECT_ON_ERROR, NACK_ON_ERROR, MANUAL
        (None, (ACKED, ACKED, ACKED, ACKED, UNSETTLED)),
        (ValueError("x"), (ACKED, ACKED, DEAD, RETRIED, UNSETTLED)),
        (NackMessage(after=timedelta(seconds=1)), (ACKED, RETRIED, RETRIED, RETRIED, UNSETTLED)),
        (RejectMessage(reason="spoiled"), (ACKED, DEAD, DEAD, DEAD, UNSETTLED)),
        (AckMessage(), (ACKED, ACKED, ACKED, ACKED, UNSETTLED)),
        (asyncio.CancelledError(), (ACKED, UNSETTLED, UNSETTLED, UNSETTLED, UNSETTLED)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_policy_decides_how_a_message_is_settled(
    transport: Transport, error: BaseException | None, outcomes: tuple[str, ...]
) -> None:
    broker, attempts = transport.broker(), {policy.value: [] for policy in AckPolicy}
    for policy in AckPolicy:

        @broker.subscriber(policy.value, group=policy.value, ack_policy=policy, start="first")
        async def handle(body: str, message: RocketMessage) -> None:
            seen = attempts[message.raw_message.topic]
            seen.append(message.raw_message.attempt)
            if error is not None and len(seen) == 1:
                raise error

    async with transport.run(broker):
        for name in attempts:
            await broker.publish("x", name)
        results = await outcomes_of(transport, attempts, broker)
    assert results == dict(zip(attempts, outcomes, strict=True))


async def test_what_a_handler_settles_stays_settled(transport: Transport) -> None:
    calls: dict[str, Any] = {
        ACKED: lambda message: message.ack(),
        RETRIED: lambda message: message.nack(after=timedelta(seconds=1), reason="busy"),
        DEAD: lambda message: message.reject("spoiled"),
    }
    broker, attempts, expected = transport.broker(), {}, {}

    def subscribe(outcome: str, policy: AckPolicy, batch: int | None) -> None:
        name = f"{outcome.replace(' ', '-')}-{policy.value}-{batch}"
        attempts[name], expected[name] = [], outcome

        @broker.subscriber(name, group=name, batch=batch, ack_policy=policy, start="first")
        async def handle(body: Any) -> None:
            message = broker.context.get_local("message")
            attempts[name].append((message.raw_message[0] if batch else message.raw_message).attempt)
            await (calls[outcome](message) if len(attempts[name]) == 1 else message.ack())
            await message.reject()  # without effect
            raise ValueError("without effect")

    for outcome in calls:
        for policy in (AckPolicy.MANUAL, AckPolicy.REJECT_ON_ERROR):
            for batch in (None, 8):
                subscribe(outcome, policy, batch)
    async with transport.run(broker):
        for name in attempts:
            await broker.publish("x", name)
        assert await outcomes_of(transport, attempts, broker) == expected


async def test_batch_acknowledges_up_to_its_index(transport: Transport) -> None:
    broker, batches = transport.broker(), []

    @broker.subscriber("T", group="g", batch=8, start="first")
    async def handle(bodies: list[int], message: RocketBatchMessage) -> None:
        batches.append(bodies)
        if len(bodies) == 4:
            message.raw_message.ack_index = 1

    async with transport.run(broker):
        await broker.publish_batch(1, 2, 3, 4, topic="T", shard_by="k")
        await until(lambda: sum(map(len, batches)) == 6)
    assert batches[0] == [1, 2, 3, 4] and sorted(body for batch in batches[1:] for body in batch) == [3, 4]


async def test_message_is_a_dead_letter_after_max_times(transport: Transport) -> None:
    broker, attempts = transport.broker(), []

    @broker.subscriber("T", group="g", max_times=1, start="first")
    async def handle(body: str, message: RocketMessage) -> None:
        attempts.append(message.raw_message.attempt)
        raise ValueError(body)

    async with transport.run(broker):
        await broker.publish("x", "T")
        await until(lambda: len(attempts) == 2)
        assert [await transport.stored("%DLQ%g") for _ in range(2)][1] == [b"x"]


@pytest.mark.parametrize("batch", [None, 8])
async def test_message_with_a_damaged_body_becomes_a_dead_letter(transport: Transport, batch: int | None) -> None:
    broker, bodies = transport.broker(), []

    @broker.subscriber("T", group="g", batch=batch, max_times=1, start="first")
    async def handle(body: Any) -> None:
        bodies.append(body[0] if batch else body)

    async with transport.run(broker):
        out = broker.config.producer.out
        damaged = out._prepare("T", b"not zlib", None, (), None, 0, True)
        damaged.sys_flag |= SysFlag.COMPRESSED
        await out.send_prepared(damaged)
        await broker.publish("good", "T")
        await asyncio.sleep(REDELIVERY_S)  # poll: virtual time
        assert await transport.stored("%DLQ%g") == [b"not zlib"]
    assert bodies == ["good"]


@pytest.mark.parametrize("policy", [policy for policy in AckPolicy if policy is not AckPolicy.ACK_FIRST])
async def test_handler_cancelled_by_a_stop_gets_its_message_again(transport: Transport, policy: AckPolicy) -> None:
    broker, attempts = transport.broker(graceful_timeout=0.5, ack_policy=policy), []

    @broker.subscriber("T", group="g", start="first")
    async def handle(body: str, message: RocketMessage) -> None:
        attempts.append(message.raw_message.attempt)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        await message.ack()

    async with transport.run(broker):
        await broker.publish("x", "T")
        await until(lambda: attempts)
    assert attempts == [1]
    async with transport.run(broker):  # a stopped broker can be started again
        await until(lambda: len(attempts) == 2)
    assert attempts == [1, 1] and await transport.stored("%DLQ%g") == []


async def test_running_handler_finishes_before_the_broker_stops(transport: Transport) -> None:
    broker, events = transport.broker(graceful_timeout=30.0), []

    @broker.subscriber("T", group="g", start="first")
    async def handle(body: str) -> None:
        events.append("began")
        await asyncio.sleep(5)  # poll: virtual time
        events.append("ended")

    async with transport.run(broker):
        await broker.publish("x", "T")
        await until(lambda: events)
    assert events == ["began", "ended"]
    async with transport.run(broker):
        await asyncio.sleep(REDELIVERY_S)  # poll: virtual time
    assert events == ["began", "ended"]


@pytest.mark.parametrize("batch", [None, 1])
async def test_worker_survives_a_handler_that_was_cancelled_from_inside(
    transport: Transport, batch: int | None
) -> None:
    broker, bodies = transport.broker(), []

    @broker.subscriber("T", group="g", batch=batch, start="first", ack_timeout=30.0)
    async def handle(body: Any) -> None:
        bodies.append(body)
        if len(bodies) == 1:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async with transport.run(broker):
        await broker.publish("a", "T", shard_by="k")
        await broker.publish("b", "T", shard_by="k")
        await until(lambda: len(bodies) == 3, within_s=120)
    flat = [body[0] if batch else body for body in bodies]
    assert flat == ["a", "b", "a"]  # the first one again, after ack_timeout


async def test_stop_consume_ends_the_subscriber_and_no_other(transport: Transport) -> None:
    broker, bodies = transport.broker(ack_policy=AckPolicy.ACK, graceful_timeout=3000.0), []

    @broker.subscriber("T", group="g", start="first", max_workers=3)
    async def handle(body: int) -> None:
        bodies.append(body)
        raise StopConsume

    @broker.subscriber("U", group="u", start="first")
    async def other(body: str) -> None:
        bodies.append(body)

    async with transport.run(broker):
        await broker.publish(1, "T")
        await until(lambda: bodies)
        await asyncio.sleep(1)  # poll: virtual time, the subscriber leaves its group
        await broker.publish(2, "T")
        await broker.publish("x", "U")
        await until(lambda: "x" in bodies)
        await asyncio.sleep(REDELIVERY_S)  # poll: virtual time
    assert bodies == [1, "x"]
