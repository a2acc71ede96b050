"""Pages about messages: search by id or key, one message with its body, its consumers and its trace.

Requirements: CON-09, CON-10.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.messages import TraceView, Track
from saturnmq.admin.system_names import users_first
from saturnmq.client.message import Message
from saturnmq.console.actions import whole
from saturnmq.console.asking import PAGE_SECONDS
from saturnmq.console.bodies import body_of
from saturnmq.console.conditions import readable
from saturnmq.console.context import Page
from saturnmq.console.download import fields_of, json_line
from saturnmq.console.forms import WrongField
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import TIMER_LIMIT_MS, TRACE_TOPIC, ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError, SaturnError, response_error
from saturnmq.protocol.names import topic_problem

SENT_BYTES_MAX: Final = 256 * 1024
PROPERTIES_MAX: Final = 50
LEVEL_MAX: Final = 18
NAMES_MAX: Final = 1000


async def search(request: Request, page: Page) -> Response:
    """Messages of a topic with an id or a key."""
    topic = request.query_params.get("topic", "").strip()
    key, message_id = (request.query_params.get(name, "").strip() for name in ("key", "id"))
    if topic and message_id:
        return RedirectResponse(f"/messages/{quote(topic, safe='')}/{quote(message_id, safe='')}", 303)
    messages: list[Message[bytes]] = []
    if topic and key:
        client = await page.services.admin.connection.messaging()
        messages = await client.query_messages(topic, key, timeout=PAGE_SECONDS)
        messages.sort(key=lambda message: -message.record.store_timestamp_ms)
    return page.render(
        "messages.html",
        topic=topic,
        key=key,
        message_id=message_id,
        messages=messages,
        searched=bool(key),
        sending=request.query_params.get("send") == "1",
        names=await topic_names(page),
        link=link,
    )


async def topic_names(page: Page) -> list[str]:
    """Names that a form proposes."""
    view = await page.services.state.view()
    return [] if view is None else users_first(list({topic.name for topic in view.survey.topics.values()}))[:NAMES_MAX]


async def show(request: Request, page: Page) -> Response:
    """One message: where it is stored, its properties, its body, who consumed it, its trace."""
    topic, message_id = request.path_params["topic"], request.path_params["id"]
    try:
        message = await message_of(page, topic, message_id)
    except ResponseError as error:
        if error.code not in (ResponseCode.NO_MESSAGE, ResponseCode.QUERY_NOT_FOUND):
            raise
        return page.render(
            "message.html",
            404,
            message=page.gettext("There is no {what} {name}.", what=page.gettext("message"), name=message_id),
        )
    (tracks, problem), trace = await asyncio.gather(_tracks(page, message), _trace(page, message))
    chosen_form, raw = request.query_params.get("form", ""), readable(message)
    body = await asyncio.to_thread(
        body_of,
        raw if raw is not None else bytes(message.record.body),
        topic=topic,
        schemas=page.services.schemas,
        chosen_form=chosen_form,
    )
    return page.render(
        "one_message.html",
        message=message,
        body=body,
        damaged=raw is None,
        tracks=tracks,
        problem=problem,
        trace=trace,
        links=_links(topic, message_id, message),
    )


async def download(request: Request, page: Page) -> Response:
    """One message as a file: `body` as it was sent, or `json` with all its fields."""
    topic, message_id = request.path_params["topic"], request.path_params["id"]
    message = await message_of(page, topic, message_id)
    await asyncio.to_thread(
        page.services.record, page.session, page.peer, "download", f"topic={topic} id={message_id}", "200"
    )
    if request.query_params.get("form") == "body":
        content, kind, end = message.body, "application/octet-stream", "bin"
    else:
        content, kind, end = await asyncio.to_thread(json_line, fields_of(message)), "application/json", "json"
    name = quote(f"{topic}-{message_id}.{end}", safe="")
    return Response(content, media_type=kind, headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"})


async def message_of(page: Page, topic: str, message_id: str) -> Message[bytes]:
    """The message at the queue offset of the query, else that of the id. Raises NoMessage.

    Links have the queue offset: an offset id holds the address that the broker had then, and copies of a retry share a unique id.
    """
    query, messages = page.request.query_params, page.services.admin.messages
    queue, offset = query.get("queue", ""), query.get("offset", "")
    if not (queue.isdecimal() and offset.isdecimal() and len(queue) < 7 and len(offset) < 19):
        return await messages.view(topic, message_id)
    message = await messages.by_queue_offset(MessageQueue(topic, query.get("broker", ""), int(queue)), int(offset))
    if message is None:
        raise response_error(ResponseCode.NO_MESSAGE, f"queue {queue} has no message at {offset}")
    return message


def link(topic: str, message_id: str, queue: MessageQueue, offset: int) -> str:
    """The path of a message's page; without the queue offset if the broker's name is not known."""
    path = f"/messages/{quote(topic, safe='')}/{quote(message_id, safe='')}"
    if not queue.broker_name:
        return path
    where = urlencode({"broker": queue.broker_name, "queue": queue.queue_id, "offset": offset})
    return f"{path}?{where}"


def _links(topic: str, message_id: str, message: Message[bytes]) -> dict[str, str]:
    """Beginnings of the links of a message's page: to its downloads, and to the forms in which its body is shown."""
    path, _, where = link(topic, message_id, message.queue, message.offset).partition("?")
    return {"download": f"{path}/download?{where}&", "shown": f"{path}?{where}&form="}


async def _tracks(page: Page, message: Message[Any]) -> tuple[list[Track], str]:
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            return await page.services.admin.messages.tracks(message), ""
    except TimeoutError:
        return [], page.gettext("No answer within {seconds} s.", seconds=PAGE_SECONDS)
    except SaturnError as error:
        return [], error.message


async def _trace(page: Page, message: Message[Any]) -> list[TraceView]:
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            return await page.services.admin.messages.trace(message.message_id or "", TRACE_TOPIC)
    except (SaturnError, TimeoutError):
        return []


async def send(request: Request, page: Page) -> Response:
    """Send a test message to a topic and show it."""
    form = await request.form()
    topic, tag, keys = (str(form.get(name, "")).strip() for name in ("topic", "tag", "keys"))
    body = str(form.get("body", "")).encode()
    problem = topic_problem(topic)
    if problem:
        raise WrongField("topic", problem)
    if not 0 < len(body) <= SENT_BYTES_MAX:
        raise WrongField("body", f"the body has {len(body)} bytes; it must have 1 to {SENT_BYTES_MAX}")
    level = whole(str(form.get("level", "") or "0"), "level", 0, LEVEL_MAX)
    deliver_at = deliver_at_of(str(form.get("deliver_at", "")).strip(), datetime.now(UTC))
    if deliver_at is not None and level:
        raise WrongField(
            "deliver_at", f"delay level {level} is given, too; give a delay level or a delivery time, not both"
        )
    receipt = await page.services.admin.messages.send(
        topic,
        body,
        tag=tag,
        keys=keys,
        properties=properties_of(str(form.get("properties", ""))),
        delay_level=level,
        deliver_at=deliver_at,
    )
    if receipt is None:
        return RedirectResponse("/messages", 303)
    return RedirectResponse(link(topic, receipt.message_id, receipt.queue, receipt.offset), 303)


async def consume(request: Request, page: Page) -> Response:
    """Let the client of the form, or the first one of the group, handle a message; show what it answers."""
    form = await request.form()
    topic, number, group, client = (str(form.get(name, "")).strip() for name in ("topic", "id", "group", "client"))
    if not group:
        raise ConfigError("give the group whose client shall consume the message")
    admin = page.services.admin
    message = await message_of(page, topic, number)
    if not client:
        client = min(connection.client_id for connection in (await admin.clients.consumers(group)).connection_set)
    result = await admin.messages.consume_directly(group, client, message)
    return page.render("direct.html", topic=topic, id=number, group=group, client=client, result=result)


def deliver_at_of(text: str, now: datetime) -> datetime | None:
    """A delivery time of a form, in UTC if it has no zone; None for an empty field. Raises ConfigError."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        deliver_at = time if time.tzinfo else time.replace(tzinfo=UTC)
        ahead = deliver_at - now
    except (ValueError, OverflowError):
        raise WrongField("deliver_at", f"delivery time {text!r:.40} must be such as 2026-11-23T08:00") from None
    limit = timedelta(milliseconds=TIMER_LIMIT_MS)
    if not timedelta(0) < ahead <= limit:
        bounds = " and ".join(f"{bound:%Y-%m-%d %H:%M:%S}" for bound in (now, now + limit))
        problem = f"must be in the future and at most {limit.days} days ahead: between {bounds} UTC"
        raise WrongField("deliver_at", f"delivery time {text!r:.40} {problem}")
    return deliver_at


def properties_of(text: str) -> dict[str, str]:
    """Properties of a form, one name=value a line. Raises ConfigError."""
    properties = {}
    for line in text.splitlines():
        name, equal, value = line.partition("=")
        if not line.strip():
            continue
        if not equal or not name.strip():
            raise WrongField("properties", f"property {line!r:.80} must be such as name=value")
        properties[name.strip()] = value.strip()
    if len(properties) > PROPERTIES_MAX:
        raise WrongField("properties", f"{len(properties)} properties are given; at most {PROPERTIES_MAX} may be")
    return properties
