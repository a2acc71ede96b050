# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""The pages against an embedded broker, and against a survey of a large cluster with hostile names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browsing import Times, name_server

from saturnmq import Client
from saturnmq import console as console_package
from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import GroupState, Survey, TopicProgress, TopicState
from saturnmq.console import pages
from saturnmq.console.state import View, with_rates
from saturnmq.history import History, Sample, Series
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
TEMPLATES = Path(console_package.__file__).parent / "templates"
HOSTILE = '<script>alert("x")</script>\u202e'


@pytest.mark.spec("CON-04", "CON-05", "CON-06")
async def test_pages_show_brokers_topics_and_groups(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send_many("orders", [b"x"] * 10)
        async with client.consumer("billing", start="first") as inbox:
            await inbox.subscribe("orders")
            for _ in range(4):
                await (await inbox.recv(30)).ack()
        async with client.consumer("billing") as inbox:
            await inbox.subscribe("orders")
            clock = Times()
            async with console(name_server(server), clock=clock) as one:
                await one.log_in()
                await one.services.state.refresh()
                async with client.producer("p2") as out:
                    await out.send_many("orders", [b"x"] * 20)
                clock.now += 10
                await one.services.state.refresh()
                page = (await one.browser.get("/topics?q=ORD")).text
                assert re.search(r">orders</a></td><td class=\"n\">2\.0</td>", page), page
                page = (await one.browser.get("/topics/DefaultCluster/orders")).text
                assert ">billing</a>" in page and ">30<" in page
                page = (await one.browser.get("/groups/DefaultCluster/billing")).text
                assert "PYTHON" in page and "orders" in page
                page = (await one.browser.get("/brokers")).text
                assert server.broker_address in page and "V4_9_7" in page and "online" in page
                page = (await one.browser.get(f"/brokers/{server.broker_address}")).text
                assert "commitLogMaxOffset" in page
                page = (await one.browser.get("/")).text
                assert "No problems." not in page and "stuck: nothing consumed" in page, (
                    "26 messages wait, nothing is consumed"
                )
                assert (await one.browser.get("/topics/DefaultCluster/nothing")).status_code == 404
                part = (await one.browser.get("/brokers", headers={"hx-request": "true"})).text
                assert "<html" not in part and server.broker_address in part


@pytest.mark.spec("CON-05", "UX-16")
async def test_topic_is_created_and_deleted_with_lines_in_the_audit_log(console: Open) -> None:
    async with EmbeddedBroker() as server:
        async with console(name_server(server)) as one:
            await one.log_in()
            await one.services.state.refresh()
            form = {
                "csrf": await one.csrf(),
                "cluster": "DefaultCluster",
                "name": "new",
                "read": "3",
                "write": "3",
                "perm": "6",
            }
            answer = await one.browser.post("/do/topic", data=form)
            assert answer.headers["location"] == "/topics/DefaultCluster/new"
            assert server.broker.topics.get("new").write_queue_nums == 3
            assert (await one.browser.post("/do/topic", data=form | {"write": "0"})).status_code == 400
            deletion = {"csrf": form["csrf"], "cluster": "DefaultCluster", "name": "new", "confirm": "other"}
            assert (await one.browser.post("/do/topic/delete", data=deletion)).status_code == 400
            deleted = await one.browser.post("/do/topic/delete", data=deletion | {"confirm": "new"})
            assert (deleted.status_code, deleted.headers["location"]) == (303, "/topics")
            assert server.broker.topics.get("new") is None
            log = (one.folder / "audit.log").read_text()
            assert "user=admin" in log and "action=topic_delete" in log and form["csrf"] not in log
            page = (await one.browser.get("/audit")).text
            assert "topic_delete" in page and "name=new" in page


def large(topics: int, groups: int) -> Survey:
    one = BrokerState("C", HOSTILE, 0, "127.0.0.1:10911", {"putTps": f"{HOSTILE} 1 1"}, "")
    dead = BrokerState("C", "dead", 0, "127.0.0.1:10912", {}, "cannot connect")
    config = {"b": TopicConfig("t")}
    names = [f"topic-{number:05}" for number in range(topics - 1)] + [HOSTILE]
    found = {("C", name): TopicState("C", name, 5, 5, config) for name in names}
    progress = {HOSTILE: TopicProgress(1, 7)}
    many = {("C", f"group-{number:05}"): GroupState("C", f"group-{number:05}", progress) for number in range(groups)}
    return Survey([one, dead], found, many, {"127.0.0.1:10912": "cannot connect"})


@pytest.mark.spec("UX-14")
async def test_lists_of_a_large_cluster_are_paged_and_escape_names(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        one.services.state._view = View(large(1000, 2500), 1000.0)
        for path, count in (("/topics", "1000"), ("/groups", "2500")):
            first = (await one.browser.get(path)).text
            assert f"Page 1 of {int(count) // 50}, {int(count):,} in all" in first
            last = (await one.browser.get(f"{path}?page={int(count) // 50}")).text
            assert last.count("<tr>") == 51 and "Page 1 of" not in last
            assert f"Page {int(count) // 50} of" in (await one.browser.get(f"{path}?page=99999")).text
        for path in ("/", "/brokers", "/topics?q=script&page=1", "/groups"):
            page = (await one.browser.get(path)).text
            assert "<script>alert" not in page and "\u202e" not in page, path
            assert "script" in page
        assert "cannot connect" in (await one.browser.get("/brokers")).text


async def test_audit_log_is_paged_newest_first_and_searched(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        lines = [
            f"time=2026-11-27T08:00:00.000+00:00 user=u{number} peer=h action=Send target=t result=done"
            for number in range(120)
        ]
        (one.folder / "audit.log").write_text("\n".join(lines) + "\n")

        async def users(query: str) -> list[str]:
            return re.findall(r"<td[^>]*>(u\d+)</td>", (await one.browser.get(f"/audit?{query}")).text)

        assert await users("") == [f"u{number}" for number in range(119, 69, -1)]
        assert await users("page=3") == [f"u{number}" for number in range(19, -1, -1)]
        assert await users("q=USER%3Du11") == [f"u{number}" for number in range(119, 109, -1)] + ["u11"]
        assert await users("q=user%3Du3&page=2") == await users("q=user%3Du3"), "there is one page only"


@pytest.mark.spec("UX-14")
async def test_first_page_does_not_wait_for_a_dead_cluster(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        page = await one.browser.get("/topics")
        assert page.status_code == 200 and "being collected" in page.text
        await one.services.state.refresh()
        page = await one.browser.get("/topics")
        assert page.status_code == 503 and "127.0.0.1:1" in page.text


@pytest.mark.spec("CON-02")
async def test_charts_show_the_history(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        one.services.state._view = View(large(2, 1), 1000.0)
        now = int(time.time())
        broker = Series("broker", "C", broker=f"{HOSTILE}:0")
        for minute in range(10):
            samples = [Sample(broker, 0, 0), Sample(Series("incoming", "C"), minute * 600, 0)]
            one.services.history.record(now - 600 + minute * 60, samples)
        page = (await one.browser.get("/")).text
        assert page.count('class="line"') == 2 and ">10 /s<" in page


@pytest.mark.spec("UX-11")
async def test_pages_have_one_language_and_templates_no_text_outside_it(console: Open) -> None:
    for path in TEMPLATES.iterdir():
        content = path.read_text(encoding="utf-8")
        words = re.sub(r"{[{%#].*?[}%#]}|<[^>]*>|&\w+;|\bRW\b", " ", content, flags=re.S)
        assert not re.search(r"[A-Za-z\u4e00-\u9fff]{2,}", words), (path.name, words.split())
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        one.services.state._view = View(large(3, 3), 1000.0)
        for path in ("/", "/brokers", "/topics", "/groups", "/audit"):
            page = (await one.browser.get(path, headers={"accept-language": "zh-CN,en;q=0.5"})).text
            assert 'lang="zh-CN"' in page and "概览" in page and "Overview" not in page, path


def test_rates_are_per_second_and_never_negative() -> None:
    before = View(large(1, 1), 100.0)
    after = large(1, 1)
    after.topics["C", HOSTILE].total = 25
    after.groups["C", "group-00000"].topics[HOSTILE].total = 0
    view = with_rates(after, 110.0, before)
    assert view.in_rates == {("C", HOSTILE): 2.0} and view.out_rates == {("C", "group-00000"): 0.0}


async def test_chart_of_long_history_ends_with_its_last_point(tmp_path: Path) -> None:
    """Every n-th point counted from the end, so that the chart shows the value of now; a counter that began again is no rate."""
    series = Series("topic", "C", topic="t")
    with History(tmp_path / "history.db") as history:
        for minute in range(600):
            history.record(60 * minute, [Sample(series, 120 * (minute % 599), minute)])
        page: Any = SimpleNamespace(services=SimpleNamespace(history=history), span=(0, 60 * 600))
        levels, rates = pages.levels_of(page, series, 2.0), pages.rates_of(page, series)
        assert levels == [(60 * minute, 2.0 * minute) for minute in range(2, 600, 3)]
        assert rates == [(60 * minute, 2.0) for minute in range(5, 597, 3)] + [(35_940, 0.0)]
        page.span = (60 * 300 + 1, 60 * 600)
        assert [at for at, _ in pages.levels_of(page, series)] == list(range(60 * 301, 60 * 600, 60))
    page.services.history = None
    assert pages.levels_of(page, series) == pages.rates_of(page, series) == []


def test_audit_page_reads_whole_lines_from_the_end_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    assert pages._last_lines(path) == []
    path.write_bytes(b"first\nsecond\nthird\xff\n")
    assert pages._last_lines(path) == ["first", "second", "third\ufffd"]
    monkeypatch.setattr(pages, "AUDIT_BYTES_MAX", 13)
    assert pages._last_lines(path) == ["third\ufffd"], "without the rest of the second, whose beginning is not read"
    monkeypatch.setattr(pages, "AUDIT_LINES_MAX", 1)
    monkeypatch.setattr(pages, "AUDIT_BYTES_MAX", 1000)
    assert pages._last_lines(path) == ["third\ufffd"]
    assert pages._pairs("a=1 b='2 3' c d=") == [("a", "1"), ("b", "2 3"), ("d", "")]
    assert pages._pairs("a=1 b='2 3") == [("a", "1"), ("b", "'2")], "what no shell reads is cut at blanks"
