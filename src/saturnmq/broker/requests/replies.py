"""Replies to request messages (324, 325): pushed to the requester (326), and stored.

Requirements: RR-02..RR-04.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from saturnmq.broker.requests.context import ReplyContext
from saturnmq.broker.requests.send import REFUSALS, place_of, put_one, refusal, refused_at_arrival
from saturnmq.net import Connection, Later
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.codes import PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import PushReplyMessage
from saturnmq.protocol.headers.send_fields import SendFields
from saturnmq.protocol.properties import find, with_property
from saturnmq.store import PutStatus

log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS: Final = 10_000


def send_reply(ctx: ReplyContext, connection: Connection, request: Command) -> Command | Later:
    """Serve 324 and 325; answers once the requester has confirmed the reply, or with the reason why it did not.

    The reply is checked and stored within the turn of the replier's connection.
    """
    base = ctx.send.answers.base()
    try:
        refused = refused_at_arrival(ctx.send, request, base)
        if refused is not None:
            return refused
        if ctx.send.in_flight.replies >= ctx.send.settings.reply_queue_max:
            text = f"[OVERLOAD]system busy, {ctx.send.in_flight.replies} replies wait for their requesters"
            raise response_error(ResponseCode.SYSTEM_BUSY, text)
        sent = SendFields(request.code, request.ext)
        # All checks before the requester is counted as pending.
        config, queue_id = place_of(ctx.send, connection, sent)
        push = _push_of(ctx, connection, request, sent, queue_id)
        # Stored even if the requester is not connected, as in Apache RocketMQ (RR-04).
        position_fields = _stored(ctx, connection, request, sent, config, queue_id)
    except REFUSALS as error:
        return refusal(request, error, base)
    fields = base | position_fields
    client_id = find(sent.properties, PropertyKey.REPLY_TO_CLIENT)
    requester = _requester(ctx, client_id)
    if isinstance(requester, str):
        return _undelivered(ctx, connection, request, requester, fields)
    # Counted until the requester has answered the push.
    ctx.send.in_flight.replies += 1
    pushed = _push(requester, push, client_id or "")
    return Later(_delivered(ctx, connection, request, requester, pushed, fields))


async def _delivered(
    ctx: ReplyContext,
    connection: Connection,
    request: Command,
    requester: Connection,
    pushed: Awaitable[str | None],
    fields: dict[str, str],
) -> Command:
    """The response with these fields, once the requester has confirmed the reply."""
    try:
        # The replier's other requests go on while its reply is delivered.
        with connection.release_in_flight(request):
            problem = await pushed
    # Also if the replier's connection is lost.
    finally:
        ctx.pending.release(requester)
        ctx.send.in_flight.replies -= 1
    if problem is not None:
        return _undelivered(ctx, connection, request, problem, fields)
    return request.reply(ResponseCode.SUCCESS, None, fields)


def _undelivered(
    ctx: ReplyContext, connection: Connection, request: Command, problem: str, fields: dict[str, str]
) -> Command:
    ctx.send.rejections.note("reply", connection.remote_address, f"reply not delivered: {problem:.300}")
    return request.reply(ResponseCode.SYSTEM_ERROR, problem, fields)


def _push_of(ctx: ReplyContext, connection: Connection, request: Command, sent: SendFields, queue_id: int) -> Command:
    """The push request to the client that waits for this reply."""
    now = ctx.send.clock_ms()
    header = PushReplyMessage(
        producer_group=sent.producer_group,
        topic=sent.topic,
        default_topic=sent.default_topic,
        default_topic_queue_nums=sent.default_topic_queue_nums,
        queue_id=queue_id,
        sys_flag=sent.sys_flag,
        born_timestamp=sent.born_ms,
        flag=sent.flag,
        properties=with_property(sent.properties, PropertyKey.PUSH_REPLY_TIME, str(now)),
        reconsume_times=sent.reconsume_times,
        unit_mode=sent.unit_mode,
        born_host=connection.remote_address,
        store_host=ctx.send.identity.address,
        store_timestamp=now,
    )
    return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=header.to_ext(), body=request.body)


def _stored(
    ctx: ReplyContext, connection: Connection, request: Command, sent: SendFields, config: TopicConfig, queue_id: int
) -> dict[str, str]:
    """Store the reply and return its position; a failure is logged but does not affect the replier's response (RR-04)."""
    nowhere = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
    if not ctx.send.settings.store_replies:
        return nowhere
    result, _ = put_one(ctx.send, connection, request, sent, config, queue_id)
    if result.status is not PutStatus.PUT_OK:
        log.warning(
            "reply not stored topic=%s status=%s reason=%s", config.topic_name, result.status.value, result.reason
        )
        return nowhere
    return ctx.send.answers.fields(queue_id, result.queue_offset, (result.physical_offset,))


def _requester(ctx: ReplyContext, client_id: str | None) -> Connection | str:
    """The connection of the client that waits for a reply, counted as pending, or why it cannot be pushed there."""
    if client_id is None:
        return f"reply message properties[{PropertyKey.REPLY_TO_CLIENT}] is null"
    # By the client id in the property, which the requester put there.
    requester = ctx.clients.producer_of_id(client_id)
    if requester is None or requester.closed:
        return f"push reply message fail, channel of <{client_id}> not found."
    problem = ctx.pending.admit(requester)
    return requester if problem is None else f"push reply message to {client_id} fail: {problem}"


async def _push(requester: Connection, push: Command, client_id: str) -> str | None:
    """Push the reply to the requester; None, or why it failed."""
    try:
        answer = await requester.invoke(push, PUSH_TIMEOUT_MS, limited=False)  # bounded by PendingReplies
    except SaturnError as error:
        return f"push reply message to {client_id} fail: {error}"
    if answer.code != ResponseCode.SUCCESS:
        return f"push reply message to {client_id} fail: code {answer.code} {answer.remark or ''}".strip()
    return None
