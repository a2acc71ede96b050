"""Reads the messages of a topic in a time range, or follows new ones, in bounded steps, for pages that search and count.

A scan reads the queues in turn, 32 messages at a time, through a puller that commits nothing. Messages are decoded and looked at
in a thread, so large bodies do not hold the event loop. A broker that does not answer ends the scan of its own queues only.

Requirements: CON-09, UX-14.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from saturnmq.admin import Admin
from saturnmq.client.message import Message
from saturnmq.client.puller.puller import Puller, PullResult, PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError

BATCH: Final = 32
QUEUES_MAX: Final = 1024
SCANNED_MAX: Final = 1_000_000
SECONDS_MAX: Final = 300.0
FOLLOW_SECONDS_MAX: Final = 3600.0
PAUSE_SECONDS: Final = 1.0
_ASKED_AT_ONCE: Final = 16
_PAUSE_FACTOR: Final = 2  # a round that takes long is followed by a pause so many times as long
Take = Callable[[Message[bytes]], bool]


@dataclass(frozen=True)
class ScanRange:
    """What is read. end_ms: None to follow new messages from now on. tag: an expression that the brokers evaluate."""

    topic: str
    begin_ms: int = 0
    end_ms: int | None = None
    tag: str = "*"


@dataclass
class TopicScan:
    """One reading. take: called in a thread with each message of the span; it returns whether that is enough.

    scanned and expected count offsets; end is empty while it runs, then `complete`, `enough`, `limit`. problems: by broker name.
    is_viewed: asked between rounds of a scan that follows, which ends with `left` once it is False. A scan that follows and does
    not keep up leaves messages out, which skipped counts.
    """

    admin: Admin
    span: ScanRange
    take: Take
    is_viewed: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    scanned: int = 0
    expected: int = 0
    skipped: int = 0
    end: str = ""
    problems: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Read until the end. Raises RouteNotFound, NoNameServer, ConfigError for a topic with too many queues."""
        puller = await self.admin.messages.puller()
        queues = await puller.refresh(self.span.topic)
        if len(queues) > QUEUES_MAX:
            raise ConfigError(f"{self.span.topic} has {len(queues)} queues; at most {QUEUES_MAX} can be read here")
        cursors = await self._cursors(puller, queues)
        follow = self.span.end_ms is None
        deadline = self.clock() + (FOLLOW_SECONDS_MAX if follow else SECONDS_MAX)
        while (cursors or follow) and not self.end:
            began = self.clock()
            for queue in list(cursors):
                await self._step(puller, queue, cursors)
                if self.end:
                    return
                if self.scanned >= SCANNED_MAX or self.clock() > deadline:
                    self.end = "limit"
                    return
            if follow:
                await self._pause(cursors, self.clock() - began)
        self.end = self.end or "complete"

    async def _pause(self, cursors: dict[MessageQueue, int], took: float) -> None:
        if not cursors:
            self.end = "complete"  # no broker answers, as problems shows
        elif not self.is_viewed():
            self.end = "left"
        else:
            await self.sleep(max(PAUSE_SECONDS, _PAUSE_FACTOR * took))

    async def _cursors(self, puller: Puller, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        """Where the reading of each queue begins; queues without messages of the span are left out, unless it follows."""
        cursors: dict[MessageQueue, int] = {}
        for at in range(0, len(queues), _ASKED_AT_ONCE):
            part = [queue for queue in queues[at : at + _ASKED_AT_ONCE] if queue.broker_name not in self.problems]
            bounds = await asyncio.gather(*(self._bounds(puller, queue) for queue in part))
            for queue, queue_bounds in zip(part, bounds, strict=True):
                if queue_bounds is not None and (queue_bounds[0] < queue_bounds[1] or self.span.end_ms is None):
                    cursors[queue] = queue_bounds[0]
                    self.expected += queue_bounds[1] - queue_bounds[0]
        return cursors

    async def _bounds(self, puller: Puller, queue: MessageQueue) -> tuple[int, int] | None:
        """First offset to read, and about where the reading ends; None if the broker does not answer."""
        span = self.span
        try:
            last = await puller.max_offset(queue)
            if span.end_ms is None:
                return last, last
            first = await puller.min_offset(queue)
            # 1 ms earlier: brokers return any one of several messages stored in the same millisecond
            if span.begin_ms > 0:
                first = max(first, await puller.offset_by_time(queue, span.begin_ms - 1))
            end = await puller.offset_by_time(queue, span.end_ms + 1)
            return first, max(min(end + 1, last), min(first + 1, last))
        except SaturnError as error:
            self.problems[queue.broker_name] = error.message
            return None

    async def _step(self, puller: Puller, queue: MessageQueue, cursors: dict[MessageQueue, int]) -> None:
        if queue.broker_name in self.problems:
            del cursors[queue]
            return
        try:
            result = await puller.pull(queue, cursors[queue], max_count=BATCH, expression=self.span.tag)
            past, enough = await asyncio.to_thread(self._look, result)
        except SaturnError as error:
            self.problems[queue.broker_name] = error.message
            del cursors[queue]
            return
        moved = (
            result.status is PullStatus.OFFSET_ILLEGAL
        )  # the messages expired: the way to the next ones was not read
        ahead = result.next_offset - cursors[queue]
        self.scanned += 0 if moved else max(ahead, 0)
        cursors[queue] = result.next_offset
        if enough:
            self.end = "enough"
        elif self.span.end_ms is None:
            # A tail shows the newest: what it cannot show in time is left out, and counted.
            behind = max(result.max_offset - BATCH - result.next_offset, 0)
            cursors[queue] += behind
            self.skipped += behind
            self.expected = self.scanned
        elif (
            past or result.status is PullStatus.NO_NEW_MESSAGE or ahead <= 0 or result.next_offset >= result.max_offset
        ):
            del cursors[queue]

    def _look(self, result: PullResult) -> tuple[bool, bool]:
        """Whether a message after the span was reached, and whether the taker has enough."""
        messages, end_ms, past = result.messages()[::-1], self.span.end_ms, False
        while messages:
            message = messages.pop()  # and with it its body, which may be large once decompressed
            stored_ms = message.record.store_timestamp_ms
            if end_ms is not None and stored_ms > end_ms:
                past = True
            elif stored_ms >= self.span.begin_ms and self.take(message):
                return past, True
        return past, False
