"""README's table of what works names every command, tool, pipeline and page of the console, and none that does not exist."""

from __future__ import annotations

import re

import pytest
from command_lines import REPOSITORY

from saturnmq.cli.commands import COMMANDS
from saturnmq.cli.mqadmin.table import COMMANDS as ADMIN_COMMANDS
from saturnmq.spark.pipelines import NAMES

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
TABLE = [line for line in README.splitlines() if line.startswith("|")]
CHANGE = re.compile(r"\+[a-z0-9-]+\.(breaking|security|feature|bugfix|doc)\.md")


def row(start: str) -> str:
    rows = [line for line in TABLE if start in line.split("|")[1]]
    assert len(rows) == 1, f"{len(rows)} rows of README with {start!r}"
    return rows[0].split("|")[1]


def names_in(text: str) -> set[str]:
    """The last word of each part in backticks, without options."""
    quoted = [part.split() for part in re.findall(r"`([^`]*)`", text)]
    return {words[-1] for words in quoted if not words[-1].startswith("-")}


def test_every_command_of_the_command_line_is_named() -> None:
    named = {word for part in re.findall(r"`(?:saturnmq )?([^`]*)`", README) for word in part.split()}
    assert {command.name.split()[0] for command in COMMANDS} - named == set()


@pytest.mark.parametrize("group", ["store", "spark"])
def test_tools_of_a_group_are_named_and_exist(group: str) -> None:
    text = row("Store tools" if group == "store" else "Spark: batch")
    tools = {command.name.split()[1] for command in COMMANDS if command.name.startswith(f"{group} ")}
    assert names_in(text) - {"local[n]", "local-cluster"} == tools


def test_pipelines_are_the_ones_that_exist() -> None:
    assert set(NAMES) <= names_in(row("Spark: batch"))


def test_commands_of_mqadmin_are_counted() -> None:
    count = sum(not command.is_extension for command in ADMIN_COMMANDS)
    text = row("`saturnmq admin`")
    assert f"the {count} commands of `mqadmin`" in text
    ledger = {command.name.split()[1] for command in COMMANDS if command.name.startswith("admin ledger")}
    assert {name for name in names_in(text) if name.startswith("ledger")} == ledger


def test_pages_of_the_console_are_named() -> None:
    pytest.importorskip("starlette")
    from saturnmq.console.context import NAVIGATION

    pages = {path.strip("/").replace("-", " ") or "overview" for _, links in NAVIGATION for path, _, _ in links}
    named = re.split(r"[:,;]\s*", re.sub(r"\([^)]*\)", "", row("`saturnmq console`")).strip())
    assert pages <= {name.strip() for name in named}


def test_entries_of_the_next_release_have_a_type() -> None:
    entries = [path.name for path in (REPOSITORY / "docs" / "changes").iterdir() if path.name != ".gitkeep"]
    assert [name for name in entries if not CHANGE.fullmatch(name)] == []
