# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Messages and offsets in the console: search, body by type, test message, reset with its preview."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.console.actions import moment
from saturnmq.console.bodies import TEXT_MAX, body_of
from saturnmq.protocol.errors import ConfigError
from saturnmq.testing import EmbeddedBroker, TravelClock
from waiting import POLL_SECONDS

Open = Callable[..., Any]


@pytest.mark.spec("CON-09")
async def test_message_is_sent_found_by_key_and_shown(console: Open) -> None:
    async with EmbeddedBroker() as server:
        async with console(name_server(server)) as one:
            await one.log_in()
            await one.services.state.refresh()
            form = {
                "csrf": await one.csrf(),
                "topic": "orders",
                "tag": "paid",
                "keys": "k-1",
                "body": '{"a": "<b>"}',
                "properties": "level = gold\n",
                "level": "0",
            }
            answer = await one.browser.post("/do/message", data=form)
            assert answer.status_code == 303
            location = answer.headers["location"]
            later = re.sub(r"offset=\d+", "offset=99", location)
            assert later != location and (await one.browser.get(later)).status_code == 404
            shown = (await one.browser.get(location)).text
            assert "&#34;a&#34;: &#34;&lt;b&gt;&#34;" in shown and "12 bytes, JSON" in shown and "k-1" in shown
            async with asyncio.timeout(30):
                found = (await one.browser.get("/messages?topic=orders&key=k-1")).text
                while "No message was found." in found:  # the index follows the log
                    await asyncio.sleep(POLL_SECONDS)  # poll
                    found = (await one.browser.get("/messages?topic=orders&key=k-1")).text
            assert re.search(r"<td>paid</td><td>k-1</td>", found), found
            path = re.search(r'href="(/messages/orders/[^"]+)"', found)
            assert path is not None
            opened = html.unescape(path[1])
            assert "&#34;&lt;b&gt;&#34;" in (await one.browser.get(opened)).text
            assert "No message was found." in (await one.browser.get("/messages?topic=orders&key=other")).text
            base, _, where = opened.partition("?")
            raw = await one.browser.get(f"{base}/download?{where}&form=body")
            assert raw.content == b'{"a": "<b>"}' and "attachment" in raw.headers["content-disposition"]
            whole = (await one.browser.get(f"{base}/download?{where}")).json()
            assert whole["keys"] == "k-1" and whole["properties"]["level"] == "gold"
            shown = (await one.browser.get(f"{base}?{where}&form=hex")).text
            assert "7b 22 61 22" in shown and "binary" in shown
            bad = form | {"properties": "no value"}
            assert (await one.browser.post("/do/message", data=bad)).status_code == 400
            missing = await one.browser.get("/messages?topic=orders&id=" + "0" * 32)
            assert missing.headers["location"] == "/messages/orders/" + "0" * 32
            assert (await one.browser.get(missing.headers["location"])).status_code == 404
            assert (await one.browser.post("/do/message", data=form | {"topic": "a b"})).status_code == 400


async def test_messages_of_a_key_are_listed_newest_first(console: Open) -> None:
    clock = TravelClock()
    async with EmbeddedBroker(clock_ms=clock.now_ms) as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            for tag in ("oldest", "older", "newest"):
                await out.send("orders", b"x", tag=tag, keys=["k"])
                clock.move_to(clock.now_ms() + 60_000)
        async with console(name_server(server)) as one:
            await one.log_in()
            page = ""
            async with asyncio.timeout(30):
                while page.count("<td>k</td>") < 3:  # the index follows the log
                    await asyncio.sleep(POLL_SECONDS)  # poll
                    page = (await one.browser.get("/messages?topic=orders&key=k")).text
            assert re.findall("<td>(oldest|older|newest)</td>", page) == ["newest", "older", "oldest"]


@pytest.mark.spec("CON-06")
async def test_offsets_are_reset_after_a_preview_that_changes_nothing(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send_many("orders", [b"x"] * 10)
        async with client.consumer("billing", start="first") as inbox:
            await inbox.subscribe("orders")
            for _ in range(10):
                await (await inbox.recv(30)).ack()
        async with console(name_server(server)) as one:
            await one.log_in()
            await one.services.state.refresh()
            csrf = await one.csrf()

            async def lag() -> int:
                await one.services.state.refresh()
                view = await one.services.state.view()
                return int(view.survey.groups["DefaultCluster", "billing"].topics["orders"].lag)

            page = (await one.browser.get("/groups/DefaultCluster/billing/reset?topic=orders&to=start")).text
            assert 'name="at broker-a/0" value="0"' in page and "10 again" in page
            assert await lag() == 0
            form = {
                "csrf": csrf,
                "cluster": "DefaultCluster",
                "group": "billing",
                "topic": "orders",
                "to": "start",
            }
            assert (await one.browser.post("/do/group/reset", data=form)).status_code == 303
            assert await lag() == 10
            await one.browser.post("/do/group/reset", data=form | {"to": "end"})
            assert await lag() == 0
            assert (await one.browser.post("/do/group/reset", data=form | {"to": "noon"})).status_code == 400


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b'{"b":[1]}', "json", '{\n  "b": [\n    1\n  ]\n}'),
        (b"{not json", "text", "{not json"),
        (b"zeile\nzwei\x1b[31m", "text", "zeile\nzwei\\x1b[31m"),
        (b"\xff\x00A", "hex", "00000000  ff 00 41" + 40 * " " + " ..A"),
        (b"[" * 5000, "text", "[" * 5000),
    ],
)
def test_body_is_shown_by_its_type(data: bytes, form: str, text: str) -> None:
    shown = body_of(data)
    assert (shown.form, shown.text, shown.size, shown.cut) == (form, text, len(data), False)


@pytest.mark.parametrize(
    ("data", "wanted", "form", "cut", "length"),
    [
        (b"x" * 65_536, "", "text", False, 65_536),
        (b"x" * 65_537, "", "text", True, 65_536),
        (b"[" + b" " * 65_534 + b"]", "", "json", False, 2),
        (b"[" + b" " * 65_535 + b"]", "", "text", True, 65_536),
        (b'{"a":1}', "text", "text", False, 7),
        (b"\xffabc", "text", "text", False, 4),
        (b"abc", "hex", "hex", False, 62),
        (b"\xff" * 16_384, "", "hex", False, 1024 * 76 - 1),
        (b"\xff" * 16_385, "", "hex", True, 1024 * 76 - 1),
        (b"", "", "text", False, 0),
        (b"x" * 70_000 + b"\xff", "", "text", True, 65_536),
        (b"x" * 65_531 + b"\xff" + b"x" * 9, "", "hex", True, 1024 * 76 - 1),
    ],
)
def test_body_is_shown_up_to_64_ki_characters(data: bytes, wanted: str, form: str, cut: bool, length: int) -> None:
    shown = body_of(data, chosen_form=wanted)
    assert (shown.form, shown.cut, len(shown.text), shown.size) == (form, cut, length, len(data))


def test_json_that_grows_much_with_indentation_is_text() -> None:
    deep = b"[" * 500 + b"]" * 500
    assert body_of(deep).form == "text" and body_of(deep).text == deep.decode()
    assert body_of(b"[" * 100 + b"]" * 100).form == "json"


def test_hexadecimal_lines_have_16_bytes_with_their_characters() -> None:
    assert body_of(bytes(range(0x1E, 0x30)), chosen_form="hex").text.splitlines() == [
        "00000000  1e 1f 20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d  .. !\"#$%&'()*+,-",
        "00000010  2e 2f" + 43 * " " + " ./",
    ]
    assert body_of(b"~\x7f\x80", chosen_form="hex").text.endswith(" ~..")


def test_long_body_is_cut_between_characters() -> None:
    shown = body_of(b"x" + "é".encode() * TEXT_MAX)
    assert shown.cut and shown.form == "text" and shown.text.endswith("é")


def test_moments() -> None:
    assert (moment("end"), moment("start"), moment("1970-01-01T00:01")) == (-1, 0, 60_000)
    assert moment("1970-01-01T01:00+01:00") == 0
    with pytest.raises(ConfigError, match="'noon' must be end, start"):
        moment("noon")
