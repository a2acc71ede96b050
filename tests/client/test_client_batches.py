"""Batches: what is received together, the index of the last good message, and listeners that take batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from saturnmq import Ack, Batch, Client, ConfigError, Message, Retry, json_codec
from saturnmq.protocol.bodies import MessageQueue
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
ZERO = MessageQueue("T", "b0", 0)


@dataclass
class Order:
    number: int


def orders(c: Any, count: int) -> None:
    """Topic T with one queue of `count` orders."""
    for topic in ("T", "%RETRY%g"):
        c.add(topic, c.route(read=1, write=1))
    for n in range(count):
        c.broker.put("T", 0, b'{"number":%d}' % n, f"UNIQ_KEY\x01U{n}")


def sent_back(c: Any) -> list[tuple[str, str]]:
    """Message id and delay level of each message that was sent back."""
    return [(command.ext["originMsgId"], command.ext["delayLevel"]) for command in c.broker.sent_back]


@pytest.mark.spec("CC-05")
@pytest.mark.parametrize(
    ("index", "good"), [(None, 5), (2, 3), (0, 1), (-1, 0), (4, 5), (99, 5), (-7, 0)], ids=lambda value: str(value)
)
async def test_batch_ack_sends_back_what_is_behind_its_ack_index(cluster: Any, index: Any, good: int) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        orders(c, 5)
        async with client.consumer("g", start="first", codec=json_codec(Order)) as inbox:
            await inbox.subscribe("T")
            batches = inbox.batches(5, wait=1)
            batch = await anext(batches)
            await batches.aclose()
            assert [message.value.number for message in batch] == [0, 1, 2, 3, 4] and batch.ack_index == 4
            if index is not None:
                batch.ack_index = index
            assert batch.ack_index == good - 1
            await batch.ack(timedelta(seconds=5))
            await batch.ack(timedelta(seconds=5))  # the same verdicts again are a no-op
            assert sent_back(c) == [(f"U{n}", "2") for n in range(good, 5)]
            assert inbox.committed()[ZERO] == 5, "the broker has copies of what was sent back"


async def test_batch_leaves_messages_alone_that_are_settled(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        orders(c, 4)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            batches = inbox.batches(2, wait=1)
            first, second = await anext(batches), await anext(batches)
            await batches.aclose()
            await first[0].reject()
            await first.ack()
            await second[1].ack()
            await second.retry(reason="busy")
            assert sent_back(c) == [("U0", "-1"), ("U2", "0")]
            assert inbox.committed()[ZERO] == 4


def test_batch_index_must_be_an_integer() -> None:
    with pytest.raises(TypeError):
        Batch[bytes]().ack_index = "1"  # type: ignore[assignment]
    assert Batch[bytes]().ack_index == -1


async def consumed(c: Any, client: Client, count: int) -> None:
    """Run the client's listeners until offset `count` of T is committed."""
    running = asyncio.ensure_future(client.run())
    await until(lambda: "g" in client._core.consumers)
    await until(lambda: client._core.consumers["g"].offsets.cached(ZERO) == count)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert c.broker.offsets[("g", "T", 0)] == count


@pytest.mark.spec("CC-03", "PRC-12", "CC-05")
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "function"])
async def test_listener_acks_up_to_the_index_and_sends_back_the_rest(cluster: Any, plain: bool) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        orders(c, 12)
        seen: list[list[int]] = []

        def store(batch: Batch[Order]) -> Ack | None:
            numbers = [message.value.number for message in batch]
            seen.append(numbers)
            if numbers[0] == 0:
                return None  # all are good
            batch.ack_index = numbers.index(5)
            return Ack.SUCCESS if numbers[0] == 4 else Ack.RETRY

        async def store_later(batch: Batch[Order]) -> Ack | None:
            return store(batch)

        options: Any = {"batch": 4, "concurrency": 1, "retry": Retry(after=timedelta(seconds=10))}
        client.listener("T", group="g", start="first", **options)(store if plain else store_later)
        numbers_error = [f"U{n}" for n in range(8, 12)]  # index(5) raises
        await consumed(c, client, 12)
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert sent_back(c) == [(name, "3") for name in ["U6", "U7", *numbers_error]]


@pytest.mark.spec("CC-03")
@pytest.mark.parametrize(
    ("result", "level"), [(Ack.RETRY, "0"), (Ack.REJECT, "-1"), (Ack.COMMIT, "0"), ("text", "0")], ids=str
)
def test_listener_verdict_on_a_batch_counts_for_all_its_messages(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture, result: Any, level: str
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            orders(c, 3)

            @client.listener("T", group="g", start="first", batch=3, concurrency=1)
            async def handle(batch: list[Message[Order]]) -> Any:
                assert isinstance(batch[0].value, Order)
                batch.ack_index = 1  # type: ignore[attr-defined]
                await batch[0].ack()
                return result

            await consumed(c, client, 3)
            assert sent_back(c) == [("U1", level), ("U2", level)], "the first one was settled by the handler"

    run(work)
    warned = [r for r in caplog.records if r.message.startswith("handler returned no Ack")]
    assert len(warned) == (result in (Ack.COMMIT, "text"))


async def test_undecodable_message_does_not_fail_the_others_of_its_batch(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        orders(c, 2)
        c.broker.put("T", 0, b"not json", "UNIQ_KEY\x01U2")
        seen: list[int] = []

        @client.listener("T", group="g", start="first", batch=8, concurrency=1)
        async def handle(batch: Batch[Order]) -> None:
            seen.extend(message.value.number for message in batch)

        await consumed(c, client, 3)
        assert seen == [0, 1] and sent_back(c) == [("U2", "0")]


@pytest.mark.spec("CC-01")
def test_listener_batch_is_1_to_1024_messages_of_a_concurrent_consumer() -> None:
    client = Client(name_servers="h:1")

    async def handle(batch: Batch[bytes]) -> None: ...
    async def single(message: Message[bytes]) -> None: ...
    async def values(batch: bytes) -> None: ...

    for batch in (1, 1024):
        client.listener("T", group="g", batch=batch)(handle)
    for wrong in (0, 1025, 1.5, True):
        with pytest.raises(ConfigError, match=r"batch is .*, must be 1\.\.1024 or None"):
            client.listener("T", group="g", batch=wrong)(handle)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch is 2, which needs ordered=False"):
        client.listener("T", group="g", batch=2, ordered=True)(handle)
    with pytest.raises(ConfigError, match=r"parameter 'message' is a Message, must be Batch\[\.\.\.\]"):
        client.listener("T", group="g", batch=2)(single)
    with pytest.raises(ConfigError, match=r"parameter 'batch' is a Batch, .* batch="):
        client.listener("T", group="g")(handle)
    with pytest.raises(ConfigError, match=r"parameter 'batch' is a bytes, must be Batch\[bytes\]"):
        client.listener("T", group="g", batch=2)(values)
    assert [spec.consumer_options["prefetch"] for spec in client._listeners] == [256, 2048], "two full batches"
