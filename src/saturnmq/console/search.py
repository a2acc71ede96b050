"""Search of a topic's messages in a time range, and its live tail, as jobs with progress: start, results, cancel, download.

Requirements: CON-09, UX-14, UX-16.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from saturnmq.client.message import Message
from saturnmq.config.settings import parse_duration_ms
from saturnmq.console.actions import moment
from saturnmq.console.conditions import Conditions, beginning, parse_conditions, readable
from saturnmq.console.context import Page, paged
from saturnmq.console.download import COLUMNS, csv_line, fields_of, json_line
from saturnmq.console.forms import WrongField
from saturnmq.console.jobs import Job
from saturnmq.console.messages import link, topic_names
from saturnmq.console.scanning import NewestScan, ScanRange, TopicScan
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.names import topic_problem

FOUND_MAX: Final = 2000
TEXT_MAX: Final = 200  # of tag and keys, which are kept for each result
DOWNLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
DOWNLOAD_SECONDS: Final = 25.0
TAIL_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found, without its body. size: of the body, bytes; begin: of its text."""

    queue: MessageQueue
    offset: int
    id: str
    tag: str
    keys: str
    stored_ms: int
    size: int
    begin: str

    @property
    def path(self) -> str:
        """The path of the message's page."""
        return link(self.queue.topic, self.id, self.queue, self.offset)


def hit_of(message: Message[bytes]) -> Hit:
    """What is kept of a message."""
    body = readable(message)
    return Hit(
        message.queue,
        message.offset,
        message.message_id[:TEXT_MAX],
        (message.tag or "")[:TEXT_MAX],
        " ".join(message.keys)[:TEXT_MAX],
        message.record.store_timestamp_ms,
        -1 if body is None else len(body),
        beginning(body),
    )


class Hits:
    """Messages that meet the conditions; of more than `most` the newest."""

    def __init__(self, conditions: Conditions, most: int = FOUND_MAX) -> None:
        self.rows: list[Hit] = []
        self._conditions, self._most = conditions, most

    def take(self, message: Message[bytes]) -> bool:
        """Keep a message that meets the conditions. Returns False: whether there are enough depends on those to come."""
        if self._conditions.met(message):
            self.rows.append(hit_of(message))
            if len(self.rows) >= 2 * self._most:
                self.rows = self._kept()
        return False

    def has_enough(self, newest_ms: int) -> bool:
        """Whether no message that was stored at or before a time (Unix ms) can be among the newest."""
        return sum(hit.stored_ms > newest_ms for hit in self.rows) >= self._most

    def sorted(self) -> list[Hit]:
        """The messages by time of storage."""
        return sorted(self._kept(), key=_by_time)

    def _kept(self) -> list[Hit]:
        return sorted(self.rows, key=_by_time)[-self._most :]


class LastHits(Hits):
    """As `Hits`; of more than `most` the last that came, since the clock of one broker may be behind another's."""

    def _kept(self) -> list[Hit]:
        return self.rows[-self._most :]


def _by_time(hit: Hit) -> tuple[int, str, int, int]:
    return hit.stored_ms, hit.queue.broker_name, hit.queue.queue_id, hit.offset


async def form(request: Request, page: Page) -> Response:
    """The form of a search, and the jobs of the user."""
    jobs = page.services.jobs.of(page.user)
    topic = request.query_params.get("topic", "")
    return page.render("search.html", topic=topic, jobs=jobs, names=await topic_names(page))


async def start(request: Request, page: Page) -> Response:
    """Begin a search."""
    form = await request.form()
    conditions = parse_conditions(form)
    now_ms = time.time_ns() // 1_000_000
    topic = topic_of(str(form.get("topic", "")))
    begin_ms, end_ms = range_of(str(form.get("from", "")), str(form.get("to", "")), now_ms)
    hits = Hits(conditions)
    span = ScanRange(topic, begin_ms, end_ms, conditions.tag or "*")
    scan = NewestScan(page.services.admin, span, hits.take, has_enough=hits.has_enough)
    return opened(page, page.services.jobs.start(page.user, "search", topic, scan, hits))


async def follow(request: Request, page: Page) -> Response:
    """Begin a live tail: the newest messages as they are stored, while a page shows them (see jobs.py)."""
    form = await request.form()
    conditions = parse_conditions(form)
    topic = topic_of(str(form.get("topic", "")))
    hits = LastHits(conditions, TAIL_ROWS)
    scan = TopicScan(page.services.admin, ScanRange(topic, tag=conditions.tag or "*"), hits.take)
    return opened(page, page.services.jobs.start(page.user, "tail", topic, scan, hits))


async def show(request: Request, page: Page) -> Response:
    """A job: its progress, and what it has found so far."""
    job = page.services.jobs.find(page.user, request.path_params["id"])
    if job is None:
        return page.render(
            "message.html", 404, message=page.gettext("There is no such search; results are kept for an hour.")
        )
    if job.kind == "analysis":
        return page.render("analysis.html", job=job, shares=job.collector.shares())
    rows = job.collector.sorted()[::-1]
    if job.kind == "tail":
        return page.render("tail.html", job=job, rows=rows)
    return page.render("found.html", job=job, rows=paged(rows, request.query_params.get("page")), most=FOUND_MAX)


async def cancel(request: Request, page: Page) -> Response:
    """End a job; what it has found stays."""
    form = await request.form()
    job = page.services.jobs.find(page.user, str(form.get("id", "")))
    if job is None:
        return page.render(
            "message.html", 404, message=page.gettext("There is no such search; results are kept for an hour.")
        )
    await page.services.jobs.cancel(job)
    return opened(page, job)


async def download(request: Request, page: Page) -> Response:
    """The messages that a job has found, whole, as JSON lines or as a table."""
    job = page.services.jobs.find(page.user, request.path_params["id"])
    if job is None or job.kind == "analysis":
        return page.render(
            "message.html", 404, message=page.gettext("There is no such search; results are kept for an hour.")
        )
    form = "csv" if request.query_params.get("form") == "csv" else "jsonl"
    await asyncio.to_thread(
        page.services.record, page.session, page.peer, "download", f"topic={job.scan.span.topic} form={form}", "200"
    )
    name = quote(f"{job.scan.span.topic}.{form}", safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    kind = "text/csv; charset=utf-8" if form == "csv" else "application/jsonl; charset=utf-8"
    return StreamingResponse(_lines(page, job, form), media_type=kind, headers=headers)


async def _lines(page: Page, job: Job, form: str) -> AsyncIterator[bytes]:
    """Read each message again: results keep no bodies. The last line of an incomplete file states why it ends."""
    messages, size = page.services.admin.messages, 0
    deadline = time.monotonic() + DOWNLOAD_SECONDS
    if form == "csv":
        yield csv_line(COLUMNS)
    hits = job.collector.sorted()
    for count, hit in enumerate(hits):
        problem = ""
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                message = await messages.by_queue_offset(hit.queue, hit.offset)
        except SaturnError as error:
            problem = error.message
        except TimeoutError:
            problem = f"the download takes longer than {DOWNLOAD_SECONDS:g} s"
        else:
            if message is None:
                continue  # expired meanwhile
            fields = await asyncio.to_thread(fields_of, message)
            line = csv_line(list(fields.values())) if form == "csv" else json_line(fields)
            size += len(line)
            if size <= DOWNLOAD_BYTES_MAX:
                yield line
                continue
            problem = f"the download has more than {DOWNLOAD_BYTES_MAX} bytes"
        text = f"ended after {count} of {len(hits)} messages: {problem}"
        yield csv_line([text]) if form == "csv" else json_line({"problem": text})
        return


def opened(page: Page, job: Job) -> Response:
    """To the page of a job."""
    return RedirectResponse(f"/search/{job.id}", 303)


def topic_of(text: str) -> str:
    """The topic of a form. Raises ConfigError."""
    topic = text.strip()
    problem = None if topic.startswith("%") and len(topic) <= 255 else topic_problem(topic)  # %RETRY% and %DLQ% topics
    if problem:
        raise WrongField("topic", problem)
    return topic


def range_of(begin: str, end: str, now_ms: int) -> tuple[int, int]:
    """First and last time of storage, Unix ms; by default the last hour. Raises ConfigError."""
    first = _time("from", begin.strip() or "1h", now_ms)
    last = now_ms if end.strip() in ("", "end") else _time("to", end.strip(), now_ms)
    if first > last:
        raise WrongField("from", f"the range begins at {begin!r:.40}, after its end {end!r:.40}")
    return first, last


def _time(field: str, text: str, now_ms: int) -> int:
    try:
        return max(now_ms - int(parse_duration_ms(text)), 0)
    except ValueError:
        try:
            return moment(text)
        except ConfigError as error:
            raise WrongField(field, error.message) from None
