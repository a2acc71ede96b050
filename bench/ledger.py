"""Benchmark of a three-member DLedger group, SaturnMQ against Apache: sends, catch-up of an empty follower, kills of the leader.

    python bench/ledger.py [--quick] [--write] [--rounds N] [--seconds S] [--gib N] [--kills N] [--only sends,catch-up,kills]

Both groups run on this machine and are measured alternately, with Apache's Java client.

Requirements: G08, CHA-07.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests" / "interop"), str(REPOSITORY / "tests"), str(REPOSITORY / "bench")]

from processes import ServerProcess  # noqa: E402

import report  # noqa: E402
from ledgergroup import FILE_BYTES, HEAP_MB, LedgerGroup  # noqa: E402
from measure import BINARY, JSON, Bench, Cluster, Plan, Results, Workload, load_generator, may_run, progress_bar  # noqa: E402

GIB = 1 << 30
MIB = 1 << 20
RECORD_OVERHEAD_BYTES = 300  # per message of the load generator: entry header, record, properties
PARTS = ("sends", "catch-up", "kills")
FAST = {"dledger.profile": "fast"}
PEERS = ("saturnmq", "saturnmq+sync", "apache")


@dataclass(frozen=True)
class LedgerWorkload(Workload):
    """Sends to a group; batch_push: the members' setting enableBatchPush."""

    batch_push: bool = False

    @property
    def name(self) -> str:
        return super().name + (", batch push" if self.batch_push else "")


class LedgerBench(Bench):
    """The sends of bench/run.py, against groups."""

    def start(self, server: str, folder: Path) -> Cluster:
        make, _, flush = server.partition("+")
        settings = {**self.settings, "flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH"}
        return LedgerGroup(make, folder, settings=settings).start()  # type: ignore[return-value]

    def _measure_starts(self, say: Callable[[str], None]) -> None:
        """Skip the measurement of start-up, which this benchmark does not report."""


def sends(plan: Plan, servers: list[str], console: Console, threads: list[int]) -> Results:
    """Measure rates, CPU and latency: with JSON and binary headers, and with batch push."""
    out = Results(servers)
    for batch_push, header in ((False, JSON), (False, BINARY), (True, JSON)):
        workloads = tuple(LedgerWorkload("sync", count, 1024, header, batch_push=batch_push) for count in threads)
        part = Plan(workloads, plan.rounds, plan.seconds, plan.warm_seconds, 0, plan.quick)
        settings = {"enableBatchPush": str(batch_push).lower()}
        with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
            out.rows += LedgerBench(part, servers, Path(folder), console, settings).run().rows
    return out


# ---- catch-up of an empty follower


@dataclass(frozen=True)
class CatchUp:
    """Catch-up of an empty member. cpu_s: CPU seconds of all members meanwhile."""

    log_bytes: int
    seconds: float
    cpu_s: float


def ask(load: ServerProcess, words: str, timeout_s: float) -> dict[str, Any]:
    """Run one command of the load generator. Raises RuntimeError with its error."""
    before = load.say(words)
    answer: dict[str, Any] = json.loads(load.wait_for_line("^RESULT (.*)", timeout_s, after=before).group(1))
    if "error" in answer:
        raise RuntimeError(str(answer["error"]))
    return answer


def catch_up(make: str, size_bytes: int, console: Console) -> CatchUp:
    """Fill two members with size_bytes, then start the third one with an empty folder."""
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
        group = LedgerGroup(make, Path(folder), settings={"enableBatchPush": "true"})
        load = load_generator(Path(folder) / "load")
        try:
            group.start(group.names[:2])
            fill(group, load, size_bytes, console)
            group.until_level()
            before = {name: process.cpu_s() for name, process in group.brokers.items()}
            size = group.end(group.names[0])
            last = group.names[2]
            began = time.monotonic()
            before[last] = 0.0
            group.start_member(last)
            group.until_level()
            seconds = time.monotonic() - began
            cpu_s = sum(process.cpu_s() - before[name] for name, process in group.brokers.items())
            return CatchUp(size, seconds, cpu_s)
        finally:
            load.stop(2)
            group.stop()


def fill(group: LedgerGroup, load: ServerProcess, size_bytes: int, console: Console) -> None:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"filling the log of {group.make}", total=size_bytes)
        sent = 0
        while sent < size_bytes:
            words = f"send ns={group.name_servers} mode=batch threads=4 bytes=4096 seconds=2 topic=Large"
            sent += int(ask(load, words, 120)["messages"]) * (4096 + RECORD_OVERHEAD_BYTES)
            progress.update(task, completed=min(sent, size_bytes))


# ---- kills of the leader


@dataclass
class Kills:
    """Seconds without a successful send, one figure per kill, by kind of group."""

    seconds: dict[str, list[float]] = field(default_factory=dict)


def kills(counts: dict[str, int], console: Console) -> Kills:
    """Measure kills of leaders. counts: kind of group -> number of kills."""
    out, kinds = (
        Kills(),
        {"SaturnMQ, fast profile": ("saturnmq", FAST), "SaturnMQ, DLedger's timers": ("saturnmq", {})},
    )
    every = {**kinds, "Apache 4.9.7": ("apache", {})}
    with progress_bar(console) as progress:
        task = progress.add_task("killing leaders", total=sum(counts.values()))
        for kind, (make, settings) in every.items():
            progress.update(task, description=f"killing leaders: {kind}")
            out.seconds[kind] = killed(make, settings, counts[make], lambda: progress.advance(task))
    return out


def killed(make: str, settings: dict[str, str], count: int, advance: Callable[[], None]) -> list[float]:
    """Kill and restart the leader `count` times. Raises RuntimeError when sends do not resume."""
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
        group = LedgerGroup(make, Path(folder), settings=settings)
        load = load_generator(Path(folder) / "load")
        found = []
        try:
            group.start()
            for _ in range(count):
                leader = group.until_served(len(group.names))
                before = load.say(f"switch ns={group.name_servers} topic=Switch")
                load.wait_for_line("^load: sending", 60, after=before)
                leader = group.leader() or leader
                group.kill(leader)
                answer = json.loads(load.wait_for_line("^RESULT (.*)", 120, after=before).group(1))
                if not answer.get("back"):
                    raise RuntimeError(f"{make}: sends did not go on after a kill of the leader: {answer}")
                found.append(float(answer["gapMs"]) / 1000)
                group.start_member(leader)
                group.until_level()
                advance()
            return found
        finally:
            load.stop(2)
            group.stop()


# ---- output


def catch_up_rows(found: list[tuple[str, CatchUp]]) -> list[tuple[str, ...]]:
    """Return rows of make, seconds, MiB/s, CPU seconds per GiB."""
    return [
        (
            report.TITLES[make],
            f"{run.seconds:.1f}",
            f"{run.log_bytes / MIB / run.seconds:.0f}",
            f"{run.cpu_s / (run.log_bytes / GIB):.1f}",
        )
        for make, run in found
    ]


def kill_rows(found: Kills) -> list[tuple[str, ...]]:
    """Return rows of kind, kills, and the smallest, median, 95th percentile and largest gap in seconds."""
    rows = []
    for kind, seconds in found.seconds.items():
        ordered = sorted(seconds)
        if not ordered:
            continue
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        figures = (ordered[0], statistics.median(ordered), p95, ordered[-1])
        rows.append((kind, str(len(ordered)), *(f"{figure:.2f}" for figure in figures)))
    return rows


CATCH_UP_COLUMNS = ("group", "seconds, from the start of its process", "MiB/s", "CPU s/GiB, all members")
KILL_COLUMNS = ("group", "kills", "smallest", "median", "p95", "largest")


def shown(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    out = Table(title=title)
    for number, column in enumerate(columns):
        out.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        out.add_row(*row)
    return out


def _lines(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    out = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return out + ["| " + " | ".join(row) + " |" for row in rows]


class Part(NamedTuple):
    """A chapter of the page."""

    title: str
    words: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


CHAPTERS = ("Sends", "An empty follower", "Kills of the leader", "Runs with faults")


def markdown(parts: list[Part], facts: list[str], before: str = "") -> str:
    """Return docs/benchmarks-ledger.md. before: the previous page; chapters that were not measured again are taken from it."""
    kept = {chapter.partition("\n")[0]: chapter for chapter in before.split("\n## ")[1:]}
    kept = {title: f"## {chapter.rstrip()}" for title, chapter in kept.items() if title in CHAPTERS}
    stamp = "; ".join(facts[:1] + facts[2:3])
    for title, words, columns, rows in parts:
        kept[title] = "\n".join([f"## {title}", "", words, "", f"- {stamp}", "", *_lines(columns, rows)])
    chapters = [kept[title] for title in CHAPTERS if title in kept]
    head = "\n".join(
        ["# Benchmarks: a DLedger group of three", "", _INTRODUCTION, "", *(f"- {fact}" for fact in facts)]
    )
    return "\n\n".join([head, *chapters, _HOW_TO_READ.strip()]) + "\n"


_INTRODUCTION = (
    "Written by `python bench/ledger.py --write`. Figures change with the machine; the **ratio** (SaturnMQ : Apache) is what "
    "to read."
)
_HOW_TO_READ = f"""
## How to read it

- All members, both groups, the NameServers and the load generator (Apache's Java client, one warm JVM) share one machine;
  the groups are measured alternately; the others stay up, idle.
- **CPU s/M** is the sum over the three members and the NameServer, user and system, from `/proc`.
- ASYNC_FLUSH, which is all that Apache's members offer: an entry counts when a majority has it in the page cache. With
  SYNC_FLUSH, which only members of ours have, it counts when it is on the disks of a majority.
- Data files of {FILE_BYTES // MIB} MiB; heaps of {HEAP_MB} MB for Apache's members.
- `enableBatchPush` is the members' setting, off by default; members of ours push batches to members that read them all the same.
- Pairs (`a / b`) name the groups in the order of the columns; figures are medians, with the smallest and largest round in brackets.
"""


def sends_part(args: argparse.Namespace, console: Console) -> tuple[Part, int]:
    """Return the chapter on sends, and how many of its rows failed."""
    rounds = args.rounds or (1 if args.quick else 3)
    plan = Plan((), rounds, args.seconds or (2.0 if args.quick else 4.0), 3.0 if args.quick else 8.0, 0, args.quick)
    results = sends(plan, args.peers.split(","), console, [int(count) for count in args.threads.split(",")])
    console.print(report.table(results))
    words = f"{plan.rounds} rounds of {plan.seconds:g} s per row and group, bodies of 1 KiB, topics of four queues."
    part = Part("Sends", words, tuple(report.columns(results.servers)), report.rows(results))
    return part, sum(bool(row.failures) for row in results.rows)


def catch_up_part(args: argparse.Namespace, console: Console) -> Part:
    size = int((args.gib or (0.125 if args.quick else 2)) * GIB)
    rows = catch_up_rows([(make, catch_up(make, size, console)) for make in ("saturnmq", "apache")])
    console.print(shown(f"an empty follower copies {size / GIB:.2f} GiB", CATCH_UP_COLUMNS, rows))
    words = (
        f"Two members took {size / GIB:.2f} GiB of messages of 4 KiB; the third started with an empty folder, until it had "
        "committed as much. One run each. Both kinds push at most 20 MiB/s to a member that lags by more than 300 MiB "
        "(`peerPushQuota`)."
    )
    return Part("An empty follower", words, CATCH_UP_COLUMNS, rows)


def kills_part(args: argparse.Namespace, console: Console) -> Part:
    ours, theirs = (3, 1) if args.quick else (30, 30)
    rows = kill_rows(kills({"saturnmq": args.kills or ours, "apache": args.java_kills or theirs}, console))
    console.print(shown("seconds without a successful send when the leader is killed", KILL_COLUMNS, rows))
    words = (
        "Seconds between the last successful send before the leader's `kill -9` and the first after it, as the Java client "
        "sees it: two threads without retries, `pollNameServerInterval=1000`."
    )
    return Part("Kills of the leader", words, KILL_COLUMNS, rows)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one short round, 1/8 GiB, 3 kills of ours and 1 of theirs"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-ledger.md")
    parser.add_argument("--rounds", type=int, help="rounds of sends (default 3)")
    parser.add_argument("--seconds", type=float, help="seconds per measurement of sends (default 4)")
    parser.add_argument("--threads", default="1,16,64", help="of the producer")
    parser.add_argument("--gib", type=float, help="size of the log that an empty follower copies (default 2)")
    parser.add_argument("--kills", type=int, help="kills of our leader, per profile (default 30)")
    parser.add_argument("--java-kills", type=int, help="kills of Apache's leader, about 35 s each (default 30)")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help="of " + ",".join(PARTS))
    parser.add_argument("--peers", default=",".join(PEERS), help="groups whose sends are measured, separated by commas")
    return parser.parse_args()


def main() -> int:
    args = options()
    console = Console()
    if not may_run("bench/ledger.py", console):
        return 0
    parts, failures = [], 0
    if "sends" in args.only:
        part, failures = sends_part(args, console)
        parts.append(part)
    if "catch-up" in args.only:
        parts.append(catch_up_part(args, console))
    if "kills" in args.only:
        parts.append(kills_part(args, console))
    facts = report.machine(HEAP_MB)
    for line in facts:
        console.print(line, style="dim")
    if args.write:
        target = REPOSITORY / "docs" / "benchmarks-ledger.md"
        target.write_text(markdown(parts, facts, target.read_text() if target.exists() else ""))
        console.print(f"written: {target.relative_to(REPOSITORY)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
