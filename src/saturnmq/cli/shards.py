"""`saturnmq broker --shards N`: a supervisor and N processes, each with one shard of the broker.

The supervisor starts each shard as the command it was started with and `--shard I`, and starts a shard that ends again, alone. It
passes SIGTERM and SIGHUP on. The standard output of a shard is a line when it is ready, then a line for each topic that a send has
created there, which the supervisor writes to the standard input of the others, so that all have it. A shard stops at the end of its
input: its supervisor has ended, however it did.

Requirements: none of Apache RocketMQ; docs/decisions/0046.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from saturnmq.cli.output import write
from saturnmq.cli.shard_settings import shard_folder, stored_shards
from saturnmq.cli.shard_watchdog import Watchdog
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

PARENT: Final = "SATURNMQ_SHARD_PARENT"  # set for shards: process id of the supervisor
PAUSE_MIN_S: Final = 1.0  # before a shard starts again; doubled each time that it ends before it was ready
PAUSE_MAX_S: Final = 60.0
LINE_BYTES_MAX: Final = 1 << 20  # of what a shard reports
COPIED_STATE: Final = ("topics.json", "subscriptionGroup.json")  # that a new shard begins with


class ShardFailed(SaturnError):
    """A shard ended before it was ready at the start of all."""

    def __init__(self, shard: int, exit_code: int) -> None:
        super().__init__(
            f"shard {shard} ended with exit code {exit_code} before it was ready", hint="Its own lines above say why."
        )


class Shards:
    """The processes of the shards of one broker.

    args: of the command that this process was started with, which `--shards` is among. root: the broker's folder of messages.
    """

    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        self._args, self._root = args, root
        self._words = [sys.executable, "-m", "saturnmq.cli", *args.argv]
        # Shards of an earlier, higher number serve the messages that they have.
        self._numbers = [*range(args.shards), *(number for number in stored_shards(root) if number >= args.shards)]
        self._reports: dict[int, asyncio.Future[dict[str, Any]]] = {}  # of each shard, when it was ready at first
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] | None = None  # of a task that keeps a shard running

    async def start(self, name_servers: str = "") -> None:
        """Start all shards. name_servers: that they register with; those configured by default.

        Raises ShardFailed if one ends before it is ready; call `stop` then, too.
        """
        for number in self._numbers[self._args.shards :]:
            log.warning(
                "shard takes no messages shard=%d reason='--shards is %d' next='remove %s when its messages are consumed'",
                number, self._args.shards, shard_folder(self._root, number),
            )  # fmt: skip
        if name_servers:
            self._words += ["--set", f"namesrvAddr={name_servers}"]
        for number in self._numbers[1:]:
            begin_folder(self._root, number)
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        for number in self._numbers:
            self._reports[number] = loop.create_future()
            self._tasks.append(supervised(self._keep(number), f"shard {number}", self._failed))
        await self._or_failure(asyncio.gather(*self._reports.values()))
        if self._args.config is not None:
            loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)

    def boot_line(self) -> str:
        """The line printed after startup, as of one broker."""
        return f"The {len(self._numbers)} shards boot success."

    def facts(self) -> dict[str, str]:
        """The text of the ready line about the shards."""
        rows = [self._reports[number].result() for number in self._numbers]
        joined = {
            name: ",".join(row[name] for row in rows) for name in ("broker", "advertised", "pid", "unauthenticated")
        }
        return {"shards": str(self._args.shards), **rows[0], **joined, "store": str(self._root)}

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait for a stop signal or a failure of the supervision, which is raised. Shards that end are started again meanwhile."""
        await self._or_failure(asyncio.ensure_future(stop.wait()))

    async def _or_failure(self, work: asyncio.Future[Any]) -> None:
        """Wait until this is done, or raise the failure of the supervision."""
        assert self._failure is not None
        try:
            await asyncio.wait((work, self._failure), return_when=asyncio.FIRST_COMPLETED)
            (work if work.done() else self._failure).result()
        finally:
            await cancel(work)

    def _failed(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _keep(self, number: int) -> None:
        """Run one shard, again whenever it ends."""
        pause_s = PAUSE_MIN_S
        while True:
            code, was_ready = await self._run(number)
            if not self._reports[number].done():
                self._reports[number].set_exception(ShardFailed(number, code))
                return
            pause_s = PAUSE_MIN_S if was_ready else min(pause_s * 2, PAUSE_MAX_S)
            log.error("shard ended shard=%d exit=%d next_start_s=%g", number, code, pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self, number: int) -> tuple[int, bool]:
        """Start one shard and wait until it ends. Returns its exit code, and whether it was ready before."""
        watchdog = Watchdog(number)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words, "--shard", str(number), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                env=_environment() | watchdog.environment, limit=LINE_BYTES_MAX,
            )  # fmt: skip
            self._processes[number] = process
            watchdog.guard(process)
            return await self._follow(number, process)
        finally:
            await watchdog.stop()

    async def _follow(self, number: int, process: asyncio.subprocess.Process) -> tuple[int, bool]:
        """Pass on what a shard reports, until it ends; returns as `_run`."""
        assert process.stdout is not None
        line = report = await process.stdout.readline()
        if line and (ready := self._reports[number]).done():
            log.warning("shard started again shard=%d pid=%d", number, process.pid)
        elif line:
            ready.set_result(json.loads(line)["rows"][0] | {"pid": str(process.pid)})
        async for line in process.stdout:
            self._report_to_siblings(number, line)
        code = await process.wait()
        del self._processes[number]
        return code, bool(report)

    def _report_to_siblings(self, number: int, line: bytes) -> None:
        for sibling, process in self._processes.items():
            if sibling != number and process.stdin is not None:
                process.stdin.write(line)

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to all shards."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def stop(self) -> None:
        """Let all shards stop, which they do in a bounded time, and wait for them."""
        ending = list(self._processes.values())
        await cancel(*self._tasks)
        self._send(signal.SIGTERM)
        for process in ending:
            await process.wait()


def _environment() -> dict[str, str]:
    """The environment of a shard: the supervisor reports to the service manager, and a shard to the supervisor."""
    manager = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    return {name: text for name, text in os.environ.items() if name not in manager} | {PARENT: str(os.getpid())}


def begin_folder(root: Path, number: int) -> None:
    """Give a new shard the topics and subscription groups of shard 0. Raises OSError."""
    folder = shard_folder(root, number) / "config"
    if folder.exists():
        return
    partial = folder.with_name("config.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in COPIED_STATE:
        if (source := root / "config" / name).exists():
            shutil.copyfile(source, partial / name)
    partial.rename(folder)


def is_supervised(args: argparse.Namespace) -> bool:
    """Whether a supervisor has started this process as a shard: its standard output and input are the supervisor's."""
    return args.shard is not None and PARENT in os.environ


def report_topic(topic: TopicConfig) -> None:
    """In a shard: report a topic that a send has created, for the others."""
    write(topic.encode().decode())


async def follow_supervisor(add: Callable[[TopicConfig], None]) -> None:
    """In a shard: add the topics that sends have created at others, until the supervisor ends."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        async for line in reader:
            try:
                add(TopicConfig.decode(line))
            except ResponseError as error:  # of its group
                log.warning("topic of another shard not created line=%r error=%s", line[:200], error)
    finally:
        transport.close()
