"""Delayed messages by level: storage, delivery by the clock, and progress that may repeat but never skips."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import Clock, Wire, wire

from saturnmq.broker.services import delay
from saturnmq.broker.services.statistics import Stats
from saturnmq.protocol.bodies import DelayOffsetTable, SubscriptionGroupConfig
from saturnmq.protocol.codes import HALF_TOPIC, SCHEDULE_TOPIC, RequestCode
from saturnmq.protocol.errors import ConfigError, ResponseError
from saturnmq.protocol.message import BatchItem, Host, Message, decode_record, encode_properties, java_hash
from saturnmq.store import FlushDiskType, MessageStore, PutResult, PutStatus, StateFile, StoreProfile, StoreSettings
from saturnmq.store.delay import due_ms
from waiting import until

MAX = 18


def later(w: Wire, clock: Clock, ms: int) -> int:
    """Advance the clock and run one delivery round."""
    clock.ms += ms
    return w.broker.master.delay.deliver_due()


# ---- storage of delayed messages


@pytest.mark.spec("DLY-01", "ST-08")
@pytest.mark.parametrize(
    ("text", "level"),
    [("3", 3), ("18", 18), ("19", 18), ("99999999", 18), ("0", 0), ("-1", 0), ("+2", 2), ("007", 7), (None, 0)],
)
def test_delay_level_is_clamped_to_valid_range(text: str | None, level: int) -> None:
    assert delay.level_of(text, MAX) == level


@pytest.mark.spec("DLY-01")
@pytest.mark.parametrize("text", ["x", "1.5", "1 ", "٣", "9" * 40, "1s"])
def test_non_numeric_delay_level_is_rejected(text: str) -> None:
    with pytest.raises(ResponseError, match="must be the number of a delay level") as caught:
        delay.level_of(text, MAX)
    assert caught.value.code == 13


@pytest.mark.spec("DLY-02", "DLY-05", "ST-08")
@given(
    st.integers(1, 40),
    st.integers(0, 9),
    st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "REAL_TOPIC", "REAL_QID", "MYDELAY", "x"]), st.text("ab", min_size=1)
    ),
)
def test_scheduled_message_is_restored_to_topic_and_queue(level: int, queue: int, own: dict[str, str]) -> None:
    raw = encode_properties(own | {"DELAY": str(level)}).decode()
    topic, queue_id, properties = delay.scheduled("T", queue, raw, str(level), MAX)
    assert (topic, queue_id) == (SCHEDULE_TOPIC, min(level, MAX) - 1)
    message = Message(topic, b"x", properties.encode(), queue_id, reconsume_times=2, born_timestamp_ms=5)
    copy = delay.restored(message)
    assert (copy.topic, copy.queue_id, copy.reconsume_times, copy.born_timestamp_ms) == ("T", queue, 2, 5)
    expected = {"DELAY": str(min(level, MAX)), "REAL_TOPIC": "T", "REAL_QID": str(queue)}
    assert copy.properties == own | expected


@pytest.mark.spec("DLY-01")
def test_delay_levels_default_to_apache_18_levels() -> None:
    minutes = [n * 60_000 for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    expected = (1000, 5000, 10_000, 30_000, *minutes, 3_600_000, 7_200_000)
    assert delay.levels_of(StoreSettings().message_delay_level) == expected and len(expected) == MAX
    assert delay.levels_of("2s 2m 2h 2d") == (2000, 120_000, 7_200_000, 172_800_000)
    assert len(delay.levels_of("1s " * 20)) == 20
    assert delay.scheduled("T", 0, "DELAY\x0120", "20", 20)[:2] == (SCHEDULE_TOPIC, 19), "more levels, more queues"


@pytest.mark.spec("DLY-03")
def test_unknown_level_delays_by_one_second() -> None:
    assert due_ms(2, 7, (1000, 5000)) == 5007
    for unknown in (0, 3, -1):
        assert due_ms(unknown, 7, (1000, 5000)) == 1007


@pytest.mark.spec("DLY-01")
@pytest.mark.parametrize(("text", "word"), [("1x", "1x"), ("", "no level"), ("s", "'s'")])
def test_invalid_level_list_is_config_error(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        delay.levels_of(text)


# ---- over the wire


@pytest.mark.spec("DLY-02", "DLY-03", "DLY-05", "ST-08", "CQ-03")
async def test_delayed_message_is_delivered_on_time_with_properties() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        answer = await w.send(body=b"late", properties={"DELAY": "2", "TAGS": "t", "KEYS": "k"}, queue=2, j=1, h=7)
        assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
        (waiting,) = await w.messages(SCHEDULE_TOPIC, 1)
        assert waiting.properties == {
            "DELAY": "2", "TAGS": "t", "KEYS": "k", "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "2",
        }  # fmt: skip
        unit = w.broker.store.queues.by_key[(SCHEDULE_TOPIC, 1)].unit(0)
        assert unit is not None and unit[2] == clock.ms + 5000
        assert later(w, clock, 4999) == 1
        assert await w.messages(queue=2) == []
        later(w, clock, 1)
        (message,) = await w.messages(queue=2)
        assert message.properties_raw == waiting.properties_raw
        assert (message.body, message.flag, message.reconsume_times) == (b"late", 7, 1)
        assert (message.born_timestamp_ms, message.born_host) == (1234, waiting.born_host)
        assert (message.store_timestamp_ms, message.store_host) == (clock.ms, waiting.store_host)
        unit = w.broker.store.queues.by_key[("T", 2)].unit(0)
        assert unit is not None and unit[2] == java_hash("t")
        later(w, clock, 3_600_000)
        assert len(await w.messages(queue=2)) == 1


@pytest.mark.spec("DLY-04")
async def test_delivery_wakes_parked_pull() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await w.send()
        await w.send(properties={"DELAY": "1"})
        pull = asyncio.create_task(w.pull(offset=1, suspend_ms=20_000))
        while w.broker.long_polling.count < 1:
            await asyncio.sleep(0)
        clock.ms += 1000
        w.broker.master.delay.wake()
        assert (await pull).code == 0


@pytest.mark.spec("DLY-04")
async def test_delay_task_delivers_within_100_ms() -> None:
    async with wire() as w:
        sent = await w.send(properties={"DELAY": "1"})
        assert sent.code == 0
        (waiting,) = await w.messages(SCHEDULE_TOPIC, 0)
        answer = await w.pull(suspend_ms=10_000)
        while answer.code != 0:
            answer = await w.pull(suspend_ms=10_000)
        (message,) = await w.messages()
        assert 1000 <= message.store_timestamp_ms - waiting.store_timestamp_ms < 1100


@pytest.mark.spec("DLY-02", "BAT-06", "ST-16")
@pytest.mark.parametrize(("common", "own", "code"), [
    ("DELAY\x013", b"", 13), ("", b"DELAY\x011", 13), ("WAIT\x01true", b"K\x01v\x02DELAY\x011", 13),
    ("DELAY\x010", b"MYDELAY\x013", 0),
])  # fmt: skip
async def test_batch_cannot_be_delayed(common: str, own: bytes, code: int) -> None:
    async with wire() as w:
        answer = await w.send_batch([BatchItem(b"a"), BatchItem(b"b", own)], common=common)
        assert answer.code == code
        assert len(await w.messages(queue=1)) == (2 if code == 0 else 0)


@pytest.mark.spec("DLY-02", "ST-08")
async def test_delay_property_is_matched_by_exact_name() -> None:
    async with wire() as w:
        for raw in ("MYDELAY\x013", "A\x01DELAY\x013", "DELAY\x01", "DELAY\x010", "DELAY\x01-2"):
            assert (await w.send(raw=raw)).code == 0
        assert len(await w.messages()) == 5
        answer = await w.send(raw="DELAY\x01soon")
        assert (answer.code, "'soon'" in (answer.remark or "")) == (13, True)


@pytest.mark.spec("DLY-02", "ST-08")
@pytest.mark.parametrize(("flags", "topic"), [(0, SCHEDULE_TOPIC), (8, SCHEDULE_TOPIC), (4, "T"), (12, "T")])
async def test_prepared_and_rolled_back_messages_are_not_delayed(flags: int, topic: str) -> None:
    async with wire() as w:
        sent = await w.send(properties={"DELAY": "3"}, f=flags)
        record = w.broker.store.read_record(int(sent.ext["msgId"][16:], 16))
        assert record is not None and decode_record(record).topic == topic


@pytest.mark.spec("DLY-02")
async def test_send_to_schedule_topic_is_rejected() -> None:
    async with wire() as w:
        assert (await w.send(SCHEDULE_TOPIC)).code == 16


@pytest.mark.spec("RTY-05", "SND-09")
async def test_dead_letter_is_not_delayed() -> None:
    async with wire() as w:
        await w.send("%RETRY%G", properties={"DELAY": "3"}, j=16)
        (dead,) = await w.messages("%DLQ%G")
        assert "DELAY" not in dead.properties
        await w.send("%RETRY%G", properties={"DELAY": "3"}, j=15)
        assert len(await w.messages(SCHEDULE_TOPIC, 2)) == 1


@pytest.mark.spec("RTY-05")
@pytest.mark.parametrize(
    ("version", "failed", "most", "topic"),
    [
        (407, 15, None, "%RETRY%G"),
        (407, 16, None, "%DLQ%G"),
        (407, 16, 17, "%RETRY%G"),
        (121, 2, 2, "%DLQ%G"),
        (120, 2, 2, "%RETRY%G"),
    ],
)
async def test_send_to_retry_topic_goes_to_dlq_at_limit(
    version: int, failed: int, most: int | None, topic: str
) -> None:
    async with wire() as w:
        limit = {} if most is None else {"l": most}
        assert (await w.send("%RETRY%G", version=version, j=failed, **limit)).code == 0
        assert {name for name, _ in w.broker.store.topic_queues()} == {topic}


@pytest.mark.spec("RTY-05")
async def test_send_to_retry_topic_requires_group() -> None:
    async with wire(auto_create_group=False) as w:
        for failed in (0, 16):
            refused = await w.send("%RETRY%G", j=failed)
            assert (refused.code, "subscription group not exist, G" in (refused.remark or "")) == (26, True)
        w.broker.topics.ensure("%RETRY%G", 1)  # a topic whose group was deleted
        assert (await w.send("%RETRY%G", j=16)).code == 26


@pytest.mark.spec("RTY-03", "RTY-04")
@pytest.mark.parametrize(
    ("asked", "failed", "level"),
    [(0, 0, 3), (0, 1, 4), (0, 14, 17), (0, 15, 18), (0, 40, 18), (5, 7, 5), (99, 0, 18)],
)
async def test_retry_delay_level_grows_with_attempts(asked: int, failed: int, level: int) -> None:
    async with wire() as w:
        await w.send(j=failed, properties={"TAGS": "x"})
        (message,) = await w.messages()
        back: dict[str, Any] = {
            "group": "G",
            "delayLevel": asked,
            "offset": message.physical_offset,
            "maxReconsumeTimes": 100,
        }
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
        (copy,) = await w.messages(SCHEDULE_TOPIC, level - 1)
        assert (copy.properties["REAL_TOPIC"], copy.reconsume_times) == ("%RETRY%G", failed + 1)
        assert (copy.properties["RETRY_TOPIC"], copy.properties["TAGS"]) == ("T", "x")


@pytest.mark.spec("RTY-03")
async def test_send_back_with_negative_level_goes_to_dlq() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        w.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=3))
        await w.send(body=b"poison", properties={"DELAY": "0"})
        (message,) = await w.messages()
        back: dict[str, Any] = {"group": "G", "delayLevel": -1, "offset": message.physical_offset}
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, maxReconsumeTimes=16, **back)).code == 0
        config = w.broker.topics.table["%DLQ%G"]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
        later(w, clock, 3 * 7_200_000)
        (dead,) = await w.messages("%DLQ%G")
        assert (dead.body, dead.properties["DELAY"], dead.reconsume_times) == (b"poison", "0", 1)
        assert {name for name, _ in w.broker.store.topic_queues()} == {"T", "%DLQ%G"}, "no broker delivers it again"


@pytest.mark.spec("RTY-04", "RTY-02")
async def test_repeated_retry_keeps_origin_id_and_topic() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        sent = await w.send()
        topic, tries = "T", 3
        for attempt in range(tries):
            (message,) = (await w.messages(topic))[-1:]
            assert message.reconsume_times == attempt
            back: dict[str, Any] = {"group": "G", "delayLevel": 0, "offset": message.physical_offset}
            assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
            later(w, clock, 7_200_000)
            topic = "%RETRY%G"
        messages = await w.messages(topic)
        assert [m.reconsume_times for m in messages] == [1, 2, 3]
        assert {m.properties["ORIGIN_MESSAGE_ID"] for m in messages} == {sent.ext["msgId"]}
        assert {m.properties["RETRY_TOPIC"] for m in messages} == {"T"}
        assert [m.properties["DELAY"] for m in messages] == ["3", "4", "5"]


# ---- progress


@pytest.mark.spec("DLY-07", "DLY-08", "ADM-25")
async def test_delay_progress_survives_restart_and_is_reported(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path
    async with wire(data=folder, clock_ms=clock) as w:
        for _ in range(3):
            await w.send(properties={"DELAY": "1"})
        later(w, clock, 1000)
        clock.ms += 1
        await w.send(properties={"DELAY": "1"})
        await w.send(properties={"DELAY": "4"})
        later(w, clock, 0)
        answer = await w.call(RequestCode.GET_ALL_DELAY_OFFSET)
        assert DelayOffsetTable.decode(answer.body).offset_table == {1: 3, 4: 0}
        table = json.loads((await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body or b"")["table"]
        rows = {name: text for name, text in table.items() if name.startswith("schedule")}
        assert rows == {"scheduleMessageOffset_1": "3,4", "scheduleMessageOffset_4": "0,1"}
    assert (folder / "store" / "config" / "delayOffset.json").is_file()
    async with wire(data=folder, clock_ms=clock) as w:
        assert w.broker.master.delay.offsets() == {1: 3, 4: 0}
        later(w, clock, 60_000)
        assert len(await w.messages()) == 5


class Bench:
    """A delay service over a store, without a broker."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = Clock()
        self.settings = StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(folder), **settings)
        self.file = StateFile(folder / "config" / "delayOffset.json")

    async def __aenter__(self) -> Bench:
        self.store = MessageStore(self.settings, clock_ms=self.clock)
        self.store.open()
        await self.store.start()
        self.service = delay.DelayService(self.store, self.file, Stats("C", lambda: 0), self.clock)
        self.service.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.stop()
        await self.store.stop()

    def add(self, level: int, body: bytes = b"m", **properties: str) -> PutResult:
        raw = encode_properties({"DELAY": str(level)} | properties).decode()
        topic, queue, text = delay.scheduled("T", 0, raw, str(level), 18)
        host = Host("127.0.0.1", 1)
        return self.store.put(Message(topic, body, text.encode(), queue, born_host=host, store_host=host))

    def bodies(self) -> list[bytes]:
        queue = self.store.queues.get(("T", 0))
        records = [self.store.read_record(unit[0]) for _, unit in queue.units(0, queue.max_offset)] if queue else []
        return [bytes(decode_record(record or b"").body) for record in records]


@pytest.mark.spec("DLY-04", "DLY-06", "DLY-07")
def test_delay_service_default_intervals() -> None:
    assert (delay.PAUSE_MS, delay.RETRY_MS, delay.FLUSH_WAIT_MS) == (10_000, 100, 5_000)


@pytest.mark.spec("DLY-06")
async def test_rejected_delivery_is_retried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(tmp_path) as b:
        b.add(1, b"a")
        b.add(1, b"b")
        b.add(2, b"other level")
        b.clock.ms += 1000
        put = b.store.put
        with monkeypatch.context() as patch:
            patch.setattr(b.store, "put", lambda message: PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full"))
            assert b.service.deliver_due() == delay.RETRY_MS
            assert b.service.deliver_due() == delay.RETRY_MS  # backing off, nothing is tried
            b.clock.ms += delay.RETRY_MS
            assert b.service.deliver_due() == 2 * delay.RETRY_MS
        assert b.store.put == put and b.service.offsets()[1] == 0
        b.clock.ms += 2 * delay.RETRY_MS
        b.service.deliver_due()
        assert b.bodies() == [b"a", b"b"]
        b.clock.ms += 5000
        b.service.deliver_due()
        assert b.bodies() == [b"a", b"b", b"other level"]


@pytest.mark.spec("DLY-04")
async def test_unexpected_failure_pauses_only_its_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(tmp_path) as b:
        b.add(1, b"bad")
        b.add(2, b"good")
        b.clock.ms += 5000
        read = b.store.read_record

        def fail(physical: int, size: int | None = None) -> bytes | None:
            if physical == 0:
                raise OSError("disk")
            return read(physical, size)

        with monkeypatch.context() as patch:
            patch.setattr(b.store, "read_record", fail)
            assert 0 < b.service.deliver_due() <= delay.PAUSE_MS
            assert b.bodies() == [b"good"]
        b.clock.ms += delay.PAUSE_MS - 1
        b.service.deliver_due()
        assert b.bodies() == [b"good"]
        b.clock.ms += 1
        b.service.deliver_due()
        assert b.bodies() == [b"good", b"bad"]


@pytest.mark.spec("DLY-04", "DLY-08", "DUR-10")
@pytest.mark.parametrize("properties", [{"REAL_TOPIC": HALF_TOPIC}, {"REAL_TOPIC": SCHEDULE_TOPIC}, {"REAL_QID": "-3"}])
async def test_undeliverable_message_is_skipped_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, properties: dict[str, str]
) -> None:
    """DLY-08: half messages are never delivered, and a bad message does not block the others."""
    async with Bench(tmp_path) as b:
        bad = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"} | properties
        b.store.put(Message(SCHEDULE_TOPIC, b"bad", encode_properties(bad), 0))
        b.add(1, b"good")
        b.clock.ms += 1000
        with caplog.at_level(logging.ERROR):
            b.service.deliver_due()
        assert b.bodies() == [b"good"] and "skipped" in caplog.text


@pytest.mark.spec("DLY-04", "DUR-10")
async def test_damaged_or_missing_record_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bench(tmp_path) as b:
        first, second = b.add(1, b"torn" * 10), b.add(1, b"gone")
        b.add(1, b"good")
        b.clock.ms += 1000
        read = b.store.read_record

        def damaged(physical: int, size: int | None = None) -> bytes | None:
            record = read(physical, size)
            if physical == second.physical_offset:
                return None
            return record.replace(b"torn", b"worn") if physical == first.physical_offset and record else record

        monkeypatch.setattr(b.store, "read_record", damaged)
        with caplog.at_level(logging.ERROR):
            b.service.deliver_due()
        monkeypatch.undo()
        assert b.bodies() == [b"good"] and caplog.text.count("skipped") == 2


@pytest.mark.spec("DLY-04")
async def test_delivery_round_is_bounded_and_keeps_order(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        for number in range(300):
            b.add(1 + number % 2, str(number).encode())
        b.clock.ms += 5000
        counts = [0]
        while b.service.deliver_due() == 0:
            counts.append(len(b.bodies()))
            assert counts[-1] - counts[-2] <= delay.BATCH_COUNT
        assert len(counts) >= 300 // delay.BATCH_COUNT
        numbers = [int(body) for body in b.bodies()]
        assert sorted(numbers) == list(range(300))
        assert [n for n in numbers if n % 2 == 0] == list(range(0, 300, 2))


@pytest.mark.spec("DLY-04", "DUR-18")
async def test_clock_set_back_neither_stalls_nor_advances_delivery(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as b:
        b.add(3, b"hour ahead")
        b.clock.ms -= 3_600_000
        b.service.deliver_due()
        assert b.bodies() == [b"hour ahead"]
    async with Bench(tmp_path / "two") as b:
        b.add(3, b"slightly ahead")
        b.clock.ms -= 500
        assert b.service.deliver_due() <= 1000
        assert b.bodies() == []
        b.clock.ms += 10_500
        b.service.deliver_due()
        assert b.bodies() == [b"slightly ahead"]
    async with Bench(tmp_path / "three") as b:
        b.add(18, b"forward")
        b.clock.ms += 3 * 3_600_000
        b.service.deliver_due()
        assert b.bodies() == [b"forward"]


@pytest.mark.spec("DLY-07")
async def test_delay_progress_is_saved_at_the_configured_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, saves = asyncio.get_running_loop(), list[float]()

    async def saved(self: delay.DelayService) -> None:
        saves.append(loop.time())

    monkeypatch.setattr(delay.DelayService, "save", saved)
    began = loop.time()
    async with wire(flush_delay_ms=4000):
        await asyncio.sleep(10)  # poll: virtual time
        assert [round(at - began) for at in saves] == [4, 8]


@pytest.mark.spec("DLY-07", "DL-C05")
@pytest.mark.parametrize("saved", [-5, 2, 99])
async def test_delay_progress_outside_queue_is_corrected(tmp_path: Path, saved: int) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text(f'{{"offsetTable":{{1:{saved},40:7}}}}')
    async with Bench(tmp_path) as b:
        b.add(1, b"a")
        b.clock.ms += 1000
        b.service.deliver_due()
        assert b.service.offsets() == {1: 1, 40: 7}
        assert b.bodies() == ([b"a"] if saved < 0 else [])


@pytest.mark.spec("DLY-07")
async def test_delay_progress_behind_retention_continues_at_the_queues_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:1}}')
    async with Bench(tmp_path) as b:
        *_, last = [b.add(1, body) for body in (b"a", b"b", b"c")]
        queue = b.store.queues.get((SCHEDULE_TOPIC, 0))
        assert queue is not None
        queue.correct_min_offset(last.physical_offset)
        b.service.deliver_due()
        assert b.service.offsets() == {1: 2}
        assert "delay offset corrected level=1 offset=1 corrected=2" in caplog.text
        b.clock.ms += 1000
        b.service.deliver_due()
        assert b.bodies() == [b"c"]


@pytest.mark.spec("DUR-19", "DLY-06", "DLY-07")
async def test_delay_progress_is_written_after_delivered_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may repeat a delivery; durable progress for a copy that is not durable would lose one."""
    async with Bench(tmp_path) as b:
        b.add(1, b"a")
        b.clock.ms += 1000
        b.service.deliver_due()
        end = b.store.log.end
        flushed_then = []
        write = b.file.write

        def note(data: bytes) -> None:
            flushed_then.append(b.store.flushed_offset)
            write(data)

        monkeypatch.setattr(b.file, "write", note)
        await b.service.save()
        assert flushed_then and flushed_then[0] >= end
        await b.service.save()
        assert len(flushed_then) == 1  # nothing changed, nothing written
        await until(lambda: b.store.log.flusher._running is None)  # it would go on with what is added now
        with monkeypatch.context() as patch:
            patch.setattr(b.store.log.flusher, "start", lambda: None)  # a disk that does not finish
            b.add(1, b"b")
            b.clock.ms += 1000
            b.service.deliver_due()
            began = asyncio.get_running_loop().time()
            await b.service.save()
        assert len(flushed_then) == 1 and round(asyncio.get_running_loop().time() - began) == 5
        await b.service.save()
        assert len(flushed_then) == 2


@pytest.mark.spec("DUR-19")
async def test_lost_delay_progress_repeats_but_skips_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        b.add(1, b"a")
        b.clock.ms += 1000
        b.service.deliver_due()
        await b.service.save()
        old = b.file.path.read_bytes()
        b.add(1, b"b")
        b.add(3, b"c")
        b.clock.ms += 1000
        b.service.deliver_due()
    b.file.path.write_bytes(old)
    again = Bench(tmp_path)
    again.clock.ms = b.clock.ms
    async with again:
        again.clock.ms += 10_000
        again.service.deliver_due()
        assert again.bodies() == [b"a", b"b", b"b", b"c"]


@pytest.mark.spec("DLY-01", "ST-08")
async def test_delay_levels_are_configurable(tmp_path: Path) -> None:
    async with Bench(tmp_path, message_delay_level="2s 1d") as b:
        assert b.service.level_max == 2
        topic, queue, _ = delay.scheduled("T", 0, "DELAY\x019", "9", b.service.level_max)
        assert (topic, queue) == (SCHEDULE_TOPIC, 1)
        b.add(1, b"a")
        b.clock.ms += 2000
        b.service.deliver_due()
        assert b.bodies() == [b"a"]


@pytest.mark.spec("DLY-03", "CQ-13")
async def test_due_time_is_read_from_queue_extension(tmp_path: Path) -> None:
    async with Bench(tmp_path, queue_extension_enable=True) as b:
        b.add(2, b"a")
        b.clock.ms += 4999
        assert b.service.deliver_due() == 1 and b.bodies() == []
    again = Bench(tmp_path)  # extension disabled: computed from the record
    again.clock.ms = b.clock.ms
    async with again:
        assert again.service.deliver_due() == 1 and again.bodies() == []
        again.clock.ms += 1
        again.service.deliver_due()
        assert again.bodies() == [b"a"]


@pytest.mark.spec("DLY-06", "FLU-01")
async def test_sync_flush_message_is_delivered_once_visible(tmp_path: Path) -> None:
    async with Bench(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as b:
        result = b.add(1, b"a")
        b.service.deliver_due()
        assert await b.store.wait_confirmed(result) is PutStatus.PUT_OK
        b.clock.ms += 1000
        b.service.deliver_due()
        await b.service.save()  # waits for the flush
        assert b.bodies() == [b"a"]


@pytest.mark.spec("DLY-04")
async def test_level_that_backs_off_is_tried_when_its_pause_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bench(tmp_path) as b:
        b.add(1, b"a")
        b.clock.ms += 1000
        with monkeypatch.context() as patch:
            patch.setattr(b.store, "put", lambda message: PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full"))
            waits = []
            for _ in range(9):
                waits.append(b.service.deliver_due())
                b.clock.ms += waits[-1]
        assert waits == [100, 200, 400, 800, 1000, 600, 1000, 1000, 1000], (
            "pauses of 1.6 s and then 2 s are in two steps"
        )
        b.clock.ms += 950
        assert b.service.deliver_due() == 50
        b.clock.ms += 50
        b.service.deliver_due()
        assert b.bodies() == [b"a"]


@pytest.mark.spec("DLY-04")
async def test_level_with_a_backlog_does_not_stop_the_others(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        for _ in range(4 * delay.BATCH_COUNT):
            b.add(1, b"many")
        b.add(2, b"one")
        b.clock.ms += 5000
        assert [b.service.deliver_due() for _ in range(2)] == [0, 0]
        assert b.bodies().count(b"many") == 2 * delay.BATCH_COUNT - 1 and b.bodies().count(b"one") == 1


@pytest.mark.spec("DLY-04")
async def test_bytes_of_one_delivery_round_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "BATCH_BYTES", 2000)
    async with Bench(tmp_path) as b:
        for _ in range(7):
            b.add(1, b"x" * 600)
        b.clock.ms += 1000
        counts = []
        while b.service.deliver_due() == 0:
            counts.append(len(b.bodies()))
        assert counts[:2] == [3, 6] and len(b.bodies()) == 7, "the round ends with the message that exceeds the limit"
