"""Pages about dead letters: by group, one page of messages, resend of those selected, export.

An export is bounded in messages and bytes. CSV is for people: text that a spreadsheet would run as a formula is quoted, control
characters are escaped. A workbook has texts and numbers only. JSON lines are exact: a body that is not text is base64.

Requirements: CON-11.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from saturnmq.client.message import Message
from saturnmq.console.conditions import beginning, readable
from saturnmq.console.context import PAGE_ROWS, Page, paged
from saturnmq.console.download import MEDIA_TYPE, harmless, workbook
from saturnmq.console.messages import link
from saturnmq.console.pages import missing
from saturnmq.console.state import View
from saturnmq.escaping import escaped
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.codes import DLQ_PREFIX, PropertyKey
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.names import group_problem

EXPORT_MAX: Final = 10_000  # messages
EXPORT_BYTES_MAX: Final = 32 * 1024 * 1024
RESEND_SECONDS: Final = 20.0
RESENT_AT_ONCE: Final = 8
COLUMNS: Final = (
    "topic", "msgId", "bornHost", "bornTime", "storeTime", "reconsumeTimes", "properties", "body", "encoding", "bodyCRC",
)  # fmt: skip


async def groups(request: Request, page: Page, view: View) -> Response:
    """Groups with dead letters, the largest number first."""
    search_text = request.query_params.get("q", "").lower()
    topics = [
        topic
        for topic in view.survey.topics.values()
        if topic.name.startswith(DLQ_PREFIX) and search_text in topic.name.removeprefix(DLQ_PREFIX).lower()
    ]
    topics.sort(key=lambda topic: (-topic.kept, topic.name))
    rows = paged(topics, request.query_params.get("page"))
    return page.render(
        "dead_letters.html", rows=rows, search_text=search_text, prefix=DLQ_PREFIX, age=page.services.state.age(view)
    )


async def listing(request: Request, page: Page) -> Response:
    """A page of the dead letters of a group; empty if it has none."""
    group = _group(request.path_params["name"])
    text = request.query_params.get("page", "")
    number = max(int(text), 1) if text.isdecimal() and len(text) < 9 else 1
    letters = page.services.admin.dead_letters
    letter_page = await letters.listing(group, skipped=(number - 1) * PAGE_ROWS, count=PAGE_ROWS)
    return page.render(
        "dead_letters_group.html",
        group=group,
        letter_page=letter_page,
        messages=sorted(letter_page.messages, key=lambda message: -message.record.store_timestamp_ms),
        reason=partial(reason_of, page),
        begin=lambda message: beginning(readable(message)),
        number=number,
        pages=max((letter_page.total + PAGE_ROWS - 1) // PAGE_ROWS, 1),
        link=link,
        position_of=position_of,
        origin=PropertyKey.RETRY_TOPIC,
        export_max=EXPORT_MAX,
    )


async def resend(request: Request, page: Page) -> Response:
    """Resend the selected dead letters; the page says of each what became of it."""
    form = await request.form()
    group = _group(str(form.get("group", "")))
    positions = [_parsed_position(str(text)) for text in form.getlist("at")]
    if not 0 < len(positions) <= PAGE_ROWS:
        raise ConfigError(f"{len(positions)} messages are selected; select 1 to {PAGE_ROWS}")
    permits, end = asyncio.Semaphore(RESENT_AT_ONCE), asyncio.get_running_loop().time() + RESEND_SECONDS

    async def outcome_of(broker: str, queue: int, offset: int) -> tuple[str, bool, str]:
        name = f"{broker} {queue} {offset}"
        try:
            async with asyncio.timeout_at(end), permits:
                letters = page.services.admin.dead_letters
                message = await letters.at(group, broker, queue, offset)
                name = message.message_id or name
                resent = await letters.resend(group, message)
        except TimeoutError:
            return name, False, page.gettext("not tried within {seconds} s", seconds=round(RESEND_SECONDS))
        except SaturnError as error:
            return name, False, error.message
        if resent is None or not resent.client_id:
            return name, True, page.gettext("sent to {topic}", topic=resent.result if resent is not None else "")
        return (
            name,
            resent.done,
            page.gettext("consumed by {client}: {result}", client=resent.client_id, result=resent.result),
        )

    rows = await asyncio.gather(*(outcome_of(*position) for position in positions))
    return page.render("dead_letters_resent.html", group=group, rows=rows)


async def export(request: Request, page: Page) -> Response:
    """All dead letters of a group, up to EXPORT_MAX, as CSV, JSON lines or an Excel workbook."""
    group, kind = _group(request.path_params["name"]), request.path_params["kind"]
    if kind not in ("csv", "jsonl", "xlsx"):
        return missing(page, "message", kind)
    await asyncio.to_thread(
        page.services.record, page.session, page.peer, "export", f"group={group} form={kind}", "200"
    )
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(f'dead-letters-{group}.{kind}', safe='')}"}
    if kind == "xlsx":
        rows = [row async for row in _rows(page, group)]
        return Response(await asyncio.to_thread(workbook, rows), media_type=MEDIA_TYPE, headers=headers)
    writers: dict[str, tuple[str, Callable[[Message[bytes]], str]]] = {
        "csv": ("text/csv; charset=utf-8", _csv_line),
        "jsonl": ("application/x-ndjson", _json_line),
    }
    media_type, write = writers[kind]
    head = csv_row(COLUMNS) if kind == "csv" else ""
    lines = _lines(page, group, head, write)
    first = await anext(lines)  # a failure of the first read is a page, not half a file
    return StreamingResponse(_after(first, lines), media_type=media_type, headers=headers)


async def _lines(page: Page, group: str, head: str, write: Callable[[Message[bytes]], str]) -> AsyncIterator[str]:
    messages = page.services.admin.dead_letters.all_of(group)
    text, count, size = head, 0, 0
    async for message in messages:
        if count == EXPORT_MAX or size > EXPORT_BYTES_MAX:
            break
        line = write(message)
        count, size, text = count + 1, size + len(line), text + line
        if len(text) > 64 * 1024:  # a piece of the response; single lines would each be a frame of HTTP
            yield text
            text = ""
            await asyncio.sleep(0)
    yield text


async def _rows(page: Page, group: str) -> AsyncIterator[list[str | int]]:
    """Rows of a workbook: the names of the columns, then the messages."""
    yield list(COLUMNS)
    count = size = 0
    async for message in page.services.admin.dead_letters.all_of(group):
        if count == EXPORT_MAX or size > EXPORT_BYTES_MAX:
            return
        values = facts(message)
        values["properties"] = json.dumps(values["properties"], ensure_ascii=False)
        row = [value if isinstance(value, int) else str(value) for value in values.values()]
        count, size = count + 1, size + sum(len(value) for value in row if isinstance(value, str))
        yield row
        await asyncio.sleep(0)


async def _after(first: str, following: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for line in following:
        yield line


# ---- parts


def reason_of(page: Page, message: Message[bytes]) -> str:
    """Why a message is a dead letter: what the client gave, else that its deliveries are used up."""
    client_reason = message.dead_letter_reason
    return client_reason or page.gettext("Retries used up: {count}", count=message.record.reconsume_times)


def position_of(message: Message[bytes]) -> str:
    """Where a dead letter is, as the value of its checkbox."""
    return f"{message.queue.broker_name}/{message.queue.queue_id}/{message.offset}"


def _parsed_position(text: str) -> tuple[str, int, int]:
    match text.rsplit("/", 2):
        case [broker, queue, offset] if (
            queue.isdecimal() and offset.isdecimal() and len(queue) < 7 and len(offset) < 19
        ):
            return broker, int(queue), int(offset)
    raise ConfigError(f"message {text!r:.200} must be broker/queue/offset")


def _group(name: str) -> str:
    problem = group_problem(name)
    if problem:
        raise ConfigError(problem)
    return name


def facts(message: Message[bytes]) -> dict[str, Any]:
    """A message as exports write it; the body is text, or base64 if it is not."""
    record = message.record
    try:
        body = message.body
    except SaturnError:  # damaged compression: as it is stored
        body = bytes(record.body)
    try:
        text, encoding = body.decode(), "text"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    values = (
        record.topic, message.message_id, join_host_port(*record.born_host), _iso(record.born_timestamp_ms),
        _iso(record.store_timestamp_ms), record.reconsume_times, dict(record.properties), text, encoding, record.body_crc,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _iso(ms: int) -> str:
    if not 0 < ms < 253_402_300_800_000:
        return str(ms)
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _json_line(message: Message[bytes]) -> str:
    return json.dumps(facts(message)) + "\n"


def _csv_line(message: Message[bytes]) -> str:
    values = facts(message)
    values["properties"] = json.dumps(values["properties"], ensure_ascii=False)
    return csv_row([cell(str(value)) for value in values.values()])


def csv_row(cells: Sequence[str]) -> str:
    """A line of CSV."""
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def cell(text: str) -> str:
    """Text for a spreadsheet: an apostrophe before what would be a formula, control and directional characters escaped."""
    return escaped(harmless(text))
