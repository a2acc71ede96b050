"""Which broker a pull is answered to use next, and how much one pull returns."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from brokerpair import pair
from brokerpair import run as run_pair
from wire import Wire, wire

from saturnmq.protocol.bodies import SubscriptionGroupConfig
from saturnmq.protocol.message import decode_records
from saturnmq.store.files import capacity

KIB = 1024


@pytest.mark.spec("RW-01")
async def test_records_are_in_memory_up_to_a_share_of_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    for percent in (40, 10):
        async with wire({"memory_percent_max": percent}) as w:
            assert w.broker.store.memory_bytes == capacity.memory_bytes() * percent // 100
    async with wire() as w:
        assert w.broker.store.settings.memory_percent_max == 40
    assert capacity.memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(os, "sysconf", unknown)
    assert capacity.memory_bytes() == 24 << 30


@pytest.mark.spec("RW-01", "RW-02", "RW-03")
@pytest.mark.parametrize("enabled", [False, True])
async def test_a_pull_is_sent_to_the_slave_of_its_group_once_records_left_memory(enabled: bool) -> None:
    async with wire(slave_read_enable=enabled) as w:
        w.broker.groups.set(SubscriptionGroupConfig("G", broker_id=3, which_broker_when_consume_slowly=2))
        for tag in ("a", "b", "b"):
            await w.send(body=b"x" * 1000, properties={"TAGS": tag})
        store = w.broker.store
        second, third = (store.physical_offset("T", 0, offset) for offset in (1, 2))  # type: ignore[arg-type]
        cases = [
            (store.log.end - third, 2, "*", 32, "3"),  # the difference must exceed the memory
            (store.log.end - third - 1, 2, "*", 32, "2"),
            (store.log.end - second, 0, "*", 1, "3"),  # of the last unit that was examined: here the batch was full
            (store.log.end - second - 1, 0, "*", 1, "2"),
            (100, 0, "none", 32, "2"),  # also if none matches
            (100, 3, "*", 32, "3"),  # nothing was examined
        ]
        for memory, offset, tags, count, expected in cases:
            store.memory_bytes = memory
            answer = await w.pull(offset=offset, subscription=tags, maxMsgNums=count)
            wanted = expected if enabled else "0"
            assert answer.ext["suggestWhichBrokerId"] == wanted, (memory, offset, tags, count)


@pytest.mark.spec("RW-02")
def test_groups_are_sent_to_broker_1_or_0_by_default() -> None:
    group = SubscriptionGroupConfig("G")
    assert (group.which_broker_when_consume_slowly, group.broker_id) == (1, 0)


@pytest.mark.spec("RW-06")
@pytest.mark.parametrize("lagging", [False, True])
def test_a_slave_sends_consumers_without_lag_back_to_its_master(tmp_path: Path, lagging: bool) -> None:
    async def work() -> None:
        async with pair(tmp_path, slave_read_enable=True) as both:
            for _ in range(2):
                await both.send(both.master, b"x" * 1000)
            await both.replicated()
            await both.pull(both.slave)  # creates the group
            if lagging:
                both.slave.store.memory_bytes = 500
            answer = await both.pull(both.slave, maxMsgNums=1)
            assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, "1" if lagging else "0")

    run_pair(work)


@pytest.mark.spec("RW-09")
async def test_pulls_return_less_of_records_that_left_memory(wire: Wire) -> None:
    for _ in range(40):
        await wire.send(body=b"x" * 10)
    for queue, size in ((1, 20 * KIB), (2, 300 * KIB)):
        for _ in range(20 if queue == 1 else 2):
            await wire.send(body=b"x" * size, queue=queue)
    for memory, small, large in ((1 << 40, 32, 12), (1, 8, 3)):
        wire.broker.store.memory_bytes = memory
        for queue, count in ((0, small), (1, large), (2, 1)):  # the first message always fits
            records = decode_records((await wire.pull(queue=queue, maxMsgNums=1000)).body or b"")
            assert len(records) == count, (memory, queue)
        assert len(decode_records((await wire.pull(maxMsgNums=5)).body or b"")) == 5


@pytest.mark.spec("RW-09")
@pytest.mark.parametrize(("count", "examined"), [(1, 800), (799, 800), (900, 900)])
async def test_one_pull_examines_16000_bytes_of_the_queue_or_20_for_each_message_asked_for(
    wire: Wire, count: int, examined: int
) -> None:
    await asyncio.gather(*(wire.send(body=b"x") for _ in range(1000)))
    answer = await wire.pull(subscription="none", maxMsgNums=count)
    assert answer.ext["nextBeginOffset"] == str(examined)
