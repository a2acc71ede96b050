"""Simulation of a master and its slave: no acknowledged message is lost with one disk, the slave serves only what it has.

`SATURNMQ_SIM_SEEDS=n` runs n seeds; `SATURNMQ_SIM_SEED=k`, or `python tests/sim/pairsystem.py k 1 20`, only seed k.

Requirements: SIM-11, CHA-10.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_system_sim import LONG_SECONDS, ONLY, SEEDS, SEEDS_TRIED, happened, simulate

PROGRAM = Path(__file__).with_name("pairsystem.py")
SECONDS = 20
IN_MANY = (
    "power master", "power both", "freeze master", "one way", "partition", "slave's disk", "master's disk", "master's disk behind",
    "master's disk and power", "old master returns", "took over", "repaired", "lost", "lacked",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    """The report of each seed."""
    return simulate(int(ONLY), 1, SECONDS, program=PROGRAM) if ONLY else simulate(1, SEEDS, SECONDS, program=PROGRAM)


@pytest.mark.repeated
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.spec("DUR-12", "HA-16")
def test_pairs_keep_what_their_mode_promises(runs: list[dict[str, Any]]) -> None:
    """The history is valid, logs and queues are equal, a served slave's log is a prefix, offsets fall only where the master's do.

    With SYNC_MASTER and SYNC_FLUSH (seeds 2 and 4) nothing acknowledged is lost; otherwise what the lost log had alone.
    """
    failed = [f"seed {run['seed']}: {run['why']}\n{run.get('schedule')}" for run in runs if run["why"] is not None]
    assert not failed, f"{len(failed)} of {len(runs)} seeds\n" + "\n".join(failed[:5])
    assert happened(runs)["prefix compared"] > 10 * len(runs) and happened(runs)["slave pull 0"] > len(runs)
    assert len(runs) < 100 or [kind for kind in IN_MANY if not happened(runs)[kind]] == []


@pytest.mark.long
@pytest.mark.spec("SIM-02", "SIM-14")
def test_pair_seed_replays_exactly(runs: list[dict[str, Any]]) -> None:
    again = simulate(runs[0]["seed"], 1, SECONDS, program=PROGRAM)[0]
    assert (again["digest"], again["why"]) == (runs[0]["digest"], runs[0]["why"])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.spec("SIM-11")
def test_pair_simulation_finds_planted_defects() -> None:
    """Sends acknowledged too early, by master or slave, a stream with gaps, a slave that goes on with another master's log."""
    defects = {
        "acknowledged before the slave has it": (24, "lost"),
        "gaps are accepted": (2, "follow"),
        "another log is followed": (5, "prefix|logs differ|does not follow"),
        "reported before it is durable": (22, "lost"),
    }
    for defect, (first, what) in defects.items():
        reasons = dict[int, str | None]()
        for seed in range(first, first + SEEDS_TRIED):  # a change of the client gives every seed another history
            reasons[seed] = simulate(seed, 1, SECONDS, defect, program=PROGRAM)[0]["why"]
            if re.search(what, reasons[seed] or ""):
                break
        else:
            pytest.fail(f"{defect}: {reasons}")
