"""Text from servers on the terminal: no control and no bidirectional character reaches it."""

from __future__ import annotations

import argparse

import pytest

from saturnmq.cli.output import fail, show_rows, warn
from saturnmq.protocol.errors import SaturnError

HOSTILE = "a\x1b[2Jb\x9bc\rd\u202ee\u200ff\u061cg"
SHOWN = r"a\x1b[2Jb\x9bc\x0dd\u202ee\u200ff\u061cg"


def test_errors_and_warnings_are_one_escaped_line(capsys: pytest.CaptureFixture[str]) -> None:
    fail(SaturnError(f"{HOSTILE}\nsaturnmq: ready"), argparse.Namespace(debug=False, json=False), 1)
    warn(HOSTILE)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == rf"saturnmq: error: {SHOWN}\x0asaturnmq: ready"
    assert lines[1].startswith("saturnmq: next: ") and lines[2:] == [f"saturnmq: {SHOWN}"]


def test_rows_of_a_table_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"topic": HOSTILE, "offset": 1}])
    assert SHOWN in capsys.readouterr().out
