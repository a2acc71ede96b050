"""Delivery at an arbitrary time: order, restarts, clock jumps, and delays longer than the log's retention."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import Clock, run, wire

from saturnmq.broker.services import timer
from saturnmq.broker.services.statistics import Stats
from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.message import BatchItem, Host, Message, decode_record
from saturnmq.protocol.properties import MessageProperties
from saturnmq.store import (
    FlushDiskType,
    MessageStore,
    PutResult,
    PutStatus,
    StateFile,
    StoreProfile,
    StoreSettings,
    wait_confirmed,
)

NOW = 1_700_000_000_000
DAY = 86_400_000
HOST = Host("127.0.0.1", 1)


class Bench:
    """A timer service over a store, without a broker."""

    def __init__(self, folder: Path, clock: Clock | None = None, **options: Any) -> None:
        self.clock = clock or Clock()
        self.settings = StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(folder), **options)
        self.file = StateFile(folder / "config" / "timer.json")

    async def __aenter__(self) -> Bench:
        self.store = MessageStore(self.settings, clock_ms=self.clock)
        self.store.open()
        await self.store.start()
        self.service = timer.TimerService(self.store, self.file, Stats("C", lambda: 0), self.clock)
        self.service.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.stop()
        await self.store.stop()

    def add(self, in_ms: int, body: bytes = b"m", topic: str = "T") -> PutResult:
        message = Message(topic, body, b"TIMER_DELAY_MS\x01%d" % in_ms, 3, born_host=HOST, store_host=HOST)
        return self.service.put(message, self.clock.ms + in_ms)

    def run(self, ms: int = 0) -> int:
        """Advance the clock and run until nothing is due; returns ms until the next run."""
        self.clock.ms += ms
        for _ in range(100_000):
            wait_ms = self.service.deliver_due()
            if wait_ms > 0:
                return wait_ms
        raise AssertionError("it never rests")

    def messages(self, topic: str = "T", queue_id: int = 3) -> list[Message]:
        queue = self.store.queues.get((topic, queue_id))
        units = [unit for _, unit in queue.units(0, queue.max_offset)] if queue else []
        return [decode_record(self.store.read_record(unit[0]) or b"") for unit in units]

    def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in self.messages()]


# ---- requested time


@pytest.mark.spec("API-13")
@pytest.mark.parametrize(
    ("raw", "at"),
    [
        ("TIMER_DELIVER_MS\x011700000000001", NOW + 1),
        ("TIMER_DELIVER_MS\x011700000000000", None),
        ("TIMER_DELIVER_MS\x0112", None),
        ("TIMER_DELAY_MS\x01250", NOW + 250),
        ("A\x01b\x02TIMER_DELAY_SEC\x013", NOW + 3000),
        ("TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x017", NOW + 3000),
        ("TIMER_DELAY_SEC\x010", None),
        ("TIMER_DELAY_SEC\x013456000", NOW + 40 * DAY),
        ("MY_TIMER_DELAY_SEC\x013", None),
        ("DELAY\x013", None),
        ("", None),
    ],
)
def test_timer_properties_give_delivery_time(raw: str, at: int | None) -> None:
    assert timer.deliver_ms_of(MessageProperties(raw, "").special, NOW) == at


@pytest.mark.spec("API-13")
@pytest.mark.parametrize(
    "raw",
    [
        "TIMER_DELAY_SEC\x013456001", "TIMER_DELIVER_MS\x011703456000001", "TIMER_DELAY_MS\x01x", "TIMER_DELAY_MS\x01-1",
        "TIMER_DELIVER_MS\x011e9", "TIMER_DELAY_SEC\x01" + "9" * 16,
    ],
)  # fmt: skip
def test_invalid_or_too_late_delivery_time_is_rejected(raw: str) -> None:
    with pytest.raises(ResponseError) as caught:
        timer.deliver_ms_of(MessageProperties(raw, "").special, NOW)
    assert caught.value.code == 13


# ---- over the wire


@pytest.mark.spec("API-13", "DLY-05")
async def test_timed_message_is_delivered_at_its_millisecond() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        service = w.broker.master.timer
        while service.deliver_due() == 0:
            pass
        answer = await w.send(properties={"TIMER_DELAY_MS": "1234", "TAGS": "t"}, queue=2, h=7)
        assert (answer.code, answer.ext["queueId"]) == (0, "2")
        clock.ms += 1233
        assert 0 < service.deliver_due() <= 1000
        assert await w.messages(queue=2) == []
        pull = asyncio.create_task(w.pull(queue=2, suspend_ms=10_000))
        clock.ms += 1
        service.wake()
        while not (await w.messages(queue=2)):
            service.deliver_due()
        (message,) = await w.messages(queue=2)
        pull.cancel()
        await asyncio.gather(pull, return_exceptions=True)
        assert (message.flag, message.tags, message.born_timestamp_ms) == (7, "t", 1234)
        assert message.properties["TIMER_OUT_MS"] == str(clock.ms) and message.store_timestamp_ms == clock.ms
        past = await w.send(properties={"TIMER_DELIVER_MS": "5"}, queue=1)
        assert past.code == 0 and len(await w.messages(queue=1)) == 1


@pytest.mark.spec("API-13", "DLY-02", "TX-11", "BAT-06", "SND-05")
async def test_timer_combined_with_delay_batch_retry_transaction() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        both = await w.send(properties={"TIMER_DELAY_MS": "5000", "DELAY": "3"})
        assert both.code == 0 and len(await w.messages(SCHEDULE_TOPIC, 2)) == 1  # level first, as in 5.x
        assert (await w.send(properties={"TIMER_DELAY_MS": "1", "TRAN_MSG": "true"})).code == 13
        assert (await w.send_batch([BatchItem(b"x", b"TIMER_DELIVER_MS\x015")])).code == 13
        assert (await w.send(properties={"TIMER_DELAY_MS": "later"})).code == 13
        retry = await w.send("%RETRY%G", properties={"TIMER_DELAY_MS": "5000", "DELAY": "1"}, j=1)
        assert retry.code == 0 and len(await w.messages(SCHEDULE_TOPIC, 0)) == 1
        assert (await w.send("%RETRY%G", properties={"TIMER_DELAY_MS": "5000"}, j=1)).code == 0
        assert len(await w.messages("%RETRY%G")) == 1
        refused = await w.send(TIMER_TOPIC)
        assert (refused.code, refused.remark) == (16, f"Sending message to topic[{TIMER_TOPIC}] is forbidden.")
        assert (await w.pull(TIMER_TOPIC)).code == 17
        answer = await w.heartbeat("G", "T")
        assert answer.ext["timerMaxDelayMs"] == str(40 * DAY)
        assert (await w.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0


@pytest.mark.spec("API-21")
async def test_message_sent_back_with_exact_delay() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        service = w.broker.master.timer
        while service.deliver_due() == 0:
            pass
        await w.send_batch([BatchItem(b"x", b"RAW\x01\xff\x02TIMER_DELAY_MS\x010")], queue=0)
        (message,) = await w.messages()
        back: dict[str, Any] = {"group": "G", "delayLevel": 3, "offset": message.physical_offset}
        for wrong in ("x", "-1", str(40 * DAY + 1)):
            assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, delayMs=wrong, **back)).code == 13
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, delayMs="7000", **back)).code == 0
        assert await w.messages(SCHEDULE_TOPIC, 2) == []
        clock.ms += 6999
        service.deliver_due()
        assert await w.messages("%RETRY%G") == []
        clock.ms += 1
        while service.deliver_due() == 0:
            pass
        (again,) = await w.messages("%RETRY%G")
        assert (again.reconsume_times, again.store_timestamp_ms) == (1, clock.ms)
        assert b"RAW\x01\xff\x02" in again.properties_raw and b"RETRY_TOPIC\x01T\x02" in again.properties_raw
        dead = {**back, "delayLevel": -1}
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, delayMs="7000", **dead)).code == 0
        assert len(await w.messages("%DLQ%G")) == 1
        await w.send(queue=2)
        back["offset"] = (await w.messages(queue=2))[0].physical_offset
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, delayMs="0", **back)).code == 0
        assert len(await w.messages(SCHEDULE_TOPIC, 2)) == 1, "0 leaves it to the level"


# ---- order and restarts


@pytest.mark.spec("API-13")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 9_000_000)), min_size=1, max_size=30),
    st.lists(st.integers(0, 3_600_000), max_size=8),
)
def test_timer_equals_sorted_list_model(tmp_path_factory: Any, adds: list[tuple[int, int]], steps: list[int]) -> None:
    """Every message is delivered once, by the first run at or after its time, in the order of times."""

    async def work() -> None:
        async with Bench(tmp_path_factory.mktemp("timer")) as b:
            expected: list[tuple[int, int]] = []
            got = 0
            for number in range(max(len(adds), len(steps))):
                if number < len(adds):
                    step, in_ms = adds[number]
                    b.run(step)
                    b.add(in_ms, str(number).encode())
                    expected.append((b.clock.ms + in_ms, number))
                if number < len(steps):
                    b.run(steps[number])
                    bodies = b.bodies()
                    due = [n for at, n in sorted(expected) if at <= b.clock.ms]
                    assert sorted(int(body) for body in bodies) == sorted(due)
                    times = [at for body in bodies[got:] for at, n in expected if n == int(body)]
                    assert times == sorted(times)
                    got = len(bodies)
            b.run(10_000_000)
            assert len(b.bodies()) == len(adds)

    asyncio.run(work())


@pytest.mark.spec("API-13", "DUR-19")
@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_waiting_messages_survive_restart_without_repetition(tmp_path: Path, flush: FlushDiskType) -> None:
    async with Bench(tmp_path, flush_disk_type=flush) as b:
        b.run()
        for number, in_ms in enumerate((500, 1500, 7_200_000, 50_000_000)):
            result = b.add(in_ms, str(number).encode())
            assert await b.store.wait_confirmed(result) is PutStatus.PUT_OK
        b.run(1000)
        assert b.store.max_offset("T", 3) == 1 or flush is FlushDiskType.SYNC_FLUSH
    for moved, count in ((100, 1), (500, 2), (7_200_000, 3), (43_000_000, 4)):
        async with Bench(tmp_path, b.clock, flush_disk_type=flush) as b:
            b.run(moved)
            await wait_confirmed(b.store.log, b.store.log.end, 5000)
            assert len(b.bodies()) == count
    assert sorted(b.settings.root.rglob("timer.json"))


@pytest.mark.spec("DUR-19", "DUR-18")
@pytest.mark.parametrize("jump", [-7_200_000, -500, 0, 500])
async def test_crash_repeats_but_never_skips_whatever_clock_does(tmp_path: Path, jump: int) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        b.add(1000, b"before")
        b.run(2000)
        await b.service.save()
        saved = b.file.path.read_bytes()
        b.clock.ms += jump
        b.add(300, b"after")
        b.add(100_000, b"late")
        b.run(400)
    b.file.path.write_bytes(saved)  # progress since then is lost
    async with Bench(tmp_path, b.clock) as b:
        b.run(1000)
        bodies = b.bodies()
        assert bodies.count(b"after") in (1, 2) and bodies.count(b"late") == 0
        b.run(100_000)
        assert b.bodies().count(b"late") == 1 and b.bodies().count(b"before") == 1


@pytest.mark.spec("DUR-19")
async def test_lost_progress_file_skips_no_waiting_message(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        b.add(1000, b"a")
        b.add(90_000, b"b")
    for path in b.file.path.parent.glob("timer.json*"):
        path.unlink()
    async with Bench(tmp_path, b.clock) as b:
        b.run(90_000)
        assert b.bodies() == [b"a", b"b"]


@pytest.mark.spec("API-13")
def test_long_delay_is_stored_again_before_log_expires(tmp_path: Path) -> None:
    async def work() -> None:
        async with Bench(tmp_path) as b:
            b.run()
            assert b.service.roll_ms == DAY
            for number in range(20):
                b.add(40 * DAY, str(number).encode())
            waits = [unit[2] - b.clock.ms for unit in units(b)]
            assert all(DAY * 3 // 4 <= wait <= DAY for wait in waits) and len(set(waits)) == 20
            for _ in range(39):
                b.run(DAY)
                oldest = b.clock.ms - 2 * DAY
                assert b.service.in_memory < 200 and b.bodies() == []
                assert sum(m.store_timestamp_ms > oldest for q in range(64) for m in b.messages(TIMER_TOPIC, q)) >= 20
            b.run(DAY - 1)
            assert b.bodies() == []
            b.run(1)
            assert sorted(b.bodies(), key=int) == [str(n).encode() for n in range(20)]
            b.run(DAY)
            assert len(b.bodies()) == 20
        async with Bench(tmp_path / "short", file_reserved_hours=2) as b:
            assert b.service.roll_ms == 3_600_000

    def units(b: Bench) -> list[tuple[int, int, int]]:
        queues = [b.store.queues.get((TIMER_TOPIC, queue)) for queue in range(timer.QUEUES)]
        return [unit for queue in queues if queue for _, unit in queue.units(0, queue.max_offset)]

    run(work)


@pytest.mark.spec("API-13")
async def test_memory_holds_current_hour_and_iterations_are_bounded(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        for number in range(3000):
            b.add(3_600_000 * (number % 10) + 1000 + number % 7)
        assert b.service.in_memory < 700
        last = 0
        b.clock.ms += 2000
        while b.service.deliver_due() == 0:
            count = b.store.max_offset("T", 3)
            assert count - last <= timer.BATCH_COUNT
            last = count
        assert b.store.max_offset("T", 3) == 300
        for _ in range(10):
            b.run(3_600_000)
        assert b.store.max_offset("T", 3) == 3000 and b.service.in_memory == 0


@pytest.mark.spec("API-13")
async def test_waiting_message_uses_24_bytes_of_memory(tmp_path: Path) -> None:
    """Only messages of the current hour are in memory; the test adds 100,000 entries directly."""
    async with Bench(tmp_path) as b:
        b.run()
        second = b.clock.ms // 1000 * 1000
        for number in range(100_000):
            b.service._keep(second + 10_000 + number % 1_000_000, number, 100)
        entries = b.service._seconds.values()
        assert sum(array.itemsize * len(array) for array in entries) == 2_400_000
        assert len(b.service._active) == 0


@pytest.mark.spec("API-13")
def test_progress_is_the_time_before_the_first_waiting_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`done_ms` covers what is delivered, whether the others are in memory, sorted, being read, or not read yet."""

    async def work() -> None:
        async with Bench(tmp_path) as b:
            service, start = b.service, b.clock.ms
            assert (service.done_ms(), service.table(), service.next_due_ms(0)) == (0, {}, None)
            b.run()
            assert (service.done_ms(), service.table(), service.next_due_ms(0)) == (start, {}, None)
            b.add(1500, b"a")
            b.add(1700, b"b")
            b.run(1200)
            assert service.done_ms() == start + 1200
            assert (service.next_due_ms(b.clock.ms), service.next_due_ms(start + 1500)) == (start + 1500, next_hour())
            b.run(400)
            assert b.bodies() == [b"a"] and service.done_ms() == start + 1600
            assert service.next_due_ms(b.clock.ms) == start + 1700
            monkeypatch.setattr(b.store, "put", lambda *_: PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full"))
            b.run(5000)
            assert service.done_ms() == start + 1699 and service.table() == {"timerDoneMs": str(start + 1699)}
            monkeypatch.undo()
            b.run(timer.RETRY_MS)
            assert b.bodies() == [b"a", b"b"] and service.done_ms() == b.clock.ms
            b.add(9500, b"c")
            b.add(2 * timer.HOUR_MS + 60_000, b"not read yet")
            assert service.done_ms() == b.clock.ms == start + 6600 + timer.RETRY_MS
            assert service.next_due_ms(b.clock.ms) == (b.clock.ms + 9500) // 1000 * 1000
            b.clock.ms += 2 * timer.HOUR_MS
            assert service.deliver_due() == 0, "the next hour is being read"
            assert service.done_ms() < start + timer.HOUR_MS
            b.run()
            assert b.bodies()[-1] == b"c" and service.done_ms() == b.clock.ms

    def next_hour() -> int:
        return NOW // timer.HOUR_MS * timer.HOUR_MS + timer.HOUR_MS - timer.AHEAD_MS + 1

    run(work)


@pytest.mark.spec("API-13", "DUR-19")
def test_progress_of_a_restart_lasts_until_the_units_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Bench(tmp_path) as b:
            b.run()
            b.add(1000, b"a")
            b.run(500)
            stopped = b.service.done_ms()
        b.clock.ms += 60_000
        async with Bench(tmp_path, b.clock) as b:
            assert b.service.done_ms() == stopped and b.service.published_progress() is None
            with monkeypatch.context() as patch:
                patch.setattr(type(b.store.queues.get_or_make(TIMER_TOPIC, 0)), "units", failing)
                assert b.service.deliver_due() > 0
            assert b.service.done_ms() == stopped, "what could not be read waits"
            await b.service.save()
            assert timer.parse_progress(b.file.path.read_bytes())[0] == stopped
            b.service.deliver_due()
            assert b.service.done_ms() == stopped, "read in part"
            assert b.service.published_progress() is None
            b.run()
            assert b.bodies() == [b"a"] and b.service.done_ms() == b.clock.ms

    def failing(*_: object) -> Any:
        raise OSError("disk")

    run(work)


@pytest.mark.spec("API-13", "DUR-19")
async def test_published_progress_covers_durable_deliveries_only(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        assert b.service.published_progress() is None, "of this moment; published by the next question"
        first = timer.parse_progress((b.service.published_progress() or "").encode())
        assert first == (b.clock.ms, 0)
        b.add(500, b"a")
        b.run(500)
        b.service.published_progress()
        delivered = b.store.log.end
        assert timer.parse_progress((b.service.published_progress() or "").encode()) == first, "not durable yet"
        await wait_confirmed(b.store.log, delivered, 5000)
        while b.store.flushed_offset < delivered:
            await asyncio.sleep(0)
        assert timer.parse_progress((b.service.published_progress() or "").encode()) == (b.clock.ms, delivered)


# ---- failures


@pytest.mark.spec("API-13", "DLY-06")
async def test_rejected_timer_delivery_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        b.add(100, b"a")
        b.add(200, b"b")
        b.clock.ms += 300
        with monkeypatch.context() as patch:
            patch.setattr(b.store, "put", lambda *_: PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full"))
            assert [b.service.deliver_due() for _ in range(2)] == [timer.RETRY_MS, timer.RETRY_MS]
            b.clock.ms += timer.RETRY_MS
            assert b.service.deliver_due() == 2 * timer.RETRY_MS
            b.clock.ms -= 3_600_000  # a clock set back does not extend the back-off
        assert b.service.deliver_due() <= 1000
        b.clock.ms += 3_600_000 + 2 * timer.RETRY_MS
        b.run()
        assert b.bodies() == [b"a", b"b"]


@pytest.mark.spec("API-13", "DUR-10")
async def test_damaged_or_invalid_timed_message_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        b.add(100, b"system", topic=SCHEDULE_TOPIC)
        b.add(100, b"system", topic=TIMER_TOPIC)
        torn = b.add(100, b"torn" * 9)
        b.add(100, b"good")
        read = b.store.read_record

        def damaged(physical: int, size: int | None = None) -> bytes | None:
            record = read(physical, size)
            return record.replace(b"torn", b"worn") if physical == torn.physical_offset and record else record

        with caplog.at_level(logging.ERROR), monkeypatch.context() as patch:
            patch.setattr(b.store, "read_record", damaged)
            b.run(100)
        assert b.bodies() == [b"good"] and caplog.text.count("skipped") == 3


@pytest.mark.spec("API-13")
async def test_failed_timer_read_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        b.add(7_200_000, b"a")
    async with Bench(tmp_path, b.clock) as b:
        with monkeypatch.context() as patch:

            def failing(*_: object) -> Any:
                raise OSError("disk")

            patch.setattr(type(b.store.queues.get_or_make(TIMER_TOPIC, 0)), "units", failing)
            assert b.service.deliver_due() > 0
        b.run(7_200_000)
        assert b.bodies() == [b"a"]


@pytest.mark.spec("CQ-13", "API-13")
async def test_timer_with_queue_extension_reads_times_from_records(tmp_path: Path) -> None:
    async with Bench(tmp_path, queue_extension_enable=True) as b:
        b.run()
        b.add(7_200_000, b"a")
        b.run(7_199_999)
        assert b.bodies() == []
        b.run(1)
        assert b.bodies() == [b"a"]


@pytest.mark.spec("DUR-13", "API-13")
async def test_rebuilt_queues_have_same_delivery_times(tmp_path: Path) -> None:
    async with Bench(tmp_path) as b:
        b.run()
        b.add(5000, b"a")
        queue = (b.clock.ms + 5000) // timer.HOUR_MS % timer.QUEUES
        unit = b.store.queues.by_key[(TIMER_TOPIC, queue)].unit(0)
        assert unit is not None and unit[2] == b.clock.ms + 5000
    shutil.rmtree(b.settings.consume_queue_dir)
    async with Bench(tmp_path, b.clock) as b:
        assert b.store.queues.by_key[(TIMER_TOPIC, queue)].unit(0) == unit
        b.run(5000)
        assert b.bodies() == [b"a"]


@pytest.mark.realtime
@pytest.mark.spec("API-13")
async def test_timer_task_is_precise() -> None:
    async with wire() as w:
        for in_ms in (40, 250, 333):
            await w.send(properties={"TIMER_DELAY_MS": str(in_ms)})
        offset = 0
        late = []
        while offset < 3:
            answer = await w.pull(offset=offset, suspend_ms=5000)
            if answer.code == 0:
                for message in await w.messages(offset=offset):
                    late.append(message.store_timestamp_ms - int(message.properties["TIMER_OUT_MS"]))
                    offset += 1
        assert all(0 <= each < 100 for each in late)
