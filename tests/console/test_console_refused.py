"""Wrong input in a form: status 400, and the page of the form again with what was typed and the problem beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browsing import HOST, name_server

from saturnmq.console.context import environment_of
from saturnmq.console.forms import Form, RefusedForm, form_of
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
MARKS = 'aria-invalid="true" aria-describedby="problem" autofocus=""'
PROBLEM = '<span class="bad problem" id="problem" role="alert">must be &lt;1&gt;</span>'
WHOLE = '<p class="bad wide" id="problem" role="alert" tabindex="-1" autofocus>must be &lt;1&gt;</p>'
FIELDS = (
    '{{ m.input(f, "X", "x", 1, maxlength=9) }}{{ m.box(f, "On", "on", "1", true) }}{{ m.box(f, "Off", "off", "1") }}'
    '{{ m.secret(f, "S", "secret") }}{{ m.area(f, "T", "t", "old") }}{{ m.select(f, "S", "s", {"1": "one", "2": "two"}, 1) }}'
)
SENT = [("id", "2"), ("x", '"<'), ("off", "1"), ("t", "new</textarea>"), ("s", "2"), ("secret", "key")]


def drawn(form: Form) -> str:
    """The HTML of a form with a field of each kind."""
    text = f'{{% import "forms.html" as m %}}{{% call m.form(f, none) %}}{FIELDS}{{% endcall %}}'
    return environment_of("en").from_string(text).render(f=form)


def test_typed_values_stand_in_the_form_that_was_sent() -> None:
    refused = RefusedForm("/do/%a", SENT, "must be <1>", "")
    form = form_of(refused, "/other", "/do/%25a?q=1", id="2")
    assert form.is_refused
    page = drawn(form)
    assert WHOLE in page and '<input type="hidden" name="id" value="2">' in page
    assert '<input name="x" value="&#34;&lt;" maxlength="9">' in page
    assert 'name="on" value="1"> On' in page and 'name="off" value="1" checked> Off' in page
    assert "new&lt;/textarea&gt;</textarea>" in page and ">old" not in page and "key" not in page
    assert '<option value="1">one</option><option value="2" selected>two</option>' in page
    for other in (form_of(refused, "/do/%25a", id="1"), form_of(refused, "/do"), form_of(None, "/do/%25a")):
        page = drawn(other)
        assert not other.is_refused and "problem" not in page and 'value="1" maxlength="9"' in page
        assert (
            '<option value="1" selected>' in page and 'name="on" value="1" checked' in page and "old</textarea>" in page
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x", f'<div class="field"><label>X <input name="x" value="&#34;&lt;" maxlength="9" {MARKS}></label>{PROBLEM}</div>'),
        ("off", f'<label><input type="checkbox" name="off" value="1" checked {MARKS}> Off</label>{PROBLEM}</div>'),
        ("t", f'<textarea name="t" {MARKS}>\nnew&lt;/textarea&gt;</textarea></label>{PROBLEM}</div>'),
        ("secret", f'<input name="secret" type="password" {MARKS}></label>{PROBLEM}</div>'),
        ("s", f'<select name="s" {MARKS}>'),
        ("id", WHOLE),
    ],
)  # fmt: skip
def test_problem_stands_beside_its_field_once(name: str, expected: str) -> None:
    page = drawn(form_of(RefusedForm("/do", SENT, "must be <1>", name), "/do", id="2"))
    assert expected in page and page.count('id="problem"') == 1, page


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
        answer = await one.browser.post("/do/topic", data=form | {"shown_on": "/topics?q=abc"})
        assert answer.status_code == 400
        shown = re.search(r"<details open>.*?</details>", answer.text, re.S)
        assert shown is not None and 'role="alert">read &#39;x&lt;&#39; must be a whole number' in shown[0]
        assert 'value="x&lt;"' in shown[0] and '<option value="4" selected>' in shown[0]
        assert 'value="abc"' in answer.text and form["csrf"] in shown[0]
        shown_on = re.search(r'name="shown_on" value="([^"]+)"', shown[0])
        assert shown_on is not None and shown_on[1] == "/topics?q=abc"
        again = form | {"read": "y", "shown_on": shown_on[1]}
        answer = await one.browser.post("/do/topic", data=again)
        assert answer.status_code == 400 and "<details open>" in answer.text and 'value="y"' in answer.text
        for other in (
            "//elsewhere/topics",
            "@elsewhere/topics",
            "x",
            "/static/console.js",
            "/health",
            "/login",
            "/topics/../x",
            "",
            f"{HOST}/topics",
            "/nothing",
            "/do/topic",
            "/brokers",
            "http://[",
        ):
            answer = await one.browser.post("/do/topic", data=form | {"shown_on": other})
            assert answer.status_code == 400 and "<details" not in answer.text, other
            assert 'role="alert">read &#39;x&lt;&#39; must be' in answer.text, other
        reset = "/groups/DefaultCluster/billing/reset"  # the page itself is refused, with and without its query
        answer = await one.browser.get(f"{reset}?to=noon")
        assert answer.status_code == 400 and answer.text.count('role="alert">time') == 1
        search = {"csrf": form["csrf"], "topic": "orders", "json": "a[", "from": "2h"}
        answer = await one.browser.post("/do/tail", data=search | {"shown_on": "/search"})
        assert answer.status_code == 400 and 'value="a["' in answer.text and "JSON path" in answer.text
        answer = await one.browser.get("/traces?topic=a%20b&q=1")
        assert answer.status_code == 400 and 'role="alert"' in answer.text and 'value="a b"' in answer.text
        body = {"csrf": form["csrf"], "topic": "nowhere", "body": "x", "level": "19"}
        answer = await one.browser.post("/do/message", data=body | {"shown_on": "/messages"})
        assert answer.status_code == 400 and "level" in answer.text
        log = (one.folder / "audit.log").read_text()
        assert "action=topic" in log and "must be a whole number" in log


@pytest.mark.spec("UX-13")
async def test_server_that_does_not_answer_a_change_is_502(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        form = {"cluster": "DefaultCluster", "name": "new", "read": "3", "write": "3", "perm": "4"}
        form["csrf"] = await one.csrf()
        answer = await one.browser.post("/do/topic", data=form)
        assert answer.status_code == 502 and "It failed" in answer.text
