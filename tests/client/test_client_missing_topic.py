"""A consumer of a topic that does not exist yet: how often it asks the NameServer, and that it begins when the topic is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.connection import core
from saturnmq.protocol.frames.command import Command
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the consumer asks for routes."""
    monkeypatch.setattr(core, "FIRST_ROUTE_POLL_MS", HOUR_MS)


REQUESTS = 4


def noting(c: Any, topic: str, enough: asyncio.Event) -> list[float]:
    """The times at which the route of a topic is requested from now on, seconds of the loop; enough: set by the last one."""
    times: list[float] = []
    server = c.ns[0]

    def answer(command: Command) -> Command:
        if command.ext["topic"] == topic:
            times.append(asyncio.get_running_loop().time())
            if len(times) == REQUESTS:
                enough.set()
        return server.builtin(command)  # type: ignore[no-any-return]

    server.script[105] = answer
    return times


async def test_missing_topic_is_looked_up_with_growing_pauses(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, route_poll_ms=HOUR_MS, rebalance_ms=HOUR_MS) as client,
    ):
        c.add("%RETRY%g")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(inbox.assigned) == 4)
            await inbox.subscribe("Later")
            times = noting(c, "Later", enough := asyncio.Event())
            async with asyncio.timeout(40):
                await enough.wait()
            pauses = [round(later - earlier) for earlier, later in pairwise(times)]
            assert pauses == [2, 4, 8], "doubled, at most 20 s"
            c.add("Later", c.route(read=1, write=1))
            c.broker.put("Later", 0, b"first")
            message = await inbox.recv(30)
            assert (message.topic, message.value) == ("Later", b"first")
