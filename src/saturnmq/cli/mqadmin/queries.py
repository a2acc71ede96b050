"""Commands that look up single messages and traces.

Requirements: C-23..C-27.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from ipaddress import ip_address
from typing import Any, Final

from saturnmq.admin.messages import TraceView, unique_id_time
from saturnmq.cli.mqadmin.files import write_body
from saturnmq.cli.mqadmin.java_forms import absent, fields_text, queue_text, text_order
from saturnmq.cli.mqadmin.message_text import Bounds, fields_of, lines_of, track_text
from saturnmq.cli.mqadmin.output import Call, Shown, Time
from saturnmq.cli.output import EXIT_DONE, warn
from saturnmq.client.message import Message
from saturnmq.client.receipt import Receipt
from saturnmq.protocol.bodies import ConsumeMessageDirectlyResult, MessageQueue
from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.errors import ConfigError, MessageError, SaturnError
from saturnmq.protocol.ids import parse_offset_message_id

UNIQUE_ID: Final = re.compile(r"(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{56})")
_PORT_MAX: Final = 65_535
_KEYS: Final = "%-50s %4s %40s\n"
_TRACE: Final = "%-10s %-20s %-20s %-20s %-10s %-10s\n"


async def by_id(call: Call) -> None:
    """Print messages by offset id; or let a client consume them once, or send them again."""
    group, client, resend = (call.options.text(letter) for letter in "gds")
    ids = [part.strip() for part in call.options.text("i").split(",") if part.strip()]
    for number in ids:
        try:
            _check_offset_id(number)
            if group and client:
                await _consume(call, group, client, await call.admin.messages.by_offset_id(number))
            elif "s" in call.options:
                if resend.lower() == "true":
                    await _send_again(call, number)
            else:
                await _show(call, await call.admin.messages.by_offset_id(number), with_offset_id=True)
        except SaturnError as error:
            if len(ids) == 1:
                raise
            call.out.problem(f"{number}: {error.message}")


def _check_offset_id(number: str) -> None:
    """Raise MessageError unless this is an offset message id; a producer's message id has the same form, but no valid port."""
    host, offset = parse_offset_message_id(number)
    if not 0 < host.port <= _PORT_MAX or offset < 0:
        raise MessageError(
            f"{number} is the message id (unique key) of a producer, and this command takes an offset message id, which holds the "
            f"broker's address: its port would be {host.port}, must be in 1..{_PORT_MAX}",
            hint=f"`saturnmq admin queryMsgByUniqueKey -t TOPIC -i {number}` finds the message, and prints its OffsetID.",
        )


async def by_key(call: Call) -> None:
    """List the messages of a topic with a key."""
    messages = await call.admin.messages.by_key(call.options.text("t"), call.options.text("k"))
    if call.out.as_json:
        for message in messages:
            call.out.line(**fields_of(message))
        return
    columns = [("#Message ID", "message_id"), ("#QID", "queue_id"), ("#Offset", "queue_offset")]
    call.out.table(
        _KEYS, columns, [(message.message_id, message.record.queue_id, message.offset) for message in messages]
    )


async def by_unique_key(call: Call) -> None:
    """Print the oldest message with a unique id, with -a all of them; or let a client consume it once."""
    topic, number, group, client = (call.options.text(letter) for letter in "tigd")
    if group and client:
        await _consume(call, group, client, await call.admin.messages.view(topic, number))
        return
    copies = await call.admin.messages.by_unique_id(topic, number)
    for index, message in enumerate(copies if "a" in call.options else copies[:1]):
        await _show(call, message, with_offset_id=False, index=index)


async def by_offset(call: Call) -> None:
    """Print the message at an offset of a queue; nothing if there is none."""
    options = call.options
    queue = MessageQueue(options.text("t"), options.text("b"), options.integer("i", 0))
    result = await (await call.admin.messages.puller()).pull(queue, options.integer("o", 0), max_count=1)
    for message in result.messages():
        await _show(call, message, with_offset_id=True, bounds=(result.min_offset, result.max_offset))


async def _show(
    call: Call, message: Message[Any], *, with_offset_id: bool, index: int = 0, bounds: Bounds | None = None
) -> None:
    try:
        tracks: Sequence[Any] = await call.admin.messages.tracks(message)
        failure = None
    except SaturnError as error:
        tracks, failure = [], error
    if call.out.as_json:
        listed = [{"group": t.group, "type": t.track_type.value, "description": t.description} for t in tracks]
        body = message.body
        call.out.line(**fields_of(message), body_bytes=len(body), body=body.decode(errors="replace"), tracks=listed)
        return
    path = _written(call, message, index)
    for line in lines_of(message, path, with_offset_id=with_offset_id, bounds=bounds):
        call.out.line(line)
    if failure is not None:
        call.out.problem(f"groups of {message.record.topic}: {failure.message}")
        return
    call.out.line()
    call.out.line()
    by_group = {track.group: track for track in tracks}
    for group in text_order(by_group):
        call.out.line(track_text(by_group[group]), end="")
    if not tracks:
        call.out.line("WARN: No Consumer", end="")


def _written(call: Call, message: Message[Any], index: int) -> str:
    """Path of the file that the body was written to; empty, with a problem, if that failed."""
    name = f"{message.message_id}_{index}" if index else message.message_id
    try:
        return str(write_body(name, message.body))
    except (OSError, SaturnError) as error:
        call.out.problem(f"body of {message.message_id} not written: {getattr(error, 'message', error)}")
        return ""


async def _consume(call: Call, group: str, client: str, message: Message[Any]) -> None:
    result = await call.admin.messages.consume_directly(group, client, message)
    if result is not None:
        call.out.line(_result_text(result), end="", message_id=message.message_id, **_result_fields(result))


def _result_fields(result: ConsumeMessageDirectlyResult) -> dict[str, Any]:
    return {
        "order": result.order,
        "auto_commit": result.auto_commit,
        "consume_result": result.consume_result,
        "remark": result.remark,
        "spent_time_mills": result.spent_time_mills,
    }


def _result_text(result: ConsumeMessageDirectlyResult) -> str:
    names = ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")
    return fields_text("ConsumeMessageDirectlyResult", dict(zip(names, _result_fields(result).values(), strict=True)))


async def _send_again(call: Call, number: str) -> None:
    message = await call.admin.messages.by_offset_id(number)
    receipt = await call.admin.messages.send_again(message)
    if receipt is not None:
        call.out.line(f"prepare resend msg. originalMsgId={number}{receipt_text(receipt)}", end="", original_id=number,
                      message_id=receipt.message_id, send_status=receipt.status.value)  # fmt: skip


def receipt_text(receipt: Receipt) -> str:
    """The result of a send."""
    return (
        f"SendResult [sendStatus={receipt.status.value}, msgId={receipt.message_id}, offsetMsgId={receipt.offset_message_id}, "
        f"messageQueue={queue_text(receipt.queue)}, queueOffset={receipt.offset}]"
    )


async def trace_by_id(call: Call) -> None:
    """Print who sent a message and who consumed it, from its trace; on stderr, why the trace is incomplete."""
    message_id, topic = call.options.text("i"), call.options.text("t") or TRACE_TOPIC
    views = await call.admin.messages.trace(message_id, topic)
    by_group: dict[str, list[TraceView]] = {}
    for view in views:
        if view.sent:
            _print_trace(call, "#ProducerGroup", "#SendTime", [view])
        else:
            by_group.setdefault(absent(view.group), []).append(view)
    for group in text_order(by_group):
        _print_trace(call, "#ConsumerGroup", "#ConsumerTime", by_group[group])
    for trace in await call.admin.traces.find(message_id, topic):
        for gap in trace.gaps:
            warn(f"incomplete trace: {gap.value}")


def _print_trace(call: Call, group: str, when: str, views: Sequence[TraceView]) -> None:
    columns = [("#Type", "type"), (group, "group"), ("#ClientHost", "client_host"), (when, "time")]
    columns += [("#CostTimes", "cost_ms"), ("#Status", "status")]
    rows = [
        (
            "Pub" if view.sent else "Sub",
            absent(view.group),
            view.client_host,
            Time(view.time_ms, absent=str(datetime.fromtimestamp(0)), millis=False),
            Shown(f"{view.cost_ms}ms", view.cost_ms),
            "success" if view.success else "failed",
        )
        for view in views
    ]
    call.out.table(_TRACE, columns, rows)
    call.out.line()


async def decode_id(call: Call) -> int:
    """Print address and time that a unique id holds. Exit code 1 for text that is no unique id."""
    text = call.options.text("i")
    raw = bytes.fromhex(text) if UNIQUE_ID.fullmatch(text) else b""
    if not raw:
        raise ConfigError(f"-i {text!r:.80} must be a unique message id: 32 hex digits (IPv4) or 56 (IPv6)")
    address = str(ip_address(raw[:-12]))
    time_ms = unique_id_time(text, time.time_ns() // 1_000_000)
    date = datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d#%H:%M:%S:") + f"{time_ms % 1000:03d}"
    call.out.line(f"ip={address}date={date}", ip=address, sent=Time(time_ms))
    return EXIT_DONE
