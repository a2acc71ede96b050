"""`saturnmq store snapshot` while a broker serves under load, and `saturnmq store restore` from it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from saturnmq import sync
from saturnmq.cli.commands import build_parser
from saturnmq.cli.store import settings_of
from saturnmq.protocol.message import decode_records
from saturnmq.store import GetStatus, MessageStore
from saturnmq.store.tools.scan import shaped

Cli = Callable[..., subprocess.CompletedProcess[str]]
SIZES: Final = "mappedFileSizeCommitLog=256KiB\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=500\nmaxIndexNum=1000\n"
SENDERS: Final = 3
DEADLINE_SECONDS: Final = 60


class Load:
    """Messages sent by threads; `acknowledged` holds the bodies of those that the broker has acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.more = threading.Condition()
        self.stopped = False

    def send(self, name_server: str, number: int) -> None:
        with sync.Client(name_servers=name_server) as client, client.producer(f"load{number}") as producer:
            count = 0
            while not self.stopped:
                body = b"%d-%d " % (number, count) * 200
                producer.send("T", body, keys=[f"k{count}"])
                count += 1
                with self.more:
                    self.acknowledged.add(body)
                    self.more.notify_all()

    def wait_for(self, count: int) -> set[bytes]:
        """The acknowledged messages, when there are at least so many."""
        with self.more:
            assert self.more.wait_for(lambda: len(self.acknowledged) >= count, DEADLINE_SECONDS)
            return set(self.acknowledged)


@contextmanager
def loaded(name_server: str) -> Iterator[Load]:
    load = Load()
    threads = [threading.Thread(target=load.send, args=(name_server, number)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stopped = True
        for thread in threads:
            thread.join()


def bodies(folder: Path, config: Path) -> set[bytes]:
    """All messages of topic T in a store that no broker uses."""
    args = build_parser().parse_args(["store", "verify", "-c", str(config), "--data", str(folder)])
    settings, given = settings_of(args)
    store = MessageStore(shaped(settings, given))
    store.open()
    found = set()
    for topic, queue in store.topic_queues():
        offset = store.min_offset(topic, queue)
        while topic == "T" and (result := store.get(topic, queue, offset, 32)).status is GetStatus.FOUND:
            found |= {bytes(one.body) for one in decode_records(b"".join(result.buffers))}
            offset = result.next_offset
    store.close_files()
    return found


@pytest.mark.realtime
def test_snapshots_under_load_hold_every_message_acknowledged_before(
    serve: Callable[..., Any], cli: Cli, tmp_path: Path
) -> None:
    config = tmp_path / "x.conf"
    config.write_text(SIZES)
    ports = ("--namesrv-port", "0", "--port", "0")
    server = serve("standalone", "-c", str(config), "--data", str(tmp_path / "data"), *ports)
    before = {}
    with loaded(server.facts["namesrv"]) as load:
        for count, name in ((300, "first"), (900, "second"), (1500, "third")):
            before[name] = load.wait_for(count)
            options = ("-c", str(config), "--data", str(tmp_path / "data"), "--json")
            made = cli("store", "snapshot", str(tmp_path / name), *options)
            assert made.returncode == 0, made.stderr
            (row,) = json.loads(made.stdout)["rows"]
            assert row["log_end"] > 0 and row["bytes"] > row["linked_bytes"] > 0
    assert server.stop() == 0
    for name, acknowledged in before.items():
        restored = cli("store", "restore", str(tmp_path / name), "--data", str(tmp_path / f"{name}-again"))
        assert restored.returncode == 0, restored.stderr
        assert "sound; offsets 0 to" in restored.stdout
        clean = cli("store", "verify", "-c", str(config), "--data", str(tmp_path / f"{name}-again"), "--json")
        assert clean.returncode == 0, clean.stdout
        assert json.loads(clean.stdout)["rows"] == []
        assert acknowledged <= bodies(tmp_path / f"{name}-again", config)
    again = serve("standalone", "-c", str(config), "--data", str(tmp_path / "third-again"), *ports)
    assert again.stop() == 0


def test_errors_name_what_to_do(cli: Cli, tmp_path: Path) -> None:
    nothing = cli("store", "restore", str(tmp_path), "--data", str(tmp_path / "again"))
    assert nothing.returncode == 2 and "is no snapshot" in nothing.stderr
    missing = cli("store", "snapshot", str(tmp_path / "saved"), "--data", str(tmp_path / "no"))
    assert missing.returncode == 1 and "there is no store folder" in missing.stderr
    (tmp_path / "member" / "dledger-n0" / "data").mkdir(parents=True)
    (tmp_path / "member" / "dledger-n0" / "data" / ("0" * 20)).write_bytes(b"x")
    member = cli("store", "snapshot", str(tmp_path / "saved"), "--data", str(tmp_path / "member"))
    assert member.returncode == 2 and "stop its broker and copy the whole store" in member.stderr
    assert not (tmp_path / "saved").exists()
