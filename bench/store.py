"""Benchmark of the store against Apache's: the cost of SYNC_FLUSH, and the restart time with a large log.

    python bench/store.py [--quick] [--write] [--gib N] [--rounds N]

A log is filled through SaturnMQ's broker, which is then killed. Both brokers are started alternately on copies of that store; the
time runs from the start of the process to its ready line.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests" / "interop"), str(REPOSITORY / "tests"), str(REPOSITORY / "bench")]

import apache  # noqa: E402
import javatools  # noqa: E402
import saturn  # noqa: E402
from processes import ServerProcess  # noqa: E402

import report  # noqa: E402
from measure import APACHE_HEAP_MB, HEADERS, Bench, Plan, Workload, load_generator  # noqa: E402
from ports import free_port  # noqa: E402

GIB = 1 << 30
SYNC_PEERS = ["saturnmq+sync", "saturnmq", "apache+sync"]
STANDARD = {"storeProfile": "standard"}


@dataclass
class Starts:
    """Seconds to the ready line and resident bytes at that time, by what was started."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    rss_bytes: dict[str, list[int]] = field(default_factory=dict)

    def add(self, name: str, seconds: float, rss_bytes: int) -> None:
        self.seconds.setdefault(name, []).append(seconds)
        self.rss_bytes.setdefault(name, []).append(rss_bytes)


class LargeLog:
    """Fills one store, kills its broker, and starts brokers on copies of it."""

    def __init__(self, folder: Path, size_bytes: int, console: Console) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self.console = console
        self.namesrv_port = free_port()
        self.broker_port = free_port(apache.BROKER_PORT_OFFSETS)
        self.name_servers = f"127.0.0.1:{self.namesrv_port}"
        self.starts = Starts()

    @property
    def store(self) -> Path:
        return self.folder / "broker-a" / "store"

    @property
    def saved(self) -> Path:
        return self.folder / "saved"

    def run(self, rounds: int) -> Starts:
        namesrv = saturn.start_namesrv(self.namesrv_port)
        try:
            self._fill()
            for number in range(rounds):
                for make in ("saturn", "apache") if number % 2 == 0 else ("apache", "saturn"):
                    self._round(make)
        finally:
            namesrv.stop()
        return self.starts

    def _start(self, make: str) -> ServerProcess:
        if make == "saturn":
            return saturn.start_broker(self.folder, self.broker_port, self.name_servers, settings=STANDARD)
        return apache.start_broker(
            self.folder, self.broker_port, self.name_servers, small_store=False, heap_mb=APACHE_HEAP_MB
        )

    def _fill(self) -> None:
        broker = self._start("saturn")
        load = load_generator(self.folder / "load")
        try:
            with Progress(console=self.console, transient=True) as progress:
                task = progress.add_task("filling the log", total=self.size_bytes)
                sent = 0
                while sent < self.size_bytes:
                    words = f"send ns={self.name_servers} mode=batch threads=4 bytes=1024 seconds=2 topic=Large"
                    before = load.say(words)
                    answer = load.wait_for_line(r'^RESULT .*"messages":(\d+)', 60, after=before)
                    sent += int(answer.group(1)) * 1280  # a record of 1 KiB with its properties
                    progress.update(task, completed=min(sent, self.size_bytes))
            broker.process.kill()
        finally:
            load.stop(2)
            broker.stop()
        self.store.rename(self.saved)

    def _round(self, make: str) -> None:
        shutil.copytree(self.saved, self.store)
        if make == "saturn":
            self._timed("SaturnMQ after a kill", make)
            self._timed("SaturnMQ after a clean stop", make)
        else:
            self._timed("Apache 4.9.7 after a kill of SaturnMQ", make)
            self._timed("Apache 4.9.7 after a clean stop", make)
        shutil.rmtree(self.store)

    def _timed(self, name: str, make: str) -> None:
        begin = time.monotonic()
        broker = self._start(make)
        seconds = time.monotonic() - begin
        self.starts.add(name, seconds, broker.rss_bytes())
        broker.stop()


def starts_table(starts: Starts, size_bytes: int) -> Table:
    out = Table(title=f"from the start of the process to ready, with a log of {size_bytes / GIB:.2f} GiB")
    for column in ("what", "seconds, median (min-max)", "resident then"):
        out.add_column(column, justify="left" if column == "what" else "right")
    for row in _start_rows(starts):
        out.add_row(*row)
    return out


def _start_rows(starts: Starts) -> list[tuple[str, str, str]]:
    rows = []
    for name, found in sorted(starts.seconds.items()):
        text = f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"
        rows.append((name, text, f"{statistics.median(starts.rss_bytes[name]) / 2**20:.0f} MiB"))
    return rows


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round, 1 GiB")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-store.md")
    parser.add_argument("--gib", type=float, help="size of the log (default 4)")
    parser.add_argument("--rounds", type=int, help="rounds (default 3)")
    return parser.parse_args()


def main() -> int:
    args = options()
    console = Console()
    reason = javatools.why_not()
    if reason:
        console.print(f"bench/store.py was {reason}")
        return 0
    rounds = args.rounds or (1 if args.quick else 3)
    size_bytes = int((args.gib or (1 if args.quick else 4)) * GIB)
    rows = tuple(Workload("sync", 64, 1024, header) for header in HEADERS)
    plan = Plan(rows, rounds, 1.0 if args.quick else 4.0, 2.0, 0, quick=True)
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
        results = Bench(plan, SYNC_PEERS, Path(folder), console).run()
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
        starts = LargeLog(Path(folder), size_bytes, console).run(rounds)
    facts = report.machine()
    console.print(report.table(results))
    console.print(starts_table(starts, size_bytes))
    for line in facts:
        console.print(line, style="dim")
    if args.write:
        target = REPOSITORY / "docs" / "benchmarks-store.md"
        target.write_text(_markdown(report.markdown(results, facts, plan), starts, size_bytes))
        console.print(f"written: {target.relative_to(REPOSITORY)}")
    return 0


def _markdown(first: str, starts: Starts, size_bytes: int) -> str:
    lines = [first.rstrip(), "", f"## Starting with a log of {size_bytes / GIB:.0f} GiB", ""]
    lines += [
        "Filled by SaturnMQ, which was killed; copies of that store were started by both brokers alternately.",
        "",
    ]
    lines += ["| what | seconds to ready, median (min-max) | resident then |", "|---|---:|---:|"]
    lines += ["| " + " | ".join(row) + " |" for row in _start_rows(starts)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
