"""What holds for every admin command: the list of Apache's 57, errors, JSON, and those that Apache does not list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import mqadmin_commands
import pytest

from saturnmq.cli.mqadmin.table import COMMANDS, find

Cli = Callable[..., "CompletedProcess[str]"]
UNLISTED = ("consumer", "getConsumerStatus", "resetOffsetByTimeOld", "DecodeMessageId")
SPECIFICATION = Path(__file__).resolve().parents[2] / "docs" / "spec" / "05-monitoring-admin-console.md"
NOWHERE = ("-n", "127.0.0.1:1")


@pytest.mark.spec("ADM-04")
def test_every_command_of_mqadmin_has_its_options() -> None:
    assert len(mqadmin_commands.COMMANDS) == 57
    for name, letters in mqadmin_commands.COMMANDS.items():
        command = find(name)
        assert command is not None, name
        wanted = {letter: letters[at + 1 : at + 2] == ":" for at, letter in enumerate(letters) if letter != ":"}
        found = {
            option.key: option.takes_value
            for option in command.options
            if not option.is_extension and option.key not in ("n", "h")
        }
        assert found == wanted, name


@pytest.mark.spec(
    "ADM-04",
    "C-01", "C-04", "C-05", "C-06", "C-07", "C-08", "C-09", "C-11", "C-12", "C-13", "C-14", "C-18", "C-19", "C-20",
    "C-21", "C-22", "C-24", "C-25", "C-26", "C-27", "C-32", "C-34", "C-35", "C-37", "C-40", "C-43", "C-44", "C-46",
    "C-47", "C-48", "C-49", "C-52", "C-54", "C-55", "C-56", "C-57",
)  # fmt: skip
def test_every_command_requires_the_options_of_its_row() -> None:
    """In the rows C-01 to C-57 a star marks what is required, and `b|c*` that one of two is."""
    rows = re.findall(r"^\| (C-\d\d) \| (\w+)[^|]* \| ((?:\\\||[^|])*) \|", SPECIFICATION.read_text(), re.M)
    assert len(rows) == 57
    for row, name, text in rows:
        stars = re.sub(r"\([^)]*\)", "", text.replace("\\|", "|"))
        options = [word for word in re.split(r",\s*(?=-)", stars) if "*" in word]
        wanted = {"b|c" if word.startswith("b|c") else word.lstrip("-")[0] for word in options}
        command = find(name)
        assert command is not None, row
        groups: dict[str, str] = {}
        for option in command.options:
            if option.exclusive:
                groups[option.exclusive] = "|".join(filter(None, (groups.get(option.exclusive), option.key)))
        assert {option.key for option in command.options if option.is_required} | set(groups.values()) == wanted, row


@pytest.mark.spec("ADM-01")
def test_help_of_a_command_is_printed_and_a_missing_option_ends_with_1(cli: Cli) -> None:
    wanted = cli("admin", "topicRoute", "-h")
    assert wanted.returncode == 0 and wanted.stdout.startswith("usage: mqadmin topicRoute "), wanted.stderr
    missing = cli("admin", "topicRoute")
    assert (missing.returncode, missing.stdout) == (1, wanted.stdout)
    assert "The sub command nothing not exist." in cli("admin", "nothing").stdout


@pytest.mark.spec("ADM-11", "ADM-27")
@pytest.mark.parametrize("name", UNLISTED)
def test_commands_that_apache_does_not_register_are_there(name: str) -> None:
    assert find(name) is not None
    assert name not in mqadmin_commands.COMMANDS


@pytest.mark.spec("ADM-11", "CLI-02")
def test_decoded_id_as_text_and_json(cli: Cli) -> None:
    words = ("admin", "DecodeMessageId", "-i", "7F0000013D8BA0C023467588476201DC")
    assert cli(*words).stdout.startswith("ip=127.0.0.1date=20")
    document = json.loads(cli(*words, "--json").stdout)
    assert document["rows"][0]["ip"] == "127.0.0.1" and document["command"] == "admin DecodeMessageId"
    done = cli("admin", "DecodeMessageId", "-i", "xyz")
    assert done.returncode == 1 and "'xyz' must be a unique message id" in done.stderr


@pytest.mark.spec("ADM-05")
@pytest.mark.parametrize(
    "words",
    [
        ("topicList",),
        ("updateTopic", "-t", "t", "-c", "C"),
        ("clusterList",),
        ("getConsumerConfig", "-g", "g"),
        ("queryMsgByKey", "-t", "t", "-k", "k"),
        ("exportConfigs", "-c", "C"),
    ],
)
def test_failed_command_prints_one_error_line_and_exits_with_its_code(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli("admin", *words, *NOWHERE)
    assert done.returncode == 4 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert len([line for line in lines if "error: " in line]) == 1 and "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    failed = cli("admin", *words, *NOWHERE, "--json")
    assert failed.returncode == 4 and set(json.loads(failed.stderr)) == {"code", "message", "hint"}


def test_every_command_has_an_example_and_a_function() -> None:
    for command in COMMANDS:
        assert command.example.startswith(f"saturnmq admin {command.name}"), command.name
        assert callable(command.load()), command.name
