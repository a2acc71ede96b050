"""Deadlines of listings: a broker that hangs costs 2 s, one whose answer is large has the time of a slow request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from scriptedadmin import ScriptedConnection

from harness import virtualtime
from saturnmq.admin.connection import LISTING_SECONDS
from saturnmq.admin.topics import Topics
from saturnmq.protocol.bodies import KVTable, MessageQueue, TopicOffset, TopicStatsTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

BROKERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
SLOW_S = 4 * LISTING_SECONDS


class Slow(ScriptedConnection):
    """Answers code 202 after SLOW_S."""

    async def read(self, address: str, code: RequestCode, *more: Any, **options: Any) -> Command:
        if code == RequestCode.GET_TOPIC_STATS_INFO:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), SLOW_S)
        return await super().read(address, code, *more, **options)


@pytest.mark.parametrize("hangs", [False, True])
def test_slow_answer_is_awaited_and_a_hanging_broker_is_not(hangs: bool) -> None:
    def runtime(address: str, ext: Any) -> KVTable | None:
        return None if hangs and address == BROKERS["b"] else KVTable()

    def offsets(address: str, ext: Any) -> TopicStatsTable:
        return TopicStatsTable({MessageQueue("t", address[-1], 0): TopicOffset(0, 1, 2)})

    async def work() -> float:
        script = {RequestCode.GET_BROKER_RUNTIME_INFO: runtime, RequestCode.GET_TOPIC_STATS_INFO: offsets}
        begin = asyncio.get_running_loop().time()
        found = await Topics(Slow(BROKERS, script)).statistics("t")
        assert [queue.broker_name for queue in found.offsets] == ["1"] + ["2"] * (not hangs)
        assert list(found.failures) == [BROKERS["b"]] * hangs
        return asyncio.get_running_loop().time() - begin

    took = virtualtime.run(work())
    assert SLOW_S <= took < SLOW_S + LISTING_SECONDS * (hangs + 1)


@pytest.mark.loop(real=False)
async def test_brokers_that_answer_at_once_are_asked_once() -> None:
    offsets = TopicStatsTable({MessageQueue("t", "a", 0): TopicOffset(0, 1, 2)})
    connection = ScriptedConnection(BROKERS, {RequestCode.GET_TOPIC_STATS_INFO: lambda address, ext: offsets})
    assert (await Topics(connection).statistics("t")).offsets
    assert connection.asked == [(address, RequestCode.GET_TOPIC_STATS_INFO) for address in BROKERS.values()]
