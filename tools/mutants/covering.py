"""Which tests execute a line: measured once for each test file with coverage, then kept in a folder that git ignores.

Each test file runs alone, with its path as static context; the plugin `mutants.contexts` adds the test as dynamic context.
Lines that run at import, in a fixture of a module, or in a process that a test starts, have the path of the file only.
A measurement is kept until the package, the test file, or a Python file beside it that holds no tests changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coverage import CoverageData
from coverage.exceptions import DataError

from mutants.contexts import RESULTS
from mutants.defects import Defect

TOOLS: Final = Path(__file__).resolve().parent.parent
FORMAT: Final = 2  # of a measurement; a change makes all kept ones void
FILE_SECONDS_MAX: Final = 900
QUICK_SECONDS: Final = 10.0
QUICK_FILE_SECONDS: Final = 1.0  # a whole file that takes no longer runs before the tests
QUICK_TESTS: Final = 60


@dataclass(frozen=True)
class Project:
    """Where sources and tests are.

    Args:
        package: what is measured, a folder of `source`, as "saturnmq/store".
        part: where defects are planted: the package, a folder or a module of it, as "saturnmq/store/queue".
        marks: an expression of pytest -m.
    """

    root: Path
    source: Path
    package: str
    part: str
    tests: tuple[str, ...]
    marks: str

    def files(self) -> dict[str, str]:
        """The modules of the package: path relative to the source folder, and text."""
        paths = sorted((self.source / self.package).rglob("*.py"))
        return {str(path.relative_to(self.source)): path.read_text(encoding="utf-8") for path in paths}

    def drawn_files(self) -> dict[str, str]:
        """Those of the part."""
        part = Path(self.part)
        return {path: text for path, text in self.files().items() if Path(path).is_relative_to(part)}

    def test_files(self) -> list[Path]:
        """The test files, each once."""
        found: dict[Path, None] = {}
        for path in (path for name in self.tests for path in sorted(self.root.glob(name))):
            found |= dict.fromkeys(sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
        return list(found)

    def near_files(self, defects: Iterable[Defect], always: Collection[str] = ()) -> list[Path]:
        """The test files that import the module of a defect, or another one of its folder below the package."""
        names = sorted({near_name(defect.path, self.package) for defect in defects})
        imports = re.compile("|".join(rf"\b{package}(?: import .*\b|\.){module}\b" for package, module in names))
        return [
            path
            for path in self.test_files()
            if str(path.relative_to(self.root)) in always or imports.search(path.read_text(encoding="utf-8"))
        ]


def near_name(path: str, package: str) -> tuple[str, str]:
    """What a test imports that is about a module, as the name of the package and a name in it: a module or a folder."""
    first = Path(path).relative_to(package).parts[0]
    return package.replace("/", "."), first.removesuffix(".py")


@dataclass(frozen=True)
class TestRun:
    """One test as it was measured: seconds under coverage; realtime: it depends on the speed of the machine."""

    seconds: float
    passed: bool
    realtime: bool


@dataclass(frozen=True)
class Choice:
    """The tests for one defect: those that execute its line, and whole files that execute it outside of a test.

    quick: run first. further: the others, up to a limit. left_out: how many are beyond it.
    """

    quick: list[str]
    further: list[str]
    left_out: int
    quick_seconds: float
    further_seconds: float


class Covering:
    """What the test files execute."""

    def __init__(self, project: Project) -> None:
        self._sources = project.files()
        self.tests: dict[str, TestRun] = {}
        self._by_file: dict[str, dict[str, dict[str, set[int]]]] = {}  # test file: context: source: lines

    def add(self, test_file: str, measured: Mapping[str, Any]) -> None:
        """Take what `measure` returned."""
        self.tests |= {name: TestRun(*row) for name, row in measured["tests"].items()}
        self._by_file[test_file] = {
            context: {path: set(lines) for path, lines in rows.items()} for context, rows in measured["lines"].items()
        }

    def failing(self) -> list[str]:
        """Tests that fail without a defect: they can prove nothing."""
        return [name for name, test in self.tests.items() if not test.passed]

    def choose(self, defect: Defect, seconds_max: float) -> Choice:
        """The tests for a defect, the quickest first and those marked realtime last, until they take seconds_max.

        Whole files come before them if they are quick, otherwise behind: a test that reads a class of settings by its fields
        executes no line that names one of them. Tests marked realtime start servers or a Spark session, which takes seconds
        that no single test shows: they are among the quick ones only if there are no others.
        """
        tests, files = self._executing(defect)
        seconds = {name: self.tests[name].seconds for name in tests}
        seconds |= {name: sum(test.seconds for test in self._named(name)) for name, count in files.items() if not count}
        chosen: list[str] = []
        total = 0.0

        def order(name: str) -> tuple[bool, int, float, str]:
            whole = 0 if seconds[name] <= QUICK_FILE_SECONDS else 2
            return self._is_realtime(name), whole if name in files else 1, seconds[name], name

        for name in sorted(seconds, key=order):
            if chosen and total + seconds[name] > seconds_max:
                break
            chosen.append(name)
            total += seconds[name]
        at = 0
        quick_seconds = 0.0
        alike = [name for name in chosen if self._is_realtime(name) is self._is_realtime(chosen[0])]
        while at < min(len(alike), QUICK_TESTS) and (at == 0 or quick_seconds + seconds[chosen[at]] <= QUICK_SECONDS):
            quick_seconds += seconds[chosen[at]]
            at += 1
        further = sorted(chosen[at:])  # file by file, so that fixtures of a module are made once
        return Choice(chosen[:at], further, len(seconds) - len(chosen), quick_seconds, total - quick_seconds)

    def _named(self, name: str) -> list[TestRun]:
        """A test, or all of a file."""
        if name in self.tests:
            return [self.tests[name]]
        return [test for key, test in self.tests.items() if key.startswith(f"{name}::")]

    def _is_realtime(self, name: str) -> bool:
        return any(test.realtime for test in self._named(name))

    def _executing(self, defect: Defect) -> tuple[set[str], dict[str, int]]:
        """The tests that execute a defect's line, and the test files with the number of these tests in each."""
        if defect.in_function:
            lines = {defect.path: set(range(defect.line, defect.end_line + 1))}
            tests, files = self._at(lines)
            return (tests, files) if files else self._at({defect.path: {defect.statement}})
        using = {path: set(mentions(text, defect.name)) for path, text in self._sources.items()} if defect.name else {}
        tests, files = self._at(using)
        tests = {name for name in tests if "::" in name}
        every, more = self._at({defect.path: set(range(1, 1 + self._sources[defect.path].count("\n")))})
        return tests or every, {**dict.fromkeys(more, 0), **files}

    def _at(self, lines: Mapping[str, set[int]]) -> tuple[set[str], dict[str, int]]:
        tests: set[str] = set()
        files: dict[str, int] = {}
        for test_file, contexts in self._by_file.items():
            at = [
                context
                for context, rows in contexts.items()
                if any(path in rows and not rows[path].isdisjoint(numbers) for path, numbers in lines.items())
            ]
            if at:
                own = {context for context in at if context in self.tests}
                tests |= {name for name in own if self.tests[name].passed}
                files[test_file] = len(own)
        return tests, files


def mentions(source: str, name: str) -> Iterator[int]:
    """The lines of a source that name a constant, a function or a field."""
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    return (number for number, line in enumerate(source.splitlines(), 1) if pattern.search(line))


def fingerprint(project: Project, test_file: Path) -> str:
    """Changes with whatever a measurement depends on."""
    digest = hashlib.sha256(f"{FORMAT} {project.marks}".encode())
    for name, text in project.files().items():
        digest.update(f"{name}\0{text}\0".encode())
    beside = [path for path in sorted(test_file.parent.glob("*.py")) if not path.name.startswith("test_")]
    for path in [test_file, *beside]:
        digest.update(f"{path.name}\0{path.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:16]


def measure(project: Project, test_file: Path, environment: Mapping[str, str]) -> dict[str, object]:
    """Run one test file under coverage. "tests": name to [seconds, passed, realtime]; "lines": context to source to lines."""
    name = str(test_file.relative_to(project.root))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        settings = Path(folder) / "coveragerc"
        settings.write_text(
            f"[run]\nsource_dirs = {project.source / project.package}\ndata_file = {folder}/data\nparallel = true\n"
            f"context = {name}\npatch = subprocess\nsigterm = true\ncore = ctrace\ndisable_warnings = no-data-collected\n",
            encoding="utf-8",
        )
        command = [
            sys.executable,
            "-m",
            "coverage",
            "run",
            f"--rcfile={settings}",
            "-m",
            "pytest",
            "-q",
            "-p",
            "mutants.contexts",
        ]
        command += ["-p", "no:cacheprovider", "-m", project.marks, f"--basetemp={folder}/tests", name]
        variables = {**environment, RESULTS: f"{folder}/tests.json"}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TOOLS), environment.get("PYTHONPATH", "")]))
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it executed until then counts
            subprocess.run(
                command,
                cwd=project.root,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=FILE_SECONDS_MAX,
                check=False,
            )
        written = Path(folder) / "tests.json"
        tests = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
        return {"tests": tests, "lines": lines_by_context(project, Path(folder).glob("data.*"))}


def lines_by_context(project: Project, data_files: Iterable[Path]) -> dict[str, dict[str, list[int]]]:
    """Contexts are names of tests, or "" for what no test executed itself."""
    lines: dict[str, dict[str, set[int]]] = {}
    for data_file in data_files:
        data = CoverageData(str(data_file))
        try:
            data.read()
        except DataError:  # of a process that was killed while it wrote
            continue
        for measured in data.measured_files():
            path = str(Path(measured).relative_to(project.source))
            for number, contexts in data.contexts_by_lineno(measured).items():
                for context in contexts:
                    test = context.partition("|")[2]
                    lines.setdefault(test, {}).setdefault(path, set()).add(number)
    return {context: {path: sorted(numbers) for path, numbers in rows.items()} for context, rows in lines.items()}


def collect(
    project: Project, cache: Path, environment: Mapping[str, str], progress: Sequence[Path] | None = None
) -> Covering:
    """What all test files execute; progress: the test files, possibly wrapped to show how many are done."""
    covering = Covering(project)
    cache.mkdir(parents=True, exist_ok=True)
    for test_file in progress if progress is not None else project.test_files():
        name = str(test_file.relative_to(project.root))
        kept = cache / f"{test_file.stem}-{fingerprint(project, test_file)}.json"
        if not kept.exists():
            kept.write_text(json.dumps(measure(project, test_file, environment)), encoding="utf-8")
        covering.add(name, json.loads(kept.read_text(encoding="utf-8")))
    return covering
