# ruff: noqa: SIM117 - separate nested blocks for server, client and console
"""Pages about groups: clients, running information, configuration, deletion, and edited offsets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from browsing import name_server

from saturnmq import Client
from saturnmq.console.actions import ResetTarget, reset_target_of
from saturnmq.console.group_pages import CLIENT_SECONDS
from saturnmq.protocol.errors import ConfigError
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
GROUP = "/groups/DefaultCluster/billing"


async def consumed(client: Client, count: int) -> None:
    async with client.producer("p") as out:
        await out.send_many("orders", [b"x"] * 10)
    async with client.consumer("billing", start="first") as inbox:
        await inbox.subscribe("orders")
        for _ in range(count):
            await (await inbox.recv(30)).ack()


@pytest.mark.spec("CON-06")
async def test_group_shows_clients_owners_and_what_a_client_reports(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await consumed(client, 4)
        async with client.consumer("billing") as inbox:
            await inbox.subscribe("orders")
            await (await inbox.recv(30)).ack()
            async with console(name_server(server)) as one:
                await one.log_in()
                await one.services.state.refresh()
                row = re.search(r">billing</a>.*?</tr>", (await one.browser.get("/groups")).text, re.S)
                assert row is not None and "V4_9_7" in row[0] and ">push<" in row[0] and ">clustering<" in row[0]
                assert ">TOOLS_CONSUMER<" in (await one.browser.get("/groups?kind=system")).text
                page = (await one.browser.get(GROUP)).text
                path = re.search(r'href="(/groups/[^"]+/clients/([^"]+))"', page)
                assert path is not None
                assert page.count("<td>127.0.0.1@") >= 1, page  # the owner of a queue
                page = (await one.browser.get(path[1])).text
                assert "PROP_CLIENT_VERSION" in page and ">orders<" in page and "stack=1" in page
                page = (await one.browser.get(path[1] + "?stack=1")).text
                assert "MainThread" in page
                assert (await one.browser.get(GROUP + "/clients/unknown")).status_code == 502

                async def hangs(*_: object, **options: object) -> None:
                    await asyncio.Event().wait()

                monkeypatch.setattr(one.services.admin.clients, "running_info", hangs)
                begin = asyncio.get_running_loop().time()
                page = await one.browser.get(path[1])
                assert page.status_code == 502 and "no response within 2 s" in page.text
                assert asyncio.get_running_loop().time() - begin < 2 * CLIENT_SECONDS


@pytest.mark.spec("CON-06", "UX-16")
async def test_group_is_created_changed_and_deleted(console: Open) -> None:
    async with EmbeddedBroker() as server:
        async with console(name_server(server)) as one:
            await one.log_in()
            await one.services.state.refresh()
            form = {
                "csrf": await one.csrf(), "cluster": "DefaultCluster", "name": "made", "retry_queue_nums": "2",
                "retry_max_times": "5", "broker_id": "0", "which_broker_when_consume_slowly": "1",
                "consume_enable": "1", "consume_from_min_enable": "1",
            }  # fmt: skip
            answer = await one.browser.post("/do/group", data=form)
            assert answer.headers["location"] == "/groups/DefaultCluster/made", answer.text
            config = server.broker.groups.table["made"]
            assert (config.retry_queue_nums, config.retry_max_times) == (2, 5)
            assert config.consume_enable and not config.consume_broadcast_enable
            page = (await one.browser.get("/groups/DefaultCluster/made")).text
            assert 'name="retry_max_times" value="5" type="number" min="0" max="10000"' in page
            assert (await one.browser.post("/do/group", data=form | {"retry_max_times": "-1"})).status_code == 400
            deletion = {"csrf": form["csrf"], "cluster": "DefaultCluster", "name": "made", "confirm": "made"}
            assert (await one.browser.post("/do/group/delete", data=deletion)).status_code == 400  # no broker
            chosen = deletion | {"broker": server.broker.name}
            assert (await one.browser.post("/do/group/delete", data=chosen | {"confirm": "x"})).status_code == 400
            deleted = await one.browser.post("/do/group/delete", data=chosen)
            assert (deleted.status_code, deleted.headers["location"]) == (303, "/groups")
            assert "made" not in server.broker.groups.table
            log = (one.folder / "audit.log").read_text()
            assert "action=group_delete" in log and "retry_max_times=5" in log


@pytest.mark.spec("CON-06")
async def test_offsets_are_moved_by_messages_and_edited_queue_by_queue(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await consumed(client, 10)
        async with console(name_server(server)) as one:
            await one.log_in()
            await one.services.state.refresh()

            async def previewed(to: str) -> dict[str, str]:
                page = (await one.browser.get(GROUP + "/reset", params={"topic": "orders", "to": to})).text
                return dict(re.findall(r'name="at ([^"]+)" value="(\d+)"', page))

            before = await previewed("+0")
            assert sum(map(int, before.values())) == 10
            back = await previewed("-1")
            assert all(int(back[where]) == max(int(value) - 1, 0) for where, value in before.items())
            assert set((await previewed("#0")).values()) == {"0"} and await previewed("+99") == before
            where, value = max(before.items(), key=lambda item: int(item[1]))
            form = {"csrf": await one.csrf(), "cluster": "DefaultCluster", "group": "billing", "topic": "orders"}
            form |= {"to": "+0", **{f"at {name}": number for name, number in before.items()}, f"at {where}": "1"}
            assert (await one.browser.post("/do/group/reset", data=form)).status_code == 303
            assert (await previewed("+0"))[where] == "1" and int(value) > 1
            for bad in ({f"at {where}": "-1"}, {"at nowhere/0": "1"}, {"at x": "1"}, {"to": "noon"}):
                assert (await one.browser.post("/do/group/reset", data=form | bad)).status_code == 400, bad
            async with client.consumer("billing") as inbox:
                await inbox.subscribe("orders")
                await inbox.recv(30)
                refused = await one.browser.post("/do/group/reset", data=form | {f"at {where}": "0"})
                assert refused.status_code == 400 and "are connected" in refused.text
            assert f"at {where}=1" in (one.folder / "audit.log").read_text()


def test_targets_of_a_reset() -> None:
    assert [reset_target_of(text) for text in ("+5", "-5", "#7", "start")] == [
        ResetTarget("shift", 5), ResetTarget("shift", -5), ResetTarget("offset", 7), ResetTarget("time", 0),
    ]  # fmt: skip
    for text in ("+", "#-1", "+-5", "5"):
        with pytest.raises(ConfigError):
            reset_target_of(text)


@pytest.mark.spec("UX-14")
async def test_asking_ends_together_and_names_what_was_late() -> None:
    from saturnmq.console.asking import within

    async def ask(name: str) -> str:
        if name == "hangs":
            await asyncio.Event().wait()
        if name == "fails":
            raise ConfigError("no")
        return name

    found = await within([*map(str, range(100)), "hangs", "fails"], ask, 0.05)
    assert found["7"] == "7" and str(found["fails"]) == "no" and "no response within" in str(found["hangs"])
    assert await within([], ask) == {}
