# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Traces as a time line, half messages without a decision, delayed messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.admin.traces import MISSING, Gap, graphs
from saturnmq.client.trace.records import EndTransaction, MessageType, Pub, SubAfter, SubBefore, TraceRecord
from saturnmq.console.context import Page
from saturnmq.console.traces import Bar, bars, time_line
from saturnmq.testing import EmbeddedBroker
from waiting import POLL_SECONDS

Open = Callable[..., Any]
HOSTILE = "<b>\u202e"
SENT = Pub(1000, "r", "p", "orders", "ID", None, "k-1", "h:1", 3, 20, MessageType.NORMAL, None, True)
BEFORE = SubBefore(1100, "r", "g", "R1", "ID", 0, "k-1")
AFTER = SubAfter("R1", "ID", 30, True, "k-1", timestamp_ms=1130, group="g")


@pytest.mark.spec("CON-10")
def test_deliveries_are_paired_by_request_and_missing_records_are_minus_1() -> None:
    end = EndTransaction(1050, "r", "p", "orders", "ID", None, "k-1", "h:1", MessageType.COMMIT, None, "COMMIT", True)
    alone = SubAfter("R2", "ID", 7, False, None, group="g")
    begun = SubBefore(1200, "r", "g2", "R3", "ID", 2, None)
    other = SubBefore(1200, "r", "g", "R4", "OTHER", 0, None)
    records = [(one, "10.0.0.1") for one in (AFTER, SENT, BEFORE, end, alone, begun, other)]
    (trace,) = graphs("ID", records)
    assert (len(trace.sends), len(trace.transactions), list(trace.groups)) == (1, 1, ["g", "g2"])
    first, second = trace.groups["g"]
    assert (first.begin_ms, first.end_ms, first.cost_ms, first.success) == (1100, 1130, 30, True)
    assert (second.begin_ms, second.end_ms, second.cost_ms, second.retry_times) == (MISSING, MISSING, 7, MISSING)
    (third,) = trace.groups["g2"]
    assert (third.begin_ms, third.end_ms, third.cost_ms, third.success) == (1200, MISSING, MISSING, None)
    assert [one.message_id for one in graphs("k-1", records)] == ["ID"] and graphs("none", records) == []


HALF = replace(SENT, message_type=MessageType.HALF)
END = EndTransaction(
    1050, "r", "p", "orders", "ID", None, None, "h:1", MessageType.COMMIT, None, "COMMIT_MESSAGE", False
)


@pytest.mark.parametrize(
    ("records", "gaps"),
    [
        ([SENT], []),
        ([SENT, BEFORE, AFTER], []),
        ([HALF, END], []),
        ([HALF], [Gap.DECISION]),
        ([END], [Gap.SEND]),
        ([BEFORE, AFTER], [Gap.SEND]),
        ([SENT, BEFORE], [Gap.END]),
        ([SENT, AFTER], [Gap.BEGIN]),
        ([SENT, BEFORE, AFTER, replace(BEFORE, request_id="R2")], [Gap.END]),
        ([AFTER, replace(BEFORE, request_id="R2")], [Gap.SEND, Gap.BEGIN, Gap.END]),
    ],
)
def test_trace_states_which_records_are_missing(records: list[TraceRecord], gaps: list[Gap]) -> None:
    (trace,) = graphs("ID", [(record, "10.0.0.1") for record in records])
    assert trace.gaps == gaps


async def test_page_of_an_incomplete_trace_says_so(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        whole = "".join(record.encode() for record in (SENT, BEFORE, AFTER))
        await out.send("RMQ_SYS_TRACE_TOPIC", whole.encode(), keys=["ID"])
        lost = BEFORE.encode().replace("ID", "LOST")
        await out.send("RMQ_SYS_TRACE_TOPIC", lost.encode(), keys=["LOST"])
        async with console(name_server(server)) as one, asyncio.timeout(30):
            await one.log_in()

            async def page_of(message_id: str) -> str:
                while "<section>" not in (page := (await one.browser.get(f"/traces?q={message_id}")).text):
                    await asyncio.sleep(POLL_SECONDS)  # poll: the index follows the log
                return str(page)

            assert "This trace is incomplete" not in await page_of("ID")
            page = await page_of("LOST")
            assert "This trace is incomplete: no record of the send" in page and "a delivery without an end" in page


def test_steps_of_a_trace_are_bars_of_its_records() -> None:
    class English:
        def gettext(self, text: str) -> str:
            return text

    received = [replace(BEFORE, request_id="R2"), replace(AFTER, request_id="R2", success=False)]
    failed = replace(SENT, success=False)
    records = [(record, "10.0.0.1") for record in (failed, HALF, END, BEFORE, AFTER, *received)]
    (trace,) = graphs("ID", records)
    assert bars(cast(Page, English()), trace) == [
        Bar("sent: p 10.0.0.1", "send", 1000, 1020, True),
        Bar("sent: p 10.0.0.1", "send", 1000, 1020),
        Bar("COMMIT_MESSAGE: p 10.0.0.1", "transaction", 1050, 1050),
        Bar("consumed: g 10.0.0.1", "consume", 1100, 1130),
        Bar("consumed: g 10.0.0.1", "consume", 1100, 1130, True),
    ]


def test_time_line_escapes_labels_and_draws_marks_for_unknown_ends() -> None:
    drawing = str(time_line(HOSTILE, [Bar(HOSTILE, "send", 1000, -1), Bar("b", "consume", -1, 2000, True)]))
    assert "<b>" not in drawing and "\u202e" not in drawing and drawing.count("<rect") == 2
    assert 'class="consume failed"' in drawing and "style" not in drawing and "+1000 ms" in drawing
    assert time_line("none", [Bar("c", "send", -1, -1)]) == ""
    assert str(time_line("1970", [Bar("c", "send", 0, -1)])).count("<rect") == 1


def test_time_line_places_bars_by_their_times() -> None:
    """510 units from x = 300 on stand for the whole time; a bar is 3 units wide at least."""
    begin = 1_700_000_000_000
    bars = [Bar("first", "send", begin, begin + 100), Bar("x" * 45, "consume", begin + 50, begin + 51),
            Bar("y" * 44, "consume", begin + 1000, begin + 1020, True), Bar("unknown", "send", -1, -1)]  # fmt: skip
    drawing = str(time_line("t", bars))
    assert re.findall(r'<rect class="(.*?)" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', drawing) == [
        ("send", "300.0", "9", "50.0", "13"), ("consume", "325.0", "31", "3.0", "13"),
        ("consume failed", "800.0", "53", "10.0", "13"),
    ]  # fmt: skip
    assert re.findall(r'<text x="(.*?)" y="(.*?)"(?: text-anchor="end")?>(.*?)</text>', drawing) == [
        ("292", "20", "first"), ("355.0", "20", "+0 ms, 100 ms"), ("292", "42", "x" * 43 + "…"), ("333.0", "42", "+50 ms, 1 ms"),
        ("292", "64", "y" * 44), ("815.0", "64", "+1000 ms, 20 ms"), ("300", "88", "2023-11-14 22:13:20.000 UTC"),
    ]  # fmt: skip
    assert 'viewBox="0 0 900 94"' in drawing and 'y1="26" x2="900" y2="26"' in drawing
    short = str(time_line("t", [Bar("a", "send", 5, 5), Bar("b", "send", 6, 6)]))
    assert re.findall(r'<rect class="send" x="(.*?)"', short) == ["300.0", "810.0"], "a millisecond is the whole width"
    assert str(time_line("t", [Bar("b", "send", 5, 5)] * 201)).count("<rect") == 200
    last = str(time_line("t", [Bar("b", "send", 253_402_300_799_999, -1)]))
    assert ">9999-12-31 23:59:59." in last
    assert ">253402300800000 UTC<" in time_line("t", [Bar("b", "send", 253_402_300_800_000, -1)]), (
        "a time that no calendar has"
    )


@pytest.mark.spec("CON-10")
async def test_trace_of_a_message_is_drawn_by_id_and_by_key(console: Open) -> None:
    async with EmbeddedBroker() as server:
        async with Client.from_url(server.url, trace=True) as client:
            async with client.producer("orders-p") as out:
                sent = await out.send("orders", b"x", keys=["k-1"])
            async with client.consumer("billing", start="first") as inbox:
                await inbox.subscribe("orders")
                await (await inbox.recv(30)).ack()
        async with console(name_server(server)) as one:
            await one.log_in()
            async with asyncio.timeout(30):
                while "billing" not in (page := (await one.browser.get(f"/traces?q={sent.message_id}")).text):
                    await asyncio.sleep(POLL_SECONDS)  # poll: the index follows the log
            assert page.count("<rect") == 2 and "<td>orders-p</td><td>orders</td>" in page
            by_key = (await one.browser.get("/traces?q=k-1&topic=RMQ_SYS_TRACE_TOPIC")).text
            assert sent.message_id in by_key and by_key.count("<rect") == 2
            assert "There is no trace." in (await one.browser.get("/traces?q=none")).text
            assert (await one.browser.get("/traces?q=x&topic=a%20b")).status_code == 400


async def test_undecided_transactions_and_delayed_messages_are_listed(console: Open) -> None:
    async def unknown(message: Any) -> None:
        return None

    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("orders-p", check=unknown) as out:
            await out.send("orders", b"x")
            await out.send("orders", b"x", delay=timedelta(hours=2))
            async with out.transaction("orders", b"half") as half:
                async with console(name_server(server)) as one:
                    await one.log_in()
                    await one.services.state.refresh()
                    page = (await one.browser.get("/waiting")).text
        assert page.count("<td>orders-p</td>") == 1 and half.message_id in page and "decisions cannot be read" in page
        level = r'<td class="n">18</td><td class="n">2 h 0 min</td><td class="n">1</td>'
        level += r"<td><time [^>]+>2\d{3}-[^<]+</time></td><td>orders</td>"
        assert re.search(level, page), page


@pytest.mark.spec("CON-10")
async def test_search_before_any_client_has_sent_a_trace_finds_none(console: Open) -> None:
    async with EmbeddedBroker() as server, console(name_server(server)) as one:
        await one.log_in()
        page = await one.browser.get("/traces?q=k-1")
        assert page.status_code == 200 and "There is no trace." in page.text
