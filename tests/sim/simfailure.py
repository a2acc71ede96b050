"""Explains a failed seed: seed, commit, the command that reproduces it, and the shortest fault schedule found (SIM-14)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from harness.raftsim.group import Cluster, Violation
from saturnmq.protocol.errors import InvariantBroken

Run = Callable[[frozenset[int]], Cluster]
RUNS_MAX = 40


def fails(run: Run, left_out: frozenset[int]) -> tuple[bool, Cluster | None]:
    """Whether a run without these faults also fails. run builds a cluster, sets left_out, and raises the violation found."""
    try:
        return False, run(left_out)
    except (Violation, InvariantBroken):
        return True, None


def shortest(run: Run, faults: int, runs_max: int = RUNS_MAX) -> frozenset[int]:
    """Numbers of the faults that can be left out while the run still fails; tries halves first, then single faults."""
    kept, runs, size = list(range(faults)), 0, max(faults // 2, 1)
    while size >= 1 and runs < runs_max:
        at = 0
        while at < len(kept) and runs < runs_max:
            tried = kept[:at] + kept[at + size :]
            runs += 1
            if fails(run, frozenset(range(faults)) - frozenset(tried))[0]:
                kept = tried
            else:
                at += size
        size //= 2
    return frozenset(range(faults)) - frozenset(kept)


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "not known"


def explain(seed: int, test: str, why: BaseException, cluster: Cluster, run: Run) -> str:
    """The text to print. cluster: the failed one; run: runs the same seed with some faults left out."""
    faults = len(cluster.schedule)
    left_out = shortest(run, faults)
    # A run without some faults draws other random numbers: print the schedule of that run, not of the first.
    kept: list[str] = []
    smaller = _rerun(run, left_out)
    for number, line in enumerate(smaller.schedule if smaller is not None else cluster.schedule):
        if number not in left_out:
            kept.append(line)
    return "\n".join(
        [
            str(why),
            f"seed {seed}, commit {commit()}",
            f"again: SATURNMQ_SIM_SEED={seed} python -m pytest tests/sim -k {test}",
            f"shortest schedule found: {len(kept)} of {faults} faults, left out {sorted(left_out)}",
            *kept,
            "the last events:",
            *cluster.trace.tail[-30:],
        ]
    )


def _rerun(run: Run, left_out: frozenset[int]) -> Cluster | None:
    kept: list[Cluster] = []
    original = Cluster.start

    def start(self: Cluster) -> None:
        kept.append(self)
        original(self)

    Cluster.start = start  # type: ignore[method-assign]
    try:
        fails(run, left_out)
    finally:
        Cluster.start = original  # type: ignore[method-assign]
    return kept[-1] if kept else None
