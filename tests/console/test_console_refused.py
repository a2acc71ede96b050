"""Wrong input in a form: status 400, and the page of the form again with what was typed and the problem beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browsing import HOST, name_server

from saturnmq.console.refused import with_problem
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
PAGE = (
    '<!doctype html><p>&lt;b&gt;</p><form action="/a"><input name="x" value="1"></form>'
    '<details><summary>&amp;</summary><form action="/do"><input type="hidden" name="id" value="1"><input name="x"></form></details>'
    '<details><form action="/do?q=1"><input type="hidden" name="id" value="2"><input name="x" value="1" maxlength="9">'
    '<input type="checkbox" name="on" value="1" checked><input type="checkbox" name="off" value="1">'
    '<input type="password" name="secret"><textarea name="t">old</textarea>'
    '<select name="s"><option value="1" selected>one</option><option value="2">two</option></select>'
    '<button formaction="/other">o</button></form></details>'
)


def test_values_and_problem_stand_in_the_form_that_was_sent() -> None:
    given = [("id", "2"), ("x", '"<'), ("off", "1"), ("t", "new</textarea>"), ("s", "2"), ("secret", "key")]
    for path in ("/do", "/other"):
        page = with_problem(PAGE, "/own", path, given, "must be <1>")
        assert page is not None
        before, _, form = page.partition('<details open><form action="/do?q=1">')
        assert before == PAGE.partition('<details><form action="/do?q=1">')[0]
        assert form.startswith(
            '<p class="bad wide" id="problem" role="alert" tabindex="-1" autofocus>must be &lt;1&gt;</p>'
            '<input type="hidden" name="shown_on"'
        )
        assert '<input name="x" value="&quot;&lt;" maxlength="9">' in form
        assert '<input type="checkbox" name="on" value="1"><input type="checkbox" name="off" value="1" checked>' in form
        assert "new&lt;/textarea&gt;</textarea>" in form and ">old" not in form
        assert '<option value="1">one</option><option value="2" selected>two</option>' in form
        assert "key" not in form
    encoded = with_problem('<form action="/g/%25a/x">', "/own", "/g/%a/x", [], "p")
    assert encoded is not None and "alert" in encoded
    assert with_problem(PAGE, "/own", "/do/nothing", given, "p") is None


def test_problem_follows_its_field_or_the_label_around_it() -> None:
    marks = 'aria-invalid="true" aria-describedby="problem" autofocus'
    problem = '<span class="bad problem" id="problem" role="alert">bad</span>'
    fields = {
        '<input name="x">': f'<input {marks} name="x">{problem}',
        '<textarea name="x"></textarea>': f'<textarea {marks} name="x"></textarea>{problem}',
        '<label>X <input name="x"></label>': f'<div class="field"><label>X <input {marks} name="x"></label>{problem}</div>',
        '<label>X <select name="x"><option>1</option></select></label>': (
            f'<div class="field"><label>X <select {marks} name="x"><option>1</option></select></label>{problem}</div>'
        ),
    }
    for field, expected in fields.items():
        page = with_problem(f'<form action="/do"><input name="y">{field}</form>', "/own", "/do", [], "bad", "x")
        assert page is not None and page.endswith(f'<input name="y">{expected}</form>'), page
    page = with_problem('<form action="/do"><input name="y"></form>', "/own", "/do", [], "bad", "x")
    assert page is not None and page.startswith('<form action="/do"><p class="bad wide" id="problem"'), page


@pytest.mark.spec("UX-13")
async def test_wrong_input_is_400_beside_its_form(console: Open) -> None:
    async with EmbeddedBroker() as server, console(name_server(server)) as one:
        await one.log_in()
        await one.services.state.refresh()
        form = {
            "csrf": await one.csrf(),
            "cluster": "DefaultCluster",
            "name": "new",
            "read": "x<",
            "write": "3",
            "perm": "4",
        }
        answer = await one.browser.post("/do/topic", data=form, headers={"referer": f"{HOST}/topics?q=abc"})
        assert answer.status_code == 400
        shown = re.search(r"<details open>.*?</details>", answer.text, re.S)
        assert shown is not None and 'role="alert">read &#x27;x&lt;&#x27; must be a whole number' in shown[0]
        assert 'value="x&lt;"' in shown[0] and '<option value="4" selected>' in shown[0]
        assert 'value="abc"' in answer.text and form["csrf"] in shown[0]
        shown_on = re.search(r'name="shown_on" value="([^"]+)"', shown[0])
        assert shown_on is not None and shown_on[1] == "/topics?q=abc"
        again = form | {"read": "y", "shown_on": shown_on[1]}
        answer = await one.browser.post("/do/topic", data=again, headers={"referer": f"{HOST}/do/topic"})
        assert answer.status_code == 400 and "<details open>" in answer.text and 'value="y"' in answer.text
        for other in (
            "//elsewhere/topics",
            "@elsewhere/topics",
            "x",
            "/static/console.js",
            "/health",
            "/login",
            "/topics/../x",
        ):
            answer = await one.browser.post("/do/topic", data=form | {"shown_on": other})
            assert answer.status_code == 400 and "<details" not in answer.text, other
        reset = "/groups/DefaultCluster/billing/reset"  # the page itself is refused, with and without its query
        answer = await one.browser.get(f"{reset}?to=noon", headers={"referer": f"{HOST}{reset}?to=noon"})
        assert answer.status_code == 400 and answer.text.count('role="alert">time') == 1
        search = {"csrf": form["csrf"], "topic": "orders", "json": "a[", "from": "2h"}
        answer = await one.browser.post("/do/tail", data=search, headers={"referer": f"{HOST}/search"})
        assert answer.status_code == 400 and 'value="a["' in answer.text and "JSON path" in answer.text
        answer = await one.browser.get("/traces?topic=a%20b&q=1", headers={"referer": f"{HOST}/traces?topic=a%20b"})
        assert answer.status_code == 400 and 'role="alert"' in answer.text and 'value="a b"' in answer.text
        for referer in (
            "",
            "http://elsewhere/topics",
            f"{HOST}/nothing",
            f"{HOST}/do/topic",
            f"{HOST}/brokers",
            "http://[",
        ):
            answer = await one.browser.post("/do/topic", data=form, headers={"referer": referer})
            assert answer.status_code == 400 and 'role="alert">read &#39;x&lt;&#39; must be' in answer.text, referer
        body = {"csrf": form["csrf"], "topic": "nowhere", "body": "x", "level": "19"}
        answer = await one.browser.post("/do/message", data=body, headers={"referer": f"{HOST}/messages"})
        assert answer.status_code == 400 and "level" in answer.text
        log = (one.folder / "audit.log").read_text()
        assert "action=topic" in log and "must be a whole number" in log


@pytest.mark.spec("UX-13")
async def test_server_that_does_not_answer_a_change_is_502(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        form = {"cluster": "DefaultCluster", "name": "new", "read": "3", "write": "3", "perm": "4"}
        form["csrf"] = await one.csrf()
        answer = await one.browser.post("/do/topic", data=form, headers={"referer": f"{HOST}/topics"})
        assert answer.status_code == 502 and "It failed" in answer.text
