"""`--help` of every command: long options, an example, and start-up time."""

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

import command_page
from saturnmq.cli.commands import COMMANDS, build_parser

REPOSITORY = Path(__file__).resolve().parents[2]

# Multiples of an interpreter start. On a machine with 20 ms per start these are 200 and 150 ms.
HELP_STARTS_MAX = 10.0
IMPORT_STARTS_MAX = 7.5


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands that run something."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for each in action.choices.values():
            yield from parsers(each)
    if not inner:
        yield parser


def child_seconds() -> float:
    """Processor time of all children so far; unlike elapsed time it depends little on other load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.spec("CLI-01")
def test_every_command_has_example_and_long_options() -> None:
    found = {parser.prog: parser for parser in parsers(build_parser())}
    assert {prog.split()[1] for prog in found} == {command.name.split()[0] for command in COMMANDS}
    for prog, parser in found.items():
        assert f"example: {prog}" in parser.format_help(), prog
        assert parser.description, prog
        for action in parser._actions:
            if action.option_strings:
                assert any(re.fullmatch(r"--[a-z][a-z-]*", name) for name in action.option_strings), (prog, action)
                assert action.help, (prog, action)


def seconds_of(folder: Path, *args: str) -> tuple[float, str]:
    """Minimum processor time of three runs after a first one that writes byte code to the folder, and the last output."""
    env = os.environ | {"PYTHONPYCACHEPREFIX": str(folder)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has compiled byte code
    took = []
    for _ in range(4):
        began = child_seconds()
        done = subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, timeout=60, check=True)
        took.append(child_seconds() - began)
    return min(took[1:]), done.stdout


@pytest.mark.spec("CLI-01")
def test_help_takes_less_than_ten_interpreter_starts(tmp_path: Path) -> None:
    python, _ = seconds_of(tmp_path, "-c", "pass")
    seconds, printed = seconds_of(tmp_path, "-m", "saturnmq.cli", "--help")
    assert all(command.name in printed for command in COMMANDS if " " not in command.name)
    assert seconds < HELP_STARTS_MAX * python


@pytest.mark.spec("PKG-04")
def test_import_takes_less_than_eight_interpreter_starts(tmp_path: Path) -> None:
    python, _ = seconds_of(tmp_path, "-c", "pass")
    seconds, _ = seconds_of(tmp_path, "-c", "import saturnmq")
    assert seconds - python < IMPORT_STARTS_MAX * python


@pytest.mark.spec("CLI-01")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_server_store_or_spark(option: str) -> None:
    code = (
        "import sys\nfrom saturnmq.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    packages = {
        "saturnmq." + name for name in ("broker", "client", "namesrv", "net", "raft", "store", "spark.progress")
    }
    assert "saturnmq.cli.commands" in modules
    assert modules & (packages | {"asyncio", "ssl", "uvloop", "rich", "pyspark", "pyarrow"}) == set()


@pytest.mark.spec("CLI-01")
def test_every_command_runs_an_existing_function() -> None:
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    for command in COMMANDS:
        assert command.example.startswith(f"saturnmq {command.name} "), command.name
        if command.function:
            assert callable(command.load()), command.name
        else:
            assert any(name.startswith(command.name + " ") for name in names), command.name


@pytest.mark.spec("CLI-02")
@pytest.mark.parametrize("flag", ["json", "quiet", "debug"])
@pytest.mark.parametrize("command", ["namesrv", "broker", "store verify", "admin ledgerCompare x", "spark compact t"])
def test_common_options_work_before_and_after_each_word(command: str, flag: str) -> None:
    words = command.split()
    for at in range(len(words) + 1):
        args, _ = build_parser().parse_known_args([*words[:at], f"--{flag}", *words[at:]])
        assert getattr(args, flag) is True, at
        assert all(getattr(args, other) is False for other in {"json", "quiet", "debug"} - {flag})


@pytest.mark.spec("CLI-01")
@pytest.mark.spark
def test_commands_page_is_current() -> None:
    page = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == command_page.page(), "python tools/command_page.py writes docs/commands.md"


@pytest.mark.spec("CLI-01")
@pytest.mark.parametrize("module", ["send", "tail", "doctor", "top", "completion"])
def test_everyday_commands_start_without_what_they_do_not_need(module: str) -> None:
    code = f"import sys, saturnmq.cli.run, saturnmq.cli.everyday.{module}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    slow = {"saturnmq.broker", "saturnmq.namesrv", "saturnmq.store", "rich", "uvloop", "pyspark", "urllib.request"}
    assert set(done.stdout.split()) & slow == set()
