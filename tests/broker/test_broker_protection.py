"""Groups that read slowly are disabled, and how much work waits is logged each second."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from wire import Wire, wire

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker import broker as broker_module
from saturnmq.broker.services import watermark as watermark_module
from saturnmq.broker.services.slow_groups import CHECK_SECONDS, disable_slow
from saturnmq.broker.services.watermark import FIRST_SECONDS, RequestBacklog
from saturnmq.protocol.bodies import SubscriptionGroupConfig
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.slices import Slices, Steps


async def skip(seconds: float) -> None:
    """Let the event loop's clock go on."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def lagging(w: Wire) -> None:
    """Group Slow pulled the first of five messages, group Near the last one."""
    for _ in range(5):
        await w.send(body=b"x" * 800)
    await w.heartbeat("Slow", "T")
    await w.heartbeat("Near", "T")
    for group, offset in (("Slow", 0), ("Near", 4)):
        assert (await w.pull(group=group, offset=offset, maxMsgNums=1)).code == ResponseCode.SUCCESS


def check(w: Wire, bytes_max: int = 2000) -> list[str]:
    settings = BrokerSettings(disable_slow_groups=True, slow_group_bytes=bytes_max)
    return disable_slow(settings, w.broker.role, w.broker.stats, w.broker.groups)


def disabled(broker: Broker) -> list[str]:
    return [name for name, config in broker.groups.table.items() if not config.consume_enable]


@pytest.mark.spec("MON-15", "BP-09")
async def test_group_that_reads_too_far_behind_is_disabled(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with wire(disable_slow_groups=True, slow_group_bytes=2000, data=tmp_path) as w:
        await lagging(w)
        await w.broker.groups.writer.saved()
        behind = w.broker.stats.fall_size["0@T@Slow"]
        w.broker.role.slave = True
        assert check(w) == [], "a slave's groups are its master's"
        w.broker.role.slave = False
        version = w.broker.groups.version
        check(w)
        assert disabled(w.broker) == ["Slow"] and w.broker.groups.version != version
        lines = [record.getMessage() for record in caplog.records if record.name == "saturnmq.protection"]
        assert lines == [f"[PROTECT_BROKER] the consumer[Slow] consume slowly, {behind} bytes, disable it"]
        assert (await w.pull(group="Slow")).code == ResponseCode.NO_PERMISSION
        assert (await w.pull(group="Near", offset=4)).code == ResponseCode.SUCCESS
        file = w.broker._config / "subscriptionGroup.json"
        saved = {
            name: group["consumeEnable"]
            for name, group in json.loads(file.read_text())["subscriptionGroupTable"].items()
        }
        assert saved["Slow"], "not saved until another change"
        enabled = SubscriptionGroupConfig("Slow")
        await w.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, enabled.encode())
        check(w)
        assert disabled(w.broker) == [], "judged by its next pulls"
        assert check(w, 1) == ["Near"]
        await w.broker.groups.writer.saved()
        w.broker.groups.set(SubscriptionGroupConfig("Other"))
        await w.broker.groups.writer.saved()
        groups = json.loads(file.read_text())["subscriptionGroupTable"]
        assert not groups["Near"]["consumeEnable"], "saved with the next change"


@pytest.mark.spec("MON-15", "BP-09")
@pytest.mark.parametrize("enabled", [True, False])
async def test_slow_groups_are_checked_every_three_minutes_if_configured(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker_module.CHECK_SECONDS == CHECK_SECONDS == 180
    monkeypatch.setattr(broker_module, "CHECK_SECONDS", 15)
    assert (BrokerSettings().slow_group_bytes, BrokerSettings().disable_slow_groups) == (16 << 30, False)
    async with wire(disable_slow_groups=enabled, slow_group_bytes=2000) as w:
        await lagging(w)
        await skip(5)
        assert disabled(w.broker) == []
        await skip(12)
        assert disabled(w.broker) == (["Slow"] if enabled else [])


@pytest.mark.spec("MON-16")
async def test_waiting_work_is_logged_each_second() -> None:
    assert (FIRST_SECONDS, broker_module.SAMPLE_SECONDS) == (10, 1)
    assert (broker_module.LOG_FIRST_SECONDS, broker_module.LOG_SECONDS) == (10, 60)
    texts: list[tuple[float, str]] = []
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append((loop.time(), record.getMessage()))
            if len(texts) == 8:
                enough.set()

    handler = Handler()
    watermark_module.watermark_log.addHandler(handler)
    try:
        began = loop.time()
        async with wire() as w:
            w.broker.in_flight.sends, w.broker.in_flight.send_wait_ms = 3, 70
            await enough.wait()
            w.broker.in_flight.sends = 0
    finally:
        watermark_module.watermark_log.removeHandler(handler)
    assert texts[0][0] - began >= 9.99 and texts[4][0] - texts[0][0] >= 0.99
    assert texts[0][1].startswith("[WATERMARK] Send Queue Size: 3 SlowTimeMills: ")
    assert [text for _, text in texts[1:4]] == [
        "[WATERMARK] Pull Queue Size: 0 SlowTimeMills: 0",
        "[WATERMARK] Query Queue Size: 0 SlowTimeMills: 0",
        "[WATERMARK] Transaction Queue Size: 0 SlowTimeMills: 0",
    ]


@pytest.mark.spec("MON-16")
async def test_runtime_information_has_the_figures_of_the_watermark() -> None:
    def long_work() -> Steps[None]:
        while True:
            yield

    async with wire() as w:
        await w.send()
        w.broker.in_flight.sends, w.broker.in_flight.send_wait_ms = 3, 70
        slices = w.broker._slices
        task = asyncio.ensure_future(slices.result(long_work()))
        await skip(2.1)
        assert slices.waiting == 1 and slices.waited_ms >= 2000
        info = await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(info.body or b"")["table"]
        assert table["sendThreadPoolQueueSize"] == "3" and table["queryThreadPoolQueueSize"] == "1"
        assert int(table["queryThreadPoolQueueHeadWaitTimeMills"]) >= 2000
        assert (table["pullThreadPoolQueueSize"], table["pullThreadPoolQueueHeadWaitTimeMills"]) == ("0", "0")
        assert table["EndTransactionQueueSize"] == "0"
        w.broker.in_flight.sends = 0
        assert w.broker.watermark.send() == RequestBacklog(0, 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (slices.waiting, slices.waited_ms) == (0, 0)
        parked = [asyncio.ensure_future(w.pull(offset=1, suspend_ms=20_000)) for _ in range(3)]
        while w.broker.long_polling.count < 3:
            await asyncio.sleep(0)
        assert w.broker.watermark.pull().size == 0, "they wait for a message, not for the broker"
        w.broker.long_polling.wake_all()
        assert w.broker.watermark.pull().size == 3
        await asyncio.gather(*parked)
        assert w.broker.watermark.pull() == RequestBacklog(0, 0)


def test_slices_know_how_long_the_first_request_has_waited() -> None:
    assert (Slices().waiting, Slices().waited_ms) == (0, 0)
