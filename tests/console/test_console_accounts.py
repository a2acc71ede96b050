# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Accounts in the console: list without secrets, changes on all masters, brokers without access control."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import name_server

from saturnmq.admin import read_access
from saturnmq.admin.survey import Survey
from saturnmq.broker import BrokerSettings
from saturnmq.console.state import View
from saturnmq.protocol.bodies import AclConfig, PlainAccessConfig
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
SECRET = "secret-of-root"
ACCOUNTS = f"""
accounts:
- accessKey: rootkey
  secretKey: {SECRET}
  admin: true
"""


@pytest.mark.spec("CON-12")
async def test_accounts_are_listed_changed_and_deleted_without_their_secrets(console: Open, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "conf"
    folder.mkdir(parents=True)
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    (folder / "plain_acl.yml").chmod(0o600)
    tools = tmp_path / "tools.yml"
    tools.write_text(f"accessKey: rootkey\nsecretKey: {SECRET}\n")
    settings = BrokerSettings(acl_enable=True, acl_home=str(tmp_path / "home"))
    async with EmbeddedBroker(settings=settings) as server:
        async with console(name_server(server), access=read_access(tools=tools)) as one:
            await one.log_in()
            await one.services.state.refresh()
            page = (await one.browser.get("/accounts")).text
            assert "<td>rootkey</td><td>******</td>" in page and SECRET not in page and "plain_acl.yml" in page
            common = {"csrf": await one.csrf(), "cluster": "DefaultCluster", "broker": server.broker_address}
            form = common | {
                "access_key": "billing-app", "secret": "12345678", "white": "", "topic_default": "DENY",
                "group_default": "SUB", "topic_permissions": "orders=PUB|SUB\r\nother=DENY", "group_permissions": "",
            }  # fmt: skip
            assert (await one.browser.post("/do/account", data=form)).status_code == 303
            page = (await one.browser.get("/accounts?q=BILL&edit=billing-app")).text
            assert "orders=PUB|SUB, other=DENY" in page and "12345678" not in page and "<td>rootkey" not in page
            assert "orders=PUB|SUB\nother=DENY</textarea>" in page
            for wrong in ({"topic_default": "ALL"}, {"topic_permissions": "orders"}, {"white": "x" * 1001}):
                assert (await one.browser.post("/do/account", data=form | wrong)).status_code == 400, wrong
            white = common | {"white": "10.10.103.*\n192.168.0.1"}
            assert (await one.browser.post("/do/account/white", data=white)).status_code == 303
            assert "192.168.0.1" in (await one.browser.get("/accounts")).text
            lone = common | {"access_key": "billing-app"}
            assert (await one.browser.post("/do/accounts/copy", data=lone)).status_code == 303  # no other master
            assert (await one.browser.post("/do/accounts/copy", data=lone | {"access_key": "x"})).status_code == 400
            elsewhere = lone | {"broker": "127.0.0.1:9"}  # no master: it is not connected to
            assert (await one.browser.post("/do/accounts/copy", data=elsewhere)).status_code == 400
            deletion = common | {"access_key": "billing-app", "confirm": "other"}
            assert (await one.browser.post("/do/account/delete", data=deletion)).status_code == 400
            await one.browser.post("/do/account/delete", data=deletion | {"confirm": "billing-app"})
            assert "billing-app" not in (await one.browser.get("/accounts")).text
            log = (one.folder / "audit.log").read_text()
            assert "action=account_delete" in log and "action=white_list" in log and "12345678" not in log


@pytest.mark.spec("CON-12")
async def test_broker_without_access_control_says_so(console: Open) -> None:
    async with EmbeddedBroker() as server:
        async with console(name_server(server)) as one:
            await one.log_in()
            await one.services.state.refresh()
            page = (await one.browser.get("/accounts")).text
            assert "Access control is off on this broker" in page and "aclEnable=true" in page
            assert 'class="bad"' not in page.partition("<h1>")[2].partition("<section>")[0]
            form = {"csrf": await one.csrf(), "cluster": "DefaultCluster", "access_key": "a", "confirm": "a"}
            answer = await one.browser.post("/do/account/delete", data=form)
            assert answer.status_code == 502 and "Not on every broker" in answer.text


@pytest.mark.spec("CON-12")
async def test_account_is_copied_to_the_other_masters_of_the_cluster(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = PlainAccessConfig(access_key="app", topic_perms=["orders=PUB"], secret_key="given by Apache")
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        one.services.state._view = View(Survey([], {}, {}, {}), 1000.0)
        assert "No master is known." in (await one.browser.get("/accounts")).text
        admin, given = one.services.admin, {}

        async def listing(address: str) -> AclConfig:
            return AclConfig(plain_access_configs=[account])

        async def masters(cluster: str) -> dict[str, str]:
            return {"a": "h:1", "b": "h:2", "c": "h:3"}

        async def put(address: str, wanted: PlainAccessConfig) -> None:
            given[address] = (wanted.access_key, wanted.topic_perms, wanted.secret_key)

        monkeypatch.setattr(admin.accounts, "listing", listing)
        monkeypatch.setattr(admin.accounts, "put", put)
        monkeypatch.setattr(admin.connection, "masters", masters)
        form = {"csrf": await one.csrf_of("/search"), "cluster": "C", "broker": "h:1", "access_key": "app"}
        assert (await one.browser.post("/do/accounts/copy", data=form)).status_code == 303
        assert given == {"h:2": ("app", ["orders=PUB"], None), "h:3": ("app", ["orders=PUB"], None)}
        await one.browser.post("/do/accounts/copy", data=form | {"secret": "12345678"})
        assert given["h:2"][2] == "12345678" and "h:1" not in given
        assert "12345678" not in (one.folder / "audit.log").read_text()
