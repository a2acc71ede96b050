"""Runs admin commands in the test's process against an embedded server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from saturnmq.cli.mqadmin.run import main
from saturnmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.testing import SyncEmbeddedBroker


class AdminCli:
    """Runs admin commands of this process against an embedded NameServer and broker, which run on a thread of their own."""

    def __init__(self, server: SyncEmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self.server = server
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command; -n is added. `{broker}` in a word is the broker's address."""
        return self.run_bare(*words, "-n", self.server.name_servers)

    def run_bare(self, *words: str) -> tuple[int, str, str]:
        """As `run`, without -n."""
        self._capsys.readouterr()
        given = [word.replace("{broker}", self.server.broker_address) for word in words]
        code = main(given)
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def text(self, *words: str) -> str:
        """Stdout of a command that has to succeed, with `{broker}` for the broker's address."""
        code, out, err = self.run(*words)
        assert code == 0, err
        return out.replace(self.server.broker_address, "{broker}")

    def json(self, *words: str) -> dict[str, Any]:
        """The JSON document of a command that has to succeed."""
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document


@contextmanager
def registered(
    server: SyncEmbeddedBroker,
    name: str,
    address: str,
    *topics: str,
    cluster: str = "DefaultCluster",
    broker_id: int = 0,
) -> Iterator[None]:
    """Register another broker at the NameServer, which forgets it when the connection ends."""
    fields = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "brokerId": str(broker_id),
        "haServerAddr": "",
    }
    table = TopicConfigTable({topic: TopicConfig(topic, 1, 1) for topic in topics}, DataVersion(1, 1))
    command = Command(RequestCode.REGISTER_BROKER, ext=fields, body=RegisterBrokerBody(table, []).encode())
    host, port = server.name_servers.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(encode_frame(command))
        (answer,) = FrameDecoder().feed(connection.recv(4096))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        yield
