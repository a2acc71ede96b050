"""Request-reply over topics: pending requests by correlation id, and construction of requests and replies.

A request is an ordinary message with three properties. The reply is sent to a reply topic, whose broker pushes it (code 326)
over the connection of the requester, which it finds by client id.

Requirements: RR-01..RR-06, API-11.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from saturnmq.client.errors import Closed, MessageRefused, ReplyTimeout
from saturnmq.client.message import Message
from saturnmq.client.producer.send_request import Prepared
from saturnmq.net import Connection
from saturnmq.protocol.codes import MASTER_ID, REPLY_TOPIC_SUFFIX, PropertyKey
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import PushReplyMessage, decode_header
from saturnmq.protocol.message import NO_HOST, Host, encode_properties
from saturnmq.protocol.message import Message as Record

if TYPE_CHECKING:
    from saturnmq.client.connection.core import Core
    from saturnmq.client.connection.routes import Route

logger = logging.getLogger(__name__)

REPLY: Final = "reply"


class Replies:
    """The pending requests of one client, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Record]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self) -> tuple[str, asyncio.Future[Record]]:
        """A new correlation id and the future of its reply. The caller must `forget` the id in any case."""
        correlation_id = str(uuid.uuid4())
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return correlation_id, future

    def close(self) -> None:
        """Fail all pending requests with Closed, because the client stops."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Closed("the client was stopped while a request waited for its reply"))

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def pushed(self, connection: Connection, command: Command, now_ms: int) -> Command:
        """Handle a pushed reply (code 326); a reply without a pending request is logged and answered with success (RR-05)."""
        header = decode_header(PushReplyMessage, command.ext)
        record = Record(
            header.topic,
            command.body or b"",
            (header.properties or "").encode(),
            header.queue_id,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            _host(header.born_host),
            _host(header.store_host),
            header.reconsume_times,
            store_timestamp_ms=header.store_timestamp,
        )
        correlation_id = record.properties.get(PropertyKey.CORRELATION_ID, "")
        record.properties[PropertyKey.ARRIVE_TIME] = str(now_ms)
        future = self._waiting.get(correlation_id)
        if future is None or future.done():
            logger.warning(
                "reply that nobody waits for correlation_id=%r peer=%s", correlation_id, connection.remote_address
            )
        else:
            future.set_result(record)
        return command.reply()


def _host(text: str) -> Host:
    ip, _, port = text.removeprefix("/").rpartition(":")
    return Host(ip, int(port)) if ip and port.isdecimal() else NO_HOST


def request_properties(core: Core, correlation_id: str, timeout_ms: int) -> dict[str, str]:
    """The properties that make a message a request (RR-01)."""
    return {
        PropertyKey.CORRELATION_ID: correlation_id,
        PropertyKey.REPLY_TO_CLIENT: core.client_id,
        PropertyKey.TTL: str(timeout_ms),
    }


async def make_known(core: Core, route: Route) -> None:
    """Send a heartbeat unless every master of the route has answered one: only such a broker can push the reply (RR-01)."""
    masters = {ids[MASTER_ID] for ids in route.addresses.values() if MASTER_ID in ids}
    if not masters <= core.broker_versions.keys():
        await core.heartbeat()


async def wait_for(future: asyncio.Future[Record], remaining_ms: int, topic: str, correlation_id: str) -> Record:
    """Wait for the reply. Raises ReplyTimeout if it does not arrive in time; the request was stored (RR-06)."""
    try:
        async with asyncio.timeout(max(remaining_ms, 0) / 1000):
            return await future
    except TimeoutError:
        raise ReplyTimeout(
            f"send request message to <{topic}> OK, but wait reply message timeout, correlation id {correlation_id}",
            hint=f"A consumer of {topic} must be running: a listener must return a value, others call producer.reply.",
        ) from None


def reply_to(request: Message[Any], body: bytes, unique_id: str) -> Prepared:
    """A prepared reply. Raises MessageRefused if the message is not a request (RR-02)."""
    properties = request.record.properties
    cluster = properties.get(PropertyKey.CLUSTER)
    client_id = properties.get(PropertyKey.REPLY_TO_CLIENT)
    if not cluster:
        raise MessageRefused("create reply message fail, requestMessage error, property[CLUSTER] is null.")
    if not client_id:
        raise MessageRefused("this message is no request: it has no property REPLY_TO_CLIENT")
    own = {
        PropertyKey.MSG_TYPE: REPLY,
        PropertyKey.CORRELATION_ID: properties.get(PropertyKey.CORRELATION_ID),
        PropertyKey.REPLY_TO_CLIENT: client_id,
        PropertyKey.TTL: properties.get(PropertyKey.TTL),
        PropertyKey.UNIQ_KEY: unique_id,
        PropertyKey.WAIT: "true",
    }
    text = encode_properties(own).decode()
    return Prepared(f"{cluster}_{REPLY_TOPIC_SUFFIX}", body, (unique_id,), text)


def wants_reply(message: Message[Any]) -> bool:
    """Whether the message is a request, whose sender waits for a reply."""
    return PropertyKey.REPLY_TO_CLIENT in message.record.properties
