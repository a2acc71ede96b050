"""The soak runs: `PYTHONPATH=tests:tests/chaos python -m harness.soak.run PART`, run by `make soak`.

Parts: nodes (SOK-01, SOK-02), churn (SOK-03), disk (SOK-04), deletion (SOK-05), reload and idle (SOK-06). Prints one line per
goal; exit code 0: all hold; 1: one does not. The run has a mount namespace of its own where the system allows it, so that it can
mount small disks without root.

Requirements: SOK-01..SOK-06, G13.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.gate.goals import Goal
from harness.soak.options import Options

PARTS: Final = {
    "nodes": "chaossoak",
    "churn": "harness.soak.churn",
    "disk": "harness.soak.disk",
    "deletion": "harness.soak.deletion",
    "reload": "harness.soak.reload",
    "idle": "harness.soak.idle",
}
LINE_SECONDS: Final = 60.0  # between two lines of progress in a log file
NAMESPACE: Final = "SATURNMQ_SOAK_NAMESPACE"
UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--mount")


def enter_namespace(arguments: Sequence[str]) -> None:
    """Run this program again in a mount namespace of its own, if there can be one; else return."""
    if NAMESPACE in os.environ or shutil.which(UNSHARE[0]) is None:
        return
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0:
        words = [*UNSHARE, sys.executable, "-m", "harness.soak.run", *arguments]
        os.execvpe(words[0], words, {**os.environ, NAMESPACE: "1"})


def run_part(part: str, given: argparse.Namespace, console: Console) -> list[Goal]:
    module: Any = importlib.import_module(PARTS[part])
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[state]}"))
    folder = Path(tempfile.mkdtemp(prefix=f"saturnmq-soak-{part}-", dir=given.folder))
    kept = False
    with Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal) as progress:
        bar = progress.add_task(part, total=given.seconds, state="")
        shown_s = -LINE_SECONDS

        def show(at_s: float, text: str) -> None:
            nonlocal shown_s
            progress.update(bar, completed=at_s, state=text)
            if not console.is_terminal and at_s - shown_s >= LINE_SECONDS:
                shown_s = at_s
                console.print(f"{part} {at_s / 60:.1f} min: {text}", highlight=False)

        try:
            found: list[Goal] = asyncio.run(module.run(Options(given.seconds, given.rate, given.seed, folder, show)))
        except BaseException:
            kept = True
            console.print(f"{part}: what was recorded lies in {folder}", markup=False)
            raise
    if all(goal.holds for goal in found) and not kept:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        console.print(f"{part}: what was recorded lies in {folder}", markup=False)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m harness.soak.run", description="Soak runs.")
    parser.add_argument("part", nargs="+", choices=[*PARTS, "all"])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of each part (%(default)s)")
    parser.add_argument(
        "--rate", type=float, default=1000.0, help="sends per second of nodes and deletion (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="for stores and histories; default: that of temporary files")
    given = parser.parse_args(words)
    enter_namespace(words)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.basicConfig(level=logging.ERROR)
    console = Console(soft_wrap=True)
    goals: list[Goal] = []
    for part in PARTS if "all" in given.part else given.part:
        began, load = time.monotonic(), os.getloadavg()[0]
        found = run_part(part, given, console)
        goals += found
        for goal in found:
            console.print(str(goal), markup=False, highlight=False)
        took = time.monotonic() - began
        console.print(
            f"{part}: {took:.0f} s, load {load:.1f} -> {os.getloadavg()[0]:.1f}, seed {given.seed}", highlight=False
        )
    return 0 if all(goal.holds for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
