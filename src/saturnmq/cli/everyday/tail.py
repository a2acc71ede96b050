"""`saturnmq tail` prints messages without a group; `saturnmq consume` as a member of one, or what a group would get next.

Requirements: CLI-02..CLI-04, CLI-11.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from saturnmq.cli.cluster import client_of, run
from saturnmq.cli.everyday.messages import Printer
from saturnmq.cli.everyday.reading import FIRST, TopicReader, parse_start
from saturnmq.cli.output import EXIT_DONE, emit, warn
from saturnmq.client.client import Client
from saturnmq.client.filters import Filter, sql, tag
from saturnmq.client.message import Message
from saturnmq.client.puller.puller import Puller
from saturnmq.errors import RouteNotFound
from saturnmq.protocol.codes import RETRY_PREFIX
from saturnmq.protocol.errors import ConfigError, SaturnError

MessageBatches = AsyncGenerator[list[Message[bytes]], None]


def run_tail(args: argparse.Namespace) -> int:
    """Print the messages of a topic, and follow new ones unless --no-follow is given."""
    start = parse_start(args.start, time.time_ns() // 1_000_000)
    message_filter, printer = filter_of(args), printer_of(args, "tail")

    async def main() -> int:
        async with client_of(args) as client:
            reader = TopicReader(client, args.topic, message_filter, start)
            await _print_batches(_backlog_and_new(reader, follow=not args.no_follow), printer, args)
        return EXIT_DONE

    return _run_and_report_count(main, printer, args)


def run_consume(args: argparse.Namespace) -> int:
    """Print messages as a member of a group that acknowledges them, or print what the group would get next."""
    if not (args.ack or args.peek):
        raise ConfigError(
            "give --ack, which joins the group and takes its messages, or --peek, which only shows what the group has not consumed"
        )
    message_filter, printer = filter_of(args), printer_of(args, "consume")
    idle_seconds = None if args.idle is None else args.idle / 1000

    async def main() -> int:
        async with client_of(args) as client:
            if args.peek:
                await _peek(client, args, message_filter, printer)
            else:
                await _consume(client, args, message_filter, printer, idle_seconds)
        return EXIT_DONE

    return _run_and_report_count(main, printer, args)


def filter_of(args: argparse.Namespace) -> Filter:
    """The filter that the brokers evaluate. Raises ConfigError."""
    return sql(args.sql) if args.sql else tag(args.tag or "*")


def printer_of(args: argparse.Namespace, command: str) -> Printer:
    """A printer for the format that the options choose; also sets `args.json`."""
    output_format = "json" if args.json else args.format
    args.json = output_format == "json"  # errors and the count follow the format
    return Printer(command, output_format, terminal=sys.stdout.isatty())


def _body_matcher(args: argparse.Namespace) -> Callable[[Message[bytes]], bool] | None:
    """A predicate: whether the body of a message contains the pattern of --grep; None without --grep. Raises ConfigError."""
    if not args.grep:
        return None
    try:
        pattern = re.compile(args.grep.encode())
    except re.error as error:
        raise ConfigError(f"--grep {args.grep!r:.60} is no regular expression: {error}") from None
    return lambda message: pattern.search(message.body) is not None


async def _backlog_and_new(reader: TopicReader, *, follow: bool) -> MessageBatches:
    async for messages in reader.backlog():
        yield messages
    if follow:
        async for messages in reader.follow():
            yield messages


async def _print_batches(batches: MessageBatches, printer: Printer, args: argparse.Namespace) -> None:
    """Print messages until the batches end or --count of them are printed."""
    matches = _body_matcher(args)
    remaining = args.count
    try:
        async for messages in batches:
            if matches is not None:
                messages = [message for message in messages if matches(message)]
            printer.show(messages[:remaining])
            if remaining is not None:
                remaining -= min(remaining, len(messages))
                if remaining == 0:
                    return
    finally:
        await batches.aclose()


async def _peek(client: Client, args: argparse.Namespace, message_filter: Filter, printer: Printer) -> None:
    """Print from the committed offsets to the end; nothing is committed."""
    puller = client.puller()
    queues = await puller.refresh(args.topic)
    offsets = await asyncio.gather(*(puller.committed(args.group, queue) for queue in queues))
    starts = {queue: offset for queue, offset in zip(queues, offsets, strict=True) if offset is not None}
    if not any(starts.values()):  # brokers answer 0 for an unknown group, too
        await _check_group(puller, args)
    reader = TopicReader(client, args.topic, message_filter, FIRST, starts)
    await _print_batches(_backlog_and_new(reader, follow=False), printer, args)


async def _check_group(puller: Puller, args: argparse.Namespace) -> None:
    """Raise SaturnError for a group without a retry topic, which brokers create when a member of the group connects."""
    try:
        await puller.refresh(RETRY_PREFIX + args.group)
    except RouteNotFound:
        raise SaturnError(
            f"no consumer of group {args.group} has ever connected: the group is new, or the name is wrong. `saturnmq admin "
            f"consumerProgress` lists the groups; `saturnmq tail {args.topic} --from first` shows every message"
        ) from None


async def _consume(
    client: Client, args: argparse.Namespace, message_filter: Filter, printer: Printer, idle_seconds: float | None
) -> None:
    """Join the group; print and acknowledge each message."""
    async with client.consumer(args.group, start="first") as consumer:
        await consumer.subscribe(args.topic, message_filter)
        while args.count is None or printer.count < args.count:
            try:
                message = await consumer.recv(timeout=idle_seconds)
            except TimeoutError:
                return
            printer.show([message])
            await message.ack()


def _run_and_report_count(
    main: Callable[[], Coroutine[Any, Any, int]], printer: Printer, args: argparse.Namespace
) -> int:
    """Run a command; at its end, also by Ctrl-C, report how many messages it printed."""
    try:
        exit_code = run(main, args)
    except (KeyboardInterrupt, SaturnError) as error:
        if printer.count or isinstance(error, KeyboardInterrupt):
            _report_count(printer.count, args)
        raise
    _report_count(printer.count, args)
    return exit_code


def _report_count(count: int, args: argparse.Namespace) -> None:
    """The number of messages: the last JSON document, or a line on stderr; nothing with --quiet."""
    if args.quiet:
        return
    if args.json:
        emit(args.command.name, [], messages=count)
    else:
        warn(f"{count} message{'' if count == 1 else 's'}")
