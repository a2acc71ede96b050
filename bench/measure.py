"""Runs a plan: starts the servers and one warm load generator, and measures row by row, round by round, server by server."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import javatools
from apache import ApacheCluster
from processes import ServerProcess
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from saturn import SaturnCluster

Cluster = ApacheCluster | SaturnCluster
T = TypeVar("T")
APACHE_HEAP_MB = 1024
IDLE_SETTLE_S = 5.0
START_ROUNDS = 3
JSON, BINARY = HEADERS = ("JSON", "ROCKETMQ")  # the client's rocketmq.serialize.type; JSON is its default


def may_run(name: str, console: Console) -> bool:
    """Whether the Java parts (Apache's servers and the load generator) can run here; fetches and compiles them if so.

    SIGTERM then stops the servers before exit. If not, prints that `name` was skipped, with the reason.
    """
    reason = javatools.why_not()
    if reason:
        console.print(f"{name} was {reason}")
        return False
    with console.status("fetching Apache RocketMQ and compiling the load generator (Maven)"):
        javatools.classpath()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return True


def header_suffix(header: str) -> str:
    """Return what a row's name says about header serialization; nothing for JSON, the client's default."""
    return "" if header == JSON else ", binary header"


@dataclass(frozen=True)
class Workload:
    """One row: what the load generator does."""

    mode: str  # sync, async, oneway, batch, drain
    threads: int
    body_bytes: int
    header: str = JSON
    tagged: bool = True

    @property
    def name(self) -> str:
        size = "1 KiB" if self.body_bytes == 1024 else f"{self.body_bytes} B"
        more = ("" if self.tagged else ", no tag") + header_suffix(self.header)
        if self.mode == "drain":
            return f"drain a backlog, {size}{more}"
        mode = {"batch": "batch of 32", "oneway": "one-way"}.get(self.mode, self.mode)
        return f"{mode}, {self.threads} thread{'s' if self.threads > 1 else ''}, {size}{more}"


@dataclass(frozen=True)
class Plan:
    """What is measured, how often and how long."""

    workloads: tuple[Workload, ...]
    rounds: int
    seconds: float
    warm_seconds: float
    backlog: int
    quick: bool

    @classmethod
    def of(cls, *, quick: bool, rounds: int | None, seconds: float | None, only: str) -> Plan:
        """Return the full plan, or the quick one; `only` keeps rows whose name contains the word."""
        modes, threads = ("sync", "async", "oneway", "batch"), (1, 16, 64)
        if quick:
            rows = [Workload(mode, 16, 1024) for mode in modes] + [Workload("drain", 1, 1024)]
        else:
            rows = [Workload(mode, count, size) for mode in modes for size in (128, 1024) for count in threads]
            rows += [Workload("drain", 1, size) for size in (128, 1024)]
        rows.insert(rows.index(Workload("async", 16, 1024)) + 1, Workload("async", 16, 1024, tagged=False))
        both = [replace(row, header=header) for row in rows for header in HEADERS]
        return cls(
            workloads=tuple(row for row in both if only in row.name),
            rounds=rounds or (1 if quick else 3),
            seconds=seconds or (1.0 if quick else 3.0),
            warm_seconds=1.0 if quick else 5.0,
            backlog=50_000 if quick else 200_000,
            quick=quick,
        )


@dataclass(frozen=True)
class Sample:
    """One measurement of one server."""

    messages: int
    seconds: float
    cpu_s: float  # of the server's processes
    load_cpu_s: float  # of the load generator
    others_cpu_s: float  # all other processes of the machine
    p99_ms: float
    failed: int
    lost: int
    failure: str

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu_s / self.messages * 1e6 if self.messages else 0.0


@dataclass
class Row:
    """A workload with its samples by server name."""

    workload: Workload
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, server: str, value: Callable[[Sample], float]) -> float | None:
        """Return the median over the rounds; None when there are none."""
        found = [value(sample) for sample in self.samples.get(server, [])]
        return statistics.median(found) if found else None


@dataclass
class Results:
    """All measurements."""

    servers: list[str]
    rows: list[Row] = field(default_factory=list)
    start_s: dict[str, list[float]] = field(default_factory=dict)
    idle_rss_bytes: dict[str, list[int]] = field(default_factory=dict)


def start(server: str, folder: Path, more_settings: Mapping[str, str] | None = None) -> Cluster:
    """Start a fresh server by name, with store files of Apache's full size.

    It flushes asynchronously; NAME+sync flushes synchronously.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, _, flush = server.partition("+")
    settings = {"flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH", **(more_settings or {})}
    if name == "apache":
        return ApacheCluster(folder, settings=settings, heap_mb=APACHE_HEAP_MB, small_store=False).start()
    return SaturnCluster(folder, settings={"storeProfile": "standard", **settings}).start()


def load_generator(folder: Path, header: str = JSON, *, heap_mb: int = 1024) -> ServerProcess:
    """Start a load generator in a JVM of its own; its client uses this header serialization. Returns when it is ready."""
    home = javatools.write_home(folder / header.lower())
    properties = {"rocketmq.serialize.type": header}
    command = javatools.java_command("interop.Load", home=home, heap_mb=heap_mb, properties=properties)
    load = ServerProcess(command, name=f"load generator, {header}", env=javatools.java_environment(home), stdin=True)
    load.wait_ready("^load: ready", 30)
    return load


def progress_bar(console: Console) -> Progress:
    """Return the progress display of a run."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:48}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def machine_busy_s() -> float:
    """Return the CPU seconds that all processors together were busy since boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / 100.0


class Bench:
    """Runs a plan against the named servers; settings are added to the brokers' own."""

    def __init__(
        self,
        plan: Plan,
        servers: list[str],
        folder: Path,
        console: Console,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.console = console
        self.settings = dict(settings or {})
        self.results = Results(servers)
        self._clusters: dict[str, Cluster] = {}
        self._loads: dict[str, ServerProcess] = {}
        self._groups = 0

    def run(self) -> Results:
        """Run all measurements; show progress."""
        progress = progress_bar(self.console)
        try:
            with progress:
                steps = len(self.plan.workloads) * self.plan.rounds * len(self.results.servers)
                task = progress.add_task("starting", total=steps)
                self._measure_starts(lambda text: progress.update(task, description=text))
                self._open()
                self._warm(lambda text: progress.update(task, description=text))
                for pair in self._pairs():
                    progress.update(task, description=pair[0].name)
                    self.results.rows += self._measure_rows(pair, lambda: progress.advance(task))
        finally:
            self._close()
        return self.results

    def start(self, server: str, folder: Path) -> Cluster:
        """Start a fresh server by name; overridden where groups are measured."""
        return start(server, folder, self.settings)

    def _measure_starts(self, say: Callable[[str], None]) -> None:
        rounds = 1 if self.plan.quick else START_ROUNDS
        for number in range(rounds):
            for server in self.results.servers:
                say(f"start-up and idle memory of {server}")
                begin = time.monotonic()
                cluster = self.start(server, self.folder / f"idle-{server}-{number}")
                try:
                    self.results.start_s.setdefault(server, []).append(time.monotonic() - begin)
                    time.sleep(1.0 if self.plan.quick else IDLE_SETTLE_S)
                    idle = sum(process.rss_bytes() for process in cluster.processes)
                    self.results.idle_rss_bytes.setdefault(server, []).append(idle)
                finally:
                    cluster.stop()

    def _open(self) -> None:
        for server in self.results.servers:
            self._clusters[server] = self.start(server, self.folder / server)
        for header in self.headers():
            self._loads[header] = load_generator(self.folder / "load", header)

    def headers(self) -> list[str]:
        """Return the header serializations that are measured."""
        return sorted({row.header for row in self.plan.workloads}, key=HEADERS.index)

    def load_cpu_s(self) -> float:
        """Return the CPU seconds that the load generators have used."""
        return sum(load.cpu_s() for load in self._loads.values())

    def _close(self) -> None:
        for load in self._loads.values():
            load.stop(2)
        for cluster in self._clusters.values():
            cluster.stop()

    def _warm(self, say: Callable[[str], None]) -> None:
        """Run every mode until both JVMs have compiled their hot code."""
        modes = sorted({row.mode for row in self.plan.workloads} - {"drain"}) or ["batch"]
        for server in self.results.servers:
            for mode in modes:
                for header in self.headers():
                    row = Workload(mode, 16, 128, header)
                    say(f"warming {server}: {row.name}")
                    self._send(server, row, self.plan.warm_seconds, "Warm")

    def _command(self, server: str, header: str, command: str, **words: object) -> dict[str, Any]:
        load = self._loads[header]
        text = " ".join(f"{key}={value}" for key, value in words.items())
        before = load.say(f"{command} ns={self._clusters[server].name_servers} {text}")
        answer: dict[str, Any] = json.loads(load.wait_for_line("^RESULT (.*)", 120, after=before).group(1))
        if "error" in answer:
            raise RuntimeError(f"{server}: {answer['error']}")
        return answer

    def _send(self, server: str, workload: Workload, seconds: float, topic: str) -> dict[str, Any]:
        return self._command(
            server,
            workload.header,
            "send",
            tagged=str(workload.tagged).lower(),
            mode=workload.mode,
            threads=workload.threads,
            bytes=workload.body_bytes,
            seconds=seconds,
            topic=topic,
        )

    def _pairs(self) -> list[list[Workload]]:
        """Return the workloads; those that differ only in the tag stand together, to be compared with each other."""
        pairs: dict[Workload, list[Workload]] = {}
        for workload in self.plan.workloads:
            pairs.setdefault(replace(workload, tagged=True), []).append(workload)
        return list(pairs.values())

    def _measure_rows(self, workloads: list[Workload], advance: Callable[[], None]) -> list[Row]:
        """Measure rows that are compared with each other, in alternation."""
        rows = [Row(workload) for workload in workloads]
        backlog: dict[str, int] = {}
        for server, row in self._order([(server, row) for server in self.results.servers for row in rows]):
            workload = row.workload
            try:
                if workload.mode == "drain" and server not in backlog:
                    backlog[server] = self._fill(server, workload)
                row.samples.setdefault(server, []).append(self._sample(server, workload, backlog.get(server, 0)))
            except RuntimeError as error:
                row.failures[server] = str(error)
                self.console.print(f"{workload.name}: {str(error).splitlines()[0]}", style="red")
            advance()
        for row in rows:
            for server, samples in row.samples.items():
                reasons = [sample.failure for sample in samples if sample.failure]
                if reasons:
                    self.console.print(f"{row.workload.name}: {server}: {reasons[0]}", style="yellow")
        return rows

    def _order(self, measurements: list[T]) -> Iterator[T]:
        """Yield the measurements of each round; every other round is reversed, so that none always runs after another."""
        for number in range(self.plan.rounds):
            yield from measurements if number % 2 == 0 else reversed(measurements)

    def _fill(self, server: str, workload: Workload) -> int:
        """Write a backlog; return its number of messages."""
        topic = _drain_topic(workload)
        count = 0
        while count < self.plan.backlog:
            answer = self._send(server, Workload("batch", 4, workload.body_bytes, workload.header), 1.0, topic)
            count += int(answer["messages"])
        return count

    def _sample(self, server: str, workload: Workload, backlog: int) -> Sample:
        processes = self._clusters[server].processes
        busy, load = machine_busy_s(), self.load_cpu_s()
        cpu = sum(process.cpu_s() for process in processes)
        if workload.mode == "drain":
            self._groups += 1
            words = {"count": backlog, "topic": _drain_topic(workload), "group": f"drain-{self._groups}"}
            answer = self._command(server, workload.header, "drain", **words)
        else:
            answer = self._send(server, workload, self.plan.seconds, f"Load{workload.body_bytes}")
        used = sum(process.cpu_s() for process in processes) - cpu
        load_used = self.load_cpu_s() - load
        return Sample(
            messages=int(answer["messages"]),
            seconds=float(answer["seconds"]),
            cpu_s=used,
            load_cpu_s=load_used,
            others_cpu_s=max(0.0, machine_busy_s() - busy - used - load_used),
            p99_ms=float(answer.get("p99Ms", 0.0)),
            failed=int(answer["failed"]),
            lost=int(answer["lost"]),
            failure=str(answer.get("failure", "")),
        )


def _drain_topic(workload: Workload) -> str:
    return f"Drain{workload.body_bytes}{workload.header}"
