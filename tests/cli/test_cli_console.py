"""`saturnmq console` as a process, and its pages in a real browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.gate.peers import missing
from saturnmq.console.users import Users, check_password
from saturnmq.sync import Client

Start = Callable[..., Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PAGE_MS_MAX = 30_000
PAGES = (
    "/", "/brokers", "/ledger", "/name-servers", "/topics", "/topics/DefaultCluster/orders", "/messages?topic=orders&key=k",
    "/search?topic=orders", "/traces?q=k", "/dead-letters", "/dead-letters/billing", "/waiting", "/groups",
    "/groups/DefaultCluster/billing", "/groups/DefaultCluster/billing/reset?topic=orders&to=start", "/producers", "/graph",
    "/alarms", "/audit",
)  # fmt: skip


def is_error(message: Any) -> bool:
    """Whether a browser reports an error of a page, and not a request that a test aborts or a form that is refused."""
    expected = ("ERR_FAILED", "htmx", "status of 400")
    return message.type == "error" and not any(text in message.text for text in expected)


def password_of(server: Any) -> str:
    found = re.search(r"log in as admin with password (\S+) ", "\n".join(server.err))
    assert found is not None, server.err
    return found[1]


@pytest.mark.realtime
@pytest.mark.spec("UX-13", "CLI-09", "SEC-22")
def test_console_prints_its_password_once_and_ends_with_0(serve: Start, tmp_path: Path) -> None:
    words = ("console", "-n", "127.0.0.1:1", "--port", "0", "--folder", str(tmp_path / "console"))
    first = serve(*words)
    assert first.facts["url"].startswith("http://127.0.0.1:")
    with httpx.Client(base_url=first.facts["url"]) as browser:
        assert browser.get("/").headers["location"] == "/login"
        answer = browser.post("/login", data={"user": "admin", "password": password_of(first)})
        assert answer.status_code == 303
    assert first.stop() == 0
    assert sum(password_of(first) in line for line in (*first.out, *first.err)) == 1
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


@pytest.mark.realtime
@pytest.mark.spec("UX-13", "CLI-09")
def test_standalone_serves_the_console_with_its_files_in_the_data(serve: Start, tmp_path: Path) -> None:
    from ports import free_port

    ports = {name: str(free_port()) for name in ("--namesrv-port", "--port", "--console-port")}
    words = [word for pair in ports.items() for word in pair]
    server = serve("standalone", "--data", str(tmp_path / "data"), "--console", *words)
    assert server.facts["console"] == f"http://127.0.0.1:{ports['--console-port']}/"
    with httpx.Client(base_url=server.facts["console"], follow_redirects=True, timeout=30) as browser:
        answer = browser.post("/login", data={"user": "admin", "password": password_of(server)})
        assert answer.status_code == 200 and "Overview" in answer.text
        while "being collected" in browser.get("/brokers").text:
            pass  # each request waits for the first survey
        assert server.facts["broker"] in browser.get("/brokers").text
    assert (tmp_path / "data" / "console" / "users.json").exists()
    assert server.stop() == 0


@pytest.mark.realtime
def test_standalone_ends_with_the_reason_if_its_console_cannot_listen(cli: Start, tmp_path: Path) -> None:
    from ports import free_port

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--namesrv-port", str(free_port()), "--port", str(free_port()), "--console-port", port)
        done = cli("standalone", "--data", str(tmp_path / "data"), "--console", *words)
    assert done.returncode == 2 and f"cannot listen on 127.0.0.1:{port}" in done.stderr, done.stderr
    assert "boot success" not in done.stdout


@pytest.fixture
def page(serve: Start, standalone: Start, tmp_path: Path) -> Iterator[Any]:
    """A page of a browser that is logged in to a console of a standalone server; it fails on an error in the browser."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        missing(f"no browser: none of {', '.join(BROWSERS)} is installed; `make peers`")
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
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        opened = browser.new_page(base_url=server.facts["url"], viewport={"width": 1200, "height": 800})
        opened.set_default_timeout(PAGE_MS_MAX)
        opened.on("console", lambda message: errors.append(message.text) if is_error(message) else None)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto("/")
        opened.fill("input[name=user]", "admin")
        opened.fill("input[name=password]", password_of(server))
        opened.click("form.login button")
        opened.wait_for_selector("nav a[href='/topics']")
        yield opened
        browser.close()
    assert errors == []


@pytest.mark.realtime
@pytest.mark.timeout(240)
@pytest.mark.spec("UX-17", "UX-15")
def test_pages_work_in_a_browser_in_both_languages(page: Any) -> None:
    page.goto("/topics")
    page.wait_for_selector("text=orders")
    for path in PAGES:
        page.goto(path)
        page.wait_for_selector("h1")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 1200, f"{path} is {width} pixels wide"
    page.set_viewport_size({"width": 400, "height": 800})
    for path in PAGES:
        page.goto(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, f"{path} is {width} pixels wide"
    page.set_viewport_size({"width": 1200, "height": 800})
    page.goto("/topics")
    page.click("summary")
    page.fill("form.change input[name=name]", "made-here")
    page.click("form.change button")
    page.wait_for_url("**/topics/DefaultCluster/made-here")
    page.click("text=Delete this topic")
    page.fill("input[name=confirm]", "made-here")
    page.click("button.danger")
    page.wait_for_url("**/topics")
    assert page.locator("text=made-here").count() == 0
    page.click("button[value=zh]")
    page.wait_for_selector("text=主题")
    for path in PAGES:
        page.goto(path)
        assert page.locator("html[lang=zh-CN]").count() == 1
    page.click("text=退出")
    page.wait_for_url("**/login")


@pytest.mark.realtime
@pytest.mark.timeout(180)
@pytest.mark.spec("UX-13")
def test_wrong_input_stays_in_its_form_in_a_browser(page: Any) -> None:
    page.goto("/groups/DefaultCluster/billing")
    page.click("text=Reset offsets")
    page.fill("input[name=to]", "noon <b>")
    with page.expect_response("**/reset?*") as answer:
        page.click("form.change button >> nth=0")
    assert answer.value.status == 400
    assert "noon <b>" in page.inner_text("details[open] form [role=alert]")
    assert page.input_value("details[open] input[name=to]") == "noon <b>"
    page.goto("/search?topic=orders")
    for text in ("b[", "a["):  # the second time from the page of the refusal
        page.fill("input[name=json]", text)
        page.click("text=Live tail")
        page.wait_for_selector(f"[role=alert]:has-text('{text}')")
    assert "JSON path" in page.inner_text("form.fields [role=alert]")
    assert page.input_value("input[name=json]") == "a[" and page.input_value("input[name=topic]") == "orders"
    page.fill("input[name=json]", "")
    page.click("form.fields button >> nth=0")
    page.wait_for_url("**/search/*")


@pytest.mark.realtime
@pytest.mark.timeout(180)
@pytest.mark.spec("UX-17")
def test_group_is_made_and_reset_and_a_message_is_sent_in_a_browser(page: Any) -> None:
    page.goto("/groups/DefaultCluster/billing/reset?topic=orders&to=start")
    page.click("button.danger")
    page.wait_for_url("**/groups/DefaultCluster/billing")
    page.goto("/groups")
    page.click("text=Create or change a group")
    page.fill("form.fields input[name=name]", "made")
    page.click("form.fields button")
    page.wait_for_url("**/groups/DefaultCluster/made")
    page.click("text=Delete this group")
    page.fill("input[name=confirm]", "made")
    page.click("button.danger")
    page.wait_for_url("**/groups")
    page.goto("/topics/DefaultCluster/orders")
    page.click("text=Send a test message")
    page.fill("textarea[name=body]", '{"a": 1}')
    page.fill("form.fields input[name=keys]", "sent-here")
    page.click("form.fields button")
    page.wait_for_selector("pre")
    assert '"a": 1' in page.inner_text("pre")
    page.click("text=Hexadecimal")
    page.wait_for_selector("text=7b 22 61 22")
    page.goto("/search?topic=orders")
    page.fill("form.fields input[name=key]", "sent-here")
    page.click("form.fields button >> nth=0")
    page.wait_for_selector("td.begin")
    assert page.locator("td.begin").count() == 1


@pytest.mark.realtime
@pytest.mark.timeout(180)
@pytest.mark.spec("UX-17")
def test_page_updates_without_a_reload_and_keeps_what_is_typed(page: Any) -> None:
    page.goto("/topics")
    page.wait_for_selector("text=orders")
    page.click("text=Create or change a topic")
    page.fill("form.change input[name=name]", "half a na")
    page.focus("#live table tbody a")
    focused = page.evaluate("document.activeElement.id")
    page.evaluate("() => { document.title = 'not loaded again'; document.querySelector('.age').remove(); }")
    page.wait_for_selector(".age")  # the next live update replaces the content
    assert page.title() == "not loaded again"
    assert page.input_value("form.change input[name=name]") == "half a na"
    assert page.evaluate("document.activeElement.id") == focused != ""
    assert not page.is_visible("#stale")
    page.route("**/topics", lambda route: route.abort())
    page.wait_for_selector("#stale", state="visible")
    page.unroute("**/topics")
    page.wait_for_selector("#stale", state="hidden")


def test_users_are_added_changed_listed_and_removed(cli: Start, tmp_path: Path) -> None:
    folder, words = str(tmp_path / "c"), ("console", "user")
    add = (*words, "add", "ann", "--role", "viewer", "--password-stdin", "--folder", folder)
    done = cli(*add, stdin=b"long enough\n")
    assert done.returncode == 2 and "no user with the role admin" in done.stderr, done.stderr
    root = (*words, "add", "root", "--role", "admin", "--password-stdin", "--folder", folder)
    assert cli(*root, stdin=b"long enough\n").returncode == 0
    assert cli(*add, stdin=b"long enough\n").stdout == "user ann added role=viewer\n"
    assert cli(*add, stdin=b"another one\n").stdout == "user ann changed role=viewer\n"
    path = tmp_path / "c" / "users.json"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in path.parent.iterdir()) == ["users.json"]
    ann = Users(path).find("ann")
    assert ann is not None and ann.role == "viewer" and check_password("another one", ann.password)
    rows = json.loads(cli(*words, "list", "--folder", folder, "--json").stdout)["rows"]
    assert rows == [{"user": "ann", "role": "viewer"}, {"user": "root", "role": "admin"}]
    done = cli(*words, "remove", "root", "--folder", folder)
    assert done.returncode == 2 and "no user with the role admin" in done.stderr
    assert cli(*words, "remove", "ann", "--folder", folder).returncode == 0
    done = cli(*words, "remove", "ann", "--folder", folder)
    assert done.returncode == 2 and "there are: root" in done.stderr
    for password, message in ((b"short\n", "8 to 1024"), (b"x" * 1025 + b"\n", "8 to 1024")):
        done = cli(*add, stdin=password)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    done = cli(*(word for word in add if word != "--password-stdin"))
    assert done.returncode == 2 and "--password-stdin" in done.stderr


@pytest.mark.realtime
def test_console_and_collect_use_the_cluster_of_the_environment(serve: Start, tmp_path: Path) -> None:
    environment = {"SATURNMQ_URL": "rmq://127.0.0.1:1,127.0.0.1:2", "NAMESRV_ADDR": "127.0.0.1:3"}
    commands = (("console", "--port", "0", "--folder", str(tmp_path)), ("collect", "--data", str(tmp_path / "h.db")))
    for words in commands:
        for more, chosen in (((), "127.0.0.1:1;127.0.0.1:2"), (("-n", "127.0.0.1:4"), "127.0.0.1:4")):
            server = serve(*words, *more, env=environment)
            assert server.facts["name_servers"] == chosen, words
            server.stop()
