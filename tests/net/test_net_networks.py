"""Limits by address count all addresses of one IPv6 network as one: a subscriber has 2**64 of them."""

from __future__ import annotations

import logging

import pytest
from netpair import pair

import saturnmq.net.server as server_module
from saturnmq.net import NetSettings, RemotingServer
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.server_admin import Administration


async def test_connections_of_a_network_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "is_local", lambda ip: False)
    async with pair(settings=NetSettings(connections_per_address=3)) as p:
        server = RemotingServer(p.server.handler, settings=p.server.settings)
        opened = [Opened(f"2001:db8:0:7::{number:x}:4000") for number in range(20)]
        for one in opened:
            server.opened(one)  # type: ignore[arg-type]
        honest = Opened("2001:db8:0:8::1:4000")
        server.opened(honest)  # type: ignore[arg-type]
        assert [one.refused for one in opened] == [False] * 3 + [True] * 17 and not honest.refused
        server.lost(opened[0])  # type: ignore[arg-type]
        again = Opened("2001:db8:0:7::99:4000")
        server.opened(again)  # type: ignore[arg-type]
        assert not again.refused
        await server.abort()


class Opened:
    """A connection as far as a listener uses it when it is opened."""

    close_reason = ""

    def __init__(self, remote_address: str) -> None:
        self.remote_address, self.local_address = remote_address, ""
        self.network = network_of(host_of(remote_address))
        self.refused = False
        self.watch = Watched()

    def refuse(self, reason: str, text: str) -> None:
        assert reason == "address"
        self.refused = True

    def abort(self) -> None:
        """Nothing is open."""


class Watched:
    idle_since = opened_at = 0.0


def test_log_lines_of_a_network_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    rejections = Rejections(lambda: 5.0)
    administration = Administration("", lambda: 5.0)
    with caplog.at_level(logging.INFO):
        for number in range(100):
            peer = f"2001:db8:0:7::{number:x}:4000"
            rejections.note("address", peer, "too many")
            administration.write_refusal(peer, Command(RequestCode.PUT_KV_CONFIG), "not allowed")
        lines = [record.name for record in caplog.records]
        assert lines.count("saturnmq.net.rejections") == 1 and lines.count("saturnmq.audit") == 10
        rejections.note("address", "2001:db8:0:8::1:4000", "too many")
        assert len(caplog.records) == 12
    assert rejections.counts == {"address": 101}
