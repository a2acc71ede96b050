"""The monitoring service: looks at all groups in rounds, and reports to a listener.

A round asks for the lag and the running information of every group that has a retry topic. Between rounds the events of offsets
that a broker moved, because messages were deleted, are read as they come. A listener is any object with the methods of
`MonitorListener`; an error of a listener is logged and does not end the service.

Requirements: RT-14, C-45.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from saturnmq.admin.admin import Admin
from saturnmq.admin.consumption import queue_order
from saturnmq.admin.health import queue_troubles, same_subscriptions
from saturnmq.admin.mail import Mailer
from saturnmq.client.message import Message
from saturnmq.protocol.bodies import ConsumerRunningInfo, ConsumeStats, MessageQueue, OffsetWrapper
from saturnmq.protocol.codes import OFFSET_MOVED_EVENT
from saturnmq.protocol.errors import SaturnError

log = logging.getLogger(__name__)

FIRST_ROUND_S: Final = 20.0
ROUND_S: Final = 60.0
MONITOR_GROUP: Final = "__MONITOR_CONSUMER"
RUNNING_INFO_SINCE: Final = 62  # ordinal of V3_1_8_SNAPSHOT: older clients have no running information
_WEBHOOK_SECONDS: Final = 10.0


@dataclass(frozen=True)
class UndoneMessages:
    """Messages of a topic that a group has not consumed. delay_ms: store time of the newest minus that of the last consumed."""

    group: str
    topic: str
    total: int
    single_queue: int
    delay_ms: int


@dataclass(frozen=True)
class FailedMessages:
    """Messages of a topic that a group failed to consume recently."""

    group: str
    topic: str
    total: int


@dataclass(frozen=True)
class DeletedMessages:
    """A group asked for an offset that was deleted, and was moved to another one. time_ms: when, Unix ms."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset_asked: int
    offset_new: int
    time_ms: int


class MonitorListener:
    """Receiver of the reports of the monitoring service; the methods do nothing here, so override those of interest.

    Example:
        class Pager(MonitorListener):
            async def undone(self, found: UndoneMessages) -> None:
                if found.total > 10_000:
                    await page(f"{found.group} is {found.total} messages behind")
    """

    async def begin_round(self) -> None:
        """A round begins."""

    async def undone(self, report: UndoneMessages) -> None:
        """The lag of a group in a topic; in every round, also without a lag."""

    async def failed(self, report: FailedMessages) -> None:
        """Failures of a group; Apache's service never reports any."""

    async def deleted(self, report: DeletedMessages) -> None:
        """Messages were deleted before a group had consumed them."""

    async def running_info(self, group: str, infos: Mapping[str, ConsumerRunningInfo]) -> None:
        """Running information of the clients of a group, by client id; at least one."""

    async def end_round(self) -> None:
        """A round is over."""


class LogListener(MonitorListener):
    """Logs everything that is reported; problems of a group's clients with the mark [NOTIFY]."""

    async def begin_round(self) -> None:
        log.info("[MONITOR] round began")

    async def undone(self, report: UndoneMessages) -> None:
        log.info("[MONITOR] undone messages group=%s topic=%s total=%d single_queue=%d delay_ms=%d", report.group,
                 report.topic, report.total, report.single_queue, report.delay_ms)  # fmt: skip

    async def failed(self, report: FailedMessages) -> None:
        log.info("[MONITOR] failed messages group=%s topic=%s total=%d", report.group, report.topic, report.total)

    async def deleted(self, report: DeletedMessages) -> None:
        log.info("[MONITOR] deleted messages group=%s topic=%s broker=%s queue=%d offset=%d new_offset=%d time_ms=%d",
                 report.group, report.topic, report.broker_name, report.queue_id, report.offset_asked, report.offset_new,
                 report.time_ms)  # fmt: skip

    async def running_info(self, group: str, infos: Mapping[str, ConsumerRunningInfo]) -> None:
        for problem in problems_of(group, infos, time.time_ns() // 1_000_000):
            log.info("[MONITOR] [NOTIFY] group=%s client=%s problem=%s queue=%s", group, problem["client"],
                     problem["problem"], problem["queue"])  # fmt: skip

    async def end_round(self) -> None:
        log.info("[MONITOR] round ended")


class _NoticeListener(MonitorListener):
    """Makes a notice of each report: event, subject and document. Lags of 0 are left out."""

    async def undone(self, report: UndoneMessages) -> None:
        if report.total:
            await self._notify("undone", f"lag of {report.group} in {report.topic}: {report.total}", asdict(report))

    async def failed(self, report: FailedMessages) -> None:
        await self._notify("failed", f"failures of {report.group} in {report.topic}: {report.total}", asdict(report))

    async def deleted(self, report: DeletedMessages) -> None:
        await self._notify("deleted", f"messages deleted before {report.group} consumed them", asdict(report))

    async def running_info(self, group: str, infos: Mapping[str, ConsumerRunningInfo]) -> None:
        problems = problems_of(group, infos, time.time_ns() // 1_000_000)
        if problems:
            await self._notify("clients", f"problems of clients of {group}", {"group": group, "problems": problems})

    async def _notify(self, event: str, subject: str, document: dict[str, Any]) -> None:
        raise NotImplementedError


class WebhookListener(_NoticeListener):
    """Posts a JSON document per report to an address: {"event": "undone", "group": ..., ...}. Lags of 0 are left out.

    post: sends the document; by default an HTTP POST on a thread, with a limit of 10 s. An http or https address.
    """

    def __init__(self, url: str, post: Callable[[str, bytes], Awaitable[None]] | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"webhook {url!r:.100} must be an http:// or https:// address")
        self._url = url
        self._post = post or post_json

    async def _notify(self, event: str, subject: str, document: dict[str, Any]) -> None:
        await self._post(self._url, json.dumps({"event": event, **document}).encode())


class MailListener(_NoticeListener):
    """Sends a letter per report over an SMTP server. Lags of 0 are left out.

    Example:
        await Monitoring(admin, MailListener(Mailer("127.0.0.1:25", "mq@example.org", "ops@example.org"))).run()
    """

    def __init__(self, mailer: Mailer) -> None:
        self._mailer = mailer

    async def _notify(self, event: str, subject: str, document: dict[str, Any]) -> None:
        await self._mailer.send(subject, document)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it could lead to an address that was never configured."""

    def redirect_request(self, *args: object) -> None:
        return None


async def post_json(url: str, document: bytes) -> None:
    """Post a JSON document to an http or https address, within 10 s. Raises OSError, also for a status other than 2xx."""
    request = urllib.request.Request(url, document, {"Content-Type": "application/json"})  # noqa: S310 - as below

    def send() -> None:
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            opener.open(request, timeout=_WEBHOOK_SECONDS).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise

    await asyncio.to_thread(send)


def problems_of(group: str, infos: Mapping[str, ConsumerRunningInfo], now_ms: int) -> list[dict[str, Any]]:
    """Problems of a group's clients: different subscriptions, and queues that are not locked, not unlocked or blocked."""
    problems: list[dict[str, Any]] = []
    if not same_subscriptions(infos, now_ms):
        problems.append({"client": "", "problem": "different subscriptions", "queue": "", "number": 0})
    for client in sorted(infos):
        for trouble in queue_troubles(client, infos[client], now_ms):
            queue = f"{trouble.queue.topic}/{trouble.queue.broker_name}/{trouble.queue.queue_id}"
            problems.append(
                {"client": client, "problem": trouble.trouble.value, "queue": queue, "number": trouble.number}
            )
    return problems


class Monitoring:
    """Runs rounds until it is cancelled.

    Example:
        async with Admin("127.0.0.1:9876") as admin:
            await Monitoring(admin, WebhookListener("https://example.org/alerts")).run()
    """

    def __init__(self, admin: Admin, *listeners: MonitorListener) -> None:
        self._admin = admin
        self._listeners = listeners or (LogListener(),)

    async def run(
        self,
        *,
        first_s: float = FIRST_ROUND_S,
        every_s: float = ROUND_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Read events of moved offsets, and look at all groups after first_s seconds and then every every_s seconds."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_cancel, asyncio.create_task(self._events(), name="monitoring events"))
            await sleep(first_s)
            while True:
                began = time.monotonic()
                try:
                    await self.round()
                except SaturnError as error:
                    log.error("monitoring round failed error=%s", error.message)
                await sleep(max(every_s - (time.monotonic() - began), 0.0))

    async def round(self) -> None:
        """Look at all groups once. Raises NoNameServer; groups that cannot be asked are left out."""
        await self._tell("begin_round")
        for group in await self._admin.groups.names():
            await self._undone(group)
            await self._clients(group)
        await self._tell("end_round")

    async def _tell(self, method: str, *args: object) -> None:
        for listener in self._listeners:
            try:
                await getattr(listener, method)(*args)
            except Exception:
                log.exception("listener failed method=%s listener=%s", method, type(listener).__name__)

    async def _undone(self, group: str) -> None:
        try:
            progress = await self._admin.groups.progress(group)
            await self._admin.clients.consumers(group)
        except SaturnError:
            return  # no offsets, or no clients
        by_topic: dict[str, ConsumeStats] = {}
        for queue in sorted(progress.offset_table, key=queue_order):
            stats = by_topic.setdefault(queue.topic, ConsumeStats())
            stats.offset_table[queue] = progress.offset_table[queue]
        for topic, stats in by_topic.items():
            await self._tell("undone", await self._lag(group, topic, stats))

    async def _lag(self, group: str, topic: str, progress: ConsumeStats) -> UndoneMessages:
        lags = [offsets.broker_offset - offsets.consumer_offset for offsets in progress.offset_table.values()]
        delays = [await self._delay_ms(queue, offsets) for queue, offsets in progress.offset_table.items()]
        return UndoneMessages(group, topic, sum(max(lag, 0) for lag in lags), max(0, *lags), max(0, *delays))

    async def _delay_ms(self, queue: MessageQueue, offsets: OffsetWrapper) -> int:
        """Store time of the newest message minus that of the last consumed one; 0 if either is not known."""
        if offsets.last_timestamp <= 0:
            return 0
        try:
            end = await (await self._admin.messages.puller()).max_offset(queue)
            newest = await self._admin.messages.by_queue_offset(queue, end - 1) if end > 0 else None
        except SaturnError:
            return 0
        return newest.record.store_timestamp_ms - offsets.last_timestamp if newest is not None else 0

    async def _clients(self, group: str) -> None:
        infos: dict[str, ConsumerRunningInfo] = {}
        try:
            for client in (await self._admin.clients.consumers(group)).connection_set:
                if client.version >= RUNNING_INFO_SINCE:
                    infos |= await self._info(group, client.client_id)
        except SaturnError:
            return
        if infos:
            await self._tell("running_info", group, infos)

    async def _info(self, group: str, client_id: str) -> dict[str, ConsumerRunningInfo]:
        try:
            return {client_id: await self._admin.clients.running_info(group, client_id)}
        except SaturnError:
            return {}

    async def _events(self) -> None:
        """Report each offset that a broker moved, one after the other."""
        client = await self._admin.connection.messaging()
        async with client.consumer(MONITOR_GROUP) as inbox:
            await inbox.subscribe(OFFSET_MOVED_EVENT, "*")
            async for message in inbox:
                event = event_of(message)
                if event is not None:
                    await self._tell("deleted", event)
                await message.ack()


def event_of(message: Message[Any]) -> DeletedMessages | None:
    """The event in a message of the topic OFFSET_MOVED_EVENT; None if it is none."""
    try:
        body = json.loads(message.body)
        queue = body["messageQueue"]
        return DeletedMessages(
            group=str(body["consumerGroup"]),
            topic=str(queue["topic"]),
            broker_name=str(queue["brokerName"]),
            queue_id=int(queue["queueId"]),
            offset_asked=int(body["offsetRequest"]),
            offset_new=int(body["offsetNew"]),
            time_ms=message.record.store_timestamp_ms,
        )
    except (ValueError, KeyError, TypeError, SaturnError):
        return None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    except SaturnError as error:
        log.error("offset-moved events not read error=%s", error.message)
