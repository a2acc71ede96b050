"""Every page of the console: secrets that were planted are in none, and text from messages or addresses is escaped in all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.admin import read_access
from saturnmq.broker import BrokerSettings
from saturnmq.console.app import PAGES
from saturnmq.testing import EmbeddedBroker
from waiting import POLL_SECONDS

Open = Callable[..., Any]
HOSTILE = "<script>alert('x')</script>\u202e"
ACCOUNT, REGISTRATION = "planted-secret-of-root", "planted-secret-of-registration"
SECRETS = (ACCOUNT, REGISTRATION, "planted-secret-of-user")
GROUP = "billing"
NAMES = {"/topics": "orders", "/groups": GROUP, "/dead-letters": GROUP, "/ledger": "DefaultCluster"}
ANSWERS = {"text/html", "text/csv", "application/jsonl", "application/x-ndjson", "application/json", "text/plain"}


async def messages(server: EmbeddedBroker) -> str:
    """Messages with hostile bodies, tags, keys and properties, also in the dead-letter topic; the id of one of them."""
    async with Client.from_url(server.url, access_key="rootkey", secret_key=ACCOUNT) as client:
        async with client.producer("p") as out:
            for topic in (f"%DLQ%{GROUP}", "orders"):
                text = f'{{"a": "{HOSTILE}"}}'.encode()
                receipt = await out.send(topic, text, tag="t<b>", keys=["k<script>alert"], properties={"shop": HOSTILE})
        async with client.consumer(GROUP, start="first") as inbox:
            await inbox.subscribe("orders")
            await (await inbox.recv(30)).ack()
    return receipt.message_id


async def opened_pages(one: Any, server: EmbeddedBroker, message: str) -> dict[str, httpx.Response]:
    """The answer of each page, filled with names that exist, without and with hostile parameters."""
    form = {"csrf": await one.csrf(), "topic": "orders"}
    job = (await one.browser.post("/do/search", data=form)).headers["location"].rpartition("/")[2]
    await asyncio.wait_for(asyncio.shield(one.services.jobs.find("admin", job).task), 30)
    answers = {}
    for path in PAGES:
        start = "/" + path.split("/")[1]
        fill = {
            "address": server.broker_address, "cluster": "DefaultCluster", "name": NAMES.get(start, ""), "topic": "orders",
            "id": job if start == "/search" else message, "kind": "jsonl", "client": "c<b>",
        }  # fmt: skip
        filled = re.sub(r"\{(\w+)\}", lambda found, fill=fill: fill[found[1]], path)
        usual = {"topic": "orders", "to": "end"} if path.endswith("/reset") else {}
        answers[path] = await one.browser.get(filled, params=usual)
        parameters = dict.fromkeys(
            (
                "q",
                "topic",
                "key",
                "id",
                "group",
                "begin",
                "end",
                "json",
                "tag",
                "broker",
                "edit",
                "to",
                "sort",
                "kind",
                "form",
            ),
            HOSTILE,
        )
        answers[path + " with parameters"] = await one.browser.get(filled, params=parameters)
    return answers


@pytest.mark.spec("SEC-13", "SEC-22", "G12")
async def test_no_page_shows_a_secret_or_markup_of_others(console: Open, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "conf"
    folder.mkdir(parents=True)
    accounts = folder / "plain_acl.yml"
    accounts.write_text(
        f"accounts:\n- accessKey: rootkey\n  secretKey: {ACCOUNT}\n  admin: true\n"
        f"- accessKey: userkey\n  secretKey: {SECRETS[2]}\n  topicPerms: [orders=PUB|SUB]\n"
    )
    accounts.chmod(0o600)
    tools = tmp_path / "tools.yml"
    tools.write_text(f"accessKey: rootkey\nsecretKey: {ACCOUNT}\n")
    settings = BrokerSettings(
        acl_enable=True, acl_home=str(tmp_path / "home"), namesrv_access_key="r", namesrv_secret_key=REGISTRATION
    )
    async with EmbeddedBroker(settings=settings) as server:
        message = await messages(server)
        async with console(name_server(server), access=read_access(tools=tools)) as one:
            await one.log_in()
            await one.services.state.refresh()
            async with asyncio.timeout(30):
                while "t&lt;b&gt;" not in (await one.browser.get("/messages?topic=orders&key=k<script>alert")).text:
                    await asyncio.sleep(POLL_SECONDS)  # poll: the index follows the log
            answers = await opened_pages(one, server, message)
        audit = (one.folder / "audit.log").read_text()
    missing = {path: answers[path].status_code for path in PAGES if answers[path].status_code != 200}
    absent = dict.fromkeys(("/ledger/{name}", "/ledger/{name}/transfer"), 404)  # there is no DLedger group
    assert missing == absent | {"/groups/{cluster}/{name}/clients/{client}": 502}  # and no client
    assert "&lt;script&gt;alert" in answers["/messages/{topic}/{id}"].text, "the hostile body is shown, escaped"
    for path, answer in answers.items():
        kind = answer.headers.get("content-type", "text/html").partition(";")[0]
        assert answer.status_code < 500 or answer.status_code == 502, (path, answer.status_code)
        assert not any(secret in answer.text for secret in SECRETS), path
        if kind == "text/html":
            assert "<script>alert" not in answer.text, path
            assert path not in PAGES or "\u202e" not in answer.text, (
                f"{path}: it turns the direction of the text after it"
            )
        else:
            assert kind in ANSWERS and answer.headers["x-content-type-options"] == "nosniff", (path, kind)
    assert not any(secret in audit for secret in SECRETS)
    assert one.password not in "".join(answer.text for answer in answers.values())
