"""A broker, a load and a Spark program as processes that are killed and restarted at points chosen by a seed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

import saturnmq
from saturnmq.protocol.errors import SaturnError

READY_SECONDS_MAX = 90
POINT_SECONDS_MAX = 150
POLL_SECONDS = 0.01
GONE_SECONDS_MAX = 60
SETTINGS = {
    "storeProfile": "small",
    "mappedFileSizeCommitLog": "4194304",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "1000",
    "fastPortEnable": "false",
}


class Broker:
    """A `saturnmq standalone` process; a restart keeps its ports and files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = ("0", "0")
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.name_servers = ""

    def start(self) -> None:
        """Start the process; returns when it serves."""
        words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        with (self._folder / "broker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "saturnmq.cli", "standalone", "--data", str(self._folder / "data"),
                 "--namesrv-port", self._ports[0], "--port", self._ports[1], *words],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._process = process
        lines: queue.Queue[str | None] = queue.Queue()
        assert process.stdout is not None
        self._reader = threading.Thread(target=_lines_of, args=(process.stdout, lines))
        self._reader.start()
        while True:
            line = lines.get(timeout=READY_SECONDS_MAX)
            assert line is not None, f"the broker did not start:\n{(self._folder / 'broker.log').read_text()[-3000:]}"
            if line.startswith("saturnmq: ready "):
                facts = dict(word.split("=", 1) for word in line.split()[2:] if "=" in word)
                break
        self.name_servers = facts["namesrv"]
        self._ports = (facts["namesrv"].rpartition(":")[2], facts["broker"].rpartition(":")[2])

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal and wait; returns the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(timeout=30)
        assert self._reader is not None and process.stdout is not None
        self._reader.join(timeout=10)
        process.stdout.close()
        return code


def _lines_of(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


class Load:
    """Sends numbered messages until stopped, across every kill of the broker. What is stored is judged by the broker's
    content only.
    """

    def __init__(self, name_servers: str, topic: str, pause_seconds: float) -> None:
        self._arguments = name_servers, topic, pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.sent = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    async def _run(self) -> None:
        name_servers, topic, pause_seconds = self._arguments
        rest = asyncio.Event()
        async with (
            saturnmq.Client(name_servers=name_servers, timeout=2) as client,
            client.producer("chaos-load") as out,
        ):
            for number in itertools.count():
                if self._stop.is_set():
                    return
                try:
                    await out.send(topic, b"%d" % number, keys=str(number), timeout=2)
                    self.sent += 1
                except (SaturnError, OSError):
                    pass  # killed: the outcome is unknown, continue with the next number
                try:
                    async with asyncio.timeout(pause_seconds):
                        await rest.wait()
                except TimeoutError:
                    pass


@dataclass
class Program:
    """A Spark program (driver, JVM, Python workers) that is restarted whenever it ends."""

    words: list[str]
    log: Path
    starts: int = 0
    codes: list[int] = field(default_factory=list)
    _process: psutil.Popen | None = None
    _known: dict[int, psutil.Process] = field(default_factory=dict)

    def ensure(self) -> bool:
        """Start the program unless it runs; returns whether it was started."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return False
            self.codes.append(code)
        with self.log.open("ab") as log:
            self._process = psutil.Popen(
                [sys.executable, "-X", "faulthandler", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1
        return True

    def wait(self, seconds: float) -> int:
        """Wait for a regular end and return the exit code; a program that hangs gets SIGABRT, so that its stacks are logged."""
        assert self._process is not None
        try:
            return int(self._process.wait(timeout=seconds))
        except psutil.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(timeout=60)
            raise AssertionError(f"it did not end in {seconds} s:\n{self.log.read_text()[-6000:]}") from None

    @property
    def family(self) -> list[psutil.Process]:
        """All descendants of the driver, ordered by pid."""
        try:
            found = self._process.children(recursive=True) if self._process is not None else []
        except psutil.NoSuchProcess:
            found = []
        self._known |= {child.pid: child for child in found}
        return sorted(found, key=lambda child: child.pid)

    def victim(self, kind: str, rng: random.Random) -> psutil.Process | None:
        """The driver, its JVM, an executor, or one of the Python workers; None if there is none at the moment."""
        if kind == "driver":
            return self._process
        found = [child for child in self.family if kind_of(child) == kind and not is_copy(child)]
        return rng.choice(found) if found else None

    def end(self) -> None:
        """Kill the program and its descendants."""
        for process in (self._process, *self.family, *self._known.values()):
            if process is not None:
                kill(process)
        if self._process is not None:
            self._process.wait(timeout=60)

    def leftovers(self) -> list[psutil.Process]:
        """Processes of earlier runs that still exist although their driver ended, after a grace period."""
        mine = {child.pid for child in self.family}
        others = [process for pid, process in self._known.items() if pid not in mine]
        _, alive = psutil.wait_procs(others, timeout=GONE_SECONDS_MAX)
        return [process for process in alive if kind_of(process) != "ended"]


def is_copy(process: psutil.Process) -> bool:
    """Whether this is a short-lived fork of a JVM, made to start a program: it looks like the JVM, but its death has no effect."""
    try:
        parent = process.parent()
        return kind_of(process) == "jvm" and parent is not None and kind_of(parent) == "jvm"
    except psutil.NoSuchProcess:
        return True


def kind_of(process: psutil.Process) -> str:
    """The kind of a descendant; "ended" if it no longer exists."""
    try:
        name, words = process.name(), process.cmdline()
    except psutil.NoSuchProcess:
        return "ended"
    if name.startswith("python"):
        return "worker"
    if any("CoarseGrainedExecutorBackend" in word for word in words):
        return "executor"
    return "jvm" if name.startswith("java") else "other"


def kill(process: psutil.Process) -> None:
    """Send SIGKILL and wait for the end; a zombie counts as ended."""

    def gone() -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    assert wait_for("its end", gone, 60), f"{process} lives on after kill -9"


def wait_for(what: str, ready: Callable[[], bool], seconds: float) -> bool:
    """Poll; returns whether it became true in time."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)  # poll: of files that other processes make
    return bool(what)


@dataclass(frozen=True)
class Point:
    """When to kill which process: after a delay from the next change in `watched`, or from now."""

    victim: str
    watched: str
    delay_seconds: float
    down_seconds: float


def points(rng: random.Random, victims: list[str], watched: list[str]) -> Iterator[Point]:
    """Kill points, equal for equal seeds; all victims occur equally often."""
    while True:
        order = list(victims)
        rng.shuffle(order)
        for victim in order:
            where = rng.choice(watched)
            delay = rng.uniform(0, 8) if not where else rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.6)))
            yield Point(victim, where, delay, rng.uniform(0, 2))


def files_below(folder: Path) -> int:
    """Number of files; of a folder that is changing at this moment, those found."""
    return sum(1 for _ in folder.rglob("*")) if folder.exists() else 0


def reach(point: Point, root: Path, program: Program) -> str:
    """Wait for a kill point, restarting the program whenever it ends; returns a description."""
    program.ensure()
    if point.watched:
        folder = root / point.watched
        before = files_below(folder)

        def changed() -> bool:
            program.ensure()
            return files_below(folder) != before

        if not wait_for("a change", changed, POINT_SECONDS_MAX):
            return f"nothing happened in {point.watched}"
    until = time.monotonic() + point.delay_seconds
    wait_for("the moment", lambda: time.monotonic() >= until, point.delay_seconds + 1)
    return f"{point.delay_seconds:.3f} s after {f'a change in {point.watched}' if point.watched else 'a start'}"


def torture(
    broker: Broker, program: Program, root: Path, plan: Iterator[Point], kills: int, rng: random.Random,
    say: Callable[[str], None],
) -> int:  # fmt: skip
    """Kill `kills` times and restart what was killed; returns how many kills hit a running process."""
    done = 0
    for point in itertools.islice(plan, kills * 3):
        if done == kills:
            break
        words = reach(point, root, program)
        if point.victim == "broker":
            broker.end()
            until = time.monotonic() + point.down_seconds
            wait_for("time to pass", lambda until=until: time.monotonic() >= until, 3)  # type: ignore[misc]
            broker.start()
            done += 1
            say(f"{done}: broker, away for {point.down_seconds:.1f} s, {words}")
            continue
        victim = program.victim(point.victim, rng)
        if victim is not None and victim.is_running():
            kill(victim)
            done += 1
            say(f"{done}: {point.victim} {victim.pid}, {words}")
            if point.victim in ("driver", "jvm"):
                program.wait(READY_SECONDS_MAX)  # a driver without its JVM ends by itself
    return done
