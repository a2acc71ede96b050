# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Dead letters: list, resend by a client or to the retry topic, export, and what a spreadsheet gets."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.console.dead_letters import cell
from saturnmq.testing import EmbeddedBroker
from waiting import POLL_SECONDS

Open = Callable[..., Any]
BODIES = (b"first", b'=HYPERLINK("http://x")', b"\xff\x00")


async def dead(client: Client, bodies: tuple[bytes, ...] = BODIES) -> None:
    """Make dead letters of the group billing in topic orders."""
    async with client.producer("p") as out, client.consumer("billing", start="first") as inbox:
        await inbox.subscribe("orders")
        for number, body in enumerate(bodies):
            await out.send("orders", body, keys=[f"k-{number}"], properties={"who": "<b>\u202e"})
            await (await inbox.recv(30)).reject()


async def listed(one: Any, count: int) -> str:
    """The page of the group once it has `count` messages."""
    async with asyncio.timeout(30):
        while f"{count} in all" not in (page := (await one.browser.get("/dead-letters/billing")).text):
            await asyncio.sleep(POLL_SECONDS)  # poll
    return page


@pytest.mark.spec("CON-11", "OPS-14")
async def test_dead_letters_are_listed_resent_to_the_retry_topic_and_exported(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with console(name_server(server)) as one:
            await one.log_in()
            empty = await one.browser.get("/dead-letters/unknown")
            assert empty.status_code == 200 and "This group has no dead letters" in empty.text
            await dead(client)
            page = await listed(one, 3)
            await one.services.state.refresh()
            assert 'href="/dead-letters/billing">billing</a>' in (await one.browser.get("/dead-letters")).text
            assert "orders" in page and "k-2" in page
            places = re.findall(r'name="at" value="([^"]+)"', page)
            form = {"csrf": await one.csrf(), "group": "billing", "at": places[:2]}
            done = await one.browser.post("/do/dead-letters/resend", data=form)
            assert done.status_code == 200 and done.text.count("sent to %RETRY%billing") == 2, done.text
            async with client.consumer("billing") as inbox:
                await inbox.subscribe("orders")
                again = [await inbox.recv(30) for _ in range(2)]
                assert {message.body for message in again} == set(BODIES[1:]) and again[0].topic == "orders"
                for message in again:
                    await message.ack()
            log = (one.folder / "audit.log").read_text()
            assert "action=resend" in log and all(place in log for place in places[:2])
            assert (await one.browser.post("/do/dead-letters/resend", data=form | {"at": "x"})).status_code == 400
            await check_exports(one)


async def check_exports(one: Any) -> None:
    answer = await one.browser.get("/dead-letters/billing/export/csv")
    assert answer.headers["content-disposition"].endswith("dead-letters-billing.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["body"] for row in rows] == ["first", "'" + BODIES[1].decode(), "/wA="]
    assert "\u202e" not in answer.text and rows[2]["encoding"] == "base64"
    lines = [
        json.loads(line) for line in (await one.browser.get("/dead-letters/billing/export/jsonl")).text.splitlines()
    ]
    assert [line["body"] for line in lines] == ["first", BODIES[1].decode(), "/wA="]
    assert lines[0]["properties"]["who"] == "<b>\u202e" and lines[0]["topic"] == "%DLQ%billing"
    assert {"msgId", "bornHost", "bornTime", "storeTime", "reconsumeTimes", "bodyCRC"} <= lines[0].keys()
    book = await one.browser.get("/dead-letters/billing/export/xlsx")
    with zipfile.ZipFile(io.BytesIO(book.content)) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    assert sheet.count("<row>") == 4 and ">msgId<" in sheet and "/wA=" in sheet
    assert "action=export" in (one.folder / "audit.log").read_text()
    assert (await one.browser.get("/dead-letters/billing/export/xls")).status_code == 404


@pytest.mark.spec("CON-11")
async def test_connected_client_consumes_the_original_of_a_dead_letter(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await dead(client, (b"first",))
        async with console(name_server(server)) as one:
            await one.log_in()
            places = re.findall(r'name="at" value="([^"]+)"', await listed(one, 1))
            async with client.consumer("billing") as inbox:
                await inbox.subscribe("orders")
                form = {"csrf": await one.csrf(), "group": "billing", "at": places}
                resent = asyncio.ensure_future(one.browser.post("/do/dead-letters/resend", data=form))
                message = await inbox.recv(30)
                assert (message.record.topic, message.body) == ("orders", b"first")
                await message.ack()
                assert "CR_SUCCESS" in (await resent).text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("=1+1", "'=1+1"), (" @x", "' @x"), ("-2", "'-2"), ("a=b", "a=b"), ("a\nb\u202e", "a\\x0ab\\u202e"), ("", "")],
)
def test_cells_of_a_spreadsheet_are_no_formulas(text: str, shown: str) -> None:
    assert cell(text) == shown
