"""Limits of the route table, shared by the addresses that register: a stranger beside honest brokers."""

from __future__ import annotations

import asyncio
import logging
import zlib
from pathlib import Path
from typing import Any

import pytest

from loopsteps import STEP_MAX, loop_steps
from saturnmq.log_limit import LogLimit
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.namesrv.processor import process
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    read_compressed_registration,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command


class Peer:
    """A connection of any address."""

    closed = False
    encrypted = False

    def __init__(self, host: str) -> None:
        self.remote_address = f"{host}:4000"


def name_server(folder: Path, **more: Any) -> NameServer:
    return NameServer(
        NameServerSettings(
            kv_config_path=str(folder / "kv.json"), config_store_path=str(folder / "ns.properties"), **more
        ),
        NetSettings(),
    )


def register(
    server: NameServer, peer: Peer, name: str, topics: list[str], *, version: int = 1, filters: Any = (), **ext: str
) -> str:
    """Register a broker; the error's text, "" for none."""
    fields = {"brokerName": name, "brokerAddr": f"{name}:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0"}
    table = TopicConfigTable({topic: TopicConfig(topic, 1, 1) for topic in topics}, DataVersion(1, version))
    made = RegisterBrokerBody(table, list(filters))
    legal = not any(" " in topic for topic in topics)
    fields["compressed"] = str(legal).lower()
    body = made.encode_compressed() if legal else made.encode()
    try:
        answer = process(server, peer, Command(RequestCode.REGISTER_BROKER, ext=fields | ext, body=body, version=407))
    except ResponseError as error:
        return error.remark
    assert isinstance(answer, Command) and answer.code == 0
    return ""


def some(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def fill(server: NameServer, peer: Peer, *, topics: int = 500) -> tuple[int, str]:
    """Register brokers until one is rejected; their number and the error."""
    number = 0
    while not (error := register(server, peer, f"{peer.remote_address}-{number}", some("t", topics))):
        number += 1
    return number, error


@pytest.mark.parametrize("strangers", [1, 2, 10])
def test_strangers_leave_space_for_brokers_registered_earlier(strangers: int, tmp_path: Path) -> None:
    """(topic, broker) entries were not limited at all, and the topics of all brokers together only for all addresses at once."""
    server, honest = name_server(tmp_path, topics_max=50_000), Peer("10.0.0.1")
    assert register(server, honest, "honest", some("h", 400)) == ""
    for number in range(strangers):
        _, error = fill(server, Peer(f"198.51.100.{number}"))
        assert "topicsMax=50000" in error and f"198.51.100.{number}" in error
    assert server.routes.topic_shares.total < 50_000
    assert register(server, honest, "honest", some("h", 400), version=2) == ""
    assert register(server, honest, "honest", some("h", 600), version=3) == "", "it adds topics"
    assert register(server, Peer("10.0.0.2"), "new", some("n", 50)) == "", "and another joins"
    for number in range(3):
        _, error = fill(server, Peer(f"198.51.100.{number}"), topics=1)
        assert server.routes.topic_shares.total < 50_000


def test_stranger_who_disconnects_releases_its_share(tmp_path: Path) -> None:
    server, stranger = name_server(tmp_path, topics_max=10_000, brokers_max=100), Peer("198.51.100.1")
    count, _ = fill(server, stranger)
    assert 12 <= count <= 16
    server.routes.connection_closed(stranger)
    for shares in (server.routes.topic_shares, server.routes.broker_shares, server.routes.cluster_shares):
        assert (shares.total, shares.used("198.51.100.1")) == (0, 0)
    assert fill(server, Peer("198.51.100.1"))[0] == count


def test_addresses_of_an_ipv6_network_share_one_part(tmp_path: Path) -> None:
    server = name_server(tmp_path, brokers_max=100, topics_max=10_000)
    accepted = 0
    for number in range(200):
        peer = Peer(f"2001:db8:0:7::{number:x}")
        accepted += not register(server, peer, f"b{number}", [f"t{number}"])
    assert accepted <= 81
    assert register(server, Peer("2001:db8:0:8::1"), "honest", ["h"]) == ""


def test_brokers_and_clusters_are_shared_by_addresses(tmp_path: Path) -> None:
    server, honest = name_server(tmp_path, brokers_max=50), Peer("10.0.0.1")
    assert register(server, honest, "honest", ["h"]) == ""
    count, error = fill(server, Peer("198.51.100.1"), topics=1)
    assert 30 <= count <= 40 and "brokersMax=50" in error and "198.51.100.1" in error
    for number in range(3):
        assert register(server, honest, f"honest{number}", ["h"], clusterName=f"c{number}") == ""
    errors = [
        register(server, honest, "honest", ["h"], brokerId="1", brokerAddr="h:2", clusterName=f"x{number}")
        for number in range(40)
    ]
    assert "16 clusters" in errors[-1] and server.routes.clusters_of("honest") == 16


def test_single_entry_is_allowed_in_the_smallest_table(tmp_path: Path) -> None:
    server = name_server(tmp_path, brokers_max=1, topics_max=1)
    assert register(server, Peer("10.0.0.1"), "only", ["t"]) == ""
    assert register(server, Peer("10.0.0.1"), "only", ["t"], version=2) == ""
    assert "brokersMax=1" in register(server, Peer("10.0.0.2"), "second", ["t"])


def test_topics_of_one_broker_name_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.namesrv.processor.TOPICS_PER_NAME_MAX", 100)
    server, peer = name_server(tmp_path), Peer("10.0.0.1")
    assert register(server, peer, "b", some("x", 60)) == ""
    assert "at most 100 topics" in register(server, peer, "b", some("y", 60), version=2)
    assert register(server, peer, "b", some("x", 60), version=3) == ""


def test_log_lines_of_registrations_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each registration with an illegal topic, and each broker that left, wrote a line."""
    now = [0.0]
    server, peer = name_server(tmp_path, topics_max=1000), Peer("198.51.100.1")
    server._log_limit = LogLimit(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for number in range(200):
            assert register(server, peer, "b", ["legal", "il legal" * 30], version=number) == ""
            assert "topicsMax" in register(server, Peer(f"2001:db8::{number:x}"), "c", some("t", 1001))
        lines = [record.message for record in caplog.records if record.name == "saturnmq.namesrv.server"]
        assert len([line for line in lines if line.startswith("topics ignored")]) == 1
        assert len(lines) <= 3 and all(len(line) < 1000 for line in lines)
        now[0] += 1
        assert register(server, peer, "b", ["il legal"], version=1000) == ""
        assert "topics ignored" in caplog.messages[-1] and "suppressed=" in caplog.messages[-1]
        assert "suppressed=0" not in caplog.messages[-1]


def test_brokers_of_a_closed_connection_write_one_short_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, peer = name_server(tmp_path), Peer("198.51.100.1")
    for number in range(300):
        assert register(server, peer, f"b{number}", ["t"]) == ""
    with caplog.at_level(logging.INFO):
        server.closed(peer, "closed by the peer")  # type: ignore[arg-type]
    (line,) = [record.message for record in caplog.records if record.name == "saturnmq.namesrv.server"]
    assert "count=300" in line and len(line) < 300
    assert server.routes.live == {}


def test_filter_servers_are_limited(tmp_path: Path) -> None:
    """They are part of each route of the broker, so a stranger made the routes of honest topics large."""
    server, peer = name_server(tmp_path), Peer("198.51.100.1")
    for filters in (some("f", 17), ["f" * 256]):
        assert "at most 16 filter servers" in register(server, peer, "b", ["t"], filters=filters)
    assert server.routes.live == {}
    assert register(server, peer, "b", ["t"], filters=some("f", 16)) == ""


@pytest.mark.parametrize("which", ["version", "line", "filters"])
def test_parts_of_a_compressed_registration_are_limited(which: str) -> None:
    """One topic line of 60 MB of spaces took 2 s and 500 MB, in one call that holds the interpreter."""

    def part(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    space = b" " * 70_000
    raw = part(b'{"counter":1}' + (space if which == "version" else b""))
    raw += (1).to_bytes(4, "big") + part((space if which == "line" else b"") + b"t 1 1 6 SINGLE_TAG")
    raw += part(b"[" + (space if which == "filters" else b"") + b"]")
    with pytest.raises(SaturnError, match=r"a part of 700\d\d bytes"):
        read_compressed_registration(zlib.compress(raw), lambda *_: None)


@pytest.mark.realtime
async def test_connection_with_many_brokers_closes_without_a_long_step(tmp_path: Path) -> None:
    """Each removed address was looked for in all brokers and clusters: 1,500 took more than a second."""
    seen: dict[str, float] = {}

    server = name_server(tmp_path)
    loop = asyncio.get_running_loop()
    for name, ext in (("names", {}), ("ids of one name", {"brokerName": "one"})):
        peer = Peer("198.51.100.1")
        for number in range(1500):
            more = {"brokerId": str(number)} if ext else {"clusterName": f"c{number % 1000}"}
            assert register(server, peer, f"b{number}", ["t"], **ext, **more) == ""
        with loop_steps() as steps:
            done = loop.create_future()
            loop.call_soon(lambda peer=peer, done=done: done.set_result(server.routes.connection_closed(peer)))
            assert len(await done) == 1500
        seen[name] = steps.longest
        assert server.routes.live == {} and server.routes.brokers == {} and server.routes.clusters == {}
    assert max(seen.values()) < STEP_MAX, seen
