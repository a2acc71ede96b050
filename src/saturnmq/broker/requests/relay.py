"""Relays admin requests to a live consumer: status (223, as 221), running info (307), direct consumption (309).

Requirements: CA-15, RT-08, ADM-22.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from saturnmq.broker.requests.context import MessageContext
from saturnmq.broker.requests.message_queries import record_at
from saturnmq.broker.requests.table_row import BODY_BUDGET
from saturnmq.broker.state.clients import ConsumerGroup
from saturnmq.net import CallTimeout, Connection
from saturnmq.protocol.bodies import GetConsumerStatusBody, MessageQueue
from saturnmq.protocol.codes import VERSION_OFFSET_PUSH, VERSION_RELAY, RequestCode, ResponseCode
from saturnmq.protocol.errors import RemoteProtocolError, ResponseError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.protocol.signatures import without_credentials

RELAY_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
STATUS_SECONDS_MAX: Final = 15.0  # no further member is asked afterwards: clients have given up waiting
STATUS_BYTES_MAX: Final = 8 << 20  # of the members' answers; the response must fit one frame


def require_offset_push(group: ConsumerGroup) -> None:
    """Raise ResponseError 1 if a member's release knows neither 220 nor 221."""
    # One old member is enough: the operator has to know that it would not follow.
    for info in group.members.values():
        if info.version < VERSION_OFFSET_PUSH:
            text = f"the client does not support this feature. client={info.client_id} version={info.version}"
            raise response_error(ResponseCode.SYSTEM_ERROR, f"{text}; 3.0.7 (version {VERSION_OFFSET_PUSH}) does")


async def running_info(
    ctx: MessageContext, connection: Connection, request: Command, header: h.GetConsumerRunningInfo
) -> Command:
    """Serve GET_CONSUMER_RUNNING_INFO (307)."""
    # The operator's credentials are not shown to the consumer's process.
    ext = without_credentials(request.ext)
    return await _relayed(ctx, request, header.consumer_group, header.client_id, ext, lambda: request.body)


async def consume_directly(
    ctx: MessageContext, connection: Connection, request: Command, header: h.ConsumeMessageDirectly
) -> Command:
    """Serve CONSUME_MESSAGE_DIRECTLY (309): let one consumer process a given message and report the result."""
    try:
        _, offset = parse_offset_message_id(header.msg_id or "")
    except SaturnError as error:
        raise response_error(
            ResponseCode.SYSTEM_ERROR, f"msgId={header.msg_id!r:.80} is no offset id: {error}"
        ) from error

    def record() -> bytes:
        record_bytes = record_at(ctx.store, offset)
        if record_bytes is None:
            raise response_error(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return record_bytes

    ext = without_credentials(request.ext) | {"brokerName": ctx.settings.broker_name}
    return await _relayed(ctx, request, header.consumer_group, header.client_id or "", ext, record)


async def _relayed(
    ctx: MessageContext,
    request: Command,
    group: str,
    client_id: str,
    ext: dict[str, str],
    body: Callable[[], bytes | None],
) -> Command:
    """Response of one member; 207 if it does not answer within RELAY_TIMEOUT_MS, 1 if it is not online or does not read."""
    live = ctx.clients.consumers.get(group)
    members = live.members.items() if live is not None else ()
    # A client may be listed until its connection is reported as lost.
    online_member = next(((c, info) for c, info in members if info.client_id == client_id and not c.closed), None)
    if online_member is None:
        text = f"The Consumer <{group}> <{client_id}> not online"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    member, info = online_member
    if info.version < VERSION_RELAY:
        text = f"The Consumer <{client_id}> Version <{info.version}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    # Pending output would only grow; the operator gets a reason instead of a timeout.
    if member.output_full:
        text = f"The Consumer <{group}> <{client_id}> does not read what is sent to it"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    try:
        with ctx.relays.call(member):
            # Made when there is a permit, so that waiting relays hold no records.
            answer = await member.invoke(Command(request.code, ext=ext), RELAY_TIMEOUT_MS, body=body)
    except CallTimeout as error:
        text = f"consumer <{group}> <{client_id}> Timeout: {error}"
        return request.reply(ResponseCode.CONSUME_MSG_TIMEOUT, text)
    except ResponseError:
        raise
    except SaturnError as error:
        text = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
        return request.reply(ResponseCode.SYSTEM_ERROR, text)
    return request.reply(answer.code, answer.remark, answer.ext, answer.body)


async def consumer_status(
    ctx: MessageContext, connection: Connection, request: Command, header: h.GetConsumerStatus
) -> Command:
    """Serve INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): current offsets of the members (221).

    clientAddr, a client id, selects one member; members that do not answer are omitted, as are those that are not reached
    within STATUS_SECONDS_MAX and STATUS_BYTES_MAX.
    """
    live = ctx.clients.consumers.get(header.group)
    if live is None or not live.members:
        text = f"No Any Consumer online in the consumer group: [{header.group}]"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    require_offset_push(live)
    table: dict[str, dict[MessageQueue, QueueOffset]] = {}
    loop, remaining_bytes = asyncio.get_running_loop(), STATUS_BYTES_MAX
    until = loop.time() + STATUS_SECONDS_MAX
    for member, info in list(live.members.items()):
        if loop.time() >= until or remaining_bytes <= 0:
            break
        if header.client_addr and info.client_id != header.client_addr:
            continue
        ask = h.GetConsumerStatus(topic=header.topic, group=header.group)
        command = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=ask.to_ext())
        try:
            with ctx.relays.call(member):
                answer = await member.invoke(command, STATUS_TIMEOUT_MS)
            # Also counted if the answer is not used.
            remaining_bytes -= len(answer.body or b"")
            if answer.code == ResponseCode.SUCCESS and answer.body and remaining_bytes >= 0:
                table[info.client_id] = GetConsumerStatusBody.decode(
                    answer.body, budget=BODY_BUDGET
                ).message_queue_table
        # A member that answers nonsense is named; others that do not answer are left out.
        except RemoteProtocolError as error:
            raise response_error(ResponseCode.SYSTEM_ERROR, f"{info.client_id} answered {error}") from error
        except SaturnError:
            continue
    return await ctx.slices.result(
        ctx.slices.reply(request, GetConsumerStatusBody(consumer_table=table).client_pieces())
    )
