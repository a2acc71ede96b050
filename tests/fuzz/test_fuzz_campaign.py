"""The short form of the fuzz campaign: hostile frames for every port of real processes; `make fuzz` runs 10 million."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.fuzz.campaign import RSS_GROWTH_MAX, run, unexpected
from harness.fuzz.frames import FrameMaker, is_whole, recorded_frames
from recorded import VECTORS

pytestmark = pytest.mark.realtime
FRAMES = 25_000
SEED = 1  # `make fuzz` draws a new one


@pytest.mark.spec("FUZ-02", "FUZ-03")
@pytest.mark.timeout(300)
def test_hostile_frames_on_every_port_get_protocol_errors_only(tmp_path: Path) -> None:
    report = run(tmp_path, FRAMES, SEED, quiet_seconds=0.5, rounds=2)
    print(f"seed {report.seed}, {report.rate:,.0f} frames/s, p99 {report.p99_ratio:.1f} x")
    assert not report.problems, "\n".join(report.problems + report.context)
    assert report.attacked is not None
    assert report.attacked.failed == 0
    assert report.attacked.sent > 0
    assert report.count.frames >= 0.85 * FRAMES
    assert {0, 1, 3} <= report.count.answers.keys(), (
        "frames reach handlers, are refused by them, and have unknown codes"
    )
    assert report.count.closed > 0
    assert len(report.rounds) == 2 and all(hostile.taken and harmless.taken for hostile, harmless in report.rounds)
    assert report.control.frames >= 0.85 * FRAMES
    assert set(report.control.answers) <= {0, 200} and not report.control.closed, "the control is harmless"
    for server, (before, after) in report.rss.items():
        assert after - before < RSS_GROWTH_MAX, server


def test_equal_seeds_make_equal_frames_and_others_do_not() -> None:
    recorded = recorded_frames(VECTORS)
    one, same, other = (FrameMaker(seed, [10, 11, 34], recorded) for seed in (5, 5, 6))
    frames = [one.frame() for _ in range(500)]
    assert frames == [same.frame() for _ in range(500)]
    assert frames != [other.frame() for _ in range(500)]
    assert all(is_whole(frame.raw) == frame.whole for frame in frames)
    assert {frame.whole for frame in frames} == {frame.sound for frame in frames} == {True, False}


def test_lines_that_differ_in_numbers_only_count_as_one_problem() -> None:
    assert unexpected(["12:01 ERROR at 5", "12:02 ERROR at 77", "Traceback"]) == ["2 x # ERROR at #", "1 x Traceback"]
