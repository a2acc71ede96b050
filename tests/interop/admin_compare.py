"""Compares `saturnmq admin` with Apache's `mqadmin`: the same command line, against the same cluster, line of stdout by line.

A module `admin_lines_*.py` holds the command lines of a family in `LINES`. Java's commands run in one JVM (interop/Admin.java).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from javatools import java_command, java_environment
from processes import ServerProcess

from saturnmq.cli.mqadmin import run

HERE = Path(__file__).resolve().parent
THREADS = 16  # a command of Java's mostly waits for the shutdown of its client
ANSWER_S = 90.0
# What the two runs of a command may name differently, so that neither meets the work of the other: {side} in the words.
JAVA_SIDE, OUR_SIDE = "sideJ", "sideS"
_MASKS: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;]*m", ""),
    (f"{JAVA_SIDE}|{OUR_SIDE}", "sideX"),
    (r"\b1[0-9]{12}\b", "MS           "),
    (r"\b[0-9A-F]{32}\b", "ID".ljust(32)),
)


@dataclass(frozen=True)
class Allowed:
    """A difference from mqadmin that is meant: where Java's output matches the pattern, ours has the replacement."""

    pattern: str
    replacement: str
    reason: str


@dataclass(frozen=True)
class Line:
    """One command line. words: with {placeholders}: {ns}, {broker}, the results of prepare(), {side}, {folder}.

    writes: it changes something, so it runs after all that only read. before: command lines of ours that run first, for each side.
    rows_sorted: the order of lines is that of a Java hash table. masks: of both outputs, pattern and replacement.
    code: exit code of ours. kinds: kinds of clusters that it runs against; all without access control if empty. files: JSON files
    below {folder} that are compared, too.
    """

    words: str
    name: str = ""
    writes: bool = False
    before: tuple[str, ...] = ()
    rows_sorted: bool = False
    masks: tuple[tuple[str, str], ...] = ()
    allowed: tuple[Allowed, ...] = ()
    code: int = 0
    kinds: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its name in the list of tests."""
        return self.name or self.words


@dataclass(frozen=True)
class Printed:
    """What one run of a command printed; files: the text of the files that it wrote."""

    code: int
    out: str
    err: str
    files: tuple[str, ...] = ()


def all_lines() -> list[Line]:
    """The command lines of all families. Raises AssertionError for a name that occurs twice."""
    found: list[Line] = []
    for path in sorted(HERE.glob("admin_lines_*.py")):
        found.extend(importlib.import_module(path.stem).LINES)
    names = [line.id for line in found]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    return found


class JavaAdmin:
    """One JVM that runs many commands of mqadmin; a context manager. home: ROCKETMQ_HOME, with tools.yml for credentials."""

    def __init__(self, home: Path) -> None:
        command = java_command(
            "interop.Interop",
            ["admin", f"threads={THREADS}"],
            home=home,
            properties={"java.security.manager": "allow", "file.encoding": "UTF-8"},
        )
        self._process = ServerProcess(
            command, name="mqadmin", env=java_environment(home) | {"LC_ALL": "C.UTF-8"}, cwd=home, stdin=True
        )
        self._number = 0
        try:
            self._process.wait_ready(r'"ready":true')
        except BaseException:
            self._process.stop(2)
            raise

    def run_all(self, commands: Sequence[Sequence[str]]) -> list[Printed]:
        """Run commands concurrently; their results in the order given."""
        numbers = [self._send(words) for words in commands]
        return [self._result(number) for number in numbers]

    def run(self, *words: str) -> Printed:
        """Run one command."""
        return self.run_all([words])[0]

    def _send(self, words: Sequence[str]) -> int:
        self._number += 1
        self._process.say(json.dumps([str(self._number), *words]))
        return self._number

    def _result(self, number: int) -> Printed:
        found = self._process.wait_for_line(rf'^RESULT (\{{"number":"{number}",.*)', ANSWER_S)
        row = json.loads(found.group(1))
        return Printed(row["code"], row["out"], row["err"])

    def close(self) -> None:
        """End the JVM."""
        self._process.stop(5)

    def __enter__(self) -> JavaAdmin:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_ours(words: Sequence[str]) -> Printed:
    """Run a command of `saturnmq admin` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run.main(words)
    return Printed(code, out.getvalue(), err.getvalue())


class Comparison:
    """Runs command lines against one cluster, by Java and by us. words: values of placeholders; folder: for files."""

    def __init__(self, java: JavaAdmin, words: Mapping[str, str], folder: Path, ours: Sequence[str] = ()) -> None:
        """ours: options of every command of ours."""
        self._ours = ours
        self._java = java
        self._words = words
        self._folder = folder

    def run_all(self, lines: Sequence[Line]) -> dict[str, tuple[Printed, Printed]]:
        """Java's result and ours by name: those that read first, then those that write."""
        found: dict[str, tuple[Printed, Printed]] = {}
        for writes in (False, True):
            found |= self._run([line for line in lines if line.writes == writes])
        return found

    def _run(self, lines: Sequence[Line]) -> dict[str, tuple[Printed, Printed]]:
        for line in lines:
            for side in (JAVA_SIDE, OUR_SIDE):
                for words in line.before:
                    done = run_ours([*self._filled(words, side, line), *self._ours])
                    assert done.code == 0, (line.id, words, done)
        theirs = self._java.run_all([self._filled(line.words, JAVA_SIDE, line) for line in lines])
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(self._folder):  # some commands write files into the working directory
            ours = [run_ours([*self._filled(line.words, OUR_SIDE, line), *self._ours]) for line in lines]
        return {
            line.id: (self._with_files(java, line, JAVA_SIDE), self._with_files(our, line, OUR_SIDE))
            for line, java, our in zip(lines, theirs, ours, strict=True)
        }

    def _filled(self, words: str, side: str, line: Line) -> list[str]:
        folder = str(self._of_line(line, side))
        values = {**self._words, "side": side, "folder": folder}
        filled = [word.format(**values) for word in words.split(" ")]
        return filled if "-n" in filled or not filled[0] else [*filled, "-n", values["ns"]]

    def _of_line(self, line: Line, side: str) -> Path:
        return self._folder / re.sub(r"\W+", "-", line.id)[:60] / side

    def _with_files(self, printed: Printed, line: Line, side: str) -> Printed:
        paths = [self._of_line(line, side) / name for name in line.files]
        texts = tuple(_sorted_json(path.read_text()) if path.exists() else f"no file {path.name}" for path in paths)
        return Printed(printed.code, printed.out, printed.err, texts)


def _sorted_json(text: str) -> str:
    """A document whose names are sorted, and the members of its lists: Java's are sets in the order of a hash table."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: ordered(one) for name, one in value.items()}
        return sorted(map(ordered, value), key=str) if isinstance(value, list) else value

    return json.dumps(ordered(json.loads(text)), indent=1, sort_keys=True)


def masked(text: str, line: Line) -> list[str]:
    """The lines of an output without what differs between two runs of one tool."""
    for pattern, replacement in (*_MASKS, *line.masks):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    lines = text.splitlines()
    return sorted(lines) if line.rows_sorted else lines


def expected(printed: Printed, line: Line) -> list[str]:
    """Java's lines, with the differences that are meant."""
    text = printed.out
    for one in line.allowed:
        text = re.sub(one.pattern, one.replacement, text, flags=re.MULTILINE)
    return masked(text, line)


def of_kind(lines: Sequence[Line], kind: str) -> list[Line]:
    """The lines that run against a kind of cluster."""
    return [line for line in lines if kind in line.kinds or not (line.kinds or kind.startswith("acl"))]
