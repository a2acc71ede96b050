"""Output of measurements: a terminal table, Markdown for the docs, JSON for programs."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import javatools
from rich.table import Table

from measure import APACHE_HEAP_MB, Plan, Results, Row

TITLES = {
    "saturnmq": "SaturnMQ",
    "apache": "Apache 4.9.7",
    "saturnmq+sync": "SaturnMQ, SYNC_FLUSH",
    "apache+sync": "Apache 4.9.7, SYNC_FLUSH",
}


def thousands(value: float) -> str:
    """Format a rate in thousands."""
    return f"{value / 1000:.1f}k" if value < 100_000 else f"{value / 1000:.0f}k"


def _rate(row: Row, server: str) -> str:
    """Return the median, with the smallest and largest round in brackets."""
    rates = [sample.rate for sample in row.samples.get(server, [])]
    if not rates:
        return "failed"
    text = thousands(statistics.median(rates))
    if len(rates) > 1:
        text += f" ({thousands(min(rates))}-{thousands(max(rates))})"
    return text


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def ratio(ours: float | None, theirs: float | None) -> str:
    """Return ours : theirs; a dash where one is missing."""
    return f"{ours / theirs:.2f}" if ours and theirs else "-"


def _cells(row: Row, servers: list[str]) -> Iterator[str]:
    yield row.workload.name
    for server in servers:
        yield _rate(row, server)
    first, last = servers[0], servers[-1]
    yield ratio(row.median(first, lambda s: s.rate), row.median(last, lambda s: s.rate))
    yield " / ".join(_number(row.median(server, lambda s: s.cpu_s_per_million), ".1f") for server in servers)
    yield " / ".join(_number(row.median(server, lambda s: s.p99_ms) or None, ".1f") for server in servers)
    yield " / ".join(str(sum(s.failed + s.lost for s in row.samples.get(server, []))) for server in servers)


def _extra_rows(results: Results) -> Iterator[list[str]]:
    for name, values, scale, unit in (
        ("start-up until both serve", results.start_s, 1.0, "s"),
        ("idle, resident memory", results.idle_rss_bytes, 1 / 2**20, "MiB"),
    ):
        if not any(values.values()):
            continue
        medians = {server: statistics.median(found) * scale for server, found in values.items() if found}
        cells = [name]
        for server in results.servers:
            found = [value * scale for value in values.get(server, [])]
            form = ".2f" if unit == "s" else ".0f"
            spread = f" ({min(found):{form}}-{max(found):{form}})" if len(found) > 1 else ""
            cells.append(f"{medians[server]:{form}}{spread} {unit}" if found else "-")
        cells.append(ratio(medians.get(results.servers[0]), medians.get(results.servers[-1])))
        yield [*cells, "", "", ""]


def columns(servers: list[str]) -> list[str]:
    """Return the column heads of the table."""
    names = [TITLES.get(server, server) for server in servers]
    return ["workload", *(f"{name}, msg/s" for name in names), "ratio", "CPU s/M", "p99 ms", "failed or lost"]


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return the cells of each row."""
    return [tuple(_cells(row, results.servers)) for row in results.rows]


def table(results: Results) -> Table:
    """Return the table for a terminal."""
    order = " / ".join(TITLES.get(server, server) for server in results.servers)
    out = Table(title=f"the same Java load: median (smallest-largest round); pairs are {order}")
    rates = range(1, len(results.servers) + 1)  # the only columns that may wrap in a narrow terminal
    for number, column in enumerate(columns(results.servers)):
        out.add_column(column, justify="left" if number == 0 else "right", no_wrap=number not in rates)
    for row in results.rows:
        out.add_row(*_cells(row, results.servers))
    for cells in _extra_rows(results):
        out.add_row(*cells)
    return out


def _first(pattern: str, path: str, otherwise: str = "unknown") -> str:
    match = re.search(pattern, Path(path).read_text()) if Path(path).exists() else None
    return match.group(1).strip() if match else otherwise


def _commit() -> str:
    root = Path(__file__).resolve().parent.parent
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine(heap_mb: int = APACHE_HEAP_MB) -> list[str]:
    """Return the facts needed to interpret the figures. heap_mb: heap of each Apache broker."""
    said = subprocess.run(
        [sys.executable, "-m", "saturnmq.cli", "--version"], capture_output=True, text=True, check=False
    )
    processor = _first(r"model name\s*:\s*(.*)", "/proc/cpuinfo")
    memory_kib = int(_first(r"MemTotal:\s+(\d+)", "/proc/meminfo", "0"))
    return [
        f"date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        f"machine: {os.cpu_count()} processors, {processor}, "
        f"{memory_kib / 2**20:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}",
        f"SaturnMQ: {said.stdout.strip() or 'version unknown'} (checkout {_commit()})",
        f"Apache RocketMQ: {javatools.ROCKETMQ_VERSION}, {heap_mb} MB heap, {javatools.java_version_text()}",
    ]


def as_json(results: Results, facts: list[str]) -> str:
    """Return every sample."""
    return json.dumps({"facts": facts, **dataclasses.asdict(results)}, indent=1)


def _others(results: Results) -> float:
    """Return the largest CPU share used by neither server nor load generator, over all samples."""
    shares = [
        sample.others_cpu_s / (sample.seconds * (os.cpu_count() or 1))
        for row in results.rows
        for samples in row.samples.values()
        for sample in samples
        if sample.seconds
    ]
    return max(shares, default=0.0)


def markdown(results: Results, facts: list[str], plan: Plan) -> str:
    """Return docs/benchmarks.md."""
    names = columns(results.servers)
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench ARGS=--write`. Figures change with the machine; the **ratio** (SaturnMQ : Apache) is what to read.",
        "",
        *(f"- {fact}" for fact in facts),
        f"- plan: {plan.rounds} rounds of {plan.seconds:g} s per row and server, the servers alternate",
        "",
        "| " + " | ".join(names) + " |",
        "|" + "|".join("---" if number == 0 else "---:" for number in range(len(names))) + "|",
    ]
    for row in results.rows:
        lines.append("| " + " | ".join(_cells(row, results.servers)) + " |")
    for cells in _extra_rows(results):
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_explanation(results), ""])


def _explanation(results: Results) -> list[str]:
    text = _HOW_TO_READ.format(heap=APACHE_HEAP_MB, others=f"{_others(results):.0%}")
    return text.strip().splitlines()


_HOW_TO_READ = """
## How to read it

- One load generator for both: Apache's Java client 4.9.7, one warm JVM with JSON headers, its default, and one with
  ROCKETMQ headers ("binary header"); no retries, no compression, one connection per 16 threads, topics of four queues.
  `async` keeps 32 messages in flight per thread.
- Messages as real clients send them: unique key, tag, one key, two user properties. "no tag" rows leave the tag out.
- The load generator shares the processors with the server, and costs more than the server in most rows. Rates are
  therefore what client and server reach together; **CPU s/M**, the server's own CPU seconds per million messages
  (user and system, NameServer included, from `/proc`), says more about the server.
- Both servers flush asynchronously, use full-size store files on the same disk, and stay up, idle, while the other
  is measured.
- One-way sends have no response: the rate counts what the server stored until its queues stopped
  growing; what it dropped is in the last column.
- `drain` is a push consumer of a new group, batches of 32, from the first message it gets to the last.
- p99 is the time of a `send` call of the client (of 32 messages for batches); one-way, async and drain have none.
- Start-up is from nothing to NameServer and broker serving: two JVMs one after the other, one Python process.
- Apache's heap is {heap} MB without pre-touching; its shipped scripts ask for 8 GB.
- Pairs (`a / b`) name the servers in the order of the columns; figures are medians, with the smallest and largest round
  in brackets.
- Other work on the machine during the run: at most {others} of the processors in any one measurement.
"""
