"""`saturnmq send`: one message given as an argument, or one per line of standard input.

Requirements: CLI-02..CLI-04, CLI-07, CLI-11.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Final

from saturnmq.cli.cluster import GROUP, client_of, run
from saturnmq.cli.everyday.lines import lines, whole
from saturnmq.cli.everyday.messages import parse_json
from saturnmq.cli.everyday.progress import CommandProgress
from saturnmq.cli.output import EXIT_DONE, emit, warn, write
from saturnmq.client.client import Client
from saturnmq.client.message import Outgoing
from saturnmq.client.producer.producer import Producer
from saturnmq.client.receipt import Receipt
from saturnmq.errors import PartialSend
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import ConfigError

BATCH_MESSAGES: Final = 128
BATCH_BYTES: Final = 1024 * 1024
JSON_OVERHEAD: Final = 8  # bytes of a line per byte of a body: escapes, base64, properties
Batches = AsyncGenerator[list[Outgoing[bytes]], None]


class CommandSender:
    """Sends batches in order, prints receipts, and counts them."""

    def __init__(self, args: argparse.Namespace, *, single: bool) -> None:
        self._args = args
        self._single = single
        self._delay = None if args.delay is None else args.delay / 1000
        self.count = 0

    async def send(self, out: Producer[bytes], batch: Sequence[Outgoing[bytes]]) -> None:
        """Send one batch; with a delay, which batches cannot have, one message per request."""
        topic: str = self._args.topic
        try:
            if self._delay is None and len(batch) > 1:
                receipts = await out.send_many(topic, batch)
            else:
                receipts = await asyncio.gather(*(self._send_one(out, message) for message in batch))
        except PartialSend as error:
            self.count += len(error.receipts)
            raise
        self.count += len(receipts)
        self._show(receipts)

    async def _send_one(self, out: Producer[bytes], message: Outgoing[bytes]) -> Receipt:
        return await out.send(
            self._args.topic,
            message.value,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            delay=self._delay,
        )

    def _show(self, receipts: Sequence[Receipt]) -> None:
        if self._args.json:
            for receipt in receipts:
                emit("send", [_row(receipt)])
        elif self._single:
            for receipt in receipts:
                queue = receipt.queue
                where = escaped(f"{queue.broker_name}/{queue.queue_id}@{receipt.offset}")
                write(f"{receipt.status.value} {where} {escaped(receipt.message_id)}")


def _row(receipt: Receipt) -> dict[str, Any]:
    queue = receipt.queue
    return {
        "status": receipt.status.value,
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": receipt.offset,
        "message_id": receipt.message_id,
        "offset_message_id": receipt.offset_message_id,
        "durable": receipt.durable,
        "confirmation": receipt.confirmation.value if receipt.confirmation is not None else None,
    }


def run_send(args: argparse.Namespace) -> int:
    """Send what the arguments or standard input hold."""
    from_input = args.body is None or args.body == "-"
    if args.body is None and sys.stdin.isatty():
        raise ConfigError("give the body of the message, or - to read one message per line from standard input")
    sender = CommandSender(args, single=not from_input and args.count == 1)
    began = time.monotonic()

    async def main() -> int:
        async with client_of(args) as client, client.producer(GROUP) as out:
            batches = _batches_of_input(client, args) if from_input else _batches_of(_from_argument(args), args.count)
            with CommandProgress("sent", args, total=None if from_input else args.count) as progress:
                try:
                    async for batch in batches:
                        await sender.send(out, batch)
                        progress.at(sender.count)
                finally:
                    await batches.aclose()
        return EXIT_DONE

    code = None
    try:
        code = run(main, args)
    finally:
        _report(sender.count, time.monotonic() - began, args, is_complete=code is not None, single=sender._single)
    return code


def _report(count: int, seconds: float, args: argparse.Namespace, *, is_complete: bool, single: bool) -> None:
    """The result, on stdout; of a command that failed or was interrupted, how far it came, on stderr."""
    if args.json:
        if is_complete:
            emit("send", [], messages=count)
        return
    text = f"sent {count} message{'' if count == 1 else 's'} to {escaped(args.topic)} in {seconds:.2f} s"
    if not is_complete and count:
        warn(text)
    elif is_complete and not single:
        write(text)


def _from_argument(args: argparse.Namespace) -> Outgoing[bytes]:
    body = os.fsencode(args.body)
    messages = _parsed(body, args, "the body")
    if len(messages) != 1:
        raise ConfigError(f"the body holds {len(messages)} rows; give one, or several on standard input")
    return messages[0]


async def _batches_of(message: Outgoing[bytes], count: int) -> Batches:
    size = max(1, min(BATCH_MESSAGES, BATCH_BYTES // max(len(message.value), 1)))
    remaining = count
    while remaining:
        yield [message] * min(size, remaining)
        remaining -= min(size, remaining)


async def _batches_of_input(client: Client, args: argparse.Namespace) -> Batches:
    """The messages of standard input; what one read has completed is sent before the next read."""
    descriptor, bytes_max = sys.stdin.fileno(), client.settings.body_bytes_max
    if args.whole:
        for message in _parsed(await whole(descriptor, bytes_max), args, "standard input"):
            async for batch in _batches_of(message, args.count):
                yield batch
        return
    number = empty = 0
    async for completed_lines in lines(descriptor, bytes_max if args.format == "text" else bytes_max * JSON_OVERHEAD):
        messages: list[Outgoing[bytes]] = []
        for line in completed_lines:
            number += 1
            if line:
                messages += _parsed(line, args, f"line {number} of standard input")
            else:
                empty += 1
        repeated = itertools.chain.from_iterable(itertools.repeat(each, args.count) for each in messages)
        for batch in _split(repeated):
            yield batch
    if empty and not args.quiet:
        warn(f"{empty} empty line{'' if empty == 1 else 's'} skipped: a message has a body of at least one byte")


def _split(messages: Iterator[Outgoing[bytes]]) -> Iterator[list[Outgoing[bytes]]]:
    batch: list[Outgoing[bytes]] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(message.value) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.value)
    if batch:
        yield batch


def _parsed(data: bytes, args: argparse.Namespace, where: str) -> list[Outgoing[bytes]]:
    """The messages of a body or line in the format of --format, with what the options add. Raises ConfigError."""
    try:
        if args.format == "json":
            messages = parse_json(data)
        elif args.format == "hex":
            messages = [Outgoing(value=bytes.fromhex(data.decode("ascii")))]
        else:
            messages = [Outgoing(value=data)]
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
    properties = _properties(args)
    if not (args.tag or args.key or properties):
        return messages
    return [
        dataclasses.replace(
            each,
            tag=args.tag or each.tag,
            keys=[*each.keys, *args.key],
            properties={**each.properties, **properties},
        )
        for each in messages
    ]


def _properties(args: argparse.Namespace) -> Mapping[str, str]:
    pairs = {}
    for text in args.property:
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise ConfigError(f"--property {text!r:.60} must be NAME=VALUE")
        pairs[name] = value
    return pairs
