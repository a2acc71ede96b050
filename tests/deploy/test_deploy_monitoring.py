"""The board and the alert rules in deploy/: their form, and that what they select is in a scrape of ours."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from apachenames import labels_by_name
from boards import ALERTS, BOARD, DEPLOY, DEPRECATED, METRIC, REPLICATED, panels, queries, rules
from scraped import scraped


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.spec("EXP-03", "EXP-04")
def test_the_rules_of_the_exporters_example_are_shipped() -> None:
    lag = (
        "(sum(rocketmq_producer_offset) by (topic) - on(topic) group_right sum(rocketmq_consumer_offset) by (group,topic)) "
        "- ignoring(group) group_left sum(avg_over_time(rocketmq_producer_tps[5m])) by (topic)*5*60 > 0"
    )
    expected = {
        "RocketMQClusterProduceHigh": "sum(rocketmq_producer_tps) by (cluster) >= 10",
        "RocketMQClusterProduceLow": "sum(rocketmq_producer_tps) by (cluster) < 1",
        "RocketMQClusterConsumeHigh": "sum(rocketmq_consumer_tps) by (cluster) >= 10",
        "RocketMQClusterConsumeLow": "sum(rocketmq_consumer_tps) by (cluster) < 1",
        "ConsumerFallingBehind": lag,
        "GroupGetLatencyByStoretime": "rocketmq_group_get_latency_by_storetime > 1000",
    }
    found = rules()
    for name, expr in expected.items():
        assert squeezed(found[name]["expr"]) == squeezed(expr), name
        assert (found[name]["for"], found[name]["labels"]) == ("3m", {"severity": "warning"})
    # one rule for all groups: no other selects the lag of a group by its name
    assert not [rule for rule in found.values() if re.search(r'group=~?"', rule["expr"])]
    assert "placeholders" in ALERTS.read_text()


@pytest.mark.spec("OPS-17")
def test_the_minimum_alarms_are_shipped() -> None:
    text = {name: rule["expr"] for name, rule in rules().items()}
    for metric in (
        "rocketmq_producer_tps[5m]", "rocketmq_brokeruntime_commitlog_disk_ratio",
        "rocketmq_brokeruntime_send_threadpoolqueue_headwait_timemills",
        "rocketmq_brokeruntime_pull_threadpoolqueue_headwait_timemills", "rocketmq_brokeruntime_pagecache_lock_time_mills",
        "rocketmq_broker_commitlog_diff", "delta(rocketmq_topic_dlq_offset", "saturnmq_group_members",
    ):  # fmt: skip
        assert any(metric in expr for expr in text.values()), metric


def test_every_rule_is_complete() -> None:
    for name, rule in rules().items():
        assert re.fullmatch(r"[A-Z]\w+", name)
        assert rule["for"] == "3m"
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


@pytest.mark.spec("INT-14")
def test_the_board_has_no_deprecated_panels_and_whole_queries() -> None:
    board = json.loads(BOARD.read_text())
    assert board["schemaVersion"] >= 36
    found = panels()
    assert not {panel["type"] for panel in found} & DEPRECATED
    assert {panel["type"] for panel in found} <= {"timeseries", "stat", "table"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for where, expr in queries():
        assert all(expr.count(a) == expr.count(b) for a, b in ("()", "[]", "{}")), where
        assert set(re.findall(r"\$(\w+)", expr)) <= variables, where
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.spec("INT-14")
def test_every_query_selects_rows_that_a_scrape_has() -> None:
    """Each metric of a query is scraped, with the labels that the query uses."""
    samples = scraped()
    for where, expr in queries():
        for metric in METRIC.findall(expr):
            if REPLICATED.fullmatch(metric):
                continue
            rows = samples.get(metric)
            assert rows or metric == "saturnmq_rejected_total", f"{where}: {metric} has no row"
            used = set(re.findall(rf"{metric}\{{([^}}]*)\}}", expr))
            labels = {name for part in used for name in re.findall(r"(\w+)=~?", part)}
            assert labels <= {label for row in rows or [] for label in row} | (
                {"cluster", "broker"} if not rows else set()
            ), where


@pytest.mark.spec("INT-13")
def test_all_names_of_apaches_boards_have_rows() -> None:
    """What the two boards of the exporter select, except what needs slaves or retried messages; some is never filled."""
    samples = scraped()
    unfilled = {"rocketmq_group_consume_tps", "rocketmq_group_consume_total_offset", "rocketmq_broker_commitlog_diff",
                "rocketmq_group_dlqdiff"}  # fmt: skip
    assert {name for name in labels_by_name() if not samples.get(name)} == unfilled
    scrape_file = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for job in scrape_file["scrape_configs"]:
        assert {"Cluster", "Env"} <= job["static_configs"][0]["labels"].keys()
