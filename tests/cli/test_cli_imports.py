"""Modules that a server leaves out while nothing needs them, since imports are most of the time in which it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from serverprocess import Server

HEAVY = {
    "decimal", "email", "importlib.metadata", "importlib.resources", "logging.handlers", "pickle", "rich", "urllib.request", "yaml",
    "zipfile", "saturnmq.acl.documents", "saturnmq.acl.files", "saturnmq.acl.plain", "saturnmq.admin", "saturnmq.client",
    "saturnmq.cli.production", "saturnmq.console",
}  # fmt: skip
LEDGER = {
    "saturnmq.broker.dledger", "saturnmq.broker.dledger_sync", "saturnmq.broker.forwarding", "saturnmq.broker.table_changes",
    "saturnmq.raft.core", "saturnmq.raft.driver", "saturnmq.raft.ledger.layout", "saturnmq.raft.wire",
    "saturnmq.replication.dledger.member",
}  # fmt: skip
SLAVE = {
    "saturnmq.broker.master_copy",
    "saturnmq.replication.masterslave.dispatch",
    "saturnmq.replication.masterslave.slave",
}
BROKER = {"saturnmq.broker", "saturnmq.filter", "saturnmq.raft", "saturnmq.replication"}


def imported(*args: str) -> set[str]:
    """The modules that a server imports from its start to the end of its stop."""
    server = Server(*args, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert server.stop() == 0
    modules = {line.rpartition("|")[2].strip() for line in server.err if line.startswith("import time:")}
    if "coverage" in modules:  # make coverage: it imports for itself
        modules = {name for name in modules if name.startswith("saturnmq")}
    return modules


@pytest.mark.parametrize("command", ["broker", "standalone"])
def test_broker_alone_imports_neither_raft_nor_slave_nor_accounts(command: str, tmp_path: Path) -> None:
    ports = ("--port", "0", *(("--namesrv-port", "0") if command == "standalone" else ("--set", "storeProfile=small")))
    modules = imported(command, "--data", str(tmp_path), *ports)
    assert "saturnmq.broker.broker" in modules
    assert modules & (HEAVY | LEDGER | SLAVE) == set()


def test_name_server_imports_neither_broker_nor_raft(tmp_path: Path) -> None:
    modules = imported("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path / 'kvConfig.json'}")
    assert "saturnmq.namesrv.server" in modules
    assert modules & (HEAVY | LEDGER | SLAVE | BROKER) == set()
