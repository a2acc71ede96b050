# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Producers, NameServers and DLedger groups in the console."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from browsing import name_server

from certificates import write_certificate
from saturnmq import Client
from saturnmq.admin import AdminAccess
from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import Survey, TopicState
from saturnmq.console import ledger
from saturnmq.console.state import View
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.raft.core.messages import Code
from saturnmq.testing import EmbeddedBroker

Open = Callable[..., Any]
HOSTILE = "<b>\u202e"


@pytest.mark.spec("CON-08")
async def test_producers_are_listed_by_group_and_by_topic(console: Open) -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with console(name_server(server)) as one, client.producer("orders-p") as out:
            await out.send("orders", b"x")
            await one.log_in()
            await one.services.state.refresh()
            page = (await one.browser.get("/producers?q=ORDERS")).text
            assert "<td>orders-p</td>" in page and "PYTHON" in page
            assert "<td>orders-p</td>" not in (await one.browser.get("/producers?q=other")).text
            page = (await one.browser.get("/producers?group=orders-p&topic=orders&q=other")).text
            assert client.client_id in page
            page = (await one.browser.get("/producers?group=unknown&topic=orders")).text
            assert 'role="alert"' in page and "No producer is connected." in page
            async with AsyncExitStack() as others:
                for number in range(50):
                    await others.enter_async_context(client.producer(f"a-{number}"))
                pages = [(await one.browser.get(f"/producers?page={number}")).text for number in (1, 2)]
            assert [f"<td>{name}</td>" in page for page in pages for name in ("orders-p", "a-0")] == [
                False,
                True,
                True,
                False,
            ]


@pytest.mark.spec("CON-01")
async def test_name_servers_are_shown_and_switched_only_to_one_that_answers(console: Open) -> None:
    async with EmbeddedBroker() as server:
        async with console(f"{name_server(server)};127.0.0.1:1") as one:
            await one.log_in()
            await one.services.state.refresh()
            page = (await one.browser.get("/name-servers")).text
            assert (
                f'<td>{name_server(server)}</td><td><span class="state ok">online</span></td><td class="n">1</td>'
                in page
            )
            assert '<td>127.0.0.1:1</td><td><span class="state bad">does not answer</span>' in page
            assert "<dt>VIP channel</dt><dd>off</dd>" in page and "<dt>TLS</dt><dd>off</dd>" in page
            form = {"csrf": await one.csrf(), "addresses": "127.0.0.1:1"}
            assert (await one.browser.post("/do/name-servers", data=form)).status_code == 502
            assert "127.0.0.1:1;" not in (await one.browser.get("/name-servers")).text
            assert len(one.services.admin.connection.name_servers) == 2
            form["addresses"] = name_server(server)
            assert (await one.browser.post("/do/name-servers", data=form)).status_code == 303
            assert one.services.preview.connection.name_servers == (name_server(server),)
            assert "127.0.0.1:1<" not in (await one.browser.get("/name-servers")).text


@pytest.mark.spec("CON-01")
async def test_health_checks_name_silent_brokers_and_topics_on_one_broker(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        brokers = [BrokerState("C", name, 0, f"127.0.0.1:{number}", {}, "") for number, name in enumerate("ab", 2)]
        brokers.append(BrokerState("C", HOSTILE, 0, "127.0.0.1:9", {}, f"refused {HOSTILE}"))
        config = TopicConfig("t")
        topics = {
            ("C", "both"): TopicState("C", "both", configs={"a": config, "b": config}),
            ("C", "alone"): TopicState("C", "alone", configs={"a": config}),
            ("C", "%RETRY%g"): TopicState("C", "%RETRY%g", configs={"a": config}),
        }
        one.services.state._view = View(Survey(brokers, topics, {}, {}), 1000.0)
        page = (await one.browser.get("/name-servers")).text
        assert ">alone</a>" in page and ">both</a>" not in page and "RETRY" not in page
        assert "refused &lt;b&gt;\\u202e" in page and "\u202e" not in page


def member(name: str, number: int, end: int, **more: str) -> BrokerState:
    role = "LEADER" if number == 0 else "FOLLOWER"
    rows = {"dledgerRole": role, "dledgerTerm": "4", "dledgerLeaderId": "n0", "dledgerBeginIndex": "0"}
    rows |= {"dledgerEndIndex": str(end), "dledgerCommittedIndex": "90", "dledgerFailed": "", **more}
    return BrokerState("C", name, number, f"127.0.0.1:1{number}", rows)


@pytest.mark.spec("UX-16")
async def test_ledger_group_shows_its_members_and_hands_over_after_a_preview(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    async def transferred(*words: Any) -> Code:
        asked.append(words)
        return Code.SUCCESS

    peers = "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913"
    marks = {"dledgerWatermark_n0": "100", "dledgerWatermark_n1": "93"}

    async def configuration(address: str) -> dict[str, str]:
        return {"dLegerPeers": peers, "dLegerSelfId": f"n{address[-1]}", "dLegerGroup": "raft-g"}

    async with console("127.0.0.1:1") as one:
        await one.log_in()
        dead = BrokerState("C", "g", 2, "127.0.0.1:12", {}, f"cannot connect {HOSTILE}")
        brokers = [member("g", 0, 100, **marks), member("g", 1, 93), dead, BrokerState("C", "plain", 0, "h:1", {})]
        one.services.state._view = View(Survey(brokers, {}, {}, {}), 1000.0)
        monkeypatch.setattr(one.services.admin.brokers, "configuration", configuration)
        monkeypatch.setattr(ledger, "transfer_leadership", transferred)
        page = (await one.browser.get("/ledger")).text
        assert 'href="/ledger/g">g</a>' in page and "plain" not in page
        page = (await one.browser.get("/ledger/g")).text
        row = "<td>n1</td><td>127.0.0.1:11</td><td>FOLLOWER</td>" + "".join(
            f'<td class="n">{number}</td>' for number in (4, 0, 93, 90, 93, 7)
        )
        assert row in page and "cannot connect &lt;b&gt;\\u202e" in page
        assert (await one.browser.get("/ledger/plain")).status_code == 404
        page = (await one.browser.get("/ledger/g/transfer?to=n1")).text
        assert "<dt>New leader</dt><dd>n1</dd>" in page and "Nothing is changed yet" in page and asked == []
        assert (await one.browser.get("/ledger/g/transfer?to=n0")).status_code == 400
        form = {"csrf": await one.csrf(), "group": "g", "to": "n1"}
        assert (await one.browser.post("/do/ledger/transfer", data=form | {"to": "n7"})).status_code == 400
        assert (await one.browser.post("/do/ledger/transfer", data=form)).status_code == 303
        assert [words[:3] for words in asked] == [("raft-g", peers, "n1")]
        assert "action=ledger_transfer" in (one.folder / "audit.log").read_text()


@pytest.mark.spec("CON-01")
async def test_tls_is_switched_only_where_the_name_server_speaks_it(console: Open, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "namesrv")
    served = TlsSettings(server_cert_path=str(certificate), server_key_path=str(key))
    access = AdminAccess(tls_ca=str(certificate))
    plain, both = (
        NameServer(NameServerSettings(), NetSettings()),
        NameServer(NameServerSettings(), NetSettings(), tls=served),
    )
    addresses = ["{}:{}".format(*await server.start("127.0.0.1", 0)) for server in (plain, both)]
    try:
        async with console(addresses[0], access=access) as one:
            await one.log_in()
            form = {"csrf": await one.csrf_of("/name-servers"), "addresses": addresses[0], "tls": "1"}
            assert (await one.browser.post("/do/name-servers", data=form)).status_code == 502
            assert "<dt>TLS</dt><dd>off</dd>" in (await one.browser.get("/name-servers")).text
            form["addresses"] = addresses[1]
            assert (await one.browser.post("/do/name-servers", data=form)).status_code == 303
            page = (await one.browser.get("/name-servers")).text
            assert "<dt>TLS</dt><dd>on</dd>" in page and "online" in page
            del form["tls"]
            assert (await one.browser.post("/do/name-servers", data=form)).status_code == 303
            assert not one.services.admin.connection.access.tls and not one.services.preview.connection.access.tls
    finally:
        await plain.stop()
        await both.stop()
