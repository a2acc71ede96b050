"""Progress of commands on stderr."""

from __future__ import annotations

import argparse
import time

import pytest

from saturnmq.cli.everyday.progress import FIRST_SECONDS, CommandProgress
from saturnmq.spark.progress import LINE_SECONDS


class Clock:
    """A monotonic clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def reported(clock: Clock, *, quiet: bool = False, as_json: bool = False, seconds: int = 12) -> None:
    with CommandProgress("sent", argparse.Namespace(quiet=quiet, json=as_json), total=100) as progress:
        for done in range(seconds):
            progress.at(done)
            clock.now += 1.0


@pytest.mark.spec("CLI-07")
def test_progress_off_a_terminal_is_a_line_every_five_seconds(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    assert (FIRST_SECONDS, LINE_SECONDS) == (1.0, 5.0)
    reported(clock)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["sent: 6 of 100 messages", "sent: 11 of 100 messages", "sent: 11 of 100 messages"]


@pytest.mark.spec("CLI-07")
@pytest.mark.parametrize(("quiet", "as_json"), [(True, False), (False, True)])
def test_progress_is_silent_with_quiet_and_with_json(
    clock: Clock, capfd: pytest.CaptureFixture[str], quiet: bool, as_json: bool
) -> None:
    reported(clock, quiet=quiet, as_json=as_json)
    assert capfd.readouterr() == ("", "")


def test_a_short_operation_reports_nothing(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    reported(clock, seconds=1)
    assert capfd.readouterr() == ("", "")
