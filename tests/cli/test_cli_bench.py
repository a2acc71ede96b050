"""`saturnmq bench` against an embedded broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saturnmq.cli.runtime import implementation
from saturnmq.net import Connection, Handler, Reply
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.frames.command import Command

Cluster = Any


def measured(cluster: Cluster, *args: str) -> dict[str, Any]:
    (document,) = [json.loads(line) for line in cluster.lines("bench", *args, "--duration", "60s", "--json")]
    assert document["command"] == f"bench {args[0]}" and document["implementation"] == implementation()
    (row,) = document["rows"]
    found: dict[str, Any] = row
    assert found["failed"] == 0 and found["messages_per_s"] > 0
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"] <= found["max_ms"]
    return found


@pytest.mark.spec("CLI-02")
def test_bench_send_and_consume_count_the_same_messages(cluster: Cluster) -> None:
    sent = measured(cluster, "send", "bench-a", "--count", "500", "--size", "1KiB", "--concurrency", "8")
    assert (sent["messages"], sent["bytes"]) == (500, 512_000)
    batches = measured(cluster, "send", "bench-a", "--count", "500", "--batch", "64")
    assert (batches["messages"], batches["bytes"]) == (500, 64_000)
    read = measured(cluster, "consume", "bench-a")
    assert read["messages"] == 1002  # each run sends one message of one byte first
    assert read["bytes"] == 512_000 + 64_000 + 2
    assert measured(cluster, "consume", "bench-a", "--count", "300")["messages"] == 300


@pytest.mark.realtime
@pytest.mark.spec("CLI-02")
def test_bench_e2e_receives_what_it_sends(cluster: Cluster) -> None:
    found = measured(cluster, "e2e", "bench-b", "--count", "200", "--rate", "2000")
    assert (found["messages"], found["bytes"]) == (200, 25_600)


@pytest.mark.realtime
def test_bench_e2e_waits_for_the_route_of_a_topic_that_it_creates(cluster: Cluster) -> None:
    """A broker registers a new topic after its response, and the NameServer may get the request for the route before."""
    requests = 0

    def wrap(handler: Handler) -> Handler:
        def handle(connection: Connection, request: Command) -> Reply:
            nonlocal requests
            if request.ext.get("topic") == "bench-late" and (requests := requests + 1) <= 3:
                return request.reply(ResponseCode.TOPIC_NOT_EXIST)
            return handler(connection, request)

        return handle

    cluster.server.inner.namesrv._server.intercept(wrap)
    assert measured(cluster, "e2e", "bench-late", "--count", "20", "--rate", "2000")["messages"] == 20
    assert requests > 3


def test_bench_prints_rate_and_percentiles(cluster: Cluster) -> None:
    lines = cluster.lines("bench", "send", "bench-c", "--count", "50")
    assert lines[0].startswith(f"bench send bench-c ({implementation()}, ")
    assert lines[1].startswith("50 messages in ")
    assert lines[2].startswith("rate ") and lines[3].startswith("latency  p50 ")


@pytest.mark.spec("CLI-03", "CLI-11")
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--duration", "soon"], "--duration 'soon' must be a duration such as 90000, 500ms, 90s or 2h"),
        (["--duration", "2d"], "--duration '2d' must be in 1..86400000"),
        (["--size", "1GiB"], "--size '1GiB' must be in 1..4194304"),
        (["--concurrency", "0"], "--concurrency '0' must be a number in 1..4096"),
    ],
)
def test_bench_reports_wrong_limits(cluster: Cluster, args: list[str], text: str) -> None:
    assert text in cluster.run("bench", "send", *args, code=2).stderr


@pytest.mark.spec("CLI-04")
def test_bench_of_an_unreachable_cluster_ends_with_four(cluster: Cluster) -> None:
    assert cluster.run("bench", "send", "-n", "127.0.0.1:1", code=4).stdout == ""
