"""`saturnmq bench`: how fast a cluster takes, gives and passes on messages, seen from here.

Requirements: CLI-02..CLI-04, CLI-07.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from saturnmq.cli.cluster import client_of, run
from saturnmq.cli.everyday.measurement import Measurement
from saturnmq.cli.everyday.progress import CommandProgress
from saturnmq.cli.everyday.reading import LAST, PULL_BYTES_MAX, PULL_MESSAGES_MAX, TopicReader
from saturnmq.cli.output import EXIT_DONE, EXIT_PROBLEMS, emit, write
from saturnmq.cli.runtime import implementation, loop_name
from saturnmq.client.client import Client
from saturnmq.client.filters import Filter
from saturnmq.client.producer.producer import Producer
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError

GROUP: Final = "saturnmq-bench"
FAILURES_MAX: Final = 10  # of one task, one after the other
PULLS_MAX: Final = 8  # at a time
GRACE_SECONDS: Final = (
    10.0  # for the route of a new topic, and for messages that are on their way when the last one was sent
)
ROUTE_RETRY_SECONDS: Final = 0.1
RUN: Final = struct.Struct("!8sQ")  # of an end-to-end message: the run, and when it was due, ns of the monotonic clock


class BenchPlan:
    """The limits of a run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.topic: str = args.topic
        self.count: int | None = args.count
        self.seconds = args.duration / 1000
        self.size = getattr(args, "size", 0)
        self.concurrency: int = getattr(args, "concurrency", 1)
        self._issued = 0
        self._until = 0.0

    def begin(self) -> None:
        """Start the time of the run."""
        self._until = time.monotonic() + self.seconds

    def give_back(self, count: int) -> None:
        """Return messages that were taken and did not exist."""
        self._issued -= count

    def take(self, requested: int = 1) -> int:
        """Number of the requested messages that are still to be sent; 0 at the end of the run."""
        if time.monotonic() >= self._until:
            return 0
        if self.count is not None:
            requested = min(requested, self.count - self._issued)
        self._issued += requested
        return requested


def run_send(args: argparse.Namespace) -> int:
    """Measure sending: many concurrent sends, each confirmed by a broker."""

    async def main(client: Client, plan: BenchPlan, measurement: Measurement, progress: CommandProgress) -> None:
        async with client.producer(GROUP, max_in_flight=args.concurrency) as out:
            await out.send(plan.topic, bytes(1))  # creates the topic and the connections
            errors: deque[SaturnError] = deque(maxlen=1)
            body = os.urandom(plan.size)
            start(plan, measurement)
            await asyncio.gather(
                *(_sender(out, plan, measurement, progress, body, args.batch, errors) for _ in range(args.concurrency))
            )
            if not measurement.messages and errors:
                raise errors[0]

    return _measured(main, args)


async def _sender(
    out: Producer[bytes],
    plan: BenchPlan,
    measurement: Measurement,
    progress: CommandProgress,
    body: bytes,
    batch: int,
    errors: deque[SaturnError],
) -> None:
    failures = 0
    while failures < FAILURES_MAX and (count := plan.take(batch)):
        began = time.monotonic()
        try:
            sent: Awaitable[object] = (
                out.send(plan.topic, body) if count == 1 else out.send_many(plan.topic, [body] * count)
            )
            await sent
        except SaturnError as error:
            failures += 1
            measurement.failed += count
            errors.append(error)
            continue
        failures = 0
        now = time.monotonic()
        measurement.add(now, now - began, count, count * len(body))
        progress.at(measurement.messages)


def run_consume(args: argparse.Namespace) -> int:
    """Measure reading what is stored: eight queues at a time, without a group. Latencies are those of pulls."""

    async def main(client: Client, plan: BenchPlan, measurement: Measurement, progress: CommandProgress) -> None:
        puller = client.puller()
        queues = await puller.refresh(plan.topic)
        ends = await asyncio.gather(*(puller.max_offset(queue) for queue in queues))
        begins = await asyncio.gather(*(puller.min_offset(queue) for queue in queues))

        limit = asyncio.Semaphore(PULLS_MAX)

        async def read(queue: MessageQueue, offset: int, end: int) -> None:
            while offset < end:
                pull_count = plan.take(min(PULL_MESSAGES_MAX, end - offset))
                if not pull_count:
                    return
                async with limit:
                    began = time.monotonic()
                    result = await puller.pull(queue, offset, max_count=pull_count, bulk_bytes=PULL_BYTES_MAX)
                    messages, now = result.messages(), time.monotonic()
                plan.give_back(pull_count - len(messages))
                measurement.add(now, now - began, len(messages), sum(len(message.body) for message in messages))
                progress.at(measurement.messages)
                if result.next_offset <= offset:
                    return
                offset = result.next_offset

        start(plan, measurement)
        await asyncio.gather(*(read(*each) for each in zip(queues, begins, ends, strict=True)))

    return _measured(main, args)


def run_e2e(args: argparse.Namespace) -> int:
    """Measure the way of a message from the call of `send` to a reader that waits for it, at a fixed rate.

    A message counts from the time at which it was due, so that a stall is not hidden by sends that wait for it. Exit code 3 if
    messages were sent and not received.
    """

    async def main(client: Client, plan: BenchPlan, measurement: Measurement, progress: CommandProgress) -> None:
        async with client.producer(GROUP, max_in_flight=args.concurrency) as out:
            await out.send(plan.topic, bytes(1))
            await _wait_for_route(client, plan.topic)
            reader = TopicReader(client, plan.topic, Filter(), LAST)
            async for _ in reader.backlog():
                pass
            this_run, moved = os.urandom(8), asyncio.Event()
            start(plan, measurement)
            receiver = asyncio.create_task(_receive(reader, measurement, progress, this_run, moved))
            receiver.add_done_callback(lambda _: moved.set())
            try:
                sent = await _paced(out, plan, this_run, args.rate)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_SECONDS):
                        while measurement.messages < sent and not receiver.done():
                            moved.clear()
                            await moved.wait()
                measurement.failed = max(sent - measurement.messages, 0)
                if receiver.done():
                    receiver.result()
            finally:
                receiver.cancel()
                await asyncio.gather(receiver, return_exceptions=True)

    return _measured(main, args)


async def _wait_for_route(client: Client, topic: str) -> None:
    """Wait until the NameServers have a topic that a send may have created: a broker registers it after its response (NS-34)."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_SECONDS):
            while True:
                if await client.topic_exists(topic):
                    return
                await asyncio.sleep(ROUTE_RETRY_SECONDS)


async def _paced(out: Producer[bytes], plan: BenchPlan, this_run: bytes, rate: int) -> int:
    """Send at a rate; return how many messages were stored. Raises the error of the first send that fails."""
    began, number = time.monotonic_ns(), 0
    tasks: set[asyncio.Task[object]] = set()
    try:
        while plan.take():
            due_ns = began + number * 1_000_000_000 // rate
            number += 1
            await asyncio.sleep(max((due_ns - time.monotonic_ns()) / 1e9, 0))
            body = RUN.pack(this_run, due_ns) + bytes(max(plan.size - RUN.size, 0))
            tasks.add(asyncio.create_task(out.send(plan.topic, body)))
            if len(tasks) >= plan.concurrency:
                completed, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in completed:
                    each.result()
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return number


async def _receive(
    reader: TopicReader, measurement: Measurement, progress: CommandProgress, this_run: bytes, moved: asyncio.Event
) -> None:
    """Count the messages of this run, without end."""
    async for messages in reader.follow():
        now = time.monotonic()
        for message in messages:
            if len(message.body) >= RUN.size and message.body.startswith(this_run):
                _, due_ns = RUN.unpack_from(message.body)
                measurement.add(now, now - due_ns / 1e9, 1, len(message.body))
        progress.at(measurement.messages)
        moved.set()


def start(plan: BenchPlan, measurement: Measurement) -> None:
    """Start the time of a run."""
    plan.begin()
    measurement.begin(time.monotonic())


def _measured(
    main: Callable[[Client, BenchPlan, Measurement, CommandProgress], Coroutine[Any, Any, None]],
    args: argparse.Namespace,
) -> int:
    """Run a benchmark and print what it has measured, also when Ctrl-C ends it."""
    plan, measurement = BenchPlan(args), Measurement()
    command = args.command.name

    async def started() -> int:
        async with client_of(args) as client:
            with CommandProgress(command, args, total=plan.count) as progress:
                await main(client, plan, measurement, progress)
        return EXIT_PROBLEMS if measurement.failed else EXIT_DONE

    try:
        return run(started, args, fast=True)
    finally:
        if measurement.messages or measurement.failed:
            _report(measurement, command, args)


def _report(measurement: Measurement, command: str, args: argparse.Namespace) -> None:
    if args.json:
        emit(command, [measurement.row()], loop=loop_name(), implementation=implementation())
        return
    write(f"{command} {args.topic} ({implementation()}, {loop_name()})")
    for line in measurement.lines(unicode=(sys.stdout.encoding or "").lower().startswith("utf")):
        write(line)
