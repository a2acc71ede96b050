"""`saturnmq admin` prints what Apache's `mqadmin` prints, for the command lines of `admin_lines_*.py` and every help text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import saturn
from admin_compare import Comparison, JavaAdmin, Line, Printed, all_lines, expected, masked, of_kind, run_ours
from prepared import SETTINGS, prepare

from saturnmq.cli.mqadmin.table import COMMANDS

LINES = all_lines()
Results = dict[str, tuple[Printed, Printed]]


@pytest.fixture(scope="module")
def mqadmin(home: Path) -> Iterator[JavaAdmin]:
    with JavaAdmin(home) as admin:
        yield admin


@pytest.fixture(scope="module")
def on_saturn(mqadmin: JavaAdmin, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """All command lines against one broker of ours."""
    with saturn.SaturnCluster(settings=SETTINGS) as cluster:
        words = {"ns": cluster.name_servers, **prepare(cluster, home)}
        comparison = Comparison(mqadmin, words, tmp_path_factory.mktemp("saturn"))
        yield comparison.run_all(of_kind(LINES, "saturn"))


def check(results: Results, line: Line) -> None:
    theirs, ours = results[line.id]
    assert masked(ours.out, line) == expected(theirs, line), (theirs.err[-2000:], ours.err[-2000:])
    assert ours.code == line.code, ours.err


@pytest.mark.parametrize("line", of_kind(LINES, "saturn"), ids=lambda line: line.id)
def test_command_prints_the_same_on_our_broker(on_saturn: Results, line: Line) -> None:
    check(on_saturn, line)


def test_help_of_every_command_is_equal(mqadmin: JavaAdmin) -> None:
    names = [command.name for command in COMMANDS if not command.ours]
    for name, theirs in zip(names, mqadmin.run_all([("help", name) for name in names]), strict=True):
        assert run_ours(["help", name]).out == theirs.out, name


def test_list_of_commands_is_that_of_mqadmin_and_ours(mqadmin: JavaAdmin) -> None:
    theirs = mqadmin.run().out.splitlines()
    ours = run_ours([]).out.splitlines()
    known = [line for line in theirs[1:-2] if line.split()[0] in {command.name for command in COMMANDS}]
    assert ours[: 1 + len(known)] == [theirs[0], *known]
    assert ours[-2:] == theirs[-2:]


def test_missing_option_prints_the_same_help(mqadmin: JavaAdmin) -> None:
    for words in (["topicRoute"], ["updateTopic", "-t", "x"], ["topicList", "-x"], ["nothing"], ["help", "nothing"]):
        theirs, ours = mqadmin.run(*words), run_ours(words)
        assert ours.out == theirs.out, words
        assert ours.code == 1
