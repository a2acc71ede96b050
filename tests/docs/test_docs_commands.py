"""Every command line that an error, a help text or a document names exists, with its options."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import command_lines
import mqadmin_commands
import pytest
from command_lines import REPOSITORY, Named

from saturnmq.cli.commands import COMMANDS, build_parser
from saturnmq.cli.mqadmin.options import WrongOptions, take_extensions
from saturnmq.cli.mqadmin.options import parse as parse_options
from saturnmq.cli.mqadmin.table import COMMANDS as ADMIN_COMMANDS
from saturnmq.cli.mqadmin.table import find
from saturnmq.cli.run import admin_words
from saturnmq.cli.table import Option
from saturnmq.spark.pipelines import NAMES

MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
PLACEHOLDERS = {"COMMAND": "namesrv", "PIPELINE": "export", "NAME": "export"}
# Words after the name of a program that continue a sentence or the name of a task.
PROSE = {
    "commands",
    "does",
    "without",
    "needs",
    "runs",
    "instead",
    "shows",
    "stop",
    "route",
    "listener",
    "says",
    "divides",
    "with",
}


def documents() -> list[Path]:
    pages = [path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "spec"]
    return [*(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(pages)]


def modules() -> list[Path]:
    return sorted((REPOSITORY / "src" / "saturnmq").rglob("*.py"))


def optional(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser without required options, for command lines that a sentence shortens."""
    for action in parser._actions:
        action.required = False
        if not action.option_strings and action.nargs is None:
            action.nargs = "?"
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                optional(inner)
    return parser


def pipeline_parser(name: str) -> argparse.ArgumentParser:
    """The parser to which a command of the table delegates."""
    from saturnmq.spark.pipelines import TOOLS, pipeline, running

    if name in TOOLS:
        parser: argparse.ArgumentParser = importlib.import_module(TOOLS[name]).parser()
        return parser
    return running.parser_of(pipeline(name))


def filled(words: tuple[str, ...]) -> list[str]:
    """The words with a value for each placeholder; what is in upper case is one."""
    at_command = [PLACEHOLDERS.get(word, word) if number < 2 else word for number, word in enumerate(words)]
    if at_command[:2] == ["spark", "1"]:
        at_command[1] = "export"
    return [re.sub(r"^[A-Z][A-Z_]*$", "1", word) for word in at_command]


def parse(parser: argparse.ArgumentParser, words: list[str], *, whole: bool) -> tuple[argparse.Namespace, list[str]]:
    """Parse. Raises ValueError with the message of the parser."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return (parser if whole else optional(parser)).parse_known_args(words)
    except SystemExit as ended:
        if ended.code:
            raise ValueError(said.getvalue()) from None
    return argparse.Namespace(), []


def optional_option(option: Option) -> Option:
    """The option as one that need not be given."""
    return option._replace(keywords=option.keywords | {"required": False}, exclusive="")


def admin_problem(words: list[str], *, whole: bool) -> str | None:
    """What is wrong with the words after `saturnmq admin`, None if nothing is. whole: required options must be there."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "-h"] if words[1:2] not in ([], ["1"]) else []
    if not words:
        return None
    command = find(words[0])
    if command is None:
        return f"no command {words[0]}"
    options = command.options if whole else [optional_option(option) for option in command.options]
    try:
        parse_options(take_extensions(words[1:])[1], options)
    except WrongOptions as error:
        return error.message
    return None


def problem(named: Named) -> str | None:
    """What is wrong with a command line, None if nothing is."""
    words = filled(named.words)
    if named.program == "mqadmin":
        return mqadmin_commands.problem(words)
    if named.program == "make":
        unknown = [word for word in words if "=" not in word and word not in TARGETS]
        unknown += [word for word in words if "=" in word and f"$({word.split('=')[0]}" not in MAKEFILE]
        return f"the Makefile has no {unknown}" if unknown else None
    admin = admin_words(words)
    if admin is not None:
        return admin_problem(admin, whole=named.whole)
    try:
        args, rest = parse(build_parser(), words, whole=named.whole)
        command = getattr(args, "command", None)
        if command is not None and command.delegates:
            options = [word for word in rest if not word.startswith("--check")]
            _, rest = parse(pipeline_parser(args.action), options, whole=named.whole)
    except ValueError as error:
        return str(error)
    return f"unknown options {rest}" if rest else None


def wrong(found: Iterator[Named]) -> list[str]:
    return [
        f"{named}\n    {text}"
        for named in found
        if not (named.words[:1] and named.words[0] in PROSE) and (text := problem(named))
    ]


@pytest.mark.spark
@pytest.mark.spec("UX-08", "CLI-01")
def test_commands_named_in_sources_exist() -> None:
    found = [named for path in modules() for named in command_lines.in_source(path)]
    assert len(found) > 50
    assert wrong(iter(found)) == []


@pytest.mark.spark
@pytest.mark.spec("CLI-01")
@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_commands_named_in_documents_exist(path: Path) -> None:
    assert wrong(command_lines.in_document(path)) == []


@pytest.mark.spark
def test_examples_of_the_command_table_parse_completely() -> None:
    for command in (*COMMANDS, *ADMIN_COMMANDS):
        assert wrong(command_lines.in_code(command.example, command.name)) == []


def test_documents_name_commands_of_each_kind() -> None:
    found = [named for path in documents() for named in command_lines.in_document(path)]
    for program, least in (("saturnmq", 60), ("mqadmin", 2), ("make", 15)):
        assert len([named for named in found if named.program == program]) >= least, program
    assert any(named.whole and named.words[:2] == ("spark", "replay") for named in found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run `saturnmq docter` first", "unknown command 'docter'"),
        ("Create it: saturnmq admin createTopic -t x", "no command createTopic"),
        ("`saturnmq store verify --forced`", "unknown options"),
        ("use saturnmq store repair --at 1 --yess.", "unknown options"),
        ("`saturnmq spark export --topics a`", "unknown options"),
        ("`mqadmin updateTopics -t x`", "no command updateTopics"),
        ("mqadmin updateTopic -n 'a:1;b:2' -q x", "no option -q"),
        ("`make tests`", "no ['tests']"),
        ("`make sim SPEED=1`", "no ['SPEED=1']"),
    ],
)
@pytest.mark.spark
def test_command_that_does_not_exist_is_found(text: str, reason: str) -> None:
    (found,) = command_lines.in_prose(text, "text")
    assert reason in (problem(found) or "")


def test_mqadmin_table_has_the_57_commands_of_the_spec() -> None:
    page = (REPOSITORY / "docs" / "spec" / "05-monitoring-admin-console.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| C-\d\d \| (\w+)[^|]*\| ([^|]*(?:\\\|[^|]*)*)\|", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(mqadmin_commands.COMMANDS) and len(rows) == 57
    for name, options in rows:
        letters = set(re.findall(r"(?<![\w-])-([a-z])\b", options))
        assert letters - {"n"} <= set(mqadmin_commands.COMMANDS[name]), (name, letters)


def test_phony_targets_have_rules() -> None:
    declared = set(re.search(r"^\.PHONY:(.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    assert declared == TARGETS
    assert set(NAMES) <= {command.name.split()[-1] for command in COMMANDS}
