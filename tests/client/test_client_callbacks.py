"""Callbacks of an assignment, more time for a message, statistics of producers and consumers, reasons of dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, ClientError, ConfigError, Message, sync
from saturnmq.admin import Admin
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker
from waiting import elapse, until


async def test_assignment_callbacks_get_the_queues_that_change(caplog: pytest.LogCaptureFixture) -> None:
    events: list[tuple[str, int]] = []

    def options(name: str) -> dict[str, Callable[[list[MessageQueue]], Any]]:
        async def assigned(queues: list[MessageQueue]) -> None:
            assert {queue.topic for queue in queues} == {"T"}
            events.append((f"{name}+", len(queues)))

        def revoked(queues: list[MessageQueue]) -> None:
            events.append((f"{name}-", len(queues)))
            raise ValueError("of the application")

        return {"on_assigned": assigned, "on_revoked": revoked}

    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, Client.from_url(server.url) as other:
        await client.create_topic("T", queues=4)
        async with client.consumer("g", **options("a")) as first:
            await first.subscribe("T")
            assert events == [("a+", 4)]
            async with other.consumer("g", **options("b")) as second:
                await second.subscribe("T")
                await until(lambda: len(first.assigned) == 2 == len(second.assigned))
            await until(lambda: len(first.assigned) == 4)
            await first.unsubscribe("T")
            await first.subscribe("T")
    assert sorted(events[1:3]) == [("a-", 2), ("b+", 2)]
    assert events[3:] == [("b-", 2), ("a+", 2), ("a-", 4), ("a+", 4), ("a-", 4)]
    assert caplog.text.count("callback failed") == 4


async def test_message_settled_while_its_queue_is_revoked_is_committed() -> None:
    held: list[Message[bytes]] = []

    async def revoked(_: list[MessageQueue]) -> None:
        await held[0].ack()

    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        await out.send("T", b"one")
        async with client.consumer("g", start="first", on_revoked=revoked) as inbox:
            await inbox.subscribe("T")
            held.append(await inbox.recv(30))
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            with pytest.raises(TimeoutError):
                await inbox.recv(1)


def test_callbacks_of_the_blocking_client_may_call_the_consumer() -> None:
    positions: list[int] = []
    with SyncEmbeddedBroker() as server, sync.Client.from_url(server.url) as client, client.producer("p") as out:
        out.send("T", b"one")
        inbox = client.consumer("g", on_assigned=lambda queues: positions.append(len(inbox.seek("first", queues))))
        with inbox:
            inbox.subscribe("T")
            assert inbox.recv(30).body == b"one"
            assert inbox.stats.handed_out == 1 and out.stats.messages == 1
    assert positions == [4]
    with pytest.raises(ConfigError, match="on_assigned is str, must be a function of a list of queues"):
        client.consumer("g", on_assigned="x")  # type: ignore[call-overload]


@pytest.mark.parametrize("ordered", [False, True])
async def test_extended_message_is_not_delivered_again_in_time(ordered: bool) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        await client.create_topic("T", queues=1)
        await out.send_many("T", [b"one", b"two"])
        async with client.consumer("g", start="first", ack_timeout=1.0, ordered=ordered) as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            for _ in range(5):
                await elapse(0.8)
                await message.extend()
            await message.extend(3)
            await elapse(2.5)
            assert message.attempt == 1 and inbox.stats.failed_last_hour == 0
            await elapse(1)
            assert inbox.stats.failed_last_hour == 1, "neither settled nor extended"
            for seconds in (0, -1, 86_401, float("nan")):
                with pytest.raises(ClientError, match="must be above 0, at most 86400"):
                    await message.extend(seconds)
            await message.extend(10)


async def test_extension_prolongs_the_handler_of_a_listener() -> None:
    handled: list[tuple[bytes, int]] = []
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        await out.send("T", b"long")

        @client.listener("T", group="g", start="first", time_limit=1.0)
        async def handle(message: Message[bytes]) -> None:
            for _ in range(4):
                await elapse(0.9)
                await message.extend(1)
            handled.append((message.body, message.attempt))

        running = asyncio.create_task(client.run())
        await until(lambda: handled)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert handled == [(b"long", 1)]


async def test_stats_count_what_a_producer_and_a_consumer_do() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        await client.create_topic("T", queues=2)
        await out.send_many("T", [b"one", b"two", b"three"])
        await out.send("T", b"four")
        stats = out.stats
        assert (stats.requests, stats.failed, stats.messages, stats.in_flight) == (2, 0, 4, 0)
        assert stats.request_ms >= 0 and stats is not out.stats
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            await until(lambda: inbox.stats.waiting == 3)
            held = inbox.stats
            assert (held.queues, held.handed_out, held.unsettled_bytes) == (2, 1, 15)
            await message.ack()
            await (await inbox.recv(30)).reject("cannot be booked")
            done = inbox.stats
            assert (done.waiting, done.handed_out, done.failed_last_hour) == (2, 0, 1)
            assert done.received_per_s == 4 / 60 and done.acknowledged_per_s == done.failed_per_s == 1 / 60


async def test_dead_letters_are_listed_with_their_reason_and_sent_again() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        await out.send("T", b"bad")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            assert message.dead_letter_reason is None
            await message.reject("cannot be booked")
        async with Admin(server.url.removeprefix("rmq://")) as admin:
            letters = [letter async for letter in admin.dead_letters.all_of("g")]
            assert [(letter.body, letter.dead_letter_reason) for letter in letters] == [(b"bad", "cannot be booked")]
            resent = await admin.dead_letters.resend("g", letters[0])
            assert resent is not None and resent.done
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            again = await inbox.recv(30)
            assert (again.topic, again.body) == ("T", b"bad")
            await again.ack()
