"""Writes docs/commands.md from the command table and the parsers of the Spark pipelines: `python tools/command_page.py`.

Requirements: CLI-01.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from saturnmq.cli.commands import COMMANDS, COMMON, VERSION
from saturnmq.cli.mqadmin.table import COMMANDS as ADMIN_COMMANDS
from saturnmq.cli.output import EXIT_CODES
from saturnmq.cli.table import CliCommand, Option, add_options, sentence
from saturnmq.spark.pipelines import NAMES, TOOLS, pipeline

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """# Commands

Generated from the command table by `python tools/command_page.py`; `saturnmq COMMAND --help` shows the same.

Results are written to stdout, everything else to stderr. An error is one line per problem and one that begins with `next:`;
with `--json` it is one object with `code`, `message` and `hint`. `--json`, `--quiet` and `--debug` are accepted before and after
the name of every command.
"""


def actions(options: Sequence[Option]) -> list[argparse.Action]:
    """The options as argparse knows them."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser, options)
    return parser._actions


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", r"\|")


def table(rows: Sequence[argparse.Action]) -> Iterator[str]:
    """A table of options."""
    yield from ("| option | meaning |", "|---|---|")
    for action in rows:
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
        names = ", ".join(action.option_strings) or str(value)
        takes = f" {value}" if action.option_strings and action.nargs != 0 else ""
        meaning = (action.help or "") % {"default": action.default}
        yield f"| `{cell(names + takes)}` | {cell(meaning)}{'; required' if action.required and action.option_strings else ''} |"


def pipeline_lines(name: str) -> Iterator[str]:
    """Options, inputs, outputs and guarantee of a Spark pipeline."""
    from saturnmq.spark.pipelines.running import parser_of

    found = pipeline(name)
    common = {each for option in COMMON for each in option.names} | {"--help"}
    yield from table([action for action in parser_of(found)._actions if not common & set(action.option_strings)])
    yield ""
    yield f"Guarantee: {found.guarantee}."


def lines_of(command: CliCommand) -> Iterator[str]:
    """The section of one command."""
    yield from ("", f"## saturnmq {command.name}", "", sentence(command.help), "", f"    {command.example}", "")
    name = command.name.rpartition(" ")[2]
    if name in NAMES and command.delegates:
        yield from pipeline_lines(name)
    elif command.delegates:
        parser = importlib.import_module(TOOLS[name]).parser()
        yield from table([action for action in parser._actions if "--help" not in action.option_strings])
    elif command.options:
        yield from table(actions(command.options))


def admin_lines(command: CliCommand) -> Iterator[str]:
    """The section of one command in mqadmin's form."""
    yield from ("", f"## saturnmq admin {command.name}", "", sentence(command.help), "", f"    {command.example}", "")
    if command.aliases:
        yield from (f"Alias: {', '.join(f'`{alias}`' for alias in command.aliases)}.", "")
    yield from ("| option | meaning |", "|---|---|")
    for option in command.options:
        value = f" {option.long.upper()}" if option.takes_value else ""
        yield f"| `{', '.join(option.names)}{cell(value)}` | {cell(option.help)}{'; required' if option.is_required else ''} |"


def page() -> str:
    """The page."""
    lines = ["", *table(actions((VERSION, *COMMON))), "", "| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    for command in COMMANDS:
        if command.function:
            lines += lines_of(command)
    for admin_command in ADMIN_COMMANDS:
        lines += admin_lines(admin_command)
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
