"""Pages about messages: search by id or key, one message with its body, its consumers and its trace.

Requirements: CON-09, CON-10.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.messages import TraceView, Track
from saturnmq.client.message import Message
from saturnmq.console.context import Page
from saturnmq.escaping import escaped
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import TRACE_TOPIC, ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError, SaturnError, response_error
from saturnmq.protocol.names import topic_problem

TEXT_MAX: Final = 64 * 1024  # characters of a body that a page shows
INDENTED_MAX: Final = 4 * TEXT_MAX
SENT_BYTES_MAX: Final = 256 * 1024
_HEX_BYTES: Final = 32


@dataclass(frozen=True)
class Body:
    """A body as a page shows it. form: json, text or hex. cut: whether it is longer."""

    form: str
    text: str
    size: int
    cut: bool


def body_of(data: bytes) -> Body:
    """Decide how a body is shown: JSON indented, text, or hexadecimal lines."""
    part = data[:TEXT_MAX]
    cut = len(data) > TEXT_MAX
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(part) - 4:
            lines = (part[at : at + _HEX_BYTES].hex(" ") for at in range(0, min(len(part), TEXT_MAX // 4), _HEX_BYTES))
            return Body("hex", "\n".join(lines), len(data), len(data) > TEXT_MAX // 4)
        text = part[: error.start].decode()
    if not cut and text.lstrip()[:1] in ("{", "["):
        try:
            return Body("json", _lines(_indented(text)), len(data), cut)
        except (ValueError, RecursionError):
            pass
    return Body("text", _lines(text), len(data), cut)


def _indented(text: str) -> str:
    """JSON with indentation. Raises ValueError if it is much longer so: deep nesting makes a page of many MB."""
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
        size += len(part)
        if size > INDENTED_MAX:
            raise ValueError("too long")
        parts.append(part)
    return "".join(parts)


def _lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.split("\n"))


async def search(request: Request, page: Page) -> Response:
    """Messages of a topic with an id or a key."""
    topic = request.query_params.get("topic", "").strip()
    key, message_id = (request.query_params.get(name, "").strip() for name in ("key", "id"))
    if topic and message_id:
        return RedirectResponse(f"/messages/{quote(topic, safe='')}/{quote(message_id, safe='')}", 303)
    found: list[Message[bytes]] = []
    if topic and key:
        try:
            found = await page.services.admin.messages.by_key(topic, key)
        except ResponseError as error:
            if error.code not in (ResponseCode.NO_MESSAGE, ResponseCode.QUERY_NOT_FOUND):
                raise
    view = await page.services.state.view()
    names = sorted({one.name for one in view.survey.topics.values()})[:1000] if view is not None else []
    return page.render(
        "messages.html",
        topic=topic,
        key=key,
        message_id=message_id,
        found=found,
        asked=bool(key),
        names=names,
        link=link,
    )


async def show(request: Request, page: Page) -> Response:
    """One message: where it is stored, its properties, its body, who consumed it, its trace."""
    topic, message_id = request.path_params["topic"], request.path_params["id"]
    try:
        message = await message_of(page, topic, message_id)
    except ResponseError as error:
        if error.code not in (ResponseCode.NO_MESSAGE, ResponseCode.QUERY_NOT_FOUND):
            raise
        return page.render(
            "message.html", 404, message=page.text("not_found", what=page.text("message"), name=message_id)
        )
    tracks, problem = await _tracks(page, message)
    return page.render(
        "one_message.html",
        message=message,
        body=body_of(message.body),
        tracks=tracks,
        problem=problem,
        trace=await _trace(page, message),
    )


async def message_of(page: Page, topic: str, message_id: str) -> Message[bytes]:
    """The message at the queue offset of the query, else that of the id. Raises NoMessage.

    Links have the queue offset: an offset id holds the address that the broker had then, and copies of a retry share a unique id.
    """
    query, messages = page.request.query_params, page.services.admin.messages
    queue, offset = query.get("queue", ""), query.get("offset", "")
    if not (queue.isdecimal() and offset.isdecimal() and len(queue) < 7 and len(offset) < 19):
        return await messages.view(topic, message_id)
    found = await messages.by_queue_offset(MessageQueue(topic, query.get("broker", ""), int(queue)), int(offset))
    if found is None:
        raise response_error(ResponseCode.NO_MESSAGE, f"queue {queue} has no message at {offset}")
    return found


def link(topic: str, message_id: str, queue: MessageQueue, offset: int) -> str:
    """The path of a message's page; without the queue offset if the broker's name is not known."""
    path = f"/messages/{quote(topic, safe='')}/{quote(message_id, safe='')}"
    if not queue.broker_name:
        return path
    where = urlencode({"broker": queue.broker_name, "queue": queue.queue_id, "offset": offset})
    return f"{path}?{where}"


async def _tracks(page: Page, message: Message[Any]) -> tuple[list[Track], str]:
    try:
        return await page.services.admin.messages.tracks(message), ""
    except SaturnError as error:
        return [], error.message


async def _trace(page: Page, message: Message[Any]) -> list[TraceView]:
    try:
        return await page.services.admin.messages.trace(message.message_id or "", TRACE_TOPIC)
    except SaturnError:
        return []


async def send(request: Request, page: Page) -> Response:
    """Send a test message to a topic and show it."""
    form = await request.form()
    topic, tag, keys = (str(form.get(name, "")).strip() for name in ("topic", "tag", "keys"))
    body = str(form.get("body", "")).encode()
    problem = topic_problem(topic)
    if problem:
        raise ConfigError(problem)
    if not 0 < len(body) <= SENT_BYTES_MAX:
        raise ConfigError(f"the body has {len(body)} bytes; it must have 1 to {SENT_BYTES_MAX}")
    receipt = await page.services.admin.messages.send(topic, body, tag=tag, keys=keys)
    if receipt is None:
        return RedirectResponse("/messages", 303)
    return RedirectResponse(link(topic, receipt.message_id, receipt.queue, receipt.offset), 303)
