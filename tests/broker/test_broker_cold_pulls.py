"""Pulls of records that only the disk has: the event loop does not wait for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from wire import wire

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import decode_records
from saturnmq.store import cold
from waiting import until


@pytest.mark.spec("BP-04")
async def test_slow_disk_read_of_one_pull_delays_no_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "RECENT_BYTES", 0)
    gate, reads = threading.Event(), []

    def warm(fd: int, at: int, size_bytes: int) -> None:
        reads.append(at)
        gate.wait(30)

    async with wire() as w:
        disk: Any = w.broker.store.disk
        assert (await w.heartbeat("G", "T")).code == 0
        for n in range(20):
            assert (await w.send(body=b"%d" % n)).code == 0
        disk.is_resident, disk.warm = lambda mapping, at, size_bytes: False, warm
        slow = [asyncio.ensure_future(w.pull(offset=offset)) for offset in (0, 5)]
        await until(lambda: len(reads) == 2)
        for n in range(50):
            assert (await w.send("Other", body=b"%d" % n)).code == 0
        assert not any(pull.done() for pull in slow)
        gate.set()
        answers = [await pull for pull in slow]
        assert [message.body for message in decode_records(answers[0].body or b"")] == [b"%d" % n for n in range(20)]
        assert next(message.body for message in decode_records(answers[1].body or b"")) == b"5"
        empty = await w.pull(offset=20)
        assert empty.code == 19


@pytest.mark.spec("BP-07", "MS-07")
async def test_pull_that_waits_for_the_disk_commits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second pass must not put back what was committed meanwhile."""
    monkeypatch.setattr(cold, "RECENT_BYTES", 0)
    gate, reads = threading.Event(), []

    def warm(fd: int, at: int, size_bytes: int) -> None:
        reads.append(at)
        gate.wait(30)

    async with wire() as w:
        disk: Any = w.broker.store.disk
        for n in range(3):
            assert (await w.send(body=b"%d" % n)).code == 0
        disk.is_resident, disk.warm = lambda mapping, at, size_bytes: False, warm
        slow = asyncio.ensure_future(w.pull(offset=1, sysFlag=5, commitOffset=1))
        await until(lambda: reads)
        assert w.broker.offsets.get("T", "G", 0) == 1
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 2}
        assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == 0
        gate.set()
        assert (await slow).code == 0 and w.broker.offsets.get("T", "G", 0) == 2
