"""Calls to peers without a network: what is signed, which failures are reported to whom, which NameServer is tried next."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq.client.connection import address_server, deadline, forks, remote
from saturnmq.client.connection.access import ClusterAccess, access_of_tls
from saturnmq.client.connection.name_servers import NameServerList
from saturnmq.client.connection.remote import Remote
from saturnmq.errors import CallTimeout, ConnectFailed, NoNameServer
from saturnmq.net import Connection
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import BodyError
from saturnmq.protocol.frames.command import Command

SIGNED = ClusterAccess(access_key="key", secret_key="secret-key")
SHORT = 4 * 1024 * 1024
SEND = int(RequestCode.SEND_MESSAGE_V2)
PULL = int(RequestCode.PULL_MESSAGE)


class Wire:
    """Stands for RemotingClient: each call gets the next outcome, an answer or an error. sent: address, timeout, commands."""

    def __init__(self, **_: Any) -> None:
        self.outcomes: list[Any] = []
        self.sent: list[tuple[str, int, list[Command]]] = []
        self.dropped: list[tuple[str, str]] = []
        self.connections: list[Any] = []
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    def _next(self, address: str, timeout_ms: int, *commands: Command) -> Any:
        self.sent.append((address, timeout_ms, list(commands)))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def invoke(self, address: str, command: Command, timeout_ms: int) -> Any:
        return self._next(address, timeout_ms, command)

    async def invoke_oneway(self, address: str, command: Command, timeout_ms: int) -> Any:
        return self._next(address, timeout_ms, command)

    async def invoke_all(self, address: str, commands: Sequence[Command], timeout_ms: int) -> Any:
        return self._next(address, timeout_ms, *commands)

    def is_connected(self, address: str) -> bool:
        return address == "connected:1"

    def drop(self, address: str, reason: str) -> None:
        self.dropped.append((address, reason))


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A Remote on a Wire, and the list of the failures that it reports."""
    monkeypatch.setattr(remote, "RemotingClient", Wire)

    def opened(access: ClusterAccess = SIGNED) -> tuple[Remote, Wire, list[tuple[str, bool]]]:
        failures: list[tuple[str, bool]] = []
        peers = Remote(access, cast(Any, None), lambda address, unresponsive: failures.append((address, unresponsive)))
        return peers, cast(Wire, peers._client), failures

    return opened


def is_signed(command: Command) -> bool:
    return command.ext.get("AccessKey") == "key" and len(command.ext.get("Signature", "")) > 20


def parked(code: int) -> Command:
    return Command(code, ext={"queueOffset": "5"})


# outcomes of requests


async def test_request_is_signed_and_sent_with_its_timeout(peer: Callable[..., Any]) -> None:
    peers, wire, failures = peer()
    wire.outcomes = [Command(0, body=b"answer")]
    assert (await peers.call("broker:1", parked(SEND), 700)).body == b"answer"
    ((address, timeout_ms, (command,)),) = wire.sent
    assert (address, timeout_ms, is_signed(command), failures) == ("broker:1", 700, True, [])
    peers, wire, _ = peer(ClusterAccess())
    wire.outcomes = [Command(0)]
    await peers.call("broker:1", parked(SEND), 700)
    assert "AccessKey" not in wire.sent[0][2][0].ext


@pytest.mark.parametrize(("error", "is_unresponsive"), [(CallTimeout("late"), True), (ConnectFailed("refused"), False)])
async def test_failed_call_names_the_peer_and_is_reported(
    peer: Callable[..., Any], error: Any, is_unresponsive: bool
) -> None:
    peers, wire, failures = peer()
    wire.outcomes = [error]
    with pytest.raises(type(error)) as caught:
        await peers.call("broker:1", parked(SEND), 700)
    assert caught.value.broker == "broker:1" and failures == [("broker:1", is_unresponsive)]


@pytest.mark.parametrize(
    ("request_code", "code", "next_offset", "is_reported"),
    [
        (SEND, ResponseCode.SERVICE_NOT_AVAILABLE, "6", True),
        (PULL, ResponseCode.PULL_RETRY_IMMEDIATELY, "5", True),
        (PULL, ResponseCode.PULL_RETRY_IMMEDIATELY, "6", False),
        (SEND, ResponseCode.PULL_RETRY_IMMEDIATELY, "5", False),
        (PULL, ResponseCode.SYSTEM_BUSY, "5", False),
    ],
)
async def test_answer_of_a_broker_that_is_no_master_is_reported(
    peer: Callable[..., Any], request_code: int, code: int, next_offset: str, is_reported: bool
) -> None:
    answer = Command(code, ext={"nextBeginOffset": next_offset})
    peers, wire, failures = peer()
    wire.outcomes = [answer, [Command(0), answer, answer]]
    expected = [("broker:1", False)] * is_reported
    assert await peers.call("broker:1", parked(request_code), 700) is answer
    assert failures == expected
    failures.clear()
    outcomes = await peers.call_all("broker:1", [parked(request_code) for _ in range(3)], 700)
    assert outcomes[1:] == [answer, answer] and failures == expected, "once for requests that were written together"


async def test_answer_without_messages_has_4_mib(peer: Callable[..., Any]) -> None:
    peers, wire, _ = peer()
    wire.outcomes = [Command(0, body=bytes(SHORT)), *(Command(0, body=bytes(SHORT + 1)) for _ in range(4))]
    assert len((await peers.call("broker:1", parked(SEND), 700)).body or b"") == SHORT
    for code in (RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID):
        assert len((await peers.call("broker:1", parked(code), 700)).body or b"") == SHORT + 1
    with pytest.raises(BodyError, match="the answer of broker:1 to request 310 has 4194305 bytes, at most 4194304"):
        await peers.call("broker:1", parked(SEND), 700)


async def test_requests_written_together_are_all_signed(peer: Callable[..., Any]) -> None:
    peers, wire, failures = peer()
    late = CallTimeout("late")
    wire.outcomes = [[Command(0, body=b"1"), late, CallTimeout("late, too")]]
    outcomes = await peers.call_all("broker:1", [parked(SEND) for _ in range(3)], 700)
    assert [type(outcome) for outcome in outcomes] == [Command, CallTimeout, CallTimeout]
    ((address, timeout_ms, commands),) = wire.sent
    assert (address, timeout_ms, [is_signed(command) for command in commands]) == ("broker:1", 700, [True] * 3)
    assert late.broker == "broker:1" and failures == [("broker:1", True)], "one report for all"


async def test_lost_connection_is_the_outcome_of_each_request_written_together(peer: Callable[..., Any]) -> None:
    peers, wire, failures = peer()
    lost = ConnectFailed("lost")
    wire.outcomes = [lost]
    assert await peers.call_all("broker:1", [parked(SEND) for _ in range(3)], 700) == [lost] * 3
    assert lost.broker == "broker:1" and failures == [("broker:1", False)]


async def test_one_way_request_reports_a_lost_connection_and_no_full_one(peer: Callable[..., Any]) -> None:
    peers, wire, failures = peer()
    wire.outcomes = [None, CallTimeout("not written"), ConnectFailed("lost")]
    await peers.call_oneway("broker:1", parked(SEND), 700)
    assert is_signed(wire.sent[0][2][0]) and wire.sent[0][:2] == ("broker:1", 700)
    for error, expected in ((CallTimeout, []), (ConnectFailed, [("broker:1", False)])):
        with pytest.raises(error) as caught:
            await peers.call_oneway("broker:1", parked(SEND), 700)
        assert caught.value.broker == "broker:1" and failures == expected


def test_answer_on_the_connection_of_a_broker_is_signed(peer: Callable[..., Any]) -> None:
    written: list[Command] = []

    class Opened:
        def invoke_oneway(self, command: Command) -> None:
            written.append(command)

    for access, signed in ((SIGNED, True), (ClusterAccess(), False)):
        peers, _, _ = peer(access)
        peers.answer_oneway(cast(Connection, Opened()), parked(SEND))
        assert is_signed(written.pop()) is signed


def test_forked_child_has_none_of_the_connections(peer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    peers, _, _ = peer()
    assert peers.is_connected("connected:1") and not peers.is_connected("other:1")
    monkeypatch.setattr(forks, "generation", forks.generation + 1)
    assert not peers.is_connected("connected:1")


async def test_connections_are_listed_dropped_and_closed(peer: Callable[..., Any]) -> None:
    peers, wire, _ = peer()

    def connection(number: int | None) -> Any:
        sockets = {"socket": None if number is None else SimpleNamespace(fileno=lambda: number)}
        return SimpleNamespace(transport=SimpleNamespace(get_extra_info=sockets.get))

    wire.connections = [connection(7), connection(0), connection(-1), connection(None), SimpleNamespace(transport=None)]
    assert peers.sockets() == [7, 0], "those that are open"
    peers.drop("broker:1", "replaced")
    assert wire.dropped == [("broker:1", "replaced")]
    await peers.close()
    assert wire.is_closed


# choice of the NameServer


class Answers:
    """Stands for Remote: addresses in `live` answer, the others fail. A call takes `took_s` of the clock."""

    def __init__(self, *live: str) -> None:
        self.live = set(live)
        self.connected: set[str] = set()
        self.calls: list[tuple[str, int]] = []
        self.dropped: list[tuple[str, str]] = []
        self.now_s = 100.0
        self.took_s = 0.0

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.calls.append((address, timeout_ms))
        self.now_s += self.took_s
        if address not in self.live:
            raise ConnectFailed("no connection", reason="refused")
        self.connected.add(address)
        return command.reply()

    def is_connected(self, address: str) -> bool:
        return address in self.connected

    def drop(self, address: str, reason: str) -> None:
        self.dropped.append((address, reason))

    def tried(self) -> str:
        tried = "".join(address for address, _ in self.calls)
        self.calls.clear()
        return tried


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of NameServers is not shuffled, and begins behind its first one."""
    monkeypatch.setattr(random, "sample", lambda addresses, count: list(addresses)[:count])
    monkeypatch.setattr(random, "randrange", lambda most: 0)


async def asked(servers: NameServerList) -> None:
    await servers.call(Command(105), 1000)


@pytest.mark.spec("REM-27")
@pytest.mark.usefixtures("ordered")
async def test_chosen_name_server_stays_while_it_is_connected() -> None:
    peers = Answers("c", "d")
    servers = NameServerList(("a", "b", "c", "d"), cast(Remote, peers))
    assert servers.addresses == ("a", "b", "c", "d") and servers.chosen is None
    await asked(servers)
    assert (peers.tried(), servers.chosen) == ("bc", "c")
    await asked(servers)
    assert peers.tried() == "c"
    peers.connected.clear()
    await asked(servers)
    assert (peers.tried(), servers.chosen) == ("d", "d"), "the one behind the last choice"
    peers.live = {"b"}
    await asked(servers)
    assert (peers.tried(), servers.chosen) == ("dab", "b"), (
        "connected, but it does not answer: then the others in order"
    )


@pytest.mark.spec("UX-06")
@pytest.mark.usefixtures("ordered")
async def test_each_name_server_gets_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Answers()
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: peers.now_s))
    servers = NameServerList(("a", "b", "c", "d"), cast(Remote, peers))
    with pytest.raises(NoNameServer, match=r"tried b: refused, c: refused, d: refused, a: refused\)"):
        await servers.call(Command(105), 1000)
    assert peers.calls == [("b", 250), ("c", 333), ("d", 500), ("a", 1000)]
    peers.calls.clear()
    peers.took_s = 0.6
    with pytest.raises(NoNameServer, match=r"tried b: refused, c: refused, d: no time left, a: no time left\)"):
        await servers.call(Command(105), 1000)
    assert peers.calls == [("b", 250), ("c", 133)]


@pytest.mark.usefixtures("ordered")
async def test_connections_to_removed_name_servers_are_dropped() -> None:
    peers = Answers("b")
    servers = NameServerList(("a", "b"), cast(Remote, peers))
    await asked(servers)
    servers.update(("b", "a"))
    assert servers.addresses == ("a", "b") and not peers.dropped, "the same ones in another order"
    servers.update(("b", "x"))
    assert servers.chosen == "b", "it is still in the list"
    assert peers.dropped == [("a", "the NameServer was removed from the list of addresses")]
    servers.update(("x",))
    assert servers.chosen is None and [address for address, _ in peers.dropped] == ["a", "b"]


async def test_list_without_name_servers_names_the_settings() -> None:
    with pytest.raises(NoNameServer, match=r"no NameServer is configured: set SATURNMQ_URL .* or NAMESRV_ADDR"):
        await asked(NameServerList((), cast(Remote, Answers())))


async def test_address_server_is_http_and_its_password_is_not_shown() -> None:
    for url in ("ftp://user:pass@host/list", "file:///etc/passwd", "host/list"):
        with pytest.raises(NoNameServer, match="must be an http:// or https:// URL") as caught:
            await address_server.fetch_addresses(url, None)
        assert "pass@" not in str(caught.value)


# access to a cluster


def test_access_and_tls_settings_say_the_same() -> None:
    access = ClusterAccess(
        tls=True,
        tls_verify=False,
        tls_check_host=False,
        tls_ca="ca",
        tls_cert="cert",
        tls_key="key",
        tls_key_password="password",
    )
    fields = {name: getattr(access, name) for name in ("tls", "tls_verify", "tls_check_host")}
    fields |= {name: getattr(access, name) for name in ("tls_ca", "tls_cert", "tls_key", "tls_key_password")}
    assert access_of_tls(access.tls_settings) == fields
    plain = access_of_tls(ClusterAccess().tls_settings)
    assert plain == {**dict.fromkeys(fields), "tls": False, "tls_verify": True, "tls_check_host": True}


def test_secrets_are_in_no_representation() -> None:
    secrets = ("secret_key", "security_token", "tls_key_password")
    access = ClusterAccess(access_key="name", **dict.fromkeys(secrets, "hidden"))  # type: ignore[arg-type]
    shown = repr(access)
    assert "hidden" not in shown and "access_key='name'" in shown
    names = {field.name for field in dataclasses.fields(access)}
    assert {name for name in names if f"{name}=" not in shown} == set(secrets)
