"""Replies: pushed to the requester, stored, and the response to their sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.broker.requests import replies
from saturnmq.broker.state.clients import ClientInfo, Clients
from saturnmq.net import NO_RESPONSE, Connection, NetSettings, RemotingClient
from saturnmq.protocol.bodies import HeartbeatData, ProducerData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import PushReplyMessage, decode_header
from saturnmq.protocol.message import decode_properties, encode_properties
from saturnmq.store import PutResult, PutStatus

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker",
    "TTL": "3000",
    "MSG_TYPE": "reply",
    "CLUSTER": "DefaultCluster",
}


@asynccontextmanager
async def requester(w: Wire, answer: int | None = 0) -> AsyncIterator[list[Command]]:
    """A client that waits for replies and answers with this code; None: it does not answer."""
    got: list[Command] = []

    def pushed(connection: Connection, request: Command) -> Command | bytes:
        got.append(request)
        return request.reply(answer, "no" if answer else None) if answer is not None else NO_RESPONSE

    client = RemotingClient(settings=NetSettings(), handler=pushed)
    body = HeartbeatData("asker", [ProducerData("producers")], []).encode()
    assert (await client.invoke(w.server.broker_address, Command(RequestCode.HEART_BEAT, body=body), 5000)).code == 0
    try:
        yield got
    finally:
        await client.close()


async def reply(
    w: Wire, properties: dict[str, str] | None = None, code: int = RequestCode.SEND_REPLY_MESSAGE_V2
) -> Command:
    text = encode_properties(PROPERTIES if properties is None else properties).decode()
    if code == RequestCode.SEND_REPLY_MESSAGE:
        fields: dict[str, Any] = {
            "producerGroup": "repliers", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": 1234, "flag": 9, "properties": text, "reconsumeTimes": 0, "unitMode": False,
        }  # fmt: skip
    else:
        fields = {
            "a": "repliers", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1234, "h": 9, "i": text, "j": 0,
            "k": False, "m": False,
        }  # fmt: skip
    return await w.call(code, b"answer", **fields)


@pytest.mark.spec("RR-02", "RR-03", "RR-04")
@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_reply_is_pushed_to_requester_and_stored(code: int) -> None:
    async with wire() as w, requester(w) as got:
        answer = await reply(w, code=code)
        (push,) = got
        (stored,) = await w.messages(TOPIC)
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext["msgId"] == f"{w.broker.identity.id_prefix}{stored.physical_offset:016X}"
        assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["MSG_REGION"]) == (
            "0",
            "0",
            "DefaultRegion",
        )
        assert (push.code, push.body, push.is_oneway) == (
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            b"answer",
            False,
        )
        header = decode_header(PushReplyMessage, push.ext)
        assert (header.producer_group, header.topic, header.flag, header.born_timestamp) == (
            "repliers",
            TOPIC,
            9,
            1234,
        )
        (connection,) = w.client.connections
        assert (header.born_host, header.store_host) == (connection.local_address, w.server.broker_address)
        properties = decode_properties(header.properties or "")
        assert int(properties.pop("PUSH_REPLY_TIME")) == header.store_timestamp > 0
        assert properties == PROPERTIES
        assert (stored.body, stored.properties) == (b"answer", PROPERTIES)


@pytest.mark.spec("RR-03", "RR-04")
@pytest.mark.parametrize(("properties", "words"), [
    ({"CORRELATION_ID": "c-1"}, "reply message properties[REPLY_TO_CLIENT] is null"),
    ({"REPLY_TO_CLIENT": "gone"}, "push reply message fail, channel of <gone> not found."),
])  # fmt: skip
async def test_reply_without_requester_is_stored_and_reported(properties: dict[str, str], words: str) -> None:
    async with wire() as w, requester(w) as got:
        answer = await reply(w, properties)
        assert (answer.code, answer.remark, got) == (1, words, [])
        assert len(await w.messages(TOPIC)) == 1


@pytest.mark.spec("RR-02")
async def test_reply_topic_exists_at_start_with_one_queue() -> None:
    async with wire(auto_create_topic=False) as w:
        config = w.broker.topics.table[TOPIC]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


@pytest.mark.spec("RR-03")
async def test_refusing_or_silent_requester_is_reported_to_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replies.PUSH_TIMEOUT_MS == 10_000
    monkeypatch.setattr("saturnmq.broker.requests.replies.PUSH_TIMEOUT_MS", 50)
    async with wire() as w:
        for code, words in ((5, "code 5 no"), (None, "did not answer within 50 ms")):
            async with requester(w, code):
                answer = await reply(w)
                assert answer.code == 1 and words in (answer.remark or "")
                assert (answer.remark or "").startswith("push reply message to asker fail")
        assert w.broker.in_flight.replies == 0
        left = await reply(w)  # the client has closed its connection
        while "not found" not in (left.remark or ""):
            left = await reply(w)
        assert left.code == 1


@pytest.mark.spec("RR-04")
async def test_reply_that_is_not_stored_is_still_delivered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(store_replies=False) as w, requester(w) as got:
        answer = await reply(w)
        assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"], len(got)) == (0, "0", "0", 1)
        assert await w.messages(TOPIC) == []
    async with wire() as w, requester(w) as got:
        full = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")
        monkeypatch.setattr(w.broker.store, "put", lambda message: full)
        answer = await reply(w)
        assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"], len(got)) == (0, "0", "0", 1)
        assert f"reply not stored topic={TOPIC} status=SERVICE_NOT_AVAILABLE reason=full" in caplog.text


@pytest.mark.spec("RR-03", "REM-14")
async def test_malformed_or_excess_reply_is_rejected() -> None:
    async with wire(reply_queue_max=1) as w, requester(w, None) as got:
        assert (await w.call(RequestCode.SEND_REPLY_MESSAGE_V2, b"x", a="g")).code == 1
        first = asyncio.create_task(reply(w))
        while not got:
            await asyncio.sleep(0)
        answer = await reply(w)
        assert answer.code == 2 and "1 replies wait" in (answer.remark or "")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.spec("RR-03", "HB-06")
def test_client_id_is_known_while_its_connection_has_producer() -> None:
    clients = Clients()
    one, two = object(), object()
    for connection, group in ((one, "a"), (one, "b"), (two, "a")):
        clients.register_producer(group, connection, ClientInfo("id", 0, 407, 0))  # type: ignore[arg-type]
    clients.unregister(one, "a", None)  # type: ignore[arg-type]
    assert clients.producer_of_id("id") is two
    clients.connection_closed(one)  # type: ignore[arg-type]
    assert clients.producer_of_id("id") is two
    clients.connection_closed(two)  # type: ignore[arg-type]
    assert clients.producer_of_id("id") is None and clients._producer_ids == {}
