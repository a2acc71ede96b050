"""The short form of the fuzzing of compiled modules under sanitizers; `make fuzz SANITIZED=1` sends 10 million frames."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.fuzz import sanitized

FRAMES = 2_000


@pytest.mark.spec("FUZ-05")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc with libasan")
def test_damaged_sends_cause_no_report_of_a_sanitizer() -> None:
    stored, problem = sanitized.run(2 * FRAMES, 2, FRAMES)
    assert not problem, problem
    assert stored > FRAMES / 20


def test_a_report_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that ends with a report, in place of one that was attacked."""
    program = tmp_path / "reports"
    program.write_text("#!/bin/sh\necho '==1==ERROR: AddressSanitizer: heap-buffer-overflow' >&2\nexit 134\n")
    program.chmod(0o755)
    monkeypatch.setattr(sanitized, "build", lambda folder: {})
    monkeypatch.setattr(sanitized.sys, "executable", str(program))
    stored, problem = sanitized.run(FRAMES, 2)
    assert stored == 0 and problem.startswith("seed 2: exit status 134") and "heap-buffer-overflow" in problem
