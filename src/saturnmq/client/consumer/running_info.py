"""Answers requests that brokers relay from an operator: running info, offsets, offset reset, direct consumption.

Request codes 40, 220, 221, 307, 309.

Requirements: CA-15, OF-06, RT-08, RT-09, RT-10.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import logging
import sys
import threading
import time
import traceback
from datetime import timedelta
from typing import Any, Final

from saturnmq.client import namespaces
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.ordered_queue import OrderedQueue
from saturnmq.client.consumer.positions import Positioned
from saturnmq.client.hooks import FAILED_PREFIX
from saturnmq.client.message import Ack, Message, Settler
from saturnmq.net import NO_RESPONSE, Later, Reply
from saturnmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageQueue,
    ProcessQueueInfo,
    ResetOffsetBody,
)
from saturnmq.protocol.codes import VERSION_DESC, RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    decode_header,
)
from saturnmq.protocol.message import decode_record

logger = logging.getLogger(__name__)

DIRECT_TIMEOUT_S: Final = 9.5  # the broker waits 10 s for the answer
MIB: Final = 1024 * 1024
_RESULTS: Final = {
    Ack.SUCCESS: "CR_SUCCESS",
    Ack.RETRY: "CR_LATER",
    Ack.REJECT: "CR_ROLLBACK",
    Ack.COMMIT: "CR_COMMIT",
    Ack.ROLLBACK: "CR_ROLLBACK",
}


def answer_broker(consumer: Positioned, command: Command) -> Reply:
    """Answer a request about one group. Raises HeaderError and BodyError."""
    code = command.code
    if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        consumer.wake_rebalance()
        return NO_RESPONSE
    if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        consumer.reset_offsets(ResetOffsetBody.decode(command.body or b"{}").offset_table)
        return NO_RESPONSE
    if code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        topic = decode_header(GetConsumerStatus, command.ext).topic
        offsets = {queue: offset for queue, offset in consumer.offsets.snapshot().items() if queue.topic == topic}
        return command.reply(body=GetConsumerStatusBody(offsets).encode())
    if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        wants_stack = decode_header(GetConsumerRunningInfo, command.ext).jstack_enable
        return command.reply(body=running_info(consumer, with_stacks=wants_stack).encode())
    if code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        return Later(_consume_directly(consumer, command))
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")


def running_info(consumer: Positioned, *, with_stacks: bool) -> ConsumerRunningInfo:
    """The client state that `mqadmin consumerStatus` shows (RT-09)."""
    core, settings = consumer.core, consumer.settings
    properties = {field.name: str(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    properties |= {
        # The names and forms that mqadmin prints.
        "PROP_NAMESERVER_ADDR": ";".join(f"{address}" for address in core.name_servers.addresses) + ";",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if consumer.sends_back or not consumer.commits else "CONSUME_ACTIVELY",
        "PROP_CONSUMEORDERLY": "true" if settings.ordered else "false",
        "PROP_THREADPOOL_CORE_SIZE": str(consumer.concurrency or settings.prefetch),
        "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
        "PROP_CLIENT_VERSION": VERSION_DESC,
    }
    subscriptions = consumer.subscriptions
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=subscriptions,
        mq_table={item.queue: queue_info(item) for item in consumer.assignments},
        status_table={data.topic: consumer.counters.status(data.topic) for data in subscriptions},
        jstack=stacks() if with_stacks else None,
    )


def queue_info(assignment: AssignedQueue) -> ProcessQueueInfo:
    """State of one assigned queue: open messages, lock, last pull and last settlement."""
    open_messages = assignment.generation.process_queue
    ordered = assignment if isinstance(assignment, OrderedQueue) else None
    uncommitted = ordered.uncommitted_offsets if ordered is not None else []  # Java keeps them in a map of their own
    # Java writes 0 where there is no message.
    first = next(iter(open_messages), 0)
    return ProcessQueueInfo(
        commit_offset=open_messages.commit_offset,
        cached_msg_min_offset=first,
        cached_msg_max_offset=open_messages.max_offset if len(open_messages) else 0,
        cached_msg_count=len(open_messages),
        cached_msg_size_mib=open_messages.body_bytes // MIB,
        transaction_msg_min_offset=uncommitted[0] if uncommitted else 0,
        transaction_msg_max_offset=uncommitted[-1] if uncommitted else 0,
        transaction_msg_count=len(uncommitted),
        locked=ordered is not None and ordered.locked,
        droped=open_messages.dropped,
        last_pull_timestamp=assignment.pulled_ms,
        last_consume_timestamp=assignment.consumed_ms,
    )


def stacks() -> str:
    """The stacks of all threads and tasks as text."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # The only way to the stacks of other threads.
    for ident, frame in sys._current_frames().items():
        out.write(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}\n")
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        task.print_stack(file=out)
    return out.getvalue()


class _Direct(Settler):
    """Receives the verdict on a message that an operator sent for direct consumption."""

    def __init__(self) -> None:
        self.verdict: asyncio.Future[tuple[Ack, str]] = asyncio.get_running_loop().create_future()

    # Not handed out after the time: the operator has the answer already.
    def hand_out(self, message: Message[Any], now: float) -> bool:
        """Whether the operator's request still waits for a verdict."""
        return not self.verdict.done()

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None:
        """Pass on the first verdict; later ones are ignored."""
        if not self.verdict.done():
            self.verdict.set_result((verdict, reason))


async def _consume_directly(consumer: Positioned, command: Command) -> Command:
    """309: hand the message in the body to the next reader, ahead of all others, and report the verdict (CA-15).

    The message is neither committed nor sent back.
    """
    header = decode_header(ConsumeMessageDirectly, command.ext)
    record = decode_record(command.body or b"", 0)
    namespace = consumer.core.settings.namespace
    queue = MessageQueue(namespaces.strip(namespace, record.topic), header.broker_name or "", record.queue_id)
    direct = _Direct()
    begin = time.monotonic()
    settings = consumer.settings
    result = ConsumeMessageDirectlyResult(order=settings.ordered, auto_commit=settings.auto_commit)
    message = Message(record, queue, consumer.codec, direct, namespace)
    # Ahead of the prefetched messages, which may take longer than the operator waits.
    consumer.deliver_first([message])
    try:
        async with asyncio.timeout(DIRECT_TIMEOUT_S):
            verdict, reason = await direct.verdict
        result.consume_result = _RESULTS[verdict]
        if reason:
            result.remark = reason
            # The listener raised an exception.
            if reason.startswith(FAILED_PREFIX):
                result.consume_result = "CR_THROW_EXCEPTION"
    except TimeoutError:
        # No reader took it yet, or its verdict is ignored.
        consumer.withdraw(message)
        result.consume_result, result.remark = "CR_RETURN_NULL", f"not settled within {DIRECT_TIMEOUT_S} s"
    result.spent_time_mills = int((time.monotonic() - begin) * 1000)
    return command.reply(body=result.encode())
