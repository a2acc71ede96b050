"""Search in a time range, live tail, analysis, download and direct consumption, against an embedded broker."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.message import Message, Outgoing
from saturnmq.console import analysis, search
from saturnmq.console.conditions import Conditions
from saturnmq.console.jobs import Job
from saturnmq.console.search import Hits, LastHits, hit_of
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import Message as Record
from saturnmq.protocol.message import decode_record, encode_properties, encode_record
from saturnmq.testing import EmbeddedBroker
from waiting import POLL_SECONDS

Open = Callable[..., Any]
HOSTILE = '<script>alert("x")</script>\u202e'


async def orders(server: EmbeddedBroker) -> None:
    """Messages 0..39: number in JSON, tag a or b, key k<number>, property shop."""
    async with Client.from_url(server.url) as client, client.producer("p") as out:
        for number in range(40):
            document = {"order": {"id": number, "items": [{"sku": f"s{number}"}]}, "note": HOSTILE}
            await out.send(
                "orders",
                json.dumps(document).encode(),
                tag="ab"[number % 2],
                keys=[f"k{number}"],
                properties={"shop": f"shop {number % 4}"},
            )
        await out.send("orders", b"=cmd()|' /C calc'!A0", keys=["=1+1"])
        await out.send("orders", b"\xff\xfe\x00", tag="c")


async def started(one: Any, path: str = "/do/search", **form: str) -> Job:
    """Begin a job and wait for its end, except of a tail."""
    answer = await one.browser.post(path, data={"csrf": await one.csrf(), "topic": "orders", **form})
    assert answer.status_code == 303, answer.text
    job = one.services.jobs.find("admin", answer.headers["location"].rpartition("/")[2])
    if path != "/do/tail":
        await asyncio.wait_for(asyncio.shield(job.task), 30)
    return job  # type: ignore[no-any-return]


async def shown(one: Any, job: Job) -> str:
    answer: httpx.Response = await one.browser.get(f"/search/{job.id}")
    assert answer.status_code == 200
    return answer.text


def message(body: bytes, flags: int = 0, **properties: str) -> Message[bytes]:
    record = decode_record(encode_record(Record("T", body, encode_properties(properties), sys_flag=flags)))
    return Message(record, MessageQueue("T", "b", 1), BytesCodec())


def test_row_of_a_message_has_the_beginning_of_its_texts() -> None:
    row = hit_of(message(b"x" * 121, UNIQ_KEY="i" * 201, TAGS="t" * 201, KEYS="k " * 150))
    assert (row.begin, row.size) == ("x" * 120, 121)
    assert (row.id, row.tag, row.keys) == ("i" * 200, "t" * 200, ("k " * 100))
    row = hit_of(message(("é" * 120 + "x").encode()))
    assert (row.begin, row.size, row.tag, row.keys) == ("é" * 120, 241, "", "")
    assert hit_of(message(b"a\nb\xff")).begin == "a\\x0ab\ufffd"
    damaged = hit_of(message(b"no zlib", SysFlag.COMPRESSED))
    assert (damaged.begin, damaged.size) == ("", -1)


def stored(at: int) -> Message[bytes]:
    record = decode_record(encode_record(Record("T", b"%d" % at, store_timestamp_ms=at)))
    return Message(record, MessageQueue("T", "b", 1), BytesCodec())


def test_search_keeps_the_2000_newest_rows_and_a_tail_the_last_that_came() -> None:
    hits = Hits(Conditions())
    assert not any(hits.take(stored(at)) for at in range(5000, 0, -1)) and len(hits.rows) < 4000
    assert [row.begin for row in hits.sorted()] == [str(at) for at in range(3001, 5001)]
    assert hits.has_enough(3000) and not hits.has_enough(3001)
    last = LastHits(Conditions(), 2)
    assert not any(last.take(stored(at)) for at in (7, 9, 8, 1, 3, 2))
    assert [row.begin for row in last.sorted()] == ["2", "3"]


@pytest.mark.spec("CON-09")
async def test_search_finds_by_tag_key_property_json_path_and_text(console: Open) -> None:
    async with EmbeddedBroker() as server:
        await orders(server)
        async with console(name_server(server)) as one:
            await one.log_in()
            for form, count in (
                ({}, 42),
                ({"tag": "a"}, 20),
                ({"key": "k7"}, 1),
                ({"property": "shop=shop 3"}, 10),
                ({"property": "shop"}, 40),
                ({"json": "order.items[*].sku=s12"}, 1),
                ({"json": "$['order'].id=12", "tag": "b"}, 0),
                ({"json": "order.id"}, 40),
                ({"text": '"id": 39'}, 1),
                ({"from": "start", "to": "2001-01-01"}, 0),
            ):
                job = await started(one, **form)
                assert (job.state, len(job.collector.rows)) == ("complete", count), (form, job)
            page = await shown(one, await started(one))
            assert "42 messages read" in page and "<script>alert" not in page and "\u202e" not in page
            assert page.count('class="when"') == 42 and "every 1s" not in page
            job = await started(one)
            job.collector.rows.extend(list(job.collector.rows)[:18])
            assert (await shown(one, job)).count('class="when"') == 50
            assert (await one.browser.get(f"/search/{job.id}?page=2")).text.count('class="when"') == 10
            path = re.search(r'href="(/messages/orders/[^"]+)"', page)
            assert path is not None
            assert (await one.browser.get(path[1].replace("&amp;", "&"))).status_code == 200
            bad = {"csrf": await one.csrf(), "topic": "orders", "json": "a[b"}
            answer = await one.browser.post("/do/search", data=bad)
            assert answer.status_code == 400 and "JSON path" in answer.text


@pytest.mark.spec("CON-09", "OPS-13")
async def test_time_range_bounds_a_search_to_the_millisecond(console: Open) -> None:
    async with EmbeddedBroker() as server:
        await orders(server)
        async with console(name_server(server)) as one:
            await one.log_in()
            every = (await started(one)).collector.sorted()
            begin, end = every[5].stored_ms, every[-5].stored_ms
            stamps = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) for ms in (begin, end)]
            form = {"from": f"{stamps[0]}.{begin % 1000:03}", "to": f"{stamps[1]}.{end % 1000:03}"}
            found = (await started(one, **form)).collector.sorted()
            assert [hit.id for hit in found] == [hit.id for hit in every if begin <= hit.stored_ms <= end]


@pytest.mark.spec("CON-09")
async def test_download_has_whole_bodies_and_no_formulas(console: Open) -> None:
    async with EmbeddedBroker() as server:
        await orders(server)
        async with console(name_server(server)) as one:
            await one.log_in()
            job = await started(one)
            answer = await one.browser.get(f"/search/{job.id}/download?form=jsonl")
            assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''orders.jsonl"
            assert answer.headers["content-type"] == "application/jsonl; charset=utf-8"
            rows = [json.loads(line) for line in answer.text.splitlines()]
            assert len(rows) == 42 and json.loads(rows[3]["body"])["note"] == HOSTILE
            assert {row["encoding"] for row in rows} == {"utf-8", "base64"}
            answer = await one.browser.get(f"/search/{job.id}/download?form=csv")
            assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''orders.csv"
            assert answer.headers["content-type"] == "text/csv; charset=utf-8"
            text = answer.text
            table = list(csv.DictReader(io.StringIO(text)))
            assert len(table) == 42
            assert all(not value.startswith(("=", "+", "-", "@")) for row in table for value in row.values())
            assert any(row["body"].startswith("'=cmd") and row["keys"] == "'=1+1" for row in table)
            audit = (one.folder / "audit.log").read_text()
            for form in ("jsonl", "csv"):
                assert f'action=download target="topic=orders form={form}" result=200' in audit
            assert (await one.browser.get("/search/unknown/download")).status_code == 404


@pytest.mark.spec("CON-09")
async def test_tail_shows_new_messages_until_it_is_cancelled_or_left(console: Open) -> None:
    async with EmbeddedBroker() as server:
        await orders(server)
        async with console(name_server(server)) as one:
            await one.log_in()
            job = await started(one, "/do/tail", tag="new")
            sleeps = 0

            async def sleep(seconds: float) -> None:
                nonlocal sleeps
                sleeps += 1
                await asyncio.sleep(POLL_SECONDS)  # poll: rounds follow each other quickly

            job.scan.sleep = sleep
            async with asyncio.timeout(30):
                while not sleeps:  # the tail knows the ends of the queues
                    await asyncio.sleep(POLL_SECONDS)  # poll
                async with Client.from_url(server.url) as client, client.producer("p") as out:
                    await out.send_many(
                        "orders", [Outgoing(value=b"one", tag="new"), Outgoing(value=b"two", tag="old")]
                    )
                while not job.collector.rows:
                    await asyncio.sleep(POLL_SECONDS)  # poll
            page = await shown(one, job)
            assert "every 1s" in page and ">one<" in page and ">two<" not in page and ">k7<" not in page
            await one.browser.post("/do/search/cancel", data={"csrf": await one.csrf(), "id": job.id})
            assert job.state == "cancelled" and "every 1s" not in await shown(one, job)
            left = await started(one, "/do/tail")
            left.viewed -= 60
            await asyncio.wait_for(left.task, 30)  # type: ignore[arg-type]
            assert left.state == "left"


@pytest.mark.spec("CON-09")
async def test_analysis_counts_sizes_tags_keys_and_rates(console: Open) -> None:
    async with EmbeddedBroker() as server:
        await orders(server)
        async with console(name_server(server)) as one:
            await one.log_in()
            job = await started(one, "/do/analysis")
            shares = job.collector.shares()
            tables = {title: {name: count for name, count, _ in rows} for title, rows in shares.tables}
            assert shares.count == 42 and shares.least == 3
            assert tables["Tags"] == {"a": 20, "b": 20, "": 1, "c": 1}
            assert tables["Properties"]["shop"] == 40 and tables["Sizes"] == {"< 100 B": 42}
            assert sum(rate * 60 for _, rate in shares.rates) == pytest.approx(42)
            assert ">47.6 %<" in await shown(one, job)


def test_sample_counts_each_message_once_in_each_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(size: int, minute: int, *keys: str, **fields: Any) -> Any:
        record = SimpleNamespace(
            body=b"x" * size, born_host=SimpleNamespace(ip="10.0.0.1"), store_timestamp_ms=minute * 60_000 + 59_999
        )
        return SimpleNamespace(record=record, keys=keys, **{"tag": None, "properties": {}} | fields)

    monkeypatch.setattr(analysis, "readable", lambda message: None if len(message.record.body) == 5 else b"y" * 100)
    monkeypatch.setattr(analysis, "SAMPLE_MAX", 4)
    sample = analysis.MessageSample()
    assert sample.shares() == analysis.SampleShares(
        0, 0, 0, 0, 0, [(title, []) for title, _ in sample.shares().tables], []
    )
    messages = [message(100, 3, "k", tag="t" * 101), message(5, 3), message(7, 2, "k", "l", properties={"p": "1"})]
    assert [sample.take(each) for each in (*messages, message(9, 3, properties={"p": "2", "q": ""}))] == [
        False,
        False,
        False,
        True,
    ]
    tables = [
        ("Tags", [("", 3, 75.0), ("t" * 100, 1, 25.0)]), ("Keys", [("k", 2, 50.0), ("", 2, 50.0), ("l", 1, 25.0)]),
        ("Sizes", [("< 1000 B", 3, 75.0), ("< 100 B", 1, 25.0)]), ("Properties", [("p", 2, 50.0), ("q", 1, 25.0)]),
        ("Sent from", [("10.0.0.1", 4, 100.0)]),
    ]  # fmt: skip
    assert sample.shares() == analysis.SampleShares(4, 305, 5, 100, 2, tables, [(120, 1 / 60), (180, 3 / 60)])


def test_sample_bounds_names_minutes_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()
    monkeypatch.setattr(analysis, "NAMES_MAX", 2)
    for name in ("a", "b", "c", "d", "a"):
        analysis._add(counted, name)
    assert counted == {"a": 2, "b": 1, "...": 2}
    sample = analysis.MessageSample()
    monkeypatch.setattr(analysis, "_MINUTES_MAX", 1500)
    sample._minutes.update(range(1, 1500))
    sample._tags.update(str(number) for number in range(16))
    for minute in (0, 1500, 7):
        record = SimpleNamespace(body=b"", born_host=SimpleNamespace(ip=""), store_timestamp_ms=minute * 60_000)
        sample.take(cast(Any, SimpleNamespace(record=record, body=b"", keys=(), tag=None, properties={})))
    assert sample._minutes == Counter({minute: 1 + (minute == 7) for minute in range(1500)})
    assert [at for at, _ in sample.shares().rates] == list(range(60 * 60, 1500 * 60, 60))
    assert len(sample.shares().tables[0][1]) == 15


def test_sizes_of_an_analysis_are_powers_of_ten() -> None:
    edges = [limit - less for limit in (100, 1000, 10_000, 100_000, 1_000_000) for less in (1, 0)]
    classes = ["100", "1000", "1000", "10000", "10000", "100000", "100000", "1000000", "1000000"]
    assert [analysis._size_class(size) for size in edges] == [*(f"< {limit} B" for limit in classes), ">= 1000000 B"]


@pytest.mark.spec("CON-09")
async def test_client_of_a_group_consumes_a_message_again(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await orders(server)
        got: list[str] = []

        async def consume(inbox: Any) -> None:
            async for message in inbox:
                got.append(message.keys[0] if message.keys else "")
                await message.ack()

        async with client.consumer("billing", start="first") as inbox:
            await inbox.subscribe("orders")
            consuming = asyncio.ensure_future(consume(inbox))
            async with console(name_server(server)) as one:
                await one.log_in()
                hit = (await started(one, key="k7")).collector.sorted()[0]
                async with asyncio.timeout(30):
                    while "k7" not in got:
                        await asyncio.sleep(POLL_SECONDS)  # poll
                got.clear()
                query = hit.path.partition("?")[2]
                form = {"csrf": await one.csrf(), "topic": "orders", "id": hit.id, "group": "billing"}
                page = await one.browser.post(f"/do/message/consume?{query}", data=form)
                assert page.status_code == 200 and "CR_SUCCESS" in page.text, page.text
                assert "k7" in got and "action=consume" in (one.folder / "audit.log").read_text()
                refused = await one.browser.post(f"/do/message/consume?{query}", data=form | {"group": "none"})
                assert refused.status_code == 502
            consuming.cancel()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
async def test_download_that_ends_early_says_so_in_its_own_form(form: str) -> None:
    """A program that reads the file would stumble over a line of the other form."""

    async def broken(queue: MessageQueue, offset: int) -> None:
        raise SaturnError("the broker does not answer")

    page: Any = SimpleNamespace(
        services=SimpleNamespace(admin=SimpleNamespace(messages=SimpleNamespace(by_queue_offset=broken)))
    )
    job: Any = SimpleNamespace(collector=SimpleNamespace(sorted=lambda: [SimpleNamespace(queue=None, offset=0)]))
    *_, last = [line async for line in search._lines(page, job, form)]
    text = "ended after 0 of 1 messages: the broker does not answer"
    assert last == (f'"{text}"\r\n' if form == "csv" else f'{{"problem": "{text}"}}\n').encode()
