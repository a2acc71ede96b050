"""An Apache master and its slave are replaced by ours broker by broker while Java clients send and consume, and the reverse.

The slave first, then the master: each is stopped, and its successor opens its store under its address. Nothing acknowledged is
lost, every message keeps its queue offset, and groups go on where they were.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apache
import pytest
from javatools import java_command, java_environment
from processes import ServerProcess
from test_interop_masterslave import Pair, until

TOPIC, BEFORE, COUNT = "Pair", 100, 3000
PAUSE_MS = 20
PART = COUNT // 10  # messages acknowledged between two steps
INDEX = {key: apache.SMALL_STORE[key] for key in ("maxIndexNum", "maxHashSlotNum")}
WAIT_MS = 150_000


class Program:
    """One of our Java programs, running while brokers are replaced."""

    def __init__(self, both: Pair, command: str, **options: object) -> None:
        given = {"ns": both.name_servers, "topic": TOPIC, **options}
        words = [command, *(f"{key}={value}" for key, value in given.items())]
        line = java_command("interop.Interop", words, home=both.home)
        self.process = ServerProcess(line, name=f"Java {command}", env=java_environment(both.home), stdin=True)

    def reports(self, what: str) -> list[dict[str, Any]]:
        """The results so far that say what was sent or received."""
        rows = [json.loads(line[7:]) for line in self.process.output.splitlines() if line.startswith("RESULT ")]
        return [row for row in rows if what in row]


def log_length(both: Pair, role: str) -> int:
    return sum(len(data.rstrip(b"\0")) for data in both.log(role).values())


def replace(both: Pair, role: str, kind: str) -> None:
    """Stop a broker in order and start one of another kind on its store, under its address."""
    both.stop(role)
    both.kinds[role] = kind
    assert not (both.folder / role / "broker-a" / "store" / "abort").exists(), "it was not stopped in order"
    both.start(role, **INDEX)


@pytest.mark.interop_full
@pytest.mark.timeout(540)
@pytest.mark.spec("OPS-06", "OPS-15")
@pytest.mark.parametrize(("old", "new"), [("apache", "saturn"), ("saturn", "apache")])
def test_a_pair_is_replaced_broker_by_broker_under_load(tmp_path: Path, home: Path, old: str, new: str) -> None:
    both = Pair(tmp_path, home, old, old)
    clients: list[Program] = []
    try:
        both.start("master", **INDEX)
        both.start("slave", **INDEX)
        first = both.client("send", count=BEFORE, body="before")
        both.client("consume", count=BEFORE, group="kept")
        until(both.equal, "equal logs")
        until(lambda: "Pair@kept" in both.config("slave", "consumerOffset.json"), "the group's offsets at the slave")

        clients.append(Program(both, "hold", group="running"))
        producer = Program(both, "send", mode="stubborn", count=COUNT, body="moving", pauseMs=PAUSE_MS, waitMs=WAIT_MS)
        clients.append(producer)

        def sent_more(count: int) -> None:
            wanted = min(len(producer.reports("sent")) + count, COUNT)
            until(lambda: len(producer.reports("sent")) >= wanted, f"{wanted} messages acknowledged", WAIT_MS / 1000)

        sent_more(PART)
        for role in ("slave", "master"):
            replace(both, role, new)
            length = log_length(both, "master")
            until(lambda length=length: log_length(both, "slave") >= length, "the slave has caught up")
            sent_more(PART)
        until(lambda: producer.reports("done"), "all sent", WAIT_MS / 1000)
        until(both.equal, "equal logs")

        sent = {row["msgId"]: (row["queue"], row["offset"]) for row in producer.reports("sent")}
        assert len(sent) == COUNT
        places = {row["msgId"]: (row["queue"], row["offset"]) for row in first if "sent" in row} | sent
        stored = {
            row["msgId"]: (row["queue"], row["offset"])
            for row in both.client("pull", group="puller", count=0)
            if "received" in row
        }
        assert {key: stored.get(key) for key in places} == places
        until(lambda: sent.keys() <= {row["msgId"] for row in clients[0].reports("received")}, "all consumed")
        again = [row for row in both.client("consume", count=COUNT, group="kept", waitMs=60_000) if "received" in row]
        received = {row["msgId"] for row in again}
        assert sent.keys() <= received
        assert not received & {row["msgId"] for row in first if "sent" in row}, "the group began again"
    finally:
        for client in clients:
            client.process.stop()
        both.close()
