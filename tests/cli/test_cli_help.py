"""`--help` of every command: long options, an example, and at once."""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from saturnmq.cli import VERBS, build_parser

# 200 and 150 ms of a machine on which an interpreter starts in 20 ms; a slower one takes longer for both.
HELP_STARTS_MAX = 10.0
IMPORT_STARTS_MAX = 7.5


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser of every command that runs something."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for each in action.choices.values():
            yield from parsers(each)
    if not inner:
        yield parser


def child_seconds() -> float:
    """Processor time of the children so far: unlike elapsed time it says little of other programs on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.spec("CLI-01")
def test_every_command_comes_from_the_table_with_an_example_and_long_options() -> None:
    found = {parser.prog: parser for parser in parsers(build_parser())}
    assert {prog.split()[1] for prog in found} == {verb.name for verb in VERBS}
    for prog, parser in found.items():
        assert f"example: {prog}" in parser.format_help(), prog
        assert parser.description, prog
        for action in parser._actions:
            if action.option_strings:
                assert any(re.fullmatch(r"--[a-z][a-z-]*", name) for name in action.option_strings), (prog, action)
                assert action.help, (prog, action)


def seconds_of(folder: Path, *args: str) -> tuple[float, str]:
    """Least processor time of three runs after the first, with byte code in the folder, and what the last one printed."""
    env = os.environ | {"PYTHONPYCACHEPREFIX": str(folder)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    took = []
    for _ in range(4):
        began = child_seconds()
        done = subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, timeout=60, check=True)
        took.append(child_seconds() - began)
    return min(took[1:]), done.stdout


@pytest.mark.spec("CLI-01")
def test_help_takes_less_than_ten_starts_of_python(tmp_path: Path) -> None:
    python, _ = seconds_of(tmp_path, "-c", "pass")
    seconds, printed = seconds_of(tmp_path, "-m", "saturnmq.cli", "--help")
    assert all(verb.name in printed for verb in VERBS)
    assert seconds < HELP_STARTS_MAX * python


@pytest.mark.spec("PKG-04")
def test_import_takes_less_than_eight_starts_of_python(tmp_path: Path) -> None:
    python, _ = seconds_of(tmp_path, "-c", "pass")
    seconds, _ = seconds_of(tmp_path, "-c", "import saturnmq")
    assert seconds - python < IMPORT_STARTS_MAX * python
