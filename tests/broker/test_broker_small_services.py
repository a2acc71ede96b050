"""Small parts of a broker step by step: what only a leader runs, what statistics are taken with, answers to sends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq.broker.requests.send import answer
from saturnmq.broker.services.master_services import MasterServices
from saturnmq.broker.services.reporting import Reporting
from saturnmq.protocol.frames.command import Command
from saturnmq.store import PutStatus


class Service:
    """Notes its calls in a list that all share, with the number of its set."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    def load(self) -> None:
        self._calls.append(f"load {self._name}")

    def start(self, on_failure: Any) -> None:
        self._calls.append(f"start {self._name} {on_failure}")

    async def stop(self) -> None:
        self._calls.append(f"stop {self._name}")


async def test_services_of_a_leader_are_replaced_when_it_leads_and_when_it_stops() -> None:
    calls: list[str] = []
    sets = iter(range(1, 9))

    def create() -> Any:
        number = next(sets)
        return tuple(Service(f"{name}{number}", calls) for name in ("delay", "timer", "transactions"))

    services = MasterServices(create, cast(Any, "fails"))
    services.start()
    assert calls == ["start delay1 fails", "start timer1 fails", "start transactions1 fails"]
    calls.clear()
    services.restart()
    assert calls == [
        "load delay2", "start delay2 fails", "load timer2", "start timer2 fails", "load transactions2",
        "start transactions2 fails",
    ]  # fmt: skip
    calls.clear()
    await services.stop()
    assert calls == ["stop delay2", "stop timer2", "stop transactions2", "load delay3"], "progress of delays is read on"
    assert cast(Any, services.timer)._name == "timer3"


async def test_statistics_are_sampled_by_the_loop_and_dated_by_the_clock() -> None:
    samples: list[tuple[float, int]] = []

    class Stats:
        def sample(self, now_s: float, now_ms: int) -> tuple[()]:
            samples.append((now_s, now_ms))
            return ()

    reporting = cast(Any, Reporting.__new__(Reporting))
    reporting._stats, reporting._clock_ms = Stats(), lambda: 1_700_000_000_000
    before = asyncio.get_running_loop().time()
    assert list(reporting._sample()) == []
    ((now_s, now_ms),) = samples
    assert before <= now_s < 1_000_000_000 and now_ms == 1_700_000_000_000


@pytest.mark.spec("SND-13")
@pytest.mark.parametrize(
    ("status", "code", "is_stored"),
    [
        (PutStatus.PUT_OK, 0, True),
        (PutStatus.FLUSH_DISK_TIMEOUT, 10, True),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11, True),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12, True),
        (PutStatus.SERVICE_NOT_AVAILABLE, 14, False),
        (PutStatus.MESSAGE_ILLEGAL, 13, False),
    ],
)
def test_answer_has_offsets_if_the_message_was_stored(status: PutStatus, code: int, is_stored: bool) -> None:
    def fields(queue_id: int, queue_offset: int, positions: tuple[int, ...]) -> dict[str, str]:
        return {"queueId": str(queue_id), "queueOffset": str(queue_offset), "at": str(positions)}

    def context() -> Any:
        store = SimpleNamespace(settings=SimpleNamespace(message_bytes_max=100), failure=None)
        return SimpleNamespace(
            answers=SimpleNamespace(fields=fields, base=dict), stats=SimpleNamespace(put_failed=0), store=store
        )

    request, ctx = Command(310), context()
    result: Any = SimpleNamespace(physical_offset=0, physical_offsets=(), queue_offset=7, reason="")
    reply = answer(ctx, request, result, status, 3)
    stored = {"queueId": "3", "queueOffset": "7", "at": "(0,)"}
    assert (reply.code, reply.ext, ctx.stats.put_failed) == (code, stored if is_stored else {}, int(not is_stored))
    ctx, result.physical_offset = context(), -1
    assert (answer(ctx, request, result, status, 3).ext, ctx.stats.put_failed) == ({}, 1), "nothing was stored"
