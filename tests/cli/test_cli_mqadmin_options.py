"""Options of admin commands parse as Commons CLI parses those of mqadmin."""

from __future__ import annotations

import pytest

from saturnmq.cli.mqadmin.options import HELP, NAME_SERVERS, WrongOptions, help_text, opt, parse

OPTIONS = (
    HELP,
    NAME_SERVERS,
    opt("t", "topic", "topic name", required=True),
    opt("b", "brokerAddr", "create topic to which broker", group="target"),
    opt("c", "clusterName", "create topic to which cluster", group="target"),
    opt("o", "order", "set topic's order(true|false)"),
    opt("a", "activeTopic", "print active topic only", value=False),
)


@pytest.mark.parametrize(
    "words",
    [
        ["-t", "orders", "-c", "C"],
        ["-torders", "-cC"],
        ["--topic", "orders", "--clusterName", "C"],
        ["--topic=orders", "--clusterName=C"],
        ["-topic", "orders", "-clusterName", "C"],
    ],
)
def test_forms_of_an_option(words: list[str]) -> None:
    assert dict(parse(words, OPTIONS)) == {"t": "orders", "c": "C"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-t", "x"], "Missing required option: -b | -c"),
        (["-c", "C"], "Missing required option: t"),
        ([], "Missing required options: t, -b | -c"),
        (["-t", "x", "-c", "C", "-b", "a"], "already selected"),
        (["-t"], "Missing argument for option: t"),
        (["--topics", "x"], "did you mean --topic?"),
        (["x"], "Unrecognized option: 'x'"),
    ],
)
def test_wrong_options_are_named(words: list[str], message: str) -> None:
    with pytest.raises(WrongOptions, match=message.replace("|", r"\|").replace("?", r"\?")):
        parse(words, OPTIONS)


def test_values() -> None:
    options = parse(["-t", " x ", "-c", "C", "-o", "TRUE", "-a"], OPTIONS)
    assert options.text("t") == "x" and options.boolean("o", False) and options["a"] == "true"
    assert options.integer("r", 8) == 8
    with pytest.raises(WrongOptions, match="whole number"):
        options.integer("t", 8)


def test_help_needs_no_required_option() -> None:
    assert dict(parse(["-h"], OPTIONS)) == {"h": "true"}


def test_help_text_has_all_options_in_alphabetical_order() -> None:
    lines = help_text("updateTopic", OPTIONS).splitlines()
    assert lines[0] == "usage: mqadmin updateTopic [-a] -b <arg> | -c <arg>  [-h] [-n <arg>] [-o <arg>] -t <arg>"
    assert [line.split(",")[0] for line in lines[1:]] == [" -a", " -b", " -c", " -h", " -n", " -o", " -t"]
    assert all(len(line) <= 110 for line in lines)
