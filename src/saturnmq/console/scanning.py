"""Reads the messages of a topic in a time range, or follows new ones, in bounded steps, for pages that search and count.

A scan reads the queues in turn, 32 messages at a time, through a puller that commits nothing; a search reads the newest first.
Messages are decoded and looked at in a thread, so large bodies do not hold the event loop. A broker that does not answer ends the
scan of its own queues only.

Requirements: CON-09, UX-14.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from saturnmq.admin import Admin
from saturnmq.client.message import Message
from saturnmq.client.puller.puller import Puller, PullResult, PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.message import store_timestamp_of

BATCH: Final = 32
QUEUES_MAX: Final = 1024
SCANNED_MAX: Final = 1_000_000
SECONDS_MAX: Final = 300.0
FOLLOW_SECONDS_MAX: Final = 3600.0
PAUSE_SECONDS: Final = 1.0
_ASKED_AT_ONCE: Final = 16
_WINDOW_MAX: Final = 512  # offsets of a queue that a search reads before it looks at others
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
        puller, bounds = await self._begun()
        cursors = {queue: first for queue, (first, _) in bounds.items()}
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

    async def _begun(self) -> tuple[Puller, dict[MessageQueue, tuple[int, int]]]:
        """The puller, and the bounds of each queue; queues without messages of the span are left out, unless it follows."""
        puller = await self.admin.messages.puller()
        queues = await puller.refresh(self.span.topic)
        if len(queues) > QUEUES_MAX:
            raise ConfigError(f"{self.span.topic} has {len(queues)} queues; at most {QUEUES_MAX} can be read here")
        bounds: dict[MessageQueue, tuple[int, int]] = {}
        for at in range(0, len(queues), _ASKED_AT_ONCE):
            part = [queue for queue in queues[at : at + _ASKED_AT_ONCE] if queue.broker_name not in self.problems]
            answers = await asyncio.gather(*(self._bounds(puller, queue) for queue in part))
            for queue, queue_bounds in zip(part, answers, strict=True):
                if queue_bounds is not None and (queue_bounds[0] < queue_bounds[1] or self.span.end_ms is None):
                    bounds[queue] = queue_bounds
                    self.expected += queue_bounds[1] - queue_bounds[0]
        return puller, bounds

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

    def _look(self, result: PullResult, limit: int | None = None) -> tuple[bool, bool]:
        """Whether a message after the span was reached, and whether the taker has enough. limit: first offset to leave."""
        messages, end_ms, past = result.messages()[::-1], self.span.end_ms, False
        while messages:
            message = messages.pop()  # and with it its body, which may be large once decompressed
            stored_ms = message.record.store_timestamp_ms
            if limit is not None and message.offset >= limit:
                break
            if end_ms is not None and stored_ms > end_ms:
                past = True
            elif stored_ms >= self.span.begin_ms and self.take(message):
                return past, True
        return past, False


@dataclass(order=True)
class _Unread:
    """What is left of a queue: offsets first to end. newest_ms: none of these messages was stored later."""

    newest_ms: int
    number: int
    queue: MessageQueue = field(compare=False)
    first: int = field(compare=False)
    end: int = field(compare=False)
    window: int = field(default=BATCH, compare=False)


@dataclass
class NewestScan(TopicScan):
    """Reads the newest messages of its span first.

    A window of offsets is read forward, then the one before it; next comes the queue whose unread messages may be the newest.
    has_enough: whether so many messages stored after a time (Unix ms) were taken that those up to it are not wanted.
    """

    has_enough: Callable[[int], bool] = lambda newest_ms: False

    async def run(self) -> None:
        """See `TopicScan.run`."""
        puller, bounds = await self._begun()
        until_ms, deadline = self.span.end_ms or 0, self.clock() + SECONDS_MAX
        heap = [_Unread(-until_ms, number, queue, *bounds[queue]) for number, queue in enumerate(bounds)]
        while heap:
            unread = heappop(heap)
            if self.has_enough(-unread.newest_ms):
                self.end = "enough"
                return
            if unread.queue.broker_name not in self.problems and await self._window(puller, unread):
                heappush(heap, unread)
            if self.scanned >= SCANNED_MAX or self.clock() > deadline:
                self.end = "limit"
                return
        self.end = "complete"

    async def _window(self, puller: Puller, unread: _Unread) -> bool:
        """Read the last window of what is left; whether something is left then."""
        begin = at = max(unread.first, unread.end - unread.window)
        try:
            while at < unread.end:
                count = min(BATCH, unread.end - at)
                result = await puller.pull(unread.queue, at, max_count=count, expression=self.span.tag)
                await asyncio.to_thread(self._look, result, unread.end)
                if result.body and at == begin:
                    unread.newest_ms = max(unread.newest_ms, -store_timestamp_of(memoryview(result.body)))
                if result.status is PullStatus.OFFSET_ILLEGAL:  # the messages before it expired
                    unread.first = min(max(result.min_offset, at + 1), unread.end)
                elif result.next_offset <= at:
                    break
                else:
                    self.scanned += min(result.next_offset, unread.end) - at
                at = max(result.next_offset, unread.first)
        except SaturnError as error:
            self.problems[unread.queue.broker_name] = error.message
            return False
        unread.end, unread.window = begin, min(2 * unread.window, _WINDOW_MAX)
        return unread.first < unread.end
