"""The fuzz campaign: `PYTHONPATH=tests python -m harness.fuzz.campaign`, run by `make fuzz`.

Frames of every kind go to every port of real processes, several connections each, while another process sends messages to the
plain broker as an honest client does. It fails when a process ends, prints an unexpected error or stops answering, when resident
memory grows by more than the bound, or when the honest client waits longer than beside harmless frames: the attack comes in ROUNDS
parts, and after each of them the same ports get as many harmless frames (harmless.py), at most CONTROL_FRAMES. That its latency
does not double against that of an idle machine (G10) decides only where each process can have a processor. The seed is printed;
the same seed gives the same frames.

Requirements: FUZ-01, FUZ-02, FUZ-03, G10.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.fuzz.delivery import Attacker, Count, Maker, Pace
from harness.fuzz.frames import FrameMaker, recorded_frames
from harness.fuzz.harmless import HarmlessMaker
from harness.fuzz.honest import HonestClient, Latencies, Period
from harness.fuzz.servers import ACCOUNT, Servers
from recorded import VECTORS
from saturnmq.broker.requests.table import ROUTES as BROKER_ROUTES
from saturnmq.cli.runtime import loop_factory
from saturnmq.namesrv.processor import ROUTES as NAME_SERVER_ROUTES
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import sign_v1
from saturnmq.raft.wire.codec import DLedgerCode

CONNECTIONS: Final = 3  # per port
RATE: Final = 12_000.0  # frames per second that are offered: the goal and a fifth more
RATE_MIN: Final = 10_000.0
WARM_FRAMES: Final = 0.1  # share of the frames before memory and latency are measured
QUIET_SECONDS: Final = 5.0
CONTEXT_SHOWN: Final = 60  # lines per server
LINE_SECONDS: Final = 30.0  # between two lines of progress in a log file
RSS_GROWTH_MAX: Final = 20 * 2**20
P99_RATIO_MAX: Final = 2.0
ROUNDS: Final = 8
CONTROL_FRAMES: Final = 50_000  # of one round
CONTROL_RATIO_MAX: Final = 1.25  # hostile to harmless, median of the rounds; equal loads differ by about as much
IDLE_GOAL: Final = "honest p99, idle -> hostile"
PROCESSORS_MIN: Final = 6  # attacker, honest client and four servers
_BROKER_CODES: Final = [int(route.code) for route in BROKER_ROUTES]
CODES: Final = {
    "broker": _BROKER_CODES,
    "signed": _BROKER_CODES,
    "namesrv": [int(route.code) for route in NAME_SERVER_ROUTES],
    "dledger": [int(code) for code in DLedgerCode],
}


@dataclass
class Report:
    """Result of a campaign. rss: per server, bytes after the warm-up and at the end."""

    seed: int
    count: Count = field(default_factory=Count)
    seconds: float = 0.0
    quiet: Latencies | None = None
    attacked: Latencies | None = None
    rounds: list[tuple[Period, Period]] = field(default_factory=list)  # beside hostile frames, and beside harmless ones
    control: Count = field(default_factory=Count)  # of the harmless frames
    control_seconds: float = 0.0
    control_cpu_s: float = 0.0  # of all processes
    rss: dict[str, tuple[int, int]] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)  # of each process during the attack
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of the machine at the end, over 1, 5 and 15 minutes
    problems: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)  # output of the servers after the first unexpected lines

    @property
    def rate(self) -> float:
        """Frames per second."""
        return self.count.frames / self.seconds if self.seconds else 0.0

    @property
    def p99_ratio(self) -> float:
        """99th percentile of the honest client under attack over that before."""
        if self.quiet is None or self.attacked is None or not self.quiet.p99_ms:
            return 0.0
        return self.attacked.p99_ms / self.quiet.p99_ms

    def control_ratio(self, percentile: float) -> float:
        """Median over the rounds: a percentile of the honest client's latencies beside hostile frames over that beside harmless."""
        pairs = (
            (_percentile(hostile, percentile), _percentile(harmless, percentile)) for hostile, harmless in self.rounds
        )
        ratios = sorted(hostile / harmless for hostile, harmless in pairs if harmless)
        return statistics.median(ratios) if ratios else 0.0


def _percentile(period: Period, part: float) -> float:
    ordered = sorted(period.taken)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def unexpected(lines: list[str]) -> list[str]:
    """Distinct lines, without their numbers and times, with how often each came."""
    kinds = Counter(re.sub(r"[\d.:,-]+", "#", line)[:160] for line in lines)
    return [f"{number} x {kind}" for kind, number in kinds.most_common(10)]


def _sign(command: Command) -> None:
    sign_v1(command, ACCOUNT[0], ACCOUNT[1].encode())


async def attack(
    servers: Servers,
    frames: int,
    seed: int,
    count: Count,
    pace: Pace,
    progress: Progress | None = None,
    *,
    harmless: bool = False,
) -> None:
    """Send so many frames in all, over all ports at once. harmless: those of harmless.py."""
    recorded = recorded_frames(VECTORS)
    share = max(1, frames // (len(servers.ports) * CONNECTIONS))
    attackers = []
    for number, port in enumerate(servers.ports):
        for which in range(CONNECTIONS):
            own = seed * 1000 + number * CONNECTIONS + which
            sign = _sign if port.kind == "signed" else None
            maker: Maker = (
                HarmlessMaker(own, port.kind, sign) if harmless else FrameMaker(own, CODES[port.kind], recorded, sign)
            )
            attackers.append(Attacker(port.number, maker, own, count, pace))
    begin, shown = count.frames, time.monotonic()
    work = asyncio.gather(*(attacker.run(share) for attacker in attackers))
    if progress is None:
        await work
        return
    task = progress.add_task("harmless frames" if harmless else "frames", total=share * len(attackers))
    while not work.done():
        await asyncio.wait([asyncio.ensure_future(work)], timeout=0.5)
        progress.update(task, completed=count.frames - begin)
        if not progress.console.is_terminal and time.monotonic() >= shown + LINE_SECONDS:
            shown = time.monotonic()
            progress.console.print(f"{count.frames - begin:,} frames, load {os.getloadavg()[0]:.1f}", highlight=False)
    await work


def run(
    folder: Path,
    frames: int,
    seed: int,
    *,
    rate: float = RATE,
    seconds: float = math.inf,
    quiet_seconds: float = QUIET_SECONDS,
    rounds: int = ROUNDS,
    nice: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Run a campaign with servers below the folder. Its problems are all that a server must not do, whatever it receives.

    nice: added to the priority of the attacker. rate: frames per second that are offered, 0 for as many as possible. seconds:
    the attack ends then if it has not sent all.
    """

    def send(number: int, own_seed: int, count: Count, *, harmless: bool = False) -> float:
        begin = time.monotonic()
        pace = Pace(rate, seconds / rounds)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(attack(servers, number, own_seed, count, pace, progress, harmless=harmless))
        return time.monotonic() - begin

    report = Report(seed)
    with Servers(folder) as servers, HonestClient(servers.broker_port) as honest:
        os.nice(nice)  # of this process, the attacker
        warm = int(frames * WARM_FRAMES)
        send(warm, seed + 1, Count())
        honest.period()
        honest.wait(quiet_seconds)
        report.quiet = honest.period()
        before = {server.name: server.rss_bytes() for server in servers.all}
        part = (frames - warm) // rounds
        for number in range(rounds):
            used = _cpu_of(servers)
            report.seconds += send(part, seed * 100 + number, report.count)
            hostile, after = honest.raw(), _cpu_of(servers)
            for name, before_s in used.items():
                report.cpu_s[name] = report.cpu_s.get(name, 0.0) + after.get(name, before_s) - before_s
            own_seed = seed * 100 + rounds + number
            report.control_seconds += send(min(part, CONTROL_FRAMES), own_seed, report.control, harmless=True)
            report.control_cpu_s += sum(_cpu_of(servers).values()) - sum(after.values())
            report.rounds.append((hostile, honest.raw()))
        report.attacked = Latencies.of([hostile for hostile, _ in report.rounds])
        report.load = os.getloadavg()
        report.rss = {server.name: (before[server.name], server.rss_bytes()) for server in servers.all}
        for server in servers.all:
            if server.process.poll() is not None:
                report.problems.append(f"{server.name} ended: " + " | ".join(server.last_lines[-5:]))
            report.problems += [f"{server.name}: {line}" for line in unexpected(server.bad_lines)]
            report.context += server.context[:CONTEXT_SHOWN]
        report.problems += report.count.problems + report.control.problems
        for name, code in servers.stop().items():
            if code:
                report.problems.append(f"{name} ended with status {code}")
    return report


def _cpu_of(servers: Servers) -> dict[str, float]:
    """CPU seconds so far of the servers that run and of this process, the attacker."""
    running = {server.name: server.cpu_s() for server in servers.all if server.process.poll() is None}
    return running | {"attacker": time.process_time()}


def show(report: Report, console: Console) -> bool:
    """Print a line per goal; returns whether all were reached."""
    table = Table(title=f"fuzz campaign, seed {report.seed}: {report.count.frames:,} frames")
    for column in ("goal", "bound", "found", ""):
        table.add_column(column, justify="left" if column == "goal" else "right")
    quiet, attacked = report.quiet, report.attacked
    assert quiet is not None and attacked is not None
    harmless = Latencies.of([harmless for _, harmless in report.rounds])
    shared = (os.cpu_count() or 1) < PROCESSORS_MIN
    p99 = report.control_ratio(0.99)
    checks = [
        ("unexpected errors, ends, silence", "0", str(len(report.problems)), not report.problems),
        ("frames per second", f">= {RATE_MIN:,.0f}", f"{report.rate:,.0f}", report.rate >= RATE_MIN),
        (
            IDLE_GOAL, f"< {P99_RATIO_MAX:g} x", f"{quiet.p99_ms:.1f} -> {attacked.p99_ms:.1f} ms ({report.p99_ratio:.1f} x)",
            report.p99_ratio < P99_RATIO_MAX,
        ),
        (
            "honest p99, harmless -> hostile", f"<= {CONTROL_RATIO_MAX:g} x",
            f"{harmless.p99_ms:.1f} -> {attacked.p99_ms:.1f} ms ({p99:.2f} x)", p99 <= CONTROL_RATIO_MAX,
        ),
        ("honest sends that failed", "0", str(attacked.failed), not attacked.failed),
    ]  # fmt: skip
    for name, (first, last) in report.rss.items():
        checks.append(
            (f"memory of {name}", "< +20 MiB", f"{(last - first) / 2**20:+.1f} MiB", last - first < RSS_GROWTH_MAX)
        )
    for goal, bound, found, ok in checks:
        table.add_row(
            goal, bound, found, "ok" if ok else "missed (1)" if shared and goal == IDLE_GOAL else "[red]FAILED"
        )
    console.print(table)
    if shared and report.p99_ratio >= P99_RATIO_MAX:
        console.print(
            f"(1) not decisive: {PROCESSORS_MIN} processes, the honest client among them, share {os.cpu_count()} processors. "
            "The control says what hostile frames cost that client more than harmless ones."
        )
    rate = report.control.frames / report.control_seconds if report.control_seconds else 0.0
    console.print(
        f"control: {report.control.frames:,} harmless frames, {rate:,.0f} a second; "
        f"honest client beside them {harmless.rate:.0f} sends/s, "
        f"p50 {harmless.p50_ms:.1f} ms (hostile to harmless {report.control_ratio(0.5):.2f} x); CPU of harmless frames "
        f"{report.control_cpu_s / max(1, report.control.frames) * 1e6:.0f} us each"
    )
    answers = ", ".join(f"code {code}: {number:,}" for code, number in report.count.answers.most_common(8))
    console.print(
        f"{report.count.connections:,} connections, {report.count.closed:,} closed by a server, {report.count.answered:,} answers; "
        f"of a tenth of them {answers}"
    )
    console.print(
        f"honest client: {quiet.rate:.0f} -> {attacked.rate:.0f} sends/s, p50 {quiet.p50_ms:.1f} -> {attacked.p50_ms:.1f} ms, "
        f"slowest {attacked.max_ms:.0f} ms; load of the machine ({os.cpu_count()} processors): "
        + ", ".join(f"{load:.1f}" for load in report.load)
    )
    used = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.cpu_s.items())
    console.print(
        f"CPU: {used}; {sum(report.cpu_s.values()) / max(1, report.count.frames) * 1e6:.0f} us a frame in all of them"
    )
    for problem in report.problems[:20]:
        console.print(problem, style="red", markup=False)
    for line in report.context:
        console.print(line, markup=False, highlight=False)
    return all(ok for goal, *_, ok in checks if not (shared and goal == IDLE_GOAL))


def main() -> int:
    """Returns the exit status: 0 if every goal was reached."""
    parser = argparse.ArgumentParser(description="hostile frames for every port of real processes")
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument(
        "--seed", type=int, default=None, help="the same seed gives the same frames (default: a new one)"
    )
    parser.add_argument(
        "--rate", type=float, default=RATE, help="frames per second that are offered; 0: as many as possible"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="end the attack then, whatever was sent")
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        help="priority of the attacker: 19 leaves the processors to servers and client, as another machine would",
    )
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    console = Console()
    console.print(
        f"again: PYTHONPATH=tests python -m harness.fuzz.campaign --seed {seed} --frames {given.frames} --rate {given.rate:g}"
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="saturnmq-fuzz-") as folder,
        Progress(*columns, console=console) as progress,
    ):
        report = run(
            Path(folder),
            given.frames,
            seed,
            rate=given.rate,
            seconds=60 * given.minutes,
            nice=given.nice,
            progress=progress,
        )
    return 0 if show(report, console) else 1


if __name__ == "__main__":
    sys.exit(main())
