"""The graph of topics and groups, and the configuration of a broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browsing import name_server

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import GroupState, Survey, TopicProgress
from saturnmq.console.broker_settings import checked, masked
from saturnmq.console.forms import WrongField
from saturnmq.console.graph import EDGES_MAX, Edge, draw, edges_of
from saturnmq.console.state import View
from saturnmq.protocol.errors import ConfigError
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
HOSTILE = '<script>alert("x")</script>\u202e'


def large() -> Survey:
    groups = {}
    for number in range(2500):
        name = f"group-{number}" if number else HOSTILE
        topics = {
            f"topic-{number % 1000}": TopicProgress(1, 9 if number == 0 else 0),
            f"%RETRY%{name}": TopicProgress(),
            HALF: TopicProgress(1, 5),
        }
        groups["C", name] = GroupState("C", name, topics)
    return Survey([], {}, groups, {})


@pytest.mark.spec("UX-14", "UX-15")
async def test_graph_of_a_large_cluster_is_bounded_searched_and_escaped(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        one.services.state._view = View(large(), 1000.0)
        page = (await one.browser.get("/graph")).text
        assert page.count('class="edge') == EDGES_MAX == 150 and f"{2500 - EDGES_MAX} more are not drawn" in page
        assert HALF not in page and "%RETRY%" not in page
        assert "<script>alert" not in page and "\u202e" not in page and "style=" not in page
        page = (await one.browser.get("/graph?q=topic-999")).text
        assert page.count('class="edge') == 2 and "group-1999" in page and "not drawn" not in page
        assert "None." in (await one.browser.get("/graph?q=nothing")).text


def test_graph_has_lines_from_topics_over_groups_to_clients() -> None:
    """Columns of boxes begin at x = 10, 370 and 730, rows of 30 at y = 16; curves lead from middle to middle."""
    edges = [Edge("C", "t/1", "g", 1500), Edge("C", "b", "g", 0), Edge("D", "x" * 35, "y" * 34, 0)]
    drawn = str(draw(edges, {"g": ["c0", "c0", "c1", "c2", "c3", "c4"], "none": ["n"]}, "label"))
    assert re.findall(r'<path class="(.*?)" d="(.*?)"(?:/|><title>(.*?)<)', drawn) == [
        ("edge late", "M260 31C315 31 315 31 370 31", "1.5k"), ("edge", "M260 61C315 61 315 31 370 31", "0"),
        ("edge", "M260 91C315 91 315 61 370 61", "0"), ("edge", "M620 31C675 31 675 31 730 31", ""),
        ("edge", "M620 31C675 31 675 31 730 31", ""), ("edge", "M620 31C675 31 675 61 730 61", ""),
        ("edge", "M620 31C675 31 675 91 730 91", ""), ("edge", "M620 31C675 31 675 121 730 121", ""),
    ]  # fmt: skip
    assert re.findall(r'<rect x="(\d+)" y="(\d+)" width="250" height="24" rx="5"/><text x="(\d+)" y="(\d+)">(.*?)<', drawn) == [
        ("370", "19", "378", "35", "g"), ("370", "49", "378", "65", "y" * 34), ("10", "19", "18", "35", "t/1"),
        ("10", "49", "18", "65", "b"), ("10", "79", "18", "95", "x" * 33 + "…"), ("730", "19", "738", "35", "c0"),
        ("730", "49", "738", "65", "c1"), ("730", "79", "738", "95", "c2"), ("730", "109", "738", "125", "c3"),
    ]  # fmt: skip
    paths = re.findall(r'<a href="(.*?)"><rect', drawn)
    assert paths == ["/groups/C/g", f"/groups/D/{'y' * 34}", "/topics/C/t%2F1", "/topics/C/b", f"/topics/D/{'x' * 35}"]
    assert 'viewBox="0 0 1000 152" role="img" aria-label="label"' in drawn


def test_edges_have_the_largest_lag_first_and_names_that_hold_the_text() -> None:
    edges = edges_of(large(), "TOPIC-7")
    assert edges[0] == Edge("C", "topic-7", "group-1007", 0) and len(edges) == 233
    assert edges_of(large(), "group-1007") == edges[:1]
    assert edges_of(large(), "")[:2] == [Edge("C", "topic-0", HOSTILE, 9), Edge("C", "topic-0", "group-1000", 0)]


@pytest.mark.spec("UX-16", "SEC-22")
async def test_key_of_a_broker_is_changed_after_a_preview_where_the_broker_allows_it(console: Open) -> None:
    async with EmbeddedBroker() as server, console(name_server(server)) as one:
        await one.log_in()
        await one.services.state.refresh()
        path = f"/brokers/{server.broker_address}/settings"
        page = (await one.browser.get(f"{path}?q=filereserved")).text
        assert "<td>fileReservedTime</td><td>72</td>" in page and "brokerName" not in page
        page = (await one.browser.get(f"{path}?key=fileReservedTime&value=48")).text
        assert "<td>72</td><td>48</td>" in page
        form = {
            "csrf": await one.csrf(),
            "address": server.broker_address,
            "key": "fileReservedTime",
            "before": "72",
            "value": "48",
        }
        stale = await one.browser.post("/do/broker/settings", data=form | {"before": "71"})
        assert stale.status_code == 400 and "has changed meanwhile" in stale.text
        answer = await one.browser.post("/do/broker/settings", data=form)
        assert answer.status_code == 303, answer.text
        assert "<td>48</td>" in (await one.browser.get(answer.headers["location"])).text
        fixed = form | {"key": "brokerConfigPath", "before": "", "value": "/tmp/x"}
        assert (await one.browser.post("/do/broker/settings", data=fixed)).status_code == 502
        other = form | {"address": "192.0.2.1:1"}
        assert (await one.browser.post("/do/broker/settings", data=other)).status_code == 400
        log = (one.folder / "audit.log").read_text()
        assert "action=broker_settings" in log and "before=72" in log and "value=48" in log


def test_secrets_are_masked_and_values_are_one_line() -> None:
    assert masked("tls.server.keyPassword", "x") == "***" and masked("brokerName", "x") == "x"
    for key, value in (("a b", ""), ("secretKey", "x"), ("key", "a\nb=c"), ("key", "x" * 5000), ("", "")):
        with pytest.raises(ConfigError):
            checked(key, value)
    for word in ("aclSecret", "PASSWORD", "keyPasswd", "token", "my.credential", "privateKey", "accessKey"):
        assert masked(word, "x") == "***" and masked(word, "") == ""
    assert checked("k", " " * 4096) == "" and checked("k" + "x" * 127, " a b ") == "a b"
    for key, value, field in (("k" + "x" * 127 + "y", "", "key"), ("1k", "", "key"), ("k", "x" * 4097, "value"),
                              ("k", "\x1f", "value"), ("token", "x", "key")):  # fmt: skip
        with pytest.raises(WrongField) as caught:
            checked(key, value)
        assert caught.value.field == field


async def test_settings_page_shows_two_thousand_keys_without_secrets(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def configuration(address: str) -> dict[str, str]:
        return {f"key{number:04}": "v" for number in range(2001)} | {"accessKey": "planted"}

    async with console("127.0.0.1:1") as one:
        await one.log_in()
        one.services.state._view = View(Survey([BrokerState("C", "a", 0, "127.0.0.1:2", {})], {}, {}, {}), 1000.0)
        monkeypatch.setattr(one.services.admin.brokers, "configuration", configuration)
        page = (await one.browser.get("/brokers/127.0.0.1:2/settings")).text
    assert re.findall(r"<td>(\w+)</td><td>(.*?)</td>", page) == [
        ("accessKey", "***"), *((f"key{number:04}", "v") for number in range(1999)),
    ]  # fmt: skip
