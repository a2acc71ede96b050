"""Fixtures that run the command line as real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from admincli import AdminCli
from forkedcommand import completed
from serverprocess import Server

import saturnmq.sync
from saturnmq.broker import BrokerSettings
from saturnmq.testing.embedded import SyncEmbeddedBroker


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers; those still running at the end are stopped."""
    servers: list[Server] = []

    def start(*args: str, env: dict[str, str] | None = None, descriptors: tuple[int, int] | None = None) -> Server:
        servers.append(Server(*args, env=env, descriptors=descriptors))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def standalone(serve: Callable[..., Server], tmp_path: Path) -> Callable[..., Server]:
    """Starts a standalone server on free ports with its data in tmp_path."""

    def start(*args: str, env: dict[str, str] | None = None, descriptors: tuple[int, int] | None = None) -> Server:
        ports = ("--namesrv-port", "0", "--port", "0")
        return serve("standalone", "--data", str(tmp_path / "data"), *ports, *args, env=env, descriptors=descriptors)

    return start


Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def started_cli() -> Callable[..., Completed]:
    """Runs one command to completion, as `python -m saturnmq.cli`."""

    def run(*args: str, seconds_max: float = 60) -> Completed:
        command = [sys.executable, "-m", "saturnmq.cli", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds_max)

    return run


@pytest.fixture
def cli(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Completed]:
    """Runs one command to completion in a process of its own, which need not import its modules (forkedcommand).

    stdin: what the command reads from standard input, a file. Tests of the imports use `started_cli`.
    """

    def run(*args: str, env: dict[str, str] | None = None, stdin: bytes = b"") -> Completed:
        return completed(args, tmp_path_factory.mktemp("cli"), env, stdin)

    return run


class Cluster:
    """An embedded cluster and a way to run commands against it."""

    def __init__(self, server: SyncEmbeddedBroker, cli: Callable[..., Completed]) -> None:
        self.server = server
        self.cli = cli

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name the cluster."""
        return {"NAMESRV_ADDR": self.server.name_servers, "SATURNMQ_URL": "", "ROCKETMQ_HOME": ""}

    def run(self, *args: str, stdin: bytes = b"", code: int = 0) -> Completed:
        """Run a command to completion; its exit code must be `code`."""
        done = self.cli(*args, env=self.environment, stdin=stdin)
        assert done.returncode == code, (args, done)
        return done

    def lines(self, *args: str, stdin: bytes = b"") -> list[str]:
        """The lines that a command prints on stdout."""
        return self.run(*args, stdin=stdin).stdout.splitlines()

    def rows(self, *args: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        """The rows of all JSON documents that a command prints."""
        return [row for line in self.lines(*args, "--json", stdin=stdin) for row in json.loads(line)["rows"]]


@pytest.fixture(scope="module")
def embedded() -> Iterator[SyncEmbeddedBroker]:
    """A NameServer and a broker that evaluates SQL filters, for the tests of a module."""
    with SyncEmbeddedBroker(settings=BrokerSettings(property_filter_enable=True)) as server:
        yield server


@pytest.fixture
def cluster(embedded: SyncEmbeddedBroker, cli: Callable[..., Completed]) -> Cluster:
    """Runs commands against the embedded broker of the module."""
    return Cluster(embedded, cli)


@pytest.fixture
def admin_cli(embedded: SyncEmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> AdminCli:
    """Admin commands against the server of the module."""
    return AdminCli(embedded, capsys)


@pytest.fixture
def admin_client(embedded: SyncEmbeddedBroker) -> Iterator[saturnmq.sync.Client]:
    """A client of the server of the module."""
    with saturnmq.sync.Client.from_url(embedded.url) as client:
        yield client
