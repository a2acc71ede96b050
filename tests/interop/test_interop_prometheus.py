# ruff: noqa: SIM117 - separate nested blocks for servers, traffic and Prometheus
"""A real Prometheus scrapes a broker and a NameServer, evaluates the rules, and has data for every query of the boards."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from boards import ALERTS, DEPLOY, REPLICATED, apache_queries, queries
from harness.gate.peers import missing
from ports import free_port
from saturnmq import Client
from saturnmq.broker import BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.testing import EmbeddedBroker
from scraped import TOPIC, traffic
from waiting import POLL_SECONDS

pytestmark = pytest.mark.interop_full

SECONDS = 120
# Which values a variable of a board has: all, and of the selectors that compare by `=`, the labels of the scrape file.
VARIABLES = {"$cluster": ".*", "$broker": ".*", "$topic": ".*", "$group": ".*", "$env": "production"}
EXACT = VARIABLES | {"$cluster": "DefaultCluster"}


@pytest.fixture(scope="module")
def prometheus() -> str:
    program = shutil.which("prometheus")
    if program is None or shutil.which("promtool") is None:
        missing("no prometheus and promtool (Debian package prometheus)")
    return program


@asynccontextmanager
async def scraping(program: str, folder: Path, ports: list[int]) -> AsyncIterator[httpx.AsyncClient]:
    """Prometheus with the scrape file of deploy/, whose targets are at these ports; its HTTP interface."""
    document = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    document["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job, port in zip(document["scrape_configs"], ports, strict=True):
        job["static_configs"][0]["targets"] = [f"127.0.0.1:{port}"]
    shutil.copy(ALERTS, folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
    address = f"127.0.0.1:{free_port()}"
    words = (
        f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}", "--log.level=warn",
    )  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(program, *words, stdout=log, stderr=log)
        try:
            async with httpx.AsyncClient(base_url=f"http://{address}/api/v1", timeout=30) as api:
                yield api
        finally:
            server.terminate()
            await server.wait()


async def rows(api: httpx.AsyncClient, query: str) -> list[Any]:
    answer = (await api.get("/query", params={"query": query})).json()
    assert answer["status"] == "success", (query, answer)
    found: list[Any] = answer["data"]["result"]
    return found


async def scraped_for_a_while(api: httpx.AsyncClient) -> None:
    """Wait until both targets are scraped some times, so that rates exist."""
    while True:
        try:
            if len(await rows(api, "count_over_time(up[1m]) >= 6 and up == 1")) == 2:
                return
        except httpx.TransportError:
            pass  # it starts
        await asyncio.sleep(POLL_SECONDS)  # poll


def filled(query: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        query = query.replace(name, value)
    return query


@pytest.mark.spec("INT-13", "INT-14", "EXP-02")
async def test_every_query_of_the_boards_and_rules_has_data(prometheus: str, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]

    async def work() -> None:
        names = NameServer(NameServerSettings(metrics_port=ports[1]), NetSettings())
        await names.start("127.0.0.1", 0)
        try:
            settings = BrokerSettings(metrics_port=ports[0])
            async with EmbeddedBroker(settings=settings) as server, Client.from_url(server.url) as client:
                async with traffic(server, client), scraping(prometheus, tmp_path, ports) as api:
                    async with client.producer("more") as out:
                        for _ in range(20):
                            await out.send(TOPIC, b"x")
                    await scraped_for_a_while(api)
                    await check_boards(api)
                    await check_rules(api)
        finally:
            await names.stop()

    async with asyncio.timeout(SECONDS):
        await work()


async def check_boards(api: httpx.AsyncClient) -> None:
    for where, query in queries():
        if query == "prometheus" or REPLICATED.search(query):
            continue  # the data source, and what needs replicas
        if query.startswith("label_values("):
            query = query.removeprefix("label_values(").rpartition(",")[0]
        found = await rows(api, filled(query, VARIABLES))
        assert found or "alert" in where.lower() or where in RULES, f"{where}: {query} has no data"
    for query in apache_queries():
        assert await rows(api, filled(query, EXACT)), f"{query} has no data"


async def check_rules(api: httpx.AsyncClient) -> None:
    """Every rule is evaluated without an error."""
    while True:
        groups = (await api.get("/rules")).json()["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        if found and all(rule["health"] != "unknown" for rule in found):
            break
        await asyncio.sleep(POLL_SECONDS)  # poll
    assert {rule["name"] for rule in found} == RULES
    assert not [(rule["name"], rule["lastError"]) for rule in found if rule["health"] != "ok" or rule.get("lastError")]


RULES = {
    rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}  # rules select what is wrong: none has rows in a healthy cluster


@pytest.mark.spec("INT-14")
def test_promtool_accepts_the_files(prometheus: str) -> None:
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        words = ["promtool", "check", kind, name]
        done = subprocess.run(words, cwd=ALERTS.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
