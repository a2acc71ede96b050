"""Pictures of the console's pages, with a broker, clients and messages that exist.

    PYTHONPATH=tests:tests/console python tests/console/pictures.py docs/images
    ... pictures.py /tmp/pictures --width 400 --dark

`make console-pictures` draws those of docs/console.md again, but for the page of a DLedger group.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from browsing import Console, name_server, opened
from test_console_browser import BROWSERS, FLAGS

from saturnmq import Client
from saturnmq.console.app import build
from saturnmq.console.serving import Server
from saturnmq.history import Collector
from saturnmq.testing import EmbeddedBroker

CLUSTER = "DefaultCluster"
GROUP = f"/groups/{CLUSTER}/billing"
# Name of a picture, and the page that it shows.
PAGES = {
    "login": "/login",
    "overview": "/",
    "brokers": "/brokers",
    "settings": "/brokers/{address}/settings",
    "name-servers": "/name-servers",
    "topics": "/topics",
    "topic": f"/topics/{CLUSTER}/orders",
    "groups": "/groups",
    "group": GROUP,
    "client": f"{GROUP}/clients/{{client}}",
    "reset": f"{GROUP}/reset?topic=orders&to=start",
    "messages": "/messages?topic=orders&key=order-4701",
    "message": "/messages/orders/{message}",
    "search": "/search?topic=orders",
    "traces": "/traces?q={message}",
    "dead-letters": "/dead-letters/billing",
    "waiting": "/waiting",
    "producers": "/producers",
    "graph": "/graph",
    "alarms": "/alarms",
    "accounts": "/accounts",
    "audit": "/audit",
}


async def fill(stack: AsyncExitStack, server: EmbeddedBroker) -> dict[str, str]:
    """An online shop: orders that are consumed and that wait, dead letters with reasons, held back messages.

    The clients stay online. Returns an id of a message and one of a client.
    """
    client = await stack.enter_async_context(Client.from_url(server.url, trace=True))
    await client.create_topic("orders")
    shop = await stack.enter_async_context(client.producer("shop"))
    billing = await stack.enter_async_context(client.consumer("billing", start="first"))
    shipping = await stack.enter_async_context(client.consumer("shipping", start="first"))
    for consumer in (billing, shipping):
        await consumer.subscribe("orders")
    message_id = ""
    for number in range(12):
        body = f'{{"order": {4700 + number}, "customer": "c-{number % 5}", "total": {19 + number}.50}}'.encode()
        receipt = await shop.send(
            "orders", body, tag="paid" if number % 3 else "placed", keys=[f"order-{4700 + number}"]
        )
        message_id = message_id or receipt.message_id
        message = await billing.recv(30)
        if number % 5 == 4:
            await message.reject("ValueError: no amount")
        else:
            await message.ack()
        if number < 8:
            await (await shipping.recv(30)).ack()
    await shop.send_many("orders", [f'{{"order": {number}}}'.encode() for number in range(4712, 4770)])
    await shop.send_many("invoices", [b'{"invoice": 1}'] * 5)
    for hours in (2, 30):
        later = datetime.now(UTC) + timedelta(hours=hours)
        await shop.send("reminders", b'{"reminder": "pay"}', keys=["order-4701"], deliver_at=later)
    return {"message": message_id, "client": quote(client.client_id, safe="")}


async def record_an_hour(server: EmbeddedBroker, console: Console) -> None:
    """A sample of the history for each five minutes of the last hour, with orders sent in between."""
    now = time.time()
    async with Client.from_url(server.url) as client, client.producer("shop") as shop:
        for minutes in range(60, -5, -5):
            await shop.send_many("orders", [b"{}"] * (3 + minutes % 4))
            collector = Collector(
                console.services.admin, console.services.history, clock=lambda at=now - minutes * 60: at
            )
            await collector.round()


async def ready(stack: AsyncExitStack, folder: Path) -> tuple[dict[str, str], Console, str]:
    """A broker with messages: what to show of it, a console and its address."""
    server = await stack.enter_async_context(EmbeddedBroker())
    shown = await fill(stack, server) | {"address": server.broker.address}
    console = await stack.enter_async_context(opened(folder, name_server(server)))
    await record_an_hour(server, console)
    await console.services.state.refresh()
    address, end = asyncio.get_running_loop().create_future(), asyncio.Event()
    serving = asyncio.ensure_future(Server(build(console.services), "127.0.0.1", 0).run(address.set_result, end.wait()))

    async def stop() -> None:
        end.set()
        await serving

    stack.push_async_callback(stop)
    return shown, console, await address


async def draw(folder: Path, width: int, *, dark: bool, names: list[str]) -> None:
    """Write a picture of each page into the folder."""
    from playwright.async_api import async_playwright

    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        sys.exit("no browser is installed; `make peers` installs one")
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shown, console, address = await ready(stack, files)
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        stack.push_async_callback(browser.close)
        page: Any = await browser.new_page(
            base_url=f"http://{address}",
            viewport={"width": width, "height": 850},
            color_scheme="dark" if dark else "light",
        )
        for name, path in PAGES.items():
            if name == "overview":
                await page.fill("input[name=user]", "admin")
                await page.fill("input[name=password]", console.password)
                await page.click("form.login button")
                await page.wait_for_selector("h1:has-text('Overview')")
            response = await page.goto(path.format_map(shown))
            if not response.ok:
                sys.exit(f"{path}: {response.status} {await page.inner_text('main')}")
            if name in names or not names:
                await page.screenshot(path=folder / f"console-{name}.png")
                print(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PAGES)}; all without it")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    asyncio.run(draw(options.folder, options.width, dark=options.dark, names=options.names))


if __name__ == "__main__":
    main()
