"""What pages show of one small cluster, whole: shown.txt has their texts, links, fields of forms and points of charts.

`SATURNMQ_REWRITE_SCRIPTS=1` writes shown.txt. Read the difference before committing it:
each changed line is a change that users see.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import GroupState, Survey, TopicProgress, TopicState
from saturnmq.console import context
from saturnmq.console.state import View
from saturnmq.history import Sample, Series
from saturnmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig

Open = Callable[..., Any]
RECORDED = Path(__file__).with_name("shown.txt")
NOW = 1_700_000_000
RUNTIME = {
    "brokerVersionDesc": "V4_9_7", "brokerVersion": "395", "putTps": "12.5 11 10", "getTransferedTps": "7.25 6 5",
    "commitLogDiskRatio": "0.75", "msgPutTotalTodayNow": "1234", "runtime": "[ 0 days, 1 hours, 2 minutes, 3 seconds ]",
    "bootTimestamp": "1699990000000", "sendThreadPoolQueueSize": "3", "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueHeadWaitTimeMills": "4", "commitLogMaxOffset": "4096",
}  # fmt: skip
LEDGER = {
    "dledgerRole": "LEADER", "dledgerLeaderId": "n0", "dledgerTerm": "4", "dledgerBeginIndex": "-1", "dledgerEndIndex": "99",
    "dledgerCommittedIndex": "90", "dledgerWatermark_n0": "99",
}  # fmt: skip
BROKERS = [
    BrokerState("C", "a", 0, "127.0.0.1:1", RUNTIME), BrokerState("C", "a", 1, "127.0.0.1:2", {"brokerVersionDesc": "V5"}),
    BrokerState("C", "b", 0, "127.0.0.1:3", {}, "no answer within 3 s"), BrokerState("D", "d", 0, "127.0.0.1:4", LEDGER),
    BrokerState("D", "d", 1, "127.0.0.1:5", LEDGER | {"dledgerRole": "FOLLOWER", "dledgerEndIndex": "95", "dledgerFailed": "disk"}),
]  # fmt: skip
PAGES = """
    / /?range=24h /brokers /brokers/127.0.0.1:1 /brokers/none /brokers/none/settings /topics
    /topics?sort=name&kind=all /topics?sort=kept /topics?sort=total&q=E /topics?kind=retry /topics?kind=dead
    /topics?kind=system /topics/C/orders /topics/C/none /topics/D/events /groups /groups?sort=name&kind=all
    /groups?sort=rate&q=I /groups?kind=system /groups/C/billing /groups/D/idle /groups/C/none /ledger /ledger/d
    /ledger/none /ledger/none/transfer /name-servers /waiting /alarms /graph /dead-letters /dead-letters?q=BILL
    /dead-letters?q=x /search /messages /traces /producers /audit
""".split()  # noqa: SIM905 - a list of lines would be longer


def topic(
    cluster: str, name: str, total: int, kept: int, *brokers: str, **config: Any
) -> tuple[tuple[str, str], TopicState]:
    configs = {broker: TopicConfig(name, **config) for broker in brokers}
    return (cluster, name), TopicState(cluster, name, total, kept, configs)


def group(cluster: str, name: str, **lags: int) -> tuple[tuple[str, str], GroupState]:
    topics = {topic_name: TopicProgress(100, lag) for topic_name, lag in lags.items()} | {
        f"%RETRY%{name}": TopicProgress(9, 2)
    }
    return (cluster, name), GroupState(
        cluster, name, topics, configs={"a": SubscriptionGroupConfig(name, retry_max_times=7)}
    )


def view() -> View:
    topics = [
        topic("C", "orders", 5000, 40, "a", "b", read_queue_nums=4, write_queue_nums=3), topic("C", "payments", 200, 2000, "a"),
        topic("D", "events", 1_000_000, 1000, "d", perm=4, order=True), topic("C", "%RETRY%billing", 9, 9, "a"),
        topic("C", "%DLQ%billing", 4, 3, "a"), topic("C", "TBW102", 0, 0, "a"), topic("C", "quiet", 200, 0, "a"),
    ]  # fmt: skip
    groups = [
        group("C", "billing", orders=30, payments=0), group("C", "shipping", orders=31), group("D", "idle"),
        group("C", "CID_RMQ_SYS_TRANS", orders=1), group("D", "audit", events=1500),
    ]  # fmt: skip
    survey = Survey(
        BROKERS, dict(topics), dict(groups), {"127.0.0.1:3": "no answer within 3 s", "orders@127.0.0.1:1": "busy"}
    )
    in_rates = {("C", "orders"): 2.5, ("C", "payments"): 20.0, ("C", "TBW102"): 7.0}
    return View(survey, 993.0, in_rates, {("C", "billing"): 1.5, ("C", "shipping"): 0.0, ("D", "audit"): 1200.0})


def samples(minute: int) -> Iterator[Sample]:
    yield Sample(Series("incoming", "C"), minute * 600, 0)
    yield Sample(Series("cluster", "D"), minute * 60, minute)
    yield Sample(Series("broker", "C", broker="a:0"), minute * 6, minute / 10)
    yield Sample(Series("replica", "C", broker="a:1"), 0, 1024 * minute)
    yield Sample(Series("topic", "C", topic="orders"), 120 * minute, 0)
    yield Sample(Series("group", "C", topic="orders", group="billing"), 0, 7 * minute)
    yield Sample(Series("group", "C", topic="%RETRY%billing", group="billing"), 0, 3)
    yield Sample(Series("alarms", ""), 0, minute % 2)


def shown(page: str) -> str:
    """The content of a page as lines: cells are separated by bars, targets of links and fields of forms stand in brackets."""
    text = page.partition('<main id="content">')[2].partition("</main>")[0] or page
    text = re.sub(r'<svg class="chart".*? data-points="(.*?)".*?</svg>', r"[points \1]", text, flags=re.S).replace(
        "\n", " "
    )
    text = re.sub(
        r'<input type="hidden" name="(csrf|shown_on)"[^>]*>|<p id="stale".*?</p>|<footer.*?</footer>', "", text
    )
    text = re.sub(r'<a [^>]*?href="(.*?)"([^>]*)>', r"[\1\2] ", text)
    text = re.sub(r'<(?:span|dd|li|div|p) class="(?:state )?(ok|idle|warn|bad)"[^>]*>', r"\1: ", text)
    text = re.sub(r"<((?:input|select|option|textarea|form|button|rect)\b[^>]*)>", r" [\1] ", text)
    text = re.sub(r"</(tr|li|p|h\d|dd|form|summary|nav|option|label|figure)>", "\n", re.sub(r"</t[dh]>", " | ", text))
    lines = (" ".join(line.split()).removesuffix(" |") for line in re.sub(r"<[^>]*>", " ", text).split("\n"))
    return "\n".join(filter(None, lines))


async def test_pages_of_a_small_cluster_show_this(console: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        monkeypatch.setattr(context, "time", SimpleNamespace(time=lambda: float(NOW)))
        one.services.state._view = view()
        for minute in range(4):
            one.services.history.record(NOW - 240 + 60 * minute, samples(minute))
        line = (
            "time=2023-11-14T22:00:00.000+00:00 user=admin peer=h action=topic target='/do/topic name=a b' result=303"
        )
        (one.folder / "audit.log").write_text(f"{line}\n{line} 'broken\n")
        # Of a list that is sorted or chosen otherwise, the part that changes is enough.
        part = {"hx-request": "true"}
        pages = {path: await one.browser.get(path, headers=part if "=" in path else None) for path in PAGES}
    actual = "\n\n".join(f"== {path} {page.status_code}\n{shown(page.text)}" for path, page in pages.items()) + "\n"
    if os.environ.get("SATURNMQ_REWRITE_SCRIPTS") is not None:
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual.split("\n\n") == RECORDED.read_text(encoding="utf-8").split("\n\n")
