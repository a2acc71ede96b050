"""Codes 10, 310, 320 as most of them come: a single message for an existing topic, answered at once or when flushed.

What follows from the part of a header that a producer repeats is worked out once per shape of header (`Plan`). Whatever is not
plain (a new topic, an odd number, a property with a meaning for the broker, a store that is busy) goes to
`send.send`, which is the definition: for any request both leave the same bytes in the store and on the wire. A new rule for
sends belongs there; when it concerns a property or a field, say here that it is not plain. Source: spec 01 section 4, SND-01..15.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from saturnmq.broker.context import Context
from saturnmq.broker.dledger_store import LedgerStore
from saturnmq.broker.numbers import int32, int32_or
from saturnmq.broker.processors import send as definition
from saturnmq.net import Connection, Later
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, RETRY_PREFIX, TRANSACTION_MASK, CommandFlag, RequestCode
from saturnmq.protocol.command import Command
from saturnmq.protocol.errors import HeaderError
from saturnmq.protocol.message import Message
from saturnmq.protocol.shapes import HeaderShape, ShapedCommand
from saturnmq.store import PutResult, PutStatus

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_V1: Final = int(RequestCode.SEND_MESSAGE)
_PUT_OK: Final = PutStatus.PUT_OK
_QUEUE_IDS: Final = {str(number).encode(): number for number in range(1024)}
_BORN_DIGITS_MAX: Final = 18  # more may not fit 64 bits
_WAIT: Final = "\x02WAIT\x01true"  # how a Java producer's properties end
_WAIT_ALONE: Final = _WAIT[1:]


class Plan:
    """What the shared part of a header says. The first three are places in `ShapedCommand.values`."""

    __slots__ = ("born", "born_ms", "born_text", "flag", "properties", "queue", "reconsume", "sys_flag", "topic")

    def __init__(self, ext: dict[str, str], queue: int, born: int, properties: int) -> None:
        self.queue, self.born, self.properties = queue, born, properties
        self.topic = ext["b"]
        self.sys_flag = int32(ext, "f") & definition.NOT_HOSTS
        self.flag = int32(ext, "h")
        self.reconsume = int32_or(ext, "j", 0)
        self.born_text: bytes | None = (
            None  # of the last message, and what it means: many messages share their millisecond
        )
        self.born_ms = 0


def plan_of(shape: HeaderShape) -> Plan | None:
    """The plan for requests of this shape; None when they are not plain."""
    shared, names = shape.shared, shape.names
    if shape.code == _V1:
        shared = {short: shared[name] for short, name in definition.V1.items() if name in shared}
        names = tuple(definition.V1_SHORT.get(name, name) for name in names)
    if shape.code == _BATCH or shared.get("m") == "true" or len(names) != 3:
        return None
    try:
        plan = Plan(shared, names.index("e"), names.index("g"), names.index("i"))
    except (KeyError, ValueError, HeaderError):
        return None
    topic = plan.topic
    if topic in FORBIDDEN_SEND_TOPICS or topic.startswith(RETRY_PREFIX) or plan.sys_flag & TRANSACTION_MASK:
        return None
    return plan


def send(
    ctx: Context, connection: Connection, request: Command
) -> Command | bytes | Later | Coroutine[Any, Any, Command]:
    """The answer, or its frame; nothing at all to a plain one-way request."""
    if type(request) is ShapedCommand:
        shape = request.shape
        plan = shape.plan
        if plan is None:
            plan = shape.plan = plan_of(shape) or False
        if plan is not False:
            answer = _send(ctx, connection, request, plan)
            if answer is not None:
                return answer
    return definition.send(ctx, connection, request)


def _send(ctx: Context, connection: Connection, request: ShapedCommand, plan: Plan) -> Command | bytes | Later | None:
    """Store a plain message; None when it is not plain, and nothing is done yet."""
    store, topics = ctx.store, ctx.topics
    values = request.values
    queue_id = _QUEUE_IDS.get(values[plan.queue])
    config = topics.table.get(plan.topic)
    if (
        queue_id is None
        or config is None
        or config.order
        or config.topic_filter_type != "SINGLE_TAG"
        or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums)
        or ctx.settings.accept_send_from_ms
        or ctx.waiting_sends >= ctx.settings.send_queue_max
        or topics.saver.writing
        or store.busy
    ):
        return None
    born = values[plan.born]
    if born != plan.born_text:
        if not born.isdigit() or len(born) > _BORN_DIGITS_MAX:
            return None
        plan.born_text, plan.born_ms = born, int(born)
    properties = values[plan.properties].decode()
    if properties.endswith(_WAIT):
        properties = properties[: -len(_WAIT)]
    elif properties == _WAIT_ALONE:
        properties = ""
    if (
        "WAIT\x01" in properties
        or "CLUSTER\x01" in properties
        or "DEL" in properties  # DELAY, TIMER_DELAY_SEC and their like
        or "TRAN_MSG\x01" in properties
    ):
        return None
    if not properties or properties[-1] == "\x02":
        properties += ctx.cluster_suffix[1:]
    else:
        properties += ctx.cluster_suffix
    message = Message(
        config.topic_name,
        request.body or b"",
        properties.encode(),
        queue_id,
        plan.flag,
        plan.sys_flag,
        plan.born_ms,
        connection.attributes.get("host") or definition.born_host(connection),  # type: ignore[arg-type]
        ctx.store_host,
        plan.reconsume,
    )
    if store.quorum and isinstance(store, LedgerStore):
        return _put_soon(ctx, store, request, message)
    result = store.put(message)
    if result.status is not _PUT_OK:
        return definition.answer(ctx, request, result, result.status, queue_id)
    stats = ctx.stats
    stats.put_messages += 1
    stats.put_bytes += result.size
    if not store.confirms_at_once:
        return _answer_later(ctx, request, result, queue_id)
    if request.flag & _ONEWAY:
        return b""
    return ctx.answers.one(request.serialization, request.opaque, queue_id, result.queue_offset, result.physical_offset)


def _put_soon(ctx: Context, store: LedgerStore, request: ShapedCommand, message: Message) -> Later:
    """With what else came in this turn of the loop; the answer when the group has committed it."""
    later, queue_id = Later(), message.queue_id
    ctx.waiting_sends += 1

    def told(status: PutStatus, reason: str) -> None:
        ctx.waiting_sends -= 1
        if message.store_bytes:
            ctx.stats.put_messages += 1
            ctx.stats.put_bytes += message.store_bytes
        made: Command | bytes
        if status is _PUT_OK:
            made = ctx.answers.one(
                request.serialization, request.opaque, queue_id, message.queue_offset, message.physical_offset
            )
        else:
            made = definition.answer(ctx, request, PutResult(status, reason=reason), status, queue_id)
        definition.give(ctx, later, made)

    store.put_soon(message, told)
    return later


def _answer_later(ctx: Context, request: ShapedCommand, result: PutResult, queue_id: int) -> Later:
    def made(status: PutStatus) -> Command | bytes:
        if status is not _PUT_OK:
            return definition.answer(ctx, request, result, status, queue_id)
        return ctx.answers.one(
            request.serialization, request.opaque, queue_id, result.queue_offset, result.physical_offset
        )

    return definition.answer_later(ctx, result, made)
