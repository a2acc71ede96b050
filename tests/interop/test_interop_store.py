"""One store served alternately by Apache's broker and ours, after a clean stop and after SIGKILL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache
import pytest
import saturn
from javatools import mqadmin, run_client
from processes import ServerProcess

from ports import free_port

# Small files, so that every kind rolls within a few hundred messages.
SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
OURS = {**SMALL, "storeProfile": "standard"}
COUNT = 240  # messages per run: three files of the commit log, three of each queue, two of the index


class Turns:
    """An Apache NameServer, and one store that two kinds of broker serve alternately."""

    def __init__(self, folder: Path, home: Path, topic: str) -> None:
        self.folder, self.home, self.topic = folder, home, topic
        self.namesrv_port, self.broker_port = free_port(), free_port(apache.BROKER_PORT_OFFSETS)
        self.name_servers = f"127.0.0.1:{self.namesrv_port}"
        self.namesrv = apache.start_namesrv(folder, self.namesrv_port)
        self.broker: ServerProcess | None = None
        self.sent: list[dict[str, Any]] = []

    def start(self, make: str, **more: str) -> None:
        starter, settings = (saturn.start_broker, OURS) if make == "saturn" else (apache.start_broker, SMALL)
        self.broker = starter(self.folder, self.broker_port, self.name_servers, settings=settings | more)

    def end(self, how: str) -> None:
        assert self.broker is not None
        if how == "kill":
            self.broker.process.kill()
            self.broker.stop()
        else:
            assert self.broker.stop() in (0, 143)
        self.broker = None

    def client(self, command: str, **options: Any) -> list[dict[str, Any]]:
        return run_client(command, home=self.home, ns=self.name_servers, topic=self.topic, **options).results

    def send(self, life: int) -> None:
        rows = self.client("send", count=COUNT, body=f"life {life}", bodyBytes=500)
        self.sent += [row for row in rows if "sent" in row]

    def check(self) -> None:
        """Check that every message of all runs is at its position, and some of them by key and by id."""
        found = [row for row in self.client("pull", group="puller") if "received" in row]
        assert {row["msgId"]: (row["queue"], row["offset"]) for row in found} == {
            row["msgId"]: (row["queue"], row["offset"]) for row in self.sent
        }
        numbers = set(range(0, COUNT, 23))
        keys = ",".join(f"key-{number}" for number in numbers)
        rows = [row for row in self.client("query", key=keys, id=self.sent[3]["offsetMsgId"]) if "received" in row]
        asked = {row["msgId"] for row in self.sent if row["sent"] in numbers}
        assert {row["msgId"] for row in rows} == asked | {self.sent[3]["msgId"]}
        for life in range(COUNT + 5, len(self.sent), COUNT):
            unique = [row for row in self.client("query", id=self.sent[life]["msgId"]) if "received" in row]
            assert [row["msgId"] for row in unique] == [self.sent[life]["msgId"]]

    def close(self) -> None:
        if self.broker is not None:
            self.broker.stop()
        self.namesrv.stop()


@pytest.fixture
def turns(tmp_path: Path, home: Path) -> Iterator[Turns]:
    made = Turns(tmp_path, home, "Turns")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.spec("RC-03", "RC-08", "RC-12", "RC-13", "ST-12", "CQ-01", "IX-01", "DUR-13", "G14")
@pytest.mark.parametrize(
    ("first", "how"),
    [
        ("saturn", "kill"),
        ("apache", "clean"),
        pytest.param("saturn", "clean", marks=pytest.mark.interop_full),
        pytest.param("apache", "kill", marks=pytest.mark.interop_full),
    ],
)
def test_store_moves_between_brokers(turns: Turns, tmp_path: Path, first: str, how: str) -> None:
    """Each of three runs sends and is ended; the next broker serves everything by queue, by key and by id."""
    second = "apache" if first == "saturn" else "saturn"
    turns.start(first)
    turns.send(1)
    turns.end(how)
    turns.start(second)
    turns.check()
    turns.send(2)
    turns.check()
    turns.end(how)
    turns.start(first)
    turns.check()
    turns.send(3)
    turns.check()
    turns.end("clean")
    logs = tmp_path / "broker-a" / "logs" / "broker.log"
    text = logs.read_text(errors="replace") if logs.exists() else ""
    assert not re.search(r"illegal magic code 0x[1-9a-f]|\[BUG\]|CommitLogDispatcher.*failed", text), text


@pytest.mark.spec("ST-20")
@pytest.mark.parametrize("first", ["saturn", "apache"])
def test_store_with_a_read_only_folder_is_read_by_both(turns: Turns, tmp_path: Path, first: str) -> None:
    """Apache reads the read-only folder if storePathCommitLog has several folders. Both fill its last file, and make none there."""
    second = "apache" if first == "saturn" else "saturn"
    old = tmp_path / "broker-a" / "store" / "commitlog"
    fresh = [tmp_path / name for name in ("b", "c")]
    moved = {"storePathCommitLog": ",".join(map(str, fresh)), "readOnlyCommitLogStorePaths": str(old)}
    turns.start(first)
    turns.send(1)
    turns.end("clean")
    files = sorted(path.name for path in old.iterdir())
    turns.start(second, **moved)
    turns.check()
    turns.send(2)
    turns.check()
    turns.end("clean")
    turns.start(first, **moved)
    turns.check()
    turns.send(3)
    turns.check()
    turns.end("clean")
    assert len(sorted(path.name for path in old.iterdir())) <= len(files) + 1, (
        "the first broker may have made the next file"
    )
    made = {folder: sorted(int(path.name) // 65536 for path in folder.iterdir()) for folder in fresh}
    assert all(number % 2 == place for place, folder in enumerate(fresh) for number in made[folder]), made
    assert min(len(numbers) for numbers in made.values()) > 1, made


@pytest.mark.spec("CQ-04", "ST-14", "IX-02")
def test_mqadmin_lookups_in_our_store_are_equal_when_apache_serves_it(turns: Turns, home: Path) -> None:
    turns.start("saturn")
    turns.send(1)
    row = turns.sent[100]
    commands = (
        ["queryMsgById", "-i", row["offsetMsgId"]],
        ["queryMsgByKey", "-t", turns.topic, "-k", "key-100"],
        ["queryMsgByUniqueKey", "-t", turns.topic, "-i", row["msgId"]],
        ["topicStatus", "-t", turns.topic],
    )

    def shown() -> list[list[str]]:
        answers = [mqadmin(turns.name_servers, *command, home=home) for command in commands]
        return [[re.sub(r"\d{4}-\d\d-\d\d [\d:,]+", "", line) for line in text.splitlines()] for text in answers]

    ours = shown()
    assert row["msgId"] in "".join(ours[1]) and "Message Body Path" in "".join(ours[0])
    turns.end("clean")
    turns.start("apache")
    assert shown() == ours
