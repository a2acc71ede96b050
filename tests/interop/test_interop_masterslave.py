"""Master and slave of different kinds, our slave of an Apache master and the reverse: the logs are equal byte by byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache
import pytest
import saturn
from javatools import run_client
from processes import ServerProcess

from ports import free_port

FILE = 262_144
SIZES = {"mappedFileSizeCommitLog": str(FILE), "mappedFileSizeConsumeQueue": "400"}
STARTERS = {"saturn": saturn.start_broker, "apache": apache.start_broker}
# An empty slave gets the last file of its master: the first life is in one file, the others begin new ones.
COUNT = 240
WITHIN_S = 60.0


def until(condition: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.2)  # poll


class Pair:
    """An Apache NameServer, a master and a slave of the given kinds."""

    def __init__(self, folder: Path, home: Path, master: str, slave: str) -> None:
        self.folder, self.home, self.kinds = folder, home, {"master": master, "slave": slave}
        self.namesrv_port = free_port()
        self.name_servers = f"127.0.0.1:{self.namesrv_port}"
        self.namesrv = apache.start_namesrv(folder, self.namesrv_port)
        self.ports = {role: free_port(apache.BROKER_PORT_OFFSETS) for role in self.kinds}
        self.running: dict[str, ServerProcess] = {}

    def start(self, role: str, **more: str) -> None:
        settings = {**SIZES, "registerNameServerPeriod": "10000", **more}
        if role == "slave":
            settings |= {"brokerRole": "SLAVE", "brokerId": "1"}
        if self.kinds[role] == "saturn":
            settings["storeProfile"] = "standard"
        starter = STARTERS[self.kinds[role]]
        self.running[role] = starter(self.folder / role, self.ports[role], self.name_servers, settings=settings)

    def stop(self, role: str) -> None:
        self.running.pop(role).stop()

    def client(self, command: str, **options: Any) -> list[dict[str, Any]]:
        return run_client(command, home=self.home, ns=self.name_servers, topic="Pair", **options).results

    def send(self, body: str) -> list[dict[str, Any]]:
        return [row for row in self.client("send", count=COUNT, body=body, bodyBytes=500) if "sent" in row]

    def log(self, role: str) -> dict[str, bytes]:
        """The commit log files of a store that hold records."""
        folder = self.folder / role / "broker-a" / "store" / "commitlog"
        found = {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}
        return {name: data for name, data in found.items() if any(data)}

    def equal(self) -> bool:
        logs = self.log("master")
        return bool(logs) and logs == self.log("slave")

    def config(self, role: str, name: str) -> str:
        path = self.folder / role / "broker-a" / "store" / "config" / name
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for role in list(self.running):
            self.stop(role)
        self.namesrv.stop()


@pytest.fixture(params=[("saturn", "apache"), ("apache", "saturn")], ids=["ours-leads", "ours-follows"])
def both(tmp_path: Path, home: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(tmp_path, home, *request.param)
    try:
        yield made
    finally:
        made.close()


def test_logs_are_equal_also_after_restarts_of_both(both: Pair) -> None:
    both.start("master")
    both.start("slave")
    sent = both.send("first life")
    until(both.equal, "equal logs")
    until(lambda: '"Pair"' in both.config("slave", "topics.json"), "the topic at the slave")
    both.stop("slave")
    sent += both.send("second life")
    both.start("slave")
    until(both.equal, "equal logs after a restart of the slave")
    both.stop("master")
    both.start("master")
    found = [row for row in both.client("pull", group="puller") if "received" in row]
    assert {row["msgId"]: (row["queue"], row["offset"]) for row in found} == {
        row["msgId"]: (row["queue"], row["offset"]) for row in sent
    }
    sent += both.send("third life")
    until(both.equal, "equal logs after a restart of the master")


def test_a_sync_master_acknowledges_with_a_slave_of_the_other_kind(both: Pair) -> None:
    both.start("master", brokerRole="SYNC_MASTER")
    assert {row["status"] for row in both.send("alone")} == {"SLAVE_NOT_AVAILABLE"}
    both.start("slave")
    until(both.equal, "equal logs")
    assert {row["status"] for row in both.send("together")} == {"SEND_OK"}
    until(both.equal, "equal logs")


@pytest.mark.spec("RW-05")
def test_a_java_consumer_reads_from_our_slave_while_the_master_is_down(tmp_path: Path, home: Path) -> None:
    """With the settings of 4.9.7 on both sides, slaveReadEnable=false included; its offsets are committed to the slave."""
    pair = Pair(tmp_path, home, "saturn", "saturn")
    try:
        pair.start("master")
        pair.start("slave")
        sent = pair.send("to be read")
        until(pair.equal, "equal logs")
        until(lambda: '"Pair"' in pair.config("slave", "topics.json"), "the topic at the slave")
        pair.stop("master")
        rows = pair.client("consume", count=COUNT, group="readers", waitMs=60_000)
        received = [row for row in rows if "received" in row]
        assert {row["msgId"] for row in received} == {row["msgId"] for row in sent}
        assert len(received) == COUNT
        until(lambda: "Pair@readers" in pair.config("slave", "consumerOffset.json"), "offsets at the slave")
    finally:
        pair.close()
