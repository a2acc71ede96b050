"""`saturnmq console` as a process, and its pages in a real browser where there is one."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from saturnmq.sync import Client

Start = Callable[..., Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_MS_MAX = 30_000


def password_of(server: Any) -> str:
    found = re.search(r"log in as admin with password (\S+) ", "\n".join(server.err))
    assert found is not None, server.err
    return found[1]


@pytest.mark.realtime
@pytest.mark.spec("UX-13", "CLI-09")
def test_console_prints_its_password_once_and_ends_with_0(serve: Start, tmp_path: Path) -> None:
    words = ("console", "-n", "127.0.0.1:1", "--port", "0", "--folder", str(tmp_path / "console"))
    first = serve(*words)
    assert first.facts["url"].startswith("http://127.0.0.1:")
    with httpx.Client(base_url=first.facts["url"]) as browser:
        assert browser.get("/").headers["location"] == "/login"
        answer = browser.post("/login", data={"user": "admin", "password": password_of(first)})
        assert answer.status_code == 303
    assert first.stop() == 0
    second = serve(*words)
    assert not any("password" in line for line in second.err)
    assert second.stop() == 0


def test_console_names_a_port_in_use_and_half_a_certificate(cli: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = cli("console", "--port", port, "--folder", str(tmp_path))
    assert done.returncode == 2 and f"127.0.0.1:{port}" in done.stderr and "--port" in done.stderr
    done = cli("console", "--certificate", "c.pem", "--folder", str(tmp_path))
    assert done.returncode == 2 and "--certificate-key" in done.stderr


@pytest.fixture
def page(serve: Start, standalone: Start, tmp_path: Path) -> Iterator[Any]:
    """A page of a browser that is logged in to a console of a standalone server; it fails on an error in the browser."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian package chromium)")
    from playwright.sync_api import sync_playwright

    name_servers = standalone().facts["namesrv"]
    with Client.from_url(f"rmq://{name_servers}") as client:
        with client.producer("p") as out:
            out.send_many("orders", [b"x"] * 50)
        with client.consumer("billing", start="first") as inbox:
            inbox.subscribe("orders")
            for _ in range(20):
                inbox.recv(30).ack()
    server = serve("console", "-n", name_servers, "--port", "0", "--folder", str(tmp_path / "console"))
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(base_url=server.facts["url"], viewport={"width": 1200, "height": 800})
        opened.set_default_timeout(PAGE_MS_MAX)
        opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto("/")
        opened.fill("input[name=user]", "admin")
        opened.fill("input[name=password]", password_of(server))
        opened.click("form.login button")
        opened.wait_for_selector("nav a")
        yield opened
        browser.close()
    assert errors == []


@pytest.mark.realtime
@pytest.mark.timeout(180)
@pytest.mark.spec("UX-17")
def test_pages_work_in_a_browser_in_both_languages(page: Any) -> None:
    page.goto("/topics")
    page.wait_for_selector("text=orders")
    for name in ("overview", "brokers", "topics", "groups", "messages", "audit"):
        page.goto("/" if name == "overview" else f"/{name}")
        page.wait_for_selector("h1")
        folder = os.environ.get("CONSOLE_SCREENSHOTS")
        if folder:
            page.screenshot(path=str(Path(folder) / f"{name}.png"))
    page.goto("/topics")
    page.click("summary")
    page.fill("form.change input[name=name]", "made-here")
    page.click("form.change button")
    page.wait_for_url("**/topics/DefaultCluster/made-here")
    page.click("summary")
    page.fill("input[name=confirm]", "made-here")
    page.click("button.danger")
    page.wait_for_url("**/topics")
    assert page.locator("text=made-here").count() == 0
    page.click("button[value=zh]")
    page.wait_for_selector("text=主题")
    page.click("text=退出")
    page.wait_for_url("**/login")


@pytest.mark.realtime
@pytest.mark.timeout(180)
@pytest.mark.spec("UX-17")
def test_page_updates_without_a_reload(page: Any) -> None:
    page.goto("/topics")
    page.wait_for_selector("text=orders")
    page.evaluate("() => { document.title = 'not loaded again'; document.querySelector('h1').remove(); }")
    page.wait_for_selector("h1")  # the next live update replaces the content
    assert page.title() == "not loaded again"
