"""Admission by estimated waiting time: what a broker rejects while requests wait too long, and that it recovers.

Requirements: SND-16, BP-09, ST-04.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.broker import BrokerSettings
from saturnmq.broker.services.admission import SAMPLE_SECONDS, Admission, Stage
from saturnmq.broker.state.in_flight import InFlight
from saturnmq.client import hints
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.bodies import KVTable
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.store import FlushDiskType, StoreProfile
from waiting import until

RECOVERY_SAMPLES = int(5 / SAMPLE_SECONDS)  # within 5 s
SENDS = {10, 36, 310, 320}


class Sampled:
    """An admission whose samples a test takes, at times in s that it chooses."""

    def __init__(self, stage: Stage = Stage.FLUSH, **settings: Any) -> None:
        self.in_flight = InFlight()
        self.rejected: frozenset[int] = frozenset()
        rejections = Rejections()
        self.admission = Admission(
            BrokerSettings(**settings),
            self.in_flight,
            rejections,
            stage=stage,
            changed=lambda codes: setattr(self, "rejected", codes),
        )
        self.now = 100.0

    def after(self, seconds: float, late: float = 0.0) -> set[int]:
        """The codes that are rejected after one more sample."""
        self.now += seconds
        self.admission.sample(self.now, late)
        return set(self.rejected)


@pytest.mark.spec("SND-16", "BP-09")
def test_each_kind_is_rejected_by_its_own_limit() -> None:
    """Send 200 ms, pull 5 s, heartbeat 31 s, transaction 3 s, as in 4.9.7."""
    for late, expected in (
        (0.2, set()),
        (0.201, SENDS),
        (3.0, SENDS),
        (3.001, SENDS | {37}),
        (5.001, SENDS | {37, 11, 361}),
        (31.0, SENDS | {37, 11, 361}),
        (31.001, SENDS | {37, 11, 361, 34}),
    ):
        sampled = Sampled()
        assert sampled.after(0.1, late) == set(), "a single stall"
        assert sampled.after(0.9, late) == set()
        assert sampled.after(0.2, late) == expected
        assert sampled.after(0.1, 0.0) == set(), "the next sample without delay ends it"


@pytest.mark.spec("SND-16")
def test_stalls_with_a_pause_between_reject_nothing() -> None:
    sampled = Sampled()
    for _ in range(20):
        assert sampled.after(0.6, 0.5) == set()
        assert sampled.after(0.1, 0.01) == set()


@pytest.mark.spec("SND-16")
def test_slow_disk_that_keeps_up_rejects_nothing() -> None:
    """Group commits of 900 ms: each send waits long, but every commit completes all that waited."""
    sampled = Sampled()
    sampled.in_flight.sends = 100
    for number in range(100):
        assert sampled.after(0.1) == set()
        if number % 9 == 0:
            sampled.in_flight.completed_sends += 100


@pytest.mark.spec("SND-16")
@pytest.mark.parametrize("stage", [Stage.FLUSH, Stage.REPLICA])
def test_sends_are_rejected_while_none_completes(stage: Stage) -> None:
    sampled = Sampled(stage)
    sampled.after(5.0)
    sampled.in_flight.sends = 7
    times = [sampled.after(0.1) for _ in range(14)]
    assert times[:12] == [set()] * 12 and times[13] == SENDS, "200 ms, and then for brokerFastFailureDelayMillis"
    text = sampled.admission.refuse(_Peer(), Command(RequestCode.SEND_MESSAGE_V2)).remark or ""  # type: ignore[arg-type]
    assert text.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: ")
    assert text.endswith(f"ms, size of queue: 7, stage: {stage.value}")
    assert f"Slow stage: {stage.value} (" in hints.busy(text)
    sampled.in_flight.completed_sends += 1
    assert sampled.after(0.1) == set()


@pytest.mark.spec("SND-16")
def test_refusal_names_the_stage_that_waits_longer() -> None:
    """A send waits for the event loop, and then for the disk; a pull for the event loop only."""
    for late, stage in ((0.4, "flush"), (0.8, "queue")):
        sampled = Sampled(Stage.FLUSH)
        sampled.after(0.1)
        sampled.in_flight.sends = 1
        sampled.now += 0.5
        sampled.admission.sample(sampled.now, late)
        stalled_ms = sampled.admission.stalled_ms
        assert stalled_ms > 400
        for code, waited_ms, where in (
            (RequestCode.SEND_MESSAGE_V2, max(stalled_ms, int(late * 1000)), stage),
            (RequestCode.PULL_MESSAGE, int(late * 1000), "queue"),
        ):
            text = sampled.admission.refuse(_Peer(), Command(code)).remark or ""  # type: ignore[arg-type]
            assert f"period in queue: {waited_ms}ms" in text and text.endswith(f"stage: {where}"), text


class _Peer:
    remote_address = "192.0.2.7:1"


@pytest.mark.spec("SND-16")
async def test_broker_with_a_stalled_disk_sheds_sends_and_recovers() -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "profile": StoreProfile.SMALL}
    async with wire(store=store, send_wait_ms=1, fast_failure_delay_ms=1) as w:
        assert (await w.send()).code == 0
        opened, sync = threading.Event(), w.broker.store.disk.sync

        def stalled(fd: int) -> None:
            opened.wait(20)
            sync(fd)

        w.broker.store.disk.sync = stalled  # type: ignore[method-assign]
        waiting = [asyncio.create_task(w.send()) for _ in range(20)]
        await until(lambda: w.broker.admission.rejected)
        refused = await w.send()
        assert refused.code == ResponseCode.SYSTEM_BUSY
        text = refused.remark or ""
        assert text.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy") and "size of queue: 20, stage: flush" in text
        table = KVTable.decode((await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert int(table["sendThreadPoolQueueHeadWaitTimeMills"]) > 0 and table["rejected_busy"] == "1"
        assert (await w.heartbeat("G", "T")).code == 0 and (await w.pull()).code == 0, "others are served"
        assert not any(task.done() for task in waiting)

        samples, sample = 0, w.broker.admission.sample

        def counted(now: float, late: float) -> None:
            nonlocal samples
            samples += 1
            sample(now, late)

        w.broker.admission.sample = counted  # type: ignore[method-assign]
        opened.set()
        assert {(await task).code for task in waiting} == {0}
        await until(lambda: not w.broker.admission.rejected)
        assert samples <= RECOVERY_SAMPLES
        assert (await w.send()).code == 0


@pytest.mark.spec("SND-16")
async def test_fast_failure_can_be_switched_off() -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "profile": StoreProfile.SMALL}
    async with wire(store=store, send_wait_ms=1, fast_failure_delay_ms=0, fast_failure=False) as w:
        assert (await w.send()).code == 0
        opened, sync = threading.Event(), w.broker.store.disk.sync
        w.broker.store.disk.sync = lambda fd: (opened.wait(20), sync(fd))[1]  # type: ignore[method-assign]
        waiting = asyncio.create_task(w.send())
        await until(lambda: w.broker.in_flight.sends)
        w.broker.admission.append_was_slow(5000)
        assert w.broker.admission._timer is None and not w.broker.admission.rejected
        opened.set()
        assert (await waiting).code == 0


def slow_appends(w: Wire, seconds: float) -> None:
    """Make every append to the log of a broker take longer, as a busy page cache does.

    Compiled code appends the sends of an iteration together, so that none waits behind another: all are decoded here.
    """
    w.broker._server.take_plain(None)
    log, append = w.broker.store.log, w.broker.store.log.append

    def slow(*args: Any) -> Any:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:  # blocks the event loop, as a page fault does
            pass
        return append(*args)

    log.append = slow  # type: ignore[method-assign]


@pytest.mark.spec("SND-16", "BP-09")
async def test_overloaded_event_loop_sheds_sends() -> None:
    """64 producers against a store that takes 50 ms for a message: the rejections free the loop, all are answered."""
    async with wire(send_wait_ms=40, fast_failure_delay_ms=100) as w:
        assert (await w.send()).code == 0
        slow_appends(w, 0.05)
        codes: dict[int, int] = {}
        texts: set[str] = set()

        async def producer() -> None:
            while codes.get(2, 0) < 200:
                answer = await w.send()
                codes[answer.code] = codes.get(answer.code, 0) + 1
                if answer.code == 2:
                    texts.add((answer.remark or "").partition("period in queue")[0])
                    await asyncio.sleep(0)

        await asyncio.gather(*[producer() for _ in range(64)])
        assert set(codes) == {0, 2} and codes[0] > 0
        assert texts == {"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "}
        await until(lambda: not w.broker.admission.rejected)
        assert (await w.send()).code == 0


@pytest.mark.spec("ST-04", "SND-16")
async def test_sends_behind_a_slow_append_are_rejected() -> None:
    async with wire(store={"page_cache_busy_ms": 5, "profile": StoreProfile.SMALL}) as w:
        assert (await w.send()).code == 0
        append = w.broker.store.log.append
        slow_appends(w, 0.02)
        answers = await asyncio.gather(*[w.send() for _ in range(10)], w.pull(), w.heartbeat("G", "T"))
        assert [answer.code for answer in answers] == [0] + [2] * 9 + [0, 0]
        remark = answers[1].remark or ""
        form = (
            r"\[PCBUSY_CLEAN_QUEUE\]broker busy, start flow control for a while, period in queue: (\d+)ms, "
            "size of queue: 0, stage: append lock"
        )
        found = re.fullmatch(form, remark)
        assert found and int(found[1]) >= 20, remark
        w.broker.store.log.append = append  # type: ignore[method-assign]
        await until(lambda: not w.broker.admission.rejected)
        assert (await w.send()).code == 0
