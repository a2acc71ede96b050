"""`saturnmq send` against an embedded broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Cluster = Any


@pytest.mark.spec("CLI-02")
def test_send_prints_status_position_and_id(cluster: Cluster) -> None:
    (line,) = cluster.lines(
        "send", "single", "hello", "--tag", "paid", "--key", "k1", "--key", "k2", "--property", "a=b=c"
    )
    status, where, message_id = line.split()
    assert status == "SEND_OK" and where.startswith("broker-a/") and where.endswith("@0") and len(message_id) == 32
    (row,) = cluster.rows("tail", "single", "--from", "first", "--no-follow")
    assert (row["body"], row["tag"], row["keys"], row["properties"]["a"]) == ("hello", "paid", ["k1", "k2"], "b=c")
    assert row["message_id"] == message_id and row["topic"] == "single"


@pytest.mark.spec("CLI-02")
def test_send_json_prints_one_document_per_message_and_a_count(cluster: Cluster) -> None:
    documents = [json.loads(line) for line in cluster.lines("send", "documents", "x", "--count", "3", "--json")]
    assert [len(each["rows"]) for each in documents] == [1, 1, 1, 0]
    assert all(each["schema"] == 1 and each["command"] == "send" for each in documents)
    assert documents[-1]["messages"] == 3
    (row,) = documents[0]["rows"]
    assert {"status", "broker", "queue", "offset", "message_id"} <= row.keys()
    assert (row["durable"], row["confirmation"]) == (False, "page_cache"), "with ASYNC_FLUSH"


def test_send_reads_one_message_per_line_and_skips_empty_lines(cluster: Cluster) -> None:
    done = cluster.run("send", "lines", "-", stdin=b"one\r\n\ntwo\nlast")
    assert done.stdout.startswith("sent 3 messages to lines in ")
    assert "1 empty line skipped" in done.stderr
    bodies = cluster.lines("tail", "lines", "--from", "first", "--no-follow")
    assert sorted(bodies) == ["last", "one", "two"]


def test_send_of_many_lines_keeps_all(cluster: Cluster) -> None:
    given = [f"line {number}" for number in range(1000)]
    cluster.run("send", "thousand", stdin="\n".join(given).encode())
    assert sorted(cluster.lines("tail", "thousand", "--from", "first", "--no-follow")) == sorted(given)


def test_tail_json_piped_into_send_keeps_everything_but_ids(cluster: Cluster) -> None:
    cluster.run("send", "origin", "one", "--tag", "paid", "--key", "k", "--property", "region=EU")
    cluster.run("send", "origin", "--whole", stdin=b"\x00binary\xff\nline")
    printed = cluster.run("tail", "origin", "--from", "first", "--format", "json", "--no-follow").stdout
    cluster.run("send", "copy", "--format", "json", stdin=printed.encode())
    (first, second) = sorted(
        cluster.rows("tail", "copy", "--from", "first", "--no-follow"), key=lambda row: "body" in row
    )
    assert first["body_base64"] == "AGJpbmFyef8KbGluZQ=="
    assert (second["body"], second["tag"], second["keys"], second["properties"]["region"]) == (
        "one",
        "paid",
        ["k"],
        "EU",
    )
    assert json.loads(printed.splitlines()[0])["rows"][0]["message_id"] not in {
        first["message_id"],
        second["message_id"],
    }


def test_send_takes_hex_and_plain_json_objects(cluster: Cluster) -> None:
    cluster.run("send", "forms", "00ff", "--format", "hex")
    cluster.run("send", "forms", '{"body": "x", "keys": "one", "properties": {"p": "1"}}', "--format", "json")
    rows = cluster.rows("tail", "forms", "--from", "first", "--no-follow")
    assert {row.get("body_base64") for row in rows} == {"AP8=", None}
    assert [row["keys"] for row in rows if row.get("body") == "x"] == [["one"]]


def test_send_with_a_delay_is_not_delivered_at_once(cluster: Cluster) -> None:
    cluster.run("send", "later", "now")
    cluster.run("send", "later", "in two hours", "--delay", "2h")
    assert cluster.lines("tail", "later", "--from", "first", "--no-follow") == ["now"]


@pytest.mark.spec("CLI-03", "CLI-04")
@pytest.mark.parametrize(
    ("args", "stdin", "text"),
    [
        (["--format", "json"], b'{"body": "ok"}\n[1]', "line 2 of standard input: not a JSON object but list"),
        (
            ["--format", "json"],
            b"{}",
            "line 1 of standard input: a row has neither a text body nor a valid body_base64",
        ),
        (["--format", "hex"], b"xyz", "line 1 of standard input: "),
        (["--whole"], b"x" * 4_194_305, "standard input has more than 4194304 bytes"),
        ([], b"x" * 4_194_305, "line 1 of standard input has more than 4194304 bytes"),
        (["--property", "none"], b"x", "--property 'none' must be NAME=VALUE"),
    ],
)
def test_send_reports_bad_input_with_its_line(cluster: Cluster, args: list[str], stdin: bytes, text: str) -> None:
    done = cluster.run("send", "bad-input", *args, stdin=stdin, code=2)
    assert f"saturnmq: error: {text}" in done.stderr and "saturnmq: next: " in done.stderr


@pytest.mark.spec("CLI-11")
def test_send_reports_a_delay_that_is_no_duration(cluster: Cluster) -> None:
    done = cluster.run("send", "bad-input", "x", "--delay", "soon", code=2)
    assert "--delay 'soon' must be a duration such as 90000, 500ms, 90s or 2h" in done.stderr


@pytest.mark.spec("CLI-04", "UX-06")
def test_send_without_a_name_server_ends_with_four(cli: Callable[..., Any]) -> None:
    done = cli("send", "orders", "x", "-n", "127.0.0.1:1", env={"SATURNMQ_URL": ""})
    assert done.returncode == 4
    assert "cannot reach any NameServer (tried 127.0.0.1:1: connection refused)" in done.stderr
    assert "saturnmq standalone --data ./data" in done.stderr
