"""Request-reply over topics: pending requests by correlation id, and construction of requests and replies.

A request is an ordinary message with three properties. The reply is sent to a reply topic, whose broker pushes it (code 326)
over the connection of the requester, which it finds by client id.

Requirements: RR-01..RR-06, API-11.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

from saturnmq.client.checks import check_properties, check_property_bytes
from saturnmq.client.connection.core import Core
from saturnmq.client.connection.routes import TopicRoute
from saturnmq.client.message import Message, ReceivedMessage
from saturnmq.client.producer.send_request import Prepared
from saturnmq.errors import MessageRefused, ReplyTimeout
from saturnmq.protocol.codes import MASTER_ID, REPLY_TOPIC_SUFFIX, PropertyKey
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.message import encode_properties

logger = logging.getLogger(__name__)

REPLY: Final = "reply"


def request_properties(core: Core, correlation_id: str, timeout_ms: int) -> dict[str, str]:
    """The properties that make a message a request (RR-01)."""
    return {
        PropertyKey.CORRELATION_ID: correlation_id,
        PropertyKey.REPLY_TO_CLIENT: core.client_id,
        PropertyKey.TTL: str(timeout_ms),
    }


async def make_known(core: Core, route: TopicRoute, timeout_ms: int) -> None:
    """Send a heartbeat unless every master of the route has answered one: only such a broker can push the reply (RR-01).

    Brokers that do not answer within timeout_ms are left to the attempts of the request.
    """
    masters = {ids[MASTER_ID] for ids in route.addresses.values() if MASTER_ID in ids}
    # Brokers whose heartbeat was answered.
    if not masters <= core.broker_versions.keys():
        # The send shows whether the broker is there.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
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


def reply_to(
    request: ReceivedMessage[Any], body: bytes, unique_id: str, user_properties: Mapping[str, str] | None
) -> Prepared:
    """A prepared reply. Raises MessageRefused if the message is not a request (RR-02), and for reserved or blank properties."""
    properties = request.record.properties
    cluster = properties.get(PropertyKey.CLUSTER)
    client_id = properties.get(PropertyKey.REPLY_TO_CLIENT)
    # Set by the broker that stored the request: it names the reply topic.
    if not cluster:
        raise MessageRefused("create reply message fail, requestMessage error, property[CLUSTER] is null.")
    if not client_id:
        raise MessageRefused("this message is no request: it has no property REPLY_TO_CLIENT")
    check_properties(user_properties or {})
    reply_properties = {
        # First, so that none replaces the following.
        **(user_properties or {}),
        PropertyKey.MSG_TYPE: REPLY,
        PropertyKey.CORRELATION_ID: properties.get(PropertyKey.CORRELATION_ID),
        PropertyKey.REPLY_TO_CLIENT: client_id,
        PropertyKey.TTL: properties.get(PropertyKey.TTL),
        PropertyKey.UNIQ_KEY: unique_id,
        PropertyKey.WAIT: "true",
    }
    text = encode_properties(reply_properties).decode()
    check_property_bytes(text)
    # Each cluster has one, which the broker makes itself.
    return Prepared(f"{cluster}_{REPLY_TOPIC_SUFFIX}", body, (unique_id,), text)


def wants_reply(message: Message[Any]) -> bool:
    """Whether the message is a request, whose sender waits for a reply."""
    return PropertyKey.REPLY_TO_CLIENT in message.record.properties
