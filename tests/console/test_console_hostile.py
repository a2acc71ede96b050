"""Hostile browsers and messages: encodings of forms, many logins at once, connections without requests, audit lines, JSON."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import Survey, Surveyor
from saturnmq.console.alarms import Alarms
from saturnmq.console.bodies import TEXT_MAX, body_of
from saturnmq.console.charts import line_chart, short, size, with_commas
from saturnmq.console.pages import AUDIT_BYTES_MAX, _last_lines
from saturnmq.console.serving import Server, _Connection
from saturnmq.console.state import ClusterState, View
from saturnmq.console.users import ATTEMPTS_MAX
from saturnmq.history.collector import samples_of
from saturnmq.protocol.errors import ConfigError

Open = Callable[..., Any]
NOWHERE = "127.0.0.1:1"


async def test_forms_are_url_encoded_and_short_before_a_login(console: Open) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="user"\r\n\r\n-bcbcbc\r\n--x--\r\n'
    async with console(NOWHERE) as one:
        for kind in ("multipart/form-data; boundary=x; charset=punycode", "text/plain", None):
            headers = {} if kind is None else {"content-type": kind}
            answer = await one.browser.post("/login", content=part, headers=headers)
            assert answer.status_code == 415, kind
        for path in ("/login", "/language"):
            assert (await one.browser.post(path, data={"user": "x" * 20_000})).status_code == 413, path
        assert (await one.browser.post("/do/logout", data={"csrf": "x" * 20_000})).status_code == 303
        answer = await one.browser.post("/login", data={}, headers={"origin": "http://["})
        assert answer.status_code == 403


async def test_logins_at_the_same_time_pass_the_lock_no_more_often(console: Open) -> None:
    async with console(NOWHERE) as one:
        answers = await asyncio.gather(*(one.log_in("admin", f"wrong {number}") for number in range(15)))
        assert sum(answer.status_code == 401 for answer in answers) == ATTEMPTS_MAX


@pytest.mark.realtime
async def test_connections_without_a_whole_request_are_closed() -> None:
    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", answer)])
    server = Server(app, "127.0.0.1", 0, request_seconds=0.2)
    address = asyncio.get_running_loop().create_future()
    idle = asyncio.Event()
    serving = asyncio.ensure_future(server.run(address.set_result, idle.wait()))
    host, _, port = (await address).rpartition(":")
    for begin in (b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(begin)
        with pytest.raises((EOFError, ConnectionError)):
            while await reader.readexactly(1):  # until the server closes it
                pass
        writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    idle.set()
    await serving


def test_response_has_as_long_as_its_request_once() -> None:
    class Timers:
        """A loop of which only timers are used, and a transport."""

        def __init__(self) -> None:
            self.delays: list[float] = []
            self.aborted = False

        def call_later(self, seconds: float, callback: Any) -> Any:
            self.delays.append(seconds)
            return SimpleNamespace(cancel=lambda: None)

        def abort(self) -> None:
            self.aborted = True

    def late(*cycles: Any) -> tuple[list[float], bool]:
        connection, timers = object.__new__(_Connection), Timers()
        connection.loop, connection.transport = cast(Any, timers), cast(Any, timers)
        for cycle in cycles:
            connection.cycle = cycle
            connection._on_deadline()
        return timers.delays, timers.aborted

    answering, next_one = (SimpleNamespace(response_complete=False, more_body=False) for _ in range(2))
    assert late(answering) == ([30.0], False) and late(answering, next_one) == ([30.0, 30.0], False)
    assert late(answering, answering) == ([30.0], True), "a response has as long again, once"
    for cycle in (
        None,
        SimpleNamespace(response_complete=True, more_body=False),
        SimpleNamespace(response_complete=False, more_body=True),
    ):
        assert late(cycle) == ([], True), "no whole request has come"


async def test_failure_of_the_background_ends_the_server_and_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("a defect")

    started: list[str] = []
    with pytest.raises(ValueError, match="a defect"):
        await Server(Starlette(), "127.0.0.1", 0).run(started.append, fails())
    (address,) = started
    host, _, port = address.rpartition(":")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(port))
    with pytest.raises(ConfigError, match=r"the console cannot listen on 192\.0\.2\.1:1: .*; --port chooses another"):
        Server(Starlette(), "192.0.2.1", 1)


def test_part_of_a_line_is_not_shown_as_a_line_of_the_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text("x" * AUDIT_BYTES_MAX + " user=admin result=200\nuser=viewer\n")
    assert _last_lines(path) == ["user=viewer"]
    path.write_text("user=viewer\n")
    assert _last_lines(path) == ["user=viewer"]


async def test_a_survey_that_fails_is_a_problem_and_not_the_last_one() -> None:
    class Broken:
        async def survey(self) -> Any:
            raise TypeError("a defect")

    state = ClusterState(cast(Surveyor, Broken()))
    await state.refresh()
    assert "failed" in state.problem


def test_deeply_nested_json_is_shown_as_it_is() -> None:
    hostile = b"[" * 450 + b"1," * 30_000 + b"1" + b"]" * 450
    body = body_of(hostile)
    assert body.form == "text" and len(body.text) <= TEXT_MAX


async def test_requests_write_no_lines_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The audit log has the changes; a line for each page that is viewed, or that a client asks for, would fill the disk."""
    caplog.set_level("DEBUG")
    server = Server(Starlette(), "127.0.0.1", 0)
    address, idle = asyncio.get_running_loop().create_future(), asyncio.Event()
    serving = asyncio.ensure_future(server.run(address.set_result, idle.wait()))
    host, _, port = (await address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /secret HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 404")
    writer.close()
    idle.set()
    await serving
    assert "/secret" not in caplog.text


@pytest.mark.realtime
async def test_an_address_leaves_half_of_the_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.net.shares.is_local", lambda host: False)
    monkeypatch.setattr("saturnmq.console.serving.CONNECTIONS_MAX", 4)
    server = Server(Starlette(), "127.0.0.1", 0)
    address = asyncio.get_running_loop().create_future()
    idle = asyncio.Event()
    serving = asyncio.ensure_future(server.run(address.set_result, idle.wait()))
    host, _, port = (await address).rpartition(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    for reader, writer in held:
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    reader, writer = await asyncio.open_connection(host, int(port))
    with pytest.raises((EOFError, ConnectionError)):
        await reader.readexactly(1)
    writer.close()
    for _, one in held:
        one.close()
        await one.wait_closed()
    reader, writer = await asyncio.open_connection(host, int(port))
    while True:  # the server may not have seen the end of the others yet
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            if line := await reader.readline():
                break
        writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
    assert line.startswith(b"HTTP/1.1 404"), "connections that have ended do not count"
    writer.close()
    idle.set()
    await serving


ABSURD = ("inf", "-inf", "nan", "1e400", "1e308", "-5", "9" * 400, "x", "")


@pytest.mark.spec("CON-02", "CON-04")
async def test_absurd_statistics_of_brokers_are_shown_as_dashes(console: Open) -> None:
    keys = ("commitLogDiskRatio", "putTps", "getTransferedTps", "msgPutTotalTodayNow", "commitLogMaxOffset")
    states = [
        BrokerState("C", f"b{number}", role, f"127.0.0.1:{9000 + 2 * number + role}", dict.fromkeys(keys, text))
        for number, text in enumerate(ABSURD)
        for role in (0, 1)
    ]
    survey = Survey(states, {}, {}, {})
    async with console(NOWHERE) as one:
        await one.log_in()
        one.services.state._view = View(survey, 1000.0)
        now = int(time.time())
        for minute in range(3):
            one.services.history.record(now - 600 + minute * 60, samples_of(survey))
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", (await one.browser.get("/brokers")).text, re.S)[1:]
        cells = [re.findall(r'<td class="n">(.*?)</td>', row)[:3] for row in rows]
        assert cells == [["\u2013"] * 3] * len(states)
        for path in ("/", "/graph", "/alarms", "/ledger", *(f"/brokers/{state.address}" for state in states[:2])):
            page = await one.browser.get(path)
            assert page.status_code == 200, path
            drawn = "".join(re.findall(r"<svg.*?</svg>", page.text, re.S))
            assert not re.search(r"\b(inf|nan)\b|\d{30}", drawn), path
        alarms = Alarms()
        alarms.look(survey, {})
        assert not alarms.active


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e308, -5.0, 10**400])
def test_chart_has_a_gap_and_a_dash_for_an_absurd_number(value: float) -> None:
    """Its line had "nan" for every point if one was infinite; a whole number beyond a float was an error of the page."""
    for unit, last in (("B", "10 B"), ("/s", "10 /s")):
        drawn = line_chart("rate", [(0, 5.0), (60, 10.0), (120, value), (180, 5.0), (240, 10.0)], unit)
        ElementTree.fromstring(drawn)
        path = re.search(r' d="([^"]*)"', drawn)
        assert path is not None
        assert re.sub(r"[\d. ]+", " ", path[1]) == "M L M L " and f">{last}<" in drawn
        drawn = line_chart("rate", [(0, value), (60, value)], unit)
        ElementTree.fromstring(drawn)
        assert 'd=""' in drawn and drawn.count(">\u2013<") == 1
    assert {short(value), size(value), with_commas(value, 2)} == {"\u2013"}
