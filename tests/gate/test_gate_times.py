"""The times of test files: measured in each process, child processes included, printed and recorded once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

BURNED_SECONDS = 0.4


def test_times_of_files_count_child_processes_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("SATURNMQ_GATE", str(pytester.path / "records"))
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).resolve().parents[1]}\naddopts = -p no:cacheprovider\n")
    pytester.makeconftest('pytest_plugins = ["harness.gate.times"]')
    burn = f"import time\nwhile time.process_time() < {BURNED_SECONDS}: pass"
    pytester.makepyfile(
        test_idle="def test_one(): pass\ndef test_two(): pass\n",
        test_busy=f"import subprocess, sys\ndef test_child(): subprocess.run([sys.executable, '-c', {burn!r}], check=True)\n",
    )
    result = pytester.runpytest_subprocess("-n2", "--dist=loadfile")
    result.assert_outcomes(passed=3)
    row = r" *([\d.]+) s +([\d.]+) s CPU  (test_\w+\.py)"
    printed = {match[3]: float(match[2]) for line in result.outlines if (match := re.fullmatch(row, line))}
    assert printed.keys() == {"test_idle.py", "test_busy.py"}
    assert printed["test_busy.py"] >= BURNED_SECONDS > printed["test_idle.py"]
    recorded = (pytester.path / "records" / "times.txt").read_text().splitlines()
    assert sorted(re.fullmatch(row, line)[3] for line in recorded) == ["test_busy.py", "test_idle.py"]  # type: ignore[index]
