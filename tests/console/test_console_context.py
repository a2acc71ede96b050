"""What all pages share: pages of lists, times, languages, rates, the age of a survey, and lines of the audit log."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from browsing import Times
from starlette.requests import Request

from saturnmq.admin.survey import BrokerState, GroupState, Survey, Surveyor, TopicProgress, TopicState
from saturnmq.console import conditions, context
from saturnmq.console import state as module
from saturnmq.console.context import (
    AuditFile,
    Page,
    Rows,
    Services,
    paged,
    preferred_language,
    same_token,
    when,
    when_iso,
)
from saturnmq.console.state import ClusterState, View, with_rates
from saturnmq.console.users import Session, User
from saturnmq.log_limit import LogLimit
from saturnmq.protocol.errors import SaturnError


@pytest.mark.parametrize(
    ("count", "text", "page", "pages", "items"),
    [
        (0, None, 1, 1, []),
        (7, None, 1, 3, [0, 1, 2]),
        (7, "2", 2, 3, [3, 4, 5]),
        (7, "3", 3, 3, [6]),
        (7, "4", 3, 3, [6]),
        (7, "0", 1, 3, [0, 1, 2]),
        (7, "-1", 1, 3, [0, 1, 2]),
        (7, "x", 1, 3, [0, 1, 2]),
        (7, "", 1, 3, [0, 1, 2]),
        (7, "99999999", 3, 3, [6]),
        (7, "9" * 9, 1, 3, [0, 1, 2]),
        (6, "2", 2, 2, [3, 4, 5]),
    ],
)
def test_list_is_paged(count: int, text: str | None, page: int, pages: int, items: list[int]) -> None:
    assert paged(range(count), text, 3) == Rows(
        range(count)[items[0] : items[-1] + 1] if items else range(0), page, pages, count
    )
    assert len(paged(range(200), None).items) == 50


def test_times_are_shown_with_utc_on_hover() -> None:
    shown = '<time datetime="2023-11-14T22:13:20Z" title="2023-11-14 22:13:20 UTC">2023-11-14 22:13:20</time>'
    assert when(1_700_000_000_999) == when_iso("2023-11-14T23:13:20.999+01:00") == shown
    assert ">1970-01-01 00:00:00<" in when(1) and ">9999-12-31 23:59:59<" in when(253_402_300_799_999)
    assert when(0) == when(-1) == when(253_402_300_800_000) == when_iso("noon") == when_iso("") == ""


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"), ("zh", "zh"), ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-GB,zh", "en"), ("de,fr;q=0.5", "en"), ("de, ZH-tw", "zh"),
    ],
)  # fmt: skip
def test_language_is_the_first_one_that_there_is(header: str, language: str) -> None:
    assert preferred_language(header) == language


def test_tokens_are_compared_whole() -> None:
    assert same_token("abc", "abc")
    assert not any(same_token(given, "abc") for given in ("", "ab", "abcd", "ABC", "\u00e4bc"))


# ---- the audit log


def services(folder: Path | None, **more: Any) -> Services:
    nothing = cast(Any, None)
    return Services(
        nothing, nothing, nothing, nothing, audit_file=None if folder is None else folder / "audit.log", **more
    )


@pytest.mark.spec("UX-16")
def test_no_module_of_the_console_connects_to_a_server_itself() -> None:
    """Requests go through `saturnmq.admin`; the types of the client are used for messages."""
    own = re.compile(
        r"saturnmq\.(sync|net\.client|client\.client|client\.connection|raft\.tool)|RemotingClient|open_connection|httpx"
    )
    folder = Path(module.__file__).parent
    assert len(list(folder.rglob("*.py"))) > 20
    assert [path.name for path in folder.rglob("*.py") if own.search(path.read_text())] == []


@pytest.mark.spec("UX-16")
def test_line_of_a_change_names_user_peer_action_target_and_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(User("ann\n", "admin", ""), "token", 0.0, 0.0)
    with caplog.at_level(logging.INFO, "saturnmq.console.audit"):
        services(tmp_path).record(session, "192.0.2.1", "topic", "/do/topic name=a b", "303")
        services(None).record(None, "192.0.2.1", "topic", "t", "403")
    (line,) = (tmp_path / "audit.log").read_text().splitlines()
    first, second = caplog.messages
    assert line == first and line.startswith("time=20") and "+00:00 user=" in line
    assert line.partition(" user=")[2] == '"ann\\n" peer=192.0.2.1 action=topic target="/do/topic name=a b" result=303'
    assert second.partition(" user=")[2] == "- peer=192.0.2.1 action=topic target=t result=403"


def test_refused_changes_of_a_network_have_one_line_a_minute(tmp_path: Path) -> None:
    clock = Times()
    made = services(tmp_path, refusals=LogLimit(interval_seconds=60.0, clock=clock))

    async def refuse(peer: str, times: int) -> None:
        for _ in range(times):
            await made.refused(None, peer, "topic", "/do/topic", "no token")

    asyncio.run(refuse("192.0.2.1", 3))
    asyncio.run(refuse("198.51.100.1", 1))
    clock.now += 61
    asyncio.run(refuse("192.0.2.1", 2))
    results = [line.partition("result=")[2] for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert results == [
        '"refused: no token"',
        '"refused: no token, 2 more without a line"',
        '"refused: no token"',
    ]


def test_audit_file_is_rotated_once_it_has_its_size(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in range(20):
        with closing(AuditFile(path, bytes_max=20)) as file:  # two lines of 8 bytes
            file.emit(logging.makeLogRecord({"msg": f"line {number:02}"}))
    assert path.read_text() == "line 18\nline 19\n"
    former = [(tmp_path / f"audit.log.{number}").read_text().split("\n")[0] for number in range(1, 6)]
    assert former == ["line 16", "line 14", "line 12", "line 10", "line 08"]
    assert len(list(tmp_path.iterdir())) == 6
    made, target = services(tmp_path), "x" * 100
    threads = [threading.Thread(target=made.record, args=(None, "-", "topic", target, "303")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text().count(f"target={target} result=303\n") == 8
    with pytest.raises(OSError, match="folder"):
        services(tmp_path / "folder").record(None, "-", "topic", target, "303")


# ---- surveys


def survey(total: int = 0, consumed: int = 0) -> Survey:
    topic = TopicState("C", "T", total, 0, {}, {})
    group = GroupState("C", "G", {"T": TopicProgress(consumed, 0), "U": TopicProgress(1, 0)})
    return Survey([BrokerState("C", "b", 0, "h:1", {})], {("C", "T"): topic}, {("C", "G"): group}, {})


@pytest.mark.spec("CON-02")
def test_rates_are_differences_by_seconds() -> None:
    first = with_rates(survey(100, 10), 50.0, None)
    assert (first.at, first.in_rates, first.out_rates) == (50.0, {}, {})
    second = with_rates(survey(130, 14), 52.0, first)
    assert (second.in_rates, second.out_rates) == ({("C", "T"): 15.0}, {("C", "G"): 2.0})
    less = with_rates(survey(5, 5), 54.0, second)
    assert (less.in_rates, less.out_rates) == ({("C", "T"): 0.0}, {("C", "G"): 0.0})
    assert with_rates(survey(200), 54.0, less).in_rates == {}, "at the same time"
    empty = View(Survey([], {}, {}, {}), 60.0)
    assert with_rates(survey(200), 61.0, empty).in_rates == {}, "a new topic"


class Surveys:
    """Answers surveys in turn: a survey, an exception, or None for one that never ends; the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.count = 0

    async def survey(self) -> Survey:
        self.count += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Survey)
        return answer


def state(*answers: Any) -> tuple[ClusterState, Surveys, Times]:
    surveys, clock = Surveys(*answers), Times()
    return ClusterState(cast(Surveyor, surveys), clock=clock), surveys, clock


async def test_view_is_stale_after_a_minute_or_a_failure() -> None:
    cluster, _, clock = state(survey(), SaturnError("no route"), survey(), ValueError("a defect"), None)
    assert (cluster.is_stale, cluster.view_age) == (False, 0)
    await cluster.refresh()
    clock.now += 60
    assert (cluster.is_stale, cluster.view_age) == (False, 60)
    clock.now += 0.5
    assert cluster.is_stale
    clock.now -= 60
    await cluster.refresh()
    assert cluster.is_stale and cluster.problem == "no route" and cluster.view_age == 0, "the last view stays"
    await cluster.refresh()
    assert not cluster.is_stale and cluster.problem == ""
    await cluster.refresh()
    assert cluster.is_stale and cluster.problem == "the survey failed; the log of the console shows why"
    await cluster.refresh()
    assert cluster.problem == "no survey within 30 s"


async def test_recent_survey_is_taken_if_the_last_one_is_older() -> None:
    cluster, surveys, clock = state(survey(1), survey(2), SaturnError("closed"), survey(3), SaturnError("down"))
    for seconds, total, count in ((0, 1, 1), (30, 1, 1), (0.5, 2, 2), (31, 3, 4)):
        clock.now += seconds
        found = await cluster.recent(30.0)
        assert found is not None and found.topics["C", "T"].total == total and surveys.count == count
    clock.now += 31
    assert await cluster.recent(30.0) is None and surveys.count == 6, "two attempts"
    assert await cluster.recent(30.0) is None and surveys.count == 8, "a problem is tried again"


async def test_first_view_waits_for_the_survey_for_a_moment() -> None:
    cluster, surveys, _ = state(None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await cluster.view() is None
    assert 0.8 <= loop.time() - began < 1.0
    surveys.answers = [survey(7)]
    viewing = asyncio.ensure_future(cluster.view())
    await asyncio.sleep(0)
    await cluster.refresh()
    began = loop.time()
    view = await viewing
    assert view is not None and view.survey.topics["C", "T"].total == 7 and loop.time() - began < 0.5


async def test_page_waits_a_moment_for_what_replaces_an_old_view() -> None:
    """Not if surveys fail: the page then shows the problem beside the old view."""
    cluster, _, clock = state(survey(1), survey(2), SaturnError("no route"))
    loop = asyncio.get_running_loop()
    await cluster.refresh()
    clock.now += 61
    viewing = asyncio.ensure_future(cluster.view())
    await asyncio.sleep(0)
    assert not viewing.done()
    await cluster.refresh()
    view = await viewing
    assert view is not None and view.survey.topics["C", "T"].total == 2
    await cluster.refresh()
    clock.now += 61
    began = loop.time()
    assert await cluster.view() is view and loop.time() - began < 0.5


async def test_surveys_are_taken_while_pages_are_viewed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, surveys, clock = state(survey())
    pauses: list[float] = []
    took = 0.0
    turn = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await turn.wait()
        turn.clear()

    async def taken() -> Survey:
        clock.now += took
        surveys.count += 1
        return survey()

    monkeypatch.setattr(surveys, "survey", taken)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    running = asyncio.ensure_future(cluster.run())

    async def step() -> None:
        turn.set()
        for _ in range(9):
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0)

    await step()
    took = 5.0
    await step()
    assert pauses[-2:] == [10.0, 20.0], "a survey that takes 5 s is followed by 20 s"
    took, count = 0.0, surveys.count
    clock.now += 121
    await step()
    await step()
    assert surveys.count == count, "no page was viewed for two minutes"
    await cluster.view()
    await step()
    assert surveys.count > count
    running.cancel()


def test_page_knows_language_range_and_address_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def page(query: str = "", client: tuple[str, int] | None = ("10.0.0.1", 1), **headers: str) -> Page:
        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "GET", "path": "/x y", "raw_path": b"/x%20y", "query_string": query.encode(),
                 "client": client, "headers": fields}  # fmt: skip
        return Page(cast(Services, None), Request(scope), None)

    monkeypatch.setattr(context.time, "time", lambda: 1_700_000_000.9)
    plain = page()
    assert (plain.language, plain.range, plain.span) == ("en", "1h", (1_699_996_400, 1_700_000_000))
    assert (plain.address, plain.user, plain.peer, plain.may("viewer")) == ("/x%20y", "", "10.0.0.1", False)
    day = page("range=24h&q=%20", None, accept_language="zh")
    assert (day.language, day.range, day.span[0]) == ("zh", "24h", 1_699_913_600)
    assert (day.address, day.peer) == ("/x%20y?range=24h&q=%20", "-")
    assert page("range=2h", cookie="saturnmq_language=en", accept_language="zh").language == "en"
    assert page("range=2h", cookie="saturnmq_language=fr").range == "1h"
    for headers, whole in (
        ({}, True),
        ({"hx_request": "true"}, False),
        ({"hx_request": "true", "hx_boosted": "true"}, True),
    ):
        text = bytes(page(**headers).render("message.html", 404, message="m").body).decode()
        assert (text.startswith("<!doctype html>"), "<p" in text) == (whole, True)


def test_list_shows_the_first_120_characters_of_a_body_that_decompresses() -> None:
    assert conditions.beginning("\U00020000".encode() * 121) == "\U00020000" * 120
    assert (conditions.beginning(None), conditions.beginning(b"a\xff\n")) == ("", "a\ufffd\\x0a")
