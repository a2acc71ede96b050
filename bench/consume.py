"""Benchmark of consumption: backlogs, filters, latency, idle long polls, the Python client.

    python bench/consume.py [--quick] [--write] [--rounds N] [--only WORD]

The same Java client (for idle polls the same Python process) runs against SaturnMQ and Apache RocketMQ 4.9.7, in alternating
rounds. The rows of the Python client are measured against SaturnMQ only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests" / "interop"), str(REPOSITORY / "tests"), str(REPOSITORY / "bench")]

from processes import ServerProcess  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import report  # noqa: E402
from measure import APACHE_HEAP_MB, HEADERS, JSON, Bench, Plan, header_suffix, machine_busy_s, may_run, progress_bar  # noqa: E402
from saturnmq.client.client import Client  # noqa: E402
from saturnmq.client.puller.puller import pull_command  # noqa: E402
from saturnmq.protocol.bodies import MessageQueue  # noqa: E402
from saturnmq.protocol.codes import PullSysFlag, ResponseCode  # noqa: E402
from saturnmq.protocol.frames.command import Serialization, encode_frame  # noqa: E402
from saturnmq.protocol.frames.decoder import FrameDecoder  # noqa: E402

OURS = "saturnmq"
PEERS = "saturnmq,apache"
SETTINGS = {"enablePropertyFilter": "true"}
BODY_BYTES = 128
HITS_EVERY = 10  # as in LoadFilling.java
FILTERS = {"tag": "tag=hit", "SQL92": "sql=a=0"}
IN_FLIGHT = 64
POLLS = 10_000
POLL_CONNECTIONS = 400  # SaturnMQ accepts 500 from one address
POLL_QUEUES = 100
POLL_SUSPEND_MS = 15_000  # as in Apache's push consumer
WAIT_MS = 80_000  # limit for receiving everything; less than Bench's timeout for the load generator's result


@dataclass(frozen=True)
class Sizes:
    """How much each step sends, and how long it measures."""

    backlog: int
    filtered: int
    warm: int
    latency_s: int
    polls_settle_s: float
    polls_window_s: float
    client_s: float
    client_backlog: int

    @classmethod
    def of(cls, *, quick: bool) -> Sizes:
        if quick:
            return cls(100_000, 100_000, 10_000, 3, 1.0, 5.0, 1.0, 20_000)
        return cls(1_000_000, 1_000_000, 50_000, 10, 5.0, 20.0, 4.0, 100_000)


@dataclass(frozen=True)
class Figure:
    """One measured value of one server."""

    row: str
    unit: str
    value: float
    cpu_s_per_million: float | None = None  # of the server


@dataclass
class Line:
    """One row of the table: all rounds of all servers."""

    name: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def add(self, server: str, figure: Figure) -> None:
        self.values.setdefault(server, []).append(figure.value)
        if figure.cpu_s_per_million is not None:
            self.cpu.setdefault(server, []).append(figure.cpu_s_per_million)

    def median(self, server: str) -> float | None:
        found = self.values.get(server)
        return statistics.median(found) if found else None


@dataclass(frozen=True)
class Step:
    """One measurement: prepare runs once per server, measure once per round."""

    name: str
    measure: Callable[[str], list[Figure]]
    prepare: Callable[[str], None] | None = None
    only_ours: bool = False


class ConsumeBench(Bench):
    """Runs the steps against the named servers."""

    def __init__(
        self, sizes: Sizes, servers: list[str], folder: Path, console: Console, *, rounds: int, quick: bool
    ) -> None:
        plan = Plan((), rounds, 1.0, 1.0 if quick else 5.0, 0, quick)
        super().__init__(plan, servers, folder, console, SETTINGS)
        self.sizes = sizes
        self.lines: dict[tuple[str, str], Line] = {}
        self.failures: list[str] = []
        self.others_share = 0.0
        self._names = 0
        self._filled: set[tuple[str, str]] = set()

    def steps(self) -> Iterator[Step]:
        """Idle polls come first: their memory figure needs servers that have done nothing else yet."""
        yield Step(f"{POLLS:,} idle long polls", self._polls)
        for consumers in (1, 4):
            for h in HEADERS:
                name = (
                    f"drain {self.sizes.backlog:,} x {BODY_BYTES} B, {consumers} consumer{'s' if consumers > 1 else ''}"
                )
                name += header_suffix(h)
                yield Step(
                    name, lambda server, n=name, c=consumers, h=h: self._drain(server, h, n, c), self._fill_backlog
                )
        for kind, words in FILTERS.items():
            for h in HEADERS:
                name = f"{kind} filter, {100 // HITS_EVERY} % hits{header_suffix(h)}"
                yield Step(
                    name, lambda server, n=name, w=words, h=h: self._filter(server, h, n, w), self._fill_filtered
                )
        for h in HEADERS:
            name = f"end to end at 1,000 msg/s{header_suffix(h)}"
            yield Step(name, lambda server, n=name, h=h: self._latency(server, h, n))
        yield Step("Python client, send", self._client_send, only_ours=True)
        yield Step("Python client, consume", self._client_consume, self._fill_client, only_ours=True)

    def headers(self) -> list[str]:
        return list(HEADERS)

    def run_steps(self, only: str) -> None:
        """Measure every step whose name contains the word; show progress."""
        steps = [step for step in self.steps() if only.lower() in step.name.lower()]
        try:
            with progress_bar(self.console) as progress:
                task = progress.add_task("starting", total=len(steps) * self.plan.rounds * len(self.results.servers))
                say: Callable[[str], None] = lambda text: progress.update(task, description=text)  # noqa: E731
                self._open()
                warm = False
                for step in steps:
                    if not warm and step.measure != self._polls:
                        self._warm(say)
                        self._warm_consuming(say)
                        warm = True
                    self._step(step, say, lambda: progress.advance(task))
        finally:
            self._close()

    def _step(self, step: Step, say: Callable[[str], None], advance: Callable[[], None]) -> None:
        failed: set[str] = set()
        for server in self._order(self.results.servers):
            if server not in failed and not (step.only_ours and server != OURS):
                try:
                    if step.prepare is not None:
                        say(f"{step.name}: filling {server}")
                        step.prepare(server)
                    say(f"{step.name}: {server}")
                    for figure in step.measure(server):
                        key = (figure.row, figure.unit)
                        self.lines.setdefault(key, Line(*key)).add(server, figure)
                except (RuntimeError, OSError) as error:
                    failed.add(server)  # it would fail again after as long a wait
                    self.failures.append(f"{step.name}: {server}: {str(error).splitlines()[0]}")
                    self.console.print(self.failures[-1], style="red")
            advance()

    # helpers of the steps

    def _new_name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}-{self._names}"

    def _server_cpu_s(self, server: str) -> float:
        return sum(process.cpu_s() for process in self._clusters[server].processes)

    def _java(self, server: str, header: str, command: str, **words: object) -> tuple[dict[str, Any], float]:
        """Return the load generator's result, and the CPU seconds that the server used meanwhile."""
        begin, busy, load, cpu = time.monotonic(), machine_busy_s(), self.load_cpu_s(), self._server_cpu_s(server)
        answer = self._command(server, header, command, **words)
        used = self._server_cpu_s(server) - cpu
        others = machine_busy_s() - busy - used - (self.load_cpu_s() - load)
        share = others / ((time.monotonic() - begin) * (os.cpu_count() or 1))
        self.others_share = max(self.others_share, share)
        return answer, used

    def _fill_topic(self, server: str, topic: str, count: int, marked: bool) -> None:
        if (server, topic) not in self._filled:
            self._command(server, JSON, "fill", topic=topic, count=count, bytes=BODY_BYTES, marked=str(marked).lower())
            self._filled.add((server, topic))

    def _fill_backlog(self, server: str) -> None:
        self._fill_topic(server, "Backlog", self.sizes.backlog, marked=False)

    def _fill_filtered(self, server: str) -> None:
        self._fill_topic(server, "Filtered", self.sizes.filtered, marked=True)

    def _fill_client(self, server: str) -> None:
        self._fill_topic(server, "ForPython", self.sizes.client_backlog, marked=False)

    def _warm_consuming(self, say: Callable[[str], None]) -> None:
        count = self.sizes.warm
        for server in self.results.servers:
            say(f"warming {server}: consuming")
            self._fill_topic(server, "WarmConsuming", count, marked=True)
            for header in HEADERS:
                self._consume(server, header, "WarmConsuming", count, 1, "tag=*")
                for words in FILTERS.values():
                    self._consume(server, header, "WarmConsuming", self._hits(count), 1, words)
                self._run_latency(server, header, 1 if self.plan.quick else 3)

    @staticmethod
    def _hits(count: int) -> int:
        return -(-count // HITS_EVERY)

    def _consume(
        self, server: str, header: str, topic: str, count: int, consumers: int, words: str
    ) -> tuple[dict[str, Any], float]:
        key, _, value = words.partition("=")
        given = {"topic": topic, "group": self._new_name("consume"), "count": count, "consumers": consumers, key: value}
        return self._java(server, header, "consume", waitMs=WAIT_MS, **given)

    # the steps

    def _drain(self, server: str, header: str, name: str, consumers: int) -> list[Figure]:
        count = self.sizes.backlog
        answer, cpu_s = self._consume(server, header, "Backlog", count, consumers, "tag=*")
        rate = (count - answer["fetched"]) / answer["seconds"]
        return [Figure(name, "msg/s", rate, cpu_s / count * 1e6)]

    def _filter(self, server: str, header: str, name: str, words: str) -> list[Figure]:
        looked_at = self.sizes.filtered
        hits = self._hits(looked_at)
        answer, cpu_s = self._consume(server, header, "Filtered", hits, 1, words)
        rate = looked_at * (1 - answer["fetched"] / hits) / answer["seconds"]
        return [Figure(name, "looked at/s", rate, cpu_s / looked_at * 1e6)]

    def _run_latency(self, server: str, header: str, seconds: int) -> tuple[dict[str, Any], float]:
        name = self._new_name("latency")
        return self._java(
            server, header, "latency", topic=name, group=name, rate=1000, seconds=seconds, bytes=BODY_BYTES
        )

    def _latency(self, server: str, header: str, name: str) -> list[Figure]:
        answer, cpu_s = self._run_latency(server, header, self.sizes.latency_s)
        return [
            Figure(f"{name}, p50", "ms", answer["p50Ms"], cpu_s / answer["messages"] * 1e6),
            Figure(f"{name}, p99", "ms", answer["p99Ms"]),
        ]

    def _child(self, name: str, *words: str) -> ServerProcess:
        return ServerProcess([sys.executable, __file__, "--load", *words], name=f"load: {name}", stdin=True)

    def _polls(self, server: str) -> list[Figure]:
        cluster = self._clusters[server]
        load = self._child("idle polls", "polls", cluster.name_servers, cluster.broker_address)
        try:
            load.wait_ready("^load: ready", 60)
            time.sleep(self.sizes.polls_settle_s)
            cpu_s, begin = self._server_cpu_s(server), time.monotonic()
            time.sleep(self.sizes.polls_window_s)
            used_s, seconds = self._server_cpu_s(server) - cpu_s, time.monotonic() - begin
            rss_bytes = sum(process.rss_bytes() for process in cluster.processes)
            self._result(load, load.say("stop"))
        finally:
            load.stop(2)
        name = f"{POLLS:,} idle long polls"
        return [
            Figure(f"{name}, server CPU", "s/min", used_s / seconds * 60),
            Figure(f"{name}, resident memory", "MiB", rss_bytes / 2**20),
        ]

    def _result(self, load: ServerProcess, after: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(load.wait_for_line("^RESULT (.*)", 120, after=after).group(1))
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return answer

    def _client(self, server: str, name: str, *words: str) -> list[Figure]:
        load = self._child(name, *words)
        try:
            load.wait_ready("^load: ready", 60)
            cpu_s = self._server_cpu_s(server)
            answer = self._result(load)
            used_s = self._server_cpu_s(server) - cpu_s
        finally:
            load.stop(2)
        count = answer["messages"]
        return [
            Figure(name, "msg/s", count / answer["seconds"], used_s / count * 1e6),
            Figure(f"{name}, per core of the client", "msg/s", count / answer["cpuS"]),
            Figure(f"{name}, CPU of the client", "s/M", answer["cpuS"] / count * 1e6),
        ]

    def _client_send(self, server: str) -> list[Figure]:
        name = f"Python client, send, {IN_FLIGHT} awaited in flight"
        return self._client(server, name, "send", self._clusters[server].name_servers, str(self.sizes.client_s))

    def _client_consume(self, server: str) -> list[Figure]:
        words = ("ForPython", self._new_name("python"), str(self.sizes.client_backlog))
        name = "Python client, consume and ack one by one"
        return self._client(server, name, "consume", self._clusters[server].name_servers, *words)


# The load processes in Python: `consume.py --load WORDS`. They print `load: ready`, then one RESULT line.


def emit(**values: object) -> None:
    print("RESULT " + json.dumps(values), flush=True)


class Polling(asyncio.Protocol):
    """One connection with its share of the polls; sends a poll again as soon as it is answered."""

    def __init__(self, frames: dict[int, bytes], first: list[bytes], outcome: dict[str, int]) -> None:
        self._frames = frames
        self._first = first
        self._outcome = outcome
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"".join(self._first))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        again = []
        for answer in self._decoder.feed(data):
            self._outcome["answered"] += 1
            if answer.code != ResponseCode.PULL_NOT_FOUND:
                self._outcome["rejected"] += 1
            again.append(self._frames[answer.opaque])
        self._transport.write(b"".join(again))

    def connection_lost(self, error: Exception | None) -> None:
        self._outcome["lost"] += 1


def poll_frame(number: int, suspend_ms: int) -> bytes:
    """Return a pull request at the end of an empty queue."""
    command = pull_command(
        MessageQueue("Idle", "broker-a", number % POLL_QUEUES),
        group="idle",
        offset=0,
        max_count=32,
        sys_flag=int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
        suspend_ms=suspend_ms,
        expression="*",
    )
    command.opaque = number
    command.serialization = Serialization.ROCKETMQ
    return encode_frame(command)


async def load_polls(name_servers: str, address: str) -> None:
    """Keep POLLS pulls parked until a line arrives on stdin.

    Their first timeouts are spread, as in a system that grew over time.
    """
    async with Client(name_servers=name_servers, timeout=10.0) as client:
        await client.create_topic("Idle", queues=POLL_QUEUES)
    host, _, port = address.rpartition(":")
    chance = random.Random(497)
    outcome = {"answered": 0, "rejected": 0, "lost": 0}
    loop = asyncio.get_running_loop()
    transports = []
    begin = time.monotonic()
    for at in range(POLL_CONNECTIONS):
        numbers = range(at, POLLS, POLL_CONNECTIONS)
        frames = {number: poll_frame(number, POLL_SUSPEND_MS) for number in numbers}
        first = [poll_frame(number, chance.randrange(1000, POLL_SUSPEND_MS)) for number in numbers]
        transport, _ = await loop.create_connection(lambda f=frames, g=first: Polling(f, g, outcome), host, int(port))
        transports.append(transport)
    print("load: ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    turns = (time.monotonic() - begin) * 1000 / POLL_SUSPEND_MS
    least, most = POLLS if turns > 1.5 else 0, POLLS * (1 + turns)
    if outcome["rejected"] or outcome["lost"] or not least <= outcome["answered"] <= most:
        emit(error=f"the polls did not wait: {outcome}, due were {least} to {most:.0f} answers")
    else:
        emit(**outcome)
    for transport in transports:
        transport.abort()


async def load_send(name_servers: str, seconds: str) -> None:
    """Send with IN_FLIGHT results awaited at any time; the first second is a warm-up."""
    count = 0

    async def send_until(deadline: float) -> None:
        nonlocal count
        while time.monotonic() < deadline:
            await out.send("FromPython", body)
            count += 1

    body = b"x" * BODY_BYTES
    async with Client(name_servers=name_servers, timeout=10.0) as client, client.producer("python-load") as out:
        for warm, length_s in ((True, 1.0), (False, float(seconds))):
            if not warm:
                print("load: ready", flush=True)
            count, begin, cpu_s = 0, time.monotonic(), time.process_time()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(send_until(begin + length_s))
        emit(messages=count, seconds=time.monotonic() - begin, cpuS=time.process_time() - cpu_s)


async def load_consume(name_servers: str, topic: str, group: str, count: str) -> None:
    """Receive and acknowledge a backlog message by message; the time counts from the first message to the last."""
    async with (
        Client(name_servers=name_servers, timeout=10.0) as client,
        client.consumer(group, start="first") as inbox,
    ):
        await inbox.subscribe(topic)
        await (await inbox.recv(timeout=30)).ack()
        print("load: ready", flush=True)
        begin, cpu_s = time.monotonic(), time.process_time()
        left = int(count) - 1
        async with asyncio.timeout(100):
            async for message in inbox:
                await message.ack()
                left -= 1
                if not left:
                    break
        emit(messages=int(count) - 1, seconds=time.monotonic() - begin, cpuS=time.process_time() - cpu_s)


LOADS = {"polls": load_polls, "send": load_send, "consume": load_consume}


# Output.

FORMS: dict[str, Callable[[float], str]] = {
    "ms": "{:.2f}".format,
    "s/min": "{:.2f}".format,
    "MiB": "{:.0f}".format,
    "s/M": "{:.1f}".format,
}


def cells(line: Line, servers: list[str]) -> Iterator[str]:
    """Yield the cells of a table row: the median and, with several rounds, the smallest and largest."""
    form = FORMS.get(line.unit, report.thousands)
    yield line.name
    yield line.unit
    for server in servers:
        found = line.values.get(server)
        spread = f" ({form(min(found))}-{form(max(found))})" if found and len(found) > 1 else ""
        yield form(statistics.median(found)) + spread if found else "-"
    yield report.ratio(line.median(servers[0]), line.median(servers[-1])) if len(servers) > 1 else "-"
    medians = [f"{statistics.median(line.cpu[server]):.1f}" if server in line.cpu else "-" for server in servers]
    yield " / ".join(medians) if line.cpu else ""


def columns(servers: list[str]) -> list[str]:
    return ["what", "unit", *(report.TITLES.get(server, server) for server in servers), "ratio", "server CPU s/M"]


def table(lines: list[Line], servers: list[str]) -> Table:
    out = Table(title="consumption: median (smallest-largest round)")
    for number, column in enumerate(columns(servers)):
        out.add_column(column, justify="left" if number < 2 else "right")
    for line in lines:
        out.add_row(*cells(line, servers))
    return out


def markdown(bench: ConsumeBench, facts: list[str]) -> str:
    """Return docs/benchmarks-consume.md."""
    servers = bench.results.servers
    head = columns(servers)
    rows = [head, ["---" if number < 2 else "---:" for number in range(len(head))]]
    rows += [list(cells(line, servers)) for line in bench.lines.values()]
    text = _HOW_TO_READ.format(
        heap=APACHE_HEAP_MB, others=f"{bench.others_share:.0%}", connections=POLL_CONNECTIONS, queues=POLL_QUEUES,
        suspend_s=POLL_SUSPEND_MS // 1000, window_s=bench.sizes.polls_window_s, filtered=f"{bench.sizes.filtered:,}",
        in_flight=IN_FLIGHT, client_backlog=f"{bench.sizes.client_backlog:,}", latency_s=bench.sizes.latency_s,
    )  # fmt: skip
    return "\n".join(
        [
            "# Benchmarks: consumption",
            "",
            "Written by `make bench ARGS=--write`. Figures change with the machine; the **ratio** (SaturnMQ : Apache) is what to",
            "read. Above 1 is better for rates, below 1 for milliseconds, seconds and memory.",
            "",
            *(f"- {fact}" for fact in facts),
            f"- plan: {bench.plan.rounds} rounds per row and server, the servers alternate",
            *(f"- **failed**: {failure}" for failure in bench.failures),
            "",
            *("| " + " | ".join(row) + " |" for row in rows),
            "",
            *text.strip().splitlines(),
            "",
        ]
    )


_HOW_TO_READ = """
## How to read it

- One load generator for both: Apache's Java client 4.9.7, one warm JVM with JSON headers, its default, and one with
  ROCKETMQ headers ("binary header"); messages as real clients send them (unique key, tag, one key, two user
  properties); topics of four queues, push consumers of a new group each time, at most 32 messages per call of the
  listener. It shares the
  processors with the server: rates are what client and server reach together; **server CPU s/M** is the server's own CPU
  seconds per million messages (user and system, NameServer included, joining and leaving the group too).
- Both brokers flush asynchronously, have `enablePropertyFilter=true` and full-size store files on the same disk, and stay
  up, idle, while the other is measured. Apache's heap is {heap} MB without pre-touching.
- **Drain** and **filters**: consumers join their group and hold still until each has its queues, has fetched ahead and
  has sent its second heartbeat; then the clock starts. What they have fetched by then does not count, and what comes
  twice counts once.
- **Filters**: a backlog of {filtered} messages, every tenth with the tag `hit` and the property `a=0`; wanted are the tag
  `hit`, and `a=0` in SQL92. Rates and server CPU are per message of the backlog, looked at or passed over, not per hit.
  The client may hold 65,535 messages and offsets per queue here: with its defaults of 1,000 and 2,000 it mostly waits,
  50 ms at a time. The drains have the defaults.
- **End to end**: from the moment a message was due to be sent to its listener, producer and consumer in one JVM, for
  {latency_s} s after one second that does not count. The schedule does not wait for a slow server.
- **Idle long polls**: one Python process holds them on {connections} connections, on {queues} empty queues, with
  {suspend_s} s to wait; an answered poll is sent again at once. CPU seconds per minute over {window_s:g} s, and resident
  memory at their end, NameServer included, of servers that have stored nothing yet.
- **Python client**: one process, asyncio's own event loop, against SaturnMQ. Send: {in_flight} tasks, each awaits its
  result before it sends again. Consume: {client_backlog} messages, one by one, each acked. Per core: messages per second of
  the client's own CPU time.
- Figures are medians, with the smallest and largest round in brackets; pairs (`a / b`) name the servers in the order of
  the columns.
- Other work on the machine: at most {others} of the processors in any one measurement with the Java client.
"""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round; says little")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-consume.md")
    parser.add_argument("--rounds", type=int, help="rounds per row (default 3)")
    parser.add_argument("--only", default="", metavar="WORD", help="only rows whose name contains it, e.g. filter")
    parser.add_argument("--peers", default=PEERS, help="servers, separated by commas")
    parser.add_argument("--load", nargs="+", metavar="WORD", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = options()
    if args.load:
        asyncio.run(LOADS[args.load[0]](*args.load[1:]))
        return 0
    console = Console()
    if not may_run("bench/consume.py", console):
        return 0
    servers = [name for name in args.peers.split(",") if name]
    rounds = args.rounds or (1 if args.quick else 3)
    sizes = Sizes.of(quick=args.quick)
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
        bench = ConsumeBench(sizes, servers, Path(folder), console, rounds=rounds, quick=args.quick)
        bench.run_steps(args.only)
    facts = report.machine()
    console.print(table(list(bench.lines.values()), servers))
    for line in facts:
        console.print(line, style="dim")
    if args.write:
        target = REPOSITORY / "docs" / "benchmarks-consume.md"
        target.write_text(markdown(bench, facts))
        console.print(f"written: {target.relative_to(REPOSITORY)}")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
