"""Automatic batches: which sends share a request, their receipts and errors, their order, `send_soon` and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, MessageQueue, Receipt, SaturnError, SendFailed
from saturnmq.client.hooks import SendContext
from saturnmq.client.producer.send_request import CONFIRMATION_FIELD
from saturnmq.errors import LocalProtocolError, ResponseError
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_batch, decode_record
from saturnmq.testing import EmbeddedBroker
from waiting import until

ONE = int(RequestCode.SEND_MESSAGE_V2)
BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
QUEUE = MessageQueue("T", "b0", 1)


def requests(c: Any) -> list[int]:
    """How many messages each send request had, in order; a negative number is one without a batch."""
    counts = {ONE: lambda command: -1, BATCH: lambda command: len(decode_batch(command.body))}
    return [counts[command.code](command) for command in c.broker.requests if command.code in counts]


def bodies(c: Any, queue_id: int) -> list[bytes]:
    """What a queue of topic T holds."""
    return [bytes(decode_record(record).body) for record in c.broker.stored["T", queue_id]]


def refuse(code: ResponseCode) -> Callable[[Command], Command]:
    return lambda command: command.reply(int(code), "refused")


async def test_sends_of_one_iteration_share_a_request_and_keep_receipts(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        receipts = await asyncio.gather(*(out.send("T", b"%d" % n, tag=f"t{n}") for n in range(20)))
        assert requests(c) == [20]
        for number, receipt in enumerate(receipts):
            record = decode_record(c.broker.stored["T", receipt.queue.queue_id][receipt.offset])
            assert bytes(record.body) == b"%d" % number and record.tags == f"t{number}"
            assert record.properties["UNIQ_KEY"] == receipt.message_id
            assert int(receipt.offset_message_id, 16) == record.queue_offset == receipt.offset
        for _ in range(3):
            await out.send("T", b"alone")
        assert requests(c)[1:] == [-1, -1, -1]


async def test_batches_of_an_iteration_grow_and_rotate_over_queues(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        receipts = await asyncio.gather(*(out.send("T", b"x") for _ in range(32 + 64 + 10)))
        assert requests(c) == [32, 64, 10]
        assert len({receipt.queue.queue_id for receipt in receipts}) == 3


async def test_messages_share_a_batch_only_with_equal_options(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        c.add("U")
        await out.send("U", b"x")
        c.broker.requests.clear()
        await asyncio.gather(
            *(out.send("T", b"x") for _ in range(8)),
            *(out.send("U", b"x") for _ in range(9)),
            *(out.send("T", b"x", wait_stored=False) for _ in range(10)),
            *(out.send("T", b"x", timeout=9) for _ in range(11)),
            *(out.send("T", b"x", queue=QUEUE) for _ in range(12)),
        )
        assert sorted(requests(c)) == [8, 9, 10, 11, 12]
        assert [command.ext["i"] for command in c.broker.of(BATCH) if len(decode_batch(command.body)) == 10] == [
            "WAIT\x01false"
        ]


@pytest.mark.parametrize("kind", ["delay", "compressed", "large", "no batches", "hooks", "old code"])
async def test_message_that_cannot_be_part_of_a_batch_goes_alone(cluster: Any, kind: str) -> None:
    class Hook:
        def check(self, context: SendContext) -> None: ...
        def before(self, context: SendContext) -> None: ...
        def after(self, context: SendContext) -> None: ...

    settings: dict[str, Any] = {"compress_from_bytes": 5000} if kind == "compressed" else {}
    settings |= {"smart_send": False} if kind == "old code" else {}
    options: dict[str, Any] = {"no batches": {"batch_bytes": 0}, "hooks": {"hooks": [Hook()]}}.get(kind, {})
    options |= {"batch_bytes": 4000} if kind == "large" else {}
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, **settings) as client,
        client.producer("p", **options) as out,
    ):
        body = b"x" * 6000 if kind in ("compressed", "large") else b"x"
        delay = {"delay_level": 3} if kind == "delay" else {}
        await asyncio.gather(*(out.send("T", body, **delay) for _ in range(10)))  # type: ignore[arg-type]
        assert not c.broker.of(BATCH)
        if kind != "delay":
            futures = [await out.send_soon("T", body, shard_by="k") for _ in range(5)]
            queue = (await futures[0]).queue.queue_id
            assert [(await future).offset for future in futures[1:]] == [
                future.result().offset + 1 for future in futures[:-1]
            ] or kind == "old code", f"in order in queue {queue}"
            assert not c.broker.of(BATCH)


async def test_batch_is_closed_at_its_number_of_bytes(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers) as client,
        client.producer("p", batch_bytes=10_000) as out,
    ):
        await asyncio.gather(*(out.send("T", b"x" * 3000, queue=QUEUE) for _ in range(8)))
        assert requests(c) == [3, 3, 2]
        assert all(len(command.body) <= 10_000 for command in c.broker.of(BATCH))


async def test_linger_collects_sends_of_that_time(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers) as client,
        client.producer("p", linger_ms=50) as out,
    ):
        await out.queues("T")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        sends: list[asyncio.Future[Receipt]] = []
        for number in range(5):
            loop.call_later(0.008 * number, lambda: sends.append(asyncio.ensure_future(out.send("T", b"x"))))
        await until(lambda: len(sends) == 5)
        await asyncio.gather(*sends)
        assert requests(c) == [5]
        assert 0.05 <= loop.time() - begin < 0.2


async def test_refused_batch_yields_the_error_of_each_message(cluster: Any) -> None:
    def store(command: Command) -> Command:
        if command.body == b"bad":
            return command.reply(int(ResponseCode.MESSAGE_ILLEGAL), "refused")
        return c.broker.on_310(command)  # type: ignore[no-any-return]

    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        await out.send("T", b"x")
        c.broker.script[BATCH] = refuse(ResponseCode.MESSAGE_ILLEGAL)
        c.broker.script[ONE] = store
        outcomes = await asyncio.gather(
            *(out.send("T", b"bad" if n == 2 else b"%d" % n) for n in range(10)), return_exceptions=True
        )
        assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Receipt)] == [2]
        assert isinstance(outcomes[2], ResponseError) and outcomes[2].code == ResponseCode.MESSAGE_ILLEGAL
        assert len(c.broker.of(BATCH)) == 1


async def test_failed_batch_gives_each_sender_an_error_of_its_own(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, timeout=1) as client, client.producer("p") as out:
        await out.send("T", b"x")
        c.broker.script[ONE] = c.broker.script[BATCH] = lambda command: asyncio.Event().wait()
        outcomes = await asyncio.gather(*(out.send("T", b"%d" % n) for n in range(10)), return_exceptions=True)
        assert all(isinstance(outcome, SendFailed) and outcome.outcome_unknown for outcome in outcomes)
        assert len({id(outcome) for outcome in outcomes}) == 10
        assert len({str(outcome) for outcome in outcomes}) == 1
        assert all(outcome.__cause__ is not None for outcome in outcomes)  # type: ignore[union-attr]
        assert (out._in_flight.count, out._in_flight.bytes) == (0, 0)


@pytest.mark.parametrize("failure", ["busy", "connection lost"])
async def test_messages_of_a_queue_keep_their_order_when_a_request_is_repeated(cluster: Any, failure: str) -> None:
    failed: list[Command] = []

    def flaky(command: Command) -> Any:
        if len(failed) < 6 and len(failed) % 2 == 0:
            failed.append(command)
            if failure == "busy":
                return command.reply(int(ResponseCode.SYSTEM_BUSY), "busy")
            c.broker.connections[-1].abort()
            return asyncio.Event().wait()
        failed.append(command)
        return c.broker.builtin(command)

    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, timeout=60) as client,
        client.producer("p", batch_bytes=400) as out,
    ):
        c.broker.script[ONE] = c.broker.script[BATCH] = flaky
        futures = [await out.send_soon("T", b"%d" % n, queue=QUEUE) for n in range(100)]
        receipts = [await future for future in futures]
        assert bodies(c, 1) == [b"%d" % n for n in range(100)]
        assert [receipt.offset for receipt in receipts] == list(range(100))
        assert len(failed) > 6


async def test_send_does_not_overtake_what_was_accepted_before(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        for _ in range(4):
            await out.send("T", b"few", queue=MessageQueue("T", "b0", 0))
        for number in range(0, 20, 2):
            await out.send_soon("T", b"%d" % number, queue=QUEUE)
            if number % 4:
                await out.send("T", b"%d" % (number + 1), queue=QUEUE)
            else:
                await out.send_soon("T", b"%d" % (number + 1), queue=QUEUE)
        assert bodies(c, 1) == [b"%d" % n for n in range(20)]


async def test_sends_to_a_busy_queue_collect_until_its_answer(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        await out.queues("T")
        answer = asyncio.Event()

        async def late(command: Command) -> Command:
            await answer.wait()
            return c.broker.builtin(command)  # type: ignore[no-any-return]

        c.broker.script[ONE] = late
        futures = [await out.send_soon("T", b"0", queue=QUEUE)]
        await c.broker.wait_for(ONE)
        for number in range(1, 6):
            futures.append(await out.send_soon("T", b"%d" % number, queue=QUEUE))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert requests(c) == [-1]
        answer.set()
        await asyncio.gather(*futures)
        assert requests(c) == [-1, 5] and bodies(c, 1) == [b"%d" % n for n in range(6)]


async def test_send_soon_waits_while_too_many_messages_are_in_flight(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, timeout=5) as client,
        client.producer("p", max_in_flight=3) as out,
    ):
        await out.queues("T")
        answer = asyncio.Event()

        async def late(command: Command) -> Command:
            await answer.wait()
            return c.broker.builtin(command)  # type: ignore[no-any-return]

        c.broker.script[ONE] = c.broker.script[BATCH] = late
        futures = [await out.send_soon("T", b"x") for _ in range(3)]
        fourth = asyncio.ensure_future(out.send_soon("T", b"x"))
        await c.broker.wait_for(BATCH)
        assert not fourth.done()
        answer.set()
        await asyncio.gather(*futures, await fourth)
        answer.clear()
        futures = [await out.send_soon("T", b"x", timeout=60) for _ in range(3)]
        with pytest.raises(SendFailed, match="too many messages were in flight"):
            await out.send_soon("T", b"x", timeout=0.05)
        answer.set()
        await asyncio.gather(*futures)
        assert out._in_flight.count == 0


async def test_cancelled_send_leaves_the_open_batch_and_its_last_sender_the_request(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        await out.queues("T")
        sends = [asyncio.ensure_future(out.send("T", b"%d" % n, queue=QUEUE)) for n in range(4)]
        await asyncio.sleep(0)
        sends[2].cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(outcomes[2], asyncio.CancelledError)
        assert bodies(c, 1) == [b"0", b"1", b"3"]
        c.broker.script[ONE] = c.broker.script[BATCH] = lambda command: asyncio.Event().wait()
        sends = [asyncio.ensure_future(out.send("T", b"%d" % n)) for n in range(10)]
        await c.broker.wait_for(BATCH, 2)
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        began = asyncio.get_running_loop().time()
        await until(lambda: not out._running)
        assert asyncio.get_running_loop().time() - began < 0.5, "cancelled, not timed out"
        assert (out._in_flight.count, out._in_flight.bytes) == (0, 0)


@pytest.mark.parametrize("iterations", range(5))
async def test_cancelled_send_of_few_frees_its_place(cluster: Any, iterations: int) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        await out.queues("T")
        sends = [asyncio.ensure_future(out.send("T", b"%d" % n)) for n in range(4)]
        for _ in range(iterations):
            await asyncio.sleep(0)
        sends[1].cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(outcome, Receipt) for outcome in outcomes] == [True, False, True, True]
        assert not c.broker.of(BATCH)
        assert (out._in_flight.count, out._in_flight.bytes) == (0, 0)


async def test_few_sends_are_requests_of_their_own_and_soon_leave_at_once(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        await out.queues("T")
        for _ in range(4):
            await asyncio.gather(*(out.send("T", b"%d" % n) for n in range(7)))
        assert requests(c) == [-1] * 28
        sends = [asyncio.ensure_future(out.send("T", b"x")) for _ in range(7)]
        await asyncio.sleep(0)
        assert not out._open, "they do not wait for the end of the iteration"
        sends += [asyncio.ensure_future(out.send("T", b"x")) for _ in range(20)]
        await asyncio.gather(*sends)
        assert requests(c)[28:] == [-1] * 7 + [20]


async def test_stop_of_the_producer_waits_for_accepted_messages(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("p", linger_ms=5000) as out:
            futures = [await out.send_soon("T", b"%d" % n, shard_by="k") for n in range(10)]
            futures += [await out.send_soon("T", b"%d" % n) for n in range(10)]
            begin = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begin < 1, "it does not linger"
        assert all(future.done() for future in futures)
        assert sorted(requests(c)) == [10, 10]


async def test_stop_of_the_client_fails_accepted_messages(cluster: Any) -> None:
    async with cluster() as c:
        client = Client(name_servers=c.name_servers, timeout=3600)
        await client.start()
        out = client.producer("p")
        await out.start()
        await out.queues("T")
        c.broker.script[ONE] = c.broker.script[BATCH] = lambda command: asyncio.Event().wait()
        futures = [await out.send_soon("T", b"%d" % n, queue=QUEUE) for n in range(3)]
        await c.broker.wait_for(BATCH)
        futures += [await out.send_soon("T", b"%d" % n, queue=QUEUE) for n in range(3)]
        await asyncio.sleep(0)
        await client.stop()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(outcome, SaturnError) for outcome in outcomes)
        assert all(isinstance(outcome, SendFailed) and outcome.outcome_unknown for outcome in outcomes[:3])
        await asyncio.sleep(0)
        assert not out._running


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"linger_ms": -1}, "linger_ms is -1, must be 0..10000"),
        ({"linger_ms": True}, "linger_ms is True"),
        ({"linger_ms": 10_001}, "linger_ms is 10001"),
        ({"batch_bytes": -1}, "batch_bytes is -1, must be 0..4194304"),
        ({"batch_bytes": 1.5}, "batch_bytes is 1.5"),
    ],
    ids=str,
)
def test_batching_options_have_ranges(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SaturnError, match=text.replace(".", r"\.")):
        Client(name_servers="127.0.0.1:1").producer("p", **options)


async def test_message_that_cannot_be_encoded_is_refused_and_frees_its_place(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        outcomes = await asyncio.gather(
            *(out.send("T", b"x", tag=tag) for tag in [*"abcdefgh", "\ud800"]), return_exceptions=True
        )
        assert isinstance(outcomes[8], LocalProtocolError) and isinstance(outcomes[7], Receipt)
        assert out._in_flight.count == 0


async def test_batches_arrive_whole_at_a_real_broker() -> None:
    async with (
        EmbeddedBroker() as server,
        Client.from_url(server.url, timeout=30) as client,
        client.producer("p") as out,
        client.consumer("g", start="first") as inbox,
    ):
        receipts = await asyncio.gather(*(out.send("T", b"%d" % n, keys=f"k{n}") for n in range(300)))
        futures = [await out.send_soon("T", b"%d" % n, shard_by=f"s{n % 3}") for n in range(300, 600)]
        receipts += [await future for future in futures]
        assert len({(receipt.queue, receipt.offset) for receipt in receipts}) == 600
        assert len({receipt.offset_message_id for receipt in receipts}) == 600
        by_id = {receipt.message_id: (n, receipt) for n, receipt in enumerate(receipts)}
        await inbox.subscribe("T")
        last_of_shard: dict[int, int] = {}
        for _ in range(600):
            message = await inbox.recv(timeout=30)
            number, receipt = by_id.pop(message.message_id)
            assert message.value == b"%d" % number and (message.queue, message.offset) == (
                receipt.queue,
                receipt.offset,
            )
            assert message.offset_message_id == receipt.offset_message_id
            if number >= 300:
                assert last_of_shard.get(number % 3, 0) < number
                last_of_shard[number % 3] = number
            await message.ack()
        assert not by_id
        found = await client.query_messages("T", "k77")
        assert [message.value for message in found] == [b"77"]


@pytest.mark.parametrize("count", [1, 3])
async def test_refused_messages_are_sent_once_alone_and_all_ask_for_confirmation(cluster: Any, count: int) -> None:
    """A message that was alone in its batch is not sent again; those of a larger batch are, one by one, asking the same."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        for code in (ONE, BATCH):
            c.broker.script[code] = refuse(ResponseCode.MESSAGE_ILLEGAL)
        async with client.producer("p", linger_ms=20) as out:
            outcomes = await asyncio.gather(*(out.send("T", b"x") for _ in range(count)), return_exceptions=True)
        assert all(isinstance(outcome, SaturnError) for outcome in outcomes)
        assert requests(c) == ([-1] if count == 1 else [3, -1, -1, -1])
        sends = [command for command in c.broker.requests if command.code in (ONE, BATCH)]
        assert {command.ext.get(CONFIRMATION_FIELD) for command in sends} == {"ask"}
