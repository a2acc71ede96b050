"""SaturnMQ and Apache RocketMQ 4.9.7 under a load generator in C that costs little, in the same minutes on the same machine.

    python bench/load.py [--quick] [--write] [--rounds N] [--seconds S] [--only WORD] [--peers saturnmq,apache]

Apache's Java client takes more processor time than the servers, so that a rate says much about the client. The load generator
in `bench/c/load.c` takes a tenth of it: rates, latencies and processor time per message are the server's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests" / "interop"), str(REPOSITORY / "tests"), str(Path(__file__).resolve().parent)]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import report  # noqa: E402
from measure import Cluster, machine_busy_s, may_run, progress_bar, start  # noqa: E402

SOURCE = REPOSITORY / "bench" / "c" / "load.c"
COMPILE = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]
TOPIC, QUEUES = "Load", 8
MESSAGES = 32  # of a batch, and at most of a pull
COLUMNS = ("workload", "server", "msg/s", "CPU s/M", "p50 ms", "p99 ms", "max ms", "failed", "rate ratio", "CPU ratio")


@dataclass(frozen=True)
class Workload:
    """One row: what each of the connections does, and how many requests it keeps in flight."""

    name: str
    mode: str  # send, batch, pull
    connections: int
    depth: int
    body_bytes: int


WORKLOADS = (
    Workload("send, 1 connection, 1 in flight", "send", 1, 1, 1024),
    Workload("send, 64 connections, 1 in flight", "send", 64, 1, 1024),
    Workload("send, 16 connections, 32 in flight", "send", 16, 32, 1024),
    Workload(f"batch of {MESSAGES}, 128 B, 16 connections", "batch", 16, 1, 128),
    Workload(f"pull of {MESSAGES}, 16 connections", "pull", 16, 1, 1024),
)
FILL = WORKLOADS[2]  # what is pulled


@dataclass(frozen=True)
class Sample:
    """One measurement of one server. cpu_s_per_million: of the server, per million messages; others_share: of the processors."""

    rate: float
    cpu_s_per_million: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    failed: int
    others_share: float


@dataclass
class Row:
    workload: Workload
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def values(self, server: str, value: Callable[[Sample], float]) -> list[float]:
        return [value(sample) for sample in self.samples[server]]

    def ratio(self, value: Callable[[Sample], float]) -> str:
        """The median of the first server over that of the last; a dash for one server."""
        medians = [statistics.median(self.values(server, value)) for server in self.samples]
        return report.ratio(medians[0], medians[-1]) if len(medians) > 1 else "-"


def create_topic(cluster: Cluster) -> None:
    """Create the topic of the load on a server of either kind."""
    words = ["admin", "updateTopic", "-b", cluster.broker_address, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES)]
    subprocess.run(
        [sys.executable, "-m", "saturnmq.cli", *words, "-n", cluster.name_servers], check=True, capture_output=True
    )


def run_load(program: Path, cluster: Cluster, workload: Workload, seconds: float) -> dict[str, Any]:
    """Run the load generator; returns what it printed. Raises RuntimeError with its message."""
    host, port = cluster.broker_address.rsplit(":", 1)
    words = [workload.mode, workload.connections, workload.depth, seconds, workload.body_bytes, TOPIC, QUEUES]
    done = subprocess.run([program, host, port, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{workload.name}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def measure(program: Path, cluster: Cluster, workload: Workload, seconds: float) -> Sample:
    """Measure one row on one server."""
    busy, began = machine_busy_s(), time.monotonic()
    server = sum(process.cpu_s() for process in cluster.processes)
    answer = run_load(program, cluster, workload, seconds)
    server = sum(process.cpu_s() for process in cluster.processes) - server
    elapsed = time.monotonic() - began
    others = machine_busy_s() - busy - server - answer["cpuSeconds"] * elapsed / answer["seconds"]
    rate = answer["messages"] / answer["seconds"]
    return Sample(
        rate=rate,
        cpu_s_per_million=server / (rate * elapsed) * 1e6 if rate else 0.0,  # of the whole run, at the rate measured
        p50_ms=answer["p50Ms"],
        p99_ms=answer["p99Ms"],
        max_ms=answer["maxMs"],
        failed=answer["failed"],
        others_share=max(0.0, others) / elapsed / 2,
    )


def run(
    program: Path, servers: list[str], workloads: list[Workload], rounds: int, seconds: float, console: Console
) -> list[Row]:
    """All rows; the servers alternate, every other round in reverse."""
    rows = [Row(workload, {server: [] for server in servers}) for workload in workloads]
    clusters: dict[str, Cluster] = {}
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder, progress_bar(console) as progress:
        task = progress.add_task("starting", total=(rounds + 1) * len(servers) * len(workloads))
        try:
            for server in servers:
                clusters[server] = start(server, Path(folder) / server)
                create_topic(clusters[server])
                run_load(program, clusters[server], FILL, seconds)
            for number in range(-1, rounds):  # the first round warms both
                for row in rows:
                    for server in servers if number % 2 else reversed(servers):
                        progress.update(task, description=f"{row.workload.name}, {server}", advance=1)
                        sample = measure(program, clusters[server], row.workload, seconds)
                        if number >= 0:
                            row.samples[server].append(sample)
        finally:
            for cluster in clusters.values():
                cluster.stop()
    return rows


def cells(rows: list[Row]) -> Iterator[list[str]]:
    """The cells of the table, a line per row and server; median (smallest-largest round)."""
    for row in rows:
        for server in row.samples:
            rates = row.values(server, lambda sample: sample.rate)
            first = server == next(iter(row.samples))
            yield [
                row.workload.name if first else "",
                report.TITLES.get(server, server),
                f"{report.thousands(statistics.median(rates))} ({report.thousands(min(rates))}-{report.thousands(max(rates))})",
                f"{statistics.median(row.values(server, lambda sample: sample.cpu_s_per_million)):.1f}",
                *(
                    f"{statistics.median(row.values(server, value)):.2f}"
                    for value in (
                        lambda sample: sample.p50_ms,
                        lambda sample: sample.p99_ms,
                        lambda sample: sample.max_ms,
                    )
                ),
                str(sum(sample.failed for sample in row.samples[server])),
                row.ratio(lambda sample: sample.rate) if first else "",
                row.ratio(lambda sample: sample.cpu_s_per_million) if first else "",
            ]


def markdown(rows: list[Row], facts: list[str], rounds: int, seconds: float) -> str:
    """Return docs/benchmarks-load.md."""
    others = max(sample.others_share for row in rows for samples in row.samples.values() for sample in samples)
    reason = " ".join((__doc__ or "").split("\n\n")[-1].split())
    lines = [
        "# Benchmarks with a load generator in C",
        "",
        f"Written by `make bench-load ARGS=--write`. {reason}",
        "",
        *(f"- {fact}" for fact in facts),
        f"- plan: {rounds} rounds of {seconds:g} s per row and server after one that is not counted, the servers alternate",
        "- one NameServer and one broker each, ASYNC_FLUSH, full-size store files on the same disk",
        f"- messages: JSON header, unique key, tag, a key, two properties, 1 KiB unless the row says otherwise, {QUEUES} queues",
        f"- other work on the machine: at most {others:.0%} of the processors in any one measurement",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join("---" if number < 2 else "---:" for number in range(len(COLUMNS))) + "|",
        *("| " + " | ".join(line) + " |" for line in cells(rows)),
        "",
        "Rates and latencies are medians of the rounds, in brackets the slowest and fastest. `CPU s/M` is the server's processor",
        "time per million messages, NameServer included. Ratios are SaturnMQ : Apache; of CPU, less is better.",
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of a second; says little")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-load.md")
    parser.add_argument("--rounds", type=int, help="rounds per row (default 5)")
    parser.add_argument("--seconds", type=float, help="seconds per measurement (default 4)")
    parser.add_argument("--only", default="", metavar="WORD", help="only rows whose name contains it")
    parser.add_argument("--peers", default="saturnmq,apache", help="servers, separated by commas")
    args = parser.parse_args()
    console = Console()
    if shutil.which("gcc") is None:
        console.print("make bench-load was skipped: gcc is missing; on Debian and Ubuntu: sudo apt install gcc")
        return 0
    if not may_run("make bench-load", console):
        return 0
    rounds, seconds = args.rounds or (1 if args.quick else 5), args.seconds or (1.0 if args.quick else 4.0)
    workloads = [workload for workload in WORKLOADS if args.only in workload.name]
    with tempfile.TemporaryDirectory(prefix="saturnmq-load-") as folder:
        program = Path(folder) / "load"
        subprocess.run([*COMPILE, str(program), str(SOURCE), "-lm"], check=True)
        rows = run(program, args.peers.split(","), workloads, rounds, seconds, console)
    table = Table(title="median (smallest-largest round)")
    for column in COLUMNS:
        table.add_column(column)
    for line in cells(rows):
        table.add_row(*line)
    console.print(table)
    if args.write:
        target = REPOSITORY / "docs" / "benchmarks-load.md"
        target.write_text(markdown(rows, report.machine(), rounds, seconds))
        console.print(f"written: {target.relative_to(REPOSITORY)}")
    return 1 if any(sample.failed for row in rows for samples in row.samples.values() for sample in samples) else 0


if __name__ == "__main__":
    sys.exit(main())
