"""The board and the alert rules in deploy/, and what Apache's two boards of the exporter select."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
BOARD = DEPLOY / "grafana" / "saturnmq.json"
DEPRECATED = {"graph", "table-old", "singlestat", "grafana-piechart-panel", "worldmap"}  # panel types
# Rows that a single master without slaves does not have.
REPLICATED = re.compile(r"saturnmq_(replication|replica|raft)_\w+|rocketmq_broker_commitlog_diff")
METRIC = re.compile(r"\b(?:saturnmq|rocketmq)_\w+")


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(BOARD.read_text())["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Where each query stands, and its text."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for name, rule in rules().items():
        yield name, rule["expr"]
    for variable in json.loads(BOARD.read_text())["templating"]["list"]:
        yield variable["name"], variable["query"]


# ---- Apache's boards: names, labels that they select by, and how they combine them

PMDT = ("0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s", "2to3s", "3to4s", "4to5s",
        "5to10s", "10stomore")  # fmt: skip
RUNTIME = "rocketmq_brokeruntime_"
# The board with Chinese texts, schema 26: every selector has Cluster and Env; these have more.
SELECTED = {
    "broker_tps": ("broker",), "broker_qps": ("broker",), "producer_tps": ("broker", "topic"),
    "consumer_tps": ("broker", "topic", "group"), "producer_message_size": ("broker", "topic"),
    "consumer_message_size": ("broker", "topic", "group"), "group_get_latency_by_storetime": ("broker", "group", "topic"),
    "group_diff": ("topic", "group"), "group_retrydiff": ("group",), "producer_offset": ("broker", "topic"),
    "topic_retry_offset": ("broker",), "topic_dlq_offset": ("broker",), "consumer_offset": ("broker", "topic"),
    **dict.fromkeys(("client_consume_fail_msg_count", "client_consumer_pull_tps", "client_consume_ok_msg_tps",
                     "client_consumer_pull_rt", "client_consume_rt"), ("group", "topic")),
}  # fmt: skip
GROUPED = {
    "producer_tps": "topic", "consumer_tps": "group", "producer_message_size": "broker", "consumer_message_size": "topic,group",
    "group_diff": "group,topic", "group_retrydiff": "group", "client_consume_fail_msg_count": "group",
}  # fmt: skip
PLAIN = ("commitlog_disk_ratio", "send_threadpoolqueue_headwait_timemills", "pull_threadpoolqueue_headwait_timemills",
         "query_threadpoolqueue_headwait_timemills", "dispatch_behind_bytes", "earliest_message_timestamp",
         "commitlog_minoffset", "commitlog_maxoffset")  # fmt: skip
DIFFERENCES = (
    ("msg_puttotal_todaymorning", "msg_puttotal_yesterdaymorning"), ("msg_put_total_today_now", "msg_puttotal_todaymorning"),
    ("msg_gettotal_todaymorning", "msg_gettotal_yesterdaymorning"), ("msg_gettotal_today_now", "msg_gettotal_todaymorning"),
    ("commitlog_maxoffset", "commitlog_minoffset"),
)  # fmt: skip
# The overview board, schema 16, selects by name alone.
OVERVIEW = (
    *("rocketmq_" + name for name in SELECTED if "diff" not in name and not name.startswith("topic_")),
    "rocketmq_client_consume_fail_msg_tps",
    *(RUNTIME + name for name in (
        "getfound_tps10", "gettotal_tps10", "gettransfered_tps10", "getmiss_tps10", "put_tps10", "consumequeue_disk_ratio",
        "commitlogdir_capacity_free", "commitlogdir_capacity_total", "put_message_size_total", "put_message_average_size",
        *PLAIN, *("pmdt_" + name for name in PMDT), *(name for pair in DIFFERENCES for name in pair))),
    "sum(rocketmq_producer_offset) by (topic) - on(topic) group_right sum(rocketmq_consumer_offset) by (group,topic)",
)  # fmt: skip


def apache_queries() -> Iterator[str]:
    """Each query of Apache's two boards once; variables as `$cluster`."""
    for name, labels in SELECTED.items():
        own = "rocketmq_" + name + selector(*labels)
        yield own
        if name in GROUPED:
            yield f"sum({own}) by ({GROUPED[name]})"
    yield f"max({'rocketmq_group_get_latency_by_storetime' + selector('broker', 'group', 'topic')}) by (group,topic,broker)"
    for name in PLAIN:
        yield RUNTIME + name + selector()
    for first, second in DIFFERENCES:
        yield f"{RUNTIME}{first}{selector()} - {RUNTIME}{second}{selector()}"
    for name in PMDT:
        yield f"sum({RUNTIME}pmdt_{name}{selector()})"
    yield " + ".join(f"sum({RUNTIME}pmdt_{name}{selector()}) by (brokerIP)" for name in PMDT[5:])
    yield from OVERVIEW


def selector(*labels: str) -> str:
    """The selector of the board with schema 26."""
    more = "".join(f',{name}=~"${name}"' for name in labels)
    return f'{{Cluster="$cluster",Env="$env"{more}}}'
