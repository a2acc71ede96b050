"""Ordered consumption with manual commit: acknowledged messages are held until one commits them or rolls them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from saturnmq import Ack, AlreadySettled, Client, ClientError, ConfigError, Message, str_codec
from saturnmq.client.consumer.running_info import queue_info
from saturnmq.client.consumer.settings import consumer_settings
from saturnmq.protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import EmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
ZERO = MessageQueue("T", "b0", 0)
MANUAL: Any = {"codec": str_codec(), "start": "first", "ordered": True, "auto_commit": False, "suspend": 0.01}


def holds_all(command: Command) -> Command:
    """Grant every lock, as a broker without other lock holders does."""
    return command.reply(body=LockBatchResponse(LockBatchRequest.decode(command.body or b"").mq_set).encode())


def one_queue(c: Any, count: int) -> None:
    """Topic T with one queue of messages "0", "1", ..."""
    c.broker.script[41] = holds_all
    for topic in ("T", "%RETRY%g"):
        c.add(topic, c.route(read=1, write=1))
    for n in range(count):
        c.broker.put("T", 0, b"%d" % n)


async def take(inbox: Any, *values: str, attempt: int = 1) -> list[Any]:
    """Receive these values in order and acknowledge all but the last; returns the messages."""
    messages = []
    for value in values:
        message = await inbox.recv(30)
        assert (message.value, message.attempt) == (value, attempt)
        messages.append(message)
        if value != values[-1]:
            await message.ack()
    return messages


@pytest.mark.spec("PL-12")
async def test_manual_success_holds_and_commit_commits_all_held(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, 4)
        async with client.consumer("g", **MANUAL) as inbox:
            await inbox.subscribe("T")
            third = (await take(inbox, "0", "1", "2"))[-1]
            assert inbox.committed().get(ZERO, 0) == 0, "acknowledged messages are held"
            assert inbox.position() == {ZERO: 3}
            taken = queue_info(next(item for item in inbox.assignments if item.user_queue == ZERO))
            assert (taken.transaction_msg_min_offset, taken.transaction_msg_max_offset) == (0, 2)
            assert taken.transaction_msg_count == 3, "two are held, a reader has one"
            await third.commit()
            assert inbox.committed()[ZERO] == 3
            await third.commit()  # the same verdict again is a no-op
            with pytest.raises(AlreadySettled):
                await third.rollback()
            (fourth,) = await take(inbox, "3")
            await fourth.ack()
            assert inbox.committed()[ZERO] == 3
            await inbox.commit()
            assert inbox.committed()[ZERO] == 4, "the consumer's commit commits what is held"
            await until(lambda: c.broker.offsets[("g", "T", 0)] == 4)
        assert c.broker.sent_back == []


async def test_manual_rollback_puts_back_all_held_and_suspends(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, 4)
        async with client.consumer("g", **{**MANUAL, "suspend": 0.2}) as inbox:
            await inbox.subscribe("T")
            await (await take(inbox, "0"))[-1].commit()
            messages = await take(inbox, "1", "2", "3")
            begin = asyncio.get_running_loop().time()
            await messages[-1].rollback()
            await messages[-1].rollback()
            with pytest.raises(AlreadySettled):
                await messages[-1].ack()
            assert inbox.position() == {ZERO: 1}
            again = await take(inbox, "1", "2", "3")
            assert asyncio.get_running_loop().time() - begin >= 0.2, "the queue is suspended first"
            assert inbox.committed()[ZERO] == 1
            await messages[0].ack()  # of the delivery before: its verdict has no effect
            await again[-1].rollback(timedelta(milliseconds=10))
            await (await take(inbox, "1", "2", "3"))[-1].commit()
            assert inbox.committed()[ZERO] == 4
        assert c.broker.sent_back == []


async def test_manual_retry_repeats_one_message_and_keeps_the_held(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, 2)
        async with client.consumer("g", **MANUAL) as inbox:
            await inbox.subscribe("T")
            await (await take(inbox, "0", "1"))[-1].retry()
            (again,) = await take(inbox, "1", attempt=2)
            assert inbox.committed().get(ZERO, 0) == 0
            await again.commit()
            assert inbox.committed()[ZERO] == 2


async def test_manual_dead_letter_is_not_delivered_again_after_a_rollback() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", codec=str_codec()) as out:
            queues = [(await out.send("T", f"{n}", shard_by=1)).queue for n in range(3)]
        async with client.consumer("g", **MANUAL) as inbox:
            await inbox.subscribe("T")
            await (await take(inbox, "0", "1"))[-1].reject("never")
            assert inbox.committed().get(queues[0], 0) == 0, "the message before it is held"
            await (await take(inbox, "2"))[-1].rollback()
            await (await take(inbox, "0", "2"))[-1].commit()
            assert inbox.committed()[queues[0]] == 3
        async with client.consumer("dead", codec=str_codec(), start="first") as inbox:
            await inbox.subscribe("%DLQ%g")
            assert (await inbox.recv(30)).value == "1"


async def test_held_messages_are_delivered_again_after_a_stop(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, 3)
        for _ in range(2):
            async with client.consumer("g", **MANUAL) as inbox:
                await inbox.subscribe("T")
                await (await take(inbox, "0", "1"))[-1].ack()
        assert c.broker.offsets.get(("g", "T", 0), 0) == 0


def test_full_queue_of_held_messages_is_logged(run: Run, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c, 5)
            async with client.consumer("g", prefetch=2, **MANUAL) as inbox:
                await inbox.subscribe("T")
                await (await take(inbox, "0", "1"))[-1].ack()
                (text,) = [r.getMessage() for r in caplog.records if r.message.startswith("queue waits for a commit")]
                assert "group=g" in text and "queue_id=0" in text and "uncommitted=2 prefetch=2" in text
                await inbox.commit()
                assert (await take(inbox, "2"))[-1].offset == 2

    with caplog.at_level(logging.WARNING):
        run(work)


@pytest.mark.spec("OR-07")
@pytest.mark.parametrize("verdict", ["ack", "commit", "rollback"])
def test_auto_commit_takes_success_commit_and_rollback_as_success(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture, verdict: str
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c, 2)
            async with client.consumer("g", **{**MANUAL, "auto_commit": True}) as inbox:
                await inbox.subscribe("T")
                (first,) = await take(inbox, "0")
                await getattr(first, verdict)()
                await getattr(first, verdict)()
                assert inbox.committed()[ZERO] == 1
                await take(inbox, "1")

    with caplog.at_level(logging.WARNING):
        run(work)
    warned = [r.getMessage() for r in caplog.records if r.message.startswith("verdict counts as an acknowledgement")]
    assert len(warned) == (verdict != "ack")
    assert all(f"verdict={verdict}" in text and "auto_commit=False" in text for text in warned)


async def test_commit_and_rollback_need_an_ordered_consumer(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, 1)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            for call in (message.commit, message.rollback):
                with pytest.raises(ClientError, match=r"ordered=True, auto_commit=False"):
                    await call()
            await message.ack()


@pytest.mark.parametrize("options", [{}, {"ordered": False}])
def test_manual_commit_of_a_concurrent_consumer_is_rejected(options: Any) -> None:
    with pytest.raises(ConfigError, match="auto_commit is False, which needs ordered=True"):
        consumer_settings("g", {"auto_commit": False, **options}, None)
    with pytest.raises(ConfigError, match="auto_commit is 0, must be True or False"):
        consumer_settings("g", {"auto_commit": 0, "ordered": True}, None)
    consumer_settings("g", {"auto_commit": False, "ordered": True}, None)


async def test_listener_commits_and_rolls_back_by_its_result(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c, 4)
        calls: list[str] = []
        results = [None, Ack.ROLLBACK, Ack.SUCCESS, OSError("no"), Ack.SUCCESS, Ack.COMMIT, None]
        expected = ["0", "1", "0", "1", "1", "2", "3"]

        @client.listener("T", group="g", **{**MANUAL, "codec": None})
        async def handle(message: Message[str]) -> Ack | None:
            calls.append(message.value)
            result = results[len(calls) - 1]
            if isinstance(result, Exception):
                raise result
            return result

        running = asyncio.ensure_future(client.run())
        await until(lambda: len(calls) == len(expected), why=lambda: calls)
        assert calls == expected
        await until(lambda: client._core.consumers["g"].offsets.cached(ZERO) == 3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets[("g", "T", 0)] == 3, "the last message is held and not committed"


def test_concurrent_listener_that_returns_commit_is_sent_back(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c, 1)

            @client.listener("T", group="g", start="first")
            async def handle(message: Message[str]) -> Ack:
                return Ack.ROLLBACK

            running = asyncio.ensure_future(client.run())
            await until(lambda: len(c.broker.sent_back) == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(work)
    assert [r for r in caplog.records if r.message.startswith("handler returned no Ack")]
