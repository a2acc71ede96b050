"""`saturnmq top`: rates and lag, from surveys and from an embedded cluster."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import GroupState, Survey, TopicProgress, TopicState
from saturnmq.cli.everyday.top import _cell, view_of
from saturnmq.cli.output import show_rows

Cluster = Any


def survey(topics: dict[str, int], groups: dict[str, tuple[int, int]], problem: str = "") -> Survey:
    """A survey with totals of topics, and what each group has consumed and not consumed."""
    runtime = {
        "putTps": "12.34 5 1",
        "getTransferedTps": "7 6 5",
        "commitLogDiskRatio": "0.29",
        "brokerVersionDesc": "V4_9_7",
    }
    brokers = [BrokerState("c", "broker-a", 0, "h:1", {} if problem else runtime, problem)]
    return Survey(
        brokers,
        {("c", name): TopicState("c", name, total, total) for name, total in topics.items()},
        {
            ("c", name): GroupState(
                "c", name, {"t": TopicProgress(total, lag - 1), "%RETRY%" + name: TopicProgress(0, 1)}
            )
            for name, (total, lag) in groups.items()
        },
        {"h:1": problem} if problem else {},
    )


@pytest.mark.spec("CLI-02")
def test_topics_are_sorted_by_rate_and_groups_by_lag() -> None:
    before = survey({"idle": 1000, "slow": 10, "fast": 0}, {"behind": (0, 60), "done": (5, 1)})
    now = survey({"idle": 1000, "slow": 30, "fast": 500, "fresh": 7}, {"behind": (10, 50), "done": (5, 1)})
    view = view_of(now, before, 10.0)
    assert [(row["topic"], row["messages_per_s"]) for row in view.topics] == [
        ("fast", 50.0), ("slow", 2.0), ("idle", 0.0), ("fresh", None),
    ]  # fmt: skip
    assert [(row["group"], row["lag"], row["messages_per_s"]) for row in view.groups] == [
        ("behind", 50, 1.0),
        ("done", 1, 0.0),
    ]


def test_topics_and_groups_of_brokers_are_shown_on_request_only() -> None:
    """They came first on a quiet cluster: its trace topic and its internal ones hold the most messages."""
    now = survey(
        {"orders": 1, "RMQ_SYS_TRACE_TOPIC": 9, "%RETRY%g": 9, "c": 9}, {"g": (0, 1), "TOOLS_CONSUMER": (0, 9)}
    )
    view = view_of(now, None, 0.0)
    assert [row["topic"] for row in view.topics] == ["orders"] and [row["group"] for row in view.groups] == ["g"]
    view = view_of(now, None, 0.0, system=True)
    assert len(view.topics) == 4 and [row["group"] for row in view.groups] == ["TOOLS_CONSUMER", "g"]


def test_first_view_has_no_rates_and_a_restarted_count_none_below_zero() -> None:
    first, again = survey({"t": 100}, {}), survey({"t": 0}, {})
    assert view_of(first, None, 0.0).topics[0]["messages_per_s"] is None
    assert view_of(again, first, 5.0).topics[0]["messages_per_s"] == 0.0


def test_broker_row_has_rates_disk_and_problem() -> None:
    (row,) = view_of(survey({}, {}), None, 0.0).brokers
    assert (row["broker"], row["in_per_s"], row["out_per_s"], row["disk_percent"]) == ("broker-a/0", 12.3, 7.0, 29)
    (row,) = view_of(survey({}, {}, "connection refused"), None, 0.0).brokers
    assert (row["in_per_s"], row["disk_percent"], row["problem"]) == (None, None, "connection refused")


@pytest.mark.spec("SEC-20")
def test_cells_escape_what_a_terminal_would_obey() -> None:
    assert _cell("a\x1b[2J\u202e") == "a\\x1b[2J\\u202e"
    assert (_cell(None), _cell(1234567), _cell(1234.5)) == ("-", "1,234,567", "1,234.5")


@pytest.mark.spec("CLI-02")
def test_top_once_prints_the_cluster(cluster: Cluster) -> None:
    cluster.run("send", "topped", "x", "--count", "7")
    rows = cluster.rows("top", "--once", "--rows", "1000")
    assert [row["broker"] for row in rows if row["kind"] == "broker"] == ["broker-a/0"]
    (topic,) = [row for row in rows if row["kind"] == "topic" and row["topic"] == "topped"]
    assert (topic["total"], topic["kept"]) == (7, 7)
    assert all(row.get("topic") != "TBW102" for row in rows)
    rows = cluster.rows("top", "--once", "--rows", "1000", "--system")
    assert [row["topic"] for row in rows if row["kind"] == "topic" and row["topic"] == "TBW102"] == ["TBW102"]
    lines = cluster.lines("top", "--once", "--rows", "1000")
    assert any(line.split()[:1] == ["topped"] for line in lines)


@pytest.mark.spec("CLI-04")
def test_top_of_an_unreachable_cluster_ends_with_four(cluster: Cluster) -> None:
    assert "127.0.0.1:1" in cluster.run("top", "--once", "-n", "127.0.0.1:1", code=4).stderr


@pytest.mark.spec("CLI-11")
def test_top_reports_a_wrong_interval(cluster: Cluster) -> None:
    assert "--interval '1ms' must be in 500ms..1h" in cluster.run("top", "--interval", "1ms", code=2).stderr


@pytest.mark.spec("SEC-20")
def test_tables_print_names_with_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"broker": "[/red]", "failed": None}])
    assert capsys.readouterr().out.split() == ["broker", "failed", "[/red]"]
