"""The fuzz campaign: `PYTHONPATH=tests python -m harness.fuzz.campaign`, run by `make fuzz`.

Frames of every kind go to every port of real processes, several connections each, while another process sends messages to the
plain broker as an honest client does. It fails when a process ends, prints an unexpected error or stops answering, when resident
memory grows by more than the bound, or when the honest client's latency more than doubles. The seed is printed; the same seed
gives the same frames.

Requirements: FUZ-01, FUZ-02, FUZ-03, G10.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import re
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

from harness.fuzz.delivery import Attacker, Count, Pace
from harness.fuzz.frames import FrameMaker, recorded_frames
from harness.fuzz.honest import HonestClient, Latencies
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


def unexpected(lines: list[str]) -> list[str]:
    """Distinct lines, without their numbers and times, with how often each came."""
    kinds = Counter(re.sub(r"[\d.:,-]+", "#", line)[:160] for line in lines)
    return [f"{number} x {kind}" for kind, number in kinds.most_common(10)]


def _sign(command: Command) -> None:
    sign_v1(command, ACCOUNT[0], ACCOUNT[1].encode())


async def attack(
    servers: Servers, frames: int, seed: int, count: Count, pace: Pace, progress: Progress | None = None
) -> None:
    """Send so many frames in all, over all ports at once."""
    recorded = recorded_frames(VECTORS)
    share = max(1, frames // (len(servers.ports) * CONNECTIONS))
    attackers = []
    for number, port in enumerate(servers.ports):
        for which in range(CONNECTIONS):
            own = seed * 1000 + number * CONNECTIONS + which
            maker = FrameMaker(own, CODES[port.kind], recorded, _sign if port.kind == "signed" else None)
            attackers.append(Attacker(port.number, maker, own, count, pace))
    begin, shown = count.frames, time.monotonic()
    work = asyncio.gather(*(attacker.run(share) for attacker in attackers))
    if progress is None:
        await work
        return
    task = progress.add_task("frames", total=share * len(attackers))
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
    progress: Progress | None = None,
) -> Report:
    """Run a campaign with servers below the folder. Its problems are all that a server must not do, whatever it receives.

    rate: frames per second that are offered, 0 for as many as possible. seconds: the attack ends then if it has not sent all.
    """

    def send(number: int, own_seed: int, count: Count) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(attack(servers, number, own_seed, count, Pace(rate, seconds), progress))

    report = Report(seed)
    with Servers(folder) as servers, HonestClient(servers.broker_port) as honest:
        warm = int(frames * WARM_FRAMES)
        send(warm, seed + 1, Count())
        honest.period()
        honest.wait(quiet_seconds)
        report.quiet = honest.period()
        before = {server.name: server.rss_bytes() for server in servers.all}
        cpu = {server.name: server.cpu_s() for server in servers.all}
        begin, own_cpu = time.monotonic(), time.process_time()
        send(frames - warm, seed, report.count)
        report.seconds = time.monotonic() - begin
        report.attacked = honest.period()
        report.load = os.getloadavg()
        report.cpu_s["attacker"] = time.process_time() - own_cpu
        report.rss = {server.name: (before[server.name], server.rss_bytes()) for server in servers.all}
        for server in servers.all:
            if server.process.poll() is None:
                report.cpu_s[server.name] = server.cpu_s() - cpu[server.name]
            else:
                report.problems.append(f"{server.name} ended: " + " | ".join(server.last_lines[-5:]))
            report.problems += [f"{server.name}: {line}" for line in unexpected(server.bad_lines)]
            report.context += server.context[:CONTEXT_SHOWN]
        report.problems += report.count.problems
        for name, code in servers.stop().items():
            if code:
                report.problems.append(f"{name} ended with status {code}")
    return report


def show(report: Report, console: Console) -> bool:
    """Print a line per goal; returns whether all were reached."""
    table = Table(title=f"fuzz campaign, seed {report.seed}: {report.count.frames:,} frames")
    for column in ("goal", "bound", "found", ""):
        table.add_column(column, justify="left" if column == "goal" else "right")
    quiet, attacked = report.quiet, report.attacked
    assert quiet is not None and attacked is not None
    checks = [
        ("unexpected errors, ends, silence", "0", str(len(report.problems)), not report.problems),
        ("frames per second", f">= {RATE_MIN:,.0f}", f"{report.rate:,.0f}", report.rate >= RATE_MIN),
        (
            "honest p99", f"< {P99_RATIO_MAX:g} x", f"{quiet.p99_ms:.1f} -> {attacked.p99_ms:.1f} ms ({report.p99_ratio:.1f} x)",
            report.p99_ratio < P99_RATIO_MAX,
        ),
        ("honest sends that failed", "0", str(attacked.failed), not attacked.failed),
    ]  # fmt: skip
    for name, (first, last) in report.rss.items():
        checks.append(
            (f"memory of {name}", "< +20 MiB", f"{(last - first) / 2**20:+.1f} MiB", last - first < RSS_GROWTH_MAX)
        )
    for goal, bound, found, ok in checks:
        table.add_row(goal, bound, found, "ok" if ok else "[red]FAILED")
    console.print(table)
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
    return all(ok for *_, ok in checks)


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
        report = run(Path(folder), given.frames, seed, rate=given.rate, seconds=60 * given.minutes, progress=progress)
    return 0 if show(report, console) else 1


if __name__ == "__main__":
    sys.exit(main())
