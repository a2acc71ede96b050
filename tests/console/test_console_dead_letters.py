# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Dead letters: list, resend by a client or to the retry topic, export, and what a spreadsheet gets."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.admin.dead_letters import DeadLetterPage
from saturnmq.console import dead_letters
from saturnmq.console.dead_letters import cell
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.message import Host
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


@pytest.mark.parametrize(
    ("query", "total", "skipped", "text"),
    [
        ("", 0, 0, "Page 1 of 1, 0 in all"), ("?page=0", 50, 0, "Page 1 of 1, 50 in all"),
        ("?page=2", 51, 50, "Page 2 of 2, 51 in all"),
        ("?page=99999999", 101, 99_999_998 * 50, "Page 99999999 of 3, 101 in all"), ("?page=100000000", 1, 0, "Page 1 of 1"),
        ("?page=-1", 1, 0, "Page 1 of 1"),
    ],
)  # fmt: skip
async def test_dead_letters_are_asked_for_by_page(
    console: Open, monkeypatch: pytest.MonkeyPatch, query: str, total: int, skipped: int, text: str
) -> None:
    asked: list[dict[str, int]] = []

    async def listing(group: str, **bounds: int) -> DeadLetterPage:
        asked.append(bounds)
        return DeadLetterPage([], total, {})

    async with console("127.0.0.1:1") as one:
        await one.log_in()
        monkeypatch.setattr(one.services.admin.dead_letters, "listing", listing)
        page = (await one.browser.get(f"/dead-letters/billing{query}")).text
    assert asked == [{"skipped": skipped, "count": 50}]
    assert total == 0 or text in page


async def test_page_says_what_became_of_each_letter(console: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at(group: str, broker: str, queue: int, offset: int) -> Any:
        if broker == "silent":
            await asyncio.Event().wait()
        if broker == "refuses":
            raise SaturnError("no such offset")
        return SimpleNamespace(message_id="" if broker == "sent" else f"id-{broker}")

    async def resend(group: str, message: Any) -> Any:
        return {
            "": SimpleNamespace(client_id="", result="%RETRY%g", done=False), "id-nothing": None,
            "id-failed": SimpleNamespace(client_id="c<", result="CR_LATER", done=False),
        }.get(message.message_id)  # fmt: skip

    async with console("127.0.0.1:1") as one:
        await one.log_in()
        letters = one.services.admin.dead_letters
        monkeypatch.setattr(letters, "at", at)
        monkeypatch.setattr(letters, "resend", resend)
        form = {"csrf": await one.csrf_of("/dead-letters"), "group": "g"}
        form["at"] = [f"{name}/1/2" for name in ("sent", "nothing", "failed", "refuses", "silent")]
        page = (await one.browser.post("/do/dead-letters/resend", data=form)).text
    assert re.findall(r"<tr(.*?)><td>(.*?)</td><td>(.*?)</td>", page) == [
        ("", "sent 1 2", "sent to %RETRY%g"), ("", "id-nothing", "sent to "),
        (' class="bad"', "id-failed", "consumed by c&lt;: CR_LATER"), (' class="bad"', "refuses 1 2", "no such offset"),
        (' class="bad"', "silent 1 2", "not tried within 20 s"),
    ]  # fmt: skip


def letter(body: bytes = b"b", born_ms: int = 0) -> Any:
    record = SimpleNamespace(
        topic="t", born_host=Host("10.0.0.1", 7), born_timestamp_ms=born_ms, reconsume_times=16, body_crc=9,
        body=body, store_timestamp_ms=1_700_000_000_123, properties={"k": "\u00e9"},
    )  # fmt: skip
    return SimpleNamespace(record=record, body=body, message_id="ID")


class Letters:
    """Dead letters of any group, as many as asked for."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def all_of(self, group: str) -> AsyncIterator[Any]:
        for number in range(self.count):
            yield letter(f"{number:05}".encode())


def test_export_has_these_facts_of_a_letter() -> None:
    row = ["t", "ID", "10.0.0.1:7", "0", "2023-11-14T22:13:20.123+00:00", 16]
    assert list(dead_letters.facts(letter()).items()) == list(
        zip(dead_letters.COLUMNS, [*row, {"k": "\u00e9"}, "b", "text", 9], strict=True)
    )
    assert dead_letters._csv_line(letter(b"\xff", 1)) == (
        't,ID,10.0.0.1:7,1970-01-01T00:00:00.001+00:00,2023-11-14T22:13:20.123+00:00,16,"{""k"": ""\u00e9""}",/w==,base64,9\r\n'
    )
    assert [dead_letters._iso(ms) for ms in (-1, 253_402_300_799_000, 253_402_300_800_000)] == [
        "-1", "9999-12-31T23:59:59.000+00:00", "253402300800000",
    ]  # fmt: skip


async def test_export_ends_at_a_number_of_letters_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    page: Any = SimpleNamespace(services=SimpleNamespace(admin=SimpleNamespace(dead_letters=Letters(7))))

    async def bodies() -> tuple[list[Any], list[str]]:
        texts = [text async for text in dead_letters._lines(page, "g", "head|", lambda each: each.body.decode() + "|")]
        return [row async for row in dead_letters._rows(page, "g")], "".join(texts).split("|")

    def cut(rows: list[Any]) -> list[Any]:
        return [row[7] for row in rows[1:]]

    rows, texts = await bodies()
    assert rows[0] == list(dead_letters.COLUMNS) and rows[1][5:10] == [16, '{"k": "\u00e9"}', "00000", "text", 9]
    assert texts == ["head", *cut(rows), ""] and len(rows) == 8
    monkeypatch.setattr(dead_letters, "EXPORT_MAX", 3)
    rows, texts = await bodies()
    assert (len(rows), len(texts)) == (4, 5)
    row_size, text_size = sum(len(value) for value in rows[1] if isinstance(value, str)), 6
    for bytes_max, row_count, text_count in (
        (text_size, 1, 2),
        (text_size - 1, 1, 1),
        (row_size, 2, 3),
        (row_size - 1, 1, 3),
    ):
        monkeypatch.setattr(dead_letters, "EXPORT_BYTES_MAX", bytes_max)
        rows, texts = await bodies()
        assert (len(rows) - 1, len(texts) - 2) == (row_count, text_count), bytes_max


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a/b/1/2", ("a/b", 1, 2)), (f"a/999999/{10**18 - 1}", ("a", 999_999, 10**18 - 1)), ("a/1000000/2", None),
        (f"a/1/{10**18}", None), ("a/-1/2", None), ("a/1/x", None), ("1/2", None),
    ],
)  # fmt: skip
def test_position_of_a_letter_is_broker_queue_and_offset(text: str, position: tuple[str, int, int] | None) -> None:
    if position is None:
        with pytest.raises(ConfigError, match="must be broker/queue/offset"):
            dead_letters._parsed_position(text)
    else:
        assert dead_letters._parsed_position(text) == position
