"""Runs admin commands in the test's process against an embedded server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saturnmq.cli.mqadmin.run import main
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
