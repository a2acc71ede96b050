"""Runs tests on a copy of the sources with a defect in it; the working tree is never changed.

The copy stands first on PYTHONPATH, so that processes which the tests start import it too. A run that takes longer than its
limit counts as noticed. Processes that outlive their run are found by a variable of their environment, and killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from mutants.contexts import RESULTS, load_factor
from mutants.covering import TOOLS, Choice, Covering, Project
from mutants.defects import Defect

TOKEN: Final = "MUTANTS_RUN"
LIMIT_FACTOR: Final = 3.0
LIMIT_EXTRA_S: Final = 20.0  # pytest's start, imports, collection
# All passed; no test left; no test of this name, as when a defect changes a constant that is part of it.
NOT_NOTICED: Final = (0, 5, 4)


@dataclass(frozen=True)
class Outcome:
    """killer: the test that noticed the defect, "time limit", or "" if none did; tests: how many ran, as text."""

    defect: Defect
    killer: str
    tests: str
    seconds: float


def limit_seconds(seconds: float) -> float:
    """How long tests that took `seconds` may take: longer while more processes want to run than there are processors."""
    return (LIMIT_FACTOR * seconds + LIMIT_EXTRA_S) * load_factor()


class Workspace:
    """A copy of the sources in `folder`, and what runs tests on it."""

    def __init__(self, project: Project, folder: Path) -> None:
        self._project = project
        self._folder = folder
        self._copy = folder / "src"
        shutil.copytree(project.source, self._copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(self._copy), str(TOOLS), os.environ.get("PYTHONPATH", "")])
            ),
            TOKEN: str(folder),
        }
        self._results = folder / "tests.json"

    def check(self) -> None:
        """Raises RuntimeError if Python does not import the copy."""
        module = self._project.package.split("/")[0]
        command = [sys.executable, "-c", f"import {module}; print({module}.__file__)"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if not done.stdout.startswith(str(self._copy)):
            raise RuntimeError(
                f"{module} is imported from {done.stdout.strip() or done.stderr.strip()}, not from {self._copy}"
            )

    def judge(self, defect: Defect, covering: Covering, seconds_max: float) -> Outcome:
        """Plant a defect, run its tests, the quick ones first, and restore the copy."""
        choice = covering.choose(defect, seconds_max)
        begin = time.monotonic()
        file = self._copy / defect.path
        source = file.read_text(encoding="utf-8")
        try:
            self._write(file, defect.plant(source))
            killer = self._killer(choice, covering)
        finally:
            self._write(file, source)
        ran = [*choice.quick, *choice.further]
        tests = (
            f"{len(ran)} of {len({name.partition('::')[0] for name in ran})} files" if ran else "no test executes it"
        )
        if choice.left_out:
            tests += f", {choice.left_out} left out"
        return Outcome(defect, killer, tests, time.monotonic() - begin)

    def _killer(self, choice: Choice, covering: Covering) -> str:
        for names, seconds in ((choice.quick, choice.quick_seconds), (choice.further, choice.further_seconds)):
            killer = self._run(names, seconds, covering.failing()) if names else ""
            test = covering.tests.get(killer)
            if killer and test is not None and test.realtime:  # a busy machine fails such a test too
                killer = self._run([killer], test.seconds, [])
            if killer:
                return killer
        return ""

    def _write(self, file: Path, text: str) -> None:
        """Write a module; its compiled form goes, because a quick change of equal length would leave it valid."""
        file.write_text(text, encoding="utf-8")
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)

    def _run(self, names: Sequence[str], seconds: float, failing: Sequence[str]) -> str:
        """Run tests until one fails; returns its name, or "" if all passed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutants.contexts", "-p", "no:cacheprovider"]
        command += ["-m", self._project.marks, f"--basetemp={self._folder / 'tests'}"]
        command += [f"--deselect={name}" for name in failing if any(name.startswith(chosen) for chosen in names)]
        self._results.unlink(missing_ok=True)
        process = subprocess.Popen(
            [*command, *names], cwd=self._project.root, env={**self.environment, RESULTS: str(self._results)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit_seconds(seconds))
        except subprocess.TimeoutExpired:
            return "time limit"
        finally:
            self._kill(process)
        if process.returncode in NOT_NOTICED:
            return ""
        rows = json.loads(self._results.read_text(encoding="utf-8")) if self._results.exists() else {}
        return next((name for name, row in rows.items() if not row[1]), f"pytest, exit status {process.returncode}")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a run with all that it started, also servers in sessions of their own."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for other in psutil.process_iter():
            try:
                if other.environ().get(TOKEN) == str(self._folder):
                    other.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
