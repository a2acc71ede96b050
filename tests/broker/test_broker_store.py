"""The store as clients see it: query by key, cleaning on demand, statistics, slow and failing disks, state files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.protocol.codes import OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, RequestCode, ResponseCode
from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.store import FlushDiskType, PutStatus

SMALL = {"commit_log_file_bytes": 4096, "consume_queue_file_bytes": 200, "index_slots_max": 50, "index_entries_max": 60}
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


async def query(w: Wire, key: str, **more: object) -> tuple[int, list[bytes], dict[str, str]]:
    fields = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62} | more
    answer = await w.call(RequestCode.QUERY_MESSAGE, **fields)
    return answer.code, [bytes(m.body) for m in decode_records(answer.body or b"")], answer.ext


@pytest.mark.spec("IX-06", "IX-07")
async def test_messages_are_found_by_key_and_unique_key() -> None:
    async with wire(SMALL) as w:
        sent = []
        for n in range(12):
            body = b"%d" % n * 300
            answer = await w.send(body=body, properties={"KEYS": f"all k{n}", "UNIQ_KEY": f"U{n}"}, queue=n % 4)
            sent.append((answer, body))
        code, bodies, ext = await query(w, "all")
        assert (code, bodies) == (ResponseCode.SUCCESS, [body for _, body in sent])
        assert int(ext["indexLastUpdatePhyoffset"]) > 0 and int(ext["indexLastUpdateTimestamp"]) > 0
        assert (await query(w, "k5"))[1] == [sent[5][1]]
        assert (await query(w, "U7", maxNum=1, _UNIQUE_KEY_QUERY=True))[1] == [sent[7][1]]
        assert (await query(w, "all", maxNum=3))[1] == [body for _, body in sent[-3:]]
        assert (await query(w, "all", maxNum=-5))[1] == [sent[-1][1]]
        assert (await query(w, "nothing"))[0] == ResponseCode.QUERY_NOT_FOUND
        assert (await query(w, "all", endTimestamp=1))[0] == ResponseCode.QUERY_NOT_FOUND
        wrong = await w.call(
            RequestCode.QUERY_MESSAGE, topic="T", key="all", maxNum="x", beginTimestamp=0, endTimestamp=1
        )
        assert wrong.code == ResponseCode.SYSTEM_ERROR and "maxNum" in (wrong.remark or "")


def deleted_files_in_use(folder: Path) -> list[str]:
    """Files of the folder that are deleted, and that this process has open or mapped."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            links.append(str(link.readlink()))
    lines = [*links, *Path("/proc/self/maps").read_text().splitlines()]
    return sorted({line for line in lines if str(folder) in line and line.endswith("(deleted)")})


@pytest.mark.spec("SOK-05")
async def test_files_deleted_under_a_lagging_reader_leave_no_descriptor(tmp_path: Path) -> None:
    async with wire(SMALL, data=tmp_path) as w:
        for number in range(40):
            await w.send(body=b"%d" % number * 300)
        store, begin = w.broker.store, {"topic": "T", "queueId": 0}
        await store.write_all()
        reading = store.get("T", 0, 0, 1)
        first, content = store.log.files[0].path, bytes(reading.buffers[0])
        os.utime(first, (0, 0))
        assert (await w.call(RequestCode.GET_MIN_OFFSET, **begin)).ext["offset"] == "0"
        store.delete_expired_files()
        await store._maintenance.clean()
        assert not first.exists() and bytes(reading.buffers[0]) == content
        least = (await w.call(RequestCode.GET_MIN_OFFSET, **begin)).ext["offset"]
        assert 0 < int(least) < 40
        lagging = await w.pull(offset=0)
        assert (lagging.code, lagging.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, least)
        assert (await w.pull(offset=int(least))).code == 0
        assert deleted_files_in_use(tmp_path), "mapped for the reader"
        reading.buffers.clear()
        gc.collect()
        assert deleted_files_in_use(tmp_path) == []


@pytest.mark.spec("IX-06", "CFG-07")
async def test_queries_return_what_the_configuration_allows() -> None:
    async with wire(SMALL | {"query_count_max": 3, "unique_query_count_max": 2}) as w:
        for n in range(5):
            await w.send(body=b"%d" % n, properties={"KEYS": "all", "UNIQ_KEY": "same"})
        assert (await query(w, "all"))[1] == [b"2", b"3", b"4"]
        assert (await query(w, "same", _UNIQUE_KEY_QUERY=True))[1] == [b"3", b"4"]


@pytest.mark.spec("IX-06")
async def test_unique_key_query_returns_32_newest_messages() -> None:
    async with wire(SMALL | {"commit_log_file_bytes": 65_536}) as w:
        for n in range(40):
            await w.send(body=b"%d" % n, properties={"UNIQ_KEY": "U"})
        newest = [b"%d" % n for n in range(8, 40)]
        for asked in (1, 64):
            assert (await query(w, "U", maxNum=asked, _UNIQUE_KEY_QUERY=True))[1] == newest
        assert len((await query(w, "U", maxNum=64))[1]) == 40


@pytest.mark.spec("DEL-10", "ADM-17")
async def test_cleaning_keeps_system_queues(tmp_path: Path) -> None:
    async with wire(SMALL, data=tmp_path) as w:
        own = {SCHEDULE_TOPIC, TIMER_TOPIC, OP_HALF_TOPIC}
        store, host = w.broker.store, Host("127.0.0.1", 1)
        for topic in (*own, "%LMQ%q", "unknown"):
            store.put(Message(topic, b"x" * 500, b"", 0, 0, 0, 0, host, host))
        for topic in own:
            w.broker.topics.table.pop(topic, None)
        assert (await w.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        assert {topic for topic, _ in store.topic_queues()} == own | {"%LMQ%q"}
        first, *_ = [
            store.put(Message(topic, b"x" * 3000, b"", 0, 0, 0, 0, host, host)) for topic in ("first", "T", "T", "T")
        ]
        await store.write_all()
        await store.log.truncate_front("a test")
        assert store.min_physical_offset == first.physical_offset, "the only record of its queue"
        store.queues.get_or_make("Fresh", 0)  # no message yet
        assert (await w.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert {topic for topic, _ in store.topic_queues()} == {SCHEDULE_TOPIC, TIMER_TOPIC, "first", "T", "Fresh"}


@pytest.mark.spec("DEL-08", "DEL-10")
async def test_cleaning_on_demand(tmp_path: Path) -> None:
    async with wire(SMALL, data=tmp_path) as w:
        await w.send("Gone", b"x" * 1000)
        for _ in range(5):
            await w.send("T", b"x" * 1500)
        store = w.broker.store
        await store.write_all()
        await store.log.truncate_front("a test")
        assert (await w.call(306)).code == ResponseCode.SUCCESS
        assert {topic for topic, _ in store.topic_queues()} == {"T"}
        store.put_batch(Message("T", b""), [])  # an empty batch is harmless
        del w.broker.topics.table["T"]
        assert (await w.call(316)).code == ResponseCode.SUCCESS
        assert list(store.topic_queues()) == []
        assert (await w.call(329)).code == ResponseCode.SUCCESS
        assert store._maintenance._manual_runs == 20
        assert (await w.call(27)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.spec("DUR-02", "RP-01", "DEL-05")
async def test_runtime_info_has_store_statistics() -> None:
    async with wire(SYNC) as w:
        await w.send()
        answer = await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(answer.body or b"")["table"]
        assert table["flushDiskType"] == "SYNC_FLUSH" and table["dispatchBehindBytes"] == "0"
        assert 0.0 <= float(table["commitLogDiskRatio"]) <= 1.0
        assert table["slowFlushTimes"] == "0"


@pytest.mark.spec("SW-01", "SW-05", "FLU-04", "FLU-05", "ST-17")
async def test_stalled_disk_delays_only_sends_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire(SYNC | {"sync_flush_timeout_ms": 50}) as w:
        first = await w.send(body=b"fine")
        async with asyncio.timeout(10):
            while not await w.messages():
                await asyncio.sleep(0)
        gate = threading.Event()
        real = w.broker.store.disk.sync

        def slow(fd: int) -> None:
            gate.wait(20)
            real(fd)

        monkeypatch.setattr(w.broker.store.disk, "sync", slow)
        try:
            late = await w.send(body=b"late")
            at_once = await w.send(body=b"no wait", properties={"WAIT": "false"})
            read = await w.messages()
        finally:
            gate.set()
        assert first.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)  # a slow disk
        assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (late.ext["queueId"], late.ext["queueOffset"]) == ("0", "1") and len(
            late.ext["msgId"]
        ) == 32  # stored anyway
        assert at_once.code == ResponseCode.SUCCESS and at_once.ext["queueOffset"] == "2"
        assert [m.body for m in read] == [b"fine"]  # the event loop was free and showed only durable messages
        async with asyncio.timeout(10):
            while len(await w.messages()) < 3:
                await asyncio.sleep(0)
        assert [m.body for m in await w.messages()] == [b"fine", b"late", b"no wait"]


@pytest.mark.spec("DUR-06", "SW-02", "SW-05")
async def test_failed_disk_fails_sends_while_pulls_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    server = wire(SYNC)
    w = await server.__aenter__()
    try:
        await w.send(body=b"fine")

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(w.broker.store.disk, "sync", broken)
        lost = await w.send(body=b"lost")
        assert lost.code == ResponseCode.SYSTEM_ERROR
        file = Path(w.broker.store.settings.root) / "commitlog" / ("0" * 20)
        assert f"flush of {file} failed" in (lost.remark or "") and "errno 5" in (lost.remark or "")
        monkeypatch.undo()
        refused = await w.send(body=b"refused")
        for failed in (lost, refused):
            assert not {"msgId", "queueId", "queueOffset"} & failed.ext.keys()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and "Input/output error" in (refused.remark or "")
        assert str(file) in (refused.remark or "") and "errno 5" in (refused.remark or "")
        assert [m.body for m in await w.messages()] == [b"fine"]
        assert w.broker.store.put_batch(Message("T", b""), []).status is not PutStatus.PUT_OK
    finally:
        with pytest.raises(Exception, match="Input/output error"):
            await server.__aexit__(None, None, None)


@pytest.mark.spec("ST-11")
async def test_uncreatable_log_file_is_system_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, size_bytes: int, *, allocate: bool) -> int:
        raise StoreError(f"cannot create {path}: Permission denied")

    async with wire() as w:
        with monkeypatch.context() as patch:
            patch.setattr(w.broker.store.disk, "create", denied)
            refused = await w.send()
        assert refused.code == ResponseCode.SYSTEM_ERROR and "msgId" not in refused.ext
        assert (refused.remark or "").startswith("create mapped file failed, server is busy or broken.")
        assert (await w.send()).ext["msgId"].endswith("0" * 16)  # the first file begins at 0


@pytest.mark.spec("DUR-17", "UPG-03")
async def test_stop_flushes_log_and_queues(tmp_path: Path) -> None:
    hour = 3_600_000
    never = {
        "flush_interval_ms": hour,
        "flush_thorough_ms": hour,
        "flush_queue_interval_ms": hour,
        "flush_queue_thorough_ms": hour,
    }
    async with wire(data=tmp_path, flush_offsets_ms=hour, store=never) as w:
        await w.send()
        store = w.broker.store
        folder = Path(store.settings.root)
        queue = store.queues.by_key["T", 0]
        assert store.flushed_offset < store.log.end and queue.dirty_bytes == 20
        assert (folder / "abort").exists()
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 7}
        await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
        assert not (folder / "config" / "consumerOffset.json").exists()
    assert store.flushed_offset == store.log.end > 0
    assert queue.dirty_bytes == 0
    assert "7" in (folder / "config" / "consumerOffset.json").read_text()
    assert not (folder / "abort").exists()


@pytest.mark.spec("CF-01", "CF-02", "CF-03", "CF-04", "DUR-19", "DUR-14")
async def test_state_files_are_in_config_and_survive_damage(tmp_path: Path) -> None:
    async def offset(w: Wire) -> str | None:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        return (await w.call(RequestCode.QUERY_CONSUMER_OFFSET, **fields)).ext.get("offset")

    async def commit(w: Wire, value: int) -> None:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": value}
        await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)

    file = tmp_path / "store" / "config" / "consumerOffset.json"
    async with wire(data=tmp_path, flush_offsets_ms=5) as w:
        folder = Path(w.broker.store.settings.root)
        await w.send()
        await commit(w, 7)
        saved = folder / "config" / "consumerOffset.json"
        async with asyncio.timeout(10):
            while not saved.exists() or b"7" not in saved.read_bytes():
                await asyncio.sleep(0)
        await commit(w, 3)  # a decrease is accepted
        assert await offset(w) == "3"
        file = saved
    names = {path.name for path in folder.iterdir()}
    assert {"commitlog", "consumequeue", "config", "checkpoint", "lock"} <= names and "abort" not in names
    assert json.loads(file.read_bytes())["offsetTable"]["T@G"] == {"0": 3}
    file.write_bytes(b"{ torn")
    async with wire(data=tmp_path) as w:
        assert await offset(w) == "7"  # the previous version, from the backup
    for path in (file, Path(f"{file}.bak")):
        path.write_bytes(b"{ torn")
    with pytest.raises(CorruptRecord, match=f"{file} and its backup consumerOffset.json.bak cannot be read"):
        async with wire(data=tmp_path):
            raise AssertionError("it starts without the offsets")
    assert file.read_bytes() == b"{ torn"


@pytest.mark.spec("CF-05", "CF-06")
async def test_system_topics_and_groups_exist_at_first_start() -> None:
    async with wire(cluster_name="C1", broker_name="b1") as w:
        body = json.loads((await w.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body or b"")["topicConfigTable"]
        shown = {n: (t["readQueueNums"], t["writeQueueNums"], t["perm"]) for n, t in body.items()}
        assert shown == {
            "SELF_TEST_TOPIC": (1, 1, 6),
            "TBW102": (8, 8, 7),
            "BenchmarkTest": (1024, 1024, 6),
            "C1": (16, 16, 7),
            "b1": (1, 1, 7),
            "OFFSET_MOVED_EVENT": (1, 1, 6),
            "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
            "C1_REPLY_TOPIC": (1, 1, 6),
        }
        text = (await w.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body or b""
        groups = set(json.loads(text)["subscriptionGroupTable"])
        assert groups >= {
            "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
            "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
        }  # fmt: skip


@pytest.mark.spec("CF-05")
async def test_system_topics_follow_their_settings() -> None:
    off: dict[str, Any] = {"cluster_topic_enable": False, "broker_topic_enable": False, "auto_create_topic": False}
    async with wire(cluster_name="C1", broker_name="b1", trace_topic_enable=True, **off) as w:
        table = w.broker.topics.table
        assert "TBW102" not in table
        shown = {n: (table[n].read_queue_nums, table[n].write_queue_nums, table[n].perm) for n in ("C1", "b1")}
        assert shown == {"C1": (16, 16, 1), "b1": (1, 1, 1)}
        trace = table["RMQ_SYS_TRACE_TOPIC"]
        assert (trace.read_queue_nums, trace.write_queue_nums, trace.perm) == (1, 1, 6)


@pytest.mark.spec("CF-05")
async def test_topics_file_overrides_system_topic_defaults(tmp_path: Path) -> None:
    async with wire(data=tmp_path) as w:
        file = Path(w.broker.store.settings.root) / "config" / "topics.json"
        await w.send("Made")  # the first change writes the file
    saved = json.loads(file.read_bytes())
    table = saved["topicConfigTable"]
    table["SELF_TEST_TOPIC"] |= {"readQueueNums": 3, "writeQueueNums": 2, "perm": 4}
    table["TBW102"] |= {"readQueueNums": 12, "writeQueueNums": 12}
    table["SCHEDULE_TOPIC_XXXX"] |= {"readQueueNums": 20, "writeQueueNums": 20}
    del table["OFFSET_MOVED_EVENT"]
    saved["dataVersion"] = {"timestamp": 1_700_000_000_000, "counter": 41}
    file.write_text(json.dumps(saved))
    async with wire(data=tmp_path) as w:
        body = json.loads((await w.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body or b"")
        table = body["topicConfigTable"]
        shown = {n: (table[n]["readQueueNums"], table[n]["writeQueueNums"], table[n]["perm"]) for n in table}
        assert shown["SELF_TEST_TOPIC"] == (3, 2, 4)
        assert shown["TBW102"] == (12, 12, 7) and shown["SCHEDULE_TOPIC_XXXX"] == (20, 20, 6)
        assert shown["OFFSET_MOVED_EVENT"] == (1, 1, 6)  # absent from the file: the default
        assert body["dataVersion"] == {"timestamp": 1_700_000_000_000, "counter": 41}
        await w.send("Second")
    table = json.loads(file.read_bytes())["topicConfigTable"]
    assert table["SELF_TEST_TOPIC"]["readQueueNums"] == 3 and table["TBW102"]["writeQueueNums"] == 12
