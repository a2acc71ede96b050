"""Commands that print, send and consume messages.

Requirements: C-28..C-32.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from saturnmq.admin.messages import TOOLS_GROUP, PullResult, PullStatus
from saturnmq.cli.mqadmin import java_forms
from saturnmq.cli.mqadmin.java_forms import boolean, queue_text, time_of
from saturnmq.cli.mqadmin.message_text import body_text, checked_charset, fields_of, one_line
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call
from saturnmq.cli.output import EXIT_FAILED
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError

_SENT: Final = "%-32s  %-4s  %-20s    %s"
_STATUS: Final = {
    PullStatus.FOUND: "FOUND",
    PullStatus.NO_NEW_MESSAGE: "NO_NEW_MSG",
    PullStatus.NO_MATCHED_MESSAGE: "NO_MATCHED_MSG",
    PullStatus.OFFSET_ILLEGAL: "OFFSET_ILLEGAL",
}
_ENDS: Final = (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL)
_NO_BODY: Final = "NOT PRINT BODY"


# ---- printing


async def print_topic(call: Call) -> None:
    """Print the messages of all queues of a topic."""
    options = call.options
    charset = checked_charset(options.text("c", "UTF-8"))
    shows_body = options.boolean("d", True)
    puller = await call.admin.messages.puller()
    for queue in java_forms.queue_order(await puller.queues(options.text("t"))):
        low, high = await _bounds(call, queue, begin="b", end="e")
        call.out.line(f"minOffset={low}, maxOffset={high}, {queue_text(queue)}")
        offset = low
        while offset < high:
            result = await puller.pull(queue, offset, expression=options.text("s", "*"))
            before, offset = offset, result.next_offset
            status = _STATUS[result.status]
            if result.status is PullStatus.FOUND:
                _print(call, result, charset if shows_body else None)
            elif result.status is PullStatus.NO_MATCHED_MESSAGE and offset > before:
                call.out.line(f"{queue_text(queue)} no matched msg. status={status}, offset={offset}")
            else:
                call.out.line(f"{queue_text(queue)} print msg finished. status={status}, offset={offset}")
                break
        call.out.line("-" * 56)


async def print_queue(call: Call) -> None:
    """Print the messages of one queue, or count them by tag."""
    options = call.options
    charset = checked_charset(options.text("c", "UTF-8"))
    shows, counts = options.boolean("p", False), options.boolean("f", False)
    shown_charset = charset if options.boolean("d", False) else None
    queue = MessageQueue(options.text("t"), options.text("a"), options.integer("i", 0))
    puller = await call.admin.messages.puller()
    offset, high = await _bounds(call, queue, begin="b", end="e")
    tags: Counter[str] = Counter()
    while offset < high:
        result = await puller.pull(queue, offset, expression=options.text("s", "*"))
        before, offset = offset, result.next_offset
        if result.status in _ENDS or offset <= before:
            break
        tags.update(message.tag for message in result.messages() if message.tag and message.tag.strip())
        if shows:
            _print(call, result, shown_charset)
    if counts:
        for tag in sorted(java_forms.text_order(tags), key=lambda tag: -tags[tag]):
            call.out.line(f"Tag: {tag:<30} Count: {tags[tag]}", tag=tag, count=tags[tag])


async def _bounds(call: Call, queue: MessageQueue, *, begin: str, end: str) -> tuple[int, int]:
    """First and last offset to print: the queue's, or those of the times in two options."""
    options, puller = call.options, await call.admin.messages.puller()
    first, last = (time_of(options.text(letter), letter) if letter in options else None for letter in (begin, end))
    low = await puller.min_offset(queue) if first is None else await puller.offset_by_time(queue, first)
    high = await puller.max_offset(queue) if last is None else await puller.offset_by_time(queue, last)
    return low, high


def _print(call: Call, result: PullResult, charset: str | None) -> None:
    """Print the messages of a pull. charset: None without their bodies."""
    broker = result.queue.broker_name if result.queue is not None else ""
    for message in result.messages():
        body = _NO_BODY if charset is None else body_text(message, charset)
        if call.out.as_json:
            shown = {} if charset is None else {"body": body}
            call.out.line(broker_name=broker, **fields_of(message), **shown)
            continue
        try:
            text = one_line(message, broker, (result.min_offset, result.max_offset))
        except SaturnError as error:  # a damaged body
            call.out.problem(f"{message.message_id}: {error.message}")
            continue
        call.out.line(f"MSGID: {message.message_id} {text} BODY: {body}")


# ---- consuming


async def consume(call: Call) -> int | None:
    """Pull messages of a topic, a queue, or a queue from an offset on; nothing is committed."""
    options = call.options
    count = options.integer("c", 128)
    refusal = _refusal(call, count)
    if refusal:
        call.out.line(refusal, end="")
        return EXIT_FAILED
    group = options.text("g") or TOOLS_GROUP
    if "i" in options:
        await _consume_queue(call, group, count)
        return None
    remaining, first = count, True
    puller = await call.admin.messages.puller(group)
    for queue in java_forms.queue_order(await puller.queues(options.text("t"))):
        if remaining <= 0 and not first:
            return None
        first = False
        low, high = await _bounds_since(call, queue)
        if high - low > remaining:
            call.out.line(f"The older {remaining} message of the {queue.queue_id} queue will be provided")
            high, remaining = low + remaining - 1, 0
        else:
            remaining -= high - low + 1
        await _consume_until(call, group, queue, low, high)
    return None


def _refusal(call: Call, count: int) -> str:
    """Why the options do not go together; empty if they do."""
    options, now_ms = call.options, time.time_ns() // 1_000_000
    if count <= 0:
        return "Please input a positive messageNumber!"
    if "i" in options and "b" not in options:
        return "Please set the brokerName before queueId!"
    if "o" in options and "i" not in options:
        return "Please set queueId before offset!"
    begin, end = (time_of(options.text(letter), letter) if letter in options else 0 for letter in "se")
    if begin > now_ms:
        return "Please set the beginTimestamp before now!"
    if end > now_ms:
        return "Please set the endTimestamp before now!"
    if "e" in options and begin > end:
        return "Please make sure that the beginTimestamp is less than or equal to the endTimestamp"
    return ""


async def _bounds_since(call: Call, queue: MessageQueue) -> tuple[int, int]:
    return await _bounds(call, queue, begin="s", end="e")


async def _consume_queue(call: Call, group: str, count: int) -> None:
    options = call.options
    queue = MessageQueue(options.text("t"), options.text("b"), options.integer("i", 0))
    offset = options.integer("o", 0)
    low, high = await _bounds_since(call, queue)
    if offset > high:
        call.out.line(f"{queue_text(queue)} no matched msg, offset={offset}")
        return
    low = max(low, offset)
    if high - low > count:
        call.out.line(f"The oldler {count} message will be provided")
        high = low + count - 1
    await _consume_until(call, group, queue, low, high)


async def _consume_until(call: Call, group: str, queue: MessageQueue, low: int, high: int) -> None:
    """Pull and print the messages from one offset to another, both included."""
    puller = await call.admin.messages.puller(group)
    offset = low
    while offset <= high:
        result = await puller.pull(queue, offset, max_count=high - offset + 1)
        before, offset = offset, result.next_offset
        status = _STATUS[result.status]
        if result.status is PullStatus.FOUND:
            call.out.line("Consume ok")
            _print(call, result, "UTF-8")
        elif result.status is PullStatus.NO_MATCHED_MESSAGE and offset > before:
            call.out.line(f"{queue_text(queue)} no matched msg. status={status}, offset={offset}")
        else:
            call.out.line(f"{queue_text(queue)} print msg finished. status={status}, offset={offset}")
            return


# ---- sending


async def send(call: Call) -> int | None:
    """Send one message."""
    options = call.options
    topic, broker = options.text("t"), options.text("b")
    if "i" in options and not broker:
        call.out.line("Broker name must be set if the queue is chosen!", end="")
        return EXIT_FAILED
    queue_id = options.integer("i", -1)
    queue = MessageQueue(topic, broker, queue_id) if broker and queue_id >= 0 else None
    receipt = await call.admin.messages.send(
        topic,
        options.text("p").encode(),
        tag=options.text("c"),
        keys=options.text("k"),
        queue=queue,
        trace=options.boolean("m", False),
    )
    if receipt is not None:
        columns = [("#Broker Name", "broker_name"), ("#QID", "queue_id"), ("#Send Result", "send_result")]
        row = (receipt.queue.broker_name, receipt.queue.queue_id, receipt.status.value, receipt.message_id)
        call.out.table(_SENT + "\n", [*columns, ("#MsgId", "message_id")], [row])
    return None


async def check_send_time(call: Call) -> None:
    """Send messages to the queues of a topic in turn, and print how long each took."""
    amount, size = call.options.integer("a", 100), call.options.integer("s", 128)
    if amount < 1 or size < 1:
        raise WrongOptions(f"-a {amount} and -s {size} must be at least 1")
    total, first = 0, True
    call.out.line(_SENT % ("#Broker Name", "#QID", "#Send Result", "#RT"))
    async for queue, timed_send in call.admin.messages.timed_sends_in_turn(call.options.text("t"), amount, b"a" * size):
        total += 0 if first else timed_send.elapsed_ms  # the first send connects
        first, is_sent = False, not isinstance(timed_send.result, SaturnError)
        text = _SENT % (queue.broker_name, queue.queue_id, boolean(is_sent), timed_send.elapsed_ms)
        fields: dict[str, Any] = {"broker_name": queue.broker_name, "queue_id": queue.queue_id}
        call.out.line(text, **fields, send_result=is_sent, rt_ms=timed_send.elapsed_ms)
        if isinstance(timed_send.result, SaturnError):
            call.out.problem(timed_send.result.message)
    if not call.out.dry_run:
        average = total / (amount - 1) if amount > 1 else float("nan")
        call.out.summary(f"Avg RT: {java_forms.fixed(average, 2)}", avg_rt_ms=average if amount > 1 else None)
