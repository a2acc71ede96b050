"""Fast path of sends (codes 10, 310): single messages for an existing topic, answered at once or when durable.

What follows from the part of a header that a producer repeats is computed once per header template (`ParsedTemplate`). Accepts
messages as real clients send them: either header serialization, any user properties, tags and keys, in any order. What needs
more than a record (a new topic, a delay, a transaction, a retry, a busy store) goes to `send.send`, the reference
implementation. For any request both leave the same bytes in the store and on the wire. A new rule for sends belongs there;
a property that it concerns is one of `MessageProperties.special`, a field is excluded in `parse`.

Requirements: SND-01..SND-15, API-10.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

from saturnmq.broker.requests import send as reference
from saturnmq.broker.requests.context import SendContext
from saturnmq.broker.requests.send_answer import SendAnswers, confirmation_of
from saturnmq.net import NO_RESPONSE, Connection, Later
from saturnmq.protocol.codes import (
    CONFIRMATION_FIELD,
    FORBIDDEN_SEND_TOPICS,
    RETRY_PREFIX,
    TRANSACTION_MASK,
    CommandFlag,
)
from saturnmq.protocol.errors import HeaderError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.header_templates import HeaderTemplate, TemplateCommand
from saturnmq.protocol.headers.send_fields import SendFields, send_names
from saturnmq.protocol.message import Message
from saturnmq.protocol.properties import MessageProperties
from saturnmq.store import PutResult, PutStatus

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_PUT_OK: Final = PutStatus.PUT_OK
_QUEUE_IDS: Final = {str(number).encode(): number for number in range(1024)}
_BORN_DIGITS_MAX: Final = 18  # 19 digits may exceed 64 bits


class ParsedTemplate:
    """Fields that all requests of a header template share. queue and born are indexes into `TemplateCommand.values`.

    asks: whether the sender asks how its message is confirmed.
    """

    __slots__ = ("asks", "born", "born_ms", "born_text", "flag", "queue", "reconsume", "sys_flag", "topic")

    def __init__(self, fields: SendFields, queue: int, born: int, *, asks: bool) -> None:
        self.queue, self.born, self.asks = queue, born, asks
        self.topic = fields.topic
        self.sys_flag = fields.sys_flag & reference.NOT_HOSTS
        self.flag = fields.flag
        self.reconsume = fields.reconsume_times
        self.born_text: bytes | None = None  # of the last message: many messages have the same millisecond
        self.born_ms = 0


def parse(template: HeaderTemplate) -> ParsedTemplate | None:
    """Parse the shared fields of a template; None if the fast path does not support it."""
    names = send_names(template.code)
    try:
        queue, born = template.names.index(names["e"]), template.names.index(names["g"])
        fields = SendFields(template.code, template.shared | {names["e"]: "0", names["g"]: "0"})
    except (KeyError, ValueError, HeaderError):
        return None
    if fields.is_batch:
        return None
    parsed = ParsedTemplate(fields, queue, born, asks=CONFIRMATION_FIELD in template.shared)
    topic = parsed.topic
    if topic in FORBIDDEN_SEND_TOPICS or topic.startswith(RETRY_PREFIX) or parsed.sys_flag & TRANSACTION_MASK:
        return None
    return parsed


def send(ctx: SendContext, connection: Connection, request: Command) -> Command | bytes | Later:
    """Serve a send. Returns a response, its encoded frame (empty for a one-way request), or one that completes later."""
    body, small = request.body, reference.SMALL_BYTES
    if type(request) is TemplateCommand and (
        body is None or len(body) <= small or reference.unflushed_bytes(ctx.store) <= reference.UNFLUSHED_BYTES
    ):
        template = request.template
        parsed = template.parsed
        if parsed is None:
            parsed = template.parsed = parse(template) or False
        if parsed is not False:
            answer = _send(ctx, connection, request, parsed)
            if answer is not None:
                return answer
    return reference.send(ctx, connection, request)


def _send(
    ctx: SendContext, connection: Connection, request: TemplateCommand, parsed: ParsedTemplate
) -> Command | bytes | Later | None:
    """Store the message; None, without side effects, if the reference implementation has to handle it."""
    store, topics = ctx.store, ctx.topics
    values = request.values
    queue_id = _QUEUE_IDS.get(values[parsed.queue])
    config = topics.table.get(parsed.topic)
    if (
        queue_id is None
        or config is None
        or config.order
        or config.topic_filter_type != "SINGLE_TAG"
        or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums)
        or ctx.settings.accept_send_from_ms
        or ctx.in_flight.sends >= ctx.settings.send_queue_max
        or topics.writer.dirty
        or store.busy
    ):
        return None
    born = values[parsed.born]
    if born != parsed.born_text:
        if not born.isdigit() or len(born) > _BORN_DIGITS_MAX:
            return None
        parsed.born_text, parsed.born_ms = born, int(born)
    properties = MessageProperties(request.text, ctx.cluster_suffix)
    if properties.special or not (properties.wait or store.acknowledges_at_once):
        return None
    message = Message(
        config.topic_name,
        request.body or b"",
        properties.text.encode(),
        queue_id,
        parsed.flag,
        parsed.sys_flag,
        parsed.born_ms,
        connection.attributes.get("host") or reference.born_host(connection),  # type: ignore[arg-type]
        ctx.identity.store_host,
        parsed.reconsume,
    )
    answers = ctx.answers
    if parsed.asks:  # no message comes here that does not wait
        answers = answers.stating(confirmation_of(store, waits=True))
    if store.quorum:
        return _put_soon(ctx, request, message, answers)
    began_ns = perf_counter_ns()
    result = store.put(message)
    if result.status is not _PUT_OK:
        return reference.answer(ctx, request, result, result.status, queue_id)
    ctx.stats.put(config.topic_name, 1, result.size, perf_counter_ns() - began_ns)
    if not store.acknowledges_at_once:
        return _answer_later(ctx, request, result, queue_id, answers)
    if request.flag & _ONEWAY:
        return NO_RESPONSE  # the connection would drop it: not worth encoding
    return answers.single_frame(
        request.serialization, request.opaque, queue_id, result.queue_offset, result.physical_offset
    )


def _put_soon(ctx: SendContext, request: TemplateCommand, message: Message, answers: SendAnswers) -> Later:
    """Add the message to the proposal of this event-loop iteration; answers when the group has committed it."""
    later, queue_id, began_ns = Later(), message.queue_id, perf_counter_ns()
    ctx.in_flight.sends += 1

    def completed(status: PutStatus, reason: str) -> None:
        if message.store_bytes:
            ctx.stats.put(message.topic, 1, message.store_bytes, perf_counter_ns() - began_ns)
        response: Command | bytes
        if status is _PUT_OK:
            response = answers.single_frame(
                request.serialization, request.opaque, queue_id, message.queue_offset, message.physical_offset
            )
        else:
            response = reference.answer(ctx, request, PutResult(status, reason=reason), status, queue_id)
        reference.complete(ctx, later, response)

    ctx.store.put_soon(message, completed)
    return later


def _answer_later(
    ctx: SendContext, request: TemplateCommand, result: PutResult, queue_id: int, answers: SendAnswers
) -> Later:
    """Answer when the store confirms the message."""
    later = Later()
    ctx.in_flight.sends += 1

    def confirmed(status: PutStatus, reason: str) -> None:
        if status is _PUT_OK:
            response: Command | bytes = answers.single_frame(
                request.serialization, request.opaque, queue_id, result.queue_offset, result.physical_offset
            )
        else:
            result.reason = result.reason or reason
            response = reference.answer(ctx, request, result, status, queue_id)
        reference.complete(ctx, later, response)

    ctx.store.when_confirmed(result, confirmed)
    return later
