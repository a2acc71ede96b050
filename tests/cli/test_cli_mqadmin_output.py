"""Forms of output of admin commands: text, tables on a terminal, JSON, dry runs; and the forms that Java's library gives texts."""

from __future__ import annotations

import io
import json
import sys

import pytest

from saturnmq.cli.mqadmin import java_forms
from saturnmq.cli.mqadmin.output import AdminOutput, Shown, Time
from saturnmq.protocol.bodies import MessageQueue

COLUMNS = (("#Name", "name"), ("#Count", "count"))
ROWS = [("a" * 30, 1), ("b\x1b[2J", Shown(" 2,0 ", 2))]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    return found


def test_a_table_in_a_pipe_has_the_layout_of_mqadmin(capsys: pytest.CaptureFixture[str]) -> None:
    AdminOutput("x").table("%-6s %4s", COLUMNS, ROWS, head="%-3s %s")
    assert capsys.readouterr().out == f"#Name #Count\n{'a' * 30}    1\nb\\x1b[2J  2,0 \n"


@pytest.mark.parametrize("width", ["20", "100"])
def test_a_table_on_a_terminal_cuts_no_cell(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", width)
    AdminOutput("x").table("%-6s %4s", COLUMNS, ROWS)
    lines = [line.split() for line in terminal.getvalue().splitlines()]
    assert lines == [["Name", "Count"], ["a" * 30, "1"], ["b\\x1b[2J", "2,0"]]


@pytest.mark.spec("CLI-02")
def test_json_has_values_and_times(capsys: pytest.CaptureFixture[str]) -> None:
    out = AdminOutput("x", as_json=True)
    out.table("%s", COLUMNS, ROWS)
    out.line("not printed")
    out.line("row", at=Time(1), never=Time(0), wrong=Time(10**18))
    out.summary("total", total=3)
    out.finish()
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][1] == {"name": "b\x1b[2J", "count": 2} and document["total"] == 3
    assert document["rows"][2] == {
        "at": "1970-01-01T00:00:00.001+00:00", "at_ms": 1, "never": None, "never_ms": 0, "wrong": None, "wrong_ms": 10**18,
    }  # fmt: skip


def test_a_line_without_an_end_is_ended_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = AdminOutput("x")
    out.line("success", end="")
    out.finish()
    assert capsys.readouterr().out == "success"
    terminal = on_terminal(monkeypatch)
    out = AdminOutput("x")
    out.line("success", end="")
    out.finish()
    assert terminal.getvalue() == "success\n"


def test_a_dry_run_reports_no_success_and_problems_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    out = AdminOutput("x", dry_run=True)
    out.change_line("done")
    out.problem("bad\nline")
    printed = capsys.readouterr()
    assert (printed.out, printed.err, out.problems) == ("", "saturnmq: error: bad\\x0aline\n", 1)


@pytest.mark.parametrize(("ms", "text"), [(0, "-"), (-1, "-"), (10**18, str(10**18))])
def test_what_is_no_time_is_shown_as_it_is(ms: int, text: str) -> None:
    assert str(Time(ms, "-")) == text


# ---- forms of Java's library; expected values are those of Java 17


def test_order_of_a_hash_table() -> None:
    names = "Delta BenchmarkTest OFFSET_MOVED_EVENT TBW102 Alpha Gamma broker-a SELF_TEST_TOPIC DefaultCluster Beta"
    expected = "Gamma Delta BenchmarkTest OFFSET_MOVED_EVENT Alpha TBW102 broker-a SELF_TEST_TOPIC DefaultCluster Beta"
    assert java_forms.text_order(names.split()) == expected.split()
    assert java_forms.text_order(["ip1", "ip2", "ip3"]) == ["ip2", "ip1", "ip3"]
    queues = [MessageQueue("Alpha", "broker-a", number) for number in range(8)]
    assert [queue.queue_id for queue in java_forms.queue_order(queues)] == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [(0.125, 2, "0.13"), (1.005, 2, "1.01"), (2.5, 0, "3"), (0.0, 4, "0.0000"), (float("nan"), 2, "NaN")],
)
def test_numbers_are_rounded_half_up(value: float, places: int, text: str) -> None:
    assert java_forms.fixed(value, places) == text


def test_indented_json() -> None:
    value = {"b": {0: "x", 1: "y"}, "a": [], "c": [{"d": ("s", "t")}], "e": {}}
    assert java_forms.indented(value).split("\n") == [
        "{", '\t"a":[],', '\t"b":{0:"x",1:"y"', "\t},", '\t"c":[', "\t\t{", '\t\t\t"d":["s","t"]', "\t\t}", "\t],", '\t"e":{}', "}",
    ]  # fmt: skip
