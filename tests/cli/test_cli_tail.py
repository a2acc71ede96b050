"""`saturnmq tail` and `saturnmq consume` against an embedded broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

Cluster = Any
SECONDS_MAX = 30


class Running:
    """A command that runs, as `python -m saturnmq.cli`."""

    def __init__(self, cluster: Cluster, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "saturnmq.cli", *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | cluster.environment,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def interrupt(self) -> tuple[int, str, str]:
        """Send Ctrl-C; exit code, and what was still printed on stdout and stderr."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, out, err


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Any]:
    started: list[Running] = []

    def run(*args: str) -> Running:
        started.append(Running(cluster, *args))
        return started[-1]

    yield run
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.realtime
@pytest.mark.spec("CLI-04", "CLI-07")
def test_tail_follows_new_messages_and_ends_by_ctrl_c_with_the_count(cluster: Cluster, start: Any) -> None:
    cluster.run("send", "followed", "old")
    running = start("tail", "followed", "--from", "first")
    assert running.line() == "old"
    cluster.run("send", "followed", "new")
    assert running.line() == "new"
    code, out, err = running.interrupt()
    assert (code, out, err) == (130, "", "saturnmq: 2 messages\n")


@pytest.mark.realtime
@pytest.mark.spec("CLI-02", "CLI-04")
def test_tail_json_ends_with_a_document_of_the_count(cluster: Cluster, start: Any) -> None:
    cluster.run("send", "counted", "x")
    running = start("tail", "counted", "--from", "first", "--json")
    assert json.loads(running.line())["rows"][0]["body"] == "x"
    code, out, err = running.interrupt()
    assert (code, json.loads(out), err) == (130, {"schema": 1, "command": "tail", "rows": [], "messages": 1}, "")


@pytest.mark.realtime
@pytest.mark.spec("CLI-04")
def test_tail_into_head_ends_quietly(cluster: Cluster, start: Any) -> None:
    cluster.run("send", "headed", "x", "--count", "5")
    running = start("tail", "headed", "--from", "first", "--count", "1000")
    assert running.line() == "x"
    running.process.stdout.close()  # what `| head -1` does
    running.process.stdout = None
    cluster.run("send", "headed", "x", "--count", "500")
    _, err = running.process.communicate(timeout=SECONDS_MAX)
    assert (running.process.returncode, err) == (0, "")


def test_tail_prints_the_backlog_of_all_queues_by_store_time(cluster: Cluster) -> None:
    for number in range(8):
        cluster.run("send", "ordered", str(number))
    rows = cluster.rows("tail", "ordered", "--from", "first", "--no-follow")
    assert [row["body"] for row in rows] == [str(number) for number in range(8)]
    assert len({row["queue"] for row in rows}) > 1


@pytest.mark.spec("CLI-11")
def test_tail_from_offset_duration_time_and_last(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.run("send", "positions", "x", "--count", "4")
    now = datetime.now(UTC).isoformat()
    rows = cluster.rows("tail", "positions", "--from", "first", "--no-follow")
    later = [row for row in rows if row["offset"] >= 2]
    assert len(rows) == 12

    def tailed(start: str) -> int:
        return len(cluster.rows("tail", "positions", "--from", start, "--no-follow"))

    assert tailed("10m") == tailed("0") == 12
    assert tailed("2") == len(later)
    assert tailed("last") == tailed("now") == tailed(now) == tailed("999999") == 0


@pytest.mark.spec("CLI-03", "CLI-11")
def test_tail_reports_a_start_that_is_none(cluster: Cluster) -> None:
    done = cluster.run("tail", "positions", "--from", "yesterday", code=2)
    assert (
        "--from 'yesterday' must be first, last, an offset such as 4711, a duration before now such as 10m"
        in done.stderr
    )


def test_tail_filters_by_tag_sql_and_pattern(cluster: Cluster) -> None:
    for body, tag, total in (("first order", "paid", "1"), ("second order", "open", "9"), ("third", "paid", "9")):
        cluster.run("send", "filtered", body, "--tag", tag, "--property", f"total={total}")
    tail = ("tail", "filtered", "--from", "first", "--no-follow")
    assert cluster.lines(*tail, "--tag", "paid || none") == ["first order", "third"]
    assert cluster.lines(*tail, "--sql", "total > 5") == ["second order", "third"]
    assert cluster.lines(*tail, "--grep", "^f.*order") == ["first order"]
    assert cluster.lines(*tail, "--tag", "paid", "--grep", "order", "--count", "1") == ["first order"]
    done = cluster.run(*tail, "--grep", "(", code=2)
    assert "--grep '(' is no regular expression" in done.stderr


@pytest.mark.spec("SEC-20")
def test_tail_prints_hostile_bodies_as_one_harmless_line(cluster: Cluster) -> None:
    cluster.run("send", "hostile", "--whole", stdin=b"a\x1b[2Jb\nc\td\xff" + "\u202e".encode())
    tail = ("tail", "hostile", "--from", "first", "--no-follow")
    assert cluster.lines(*tail) == ["a\\x1b[2Jb\\x0ac\td\\xff\\u202e"]
    assert cluster.lines(*tail, "--format", "hex") == ["611b5b324a620a630964ffe280ae"]


@pytest.mark.spec("CLI-04")
def test_tail_of_a_missing_topic_names_the_creating_command(cluster: Cluster) -> None:
    done = cluster.run("tail", "missing", code=1)
    assert "missing" in done.stderr and "updateTopic" in done.stderr and "0 messages" not in done.stderr


def test_peek_shows_what_a_group_has_not_consumed_and_changes_nothing(cluster: Cluster) -> None:
    cluster.run("send", "shared", stdin=b"1\n2\n3\n4")
    peek = ("consume", "shared", "--group", "billing", "--peek")
    taken = cluster.lines("consume", "shared", "--group", "billing", "--ack", "--count", "3")
    left = cluster.lines(*peek)
    assert sorted(taken + left) == ["1", "2", "3", "4"] and len(left) == 1
    assert cluster.lines(*peek) == left


def test_peek_of_an_unknown_group_is_an_error_that_names_it(cluster: Cluster) -> None:
    cluster.run("send", "unpeeked", "x")
    done = cluster.run("consume", "unpeeked", "--group", "biling", "--peek", code=1)
    assert done.stdout == "" and "no consumer of group biling has ever connected" in done.stderr
    assert "`saturnmq admin consumerProgress` lists the groups" in done.stderr
    assert "biling" not in cluster.run("admin", "consumerProgress").stdout


def test_consume_ack_ends_when_no_message_arrives(cluster: Cluster) -> None:
    cluster.run("send", "idle", "x")
    consume = ("consume", "idle", "--group", "idlers", "--ack")
    assert cluster.lines(*consume, "--count", "1") == ["x"]
    assert cluster.lines(*consume, "--idle", "100ms") == []


def test_retry_and_dead_letter_topics_can_be_tailed(cluster: Cluster) -> None:
    cluster.run("send", "retried-topic", "one")
    cluster.run("consume", "retried-topic", "--group", "retried", "--ack", "--count", "1")
    assert cluster.lines("tail", "%RETRY%retried", "--from", "first", "--no-follow") == []


@pytest.mark.spec("CLI-03")
def test_consume_demands_ack_or_peek(cluster: Cluster) -> None:
    done = cluster.run("consume", "shared", "--group", "billing", code=2)
    assert "give --ack, which joins the group" in done.stderr and "--peek" in done.stderr


@pytest.mark.realtime
def test_tail_goes_on_after_a_restart_of_the_broker(cluster: Cluster, start: Any) -> None:
    cluster.run("send", "survivor", "before")
    running = start("tail", "survivor", "--from", "first")
    assert running.line() == "before"
    server, thread = cluster.server.inner, cluster.server.thread
    thread.call(server.kill_broker(), SECONDS_MAX)
    assert running.process.stderr.readline().startswith("saturnmq: warning: ")
    thread.call(server.start_broker(), SECONDS_MAX)
    cluster.run("send", "survivor", "after")
    assert running.line() == "after"
    code, _, err = running.interrupt()
    assert code == 130 and err.endswith("saturnmq: 2 messages\n")
