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
from saturnmq.cli.everyday.positions import LAST
from saturnmq.cli.everyday.progress import Progress
from saturnmq.cli.everyday.reading import PULL_BYTES_MAX, PULL_MESSAGES_MAX, TopicReader
from saturnmq.cli.output import EXIT_DONE, EXIT_PROBLEMS, emit, write
from saturnmq.cli.runtime import implementation, loop_name
from saturnmq.client.client import Client
from saturnmq.client.filters import Filter
from saturnmq.client.producer.producer import Producer
from saturnmq.config.settings import parse_duration_ms, parse_size
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError

GROUP: Final = "saturnmq-bench"
FAILURES_MAX: Final = 10  # of one task, one after the other
PULLS_MAX: Final = 8  # at a time
GRACE_SECONDS: Final = 10.0  # for messages that are on their way when the last one was sent
RUN: Final = struct.Struct("!8sQ")  # of an end-to-end message: the run, and when it was due, ns of the monotonic clock


class Plan:
    """The limits of a run. Raises ConfigError."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.topic: str = args.topic
        self.count: int | None = args.count
        self.seconds = _parsed("--duration", args.duration, parse_duration_ms, 1, 86_400_000) / 1000
        self.size = _parsed("--size", getattr(args, "size", "128"), parse_size, 1, 2**22)
        self.concurrency: int = getattr(args, "concurrency", 1)
        self._taken = 0
        self._until = 0.0

    def begin(self) -> None:
        """Start the time of the run."""
        self._until = time.monotonic() + self.seconds

    def give_back(self, count: int) -> None:
        """Return messages that were taken and did not exist."""
        self._taken -= count

    def take(self, wanted: int = 1) -> int:
        """How many of the wanted messages are still to be sent; 0 at the end of the run."""
        if time.monotonic() >= self._until:
            return 0
        if self.count is not None:
            wanted = min(wanted, self.count - self._taken)
        self._taken += wanted
        return wanted


def _parsed(name: str, text: str, parse: Callable[[str], int], low: int, high: int) -> int:
    try:
        value = parse(text)
    except ValueError as error:
        raise ConfigError(f"{name} {text!r:.60} {error}") from None
    if not low <= value <= high:
        raise ConfigError(f"{name} {text!r:.60} must be in {low}..{high}")
    return value


def run_send(args: argparse.Namespace) -> int:
    """Measure sending: many concurrent sends, each confirmed by a broker."""

    async def main(client: Client, plan: Plan, found: Measurement, progress: Progress) -> None:
        async with client.producer(GROUP, max_in_flight=args.concurrency) as out:
            await out.send(plan.topic, bytes(1))  # creates the topic and the connections
            errors: deque[SaturnError] = deque(maxlen=1)
            body = os.urandom(plan.size)
            start(plan, found)
            await asyncio.gather(
                *(_sender(out, plan, found, progress, body, args.batch, errors) for _ in range(args.concurrency))
            )
            if not found.messages and errors:
                raise errors[0]

    return _measured(main, args)


async def _sender(
    out: Producer[bytes],
    plan: Plan,
    found: Measurement,
    progress: Progress,
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
            found.failed += count
            errors.append(error)
            continue
        failures = 0
        now = time.monotonic()
        found.add(now, now - began, count, count * len(body))
        progress.at(found.messages)


def run_consume(args: argparse.Namespace) -> int:
    """Measure reading what is stored: eight queues at a time, without a group. Latencies are those of pulls."""

    async def main(client: Client, plan: Plan, found: Measurement, progress: Progress) -> None:
        puller = client.puller()
        queues = await puller.refresh(plan.topic)
        ends = await asyncio.gather(*(puller.max_offset(queue) for queue in queues))
        begins = await asyncio.gather(*(puller.min_offset(queue) for queue in queues))

        limit = asyncio.Semaphore(PULLS_MAX)

        async def read(queue: MessageQueue, offset: int, end: int) -> None:
            while offset < end:
                wanted = plan.take(min(PULL_MESSAGES_MAX, end - offset))
                if not wanted:
                    return
                async with limit:
                    began = time.monotonic()
                    result = await puller.pull(queue, offset, max_count=wanted, bulk_bytes=PULL_BYTES_MAX)
                    messages, now = result.messages(), time.monotonic()
                plan.give_back(wanted - len(messages))
                found.add(now, now - began, len(messages), sum(len(message.body) for message in messages))
                progress.at(found.messages)
                if result.next_offset <= offset:
                    return
                offset = result.next_offset

        start(plan, found)
        await asyncio.gather(*(read(*each) for each in zip(queues, begins, ends, strict=True)))

    return _measured(main, args)


def run_e2e(args: argparse.Namespace) -> int:
    """Measure the way of a message from the call of `send` to a reader that waits for it, at a fixed rate.

    A message counts from the time at which it was due, so that a stall is not hidden by sends that wait for it. Exit code 3 if
    messages were sent and not received.
    """

    async def main(client: Client, plan: Plan, found: Measurement, progress: Progress) -> None:
        async with client.producer(GROUP, max_in_flight=args.concurrency) as out:
            await out.send(plan.topic, bytes(1))
            reader = TopicReader(client, plan.topic, Filter(), LAST)
            async for _ in reader.backlog():
                pass
            this_run, moved = os.urandom(8), asyncio.Event()
            start(plan, found)
            receiver = asyncio.create_task(_receive(reader, found, progress, this_run, moved))
            receiver.add_done_callback(lambda _: moved.set())
            try:
                sent = await _paced(out, plan, this_run, args.rate)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_SECONDS):
                        while found.messages < sent and not receiver.done():
                            moved.clear()
                            await moved.wait()
                found.failed = max(sent - found.messages, 0)
                if receiver.done():
                    receiver.result()
            finally:
                receiver.cancel()
                await asyncio.gather(receiver, return_exceptions=True)

    return _measured(main, args)


async def _paced(out: Producer[bytes], plan: Plan, this_run: bytes, rate: int) -> int:
    """Send at a rate; return how many messages were stored. Raises the error of the first send that fails."""
    began, number = time.monotonic_ns(), 0
    tasks: set[asyncio.Task[object]] = set()
    try:
        while plan.take():
            due = began + number * 1_000_000_000 // rate
            number += 1
            await asyncio.sleep(max((due - time.monotonic_ns()) / 1e9, 0))
            body = RUN.pack(this_run, due) + bytes(max(plan.size - RUN.size, 0))
            tasks.add(asyncio.create_task(out.send(plan.topic, body)))
            if len(tasks) >= plan.concurrency:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return number


async def _receive(
    reader: TopicReader, found: Measurement, progress: Progress, this_run: bytes, moved: asyncio.Event
) -> None:
    """Count the messages of this run, without end."""
    async for messages in reader.follow():
        now = time.monotonic()
        for message in messages:
            if len(message.body) >= RUN.size and message.body.startswith(this_run):
                _, due = RUN.unpack_from(message.body)
                found.add(now, now - due / 1e9, 1, len(message.body))
        progress.at(found.messages)
        moved.set()


def start(plan: Plan, found: Measurement) -> None:
    """Start the time of a run."""
    plan.begin()
    found.begin(time.monotonic())


def _measured(
    main: Callable[[Client, Plan, Measurement, Progress], Coroutine[Any, Any, None]], args: argparse.Namespace
) -> int:
    """Run a benchmark and print what it has measured, also when Ctrl-C ends it."""
    plan, found = Plan(args), Measurement()
    command = args.command.name

    async def started() -> int:
        async with client_of(args) as client:
            with Progress(command, args, total=plan.count) as progress:
                await main(client, plan, found, progress)
        return EXIT_PROBLEMS if found.failed else EXIT_DONE

    try:
        return run(started, args, fast=True)
    finally:
        if found.messages or found.failed:
            _report(found, command, args)


def _report(found: Measurement, command: str, args: argparse.Namespace) -> None:
    if args.json:
        emit(command, [found.row()], loop=loop_name(), implementation=implementation())
        return
    write(f"{command} {args.topic} ({implementation()}, {loop_name()})")
    for line in found.lines(unicode=(sys.stdout.encoding or "").lower().startswith("utf")):
        write(line)
