"""Heartbeats create groups and their retry topics, which are durable before the heartbeat is answered; so are those of code 36.

Requirements: HB-04, BP-10, SND-06, RTY-02.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from wire import Wire, wire

from saturnmq.broker import BrokerSettings
from saturnmq.broker.state.journal import Journal
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.broker.state.topics import Topics
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import StoreError
from saturnmq.store import StateFile

TABLES = ["groups", "topics"]


def writer_of(w: Wire, table: str) -> StateWriter:
    writer: StateWriter = getattr(w.broker, table).writer
    return writer


class HeldWrites:
    """Writes of a state file that wait until `go_on` is set. begun: the first one waits."""

    def __init__(self, file: StateFile, patch: pytest.MonkeyPatch) -> None:
        self.go_on, self.begun, self.count = threading.Event(), asyncio.Event(), 0
        self._loop, self._write = asyncio.get_running_loop(), file.write
        patch.setattr(file, "write", self._held)

    def _held(self, data: bytes) -> None:
        self.count += 1
        self._loop.call_soon_threadsafe(self.begun.set)
        self.go_on.wait(10)
        self._write(data)


@contextmanager
def failing_writes(file: StateFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(data: bytes) -> None:
        raise StoreError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file, "write", fail)
        yield


@pytest.mark.spec("HB-04", "BP-10", "RB-08")
@pytest.mark.parametrize("table", TABLES)
async def test_heartbeat_is_answered_once_its_group_is_durable(
    wire: Wire, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the group was missing although its consumer's heartbeat had been answered."""
    assert (await wire.heartbeat("old")).code == 0
    file = writer_of(wire, table)._file
    assert b'"old"' in wire.broker.groups.writer._file.path.read_bytes()
    assert b'"%RETRY%old"' in wire.broker.topics.writer._file.path.read_bytes()
    held = HeldWrites(file, monkeypatch)
    first = asyncio.create_task(wire.heartbeat("new-0"))
    await held.begun.wait()
    again = asyncio.create_task(wire.heartbeat("new-0", client_id="c2"))
    others = [asyncio.create_task(wire.heartbeat(f"new-{n}")) for n in range(1, 20)]
    while "new-19" not in wire.broker.groups.table:
        await asyncio.sleep(0)
    assert (await wire.heartbeat("old")).code == 0, "one that creates nothing does not wait"
    assert not first.done() and not again.done() and b"new-0" not in file.path.read_bytes()
    held.go_on.set()
    assert [answer.code for answer in await asyncio.gather(first, again, *others)] == [0] * 21
    assert b"new-0" in file.path.read_bytes() and b"new-19" in file.path.read_bytes()
    assert held.count == 2


@pytest.mark.spec("HB-04", "BP-10")
async def test_large_heartbeat_is_answered_once_all_its_groups_are_durable() -> None:
    """It is applied in steps."""
    names = [f"g{n}" for n in range(400)]
    body = HeartbeatData("c1", [], [ConsumerData(name) for name in names]).encode()
    async with wire() as w:
        assert (await w.call(RequestCode.HEART_BEAT, body)).code == 0
        written = [writer_of(w, table)._file.path.read_bytes() for table in TABLES]
        assert [name for name in names if f'"{name}"'.encode() not in written[0]] == []
        assert [name for name in names if f'"%RETRY%{name}"'.encode() not in written[1]] == []


@pytest.mark.spec("HB-04", "BP-10")
@pytest.mark.parametrize("table", TABLES)
async def test_heartbeat_fails_if_its_group_cannot_be_saved(
    wire: Wire, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await wire.heartbeat("old")).code == 0
    file = writer_of(wire, table)._file
    with failing_writes(file, monkeypatch):
        for _ in range(2):  # the group is in the table now, but still not durable
            refused = await wire.heartbeat("new")
            assert refused.code == 1 and "no space left on device" in (refused.remark or "")
        assert (await wire.heartbeat("old")).code == 0  # others are unaffected
    assert (await wire.heartbeat("new")).code == 0
    assert not writer_of(wire, table).dirty and b"new" in file.path.read_bytes()


@pytest.mark.spec("RTY-02", "SND-06")
async def test_returned_message_is_answered_once_its_topic_is_durable(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await wire.send()
    back: dict[str, Any] = {"offset": int(sent.ext["msgId"][16:], 16), "group": "G", "delayLevel": 0}
    file = wire.broker.topics.writer._file
    with failing_writes(file, monkeypatch):
        refused = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
        assert refused.code == 1 and "no space left on device" in (refused.remark or "")
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
    assert b'"%RETRY%G"' in file.path.read_bytes()


@pytest.mark.spec("SND-06", "BP-10")
async def test_save_does_not_wait_for_the_changes_of_others(tmp_path: Path) -> None:
    """As long as clients created topics or groups without a pause, no request that had created one was answered."""
    loop, saved = asyncio.get_running_loop(), threading.Event()
    file = StateFile(tmp_path / "x.json")
    writer = StateWriter(file, lambda: iter([b"x"]))
    write: Callable[[bytes], None] = file.write
    writes = 0

    def busy(data: bytes) -> None:
        nonlocal writes
        writes += 1
        if not saved.is_set() and writes < 50:
            loop.call_soon_threadsafe(writer.changed)
        write(data)

    file.write = busy  # type: ignore[method-assign]
    writer.changed()
    await writer.saved()
    saved.set()
    assert writes <= 2
    await writer.settle()
    assert not writer.dirty


def test_entry_of_a_group_of_brokers_survives_once_its_change_is_decided(tmp_path: Path) -> None:
    """A consumer whose heartbeat is answered before would miss its group after a change of the leader."""
    topics = Topics(BrokerSettings(), StateFile(tmp_path / "topics.json"), lambda: 1)
    topics.journal = cast(Journal, SimpleNamespace(undecided=lambda kind, name: name == "new"))
    assert topics.persisted("old") and not topics.persisted("new")


def test_table_without_changes_is_not_written(tmp_path: Path) -> None:
    """A stop, and each heartbeat, would otherwise wait for a write of all topics."""
    writer = StateWriter(StateFile(tmp_path / "topics.json"), lambda: iter([b"{}"]))
    assert not writer.dirty and writer.changes == 0
