"""The design goals of Apache RocketMQ, each as a user sees it: durability, order and filters, backlog, rewinding, delays.

Requirements: DG-04..DG-08.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from test_broker_dledger import bodies_of
from wire import Clock, Wire, wire

from harness.crash.check import InlineExecutor
from harness.crash.disk import RecordingDisk
from harness.crash.states import Volume
from saturnmq import Client, tag
from saturnmq.broker import BrokerSettings
from saturnmq.protocol.codes import SCHEDULE_TOPIC, RequestCode
from saturnmq.protocol.message import Host, Message, decode_records, java_hash
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.delay import delay_levels
from saturnmq.store.files.capacity import Usage
from saturnmq.testing import EmbeddedBroker

HOST = Host("127.0.0.1", 1)
HOUR_MS = 3_600_000
SQL = BrokerSettings(property_filter_enable=True)


# ---- durability by fault class


@pytest.mark.spec("DG-04")
@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("fault", ["broker crash", "power cut"])
def test_acknowledged_message_survives_the_faults_of_its_flush_mode(
    tmp_path: Path, flush: FlushDiskType, fault: str
) -> None:
    def settings(top: Path) -> StoreSettings:
        return StoreSettings(
            store_path_root_dir=str(top / "store"),
            profile=StoreProfile.SMALL,
            commit_log_file_bytes=8192,
            flush_disk_type=flush,
        )

    async def lived(top: Path, disk: RecordingDisk) -> None:
        store = MessageStore(settings(top), disk=disk)
        store.open()
        for number in range(10):
            put = store.put(Message("T", b"%d" % number, b"", 0, born_host=HOST, store_host=HOST))
            assert await store.wait_confirmed(put) is PutStatus.PUT_OK
            if number == 4:
                await store.write_all()  # what a flush in the background does every half second
        store.close_files()

    (tmp_path / "before").mkdir()
    volume = Volume()
    disk = RecordingDisk(tmp_path / "before", volume)
    disk.threads = InlineExecutor(disk)
    asyncio.run(lived(tmp_path / "before", disk))
    for operation in disk.operations:
        volume.do(operation)
    survived = volume.pending if fault == "broker crash" else []  # a power cut takes what was not synced
    (tmp_path / "after").mkdir()
    volume.content(survived).write(tmp_path / "after")
    store = MessageStore(settings(tmp_path / "after"))
    store.open()
    lost_at_most = 5 if flush is FlushDiskType.ASYNC_FLUSH and fault == "power cut" else 0
    found = bodies_of(store)
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) == 10 - lost_at_most
    store.close_files()


# ---- order, and filters in two steps


@pytest.mark.spec("DG-05", "CQ-02", "FIL-02")
async def test_queue_keeps_order_and_filters_work_at_broker_and_client() -> None:
    """The tags `Aa` and `BB` have the same hash: the broker returns both, the client delivers one."""
    assert java_hash("Aa") == java_hash("BB") != java_hash("C")
    async with EmbeddedBroker(settings=SQL) as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            for number in range(90):
                await out.send(
                    "T",
                    b"%d" % number,
                    tag=("Aa", "BB", "C")[number % 3],
                    shard_by="one queue",
                    properties={"n": str(number)},
                )
        queue_id = next(key[1] for key in server.broker.store.topic_queues() if key[0] == "T")
        other = Wire(server)
        await other.heartbeat("G", "T")
        fields: dict[str, Any] = {"queue": queue_id, "subscription": "Aa"}
        passed = [message.body for message in decode_records((await other.pull("T", **fields)).body or b"")]
        by_sql = await other.pull("T", queue=queue_id, subscription="n BETWEEN 20 AND 22", expressionType="SQL92")
        assert [m.body for m in decode_records(by_sql.body or b"")] == [b"20", b"21", b"22"]
        await other.client.close()
        assert passed == [b"%d" % n for n in range(48) if n % 3 != 2][:32]
        async with client.consumer("c", start="first") as inbox:
            await inbox.subscribe("T", tag("Aa"))
            got = []
            while len(got) < 30:
                message = await inbox.recv(30)
                got.append(message.body)
                await message.ack()
        assert got == [b"%d" % n for n in range(0, 90, 3)]


# ---- latency, backlog, expiry


@pytest.mark.spec("DG-06")
async def test_no_backlog_means_no_wait_and_backlog_lasts_until_expiry(tmp_path: Path) -> None:
    clock = Clock()
    small = {"commit_log_file_bytes": 65_536, "delete_pause_ms": 0, "memory_percent_max": 1, "delete_when": ""}
    async with wire(small, data=tmp_path, clock_ms=clock) as w:
        assert (await w.send()).code == 0
        assert (await w.heartbeat("G", "T")).code == 0
        began = asyncio.get_running_loop().time()
        waiting = asyncio.ensure_future(w.pull(offset=1, suspend_ms=25_000))
        await asyncio.sleep(0)
        assert (await w.send(body=b"new")).code == 0
        answer = await waiting
        assert [message.body for message in decode_records(answer.body or b"")] == [b"new"]
        assert asyncio.get_running_loop().time() - began < 1, "the message ended the long poll, not its timeout"
        store: Any = w.broker.store
        for number in range(300):
            assert (await w.send(body=b"%03d" % number * 500)).code == 0
        assert len(store.log.files) > 6
        backlog: list[bytes] = []
        while len(backlog) < 302:
            backlog += [message.body for message in await w.messages(offset=len(backlog))]
        assert backlog[2:] == [b"%03d" % number * 500 for number in range(300)]
        while store.flushed_offset < store.max_physical_offset:  # only flushed files are deleted
            await asyncio.sleep(0.1)  # poll
        for number, file in enumerate(store.log.files):
            age_ms = 73 * HOUR_MS if number < 3 else 0
            os.utime(file.path, ((clock.ms - age_ms) / 1000,) * 2)
        store.disk_usage = lambda: Usage(70, 70, 70)
        await store.clean()
        assert store.min_physical_offset == 0, "it is not the hour of deleteWhen"
        store.disk_usage = lambda: Usage(80, 80, 80)
        await store.clean()
        first = (await w.call(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0)).ext["offset"]
        assert store.min_physical_offset == 3 * 65_536 and 0 < int(first) < 302
        assert next(m.body for m in await w.messages(offset=int(first))) == backlog[int(first)]


# ---- rewinding


@pytest.mark.spec("DG-07")
async def test_group_is_rewound_to_a_millisecond_backward_and_forward() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        begin = clock.ms
        for number in range(40):
            assert (await w.send(body=b"%d" % number)).code == 0
            clock.ms += 1
        assert (await w.heartbeat("G", "T")).code == 0
        for wanted in (39, 3, 4, 38, 0, 21):  # forward and backward
            found = await w.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="T", queueId=0, timestamp=begin + wanted)
            assert int(found.ext["offset"]) == wanted
            where: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
            offset = {"commitOffset": found.ext["offset"]}
            assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **where, **offset)).code == 0
            committed = await w.call(RequestCode.QUERY_CONSUMER_OFFSET, **where)
            (first, *_) = await w.messages(offset=int(committed.ext["offset"]))
            assert first.body == b"%d" % wanted and first.store_timestamp_ms == begin + wanted


# ---- delays and retries


@pytest.mark.spec("DG-08")
async def test_delays_have_18_levels_and_retries_back_off_by_them() -> None:
    levels = delay_levels(StoreSettings().message_delay_level)
    assert len(levels) == 18 and levels[0] == 1000 and levels[-1] == 2 * HOUR_MS and list(levels) == sorted(levels)
    clock = Clock()
    async with wire(clock_ms=clock) as w:

        async def passes(ms: int) -> None:
            clock.ms += ms
            w.broker.master.delay.deliver_due()

        for level in (1, 18, 19):  # a level above the last counts as the last
            assert (await w.send(f"D{level}", body=b"late", properties={"DELAY": str(level)})).code == 0
            await passes(levels[min(level, 18) - 1] - 1)
            assert await w.messages(f"D{level}") == []
            await passes(1)
            assert [message.body for message in await w.messages(f"D{level}")] == [b"late"]
        assert {queue_id for topic, queue_id in w.broker.store.topic_queues() if topic == SCHEDULE_TOPIC} == {0, 17}
        assert (await w.send(body=b"again")).code == 0
        (message,) = await w.messages()
        for attempt in range(4):
            back: dict[str, Any] = {"group": "G", "delayLevel": 0, "offset": message.physical_offset}
            assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, maxReconsumeTimes=16, **back)).code == 0
            await passes(levels[2 + attempt] - 1)  # 10 s, 30 s, 1 min, 2 min
            assert len(await w.messages("%RETRY%G")) == attempt
            await passes(1)
            message = (await w.messages("%RETRY%G"))[-1]
            assert (message.body, message.reconsume_times) == (b"again", attempt + 1)
