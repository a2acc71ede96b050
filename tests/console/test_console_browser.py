"""What users see in a real browser: errors in view, charts, phones, local times; one browser for the file."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browsing import name_server, opened

from harness.gate.peers import missing
from saturnmq import Client
from saturnmq.console.app import build
from saturnmq.console.serving import Server
from saturnmq.history import Sample, Series
from saturnmq.testing import EmbeddedBroker

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
ZONE = "America/New_York"
PHONE, DESKTOP = {"width": 400, "height": 800}, {"width": 1400, "height": 800}
GROUP = "/groups/DefaultCluster/billing"
LONG = "payments-captured-by-the-gateway-of-the-eu-central-region"
PAGES = (
    "/", "/topics", "/groups", "/brokers", "/producers", "/dead-letters", "/dead-letters/billing", GROUP,
    "/topics/DefaultCluster/orders", "/accounts", "/search", "/nowhere",
)  # fmt: skip
# The smallest and the largest side of each number of a table that is shown, and each word that is broken inside.
NUMBERS = """() => [...document.querySelectorAll("td.n")].map((cell) => cell.getBoundingClientRect())
    .filter((box) => box.width).map((box) => [box.left, box.right])"""
BROKEN = r"""() => {
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const broken = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.checkVisibility() || node.parentElement.closest("svg, option, textarea, code")) continue;
    for (const word of node.data.matchAll(/[^\s\-@#:;,.\/|]{2,30}/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""


@dataclass
class Browsing:
    """A browser that is logged in, its console and its broker; `run` runs a coroutine in their event loop."""

    run: Callable[[Coroutine[Any, Any, Any]], Any]
    page: Any
    console: Any
    server: EmbeddedBroker
    errors: list[str]


async def filled(server: EmbeddedBroker) -> None:
    """Topics of users, a group with a lag and without clients, dead letters of it with a reason."""
    async with Client.from_url(server.url, trace=True) as client:
        async with client.producer("shop") as out, client.consumer("billing", start="first") as inbox:
            await inbox.subscribe("orders")
            for number in range(2):
                await out.send("orders", f'{{"order": {number}}}'.encode(), keys=[f"k-{number}"])
                await (await inbox.recv(30)).reject("ValueError: no amount")
            await out.send("orders", b"taken")
            await (await inbox.recv(30)).ack()
        async with client.producer("shop") as out:
            await out.send_many("orders", [b"waits"] * 61)
            await out.send_many(LONG, [b"x"] * 3)


async def start(stack: AsyncExitStack, folder: Path, program: str) -> Browsing:
    from playwright.async_api import async_playwright

    server = await stack.enter_async_context(EmbeddedBroker())
    await filled(server)
    console = await stack.enter_async_context(opened(folder, name_server(server)))
    address, end = asyncio.get_running_loop().create_future(), asyncio.Event()
    serving = asyncio.ensure_future(Server(build(console.services), "127.0.0.1", 0).run(address.set_result, end.wait()))

    async def stop() -> None:
        end.set()
        await serving

    stack.push_async_callback(stop)
    await address
    playwright = await stack.enter_async_context(async_playwright())
    browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
    stack.push_async_callback(browser.close)
    page = await browser.new_page(base_url=f"http://{address.result()}", viewport=DESKTOP, timezone_id=ZONE)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    retries = {(server.broker.name, 0): 0}
    await console.services.admin.offsets.set("billing", "%RETRY%billing", retries)
    await console.services.state.refresh()
    await page.goto("/login")
    await page.fill("input[name=user]", "admin")
    await page.fill("input[name=password]", console.password)
    await page.click("form.login button")
    await page.wait_for_selector("h1:has-text('Overview')")
    return Browsing(lambda work: work, page, console, server, errors)


@pytest.fixture(scope="module")
def browsing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsing]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        missing(f"no browser: none of {', '.join(BROWSERS)} is installed; `make peers`")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            one = runner.run(start(stack, tmp_path_factory.mktemp("console"), program))
            one.run = runner.run
            yield one
        finally:
            runner.run(stack.aclose())
    assert one.errors == []


async def in_view(page: Any, selector: str) -> bool:
    box = await page.locator(selector).bounding_box()
    size = page.viewport_size
    return bool(
        box["y"] >= 0 and box["y"] + box["height"] <= size["height"] and box["x"] + box["width"] <= size["width"]
    )


@pytest.mark.realtime
@pytest.mark.timeout(180)
def test_problem_of_a_form_is_in_view_beside_its_field_with_the_focus(browsing: Browsing) -> None:
    """It stood 1458 pixels down while the page was shown from its top, and nothing had the focus."""

    async def work() -> None:
        page = browsing.page
        cases = (
            (GROUP, "Reset offsets", {"to": "noon"}, "to"),
            (GROUP, "Change this group", {"retry_max_times": "99999"}, "retry_max_times"),
            (GROUP, "Delete this group", {"confirm": "other"}, "confirm"),
            ("/topics", "Create or change a topic", {"name": "a b"}, "name"),
            ("/messages?send=1", "", {"topic": "orders", "body": "x", "properties": "none"}, "properties"),
            ("/search?topic=orders", "", {"json": "a["}, "json"),
        )
        for size in (DESKTOP, PHONE):
            await page.set_viewport_size(size)
            for path, summary, values, field in cases:
                await page.goto(path)
                if summary:
                    await page.click(f"summary:has-text('{summary}')")
                form = page.locator(f"form:has([name={field}]):not(.search)").filter(visible=True)
                await form.evaluate("form => { form.noValidate = true; }")
                for name, value in values.items():
                    await form.locator(f"[name={name}]").fill(value)
                async with page.expect_navigation():
                    await form.locator("button").first.click()
                await page.wait_for_selector(f"[name={field}]:focus")
                assert await page.evaluate("document.activeElement.name") == field, (path, field)
                assert await in_view(page, "#problem") and await in_view(page, f"[name={field}]:focus"), (path, field)
                described = await page.get_attribute(f"[name={field}]:focus", "aria-describedby")
                assert described == "problem", (path, field)
                gap = await page.evaluate(
                    """() => document.getElementById("problem").getBoundingClientRect().top
                    - document.activeElement.getBoundingClientRect().bottom"""
                )
                assert abs(gap) < 60, (path, field, gap)

    browsing.run(work())


@pytest.mark.realtime
@pytest.mark.timeout(180)
def test_topics_of_users_come_first_and_those_of_brokers_behind_a_switch(browsing: Browsing) -> None:
    """The form of a reset preselected the retry topic; producers of traces stood above those of users; totals counted both."""

    async def work() -> None:
        page = browsing.page
        await page.goto(GROUP)
        chosen = page.locator("form[action$='/reset'] select[name=topic]")
        assert await chosen.input_value() == "orders"
        assert "%RETRY%billing" in (await chosen.text_content() or "")
        async with Client.from_url(browsing.server.url, trace=True) as client, client.producer("shop") as out:
            await out.send("orders", b"x")
            await page.goto("/producers")
            names = await page.locator("tbody tr td:first-child").all_inner_texts()
            assert names == ["shop"], names
            await page.click("nav.kinds a:has-text('system')")
            names = await page.locator("tbody tr td:first-child").all_inner_texts()
            assert names and not any(name == "shop" for name in names), names
        await page.goto("/")
        view = await browsing.console.services.state.view()
        tiles = await page.locator("dl.tiles").inner_text()
        assert re.search(r"Topics\s+2\s", tiles) and len(view.survey.topics) > 2, tiles
        assert await page.locator("li:has-text('billing') .state.bad").count() == 1, "61 messages wait without a client"

    browsing.run(work())


@pytest.mark.realtime
@pytest.mark.timeout(180)
def test_chart_is_true_in_time_and_height_and_shows_values(browsing: Browsing) -> None:
    """Two points were stretched over the whole chart, and the label of the last value stood at its top."""

    async def work() -> None:
        page, now = browsing.page, int(time.time()) // 60 * 60
        series = Series("topic", "DefaultCluster", topic="orders")
        totals = {50: 0, 40: 6000, 20: 30_000, 10: 33_000}  # minutes ago
        for minutes, total in totals.items():
            browsing.console.services.history.record(now - minutes * 60, [Sample(series, total, 0)])
        await page.set_viewport_size(DESKTOP)
        await page.goto("/topics/DefaultCluster/orders?range=1h")
        chart = page.locator("svg.chart")
        path = [
            tuple(map(float, part.split()))
            for part in re.findall(r"[ML]([\d. ]+)", await chart.locator(".line").get_attribute("d"))
        ]
        (x40, _), (x20, y20), (x10, y10) = path
        across = (568 - 64) / 3600
        assert x20 - x40 == pytest.approx(1200 * across, abs=0.2) and x10 - x20 == pytest.approx(600 * across, abs=0.2)
        assert 568 - x10 == pytest.approx(600 * across, abs=200 * across), "the last value is ten minutes old"
        label = chart.locator(".now")
        assert await label.inner_html() == "5 /s" and float(await label.get_attribute("y")) == y10 != y20
        for text in await chart.locator("text.value").all():
            value = float((await text.inner_html()).removesuffix(" /s"))
            assert float(await text.get_attribute("y")) == pytest.approx(148 - value * (148 - y20) / 20, abs=0.2)
        box = await chart.bounding_box()
        await page.mouse.move(box["x"] + x20 * box["width"] / 640, box["y"] + 40)
        shown = await page.locator("figcaption output").inner_text()
        local = await page.evaluate("at => new Date(at).toTimeString().slice(0, 5)", (now - 1200) * 1000)
        assert shown.endswith(f"{local}: 20 /s"), shown
        await chart.focus()
        await page.keyboard.press("ArrowRight")
        assert (await page.locator("figcaption output").inner_text()).endswith(": 5 /s")

    browsing.run(work())


@pytest.mark.realtime
@pytest.mark.timeout(180)
def test_pages_are_usable_on_a_phone(browsing: Browsing) -> None:
    """Numbers were off the screen, words were broken inside, and sixteen links scrolled without a hint."""

    async def work() -> None:
        page = browsing.page
        await page.set_viewport_size(PHONE)
        for path in PAGES:
            await page.goto(path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 400, path
            numbers = await page.evaluate(NUMBERS)
            assert numbers or path not in PAGES[1:4], path
            assert all(left >= 0 and right <= 400 for left, right in numbers), (path, numbers)
            assert await page.evaluate(BROKEN) == [], path
        await page.goto("/groups")
        lag = await page.locator("tr:has-text('billing') td.n").first.bounding_box()
        topics = await page.locator("tr:has-text('billing') td[data-label=Topics]").bounding_box()
        assert (lag["y"], lag["x"]) < (topics["y"], topics["x"]), "numbers come before texts"
        links = page.locator("#menu a:not(.menu)")
        assert not await links.first.is_visible()
        await page.click("header a.menu")
        for link in await links.all():
            box = await link.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 400
        await page.set_viewport_size(DESKTOP)
        for path in PAGES:
            await page.goto(path)
            assert await page.evaluate(BROKEN) == [], path

    browsing.run(work())


@pytest.mark.realtime
@pytest.mark.timeout(180)
def test_times_are_local_with_utc_on_hover_and_as_they_are_typed(browsing: Browsing) -> None:
    """All times were UTC, whatever the zone of the browser."""

    async def work() -> None:
        page = browsing.page
        await page.set_viewport_size(DESKTOP)
        await page.goto("/dead-letters/billing")
        stamp = page.locator("td.when time").first
        at = (await stamp.get_attribute("datetime")) or ""
        assert await stamp.get_attribute("title") == at.replace("T", " ").replace("Z", " UTC")
        expected = await page.evaluate("at => new Date(at).toLocaleString('sv')", at)
        assert await stamp.inner_text() == expected != at.replace("T", " ").rstrip("Z")
        assert ZONE in await page.locator("#zone").inner_text()
        texts = await page.locator("td.when time").all_inner_texts()
        assert texts[::2] == sorted(texts[::2], reverse=True), "newest first"
        row = await page.locator("tbody tr").first.inner_text()
        assert "ValueError: no amount" in row and '{"order": 1}' in row
        await page.goto(GROUP)
        await page.click("summary:has-text('Reset offsets')")
        await page.fill("input[name=to]", "2026-07-01 08:00")
        await page.click("form[action$='/reset'] button")
        await page.wait_for_url("**/reset?*")
        assert "to=2026-07-01T08%3A00-04%3A00" in page.url

    browsing.run(work())


@pytest.mark.realtime
@pytest.mark.timeout(180)
def test_missing_page_and_missing_things_say_what_to_do(browsing: Browsing) -> None:
    """A path that does not exist was the bare words Not Found; a broker without access control was shown as an error."""

    async def work() -> None:
        page = browsing.page
        answer = await page.goto("/nowhere")
        assert answer.status == 404 and await page.locator("h1:has-text('Page not found')").count() == 1
        assert await page.locator("nav a[href='/topics']").count() == 1
        await page.goto("/accounts")
        assert await page.locator("main .bad").filter(visible=True).count() == 0
        assert "aclEnable=true" in await page.inner_text("p.empty")
        await page.goto("/topics?q=nothing-has-this-name")
        await page.click("p.empty a")
        assert await page.locator("tbody a:has-text('orders')").count() == 1
        await page.goto(f"/brokers/{browsing.server.broker_address}")
        assert await page.locator(".tiles .state.ok").count() == 1
        assert not await page.is_visible("text=commitLogMaxOffset"), "raw values are folded"
        await page.click("summary")
        assert await page.is_visible("text=commitLogMaxOffset")

    browsing.run(work())
