"""Reads all queues of a topic by offset, without a group: first the backlog in the order of store time, then new messages.

Memory is bounded: of each queue at most one answer to a pull is held. A topic with many queues is read in smaller pulls, so that
all answers together have about 16 MiB, unless single messages are larger. Apache brokers limit a pull by themselves, to 32 messages
and 256 KiB.

Requirements: CLI-11, PL-05, UX-05.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import re
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from saturnmq.cli.output import warn
from saturnmq.client.client import Client
from saturnmq.client.filters import Filter
from saturnmq.client.message import Message
from saturnmq.client.puller.puller import Puller, PullResult, PullStatus
from saturnmq.config.settings import parse_duration_ms, parse_time_ms
from saturnmq.errors import CallTimeout, ConnectFailed
from saturnmq.escaping import escaped
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError

PULL_MESSAGES_MAX: Final = 512
PULL_BYTES_MAX: Final = 256 * 1024
PULL_BYTES_MIN: Final = 16 * 1024
HELD_BYTES: Final = 16 * 1024 * 1024  # of all queues together
CALLS_MAX: Final = 32  # queues asked at the same time while a reader starts
LONG_POLL_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 1.0
_WAITING_MAX: Final = 4  # pulled batches that wait to be read


@dataclass
class _Queue:
    """A queue with the offset of its next pull, and where its backlog ends."""

    queue: MessageQueue
    offset: int
    end: int
    messages: deque[Message[bytes]] = field(default_factory=deque)


class TopicReader:
    """Reads one topic. `starts`: offsets by queue, from which it begins instead of `start`."""

    def __init__(
        self,
        client: Client,
        topic: str,
        message_filter: Filter,
        start: Start,
        starts: dict[MessageQueue, int] | None = None,
    ) -> None:
        self._puller: Puller = client.puller()
        self._topic = topic
        self._message_filter = message_filter
        self._start = start
        self._starts = starts
        self._queues: list[_Queue] = []
        self._pull_bytes = PULL_BYTES_MIN

    async def backlog(self) -> AsyncGenerator[list[Message[bytes]], None]:
        """The stored messages from the start on, in order of store time, until the ends that the queues had at first."""
        limit = asyncio.Semaphore(CALLS_MAX)

        async def opened(queue: MessageQueue) -> _Queue:
            async with limit:
                reader_queue = await self._open(queue)
                await self._fill(reader_queue)
                return reader_queue

        queues = await self._puller.refresh(self._topic)
        self._pull_bytes = max(PULL_BYTES_MIN, min(PULL_BYTES_MAX, HELD_BYTES // max(len(queues), 1)))
        self._queues = await _all([opened(queue) for queue in queues])
        heap = [(_stored(each), number) for number, each in enumerate(self._queues) if each.messages]
        heapq.heapify(heap)
        while heap:
            run: list[Message[bytes]] = []
            while heap and len(run) < PULL_MESSAGES_MAX:
                _, number = heap[0]
                queue = self._queues[number]
                run.append(queue.messages.popleft())
                if not queue.messages:
                    break
                heapq.heapreplace(heap, (_stored(queue), number))
            yield run
            if not queue.messages:
                await self._fill(queue)
                if queue.messages:
                    heapq.heapreplace(heap, (_stored(queue), number))
                else:
                    heapq.heappop(heap)

    async def follow(self) -> AsyncGenerator[list[Message[bytes]], None]:
        """New messages after the backlog, without end; queues that the topic gets later are read from their beginning."""
        arrived: asyncio.Queue[list[Message[bytes]] | SaturnError] = asyncio.Queue(_WAITING_MAX)
        tasks = [asyncio.create_task(self._follow(queue, arrived)) for queue in self._queues]
        tasks.append(asyncio.create_task(self._watch(tasks, arrived)))
        try:
            while True:
                arrival = await arrived.get()
                if isinstance(arrival, SaturnError):
                    raise arrival
                yield arrival
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(
        self, tasks: list[asyncio.Task[None]], arrived: asyncio.Queue[list[Message[bytes]] | SaturnError]
    ) -> None:
        followed = {each.queue for each in self._queues}
        async for queues in self._puller.watch(self._topic):
            for queue in queues:
                if queue not in followed:
                    followed.add(queue)
                    tasks.append(asyncio.create_task(self._follow(_Queue(queue, 0, 0), arrived)))

    async def _follow(self, queue: _Queue, arrived: asyncio.Queue[list[Message[bytes]] | SaturnError]) -> None:
        lost = False
        while True:
            try:
                result = await self._pull(queue, wait=LONG_POLL_SECONDS)
            except SaturnError as error:
                if not error.retryable and not isinstance(error, ConnectFailed | CallTimeout):
                    await arrived.put(error)
                    return
                if not lost:
                    warn(f"warning: {escaped(str(error))}; trying again")
                lost = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            lost = False
            if messages := self._passed(result):
                await arrived.put(messages)

    async def _open(self, queue: MessageQueue) -> _Queue:
        low, high = await self._puller.min_offset(queue), await self._puller.max_offset(queue)
        start = self._start
        at: int = low
        if self._starts is not None and queue in self._starts:
            at = self._starts[queue]
        elif start.last:
            at = high
        elif start.offset is not None:
            at = start.offset
        elif start.time_ms is not None:
            at = await self._puller.offset_by_time(queue, start.time_ms)
        return _Queue(queue, max(low, min(at, high)), high)

    async def _fill(self, queue: _Queue) -> None:
        """Pull until there are messages or the backlog ends."""
        while not queue.messages and queue.offset < queue.end:
            before = queue.offset
            result = await self._pull(queue)
            queue.messages.extend(self._passed(result))
            if result.status is PullStatus.NO_NEW_MESSAGE or queue.offset <= before:
                return

    async def _pull(self, queue: _Queue, wait: float = 0.0) -> PullResult:
        result = await self._puller.pull(
            queue.queue,
            queue.offset,
            max_count=PULL_MESSAGES_MAX,
            bulk_bytes=self._pull_bytes,
            expression=self._message_filter,
            wait=wait,
        )
        queue.offset = result.next_offset
        return result

    def _passed(self, result: PullResult) -> list[Message[bytes]]:
        """The messages of an answer. A broker's offset for a time may lie before it, so the time is compared here too."""
        since = self._start.time_ms
        messages = result.messages()
        return messages if since is None else [each for each in messages if each.record.store_timestamp_ms >= since]


def _stored(queue: _Queue) -> int:
    return queue.messages[0].record.store_timestamp_ms


async def _all(waits: Sequence[Coroutine[Any, Any, _Queue]]) -> list[_Queue]:
    """Await all; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Start(NamedTuple):
    """At most one is set: the offset for every queue, or the store time in Unix ms. last: at the end of each queue."""

    offset: int | None = None
    time_ms: int | None = None
    last: bool = False


FIRST = Start()
LAST = Start(last=True)


def parse_start(text: str, now_ms: int) -> Start:
    """`first`, `last`, an offset, a duration before now, or a time in ISO 8601. Raises ConfigError."""
    text = text.strip()
    if text in ("first", "last", "now"):
        return FIRST if text == "first" else LAST
    if re.fullmatch(r"\d{1,18}", text):
        return Start(offset=int(text))
    with contextlib.suppress(ValueError, OverflowError):
        return Start(time_ms=max(now_ms - parse_duration_ms(text), 0))
    with contextlib.suppress(ValueError, OverflowError):
        return Start(time_ms=max(parse_time_ms(text, now_ms), 0))
    raise ConfigError(
        f"--from {text!r:.60} must be first, last, an offset such as 4711, a duration before now such as 10m, "
        "or a time such as 2026-01-31T12:00:00Z"
    )
