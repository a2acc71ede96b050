"""The advertised address: warned of at the start if others cannot use it, set by SATURNMQ_ADVERTISED_HOST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq.cli.advertised import warn_of_address

NEXT = "; set brokerIP1 (or SATURNMQ_ADVERTISED_HOST) to a name or address that all clients reach\n"


@pytest.mark.spec("UX-04")
@pytest.mark.parametrize(
    ("bound", "advertised", "text"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", ""),
        ("0.0.0.0:1", "127.0.0.1:1", "127.0.0.1:1, which clients on other machines take for themselves"),
        ("0.0.0.0:1", "localhost:1", "localhost:1, which clients on other machines take for themselves"),
        ("0.0.0.0:1", "172.17.0.2:1", "172.17.0.2:1, an address inside a container network of this machine"),
        (
            "0.0.0.0:1",
            "a.docker.internal:1",
            "a.docker.internal:1, an address inside a container network of this machine",
        ),
    ],
)
def test_advertised_address_of_no_use_is_warned_of(
    capsys: pytest.CaptureFixture[str], bound: str, advertised: str, text: str
) -> None:
    asyncio.run(warn_of_address(bound, advertised))
    expected = f"saturnmq: warning: the broker advertises {text}{NEXT}" if text else ""
    assert capsys.readouterr().err == expected


@pytest.mark.spec("UX-04")
def test_advertised_address_that_refuses_connections_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saturnmq.cli.advertised.is_loopback", lambda host: False)  # no other address is sure to exist

    async def advertised(listening: bool) -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if not listening:
            server.close()
        await warn_of_address("0.0.0.0:1", f"127.0.0.1:{port}")
        server.close()

    asyncio.run(advertised(True))
    assert capsys.readouterr().err == ""
    asyncio.run(advertised(False))
    assert "which does not accept connections from here; set brokerIP1" in capsys.readouterr().err


@pytest.mark.spec("UX-04")
def test_variable_sets_the_advertised_host(standalone: Callable[..., Any], started_cli: Callable[..., Any]) -> None:
    server = standalone("--host", "0.0.0.0", env={"SATURNMQ_ADVERTISED_HOST": "localhost"})
    port = server.facts["broker"].rpartition(":")[2]
    assert server.facts["advertised"] == f"localhost:{port}"
    name_server = f"127.0.0.1:{server.facts['namesrv'].rpartition(':')[2]}"
    done = started_cli("send", "orders", "x", "-n", name_server, "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[0])["rows"][0]["status"] == "SEND_OK"


def test_ipv6_addresses_have_brackets_wherever_others_read_them(
    standalone: Callable[..., Any], cli: Callable[..., Any]
) -> None:
    server = standalone("--host", "::1")
    name_server, broker = server.facts["namesrv"], server.facts["broker"]
    assert name_server.startswith("[::1]:") and broker.startswith("[::1]:") and server.facts["advertised"] == broker
    assert server.facts["unauthenticated"].split(",")[:2] == [f"namesrv:{name_server}", f"broker:{broker}"]
    sent = cli("send", "orders", "x", "-n", name_server, "--json")
    assert sent.returncode == 0, sent.stderr
    row = json.loads(sent.stdout.splitlines()[0])["rows"][0]
    viewed = cli("admin", "queryMsgById", "-i", row["offset_message_id"], "-n", name_server)
    assert f"{broker.rpartition(':')[2]}" in viewed.stdout and viewed.returncode == 0, (row, viewed)
    registered = cli("admin", "clusterList", "-n", name_server)
    assert f" {broker} " in registered.stdout


@pytest.mark.spec("CLI-10")
def test_variable_is_shown_as_origin_and_overridden_by_set(cli: Callable[..., Any]) -> None:
    env = {"SATURNMQ_ADVERTISED_HOST": "broker.example"}

    def printed(*args: str) -> dict[str, str]:
        rows: list[dict[str, str]] = json.loads(cli("broker", "--print-config", "--json", *args, env=env).stdout)[
            "rows"
        ]
        return next({"value": row["value"], "origin": row["origin"]} for row in rows if row["key"] == "brokerIP1")

    assert printed() == {"value": "broker.example", "origin": "environment SATURNMQ_ADVERTISED_HOST"}
    assert printed("--set", "brokerIP1=10.0.0.5") == {"value": "10.0.0.5", "origin": "--set"}
