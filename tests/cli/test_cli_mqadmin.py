"""`saturnmq admin` from its command line: names, errors, forms of output."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

Cli = Callable[..., "CompletedProcess[str]"]


def test_without_arguments_all_commands_are_listed(cli: Cli) -> None:
    done = cli("admin")
    assert done.returncode == 0
    assert "   topicList            Fetch all topic list from name server" in done.stdout.splitlines()


def test_unknown_command_is_named(cli: Cli) -> None:
    done = cli("admin", "topicLst")
    assert (done.returncode, done.stdout) == (1, "The sub command topicLst not exist.\n")
    assert "did you mean topicList?" in done.stderr


def test_unreachable_name_server_exits_with_4(cli: Cli) -> None:
    done = cli("--json", "admin", "TOPICLIST", "-n", "127.0.0.1:1")
    assert done.returncode == 4
    assert "127.0.0.1:1" in json.loads(done.stderr)["message"]


@pytest.mark.parametrize("words", [("help", "topicList"), ("topicList", "-h")])
def test_help_of_a_command(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli("admin", *words)
    assert done.returncode == 0 and done.stdout.startswith("usage: mqadmin topicList [-c] [-h] [-n <arg>]\n")
