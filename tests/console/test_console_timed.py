"""Messages with a delivery time: the list of those that wait, and the form that sends one."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from browsing import Console, name_server

from saturnmq import Client
from saturnmq.admin import waiting
from saturnmq.testing import EmbeddedBroker
from saturnmq.testing.travel_clock import TravelClock, Traveller

Open = Callable[..., Any]


async def timed_rows(one: Console) -> list[tuple[str, str]]:
    """Delivery time and topic of each row."""
    await one.services.state.refresh()
    page = (await one.browser.get("/waiting")).text
    assert "not exist" not in page, page
    part = page.partition("<h2>Messages with a delivery time</h2>")[2]
    return re.findall(r'<tr><td class="when"><time [^>]*>([^<]*)</time></td><td>([^<]*)</td>', part)


def shown(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


async def test_messages_with_a_delivery_time_are_listed_until_delivered(console: Open) -> None:
    clock = TravelClock()
    async with EmbeddedBroker(clock_ms=clock.now_ms) as server, Client.from_url(server.url) as client:
        await client.create_topic("orders", queues=1)
        await client.create_topic("bills", queues=1)
        traveller = Traveller(server, clock)
        async with console(name_server(server)) as one, client.producer("p") as out:
            await one.log_in()
            assert await timed_rows(one) == []
            now = clock.now().replace(microsecond=0)
            ahead = [timedelta(days=30), timedelta(seconds=90), timedelta(hours=20), timedelta(minutes=61)]
            for delay, topic in zip(ahead, ("orders", "orders", "bills", "orders"), strict=True):
                await out.send(topic, b"x", deliver_at=now + delay)
            rows = [
                (shown(now + delay), topic)
                for delay, topic in sorted(zip(ahead, ("orders", "orders", "bills", "orders"), strict=True))
            ]
            assert await timed_rows(one) == rows
            await traveller.advance(timedelta(minutes=2))
            assert await timed_rows(one) == rows[1:]
            await traveller.advance(timedelta(hours=48))  # the last one was stored again
            assert await timed_rows(one) == rows[3:]
            await traveller.advance(timedelta(days=29))
            assert await timed_rows(one) == []


async def test_list_of_timed_messages_says_what_it_leaves_out(console: Open, monkeypatch: Any) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("orders", queues=1)
        async with console(name_server(server)) as one, client.producer("p") as out:
            await one.log_in()
            now = datetime.now(UTC).replace(microsecond=0)
            for minutes in range(waiting.TIMED_MAX + 5, 0, -1):
                await out.send("orders", b"x", deliver_at=now + timedelta(minutes=minutes))
            rows = await timed_rows(one)
            assert [time for time, _ in rows] == [
                shown(now + timedelta(minutes=minutes)) for minutes in range(1, waiting.TIMED_MAX + 1)
            ]
            page = (await one.browser.get("/waiting")).text
            assert "Shown are 100 of 105 messages, the next ones." in page
            assert "A waiting message cannot be cancelled: brokers have no request for it." in page
            monkeypatch.setattr(waiting, "UNITS_MAX", 7)
            page = (await one.browser.get("/waiting")).text
            assert "Shown are 7 of more than 7 messages" in page


async def test_form_sends_a_message_with_a_delivery_time(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("orders", queues=1)
        async with console(name_server(server)) as one:
            await one.log_in()
            assert re.search(r'<input name="deliver_at" [^>]*data-moment', (await one.browser.get("/messages")).text)
            now = datetime.now(UTC).replace(microsecond=0)
            form = {"csrf": await one.csrf(), "topic": "orders", "body": "later", "level": "0"}
            local = (now + timedelta(hours=3, minutes=330)).replace(tzinfo=None).isoformat() + "+05:30"
            sent = await one.browser.post("/do/message", data=form | {"deliver_at": local})
            assert sent.status_code == 303, sent.text
            assert await timed_rows(one) == [(shown(now + timedelta(hours=3)), "orders")]


async def test_wrong_delivery_time_is_refused_beside_its_field(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("orders", queues=1)
        async with console(name_server(server)) as one:
            await one.log_in()
            now = datetime.now(UTC).replace(microsecond=0)
            form = {"csrf": await one.csrf(), "topic": "orders", "body": "later", "level": "0"}
            shown_on = {"shown_on": "/messages"}
            cases = {
                "soon": ("0", "must be such as 2026-11-23T08:00"),
                (now - timedelta(minutes=1)).isoformat(): ("0", "must be in the future and at most 40 days ahead"),
                (now + timedelta(days=40, minutes=1)).isoformat(): ("0", "at most 40 days ahead"),
                "9999-12-31T23:59:59-14:00": ("0", "at most 40 days ahead"),
                (now + timedelta(days=1)).isoformat(): ("3", "give a delay level or a delivery time, not both"),
            }
            for text, (level, problem) in cases.items():
                answer = await one.browser.post(
                    "/do/message", data=form | shown_on | {"deliver_at": text, "level": level}
                )
                beside = re.search(
                    r'<input name="deliver_at" [^>]*aria-invalid="true"[^>]*></label><span [^>]*>([^<]*)',
                    answer.text,
                )
                assert answer.status_code == 400 and beside is not None and problem in beside[1], text
            assert await timed_rows(one) == []
