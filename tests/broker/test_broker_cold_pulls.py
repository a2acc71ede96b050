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


class DiskReads:
    """Reads of a disk that wait for `gate`. positions: of those that have begun."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.positions: list[int] = []

    def hold(self, disk: Any) -> None:
        disk.is_resident, disk.warm = lambda mapping, at, size_bytes: False, self._warm

    def _warm(self, fd: int, at: int, size_bytes: int) -> None:
        self.positions.append(at)
        self.gate.wait(30)


@pytest.fixture
def disk_reads(monkeypatch: pytest.MonkeyPatch) -> DiskReads:
    monkeypatch.setattr(cold, "RECENT_BYTES", 0)
    return DiskReads()


@pytest.mark.spec("BP-04")
async def test_slow_disk_read_of_one_pull_delays_no_other_client(disk_reads: DiskReads) -> None:
    async with wire() as w:
        assert (await w.heartbeat("G", "T")).code == 0
        for n in range(20):
            assert (await w.send(body=b"%d" % n)).code == 0
        disk_reads.hold(w.broker.store.disk)
        slow = [asyncio.ensure_future(w.pull(offset=offset)) for offset in (0, 5)]
        await until(lambda: len(disk_reads.positions) == 2)
        for n in range(50):
            assert (await w.send("Other", body=b"%d" % n)).code == 0
        assert not any(pull.done() for pull in slow)
        disk_reads.gate.set()
        answers = [await pull for pull in slow]
        assert [message.body for message in decode_records(answers[0].body or b"")] == [b"%d" % n for n in range(20)]
        assert next(message.body for message in decode_records(answers[1].body or b"")) == b"5"
        empty = await w.pull(offset=20)
        assert empty.code == 19


@pytest.mark.spec("BP-07", "MS-07")
async def test_pull_that_waits_for_the_disk_commits_once(disk_reads: DiskReads) -> None:
    """Its second pass must not put back what was committed meanwhile."""
    async with wire() as w:
        for n in range(3):
            assert (await w.send(body=b"%d" % n)).code == 0
        disk_reads.hold(w.broker.store.disk)
        slow = asyncio.ensure_future(w.pull(offset=1, sysFlag=5, commitOffset=1))
        await until(lambda: disk_reads.positions)
        assert w.broker.offsets.get("T", "G", 0) == 1
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 2}
        assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == 0
        disk_reads.gate.set()
        assert (await slow).code == 0 and w.broker.offsets.get("T", "G", 0) == 2
