"""The lines of stats.log: their text, when they are written, and that writing them delays no request."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from time import thread_time
from typing import cast

import pytest
from wire import Clock, Wire, wire

from saturnmq.broker import BrokerSettings
from saturnmq.broker import broker as broker_module
from saturnmq.broker.services import reporting as reporting_module
from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.broker.services.reporting import Reporting
from saturnmq.broker.services.statistics import SAMPLE_SECONDS, Stats
from saturnmq.broker.services.statistics_log import StatisticsLog, stats_log, two_places
from saturnmq.broker.services.watermark import Watermark
from saturnmq.broker.state.in_flight import InFlight
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.message import BatchItem
from saturnmq.slices import SLICE_SECONDS, Slices

MINUTE, HOUR = 60_000, 3_600_000
MIDNIGHT = 1_700_064_000_000  # of 2023-11-16 in Shanghai, 16:00 UTC


class Lines(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def take(self) -> list[str]:
        taken, self.texts = self.texts, []
        return taken


@pytest.fixture(autouse=True)
def only_the_test_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SAMPLE_SECONDS", 1e9)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    stats_log.addHandler(handler)
    yield handler
    stats_log.removeHandler(handler)


@pytest.fixture
def shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def printed(log: StatisticsLog, now_ms: int) -> None:
    for work in log.due_lines(now_ms):
        for _ in work:
            pass


async def tick(w: Wire, clock: Clock, ms: int = 0) -> None:
    """Let the broker look at its clock, and wait until what was due is done."""
    clock.ms += ms
    w.broker.reporting.tick()
    while w.broker.reporting.busy:
        await asyncio.sleep(0)


@pytest.mark.spec("MON-03", "MON-04")
async def test_broker_samples_from_its_start_on_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SAMPLE_SECONDS", SAMPLE_SECONDS)
    loop = asyncio.get_running_loop()
    sampled: list[float] = []
    sample_sets = Stats.sample_sets
    monkeypatch.setattr(Stats, "sample_sets", lambda stats: (sampled.append(loop.time()), sample_sets(stats))[1])
    async with wire():
        started = loop.time()
        await asyncio.sleep(61)  # poll: virtual time
    assert [round(at - started) for at in sampled] == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.spec("MON-08")
async def test_minute_line_of_real_traffic_has_apaches_text(lines: Lines) -> None:
    clock = Clock()
    clock.ms = MIDNIGHT + 5 * HOUR
    async with wire(clock_ms=clock) as w:
        await w.heartbeat("g", "T")
        await tick(w, clock)
        for number in range(6):
            assert (await w.send_batch([BatchItem(b"x")] * 10)).code == ResponseCode.SUCCESS
            assert number or (await w.pull(group="g", queue=1)).code == ResponseCode.SUCCESS
            await tick(w, clock, 9_999)
            assert lines.take() == []
            clock.ms += 1
            for _ in w.broker.stats.sample_sets():
                pass
        await tick(w, clock)
        found = lines.take()
        assert "[TOPIC_PUT_NUMS] [T] Stats In One Minute, SUM: 60 TPS: 1.00 AVGPT: 10.00" in found
        assert "[BROKER_PUT_NUMS] [DefaultCluster] Stats In One Minute, SUM: 60 TPS: 1.00 AVGPT: 0.00" in found
        latency = next(line for line in found if line.startswith("[GROUP_GET_LATENCY] [1@T@g] "))
        assert re.search(r"\] Stats In One Minute, TIMES: 1 AVGRT: \d+\.\d\d$", latency)
        assert not any("One Hour" in line or "One Day" in line for line in found)


@pytest.mark.spec("MON-09", "MON-14")
async def test_running_broker_prints_moments_and_begins_a_day_at_midnight(lines: Lines, shanghai: None) -> None:
    clock = Clock()
    clock.ms = MIDNIGHT - 2_500
    async with wire(clock_ms=clock) as w:
        await w.heartbeat("g", "T")
        await tick(w, clock)
        await w.send()
        assert (await w.pull(group="g")).code == ResponseCode.SUCCESS
        days = []
        for _ in range(2):
            await tick(w, clock, 2_000)
            table = w.broker.stats.table(0.0)
            days.append([table[f"msg{kind}TotalTodayMorning"] for kind in ("Put", "Get")])
        assert days == [["0", "0"], ["1", "1"]]
        assert any(
            "[GROUP_GET_FALL_SIZE]" in line and "Stats Every 5 Minutes, Value: " in line for line in lines.take()
        )


@pytest.mark.spec("MON-08")
def test_windows_are_printed_at_full_minute_hour_and_midnight(lines: Lines, shanghai: None) -> None:
    clock = Clock()
    clock.ms = MIDNIGHT - HOUR - 30_000  # 22:59:30
    stats = Stats("C", clock)
    log = StatisticsLog(stats, lambda: 1000)
    for _ in range(6):
        stats.put("T", 10, 1000)
    for _ in stats.sample_sets():
        pass
    printed(log, clock.ms)
    printed(log, clock.ms + 29_999)
    assert lines.take() == []
    printed(log, MIDNIGHT - HOUR)
    assert [line.partition(",")[0] for line in lines.take() if "TOPIC_PUT_NUMS" in line] == [
        "[TOPIC_PUT_NUMS] [T] Stats In One Hour", "[TOPIC_PUT_NUMS] [T] Stats In One Minute",
    ]  # fmt: skip
    for second in range(1, 60):
        printed(log, MIDNIGHT - HOUR + second * 1000)
    assert lines.take() == [], "once per minute"
    printed(log, MIDNIGHT - HOUR + MINUTE)
    assert all("One Minute" in line for line in lines.take() if "Every" not in line)
    printed(log, MIDNIGHT + 300)
    assert [line for line in lines.take() if "TOPIC_PUT_NUMS" in line] == [
        "[TOPIC_PUT_NUMS] [T] Stats In One Day, SUM: 60 TPS: 0.02 AVGPT: 10.00",
        "[TOPIC_PUT_NUMS] [T] Stats In One Hour, SUM: 60 TPS: 0.10 AVGPT: 10.00",
        "[TOPIC_PUT_NUMS] [T] Stats In One Minute, SUM: 60 TPS: 6.00 AVGPT: 10.00",
    ]
    printed(log, MIDNIGHT - HOUR)  # the clock was set back
    printed(log, MIDNIGHT - HOUR + 1000)
    assert sum("TOPIC_PUT_NUMS" in line for line in lines.take()) == 3
    printed(log, MIDNIGHT - HOUR + 2 * MINUTE)
    assert sum("TOPIC_PUT_NUMS" in line for line in lines.take()) == 1


@pytest.mark.spec("MON-08")
def test_numbers_are_rounded_as_java_rounds_them() -> None:
    values = {
        0.125: "0.13",
        1.005: "1.01",
        2.675: "2.68",
        0.0: "0.00",
        1e-9: "0.00",
        1e15: "1000000000000000.00",
        9.999: "10.00",
    }
    assert {value: two_places(value) for value in values} == values


@pytest.mark.spec("MON-09")
def test_moments_are_printed_every_five_minutes_and_kept(lines: Lines) -> None:
    clock = Clock()
    stats = Stats("C", clock)
    log = StatisticsLog(stats, lambda: 1000)
    start = clock.ms - clock.ms % MINUTE + 10_000
    printed(log, start)
    stats.pulled("T", "g", 3, 0, 4096, 250)
    minutes = {}
    for minute in range(1, 13):
        printed(log, start - 10_000 + minute * MINUTE)
        found = [line for line in lines.take() if "Every" in line]
        if found:
            minutes[minute] = found
    assert list(minutes) == [1, 6, 11], "from the next full minute on"
    for found in minutes.values():
        assert found == [
            "[GROUP_GET_FALL_SIZE] [3@T@g] Stats Every 5 Minutes, Value: 4096",
            "[GROUP_GET_FALL_TIME] [3@T@g] Stats Every 5 Minutes, Value: 250",
        ]


def test_number_of_lines_is_limited_and_changed_items_come_first(lines: Lines) -> None:
    assert BrokerSettings().stats_lines_max == 10_000
    clock = Clock()
    stats = Stats("C", clock)
    sizes = stats.sets["TOPIC_PUT_SIZE"]
    for number in range(500):
        sizes.item(f"idle{number}")
    for number in range(5):
        sizes.item(f"busy{number}").value += 1
    for _ in stats.sample_sets():
        pass
    start = clock.ms - clock.ms % MINUTE
    for limit, keys in ((8, 5), (3, 3), (0, 0)):
        log = StatisticsLog(stats, lambda limit=limit: limit)  # type: ignore[misc]
        printed(log, start)
        printed(log, start + MINUTE)
        *found, last = lines.take()
        assert len(found) == keys and all("[busy" in line for line in found)
        assert last == f"lines omitted: {505 - keys}, statsLogLinesPerMinute={limit}"
    printed(log := StatisticsLog(stats, lambda: 1000), start)
    printed(log, start + MINUTE)
    assert len(lines.take()) == 505


def test_line_ends_in_names_are_escaped(lines: Lines) -> None:
    clock = Clock()
    stats = Stats("C\n[forged] [line]", clock)
    stats.put("T\u2028x", 1, 1)
    for _ in stats.sample_sets():
        pass
    log = StatisticsLog(stats, lambda: 1000)
    printed(log, clock.ms)
    printed(log, clock.ms + MINUTE)
    found = lines.take()
    assert len(found) == 3 and all(line.isprintable() for line in found)
    assert any(
        line.startswith("[BROKER_PUT_NUMS] [C\\x0a[forged] [line]] Stats In One Minute, SUM: 1") for line in found
    )


def test_nothing_is_formatted_without_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not stats_log.propagate, "standard error has no line per item and minute"
    monkeypatch.setattr(stats_log, "handlers", [])
    clock = Clock()
    log = StatisticsLog(Stats("C", clock), lambda: 1000)
    assert list(log.due_lines(clock.ms)) == list(log.due_lines(clock.ms + MINUTE)) == []


@pytest.mark.spec("MON-11")
def test_100_000_items_are_sampled_and_printed_in_short_steps(lines: Lines) -> None:
    clock = Clock()
    stats = Stats("C", clock)
    for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE"):
        for number in range(25_000):
            stats.sets[name].item(f"topic{number}").value += 1
    log = StatisticsLog(stats, lambda: 100_000)
    assert list(log.due_lines(clock.ms)) == []
    longest, steps = 0.0, 0
    for work in (stats.sample_sets(), *log.due_lines(clock.ms + MINUTE)):
        began = thread_time()
        for _ in work:
            longest, began, steps = max(longest, thread_time() - began), thread_time(), steps + 1
    assert len(lines.take()) == 100_000 and steps > 1000
    assert longest + SLICE_SECONDS < 1, "a slice and a step; 50 ms on an idle machine"


class Idle:
    """Long polling without pulls."""

    ready = 0


@pytest.mark.spec("MON-10", "UPG-06")
async def test_a_failing_task_stops_no_other(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    stats = Stats("C", clock)
    stats.put("T", 1, 1)
    queues = Watermark(InFlight(), cast(LongPolling, Idle()), Slices(), lambda: 0)
    reporting = Reporting(stats, queues, clock, lambda: 1000)

    async def ticks(count: int = 1) -> None:
        for _ in range(count):
            clock.ms += 1000
            reporting.tick()
            while reporting.busy:
                await asyncio.sleep(0)

    def broken(*_: object) -> object:
        raise ValueError("broken on purpose")

    await ticks(60)
    assert any("TOPIC_PUT_NUMS" in line for line in lines.take())
    with monkeypatch.context() as patched:
        patched.setattr(reporting_module.StatisticsLog, "due_lines", broken)
        stats.put("T", 1, 1)
        await ticks(60)
    assert lines.take() == [] and "statistics task failed task=print" in caplog.text
    found = stats.sets.find("TOPIC_PUT_NUMS", "T")
    assert found is not None and found.over(0).sum == 1, "samples went on"
    with monkeypatch.context() as patched:
        patched.setattr(Stats, "sample", broken)
        await ticks(60)
    assert any("TOPIC_PUT_NUMS" in line for line in lines.take()) and "task=sample" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(Watermark, "write", broken)
        await ticks(60)
    assert any("TOPIC_PUT_NUMS" in line for line in lines.take()) and "task=watermark" in caplog.text
    with monkeypatch.context() as patched:  # in the middle of the work
        patched.setattr(Stats, "sample_sets", lambda self: (broken() for _ in range(1)))
        await ticks(60)
    assert any("TOPIC_PUT_NUMS" in line for line in lines.take()) and "background work failed" in caplog.text
    reporting.stop()


@pytest.mark.spec("MON-11")
async def test_sends_and_pulls_are_answered_while_a_sample_and_a_print_run(lines: Lines) -> None:
    clock = Clock()
    async with wire(clock_ms=clock, stats_lines_max=100_000) as w:
        await w.send()
        await w.heartbeat("g", "T")
        for number in range(20_000):
            w.broker.stats.sets["TOPIC_PUT_NUMS"].item(f"topic{number}").value += 1
        await tick(w, clock)
        clock.ms += MINUTE
        w.broker.reporting.tick()
        answers = 0
        while w.broker.reporting.busy:
            assert (await w.send()).code == ResponseCode.SUCCESS
            assert (await w.pull(group="g", maxMsgNums=1)).code == ResponseCode.SUCCESS
            assert (await w.call(315, statsName="TOPIC_PUT_NUMS", statsKey="T")).code == ResponseCode.SUCCESS
            answers += 1
        assert answers > 3 and len(lines.take()) >= 20_000


@pytest.mark.spec("MON-11")
async def test_no_count_is_lost_while_samples_and_readers_run(lines: Lines) -> None:
    """Sends and pulls go on between any two steps of a sample, a print and a read (315)."""
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        stats = w.broker.stats
        stats.sets["TOPIC_PUT_NUMS"].items_max = 3  # as full as it can be: idle items are dropped
        await w.send()
        await w.heartbeat("g", "T")
        log = StatisticsLog(stats, lambda: 1000)
        printed(log, clock.ms)

        async def sampled() -> None:
            for _ in range(30):
                clock.ms += MINUTE
                for step in (stats.sample_sets(), *log.due_lines(clock.ms)):
                    for _ in step:
                        await asyncio.sleep(0)

        async def sent() -> None:
            for _ in range(100):
                assert (await w.send()).code == 0
                assert (await w.pull(group="g", maxMsgNums=1)).code == 0

        async def read() -> None:
            for _ in range(100):
                assert (await w.call(315, statsName="TOPIC_PUT_NUMS", statsKey="T")).code == 0

        await asyncio.gather(sampled(), sent(), sent(), read())
        for name, key, total in (("TOPIC_PUT_NUMS", "T", 201), ("GROUP_GET_NUMS", "T@g", 200)):
            found = stats.sets.find(name, key)
            assert found is not None and (found.value, found.times) == (total, total)


def test_store_lines_are_logged_each_minute_in_apaches_text(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    stats = Stats("C", clock)
    caplog.set_level("INFO", "saturnmq.store.statistics")
    for second in range(120):
        for _ in range(2 if second < 60 else 1):
            stats.put("T", 1, 100, 20_000_000)
        for work in stats.sample(float(second), clock.ms + second * 1000):
            work.close()
    assert [record.getMessage() for record in caplog.records if record.name == "saturnmq.store.statistics"] == [
        line
        for puts, rate in ((120, 2.0), (60, 1.0))
        for line in (
            f"[STORETPS] put_tps {rate} get_found_tps 0.0 get_miss_tps 0.0 get_transfered_tps 0.0",
            f"[PAGECACHERT] TotalPut {puts}, PutMessageDistributeTime [<=0ms]:0 [0~10ms]:0 [10~50ms]:{puts} [50~100ms]:0 "
            "[100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 ",
        )
    ]
    assert stats.put_times.percentile(0.99) == 21.98, "of the last full minute, within the bucket of 20 to 22 ms"
