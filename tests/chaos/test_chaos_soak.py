"""Some seconds of each part of `make soak`, so that the long runs keep working; and the judgement of growth."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.soak.samples import Sample, Watched, look, slope
from harness.soak.space import fill

TESTS = Path(__file__).resolve().parents[1]
RUN_SECONDS_MAX = 600  # no promise
# Seconds of each part, and the line that must say ok.
PARTS = {
    "nodes": (8, "SOK-01 "),
    "churn": (3, "SOK-03 churn"),
    "disk": (3, "SOK-04 full disk"),
    "deletion": (3, "SOK-05 deletion"),
    "reload": (2, "SOK-06 reloads"),
    "idle": (3, "SOK-06 idle pulls"),
}


@pytest.mark.long
@pytest.mark.timeout(RUN_SECONDS_MAX + 60)
@pytest.mark.spec("SOK-01", "SOK-02", "SOK-03", "SOK-04", "SOK-05", "SOK-06")
@pytest.mark.parametrize("part", PARTS)
def test_soak_part_keeps_its_promises_for_seconds(part: str, tmp_path: Path) -> None:
    seconds, begin = PARTS[part]
    words = [sys.executable, "-m", "harness.soak.run", part, "--seconds", str(seconds), "--rate", "100"]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS / 'chaos'}", "COLUMNS": "500"}
    done = subprocess.run(
        [*words, "--folder", str(tmp_path)], capture_output=True, text=True, env=environment, timeout=RUN_SECONDS_MAX
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(begin)]
    assert len(lines) == 1 and (lines[0].endswith(": ok") or "skipped: " in lines[0]), done.stdout


def grown(own_mb_per_hour: float, parked: int = 0) -> Watched:
    """A process with samples every 10 s for an hour."""
    made = Watched("broker", lambda: None)
    made.samples = [
        Sample(
            at,
            rss=0,
            own=int(50e6 + own_mb_per_hour * 1e6 * at / 3600),
            descriptors=20,
            threads=9,
            parked=parked * at // 3600,
        )
        for at in range(0, 3610, 10)
    ]
    return made


@pytest.mark.spec("SOK-02", "G13")
def test_growth_is_judged_by_slope_and_last_third() -> None:
    assert [goal.holds for goal in grown(0.5).goals("SOK-02", 1200)] == [True, True]
    assert [goal.holds for goal in grown(50.0).goals("SOK-02", 1200)] == [False, True]
    assert [goal.holds for goal in grown(0.0, parked=100).goals("SOK-02", 1200)] == [True, False]
    assert [goal.holds for goal in Watched("broker", lambda: None).goals("SOK-02", 0)] == [False], "nothing was sampled"
    assert slope([(0.0, 2.0), (1.0, 2.0), (2.0, 8.0)]) == 3.0


def test_sample_counts_descriptors_but_two_of_each_file(tmp_path: Path) -> None:
    def now() -> int:
        found = look(os.getpid(), 0.0)
        assert found is not None
        return found.descriptors

    before = now()
    path = tmp_path / "log"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert now() == before
        with path.open():
            assert now() == before + 1
            path.unlink()
            assert now() == before + 3


def test_sample_of_this_process_has_its_figures() -> None:
    found = look(os.getpid(), 1.0)
    assert found is not None and found.rss > found.own > 1_000_000
    assert found.descriptors >= 1 and found.threads >= 1
    assert look(2**22 + 1, 1.0) is None


def test_ballast_grows_and_shrinks_to_a_share_of_its_disk(tmp_path: Path) -> None:
    (tmp_path / "ballast").write_bytes(b"1" * 100_000)
    fill(tmp_path / "ballast", 0.0)
    assert (tmp_path / "ballast").stat().st_size == 0
