"""Sends requests to brokers: limited in flight, one at a time for a fixed queue, with retries of transient errors.

Half messages, which cannot be batched, are written by the window; those that are not stored are sent one by one.

No request is pending when `send` returns or raises. Does not import pyspark.

Requirements: SNK-04, SNK-05, SNK-08.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.send_request import receipts
from saturnmq.client.receipt import STATUS_BY_CODE, Receipt, SendStatus
from saturnmq.client.selection import shard
from saturnmq.errors import CallTimeout, SendFailed
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ResponseError, SaturnError, StoreError
from saturnmq.protocol.frames.command import Command, Serialization
from saturnmq.spark.connect import Link
from saturnmq.spark.encode import EncodedRequest, SendTarget, queue_of
from saturnmq.spark.sink_options import SinkOptions

BUDGET_S: Final = 120.0
PAUSE_S: Final = (0.1, 5.0)
WINDOWS: Final = 2  # of half messages that wait for their answers, while more are written
WINDOW_FACTOR: Final = 4  # half messages of a window, per request that may be in flight
BUSY_CODES: Final = frozenset(
    {int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.FLOW_CONTROL)}
)


@dataclass
class Sender:
    """Sends the requests of one task."""

    link: Link
    options: SinkOptions
    producer: Producer[bytes] = field(init=False)
    took: Callable[[EncodedRequest, list[Receipt]], None] | None = None  # called for every stored request

    def __post_init__(self) -> None:
        self.producer = self.link.client.producer(self.options.producer_group, retry_codes=BUSY_CODES)

    async def shard_target(self, topic: str, key: str) -> SendTarget:
        """Return the queue of a key, chosen as by Java producers; fixed for the task, also when brokers fail (SNK-05)."""
        route = await self.link.core.write_route(topic)
        queue = shard(route.write_queues, key)
        return SendTarget(topic, queue.broker_name, queue.queue_id)

    async def send(self, requests: Iterable[EncodedRequest]) -> None:
        """Send requests until each is acknowledged as option ack requires.

        Raises StoreError naming the topic and the broker's remark.
        """
        limiter = asyncio.Semaphore(self.options.in_flight)
        chains: dict[SendTarget, list[EncodedRequest]] = {}
        free: list[EncodedRequest] = []
        for request in requests:
            if request.ordered:
                chains.setdefault(request.target, []).append(request)
            else:
                free.append(request)

        async def chain(items: list[EncodedRequest]) -> None:
            for item in items:
                async with limiter:
                    await self._send_one_request(item)

        windows = self._windows(free) if self.took is not None else iter(())
        single = [] if self.took is not None else free

        async def send_windows() -> None:
            for window in windows:
                for item in await self._send_window(window):
                    await chain([item])

        try:
            async with asyncio.TaskGroup() as group:
                for items in chains.values():
                    group.create_task(chain(items))
                for item in single:
                    group.create_task(chain([item]))
                for _ in range(WINDOWS):
                    group.create_task(send_windows())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _windows(self, requests: list[EncodedRequest]) -> Iterator[list[EncodedRequest]]:
        """Requests that are written together: of one topic, and as many as wait for an answer at once."""
        by_topic: dict[str, list[EncodedRequest]] = {}
        for request in requests:
            by_topic.setdefault(request.target.topic, []).append(request)
        count = self.options.in_flight * WINDOW_FACTOR
        for items in by_topic.values():
            yield from (items[at : at + count] for at in range(0, len(items), count))

    async def _send_window(self, requests: list[EncodedRequest]) -> list[EncodedRequest]:
        """Write requests for one queue together; returns those not stored as option ack requires, to be sent one by one."""
        producer, prepared = self.producer, requests[0].prepared
        deadline = Deadline(self.options.send_timeout_ms)
        try:
            queue = producer._pick(await producer._route(prepared.topic, deadline), None)
            address = await producer._address(queue, deadline)
        except SaturnError:
            return requests  # and their errors are those of single requests
        commands = [producer._command(request.prepared, queue) for request in requests]
        for command in commands:
            command.serialization = Serialization.ROCKETMQ  # no text to escape, and shorter
        outcomes = await self.link.core.remote.call_all(address, commands, max(deadline.remaining_ms, 1))
        remaining: list[EncodedRequest] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Command) and outcome.code in STATUS_BY_CODE:
                stored = receipts(request.prepared, queue, outcome)
                if self.options.ack == "stored" or stored[0].status is SendStatus.SEND_OK:
                    if self.took is not None:
                        self.took(request, stored)
                    continue
            remaining.append(request)
        return remaining

    async def _send_one_request(self, request: EncodedRequest) -> None:
        options, began, pause = self.options, time.monotonic(), PAUSE_S[0]
        for attempt in range(options.retries + 1):
            try:
                if options.ack == "none":
                    await self._oneway(request)
                    return
                receipts = await self._deliver(request)
                if options.ack == "stored" or all(r.status is SendStatus.SEND_OK for r in receipts):
                    if self.took is not None:
                        self.took(request, receipts)
                    return
                cause = f"stored, but not durably: {receipts[0].status.name}"
            except SaturnError as error:
                if not _may_pass(error):
                    raise StoreError(f"topic {request.target.topic}: the broker rejected a message: {error}") from error
                cause = str(error)
            if time.monotonic() - began > BUDGET_S or attempt == options.retries:
                raise StoreError(f"topic {request.target.topic}: not sent after {attempt + 1} attempts: {cause}")
            await asyncio.sleep(pause * (0.5 + random.random() / 2))
            pause = min(pause * 2, PAUSE_S[1])

    async def _deliver(self, request: EncodedRequest) -> list[Receipt]:
        """Return the receipts of one delivery; the producer may choose another broker when the queue is not fixed."""
        if request.ordered and self.link.core.routes.cached(request.target.topic) is None:
            await self.link.core.write_route(request.target.topic)
        return await self.producer._deliver(
            request.prepared, queue_of(request.target), Deadline(self.options.send_timeout_ms)
        )

    async def _oneway(self, request: EncodedRequest) -> None:
        producer, prepared = self.producer, request.prepared
        deadline = Deadline(self.options.send_timeout_ms)
        route = await producer._route(prepared.topic, deadline)
        queue = queue_of(request.target) or producer._pick(route, None)
        address = await producer._address(queue, deadline)
        command = producer._command(prepared, queue)
        await self.link.core.remote.call_oneway(address, command, max(deadline.remaining_ms, 1))


def _may_pass(error: SaturnError) -> bool:
    """Whether a retry can help: busy, shutting down, unreachable. A rejection by the broker is final (SNK-08)."""
    cause: BaseException | None = error.__cause__ if isinstance(error, SendFailed) else error
    if isinstance(cause, ResponseError):
        return cause.code in BUSY_CODES
    return isinstance(cause, CallTimeout) or error.retryable
