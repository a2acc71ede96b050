"""Request-reply calls, against a scripted broker and a real one."""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from loglines import own_messages
from saturnmq import Ack, Client, Closed, Message, MessageQueue, MessageRefused, SaturnError, bytes_codec, str_codec
from saturnmq.errors import ReplyTimeout
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import PushReplyMessage
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.message import decode_properties, encode_properties
from saturnmq.testing import EmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]


def push(correlation_id: str, body: bytes = b"answer", sys_flag: int = 0) -> Command:
    properties = encode_properties({"CORRELATION_ID": correlation_id, "PUSH_REPLY_TIME": "5"}).decode()
    header = PushReplyMessage(
        producer_group="r", topic="c_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=sys_flag, born_timestamp=1000, flag=3, properties=properties, born_host="/10.0.0.1:5", store_host="10.0.0.2:6",
        store_timestamp=2000,
    )  # fmt: skip
    return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=header.to_ext(), body=body)


@pytest.mark.spec("RR-01", "RR-05", "API-11")
async def test_request_names_the_client_and_matches_the_reply_by_id(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", codec=str_codec()) as out:
            task = asyncio.create_task(out.request("T", "question", timeout=10, keys="k"))
            (sent,) = await c.broker.wait_for(310)
            # The heartbeat precedes the request.
            assert c.broker.requests.index(c.broker.of(34)[0]) < c.broker.requests.index(sent)
            properties = decode_properties(sent.ext["i"])
            assert properties["REPLY_TO_CLIENT"] == client.client_id and properties["KEYS"] == "k"
            assert properties["TTL"] == "10000", "the timeout, not what is left of it"
            other = await c.broker.connections[0].invoke(push("another request"), 5000)
            assert other.code == 0 and not task.done()
            body = zlib.compress("answer ä".encode())
            answer = await c.broker.connections[0].invoke(push(properties["CORRELATION_ID"], body, 1), 5000)
            assert answer.code == 0
            reply = await task
            assert (reply.value, reply.topic, reply.flag) == ("answer ä", "c_REPLY_TOPIC", 3)
            assert int(reply.properties["ARRIVE_TIME"]) > 0
            again = await c.broker.connections[0].invoke(push(properties["CORRELATION_ID"]), 5000)
            assert again.code == 0 and len(client._core.replies) == 0


@pytest.mark.spec("RR-01")
async def test_request_goes_to_a_given_selected_or_round_robin_queue(cluster: Any) -> None:
    def select(queues: Sequence[MessageQueue], number: int) -> MessageQueue:
        return queues[number]

    choices: list[tuple[dict[str, Any], set[str]]] = [
        ({"queue": MessageQueue("T", "b0", 2)}, {"2"}),
        ({"selector": select, "selector_arg": 3}, {"3"}),
        ({}, {"0", "1", "2", "3"}),
    ]
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        ids = set()
        for number, (options, queues) in enumerate(choices):
            task = asyncio.create_task(out.request("T", b"x", timeout=10, **options))
            sent = (await c.broker.wait_for(310, number + 1))[number]
            correlation_id = decode_properties(sent.ext["i"])["CORRELATION_ID"]
            ids.add(str(uuid.UUID(correlation_id)))
            await c.broker.connections[0].invoke(push(correlation_id), 5000)
            assert (await task).body == b"answer" and sent.ext["e"] in queues
        assert len(ids) == len(choices)


@pytest.mark.spec("RR-05")
def test_unexpected_reply_is_logged_and_acknowledged(run: Run, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
            await out.send("T", b"connects")
            answer = await c.broker.connections[0].invoke(push("unknown-id"), 5000)
            assert answer.code == 0

    run(work)
    (line,) = [record for record in caplog.records if "unknown-id" in record.getMessage()]
    assert line.levelno == logging.WARNING


@pytest.mark.spec("RR-06")
async def test_reply_timeout_and_send_failure_raise_different_errors(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g") as out:
            await out.queues("T")
            began = asyncio.get_running_loop().time()
            with pytest.raises(ReplyTimeout, match="OK, but wait reply message timeout") as caught:
                await out.request("T", b"x", timeout=0.5)
            assert 0.4 < asyncio.get_running_loop().time() - began < 0.8
            assert (caught.value.code, caught.value.retryable) == (10006, True)
            c.broker.script[310] = lambda command: command.reply(13, "the message is illegal")
            with pytest.raises(SaturnError, match="illegal"):
                await out.request("T", b"x", timeout=5)
            assert len(client._core.replies) == 0


@pytest.mark.spec("RR-01")
async def test_request_to_an_unknown_topic_fetches_its_route_and_sends_a_heartbeat_first(cluster: Any) -> None:
    quiet: Any = {"heartbeat_ms": 100_000, "route_poll_ms": 100_000}
    async with cluster(brokers=2) as c, Client(name_servers=c.name_servers, **quiet) as client:
        c.add("T", c.route("b0"))
        c.add("U", c.route("b1"))
        async with client.producer("g") as out:
            await out.send("T", b"x")
            await asyncio.sleep(5)  # poll: virtual time; the first heartbeat of the timer
            assert c.brokers["b0"].of(34) and not c.brokers["b1"].requests
            answered: list[Command] = []

            async def late(command: Command) -> Command:
                await asyncio.sleep(1)  # poll: virtual time
                answered.append(command)
                return command.reply()

            c.brokers["b1"].script[34] = late
            asking = asyncio.create_task(out.request("U", b"x", timeout=10))
            await c.brokers["b1"].wait_for(310)
            assert answered and {command.code for command in c.brokers["b1"].requests[:-1]} == {34}
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.spec("RR-01", "RR-06")
async def test_request_keeps_its_timeout_while_a_heartbeat_is_unanswered(cluster: Any) -> None:
    async with cluster(brokers=2) as c, Client(name_servers=c.name_servers) as client:
        unanswered = asyncio.get_running_loop().create_future()
        c.brokers["b1"].script[34] = lambda command: unanswered
        async with client.producer("g") as out:
            begin = time.monotonic()
            with pytest.raises(ReplyTimeout):
                await out.request("T", b"x", timeout=0.5, queue=MessageQueue("T", "b0", 0))
            assert time.monotonic() - begin < 2.0  # the heartbeat has 3 s
            assert len(c.brokers["b0"].of(310)) == 1
        unanswered.set_result(None)


@pytest.mark.spec("RR-06", "API-04")
async def test_client_stop_fails_pending_requests(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g") as out:
            task = asyncio.create_task(out.request("T", b"x", timeout=10))
            await c.broker.wait_for(310)
            while not len(client._core.replies):
                await asyncio.sleep(0)
            await c.broker.connections[0].invoke(push("unknown"), 5000)  # handled after the answer to the send
            await client.stop()
            with pytest.raises(Closed):
                await task


@pytest.mark.spec("RR-02", "PR-28")
async def test_reply_is_sent_through_the_broker_of_the_request(cluster: Any) -> None:
    async with cluster(brokers=3) as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", codec=str_codec()) as out:
            c.add("C_REPLY_TOPIC", write=1, read=1)
            asked = {
                "CLUSTER": "C",
                "REPLY_TO_CLIENT": "asker",
                "CORRELATION_ID": "7",
                "TTL": "3000",
                "KEYS": "own",
            }
            record = Record("T", b"x", encode_properties(asked))
            for name in ("b2", "b0", "b2"):
                request = Message(record, MessageQueue("T", name, 0), bytes_codec())
                await out.reply(request, "answer", properties={"region": "EU"})
            for bad in ({"TTL": "1"}, {"region": " "}):
                with pytest.raises(MessageRefused, match=r"Property<TTL>|property region"):
                    await out.reply(request, "answer", properties=bad)
            assert [len(broker.of(325)) for broker in c.brokers.values()] == [1, 0, 2]
            (sent,) = c.broker.of(325)
            assert (sent.ext["b"], sent.body) == ("C_REPLY_TOPIC", b"answer")
            properties = decode_properties(sent.ext["i"])
            expected = {
                "MSG_TYPE": "reply",
                "CORRELATION_ID": "7",
                "REPLY_TO_CLIENT": "asker",
                "TTL": "3000",
                "region": "EU",
            }
            assert expected.items() <= properties.items() and "KEYS" not in properties
            for missing, words in (("CLUSTER", "property.CLUSTER. is null"), ("REPLY_TO_CLIENT", "no request")):
                kept = {name: value for name, value in asked.items() if name != missing}
                with pytest.raises(MessageRefused, match=words):
                    await out.reply(
                        Message(Record("T", b"x", encode_properties(kept)), MessageQueue("T", "b0", 0), bytes_codec()),
                        "a",
                    )


@pytest.mark.spec("RR-01", "RR-03", "API-11", "API-16", "SPR-04")
def test_listener_return_value_is_sent_as_the_reply(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with (
            EmbeddedBroker() as server,
            Client.from_url(server.url) as client,
            Client.from_url(server.url) as asker,
        ):
            seen: list[str] = []

            @client.listener("Ask", group="answerers", codec=str_codec())
            async def answer(message: Message[str]) -> Any:
                seen.append(message.value)
                return Ack.SUCCESS if message.value == "quiet" else f"{message.value} pong"

            async with asker.producer("askers", codec=str_codec()) as out:
                await out.send("Ask", "quiet")
                running = asyncio.create_task(client.run())
                replies = await asyncio.gather(*(out.request("Ask", f"ping {n}", timeout=15) for n in range(20)))
                assert [reply.value for reply in replies] == [f"ping {n} pong" for n in range(20)]
                cancelled = asyncio.create_task(out.request("Ask", "cancelled", timeout=15))
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)
                with pytest.raises(ReplyTimeout):
                    await out.request("Ask", "quiet", timeout=1.0)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            assert set(seen) >= {"quiet", "ping 0"}

    with caplog.at_level(logging.ERROR):
        run(work)
    assert not own_messages(caplog)
